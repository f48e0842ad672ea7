"""TFF's `worker_binary`: started, closed to others, and ended.

It listens on every address of the machine, without asking who calls. A parent can reach
into its child, though: pidfd_getfd(2) gives it the child's listening socket, and bound
to the loopback device (SO_BINDTODEVICE, which needs no privilege since Linux 5.7) that
takes connections of this machine alone. A filter has it take one connection alone, that
of the parent, so that other users of this machine do not reach it either.
"""

import ctypes
import importlib.util
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import NamedTuple, Optional

from tff_dp_aggregators.base import machine
from tff_dp_aggregators.workers import addresses
from tff_dp_aggregators.workers import filters

# Becomes the worker. PR_SET_PDEATHSIG, which is 1, lets the kernel kill it when the
# thread that started it is gone, by whatever way. The signals that a terminal or a
# batch system sends to all processes at once are for the program to act on.
_LAUNCHER = """
import ctypes, os, signal, sys
if ctypes.CDLL(None).prctl(1, signal.SIGKILL) == 0:
  signal.signal(signal.SIGINT, signal.SIG_IGN)
  signal.signal(signal.SIGTERM, signal.SIG_IGN)
if os.getppid() == int(sys.argv[1]):
  os.execv(sys.argv[2], sys.argv[2:])
"""
START_SECONDS = 120.0
# While it is looked whether it listens.
TICK_SECONDS = 0.004
_PATIENCE_SECONDS = 5.0
# Numbers of system calls that Python has no function for, or not on all machines; they
# are the same on all of Linux's architectures.
_PIDFD_OPEN, _PIDFD_GETFD = 434, 438
# States in /proc/net/tcp.
_ESTABLISHED, _BEGUN, _ANSWERED, _LISTEN = '01', '02', '03', '0A'
_LOOPBACK = '127.0.0.1'


class BinaryError(RuntimeError):
  """`worker_binary` could not be started."""


def path() -> str:
  """Where `worker_binary` is; TFF is not imported for that.

  Raises:
    BinaryError: If it is not there.
  """
  spec = importlib.util.find_spec('tensorflow_federated')
  for folder in (spec and spec.submodule_search_locations) or ():
    found = os.path.join(folder, 'data', 'worker_binary')
    if os.access(found, os.X_OK):
      return found
  raise BinaryError(
    'tensorflow_federated is not installed in this environment, or has no program '
    'data/worker_binary; install it (pip install tensorflow-federated).'
  )


# TensorFlow cuts sums and products of large tensors by the threads that it has for one
# operation, which would be as many as there are processors: their last digits would be
# those of the machine. Packs and operations still go side by side.
_SAME_BITS = {'TF_NUM_INTRAOP_THREADS': '1'}
# What a client's tensors were in is kept for the next client's. As glibc has it, the
# kernel takes such pages back and clears new ones, a third of all time for models of
# 10^6 parameters. Before glibc 2.35 larger thresholds than this were not taken.
_KEPT_BYTES, _KEPT_BYTES_BEFORE = 2**30, 2**25


