"""The accountants there are, each described once, and the two questions to them.

`ACCOUNTANTS` has an `Entry` for each: which class it is, how tight, how it is searched,
and the words that reports have for it. Flags, reports with their JSON schema and
calibration follow from the entries.

| name    | what it is | reads | for one Gaussian |
|---------|------------|-------|------------------|
| `exact` | analytic Gaussian, arXiv:1805.06530 | Gaussians | exact |
| `pld`   | loss distributions, arXiv:2207.04380 (`pld`) | Gaussian, Laplace, \
Poisson-sampled; Gaussian on samples of fixed size; of b-min-sep sampling a bound | \
above by < 1e-6 for mu up to 10 |
| `prv`   | privacy random variables, arXiv:2106.02848 (`prv`) | Gaussian, Laplace, \
Poisson-sampled Gaussian | above by < 1e-3 for mu up to 10 |
| `rdp`   | Renyi DP at a grid of orders (`rdp`) | all of dp-accounting's | a bound |
| `monte_carlo` | drawn outcomes, with a confidence that counts in delta \
(arXiv:2602.09338; `monte_carlo`) | balls in bins, b-min-sep sampling | - |
| `zcdp`  | rho and its closed form, arXiv:1605.02065, Proposition 1.3 | Gaussians | \
a looser bound |

Every mechanism without sampling of this package is one Gaussian, so that `exact` is the
answer; the others are there to compare with published figures, and for sampling. Who
names no accountant asks the tightest one that reads the event.

`relation` is a `dp_accounting.NeighboringRelation`, zeroing out one client's
contributions by default (`REPLACE_SPECIAL`; arXiv:2103.00039, Definition 1.1). A
Gaussian has the same curve under each relation, at the noise multiplier relative to the
sensitivity under that relation; sampling amplifies under one only, and is refused under
others (`parts` has the table).

No accountant returns too small a number: each rounds up, returns a bound, or raises.
"""

import dataclasses
from typing import Callable, Optional

import dp_accounting
from dp_accounting import NeighboringRelation as Relation

from tff_dp_aggregators.accounting import events
from tff_dp_aggregators.accounting.accountants import closed_forms
from tff_dp_aggregators.accounting.accountants import gaussian
from tff_dp_aggregators.accounting.accountants import monte_carlo
from tff_dp_aggregators.accounting.accountants import parts
from tff_dp_aggregators.accounting.accountants import pld
from tff_dp_aggregators.accounting.accountants import prv
from tff_dp_aggregators.accounting.accountants import rdp
from tff_dp_aggregators.accounting.accountants import stated

# At which Renyi DP is computed.
RDP_ORDERS = rdp.ORDERS

_ZERO_OUT = Relation.REPLACE_SPECIAL
# What others are compared with in a report, unless an entry says otherwise.
_BESIDE = ('exact', 'rdp', 'zcdp')


@dataclasses.dataclass(frozen=True)
class Entry:
  """Everything that the package knows about an accountant.

  Attributes:
    name: What flags, arguments and reports call it.
    make: From a neighbouring relation to the accountant with nothing composed.
    kind: What its epsilon is, for reports: exact or a bound, numerical or not, and the
      citation.
    keeps: What it keeps of a mechanism, for reports, beginning with the name.
    kind_of_bound: `kind` where the sensitivity, by which the event is made, is known by
      an upper bound; `None` if it is the same.
    keeps_of_bound: `keeps` there.
    title: The method in a few words.
    rank: Place among those that are asked when none is named, the tightest first;
      `None` for one that is never tighter than another.
    tolerance: How far above the least noise a search may end, relative; the finest that
      is worth the time.
    is_numerical: Whether it takes up to seconds, so that searches start from the quick
      bound's answer.
    is_drawn: Whether outcomes are drawn for each answer, which takes up to minutes:
      curves have few points.
    about: From an event and delta to about the epsilon, which nobody vouches for: where
      searches start, instead of at the quick bound's answer.
    most_asked: Epsilons that one search may ask for, if its confidence is for so many.
    beside: Accountants whose epsilons a report lists beside this one's, where they
      read the event.
    in_guarantee: Whether a report's guarantee has a field `epsilon_<name>`.
    checked_by: The accountant, sharing no code with this one, that has to come to the
      same when a report is verified; `None` if there is none.
  """

  name: str
  make: Callable[[Relation], parts.Accountant]
  kind: str
  keeps: str
  title: str
  rank: Optional[int] = None
  tolerance: float = 5e-5
  is_numerical: bool = False
  is_drawn: bool = False
  about: Optional[Callable[[dp_accounting.DpEvent, float], float]] = None
  most_asked: Optional[int] = None
  beside: tuple[str, ...] = _BESIDE
  in_guarantee: bool = False
  checked_by: Optional[str] = None
  kind_of_bound: Optional[str] = None
  keeps_of_bound: Optional[str] = None

  def of_sensitivity(self, kind: str) -> 'Entry':
    """With the words for a sensitivity that is known so: 'exact' or 'bound'."""
    if kind == 'exact':
      return self
    return dataclasses.replace(
      self,
      kind=self.kind_of_bound or self.kind,
      keeps=self.keeps_of_bound or self.keeps,
    )

  def can_read(self, event: dp_accounting.DpEvent, relation: Relation) -> bool:
    """Whether it says anything about an event under a neighbouring relation."""
    return self.make(relation).supports(_split(event)[0])


