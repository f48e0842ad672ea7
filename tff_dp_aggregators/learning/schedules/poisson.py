"""Poisson sampling: each client of the round's group is drawn by itself."""

import dataclasses
import functools
import math
from typing import Any, ClassVar, Optional

import numpy as np

from tff_dp_aggregators.accounting import schemas
from tff_dp_aggregators.base import checks
from tff_dp_aggregators.learning.schedules import base
from tff_dp_aggregators.learning.schedules import draws
from tff_dp_aggregators.learning.schedules import dropouts as dropouts_lib
from tff_dp_aggregators.strategies import participation as participation_lib


@dataclasses.dataclass(frozen=True)
class Poisson(base.Schedule):
  """Each round draws every client of its group independently, so cohorts vary in size.

  With several groups, round t draws from group `t % num_groups`, and a client's group
  is its number modulo `num_groups`: that depends neither on data nor on which other
  clients there are, as long as numbers stay with their clients.

  A cohort is drawn as its size, which is binomial, and a uniform subset of that size:
  the same distribution, at the cost of the cohort and not of the population. A cohort
  may be empty.

  The mean is divided by the expected size, which is public, and not by the cohort's
  own. Who knows the seed knows who was drawn: the guarantee, which rests on the
  sampling, is towards those who do not.

  Attributes:
    sampling: Rounds, probability and groups, as the accountant assumes them.
    num_clients: Clients of all groups together.
    seed: Same seed, same cohorts.
    dropouts: Who does not report; `None` if everybody does.
    clients_per_round: Expected size of a cohort of the smallest group.

  Raises:
    PopulationTooSmallError: If there are more groups than clients.
    TypeError: If an argument is not of its type.
    ValueError: If a number is out of range.

  Example:
    >>> sampling = schemas.PoissonSampling(3, sampling_probability=0.2, num_groups=2)
    >>> schedule = Poisson(sampling, num_clients=20, seed=1)
    >>> schedule.clients_per_round
    2.0
    >>> [sorted(schedule.cohort(round_num).tolist()) for round_num in range(3)]
    [[2, 12, 16], [3, 13], [0]]
  """

  kind: ClassVar[str] = 'poisson'

  sampling: schemas.PoissonSampling
  num_clients: int
  seed: int
  dropouts: Optional[dropouts_lib.Dropouts] = None
  clients_per_round: float = dataclasses.field(init=False)

  def __post_init__(self) -> None:
    if not self.serves(self.sampling):
      raise TypeError(
        'sampling must be an accounting.schemas.PoissonSampling; got '
        f'{self.sampling!r}.'
      )
    dropouts_lib.check_dropouts(self.dropouts)
    num_clients = checks.check_positive_int('num_clients', self.num_clients)
    if num_clients < self.sampling.num_groups:
      raise participation_lib.PopulationTooSmallError(
        f'num_clients={num_clients} leaves some of {self.sampling.num_groups} groups '
        f'empty. What would fit: num_clients of at least {self.sampling.num_groups}, '
        f'or num_groups of at most {num_clients}.'
      )
    object.__setattr__(self, 'num_clients', num_clients)
    object.__setattr__(self, 'seed', dropouts_lib.check_seed(self.seed))
    expected = self.sampling.sampling_probability * self._smallest_group
    object.__setattr__(self, 'clients_per_round', expected)

  @property
  def schema(self) -> schemas.PoissonSampling:
    """The sampling."""
    return self.sampling

  @property
  def enforced_by(self) -> str:
    """That the run draws so."""
    groups = ''
    if self.sampling.num_groups > 1:
      groups = f', in groups by its number modulo {self.sampling.num_groups}'
    return (
      "the simulation's client selection (learning.schedules.Poisson), which draws "
      f'each client by itself{groups}; the guarantee is towards those who do not know '
      'its seed'
    )

  @functools.cached_property
  def max_cohort(self) -> int:
    """Size of the largest cohort of all rounds."""
    rounds = range(self.num_rounds)
    if self.dropouts is None:
      return max(self._draw_size(this_round)[0] for this_round in rounds)
    return max(len(self.cohort(this_round)) for this_round in rounds)

  def attempts(self, round_num: int) -> tuple[base.Attempt, ...]:
    """The one attempt at a round.

    Args:
      round_num: The round, from 0.

    Raises:
      TypeError: If it is no whole number.
      ValueError: If it is out of range.
    """
    round_num = self.check_round(round_num)
    size, rng = self._draw_size(round_num)
    places = rng.choice(self._group_size(round_num), size=size, replace=False)
    groups = self.sampling.num_groups
    drawn = places * groups + round_num % groups
    return base.attempts_of(round_num, [drawn], self.dropouts)

  def _draw_size(self, round_num: int) -> tuple[int, np.random.Generator]:
    """How many are drawn, and the generator that says next who."""
    rng = draws.generator(self.seed, round_num)
    probability = self.sampling.sampling_probability
    return int(rng.binomial(self._group_size(round_num), probability)), rng

  def _group_size(self, round_num: int) -> int:
    """Clients of a round's group: every so manieth from its number on."""
    groups = self.sampling.num_groups
    return -(-(self.num_clients - round_num % groups) // groups)

  @property
  def _smallest_group(self) -> int:
    return self.num_clients // self.sampling.num_groups

  @classmethod
  def serves(cls, schema: Any) -> bool:
    """Poisson sampling."""
    return isinstance(schema, schemas.PoissonSampling)

  @classmethod
  def of_schema(
    cls,
    schema: Any,
    num_clients: int,
    clients_per_round: float,
    seed: int,
    *,
    dropouts: Optional[dropouts_lib.Dropouts] = None,
    reporting_goal: Optional[int] = None,
  ) -> 'Poisson':
    """The schedule of this sampling.

    Args:
      schema: The sampling.
      num_clients: Clients of all groups together.
      clients_per_round: Expected size of a cohort of the smallest group.
      seed: Same seed, same cohorts.
      dropouts: Who does not report; `None` if everybody does.
      reporting_goal: Refused if there is one.

    Raises:
      PopulationTooSmallError: If there are more groups than clients.
      TypeError: If an argument is not of its type.
      ValueError: If an argument does not fit the schema.
    """
    base.refuse_reporting_goal(reporting_goal)
    checks.check_number('clients_per_round', clients_per_round)
    made = cls(schema, num_clients, seed, dropouts)
    if not math.isclose(clients_per_round, made.clients_per_round):
      raise ValueError(
        f'clients_per_round must be {made.clients_per_round:g}: with '
        f'sampling_probability={schema.sampling_probability} so many of the '
        f'{made._smallest_group} clients of a group are expected; got '
        f'{clients_per_round:g}. Or plan the mechanism with PoissonSampling.of_cohort.'
      )
    return made
