"""The interface of all schemes of participation, and their registry.

A scheme is a frozen dataclass. `of` wraps `strategies.Participation`, which are limits
without sampling, in `limits.Limits`, so that all schemes have the same interface.
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

# Neighbouring relations by their names in flags and reports.
ADJACENCIES = {
  'zero_out': Relation.REPLACE_SPECIAL,
  'add_or_remove': Relation.ADD_OR_REMOVE_ONE,
  'replace_one': Relation.REPLACE_ONE,
}
# Cohort sizes with at most this relative difference count as equal.
_COHORT_TOLERANCE = 0.01
# Longest separation or cycle, so that sums of two such numbers fit into 64 bits.
_MAX_CYCLE = 2**62
# Maximum number of rounds for which the bands of C are checked entry by entry.
_MAX_CHECKED_ROUNDS = 1024
# Cap on the places of a client. Fewer are less private, so that this is an upper bound;
# with more, the accountants' allowance for round-off would exceed the loss.
MAX_PLACES = 10**12


def check_fields(
  instance: Any, check_float: Callable[[str, Any], float] = checks.check_probability
) -> None:
  """Checks the whole numbers of a dataclass, and its floats, each by its own check."""
  by_type = {'int': checks.check_positive_int, 'float': check_float}
  for field in dataclasses.fields(instance):
    check: Any = by_type.get(getattr(field.type, '__name__', str(field.type)))
    if check:
      instance.__dict__[field.name] = check(field.name, getattr(instance, field.name))


def check_at_most(instance: Any, name: str, limit: str) -> None:
  """Checks that one field of a dataclass is not larger than another one."""
  value, most = getattr(instance, name), getattr(instance, limit)
  if value > most:
    raise ValueError(f'{name} must be at most {limit}={most}; got {value}.')


class OwnDpEvent(dp_accounting.DpEvent):
  """Base class of this package's events, which dp-accounting cannot serialise."""

  def __post_init__(self) -> None:
    check_fields(self)

  def to_named_tuple(self) -> NoReturn:
    """Always raises: dp-accounting would leave out the event's fields."""
    raise ValueError(f'write it with accounting.events.to_json: {self}.')


@dataclasses.dataclass(frozen=True)
class AllocatedDpEvent(OwnDpEvent):
  """A client is in a randomly drawn step (arXiv:2502.08202), or in none."""

  num_places: int  # Number of equally likely places.
  num_steps: int  # Number of places that are steps, at least 1.
  event: dp_accounting.DpEvent  # The event of a step that the client is known to be in.

  def __post_init__(self) -> None:
    super().__post_init__()
    check_at_most(self, 'num_steps', 'num_places')


@dataclasses.dataclass(frozen=True)
class TruncatedPoissonDpEvent(OwnDpEvent):
  """Noise on a Poisson sample that is cut to a random subset if it is too large.

  Holds for all data sets of at most `num_clients` besides the client in which they
  differ; the event in dp-accounting 0.6 is for one number of clients.
  """

  num_clients: int  # The maximum number.
  sampling_probability: float  # In (0, 1].
  max_clients_per_round: int  # Maximum number of clients that are kept.
  event: dp_accounting.DpEvent  # The noise without sampling.


class MixtureDpEvent(OwnDpEvent):
  """All rounds of a matrix mechanism in which a client is in rounds that it draws.

  Files have only the checksum of the strategy: an event that was read from a file is
  accounted for by its bound.
  """

  strategy: Optional[strategies.Strategy]  # `None` if it is not known.
  noise_multiplier: float  # Standard deviation of z over the clip norm.
  bound: dp_accounting.DpEvent  # A composable event that is at most as private.
  strategy_checksum: str  # By default the checksum of `strategy`.
  # Whether the bound is as good as the event, also for accountants that read the event.
  bound_is_tight: ClassVar[bool]

  def __post_init__(self) -> None:
    valid = self.strategy_checksum if self.strategy is None else self.strategy.checksum
    if not valid or self.strategy_checksum not in ('', valid):
      raise ValueError(
        f'strategy_checksum is {self.strategy_checksum!r}, and the strategy has '
        f'{valid!r}.'
      )
    self.__dict__['strategy_checksum'] = valid


