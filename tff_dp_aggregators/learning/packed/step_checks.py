"""A step of local training as a graph, looked at before one is run.

What fails in it fails at once and by name. Random numbers in it show. Clients can be
trained side by side if padded examples weigh nothing, which is tried on some data.
"""

import functools
import itertools
import re
from typing import Any, Callable, Optional

import numpy as np
import tensorflow as tf

from tff_dp_aggregators.learning import failures
from tff_dp_aggregators.learning.packed import data as data_lib
from tff_dp_aggregators.learning.packed import training as training_lib

# Operations of TensorFlow whose numbers differ from one execution to the next.
_RANDOM = re.compile(
  r'Random(?!Dataset)|Multinomial|TruncatedNormal|NonDeterministic|CandidateSampler|'
  r'SampleDistorted|^Rng|^Stateful(?!Partitioned)'
)
_STATELESS = re.compile(r'^Stateless')
_LOOPS = ('While', 'StatelessWhile', 'LoopCond')  # The last one in graphs as of old.
_ERROR = re.compile(r'^\s*\w*(?:Error|Exception): (.*)', re.DOTALL | re.MULTILINE)
# Fewer at once gain nothing over one after the other.
_FEWEST = 4
# Clients whose examples it is tried on.
_TRIED = 8
# Relative, and to the largest entry; float32 in another order of summation.
_TOLERANCE = 1e-3
# Clients of a pack, and how many are trained at once: what a pack takes does not grow
# with the cohort. More of them take no less time a client. Cohorts of up to 3,000, as
# those of most published runs, are not cut for it: they make two packs anyway.
LARGEST = 1536
# What the tensors of clients that are trained side by side may take, roughly.
_BYTES_IN_FLIGHT = 64 * 2**20
# Copies of a model that local training, clipping and encoding hold at a time.
_COPIES = 8


def random_operations(training: training_lib.LocalTraining) -> list[str]:
  """Names of operations in a step of local training that draw random numbers anew."""
  return sorted(
    {
      name
      for name, operation in _operations(training)
      if _RANDOM.search(operation) and not _STATELESS.search(operation)
    }
  )


@functools.lru_cache(maxsize=1)  # A run asks three times, which takes some seconds.
def _operations(training: training_lib.LocalTraining) -> list[tuple[str, str]]:
  """Names and operations of a step's graph, those of its functions among them."""
  with tf.Graph().as_default() as graph:
    _make_step(training)
  definition = graph.as_graph_def()
  functions = (each.node_def for each in definition.library.function)
  nodes = itertools.chain(definition.node, *functions)
  return [(node.name, node.op) for node in nodes]


def refuse_random_models(training: training_lib.LocalTraining) -> None:
  """Refuses models whose rounds could not be run again to the same result."""
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


def _make_step(training: training_lib.LocalTraining) -> None:
  batch = tf.nest.map_structure(
    lambda spec: tf.compat.v1.placeholder(spec.dtype, spec.shape),
    training.model.input_spec,
  )
  weights = _weights(training, tf.constant)
  initial = training_lib.initial_state(training, weights)
  try:
    training_lib.train_step(training, weights, initial, batch)
  except Exception as e:  # Whatever a user's model raises.
    found = _ERROR.findall(str(e))
    text = found[-1].strip() if found else str(e)
    given = ', '.join(
      f'{each.dtype.name}{each.shape.as_list()}' for each in tf.nest.flatten(batch)
    )
    why = (
      'model, loss and local.optimizer do not go together, or not with batches of '
      f'{given}: {type(e).__name__}: {text}'
    )
    if isinstance(e, AttributeError) and 'assign' in text:
      why = (
        'a layer of the model changes weights of its own while it trains, such as the '
        'averages of batch normalisation. That is not part of the update that is '
        'clipped and noised. Use a layer without it, such as GroupNormalization. '
        f'({text})'
      )
    raise ValueError(why) from e


def _weights(
  training: training_lib.LocalTraining, make: Callable[[Any], Any]
) -> training_lib.Weights:
  """What is made of a model's initial weights, flat."""
  trainable, rest = (
    tuple(make(each) for each in tf.nest.flatten(part))
    for part in training.model.initial_weights
  )
  return training_lib.Weights(trainable, rest)


