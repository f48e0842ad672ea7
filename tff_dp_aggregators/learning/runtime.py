"""Running TFF computations in a program that ends when it is done.

TFF computes in a child process, `worker_binary`. `local_runtime` owns one: it gives
results as values or, to programs that wait for them, as references; it ends a round
that hangs; it replaces a worker that died; and it leaves no process, by whichever way
the program ends. Whatever worker TFF started besides is let go of at exit.

A `worker_binary` listens on every address of the machine, without asking who calls. A
parent can reach into its child, though: pidfd_getfd(2) gives it the child's listening
socket, and bound to the loopback device (SO_BINDTODEVICE, which needs no privilege
since Linux 5.7) that takes connections of this machine alone.
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
# Becomes the worker. PR_SET_PDEATHSIG, which is 1, has the kernel kill it when the
# thread that started it is gone. Signals that a terminal or a batch system sends to all
# processes at once are for the program to act on.
_LAUNCHER = """
import ctypes, os, signal, sys
if ctypes.CDLL(None).prctl(1, signal.SIGKILL) == 0:
  signal.signal(signal.SIGINT, signal.SIG_IGN)
  signal.signal(signal.SIGTERM, signal.SIG_IGN)
if os.getppid() == int(sys.argv[1]):
  os.execv(sys.argv[2], sys.argv[2:])
"""
_ENVIRONMENT = {
  # Last digits depend on the threads that TensorFlow has for one operation, which would
  # be as many as there are processors. Operations still go side by side.
  'TF_NUM_INTRAOP_THREADS': '1',
  # Memory is kept for the next client's tensors: to have it from the kernel again takes
  # a third of all time for models of 10^6 parameters. The second is the largest value
  # that all versions of glibc take.
  'MALLOC_TRIM_THRESHOLD_': str(2**30),
  'MALLOC_MMAP_THRESHOLD_': str(2**25),
  'MALLOC_ARENA_MAX': str(machine.usable_processors()),  # Or each thread's is kept.
}
_BINARY = os.path.join(os.path.dirname(tff.__file__), 'data', 'worker_binary')
_START_SECONDS, _TICK_SECONDS, _PATIENCE_SECONDS = 120.0, 0.004, 5.0
_PIDFD_OPEN, _PIDFD_GETFD = 434, 438  # System calls, the same on all of Linux.


_Result = TypeVar('_Result')


# TFF asks its workers to end by SIGINT, and waits without end. What a script puts into
# the background ignores SIGINT, and so does what it starts unless a handler ignores it.
if threading.current_thread() is threading.main_thread():  # No other one may.
  if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, lambda *unused: None)
# Where the frames are that are between whoever calls a computation and its context.
_TFF_CORE = os.path.join(os.path.dirname(tff.__file__), 'python', 'core', '')
_COROUTINE = inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR


class WorkerError(RuntimeError):
  """TFF's worker process could not be started, or died again and again."""


class Worker:
  """A `worker_binary` that listens, to this machine alone if the kernel lets it."""

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


