"""The process in which TFF computes: started, replaced when it dies, ended.

TFF's own local runtime keeps its worker until the interpreter is gone, lets it inherit
standard output, and replaces one that died for ever. `Worker` is one such process, and
`WorkerExecutors` what TFF asks for executors in its place.

TFF's `worker_binary` listens on every address of the machine, without asking who calls.
A parent can reach into its child, though: pidfd_getfd(2) gives it the child's listening
socket, and bound to the loopback device (SO_BINDTODEVICE, which needs no privilege
since Linux 5.7) that takes connections of this machine alone.
"""

import ctypes
import functools
import importlib.util
import ipaddress
import logging
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, Optional, Union

import grpc
import tensorflow_federated as tff

from tff_dp_aggregators.base import machine

_logger = logging.getLogger(__name__)

# More deaths than this in one computation, and it is not an accident.
_MAX_DEATHS = 2
# As many as TFF keeps.
_MAX_EXECUTORS = 10
_MAX_MESSAGE_BYTES = 2 * 10**9  # What TFF, whose sizes are 32-bit, can make at most.
_CHANNEL_OPTIONS = (
  ('grpc.max_message_length', _MAX_MESSAGE_BYTES),
  ('grpc.max_receive_message_length', _MAX_MESSAGE_BYTES),
  ('grpc.max_send_message_length', _MAX_MESSAGE_BYTES),
  # No proxy of the environment is to be asked for this machine.
  ('grpc.enable_http_proxy', 0),
  ('grpc.client_idle_timeout_ms', 2**31 - 1),
  ('grpc.use_local_subchannel_pool', 1),
)
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
# A state in /proc/net/tcp.
_LISTEN = '0A'
_LOOPBACK = '127.0.0.1'


class WorkerError(RuntimeError):
  """TFF's worker process could not be started, or died again and again."""


