"""Runs the cells of a comparison as Dask tasks, on this machine or on others.

If a worker is lost, Dask gives its cell to another one, which resumes it, as its data
and results are in files that all workers see. `Cluster` is the side of this program;
`why_unfit` and the functions below it run in workers. A worker runs one cell at a time
in its own process, so that TensorFlow is loaded once.
"""

import asyncio
import collections
import contextlib
import os
import queue
import re
import resource
import secrets
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Callable, NamedTuple, Optional

from tff_dp_aggregators.accounting.programs import program
from tff_dp_aggregators.base import new_files
from tff_dp_aggregators.learning import cluster
from tff_dp_aggregators.learning import failures
from tff_dp_aggregators.learning import interrupts
from tff_dp_aggregators.learning.runs import progress
from tff_dp_aggregators.learning.runs import run_directory

from . import cells as cells_lib

_UNWANTED = 'cancelled'  # Dask's state of a running task whose result is not needed.
_TICK_SECONDS = 0.2
_LOOK_SECONDS = 2.0
_ANSWER_SECONDS = 30.0
_LATE_FILES_SECONDS = 60.0  # Network file systems show new files with a delay.
# Time limit for a round whose result nobody needs any more, and for waiting until
# another process ends such a round.
_UNWANTED_SECONDS = 60.0
_LOCK_SECONDS = 2 * _UNWANTED_SECONDS
# TensorFlow keeps what it traced, some 60 MB a run. A process that has grown by this
# many bytes since its first cell is replaced by a new one.
_MAX_GROWTH = 1 << 30
_RUSAGE_UNIT = 1024  # Bytes, on Linux.
# A folder that has only such files counts as empty.
_PROBE = f'{new_files.HALF_WRITTEN}dask-'
_NEEDED = (
  'All need the environment of this program, are to be started anew where it was '
  'changed, and have to see, at the same paths, the folder that this is started in and '
  '--output.'
)
_GOES_ON = (
  'Finished runs are kept, and the others go on where they were: give the same command '
  'with a --scheduler that runs, or with --jobs to go on here.'
)


class _Answer(NamedTuple):
  """A worker's answer on a cell that it was given."""

  worker: str = ''  # Its address.
  unfit: str = ''  # Why the cell cannot be run there; another worker may be fit.
  is_finished: bool = False
  error: str = ''  # Why the run failed; the last line is a summary.
  seconds: float = 0.0  # Time that the run took.
  is_large: bool = False  # Whether the process has grown too much for another cell.


# Called with the result of each cell that was run, and its time in seconds.
_Report = Callable[[cells_lib.Result, float], None]


class LostError(cluster.ClusterError):
  """A cluster was lost; finished runs are kept."""


