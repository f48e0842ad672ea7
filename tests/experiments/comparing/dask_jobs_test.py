"""Grids of runs on a Dask cluster: the same as here, whatever is lost meanwhile.

The clusters are real, of processes of this machine.
"""

import contextlib
import csv
import json
import os
import pathlib
import re
import shlex
import signal
import socket
import subprocess
import sys
import threading

import pytest

pytest.importorskip('distributed', reason='the extra dask is not installed')

from experiments import compare
from experiments import comparing
from experiments.comparing import dask_jobs
from experiments.comparing import dask_task
from experiments.comparing import jobs
from tests import executing
from tests.experiments.comparing import dask_clusters

SMALL = (
  '--num_clients=20',
  '--clients_per_round=5',
  '--min_separation=2',
  '--checkpoint_seconds=0.5',
)
ROUNDS = 150
CELL = 'mechanism=tree,seed=1'
# Which no two executions have in common.
_TIMES = ('round_seconds', 'clients_per_second', 'time', 'previous_line_sha256')


@pytest.fixture
def cluster(tmp_path):
  with dask_clusters.DaskCluster(tmp_path / 'cluster') as found:
    yield found


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
      # A test run in the background of a shell ignores Ctrl-C, and hands that on.
      preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


def _end(process, output):
  """Waits for its end; returns exit code, output and errors."""
  try:
    code = process.wait(timeout=dask_clusters.SECONDS)
  finally:
    process.kill()
    process.wait()
  return code, *(
    pathlib.Path(f'{output}.{each}').read_text() for each in ('out', 'err')
  )


def _rounds(output, cell=CELL):
  metrics = output / 'cells' / cell / 'metrics.csv'
  return len(metrics.read_text().splitlines()) - 1 if metrics.exists() else 0


def _came_to(output, cell=CELL):
  """What a run came to, bit by bit, but for the time that it took."""
  directory = output / 'cells' / cell
  with (directory / 'metrics.csv').open(newline='') as file:
    rows = [
      {name: text for name, text in row.items() if name not in _TIMES}
      for row in csv.DictReader(file)
    ]
  lines = [
    {name: each for name, each in json.loads(line).items() if name not in _TIMES}
    for line in (directory / 'ledger.jsonl').read_text().splitlines()
  ]
  return rows, lines, (directory / 'model.npz').read_bytes()


def _refusal(address, output=None, **seconds):
  """Why a cluster cannot be used."""
  with pytest.raises(jobs.RefusedError) as refused:
    with dask_jobs.Cluster(address, **seconds) as found:
      if output is not None:
        found.check(str(output))
  return str(refused.value)


