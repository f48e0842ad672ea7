"""Runs TFF computations in a child process, and ends it with the program.

TFF's `worker_binary` listens on every address of the machine, without authentication. A
parent can access its child's listening socket, though, by pidfd_getfd(2). Bound to the
loopback device (SO_BINDTODEVICE, which needs no privilege since Linux 5.7), the socket
accepts connections from this machine alone.
"""

import asyncio
import atexit
import concurrent.futures
import contextlib
import ctypes
import functools
import gc
import inspect
import ipaddress
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any, Callable, Optional, TypeVar

import grpc
import psutil
import tensorflow_federated as tff

from tff_dp_aggregators.base import checks
from tff_dp_aggregators.base import machine
from tff_dp_aggregators.learning import failures
from tff_dp_aggregators.learning import interrupts
from tff_dp_aggregators.learning.failures import ComputationError
from tff_dp_aggregators.learning.failures import RoundTimeoutError
from tff_dp_aggregators.learning.interrupts import StopRequest
from tff_dp_aggregators.learning.interrupts import graceful_interrupts

__all__ = [
  'ComputationError',
  'LocalContext',
  'RoundTimeoutError',
  'StopRequest',
  'WorkerError',
  'graceful_interrupts',
  'local_runtime',
]


def __dir__() -> list[str]:
  return sorted(__all__)


_logger = logging.getLogger(__name__)

_MAX_MESSAGE_BYTES = 2 * 10**9  # TFF's sizes are 32-bit.
_CHANNEL_OPTIONS = (
  ('grpc.max_message_length', _MAX_MESSAGE_BYTES),
  ('grpc.max_receive_message_length', _MAX_MESSAGE_BYTES),
  ('grpc.max_send_message_length', _MAX_MESSAGE_BYTES),
  # The environment's proxy must not be used for connections within this machine.
  ('grpc.enable_http_proxy', 0),
  ('grpc.client_idle_timeout_ms', 2**31 - 1),
  ('grpc.use_local_subchannel_pool', 1),
)
# The child runs this, and then becomes the worker. PR_SET_PDEATHSIG, which is 1, has
# the kernel kill it when the thread that started it ends. The program handles signals
# that a terminal or a batch system sends to all processes; the worker ignores them.
_LAUNCHER = """
import ctypes, os, signal, sys
if ctypes.CDLL(None).prctl(1, signal.SIGKILL) == 0:
  signal.signal(signal.SIGINT, signal.SIG_IGN)
  signal.signal(signal.SIGTERM, signal.SIG_IGN)
if os.getppid() == int(sys.argv[1]):
  os.execv(sys.argv[2], sys.argv[2:])
"""
_ENVIRONMENT = {
  # Last digits depend on the number of threads that TensorFlow uses for one operation,
  # by default the number of processors. Several operations still run in parallel.
  'TF_NUM_INTRAOP_THREADS': '1',
  # Memory is kept for the next client's tensors: allocating it again takes a third of
  # all time for models of 10^6 parameters. The second value is the largest that all
  # versions of glibc accept.
  'MALLOC_TRIM_THRESHOLD_': str(2**30),
  'MALLOC_MMAP_THRESHOLD_': str(2**25),
  # By default every thread keeps memory of its own.
  'MALLOC_ARENA_MAX': str(machine.usable_processors()),
}
_BINARY = os.path.join(os.path.dirname(tff.__file__), 'data', 'worker_binary')
_START_SECONDS, _TICK_SECONDS, _PATIENCE_SECONDS = 120.0, 0.004, 5.0
_PIDFD_OPEN, _PIDFD_GETFD = 434, 438  # System calls, the same on all of Linux.
_Result = TypeVar('_Result')
# Code of the frames between the caller of a computation and its context.
_TFF_CORE = os.path.join(os.path.dirname(tff.__file__), 'python', 'core', '')
_COROUTINE = inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR


class WorkerError(RuntimeError):
  """TFF's worker process could not be started, or died."""


