"""Records for tests: six numbers in four tensors, one of which is empty."""

import collections

import numpy as np
import tensorflow as tf

SPECS = collections.OrderedDict(
  kernel=tf.TensorSpec([2, 2]),
  others=(tf.TensorSpec([]), tf.TensorSpec([1], tf.float64), tf.TensorSpec([0])),
)


def record(values):
  """Returns a record of `SPECS` with these six numbers."""
  return collections.OrderedDict(
    kernel=tf.constant(np.reshape(values[:4], [2, 2]), tf.float32),
    others=(
      tf.constant(values[4], tf.float32),
      tf.constant(values[5:], tf.float64),
      tf.zeros([0]),
    ),
  )


def flat(structure):
  """Returns all numbers of a structure, as float64."""
  tensors = tf.nest.flatten(structure)
  return np.concatenate([np.ravel(tensor).astype(float) for tensor in tensors])


def one_round(query, state, records=(), template=None):
  """Returns the result, next state and event of a round with these records."""
  params = query.derive_sample_params(state)
  sample = query.initial_sample_state(template)
  for record in records:
    sample = query.accumulate_record(params, sample, record)
  return query.get_noised_result(sample, state)
