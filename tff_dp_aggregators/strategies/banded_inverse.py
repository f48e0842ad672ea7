"""Strategies whose inverse is banded Toeplitz: correlated noise without buffers.

Row t of `C^-1 z` needs z of only the last `num_bands` rounds, which can be drawn again
from the seed, so a server stores no noise from round to round. `C` itself is full.

Closed forms are truncated roots of a workload's inverse, A^-exponent:
`BandedInverse.square_root` is BISR (arXiv:2505.12128), `BandedInverse.root` has other
exponents (arXiv:2605.18379; one-step correlations with two bands), and `best_root`
finds the best exponent. `optimize` finds the best bands (BandInvMF, arXiv:2505.12128).
`python -m benchmarks.banded_inverse` prints errors. For 2000 rounds, 400 apart, 5
times, the RMSE with 2 and with 16 bands is 40.90 and 15.41 for BISR, 12.67 and 10.39
for the best root, 12.67 and 8.55 for the best bands.

`UnitBandedInverse` scales columns to norm 1. Its error is 0.2 to 1.1% lower in the
benchmark's cases, and 2 to 3% higher for 64 rounds, 20 apart, 4 times.
"""

import dataclasses
import functools
import math
from typing import Optional, Union

import numpy as np

from tff_dp_aggregators.base import checks
from tff_dp_aggregators.strategies import cache as cache_lib
from tff_dp_aggregators.strategies import recursion as recursion_lib
from tff_dp_aggregators.strategies import registry
from tff_dp_aggregators.strategies import strategy as strategy_lib
from tff_dp_aggregators.strategies import toeplitz
from tff_dp_aggregators.strategies import workload as workload_lib
from tff_dp_aggregators.strategies.numerics import descent
from tff_dp_aggregators.strategies.numerics import power_series
from tff_dp_aggregators.strategies.numerics import series_optimization
from tff_dp_aggregators.strategies.numerics import series_problem
from tff_dp_aggregators.strategies.numerics import toeplitz_sensitivity
from tff_dp_aggregators.strategies.participation import Participation

_NUM_EXPONENTS = 11  # The size of the grid with which `best_root` begins.


def inverse_root_coefficients(
  num_coefficients: int,
  exponent: float = 0.5,
  workload: Optional[workload_lib.Workload] = None,
) -> np.ndarray:
  """First column of A^-exponent, for a workload A of infinitely many rounds, float64.

  For prefix sums, the coefficients of (1 - x)^exponent (arXiv:2505.12128, section 3).
  For a Toeplitz workload with momentum and weight decay, those of ((1 - momentum x)
  (1 - (1 - weight_decay) x))^exponent; a constant learning rate is ignored.

  Example:
    >>> inverse_root_coefficients(4).tolist()
    [1.0, -0.5, -0.125, -0.0625]
  """
  checks.check_positive_int('num_coefficients', num_coefficients)
  if not 0 <= checks.check_number('exponent', exponent) <= 1:
    raise ValueError(f'exponent must be from 0 to 1, got {exponent}.')
  decays = [1.0]
  if workload is not None:
    if not isinstance(workload, workload_lib.Workload) or not workload.is_toeplitz:
      raise ValueError(
        'a root needs a strategies.Workload with a constant learning rate, got '
        f'{workload!r}; use banded_inverse.optimize for others.'
      )
    decays = [1.0 - workload.weight_decay, workload.momentum]
  i = np.arange(1, num_coefficients)
  binomial = np.append(1.0, np.cumprod((i - 1 - exponent) / i))
  column = np.eye(1, num_coefficients)[0]
  for decay in decays:
    factor = binomial * decay ** np.arange(num_coefficients)
    column = np.convolve(column, factor)[:num_coefficients]
  return column


