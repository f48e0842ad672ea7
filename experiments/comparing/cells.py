"""Cells, which are the runs of a comparison: their settings, results, and tuning.

There is one cell for each point of the grid and each seed, and further ones for tuning.
"""

import contextlib
import dataclasses
import itertools
import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Optional, cast

import dp_accounting
from absl import flags

from tff_dp_aggregators.accounting import accountants
from tff_dp_aggregators.accounting import joint_mechanism
from tff_dp_aggregators.accounting import mechanism as mechanism_lib
from tff_dp_aggregators.accounting.programs import program
from tff_dp_aggregators.accounting.reports import statement
from tff_dp_aggregators.base import new_files
from tff_dp_aggregators.base import rounding
from tff_dp_aggregators.learning.runs import metrics_file
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
UNVARIED = {**REFUSED, **dict.fromkeys(_CHANGE_NOTHING, 'it changes no result')}
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
    self, points: Sequence[grid.Point], axes: Sequence[grid.Axis], num_seeds: int
  ) -> Iterator[Cell]:
    """Yields the tuning runs seed by seed, so that all points have results early."""
    for seed, point in itertools.product(range(num_seeds), points):
      for number, values in enumerate(itertools.product(*(a.values for a in axes))):
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
    arguments = tuple(
      argument
      for name, arguments in self.given.items()
      if name not in settings and name not in point.left_out
      for argument in arguments
    )
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


def given(values: flags.FlagValues, names: Sequence[str]) -> dict[str, tuple[str, ...]]:
  arguments = {}
  for name in names:
    flag = values[name]
    if not flag.present or flag.value is None:
      continue
    listed = flag.value if isinstance(flag, flags.MultiFlag) else [flag.value]
    arguments[name] = tuple(f'--{name}={grid.written(value)}' for value in listed)
  return arguments


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
  # Of the added noise, divided by the scale of a simulated cohort; `None` without
  # noise, and if each part has its own.
  noise_multiplier: Optional[float] = None
  rmse: Optional[float] = None  # Of sums of rounds, in clip norms, as in reports.
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
  path, error = os.path.join(cell.directory, run_directory.METRICS), ''
  with contextlib.suppress(FileNotFoundError):
    with open(cell.error_path, encoding='utf-8') as file:
      error = last_line(file.read())
  status = FAILED if error else BEGUN if os.path.exists(path) else WAITING
  try:
    rows = metrics_file.read(path) if os.path.exists(path) else []
    if not rows:
      return Result(cell, status, error=error)
    measures = {
      name: float(text)
      for name, text in rows[-1].items()
      if text and name.startswith((_TEST, 'simulated_'))
    }
    is_finished = len(rows) == cell.settings.flags['num_rounds']
    is_finished &= run_directory.looks_finished(cell.directory)
    epsilon, warnings = None, ()
    if is_finished:
      with open(os.path.join(cell.directory, run_directory.REPORT), 'rb') as file:
        report = json.load(file)
      epsilon = report['guarantee']['epsilon']
      epsilon = math.inf if epsilon is None else float(epsilon)
      warnings = tuple(report.get('warnings', ()))
    privacy = cell.settings.privacy
    noise_multiplier, rmse = _noise(privacy)
    return Result(
      cell,
      FINISHED if is_finished else status,
      rounds=len(rows),
      measures=measures,
      epsilon=epsilon,
      warnings=warnings,
      delta=None if privacy.mechanism is None else privacy.delta,
      noise_multiplier=noise_multiplier,
      rmse=rmse,
      seconds=sum(float(row.get('round_seconds') or 0) for row in rows),
      error='' if is_finished else error,
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


# Tuning, and its cost in privacy.
#
# Runs that are only used to choose settings have their own seeds, none of which is
# reported. They are on the same clients, though, and the choice reveals something of
# all runs. So publishing a tuned run together with the choice costs the composition of
# all runs, each of which has its own noise. This covers anything computed from the runs
# and from other people's data. The test data are the same in all runs (`--split_seed`),
# so that no client trains in one run and is tested on in another. If examples of the
# clients themselves are held out, this does not hold, and sentences in reports say so.
FIRST_TUNING_SEED = 1_000_001  # Larger than reported seeds.
TIGHTER = (
  'Choosing the best of a random number of runs can be accounted for more tightly '
  '(Papernot and Steinke, arXiv:2110.03620).'
)


@dataclasses.dataclass(frozen=True)
class Selected:
  """The settings chosen for a point of the grid."""

  settings: tuple[grid.Setting, ...]  # The flags that were tuned, with the best values.
  num_runs: int  # Number of runs to choose from.
  # Composition of these runs and the reported one; `None` without privacy, or with the
  # noise of a larger cohort.
  epsilon: Optional[float]
  num_composed: int  # Number of composed runs.
  delta: float  # Delta of that epsilon.

  @property
  def sentence(self) -> Optional[str]:
    """A sentence for the report of a run with them; `None` without privacy."""
    if self.epsilon is None:
      return None
    chosen = ', '.join(f'{name}={value}' for name, value in self.settings)
    chosen += f': chosen as the best of {self.num_runs} '
    chosen += f'run{"s" if self.num_runs > 1 else ""} on the same clients'
    if math.isinf(self.epsilon):
      return f'{chosen}, which together have no guarantee that is known.'
    return (
      f'{chosen}; publishing the choice as well spends at most epsilon = '
      f'{rounding.up(self.epsilon)} at delta = {self.delta:g} (composition of all '
      f'{self.num_composed}), if the test data that it was chosen by are of none of '
      f'these clients. {TIGHTER}'
    )


def choose(results: Sequence[Result], make: Maker) -> Optional[Selected]:
  """Returns the best settings of a point; `None` unless all runs are finished."""
  if not results or not all(each.is_finished for each in results):
    return None
  by_settings: dict[tuple[grid.Setting, ...], list[float]] = {}
  for each in results:
    by_settings.setdefault(each.cell.tuned, []).append(each.metric)
  metric = results[0].cell.settings.model.metric
  sign = 1.0 if metric.higher_is_better else -1.0

  def score(settings: tuple[grid.Setting, ...]) -> float:
    values = by_settings[settings]
    mean = sign * sum(values) / len(values)
    return -math.inf if math.isnan(mean) else mean

  best = max(by_settings, key=score)
  delta = make.cell(results[0].cell.point, 1, best).settings.privacy.delta
  # With the noise of a simulated cohort there is no guarantee, whatever its mechanism.
  privacies = [each.cell.settings.privacy for each in results]
  mechanisms = [
    each.mechanism if each.simulated_cohort_scale == 1 else None for each in privacies
  ]
  epsilon, num_composed = _composed(mechanisms, delta)
  return Selected(best, len(results), epsilon, num_composed, delta)


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
