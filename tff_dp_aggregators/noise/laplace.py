"""Rows of iid Laplace noise, for mechanisms of pure epsilon.

The magnitude of a Laplace number is minus the logarithm of a uniform one. With the 64
bits that a Gaussian is made of here it would end at 44 scales, beyond which a Laplace
number is with probability 2^-64: for 10^6 coordinates and 1000 rounds, a delta of
5e-11 in what claims to have none. So 128 bits are spent on each. They reach 128 ln 2 =
88.7 scales, beyond which lie 2^-128 = 3e-39; d coordinates in n rounds differ from
Laplace numbers without an end by no more than d n 2^-128 in total variation, 3e-30
for 10^6 and 1000. That is the delta (times 1 + e^epsilon) which truncation costs.

What floating point costs is another matter: see `rows`.
"""

import math
from typing import Callable

import tensorflow as tf

from tff_dp_aggregators.noise import rows

LARGEST = 128 * math.log(2)  # The largest magnitude.


def from_words(words: tf.Tensor) -> tf.Tensor:
  """Turns uniform words into Laplace numbers of scale 1: density exp(-|x|) / 2.

  Args:
    words: uint32 of shape [4 n].

  Returns:
    A float64 tensor of shape [n], of magnitudes up to `LARGEST`.
  """
  return from_bits(tf.bitcast(tf.reshape(words, [2, -1, 2]), tf.uint64))


def from_bits(bits: tf.Tensor) -> tf.Tensor:
  """Turns uniform bits into Laplace numbers.

  Args:
    bits: uint64 of shape [2, n].

  Returns:
    A float64 tensor of shape [n], of magnitudes up to `LARGEST`.
  """
  one = tf.constant(1, tf.uint64)
  negative = tf.cast(tf.bitwise.bitwise_and(bits[1], one), tf.bool)
  # Centres of 2^127 equal cells of (0, 1), rounded. The last 63 bits matter where the
  # first 64 are few or none.
  last = (tf.cast(tf.bitwise.right_shift(bits[1], one), tf.float64) + 0.5) * 2.0**-63
  uniform = (tf.cast(bits[0], tf.float64) + last) * 2.0**-64
  magnitude = -tf.math.log(uniform)
  return tf.where(negative, -magnitude, magnitude)


class LaplaceRows(rows.GaussianRows):
  """Rows of independent Laplace numbers of scale 1; keys as for `GaussianRows`.

  Example:
    >>> rows = LaplaceRows([tf.TensorSpec([3]), tf.TensorSpec([])], seed=1)
    >>> key = rows.new_key()
    >>> first, again = rows.row(key, 7), rows.row(key, 7)
    >>> first[0].shape, bool(tf.reduce_all(first[0] == again[0]))
    (TensorShape([4]), True)
  """

  _numbers = 1
  _words = 4

  def _from_words(self, words: tf.Tensor, more: Callable[[], tf.Tensor]) -> tf.Tensor:
    del more
    return from_words(words)
