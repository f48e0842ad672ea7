"""Running TFF computations in a program that ends when it is done.

TFF computes in a child process, `worker_binary`, which inherits the program's stdout
and outlives it, so that `program | tail` never ends. `local_runtime` owns that child.
In a program that imports this module, whatever worker TFF started besides is let go
of at exit as well.
"""

import asyncio
import atexit
import concurrent.futures
import contextlib
import ctypes
import gc
import os
import signal
import sys
import threading
import time
import types
from collections.abc import Iterator
from typing import Any, Optional

import psutil
import tensorflow as tf
import tensorflow_federated as tff

_WORKER = 'worker_binary'


def _let_workers_heed_interrupts() -> None:
  """Makes workers end that TFF asks to by SIGINT, and then waits for without end.

  What a script puts into the background ignores SIGINT, and so does what it starts. A
  handler that does nothing ignores it as well, but is not handed on.
  """
  if threading.current_thread() is threading.main_thread():  # No other one may.
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
      signal.signal(signal.SIGINT, lambda *unused: None)


_let_workers_heed_interrupts()  # Before TFF starts one.
# Where TensorFlow's Python files are; `tf` itself is a package made of aliases.
_TENSORFLOW = os.path.join(tf.sysconfig.get_lib(), '')
_PATIENCE_SECONDS = 5.0
_INSISTENCE_SECONDS = 1.0


@contextlib.contextmanager
def local_runtime(**kwargs: Any) -> Iterator[None]:
  """Runs TFF on this machine and leaves no process behind.

  On the way out, by whichever way, the worker is ended. While inside, Ctrl-C, SIGTERM
  and SIGHUP end the program through that way too (KeyboardInterrupt and SystemExit).

  Args:
    **kwargs: For `tff.backends.native.set_sync_local_cpp_execution_context`.

  Example:
    >>> with local_runtime():
    ...   print(tff.tensorflow.computation(lambda: 1 + 2)())
    3
  """
  before = set(_workers())
  with _Signals() as signals:
    try:
      # The worker gets the stdout there is at its start; it has nothing to say there.
      with open(os.devnull, 'w') as devnull, contextlib.redirect_stdout(devnull):
        tff.backends.native.set_sync_local_cpp_execution_context(**kwargs)
        tff.tensorflow.computation(lambda: 0)()
      yield
    except BaseException:
      signals.ignore()
      _abandon(tff.framework.get_context_stack().current, before)
      raise
    finally:
      signals.ignore()
      tff.backends.native.set_sync_local_cpp_execution_context(**kwargs)
      gc.collect()  # Ends the worker of the context just replaced.
      _end(set(_workers()) - before)


class _EndedContext(tff.framework.SyncContext):
  """Stands where TFF's context was while the program ends."""

  def invoke(self, comp: Any, arg: Any) -> Any:
    raise RuntimeError('TFF was shut down; the program is ending.')


@atexit.register
def _let_go() -> None:
  """Drops TFF's context while there is still an interpreter to end its worker."""
  tff.framework.set_default_context(_EndedContext())
  gc.collect()


def _abandon(context: Any, before: 'set[psutil.Process]') -> None:
  """Ends a context whose computation was interrupted.

  The context's thread goes on with that computation; when the worker dies it starts
  another one and tries again, and the context's `__del__` waits for it for ever.
  So the computation is cancelled, the worker ended, which frees the thread to notice,
  and `__del__` kept from running by a reference that is never given back.

  Args:
    context: The current context of TFF.
    before: Workers that are not to be touched.
  """
  ctypes.pythonapi.Py_IncRef(ctypes.py_object(context))
  loop = getattr(getattr(context, '_async_runner', None), '_event_loop', None)
  if loop is None or not loop.is_running():
    return

  async def cancel_all() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
      task.cancel()
    if others:
      await asyncio.wait(others, timeout=_PATIENCE_SECONDS)

  cancelled = asyncio.run_coroutine_threadsafe(cancel_all(), loop)
  _end(set(_workers()) - before)
  with contextlib.suppress(concurrent.futures.TimeoutError):
    cancelled.result(timeout=_PATIENCE_SECONDS)


