"""General banded strategies: lower-triangular with b bands, all entries free.

`optimize` finds the best one with unit columns; `certify` bounds the gap to the best.
Errors are a few per cent below those of banded Toeplitz strategies with as many bands.

For a single participation, equal column norms are the best. For several participations,
early columns may be longer than late ones at the same sensitivity; then
`epoch_scaled.optimize` optimises columns together with a norm for each epoch.
"""

import dataclasses
import functools
import math
from typing import Any, Callable, Optional

import numpy as np
import scipy.linalg

from tff_dp_aggregators.base import checks
from tff_dp_aggregators.strategies import cache as cache_lib
from tff_dp_aggregators.strategies import participation as participation_lib
from tff_dp_aggregators.strategies import recursion as recursion_lib
from tff_dp_aggregators.strategies import registry
from tff_dp_aggregators.strategies import sensitivity as sensitivity_lib
from tff_dp_aggregators.strategies import strategy as strategy_lib
from tff_dp_aggregators.strategies import toeplitz
from tff_dp_aggregators.strategies import workload as workload_lib
from tff_dp_aggregators.strategies.numerics import bands
from tff_dp_aggregators.strategies.numerics import descent
from tff_dp_aggregators.strategies.numerics import gram
from tff_dp_aggregators.strategies.participation import Participation

# Tolerances of the optimisation, relative to the squared error.
_TOLERANCES = {'mean': 1e-7, 'max': 1e-4}
_SMALLEST_TOLERANCES = {'mean': 1e-13, 'max': 1e-7}


@dataclasses.dataclass(frozen=True, eq=False)
class Banded(strategy_lib.Strategy):
  """C[j + i, j] = diagonals[i, j] for 0 <= i < num_bands, else 0.

  Attributes:
    diagonals: Float64 array of shape [num_bands, n], the main diagonal of `C` first;
      row i, column j holds C[j + i, j], and 0 where there is no row j + i.

  Raises:
    TypeError: If `diagonals` is not an array of real numbers.
    ValueError: If it has the wrong shape, is not finite, not positive on the main
      diagonal, or not zero past the last row.
  """

  diagonals: np.ndarray
  kind = 'banded'

  def __post_init__(self) -> None:
    super().__post_init__()
    diagonals = bands.check_numbers('diagonals', self.diagonals)
    object.__setattr__(self, 'diagonals', diagonals)
    n = self.num_rounds
    if diagonals.ndim != 2 or diagonals.shape[1] != n or not 1 <= len(diagonals) <= n:
      raise ValueError(
        f'diagonals must be of shape [num_bands, {n}] for num_rounds={n}, with 1 to '
        f'{n} bands, got shape {diagonals.shape}.'
      )
    bands.refuse(~np.isfinite(diagonals), diagonals, 'diagonals must be finite')
    past_the_end = ~bands.mask(self.num_bands, n) & (diagonals != 0)
    bands.refuse(
      past_the_end, diagonals, f'diagonals must be zero past row {n - 1} of the matrix'
    )
    bands.refuse(
      diagonals[:1] <= 0, diagonals, 'diagonals must be positive on the main diagonal'
    )

  @classmethod
  def from_matrix(cls, matrix: Any, num_bands: Optional[int] = None) -> 'Banded':
    """Returns the strategy with this matrix.

    Raises ValueError unless the matrix is lower-triangular, positive on its diagonal
    and, if `num_bands` is given, zero beyond these bands.
    """
    if num_bands is not None:
      checks.check_positive_int('num_bands', num_bands)
    array = bands.check_matrix(matrix, num_bands=num_bands)
    if num_bands is None:
      rows, columns = np.nonzero(array)
      num_bands = int((rows - columns).max()) + 1
    return cls(len(array), bands.from_dense(array, min(num_bands, len(array))))

  @property
  def num_bands(self) -> int:
    """C[i, j] = 0 for i - j >= num_bands."""
    return len(self.diagonals)

  def recursion(self) -> recursion_lib.LastRounds:
    """Forward substitution with the noise of the last `num_bands - 1` rounds."""
    entries = np.zeros((self.num_rounds, self.num_bands))
    for lag, diagonal in enumerate(self.diagonals):
      entries[lag:, lag] = diagonal[: self.num_rounds - lag]
    return recursion_lib.LastRounds.solving(entries)

  def sensitivity_squared_by_round(
    self, participation: Optional[Participation] = None
  ) -> np.ndarray:
    """Exact for a single participation and for num_bands <= min_separation.

    Then columns of one client do not overlap (arXiv:2306.08153): this is the maximum
    over patterns of the sum of squared column norms, of which only the last can be
    incomplete in round t. O(n num_bands + n max_participations). Otherwise a bound.
    """
    participation = self._participation(participation)
    if _columns_overlap(self.num_bands, participation):
      return sensitivity_lib.squared_by_round(self.materialize(), participation)
    # Row i: squared norms of the first i + 1 entries of each column.
    partial_norms = np.cumsum(np.square(self.diagonals), axis=0)
    before = participation_lib.best_before(partial_norms[-1], participation)
    spent = np.zeros(self.num_rounds)
    for i, norms in enumerate(partial_norms):
      last = (norms + before)[: self.num_rounds - i]
      spent[i:] = np.maximum(spent[i:], last)
    return np.maximum.accumulate(spent)

  def squared_or_bound(self, participation: Participation) -> tuple[float, bool]:
    """Returns sens(C)^2 and True if exact as above, else a proven bound and False."""
    if _columns_overlap(self.num_bands, participation):
      return sensitivity_lib.squared(self.materialize(), participation)
    norms = np.square(self.diagonals).sum(axis=0)
    before = participation_lib.best_before(norms, participation)
    return float((norms + before).max()), True

  def noise_row_norms(self) -> np.ndarray:
    """Takes O(n num_bands^2) time, without an n x n matrix."""
    return np.sqrt(bands.inverse_row_norms(self.diagonals))

  def per_query_error(self, workload: workload_lib.WorkloadLike = None) -> np.ndarray:
    """Takes O(n num_bands^2) time, without an n x n matrix.

    For a workload given as an array, or with learning rates of 0, it takes O(n^3).
    """
    workload = workload_lib.check(self.num_rounds, workload)
    inverse_workload = inverse_diagonals(workload)
    if inverse_workload is None:
      return workload_lib.errors(self.materialize(), workload)
    return bands.inverse_row_norms(bands.multiply(self.diagonals, inverse_workload))

  def materialize(self) -> np.ndarray:
    """`C` as a dense array."""
    return bands.to_dense(self.diagonals)


