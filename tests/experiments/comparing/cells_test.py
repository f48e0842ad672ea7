"""Cells of a comparison, and the choice of tuned values with its privacy cost."""

import json
import math
import os

import dp_accounting
import pytest

from experiments import settings
from experiments.comparing import cells
from experiments.comparing import grid
from tests.experiments.data import own_data
from tff_dp_aggregators import sampling
from tff_dp_aggregators import strategies
from tff_dp_aggregators.accounting import accountants
from tff_dp_aggregators.accounting.programs import program
from tff_dp_aggregators.learning.runs import run_directory

POINT = grid.Point({'mechanism': 'gaussian'})


@pytest.fixture
def data(tmp_path):
  return own_data.write_csv(tmp_path / 'data.csv')


def _maker(data, output):
  flags = {'data': data, 'client_column': 'who', 'label_column': 'bought'}
  flags |= {'clients_per_round': 2, 'noise_multiplier': 1}
  return cells.Maker(
    str(output), {name: (f'--{name}={value}',) for name, value in flags.items()}
  )


def _job(cell):
  facts, checksums = cell.settings.facts, cell.settings.checksums
  return {'arguments': cell.arguments, 'facts': facts, 'checksums': checksums}


def _change_first_row(data):
  own_data.write_csv(data, [{**own_data.ROWS[0], 'age': 21}, *own_data.ROWS[1:]])


def test_maker_refuses_data_that_changed_since_earlier_runs(data, tmp_path):
  output = tmp_path / 'output'
  cell = _maker(data, output).cell(POINT, 1)
  os.makedirs(cell.directory)
  facts = run_directory.recorded_data_facts(cell.settings.facts)
  with open(os.path.join(cell.directory, 'config.json'), 'w') as file:
    json.dump({'flags': cell.settings.flags, 'data_facts': facts}, file)
  # Without a ledger the run has drawn no noise, and would start anew on other data.
  open(os.path.join(cell.directory, run_directory.LEDGER), 'w').close()
  assert _maker(data, output).cell(POINT, 1).directory == cell.directory
  _change_first_row(data)
  with pytest.raises(program.WrongUsage) as error:
    _maker(data, output).cell(POINT, 1)
  assert 'seed=1: ' in str(error.value)
  assert 'data_facts.checksum of all rows: ' in str(error.value)


def test_data_changed_during_comparison_are_refused(data, tmp_path):
  maker = _maker(data, tmp_path / 'output')
  cell = maker.cell(POINT, 1)
  _change_first_row(data)
  with pytest.raises(program.WrongUsage, match='have changed since the comparison beg'):
    maker.cell(POINT, 2)
  with pytest.raises(ValueError, match='have changed since the comparison began'):
    cells.train(_job(cell), lambda: False)


def _save_strategy(path, bands):
  strategies.BandedToeplitz.square_root(4, num_bands=bands).save(str(path))


def _save_cohorts(path, seed):
  limits = strategies.Participation(4, min_separation=2)
  sampling.RandomEligible(limits, 20, 5, seed=seed).save(str(path))


@pytest.mark.parametrize(
  ('flag', 'save'),
  [('strategy_file', _save_strategy), ('schedule_file', _save_cohorts)],
)
def test_file_with_other_content_than_that_of_earlier_runs_is_refused(
  flag, save, tmp_path
):
  path = tmp_path / 'file.npz'
  save(path, 3)
  given = {flag: path, 'num_clients': 20, 'noise_multiplier': 1}
  if flag == 'strategy_file':
    given |= {'num_rounds': 4, 'clients_per_round': 5, 'min_separation': 2}
  arguments = {name: (f'--{name}={value}',) for name, value in given.items()}
  maker = cells.Maker(str(tmp_path / 'output'), arguments)
  cell = maker.cell(grid.Point({}), 1)
  config = {
    'flags': cell.settings.flags,
    'privacy': {'mechanism': cell.settings.privacy.mechanism.to_json()},
    'training': {'schedule': cell.settings.participation.schedule(20).to_json()},
  }
  os.makedirs(cell.directory)
  with open(os.path.join(cell.directory, 'config.json'), 'w') as file:
    json.dump(config, file)
  open(os.path.join(cell.directory, run_directory.LEDGER), 'w').close()
  assert maker.cell(grid.Point({}), 1) == cell
  path.unlink()
  save(path, 4)
  with pytest.raises(program.WrongUsage, match=f'the file of --{flag} is not .* Put'):
    maker.cell(grid.Point({}), 1)
  with pytest.raises(ValueError, match=f'{flag}.* have changed since the comp'):
    cells.train(_job(cell), lambda: False)


