"""Cells, the runs of a comparison: their settings, results, tuning, and running them.

There is one cell for each point of the grid and each seed, and further ones for tuning.
"""

import asyncio
import collections
import contextlib
import dataclasses
import itertools
import json
import math
import os
import secrets
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Callable, Optional, cast

import dp_accounting
import numpy as np

from tff_dp_aggregators.accounting import accountants
from tff_dp_aggregators.accounting import joint_mechanism
from tff_dp_aggregators.accounting import mechanism as mechanism_lib
from tff_dp_aggregators.accounting.programs import program
from tff_dp_aggregators.accounting.reports import learning_curves
from tff_dp_aggregators.accounting.reports import statement
from tff_dp_aggregators.base import new_files
from tff_dp_aggregators.base import rounding
from tff_dp_aggregators.learning import cluster
from tff_dp_aggregators.learning import failures
from tff_dp_aggregators.learning import interrupts
from tff_dp_aggregators.learning.runs import run_directory

from .. import settings as settings_lib
from ..options import privacy as privacy_options
from . import grid

CELLS, TUNING = 'cells', 'tuning'  # Folders in the output folder.
# Flags of the simulation that a comparison sets itself, or that change no result.
REFUSED = {
  'seed': 'give --seeds=N for seeds 1 to N',
  'run_dir': 'each run has a directory of its own under --output',
}
_CHANGE_NOTHING = ('checkpoint_seconds', 'timeout_seconds')
UNVARIED = {
  **REFUSED,
  **dict.fromkeys(_CHANGE_NOTHING, 'it changes no result'),
  'metric': 'results by other metrics do not compare; give one --metric for all runs',
}
FINISHED, FAILED, BEGUN, WAITING = 'finished', 'failed', 'begun', 'not begun'
_TEST = 'test_'


@dataclasses.dataclass(frozen=True)
class Cell:
  point: grid.Point
  seed: int
  directory: str
  arguments: tuple[str, ...]  # Flags of the simulation that is the same run.
  settings: settings_lib.Settings  # Made from them.
  # Flags that are tuned, with the values of this run.
  tuned: tuple[grid.Setting, ...] = ()
  # Further sentences on what the report does not cover.
  not_covered: tuple[str, ...] = ()

  @property
  def name(self) -> str:
    return os.path.basename(self.directory)

  @property
  def error_path(self) -> str:
    return os.path.join(self.directory, run_directory.ERROR)


@dataclasses.dataclass(frozen=True)
class Maker:
  """Makes cells, and refuses settings that cannot be run."""

  output: str  # Folder of the comparison.
  # Flags of the command line for every run, each as arguments.
  given: Mapping[str, tuple[str, ...]]
  # Facts about the user's own data, by the options that they are read with.
  facts: dict[str, Any] = dataclasses.field(default_factory=dict)

  def trials(
    self, points: Sequence[grid.Point], axes: grid.Axes, num_seeds: int
  ) -> Iterator[Cell]:
    """Yields the tuning runs seed by seed, so that all points have results early."""
    for seed, point in itertools.product(range(num_seeds), points):
      for number, values in enumerate(itertools.product(*axes.values())):
        tuned = tuple(itertools.chain.from_iterable(values))
        own_seed = FIRST_TUNING_SEED + seed + number * num_seeds
        yield self.cell(point, own_seed, tuned)

  def cell(
    self,
    point: grid.Point,
    seed: int,
    tuned: tuple[grid.Setting, ...] = (),
    not_covered: tuple[str, ...] = (),
  ) -> Cell:
    # The name of a reported cell does not depend on what tuning chose.
    tried, folder = (tuned, TUNING) if seed >= FIRST_TUNING_SEED else ((), CELLS)
    name = grid.name_of((*point.settings.items(), *tried, ('seed', str(seed))))
    directory = os.path.join(self.output, folder, name)
    settings = {**point.settings, **dict(tuned)}
    left_out = {*settings, *point.left_out}
    given = (self.given[name] for name in self.given if name not in left_out)
    arguments = tuple(itertools.chain.from_iterable(given))
    arguments += tuple(f'--{name}={value}' for name, value in settings.items())
    arguments += (f'--seed={seed}',)
    try:
      checked = settings_of(arguments)
      run_directory.check_flags(
        directory, checked.flags, checked.facts, checked.checksums
      )
      key = f'{checked.task.name} {checked.data!r}'
      if self.facts.setdefault(key, checked.facts) != checked.facts:
        raise ValueError(
          'the data have changed since the comparison began. Put back those that it '
          'began with, or give another --output.'
        )
    except (ValueError, OSError) as e:
      raise program.WrongUsage(f'{name}: {e}') from e
    return Cell(point, seed, directory, arguments, checked, tuned, not_covered)


