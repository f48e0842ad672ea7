"""What a guarantee means for an observer: how many clients are recognised at most.

Somebody who tells two neighbouring data sets apart is wrong at times. If they wrongly
suspect a part alpha of those of one kind, they recognise at most a part of the other,
by the trade-off function of the mechanism (arXiv:1905.02383).
"""

import math
import statistics
from collections.abc import Iterable
from typing import Any, Optional

import dp_accounting
import numpy as np

from tff_dp_aggregators.accounting import accountants

# Wrong suspicions for which it is stated.
FALSE_ALARMS = 0.01
# Where the privacy curve is looked at; the larger deltas serve where epsilon is small.
_DELTAS = (*np.logspace(-12, -1, 23), *np.linspace(0.15, 0.95, 17), 0.99)
# The same, where outcomes are drawn for each: few, of which none takes millions.
_DRAWN_DELTAS = (*np.logspace(-4, -1, 4), *np.linspace(0.2, 0.9, 8))


def of(
  accountant: Any,
  mu: Optional[float],
  pure_epsilon: float,
  is_drawn: bool = False,
) -> float:
  """The largest part that is recognised with `FALSE_ALARMS`; 1 without a guarantee.

  It is the least that any point of the privacy curve gives, so all of them have to be
  right: where they are drawn, the probabilities that one is not are added to it.

  Args:
    accountant: That composed everything, one of `accountants`.
    mu: If all of it is mu-Gaussian-DP; then nothing else is looked at.
    pure_epsilon: With delta 0; may be infinite.
    is_drawn: Whether the accountant draws outcomes for each answer.

  Example:
    >>> import dp_accounting
    >>> from tff_dp_aggregators.accounting import accountants
    >>> once = accountants.GaussianAccountant().compose(
    ...   dp_accounting.GaussianDpEvent(1.0)
    ... )
    >>> round(of(once, 1.0, math.inf), 4), round(of(once, None, math.inf), 4)
    (0.0924, 0.0924)
  """
  if mu is not None:
    return of_gaussian(mu)
  points, doubt = [(pure_epsilon, 0.0)], 0.0
  for delta in map(float, _DRAWN_DELTAS if is_drawn else _DELTAS):
    try:
      points.append((accountant.get_epsilon(delta), delta))
    except ValueError:
      continue  # Where it has no answer; fewer points are a bound as well.
    if is_drawn:
      doubt += accountant.failure_probability(delta)
  return min(of_points(points) + doubt, 1.0)


def of_event(
  composed: dict[str, Any],
  event: dp_accounting.DpEvent,
  relation: dp_accounting.NeighboringRelation,
  mu: Optional[float],
  pure_epsilon: float,
) -> float:
  """`of` the tightest accountant, or one that was asked for outcomes if that is less.

  Args:
    composed: Accountants by name that have composed the event.
    event: What ran.
    relation: Which data sets are neighbours.
    mu: As for `of`.
    pure_epsilon: As for `of`.
  """
  drawn = [name for name in composed if accountants.ACCOUNTANTS[name].is_drawn]
  shares = []
  for name in dict.fromkeys([accountants.tightest(event, relation), *drawn]):
    accountant = composed.get(name) or accountants.composed(event, name, relation)
    is_drawn = accountants.ACCOUNTANTS[name].is_drawn
    shares.append(of(accountant, mu, pure_epsilon, is_drawn))
  return min(shares)


def of_gaussian(mu: float) -> float:
  """By the trade-off function of mu-Gaussian-DP (equation 6)."""
  if mu == math.inf:
    return 1.0
  normal = statistics.NormalDist()
  return normal.cdf(mu + normal.inv_cdf(FALSE_ALARMS))


def of_points(points: Iterable[tuple[float, float]]) -> float:
  """By those of points of a privacy curve, the least that one of them gives.

  Args:
    points: Pairs of epsilon, which may be infinite, and delta (equation 5).

  Example:
    >>> of_points([(0.0, 0.25)]), of_points([(math.inf, 0.0)])
    (0.26, 1.0)
  """
  return min(_of_point(epsilon, delta) for epsilon, delta in points)


def _of_point(epsilon: float, delta: float) -> float:
  few = math.exp(min(epsilon, 100.0)) * FALSE_ALARMS + delta  # Above 1 long before.
  most = 1 - math.exp(-epsilon) * (1 - delta - FALSE_ALARMS)
  return min(few, most, 1.0)
