"""Poisson sampling: every client of a group is drawn by itself, in secret.

Clients are drawn independently, so one more of them changes nothing for the others: the
neighbouring relation is add-or-remove.
"""

import dataclasses
import math
from typing import Any

import dp_accounting
from dp_accounting import NeighboringRelation as Relation

from tff_dp_aggregators.accounting.schemas import base
from tff_dp_aggregators.base import checks


@dataclasses.dataclass(frozen=True)
class PoissonSampling:
  """Every client is drawn for a round independently of everything else.

  With `num_groups` above 1 it is cyclic: clients are put into groups of their own,
  once and independently of their data, and round t draws from group `t % num_groups`
  alone (arXiv:2306.08153, Algorithm 2).

  Attributes:
    num_rounds: Rounds in all, n.
    sampling_probability: Of a client of the round's group, in (0, 1].
    num_groups: Groups that take turns; 1 draws from everybody in every round.

  Raises:
    TypeError: If a number is not whole.
    ValueError: If a number is out of range.

  Example:
    >>> PoissonSampling.of_cohort(1000, population=50_000, cohort=100, num_groups=10)
    PoissonSampling(num_rounds=1000, sampling_probability=0.02, num_groups=10)
  """

  num_rounds: int
  sampling_probability: float
  num_groups: int = 1

  def __post_init__(self) -> None:
    for name in ('num_rounds', 'num_groups'):
      value = checks.check_positive_int(name, getattr(self, name))
      object.__setattr__(self, name, value)
    if not 0 < self.sampling_probability <= 1:
      raise ValueError(
        'sampling_probability must be above 0 and at most 1; got '
        f'{self.sampling_probability}.'
      )
    probability = float(self.sampling_probability)
    object.__setattr__(self, 'sampling_probability', probability)

  @classmethod
  def of_cohort(
    cls, num_rounds: int, population: int, cohort: float, num_groups: int = 1
  ) -> 'PoissonSampling':
    """The sampling that draws `cohort` clients a round in the mean.

    Args:
      num_rounds: Rounds in all.
      population: Clients in all groups together, of which the smallest has at least
        `population // num_groups`.
      cohort: Mean number of clients in a round.
      num_groups: Groups that take turns.

    Raises:
      TypeError: If a number is not whole.
      ValueError: If a number is out of range, or a group has fewer clients than
        `cohort`.
    """
    population = checks.check_positive_int('population', population)
    num_groups = checks.check_positive_int('num_groups', num_groups)
    smallest = population // num_groups
    if not 0 < cohort <= smallest:
      most = f'population={population}'
      if num_groups > 1:
        most = (
          f'{smallest}, the clients of the smallest of num_groups={num_groups} groups '
          f'of {most}'
        )
      raise ValueError(f'cohort must be positive and at most {most}; got {cohort:g}.')
    return cls(num_rounds, cohort / smallest, num_groups)

  @property
  def rounds_of_a_client(self) -> int:
    """Rounds in which one client may be drawn, at most."""
    return -(-self.num_rounds // self.num_groups)

  def rough_noise_multiplier(self, mu: float) -> float:
    """About the noise with which all rounds together are mu-Gaussian-DP.

    By the central limit, mu = q sqrt(T (exp(1 / sigma^2) - 1)) for T rounds that sample
    with probability q (arXiv:1911.11607). Good enough to choose by, and no guarantee.

    Args:
      mu: Positive.
    """
    per_round = (mu / self.sampling_probability) ** 2 / self.rounds_of_a_client
    return 1 / math.sqrt(math.log1p(per_round))


_PROBABILITY = base.Flag(
  'sampling_probability',
  float,
  'Probability of each client of a round, for poisson.',
)


class Poisson(base.Sampling[PoissonSampling]):
  """What accounting, reports and programs have to know of `PoissonSampling`."""

  name = 'poisson_sampling'
  schema = PoissonSampling
  relations = (Relation.ADD_OR_REMOVE_ONE,)
  flag = 'poisson'
  flag_help = (
    'Poisson sampling with --sampling_probability, or --population and --cohort'
  )
  drawn = 'each by itself'
  flags = (
    _PROBABILITY,
    base.POPULATION,
    base.COHORT,
    base.Flag(
      'num_groups',
      int,
      'Groups of clients that take turns, for cyclic Poisson sampling.',
      default='1',
      arguments=('min_separation',),
    ),
  )
  cohort_flags = (_PROBABILITY,)
  separation = 'num_groups'
  description = 'Each client drawn independently.'
  properties = {
    'sampling_probability': {
      'description': "Of each client of the round's group.",
      'type': 'number',
      'exclusiveMinimum': 0,
      'maximum': 1,
    },
    'num_groups': {
      'description': 'Groups of clients that take turns.',
      'type': 'integer',
      'minimum': 1,
    },
  }
  offers = (
    base.Offer(
      'poisson',
      'Poisson sampling',
      ':',
      lambda cohorts: PoissonSampling.of_cohort(
        cohorts.num_rounds, cohorts.population, cohorts.cohort
      ),
    ),
    base.Offer(
      'cyclic_poisson',
      'cyclic Poisson sampling',
      '--',
      lambda cohorts: PoissonSampling.of_cohort(
        cohorts.num_rounds, cohorts.population, cohorts.cohort, cohorts.num_groups
      ),
      noise_for=PoissonSampling.rough_noise_multiplier,
    ),
  )

  def groups(self, schema: PoissonSampling) -> int:
    """The schema's number of groups."""
    return schema.num_groups

  def sampled(
    self, schema: PoissonSampling, on_everybody: dp_accounting.DpEvent
  ) -> dp_accounting.DpEvent:
    """The noise on a Poisson sample."""
    return dp_accounting.PoissonSampledDpEvent(
      schema.sampling_probability, on_everybody
    )

  def cohort(self, schema: PoissonSampling, population: int) -> float:
    """The expected number of clients of the smallest group that are drawn.

    Args:
      schema: The sampling.
      population: Clients of all groups together.
    """
    return schema.sampling_probability * (population // schema.num_groups)

  def from_flags(self, num_rounds: int, given: dict[str, Any]) -> PoissonSampling:
    """The sampling that flags state, by its probability or by a mean cohort.

    Raises:
      ValueError: If it is stated in neither way or in both, or out of range.
    """
    groups = given.get('num_groups', 1)
    if self.is_by_cohort(given):
      return PoissonSampling.of_cohort(
        num_rounds, given['population'], given['cohort'], groups
      )
    return PoissonSampling(num_rounds, given[_PROBABILITY.name], groups)

  def assumption(self, schema: PoissonSampling) -> str:
    """Who is drawn with which probability, in secret."""
    group = 'all clients'
    if schema.num_groups > 1:
      group = (
        f'the clients of one of {schema.num_groups} groups, which take turns; the '
        'group of a client depends neither on data nor on which others there are'
      )
    return (
      f'Poisson sampling: each round draws from {group}, each client independently '
      f'with probability {schema.sampling_probability!r}, and keeps secret who was '
      'drawn'
    )

  def facts(self, schema: PoissonSampling) -> tuple[base.Fact, ...]:
    """Probability, groups, and rounds of a client."""
    return (
      base.Fact('sampling probability', schema.sampling_probability),
      base.Fact('groups that take turns', schema.num_groups),
      base.Fact(
        'rounds that one client may be drawn for', f'{schema.rounds_of_a_client}'
      ),
    )

  def heading(self, schema: PoissonSampling) -> str:
    """How clients are drawn, and that epsilon is for adding or removing one."""
    group = 'each client'
    if schema.num_groups > 1:
      group = f'{schema.num_groups} groups take turns and each client of the group'
    return (
      f'If {group} is drawn by itself with probability '
      f'{schema.sampling_probability:.4g}, in secret; epsilon is for adding or '
      'removing one:'
    )


# What the registry lists.
KIND = Poisson()
