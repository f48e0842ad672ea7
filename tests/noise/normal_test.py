"""Standard Gaussians: exact far into the tails, independent, reproducible.

Claims:

* The numbers are standard normal, and x and y of a pair independent, in both dtypes.
* Tail probabilities from 4 to 8.5 standard deviations are those of a normal.
* A pair is the Box-Muller transform of its words, up to the rounding that is stated,
  also where u is next to 0 or to 1.
* The same words give the same bits, eager or traced.
* Every number of elements is served, in one chunk or many, of either generator.
"""

import math

import numpy as np
import pytest
import scipy.stats
import tensorflow as tf

from tff_dp_aggregators import noise
from tff_dp_aggregators.noise import normal
from tff_dp_aggregators.noise import rows

_DTYPES = [tf.float32, tf.float64]


def _draw(num_elements, dtype=tf.float32, seed=1, generator='philox'):
  """Numbers as they come out of the rows, the only caller."""
  spec = tf.TensorSpec([num_elements], dtype)
  drawn = rows.GaussianRows(spec, noise.Seed(seed), generator)
  return drawn.layout.unflatten(drawn.row(drawn.new_key(), 0)).numpy()


def _words(rng, size, end=2**64):
  return rng.integers(end, size=size, dtype=np.uint64)


def _box_muller(radii, angles, dtype):
  """Pairs as complex numbers; angles are of 64 bits."""
  words = tf.constant(radii, tf.uint64), tf.constant(angles, tf.uint64)
  numbers = normal.box_muller(*words, dtype)
  assert numbers.dtype == dtype
  x, y = numbers.numpy().reshape(2, -1).astype(np.longdouble)
  return x + 1j * y


@pytest.mark.parametrize('generator', ['chacha20', 'philox'])
@pytest.mark.parametrize('dtype', _DTYPES)
def test_numbers_are_standard_normal(dtype, generator):
  # Kolmogorov-Smirnov: false alarm 1e-8. Moments: seven standard deviations, 3e-12.
  sample = _draw(1_000_000, dtype, generator=generator).astype(np.float64)
  assert scipy.stats.kstest(sample, 'norm').pvalue > 1e-8
  for power, mean, variance in [(1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96)]:
    bound = 7 * np.sqrt(variance / len(sample))
    assert abs(np.mean(sample**power) - mean) < bound, power


@pytest.mark.parametrize('dtype', _DTYPES)
def test_pairs_and_neighbours_are_independent(dtype):
  # Each moment has mean 0 and a variance of at most 1, 4 or 15 times 1 or 4; seven
  # standard deviations, false alarm 3e-12 each.
  sample = _draw(1_000_000, dtype).astype(np.float64)
  x, y = sample.reshape(2, -1)
  for one, other in ((x, y), (sample[1:], sample[:-1])):
    for left, left_variance in ((one, 1), (one**2 - 1, 2), (one**3, 15)):
      for right, right_variance in ((other, 1), (other**2 - 1, 2), (other**3, 15)):
        bound = 7 * np.sqrt(left_variance * right_variance / len(one))
        assert abs(np.mean(left * right)) < bound


@pytest.mark.parametrize('dtype', _DTYPES)
def test_tails_of_10_million_numbers_are_those_of_a_normal(dtype):
  # Binomial counts in 10^7 draws: 633.4 beyond 4, 5.73 beyond 5. A Poisson count of
  # mean 633.4 is outside of 440..840 with probability below 1e-12; one of mean 5.73
  # is 0 with probability 3e-3 and the seed is fixed, above 30 with 1e-12.
  size = np.abs(_draw(10_000_000, dtype))
  assert 440 < np.count_nonzero(size > 4) < 840
  assert 0 < np.count_nonzero(size > 5) < 30


@pytest.mark.parametrize('sigmas', [4, 5, 6, 7, 8, 8.5])
def test_tail_probabilities_are_right_to_one_percent(sigmas):
  # Only radii beyond `sigmas`, the k < K, can give numbers beyond. At least 8.7 % of
  # theirs are: of 2 x 10^6 numbers, so many that the relative standard deviation is
  # 0.23 %. One of the six is off by four of them and more with probability 4e-4.
  rng = np.random.default_rng(int(2 * sigmas))
  num_pairs = 1_000_000
  end = math.ceil(2**64 * math.exp(-(sigmas**2) / 2))
  radii, angles = _words(rng, num_pairs, end), _words(rng, num_pairs)
  pairs = _box_muller(radii, angles, tf.float32)
  beyond = np.concatenate([np.abs(pairs.real), np.abs(pairs.imag)]) > sigmas
  probability = np.mean(beyond) * (end / 2**64)
  expected = 2 * scipy.stats.norm.sf(sigmas)
  np.testing.assert_allclose(probability, expected, rtol=0.01)