@dataclasses.dataclass(frozen=True, eq=False)
class BandedInverse(toeplitz.LowerToeplitz):
  """C^-1[i, j] = coefficients[i - j] for 0 <= i - j < num_inverse_bands, else 0.

  **Sensitivity.** Let c be the first column of C, d that of C^-1 with p bands, d[0] = 1
  and m[j] = -d[j]. If all m are non-negative, so is c, because

      c[t] = m[1] c[t - 1] + ... + m[p - 1] c[t - p + 1],    c[0] = 1.

  The decreases c[t] - c[t + 1] follow the same recursion from t = p - 1 on. So if p - 1
  successive ones, the last of them at or after p - 2, are not negative, no later one
  is: c does not increase from there on, and if that is from min_separation on, the
  sensitivity is exact. For `square_root`, c[t] for t < p are the coefficients of
  (1 - x)^(-1/2), which decrease, so all of c decreases, for every n.

  Attributes:
    coefficients: First column of `C^-1` down to its last band; the first coefficient is
      positive. ValueError if coefficients of the inverse exceed float64.

  Example:
    >>> strategy = BandedInverse(4, (1.0, -0.5))
    >>> strategy.materialize()[:, 0].tolist(), strategy.noise_buffers
    ([1.0, 0.5, 0.25, 0.125], 0)
  """

  coefficients: tuple[float, ...]
  kind = 'banded_inverse'

  def __post_init__(self) -> None:
    super().__post_init__()
    coefficients = toeplitz.check_coefficients(self.num_rounds, self.coefficients)
    object.__setattr__(self, 'coefficients', coefficients)
    with np.errstate(over='ignore', invalid='ignore'):
      squared_norm = np.square(self.matrix_coefficients()).sum()
    if not np.isfinite(squared_norm):
      raise ValueError(
        'coefficients have an inverse whose norm exceeds float64 within '
        f'{self.num_rounds} rounds; the sum of their absolute values after the first '
        'must not be much larger than the first.'
      )

  @classmethod
  def square_root(
    cls,
    num_rounds: int,
    num_bands: int,
    workload: Optional[workload_lib.Workload] = None,
  ) -> 'BandedInverse':
    """BISR, the truncated inverse square root of a workload: `root` of exponent 0.5."""
    return cls.root(num_rounds, num_bands, workload=workload)

  @classmethod
  def root(
    cls,
    num_rounds: int,
    num_bands: int,
    *,
    exponent: float = 0.5,
    workload: Optional[workload_lib.Workload] = None,
  ) -> 'BandedInverse':
    """The first `num_bands` bands of A^-exponent, scaled so column 0 has norm 1.

    Later columns are shorter. The exponent is from 0, independent noise, to 1; A is
    Toeplitz, by default prefix sums. With two bands, each round subtracts `exponent`
    times the independent noise of the round before.

    Example:
      >>> strategy = BandedInverse.root(num_rounds=128, num_bands=2, exponent=0.9)
      >>> (np.array(strategy.coefficients) / strategy.coefficients[0]).tolist()
      [1.0, -0.9]
    """
    bands = _root_bands(num_rounds, num_bands, exponent, workload)
    return with_unit_columns(num_rounds, bands)

  @property
  def num_inverse_bands(self) -> int:
    """C^-1[i, j] = 0 for i - j >= num_inverse_bands."""
    return len(self.coefficients)

  def recursion(self) -> recursion_lib.LastRounds:
    """Sums over rows of z of the last rounds, which can be drawn again."""
    return recursion_lib.LastRounds(np.array([self.coefficients]), remembers='row')

  def matrix_coefficients(self) -> np.ndarray:
    """First column of `C`, float64 [n]; takes O(n log n) unless coefficients grow."""
    return power_series.inverse(np.array(self.coefficients), self.num_rounds)

  def inverse_coefficients(self) -> np.ndarray:
    """First column of `C^-1`, float64 of shape [n]."""
    return power_series.resized(np.array(self.coefficients), self.num_rounds)


