"""What a participation schema has to say about itself, and what all have in common.

A schema is plain data (a frozen dataclass). Its `Kind` says what the data means: events
and the neighbouring relations they are right under, and the words, flags and rows that
reports, programs and comparisons have for it. `registry` lists the kinds.
"""

import abc
import dataclasses
from typing import Any, Callable, ClassVar, Generic, Optional, Protocol, TypeVar, Union

import dp_accounting
from dp_accounting import NeighboringRelation as Relation

from tff_dp_aggregators import strategies
from tff_dp_aggregators.accounting import events
from tff_dp_aggregators.accounting import noises
from tff_dp_aggregators.accounting.accountants import bands

# Neighbouring relations by the names that flags and reports have for them.
ADJACENCIES = {
  'zero_out': Relation.REPLACE_SPECIAL,
  'add_or_remove': Relation.ADD_OR_REMOVE_ONE,
  'replace_one': Relation.REPLACE_ONE,
}


class Schema(Protocol):
  """Who takes part when: a dataclass that a `Kind` is registered for."""

  @property
  def num_rounds(self) -> int:
    """Rounds in all, n."""


# The schema that a kind is of.
S = TypeVar('S', bound=Schema)


@dataclasses.dataclass(frozen=True)
class Flag:
  """A flag of the programs that schemas are stated with.

  Attributes:
    name: Without dashes. Kinds that share a flag have the same `Flag`.
    type: `int`, `float` or `bool`; a bool is False unless given.
    help: What it says.
    default: What stands for it where it is left out, in words; programs that put
      something else there say so.
    arguments: Fields of the schema, or of its limits, that it states and that have
      another name, so that what is refused of them can be said of the flag.
  """

  name: str
  type: type
  help: str
  default: str = ''
  arguments: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Fact:
  """A line of a report about a schema.

  Attributes:
    term: What it is.
    value: Its value; a number is written with all its digits.
    meaning: What that means, in a few words; may be empty.
  """

  term: str
  value: Union[str, float]
  meaning: str = ''


@dataclasses.dataclass(frozen=True)
class Cohorts:
  """What a comparison of mechanisms knows of how clients may be drawn.

  Attributes:
    num_rounds: Rounds in all.
    population: Clients there are.
    cohort: Clients of a round.
    num_groups: Groups of clients that take turns, where they do.
  """

  num_rounds: int
  population: int
  cohort: int
  num_groups: int = 1


@dataclasses.dataclass(frozen=True)
class Offer:
  """Rows that a comparison of mechanisms has for a kind of schema.

  Attributes:
    name: Of the assumption, in the comparison's JSON.
    title: Of the assumption, after a mechanism's name; empty for none.
    line: Matplotlib's style of line: a name, or an offset with lengths of dashes.
    make: The schema for given cohorts; `None` for the limits of the task itself, which
      every comparison has.
    any_noise: Whether there are rows of all mechanisms, and not of those alone whose
      noise is independent.
    noise_for: With groups that take turns, so that banded noise may be used: about the
      noise multiplier, over the largest column norm, with which a schema is
      mu-Gaussian-DP, to choose the number of groups by; `None` without groups.
  """

  name: str
  title: str
  line: Any
  make: Optional[Callable[[Cohorts], Any]] = None
  any_noise: bool = False
  noise_for: Optional[Callable[[Any, float], float]] = None


