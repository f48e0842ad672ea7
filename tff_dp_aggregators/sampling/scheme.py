"""What every scheme of participation says about itself.

A scheme is a frozen dataclass, and its class says what the data means: in which rounds
a client can take part, which events describe a mechanism, for which relations, and
which clients a round draws. `of` puts `strategies.Participation`, limits without
sampling, into `limits.Limits`, so that all schemes answer alike.
"""

import abc
import dataclasses
import math
from typing import Any, Callable, ClassVar, NamedTuple, NoReturn, Optional, Union

import dp_accounting
import numpy as np
from dp_accounting import NeighboringRelation as Relation

from tff_dp_aggregators import strategies
from tff_dp_aggregators.base import checks
from tff_dp_aggregators.strategies import participation as participation_lib
from tff_dp_aggregators.strategies import registry

# Neighbouring relations by the names that flags and reports have for them.
ADJACENCIES = {
  'zero_out': Relation.REPLACE_SPECIAL,
  'add_or_remove': Relation.ADD_OR_REMOVE_ONE,
  'replace_one': Relation.REPLACE_ONE,
}
# A cohort this much larger than one that was asked for is as good, relative.
_COHORT_TOLERANCE = 0.01
# Longest break or cycle: sums of two such numbers are 64-bit integers.
_MAX_CYCLE = 2**62
# Rounds up to which a matrix is held against what is said of it.
_MAX_LOOKED_AT = 1024
_NOT_SHARED = (
  'sampling amplifies privacy only if the rounds of a client do not share noise'
)
# What a sampling without separation is exchanged for.
_GROUPED = 'cyclic Poisson sampling in as many groups (--sampling=poisson --num_groups)'
# Most places of a client. Fewer are less private, so that this is a bound; with more,
# what accountants add for round-off would be more than the loss.
MAX_PLACES = 10**12


class OwnDpEvent(dp_accounting.DpEvent):
  """An event of this package, of which dp-accounting would leave out the fields."""

  def to_named_tuple(self) -> NoReturn:
    """Not for such an event."""
    raise ValueError(f'write it with accounting.events.to_json: {self}.')


@dataclasses.dataclass(frozen=True)
class AllocatedDpEvent(OwnDpEvent):
  """A client is in one of many steps at random (arXiv:2502.08202), or in none."""

  num_places: int  # Places that are equally likely.
  num_steps: int  # How many of them are steps, from 1.
  event: dp_accounting.DpEvent  # Of one step, if the client were known to be in it.

  def __post_init__(self) -> None:
    for name in ('num_places', 'num_steps'):
      self.__dict__[name] = checks.check_positive_int(name, getattr(self, name))
    if self.num_steps > self.num_places:
      most = self.num_places
      raise ValueError(f'num_steps must be at most {most}; got {self.num_steps}.')


@dataclasses.dataclass(frozen=True)
class TruncatedPoissonDpEvent(OwnDpEvent):
  """Noise on a Poisson sample, of which a random subset is kept if it is too large.

  For all data sets up to a number; dp-accounting 0.6 has it for one number of clients.
  """

  num_clients: int  # The most clients besides the one that data sets differ by.
  sampling_probability: float  # In (0, 1].
  max_clients_per_round: int  # The most that are kept.
  event: dp_accounting.DpEvent  # The noise, if all clients were in the round.

  def __post_init__(self) -> None:
    for name in ('num_clients', 'max_clients_per_round'):
      self.__dict__[name] = checks.check_positive_int(name, getattr(self, name))
    name, given = 'sampling_probability', self.sampling_probability
    self.__dict__[name] = checks.check_probability(name, given)


class MixtureDpEvent(OwnDpEvent):
  """All rounds of a matrix mechanism, of which a client is in some that it draws.

  A file has the strategy's checksum: what is read is accounted for by its bound.
  """

  strategy: Optional[strategies.Strategy]  # `None` if it is not known.
  noise_multiplier: float  # Standard deviation of z over the clip norm.
  bound: dp_accounting.DpEvent  # At most as private, of events that compose.
  strategy_checksum: str  # By default that of `strategy`.
  # Whether the bound is as good as the event, also where accountants read that itself.
  bound_is_tight: ClassVar[bool]

  def __post_init__(self) -> None:
    known = self.strategy_checksum if self.strategy is None else self.strategy.checksum
    if not known or self.strategy_checksum not in ('', known):
      raise ValueError(
        f'strategy_checksum is {self.strategy_checksum!r}, and the strategy has '
        f'{known!r}.'
      )
    self.__dict__['strategy_checksum'] = known


