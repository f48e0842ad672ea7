"""The bound on b-min-sep sampling by thinned sets of rounds."""

import collections
import fractions
import itertools
import math

import numpy as np
import pytest
from dp_accounting import NeighboringRelation as Relation

from tff_dp_aggregators import sampling
from tff_dp_aggregators import strategies
from tff_dp_aggregators.accounting import accountants
from tff_dp_aggregators.accounting import events
from tff_dp_aggregators.accounting import run_events
from tff_dp_aggregators.sampling import allocation

BOTH = Relation.ADD_OR_REMOVE_ONE


def gaps(probability, min_separation, num_places, count):
  """Probabilities of the gaps of U in the proof of `allocation`, from b on."""
  h = np.ones(count)
  for k in range(1, count):
    h[k] = (1 - probability) * h[k - 1]
    if k >= min_separation:
      h[k] -= probability * (num_places - 1) * h[k - min_separation]
  return probability * num_places * h


@pytest.mark.parametrize('b', [1, 2, 5, 300])
@pytest.mark.parametrize('p', [1e-4, 0.02, 0.3, 0.95])
def test_gaps_are_probabilities_that_sum_to_one(p, b):
  m = allocation.places(p, b)
  actual = gaps(p, b, m, 40 * b)
  assert np.all(actual >= -1e-18)
  # The sum is checked where half a million terms suffice.
  if 40 * b / p < 2**19:
    actual = gaps(p, b, m, int(40 * b / p))
    assert np.all(actual >= -1e-18)
    assert actual.sum() == pytest.approx(1.0, abs=1e-9)
  if b > 1 and m > 20:  # The condition on m is nearly necessary.
    assert gaps(p, b, math.ceil(1.3 * m) + 1, 40 * b).min() < 0


def test_places_is_accurate_for_huge_min_separation():
  # kappa is about 1 / (e b): differences of large logarithms would be inaccurate.
  for b in (10**6, 10**9, 10**12):
    p = 1e-3 / b
    kappa = math.exp(-1) * (1 + 1 / (2 * b)) / b
    expected = 1 + kappa * math.exp(-1e-3) / p
    assert abs(allocation.places(p, b) - expected) <= 1


def _sets(n, b, p, first, gap):
  """Probabilities of sets of rounds, from laws of the first round and of the gaps."""
  probabilities = collections.Counter()

  def extend(rounds, free_from, probability, law):
    rest = 1.0
    for wait, q in enumerate(law):
      if free_from + wait < n:
        extend((*rounds, free_from + wait), free_from + wait + b, probability * q, gap)
        rest -= q
    probabilities[rounds] += probability * rest

  extend((), 0, 1.0, first)
  return probabilities


@pytest.mark.parametrize(
  ('n', 'b', 'p'),
  [(5, 1, 0.2), (7, 2, 0.04), (7, 3, 0.02), (8, 4, 0.3)],
)
def test_thinned_sets_match_b_min_sep_distribution(n, b, p):
  m = allocation.places(p, b)
  first_free = np.array([1.0, *(p for _ in range(b - 1))]) / (1 + (b - 1) * p)

  def waits(law):
    return np.convolve(first_free, law)[:n]

  geometric = p * (1 - p) ** np.arange(n)
  expected = _sets(n, b, p, waits(geometric), geometric)
  gaps_of_u = gaps(p, b, m, n)
  thinned = collections.Counter()
  for rounds, probability in _sets(n, b, p, waits(gaps_of_u), gaps_of_u).items():
    for kept in itertools.product([False, True], repeat=len(rounds)):
      subset = tuple(itertools.compress(rounds, kept))
      share = (1 / m) ** len(subset) * (1 - 1 / m) ** (len(rounds) - len(subset))
      thinned[subset] += probability * share
  assert sum(expected.values()) == pytest.approx(1.0, rel=1e-12)
  for rounds in {*expected, *thinned}:
    assert thinned[rounds] == pytest.approx(expected[rounds], rel=1e-10, abs=1e-14)


def test_probability_one_gives_unsampled_event():
  strategy = strategies.BandedToeplitz.square_root(40, num_bands=4)
  always = run_events.event(strategy, sampling.BMinSepSampling(40, 1.0, 4), 2.0)
  limits = strategies.Participation(40, 4)
  assert always.bound == events.run_event(strategy, limits, 2.0)


@pytest.mark.parametrize('b', [1, 2, 30])
def test_places_matches_exact_fraction_rounded_down(b):
  # Computed in fractions: the largest m with m - 1 <= kappa (1 - p)^b / p.
  kappa = fractions.Fraction((b - 1) ** (b - 1), b**b)
  rng = np.random.default_rng(b)
  for m in (*range(2, 40), 1000, 10**6):
    # Probabilities around the one at which m is just allowed, and a random one.
    limit = _limit_probability(kappa, b, m)
    for p in (limit, math.nextafter(limit, 1), math.nextafter(limit, 0), rng.random()):
      exact = fractions.Fraction(p)
      allowed = math.floor(1 + kappa * (1 - exact) ** b / exact)
      actual = allocation.places(p, b)
      assert allowed - 1 <= actual <= allowed + (b == 1 and p == 1 / (allowed + 1))


def _limit_probability(kappa, b, m):
  low, high = 1e-12, 1.0
  for _ in range(80):
    p = (low + high) / 2
    if float(kappa) * (1 - p) ** b >= (m - 1) * p:
      low = p
    else:
      high = p
  return low


@pytest.mark.parametrize('b', [1, 8])
@pytest.mark.parametrize('p', [5e-324, 1e-17])
def test_tiny_probabilities_get_small_epsilon(p, b):
  # Accountants cannot distinguish more than 10^12 places from infinitely many.
  assert 10**12 - 1 <= allocation.places(p, b) <= 10**12
  strategy = strategies.BandedToeplitz.square_root(20, num_bands=min(b, 8))
  event = run_events.event(strategy, sampling.BMinSepSampling(20, p, b), 1.0)
  assert accountants.epsilon(event.bound, 1e-6, 'pld', BOTH) < 1e-2
