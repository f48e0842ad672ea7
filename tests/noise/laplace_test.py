"""Tests of the distribution of Laplace rows; `rows_test` tests how rows are drawn."""

import math

import numpy as np
import scipy.stats
import tensorflow as tf

from tff_dp_aggregators import noise
from tff_dp_aggregators.noise import rows

_NUM_SAMPLES = 400_000


def test_laplace_of_bits_matches_the_logarithm_formula():
  rng = np.random.default_rng(5)
  bits = rng.integers(2**64, size=(2, 1000), dtype=np.uint64)
  magnitude = -np.log(bits[0] / 2.0**64)
  expected = np.where(bits[1] % 2, -magnitude, magnitude)
  numbers = rows.laplace_of_bits(tf.constant(bits))
  assert numbers.dtype == tf.float64
  # Words of 32 bits, the lower one first.
  words = tf.constant(np.ravel(bits).view(np.uint32))
  drawn = rows.LaplaceRows(tf.TensorSpec([1]))._from_words(words, lambda: words)
  np.testing.assert_array_equal(drawn, numbers)
  np.testing.assert_allclose(numbers, expected, rtol=1e-12, atol=1e-15)


def test_laplace_of_bits_reaches_88_scales():
  every_bit = 2**64 - 1
  bits = [[0, 0, 0, 0, every_bit], [0, 1, 2**63, every_bit, every_bit]]
  numbers = rows.laplace_of_bits(tf.constant(bits, tf.uint64)).numpy()
  largest = 128 * math.log(2)
  assert largest == rows.LARGEST_LAPLACE
  middle = 65 * math.log(2)  # 64 bits are zero, the next one is set.
  smallest = 64 * math.log(2)
  expected = [largest, -largest, middle, -smallest, 0]
  np.testing.assert_allclose(numbers, expected, rtol=1e-6, atol=1e-15)


def test_entries_of_rows_are_laplace_of_scale_1():
  # Kolmogorov-Smirnov: false alarm 1e-8. Moments: seven standard deviations, 3e-12.
  drawn = rows.LaplaceRows(tf.TensorSpec([_NUM_SAMPLES]), noise.Seed(11))
  (vector,) = drawn.row(drawn.new_key(), 0)
  sample = vector.numpy()
  assert scipy.stats.kstest(sample, 'laplace').pvalue > 1e-8
  for power, mean, variance in [(1, 0, 2), (2, 2, 20), (3, 0, 720), (4, 24, 39_744)]:
    bound = 7 * np.sqrt(variance / _NUM_SAMPLES)
    assert abs(np.mean(sample**power) - mean) < bound, power
