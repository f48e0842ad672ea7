"""The plots of a report, as SVG."""

import io
from typing import Any

from tff_dp_aggregators.accounting.reports.rendering import document
from tff_dp_aggregators.accounting.reports.rendering import rounding

_LINE, _TEXT, _GRID = '#1f5fa8', '#333333', '#dddddd'


def to_svg(plot: document.Plot) -> str:
  """A plot as an SVG file; the same for the same plot.

  Args:
    plot: What to draw.
  """
  # Matplotlib takes longer to import than all the rest of a report.
  import matplotlib
  from matplotlib import figure

  settings = {
    'svg.hashsalt': plot.title,
    'svg.fonttype': 'path',  # Looks the same wherever it is opened.
    'font.family': 'DejaVu Sans',  # Matplotlib's own.
    'font.size': 10,
    'text.color': _TEXT,
    'axes.labelcolor': _TEXT,
    'axes.edgecolor': '#999999',
    'xtick.color': _TEXT,
    'ytick.color': _TEXT,
  }
  with matplotlib.rc_context(settings):
    picture = figure.Figure(figsize=(5.2, 3.3))
    # Laying out by itself would take as long as drawing.
    _draw(picture.add_axes((0.155, 0.15, 0.815, 0.81)), plot)
    file = io.StringIO()
    picture.savefig(file, format='svg', metadata={'Date': None, 'Creator': None})
  return file.getvalue()


def _draw(axes: Any, plot: document.Plot) -> None:
  x, y = zip(*plot.points)
  if plot.is_bars:
    axes.bar(x, y, width=0.8, color=_LINE)
    axes.axhline(0, color='#666666', linewidth=0.8)
    _widen(axes, smallest=0.2)
  else:
    axes.plot(x, y, color=_LINE, linewidth=1.8)
    axes.set_ylim(bottom=0)
  if plot.log_x:
    axes.set_xscale('log')
  else:
    axes.set_xlim(left=0)
  if plot.mark is not None and plot.mark[1] is not None:
    _mark(axes, plot.mark)
  axes.set_xlabel(plot.x_label)
  axes.set_ylabel(plot.y_label)
  axes.grid(color=_GRID, linewidth=0.7)
  axes.set_axisbelow(True)
  axes.spines[['top', 'right']].set_visible(False)


def _mark(axes: Any, mark: tuple[float, float]) -> None:
  """A dot at the report's own number, with the number beside it."""
  axes.plot(*mark, marker='o', color='#c0392b', markersize=6, clip_on=False)
  axes.annotate(
    rounding.up(mark[1]),
    mark,
    xytext=(-8, -14),
    textcoords='offset points',
    ha='right',
    color='#c0392b',
  )


def _widen(axes: Any, smallest: float) -> None:
  """Shows at least `smallest` of the y axis, so that rounding errors look like zero."""
  low, high = axes.get_ylim()
  if high - low < smallest:
    axes.set_ylim(-smallest / 2, smallest / 2)
