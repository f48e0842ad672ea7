"""Mechanisms whose noise is not Gaussian: Laplace noise, planned and accounted for."""

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
  """Privacy losses of Laplace noise of scale 1 that is moved, and probabilities."""
  middle = (np.arange(points) + 0.5) / points * shift
  between = 0.5 * np.exp(-middle) * shift / points
  losses = np.concatenate([[shift], shift - 2 * middle, [-shift]])
  return losses, np.concatenate([[0.5], between, [0.5 * math.exp(-shift)]])


def _delta(parts, epsilon):
  """Delta of independent losses together."""
  losses, probabilities = np.zeros(1), np.ones(1)
  for more, likely in parts:
    losses = np.add.outer(losses, more).ravel()
    probabilities = np.multiply.outer(probabilities, likely).ravel()
  return float(np.sum(probabilities * np.maximum(0, 1 - np.exp(epsilon - losses))))


@pytest.mark.parametrize(
  'limits',
  [
    strategies.Participation(11, min_separation=4, max_participations=2),
    strategies.Participation(7),
    strategies.Participation(9, min_separation=3, fixed_epoch=True),
  ],
)
def test_the_event_is_that_of_the_worst_pattern_up_to_every_round(limits):
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
def test_epsilon_is_that_of_the_privacy_loss_by_brute_force(noise_multiplier):
  limits = strategies.Participation(4, min_separation=2)
  mechanism = _laplace(limits, noise_multiplier)
  alone = _losses(1 / noise_multiplier)
  for delta in (1e-3, 0.02, 0.1):
    epsilon = mechanism.epsilon(delta)
    # What the accountant says is kept, and two thousandths less are not.
    assert _delta([alone] * 2, epsilon) <= delta * (1 + 1e-4)
    assert epsilon == 0 or _delta([alone] * 2, epsilon - 2e-3) > delta


def test_a_change_that_is_spread_is_no_easier_to_see():
  for shift, part in itertools.product((0.1, 1.0, 4.0), (0.5, 0.2)):
    in_one = [_losses(shift, 2000)]
    spread = [_losses(shift * part), _losses(shift * (1 - part))]
    for epsilon in np.linspace(0, 0.99, 12) * shift:
      assert _delta(spread, epsilon) <= _delta(in_one, epsilon) + 1e-6


def test_sampling_amplifies_and_replacing_costs_twice():
  sampled = _laplace(sampling.PoissonSampling(11, 0.1))
  everybody = _laplace(strategies.Participation(11))
  assert sampled.epsilon(1e-6) < 0.5 * everybody.epsilon(1e-6)
  replaced = _laplace(strategies.Participation(11), adjacency='replace_one')
  half = _laplace(strategies.Participation(11), noise_multiplier=1.0)
  assert replaced.epsilon(1e-6) == pytest.approx(half.epsilon(1e-6), rel=1e-9)
  assert replaced.sensitivity == 22.0


@pytest.mark.parametrize(
  ('make', 'message'),
  [
    (lambda: _laplace(sampling.FixedSizeSampling(5, 100, 10)), 'FixedSizeSampling'),
    (lambda: _laplace(clipped_count_stddev=5.0), 'clipped_count_stddev=5.0'),
    (lambda: _laplace(strategy=strategies.BinaryTree(11)), 'identity'),
  ],
)
def test_what_has_no_analysis_is_refused(make, message):
  with pytest.raises(ValueError, match=message):
    make()


def test_without_noise_there_is_no_privacy():
  assert math.isinf(_laplace(noise_multiplier=0.0).epsilon(1e-5))


@pytest.mark.parametrize('rounds', [2, 300])
@pytest.mark.parametrize('delta', [1e-2, 1e-6])
def test_sampled_laplace_noise_has_the_epsilon_of_dp_accounting(rounds, delta):
  # Losses that end: a grid that saw their end alone said up to nine times as much.
  event = _laplace(sampling.PoissonSampling(rounds, 0.1)).event
  peer = pld.PLDAccountant(Relation.ADD_OR_REMOVE_ONE).compose(event)
  ours = accountants.epsilon(event, delta, relation=Relation.ADD_OR_REMOVE_ONE)
  # The peer's grid is of 1e-4, rounded up.
  assert ours <= peer.get_epsilon(delta) + 1e-9
  assert ours == pytest.approx(peer.get_epsilon(delta), rel=1e-3)