class Cluster:
  """The workers of a Dask scheduler that run cells; a context manager."""

  def __init__(
    self,
    scheduler: str,
    *,
    trusted_network: bool = False,
    absence_seconds: float = 600.0,
    flag: str = '--scheduler',
  ):
    """Does not connect yet; errors name `flag`."""
    self._flag = flag
    self._address, self._trusted_network = scheduler.rstrip('/'), trusted_network
    self._is_local = scheduler.startswith('local:')
    self._absence_seconds = absence_seconds
    self._name = secrets.token_hex(8)  # Tells workers which comparison a cell is of.
    self._expected: dict[str, Any] = {
      'software': cluster.software(),
      'folder': os.getcwd(),
    }
    self._client: Any = None
    self._fit: set[str] = set()
    self._unfit: dict[str, str] = {}  # Reason for each worker that cannot run cells.
    self._running: dict[Any, cells_lib.Cell] = {}
    self._done_futures: queue.SimpleQueue[Any] = queue.SimpleQueue()
    self._stack = contextlib.ExitStack()

  def __enter__(self) -> 'Cluster':
    if not self._is_local:
      self._connect()
    return self

  def __exit__(self, *unused: Any) -> None:
    if self._client is not None and not self._is_local:
      self._tell_workers(end)  # What they hold in memory is not needed any more.
    self._stack.close()
    self._client = None

  @property
  def in_words(self) -> str:
    """Says how many runs there are at a time, and where."""
    if self._is_local:
      return f'{self._address[len("local:") :]} at a time'
    number = len(self._fit)
    return f'{number} at a time on Dask workers of {self._address}'

  def check(self, output: str) -> None:
    """Checks that all workers can read a file in the folder of the comparison."""
    if self._is_local:
      return
    text = secrets.token_hex()
    path = os.path.join(os.path.abspath(output), f'{_PROBE}{text}')
    self._stack.callback(_remove, path)  # Kept until the end, for workers that join.
    new_files.replace(path, text)
    self._expected |= {'file': path, 'text': text, 'inode': os.stat(path).st_ino}
    self._look_at_all()

  def run(
    self, cells: Sequence[cells_lib.Cell], stop: interrupts.StopRequest, report: _Report
  ) -> None:
    """Runs cells; goes on if some of them fail.

    Dask has at most as many cells as workers, so that none waits behind another one on
    a worker: if the worker is lost, Dask would count that as a failure of both.
    """
    if self._client is None:
      self._connect()
    waiting = collections.deque(cells)
    looked = last_seen = time.monotonic()
    is_stopping = False
    try:
      while waiting or self._running:
        if stop.requested:
          waiting.clear()
        while waiting and len(self._running) < len(self._fit):
          self._submit(waiting.popleft())
        with contextlib.suppress(queue.Empty):
          # Signals are handled between two attempts.
          self._done(self._done_futures.get(timeout=_TICK_SECONDS), waiting, report)
        now = time.monotonic()
        if now < looked + _LOOK_SECONDS and is_stopping == stop.requested:
          continue
        looked, is_stopping = now, stop.requested
        for worker, why in self._look().items():
          self._leave_out(worker, why)
        if is_stopping:
          self._tell_workers(finish)  # Also those that have joined since.
        if self._fit:
          last_seen = now
        elif is_stopping:
          return
        elif now > last_seen + self._absence_seconds:  # Nannies may restart workers.
          unfit = [f'; {worker} {why}' for worker, why in self._unfit.items()]
          seconds = f'{self._absence_seconds:g} seconds'
          raise self._lost(
            f'has had no worker for {seconds} that runs can be run on{"".join(unfit)}'
          )
    finally:
      if self._running:  # Dask drops waiting cells, and workers end running ones.
        client: Any = self._client
        with contextlib.suppress(Exception):
          client.sync(
            client._cancel, list(self._running), callback_timeout=_LOOK_SECONDS
          )
        self._running.clear()
        self._tell_workers(end)

  def _connect(self) -> None:
    self._client = self._stack.enter_context(
      cluster.connect(
        self._address, trusted_network=self._trusted_network, name=self._flag
      )
    )
    self._look_at_all()

  def _look_at_all(self) -> None:
    self._fit, self._unfit = set(), {}
    unfit = [f'{worker} {why}' for worker, why in self._look().items()]
    if unfit:
      raise cluster.ClusterError(
        f'{self._flag}={self._address} has workers on which runs cannot be run: '
        f'{"; ".join(unfit)}. {_NEEDED}'
      )

  def _look(self) -> dict[str, str]:
    """Looks for new workers; returns why some of these are unfit, by address."""
    try:
      alive = set(cluster.workers_of(self._client))
      new = alive.difference(self._fit, self._unfit)
      try:
        seen = cluster.ask(self._client, why_unfit, self._expected, workers=list(new))
      except asyncio.TimeoutError:
        seen = dict.fromkeys(new, 'does not answer')
    except Exception as e:
      raise self._lost('does not answer any more') from e
    unfit = {worker: why for worker, why in seen.items() if why}
    self._unfit = {w: why for w, why in self._unfit.items() if w in alive} | unfit
    self._fit = {w for w in {*self._fit, *seen} if w in alive and w not in self._unfit}
    return unfit

  def _tell_workers(self, function: Callable[[str], None], **named: Any) -> None:
    with contextlib.suppress(Exception):  # A lost scheduler is noticed elsewhere.
      cluster.ask(self._client, function, self._name, **named)

  def _leave_out(self, worker: str, why: str) -> None:
    self._fit.discard(worker)
    self._unfit[worker] = why
    progress.say(f'The Dask worker {worker} is not used: it {why}. {_NEEDED}')

  def _submit(self, cell: cells_lib.Cell) -> None:
    future = self._client.submit(
      run_cell,
      {
        'arguments': cell.arguments,
        'directory': os.path.abspath(cell.directory),
        'not_covered': cell.not_covered,
        'facts': cell.settings.facts,
        'checksums': cell.settings.checksums,
      },
      self._expected,
      self._name,
      key=f'{cell.name}-{secrets.token_hex(8)}',
      pure=False,
      # Named only if some are unfit, as the cell of a lost worker is then given to one
      # of these, and not to the lost worker's replacement.
      workers=list(self._fit) if self._unfit else None,
      allow_other_workers=bool(self._unfit),
    )
    self._running[future] = cell
    future.add_done_callback(self._done_futures.put)

  def _done(
    self, future: Any, waiting: 'collections.deque[cells_lib.Cell]', report: _Report
  ) -> None:
    import distributed

    cell = self._running.pop(future, None)
    if cell is None:  # Of an earlier call, which was stopped.
      return
    try:
      answer = future.result(timeout=_ANSWER_SECONDS)
    except (
      *(asyncio.CancelledError, distributed.CancelledError),
      *(asyncio.TimeoutError, distributed.TimeoutError),
    ) as e:
      raise self._lost('was lost, or has forgotten what it was given') from e
    except Exception as e:  # For example if workers were lost with this cell.
      reason = ' '.join(str(e).split()).rstrip('.')
      answer = _Answer(error=f'{type(e).__name__}: {reason}')
    if answer.unfit:  # A new worker was given a cell at once.
      if answer.worker not in self._unfit:
        self._leave_out(answer.worker, answer.unfit)
      waiting.appendleft(cell)
      return
    if answer.is_large:
      self._fit.discard(answer.worker)  # Until its nanny has restarted the process.
      self._tell_workers(end, workers=[answer.worker])
    error = answer.error
    if answer.is_finished and not _is_seen(cell):
      error = (
        f'the Dask worker {answer.worker} finished it, and {_LATE_FILES_SECONDS:.0f} '
        f'seconds later the files are not in {cell.directory} as this program sees it'
      )
    if error:
      os.makedirs(cell.directory, exist_ok=True)
      new_files.replace(cell.error_path, error.rstrip('\n') + '\n')
      last = cells_lib.last_line(error)
      result = cells_lib.Result(cell, cells_lib.FAILED, error=last)
    elif answer.is_finished:
      result = cells_lib.read(cell)
    else:
      result = cells_lib.Result(cell, cells_lib.BEGUN)
    report(result, answer.seconds)

  def _lost(self, what: str) -> LostError:
    return LostError(f'The Dask scheduler {self._address} {what}. {_GOES_ON}')


