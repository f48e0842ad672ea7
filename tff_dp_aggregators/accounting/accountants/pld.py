"""Privacy loss distributions: dp-accounting's, with the interval chosen for the event.

dp-accounting rounds losses up to multiples of an interval (arXiv:2207.04380) and
composes them by fast Fourier transforms. Left alone it needs an hour or all memory for
little noise, loosens where one round's loss is far below its interval, and its sums are
round-off below a delta that grows with the rounds. Here the interval follows the
losses, and where float64 ends the answer is the Renyi bound, which is looser and sound:

* at a delta below 1e-15 times the rounds, about;
* where epsilon is above 700, so that e^epsilon is out of range, for delta;
* where losses span more than a million times the largest interval, 1.
"""

import functools
import math

import dp_accounting
from dp_accounting import NeighboringRelation as Relation

from tff_dp_aggregators.accounting.accountants import parts
from tff_dp_aggregators.accounting.accountants import rdp

# dp-accounting's own, and the bounds between which another is chosen.
_INTERVAL = 1e-4
_MIN_INTERVAL, _MAX_INTERVAL = 1e-9, 1.0
# As many intervals as take a few seconds.
_MAX_INTERVALS = 1e6
# dp-accounting cuts distributions off where e^-50 is left: within 10.2 deviations.
_DEVIATIONS = 10.2
_CUT_OFF = 1e-20
# Above that e^epsilon leaves the range of float64.
_MAX_EPSILON = 700.0
# More noise is read as that much: as nothing for every delta that is resolved.
_MAX_NOISE = 1e9
# Round-off of one Fourier transform that is raised to a power, for each composition.
ROUND_OFF = 4.4e-16
# Round-off of adding up probabilities, relative, for each of them: that of float64,
# times what their sum may exceed delta by.
_SUM_ROUND_OFF = 20 * 2.2e-16


class PldAccountant(parts.Accountant):
  """Numerical accountant of (Poisson-sampled) Gaussian and Laplace mechanisms.

  Both directions, adding and removing, are composed, and the larger result counts.

  Example:
    >>> accountant = PldAccountant(Relation.ADD_OR_REMOVE_ONE)
    >>> gaussian = dp_accounting.GaussianDpEvent(1.0)
    >>> sampled = dp_accounting.PoissonSampledDpEvent(0.01, gaussian)
    >>> _ = accountant.compose(dp_accounting.SelfComposedDpEvent(sampled, 1000))
    >>> round(accountant.get_epsilon(1e-6), 3)
    2.125
  """

  reads = 'Gaussian and Laplace events, Poisson-sampled or not,'

  def _can_read(self, part: dp_accounting.DpEvent) -> bool:
    return parts.is_noise(part) or (
      parts.is_poisson(part, dp_accounting.GaussianDpEvent)
      or parts.is_poisson(part, dp_accounting.LaplaceDpEvent)
    )

  def get_epsilon(self, target_delta: float) -> float:
    """Smallest epsilon at `target_delta`, rounded up."""
    found = self._parts()
    if not found or parts.is_non_private(found):
      return math.inf if found else 0.0
    bound = self._bound(found)
    unresolved = _unresolved(found)
    interval = _interval(found, bound.get_epsilon(_CUT_OFF))
    if target_delta >= 2 * unresolved and interval <= _MAX_INTERVAL:
      peer = _composed(tuple(found), self.neighboring_relation, interval)
      delta = (target_delta - unresolved) * (1 - _sum_round_off(found, interval))
      epsilon = float(peer.get_epsilon(delta))
      if math.isfinite(epsilon):
        return epsilon
    return bound.get_epsilon(target_delta)

  def get_delta(self, target_epsilon: float) -> float:
    """Smallest delta at `target_epsilon`, rounded up."""
    found = self._parts()
    if not found or parts.is_non_private(found):
      return 1.0 if found else 0.0
    bound = self._bound(found)
    interval = _interval(found, bound.get_epsilon(_CUT_OFF))
    if target_epsilon <= _MAX_EPSILON and interval <= _MAX_INTERVAL:
      peer = _composed(tuple(found), self.neighboring_relation, interval)
      delta = max(0.0, float(peer.get_delta(target_epsilon)))
      delta *= 1 + _sum_round_off(found, interval)
      return min(1.0, delta + _unresolved(found))
    return bound.get_delta(target_epsilon)

  def _bound(self, found: list[parts.Part]) -> rdp.RdpAccountant:
    """Renyi's bound; Laplace noise on a sample counts as if on everybody."""
    bound = rdp.RdpAccountant(self.neighboring_relation)
    for part, count in found:
      sampled = parts.is_poisson(part, dp_accounting.LaplaceDpEvent)
      bound.compose(part.event if sampled else part, count)
    return bound


def _unresolved(found: list[parts.Part]) -> float:
  """The delta below which sums are round-off; one Gaussian alone has no sums."""
  if all(isinstance(part, dp_accounting.GaussianDpEvent) for part, _ in found):
    return 0.0
  return ROUND_OFF * (10 + sum(count for _, count in found))


def _sum_round_off(found: list[parts.Part], interval: float) -> float:
  return _SUM_ROUND_OFF * (3 + max(_reach(part) for part, _ in found) / interval)


def _mu(part: dp_accounting.DpEvent) -> float:
  return 1 / getattr(part, 'event', part).noise_multiplier


def _reach(part: dp_accounting.DpEvent) -> float:
  """How far the losses of a part range."""
  mu = _mu(part)
  if isinstance(getattr(part, 'event', part), dp_accounting.LaplaceDpEvent):
    return 2 * mu
  return mu * mu + 2 * _DEVIATIONS * mu


def _interval(found: list[parts.Part], largest: float) -> float:
  """Fine enough for the least of the parts, with not too many intervals in all."""
  spread = min(
    _mu(part) * getattr(part, 'sampling_probability', 1) for part, _ in found
  )
  reach = max(largest, *(_reach(part) for part, _ in found))
  return max(min(_INTERVAL, spread / 4), reach / _MAX_INTERVALS, _MIN_INTERVAL)


@functools.lru_cache(maxsize=4)
def _composed(
  found: tuple[parts.Part, ...], relation: Relation, interval: float
) -> dp_accounting.pld.PLDAccountant:
  peer = dp_accounting.pld.PLDAccountant(relation, interval)
  for part, count in found:
    peer.compose(_with_less_noise(part), count)
  return peer


def _with_less_noise(part: dp_accounting.DpEvent) -> dp_accounting.DpEvent:
  if isinstance(part, dp_accounting.PoissonSampledDpEvent):
    return dp_accounting.PoissonSampledDpEvent(
      part.sampling_probability, _with_less_noise(part.event)
    )
  return type(part)(min(part.noise_multiplier, _MAX_NOISE))
