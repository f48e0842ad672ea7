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
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import psutil
import pytest

from experiments import compare
from experiments.comparing import cells
from experiments.comparing import grid
from experiments.comparing import record as record_lib
from experiments.comparing import running
from experiments.comparing import tuning
from tests import executing
from tff_dp_aggregators.accounting.programs import report as report_program

ROOT = pathlib.Path(__file__).resolve().parents[2]
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
  cell = make.cell(point, tuning.seeds(2)[1], cells.TUNING, tried)
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


class _Shared:
  """What the two executions of one command left."""

  def __init__(self, output):
    self.output = output
    broken = _break(output)
    # A folder that is taken has to be that of a comparison.
    (output / 'comparison.json').write_text(json.dumps(self.record()))
    self.first = _compare(output, *GRID, *SMALL)
    self.error = pathlib.Path(broken, 'error.txt').read_text()
    self.tables = (output / 'table.md').read_text()
    shutil.rmtree(broken)
    self.before = _files(output / cells.TUNING)
    self.second = _compare(output, *GRID, *SMALL)
    self.after = _files(output / cells.TUNING)
    self.rows = list(csv.DictReader((output / 'table.csv').open()))
    self.cells = list(csv.DictReader((output / 'cells.csv').open()))

  def record(self):
    """As the command itself writes it."""
    return {
      'version': 1,
      'given': {flag[2:].split('=')[0]: [flag] for flag in SMALL},
      'varied': ['mechanism'],
      'points': [{'settings': {'mechanism': 'tree'}, 'left_out': []}],
      'tasks': ['digits'],
      'seeds': 1,
      'tuned': {'server_learning_rate': ['0.1', '0.5']},
      'tuning_seeds': 1,
    }


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
    '.lock',
    'cells',
    'cells.csv',
    'comparison.json',
    'comparison.png',
    'comparison.svg',
    'table.csv',
    'table.md',
    'tuning',
  }
  for folder, number in ((cells.CELLS, 2), (cells.TUNING, 2)):
    directories = list((shared.output / folder).iterdir())
    assert len(directories) == number
    for directory in directories:
      assert (directory / 'report.json').exists()
      assert 'round 2 of 2' in (directory / 'log.txt').read_text()
      assert not (directory / 'error.txt').exists()


@pytest.mark.slow
def test_files_of_a_run_elsewhere_may_be_seen_late(shared, tmp_path, monkeypatch):
  output = tmp_path / 'output'
  shutil.copytree(shared.output, output)
  given = {flag[2:].split('=')[0]: (flag,) for flag in SMALL}
  point, tried = grid.Point((('mechanism', 'tree'),)), ('server_learning_rate', '0.1')
  make = cells.Maker(str(output), given)
  cell = make.cell(point, tuning.seeds(1)[0], cells.TUNING, (tried,))
  os.rename(cell.directory, tmp_path / 'late')
  timer = threading.Timer(0.5, os.rename, [tmp_path / 'late', cell.directory])
  timer.start()
  assert running._is_seen(cell)
  timer.join()
  shutil.rmtree(cell.directory)
  monkeypatch.setattr(running, '_LATE_FILES_SECONDS', 0.1)
  assert not running._is_seen(cell)


@pytest.mark.slow
def test_the_table_is_mean_and_standard_error_of_the_runs(shared):
  assert [row['mechanism'] for row in shared.rows] == ['tree']
  for row in shared.rows:
    directory = shared.output / cells.CELLS
    runs = directory.glob(f'mechanism={row["mechanism"]},seed=*')
    last = [list(csv.DictReader((run / 'metrics.csv').open()))[-1] for run in runs]
    for name in ('test_accuracy', 'test_loss'):
      values = np.array([float(each[name]) for each in last])
      assert len(values) == 2
      assert float(row[name]) == pytest.approx(values.mean(), rel=1e-12)
      error = values.std(ddof=1) / np.sqrt(2)
      assert float(row[f'{name}_stderr']) == pytest.approx(error, rel=1e-12)
    assert (row['seeds'], row['seeds_missing']) == ('2', '0')
  told = [(row['mechanism'], row['seed'], row['status']) for row in shared.cells]
  assert told == [('tree', '1', 'finished'), ('tree', '2', 'finished')]
  (tree,) = shared.rows
  assert 8 * (1 - 1e-9) < float(tree['epsilon']) <= 8
  assert float(tree['epsilon_with_tuning']) > 8


