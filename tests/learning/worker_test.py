"""Tests of `runtime.Worker`, which starts, isolates and ends TFF's `worker_binary`."""

import contextlib
import os
import shutil
import signal
import socket
import subprocess

import grpc
import psutil
import pytest

from tff_dp_aggregators.learning import runtime


@pytest.fixture(scope='module')
def other_machine():
  """Makes a network namespace, which serves as another machine.

  Yields the prefix of commands that run there, and the address by which it reaches this
  machine.
  """
  if os.getuid() != 0 or shutil.which('ip') is None:
    pytest.skip('another machine is a network namespace, which root alone can make')
  pid = os.getpid()
  name, link, peer_link = f'tff-dp-{pid}', f'tfa{pid}', f'tfb{pid}'
  # Four addresses for each process, of the block for tests of networks (RFC 2544).
  first = 4 * (pid % 2**15)
  here, there = (
    f'198.{18 + (first >> 16)}.{first >> 8 & 255}.{(first & 255) + last}'
    for last in (1, 2)
  )
  try:
    for command in (
      f'netns add {name}',
      f'link add {link} type veth peer name {peer_link} netns {name}',
      f'address add {here}/30 dev {link}',
      f'link set {link} up',
      f'-n {name} address add {there}/30 dev {peer_link}',
      f'-n {name} link set {peer_link} up',
      f'-n {name} link set lo up',
    ):
      result = subprocess.run(['ip', *command.split()], capture_output=True, text=True)
      if result.returncode:
        pytest.skip(f'no network namespace can be made here: {result.stderr}')
    yield ('ip', 'netns', 'exec', name), here
  finally:  # This deletes the links, too.
    subprocess.run(['ip', 'netns', 'delete', name], capture_output=True, check=False)


def _own_addresses():
  """Returns addresses of this machine that are neither loopback nor link-local."""
  return [
    entry.address
    for entries in psutil.net_if_addrs().values()
    for entry in entries
    if entry.family in (socket.AF_INET, socket.AF_INET6)
    and not entry.address.startswith(('127.', '::1', 'fe80:'))
  ]


def _is_open(host, port):
  """Returns whether a server listens there."""
  try:
    socket.create_connection((host, port), timeout=2).close()
  except OSError:
    return False
  return True


@pytest.fixture
def worker():
  worker = runtime.Worker()
  yield worker
  worker.end()


def test_worker_listens_on_loopback_only(worker):
  assert _is_open('127.0.0.1', worker.port) and _is_open('::1', worker.port)
  if not _own_addresses():
    pytest.skip('this machine has no address but loopback')
  for address in _own_addresses():
    family = socket.AF_INET6 if ':' in address else socket.AF_INET
    with socket.create_server((address, 0), family=family) as server:
      assert _is_open(address, server.getsockname()[1])
    assert not _is_open(address, worker.port), address


# A shell that cannot open the connection ends.
_CONNECT = 'exec 3<>/dev/tcp/$0/$1 && echo connected && read'


@contextlib.contextmanager
def connecting(command, address, port):
  """Connects where `command` runs the shell; yields whether that worked."""
  process = subprocess.Popen(
    [*command, 'bash', '-c', _CONNECT, address, str(port)],
    stdin=subprocess.PIPE,
    stdout=subprocess.PIPE,
    text=True,
  )
  try:
    yield process.stdout.readline() == 'connected\n'
  finally:
    process.communicate('\n', timeout=60)


def test_other_machine_cannot_connect_to_worker(worker, other_machine):
  command, address = other_machine
  with socket.create_server((address, 0)) as server:
    with connecting(command, address, server.getsockname()[1]) as connected:
      assert connected
  with connecting(command, address, worker.port) as connected:
    assert not connected


def test_connection_before_binding_to_loopback_is_detected(monkeypatch, other_machine):
  command, address = other_machine
  bind, pids = runtime._bind_to_loopback, []
  with contextlib.ExitStack() as connections:

    def connect_and_bind(pid, descriptor):
      (port,) = {
        each.laddr.port
        for each in psutil.Process(pid).net_connections('tcp')
        if each.fd == descriptor
      }
      pids.append(pid)
      assert connections.enter_context(connecting(command, address, port))
      return bind(pid, descriptor)

    monkeypatch.setattr(runtime, '_bind_to_loopback', connect_and_bind)
    with pytest.raises(runtime.WorkerError, match='reached from another machine'):
      runtime.Worker()
    assert not psutil.pid_exists(*pids)


def test_worker_warns_where_kernel_lacks_pidfd_getfd(monkeypatch, caplog):
  monkeypatch.setattr(runtime, '_PIDFD_GETFD', 9999)
  runtime._warn_that_worker_is_open.cache_clear()
  runtime.Worker().end()
  for words in ('pidfd_getfd: Function not implemented', 'run code', 'SYS_PTRACE'):
    assert words in caplog.text


@pytest.mark.parametrize(
  'script, seconds, message',
  [('kill -6 $$', 60.0, 'BRT before'), ('exec sleep 1000', 0.3, 'SIGKILL before')],
)
def test_worker_that_fails_to_start_is_ended_with_error(
  script, seconds, message, tmp_path, monkeypatch
):
  binary = tmp_path / 'worker_binary'
  binary.write_text(f'#!/bin/sh\n{script}\n')
  binary.chmod(0o755)
  monkeypatch.setattr(runtime, '_BINARY', str(binary))
  monkeypatch.setattr(runtime, '_START_SECONDS', seconds)
  before = psutil.Process().children()
  with pytest.raises(runtime.WorkerError, match=message):
    runtime.Worker()
  assert psutil.Process().children() == before


def test_worker_ignores_sigint_and_sigterm(worker):
  for number in (signal.SIGINT, signal.SIGTERM):
    os.kill(worker.pid, number)
  grpc.channel_ready_future(worker.channel).result(60)
  assert worker.is_alive()


@pytest.mark.parametrize('threads_of_user', [None, '3'])
def test_worker_has_one_thread_per_operation_unless_stated_and_keeps_memory(
  threads_of_user, monkeypatch
):
  if threads_of_user:
    monkeypatch.setenv('TF_NUM_INTRAOP_THREADS', threads_of_user)
  worker = runtime.Worker()
  environment = psutil.Process(worker.pid).environ()
  worker.end()
  assert environment['TF_NUM_INTRAOP_THREADS'] == (threads_of_user or '1')
  assert int(environment['MALLOC_TRIM_THRESHOLD_']) >= 2**25
  assert int(environment['MALLOC_MMAP_THRESHOLD_']) == 2**25
