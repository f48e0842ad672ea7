"""Deltas of Q against a mixture P of Gaussians, from losses that are not rare.

Let X = -log L(y) be the loss of an outcome y of Q = N(0, I), and G(c) = Q(X >= c). As
log L is the logarithm of a sum of exponentials of linear functions, it is convex, and
so the sets K(c) = {y: X >= c} are: for c between c_0 and c_1, K(c) has in it all that
lies in the same proportion between a point of K(c_0) and one of K(c_1). Gaussian
measure of such sets is concave on the scale of the normal distribution (Ehrhard 1983;
for all sets Borell, C. R. Math. 337, 2003):

    c -> z(c) = Phi^-1(G(c)) is concave.

So beyond c_1 > c_0, z is at most the line through its values at both: the losses have a
tail that is at most that of the normal distribution which has the same G there. With an
upper bound of G(c_1) and a lower one of G(c_0), which counting outcomes gives, that
bounds G, and with it

    H_{e^epsilon}(Q || P) = integral over c > epsilon of e^{epsilon - c} G(c)

for all epsilon >= c_1 at once, at whatever delta: 100,000 outcomes reach 10^-12. Only
outcomes of Q are drawn; nothing is weighed. (H(P || Q) has no such bound, as the
outcomes that it is about are the others, those outside of a convex set.)
"""

import math
from collections.abc import Callable
from typing import NamedTuple, Optional

import numpy as np
from scipy import optimize
from scipy import special

# Shares of outcomes beyond c_0, and least numbers of outcomes beyond c_1.
_SHARES = (0.9, 0.5, 0.2, 0.05)
_COUNTS = (2, 4, 8, 16, 32, 64, 128, 256, 512)
_ROUNDING = 1e-13


class Line(NamedTuple):
  """A bound on the losses of Q: z(c) <= (mean - c) / deviation, from c = `start` on.

  Attributes:
    mean: Of the normal distribution that has this tail.
    deviation: Its standard deviation.
    start: The c_1.
  """

  mean: float
  deviation: float
  start: float

  def log_delta(self, epsilon: float) -> float:
    """Logarithm of a bound on delta: that of the normal distribution.

    Args:
      epsilon: Not below `start`.
    """
    if self.deviation == 0:
      return -math.inf
    x = (self.mean - epsilon) / self.deviation
    one = float(special.log_ndtr(x))
    shift = epsilon - self.mean + self.deviation**2 / 2
    other = float(special.log_ndtr(x - self.deviation))
    # Rounded so that the difference of both is not too small.
    wrong = _ROUNDING * (1 + abs(shift) + abs(other) + abs(one))
    return one + math.log(-math.expm1(min(shift + other - one, 0.0) - wrong))

  def epsilon(self, log_delta: float, most: float) -> float:
    """The least epsilon at which the bound is so small, from `start` on.

    Args:
      log_delta: Logarithm of the bound.
      most: Where to look for it at most; infinite if it is beyond.
    """
    if self.log_delta(self.start) <= log_delta:
      return self.start
    if not self.log_delta(most) <= log_delta:
      return math.inf
    root = optimize.brentq(
      lambda each: self.log_delta(each) - log_delta, self.start, most, rtol=1e-9
    )
    return float(root) * (1 + 1e-8)


def share_at_most(count: int, size: int, log_beta: float) -> float:
  """An upper bound of a probability, wrong with probability exp(log_beta) at most.

  (Clopper and Pearson, Biometrika 26, 1934.)

  Args:
    count: How often it happened.
    size: Out of how many times.
    log_beta: At most log(1 / 2).
  """
  if count >= size:
    return 1.0
  # The chance of so few, and of fewer, if the probability is p.
  return _least_share(
    lambda p: float(special.betainc(size - count, count + 1, 1 - p)), log_beta
  )


def share_at_least(count: int, size: int, log_beta: float) -> float:
  """A lower bound of a probability, wrong with probability exp(log_beta) at most.

  Args:
    count: How often it happened.
    size: Out of how many times.
    log_beta: At most log(1 / 2).
  """
  return 1 - share_at_most(size - count, size, log_beta)


def _least_share(chance: Callable[[float], float], log_beta: float) -> float:
  beta = math.exp(log_beta)

  def rest(logit: float) -> float:
    return chance(float(special.expit(logit))) - beta

  high = 40.0
  if rest(high) > 0:
    return 1.0
  root = optimize.brentq(rest, -700.0, high, xtol=1e-10, rtol=1e-12)
  return min(float(special.expit(root)) * (1 + 1e-8), 1.0)


def line(
  beyond: tuple[int, int], size: int, at: tuple[float, float], log_beta: float
) -> Optional[Line]:
  """The bound that counts give; `None` if they give none.

  Args:
    beyond: Outcomes whose loss is at least c_0, and at least c_1.
    size: Outcomes in all.
    at: c_0 and c_1, chosen without looking at these outcomes.
    log_beta: Logarithm of the probability that it is wrong.
  """
  log_half = log_beta - math.log(2)
  lower = float(special.ndtri(share_at_least(beyond[0], size, log_half)))
  upper = float(special.ndtri(share_at_most(beyond[1], size, log_half)))
  slope = (upper - lower) / (at[1] - at[0])
  if not (slope < 0 and math.isfinite(slope)):
    return None
  return Line(at[1] - upper / slope, -1 / slope, at[1])


def places(
  pilot: np.ndarray, size: int, epsilon: float, log_beta: float
) -> Optional[tuple[float, float]]:
  """Where to count outcomes, such that the bound at `epsilon` is about the least.

  Args:
    pilot: Losses of outcomes that are not counted.
    size: Of the sample that will be.
    epsilon: Where the bound is to hold, and to be small.
    log_beta: Logarithm of the probability that it may be wrong.

  Returns:
    c_0 and c_1; `None` if too many losses are above `epsilon`.
  """
  found = _best(pilot, size, epsilon, log_beta)
  return None if found is None else found[1]


def predicted(pilot: np.ndarray, size: int, epsilon: float, log_beta: float) -> float:
  """About the logarithm of the bound on delta that so many outcomes will give.

  Args:
    pilot: As for `places`.
    size: As for `places`.
    epsilon: As for `places`.
    log_beta: As for `places`.
  """
  found = _best(pilot, size, epsilon, log_beta)
  return 0.0 if found is None else found[0]


def _best(
  pilot: np.ndarray, size: int, epsilon: float, log_beta: float
) -> Optional[tuple[float, tuple[float, float]]]:
  falling, times = -np.sort(-pilot), size / len(pilot)
  tried = []
  for share in _SHARES:
    first = int(share * len(pilot))
    for count in _COUNTS:
      if not count < first < len(pilot):
        continue
      at = float(falling[first - 1]), float(falling[count - 1])
      if not at[0] < at[1] <= epsilon:
        continue
      made = line((int(first * times), int(count * times)), size, at, log_beta)
      if made is not None:
        tried.append((made.log_delta(epsilon), at))
  return min(tried) if tried else None
