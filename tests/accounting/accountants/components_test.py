"""Components of events, degenerate events, and pure epsilon of Laplace noise.

Every accountant refuses invalid parameters before it computes.
"""

import itertools
import math

import dp_accounting
import numpy as np
import pytest
from dp_accounting import NeighboringRelation as Relation

from tff_dp_aggregators.accounting import accountants
from tff_dp_aggregators.accounting.accountants import accountant

Composed = dp_accounting.ComposedDpEvent
Gaussian = dp_accounting.GaussianDpEvent
Laplace = dp_accounting.LaplaceDpEvent
NonPrivate = dp_accounting.NonPrivateDpEvent
NoOp = dp_accounting.NoOpDpEvent
Poisson = dp_accounting.PoissonSampledDpEvent
Repeated = dp_accounting.SelfComposedDpEvent
WithoutReplacement = dp_accounting.SampledWithoutReplacementDpEvent


@pytest.mark.parametrize(
  'event, relation, expected',
  [
    (Composed([]), Relation.REPLACE_ONE, []),
    (Composed([Gaussian(1), Gaussian(0)]), Relation.REPLACE_ONE, [(NonPrivate(), 1)]),
    (
      Composed([Laplace(2), Gaussian(2.0), Repeated(Laplace(2.0), 3)] * 4),
      Relation.REPLACE_ONE,
      [(Laplace(2.0), 16), (Gaussian(1.0), 1)],
    ),
    (Poisson(0, Gaussian(0.0)), Relation.ADD_OR_REMOVE_ONE, []),
    (Poisson(1, Gaussian(2.0)), Relation.ADD_OR_REMOVE_ONE, [(Gaussian(2.0), 1)]),
    (
      Repeated(Poisson(0.5, Repeated(Composed([Gaussian(4), NoOp()]), 4)), 7),
      Relation.ADD_OR_REMOVE_ONE,
      [(Poisson(0.5, Gaussian(2.0)), 7)],
    ),
    (WithoutReplacement(9, 9, Laplace(2)), Relation.REPLACE_ONE, [(Laplace(2), 1)]),
    (
      WithoutReplacement(9, 3, Repeated(Gaussian(4.0), 4)),
      Relation.REPLACE_ONE,
      [(WithoutReplacement(9, 3, Gaussian(2.0)), 1)],
    ),
  ],
)
def test_components_normalize_events(event, relation, expected):
  assert accountant.components(event, relation) == expected


@pytest.mark.parametrize(
  'event, relation',
  [
    (Poisson(0.0, Gaussian(1.0)), Relation.ADD_OR_REMOVE_ONE),
    (Repeated(Poisson(0.1, Gaussian(1.0)), 0), Relation.ADD_OR_REMOVE_ONE),
    (Laplace(math.inf), Relation.REPLACE_SPECIAL),
    (Gaussian(math.inf), Relation.REPLACE_SPECIAL),
    (NoOp(), Relation.REPLACE_SPECIAL),
    (WithoutReplacement(10, 0, Gaussian(1.0)), Relation.REPLACE_ONE),
  ],
)
@pytest.mark.parametrize('accountant', sorted(accountants.ACCOUNTANTS))
def test_events_without_release_cost_nothing(accountant, event, relation):
  assert accountants.epsilon(event, 1e-6, accountant, relation) == 0.0
  assert accountants.delta(event, 0.0, accountant, relation) == 0.0


@pytest.mark.parametrize(
  'event, relation',
  [
    (Poisson(0.1, Gaussian(0.0)), Relation.ADD_OR_REMOVE_ONE),
    (Composed([Gaussian(5.0), Laplace(0.0)]), Relation.REPLACE_SPECIAL),
    (Gaussian(0.0), Relation.REPLACE_SPECIAL),
    (WithoutReplacement(10, 1, NonPrivate()), Relation.REPLACE_ONE),
  ],
)
@pytest.mark.parametrize('accountant', sorted(accountants.ACCOUNTANTS))
def test_events_without_noise_have_infinite_epsilon(accountant, event, relation):
  assert accountants.epsilon(event, 1e-6, accountant, relation) == math.inf
  assert accountants.delta(event, 9.0, accountant, relation) == 1.0


@pytest.mark.parametrize(
  'event, relation, message',
  [
    (Laplace(math.nan), Relation.REPLACE_ONE, 'negative or NaN'),
    (Poisson(0.1, Gaussian(-1.0)), Relation.ADD_OR_REMOVE_ONE, 'negative or NaN'),
    (Poisson(1.5, Gaussian(1.0)), Relation.ADD_OR_REMOVE_ONE, 'not from 0 to 1'),
    (WithoutReplacement(5, 6, Gaussian(1.0)), Relation.REPLACE_ONE, 'population'),
    (Repeated(Gaussian(1.0), -1), Relation.REPLACE_ONE, 'not a whole number'),
  ],
)
@pytest.mark.parametrize('accountant', sorted(accountants.ACCOUNTANTS))
def test_invalid_event_parameters_are_refused(accountant, event, relation, message):
  with pytest.raises(ValueError, match=message):
    accountants.epsilon(event, 1e-6, accountant, relation)


