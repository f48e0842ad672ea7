"""Toeplitz strategies: lower-triangular, constant along diagonals.

`LowerToeplitz` is their base class, `ScaledToeplitz` that of strategies whose matrix is
a Toeplitz matrix with scaled columns.
"""

import abc
import dataclasses
from typing import Any, Optional

import numpy as np
import scipy.linalg

from tff_dp_aggregators.base import checks
from tff_dp_aggregators.strategies import cache as cache_lib
from tff_dp_aggregators.strategies import participation as participation_lib
from tff_dp_aggregators.strategies import recursion as recursion_lib
from tff_dp_aggregators.strategies import registry
from tff_dp_aggregators.strategies import sensitivity as sensitivity_lib
from tff_dp_aggregators.strategies import strategy as strategy_lib
from tff_dp_aggregators.strategies import workload as workload_lib
from tff_dp_aggregators.strategies.numerics import descent
from tff_dp_aggregators.strategies.numerics import power_series
from tff_dp_aggregators.strategies.numerics import series_problem
from tff_dp_aggregators.strategies.numerics import toeplitz_sensitivity
from tff_dp_aggregators.strategies.participation import Participation


def square_root_coefficients(num_coefficients: int) -> np.ndarray:
  """First column of the square root of the infinite prefix-sum matrix, float64.

  The coefficients of (1 - x)^(-1/2): 1, 1/2, 3/8, ..., each `(2 i - 1) / (2 i)` times
  the one before (arXiv:2202.11205; Toeplitz form in arXiv:2306.08153).

  Example:
    >>> square_root_coefficients(4).tolist()
    [1.0, 0.5, 0.375, 0.3125]
  """
  i = np.arange(1, checks.check_positive_int('num_coefficients', num_coefficients))
  return np.concatenate([[1.0], np.cumprod((2 * i - 1) / (2 * i))])


def check_coefficients(num_rounds: int, coefficients: Any) -> tuple[float, ...]:
  """Returns the coefficients of a strategy for `num_rounds` rounds, as floats."""
  checked = workload_lib.real_numbers('coefficients', coefficients)
  if not 1 <= len(checked) <= num_rounds:
    raise ValueError(
      f'coefficients must be 1 to num_rounds={num_rounds} numbers, got {len(checked)}.'
    )
  if checked[0] <= 0:
    raise ValueError(f'coefficients[0] must be positive, got {checked[0]}.')
  return checked


@dataclasses.dataclass(frozen=True, eq=False)
class _Toeplitz(strategy_lib.Strategy):
  """C[i, j] = T[i, j] * (scale of j), T lower-triangular and Toeplitz.

  For several participations, the sensitivity is exact in these cases, among others
  (`toeplitz_sensitivity` has proofs, further cases, and bounds).

  * num_bands <= min_separation: the columns of one client do not overlap
    (arXiv:2306.08153).
  * The coefficients of `T` are non-negative and do not increase from index
    min_separation on, and scales do not increase: the earliest, densest pattern 0, b,
    2b, ... is the worst (arXiv:2405.13763), in whichever rounds scales decrease.
  * Any scales, if for every two rounds of that pattern, their columns have the largest
    inner product of all pairs that are at least as far apart and not earlier.
  """

  needs_no_matrix = True

  @abc.abstractmethod
  def _column_and_scales(self) -> tuple[np.ndarray, Optional[np.ndarray]]:
    """First column of `T`, and the scales of the rounds or `None`; both [n]."""

  def sensitivity_squared_by_round(
    self, participation: Optional[Participation] = None
  ) -> np.ndarray:
    """The last entry is exact if `sensitivity_kind` is 'exact'; others are bounds."""
    column, scales = self._column_and_scales()
    participation = self._participation(participation)
    bounds = toeplitz_sensitivity.squared_by_round(column, participation, scales)
    whole, _ = self.squared_or_bound(participation)
    return np.append(np.minimum(bounds, whole)[:-1], whole)

  def squared_or_bound(self, participation: Participation) -> tuple[float, bool]:
    """Returns sens(C)^2 or an upper bound, and whether it is exact."""
    column, scales = self._column_and_scales()
    return sensitivity_lib.squared_of_toeplitz(column, participation, scales)


