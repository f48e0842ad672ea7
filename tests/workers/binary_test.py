"""`worker_binary` is started, closed to other machines, and ended.

Claims:

* It listens, where `port` says, on the loopback device alone: neither the machine's own
  other addresses nor another machine (a network namespace, where root may make one)
  reach it.
* One that is for one connection takes that of its parent, and of nobody else on the
  machine, neither before nor after, nor when that is gone.
* Where the kernel refuses that, it is told why, in words that help.
* Who was connected before is noticed.
* It says how it ended, and ends with its parent.
* It has one thread for an operation and keeps memory, unless its user set otherwise.
"""

import contextlib
import os
import platform
import signal
import socket
import subprocess
import sys

import grpc
import psutil
import pytest

from tests.workers import machines
from tests.workers import supervised
from tff_dp_aggregators.workers import binary
from tff_dp_aggregators.workers import filters


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


@pytest.fixture
def for_one():
  _skip_without_filters()
  process = binary.Binary(for_one=True)
  process.wait_until_it_listens()
  yield process
  process.end()


def _skip_without_filters():
  with socket.socket() as tried:
    try:
      filters.complete_no_handshake(tried)
    except PermissionError:
      pytest.skip('this kernel keeps filters of sockets for root')


def _reached(process):
  """By which loopback addresses others reach it."""
  hosts = ('127.0.0.1', '127.0.0.2', '::1')
  with contextlib.ExitStack() as stack:
    others = [
      stack.enter_context(connecting((), host, process.port, answer=True))
      for host in hosts
    ]
    return [host for host, is_reached in zip(hosts, others) if is_reached]


def _let_in(process, channel):
  state = []
  channel.subscribe(state.append, try_to_connect=True)

  def is_there():
    process.let_in()
    return grpc.ChannelConnectivity.READY in state

  supervised.until(is_there)
  process.let_nobody_in()


@pytest.mark.slow
def test_one_that_is_for_one_connection_takes_no_other(for_one):
  assert (for_one.open_because, for_one.shared_because) == (None, None)
  assert _reached(for_one) == []
  with supervised.Caller(for_one.target) as caller:
    _let_in(for_one, caller.channel)
    assert _reached(for_one) == []
    assert caller.executor()
    (ends,) = binary._own_connections(for_one.port)
  # Its port is free, and the connection gone.
  supervised.until(lambda: not list(binary._own_connections(for_one.port)))
  with socket.socket() as same:
    same.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    same.bind((ends.source, ends.source_port))
    same.settimeout(2)
    with pytest.raises(socket.timeout):
      same.connect((ends.target, for_one.port))
      same.sendall(_GREETING)
      same.recv(1)


def test_who_begins_before_is_not_let_in_with_the_one_that_is(for_one):
  with connecting((), '127.0.0.1', for_one.port, answer=True) as before:
    with supervised.Caller(for_one.target) as caller:
      _let_in(for_one, caller.channel)
      assert caller.executor()
      assert not before


def test_others_reach_one_that_is_not_for_one_connection(running):
  assert _reached(running) == ['127.0.0.1', '127.0.0.2', '::1']


def test_who_of_this_machine_was_quicker_is_noticed(monkeypatch):
  _skip_without_filters()
  process = binary.Binary(for_one=True)
  close = binary._close_to_users
  with contextlib.ExitStack() as connections:

    def connect_and_close(pid, descriptor):
      port = binary._listening_socket(pid).port
      assert connections.enter_context(connecting((), '127.0.0.1', port))
      return close(pid, descriptor)

    monkeypatch.setattr(binary, '_close_to_users', connect_and_close)
    with pytest.raises(binary.BinaryError, match='by another program of this machine'):
      process.wait_until_it_listens()
    assert not process.is_alive()


# With which a connection of HTTP/2 begins (RFC 9113, 3.4), and no settings.
_GREETING = b'PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n' + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
_CONNECT = """
import socket, sys
try:
  connection = socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=2)
  if len(sys.argv) > 3:  # Whoever is called by HTTP/2 answers with its settings.
    connection.sendall(bytes.fromhex(sys.argv[3]))
    assert connection.recv(1)
except (OSError, AssertionError):
  print('refused', flush=True)
else:
  print('connected', flush=True)
  sys.stdin.readline()
"""


@contextlib.contextmanager
def connecting(command, address, port, answer=False):
  """Connects from there; gives whether that worked, if asked for with an answer."""
  process = subprocess.Popen(
    [*command, sys.executable, '-c', _CONNECT, address, str(port)]
    + [_GREETING.hex()] * answer,
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
import runpy
sys.argv[:] = sys.argv[1:]
runpy.run_module(sys.argv[0], run_name='__main__', alter_sys=True)
"""


# pidfd_getfd(2); and SO_ATTACH_FILTER of setsockopt(2), whose numbers are others on
# other architectures.
_GETFD, _ATTACH = '438', '54,26'


@pytest.mark.parametrize(
  ('refused', 'words'),
  [
    (_GETFD, ('pidfd_getfd: Operation not permitted', 'run code', 'SYS_PTRACE')),
    pytest.param(
      _ATTACH,
      (
        'closed to other users',
        'SO_ATTACH_FILTER: Operation not permitted',
        'run code',
      ),
      marks=pytest.mark.skipif(platform.machine() != 'x86_64', reason='other numbers'),
    ),
  ],
)
def test_where_the_kernel_refuses_the_program_warns_and_goes_on(refused, words):
  command = [sys.executable, '-c', _REFUSED, refused]
  with supervised.Worker(python=command) as worker:
    (line,) = [line for line in worker.lines if 'warning' in line]
    assert all(each in line for each in words), line
    with supervised.Caller(worker.address) as caller:
      assert caller.executor()


def test_where_it_does_not_there_is_no_warning_and_the_worker_alone_calls():
  _skip_without_filters()
  with supervised.Worker() as worker:
    assert not worker.said('warning')
    ports = [
      each.laddr.port
      for each in worker.binary().net_connections('tcp')
      if each.status == psutil.CONN_LISTEN
    ]
    for port in ports:
      with connecting((), '127.0.0.1', port, answer=True) as reached:
        assert not reached
    assert len(ports) == 1
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