class Worker:
  """A `worker_binary`, which listens to this machine alone if the kernel allows it."""

  def __init__(self) -> None:
    launcher = [sys.executable, '-I', '-S', '-c', _LAUNCHER, str(os.getpid())]
    self._process = subprocess.Popen(
      [*launcher, _BINARY, '--port=0'],  # The worker chooses a port.
      # A worker with our standard output would keep `program | tail` from ending.
      stdin=subprocess.DEVNULL,
      stdout=subprocess.DEVNULL,
      env={**_ENVIRONMENT, **os.environ},
    )
    self.pid = self._process.pid
    deadline = time.monotonic() + _START_SECONDS
    while (listening := self._find_listener()) is None:
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
      _warn_that_worker_is_open(f'{e.filename or "SO_BINDTODEVICE"}: {e.strerror}')
    else:
      peers = [
        ipaddress.ip_address(each.raddr.ip)
        for each in psutil.net_connections('tcp')
        if each.laddr.port == self.port and each.raddr
      ]
      peers = [getattr(each, 'ipv4_mapped', None) or each for each in peers]
      if not all(each.is_loopback for each in peers):  # They would stay connected.
        self.end()
        raise WorkerError(
          "TFF's worker process was reached from another machine before it was closed "
          'to other machines, so it was ended. Start it again; if it happens again, '
          "somebody scans for open ports: have a firewall close this machine's."
        )
    self.channel = grpc.insecure_channel(f'127.0.0.1:{self.port}', _CHANNEL_OPTIONS)

  def _find_listener(self) -> Any:
    with contextlib.suppress(psutil.Error):  # It has ended.
      for each in psutil.Process(self.pid).net_connections('tcp'):
        if each.status == psutil.CONN_LISTEN:
          return each
    return None

  def is_alive(self) -> bool:
    """Whether the process has not ended."""
    return self._process.poll() is None

  def end(self) -> str:
    """Kills the process, which keeps no state, and returns how it ended."""
    self._process.kill()
    with contextlib.suppress(subprocess.TimeoutExpired):
      self._process.wait(_PATIENCE_SECONDS)
    code = self._process.returncode
    if code is None or code >= 0:
      return f'ended with exit code {code}'
    return f'was ended by {signal.Signals(-code).name}'


def _bind_to_loopback(pid: int, descriptor: int) -> None:
  """Binds a child's socket to the loopback device, via a duplicate descriptor here."""
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
def _warn_that_worker_is_open(because: str) -> None:
  _logger.warning(
    "TFF's worker process listens on all addresses of this machine, and could not be "
    'bound to loopback (%s): who reaches this machine over the network can run code in '
    'it. In a container, allow that system call (docker run --cap-add=SYS_PTRACE, '
    'capabilities: add: [SYS_PTRACE]); or see that nobody else reaches this '
    "machine's ports above 1023.",
    because,
  )


class _WorkerExecutors(tff.framework.ResourceManagingExecutorFactory):
  """Executors of a worker; an error if it is gone, where TFF repeats without limit."""

  def __init__(self) -> None:
    self._worker = Worker()
    super().__init__(self._new_executor)

  def create_executor(self, cardinalities: Mapping[Any, int]) -> Any:
    if not self._worker.is_alive():
      raise WorkerError(
        f"TFF's worker process {self._worker.end()}. Nothing of the computation was "
        'kept. SIGKILL mostly means that memory ran out, and SIGABRT that a value is '
        'larger than the 2 GB which TFF can send: take fewer clients at once, or a '
        'smaller model or state; and enter local_runtime again.'
      )
    return super().create_executor(cardinalities)

  def _new_executor(self, cardinalities: Mapping[Any, int]) -> Any:
    stub = tff.framework.RemoteExecutorGrpcStub(self._worker.channel)
    executor = tff.framework.RemoteExecutor(stub)
    executor.set_cardinalities({tff.CLIENTS: 0, **cardinalities})
    return executor

  def end(self) -> None:
    """Ends the worker; calls that wait for its answers fail."""
    self._worker.end()
    self._worker.channel.close()


@contextlib.contextmanager
def local_runtime(
  *,
  timeout_seconds: Optional[float] = None,
  simulated_secure_sums: bool = False,
) -> Iterator['LocalContext']:
  """Runs TFF on this machine and leaves no process behind.

  Inside, a computation returns its values, and programs such as
  `tff.learning.programs.train_model` run as well: see `LocalContext`. However the
  context is left, the worker is ended; if the program is killed, the kernel ends it.
  Inside, Ctrl-C, SIGTERM and SIGHUP leave the context by an exception
  (KeyboardInterrupt or SystemExit); `graceful_interrupts` lets a round finish before.

  If the worker dies in a round, for instance for lack of memory, nothing of the round
  was released. Enter another runtime to run it again: noise of the server is a function
  of the state, and is therefore the same again.

  Args:
    timeout_seconds: Maximum duration of a computation, such as a round. One that takes
      longer ends the runtime: enter another one to go on from the last state. None for
      no limit.
    simulated_secure_sums: Whether secure sums, which TFF leaves to the platform that it
      compiles for, are computed here as in TFF's tests: with the same result and no
      security. Otherwise a round that has one fails.

  Yields:
    TFF's current context while inside.

  Raises:
    ComputationError: If a computation fails; the message is the sentence that says why.
    RoundTimeoutError: If a computation takes longer than `timeout_seconds`.
    ValueError: If `timeout_seconds` is not positive.
    WorkerError: If the worker does not start, or dies.

  Example:
    >>> with local_runtime():
    ...   print(tff.tensorflow.computation(lambda: 1 + 2)())
    3
  """
  timeout_seconds = checks.check_timeout(timeout_seconds)
  with interrupts.ending() as leaving:
    context = LocalContext(timeout_seconds, simulated_secure_sums)
    try:
      with tff.framework.get_context_stack().install(context):
        yield context
    finally:
      leaving.set()
      context.end()


