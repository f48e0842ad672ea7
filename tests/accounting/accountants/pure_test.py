"""Epsilon at delta 0: the largest privacy loss there is, by enumeration.

No accountant states more at any delta, nor less than the closed form of one release.
"""

import itertools
import math

import dp_accounting
import numpy as np
import pytest
from dp_accounting import NeighboringRelation as Relation

from tff_dp_aggregators.accounting import accountants
from tff_dp_aggregators.accounting.accountants import accountant

LAPLACE = dp_accounting.LaplaceDpEvent


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
  event = dp_accounting.ComposedDpEvent(
    [dp_accounting.SelfComposedDpEvent(LAPLACE(8.0), 10), LAPLACE(2.0)]
  )
  assert accountant.pure_epsilon(event) == 1.75
  thirds = accountant.pure_epsilon(dp_accounting.SelfComposedDpEvent(LAPLACE(3.0), 1))
  assert thirds == math.nextafter(1 / 3, 1)  # 1 / 3 itself is below a third.


def test_other_noise_has_none():
  event = dp_accounting.ComposedDpEvent(
    [LAPLACE(1.0), dp_accounting.GaussianDpEvent(100.0)]
  )
  assert accountant.pure_epsilon(event, Relation.ADD_OR_REMOVE_ONE) == math.inf


def exact_epsilon(noise_multiplier, delta):
  """Of one release: delta is 1 - e^((epsilon - 1 / noise_multiplier) / 2)."""
  return max(0.0, 1 / noise_multiplier + 2 * math.log1p(-delta))


@pytest.mark.few(3)
@pytest.mark.parametrize('name', ['pld', 'prv', 'rdp'])
@pytest.mark.parametrize('noise_multiplier', [1 / 2.000033, 60.0])
def test_no_accountant_states_more_nor_less_than_holds(name, noise_multiplier):
  composed = accountants.composed(LAPLACE(noise_multiplier), name)
  most = accountant.pure_epsilon(LAPLACE(noise_multiplier))
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
  sampled = dp_accounting.PoissonSampledDpEvent(0.1, LAPLACE(0.5))
  event = dp_accounting.SelfComposedDpEvent(sampled, rounds)
  composed = accountants.composed(event, None, Relation.ADD_OR_REMOVE_ONE)
  most = accountant.pure_epsilon(event, Relation.ADD_OR_REMOVE_ONE)
  assert most == pytest.approx(rounds * largest_loss(0.5, 0.1), rel=1e-9)
  found = [composed.get_epsilon(10.0**-power) for power in (1, 6, 20, 200)]
  assert np.all(np.diff(found) >= 0) and found[-1] == most
  # It is its own bound there, and not Renyi's.
  assert composed.instead(1e-200) is None


@pytest.mark.parametrize(
  'event',
  [
    dp_accounting.SelfComposedDpEvent(LAPLACE(8.0), 10),
    dp_accounting.SelfComposedDpEvent(
      dp_accounting.PoissonSampledDpEvent(0.1, dp_accounting.GaussianDpEvent(1.0)), 10
    ),
  ],
  ids=['laplace', 'sampled'],
)
def test_large_deltas_have_an_epsilon_by_each_accountant(event):
  for name, delta in itertools.product(('pld', 'rdp'), (0.2, 0.99)):
    try:
      composed = accountants.composed(event, name, Relation.ADD_OR_REMOVE_ONE)
    except dp_accounting.UnsupportedEventError:
      continue
    epsilon = composed.get_epsilon(delta)
    assert composed.get_delta(epsilon) <= delta * (1 + 1e-9)
    assert 0 <= epsilon < 1