@pytest.mark.parametrize('dtype', _DTYPES)
def test_gaussians_reach_9_5_standard_deviations(dtype):
  # TensorFlow's own end at sqrt(-2 ln 1e-7) = 5.68, far within a delta of 1e-10.
  largest = np.sqrt(2 * np.log(2) * 65)
  assert 9.49 < largest < 9.5
  pairs = _box_muller([0, 0], [0, 2**63], dtype)
  np.testing.assert_allclose(pairs, [largest, -largest], atol=2e-6)


def _ideal(radii, angles):
  """Box and Muller's formula in extended precision."""
  below = (radii.astype(np.longdouble) + 0.5) * 2.0**-64
  above = ((~radii).astype(np.longdouble) + 0.5) * 2.0**-64
  near_zero = radii < 2**63
  logarithm = np.where(
    near_zero,
    np.log(np.where(near_zero, below, 1)),
    np.log1p(-np.where(near_zero, 0, above)),
  )
  pi = np.longdouble(math.pi) + np.longdouble(1.2246467991473532e-16)
  angle = angles.view(np.int64) * (pi * 2.0**-63)
  return np.sqrt(-2 * logarithm) * (np.cos(angle) + 1j * np.sin(angle))


@pytest.mark.parametrize('dtype', _DTYPES)
def test_rounding_moves_a_pair_by_no_more_than_is_stated(dtype):
  rng = np.random.default_rng(5)
  # u uniform, u of all magnitudes, 1 - u of all magnitudes.
  uniform = _words(rng, 300_000)
  small = uniform >> rng.integers(64, size=uniform.size, dtype=np.uint64)
  ends = np.array([0, 1, 2**63 - 1, 2**63, 2**64 - 1], np.uint64)
  radii = np.concatenate([uniform, small, ~small, ends])
  angles = _words(rng, radii.size)
  angles[: 1000 * ends.size] = np.repeat(ends, 1000)
  ideal = _ideal(radii, angles)
  moved = np.abs(_box_muller(radii, angles, dtype) - ideal)
  length = np.abs(ideal)
  eps = 2.0**-24 if dtype == tf.float32 else 2.0**-53
  near_origin = np.minimum(2.0**-53 / np.maximum(length, 1e-30), 1.1e-8)
  assert np.all(moved <= 16 * eps * length + near_origin)
  assert length.min() < 1e-8 and length.max() > 9.4


def test_numbers_follow_from_the_generators_words():
  words = np.random.default_rng(3).integers(2**32, size=20, dtype=np.uint32)
  long = words.view(np.uint64)
  both = normal.box_muller(tf.constant(long[:5]), tf.constant(long[5:]), tf.float64)
  numbers = normal.from_words(tf.constant(words), tf.float64)
  np.testing.assert_array_equal(numbers, both)
  both = normal.box_muller(tf.constant(long[:6]), tf.constant(words[12:18]), tf.float32)
  numbers = normal.from_words(tf.constant(words[:18]), tf.float32)
  np.testing.assert_array_equal(numbers, both)
  angles = words[12:18].astype(np.uint64) << np.uint64(32)
  pairs = _ideal(long[:6], angles)
  expected = np.concatenate([pairs.real, pairs.imag])
  np.testing.assert_allclose(both, expected.astype(np.float64), atol=1e-6)


@pytest.mark.parametrize('dtype', _DTYPES)
def test_the_same_words_give_the_same_bits(dtype):
  words = np.random.default_rng(4).integers(2**32, size=120_000, dtype=np.uint32)
  traced = tf.function(normal.from_words)
  first = normal.from_words(tf.constant(words), dtype).numpy()
  for _ in range(2):
    assert traced(tf.constant(words), dtype).numpy().tobytes() == first.tobytes()


@pytest.mark.parametrize('generator', ['chacha20', 'philox'])
@pytest.mark.parametrize('dtype', _DTYPES)
@pytest.mark.parametrize('num_elements', [0, 1, 2, 3, 7, 1001, 65536, 65537])
def test_any_number_of_elements(num_elements, dtype, generator):
  numbers = _draw(num_elements, dtype, generator=generator)
  assert numbers.shape == (num_elements,) and numbers.dtype == dtype
  if dtype == tf.float64 or num_elements < 10:
    assert len(np.unique(numbers)) == num_elements
  assert np.all(numbers != 0)
