"""Newton's method for strategies whose inverse is banded Toeplitz.

With z the bands of C^-1, the squared sensitivity s(z) is a sum of squares of a power
series divided by z, and the squared error e(z) for noise of variance 1 is a quadratic
form of z, or a norm of several. They scale like |z|^-2 and |z|^2, so at the minimum of
s(z) + e(z) they are equal, and their product, which no scaling changes, is least.

Second derivatives are cheap. With v = a / z^2 and g the gradient with respect to
w = a / z, the Hessian of sum_t w_t^2 is

    2 sum_t v[t - i] v[t - j]  +  2 sum_t g_t (a / z^3)[t - i - j];

the second part is a Hankel matrix, and in the first each entry follows from its upper
left neighbour: O(n log n + p^3 / 3) an iteration for p coefficients. Constraints are
enforced by a logarithmic barrier, whose weight is lowered until its cost is negligible.
"""

import dataclasses
import math
from typing import Callable, Optional

import numpy as np
import scipy.linalg
from scipy import fft

from tff_dp_aggregators.strategies.numerics import descent
from tff_dp_aggregators.strategies.numerics import power_series

TOLERANCE = 1e-10  # Predicted relative decrease at which Newton's method stops.
BARRIER_TOLERANCE = 1e-8  # Final cost of the barrier, relative to the objective.
# Maximum relative excess of the largest row error over the weighted mean of all.
MAX_TOLERANCE = 2e-6
_ROUNDING = 1e-13  # Relative rounding error of values of the objective.
_MAX_ITERATIONS = 500  # Far more than a search that converges needs.
_NEGLIGIBLE_GAIN = 1e-6  # Relative; accepted as convergence after all iterations.
_SMALLEST_STEP = 1e-10
_MIN_RATIO = 1e-13  # Smaller curvatures, relative to the largest, are rounding errors.


_Slopes = tuple[np.ndarray, np.ndarray]  # Gradient [p] and Hessian [p, p].


@dataclasses.dataclass(frozen=True)
class Evaluated:
  """The value of a function at a point, infinite outside of its domain."""

  value: float
  slopes: Callable[[], _Slopes]

  def __add__(self, other: 'Evaluated') -> 'Evaluated':
    def slopes() -> _Slopes:
      (gradient, hessian), (more, more_hessian) = self.slopes(), other.slopes()
      return gradient + more, hessian + more_hessian

    return Evaluated(self.value + other.value, slopes)


# A twice differentiable function of p coefficients.
Function = Callable[[np.ndarray], Evaluated]


def quadratic(matrix: np.ndarray) -> Function:
  """z^T Q z."""
  return lambda z: Evaluated(
    float(z @ matrix @ z), lambda: (2 * (matrix @ z), 2 * matrix)
  )


def quotient(numerator: np.ndarray) -> Function:
  """sum_t w_t^2 with w = a / z, a of shape [n]."""
  num_rounds = len(numerator)

  def evaluated(z: np.ndarray) -> Evaluated:
    inverse = power_series.inverse(z, num_rounds)
    first = power_series.multiply(numerator, inverse, num_rounds)

    def slopes() -> _Slopes:
      second = power_series.multiply(first, inverse, num_rounds)
      third = power_series.multiply(second, inverse, num_rounds)
      hessian = 2 * gram(second, len(z), averaged=False)
      hessian += 2 * _hankel(2 * first, third, len(z))
      return -power_series.correlate(2 * first, second, len(z)), hessian

    return Evaluated(float(first @ first), slopes)

  return evaluated


