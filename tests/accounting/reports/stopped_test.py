"""Tests that runs that ended early state the plan's epsilon, and why they have to."""

import functools
import math

import numpy as np
import pytest
from scipy import stats

from tests.accounting.programs import reporting
from tests.accounting.reports import rendered
from tests.accounting.reports import statements
from tff_dp_aggregators import accounting
from tff_dp_aggregators import sampling
from tff_dp_aggregators.accounting.accountants import gaussian
from tff_dp_aggregators.accounting.reports import rendering

_ROUNDS, _NOISE, _DELTA = 1000, 20.0, 0.01
_MU = 1 / _NOISE
_ABOVE = 0.2  # The rule stops at a loss so far above the stated epsilon.


@functools.cache
def _stated():
  """Returns epsilon of the first t + 1 rounds at the stated delta, shape [n]."""
  return np.array(
    [gaussian.epsilon_of(_MU * math.sqrt(t + 1), _DELTA) for t in range(_ROUNDS)]
  )


def _delta_by_recursion(stated, above=None):
  """Returns delta at the epsilon stated for the round in which a rule stops.

  The rule stops where the privacy loss exceeds that epsilon by `above`; `None` is the
  rule with the largest delta. The loss is a random walk with steps N(mu^2/2, mu^2), and
  an outcome with loss x adds (1 - e^(epsilon - x))_+ to delta.
  """
  step = _MU / 8
  loss = np.arange(-4.0, 13.0, step)
  shifts = np.arange(-64, 65) * step
  edges = np.append(shifts - step / 2, shifts[-1] + step / 2)
  weights = np.diff(stats.norm.cdf(edges, _MU**2 / 2, _MU))
  weights /= weights.sum()

  def gain(t):
    return np.maximum(1 - np.exp(stated[t] - loss), 0)

  def after_a_round(value):
    return np.convolve(np.pad(value, 64, mode='edge'), weights[::-1], mode='valid')

  value = gain(_ROUNDS - 1)
  for t in reversed(range(_ROUNDS - 1)):
    if above is None:
      value = np.maximum(gain(t), after_a_round(value))
    else:
      value = np.where(loss > stated[t] + above, gain(t), after_a_round(value))
  return float(np.interp(0.0, loss, after_a_round(value)))


def _delta_by_paths(stated, above, paths=8_000):
  """Estimates the same delta by drawn paths; returns also its standard error."""
  rng = np.random.default_rng(41)
  loss, gains = np.zeros(paths), np.full(paths, np.nan)
  for t in range(_ROUNDS):
    loss += rng.normal(_MU**2 / 2, _MU, paths)
    stops = np.isnan(gains) & ((loss > stated[t] + above) | (t == _ROUNDS - 1))
    gains[stops] = np.maximum(1 - np.exp(stated[t] - loss[stops]), 0)
  return gains.mean(), gains.std() / math.sqrt(paths)


def test_stopping_at_high_loss_has_four_times_the_stated_delta():
  exact = _delta_by_recursion(_stated(), _ABOVE)
  assert exact == pytest.approx(0.041, abs=1e-3)
  drawn, error = _delta_by_paths(_stated(), _ABOVE)
  assert abs(drawn - exact) < 5 * error + 2e-4  # Fails by chance once in a million.
  assert _delta_by_recursion(_stated()) > 0.045
  text = rendering.render(rendered.build(cut=True), 'text')
  assert f'delta is {exact:.3f} at' in text and f'delta = {_DELTA:g}.' in text
  assert f'of {_ROUNDS} rounds with noise multiplier {_NOISE:g}' in text


def test_no_stopping_rule_exceeds_the_delta_of_the_plan():
  plan = np.full(_ROUNDS, _stated()[-1])
  # The largest delta is that of never stopping, as the gain is convex in the outcome.
  assert _delta_by_recursion(plan) == pytest.approx(_DELTA, rel=2e-2)


def _run(tmp_path, num_rounds=7):
  path = tmp_path / 'ledger.jsonl'
  reporting.write_ledger(path, reporting.TREE_OF_20, num_rounds)
  return (*reporting.TREE_OF_20_FLAGS, f'--ledger={path}')


def test_stopped_run_has_guarantee_of_plan_unless_rounds_fixed(tmp_path):
  flags = _run(tmp_path)
  plan = reporting.json_of(*flags)
  prefix = reporting.TREE_OF_20.strategy.sensitivity_squared_by_round(
    reporting.TREE_OF_20.participation
  )[6]
  completed = gaussian.epsilon_of(math.sqrt(prefix) / 4.0, 1e-6)
  planned = reporting.TREE_OF_20.epsilon(1e-6)
  assert plan['guarantee']['epsilon'] == planned == plan['run']['epsilon_planned']
  assert plan['stopped'] == {
    'rounds_completed': 7,
    'rounds_planned': 20,
    'epsilon_completed': pytest.approx(completed, rel=1e-12),
    'epsilon_planned': planned,
    'rounds_fixed_by': None,
  }
  assert reporting.run_verify(tmp_path, plan).returncode == 0
  budget = '--rounds_fixed_by=a budget of epsilon 3'
  fixed = reporting.json_of(*flags, budget)
  assert fixed['guarantee']['epsilon'] == pytest.approx(completed, rel=1e-12)
  assert fixed['stopped']['rounds_fixed_by'] == 'a budget of epsilon 3'
  assert reporting.run_verify(tmp_path, fixed).returncode == 0
  fixed['stopped']['rounds_fixed_by'] = None
  assert reporting.run_verify(tmp_path, fixed).returncode == 1
  # Earlier reports of stopped runs were like this.
  fixed.pop('stopped')
  assert 'stopped is missing' in reporting.run_verify(tmp_path, fixed).stdout


