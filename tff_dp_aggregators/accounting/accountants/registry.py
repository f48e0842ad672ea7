"""The accountants there are, each described once, and the two questions to them.

`ACCOUNTANTS` has an `Entry` for each: which class it is, how tight, and how it is
searched. Flags, reports with their JSON schema and calibration follow from the entries;
what reports say of them is in `reports.terms`.

| name    | what it is | reads | for one Gaussian |
|---------|------------|-------|------------------|
| `exact` | analytic Gaussian, arXiv:1805.06530 | Gaussians | exact |
| `pld`   | loss distributions, arXiv:2207.04380 (`pld`) | Gaussian, Laplace, \
Poisson-sampled; Gaussian on samples of fixed size; of b-min-sep sampling a bound | \
above by < 1e-6 for mu up to 10 |
| `prv`   | privacy random variables, arXiv:2106.02848 (`prv`) | Gaussian, Laplace, \
Poisson-sampled Gaussian | above by < 1e-3 for mu up to 10 |
| `rdp`   | Renyi DP at a grid of orders (`rdp`) | all of dp-accounting's, and \
integer noise | a bound |
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
others (`accountant` has the table).

No accountant returns too small a number: each rounds up, returns a bound, or raises.
"""

import dataclasses
import fractions
import math
from typing import Callable, Optional

import dp_accounting
from dp_accounting import NeighboringRelation as Relation

from tff_dp_aggregators.accounting import events
from tff_dp_aggregators.accounting.accountants import gaussian
from tff_dp_aggregators.accounting.accountants import monte_carlo
from tff_dp_aggregators.accounting.accountants import pld
from tff_dp_aggregators.accounting.accountants import prv
from tff_dp_aggregators.accounting.accountants import rdp
from tff_dp_aggregators.accounting.accountants.accountant import Accountant
from tff_dp_aggregators.accounting.accountants.accountant import Instead
from tff_dp_aggregators.accounting.accountants.accountant import components
from tff_dp_aggregators.accounting.accountants.accountant import nested
from tff_dp_aggregators.accounting.accountants.accountant import up

# At which Renyi DP is computed.
RDP_ORDERS = rdp.ORDERS

_ZERO_OUT = Relation.REPLACE_SPECIAL
# Round-off of sums of a few numbers, relative, and more.
_ROUND_OFF = 1e-14


@dataclasses.dataclass(frozen=True)
class Entry:
  """Everything that numbers need of an accountant.

  Attributes:
    name: What flags, arguments and reports call it.
    make: From a neighbouring relation to the accountant with nothing composed.
    rank: Place among those that are asked when none is named, the tightest first;
      `None` for one that is never tighter than another.
    tolerance: How far above the least noise a search may end, relative; the finest that
      is worth the time.
    is_numerical: Whether it takes up to seconds, so that searches start from the quick
      bound's answer.
    is_drawn: Whether outcomes are drawn for each answer, which takes up to minutes:
      curves have few points.
    estimate: From an event and delta to about the epsilon, which nobody vouches for:
      where searches start, instead of at the quick bound's answer.
    max_questions: Epsilons that one search may ask for, if its confidence is for so
      many.
  """

  name: str
  make: Callable[[Relation], Accountant]
  rank: Optional[int] = None
  tolerance: float = 5e-5
  is_numerical: bool = False
  is_drawn: bool = False
  estimate: Optional[Callable[[dp_accounting.DpEvent, float], float]] = None
  max_questions: Optional[int] = None

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
  """Adds an accountant; from then on flags, reports and calibration know it."""
  if entry.name in ACCOUNTANTS:
    raise ValueError(f'there is an accountant {entry.name!r} already.')
  ACCOUNTANTS[entry.name] = entry


for _each in (
  Entry(EXACT, gaussian.GaussianAccountant, rank=0, tolerance=1e-13),
  Entry('pld', pld.PldAccountant, rank=1, is_numerical=True),
  # By its own error alone, at times, tighter than pld.
  Entry('prv', prv.PrvAccountant, is_numerical=True),
  Entry(QUICK_BOUND, rdp.RdpAccountant, rank=2, tolerance=1e-9),
  Entry('zcdp', gaussian.ZCdpAccountant, tolerance=1e-13),
  Entry(
    'monte_carlo',
    monte_carlo.MonteCarloAccountant,
    rank=3,  # Asked where nothing else reads the event.
    tolerance=4e-3,
    is_numerical=True,
    is_drawn=True,
    estimate=monte_carlo.estimate_epsilon,
    max_questions=monte_carlo.MAX_QUESTIONS,
  ),
):
  register(_each)


def entry_of(name: str) -> Entry:
  """The accountant of a name."""
  if not isinstance(name, str) or name not in ACCOUNTANTS:
    raise ValueError(f'unknown accountant {name!r}; known: {sorted(ACCOUNTANTS)}.')
  return ACCOUNTANTS[name]


