"""What signals do to a program: an orderly end, or one after the round."""

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

# Where TensorFlow's Python files are. It is found, not loaded, which takes seconds.
_SPEC = importlib.util.find_spec('tensorflow')
_TENSORFLOW = os.path.join(os.path.dirname(str(_SPEC and _SPEC.origin)), '')
_PATIENCE_SECONDS = 5.0
_INSISTENCE_SECONDS = 1.0
# What each thread is stopped by.
_THREAD = threading.local()


def error_of(number: int) -> BaseException:
  """What ends a program that gets this signal."""
  if number == signal.SIGINT:
    return KeyboardInterrupt()
  return SystemExit(128 + number)


class StopRequest:
  """Whether somebody has asked the program to stop; see `graceful_interrupts`."""

  def __init__(self, notice: str):
    self._signalled = False
    self._asks = getattr(_THREAD, 'asks', None)
    self._notice = notice
    # What each signal did before, and does once it comes again.
    self.previous: dict[int, Any] = {}

  @property
  def requested(self) -> bool:
    """True once Ctrl-C or SIGTERM came, or what `stopped_by` asks says so."""
    return self._signalled or (self._asks is not None and self._asks())

  def __bool__(self) -> bool:
    return self.requested

  def handle(self, number: int, frame: Optional[types.FrameType]) -> None:
    """Handles a signal."""
    if not self._signalled:
      self._signalled = True
      if self._notice:
        # `print` in here could meet a `print` that it interrupts.
        with contextlib.suppress(OSError):
          os.write(2, f'{self._notice}\n'.encode())
      return
    previous = self.previous.get(number)
    if not callable(previous):
      raise error_of(number)
    previous(number, frame)


@contextlib.contextmanager
def graceful_interrupts(notice: str = '') -> Iterator[StopRequest]:
  """Lets a loop finish its round when somebody wants the program to stop.

  The first Ctrl-C, or SIGTERM, only sets `requested`, which the loop reads after each
  round. The second one ends the program at once, as it would outside of this: by
  KeyboardInterrupt or SystemExit, and inside `local_runtime` in its orderly way. Goes
  inside `local_runtime` as well as around it. A Ctrl-C that the program ignores, or
  handles in a way of its own, is left alone. Another thread than the main one gets no
  signals: `stopped_by` is for those.

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
  """Lets loops of this thread be stopped by something else than signals."""
  before = getattr(_THREAD, 'asks', None)
  _THREAD.asks = asks
  try:
    yield
  finally:
    _THREAD.asks = before


@contextlib.contextmanager
def deferred() -> Iterator[None]:
  """Lets what must not be left half done end before a signal is heeded.

  Processes that are started inside, by Python, take no Ctrl-C: it is for this one.
  """
  if threading.current_thread() is not threading.main_thread():
    yield
    return
  came: list[int] = []
  numbers = signal.SIGINT, signal.SIGTERM
  handlers = {each: signal.getsignal(each) for each in numbers}
  # Python's tracker of resources unblocks signals where it is started.
  resource_tracker.ensure_running()
  mask = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
  for each, handler in handlers.items():
    if callable(handler):  # Another thread may get what this one blocks.
      signal.signal(each, lambda number, unused_frame: came.append(number))
  try:
    yield
  finally:
    for each, handler in handlers.items():
      if callable(handler):
        signal.signal(each, handler)
    for number in dict.fromkeys(came):
      signal.raise_signal(number)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _ends_the_program(handler: Any) -> bool:
  """Whether a signal handled so ends the program by the ways of Python or this file."""
  if isinstance(getattr(handler, '__self__', None), (Signals, StopRequest)):
    return True
  return handler in (signal.SIG_DFL, signal.default_int_handler)


def _raise_outside_tensorflow(
  frame: Optional[types.FrameType], error: BaseException
) -> None:
  """Raises `error`; in the frame that called TensorFlow once it is back, if one did."""
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
  """Makes signals end the body of a `with`, and lets nothing disturb what follows.

  Python drops exceptions in destructors and in callbacks of native code: until the body
  is left, the signal is sent again. TensorFlow's native code crashes where it calls
  Python and gets an exception: it is let finish first, unless that takes too long.
  """

  def __init__(self) -> None:
    self._old: dict[int, tuple[Optional[StopRequest], Any]] = {}
    self._timer: Optional[threading.Timer] = None
    self._first: Optional[float] = None  # When the first signal came.
    self._leaving = False

  def __enter__(self) -> 'Signals':
    if threading.current_thread() is threading.main_thread():  # No other one may.
      numbers = [signal.SIGTERM, signal.SIGHUP]
      if _ends_the_program(signal.getsignal(signal.SIGINT)):
        numbers.append(signal.SIGINT)  # Neither ignored nor handled otherwise.
      for number in numbers:
        self._take(number)
    return self

  def _take(self, number: int) -> None:
    """Handles the signal, after the request to stop of a `with` around this one."""
    handler = signal.getsignal(number)
    if handler is None:  # Not Python's, and could not be put back.
      return
    request = getattr(handler, '__self__', None)
    if isinstance(request, StopRequest):
      self._old[number] = request, request.previous[number]
      request.previous[number] = self._handle
    else:
      self._old[number] = None, handler
      signal.signal(number, self._handle)

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
    if now - self._first > _PATIENCE_SECONDS:
      raise error_of(number)
    _raise_outside_tensorflow(frame, error_of(number))

  def ignore(self) -> None:
    """Drops signals from here to the end of the `with`; the program is leaving."""
    self._leaving = True
    if self._timer is not None:
      self._timer.cancel()

  def __exit__(self, *unused: Any) -> None:
    self.ignore()
    if sys.is_finalizing():
      return  # Handlers cannot be set any more.
    for number, (request, handler) in self._old.items():
      if request is None:
        signal.signal(number, handler)
      else:
        request.previous[number] = handler


class CallingThread:
  """Calls functions one after the other, while who waits for them heeds signals.

  The interpreter does not wait for it when it ends.
  """

  def __init__(self) -> None:
    """Starts the thread."""
    self._calls: queue.SimpleQueue = queue.SimpleQueue()
    weakref.finalize(self, self._calls.put, None)
    threading.Thread(target=_call, args=(self._calls,), daemon=True).start()

  def submit(self, function: Callable, *args: Any) -> concurrent.futures.Future:
    """The future result of a call."""
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
    del future, function, args  # The next one may be long in coming.
