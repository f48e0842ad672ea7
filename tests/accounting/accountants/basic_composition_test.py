"""What is stated to be (epsilon, delta)-DP, beside what accountants read."""

import fractions
import math

import dp_accounting
import numpy as np
import pytest
from dp_accounting import NeighboringRelation as Relation
from scipy import stats

from tff_dp_aggregators.accounting import accountants
from tff_dp_aggregators.accounting import events

Stated = events.EpsilonDeltaDpEvent
GAUSSIAN = dp_accounting.GaussianDpEvent(1.0)


def together(*composed):
  return dp_accounting.ComposedDpEvent(composed)


def worst(mu, epsilon, stated):
  """Delta of a Gaussian and the worst releases of these epsilons and deltas."""
  losses, exempt = {0.0: 1.0}, 0.0
  for each, delta in stated:
    exempt = 1 - (1 - exempt) * (1 - delta)
    often = math.exp(each) / (1 + math.exp(each))
    after = {}
    for loss, weight in losses.items():
      for step, share in ((each, often), (-each, 1 - often)):
        after[loss + step] = after.get(loss + step, 0.0) + weight * share
    losses = after
  found = 0.0
  for loss, weight in losses.items():
    left = epsilon - loss
    gaussian = stats.norm.cdf(mu / 2 - left / mu) - math.exp(left) * stats.norm.cdf(
      -mu / 2 - left / mu
    )
    found += weight * gaussian
  return exempt + (1 - exempt) * found


@pytest.mark.parametrize(
  'mu, stated',
  [
    (0.2, [(3.0, 0.0)]),
    (2.0, [(0.1, 1e-8), (0.1, 0.0), (1.0, 2e-7)]),
  ],
)
def test_no_number_is_below_the_worst_release_of_what_is_stated(mu, stated):
  releases = [Stated(*each) for each in stated]
  event = together(dp_accounting.GaussianDpEvent(1 / mu), *releases)
  for delta in (1e-5, 1e-3, 0.1):
    epsilon = accountants.epsilon(event, delta)
    assert worst(mu, epsilon, stated) <= delta
    # And not above what any composition of theirs could be.
    assert epsilon <= accountants.epsilon(event, delta, 'pld') + 1e-6
  for epsilon in np.linspace(0, 12, 25):
    assert (
      worst(mu, float(epsilon), stated) <= accountants.delta(event, epsilon) + 1e-15
    )


@pytest.mark.parametrize('name', ['exact', 'pld', 'prv', 'rdp', 'zcdp', None])
def test_every_accountant_has_its_own_at_what_is_left(name):
  alone = accountants.epsilon(GAUSSIAN, 8e-7, name)
  event = together(GAUSSIAN, Stated(0.25, 1e-7), Stated(0.25, 1e-7))
  assert accountants.epsilon(event, 1e-6, name) == pytest.approx(alone + 0.5, rel=1e-9)
  assert accountants.tightest(event) == accountants.tightest(GAUSSIAN)


def test_sampled_and_mixed_events_are_composed_with_what_is_stated():
  relation = Relation.ADD_OR_REMOVE_ONE
  sampled = dp_accounting.PoissonSampledDpEvent(0.01, GAUSSIAN)
  many = dp_accounting.SelfComposedDpEvent(sampled, 100)
  event = dp_accounting.SelfComposedDpEvent(together(many, Stated(0.1, 1e-7)), 3)
  alone = dp_accounting.SelfComposedDpEvent(many, 3)
  expected = accountants.epsilon(alone, 7e-7, relation=relation) + 0.3
  found = accountants.epsilon(event, 1e-6, relation=relation)
  assert found == pytest.approx(expected, rel=1e-9)


def test_what_is_left_of_delta_is_never_too_much():
  # The sum of two is 1e-6 in floating point, and is less by 1e-22.
  one, two = 4.954350870919409e-07, 5.045649129080589e-07
  left = fractions.Fraction(1e-6) - fractions.Fraction(one) - fractions.Fraction(two)
  event = together(GAUSSIAN, Stated(0.1, one), Stated(0.1, two))
  expected = accountants.epsilon(GAUSSIAN, float(left)) + 0.2
  assert accountants.epsilon(event, 1e-6) >= expected * (1 - 1e-12)
  large = together(Stated(1e308, 0.0), Stated(1.5e308, 0.0))
  assert accountants.epsilon(large, 1e-6) == math.inf


def test_of_what_is_stated_alone_that_is_what_holds():
  assert accountants.epsilon(Stated(0.5, 1e-7), 1e-6) == pytest.approx(0.5, rel=1e-12)
  assert accountants.pure_epsilon(Stated(0.5, 0.0)) == 0.5
  assert accountants.pure_epsilon(Stated(0.5, 1e-9)) == math.inf
  both = together(dp_accounting.LaplaceDpEvent(2.0), Stated(0.5, 0.0))
  assert accountants.pure_epsilon(both) == 1.0


def test_what_is_composed_no_times_is_not_stated():
  never = dp_accounting.SelfComposedDpEvent(Stated(0.5, 1e-7), 0)
  assert not accountants.has_stated(together(GAUSSIAN, never))
  assert accountants.has_stated(together(never, Stated(0.5, 1e-7)))
  assert accountants.gdp_mu(together(GAUSSIAN, never)) == 1.0


def test_it_is_no_gaussian():
  with pytest.raises(dp_accounting.UnsupportedEventError):
    accountants.gdp_mu(together(GAUSSIAN, Stated(0.5, 0.0)))
