"""Accountant by privacy loss distributions, on a grid chosen for event and delta.

**Dominating pairs.** A pair of distributions (P, Q) dominates a round if H_a(P || Q),
the integral of max(P - a Q, 0), is for all a >= 0, also those below 1, at least that of
the round's outcomes on any two neighbouring data sets. The composition of dominating
pairs dominates all rounds, even if each is chosen after seeing those before it
(arXiv:2106.08567).

The loss is log(P(x) / Q(x)) with x from P. The pairs of noise on a sample are:

| `Side` | P | Q |
|---|---|---|
| `REMOVED` | (1 - q) N(0) + q N(1) | N(0) |
| `ADDED` | N(0) | (1 - q) N(0) + q N(1) |
| `replaced` | losses above 0 as `REMOVED` has them, below 0 as `ADDED` | |

* Poisson sample, add-or-remove: `REMOVED` if the client is removed, `ADDED` if it is
  added, the same one in all rounds; epsilon is the maximum of the two.
* Sample of fixed size, add-or-remove: the same two pairs. Draw a cohort without the
  client, which with probability q takes the place of one of them, drawn at random.
  Given cohort and place, the sum is N(mu), or a mixture of N(mu) and, with weight q,
  N(mu'), with mu and mu' at most two clip norms apart; and H_a is jointly convex.
* Sample of fixed size, replace-one (**proved here**). Likewise, the two data sets have
  (1 - q) N_0 + q N_1 and (1 - q) N_0 + q N_2: noise around three points, each two at
  most two clip norms apart. For a >= 1, with a' = 1 + (a - 1) / q and w = a / a', the
  first minus a times the second is q (N_1 - a' ((1 - w) N_0 + w N_2)). So H_a is at
  most q H_a' of noise on two clip norms (convexity; also arXiv:1807.01647), which is
  H_a of `REMOVED`. For a < 1 it is that of `ADDED`, by H_a(P || Q) = 1 - a + a
  H_1/a(Q || P). Both together are a convex curve, as its slope rises by the probability
  of loss 0 in `replaced`, which is not negative; so it is the curve of one pair, which
  composes, though in many rounds no data set has the worst case of both sides in each
  (arXiv:2405.20769).
* Poisson sample with a cap: one of two pairs, drawn at random, and the draw is revealed
  (`_MixedLoss`; `sampling.round_sampling` has the proof).
* Random allocation: a client is in one of m places, drawn uniformly once, of which t
  are steps with noise. Its likelihood ratio is `S = ((m - t) + R_1 + ... + R_t) / m`,
  where under Q the `R = exp(mu x - mu^2 / 2)`, x from N(0, 1), are independent. Then
  H_a(P || Q) = E max(S - a, 0) and H_a(Q || P) = E max(1 - a S, 0) are means of convex
  functions of S, and of each R. Splitting a probability between two grid points such
  that the mean is kept makes no such mean smaller, and neither does adding numbers that
  are larger in this order. So R, and each sum, may be rounded to a grid, and the result
  dominates in both directions and composes. The grid is geometric, so probabilities
  keep their relative precision. What the mean of S loses beyond the largest value
  counts as an infinite loss of P; values below the smallest are spread between it and
  0, which is an infinite loss of Q. (arXiv:2602.17284 rounds losses instead.)

**Rounding.** The probabilities under P and Q of the losses between two grid points are
split between these two such that both are kept (arXiv:2207.04380). Losses beyond the
grid count as infinite.

**Composition.** Fourier transforms have a round-off relative to the largest
probability. So the distribution of the loss L is first multiplied by e^(t L), up to a
constant, with the t that makes losses near epsilon likely (the saddle point,
arXiv:2208.09595). The round-off is then relative to delta, and a bound is added to it.

**Round-off** (bounds **proved here**). With u = 2^-53, all of it is counted upwards:

* The place of a grid point in the noise has an error, which changes its loss: every
  epsilon is raised by the sum of these changes over all rounds. The errors of the two
  places, under P and Q, differ, so the probability of a narrow cell has a relative
  error; that much more of it goes to the upper grid point.
* A coefficient of a transform is a sum of entries whose sizes add up to 1, by at most
  log2(size) halvings. Each has, in pocketfft, fewer than 16 roundings: the error is at
  most 16 u log2(size), to first order. For the inverse transform the same holds for
  Euclidean norms, relative, as each step is a multiple of a unitary matrix.
* Where losses are rare, nearly all of a tilted distribution is in one cell, which is
  left out of both transforms: with the rest r of the mass, a coefficient relative to
  the cell's is 1 + z, where z has a round-off of 16 u log2(size) r alone, and its power
  is e^(n log(1 + z)).
* The rest are sums and products of positive numbers, whose relative errors add up.

The answer is the Renyi bound where the grid or float64 are not fine enough (noise
multipliers below a millionth, or a grid so coarse that the Renyi bound is smaller), and
for many rounds of `replaced` if it is smaller. `PldAccountant.instead` says so.
"""

import dataclasses
import enum
import functools
import math
from collections.abc import Iterable
from typing import Any, ClassVar, NamedTuple, Optional, Union

import dp_accounting
import numpy as np
import scipy.fft
from dp_accounting import NeighboringRelation as Relation
from scipy import special

from tff_dp_aggregators.accounting import events
from tff_dp_aggregators.accounting.accountants import accountant
from tff_dp_aggregators.accounting.accountants import rdp

MAX_CELLS = 2**19  # Maximum size of a grid, which takes tenths of a second.
# No grid is finer than the first, unless a round's deviation over the second is.
_INTERVAL, _PER_DEVIATION = 1e-4, 16
MIN_INTERVAL = 1e-12  # The finest grid.
_CUT = 18.0  # Probabilities e^-18 times delta may be cut off at the ends.
_WRAPPED = 22.0  # Probabilities e^-22 of the tilted sum may wrap around the transform.
_POINTS = 1201  # Number of points at which moments are estimated.
_TILTS = np.geomspace(1e-6, 1e12, 217)
_ROUNDING = 2.0**-53
# Round-off of a Fourier transform, for each halving of its size; relative round-off of
# a logarithm, product or exponential.
_HALVING_ERROR, _STEP_ERROR = 16 * _ROUNDING, 8 * _ROUNDING
# Relative errors of a place in the noise, and of a normal probability at place 1.
_PLACE_ERROR, _CELL_ERROR = 8 * _ROUNDING, 1e-14
# Gauss-Legendre nodes for narrow cells, exact to round-off there.
_NODES, _WEIGHTS = special.roots_legendre(4)
_NARROW = 0.1
_SMALLEST = 1e-300
_LEAST = math.log(_SMALLEST)  # Lower limit of logarithms of coefficients.

