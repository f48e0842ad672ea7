"""Balls in bins: each client draws its place in the cycle of rounds, and keeps it."""

import dataclasses
from collections.abc import Iterator
from typing import ClassVar

import numpy as np

from tff_dp_aggregators.accounting import schemas
from tff_dp_aggregators.learning.schedules import allocation


@dataclasses.dataclass(frozen=True)
class BallsInBins(allocation.AllocationSchedule):
  """Every client draws a bin by itself, and round t has those of bin t % cycle_length.

  Bins are drawn once, uniformly, and a round has the same clients in every cycle. Bins
  differ in size: to split the clients equally, as `ShuffledEpochs` does, would tie the
  place of a client to those of others. Of a cycle that is longer than the run, the last
  bins are in no round, and neither are their clients.

  The mean is divided by a public constant, and not by the cohort's own size. Who
  knows the seed knows who is where: the guarantee, which rests on the sampling, is
  towards those who do not.

  Attributes:
    sampling: Rounds and length of the cycle, as the accountant assumes them.
    num_clients: Clients that draw.
    seed: Same seed, same cohorts.
    dropouts: Who does not report; `None` if everybody does.
    clients_per_round: The mean's denominator; `None` for the expected size of a
      cohort.

  Raises:
    TypeError: If an argument is not of its type.
    ValueError: If a number is out of range.

  Example:
    >>> sampling = schemas.BallsInBins(num_rounds=4, cycle_length=2)
    >>> schedule = BallsInBins(sampling, num_clients=5, seed=1)
    >>> schedule.clients_per_round
    2.5
    >>> [schedule.cohort(round_num).tolist() for round_num in range(4)]
    [[1, 2, 3, 4], [0], [1, 2, 3, 4], [0]]
  """

  kind: ClassVar[str] = 'balls_in_bins'
  sampled_as: ClassVar[type] = schemas.BallsInBins

  sampling: schemas.BallsInBins

  @property
  def enforced_by(self) -> str:
    """That the run draws so."""
    return (
      "the simulation's client selection (learning.schedules.BallsInBins), which draws "
      'the place of each client in the cycle by itself, once; the guarantee is towards '
      'those who do not know its seed'
    )

  @property
  def _num_places(self) -> int:
    return min(self.sampling.cycle_length, self.num_rounds)

  def _draw(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    bins = self._hashed('bin') % np.uint64(self.sampling.cycle_length)
    yield np.arange(self.num_clients), bins.astype(np.int64)
