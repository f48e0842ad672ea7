"""The plots of a report, as SVG."""

import dataclasses
import io
import itertools
import textwrap
from typing import Any, Optional

import numpy as np

from tff_dp_aggregators.base import rounding

_FONT_SIZE = 10
# Of a label from its mark, in points, and where it lies from there, the best first.
_DISTANCES = (8, 12, 18, 26, 40, 60, 90, 130)
_DIRECTIONS = ((-1, -1), (-1, 1), (1, 1), (1, -1), (0, 1), (0, -1), (-1, 0), (1, 0))
# How far from a curve it stays.
_CLEAR = 3.0
# Letters of a label that fit beside the y axis.
_LABEL_WIDTH = 32
_LINE, _TEXT, _GRID = '#1f5fa8', '#333333', '#dddddd'


@dataclasses.dataclass(frozen=True)
class Plot:
  """One curve; only pages show it.

  Attributes:
    title: What the curve shows.
    caption: How to read it, in a sentence or two.
    x_label: With the unit.
    y_label: With the unit.
    points: (x, y) of the curve, at least one.
    log_x: Whether the x axis is logarithmic.
    is_bars: Whether to draw bars, for values that belong to whole numbers.
    mark: The point to which the report's own number belongs.
    mark_text: What stands at the mark; `None` for its y, rounded up.
  """

  title: str
  caption: str
  x_label: str
  y_label: str
  points: tuple[tuple[float, float], ...]
  log_x: bool = False
  is_bars: bool = False
  mark: Optional[tuple[float, float]] = None
  mark_text: Optional[str] = None

  @property
  def alternative(self) -> str:
    """What stands for the picture where it is not seen."""
    return f'{self.title}: {self.y_label} over {self.x_label}'


def to_svg(plot: Plot) -> str:
  """A plot as an SVG file; the same for the same plot."""
  # Matplotlib takes longer to import than all the rest of a report.
  import matplotlib
  from matplotlib import figure

  settings = {
    'svg.hashsalt': plot.title,
    'svg.fonttype': 'path',  # Looks the same wherever it is opened.
    'font.family': 'DejaVu Sans',  # Matplotlib's own.
    'font.size': _FONT_SIZE,
    'text.color': _TEXT,
    'axes.labelcolor': _TEXT,
    'axes.edgecolor': '#999999',
    'xtick.color': _TEXT,
    'ytick.color': _TEXT,
  }
  with matplotlib.rc_context(settings):
    picture = figure.Figure(figsize=(5.2, 3.3))
    # Laying out by itself would take as long as drawing.
    _draw(picture.add_axes((0.175, 0.15, 0.795, 0.81)), plot)
    file = io.StringIO()
    picture.savefig(file, format='svg', metadata={'Date': None, 'Creator': None})
  return file.getvalue()


def _draw(axes: Any, plot: Plot) -> None:
  x, y = zip(*plot.points)
  if plot.is_bars:
    axes.bar(x, y, width=0.8, color=_LINE)
    axes.axhline(0, color='#666666', linewidth=0.8)
    _widen(axes, smallest=0.2)
  else:
    axes.plot(x, y, color=_LINE, linewidth=1.8)
    # Of what may be negative, such as a loss, all is shown.
    axes.set_ylim(bottom=None if min(y) < 0 else 0)
  if plot.log_x:
    axes.set_xscale('log')
  else:
    axes.set_xlim(left=0)
  if all(float(each).is_integer() for each in x):
    axes.xaxis.get_major_locator().set_params(integer=True)
  if plot.mark is not None and plot.mark[1] is not None:
    _mark(axes, plot.mark, plot.mark_text or rounding.up(plot.mark[1]))
  axes.set_xlabel(_plain(plot.x_label))
  axes.set_ylabel('\n'.join(textwrap.wrap(_plain(plot.y_label), _LABEL_WIDTH)))
  axes.grid(color=_GRID, linewidth=0.7)
  axes.set_axisbelow(True)
  axes.spines[['top', 'right']].set_visible(False)


def _plain(text: str) -> str:
  """Text in which Matplotlib finds no formula."""
  return text.replace('$', r'\$')


def _mark(axes: Any, mark: tuple[float, float], text: str) -> None:
  """A dot at the report's own number, with the number beside it."""
  from matplotlib import textpath

  curve = axes.lines[0].get_xydata()
  axes.plot(*mark, marker='o', color='#c0392b', markersize=6, clip_on=False)
  axes.get_xlim(), axes.get_ylim()  # These settle the limits, and so where points are.
  points = 72 / axes.figure.dpi
  extent = textpath.TextPath((0, 0), text, size=_FONT_SIZE).get_extents()
  corner = place(
    (extent.width, extent.height),
    points * axes.transData.transform(mark),
    points * axes.transData.transform(curve),
    points * axes.bbox.extents,
  )
  axes.annotate(
    text,
    mark,
    xytext=tuple(corner - points * axes.transData.transform(mark)),
    textcoords='offset points',
    ha='left',
    va='bottom',
    color='#c0392b',
  )


def place(
  size: tuple[float, float], mark: np.ndarray, curve: np.ndarray, frame: np.ndarray
) -> np.ndarray:
  """The lower left corner of a label that lies on no curve, near a mark [x, y].

  All is in points: `size` is width and height of the label, `curve` float64 of shape
  [n, 2], and `frame` left, bottom, right and top, within which the label has to be.
  Where no place is clear of curve and mark, it is the one that is farthest from them.

  Example:
    >>> rising = np.array([[0.0, 0.0], [100.0, 100.0]])
    >>> frame = np.array([0.0, 0.0, 110.0, 110.0])
    >>> left, bottom = place((40, 8), rising[1], rising, frame)
    >>> bool(left + 40 < bottom or left > bottom + 8)
    True
  """
  extent = np.array(size, np.float64)
  pieces = [
    start
    + np.linspace(0, 1, 2 + int(np.abs(end - start).max()))[:, None] * (end - start)
    for start, end in zip(curve, curve[1:])
  ]
  taken = np.concatenate([[mark], curve, *pieces])
  best, clearest = mark, -1.0
  for distance, (x, y) in itertools.product(_DISTANCES, _DIRECTIONS):
    # Outside of the mark by `distance` on each side that it is moved to.
    corner = mark + distance * np.array([x, y]) + extent * np.array([x - 1, y - 1]) / 2
    if (corner < frame[:2]).any() or (corner + extent > frame[2:]).any():
      continue
    beside = np.maximum(corner - taken, taken - corner - extent)
    clear = float(beside.max(axis=1).min())
    if clear >= _CLEAR:
      return corner
    if clear > clearest:
      best, clearest = corner, clear
  return best


def _widen(axes: Any, smallest: float) -> None:
  """Shows at least `smallest` of the y axis, so that rounding errors look like zero."""
  low, high = axes.get_ylim()
  if high - low < smallest:
    axes.set_ylim(-smallest / 2, smallest / 2)