_FIXED_SIZE = dp_accounting.SampledWithoutReplacementDpEvent
_TRUNCATED = events.TruncatedPoissonDpEvent


class Side(enum.Enum):
  """The neighbouring data set, with or without the client, that outcomes come from."""

  REMOVED = 'removed'
  ADDED = 'added'


@dataclasses.dataclass(frozen=True)
class Loss:
  """The privacy loss of one round, which includes a client with probability `fraction`.

  `mu` is the sensitivity of the sum over the standard deviation of Gaussian noise, or
  over the scale of Laplace noise.
  """

  is_laplace: bool
  mu: float
  fraction: float
  side: Side
  sign: int = 0  # 1 or -1 for the losses of that sign alone, 0 for all.

  # Centre of the noise with the client sampled, under P and under Q, in units of `mu`.
  _moved: ClassVar[tuple[int, int]] = (1, 0)

  def _unsampled(self, epsilon: Any) -> Any:
    """The loss of the noise alone where the `REMOVED` loss of the sample is epsilon."""
    q = self.fraction
    if q == 1:
      return np.array(epsilon, np.float64)
    low, high = np.minimum(epsilon, 1.0), np.maximum(epsilon, 1.0)
    with np.errstate(divide='ignore'):
      small = np.log1p(np.maximum(np.expm1(low) / q, -1.0))
    large = high - math.log(q) + np.log1p(-(1 - q) * np.exp(-high))
    return np.where(np.asarray(epsilon) > 1.0, large, small)

  def _sampled(self, loss: Any) -> Any:
    """The `REMOVED` loss of the sample where the loss of the noise alone is `loss`."""
    q = self.fraction
    if q == 1:
      return np.array(loss, np.float64)
    low, high = np.minimum(loss, 1.0), np.maximum(loss, 1.0)
    large = high + math.log(q) + np.log1p((1 - q) / q * np.exp(-high))
    return np.where(np.asarray(loss) > 1.0, large, np.log1p(q * np.expm1(low)))

  def _places(self, loss: Any) -> tuple[np.ndarray, np.ndarray]:
    """Where the noise alone has a loss, relative to its centre under Q and under P."""
    if not self.is_laplace:
      return loss / self.mu + self.mu / 2, loss / self.mu - self.mu / 2
    outside = np.where(np.abs(loss) < self.mu, 0.0, np.copysign(math.inf, loss))
    return (loss + self.mu) / 2 + outside, (loss - self.mu) / 2 + outside

  def masses(self, epsilon: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Masses below, between and above losses, of sample and noise, and their errors."""
    places = self._places(self._unsampled(epsilon))
    (plain, shifted), errors = _masses(places, self.is_laplace)
    return (1 - self.fraction) * plain + self.fraction * shifted, plain, errors

  def _extremes(self, deviations: float) -> tuple[float, float]:
    reach = self.mu if self.is_laplace else self.mu * (deviations + self.mu / 2)
    return float(self._sampled(-reach)), float(self._sampled(reach))

  def range(self, deviations: float) -> tuple[float, float]:
    """Least and largest loss within so many deviations of the noise."""
    least, largest = self._extremes(deviations)
    if self.side is Side.ADDED:
      least, largest = -largest, -least
    return (0.0 if self.sign > 0 else least), (0.0 if self.sign < 0 else largest)

  def displacement(self, deviations: float) -> float:
    """Bound on the error of a grid point's loss, by the round-off of its place."""
    if self.is_laplace:
      return _PLACE_ERROR * 2 * self.mu
    max_loss = max(abs(each) for each in self._extremes(deviations))
    return _PLACE_ERROR * (max_loss + 2 * self.mu * (deviations + self.mu))

  def on_grid(self, interval: float, deviations: float) -> 'Cells':
    """The distribution of the loss on the multiples of `interval`, rounded up."""
    least, largest = self.range(deviations)
    first, last = math.floor(least / interval), math.ceil(largest / interval)
    edges = np.arange(first, last + 1) * interval
    if self.side is Side.REMOVED:
      p, q, errors = self.masses(edges)
    else:
      q, p, errors = (each[::-1] for each in self.masses(-edges[::-1]))
    # Cells are split between their two ends such that P keeps p and Q keeps q.
    inner, other = p[1:-1], q[1:-1]
    with np.errstate(over='ignore', invalid='ignore'):
      lower = other * np.exp(edges[:-1])
      up = (inner - lower + errors * (inner + lower)) / -math.expm1(-interval)
      shared = (lower > 0) & np.isfinite(lower)  # Otherwise all goes to the upper end.
    up = np.where(shared, np.clip(up, 0.0, inner), inner)
    masses = np.zeros(len(edges))
    masses[1:] += up
    masses[:-1] += inner - up
    if self.sign <= 0:
      masses[0] += float(p[0])
    return Cells(first, masses, 0.0 if self.sign < 0 else float(p[-1]))

  def _losses(self, noise: Any, moved: int) -> np.ndarray:
    """The `REMOVED` loss of outcomes `noise + moved * mu`."""
    outcome, unmoved = (noise + each * self.mu for each in (moved, moved - 1))
    if self.is_laplace:
      return np.asarray(self._sampled(np.abs(outcome) - np.abs(unmoved)))
    return np.asarray(self._sampled(self.mu * (noise + (moved - 0.5) * self.mu)))

  def points(self, deviations: float) -> tuple[np.ndarray, np.ndarray]:
    """The approximate distribution: logarithms of probabilities, and losses."""
    # Points reach as far as the grid, `mu` beyond the plain noise, which counts at
    # strong tilts. Where clients move the noise by two, their points reach it anyway.
    z = np.linspace(-deviations, deviations, _POINTS)
    if not self.is_laplace and max(self._moved) == 1:
      step = z[1] - z[0]
      beyond = np.arange(1, 1 + min(math.ceil(self.mu / step), _POINTS))
      z = np.concatenate([z, deviations + step * beyond])
    log_density = -np.abs(z) if self.is_laplace else -z * z / 2
    log_density = log_density - special.logsumexp(log_density)
    is_added = self.side is Side.ADDED
    sign, moved = 1 - 2 * is_added, self._moved[is_added]
    if not moved or self.fraction == 1:
      logs, losses = log_density, sign * self._losses(z, moved)
    else:
      with np.errstate(divide='ignore'):
        weights = np.log([1 - self.fraction, self.fraction])
      logs = np.concatenate([log_density + each for each in weights])
      losses = sign * np.concatenate([self._losses(z, each) for each in (0, moved)])
    kept: Any = losses * self.sign > 0 if self.sign else slice(None)
    return logs[kept], losses[kept]


def _masses(
  places: Iterable[np.ndarray], is_laplace: bool
) -> tuple[list[np.ndarray], np.ndarray]:
  """Masses below, between and above places, and relative errors of those between."""
  seen = np.stack(list(places))
  far = np.abs(seen).max(axis=0)
  far = np.where(np.isfinite(far), far, 0.0)
  far = np.maximum(far[:-1], far[1:])
  with np.errstate(divide='ignore', invalid='ignore'):
    width = np.diff(seen).min(axis=0)
    displaced = np.where(width > 0, _PLACE_ERROR * far / width, 1.0)
  errors = np.minimum(_CELL_ERROR * (1 + far * far) + displaced, 1.0)
  mass, ends = _laplace_mass if is_laplace else _normal_mass, np.array([math.inf])
  masses = [
    mass(np.concatenate([-ends, each]), np.concatenate([each, ends])) for each in seen
  ]
  return masses, errors


def _normal_mass(a: np.ndarray, b: np.ndarray) -> np.ndarray:
  """Standard normal probability of (a, b), to a small relative error."""
  swap = a + b < 0
  a, b = np.where(swap, -b, a), np.where(swap, -a, b)
  with np.errstate(invalid='ignore', over='ignore'):
    width, middle = b - a, (a + b) / 2
    narrow = width * (np.abs(middle) + 1) < _NARROW
  wide = ~narrow
  masses = np.empty_like(a)
  masses[wide] = special.ndtr(-a[wide]) - special.ndtr(-b[wide])
  half, m = width[narrow] / 2, middle[narrow]
  total = np.zeros_like(m)
  for node, weight in zip(_NODES, _WEIGHTS):
    step = half * node
    total += weight * np.exp(-step * (m + step / 2))
  masses[narrow] = total * half * np.exp(-m * m / 2) / math.sqrt(2 * math.pi)
  return np.maximum(masses, 0.0)


def _laplace_mass(a: np.ndarray, b: np.ndarray) -> np.ndarray:

  def positive(low: np.ndarray, high: np.ndarray) -> np.ndarray:
    low, high = np.maximum(low, 0.0), np.maximum(high, 0.0)
    with np.errstate(invalid='ignore'):
      mass = -np.exp(-low) * np.expm1(low - high) / 2
    return np.where(np.isinf(low), 0.0, mass)

  return positive(a, b) + positive(-b, -a)


@dataclasses.dataclass(frozen=True)
class _Displacing(Loss):
  """(1 - q) N(0) + q N(2) against (1 - q) N(0) + q N(1), for losses of one sign."""

  _moved = (2, 1)

  def masses(self, epsilon: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    mu, q = self.mu, self.fraction
    # (1 - q) + q y^2 e^(-mu^2) = e^epsilon ((1 - q) + q y), with y = e^(mu x - mu^2/2).
    rest = 4 * math.exp(-mu * mu) * (1 - q) / q
    square = rest * -np.expm1(-epsilon) * np.exp(-epsilon)  # Less one.
    half = square / (1 + np.sqrt(1 + square)) / 2
    place = (epsilon + np.log1p(half)) / mu + 1.5 * mu
    (none, one, two), errors = _masses((place - i * mu for i in range(3)), False)
    return (1 - q) * none + q * two, (1 - q) * none + q * one, errors

  def _losses(self, noise: Any, moved: int) -> np.ndarray:
    mu, q = self.mu, self.fraction
    place = noise + moved * mu
    with np.errstate(divide='ignore'):
      none = np.log1p(-q)
    both = (2 * mu * (place - mu), mu * (place - mu / 2))
    first, second = (np.logaddexp(none, math.log(q) + each) for each in both)
    return np.asarray(first - second)

  def _extremes(self, deviations: float) -> tuple[float, float]:
    return 0.0, float(self._losses(deviations, 2))

  def displacement(self, deviations: float) -> float:
    wider = Loss(False, 2 * self.mu, self.fraction, Side.REMOVED)
    return 2 * wider.displacement(deviations)


@dataclasses.dataclass(frozen=True)
class _MixedLoss:
  """One of several losses, drawn at random; the outcome reveals which one was drawn.

  Or all losses of a pair that is stated by halves: those above and those below 0.
  """

  parts: tuple[tuple['_AnyLoss', float], ...]  # Losses and their probabilities.
  level: Optional[float] = None  # By halves: probability of loss 0, the rest of 1.

  def range(self, deviations: float) -> tuple[float, float]:
    least, largest = zip(*(loss.range(deviations) for loss, _ in self.parts))
    return min(least), max(largest)

  def displacement(self, deviations: float) -> float:
    return max(loss.displacement(deviations) for loss, _ in self.parts)

  def on_grid(self, interval: float, deviations: float) -> 'Cells':
    parts = [(loss.on_grid(interval, deviations), p) for loss, p in self.parts]
    first = min(cells.first for cells, _ in parts)
    end = max(cells.first + len(cells.masses) for cells, _ in parts)
    masses, infinite = np.zeros(end - first), 0.0
    if self.level is not None:
      masses[-first] = self.level
    for cells, p in parts:
      at = cells.first - first
      masses[at : at + len(cells.masses)] += p * cells.masses
      infinite += p * cells.infinite
    return Cells(first, masses, infinite)

  def points(self, deviations: float) -> tuple[np.ndarray, np.ndarray]:
    parts = [(*loss.points(deviations), math.log(p)) for loss, p in self.parts if p]
    logs, values = zip(*((logs + log_p, at) for logs, at, log_p in parts))
    if self.level is not None:
      logs += ([math.log(max(self.level, _SMALLEST))],)
      values += ([0.0],)
    return np.concatenate(logs), np.concatenate(values)


def _halves(mu: float, fraction: float, level: float, *pairs: type[Loss]) -> _MixedLoss:
  above = pairs[0](False, mu, fraction, Side.REMOVED, 1)
  below = pairs[1](False, mu, fraction, Side.ADDED, -1)
  return _MixedLoss(((above, 1.0), (below, 1.0)), level)


def replaced(mu: float, fraction: float) -> _MixedLoss:
  """The loss of a sample of fixed size in which a client may be replaced."""
  level = (1 - fraction) * math.erf(mu / 2 / math.sqrt(2))
  return _halves(mu, fraction, level, Loss, Loss)


def zeroed(mu: float, fraction: float, side: Side) -> _MixedLoss:
  """The loss if a client displaces another one; its contribution is 0 in Q, or in P."""
  within = special.ndtr(mu / 2) - special.ndtr(-3 * (mu / 2))
  pairs = (_Displacing, Loss) if side is Side.REMOVED else (Loss, _Displacing)
  return _halves(mu, fraction, float((1 - fraction) * within), *pairs)


class Cells(NamedTuple):
  """A distribution of losses on the multiples of an interval."""

  first: int  # The multiple of the interval that `masses` begins with.
  masses: np.ndarray
  infinite: float  # Probability of an infinite loss.


# The loss of a round, or of a random allocation.
_AnyLoss = Union[Loss, _MixedLoss, '_AllocatedLoss']
# Losses, and how often each is composed.
Losses = tuple[tuple[_AnyLoss, int], ...]


def _as_known(losses: 'Losses', deviations: float) -> 'Losses':
  """Replaces allocations by a single known step where noise is too small for a grid."""
  return tuple(
    (Loss(False, loss.mu, 1.0, Side.REMOVED), times)
    if isinstance(loss, _AllocatedLoss)
    and loss.mu * deviations + loss.mu * loss.mu / 2 > _MAX_LOG
    else (loss, times)
    for loss, times in losses
  )


class _Plan(NamedTuple):
  """Grid and tilt of a composition, for the losses around an epsilon."""

  tilt: float  # The t of e^(t L).
  tail: float  # Another tilt, whose moment bounds the losses above the window.
  deviations: float  # Noise beyond so many deviations is cut off.
  interval: float  # Interval of the grid.
  least: float  # Lower end of the window of sums of losses.
  largest: float  # Its upper end.
  coarseness: float  # Interval over the deviation of the narrowest round's loss.


def _moments(loss: _AnyLoss, tilts: np.ndarray, deviations: float) -> np.ndarray:
  """Approximately log E e^(tilt * loss), shape [tilts]."""
  logs, values = loss.points(deviations)
  exponents = np.multiply.outer(tilts, values)
  exponents += logs
  largest = exponents.max(axis=1)
  exponents -= largest[:, np.newaxis]
  np.exp(exponents, out=exponents)
  return np.asarray(np.log(exponents.sum(axis=1)) + largest)


def _deviation(loss: _AnyLoss, deviations: float) -> float:
  logs, values = loss.points(deviations)
  weights = np.exp(logs)
  weights /= weights.sum()
  mean = float(weights @ values)
  return max(math.sqrt(float(weights @ (values - mean) ** 2)), MIN_INTERVAL)


@functools.lru_cache(maxsize=64)
def plan(
  losses: Losses,
  log_delta: float,
  epsilon: Optional[float] = None,
  max_cells: int = MAX_CELLS,
) -> _Plan:
  """Chooses grid and tilt for an epsilon; by default, for the epsilon at that delta."""
  count = sum(times for _, times in losses)
  deviations = math.sqrt(2 * (math.log(count) + _CUT - log_delta))
  losses = _as_known(losses, deviations)

  def moments(tilts: np.ndarray) -> Any:
    return sum(times * _moments(loss, tilts, deviations) for loss, times in losses)

  has_bounds = any(isinstance(each, Loss) and each.is_laplace for each, _ in losses)

  def best(tilts: np.ndarray, total: np.ndarray) -> int:
    if has_bounds:
      # 1 - e^(epsilon - L) is at most e^(t (L - epsilon)) times this factor. It matters
      # where losses are bounded: without it, the largest tilt would always be chosen.
      total = total - np.log1p(tilts) + tilts * np.log(tilts / (1 + tilts))
    if epsilon is None:
      return int(np.argmin((total - log_delta) / tilts))
    return int(np.argmin(total - tilts * epsilon))

  narrowest = min(_deviation(loss, deviations) for loss, _ in losses)
  finest = min(_INTERVAL, narrowest / _PER_DEVIATION)
  # Where losses are bounded, a larger tilt is always better; the grid is the limit.
  usual = _TILTS[_TILTS * finest <= 1]
  # Finer steps around the best one: beyond it, moments may grow suddenly.
  at = best(usual, moments(usual))
  near = usual[max(at - 1, 0)], usual[min(at + 1, len(usual) - 1)]
  positive = np.union1d(usual, np.geomspace(*near, 61))
  tilts = np.concatenate([-usual[::-1], [0.0], positive])
  total = moments(tilts)
  # If all losses are below epsilon, each tilt is better than the one before it.
  at = min(best(positive, total[len(usual) + 1 :]), len(positive) - 2)
  at += len(usual) + 1
  tilt, moment = float(tilts[at]), float(total[at])
  above = (total[at + 1 :] - moment + _WRAPPED) / (tilts[at + 1 :] - tilt)
  below = (moment - total[:at] - _WRAPPED) / (tilt - tilts[:at])
  tails = (total[len(usual) + 1 :] - log_delta + _CUT) / positive
  cut = int(np.argmin(tails))
  largest, least = max(float(above.min()), float(tails[cut])), float(below.max())
  if epsilon is not None:
    least, largest = min(least, epsilon), max(largest, epsilon)
  ranges = [loss.range(deviations) for loss, _ in losses]
  # No sum of losses is outside of this range, apart from rounding.
  largest = min(largest, sum(n * r[1] for r, (_, n) in zip(ranges, losses)))
  least = max(least, sum(n * r[0] for r, (_, n) in zip(ranges, losses)))
  least = min(least, largest)
  # With very many rounds, most of the window is for the round-off of places.
  displaced = sum(n * loss.displacement(deviations) for loss, n in losses)
  width = largest - least + displaced
  width = max(width, max(high - low for low, high in ranges))
  interval = max(finest, width / max_cells, MIN_INTERVAL)
  tail, coarseness = float(positive[cut]), interval / narrowest
  return _Plan(tilt, tail, deviations, interval, least, largest, coarseness)


def fourier_error(size: int) -> float:
  """Bound on the round-off of a coefficient; in the inverse, relative to the norm."""
  return _HALVING_ERROR * (1 + math.log2(size))


def _log1p(less_one: np.ndarray) -> np.ndarray:
  """Log of 1 + z with an error relative to z; that of `np.log1p` is relative to 1."""
  real, imaginary = less_one.real, less_one.imag
  excess = 2 * real + real * real + imaginary * imaginary
  modulus = np.hypot(1 + real, imaginary)
  with np.errstate(divide='ignore'):
    log_modulus = np.where(
      modulus < 0.5, np.log(modulus), np.log1p(np.maximum(excess, -0.75)) / 2
    )
  return np.maximum(log_modulus, _LEAST) + 1j * np.arctan2(imaginary, 1 + real)


class Composition:
  """The distribution of the sum of all losses, as a curve of delta over epsilon."""

  def __init__(self, losses: Losses, grid_plan: _Plan) -> None:
    self.interval = interval = grid_plan.interval
    self.coarseness, tilt = grid_plan.coarseness, grid_plan.tilt
    losses = _as_known(losses, grid_plan.deviations)
    rounds = [(loss.on_grid(interval, grid_plan.deviations), n) for loss, n in losses]
    displaced = sum(n * loss.displacement(grid_plan.deviations) for loss, n in losses)
    first = math.floor((grid_plan.least - displaced) / interval) - 1
    max_index = sum(n * (cells.first + len(cells.masses) - 1) for cells, n in rounds)
    last = min(max(math.ceil(grid_plan.largest / interval), first) + 4, max_index)
    size = scipy.fft.next_fast_len(last - first + 1, real=True)
    fft_error = fourier_error(size)
    log_transform = np.zeros(size // 2 + 1, np.complex128)
    log_moduli = np.zeros(len(log_transform))
    per_round, log_atom, shift = np.zeros(len(log_transform)), 0.0, 0
    log_moment, log_tail, finite = 0.0, 0.0, 0.0
    for cells, count in rounds:
      places = cells.first + np.arange(len(cells.masses))
      with np.errstate(divide='ignore'):
        log_masses = np.log(cells.masses)
      logs = log_masses + tilt * interval * places
      moment = float(special.logsumexp(logs))
      weights = np.exp(logs - moment)
      heaviest = int(np.argmax(weights))
      heaviest_mass, weights[heaviest] = float(weights[heaviest]), 0.0
      rest = min(float(np.sum(weights)), 1.0)
      tilted = np.zeros(size)
      np.add.at(tilted, (np.arange(len(weights)) - heaviest) % size, weights)
      less_one = scipy.fft.rfft(tilted) - rest  # The heaviest cell and `rest` add to 1.
      logarithm = _log1p(less_one)
      errors = fft_error * rest + _STEP_ERROR * np.abs(less_one)
      if rest > 0.5:  # Otherwise it is a relative error of the heaviest cell.
        errors += abs(1.0 - heaviest_mass - rest)
      # |(g + e)^n - g^n| is at most n |e| (|g| + |e|)^(n - 1).
      modulus = np.exp(logarithm.real) + errors
      log_transform += count * logarithm
      log_modulus = np.log(modulus)
      log_moduli += count * log_modulus
      turned = np.hypot(log_modulus, logarithm.imag)
      per_round += count * (errors / modulus + _STEP_ERROR * turned)
      per_round += _STEP_ERROR
      with np.errstate(divide='ignore'):
        log_atom += count * float(np.log1p(-rest))
      shift += count * (cells.first + heaviest)
      log_moment += count * moment
      tail = special.logsumexp(log_masses + grid_plan.tail * interval * places)
      log_tail += count * float(tail)
      finite += count * math.log1p(-cells.infinite) if cells.infinite < 1 else -math.inf
    atom = math.exp(log_atom)
    sums = scipy.fft.irfft(np.exp(log_transform) - atom, size)
    # Parseval's theorem; all coefficients except the first count twice.
    lost_each = np.exp(log_moduli) * per_round + _STEP_ERROR
    error = math.sqrt(2 / size * float(np.sum(lost_each**2)))
    error += fft_error * math.sqrt(float(np.sum(sums * sums)))
    sums[0] += atom
    places = np.arange(first, first + size)
    sums = np.maximum(sums[(places - shift % size) % size], 0.0)
    # Undo the tilt. Where weights are capped, delta is far above 1 anyway.
    logs = log_moment - tilt * interval * places
    weights = np.exp(np.minimum(logs, 600.0))
    masses = sums * weights
    # Cumulative sums from above of e^l Q(loss >= l); delta is the sum of its steps.
    decay = math.exp(-interval)
    from scipy import signal  # Slow to import, and not needed at startup.

    tails = signal.lfilter([1.0], [1.0, -decay], masses[::-1])[::-1]
    above = np.concatenate([np.cumsum(tails[:0:-1])[::-1], [0.0]])
    deltas = -math.expm1(-interval) * above
    # Bound on what the errors of all sums add to delta, by Cauchy-Schwarz.
    steps = interval * np.arange(min(size, 2 + 50 / (tilt * interval)))
    lever = np.exp(-tilt * steps) * -np.expm1(-steps)
    lost = weights * (error * math.sqrt(float(np.sum(lever * lever))))
    beyond = 0.0
    if places[-1] < max_index:
      log_tail -= grid_plan.tail * interval * float(places[-1])
      beyond = math.exp(min(log_tail, 0.0))
    infinite = -math.expm1(finite)
    self._epsilons = interval * places + displaced
    self._errors = lost + beyond + infinite
    # Relative round-off of probabilities, of tilts and of sums.
    total = sum(n for _, n in losses)
    relative = _CELL_ERROR * (1 + grid_plan.deviations**2) * (10 + total)
    relative += 1e-15 * size + 1e-15 * abs(log_moment)
    self._deltas = np.minimum(1.0, deltas * (1 + relative) + self._errors)

  def epsilon(self, delta: float) -> tuple[float, float]:
    """The smallest epsilon >= 0, infinite beyond the grid; and delta's error share."""
    indices = np.flatnonzero((self._deltas <= delta) & (self._epsilons >= 0))
    if not len(indices):
      return math.inf, 1.0
    at = int(indices[0])
    epsilon, error_share = float(self._epsilons[at]), float(self._errors[at]) / delta
    if at == 0:  # The true epsilon may be below the window.
      return epsilon, 1.0 if epsilon > 0 else error_share
    more, less = float(self._deltas[at - 1]), float(self._deltas[at])
    if epsilon > 0 and self.interval <= 1 and less < more < 1.0:  # Neither is NaN.
      if more <= delta:  # The crossing is below 0.
        return 0.0, error_share
      # Delta is linear in e^epsilon between two points.
      part = (more - delta) / (more - less)
      before = float(self._epsilons[at - 1])
      epsilon = max(0.0, before + math.log1p(part * math.expm1(self.interval)))
    return epsilon, error_share

  def delta(self, epsilon: float) -> tuple[float, float]:
    """The smallest delta at `epsilon`, and the share of it that is numerical error."""
    at = int(np.searchsorted(self._epsilons, epsilon, side='right')) - 1
    if at < 0:
      return 1.0, 1.0
    if at + 1 == len(self._epsilons) or self.interval > 1:
      delta = float(self._deltas[at])  # An upper bound, as delta falls with epsilon.
    else:
      part = math.expm1(epsilon - float(self._epsilons[at])) / math.expm1(self.interval)
      more, less = float(self._deltas[at]), float(self._deltas[at + 1])
      delta = more - (more - less) * min(1.0, max(0.0, part))
    return delta, float(self._errors[at]) / max(delta, _SMALLEST)


# Interval of the grid of ratios over the deviation of the logarithm of the sum, and the
# limits of the interval: with noise multipliers above 100, bounds are coarser.
_FINE_RATIOS, _LARGEST_RATIO_INTERVAL, _LEAST_RATIO_INTERVAL = 0.04, 0.01, 2e-5
_MAX_RATIO_CELLS = 2**15  # Maximum size of a grid of ratios, which takes seconds.
_MAX_LOG = 300.0  # Maximum logarithm of a ratio.
_RATIO_POINTS = 1200  # Points at which moments are estimated.
_VALUE_ERROR = 2.0**-48  # Relative error of a value on the grid, in each sum.


class Ratios(NamedTuple):
  """A distribution of sums of ratios, on the points `exp(interval * i)` and at 0."""

  interval: float
  first: int  # The i that `masses` begins with.
  masses: np.ndarray  # Probabilities under Q.
  zero: float = 0.0  # Probability of 0.
  lost: float = 0.0  # Bound on what the mean has lost at the upper end.

  @property
  def logs(self) -> np.ndarray:
    """Logarithms of the points."""
    return self.interval * (self.first + np.arange(len(self.masses)))

  def finer(self, interval: float) -> 'Ratios':
    """The same distribution on a grid that is finer by a power of 2."""
    times = round(self.interval / interval)
    masses = np.zeros(times * (len(self.masses) - 1) + 1)
    masses[::times] = self.masses
    return Ratios(
      self.interval / times, self.first * times, masses, self.zero, self.lost
    )

  def plus(self, other: 'Ratios', least: float) -> 'Ratios':
    """The sum of two independent ones, on their grid; ends below `least` are cut."""
    interval = self.interval
    first = min(self.first, other.first)
    end = max(each.first + len(each.masses) for each in (self, other))
    size = end - first
    one, two = (
      np.pad(each.masses, (each.first - first, end - each.first - len(each.masses)))
      for each in (self, other)
    )
    sums = np.zeros(size + math.ceil(math.log(2) / interval) + 2)
    sums[:size] += one * other.zero + two * self.zero
    cell = math.expm1(interval)
    # If they are farther apart, the smaller one moves the larger by less than a cell.
    near = min(size - 1, math.ceil(-math.log(cell) / interval) + 1)
    gap = max(self.first - other.first - len(other.masses), 0)
    gap = max(other.first - self.first - len(self.masses), gap)
    for apart in range(gap, near + 1):
      weights = one[apart:] * two[: size - apart]
      if apart:
        weights += two[apart:] * one[: size - apart]
      ratio = math.exp(-apart * interval)
      up = math.floor(math.log1p(ratio) / interval)
      part = ((1 + ratio) * math.exp(-up * interval) - 1) / cell
      part = min(max(part, 0.0), 1.0)
      sums[apart + up : size + up] += weights * (1 - part)
      sums[apart + up + 1 : size + up + 1] += weights * part
    if near < size - 1:
      scale = np.exp(interval * (np.arange(size) - size))
      for large, small in ((one, two), (two, one)):
        # The upper point's part is linear in the smaller one, whose mean suffices.
        many = np.cumsum(small)[: size - near - 1]
        mean = np.cumsum(small * scale)[: size - near - 1] / scale[near + 1 :]
        up_masses = large[near + 1 :] * (mean / cell)
        sums[near + 1 : size] += np.maximum(large[near + 1 :] * many - up_masses, 0.0)
        sums[near + 2 : size + 1] += up_masses
    lost = self.lost + other.lost
    total = Ratios(interval, first, sums, self.zero * other.zero, lost)
    return total.cut(least)

  def cut(self, least: float) -> 'Ratios':
    """Cuts ends off: below by probability under Q, above by their part of the mean."""
    masses, first, zero, lost = self.masses, self.first, self.zero, self.lost
    below = int(np.searchsorted(np.cumsum(masses), least))
    if below >= len(masses):
      return self
    if below:
      ends, masses = masses[:below], masses[below:].copy()
      mean = float(ends @ np.exp(self.interval * np.arange(-below, 0)))
      masses[0] += mean
      zero += max(float(ends.sum()) - mean, 0.0)
      first += below
    values = np.exp(self.interval * (first + np.arange(len(masses))))
    beyond = np.cumsum((masses * values)[::-1])[::-1]
    kept = max(int((beyond > least).sum()), 1)
    if kept < len(masses):
      lost += float(beyond[kept])
      ends, masses = masses[kept:], masses[:kept].copy()
      masses[-1] += float(ends.sum())
    return Ratios(self.interval, first, masses, zero, lost)


def _ratio_of_one_step(mu: float, interval: float, deviations: float) -> Ratios:
  """The ratio of one step, rounded to the grid by a mean-preserving spread."""
  reach = mu * deviations + mu * mu / 2
  last = math.ceil(reach / interval)
  edges = np.arange(-last, last + 1) * interval
  noise = Loss(False, mu, 1.0, Side.REMOVED)
  p, q, errors = noise.masses(edges)
  values = np.exp(edges)
  lower = q[1:-1] * values[:-1]
  up = (p[1:-1] - lower + errors * (p[1:-1] + lower)) / np.diff(values)
  up = np.clip(up, 0.0, q[1:-1])
  masses = np.zeros(len(edges))
  masses[1:] += up
  masses[:-1] += q[1:-1] - up
  low = min(p[0] / values[0], q[0])
  masses[0] += low
  masses[-1] += q[-1]
  return Ratios(interval, -last, masses, float(q[0] - low), float(p[-1]))


@functools.lru_cache(maxsize=32)
def ratios(mu: float, num_places: int, num_steps: int, deviations: float) -> Ratios:
  """The distribution of m S under Q, rounded such that the pair still dominates."""
  # Approximate deviation of the logarithm of one ratio.
  deviation = math.sqrt(math.expm1(min(mu * mu, 50.0)))

  def wanted(steps: int, places: int) -> float:
    # In proportion to the deviation of the logarithm of the mean of `steps` ratios.
    own = _FINE_RATIOS * deviation * math.sqrt(steps) / places
    return min(_LARGEST_RATIO_INTERVAL, own)

  least = 2 * (mu * deviations + mu * mu) / _MAX_RATIO_CELLS
  finest = max(wanted(num_steps, num_places), least, _LEAST_RATIO_INTERVAL)

  def interval_for(steps: int) -> float:
    # A power of 2 times the finest interval: grids of few steps are coarser.
    return finest * 2 ** max(0, math.floor(math.log2(wanted(steps, steps) / finest)))

  least = math.exp(-deviations * deviations / 2) / num_places
  power = _ratio_of_one_step(mu, interval_for(1), deviations)
  total: Optional[Ratios] = None
  steps_in_total = 0
  for size in (2**bit for bit in range(num_steps.bit_length())):
    if size > 1:
      power = power.finer(interval_for(size))
      power = power.plus(power, least)
    if num_steps & size:
      steps_in_total += size
      finer = power.finer(interval_for(steps_in_total))
      total = total.finer(finer.interval).plus(finer, least) if total else finer
  assert total is not None
  if num_places > num_steps:
    # The places that are no steps add a constant, which is split between two points.
    log_others = math.log(num_places - num_steps)
    at = math.floor(log_others / finest)
    part = math.expm1(log_others - at * finest) / math.expm1(finest)
    part = min(max(part, 0.0), 1.0)
    others = Ratios(finest, at, np.array([1 - part, part]))
    total = total.finer(finest).plus(others, least)
  return total


@dataclasses.dataclass(frozen=True)
class _AllocatedLoss:
  """The loss of all steps of a random allocation; `mu` is that of a single step."""

  mu: float
  num_places: int
  num_steps: int
  side: Side

  def _ratios(self, deviations: float) -> tuple[np.ndarray, np.ndarray, Ratios]:
    """Logarithms of S, their probabilities under Q, and the distribution of m S."""
    sums = ratios(self.mu, self.num_places, self.num_steps, deviations)
    # Relative round-off; probabilities are sums and products of positive numbers.
    roundings = 2 * math.log2(2 * self.num_places) * (len(sums.masses) + 8)
    error = 2 * self.num_places * roundings * _ROUNDING
    return sums.logs - math.log(self.num_places), sums.masses * (1 + error), sums

  def range(self, deviations: float) -> tuple[float, float]:
    logs, _, _ = self._ratios(deviations)
    if self.side is Side.ADDED:
      return -float(logs[-1]), -float(logs[0])
    return float(logs[0]), float(logs[-1])

  def displacement(self, deviations: float) -> float:
    return _VALUE_ERROR * (4 + 2 * math.log2(self.num_places)) * (1 + _MAX_LOG)

  def on_grid(self, interval: float, deviations: float) -> Cells:
    logs, masses, sums = self._ratios(deviations)
    below = np.floor(logs / interval).astype(np.int64)
    part = np.expm1(logs - below * interval) / math.expm1(interval)
    part = np.clip(part, 0.0, 1.0)
    first = int(below[0])
    q = np.zeros(int(below[-1]) - first + 2)
    np.add.at(q, below - first, masses * (1 - part))
    np.add.at(q, below - first + 1, masses * part)
    if self.side is Side.ADDED:
      return Cells(-(first + len(q) - 1), q[::-1], min(sums.zero, 1.0))
    p = q * np.exp(interval * (first + np.arange(len(q))))
    return Cells(first, p, min(sums.lost / self.num_places, 1.0))

  def points(self, deviations: float) -> tuple[np.ndarray, np.ndarray]:
    logs, masses, _ = self._ratios(deviations)
    if self.side is Side.ADDED:
      logs = -logs
    else:
      masses = masses * np.exp(logs)
    every = -(-len(logs) // _RATIO_POINTS)
    starts = np.arange(0, len(logs), every)
    weights = np.add.reduceat(masses, starts)
    means = np.add.reduceat(masses * logs, starts)
    some = weights > 0
    return np.log(weights[some]), means[some] / weights[some]


# Larger noise multipliers are replaced; with smaller ones, the Renyi bound is used.
_MAX_NOISE, _MIN_NOISE = 1e9, 1e-6
_LEAST_PROBABILITY = 1e-300  # Smaller sampling probabilities are replaced by it.
# Deltas of so many decades share one composition, if at most this share of delta is
# numerical error, and epsilon is not as small as this.
_DECADES, _ERROR, _SMALL_EPSILON = 4, 1e-6, 0.05
# With a larger `coarseness` the Renyi bound may be smaller; a grid of so many cells is
# tried then, which takes a second or two.
_COARSE, _MORE_CELLS = 0.25, 4 * MAX_CELLS
_ROUND_OFF = 1e-12  # More than the relative round-off of a sum of losses.
_MIN_DELTA = 1e-280  # Below it, what is cut off would underflow in float64.
_Parts = tuple[accountant.Component, ...]


class PldAccountant(accountant.Accountant):
  """Numerical accountant of sampled and unsampled Gaussian and Laplace mechanisms."""

  name = 'pld'
  rank = 1
  is_numerical = True
  reads_bounds = True
  reads = (
    'Gaussian and Laplace events, Poisson-sampled or not, and Gaussian events sampled '
    'without replacement or with a cap, or allocated at random'
  )

  def _can_read(self, part: dp_accounting.DpEvent) -> bool:
    poisson = dp_accounting.PoissonSampledDpEvent
    sampled = (poisson, _FIXED_SIZE, _TRUNCATED, events.AllocatedDpEvent)
    return (
      isinstance(part, accountant.UNSAMPLED)
      or accountant.is_sampled(part, *sampled)
      or accountant.is_sampled(part, poisson, noise=dp_accounting.LaplaceDpEvent)
    )

  def _epsilon(self, parts: list[accountant.Component], delta: float) -> float:
    return _answer(tuple(parts), self.neighboring_relation, delta)[0]

  def _delta(self, components: list[accountant.Component], epsilon: float) -> float:
    parts, relation = tuple(components), self.neighboring_relation
    if not _is_in_range(parts):
      return _renyi(parts, relation).get_delta(epsilon)
    sides = [_delta_of_side(side, epsilon) for side in _sides(parts, relation)]
    deltas, errors = zip(*sides)
    bounds = [1.0, max(math.ulp(0.0), *deltas), _total_variation(parts)]
    if max(errors) > _ERROR or _is_replaced(parts, relation):
      bounds.append(_renyi(parts, relation).get_delta(epsilon))
    return min(bounds)

  def _instead(
    self, parts: list[accountant.Component], delta: float
  ) -> Optional[accountant.Instead]:
    epsilon, reason = _answer(tuple(parts), self.neighboring_relation, delta)
    is_renyi = reason and epsilon <= accountant.pure_epsilon_of(parts)
    return accountant.Instead(rdp.RdpAccountant.name, reason) if is_renyi else None


def _renyi(parts: _Parts, relation: Relation) -> rdp.RdpAccountant:
  """The Renyi bound; components that it does not read count without their sampling."""
  bound = rdp.RdpAccountant(relation)
  for part, count in parts:
    bound.compose(part if bound.supports(part) else part.event, count)
  return bound


def _is_in_range(parts: _Parts) -> bool:
  noises = (getattr(part, 'event', part) for part, _ in parts)
  return all(noise.noise_multiplier >= _MIN_NOISE for noise in noises)


@functools.lru_cache(maxsize=64)
def _answer(parts: _Parts, relation: Relation, delta: float) -> tuple[float, str]:
  """Epsilon, and the reason if it is the Renyi bound, else an empty text."""
  if _total_variation(parts) <= delta:
    return 0.0, ''
  bound = _renyi(parts, relation)
  if not (_is_in_range(parts) and delta >= _MIN_DELTA):
    reason = f"pld's grid does not reach noise this small at delta = {delta:g}"
    return bound.get_epsilon(delta), reason
  epsilon, coarse = 0.0, False
  for side in _sides(parts, relation):
    one, is_coarse = _epsilon_of_side(side, delta)
    epsilon, coarse = max(epsilon, min(one, _loss_bound(side))), coarse or is_coarse
  reason = ''
  if coarse or not math.isfinite(epsilon):
    reason = f"pld's grid could not reach delta = {delta:g} any closer"
  elif _is_replaced(parts, relation):
    reason = 'the pair that stands for replacing a client has both sides at their worst'
  if reason:
    renyi = bound.get_epsilon(delta)
    if not epsilon <= renyi:
      return renyi, reason
  return epsilon, ''


def _is_replaced(parts: _Parts, relation: Relation) -> bool:
  """Whether rounds have the pair of `replaced`, which is loose for many rounds."""
  has_fixed_size = any(isinstance(part, _FIXED_SIZE) for part, _ in parts)
  return has_fixed_size and relation is Relation.REPLACE_ONE


def _fraction(part: dp_accounting.DpEvent) -> float:
  if isinstance(part, events.AllocatedDpEvent):
    return float(part.num_steps / part.num_places)
  if isinstance(part, _FIXED_SIZE):
    return float(part.sample_size / part.source_dataset_size)
  return float(getattr(part, 'sampling_probability', 1.0))


def _total_variation(parts: _Parts) -> float:
  """An upper bound on delta at epsilon 0: the sum of the total variations of rounds."""
  total = 0.0
  for part, count in parts:
    noise = getattr(part, 'event', part)
    mu = 1 / max(noise.noise_multiplier, 1e-300)
    if isinstance(noise, dp_accounting.LaplaceDpEvent):
      variation = -math.expm1(-mu / 2)
    else:
      variation = math.erf(mu / math.sqrt(8))
    if isinstance(part, _TRUNCATED):
      variation += accountant.displacement_probability(part) * (
        math.erf(mu / math.sqrt(2)) - variation
      )
    total += count * _fraction(part) * variation
  return total * (1 + 1e-9)


def _epsilon_of_side(side: Losses, delta: float) -> tuple[float, bool]:
  decade = _DECADES * math.floor(math.log10(delta) / _DECADES)
  middle_delta = 10.0 ** (decade + _DECADES / 2)
  composition = _composition(side, plan(side, math.log(middle_delta)))
  epsilon, error_share = composition.epsilon(delta)
  if not error_share <= _ERROR or epsilon < _SMALL_EPSILON:
    composition = _composition(side, plan(side, math.log(delta)))
    # Both are upper bounds, as each includes its error.
    epsilon = min(epsilon, composition.epsilon(delta)[0])
  if composition.coarseness > _COARSE:
    finer = plan(side, math.log(delta), max_cells=_MORE_CELLS)
    composition = _composition(side, finer)
    epsilon = min(epsilon, composition.epsilon(delta)[0])
  return epsilon, composition.coarseness > _COARSE


def _delta_of_side(side: Losses, epsilon: float) -> tuple[float, float]:
  """Delta by grids of growing range, and the share of it that is error."""
  if epsilon >= _loss_bound(side):
    return 0.0, 0.0
  delta, error_share = 1.0, 1.0
  for log_delta in (-20.0, -50.0, -120.0, -300.0, math.log(_MIN_DELTA)):
    composition = _composition(side, plan(side, log_delta, epsilon))
    bound, error_share = composition.delta(epsilon)
    delta = min(delta, bound)
    if error_share <= _ERROR:
      break
  return delta, error_share


def _loss_bound(side: Losses) -> float:
  """Upper bound on the sum of all losses, near which no tilt resolves the curve.

  It is finite for Laplace noise, for `ADDED` on a sample, where P is at most Q / (1 -
  q), and for an allocation with places that are no steps.
  """
  bound = 0.0
  for loss, count in side:
    if isinstance(loss, _AllocatedLoss):
      missed = 1 - loss.num_steps / loss.num_places
      if loss.side is not Side.ADDED or missed <= 0:
        return math.inf
      bound += -count * math.log(missed)
    elif isinstance(loss, _MixedLoss):
      bound += count * max(_loss_bound(((each, 1),)) for each, _ in loss.parts)
    elif loss.is_laplace:
      bound += count * (loss.range(0.0)[1] + loss.displacement(0.0))
    elif loss.side is Side.ADDED and loss.fraction < 1:
      bound += -count * math.log1p(-loss.fraction)
    else:
      return math.inf
  return bound * (1 + _ROUND_OFF)


_composition = functools.lru_cache(maxsize=8)(Composition)


def _sides(parts: _Parts, relation: Relation) -> list[Losses]:
  """The losses that are composed: one tuple, or two if adding differs from removing."""
  sides = [
    tuple((_loss(part, relation, side), count) for part, count in parts)
    for side in (Side.REMOVED, Side.ADDED)
  ]
  return sides[:1] if sides[0] == sides[1] else sides


def _loss(part: dp_accounting.DpEvent, relation: Relation, side: Side) -> _AnyLoss:
  noise = getattr(part, 'event', part)
  is_laplace = isinstance(noise, dp_accounting.LaplaceDpEvent)
  mu = 1 / min(noise.noise_multiplier, _MAX_NOISE)
  fraction = max(_fraction(part), _LEAST_PROBABILITY)
  if isinstance(part, events.AllocatedDpEvent) and part.num_steps > 1:
    return _AllocatedLoss(mu, part.num_places, part.num_steps, side)
  if isinstance(part, _FIXED_SIZE) and relation is Relation.REPLACE_ONE:
    return replaced(mu, fraction)
  if isinstance(part, accountant.UNSAMPLED):
    side = Side.REMOVED  # Both sides have the same distribution.
  usual = Loss(is_laplace, mu, fraction, side)
  if not isinstance(part, _TRUNCATED):
    return usual
  other: _AnyLoss = dataclasses.replace(usual, mu=2 * mu)
  if relation is Relation.REPLACE_SPECIAL:
    other = zeroed(mu, fraction, side)
  displaced = accountant.displacement_probability(part)
  return _MixedLoss(((usual, 1 - displaced), (other, displaced)))
