"""Local training of many clients in one TensorFlow graph.

Clients are trained side by side: one step of all of them is one vectorised step, in
which batches that are short are padded, and padded examples weigh nothing. Where that
is not right (a loss that ignores weights, examples of a batch that see each other) or
would not fit in memory, they are trained one after the other, on their batches as they
are. `step_checks` finds out which.

Both do what TFF's client work for functional models does, batch for batch.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any, Callable, NamedTuple, Optional

import tensorflow as tf
import tensorflow_federated as tff

from tff_dp_aggregators.aggregators import tracing
from tff_dp_aggregators.learning import clients as clients_lib
from tff_dp_aggregators.learning import local_order
from tff_dp_aggregators.learning import optimizers
from tff_dp_aggregators.sampling import draws

# Examples of all clients, client after client: a tensor for each feature.
Examples = Sequence[tf.Tensor]


@dataclasses.dataclass(frozen=True)
class LocalTraining:
  """What a client does in a round.

  Attributes:
    model: What is trained.
    optimizer: With which optimizer.
    batch_size: Examples of a batch; the last one of a round may have fewer.
    local_epochs: Passes over the client's examples.
    schedule: Learning rates by round; `None` for those of the optimizer. With it,
      `optimizer` is that of round 0.
  """

  model: tff.learning.models.FunctionalModel
  optimizer: tff.learning.optimizers.Optimizer
  batch_size: int
  local_epochs: int = 1
  schedule: Optional[optimizers.ClientSchedule] = None

  def optimizer_with(self, learning_rate: Any) -> tff.learning.optimizers.Optimizer:
    """The optimizer of a round with this learning rate; `()` for that of round 0."""
    if self.schedule is None or isinstance(learning_rate, tuple):
      return self.optimizer
    return self.schedule.make(learning_rate)


class Trained(NamedTuple):
  """What clients return."""

  update: Any  # What the model was before, less what it is; structure of tensors.
  metrics: Any  # Unfinalised metrics of the training.


class Weights(NamedTuple):
  """A model's weights, tuples of tensors, and how far clients go from them."""

  trainable: Any
  rest: Any
  learning_rate: Any = ()  # That of the round, float32, if there is a schedule.


class State(NamedTuple):
  """Where a client is between two steps."""

  trainable: Any  # Its trainable weights, a tuple.
  optimizer: Any
  metrics: Any  # Unfinalised.


