"""Own data end to end, from a CSV file to a finished, resumed and verified run."""

import dataclasses
import os
import pathlib
import random
import re
import shlex

import pytest

from experiments.options import data as data_options
from experiments.tasks import own
from tests.experiments import simulations
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


_SHORT = ('--num_rounds=3', '--noise_multiplier=0.2')


@pytest.fixture(scope='module')
def finished(data, tmp_path_factory):
  run_dir = tmp_path_factory.mktemp('runs') / 'run'
  flags = (f'--data={data}', *COLUMNS, *_SHORT)
  return run_dir, simulations.run(run_dir, *flags)


def test_facts_of_csv_are_printed_before_training(finished):
  _, result = finished
  lines = result.stdout.splitlines()
  assert (
    lines[0]
    == 'The data, in exact numbers that no noise protects: do not publish them.'
  )
  assert '  clients: 55' in lines
  assert '  clients held out for testing: 5' in lines
  assert '  columns with a feature for each value: colour (3)' in lines
  assert (
    'Chosen for 55 clients: --clients_per_round=5, --min_separation=3, '
    '--target_delta=1e-05.'
  ) in lines


def test_facts_are_in_private_config_and_report_says_what_is_not_covered(
  finished, data
):
  run_dir, _ = finished
  # Exact facts of the data are only in the private file, which is not shared.
  assert 'data_facts' not in simulations.read(run_dir, 'config')
  config = run_directory.read_config(str(run_dir))
  assert config['data_facts']['protected'] is False
  assert config['data_facts']['clients'] == 55
  assert config['flags']['client_column'] == 'who'
  assert config['flags']['num_clients'] == 55
  assert config['flags']['task'] is None
  assert 'data' not in config['flags']
  assert len(config['not_covered']) == 3
  assert 'mean and standard deviation' in (run_dir / 'report.md').read_text()


def test_moved_and_reordered_rows_resume_the_same_run(finished, tmp_path):
  run_dir, _ = finished
  rows = list(ROWS)
  random.Random(1).shuffle(rows)
  moved = own_data.write_csv(tmp_path / 'moved.csv', rows)
  again = simulations.run(run_dir, f'--data={moved}', *COLUMNS, *_SHORT)
  assert 'finished before' in again.stderr


@pytest.mark.parametrize(
  ('change', 'arguments', 'message'),
  [
    ({}, ['--scaling=none'], "--scaling: None then, 'none' now"),
    ({'age': 21}, [], 'data_facts.checksum of all rows: '),
  ],
)
def test_run_does_not_resume_with_changed_data(
  change, arguments, message, finished, tmp_path
):
  run_dir, _ = finished
  rows = [{**ROWS[0], **change}, *ROWS[1:]]
  path = own_data.write_csv(tmp_path / 'my data.csv', rows)
  flags = (f'--data={path}', *COLUMNS, *_SHORT, f'--run_dir={run_dir}')
  assert message in simulations.refusal(*flags, *arguments)


def test_default_flags_depend_on_number_of_clients(data):
  chosen = simulations.settings_of(f'--data={data}', *COLUMNS, '--mechanism=tree')
  assert chosen.name == 'my_data-tree'
  assert chosen.flags['clients_per_round'] == 5
  assert chosen.flags['min_separation'] == 11
  assert chosen.flags['num_rounds'] == 100
  assert chosen.flags['model'] == 'logistic'
  with_cohort_size = simulations.settings_of(
    f'--data={data}', *COLUMNS, '--mechanism=tree', '--clients_per_round=10'
  )
  assert with_cohort_size.flags['min_separation'] == 5


def test_data_are_read_again_only_if_files_or_options_change(data, tmp_path):
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
  [(1, 1e-5), (10_000, 1e-5), (10_001, 1e-6)],
)
def test_delta_for_has_expected_powers_of_ten(num_clients, delta):
  assert own.delta_for(num_clients) == delta


def test_delta_for_is_largest_power_of_ten_up_to_tenth_over_num_clients():
  for num_clients in (*range(10_000, 10**7, 9_973), 10**6, 10**7):
    delta = own.delta_for(num_clients)
    assert f'{delta:e}'.startswith('1.000000e-')
    assert delta <= 1 / (10 * num_clients) < 10 * delta


@pytest.mark.slow
def test_documented_command_runs(tmp_path):
  text = DOCS.read_text(encoding='utf-8').replace('\\\n', ' ')
  (command,) = re.findall(r'^ +tff-dp-simulate (--data=.*)$', text, re.M)
  rows = [
    {'user': i % 60, 'age': i % 50, 'bought': ['no', 'yes'][i % 50 > 25]}
    for i in range(900)
  ]
  path = own_data.write_csv(tmp_path / 'visits.csv', rows)
  arguments = shlex.split(command.replace('visits.csv', str(path)))
  simulations.run(tmp_path / 'run', *arguments, '--num_rounds=2')
  assert (tmp_path / 'run' / 'report.md').exists()
