"""Privacy losses of random allocation: a client is in one of many steps, unknown which.

P has the client in a step that is drawn uniformly, Q has not. The likelihood ratio of
both is `S = ((m - t) + R_1 + ... + R_t) / m` for t steps in m places, where under Q the
ratios of the steps, `R = exp(mu x - mu^2 / 2)` with x from N(0, 1), are independent.
All that can be told is in the distribution of S under Q: for every a >= 0,

    H_a(P || Q) = E max(S - a, 0),    H_a(Q || P) = E max(1 - a S, 0).

**Rounding.** Both are means of convex functions of S, and so of each R. Sharing the
probability between two grid points such that the mean is kept (a mean-preserving
spread) makes no such mean smaller; and if each of two independent numbers is replaced
by one that is larger in this order, so is their sum. So R, and each sum, may be rounded
to a grid, and what comes out is a pair of distributions that dominates, in both
directions, and composes (`losses`). The grid is geometric: probabilities of all sizes
keep their relative precision, as everything is a sum of products of positive numbers.
The distribution of t steps takes some 2 log2(t) sums.

Of the two ends, what is beyond the largest value counts as that value for S, and what
that takes from the mean of S as an infinite loss of P; what is below the smallest is
spread between that and 0, which is an infinite loss of Q.

The same distribution was computed by rounding losses in arXiv:2602.17284.
"""

import dataclasses
import functools
import math

import numpy as np
from scipy import special

from tff_dp_aggregators.accounting.accountants import losses

# Interval of the grid, over the deviation of the logarithm of what is summed; and its
# least, as sums take memory in proportion to 1 / interval: noise multipliers above 100
# have coarser bounds.
_FINE, _LARGEST_INTERVAL, _LEAST_INTERVAL = 0.04, 0.01, 2e-5
# Cells of a distribution; so many take seconds.
_MAX_CELLS = 2**15
# Logarithms of ratios end there; with less noise, allocation hardly matters.
_MAX_LOG = 300.0
# Points at which moments are estimated.
_POINTS = 1200
# Of a value on the grid, relative, in each sum.
_VALUE_ERROR = 2.0**-48
_ROUNDING = 2.0**-53


@dataclasses.dataclass(frozen=True)
class Law:
  """A distribution of sums of ratios, on the points `exp(interval * i)` and at 0.

  Attributes:
    interval: Of the logarithms.
    first: The i that `masses` begins with.
    masses: Probabilities under Q, float64.
    zero: Probability of 0.
    lost: What the mean has lost at the upper end, at most.
  """

  interval: float
  first: int
  masses: np.ndarray
  zero: float = 0.0
  lost: float = 0.0

  @property
  def logs(self) -> np.ndarray:
    """Logarithms of the points."""
    return self.interval * (self.first + np.arange(len(self.masses)))

  def finer(self, interval: float) -> 'Law':
    """The same on a grid that is finer, a power of 2 times."""
    times = round(self.interval / interval)
    if times <= 1:
      return self
    masses = np.zeros(times * (len(self.masses) - 1) + 1)
    masses[::times] = self.masses
    return Law(self.interval / times, self.first * times, masses, self.zero, self.lost)

  def plus(self, other: 'Law', least: float) -> 'Law':
    """The sum of both, independent, rounded to the grid, which they share.

    Args:
      other: The other.
      least: What is less likely is rounded away at the ends.
    """
    interval = self.interval
    first = min(self.first, other.first)
    ends = (each.first + len(each.masses) for each in (self, other))
    size = max(ends) - first
    one, two = (_padded(each, first, size) for each in (self, other))
    sums = np.zeros(size + math.ceil(math.log(2) / interval) + 2)
    sums[:size] += one * other.zero + two * self.zero
    cell = math.expm1(interval)
    # Farther apart, the smaller one moves the larger by less than a cell.
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
        # The part that goes up is linear in the smaller one: its mean will do.
        many = np.cumsum(small)[: size - near - 1]
        mean = np.cumsum(small * scale)[: size - near - 1] / scale[near + 1 :]
        up_masses = large[near + 1 :] * (mean / cell)
        sums[near + 1 : size] += np.maximum(large[near + 1 :] * many - up_masses, 0.0)
        sums[near + 2 : size + 1] += up_masses
    lost = self.lost + other.lost
    made = Law(interval, first, sums, self.zero * other.zero, lost)
    return made.cut(least)

  def cut(self, least: float) -> 'Law':
    """Without ends that are less likely, under Q below and in the mean above."""
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
    return Law(self.interval, first, masses, zero, lost)