@dataclasses.dataclass(frozen=True, eq=False)
class LowerToeplitz(_Toeplitz):
  """C[i, j] = c[i - j] for i >= j, else 0: all columns are shifts of the first."""

  @abc.abstractmethod
  def matrix_coefficients(self) -> np.ndarray:
    """First column of `C`, float64 of shape [n]."""

  @abc.abstractmethod
  def inverse_coefficients(self) -> np.ndarray:
    """First column of `C^-1`, float64 of shape [n]."""

  def _column_and_scales(self) -> tuple[np.ndarray, Optional[np.ndarray]]:
    return self.matrix_coefficients(), None

  @property
  def num_bands(self) -> int:
    """C[i, j] = 0 for i - j >= num_bands."""
    return self.num_rounds

  def noise_row_norms(self) -> np.ndarray:
    """Takes O(n): each row of `C^-1` extends the row before by one entry."""
    return np.sqrt(np.cumsum(np.square(self.inverse_coefficients())))

  def noise_correlation(self, num_lags: int) -> np.ndarray:
    """Takes O(n) for each lag."""
    lags = min(checks.check_positive_int('num_lags', num_lags), self.num_rounds)
    column = self.inverse_coefficients()
    norms = self.noise_row_norms()[::-1][:lags]  # Norms of rows n - 1 - lag.
    products = [column[lag:] @ column[: len(column) - lag] for lag in range(lags)]
    return np.array(products) / (norms * norms[0])

  def per_query_error(self, workload: workload_lib.WorkloadLike = None) -> np.ndarray:
    """Needs no matrix, unless the workload is an array.

    If the workload is Toeplitz, so is the estimator, and each of its rows extends the
    row before. Otherwise this takes O(n^2) operations.
    """
    workload = workload_lib.check(self.num_rounds, workload)
    if not isinstance(workload, workload_lib.Workload):
      return super().per_query_error(workload)
    if workload.is_toeplitz:
      return np.cumsum(np.square(self._estimator_coefficients(workload)))
    steady = dataclasses.replace(workload, learning_rates=None, weight_decay=0.0)
    # Row t of the estimator, reversed from column t on, is the decayed row t - 1 plus
    # the learning rate times the noise in the momentum of round t.
    velocity = np.diff(self._estimator_coefficients(steady), prepend=0.0)
    row = np.zeros(self.num_rounds)
    error = np.zeros(self.num_rounds)
    for t, rate in enumerate(workload.learning_rates or ()):
      row *= 1.0 - workload.weight_decay
      row[: t + 1] += rate * velocity[t::-1]
      error[t] = row[: t + 1] @ row[: t + 1]
    return error

  def materialize(self) -> np.ndarray:
    """`C` as a dense array."""
    return _lower_toeplitz(self.matrix_coefficients())

  def materialize_estimator(self) -> np.ndarray:
    """`A C^-1`, dense, for prefix sums A; also Toeplitz."""
    return _lower_toeplitz(np.cumsum(self.inverse_coefficients()))

  def _estimator_coefficients(self, workload: workload_lib.Workload) -> np.ndarray:
    """First column of `A C^-1` for a Toeplitz workload."""
    return workload.apply(self.inverse_coefficients()[:, np.newaxis])[:, 0]


@dataclasses.dataclass(frozen=True, eq=False)
class ScaledToeplitz(_Toeplitz):
  """C = T diag(scales), T Toeplitz; its noise is that of `T` over a round's scale."""

  @property
  @abc.abstractmethod
  def unscaled(self) -> LowerToeplitz:
    """The strategy with the matrix `T`."""

  @property
  @abc.abstractmethod
  def _scales(self) -> np.ndarray:
    """The scale of each round's column, positive, float64 of shape [n]."""

  @property
  def num_bands(self) -> int:
    """C[i, j] = 0 for i - j >= num_bands."""
    return self.unscaled.num_bands

  def _column_and_scales(self) -> tuple[np.ndarray, Optional[np.ndarray]]:
    return self.unscaled.matrix_coefficients(), self._scales

  def noise_row_norms(self) -> np.ndarray:
    """Takes O(n)."""
    return self.unscaled.noise_row_norms() / self._scales

  def noise_correlation(self, num_lags: int) -> np.ndarray:
    """The same as that of the unscaled strategy: scales do not change correlations."""
    return self.unscaled.noise_correlation(num_lags)

  def materialize(self) -> np.ndarray:
    """`C` as a dense array."""
    return self.unscaled.materialize() * self._scales

  def materialize_estimator(self) -> np.ndarray:
    """`A C^-1`, dense, for prefix sums A."""
    noise = np.diff(self.unscaled.materialize_estimator(), axis=0, prepend=0.0)
    return np.cumsum(noise / self._scales[:, np.newaxis], axis=0)


