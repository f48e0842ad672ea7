"""A line of a ledger for an attempt at a round that was aborted, and spent nothing.

Too few clients reported, say, so the round was tried again. No sum of that attempt was
released, and so nothing follows from it for privacy: its event is `NoOpDpEvent`, and
who took part in aborted attempts alone has not taken part. The line is there so that
nobody has to believe it: an attempt has no result, clip norm or noise.

Two numbers in it are of clients. How many reported is exact, as in the lines of rounds,
and with it that the attempt was aborted: no guarantee covers either. In simulations
here they depend on no client's data; whether they do elsewhere is for the runner to
know (`docs/threat_model.md`).

`ledger` has the rules that lines together keep.
"""

import dataclasses
from typing import Any, Optional

import dp_accounting

from tff_dp_aggregators.accounting import events
from tff_dp_aggregators.accounting.records import ledger_entry

# What such an attempt spends, as lines have it.
NOTHING = events.to_json(dp_accounting.NoOpDpEvent())
# By this field a line is told from one of a round.
MARK = 'attempt'


@dataclasses.dataclass(frozen=True)
class AbortedAttempt:
  """An attempt at a round of which nothing was released.

  Attributes:
    round: The round that was attempted, from 0.
    attempt: Which attempt at it, from 0.
    cohort_requested: Clients that were asked.
    cohort_reported: Clients whose updates arrived, in vain.
    reporting_goal: Least number of updates that the round needs, more than arrived;
      `None` if it is not known, or was not the reason.
    event: What was spent, as `events.to_json` writes it: nothing.
    time: When the line was written, ISO 8601 in UTC.
    previous_line_sha256: SHA-256 of the line before, with its line feed; of nothing in
      the first line.

  Raises:
    ValueError: If a field is of another type or out of range.
  """

  round: int
  attempt: int
  cohort_requested: int
  cohort_reported: int
  reporting_goal: Optional[int]
  event: dict[str, Any]
  time: str
  previous_line_sha256: str

  def __post_init__(self) -> None:
    for name in ('round', MARK, 'cohort_requested', 'cohort_reported'):
      ledger_entry.check_count(name, getattr(self, name))
    if self.reporting_goal is not None:
      ledger_entry.check_count('reporting_goal', self.reporting_goal)
      if self.cohort_reported >= self.reporting_goal:
        raise ValueError(
          f'cohort_reported is {self.cohort_reported}, which reaches reporting_goal='
          f'{self.reporting_goal}: such an attempt is not aborted for it. State null '
          'as the goal if it was aborted for another reason.'
        )
    if self.event != NOTHING:
      raise ValueError(
        f'event must be {NOTHING}: nothing is released of an aborted attempt; got '
        f'{self.event!r}. What was released is a round.'
      )
    ledger_entry.check_chain(self.previous_line_sha256)
    ledger_entry.check_time(self.time)

  @property
  def dp_event(self) -> dp_accounting.DpEvent:
    """What was spent: nothing."""
    return events.from_json(self.event)


# The fields of a line by name.
FIELDS = {field.name: field for field in dataclasses.fields(AbortedAttempt)}


def check_next(rounds: int, attempts: int, aborted: AbortedAttempt) -> None:
  """Checks that an attempt is the next one.

  Args:
    rounds: Rounds released by then.
    attempts: Aborted attempts at the round after them by then.
    aborted: What comes next.

  Raises:
    ValueError: If it is not.
  """
  if aborted.round < rounds:
    raise ValueError(
      f'an attempt at round {aborted.round} was aborted after that round was released: '
      'lines of attempts stand before that of their round. A round that is run again '
      'confirms them.'
    )
  if (aborted.round, aborted.attempt) != (rounds, attempts):
    raise ValueError(
      f'expected attempt {attempts} at round {rounds}, or that round; found attempt '
      f'{aborted.attempt} at round {aborted.round}.'
    )


def check_same(earlier: AbortedAttempt, again: AbortedAttempt) -> None:
  """Checks that an attempt of a round that is run again comes to the same.

  Raises:
    ValueError: If it does not.
  """
  of_the_line = ('time', ledger_entry.CHAIN)
  changed = [
    f'{name}: {getattr(earlier, name)} then, {getattr(again, name)} now'
    for name in FIELDS
    if name not in of_the_line and getattr(earlier, name) != getattr(again, name)
  ]
  if changed:
    raise ValueError(
      f'attempt {again.attempt} at round {again.round} has a line with other content '
      f'({"; ".join(changed)}). Go on with the schedule that the run was begun with.'
    )