@dataclasses.dataclass(frozen=True, eq=False)
class UnitBandedInverse(toeplitz.ScaledToeplitz):
  """A `BandedInverse` T with columns scaled to norm 1.

      C = T diag(1 / |t_j|),    C^-1 = diag(|t_j|) T^-1,    t_j column j of T.

  With two bands (1, -lambda) this is DP-lambda-CGD (arXiv:2601.22334). The sensitivity
  is 1 for a single participation. For several, it is exact if of all columns that one
  client can have, those of the earliest, densest pattern have the largest inner
  products (`toeplitz_sensitivity`). With two bands and 0 <= lambda < 1 they do.

  Attributes:
    coefficients: First column of `T^-1` down to its last band. All are divided by the
      first, which has to be positive; that does not change `C`.

  Example:
    >>> strategy = UnitBandedInverse(3, (1.0, -0.75))
    >>> np.square(strategy.materialize()).sum(axis=0).round(12).tolist()
    [1.0, 1.0, 1.0]
    >>> strategy.noise_matrix()[1:].round(4)
    array([[-0.9375,  1.25  ,  0.    ],
           [ 0.    , -0.75  ,  1.    ]])
  """

  coefficients: tuple[float, ...]
  kind = 'unit_banded_inverse'

  def __post_init__(self) -> None:
    super().__post_init__()
    given = self.unscaled.coefficients
    object.__setattr__(self, 'coefficients', tuple(c / given[0] for c in given))
    self.__dict__.pop('unscaled')  # It was cached for the coefficients given.
    _ = self.unscaled  # Raises ValueError if C exceeds float64.

  @classmethod
  def of(cls, unscaled: BandedInverse) -> 'UnitBandedInverse':
    """Scales the columns of a strategy to norm 1."""
    if not isinstance(unscaled, BandedInverse):
      raise TypeError(f'unscaled must be a strategies.BandedInverse, got {unscaled!r}.')
    return cls(unscaled.num_rounds, unscaled.coefficients)

  @classmethod
  def root(
    cls,
    num_rounds: int,
    num_bands: int,
    *,
    exponent: float = 0.5,
    workload: Optional[workload_lib.Workload] = None,
  ) -> 'UnitBandedInverse':
    """`BandedInverse.root` with all columns scaled to norm 1."""
    bands = _root_bands(num_rounds, num_bands, exponent, workload)
    return cls(num_rounds, tuple(bands))

  @functools.cached_property
  def unscaled(self) -> BandedInverse:
    """The banded inverse with these coefficients."""
    return BandedInverse(self.num_rounds, self.coefficients)

  @property
  def num_inverse_bands(self) -> int:
    """C^-1[i, j] = 0 for i - j >= num_inverse_bands."""
    return len(self.coefficients)

  @functools.cached_property
  def _norms(self) -> np.ndarray:
    """|t_j|, float64 of shape [n]."""
    squares = np.square(self.unscaled.matrix_coefficients())
    return np.sqrt(np.cumsum(squares)[::-1])

  @functools.cached_property
  def _scales(self) -> np.ndarray:
    return 1.0 / self._norms

  def recursion(self) -> recursion_lib.Scaled:
    """That of the unscaled strategy, times the norm of each round's column."""
    return recursion_lib.Scaled(
      self.unscaled.recursion(), self._norms, tuple(range(self.num_rounds))
    )

  def per_query_error(self, workload: workload_lib.WorkloadLike = None) -> np.ndarray:
    """Takes O(n) for each band; needs dense matrices if the workload is an array."""
    workload = workload_lib.check(self.num_rounds, workload)
    if not isinstance(workload, workload_lib.Workload):
      return super().per_query_error(workload)
    weights = self._norms[:, np.newaxis] * np.array(self.coefficients)
    return errors_of_noise(workload, weights)