# Epsilon at delta 0 is the largest privacy loss.


def largest_loss(noise_multiplier, q):
  """Largest |log P/Q| of one release on a fine grid of outcomes."""
  x = np.linspace(-60, 60, 120_001) * noise_multiplier
  absent = np.exp(-np.abs(x) / noise_multiplier)
  present = (1 - q) * absent + q * np.exp(-np.abs(x - 1) / noise_multiplier)
  return float(np.max(np.abs(np.log(present / absent))))


@pytest.mark.parametrize('q', [1.0, 0.01])
@pytest.mark.parametrize('noise_multiplier', [0.3, 8.0])
def test_laplace_epsilon_matches_largest_loss(noise_multiplier, q):
  actual = accountant.laplace_epsilon(noise_multiplier, q)
  assert actual == pytest.approx(largest_loss(noise_multiplier, q), rel=1e-9)


def test_pure_epsilon_is_exact_sum_rounded_up():
  event = Composed([Repeated(Laplace(8.0), 10), Laplace(2.0)])
  assert accountant.pure_epsilon(event) == 1.75
  thirds = accountant.pure_epsilon(Repeated(Laplace(3.0), 1))
  assert thirds == math.nextafter(1 / 3, 1)  # 1 / 3 itself is below a third.
  # Gaussian noise has no pure epsilon.
  event = Composed([Laplace(1.0), Gaussian(100.0)])
  assert accountant.pure_epsilon(event, Relation.ADD_OR_REMOVE_ONE) == math.inf


def exact_epsilon(noise_multiplier, delta):
  """For one release, delta is 1 - e^((epsilon - 1 / noise_multiplier) / 2)."""
  return max(0.0, 1 / noise_multiplier + 2 * math.log1p(-delta))


@pytest.mark.few(3)
@pytest.mark.parametrize('name', ['pld', 'prv', 'rdp'])
@pytest.mark.parametrize('noise_multiplier', [1 / 2.000033, 60.0])
def test_laplace_epsilon_is_at_least_exact_and_close_for_pld_and_prv(
  name, noise_multiplier
):
  composed = accountants.composed(Laplace(noise_multiplier), name)
  largest = accountant.pure_epsilon(Laplace(noise_multiplier))
  deltas = [0.05, 1e-3, 1e-5, 1e-6, 1e-10, *([] if name == 'prv' else [1e-20, 1e-200])]
  epsilons = [composed.get_epsilon(delta) for delta in deltas]
  assert np.all(np.diff(epsilons) >= 0) and epsilons[-1] <= largest
  for epsilon, delta in zip(epsilons, deltas):
    assert epsilon >= exact_epsilon(noise_multiplier, delta) * (1 - 1e-13)
    if name != 'rdp':
      assert epsilon <= exact_epsilon(noise_multiplier, delta) + 1e-3
  assert composed.get_delta(largest) == 0.0
  assert 0 < composed.get_delta(0.9 * largest) < 1


@pytest.mark.parametrize('rounds', [1, 20])
def test_sampled_laplace_epsilon_ends_at_largest_loss(rounds):
  sampled = Poisson(0.1, Laplace(0.5))
  event = Repeated(sampled, rounds)
  composed = accountants.composed(event, None, Relation.ADD_OR_REMOVE_ONE)
  largest = accountant.pure_epsilon(event, Relation.ADD_OR_REMOVE_ONE)
  assert largest == pytest.approx(rounds * largest_loss(0.5, 0.1), rel=1e-9)
  epsilons = [composed.get_epsilon(10.0**-power) for power in (1, 6, 20, 200)]
  assert np.all(np.diff(epsilons) >= 0) and epsilons[-1] == largest
  # The accountant's own bound holds there; it does not fall back to Renyi's.
  assert composed.instead(1e-200) is None


def test_large_deltas_have_valid_epsilon():
  event = Repeated(Laplace(8.0), 10)
  for name, delta in itertools.product(('pld', 'rdp'), (0.2, 0.99)):
    composed = accountants.composed(event, name, Relation.ADD_OR_REMOVE_ONE)
    epsilon = composed.get_epsilon(delta)
    assert composed.get_delta(epsilon) <= delta * (1 + 1e-9)
    assert 0 <= epsilon < 1
