"""The runs of a comparison, one for each point of the grid and each seed.

Each is a cell, and what it came to is read from the files of its run.
"""

import dataclasses
import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Optional, cast

from absl import flags

from tff_dp_aggregators.accounting import mechanism as mechanism_lib
from tff_dp_aggregators.accounting.programs import program
from tff_dp_aggregators.accounting.reports import statement
from tff_dp_aggregators.learning.runs import metrics_file
from tff_dp_aggregators.learning.runs import run_directory

from .. import settings as settings_lib
from ..options import privacy as privacy_options
from . import grid

CELLS, TUNING = 'cells', 'tuning'  # Folders in that of the comparison.
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
  arguments: tuple[str, ...]  # Flags of the simulation that would be the same run.
  settings: settings_lib.Settings  # What they come to.
  # Flags that are tuned, with the values of this run.
  tuned: tuple[grid.Setting, ...] = ()
  # What else its report has to say that it does not cover.
  not_covered: tuple[str, ...] = ()

  @property
  def name(self) -> str:
    return os.path.basename(self.directory)

  @property
  def error_path(self) -> str:
    return os.path.join(self.directory, run_directory.ERROR)

  @property
  def error(self) -> str:
    try:
      with open(self.error_path, encoding='utf-8') as file:
        return last_line(file.read())
    except FileNotFoundError:
      return ''


@dataclasses.dataclass(frozen=True)
class Maker:
  """Makes cells, and refuses settings that cannot be run."""

  output: str  # Folder of the comparison.
  # Flags of the command line, each as arguments, that every run has.
  given: Mapping[str, tuple[str, ...]]
  # What is told of the user's own data, by the options that they are read with.
  facts: dict[str, Any] = dataclasses.field(default_factory=dict)

  def cells(
    self,
    points: Sequence[grid.Point],
    seeds: Sequence[int],
    folder: str = CELLS,
    tuned: Sequence[tuple[grid.Setting, ...]] = ((),),
  ) -> Iterator[Cell]:
    """Cells of all points, seed by seed, so that all have a first one early."""
    for seed in seeds:
      for point in points:
        for number, settings in enumerate(tuned):
          yield self.cell(point, seed + number * len(seeds), folder, settings)

  def cell(
    self,
    point: grid.Point,
    seed: int,
    folder: str = CELLS,
    tuned: tuple[grid.Setting, ...] = (),
    chosen: bool = False,
  ) -> Cell:
    in_name = (*point.settings, *(() if chosen else tuned), ('seed', str(seed)))
    directory = os.path.join(self.output, folder, grid.name_of(in_name))
    settings = dict((*point.settings, *tuned))
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
      run_directory.check_flags(directory, checked.flags, checked.facts)
      key = f'{checked.task.name} {checked.data!r}'
      if self.facts.setdefault(key, checked.facts) != checked.facts:
        raise ValueError(
          'the data have changed since the comparison began. Put back those that it '
          'began with, or give another --output.'
        )
    except (ValueError, OSError) as e:
      raise program.WrongUsage(f'{grid.name_of(in_name)}: {e}') from e
    return Cell(point, seed, directory, arguments, checked, tuned)


def settings_of(arguments: Sequence[str]) -> settings_lib.Settings:
  values = program.values_of(settings_lib.groups(), arguments)
  return settings_lib.from_flags(values)


def last_line(text: str) -> str:
  lines = [line.strip() for line in text.splitlines() if line.strip()]
  return lines[-1] if lines else ''


def given(values: flags.FlagValues, names: Sequence[str]) -> dict[str, tuple[str, ...]]:
  found = {}
  for name in names:
    flag = values[name]
    if not flag.present or flag.value is None:
      continue
    each = flag.value if isinstance(flag, flags.MultiFlag) else [flag.value]
    found[name] = tuple(f'--{name}={grid.written(value)}' for value in each)
  return found


@dataclasses.dataclass(frozen=True)
class Result:
  cell: Cell  # Which.
  status: str  # `FINISHED`, `FAILED`, `BEGUN` or `WAITING`.
  rounds: int = 0  # Completed.
  # On test data after the last of them, by column.
  measures: Mapping[str, float] = dataclasses.field(default_factory=dict)
  # Spent, as the report says; infinite without a guarantee, `None` before there is a
  # report.
  epsilon: Optional[float] = None
  delta: Optional[float] = None  # At which epsilon was read.
  # Of the added noise, divided by the scale of a simulated cohort; `None` without any,
  # and where each part has its own.
  noise_multiplier: Optional[float] = None
  rmse: Optional[float] = None  # Of sums of rounds, in clip norms, as reports have it.
  seconds: float = 0.0  # That the rounds took.
  error: str = ''  # The last line of why it failed.
  # The report's warnings: towards whom its epsilon does not hold.
  warnings: tuple[str, ...] = ()

  @property
  def is_finished(self) -> bool:
    """Whether it counts in the table."""
    return self.status == FINISHED

  @property
  def metric(self) -> float:
    """What its settings measure; NaN before there is anything."""
    name = f'{_TEST}{self.cell.settings.model.metric.name}'
    return self.measures.get(name, math.nan)


def read(cell: Cell) -> Result:
  path = os.path.join(cell.directory, run_directory.METRICS)
  error = cell.error
  if not os.path.exists(path):
    return Result(cell, FAILED if error else WAITING, error=error)
  try:
    rows = metrics_file.read(path)[: metrics_file.count(path)]
    if not rows:
      return Result(cell, FAILED if error else BEGUN, error=error)
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
      FINISHED if is_finished else FAILED if error else BEGUN,
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


def _noise(
  privacy: privacy_options.Privacy,
) -> tuple[Optional[float], Optional[float]]:
  if privacy.mechanism is None or privacy.mechanism.parts:
    return None, None
  mechanism = cast(mechanism_lib.Mechanism, privacy.mechanism)
  error = math.sqrt(float(mechanism.strategy.per_query_error().mean()))
  scale = privacy.simulated_cohort_scale
  noise = statement.error_multiplier(mechanism) / scale
  return mechanism.noise_multiplier / scale, noise * error
