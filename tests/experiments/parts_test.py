"""Simulations whose parts have mechanisms of their own, by flags."""

import json
import shlex

import pytest
from absl import flags as absl_flags

from experiments import settings
from experiments import simulate
from experiments.comparing import cells
from experiments.comparing import grid
from experiments.options import privacy as privacy_options
from tests import executing
from tff_dp_aggregators.accounting.programs import program
from tff_dp_aggregators.accounting.programs import report as report_program
from tff_dp_aggregators.accounting.programs import table
from tff_dp_aggregators.strategies import registry

CLIENTS = ('--num_clients=24', '--clients_per_round=4', '--num_rounds=2')
SHARED = (*CLIENTS, '--min_separation=2', '--target_delta=1e-3')
BODY = '--part=body: weights=0, mechanism=tree, clip_norm=0.3, share=0.75'
REST = '--part=rest: weights=*, mechanism=laplace, clip_norm=0.1, share=0.25'


def _settings(*arguments):
  given = {each.split('=')[0] for each in arguments}
  shared = [each for each in SHARED if each.split('=')[0] not in given]
  values = program.values_of(settings.groups(), [*shared, *arguments])
  return settings.from_flags(values)


def _mechanism(*arguments):
  return _settings(*arguments).privacy.mechanism


def test_a_run_spends_its_target_and_its_report_is_verified(tmp_path):
  run_dir = tmp_path / 'run'
  result = executing.execute(
    simulate, *SHARED, BODY, REST, '--target_epsilon=5', f'--run_dir={run_dir}'
  )
  assert result.returncode == 0, result.stderr
  assert 'for body' in result.stdout and 'for rest' in result.stdout
  assert 'part body: 640 parameters, in 0 [64, 10].' in result.stderr
  assert 'part rest: 10 parameters, in 1 [10].' in result.stderr
  said = executing.execute(report_program, f'--run_dir={run_dir}', '--format=json')
  assert said.returncode == 0, said.stderr
  report = json.loads(said.stdout)
  assert report['guarantee']['epsilon'] == pytest.approx(5, rel=1e-3)
  assert report['guarantee']['epsilon'] <= 5
  parts = report['mechanism']['parts']
  assert [part['weights'] for part in parts] == [['0'], ['1']]
  assert report == json.loads((run_dir / 'report.json').read_text())
  verified = executing.execute(report_program, f'--verify={run_dir}/report.json')
  assert verified.returncode == 0, verified.stdout
  parts[1]['clip_norm'] = 0.2
  (run_dir / 'altered.json').write_text(json.dumps(report))
  found = executing.execute(report_program, f'--verify={run_dir}/altered.json')
  assert found.returncode == 1
  assert 'mechanism.parts[1].clip_norm' in found.stdout
  # The same flags find the run finished, others are refused.
  again = executing.execute(
    simulate, *SHARED, BODY, REST, '--target_epsilon=5', f'--run_dir={run_dir}'
  )
  assert again.returncode == 0 and 'nothing was trained' in again.stderr
  other = executing.execute(
    simulate,
    *SHARED,
    BODY,
    REST.replace('0.1', '0.2'),
    '--target_epsilon=5',
    f'--run_dir={run_dir}',
  )
  assert other.returncode == 2 and 'begun with other settings' in other.stderr


def test_shares_and_options_reach_the_parts():
  made = _mechanism(
    '--num_rounds=8',
    '--part=a: weights=0, mechanism=tree, clip_norm=0.3, share=0.8, restart_every=4',
    '--part=b: weights=1 2*, mechanism=banded, clip_norm=1, share=0.2, num_bands=2',
  )
  first, second = made.parts
  assert first.weights == ('0',) and second.weights == ('1', '2*')
  assert dict(first.mechanism.options) == {'restart_every': 4}
  assert dict(second.mechanism.options) == {'num_bands': 2}
  assert made.shares == pytest.approx({'a': 0.8, 'b': 0.2})
  assert made.epsilon(1e-3) == pytest.approx(8, rel=1e-9)


def test_without_shares_they_are_equal_and_the_default_is_that_of_mechanism():
  chosen = _settings(
    '--part=a: weights=0, clip_norm=0.3', '--part=b: weights=*,clip_norm=1'
  )
  assert chosen.privacy.mechanism.shares == pytest.approx({'a': 0.5, 'b': 0.5})
  assert {part.mechanism.name for part in chosen.privacy.mechanism.parts} == {'banded'}
  assert chosen.privacy.target_epsilon == 8 and chosen.privacy.clip_norm is None
  assert chosen.flags['clip_norm'] is None