class Kind(abc.ABC, Generic[S]):
  """Everything that the package knows about one kind of schema.

  Attributes:
    name: In JSON.
    schema: The dataclass.
    relations: Neighbouring relations that its events are valid for, its own first.
    is_sampled: Whether its guarantee rests on sampling. A sampled schema is accounted
      for round by round, others as one Gaussian.
    has_public_sizes: Whether all cohorts have one size that anybody may know, though
      they are drawn in secret.
    composes: Whether rounds add up; else what all of them cost is one event.
    flag: Value of `--sampling` that asks for it.
    flag_help: What that assumes, for the help of `--sampling`.
    drawn: How a server draws clients under it, in a few words; empty without sampling.
    flags: Flags that it is stated with, besides the number of rounds.
    cohort_flags: Those of them that say how many clients a round has, without
      --population and --cohort.
    separation: The field that says how far apart rounds of a client are, with which a
      sampled schema may have as many bands; empty if none does.
    description: Of its JSON, for the JSON schema of reports.
    properties: JSON schemas of the dataclass's fields but for `num_rounds`.
    offers: What a comparison of mechanisms offers with it.
    not_offered: What plans with it instead, where that is nothing.
    known_noises: Kinds of noise whose events accountants read under it.
  """

  name: ClassVar[str]
  schema: ClassVar[type]
  relations: ClassVar[tuple[Relation, ...]]
  is_sampled: ClassVar[bool]
  has_public_sizes: ClassVar[bool] = False
  composes: ClassVar[bool] = True
  flag: ClassVar[str]
  flag_help: ClassVar[str]
  drawn: ClassVar[str]
  flags: ClassVar[tuple[Flag, ...]]
  cohort_flags: ClassVar[tuple[Flag, ...]] = ()
  separation: ClassVar[str] = ''
  description: ClassVar[str]
  properties: ClassVar[dict[str, dict[str, Any]]]
  offers: ClassVar[tuple[Offer, ...]]
  not_offered: ClassVar[str] = ''
  known_noises: ClassVar[tuple[noises.Noise, ...]] = (
    noises.GAUSSIAN,
    noises.LAPLACE,
  )

  def sensitivity_factor(self, relation: Relation) -> int:
    """How many clip norms a round's sum moves by if one client's data change."""
    return sensitivity_factor(relation)

  @abc.abstractmethod
  def limits(self, schema: S) -> strategies.Participation:
    """In which rounds a client can take part at all, sampled or not."""

  @abc.abstractmethod
  def check(self, strategy: strategies.Strategy, schema: S) -> None:
    """Checks that a strategy's events are known, given the same number of rounds.

    Raises:
      ValueError: If they are not.
    """

  def free_bands(self, schema: S) -> Optional[int]:
    """Most bands with which rounds of a client share no noise, where they must not."""
    del schema
    return None

  @abc.abstractmethod
  def event(
    self,
    strategy: strategies.Strategy,
    schema: S,
    noise_multiplier: float,
    noise: noises.Noise = noises.GAUSSIAN,
  ) -> dp_accounting.DpEvent:
    """The event of all rounds of a strategy that `check` has let pass.

    Args:
      strategy: Its strategy matrix C; the identity unless the noise is Gaussian.
      schema: Who takes part when.
      noise_multiplier: Scale of z over what one client changes a sum by: the clip norm,
        or twice that where it is replaced by another.
      noise: Of z.
    """

  def round_events(
    self,
    strategy: strategies.Strategy,
    schema: S,
    noise_multiplier: float,
    noise: noises.Noise = noises.GAUSSIAN,
  ) -> tuple[dp_accounting.DpEvent, ...]:
    """The event of each round, such that those up to any round compose to all of them.

    Args:
      strategy: As for `event`.
      schema: Who takes part when.
      noise_multiplier: As for `event`.
      noise: As for `event`.
    """
    if noise_multiplier == 0:
      return (dp_accounting.NonPrivateDpEvent(),) * schema.num_rounds
    if not noise.is_gaussian:
      # The densest pattern has the most of them after any round.
      rounds = set(self.limits(schema).rounds)
      one = noise.event(noise_multiplier)
      nothing = dp_accounting.NoOpDpEvent()
      return tuple(one if t in rounds else nothing for t in range(schema.num_rounds))
    each, _ = events.round_noise_multipliers(
      strategy, self.limits(schema), noise_multiplier
    )
    return tuple(
      events.simplify(dp_accounting.GaussianDpEvent(float(own))) for own in each
    )

  def spellings(self) -> dict[str, str]:
    """How the programs spell arguments: from the name of one to that of its flag."""
    return {
      argument: flag.name
      for flag in self.flags
      for argument in (flag.name, *flag.arguments)
    }

  def is_by_cohort(self, given: dict[str, Any], *always: str) -> bool:
    """Whether flags state it by population and cohort, and not by `cohort_flags`.

    Args:
      given: As for `from_flags`.
      *always: Names of flags that are needed in both ways.

    Raises:
      ValueError: If flags are missing, or it is stated in both ways.
    """
    own = [flag.name for flag in self.cohort_flags]
    both = (POPULATION.name, COHORT.name)
    own_given, both_given = (
      [name for name in names if name in given] for names in (own, both)
    )
    if own_given and both_given:
      raise ValueError(
        f'--{own_given[0]} does not go with --{both_given[0]}: --sampling={self.flag} '
        f'takes --{own_given[0]}, or --population and --cohort. Leave one of them out.'
      )
    missing = [f'--{name}' for name in always if name not in given]
    if len(both_given) == 1:
      lacks = next(name for name in both if name not in given)
      missing.append(f'--{lacks}, which goes with --{both_given[0]}')
    elif not own_given and not both_given:
      ways = ', or '.join((*(f'--{name}' for name in own), '--population and --cohort'))
      missing.append(ways)
    if missing:
      raise ValueError(f'--sampling={self.flag} needs {"; and ".join(missing)}.')
    return bool(both_given)

  @abc.abstractmethod
  def from_flags(self, num_rounds: int, given: dict[str, Any]) -> S:
    """The schema that flags state.

    Args:
      num_rounds: Rounds in all.
      given: Values of those of `flags` that have one.

    Raises:
      ValueError: If flags are missing, contradict each other or are out of range.
    """

  def cohort(self, schema: S, population: int) -> Optional[float]:
    """Clients that a round is expected to have, where the schema decides on it.

    Args:
      schema: Who takes part when.
      population: Clients there are.
    """
    del schema, population
    return None

  def other_cohort(self, schema: S, population: int, cohort: float) -> Optional[float]:
    """Clients of a round, where they are not those that a schema was made for.

    Args:
      schema: Who takes part when.
      population: Clients there are.
      cohort: Clients of a round that were asked for, in the mean.
    """
    has = self.cohort(schema, population)
    if has is None or abs(has - cohort) <= _COHORT_TOLERANCE * cohort:
      return None
    return has

  @abc.abstractmethod
  def assumption(self, schema: S) -> str:
    """What is assumed, for the statement and as a fact of the report."""

  @abc.abstractmethod
  def facts(self, schema: S) -> tuple[Fact, ...]:
    """Its numbers, for the report's section on participation."""

  @abc.abstractmethod
  def heading(self, schema: S) -> str:
    """What the rows of a comparison under it assume, and what their epsilon is for."""

  def sentence(self, schema: S) -> str:
    """What is assumed, for the report's list of assumptions."""
    return self.assumption(schema)


