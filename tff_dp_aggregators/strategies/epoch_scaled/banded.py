"""Banded strategies whose columns get shorter from epoch to epoch.

They are matrices of `banded.Banded`, whose columns may have any norms as it is.
`optimize` finds the best columns together with the best norms, one or two for each
epoch, and `certify` bounds what any norms whatever can gain.
"""

import math
from typing import Optional

import numpy as np

from tff_dp_aggregators.base import checks
from tff_dp_aggregators.strategies import banded
from tff_dp_aggregators.strategies import cache as cache_lib
from tff_dp_aggregators.strategies import participation as participation_lib
from tff_dp_aggregators.strategies import workload as workload_lib
from tff_dp_aggregators.strategies.epoch_scaled import strategy as strategy_lib
from tff_dp_aggregators.strategies.numerics import banded_problem
from tff_dp_aggregators.strategies.numerics import column_norms
from tff_dp_aggregators.strategies.numerics import descent
from tff_dp_aggregators.strategies.numerics import epoch_problem
from tff_dp_aggregators.strategies.numerics import gram
from tff_dp_aggregators.strategies.numerics import progress as progress_lib

# Where an optimisation stops, relative to the squared error.
_TOLERANCES = {'mean': 1e-7, 'max': 1e-4}


def optimize(
  num_rounds: int,
  *,
  num_bands: int,
  objective: str = 'mean',
  participation: Optional[participation_lib.Participation] = None,
  workload: workload_lib.WorkloadLike = None,
  cache: bool = True,
) -> banded.Banded:
  """The banded strategy with the least error of those with norms for each epoch.

  An epoch has `min_separation` rounds, so a client is in one round of each at most, and
  the squared sensitivity is the sum of the squared norms of the epochs that it can be
  in. If it cannot be in all, no norm is larger than that of the epoch before; otherwise
  they are free, and fall all the same for the mean error of prefix sums. Where the last
  epoch is a part of one that clients can be in once more, each epoch has a norm for as
  many rounds and another for its later ones, which are in fewer patterns
  (`numerics.column_norms`). Columns and norms are found together, by exact gradients
  (L-BFGS) from `banded.optimize`, in about as many steps as that takes. `certify` tells
  how far from the best it is.

  Args:
    num_rounds: Rounds n.
    num_bands: Bands b, at most `min_separation`; the server carries b - 1 model-sized
      buffers of noise.
    objective: 'mean' for the smallest `rmse`, 'max' for the smallest `max_error`.
    participation: Who may take part when; more than once, or there is nothing to scale.
    workload: Whose error it is; `None` means prefix sums.
    cache: Whether to look on disk first, and to keep the result there (see `cache`).

  Returns:
    A strategy whose `sensitivity_kind(participation)` is 'exact', and whose squared
    column norms are 1 in the mean over a client's rounds.

  Raises:
    TypeError: If a number is not whole.
    ValueError: If an argument is out of range, if clients may come back in less than
      `num_bands` rounds, or `participation` is for other rounds, or allows one
      participation only.

  Example:
    >>> participation = participation_lib.Participation(64, min_separation=16)
    >>> strategy = optimize(64, num_bands=16, participation=participation)
    >>> round(strategy.rmse(participation), 2)
    4.49
  """
  unscaled = banded.optimize(
    num_rounds,
    num_bands=num_bands,
    objective=objective,
    participation=participation,
    workload=workload,
    cache=cache,
  )
  participation = participation_lib.check(num_rounds, participation)
  strategy_lib.check_several(participation, 'banded')
  problem = epoch_problem.EpochProblem(
    participation, objective, workload_lib.check(num_rounds, workload)
  )
  return cache_lib.fetch(
    banded.Banded,
    'epoch_scaled.banded.optimize',
    2,
    {**problem.parameters(), 'num_bands': num_bands},
    lambda: min(
      banded.Banded(num_rounds, _descend(problem, unscaled.diagonals)[0]),
      unscaled,
      key=problem.error,
    ),
    cache,
  )