# The curve of a Gaussian itself.
EXACT = 'exact'
# Reads every event of this package, quickly: for searches, and where numbers are many.
QUICK_BOUND = 'rdp'

# Every accountant, by name; `register` adds to them.
ACCOUNTANTS: dict[str, Entry] = {}


def register(entry: Entry) -> None:
  """Adds an accountant; from then on flags, reports and calibration know it.

  Raises:
    ValueError: If there is one of that name.
  """
  if entry.name in ACCOUNTANTS:
    raise ValueError(f'there is an accountant {entry.name!r} already.')
  ACCOUNTANTS[entry.name] = entry


register(
  Entry(
    EXACT,
    closed_forms.GaussianAccountant,
    kind='exact: the privacy curve of a Gaussian mechanism (arXiv:1805.06530)',
    keeps='exact: the true curve of a Gaussian mechanism of this sensitivity, so no '
    'smaller epsilon holds for it',
    title='the exact curve of a Gaussian mechanism (arXiv:1805.06530)',
    rank=0,
    tolerance=1e-13,
    in_guarantee=True,
    checked_by='pld',
    kind_of_bound='upper bound: the exact privacy curve of a Gaussian mechanism '
    '(arXiv:1805.06530), for an upper bound of the sensitivity',
    keeps_of_bound='exact: the true curve of a Gaussian mechanism, of a sensitivity '
    'that is an upper bound here, so that a smaller epsilon may hold',
  )
)
register(
  Entry(
    'pld',
    pld.PldAccountant,
    kind='upper bound, numerical: privacy loss distribution (arXiv:2207.04380)',
    keeps='pld (privacy loss distribution): the distribution of what an outcome gives '
    'away, on a grid, rounded up',
    title='privacy loss distributions',
    rank=1,
    is_numerical=True,
    beside=(QUICK_BOUND,),  # zCDP says nothing of samples.
    in_guarantee=True,
  )
)
register(
  Entry(
    'prv',
    prv.PrvAccountant,
    kind='upper bound, numerical: privacy random variable (arXiv:2106.02848)',
    keeps='prv (privacy random variable): the same distribution by another numerical '
    'method, with its error added',
    title='privacy random variables',
    is_numerical=True,  # And only by its own error, at times, tighter than pld.
  )
)
register(
  Entry(
    QUICK_BOUND,
    rdp.RdpAccountant,
    kind='upper bound: Renyi DP at fixed orders (dp-accounting)',
    keeps='rdp (Renyi differential privacy): moments of what an outcome gives away; '
    'turning them into epsilon loses a little',
    title='Renyi DP',
    rank=2,
    tolerance=1e-9,
    in_guarantee=True,
  )
)
register(
  Entry(
    'zcdp',
    closed_forms.ZCdpAccountant,
    kind='upper bound: closed form of zCDP (arXiv:1605.02065, Proposition 1.3)',
    keeps='zcdp (zero-concentrated differential privacy): one number, rho, turned into '
    'epsilon by a simple formula that loses more',
    title='the closed form of zCDP',
    tolerance=1e-13,
    in_guarantee=True,
  )
)
register(
  Entry(
    'monte_carlo',
    monte_carlo.MonteCarloAccountant,
    kind='upper bound of drawn outcomes (Monte Carlo), '
    f'at most {monte_carlo.MOST:,} for a figure in each direction, from a seed that '
    'the question gives, so that anybody draws the same; it holds but for a '
    f'probability of {monte_carlo.SHARE:.0%} of delta, counted in delta '
    '(arXiv:2412.16802, 2602.09338)',
    keeps='monte_carlo: the distribution of what an outcome gives away, as it is found '
    'in drawn outcomes, and that they may mislead as a part of delta',
    title='Monte Carlo',
    rank=3,  # Asked where nothing else reads the event.
    tolerance=4e-3,
    is_numerical=True,
    is_drawn=True,
    about=monte_carlo.about_epsilon,
    most_asked=monte_carlo.MOST_ASKED,
    beside=(),
  )
)


