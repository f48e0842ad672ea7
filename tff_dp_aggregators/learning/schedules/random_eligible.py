"""Clients at random among those that may take part: what production systems do."""

import collections
import dataclasses
import functools
from collections.abc import Iterator
from typing import Any, ClassVar, Optional

import numpy as np

from tff_dp_aggregators import strategies
from tff_dp_aggregators.learning.schedules import draws
from tff_dp_aggregators.learning.schedules import dropouts as dropouts_lib
from tff_dp_aggregators.learning.schedules import limits
from tff_dp_aggregators.strategies import participation as participation_lib


@dataclasses.dataclass(frozen=True)
class RandomEligible(limits.LimitsSchedule):
  """Each round draws at random from the clients whose limits allow them to take part.

  Which of them depends on the limits:

  * If the separation alone decides how often a client can take part, all eligible
    clients are equally likely.
  * If `max_participations` is less than that, those that took part least often go
    first, in random order. Drawn uniformly, the clients left for the last rounds could
    be too few; so they never are, if there are enough in all.

  A round that misses its reporting goal is tried again. Its next attempt draws from
  those eligible in the round and not asked yet, as long as these are enough; where
  those go first that took part least often, from all eligible ones. Who was asked in
  the attempt that counts has taken part, whether it reported or not; who was asked in
  aborted attempts alone has not, for nothing of them is released.

  Attributes:
    participation: The limits to keep, and how many rounds.
    num_clients: Clients to choose from.
    clients_per_round: Clients asked for a round.
    seed: Same seed, same cohorts.
    dropouts: Who does not report; `None` if everybody does.
    reporting_goal: Least number of clients that have to report; `None` for any.

  Raises:
    PopulationTooSmallError: If the rounds cannot be filled; the message says what would
      fit.
    ReportingGoalError: If a round never reaches its goal.
    TypeError: If `participation` is none, or another argument no whole number.
    ValueError: If a number is out of range, or the limits are those of fixed epochs.

  Example:
    >>> limits = strategies.Participation(num_rounds=4, min_separation=2)
    >>> schedule = RandomEligible(limits, num_clients=4, clients_per_round=2, seed=1)
    >>> [sorted(schedule.cohort(round_num).tolist()) for round_num in range(4)]
    [[1, 2], [0, 3], [1, 2], [0, 3]]
  """

  kind: ClassVar[str] = 'random_eligible'

  @property
  def enforced_by(self) -> str:
    """That the run's client selection keeps the limits."""
    return (
      "the simulation's client selection (learning.schedules.RandomEligible), which "
      'draws a client again only within these limits'
    )

  def _refusal(self) -> str:
    return (
      'RandomEligible draws for min-separation limits, not for fixed epochs: leave out '
      'fixed_epoch, or use ShuffledEpochs.'
    )

  def _requested_in(self, round_num: int) -> list[np.ndarray]:
    return self._requested[round_num]

  @functools.cached_property
  def _requested(self) -> list[list[np.ndarray]]:
    """Cohorts asked, by round and attempt: all are drawn when the first is needed."""
    return list(_draw_all(self))

  @classmethod
  def serves(cls, schema: Any) -> bool:
    """Limits that are not those of fixed epochs."""
    return isinstance(schema, strategies.Participation) and not schema.fixed_epoch


class _Eligible:
  """Clients that may take part, by how often they did where that decides."""

  def __init__(self, schedule: RandomEligible):
    dtype = draws.number_type(schedule.num_clients)
    self._rng = draws.generator(schedule.seed)
    self._size = schedule.clients_per_round
    self._cap = schedule.participation.assumed_at_most
    # How often each took part, where that decides.
    self._times: Optional[np.ndarray] = None
    if self._cap is not None:
      self._times = np.zeros(schedule.num_clients, dtype)
    self._pools = [draws.Pool(np.arange(schedule.num_clients, dtype=dtype))]
    for _ in range(1, self._cap or 1):
      self._pools.append(draws.Pool(np.empty(0, dtype)))
    self._asked: list[np.ndarray] = []  # In this round, and taken out of the pools.

  def ask(self) -> np.ndarray:
    """Draws the cohort of the round's next attempt."""
    if self._cap is not None or sum(map(len, self._pools)) < self._size:
      while self._asked:  # They may be drawn again.
        self.come_back(self._asked.pop())
    parts, missing = [], self._size
    for pool in filter(len, self._pools):
      parts.append(pool.draw(min(missing, len(pool)), self._rng))
      missing -= len(parts[-1])
      if not missing:
        break
    if missing:  # Checked when the schedule was made, and so never true.
      raise participation_lib.PopulationTooSmallError(
        f'a round found only {self._size - missing} of {self._size} clients; use more '
        'clients or fewer of them a round.'
      )
    self._asked.append(np.concatenate(parts))
    return self._asked[-1]

  def end_round(self) -> np.ndarray:
    """Returns the last cohort, which took part; those asked in vain come back."""
    counted = self._asked.pop()
    while self._asked:
      self.come_back(self._asked.pop())
    if self._times is not None:
      self._times[counted] += 1
    return counted

  def come_back(self, clients: np.ndarray) -> None:
    """Those of them may be drawn that may take part once more."""
    if self._times is None:
      self._pools[0].add(clients)
      return
    times = self._times[clients]
    for number in np.unique(times):
      if number < len(self._pools):
        self._pools[number].add(clients[times == number])


def _draw_all(schedule: RandomEligible) -> Iterator[list[np.ndarray]]:
  """Draws round after round, as who is eligible depends on those before."""
  eligible = _Eligible(schedule)
  away: collections.deque[np.ndarray] = collections.deque()
  for this_round in range(schedule.num_rounds):
    if len(away) == schedule.participation.min_separation:
      eligible.come_back(away.popleft())
    yield dropouts_lib.requested(
      this_round,
      lambda attempt: eligible.ask(),
      schedule.dropouts,
      schedule.reporting_goal,
    )
    away.append(eligible.end_round())