def _workers() -> Iterator[psutil.Process]:
  """Worker processes that are children of this one."""
  for child in psutil.Process().children():
    with contextlib.suppress(psutil.Error):
      if child.name() == _WORKER:
        yield child


def _end(processes: 'set[psutil.Process]') -> None:
  """Ends processes, asking first.

  They are not waited for in the sense of the operating system: TFF, whose children
  they are, does that, and complains of a child that is already gone.
  """
  for signal_number in (signal.SIGTERM, signal.SIGKILL):
    for process in filter(_is_alive, processes):
      with contextlib.suppress(psutil.NoSuchProcess):
        process.send_signal(signal_number)
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while any(map(_is_alive, processes)) and time.monotonic() < deadline:
      time.sleep(0.02)


def _is_alive(process: psutil.Process) -> bool:
  try:
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
  except psutil.NoSuchProcess:
    return False


def _caller_of_tensorflow(
  frame: Optional[types.FrameType],
) -> Optional[types.FrameType]:
  """The innermost frame that called TensorFlow and waits for it, if there is one."""
  inside = False
  while frame is not None:
    is_tensorflow = frame.f_code.co_filename.startswith(_TENSORFLOW)
    if inside and not is_tensorflow:
      return frame
    inside = inside or is_tensorflow
    frame = frame.f_back
  return None


def _raise_in(frame: types.FrameType, error: BaseException) -> None:
  """Raises `error` in a frame of this thread, once the call it waits for is over."""
  before = sys.gettrace()

  def trace(traced: types.FrameType, event: str, arg: Any) -> None:
    del event, arg
    if traced is frame:
      sys.settrace(before)
      frame.f_trace = None
      raise error

  frame.f_trace = trace
  sys.settrace(trace)


class _Signals:
  """Makes signals end the body of a `with`, and lets nothing disturb what follows.

  Python turns a signal into an exception wherever the program happens to be, and drops
  the exception where that is a destructor or a callback of native code. So until the
  body is left, the signal is sent again. TensorFlow's native code does worse where it
  calls Python (to convert an argument, say) and gets an exception: it crashes. So
  TensorFlow is let finish its call first, unless that takes too long.
  """

  def __init__(self) -> None:
    self._old: dict[int, Any] = {}
    self._timer: Optional[threading.Timer] = None
    self._first: Optional[float] = None  # When the first signal came.
    self._leaving = False

  def __enter__(self) -> '_Signals':
    if threading.current_thread() is threading.main_thread():  # No other one may.
      numbers = [signal.SIGTERM, signal.SIGHUP]
      if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        numbers.append(signal.SIGINT)  # Neither ignored nor handled otherwise.
      for number in numbers:
        self._old[number] = signal.signal(number, self._handle)
    return self

  def _handle(self, number: int, frame: Optional[types.FrameType]) -> None:
    if self._leaving:
      return
    now = time.monotonic()
    self._first = now if self._first is None else self._first
    if self._timer is not None:
      self._timer.cancel()
    self._timer = threading.Timer(_INSISTENCE_SECONDS, os.kill, (os.getpid(), number))
    self._timer.daemon = True
    self._timer.start()
    error = KeyboardInterrupt() if number == signal.SIGINT else SystemExit(128 + number)
    caller = _caller_of_tensorflow(frame)
    if caller is None or now - self._first > _PATIENCE_SECONDS:
      raise error
    _raise_in(caller, error)

  def ignore(self) -> None:
    """Drops signals from here to the end of the `with`; the program is leaving."""
    self._leaving = True
    if self._timer is not None:
      self._timer.cancel()

  def __exit__(self, *unused: Any) -> None:
    self.ignore()
    for number, handler in self._old.items():
      signal.signal(number, handler)