def settings_of(arguments: Sequence[str]) -> settings_lib.Settings:
  values = program.values_of(settings_lib.groups(), arguments)
  return settings_lib.from_flags(values)


def last_line(text: str) -> str:
  lines = [line.strip() for line in text.splitlines() if line.strip()]
  return lines[-1] if lines else ''


@dataclasses.dataclass(frozen=True)
class Result:
  cell: Cell
  status: str  # `FINISHED`, `FAILED`, `BEGUN` or `WAITING`.
  rounds: int = 0  # Number of completed rounds.
  # Metrics on test data after the last of them, by column.
  measures: Mapping[str, float] = dataclasses.field(default_factory=dict)
  # By the report; infinite without a guarantee, `None` before there is a report.
  epsilon: Optional[float] = None
  delta: Optional[float] = None  # Delta of that epsilon.
  # That of the added noise, divided by the scale of a simulated cohort; `None` without
  # noise, and if each part has its own.
  noise_multiplier: Optional[float] = None
  rmse: Optional[float] = None  # Error of sums of rounds, in clip norms, as in reports.
  seconds: float = 0.0  # Time that the rounds took.
  error: str = ''  # The last line of the error, if it failed.
  # The report's warnings: towards whom its epsilon does not hold.
  warnings: tuple[str, ...] = ()

  @property
  def is_finished(self) -> bool:
    """Whether the result counts in the table."""
    return self.status == FINISHED

  @property
  def metric(self) -> float:
    """The metric of its settings on test data; NaN if there is none yet."""
    name = f'{_TEST}{self.cell.settings.model.metric.name}'
    return self.measures.get(name, math.nan)


def read(cell: Cell) -> Result:
  path = os.path.join(cell.directory, run_directory.METRICS)
  error, has_begun = '', os.path.exists(path)
  try:
    if os.path.exists(cell.error_path):
      with open(cell.error_path, encoding='utf-8') as file:
        error = last_line(file.read())
    status = FAILED if error else BEGUN if has_begun else WAITING
    rows = learning_curves.read(path) if has_begun else []
    if not rows:
      return Result(cell, status, error=error)
    epsilon, warnings = None, ()
    if len(rows) == cell.settings.flags['num_rounds'] and run_directory.looks_finished(
      cell.directory
    ):
      status, error = FINISHED, ''
      with open(os.path.join(cell.directory, run_directory.REPORT), 'rb') as file:
        report = json.load(file)
      epsilon, warnings = report['guarantee']['epsilon'], report.get('warnings', ())
      epsilon = math.inf if epsilon is None else float(epsilon)
    privacy = cell.settings.privacy
    noise_multiplier, rmse = _noise(privacy)
    return Result(
      cell,
      status,
      rounds=len(rows),
      measures={
        name: float(text)
        for name, text in rows[-1].items()
        if text and name.startswith((_TEST, 'simulated_'))
      },
      epsilon=epsilon,
      warnings=tuple(warnings),
      delta=None if privacy.mechanism is None else privacy.delta,
      noise_multiplier=noise_multiplier,
      rmse=rmse,
      seconds=sum(float(row.get('round_seconds') or 0) for row in rows),
      error=error,
    )
  except (OSError, KeyError, TypeError, AttributeError, ValueError) as e:
    raise program.WrongUsage(
      f'{cell.directory} cannot be read as a run: {e}. Remove it, and the same command '
      'runs it again.'
    ) from e