class _WorkerExecutors(tff.framework.ExecutorFactory):
  """Executors of a worker process that is started when needed.

  TFF's own keep a worker until the interpreter is gone, and replace one that died for
  ever. When it dies, TFF asks again and executes the computation anew: nothing of the
  first execution has left the worker, and our noise is a function of the state. Not for
  several threads, but for `end`.
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
      how = self._worker.end()
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
      self._worker = None
    if self._worker is None:
      self._worker = Worker()
      self._executors = tff.framework.ResourceManagingExecutorFactory(
        self._new_executor
      )
      if self._ended:  # Meanwhile, in another thread.
        self.end()

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


@contextlib.contextmanager
def local_runtime(
  *,
  timeout_seconds: Optional[float] = None,
  simulated_secure_sums: bool = False,
) -> Iterator['LocalContext']:
  """Runs TFF on this machine and leaves no process behind.

  Inside, a computation gives its values, and programs such as
  `tff.learning.programs.train_model` run as well: see `LocalContext`.

  On the way out, by whichever way, the worker is ended; if the program is killed, the
  kernel does that. While inside, Ctrl-C, SIGTERM and SIGHUP end the program through
  that way too (KeyboardInterrupt and SystemExit); `graceful_interrupts` lets a round be
  finished before.

  When the worker dies in a round, such as for lack of memory, TFF executes the round
  again, and a warning says so. Noise of the server is a function of the state, and so
  the same again; what is drawn without a seed, such as noise that clients add or the
  order of a shuffled data set, is drawn anew. Nothing of the first execution was
  released. A third death in one round is an error.

  Args:
    timeout_seconds: How long a computation may take, such as a round; time in which
      the program is stopped (Ctrl-Z) is not counted. One that takes longer, because the
      worker hangs, say, ends with a `RoundTimeoutError` and ends the runtime: enter
      another one to go on from the last state. None for no limit.
    simulated_secure_sums: Whether sums that are to be secure, which TFF leaves to the
      platform it is compiled for, are computed here as in its tests: with the same
      result and no security. Without it a round with one fails.

  Yields:
    TFF's current context while inside.

  Raises:
    ComputationError: From a computation that fails: with the sentence that says why.
    RoundTimeoutError: From a computation that took longer than `timeout_seconds`.
    ValueError: If `timeout_seconds` is not positive.
    WorkerError: If the worker does not start, or, from a computation, if it dies again
      and again.

  Example:
    >>> with local_runtime():
    ...   print(tff.tensorflow.computation(lambda: 1 + 2)())
    3
  """
  checks.check_timeout(timeout_seconds)
  with interrupts.Signals() as signals:
    context = LocalContext(timeout_seconds, simulated_secure_sums)
    try:
      context.start()
      with _default(context):
        yield context
    finally:
      signals.ignore()
      context.end()


@contextlib.contextmanager
def _default(context: 'LocalContext') -> Iterator[None]:
  """Makes it TFF's context, as TFF's own functions do, which may so replace it."""
  stack = tff.framework.get_context_stack()
  before = stack.current
  tff.framework.set_default_context(context)
  try:
    if stack.current is context:
      yield
    else:  # One is installed above the default one, which TFF does not show.
      before = tff.backends.native.create_sync_local_cpp_execution_context()
      with stack.install(context):
        yield
  finally:
    tff.framework.set_default_context(before)


_compile = tff.backends.native.desugar_and_transform_to_native


def _compile_sums_plainly(computation: Any) -> Any:
  """With plain sums in place of secure ones, as in `tff.backends.test`."""
  return _compile(tff.backends.test.replace_secure_intrinsics_with_bodies(computation))


class LocalContext(tff.program.NativeFederatedContext):
  """What TFF's computations run in inside `local_runtime`.

  A computation gives its values to whoever calls it from a plain function. Called from
  a coroutine (`async def`), it gives references to them at once, as TFF's programs
  expect, for `await tff.program.materialize_value(...)`; the event loop goes on, to
  save the state of the round before, for example. From a plain function that runs
  inside of an event loop, as in a notebook, it gives the values, as nobody could wait
  for a reference there; `materialize_value` takes both.

  Computations wait for each other. Contexts belong to threads: `bound` takes one to
  another thread.
  """

  def __init__(self, timeout_seconds: Optional[float], simulated_secure_sums: bool):
    self._executors = _WorkerExecutors()
    self._limit_seconds = timeout_seconds
    self._reason: Optional[BaseException] = None  # Why it has ended.
    self._owner = os.getpid()
    # TFF's calls block their thread, for ever if the worker hangs; so the time is kept
    # by another one, on which computations take turns.
    self._turns, self._calls = interrupts.CallingThread(), interrupts.CallingThread()
    self._loop = asyncio.new_event_loop()
    self._execution = tff.framework.AsyncExecutionContext(
      executor_fn=self._executors,
      compiler_fn=_compile_sums_plainly if simulated_secure_sums else _compile,
      transform_args=tff.tensorflow.transform_args,
      transform_result=tff.tensorflow.transform_result,
    )
    super().__init__(_Awaited(self._submit))

  def start(self) -> None:
    """Starts the worker, in the thread that lives as long as this context."""
    _ACTIVE.add(self)
    self._calls.submit(self._executors.start).result()

  def invoke(self, comp: Any, arg: Any) -> Any:
    """Computes; TFF calls this."""
    if _called_from_coroutine(sys._getframe(1)):
      return super().invoke(comp, arg)
    return self._submit(comp, arg).result()

  def _submit(self, comp: Any, arg: Any) -> concurrent.futures.Future:
    if os.getpid() != self._owner:
      raise RuntimeError(
        'this process was forked off by one that is inside local_runtime, and has no '
        'worker; enter local_runtime here.'
      )
    if self._reason is not None:
      raise RuntimeError(f'The runtime has ended: {self._reason}') from self._reason
    return self._turns.submit(self._take_turn, comp, arg)

  def _take_turn(self, comp: Any, arg: Any) -> Any:
    if self._reason is not None:
      raise self._reason
    computed = self._calls.submit(self._compute, comp, arg)
    limit, spent = self._limit_seconds or float('inf'), 0.0
    tick = min(1.0, limit / 20)
    while self._reason is None:
      if concurrent.futures.wait([computed], tick).done:
        break
      spent += tick  # And not by a clock, which goes on while the program is stopped.
      if spent >= limit:
        self.end(
          RoundTimeoutError.of(
            limit,
            ', or another computation did, and its worker process was ended',
            'see whether the machine lacked memory or the process was stopped; and '
            'enter local_runtime again',
          )
        )
    if self._reason is not None:
      raise self._reason
    return computed.result()

  def _compute(self, comp: Any, arg: Any) -> Any:
    self._executors.computation_begins()
    try:
      return self._loop.run_until_complete(self._execution.invoke(comp, arg))
    except grpc.RpcError as e:
      # With the original the sentence would come last, after two pages of it.
      raise failures.of_grpc(e) from None

  def bound(self, function: Callable[..., _Result]) -> Callable[..., _Result]:
    """The function, which computes here whichever thread calls it.

    Args:
      function: A computation or a Python function that uses some.

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
    """Ends the worker, and all that waits for it with the reason of the first call."""
    left = RuntimeError('the runtime was left; enter local_runtime again.')
    self._reason = self._reason or reason or left
    _ACTIVE.discard(self)
    if os.getpid() == self._owner:
      self._executors.end()
      self._calls.submit(self._loop.close)


class _Awaited(tff.framework.AsyncContext):
  """What TFF's programs wait for; the computation has a thread of its own."""

  def __init__(self, submit: Callable[[Any, Any], concurrent.futures.Future]):
    self._submit = submit

  async def invoke(self, comp: Any, arg: Any) -> Any:
    return await asyncio.wrap_future(self._submit(comp, arg))


def _called_from_coroutine(frame: Any) -> bool:
  """Whether the code that calls a computation could wait for a reference."""
  while frame is not None and frame.f_code.co_filename.startswith(_TFF_CORE):
    frame = frame.f_back
  return frame is not None and bool(frame.f_code.co_flags & _COROUTINE)


_ACTIVE: set[LocalContext] = set()


class _EndedContext(tff.framework.SyncContext):
  """Stands where TFF's context was while the program ends."""

  def invoke(self, comp: Any, arg: Any) -> Any:
    raise RuntimeError('TFF was shut down; the program is ending.')


@atexit.register
def _let_go() -> None:
  """Ends workers, and drops TFF's context, while there is still an interpreter."""
  for context in list(_ACTIVE):
    context.end()
  tff.framework.set_default_context(_EndedContext())
  gc.collect()  # Ends the worker of the context just replaced.
