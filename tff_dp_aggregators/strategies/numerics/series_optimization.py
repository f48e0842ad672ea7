"""Newton's method for strategies whose inverse is banded Toeplitz.

With z the bands of C^-1, the squared sensitivity s(z) is a sum of squares of a power
series divided by z, and the squared error e(z) for noise of variance 1 a sum of squares
of z. They scale like |z|^-2 and |z|^2, so that minimising s(z) + e(z), where they come
out equal, minimises the product s(z) e(z), which no scaling changes.

Second derivatives are cheap here. With v = a / z^2 and g the gradient with respect to
w = a / z, the Hessian of sum_t w_t^2 is

    2 sum_t v[t - i] v[t - j]  +  2 sum_t g_t (a / z^3)[t - i - j];

the second part is a Hankel matrix, and in the first each entry follows from its upper
left neighbour. So an iteration costs O(n log n + p^3 / 3) for p
coefficients, and quadratic convergence makes them few. Constraints are kept by a
logarithmic barrier, whose weight falls until its bound on what it costs is negligible.

Nothing here knows strategies; `banded_inverse` uses it.
"""

import abc
import dataclasses
import math
from typing import Callable, Optional

import numpy as np
import scipy.linalg

from tff_dp_aggregators.strategies.numerics import descent
from tff_dp_aggregators.strategies.numerics import power_series

# Newton's method stops when a step lowers the objective by no more than this, relative
# to it, by the quadratic model; as it converges quadratically, far less is then left.
TOLERANCE = 1e-10
# What the barrier may cost in the end, relative to the objective.
BARRIER_TOLERANCE = 1e-8
# How far the largest of several row errors may be above their weighted mean, relative.
MAX_TOLERANCE = 2e-6
# What values of the objective may differ by because of rounding, relative.
_ROUNDING = 1e-13
# Far more than needed; to end what does not converge.
_MAX_ITERATIONS = 500
# After so many, a relative gain of a step that is as good as none.
_NEARLY = 1e-6
_SMALLEST_STEP = 1e-10
# Curvatures below this, relative to the largest, are rounding.
_FLATTEST = 1e-13


@dataclasses.dataclass(frozen=True)
class Derivatives:
  """Value, gradient [p] and Hessian [p, p] of a function at a point."""

  value: float
  gradient: np.ndarray
  hessian: np.ndarray

  def __add__(self, other: 'Derivatives') -> 'Derivatives':
    return Derivatives(
      self.value + other.value,
      self.gradient + other.gradient,
      self.hessian + other.hessian,
    )


class Function(abc.ABC):
  """A twice differentiable function of p coefficients."""

  @abc.abstractmethod
  def value(self, z: np.ndarray) -> float:
    """The value at z, infinite outside of the domain."""

  @abc.abstractmethod
  def derivatives(self, z: np.ndarray) -> Derivatives:
    """Value, gradient and Hessian at z."""


class Sum(Function):
  """The sum of several functions."""

  def __init__(self, *terms: Function):
    self._terms = terms

  def value(self, z: np.ndarray) -> float:
    """The value at z."""
    return sum(term.value(z) for term in self._terms)

  def derivatives(self, z: np.ndarray) -> Derivatives:
    """Value, gradient and Hessian at z."""
    first, *others = (term.derivatives(z) for term in self._terms)
    return sum(others, first)


class Quadratic(Function):
  """z^T Q z."""

  def __init__(self, matrix: np.ndarray):
    self._matrix = matrix

  def value(self, z: np.ndarray) -> float:
    """The value at z."""
    return float(z @ self._matrix @ z)

  def derivatives(self, z: np.ndarray) -> Derivatives:
    """Value, gradient and Hessian at z."""
    image = self._matrix @ z
    return Derivatives(float(z @ image), 2 * image, 2 * self._matrix)


