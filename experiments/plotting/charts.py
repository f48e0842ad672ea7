"""What a picture shows, and the one way in which it is drawn.

Colours are those of Okabe and Ito, which colour-blind people tell apart as well; where
there are more lines than colours, dashes and marks tell them apart.
"""

import dataclasses
import io
import math
import os
from collections.abc import Sequence
from typing import Any, Optional, Union

from tff_dp_aggregators.base import new_files

FORMATS = ('png', 'svg')
# Of Okabe and Ito, but for yellow, which is pale on white.
_COLORS = ('#0072B2', '#D55E00', '#009E73', '#CC79A7', '#E69F00', '#56B4E9', '#000000')
# Points from the end of a line to what is written of it.
_ABOVE, _BELOW = 6, -14
_DASHES = ('-', '--', ':')
_MARKS = ('o', 's', '^', 'D', 'v', 'P', 'X')
_GREY = '#555555'
_WIDTH, _HEIGHT = 7.2, 4.2
_LEGEND_FONT, _INCHES_PER_LETTER = 8.5, 0.072
_MOST_TICKS = 9  # With more values than these, Matplotlib chooses.
# How far lines stand apart whose points have one x, as a part of the axis.
_APART = 0.006


@dataclasses.dataclass(frozen=True)
class Line:
  """Points that belong together."""

  label: str  # In the legend; empty for none.
  x: Sequence[float]  # Of each point; empty for a level, which is the same at every x.
  y: Sequence[float]  # Of each point; the one of a level.
  # Standard errors of `y`; `None` where there is none.
  errors: Sequence[Optional[float]] = ()


@dataclasses.dataclass(frozen=True)
class Chart:
  """Lines over one axis."""

  title: str  # Above the picture.
  x_label: str  # What is on the horizontal axis.
  y_label: str  # What is on the vertical axis.
  lines: Sequence[Line]  # In the order of the legend.
  # Least and largest value that there can be; `None` where there is none.
  y_limits: tuple[Optional[float], Optional[float]] = (None, None)
  # Whether each point counts, and is marked, rather than their course.
  are_points: bool = False
  log_x: bool = False  # Whether equal steps are equal ratios.
  right_label: str = ''  # What is on a second vertical axis, at the right.
  right: Optional[Line] = None  # What is drawn by it.
  note: str = ''  # A line of small print below.


@dataclasses.dataclass(frozen=True)
class Dots:
  """A value with its error for each of some names."""

  title: str  # Above the picture.
  x_label: str  # What the values are.
  names: Sequence[str]  # From above to below.
  values: Sequence[float]  # In the order of the names.
  errors: Sequence[Optional[float]]  # Standard errors; `None` where there is none.
  note: str = ''  # A line of small print below.


Picture = Union[Chart, Dots]


def save(picture: Picture, path: str) -> None:
  """Draws a picture into a file, whole or not at all."""
  # It takes longer to import than flags to check.
  import matplotlib

  # The same bytes for the same picture; letters as shapes look the same everywhere.
  settings = {
    'svg.hashsalt': picture.title,
    'svg.fonttype': 'path',
    'font.family': 'DejaVu Sans',
  }
  kind = format_of(path)
  metadata = {'Date': None, 'Creator': None} if kind == 'svg' else {'Software': None}
  with matplotlib.rc_context(settings):
    drawn = _drawn(picture)
    file = io.BytesIO()
    drawn.savefig(file, format=kind, metadata=metadata)
  new_files.replace(path, file.getvalue())


def format_of(path: str) -> str:
  """Of a picture, by its ending."""
  ending = os.path.splitext(path)[1].lstrip('.').lower()
  if ending not in FORMATS:
    known = ' or '.join(f'.{each}' for each in FORMATS)
    raise ValueError(f'the picture {path!r} must end in {known}.')
  return ending


def _drawn(picture: Picture) -> Any:
  from matplotlib import figure

  labels = [each.label for each in getattr(picture, 'lines', ()) if each.label]
  # Room of its own for the legend, beside the data and not upon them.
  longest = max((len(label) for label in labels), default=0)
  beside = 0.6 + _INCHES_PER_LETTER * longest if longest else 0.0
  names = getattr(picture, 'names', ())
  height = max(_HEIGHT, 0.23 * len(labels) + 1.2, 0.3 * len(names) + 1.2)
  size = (_WIDTH + beside, height)
  drawn = figure.Figure(figsize=size, dpi=120, layout='constrained')
  axes = drawn.add_subplot()
  axes.set_title(picture.title, loc='left', fontsize=10)
  axes.set_xlabel(picture.x_label)
  axes.grid(alpha=0.3)
  if isinstance(picture, Dots):
    _draw_dots(axes, picture)
  else:
    _draw_lines(axes, picture)
    if labels:
      # Matplotlib would put what has no error bars first.
      handles = dict(zip(*reversed(axes.get_legend_handles_labels())))
      drawn.legend(
        [handles[label] for label in labels],
        labels,
        loc='outside right upper',
        fontsize=_LEGEND_FONT,
        frameon=False,
      )
  if picture.note:
    drawn.supxlabel(picture.note, fontsize=7.5, color=_GREY, x=0.01, ha='left')
  return drawn


