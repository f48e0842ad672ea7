"""Local training of many clients in one TensorFlow graph.

Clients are trained side by side: a step of all of them is one vectorised step, in which
short batches are padded, and padded examples have weight 0. Where that would be wrong
(a loss that ignores weights, examples of a batch that affect each other) or not fit in
memory, clients are trained one by one, on unpadded batches. `why_one_by_one` decides.

Both ways do what TFF's client work for functional models does, batch for batch.
"""

import dataclasses
import functools
import itertools
import re
from collections.abc import Sequence
from typing import Any, Callable, NamedTuple, Optional

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_dp_aggregators.aggregators import tracing
from tff_dp_aggregators.learning import clients as clients_lib
from tff_dp_aggregators.learning import failures
from tff_dp_aggregators.learning import functions
from tff_dp_aggregators.learning import local_order
from tff_dp_aggregators.learning import optimizers
from tff_dp_aggregators.learning.packed import data as data_lib
from tff_dp_aggregators.sampling import draws

# TensorFlow's operations whose results differ from one execution to the next.
_RANDOM = re.compile(
  r'Random(?!Dataset)|Multinomial|TruncatedNormal|NonDeterministic|CandidateSampler|'
  r'SampleDistorted|^Rng|^Stateful(?!Partitioned)'
)
_STATELESS = re.compile(r'^Stateless')
_LOOPS = ('While', 'StatelessWhile', 'LoopCond')  # LoopCond is of TensorFlow 1 graphs.
# Training fewer clients side by side is not faster than one after the other.
_MIN_SIDE_BY_SIDE = 4
# Number of clients whose examples the check of padding uses.
_NUM_TESTED = 8
# Relative tolerance, also to the largest entry, for other orders of float32 sums.
_TOLERANCE = 1e-3
# Maximum number of clients in a pack, and trained at once, so that a pack's memory does
# not grow with the cohort. More clients would not take less time per client. Cohorts of
# up to 3,000, as in most published runs, are not affected: they have two packs anyway.
LARGEST = 1536
# Approximate limit of the memory of clients that are trained side by side.
_BYTES_IN_FLIGHT = 64 * 2**20
# Copies of a model that local training, clipping and encoding hold at a time.
_COPIES = 8
# Examples of all clients, concatenated: a tensor for each feature.
Examples = Sequence[tf.Tensor]


@dataclasses.dataclass(frozen=True, eq=False)  # Optimizers may have no hash.
class LocalTraining:
  """A client's local training in a round.

  Attributes:
    model: The model that is trained.
    optimizer: The client's optimizer.
    batch_size: Number of examples in a batch; a round's last batch may have fewer.
    local_epochs: Passes over the client's examples.
    schedule: Learning rates by round; `None` for the optimizer's own. With a schedule,
      `optimizer` is the optimizer of round 0.
  """

  model: tff.learning.models.FunctionalModel
  optimizer: tff.learning.optimizers.Optimizer
  batch_size: int
  local_epochs: int = 1
  schedule: Optional[optimizers.ClientSchedule] = None

  def optimizer_with(self, learning_rate: Any) -> tff.learning.optimizers.Optimizer:
    """The optimizer with a round's learning rate; `()` means the field `optimizer`."""
    if self.schedule is None or isinstance(learning_rate, tuple):
      return self.optimizer
    return self.schedule.make(learning_rate)


class Trained(NamedTuple):
  """The result of clients' training."""

  update: Any  # Initial weights minus trained weights; structure of tensors.
  metrics: Any  # Unfinalised metrics of the training.


class Weights(NamedTuple):
  """A model's weights, tuples of tensors, and the clients' learning rate."""

  trainable: Any
  rest: Any
  learning_rate: Any = ()  # The round's learning rate, float32, if there is a schedule.


class State(NamedTuple):
  """A client's state between two steps."""

  trainable: Any  # Trainable weights, a tuple.
  optimizer: Any
  metrics: Any  # Unfinalised.


