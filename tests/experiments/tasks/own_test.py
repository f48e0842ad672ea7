"""Own data end to end: from a file to a finished run, which goes on and is checked."""

import csv
import dataclasses
import json
import os
import pathlib
import random
import re
import shlex
import warnings

import numpy as np
import pytest
from absl import flags

from experiments import metrics
from experiments import settings
from experiments import simulate
from experiments import training
from experiments.options import data as data_options
from experiments.tasks import own
from tests import executing
from tests.experiments.data import own_data
from tff_dp_aggregators.learning.runs import run_directory

DOCS = pathlib.Path(__file__).resolve().parents[3] / 'docs' / 'own_data.md'
ROWS = [
  {
    'who': f'client {i % 60}',
    'age': 20 + (37 * i) % 50,
    'colour': ['red', 'blue', 'green'][i % 3],
    'bought': 'yes' if (37 * i) % 50 > 25 else 'no',
  }
  for i in range(900)
]
COLUMNS = ('--client_column=who', '--label_column=bought')


@pytest.fixture(scope='module')
def data(tmp_path_factory):
  return own_data.write_csv(tmp_path_factory.mktemp('data') / 'my data.csv', ROWS)


def _settings(*arguments):
  values = flags.FlagValues()
  settings.define(values)
  values(['simulate', *arguments])
  return settings.from_flags(values)


def _simulate(data, run_dir, *arguments):
  return executing.execute(
    simulate,
    f'--data={data}',
    *COLUMNS,
    '--num_rounds=3',
    '--noise_multiplier=0.2',
    f'--run_dir={run_dir}',
    *arguments,
  )


@pytest.fixture(scope='module')
def finished(data, tmp_path_factory):
  run_dir = tmp_path_factory.mktemp('runs') / 'run'
  return run_dir, _simulate(data, run_dir)


def test_a_csv_is_trained_on_and_its_numbers_are_told_first(finished):
  run_dir, result = finished
  assert result.returncode == 0, result.stderr
  lines = result.stdout.splitlines()
  assert (
    lines[0]
    == 'The data, in exact numbers that no noise protects: do not publish them.'
  )
  assert '  clients: 55' in lines
  assert '  clients held out for testing: 5' in lines
  assert '  examples of a client (least, median, most): 15, 15.0, 15' in lines
  assert '  columns with a feature for each value: colour (3)' in lines
  assert '  labels: 2 classes' in lines
  assert (
    'Chosen for 55 clients: --clients_per_round=5, --min_separation=3, '
    '--target_delta=1e-05.'
  ) in lines
  assert any(line.startswith('Privacy spent in 3 of 3 rounds') for line in lines)


def test_config_tells_facts_that_are_marked_and_the_report_what_is_not_covered(
  finished, data
):
  run_dir, _ = finished
  # What is exact of the data is in the file that is not handed on.
  assert 'data_facts' not in json.loads((run_dir / 'config.json').read_text())
  config = run_directory.read_config(str(run_dir))
  assert config['data_facts']['protected'] is False
  assert config['data_facts']['clients'] == 55
  assert config['flags']['client_column'] == 'who'
  assert config['flags']['num_clients'] == 55
  assert config['flags']['task'] is None
  assert 'data' not in config['flags']
  assert len(config['not_covered']) == 3
  assert 'mean and standard deviation' in (run_dir / 'report.md').read_text()


def test_the_same_rows_elsewhere_in_another_order_are_the_same_run(finished, tmp_path):
  run_dir, _ = finished
  rows = list(ROWS)
  random.Random(1).shuffle(rows)
  moved = own_data.write_csv(tmp_path / 'moved.csv', rows)
  again = _simulate(moved, run_dir)
  assert again.returncode == 0, again.stderr
  assert 'finished before' in again.stderr