class LargestRow:
  """A smooth upper bound of the maximum squared row norm of A D, D the matrix of z.

  With e_t the squared norm of row t, it is (sum_t e_t^q)^(1 / q), at most n^(1 / q)
  times the maximum.
  """

  def __init__(self, workload: np.ndarray, exponent: float):
    self._workload = workload
    self._exponent = exponent
    self._size = fft.next_fast_len(2 * len(workload), real=True)
    self._transform = fft.rfft(workload, self._size)

  def __call__(self, z: np.ndarray) -> Evaluated:
    """Evaluates the bound."""
    estimator = self._estimator(z)
    errors = np.square(estimator).sum(axis=1)
    largest, q = errors.max(), self._exponent
    norm = float(largest * np.sum((errors / largest) ** q) ** (1 / q))

    def slopes() -> _Slopes:
      relevant = (errors / norm) ** (q - 2) > 1e-18
      share = errors[relevant] / norm
      weights = share ** (q - 1)
      # The derivative of e_t by z_s is 2 sum_j B[t, j] A[t, j + s].
      transform = np.conj(fft.rfft(estimator[relevant], self._size))
      jacobian = 2 * fft.irfft(self._transform[relevant] * transform, self._size)
      jacobian = jacobian[:, : len(z)]
      gradient = weights @ jacobian
      scaled = jacobian * np.sqrt(share ** (q - 2))[:, np.newaxis]
      curvature = scaled.T @ scaled - np.outer(gradient, gradient)
      hessian = 2 * workload_gram(self._workload[relevant], weights, len(z))
      return gradient, hessian + (q - 1) / norm * curvature

    return Evaluated(norm if math.isfinite(largest) else math.inf, slopes)

  def gap(self, z: np.ndarray) -> float:
    """The relative excess of max e_t over the mean with weights e_t^(q - 1).

    A minimum of a sum with this function is a stationary point of that with the mean.
    """
    errors = np.square(self._estimator(z)).sum(axis=1)
    share = errors / errors.max()
    weights = share ** (self._exponent - 1)
    return float(1 - weights @ share / weights.sum())

  def _estimator(self, z: np.ndarray) -> np.ndarray:
    column = fft.rfft(z, self._size)
    product = fft.irfft(self._transform * np.conj(column), self._size)
    return product[:, : len(self._workload)]


def barrier(function: Function, start: int, end: int, weight: float) -> Function:
  """Subtracts `weight` times the logarithms of constrained values from a function.

  With c the inverse series of z, these are c_j for j < start, c_j - c_{j + 1} for
  start <= j < end - 1, and c_{end - 1}: c does not increase from `start` on.
  """

  def decreases(rows: np.ndarray) -> np.ndarray:
    result = rows.copy()
    result[start:-1] -= rows[start + 1 :]
    return result

  def evaluated(z: np.ndarray) -> Evaluated:
    # Divide term by term: the last coefficients are small, and their signs matter.
    column = power_series.divide(np.ones(1), z, end)
    slack = decreases(column)

    def slopes() -> _Slopes:
      square = power_series.divide(column, z, end)
      cube = power_series.divide(square, z, end)
      jacobian = decreases(-scipy.linalg.toeplitz(square, np.zeros(len(z))))
      relative = jacobian / slack[:, np.newaxis]
      by_column = 1 / slack
      by_column[start + 1 :] -= 1 / slack[start:-1]
      hessian = relative.T @ relative - 2 * _hankel(by_column, cube, len(z))
      return -weight * relative.sum(axis=0), weight * hessian

    if not np.all(slack > 0):
      return Evaluated(math.inf, slopes)
    return function(z) + Evaluated(-weight * float(np.log(slack).sum()), slopes)

  return evaluated


def minimize(
  function: Function,
  start: np.ndarray,
  report: descent.Report,
  tolerance: float = TOLERANCE,
) -> np.ndarray:
  """Finds a local minimum by Newton's method with line search, from `start`."""
  z, current = start, function(start)
  for _ in range(_MAX_ITERATIONS):
    report(current.value)
    gradient, hessian = current.slopes()
    step = _newton_step(gradient, hessian)
    slope = float(gradient @ step)
    decrease = -slope / 2  # Half the squared Newton decrement.
    if decrease <= tolerance * abs(current.value):
      return z + step if function(z + step).value <= current.value else z
    z, current = _line_search(function, z, current.value, step, slope)
  if decrease <= _NEGLIGIBLE_GAIN * abs(current.value):
    return z  # Slow progress along constraints, possibly due to rounding errors.
  raise descent.ConvergenceError(
    f'no convergence in {_MAX_ITERATIONS} iterations: the quadratic model still '
    f'gains {decrease:.3g} of {current.value:.6g}, and should gain {tolerance:.3g} '
    'relative.'
  )


