"""Compares the noise that sampling schemes need, for settings of published runs.

    python -m benchmarks.amplification --output=docs/accounting

Noise multipliers at (epsilon, delta) = (8, 1e-6), and the RMSE of prefix sums, of
independent noise (gaussian), banded Toeplitz matrices and windowed BLTs, under each
sampling scheme whose events are known for the mechanism:

* StackOverflow: 2,048 rounds of 100 of 342,477 clients (arXiv:2202.08312). No client
  must participate twice; without sampling it is in one round.
* CIFAR-10: 2,000 steps on 500 of 50,000 examples, 20 epochs (arXiv:2306.08153). Without
  sampling each example is in every 100th step.

Numbers of bands are the powers of 2 with the least RMSE, amplification included: for
cyclic Poisson sampling, which has as many groups, for balls in bins, and for b-min-sep
sampling, where they are the separation.

Epsilon is for adding or removing a client; without sampling, for leaving out its data.

With `--output`, writes a table, amplification.csv, and a picture, amplification.png.
With `--monte_carlo`, adds rows of that accountant, which take most of the time: balls
in bins with the bands of the deterministic bound, and b-min-sep sampling, which has no
other accountant.
"""

import os

os.environ['OMP_NUM_THREADS'] = os.environ['OPENBLAS_NUM_THREADS'] = '1'

import csv
import logging
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Optional

from benchmarks import _arguments

if __name__ == '__main__':
  # `output`: folder for table and picture.
  _FLAGS = _arguments.parse(__doc__ or '', output='', monte_carlo=False)

from matplotlib import figure

from tff_dp_aggregators import accounting
from tff_dp_aggregators import sampling
from tff_dp_aggregators import strategies
from tff_dp_aggregators.accounting.planning import separations

_EPSILON, _DELTA = 8.0, 1e-6
_COLORS = {'gaussian': '#7f7f7f', 'toeplitz': '#1b6ca8', 'windowed_blt': '#d1662b'}


class Setting(NamedTuple):
  """A published run."""

  name: str
  num_rounds: int
  population: int
  cohort: int

  @property
  def unsampled(self) -> strategies.Participation:
    """Limits without sampling: one participation, or one in each cycle."""
    cycle = self.population // self.cohort
    if cycle >= self.num_rounds:
      return strategies.Participation.single(self.num_rounds)
    return strategies.Participation(self.num_rounds, cycle, fixed_epoch=True)

  @property
  def clients(self) -> tuple[int, int, int]:
    """Arguments of most sampling schemes."""
    return self.num_rounds, self.population, self.cohort


SETTINGS = (
  Setting('StackOverflow', 2048, 342_477, 100),
  Setting('CIFAR-10', 2000, 50_000, 500),
)


class Row(NamedTuple):
  """A mechanism with the noise that it needs under a sampling scheme."""

  setting: str
  sampling: str
  mechanism: str
  num_bands: Optional[int]
  accountant: str
  adjacency: str
  noise_multiplier: float
  rmse: float
  unsampled_rmse: float


def _fit(
  name: str,
  schema: sampling.Schema,
  accountant: Optional[str] = None,
  num_bands: Optional[int] = None,
  adjacency: Optional[str] = None,
) -> accounting.Mechanism:
  options: dict[str, Any] = {} if num_bands is None else {'num_bands': num_bands}
  return accounting.Mechanism.for_target(
    name,
    schema,
    _EPSILON,
    _DELTA,
    accountant=accountant,
    adjacency=adjacency,
    **options,
  )


def _rmse(mechanism: accounting.Mechanism) -> float:
  errors = mechanism.strategy.per_query_error()
  return mechanism.noise_multiplier * math.sqrt(float(errors.mean()))


def _best_bands(
  maximum: int, schema_of: Callable[[int], sampling.Schema]
) -> tuple[accounting.Mechanism, int]:
  """Returns the Toeplitz mechanism with the least error over powers of 2 bands."""
  bands = [2**i for i in range(1, maximum.bit_length())]
  candidates = [(_fit('toeplitz', schema_of(each), None, each), each) for each in bands]
  return min(candidates, key=lambda each: _rmse(each[0]))


