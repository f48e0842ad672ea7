"""Tests of integer noise: its tables of probabilities and its distribution."""

import numpy as np
import pytest
import tensorflow as tf
from scipy import special
from scipy import stats

from tff_dp_aggregators.noise import integers

# One in a million runs.
_FALSE_ALARM_RATE = 1e-6


def _probabilities(kind, stddev, count):
  k = np.arange(count)
  if kind == 'skellam':
    return special.ive(k, stddev**2)
  weights = np.exp(-(k**2) / (2 * stddev**2))
  return weights / (2 * weights.sum() - 1)


@pytest.mark.parametrize('kind', integers.KINDS)
@pytest.mark.parametrize('stddev', [0.5, 1.7, 40.0])
def test_table_has_the_probabilities_of_the_noise(kind, stddev):
  high, low = integers.table(kind, stddev)
  above = [(int(h) << 63) + int(each) for h, each in zip(high, low)]
  assert above == sorted(above)
  above = np.array([each / 2.0**126 for each in above[::-1]])
  masses = _probabilities(kind, stddev, len(above) + 60)
  expected = 2 * np.cumsum(masses[::-1])[::-1][1 : len(above) + 1]
  np.testing.assert_allclose(above, expected, rtol=1e-8, atol=2.0**-125)


@pytest.mark.parametrize('kind', integers.KINDS)
def test_draws_have_the_distribution_of_the_noise(kind):
  stddev, count = 2.5, 400_000
  words = np.random.default_rng(5).integers(0, 2**32, 4 * count, np.uint32)
  drawn = integers.draw(kind, stddev, tf.constant(words)).numpy()
  masses = _probabilities(kind, stddev, 60)[:9]
  masses = np.concatenate([masses[:0:-1], masses])
  expected = np.append(masses, 1 - masses.sum()) * count
  counts = [int((drawn == k).sum()) for k in range(-8, 9)]
  counts.append(count - sum(counts))
  assert stats.chisquare(counts, expected).pvalue > _FALSE_ALARM_RATE


def test_draw_at_a_boundary_depends_on_lower_half_of_the_word():
  high, low = integers.table('skellam', 2.0)
  place = len(high) - 1  # The probability that the magnitude is above 0.
  for decrement, magnitude in ((1, 1), (0, 0)):
    number = (int(high[place]) << 63) + int(low[place]) - decrement
    halves = np.array([number >> 63, number & (2**63 - 1)], np.uint64)
    words = tf.constant(halves.view(np.uint32))
    assert integers.draw('skellam', 2.0, words).numpy().tolist() == [magnitude]
  # Zero is below every probability: the largest magnitude, with its sign.
  words = tf.constant([0, 2**31, 0, 0], tf.uint32)
  assert integers.draw('skellam', 2.0, words).numpy().tolist() == [-len(high)]


def test_table_refuses_invalid_kind_and_stddev():
  with pytest.raises(ValueError, match="kind must be one of .* got 'laplace'"):
    integers.table('laplace', 1.0)
  for stddev in (0.0, -1.0, float('nan'), 50_000.0):
    with pytest.raises(ValueError, match='stddev must be above 0'):
      integers.table('skellam', stddev)
