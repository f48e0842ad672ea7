"""Fixed epochs: one shuffled order of the clients, gone through again and again."""

import dataclasses
import functools
from typing import Any, ClassVar

import numpy as np

from tff_dp_aggregators import strategies
from tff_dp_aggregators.learning.schedules import draws
from tff_dp_aggregators.learning.schedules import dropouts as dropouts_lib
from tff_dp_aggregators.learning.schedules import limits


@dataclasses.dataclass(frozen=True)
class ShuffledEpochs(limits.LimitsSchedule):
  """Clients are shuffled once, and every epoch goes through them in that order.

  `Participation(fixed_epoch=True)` says that rounds of a client differ by multiples of
  `min_separation`, the rounds of an epoch. That is true only if each client has the
  same place in every epoch. A new shuffle for each epoch would let a client come last
  in one and first in the next, and so keep no separation at all.

  Where there are more clients than an epoch takes, those that share a place take turns,
  so that each comes about equally often.

  Attributes:
    participation: Fixed epochs of `min_separation` rounds, and how many rounds in all.
    num_clients: Clients to choose from; `min_separation * clients_per_round` of them
      fill an epoch.
    clients_per_round: Clients asked for a round.
    seed: Same seed, same cohorts.
    dropouts: Who does not report; `None` if everybody does.
    reporting_goal: Least number of clients that have to report; `None` for any. A round
      that misses it asks the same clients again.

  Raises:
    PopulationTooSmallError: If the rounds cannot be filled; the message says what would
      fit.
    ReportingGoalError: If a round never reaches its goal.
    TypeError: If `participation` is none, or another argument no whole number.
    ValueError: If a number is out of range, or the limits are not those of fixed
      epochs.

  Example:
    >>> epochs = strategies.Participation(4, min_separation=2, fixed_epoch=True)
    >>> schedule = ShuffledEpochs(epochs, num_clients=4, clients_per_round=2, seed=1)
    >>> [sorted(schedule.cohort(round_num).tolist()) for round_num in range(4)]
    [[0, 1], [2, 3], [0, 1], [2, 3]]
  """

  kind: ClassVar[str] = 'shuffled_epochs'

  @property
  def enforced_by(self) -> str:
    """That each client has its place in the epochs."""
    return (
      "the simulation's client selection (learning.schedules.ShuffledEpochs), which "
      'gives each client the same place in every epoch'
    )

  def _refusal(self) -> str:
    return (
      'ShuffledEpochs keeps fixed epochs; give strategies.Participation(..., '
      f'fixed_epoch=True), or use RandomEligible. Got {self.participation}.'
    )

  def _requested_in(self, round_num: int) -> list[np.ndarray]:
    cohort = self._cohort(round_num)
    return dropouts_lib.requested(
      round_num, lambda attempt: cohort, self.dropouts, self.reporting_goal
    )

  def _cohort(self, round_num: int) -> np.ndarray:
    epoch, place = divmod(round_num, self._epoch)
    start, end = self._bounds[place : place + 2]
    turn = np.arange(self.clients_per_round) + epoch * self.clients_per_round
    return self._order[start + turn % (end - start)]

  @property
  def _epoch(self) -> int:
    return min(self.participation.min_separation, self.num_rounds)

  @functools.cached_property
  def _order(self) -> np.ndarray:
    dtype = draws.number_type(self.num_clients)
    order: np.ndarray = np.arange(self.num_clients, dtype=dtype)
    draws.generator(self.seed).shuffle(order)
    return order

  @functools.cached_property
  def _bounds(self) -> np.ndarray:
    """Where in the order the clients of each place of an epoch begin, and the end."""
    epochs = -(-(self.num_rounds - np.arange(self._epoch)) // self._epoch)
    times = np.minimum(epochs, self.participation.possible_participations)
    needed = np.maximum(
      self.clients_per_round, -(-self.clients_per_round * epochs // times)
    )
    # Those left over are spread over all places, the first having one more.
    share, more = divmod(self.num_clients - int(needed.sum()), self._epoch)
    sizes = needed + share + (np.arange(self._epoch) < more)
    return np.concatenate([[0], np.cumsum(sizes)])

  @classmethod
  def serves(cls, schema: Any) -> bool:
    """Fixed epochs."""
    return isinstance(schema, strategies.Participation) and schema.fixed_epoch