def path() -> str:
  """Where `worker_binary` is; TFF is not imported for that.

  Raises:
    WorkerError: If it is not there.
  """
  spec = importlib.util.find_spec('tensorflow_federated')
  for folder in (spec and spec.submodule_search_locations) or ():
    found = os.path.join(folder, 'data', 'worker_binary')
    if os.access(found, os.X_OK):
      return found
  raise WorkerError(
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

  Attributes:
    pid: Number of the process.
    port: Where it listens; 0 until it does.
    open_because: Why other machines can reach it, once it listens; `None` if they
      cannot.

  Raises:
    WorkerError: If there is no such program.
  """

  def __init__(self, max_concurrent_computation_calls: int = -1):
    self.port = 0
    self.open_because: Optional[str] = None
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
      WorkerError: If it ends before, or takes more than two minutes.
    """
    deadline = time.monotonic() + START_SECONDS
    while not self.listens():
      if time.monotonic() > deadline:
        raise self.did_not_start()
      time.sleep(TICK_SECONDS)

  def listens(self) -> bool:
    """Whether it takes connections; does not wait.

    Raises:
      WorkerError: If it has ended.
    """
    if not self.is_alive():
      raise self.did_not_start()
    if not self.port:
      listening = _listening_socket(self.pid)
      if listening is None:
        return False
      self.open_because = _bind_to_loopback(self.pid, listening.descriptor)
      self.port = listening.port
      self._refuse_who_was_quicker(listening)
    return True

  def _refuse_who_was_quicker(self, listening: '_Listening') -> None:
    """Ends it if somebody is connected, who would stay so."""
    if self.open_because is None and _has_peers_elsewhere(self.pid, listening):
      self.end()
      raise WorkerError(
        "TFF's worker process was reached from another machine in the moment before it "
        'was closed to them, and ended for that. Start it again; if it happens again, '
        "somebody looks for open ports: have a firewall close this machine's."
      )

  def did_not_start(self) -> WorkerError:
    """Ends it; the error that says how it ended before it listened."""
    return WorkerError(
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


class _Socket(NamedTuple):
  """A line of /proc/net/tcp; addresses are as they are there."""

  port: int
  peer: str
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
    port, peer = int(local.rpartition(':')[2], 16), remote.rpartition(':')[0]
    yield _Socket(port, peer, state, fields[5])


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


def _has_peers_elsewhere(pid: int, listening: _Listening) -> bool:
  """Whether anything of another machine is connected, or about to be."""
  return any(
    each.port == listening.port
    and each.state != _LISTEN
    and not _address(each.peer).is_loopback
    for each in _sockets(pid, listening.table)
  )


def _address(hexadecimal: str) -> Union[ipaddress.IPv4Address, ipaddress.IPv6Address]:
  """An address as /proc/net/tcp has it, in words of 32 bits, each as in memory."""
  packed = b''.join(
    int(hexadecimal[i : i + 8], 16).to_bytes(4, sys.byteorder)
    for i in range(0, len(hexadecimal), 8)
  )
  address = ipaddress.ip_address(packed)
  return getattr(address, 'ipv4_mapped', None) or address


def _bind_to_loopback(pid: int, descriptor: int) -> Optional[str]:
  """Binds a child's socket to the loopback device; says what refuses, if it does."""
  try:
    with _listening_socket_of(pid, descriptor) as listening:
      listening.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b'lo\0')
  except OSError as e:
    return f'{e.filename or "SO_BINDTODEVICE"}: {e.strerror}'
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


class Worker:
  """A worker process that listens, and the connection to it.

  The kernel ends it with the thread that makes it, if nothing has ended it before.

  Args:
    max_concurrent_computation_calls: See `runtime.local_runtime`.

  Raises:
    WorkerError: If it does not start.
  """

  def __init__(self, max_concurrent_computation_calls: int):
    self._binary = Binary(max_concurrent_computation_calls)
    self._binary.wait_until_it_listens()
    if self._binary.open_because is not None:
      _warn_that_it_is_open(self._binary.open_because)
    self._channel = grpc.insecure_channel(self._binary.target, _CHANNEL_OPTIONS)
    self.stub = tff.framework.RemoteExecutorGrpcStub(self._channel)

  @property
  def pid(self) -> int:
    """Number of the process."""
    return self._binary.pid

  def is_alive(self) -> bool:
    """Whether the process has not ended."""
    return self._binary.is_alive()

  def end(self) -> str:
    """Ends the process, which has nothing to lose, and says how it ended."""
    return self._binary.end()

  def disconnect(self) -> None:
    """Lets go of whoever waits for an answer."""
    self._channel.close()


@functools.cache
def _warn_that_it_is_open(because: str) -> None:
  """Warns once in a process, and not for each worker."""
  _logger.warning('%s', warning(because))


class WorkerExecutors(tff.framework.ExecutorFactory):
  """Executors of a worker process that is started when needed.

  When the worker dies, TFF asks again and executes the computation anew. That is sound
  here: nothing of the first execution has left the worker, and our noise, being a
  function of the state, is the same the second time.

  Not for several threads, but for `end`.

  Args:
    default_num_clients: See `runtime.local_runtime`.
    max_concurrent_computation_calls: See `runtime.local_runtime`.
    stream_structs: See `runtime.local_runtime`.
  """

  def __init__(
    self,
    default_num_clients: int,
    max_concurrent_computation_calls: int,
    stream_structs: bool,
  ):
    self._default_num_clients = default_num_clients
    self._max_concurrent_computation_calls = max_concurrent_computation_calls
    self._stream_structs = stream_structs
    self._worker: Optional[Worker] = None
    self._executors: dict[tuple, tff.framework.RemoteExecutor] = {}
    self._deaths = 0
    self._ended = False

  def start(self) -> None:
    """Has a worker that is alive."""
    if self._ended:
      raise WorkerError('the runtime was left, and its worker ended.')
    if self._worker is not None and not self._worker.is_alive():
      self._count_death(self._worker.end())
      # Connections to the dead worker's port; it is somebody else's now.
      self._executors.clear()
      self._worker = None
    if self._worker is None:
      worker = Worker(self._max_concurrent_computation_calls)
      self._worker = worker
      if self._ended:  # Meanwhile, in another thread.
        worker.end()

  def _count_death(self, how: str) -> None:
    self._deaths += 1
    if self._deaths > _MAX_DEATHS:
      raise WorkerError(
        f"TFF's worker process died {self._deaths} times in one computation; the "
        f'last one {how}. Nothing of it was kept. SIGKILL mostly means that memory '
        'ran out, and SIGABRT that a value is larger than the 2 GB which TFF can '
        'send: take fewer clients at once, or a smaller model or state.'
      )
    _logger.warning(
      "TFF's worker process %s; starting another one, which repeats the computation "
      'that it was at.',
      how,
    )

  def computation_begins(self) -> None:
    """Counts from here how often the worker dies."""
    self._deaths = 0

  def create_executor(
    self, cardinalities: Mapping[Any, int]
  ) -> tff.framework.RemoteExecutor:
    """Gives TFF an executor for so many clients."""
    self.start()
    key = _key(cardinalities)
    # The one used last is the last.
    executor = self._executors.pop(key, None) or self._new_executor(cardinalities)
    self._executors[key] = executor
    while len(self._executors) > _MAX_EXECUTORS:
      self._executors.pop(next(iter(self._executors))).close()
    return executor

  def _new_executor(
    self, cardinalities: Mapping[Any, int]
  ) -> tff.framework.RemoteExecutor:
    assert self._worker is not None
    executor = tff.framework.RemoteExecutor(
      self._worker.stub, stream_structs=self._stream_structs
    )
    executor.set_cardinalities(
      {tff.CLIENTS: self._default_num_clients, **cardinalities}
    )
    return executor

  def clean_up_executor(self, cardinalities: Mapping[Any, int]) -> None:
    """Lets go of the executor for so many clients, which failed."""
    executor = self._executors.pop(_key(cardinalities), None)
    if executor is not None and not self._ended:
      executor.close()

  def end(self) -> None:
    """Ends the worker for good, and with it what waits for its answers."""
    self._ended = True
    worker = self._worker
    if worker is not None:
      worker.end()
      worker.disconnect()


def _key(cardinalities: Mapping[Any, int]) -> tuple:
  return tuple(sorted((str(placement), n) for placement, n in cardinalities.items()))
