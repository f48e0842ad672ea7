"""Tests of `runtime.Worker`, which starts, isolates and ends TFF's `worker_binary`."""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys

import grpc
import psutil
import pytest

from tff_dp_aggregators.learning import runtime


class _Machine:
  """A network namespace that serves as another machine; `with` makes and removes it.

  Attributes:
    command: Prefix of commands that run there.
    address: Its address, as this machine reaches it.
    host_address: The address of this machine, as the namespace reaches it.
  """

  def __init__(self):
    self._name = f'tff-dp-{os.getpid()}'
    self._link = f'tfa{os.getpid()}'
    self.command = ('ip', 'netns', 'exec', self._name)
    # Four addresses for each process, of the block for tests of networks (RFC 2544).
    first = 4 * (os.getpid() % 2**15)
    self.host_address, self.address = (
      f'198.{18 + (first >> 16)}.{first >> 8 & 255}.{(first & 255) + last}'
      for last in (1, 2)
    )

  def __enter__(self):
    namespace, peer_link = ('-n', self._name), f'tfb{os.getpid()}'
    _ip('netns', 'add', self._name)
    try:
      peer = ('peer', 'name', peer_link, 'netns', self._name)
      _ip('link', 'add', self._link, 'type', 'veth', *peer)
      _ip('address', 'add', f'{self.host_address}/30', 'dev', self._link)
      _ip('link', 'set', self._link, 'up')
      _ip(*namespace, 'address', 'add', f'{self.address}/30', 'dev', peer_link)
      _ip(*namespace, 'link', 'set', peer_link, 'up')
      _ip(*namespace, 'link', 'set', 'lo', 'up')
    except PermissionError:
      self.__exit__()
      raise
    return self

  def __exit__(self, *unused):
    _ip('netns', 'delete', self._name)  # This deletes the link, too.


def _ip(*arguments):
  result = subprocess.run(['ip', *arguments], capture_output=True, text=True)
  if result.returncode:
    raise PermissionError(result.stderr)


@contextlib.contextmanager
def _other_machine():
  """Yields another machine, or skips the test where none can be made."""
  if os.getuid() != 0 or shutil.which('ip') is None:
    pytest.skip('another machine is a network namespace, which root alone can make')
  with contextlib.ExitStack() as stack:
    try:
      machine = stack.enter_context(_Machine())
    except PermissionError as e:
      pytest.skip(f'no network namespace can be made here: {e}')
    yield machine


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


def _answers(worker):
  grpc.channel_ready_future(worker.channel).result(60)
  return True


def test_worker_listens_on_loopback_only(worker):
  assert _is_open('127.0.0.1', worker.port) and _is_open('::1', worker.port)
  if not _own_addresses():
    pytest.skip('this machine has no address but loopback')
  for address in _own_addresses():
    family = socket.AF_INET6 if ':' in address else socket.AF_INET
    with socket.create_server((address, 0), family=family) as server:
      assert _is_open(address, server.getsockname()[1])
    assert not _is_open(address, worker.port), address


_CONNECT = """
import socket, sys
try:
  connection = socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=2)
except OSError:
  print('refused', flush=True)
else:
  print('connected', flush=True)
  sys.stdin.readline()
"""


@contextlib.contextmanager
def connecting(command, address, port):
  """Connects where `command` runs the program; yields whether that worked."""
  process = subprocess.Popen(
    [*command, sys.executable, '-c', _CONNECT, address, str(port)],
    stdin=subprocess.PIPE,
    stdout=subprocess.PIPE,
    text=True,
  )
  try:
    yield process.stdout.readline() == 'connected\n'
  finally:
    process.communicate('\n', timeout=60)


@pytest.fixture(scope='module')
def other_machine():
  with _other_machine() as machine:
    yield machine.command, machine.host_address


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
  assert worker.is_alive() and _answers(worker)


def _environment(worker):
  with open(f'/proc/{worker.pid}/environ', 'rb') as file:
    pairs = file.read().decode().rstrip('\0').split('\0')
  return dict(pair.split('=', 1) for pair in pairs)


def test_worker_has_one_thread_per_operation_and_keeps_memory(worker):
  environment = _environment(worker)
  assert environment['TF_NUM_INTRAOP_THREADS'] == '1'
  assert int(environment['MALLOC_TRIM_THRESHOLD_']) >= 2**25
  assert int(environment['MALLOC_MMAP_THRESHOLD_']) == 2**25


def test_worker_keeps_environment_variables_of_the_user(monkeypatch):
  monkeypatch.setenv('TF_NUM_INTRAOP_THREADS', '3')
  worker = runtime.Worker()
  try:
    assert _environment(worker)['TF_NUM_INTRAOP_THREADS'] == '3'
  finally:
    worker.end()