class TestRefusals:
  @pytest.mark.parametrize(
    'address',
    [
      *('10.0.0.1:8786', 'http://10.0.0.1:8786', 'tcp://10.0.0.1', 'tcp://:8786'),
      *('tcp://10.0.0.1:0', 'tcp://10.0.0.1:65536', 'tcp://user@host:1', 'local', ''),
    ],
  )
  def test_what_is_no_address(self, address, tmp_path):
    output = tmp_path / 'output'
    result = executing.execute(compare, f'--scheduler={address}', f'--output={output}')
    assert result.returncode == 2
    assert f'--scheduler={address} is no address of a Dask scheduler' in result.stderr
    assert 'give --scheduler=tcp://HOST:PORT or tls://HOST:PORT' in result.stderr
    assert result.stderr.count('\n') == 1
    assert not output.exists()

  @pytest.mark.parametrize(
    'address', ['tcp://localhost:8786', 'tls://node-1.local:8786', 'tcp://[::1]:1/']
  )
  def test_what_is_an_address(self, address):
    dask_jobs.Cluster(address)

  @pytest.mark.parametrize('host', ['10.0.0.5', '0.0.0.0', '[2001:db8::5]'])
  def test_another_machine_is_refused_without_tls_or_a_trusted_network(self, host):
    address = f'{host}:8786'
    said = _refusal(f'tcp://{address}')
    assert said.startswith(f'--scheduler=tcp://{address} is not on this machine alone')
    assert 'unencrypted scheduler can run code on all of its workers. Give tls' in said
    assert said.endswith('or --trusted_network, if nobody else is on that network.')
    dask_jobs.Cluster(f'tcp://{address}', trusted_network=True)
    dask_jobs.Cluster(f'tls://{address}')
    dask_jobs.Cluster('tcp://127.0.0.1:8786')

  def test_a_name_without_address(self):
    said = _refusal('tcp://no-such-host.invalid:8786', trusted_network=True)
    assert said.startswith('--scheduler=no-such-host.invalid stands for no address')

  @pytest.mark.parametrize('address', ['tcp://127.0.0.1:1', 'tls://10.0.0.5:8786'])
  def test_a_trusted_network_that_allows_nothing(self, address, tmp_path):
    arguments = (f'--scheduler={address}', '--trusted_network')
    result = executing.execute(compare, *arguments, f'--output={tmp_path}/output')
    assert result.returncode == 2
    assert f' of another machine, and here there is --scheduler={address};' in (
      result.stderr
    )

  def test_jobs_as_well(self):
    result = executing.execute(compare, '--jobs=1', '--scheduler=tcp://h:1')
    assert result.returncode == 2
    assert '--jobs=1 is of runs here, and --scheduler=tcp://h:1 of runs on a' in (
      result.stderr
    )

  def test_without_dask_the_extra_is_named(self, monkeypatch):
    monkeypatch.setitem(sys.modules, 'distributed', None)
    monkeypatch.delitem(sys.modules, dask_jobs.__name__)
    monkeypatch.delattr(comparing, 'dask_jobs')
    result = executing.execute(compare, '--scheduler=tcp://h:1')
    assert result.returncode == 2
    assert 'needs Dask, which is not installed here' in result.stderr
    assert 'with its extra dask' in result.stderr

  def test_a_scheduler_that_is_not_there(self):
    with socket.socket() as unused:
      unused.bind(('127.0.0.1', 0))
      address = f'tcp://127.0.0.1:{unused.getsockname()[1]}'
    said = _refusal(address, reach_seconds=1.0)
    assert said.startswith(f'--scheduler={address} cannot be reached within 1 seconds')
    assert 'Look whether the scheduler runs there' in said

  @pytest.mark.parametrize('answer', [b'', b'HTTP/1.1 400 Bad Request\r\n\r\n' * 9])
  def test_something_else_than_a_scheduler(self, answer):
    with socket.create_server(('127.0.0.1', 0)) as server:
      connections = []

      def serve():
        with contextlib.suppress(OSError):  # At the end of the test.
          while True:
            connections.append(server.accept()[0])
            connections[-1].sendall(answer)

      threading.Thread(target=serve, daemon=True).start()
      address = f'tcp://127.0.0.1:{server.getsockname()[1]}'
      said = _refusal(address, reach_seconds=1.0)
      for each in connections:
        each.close()
    assert f'--scheduler={address} cannot be ' in said

  @pytest.mark.slow
  def test_a_cluster_whose_workers_are_missing_or_others(self, tmp_path):
    """No workers, then one that is fit, but not for a folder, then one of old code."""
    output = tmp_path / 'output'
    output.mkdir()
    with dask_clusters.DaskCluster(tmp_path / 'cluster') as cluster:
      said = _refusal(cluster.address, workers_seconds=0.5)
      assert 'has no workers, and none came within 0.5 seconds. Start some: ' in said
      assert f'dask worker {cluster.address} --nthreads 1' in said

      cluster.worker('--no-nanny')
      with dask_jobs.Cluster(cluster.address) as found:
        assert found.in_words == f'1 at a time on 1 Dask worker of {cluster.address}'
        found.check(str(output))
        assert len(os.listdir(output)) == 1
      assert os.listdir(output) == []

      # A path that is another folder in each process.
      where = f'/proc/self/fd/{os.open(output, os.O_RDONLY)}'
      said = _refusal(cluster.address, where)
      assert f' does not see what is in {where}: ' in said
      assert 'the folder that this is started in and --output' in said

      with cluster.another_version(tmp_path / 'other', '9.9.9') as path:
        cluster.worker('--no-nanny', PYTHONPATH=path)
        said = _refusal(cluster.address)
      assert ' has tff_dp_aggregators 9.9.9, and this program 0.1.0' in said
      assert said.count('tcp://127.0.0.1') == 2  # The one that is fit is not named.


