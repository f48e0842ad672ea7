"""What a cell came to, read from the files of its run."""

import dataclasses
import json
import math
import os
from collections.abc import Mapping
from typing import Optional, cast

from tff_dp_aggregators.accounting import mechanism as mechanism_lib
from tff_dp_aggregators.accounting.programs import program
from tff_dp_aggregators.accounting.reports import statement
from tff_dp_aggregators.learning.runs import metrics_file
from tff_dp_aggregators.learning.runs import run_directory

from ..options import privacy as privacy_options
from . import cells as cells_lib

FINISHED, FAILED, BEGUN, WAITING = 'finished', 'failed', 'begun', 'not begun'
_TEST = 'test_'


@dataclasses.dataclass(frozen=True)
class Result:
  cell: cells_lib.Cell  # Which.
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


def read(cell: cells_lib.Cell) -> Result:
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
  """A run's multiplier, and its error; `None` without noise, or where parts have it."""
  if privacy.mechanism is None or privacy.mechanism.parts:
    return None, None
  mechanism = cast(mechanism_lib.Mechanism, privacy.mechanism)
  error = math.sqrt(float(mechanism.strategy.per_query_error().mean()))
  scale = privacy.simulated_cohort_scale
  noise = statement.error_multiplier(mechanism) / scale
  return mechanism.noise_multiplier / scale, noise * error
