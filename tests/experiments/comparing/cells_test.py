"""Cells of a comparison, and the choice among them: which one, and what it spends."""

import dataclasses
import json
import math
import os
import types

import dp_accounting
import pytest

from experiments import settings
from experiments import training
from experiments.comparing import cells
from experiments.comparing import grid
from experiments.comparing import running
from tests.experiments.data import own_data
from tff_dp_aggregators.accounting import accountants
from tff_dp_aggregators.accounting.programs import program
from tff_dp_aggregators.learning.runs import run_directory

POINT = grid.Point((('mechanism', 'gaussian'),))


@pytest.fixture
def data(tmp_path):
  return own_data.write_csv(tmp_path / 'data.csv')


def _make(data, output):
  given = {'data': data, 'client_column': 'who', 'label_column': 'bought'}
  given |= {'clients_per_round': 2, 'noise_multiplier': 1}
  return cells.Maker(
    str(output), {name: (f'--{name}={value}',) for name, value in given.items()}
  )


def _change(data):
  own_data.write_csv(data, [{**own_data.ROWS[0], 'age': 21}, *own_data.ROWS[1:]])


def test_runs_on_data_that_changed_are_not_joined_with_others(data, tmp_path):
  output = tmp_path / 'output'
  begun = _make(data, output).cell(POINT, 1)
  os.makedirs(begun.directory)
  facts = run_directory.recorded_data_facts(begun.settings.facts)
  with open(os.path.join(begun.directory, 'config.json'), 'w') as file:
    json.dump({'flags': begun.settings.flags, 'data_facts': facts}, file)
  # Only a run that never drew noise is begun anew with other data.
  open(os.path.join(begun.directory, run_directory.LEDGER), 'w').close()
  assert _make(data, output).cell(POINT, 1).directory == begun.directory
  _change(data)
  with pytest.raises(program.WrongUsage) as error:
    _make(data, output).cell(POINT, 1)
  assert 'seed=1: ' in str(error.value)
  assert 'data_facts.checksum of all rows: ' in str(error.value)


def test_data_that_change_while_a_comparison_runs_are_noticed(data, tmp_path):
  make = _make(data, tmp_path / 'output')
  cell = make.cell(POINT, 1)
  _change(data)
  with pytest.raises(program.WrongUsage, match='have changed since the comparison beg'):
    make.cell(POINT, 2)
  job = {'arguments': cell.arguments, 'facts': cell.settings.facts}
  with pytest.raises(ValueError, match='have changed since the comparison began'):
    running._train(job, lambda: False)


def test_data_of_a_task_are_read_once_for_the_cells_of_a_process(monkeypatch):
  read, trained = [], []

  def settings_of(arguments):
    cell = made([*arguments, '--num_clients=20', '--clients_per_round=2'])
    task = dataclasses.replace(cell.task, load=lambda data: read.append(data) or data)
    return dataclasses.replace(cell, task=task)

  def train(cell, data, *unused):
    trained.append(data.seed)
    return types.SimpleNamespace(is_finished=True)

  made = cells.settings_of
  monkeypatch.setattr(cells, 'settings_of', settings_of)
  monkeypatch.setattr(training, 'train', train)
  monkeypatch.setattr(running, '_populations', {})
  for arguments in ([], ['--mechanism=tree'], ['--split_seed=2'], []):
    job = {'arguments': arguments, 'facts': None, 'directory': '', 'not_covered': ()}
    assert running._train(job, lambda: False)
  assert trained == [1, 1, 2, 1]
  assert [each.seed for each in read] == [1, 2, 1]


def test_names_of_columns_may_have_commas(tmp_path):
  rows = [{'who': i % 7, 'x': i, 'y': i % 2, 'z': i} for i in range(70)]
  path = own_data.write_csv(tmp_path / 'data.csv', rows)
  text = path.read_text().replace('who,x,y,z', 'who,"x, y",y,z')
  path.write_text(text)
  arguments = ['--feature_columns="x, y",z']
  values = program.values_of(settings.groups(), arguments)
  given = cells.given(values, ['feature_columns'])
  found = cells.settings_of(
    [
      f'--data={path}',
      '--client_column=who',
      '--label_column=y',
      '--clients_per_round=2',
      *given['feature_columns'],
    ]
  )
  assert found.data.files.feature_columns == ('x, y', 'z')


def test_a_run_that_cannot_be_read_is_named_with_the_remedy(data, tmp_path):
  cell = _make(data, tmp_path / 'output').cell(POINT, 1)
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
TUNED = grid.Point((('mechanism', 'tree'), ('target_epsilon', '2')))
NONE = grid.Point((('mechanism', 'none'),))


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
  tried = make.cells(
    [point], cells.tuning_seeds(seeds), cells.TUNING, cells.combinations(axes)
  )
  return [
    cells.Result(cell, cells.FINISHED, measures={'test_accuracy': each})
    for cell, each in zip(tried, accuracies)
  ]


