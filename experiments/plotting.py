"""Draws runs, and all other pictures of the experiments.

The legend names the flags in which runs differ. Colours are those of Okabe and Ito,
which colour-blind people can distinguish too; if there are more lines than colours,
they also differ in dashes and markers.
"""

import dataclasses
import io
import itertools
import json
import math
import os
from collections.abc import Sequence
from typing import Any, Optional

from tff_dp_aggregators.accounting.records import ledger
from tff_dp_aggregators.base import messages
from tff_dp_aggregators.base import new_files
from tff_dp_aggregators.learning.runs import metrics_file
from tff_dp_aggregators.learning.runs import run_directory

from . import metrics as metrics_lib

ROUND, EPSILON, SECONDS = 'round', 'epsilon', 'seconds'
_TEST = 'test_'
_SEED = 'seed'
FORMATS = ('png', 'svg')
# Okabe and Ito's colours, except yellow, which is pale on white.
_COLORS = ('#0072B2', '#D55E00', '#009E73', '#CC79A7', '#E69F00', '#56B4E9', '#000000')
_DASHES = ('-', '--', ':')
_MARKERS = ('o', 's', '^', 'D', 'v', 'P', 'X')
_GREY = '#555555'
_WIDTH, _HEIGHT = 7.2, 4.2
_LEGEND_FONT, _INCHES_PER_LETTER = 8.5, 0.072
# As fractions of the axis: minimum distance of ticks, and offset of points at one x.
_MIN_TICK_DISTANCE = 0.07
_OFFSET = 0.006


@dataclasses.dataclass(frozen=True)
class Line:
  label: str  # In the legend; empty for none.
  x: Sequence[float]  # Of each point; empty for a level, a horizontal line.
  y: Sequence[float]  # Of each point; a level has one.
  errors: Sequence[float] = ()  # Standard errors of `y`; NaN if there is none.


