"""Poisson sampling: every client of a group is drawn by itself, in secret.

Clients are drawn independently, so one more of them changes nothing for the others: the
neighbouring relation is add-or-remove.
"""

import dataclasses
import math
from typing import Callable

import dp_accounting
import numpy as np
from dp_accounting import NeighboringRelation as Relation

from tff_dp_aggregators.base import checks
from tff_dp_aggregators.sampling import draws
from tff_dp_aggregators.sampling import scheme
from tff_dp_aggregators.strategies import participation as participation_lib


@dataclasses.dataclass(frozen=True)
class PoissonSampling(scheme.RoundSampling):
  """Every client is drawn for a round independently of everything else.

  With `num_groups` above 1 it is cyclic: clients are put into groups of their own,
  once and independently of their data, and round t draws from group `t % num_groups`
  alone (arXiv:2306.08153, Algorithm 2).

  Example:
    >>> PoissonSampling.of_cohort(
    ...   1000, num_clients=50_000, clients_per_round=100, num_groups=10
    ... )
    PoissonSampling(num_rounds=1000, sampling_probability=0.02, num_groups=10)
  """

  name = 'poisson_sampling'
  flag = 'poisson'
  relations = (Relation.ADD_OR_REMOVE_ONE,)
  separation = 'num_groups'
  known_noises = ('gaussian', 'laplace')

  num_rounds: int  # Rounds in all, n.
  sampling_probability: float  # That of a client of the round's group, in (0, 1].
  num_groups: int = 1  # That take turns; 1 draws from everybody in every round.

  @classmethod
  def of_cohort(
    cls,
    num_rounds: int,
    num_clients: int,
    clients_per_round: float,
    num_groups: int = 1,
  ) -> 'PoissonSampling':
    """The sampling that draws so many clients a round in the mean.

    Of the clients of all groups the smallest has at least `num_clients // num_groups`.
    """
    num_clients = checks.check_positive_int('num_clients', num_clients)
    num_groups = checks.check_positive_int('num_groups', num_groups)
    smallest = num_clients // num_groups
    scheme.check_mean_cohort(clients_per_round, smallest, f' / {num_groups} groups')
    return cls(num_rounds, clients_per_round / smallest, num_groups)

  def rough_noise_multiplier(self, mu: float) -> float:
    """About the noise with which all rounds together are mu-Gaussian-DP.

    By the central limit, mu = q sqrt(T (exp(1 / sigma^2) - 1)) for T rounds that sample
    with probability q (arXiv:1911.11607). Good enough to choose by, and no guarantee.
    """
    per_round = (mu / self.sampling_probability) ** 2 / self.rounds_of_a_client
    return 1 / math.sqrt(math.log1p(per_round))

  def sampled(self, on_everybody: dp_accounting.DpEvent) -> dp_accounting.DpEvent:
    """The noise on a Poisson sample."""
    return dp_accounting.PoissonSampledDpEvent(self.sampling_probability, on_everybody)

  def expected_cohort(self, num_clients: int) -> float:
    """Clients of the smallest group that are expected to be drawn."""
    return self.sampling_probability * (num_clients // self.num_groups)

  def check_clients(self, num_clients: int) -> None:
    """Refuses groups without clients."""
    check_groups_have_clients(num_clients, self.num_groups)

  def drawing(self, seed: int, keys: np.ndarray) -> Callable[[int], np.ndarray]:
    """What draws each client of the round's group by itself: cohorts vary in size.

    With several groups, which of them a client is in follows from its own key and the
    seed alone, so groups differ in size. A cohort may be empty.
    """
    groups = self._groups(seed, keys)
    probability = rounded_down(self.sampling_probability)

    def of_round(round_num: int) -> np.ndarray:
      clients, their_keys = groups[round_num % self.num_groups]
      hashed = draws.hashed(self, seed, their_keys, 'round', round_num)
      return clients[draws.uniform(hashed) < probability]

    return of_round

  def _groups(self, seed: int, keys: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
    """Numbers and keys of each group's clients."""
    if self.num_groups == 1:
      return [(np.arange(len(keys)), keys)]
    hashed = draws.hashed(self, seed, keys, 'group')
    group = (hashed % np.uint64(self.num_groups)).astype(np.int64)
    by_group = np.argsort(group, kind='stable')
    ends = np.cumsum(np.bincount(group, minlength=self.num_groups))[:-1]
    return [(each, keys[each]) for each in np.split(by_group, ends)]


def check_groups_have_clients(num_clients: int, num_groups: int) -> None:
  """Refuses groups without clients."""
  if num_clients < num_groups:
    raise participation_lib.PopulationTooSmallError(
      f'num_clients={num_clients} leaves some of {num_groups} groups empty; take more '
      f'clients, or num_groups of at most {num_clients}.'
    )


def rounded_down(probability: float) -> float:
  """A probability as a multiple of 2^-53, which what is drawn is held against."""
  return math.floor(probability * 2**53) / 2**53