def certify(
  strategy: banded.Banded,
  objective: str = 'mean',
  participation: Optional[participation_lib.Participation] = None,
  workload: workload_lib.WorkloadLike = None,
) -> gram.Certificate:
  """Proves how far a strategy is from the best with as many bands, of any norms.

  The bound is `gram.lower_bound`, of all banded strategies with at most as many bands,
  whatever the norms of their columns. X = C^T C is zero beyond the bands, so if V is
  zero within them but for its diagonal v, tr(V X) is the sum of v[j] X[j, j]. As the
  sum of X[j, j] over one client's rounds is at most sens(C)^2, that is at most
  sens(C)^2 times the smallest number of which v is a mean of patterns, or less than
  that in some entries.

  That number is known. Patterns with differences of at least b are the 0/1 vectors with
  at most one 1 in b successive rounds, and at most k in all. The rows of these
  conditions are intervals, so their matrix is totally unimodular (Hoffman and Kruskal,
  "Integral boundary points of convex polyhedra", 1956), and vectors from 0 to 1 that
  satisfy them are means of patterns. So it is the largest sum of v over b successive
  rounds, or the k-th part of the whole sum, if that is larger. In fixed epochs each
  residue class has a share of its own: its largest entry, or the k-th part of its sum.

  V is taken from the strategy, as in `banded.certify`. A second one has rows and
  columns scaled so that rounds that are multiples of b apart have the same entry, which
  gives b successive rounds the same sum. The better of the two bounds counts.

  O(n^3) time and O(n^2) memory: for up to a few thousand rounds.

  Args:
    strategy: Any banded strategy; the bound says most about (nearly) optimal ones.
    objective: 'mean' or 'max', whichever it was optimised for.
    participation: Who may take part when; `None` means a single participation.
    workload: Whose error it is; `None` means prefix sums.

  Returns:
    The squared error of the strategy, sensitivity included, and a lower bound of that
    of all strategies with as many bands.

  Raises:
    ValueError: If an argument is out of range, or `participation` for other rounds.

  Example:
    >>> participation = participation_lib.Participation(32, min_separation=8)
    >>> strategy = optimize(32, num_bands=8, participation=participation)
    >>> certify(strategy, participation=participation).gap < 0.01
    True
  """
  checks.check_objective(objective)
  num_rounds = strategy.num_rounds
  participation = participation_lib.check(num_rounds, participation)
  problem = epoch_problem.EpochProblem(
    participation, objective, workload_lib.check(num_rounds, workload)
  )
  errors = strategy.per_query_error(problem.workload)
  diagonals, weights = strategy.diagonals, np.full(num_rounds, 1.0 / num_rounds)
  error = float(errors.mean())
  if objective == 'max':
    error = float(errors.max())
    diagonals, weights = _descend(problem, diagonals)
  multiplier = banded_problem.multiplier(diagonals, problem.workload, weights)
  return gram.Certificate(
    error=strategy.sensitivity_squared(participation) * error,
    lower_bound=max(
      gram.lower_bound(each, _budget(each, participation), problem.workload, weights)
      for each in (multiplier, _evened(multiplier, participation))
    ),
    scope=(
      f'strategies of {num_rounds} rounds with at most {strategy.num_bands} bands, for '
      f'{participation}'
    ),
  )


def _evened(
  multiplier: np.ndarray, participation: participation_lib.Participation
) -> np.ndarray:
  """The same with rows and columns scaled, to a diagonal that epochs have in common."""
  diagonal = np.diagonal(multiplier)
  offset = np.arange(len(diagonal)) % participation.min_separation
  mean = np.bincount(offset, diagonal) / np.bincount(offset)
  by_round = np.sqrt(mean[offset] / diagonal)
  return gram.shift_to_positive(multiplier * np.outer(by_round, by_round))


def _budget(
  multiplier: np.ndarray, participation: participation_lib.Participation
) -> float:
  """The smallest number of which the diagonal is at most a mean of patterns."""
  diagonal = np.diagonal(multiplier)
  times = participation.possible_participations
  width = min(participation.min_separation, len(diagonal))
  if not participation.fixed_epoch:
    successive = np.convolve(diagonal, np.ones(width), 'valid')
    return max(float(successive.max()), math.fsum(diagonal) / times)
  offset = np.arange(len(diagonal)) % width
  largest = np.zeros(width)
  np.maximum.at(largest, offset, diagonal)
  return math.fsum(np.maximum(largest, np.bincount(offset, diagonal) / times))


def _descend(
  problem: epoch_problem.EpochProblem, start: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
  """The best diagonals, and the weights of the errors that they minimise."""
  norms = column_norms.ColumnNorms(problem.participation)
  lengths = np.diff([*norms.starts, problem.num_rounds])
  errors_of_diagonals = banded_problem.errors_of_diagonals(problem.workload)

  def split(point: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    searched, columns = np.split(point, [len(norms.start)])
    return searched, columns.reshape(start.shape)

  def errors(point: np.ndarray) -> Optional[descent.Evaluated]:
    searched, columns = split(point)
    if np.any(columns[0] <= 0):
      return None
    units = banded_problem.unit_columns(columns)
    by_round = np.repeat(norms(searched), lengths)
    values, pull_back_scaled = errors_of_diagonals(units * by_round)

    def pull_back(weights: np.ndarray) -> np.ndarray:
      by_scaled = pull_back_scaled(weights)
      by_norm = np.add.reduceat((units * by_scaled).sum(axis=0), norms.starts)
      by_searched = norms.pull_back(searched, by_norm)
      by_columns = banded_problem.by_columns(columns, by_scaled * by_round)
      return np.append(by_searched, by_columns.ravel())

    return values, pull_back

  minimize = getattr(descent, f'minimize_{problem.objective}')
  with progress_lib.Progress(f'epochs of {banded.name(start)}') as progress:
    minimum = minimize(
      errors,
      np.append(norms.start, start.ravel()),
      _TOLERANCES[problem.objective],
      progress,
    )
  searched, columns = split(minimum.point)
  by_round = np.repeat(norms(searched), lengths)
  return banded_problem.unit_columns(columns) * by_round, minimum.weights