def test_stop_before_the_first_round_is_no_error(data, tmp_path):
  cell = _maker(data, tmp_path / 'output').cell(POINT, 1)
  job = {**_job(cell), 'directory': cell.directory, 'not_covered': ()}
  asked = iter([False])
  cells.train(job, lambda: next(asked, True))
  assert cells.after_run(cell, '', is_stopped=True).status == cells.WAITING


def test_column_names_may_contain_commas(tmp_path):
  rows = [{'who': i % 7, 'x': i, 'y': i % 2, 'z': i} for i in range(70)]
  path = own_data.write_csv(tmp_path / 'data.csv', rows)
  text = path.read_text().replace('who,x,y,z', 'who,"x, y",y,z')
  path.write_text(text)
  arguments = ['--feature_columns="x, y",z']
  values = program.values_of(settings.groups(), arguments)
  (flag,) = program.given(values, ['feature_columns'])
  read = cells.settings_of(
    [
      f'--data={path}',
      '--client_column=who',
      '--label_column=y',
      '--clients_per_round=2',
      flag,
    ]
  )
  assert read.data.files.feature_columns == ('x, y', 'z')


def test_read_names_unreadable_run_and_remedy(data, tmp_path):
  cell = _maker(data, tmp_path / 'output').cell(POINT, 1)
  os.makedirs(cell.directory)
  rounds = cell.settings.flags['num_rounds']
  lines = ['round,test_accuracy,round_seconds']
  lines += [f'{number},0.5,1' for number in range(rounds)]
  for name, content in (
    ('metrics.csv', '\n'.join(lines) + '\n'),
    ('report.json', '{'),
  ):
    with open(os.path.join(cell.directory, name), 'w') as file:
      file.write(content)
  with pytest.raises(program.WrongUsage, match='seed=1 cannot be read .* Remove it'):
    cells.read(cell)


RATES = ('0.1', '0.3', '1')
TUNED = grid.Point({'mechanism': 'tree', 'target_epsilon': '2'})
NONE = grid.Point({'mechanism': 'none'})


def _axes(text):
  values = program.values_of(settings.groups(), [])
  return grid.axes([text], values, {}, '--tune')


@pytest.fixture(scope='module')
def axes():
  return _axes(f'server_learning_rate={",".join(RATES)}')


@pytest.fixture(scope='module')
def make(tmp_path_factory):
  return cells.Maker(str(tmp_path_factory.mktemp('output')), {})


def trials(make, axes, accuracies, point=TUNED, seeds=1):
  return [
    cells.Result(cell, cells.FINISHED, measures={'test_accuracy': each})
    for cell, each in zip(make.trials([point], axes, seeds), accuracies)
  ]


def test_choose_picks_value_with_best_metric(make, axes):
  choice = cells.choose(trials(make, axes, [0.5, 0.8, 0.7]))
  assert choice.settings == (('server_learning_rate', '0.3'),)
  assert 'the best of 3 runs' in choice.sentence


def test_choose_averages_over_seeds(make, axes):
  accuracies = [0.5, 0.9, 0.7, 0.5, 0.3, 0.7]
  choice = cells.choose(trials(make, axes, accuracies, seeds=2))
  assert choice.settings == (('server_learning_rate', '1'),)
  assert 'the best of 6 runs' in choice.sentence