def errors_of_noise(workload: workload_lib.Workload, weights: np.ndarray) -> np.ndarray:
  """Squared row norms of A N for noise N z with few rows of z in each; float64 [n].

  Row t of the noise is sum_i W[t, i] z[t - i] for i < p. So z[j] enters in rounds j to
  j + p - 1 only; these are computed lag by lag, for all j at once. After that, the
  state of the workload that is due to z[j] is two numbers, the decayed sum v and the
  contribution y to the answer,

      v <- momentum v,    y <- (1 - weight_decay) y + learning_rate v.

  Their squares and products, summed over all such j, follow from those of the round
  before. `weights` is W, float64 [n, p] with p <= n; [t, i] with i > t is unused.
  """
  num_rounds, width = weights.shape
  momentum, kept = workload.momentum, 1.0 - workload.weight_decay
  rates = np.ones(num_rounds)
  if workload.learning_rates is not None:
    rates = np.array(workload.learning_rates)
  errors = np.zeros(num_rounds)
  decayed, answers = np.zeros(num_rounds), np.zeros(num_rounds)  # v and y of each j.
  for lag in range(width):
    rounds = num_rounds - lag
    decayed = momentum * decayed[:rounds] + weights[lag:, lag]
    answers = kept * answers[:rounds] + rates[lag:] * decayed
    errors[lag:] += np.square(answers)
  later = [
    array[: num_rounds - width].tolist()
    for array in (np.square(decayed), decayed * answers, np.square(answers))
  ]
  vv = vy = yy = 0.0
  carried = []
  for rate, own_vv, own_vy, own_yy in zip(rates[width:].tolist(), *later):
    vv, vy, yy = vv + own_vv, vy + own_vy, yy + own_yy
    step = rate * momentum
    yy = kept**2 * yy + 2.0 * kept * step * vy + step**2 * vv
    vy = momentum * (kept * vy + step * vv)
    vv = momentum**2 * vv
    carried.append(yy)
  errors[width:] += carried
  return errors


def best_root(
  num_rounds: int,
  *,
  num_bands: int,
  objective: str = 'mean',
  participation: Optional[Participation] = None,
  workload: Optional[workload_lib.Workload] = None,
  unit_columns: bool = False,
) -> Union[BandedInverse, UnitBandedInverse]:
  """Returns the `BandedInverse.root` of the exponent with the least error.

  Arguments are those of `banded.optimize`, with any `participation`, and:

  * `num_bands`: Bands of C^-1.
  * `workload`: A Toeplitz workload, for both root and error; `None` means prefix sums.
  * `unit_columns`: Whether to return a `UnitBandedInverse.root`.

  Example:
    >>> best = best_root(128, num_bands=2)
    >>> round(-best.coefficients[1] / best.coefficients[0], 3)
    0.882
  """
  strategy_lib.check_bands(num_rounds, num_bands)
  problem = strategy_lib.Problem.check(num_rounds, objective, participation, workload)
  kind: type[Union[BandedInverse, UnitBandedInverse]] = BandedInverse
  if unit_columns:
    kind = UnitBandedInverse

  def root(exponent: float) -> Union[BandedInverse, UnitBandedInverse]:
    return kind.root(num_rounds, num_bands, exponent=exponent, workload=workload)

  def error(exponent: float) -> float:
    return problem.error(root(exponent))

  import scipy.optimize  # Slow to import, and few callers optimise.

  grid = np.linspace(0.0, 1.0, _NUM_EXPONENTS)
  best = float(min(grid, key=error))
  bounds = (max(0.0, best - grid[1]), min(1.0, best + grid[1]))
  result = scipy.optimize.minimize_scalar(error, bounds=bounds, method='bounded')
  return root(min((float(result.x), best), key=error))


