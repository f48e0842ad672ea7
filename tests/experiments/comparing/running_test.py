"""Comparisons on Dask clusters give the same results as runs on this machine.

The clusters are real, of processes of this machine, which some tests kill.
"""

import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import types

import distributed
import psutil
import pytest

from experiments import compare
from experiments.comparing import cells
from tests import executing
from tests.experiments import simulations
from tests.experiments.comparing import dask_clusters
from tff_dp_aggregators.learning import cluster as cluster_lib

SMALL = (
  '--num_clients=20',
  '--clients_per_round=5',
  '--min_separation=2',
  '--checkpoint_seconds=0.5',
)
ROUNDS = 150
CELL = 'mechanism=tree,seed=1'
# Columns that differ between any two executions.
_TIMES = ('round_seconds', 'clients_per_second', 'time', 'previous_line_sha256')


@pytest.fixture
def cluster(tmp_path):
  with dask_clusters.DaskCluster(tmp_path / 'cluster') as running_cluster:
    yield running_cluster


def _start(output, *arguments, rounds=ROUNDS, grid='mechanism=tree', **variables):
  """Starts a small comparison."""
  small = ('--grid', grid, '--seeds=1', *SMALL, f'--num_rounds={rounds}')
  return _run(output, *small, f'--output={output}', *arguments, **variables)


