"""Calibration: any two of epsilon, noise and length give the third.

Mechanisms come in as functions from a number to the event that describes them, so one
search serves every mechanism and accountant; what it returns never exceeds the target.
"""

import contextlib
import functools
import math
from typing import Any, Callable, Optional

import dp_accounting
from dp_accounting import NeighboringRelation as Relation
from scipy import optimize

from tff_dp_aggregators.accounting import accountants
from tff_dp_aggregators.accounting.accountants import gaussian
from tff_dp_aggregators.base import checks
from tff_dp_aggregators.base import rounding

_ZERO_OUT = Relation.REPLACE_SPECIAL

# Where a search by a numerical accountant begins; and more noise than closed forms ask
# for, as rounds that are added up one by one may come to that much more of mu.
_NEAR, _ROUND_OFF = 0.02, 1e-12
_MIN_EPSILON = 1e-300
_MAX_NOISE = 1e9
_MIN_NOISE = 1e-9


def noise_multiplier(
  make_event: Callable[[float], dp_accounting.DpEvent],
  target_epsilon: float,
  target_delta: float,
  *,
  accountant: Optional[str] = None,
  relation: Relation = _ZERO_OUT,
) -> float:
  """The least noise multiplier that keeps a privacy target.

  `make_event` leads from a noise multiplier to the event of everything that runs, less
  private for less noise. What is found is rounded up: within 1e-4 of the least one,
  relative, and to round-off for accountants that are closed forms. `accountant` is a
  key of `accountants.ACCOUNTANTS`, `None` for the tightest.

  Example:
    >>> gaussian = dp_accounting.GaussianDpEvent
    >>> round(noise_multiplier(gaussian, target_epsilon=1.0, target_delta=1e-6), 4)
    4.2247
  """
  target_epsilon = _check_target(target_epsilon, target_delta)
  asked, spent = _asking(make_event, 1.0, target_delta, accountant, relation)
  start, factor = 1.0, 2.0
  if asked.is_numerical:
    of_accountant: Any = {'accountant': accountant, 'relation': relation}
    # Near what is looked for, and much faster; sampled Laplace noise has no such bound.
    with contextlib.suppress(NoneFoundError):
      about = about_noise_multiplier
      start = about(make_event, target_epsilon, target_delta, **of_accountant)
      factor = 1.1
  least = _smallest(spent, target_epsilon, start, factor, asked.tolerance)
  return least if asked.is_numerical else least * (1 + _ROUND_OFF)


def noise_multiplier_of_rho(rho: float, target_rho: float) -> float:
  """The least noise for a zCDP target, where noise 1 has `rho`, rounded up."""
  checks.check_positive('target_rho', target_rho)
  return math.sqrt(rho) / math.sqrt(target_rho) * (1 + _ROUND_OFF)


def about_noise_multiplier(
  make_event: Callable[[float], dp_accounting.DpEvent],
  target_epsilon: float,
  target_delta: float,
  *,
  accountant: Optional[str] = None,
  relation: Relation = _ZERO_OUT,
) -> float:
  """About what `noise_multiplier` finds, quickly; it may keep the target or not."""
  target_epsilon = _check_target(target_epsilon, target_delta)
  event = make_event(1.0)
  accountants.composed(event, accountant, relation)  # Whether it reads it.
  asked_for = accountants.entry_of(accountant or accountants.tightest(event, relation))
  if asked_for.is_drawn:
    asked: Callable[[float], float] = functools.cache(
      lambda noise: asked_for.estimate(make_event(noise), target_delta)
    )
    return _smallest(asked, target_epsilon, 1.0, 2.0, _NEAR)
  quick = accountants.quick_bound(event, relation)
  if quick is None:
    raise NoneFoundError(f'there is no quick bound of {event}; ask noise_multiplier.')
  _, spent = _asking(make_event, 1.0, target_delta, quick, relation)
  return _smallest(spent, target_epsilon, 1.0, 2.0, _NEAR)


