"""What `blt.optimize_windowed` optimises: decays and scales.

    c_0 = 1,    c_i = [i < window] sum_j scales_j decays_j^(i - 1) + scale decay^(i - 1)

where the last term, the tail, may be missing. The loss is log(sensitivity^2 error^2),
as of BLTs (`blt_search`); here with coefficients, of which there are as many as rounds
at most, and Fourier transforms: a window has no closed form that is faster.

Scales are positive, so that coefficients do not increase from index 1 on, and the
earliest, densest pattern of participation is the worst (arXiv:2405.13763).

What is searched are logarithms, in this order: the complements of the decays, the
scales; the complement of the tail's decay, its scale.

Arguments are not checked here.
"""

import dataclasses
import math
from collections.abc import Callable

import numpy as np

from tff_dp_aggregators.strategies import workload as workload_lib
from tff_dp_aggregators.strategies.numerics import blt_search
from tff_dp_aggregators.strategies.numerics import descent
from tff_dp_aggregators.strategies.numerics import power_series

# Coefficients, and what makes of a gradient by them one by parameters.
_Column = tuple[np.ndarray, Callable[[np.ndarray], np.ndarray]]

_START_GAIN = 1e-6
_START_SCALE = 1e-3
_FAST = 0.9  # Complement of a decay that begins as next to nothing.
# Of the logarithm of the squared error; what is left to gain is of its square.
_LARGEST_SLOPE = 1e-5
_SLOWEST = 1e-12  # Smallest complement of a decay.
_SMALLEST_SCALE = 1e-12
_OUTSIDE = 1e4  # A loss that no strategy has.


