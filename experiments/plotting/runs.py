"""Runs as pictures: what was measured over rounds, epsilon or time.

A run is told from others by the flags in which they differ, and by nothing else.
"""

import dataclasses
import itertools
import json
import math
import os
from collections.abc import Sequence
from typing import Any, Optional

from tff_dp_aggregators.accounting.records import ledger
from tff_dp_aggregators.base import messages
from tff_dp_aggregators.learning.runs import metrics_file
from tff_dp_aggregators.learning.runs import run_directory

from .. import metrics as metrics_lib
from . import charts

ROUND, EPSILON, SECONDS = 'round', 'epsilon', 'seconds'
_TEST = 'test_'
_SEED = 'seed'


@dataclasses.dataclass(frozen=True)
class Run:
  directory: str  # Where.
  config: dict[str, Any]  # Its configuration.
  # Columns of `metrics.csv` by name, and `seconds` since the beginning; `nan` where a
  # round has no number.
  columns: dict[str, list[float]]
  shared: dict[str, Any]  # The configuration that others may see.

  @property
  def flags(self) -> dict[str, Any]:
    """Those of the simulation; of another program's run, what it told."""
    return dict(self.config.get('flags') or {})

  @property
  def shown(self) -> dict[str, Any]:
    """Flags that a picture may show, and a seed that anybody can guess."""
    flags = self.flags
    names = set(self.shared.get('flags') or {})
    seed = flags.get(_SEED)
    if isinstance(seed, int) and seed < ledger.GUESSABLE:
      names.add(_SEED)
    return {name: value for name, value in flags.items() if name in names}

  @property
  def delta(self) -> Optional[float]:
    """At which epsilon was read; `None` without privacy."""
    privacy = self.config.get('privacy')
    return None if privacy is None else float(privacy['delta'])

  @property
  def measures(self) -> list[str]:
    return [name for name in self.columns if name.startswith(_TEST)]

  @property
  def spends(self) -> bool:
    """Whether epsilon is known after each round."""
    spent = self.columns.get(EPSILON, [])
    return bool(spent) and all(math.isfinite(each) for each in spent)

  def has(self, name: str) -> bool:
    return any(math.isfinite(each) for each in self.columns.get(name, ()))

  def points(self, x: str, y: str) -> tuple[list[float], list[float]]:
    """Where both are numbers; rounds are counted from 1, as those completed."""
    first = 1 if x == ROUND else 0
    pairs = [
      (first + each, value)
      for each, value in zip(self.columns[x], self.columns[y])
      if math.isfinite(each) and math.isfinite(value)
    ]
    return [each for each, _ in pairs], [value for _, value in pairs]


def read(directory: str) -> Run:
  path = os.path.join(directory, run_directory.CONFIG)
  metrics_path = os.path.join(directory, run_directory.METRICS)
  try:
    config = run_directory.read_config(directory)
    with open(path, encoding='utf-8') as file:
      shared = json.load(file)
    rows = metrics_file.read(metrics_path)
    # A line that is being written is none yet.
    rows = rows[: metrics_file.count(metrics_path)]
    columns = {
      name: [float(row[name] or 'nan') for row in rows]
      for name in (rows[0] if rows else ())
    }
  except (OSError, AttributeError, TypeError, ValueError) as e:
    raise ValueError(
      f'{directory} cannot be read as a run: {str(e).rstrip(".")}. Name directories as '
      'simulate leaves them.'
    ) from e
  if not rows:
    raise ValueError(f'{metrics_path} has no rounds yet; wait for the first one.')
  if 'round_seconds' in columns:
    columns[SECONDS] = list(itertools.accumulate(columns['round_seconds']))
  return Run(directory, config, columns, shared)


def picture(
  runs: Sequence[Run],
  x: str = ROUND,
  y: Optional[str] = None,
  title: Optional[str] = None,
) -> charts.Chart:
  """The picture of one run, or of several; `x` and `y` are columns."""
  y = y or _measure_of_all(runs)
  for run in runs:
    for name in (x, y):
      # Runs without privacy have no epsilon, and are drawn as a level.
      if name not in run.columns and not (name == x == EPSILON):
        near = messages.near(name, run.columns) or run.columns
        raise ValueError(
          f'{run.directory} has no column {name!r}; there are {", ".join(near)}.'
        )
  metric = metrics_lib.METRICS.get(y.removeprefix(_TEST))
  lines = [_line(run, label, x, y) for run, label in zip(runs, labels(runs))]
  only = runs[0]
  with_epsilon = len(runs) == 1 and x != EPSILON and y != EPSILON and only.spends
  return charts.Chart(
    title=title or _title(runs),
    x_label=_in_words(x, runs),
    y_label=_in_words(y, runs),
    lines=lines,
    # Several differ by less than can be seen from 0 to 1.
    y_limits=metric.limits if metric and len(runs) == 1 else (None, None),
    right=charts.Line(_in_words(EPSILON, runs), *only.points(x, EPSILON))
    if with_epsilon
    else None,
  )


def labels(runs: Sequence[Run]) -> list[str]:
  """What tells each run from the others: flags that differ, or else the directory."""
  if len(runs) == 1:
    return ['']
  names = dict.fromkeys(name for run in runs for name in run.shown)
  differing = [
    name for name in names if len({json.dumps(run.shown.get(name)) for run in runs}) > 1
  ]
  # A value that is not given says nothing: of none, that it has no target.
  found = [
    ', '.join(
      f'{name}={value:g}' if isinstance(value, float) else f'{name}={value}'
      for name in differing
      if (value := run.shown.get(name)) is not None
    )
    for run in runs
  ]
  if len(set(found)) == len(runs) and all(found):
    return found
  # The same flags twice: another commit, say.
  return [
    f'{each} ({run.directory})' if each else run.directory
    for each, run in zip(found, runs)
  ]


def _measure_of_all(runs: Sequence[Run]) -> str:
  shared = [
    name for name in runs[0].measures if all(name in run.measures for run in runs)
  ]
  chosen = {f'{_TEST}{run.flags.get("metric")}' for run in runs}
  for name in [*(each for each in shared if {each} == chosen), *reversed(shared)]:
    return name
  raise ValueError(
    'there is no measure that all runs have. Draw those of one task, or name a column '
    'that all have with --y.'
  )


def _line(run: Run, label: str, x: str, y: str) -> charts.Line:
  if x == EPSILON and not run.spends:
    _, values = run.points(ROUND, y)
    return charts.Line(f'{label or run.directory} (no privacy)', (), values[-1:])
  points = run.points(x, y)
  if not points[0]:
    raise ValueError(f'{run.directory} has no numbers in {y!r} over {x!r}.')
  return charts.Line(label, *points)


def _in_words(name: str, runs: Sequence[Run]) -> str:
  if name == EPSILON:
    deltas = {run.delta for run in runs} - {None}
    return 'epsilon spent' + (
      f' at delta = {deltas.pop():g}' if len(deltas) == 1 else ''
    )
  return name.replace('_', ' ')


def _title(runs: Sequence[Run]) -> str:
  said: list[str] = []
  for name in ('task', 'mechanism'):
    values = {str(run.flags[name]) for run in runs if run.flags.get(name)}
    said += values if len(values) == 1 else []
  if len(runs) > 1:
    return ', '.join(filter(None, ['-'.join(said), f'{len(runs)} runs']))
  return '-'.join(said) or os.path.basename(os.path.abspath(runs[0].directory))