def permutations(
  keys: tf.Tensor, sizes: tf.Tensor, largest: tf.Tensor, epochs: int
) -> tf.Tensor:
  """`local_order.permutation` for several clients: int32 [clients, epochs, largest]."""
  position = tf.range(tf.cast(largest, tf.int32))
  shifted_epochs = tf.constant(
    [[epoch << local_order.EPOCH_BITS] for epoch in range(epochs)], tf.uint64
  )
  numbers = shifted_epochs + tf.cast(position, tf.uint64)
  hashed = _mix(keys[:, tf.newaxis, tf.newaxis] + numbers)
  hashed = tf.bitwise.right_shift(hashed, tf.constant(1, tf.uint64))
  within = tf.cast(position, tf.int64) < sizes[:, tf.newaxis, tf.newaxis]
  last = tf.constant(tf.int64.max, tf.int64)
  return tf.argsort(tf.where(within, tf.cast(hashed, tf.int64), last), stable=True)


def _mix(numbers: tf.Tensor) -> tf.Tensor:
  def constant(value: int) -> tf.Tensor:
    return tf.constant(value, tf.uint64)

  def fold(value: tf.Tensor, shift: int) -> tf.Tensor:
    return tf.bitwise.bitwise_xor(value, tf.bitwise.right_shift(value, constant(shift)))

  mixed = numbers + constant(draws.INCREMENT)
  for shift, factor in zip(draws.SHIFTS, draws.FACTORS):
    mixed = fold(mixed, shift) * constant(factor)
  return fold(mixed, draws.SHIFTS[-1])


