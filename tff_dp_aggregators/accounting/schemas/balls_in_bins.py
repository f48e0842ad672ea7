"""Balls in bins: a client's place in the cycle is drawn once, in secret."""

import dataclasses
from typing import Any

import dp_accounting
from dp_accounting import NeighboringRelation as Relation

from tff_dp_aggregators import strategies
from tff_dp_aggregators.accounting import noises
from tff_dp_aggregators.accounting.accountants import bands
from tff_dp_aggregators.accounting.schemas import allocation
from tff_dp_aggregators.accounting.schemas import base
from tff_dp_aggregators.base import checks


@dataclasses.dataclass(frozen=True)
class BallsInBins:
  """Every client draws one place in a cycle of rounds, and keeps it in every cycle.

  Who drew place j takes part in the rounds j, j + b, j + 2b, ... (arXiv:2410.06266,
  2412.16802). Rounds of a client are b apart, as in fixed epochs; which they are,
  nobody learns.

  Attributes:
    num_rounds: Rounds in all, n.
    cycle_length: Rounds of a cycle, b. If they are more than `num_rounds`, some clients
      are in no round.

  Raises:
    TypeError: If a number is not whole.
    ValueError: If a number is less than 1.

  Example:
    >>> BallsInBins.of_cohort(1000, population=50_000, cohort=100)
    BallsInBins(num_rounds=1000, cycle_length=500)
  """

  num_rounds: int
  cycle_length: int

  def __post_init__(self) -> None:
    for name in ('num_rounds', 'cycle_length'):
      value = checks.check_positive_int(name, getattr(self, name))
      object.__setattr__(self, name, value)
    bands.check_cycle('cycle_length', self.cycle_length)

  @classmethod
  def of_cohort(cls, num_rounds: int, population: int, cohort: float) -> 'BallsInBins':
    """The longest cycle whose rounds have `cohort` clients in the mean, or more.

    Args:
      num_rounds: Rounds in all.
      population: Clients there are.
      cohort: Mean number of clients in a round, at least.

    Raises:
      TypeError: If a number is not whole.
      ValueError: If a number is out of range.
    """
    population = checks.check_positive_int('population', population)
    if not 0 < cohort <= population:
      raise ValueError(
        f'cohort must be positive and at most population={population}; got {cohort:g}.'
      )
    return cls(num_rounds, int(population // cohort))

  @property
  def rounds_of_a_client(self) -> int:
    """Rounds in which one client may be, at most."""
    return -(-self.num_rounds // self.cycle_length)


class Bins(base.Allocation[BallsInBins]):
  """What accounting, reports and programs have to know of `BallsInBins`."""

  name = 'balls_in_bins'
  schema = BallsInBins
  relations = (Relation.ADD_OR_REMOVE_ONE, Relation.REPLACE_SPECIAL)
  flag = 'balls_in_bins'
  flag_help = (
    'one place in a cycle for each client, drawn at random, with --cycle_length, or '
    '--population and --cohort'
  )
  drawn = 'each for one place in every cycle'
  known_noises = (noises.GAUSSIAN,)
  _CYCLE = base.Flag(
    'cycle_length',
    int,
    'Rounds of a cycle, in each of which a client is once, for balls_in_bins.',
    arguments=('min_separation',),
  )
  flags = (_CYCLE, base.POPULATION, base.COHORT)
  cohort_flags = (_CYCLE,)
  description = 'Each client in one place of every cycle, drawn once.'
  properties = {
    'cycle_length': {
      'description': 'Rounds of a cycle.',
      'type': 'integer',
      'minimum': 1,
    },
  }
  offers = (
    base.Offer(
      'balls_in_bins',
      'balls in bins',
      (0, (3, 1, 1, 1)),
      lambda cohorts: BallsInBins.of_cohort(
        cohorts.num_rounds, cohorts.population, cohorts.cohort
      ),
      any_noise=True,
    ),
  )

  def limits(self, schema: BallsInBins) -> strategies.Participation:
    """The rounds of a client whose place is known: fixed epochs."""
    return allocation.bins_as_limits(schema.num_rounds, schema.cycle_length)

  def check(self, strategy: strategies.Strategy, schema: BallsInBins) -> None:
    """Nothing to check: there is a bound for every strategy."""

  def allocated(
    self, strategy: strategies.Strategy, schema: BallsInBins, noise_multiplier: float
  ) -> dp_accounting.DpEvent:
    """That of `allocation`.

    Args:
      strategy: Its strategy matrix C.
      schema: Who takes part when.
      noise_multiplier: Above 0.
    """
    return allocation.event(strategy, schema.cycle_length, noise_multiplier)

  def cohort(self, schema: BallsInBins, population: int) -> float:
    """The expected number of clients of a round.

    Args:
      schema: The sampling.
      population: Clients there are.
    """
    return population / schema.cycle_length

  def from_flags(self, num_rounds: int, given: dict[str, Any]) -> BallsInBins:
    """The cycle that flags state, by its length or by a mean cohort.

    Raises:
      ValueError: If it is stated in neither way or in both, or out of range.
    """
    if not self.is_by_cohort(given):
      return BallsInBins(num_rounds, given[self._CYCLE.name])
    made = BallsInBins.of_cohort(num_rounds, given['population'], given['cohort'])
    return self.of_this_cohort(made, given['population'], given['cohort'])

  def assumption(self, schema: BallsInBins) -> str:
    """Who is in which rounds, in secret."""
    return (
      'balls in bins: each client draws, independently of data and of other clients, '
      f'one of {schema.cycle_length} places in a cycle, takes part in the round at '
      'that place in every cycle, and it is kept secret who is where'
    )

  def facts(self, schema: BallsInBins) -> tuple[base.Fact, ...]:
    """Length of the cycle, and rounds of a client."""
    return (
      base.Fact('rounds of a cycle', schema.cycle_length),
      base.Fact(
        'rounds that one client is in',
        f'{schema.rounds_of_a_client}',
        'at most; which ones depends on its place alone',
      ),
    )

  def heading(self, schema: BallsInBins) -> str:
    """How clients are drawn, and that epsilon is for adding or removing one."""
    return (
      f'If each client draws one place in a cycle of {schema.cycle_length:,} rounds, '
      'in secret, and keeps it; epsilon is for adding or removing one:'
    )


# What the registry lists.
KIND = Bins()
