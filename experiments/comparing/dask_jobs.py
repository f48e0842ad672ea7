"""Runs the cells of a comparison on a Dask cluster.

The scheduler hands cells to workers, also to those that join later, and again to others
if a worker is lost. What cells are made of, and what they leave, is in files that this
program and all workers see; so a cell goes on where it was.
"""

import asyncio
import collections
import contextlib
import logging
import os
import queue
import secrets
import threading
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Callable, Optional, TypeVar

import dask
import distributed
from distributed import versions

from tff_dp_aggregators.base import new_files
from tff_dp_aggregators.learning import cluster
from tff_dp_aggregators.learning.runs import progress

from . import cells as cells_lib
from . import dask_task
from . import jobs
from . import logs
from . import process
from . import results

# Of Dask, which log what this says itself.
_LOGGERS = ('distributed', 'distributed.client', 'tornado')
_TICK_SECONDS = 0.2
# What the scheduler, and the workers, may take to answer.
_ANSWER_SECONDS = 30.0
_CHECK_SECONDS = 5.0
_ENDING_SECONDS = 15.0
_LATE_FILES_SECONDS = 60.0  # Network file systems look for files only now and then.
_MOST_NAMED = 5  # Workers that are not fit.
# What Dask's configuration may have in place of names of files.
_LOADER = 'distributed.client.security-loader'
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
_T = TypeVar('_T')


