"""Plots the error of all strategies by number of rounds, and prints a table.

    python -m benchmarks.error_by_rounds --output=docs/strategies/error_by_rounds.png

RMSE of prefix sums at an effective noise multiplier of 1 (sens(C) x ||B||_F / sqrt(n)),
on the left for a single participation, on the right for five epochs (min_separation
n / 5). Everything is computed in this run; each strategy is plotted up to the number of
rounds that its optimiser is meant for.
"""

import os

os.environ['OMP_NUM_THREADS'] = os.environ['OPENBLAS_NUM_THREADS'] = '1'
os.environ['TFF_DP_AGGREGATORS_CACHE'] = ''  # Disables the cache of strategies.

import logging
import time
from typing import Callable, NamedTuple

from benchmarks import _arguments

if __name__ == '__main__':
  # `num_rounds`: maximum number of rounds; `output`: PNG file of the picture.
  _FLAGS = _arguments.parse(__doc__ or '', num_rounds=10**6, output='')

from matplotlib import figure

from tff_dp_aggregators import strategies
from tff_dp_aggregators.strategies import Participation
from tff_dp_aggregators.strategies import Strategy

_EPOCHS = 5
_TICKS = (1, 1.5, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
Build = Callable[[int, Participation], Strategy]


class Line(NamedTuple):
  """A strategy in the picture, its maximum number of rounds, and its line style."""

  name: str
  build: Build
  max_rounds: int
  style: str


def _bands(participation: Participation, maximum: int = 10**6) -> int:
  """Returns the largest number of bands that does not increase the sensitivity."""
  is_repeated = participation.possible_participations > 1
  return min(
    participation.min_separation if is_repeated else participation.num_rounds, maximum
  )


_COMMON_LINES = (
  Line('Gaussian sum (identity)', lambda n, p: strategies.Identity(n), 10**7, 'k:'),
  Line('tree, plain', lambda n, p: strategies.BinaryTree(n, False), 10**7, 'C5--'),
  Line('tree, Honaker', lambda n, p: strategies.BinaryTree(n), 10**7, 'C5-'),
  Line(
    'BISR, 16 bands of the inverse',
    lambda n, p: strategies.BandedInverse.square_root(n, min(n, 16)),
    10**6,
    'C4--',
  ),
  Line(
    'BandInvMF, 16 bands of the inverse',
    lambda n, p: strategies.banded_inverse.optimize(
      n, num_bands=min(n, 16), participation=p
    ),
    10**6,
    'C4-',
  ),
  Line(
    'BLT, 4 buffers',
    lambda n, p: strategies.blt.optimize(n, num_buffers=4, participation=p),
    10**7,
    'C2-',
  ),
)
_SINGLE_LINES = (
  *_COMMON_LINES,
  Line(
    'banded Toeplitz, 64 bands',
    lambda n, p: strategies.toeplitz.optimize(n, num_bands=min(n, 64), participation=p),
    10**5,
    'C0--',
  ),
  Line(
    'full Toeplitz square root',
    lambda n, p: strategies.BandedToeplitz.square_root(n, n),
    10**6,
    'C0-',
  ),
  Line(
    'dense optimum',
    lambda n, p: strategies.dense.optimize(n, participation=p),
    320,
    'C3-',
  ),
)
_REPEATED_LINES = (
  *_COMMON_LINES,
  Line(
    'windowed BLT, 3 decays',
    lambda n, p: strategies.blt.optimize_windowed(n, num_decays=3, participation=p),
    3 * 10**5,
    'C1-',
  ),
  Line(
    'banded Toeplitz, n/5 bands',
    lambda n, p: strategies.toeplitz.optimize(n, num_bands=_bands(p), participation=p),
    10**4,
    'C0-',
  ),
  Line(
    'general banded, n/5 bands',
    lambda n, p: strategies.banded.optimize(n, num_bands=_bands(p), participation=p),
    1000,
    'C3-',
  ),
)


def _rounds(maximum: int) -> list[int]:
  """Returns two numbers of rounds for each power of ten, divisible by the epochs."""
  rounds = [10 * 10**power * step for power in range(7) for step in (1, 3)]
  return [n for n in rounds if n <= maximum]


def _errors(
  line: Line, participation_of: Callable[[int], Participation], max_rounds: int
) -> list[tuple[int, float]]:
  """Prints and returns the error for each number of rounds."""
  points = []
  for num_rounds in _rounds(min(max_rounds, line.max_rounds)):
    participation = participation_of(num_rounds)
    start = time.process_time()
    strategy = line.build(num_rounds, participation)
    seconds = time.process_time() - start
    error = strategy.rmse(participation)
    points.append((num_rounds, error))
    print(f'{line.name:36} {num_rounds:9,d} {error:10.4f} {seconds:9.2f} s', flush=True)
  return points


def _draw(
  axes, title: str, results: list[tuple[Line, list[tuple[int, float]]]]
) -> None:
  axes.set_title(title, loc='left', fontsize=10)
  axes.set_xlabel('rounds')
  axes.set_xscale('log')
  axes.set_yscale('log')
  axes.grid(alpha=0.3, which='both')
  for line, points in results:
    axes.plot(*zip(*points), line.style, label=line.name, linewidth=1.5)
  best = min(error for _, points in results for _, error in points)
  axes.set_ylim(best * 0.9, best * 16)
  ticks = [tick for tick in _TICKS if best * 0.9 <= tick <= best * 16]
  axes.set_yticks(ticks, [f'{tick:g}' for tick in ticks])
  axes.minorticks_off()
  axes.legend(
    fontsize=8, ncols=2, loc='upper center', bbox_to_anchor=(0.5, -0.13), frameon=False
  )


def _single(num_rounds: int) -> Participation:
  return Participation.single(num_rounds)


def _repeated(num_rounds: int) -> Participation:
  return Participation(num_rounds, num_rounds // _EPOCHS, _EPOCHS)


def main(num_rounds: int, output: str) -> None:
  logging.disable(logging.WARNING)  # Warnings that fewer buffers suffice.
  print(f'{"strategy":36} {"rounds":>9} {"rmse":>10} {"built in":>11}')
  picture = figure.Figure(figsize=(11, 6), dpi=120, layout='constrained')
  left, right = picture.subplots(1, 2)
  for axes, title, lines, participation_of in (
    (left, 'single participation', _SINGLE_LINES, _single),
    (right, 'five epochs, n/5 rounds apart', _REPEATED_LINES, _repeated),
  ):
    print(title)
    results = [(line, _errors(line, participation_of, num_rounds)) for line in lines]
    _draw(axes, title, results)
  left.set_ylabel('RMSE of prefix sums at equal privacy')
  if output:
    picture.savefig(output)
    print(f'The picture is {output}.')


if __name__ == '__main__':
  main(_FLAGS.num_rounds, _FLAGS.output)