@pytest.mark.parametrize('name', ['Python', 'tensorflow', 'tensorflow-federated'])
def test_what_a_worker_has_is_compared(name):
  own = dask_task.software()
  assert dask_task.unfit({'software': own}) == ''
  said = dask_task.unfit({'software': {**own, name: '0.0'}})
  assert said == f'has {name} {own[name]}, and this program 0.0'


@pytest.fixture(scope='module')
def here(tmp_path_factory):
  """The comparison as --jobs runs it."""
  output = tmp_path_factory.mktemp('here') / 'output'
  code, _, errors = _end(_start(output, '--jobs=1'), output)
  assert code == 0, errors
  return output


@pytest.mark.slow
def test_a_run_whose_worker_is_killed_goes_on_and_comes_to_the_same(
  cluster, here, tmp_path
):
  output = tmp_path / 'output'
  workers = [cluster.worker('--no-nanny') for _ in range(2)]
  process = _start(output, f'--scheduler={cluster.address}')
  dask_clusters.wait_until(lambda: _rounds(output) >= 20, process, *workers)
  (killed,) = [each for each in workers if dask_clusters.cells_of(each)]
  (cell,) = dask_clusters.cells_of(killed)
  before = _rounds(output)
  killed.kill()
  code, said, errors = _end(process, output)
  assert (code, errors) == (0, ''), cluster.said()
  assert f'1 run, 2 at a time on 2 Dask workers of {cluster.address}.' in said
  assert f'\n1/1 {CELL}: accuracy ' in said
  assert not cell.is_running()
  log = (output / 'cells' / CELL / 'log.txt').read_text()
  (gone_on,) = [line for line in log.splitlines() if ': going on after round ' in line]
  assert before <= int(gone_on.split(' after round ')[1].split()[0]) < ROUNDS
  assert 'Traceback' not in log
  assert _came_to(output) == _came_to(here)
  assert sorted(os.listdir(output)) == sorted(os.listdir(here))


@pytest.mark.slow
def test_a_run_goes_on_when_its_process_is_killed_together_with_the_worker(
  cluster, here, tmp_path
):
  """And the nanny has another worker by then, as where memory ran out."""
  output = tmp_path / 'output'
  worker = cluster.worker()
  process = _start(output, f'--scheduler={cluster.address}')
  checkpoints = output / 'cells' / CELL / 'checkpoints'
  dask_clusters.wait_until(lambda: _rounds(output) >= 40, process, worker)
  assert list(checkpoints.iterdir())
  (cell,) = dask_clusters.cells_of(worker)
  os.kill(cell.ppid(), signal.SIGSTOP)  # It is not to tell that the run failed.
  os.kill(cell.pid, signal.SIGKILL)
  os.kill(cell.ppid(), signal.SIGKILL)
  code, _, errors = _end(process, output)
  assert (code, errors) == (0, ''), cluster.said()
  log = (output / 'cells' / CELL / 'log.txt').read_text()
  (gone_on,) = [line for line in log.splitlines() if ': going on after round ' in line]
  assert 0 < int(gone_on.split(' after round ')[1].split()[0]) < ROUNDS
  assert _came_to(output) == _came_to(here)


