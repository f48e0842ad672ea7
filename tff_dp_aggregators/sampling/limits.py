"""Limits on participation (`strategies.Participation`), without assumed sampling.

Limits hold for each client separately: the rounds of all others stay the same if one
client's contributions become zeros or another's, but not if one is added or removed.
"""

import abc
import collections
import dataclasses
import functools
from typing import Any, Callable, ClassVar, Optional

import numpy as np
from dp_accounting import NeighboringRelation as Relation

from tff_dp_aggregators import strategies
from tff_dp_aggregators.base import checks
from tff_dp_aggregators.sampling import draws
from tff_dp_aggregators.sampling import schedule as schedule_lib
from tff_dp_aggregators.sampling import scheme
from tff_dp_aggregators.strategies import participation as participation_lib

MAX_ATTEMPTS = 100  # Maximum number of attempts at one round.


class ReportingGoalError(ValueError):
  """A round does not reach its reporting goal in `MAX_ATTEMPTS` attempts."""


@dataclasses.dataclass(frozen=True)
class Limits(scheme.Scheme):
  """`strategies.Participation` as a scheme."""

  name = 'participation'
  flag = 'none'
  data = strategies.Participation
  relations = (Relation.REPLACE_SPECIAL, Relation.REPLACE_ONE)
  is_sampled = False
  known_noises = None
  drawn_again_after = None

  participation: strategies.Participation  # The limits, for all rounds.

  @property
  def num_rounds(self) -> int:  # type: ignore[override]
    """Rounds in all, n."""
    return self.participation.num_rounds

  @property
  def limits(self) -> strategies.Participation:
    """The limits themselves."""
    return self.participation

  @property
  def schedule_name(self) -> str:
    """The name of `ShuffledEpochs` for fixed epochs, else of `RandomEligible`."""
    schedule = ShuffledEpochs if self.participation.fixed_epoch else RandomEligible
    return schedule.name

  def to_json(self) -> dict[str, Any]:
    """JSON-ready values: the name and the fields of the limits."""
    return {'schema': self.name, **dataclasses.asdict(self.participation)}


@dataclasses.dataclass(frozen=True)
class LimitsSchedule(schedule_lib.Schedule):
  """A schedule that keeps limits on participation and assumes no sampling."""

  fixed_epoch: ClassVar[bool]  # `fixed_epoch` of the limits that it keeps.

  participation: strategies.Participation  # The limits and the number of rounds.
  num_clients: int  # Number of clients to choose from.
  clients_per_round: int  # Number of clients asked for a round.
  seed: int  # Determines the cohorts.
  dropouts: Optional[schedule_lib.Dropouts] = None  # `None` if all clients report.
  reporting_goal: Optional[int] = None  # Minimum number that report; `None` for any.

  def __post_init__(self) -> None:
    participation_lib.require(self.participation)
    if self.participation.fixed_epoch != self.fixed_epoch:
      raise ValueError(
        f'{type(self).__name__} keeps limits with fixed_epoch={self.fixed_epoch}; got '
        f'{self.participation}. Take sampling.for_scheme.'
      )
    size = checks.check_number('clients_per_round', self.clients_per_round)
    if not float(size).is_integer():
      raise ValueError(f'clients_per_round must be a whole number; got {size}.')
    size = checks.check_positive_int('clients_per_round', int(size))
    participation_lib.check_population(self.num_clients, size, self.participation)
    self.__dict__.update(
      num_clients=int(self.num_clients),
      clients_per_round=size,
      seed=schedule_lib.check_seed(self.seed),
    )
    if self.reporting_goal is not None:
      goal = checks.check_positive_int('reporting_goal', self.reporting_goal)
      self.__dict__['reporting_goal'] = goal
      scheme.check_at_most(self, 'reporting_goal', 'clients_per_round')
    if self.dropouts is not None and self.reporting_goal is not None:
      for this_round in range(self.num_rounds):
        self._requested_in(this_round)  # Raises if a round would miss its goal.

  @abc.abstractmethod
  def _requested_in(self, round_num: int) -> list[np.ndarray]:
    """The cohorts asked in a round, one for each attempt."""

  @property
  def schema(self) -> strategies.Participation:
    """The limits."""
    return self.participation

  def attempts(self, round_num: int) -> tuple[schedule_lib.Attempt, ...]:
    """All attempts at a round; the last one is completed, and no other."""
    round_num = self.check_round(round_num)
    requested = self._requested_in(round_num)
    return schedule_lib.attempts_of(round_num, requested, self.dropouts)

  def _until_enough_report(
    self, round_num: int, ask: Callable[[], np.ndarray]
  ) -> list[np.ndarray]:
    """The cohorts asked, one for each attempt, until enough clients of one report."""
    dropouts, goal = self.dropouts, self.reporting_goal
    if dropouts is None or goal is None:
      return [ask()]
    cohorts: list[np.ndarray] = []
    for attempt in range(MAX_ATTEMPTS):
      cohorts.append(ask())
      if len(dropouts.reporting(round_num, attempt, cohorts[-1])) >= goal:
        return cohorts
    raise ReportingGoalError(
      f'round {round_num} would not reach reporting_goal={goal} in {MAX_ATTEMPTS} '
      f'attempts: of {len(cohorts[-1])} clients asked, too many drop out. Take a lower '
      'reporting_goal, or a higher clients_per_round.'
    )


