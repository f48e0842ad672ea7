"""Minimises the mean or the maximum of smooth errors, until convergence.

A smooth loss is minimised by L-BFGS, and the maximum error by an exponential method of
multipliers around it. (`blt_search` and `series_optimization` have Newton's method, and
`dense` a fixed point for the mean.)

There are two implementations of L-BFGS. `bounded` is SciPy's, with bounds, for up to
some thousand variables: Toeplitz strategies take 10 to 200 evaluations. `lbfgs` is for
matrices, whose evaluations are expensive: 500 x 50 variables take 76 of them, and half
as long as with SciPy's.
"""

import collections
import logging
import math
import time
from typing import Any, Callable, NamedTuple, Optional, Union

import numpy as np
import scipy.special

_logger = logging.getLogger(__name__)

# Loss and gradient; outside of the domain infinity and `None`.
Loss = Callable[[np.ndarray], tuple[float, Optional[np.ndarray]]]
# Errors, and a function from weights w to the gradient of w @ errors.
Evaluated = tuple[np.ndarray, Callable[[np.ndarray], np.ndarray]]
Errors = Callable[[np.ndarray], Optional[Evaluated]]  # None outside the domain.
Report = Callable[[float], None]
# Minimises a loss from a start, to a relative tolerance, and reports each loss.
Descend = Callable[[Loss, np.ndarray, float, Report], np.ndarray]

_MEMORY_BYTES = 2**30
_MAX_PAIRS = 20
_MAX_SMALL_STEPS = 3  # Steps in a row with a small predicted decrease.
_SUFFICIENT_DECREASE = 1e-4
# Smoothing, relative to the maximum: at first, and the minimum as the gap closes.
_FIRST_SMOOTHING = 0.1
_LAST_SMOOTHING = 1e-3
_UNIFORM_SHARE = 1e-3  # Share of the weights that is uniform, so that none is zero.
_MAX_STALLED_ROUNDS = 10  # Iterations without progress, because of rounding errors.
_LOG_LOSS_OUTSIDE = 1e4  # Outside of the domain; higher than that of any strategy.
_MAX_SLOPE = 1e-5  # Slope of a loss's logarithm, if rounding errors end a search.
_SHOW_AFTER_SECONDS = 2.0
_LOG_EVERY_SECONDS = 10.0


class ConvergenceError(RuntimeError):
  """An optimisation did not converge; there is no result."""


class Minimum(NamedTuple):
  """The result of a minimisation."""

  point: np.ndarray  # The array at which the loss is least.
  # Convex weights, in the shape of the errors, for which `point` (nearly) minimises the
  # weighted sum of errors, too. They certify the minimum.
  weights: np.ndarray


def minimize_mean(
  errors: Errors,
  start: np.ndarray,
  tolerance: float,
  progress: Report,
  weights: Optional[np.ndarray] = None,
  descend: Optional[Descend] = None,
) -> Minimum:
  """Minimises a weighted mean of the errors, to a decrease below `tolerance`."""
  if weights is None:
    weights = _uniform(_errors_at(errors, start))

  def loss(point: np.ndarray) -> tuple[float, Optional[np.ndarray]]:
    evaluated = errors(point)
    if evaluated is None:
      return math.inf, None
    values, pull_back = evaluated
    return float(weights @ values), pull_back(weights)

  point = (descend or lbfgs)(loss, start, tolerance, _error_report(progress))
  return Minimum(point, weights)


