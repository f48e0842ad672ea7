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

  With several groups, round t draws from group `t % num_groups`. Which group a client
  is in, and whether a round draws it, follows from its own key and the seed alone, so
  groups differ in size. A cohort may be empty.

  The mean is divided by a public constant, and not by the cohort's own size. Who
  knows the seed knows who was drawn: the guarantee, which rests on the sampling, is
  towards those who do not.

  Attributes:
    sampling: Rounds, probability and groups, as the accountant assumes them.
    num_clients: Clients of all groups together.
    seed: Same seed, same cohorts.
    dropouts: Who does not report; `None` if everybody does.
    clients_per_round: The mean's denominator, a public constant; `None` for the
      expected size of a cohort, which tells who knows the sampling how many clients
      there are.

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
    [[5, 7], [15], [1, 2, 5, 7, 9]]
  """

  kind: ClassVar[str] = 'poisson'

  sampling: schemas.PoissonSampling
  num_clients: int
  seed: int
  dropouts: Optional[dropouts_lib.Dropouts] = None
  clients_per_round: Optional[float] = None  # type: ignore[assignment]

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
    expected = schemas.kind_of(self.sampling).cohort(self.sampling, num_clients)
    base.set_denominator(self, expected)

  @property
  def schema(self) -> schemas.PoissonSampling:
    """The sampling."""
    return self.sampling

  @property
  def enforced_by(self) -> str:
    """That the run draws so."""
    groups = ''
    if self.sampling.num_groups > 1:
      groups = f', in one of {self.sampling.num_groups} groups, drawn once'
    return (
      "the simulation's client selection (learning.schedules.Poisson), which draws "
      f'each client by itself{groups}; the guarantee is towards those who do not know '
      'its seed'
    )

  def attempts(self, round_num: int) -> tuple[base.Attempt, ...]:
    """The one attempt at a round.

    Args:
      round_num: The round, from 0.

    Raises:
      TypeError: If it is no whole number.
      ValueError: If it is out of range.
    """
    round_num = self.check_round(round_num)
    clients, keys = self._groups[round_num % self.sampling.num_groups]
    hashed = draws.hashed(self.sampling, self.seed, keys, 'round', round_num)
    # Drawn with the probability, rounded down to a multiple of 2^-53.
    drawn = clients[draws.uniform(hashed) < self._rounded_down]
    return base.attempts_of(round_num, [drawn], self.dropouts, self.keys)

  @property
  def _rounded_down(self) -> float:
    return math.floor(self.sampling.sampling_probability * 2**53) / 2**53

  @functools.cached_property
  def _groups(self) -> list[tuple[np.ndarray, np.ndarray]]:
    """Numbers and keys of each group's clients."""
    num_groups = self.sampling.num_groups
    if num_groups == 1:
      return [(np.arange(self.num_clients), self.keys)]
    hashed = draws.hashed(self.sampling, self.seed, self.keys, 'group')
    group = (hashed % np.uint64(num_groups)).astype(np.int64)
    by_group = np.argsort(group, kind='stable')
    ends = np.cumsum(np.bincount(group, minlength=num_groups))[:-1]
    return [(each, self.keys[each]) for each in np.split(by_group, ends)]

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
      clients_per_round: The mean's denominator.
      seed: Same seed, same cohorts.
      dropouts: Who does not report; `None` if everybody does.
      reporting_goal: Refused if there is one.

    Raises:
      PopulationTooSmallError: If there are more groups than clients.
      TypeError: If an argument is not of its type.
      ValueError: If an argument does not fit the schema.
    """
    base.refuse_reporting_goal(reporting_goal)
    return cls(schema, num_clients, seed, dropouts, clients_per_round)