def optimize(
  num_rounds: int,
  *,
  num_bands: int,
  max_gap: Optional[float] = None,
  objective: str = 'mean',
  participation: Optional[Participation] = None,
  workload: workload_lib.WorkloadLike = None,
  cache: bool = True,
) -> Banded:
  """Returns the banded strategy with unit columns that has the least error.

  With unit columns and participations at least `num_bands` rounds apart, the squared
  sensitivity is the number of participations (arXiv:2306.08153), so the same strategy
  is best for all such schemas. Errors are convex functions of X = C^T C, so the result
  is the global minimum over unit columns: for prefix sums, the mean squared error to
  about 1e-6 and the maximum to 1e-3; `certify` bounds the gap.

  A step takes O(n num_bands^2) time and O(n num_bands) memory; there are up to some
  hundred steps for the mean and a thousand for the maximum error. A workload given as
  an array, or with learning rates of 0, takes O(n^3) time and O(n^2) memory.

  Args:
    num_rounds: Rounds n.
    num_bands: Bands b; the server carries b - 1 model-sized buffers of noise.
    max_gap: If given, the largest gap that a certificate (`certify`) may leave; takes
      O(n^3) time and O(n^2) memory more.
    objective: 'mean' minimises `rmse`, 'max' minimises `max_error`.
    participation: Who may take part when, at least `num_bands` rounds apart, or once.
    workload: The queries whose error is minimised; `None` means prefix sums.
    cache: Whether to read and write the result on disk (see `cache`).

  Raises:
    TypeError: If a number is not an integer.
    ValueError: If an argument is out of range or for other rounds, if clients may come
      back in less than `num_bands` rounds, or if `max_gap` cannot be reached.

  Example:
    >>> strategy = optimize(32, num_bands=4, cache=False)
    >>> round(strategy.sensitivity(), 12), round(strategy.rmse(), 4)
    (1.0, 2.434)
  """
  strategy_lib.check_bands(num_rounds, num_bands)
  strategy_lib.check_numbers(num_rounds, num_bands)
  check_separation(num_bands, participation_lib.check(num_rounds, participation))
  # The same columns are best for all such participations.
  problem = strategy_lib.Problem.check(num_rounds, objective, None, workload)
  if max_gap is not None and not max_gap > 0:
    raise ValueError(f'max_gap must be positive, such as 1e-3, got {max_gap}.')
  return cache_lib.fetch(
    Banded,
    'banded.optimize',
    1,
    problem.parameters(num_bands=num_bands, max_gap=max_gap),
    lambda: _optimize(problem, num_bands, max_gap),
    cache,
  )


