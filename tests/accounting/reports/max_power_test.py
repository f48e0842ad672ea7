"""Tests of `max_power`, by brute force over statistical tests of real mechanisms."""

import math

import dp_accounting
import numpy as np
import pytest

from tff_dp_aggregators import sampling
from tff_dp_aggregators import strategies
from tff_dp_aggregators.accounting import accountants
from tff_dp_aggregators.accounting import run_events
from tff_dp_aggregators.accounting.reports import guarantees


def power_of_best_test(log_ratio, p, q):
  """Returns the power of the likelihood-ratio test with `FALSE_ALARMS` under P."""
  order = np.argsort(-log_ratio)
  alarms, power = (np.concatenate([[0], np.cumsum(each[order])]) for each in (p, q))
  return float(np.interp(guarantees.FALSE_ALARMS, alarms, power))


def max_power_of_event(event):
  composed = accountants.composed(event)
  return guarantees.max_power_by(composed, accountants.pure_epsilon(event))


def max_power_of_gaussian(mu):
  return guarantees.max_power({}, None, None, mu, math.inf)


@pytest.mark.parametrize('rounds, noise_multiplier', [(1, 1.0), (1, 5.0), (3, 3.0)])
def test_max_power_of_laplace_noise_is_near_that_of_best_test(rounds, noise_multiplier):
  step = 0.01
  x = np.arange(-15, 15, step)
  p = step / (2 * noise_multiplier) * np.exp(-np.abs(x) / noise_multiplier)
  q = step / (2 * noise_multiplier) * np.exp(-np.abs(x - 1) / noise_multiplier)
  # Losses of rounds add up; they are rounded to a grid.
  loss = np.log(q / p)
  grid = np.arange(-rounds * 1024, rounds * 1024 + 1) / 1024 / noise_multiplier
  p_of, q_of = (
    np.bincount(np.rint(loss * 1024 * noise_multiplier).astype(int) + 1024, each, 2049)
    for each in (p, q)
  )
  p_all, q_all = p_of, q_of
  for _ in range(rounds - 1):
    p_all, q_all = np.convolve(p_all, p_of), np.convolve(q_all, q_of)
  power = power_of_best_test(grid, p_all / p_all.sum(), q_all / q_all.sum())
  event = dp_accounting.SelfComposedDpEvent(
    dp_accounting.LaplaceDpEvent(noise_multiplier), rounds
  )
  actual = max_power_of_event(event)
  assert power * (1 - 0.02) <= actual <= power * 1.15


def test_max_power_is_one_without_a_guarantee():
  assert max_power_of_gaussian(math.inf) == 1.0
  assert max_power_of_event(dp_accounting.NonPrivateDpEvent()) == 1.0


def test_max_power_without_release_is_false_alarm_rate():
  assert max_power_of_event(dp_accounting.NoOpDpEvent()) == guarantees.FALSE_ALARMS


def test_max_power_skips_deltas_without_an_answer():
  class Narrow(accountants.GaussianAccountant):
    def get_epsilon(self, target_delta):
      if target_delta > 0.5:
        raise ValueError('no answer')
      return super().get_epsilon(target_delta)

  narrow = Narrow().compose(dp_accounting.GaussianDpEvent(1.0))
  exact = max_power_of_gaussian(1.0)
  assert exact <= guarantees.max_power_by(narrow, math.inf) <= 1.05 * exact


def test_max_power_adds_failure_probabilities_of_drawn_points(monkeypatch):
  strategy = strategies.BandedToeplitz.square_root(8, num_bands=2)
  event = run_events.event(strategy, sampling.BMinSepSampling(8, 0.3, 2), 1.0)
  relation = dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE
  drawn = accountants.composed(event, 'monte_carlo', relation)
  deltas = guarantees._DRAWN_DELTAS[3:10:2]
  monkeypatch.setattr(guarantees, '_DRAWN_DELTAS', deltas)
  points = [(drawn.get_epsilon(float(delta)), float(delta)) for delta in deltas]
  failures = [drawn.failure_probability(float(delta)) for delta in deltas]
  # The failure probability of 0.01 delta is shared by 64 questions.
  assert failures == pytest.approx([0.01 * delta / 64 for delta in deltas], rel=1e-9)
  actual = guarantees.max_power({}, event, relation, None, math.inf)
  alarms = guarantees.FALSE_ALARMS
  powers = [
    min(math.exp(e) * alarms + d, 1 - math.exp(-e) * (1 - d - alarms))
    for e, d in points
  ]
  assert actual == pytest.approx(min(powers) + sum(failures), rel=1e-9)
  assert 0.01 < actual < 0.5
