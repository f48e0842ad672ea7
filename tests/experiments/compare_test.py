"""The comparison program: what it runs, leaves, refuses, and outlives.

One tiny comparison is shared: a cell of it cannot run at first, and the same command
then runs what is left. Its runs are in processes of their own.
"""

import csv
import errno
import json
import os
import pathlib
import shutil

import numpy as np
import pytest

from experiments import compare
from experiments.comparing import cells
from experiments.comparing import grid
from tests import executing
from tests.experiments import simulations

SMALL = (
  '--num_clients=20',
  '--clients_per_round=5',
  '--min_separation=2',
  '--num_rounds=2',
)
GRID = (
  '--grid',
  'mechanism=tree',
  '--tune=server_learning_rate=0.1,0.5',
  '--seeds=2',
)
BROKEN = 'mechanism=tree,server_learning_rate=0.5,seed=1000002'


def _compare(output, *arguments):
  return executing.execute(compare, *arguments, f'--output={output}')


def _break(output):
  """Puts a run into the directory of a cell that has its flags, and another model."""
  point = grid.Point((('mechanism', 'tree'),))
  given = {flag[2:].split('=')[0]: (flag,) for flag in SMALL}
  make = cells.Maker(str(output), given)
  tried = (('server_learning_rate', '0.5'),)
  cell = make.cell(point, cells.tuning_seeds(2)[1], cells.TUNING, tried)
  assert os.path.basename(cell.directory) == BROKEN
  os.makedirs(cell.directory)
  begun = {'flags': cell.settings.flags, 'training': {'model': 'another'}}
  pathlib.Path(cell.directory, 'config.json').write_text(json.dumps(begun))
  # Only a run that never drew noise is begun anew with another model.
  pathlib.Path(cell.directory, 'model.npz').touch()
  return cell.directory


def _files(folder):
  return {
    path.relative_to(folder): path.stat().st_mtime_ns
    for path in sorted(folder.rglob('*'))
    if path.is_file()
  }


# As the command itself writes it.
_RECORD = {
  'version': 1,
  'given': {flag[2:].split('=')[0]: [flag] for flag in SMALL},
  'varied': ['mechanism'],
  'points': [{'settings': {'mechanism': 'tree'}, 'left_out': []}],
  'tasks': ['digits'],
  'seeds': 1,
  'tuned': {'server_learning_rate': ['0.1', '0.5']},
  'tuning_seeds': 1,
}


class _Shared:
  """What the two executions of one command left."""

  def __init__(self, output):
    self.output = output
    broken = _break(output)
    # A folder that is taken has to be that of a comparison.
    (output / 'comparison.json').write_text(json.dumps(_RECORD))
    self.first = _compare(output, *GRID, *SMALL)
    self.error = pathlib.Path(broken, 'error.txt').read_text()
    self.tables = (output / 'table.md').read_text()
    shutil.rmtree(broken)
    self.before = _files(output / cells.TUNING)
    self.second = _compare(output, *GRID, *SMALL)
    self.after = _files(output / cells.TUNING)
    self.rows = list(csv.DictReader((output / 'table.csv').open()))
    self.cells = list(csv.DictReader((output / 'cells.csv').open()))


@pytest.fixture(scope='module')
def shared(tmp_path_factory):
  output = tmp_path_factory.mktemp('comparison') / 'output'
  output.mkdir()
  return _Shared(output)


@pytest.mark.slow
def test_a_run_that_fails_is_named_and_the_others_go_on(shared):
  assert shared.first.returncode == 1, shared.first.stderr
  assert f'{BROKEN}: failed: OtherSettingsError: the run in' in shared.first.stdout
  assert f'{BROKEN}/error.txt' in shared.first.stdout
  assert 'Traceback (most recent call last)' in shared.error
  assert 'resumes only with the same' in shared.error.splitlines()[-1]
  done = {path.parts[0] for path in shared.before}
  assert done == {'mechanism=tree,server_learning_rate=0.1,seed=1000001'}
  assert 'Not tuned yet, as not all tuning runs are finished: mechanism=tree.' in (
    shared.tables
  )


@pytest.mark.slow
def test_the_same_command_runs_what_is_left_and_nothing_else(shared):
  assert shared.second.returncode == 0, shared.second.stderr
  assert f'tuning 1/1 {BROKEN}: accuracy' in shared.second.stdout
  assert '1 of 2 tuning runs were finished before.' in shared.second.stdout
  assert '\n1/2 mechanism=tree,seed=1: accuracy' in shared.second.stdout
  assert '; 1 left, about ' in shared.second.stdout
  assert '\n2/2 mechanism=tree,seed=2: accuracy' in shared.second.stdout
  assert {path: shared.after[path] for path in shared.before} == shared.before


