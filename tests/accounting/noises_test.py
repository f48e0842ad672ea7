"""Mechanisms with Laplace noise: events, epsilon and calibration."""

import itertools
import math

import dp_accounting
import numpy as np
import pytest
from dp_accounting import NeighboringRelation as Relation
from dp_accounting import pld

from tff_dp_aggregators import sampling
from tff_dp_aggregators import strategies
from tff_dp_aggregators.accounting import accountants
from tff_dp_aggregators.accounting import mechanism as mechanism_lib

_LIMITS = strategies.Participation(11, min_separation=4)


def _laplace(participation=_LIMITS, noise_multiplier=2.0, **options):
  return mechanism_lib.Mechanism('laplace', participation, noise_multiplier, **options)


def _losses(shift, points=400):
  """Privacy losses of Laplace noise of scale 1 under a shift, and probabilities."""
  inner = (np.arange(points) + 0.5) / points * shift
  inner_probabilities = 0.5 * np.exp(-inner) * shift / points
  losses = np.concatenate([[shift], shift - 2 * inner, [-shift]])
  return losses, np.concatenate([[0.5], inner_probabilities, [0.5 * math.exp(-shift)]])


def _delta(parts, epsilon):
  """Delta of the sum of independent losses."""
  losses, probabilities = np.zeros(1), np.ones(1)
  for part_losses, part_probabilities in parts:
    losses = np.add.outer(losses, part_losses).ravel()
    probabilities = np.multiply.outer(probabilities, part_probabilities).ravel()
  return float(np.sum(probabilities * np.maximum(0, 1 - np.exp(epsilon - losses))))


@pytest.mark.parametrize(
  'limits',
  [
    strategies.Participation(11, min_separation=4, max_participations=2),
    strategies.Participation(7),
    strategies.Participation(9, min_separation=3, fixed_epoch=True),
  ],
)
def test_round_events_compose_to_worst_pattern_so_far(limits):
  mechanism = _laplace(limits)
  patterns = list(limits.patterns())
  for rounds in range(1, limits.num_rounds + 1):
    worst = max(sum(each < rounds for each in pattern) for pattern in patterns)
    composed = dp_accounting.ComposedDpEvent(mechanism.round_events[:rounds])
    for relation in (Relation.REPLACE_SPECIAL, Relation.ADD_OR_REMOVE_ONE):
      assert accountants.components(composed, relation) == [
        (dp_accounting.LaplaceDpEvent(2.0), worst)
      ]
  assert mechanism.event == dp_accounting.SelfComposedDpEvent(
    dp_accounting.LaplaceDpEvent(2.0), worst
  )
  assert mechanism.sensitivity == worst
  assert mechanism.epsilon(1e-15) == pytest.approx(worst / 2.0, rel=1e-4)


@pytest.mark.parametrize('noise_multiplier', [0.7, 9.0])
def test_epsilon_matches_privacy_loss_by_brute_force(noise_multiplier):
  limits = strategies.Participation(4, min_separation=2)
  mechanism = _laplace(limits, noise_multiplier)
  losses = _losses(1 / noise_multiplier)
  for delta in (1e-3, 0.02, 0.1):
    epsilon = mechanism.epsilon(delta)
    # The accountant's epsilon holds, and 0.002 less does not.
    assert _delta([losses] * 2, epsilon) <= delta * (1 + 1e-4)
    assert epsilon == 0 or _delta([losses] * 2, epsilon - 2e-3) > delta


def test_splitting_laplace_shift_does_not_increase_delta():
  for shift, part in itertools.product((0.1, 1.0, 4.0), (0.5, 0.2)):
    whole = [_losses(shift, 2000)]
    split = [_losses(shift * part), _losses(shift * (1 - part))]
    for epsilon in np.linspace(0, 0.99, 12) * shift:
      assert _delta(split, epsilon) <= _delta(whole, epsilon) + 1e-6


def test_sampling_amplifies_and_replace_one_doubles_sensitivity():
  sampled = _laplace(sampling.PoissonSampling(11, 0.1))
  everybody = _laplace(strategies.Participation(11))
  assert sampled.epsilon(1e-6) < 0.5 * everybody.epsilon(1e-6)
  replaced = _laplace(strategies.Participation(11), adjacency='replace_one')
  half_noise = _laplace(strategies.Participation(11), noise_multiplier=1.0)
  assert replaced.epsilon(1e-6) == pytest.approx(half_noise.epsilon(1e-6), rel=1e-9)
  assert replaced.sensitivity == 22.0


@pytest.mark.parametrize(
  ('make', 'message'),
  [
    (lambda: _laplace(sampling.FixedSizeSampling(5, 100, 10)), 'FixedSizeSampling'),
    (lambda: _laplace(clipped_count_stddev=5.0), 'clipped_count_stddev=5.0'),
    (lambda: _laplace(strategy=strategies.BinaryTree(11)), 'identity'),
  ],
)
def test_unsupported_laplace_options_are_refused(make, message):
  with pytest.raises(ValueError, match=message):
    make()


def test_zero_noise_has_infinite_epsilon():
  assert math.isinf(_laplace(noise_multiplier=0.0).epsilon(1e-5))


@pytest.mark.parametrize('rounds', [2, 300])
@pytest.mark.parametrize('delta', [1e-2, 1e-6])
def test_sampled_laplace_epsilon_matches_dp_accounting(rounds, delta):
  # Losses are bounded: a grid that used only the bound gave up to nine times as much.
  event = _laplace(sampling.PoissonSampling(rounds, 0.1)).event
  peer = pld.PLDAccountant(Relation.ADD_OR_REMOVE_ONE).compose(event)
  actual = accountants.epsilon(event, delta, relation=Relation.ADD_OR_REMOVE_ONE)
  # dp-accounting rounds up to a grid of 1e-4.
  assert actual <= peer.get_epsilon(delta) + 1e-9
  assert actual == pytest.approx(peer.get_epsilon(delta), rel=1e-3)