class Cluster(jobs.Runner):
  """Runs cells on the workers of a Dask scheduler."""

  def __init__(
    self,
    address: str,
    reach_seconds: float = 20.0,
    workers_seconds: float = 60.0,
    absence_seconds: float = 600.0,
    *,
    trusted_network: bool = False,
  ):
    """Sets it up; nothing is connected to yet.

    Args:
      address: Of the scheduler, such as `tcp://10.0.0.1:8786`. With `tls://`, keys and
        certificates are those of Dask's own configuration.
      reach_seconds: How long to try to reach the scheduler.
      workers_seconds: How long to wait for a first worker.
      absence_seconds: How long to wait for another one when all are lost.
      trusted_network: Whether a scheduler of another machine may be reached by
        `tcp://`, as nobody else is on the network.

    Raises:
      RefusedError: If that is no address, or one for `tls://` or a trusted network.
    """
    try:
      cluster.check(address, trusted_network, '--scheduler')
    except ValueError as e:
      raise jobs.RefusedError(str(e)) from e
    self._address = address.rstrip('/')
    self._reach_seconds = reach_seconds
    self._workers_seconds = workers_seconds
    self._absence_seconds = absence_seconds
    self._expected: dict[str, Any] = {'software': dask_task.software()}
    self._client: Any = None
    self._held = contextlib.ExitStack()

  def __enter__(self) -> 'Cluster':
    """Connects, waits for a worker, and compares what workers have.

    Raises:
      RefusedError: If the scheduler is not reached, or there are no workers, or some
        have other versions.
    """
    with contextlib.ExitStack() as held:
      held.enter_context(_silenced())
      self._client = self._connected()
      held.callback(self._close)
      self._wait_for_workers()
      self._check_workers()
      self._held = held.pop_all()
    return self

  def __exit__(self, *unused: Any) -> None:
    self._held.close()

  @property
  def in_words(self) -> str:
    """How many runs there are at a time, and where."""
    threads = self._threads()
    at_a_time = f'{sum(threads.values())} at a time'
    workers = f'{len(threads)} Dask worker{"" if len(threads) == 1 else "s"}'
    return f'{at_a_time} on {workers} of {self._address}'

  def check(self, output: str) -> None:
    """Has all workers read a file that is written to the folder.

    Raises:
      RefusedError: If some do not see it; with their names.
      OSError: If it cannot be written.
    """
    folder = os.path.abspath(output)
    text = secrets.token_hex()
    path = os.path.join(folder, f'{_PROBE}{secrets.token_hex(8)}')
    # There until the end, for workers that join.
    self._held.callback(_remove, path)
    new_files.replace(path, text)
    self._expected |= {
      'folder': os.getcwd(),
      'file': path,
      'text': text,
      'inode': os.stat(path).st_ino,
    }
    self._check_workers()

  def run(
    self,
    cells: Sequence[cells_lib.Cell],
    stop: jobs.Stop,
    tell: Callable[[jobs.Outcome], None],
  ) -> None:
    """Runs cells on the workers that there are, and on those that join."""
    execution = _Execution(self._client, self._expected, cells, tell, self._address)
    try:
      execution.go(stop, self._absence_seconds)
    finally:
      execution.drop()

  def _refused(self, what: str) -> jobs.RefusedError:
    return jobs.RefusedError(f'--scheduler={self._address} {what}')

  def _connected(self) -> Any:
    """A client of the scheduler."""
    self._check_keys()
    seconds = self._reach_seconds
    try:
      return _within(
        2 * seconds,
        distributed.Client,
        self._address,
        timeout=seconds,
        set_as_default=False,
      )
    except (OSError, asyncio.TimeoutError) as e:
      raise self._refused(
        f'cannot be reached within {seconds:g} seconds. Look whether the scheduler '
        f'runs there, and whether this machine may connect to it. Dask says: {_line(e)}'
      ) from e
    except Exception as e:  # By whatever else answers there.
      raise self._refused(
        'cannot be used. Look whether it is a Dask scheduler of this version '
        f'({distributed.__version__}). Dask says: {type(e).__name__}: {_line(e)}'
      ) from e

  def _check_keys(self) -> None:
    """Refuses to connect by TLS without keys, which a client may not survive."""
    if not self._address.startswith('tls') or dask.config.get(_LOADER, None):
      return
    why = 'it names none'
    try:
      security = distributed.Security()
      if security.get_connection_args('client')['ssl_context'] is not None:
        return
    except OSError as e:  # Also of what is no key.
      why = _line(e)
    raise self._refused(
      "needs keys and certificates of Dask's configuration, distributed.comm.tls with "
      f'ca-file, client.key and client.cert: {why}. docs.dask.org has "TLS/SSL".'
    )

  def _wait_for_workers(self) -> None:
    deadline = time.monotonic() + self._workers_seconds
    while not self._threads():
      if time.monotonic() > deadline:
        raise self._refused(
          f'has no workers, and none came within {self._workers_seconds:g} seconds. '
          f'Start some: dask worker {self._address} --nthreads 1'
        )
      time.sleep(_TICK_SECONDS)

  def _threads(self) -> dict[str, int]:
    """How many threads each worker has."""
    try:
      return dict(_within(_ANSWER_SECONDS, self._client.nthreads))
    except Exception as e:
      raise self._refused(f'does not answer any more: {_line(e)}') from e

  def _check_workers(self) -> None:
    """Refuses workers on which cells cannot be run."""
    try:
      said = _why_unfit(self._client, self._expected)
    except _NoAnswerError as e:
      raise self._refused(
        f'has workers that do not answer within {_ANSWER_SECONDS:g} seconds. Look at '
        'their logs, and end those that hang.'
      ) from e
    except Exception as e:
      raise self._refused(f'does not answer any more: {_line(e)}') from e
    unfit = [f'{worker} {why}' for worker, why in said.items() if why]
    if unfit:
      more = len(unfit) - _MOST_NAMED
      raise self._refused(
        f'has workers on which runs cannot be run: {"; ".join(unfit[:_MOST_NAMED])}'
        f'{f"; and {more} more" if more > 0 else ""}. {_NEEDED}'
      )

  def _close(self) -> None:
    with contextlib.suppress(Exception):
      _within(_ENDING_SECONDS, self._client.close, timeout=_ENDING_SECONDS / 3)
    self._client = None


class _NoAnswerError(TimeoutError):
  """A cluster did not answer."""


