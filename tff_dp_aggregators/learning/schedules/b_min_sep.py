"""b-min-sep sampling: each free client is drawn by itself, and then has a break."""

import dataclasses
import itertools
import math
from collections.abc import Iterator
from typing import ClassVar

import numpy as np

from tff_dp_aggregators.accounting import schemas
from tff_dp_aggregators.learning.schedules import allocation
from tff_dp_aggregators.learning.schedules import draws

# More tries than there are rounds.
_MANY = 2.0**40


@dataclasses.dataclass(frozen=True)
class BMinSep(allocation.AllocationSchedule):
  """Every free client is in a round with probability p, and then free b rounds later.

  In the first b rounds a client is free from a random one on, such that all rounds have
  the same expected size. Rounds are drawn once, before the first, for each client by
  itself. One that was drawn and drops out has its break all the same.

  The mean is divided by a public constant, and not by the cohort's own size. Who
  knows the seed knows who is where: the guarantee, which rests on the sampling, is
  towards those who do not.

  Attributes:
    sampling: Rounds, probability p and separation b, as the accountant assumes them.
    num_clients: Clients that draw.
    seed: Same seed, same cohorts.
    dropouts: Who does not report; `None` if everybody does.
    clients_per_round: The mean's denominator; `None` for the expected size of a
      cohort.

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
    [[0, 1, 2], [3, 5, 7], [4], [0, 1, 2, 6]]
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

  def _draw(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """The first round of all clients, then the second of those that have one, and on.

    A client that is free tries its luck once a round, so a geometric number of times.
    """
    p, separation = self.sampling.sampling_probability, self.sampling.min_separation
    clients = np.arange(self.num_clients)
    free_from = np.zeros(len(clients), np.int64)
    late = draws.uniform(self._hashed('late')) >= 1 / (1 + (separation - 1) * p)
    if late.any():
      first = self._hashed('first', 0, late) % np.uint64(separation - 1)
      free_from[late] = 1 + first.astype(np.int64)
    for step in itertools.count():
      if not len(clients):
        break
      uniform = draws.uniform(self._hashed('tries', step, clients))
      tries, left = _geometric(p, uniform), self.num_rounds - free_from
      drawn = tries <= left  # Before they are added: it may be the largest number.
      clients, rounds = clients[drawn], (free_from + tries - 1)[drawn]
      yield clients, rounds
      free_from = rounds + separation


def _geometric(p: float, uniform: np.ndarray) -> np.ndarray:
  """Tries until the first success: int64, from uniform numbers in [0, 1)."""
  if p == 1:
    return np.ones(len(uniform), np.int64)
  tries = np.floor(np.log1p(-uniform) / math.log1p(-p)) + 1
  return np.minimum(tries, _MANY).astype(np.int64)
