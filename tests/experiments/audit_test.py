"""The audit program: its table, its exit codes, and what it refuses."""

import dataclasses
import json

import pytest

from experiments import audit
from tests import executing
from tests.experiments import simulations
from tff_dp_aggregators import accounting
from tff_dp_aggregators import strategies
from tff_dp_aggregators.accounting.programs import flags as flags_lib
from tff_dp_aggregators.accounting.programs import program
from tff_dp_aggregators.accounting.reports import sources
from tff_dp_aggregators.base import rounding
from tff_dp_aggregators.base import version
from tff_dp_aggregators.learning import audit as audit_lib
from tff_dp_aggregators.queries import grid

PLAN = (
  '--mechanism=banded',
  '--num_rounds=12',
  '--min_separation=4',
  '--noise_multiplier=2',
  '--target_delta=1e-6',
  '--runtime=simulation',
)


BALLS_IN_BINS = ('--sampling=balls_in_bins', '--cycle_length=4')


def test_plan_passes_audit_and_halved_noise_exits_with_1(monkeypatch):
  result = executing.execute(audit, *PLAN)
  assert result.returncode == 0, result.stderr
  row = ['all', 'simulation', '12', '1.1547', '1.1547', 'exact']
  assert row in [line.split()[:6] for line in result.stdout.splitlines()]
  assert 'Epsilon at delta = 1e-06, read: 4.15182' in result.stdout
  real = grid.add_noise
  monkeypatch.setattr(
    grid, 'add_noise', lambda sums, unit, stddev: real(sums, unit, stddev / 2)
  )
  result = executing.execute(audit, *PLAN)
  assert result.returncode == 1
  assert 'FAILED: all weights, run by simulation: ' in result.stdout


def test_epsilons_are_by_the_accountant_and_count_what_adaptive_clipping_releases():
  arguments = (*PLAN[1:], '--mechanism=gaussian', '--clipped_count_stddev=1.1')
  result = executing.execute(audit, *arguments, '--accountant=rdp')
  assert result.returncode == 0, result.stderr
  limits = strategies.Participation(12, min_separation=4)
  mechanism = accounting.Mechanism('gaussian', limits, noise_multiplier=2.0)
  epsilon = rounding.up(mechanism.epsilon(1e-6, accountant='rdp'), 4)[:-1]
  for name in ('claimed', 'read'):
    assert f'Epsilon at delta = 1e-06, {name}: {epsilon}' in result.stdout
  assert 'count of small norms (adaptive clipping) is not audited' in result.stdout


def test_epsilon_read_is_of_all_parts_together():
  parts = [f'--part={n}: weights={n}, clip_norm=1, mechanism=gaussian' for n in 'ab']
  target = ('--target_epsilon=2', '--first_rounds=12')
  result = executing.execute(audit, *PLAN[1:3], *PLAN[4:], *parts, *target)
  assert result.returncode == 0, result.stderr
  assert 'Epsilon at delta = 1e-06, claimed: 2.00000' in result.stdout
  assert 'Epsilon at delta = 1e-06, read: 2.0000' in result.stdout


def _audit_run(monkeypatch, **changes):
  """Audits a run with the mechanism of the plan and other inputs changed."""
  values = program.values_of(flags_lib.groups(), PLAN[:5])
  inputs = dataclasses.replace(flags_lib.planned(values), **changes)
  monkeypatch.setattr(audit.sources, 'from_run_dir', lambda run_dir: inputs)
  return executing.execute(audit, '--run_dir=r', '--first_rounds=1', PLAN[-1])


def test_run_with_noise_of_larger_cohort_is_refused(monkeypatch):
  cohort = sources.SimulatedCohort(scale=10, clients_per_round=5, num_clients=150)
  result = _audit_run(monkeypatch, simulated_cohort=cohort)
  assert result.returncode == 2
  assert '1/10 of the noise' in result.stderr


@pytest.mark.parametrize('code, is_other', [(None, True), (version.current(), False)])
def test_audit_warns_of_run_that_other_code_trained(monkeypatch, code, is_other):
  stated = None if code is None else f'tff_dp_aggregators {code}, tensorflow 1'
  result = _audit_run(monkeypatch, code_version=stated)
  assert result.returncode == 0, result.stderr
  assert ('unknown code trained the run' in result.stdout) == is_other


@pytest.mark.slow  # Tests of `learning` audit runs as well.
def test_run_passes_audit_unless_its_files_disagree(tmp_path, monkeypatch):
  run_dir, clip_norms, real = tmp_path / 'run', [], audit_lib.audit

  def recording(*arguments, clip_norm, **options):
    clip_norms.append(clip_norm)
    return real(*arguments, clip_norm=clip_norm, **options)

  monkeypatch.setattr(audit_lib, 'audit', recording)
  simulations.run(run_dir, '--num_rounds=4', '--mechanism=tree', '--clip_norm=0.3')
  result = executing.execute(audit, f'--run_dir={run_dir}', '--first_rounds=3')
  assert result.returncode == 0, result.stderr
  assert clip_norms == [0.3]
  warning, *_ = result.stdout.splitlines()
  assert 'a known seed: no guarantee' in warning
  assert [line.split()[:3] for line in result.stdout.splitlines()[3:5]] == [
    ['all', 'tff', '3'],
    ['all', 'simulation', '3'],
  ]
  config = simulations.read(run_dir, 'config')
  config['privacy']['mechanism']['noise_multiplier'] *= 2
  (run_dir / 'config.json').write_text(json.dumps(config))
  result = executing.execute(audit, f'--run_dir={run_dir}')
  assert result.returncode == 2
  assert 'round 0 of the ledger has the noise multiplier' in result.stderr


@pytest.mark.parametrize(
  'arguments, message',
  [
    (('--run_dir=nowhere',), 'nowhere'),
    (('--run_dir=nowhere', '--mechanism=tree'), '--mechanism'),
    ((), '--target_delta'),
    ((*PLAN, '--first_rounds=13'), 'first_rounds'),
    ((*PLAN, '--storage=cloud'), '--storage'),
    (('--mechanism=laplace', *PLAN[1:]), 'laplace'),
    (
      (*PLAN[:2], *PLAN[3:], *BALLS_IN_BINS, '--accountant=rdp'),
      '--accountant has no effect',
    ),
  ],
)
def test_audit_refuses_wrong_arguments(arguments, message):
  result = executing.execute(audit, *arguments)
  assert result.returncode == 2
  assert message in result.stderr