class Sampling(Kind[S]):
  """A kind of schema in which every round is a Gaussian mechanism on a random sample.

  Sampling amplifies privacy only where the rounds of a client do not share noise: a
  sampled round of independent Gaussian noise is an event of its own. With correlated
  noise that needs a banded strategy and groups that take turns, at least as many as
  bands: the columns of C for a client's rounds then share no row, so what it adds in
  one of them is hidden by noise of its own (arXiv:2306.08153, Theorem 4).
  """

  is_sampled = True

  @abc.abstractmethod
  def groups(self, schema: S) -> int:
    """Groups that take turns; 1 if a client may be drawn for every round."""

  @abc.abstractmethod
  def sampled(
    self, schema: S, on_everybody: dp_accounting.DpEvent
  ) -> dp_accounting.DpEvent:
    """The event of one round, from that of its noise on everybody."""

  def limits(self, schema: S) -> strategies.Participation:
    """In which rounds a client may be drawn: those of its group."""
    groups = self.groups(schema)
    return strategies.Participation(schema.num_rounds, groups, fixed_epoch=groups > 1)

  def free_bands(self, schema: S) -> Optional[int]:
    """As many as there are groups."""
    return self.groups(schema)

  def check(self, strategy: strategies.Strategy, schema: S) -> None:
    """Checks that the noise of rounds that one client may be drawn for is independent.

    Raises:
      ValueError: If it is correlated, so that sampling does not help.
    """
    bands.check_groups(strategy, self.groups(schema), self.separation)

  def event(
    self,
    strategy: strategies.Strategy,
    schema: S,
    noise_multiplier: float,
    noise: noises.Noise = noises.GAUSSIAN,
  ) -> dp_accounting.DpEvent:
    """The event of a sampled round for each that a client may be drawn for.

    Its noise is relative to the largest column norm of C.
    """
    if noise_multiplier == 0:
      return dp_accounting.NonPrivateDpEvent()
    turns = self.limits(schema).possible_participations
    one = self._sampled_round(strategy, schema, noise_multiplier, noise)
    return dp_accounting.SelfComposedDpEvent(one, turns)

  def round_events(
    self,
    strategy: strategies.Strategy,
    schema: S,
    noise_multiplier: float,
    noise: noises.Noise = noises.GAUSSIAN,
  ) -> tuple[dp_accounting.DpEvent, ...]:
    """That of a sampled round where the first group has its turn, nothing elsewhere.

    Groups have no client in common, so it is one group's turns that add up; the first
    has had the most of them after any round.
    """
    if noise_multiplier == 0:
      return (dp_accounting.NonPrivateDpEvent(),) * schema.num_rounds
    one = self._sampled_round(strategy, schema, noise_multiplier, noise)
    groups = self.groups(schema)
    return tuple(
      dp_accounting.NoOpDpEvent() if this_round % groups else one
      for this_round in range(schema.num_rounds)
    )

  def _sampled_round(
    self,
    strategy: strategies.Strategy,
    schema: S,
    noise_multiplier: float,
    noise: noises.Noise,
  ) -> dp_accounting.DpEvent:
    column_norm = strategy.sensitivity(None)
    return self.sampled(schema, noise.event(noise_multiplier / column_norm))


