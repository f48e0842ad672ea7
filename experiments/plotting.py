"""Draws runs, and all other pictures of the experiments.

The legend names the flags in which runs differ. Colours are those of Okabe and Ito,
which colour-blind people can distinguish too; if there are more lines than colours,
they also differ in dashes.
"""

import dataclasses
import io
import itertools
import json
import math
import os
from collections.abc import Sequence
from typing import Any, Optional, Union

from tff_dp_aggregators.accounting.records import ledger
from tff_dp_aggregators.base import messages
from tff_dp_aggregators.base import new_files
from tff_dp_aggregators.learning.runs import metrics_file
from tff_dp_aggregators.learning.runs import run_directory

ROUND, EPSILON, SECONDS = 'round', 'epsilon', 'seconds'
_TEST = 'test_'
_SEED = 'seed'
FORMATS = ('png', 'svg')
# Okabe and Ito's colours, except yellow, which is pale on white.
_COLORS = ('#0072B2', '#D55E00', '#009E73', '#CC79A7', '#E69F00', '#56B4E9', '#000000')
_DASHES = ('-', '--', ':')
_GREY = '#555555'
_MIN_TICK_DISTANCE = 0.07  # As a fraction of the axis; nearer labels would overlap.


@dataclasses.dataclass(frozen=True)
class Line:
  label: str  # In the legend; empty for none.
  # Of each point; empty for a level, a horizontal line. Names are put from top to
  # bottom, and the values `y` are to the right.
  x: Sequence[Union[float, str]]
  y: Sequence[float]  # Of each point; a level has one.
  errors: Sequence[float] = ()  # Standard errors of `y`; NaN if there is none.


@dataclasses.dataclass(frozen=True)
class Chart:
  title: str
  x_label: str
  y_label: str
  lines: Sequence[Line]  # In the order of the legend.
  are_points: bool = False  # Whether single points are marked.
  log_x: bool = False  # Whether the horizontal axis is logarithmic.
  right: Optional[Line] = None  # Drawn on a second vertical axis, at the right.


@dataclasses.dataclass(frozen=True)
class Run:
  directory: str
  flags: dict[str, Any]  # Of the simulation, or what another program recorded.
  shown: dict[str, Any]  # Flags that are not private, and a seed that can be guessed.
  delta: Optional[float]  # Delta of the reported epsilon; `None` without privacy.
  # Columns of `metrics.csv` by name, and `seconds` since the beginning; `nan` if a
  # round has no number.
  columns: dict[str, list[float]]

  @property
  def spends(self) -> bool:
    """Whether epsilon is known after each round."""
    spent = self.columns.get(EPSILON, [])
    return bool(spent) and all(map(math.isfinite, spent))

  def has(self, name: str) -> bool:
    return any(map(math.isfinite, self.columns.get(name, ())))

  def points(self, x: str, y: str) -> tuple[list[float], list[float]]:
    """Points at which both are finite; `round` is the number of completed rounds."""
    first = 1 if x == ROUND else 0
    pairs = [
      (first + each, value)
      for each, value in zip(self.columns[x], self.columns[y])
      if math.isfinite(each) and math.isfinite(value)
    ]
    return [each for each, _ in pairs], [value for _, value in pairs]


def read_run(directory: str) -> Run:
  path = os.path.join(directory, run_directory.CONFIG)
  metrics_path = os.path.join(directory, run_directory.METRICS)
  try:
    config = run_directory.read_config(directory)
    flags, privacy = dict(config.get('flags') or {}), config.get('privacy')
    with open(path, encoding='utf-8') as file:
      shown = set(json.load(file).get('flags') or {})
    if isinstance(flags.get(_SEED), int) and flags[_SEED] < ledger.GUESSABLE:
      shown.add(_SEED)
    rows = metrics_file.read(metrics_path)
    columns = {
      name: [float(row[name] or 'nan') for row in rows]
      for name in (rows[0] if rows else ())
    }
  except (OSError, AttributeError, TypeError, ValueError) as e:
    raise ValueError(
      f'{directory} cannot be read as a run: {str(e).rstrip(".")}. Name run '
      'directories of tff-dp-simulate.'
    ) from e
  if not rows:
    raise ValueError(f'{metrics_path} has no rounds yet; wait for the first one.')
  if 'round_seconds' in columns:
    columns[SECONDS] = list(itertools.accumulate(columns['round_seconds']))
  return Run(
    directory,
    flags,
    {name: value for name, value in flags.items() if name in shown},
    None if privacy is None else privacy.get('delta'),
    columns,
  )


