"""Accountants: what events mean in terms of epsilon and delta.

`GaussianAccountant` gives the exact curve wherever all events are Gaussian, which is
so for every mechanism of this package. The looser or numerical ones of the field are
there under their names, to compare with published figures:

| name    | what it is | for one Gaussian |
|---------|------------|------------------|
| `exact` | analytic Gaussian, arXiv:1805.06530 | exact |
| `pld`   | loss distributions, arXiv:2207.04380 (dp-accounting) | above by < 1e-3 |
| `rdp`   | Renyi DP at a grid of orders (dp-accounting) | an upper bound |
| `zcdp`  | closed form, arXiv:1605.02065, Proposition 1.3 | a looser upper bound |

All are for client-level adjacency by zeroing out one client's contributions
(arXiv:2103.00039, Definition 1.1), for which a Gaussian mechanism has the same curve
as under adding or removing.
"""

import math
from typing import Callable, Optional

import dp_accounting
from dp_accounting import NeighboringRelation as Relation

from tff_dp_aggregators.accounting import events
from tff_dp_aggregators.accounting import gaussian

_ZERO_OUT = Relation.REPLACE_SPECIAL

# TF Privacy's customary orders, with which the Gboard figures were published.
RDP_ORDERS = tuple([1 + x / 10 for x in range(1, 100)] + list(range(12, 64)))


class _ComposedGaussians(dp_accounting.PrivacyAccountant):
  """Adds up Gaussian events: mu^2 = sum of 1 / noise_multiplier^2."""

  def __init__(
    self, relation: Relation = dp_accounting.NeighboringRelation.REPLACE_SPECIAL
  ) -> None:
    super().__init__(relation)
    self._mu_squared = 0.0

  def _maybe_compose(
    self, event: dp_accounting.DpEvent, count: int, do_compose: bool
  ) -> Optional['dp_accounting.PrivacyAccountant.CompositionErrorDetails']:
    event = events.simplify(event)
    if isinstance(event, dp_accounting.NoOpDpEvent):
      added = 0.0
    elif isinstance(event, dp_accounting.NonPrivateDpEvent):
      added = math.inf
    elif isinstance(event, dp_accounting.GaussianDpEvent):
      inverse = 1 / event.noise_multiplier
      added = inverse * inverse
    else:
      return self.CompositionErrorDetails(
        invalid_event=event, error_message='Only Gaussian events are supported.'
      )
    if do_compose:
      self._mu_squared += count * added
    return None

  @property
  def mu(self) -> float:
    """The composition is mu-Gaussian-DP."""
    return math.sqrt(self._mu_squared)


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

  @property
  def rho(self) -> float:
    """The composition is rho-zCDP."""
    return self.mu**2 / 2

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


def _rdp(relation: Relation) -> dp_accounting.PrivacyAccountant:
  return dp_accounting.rdp.RdpAccountant(RDP_ORDERS, relation)


def _pld(relation: Relation) -> dp_accounting.PrivacyAccountant:
  return dp_accounting.pld.PLDAccountant(relation)


ACCOUNTANTS: dict[str, Callable[[Relation], dp_accounting.PrivacyAccountant]] = {
  'exact': GaussianAccountant,
  'pld': _pld,
  'rdp': _rdp,
  'zcdp': ZCdpAccountant,
}


def _composed(
  event: dp_accounting.DpEvent, accountant: str, relation: Relation
) -> dp_accounting.PrivacyAccountant:
  if accountant not in ACCOUNTANTS:
    raise ValueError(
      f'unknown accountant {accountant!r}; known: {sorted(ACCOUNTANTS)}.'
    )
  made = ACCOUNTANTS[accountant](relation)
  made.compose(events.simplify(event))
  return made


def tightest(event: dp_accounting.DpEvent, relation: Relation = _ZERO_OUT) -> str:
  """The accountant with the smallest sound epsilon for an event.

  Raises:
    dp_accounting.UnsupportedEventError: If none can read it.
  """
  simple = events.simplify(event)
  for name in ('exact', 'pld', 'rdp'):
    if ACCOUNTANTS[name](relation).supports(simple):
      return name
  raise dp_accounting.UnsupportedEventError(
    f'no accountant reads {event} for {relation.name}.'
  )


def epsilon(
  event: dp_accounting.DpEvent,
  delta: float,
  accountant: str = 'exact',
  relation: Relation = _ZERO_OUT,
) -> float:
  """Epsilon of an event at `delta`.

  Args:
    event: What ran.
    delta: Between 0 and 1, exclusive.
    accountant: A key of `ACCOUNTANTS`.
    relation: Neighbouring relation.

  Raises:
    ValueError: If `delta` is out of range or the accountant unknown.
    dp_accounting.UnsupportedEventError: If the accountant cannot read the event.

  Example:
    >>> event = dp_accounting.GaussianDpEvent(7 / 79**0.5)
    >>> round(epsilon(event, 1e-10), 4), round(epsilon(event, 1e-10, 'rdp'), 4)
    (8.5261, 8.8986)
  """
  gaussian.check_delta(delta)
  return float(_composed(event, accountant, relation).get_epsilon(delta))


def delta(
  event: dp_accounting.DpEvent,
  epsilon: float,
  accountant: str = 'exact',
  relation: Relation = _ZERO_OUT,
) -> float:
  """Delta of an event at `epsilon`; arguments and errors as for `epsilon`."""
  gaussian.check_epsilon(epsilon)
  return float(_composed(event, accountant, relation).get_delta(epsilon))


def gdp_mu(event: dp_accounting.DpEvent) -> float:
  """The mu of an event that is a composition of Gaussians.

  Raises:
    dp_accounting.UnsupportedEventError: If it is not.
  """
  accountant = GaussianAccountant()
  accountant.compose(event)
  return accountant.mu