@pytest.mark.parametrize(
  ('change', 'arguments', 'message'),
  [
    ({}, ['--scaling=none'], "--scaling: None then, 'none' now"),
    ({}, ['--test_clients=0.2'], '--test_clients: None then, 0.2 now'),
    ({'age': 21}, [], 'data_facts.checksum of all rows: '),
  ],
)
def test_other_data_are_not_gone_on_with(
  change, arguments, message, finished, tmp_path
):
  run_dir, _ = finished
  rows = [{**ROWS[0], **change}, *ROWS[1:]]
  path = own_data.write_csv(tmp_path / 'my data.csv', rows)
  result = _simulate(path, run_dir, *arguments)
  assert result.returncode == 2
  assert message in result.stderr


def test_defaults_follow_from_the_number_of_clients(data):
  found = _settings(f'--data={data}', *COLUMNS, '--mechanism=tree')
  assert found.name == 'my_data-tree'
  assert found.flags['clients_per_round'] == 5
  assert found.flags['min_separation'] == 11
  assert found.flags['num_rounds'] == 100
  assert found.flags['model'] == 'logistic'
  given = _settings(
    f'--data={data}', *COLUMNS, '--mechanism=tree', '--clients_per_round=10'
  )
  assert given.flags['min_separation'] == 5


def test_recurrent_models_are_as_small_and_learn_as_fast_as_in_the_task_text(tmp_path):
  for name in 'abcdefghij':
    (tmp_path / f'{name}.txt').write_text(f'{name} writes so.\n' * 9)
  found = _settings(f'--data={tmp_path}', '--target_epsilon=8')
  text = _settings('--task=text', '--target_epsilon=8')
  for name in ('client_learning_rate', 'server_learning_rate'):
    assert getattr(found.optimization, name) == getattr(text.optimization, name)
  assert found.model.hidden_units == text.model.hidden_units
  assert '--hidden_units=32' in found.remarks[0]


def test_the_same_flags_are_checked_again_with_the_same_result(data):
  values = flags.FlagValues()
  settings.define(values)
  values(['simulate', f'--data={data}', *COLUMNS, '--mechanism=gaussian'])
  one, other = settings.from_flags(values), settings.from_flags(values)
  assert one.flags == other.flags
  assert one.remarks == other.remarks
  assert one.task.load(one.data) is other.task.load(other.data)


def test_data_are_read_again_only_if_their_files_change(data, tmp_path):
  path = own_data.write_csv(tmp_path / 'data.csv', ROWS)
  options = data_options.Data(
    None,
    0.5,
    1,
    data_options.Files(
      str(path),
      client_column='who',
      label_column='bought',
      test_clients=0.1,
      scratch=str(tmp_path),
    ),
  )
  first = own.load(options)
  assert own.load(options) is first
  assert own.load(dataclasses.replace(options, seed=2)) is not first
  own_data.write_csv(path, ROWS[:800])
  os.utime(path, (1, 1))
  assert own.load(options).facts['examples'] != first.facts['examples']


@pytest.mark.parametrize(
  ('num_clients', 'delta'),
  [(1, 1e-5), (1000, 1e-5), (10_000, 1e-5), (10_001, 1e-6), (10**6, 1e-7)],
)
def test_delta_is_a_power_of_ten_of_at_most_a_tenth_over_the_clients(
  num_clients, delta
):
  assert own.delta_for(num_clients) == delta
  assert num_clients < 10_000 or delta <= 1 / (10 * num_clients)


def test_examples_without_clients_are_dealt_out(tmp_path):
  path = own_data.write_csv(
    tmp_path / 'data.csv',
    [{'x': i % 17, 'y': i % 2} for i in range(500)],
  )
  found = _settings(
    f'--data={path}',
    '--label_column=y',
    '--num_clients=40',
    '--partition=label_skew',
    '--dirichlet_alpha=0.1',
    '--mechanism=gaussian',
  )
  population = found.task.load(found.data)
  assert population.num_clients == 40
  assert population.facts['examples for testing, exact'] == 100
  assert found.flags['partition'] == 'label_skew'