def after_run(cell: Cell, error: str, is_stopped: bool) -> Result:
  """Returns the result of a run that has ended; writes why it failed."""
  if not error:
    result = read(cell)
    if result.is_finished or is_stopped:
      return result
    error = f'A worker finished it, and its files are not in {cell.directory}.'
  new_files.replace(cell.error_path, error.rstrip('\n') + '\n')
  return Result(cell, FAILED, error=last_line(error))


def _noise(privacy: privacy_options.Privacy) -> tuple[Optional[float], Optional[float]]:
  if privacy.mechanism is None or privacy.mechanism.parts:
    return None, None
  mechanism = cast(mechanism_lib.Mechanism, privacy.mechanism)
  error = math.sqrt(float(mechanism.strategy.per_query_error().mean()))
  scale = privacy.simulated_cohort_scale
  noise = statement.error_multiplier(mechanism) / scale
  return mechanism.noise_multiplier / scale, noise * error


# Tuning. Its runs are on the same clients as those that are reported, and the choice
# reveals something of all, so that publishing a tuned run and the choice costs the
# composition of all runs, each of which has its own seed and noise. This covers what is
# computed from the runs and from other people's data: the test data, which are the same
# in all runs (`--split_seed`), unless examples of these clients are held out.
FIRST_TUNING_SEED = 1_000_001  # Larger than reported seeds.
TIGHTER = (
  'Choosing the best of a random number of runs can be accounted for more tightly '
  '(Papernot and Steinke, arXiv:2110.03620).'
)


@dataclasses.dataclass(frozen=True)
class Selected:
  """The settings chosen for a point of the grid."""

  settings: tuple[grid.Setting, ...]  # The flags that were tuned, with the best values.
  # Composition of the runs to choose from and the reported one; `None` without privacy,
  # or with the noise of a larger cohort.
  epsilon: Optional[float]
  sentence: Optional[str]  # For the report of a run with them; `None` without privacy.


def choose(results: Sequence[Result]) -> Optional[Selected]:
  """Returns the best settings of a point; `None` unless all runs are finished."""
  if not results or not all(each.is_finished for each in results):
    return None
  sign = 1.0 if results[0].cell.settings.model.metric.higher_is_better else -1.0

  def score(settings: tuple[grid.Setting, ...]) -> float:
    values = [each.metric for each in results if each.cell.tuned == settings]
    mean = sign * float(np.mean(values))
    return -math.inf if math.isnan(mean) else mean

  best = max(dict.fromkeys(each.cell.tuned for each in results), key=score)
  privacies = [each.cell.settings.privacy for each in results]
  of_best = next(each.cell for each in results if each.cell.tuned == best)
  delta = of_best.settings.privacy.delta
  # With the noise of a simulated cohort there is no guarantee, whatever its mechanism.
  mechanisms = [
    each.mechanism if each.simulated_cohort_scale == 1 else None for each in privacies
  ]
  epsilon, num_composed = _composed(mechanisms, delta)
  if epsilon is None:
    return Selected(best, None, None)
  text = ', '.join(f'{name}={value}' for name, value in best)
  text += f': chosen as the best of {len(results)} '
  text += f'run{"s" if len(results) > 1 else ""} on the same clients'
  if math.isinf(epsilon):
    text += ', which together have no guarantee that is known.'
  else:
    text += (
      f'; publishing the choice as well spends at most epsilon = '
      f'{rounding.up(epsilon)} at delta = {delta:g} (composition of all '
      f'{num_composed}), if the test data that it was chosen by are of none of these '
      f'clients. {TIGHTER}'
    )
  return Selected(best, epsilon, text)


def _composed(
  mechanisms: Sequence[Optional[joint_mechanism.AnyMechanism]], delta: float
) -> tuple[Optional[float], int]:
  """Composes all tuning runs and the reported one.

  If tuning changes the mechanism, the choice decides which mechanism is run again. So
  one more run of each mechanism is counted, of which all but one can be ignored.

  Returns epsilon (`None` without privacy, infinite if the composition has no known
  guarantee) and the number of runs in it.
  """
  with_noise = [each for each in mechanisms if each is not None]
  if not with_noise:
    return None, 0
  # Epsilons for different relations (a client is replaced, or removed) do not compose.
  relations = {each.relation for each in with_noise}
  if len(with_noise) < len(mechanisms) or len(relations) > 1:
    return math.inf, 0
  # Accountants compose equal events fast if they are one repeated event.
  events = [each.event for each in with_noise]
  different = [event for i, event in enumerate(events) if event not in events[:i]]
  parts = [
    dp_accounting.SelfComposedDpEvent(event, events.count(event) + 1)
    for event in different
  ]
  total = parts[0] if len(parts) == 1 else dp_accounting.ComposedDpEvent(parts)
  epsilon = accountants.epsilon(total, delta, None, with_noise[0].relation)
  return epsilon, len(events) + len(parts)