@pytest.mark.slow
def test_a_scheduler_that_is_killed_is_told_and_the_grid_goes_on_here(
  cluster, here, tmp_path
):
  output = tmp_path / 'output'
  worker = cluster.worker('--no-nanny')
  process = _start(output, f'--scheduler={cluster.address}')
  dask_clusters.wait_until(lambda: _rounds(output) >= 20, process, worker)
  cells = dask_clusters.cells_of(worker)
  cluster.scheduler.kill()
  code, said, errors = _end(process, output)
  assert code == 1
  assert errors.startswith(f'error: The Dask scheduler {cluster.address} ')
  assert 'Finished runs are kept, and the others go on where they were' in errors
  assert errors.count('\n') == 1
  assert f'Results are in {output}' in said
  # While the process of the worker may still be there, which is waited for.
  code, said, errors = _end(_start(output, '--jobs=1'), output)
  assert (code, errors) == (0, '')
  assert not [each for each in cells if each.is_running()]
  assert _came_to(output) == _came_to(here)


@pytest.mark.slow
def test_ctrl_c_ends_the_round_and_the_same_command_goes_on(cluster, here, tmp_path):
  output = tmp_path / 'output'
  cluster.worker('--no-nanny')
  arguments = (f'--scheduler={cluster.address}',)
  process = _start(output, *arguments)
  dask_clusters.wait_until(lambda: _rounds(output) >= 20, process)
  process.send_signal(signal.SIGINT)
  code, said, errors = _end(process, output)
  assert code == 130
  assert 'Ending after the rounds that are run' in errors
  assert f'{CELL}: stopped, and can go on' in said
  assert 'Stopped before its end; the same command goes on.' in said
  assert (output / 'cells' / CELL / 'report.md').exists()
  rounds = _rounds(output)
  assert 20 <= rounds < ROUNDS
  code, _, errors = _end(_start(output, *arguments), output)
  assert (code, errors) == (0, '')
  log = (output / 'cells' / CELL / 'log.txt').read_text()
  assert f': going on after round {rounds} of {ROUNDS}.' in log
  assert _came_to(output) == _came_to(here)


@pytest.mark.slow
@pytest.mark.parametrize('again', [False, True])
def test_nothing_runs_on_for_a_comparison_that_is_gone(cluster, tmp_path, again):
  """Which was killed, or was told twice to stop."""
  output = tmp_path / 'output'
  worker = cluster.worker('--no-nanny')
  process = _start(output, f'--scheduler={cluster.address}', rounds=5000)
  dask_clusters.wait_until(lambda: _rounds(output) >= 3, process)
  cells = dask_clusters.cells_of(worker)
  assert cells
  if again:
    process.send_signal(signal.SIGINT)
    said = pathlib.Path(f'{output}.err')
    dask_clusters.wait_until(lambda: 'again to end now' in said.read_text(), process)
    process.send_signal(signal.SIGINT)
    code, _, errors = _end(process, output)
    assert code == 130
    assert errors.endswith('Ending at once.\n')
  else:
    process.kill()
    process.wait()
  dask_clusters.wait_until(lambda: not any(each.is_running() for each in cells), worker)
  assert _rounds(output) < 5000


@pytest.mark.slow
def test_workers_that_join_are_used_if_they_are_fit(cluster, tmp_path):
  output = tmp_path / 'output'
  first = cluster.worker('--no-nanny')
  grid = 'mechanism=tree,gaussian,none'
  process = _start(output, f'--scheduler={cluster.address}', grid=grid)
  dask_clusters.wait_until(lambda: dask_clusters.cells_of(first), process)
  with cluster.another_version(tmp_path / 'other', '9.9.9') as path:
    other = cluster.worker('--no-nanny', PYTHONPATH=path)
    second = cluster.worker('--no-nanny')
    dask_clusters.wait_until(lambda: dask_clusters.cells_of(second), process)
    assert not dask_clusters.cells_of(other)
    code, said, errors = _end(process, output)
  assert (code, errors) == (0, ''), cluster.said()
  assert said.count(' is not used: it has tff_dp_aggregators 9.9.9, and this ') == 1
  assert '\n3/3 mechanism=' in said


_KILLS = """
import os, signal, sys

def make():
  os.kill(os.getppid(), signal.SIGKILL)
  signal.pause()
"""