@dataclasses.dataclass(frozen=True)
class BandedToeplitz(LowerToeplitz):
  """C[i, j] = coefficients[i - j] for 0 <= i - j < num_bands, else 0.

  Attributes:
    coefficients: First column of `C` down to its last non-zero entry, `num_bands`
      finite numbers, at most n, the first of them positive.
  """

  coefficients: tuple[float, ...]
  kind = 'banded_toeplitz'

  def __post_init__(self) -> None:
    super().__post_init__()
    coefficients = check_coefficients(self.num_rounds, self.coefficients)
    object.__setattr__(self, 'coefficients', coefficients)

  @classmethod
  def square_root(cls, num_rounds: int, num_bands: int) -> 'BandedToeplitz':
    """The first `num_bands` square-root coefficients, scaled so column 0 has norm 1."""
    strategy_lib.check_bands(num_rounds, num_bands)
    coefficients = square_root_coefficients(num_bands)
    return cls(num_rounds, tuple(coefficients / np.linalg.norm(coefficients)))

  @property
  def num_bands(self) -> int:
    """C[i, j] = 0 for i - j >= num_bands."""
    return len(self.coefficients)

  def recursion(self) -> recursion_lib.LastRounds:
    """Forward substitution with the noise of the last `num_bands - 1` rounds."""
    return recursion_lib.LastRounds.solving(np.array([self.coefficients]))

  def matrix_coefficients(self) -> np.ndarray:
    """First column of `C`, float64 of shape [n]."""
    return power_series.resized(np.array(self.coefficients), self.num_rounds)

  def inverse_coefficients(self) -> np.ndarray:
    """First column of `C^-1`; takes O(n log n) unless its coefficients grow."""
    return power_series.inverse(np.array(self.coefficients), self.num_rounds)


@dataclasses.dataclass(frozen=True)
class Identity(BandedToeplitz):
  """C = I: independent noise in every round, the Gaussian sum of DP-FedAvg."""

  coefficients: tuple[float, ...] = (1.0,)
  kind = 'identity'

  def __post_init__(self) -> None:
    super().__post_init__()
    if self.coefficients != (1.0,):
      raise ValueError(
        f'the coefficients of Identity are (1.0,), got {self.coefficients}; use '
        'BandedToeplitz.'
      )

  def squared_or_bound(self, participation: Participation) -> tuple[float, bool]:
    """Exact, without a computation over rounds."""
    return float(participation.possible_participations), True


def optimize(
  num_rounds: int,
  *,
  num_bands: Optional[int],
  objective: str = 'mean',
  participation: Optional[Participation] = None,
  workload: workload_lib.WorkloadLike = None,
  cache: bool = True,
) -> BandedToeplitz:
  """Returns the banded Toeplitz strategy with the least error; column 0 has norm 1.

  Minimises `rmse` or `max_error` (arXiv:2405.15913) by L-BFGS. The problem is not
  convex; the search starts from the square root of the prefix sums and returns a local
  minimum. For a single participation, random starts all led to the same one.

  If columns of one client overlap, the coefficients are constrained to be non-negative,
  and non-increasing from index `min_separation` on, so that the sensitivity is exact.
  If the best of those are zero from there on, or if fewer bands without constraints are
  better, the strategy has `min_separation` bands.

  Arguments are those of `banded.optimize`, with any `participation`, and:

  * `num_bands`: Maximum bands of C, up to 4096; `None` for as many of those as help.
  * `workload`: The queries whose error is minimised; `None` means prefix sums. An array
    or a workload whose learning rate changes may have at most 4096 rounds.

  Example:
    >>> strategy = optimize(num_rounds=128, num_bands=16, cache=False)
    >>> round(strategy.rmse(), 4)
    2.8726
  """
  if num_bands is None:
    num_bands = min(num_rounds, participation_lib.MAX_BANDS)
  problem = series_problem.check(
    num_rounds, num_bands, objective, participation, workload
  )
  return cache_lib.fetch(
    BandedToeplitz,
    'toeplitz.optimize',
    2,
    problem.parameters(num_bands=num_bands),
    lambda: _optimize(problem, num_bands),
    cache,
  )