def minimize_within(
  function: Function, first: int, end: int, start: np.ndarray, report: descent.Report
) -> np.ndarray:
  """Finds a local minimum strictly inside the constraints of `barrier`, from `start`.

  The weight of the barrier is lowered tenfold each time. At the minimum with weight m,
  a convex function is within m times the number of constraints of its minimum.
  """
  z = start
  scale = abs(function(start).value)
  cost = 1e-2
  while cost > BARRIER_TOLERANCE / 10:
    with_barrier = barrier(function, first, end, cost * scale / end)
    z = minimize(with_barrier, z, report, tolerance=max(cost / 10, 1e-12))
    cost /= 10
  return z


def gram(series: np.ndarray, size: int, averaged: bool) -> np.ndarray:
  """sum_t q_t v[t - i] v[t - j] for i, j < size, with q_t = 1 or (n - t) / n."""
  last = series[::-1][:size]
  lags = power_series.correlate(series, series, size)
  steady = _from_upper_left(lags, lambda i: last[i] * last[:-1])
  if not averaged:
    return steady
  falling = np.arange(len(series), 0, -1) * series
  lags = power_series.correlate(falling, series, size)
  return _from_upper_left(lags, lambda i: steady[i, :-1]) / len(series)


def workload_gram(
  workload: np.ndarray, weights: Optional[np.ndarray], size: int
) -> np.ndarray:
  """M with x^T M x = sum_t weights_t ||row t of A D||^2, D the Toeplitz matrix of x.

  `workload` are rows of A, shape [m, n]; `weights` [m], or `None` for 1 / n each.
  """
  num_rounds = workload.shape[1]
  if weights is None:
    weights = np.full(len(workload), 1 / num_rounds)
  scaled = workload * np.sqrt(weights)[:, np.newaxis]
  pairs = scaled.T @ scaled
  # Cumulative sums along diagonals less than `size` from the main one, from their end.
  for i in range(num_rounds - 2, -1, -1):
    near = slice(max(0, i - size), min(num_rounds - 1, i + size))
    pairs[i, near] += pairs[i + 1, near.start + 1 : near.stop + 1]
  return pairs[:size, :size]


def _newton_step(gradient: np.ndarray, hessian: np.ndarray) -> np.ndarray:
  """The Newton step, after diagonal scaling; takes curvatures by absolute value."""
  if not np.all(np.isfinite(hessian)):
    raise descent.ConvergenceError('the second derivatives are not finite.')
  scale = 1 / np.sqrt(np.maximum(np.abs(np.diagonal(hessian)), 1e-300))
  scaled = hessian * np.outer(scale, scale)
  gradient = scale * gradient
  try:
    factor = scipy.linalg.cho_factor(scaled, lower=True, check_finite=False)
    return -scale * scipy.linalg.cho_solve(factor, gradient)
  except np.linalg.LinAlgError:
    curvatures, directions = scipy.linalg.eigh(scaled, check_finite=False)
    curvatures = np.maximum(np.abs(curvatures), _MIN_RATIO * np.abs(curvatures).max())
    return -scale * (directions @ (directions.T @ gradient / curvatures))


def _line_search(
  function: Function, z: np.ndarray, value: float, step: np.ndarray, slope: float
) -> tuple[np.ndarray, Evaluated]:
  """The first of z + step, z + step / 2, ... with a sufficient decrease (Armijo)."""
  length = 1.0
  while length > _SMALLEST_STEP:
    candidate = z + length * step
    limit = value + 1e-4 * length * slope + _ROUNDING * abs(value)
    with np.errstate(over='ignore', invalid='ignore'):
      evaluated = function(candidate)
    if evaluated.value <= limit:
      return candidate, evaluated
    length /= 2
  raise descent.ConvergenceError(
    f'no step along the descent direction lowers {value:.6g}, though its slope is '
    f'{slope:.3g}.'
  )


def _hankel(left: np.ndarray, right: np.ndarray, size: int) -> np.ndarray:
  """sum_t left[t] right[t - i - j] for i, j < size."""
  sums = power_series.correlate(left, right, 2 * size - 1)
  return scipy.linalg.hankel(sums[:size], sums[size - 1 :])


def _from_upper_left(
  first_row: np.ndarray, decrease: Callable[[int], np.ndarray]
) -> np.ndarray:
  """The symmetric matrix whose row i + 1 is row i, shifted right, minus decrease(i)."""
  matrix = np.empty((len(first_row), len(first_row)))
  matrix[0] = matrix[:, 0] = first_row
  for i in range(len(first_row) - 1):
    matrix[i + 1, 1:] = matrix[i, :-1] - decrease(i)
  return matrix
