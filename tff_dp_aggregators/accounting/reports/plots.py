"""The plots of a report, as SVG."""

import dataclasses
import io
import textwrap
from typing import Any, Optional

from tff_dp_aggregators.base import rounding

_FONT_SIZE = 10
# Letters of a label that fit beside the y axis.
_LABEL_WIDTH = 32
# The y axis of bars reaches at least to this.
_LEAST_HEIGHT = 0.2
_LINE, _MARK, _TEXT, _GRID = '#1f5fa8', '#c0392b', '#333333', '#dddddd'


@dataclasses.dataclass(frozen=True)
class Plot:
  """One curve; only pages show it."""

  title: str
  caption: str  # How to read it, in a sentence or two.
  x_label: str  # With the unit, as the next.
  y_label: str
  points: tuple[tuple[float, float], ...]  # At least one.
  log_x: bool = False
  is_bars: bool = False  # For values that belong to whole numbers.
  mark: Optional[tuple[float, float]] = None  # Where the report's own number is.
  mark_text: Optional[str] = None  # By default its y, rounded up.

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
    low, high = axes.get_ylim()
    if high - low < _LEAST_HEIGHT:  # So that rounding errors look like zero.
      axes.set_ylim(-_LEAST_HEIGHT / 2, _LEAST_HEIGHT / 2)
  else:
    axes.plot(x, y, color=_LINE, linewidth=1.8)
    # What may be negative, such as a loss, is shown whole.
    axes.set_ylim(bottom=None if min(y) < 0 else 0)
  if plot.log_x:
    axes.set_xscale('log')
  else:
    axes.set_xlim(left=0)
  if all(float(each).is_integer() for each in x):
    axes.xaxis.get_major_locator().set_params(integer=True)
  axes.set_xlabel(_plain(plot.x_label))
  axes.set_ylabel('\n'.join(textwrap.wrap(_plain(plot.y_label), _LABEL_WIDTH)))
  axes.grid(color=_GRID, linewidth=0.7)
  axes.set_axisbelow(True)
  axes.spines[['top', 'right']].set_visible(False)
  if plot.mark is not None and plot.mark[1] is not None:
    text = plot.mark_text or rounding.up(plot.mark[1])
    axes.plot(*plot.mark, 'o', color=_MARK, markersize=6, clip_on=False, label=text)
    # Where it covers the least of the curve.
    axes.legend(loc='best', labelcolor=_MARK, frameon=False, handletextpad=0.2)


def _plain(text: str) -> str:
  """Text in which Matplotlib finds no formula."""
  return text.replace('$', r'\$')
