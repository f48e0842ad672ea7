"""Accountants: computing epsilon and delta of a privacy event.

`epsilon` and `delta` use the tightest accountant, or the one that is named. Flags,
reports with their JSON schema, and calibration are derived from `ACCOUNTANTS`.

| name    | method | events | epsilon of one Gaussian |
|---------|--------|--------|-------------------------|
| `exact` | analytic Gaussian, arXiv:1805.06530 | Gaussian | exact |
| `pld`   | privacy loss distributions, arXiv:2207.04380 (`pld`) | Gaussian, Laplace, \
Poisson-sampled; Gaussian on samples of fixed size; of b-min-sep sampling a bound | \
above by < 1e-6 for mu up to 10 |
| `prv`   | privacy random variables, arXiv:2106.02848 (`prv`) | Gaussian, Laplace, \
Poisson-sampled Gaussian | above by < 1e-3 for mu up to 10 |
| `rdp`   | Renyi DP at a grid of orders (`rdp`) | all of dp-accounting's, and \
integer noise | a bound |
| `monte_carlo` | Monte Carlo sampling, with a confidence that counts in delta \
(arXiv:2602.09338; `monte_carlo`) | rounds that clients draw in advance | - |
| `zcdp`  | rho and its closed form, arXiv:1605.02065, Proposition 1.3 | Gaussian | \
a looser bound |

A mechanism with Gaussian noise and without sampling is one Gaussian, for which `exact`
is chosen. The others are for sampling, other noise, and published figures.

`relation` is a `dp_accounting.NeighboringRelation`, zeroing out one client's
contributions by default (`REPLACE_SPECIAL`; arXiv:2103.00039, Definition 1.1). A
Gaussian has the same curve under every relation, if its noise multiplier is relative to
the sensitivity under it; `sampling` documents which scheme amplifies under which.

No accountant returns too small a number: each rounds up, returns a bound, or raises.
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
# A fast bound, for searches and for long lists of epsilons; see `quick_bound`.
QUICK_BOUND = rdp.RdpAccountant.name

# Every accountant, by name; `register` adds to them.
ACCOUNTANTS: dict[str, type[Accountant]] = {}


def register(entry: type[Accountant]) -> None:
  """Adds an accountant to `ACCOUNTANTS`, for flags, reports and calibration."""
  if entry.name in ACCOUNTANTS:
    raise ValueError(f'there is an accountant {entry.name!r} already.')
  ACCOUNTANTS[entry.name] = entry


for _each in (
  gaussian.GaussianAccountant,
  pld.PldAccountant,
  prv.PrvAccountant,
  rdp.RdpAccountant,
  gaussian.ZCdpAccountant,
  monte_carlo.MonteCarloAccountant,
):
  register(_each)


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
  for part, count in components(event, relation):
    try:
      result.compose(part, count)
    except dp_accounting.UnsupportedEventError as e:
      others = [e.name for e in ACCOUNTANTS.values() if e.can_read(event, relation)]
      if accountant is None or not others:
        raise
      raise dp_accounting.UnsupportedEventError(
        f'accountant={accountant} does not read this event; leave it out, or take '
        f'{" or ".join(others)}. {e}'
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
  """Epsilon of an event at `delta`.

  Args:
    event: What ran. Noise multipliers are relative to the sensitivity under `relation`.
    delta: Between 0 and 1, exclusive.
    accountant: A key of `ACCOUNTANTS`; `None` for the tightest.
    relation: Neighbouring relation.

  Returns:
    The smallest epsilon that the accountant can guarantee; infinite without noise.

  Raises:
    ValueError: If `delta` or a parameter of the event is out of range, the accountant
      is unknown, or float64 is not precise enough for `prv`.
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

  It is `exact` for Gaussians, `pld` for sampled and Laplace noise, and `rdp` for
  everything that only `rdp` reads, such as dp-accounting's event of a tree. Raises
  `UnsupportedEventError` if no accountant reads the event under `relation`.

  Example:
    >>> event = dp_accounting.GaussianDpEvent(1.0)
    >>> tightest(event)
    'exact'
    >>> event = dp_accounting.SampledWithoutReplacementDpEvent(1000, 10, event)
    >>> tightest(event, Relation.REPLACE_ONE)
    'pld'
  """
  parts = components(event, relation)  # Its error messages are more specific.
  ranked = [entry for entry in ACCOUNTANTS.values() if entry.rank is not None]
  reading = [entry for entry in ranked if entry.can_read(event, relation)]
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
