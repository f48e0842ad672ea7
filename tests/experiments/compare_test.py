"""The comparison program: its files, refused flags, failed runs and resuming.

The slow tests share one tiny comparison, of which one run fails at first and is done
when the same command runs again. Each run has its own process.
"""

import contextlib
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
from tff_dp_aggregators.learning import cluster

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


def _make_failing_run(output):
  """Puts a run of another model into the directory of a cell, so that it fails."""
  point = grid.Point({'mechanism': 'tree'})
  flags = {flag[2:].split('=')[0]: (flag,) for flag in SMALL}
  maker = cells.Maker(str(output), flags)
  tried = (('server_learning_rate', '0.5'),)
  cell = maker.cell(point, cells.FIRST_TUNING_SEED + 1, tried)
  assert os.path.basename(cell.directory) == BROKEN
  os.makedirs(cell.directory)
  config = {'flags': cell.settings.flags, 'training': {'model': 'another'}}
  pathlib.Path(cell.directory, 'config.json').write_text(json.dumps(config))
  return cell.directory


def _modification_times(folder):
  return {
    path.relative_to(folder): path.stat().st_mtime_ns
    for path in sorted(folder.rglob('*'))
    if path.is_file()
  }


# As the program writes it for GRID and SMALL.
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
  """Results of executing one command twice."""

  def __init__(self, output):
    self.output = output
    broken = _make_failing_run(output)
    # A folder that is not empty must have a comparison's record.
    (output / 'comparison.json').write_text(json.dumps(_RECORD))
    self.first = _compare(output, *GRID, *SMALL)
    self.error = pathlib.Path(broken, 'error.txt').read_text()
    self.tables = (output / 'table.md').read_text()
    shutil.rmtree(broken)
    self.before = _modification_times(output / cells.TUNING)
    self.second = _compare(output, *GRID, *SMALL)
    self.after = _modification_times(output / cells.TUNING)
    self.rows = simulations.rows(output / 'table.csv')
    self.cells = simulations.rows(output / 'cells.csv')


@pytest.fixture(scope='module')
def shared(tmp_path_factory):
  output = tmp_path_factory.mktemp('comparison') / 'output'
  output.mkdir()
  return _Shared(output)


@pytest.mark.slow
def test_failed_run_is_named_and_others_go_on(shared):
  assert shared.first.returncode == 1, shared.first.stderr
  assert f'{BROKEN}: failed: FilesError: the run in' in shared.first.stdout
  assert f'{BROKEN}/error.txt' in shared.first.stdout
  assert 'Traceback (most recent call last)' in shared.error
  assert 'resumes only with the same' in shared.error.splitlines()[-1]
  done = {path.parts[0] for path in shared.before}
  assert done == {'mechanism=tree,server_learning_rate=0.1,seed=1000001'}
  assert 'Not tuned yet, as not all tuning runs are finished: mechanism=tree.' in (
    shared.tables
  )


@pytest.mark.slow
def test_same_command_runs_only_unfinished_runs(shared):
  assert shared.second.returncode == 0, shared.second.stderr
  assert f'tuning 1/1 {BROKEN}: accuracy' in shared.second.stdout
  assert '\n1/2 mechanism=tree,seed=1: accuracy' in shared.second.stdout
  assert '\n2/2 mechanism=tree,seed=2: accuracy' in shared.second.stdout
  assert {path: shared.after[path] for path in shared.before} == shared.before


@pytest.mark.slow
def test_output_has_the_documented_files(shared):
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
def test_best_tuned_value_is_used_and_report_states_tuning_cost(shared):
  tuned = shared.output / cells.TUNING
  accuracies = {
    rate: simulations.metrics(
      tuned / f'mechanism=tree,server_learning_rate={rate},seed={seed}'
    )[-1]['test_accuracy']
    for rate, seed in (('0.1', 1000001), ('0.5', 1000002))
  }
  best = max(accuracies, key=lambda rate: float(accuracies[rate]))
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
def test_finished_comparison_is_summarized_without_tensorflow(shared):
  code = (
    'import sys\n'
    'from experiments import compare\n'
    'code = compare.execute(sys.argv[1:])\n'
    'print(code, "tensorflow" in sys.modules)\n'
  )
  before = _modification_times(shared.output / cells.CELLS)
  table = (shared.output / 'table.csv').read_bytes()
  again = (*GRID, *SMALL, f'--output={shared.output}')
  # The timeout may differ, as it changes no result.
  result = executing.run_python(code, *again, '--timeout_seconds=7200')
  assert result.stdout.endswith('\n0 False\n'), result.stderr
  assert _modification_times(shared.output / cells.CELLS) == before
  assert (shared.output / 'table.csv').read_bytes() == table


@pytest.mark.slow
def test_different_flags_for_same_output_are_refused_by_name(shared):
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
def test_wrong_flags_are_refused_before_any_run(arguments, message, tmp_path):
  result = _compare(tmp_path / 'output', *arguments)
  assert result.returncode == 2
  assert result.stderr.startswith('error: ')
  assert message in result.stderr
  assert not (tmp_path / 'output').exists()


def test_folder_with_other_files_is_not_touched(tmp_path):
  (tmp_path / 'mine.txt').write_text('mine')
  result = _compare(tmp_path, '--grid', 'mechanism=tree')
  assert result.returncode == 2
  assert 'is not empty, and is not of a comparison' in result.stderr
  assert os.listdir(tmp_path) == ['mine.txt']


@pytest.mark.parametrize('before', [None, _RECORD])
def test_folder_that_another_comparison_changed_meanwhile_is_refused(
  before, tmp_path, monkeypatch
):
  path = tmp_path / 'comparison.json'
  if before is not None:
    path.write_text(json.dumps(before))
  text = json.dumps({**_RECORD, 'seeds': 7})
  monkeypatch.setattr(
    grid, 'folder', lambda _: contextlib.nullcontext(path.write_text(text))
  )
  result = _compare(tmp_path, *GRID, *SMALL)
  assert result.returncode == 2
  assert 'was changed meanwhile by another one; give the same comm' in result.stderr
  assert path.read_text() == text


def test_resumed_setting_keeps_its_words(tmp_path, monkeypatch):
  points = [{'settings': {'client_learning_rate': '0.1'}, 'left_out': []}]
  of_rates = {'varied': ['client_learning_rate'], 'points': points, 'tuned': {}}
  (tmp_path / 'comparison.json').write_text(json.dumps({**_RECORD, **of_rates}))
  cells_run = []
  monkeypatch.setattr(cells, 'run', lambda _, todo, stop: cells_run.extend(todo) or ())
  monkeypatch.setattr(cluster, 'connect', lambda **_: contextlib.nullcontext())
  _compare(tmp_path, '--grid=client_learning_rate=0.10,0.2', '--seeds=1', *SMALL)
  rates = [cell.point.settings['client_learning_rate'] for cell in cells_run]
  assert rates == ['0.1', '0.2']


def test_full_disk_is_reported_in_one_line(tmp_path, monkeypatch):
  def full(*unused):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), 'cells.csv')

  monkeypatch.setattr(grid, 'write_record', full)
  result = _compare(tmp_path / 'output', '--grid', 'mechanism=tree', '--seeds=1')
  assert result.returncode == 1
  assert result.stderr.startswith('error: [Errno 28] No space left on device: ')
  assert result.stderr.endswith('the same command resumes the comparison.\n')
  assert result.stderr.count('\n') == 1
