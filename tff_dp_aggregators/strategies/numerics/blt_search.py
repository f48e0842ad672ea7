"""Search for the best buffered linear Toeplitz strategies, with or without a window.

**Without a window**, C(x) = prod_j (1 - theta'_j x) / prod_j (1 - theta_j x) has
positive output scales if and only if the decays of `C` and of `C^-1` interlace,

    1 >= theta_1 > theta'_1 > theta_2 > theta'_2 > ... > theta_d > theta'_d

(arXiv:2408.08868 searches the same 2 d numbers, with a penalty). Here they are
represented by their complements 1 - theta, the *nodes*, increasing from 0, and the
variables are logarithms of the gaps between them. The first 2 d gaps, up to theta_d and
from there to decay 0, sum to 1, which keeps every decay in [0, 1]. The scales add up to
every other gap, of which the last is a fraction of the rest to 1. So every point is a
strategy with positive, non-increasing coefficients, whose sensitivity is exact.

The loss is the logarithm of squared sensitivity times squared error. Both are sums of
geometric series with positive weights, so no digits are lost, and the cost does not
depend on the number of rounds. It is minimised by Newton's method, with second
derivatives from finite differences of gradients, and several starts and step lengths in
one evaluation. Buffers are added at the best of many decays; useless ones are removed.

**With a window** (`WindowProblem`), no closed form is faster than the Fourier
transforms of `series_problem`.

Arguments are not checked here.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Optional

import numpy as np

from tff_dp_aggregators.strategies import workload as workload_lib
from tff_dp_aggregators.strategies.numerics import descent
from tff_dp_aggregators.strategies.numerics import exponential_sums
from tff_dp_aggregators.strategies.numerics import series_problem
from tff_dp_aggregators.strategies.participation import Participation

_STEPS = 2.0 ** np.array([1, 0, -1, -2, -3, -5, -7, -10])  # Step lengths tried.
_LARGEST_STEP = 2.0  # Maximum change of any parameter in a step of length 1.
# A gap at either end is also tried closed if its logarithm decreases by this in a step.
_CLOSING_STEP = -0.5
_MIN_RELATIVE_DISTANCE = 1e-4  # From decays of C^-1 to those of the workload.
_MAX_PART = 1 - 1e-6  # Maximum logistic function of the last parameter at a start.
_FINITE_DIFFERENCE = 1e-4  # For second derivatives by differences of gradients.
_MIN_CURVATURE = 1e-11  # Smaller ones, relative to the largest, are rounding errors.
# A descent ends when a step's gain and decrement are below this part of `min_decrease`.
_TOLERANCE = 1e-2
_FINAL_TOLERANCE = 1e-14  # Absolute tolerance of the loss in the final descent.
_MAX_STEPS = 40
_NUM_POSITIONS = 80  # Number of decays at which a new buffer is tried.
_MAX_LOCAL_MINIMA = 1  # Number of local minima over these decays that are followed.
# For a search with a window.
_START_GAIN = 1e-6  # `min_gain` of the BLT with which it starts.
_START_SCALE = 1e-3  # Scale of further decays at the start,
_FAST_COMPLEMENT = 0.9  # and their complements.
_MIN_COMPLEMENT = 1e-12  # Lower bounds.
_MIN_SCALE = 1e-12

# A value and its derivatives by two arrays.
_ValueAndSlopes = tuple[np.ndarray, np.ndarray, np.ndarray]
# Coefficients, and a function from the gradient by them to that by parameters.
_Column = tuple[np.ndarray, Callable[[np.ndarray], np.ndarray]]


@dataclasses.dataclass(frozen=True)
class BLTProblem:
  """The problem of finding the best BLT: limits, 'mean' or 'max', and the workload."""

  num_rounds: int
  min_separation: int
  participations: int
  objective: str
  momentum: float = 0.0
  weight_decay: float = 0.0

  @property
  def poles(self) -> list[float]:
    """1 - decay for each decay of the workload: 0 for prefix sums."""
    momentum = [1.0 - self.momentum] if self.momentum else []
    return [self.weight_decay, *momentum]

  def loss_and_slope(self, nodes: np.ndarray) -> exponential_sums.ValueAndSlope:
    """log(sensitivity^2 error^2) of nodes [..., 2 d], or infinity, and its gradient."""
    decays, inverse_decays = nodes[..., 0::2], nodes[..., 1::2]
    error, *error_slopes = _error_by_nodes(decays, inverse_decays, self)
    cost, *cost_slopes = _sensitivity_by_nodes(decays, inverse_decays, self)
    with np.errstate(invalid='ignore'):
      loss = np.log(error) + np.log(cost)
    slope = np.empty_like(nodes)
    for part in (0, 1):
      slope[..., part::2] = (
        error_slopes[part] / error[..., np.newaxis]
        + cost_slopes[part] / cost[..., np.newaxis]
      )
    # Rounding errors grow if a decay is close to one of the workload.
    poles = np.array(self.poles)
    distance = np.abs(inverse_decays[..., np.newaxis] - poles)
    is_too_close = np.any(distance < _MIN_RELATIVE_DISTANCE * poles, axis=(-2, -1))
    return np.where(is_too_close, np.inf, loss), slope


def problem(
  objective: str,
  participation: Participation,
  workload: Optional[workload_lib.Checked] = None,
) -> BLTProblem:
  """The problem for a `Workload` with a constant learning rate, or prefix sums."""
  momentum = weight_decay = 0.0
  if isinstance(workload, workload_lib.Workload):
    momentum, weight_decay = workload.momentum, workload.weight_decay
  return BLTProblem(
    participation.num_rounds,
    min(participation.min_separation, participation.num_rounds),
    participation.possible_participations,
    objective,
    momentum,
    weight_decay,
  )


def squared_error(
  weights: np.ndarray, complements: np.ndarray, problem: BLTProblem
) -> _ValueAndSlopes:
  """Squared error of an estimator B with b_i = sum_j weights_j (1 - q_j)^i.

  With momentum the exponent is i + 1. Returns the maximum or the mean squared row norm
  of `B`, shape [...], and its derivatives by log(weights) and by q, [..., d + 1].
  """
  pairs = exponential_sums.product_complement(
    complements[..., :, np.newaxis], complements[..., np.newaxis, :]
  )
  if problem.objective == 'max':
    sums, slopes = exponential_sums.series_and_slope(pairs, problem.num_rounds)
  else:
    sums, slopes = exponential_sums.series_of_series_and_slope(
      pairs, problem.num_rounds
    )
    sums, slopes = sums / problem.num_rounds, slopes / problem.num_rounds
  if problem.momentum:
    sums, slopes = (1.0 - pairs) * sums, (1.0 - pairs) * slopes - sums
  ratios = 1.0 - complements
  by_weight = weights * _matrix_vector(sums, weights)
  by_complement = weights * _matrix_vector(slopes, weights * ratios)
  return by_weight.sum(-1), 2.0 * by_weight, 2.0 * by_complement


def squared_sensitivity(
  scales: np.ndarray, complements: np.ndarray, problem: BLTProblem
) -> _ValueAndSlopes:
  """||C u||^2, u = 0, b, 2b, ..., c_i = sum_j scales_j (1 - p_j)^(i-1).

  Returns it and its derivatives by log(scales) and by p.
  """
  pairs, pairs_slope, single, single_slope = _pattern_products(complements, problem)
  by_scale = scales * (single + _matrix_vector(pairs, scales))
  by_complement = scales * (single_slope + _matrix_vector(pairs_slope, scales))
  value = problem.participations + (scales * single + by_scale).sum(-1)
  return value, 2.0 * by_scale, 2.0 * by_complement


def _pattern_products(
  complements: np.ndarray, problem: BLTProblem
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
  """Inner products of the sums of exponentials that start in rounds 0, b, 2b, ...

  In round m b + s, 0 < s <= b, the sum of m + 1 participations for exponential j is
  r_j^(s-1) S(m + 1), with S(m + 1) the sum of m + 1 powers of r_j^b. In the first round
  of participation m + 1, the diagonal entry 1 is multiplied with r_j^(b-1) S(m).

  Returns the coefficients of scales_i scales_j in ||C u||^2, and of 2 scales_j, each
  followed by its derivative with respect to p_i or p_j.
  """
  n, b, k = problem.num_rounds, problem.min_separation, problem.participations
  ratios = 1.0 - complements
  product = exponential_sums.product_complement(
    complements[..., :, np.newaxis], complements[..., np.newaxis, :]
  )
  last, last_slope = exponential_sums.series_and_slope(product, n - 1 - (k - 1) * b)
  last_slope = last_slope * ratios[..., np.newaxis, :]
  if k == 1:
    zeros = np.zeros_like(complements)
    return last, last_slope, zeros, zeros
  epoch = exponential_sums.power_complement(complements, b)  # 1 - r^b
  epoch_slope = b * exponential_sums.power(complements, b - 1)
  block, block_slope = exponential_sums.series_and_slope(product, b)
  block_slope = block_slope * ratios[..., np.newaxis, :]
  before, before_slope = exponential_sums.products_of_series_and_slope(epoch, k - 1)
  before_slope = before_slope * epoch_slope[..., :, np.newaxis]
  every, every_slope = exponential_sums.series_and_slope(epoch, k)
  every_pairs = exponential_sums.outer(every, every)
  pairs = block * before + last * every_pairs
  pairs_slope = (
    block_slope * before
    + block * before_slope
    + last_slope * every_pairs
    + last * exponential_sums.outer(every_slope * epoch_slope, every)
  )
  sums, sums_slope = exponential_sums.series_of_series_and_slope(epoch, k - 1)
  decayed = exponential_sums.power(complements, b - 1)
  decayed_slope = (1 - b) * exponential_sums.power(complements, max(b - 2, 0))
  single_slope = decayed_slope * sums + decayed * sums_slope * epoch_slope
  return pairs, pairs_slope, decayed * sums, single_slope


def _error_by_nodes(
  decays: np.ndarray, inverse_decays: np.ndarray, problem: BLTProblem
) -> _ValueAndSlopes:
  """The squared error, and its derivatives by the nodes of `C` and of `C^-1`."""
  fixed = problem.poles
  fixed_poles = np.broadcast_to(fixed, decays.shape[:-1] + (len(fixed),))
  poles = np.concatenate([fixed_poles, inverse_decays], axis=-1)
  parts = exponential_sums.residues(
    exponential_sums.differences(decays, poles),
    exponential_sums.differences(poles, poles),
  )
  value, by_weight, by_pole = squared_error(parts.values, poles, problem)
  by_decay, by_pole_position = parts.pull_back(by_weight)
  return value, by_decay, (by_pole + by_pole_position)[..., len(fixed) :]


def _sensitivity_by_nodes(
  decays: np.ndarray, inverse_decays: np.ndarray, problem: BLTProblem
) -> _ValueAndSlopes:
  """The squared sensitivity, and its derivatives by the nodes of `C` and of `C^-1`."""
  parts = exponential_sums.residues(
    exponential_sums.differences(inverse_decays, decays),
    exponential_sums.differences(decays, decays),
  )
  value, by_scale, by_decay = squared_sensitivity(parts.values, decays, problem)
  by_inverse_decay, by_decay_position = parts.pull_back(by_scale)
  return value, by_decay + by_decay_position, by_inverse_decay


def _matrix_vector(matrix: np.ndarray, vector: np.ndarray) -> np.ndarray:
  return (matrix @ vector[..., np.newaxis])[..., 0]


# Parameters are 2 d + 1 numbers. The first 2 d are logarithms of gaps, up to a factor,
# from 1 over the decays to 0, except that of the last buffer. That one is the rest to 1
# after those of the other buffers, times the logistic function of the last parameter.


def _from_parameters(
  parameters: np.ndarray,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
  """Returns nodes, gaps, the maximum of the last gap, and the fraction that it is."""
  logarithms = parameters[..., :-1]
  gaps = np.exp(logarithms - logarithms.max(-1, keepdims=True))
  gaps /= gaps.sum(-1, keepdims=True)
  remaining = 1.0 - gaps[..., 1:-2:2].sum(-1)
  part = 1.0 / (1.0 + np.exp(-parameters[..., -1]))
  nodes = np.minimum(np.cumsum(gaps, axis=-1), 1.0)
  nodes[..., -1] = nodes[..., -2] + remaining * part
  return nodes, gaps, remaining, part


def parameters_from_nodes(nodes: np.ndarray) -> np.ndarray:
  """Parameters of nodes [2 d]; cuts the last scale if scales sum to more than 1."""
  remaining = 1.0 - (nodes[1:-1:2] - nodes[0:-2:2]).sum()
  part = min((nodes[-1] - nodes[-2]) / remaining, _MAX_PART)
  gaps = np.diff(nodes[:-1], prepend=0.0, append=1.0)
  with np.errstate(divide='ignore'):
    return np.append(np.log(gaps), np.log(part) - np.log1p(-part))


def loss_and_slope(
  problem: BLTProblem, parameters: np.ndarray
) -> exponential_sums.ValueAndSlope:
  """The loss for parameters of shape [..., 2 d + 1], and its gradient."""
  nodes, gaps, remaining, part = _from_parameters(parameters)
  loss, by_node = problem.loss_and_slope(nodes)
  by_last = by_node[..., -1].copy()
  by_node[..., -2] += by_last
  by_gap = np.zeros_like(gaps)
  by_gap[..., :-1] = np.cumsum(by_node[..., -2::-1], axis=-1)[..., ::-1]
  by_gap[..., 1:-2:2] -= (by_last * part)[..., np.newaxis]
  mean = (gaps * by_gap).sum(-1, keepdims=True)
  slope = np.empty_like(parameters)
  slope[..., :-1] = gaps * (by_gap - mean)
  slope[..., -1] = by_last * remaining * part * (1.0 - part)
  return loss, slope


def best_nodes(problem: BLTProblem, max_buffers: int, min_gain: float) -> np.ndarray:
  """Finds the best nodes, [2 d], adding buffers; d is 0 if no buffer gains enough."""
  nodes = np.zeros(0)
  loss = float(problem.loss_and_slope(nodes)[0])  # The loss of C = I.
  # The loss is the logarithm of the squared error.
  min_decrease = -2 * math.log1p(-min_gain)
  while True:
    new_nodes, new_loss = _add_buffer(problem, nodes, min_decrease)
    if loss - new_loss < min_decrease:
      break
    new_nodes, new_loss = _remove_useless(problem, new_nodes, new_loss, min_decrease)
    # One buffer more than allowed is tried, because it may make another one useless.
    if len(new_nodes) > 2 * max_buffers:
      break
    nodes, loss = new_nodes, new_loss
  if not len(nodes):
    return nodes
  start = parameters_from_nodes(nodes)[np.newaxis]
  _, points = descend(problem, start, _FINAL_TOLERANCE)
  return _from_parameters(points[0])[0]


def scales_and_decays(nodes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
  """Output scales and decays of `C`, shape [d]; the scales sum to at most 1."""
  decays, inverse_decays = nodes[0::2], nodes[1::2]
  scales = exponential_sums.residues(
    exponential_sums.differences(inverse_decays, decays),
    exponential_sums.differences(decays, decays),
  ).values
  total = math.fsum(scales)
  if total > 1.0:  # Because of rounding.
    scales = scales / total * (1.0 - 1e-15)
  return scales, 1.0 - decays


def _add_buffer(
  problem: BLTProblem, nodes: np.ndarray, min_decrease: float
) -> tuple[np.ndarray, float]:
  """Returns the best nodes found with one more buffer, and their loss."""
  starts = _starts(problem, nodes)
  losses, _ = loss_and_slope(problem, starts)
  starts, losses = starts[np.isfinite(losses)], losses[np.isfinite(losses)]
  before, after = np.append(np.inf, losses[:-1]), np.append(losses[1:], np.inf)
  minima = np.flatnonzero((losses <= before) & (losses <= after))
  lowest = minima[np.argsort(losses[minima])][:_MAX_LOCAL_MINIMA]
  # The slowest and the fastest decay may help only after the others have changed.
  indices = np.unique(np.append(lowest, [0, len(losses) - 1]))
  return _best_descent(problem, starts[indices], min_decrease)


def _remove_useless(
  problem: BLTProblem, nodes: np.ndarray, loss: float, min_decrease: float
) -> tuple[np.ndarray, float]:
  """Removes a buffer if its two nodes almost cancel; returns nodes and loss."""
  if len(nodes) == 2:
    return nodes, loss
  pairs = range(len(nodes) - 1)
  starts = [parameters_from_nodes(np.delete(nodes, [i, i + 1])) for i in pairs]
  losses, _ = loss_and_slope(problem, np.array(starts))
  if losses.min() - loss > min_decrease / 2:
    return nodes, loss
  return _best_descent(problem, np.array(starts)[[np.argmin(losses)]], min_decrease)


def _best_descent(
  problem: BLTProblem, starts: np.ndarray, min_decrease: float
) -> tuple[np.ndarray, float]:
  """Descends from all starts; returns the best nodes and their loss."""
  losses, points = descend(problem, starts, _TOLERANCE * min_decrease)
  best = int(np.argmin(losses))
  return _from_parameters(points[best])[0], float(losses[best])


def _starts(problem: BLTProblem, nodes: np.ndarray) -> np.ndarray:
  """Parameters with one more small buffer than `nodes`, at each of many decays."""
  starts = []
  for position in np.geomspace(0.03 / problem.num_rounds, 0.95, _NUM_POSITIONS):
    for width in (0.05,) if len(nodes) else (0.05, 1.0, 20.0):
      pair = position * np.array([1.0, 1.0 + width])
      before, after = np.searchsorted(nodes, pair)
      more = np.insert(nodes, before, pair)
      # The new pair may not enclose a node, and no decay may be below 0.
      if before == after and more[-2] <= 1:
        starts.append(parameters_from_nodes(more))
  return np.array(starts)


def descend(
  problem: BLTProblem, points: np.ndarray, tolerance: float
) -> tuple[np.ndarray, np.ndarray]:
  """Newton's method from `points` [m, 2 d + 1]; returns losses [m] and new points."""
  points = points.copy()
  losses, slopes = loss_and_slope(problem, points)
  active = np.arange(len(points))
  for _ in range(_MAX_STEPS):
    directions, decreases = _directions(problem, points[active], slopes[active])
    candidates = _candidates(points[active], directions)
    candidate_losses, candidate_slopes = loss_and_slope(problem, candidates)
    row, best = np.arange(len(active)), np.argmin(candidate_losses, axis=1)
    gains = losses[active] - candidate_losses[row, best]
    better = gains > 0
    indices, row, best = active[better], row[better], best[better]
    points[indices] = candidates[row, best]
    losses[indices] = candidate_losses[row, best]
    slopes[indices] = candidate_slopes[row, best]
    active = active[better & (np.maximum(gains, decreases) > tolerance)]
    if not len(active):
      break
  return losses, points


