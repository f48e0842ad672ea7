"""Accountants: computing epsilon and delta of a privacy event.

`epsilon` and `delta` use the tightest accountant, or the one that is named. Flags,
reports with their JSON schema, and calibration are derived from `ACCOUNTANTS`:

| name          | module        | events                                              |
|---------------|---------------|-----------------------------------------------------|
| `exact`       | `gaussian`    | Gaussian noise without sampling                     |
| `pld`         | `pld`         | Gaussian and Laplace noise, sampled or not          |
| `prv`         | `prv`         | the same, of samples only Poisson-sampled Gaussians |
| `rdp`         | `rdp`         | all of dp-accounting's, and integer noise: a bound  |
| `monte_carlo` | `monte_carlo` | rounds that clients draw in advance                 |
| `zcdp`        | `gaussian`    | as `exact`: a looser bound                          |

`relation` is a `dp_accounting.NeighboringRelation`, zeroing out one client's
contributions by default (`REPLACE_SPECIAL`; arXiv:2103.00039, Definition 1.1). No
accountant returns too small a number: each rounds up, returns a bound, or raises.
"""

from typing import Optional

import dp_accounting
from dp_accounting import NeighboringRelation as Relation

from tff_dp_aggregators.accounting import events
from tff_dp_aggregators.accounting.accountants import accountant
from tff_dp_aggregators.accounting.accountants import gaussian
from tff_dp_aggregators.accounting.accountants import monte_carlo
from tff_dp_aggregators.accounting.accountants import pld
from tff_dp_aggregators.accounting.accountants import prv
from tff_dp_aggregators.accounting.accountants import rdp
from tff_dp_aggregators.accounting.accountants.accountant import Accountant
from tff_dp_aggregators.accounting.accountants.accountant import Instead
from tff_dp_aggregators.accounting.accountants.accountant import components
from tff_dp_aggregators.accounting.accountants.accountant import nested
from tff_dp_aggregators.accounting.accountants.accountant import pure_epsilon
from tff_dp_aggregators.accounting.accountants.gaussian import GaussianAccountant
from tff_dp_aggregators.accounting.accountants.gaussian import ZCdpAccountant
from tff_dp_aggregators.accounting.accountants.gaussian import gdp_mu
from tff_dp_aggregators.accounting.accountants.gaussian import zcdp_rho

__all__ = [
  'ACCOUNTANTS',
  'Accountant',
  'EXACT',
  'GaussianAccountant',
  'Instead',
  'QUICK_BOUND',
  'RDP_ORDERS',
  'ZCdpAccountant',
  'accountant',
  'components',
  'composed',
  'delta',
  'entry_of',
  'epsilon',
  'gaussian',
  'gdp_mu',
  'has_stated',
  'instead',
  'monte_carlo',
  'nested',
  'pld',
  'prv',
  'pure_epsilon',
  'quick_bound',
  'rdp',
  'register',
  'tightest',
  'zcdp_rho',
]

RDP_ORDERS = rdp.ORDERS  # Orders at which Renyi DP is computed.
_ZERO_OUT = Relation.REPLACE_SPECIAL
EXACT = gaussian.GaussianAccountant.name  # Exact for Gaussian events.
# A fast bound, for searches and for long lists of epsilons.
QUICK_BOUND = rdp.RdpAccountant.name

# Every accountant, by name; `register` adds to them.
ACCOUNTANTS: dict[str, type[Accountant]] = {
  entry.name: entry
  for entry in (
    gaussian.GaussianAccountant,
    pld.PldAccountant,
    prv.PrvAccountant,
    rdp.RdpAccountant,
    gaussian.ZCdpAccountant,
    monte_carlo.MonteCarloAccountant,
  )
}


def register(entry: type[Accountant]) -> None:
  """Adds an accountant to `ACCOUNTANTS`, for flags, reports and calibration."""
  if entry.name in ACCOUNTANTS:
    raise ValueError(f'there is an accountant {entry.name!r} already.')
  ACCOUNTANTS[entry.name] = entry


def entry_of(name: str) -> type[Accountant]:
  """Returns the accountant class of a name; raises ValueError if it is unknown."""
  if not isinstance(name, str) or name not in ACCOUNTANTS:
    raise ValueError(f'unknown accountant {name!r}; known: {sorted(ACCOUNTANTS)}.')
  return ACCOUNTANTS[name]


def composed(
  event: dp_accounting.DpEvent,
  accountant: Optional[str] = None,
  relation: Relation = _ZERO_OUT,
) -> Accountant:
  """Returns an accountant that has composed an event; arguments as for `epsilon`."""
  entry = entry_of(accountant or tightest(event, relation))
  result = entry(relation)
  try:
    for part, count in components(event, relation):
      result.compose(part, count)
  except dp_accounting.UnsupportedEventError as e:
    raise dp_accounting.UnsupportedEventError(
      f'accountant={entry.name} does not read this event; leave it out for the '
      f'tightest one that does. {e}'
    ) from e
  return result


def has_stated(event: dp_accounting.DpEvent) -> bool:
  """Whether a part of an event is only stated to be (epsilon, delta)-DP."""
  return any(isinstance(each, events.EpsilonDeltaDpEvent) for each in nested(event))


def epsilon(
  event: dp_accounting.DpEvent,
  delta: float,
  accountant: Optional[str] = None,
  relation: Relation = _ZERO_OUT,
) -> float:
  """The smallest epsilon at `delta` that can be guaranteed; infinite without noise.

  `accountant` is a key of `ACCOUNTANTS`, `None` for the tightest. Raises ValueError if
  an argument is out of range or float64 not precise enough, and UnsupportedEventError
  if the accountant cannot read the event, or it is not valid under `relation`.

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
  accountant: Optional[str] = None,
  relation: Relation = _ZERO_OUT,
) -> float:
  """The smallest delta at `epsilon` that can be guaranteed; 1 without noise."""
  gaussian.check_epsilon(epsilon)
  return float(composed(event, accountant, relation).get_delta(epsilon))


def quick_bound(
  event: dp_accounting.DpEvent, relation: Relation = _ZERO_OUT
) -> Optional[str]:
  """Returns `QUICK_BOUND` if that accountant reads the event, else `None`."""
  return QUICK_BOUND if entry_of(QUICK_BOUND).can_read(event, relation) else None


def instead(
  event: dp_accounting.DpEvent,
  delta: float,
  accountant: Optional[str] = None,
  relation: Relation = _ZERO_OUT,
) -> Optional[Instead]:
  """The accountant whose bound `epsilon` returns instead, and why; `None` if none."""
  gaussian.check_delta(delta)
  return composed(event, accountant, relation).instead(delta)


def tightest(event: dp_accounting.DpEvent, relation: Relation = _ZERO_OUT) -> str:
  """Returns the name of the accountant with the smallest epsilon for such an event.

  Raises `UnsupportedEventError` if no accountant reads the event under `relation`.
  """
  parts = components(event, relation)  # Its error messages are more specific.
  reading = [
    entry
    for entry in ACCOUNTANTS.values()
    if entry.rank is not None and entry.can_read(event, relation)
  ]
  if not reading:
    raise dp_accounting.UnsupportedEventError(
      f'no accountant reads {event} under {relation.name}.'
    )
  # Accountants that read a loose bound come last.
  is_loose = any(
    isinstance(part, events.MixtureDpEvent)
    and not (part.bound_is_tight or part.strategy is None)
    for part, _ in parts
  )
  return min(
    reading, key=lambda entry: (is_loose and entry.reads_bounds, entry.rank, entry.name)
  ).name


def __dir__() -> list[str]:
  return sorted(__all__)
