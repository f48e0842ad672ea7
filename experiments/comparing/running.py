"""Runs the cells of a comparison as Dask tasks, on this machine or on others.

If a worker is lost, Dask gives its cell to another one, which resumes it, as its data
and results are in files that all workers see. A worker runs one cell at a time in its
own process, so that TensorFlow is loaded once.
"""

import asyncio
import collections
import contextlib
import os
import secrets
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Callable

from tff_dp_aggregators.learning import cluster
from tff_dp_aggregators.learning import failures
from tff_dp_aggregators.learning import interrupts
from tff_dp_aggregators.learning.runs import run_directory

from . import cells as cells_lib

_TIMEOUTS = (TimeoutError, asyncio.TimeoutError)  # One type in newer Pythons.
_TICK_SECONDS = 0.2
_REPLY_SECONDS = 10.0
_ABSENCE_SECONDS = 600.0  # In which lost workers may come back.
# TensorFlow keeps what it traced, some 60 MB a run, so a worker's process is replaced
# by a new one after so many.
_MAX_CELLS = 16


def run(
  client: Any, cells: Sequence[cells_lib.Cell], stop: interrupts.StopRequest
) -> Iterator[tuple[cells_lib.Cell, str, float]]:
  """Runs cells, and goes on if some fail.

  Yields each, with why it failed ('' if it did not) and its time in seconds.
  """
  import distributed

  lost: tuple[type[BaseException], ...] = (
    *(OSError, RuntimeError, *_TIMEOUTS),
    *(asyncio.CancelledError, distributed.CancelledError),
  )
  name, waiting = secrets.token_hex(8), collections.deque(cells)
  running: dict[Any, cells_lib.Cell] = {}
  numbers: collections.Counter[str] = collections.Counter()  # Of cells, by worker.
  last_seen = time.monotonic()
  try:
    while waiting or running:
      workers = client.ncores()
      if stop.requested:
        waiting.clear()
        with contextlib.suppress(*_TIMEOUTS):  # Also those that joined since.
          client.run(finish, name, on_error='ignore', callback_timeout=_REPLY_SECONDS)
        if not workers:
          return
      if not workers:
        if time.monotonic() > last_seen + _ABSENCE_SECONDS:
          raise TimeoutError(f'there was no worker for {_ABSENCE_SECONDS:g} seconds')
        time.sleep(_TICK_SECONDS)
        continue
      last_seen = time.monotonic()
      # No cell waits behind another one on a worker: if it is lost, Dask would count
      # that as a failure of both.
      while waiting and len(running) < len(workers):
        future = client.submit(run_cell, _job(waiting[0]), name, pure=False)
        running[future] = waiting.popleft()
      with client.as_current(), contextlib.suppress(*_TIMEOUTS):
        distributed.wait(list(running), _TICK_SECONDS, 'FIRST_COMPLETED')
      for future in [each for each in running if each.done()]:
        cell = running.pop(future)
        if future.status == 'error':  # For example if workers were lost with this cell.
          yield cell, cluster.in_words(future.exception()), 0.0
          continue
        worker, error, seconds = future.result()
        yield cell, error, seconds
        numbers[worker] += 1
        if numbers[worker] == _MAX_CELLS:
          with contextlib.suppress(ValueError):  # It has no nanny.
            client.restart_workers([worker], raise_for_error=False)
  except lost as e:
    raise cluster.ClusterError(
      f'The Dask cluster failed: {cluster.in_words(e)}. Finished runs are kept, and '
      'the others go on where they were: give the same command with a --scheduler that '
      'runs, or with --jobs to go on here.'
    ) from e


def _job(cell: cells_lib.Cell) -> dict[str, Any]:
  os.makedirs(cell.directory, exist_ok=True)  # Workers that do not see it refuse it.
  with contextlib.suppress(FileNotFoundError):
    os.unlink(cell.error_path)
  return {
    'arguments': cell.arguments,
    'folder': os.getcwd(),
    'directory': os.path.abspath(cell.directory),
    'not_covered': cell.not_covered,
    'facts': cell.settings.facts,
    'checksums': cell.settings.checksums,
    'software': cluster.software(),
  }


# The following is used in workers.
_cell_lock = threading.Lock()
_finishing: set[str] = set()  # Comparisons whose cells have to end after their round.


def finish(name: str) -> None:
  _finishing.add(name)


def run_cell(job: Mapping[str, Any], name: str) -> tuple[str, str, float]:
  """Runs a cell of the comparison `name`.

  Returns the worker's address, why the run failed ('' if it did not), and the time in
  seconds.
  """
  import distributed

  worker = distributed.get_worker()
  key, begun, error = worker.get_current_task(), time.monotonic(), ''

  def must_end() -> bool:
    task = worker.state.tasks.get(key)
    # Nobody needs its result any more if the comparison was killed.
    return name in _finishing or task is None or task.state == 'cancelled'

  if why := cluster.differs(job['software']):
    raise cluster.ClusterError(f'The Dask worker {worker.address} {why}.')
  if not os.path.isdir(job['directory']):
    raise cluster.ClusterError(
      f'The Dask worker {worker.address} does not see {job["directory"]}; all have to '
      'see --output, and the folder that this is started in, at the same paths.'
    )
  log = os.path.join(job['directory'], run_directory.LOG)
  with _cell_lock, _output_to(log):
    try:
      os.chdir(job['folder'])  # A user's model may have changed it.
      train(job, must_end)
    except (Exception, SystemExit) as e:  # A model may call sys.exit.
      trace = traceback.format_exc()
      print(trace, file=sys.stderr)
      # The last line is a summary, also for errors that have several lines.
      summary = failures.sentence(getattr(e, 'message', str(e)))
      error = f'{trace}\n{type(e).__name__}: {cells_lib.last_line(summary)}'
  return worker.address, error, time.monotonic() - begun


def train(job: Mapping[str, Any], must_end: Callable[[], bool]) -> None:
  """Trains a cell until it is finished, or must end after a round."""
  if must_end():
    return
  settings = cells_lib.settings_of(job['arguments'])
  for name in ('facts', 'checksums'):
    if getattr(settings, name) != job[name]:
      raise ValueError(
        'the data, or the file of --strategy_file or --schedule_file, have changed '
        'since the comparison began.'
      )
  from .. import training  # Loads TensorFlow.

  data = settings.task.load(settings.data)
  with interrupts.stopped_by(must_end):
    training.train(settings, data, job['directory'], job['not_covered'])


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