def minimize_max(
  errors: Errors,
  start: np.ndarray,
  tolerance: float,
  progress: Report,
  weights: Optional[np.ndarray] = None,
  descend: Optional[Descend] = None,
) -> Minimum:
  """Minimises the maximum of the errors, until weights certify the minimum.

  The method of multipliers with exponential penalty (Tseng and Bertsekas, "On the
  convergence of the exponential multiplier method for convex programming", 1993): with
  smoothing s and weights w, minimise the smooth

      s log sum_t w[t] exp(errors[t] / s)  <=  max_t errors[t],

  then multiply w[t] by a factor proportional to exp(errors[t] / s), and repeat. So s
  need not go to zero, where the loss has a kink; it is chosen by the remaining gap.

  At a minimum of the smooth loss, its gradient is that of `new weights @ errors`. If
  errors are convex functions of some other variable, no point has a smaller weighted
  sum, and hence none a smaller maximum, than `new weights @ errors`.

  Returns the best point seen. If rounding errors prevent the tolerance from being
  reached, its gap is larger, and a warning is logged.
  """
  report = _error_report(progress)
  values = _errors_at(errors, start)
  smoothing = _FIRST_SMOOTHING if weights is None else _LAST_SMOOTHING
  if weights is None:
    weights = _uniform(values)
  point, best, best_gap, stalled = start, Minimum(start, weights), math.inf, 0
  while best_gap > tolerance and stalled < _MAX_STALLED_ROUNDS:
    mixed = (1 - _UNIFORM_SHARE) * weights + _UNIFORM_SHARE * _uniform(values)
    loss, gradient = _smooth_maximum(errors, mixed, smoothing * float(values.max()))
    point = (descend or lbfgs)(loss, point, 0.1 * tolerance * smoothing, report)
    values = _errors_at(errors, point)
    weights = gradient(values)
    gap = 1.0 - float(weights @ values / values.max())
    stalled += 1
    if gap < best_gap:
      best, best_gap, stalled = Minimum(point, weights), gap, 0
    smoothing = max(_LAST_SMOOTHING, min(smoothing, gap / 4))
  if best_gap > tolerance:
    _logger.warning(
      'rounding errors end the search for the least maximum error at a relative gap of '
      '%.2g, not %.2g',
      best_gap,
      tolerance,
    )
  return best