def _is_seen(cell: cells_lib.Cell) -> bool:
  """Waits until the files of a cell finished elsewhere are seen here; False if not."""
  deadline = time.monotonic() + _LATE_FILES_SECONDS
  while True:
    with contextlib.suppress(OSError, program.WrongUsage):
      os.listdir(os.path.dirname(cell.directory))  # Makes NFS look again.
      if cells_lib.read(cell).is_finished:
        return True
    if time.monotonic() > deadline:
      return False
    time.sleep(_TICK_SECONDS)


def _remove(path: str) -> None:
  with contextlib.suppress(OSError):
    os.unlink(path)


# The following is used in workers, by the cell that runs and those that ran before.
_cell_lock = threading.Lock()
_finishing: set[str] = set()  # Comparisons whose cells have to end after their round.
_latest = ''  # The comparison of the running cell, or of the last one.
_first_peak: Optional[int] = None  # Peak memory after the first cell.
_populations: dict[Any, Any] = {}  # The data of the last cell; a task's stay the same.


def why_unfit(expected: Mapping[str, Any], dask_worker: Any) -> str:
  """Returns why this worker cannot run cells, as a clause; '' if it can."""
  why = cluster.differs(expected['software'])
  if why:
    return why
  if dask_worker.nanny is None:
    return 'has no nanny, which ends what hangs; start it without --no-nanny'
  folder = expected['folder']
  if not os.path.isdir(folder):
    return f'has no folder {folder}, which this program was started in'
  path = expected.get('file')
  if path is None:
    return ''
  output = os.path.dirname(path)
  try:
    with open(path, encoding='utf-8') as file:
      text, inode = file.read(), os.fstat(file.fileno()).st_ino
  except OSError as e:
    return f'does not see what is in {output}: {e.strerror}'
  # A run recognises copies of its directory by the inode, and is not resumed in them.
  if (text, inode) != (expected['text'], expected['inode']):
    return f'has another {output} than this program, or other inode numbers there'
  return '' if os.access(output, os.W_OK) else f'may not write to {output}'


def finish(name: str) -> None:
  _finishing.add(name)


def end(name: str) -> None:
  """Ends this process if its last cell is of that comparison; a nanny restarts it."""
  if name == _latest:
    os._exit(1)