class _Execution:
  """Cells being run.

  Dask has as many of them as there are threads, and so none that waits behind another
  one on a worker: Dask would hold the loss of the worker against both.
  """

  def __init__(
    self,
    client: Any,
    expected: Mapping[str, Any],
    cells: Sequence[cells_lib.Cell],
    tell: Callable[[jobs.Outcome], None],
    address: str,
  ):
    self._client, self._expected = client, expected
    self._tell, self._address = tell, address
    self._name = secrets.token_hex(8)
    self._waiting = collections.deque(cells)
    self._running: dict[Any, cells_lib.Cell] = {}
    self._said: queue.SimpleQueue[Any] = queue.SimpleQueue()
    self._threads: dict[str, int] = {}  # Of workers that are fit.
    self._unfit: dict[str, str] = {}  # Why others are not.
    self._wished = process.Wish.GO_ON

  def go(self, stop: jobs.Stop, absence_seconds: float) -> None:
    """Runs all cells, or until there is nothing more to be expected.

    Args:
      stop: Handed on to the workers.
      absence_seconds: How long to wait for a worker when there is none.

    Raises:
      LostError: If the scheduler is lost, or all workers are.
    """
    looked = last_seen = time.monotonic()
    is_told = False
    self._look()
    end = float('inf')
    while (self._running or self._waiting) and time.monotonic() < end:
      if stop.requested:
        self._waiting.clear()
      while self._waiting and len(self._running) < sum(self._threads.values()):
        self._submit(self._waiting.popleft())
      with contextlib.suppress(queue.Empty):
        # Signals are handled between two of them.
        self._done(self._said.get(timeout=_TICK_SECONDS))
      now = time.monotonic()
      if stop.wish() > self._wished:
        if stop.wish() is process.Wish.END_NOW:
          end = now + _ENDING_SECONDS
        self._hand_on(stop.wish())
      if now < looked + _CHECK_SECONDS:
        continue
      self._look()
      if stop.requested:
        self._hand_on(stop.wish())  # To workers that have joined as well.
      if self._threads:
        last_seen, is_told = now, False
      elif stop.requested:
        return
      elif now > last_seen + absence_seconds:
        raise jobs.LostError(self._why_no_worker(absence_seconds))
      elif not is_told and now > last_seen + 2 * _CHECK_SECONDS:
        is_told = True  # And not of a worker that a nanny starts anew.
        progress.say(
          f'There is no Dask worker any more; waiting for one for {absence_seconds:g} '
          'seconds.'
        )
      looked = now

  def drop(self) -> None:
    """Lets Dask forget what is not done; what runs is then ended by its worker."""
    if self._running:
      with contextlib.suppress(Exception):
        _within(_ENDING_SECONDS, self._client.cancel, list(self._running))
      self._running.clear()

  def _submit(self, cell: cells_lib.Cell) -> None:
    """Gives a cell to Dask."""
    future = self._client.submit(
      dask_task.run,
      jobs.job_of(cell),
      self._expected,
      self._name,
      key=f'{cell.name}-{secrets.token_hex(8)}',
      pure=False,
      # To be named only where it matters: a cell whose worker is lost then goes to one
      # of these, and not to the one that comes in its place.
      workers=list(self._threads) if self._unfit else None,
      allow_other_workers=bool(self._unfit),
    )
    self._running[future] = cell
    future.add_done_callback(self._said.put)

  def _look(self) -> None:
    """Looks which workers there are, and whether those that are new are fit."""
    try:
      threads = dict(_within(_ANSWER_SECONDS, self._client.nthreads))
      new = [each for each in threads if each not in {**self._threads, **self._unfit}]
      try:
        said = _why_unfit(self._client, self._expected, new) if new else {}
      except _NoAnswerError as e:
        said = dict.fromkeys(new, f'gave {e}')
    except Exception as e:
      raise self._lost('does not answer any more') from e
    for worker, why in said.items():
      if why:
        self._leave_out(worker, why)
    fit = {worker for worker in {*self._threads, *said} if worker not in self._unfit}
    self._threads = {each: number for each, number in threads.items() if each in fit}
    self._unfit = {each: why for each, why in self._unfit.items() if each in threads}

  def _leave_out(self, worker: str, why: str) -> None:
    """Gives no more cells to a worker."""
    self._threads.pop(worker, None)
    self._unfit[worker] = why
    progress.say(f'The Dask worker {worker} is not used: it {why}. {_NEEDED}')

  def _done(self, future: Any) -> None:
    """Tells what became of a cell that Dask has done with."""
    cell = self._running.pop(future)
    if future.status == 'cancelled':
      raise self._lost('was lost, or has forgotten what it was given')
    try:
      answer = _within(_ANSWER_SECONDS, future.result)
    except distributed.CancelledError as e:
      raise self._lost('was lost') from e
    except _NoAnswerError as e:
      raise self._lost('does not answer any more') from e
    except Exception as e:
      logs.end(cell.directory)
      reason = logs.fail(cell.directory, _why_failed(e))
      self._tell(jobs.Outcome(cell, process.FAILED, 0.0, reason))
      return
    worker, status = answer.pop('worker'), answer['status']
    if status == dask_task.UNFIT:  # It joined, and was given a cell at once.
      if worker not in self._unfit:
        self._leave_out(worker, answer['reason'])
      self._waiting.appendleft(cell)
      return
    if status == dask_task.NOT_BEGUN:
      return
    if status == process.FINISHED and not _is_seen(cell):
      reason = (
        f'the Dask worker {worker} finished it, and {_LATE_FILES_SECONDS:.0f} seconds '
        f'later the files are not in {cell.directory} as this program sees it'
      )
      answer |= {'status': process.FAILED, 'reason': reason}
    self._tell(jobs.Outcome(cell, **answer))

  def _hand_on(self, wished: process.Wish) -> None:
    """Tells workers what is wished."""
    self._wished = wished
    with contextlib.suppress(Exception):  # A scheduler that is lost is seen otherwise.
      _within(
        _ENDING_SECONDS,
        self._client.run,
        dask_task.wish,
        self._name,
        wished,
        on_error='ignore',
      )

  def _why_no_worker(self, seconds: float) -> str:
    unfit = [f'; {worker} {why}' for worker, why in self._unfit.items()]
    return (
      f'The Dask scheduler {self._address} has had no worker for {seconds:g} seconds '
      f'that runs can be run on{"".join(unfit[:_MOST_NAMED])}. {_GOES_ON}'
    )

  def _lost(self, what: str) -> jobs.LostError:
    return jobs.LostError(f'The Dask scheduler {self._address} {what}. {_GOES_ON}')