@pytest.mark.slow
def test_the_best_value_is_used_and_its_privacy_is_in_the_report(shared):
  tried = {
    rate: list(
      csv.DictReader(
        (
          shared.output
          / cells.TUNING
          / f'mechanism=tree,server_learning_rate={rate},seed={seed}'
          / 'metrics.csv'
        ).open()
      )
    )[-1]['test_accuracy']
    for rate, seed in (('0.1', 1000001), ('0.5', 1000002))
  }
  best = max(tried, key=lambda rate: float(tried[rate]))
  (tree,) = shared.rows
  assert tree['tuned_server_learning_rate'] == best
  run = shared.output / cells.CELLS / 'mechanism=tree,seed=2'
  config = json.loads((run / 'config.json').read_text())
  assert config['flags']['server_learning_rate'] == float(best)
  report = (run / 'report.md').read_text()
  assert 'chosen as the best of 2 runs on the same clients' in report
  epsilon = float(tree['epsilon_with_tuning'])
  assert f'at most epsilon = {np.ceil(epsilon * 1e4) / 1e4:.4f}' in report
  assert 'arXiv:2110.03620' in (shared.output / 'table.md').read_text()


@pytest.mark.slow
def test_a_cell_is_a_run_directory_like_any_other(shared):
  run = shared.output / cells.CELLS / 'mechanism=tree,seed=1'
  result = executing.execute(report_program, f'--run_dir={run}', '--format=json')
  assert result.returncode == 0, result.stderr
  assert result.stdout == (run / 'report.json').read_text()


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
  result = subprocess.run(
    [
      *(sys.executable, '-c', code),
      *(*GRID, *SMALL, f'--output={shared.output}'),
      '--timeout_seconds=7200',  # It may change, as it changes nothing.
    ],
    env={**os.environ, 'PYTHONPATH': str(ROOT)},
    capture_output=True,
    text=True,
    timeout=120,
  )
  assert result.stdout.endswith('\n0 False\n'), result.stderr
  assert _files(shared.output / cells.CELLS) == before
  assert (shared.output / 'table.csv').read_bytes() == table


@pytest.mark.slow
@pytest.mark.parametrize(
  ('arguments', 'message'),
  [
    (
      (*GRID, *SMALL[:3], '--num_rounds=3'),
      '--num_rounds: --num_rounds=2 then, --num_rounds=3 now',
    ),
    ((*GRID[:2], *SMALL), '--tune: {'),
  ],
)
def test_another_comparison_is_refused_naming_what_differs(shared, arguments, message):
  result = _compare(shared.output, *arguments)
  assert result.returncode == 2
  assert message in result.stderr
  assert result.stderr.count('\n') == 1


@pytest.mark.parametrize(
  ('arguments', 'message'),
  [
    (('--grid', 'num_clients=300,250'), 'num_clients=250,seed=1: 100 rounds of'),
    (('--grid', 'mechanism=tree', '--mechanism=blt'), 'is set by --grid and by the'),
    (
      ('--grid=mechanism=tree:clip_norm=2', '--tune=clip_norm=1,3'),
      '--clip_norm is set by a value of --grid and by --tune',
    ),
    (('--tune=batch_size=0,5',), 'batch_size=0,seed=1000001: --batch_size must be'),
    (('--jobs=1000',), '--jobs=1000, or --scheduler=local:1000 is more than'),
    (('--grid=jobs=1,2',), '--jobs cannot be varied: it is of the comparison'),
  ],
)
def test_wrong_flags_are_refused_before_anything_is_run(arguments, message, tmp_path):
  result = _compare(tmp_path / 'output', *arguments)
  assert result.returncode == 2
  assert result.stderr.startswith('error: ')
  assert message in result.stderr
  assert result.stderr.count('\n') == 1
  assert not (tmp_path / 'output').exists()


