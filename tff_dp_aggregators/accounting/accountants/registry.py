"""Accountants: what events mean in terms of epsilon and delta.

One interface over `dp_accounting` events, `epsilon` and `delta`, and six accountants
behind it:

| name    | what it is | reads | for one Gaussian |
|---------|------------|-------|------------------|
| `exact` | analytic Gaussian, arXiv:1805.06530 | Gaussians | exact |
| `gdp`   | Gaussian DP, arXiv:1905.02383: mu | Gaussians | exact, the same curve |
| `pld`   | loss distributions, arXiv:2207.04380 (`pld`) | Gaussian, Laplace, \
Poisson-sampled | above by < 1e-6 for mu up to 10 |
| `prv`   | privacy random variables, arXiv:2106.02848 (`prv`) | Gaussian, Laplace, \
Poisson-sampled Gaussian | above by < 1e-3 for mu up to 10 |
| `rdp`   | Renyi DP at a grid of orders (`rdp`) | all of dp-accounting's | a bound |
| `zcdp`  | rho and its closed form, arXiv:1605.02065, Proposition 1.3 | Gaussians | \
a looser bound |

Every mechanism without sampling of this package is one Gaussian, so that `exact` is the
answer; the others are there to compare with published figures, and for sampling.
`tightest` says which to ask.

`relation` is a `dp_accounting.NeighboringRelation`, zeroing out one client's
contributions by default (`REPLACE_SPECIAL`; arXiv:2103.00039, Definition 1.1). A
Gaussian has the same curve under each relation, at the noise multiplier relative to the
sensitivity under that relation; sampling amplifies under one only, and is refused under
others (`parts` has the table).

No accountant returns too small a number: each rounds up, returns a bound, or raises.
"""

import math
from typing import Callable

import dp_accounting
from dp_accounting import NeighboringRelation as Relation

from tff_dp_aggregators.accounting.accountants import gaussian
from tff_dp_aggregators.accounting.accountants import parts
from tff_dp_aggregators.accounting.accountants import pld
from tff_dp_aggregators.accounting.accountants import prv
from tff_dp_aggregators.accounting.accountants import rdp

RDP_ORDERS = rdp.ORDERS

_ZERO_OUT = Relation.REPLACE_SPECIAL


class _ComposedGaussians(parts.Accountant):
  """Adds up Gaussian events: mu^2 = sum of 1 / noise_multiplier^2."""

  reads = 'Gaussian events'

  def __init__(self, relation: Relation = _ZERO_OUT) -> None:
    super().__init__(relation)
    self._mu_squared = 0.0

  def _can_read(self, part: dp_accounting.DpEvent) -> bool:
    return isinstance(part, dp_accounting.GaussianDpEvent)

  def _add(self, part: dp_accounting.DpEvent, count: int) -> None:
    if isinstance(part, dp_accounting.NonPrivateDpEvent):
      self._mu_squared = math.inf
    else:
      inverse = 1 / part.noise_multiplier  # Squaring first would overflow sooner.
      self._mu_squared += count * (inverse * inverse)

  @property
  def mu(self) -> float:
    """The composition is mu-Gaussian-DP."""
    return math.sqrt(self._mu_squared)

  @property
  def rho(self) -> float:
    """The composition is rho-zCDP."""
    return self._mu_squared / 2


class GaussianAccountant(_ComposedGaussians):
  """Exact accountant of composed Gaussian mechanisms.

  Example:
    >>> accountant = GaussianAccountant()
    >>> _ = accountant.compose(dp_accounting.GaussianDpEvent(7 / 79**0.5))
    >>> round(accountant.get_epsilon(1e-10), 4)
    8.5261
  """

  def get_epsilon(self, target_delta: float) -> float:
    """Smallest epsilon at `target_delta`, exact."""
    return gaussian.epsilon_of(self.mu, target_delta)

  def get_delta(self, target_epsilon: float) -> float:
    """Smallest delta at `target_epsilon`, exact."""
    return gaussian.delta_of(self.mu, target_epsilon)


class ZCdpAccountant(_ComposedGaussians):
  """zCDP and its closed-form conversion, an upper bound."""

  def get_epsilon(self, target_delta: float) -> float:
    """Rho + 2 sqrt(rho ln(1 / delta))."""
    gaussian.check_delta(target_delta)
    return self.rho + 2 * math.sqrt(self.rho * -math.log(target_delta))

  def get_delta(self, target_epsilon: float) -> float:
    """exp(-(epsilon - rho)^2 / (4 rho)) for epsilon >= rho, else 1."""
    gaussian.check_epsilon(target_epsilon)
    if self.rho == 0:
      return 0.0
    if target_epsilon <= self.rho:
      return 1.0
    return math.exp(-((target_epsilon - self.rho) ** 2) / (4 * self.rho))


