"""`--audit_canaries`: canaries are drawn as clients, and the report has the bounds."""

import json

import pytest

from tests.experiments import simulations

TINY = ('--num_clients=24', '--clients_per_round=10', '--num_rounds=6')
CANARIES = '--audit_canaries=26'


def test_canaries_count_as_clients_for_cohorts():
  sampled = ('--sampling=poisson', '--mechanism=gaussian')
  poisson = simulations.settings_of(*TINY, CANARIES, *sampled)
  assert poisson.participation.schema.sampling_probability == 10 / 50
  assert poisson.flags['num_clients'] == 24
  # These limits need 50 clients, which there are only with the canaries.
  limited = (*TINY, '--min_separation=5', *sampled[1:], '--noise_multiplier=1')
  chosen = simulations.settings_of(*limited, CANARIES)
  assert chosen.participation.schedule(50).num_clients == 50
  with pytest.raises(ValueError, match='need 50 clients .* num_clients=24 is too few'):
    simulations.settings_of(*limited)


@pytest.mark.slow  # Tests of `learning` attack runs as well.
def test_report_states_epsilon_shown_by_attacker(tmp_path):
  result = simulations.run(
    tmp_path,
    *('--num_clients=24', '--clients_per_round=60', '--num_rounds=2'),
    *('--min_separation=2', '--noise_multiplier=0.1', '--mechanism=gaussian'),
    '--audit_confidence=0.9',
    '--audit_canaries=96',
  )
  report = simulations.read(tmp_path, 'report')
  canaries = report['canaries']
  assert canaries['num_canaries'] == 96 and canaries['confidence'] == 0.9
  shown = max(each['epsilon'] for each in canaries['bounds'])
  assert 0 < shown < report['guarantee']['epsilon']
  assert 'An attacker with 96 canaries showed, with confidence 0.9,' in result.stdout
  assert f'at least {shown - 5e-5:.4f}' in result.stdout
  assert simulations.reported(f'--run_dir={tmp_path}') == report
  path = tmp_path / 'report.json'
  assert simulations.verifies(path)[0]
  canaries['bounds'][1]['epsilon'] += 0.1
  path.write_text(json.dumps(report), 'utf-8')
  assert not simulations.verifies(path)[0]


@pytest.mark.parametrize(
  ('arguments', 'message'),
  [
    (['--mechanism=none', '--clipping=none'], 'for Gaussian noise of the server'),
    (['--mechanism=laplace', '--noise_multiplier=90'], 'Gaussian noise of the server'),
    (['--simulated_cohort_scale=2'], 'larger cohort'),
    (['--audit_canaries=0'], 'audit_canaries'),
  ],
)
def test_flags_that_conflict_with_canaries_are_refused(arguments, message, tmp_path):
  run_dir = f'--run_dir={tmp_path}/run'
  shared = (*TINY, '--min_separation=2', run_dir)
  canaries = () if '--audit_canaries=0' in arguments else (CANARIES,)
  error = simulations.refusal(*shared, *canaries, *arguments)
  assert message in error and 'audit_canaries' in error
  assert not (tmp_path / 'run').exists()