def composed(
  event: dp_accounting.DpEvent,
  accountant: Optional[str] = None,
  relation: Relation = _ZERO_OUT,
) -> Accountant:
  """The accountant of an event, to be asked for many epsilons or deltas.

  Arguments and errors are those of `epsilon`.
  """
  entry = entry_of(accountant or tightest(event, relation))
  made = entry.make(relation)
  event, beside = _split(event)
  for part, count in components(_as_read(entry, event, relation), relation):
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
  return BasicCompositionAccountant(made).compose(dp_accounting.ComposedDpEvent(beside))


def has_stated(event: dp_accounting.DpEvent) -> bool:
  """Whether something of an event is only stated to be (epsilon, delta)-DP."""
  kind = events.EpsilonDeltaDpEvent
  return any(isinstance(each, kind) for each in nested(event))


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
  components(event, relation)  # Its bound may be valid where the event is not.
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
  """Delta of an event at `epsilon`: what `epsilon` is, the other way.

  Returns:
    The smallest delta for which the accountant can vouch; 1 without noise.

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
) -> Optional[Instead]:
  """Whose bound `epsilon` returns, where the accountant has no smaller one itself.

  Arguments and errors are those of `epsilon`.

  Returns:
    The accountant it is of, and the reason; `None` if it is the one that was asked.

  Example:
    >>> little = dp_accounting.PoissonSampledDpEvent(
    ...   0.01, dp_accounting.GaussianDpEvent(1e-8)
    ... )
    >>> instead(little, 1e-6, 'pld', Relation.ADD_OR_REMOVE_ONE).accountant
    'rdp'
  """
  gaussian.check_delta(delta)
  return composed(event, accountant, relation).instead(delta)


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
  components(event, relation)  # Its errors say more.
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


class BasicCompositionAccountant(Accountant):
  """What is only stated to be (epsilon, delta)-DP, beside what an accountant reads.

  Epsilons and deltas add up (basic composition; Dwork and Roth 2014, theorem 3.16),
  which holds whatever the rest is, and which a reader of a report can do by hand. Many
  releases that are stated so would compose better together; who knows more of them than
  epsilon and delta states their noise instead.

  Attributes:
    rest: The accountant that has composed everything else.

  Example:
    >>> rest = gaussian.GaussianAccountant()
    >>> _ = rest.compose(dp_accounting.GaussianDpEvent(1.0))
    >>> both = BasicCompositionAccountant(rest)
    >>> _ = both.compose(events.EpsilonDeltaDpEvent(0.5, 1e-6))
    >>> f'{rest.get_epsilon(1e-6):.4f} {both.get_epsilon(2e-6):.4f}'
    '4.8866 5.3866'
  """

  reads = 'events that state epsilon and delta'

  def __init__(self, rest: Accountant):
    super().__init__(rest.neighboring_relation)
    self.rest = rest

  def _can_read(self, part: dp_accounting.DpEvent) -> bool:
    return isinstance(part, events.EpsilonDeltaDpEvent)

  def get_epsilon(self, target_delta: float) -> float:
    """That of the rest at what is left of `target_delta`, and what is stated."""
    left = self._left(target_delta)
    if not left > 0:
      return math.inf
    return (self.rest.get_epsilon(left) + up(self._sums()[0])) * (1 + _ROUND_OFF)

  def get_delta(self, target_epsilon: float) -> float:
    """That of the rest at what is left of `target_epsilon`, and what is stated."""
    epsilon, delta = self._sums()
    left = target_epsilon * (1 - _ROUND_OFF) - up(epsilon)
    if left < 0:
      return 1.0
    return min((self.rest.get_delta(left) + up(delta)) * (1 + _ROUND_OFF), 1.0)

  def instead(self, target_delta: float) -> Optional[Instead]:
    """As the rest has it, at what is left of `target_delta`."""
    left = self._left(target_delta)
    return self.rest.instead(left) if left > 0 else None

  def failure_probability(self, target_delta: float) -> float:
    """As the rest has it, at what is left of `target_delta`."""
    left = self._left(target_delta)
    return self.rest.failure_probability(left) if left > 0 else 0.0

  def _left(self, target_delta: float) -> float:
    left = float(fractions.Fraction(target_delta) - self._sums()[1])
    return math.nextafter(left, -math.inf)

  def _sums(self) -> tuple[fractions.Fraction, fractions.Fraction]:
    """Epsilon and delta of all that is stated, exactly."""
    epsilon = delta = fractions.Fraction(0)
    for part, count in self._components():
      epsilon += count * fractions.Fraction(part.epsilon)
      delta += count * fractions.Fraction(part.delta)
    return epsilon, delta
