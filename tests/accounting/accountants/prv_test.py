"""PRV accountant: agreement with the other accountants, and its limits."""

import math

import dp_accounting
import numpy as np
import pytest
from dp_accounting import NeighboringRelation as Relation

from tff_dp_aggregators.accounting import accountants

Gaussian = dp_accounting.GaussianDpEvent
Laplace = dp_accounting.LaplaceDpEvent
Poisson = dp_accounting.PoissonSampledDpEvent
Repeated = dp_accounting.SelfComposedDpEvent
ADD_OR_REMOVE = Relation.ADD_OR_REMOVE_ONE


@pytest.mark.parametrize('rounds', [100, pytest.param(3000, marks=pytest.mark.slow)])
def test_prv_agrees_with_pld_for_poisson_sampling(rounds):
  event = Repeated(Poisson(0.01, Gaussian(1.0)), rounds)
  by_pld, by_prv, by_rdp = (
    accountants.epsilon(event, 1e-6, name, ADD_OR_REMOVE)
    for name in ('pld', 'prv', 'rdp')
  )
  # PRV's error bound is 2e-3 in each direction; it grows beyond a thousand rounds.
  assert by_pld - 1e-3 <= by_prv <= by_pld + (5e-3 if rounds <= 1000 else 1e-2)
  assert by_pld <= by_rdp
  unsampled = Gaussian(1 / math.sqrt(rounds))
  assert by_rdp < accountants.epsilon(unsampled, 1e-6)


def both_directions(probability, noise_multiplier, epsilon):
  """Deltas of removing and of adding a client in one round, as sums over a grid."""
  x = np.linspace(-14 * noise_multiplier, 1 + 14 * noise_multiplier, 400_001)
  density = np.exp(-((x / noise_multiplier) ** 2) / 2)
  density *= (x[1] - x[0]) / (noise_multiplier * math.sqrt(2 * math.pi))
  ratio = 1 - probability + probability * np.exp((x - 0.5) / noise_multiplier**2)
  removing = np.maximum(ratio - math.exp(epsilon), 0) @ density
  adding = np.maximum(1 - math.exp(epsilon) * ratio, 0) @ density
  return removing, adding


def test_one_sampled_round_matches_numerical_integration():
  event, epsilon = Poisson(0.01, Gaussian(0.5)), 0.5
  exact = max(both_directions(0.01, 0.5, epsilon))
  by_pld, by_prv, by_rdp = (
    accountants.delta(event, epsilon, name, ADD_OR_REMOVE)
    for name in ('pld', 'prv', 'rdp')
  )
  assert exact * (1 - 1e-8) <= by_pld <= exact * (1 + 1e-5)
  assert exact <= by_prv <= exact * 1.01 + 3e-3
  assert exact <= by_rdp


def test_prv_refuses_deltas_and_events_beyond_float64():
  with pytest.raises(ValueError, match='delta must be at least 1e-14 for prv'):
    accountants.epsilon(Gaussian(1.0), 1e-15, 'prv')
  rounds = Repeated(Poisson(0.01, Gaussian(1.0)), 10**6)
  with pytest.raises(ValueError, match='delta must be at least 1e-09 for prv'):
    accountants.epsilon(rounds, 1e-10, 'prv', ADD_OR_REMOVE)
  with pytest.raises(ValueError, match='prv cannot account for this event in float64'):
    accountants.epsilon(Gaussian(1e-3), 1e-6, 'prv')


def test_prv_refuses_sampled_laplace_noise():
  event = Poisson(0.1, Laplace(1.0))
  with pytest.raises(dp_accounting.UnsupportedEventError, match='Only Gaussian, Lap'):
    accountants.epsilon(event, 1e-6, 'prv', ADD_OR_REMOVE)
