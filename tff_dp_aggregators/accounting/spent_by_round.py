"""A fast upper bound on epsilon after each round, for mechanisms that compose.

The tightest accountant may take tenths of a second for one epsilon. The bound here
takes milliseconds; it is the smaller of the quick bound of a client's turns so far,
which is up to twice too large, and the tightest accountant's epsilon of more turns:
those at the next of a few marks, the last of which is the end of the run.
"""

import bisect
import functools
from typing import Optional

from tff_dp_aggregators.accounting import accountants
from tff_dp_aggregators.accounting import joint_mechanism
from tff_dp_aggregators.accounting.accountants import gaussian
from tff_dp_aggregators.base import checks

MEANING = (
  f'upper bound: the smaller of {accountants.QUICK_BOUND} after the round, and of the '
  'tightest accountant after some more rounds; after the last round as in the report'
)


class SpentByRound:
  """An upper bound on epsilon after each round of a mechanism whose rounds compose."""

  def __init__(
    self,
    mechanism: joint_mechanism.AnyMechanism,
    delta: float,
    accountant: Optional[str] = None,
  ):
    if mechanism.is_one_gaussian:
      raise ValueError(
        f'the participation is {mechanism.participation}, without sampling; the exact '
        'epsilon of its rounds so far is in the ledger.'
      )
    self._delta = gaussian.check_delta(delta)
    self._accountant = accountant
    self._mechanism, self._limits = mechanism, mechanism.limits
    self._marks = _marks(self._turns_in(self._limits.num_rounds))
    self._quick_bound = accountants.quick_bound(
      mechanism.event_of_turns(1), mechanism.relation
    )
    self._epsilon = functools.cache(self._epsilon_of)  # Many rounds need the same one.

  def after(self, rounds: int) -> float:
    """Upper bound on epsilon after `rounds` rounds; infinite without noise."""
    checks.check_within('rounds', rounds, 0, self._limits.num_rounds)
    turns = self._turns_in(checks.check_int('rounds', rounds))
    if not turns:
      return 0.0
    mark = self._marks[bisect.bisect_left(self._marks, turns)]
    bound = self._epsilon(mark, self._accountant)
    if self._quick_bound is None:
      return bound
    return min(bound, self._epsilon(turns, self._quick_bound))

  def _epsilon_of(self, turns: int, accountant: Optional[str]) -> float:
    event, relation = self._mechanism.event_of_turns(turns), self._mechanism.relation
    return accountants.epsilon(event, self._delta, accountant, relation)

  def _turns_in(self, rounds: int) -> int:
    # Clients whose first turn is in round 0 have the most turns after any round.
    turns = -(-rounds // self._limits.min_separation)
    return min(turns, self._limits.possible_participations)


def _marks(turns: int) -> list[int]:
  """4 to 16 numbers of turns, from a 64th of the run, before which little is spent."""
  number = min(16, 4 + turns // 64)
  before = (turns * (1 / 64) ** (i / number) for i in range(1, number))
  return sorted({turns, *(max(1, round(mark)) for mark in before)})