def lbfgs(
  loss: Loss, start: np.ndarray, tolerance: float, report: Report
) -> np.ndarray:
  """Minimises a smooth positive loss by the limited-memory BFGS method.

  Nocedal and Wright, "Numerical Optimization", algorithm 7.5, with a backtracking line
  search. It ends when several steps in a row have a predicted relative decrease below
  `tolerance`, or when the line search finds no smaller loss because of rounding.
  """
  point = start
  value, gradient = loss(point)
  assert gradient is not None, 'the start must be in the domain.'
  pairs = max(3, min(_MAX_PAIRS, _MEMORY_BYTES // (16 * start.size)))
  memory: collections.deque = collections.deque(maxlen=pairs)
  small_steps = 0
  while small_steps < _MAX_SMALL_STEPS:
    direction = _quasi_newton(memory, gradient, value)
    slope = float(np.vdot(gradient, direction))
    small_steps = small_steps + 1 if slope <= tolerance * value else 0
    accepted = _backtrack(loss, point, value, direction, slope)
    if accepted is None:
      break
    new_point, value, new_gradient = accepted
    step, change = new_point - point, new_gradient - gradient
    product = np.vdot(step, change)
    # Skip steps along which the curvature is not positive.
    if product > 1e-10 * math.sqrt(np.vdot(step, step) * np.vdot(change, change)):
      memory.append((step, change, 1.0 / product))
    point, gradient = new_point, new_gradient
    report(value)
  return point


def _quasi_newton(
  memory: collections.deque, gradient: np.ndarray, value: float
) -> np.ndarray:
  """Applies the estimate of the inverse Hessian to the gradient."""
  direction = gradient.copy()
  if not memory:
    # Predicted to lower the loss by a tenth, but not longer than the gradient.
    direction *= min(1.0, 0.1 * value / max(np.vdot(gradient, gradient), 1e-300))
    return direction
  shares = []
  for step, change, reciprocal in reversed(memory):
    share = reciprocal * np.vdot(step, direction)
    direction -= share * change
    shares.append(share)
  _, change, reciprocal = memory[-1]
  direction *= 1.0 / (reciprocal * np.vdot(change, change))
  for (step, change, reciprocal), share in zip(memory, reversed(shares)):
    direction += (share - reciprocal * np.vdot(change, direction)) * step
  return direction


def _backtrack(
  loss: Loss, point: np.ndarray, value: float, direction: np.ndarray, slope: float
) -> Optional[tuple[np.ndarray, float, np.ndarray]]:
  """Finds a point along `-direction` with a sufficiently smaller loss, or `None`."""
  length = 1.0
  while length > 1e-12:
    new_point = point - length * direction
    new_value, new_gradient = loss(new_point)
    if new_value <= value - _SUFFICIENT_DECREASE * length * slope:
      return (new_point, new_value, new_gradient) if new_gradient is not None else None
    if math.isfinite(new_value):
      # The minimum of the parabola through both values with the slope at the point.
      parabola = 0.5 * slope * length / (new_value - value + length * slope)
      length *= min(max(parabola, 0.1), 0.5)
    else:
      length *= 0.25
  return None


def bounded(
  lower: Union[float, np.ndarray] = -math.inf,
  upper: Union[float, np.ndarray] = math.inf,
) -> Descend:
  """Returns SciPy's L-BFGS-B with bounds, applied to the logarithm of the loss."""

  def descend(
    loss: Loss, start: np.ndarray, tolerance: float, report: Report
  ) -> np.ndarray:
    import scipy.optimize  # Slow to import, and few callers optimise.

    def logarithm(point: np.ndarray) -> tuple[float, np.ndarray]:
      with np.errstate(all='ignore'):  # A step that is too long may overflow.
        value, gradient = loss(point)
        if gradient is None or not 0 < value < math.inf:
          return _LOG_LOSS_OUTSIDE, np.zeros_like(point)
        slope = gradient / value
      if not np.all(np.isfinite(slope)):
        return _LOG_LOSS_OUTSIDE, np.zeros_like(point)
      report(value)
      return math.log(value), slope

    def search(start: np.ndarray) -> Any:
      return scipy.optimize.minimize(
        logarithm,
        np.clip(start, lower, upper),
        jac=True,
        method='L-BFGS-B',
        bounds=scipy.optimize.Bounds(*np.broadcast_arrays(lower, upper, start)[:2]),
        options={
          'maxiter': 5000,
          'maxfun': 20000,
          'ftol': 0.01 * tolerance,
          'gtol': 1e-9,
          'maxcor': 30,
        },
      )

    # It may stop early when many bounds become active: restart it while that helps.
    before, result = math.inf, search(start)
    while result.fun < before - tolerance:
      before, result = result.fun, search(result.x)
    free = (result.x > lower) & (result.x < upper)
    slope = np.abs(result.jac[free]).max(initial=0.0)
    if not (result.success or slope <= _MAX_SLOPE):
      raise ConvergenceError(
        f'no strategy with the least error was found: {result.message}'
      )
    return result.x

  return descend


def _smooth_maximum(
  errors: Errors, weights: np.ndarray, width: float
) -> tuple[Loss, Callable[[np.ndarray], np.ndarray]]:
  """Loss width log sum_t weights[t] exp(errors[t] / width); its gradient by errors."""
  log_weights = np.log(weights)

  def gradient(values: np.ndarray) -> np.ndarray:  # Convex weights.
    return scipy.special.softmax(log_weights + values / width)

  def loss(point: np.ndarray) -> tuple[float, Optional[np.ndarray]]:
    evaluated = errors(point)
    if evaluated is None:
      return math.inf, None
    values, pull_back = evaluated
    value = width * float(scipy.special.logsumexp(log_weights + values / width))
    return value, pull_back(gradient(values))

  return loss, gradient


def _uniform(values: np.ndarray) -> np.ndarray:
  return np.full(values.shape, 1.0 / values.size)


def _errors_at(errors: Errors, point: np.ndarray) -> np.ndarray:
  evaluated = errors(point)
  assert evaluated is not None, 'the start must be in the domain.'
  return evaluated[0]


def _error_report(progress: Report) -> Report:
  """Reports the square roots of losses, which are errors."""
  return lambda loss: progress(math.sqrt(max(loss, 0.0)))


class Progress:
  """A progress bar on a terminal, closed with this object, or log lines (INFO)."""

  def __init__(self, name: str):
    import tqdm  # Slow to import, and few callers need it.

    self._name = name
    self._iterations = 0
    self._bar = tqdm.tqdm(
      desc=name,
      delay=_SHOW_AFTER_SECONDS,
      disable=None,  # Disabled unless standard error is a terminal.
      leave=False,
    )
    self._logged = time.monotonic() + _SHOW_AFTER_SECONDS - _LOG_EVERY_SECONDS

  def __call__(self, error: float) -> None:
    """Shows that one more iteration is done, and its error."""
    self._iterations += 1
    if not self._bar.disable:
      self._bar.set_postfix_str(f'error {error:.6g}', refresh=False)
      self._bar.update()
    elif time.monotonic() - self._logged > _LOG_EVERY_SECONDS:
      self._logged = time.monotonic()
      _logger.info('%s: iteration %d, error %.6g', self._name, self._iterations, error)