ACCOUNTANTS: dict[str, Callable[[Relation], parts.Accountant]] = {
  'exact': GaussianAccountant,
  'gdp': GaussianAccountant,
  'pld': pld.PldAccountant,
  'prv': prv.PrvAccountant,
  'rdp': rdp.RdpAccountant,
  'zcdp': ZCdpAccountant,
}
# From the tightest on. `gdp` is `exact`; `prv` is never tighter than `pld`.
_TIGHTEST = ('exact', 'pld', 'rdp')


def composed(
  event: dp_accounting.DpEvent,
  accountant: str = 'exact',
  relation: Relation = _ZERO_OUT,
) -> parts.Accountant:
  """The accountant of an event, to be asked for many epsilons or deltas.

  Args:
    event: What ran.
    accountant: A key of `ACCOUNTANTS`.
    relation: Neighbouring relation.

  Raises:
    ValueError: If the accountant is unknown.
    dp_accounting.UnsupportedEventError: If it cannot read the event.
  """
  if accountant not in ACCOUNTANTS:
    raise ValueError(
      f'unknown accountant {accountant!r}; known: {sorted(ACCOUNTANTS)}.'
    )
  made = ACCOUNTANTS[accountant](relation)
  for part, count in parts.parts(event, relation):
    made.compose(part, count)
  return made


def epsilon(
  event: dp_accounting.DpEvent,
  delta: float,
  accountant: str = 'exact',
  relation: Relation = _ZERO_OUT,
) -> float:
  """Epsilon of an event at `delta`.

  Args:
    event: What ran. Noise multipliers are relative to the sensitivity under `relation`.
    delta: Between 0 and 1, exclusive.
    accountant: A key of `ACCOUNTANTS`.
    relation: Neighbouring relation.

  Returns:
    The smallest epsilon for which the accountant can vouch; infinite without noise.

  Raises:
    ValueError: If `delta` or a parameter of the event is out of range, the accountant
      unknown, or `prv` asked where float64 ends.
    dp_accounting.UnsupportedEventError: If the accountant cannot read the event, or the
      event is not valid under `relation`.

  Example:
    >>> event = dp_accounting.GaussianDpEvent(7 / 79**0.5)
    >>> round(epsilon(event, 1e-10), 4), round(epsilon(event, 1e-10, 'rdp'), 4)
    (8.5261, 8.8986)
  """
  gaussian.check_delta(delta)
  return float(composed(event, accountant, relation).get_epsilon(delta))


def delta(
  event: dp_accounting.DpEvent,
  epsilon: float,
  accountant: str = 'exact',
  relation: Relation = _ZERO_OUT,
) -> float:
  """Delta of an event at `epsilon`; arguments and errors as for `epsilon`."""
  gaussian.check_epsilon(epsilon)
  return float(composed(event, accountant, relation).get_delta(epsilon))


def tightest(event: dp_accounting.DpEvent, relation: Relation = _ZERO_OUT) -> str:
  """The name of the accountant whose epsilon is the smallest for this kind of event.

  `exact` for Gaussians, `pld` for Poisson-sampled and Laplace noise, `rdp` for
  everything that it alone reads, such as sampling without replacement.

  Raises:
    dp_accounting.UnsupportedEventError: If none reads it under `relation`.

  Example:
    >>> event = dp_accounting.GaussianDpEvent(1.0)
    >>> tightest(event)
    'exact'
    >>> event = dp_accounting.SampledWithoutReplacementDpEvent(1000, 10, event)
    >>> tightest(event, Relation.REPLACE_ONE)
    'rdp'
  """
  parts.parts(event, relation)  # Its errors say more.
  for name in _TIGHTEST:
    if ACCOUNTANTS[name](relation).supports(event):
      return name
  raise dp_accounting.UnsupportedEventError(
    f'no accountant reads {event} under {relation.name}.'
  )


def gdp_mu(event: dp_accounting.DpEvent) -> float:
  """The mu of an event that is a composition of Gaussians: mu-Gaussian-DP.

  Raises:
    dp_accounting.UnsupportedEventError: If it is not.
  """
  return GaussianAccountant().compose(event).mu


def zcdp_rho(event: dp_accounting.DpEvent) -> float:
  """The rho of an event that is a composition of Gaussians: rho-zCDP, mu^2 / 2.

  Raises:
    dp_accounting.UnsupportedEventError: If it is not.
  """
  return ZCdpAccountant().compose(event).rho
