"""The process of `worker`, as seen by whoever has cells run in it.

A `Place` runs cells one after another, in one process as long as that lives, and
outlives whatever becomes of it. What a cell says, and why it failed, is left beside its
run, so that a place may be on another machine than the comparison.
"""

import contextlib
import enum
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from multiprocessing import connection
from typing import Any, Callable, NamedTuple, Optional

from . import logs

FINISHED, FAILED, INTERRUPTED = 'finished', 'failed', 'interrupted'
# Modules are looked for where this process does, which need not be where the
# interpreter would by itself: the package may have any name, from any folder.
_START = (
  'import importlib, json, sys; '
  'sys.path[:] = json.loads(sys.argv.pop(1)); '
  'importlib.import_module(sys.argv.pop(1)).main()'
)
# What a round may still take whose result nobody waits for any more.
LONELY_SECONDS = 60.0
_WORKER = f'{__package__}.worker'
_TICK_SECONDS = 0.2
_PATIENCE_SECONDS = 60.0


class Wish(enum.IntEnum):
  """What somebody wants a cell to do."""

  GO_ON = 0
  END_AFTER_ROUND = 1
  END_NOW = 2


class Answer(NamedTuple):
  """What became of a cell.

  Attributes:
    status: `FINISHED`, `FAILED` or `INTERRUPTED`.
    seconds: How long that took.
    reason: Why it failed, on a line.
  """

  status: str
  seconds: float
  reason: str = ''


class Place:
  """Where cells are run one after another.

  Args:
    folder: In which relative paths of the cells' flags are looked for.
    advice: What to do where memory ran out, in a clause.
  """

  def __init__(self, folder: str, advice: str) -> None:
    self._folder, self._advice = folder, advice
    self._process: Optional[_Process] = None

  def run(self, job: Mapping[str, Any], wish: Callable[[], Wish]) -> Answer:
    """Runs a cell, and waits for it.

    Args:
      job: The cell, as `worker` takes it.
      wish: Asked time and again; it may not become less.

    Returns:
      What became of it; its log is in its directory by then.
    """
    directory = job['directory']
    log = logs.begin(directory)
    if self._process is None:
      self._process = _Process(log, self._folder)
    answer = self._process.do({**job, 'log': log}, wish)
    if answer is None:
      answer = Answer(INTERRUPTED, 0.0)
      if wish() is Wish.GO_ON:
        code = self._process.exit_code
        answer = Answer(FAILED, 0.0, _why_dead(code, log, self._advice))
    logs.end(directory)
    if answer.status == FAILED:
      answer = answer._replace(reason=logs.fail(directory, answer.reason))
    if self._process.is_over:
      self.end()
    return answer

  def end(self) -> None:
    """Ends the process, if there is one, and waits until it is gone."""
    if self._process is not None:
      self._process.end()
      self._process = None

  def __enter__(self) -> 'Place':
    return self

  def __exit__(self, *unused: Any) -> None:
    self.end()


def _why_dead(code: int, log: str, advice: str) -> str:
  """All that is known of the end of a process, which may not be its own fault."""
  with open(log, encoding='utf-8', errors='replace') as file:
    said = file.read()
  if code == -signal.SIGKILL:
    return (
      f'{said}\nthe process was killed by SIGKILL; most likely memory ran out, and '
      f'{advice}'
    )
  if code < 0:
    with contextlib.suppress(ValueError):
      return f'{said}\nthe process was ended by {signal.Signals(-code).name}'
  return f'{said}\nthe process ended with code {code}: {logs.last_line(said)}'


class _Process:
  """The process, which ends when this one does, whatever becomes of it."""

  def __init__(self, log: str, folder: str):
    """Starts it.

    Args:
      log: Where its output goes until a cell has another place for it.
      folder: That it works in.
    """
    reading, writing = os.pipe()
    with open(log, 'ab') as output:
      self._process = subprocess.Popen(
        [sys.executable, '-c', _START, json.dumps(sys.path), _WORKER, str(writing)],
        stdin=subprocess.PIPE,
        stdout=output,
        stderr=output,
        pass_fds=[writing],
        cwd=folder,
        # Ctrl-C in a terminal is told to this process, which hands it on.
        start_new_session=True,
      )
    os.close(writing)
    self._answers = os.fdopen(reading)
    self._retires = False

  @property
  def is_over(self) -> bool:
    """Whether it cannot run another cell."""
    return self._retires or self._process.poll() is not None

  @property
  def exit_code(self) -> int:
    """Of a process that has ended."""
    return self._process.returncode

  def do(self, job: Mapping[str, Any], wish: Callable[[], Wish]) -> Optional[Answer]:
    """Runs a cell there, and waits for it; `None` if the process died instead."""
    self._send(job)
    wished = Wish.GO_ON
    while not connection.wait([self._answers.fileno()], _TICK_SECONDS):
      now = wish()
      if now > wished:
        wished = now
        if now is Wish.END_NOW:
          self._process.kill()  # The kernel then ends what it started.
        else:
          self._send(None)
    line = self._answers.readline()
    if not line.endswith('\n'):
      self.end()
      return None
    answer = json.loads(line)
    self._retires = answer['retires']
    return Answer(answer['status'], answer['seconds'], answer['reason'])

  def _send(self, message: Any) -> None:
    stdin = self._process.stdin
    assert stdin is not None
    with contextlib.suppress(OSError, ValueError):
      stdin.write(json.dumps(message).encode() + b'\n')
      stdin.flush()

  def end(self) -> None:
    """Ends it when it has nothing to do, and waits until it is gone."""
    with contextlib.suppress(OSError):
      assert self._process.stdin is not None
      self._process.stdin.close()
    try:
      self._process.wait(_PATIENCE_SECONDS)
    except subprocess.TimeoutExpired:
      self._process.kill()
      self._process.wait()
    self._answers.close()