def _padded(law: Law, first: int, size: int) -> np.ndarray:
  padded = np.zeros(size)
  at = law.first - first
  padded[at : at + len(law.masses)] = law.masses
  return padded


def _constant(value: float, interval: float) -> Law:
  """A number that is no random one, on a grid: shared among two points."""
  at = math.floor(math.log(value) / interval)
  part = math.expm1(math.log(value) - at * interval) / math.expm1(interval)
  part = min(max(part, 0.0), 1.0)
  return Law(interval, at, np.array([1 - part, part]))


def _of_one(mu: float, interval: float, deviations: float) -> Law:
  """The ratio of one step, rounded."""
  reach = mu * deviations + mu * mu / 2
  last = math.ceil(reach / interval)
  edges = np.arange(-last, last + 1) * interval
  noise = losses.Loss(False, mu, 1.0, losses.Side.REMOVED)
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
  return Law(interval, -last, masses, float(q[0] - low), float(p[-1]))


@functools.lru_cache(maxsize=32)
def law(mu: float, num_places: int, num_steps: int, deviations: float) -> Law:
  """The distribution of S under Q, rounded so that all there is to tell is in it.

  Args:
    mu: One over the noise multiplier of a step.
    num_places: Places that are equally likely, m.
    num_steps: How many of them are steps, t.
    deviations: How far the noise is looked at.

  Returns:
    That of `m S`.
  """
  # Deviation of the logarithm of one, roughly.
  spread = math.sqrt(math.expm1(min(mu * mu, 50.0)))

  def wanted(steps: int, places: int) -> float:
    """In proportion to the deviation of the logarithm of the mean of so many."""
    return min(_LARGEST_INTERVAL, _FINE * spread * math.sqrt(steps) / places)

  finest = wanted(num_steps, num_places)
  finest = max(finest, 2 * (mu * deviations + mu * mu) / _MAX_CELLS, _LEAST_INTERVAL)

  def interval_for(steps: int) -> float:
    """A power of 2 times the finest one: grids of few steps are coarser."""
    return finest * 2 ** max(0, math.floor(math.log2(wanted(steps, steps) / finest)))

  least = math.exp(-deviations * deviations / 2) / num_places
  power = _of_one(mu, interval_for(1), deviations)
  total, has, size = None, 0, 1
  while True:
    if num_steps & size:
      if total is None:
        total, has = power, size
      else:
        has += size
        interval = interval_for(has)
        total = total.finer(interval).plus(power.finer(interval), least)
    size *= 2
    if size > num_steps:
      break
    interval = interval_for(size)
    power = power.finer(interval)
    power = power.plus(power, least)
  assert total is not None
  if num_places > num_steps:
    others = _constant(num_places - num_steps, finest)
    total = total.finer(finest).plus(others, least)
  return total