def optimize(
  num_rounds: int,
  *,
  num_bands: int,
  objective: str = 'mean',
  participation: Optional[Participation] = None,
  workload: workload_lib.WorkloadLike = None,
  cache: bool = True,
) -> BandedInverse:
  """Returns the strategy with the least error whose inverse has `num_bands` bands.

  Minimises `rmse` or `max_error` by Newton's method (`series_optimization`). The search
  starts from `square_root` and returns a local minimum. For a single participation,
  random starts all led to the same one. The first column of C has norm 1.

  For several participations, the bands are first optimised as if the earliest, densest
  pattern of rounds were the worst. If it is not the worst for the result, the first
  column of C is constrained to be non-negative, and non-increasing from
  `min_separation` on, for as many rounds as are needed to make that pattern the worst,
  and so the sensitivity exact.

  Arguments are those of `banded.optimize`, with any `participation`, and:

  * `num_bands`: Bands of C^-1, at most 4096.
  * `workload`: The queries whose error is minimised; `None` means prefix sums. An array
    or a workload whose learning rate changes may have at most 4096 rounds.

  Example:
    >>> strategy = optimize(num_rounds=128, num_bands=16, cache=False)
    >>> strategy.rmse() < BandedInverse.square_root(128, 16).rmse()
    True
  """
  checked = series_problem.check(
    num_rounds, num_bands, objective, participation, workload
  )
  problem = _Problem(**checked.parameters(num_bands=num_bands))
  return cache_lib.fetch(
    BandedInverse,
    'banded_inverse.optimize',
    1,
    problem.parameters(),
    lambda: _optimize(problem),
    cache,
  )


@dataclasses.dataclass(frozen=True)
class _Problem(series_problem.SeriesProblem):
  """The problem of finding the best bands z of C^-1, with checked arguments.

  The error is that of A D, D = C^-1, and the squared sensitivity is taken to be
  ||C u||^2, u the earliest, densest pattern of rounds. The caller has to make sure that
  it is no larger, and may constrain the first column of C. With the same constraints,
  SciPy's SLSQP ended 0.03% above (1000 rounds, 16 bands, 4 apart) or not at a strategy
  at all (2000 rounds, 16 bands, 1 apart), and L-BFGS with a barrier ended 0.2 to 7%
  above, at ten times the cost.
  """

  num_bands: int = 1

  def best_bands(
    self, start: np.ndarray, end: Optional[int], report: descent.Report
  ) -> np.ndarray:
    """The best bands, [p], up to a factor; constrains the first `end` coefficients."""
    if self.objective == 'mean' or series_problem.is_toeplitz(self.workload):
      return self._minimize_sum(
        series_optimization.quadratic(self._matrix()), start, end, report
      )
    # The error is the maximum over rows: minimise smooth bounds that get closer to it.
    z = start
    for power in range(1, 11):
      rows = series_optimization.LargestRow(self._rows, 8.0**power)
      z = self._minimize_sum(rows, z, end, report)
      if rows.gap(z) <= series_optimization.MAX_TOLERANCE:
        return z
    raise descent.ConvergenceError(
      'the largest error stays above the weighted mean that is minimised.'
    )

  def _minimize_sum(
    self,
    error: series_optimization.Function,
    start: np.ndarray,
    end: Optional[int],
    report: descent.Report,
  ) -> np.ndarray:
    pattern = np.zeros(self.num_rounds)
    pattern[list(self.participation.rounds)] = 1.0
    sensitivity = series_optimization.quotient(pattern)
    # They are homogeneous of degrees -2 and 2: their sum is least where they are equal.
    start = start * (sensitivity(start).value / error(start).value) ** 0.25

    def total(z: np.ndarray) -> series_optimization.Evaluated:
      return sensitivity(z) + error(z)

    if end is None:
      return series_optimization.minimize(total, start, report)
    return series_optimization.minimize_within(
      total, self.separation, end, start, report
    )

  def _matrix(self) -> np.ndarray:
    """The matrix Q such that the error of bands z is z^T Q z."""
    if isinstance(self.workload, workload_lib.Workload) and self.workload.is_toeplitz:
      averaged = self.objective == 'mean'
      return series_optimization.gram(
        self.workload.coefficients(), self.num_bands, averaged
      )
    return series_optimization.workload_gram(self._rows, None, self.num_bands)

  @functools.cached_property
  def _rows(self) -> np.ndarray:
    return workload_lib.apply(self.workload, np.eye(self.num_rounds))