def certify(
  strategy: Banded,
  objective: str = 'mean',
  workload: workload_lib.WorkloadLike = None,
) -> gram.Certificate:
  """Proves how far a strategy is from the best one with as many bands.

  For a single participation, that is the best of all strategies with as many bands. For
  several, at least `num_bands` apart, it is the best of those with columns of equal
  norm; columns of different norms can be better and are not covered by the bound.

  The bound is `gram.lower_bound`: a banded X with diagonal entries of at most 1 has
  tr(V X) <= tr(V) if V is zero within the bands off its diagonal, as X is zero beyond
  them. V is computed from the strategy (`multiplier`): the further from the optimum,
  the looser the bound. For the maximum error, the optimisation is continued to find the
  weights. Takes O(n^3) time and O(n^2) memory: for up to a few thousand rounds.

  Args:
    strategy: Any banded strategy; the bound is tightest for (nearly) optimal ones.
    objective: 'mean' or 'max', the one that the strategy was optimised for.
    workload: The queries whose error is bounded; `None` means prefix sums.

  Example:
    >>> certify(optimize(32, num_bands=4, cache=False)).gap < 1e-5
    True
  """
  problem = strategy_lib.Problem.check(strategy.num_rounds, objective, None, workload)
  if objective == 'mean':
    weights = np.full(strategy.num_rounds, 1.0 / strategy.num_rounds)
    diagonals = strategy.diagonals
  else:
    progress = descent.Progress(f'weights of {name(strategy.diagonals)}')
    minimum = _descend(strategy.diagonals, problem, _TOLERANCES['max'], progress)
    diagonals, weights = unit_columns(minimum.point), minimum.weights
  return gram.Certificate(
    error=problem.error(strategy) ** 2,
    lower_bound=_lower_bound(diagonals, problem, weights),
    scope=(
      f'strategies of {strategy.num_rounds} rounds with at most {strategy.num_bands} '
      'bands, for a single participation; for several at least '
      f'{strategy.num_bands} rounds apart, those with columns of equal norm only'
    ),
  )


def _optimize(
  problem: strategy_lib.Problem, num_bands: int, max_gap: Optional[float]
) -> Banded:
  num_rounds, objective = problem.num_rounds, problem.objective
  start = toeplitz.BandedToeplitz.square_root(num_rounds, num_bands).materialize()
  point = unit_columns(bands.from_dense(start, num_bands))
  tolerance, weights = _TOLERANCES[objective], None
  progress = descent.Progress(name(point))
  while True:
    minimum = _descend(point, problem, tolerance, progress, weights)
    point = unit_columns(minimum.point)
    strategy = Banded(num_rounds, point)
    if max_gap is None:
      return strategy
    weights = minimum.weights
    bound = _lower_bound(point, problem, weights)
    gap = strategy.squared_error(objective, problem.workload) / bound - 1.0
    if gap <= max_gap:
      return strategy
    tolerance *= 0.1
    if tolerance < _SMALLEST_TOLERANCES[objective]:
      raise ValueError(
        f'max_gap={max_gap} cannot be reached: the certified gap stays at {gap:.2g}; '
        'allow a larger one.'
      )


def _descend(
  start: np.ndarray,
  problem: strategy_lib.Problem,
  tolerance: float,
  progress: descent.Progress,
  weights: Optional[np.ndarray] = None,
) -> descent.Minimum:
  """Minimises over the diagonals; columns are normalised, so any norm is allowed."""
  errors_of_units = errors_of_diagonals(problem.workload)

  def errors(columns: np.ndarray) -> Optional[descent.Evaluated]:
    if np.any(columns[0] <= 0):
      return None
    values, pull_back_units = errors_of_units(unit_columns(columns))
    return values, lambda weights: by_columns(columns, pull_back_units(weights))

  minimize = getattr(descent, f'minimize_{problem.objective}')
  minimum: descent.Minimum = minimize(errors, start, tolerance, progress, weights)
  return minimum


def _lower_bound(
  diagonals: np.ndarray, problem: strategy_lib.Problem, weights: np.ndarray
) -> float:
  """A lower bound of the minimum error, by duality (see `certify`)."""
  dual = multiplier(diagonals, problem.workload, weights)
  budget = math.fsum(np.diagonal(dual))
  return gram.lower_bound(dual, budget, problem.workload, weights)


def unit_columns(diagonals: np.ndarray) -> np.ndarray:
  """Normalises the columns of a matrix given by its diagonals."""
  return diagonals / np.linalg.norm(diagonals, axis=0)


