"""Cells of a comparison: all of them are on the same data, and have the same flags."""

import json
import os

import pytest

from experiments import settings
from experiments.comparing import cells
from experiments.comparing import grid
from experiments.comparing import running
from tests.experiments.data import own_data
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
  facts = run_directory.told_of_data(begun.settings.facts)
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
