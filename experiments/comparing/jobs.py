"""Runs cells in processes, and outlives whatever becomes of them."""

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import types
from collections.abc import Iterator, Sequence
from typing import Any, Callable, NamedTuple, Optional

from . import cells as cells_lib
from . import logs

FINISHED, FAILED, INTERRUPTED = 'finished', 'failed', 'interrupted'
# Modules are looked for where this process does, which need not be where the
# interpreter would by itself: the package may have any name, from any folder.
_START = (
  'import importlib, json, sys; '
  'sys.path[:] = json.loads(sys.argv.pop(1)); '
  'importlib.import_module(sys.argv.pop(1)).main()'
)
_WORKER = f'{__package__}.worker'
_TICK_SECONDS = 0.2
_PATIENCE_SECONDS = 60.0
_MEMORY = (
  'the process was killed by SIGKILL; most likely memory ran out, and fewer --jobs '
  'need less'
)


class Outcome(NamedTuple):
  """What became of a cell.

  Attributes:
    cell: Which.
    status: `FINISHED`, `FAILED` or `INTERRUPTED`.
    seconds: How long that took.
    reason: Why it failed, on a line.
    error_path: Of all that is known about that.
  """

  cell: cells_lib.Cell
  status: str
  seconds: float
  reason: str = ''
  error_path: str = ''


class Stop:
  """Whether somebody wants the comparison to stop; the second time at once."""

  def __init__(self) -> None:
    self.requested = False
    self.workers: set[_Worker] = set()

  def request(self, number: int, frame: Optional[types.FrameType]) -> None:
    """Handles a signal."""
    del number, frame
    again, self.requested = self.requested, True
    with contextlib.suppress(OSError):
      os.write(
        2,
        b'Ending at once.\n'
        if again
        else b'Ending after the rounds that are run; press Ctrl-C again to end now.\n',
      )
    for worker in list(self.workers):
      if again:
        worker.kill()
      else:
        worker.ask_to_end()


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


def run(
  cells: Sequence[cells_lib.Cell],
  num_jobs: int,
  stop: Stop,
  tell: Callable[[Outcome], None],
) -> list[Outcome]:
  """Runs cells; those that fail are no reason to stop.

  Args:
    cells: What to run, in this order.
    num_jobs: Processes to run them in.
    stop: Asked before each cell; what it has run so far is kept.
    tell: Called with what became of each, as it does.

  Returns:
    What became of all that were begun.
  """
  waiting: queue.SimpleQueue[cells_lib.Cell] = queue.SimpleQueue()
  for cell in cells:
    waiting.put(cell)
  said: queue.SimpleQueue[Any] = queue.SimpleQueue()
  threads = [
    threading.Thread(target=_serve, args=(waiting, said, stop), daemon=True)
    for _ in range(min(num_jobs, len(cells)))
  ]
  for thread in threads:
    thread.start()
  outcomes: list[Outcome] = []
  serving = len(threads)
  while serving:
    with contextlib.suppress(queue.Empty):
      # Signals are handled between two of them.
      found = said.get(timeout=_TICK_SECONDS)
      if isinstance(found, Outcome):
        outcomes.append(found)
        tell(found)
      else:
        serving -= 1
        if found is not None:
          raise found
  return outcomes


def _serve(
  waiting: 'queue.SimpleQueue[cells_lib.Cell]',
  said: 'queue.SimpleQueue[Any]',
  stop: Stop,
) -> None:
  """Runs cells in one process, and in another one if that dies."""
  worker: Optional[_Worker] = None
  error: Optional[BaseException] = None
  try:
    while not stop.requested:
      try:
        cell = waiting.get_nowait()
      except queue.Empty:
        break
      log = logs.begin(cell.directory)
      if worker is None:
        worker = _Worker(log)
        stop.workers.add(worker)
      outcome = worker.do(cell, log, stop)
      logs.end(cell.directory)
      if outcome.status == FAILED:
        path = logs.fail(cell.directory, outcome.reason)
        last = logs.last_line(outcome.reason)
        outcome = outcome._replace(reason=last, error_path=path)
      if worker.is_over:
        stop.workers.discard(worker)
        worker.end()
        worker = None
      said.put(outcome)
  except BaseException as e:
    error = e  # Of the parent's own files; a disk that is full, say.
  finally:
    if worker is not None:
      stop.workers.discard(worker)
      worker.end()
    said.put(error)


class _Worker:
  """The process, as seen from here."""

  def __init__(self, log: str):
    """Starts it.

    Args:
      log: Where its output goes until a cell has another place for it.
    """
    reading, writing = os.pipe()
    with open(log, 'ab') as output:
      self._process = subprocess.Popen(
        [sys.executable, '-c', _START, json.dumps(sys.path), _WORKER, str(writing)],
        stdin=subprocess.PIPE,
        stdout=output,
        stderr=output,
        pass_fds=[writing],
        # Ctrl-C in a terminal is told to this process, which hands it on.
        start_new_session=True,
      )
    os.close(writing)
    self._answers = os.fdopen(reading)
    self._lock = threading.Lock()
    self._retires = False

  @property
  def is_over(self) -> bool:
    """Whether it cannot run another cell."""
    return self._retires or self._process.poll() is not None

  def do(self, cell: cells_lib.Cell, log: str, stop: Stop) -> Outcome:
    """Runs a cell there, and waits for it."""
    self._send(
      {
        'arguments': cell.arguments,
        'directory': os.path.abspath(cell.directory),
        'log': os.path.abspath(log),
        'not_covered': cell.not_covered,
        'facts': cell.settings.facts,
      }
    )
    if stop.requested:  # Which may not have known of this process.
      self.ask_to_end()
    line = self._answers.readline()
    if line.endswith('\n'):
      answer = json.loads(line)
      self._retires = answer['retires']
      return Outcome(cell, answer['status'], answer['seconds'], answer['reason'])
    self.end()
    if stop.requested:
      return Outcome(cell, INTERRUPTED, 0.0)
    return Outcome(cell, FAILED, 0.0, self._why_dead(log))

  def _why_dead(self, log: str) -> str:
    code = self._process.returncode
    with open(log, encoding='utf-8', errors='replace') as file:
      said = file.read()
    if code == -signal.SIGKILL:
      return f'{said}\n{_MEMORY}'
    if code < 0:
      with contextlib.suppress(ValueError):
        return f'{said}\nthe process was ended by {signal.Signals(-code).name}'
    return f'{said}\nthe process ended with code {code}: {logs.last_line(said)}'

  def ask_to_end(self) -> None:
    """Ends it after the round that it is in."""
    self._send(None)

  def _send(self, message: Any) -> None:
    stdin = self._process.stdin
    assert stdin is not None
    with self._lock, contextlib.suppress(OSError, ValueError):
      stdin.write(json.dumps(message).encode() + b'\n')
      stdin.flush()

  def kill(self) -> None:
    """Ends it at once; the kernel then ends what it started."""
    self._process.kill()

  def end(self) -> None:
    """Ends it when it has nothing to do, and waits until it is gone."""
    with self._lock, contextlib.suppress(OSError):
      assert self._process.stdin is not None
      self._process.stdin.close()
    try:
      self._process.wait(_PATIENCE_SECONDS)
    except subprocess.TimeoutExpired:
      self._process.kill()
      self._process.wait()
    self._answers.close()