def test_a_folder_of_something_else_is_not_touched(tmp_path):
  (tmp_path / 'mine.txt').write_text('mine')
  result = _compare(tmp_path, '--grid', 'mechanism=tree')
  assert result.returncode == 2
  assert 'is not empty, and is not of a comparison' in result.stderr
  assert os.listdir(tmp_path) == ['mine.txt']


def _rounds(directory):
  metrics = directory / 'metrics.csv'
  return len(metrics.read_text().splitlines()) - 1 if metrics.exists() else 0


def _wait_until(condition, process):
  deadline = time.monotonic() + 240
  while not condition():
    assert process.poll() is None, process.stderr.read()
    assert time.monotonic() < deadline
    time.sleep(0.05)


def _start_long(output):
  process = subprocess.Popen(
    [
      *(sys.executable, '-m', 'experiments.compare'),
      *('--grid', 'mechanism=tree,none', '--seeds=1', '--jobs=2', *SMALL[:3]),
      *('--num_rounds=5000', f'--output={output}'),
    ],
    cwd=ROOT,
    stdout=subprocess.PIPE,
    stderr=subprocess.PIPE,
    text=True,
    start_new_session=True,
    # A test run in the background of a shell ignores Ctrl-C, and hands that on.
    preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
  )
  runs = [
    output / cells.CELLS / f'mechanism={each},seed=1' for each in ('tree', 'none')
  ]
  _wait_until(lambda: all(_rounds(run) >= 3 for run in runs), process)
  return process, runs


def _check_gone(processes):
  _, alive = psutil.wait_procs(processes, timeout=30)
  assert not [each for each in alive if each.status() != psutil.STATUS_ZOMBIE]


@pytest.mark.slow
def test_a_killed_process_loses_no_run_and_neither_does_ctrl_c(tmp_path):
  process, runs = _start_long(tmp_path / 'output')
  children = psutil.Process(process.pid).children(recursive=True)
  try:
    killed = next(
      each
      for each in children
      if os.readlink(f'/proc/{each.pid}/fd/1').endswith('.txt')
    )
    killed.kill()
    logs = [run / 'log.txt' for run in runs]
    _wait_until(
      lambda: any('going on after round' in log.read_text() for log in logs), process
    )
    children += psutil.Process(process.pid).children(recursive=True)
    os.killpg(process.pid, signal.SIGINT)  # As a terminal does.
    stdout, stderr = process.communicate(timeout=60)
  finally:
    process.kill()
  _check_gone(children)
  assert process.returncode == 130, stderr
  assert 'Stopped before its end; the same command goes on.' in stdout
  for run in runs:
    assert f'{run.name}: stopped, and can go on' in stdout
    assert (run / 'report.md').exists()
    assert (run / 'checkpoints').exists()
  with (tmp_path / 'output' / 'cells.csv').open() as file:
    assert [row['status'] for row in csv.DictReader(file)] == ['begun', 'begun']


@pytest.mark.slow
def test_no_process_outlives_a_comparison_that_is_killed(tmp_path):
  process, runs = _start_long(tmp_path / 'output')
  children = psutil.Process(process.pid).children(recursive=True)
  process.kill()
  process.communicate(timeout=60)
  _check_gone(children)
  assert all((run / 'checkpoints').exists() for run in runs)


def test_a_disk_that_is_full_is_said_on_a_line(tmp_path, monkeypatch):
  def full(*unused):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), 'cells.csv')

  monkeypatch.setattr(record_lib, 'write', full)
  result = _compare(tmp_path / 'output', '--grid', 'mechanism=tree', '--seeds=1')
  assert result.returncode == 1
  assert result.stderr.startswith('error: [Errno 28] No space left on device: ')
  assert result.stderr.endswith('the same command resumes the comparison.\n')
  assert result.stderr.count('\n') == 1
