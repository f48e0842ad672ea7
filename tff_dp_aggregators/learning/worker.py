"""The process in which TFF computes: started, replaced when it dies, ended.

TFF's own local runtime keeps its worker until the interpreter is gone, lets it inherit
standard output, and replaces one that died for ever. `WorkerExecutors` is what TFF asks
for executors in its place.

TFF's `worker_binary` listens on every address of the machine, without asking who calls.
A parent can reach into its child, though: pidfd_getfd(2) gives it the child's listening
socket, and bound to the loopback device (SO_BINDTODEVICE, which needs no privilege
since Linux 5.7) that takes connections of this machine alone.
"""

import contextlib
import ctypes
import functools
import ipaddress
import logging
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from typing import Any, Optional

import grpc
import psutil
import tensorflow_federated as tff

from tff_dp_aggregators.base import machine

_logger = logging.getLogger(__name__)

_MAX_DEATHS = 2  # More than this in one computation are no accident.
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
_ENVIRONMENT = {
  # TensorFlow cuts sums and products of large tensors by the threads that it has for
  # one operation, which would be as many as there are processors: their last digits
  # would be those of the machine. Operations still go side by side.
  'TF_NUM_INTRAOP_THREADS': '1',
  # What a client's tensors were in is kept for the next client's. As glibc has it, the
  # kernel takes such pages back and clears new ones, a third of all time for models of
  # 10^6 parameters. The second is the largest that all versions take.
  'MALLOC_TRIM_THRESHOLD_': str(2**30),
  'MALLOC_MMAP_THRESHOLD_': str(2**25),
  'MALLOC_ARENA_MAX': str(machine.usable_processors()),  # Or each thread's is kept.
}
_BINARY = os.path.join(os.path.dirname(tff.__file__), 'data', 'worker_binary')
_START_SECONDS, _TICK_SECONDS, _PATIENCE_SECONDS = 120.0, 0.004, 5.0
_PIDFD_OPEN, _PIDFD_GETFD = 434, 438  # System calls, the same on all of Linux.


class WorkerError(RuntimeError):
  """TFF's worker process could not be started, or died again and again."""


class Worker:
  """A `worker_binary` that listens, to this machine alone if the kernel lets it.

  The kernel ends it with the thread that makes it, if nothing has ended it before.

  Attributes:
    pid: Number of the process.
    port: Where it listens.
    channel: The connection to it.
  """

  def __init__(self) -> None:
    self._owner = os.getpid()
    launcher = [sys.executable, '-I', '-S', '-c', _LAUNCHER, str(self._owner)]
    self._process = subprocess.Popen(
      [*launcher, _BINARY, '--port=0'],  # It chooses one.
      # `program | tail` ends when nobody holds the pipe any more.
      stdin=subprocess.DEVNULL,
      stdout=subprocess.DEVNULL,
      env={**_ENVIRONMENT, **os.environ},
    )
    self.pid = self._process.pid
    deadline = time.monotonic() + _START_SECONDS
    while (listening := self._listening()) is None:
      if not self.is_alive() or time.monotonic() > deadline:
        raise WorkerError(
          f"TFF's worker process {_BINARY} did not start: it {self.end()} before it "
          'listened. What it printed on standard error says more.'
        )
      time.sleep(_TICK_SECONDS)
    self.port = listening.laddr.port
    try:
      _bind_to_loopback(self.pid, listening.fd)
    except OSError as e:
      _warn_that_it_is_open(f'{e.filename or "SO_BINDTODEVICE"}: {e.strerror}')
    else:
      peers = [
        ipaddress.ip_address(each.raddr.ip)
        for each in psutil.net_connections('tcp')
        if each.laddr.port == self.port and each.raddr
      ]
      peers = [getattr(each, 'ipv4_mapped', None) or each for each in peers]
      if not all(each.is_loopback for each in peers):  # Who would stay connected.
        self.end()
        raise WorkerError(
          "TFF's worker process was reached from another machine in the moment before "
          'it was closed to them, and ended for that. Start it again; if it happens '
          "again, somebody looks for open ports: have a firewall close this machine's."
        )
    self.channel = grpc.insecure_channel(f'127.0.0.1:{self.port}', _CHANNEL_OPTIONS)

  def _listening(self) -> Any:
    with contextlib.suppress(psutil.Error):  # It has ended.
      for each in psutil.Process(self.pid).net_connections('tcp'):
        if each.status == psutil.CONN_LISTEN:
          return each
    return None

  def is_alive(self) -> bool:
    """Whether the process has not ended."""
    return self._process.poll() is None

  def end(self) -> str:
    """Ends the process, which has nothing to lose, and says how it ended."""
    if os.getpid() == self._owner:  # And not in a copy that was forked off.
      self._process.kill()
      with contextlib.suppress(subprocess.TimeoutExpired):
        self._process.wait(_PATIENCE_SECONDS)
    code = self._process.returncode
    if code is None or code >= 0:
      return f'ended with exit code {code}'
    return f'was ended by {signal.Signals(-code).name}'


