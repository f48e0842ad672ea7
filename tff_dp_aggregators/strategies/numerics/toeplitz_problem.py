"""What `toeplitz` and `banded_inverse` optimise: one problem, seen from two sides.

The variables z are the bands of C, or those of C^-1. Either way the error is that of
A D, D = C^-1, and the squared sensitivity ||C u||^2, u the earliest, densest pattern of
rounds; that it is no more is up to the caller.
"""

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any, Optional, Union

import numpy as np

from tff_dp_aggregators.base import checks
from tff_dp_aggregators.strategies import participation as participation_lib
from tff_dp_aggregators.strategies import size
from tff_dp_aggregators.strategies import strategy as strategy_lib
from tff_dp_aggregators.strategies import workload as workload_lib
from tff_dp_aggregators.strategies.numerics import power_series
from tff_dp_aggregators.strategies.numerics import progress as progress_lib
from tff_dp_aggregators.strategies.numerics import series_optimization

# Second derivatives are held in full: a matrix of this size takes 128 MiB.
MAX_BANDS = 4096


@dataclasses.dataclass(frozen=True)
class ToeplitzProblem:
  """Which strategy is wanted, checked.

  Attributes:
    num_rounds: Rounds n.
    num_bands: Bands p, of C or of its inverse.
    of_inverse: Whether it is the inverse that is banded.
    objective: 'mean' or 'max'.
    participation: Who may take part when.
    workload: What the error is about.
  """

  num_rounds: int
  num_bands: int
  of_inverse: bool
  objective: str
  participation: participation_lib.Participation
  workload: Union[workload_lib.Workload, np.ndarray]

  @property
  def separation(self) -> int:
    """Smallest difference of two rounds of one client; n if there is only one."""
    if self.participation.possible_participations == 1:
      return self.num_rounds
    return self.participation.min_separation

  def parameters(self) -> dict[str, Any]:
    """All of it, as the cache takes it."""
    return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}

  def error(self, strategy: strategy_lib.Strategy) -> float:
    """What is minimised, of a strategy."""
    return strategy.error(self.objective, self.participation, self.workload)

  def minimize(
    self,
    start: np.ndarray,
    constraints: Optional[series_optimization.Monotone],
    report: series_optimization.Report,
  ) -> np.ndarray:
    """The best bands, [p], up to a factor.

    `start`: Where to begin, [p].
    """
    if self._is_smooth:
      return self._minimize_sum(self._error(), start, constraints, report)
    z = start
    for rows in self._smooth_maxima():
      z = self._minimize_sum(self._of_variables(rows), z, constraints, report)
      if self._is_tight(rows, z):
        return z
    raise series_optimization.ConvergenceError(
      'the largest error stays above the weighted mean that is minimised.'
    )

  def gradient(self, z: np.ndarray) -> np.ndarray:
    """Gradient of what `minimize` makes stationary, at its minimum z or padded.

    That is sensitivity squared plus error, where the two are balanced.
    """
    sensitivity, error = self._sensitivity_squared(), self._error_near(z)
    z = self._balanced(sensitivity, error, z)
    return series_optimization.Sum(sensitivity, error).derivatives(z).gradient

  @property
  def _is_smooth(self) -> bool:
    """Whether the error has derivatives, and is not the maximum of several."""
    return self.objective == 'mean' or self._toeplitz_workload is not None

  def _error_near(self, z: np.ndarray) -> series_optimization.Function:
    if self._is_smooth:
      return self._error()
    tight = (rows for rows in self._smooth_maxima() if self._is_tight(rows, z))
    return self._of_variables(next(tight))

  def _smooth_maxima(self) -> Iterator[series_optimization.LargestRow]:
    """Closer and closer bounds of the largest error."""
    workload = self._rows
    for power in range(1, 11):
      yield series_optimization.LargestRow(workload, 8.0**power)

  def _is_tight(self, rows: series_optimization.LargestRow, z: np.ndarray) -> bool:
    column = z if self.of_inverse else power_series.inverse(z, self.num_rounds)
    return rows.gap(column) <= series_optimization.MAX_TOLERANCE

  def _minimize_sum(
    self,
    error: series_optimization.Function,
    start: np.ndarray,
    constraints: Optional[series_optimization.Monotone],
    report: series_optimization.Report,
  ) -> np.ndarray:
    sensitivity = self._sensitivity_squared()
    start = self._balanced(sensitivity, error, start)
    total = series_optimization.Sum(sensitivity, error)
    if constraints is None:
      return series_optimization.minimize(total, start, report)
    return series_optimization.minimize_within(total, constraints, start, report)

  def _balanced(
    self,
    sensitivity: series_optimization.Function,
    error: series_optimization.Function,
    z: np.ndarray,
  ) -> np.ndarray:
    pair = (error, sensitivity) if self.of_inverse else (sensitivity, error)
    return series_optimization.balanced(*pair, z)

  def _sensitivity_squared(self) -> series_optimization.Function:
    pattern = np.zeros(self.num_rounds)
    pattern[list(self.participation.rounds)] = 1.0
    if self.of_inverse:
      return series_optimization.Quotient(pattern, averaged=False)
    overlaps = series_optimization.gram(pattern, self.num_bands, averaged=False)
    return series_optimization.Quadratic(np.rint(overlaps))

  def _error(self) -> series_optimization.Function:
    averaged = self.objective == 'mean'
    workload = self._toeplitz_workload
    if workload is None:
      return self._of_variables(
        series_optimization.Quadratic(
          series_optimization.workload_gram(self._rows, None, self._noise_size)
        )
      )
    if self.of_inverse:
      return series_optimization.Quadratic(
        series_optimization.gram(workload, self.num_bands, averaged)
      )
    return series_optimization.Quotient(workload, averaged)

  def _of_variables(
    self, function: series_optimization.Function
  ) -> series_optimization.Function:
    """A function of the first column of C^-1 as one of z."""
    if self.of_inverse:
      return function
    return series_optimization.OfInverse(function, self.num_rounds)

  @property
  def _noise_size(self) -> int:
    return self.num_bands if self.of_inverse else self.num_rounds

  @property
  def _toeplitz_workload(self) -> Optional[np.ndarray]:
    """First column of the workload if it is constant along diagonals."""
    if isinstance(self.workload, workload_lib.Workload) and self.workload.is_toeplitz:
      return self.workload.coefficients()
    return None

  @property
  def _rows(self) -> np.ndarray:
    if isinstance(self.workload, workload_lib.Workload):
      return self.workload.materialize()
    return self.workload