class Batches:
  """The batches of several clients: the examples of each client in each step."""

  def __init__(self, training: LocalTraining, examples: Examples, rows: tf.Tensor):
    """Orders each client's examples by its row, see `PackedFedAvg.packs`."""
    self._batch_size = training.batch_size
    self._starts, self._sizes = rows[:, 0], rows[:, 1]
    keys = tf.bitcast(rows[:, 2], tf.uint64)
    self._totals = self._sizes * training.local_epochs
    self._order = permutations(
      keys, self._sizes, tf.reduce_max(self._sizes), training.local_epochs
    )
    self._features = examples
    self._spec = training.model.input_spec
    self.num_clients = tf.shape(self._totals)[0]
    max_examples = tf.reduce_max(self._totals)
    self.num_steps = (max_examples + self._batch_size - 1) // self._batch_size

  def side_by_side(self, step: tf.Tensor) -> tuple[Any, tf.Tensor]:
    """Returns padded batches of all clients, and which of their examples count."""
    totals, sizes = self._totals[:, tf.newaxis], self._sizes[:, tf.newaxis]
    position = step * self._batch_size + tf.range(self._batch_size, dtype=tf.int64)
    counts = position < totals
    position = tf.minimum(position, totals - 1)
    where = tf.stack([position // sizes, position % sizes], axis=-1)
    chosen = tf.gather_nd(self._order, where, batch_dims=1)
    examples = self._starts[:, tf.newaxis] + tf.cast(chosen, tf.int64)
    flat = [tf.gather(feature, examples) for feature in self._features]
    return tf.nest.pack_sequence_as(self._spec, flat), counts


def train_step(
  training: LocalTraining,
  weights: Weights,
  state: State,
  batch: Any,
  counts: Optional[tf.Tensor] = None,
) -> State:
  """Computes a step of one client; `counts` says which examples count, if not all."""
  model = training.model
  x, y = clients_lib.pair(batch)
  sample_weight = None
  if counts is not None:
    # With weights whose sum is the batch size, a loss is a mean over the examples that
    # count, whether it divides by the batch size or by the sum of weights.
    sample_weight = tf.cast(counts, tf.float32)
    size = tf.cast(tf.size(counts), tf.float32)
    sample_weight *= size / tf.maximum(tf.reduce_sum(sample_weight), 1.0)
  with tf.GradientTape() as tape:
    tape.watch(state.trainable)
    predict = tracing.converted(model.predict_on_batch)
    output = predict((state.trainable, weights.rest), x, training=True)
    loss = tracing.converted(model.loss)(output, y, sample_weight)
  gradients = tape.gradient(loss, state.trainable)
  optimizer = training.optimizer_with(weights.learning_rate)
  optimizer_state, trainable = tracing.converted(optimizer.next)(
    state.optimizer, state.trainable, gradients
  )
  if counts is None:
    metrics = _update_metrics(model, state.metrics, output, y, loss)
  else:
    metrics = _add_metrics_of_examples(model, state.metrics, output, y, counts)
  return State(trainable, optimizer_state, metrics)


def _update_metrics(
  model: tff.learning.models.FunctionalModel,
  metrics: Any,
  output: Any,
  labels: Any,
  loss: tf.Tensor,
) -> Any:
  num_examples = tf.shape(tf.nest.flatten(output)[0])[0]
  batch_output = tff.learning.models.BatchOutput(
    loss=loss, predictions=output, num_examples=num_examples
  )
  update = tracing.converted(model.update_metrics_state)
  return update(metrics, batch_output=batch_output, labels=labels)


def _add_metrics_of_examples(
  model: tff.learning.models.FunctionalModel,
  metrics: Any,
  output: Any,
  labels: Any,
  counts: tf.Tensor,
) -> Any:
  """Adds each counting example's metrics separately, since metrics take no weights."""
  if not tf.nest.flatten(metrics):
    return metrics
  zero = tf.nest.map_structure(tf.convert_to_tensor, model.initialize_metrics_state())

  def of_example(example: Any) -> Any:
    outputs, label, is_counted = example
    outputs, label = tf.nest.map_structure(
      lambda tensor: tensor[tf.newaxis], (outputs, label)
    )
    loss = tracing.converted(model.loss)(outputs, label)
    after = _update_metrics(model, zero, outputs, label, loss)
    return tf.nest.map_structure(
      lambda new, old: tf.where(is_counted, new - old, tf.zeros_like(old)), after, zero
    )

  added = tf.vectorized_map(
    of_example, (output, labels, counts), fallback_to_while_loop=False
  )
  return tf.nest.map_structure(
    lambda before, more: before + tf.reduce_sum(more, axis=0), metrics, added
  )


def side_by_side(
  training: LocalTraining,
  weights: Weights,
  batches: Batches,
  *,
  padded: bool = True,
) -> Trained:
  """Trains clients at once; tensors of the result have an entry for each client."""
  initial = initial_state(training, weights)
  stacked = tf.nest.map_structure(
    lambda tensor: tf.repeat(tensor[tf.newaxis], batches.num_clients, axis=0), initial
  )
  # The number of clients is not known when the graph is made.
  shapes = tf.nest.map_structure(
    lambda tensor: tf.TensorShape([None]).concatenate(tensor.shape), initial
  )

  def step_of_one(inputs: Any) -> Any:
    state, batch, counts = inputs
    after = train_step(training, weights, state, batch, counts if padded else None)
    # A client that has no more examples does not change.
    active = tf.reduce_any(counts)
    return tf.nest.map_structure(
      lambda new, old: tf.where(active, tf.cast(new, old.dtype), old), after, state
    )

  def body(step: tf.Tensor, state: Any) -> Any:
    batch, counts = batches.side_by_side(step)
    state = tf.vectorized_map(
      step_of_one, (state, batch, counts), fallback_to_while_loop=False
    )
    return tf.nest.map_structure(tf.ensure_shape, state, shapes)

  return _trained(batches.num_steps, body, stacked, shapes)


def one(training: LocalTraining, weights: Weights, batches: Batches) -> Trained:
  """Trains a single client, on unpadded batches; returns what `side_by_side` does."""
  initial = initial_state(training, weights)

  def body(step: tf.Tensor, state: Any) -> Any:
    batch, counts = batches.side_by_side(step)
    size = tf.reduce_sum(tf.cast(counts, tf.int32))
    unpadded = tf.nest.map_structure(lambda each: each[0, :size], batch)
    return train_step(training, weights, state, unpadded)

  trained = _trained(batches.num_steps, body, initial)
  return tf.nest.map_structure(lambda tensor: tensor[tf.newaxis], trained)


def initial_state(training: LocalTraining, weights: Weights) -> State:
  """Returns the state before the first step."""
  specs = tf.nest.map_structure(tf.TensorSpec.from_tensor, weights.trainable)
  state = State(
    weights.trainable,
    training.optimizer_with(weights.learning_rate).initialize(specs),
    training.model.initialize_metrics_state(),
  )
  return tf.nest.map_structure(tf.convert_to_tensor, state)


def _trained(
  num_steps: tf.Tensor, body: Callable[..., Any], initial: State, shapes: Any = None
) -> Trained:
  """Runs the steps; `shapes` are those of the state, the same after each step."""
  state = fold(body, num_steps, initial, shapes=shapes)
  update = tf.nest.map_structure(tf.subtract, initial.trainable, state.trainable)
  return Trained(update, state.metrics)


def fold(
  body: Callable[[tf.Tensor, Any], Any],
  number: tf.Tensor,
  initial: Any,
  *,
  parallel: int = 1,
  shapes: Any = None,
) -> Any:
  """Returns `body(number - 1, ... body(0, initial))`; shapes may be less specific."""
  _, value = tf.while_loop(
    lambda index, unused_value: index < number,
    lambda index, value: (index + 1, body(index, value)),
    (tf.constant(0, number.dtype), initial),
    shape_invariants=None if shapes is None else (tf.TensorShape([]), shapes),
    parallel_iterations=parallel,
  )
  return value


def random_operations(training: LocalTraining) -> list[str]:
  """Names of the operations of a training step that draw unseeded random numbers."""
  return sorted(
    {
      name
      for name, operation in _operations(training)
      if _RANDOM.search(operation) and not _STATELESS.search(operation)
    }
  )


@functools.lru_cache(maxsize=1)  # Slow; a run calls it three times.
def _operations(training: LocalTraining) -> list[tuple[str, str]]:
  """Names and operations of a step's graph, including the graph's functions."""

  def step(batch: Any) -> None:
    weights = _weights(training, tf.constant)
    initial = initial_state(training, weights)
    train_step(training, weights, initial, batch)

  definition, *_ = functions.graph_of(step, training.model.input_spec)
  called = (each.node_def for each in definition.library.function)
  nodes = itertools.chain(definition.node, *called)
  return [(node.name, node.op) for node in nodes]


def refuse_random_models(training: LocalTraining) -> None:
  """Refuses models that would give another result if a round is run again."""
  names = random_operations(training)
  if names:
    raise ValueError(
      f'the model draws random numbers anew in each execution ({", ".join(names)}), as '
      'tf.keras.layers.Dropout does. A round that is run again after a stop would '
      'release another sum with the same noise, so the run could never go on. Leave '
      'such layers out, or draw with tf.random.stateless_... or '
      'tf.nn.experimental.stateless_dropout and a seed made of weights and batch; '
      'docs/training.md has an example.'
    )


def _weights(training: LocalTraining, make: Callable[[Any], Any]) -> Weights:
  trainable, rest = (
    tuple(make(each) for each in tf.nest.flatten(part))
    for part in training.model.initial_weights
  )
  return Weights(trainable, rest)


def at_once(training: LocalTraining) -> int:
  """How many clients may be trained side by side within the memory limit."""
  trainable, _ = training.model.initial_weights
  num_bytes = sum(each.nbytes for each in tf.nest.flatten(trainable))
  num_clients = _BYTES_IN_FLIGHT // (_COPIES * max(1, num_bytes))
  return max(1, min(num_clients, LARGEST))


def is_padded(training: LocalTraining, data: data_lib.PackedData) -> bool:
  """Whether some client's last batch is shorter than the others."""
  rest = data.all_sizes * training.local_epochs % training.batch_size
  return bool(rest.any())


def why_one_by_one(training: LocalTraining, data: data_lib.PackedData) -> Optional[str]:
  """Why clients must be trained one after the other; `None` if no reason is known."""
  if at_once(training) < _MIN_SIDE_BY_SIDE:
    return 'the model is large'
  random = random_operations(training)
  if random:
    return f'the model draws random numbers: {", ".join(random)}'
  if any(operation in _LOOPS for _, operation in _operations(training)):
    # Measured on LSTMs of 64 units: start-up takes twice as long, rounds as long.
    return 'the model has loops, which gain nothing side by side'
  if not is_padded(training, data):
    return None
  if getattr(training.model, 'penalty_needs_inputs', False):
    return 'batches have to be padded, and the model adds a loss of its inputs'
  if getattr(training.model, 'loss_ignores_labels', False):
    return (
      'batches have to be padded, and ignore_class changes what the loss divides by'
    )
  steps = _steps(training, data)
  if steps is None:
    return (
      'batches have to be padded, and the loss takes no weight for each example; for a '
      'model that puts out [n, 1] it does if labels are of that shape as well'
    )
  padded, unpadded = steps
  for one, exact in zip(itertools.chain(*padded), itertools.cycle(unpadded)):
    largest = np.max(np.abs(exact), initial=0.0)
    if not np.allclose(one, exact, rtol=_TOLERANCE, atol=_TOLERANCE * largest):
      return (
        'batches have to be padded, and the loss or the metrics ignore sample_weight, '
        'or examples of a batch see each other'
      )
  return None


def _perturbed(weight: Any, rng: np.random.Generator) -> np.ndarray:
  array = np.asarray(weight)
  if array.dtype.kind != 'f':
    return array
  scale = 0.1 * float(np.sqrt(np.mean(np.square(array)))) if array.size else 0.0
  return (array + (scale or 0.1) * rng.normal(size=array.shape)).astype(array.dtype)


def _steps(
  training: LocalTraining, data: data_lib.PackedData
) -> Optional[tuple[list[list[np.ndarray]], list[np.ndarray]]]:
  """Steps on half a batch, padded in several ways and not; `None` without weights."""
  size = training.batch_size
  clients = {int(np.argmax(data.all_sizes))}
  clients.update(np.linspace(0, len(data) - 1, _NUM_TESTED).astype(int).tolist())
  by_client = [data.examples(each) for each in sorted(clients)]
  shares = [min(len(each[0]), size // len(clients) + 1) for each in by_client]
  features = []
  for feature in zip(*by_client):
    chosen = [
      each[np.linspace(0, len(each) - 1, share).astype(int)]
      for each, share in zip(feature, shares)
    ]
    ends = [each[-1:] for each in feature]
    features.append(np.concatenate([np.concatenate(chosen)[:size], *ends]))
  num_chosen = len(features[0]) - len(clients)
  count = max(1, min(num_chosen - 1, (size + 1) // 2))
  # Padding consists of other examples, if there are any, or of a client's last one,
  # which may have padding of its own, as the end of a text.
  positions = np.arange(size)
  paddings = [positions % num_chosen] + [
    np.where(positions < count, positions, end)
    for end in range(num_chosen, len(features[0]))
  ]
  with tf.Graph().as_default():
    indices = tf.compat.v1.placeholder(tf.int64, [size])

    def batch(chosen: Any) -> Any:
      flat = [tf.gather(tf.constant(feature), chosen) for feature in features]
      return tf.nest.pack_sequence_as(training.model.input_spec, flat)

    padded, unpadded = batch(indices), batch(positions[:count])
    counts = tf.constant(positions < count)
    # Perturbed weights, because initial weights may be zeros, which hide differences.
    rng = np.random.default_rng(1)
    weights = _weights(training, lambda each: tf.constant(_perturbed(each, rng)))
    initial = initial_state(training, weights)
    unpadded_step = train_step(training, weights, initial, unpadded)
    try:
      padded_step = train_step(training, weights, initial, padded, counts)
    except Exception:  # A loss that takes no such weights may raise any exception.
      return None
    fetched = [tf.nest.flatten(each) for each in (padded_step, unpadded_step)]
    with tf.compat.v1.Session() as session:
      try:
        padded_steps = [session.run(fetched[0], {indices: each}) for each in paddings]
        return padded_steps, session.run(fetched[1])
      except tf.errors.OpError as e:
        raise failures.of_tensorflow(e) from e