@dataclasses.dataclass(frozen=True)
class BallsInBinsDpEvent(MixtureDpEvent):
  """A client is in rounds j, j + b, j + 2b, ..., for a bin j drawn uniformly."""

  bound_is_tight = True
  strategy: Optional[strategies.Strategy] = dataclasses.field(compare=False, repr=False)
  num_bins: int  # b.
  noise_multiplier: float
  bound: dp_accounting.DpEvent = dataclasses.field(hash=False)  # It can hold a list.
  strategy_checksum: str = ''


@dataclasses.dataclass(frozen=True)
class RandomAllocationDpEvent(MixtureDpEvent):
  """A client is in k of all rounds; all sets of k rounds are equally likely."""

  bound_is_tight = True
  # A strategy of independent noise.
  strategy: Optional[strategies.Strategy] = dataclasses.field(compare=False, repr=False)
  rounds_of_a_client: int  # k.
  noise_multiplier: float
  bound: dp_accounting.DpEvent = dataclasses.field(hash=False)  # It can hold a list.
  strategy_checksum: str = ''


@dataclasses.dataclass(frozen=True)
class BMinSepDpEvent(MixtureDpEvent):
  """A client is in each round with probability p, unless it was in a recent one."""

  bound_is_tight = False
  strategy: Optional[strategies.Strategy] = dataclasses.field(compare=False, repr=False)
  # Rounds until a client may be drawn again, b; at least the strategy's bands.
  min_separation: int
  sampling_probability: float  # Probability of a client that may be drawn, p.
  noise_multiplier: float
  bound: dp_accounting.DpEvent = dataclasses.field(hash=False)  # It can hold a list.
  strategy_checksum: str = ''


class Noise(NamedTuple):
  """The properties of a mechanism's noise on which the events of a scheme depend."""

  multiplier: float  # Scale of the noise over the change that one client causes.
  event: Callable[[float], dp_accounting.DpEvent]  # One round's event, by `multiplier`.
  # The epsilon of an event, by which the best of several bounds is chosen.
  epsilon: Callable[[dp_accounting.DpEvent], float]