def _optimize(problem: _Problem) -> BandedInverse:
  name = f'banded inverse, {problem.num_rounds} rounds, {problem.num_bands} bands'
  start = inverse_root_coefficients(problem.num_bands)
  progress = descent.Progress(name)

  def report(value: float) -> None:
    progress(value / 2)  # The sum of two equal numbers whose product is the error^2.

  bands = problem.best_bands(start, None, report)
  if not _is_earliest_worst(problem, bands):
    bands = _constrained(problem, start, report)
  return with_unit_columns(problem.num_rounds, bands)


def _constrained(
  problem: _Problem, start: np.ndarray, report: descent.Report
) -> np.ndarray:
  """The best bands, with constraints on as few rounds as make the sensitivity exact.

  That number of rounds is found to an eighth of the separation.
  """
  too_few = enough = max(problem.separation, problem.num_bands)
  bands = None
  while bands is None:
    too_few = enough
    enough = min(enough + math.ceil(problem.separation / 2), problem.num_rounds)
    candidate = problem.best_bands(start, enough, report)
    if _is_earliest_worst(problem, candidate):
      bands = candidate
    elif enough == problem.num_rounds:
      raise descent.ConvergenceError(
        'no bands were found whose sensitivity is exact; use fewer of them.'
      )
  while enough - too_few > problem.separation / 8 + 1:
    middle = (too_few + enough) // 2
    candidate = problem.best_bands(start, middle, report)
    if _is_earliest_worst(problem, candidate):
      enough, bands = middle, candidate
    else:
      too_few = middle
  return bands


def _is_earliest_worst(problem: _Problem, bands: np.ndarray) -> bool:
  """Whether the pattern that was optimised for, the earliest, is the worst one."""
  return toeplitz_sensitivity.is_earliest_worst(
    power_series.inverse(bands, problem.num_rounds), problem.participation
  )


def _root_bands(
  num_rounds: int,
  num_bands: int,
  exponent: float,
  workload: Optional[workload_lib.Workload],
) -> np.ndarray:
  strategy_lib.check_bands(num_rounds, num_bands)
  if workload is not None:
    workload_lib.check(num_rounds, workload)
  return inverse_root_coefficients(num_bands, exponent, workload)


def with_unit_columns(num_rounds: int, bands: np.ndarray) -> BandedInverse:
  """The strategy with these bands, scaled so that the first column of C has norm 1."""
  norm = np.linalg.norm(power_series.inverse(bands, num_rounds))
  return BandedInverse(num_rounds, tuple(bands * norm))


_DEFAULT_BANDS = 16


def _seconds(limits: registry.Limits, num_bands: int = _DEFAULT_BANDS) -> float:
  """Estimated time; constraints are searched if clients come back within the bands."""
  can_return = limits.possible_participations > 1 and limits.min_separation < num_bands
  return (1e-3 if can_return else 2e-5) * limits.num_rounds


registry.register(
  registry.Kind(
    'banded_inverse',
    BandedInverse,
    registry.optimizing(
      optimize, num_bands=lambda limits: min(_DEFAULT_BANDS, limits.num_rounds)
    ),
    adapts=True,
    words='noise correlated over rounds by a matrix whose inverse is banded',
    citations=('arXiv:2405.13763', 'arXiv:2505.12128'),
    options=(
      registry.Option(
        'num_bands',
        help=f'bands of the inverse of the matrix, by default {_DEFAULT_BANDS}',
        read=lambda strategy: strategy.num_inverse_bands,
        words=('1 band', '{} bands'),
        title='bands of the inverse of C',
        meaning='diagonals that are not 0',
        # A comparison's num_bands are bands of C, not of its inverse.
        is_compared=False,
        is_within_rounds=True,
      ),
    ),
    seconds=_seconds,
  )
)