class Binary:
  """A `worker_binary`, which chooses its port, and is closed to other machines.

  The kernel ends it with the thread that makes this, if nothing has ended it before.

  Args:
    max_concurrent_computation_calls: How many calls of a computation it makes at once;
      -1 is as many as TFF sees fit.
    for_one: Whether it takes one connection alone, of this process, for which `let_in`
      is called until it is there, and `let_nobody_in` then.

  Attributes:
    pid: Number of the process.
    port: Where it listens; 0 until it does.
    open_because: Why other machines can reach it, once it listens; `None` if they
      cannot.
    shared_because: Why other users of this machine can, if it is `for_one` and does not
      listen to other machines; `None` if they cannot.

  Raises:
    BinaryError: If there is no such program.
  """

  def __init__(
    self, max_concurrent_computation_calls: int = -1, *, for_one: bool = False
  ):
    self.port = 0
    self.open_because: Optional[str] = None
    self.shared_because: Optional[str] = None
    self._for_one = for_one
    self._descriptor = -1  # In its process, of what listens.
    self._let_in: Optional[filters.Ends] = None
    self._path = path()
    self._owner = os.getpid()
    self._process = subprocess.Popen(
      [
        *(sys.executable, '-I', '-S', '-c', _LAUNCHER, str(self._owner), self._path),
        '--port=0',
        f'--max_concurrent_computation_calls={max_concurrent_computation_calls}',
      ],
      # `program | tail` ends when nobody holds the pipe any more.
      stdin=subprocess.DEVNULL,
      stdout=subprocess.DEVNULL,
      env={**_SAME_BITS, **_kept_memory(), **os.environ},
    )
    self.pid = self._process.pid

  @property
  def target(self) -> str:
    """Where a channel finds it, once it listens."""
    return f'{_LOOPBACK}:{self.port}'

  def wait_until_it_listens(self) -> None:
    """Returns when it takes connections, of this machine alone if the kernel lets it.

    Raises:
      BinaryError: If it ends before, or takes more than two minutes.
    """
    deadline = time.monotonic() + START_SECONDS
    while not self.listens():
      if time.monotonic() > deadline:
        raise self.did_not_start()
      time.sleep(TICK_SECONDS)

  def listens(self) -> bool:
    """Whether it takes connections; does not wait.

    Raises:
      BinaryError: If it has ended.
    """
    if not self.is_alive():
      raise self.did_not_start()
    if not self.port:
      listening = _listening_socket(self.pid)
      if listening is None:
        return False
      self.open_because = _bind_to_loopback(self.pid, listening.descriptor)
      if self.open_because is None and self._for_one:
        self.shared_because = _close_to_users(self.pid, listening.descriptor)
      self.port, self._descriptor = listening.port, listening.descriptor
      self._refuse_who_was_quicker(listening)
    return True

  def _refuse_who_was_quicker(self, listening: '_Listening') -> None:
    """Ends it if somebody is connected, who would stay so."""
    who = None
    if self.open_because is None and _has_peers(self.pid, listening, elsewhere=True):
      who = 'from another machine'
    elif self._is_closed and _has_peers(self.pid, listening):
      who = 'by another program of this machine'
    if who is not None:
      self.end()
      raise BinaryError(
        f"TFF's worker process was reached {who} in the moment before it was closed to "
        'them, and ended for that. Start it again; if it happens again, somebody looks '
        "for open ports: have a firewall close this machine's."
      )

  @property
  def _is_closed(self) -> bool:
    """Whether it completes no handshake but that of one connection."""
    return self._for_one and self.open_because is None and self.shared_because is None

  def let_in(self) -> None:
    """Lets in the connection that this process has begun, if it has.

    From its handshake on until it is complete, some tenths of a second later as packets
    have to be sent again, others cannot be in its place.

    Raises:
      OSError: If the process has ended.
    """
    if not self._is_closed:
      return
    for ends in _own_connections(self.port):
      if ends != self._let_in:
        with _listening_socket_of(self.pid, self._descriptor) as listening:
          filters.complete_one_handshake(listening, ends)
        self._let_in = ends

  def let_nobody_in(self) -> None:
    """Lets in nobody any more, as the connection is there that it is for.

    Once that is gone, its port may be another program's.

    Raises:
      OSError: If the process has ended.
    """
    if self._is_closed:
      with _listening_socket_of(self.pid, self._descriptor) as listening:
        filters.complete_no_handshake(listening)

  def did_not_start(self) -> BinaryError:
    """Ends it; the error that says how it ended before it listened."""
    return BinaryError(
      f"TFF's worker process {self._path} did not start: it {self.end()} before it "
      'listened. What it printed on standard error says more.'
    )

  def is_alive(self) -> bool:
    """Whether the process has not ended."""
    return self._process.poll() is None

  def end(self) -> str:
    """Ends the process, which has nothing to lose, and says how it ended."""
    if os.getpid() == self._owner:  # And not in a copy that was forked off.
      self._process.kill()
      try:
        self._process.wait(_PATIENCE_SECONDS)
      except subprocess.TimeoutExpired:
        return f'(process {self.pid}) does not end'
    return _how_it_ended(self._process.returncode)


def _kept_memory() -> dict[str, str]:
  """Environment variables by which the C library keeps memory that is freed."""
  try:
    _, _, version = str(os.confstr('CS_GNU_LIBC_VERSION')).partition(' ')
    is_late = tuple(map(int, version.split('.'))) >= (2, 35)
  except (ValueError, OSError):
    return {}  # Another library.
  kept = str(_KEPT_BYTES if is_late else _KEPT_BYTES_BEFORE)
  return {
    'MALLOC_TRIM_THRESHOLD_': kept,
    'MALLOC_MMAP_THRESHOLD_': kept,
    # Or each thread's is kept.
    'MALLOC_ARENA_MAX': str(machine.usable_processors()),
  }


def warning(open_because: str) -> str:
  """What to say of a `worker_binary` that other machines can reach.

  Args:
    open_because: As `Binary` has it.
  """
  return (
    "TFF's worker process listens on all addresses of this machine, and could not be "
    f'bound to loopback ({open_because}): who reaches this machine over the network '
    'can run code in it. In a container, allow that system call (docker run '
    '--cap-add=SYS_PTRACE, capabilities: add: [SYS_PTRACE]); or see that nobody else '
    "reaches this machine's ports above 1023."
  )


def warning_of_users(shared_because: str) -> str:
  """What to say of a `worker_binary` that other users of the machine can reach.

  Args:
    shared_because: As `Binary` has it.
  """
  return (
    "TFF's worker process could not be closed to other users of this machine "
    f'({shared_because}): they can run code in it. Have none on this machine.'
  )


class _Socket(NamedTuple):
  """A line of /proc/net/tcp; addresses are as they are there."""

  address: str
  port: int
  peer: str
  peer_port: int
  state: str
  inode: str


