"""The containers of docs/several_machines/kubernetes run as they are described.

Claims:

* A worker runs as the user, with the rights and the volumes that workers.yaml says,
  reads the key as the cluster leaves it, closes TFF's port to other machines, and ends
  by what ends a pod.
* The training of coordinator.yaml does the same; workers see nothing of its runs.
"""

import os
import pathlib
import re
import signal
import subprocess
import types

import pytest
import yaml

from tests.workers import containers
from tests.workers import machines
from tests.workers import recipes_test
from tests.workers import supervised
from tff_dp_aggregators.workers import credentials

_USER = 10001
# A round of it takes a moment.
_SMALL = (
  *('--num_clients=40', '--clients_per_round=8', '--min_separation=2'),
  *('--num_rounds=3', '--noise_multiplier=1'),
)

pytestmark = recipes_test.needs_openssl


def _pod(name):
  path = recipes_test.CLUSTER / name
  return yaml.safe_load(path.read_text('utf-8'))['spec']['template']['spec']


@pytest.fixture(scope='module')
def cluster(tmp_path_factory):
  """Another machine, certificates for it, and volumes as a cluster has them."""
  containers.need()
  with machines.another() as machine:
    folder = tmp_path_factory.mktemp('cluster')
    certificates, runs = folder / 'certificates', folder / 'runs'
    made = recipes_test.make_certificates(certificates, machine.address)
    assert made.returncode == 0, made.stderr
    secrets = {}
    for role in ('worker', 'coordinator'):
      secrets[role] = folder / role
      secrets[role].mkdir()
      for name in (f'{role}.crt', f'{role}.key', 'group.crt'):
        path = secrets[role] / name
        path.write_bytes((certificates / name).read_bytes())
        os.chown(path, 0, _USER)
        path.chmod(0o440)
    runs.mkdir()
    os.chown(runs, 0, _USER)
    runs.chmod(0o2775)
    yield types.SimpleNamespace(
      machine=machine, certificates=certificates, secrets=secrets, runs=runs
    )


@pytest.fixture(scope='module')
def worker(cluster):
  volumes = {'certificates': cluster.secrets['worker']}
  command = containers.command(_pod('workers.yaml'), volumes)
  with supervised.Worker(command=(*cluster.machine.command, *command)) as worker:
    yield worker
    (program,) = _within(worker)
    program.send_signal(signal.SIGTERM)
    code, lines = worker.finish()
    assert (code, lines[-1]) == (0, 'ended by SIGTERM')


def _within(worker):
  """The program of a container, as this side of its borders sees it."""
  return [
    each
    for each in worker.process.children()
    if each.uids().real == _USER and each.gids().real == _USER
  ]


def test_a_worker_runs_as_it_is_described(cluster, worker):
  # Some kernels keep filters of sockets for root; in a pod there is nobody else.
  others = [line for line in worker.lines if 'SO_ATTACH_FILTER: ' not in line]
  assert others == [
    'listening on 0.0.0.0:8470 (with certificates of /certificates/group.crt only)'
  ]
  (program,) = _within(worker)
  status = pathlib.Path(f'/proc/{program.pid}/status').read_text()
  found = dict(re.findall(r'^(\w+):\s+(.*)$', status, re.MULTILINE))
  assert found['NSpid'].split()[-1] == '1'
  assert (found['CapEff'], found['NoNewPrivs']) == ('0' * 16, '1')
  assert int(found['CapBnd'], 16) == 1 << 19  # CAP_SYS_PTRACE, for the filter alone.
  root = pathlib.Path(f'/proc/{program.pid}/root')
  assert (root / 'tmp' / 'status.json').is_file()
  assert not (root / 'runs').exists()
  assert program.children()[0].name() == supervised.BINARY


def test_its_port_is_the_only_one(cluster, worker):
  listening = subprocess.run(
    [*cluster.machine.command, 'cat', '/proc/net/tcp', '/proc/net/tcp6'],
    capture_output=True,
    text=True,
    check=True,
  ).stdout
  ports = {int(port, 16) for port in re.findall(r':([0-9A-F]{4}) \S+ 0A ', listening)}
  assert 8470 in ports and len(ports) == 2
  reached = {port for port in ports if machines.reaches(cluster.machine.address, port)}
  assert reached == {8470}
  names = ('coordinator.crt', 'coordinator.key', 'group.crt')
  files = (f'{cluster.certificates}/{name}' for name in names)
  channel = credentials.Files(*files).channel()
  with supervised.Caller(f'{cluster.machine.address}:8470', channel) as caller:
    assert caller.status()['state'] == 'serving'
    assert caller.executor()


@pytest.mark.slow
def test_a_training_runs_as_it_is_described(cluster, worker, tmp_path):
  pod = _pod('coordinator.yaml')
  (container,) = pod['containers']
  # There is no service with a name here.
  service = container['args'].index('--workers=workers:8470')
  container['args'][service] = f'--workers={cluster.machine.address}:8470'
  container['args'] += _SMALL
  volumes = {'certificates': cluster.secrets['coordinator'], 'runs': cluster.runs}
  with open(tmp_path / 'said', 'w+') as said:
    done = subprocess.run(
      containers.command(pod, volumes), stdout=said, stderr=said, timeout=300
    )
    said.seek(0)
    text = said.read()
  assert done.returncode == 0, text
  assert 'and is sent the data' in text
  assert 'listens on all addresses' not in text
  assert 'Privacy spent in 3 of 3 rounds' in text
  assert (cluster.runs / 'digits' / 'report.md').is_file()
