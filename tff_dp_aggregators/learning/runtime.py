"""Running TFF computations in a program that ends when it is done.

TFF computes in a child process, `worker_binary`. `local_runtime` owns one: it gives its
results as values or, to programs that wait for them, as references; it ends a round
that hangs; and it leaves no process, by whichever way the program ends. In a program
that imports this module, whatever worker TFF started besides is let go of at exit.
"""

import asyncio
import atexit
import concurrent.futures
import contextlib
import functools
import gc
import inspect
import os
import signal
import sys
import threading
from collections.abc import Iterator
from typing import Any, Callable, Optional, TypeVar

import grpc
import tensorflow_federated as tff

from tff_dp_aggregators.base import checks
from tff_dp_aggregators.learning import failures
from tff_dp_aggregators.learning import interrupts
from tff_dp_aggregators.learning import worker
from tff_dp_aggregators.learning.failures import ComputationError
from tff_dp_aggregators.learning.failures import RoundTimeoutError
from tff_dp_aggregators.learning.interrupts import StopRequest
from tff_dp_aggregators.learning.interrupts import graceful_interrupts
from tff_dp_aggregators.learning.worker import WorkerError

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


_Result = TypeVar('_Result')


def _let_workers_heed_interrupts() -> None:
  """Makes workers end that TFF asks to by SIGINT, and then waits for without end.

  What a script puts into the background ignores SIGINT, and so does what it starts. A
  handler that does nothing ignores it as well, but is not handed on.
  """
  if threading.current_thread() is threading.main_thread():  # No other one may.
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
      signal.signal(signal.SIGINT, lambda *unused: None)


_let_workers_heed_interrupts()  # Before TFF starts one.
# Where the frames are that are between whoever calls a computation and its context.
_TFF_CORE = os.path.join(os.path.dirname(tff.__file__), 'python', 'core', '')
_COROUTINE = inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR


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

  When the worker dies in a round, which running out of memory can be the reason of, TFF
  executes the round again, and a warning says so. This package's noise of the server is
  a function of the state, and so is the same again; nothing of the first execution was
  released. What is drawn without a seed, such as noise that clients add or the order of
  a shuffled data set, is drawn anew. When
  the worker dies three times in one round, that is an error.

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

  Computations wait for each other; each uses all cores, though none for one operation,
  whose last digits would be those of the machine. Contexts belong to threads:
  `bound` takes one to another thread.
  """

  def __init__(self, timeout_seconds: Optional[float], simulated_secure_sums: bool):
    self._executors = worker.WorkerExecutors()
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
    """Starts the worker, so that what can go wrong with that does so now."""
    _ACTIVE.add(self)
    # In the thread that lives as long as this context.
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
    """Ends the worker and all that waits for it.

    Args:
      reason: Why, for those; the first one counts.
    """
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
