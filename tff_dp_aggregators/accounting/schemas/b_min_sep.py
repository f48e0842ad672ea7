"""b-min-sep sampling: a free client is in a round by chance, and then has a break."""

import dataclasses
from typing import Any

import dp_accounting
from dp_accounting import NeighboringRelation as Relation

from tff_dp_aggregators import strategies
from tff_dp_aggregators.accounting import events
from tff_dp_aggregators.accounting import noises
from tff_dp_aggregators.accounting.accountants import bands
from tff_dp_aggregators.accounting.schemas import base
from tff_dp_aggregators.accounting.schemas import thinning
from tff_dp_aggregators.base import checks


@dataclasses.dataclass(frozen=True)
class BMinSepSampling:
  """Each free client is in a round with the same probability, then not for a while.

  (arXiv:2602.09338.) A client that was in round t is free again from round t + b on. It
  is free in round 0 with probability 1 / (1 + (b - 1) p), and else for the first time
  in one of the b - 1 rounds that follow, each alike, so that all rounds have the same
  expected number of clients. With b = 1 it is Poisson sampling.

  Attributes:
    num_rounds: Rounds in all, n.
    sampling_probability: Of a free client, p in (0, 1].
    min_separation: Smallest difference b of two rounds of a client.

  Raises:
    TypeError: If a number is not whole.
    ValueError: If a number is out of range.

  Example:
    >>> sampling = BMinSepSampling.of_cohort(
    ...   1000, population=50_000, cohort=100, min_separation=101
    ... )
    >>> sampling.sampling_probability, sampling.rate
    (0.0025, 0.002)
  """

  num_rounds: int
  sampling_probability: float
  min_separation: int

  def __post_init__(self) -> None:
    for name in ('num_rounds', 'min_separation'):
      value = checks.check_positive_int(name, getattr(self, name))
      object.__setattr__(self, name, value)
    bands.check_cycle('min_separation', self.min_separation)
    checks.check_number('sampling_probability', self.sampling_probability)
    if not 0 < self.sampling_probability <= 1:
      raise ValueError(
        'sampling_probability must be above 0 and at most 1; got '
        f'{self.sampling_probability}.'
      )
    probability = float(self.sampling_probability)
    object.__setattr__(self, 'sampling_probability', probability)

  @classmethod
  def of_cohort(
    cls, num_rounds: int, population: int, cohort: float, min_separation: int
  ) -> 'BMinSepSampling':
    """The sampling that has `cohort` clients a round in the mean.

    Args:
      num_rounds: Rounds in all.
      population: Clients there are.
      cohort: Mean number of clients in a round.
      min_separation: Smallest difference of two rounds of a client.

    Raises:
      TypeError: If a number is not whole.
      ValueError: If a number is out of range, or clients cannot be in so many rounds.
    """
    population = checks.check_positive_int('population', population)
    min_separation = checks.check_positive_int('min_separation', min_separation)
    if not 0 < cohort * min_separation <= population:
      raise ValueError(
        f'cohort must be positive and at most {population // min_separation}, as each '
        f'of population={population} clients is in one of min_separation='
        f'{min_separation} rounds at most; got {cohort:g}.'
      )
    free = population - (min_separation - 1) * cohort
    return cls(num_rounds, cohort / free, min_separation)

  @property
  def rate(self) -> float:
    """Probability that a client is in a round, the same for all rounds."""
    p = self.sampling_probability
    return p / (1 + (self.min_separation - 1) * p)