def test_the_best_by_the_metric_is_chosen(make, axes):
  choice = cells.choose(trials(make, axes, [0.5, 0.8, 0.7]), axes, make)
  assert choice.settings == (('server_learning_rate', '0.3'),)
  assert choice.at_edge == ()
  assert choice.num_runs == 3


def test_several_seeds_are_averaged(make, axes):
  accuracies = [0.5, 0.9, 0.7, 0.5, 0.3, 0.7]
  choice = cells.choose(trials(make, axes, accuracies, seeds=2), axes, make)
  assert choice.settings == (('server_learning_rate', '1'),)
  assert choice.at_edge == ('server_learning_rate',)
  assert choice.num_runs == 6


def test_a_run_that_diverged_is_the_worst(make, axes):
  choice = cells.choose(trials(make, axes, [math.nan, 0.1, math.nan]), axes, make)
  assert choice.settings == (('server_learning_rate', '0.3'),)


def test_nothing_is_chosen_before_all_runs_are_finished(make, axes):
  tried = trials(make, axes, [0.5, 0.8, 0.7])
  tried[2] = cells.Result(tried[2].cell, cells.BEGUN)
  assert cells.choose(tried, axes, make) is None


def test_privacy_of_the_choice_is_that_of_all_runs_composed(make, axes):
  choice = cells.choose(trials(make, axes, [0.5, 0.8, 0.7]), axes, make)
  mechanism = make.cell(TUNED, 1).settings.privacy.mechanism
  # Four Gaussian mechanisms are one whose noise is half as loud.
  halved = dp_accounting.GaussianDpEvent(mechanism.effective_noise_multiplier / 2)
  expected = accountants.epsilon(halved, 1e-5)
  assert choice.epsilon == pytest.approx(expected, rel=1e-9)
  assert choice.epsilon > 2
  assert f'at most epsilon = {math.ceil(expected * 1e4) / 1e4:.4f}' in choice.sentence
  assert '(composition of all 4)' in choice.sentence
  seeds = (
    *cells.tuning_seeds(3),
    1,
    2,
  )  # Nobody trains in one and is tested on in another.
  assert len({make.cell(TUNED, seed).settings.data for seed in seeds}) == 1
  none = cells.choose(trials(make, axes, [0.5, 0.8, 0.7], NONE), axes, make)
  assert none.epsilon is None and none.sentence is None


def test_no_two_runs_that_are_composed_have_the_same_noise(make, axes):
  # Noise follows from the seed: shared, it would cancel in differences of runs.
  tried = trials(make, axes, [0.5] * 6, seeds=2)
  used = [each.cell.settings.run.seed for each in tried]
  assert len(tried) == 6
  assert len(set(used)) == 6
  assert not set(used) & set(range(1, 1000))


def test_mechanisms_that_differ_are_composed_as_well(make):
  axes = _axes('target_epsilon=1,3')
  point = grid.Point((('mechanism', 'tree'),))
  choice = cells.choose(trials(make, axes, [0.5, 0.8], point), axes, make)
  found = (make.cell(point, 1, tuned=(('target_epsilon', each),)) for each in '13')
  noise = (each.settings.privacy.mechanism.effective_noise_multiplier for each in found)
  total = sum(2 / each**2 for each in noise)
  expected = accountants.epsilon(dp_accounting.GaussianDpEvent(total**-0.5), 1e-5)
  assert choice.epsilon == pytest.approx(expected, rel=1e-9)
  # Either could have been chosen, so that both are counted once more.
  assert '(composition of all 4)' in choice.sentence


@pytest.mark.parametrize(
  ('tuned', 'expected'),
  [
    ('simulated_cohort_scale=10,20', None),
    ('simulated_cohort_scale=1,10', math.inf),
    ('sampling=poisson,fixed_size', math.inf),
  ],
)
def test_what_has_no_guarantee_or_another_is_not_composed(tuned, expected, tmp_path):
  axes = _axes(tuned)
  own = cells.Maker(str(tmp_path), {'noise_multiplier': ('--noise_multiplier=1',)})
  point = grid.Point((('mechanism', 'gaussian'),))
  choice = cells.choose(trials(own, axes, [0.5, 0.8], point), axes, own)
  assert choice.epsilon == expected
  if expected is None:
    assert choice.sentence is None
  else:
    assert 'which together have no guarantee that is known' in choice.sentence