class Scheme(abc.ABC):
  """Base class of schemes: who takes part when, and what accountants may assume."""

  name: ClassVar[str]  # The name in JSON.
  flag: ClassVar[str]  # The value of `--sampling`, and a schedule's name in JSON.
  data: ClassVar[type]  # The class that users make; by default the scheme itself.
  # Neighbouring relations for which its events are valid, the default first.
  relations: ClassVar[tuple[Relation, ...]]
  # Whether its guarantee relies on sampling, and is accounted for round by round.
  is_sampled: ClassVar[bool] = True
  # Whether all cohorts have the same public size, although they are drawn in secret.
  has_public_sizes: ClassVar[bool] = False
  # Whether the rounds' events compose; otherwise one event covers all rounds.
  composes: ClassVar[bool] = True
  json_names: ClassVar[dict[str, str]] = {}  # JSON names of fields, where they differ.
  # The field with the number of rounds after which a client may be drawn again, and may
  # not share noise; `None` if it may.
  drawn_again_after: ClassVar[Optional[str]]
  # Kinds of noise for which accountants read its events; `None` for all.
  known_noises: ClassVar[Optional[tuple[str, ...]]] = ('gaussian',)

  num_rounds: int  # Rounds in all, n.

  def __init_subclass__(cls) -> None:
    cls.data = cls.__dict__.get('data', cls)

  @property
  @abc.abstractmethod
  def limits(self) -> strategies.Participation:
    """In which rounds a client can take part at all, sampled or not."""

  @property
  def schedule_name(self) -> str:
    """The name of the schedule that draws the cohorts."""
    return self.flag

  def sensitivity_factor(self, relation: Relation) -> int:
    """By how many clip norms a round's sum changes if one client's data change."""
    return sensitivity_factor(relation)

  def check(self, strategy: strategies.Strategy) -> None:
    """Raises ValueError if a strategy's events are not known; it has `num_rounds`."""
    if self.drawn_again_after is not None:
      check_groups(strategy, getattr(self, self.drawn_again_after))

  def expected_cohort(self, num_clients: int) -> Optional[float]:
    """Expected number of clients in a round; `None` if the scheme leaves it open."""
    del num_clients
    return None

  @property
  def largest_cohort(self) -> Optional[int]:
    """Maximum number of clients in a round; `None` if the scheme leaves it open."""
    largest: Optional[int] = getattr(self, 'max_clients_per_round', None)
    return largest

  def other_cohort(self, num_clients: int, cohort: float) -> Optional[float]:
    """Expected clients of a round if they differ from `cohort`; otherwise `None`."""
    expected = self.expected_cohort(num_clients)
    if expected is None or abs(expected - cohort) <= _COHORT_TOLERANCE * cohort:
      return None
    return expected

  def to_json(self) -> dict[str, Any]:
    """JSON-ready values for `from_json`."""
    fields: dict[str, Any] = dataclasses.asdict(self)  # type: ignore[call-overload]
    named = {self.json_names.get(name, name): each for name, each in fields.items()}
    return {'schema': self.name, **named}


# Participation as users state it: limits, or a scheme with sampling.
Schema = Union[strategies.Participation, Scheme]


class SampledScheme(Scheme):
  """A scheme that draws clients in secret, on which its guarantee relies."""

  def __post_init__(self) -> None:
    check_fields(self)

  @abc.abstractmethod
  def event(self, strategy: strategies.Strategy, noise: Noise) -> dp_accounting.DpEvent:
    """The event of all rounds of a strategy that passed `check`."""

  @abc.abstractmethod
  def round_events(
    self, strategy: strategies.Strategy, noise: Noise
  ) -> tuple[dp_accounting.DpEvent, ...]:
    """The event of each round; those of rounds 0 to t compose to their privacy cost."""

  @abc.abstractmethod
  def drawing(self, seed: int, keys: np.ndarray) -> Callable[[int], np.ndarray]:
    """Returns the function that draws a round: each client by key, seed and scheme."""


def check_groups(strategy: strategies.Strategy, groups: int) -> None:
  """Checks that rounds `groups` apart share no noise; looks at C itself if small."""
  num_bands = getattr(strategy, 'num_bands', math.inf)  # Infinite unless banded.
  if num_bands > groups:
    kinds = registry.KINDS.values()
    with_bands = ' or '.join(kind.name for kind in kinds if kind.bands is not None)
    raise ValueError(
      'sampling amplifies privacy only if the rounds of a client do not share noise; '
      f'the {registry.name_of(strategy)} strategy has num_bands={num_bands} and a '
      f'client may be drawn again {groups} round(s) later. Use independent noise '
      f'(gaussian), {with_bands} with as many bands or fewer, cyclic Poisson sampling '
      'in as many groups (--sampling=poisson --num_groups), balls in bins, or no '
      'sampling assumption.'
    )
  if strategy.num_rounds <= _MAX_CHECKED_ROUNDS:
    matrix = strategy.materialize()
    if len(matrix) != strategy.num_rounds or np.tril(matrix, -int(num_bands)).any():
      raise ValueError(
        f'the {strategy.kind} strategy has num_bands={num_bands}, but its C has '
        'entries further from the diagonal; num_bands must count the bands of C.'
      )