def largest(
  make_event: Callable[[int], dp_accounting.DpEvent],
  target_epsilon: float,
  target_delta: float,
  *,
  at_most: int,
  accountant: Optional[str] = None,
  relation: Relation = _ZERO_OUT,
) -> int:
  """The largest number, of rounds or participations, that keeps a privacy target.

  `make_event` leads from a number, from 1, to the event of everything that runs; not
  more private for more of them.
  """
  target_epsilon = _check_target(target_epsilon, target_delta)
  asked, spent = _asking(make_event, 1, target_delta, accountant, relation)
  if asked.max_questions is not None:
    raise ValueError(
      f'accountant={asked.name} draws outcomes for each number that is tried, which '
      'takes too long. Give the number, or accountant=pld, whose bound is quick.'
    )
  return largest_by(spent, target_epsilon, at_most)


def largest_by(spent: Callable[[int], float], target: float, at_most: int) -> int:
  """The largest number that spends no more than a target, by any measure."""
  if spent(1) > target:
    raise ValueError(
      f'even one spends {rounding.up(spent(1), 6)}, more than the target {target:g}; '
      'add noise or raise the target.'
    )
  kept, spoilt = 1, 2
  while spoilt <= at_most and spent(spoilt) <= target:
    kept, spoilt = spoilt, 2 * spoilt
  if spoilt > at_most and spent(at_most) <= target:
    return at_most
  spoilt = min(spoilt, at_most)
  while spoilt - kept > 1:
    middle = (kept + spoilt) // 2
    if spent(middle) <= target:
      kept = middle
    else:
      spoilt = middle
  return kept


class NoneFoundError(ValueError):
  """No noise was found, by this accountant; another may find some."""


def _asking(
  make_event: Callable[..., dp_accounting.DpEvent],
  first: float,
  delta: float,
  accountant: Optional[str],
  relation: Relation,
) -> tuple[type[accountants.Accountant], Callable[[float], float]]:
  """The accountant that is asked, and epsilon as a function of what is looked for."""
  asked = accountants.entry_of(
    accountant or accountants.tightest(make_event(first), relation)
  )

  @functools.cache
  def spent(parameter: float) -> float:
    most = asked.max_questions
    if most is not None and spent.cache_info().misses > most:
      raise NoneFoundError(
        f'the search took more than {most} epsilons, which is what the confidence of '
        f'accountant={asked.name} is for. Check the target, or state the noise.'
      )
    return accountants.epsilon(make_event(parameter), delta, accountant, relation)

  return asked, spent


def _check_target(epsilon: float, delta: float) -> float:
  gaussian.check_delta(delta, 'target_delta')
  checks.check_number('target_epsilon', epsilon)
  if not epsilon > _MIN_EPSILON:
    raise ValueError(
      f'target_epsilon must be positive and above {_MIN_EPSILON:g}, which is as good '
      f'as none; got {epsilon}.'
    )
  return gaussian.check_epsilon(epsilon, 'target_epsilon')


def _smallest(
  spent: Callable[[float], float],
  target_epsilon: float,
  start: float,
  factor: float,
  tolerance: float,
) -> float:
  """The least noise multiplier that keeps the target, looked for around `start`."""
  low = high = start
  while spent(high) > target_epsilon:
    low, high = high, high * factor
    if high > _MAX_NOISE:
      raise NoneFoundError(
        f'target_epsilon={target_epsilon:g} is less than the accountant can show at '
        'this delta, whatever the noise. Raise it, or choose another accountant.'
      )
  while low == high or spent(low) <= target_epsilon:
    low, high = low / factor, low
    if high < _MIN_NOISE:
      raise NoneFoundError(
        f'target_epsilon={target_epsilon:g} is kept with next to no noise; check it.'
      )
  # The ends themselves: exp(log(low)) may be another number, and another question.
  ends = {math.log(low): low, math.log(high): high}

  def gap(log_noise: float) -> float:
    epsilon = spent(ends.get(log_noise, math.exp(log_noise)))
    return math.log(min(max(epsilon, _MIN_EPSILON), 1e300)) - math.log(target_epsilon)

  log_root = optimize.brentq(gap, *ends, xtol=tolerance / 4, rtol=1e-15)
  root = ends.get(log_root, math.exp(log_root))
  while spent(root) > target_epsilon:
    root = math.nextafter(root * (1 + tolerance), math.inf)
    if root >= high:  # Which is known to keep it, should answers not fall with noise.
      return high
  return root