@dataclasses.dataclass(frozen=True)
class Chart:
  title: str
  x_label: str
  y_label: str
  lines: Sequence[Line]  # In the order of the legend.
  # Minimum and maximum possible value; `None` if there is none.
  y_limits: tuple[Optional[float], Optional[float]] = (None, None)
  are_points: bool = False  # Whether single points are marked.
  log_x: bool = False  # Whether the horizontal axis is logarithmic.
  right: Optional[Line] = None  # Drawn on a second vertical axis, at the right.
  note: str = ''  # A line of small print below.
  # Names of the numbers `x` of the only line, from top to bottom. Then the chart is
  # turned: its values `y` are to the right, and `x_label` is what they are.
  names: Sequence[str] = ()


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
  metric = metrics_lib.METRICS.get(y.removeprefix(_TEST))
  lines = [_line(run, label, x, y) for run, label in zip(runs, labels(runs))]
  first_run = runs[0]
  with_epsilon = len(runs) == 1 and x != EPSILON and y != EPSILON and first_run.spends
  return Chart(
    title=title or _title(runs),
    x_label=_in_words(x, runs),
    y_label=_in_words(y, runs),
    lines=lines,
    # Several runs may differ by too little to be seen from 0 to 1.
    y_limits=metric.limits if metric and len(runs) == 1 else (None, None),
    right=Line(_in_words(EPSILON, runs), *first_run.points(x, EPSILON))
    if with_epsilon
    else None,
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
  return [
    f'{each} ({run.directory})' if each else run.directory
    for each, run in zip(texts, runs)
  ]


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
  if name == EPSILON:
    deltas = {run.delta for run in runs} - {None}
    return 'epsilon spent' + (
      f' at delta = {deltas.pop():g}' if len(deltas) == 1 else ''
    )
  return name.replace('_', ' ')


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

  # The same picture has the same bytes; letters as paths look the same everywhere.
  settings = {
    'svg.hashsalt': chart.title,
    'svg.fonttype': 'path',
    'font.family': 'DejaVu Sans',
  }
  kind = format_of(path)
  metadata = {'Date': None, 'Creator': None} if kind == 'svg' else {'Software': None}
  with matplotlib.rc_context(settings):
    fig = _figure(chart)
    file = io.BytesIO()
    fig.savefig(file, format=kind, metadata=metadata)
  new_files.replace(path, file.getvalue())


def format_of(path: str) -> str:
  ending = os.path.splitext(path)[1].lstrip('.').lower()
  if ending not in FORMATS:
    known = ' or '.join(f'.{each}' for each in FORMATS)
    raise ValueError(f'the picture {path!r} must end in {known}.')
  return ending


def _figure(chart: Chart) -> Any:
  from matplotlib import figure

  labels = [line.label for line in chart.lines if line.label]
  # Space for the legend beside the data.
  longest = max(map(len, labels), default=0)
  beside = 0.6 + _INCHES_PER_LETTER * longest if longest else 0.0
  height = max(_HEIGHT, 0.23 * len(labels) + 1.2, 0.3 * len(chart.names) + 1.2)
  size = (_WIDTH + beside, height)
  fig = figure.Figure(figsize=size, dpi=120, layout='constrained')
  axes = fig.add_subplot()
  axes.set_title(chart.title, loc='left', fontsize=10)
  axes.set_xlabel(chart.x_label)
  axes.grid(alpha=0.3)
  if chart.names:
    _draw_names(axes, chart)
  else:
    _draw_lines(axes, chart)
  if labels:
    # Matplotlib would list lines without error bars first.
    handles = dict(zip(*reversed(axes.get_legend_handles_labels())))
    fig.legend(
      [handles[label] for label in labels],
      labels,
      loc='outside right upper',
      fontsize=_LEGEND_FONT,
      frameon=False,
    )
  if chart.note:
    fig.supxlabel(chart.note, fontsize=7.5, color=_GREY, x=0.01, ha='left')
  return fig


def style(number: int) -> dict[str, Any]:
  """Colour, dashes and marker of a line; the first 21 numbers all differ."""
  color = number % len(_COLORS)
  return {
    'color': _COLORS[color],
    'linestyle': _DASHES[number // len(_COLORS) % len(_DASHES)],
    'marker': _MARKERS[(color + number // len(_COLORS)) % len(_MARKERS)],
  }


def _draw_lines(axes: Any, chart: Chart) -> None:
  axes.set_ylabel(chart.y_label)
  x_values = sorted({x for line in chart.lines for x in line.x})
  if chart.log_x and x_values and x_values[0] > 0:
    axes.set_xscale('log')
  curves = [line for line in chart.lines if len(line.x)]
  for number, line in enumerate(curves):
    line_style = style(number)
    if not chart.are_points:
      del line_style['marker']
      axes.plot(line.x, line.y, label=line.label, linewidth=1.8, **line_style)
      continue
    x = _offset(line.x, x_values, number - (len(curves) - 1) / 2, chart.log_x)
    axes.errorbar(
      x,
      line.y,
      yerr=line.errors or None,
      label=line.label,
      linewidth=1.5,
      markersize=4.5,
      capsize=2.5,
      elinewidth=1.0,
      **line_style,
    )
  for number, line in enumerate(each for each in chart.lines if not len(each.x)):
    (level,) = line.y
    dashes = {'linestyle': _DASHES[(1 + number) % len(_DASHES)], 'linewidth': 1.4}
    axes.axhline(level, label=line.label, color=_GREY, zorder=1, **dashes)
    for error in filter(math.isfinite, line.errors):
      axes.axhspan(level - error, level + error, color=_GREY, alpha=0.12, zorder=0)
  if chart.are_points and x_values:
    _set_ticks(axes, x_values, chart.log_x)
  elif not chart.log_x:
    axes.set_xlim(left=0)
    if all(float(x).is_integer() for x in x_values):
      axes.locator_params(axis='x', integer=True)
  if chart.y_limits != (None, None) and not chart.are_points:
    axes.set_ylim(*chart.y_limits)
  if len(chart.lines) == 1 and not chart.are_points:
    # In the label of the axis, where it covers no line, even a short one.
    axes.set_ylabel(f'{chart.y_label} (last {chart.lines[0].y[-1]:.3f})')
  if chart.right is not None:
    line = chart.right
    axes.yaxis.label.set_color(_COLORS[0])
    right = axes.twinx()
    right.set_ylabel(f'{line.label} (last {line.y[-1]:.2f})', color=_COLORS[1])
    right.step(line.x, line.y, where='post', color=_COLORS[1], linewidth=1.4)
    right.set_ylim(0.0, 1.15 * max(line.y) or 1.0)


def _set_ticks(axes: Any, x_values: Sequence[float], is_log: bool) -> None:
  """Puts ticks at the values, except those too near the previous tick to be read."""
  positions = [math.log(x) if is_log else x for x in x_values]
  kept = [0]
  for number, position in enumerate(positions):
    if position - positions[kept[-1]] > _MIN_TICK_DISTANCE * (
      positions[-1] - positions[0]
    ):
      kept.append(number)
  axes.set_xticks([x_values[each] for each in kept])
  axes.set_xticklabels([f'{x_values[each]:.4g}' for each in kept])
  axes.set_xticks([], minor=True)


def _draw_names(axes: Any, chart: Chart) -> None:
  (line,) = chart.lines
  axes.errorbar(
    line.y,
    line.x,
    xerr=line.errors,
    color=_COLORS[0],
    linestyle='',
    marker='o',
    capsize=3,
  )
  axes.set_yticks(line.x, chart.names)
  axes.invert_yaxis()
  axes.margins(y=0.08)


def _offset(
  x: Sequence[float], x_values: Sequence[float], steps: float, is_log: bool
) -> list[float]:
  """Moves points so that error bars at the same x stand side by side."""
  lower, upper = x_values[0], x_values[-1]
  if is_log:
    return [each * (upper / lower) ** (_OFFSET * steps) for each in x]
  return [each + ((upper - lower) or lower) * _OFFSET * steps for each in x]