def _optimize(problem: series_problem.SeriesProblem, num_bands: int) -> BandedToeplitz:
  n, free = problem.num_rounds, min(num_bands, problem.separation)
  start = square_root_coefficients(num_bands)

  def column_of(point: np.ndarray) -> np.ndarray:
    """From index `free` on, the variables are the decreases of the coefficients."""
    steps = point[free:]
    return np.append(point[:free], np.cumsum(steps[::-1])[::-1])

  def family(point: np.ndarray) -> Optional[series_problem.Series]:
    if point[0] <= 0:
      return None
    series = series_problem.series_from_column(column_of(point), n)

    def pull_back(by_column: np.ndarray, by_noise: np.ndarray) -> np.ndarray:
      by_point = series.pull_back(by_column, by_noise)
      by_point[free:] = np.cumsum(by_point[free:])
      return by_point

    return series._replace(pull_back=pull_back)

  def with_unit_columns(point: np.ndarray) -> BandedToeplitz:
    column = column_of(point)
    return BandedToeplitz(n, tuple(column / np.linalg.norm(column)))

  report = descent.Progress(f'banded Toeplitz, {n} rounds, {num_bands} bands')
  optimum = problem.minimize(family, start[:free], report)
  fewer = with_unit_columns(optimum.parameters)
  if num_bands == free:
    return fewer
  # Further non-increasing coefficients are sums of non-negative decreases: they do not
  # help if no single decrease lowers the error.
  padded = np.append(fewer.coefficients, np.zeros(num_bands - free))
  evaluated = problem.errors(family)(padded)
  assert evaluated is not None  # `fewer` is in the domain.
  slopes = evaluated[1](optimum.weights)[free:]
  if np.all(slopes > 0) and np.all(padded >= 0):
    return fewer
  start[free:] = -np.diff(start[free:], append=0.0)
  optimum = problem.minimize(family, start, report, descent.bounded(0.0))
  # Unlike more bands, fewer bands may have negative coefficients, and be better.
  return min(fewer, with_unit_columns(optimum.parameters), key=problem.error)


def _lower_toeplitz(column: np.ndarray) -> np.ndarray:
  return scipy.linalg.toeplitz(column, np.zeros_like(column))


def _seconds(limits: registry.Limits, num_bands: Optional[int] = None) -> float:
  """Estimated time; with overlapping columns, constraints take 100 to 200 steps."""
  if num_bands is None or num_bands <= participation_lib.free_bands(limits):
    return 2e-5 * limits.num_rounds
  return 0.4 + 3e-6 * (100 + 0.08 * num_bands) * limits.num_rounds


def free_bands_unless_given(
  limits: registry.Limits, given: registry.Options
) -> list[registry.Options]:
  """One row of a comparison, with `free_bands` unless bands are given."""
  return [{'num_bands': participation_lib.free_bands(limits), **given}]


def _free_bands_and_more(
  limits: registry.Limits, given: registry.Options
) -> list[registry.Options]:
  """One row with `free_bands`, and one with more bands if these may help."""
  free = free_bands_unless_given(limits, given)
  more = None if given else registry.more_bands(limits)
  return free if more is None else [*free, {'num_bands': more}]


def why_skip_bands(limits: registry.Limits, given: registry.Options) -> Optional[str]:
  """Why a comparison leaves a banded strategy out, or `None`."""
  if given.get('num_bands', participation_lib.free_bands(limits)) > 1:
    return None
  return 'with one band, the most that costs nothing, it is the gaussian mechanism.'


BANDS = registry.Option(
  'num_bands',
  help='bands of the matrix, by default as many as cost no sensitivity, the '
  'separation; a plan has toeplitz with more as well where participations fit into '
  '60% of the rounds',
  read=lambda strategy: strategy.num_bands,
  words=('1 band', '{} bands'),
  title='bands of C',
  meaning='diagonals that are not 0',
  is_within_rounds=True,
)
registry.register(
  registry.Kind(
    'gaussian',
    Identity,
    lambda limits: Identity(limits.num_rounds),
    words='independent Gaussian noise in each round, as in DP-FedAvg',
    citations=('arXiv:1710.06963',),
    is_independent=True,
  )
)
registry.register(
  registry.Kind(
    'toeplitz',
    BandedToeplitz,
    registry.optimizing(optimize, num_bands=participation_lib.free_bands),
    adapts=True,
    words='noise correlated over rounds by a banded Toeplitz matrix',
    citations=('arXiv:2405.15913',),
    options=(BANDS,),
    seconds=_seconds,
    quicker_with='fewer bands',
    variants=_free_bands_and_more,
    why_skip=why_skip_bands,
    bands='num_bands',
  )
)