@pytest.mark.slow
def test_the_command_of_the_documentation_runs(tmp_path):
  text = DOCS.read_text(encoding='utf-8').replace('\\\n', ' ')
  (command,) = re.findall(r'^ +tff-dp-simulate (--data=.*)$', text, re.M)
  rows = [
    {'patient': i % 60, 'age': i % 50, 'returned': ['no', 'yes'][i % 50 > 25]}
    for i in range(900)
  ]
  path = own_data.write_csv(tmp_path / 'visits.csv', rows)
  arguments = shlex.split(command.replace('visits.csv', str(path)))
  run_dir = tmp_path / 'run'
  result = executing.execute(
    simulate, *arguments, '--num_rounds=2', f'--run_dir={run_dir}'
  )
  assert result.returncode == 0, result.stderr
  assert (run_dir / 'report.md').exists()


def _numbers(tmp_path, *arguments):
  """A run on labels of some hundred thousand, and the lines of its metrics."""
  rows = [
    {'who': f'c{i % 60}', 'x': (37 * i) % 50, 'y': 100_000 + 4000 * ((37 * i) % 50)}
    for i in range(900)
  ]
  path = own_data.write_csv(tmp_path / 'prices.csv', rows)
  run_dir = tmp_path / 'run'
  result = executing.execute(
    simulate,
    f'--data={path}',
    '--client_column=who',
    '--label_column=y',
    '--mechanism=none',
    f'--run_dir={run_dir}',
    *arguments,
  )
  assert result.returncode == 0, result.stderr
  with open(run_dir / 'metrics.csv', encoding='utf-8') as file:
    return result.stdout, list(csv.DictReader(file)), run_dir


def test_errors_are_in_the_unit_of_the_labels_and_the_loss_in_that_of_the_training(
  tmp_path,
):
  name, power = 'mean_squared_error', 2
  said, lines, run_dir = _numbers(
    tmp_path, f'--metric={name}', f'--loss={name}', '--num_rounds=30'
  )
  config = run_directory.read_config(str(run_dir))
  _, scale = config['data_facts']['mean and standard deviation of labels']
  assert scale == pytest.approx(4000 * np.std(np.arange(50)), rel=0.05)
  for line in lines:
    measured = float(line[f'test_{name}'])
    assert measured == pytest.approx(scale**power * float(line['test_loss']), rel=1e-4)
  # A line through the points is learned, which no constant is near.
  assert measured < 0.2 * scale**power
  assert 'Note:' not in said
  assert any('Labels were scaled' in each for each in config['not_covered'])


@pytest.mark.slow
def test_a_model_that_is_no_better_than_one_answer_is_remarked_on(tmp_path):
  said, _, _ = _numbers(tmp_path, '--num_rounds=2', '--client_learning_rate=1e-6')
  path = tmp_path / 'prices.csv'
  names = {'client_column': 'who', 'label_column': 'y', 'label_scaling': 'none'}
  _, labels = own_data.load(path, **names).test_examples
  best = np.median(labels)
  error = np.abs(labels - best).mean(dtype=float)
  expected = f'to answer {best:g} to all test examples has mean_absolute_error '
  assert f'Note: {expected}{error:.4f}, so the model' in said


def test_remarks_on_what_was_measured():
  labels = np.array([0.0, 0.0, 10.0, 50.0] * 100)
  for name, constant, error in (
    ('mean_absolute_error', '5', 15.0),
    ('mean_squared_error', '15', 425.0),
  ):
    metric = metrics.METRICS[name]
    said = training.remark_on_constant(metric, error, labels)
    assert f'to answer {constant} to all' in said
    assert f'has {name} {error:.4f}' in said
    _, each = metric.best_constant(labels)
    two = 2 * each.std() / 20
    assert training.remark_on_constant(metric, error - 1.01 * two, labels) == ''
    assert training.remark_on_constant(metric, error - 0.99 * two, labels) == said


def test_a_program_says_warnings_in_a_line(capsys):
  def warning():
    warnings.warn('delta is large.', stacklevel=2)
    return 3

  assert training._with_warnings_in_lines(warning) == 3
  assert capsys.readouterr().err == 'warning: delta is large.\n'