@dataclasses.dataclass(frozen=True)
class BallsInBinsDpEvent(MixtureDpEvent):
  """A client is in the rounds of a bin, drawn uniformly: j, j + b, ... for bin j."""

  bound_is_tight = True
  strategy: Optional[strategies.Strategy] = dataclasses.field(compare=False, repr=False)
  num_bins: int  # b.
  noise_multiplier: float
  bound: dp_accounting.DpEvent = dataclasses.field(hash=False)  # It can hold a list.
  strategy_checksum: str = ''


@dataclasses.dataclass(frozen=True)
class RandomAllocationDpEvent(MixtureDpEvent):
  """A client is in so many of all rounds; all sets of them are equally likely."""

  bound_is_tight = True
  # A strategy of independent noise.
  strategy: Optional[strategies.Strategy] = dataclasses.field(compare=False, repr=False)
  rounds_of_a_client: int  # k.
  noise_multiplier: float
  bound: dp_accounting.DpEvent = dataclasses.field(hash=False)  # It can hold a list.
  strategy_checksum: str = ''


@dataclasses.dataclass(frozen=True)
class BMinSepDpEvent(MixtureDpEvent):
  """A client that is free is in a round at random."""

  bound_is_tight = False
  strategy: Optional[strategies.Strategy] = dataclasses.field(compare=False, repr=False)
  # Rounds after which a client is free again, b; no fewer than the strategy has bands.
  min_separation: int
  sampling_probability: float  # Of a free client, p.
  noise_multiplier: float
  bound: dp_accounting.DpEvent = dataclasses.field(hash=False)  # It can hold a list.
  strategy_checksum: str = ''


class Noise(NamedTuple):
  """The noise of a mechanism, as far as the events of a scheme depend on it."""

  multiplier: float  # Its scale over what one client changes.
  event: Callable[[float], dp_accounting.DpEvent]  # Of one round, by that scale.
  # By which one of several bounds is chosen.
  epsilon: Callable[[dp_accounting.DpEvent], float]


class Scheme(abc.ABC):
  """Who takes part when, and what an accountant may assume about it."""

  name: ClassVar[str]  # In JSON.
  flag: ClassVar[str]  # The value of `--sampling`, and a schedule's name in JSON.
  data: ClassVar[type]  # What users make; by default the scheme itself.
  # Neighbouring relations that its events are valid for, its own first.
  relations: ClassVar[tuple[Relation, ...]]
  # Whether its guarantee rests on sampling, and is accounted for round by round.
  is_sampled: ClassVar[bool] = True
  # Whether all cohorts have one public size, though they are drawn in secret.
  has_public_sizes: ClassVar[bool] = False
  # Whether rounds add up; else what all of them cost is one event.
  composes: ClassVar[bool] = True
  json_names: ClassVar[dict[str, str]] = {}  # Of fields with another name in JSON.
  # The field that says how far apart rounds of a client are, if one does.
  separation: ClassVar[str] = ''
  # Noises whose events accountants read under it; `None` for all.
  known_noises: ClassVar[Optional[tuple[str, ...]]] = ('gaussian',)

  num_rounds: int  # Rounds in all, n.

  def __init_subclass__(cls) -> None:
    cls.data = cls.__dict__.get('data', cls)

  @property
  @abc.abstractmethod
  def limits(self) -> strategies.Participation:
    """In which rounds a client can take part at all, sampled or not."""

  @property
  def free_bands(self) -> Optional[int]:
    """Most bands with which rounds of a client share no noise, where they must not."""
    found: Optional[int] = getattr(self, self.separation or 'num_groups', None)
    return found

  @property
  def schedule_name(self) -> str:
    """The name of the schedule that draws the cohorts."""
    return self.flag

  def sensitivity_factor(self, relation: Relation) -> int:
    """How many clip norms a round's sum moves by if one client's data change."""
    return sensitivity_factor(relation)

  @abc.abstractmethod
  def check(self, strategy: strategies.Strategy) -> None:
    """Refuses a strategy, of as many rounds, whose events are not known."""

  def check_bands(self, option: str, num_bands: int) -> None:
    """Refuses so many bands if rounds of a client would share noise."""
    free = self.free_bands
    if free is None or num_bands <= free:
      return
    known = f' for {self.separation}={free}' if self.separation else ''
    instead = f'{self.separation}={num_bands}' if self.separation else _GROUPED
    raise ValueError(
      f'{option}={num_bands} is too many{known}: {_NOT_SHARED}. Use {option} of at '
      f'most {free}, or {instead}.'
    )

  def expected_cohort(self, num_clients: int) -> Optional[float]:
    """Clients that a round is expected to have; `None` if a scheme leaves it open."""
    del num_clients
    return None

  @property
  def largest_cohort(self) -> Optional[int]:
    """Most clients of a round; `None` if a scheme leaves it open."""
    found: Optional[int] = getattr(self, 'max_clients_per_round', None)
    return found

  def other_cohort(self, num_clients: int, cohort: float) -> Optional[float]:
    """Clients of a round, where they are not those that a scheme was made for."""
    has = self.expected_cohort(num_clients)
    if has is None or abs(has - cohort) <= _COHORT_TOLERANCE * cohort:
      return None
    return has

  def to_json(self) -> dict[str, Any]:
    """JSON-ready values that `from_json` reads back."""
    fields: dict[str, Any] = dataclasses.asdict(self)  # type: ignore[call-overload]
    named = {self.json_names.get(name, name): each for name, each in fields.items()}
    return {'schema': self.name, **named}


