"""Runs the cells of a comparison: each is a task of Dask, here or on other machines.

Dask hands a cell to another worker if one is lost, and it goes on where it was, as what
it is made of and leaves is in files that all see. `Cluster` is this program's side;
`why_unfit` and what follows are a worker's, which runs one cell at a time in its own
process, so that TensorFlow is loaded once.
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

_UNWANTED = 'cancelled'  # Dask's state of a task that runs and whose result is no use.
_TICK_SECONDS = 0.2
_LOOK_SECONDS = 2.0
_ANSWER_SECONDS = 30.0
_LATE_FILES_SECONDS = 60.0  # Network file systems look for files only now and then.
# What a round may still take whose result nobody waits for any more, and how long to
# wait for another process that is in one.
_LONELY_SECONDS = 60.0
_PATIENCE_SECONDS = 2 * _LONELY_SECONDS
# TensorFlow keeps what it traced, some 60 MB a run. A process that has grown by this
# many bytes since its first cell makes room for a new one.
_MOST_GROWTH = 1 << 30
_RUSAGE_UNIT = 1024  # Bytes, on Linux.
# A folder with nothing else in it counts as empty.
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
  """What a worker says of a cell that it was given."""

  worker: str = ''  # Its address.
  unfit: str = ''  # Why the cell cannot be run there; another worker may be fit.
  is_finished: bool = False
  error: str = ''  # Why the run failed, the last line in short.
  seconds: float = 0.0  # How long it took.
  is_large: bool = False  # Whether the process has grown too much for another cell.


# Is told of each cell that is run: what it came to, and how many seconds it took.
_Tell = Callable[[cells_lib.Result, float], None]


class LostError(cluster.ClusterError):
  """A cluster that cannot go on; what is finished is kept."""


class Cluster:
  """The workers of a Dask scheduler, which cells are run on; held until left."""

  def __init__(
    self,
    scheduler: str,
    *,
    trusted_network: bool = False,
    absence_seconds: float = 600.0,
    flag: str = '--scheduler',
  ):
    """Nothing is connected to yet; `flag` is what errors name."""
    self._flag = flag
    self._address, self._trusted_network = scheduler.rstrip('/'), trusted_network
    self._is_local = scheduler.startswith('local:')
    self._absence_seconds = absence_seconds
    self._name = secrets.token_hex(8)  # By which workers know whose cells they run.
    self._expected: dict[str, Any] = {
      'software': cluster.software(),
      'folder': os.getcwd(),
    }
    self._client: Any = None
    self._fit: set[str] = set()
    self._unfit: dict[str, str] = {}  # Workers that cells cannot be run on, and why.
    self._running: dict[Any, cells_lib.Cell] = {}
    self._said: queue.SimpleQueue[Any] = queue.SimpleQueue()
    self._held = contextlib.ExitStack()

  def __enter__(self) -> 'Cluster':
    if not self._is_local:
      self._connect()
    return self

  def __exit__(self, *unused: Any) -> None:
    if self._client is not None and not self._is_local:
      self._tell_workers(end)  # What they keep is of no use any more.
    self._held.close()
    self._client = None

  @property
  def in_words(self) -> str:
    """How many runs there are at a time, and where; in a clause."""
    if self._is_local:
      return f'{self._address[len("local:") :]} at a time'
    number = len(self._fit)
    return f'{number} at a time on Dask workers of {self._address}'

  def check(self, output: str) -> None:
    """Has all workers read a file that is written to the folder of the comparison."""
    if self._is_local:
      return
    text = secrets.token_hex()
    path = os.path.join(os.path.abspath(output), f'{_PROBE}{text}')
    self._held.callback(_remove, path)  # There until the end, for workers that join.
    new_files.replace(path, text)
    self._expected |= {'file': path, 'text': text, 'inode': os.stat(path).st_ino}
    self._look_at_all()

  def run(
    self,
    cells: Sequence[cells_lib.Cell],
    stop: interrupts.StopRequest,
    tell: _Tell,
  ) -> None:
    """Runs cells; those that fail are no reason to stop.

    Dask has as many of them as there are workers, and so none that waits behind another
    one on a worker: Dask would hold the loss of the worker against both.
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
          # Signals are handled between two of them.
          self._done(self._said.get(timeout=_TICK_SECONDS), waiting, tell)
        now = time.monotonic()
        if now < looked + _LOOK_SECONDS and is_stopping == stop.requested:
          continue
        looked, is_stopping = now, stop.requested
        for worker, why in self._look().items():
          self._leave_out(worker, why)
        if is_stopping:
          self._tell_workers(finish)  # Those that have joined as well.
        if self._fit:
          last_seen = now
        elif is_stopping:
          return
        elif now > last_seen + self._absence_seconds:  # Nannies start workers anew.
          unfit = [f'; {worker} {why}' for worker, why in self._unfit.items()]
          seconds = f'{self._absence_seconds:g} seconds'
          raise self._lost(
            f'has had no worker for {seconds} that runs can be run on{"".join(unfit)}'
          )
    finally:
      if self._running:  # Dask forgets what is not done, and workers end what runs.
        client: Any = self._client
        with contextlib.suppress(Exception):
          client.sync(
            client._cancel, list(self._running), callback_timeout=_LOOK_SECONDS
          )
        self._running.clear()
        self._tell_workers(end)

  def _connect(self) -> None:
    self._client = self._held.enter_context(
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
    """Looks which workers there are; returns why those that are new are not fit."""
    try:
      there = set(cluster.workers_of(self._client))
      new = there.difference(self._fit, self._unfit)
      try:
        said = cluster.ask(self._client, why_unfit, self._expected, workers=list(new))
      except asyncio.TimeoutError:
        said = dict.fromkeys(new, 'does not answer')
    except Exception as e:
      raise self._lost('does not answer any more') from e
    unfit = {worker: why for worker, why in said.items() if why}
    self._unfit = {w: why for w, why in self._unfit.items() if w in there} | unfit
    self._fit = {w for w in {*self._fit, *said} if w in there and w not in self._unfit}
    return unfit

  def _tell_workers(self, function: Callable[[str], None], **named: Any) -> None:
    with contextlib.suppress(Exception):  # A scheduler that is lost is seen otherwise.
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
      },
      self._expected,
      self._name,
      key=f'{cell.name}-{secrets.token_hex(8)}',
      pure=False,
      # To be named only where it matters: a cell whose worker is lost then goes to one
      # of these, and not to the one that comes in its place.
      workers=list(self._fit) if self._unfit else None,
      allow_other_workers=bool(self._unfit),
    )
    self._running[future] = cell
    future.add_done_callback(self._said.put)

  def _done(
    self,
    future: Any,
    waiting: 'collections.deque[cells_lib.Cell]',
    tell: _Tell,
  ) -> None:
    import distributed

    cell = self._running.pop(future, None)
    if cell is None:  # Of a run before, which was stopped.
      return
    try:
      answer = future.result(timeout=_ANSWER_SECONDS)
    except (
      *(asyncio.CancelledError, distributed.CancelledError),
      *(asyncio.TimeoutError, distributed.TimeoutError),
    ) as e:
      raise self._lost('was lost, or has forgotten what it was given') from e
    except Exception as e:  # Of workers that were lost with this run, say.
      said = ' '.join(str(e).split()).rstrip('.')
      answer = _Answer(error=f'{type(e).__name__}: {said}')
    if answer.unfit:  # It joined, and was given a cell at once.
      if answer.worker not in self._unfit:
        self._leave_out(answer.worker, answer.unfit)
      waiting.appendleft(cell)
      return
    if answer.is_large:
      self._fit.discard(answer.worker)  # Until its nanny has started another process.
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
    tell(result, answer.seconds)

  def _lost(self, what: str) -> LostError:
    return LostError(f'The Dask scheduler {self._address} {what}. {_GOES_ON}')


