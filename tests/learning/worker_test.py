"""`worker_binary` is started, closed to other machines, and ended."""

import contextlib
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys

import grpc
import psutil
import pytest

from tff_dp_aggregators.learning import worker


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
  process = worker.Worker()
  yield process
  process.end()


def _answers(process):
  grpc.channel_ready_future(process.channel).result(60)
  return True


def test_it_listens_and_answers(running):
  assert running.is_alive() and running.port > 0
  assert _answers(running)


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
  bind, pids = worker._bind_to_loopback, []
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

    monkeypatch.setattr(worker, '_bind_to_loopback', connect_and_bind)
    with pytest.raises(worker.WorkerError, match='reached from another machine'):
      worker.Worker()
    assert not psutil.pid_exists(*pids)


_REFUSED = """
import ctypes, struct, sys
# A filter of system calls, as a container's: one fails by EPERM, with this number, or
# with this number and third argument.
def instruction(code, true, false, value):
  return struct.pack('HBBI', code, true, false, value)
wanted = list(zip((0, 32), map(int, sys.argv.pop(1).split(','))))
program = b''.join(
  instruction(0x20, 0, 0, offset)
  + instruction(0x15, 0, 2 * (len(wanted) - number) - 1, value)
  for number, (offset, value) in enumerate(wanted))
program += instruction(0x06, 0, 0, 0x00050001) + instruction(0x06, 0, 0, 0x7fff0000)
kept = ctypes.create_string_buffer(program)
filter = struct.pack('HxxxxxxP', len(program) // 8, ctypes.addressof(kept))
libc = ctypes.CDLL(None)
assert libc.prctl(38, 1, 0, 0, 0) == 0  # PR_SET_NO_NEW_PRIVS
assert libc.prctl(22, 2, filter) == 0  # PR_SET_SECCOMP
from tff_dp_aggregators.learning import worker
worker.Worker().end()
"""


def test_where_the_kernel_has_no_such_call_it_is_told(monkeypatch, caplog):
  monkeypatch.setattr(worker, '_PIDFD_GETFD', 9999)
  worker._warn_that_it_is_open.cache_clear()
  worker.Worker().end()
  for words in ('pidfd_getfd: Function not implemented', 'run code', 'SYS_PTRACE'):
    assert words in caplog.text


@pytest.mark.slow
def test_where_the_kernel_refuses_it_is_told():
  done = subprocess.run(
    [sys.executable, '-c', _REFUSED, '438'],  # pidfd_getfd(2)
    cwd=pathlib.Path(__file__).resolve().parents[2],
    capture_output=True,
    text=True,
    timeout=120,
  )
  assert done.returncode == 0, done.stderr
  for words in ('pidfd_getfd: Operation not permitted', 'run code', 'SYS_PTRACE'):
    assert words in done.stderr


def test_it_says_how_it_ended(running):
  assert running.end() == 'was ended by SIGKILL'
  assert not running.is_alive()


@pytest.mark.parametrize(
  'script, how', [('exit 3', 'exit code 3'), ('kill -6 $$', 'BRT')]
)
def test_one_that_does_not_start_says_how_it_ended(script, how, tmp_path, monkeypatch):
  broken = tmp_path / 'worker_binary'
  broken.write_text(f'#!/bin/sh\n{script}\n')
  broken.chmod(0o755)
  monkeypatch.setattr(worker, '_BINARY', str(broken))
  with pytest.raises(worker.WorkerError, match=f'did not start: it .*{how} before'):
    worker.Worker()


def test_one_that_never_listens_is_ended(tmp_path, monkeypatch):
  slow = tmp_path / 'worker_binary'
  slow.write_text('#!/bin/sh\nexec sleep 1000\n')
  slow.chmod(0o755)
  monkeypatch.setattr(worker, '_BINARY', str(slow))
  monkeypatch.setattr(worker, '_START_SECONDS', 0.3)
  before = psutil.Process().children()
  with pytest.raises(worker.WorkerError, match='SIGKILL before it listened'):
    worker.Worker()
  assert psutil.Process().children() == before


def test_ctrl_c_and_sigterm_are_not_for_it(running):
  for number in (signal.SIGINT, signal.SIGTERM):
    os.kill(running.pid, number)
  assert _answers(running)


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
  process = worker.Worker()
  try:
    assert _environment(process)['TF_NUM_INTRAOP_THREADS'] == '3'
  finally:
    process.end()
