"""The pair that bounds b-min-sep sampling, by thinned sets of rounds."""

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
  found = np.ones(count)
  for k in range(1, count):
    found[k] = (1 - probability) * found[k - 1]
    if k >= min_separation:
      found[k] -= probability * (num_places - 1) * found[k - min_separation]
  return probability * num_places * found


@pytest.mark.parametrize('b', [1, 2, 5, 300])
@pytest.mark.parametrize('p', [1e-4, 0.02, 0.3, 0.95])
def test_gaps_have_a_distribution(p, b):
  m = allocation.places(p, b)
  found = gaps(p, b, m, 40 * b)
  assert np.all(found >= -1e-18)
  # Half a million terms, where no more are needed.
  if 40 * b / p < 2**19:
    found = gaps(p, b, m, int(40 * b / p))
    assert np.all(found >= -1e-18)
    assert found.sum() == pytest.approx(1.0, abs=1e-9)
  if b > 1 and m > 20:  # The condition is about as weak as it can be.
    assert gaps(p, b, math.ceil(1.3 * m) + 1, 40 * b).min() < 0


def test_long_breaks_lose_no_digits():
  """kappa is about 1 / (e b): differences of large logarithms would be off by parts."""
  for b in (10**6, 10**9, 10**12):
    p = 1e-3 / b
    kappa = math.exp(-1) * (1 + 1 / (2 * b)) / b
    expected = 1 + kappa * math.exp(-1e-3) / p
    assert abs(allocation.places(p, b) - expected) <= 1


def _sets(n, b, p, first, gap):
  """Sets of rounds of who has its first one, and the next one each, by a law."""
  found = collections.Counter()

  def go(rounds, at, chance, law):
    beyond = 1.0
    for wait, q in enumerate(law):
      if at + wait < n:
        go((*rounds, at + wait), at + wait + b, chance * q, gap)
        beyond -= q
    found[rounds] += chance * beyond

  go((), 0, 1.0, first)
  return found


@pytest.mark.parametrize(
  ('n', 'b', 'p'),
  [(5, 1, 0.2), (7, 2, 0.04), (7, 3, 0.02), (8, 4, 0.3)],
)
def test_a_thinned_set_is_that_of_b_min_sep_sampling(n, b, p):
  m = allocation.places(p, b)
  free = np.array([1.0, *(p for _ in range(b - 1))]) / (1 + (b - 1) * p)

  def waits(law):
    return np.convolve(free, law)[:n]

  geometric = p * (1 - p) ** np.arange(n)
  expected = _sets(n, b, p, waits(geometric), geometric)
  larger = gaps(p, b, m, n)
  thinned = collections.Counter()
  for rounds, chance in _sets(n, b, p, waits(larger), larger).items():
    for kept in itertools.product([False, True], repeat=len(rounds)):
      some = tuple(itertools.compress(rounds, kept))
      share = (1 / m) ** len(some) * (1 - 1 / m) ** (len(rounds) - len(some))
      thinned[some] += chance * share
  assert sum(expected.values()) == pytest.approx(1.0, rel=1e-12)
  for rounds in {*expected, *thinned}:
    assert thinned[rounds] == pytest.approx(expected[rounds], rel=1e-10, abs=1e-14)


def test_all_who_are_free_are_not_sampled():
  strategy = strategies.BandedToeplitz.square_root(40, num_bands=4)
  always = run_events.event(strategy, sampling.BMinSepSampling(40, 1.0, 4), 2.0)
  limits = strategies.Participation(40, 4)
  assert always.bound == events.run_event(strategy, limits, 2.0)


@pytest.mark.parametrize('b', [1, 2, 30])
def test_places_are_not_rounded_up(b):
  """In fractions: m - 1 is at most kappa (1 - p)^b / p, and that is more than m - 1."""
  kappa = fractions.Fraction((b - 1) ** (b - 1), b**b)
  rng = np.random.default_rng(b)
  for m in (*range(2, 40), 1000, 10**6):
    # Probabilities at which m is just allowed, and others.
    edge = _edge(kappa, b, m)
    for p in (edge, math.nextafter(edge, 1), math.nextafter(edge, 0), rng.random()):
      exact = fractions.Fraction(p)
      allowed = math.floor(1 + kappa * (1 - exact) ** b / exact)
      found = allocation.places(p, b)
      assert allowed - 1 <= found <= allowed + (b == 1 and p == 1 / (allowed + 1))


def _edge(kappa, b, m):
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
def test_the_least_probabilities_are_answered(p, b):
  """By a bound of as many places as accountants can tell from infinitely many."""
  assert 10**12 - 1 <= allocation.places(p, b) <= 10**12
  strategy = strategies.BandedToeplitz.square_root(20, num_bands=min(b, 8))
  made = run_events.event(strategy, sampling.BMinSepSampling(20, p, b), 1.0)
  assert accountants.epsilon(made.bound, 1e-6, 'pld', BOTH) < 1e-2
