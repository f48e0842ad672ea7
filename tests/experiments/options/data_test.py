"""Flags of data: combinations that contradict each other are refused."""

import pytest

from tests import executing
from tests.experiments import simulations
from tests.experiments.data import own_data


@pytest.fixture(scope='module')
def data(tmp_path_factory):
  return own_data.write_csv(tmp_path_factory.mktemp('data') / 'data.csv')


COLUMNS = ('--client_column=who', '--label_column=bought')


@pytest.mark.parametrize(
  ('arguments', 'message'),
  [
    ([], '--label_column is missing: which column of'),
    ([], '--num_clients is missing'),
    (
      ['--label_column=x', '--client_column=who'],
      "no column 'x'; its columns are: who",
    ),
    ([*COLUMNS, '--num_clients=3'], '--num_clients is for data without clients'),
    ([*COLUMNS, '--test_clients=1'], 'flag --test_clients=1.0: must be in (0, 1)'),
    (
      [*COLUMNS, '--test_clients=0.1', '--test_examples=0.1'],
      '--test_examples and --test_clients both say what is for testing',
    ),
    ([*COLUMNS, '--feature_columns=age,who'], "column 'who' is named twice"),
    ([*COLUMNS, '--text_column=age'], '--label_column does not go with text'),
    ([*COLUMNS, '--task=digits'], '--data does not go with --task=digits, which has'),
    ([*COLUMNS, '--test_data=SAME'], 'test and training data are the same'),
    (
      ['--label_column=bought', '--num_clients=5', '--test_clients=0.1'],
      '--test_clients needs data with clients',
    ),
    (
      ['--label_column=bought', '--num_clients=500', '--feature_columns=age'],
      'num_clients must be at most 56, the number of training examples; got 500',
    ),
    ([*COLUMNS, '--separator=xx'], "--separator='xx' must be one character"),
    (
      [*COLUMNS, '--thousands=.'],
      '--thousands is the decimal sign as well; change one',
    ),
    ([*COLUMNS, '--label_scaling=standard'], 'for labels that are numbers, and these'),
  ],
)
def test_conflicting_data_flags_are_refused(arguments, message, data):
  if not any(each.startswith('--data=') for each in arguments):
    arguments = [f'--data={data}', *arguments]
  arguments = [each.replace('SAME', str(data)) for each in arguments]
  if message.startswith('--label_column is missing'):
    arguments.append('--client_column=who')
  assert message in simulations.refusal(*arguments)


@pytest.mark.parametrize(
  ('arguments', 'message'),
  [
    (['--separator=;'], 'or tab. It is for CSV.'),
    (['--missing_values='], '--missing_values is for values in columns, and files of'),
  ],
)
def test_csv_flags_are_refused_for_text_files(arguments, message, tmp_path):
  path = tmp_path / 'data.txt'
  path.write_text('a line of text\n' * 50)
  flags = (f'--data={path}', '--num_clients=5', *arguments)
  assert message in simulations.refusal(*flags)


def test_other_separator_is_read_with_the_flag(tmp_path):
  for end, found, flag in (
    ('.csv', ';', '--separator=;'),
    ('.csv', '\t', '--separator=tab'),
    ('.tsv', ',', '--separator=,'),
  ):
    path = own_data.write_csv(tmp_path / f'data{end}')
    path.write_text(path.read_text().replace(',', found))
    error = simulations.refusal(f'--data={path}', *COLUMNS)
    assert 'no column' in error and 'what separates them by --separator' in error
    more = [flag, '--clients_per_round=7']
    error = simulations.refusal(f'--data={path}', *COLUMNS, *more)
    assert 'num_clients=6 is too few' in error  # So the data were read.


def test_metric_that_test_data_cannot_measure_is_refused(tmp_path):
  rows = [{'who': f'c{i % 50}', 'x': i, 'y': 'no'} for i in range(500)]
  rows[0]['y'] = 'yes'
  path = own_data.write_csv(tmp_path / 'data.csv', rows)
  tested = own_data.write_csv(tmp_path / 'test.csv', [{**rows[1], 'who': 'other'}])
  error = simulations.refusal(
    f'--data={path}',
    f'--test_data={tested}',
    '--client_column=who',
    '--label_column=y',
    '--metric=auc',
    f'--run_dir={tmp_path / "run"}',
  )
  assert '--metric=auc cannot be measured: the test data do not have' in error
  assert not (tmp_path / 'run').exists()


@pytest.mark.parametrize(
  ('flag', 'message'),
  [
    ('--data_format=csv', '--data_format goes with --data'),
    ('--test_clients=0.1', '--test_clients goes with --data'),
    ('--dirichlet_alpha=1e-9', 'must be in [0.001, inf)'),
    ('--dirichlet_alpha=nan', 'must be in [0.001, inf)'),
  ],
)
def test_flags_that_no_task_takes_are_refused(flag, message):
  assert message in simulations.refusal(flag)


def test_broken_row_is_reported_without_loading_tensorflow(data, tmp_path):
  path = tmp_path / 'broken.csv'
  path.write_text(data.read_text() + 'client 1,x,2,0\n')
  code = (
    'import sys\n'
    'from experiments import simulate\n'
    f'flags = ["--data={path}", "--run_dir={tmp_path / "run"}", *{list(COLUMNS)!r}]\n'
    'code = simulate.execute(flags)\n'
    'print(code, "tensorflow" in sys.modules)\n'
  )
  result = executing.run_python(code)
  assert result.stdout == '2 False\n'
  assert f"error: {path}, line 72: age is 'x', which is not a number" in result.stderr
