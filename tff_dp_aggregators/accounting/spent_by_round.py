"""Epsilon after each round of a mechanism that composes, at the cost of milliseconds.

Gaussian noise without sampling is one Gaussian over all rounds so far, and each line of
the ledger has the exact epsilon. For all else the tightest accountant takes tenths of a
second for one number. Here is an upper bound for every round, the smaller of two:

* Renyi DP of the turns so far, the quick bound, up to twice too large.
* What the tightest accountant says of some more turns, at the next of a few marks, the
  last of which is the end. Composing more never spends less, so it holds for all rounds
  before a mark as well.
"""

import bisect
import functools
from typing import Optional

from tff_dp_aggregators.accounting import accountants
from tff_dp_aggregators.accounting import joint_mechanism
from tff_dp_aggregators.accounting.accountants import gaussian
from tff_dp_aggregators.base import checks

# What the numbers are, for a run's configuration.
MEANING = (
  f'upper bound: the smaller of {accountants.QUICK_BOUND} after the round, and of the '
  'tightest accountant after some more rounds; after the last round as in the report'
)
# Marks of any run, one more for so many turns, and how many at most.
_FEWEST_MARKS, _TURNS_OF_A_MARK, _MOST_MARKS = 4, 64, 16
# From which part of the run on there are marks: before it, little is spent.
_FIRST_PART = 1 / 64


class SpentByRound:
  """An upper bound on epsilon after each round of a mechanism whose rounds compose.

  It is a function of mechanism, delta and number of rounds alone.
  """

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
    self._mechanism = mechanism
    self._separation = mechanism.limits.min_separation
    self._most_turns = mechanism.limits.possible_participations
    self._num_rounds = mechanism.participation.num_rounds
    self._marks = _marks(self._turns_in(self._num_rounds))
    self._epsilon = functools.cache(self._epsilon_of)  # Many rounds ask for the same.

  def after(self, rounds: int) -> float:
    """A bound on epsilon after so many rounds; infinite without noise."""
    rounds = checks.check_int('rounds', rounds, at_least=0)
    if rounds > self._num_rounds:
      raise ValueError(f'rounds must be at most {self._num_rounds}; got {rounds}.')
    turns = self._turns_in(rounds)
    if not turns:
      return 0.0
    mark = self._marks[bisect.bisect_left(self._marks, turns)]
    bound = self._epsilon(mark, self._accountant)
    if self._quick is None:
      return bound
    return min(bound, self._epsilon(turns, self._quick))

  @functools.cached_property
  def _quick(self) -> Optional[str]:
    first = self._mechanism.event_of_turns(1)
    return accountants.quick_bound(first, self._mechanism.relation)

  def _epsilon_of(self, turns: int, accountant: Optional[str]) -> float:
    event, relation = self._mechanism.event_of_turns(turns), self._mechanism.relation
    return accountants.epsilon(event, self._delta, accountant, relation)

  def _turns_in(self, rounds: int) -> int:
    # A client of the first group has had the most turns after any round.
    return min(-(-rounds // self._separation), self._most_turns)


def _marks(turns: int) -> list[int]:
  """After how many turns the tightest accountant is asked, in order."""
  number = min(_MOST_MARKS, _FEWEST_MARKS + turns // _TURNS_OF_A_MARK)
  before = (turns * _FIRST_PART ** (i / number) for i in range(1, number))
  return sorted({turns, *(max(1, round(mark)) for mark in before)})
