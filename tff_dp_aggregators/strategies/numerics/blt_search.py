"""Search for the best buffered linear Toeplitz strategies, with a window or without.

**Without one**, C(x) = prod_j (1 - theta'_j x) / prod_j (1 - theta_j x) has positive
output scales if and only if the decays of `C` and of `C^-1` take turns,

    1 >= theta_1 > theta'_1 > theta_2 > theta'_2 > ... > theta_d > theta'_d

(arXiv:2408.08868 searches the same 2 d numbers, with a penalty). Here the numbers are
their complements 1 - theta, the *nodes*, increasing from 0; and free are logarithms of
the gaps between them. The first 2 d gaps, up to theta_d and from there to 0, sum to 1,
which keeps every decay in [0, 1]. The scales add up to every other gap; the last one is
a part of what is left to 1. So every point is a strategy with positive, non-increasing
coefficients, whose sensitivity is exact.

The loss is the logarithm of squared sensitivity times squared error: sums of geometric
series with positive weights, so they lose no digits, and their cost does not depend on
the number of rounds. It is minimised by Newton's method, with second derivatives by
differences of gradients, several step lengths tried at once, from several points at
once. Buffers are added one by one, from the best of many decays; one that has become
useless is taken out again.

**With a window** (`WindowProblem`), there is no closed form that is faster than the
Fourier transforms of `series_problem`.

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

# Step lengths that are tried at once.
_STEPS = 2.0 ** np.array([1, 0, -1, -2, -3, -5, -7, -10])
# No parameter, a logarithm, changes by more than this in a step of length 1.
_LARGEST_STEP = 2.0
# A parameter at either end that falls at least so fast may go to its bound at once.
_CLOSING = -0.5
# Decays of C^-1 keep this relative distance from those of the workload.
_BLURRED = 1e-4
# The scales of a starting point may sum to this much of what is allowed.
_LARGEST_PART = 1 - 1e-6
_DIFFERENCE = 1e-4  # For second derivatives by differences of gradients.
# Curvatures below this part of the largest one are taken for rounding errors.
_FLATTEST = 1e-11
# A descent ends when neither the gain nor the decrement of a step is this of the least.
_TOLERANCE = 1e-2
_FINAL_TOLERANCE = 1e-14  # The same for the final descent, of the loss itself.
_MAX_STEPS = 40
_POSITIONS = 80  # Decays at which a new buffer is tried.
_VALLEYS = 1  # Of which so many local optima are followed.
# Where a search with a window begins.
_START_GAIN = 1e-6
_START_SCALE = 1e-3
_FAST = 0.9  # Complement of a decay that begins as next to nothing.
_SLOWEST = 1e-12  # Smallest complement of a decay.
_SMALLEST_SCALE = 1e-12

# A value and its derivatives by two arrays.
_ValueAndSlopes = tuple[np.ndarray, np.ndarray, np.ndarray]
# Coefficients, and what makes of a gradient by them one by parameters.
_Column = tuple[np.ndarray, Callable[[np.ndarray], np.ndarray]]


@dataclasses.dataclass(frozen=True)
class BLTProblem:
  """What is asked for: the workload, 'mean' or 'max', and who takes part how often."""

  num_rounds: int
  min_separation: int
  participations: int
  objective: str
  momentum: float = 0.0
  weight_decay: float = 0.0

  @property
  def poles(self) -> list[float]:
    """Complements of the workload's decays: 0 for prefix sums."""
    momentum = [1.0 - self.momentum] if self.momentum else []
    return [self.weight_decay, *momentum]

  def loss_and_slope(self, nodes: np.ndarray) -> exponential_sums.ValueAndSlope:
    """log(sensitivity^2 error^2) of nodes [..., 2 d], or inf, and its gradient."""
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
    # If a decay is close to one of the workload, rounding errors grow.
    poles = np.array(self.poles)
    distance = np.abs(inverse_decays[..., np.newaxis] - poles)
    is_blurred = np.any(distance < _BLURRED * poles, axis=(-2, -1))
    return np.where(is_blurred, np.inf, loss), slope


