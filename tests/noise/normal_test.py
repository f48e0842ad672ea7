"""Tests of standard Gaussians: exact far into the tails, and independent."""

import math

import numpy as np
import pytest
import scipy.stats
import tensorflow as tf

from tff_dp_aggregators import noise
from tff_dp_aggregators.noise import generators
from tff_dp_aggregators.noise import rows

pytestmark = pytest.mark.optimized_graphs


def _draw(num_elements, seed=1, generator='philox'):
  """Returns Gaussians as rows, the only caller, give them."""
  spec = tf.TensorSpec([num_elements])
  drawn = rows.GaussianRows(spec, noise.Seed(seed), generator)
  row = drawn.row(drawn.new_key(), 0)
  assert all(vector.dtype == tf.float64 for vector in row)
  return np.concatenate([np.zeros(0), *row])


def _words(rng, size, end=2**64):
  return rng.integers(end, size=size, dtype=np.uint64)


def _lower_words(rng, size):
  return rng.integers(2**32, size=size, dtype=np.uint32)


def _box_muller(radii, lower, angles):
  """Returns pairs as complex numbers; angles have 64 bits."""
  numbers = rows.box_muller(
    tf.constant(radii, tf.uint64),
    tf.constant(lower, tf.uint32),
    tf.constant(angles, tf.uint64),
  )
  assert numbers.dtype == tf.float64
  x, y = numbers.numpy().reshape(2, -1).astype(np.longdouble)
  return x + 1j * y


@pytest.mark.parametrize('generator', ['chacha20', 'philox'])
def test_numbers_are_standard_normal(generator):
  # Kolmogorov-Smirnov: false alarm 1e-8. Moments: seven standard deviations, 3e-12.
  sample = _draw(1_000_000, generator=generator)
  assert scipy.stats.kstest(sample, 'norm').pvalue > 1e-8
  for power, mean, variance in [(1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96)]:
    bound = 7 * np.sqrt(variance / len(sample))
    assert abs(np.mean(sample**power) - mean) < bound, power


def test_pairs_and_neighbours_are_independent():
  # Each product has mean 0. Its variance is the product of those of its factors, 1, 2
  # or 15. The bound is seven standard deviations, with a false alarm of 3e-12 each.
  sample = _draw(1_000_000)
  x, y = sample.reshape(2, -1)
  for first, second in ((x, y), (sample[1:], sample[:-1])):
    for left, left_variance in ((first, 1), (first**2 - 1, 2), (first**3, 15)):
      for right, right_variance in ((second, 1), (second**2 - 1, 2), (second**3, 15)):
        bound = 7 * np.sqrt(left_variance * right_variance / len(first))
        assert abs(np.mean(left * right)) < bound


@pytest.mark.parametrize('sigmas', [4, 5, 6, 7, 8, 8.5])
def test_tail_probabilities_are_accurate_to_one_percent(sigmas):
  # Only radii beyond `sigmas`, those below `end`, can give numbers beyond. At least
  # 8.7 % of their 2 x 10^6 numbers are, so that the relative standard deviation is
  # 0.23 %. One of the six is off by four of these or more with probability 4e-4.
  rng = np.random.default_rng(int(2 * sigmas))
  num_pairs = 1_000_000
  end = math.ceil(2**64 * math.exp(-(sigmas**2) / 2))
  radii, angles = _words(rng, num_pairs, end), _words(rng, num_pairs)
  pairs = _box_muller(radii, _lower_words(rng, num_pairs), angles)
  beyond = np.concatenate([np.abs(pairs.real), np.abs(pairs.imag)]) > sigmas
  probability = np.mean(beyond) * (end / 2**64)
  expected = 2 * scipy.stats.norm.sf(sigmas)
  np.testing.assert_allclose(probability, expected, rtol=0.01)


def test_gaussians_reach_11_5_standard_deviations():
  # TensorFlow's own Gaussians end at sqrt(-2 ln 1e-7) = 5.68, where the tail is still
  # far more than a delta of 1e-10.
  largest = np.sqrt(2 * np.log(2) * 97)
  assert 11.59 < largest < 11.6
  pairs = _box_muller([0, 0], [0, 0], [0, 2**63])
  np.testing.assert_allclose(pairs, [largest, -largest], atol=1e-14)


def _ideal(radii, lower, angles):
  """Returns Gaussians by the formula of Box and Muller in extended precision."""
  low = (lower.astype(np.longdouble) + 0.5) * 2.0**-32
  below = (radii.astype(np.longdouble) + low) * 2.0**-64
  above = ((~radii).astype(np.longdouble) + (1 - low)) * 2.0**-64
  near_zero = radii < 2**63
  logarithm = np.where(
    near_zero,
    np.log(np.where(near_zero, below, 1)),
    np.log1p(-np.where(near_zero, 0, above)),
  )
  pi = np.longdouble(math.pi) + np.longdouble(1.2246467991473532e-16)
  angle = angles.view(np.int64) * (pi * 2.0**-63)
  return np.sqrt(-2 * logarithm) * (np.cos(angle) + 1j * np.sin(angle))