def style(number: int) -> dict[str, Any]:
  """Colour, dashes and mark of a line, by its number; no two of the first 21 agree."""
  color = number % len(_COLORS)
  return {
    'color': _COLORS[color],
    'linestyle': _DASHES[number // len(_COLORS) % len(_DASHES)],
    'marker': _MARKS[(color + number // len(_COLORS)) % len(_MARKS)],
  }


def _draw_lines(axes: Any, chart: Chart) -> None:
  axes.set_ylabel(chart.y_label)
  x_values = sorted({x for line in chart.lines for x in line.x})
  if chart.log_x and x_values and x_values[0] > 0:
    axes.set_xscale('log')
  courses = [line for line in chart.lines if len(line.x)]
  for number, line in enumerate(courses):
    of_line = style(number)
    if not chart.are_points:
      del of_line['marker']
      axes.plot(line.x, line.y, label=line.label, linewidth=1.8, **of_line)
      continue
    x = _moved_apart(line.x, x_values, number - (len(courses) - 1) / 2, chart.log_x)
    axes.errorbar(
      x,
      line.y,
      yerr=_bars(line.errors, len(line.y)),
      label=line.label,
      linewidth=1.5,
      markersize=4.5,
      capsize=2.5,
      elinewidth=1.0,
      **of_line,
    )
  for number, line in enumerate(each for each in chart.lines if not len(each.x)):
    _draw_level(axes, line, _DASHES[(1 + number) % len(_DASHES)])
  if chart.are_points and 0 < len(x_values) <= _MOST_TICKS:
    axes.set_xticks(x_values, [f'{x:g}' for x in x_values])
    axes.set_xticks([], minor=True)
  elif not chart.log_x:
    axes.set_xlim(left=0)
    if all(float(x).is_integer() for x in x_values):
      axes.locator_params(axis='x', integer=True)
  if chart.y_limits != (None, None) and not chart.are_points:
    axes.set_ylim(*chart.y_limits)
  right = None if chart.right is None else _draw_right(axes, chart)
  if len(chart.lines) == 1 and not chart.are_points:
    _say_last_values(axes, chart, right)


def _draw_level(axes: Any, line: Line, dashes: str) -> None:
  """A line at one height, with a band of a standard error to both sides."""
  (level,) = line.y
  axes.axhline(
    level, label=line.label, color=_GREY, linestyle=dashes, linewidth=1.4, zorder=1
  )
  error = line.errors[0] if line.errors else None
  if error is not None:
    axes.axhspan(level - error, level + error, color=_GREY, alpha=0.12, zorder=0)


def _draw_right(axes: Any, chart: Chart) -> Any:
  line, color = chart.right, _COLORS[1]
  assert line is not None
  axes.yaxis.label.set_color(_COLORS[0])
  right = axes.twinx()
  right.set_ylabel(chart.right_label, color=color)
  right.step(line.x, line.y, where='post', color=color, linewidth=1.4)
  right.set_ylim(0.0, 1.15 * max(line.y) or 1.0)
  return right


def _say_last_values(axes: Any, chart: Chart, right: Any) -> None:
  """Writes the last values: of two, that of the higher line above, the other below."""
  line, color = chart.lines[0], style(0)['color']
  if right is None or chart.right is None:
    _say_last(axes, line, '{:.3f}', _ABOVE, color)
    return
  heights = [
    (each.y[-1] - on.get_ylim()[0]) / (on.get_ylim()[1] - on.get_ylim()[0])
    for on, each in ((axes, line), (right, chart.right))
  ]
  is_higher = heights[0] > heights[1]
  _say_last(axes, line, '{:.3f}', _ABOVE if is_higher else _BELOW, color)
  _say_last(right, chart.right, '{:.2f}', _BELOW if is_higher else _ABOVE, _COLORS[1])


def _say_last(axes: Any, line: Line, text: str, above: int, color: str) -> None:
  axes.annotate(
    text.format(line.y[-1]),
    (line.x[-1], line.y[-1]),
    xytext=(-4, above),
    textcoords='offset points',
    ha='right',
    color=color,
  )


def _draw_dots(axes: Any, dots: Dots) -> None:
  places = list(range(len(dots.names)))
  axes.errorbar(
    dots.values,
    places,
    xerr=_bars(dots.errors, len(places)),
    color=_COLORS[0],
    linestyle='',
    marker='o',
    capsize=3,
  )
  axes.set_yticks(places, dots.names)
  axes.invert_yaxis()
  axes.margins(y=0.08)


def _bars(errors: Sequence[Optional[float]], length: int) -> Optional[list[float]]:
  """Lengths of error bars; NaN draws none."""
  if not any(each is not None for each in errors):
    return None
  assert len(errors) == length
  return [math.nan if each is None else each for each in errors]


def _moved_apart(
  x: Sequence[float], x_values: Sequence[float], steps: float, is_log: bool
) -> list[float]:
  """Where points are drawn so that error bars at one x stand beside each other."""
  if len(x_values) < 2:
    return [each * (1 + _APART * steps) for each in x]
  if is_log:
    ratio = (x_values[-1] / x_values[0]) ** (_APART * steps)
    return [each * ratio for each in x]
  return [each + (x_values[-1] - x_values[0]) * _APART * steps for each in x]
