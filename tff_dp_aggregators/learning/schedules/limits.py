"""What schedules have in common that keep limits on participation, without sampling."""

import abc
import dataclasses
import functools
from collections.abc import Sequence
from typing import Any, Optional

import numpy as np

from tff_dp_aggregators import strategies
from tff_dp_aggregators.learning.schedules import base
from tff_dp_aggregators.learning.schedules import dropouts as dropouts_lib
from tff_dp_aggregators.strategies import participation as participation_lib


@dataclasses.dataclass(frozen=True)
class LimitsSchedule(base.Schedule):
  """A schedule whose schema is a `strategies.Participation`.

  Nothing is assumed about chance, so a round that too few clients report for may be
  tried again, as long as the attempt that counts keeps the limits.

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
    ValueError: If a number is out of range, or the limits are of another kind.
  """

  participation: strategies.Participation
  num_clients: int
  clients_per_round: int
  seed: int
  dropouts: Optional[dropouts_lib.Dropouts] = None
  reporting_goal: Optional[int] = None

  def __post_init__(self) -> None:
    participation_lib.require(self.participation)
    if not self.serves(self.participation):
      raise ValueError(self._refusal())
    participation_lib.check_population(
      self.num_clients,
      self.clients_per_round,
      self.participation,
      ('num_clients', 'clients_per_round'),
    )
    dropouts_lib.check_dropouts(self.dropouts)
    checked = {
      'num_clients': int(self.num_clients),
      'clients_per_round': int(self.clients_per_round),
      'seed': dropouts_lib.check_seed(self.seed),
      'reporting_goal': dropouts_lib.check_reporting_goal(
        self.reporting_goal, self.clients_per_round
      ),
    }
    for name, value in checked.items():
      object.__setattr__(self, name, value)
    if self.dropouts is not None and self.reporting_goal is not None:
      for this_round in range(self.num_rounds):
        self._requested_in(this_round)  # Says now if one would not come to its goal.

  @abc.abstractmethod
  def _refusal(self) -> str:
    """What to say of limits that this kind does not serve."""

  @abc.abstractmethod
  def _requested_in(self, round_num: int) -> list[np.ndarray]:
    """Cohorts that are asked in a round, attempt by attempt."""

  @property
  def schema(self) -> strategies.Participation:
    """The limits."""
    return self.participation

  @functools.cached_property
  def max_cohort(self) -> int:
    """Clients asked for a round; the largest number that report, with drop-outs."""
    if self.dropouts is None:
      return self.clients_per_round
    return max(len(self.cohort(this_round)) for this_round in range(self.num_rounds))

  def for_clients(self, ids: Sequence[Any]) -> 'LimitsSchedule':
    """Itself: cohorts of one size, which are the same if a client sends zeros.

    Args:
      ids: Not used.
    """
    return self

  def attempts(self, round_num: int) -> tuple[base.Attempt, ...]:
    """All attempts at a round; the last one is completed, and no other.

    Args:
      round_num: The round, from 0.

    Raises:
      TypeError: If it is no whole number.
      ValueError: If it is out of range.
    """
    round_num = self.check_round(round_num)
    return base.attempts_of(round_num, self._requested_in(round_num), self.dropouts)

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
  ) -> 'LimitsSchedule':
    """The schedule of these limits; arguments and errors as for the class."""
    cohort = base.check_cohort(clients_per_round)
    return cls(schema, num_clients, cohort, seed, dropouts, reporting_goal)