# Who takes part when, as users state it: limits, or a scheme with sampling.
Schema = Union[strategies.Participation, Scheme]


class SampledScheme(Scheme):
  """A scheme whose rounds draw clients in secret, and whose guarantee rests on it."""

  def __post_init__(self) -> None:
    for field in dataclasses.fields(self):  # type: ignore[arg-type]
      check: Any = checks.check_positive_int
      if field.type in (float, 'float'):
        check = checks.check_probability
      self.__dict__[field.name] = check(field.name, getattr(self, field.name))

  def check_clients(self, num_clients: int) -> None:
    """Refuses too few clients."""
    check_groups_have_clients(num_clients, getattr(self, 'num_groups', 1))

  @abc.abstractmethod
  def event(self, strategy: strategies.Strategy, noise: Noise) -> dp_accounting.DpEvent:
    """The event of all rounds of a strategy that `check` has let pass."""

  @abc.abstractmethod
  def round_events(
    self, strategy: strategies.Strategy, noise: Noise
  ) -> tuple[dp_accounting.DpEvent, ...]:
    """The event of each round: those up to any round compose to what they cost."""

  @abc.abstractmethod
  def drawing(self, seed: int, keys: np.ndarray) -> Callable[[int], np.ndarray]:
    """What gives the clients of a round, each by its own key, seed and scheme."""


def check_groups(
  strategy: strategies.Strategy, groups: int, separation: str = ''
) -> None:
  """Checks that rounds so far apart share no noise, also by C if it is small."""
  num_bands = getattr(strategy, 'num_bands', math.inf)  # Infinite unless banded.
  if num_bands > groups:
    kinds = registry.KINDS.values()
    with_bands = ' or '.join(kind.name for kind in kinds if kind.bands is not None)
    instead = f'num_bands of at most {separation}' if separation else _GROUPED
    raise ValueError(
      f'{_NOT_SHARED}; the {registry.name_of(strategy)} strategy has num_bands='
      f'{num_bands} and a client may be drawn again {groups} round(s) later. Use '
      f'independent noise (gaussian), {with_bands} with {instead}, balls in bins, or '
      'no sampling assumption.'
    )
  if strategy.num_rounds <= _MAX_LOOKED_AT:
    matrix = strategy.materialize()
    if len(matrix) != strategy.num_rounds or np.tril(matrix, -int(num_bands)).any():
      raise ValueError(
        f'the {strategy.kind} strategy has num_bands={num_bands}, but its C has '
        'entries further from the diagonal; num_bands must count the bands of C.'
      )


def check_groups_have_clients(num_clients: int, num_groups: int) -> None:
  """Refuses groups without clients."""
  if num_clients < num_groups:
    raise participation_lib.PopulationTooSmallError(
      f'num_clients={num_clients} leaves some of {num_groups} groups empty; take more '
      f'clients, or num_groups of at most {num_clients}.'
    )