class _Listening(NamedTuple):
  """A listening socket of a process, and the table it is in."""

  port: int
  descriptor: int
  table: str


def _sockets(pid: int, table: str) -> Iterator[_Socket]:
  """All TCP sockets that a process's network has, of one table of the kernel.

  To read one takes the kernel some milliseconds, however few sockets there are.
  """
  try:
    with open(f'/proc/{pid}/net/{table}', encoding='ascii') as file:
      lines = file.readlines()[1:]
  except OSError:
    return  # No IPv6, or the process has ended.
  for line in lines:
    _, local, remote, state, *fields = line.split()
    address, port = local.rpartition(':')[0], int(local.rpartition(':')[2], 16)
    peer, _, peer_port = remote.rpartition(':')
    yield _Socket(address, port, peer, int(peer_port, 16), state, fields[5])


def _listening_socket(pid: int) -> Optional[_Listening]:
  try:
    descriptors = _descriptors(pid)
  except OSError:
    return None  # It has ended meanwhile.
  if not descriptors:
    return None
  for table in ('tcp6', 'tcp'):  # Where there is IPv6, it takes both by that.
    for each in _sockets(pid, table):
      if each.state == _LISTEN and each.inode in descriptors:
        return _Listening(each.port, descriptors[each.inode], table)
  return None


def _descriptors(pid: int) -> dict[str, int]:
  """Those of a process that are sockets, by inode."""
  found = {}
  for name in os.listdir(f'/proc/{pid}/fd'):
    try:
      target = os.readlink(f'/proc/{pid}/fd/{name}')
    except FileNotFoundError:
      continue  # Closed meanwhile.
    if target.startswith('socket:['):
      found[target[len('socket:[') : -1]] = int(name)
  return found


def _has_peers(pid: int, listening: _Listening, elsewhere: bool = False) -> bool:
  """Whether anything is connected to a socket.

  Args:
    pid: Whose.
    listening: The socket.
    elsewhere: Whether only what is not on this machine counts, also if its handshake is
      not complete.
  """
  for each in _sockets(pid, listening.table):
    if each.port == listening.port and each.state != _LISTEN:
      if not addresses.is_loopback(_address(each.peer)):
        return True
      if not elsewhere and each.state != _ANSWERED:
        return True
  return False


def _own_connections(port: int) -> Iterator[filters.Ends]:
  """Connections that this process has begun to a port of loopback, of IPv4."""
  own = _descriptors(os.getpid())
  for table in ('tcp6', 'tcp'):
    for each in _sockets(os.getpid(), table):
      if each.peer_port == port and each.state in (_BEGUN, _ESTABLISHED):
        source = _address(each.address).rpartition(':')[2]
        target = _address(each.peer).rpartition(':')[2]
        if each.inode in own and source == target == _LOOPBACK:
          yield filters.Ends(source, each.port, target)


def _address(hexadecimal: str) -> str:
  """An address as /proc/net/tcp has it, in words of 32 bits, each as in memory."""
  packed = b''.join(
    int(hexadecimal[i : i + 8], 16).to_bytes(4, sys.byteorder)
    for i in range(0, len(hexadecimal), 8)
  )
  family = socket.AF_INET if len(packed) == 4 else socket.AF_INET6
  return socket.inet_ntop(family, packed)


def _bind_to_loopback(pid: int, descriptor: int) -> Optional[str]:
  """Binds a child's socket to the loopback device; says what refuses, if it does."""
  try:
    with _listening_socket_of(pid, descriptor) as listening:
      listening.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b'lo\0')
  except OSError as e:
    return f'{e.filename or "SO_BINDTODEVICE"}: {e.strerror}'
  return None


def _close_to_users(pid: int, descriptor: int) -> Optional[str]:
  """Has a child's socket complete no handshake; says what refuses, if it does."""
  try:
    with _listening_socket_of(pid, descriptor) as listening:
      filters.complete_no_handshake(listening)
  except OSError as e:
    return f'{e.filename or "SO_ATTACH_FILTER"}: {e.strerror}'
  return None


def _listening_socket_of(pid: int, descriptor: int) -> socket.socket:
  """A child's socket, as one of this process."""
  pidfd = _system_call('pidfd_open', _PIDFD_OPEN, pid, 0)
  try:
    ours = _system_call('pidfd_getfd', _PIDFD_GETFD, pidfd, descriptor, 0)
  finally:
    os.close(pidfd)
  return socket.socket(fileno=ours)


def _system_call(name: str, number: int, *arguments: int) -> int:
  libc = ctypes.CDLL(None, use_errno=True)
  result = libc.syscall(*map(ctypes.c_long, (number, *arguments)))
  if result < 0:
    error = ctypes.get_errno()
    raise OSError(error, os.strerror(error), name)
  return result


def _how_it_ended(code: Optional[int]) -> str:
  if code is None or code >= 0:
    return f'ended with exit code {code}'
  try:
    return f'was ended by {signal.Signals(-code).name}'
  except ValueError:
    return f'was ended by signal {-code}'