@pytest.mark.slow
def test_everything_that_is_documented_is_left(shared):
  assert set(os.listdir(shared.output)) == {
    *('.lock', 'cells', 'comparison.json', 'comparison.png', 'comparison.svg'),
    *('cells.csv', 'table.csv', 'table.md', 'tuning'),
  }
  for folder, number in ((cells.CELLS, 2), (cells.TUNING, 2)):
    directories = list((shared.output / folder).iterdir())
    assert len(directories) == number
    for directory in directories:
      assert (directory / 'report.json').exists()
      assert 'round 2 of 2' in (directory / 'log.txt').read_text()
      assert not (directory / 'error.txt').exists()


@pytest.mark.slow
def test_the_best_value_is_used_and_its_privacy_is_in_the_report(shared):
  tuned = shared.output / cells.TUNING
  tried = {
    rate: simulations.metrics(
      tuned / f'mechanism=tree,server_learning_rate={rate},seed={seed}'
    )[-1]['test_accuracy']
    for rate, seed in (('0.1', 1000001), ('0.5', 1000002))
  }
  best = max(tried, key=lambda rate: float(tried[rate]))
  (tree,) = shared.rows
  assert tree['tuned_server_learning_rate'] == best
  run = shared.output / cells.CELLS / 'mechanism=tree,seed=2'
  config = simulations.read(run, 'config')
  assert config['flags']['server_learning_rate'] == float(best)
  report = (run / 'report.md').read_text()
  assert 'chosen as the best of 2 runs on the same clients' in report
  epsilon = float(tree['epsilon_with_tuning'])
  assert f'at most epsilon = {np.ceil(epsilon * 1e4) / 1e4:.4f}' in report
  assert 'arXiv:2110.03620' in (shared.output / 'table.md').read_text()


@pytest.mark.slow
def test_a_comparison_that_is_finished_is_told_again_without_tensorflow(shared):
  code = (
    'import sys\n'
    'from experiments import compare\n'
    'code = compare.execute(sys.argv[1:])\n'
    'print(code, "tensorflow" in sys.modules)\n'
  )
  before = _files(shared.output / cells.CELLS)
  table = (shared.output / 'table.csv').read_bytes()
  again = (*GRID, *SMALL, f'--output={shared.output}')
  # The time may change, as it changes nothing.
  result = executing.run_python(code, *again, '--timeout_seconds=7200')
  assert result.stdout.endswith('\n0 False\n'), result.stderr
  assert _files(shared.output / cells.CELLS) == before
  assert (shared.output / 'table.csv').read_bytes() == table


@pytest.mark.slow
def test_another_comparison_is_refused_naming_what_differs(shared):
  result = _compare(shared.output, *GRID, *SMALL[:3], '--num_rounds=3')
  assert result.returncode == 2
  assert '--num_rounds: --num_rounds=2 then, --num_rounds=3 now' in result.stderr


@pytest.mark.parametrize(
  ('arguments', 'message'),
  [
    (('--grid', 'num_clients=300,250'), 'num_clients=250,seed=1: 100 rounds of'),
    (('--grid', 'mechanism=tree', '--mechanism=blt'), 'is set by --grid and by the'),
    (
      ('--grid=mechanism=tree:clip_norm=2', '--tune=clip_norm=1,3'),
      '--clip_norm is set by --tune and by a value of --grid',
    ),
    (('--jobs=1000',), '--jobs=1000, or --scheduler=local:1000 is more than'),
  ],
)
def test_wrong_flags_are_refused_before_anything_is_run(arguments, message, tmp_path):
  result = _compare(tmp_path / 'output', *arguments)
  assert result.returncode == 2
  assert result.stderr.startswith('error: ')
  assert message in result.stderr
  assert not (tmp_path / 'output').exists()


def test_a_folder_of_something_else_is_not_touched(tmp_path):
  (tmp_path / 'mine.txt').write_text('mine')
  result = _compare(tmp_path, '--grid', 'mechanism=tree')
  assert result.returncode == 2
  assert 'is not empty, and is not of a comparison' in result.stderr
  assert os.listdir(tmp_path) == ['mine.txt']


def test_a_disk_that_is_full_is_said_on_a_line(tmp_path, monkeypatch):
  def full(*unused):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), 'cells.csv')

  monkeypatch.setattr(grid, 'write_record', full)
  result = _compare(tmp_path / 'output', '--grid', 'mechanism=tree', '--seeds=1')
  assert result.returncode == 1
  assert result.stderr.startswith('error: [Errno 28] No space left on device: ')
  assert result.stderr.endswith('the same command resumes the comparison.\n')
  assert result.stderr.count('\n') == 1