class Allocation(Kind[S]):
  """A kind of schema in which a client's rounds are drawn together, before the first.

  What all rounds cost is one event that is not made of theirs: after the first one,
  all of it counts as spent, which holds as what follows only adds.
  """

  is_sampled = True
  composes = False

  @abc.abstractmethod
  def allocated(
    self, strategy: strategies.Strategy, schema: S, noise_multiplier: float
  ) -> dp_accounting.DpEvent:
    """The event of all rounds, with noise.

    Args:
      strategy: Its strategy matrix C.
      schema: Who takes part when.
      noise_multiplier: Standard deviation of z over the clip norm, above 0.
    """

  def of_this_cohort(self, schema: S, population: int, cohort: float) -> S:
    """A schema that was made for a cohort, if that is what it has.

    Args:
      schema: What was made.
      population: Clients there are.
      cohort: Clients of a round that were asked for, in the mean.

    Raises:
      ValueError: If it has others, as rounds of a client are whole numbers.
    """
    has = self.other_cohort(schema, population, cohort)
    if has is not None:
      near = float(round(has))
      if self.other_cohort(schema, population, near) is not None:
        near = has
      own = ''.join(
        f', which is --{flag.name}={getattr(schema, flag.name)}'
        for flag in self.cohort_flags
        if hasattr(schema, flag.name)
      )
      raise ValueError(
        f'--cohort={cohort:g} of --population={population} clients in '
        f'{schema.num_rounds} rounds does not fit --sampling={self.flag}, where a '
        f'client has whole numbers of rounds: the next larger one is '
        f'--cohort={near:.6g}{own}.'
      )
    return schema

  def event(
    self,
    strategy: strategies.Strategy,
    schema: S,
    noise_multiplier: float,
    noise: noises.Noise = noises.GAUSSIAN,
  ) -> dp_accounting.DpEvent:
    """That of `allocated`; the noise is Gaussian."""
    del noise
    if noise_multiplier == 0:
      return dp_accounting.NonPrivateDpEvent()
    return self.allocated(strategy, schema, noise_multiplier)

  def round_events(
    self,
    strategy: strategies.Strategy,
    schema: S,
    noise_multiplier: float,
    noise: noises.Noise = noises.GAUSSIAN,
  ) -> tuple[dp_accounting.DpEvent, ...]:
    """All of it in the first round, nothing in those that follow."""
    all_of_it = self.event(strategy, schema, noise_multiplier, noise)
    nothing = dp_accounting.NoOpDpEvent()
    return (all_of_it, *(nothing for _ in range(schema.num_rounds - 1)))


def sensitivity_factor(relation: Relation) -> int:
  """How many clip norms a sum moves by if one client's data change.

  Two where one client is replaced by another: one contribution goes, another comes.
  """
  return 2 if relation is Relation.REPLACE_ONE else 1


def adjacency(relation: Relation) -> str:
  """The name of a neighbouring relation, a key of `ADJACENCIES`."""
  return next(name for name, each in ADJACENCIES.items() if each is relation)


def run_noise_multiplier(noise_multiplier: float, relation: Relation) -> float:
  """The noise multiplier relative to what a client changes under a relation.

  Args:
    noise_multiplier: Standard deviation of z over the clip norm.
    relation: Neighbouring relation.

  Raises:
    ValueError: If `noise_multiplier` is out of range.
  """
  checked = events.check_noise_multiplier(noise_multiplier)
  return checked / sensitivity_factor(relation)


# A cohort this much larger than one that was asked for is as good, relative.
_COHORT_TOLERANCE = 0.01
# A flag of more than one kind.
POPULATION = Flag('population', int, 'Clients to draw from.')
# A flag of more than one kind; not whole if it is a mean.
COHORT = Flag('cohort', float, 'Clients of a round; for poisson, in the mean.')