class Quotient(Function):
  """sum_t w_t^2 with w = a / z.

  `numerator`: a, shape [n].
  """

  def __init__(self, numerator: np.ndarray):
    self._numerator = numerator

  def value(self, z: np.ndarray) -> float:
    """The value at z."""
    quotient = self._over(self._numerator, power_series.inverse(z, self._num_rounds))
    return float(quotient @ quotient)

  def derivatives(self, z: np.ndarray) -> Derivatives:
    """Value, gradient and Hessian at z."""
    inverse = power_series.inverse(z, self._num_rounds)
    quotient = self._over(self._numerator, inverse)
    second = self._over(quotient, inverse)
    third = self._over(second, inverse)
    doubled = 2 * quotient
    hessian = 2 * gram(second, len(z), averaged=False)
    hessian += 2 * _hankel(doubled, third, len(z))
    return Derivatives(
      float(quotient @ quotient),
      -power_series.correlate(doubled, second, len(z)),
      hessian,
    )

  @property
  def _num_rounds(self) -> int:
    return len(self._numerator)

  def _over(self, series: np.ndarray, inverse: np.ndarray) -> np.ndarray:
    return power_series.multiply(series, inverse, self._num_rounds)


class LargestRow(Function):
  """A smooth upper bound of the largest row of an estimator A D, squared.

  With `D` the Toeplitz matrix of z and e_t the squared norm of row t of A D, this is
  (sum_t e_t^q)^(1 / q), at most n^(1 / q) times the largest of them.

  `workload`: A, shape [n, n].
  """

  def __init__(self, workload: np.ndarray, exponent: float):
    self._workload = workload
    self._exponent = exponent
    self._size = power_series.transform_size(2 * len(workload))
    self._transform = power_series.transform(workload, self._size)

  def value(self, z: np.ndarray) -> float:
    """The value at z."""
    return self._norm(self._row_errors(self._estimator(z)))

  def derivatives(self, z: np.ndarray) -> Derivatives:
    """Value, gradient and Hessian at z."""
    estimator = self._estimator(z)
    errors = self._row_errors(estimator)
    norm = self._norm(errors)
    relevant = (errors / norm) ** (self._exponent - 2) > 1e-18
    share = errors[relevant] / norm
    weights = share ** (self._exponent - 1)
    jacobian = self._row_gradients(estimator, relevant)[:, : len(z)]
    gradient = weights @ jacobian
    scaled = jacobian * np.sqrt(share ** (self._exponent - 2))[:, np.newaxis]
    spread = scaled.T @ scaled - np.outer(gradient, gradient)
    rows = self._workload[relevant]
    hessian = 2 * workload_gram(rows, weights, len(z))
    return Derivatives(norm, gradient, hessian + (self._exponent - 1) / norm * spread)

  def gap(self, z: np.ndarray) -> float:
    """How far the largest e_t is above the mean in which z is stationary, relative.

    At a minimum of a sum with this function, the same z is stationary for the
    weighted mean of e_t with weights e_t^(q - 1).
    """
    errors = self._row_errors(self._estimator(z))
    share = errors / errors.max()
    weights = share ** (self._exponent - 1)
    return float(1 - weights @ share / weights.sum())

  def _estimator(self, z: np.ndarray) -> np.ndarray:
    column = power_series.transform(z, self._size)
    product = power_series.inverse_transform(
      self._transform * np.conj(column), self._size
    )
    return product[:, : len(self._workload)]

  def _row_errors(self, estimator: np.ndarray) -> np.ndarray:
    return np.square(estimator).sum(axis=1)

  def _row_gradients(self, estimator: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Derivative of e_t by z_s: 2 sum_j B[t, j] A[t, j + s]."""
    transform = np.conj(power_series.transform(estimator[rows], self._size))
    return 2 * power_series.inverse_transform(
      self._transform[rows] * transform, self._size
    )

  def _norm(self, errors: np.ndarray) -> float:
    largest = errors.max()
    if not math.isfinite(largest):
      return math.inf
    return float(
      largest * np.sum((errors / largest) ** self._exponent) ** (1 / self._exponent)
    )


class Monotone:
  """Constraints: coefficients are not negative, and non-increasing from an index on.

  c_j >= 0 for j < start, c_j >= c_{j + 1} for start <= j < end - 1, c_{end - 1} >= 0,
  where c is the inverse series of z.
  """

  def __init__(self, start: int, end: int):
    self._start = start
    self._end = end

  def __len__(self) -> int:
    return self._end

  def values(self, z: np.ndarray) -> np.ndarray:
    """What has to be positive, shape [end]."""
    return self._differences(self._column(z))

  def derivatives(self, z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Values, shape [end], and Jacobian, shape [end, p]."""
    column = self._column(z)
    square = power_series.divide(column, z, self._end)
    return self._differences(column), self._differences(-shifts(square, len(z)))

  def curvature(self, z: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Hessian of the weighted sum of values."""
    column = self._column(z)
    square = power_series.divide(column, z, self._end)
    cube = power_series.divide(square, z, self._end)
    outer = weights.copy()
    outer[self._start + 1 :] -= weights[self._start : -1]
    return 2 * _hankel(outer, cube, len(z))

  def _column(self, z: np.ndarray) -> np.ndarray:
    # Term by term: the last coefficients are small, and their signs matter.
    return power_series.divide(np.ones(1), z, self._end)

  def _differences(self, rows: np.ndarray) -> np.ndarray:
    result = rows.copy()
    result[self._start : -1] -= rows[self._start + 1 :]
    return result


class Barrier(Function):
  """A function plus `weight` times the negative logarithms of constraints."""

  def __init__(self, function: Function, constraints: Monotone, weight: float):
    self._function = function
    self._constraints = constraints
    self._weight = weight

  def value(self, z: np.ndarray) -> float:
    """The value at z."""
    slack = self._constraints.values(z)
    if not np.all(slack > 0):
      return math.inf
    return self._function.value(z) - self._weight * float(np.log(slack).sum())

  def derivatives(self, z: np.ndarray) -> Derivatives:
    """Value, gradient and Hessian at z."""
    slack, jacobian = self._constraints.derivatives(z)
    relative = jacobian / slack[:, np.newaxis]
    hessian = relative.T @ relative - self._constraints.curvature(z, 1 / slack)
    return self._function.derivatives(z) + Derivatives(
      -self._weight * float(np.log(slack).sum()),
      -self._weight * relative.sum(axis=0),
      self._weight * hessian,
    )


def minimize(
  function: Function,
  start: np.ndarray,
  report: descent.Report,
  tolerance: float = TOLERANCE,
) -> np.ndarray:
  """A local minimum of a function, by Newton's method with line search.

  `start`: A point of its domain, shape [p].
  """
  z = start
  for _ in range(_MAX_ITERATIONS):
    at = function.derivatives(z)
    report(at.value)
    step = _newton_step(at)
    decrease = -float(at.gradient @ step) / 2  # Half the squared Newton decrement.
    if decrease <= tolerance * abs(at.value):
      return z + step if function.value(z + step) <= at.value else z
    z = _line_search(function, z, at, step)
  if decrease <= _NEARLY * abs(at.value):
    return z  # It creeps along constraints, which round-off alone may decide.
  raise descent.ConvergenceError(
    f'no convergence in {_MAX_ITERATIONS} iterations: the quadratic model still '
    f'gains {decrease:.3g} of {at.value:.6g}, and should gain {tolerance:.3g} relative.'
  )


def minimize_within(
  function: Function, constraints: Monotone, start: np.ndarray, report: descent.Report
) -> np.ndarray:
  """A local minimum within constraints, strictly inside of them.

  The weight of the barrier falls tenfold each time. At the minimum with weight m, a
  convex function is within m times the number of constraints of its best value.

  `start`: Where to begin, shape [p].
  """
  z = start
  scale = abs(function.value(start))
  cost = 1e-2
  while cost > BARRIER_TOLERANCE / 10:
    barrier = Barrier(function, constraints, cost * scale / len(constraints))
    z = minimize(barrier, z, report, tolerance=max(cost / 10, 1e-12))
    cost /= 10
  return z


def balanced(increasing: Function, decreasing: Function, z: np.ndarray) -> np.ndarray:
  """Z scaled so that functions of degree 2 and -2 have the same value there."""
  return z * (decreasing.value(z) / increasing.value(z)) ** 0.25


def gram(series: np.ndarray, size: int, averaged: bool) -> np.ndarray:
  """sum_t q_t v[t - i] v[t - j] for i, j < size, with q_t = 1 or (n - t) / n.

  `series`: v, shape [n], n at least `size`.
  """
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

  `workload`: Rows of A, shape [m, n].
  `weights`: Shape [m], or None for 1 / n each.
  """
  num_rounds = workload.shape[1]
  if weights is None:
    weights = np.full(len(workload), 1 / num_rounds)
  scaled = workload * np.sqrt(weights)[:, np.newaxis]
  pairs = scaled.T @ scaled
  # Sums along diagonals less than `size` from the main one, from the lower right end.
  for i in range(num_rounds - 2, -1, -1):
    near = slice(max(0, i - size), min(num_rounds - 1, i + size))
    pairs[i, near] += pairs[i + 1, near.start + 1 : near.stop + 1]
  return pairs[:size, :size]


def shifts(series: np.ndarray, count: int) -> np.ndarray:
  """The first columns of the lower-triangular Toeplitz matrix of a series."""
  return scipy.linalg.toeplitz(series, np.zeros(count))


def _newton_step(at: Derivatives) -> np.ndarray:
  """Minus the gradient over the Hessian, with curvatures made positive.

  Variables are scaled to curvatures of 1. Where the Hessian is not positive definite,
  its eigenvalues are replaced by their absolute values.
  """
  if not np.all(np.isfinite(at.hessian)):
    raise descent.ConvergenceError('the second derivatives are not finite.')
  scale = 1 / np.sqrt(np.maximum(np.abs(np.diagonal(at.hessian)), 1e-300))
  scaled = at.hessian * np.outer(scale, scale)
  gradient = scale * at.gradient
  try:
    factor = scipy.linalg.cho_factor(scaled, lower=True, check_finite=False)
    return -scale * scipy.linalg.cho_solve(factor, gradient)
  except np.linalg.LinAlgError:
    curvatures, directions = scipy.linalg.eigh(scaled, check_finite=False)
    curvatures = np.maximum(np.abs(curvatures), _FLATTEST * np.abs(curvatures).max())
    return -scale * (directions @ (directions.T @ gradient / curvatures))


def _line_search(
  function: Function, z: np.ndarray, at: Derivatives, step: np.ndarray
) -> np.ndarray:
  """The first of z + step, z + step / 2, ... that gains part of what the model does."""
  slope = float(at.gradient @ step)
  length = 1.0
  while length > _SMALLEST_STEP:
    candidate = z + length * step
    wanted = at.value + 1e-4 * length * slope + _ROUNDING * abs(at.value)
    with np.errstate(over='ignore', invalid='ignore'):
      if function.value(candidate) <= wanted:
        return candidate
    length /= 2
  raise descent.ConvergenceError(
    f'no step along the descent direction lowers {at.value:.6g}, though its slope is '
    f'{slope:.3g}.'
  )


def _hankel(left: np.ndarray, right: np.ndarray, size: int) -> np.ndarray:
  """sum_t left[t] right[t - i - j] for i, j < size."""
  sums = power_series.correlate(left, right, 2 * size - 1)
  return scipy.linalg.hankel(sums[:size], sums[size - 1 :])


def _from_upper_left(
  first_row: np.ndarray, decrease: Callable[[int], np.ndarray]
) -> np.ndarray:
  """The symmetric matrix whose row i + 1 is row i, moved right, minus decrease(i)."""
  matrix = np.empty((len(first_row), len(first_row)))
  matrix[0] = matrix[:, 0] = first_row
  for i in range(len(first_row) - 1):
    matrix[i + 1, 1:] = matrix[i, :-1] - decrease(i)
  return matrix