def test_choose_ranks_diverged_runs_last(make, axes):
  choice = cells.choose(trials(make, axes, [math.nan, 0.1, math.nan]))
  assert choice.settings == (('server_learning_rate', '0.3'),)


def test_choose_returns_none_until_all_runs_are_finished(make, axes):
  tried = trials(make, axes, [0.5, 0.8, 0.7])
  tried[2] = cells.Result(tried[2].cell, cells.BEGUN)
  assert cells.choose(tried) is None


def test_epsilon_of_choice_composes_all_runs(make, axes):
  choice = cells.choose(trials(make, axes, [0.5, 0.8, 0.7]))
  mechanism = make.cell(TUNED, 1).settings.privacy.mechanism
  # Four Gaussian mechanisms are one whose noise is half as loud.
  halved = dp_accounting.GaussianDpEvent(mechanism.effective_noise_multiplier / 2)
  expected = accountants.epsilon(halved, 1e-5)
  assert choice.epsilon == pytest.approx(expected, rel=1e-9)
  assert choice.epsilon > 2
  assert f'at most epsilon = {math.ceil(expected * 1e4) / 1e4:.4f}' in choice.sentence
  assert '(composition of all 4)' in choice.sentence
  # The split is the same in all runs: no client trains in one and tests in another.
  seeds = (cells.FIRST_TUNING_SEED, cells.FIRST_TUNING_SEED + 1, 1, 2)
  assert len({make.cell(TUNED, seed).settings.data for seed in seeds}) == 1
  none = cells.choose(trials(make, axes, [0.5, 0.8, 0.7], NONE))
  assert none.epsilon is None and none.sentence is None


def test_every_tuning_run_has_its_own_noise_seed(make, axes):
  # Noise follows from the seed; the same noise would cancel in differences of runs.
  tried = trials(make, axes, [0.5] * 6, seeds=2)
  seeds_used = [each.cell.settings.run.seed for each in tried]
  assert len(tried) == 6
  assert len(set(seeds_used)) == 6
  # Cells of the comparison have the seeds from 1 on.
  assert not set(seeds_used) & set(range(1, 1000))


def test_epsilon_of_choice_composes_different_mechanisms(make):
  axes = _axes('target_epsilon=1,3')
  point = grid.Point({'mechanism': 'tree'})
  choice = cells.choose(trials(make, axes, [0.5, 0.8], point))
  trained = (make.cell(point, 1, tuned=(('target_epsilon', each),)) for each in '13')
  multipliers = (
    each.settings.privacy.mechanism.effective_noise_multiplier for each in trained
  )
  total = sum(2 / each**2 for each in multipliers)
  expected = accountants.epsilon(dp_accounting.GaussianDpEvent(total**-0.5), 1e-5)
  assert choice.epsilon == pytest.approx(expected, rel=1e-9)
  # Either may be chosen and trained once more, so both count twice.
  assert '(composition of all 4)' in choice.sentence


@pytest.mark.parametrize(
  ('tuned', 'expected'),
  [
    ('simulated_cohort_scale=10,20', None),
    ('simulated_cohort_scale=1,10', math.inf),
    ('sampling=poisson,fixed_size', math.inf),
  ],
)
def test_runs_without_common_guarantee_are_not_composed(tuned, expected, tmp_path):
  axes = _axes(tuned)
  maker = cells.Maker(str(tmp_path), {'noise_multiplier': ('--noise_multiplier=1',)})
  point = grid.Point({'mechanism': 'gaussian'})
  choice = cells.choose(trials(maker, axes, [0.5, 0.8], point))
  assert choice.epsilon == expected
  if expected is None:
    assert choice.sentence is None
  else:
    assert 'which together have no guarantee that is known' in choice.sentence
