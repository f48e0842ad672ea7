"""Distributions of privacy losses on a grid, and their composition.

A pair of distributions (P, Q) dominates a round if no two neighbouring data sets are
easier to tell apart by it, at any odds: the divergence H_a(P || Q), the integral of
max(P - a Q, 0), is at least that of the data sets for all a >= 0. Composing dominating
pairs gives one of all rounds, even if each round is chosen after seeing those before
(arXiv:2106.08567): with outcomes x of what comes before, from P or from Q, H_a of both
is the mean over x from P of H_b of the round at b = a Q(x) / P(x). That is not less
with the round's pair in its place; and as this is the same for all x, what comes before
can be replaced next. It takes all a, those below 1 too.

The loss is log(P(x) / Q(x)) with x from P. Here are the pairs of noise on a sample:

| `Side` | P | Q |
|---|---|---|
| `REMOVED` | (1 - q) N(0) + q N(1) | N(0) |
| `ADDED` | N(0) | (1 - q) N(0) + q N(1) |
| `REPLACED` | losses above 0 as `REMOVED` has them, below 0 as `ADDED` | |

**Rounding.** The probabilities under P and Q of the losses between two grid points are
shared among these two points such that both are kept. Between grid points the curve of
delta over e^epsilon is then the chord of a convex one: never below it
(arXiv:2207.04380). What is beyond the grid counts as an infinite loss.

**Composition.** Fourier transforms have a round-off relative to the largest of the
probabilities, which would drown all deltas below about 1e-16 times the rounds. So what
is transformed is not the distribution of the loss L but its tilt, proportional to
e^(t L), with the t for which the losses near epsilon are the likely ones (the saddle
point, arXiv:2208.09595): round-off then is relative to delta, and a bound on it is
added to delta.

**Round-off.** With u = 2^-53, each of these is a bound and goes the safe way:

* A grid point is placed in the noise with an error, which puts it at another loss by
  little: every epsilon is raised by the sum of that over all rounds. The two places,
  under P and Q, have errors of their own, so that the probability of a narrow cell has
  a relative one; as much more of it goes to the upper grid point.
* A coefficient of a transform is a sum of entries whose sizes add up to 1, by at most
  log2(size) halvings. Each has, as pocketfft does it, fewer than 16 roundings, so that
  the coefficient is wrong by at most 16 u log2(size); that is to first order, and the
  true error a hundred times less. For the transform back the same holds of Euclidean
  norms, relative, as a step but for its roundings is a multiple of a unitary matrix.
* Where losses are rare, nearly all of a tilted distribution is in one cell, and its
  coefficients are all about 1. That cell is left out of the transforms, both ways: with
  the rest r of the mass, a coefficient relative to the cell's is 1 + z, where z has a
  round-off of 16 u log2(size) r alone, and its power is e^(n log(1 + z)).
* The rest are sums and products of positive numbers, whose relative errors add up.
"""

import dataclasses
import enum
import functools
import math
from typing import Any, Optional, Protocol

import numpy as np
import scipy.fft
from scipy import special

# Cells of a grid; so many take tenths of a second.
MAX_CELLS = 2**19
# A grid this fine, or so many times finer than one round's losses are wide, is enough.
_INTERVAL, _PER_DEVIATION = 1e-4, 16
MIN_INTERVAL = 1e-12
# Logarithm of what is cut off, relative to delta.
_CUT = 18.0
# Of what may come round the circle of a Fourier transform, relative to what is there.
_WRAPPED = 22.0
# Points of a standard distribution at which moments are estimated.
_POINTS = 1201
_TILTS = np.geomspace(1e-6, 1e12, 217)
_ROUNDING = 2.0**-53
# Round-off of a Fourier transform, for each halving of its size.
_HALVING_ERROR = 16 * _ROUNDING
# Round-off of a logarithm, product or exponential, relative.
_STEP_ERROR = 8 * _ROUNDING
# Of a place in the noise, relative; of a normal probability there, at a place of 1.
_PLACE_ERROR, _CELL_ERROR = 8 * _ROUNDING, 1e-14
# Gauss-Legendre nodes for narrow cells, exact to round-off there.
_NODES, _WEIGHTS = special.roots_legendre(4)
_NARROW = 0.1
_SMALLEST = 1e-300
# Logarithm of it: of coefficients that are 0 as well.
_LEAST = math.log(_SMALLEST)


