"""Parts: an event taken apart means what it meant, and degenerate ones mean something.

Bad parameters are refused by every accountant before any of them computes.
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
def test_events_have_one_form(event, relation, expected):
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
def test_nothing_costs_nothing(accountant, event, relation):
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
def test_no_noise_costs_everything(accountant, event, relation):
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
def test_bad_parameters_are_refused(accountant, event, relation, message):
  with pytest.raises(ValueError, match=message):
    accountants.epsilon(event, 1e-6, accountant, relation)


# Epsilon at delta 0: the largest privacy loss there is.


def largest_loss(noise_multiplier, q):
  """Of one release around two neighbours, |log P/Q| at its largest on a fine grid."""
  x = np.linspace(-60, 60, 120_001) * noise_multiplier
  without = np.exp(-np.abs(x) / noise_multiplier)
  with_it = (1 - q) * without + q * np.exp(-np.abs(x - 1) / noise_multiplier)
  return float(np.max(np.abs(np.log(with_it / without))))


@pytest.mark.parametrize('q', [1.0, 0.01])
@pytest.mark.parametrize('noise_multiplier', [0.3, 8.0])
def test_one_use_is_the_largest_loss(noise_multiplier, q):
  found = accountant.laplace_epsilon(noise_multiplier, q)
  assert found == pytest.approx(largest_loss(noise_multiplier, q), rel=1e-9)


def test_everything_adds_up_exactly_or_to_the_next_number():
  event = Composed([Repeated(Laplace(8.0), 10), Laplace(2.0)])
  assert accountant.pure_epsilon(event) == 1.75
  thirds = accountant.pure_epsilon(Repeated(Laplace(3.0), 1))
  assert thirds == math.nextafter(1 / 3, 1)  # 1 / 3 itself is below a third.
  # Other noise has none.
  event = Composed([Laplace(1.0), Gaussian(100.0)])
  assert accountant.pure_epsilon(event, Relation.ADD_OR_REMOVE_ONE) == math.inf


def exact_epsilon(noise_multiplier, delta):
  """Of one release: delta is 1 - e^((epsilon - 1 / noise_multiplier) / 2)."""
  return max(0.0, 1 / noise_multiplier + 2 * math.log1p(-delta))


@pytest.mark.few(3)
@pytest.mark.parametrize('name', ['pld', 'prv', 'rdp'])
@pytest.mark.parametrize('noise_multiplier', [1 / 2.000033, 60.0])
def test_no_accountant_states_more_nor_less_than_holds(name, noise_multiplier):
  composed = accountants.composed(Laplace(noise_multiplier), name)
  most = accountant.pure_epsilon(Laplace(noise_multiplier))
  deltas = [0.05, 1e-3, 1e-5, 1e-6, 1e-10, *([] if name == 'prv' else [1e-20, 1e-200])]
  found = [composed.get_epsilon(delta) for delta in deltas]
  assert np.all(np.diff(found) >= 0) and found[-1] <= most
  for epsilon, delta in zip(found, deltas):
    assert epsilon >= exact_epsilon(noise_multiplier, delta) * (1 - 1e-13)
    if name != 'rdp':
      assert epsilon <= exact_epsilon(noise_multiplier, delta) + 1e-3
  assert composed.get_delta(most) == 0.0
  assert 0 < composed.get_delta(0.9 * most) < 1


@pytest.mark.parametrize('rounds', [1, 20])
def test_samples_are_told_by_no_more_than_their_largest_loss(rounds):
  sampled = Poisson(0.1, Laplace(0.5))
  event = Repeated(sampled, rounds)
  composed = accountants.composed(event, None, Relation.ADD_OR_REMOVE_ONE)
  most = accountant.pure_epsilon(event, Relation.ADD_OR_REMOVE_ONE)
  assert most == pytest.approx(rounds * largest_loss(0.5, 0.1), rel=1e-9)
  found = [composed.get_epsilon(10.0**-power) for power in (1, 6, 20, 200)]
  assert np.all(np.diff(found) >= 0) and found[-1] == most
  # It is its own bound there, and not Renyi's.
  assert composed.instead(1e-200) is None


def test_large_deltas_have_an_epsilon_by_each_accountant():
  event = Repeated(Laplace(8.0), 10)
  for name, delta in itertools.product(('pld', 'rdp'), (0.2, 0.99)):
    composed = accountants.composed(event, name, Relation.ADD_OR_REMOVE_ONE)
    epsilon = composed.get_epsilon(delta)
    assert composed.get_delta(epsilon) <= delta * (1 + 1e-9)
    assert 0 <= epsilon < 1
