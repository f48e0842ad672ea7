"""What `banded_inverse` optimises: the bands z of C^-1, by Newton's method.

The error is that of A D, D = C^-1, and the squared sensitivity ||C u||^2, u the
earliest, densest pattern of rounds; that it is no more is up to the caller, who may
constrain the first column of C. That is what Newton's method is for here: with the same
constraints, SciPy's SLSQP ended 0.03% above (1000 rounds, 16 bands, 4 apart) or did not
end at a strategy at all (2000 rounds, 16 bands, 1 apart), and L-BFGS with a barrier 0.2
to 7% above, at ten times the cost.
"""

import dataclasses
from typing import Optional

import numpy as np

from tff_dp_aggregators.strategies import workload as workload_lib
from tff_dp_aggregators.strategies.numerics import descent
from tff_dp_aggregators.strategies.numerics import series_optimization
from tff_dp_aggregators.strategies.numerics import series_problem


@dataclasses.dataclass(frozen=True)
class InverseProblem(series_problem.SeriesProblem):
  """What is asked for, checked, with so many bands of C^-1."""

  num_bands: int = 1

  def best_bands(
    self,
    start: np.ndarray,
    constraints: Optional[series_optimization.Monotone],
    report: descent.Report,
  ) -> np.ndarray:
    """The best bands, [p], up to a factor, from `start`, [p]."""
    if self.objective == 'mean' or series_problem.is_toeplitz(self.workload):
      return self._minimize_sum(self._error(), start, constraints, report)
    # The error is the maximum of several: closer and closer bounds of it.
    z = start
    for power in range(1, 11):
      rows = series_optimization.LargestRow(self._rows, 8.0**power)
      z = self._minimize_sum(rows, z, constraints, report)
      if rows.gap(z) <= series_optimization.MAX_TOLERANCE:
        return z
    raise descent.ConvergenceError(
      'the largest error stays above the weighted mean that is minimised.'
    )

  def _minimize_sum(
    self,
    error: series_optimization.Function,
    start: np.ndarray,
    constraints: Optional[series_optimization.Monotone],
    report: descent.Report,
  ) -> np.ndarray:
    pattern = np.zeros(self.num_rounds)
    pattern[list(self.participation.rounds)] = 1.0
    sensitivity = series_optimization.Quotient(pattern)
    start = series_optimization.balanced(error, sensitivity, start)
    total = series_optimization.Sum(sensitivity, error)
    if constraints is None:
      return series_optimization.minimize(total, start, report)
    return series_optimization.minimize_within(total, constraints, start, report)

  def _error(self) -> series_optimization.Function:
    if isinstance(self.workload, workload_lib.Workload) and self.workload.is_toeplitz:
      averaged = self.objective == 'mean'
      matrix = series_optimization.gram(
        self.workload.coefficients(), self.num_bands, averaged
      )
    else:
      matrix = series_optimization.workload_gram(self._rows, None, self.num_bands)
    return series_optimization.Quadratic(matrix)

  @property
  def _rows(self) -> np.ndarray:
    if isinstance(self.workload, workload_lib.Workload):
      return self.workload.materialize()
    return self.workload