def test_box_muller_relative_error_is_at_most_2_to_the_minus_49():
  rng = np.random.default_rng(5)
  # u uniform, u of all magnitudes, 1 - u of all magnitudes.
  uniform = _words(rng, 300_000)
  small = uniform >> rng.integers(64, size=uniform.size, dtype=np.uint64)
  ends = np.array([0, 1, 2**63 - 1, 2**63, 2**64 - 1], np.uint64)
  radii = np.concatenate([uniform, small, ~small, ends])
  lower, angles = _lower_words(rng, radii.size), _words(rng, radii.size)
  lower[-ends.size :] = [0, 0, 2**32 - 1, 0, 2**32 - 1]
  angles[: 1000 * ends.size] = np.repeat(ends, 1000)
  ideal = _ideal(radii, lower, angles)
  length = np.abs(ideal)
  pairs = _box_muller(radii, lower, angles)
  assert np.all(np.abs(pairs - ideal) <= 2.0**-49 * length)
  assert length.min() < 1e-14 and length.max() > 11.5


@pytest.mark.parametrize('sigmas', [2.0**-20, 2.0**-16, 1.0, 6.5, 7.5, 8.5, 9.3])
def test_lengths_of_pairs_are_denser_than_the_grid_of_sums(sigmas):
  # Compares u that are neighbours at this length. The grid of sums has steps of at
  # least 2^-35 standard deviations; circles further apart could be told from a sum.
  rng = np.random.default_rng(8)
  u = int(-math.expm1(-(sigmas**2) / 2) * 2**96) if sigmas < 1 else 0
  u = 2**96 - u if sigmas < 1 else int(math.exp(-(sigmas**2) / 2) * 2**96)
  numbers = [u + int(step) for step in rng.integers(-1000, 1000, size=100)]
  numbers = sorted({each for number in numbers for each in (number, number + 1)})
  radii = np.array([number >> 32 for number in numbers], np.uint64)
  lower = np.array([number & (2**32 - 1) for number in numbers], np.uint32)
  lengths = _box_muller(radii, lower, np.zeros_like(radii)).real
  apart = -np.diff(lengths)[np.diff(numbers) == 1]
  assert len(apart) >= 50 and 0 <= apart.min() and apart.max() < 2.0**-35
  np.testing.assert_allclose(lengths, sigmas, rtol=1e-9)


@pytest.mark.parametrize('traced', [False, True])
@pytest.mark.parametrize('rare', [None, 2**44 - 1, 2**64 - 2**44 + 1])
def test_gaussians_of_words_match_the_box_muller_formula(rare, traced):
  rng = np.random.default_rng(3)
  words = rng.integers(2**32, size=20, dtype=np.uint32)
  additional = _lower_words(rng, 5)
  words_64 = words.view(np.uint64)
  if rare is not None:
    words_64[2] = rare
  calls = []

  def more_words():
    calls.append(1)
    return tf.constant(additional)

  def draw():
    return rows.gaussians_of_words(tf.constant(words), more_words)

  numbers = (tf.function(draw, autograph=False) if traced else draw)()
  assert traced or bool(calls) == (rare is not None)
  lower = additional if rare is not None else np.full(5, 2**31, np.uint32)
  pairs = _ideal(words_64[:5], lower, words_64[5:])
  expected = np.concatenate([pairs.real, pairs.imag])
  np.testing.assert_allclose(numbers, expected.astype(np.float64), rtol=1e-14)


def test_additional_words_are_of_blocks_used_nowhere_else():
  # The first pair of each chunk is made a rare one, which needs additional words.
  served = []

  class Counted(generators.Philox):
    def words(self, key, row, vector, first_block, num_blocks):
      served.append((int(row), int(vector), int(first_block), num_blocks))
      words = super().words(key, row, vector, first_block, num_blocks)
      return words * tf.constant([0, 0] + [1] * (words.shape[0] - 2), tf.uint32)

  drawn = rows.GaussianRows(tf.TensorSpec([200_000]), noise.Seed(1))
  drawn._generator = Counted()
  tf.config.run_functions_eagerly(True)
  try:
    drawn.row(drawn.new_key(), 0)
  finally:
    tf.config.run_functions_eagerly(False)
  blocks = [range(first, first + count) for _, _, first, count in served]
  assert len(blocks) == 8  # Four chunks, each with additional words.
  assert len(set().union(*blocks)) == sum(map(len, blocks))