def test_noise_is_that_of_each_part():
  chosen = _settings(
    '--part=a: weights=0, clip_norm=0.3, noise_multiplier=2',
    '--part=b: weights=*, clip_norm=1, noise_multiplier=3.5',
  )
  parts = chosen.privacy.mechanism.parts
  assert [part.mechanism.noise_multiplier for part in parts] == [2.0, 3.5]
  assert chosen.privacy.target_epsilon is None


def test_the_command_to_go_on_with_has_each_part():
  command = shlex.split(_settings(BODY, REST).command)
  assert [each for each in command if each.startswith('--part=')] == [BODY, REST]


def test_each_run_of_a_comparison_has_the_parts(tmp_path):
  values = absl_flags.FlagValues()
  settings.define(values)
  values(['compare', *SHARED, BODY, REST])
  make = cells.Maker(str(tmp_path), cells.given(values, ['part']))
  (cell,) = make.cells([grid.Point((('target_epsilon', '3'),), ())], [5])
  chosen = cells.settings_of((*SHARED, *cell.arguments)).privacy
  assert [part.name for part in chosen.mechanism.parts] == ['body', 'rest']
  assert chosen.target_epsilon == 3
  assert cells._noise(chosen) == (None, None)


NOISY = (
  '--part=a: weights=0, clip_norm=0.3, noise_multiplier=2',
  '--part=b: weights=*, clip_norm=1, noise_multiplier=3',
)


@pytest.mark.parametrize(
  ('arguments', 'message'),
  [
    ((BODY,), '--part: a joint mechanism has two parts or more'),
    (('--part=a: clip_norm=1', REST), 'needs weights'),
    (
      ('--part=a: weights=0 mechanism=tree, clip_norm=1', REST),
      'needs weights, patterns without an equals sign',
    ),
    (
      ('--part=a: weights=0, clip_norm=inf', REST),
      'clip_norm of part a must be positive and finite',
    ),
    (
      ('--part=a: weights=0, clip_norm=1, mechanism=skellam', REST),
      'a has skellam noise.*Give noise of real numbers',
    ),
    (('--part=a: weights=0, clip_norm=1', REST), 'shares must be given for each part'),
    ((BODY.replace('0.75', '0.8'), REST), 'be 1 in sum, or for none; got'),
    ((NOISY[0], '--part=b: weights=*, clip_norm=1'), 'b has noise_multiplier=None'),
    ((*NOISY, '--target_epsilon=3'), '--target_epsilon is for noise that is found'),
    ((BODY, REST, '--adjacency=replace_one'), '--adjacency=replace_one does not go'),
  ],
)
def test_parts_that_cannot_be_are_refused(arguments, message):
  with pytest.raises(ValueError, match=message):
    _settings(*arguments)


_ONE_FOR_ALL = {
  'mechanism': 'tree',
  'strategy_file': 'a.json',
  'clipped_count_stddev': '2',
  'workload': 'server',
  'clipping': 'fixed',
  'clip_norm': '0.3',
  'clip_order': '1',
  'target_quantile': '0.5',
  'clip_learning_rate': '0.1',
  'noise_multiplier': '2',
  'simulated_cohort_scale': '2',
  'noise_site': 'local',
  'server_noise_multiplier': '2',
  'min_clients': '4',
  'max_clients': '4',
  'dimension': '4',
  'bits': '9',
  'num_bands': '2',
}


@pytest.mark.few(6)
@pytest.mark.parametrize('name', _ONE_FOR_ALL)
def test_flags_of_one_mechanism_for_all_weights_are_refused(name):
  with pytest.raises(ValueError, match=f'--{name} does not go with --part'):
    _settings(BODY, REST, f'--{name}={_ONE_FOR_ALL[name]}')


def test_those_are_all_flags_of_one_mechanism():
  go = {'part', 'target_epsilon', 'target_rho', 'target_delta'}
  go |= {'accountant', 'adjacency'}
  others = {*privacy_options.names(), *table.names(table.placement())} - go
  assert others - set(registry.options()) == set(_ONE_FOR_ALL) - {'num_bands'}


def test_patterns_are_held_against_the_model_before_anything_is_written(tmp_path):
  result = executing.execute(
    simulate,
    *SHARED,
    BODY,
    REST.replace('weights=*', 'weights=2'),
    f'--run_dir={tmp_path}/run',
  )
  assert result.returncode == 2
  assert 'the weight 1 is of no part' in result.stderr
  assert '0 [64, 10], 1 [10]' in result.stderr
  assert not (tmp_path / 'run' / 'config.json').exists()