def at_once(training: training_lib.LocalTraining) -> int:
  """How many clients may be trained side by side, for the memory that it takes."""
  trainable, _ = training.model.initial_weights
  num_bytes = sum(each.nbytes for each in tf.nest.flatten(trainable))
  fitting = _BYTES_IN_FLIGHT // (_COPIES * max(1, num_bytes))
  return max(1, min(fitting, LARGEST))


def is_padded(training: training_lib.LocalTraining, data: data_lib.PackedData) -> bool:
  """Whether some client has a batch that is short."""
  rest = data.all_sizes * training.local_epochs % training.batch_size
  return bool(rest.any())


def why_one_by_one(
  training: training_lib.LocalTraining, data: data_lib.PackedData
) -> Optional[str]:
  """Why clients have to be trained one after the other; `None` if nothing is known."""
  if at_once(training) < _FEWEST:
    return 'the model is large'
  random = random_operations(training)
  if random:
    return f'the model draws random numbers: {", ".join(random)}'
  if any(operation in _LOOPS for _, operation in _operations(training)):
    # Measured on LSTMs of 64 units: twice the time to begin with, and rounds as long.
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
  padded, exact = steps
  for one, other in zip(padded, exact):
    largest = np.max(np.abs(other), initial=0.0)
    if not np.allclose(one, other, rtol=_TOLERANCE, atol=_TOLERANCE * largest):
      return (
        'batches have to be padded, and the loss or the metrics ignore sample_weight, '
        'or examples of a batch see each other'
      )
  return None


def _near(weight: Any, rng: np.random.Generator) -> np.ndarray:
  """Weights that are a little off."""
  array = np.asarray(weight)
  if array.dtype.kind != 'f':
    return array
  scale = 0.1 * float(np.sqrt(np.mean(np.square(array)))) if array.size else 0.0
  return (array + (scale or 0.1) * rng.normal(size=array.shape)).astype(array.dtype)


def _steps(
  training: training_lib.LocalTraining,
  data: data_lib.PackedData,
  of_one: Optional[int] = None,
) -> Optional[tuple[list[np.ndarray], list[np.ndarray]]]:
  """What a step on half a batch comes to, padded and as it is.

  `None` if there is none with padding, because the loss takes no weights.

  `of_one`: Whose examples; `None` for some of several clients, with unlike labels.
  """
  size = training.batch_size
  chosen = {int(np.argmax(data.all_sizes))}
  chosen.update(np.linspace(0, len(data) - 1, _TRIED).astype(int).tolist())
  chosen = chosen if of_one is None else {of_one}
  by_client = [data.examples(each) for each in sorted(chosen)]
  some = [
    np.concatenate([each[: size // len(chosen) + 1] for each in feature])[:size]
    for feature in zip(*by_client)
  ]
  count = max(1, min(len(some[0]) - 1, (size + 1) // 2))
  with tf.Graph().as_default():

    def batch(indices: np.ndarray) -> Any:
      flat = [tf.constant(feature[indices]) for feature in some]
      return tf.nest.pack_sequence_as(training.model.input_spec, flat)

    # What stands in the padding are other examples, if there are any.
    positions = np.arange(size)
    padded, exact = batch(positions % len(some[0])), batch(positions[:count])
    counts = tf.constant(positions < count)
    # Not those to begin with, which may be zeros, where less may show than later.
    rng = np.random.default_rng(1)
    weights = _weights(training, lambda each: tf.constant(_near(each, rng)))
    initial = training_lib.initial_state(training, weights)
    after = training_lib.train_step(training, weights, initial, exact)
    try:
      of_padded = training_lib.train_step(training, weights, initial, padded, counts)
    except Exception:  # Whatever a loss raises that takes no weights of this shape.
      return None
    steps = (of_padded, after)
    fetched = [tf.nest.flatten(each) for each in steps]
    with tf.compat.v1.Session() as session:
      try:
        return session.run(fetched)
      except tf.errors.OpError as e:
        why = failures.sentence(
          e.message.removeprefix('Graph execution error:').strip()
        )
        if of_one is None:
          for each in sorted(chosen):  # Says whose they are.
            _steps(training, data, each)
        raise ValueError(
          f'a step of local training fails on examples of client number {of_one}: {why}'
        ) from e
