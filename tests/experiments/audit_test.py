"""The audit program: its table, its exit codes, and what it refuses."""

import pytest

from experiments import audit
from tests import executing
from tests.experiments import simulations
from tff_dp_aggregators.queries import grid

PLAN = (
  '--mechanism=banded',
  '--num_rounds=12',
  '--min_separation=4',
  '--noise_multiplier=2',
  '--target_delta=1e-6',
  '--runtime=simulation',
)


def test_plan_passes_audit_and_halved_noise_exits_with_1(monkeypatch):
  result = executing.execute(audit, *PLAN)
  assert result.returncode == 0, result.stderr
  row = 'all   simulation  12      1.1547   1.1547  exact'
  assert row in result.stdout
  assert 'Epsilon at delta = 1e-06, read: 4.15182' in result.stdout
  real = grid.add_noise
  monkeypatch.setattr(
    grid, 'add_noise', lambda sums, unit, stddev: real(sums, unit, stddev / 2)
  )
  result = executing.execute(audit, *PLAN)
  assert result.returncode == 1
  assert 'FAILED: all weights, run by simulation: ' in result.stdout


@pytest.mark.slow  # Tests of `learning` audit runs as well.
def test_run_passes_audit(tmp_path):
  run_dir = tmp_path / 'run'
  simulations.run(run_dir, '--num_rounds=4', '--mechanism=tree')
  result = executing.execute(audit, f'--run_dir={run_dir}', '--first_rounds=3')
  assert result.returncode == 0, result.stderr
  assert 'a known seed, and so no guarantee' in result.stdout
  assert [line.split()[:3] for line in result.stdout.splitlines()[2:4]] == [
    ['all', 'tff', '3'],
    ['all', 'simulation', '3'],
  ]


@pytest.mark.parametrize(
  'arguments, message',
  [
    (('--run_dir=nowhere',), 'nowhere'),
    (('--run_dir=nowhere', '--mechanism=tree'), '--mechanism'),
    ((), '--target_delta'),
    ((*PLAN, '--first_rounds=13'), 'first_rounds'),
    ((*PLAN, '--storage=cloud'), '--storage'),
    (('--mechanism=laplace', *PLAN[1:]), 'laplace'),
  ],
)
def test_audit_refuses_wrong_arguments(arguments, message):
  result = executing.execute(audit, *arguments)
  assert result.returncode == 2
  assert message in result.stderr