class Side(enum.Enum):
  """Which of two neighbouring data sets the loss is measured from."""

  REMOVED = 'removed'
  ADDED = 'added'
  REPLACED = 'replaced'


class AnyLoss(Protocol):
  """What can be composed: hashable, and of a distribution that is known."""

  @property
  def is_laplace(self) -> bool:
    """Whether losses end."""

  def range(self, deviations: float) -> tuple[float, float]:
    """Least and largest loss within so many deviations of the noise."""

  def displacement(self, deviations: float) -> float:
    """How far from its loss the place of a grid point may be, by round-off."""

  def on_grid(self, interval: float, deviations: float) -> 'Cells':
    """Its distribution on the multiples of `interval`, rounded up."""

  def moments(self, tilts: np.ndarray, deviations: float) -> np.ndarray:
    """About log E e^(tilt * loss), for choosing a grid by."""

  def deviation(self, deviations: float) -> float:
    """About the standard deviation of the loss, positive."""


@dataclasses.dataclass(frozen=True)
class Loss:
  """The privacy loss of one round.

  Attributes:
    is_laplace: Laplace noise, or Gaussian.
    mu: What one client changes the sum by, over the standard deviation of Gaussian
      noise or the scale of Laplace noise.
    fraction: Probability q that the client is in the round, above 0.
    side: What is told from what.
  """

  is_laplace: bool
  mu: float
  fraction: float
  side: Side

  def _reached(self, epsilon: Any) -> Any:
    """The loss of the noise alone where that of the sample, removed, is epsilon."""
    q = self.fraction
    if q == 1:
      return np.array(epsilon, np.float64)
    low, high = np.minimum(epsilon, 1.0), np.maximum(epsilon, 1.0)
    with np.errstate(divide='ignore'):
      small = np.log1p(np.maximum(np.expm1(low) / q, -1.0))
    large = high - math.log(q) + np.log1p(-(1 - q) * np.exp(-high))
    return np.where(np.asarray(epsilon) > 1.0, large, small)

  def _sampled(self, loss: Any) -> Any:
    """The loss of the sample, removed, where that of the noise alone is `loss`."""
    q = self.fraction
    if q == 1:
      return np.array(loss, np.float64)
    low, high = np.minimum(loss, 1.0), np.maximum(loss, 1.0)
    large = high + math.log(q) + np.log1p((1 - q) / q * np.exp(-high))
    return np.where(np.asarray(loss) > 1.0, large, np.log1p(q * np.expm1(low)))

  def _places(self, loss: Any) -> tuple[np.ndarray, np.ndarray]:
    """Where the noise alone has a loss, in its scale: seen from Q, and from P."""
    if not self.is_laplace:
      return loss / self.mu + self.mu / 2, loss / self.mu - self.mu / 2
    outside = np.where(np.abs(loss) < self.mu, 0.0, np.copysign(math.inf, loss))
    return (loss + self.mu) / 2 + outside, (loss - self.mu) / 2 + outside

  def masses(self, epsilon: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Probabilities of losses up to the first, between, and above, removed.

    Returns:
      Under the mixture and under the plain noise, each of shape [len(epsilon) + 1],
      and the relative error of those between, of shape [len(epsilon) - 1].
    """
    from_q, from_p = self._places(self._reached(epsilon))
    far = np.maximum(np.abs(from_q), np.abs(from_p))
    far = np.where(np.isfinite(far), far, 0.0)
    far = np.maximum(far[:-1], far[1:])
    with np.errstate(divide='ignore', invalid='ignore'):
      width = np.minimum(np.diff(from_q), np.diff(from_p))
      displaced = np.where(width > 0, _PLACE_ERROR * far / width, 1.0)
    errors = np.minimum(_CELL_ERROR * (1 + far * far) + displaced, 1.0)
    mass = _laplace_mass if self.is_laplace else _normal_mass
    ends = np.array([math.inf])
    plain = mass(np.concatenate([-ends, from_q]), np.concatenate([from_q, ends]))
    shifted = mass(np.concatenate([-ends, from_p]), np.concatenate([from_p, ends]))
    return (1 - self.fraction) * plain + self.fraction * shifted, plain, errors

  def _largest(self, deviations: float) -> tuple[float, float]:
    """Least and largest loss, removed, within so many deviations."""
    reach = self.mu if self.is_laplace else self.mu * (deviations + self.mu / 2)
    return float(self._sampled(-reach)), float(self._sampled(reach))

  def range(self, deviations: float) -> tuple[float, float]:
    """Least and largest loss within so many deviations of the noise."""
    least, largest = self._largest(deviations)
    if self.side is Side.REMOVED:
      return least, largest
    if self.side is Side.ADDED:
      return -largest, -least
    return -largest, largest

  def displacement(self, deviations: float) -> float:
    """How far from its loss the place of a grid point may be, by round-off."""
    if self.is_laplace:
      return _PLACE_ERROR * 2 * self.mu
    most = max(abs(each) for each in self._largest(deviations))
    return _PLACE_ERROR * (most + 2 * self.mu * (deviations + self.mu))

  def on_grid(self, interval: float, deviations: float) -> 'Cells':
    """Its distribution on the multiples of `interval`, rounded up."""
    least, largest = self._largest(deviations)
    if self.side is Side.REPLACED:
      last = math.ceil(largest / interval)
      removed, _, beyond = self._cells(0, last, interval, False)
      added, below, _ = self._cells(-last, 0, interval, True)
      added[0] += below
      added[-1] += removed[0] + self._level()
      return Cells(-last, np.concatenate([added, removed[1:]]), beyond)
    if self.side is Side.ADDED:
      least, largest = -largest, -least
    first, last = math.floor(least / interval), math.ceil(largest / interval)
    masses, below, beyond = self._cells(first, last, interval, self.side is Side.ADDED)
    masses[0] += below
    return Cells(first, masses, beyond)

  def _level(self) -> float:
    """What `REPLACED` has at loss 0: what is left of a probability of 1.

    The mixture is below the middle more often than the plain noise is above.
    """
    half = self.mu / 2
    within = -math.expm1(-half) if self.is_laplace else math.erf(half / math.sqrt(2))
    return (1 - self.fraction) * within

  def _cells(
    self, first: int, last: int, interval: float, added: bool
  ) -> tuple[np.ndarray, float, float]:
    """Probabilities on multiples `first` to `last`, and those below and above."""
    edges = np.arange(first, last + 1) * interval
    p, q, errors = self.masses(-edges[::-1] if added else edges)
    if added:
      p, q, errors = q[::-1], p[::-1], errors[::-1]
    # The inner ones are shared: P keeps p, Q keeps q.
    inner, other = p[1:-1], q[1:-1]
    with np.errstate(over='ignore', invalid='ignore'):
      lower = other * np.exp(edges[:-1])
      up = (inner - lower + errors * (inner + lower)) / -math.expm1(-interval)
      told = (lower > 0) & np.isfinite(lower)  # Else all goes up.
    up = np.where(told, np.clip(up, 0.0, inner), inner)
    masses = np.zeros(len(edges))
    masses[1:] += up
    masses[:-1] += inner - up
    return masses, float(p[0]), float(p[-1])

  def _points(self, deviations: float) -> tuple[np.ndarray, np.ndarray]:
    """About the distribution: logarithms of probabilities, and losses.

    Gaussian noise is looked at as far as the grid reaches, which ends `mu` beyond the
    deviations of the plain noise. At strong tilts what is there counts.
    """
    z = np.linspace(-deviations, deviations, _POINTS)
    if not self.is_laplace:
      step = z[1] - z[0]
      beyond = np.arange(1, 1 + min(math.ceil(self.mu / step), _POINTS))
      z = np.concatenate([z, deviations + step * beyond])
    log_density = -np.abs(z) if self.is_laplace else -z * z / 2
    log_density = log_density - special.logsumexp(log_density)
    if self.is_laplace:
      from_q = np.abs(z) - np.abs(z - self.mu)
      from_p = np.abs(z + self.mu) - np.abs(z)
    else:
      from_q, from_p = self.mu * (z - self.mu / 2), self.mu * (z + self.mu / 2)
    from_q, from_p = self._sampled(from_q), self._sampled(from_p)
    if self.side is Side.ADDED:
      return log_density, -from_q
    if self.fraction == 1 and self.side is Side.REMOVED:
      return log_density, from_p
    with np.errstate(divide='ignore'):
      weights = np.log([1 - self.fraction, self.fraction])
    logs = np.concatenate([log_density + weights[0], log_density + weights[1]])
    values = np.concatenate([from_q, from_p])
    if self.side is Side.REMOVED:
      return logs, values
    above, below = values > 0, from_q > 0
    level = math.log(max(self._level(), _SMALLEST))
    return (
      np.concatenate([logs[above], log_density[below], [level]]),
      np.concatenate([values[above], -from_q[below], [0.0]]),
    )

  def moments(self, tilts: np.ndarray, deviations: float) -> np.ndarray:
    """About log E e^(tilt * loss), for choosing a grid by."""
    logs, values = self._points(deviations)
    exponents = np.multiply.outer(tilts, values)
    exponents += logs
    largest = exponents.max(axis=1)
    exponents -= largest[:, np.newaxis]
    np.exp(exponents, out=exponents)
    return np.log(exponents.sum(axis=1)) + largest

  def deviation(self, deviations: float) -> float:
    """About the standard deviation of the loss, positive."""
    logs, values = self._points(deviations)
    weights = np.exp(logs)
    mean = float(weights @ values)
    return max(math.sqrt(float(weights @ (values - mean) ** 2)), MIN_INTERVAL)


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
  """Probability of (a, b) for Laplace noise of scale 1."""

  def positive(low: np.ndarray, high: np.ndarray) -> np.ndarray:
    low, high = np.maximum(low, 0.0), np.maximum(high, 0.0)
    with np.errstate(invalid='ignore'):
      mass = -np.exp(-low) * np.expm1(low - high) / 2
    return np.where(np.isinf(low), 0.0, mass)

  return positive(a, b) + positive(-b, -a)


@dataclasses.dataclass(frozen=True)
class Cells:
  """A distribution of losses on multiples of an interval.

  Attributes:
    first: The multiple that `masses` begins with.
    masses: Probabilities, float64.
    infinite: Probability of an infinite loss.
  """

  first: int
  masses: np.ndarray
  infinite: float


@dataclasses.dataclass(frozen=True)
class Plan:
  """How a composition is computed, for the losses around an epsilon.

  Attributes:
    tilt: The t of e^(t L).
    tail: Another, whose moment bounds what is above the window.
    deviations: How far the noise is looked at.
    interval: Of the grid.
    least: Least loss of the window.
    largest: Largest.
    coarseness: Interval over the standard deviation of the narrowest round's loss.
  """

  tilt: float
  tail: float
  deviations: float
  interval: float
  least: float
  largest: float
  coarseness: float


@functools.lru_cache(maxsize=64)
def plan(
  losses: tuple[tuple[AnyLoss, int], ...],
  log_delta: float,
  epsilon: Optional[float] = None,
  max_cells: int = MAX_CELLS,
) -> Plan:
  """The grid and tilt for a delta, or for an epsilon.

  Args:
    losses: The rounds, and how many there are of each.
    log_delta: Logarithm of the delta in view; what is far less is cut off.
    epsilon: The epsilon whose delta is looked for; `None` to look for an epsilon.
    max_cells: How many cells the grid may have.
  """
  count = sum(times for _, times in losses)
  deviations = math.sqrt(2 * (math.log(count) + _CUT - log_delta))

  def moments(tilts: np.ndarray) -> np.ndarray:
    return sum(
      (times * loss.moments(tilts, deviations) for loss, times in losses),
      np.zeros(len(tilts)),
    )

  has_ends = any(loss.is_laplace for loss, _ in losses)

  def best(tilts: np.ndarray, total: np.ndarray) -> int:
    if has_ends:
      # 1 - e^(epsilon - L) is at most this times e^(t (L - epsilon)). It matters where
      # losses end: without it the largest tilt is the best, and sees the end alone.
      total = total - np.log1p(tilts) + tilts * np.log(tilts / (1 + tilts))
    if epsilon is None:
      return int(np.argmin((total - log_delta) / tilts))
    return int(np.argmin(total - tilts * epsilon))

  spread = min(loss.deviation(deviations) for loss, _ in losses)
  finest = min(_INTERVAL, spread / _PER_DEVIATION)
  # Where losses end, more tilt is better without end; a grid tells no more apart.
  usual = _TILTS[_TILTS * finest <= 1]
  # Finer around the best: moments may grow suddenly beyond.
  at = best(usual, moments(usual))
  near = usual[max(at - 1, 0)], usual[min(at + 1, len(usual) - 1)]
  positive = np.union1d(usual, np.geomspace(*near, 61))
  tilts = np.concatenate([-usual[::-1], [0.0], positive])
  total = moments(tilts)
  # Losses may end below epsilon: then every tilt is better than those before it.
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
  # No sum of losses is outside of this, but for the rounding.
  largest = min(largest, sum(n * r[1] for r, (_, n) in zip(ranges, losses)))
  least = max(least, sum(n * r[0] for r, (_, n) in zip(ranges, losses)))
  least = min(least, largest)
  # Of very many rounds, round-off of places is most of the window.
  displaced = sum(n * loss.displacement(deviations) for loss, n in losses)
  width = largest - least + displaced
  width = max(width, max(high - low for low, high in ranges))
  interval = max(finest, width / max_cells, MIN_INTERVAL)
  return Plan(
    tilt=tilt,
    tail=float(positive[cut]),
    deviations=deviations,
    interval=interval,
    least=least,
    largest=largest,
    coarseness=interval / spread,
  )


def fourier_error(size: int) -> float:
  """Bound on the round-off of a transform of probabilities, of so many cells.

  Of each coefficient; and of the transform back as a part of its Euclidean norm.
  """
  return _HALVING_ERROR * (1 + math.log2(size))


def _log1p(less_one: np.ndarray) -> np.ndarray:
  """Logarithms of 1 + z, to a small error relative to z; `np.log1p` has one of 1."""
  real, imaginary = less_one.real, less_one.imag
  more = 2 * real + real * real + imaginary * imaginary
  modulus = np.hypot(1 + real, imaginary)
  with np.errstate(divide='ignore'):
    log_modulus = np.where(
      modulus < 0.5, np.log(modulus), np.log1p(np.maximum(more, -0.75)) / 2
    )
  return np.maximum(log_modulus, _LEAST) + 1j * np.arctan2(imaginary, 1 + real)


class Composition:
  """The distribution of the sum of all losses, as a curve of delta over epsilon.

  Attributes:
    interval: Of the grid.
    coarseness: That of the plan.
  """

  def __init__(self, losses: tuple[tuple[AnyLoss, int], ...], how: Plan) -> None:
    self.interval = interval = how.interval
    self.coarseness, tilt = how.coarseness, how.tilt
    rounds = [(loss.on_grid(interval, how.deviations), n) for loss, n in losses]
    displaced = sum(n * loss.displacement(how.deviations) for loss, n in losses)
    first = math.floor((how.least - displaced) / interval) - 1
    most = sum(n * (cells.first + len(cells.masses) - 1) for cells, n in rounds)
    last = min(max(math.ceil(how.largest / interval), first) + 4, most)
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
      heavy, weights[heaviest] = float(weights[heaviest]), 0.0
      rest = min(float(np.sum(weights)), 1.0)
      tilted = np.zeros(size)
      np.add.at(tilted, (np.arange(len(weights)) - heaviest) % size, weights)
      less_one = scipy.fft.rfft(tilted) - rest  # The cell, and the rest, are 1.
      logarithm = _log1p(less_one)
      wrong = fft_error * rest + _STEP_ERROR * np.abs(less_one)
      if rest > 0.5:  # Else what both are off 1 is a relative error of the cell's.
        wrong += abs(1.0 - heavy - rest)
      # |(g + e)^n - g^n| is at most n |e| (|g| + |e|)^(n - 1).
      modulus = np.exp(logarithm.real) + wrong
      log_transform += count * logarithm
      log_modulus = np.log(modulus)
      log_moduli += count * log_modulus
      turned = np.hypot(log_modulus, logarithm.imag)
      per_round += count * (wrong / modulus + _STEP_ERROR * turned)
      per_round += _STEP_ERROR
      with np.errstate(divide='ignore'):
        log_atom += count * float(np.log1p(-rest))
      shift += count * (cells.first + heaviest)
      log_moment += count * moment
      tail = special.logsumexp(log_masses + how.tail * interval * places)
      log_tail += count * float(tail)
      finite += count * math.log1p(-cells.infinite) if cells.infinite < 1 else -math.inf
    atom = math.exp(log_atom)
    sums = scipy.fft.irfft(np.exp(log_transform) - atom, size)
    # By Parseval; all coefficients but the first stand for two.
    lost_each = np.exp(log_moduli) * per_round + _STEP_ERROR
    error = math.sqrt(2 / size * float(np.sum(lost_each**2)))
    error += fft_error * math.sqrt(float(np.sum(sums * sums)))
    sums[0] += atom
    places = np.arange(first, first + size)
    sums = np.maximum(sums[(places - shift % size) % size], 0.0)
    # Back from the tilt; what is too far below to be told is far above a delta of 1.
    logs = log_moment - tilt * interval * places
    weights = np.exp(np.minimum(logs, 600.0))
    masses = sums * weights
    # e^l Q(loss >= l), from above; delta is the sum of its steps.
    decay = math.exp(-interval)
    from scipy import signal  # Slow to import, and a start does without.

    tails = signal.lfilter([1.0], [1.0, -decay], masses[::-1])[::-1]
    above = np.concatenate([np.cumsum(tails[:0:-1])[::-1], [0.0]])
    deltas = -math.expm1(-interval) * above
    # What the error of every sum adds at most, by Cauchy-Schwarz.
    steps = interval * np.arange(min(size, 2 + 50 / (tilt * interval)))
    lever = np.exp(-tilt * steps) * -np.expm1(-steps)
    lost = weights * (error * math.sqrt(float(np.sum(lever * lever))))
    beyond = 0.0
    if places[-1] < most:
      log_tail -= how.tail * interval * float(places[-1])
      beyond = math.exp(min(log_tail, 0.0))
    infinite = -math.expm1(finite)
    self._epsilons = interval * places + displaced
    self._errors = lost + beyond + infinite
    # Round-off of probabilities, of tilts and of sums, all relative.
    total = sum(n for _, n in losses)
    relative = _CELL_ERROR * (1 + how.deviations**2) * (10 + total)
    relative += 1e-15 * size + 1e-15 * abs(log_moment)
    self._deltas = np.minimum(1.0, deltas * (1 + relative) + self._errors)

  def epsilon(self, delta: float) -> tuple[float, float]:
    """Smallest epsilon, from 0, at `delta`, and which part of delta is its error.

    Infinite if the grid ends before.
    """
    enough = np.flatnonzero(self._deltas <= delta)
    enough = enough[self._epsilons[enough] >= 0]
    if not len(enough):
      return math.inf, 1.0
    at = int(enough[0])
    wrong = float(self._errors[at]) / delta
    if at == 0 and self._epsilons[0] > 0:
      wrong = 1.0  # It may be less, below the window.
    epsilon = max(0.0, float(self._epsilons[at]))
    if at == 0 or epsilon == 0 or self.interval > 1:
      return epsilon, wrong
    more, less = float(self._deltas[at - 1]), float(self._deltas[at])
    if not less < more < 1.0:  # Nor where one is no number.
      return epsilon, wrong
    if more <= delta:  # An epsilon below 0 would do.
      return 0.0, wrong
    # Delta is linear in e^epsilon between two points.
    part = (more - delta) / (more - less)
    before = float(self._epsilons[at - 1])
    epsilon = before + math.log1p(part * math.expm1(self.interval))
    return max(0.0, epsilon), wrong

  def delta(self, epsilon: float) -> tuple[float, float]:
    """Smallest delta at `epsilon`, and which part of it is its error."""
    at = int(np.searchsorted(self._epsilons, epsilon, side='right')) - 1
    if at < 0:
      return 1.0, 1.0
    if at + 1 == len(self._epsilons) or self.interval > 1:
      delta = float(self._deltas[at])  # It falls with epsilon.
    else:
      part = math.expm1(epsilon - float(self._epsilons[at])) / math.expm1(self.interval)
      more, less = float(self._deltas[at]), float(self._deltas[at + 1])
      delta = more - (more - less) * min(1.0, max(0.0, part))
    return delta, float(self._errors[at]) / max(delta, _SMALLEST)
