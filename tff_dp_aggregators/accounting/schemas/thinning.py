"""A bound for b-min-sep sampling without sampling error: its rounds as a thinned set.

The rounds S of a client are b or more apart, and after b - 1 rounds of break it waits a
geometric time. The claim is that S can be drawn in two steps: first a set U of rounds,
which are b or more apart as well, and then each of U independently with probability q.

Gaps of S have the generating function G(z) = p z^b / (1 - (1 - p) z). If those of U
have H, a gap of S is a geometric number of them, G = q H / (1 - (1 - q) H), so that

    H(z) = G / (q + (1 - q) G) = (p / q) z^b / (1 - x z + a z^b),
    with x = 1 - p and a = p (1 - q) / q.

H(1) is 1. The coefficients u_k of 1 / (1 - x z + a z^b) are not negative if

    a <= kappa x^b,  kappa = (b - 1)^(b - 1) / b^b  (1 for b = 1):

by induction, u_k >= theta x u_(k - 1) for all k, with theta = 1 - 1 / b. For k < b,
u_k = x u_(k - 1). Else u_k / u_(k - 1) = x - a u_(k - b) / u_(k - 1), which is at least
x - a / (theta x)^(b - 1) >= x (1 - kappa / theta^(b - 1)) = theta x. So H is that of a
distribution. If D is that of the first round in which the client is free, the first one
of S has D G z^-b; and with D H z^-b for the first one of U, thinning makes that of it.

To be told U makes it no harder to tell P from Q (H_a is jointly convex), and given U
the client is in each of its rounds with probability q, independently. Columns of C that
are b apart share no row; U has at most ceil(n / b) rounds; and more rounds, or larger
columns, make telling no harder. So what dominates is Poisson sampling with probability
q in ceil(n / b) rounds of independent noise, for the largest column of C. Here q is
1 / m, for the largest whole m that the condition allows: a client is in one place of m
(`events.AllocatedDpEvent`). With b = 1 nothing is lost but that; where clients are free
for long, little; for p near 1 / b and above there is no m but 1.
"""

import fractions
import functools
import math

import dp_accounting
import numpy as np
from dp_accounting import NeighboringRelation as Relation

from tff_dp_aggregators import strategies
from tff_dp_aggregators.accounting import accountants
from tff_dp_aggregators.accounting import events
from tff_dp_aggregators.accounting.accountants import bands

# At which delta one bound is preferred to the other.
_DELTA = 1e-6
# Of the number of places, relative: more than its formula is off by.
_ROUND_OFF = 1e-12


def places(probability: float, min_separation: int) -> int:
  """The largest m for which rounds are a set, each of it with probability 1 / m.

  A smaller one is as right and says less: it is rounded down, and at most
  `bands.MAX_PLACES`.

  Args:
    probability: Of a free client, p.
    min_separation: Rounds after which a client is free again, b.

  Example:
    >>> places(0.01, min_separation=1), places(0.01, min_separation=8), places(0.5, 8)
    (100, 5, 1)
  """
  if probability == 1:
    return 1
  b = min_separation
  if b == 1:  # The condition is m <= 1 / p: in fractions, as p is often one.
    whole = math.floor(1 / fractions.Fraction(probability))
    # A float64 that is the nearest to 1 / m says 1 / m.
    whole += 1 / (whole + 1) == probability
    return min(whole, bands.MAX_PLACES)
  # It is m - 1 <= kappa (1 - p)^b / p.
  log_kappa = (b - 1) * math.log1p(-1 / b) - math.log(b)
  log_allowed = log_kappa + b * math.log1p(-probability) - math.log(probability)
  allowed = math.exp(min(log_allowed, math.log(bands.MAX_PLACES)))
  return min(math.floor(1 + allowed * (1 - _ROUND_OFF)), bands.MAX_PLACES)


def gaps(
  probability: float, min_separation: int, num_places: int, count: int
) -> np.ndarray:
  """Probabilities of the gaps of U, from b on.

  Args:
    probability: Of a free client, p.
    min_separation: Rounds after which a client is free again, b.
    num_places: The m, at most `places`.
    count: How many.
  """
  found = np.ones(count)
  for k in range(1, count):
    found[k] = (1 - probability) * found[k - 1]
    if k >= min_separation:
      found[k] -= probability * (num_places - 1) * found[k - min_separation]
  return probability * num_places * found


@functools.lru_cache(maxsize=256)
def event(
  strategy: strategies.Strategy,
  min_separation: int,
  probability: float,
  noise_multiplier: float,
) -> dp_accounting.DpEvent:
  """The better of this bound and that without sampling, at a delta of 1e-6.

  Args:
    strategy: Strategy matrix C, of at most `min_separation` bands.
    min_separation: Rounds after which a client is free again, b.
    probability: Of a free client, p.
    noise_multiplier: Standard deviation of z over the clip norm, above 0.

  Raises:
    TypeError: If the separation is not whole.
    ValueError: If rounds so far apart share noise, or a number is out of range.

  Example:
    >>> made = event(strategies.Identity(100), 4, 0.01, 1.0)
    >>> made.event.num_places, made.count
    (11, 25)
  """
  bands.check_break(min_separation, probability)
  bands.check_groups(strategy, min_separation)
  rounds = strategy.num_rounds
  limits = strategies.Participation(rounds, min_separation)
  unsampled = events.run_event(strategy, limits, noise_multiplier)
  num_places = places(probability, min_separation)
  if num_places == 1:
    return unsampled
  one = dp_accounting.GaussianDpEvent(noise_multiplier / strategy.sensitivity(None))
  thinned = dp_accounting.SelfComposedDpEvent(
    events.AllocatedDpEvent(num_places, 1, one), -(-rounds // min_separation)
  )

  def epsilon(each: dp_accounting.DpEvent) -> float:
    return accountants.epsilon(each, _DELTA, 'pld', Relation.ADD_OR_REMOVE_ONE)

  return min(unsampled, thinned, key=epsilon)
