"""Random rotations that spread a vector's length over its entries.

Random signs and a Walsh-Hadamard transform: whatever the vector, each entry of the
result is a sum of all of them with random signs, over sqrt(d), and so rarely much
longer than the length over sqrt(d). It hides nothing: everybody knows the signs. In
float64, and by matrices of at most 64 rows, a Kronecker product of which the transform
is.
"""

import numpy as np
import scipy.linalg
import tensorflow as tf

from tff_dp_aggregators.noise import generators

_LARGEST = 64


def signs(key: tf.Tensor, index: tf.Tensor, dimension: int) -> tf.Tensor:
  """Random signs, -1.0 or 1.0, float64 of shape [dimension].

  `key`: int64 of shape [4].
  """
  philox = generators.Philox()
  num_words = -(-dimension // 32)
  num_blocks = -(-num_words // philox.block_words)
  zero = tf.constant(0, tf.int64)
  words = philox.words(key, index, zero, zero, num_blocks)
  places = tf.constant(list(range(32)), tf.uint32)
  bits = tf.bitwise.bitwise_and(
    tf.bitwise.right_shift(words[:, tf.newaxis], places), tf.constant(1, tf.uint32)
  )
  return 1.0 - 2.0 * tf.cast(tf.reshape(bits, [-1])[:dimension], tf.float64)


def hadamard(vector: tf.Tensor) -> tf.Tensor:
  """The normalised Walsh-Hadamard transform, its own inverse.

  `vector`: float64 of shape [d], d a power of two.

  Returns float64 of shape [d], of the same length.

  Example:
    >>> hadamard(tf.constant([2.0, 0.0, 0.0, 0.0], tf.float64)).numpy()
    array([1., 1., 1., 1.])
  """
  [dimension] = vector.shape
  left = dimension
  while left > 1:
    size = min(left, _LARGEST)
    left //= size
    matrix = tf.constant(scipy.linalg.hadamard(size) / np.sqrt(size), tf.float64)
    # The first digits of the index are transformed and become the last.
    vector = tf.reshape(vector, [size, dimension // size])
    vector = tf.reshape(tf.transpose(tf.matmul(matrix, vector)), [dimension])
  return vector
