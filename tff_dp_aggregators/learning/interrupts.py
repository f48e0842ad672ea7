"""Handles signals: they end a program in an orderly way, or after the current round."""

import concurrent.futures
import contextlib
import importlib.util
import os
import queue
import signal
import sys
import threading
import time
import types
import weakref
from collections.abc import Iterator
from multiprocessing import resource_tracker
from typing import Any, Callable, Optional

# The folder of TensorFlow's Python files, found without loading TensorFlow.
_SPEC = importlib.util.find_spec('tensorflow')
_TENSORFLOW = os.path.join(os.path.dirname(str(_SPEC and _SPEC.origin)), '')
_PATIENCE_SECONDS = 5.0  # How long TensorFlow's native code may take to return.
_RESEND_SECONDS = 1.0
# The function of `stopped_by`, for each thread.
_THREAD = threading.local()


def error_of(number: int) -> BaseException:
  """The exception by which a signal ends a program."""
  if number == signal.SIGINT:
    return KeyboardInterrupt()
  return SystemExit(128 + number)


class StopRequest:
  """Records whether the program was asked to stop; see `graceful_interrupts`."""

  def __init__(self, notice: str):
    self._signalled = False
    self._asks = getattr(_THREAD, 'asks', None)
    self._notice = notice
    # The previous handler of each signal, which handles it the second time.
    self.previous: dict[int, Any] = {}

  @property
  def requested(self) -> bool:
    """True once Ctrl-C or SIGTERM came, or `stopped_by` asks for it."""
    return self._signalled or (self._asks is not None and self._asks())

  def __bool__(self) -> bool:
    return self.requested

  def handle(self, number: int, frame: Optional[types.FrameType]) -> None:
    """Handles a signal."""
    if not self._signalled:
      self._signalled = True
      if self._notice:
        # `print` is not reentrant: it could interrupt another `print`.
        with contextlib.suppress(OSError):
          os.write(2, f'{self._notice}\n'.encode())
      return
    previous = self.previous.get(number)
    if not callable(previous):
      raise error_of(number)
    previous(number, frame)


@contextlib.contextmanager
def graceful_interrupts(notice: str = '') -> Iterator[StopRequest]:
  """Lets a loop finish its round when the program is asked to stop.

  The first Ctrl-C, or SIGTERM, only sets `requested`, which the loop reads after each
  round. The second one ends the program at once, as it would outside of this context:
  by KeyboardInterrupt or SystemExit, which inside `local_runtime` ends its worker. It
  works inside `local_runtime` and around it. A signal that the program ignores or
  handles in its own way is left alone. Threads other than the main one use
  `stopped_by`.

  Example:
    >>> with graceful_interrupts() as stop:
    ...   for round_number in range(3):
    ...     signal.raise_signal(signal.SIGINT)  # Somebody presses Ctrl-C.
    ...     if stop.requested:
    ...       break
    >>> round_number
    0
  """
  request = StopRequest(notice)
  if threading.current_thread() is not threading.main_thread():
    yield request
    return
  for number in (signal.SIGINT, signal.SIGTERM):
    current = signal.getsignal(number)
    if _ends_the_program(current):
      request.previous[number] = current
      signal.signal(number, request.handle)
  try:
    yield request
  finally:
    for each, previous in request.previous.items():
      signal.signal(each, previous)


@contextlib.contextmanager
def stopped_by(asks: Callable[[], bool]) -> Iterator[None]:
  """Stops loops of this thread once `asks` returns True, as well as on signals."""
  before = getattr(_THREAD, 'asks', None)
  _THREAD.asks = asks
  try:
    yield
  finally:
    _THREAD.asks = before


@contextlib.contextmanager
def deferred() -> Iterator[None]:
  """Defers signals to the end of the context, whose body must not be interrupted.

  Processes that Python starts inside ignore Ctrl-C, which is for this process.
  """
  if threading.current_thread() is not threading.main_thread():
    yield
    return
  pending: list[int] = []
  numbers = signal.SIGINT, signal.SIGTERM
  handlers = {each: signal.getsignal(each) for each in numbers}
  # Python's resource tracker unblocks signals when it starts, so it is started before.
  resource_tracker.ensure_running()
  mask = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
  for each, handler in handlers.items():
    if callable(handler):  # Another thread may get a signal that this one blocks.
      signal.signal(each, lambda number, unused_frame: pending.append(number))
  try:
    yield
  finally:
    for each, handler in handlers.items():
      if callable(handler):
        signal.signal(each, handler)
    for number in dict.fromkeys(pending):
      signal.raise_signal(number)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _ends_the_program(handler: Any) -> bool:
  """Whether a handler ends the program, as Python's defaults and this module's do."""
  if isinstance(getattr(handler, '__self__', None), (Signals, StopRequest)):
    return True
  return handler in (signal.SIG_DFL, signal.default_int_handler)