def run_cell(job: Mapping[str, Any], expected: Mapping[str, Any], name: str) -> _Answer:
  """Runs a cell of the comparison `name`."""
  global _first_peak, _latest
  import distributed

  worker = distributed.get_worker()
  begun = time.monotonic()
  if unfit := why_unfit(expected, worker):
    return _Answer(worker.address, unfit)
  is_finished, error = False, ''
  with _cell_lock, _watched(worker, name) as must_end:
    _latest = name
    if not must_end():
      os.chdir(expected['folder'])  # A user's model may have changed it.
      is_finished, error = _run(job, must_end)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    _first_peak = _first_peak or peak
    is_large = (peak - _first_peak) * _RUSAGE_UNIT > _MAX_GROWTH
    # Dask pauses a worker that has reached its memory limit.
    is_large |= worker.status == distributed.Status.paused
  seconds = time.monotonic() - begun
  return _Answer(worker.address, '', is_finished, error, seconds, is_large)


@contextlib.contextmanager
def _watched(worker: Any, name: str) -> Iterator[Callable[[], bool]]:
  """Ends the process if a task goes on long after its result is not needed any more."""
  key, is_over = worker.get_current_task(), threading.Event()

  def is_unwanted() -> bool:
    task = worker.state.tasks.get(key)
    return task is None or task.state == _UNWANTED

  def watch() -> None:
    while not is_over.wait(_TICK_SECONDS):
      if is_unwanted() and not is_over.wait(_UNWANTED_SECONDS):
        os._exit(1)

  threading.Thread(target=watch, daemon=True).start()
  try:
    yield lambda: name in _finishing or is_unwanted()
  finally:
    is_over.set()


def _run(job: Mapping[str, Any], must_end: Callable[[], bool]) -> tuple[bool, str]:
  """Returns whether the run is finished, and why it failed ('' if it did not)."""
  directory = job['directory']
  os.makedirs(directory, exist_ok=True)
  _remove(os.path.join(directory, run_directory.ERROR))
  log = os.path.join(directory, run_directory.LOG)
  with _output_to(log), warnings.catch_warnings():
    warnings.simplefilter('ignore')  # TFF's dependencies warn about each other.
    own = (__package__ or '').rpartition('.')[0]
    warnings.filterwarnings('default', module=re.escape(own))  # Such as a large delta.
    try:
      return _train(job, must_end), ''
    except KeyboardInterrupt:
      return False, ''
    except (Exception, SystemExit) as e:  # A model may call sys.exit.
      trace = traceback.format_exc()
      print(trace, file=sys.stderr)
      # The last line is a summary, also for errors that have several lines.
      summary = getattr(e, 'message', str(e))  # str(e) of TensorFlow's has more lines.
      summary = cells_lib.last_line(failures.sentence(summary))
      return False, f'{trace}\n{type(e).__name__}: {summary}'


def _train(job: Mapping[str, Any], must_end: Callable[[], bool]) -> bool:
  settings = cells_lib.settings_of(job['arguments'])
  if settings.facts != job['facts']:
    raise ValueError('the data have changed since the comparison began.')
  if settings.checksums != job['checksums']:
    raise ValueError(
      'the file of --strategy_file or --schedule_file has changed since the comparison '
      'began.'
    )
  from .. import training  # Loads TensorFlow.

  key, directory = (settings.task.name, settings.data, os.getcwd()), job['directory']
  if settings.data.files is not None or key not in _populations:
    _populations.clear()  # Before others are read: memory may not hold both.
    _populations[key] = settings.task.load(settings.data)
  data = _populations[key]
  deadline = time.monotonic() + _LOCK_SECONDS
  while not must_end():
    try:
      with interrupts.stopped_by(must_end):
        result = training.train(settings, data, directory, job['not_covered'])
      return result.is_finished
    except BlockingIOError:  # A lost worker still runs it, and will end.
      if time.monotonic() > deadline:
        raise
      time.sleep(_LOOK_SECONDS)
  return False


@contextlib.contextmanager
def _output_to(path: str) -> Iterator[None]:
  """Redirects the output of this process, and of those that it starts, to a file."""
  streams = {1: sys.stdout, 2: sys.stderr}
  own = {each: os.dup(each) for each in streams}
  try:
    with open(path, 'ab') as log:
      for each, stream in streams.items():
        stream.flush()
        os.dup2(log.fileno(), each)
    yield
  finally:
    for each, stream in streams.items():
      stream.flush()
      os.dup2(own[each], each)
      os.close(own[each])
