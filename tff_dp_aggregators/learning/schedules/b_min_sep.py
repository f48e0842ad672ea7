"""b-min-sep sampling: each free client is drawn by itself, and then has a break."""

import dataclasses
from collections.abc import Iterator
from typing import ClassVar

import numpy as np

from tff_dp_aggregators.accounting import schemas
from tff_dp_aggregators.learning.schedules import allocation


@dataclasses.dataclass(frozen=True)
class BMinSep(allocation.AllocationSchedule):
  """Every free client is in a round with probability p, and then free b rounds later.

  In the first b rounds a client is free from a random one on, such that all rounds have
  the same expected size. Rounds are drawn once, before the first, for each client by
  itself. One that was drawn and drops out has its break all the same.

  The mean is divided by the expected size, which is public, and not by the cohort's
  own. Who knows the seed knows who is where: the guarantee, which rests on the
  sampling, is towards those who do not.

  Attributes:
    sampling: Rounds, probability p and separation b, as the accountant assumes them.
    num_clients: Clients that draw.
    seed: Same seed, same cohorts.
    dropouts: Who does not report; `None` if everybody does.
    clients_per_round: Expected size of a cohort.

  Raises:
    TypeError: If an argument is not of its type.
    ValueError: If a number is out of range.

  Example:
    >>> sampling = schemas.BMinSepSampling(
    ...   4, sampling_probability=0.5, min_separation=3
    ... )
    >>> schedule = BMinSep(sampling, num_clients=8, seed=1)
    >>> schedule.clients_per_round
    2.0
    >>> [schedule.cohort(round_num).tolist() for round_num in range(4)]
    [[2, 4, 5, 7], [6], [], [1, 2, 3, 4, 5]]
  """

  kind: ClassVar[str] = 'b_min_sep'
  sampled_as: ClassVar[type] = schemas.BMinSepSampling

  sampling: schemas.BMinSepSampling

  @property
  def enforced_by(self) -> str:
    """That the run draws so."""
    return (
      "the simulation's client selection (learning.schedules.BMinSep), which draws "
      'each free client by itself and then gives it its break; the guarantee is '
      'towards those who do not know its seed'
    )

  @property
  def _num_places(self) -> int:
    return self.num_rounds

  def _draw(self, rng: np.random.Generator) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """The first round of all clients, then the second of those that have one, and on.

    A client that is free tries its luck once a round, so a geometric number of times.
    """
    p, separation = self.sampling.sampling_probability, self.sampling.min_separation
    clients = np.arange(self.num_clients)
    free_from = np.zeros(len(clients), np.int64)
    late = rng.random(len(clients)) >= 1 / (1 + (separation - 1) * p)
    free_from[late] = rng.integers(1, separation, size=np.count_nonzero(late))
    while len(clients):
      tries, left = rng.geometric(p, len(clients)), self.num_rounds - free_from
      drawn = tries <= left  # Before they are added: it may be the largest number.
      clients, rounds = clients[drawn], (free_from + tries - 1)[drawn]
      yield clients, rounds
      free_from = rounds + separation
