"""`worker_binary` is started, closed to other machines, and ended."""

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
  """A network namespace; made and removed by `with`.

  Attributes:
    command: Before what is to run there.
    address: Its address, as this machine reaches it.
    here: That of this machine, as it reaches this one.
  """

  def __init__(self):
    self._name = f'tff-dp-{os.getpid()}'
    self._link = f'tfa{os.getpid()}'
    self.command = ('ip', 'netns', 'exec', self._name)
    # Of the block for tests of networks (RFC 2544), four addresses for each process.
    first = 4 * (os.getpid() % 2**15)
    self.here, self.address = (
      f'198.{18 + (first >> 16)}.{first >> 8 & 255}.{(first & 255) + last}'
      for last in (1, 2)
    )

  def __enter__(self):
    there, far = ('-n', self._name), f'tfb{os.getpid()}'
    _ip('netns', 'add', self._name)
    try:
      peer = ('peer', 'name', far, 'netns', self._name)
      _ip('link', 'add', self._link, 'type', 'veth', *peer)
      _ip('address', 'add', f'{self.here}/30', 'dev', self._link)
      _ip('link', 'set', self._link, 'up')
      _ip(*there, 'address', 'add', f'{self.address}/30', 'dev', far)
      _ip(*there, 'link', 'set', far, 'up')
      _ip(*there, 'link', 'set', 'lo', 'up')
    except PermissionError:
      self.__exit__()
      raise
    return self

  def __exit__(self, *unused):
    _ip('netns', 'delete', self._name)  # And the link with it.


def _ip(*arguments):
  result = subprocess.run(['ip', *arguments], capture_output=True, text=True)
  if result.returncode:
    raise PermissionError(result.stderr)


@contextlib.contextmanager
def _another():
  """Another machine; the test is skipped where there can be none."""
  if os.getuid() != 0 or shutil.which('ip') is None:
    pytest.skip('another machine is a network namespace, which root alone can make')
  with contextlib.ExitStack() as stack:
    try:
      machine = stack.enter_context(_Machine())
    except PermissionError as e:
      pytest.skip(f'no network namespace can be made here: {e}')
    yield machine


def _own_addresses():
  """Addresses of this machine that are not loopback, without those of a link."""
  return [
    entry.address
    for entries in psutil.net_if_addrs().values()
    for entry in entries
    if entry.family in (socket.AF_INET, socket.AF_INET6)
    and not entry.address.startswith(('127.', '::1', 'fe80:'))
  ]


def _reaches(host, port):
  """Whether somebody listens there."""
  try:
    socket.create_connection((host, port), timeout=2).close()
  except OSError:
    return False
  return True


@pytest.fixture
def running():
  process = runtime.Worker()
  yield process
  process.end()


def _answers(process):
  grpc.channel_ready_future(process.channel).result(60)
  return True


def test_the_other_addresses_of_the_machine_do_not_reach_it(running):
  assert _reaches('127.0.0.1', running.port) and _reaches('::1', running.port)
  if not _own_addresses():
    pytest.skip('this machine has no address but loopback')
  for address in _own_addresses():
    family = socket.AF_INET6 if ':' in address else socket.AF_INET
    with socket.create_server((address, 0), family=family) as other:
      assert _reaches(address, other.getsockname()[1])
    assert not _reaches(address, running.port), address


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
  """Connects from there; gives whether that worked, if asked for with an answer."""
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
def elsewhere():
  with _another() as machine:
    yield machine.command, machine.here


def test_another_machine_does_not_reach_it(running, elsewhere):
  command, address = elsewhere
  with socket.create_server((address, 0)) as other:
    with connecting(command, address, other.getsockname()[1]) as connected:
      assert connected
  with connecting(command, address, running.port) as connected:
    assert not connected


def test_who_was_quicker_than_the_binding_is_noticed(monkeypatch, elsewhere):
  command, address = elsewhere
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


def test_where_the_kernel_has_no_such_call_it_is_told(monkeypatch, caplog):
  monkeypatch.setattr(runtime, '_PIDFD_GETFD', 9999)
  runtime._warn_that_worker_is_open.cache_clear()
  runtime.Worker().end()
  for words in ('pidfd_getfd: Function not implemented', 'run code', 'SYS_PTRACE'):
    assert words in caplog.text


@pytest.mark.parametrize(
  'script, seconds, how',
  [('kill -6 $$', 60.0, 'BRT before'), ('exec sleep 1000', 0.3, 'SIGKILL before')],
)
def test_one_that_does_not_start_is_ended_and_says_how(
  script, seconds, how, tmp_path, monkeypatch
):
  broken = tmp_path / 'worker_binary'
  broken.write_text(f'#!/bin/sh\n{script}\n')
  broken.chmod(0o755)
  monkeypatch.setattr(runtime, '_BINARY', str(broken))
  monkeypatch.setattr(runtime, '_START_SECONDS', seconds)
  before = psutil.Process().children()
  with pytest.raises(runtime.WorkerError, match=how):
    runtime.Worker()
  assert psutil.Process().children() == before


def test_ctrl_c_and_sigterm_are_not_for_it(running):
  for number in (signal.SIGINT, signal.SIGTERM):
    os.kill(running.pid, number)
  assert running.is_alive() and _answers(running)


def _environment(process):
  with open(f'/proc/{process.pid}/environ', 'rb') as file:
    pairs = file.read().decode().rstrip('\0').split('\0')
  return dict(pair.split('=', 1) for pair in pairs)


def test_it_has_one_thread_for_an_operation_and_keeps_memory(running):
  found = _environment(running)
  assert found['TF_NUM_INTRAOP_THREADS'] == '1'
  assert int(found['MALLOC_TRIM_THRESHOLD_']) >= 2**25
  assert int(found['MALLOC_MMAP_THRESHOLD_']) == 2**25


def test_what_a_user_set_is_left(monkeypatch):
  monkeypatch.setenv('TF_NUM_INTRAOP_THREADS', '3')
  process = runtime.Worker()
  try:
    assert _environment(process)['TF_NUM_INTRAOP_THREADS'] == '3'
  finally:
    process.end()
