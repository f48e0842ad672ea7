"""`worker_binary` is started, closed to other machines, and ended.

Claims:

* It listens, where `port` says, on the loopback device alone: neither the machine's own
  other addresses nor another machine (a network namespace, where root may make one)
  reach it.
* Where the kernel refuses that, it is told why, in words that help.
* Who was connected before is noticed.
* It says how it ended, and ends with its parent.
* It has one thread for an operation and keeps memory, unless its user set otherwise.
"""

import contextlib
import os
import signal
import socket
import subprocess
import sys

import pytest

from tests.workers import machines
from tests.workers import supervised
from tff_dp_aggregators.workers import binary


@pytest.fixture
def running():
  process = binary.Binary()
  process.wait_until_it_listens()
  yield process
  process.end()


def test_it_listens_and_answers(running):
  assert running.is_alive() and running.port > 0
  with supervised.Caller(running.target) as caller:
    assert caller.executor()


def test_the_other_addresses_of_the_machine_do_not_reach_it(running):
  assert running.open_because is None
  assert machines.reaches('127.0.0.1', running.port) and machines.reaches(
    '::1', running.port
  )
  if not machines.own_addresses():
    pytest.skip('this machine has no address but loopback')
  for address in machines.own_addresses():
    family = socket.AF_INET6 if ':' in address else socket.AF_INET
    with socket.create_server((address, 0), family=family) as other:
      assert machines.reaches(address, other.getsockname()[1])
    assert not machines.reaches(address, running.port), address


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
  """Connects from there; gives whether that worked."""
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
  with machines.another() as machine:
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
  process = binary.Binary()
  bind = binary._bind_to_loopback
  with contextlib.ExitStack() as connections:

    def connect_and_bind(pid, descriptor):
      port = binary._listening_socket(pid).port
      assert connections.enter_context(connecting(command, address, port))
      return bind(pid, descriptor)

    monkeypatch.setattr(binary, '_bind_to_loopback', connect_and_bind)
    with pytest.raises(binary.BinaryError, match='reached from another machine'):
      process.wait_until_it_listens()
    assert not process.is_alive()


_REFUSED = """
import ctypes, struct, sys
# A filter of system calls, as a container's: number 438, pidfd_getfd, fails by EPERM.
def instruction(code, true, false, value):
  return struct.pack('HBBI', code, true, false, value)
program = b''.join([
  instruction(0x20, 0, 0, 0), instruction(0x15, 0, 1, 438),
  instruction(0x06, 0, 0, 0x00050001), instruction(0x06, 0, 0, 0x7fff0000)])
kept = ctypes.create_string_buffer(program)
filter = struct.pack('HxxxxxxP', 4, ctypes.addressof(kept))
libc = ctypes.CDLL(None)
assert libc.prctl(38, 1, 0, 0, 0) == 0  # PR_SET_NO_NEW_PRIVS
assert libc.prctl(22, 2, filter) == 0  # PR_SET_SECCOMP
import runpy
sys.argv[:] = sys.argv[1:]
runpy.run_module(sys.argv[0], run_name='__main__', alter_sys=True)
"""


def test_where_the_kernel_refuses_the_program_warns_and_goes_on():
  with supervised.Worker() as worker:
    assert not worker.said('warning')
  command = [sys.executable, '-c', _REFUSED]
  with supervised.Worker(python=command) as worker:
    (line,) = [line for line in worker.lines if 'warning' in line]
    for each in ('pidfd_getfd: Operation not permitted', 'run code', 'SYS_PTRACE'):
      assert each in line
    with supervised.Caller(worker.address) as caller:
      assert caller.executor()


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
  monkeypatch.setattr(binary, 'path', lambda: str(broken))
  with pytest.raises(binary.BinaryError, match=f'did not start: it .*{how} before'):
    binary.Binary().wait_until_it_listens()


def test_one_that_never_listens_is_ended(tmp_path, monkeypatch):
  slow = tmp_path / 'worker_binary'
  slow.write_text('#!/bin/sh\nexec sleep 1000\n')
  slow.chmod(0o755)
  monkeypatch.setattr(binary, 'path', lambda: str(slow))
  monkeypatch.setattr(binary, 'START_SECONDS', 0.3)
  process = binary.Binary()
  with pytest.raises(binary.BinaryError, match='SIGKILL before it listened'):
    process.wait_until_it_listens()
  assert not process.is_alive()


def test_without_tff_there_is_none(monkeypatch):
  monkeypatch.setattr('importlib.util.find_spec', lambda name: None)
  with pytest.raises(binary.BinaryError, match='pip install tensorflow-federated'):
    binary.path()


def test_ctrl_c_and_sigterm_are_not_for_it(running):
  for number in (signal.SIGINT, signal.SIGTERM):
    os.kill(running.pid, number)
  with supervised.Caller(running.target) as caller:
    assert caller.executor()


def _environment(process):
  with open(f'/proc/{process.pid}/environ', 'rb') as file:
    pairs = file.read().decode().rstrip('\0').split('\0')
  return dict(pair.split('=', 1) for pair in pairs)


def test_it_has_one_thread_for_an_operation_and_keeps_memory(running):
  found = _environment(running)
  assert found['TF_NUM_INTRAOP_THREADS'] == '1'
  assert int(found['MALLOC_TRIM_THRESHOLD_']) >= 2**25
  assert found['MALLOC_MMAP_THRESHOLD_'] == found['MALLOC_TRIM_THRESHOLD_']


def test_what_a_user_set_is_left(monkeypatch):
  monkeypatch.setenv('TF_NUM_INTRAOP_THREADS', '3')
  process = binary.Binary()
  process.wait_until_it_listens()
  try:
    assert _environment(process)['TF_NUM_INTRAOP_THREADS'] == '3'
  finally:
    process.end()


@pytest.mark.parametrize(
  ('version', 'kept'),
  [
    ('glibc 2.36', 2**30),
    ('glibc 2.35', 2**30),
    # Larger ones were refused, and every array would come from the kernel anew.
    ('glibc 2.31', 2**25),
    (None, None),
    ('another', None),
  ],
)
def test_what_is_kept_is_what_the_library_takes(monkeypatch, version, kept):
  monkeypatch.setattr('os.confstr', lambda name: version)
  found = binary._kept_memory()
  assert found.get('MALLOC_MMAP_THRESHOLD_') == (None if kept is None else str(kept))
