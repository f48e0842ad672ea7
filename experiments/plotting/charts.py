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
# Okabe and Ito's colours, but for yellow, which is pale on white.
_COLORS = ('#0072B2', '#D55E00', '#009E73', '#CC79A7', '#E69F00', '#56B4E9', '#000000')
_DASHES = ('-', '--', ':')
_MARKS = ('o', 's', '^', 'D', 'v', 'P', 'X')
_GREY = '#555555'
_WIDTH, _HEIGHT = 7.2, 4.2
_LEGEND_FONT, _INCHES_PER_LETTER = 8.5, 0.072
_TICKS_APART = 0.07  # The least, as a part of the axis.
# How far lines stand apart whose points have one x, as a part of the axis.
_APART = 0.006


@dataclasses.dataclass(frozen=True)
class Line:
  """Points of one line, or a level."""

  label: str  # In the legend; empty for none.
  x: Sequence[float]  # Of each point; empty for a level, which is the same at every x.
  y: Sequence[float]  # Of each point; the one of a level.
  errors: Sequence[float] = ()  # Standard errors of `y`; NaN where there is none.


@dataclasses.dataclass(frozen=True)
class Chart:
  """Lines over one axis."""

  title: str
  x_label: str
  y_label: str
  lines: Sequence[Line]  # In the order of the legend.
  # Least and largest value that there can be; `None` where there is none.
  y_limits: tuple[Optional[float], Optional[float]] = (None, None)
  # Whether each point counts, and is marked, rather than their course.
  are_points: bool = False
  log_x: bool = False  # Whether equal steps are equal ratios.
  right: Optional[Line] = None  # Drawn by a second axis, at the right.
  note: str = ''  # A line of small print below.


@dataclasses.dataclass(frozen=True)
class Dots:
  """A value with its error for each of some names."""

  title: str  # Above the picture.
  x_label: str  # What the values are.
  names: Sequence[str]  # From above to below.
  values: Sequence[float]  # In the order of the names.
  errors: Sequence[float]  # Standard errors; NaN where there is none.
  note: str = ''  # A line of small print below.


Picture = Union[Chart, Dots]


def save(picture: Picture, path: str) -> None:
  import matplotlib  # It takes longer than to check flags.

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
      yerr=line.errors or None,
      label=line.label,
      linewidth=1.5,
      markersize=4.5,
      capsize=2.5,
      elinewidth=1.0,
      **of_line,
    )
  for number, line in enumerate(each for each in chart.lines if not len(each.x)):
    _draw_level(axes, line, _DASHES[(1 + number) % len(_DASHES)])
  if chart.are_points and x_values:
    _mark_values(axes, x_values, chart.log_x)
  elif not chart.log_x:
    axes.set_xlim(left=0)
    if all(float(x).is_integer() for x in x_values):
      axes.locator_params(axis='x', integer=True)
  if chart.y_limits != (None, None) and not chart.are_points:
    axes.set_ylim(*chart.y_limits)
  if len(chart.lines) == 1 and not chart.are_points:
    # Beside the axis, where it covers no line, however short that is.
    axes.set_ylabel(f'{chart.y_label} (last {chart.lines[0].y[-1]:.3f})')
  if chart.right is not None:
    _draw_right(axes, chart.right)


def _mark_values(axes: Any, x_values: Sequence[float], is_log: bool) -> None:
  """Puts ticks at the values, but for those too near another one to be read."""
  places = [math.log(x) if is_log else x for x in x_values]
  kept = [0]
  for number, place in enumerate(places):
    if place - places[kept[-1]] > _TICKS_APART * (places[-1] - places[0]):
      kept.append(number)
  axes.set_xticks([x_values[each] for each in kept])
  axes.set_xticklabels([f'{x_values[each]:.4g}' for each in kept])
  axes.set_xticks([], minor=True)


def _draw_level(axes: Any, line: Line, dashes: str) -> None:
  # At one height, with a band of a standard error to both sides.
  (level,) = line.y
  axes.axhline(
    level, label=line.label, color=_GREY, linestyle=dashes, linewidth=1.4, zorder=1
  )
  for error in filter(math.isfinite, line.errors):
    axes.axhspan(level - error, level + error, color=_GREY, alpha=0.12, zorder=0)


def _draw_right(axes: Any, line: Line) -> None:
  axes.yaxis.label.set_color(_COLORS[0])
  right = axes.twinx()
  right.set_ylabel(f'{line.label} (last {line.y[-1]:.2f})', color=_COLORS[1])
  right.step(line.x, line.y, where='post', color=_COLORS[1], linewidth=1.4)
  right.set_ylim(0.0, 1.15 * max(line.y) or 1.0)


def _draw_dots(axes: Any, dots: Dots) -> None:
  places = list(range(len(dots.names)))
  axes.errorbar(
    dots.values,
    places,
    xerr=dots.errors or None,
    color=_COLORS[0],
    linestyle='',
    marker='o',
    capsize=3,
  )
  axes.set_yticks(places, dots.names)
  axes.invert_yaxis()
  axes.margins(y=0.08)


def _moved_apart(
  x: Sequence[float], x_values: Sequence[float], steps: float, is_log: bool
) -> list[float]:
  """Where points are drawn so that error bars at one x stand beside each other."""
  least, largest = x_values[0], x_values[-1]
  if is_log:
    return [each * (largest / least) ** (_APART * steps) for each in x]
  return [each + ((largest - least) or least) * _APART * steps for each in x]