@dataclasses.dataclass(frozen=True)
class RandomEligible(LimitsSchedule):
  """Each round draws at random from the clients whose limits allow them to take part.

  * If only the separation limits participation, all eligible clients are equally
    likely.
  * If `max_participations` is a stricter limit, clients that took part least often come
    first, in random order, so that enough are left for the last rounds.

  A round that misses its reporting goal is repeated with eligible clients that were not
  asked yet, if there are enough, or else with all eligible ones. A client that was
  asked only in aborted attempts has not taken part.

  Example:
    >>> limits = strategies.Participation(num_rounds=4, min_separation=2)
    >>> schedule = RandomEligible(limits, num_clients=4, clients_per_round=2, seed=1)
    >>> [sorted(schedule.cohort(round_num).tolist()) for round_num in range(4)]
    [[1, 2], [0, 3], [1, 2], [0, 3]]
  """

  name: ClassVar[str] = 'random_eligible'
  fixed_epoch = False

  def _requested_in(self, round_num: int) -> list[np.ndarray]:
    return self._requested[round_num]

  @functools.cached_property
  def _requested(self) -> list[list[np.ndarray]]:
    """The cohorts asked, by round and attempt; all are drawn at the first access."""
    eligible, drawn = _Eligible(self), []
    away: collections.deque[np.ndarray] = collections.deque()
    for this_round in range(self.num_rounds):
      if len(away) == self.participation.min_separation:
        eligible.put_back(away.popleft())
      drawn.append(self._until_enough_report(this_round, eligible.ask))
      away.append(eligible.end_round())
    return drawn


class _Eligible:
  """The clients that may take part, in pools by their number of participations."""

  def __init__(self, schedule: RandomEligible):
    dtype = draws.number_type(schedule.num_clients)
    self._rng = draws.generator(schedule.seed)
    self._size = schedule.clients_per_round
    self._cap = schedule.participation.assumed_at_most
    # Each client's number of participations if there is a cap on it; else 0.
    self._times: np.ndarray = np.zeros(schedule.num_clients, dtype)
    self._pools = [draws.Pool(np.arange(schedule.num_clients, dtype=dtype))]
    for _ in range(1, self._cap or 1):
      self._pools.append(draws.Pool(np.empty(0, dtype)))
    self._asked: list[np.ndarray] = []  # This round's cohorts, not in the pools.

  def ask(self) -> np.ndarray:
    """Draws the cohort of the round's next attempt."""
    if self._cap is not None or sum(map(len, self._pools)) < self._size:
      while self._asked:  # Clients of earlier attempts may be drawn again.
        self.put_back(self._asked.pop())
    parts, missing = [], self._size
    for pool in filter(len, self._pools):
      parts.append(pool.draw(min(missing, len(pool)), self._rng))
      missing -= len(parts[-1])
      if not missing:
        break
    assert not missing  # `check_population` made sure that there are enough clients.
    self._asked.append(np.concatenate(parts))
    return self._asked[-1]

  def end_round(self) -> np.ndarray:
    """Returns the last cohort, which took part; puts the clients asked before back."""
    counted = self._asked.pop()
    while self._asked:
      self.put_back(self._asked.pop())
    if self._cap is not None:
      self._times[counted] += 1
    return counted

  def put_back(self, clients: np.ndarray) -> None:
    """Puts clients back into the pools if they may take part once more."""
    times = self._times[clients]
    for number in np.unique(times):
      if number < len(self._pools):
        self._pools[number].add(clients[times == number])


@dataclasses.dataclass(frozen=True)
class ShuffledEpochs(LimitsSchedule):
  """Clients are shuffled once, and every epoch goes through them in that order.

  So each client has the same place in every epoch, and its rounds differ by multiples
  of `min_separation`. (With a new shuffle per epoch, there would be no separation.)

  If there are more clients than an epoch needs, those of a place take turns. A round
  that misses its reporting goal asks the same clients again.
  """

  name: ClassVar[str] = 'shuffled_epochs'
  fixed_epoch = True

  def _requested_in(self, round_num: int) -> list[np.ndarray]:
    epoch, place = divmod(round_num, self._epoch)
    start, end = self._bounds[place : place + 2]
    turn = np.arange(self.clients_per_round) + epoch * self.clients_per_round
    cohort = self._order[start + turn % (end - start)]
    return self._until_enough_report(round_num, lambda: cohort)

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
    """The index in `_order` at which the clients of each place begin, and the end."""
    epochs = -(-(self.num_rounds - np.arange(self._epoch)) // self._epoch)
    times = np.minimum(epochs, self.participation.possible_participations)
    needed = np.maximum(
      self.clients_per_round, -(-self.clients_per_round * epochs // times)
    )
    # The remaining clients are spread over all places; the first ones have one more.
    share, more = divmod(self.num_clients - int(needed.sum()), self._epoch)
    sizes = needed + share + (np.arange(self._epoch) < more)
    return np.concatenate([[0], np.cumsum(sizes)])
