"""Finds the kind of strategy with the least error for each limit on participation.

    python -m benchmarks.best_kinds --output=docs/strategies

For a number of rounds, and a grid of minimum separations and maximum participations,
finds the mechanism with the least RMSE at equal epsilon, and the one that `tff-dp-plan`
advises, which needs little memory between rounds and is at most 5% above that. Kinds
that a plan skips are built as well: the last line has the largest relative improvement
of the best of all kinds over the best row of its plan.

With `--output`, writes a table, best_kinds.csv, and a picture, best_kinds.png.
"""

import os

os.environ['OMP_NUM_THREADS'] = os.environ['OPENBLAS_NUM_THREADS'] = '1'
os.environ['TFF_DP_AGGREGATORS_CACHE'] = ''  # Disables the cache of strategies.

import csv
import logging
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from benchmarks import _arguments

if __name__ == '__main__':
  # `num_rounds`: a power of 2; `output`: folder for table and picture.
  _FLAGS = _arguments.parse(__doc__ or '', num_rounds=512, output='')

from matplotlib import colormaps
from matplotlib import figure
from matplotlib import patches

from tff_dp_aggregators import strategies
from tff_dp_aggregators.accounting.planning import comparison as planning
from tff_dp_aggregators.strategies import registry

_MODEL_SIZE, _DELTA = 10**6, 1e-6
_MIN_SEPARATION = 2
_ROUNDING = 1e-5


class Point(NamedTuple):
  """The result for one point of the grid of limits on participation."""

  num_rounds: int
  min_separation: int
  max_participations: int
  best: str
  best_rmse: float
  best_buffers: int
  advised: str
  advised_rmse: float
  advised_buffers: int
  gaussian_rmse: float
  skipped: str
  skipped_rmse: float


def grid(num_rounds: int) -> Iterator[strategies.Participation]:
  """Yields a single participation, then powers of 2 of both limits."""
  yield strategies.Participation.single(num_rounds)
  separation = _MIN_SEPARATION
  while separation < num_rounds:
    times = 2
    while (times - 1) * separation < num_rounds:
      yield strategies.Participation(num_rounds, separation, times)
      times *= 2
    separation *= 2


def measure(limits: strategies.Participation) -> Point:
  """Plans for the limits, and builds the kinds that the plan skips."""
  task = planning.Task(
    limits, _MODEL_SIZE, _DELTA, noise_multiplier=1.0, mechanisms=tuple(registry.KINDS)
  )
  plan = planning.compare(task)
  best, advised = plan.rows[0], plan.advised
  errors = {row.mechanism.name: _rmse(row, limits) for row in plan.rows}
  others = {
    each.mechanism: registry.kind(each.mechanism).build(limits).rmse(limits)
    for each in plan.left_out
  }
  skipped = min(others, key=lambda name: others[name]) if others else ''
  return Point(
    limits.num_rounds,
    limits.min_separation,
    limits.possible_participations,
    best.name,
    _rmse(best, limits),
    best.mechanism.strategy.noise_buffers,
    advised.name,
    _rmse(advised, limits),
    advised.mechanism.strategy.noise_buffers,
    errors['gaussian'],
    skipped,
    others.get(skipped, float('inf')),
  )


def _rmse(row: planning.Row, limits: strategies.Participation) -> float:
  return row.mechanism.strategy.rmse(limits)


def _kind(name: str) -> str:
  return name.split(',')[0]


def draw(points: Sequence[Point]) -> figure.Figure:
  """Draws the best and the advised kinds as colors of a grid."""
  single, several = points[0], points[1:]
  kinds = [
    name
    for name in registry.KINDS
    if any(name in (_kind(point.best), _kind(point.advised)) for point in points)
  ]
  palette = (*colormaps['Set2'].colors, *colormaps['Set3'].colors)
  colors = dict(zip(kinds, palette))
  picture = figure.Figure(figsize=(13, 5.6), layout='constrained')
  left, right = picture.subplots(1, 2, sharey=True)
  separations = sorted({point.min_separation for point in several})
  times = sorted({point.max_participations for point in several})
  for axes, choice in ((left, 'best'), (right, 'advised')):
    for point in several:
      x, y = separations.index(point.min_separation), _row(times, point)
      _cell(axes, x, y, point, choice, colors)
    for x in range(len(separations)):
      _cell(axes, x, 0, single, choice, colors)
    axes.set_xlim(-0.5, len(separations) - 0.5)
    axes.set_ylim(-0.5, len(times) + 0.5)
    axes.set_xticks(range(len(separations)), [str(each) for each in separations])
    axes.set_yticks(range(len(times) + 1), ['1', *(str(each) for each in times)])
    axes.set_xlabel('min_separation')
    for side in axes.spines.values():
      side.set_visible(False)
    axes.tick_params(length=0)
  left.set_ylabel('max_participations')
  left.set_title('The least RMSE', fontsize='medium')
  right.set_title('What tff-dp-plan advises', fontsize='medium')
  picture.suptitle(
    f'{single.num_rounds} rounds: RMSE as a part of that of the gaussian mechanism, '
    'and model-sized buffers'
  )
  handles = [patches.Patch(color=colors[name], label=name) for name in kinds]
  picture.legend(
    handles=handles, loc='outside lower center', ncols=len(kinds), frameon=False
  )
  return picture


def _row(times: Sequence[int], point: Point) -> int:
  return 1 + times.index(point.max_participations)


def _cell(axes, x: int, y: int, point: Point, choice: str, colors: dict) -> None:
  rmse = getattr(point, f'{choice}_rmse') / point.gaussian_rmse
  color = colors[_kind(getattr(point, choice))]
  axes.add_patch(patches.Rectangle((x - 0.48, y - 0.48), 0.96, 0.96, color=color))
  buffers = getattr(point, f'{choice}_buffers')
  axes.text(x, y, f'{rmse:.3f}\n{buffers}', ha='center', va='center', fontsize='small')


def main() -> None:
  logging.disable(logging.WARNING)
  points = []
  print(f'{"apart":>6}{"times":>6}  {"best":32}{"RMSE":>9}  advised')
  for limits in grid(_FLAGS.num_rounds):
    point = measure(limits)
    points.append(point)
    start = f'{point.min_separation:6}{point.max_participations:6}'
    advised = f'{point.advised} ({point.advised_rmse:.4f})'
    print(f'{start}  {point.best:32}{point.best_rmse:9.4f}  {advised}', flush=True)
  if _FLAGS.output:
    path = os.path.join(_FLAGS.output, 'best_kinds')
    with open(f'{path}.csv', 'w', encoding='utf-8', newline='') as file:
      writer = csv.writer(file, lineterminator='\n')
      writer.writerow(Point._fields)
      for point in points:
        writer.writerow(
          f'{each:.6g}' if isinstance(each, float) else each for each in point
        )
    draw(points).savefig(f'{path}.png', dpi=110)
    print(f'Written: {path}.csv and {path}.png.')
  gain = max((1 - point.skipped_rmse / point.best_rmse, point) for point in points)
  print(
    f'What a plan leaves out is better by {max(0.0, gain[0]):.3%} at most'
    + (f': {gain[1].skipped}.' if gain[0] > _ROUNDING else '.')
  )


if __name__ == '__main__':
  main()