def measure(
  setting: Setting, with_monte_carlo: bool
) -> Iterator[tuple[str, accounting.Mechanism, Optional[int], Optional[str]]]:
  """Yields sampling scheme, mechanism, bands, and the accountant if it was chosen."""
  rounds, cycle = setting.num_rounds, setting.population // setting.cohort
  limits, max_bands = setting.unsampled, min(cycle, rounds)
  for name in ('gaussian', 'toeplitz', 'windowed_blt'):
    bands = max_bands if name == 'toeplitz' else None
    yield 'no sampling', _fit(name, limits, None, bands), bands, None
  poisson = sampling.PoissonSampling.of_cohort(*setting.clients)
  yield 'Poisson', _fit('gaussian', poisson), None, None
  best, bands = _best_bands(
    max_bands,
    lambda b: sampling.PoissonSampling.of_cohort(*setting.clients, num_groups=b),
  )
  yield 'cyclic Poisson', best, bands, None
  fixed = sampling.FixedSizeSampling(rounds, setting.population, setting.cohort)
  yield 'fixed size', _fit('gaussian', fixed, adjacency='add_or_remove'), None, None
  allocation = sampling.RandomAllocation.of_cohort(*setting.clients)
  yield 'random allocation', _fit('gaussian', allocation), None, None
  bins = sampling.BallsInBins.of_cohort(*setting.clients)
  yield 'balls in bins', _fit('gaussian', bins), None, None
  best, bands = _best_bands(max_bands, lambda _: bins)
  yield 'balls in bins', best, bands, None
  yield 'balls in bins', _fit('windowed_blt', bins), None, None
  if not with_monte_carlo:
    return
  for name, number in (('toeplitz', bands), ('windowed_blt', None)):
    fitted = _fit(name, bins, 'monte_carlo', number)
    yield 'balls in bins', fitted, number, 'monte_carlo'
  b_min_sep = separations.best_separation(*setting.clients, _EPSILON, _DELTA)
  bands = b_min_sep.min_separation
  yield 'b-min-sep', _fit('toeplitz', b_min_sep, None, bands), bands, 'monte_carlo'


def rows_of(setting: Setting, with_monte_carlo: bool) -> Iterator[Row]:
  """Yields the rows of a setting as they are computed."""
  unsampled: dict[str, float] = {}
  for scheme, mechanism, bands, accountant in measure(setting, with_monte_carlo):
    rmse = _rmse(mechanism)
    unsampled.setdefault(mechanism.name, rmse)
    used_accountant = accountant or accounting.accountants.tightest(
      mechanism.event, mechanism.relation
    )
    yield Row(
      setting.name,
      scheme,
      mechanism.name,
      bands,
      used_accountant,
      mechanism.adjacency,
      mechanism.noise_multiplier,
      rmse,
      unsampled[mechanism.name],
    )


def draw(rows: Sequence[Row]) -> figure.Figure:
  """Draws errors as bars, labelled with noise multipliers."""
  picture = figure.Figure(figsize=(12, 6.2), layout='constrained')
  axes = picture.subplots(1, len(SETTINGS))
  for ax, setting in zip(axes, SETTINGS):
    shown = [row for row in rows if row.setting == setting.name]
    for y, row in enumerate(shown):
      ax.barh(y, row.rmse, color=_COLORS[row.mechanism], height=0.75)
      text = f' {row.rmse:.2f}  (noise {row.noise_multiplier:.3f})'
      ax.text(row.rmse, y, text, va='center', fontsize='small')
    ax.set_yticks(range(len(shown)), [_label(row) for row in shown], fontsize='small')
    ax.invert_yaxis()
    ax.set_xscale('log')
    ax.set_xlim(min(row.rmse for row in shown) / 2, 6 * max(row.rmse for row in shown))
    ax.set_xlabel('RMSE of prefix sums, in clip norms')
    size = (
      f'{setting.num_rounds:,} rounds of {setting.cohort} of {setting.population:,}'
    )
    ax.set_title(f'{setting.name}: {size}', fontsize='medium')
    for side in ('top', 'right'):
      ax.spines[side].set_visible(False)
  picture.suptitle(
    f'Noise for epsilon = {_EPSILON:g} at delta = {_DELTA:g}, by how clients are drawn'
  )
  return picture


def _label(row: Row) -> str:
  words = [row.sampling, row.mechanism]
  if row.num_bands is not None:
    words.append(f'{row.num_bands} bands')
  if row.accountant == 'monte_carlo':
    words.append('Monte Carlo')
  return ', '.join(words)


def main() -> None:
  logging.disable(logging.WARNING)
  rows: list[Row] = []
  print(f'{"":70}{"noise":>8}{"RMSE":>9}{"of unsampled":>14}  adjacency')
  for setting in SETTINGS:
    for row in rows_of(setting, _FLAGS.monte_carlo):
      rows.append(row)
      label = f'{row.setting}: {_label(row)} ({row.accountant})'
      ratio = row.rmse / row.unsampled_rmse
      print(
        f'{label:70}{row.noise_multiplier:8.4f}{row.rmse:9.3f}{ratio:14.3f}'
        f'  {row.adjacency}',
        flush=True,
      )
  if _FLAGS.output:
    path = os.path.join(_FLAGS.output, 'amplification')
    with open(f'{path}.csv', 'w', encoding='utf-8', newline='') as file:
      writer = csv.writer(file, lineterminator='\n')
      writer.writerow(Row._fields)
      for row in rows:
        writer.writerow(
          f'{each:.6g}' if isinstance(each, float) else each for each in row
        )
    draw(rows).savefig(f'{path}.png', dpi=110)
    print(f'Written: {path}.csv and {path}.png.')


if __name__ == '__main__':
  main()
