"""Composition of events that are stated as (epsilon, delta) with other events."""

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


def composed(*parts):
  return dp_accounting.ComposedDpEvent(parts)


def max_delta(mu, epsilon, stated):
  """Delta of a Gaussian composed with the worst releases of the stated pairs."""
  losses, failure = {0.0: 1.0}, 0.0
  for each, delta in stated:
    failure = 1 - (1 - failure) * (1 - delta)
    likely = math.exp(each) / (1 + math.exp(each))
    next_losses = {}
    for loss, weight in losses.items():
      for step, share in ((each, likely), (-each, 1 - likely)):
        next_losses[loss + step] = next_losses.get(loss + step, 0.0) + weight * share
    losses = next_losses
  gaussian_delta = 0.0
  for loss, weight in losses.items():
    rest = epsilon - loss
    gaussian = stats.norm.cdf(mu / 2 - rest / mu) - math.exp(rest) * stats.norm.cdf(
      -mu / 2 - rest / mu
    )
    gaussian_delta += weight * gaussian
  return failure + (1 - failure) * gaussian_delta


@pytest.mark.parametrize(
  'mu, stated',
  [
    (0.2, [(3.0, 0.0)]),
    (2.0, [(0.1, 1e-8), (0.1, 0.0), (1.0, 2e-7)]),
  ],
)
def test_epsilon_and_delta_bound_worst_stated_releases(mu, stated):
  releases = [Stated(*each) for each in stated]
  event = composed(dp_accounting.GaussianDpEvent(1 / mu), *releases)
  for delta in (1e-5, 1e-3, 0.1):
    epsilon = accountants.epsilon(event, delta)
    assert max_delta(mu, epsilon, stated) <= delta
    # The PLD accountant composes the same event, and is not tighter.
    assert epsilon <= accountants.epsilon(event, delta, 'pld') + 1e-6
  for epsilon in np.linspace(0, 12, 25):
    assert (
      max_delta(mu, float(epsilon), stated) <= accountants.delta(event, epsilon) + 1e-15
    )


@pytest.mark.parametrize('name', ['exact', 'pld', 'prv', 'rdp', 'zcdp', None])
def test_accountants_add_stated_epsilon_and_use_remaining_delta(name):
  epsilon = accountants.epsilon(GAUSSIAN, 8e-7, name)
  event = composed(GAUSSIAN, Stated(0.25, 1e-7), Stated(0.25, 1e-7))
  assert accountants.epsilon(event, 1e-6, name) == pytest.approx(
    epsilon + 0.5, rel=1e-9
  )
  assert accountants.tightest(event) == accountants.tightest(GAUSSIAN)


def test_sampled_events_compose_with_stated_events():
  relation = Relation.ADD_OR_REMOVE_ONE
  sampled = dp_accounting.PoissonSampledDpEvent(0.01, GAUSSIAN)
  many = dp_accounting.SelfComposedDpEvent(sampled, 100)
  event = dp_accounting.SelfComposedDpEvent(composed(many, Stated(0.1, 1e-7)), 3)
  without_stated = dp_accounting.SelfComposedDpEvent(many, 3)
  expected = accountants.epsilon(without_stated, 7e-7, relation=relation) + 0.3
  actual = accountants.epsilon(event, 1e-6, relation=relation)
  assert actual == pytest.approx(expected, rel=1e-9)


def test_remaining_delta_is_rounded_down():
  # In floating point the two deltas add up to 1e-6; exactly, to less by 1e-22.
  one, two = 4.954350870919409e-07, 5.045649129080589e-07
  rest = fractions.Fraction(1e-6) - fractions.Fraction(one) - fractions.Fraction(two)
  event = composed(GAUSSIAN, Stated(0.1, one), Stated(0.1, two))
  expected = accountants.epsilon(GAUSSIAN, float(rest)) + 0.2
  assert accountants.epsilon(event, 1e-6) >= expected * (1 - 1e-12)
  large = composed(Stated(1e308, 0.0), Stated(1.5e308, 0.0))
  assert accountants.epsilon(large, 1e-6) == math.inf


def test_stated_event_alone_has_its_epsilon():
  assert accountants.epsilon(Stated(0.5, 1e-7), 1e-6) == pytest.approx(0.5, rel=1e-12)
  assert accountants.pure_epsilon(Stated(0.5, 0.0)) == 0.5
  assert accountants.pure_epsilon(Stated(0.5, 1e-9)) == math.inf
  both = composed(dp_accounting.LaplaceDpEvent(2.0), Stated(0.5, 0.0))
  assert accountants.pure_epsilon(both) == 1.0


def test_events_composed_zero_times_are_not_stated():
  never = dp_accounting.SelfComposedDpEvent(Stated(0.5, 1e-7), 0)
  assert not accountants.has_stated(composed(GAUSSIAN, never))
  assert accountants.has_stated(composed(never, Stated(0.5, 1e-7)))
  assert accountants.gdp_mu(composed(GAUSSIAN, never)) == 1.0


def test_gdp_mu_refuses_stated_events():
  with pytest.raises(dp_accounting.UnsupportedEventError):
    accountants.gdp_mu(composed(GAUSSIAN, Stated(0.5, 0.0)))