# Running. If a worker is lost, Dask gives its cell to another one, which resumes it, as
# its data and results are in files that all workers see. A worker runs one cell at a
# time in its own process, so that TensorFlow is loaded once.
_TICK_SECONDS, _REPLY_SECONDS = 0.2, 10.0
_ABSENCE_SECONDS = 600.0  # In which lost workers may come back.
# TensorFlow keeps what it traced, some 60 MB a run, so a worker's process is replaced
# by a new one after so many.
_MAX_CELLS = 16


def run(
  client: Any, cells: Sequence[Cell], stop: interrupts.StopRequest
) -> Iterator[tuple[Cell, str, float]]:
  """Runs cells, and goes on if some fail.

  Yields each, with why it failed ('' if it did not) and its time in seconds.
  """
  name, waiting = secrets.token_hex(8), collections.deque(cells)
  running: dict[Any, Cell] = {}
  numbers: collections.Counter[str] = collections.Counter()  # Cells by worker.
  last_seen = time.monotonic()
  try:
    while waiting or running:
      workers = client.ncores()
      if stop.requested:
        waiting.clear()
        with contextlib.suppress(
          TimeoutError, asyncio.TimeoutError
        ):  # Also those that joined since.
          client.run(finish, name, on_error='ignore', callback_timeout=_REPLY_SECONDS)
        if not workers:
          return
      if workers:
        last_seen = time.monotonic()
      elif time.monotonic() > last_seen + _ABSENCE_SECONDS:
        raise TimeoutError(f'there was no worker for {_ABSENCE_SECONDS:g} seconds')
      # No cell waits behind another one on a worker: if it is lost, Dask would count
      # that as a failure of both.
      while waiting and len(running) < len(workers):
        future = client.submit(run_cell, _job(waiting[0]), name, pure=False)
        running[future] = waiting.popleft()
      time.sleep(_TICK_SECONDS)
      for future in [each for each in running if each.done()]:
        cell = running.pop(future)
        if future.status == 'error':  # For example if workers were lost with this cell.
          yield cell, failures.in_words(future.exception()), 0.0
          continue
        worker, error, seconds = future.result()
        yield cell, error, seconds
        numbers[worker] += 1
        if numbers[worker] == _MAX_CELLS:
          with contextlib.suppress(ValueError):  # It has no nanny.
            client.restart_workers([worker], raise_for_error=False)
  except (Exception, asyncio.CancelledError) as e:
    raise cluster.ClusterError(
      f'The Dask cluster failed: {failures.in_words(e)}. Finished runs are kept, and '
      'the others go on where they were: give the same command with a --scheduler that '
      'runs, or with --jobs to go on here.'
    ) from e


def _job(cell: Cell) -> dict[str, Any]:
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
      error = f'{trace}\n{type(e).__name__}: {last_line(summary)}'
  return worker.address, error, time.monotonic() - begun


def train(job: Mapping[str, Any], must_end: Callable[[], bool]) -> None:
  """Trains a cell until it is finished, or must end after a round."""
  if must_end():
    return
  settings = settings_of(job['arguments'])
  for name in ('facts', 'checksums'):
    if getattr(settings, name) != job[name]:
      raise ValueError(
        'the data, or the file of --strategy_file or --schedule_file, have changed '
        'since the comparison began.'
      )
  from .. import training  # Loads TensorFlow.

  data = settings.task.load(settings.data)
  # Training raises KeyboardInterrupt if it must end before its first round.
  with interrupts.stopped_by(must_end), contextlib.suppress(KeyboardInterrupt):
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