class BMinSep(base.Allocation[BMinSepSampling]):
  """What accounting, reports and programs have to know of `BMinSepSampling`.

  With at most b bands, the columns of C of a client's rounds share no row; so the pair
  of `allocation`, a mixture over sets of rounds, can be drawn from, and its likelihoods
  are computed by recursion. `thinning` has a bound without sampling error.
  """

  name = 'b_min_sep_sampling'
  schema = BMinSepSampling
  relations = (Relation.ADD_OR_REMOVE_ONE, Relation.REPLACE_SPECIAL)
  flag = 'b_min_sep'
  flag_help = (
    'each free client by itself, then with a break, with --sampled_separation and '
    '--free_probability, or --population and --cohort'
  )
  drawn = 'each free one by itself, then with a break'
  known_noises = (noises.GAUSSIAN,)
  _SEPARATION = base.Flag(
    'sampled_separation',
    int,
    'Smallest difference of two rounds of a client, for b_min_sep.',
    arguments=('min_separation',),
  )
  _PROBABILITY = base.Flag(
    'free_probability',
    float,
    'Probability of each client that is free in a round, for b_min_sep.',
    arguments=('sampling_probability',),
  )
  flags = (_SEPARATION, _PROBABILITY, base.POPULATION, base.COHORT)
  cohort_flags = (_PROBABILITY,)
  separation = 'min_separation'
  description = 'Each free client drawn independently, then not for a while.'
  properties = {
    'sampling_probability': {
      'description': 'Of each client that is free.',
      'type': 'number',
      'exclusiveMinimum': 0,
      'maximum': 1,
    },
    'min_separation': {
      'description': 'Smallest difference of two rounds of a client.',
      'type': 'integer',
      'minimum': 1,
    },
  }
  offers = ()
  not_offered = (
    'its separation is chosen together with the bands, which takes '
    'tff_dp_aggregators.accounting.planning.separations.best_separation; tff-dp-report '
    'and tff-dp-simulate take what it finds as --sampled_separation and --num_bands'
  )

  def limits(self, schema: BMinSepSampling) -> strategies.Participation:
    """Rounds that are so far apart."""
    return strategies.Participation(schema.num_rounds, schema.min_separation)

  def free_bands(self, schema: BMinSepSampling) -> int:
    """As many as rounds of a client are apart."""
    return schema.min_separation

  def check(self, strategy: strategies.Strategy, schema: BMinSepSampling) -> None:
    """Checks that the rounds of a client share no noise.

    Raises:
      ValueError: If they do.
    """
    bands.check_groups(strategy, schema.min_separation, self.separation)

  def allocated(
    self,
    strategy: strategies.Strategy,
    schema: BMinSepSampling,
    noise_multiplier: float,
  ) -> dp_accounting.DpEvent:
    """That of the mixture, with the bound of `thinning`.

    Args:
      strategy: Its strategy matrix C.
      schema: Who takes part when.
      noise_multiplier: Above 0.
    """
    return events.BMinSepDpEvent(
      strategy,
      schema.min_separation,
      schema.sampling_probability,
      noise_multiplier,
      thinning.event(
        strategy,
        schema.min_separation,
        schema.sampling_probability,
        noise_multiplier,
      ),
    )

  def cohort(self, schema: BMinSepSampling, population: int) -> float:
    """The expected number of clients of a round.

    Args:
      schema: The sampling.
      population: Clients there are.
    """
    return population * schema.rate

  def from_flags(self, num_rounds: int, given: dict[str, Any]) -> BMinSepSampling:
    """The sampling that flags state, by its probability or by a mean cohort.

    Raises:
      ValueError: If it is stated in neither way or in both, or out of range.
    """
    by_cohort = self.is_by_cohort(given, self._SEPARATION.name)
    separation = given[self._SEPARATION.name]
    if by_cohort:
      return BMinSepSampling.of_cohort(
        num_rounds, given['population'], given['cohort'], separation
      )
    return BMinSepSampling(num_rounds, given[self._PROBABILITY.name], separation)

  def assumption(self, schema: BMinSepSampling) -> str:
    """Who is drawn with which probability, in secret."""
    separation = schema.min_separation
    return (
      'b-min-sep sampling: each round has each client that was in none of the '
      f'{separation - 1} rounds before it, independently with probability '
      f'{schema.sampling_probability!r}, and keeps secret who was drawn; in the first '
      f'{separation} rounds a client is free from a random one on, such that each '
      'round has the same expected number of clients'
    )

  def facts(self, schema: BMinSepSampling) -> tuple[base.Fact, ...]:
    """Probability, separation, and how often a client is in a round."""
    return (
      base.Fact('probability of a free client', schema.sampling_probability),
      base.Fact('min separation', schema.min_separation),
      base.Fact('probability of a client in a round', schema.rate),
    )

  def heading(self, schema: BMinSepSampling) -> str:
    """How clients are drawn, and that epsilon is for adding or removing one."""
    return (
      'If each client is drawn by itself with probability '
      f'{schema.sampling_probability:.4g} where it was in none of '
      f'{schema.min_separation - 1:,} rounds before, in secret; epsilon is for adding '
      'or removing one:'
    )


# What the registry lists.
KIND = BMinSep()