def _raise_outside_tensorflow(
  frame: Optional[types.FrameType], error: BaseException
) -> None:
  """Raises `error`, or, if inside TensorFlow, once its caller's frame is reached."""
  inside = False
  while frame is not None:
    is_tensorflow = frame.f_code.co_filename.startswith(_TENSORFLOW)
    if inside and not is_tensorflow:
      break
    inside = inside or is_tensorflow
    frame = frame.f_back
  if frame is None:
    raise error
  caller, before = frame, sys.gettrace()

  def trace(traced: types.FrameType, event: str, arg: Any) -> None:
    del event, arg
    if traced is caller:
      sys.settrace(before)
      caller.f_trace = None
      raise error

  caller.f_trace = trace
  sys.settrace(trace)


class Signals:
  """Makes signals end the body of a `with`, and ignores them during the clean-up.

  Python drops exceptions in destructors and in callbacks of native code, so the signal
  is sent again until the body is left. TensorFlow's native code crashes if Python code
  that it calls raises an exception, so it may finish first, unless that takes too long.
  """

  def __init__(self) -> None:
    self._previous: dict[int, tuple[Optional[StopRequest], Any]] = {}
    self._timer: Optional[threading.Timer] = None
    self._first: Optional[float] = None  # When the first signal came.
    self._leaving = False

  def __enter__(self) -> 'Signals':
    # Only the main thread may set handlers.
    if threading.current_thread() is threading.main_thread():
      numbers = [signal.SIGTERM, signal.SIGHUP]
      if _ends_the_program(signal.getsignal(signal.SIGINT)):
        numbers.append(signal.SIGINT)  # It is neither ignored nor handled otherwise.
      for number in numbers:
        self._install(number)
    return self

  def _install(self, number: int) -> None:
    """Installs a handler, behind the `StopRequest` of an enclosing `with`, if any."""
    handler = signal.getsignal(number)
    if handler is None:  # It was not set from Python, and could not be restored.
      return
    request = getattr(handler, '__self__', None)
    if isinstance(request, StopRequest):
      self._previous[number] = request, request.previous[number]
      request.previous[number] = self._handle
    else:
      self._previous[number] = None, handler
      signal.signal(number, self._handle)

  def _handle(self, number: int, frame: Optional[types.FrameType]) -> None:
    if self._leaving:
      return
    now = time.monotonic()
    self._first = now if self._first is None else self._first
    if self._timer is not None:
      self._timer.cancel()
    self._timer = threading.Timer(_RESEND_SECONDS, os.kill, (os.getpid(), number))
    self._timer.daemon = True
    self._timer.start()
    if now - self._first > _PATIENCE_SECONDS:
      raise error_of(number)
    _raise_outside_tensorflow(frame, error_of(number))

  def ignore(self) -> None:
    """Ignores signals from now to the end of the `with`, because the body has ended."""
    self._leaving = True
    if self._timer is not None:
      self._timer.cancel()

  def __exit__(self, *unused: Any) -> None:
    self.ignore()
    if sys.is_finalizing():
      return  # Handlers cannot be set any more.
    for number, (request, handler) in self._previous.items():
      if request is None:
        signal.signal(number, handler)
      else:
        request.previous[number] = handler


class CallingThread:
  """A thread that calls functions one after the other, so that callers handle signals.

  The interpreter does not wait for this thread when it ends.
  """

  def __init__(self) -> None:
    self._calls: queue.SimpleQueue = queue.SimpleQueue()
    weakref.finalize(self, self._calls.put, None)
    threading.Thread(target=_call, args=(self._calls,), daemon=True).start()

  def submit(self, function: Callable, *args: Any) -> concurrent.futures.Future:
    """Returns the future result of a call."""
    future: concurrent.futures.Future = concurrent.futures.Future()
    self._calls.put((future, function, args))
    return future


def _call(calls: queue.SimpleQueue) -> None:
  for future, function, args in iter(calls.get, None):
    if future.set_running_or_notify_cancel():
      try:
        future.set_result(function(*args))
      except BaseException as e:
        future.set_exception(e)
    del future, function, args  # The next call may come much later.