def _within(
  seconds: float, function: Callable[..., _T], *arguments: Any, **named: Any
) -> _T:
  """Calls what may wait for a cluster that does not answer.

  Raises:
    _NoAnswerError: If there is no answer in that time.
  """
  answers: queue.SimpleQueue[Any] = queue.SimpleQueue()

  def call() -> None:
    try:
      answers.put((function(*arguments, **named), None))
    except BaseException as e:
      answers.put((None, e))

  threading.Thread(target=call, daemon=True).start()
  try:
    result, error = answers.get(timeout=seconds)
  except queue.Empty:
    raise _NoAnswerError(f'no answer within {seconds:g} seconds') from None
  if error is not None:
    raise error
  return result


def _why_unfit(
  client: Any, expected: Mapping[str, Any], workers: Optional[Sequence[str]] = None
) -> dict[str, str]:
  """Why cells cannot be run on workers; '' if they can.

  Args:
    client: Of the scheduler.
    expected: Of a worker, see `dask_task.unfit`.
    workers: Their addresses; `None` for all that there are.

  Returns:
    What each says that answers; one may be gone by now.

  Raises:
    _NoAnswerError: If some take too long.
  """
  said = _within(
    _ANSWER_SECONDS,
    client.run,
    dask_task.unfit,
    expected,
    workers=workers,
    on_error='return',
  )
  found = {}
  for worker, each in said.items():
    if isinstance(each, ImportError):
      found[worker] = f'cannot load {dask_task.__name__} ({_line(each)})'
    elif not isinstance(each, BaseException):
      found[worker] = each
    elif not isinstance(each, OSError):
      raise each
  return found


def _why_failed(error: Exception) -> str:
  """Why Dask has no answer of a cell."""
  if isinstance(error, distributed.KilledWorker):
    return (
      f'{error.allowed_failures + 1} Dask workers were lost while they had this run, '
      f'the last one {error.last_worker.address}; their logs may say why. More than '
      f'{error.allowed_failures} (distributed.scheduler.allowed-failures) are not tried'
    )
  return f'{type(error).__name__}: {_line(error)}'


def _is_seen(cell: cells_lib.Cell) -> bool:
  """Whether the files of a cell that is finished elsewhere are seen here, soon."""
  deadline = time.monotonic() + _LATE_FILES_SECONDS
  while True:
    with contextlib.suppress(OSError, results.UnreadableError):
      os.listdir(os.path.dirname(cell.directory))  # Makes NFS look again.
      if results.read(cell).is_finished:
        return True
    if time.monotonic() > deadline:
      return False
    time.sleep(_TICK_SECONDS)


def _line(error: BaseException) -> str:
  return ' '.join(str(error).split()).rstrip('.')


def _remove(path: str) -> None:
  with contextlib.suppress(OSError):
    os.unlink(path)


@contextlib.contextmanager
def _silenced() -> Iterator[None]:
  """Keeps what Dask logs and warns of off the terminal, while inside."""
  loggers = [logging.getLogger(name) for name in _LOGGERS]
  levels = [each.level for each in loggers]
  with warnings.catch_warnings():
    warnings.simplefilter('ignore', versions.VersionMismatchWarning)
    for each in loggers:
      each.setLevel(logging.CRITICAL + 1)
    try:
      yield
    finally:
      for each, level in zip(loggers, levels):
        each.setLevel(level)
