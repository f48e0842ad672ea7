"""Cohorts of fixed size, drawn uniformly without replacement, in secret.

Replacing a client keeps the number of clients, which is public, so the neighbouring
relation is replace-one unless add-or-remove is asked for. Under both a sum moves by up
to two clip norms: a client that is drawn takes the place of another.
"""

import dataclasses
from typing import Callable, Optional

import dp_accounting
import numpy as np
from dp_accounting import NeighboringRelation as Relation

from tff_dp_aggregators.sampling import draws
from tff_dp_aggregators.sampling import scheme


@dataclasses.dataclass(frozen=True)
class FixedSizeSampling(scheme.RoundSampling):
  """Each round draws a cohort of the same size, uniformly without replacement."""

  name = 'fixed_size_sampling'
  flag = 'fixed_size'
  relations = (Relation.REPLACE_ONE, Relation.ADD_OR_REMOVE_ONE)
  has_public_sizes = True
  json_names = {'num_clients': 'population', 'clients_per_round': 'cohort'}

  num_rounds: int  # Rounds in all, n.
  # To draw from, the same in all rounds; public. Under add-or-remove, the fewest.
  num_clients: int
  clients_per_round: int  # Drawn for a round, at most `num_clients`.

  def __post_init__(self) -> None:
    super().__post_init__()
    if self.clients_per_round > self.num_clients:
      raise ValueError(
        f'clients_per_round must be at most num_clients={self.num_clients}; got '
        f'{self.clients_per_round}.'
      )

  def sensitivity_factor(self, relation: Relation) -> int:
    """Two: another's contribution goes where the client's comes."""
    return 2

  @property
  def largest_cohort(self) -> Optional[int]:
    """All have this size."""
    return self.clients_per_round

  def sampled(self, on_everybody: dp_accounting.DpEvent) -> dp_accounting.DpEvent:
    """The noise on a sample without replacement."""
    return dp_accounting.SampledWithoutReplacementDpEvent(
      self.num_clients, self.clients_per_round, on_everybody
    )

  def expected_cohort(self, num_clients: int) -> float:
    """The cohort, whatever the number of clients."""
    return self.clients_per_round

  def drawing(self, seed: int, keys: np.ndarray) -> Callable[[int], np.ndarray]:
    """What draws a cohort, all cohorts of its size being equally likely.

    A cohort has the clients with the smallest hashes of their keys: a client that is
    replaced by another leaves all others' hashes as they are.
    """
    size = self.clients_per_round

    def of_round(round_num: int) -> np.ndarray:
      hashed = draws.hashed(self, seed, keys, 'round', round_num)
      drawn = np.argpartition(hashed, size - 1)[:size]
      return drawn[np.argsort(hashed[drawn])]

    return of_round