def test_target_is_compared_with_epsilon_of_fixed_rounds(tmp_path):
  flags = _run(tmp_path)
  fixed = (*flags, '--rounds_fixed_by=a budget')
  spent = reporting.json_of(*fixed)['guarantee']['epsilon']
  target = f'--target_epsilon={spent * 1.01}'
  assert reporting.json_of(*fixed, target)['target']['epsilon'] == spent * 1.01
  assert 'more than target_epsilon' in reporting.execute(*flags, target).stderr
  missed = reporting.execute(*fixed, f'--target_epsilon={spent * 0.99}')
  assert missed.returncode and 'more than target_epsilon' in missed.stderr


def test_run_that_spent_the_planned_epsilon_is_not_stopped(tmp_path):
  drawn = accounting.Mechanism('gaussian', sampling.BallsInBins(20, 5), 4.0)
  for mechanism, rounds in ((drawn, 7), (statements.TREE, 12)):
    path = tmp_path / f'{rounds}.jsonl'
    run = statements.write_ledger(mechanism, path, num_rounds=rounds)
    built = statements.build(mechanism, ledger=run)
    assert 'stopped' not in built
    epsilon = pytest.approx(mechanism.epsilon(1e-6), rel=1e-9)
    assert built['guarantee']['epsilon'] == epsilon
    with pytest.raises(ValueError, match="rounds_fixed_by='it' is for a private run"):
      statements.build(mechanism, ledger=run, rounds_fixed_by='it')


def test_rounds_fixed_by_flag_applies_to_run_directory(tmp_path):
  run_dir = statements.run_dir(tmp_path / 'run')
  fixed = reporting.json_of(f'--run_dir={run_dir}', '--rounds_fixed_by=the budget')
  assert fixed['guarantee']['epsilon'] < fixed['stopped']['epsilon_planned']
  assert "'--rounds_fixed_by=the budget'" in fixed['verification']['command']
  assert reporting.run_verify(tmp_path, fixed).returncode == 0


def test_short_round_log_has_guarantee_of_the_plan(tmp_path):
  log = statements.write_round_log(tmp_path, 9)
  flags = (*reporting.TREE_OF_20_FLAGS, f'--round_log={log}', '--min_wait_hours=24')
  report = reporting.json_of(*flags)
  assert report['participation']['source']['planned']['broken'] == []
  stopped = report['stopped']
  assert (stopped['rounds_completed'], stopped['rounds_planned']) == (9, 20)
  assert report['guarantee']['epsilon'] == stopped['epsilon_planned']
  assert stopped['epsilon_completed'] < stopped['epsilon_planned']
  assert stopped['epsilon_planned'] == reporting.TREE_OF_20.epsilon(1e-6)
  assert reporting.run_verify(tmp_path, report).returncode == 0
  fixed = reporting.json_of(*flags, '--rounds_fixed_by=the calendar')
  assert fixed['guarantee']['epsilon'] == stopped['epsilon_completed']
  assert reporting.run_verify(tmp_path, fixed).returncode == 0
  # Without a plan, nothing states how many rounds there might have been.
  without_plan = reporting.execute(
    *('--mechanism=tree', '--noise_multiplier=4', '--target_delta=1e-6'),
    *(f'--round_log={log}', '--min_wait_hours=24'),
  )
  assert 'the log does not tell how many were planned' in without_plan.stdout
  # A target finds some noise, which is not that of the rounds that ran.
  flags = tuple(each for each in flags if 'noise_multiplier' not in each)
  target = reporting.execute(*flags, '--target_epsilon=9')
  assert target.returncode == 2 and '--noise_multiplier' in target.stderr


def test_stopped_run_is_composed_with_epsilon_of_the_plan(tmp_path):
  flags = _run(tmp_path)
  other = tmp_path / 'other.jsonl'
  reporting.write_ledger(other, reporting.TREE_OF_20, 20, **reporting.seeded(None))
  both = reporting.json_of(*flags, f'--ledger={other}')
  mu = reporting.json_of(*flags)['guarantee']['gdp_mu']
  assert both['guarantee']['gdp_mu'] == pytest.approx(math.sqrt(2) * mu, rel=1e-9)