def by_columns(columns: np.ndarray, by_units: np.ndarray) -> np.ndarray:
  """The gradient with respect to columns, from that with respect to unit columns."""
  norms = np.linalg.norm(columns, axis=0)
  units = columns / norms
  return (by_units - units * (units * by_units).sum(axis=0)) / norms


def errors_of_diagonals(
  workload: workload_lib.Checked,
) -> Callable[[np.ndarray], descent.Evaluated]:
  """Returns the errors of a banded strategy as a function of its diagonals.

  They are squared row norms of (C A^-1)^-1 if A^-1 is banded. Otherwise B = A C^-1 is
  computed, with dB = -B dC C^-1.
  """
  inverse_workload = inverse_diagonals(workload)
  if inverse_workload is None:
    return functools.partial(_dense_errors, workload)
  return functools.partial(_structured_errors, inverse_workload)


def _structured_errors(
  inverse_workload: np.ndarray, diagonals: np.ndarray
) -> descent.Evaluated:
  norms = bands.InverseRowNorms(bands.multiply(diagonals, inverse_workload))

  def pull_back(weights: np.ndarray) -> np.ndarray:
    by_product = norms.pull_back(weights)
    return bands.multiply_pull_back(by_product, inverse_workload)

  return norms.values, pull_back


def _dense_errors(
  workload: workload_lib.Checked, diagonals: np.ndarray
) -> descent.Evaluated:
  matrix = bands.to_dense(diagonals)
  estimator = workload_lib.estimator(matrix, workload)

  def pull_back(weights: np.ndarray) -> np.ndarray:
    middle = estimator.T @ (weights[:, np.newaxis] * estimator)
    by_matrix = scipy.linalg.solve_triangular(matrix, -2.0 * middle, lower=True)
    return bands.from_dense(by_matrix.T, len(diagonals))

  return np.square(estimator).sum(axis=1), pull_back


def inverse_diagonals(workload: workload_lib.Checked) -> Optional[np.ndarray]:
  """The diagonals of the workload's inverse; `None` unless known to be banded."""
  if not isinstance(workload, workload_lib.Workload) or (
    workload.learning_rates is not None and min(workload.learning_rates) == 0
  ):
    return None
  return workload.inverse_diagonals()


def multiplier(
  diagonals: np.ndarray, workload: workload_lib.Checked, weights: np.ndarray
) -> np.ndarray:
  """A positive definite V that is zero within the bands, except on its diagonal.

  It is `gram.multiplier` with zeros there, plus a multiple of the identity if needed.
  """
  dual = gram.multiplier(bands.to_dense(diagonals), workload, weights)
  for i in range(1, len(diagonals)):
    for triangle in (dual[i:], dual.T[i:]):
      np.einsum('jj->j', triangle[:, : triangle.shape[0]])[:] = 0.0
  return gram.shift_to_positive(dual)


def _columns_overlap(num_bands: int, participation: Participation) -> bool:
  can_return = participation.possible_participations > 1
  return can_return and num_bands > participation.min_separation


def check_separation(num_bands: int, participation: Participation) -> None:
  """Raises ValueError if two columns of one client would overlap."""
  if _columns_overlap(num_bands, participation):
    raise ValueError(
      f'num_bands={num_bands} is more than min_separation='
      f'{participation.min_separation}: columns of one client would overlap. Use at '
      f'most {participation.min_separation} bands.'
    )


def name(diagonals: np.ndarray) -> str:
  """The name of an optimisation in its progress bar and log."""
  return f'banded {diagonals.shape[1]} x {diagonals.shape[0]}'


def _seconds(limits: registry.Limits, num_bands: Optional[int] = None) -> float:
  """Estimated time: up to about 150 steps for the mean error."""
  if num_bands is None:
    num_bands = participation_lib.free_bands(limits)
  step = 6e-6 + 0.11e-6 * num_bands + 0.0007e-6 * num_bands**2
  return 150 * step * limits.num_rounds


registry.register(
  registry.Kind(
    'banded',
    Banded,
    registry.optimizing(optimize, num_bands=participation_lib.free_bands),
    adapts=True,
    words='noise correlated over rounds by a banded matrix',
    citations=('arXiv:2306.08153',),
    options=(toeplitz.BANDS,),
    # With so few bands, columns of one client do not overlap, and all have norm 1.
    is_free=lambda limits, num_bands=None: (
      num_bands is None or num_bands <= participation_lib.free_bands(limits)
    ),
    seconds=_seconds,
    quicker_with='fewer bands',
    variants=toeplitz.free_bands_unless_given,
    why_skip=toeplitz.why_skip_bands,
    bands='num_bands',
  )
)
