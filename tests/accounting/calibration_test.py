"""Calibration finds the least noise and the most rounds that keep a target."""

import hashlib
import math

import dp_accounting
import numpy as np
import pytest
from dp_accounting import NeighboringRelation as Relation

from tff_dp_aggregators import sampling
from tff_dp_aggregators import strategies
from tff_dp_aggregators.accounting import accountants
from tff_dp_aggregators.accounting import calibration
from tff_dp_aggregators.accounting import events
from tff_dp_aggregators.accounting import mechanism

BOTH = Relation.ADD_OR_REMOVE_ONE
MECHANISMS = {
  'tree': (strategies.BinaryTree(60), strategies.Participation(60, 11, 4)),
  'overlapping': (
    strategies.BandedToeplitz.square_root(48, 48),
    strategies.Participation(48, 5),
  ),
}


def _least_noise(strategy, participation, target_epsilon, target_delta):
  return calibration.noise_multiplier(
    lambda noise: events.run_event(strategy, participation, noise),
    target_epsilon,
    target_delta,
  )


@pytest.mark.parametrize(
  'strategy, participation', MECHANISMS.values(), ids=MECHANISMS.keys()
)
@pytest.mark.parametrize('epsilon', [1e-3, 1.0, 50.0])
@pytest.mark.parametrize('delta', [1e-12, 1e-3])
def test_noise_multiplier_is_smallest_that_meets_target(
  strategy, participation, epsilon, delta
):
  noise_multiplier = _least_noise(strategy, participation, epsilon, delta)

  def spent(noise):
    event = events.run_event(strategy, participation, noise)
    return accountants.epsilon(event, delta)

  assert spent(noise_multiplier) <= epsilon
  assert spent(noise_multiplier * 0.9999) > epsilon


@pytest.mark.parametrize(
  'name, target',
  [
    ('target_epsilon', (0.0, 1e-6)),
    ('target_epsilon', (math.nan, 1e-6)),
    ('target_delta', (1.0, 1.0)),
  ],
)
def test_targets_out_of_range_are_refused(name, target):
  with pytest.raises(ValueError, match=name):
    _least_noise(strategies.Identity(3), strategies.Participation.single(3), *target)


def _sampled(noise_multiplier):
  return dp_accounting.SelfComposedDpEvent(
    dp_accounting.PoissonSampledDpEvent(
      0.02, dp_accounting.GaussianDpEvent(noise_multiplier)
    ),
    20,
  )


@pytest.mark.parametrize('accountant', ['pld', 'rdp'])
def test_noise_multiplier_is_calibrated_for_named_accountant(accountant):
  noise = calibration.noise_multiplier(
    _sampled, 1.0, 1e-6, accountant=accountant, relation=BOTH
  )

  def spent(noise):
    return accountants.epsilon(_sampled(noise), 1e-6, accountant, BOTH)

  assert spent(noise) <= 1.0
  assert spent(noise * 0.9999) > 1.0


def test_target_below_accountants_smallest_epsilon_is_refused():
  with pytest.raises(ValueError, match='less than the accountant can show'):
    calibration.noise_multiplier(
      dp_accounting.GaussianDpEvent, 1e-3, 1e-10, accountant='rdp'
    )


@pytest.mark.parametrize('epsilon', [0.7, 7.7])
@pytest.mark.parametrize('at_most', [7, 10**6])
def test_largest_finds_most_rounds_that_meet_target(epsilon, at_most):
  def event(number):
    return events.run_event(
      strategies.Identity(number), strategies.Participation(number, 3), 11.0
    )

  most_rounds = calibration.largest(event, epsilon, 1e-6, at_most=at_most)
  assert accountants.epsilon(event(most_rounds), 1e-6) <= epsilon
  if most_rounds < at_most:
    assert accountants.epsilon(event(most_rounds + 1), 1e-6) > epsilon
  else:
    assert at_most == 7


def test_largest_refuses_target_that_one_round_exceeds():
  with pytest.raises(ValueError, match='4.88655'):
    calibration.largest(
      lambda number: dp_accounting.GaussianDpEvent(1.0 / number**0.5),
      1.0,
      1e-6,
      at_most=9,
    )


def _noisy_epsilon(noise):
  """Decreases with noise, but not monotonically: like an estimate from samples."""
  digest = hashlib.sha256(repr(noise).encode()).digest()
  return (1 + 0.2 * (digest[0] / 255 - 0.5)) / noise


@pytest.mark.parametrize('start', [0.01, 1.0, 90.0])
@pytest.mark.parametrize('factor', [1.1, 2.0])
def test_smallest_searches_noisy_decreasing_function(start, factor):
  for target in np.geomspace(0.02, 50, 60):
    computed = {}

    def spent(noise):
      return computed.setdefault(noise, _noisy_epsilon(noise))  # noqa: B023

    noise_found = calibration._smallest(spent, target, start, factor, 4e-3)
    assert spent(noise_found) <= target
    assert 0.85 / target <= noise_found <= 1.25 / target
    # No noise is evaluated twice with another last digit.
    noises = np.sort(list(computed))
    assert np.all(np.diff(noises) > 1e-9 * noises[1:])


@pytest.mark.parametrize(
  'rounds, rounds_of_a_client',
  [(12, 1), pytest.param(30, 4, marks=pytest.mark.slow)],
)
def test_monte_carlo_calibration_keeps_target_and_noise_near_or_below_bound(
  rounds, rounds_of_a_client
):
  schema, target = sampling.RandomAllocation(rounds, rounds_of_a_client), (6.0, 1e-4)
  sampled, bound = (
    mechanism.Mechanism.for_target('gaussian', schema, *target, accountant=name)
    for name in ('monte_carlo', None)
  )
  # For one round of a client the bound is exact, and confidence costs noise.
  limit = bound.noise_multiplier * (0.99 if rounds_of_a_client > 1 else 1.02)
  assert sampled.noise_multiplier < limit
  assert sampled.epsilon(1e-4, accountant='monte_carlo') <= 6.0
  assert sampled.epsilon(1e-4) > 5.9


def test_largest_refuses_monte_carlo_accountant():
  # Each number of rounds took minutes to try, and the search never ended.
  def event(num_rounds):
    scheme = sampling.BMinSepSampling(num_rounds, 0.01, min_separation=50)
    return mechanism.Mechanism('gaussian', scheme, 1.2).event

  with pytest.raises(ValueError, match='accountant=pld'):
    calibration.largest(event, 8.0, 1e-6, at_most=10**6, relation=BOTH)


def test_tiny_epsilon_does_not_end_in_noise_that_only_a_coarse_bound_needs():
  # Renyi's epsilon is above the target for any noise below 3e7.
  schema = sampling.PoissonSampling(1000, 1e-6)
  found = mechanism.Mechanism.for_target('gaussian', schema, 1e-4, 1e-12)
  assert 1.0 < found.noise_multiplier < 4.0
  assert found.epsilon(1e-12) <= 1e-4
