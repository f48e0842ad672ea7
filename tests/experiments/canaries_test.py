"""Simulations with `--audit_canaries`.

Claims:

* Canaries are among the clients that cohorts are drawn from, whichever way, and that
  sampling probabilities are of.
* A run says what was reached, and its report, printed again, has the section; numbers
  that were changed are found.
* What does not go with canaries is refused by the flags' names, before anything is
  loaded.
"""

import json

import pytest
from absl import flags as absl_flags

from experiments import settings
from experiments import simulate
from tests import executing
from tff_dp_aggregators.accounting.programs import report as report_program

TINY = ('--num_clients=24', '--clients_per_round=10', '--num_rounds=6')
CANARIES = '--audit_canaries=26'


def _settings(*arguments):
  values = absl_flags.FlagValues()
  settings.define(values)
  values(['simulate', *arguments])
  return settings.from_flags(values)


def test_canaries_are_clients_of_whom_cohorts_are_drawn():
  drawn = _settings(*TINY, CANARIES, '--sampling=poisson', '--mechanism=gaussian')
  assert drawn.participation.schema.sampling_probability == 10 / 50
  assert drawn.flags['num_clients'] == 24
  # These limits take 50 clients, which there are with canaries alone.
  limited = (*TINY, '--min_separation=5', '--noise_multiplier=1')
  assert _settings(*limited, CANARIES).participation.schedule(50).num_clients == 50
  with pytest.raises(ValueError, match='50'):
    _settings(*limited)


def test_a_run_says_what_an_attacker_reached(tmp_path):
  run_dir = tmp_path / 'run'
  result = executing.execute(
    simulate,
    *('--num_clients=24', '--clients_per_round=60', '--num_rounds=2'),
    *('--min_separation=2', '--noise_multiplier=0.1', '--mechanism=gaussian'),
    '--audit_confidence=0.9',
    '--audit_canaries=96',
    f'--run_dir={run_dir}',
  )
  assert result.returncode == 0, result.stderr
  report = json.loads((run_dir / 'report.json').read_text('utf-8'))
  found = report['canaries']
  assert found['num_canaries'] == 96 and found['confidence'] == 0.9
  reached = max(each['epsilon'] for each in found['bounds'])
  assert 0 < reached < report['guarantee']['epsilon']
  assert 'An attacker with 96 canaries showed, with confidence 0.9,' in result.stdout
  assert f'at least {reached - 5e-5:.4f}' in result.stdout
  printed = executing.execute(report_program, f'--run_dir={run_dir}')
  assert printed.stdout == (run_dir / 'report.md').read_text('utf-8')
  assert 'What an attacker with canaries reached' in printed.stdout
  path = run_dir / 'report.json'
  assert executing.execute(report_program, f'--verify={path}').returncode == 0
  found['bounds'][1]['epsilon'] += 0.1
  path.write_text(json.dumps(report), 'utf-8')
  assert executing.execute(report_program, f'--verify={path}').returncode == 1


@pytest.mark.parametrize(
  ('arguments', 'message'),
  [
    (['--mechanism=none', '--clipping=none'], 'no epsilon is claimed'),
    (['--clipping=adaptive'], 'give a fixed clip norm'),
    (
      ['--mechanism=gaussian', '--noise_site=clients', '--secret_noise'],
      'Gaussian noise of the server',
    ),
    (['--mechanism=laplace', '--noise_multiplier=90'], 'Gaussian noise of the server'),
    (['--simulated_cohort_scale=2'], 'larger cohort'),
    (['--nopacked_simulation'], 'one by one'),
    (['--inner_aggregator=secure_sum'], 'one by one'),
    (['--zeroing_norm=1'], 'zeroing_norm'),
  ],
)
def test_what_does_not_go_with_canaries_is_refused(arguments, message, tmp_path):
  run_dir = f'--run_dir={tmp_path}/run'
  result = executing.execute(
    simulate, *TINY, '--min_separation=2', CANARIES, *arguments, run_dir
  )
  assert result.returncode == 2
  assert message in result.stderr and '--audit_canaries' in result.stderr
  assert not (tmp_path / 'run').exists()


@pytest.mark.parametrize('flag', ['audit_confidence=0.9', 'audit_canaries=0'])
def test_wrong_numbers_are_refused_by_their_names(flag, tmp_path):
  result = executing.execute(simulate, f'--{flag}', f'--run_dir={tmp_path}/run')
  assert result.returncode == 2 and flag.split('=')[0] in result.stderr