def picture(
  runs: Sequence[Run],
  x: str = ROUND,
  y: Optional[str] = None,
  title: Optional[str] = None,
) -> Chart:
  """Returns the chart of one or more runs; `x` and `y` are columns."""
  y = y or _measure_of_all(runs)
  for run in runs:
    for name in (x, y):
      # Runs without privacy have no epsilon, and are drawn as a level.
      if name not in run.columns and not (name == x == EPSILON):
        suggestions = messages.near(name, run.columns) or run.columns
        raise ValueError(
          f'{run.directory} has no column {name!r}; there are {", ".join(suggestions)}.'
        )
  lines = [_line(run, label, x, y) for run, label in zip(runs, labels(runs))]
  right = None
  if len(runs) == 1 and EPSILON not in (x, y) and runs[0].spends:
    right = Line(_in_words(EPSILON, runs), *runs[0].points(x, EPSILON))
  return Chart(
    title or _title(runs), _in_words(x, runs), _in_words(y, runs), lines, right=right
  )


def labels(runs: Sequence[Run]) -> list[str]:
  """Returns how runs differ: by flags, or else by directory."""
  if len(runs) == 1:
    return ['']
  names = dict.fromkeys(name for run in runs for name in run.shown)
  differing = [
    name for name in names if len({json.dumps(run.shown.get(name)) for run in runs}) > 1
  ]
  # Values that are not given are left out, such as a target without a mechanism.
  texts = [
    ', '.join(
      f'{name}={value:g}' if isinstance(value, float) else f'{name}={value}'
      for name in differing
      if (value := run.shown.get(name)) is not None
    )
    for run in runs
  ]
  if len(set(texts)) == len(runs) and all(texts):
    return texts
  # Some runs have the same flags, for example at different commits.
  return [f'{each} ({run.directory})'.lstrip() for each, run in zip(texts, runs)]


def _measure_of_all(runs: Sequence[Run]) -> str:
  shared = [
    name
    for name in runs[0].columns
    if name.startswith(_TEST) and all(name in run.columns for run in runs)
  ]
  chosen = {f'{_TEST}{run.flags.get("metric")}' for run in runs}
  for name in [*(each for each in shared if {each} == chosen), *reversed(shared)]:
    return name
  raise ValueError(
    'there is no measure that all runs have. Draw those of one task, or name a column '
    'that all have with --y.'
  )


def _line(run: Run, label: str, x: str, y: str) -> Line:
  if x == EPSILON and not run.spends:
    _, values = run.points(ROUND, y)
    return Line(f'{label or run.directory} (no privacy)', (), values[-1:])
  points = run.points(x, y)
  if not points[0]:
    raise ValueError(f'{run.directory} has no numbers in {y!r} over {x!r}.')
  return Line(label, *points)


def _in_words(name: str, runs: Sequence[Run]) -> str:
  if name != EPSILON:
    return name.replace('_', ' ')
  deltas = {run.delta for run in runs} - {None}
  at_delta = f' at delta = {deltas.pop():g}' if len(deltas) == 1 else ''
  return f'epsilon spent{at_delta}'


def _title(runs: Sequence[Run]) -> str:
  parts: list[str] = []
  for name in ('task', 'mechanism'):
    values = {str(run.flags[name]) for run in runs if run.flags.get(name)}
    parts += values if len(values) == 1 else []
  if len(runs) > 1:
    return ', '.join(filter(None, ['-'.join(parts), f'{len(runs)} runs']))
  return '-'.join(parts) or os.path.basename(os.path.abspath(runs[0].directory))