def _directions(
  problem: BLTProblem, points: np.ndarray, slopes: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
  """Newton steps with absolute curvatures, and half their squared decrements."""
  moves = _FINITE_DIFFERENCE * np.eye(points.shape[-1])
  around = points[:, np.newaxis] + np.concatenate([moves, -moves])
  ahead, behind = np.split(loss_and_slope(problem, around)[1], 2, axis=1)
  curvature = (ahead - behind) / (2 * _FINITE_DIFFERENCE)
  values, vectors = np.linalg.eigh((curvature + np.swapaxes(curvature, -1, -2)) / 2)
  values = np.abs(values)
  values = np.maximum(values, _MIN_CURVATURE * values.max(-1, keepdims=True) + 1e-300)
  along = _matrix_vector(np.swapaxes(vectors, -1, -2), slopes)
  directions = -_matrix_vector(vectors, along / values)
  longest = np.abs(directions).max(-1, keepdims=True)
  shorter = _LARGEST_STEP / np.maximum(longest, _LARGEST_STEP)
  return directions * shorter, (along**2 / values).sum(-1) / 2


def _candidates(points: np.ndarray, directions: np.ndarray) -> np.ndarray:
  """Points after steps of several lengths, and with a gap at either end closed.

  The optimum often has such a gap of 0, whose logarithm is infinite.
  """
  steps = points[:, np.newaxis] + _STEPS[:, np.newaxis] * directions[:, np.newaxis]
  closed = []
  for end in (0, points.shape[-1] - 2):
    step = points + directions
    step[:, end] = np.where(directions[:, end] < _CLOSING_STEP, -np.inf, step[:, end])
    closed.append(step)
  return np.concatenate([steps, np.stack(closed, axis=1)], axis=1)


@dataclasses.dataclass(frozen=True)
class WindowProblem(series_problem.SeriesProblem):
  """The problem of finding the best decays and scales of a windowed BLT.

      c_0 = 1,  c_i = [i < window] sum_j scales_j decays_j^(i - 1) + scale decay^(i - 1)

  where the last term, the tail, is optional. Scales are positive, so that coefficients
  do not increase from index 1 on, and the earliest, densest pattern of participation is
  the worst (arXiv:2405.13763). Parameters are logarithms: of the decays' complements,
  the scales, the complement of the tail's decay, and the tail's scale.
  """

  window: int = 1
  has_tail: bool = False

  @property
  def uncut(self) -> BLTProblem:
    """The same problem for BLTs without a window."""
    return problem(self.objective, self.participation, self.workload)

  def search(
    self, max_decays: int, min_gain: float, report: descent.Report
  ) -> tuple[float, np.ndarray]:
    """Returns the least loss and its parameters; adds decays while they help."""
    parameters = np.zeros(0)
    loss = float(self.uncut.loss_and_slope(parameters)[0])  # The loss of C = I.
    for num_decays in range(0 if self.has_tail else 1, max_decays + 1):
      start = self._start(num_decays)
      lower, upper = self._bounds(len(start))
      start = np.clip(start, lower, upper)
      optimum = self.minimize(self.series, start, report, descent.bounded(lower, upper))
      evaluated = self.errors(self.series)(optimum.parameters)
      assert evaluated is not None  # The optimum is in the domain.
      new_loss = math.log(optimum.weights @ evaluated[0])
      if num_decays and gain(new_loss, loss) < min_gain:
        break
      loss, parameters = new_loss, optimum.parameters
    return loss, parameters

  def series(self, parameters: np.ndarray) -> series_problem.Series:
    """The series with these parameters."""
    column, pull_back = self._column(parameters)
    result = series_problem.series_from_column(column, self.num_rounds)
    return result._replace(
      pull_back=lambda by_column, by_noise: pull_back(
        result.pull_back(by_column, by_noise)
      )
    )

  def _start(self, num_decays: int) -> np.ndarray:
    """The best BLT of `window` rounds, with a tail of all, and small fast decays."""
    total_decays = num_decays + self.has_tail
    problem = self.uncut
    if not self.has_tail:
      problem = dataclasses.replace(
        problem, num_rounds=self.window, min_separation=1, participations=1
      )
    nodes = best_nodes(problem, total_decays, _START_GAIN)
    scales, decays = scales_and_decays(nodes)
    num_missing = total_decays - len(decays)
    complements = np.append(
      np.maximum(1.0 - decays, _MIN_COMPLEMENT), [_FAST_COMPLEMENT] * num_missing
    )
    scales = np.append(scales, [_START_SCALE] * num_missing)
    if not self.has_tail:
      return np.log(np.concatenate([complements, scales]))
    tail = [complements[0], scales[0]]  # The slowest decay becomes the tail.
    return np.log(np.concatenate([complements[1:], scales[1:], tail]))

  def _bounds(self, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Lower and upper bounds of the parameters."""
    decays = size // 2 - self.has_tail
    is_scale = np.repeat([False, True, False, True], [decays] * 2 + [self.has_tail] * 2)
    lower = np.where(is_scale, math.log(_MIN_SCALE), math.log(_MIN_COMPLEMENT))
    return lower, np.where(is_scale, 0.0, -1e-9)

  def _column(self, parameters: np.ndarray) -> _Column:
    """The coefficients, up to the last non-zero, as a function of parameters."""
    if not self.has_tail:
      return coefficients_of(parameters, self.window)
    head, pull_back_head = coefficients_of(parameters[:-2], self.window)
    tail, pull_back_tail = coefficients_of(parameters[-2:], self.num_rounds)
    tail[: self.window] += head
    tail[0] = 1.0

    def pull_back(by_coefficient: np.ndarray) -> np.ndarray:
      by_head = pull_back_head(by_coefficient[: self.window])
      return np.append(by_head, pull_back_tail(by_coefficient))

    return tail, pull_back


def gain(loss: float, other: float) -> float:
  """The fraction by which the error of a loss is below that of another loss."""
  return -math.expm1((loss - other) / 2)


def coefficients_of(parameters: np.ndarray, window: int) -> _Column:
  """The coefficients of a windowed BLT without a tail as a function of parameters."""
  complements, scales = np.split(np.exp(parameters), 2)
  steps = np.arange(window - 1)
  powers = np.exp(steps * np.log1p(-complements)[:, np.newaxis])

  def pull_back(by_coefficient: np.ndarray) -> np.ndarray:
    by_scale = scales * (powers @ by_coefficient[1:])
    factors = -scales * complements / (1.0 - complements)
    by_complement = factors * (powers @ (steps * by_coefficient[1:]))
    return np.append(by_complement, by_scale)

  return np.append(1.0, scales @ powers), pull_back