def permutations(
  keys: tf.Tensor, sizes: tf.Tensor, largest: tf.Tensor, epochs: int
) -> tf.Tensor:
  """`local_order.permutation` of several clients: int32 [clients, epochs, largest]."""
  position = tf.range(tf.cast(largest, tf.int32))
  above = tf.constant(
    [[epoch << local_order.EPOCH_BITS] for epoch in range(epochs)], tf.uint64
  )
  numbers = above + tf.cast(position, tf.uint64)
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
  """The batches of some clients: which examples make the step of each."""

  def __init__(self, training: LocalTraining, examples: Examples, rows: tf.Tensor):
    """Orders the examples of each client, by its row: see `simulation.Cohort`."""
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
    most = tf.reduce_max(self._totals)
    self.num_steps = (most + self._batch_size - 1) // self._batch_size

  def side_by_side(self, step: tf.Tensor) -> tuple[Any, tf.Tensor]:
    """Batches of all clients, padded, and which of their examples count."""
    totals, sizes = self._totals[:, tf.newaxis], self._sizes[:, tf.newaxis]
    position = step * self._batch_size + tf.range(self._batch_size, dtype=tf.int64)
    counts = position < totals
    position = tf.minimum(position, totals - 1)
    where = tf.stack([position // sizes, position % sizes], axis=-1)
    chosen = tf.gather_nd(self._order, where, batch_dims=1)
    examples = self._starts[:, tf.newaxis] + tf.cast(chosen, tf.int64)
    flat = [tf.gather(feature, examples) for feature in self._features]
    return tf.nest.pack_sequence_as(self._spec, flat), counts

  def of_the_only_client(self, step: tf.Tensor) -> Any:
    """The batch of a single client as it is."""
    batch, counts = self.side_by_side(step)
    size = tf.reduce_sum(tf.cast(counts, tf.int32))
    return tf.nest.map_structure(lambda each: each[0, :size], batch)


def train_step(
  training: LocalTraining,
  weights: Weights,
  state: State,
  batch: Any,
  counts: Optional[tf.Tensor] = None,
) -> State:
  """One step of one client.

  `counts`: Which examples count, bool; `None` if all do.
  """
  model = training.model
  x, y = clients_lib.pair(batch)
  sample_weight = None
  if counts is not None:
    # A mean over the batch becomes one over the examples that count, whether a loss
    # divides by the size of the batch or by the sum of weights.
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
  """Adds what each example that counts adds by itself: metrics take no weights."""
  if not tf.nest.flatten(metrics):
    return metrics
  zero = tf.nest.map_structure(tf.convert_to_tensor, model.initialize_metrics_state())

  def of_one(example: Any) -> Any:
    outputs, label, is_meant = example
    outputs, label = tf.nest.map_structure(
      lambda tensor: tensor[tf.newaxis], (outputs, label)
    )
    loss = tracing.converted(model.loss)(outputs, label)
    after = _update_metrics(model, zero, outputs, label, loss)
    return tf.nest.map_structure(
      lambda new, old: tf.where(is_meant, new - old, tf.zeros_like(old)), after, zero
    )

  added = tf.vectorized_map(
    of_one, (output, labels, counts), fallback_to_while_loop=False
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
  """Trains clients at once; each tensor of the result has an entry for each."""
  initial = initial_state(training, weights)
  stacked = tf.nest.map_structure(
    lambda tensor: tf.repeat(tensor[tf.newaxis], batches.num_clients, axis=0), initial
  )
  # How many clients there are is not known when the graph is made.
  shapes = tf.nest.map_structure(
    lambda tensor: tf.TensorShape([None]).concatenate(tensor.shape), initial
  )

  def step_of_one(inputs: Any) -> Any:
    state, batch, counts = inputs
    after = train_step(training, weights, state, batch, counts if padded else None)
    # A client that is done stays as it is.
    active = tf.reduce_any(counts)
    return tf.nest.map_structure(
      lambda new, old: tf.where(active, tf.cast(new, old.dtype), old), after, state
    )

  def body(step: tf.Tensor, state: Any) -> Any:
    batch, counts = batches.side_by_side(step)
    state = tf.vectorized_map(
      step_of_one, (state, batch, counts), fallback_to_while_loop=False
    )
    return step + 1, tf.nest.map_structure(tf.ensure_shape, state, shapes)

  state = _loop(batches.num_steps, body, stacked, shapes)
  update = tf.nest.map_structure(tf.subtract, stacked.trainable, state.trainable)
  return Trained(update, state.metrics)


def one(training: LocalTraining, weights: Weights, batches: Batches) -> Trained:
  """Trains a single client, on its batches as they are."""
  initial = initial_state(training, weights)

  def body(step: tf.Tensor, state: Any) -> Any:
    batch = batches.of_the_only_client(step)
    return step + 1, train_step(training, weights, state, batch)

  shapes = tf.nest.map_structure(lambda tensor: tensor.shape, initial)
  state = _loop(batches.num_steps, body, initial, shapes)
  update = tf.nest.map_structure(tf.subtract, weights.trainable, state.trainable)
  return Trained(update, state.metrics)


def initial_state(training: LocalTraining, weights: Weights) -> State:
  """The state before the first step."""
  specs = tf.nest.map_structure(tf.TensorSpec.from_tensor, weights.trainable)
  state = State(
    weights.trainable,
    training.optimizer_with(weights.learning_rate).initialize(specs),
    training.model.initialize_metrics_state(),
  )
  return tf.nest.map_structure(tf.convert_to_tensor, state)


def _loop(
  num_steps: tf.Tensor, body: Callable[..., Any], state: Any, shapes: Any
) -> Any:
  """Runs the steps, after each of which the state has the same shapes."""
  _, state = tf.while_loop(
    lambda step, unused_state: step < num_steps,
    body,
    (tf.constant(0, tf.int64), state),
    shape_invariants=(tf.TensorShape([]), shapes),
    parallel_iterations=1,
  )
  return state