def _run(output, *arguments, **variables):
  """Starts a comparison whose output is in files beside its folder."""
  with open(f'{output}.out', 'w') as stdout, open(f'{output}.err', 'w') as stderr:
    return subprocess.Popen(
      [sys.executable, '-m', 'experiments.compare', *arguments],
      cwd=dask_clusters.ROOT,
      env=dask_clusters.environment(**variables),
      stdin=subprocess.DEVNULL,
      stdout=stdout,
      stderr=stderr,
      start_new_session=True,
      # A test in the background of a shell ignores Ctrl-C, and children inherit that.
      preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


def _wait(process, output):
  """Waits until the comparison ends; returns exit code, output and errors."""
  try:
    code = process.wait(timeout=dask_clusters.SECONDS)
  finally:
    process.kill()
    process.wait()
  stdout, errors = (
    pathlib.Path(f'{output}.{each}').read_text() for each in ('out', 'err')
  )
  # Without notices of gRPC, which are not about the comparison.
  return code, stdout, re.sub(r'(?m)^[EI]0000 .*\n', '', errors)


def _rounds(output, cell=CELL):
  metrics = output / 'cells' / cell / 'metrics.csv'
  return len(metrics.read_text().splitlines()) - 1 if metrics.exists() else 0


def _results(output, cell=CELL):
  """Returns metrics, ledger and model of a run, without times."""
  directory = output / 'cells' / cell
  rows = [
    {name: text for name, text in row.items() if name not in _TIMES}
    for row in simulations.metrics(directory)
  ]
  lines = [
    {name: each for name, each in json.loads(line).items() if name not in _TIMES}
    for line in (directory / 'ledger.jsonl').read_text().splitlines()
  ]
  return rows, lines, (directory / 'model.npz').read_bytes()


@pytest.mark.parametrize(
  ('arguments', 'message'),
  [
    (('--scheduler=10.0.0.1:8786',), 'is not the address of a Dask scheduler'),
    (('--trusted_network',), 'machine, and here it is not given; leave it out.'),
    (('--scheduler=tcp://10.0.0.5:1',), 'or --trusted_network, if nobody else is on'),
    (
      ('--jobs=1', '--scheduler=tcp://[::1]:1'),
      '--jobs is for runs here; leave out it or --scheduler.',
    ),
  ],
)
def test_compare_refuses_wrong_cluster_flags(arguments, message, tmp_path):
  output = tmp_path / 'output'
  result = executing.execute(compare, *arguments, f'--output={output}')
  assert result.returncode == 2
  assert message in result.stderr
  assert not output.exists()


@pytest.mark.parametrize(
  ('changes', 'message'),
  [
    ({}, 'does not see .*; all have to see --output, and the folder'),
    ({'software': {'Python': '2.7'}}, 'tcp://a:1 has Python 3.*, and this program 2.7'),
  ],
)
def test_unfit_worker_refuses_a_cell(changes, message, monkeypatch, tmp_path):
  worker = types.SimpleNamespace(address='tcp://a:1', get_current_task=lambda: 'key')
  monkeypatch.setattr(distributed, 'get_worker', lambda: worker)
  job = {'software': cluster_lib.software(), 'directory': str(tmp_path / 'none')}
  with pytest.raises(cluster_lib.ClusterError, match=message):
    cells.run_cell({**job, **changes}, 'name')


@pytest.fixture(scope='module')
def local_output(tmp_path_factory):
  """Returns the folder of the comparison run with --jobs, without a cluster."""
  output = tmp_path_factory.mktemp('here') / 'output'
  code, _, errors = _wait(_start(output, '--jobs=1'), output)
  assert code == 0, errors
  return output


@pytest.mark.slow
def test_run_resumes_with_same_result_after_worker_is_killed(
  cluster, local_output, tmp_path
):
  output = tmp_path / 'output'
  workers = [cluster.worker() for _ in range(2)]
  process = _start(output, f'--scheduler={cluster.address}')
  dask_clusters.wait_until(lambda: _rounds(output) >= 20, process, *workers)
  (killed,) = [each for each in workers if dask_clusters.cells_of(each)]
  (cell,) = dask_clusters.cells_of(killed)
  cell.kill()  # Its nanny starts another one; or the cell goes on elsewhere.
  code, stdout, errors = _wait(process, output)
  assert (code, errors) == (0, ''), cluster.logs()
  assert f'1 runs on {cluster.address}. Writing to ' in stdout
  assert f'\n1/1 {CELL}: accuracy ' in stdout
  log = (output / 'cells' / CELL / 'log.txt').read_text()
  (resumed,) = [line for line in log.splitlines() if ': going on after round ' in line]
  assert 0 < int(resumed.split(' after round ')[1].split()[0]) < ROUNDS
  assert 'Traceback' not in log
  assert _results(output) == _results(local_output)
  assert sorted(os.listdir(output)) == sorted(os.listdir(local_output))


@pytest.mark.slow
def test_killed_scheduler_is_reported_and_jobs_resume_the_grid(
  cluster, local_output, tmp_path
):
  output = tmp_path / 'output'
  worker = cluster.worker()
  process = _start(output, f'--scheduler={cluster.address}')
  dask_clusters.wait_until(lambda: _rounds(output) >= 20, process, worker)
  cluster.scheduler.kill()
  code, stdout, errors = _wait(process, output)
  assert code == 1
  assert errors.startswith('error: The Dask cluster failed: ')
  assert 'Finished runs are kept, and the others go on where they were' in errors
  assert errors.count('\n') == 1
  assert f'Results are in {output}' in stdout
  dask_clusters.wait_until(lambda: not dask_clusters.cells_of(worker))
  code, stdout, errors = _wait(_start(output, '--jobs=1'), output)
  assert (code, errors) == (0, '')
  assert _results(output) == _results(local_output)


@pytest.mark.slow
def test_ctrl_c_ends_the_round_and_command_resumes(cluster, local_output, tmp_path):
  output = tmp_path / 'output'
  cluster.worker()
  arguments = (f'--scheduler={cluster.address}',)
  process = _start(output, *arguments)
  dask_clusters.wait_until(lambda: _rounds(output) >= 20, process)
  process.send_signal(signal.SIGINT)
  code, stdout, errors = _wait(process, output)
  assert code == 130
  assert 'Ending after the rounds that are run' in errors
  assert f'{CELL}: stopped, and can go on' in stdout
  assert 'Stopped before its end; the same command goes on.' in stdout
  assert (output / 'cells' / CELL / 'report.md').exists()
  rounds = _rounds(output)
  assert 20 <= rounds < ROUNDS
  code, _, errors = _wait(_start(output, *arguments), output)
  assert (code, errors) == (0, '')
  log = (output / 'cells' / CELL / 'log.txt').read_text()
  assert f': going on after round {rounds} of {ROUNDS}.' in log
  assert _results(output) == _results(local_output)


@pytest.mark.slow
@pytest.mark.parametrize('is_interrupted', [False, True])
def test_workers_stop_cells_after_comparison_is_gone(cluster, tmp_path, is_interrupted):
  """The comparison is killed, or stopped by a second Ctrl-C."""
  output = tmp_path / 'output'
  worker = cluster.worker()
  process = _start(output, f'--scheduler={cluster.address}', rounds=5000)
  dask_clusters.wait_until(lambda: _rounds(output) >= 3, process)
  assert dask_clusters.cells_of(worker)
  if is_interrupted:
    process.send_signal(signal.SIGINT)
    stderr = pathlib.Path(f'{output}.err')
    dask_clusters.wait_until(lambda: 'again to end now' in stderr.read_text(), process)
    process.send_signal(signal.SIGINT)
    code, _, errors = _wait(process, output)
    assert code == 130
    assert errors.endswith('Ending at once.\n')
  else:
    process.kill()
    process.wait()
  dask_clusters.wait_until(lambda: not dask_clusters.cells_of(worker), worker)
  assert _rounds(output) < 5000


@pytest.mark.slow
@pytest.mark.parametrize('is_killed', [False, True])
def test_local_processes_end_with_the_comparison(tmp_path, is_killed):
  output = tmp_path / 'output'
  process = _start(output, '--jobs=1', rounds=5000)
  dask_clusters.wait_until(lambda: _rounds(output) >= 3, process)
  children = dask_clusters.children_of(process)
  if is_killed:
    process.kill()
  else:
    os.killpg(process.pid, signal.SIGINT)  # As a terminal does.
  code, _, errors = _wait(process, output)
  assert code == (-signal.SIGKILL if is_killed else 130), errors
  _, alive = psutil.wait_procs(children, timeout=30)
  assert not [each for each in alive if each.status() != psutil.STATUS_ZOMBIE]
  assert (output / 'cells' / CELL / 'checkpoints').exists()


_KILLS = """
import os, signal

def make():
  os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.slow
def test_run_that_kills_its_workers_fails_and_others_go_on(cluster, tmp_path):
  output = tmp_path / 'output'
  (tmp_path / 'killing.py').write_text(_KILLS)
  path = os.pathsep.join([str(tmp_path), *filter(None, sys.path)])
  cluster.worker(PYTHONPATH=path)
  process = _start(
    output,
    *(f'--scheduler={cluster.address}', '--mechanism=none'),
    rounds=3,
    grid='model=killing:make,logistic',
    PYTHONPATH=path,
  )
  code, stdout, errors = _wait(process, output)
  assert code == 1, errors
  (failed,) = (output / 'cells').glob('model=killing*')
  assert '/2 model=logistic,seed=1: accuracy ' in stdout
  assert f'{failed.name}: failed: KilledWorker: Attempted to run task' in stdout
  assert f'all of it is in {failed}/error.txt' in stdout
  assert (failed / 'log.txt').exists()
  rows = simulations.rows(output / 'cells.csv')
  statuses = {row['model']: row['status'] for row in rows}
  assert statuses == {'killing:make': 'failed', 'logistic': 'finished'}