@dataclasses.dataclass(frozen=True)
class AllocatedLoss:
  """The privacy loss of all steps together; what `losses` composes.

  Attributes:
    mu: One over the noise multiplier of a step.
    num_places: Places that are equally likely.
    num_steps: How many of them are steps.
    side: `REMOVED` or `ADDED`.
  """

  mu: float
  num_places: int
  num_steps: int
  side: losses.Side

  @property
  def is_laplace(self) -> bool:
    """No: the noise is Gaussian."""
    return False

  def _plain(self, deviations: float) -> bool:
    """Whether there is so little noise that the step may as well be known."""
    return self.mu * deviations + self.mu * self.mu / 2 > _MAX_LOG

  @property
  def _known(self) -> losses.Loss:
    return losses.Loss(False, self.mu, 1.0, losses.Side.REMOVED)

  def _law(self, deviations: float) -> tuple[np.ndarray, np.ndarray, Law]:
    """Logarithms of S, and their probabilities under Q."""
    found = law(self.mu, self.num_places, self.num_steps, deviations)
    # Probabilities are sums and products of positive numbers.
    sums = 2 * math.log2(2 * self.num_places) * (len(found.masses) + 8)
    wrong = 2 * self.num_places * sums * _ROUNDING
    return (
      found.logs - math.log(self.num_places),
      found.masses * (1 + wrong),
      found,
    )

  def range(self, deviations: float) -> tuple[float, float]:
    """Least and largest loss within so many deviations of the noise."""
    if self._plain(deviations):
      return self._known.range(deviations)
    logs, _, _ = self._law(deviations)
    if self.side is losses.Side.ADDED:
      return -float(logs[-1]), -float(logs[0])
    return float(logs[0]), float(logs[-1])

  def displacement(self, deviations: float) -> float:
    """How far from its loss the place of a grid point may be, by round-off."""
    if self._plain(deviations):
      return self._known.displacement(deviations)
    return _VALUE_ERROR * (4 + 2 * math.log2(self.num_places)) * (1 + _MAX_LOG)

  def on_grid(self, interval: float, deviations: float) -> losses.Cells:
    """Its distribution on the multiples of `interval`, rounded up."""
    if self._plain(deviations):
      return self._known.on_grid(interval, deviations)
    logs, masses, found = self._law(deviations)
    below = np.floor(logs / interval).astype(np.int64)
    part = np.expm1(logs - below * interval) / math.expm1(interval)
    part = np.clip(part, 0.0, 1.0)
    first = int(below[0])
    q = np.zeros(int(below[-1]) - first + 2)
    np.add.at(q, below - first, masses * (1 - part))
    np.add.at(q, below - first + 1, masses * part)
    if self.side is losses.Side.ADDED:
      return losses.Cells(-(first + len(q) - 1), q[::-1], min(found.zero, 1.0))
    p = q * np.exp(interval * (first + np.arange(len(q))))
    return losses.Cells(first, p, min(found.lost / self.num_places, 1.0))

  def _points(self, deviations: float) -> tuple[np.ndarray, np.ndarray]:
    """About the distribution: probabilities, and losses."""
    logs, masses, _ = self._law(deviations)
    if self.side is losses.Side.ADDED:
      logs = -logs
    else:
      masses = masses * np.exp(logs)
    every = -(-len(logs) // _POINTS)
    starts = np.arange(0, len(logs), every)
    weights = np.add.reduceat(masses, starts)
    means = np.add.reduceat(masses * logs, starts)
    some = weights > 0
    return weights[some], means[some] / weights[some]

  def moments(self, tilts: np.ndarray, deviations: float) -> np.ndarray:
    """About log E e^(tilt * loss), for choosing a grid by."""
    if self._plain(deviations):
      return self._known.moments(tilts, deviations)
    weights, values = self._points(deviations)
    exponents = np.multiply.outer(tilts, values) + np.log(weights)
    return np.asarray(special.logsumexp(exponents, axis=1))

  def deviation(self, deviations: float) -> float:
    """About the standard deviation of the loss, positive."""
    if self._plain(deviations):
      return self._known.deviation(deviations)
    weights, values = self._points(deviations)
    weights = weights / weights.sum()
    mean = float(weights @ values)
    variance = float(weights @ (values - mean) ** 2)
    return max(math.sqrt(variance), losses.MIN_INTERVAL)