@dataclasses.dataclass(frozen=True)
class WindowProblem:
  """What is asked for, and the loss: log(sensitivity^2 error^2).

  Attributes:
    window: From which coefficient on all decays but that of the tail are left out.
    uncut: What is asked for but the window, as of a BLT.
    has_tail: Whether there is a decay that goes on after the window.
  """

  window: int
  uncut: blt_search.BLTProblem
  has_tail: bool = False

  def loss_and_slope(self, parameters: np.ndarray) -> tuple[float, np.ndarray]:
    """The loss of parameters, and its gradient."""
    coefficients, pull_back = self._column(parameters)
    cost, cost_slope = self._squared_sensitivity(coefficients)
    error, error_slope = self._squared_error(coefficients)
    slope = pull_back(error_slope / error + cost_slope / cost)
    return math.log(error * cost), slope

  def search(
    self, max_decays: int, min_gain: float, report: Callable[[float], None]
  ) -> tuple[float, np.ndarray]:
    """The least loss and its parameters, with one decay more while each helps."""
    loss, parameters = self.uncut.identity_loss(), np.zeros(0)
    for num_decays in range(0 if self.has_tail else 1, max_decays + 1):
      more_loss, more = self.minimize(self.start(num_decays), report)
      if num_decays and gain(more_loss, loss) < min_gain:
        break
      loss, parameters = more_loss, more
    return loss, parameters

  def start(self, num_decays: int) -> np.ndarray:
    """Parameters to begin with: the best BLT, filled up with fast and small decays.

    Without a tail that of one window; with one, the slowest decay of all rounds' BLT.
    """
    wanted = num_decays + self.has_tail
    problem = self.uncut
    if not self.has_tail:
      problem = dataclasses.replace(
        problem, num_rounds=self.window, min_separation=1, participations=1
      )
    nodes = blt_search.best_nodes(problem, wanted, _START_GAIN)
    scales, decays = blt_search.scales_and_decays(nodes)
    missing = wanted - len(decays)
    complements = np.append(np.maximum(1.0 - decays, _SLOWEST), [_FAST] * missing)
    scales = np.append(scales, [_START_SCALE] * missing)
    if not self.has_tail:
      return np.log(np.concatenate([complements, scales]))
    # The slowest comes first.
    tail = [complements[0], scales[0]]
    return np.log(np.concatenate([complements[1:], scales[1:], tail]))

  def minimize(
    self, start: np.ndarray, report: Callable[[float], None]
  ) -> tuple[float, np.ndarray]:
    """The least loss that descends from a start (L-BFGS), and its parameters."""
    import scipy.optimize  # Slow to import, and few callers optimise.

    lower, upper = self._bounds(len(start))

    def loss_and_slope(parameters: np.ndarray) -> tuple[float, np.ndarray]:
      with np.errstate(over='ignore', invalid='ignore'):
        loss, slope = self.loss_and_slope(parameters)
      if not (math.isfinite(loss) and np.all(np.isfinite(slope))):
        # Of a step that is too long: the noise of such a strategy grows without end.
        return _OUTSIDE, np.zeros_like(parameters)
      report(math.exp(loss / 2))  # As an error.
      return loss, slope

    result = scipy.optimize.minimize(
      loss_and_slope,
      np.clip(start, lower, upper),
      jac=True,
      method='L-BFGS-B',
      bounds=list(zip(lower, upper)),
      options={'maxiter': 2000, 'ftol': 1e-14, 'gtol': 1e-9, 'maxcor': 30},
    )
    # For millions of rounds, rounding may end the last line search.
    free = (result.x > lower) & (result.x < upper)
    if not (
      result.success or np.abs(result.jac[free]).max(initial=0.0) <= _LARGEST_SLOPE
    ):
      raise descent.ConvergenceError(
        f'no best windowed BLT of {len(start) // 2} decays (with that of a tail) was '
        f'found: {result.message}'
      )
    return float(result.fun), result.x

  def _bounds(self, size: int) -> tuple[np.ndarray, np.ndarray]:
    """The least and the largest parameters."""
    decays = size // 2 - self.has_tail
    is_scale = np.repeat([False, True, False, True], [decays] * 2 + [self.has_tail] * 2)
    lower = np.where(is_scale, math.log(_SMALLEST_SCALE), math.log(_SLOWEST))
    return lower, np.where(is_scale, 0.0, -1e-9)

  def _column(self, parameters: np.ndarray) -> _Column:
    """All coefficients that are not 0, of parameters."""
    if not self.has_tail:
      return coefficients_of(parameters, self.window)
    head, pull_back_head = coefficients_of(parameters[:-2], self.window)
    tail, pull_back_tail = coefficients_of(parameters[-2:], self.uncut.num_rounds)
    tail[: self.window] += head
    tail[0] = 1.0

    def pull_back(by_coefficient: np.ndarray) -> np.ndarray:
      by_head = pull_back_head(by_coefficient[: self.window])
      return np.append(by_head, pull_back_tail(by_coefficient))

    return tail, pull_back

  def _squared_sensitivity(self, coefficients: np.ndarray) -> tuple[float, np.ndarray]:
    """||C u||^2, u the earliest, densest pattern, and its gradient."""
    n, separation = self.uncut.num_rounds, self.uncut.min_separation
    starts = separation * np.arange(self.uncut.participations)
    if len(coefficients) <= separation:  # Columns do not overlap.
      lags = np.arange(len(coefficients))
      # How many of the columns do not reach as far down.
      ended = np.searchsorted(np.sort(n - starts), lags, side='right')
      counts = self.uncut.participations - ended
      squared = float(counts @ np.square(coefficients))
      return squared, 2 * counts * coefficients
    pattern = np.zeros(n)
    pattern[starts] = 1.0
    response = power_series.multiply(pattern, coefficients, n)
    by_coefficient = power_series.correlate(response, pattern, len(coefficients))
    return float(response @ response), 2 * by_coefficient

  def _squared_error(self, coefficients: np.ndarray) -> tuple[float, np.ndarray]:
    """The mean or largest squared row norm of A C^-1, and its gradient.

    With a the workload's first column, b = C^-1 a, and its derivative in direction dC
    is -C^-1 dC b; so the gradient of sum_i weights_i b_i^2 is the correlation of
    -2 C^-T (weights b) with b.
    """
    n = self.uncut.num_rounds
    workload = workload_lib.Workload(
      n, self.uncut.momentum, weight_decay=self.uncut.weight_decay
    ).coefficients()
    inverse = power_series.inverse(coefficients, n)
    estimator = power_series.multiply(workload, inverse, n)
    averaged = self.uncut.objective == 'mean'
    weights = 1.0 - np.arange(n) / n if averaged else np.ones(n)
    weighted = weights * estimator
    back = power_series.multiply(estimator, inverse, n)
    by_coefficient = -2.0 * power_series.correlate(weighted, back, len(coefficients))
    return float(weighted @ estimator), by_coefficient


def gain(loss: float, other: float) -> float:
  """By which part of another one's error a loss is smaller."""
  return -math.expm1((loss - other) / 2)


def coefficients_of(parameters: np.ndarray, window: int) -> _Column:
  """The coefficients of a windowed BLT as a function of what is searched.

  Returns the coefficients, and what makes of a gradient by them that by the parameters.
  """
  complements, scales = np.split(np.exp(parameters), 2)
  steps = np.arange(window - 1)
  powers = np.exp(steps * np.log1p(-complements)[:, np.newaxis])

  def pull_back(by_coefficient: np.ndarray) -> np.ndarray:
    by_scale = scales * (powers @ by_coefficient[1:])
    slower = -scales * complements / (1.0 - complements)
    by_complement = slower * (powers @ (steps * by_coefficient[1:]))
    return np.append(by_complement, by_scale)

  return np.append(1.0, scales @ powers), pull_back