def _is_seen(cell: cells_lib.Cell) -> bool:
  """Whether the files of a cell that is finished elsewhere are seen here, soon."""
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


# What follows is in workers: of the cell that runs, and of those that ran before.
_ONE = threading.Lock()
_finishing: set[str] = set()  # Comparisons whose cells are to end after their rounds.
_latest = ''  # The comparison whose cell is run, or was run last.
_first_peak: Optional[int] = None


def why_unfit(expected: Mapping[str, Any], dask_worker: Any) -> str:
  """Why cells cannot be run by this worker, in a clause; '' if they can."""
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
  # By the inode a run tells a copy of its directory, with which it would not go on.
  if (text, inode) != (expected['text'], expected['inode']):
    return f'has another {output} than this program, or other inode numbers there'
  return '' if os.access(output, os.W_OK) else f'may not write to {output}'


def finish(name: str) -> None:
  _finishing.add(name)


def end(name: str) -> None:
  """Ends this process if its latest cell is of a comparison; its nanny starts anew."""
  if name == _latest:
    os._exit(1)


def run_cell(job: Mapping[str, Any], expected: Mapping[str, Any], name: str) -> _Answer:
  """Runs a cell of the comparison of a name."""
  global _first_peak, _latest
  import distributed

  worker = distributed.get_worker()
  begun = time.monotonic()
  if unfit := why_unfit(expected, worker):
    return _Answer(worker.address, unfit)
  is_finished, error = False, ''
  with _ONE, _watched(worker, name) as is_to_end:
    _latest = name
    if not is_to_end():
      os.chdir(expected['folder'])  # A model of the user's own may have left it.
      is_finished, error = _run(job, is_to_end)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    _first_peak = _first_peak or peak
    is_large = (peak - _first_peak) * _RUSAGE_UNIT > _MOST_GROWTH
    # Dask begins nothing more there once its memory limit is reached.
    is_large |= worker.status == distributed.Status.paused
  seconds = time.monotonic() - begun
  return _Answer(worker.address, '', is_finished, error, seconds, is_large)