def problem(
  objective: str,
  participation: Participation,
  workload: Optional[workload_lib.Checked] = None,
) -> BLTProblem:
  """The problem for a `Workload` of a constant learning rate, or prefix sums."""
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

  With momentum the exponent is i + 1. Returns the largest or the mean squared row norm
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
  by_weight = weights * _times(sums, weights)
  by_complement = weights * _times(slopes, weights * ratios)
  return by_weight.sum(-1), 2.0 * by_weight, 2.0 * by_complement


def squared_sensitivity(
  scales: np.ndarray, complements: np.ndarray, problem: BLTProblem
) -> _ValueAndSlopes:
  """||C u||^2, u = 0, b, 2b, ..., c_i = sum_j scales_j (1 - p_j)^(i-1).

  And its derivatives by log(scales) and by p.
  """
  pairs, pairs_slope, single, single_slope = _columns(complements, problem)
  by_scale = scales * (single + _times(pairs, scales))
  by_complement = scales * (single_slope + _times(pairs_slope, scales))
  value = problem.participations + (scales * single + by_scale).sum(-1)
  return value, 2.0 * by_scale, 2.0 * by_complement


def _columns(
  complements: np.ndarray, problem: BLTProblem
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
  """Inner products of exponentials that start anew in rounds 0, b, 2b, ...

  In round m b + s, 0 < s <= b, all of m + 1 participations act: exponential j is
  r_j^(s-1) S(m + 1), S the sum of m + 1 powers of r_j^b. In the first round of
  participation m + 1 the entry 1 of the diagonal meets r_j^(b-1) S(m).

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
    nothing = np.zeros_like(complements)
    return last, last_slope, nothing, nothing
  lap = exponential_sums.power_complement(complements, b)
  lap_slope = b * exponential_sums.power(complements, b - 1)
  block, block_slope = exponential_sums.series_and_slope(product, b)
  block_slope = block_slope * ratios[..., np.newaxis, :]
  before, before_slope = exponential_sums.products_of_series_and_slope(lap, k - 1)
  before_slope = before_slope * lap_slope[..., :, np.newaxis]
  every, every_slope = exponential_sums.series_and_slope(lap, k)
  every_pairs = exponential_sums.outer(every, every)
  pairs = block * before + last * every_pairs
  pairs_slope = (
    block_slope * before
    + block * before_slope
    + last_slope * every_pairs
    + last * exponential_sums.outer(every_slope * lap_slope, every)
  )
  meeting, meeting_slope = exponential_sums.series_of_series_and_slope(lap, k - 1)
  left = exponential_sums.power(complements, b - 1)
  left_slope = (1 - b) * exponential_sums.power(complements, max(b - 2, 0))
  single_slope = left_slope * meeting + left * meeting_slope * lap_slope
  return pairs, pairs_slope, left * meeting, single_slope


def _error_by_nodes(
  decays: np.ndarray, inverse_decays: np.ndarray, problem: BLTProblem
) -> _ValueAndSlopes:
  """The error by nodes, with its derivatives by those of `C` and of `C^-1`."""
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
  """The squared sensitivity by nodes, with derivatives as above."""
  parts = exponential_sums.residues(
    exponential_sums.differences(inverse_decays, decays),
    exponential_sums.differences(decays, decays),
  )
  value, by_scale, by_decay = squared_sensitivity(parts.values, decays, problem)
  by_inverse_decay, by_decay_position = parts.pull_back(by_scale)
  return value, by_decay + by_decay_position, by_inverse_decay


def _times(matrix: np.ndarray, vector: np.ndarray) -> np.ndarray:
  return (matrix @ vector[..., np.newaxis])[..., 0]


# Parameters are 2 d + 1 numbers. The first 2 d are logarithms of what is proportional
# to the gaps from 1 through the decays to 0, but for that of the last buffer. Its scale
# is what remains of 1 after the others', times the logistic function of the last one.


def _unfold(
  parameters: np.ndarray,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
  """Nodes, gaps, what remains for the last gap, and which part of it that takes."""
  logarithms = parameters[..., :-1]
  gaps = np.exp(logarithms - logarithms.max(-1, keepdims=True))
  gaps /= gaps.sum(-1, keepdims=True)
  remaining = 1.0 - gaps[..., 1:-2:2].sum(-1)
  part = 1.0 / (1.0 + np.exp(-parameters[..., -1]))
  nodes = np.minimum(np.cumsum(gaps, axis=-1), 1.0)
  nodes[..., -1] = nodes[..., -2] + remaining * part
  return nodes, gaps, remaining, part


def parameters_from_nodes(nodes: np.ndarray) -> np.ndarray:
  """Parameters of nodes [2 d]; scales that sum to more than 1 have the last one cut."""
  remaining = 1.0 - (nodes[1:-1:2] - nodes[0:-2:2]).sum()
  part = min((nodes[-1] - nodes[-2]) / remaining, _LARGEST_PART)
  gaps = np.diff(nodes[:-1], prepend=0.0, append=1.0)
  with np.errstate(divide='ignore'):
    return np.append(np.log(gaps), np.log(part) - np.log1p(-part))


def loss_and_slope(
  problem: BLTProblem, parameters: np.ndarray
) -> exponential_sums.ValueAndSlope:
  """The loss of parameters of shape [..., 2 d + 1], and its gradient."""
  nodes, gaps, remaining, part = _unfold(parameters)
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
  """The best nodes found, buffer by buffer, [2 d]; d is 0 if no buffer gains enough."""
  nodes = np.zeros(0)
  loss = float(problem.loss_and_slope(nodes)[0])  # That of C = I.
  least = -2 * math.log1p(-min_gain)  # The loss is the logarithm of the squared error.
  while True:
    more_nodes, more_loss = _with_one_more(problem, nodes, least)
    if loss - more_loss < least:
      break
    more_nodes, more_loss = _without_useless(problem, more_nodes, more_loss, least)
    # Beyond the last buffer one more is tried: it may have made another one useless.
    if len(more_nodes) > 2 * max_buffers:
      break
    nodes, loss = more_nodes, more_loss
  if not len(nodes):
    return nodes
  start = parameters_from_nodes(nodes)[np.newaxis]
  _, points = descend(problem, start, _FINAL_TOLERANCE)
  return _unfold(points[0])[0]


def scales_and_decays(nodes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
  """Output scales and decays of `C`, shape [d]; the scales sum to at most 1."""
  decays, inverse_decays = nodes[0::2], nodes[1::2]
  scales = exponential_sums.residues(
    exponential_sums.differences(inverse_decays, decays),
    exponential_sums.differences(decays, decays),
  ).values
  total = math.fsum(scales)
  if total > 1.0:  # By rounding.
    scales = scales / total * (1.0 - 1e-15)
  return scales, 1.0 - decays


def _with_one_more(
  problem: BLTProblem, nodes: np.ndarray, least: float
) -> tuple[np.ndarray, float]:
  """The best nodes found with one buffer more, and their loss."""
  starts = _starts(problem, nodes)
  losses, _ = loss_and_slope(problem, starts)
  starts, losses = starts[np.isfinite(losses)], losses[np.isfinite(losses)]
  before, after = np.append(np.inf, losses[:-1]), np.append(losses[1:], np.inf)
  valleys = np.flatnonzero((losses <= before) & (losses <= after))
  deepest = valleys[np.argsort(losses[valleys])][:_VALLEYS]
  # The slowest and the fastest decay may pay off only after the others have moved.
  chosen = np.unique(np.append(deepest, [0, len(losses) - 1]))
  return _best(problem, starts[chosen], least)


def _without_useless(
  problem: BLTProblem, nodes: np.ndarray, loss: float, least: float
) -> tuple[np.ndarray, float]:
  """The nodes and their loss, or with a buffer less whose two nodes all but cancel."""
  if len(nodes) == 2:
    return nodes, loss
  pairs = range(len(nodes) - 1)
  starts = [parameters_from_nodes(np.delete(nodes, [i, i + 1])) for i in pairs]
  losses, _ = loss_and_slope(problem, np.array(starts))
  if losses.min() - loss > least / 2:
    return nodes, loss
  return _best(problem, np.array(starts)[[np.argmin(losses)]], least)


def _best(
  problem: BLTProblem, starts: np.ndarray, least: float
) -> tuple[np.ndarray, float]:
  """Where it ends best to go downhill from any of the starts, and the loss there."""
  losses, points = descend(problem, starts, _TOLERANCE * least)
  best = int(np.argmin(losses))
  return _unfold(points[best])[0], float(losses[best])


def _starts(problem: BLTProblem, nodes: np.ndarray) -> np.ndarray:
  """Parameters with one small buffer more than `nodes`, at each of many decays."""
  starts = []
  for position in np.geomspace(0.03 / problem.num_rounds, 0.95, _POSITIONS):
    for width in (0.05,) if len(nodes) else (0.05, 1.0, 20.0):
      pair = position * np.array([1.0, 1.0 + width])
      before, after = np.searchsorted(nodes, pair)
      more = np.insert(nodes, before, pair)
      # Not across a node, and no decay below 0.
      if before == after and more[-2] <= 1:
        starts.append(parameters_from_nodes(more))
  return np.array(starts)


def descend(
  problem: BLTProblem, points: np.ndarray, tolerance: float
) -> tuple[np.ndarray, np.ndarray]:
  """Losses [m], and where they are, by Newton's method from `points` [m, 2 d + 1]."""
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
    chosen, row, best = active[better], row[better], best[better]
    points[chosen] = candidates[row, best]
    losses[chosen] = candidate_losses[row, best]
    slopes[chosen] = candidate_slopes[row, best]
    active = active[better & (np.maximum(gains, decreases) > tolerance)]
    if not len(active):
      break
  return losses, points


def _directions(
  problem: BLTProblem, points: np.ndarray, slopes: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
  """Steps by the curvature's absolute value, and half their squared decrements."""
  moves = _DIFFERENCE * np.eye(points.shape[-1])
  around = points[:, np.newaxis] + np.concatenate([moves, -moves])
  ahead, behind = np.split(loss_and_slope(problem, around)[1], 2, axis=1)
  curvature = (ahead - behind) / (2 * _DIFFERENCE)
  values, vectors = np.linalg.eigh((curvature + np.swapaxes(curvature, -1, -2)) / 2)
  values = np.abs(values)
  values = np.maximum(values, _FLATTEST * values.max(-1, keepdims=True) + 1e-300)
  along = _times(np.swapaxes(vectors, -1, -2), slopes)
  directions = -_times(vectors, along / values)
  longest = np.abs(directions).max(-1, keepdims=True)
  shorter = _LARGEST_STEP / np.maximum(longest, _LARGEST_STEP)
  return directions * shorter, (along**2 / values).sum(-1) / 2


def _candidates(points: np.ndarray, directions: np.ndarray) -> np.ndarray:
  """Steps of several lengths, and with a gap at either end of [0, 1] closed.

  The optimum is often there, infinitely far away in logarithms.
  """
  steps = points[:, np.newaxis] + _STEPS[:, np.newaxis] * directions[:, np.newaxis]
  closed = []
  for end in (0, points.shape[-1] - 2):
    step = points + directions
    step[:, end] = np.where(directions[:, end] < _CLOSING, -np.inf, step[:, end])
    closed.append(step)
  return np.concatenate([steps, np.stack(closed, axis=1)], axis=1)


@dataclasses.dataclass(frozen=True)
class WindowProblem(series_problem.SeriesProblem):
  """What is asked for of a windowed BLT: decays and scales.

      c_0 = 1,  c_i = [i < window] sum_j scales_j decays_j^(i - 1) + scale decay^(i - 1)

  where the last term, the tail, may be missing. Scales are positive, so that
  coefficients do not increase from index 1 on, and the earliest, densest pattern of
  participation is the worst (arXiv:2405.13763). What is searched are logarithms: of the
  decays' complements, the scales, the complement of the tail's decay, and its scale.
  """

  window: int = 1
  has_tail: bool = False

  @property
  def uncut(self) -> BLTProblem:
    """What is asked for but the window, as of a BLT."""
    return problem(self.objective, self.participation, self.workload)

  def search(
    self, max_decays: int, min_gain: float, report: descent.Report
  ) -> tuple[float, np.ndarray]:
    """The least loss and its parameters, with one decay more while each helps."""
    parameters = np.zeros(0)
    loss = float(self.uncut.loss_and_slope(parameters)[0])  # That of C = I.
    for num_decays in range(0 if self.has_tail else 1, max_decays + 1):
      start = self._start(num_decays)
      lower, upper = self._bounds(len(start))
      start = np.clip(start, lower, upper)
      found = self.minimize(self.series, start, report, descent.bounded(lower, upper))
      evaluated = self.errors(self.series)(found.parameters)
      assert evaluated is not None  # Or it had not been found.
      more_loss = math.log(found.weights @ evaluated[0])
      if num_decays and gain(more_loss, loss) < min_gain:
        break
      loss, parameters = more_loss, found.parameters
    return loss, parameters

  def series(self, parameters: np.ndarray) -> series_problem.Series:
    """What parameters make."""
    column, pull_back = self._column(parameters)
    made = series_problem.of_column(column, self.num_rounds)
    return made._replace(
      pull_back=lambda by_column, by_noise: pull_back(
        made.pull_back(by_column, by_noise)
      )
    )

  def _start(self, num_decays: int) -> np.ndarray:
    """The best BLT of a window, or with a tail of all rounds, and small fast decays."""
    wanted = num_decays + self.has_tail
    problem = self.uncut
    if not self.has_tail:
      problem = dataclasses.replace(
        problem, num_rounds=self.window, min_separation=1, participations=1
      )
    nodes = best_nodes(problem, wanted, _START_GAIN)
    scales, decays = scales_and_decays(nodes)
    missing = wanted - len(decays)
    complements = np.append(np.maximum(1.0 - decays, _SLOWEST), [_FAST] * missing)
    scales = np.append(scales, [_START_SCALE] * missing)
    if not self.has_tail:
      return np.log(np.concatenate([complements, scales]))
    # The slowest comes first.
    tail = [complements[0], scales[0]]
    return np.log(np.concatenate([complements[1:], scales[1:], tail]))

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
    tail, pull_back_tail = coefficients_of(parameters[-2:], self.num_rounds)
    tail[: self.window] += head
    tail[0] = 1.0

    def pull_back(by_coefficient: np.ndarray) -> np.ndarray:
      by_head = pull_back_head(by_coefficient[: self.window])
      return np.append(by_head, pull_back_tail(by_coefficient))

    return tail, pull_back


def gain(loss: float, other: float) -> float:
  """By which part of another one's error a loss is smaller."""
  return -math.expm1((loss - other) / 2)


def coefficients_of(parameters: np.ndarray, window: int) -> _Column:
  """The coefficients of a windowed BLT as a function of what is searched."""
  complements, scales = np.split(np.exp(parameters), 2)
  steps = np.arange(window - 1)
  powers = np.exp(steps * np.log1p(-complements)[:, np.newaxis])

  def pull_back(by_coefficient: np.ndarray) -> np.ndarray:
    by_scale = scales * (powers @ by_coefficient[1:])
    slower = -scales * complements / (1.0 - complements)
    by_complement = slower * (powers @ (steps * by_coefficient[1:]))
    return np.append(by_complement, by_scale)

  return np.append(1.0, scales @ powers), pull_back
