"""Whether clients can be trained side by side, with the same result.

Padded examples are to weigh nothing. They do if the loss takes weights and no example
sees the others of its batch; what a user's model does is tried, on two clients' data.
"""

from typing import Any, Optional

import numpy as np
import tensorflow as tf

from tff_dp_aggregators.learning import failures
from tff_dp_aggregators.learning.packed import data as data_lib
from tff_dp_aggregators.learning.packed import pack
from tff_dp_aggregators.learning.packed import training as training_lib
from tff_dp_aggregators.learning.packed import trial

# Fewer at once gain nothing over one after the other.
_FEWEST = 4
# Clients whose examples it is tried on.
_TRIED = 8
# Relative, and to the largest entry; float32 in another order of summation.
_TOLERANCE = 1e-3


def why_one_by_one(
  training: training_lib.LocalTraining, data: data_lib.PackedData
) -> Optional[str]:
  """Why clients have to be trained one after the other; `None` if nothing is known.

  That TensorFlow cannot vectorise a model shows when the computation is made.
  """
  if pack.at_once(training) < _FEWEST:
    return 'the model is large'
  random = trial.random_operations(training)
  if random:
    return f'the model draws random numbers: {", ".join(random)}'
  if trial.loops(training):
    # Measured on LSTMs of 64 units: twice the time to begin with, and rounds as long.
    return 'the model has loops, which gain nothing side by side'
  if not pack.is_padded(training, data):
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
    weights = training_lib.Weights(
      *(
        tuple(tf.constant(_near(each, rng)) for each in tf.nest.flatten(kind))
        for kind in training.model.initial_weights
      )
    )
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