@contextlib.contextmanager
def _watched(worker: Any, name: str) -> Iterator[Callable[[], bool]]:
  """Watches a task: ends the process if it goes on while nobody waits for it."""
  key, is_over = worker.get_current_task(), threading.Event()

  def is_unwanted() -> bool:
    task = worker.state.tasks.get(key)
    return task is None or task.state == _UNWANTED

  def watch() -> None:
    while not is_over.wait(_TICK_SECONDS):
      if is_unwanted() and not is_over.wait(_LONELY_SECONDS):
        os._exit(1)

  threading.Thread(target=watch, daemon=True).start()
  try:
    yield lambda: name in _finishing or is_unwanted()
  finally:
    is_over.set()


def _run(job: Mapping[str, Any], is_to_end: Callable[[], bool]) -> tuple[bool, str]:
  """Returns whether the run is finished, and why it failed."""
  directory = job['directory']
  os.makedirs(directory, exist_ok=True)
  _remove(os.path.join(directory, run_directory.ERROR))
  log = os.path.join(directory, run_directory.LOG)
  with _output_to(log), warnings.catch_warnings():
    warnings.simplefilter('ignore')  # Of TFF's dependencies, about each other.
    own = (__package__ or '').rpartition('.')[0]
    warnings.filterwarnings('default', module=re.escape(own))  # Such as of large delta.
    try:
      return _train(job, is_to_end), ''
    except KeyboardInterrupt:
      return False, ''
    except (Exception, SystemExit) as e:  # A model may call sys.exit.
      trace = traceback.format_exc()
      print(trace, file=sys.stderr)
      # The last line of what is kept says it, also of errors with several.
      said = getattr(e, 'message', str(e))  # TensorFlow's own has more lines.
      said = cells_lib.last_line(failures.sentence(said))
      return False, f'{trace}\n{type(e).__name__}: {said}'


def _train(job: Mapping[str, Any], is_to_end: Callable[[], bool]) -> bool:
  settings = cells_lib.settings_of(job['arguments'])
  if settings.facts != job['facts']:
    raise ValueError('the data have changed since the comparison began.')
  from .. import training  # Loads TensorFlow.

  data, directory = settings.task.load(settings.data), job['directory']
  deadline = time.monotonic() + _PATIENCE_SECONDS
  while not is_to_end():
    try:
      with interrupts.stopped_by(is_to_end):
        result = training.train(settings, data, directory, job['not_covered'])
      return result.is_finished
    except BlockingIOError:  # Whoever was lost still runs it, and is to end.
      if time.monotonic() > deadline:
        raise
      time.sleep(_LOOK_SECONDS)
  return False


@contextlib.contextmanager
def _output_to(path: str) -> Iterator[None]:
  """Sends all output of this process, and of those that it starts, to a file."""
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
