"""Random allocation: each client is in so many rounds, drawn in secret."""

import dataclasses
import math
from typing import Any

import dp_accounting
from dp_accounting import NeighboringRelation as Relation

from tff_dp_aggregators import strategies
from tff_dp_aggregators.accounting import events
from tff_dp_aggregators.accounting import noises
from tff_dp_aggregators.accounting.schemas import allocation
from tff_dp_aggregators.accounting.schemas import base
from tff_dp_aggregators.base import checks
from tff_dp_aggregators.strategies import registry as strategy_registry


@dataclasses.dataclass(frozen=True)
class RandomAllocation:
  """Every client is in k of n rounds; all sets of k rounds are equally likely.

  (arXiv:2502.08202, 2602.17284.) Clients draw independently of each other, and nobody
  learns what they drew.

  Attributes:
    num_rounds: Rounds in all, n.
    rounds_of_a_client: Rounds of each client, k, at most `num_rounds`.

  Raises:
    TypeError: If a number is not whole.
    ValueError: If a number is out of range.

  Example:
    >>> RandomAllocation.of_cohort(1000, population=50_000, cohort=100)
    RandomAllocation(num_rounds=1000, rounds_of_a_client=2)
  """

  num_rounds: int
  rounds_of_a_client: int

  def __post_init__(self) -> None:
    for name in ('num_rounds', 'rounds_of_a_client'):
      value = checks.check_positive_int(name, getattr(self, name))
      object.__setattr__(self, name, value)
    if self.rounds_of_a_client > self.num_rounds:
      raise ValueError(
        f'rounds_of_a_client must be at most num_rounds={self.num_rounds}; got '
        f'{self.rounds_of_a_client}.'
      )

  @classmethod
  def of_cohort(
    cls, num_rounds: int, population: int, cohort: float
  ) -> 'RandomAllocation':
    """The fewest rounds of a client with `cohort` clients a round in the mean, or more.

    Args:
      num_rounds: Rounds in all.
      population: Clients there are.
      cohort: Mean number of clients in a round, at least.

    Raises:
      TypeError: If a number is not whole.
      ValueError: If a number is out of range.
    """
    num_rounds = checks.check_positive_int('num_rounds', num_rounds)
    population = checks.check_positive_int('population', population)
    if not 0 < cohort <= population:
      raise ValueError(
        f'cohort must be positive and at most population={population}; got {cohort:g}.'
      )
    return cls(num_rounds, math.ceil(num_rounds * cohort / population))


class Allocated(base.Allocation[RandomAllocation]):
  """What accounting, reports and programs have to know of `RandomAllocation`.

  With independent noise, k of n rounds are at most as easy to tell as k times one of
  floor(n / k): a uniform set of k rounds is one of each of k blocks of so many rounds,
  which are a random partition; to know the partition makes telling no harder, as H_a is
  jointly convex (arXiv:2502.08202, Lemma 3.2). With k = 1 any noise will do.
  """

  name = 'random_allocation'
  schema = RandomAllocation
  relations = (Relation.ADD_OR_REMOVE_ONE, Relation.REPLACE_SPECIAL)
  flag = 'random_allocation'
  flag_help = (
    'so many rounds of each client, drawn at random, with --rounds_of_a_client, or '
    '--population and --cohort'
  )
  drawn = 'each for so many rounds'
  known_noises = (noises.GAUSSIAN,)
  _ROUNDS = base.Flag(
    'rounds_of_a_client',
    int,
    'Rounds of each client, drawn at random, for random_allocation.',
  )
  flags = (_ROUNDS, base.POPULATION, base.COHORT)
  cohort_flags = (_ROUNDS,)
  description = 'Each client in so many rounds, drawn at random.'
  properties = {
    'rounds_of_a_client': {
      'description': 'Rounds of each client.',
      'type': 'integer',
      'minimum': 1,
    },
  }
  offers = (
    base.Offer(
      'random_allocation',
      'random allocation',
      (0, (5, 1)),
      lambda cohorts: RandomAllocation.of_cohort(
        cohorts.num_rounds, cohorts.population, cohorts.cohort
      ),
    ),
  )

  def limits(self, schema: RandomAllocation) -> strategies.Participation:
    """Any rounds, as many as the schema says."""
    return strategies.Participation(schema.num_rounds, 1, schema.rounds_of_a_client)

  def check(self, strategy: strategies.Strategy, schema: RandomAllocation) -> None:
    """Checks that noise is independent, or a client in one round.

    Raises:
      ValueError: If it is neither.
    """
    independent = strategy == strategies.Identity(strategy.num_rounds)
    if schema.rounds_of_a_client > 1 and not independent:
      raise ValueError(
        f'with {schema.rounds_of_a_client} rounds of a client, drawn independently of '
        'each other, nothing is known of correlated noise '
        f'({strategy_registry.name_of(strategy)}): the same noise may be in two of '
        'them. Take --sampling=balls_in_bins (schemas.BallsInBins), whose rounds are a '
        'cycle apart, or independent noise (gaussian).'
      )

  def allocated(
    self,
    strategy: strategies.Strategy,
    schema: RandomAllocation,
    noise_multiplier: float,
  ) -> dp_accounting.DpEvent:
    """As often as a client has rounds: one of so many.

    Args:
      strategy: Its strategy matrix C.
      schema: Who takes part when.
      noise_multiplier: Above 0.
    """
    times = schema.rounds_of_a_client
    if times == 1:
      return allocation.event(strategy, schema.num_rounds, noise_multiplier)
    places = schema.num_rounds // times
    one = dp_accounting.GaussianDpEvent(noise_multiplier / strategy.sensitivity(None))
    each = events.AllocatedDpEvent(places, places, one)
    return dp_accounting.SelfComposedDpEvent(each, times)

  def cohort(self, schema: RandomAllocation, population: int) -> float:
    """The expected number of clients of a round.

    Args:
      schema: The sampling.
      population: Clients there are.
    """
    return population * schema.rounds_of_a_client / schema.num_rounds

  def from_flags(self, num_rounds: int, given: dict[str, Any]) -> RandomAllocation:
    """The rounds of a client that flags state, as such or by a mean cohort.

    Raises:
      ValueError: If they are stated in neither way or in both, or out of range.
    """
    if not self.is_by_cohort(given):
      return RandomAllocation(num_rounds, given[self._ROUNDS.name])
    made = RandomAllocation.of_cohort(num_rounds, given['population'], given['cohort'])
    return self.of_this_cohort(made, given['population'], given['cohort'])

  def assumption(self, schema: RandomAllocation) -> str:
    """Who is in which rounds, in secret."""
    times = schema.rounds_of_a_client
    return (
      'random allocation: each client draws, independently of data and of other '
      f'clients, {times} of {schema.num_rounds} rounds, all sets of {times} being '
      'equally likely, takes part in these, and it is kept secret who is where'
    )

  def facts(self, schema: RandomAllocation) -> tuple[base.Fact, ...]:
    """Rounds of a client."""
    return (
      base.Fact(
        'rounds that one client is in',
        f'{schema.rounds_of_a_client}',
        f'drawn uniformly from all {schema.num_rounds}',
      ),
    )

  def heading(self, schema: RandomAllocation) -> str:
    """How clients are drawn, and that epsilon is for adding or removing one."""
    times = schema.rounds_of_a_client
    return (
      f'If each client draws {times} of {schema.num_rounds:,} rounds, in secret; '
      'epsilon is for adding or removing one:'
    )


# What the registry lists.
KIND = Allocated()
