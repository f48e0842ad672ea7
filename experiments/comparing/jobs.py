"""Runs the cells of a comparison: what runners have in common, and the one for here.

A runner is told to stop by `Stop`, tells what becomes of each cell, and lets cells that
fail be no reason to stop.
"""

import abc
import contextlib
import os
import queue
import signal
import threading
import types
from collections.abc import Iterator, Sequence
from typing import Any, Callable, NamedTuple, Optional

from . import cells as cells_lib
from . import process

_TICK_SECONDS = 0.2


class Outcome(NamedTuple):
  """What became of a cell.

  Attributes:
    cell: Which.
    status: `process.FINISHED`, `FAILED` or `INTERRUPTED`.
    seconds: How long that took.
    reason: Why it failed, on a line.
  """

  cell: cells_lib.Cell
  status: str
  seconds: float
  reason: str = ''


class RefusedError(ValueError):
  """A runner that cannot be used for a comparison; nothing has been run."""


class LostError(RuntimeError):
  """A runner that cannot go on; what is finished is kept."""


class Stop:
  """Whether somebody wants the comparison to stop; the second time at once."""

  def __init__(self) -> None:
    self._wish = process.Wish.GO_ON

  @property
  def requested(self) -> bool:
    """Whether somebody does."""
    return self._wish is not process.Wish.GO_ON

  def wish(self) -> process.Wish:
    """What is wanted of cells that run."""
    return self._wish

  def request(self, number: int, frame: Optional[types.FrameType]) -> None:
    """Handles a signal."""
    del number, frame
    again = self.requested
    self._wish = process.Wish.END_NOW if again else process.Wish.END_AFTER_ROUND
    with contextlib.suppress(OSError):
      os.write(
        2,
        b'Ending at once.\n'
        if again
        else b'Ending after the rounds that are run; press Ctrl-C again to end now.\n',
      )


@contextlib.contextmanager
def stopping() -> Iterator[Stop]:
  """Makes Ctrl-C and SIGTERM a request while inside."""
  stop = Stop()
  is_main = threading.current_thread() is threading.main_thread()
  numbers = (signal.SIGINT, signal.SIGTERM) if is_main else ()
  before = {number: signal.signal(number, stop.request) for number in numbers}
  try:
    yield stop
  finally:
    for number, handler in before.items():
      signal.signal(number, handler)


def job_of(cell: cells_lib.Cell) -> dict[str, Any]:
  """A cell as `worker` takes it; JSON-ready."""
  return {
    'arguments': cell.arguments,
    'directory': os.path.abspath(cell.directory),
    'not_covered': cell.not_covered,
    'facts': cell.settings.facts,
  }


class Runner(abc.ABC):
  """What runs cells. It is entered once it is to be used, and holds until left."""

  @abc.abstractmethod
  def __enter__(self) -> 'Runner':
    """Gets ready.

    Raises:
      RefusedError: If it cannot.
    """

  @abc.abstractmethod
  def __exit__(self, *unused: Any) -> None:
    """Lets go of everything."""

  @property
  @abc.abstractmethod
  def in_words(self) -> str:
    """How many runs there are at a time, and where; in a clause."""

  @abc.abstractmethod
  def check(self, output: str) -> None:
    """Checks that cells can be run in a folder.

    Args:
      output: Of the comparison; it is there.

    Raises:
      RefusedError: If they cannot.
    """

  @abc.abstractmethod
  def run(
    self,
    cells: Sequence[cells_lib.Cell],
    stop: Stop,
    tell: Callable[[Outcome], None],
  ) -> None:
    """Runs cells; those that fail are no reason to stop.

    Args:
      cells: What to run, in this order.
      stop: Asked before each cell, and while it runs; what it has run so far is kept.
      tell: Called with what became of each that was begun, as it does.

    Raises:
      LostError: If no more can be run, and some have not been.
      OSError: If something cannot be written.
    """


class Processes(Runner):
  """Runs cells in processes of this machine."""

  def __init__(self, number: int):
    """Sets it up.

    Args:
      number: Processes at the same time.
    """
    self._number = number

  def __enter__(self) -> 'Processes':
    return self

  def __exit__(self, *unused: Any) -> None:
    pass

  @property
  def in_words(self) -> str:
    """How many runs there are at a time."""
    return f'{self._number} at a time'

  def check(self, output: str) -> None:
    """Nothing: whoever made the folder can work in it."""

  def run(
    self,
    cells: Sequence[cells_lib.Cell],
    stop: Stop,
    tell: Callable[[Outcome], None],
  ) -> None:
    """Runs cells in processes, and in other ones if those die."""
    waiting: queue.SimpleQueue[cells_lib.Cell] = queue.SimpleQueue()
    for cell in cells:
      waiting.put(cell)
    said: queue.SimpleQueue[Any] = queue.SimpleQueue()
    threads = [
      threading.Thread(target=_serve, args=(waiting, said, stop), daemon=True)
      for _ in range(min(self._number, len(cells)))
    ]
    for thread in threads:
      thread.start()
    serving = len(threads)
    while serving:
      with contextlib.suppress(queue.Empty):
        # Signals are handled between two of them.
        found = said.get(timeout=_TICK_SECONDS)
        if isinstance(found, Outcome):
          tell(found)
        else:
          serving -= 1
          if found is not None:
            raise found


def _serve(
  waiting: 'queue.SimpleQueue[cells_lib.Cell]',
  said: 'queue.SimpleQueue[Any]',
  stop: Stop,
) -> None:
  """Runs cells in one place."""
  error: Optional[BaseException] = None
  try:
    with process.Place(os.getcwd(), 'fewer --jobs need less') as place:
      while not stop.requested:
        try:
          cell = waiting.get_nowait()
        except queue.Empty:
          break
        said.put(Outcome(cell, *place.run(job_of(cell), stop.wish)))
  except BaseException as e:
    error = e  # Of the parent's own files; a disk that is full, say.
  finally:
    said.put(error)