@pytest.mark.slow
def test_a_run_that_kills_its_workers_fails_and_the_others_go_on(cluster, tmp_path):
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
  code, said, errors = _end(process, output)
  assert code == 1, errors
  (failed,) = (output / 'cells').glob('model=killing*')
  assert '/2 model=logistic,seed=1: accuracy ' in said
  assert f'{failed.name}: failed: 4 Dask workers were lost while they had this' in said
  assert 'More than 3 (distributed.scheduler.allowed-failures) are not tried' in said
  assert f'all of it: {failed}/error.txt' in said
  assert (failed / 'log.txt').exists()
  with (output / 'cells.csv').open() as file:
    statuses = {row['model']: row['status'] for row in csv.DictReader(file)}
  assert statuses == {'killing:make': 'failed', 'logistic': 'finished'}


@pytest.mark.slow
def test_an_encrypted_cluster_has_the_keys_of_the_configuration(tmp_path):
  """And is refused without them."""
  key, certificate = tmp_path / 'key.pem', tmp_path / 'certificate.pem'
  subprocess.run(
    [
      *('openssl', 'req', '-x509', '-newkey', 'rsa:2048', '-nodes', '-days', '2'),
      *('-subj', '/CN=127.0.0.1', '-keyout', key, '-out', certificate),
    ],
    check=True,
    capture_output=True,
  )
  files = (
    f'--tls-ca-file={certificate}',
    f'--tls-cert={certificate}',
    f'--tls-key={key}',
  )
  configuration = tmp_path / 'configuration'
  configuration.mkdir()
  pair = {'key': str(key), 'cert': str(certificate)}
  tls = {'ca-file': str(certificate), 'client': pair}
  (configuration / 'tls.json').write_text(
    json.dumps({'distributed': {'comm': {'tls': tls}}})
  )
  output = tmp_path / 'output'
  folder = tmp_path / 'cluster'
  with dask_clusters.DaskCluster(folder, '--protocol=tls', *files) as cluster:
    assert cluster.address.startswith('tls://')
    cluster.worker('--no-nanny', *files)
    arguments = (f'--scheduler={cluster.address}',)
    code, _, errors = _end(_start(output, *arguments, rounds=3), output)
    assert code == 2
    assert f'--scheduler={cluster.address} needs keys and certificates of' in errors
    assert 'ca-file, client.key and client.cert: it names none' in errors
    assert errors.count('\n') == 1
    process = _start(output, *arguments, rounds=3, DASK_CONFIG=str(configuration))
    code, said, errors = _end(process, output)
    assert (code, errors) == (0, ''), cluster.said()
  assert f'\n1/1 {CELL}: accuracy ' in said


@pytest.mark.slow
def test_the_commands_of_the_documents(tmp_path):
  document = (dask_clusters.ROOT / 'docs' / 'experiments.md').read_text()
  section = document.split('### Grids on several machines')[1].split('\n### ')[0]
  (block,) = re.findall(r'(?ms)^```bash\n(.*?)^```', section)
  assert ' --trusted_network ' in block
  block = block.replace(' --trusted_network', '')  # On one machine it allows nothing.
  with socket.socket() as unused:
    unused.bind(('127.0.0.1', 0))
    port = unused.getsockname()[1]
  output = tmp_path / 'output'
  here = block.replace('10.0.0.1', '127.0.0.1').replace('8786', str(port))
  here = here.replace('runs/on_dask', str(output)).replace('\\\n', ' ')
  scheduler, workers, comparison = here.splitlines()
  with dask_clusters.DaskCluster(tmp_path / 'cluster', command=scheduler) as cluster:
    cluster.worker(command=workers)
    dask_clusters.wait_until(lambda: cluster.said().count('Registered to') == 2)
    arguments = comparison.partition(' -m experiments.compare ')[2]
    small = (*SMALL, '--num_rounds=2', '--seeds=1')
    code, said, errors = _end(_run(output, *shlex.split(arguments), *small), output)
  assert (code, errors) == (0, ''), cluster.said()
  assert '2 runs, 2 at a time on 2 Dask workers of tcp://127.0.0.1:' in said
  assert (output / 'table.md').exists()
