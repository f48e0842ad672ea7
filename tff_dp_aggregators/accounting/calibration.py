"""Calibration: the smallest noise, or the largest number of rounds, for a target."""

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

_NEAR = 0.02  # Relative tolerance of noise from which numerical searches start.
_ROUND_OFF = 1e-12  # Margin of noise from closed forms, if rounds are added up.
_FAR = 1e3
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
  """The smallest noise multiplier that keeps a privacy target.

  `make_event` returns the event of everything that runs for a noise multiplier; less
  noise must not be more private. The result is rounded up, by up to 1e-4. `accountant`
  is a key of `accountants.ACCOUNTANTS`, `None` for the tightest.

  Example:
    >>> gaussian = dp_accounting.GaussianDpEvent
    >>> round(noise_multiplier(gaussian, target_epsilon=1.0, target_delta=1e-6), 4)
    4.2247
  """
  target_epsilon = _check_target(target_epsilon, target_delta)
  settings: Any = {'accountant': accountant, 'relation': relation}
  entry, spent = _entry_and_epsilon(make_event, 1.0, target_delta, **settings)
  start, factor = 1.0, 2.0
  if entry.is_numerical:
    # Close to the result, and much faster; sampled Laplace noise has no quick bound.
    with contextlib.suppress(NoneFoundError):
      near = about_noise_multiplier(
        make_event, target_epsilon, target_delta, **settings
      )
      # The quick bound may need far more noise, where epsilon may even rise with noise.
      if entry.is_drawn or near <= _FAR:
        start, factor = near, 1.1
  smallest = _smallest(spent, target_epsilon, start, factor, entry.tolerance)
  return smallest if entry.is_numerical else smallest * (1 + _ROUND_OFF)


def about_noise_multiplier(
  make_event: Callable[[float], dp_accounting.DpEvent],
  target_epsilon: float,
  target_delta: float,
  *,
  accountant: Optional[str] = None,
  relation: Relation = _ZERO_OUT,
) -> float:
  """A quick approximation of `noise_multiplier`, which may not keep the target."""
  target_epsilon = _check_target(target_epsilon, target_delta)
  event = make_event(1.0)
  entry = type(accountants.composed(event, accountant, relation))
  if entry.is_drawn:
    spent: Callable[[float], float] = functools.cache(
      lambda noise: entry.estimate(make_event(noise), target_delta)
    )
  else:
    quick = accountants.quick_bound(event, relation)
    if quick is None:
      raise NoneFoundError(f'there is no quick bound of {event}; ask noise_multiplier.')
    _, spent = _entry_and_epsilon(make_event, 1.0, target_delta, quick, relation)
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
  """The largest number of rounds or participations that keeps a privacy target.

  `make_event` returns the event of everything that runs for a number >= 1; a larger
  number must not be more private.
  """
  target_epsilon = _check_target(target_epsilon, target_delta)
  entry, spent = _entry_and_epsilon(make_event, 1, target_delta, accountant, relation)
  if entry.max_questions is not None:
    raise ValueError(
      f'accountant={entry.name} takes too long for a search over numbers. Give the '
      'number, or accountant=pld, whose bound is quick.'
    )
  return largest_by(spent, target_epsilon, at_most)


def largest_by(spent: Callable[[int], float], target: float, at_most: int) -> int:
  """The largest number up to `at_most` for which `spent` is at most the target."""
  if spent(1) > target:
    raise ValueError(
      f'even one spends {rounding.up(spent(1), 6)}, more than the target {target:g}; '
      'add noise or raise the target.'
    )
  low, high = 1, 2
  while high <= at_most and spent(high) <= target:
    low, high = high, 2 * high
  high = min(high, at_most + 1)
  while high - low > 1:
    middle = (low + high) // 2
    low, high = (middle, high) if spent(middle) <= target else (low, middle)
  return low


class NoneFoundError(ValueError):
  """This accountant found no noise that keeps the target; another one may."""


def _entry_and_epsilon(
  make_event: Callable[..., dp_accounting.DpEvent],
  first: float,
  delta: float,
  accountant: Optional[str],
  relation: Relation,
) -> tuple[type[accountants.Accountant], Callable[[float], float]]:
  entry = accountants.entry_of(
    accountant or accountants.tightest(make_event(first), relation)
  )

  @functools.cache
  def spent(parameter: float) -> float:
    limit = entry.max_questions
    if limit is not None and spent.cache_info().misses > limit:
      raise NoneFoundError(
        f'the search needs more than {limit} epsilons, and the confidence of '
        f'accountant={entry.name} covers no more. Check the target, or give the noise.'
      )
    return accountants.epsilon(make_event(parameter), delta, accountant, relation)

  return entry, spent


def _check_target(epsilon: float, delta: float) -> float:
  gaussian.check_delta(delta, 'target_delta')
  if not checks.check_positive('target_epsilon', epsilon) > _MIN_EPSILON:
    raise ValueError(f'target_epsilon must be above {_MIN_EPSILON:g}; got {epsilon}.')
  return float(epsilon)


def _smallest(
  spent: Callable[[float], float],
  target_epsilon: float,
  start: float,
  factor: float,
  tolerance: float,
) -> float:
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
  # Exact values of the ends: exp(log(low)) may differ, and would be computed anew.
  ends = {math.log(low): low, math.log(high): high}

  def gap(log_noise: float) -> float:
    epsilon = spent(ends.get(log_noise, math.exp(log_noise)))
    return math.log(min(max(epsilon, _MIN_EPSILON), 1e300)) - math.log(target_epsilon)

  log_root = optimize.brentq(gap, *ends, xtol=tolerance / 4, rtol=1e-15)
  root = ends.get(log_root, math.exp(log_root))
  while spent(root) > target_epsilon:
    root = math.nextafter(root * (1 + tolerance), math.inf)
    if root >= high:  # It keeps the target, even if epsilon does not fall with noise.
      return high
  return root