def check(
  num_rounds: int,
  num_bands: int,
  of_inverse: bool,
  objective: str,
  participation: Optional[participation_lib.Participation],
  workload: workload_lib.WorkloadLike,
) -> ToeplitzProblem:
  """The problem that an optimiser's arguments pose."""
  num_rounds = checks.check_positive_int('num_rounds', num_rounds)
  size.check_rounds(num_rounds)
  num_bands = checks.check_positive_int('num_bands', num_bands)
  if num_bands > min(num_rounds, MAX_BANDS):
    raise ValueError(
      f'num_bands must be at most num_rounds={num_rounds}, and at most {MAX_BANDS} '
      f'to be optimised, got {num_bands}.'
    )
  participation = participation_lib.check(num_rounds, participation)
  problem = ToeplitzProblem(
    num_rounds,
    num_bands,
    of_inverse,
    checks.check_objective(objective),
    participation,
    workload_lib.check(num_rounds, workload),
  )
  check_size(problem.workload, num_rounds)
  return problem


def check_size(
  workload: Union[workload_lib.Workload, np.ndarray], num_rounds: int
) -> None:
  """Refuses workloads that take matrices over more rounds than can be optimised."""
  is_toeplitz = isinstance(workload, workload_lib.Workload) and workload.is_toeplitz
  if num_rounds > MAX_BANDS and not is_toeplitz:
    raise ValueError(
      'a workload that is an array, or whose learning rate changes, can be optimised '
      f'for at most {MAX_BANDS} rounds, got {num_rounds}.'
    )


@contextlib.contextmanager
def reporting(name: str) -> Iterator[series_optimization.Report]:
  """Shows the values of a long optimisation as errors."""
  with progress_lib.Progress(name) as progress:
    # The sum of two numbers that come out equal, and whose product is the error^2.
    yield lambda value: progress(value / 2)