def entry_of(name: str) -> Entry:
  """The accountant of a name.

  Raises:
    ValueError: If there is none.
  """
  if not isinstance(name, str) or name not in ACCOUNTANTS:
    raise ValueError(f'unknown accountant {name!r}; known: {sorted(ACCOUNTANTS)}.')
  return ACCOUNTANTS[name]


def composed(
  event: dp_accounting.DpEvent,
  accountant: Optional[str] = None,
  relation: Relation = _ZERO_OUT,
) -> parts.Accountant:
  """The accountant of an event, to be asked for many epsilons or deltas.

  Args:
    event: What ran.
    accountant: A key of `ACCOUNTANTS`; `None` for the tightest.
    relation: Neighbouring relation.

  Raises:
    ValueError: If the accountant is unknown, or a parameter of the event out of range.
    dp_accounting.UnsupportedEventError: If it cannot read the event.
  """
  entry = entry_of(choose(event, accountant, relation))
  made = entry.make(relation)
  event, beside = _split(event)
  for part, count in parts.parts(_as_read(entry, event, relation), relation):
    try:
      made.compose(part, count)
    except dp_accounting.UnsupportedEventError as e:
      others = [
        each.name
        for each in ACCOUNTANTS.values()
        if each.can_read(_as_read(each, event, relation), relation)
      ]
      if accountant is None or not others:
        raise
      raise dp_accounting.UnsupportedEventError(
        f'accountant={accountant} does not read this event; leave it out, or take '
        f'{" or ".join(others)}. {e}'
      ) from e
  if not beside:
    return made
  return stated.StatedAccountant(made).compose(dp_accounting.ComposedDpEvent(beside))


def has_stated(event: dp_accounting.DpEvent) -> bool:
  """Whether something of an event is only stated to be (epsilon, delta)-DP.

  Args:
    event: Any event.
  """
  kind = events.EpsilonDeltaDpEvent
  return any(isinstance(each, kind) for each in parts.nested(event))


def _split(
  event: dp_accounting.DpEvent,
) -> tuple[dp_accounting.DpEvent, list[dp_accounting.DpEvent]]:
  """What accountants read, and what is only stated to be (epsilon, delta)-DP."""
  if not has_stated(event):
    return event, []
  kind = events.EpsilonDeltaDpEvent
  rest: list[dp_accounting.DpEvent] = []
  beside: list[dp_accounting.DpEvent] = []
  for leaf, count in events.leaves(event):
    many = dp_accounting.SelfComposedDpEvent(leaf, count)
    (beside if isinstance(leaf, kind) else rest).append(many)
  return events.simplify(dp_accounting.ComposedDpEvent(rest)), beside


def _as_read(
  entry: Entry, event: dp_accounting.DpEvent, relation: Relation
) -> dp_accounting.DpEvent:
  """The event, or bounds of mixtures, where that is asked for or nothing else is known.

  Alone, b-min-sep sampling is read by who draws outcomes; that composes with nothing.
  """
  if not entry.make(relation).reads_bounds or entry.can_read(event, relation):
    return event
  parts.parts(event, relation)  # Its bound may be valid where the event is not.
  bound = events.with_bounds(event)
  return bound if entry.can_read(bound, relation) else event


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
  accountant: Optional[str] = None,
  relation: Relation = _ZERO_OUT,
) -> float:
  """Delta of an event at `epsilon`.

  Args:
    event: What ran. Noise multipliers are relative to the sensitivity under `relation`.
    epsilon: Finite and not negative.
    accountant: A key of `ACCOUNTANTS`; `None` for the tightest.
    relation: Neighbouring relation.

  Returns:
    The smallest delta for which the accountant can vouch; 1 without noise.

  Raises:
    ValueError: If `epsilon` or a parameter of the event is out of range, the accountant
      unknown, or `prv` asked where float64 ends.
    dp_accounting.UnsupportedEventError: If the accountant cannot read the event, or the
      event is not valid under `relation`.

  Example:
    >>> event = dp_accounting.GaussianDpEvent(7 / 79**0.5)
    >>> f'{delta(event, epsilon=5.0):.2e}'
    '1.21e-04'
  """
  gaussian.check_epsilon(epsilon)
  return float(composed(event, accountant, relation).get_delta(epsilon))


