"""Tests of runs that simulate the noise of a larger cohort."""

import json
import math

import pytest

from tests.learning import training_runs
from tff_dp_aggregators import accounting
from tff_dp_aggregators import sampling
from tff_dp_aggregators.accounting.records import ledger
from tff_dp_aggregators.learning.runs import plan

_BOTH_COHORTS = 'simulated cohort of 30 of 120 clients, and rounds have 3 of 12'


def _train(run_dir, **changes):
  changes = {'simulated_cohort_scale': 10, **changes}
  return training_runs.train(run_dir, **changes)


@pytest.fixture(name='simulated', scope='module')
def _simulated(tmp_path_factory):
  run_dir = tmp_path_factory.mktemp('runs') / 'simulated'
  return run_dir, _train(run_dir, test_metrics=training_runs.kill_in(0))


def test_outputs_state_no_guarantee_and_name_both_cohorts(simulated):
  run_dir, result = simulated
  epsilon = training_runs.mechanism().epsilon(1e-3)
  assert math.isinf(result.epsilon)
  assert result.simulated_epsilon == pytest.approx(epsilon, rel=1e-9)
  config = json.loads((run_dir / 'config.json').read_text())
  assert config['privacy'] is None
  assert _BOTH_COHORTS in config['simulated_cohort']['guarantee']
  assert config['simulated_cohort']['noise_multiplier'] == 0.1 / 10
  rows = training_runs.results(run_dir)['metrics']
  assert {row['epsilon'] for row in rows} == {'inf'}
  spent = [float(row['simulated_epsilon']) for row in rows]
  assert spent == sorted(spent) and spent[-1] == result.simulated_epsilon
  for entry in ledger.read(str(run_dir / 'ledger.jsonl')).entries:
    assert entry.event == {'type': 'NonPrivateDpEvent'} and entry.epsilon is None
    assert entry.noise_multiplier == 0.1 / 10
  text = (run_dir / 'report.md').read_text()
  assert 'simulated cohort of 30 clients a round; the rounds had 3' in text
  assert json.loads((run_dir / 'report.json').read_text()) == result.statement
  assert result.statement['guarantee']['epsilon'] is None


def test_resuming_with_another_scale_is_refused(simulated):
  run_dir, _ = simulated
  with pytest.raises(ValueError, match='scale: 10.0 then, 20.0 now'):
    _train(run_dir, simulated_cohort_scale=20)


@pytest.mark.parametrize(
  ('changes', 'message'),
  [
    (
      {'simulated_cohort_scale': 1e6},
      'so that the grid of the sums can represent the noise; got',
    ),
    (
      {'mechanism': None, 'clip_norm': None, 'num_rounds': 3},
      'does not go with training without a mech',
    ),
  ],
)
def test_scale_without_noise_to_scale_is_refused(changes, message, tmp_path):
  with pytest.raises(ValueError, match=message):
    _train(tmp_path / 'run', **changes)
  assert not (tmp_path / 'run').exists()


def test_scale_reduces_noise_of_clipped_count_too():
  scheme = sampling.PoissonSampling(4, 0.1)
  mechanism = accounting.Mechanism('gaussian', scheme, 2.0, clipped_count_stddev=5.0)
  scaled = plan.mechanism_of_run(mechanism, 4.0)
  assert (scaled.noise_multiplier, scaled.clipped_count_stddev) == (0.5, 1.25)