def save(chart: Chart, path: str) -> None:
  import matplotlib  # Loading it is slower than checking flags.

  kind, file = format_of(path), io.BytesIO()
  # The same picture has the same bytes; letters as paths look the same everywhere.
  with matplotlib.rc_context({'svg.hashsalt': chart.title, 'svg.fonttype': 'path'}):
    figure(chart).savefig(
      file,
      format=kind,
      bbox_inches='tight',  # With the legend, which is beside the axes.
      metadata={'Date': None} if kind == 'svg' else None,
    )
  new_files.replace(path, file.getvalue())


def format_of(path: str) -> str:
  ending = os.path.splitext(path)[1].lstrip('.').lower()
  if ending not in FORMATS:
    known = ' or '.join(f'.{each}' for each in FORMATS)
    raise ValueError(f'the picture {path!r} must end in {known}.')
  return ending


def figure(chart: Chart) -> Any:
  import matplotlib.figure

  fig = matplotlib.figure.Figure(figsize=(7.2, 4.2), dpi=120)
  axes = fig.add_subplot(xlabel=chart.x_label, ylabel=chart.y_label)
  axes.set_title(chart.title, loc='left', fontsize=10)
  axes.grid(alpha=0.3)
  styles = itertools.cycle(itertools.product(_DASHES, _COLORS))
  handles = []  # In the order of lines; Matplotlib's own order is another one.
  for line, (dashes, color) in zip(chart.lines, styles):
    style: dict[str, Any] = {'label': line.label, 'linestyle': dashes, 'color': color}
    errors = line.errors or None
    if not line.x:
      (level,) = line.y
      handles.append(axes.axhline(level, **{**style, 'color': _GREY}))
      for error in filter(math.isfinite, line.errors):
        axes.axhspan(level - error, level + error, color=_GREY, alpha=0.12)
    elif isinstance(line.x[0], str):
      style['linestyle'] = ''
      axes.errorbar(line.y, line.x, xerr=errors, marker='o', capsize=3, **style)
      axes.invert_yaxis()
    elif chart.are_points:
      style |= {'marker': 'o', 'markersize': 4.5, 'capsize': 2.5}
      handles.append(axes.errorbar(line.x, line.y, yerr=errors, **style))
    else:
      handles += axes.plot(line.x, line.y, **style)
      axes.set_xlim(left=0)
  values = sorted({x for line in chart.lines for x in line.x})
  if chart.log_x:
    axes.set_xscale('log')
  are_names = any(isinstance(x, str) for x in values)
  if chart.are_points and values and not are_names:
    kept = _apart(values, chart.log_x)
    axes.set_xticks(kept, [f'{x:.4g}' for x in kept])
    axes.set_xticks([], minor=True)
  elif not are_names and all(float(x).is_integer() for x in values):
    axes.locator_params(axis='x', integer=True)
  if any(line.label for line in chart.lines):
    beside = {'loc': 'upper left', 'bbox_to_anchor': (1.01, 1.0)}
    axes.legend(handles=handles, fontsize=8.5, frameon=False, **beside)
  if chart.right is not None:
    right = axes.twinx()
    right.set_ylabel(chart.right.label, color=_COLORS[1])
    right.step(chart.right.x, chart.right.y, where='post', color=_COLORS[1])
    right.set_ylim(bottom=0)
  return fig


def _apart(values: Sequence[Any], is_log: bool) -> list[float]:
  """Returns the values without those that are too near the one before to be read."""
  places = [math.log(x) if is_log else x for x in values]
  kept = [0]
  for number, place in enumerate(places):
    if place - places[kept[-1]] > _MIN_TICK_DISTANCE * (places[-1] - places[0]):
      kept.append(number)
  return [values[each] for each in kept]
