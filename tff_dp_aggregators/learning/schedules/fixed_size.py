"""Cohorts of fixed size, drawn uniformly without replacement in every round."""

import dataclasses
import functools
from typing import Any, ClassVar, Optional

import numpy as np

from tff_dp_aggregators.accounting import schemas
from tff_dp_aggregators.learning.schedules import base
from tff_dp_aggregators.learning.schedules import draws
from tff_dp_aggregators.learning.schedules import dropouts as dropouts_lib


@dataclasses.dataclass(frozen=True)
class FixedSize(base.Schedule):
  """Each round draws so many clients, all cohorts of that size being equally likely.

  They are those with the smallest hashes of their keys: a client that is replaced by
  another leaves all others' hashes as they are.

  Rounds are independent of each other. Who knows the seed knows who was drawn: the
  guarantee, which rests on the sampling, is towards those who do not.

  Attributes:
    sampling: Rounds, population and cohort, as the accountant assumes them.
    seed: Same seed, same cohorts.
    dropouts: Who does not report; `None` if everybody does.

  Raises:
    TypeError: If an argument is not of its type.
    ValueError: If the seed is out of range.

  Example:
    >>> sampling = schemas.FixedSizeSampling(num_rounds=3, population=10, cohort=2)
    >>> FixedSize(sampling, seed=1).cohort(2).tolist()
    [3, 7]
  """

  kind: ClassVar[str] = 'fixed_size'

  sampling: schemas.FixedSizeSampling
  seed: int
  dropouts: Optional[dropouts_lib.Dropouts] = None
  num_clients: int = dataclasses.field(init=False)
  clients_per_round: int = dataclasses.field(init=False)

  def __post_init__(self) -> None:
    if not self.serves(self.sampling):
      raise TypeError(
        'sampling must be an accounting.schemas.FixedSizeSampling; got '
        f'{self.sampling!r}.'
      )
    dropouts_lib.check_dropouts(self.dropouts)
    object.__setattr__(self, 'seed', dropouts_lib.check_seed(self.seed))
    object.__setattr__(self, 'num_clients', self.sampling.population)
    object.__setattr__(self, 'clients_per_round', self.sampling.cohort)

  @property
  def schema(self) -> schemas.FixedSizeSampling:
    """The sampling."""
    return self.sampling

  @property
  def enforced_by(self) -> str:
    """That the run draws so."""
    return (
      "the simulation's client selection (learning.schedules.FixedSize), which draws "
      'each cohort uniformly without replacement; the guarantee is towards those who '
      'do not know its seed'
    )

  @functools.cached_property
  def max_cohort(self) -> int:
    """Clients drawn for a round; the largest number that report, with drop-outs."""
    if self.dropouts is None:
      return self.clients_per_round
    return max(len(self.cohort(this_round)) for this_round in range(self.num_rounds))

  def attempts(self, round_num: int) -> tuple[base.Attempt, ...]:
    """The one attempt at a round.

    Args:
      round_num: The round, from 0.

    Raises:
      TypeError: If it is no whole number.
      ValueError: If it is out of range.
    """
    round_num = self.check_round(round_num)
    hashed = draws.hashed(self.sampling, self.seed, self.keys, 'round', round_num)
    cohort = self.clients_per_round
    drawn = np.argpartition(hashed, cohort - 1)[:cohort]
    drawn = drawn[np.argsort(hashed[drawn])]
    return base.attempts_of(round_num, [drawn], self.dropouts, self.keys)

  @classmethod
  def serves(cls, schema: Any) -> bool:
    """Sampling of fixed size."""
    return isinstance(schema, schemas.FixedSizeSampling)

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
  ) -> 'FixedSize':
    """The schedule of this sampling.

    Args:
      schema: The sampling.
      num_clients: Its population.
      clients_per_round: Its cohort.
      seed: Same seed, same cohorts.
      dropouts: Who does not report; `None` if everybody does.
      reporting_goal: Refused if there is one.

    Raises:
      TypeError: If an argument is not of its type.
      ValueError: If an argument does not fit the schema.
    """
    base.refuse_reporting_goal(reporting_goal)
    stated = {
      'num_clients': (num_clients, schema.population),
      'clients_per_round': (clients_per_round, schema.cohort),
    }
    for name, (given, assumed) in stated.items():
      if given != assumed:
        raise ValueError(
          f'{name} must be {assumed}, which the sampling assumes; got {given}. Or plan '
          'the mechanism for another FixedSizeSampling.'
        )
    return cls(schema, seed, dropouts)
