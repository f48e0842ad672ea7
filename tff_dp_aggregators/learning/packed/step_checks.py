"""Checks a step of local training, by its graph and on some examples, before a run.

Unseeded random numbers are found. Clients can be trained side by side if padding has no
effect on some test data.
"""

import functools
import itertools
import re
from typing import Any, Callable, Optional

import numpy as np
import tensorflow as tf

from tff_dp_aggregators.learning import failures
from tff_dp_aggregators.learning import functions
from tff_dp_aggregators.learning.packed import data as data_lib
from tff_dp_aggregators.learning.packed import training as training_lib

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


def random_operations(training: training_lib.LocalTraining) -> list[str]:
  """Names of the operations of a training step that draw unseeded random numbers."""
  return sorted(
    {
      name
      for name, operation in _operations(training)
      if _RANDOM.search(operation) and not _STATELESS.search(operation)
    }
  )


@functools.lru_cache(maxsize=1)  # Slow; a run calls it three times.
def _operations(training: training_lib.LocalTraining) -> list[tuple[str, str]]:
  """Names and operations of a step's graph, including the graph's functions."""

  def step(batch: Any) -> None:
    weights = _weights(training, tf.constant)
    initial = training_lib.initial_state(training, weights)
    training_lib.train_step(training, weights, initial, batch)

  definition, *_ = functions.graph_of(step, training.model.input_spec)
  called = (each.node_def for each in definition.library.function)
  nodes = itertools.chain(definition.node, *called)
  return [(node.name, node.op) for node in nodes]


def refuse_random_models(training: training_lib.LocalTraining) -> None:
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


def _weights(
  training: training_lib.LocalTraining, make: Callable[[Any], Any]
) -> training_lib.Weights:
  """Applies `make` to a model's initial weights, flattened."""
  trainable, rest = (
    tuple(make(each) for each in tf.nest.flatten(part))
    for part in training.model.initial_weights
  )
  return training_lib.Weights(trainable, rest)


def at_once(training: training_lib.LocalTraining) -> int:
  """How many clients may be trained side by side within the memory limit."""
  trainable, _ = training.model.initial_weights
  num_bytes = sum(each.nbytes for each in tf.nest.flatten(trainable))
  num_clients = _BYTES_IN_FLIGHT // (_COPIES * max(1, num_bytes))
  return max(1, min(num_clients, LARGEST))


def is_padded(training: training_lib.LocalTraining, data: data_lib.PackedData) -> bool:
  """Whether some client's last batch is shorter than the others."""
  rest = data.all_sizes * training.local_epochs % training.batch_size
  return bool(rest.any())


def why_one_by_one(
  training: training_lib.LocalTraining, data: data_lib.PackedData
) -> Optional[str]:
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
  steps = _steps(training, data)
  if steps is None:
    return (
      'batches have to be padded, and the loss takes no weight for each example; for a '
      'model that puts out [n, 1] it does if labels are of that shape as well'
    )
  padded, unpadded = steps
  for one, exact in zip(padded, unpadded):
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
  training: training_lib.LocalTraining, data: data_lib.PackedData
) -> Optional[tuple[list[np.ndarray], list[np.ndarray]]]:
  """Returns the results of a step on half a batch, with padding and without.

  Returns `None` if the loss takes no weights, which padding needs.
  """
  size = training.batch_size
  clients = {int(np.argmax(data.all_sizes))}
  clients.update(np.linspace(0, len(data) - 1, _NUM_TESTED).astype(int).tolist())
  by_client = [data.examples(each) for each in sorted(clients)]
  features = [
    np.concatenate([each[: size // len(clients) + 1] for each in feature])[:size]
    for feature in zip(*by_client)
  ]
  count = max(1, min(len(features[0]) - 1, (size + 1) // 2))
  with tf.Graph().as_default():

    def batch(indices: np.ndarray) -> Any:
      flat = [tf.constant(feature[indices]) for feature in features]
      return tf.nest.pack_sequence_as(training.model.input_spec, flat)

    # Padding consists of other examples, if there are any.
    positions = np.arange(size)
    padded, unpadded = batch(positions % len(features[0])), batch(positions[:count])
    counts = tf.constant(positions < count)
    # Perturbed weights, because initial weights may be zeros, which hide differences.
    rng = np.random.default_rng(1)
    weights = _weights(training, lambda each: tf.constant(_perturbed(each, rng)))
    initial = training_lib.initial_state(training, weights)
    unpadded_step = training_lib.train_step(training, weights, initial, unpadded)
    try:
      padded_step = training_lib.train_step(training, weights, initial, padded, counts)
    except Exception:  # A loss that takes no such weights may raise any exception.
      return None
    fetched = [tf.nest.flatten(each) for each in (padded_step, unpadded_step)]
    with tf.compat.v1.Session() as session:
      try:
        return session.run(fetched)
      except tf.errors.OpError as e:
        raise failures.of_tensorflow(e) from e
