"""Random allocation: each client draws so many of all rounds."""

import dataclasses
from collections.abc import Iterator
from typing import ClassVar

import numpy as np

from tff_dp_aggregators.accounting import schemas
from tff_dp_aggregators.learning.schedules import allocation
from tff_dp_aggregators.learning.schedules import draws


@dataclasses.dataclass(frozen=True)
class RandomAllocation(allocation.AllocationSchedule):
  """Every client draws k of n rounds by itself, all sets of k being equally likely.

  Rounds are drawn once, before the first. With drop-outs a client is in fewer of them.

  The mean is divided by a public constant, and not by the cohort's own size. Who
  knows the seed knows who is where: the guarantee, which rests on the sampling, is
  towards those who do not.

  Attributes:
    sampling: Rounds, and rounds of a client, as the accountant assumes them.
    num_clients: Clients that draw.
    seed: Same seed, same cohorts.
    dropouts: Who does not report; `None` if everybody does.
    clients_per_round: The mean's denominator; `None` for the expected size of a
      cohort.

  Raises:
    TypeError: If an argument is not of its type.
    ValueError: If a number is out of range.

  Example:
    >>> sampling = schemas.RandomAllocation(num_rounds=4, rounds_of_a_client=2)
    >>> schedule = RandomAllocation(sampling, num_clients=5, seed=1)
    >>> schedule.clients_per_round
    2.5
    >>> [schedule.cohort(round_num).tolist() for round_num in range(4)]
    [[0, 1, 2, 3], [2, 4], [1, 3, 4], [0]]
  """

  kind: ClassVar[str] = 'random_allocation'
  sampled_as: ClassVar[type] = schemas.RandomAllocation

  sampling: schemas.RandomAllocation

  @property
  def enforced_by(self) -> str:
    """That the run draws so."""
    return (
      "the simulation's client selection (learning.schedules.RandomAllocation), which "
      'draws the rounds of each client by itself, once; the guarantee is towards those '
      'who do not know its seed'
    )

  @property
  def _num_places(self) -> int:
    return self.num_rounds

  def _draw(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """By Floyd's algorithm, for all clients at once.

    (Bentley, Floyd, CACM 1987.) Each step draws from one round more than that before,
    and takes the new one where what it drew is taken.
    """
    times, dtype = self.sampling.rounds_of_a_client, draws.number_type(self.num_rounds)
    clients = np.arange(self.num_clients)
    drawn: np.ndarray = np.empty((times, len(clients)), dtype)
    for step, new in enumerate(range(self.num_rounds - times, self.num_rounds)):
      drawn[step] = self._hashed('round', step) % np.uint64(new + 1)
      taken = (drawn[:step] == drawn[step]).any(axis=0)
      drawn[step, taken] = new
      yield clients, drawn[step]
