"""A process that runs cells, one after another, so that TensorFlow is loaded once.

`process` starts it. Cells come as lines of JSON on standard input, and what became of
each goes back as a line to the file descriptor that the command line names. Each cell
has its own log, which all output goes to, also that of TFF's worker. The end of the
input, or a line that says so, ends the process: after the round that it is in. So does
having grown too large, and another process takes the next cell.

The end of the input without such a line is that of whoever started this process. Then
the cell may be begun again elsewhere, which waits until this process is gone: a round
that takes long is not finished.
"""

import json
import os
import queue
import re
import resource
import signal
import sys
import threading
import time
import traceback
import warnings
from typing import Any, Optional

from ..data import population as population_lib
from . import cells
from . import logs
from . import process

_STDIN, _STDOUT, _STDERR = 0, 1, 2
_CHUNK = 1 << 16
# TensorFlow keeps what it traced, some 60 MB a run. A process that has grown by this
# many bytes since its first cell makes room for a new one.
_MOST_GROWTH = 1 << 30
_RUSAGE_UNIT = 1024  # Bytes, on Linux.
# How long to wait for another process that runs the cell and is to end.
_PATIENCE_SECONDS = 2 * process.LONELY_SECONDS


class _Inbox:
  """Reads the input, so that the end of a run can be asked for while it goes on."""

  def __init__(self, descriptor: int) -> None:
    self._descriptor = descriptor
    self.is_over = False
    self._is_busy = False
    self._jobs: queue.SimpleQueue[Optional[dict[str, Any]]] = queue.SimpleQueue()
    self._lock = threading.Lock()
    threading.Thread(target=self._read, daemon=True).start()

  def _read(self) -> None:
    text = b''
    # Not a file of Python's, which the interpreter would wait for at its end.
    while chunk := os.read(self._descriptor, _CHUNK):
      *lines, text = (text + chunk).split(b'\n')
      for line in lines:
        job = json.loads(line)
        if job is None:
          self._end()
        else:
          self._jobs.put(job)
    self._end()
    time.sleep(process.LONELY_SECONDS)
    os.kill(os.getpid(), signal.SIGKILL)

  def _end(self) -> None:
    with self._lock:
      if self.is_over:
        return
      self.is_over = True
      self._jobs.put(None)
      if self._is_busy:  # As Ctrl-C would: `learning.train` ends after the round.
        os.kill(os.getpid(), signal.SIGINT)

  def next(self) -> Optional[dict[str, Any]]:
    """The next cell; `None` if there is no more to be run."""
    job = self._jobs.get()
    return None if self.is_over else job

  def busy(self, is_busy: bool) -> bool:
    """Says whether a cell is run, and returns whether it may be."""
    with self._lock:
      self._is_busy = is_busy and not self.is_over
      return self._is_busy


class _Populations:
  """Clients' data, kept while the options are the same."""

  def __init__(self) -> None:
    self._key: Optional[str] = None
    self._population: Optional[population_lib.Population] = None

  def of(self, settings: Any) -> population_lib.Population:
    """The population of some settings."""
    key = f'{settings.task.name} {settings.data!r}'
    if self._population is None or key != self._key:
      self._population = None  # Two may not fit into memory.
      self._population = settings.task.load(settings.data)
      self._key = key
    return self._population


def main() -> None:
  """Runs cells until there are no more."""
  descriptor = int(sys.argv[1])
  # TFF's worker would keep it open, and its end is how the death of this one is seen.
  os.set_inheritable(descriptor, False)
  # What is started in the background ignores Ctrl-C, and hands that on.
  signal.signal(signal.SIGINT, signal.default_int_handler)
  warnings.simplefilter('ignore')  # Of TFF's dependencies, about each other.
  own = (__package__ or '').rpartition('.')[0]
  warnings.filterwarnings('default', module=re.escape(own))  # Such as of a large delta.
  inbox, populations = _Inbox(_taken_stdin()), _Populations()
  os.register_at_fork(after_in_child=lambda: _silence(descriptor))
  folder = os.getcwd()
  first: Optional[int] = None
  with open(descriptor, 'w', encoding='utf-8') as answers:
    while (job := inbox.next()) is not None:
      os.chdir(folder)  # A model of the user's own may have left it.
      answer = _run(job, populations, inbox)
      peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
      first = peak if first is None else first
      answer['retires'] = (peak - first) * _RUSAGE_UNIT > _MOST_GROWTH
      try:
        answers.write(json.dumps(answer) + '\n')
        answers.flush()
      except BrokenPipeError:  # Whoever started this process is gone.
        _silence(descriptor)
        break
      if answer['retires']:
        break


def _taken_stdin() -> int:
  """The input, from which nobody else can read: a debugger in a model, say."""
  descriptor = os.dup(_STDIN)
  _silence(_STDIN, os.O_RDONLY, inheritable=True)
  return descriptor


def _silence(
  descriptor: int, mode: int = os.O_WRONLY, inheritable: bool = False
) -> None:
  """Makes a descriptor one of nothing, so that this process does not keep it open."""
  nothing = os.open(os.devnull, mode)
  os.dup2(nothing, descriptor, inheritable)
  os.close(nothing)


def _run(
  job: dict[str, Any], populations: _Populations, inbox: _Inbox
) -> dict[str, Any]:
  """Runs a cell; returns what became of it."""
  begun = time.monotonic()
  _write_to(job['log'])
  status, reason = 'interrupted', ''
  try:
    try:
      if inbox.busy(True):
        with logs.held(job['log'], _PATIENCE_SECONDS):
          _write_to(job['log'])  # Whoever held it may have taken the other one away.
          status = _train(job, populations)
    finally:
      inbox.busy(False)
  except KeyboardInterrupt:
    status = 'interrupted'
  except (Exception, SystemExit) as e:  # A model may call sys.exit.
    reason = logs.last_line(str(e)) or type(e).__name__
    reason = f'{type(e).__name__}: {reason}'
    told = traceback.format_exc()
    print(told, file=sys.stderr)
    # The last line of what is kept says it, also of errors with several.
    status = 'failed'
    reason = f'{told}\n{reason}'
  sys.stdout.flush()
  sys.stderr.flush()
  return {
    'status': status,
    'reason': reason,
    'seconds': time.monotonic() - begun,
  }


def _train(job: dict[str, Any], populations: _Populations) -> str:
  settings = cells.settings_of(job['arguments'])
  if json.loads(json.dumps(settings.facts)) != job['facts']:
    raise ValueError('the data have changed since the comparison began.')
  from .. import training  # Loads TensorFlow.

  result = training.train(
    settings,
    populations.of(settings),
    job['directory'],
    not_covered=tuple(job['not_covered']),
  )
  return 'finished' if result.is_finished else 'interrupted'


def _write_to(path: str) -> None:
  """Sends all output of this process, and of those that it starts, to a file."""
  sys.stdout.flush()
  sys.stderr.flush()
  descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
  for each in (_STDOUT, _STDERR):
    os.dup2(descriptor, each)
  os.close(descriptor)