class LocalContext(tff.program.NativeFederatedContext):
  """The context in which TFF's computations run, one after the other.

  Called from a plain function, also one that runs inside an event loop, as in a
  notebook, a computation returns its values. Called from a coroutine (`async def`), it
  returns references to them at once, as TFF's programs expect, for
  `await tff.program.materialize_value(...)`; meanwhile the event loop can, for example,
  save the state of the previous round.

  Contexts are specific to a thread; `bound` makes a function that uses this one in any
  thread.
  """

  def __init__(self, timeout_seconds: Optional[float], simulated_secure_sums: bool):
    self._limit_seconds = timeout_seconds
    self._reason: Optional[BaseException] = None  # Why it has ended.
    # The worker ends with the thread that starts it, so this one also computes.
    self._calls = interrupts.CallingThread()
    self._executors = self._calls.submit(_WorkerExecutors).result()
    self._loop = asyncio.new_event_loop()

    def compile_native(computation: Any) -> Any:
      if simulated_secure_sums:  # As `tff.backends.test` does.
        with_bodies = tff.backends.test.replace_secure_intrinsics_with_bodies
        computation = with_bodies(computation)
      return tff.backends.native.desugar_and_transform_to_native(computation)

    self._execution = tff.framework.AsyncExecutionContext(
      executor_fn=self._executors,
      compiler_fn=compile_native,
      transform_args=tff.tensorflow.transform_args,
      transform_result=tff.tensorflow.transform_result,
    )
    super().__init__(_Awaited(self._submit))
    atexit.register(self.end)  # Before the interpreter is finalized.

  def invoke(self, comp: Any, arg: Any) -> Any:
    """Computes; TFF calls this."""
    if _called_from_coroutine(sys._getframe(1)):
      return super().invoke(comp, arg)
    return self._submit(comp, arg).result()

  def _submit(self, comp: Any, arg: Any) -> concurrent.futures.Future:
    if self._reason is not None:
      raise RuntimeError(f'The runtime has ended: {self._reason}') from self._reason
    return self._calls.submit(self._compute, comp, arg)

  def _compute(self, comp: Any, arg: Any) -> Any:
    if self._reason is not None:
      raise self._reason
    timer = None
    if self._limit_seconds is not None:
      error = RoundTimeoutError.of(
        self._limit_seconds,
        ', or another computation did, and its worker process was ended',
        'see whether the machine lacked memory or the process was stopped; and '
        'enter local_runtime again',
      )
      timer = threading.Timer(self._limit_seconds, self.end, [error])
      timer.daemon = True
      timer.start()
    try:
      return self._loop.run_until_complete(self._execution.invoke(comp, arg))
    except Exception as e:
      if self._reason is not None:
        raise self._reason from None
      if isinstance(e, grpc.RpcError):
        # The chained original would print two pages before the sentence.
        raise failures.of_grpc(e) from None
      raise
    finally:
      if timer is not None:
        timer.cancel()

  def bound(self, function: Callable[..., _Result]) -> Callable[..., _Result]:
    """Returns a function that computes in this context, whichever thread calls it.

    Args:
      function: A computation, or a Python function that calls computations.

    Example:
      >>> compute = tff.tensorflow.computation(lambda: 1 + 2)
      >>> with local_runtime() as context:
      ...   asyncio.run(asyncio.to_thread(context.bound(compute)))
      3
    """

    @functools.wraps(function, updated=())
    def call(*args: Any, **kwargs: Any) -> _Result:
      with tff.framework.get_context_stack().install(self):
        return function(*args, **kwargs)

    return call

  def end(self, reason: Optional[BaseException] = None) -> None:
    """Ends the worker; pending computations fail with the reason of the first call."""
    left = RuntimeError('the runtime was left; enter local_runtime again.')
    self._reason = self._reason or reason or left
    self._executors.end()
    atexit.unregister(self.end)
    self._calls.submit(self._loop.close)


class _Awaited(tff.framework.AsyncContext):
  """The context that TFF's programs await; computations run in another thread."""

  def __init__(self, submit: Callable[[Any, Any], concurrent.futures.Future]):
    self._submit = submit

  async def invoke(self, comp: Any, arg: Any) -> Any:
    return await asyncio.wrap_future(self._submit(comp, arg))


def _called_from_coroutine(frame: Any) -> bool:
  """Whether the caller of a computation is a coroutine, which can await a reference."""
  while frame is not None and frame.f_code.co_filename.startswith(_TFF_CORE):
    frame = frame.f_back
  return frame is not None and bool(frame.f_code.co_flags & _COROUTINE)


class _EndedContext(tff.framework.SyncContext):
  """Replaces TFF's context while the program ends."""

  def invoke(self, comp: Any, arg: Any) -> Any:
    raise RuntimeError('TFF was shut down; the program is ending.')


@atexit.register
def _drop_default_context() -> None:
  """Ends the worker of TFF's own context before the interpreter is finalized."""
  tff.framework.set_default_context(_EndedContext())
  gc.collect()