def _bind_to_loopback(pid: int, descriptor: int) -> None:
  """Binds a child's socket to the loopback device, by a copy of this process."""
  pidfd = _system_call('pidfd_open', _PIDFD_OPEN, pid, 0)
  try:
    ours = _system_call('pidfd_getfd', _PIDFD_GETFD, pidfd, descriptor, 0)
  finally:
    os.close(pidfd)
  with socket.socket(fileno=ours) as listening:
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b'lo\0')


def _system_call(name: str, number: int, *arguments: int) -> int:
  libc = ctypes.CDLL(None, use_errno=True)
  result = libc.syscall(*map(ctypes.c_long, (number, *arguments)))
  if result < 0:
    raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), name)
  return result


@functools.cache
def _warn_that_it_is_open(because: str) -> None:
  """Warns once in a process, and not for each worker."""
  _logger.warning(
    "TFF's worker process listens on all addresses of this machine, and could not be "
    'bound to loopback (%s): who reaches this machine over the network can run code in '
    'it. In a container, allow that system call (docker run --cap-add=SYS_PTRACE, '
    'capabilities: add: [SYS_PTRACE]); or see that nobody else reaches this '
    "machine's ports above 1023.",
    because,
  )


class WorkerExecutors(tff.framework.ExecutorFactory):
  """Executors of a worker process that is started when needed.

  When the worker dies, TFF asks again and executes the computation anew. That is sound
  here: nothing of the first execution has left the worker, and our noise, being a
  function of the state, is the same the second time.

  Not for several threads, but for `end`.
  """

  def __init__(self) -> None:
    self._worker: Optional[Worker] = None
    # Those of the worker; another one has its own, as a port may go to somebody else.
    self._executors: Any = None
    self._deaths = 0
    self._ended = False

  def start(self) -> None:
    """Has a worker that is alive."""
    if self._ended:
      raise WorkerError('the runtime was left, and its worker ended.')
    if self._worker is not None and not self._worker.is_alive():
      self._count_death(self._worker.end())
      self._worker = None
    if self._worker is None:
      self._worker = Worker()
      self._executors = tff.framework.ResourceManagingExecutorFactory(
        self._new_executor
      )
      if self._ended:  # Meanwhile, in another thread.
        self.end()

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

  def create_executor(self, cardinalities: Mapping[Any, int]) -> Any:
    """Gives TFF an executor for so many clients."""
    self.start()
    return self._executors.create_executor(cardinalities)

  def _new_executor(self, cardinalities: Mapping[Any, int]) -> Any:
    assert self._worker is not None
    stub = tff.framework.RemoteExecutorGrpcStub(self._worker.channel)
    executor = tff.framework.RemoteExecutor(stub)
    executor.set_cardinalities({tff.CLIENTS: 0, **cardinalities})
    return executor

  def clean_up_executor(self, cardinalities: Mapping[Any, int]) -> None:
    """Lets go of the executor for so many clients, which failed."""
    if self._executors is not None and not self._ended:
      self._executors.clean_up_executor(cardinalities)

  def end(self) -> None:
    """Ends the worker for good, and with it what waits for its answers."""
    self._ended = True
    worker = self._worker
    if worker is not None:
      worker.end()
      worker.channel.close()