def quick_bound(
  event: dp_accounting.DpEvent, relation: Relation = _ZERO_OUT
) -> Optional[str]:
  """`QUICK_BOUND` if that reads the event; `None` if it does not.

  Args:
    event: What ran.
    relation: Neighbouring relation.

  Example:
    >>> laplace = dp_accounting.LaplaceDpEvent(1.0)
    >>> quick_bound(laplace)
    'rdp'
    >>> sampled = dp_accounting.PoissonSampledDpEvent(0.1, laplace)
    >>> quick_bound(sampled, Relation.ADD_OR_REMOVE_ONE) is None
    True
  """
  can = entry_of(QUICK_BOUND).can_read(event, relation)
  return QUICK_BOUND if can else None


def instead(
  event: dp_accounting.DpEvent,
  delta: float,
  accountant: Optional[str] = None,
  relation: Relation = _ZERO_OUT,
) -> Optional[parts.Instead]:
  """Whose bound `epsilon` returns, where the accountant has no smaller one itself.

  Args:
    event: As for `epsilon`.
    delta: As for `epsilon`.
    accountant: As for `epsilon`.
    relation: As for `epsilon`.

  Returns:
    The accountant it is of, and the reason; `None` if it is the one that was asked.

  Raises:
    ValueError: As `epsilon` does.
    dp_accounting.UnsupportedEventError: As `epsilon` does.

  Example:
    >>> little = dp_accounting.PoissonSampledDpEvent(
    ...   0.01, dp_accounting.GaussianDpEvent(1e-8)
    ... )
    >>> instead(little, 1e-6, 'pld', Relation.ADD_OR_REMOVE_ONE).accountant
    'rdp'
  """
  gaussian.check_delta(delta)
  return composed(event, accountant, relation).instead(delta)


def label(name: str, other: Optional[parts.Instead]) -> str:
  """An accountant's name for a table, with whose bound it states if not its own.

  Example:
    >>> label('pld', parts.Instead('rdp', 'the noise is too small'))
    "pld (rdp's bound, as the noise is too small)"
  """
  return (
    name if other is None else f"{name} ({other.accountant}'s bound, as {other.reason})"
  )


def choose(
  event: dp_accounting.DpEvent,
  accountant: Optional[str] = None,
  relation: Relation = _ZERO_OUT,
) -> str:
  """The name of the accountant that was asked for, or else of the tightest.

  Args:
    event: What ran.
    accountant: The one asked for, if any was.
    relation: Neighbouring relation.

  Raises:
    dp_accounting.UnsupportedEventError: If none is asked for, and none reads the event.
  """
  return tightest(event, relation) if accountant is None else accountant


def tightest(event: dp_accounting.DpEvent, relation: Relation = _ZERO_OUT) -> str:
  """The name of the accountant whose epsilon is the smallest for this kind of event.

  `exact` for Gaussians, `pld` for sampled and Laplace noise, `rdp` for everything that
  it alone reads, such as dp-accounting's event of a tree.

  Raises:
    dp_accounting.UnsupportedEventError: If none reads it under `relation`.

  Example:
    >>> event = dp_accounting.GaussianDpEvent(1.0)
    >>> tightest(event)
    'exact'
    >>> event = dp_accounting.SampledWithoutReplacementDpEvent(1000, 10, event)
    >>> tightest(event, Relation.REPLACE_ONE)
    'pld'
  """
  parts.parts(event, relation)  # Its errors say more.
  ranked = [entry for entry in ACCOUNTANTS.values() if entry.rank is not None]
  ranked.sort(key=lambda entry: (entry.rank, entry.name))
  for entry in ranked:
    if entry.can_read(event, relation):
      return entry.name
  for entry in ranked:
    if entry.can_read(_as_read(entry, event, relation), relation):
      return entry.name
  raise dp_accounting.UnsupportedEventError(
    f'no accountant reads {event} under {relation.name}.'
  )
