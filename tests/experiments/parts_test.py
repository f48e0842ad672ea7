"""Simulations by flags in which parts of the model have their own mechanisms."""

import json
import shlex

import pytest

from experiments import settings
from experiments.comparing import cells
from experiments.comparing import grid
from experiments.options import privacy as privacy_options
from tests.experiments import simulations
from tff_dp_aggregators.accounting.programs import program
from tff_dp_aggregators.accounting.programs import table
from tff_dp_aggregators.strategies import registry

CLIENTS = ('--num_clients=24', '--clients_per_round=4', '--num_rounds=2')
SHARED = (*CLIENTS, '--min_separation=2', '--target_delta=1e-3')
BODY = '--part=body: weights=0, mechanism=tree, clip_norm=0.3, share=0.75'
REST = '--part=rest: weights=*, mechanism=laplace, clip_norm=0.1, share=0.25'

NOISY = (
  '--part=a: weights=0, clip_norm=0.3, noise_multiplier=2',
  '--part=b: weights=*, clip_norm=1, noise_multiplier=3',
)


def _settings(*arguments):
  names = {each.split('=')[0] for each in arguments}
  shared = [each for each in SHARED if each.split('=')[0] not in names]
  return simulations.settings_of(*shared, *arguments)


def _mechanism(*arguments):
  return _settings(*arguments).privacy.mechanism


@pytest.mark.slow  # Tests of `learning` train parts as well.
def test_run_spends_target_and_report_verifies(tmp_path):
  run_dir = tmp_path / 'run'
  flags = (*SHARED, BODY, '--target_epsilon=5')
  result = simulations.run(run_dir, *flags, REST)
  assert 'for body' in result.stdout and 'for rest' in result.stdout
  report = simulations.reported(f'--run_dir={run_dir}')
  assert report == simulations.read(run_dir, 'report')
  assert 5 * (1 - 1e-3) < report['guarantee']['epsilon'] <= 5
  parts = report['mechanism']['parts']
  assert [part['weights'] for part in parts] == [['0'], ['1']]
  assert simulations.verifies(run_dir / 'report.json')[0]
  parts[1]['clip_norm'] = 0.2
  (run_dir / 'altered.json').write_text(json.dumps(report))
  is_verified, output = simulations.verifies(run_dir / 'altered.json')
  assert not is_verified and 'mechanism.parts[1].clip_norm' in output
  # The same flags find the run finished; other flags are refused.
  assert 'nothing was trained' in simulations.run(run_dir, *flags, REST).stderr
  changed = REST.replace('0.1', '0.2')
  error = simulations.refusal(*flags, changed, f'--run_dir={run_dir}')
  assert 'begun with other settings' in error


def test_shares_and_options_reach_the_parts():
  mechanism = _mechanism(
    '--num_rounds=8',
    '--part=a: weights=0, mechanism=tree, clip_norm=0.3, share=0.8, restart_every=4',
    '--part=b: weights=1 2*, mechanism=banded, clip_norm=1, share=0.2, num_bands=2',
  )
  first, second = mechanism.parts
  assert first.weights == ('0',) and second.weights == ('1', '2*')
  assert dict(first.mechanism.options) == {'restart_every': 4}
  assert dict(second.mechanism.options) == {'num_bands': 2}
  assert mechanism.shares == pytest.approx({'a': 0.8, 'b': 0.2})
  assert mechanism.epsilon(1e-3) == pytest.approx(8, rel=1e-9)


def test_shares_are_equal_and_mechanism_banded_by_default():
  chosen = _settings(
    '--part=a: weights=0, clip_norm=0.3', '--part=b: weights=*,clip_norm=1'
  )
  assert chosen.privacy.mechanism.shares == pytest.approx({'a': 0.5, 'b': 0.5})
  assert {part.mechanism.name for part in chosen.privacy.mechanism.parts} == {'banded'}
  assert chosen.privacy.target_epsilon == 8 and chosen.privacy.clip_norm is None
  assert chosen.flags['clip_norm'] is None


def test_each_part_has_its_own_noise_multiplier():
  chosen = _settings(*NOISY)
  parts = chosen.privacy.mechanism.parts
  assert [part.mechanism.noise_multiplier for part in parts] == [2.0, 3.0]
  assert chosen.privacy.target_epsilon is None


def test_resume_command_has_each_part():
  command = shlex.split(_settings(*NOISY).command)
  assert [each for each in command if each.startswith('--part=')] == [*NOISY]


def test_every_cell_of_a_comparison_has_the_parts(tmp_path):
  values = program.values_of(settings.groups(), [*SHARED, BODY, REST])
  make = cells.Maker(str(tmp_path), {'part': tuple(program.given(values, ['part']))})
  cell = make.cell(grid.Point({'target_epsilon': '3'}), 5)
  chosen = cells.settings_of((*SHARED, *cell.arguments)).privacy
  assert [part.name for part in chosen.mechanism.parts] == ['body', 'rest']
  assert chosen.target_epsilon == 3


@pytest.mark.parametrize(
  ('arguments', 'message'),
  [
    ((BODY,), '--part: a joint mechanism has two parts or more'),
    (
      ('--part=a: clip_norm=1', REST),
      'share, noise_multiplier, num_bands',
    ),
    (('--part=a: clip_norm=1', REST), 'missing required field `weights`'),
    (
      ('--part=a: weights=0, clip_norm=inf', REST),
      'clip_norm of part a must be positive and finite',
    ),
    (
      ('--part=a: weights=0, clip_norm=1, mechanism=skellam', REST),
      'skellam with noise_site=clients needs',
    ),
    (('--part=a: weights=0, clip_norm=1', REST), 'shares must be given for each part'),
    ((BODY.replace('0.75', '0.8'), REST), 'be 1 in sum, or for none; got'),
    ((*NOISY, '--target_epsilon=3'), '--target_epsilon is for noise that is found'),
    ((BODY, REST, '--adjacency=replace_one'), '--adjacency=replace_one does not go'),
  ],
)
def test_wrong_parts_are_refused(arguments, message):
  with pytest.raises(ValueError, match=message):
    _settings(*arguments)


_GO_WITH_PARTS = {'part', 'target_epsilon', 'target_rho', 'target_delta'}
_GO_WITH_PARTS |= {'accountant', 'adjacency', *registry.options()}
_ONE_FOR_ALL = {*privacy_options.names(), *table.names(table.placement())}
# Values of flags that take no number.
_VALUES = {'mechanism': 'tree', 'strategy_file': 'a.json', 'workload': 'server'}
_VALUES |= {'clipping': 'fixed', 'noise_site': 'local', 'target_quantile': '0.5'}


@pytest.mark.few(6)
@pytest.mark.parametrize('name', sorted(_ONE_FOR_ALL - _GO_WITH_PARTS) + ['num_bands'])
def test_flags_of_a_single_mechanism_are_refused_with_parts(name):
  with pytest.raises(ValueError, match=f'--{name} does not go with --part'):
    _settings(BODY, REST, f'--{name}={_VALUES.get(name, 2)}')


def test_weights_without_part_are_refused_before_config_is_written(tmp_path):
  rest = REST.replace('weights=*', 'weights=2')
  error = simulations.refusal(*SHARED, BODY, rest, f'--run_dir={tmp_path}/run')
  assert 'the weight 1 is of no part' in error
  assert not (tmp_path / 'run' / 'config.json').exists()