def check_groups_have_clients(num_clients: int, num_groups: int) -> None:
  """Raises PopulationTooSmallError if a group would have no clients."""
  if num_clients < num_groups:
    raise participation_lib.PopulationTooSmallError(
      f'num_clients={num_clients} leaves some of {num_groups} groups empty; take more '
      f'clients, or num_groups of at most {num_clients}.'
    )


def check_cycle(name: str, value: int) -> None:
  """Checks a separation or cycle length, which may exceed the number of rounds."""
  checks.check_within(name, checks.check_positive_int(name, value), 1, _MAX_CYCLE)


def check_mean_cohort(clients_per_round: float, upper: float, suffix: str = '') -> None:
  """Checks the expected number of clients in a round against their maximum."""
  if not 0 < clients_per_round <= upper:
    raise ValueError(
      f'clients_per_round must be positive and at most num_clients{suffix}, {upper:g}; '
      f'got {clients_per_round:g}.'
    )


SCHEMES: dict[str, type[Scheme]] = {}  # All schemes, by name; see `register`.


def register(scheme: type[Scheme]) -> type[Scheme]:
  """Registers a scheme for `of` and `from_json`; usable as a class decorator."""
  for attribute in ('name', 'flag'):
    value = getattr(scheme, attribute)
    if value in [getattr(each, attribute) for each in SCHEMES.values()]:
      raise ValueError(f'the {attribute} {value!r} is taken by another scheme.')
  SCHEMES[scheme.name] = scheme
  return scheme


def of(schema: Schema) -> Any:
  """Returns a scheme as it is, and limits as a scheme without sampling."""
  for scheme in SCHEMES.values():
    if isinstance(schema, scheme.data):
      return schema if isinstance(schema, Scheme) else scheme(schema)  # type: ignore[call-arg]
  known = ', '.join(scheme.data.__name__ for scheme in SCHEMES.values())
  raise TypeError(f'participation must be one of {known}; got {schema!r}.')


def for_flag(value: str) -> type[Scheme]:
  """The scheme for a value of `--sampling`; raises ValueError if there is none."""
  by_flag = {scheme.flag: scheme for scheme in SCHEMES.values()}
  if value not in by_flag:
    raise ValueError(f'unknown sampling {value!r}; known: {", ".join(by_flag)}.')
  return by_flag[value]


def limits_of(schema: Schema) -> strategies.Participation:
  """In which rounds a client can take part at all, sampled or not."""
  limits: strategies.Participation = of(schema).limits
  return limits


def is_sampled(schema: Schema) -> bool:
  """Whether the guarantee under a scheme relies on sampling."""
  return bool(of(schema).is_sampled)


def check_relation(schema: Schema, relation: Optional[Relation] = None) -> Relation:
  """Returns the relation (default: the scheme's first) if the scheme supports it."""
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
  """By how many clip norms a sum changes: two if a client is replaced, else one."""
  return 2 if relation is Relation.REPLACE_ONE else 1


def adjacency(relation: Relation) -> str:
  """The name of a neighbouring relation, a key of `ADJACENCIES`."""
  return next(name for name, each in ADJACENCIES.items() if each is relation)


def to_json(schema: Schema) -> dict[str, Any]:
  """JSON-ready values for `from_json`."""
  return dict(of(schema).to_json())


def from_json(data: dict[str, Any]) -> Any:
  """Makes a scheme from the values of `to_json`; raises ValueError if it is none."""
  if not isinstance(data, dict) or data.get('schema') not in SCHEMES:
    raise ValueError(
      f'not one of the participation schemes {sorted(SCHEMES)}: {data!r}.'
    )
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
  """The scheme in a report's `participation`, which has additional values."""
  scheme = SCHEMES.get(participation.get('schema', ''))
  fields = dataclasses.fields(scheme.data) if scheme else ()
  names = scheme.json_names if scheme else {}
  own = ('schema', *(names.get(field.name, field.name) for field in fields))
  return from_json({name: participation[name] for name in own if name in participation})