def check_cycle(name: str, value: int) -> None:
  """Checks a number of rounds that may be more than there are, such as of a break."""
  checks.check_within(name, checks.check_positive_int(name, value), 1, _MAX_CYCLE)


def check_mean_cohort(clients_per_round: float, most: float, turns: str = '') -> None:
  """Checks a mean number of clients in a round, of which there are so many."""
  if not 0 < clients_per_round <= most:
    raise ValueError(
      f'clients_per_round must be positive and at most num_clients{turns}, {most:g}; '
      f'got {clients_per_round:g}.'
    )


SCHEMES: dict[str, type[Scheme]] = {}  # Every scheme, by name; `register` adds to them.


def register(scheme: type[Scheme]) -> type[Scheme]:
  """Adds a scheme, for `of` and `from_json` to know; it can decorate its class."""
  for what in ('name', 'flag'):
    own = getattr(scheme, what)
    if own in [getattr(each, what) for each in SCHEMES.values()]:
      raise ValueError(f'the {what} {own!r} is taken by another scheme.')
  SCHEMES[scheme.name] = scheme
  return scheme


def of(schema: Schema) -> Any:
  """The scheme that is stated: itself, or limits, as a scheme without sampling."""
  for scheme in SCHEMES.values():
    if isinstance(schema, scheme.data):
      return schema if isinstance(schema, Scheme) else scheme(schema)  # type: ignore[call-arg]
  known = ', '.join(scheme.data.__name__ for scheme in SCHEMES.values())
  raise TypeError(f'participation must be one of {known}; got {schema!r}.')


def for_flag(value: str) -> type[Scheme]:
  """The scheme that a value of `--sampling` asks for, or ValueError if none does."""
  by_flag = {scheme.flag: scheme for scheme in SCHEMES.values()}
  if value not in by_flag:
    raise ValueError(f'unknown sampling {value!r}; known: {", ".join(by_flag)}.')
  return by_flag[value]


def limits_of(schema: Schema) -> strategies.Participation:
  """In which rounds a client can take part at all, sampled or not."""
  found: strategies.Participation = of(schema).limits
  return found


def is_sampled(schema: Schema) -> bool:
  """Whether a guarantee under a scheme rests on sampling."""
  return bool(of(schema).is_sampled)


def check_relation(schema: Schema, relation: Optional[Relation] = None) -> Relation:
  """Returns the relation, by default the scheme's own, if its events hold under it."""
  valid: tuple[Relation, ...] = of(schema).relations
  if relation is None:
    return valid[0]
  if relation not in valid:
    names = ' or '.join(f'adjacency={adjacency(each)}' for each in valid)
    raise ValueError(
      f'sampling={of(schema).flag} is not valid for adjacency={adjacency(relation)}; '
      f'take {names}.'
    )
  return relation


def sensitivity_factor(relation: Relation) -> int:
  """How many clip norms a sum moves by: two where one client is replaced by another."""
  return 2 if relation is Relation.REPLACE_ONE else 1


def adjacency(relation: Relation) -> str:
  """The name of a neighbouring relation, a key of `ADJACENCIES`."""
  return next(name for name, each in ADJACENCIES.items() if each is relation)


def to_json(schema: Schema) -> dict[str, Any]:
  """JSON-ready values that `from_json` reads back."""
  return dict(of(schema).to_json())


def from_json(data: dict[str, Any]) -> Any:
  """Reads what `to_json` wrote, or raises ValueError if it is none of the schemes."""
  if not isinstance(data, dict) or data.get('schema') not in SCHEMES:
    raise ValueError(f'not a participation scheme, of {sorted(SCHEMES)}: {data!r}.')
  scheme = SCHEMES[data['schema']]
  fields = {written: field for field, written in scheme.json_names.items()}
  values = {
    fields.get(name, name): value for name, value in data.items() if name != 'schema'
  }
  try:
    return scheme.data(**values)
  except TypeError as e:
    raise ValueError(f'the stored {data["schema"]} is not one: {e}') from e


def of_report(participation: dict[str, Any]) -> Any:
  """The scheme in a report's `participation`, which says more than its fields."""
  scheme = SCHEMES.get(participation.get('schema', ''))
  fields = dataclasses.fields(scheme.data) if scheme else ()
  names = scheme.json_names if scheme else {}
  own = ('schema', *(names.get(field.name, field.name) for field in fields))
  return from_json({name: participation[name] for name in own if name in participation})
