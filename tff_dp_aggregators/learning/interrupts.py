"""Handles signals: they end a program in an orderly way, or after the current round."""

import concurrent.futures
import contextlib
import os
import queue
import signal
import sys
import threading
import types
import weakref
from collections.abc import Iterable, Iterator
from typing import Any, Callable, Optional

_DEFAULTS = (signal.SIG_DFL, signal.default_int_handler)
# The function of `stopped_by`, for each thread.
_THREAD = threading.local()


def _end(number: int) -> None:
  """Ends the program by the exception of a signal."""
  if number == signal.SIGINT:
    raise KeyboardInterrupt
  raise SystemExit(128 + number)


class StopRequest:
  """Records whether the program was asked to stop; see `graceful_interrupts`."""

  def __init__(self, notice: str):
    self._signalled, self._notice = False, notice
    self._asks = getattr(_THREAD, 'asks', None)

  @property
  def requested(self) -> bool:
    """True once Ctrl-C or SIGTERM came, or `stopped_by` asks for it."""
    return self._signalled or (self._asks is not None and self._asks())

  def __bool__(self) -> bool:
    return self.requested

  def handle(self, number: int, unused_frame: Optional[types.FrameType]) -> None:
    """Handles a signal."""
    if self._signalled:
      _end(number)
    self._signalled = True
    if self._notice:
      # `print` is not reentrant: it could interrupt another `print`.
      with contextlib.suppress(OSError):
        os.write(2, f'{self._notice}\n'.encode())


@contextlib.contextmanager
def graceful_interrupts(notice: str = '') -> Iterator[StopRequest]:
  """Lets a loop finish its round when the program is asked to stop.

  The first Ctrl-C, or SIGTERM, only sets `requested`, which the loop reads after each
  round. The second one ends the program at once, by KeyboardInterrupt or SystemExit,
  which inside `local_runtime` ends its worker. It works inside `local_runtime` and
  around it. A signal that the program ignores or handles in its own way is left alone.
  Threads other than the main one use `stopped_by`.

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
  with _handled((signal.SIGINT, signal.SIGTERM), request.handle, is_inner=True):
    yield request


@contextlib.contextmanager
def _handled(
  numbers: Iterable[int], handle: Callable[..., None], is_inner: bool = False
) -> Iterator[None]:
  """Handles signals that the program does not handle or, if inner, this module does."""
  previous = {}
  if threading.current_thread() is threading.main_thread():
    for number in numbers:
      current = signal.getsignal(number)
      is_ours = getattr(current, '__module__', None) == __name__
      if current in _DEFAULTS or (is_inner and is_ours):
        previous[number] = signal.signal(number, handle)
  try:
    yield
  finally:
    if not sys.is_finalizing():  # Handlers cannot be set any more then.
      for number, handler in previous.items():
        signal.signal(number, handler)


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
def ending() -> Iterator[threading.Event]:
  """Makes signals end the body of a `with`, until the event is set for the clean-up.

  Signals of an enclosing `graceful_interrupts` are left to it.
  """
  leaving = threading.Event()

  def handle(number: int, unused_frame: Optional[types.FrameType]) -> None:
    if not leaving.is_set():
      _end(number)

  with _handled((signal.SIGINT, signal.SIGTERM, signal.SIGHUP), handle):
    try:
      yield leaving
    finally:
      leaving.set()


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
