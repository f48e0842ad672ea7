"""The attempts at a round, as a ledger has them and as the schedule made them.

A schedule names all attempts at a round from its seed alone. Those that were aborted
have lines in the ledger before the round is run, and a run that goes on confirms them.
`check` compares the whole, whenever a report is written.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Optional

from tff_dp_aggregators import sampling
from tff_dp_aggregators.accounting.records import ledger as ledger_lib

_NAMES = 'round attempt cohort_requested cohort_reported reporting_goal'.split()


def write_aborted(
  ledger: ledger_lib.LedgerWriter,
  number: int,
  attempts: Sequence[sampling.Attempt],
  reporting_goal: Optional[int],
) -> None:
  """Writes the lines of the aborted attempts at a round, or confirms those there."""
  written = ledger.aborted_attempts(number)
  made = list(_aborted(number, attempts, reporting_goal))
  if written > len(made):
    raise ValueError(
      f'at round {number} the ledger has {written} aborted attempts, but the schedule '
      f'{len(made)}. Go on with the schedule that the run was begun with.'
    )
  for line in made:
    if line['attempt'] < written:
      ledger.confirm_aborted(**line)
    else:
      ledger.append_aborted(**line)


def check(ledger: ledger_lib.Ledger, schedule: sampling.Schedule) -> None:
  """Checks that the cohorts of all rounds and attempts are those of a schedule."""
  found: list[list[dict[str, Any]]] = [[] for _ in range(len(ledger.entries) + 1)]
  for aborted in ledger.aborted:
    line = {name: getattr(aborted, name) for name in _NAMES}  # Without time and hash.
    found[aborted.round].append(line)
  for entry in ledger.entries:
    attempts = schedule.attempts(entry.round)
    sizes = (len(attempts[-1].requested), len(attempts[-1].reporting))
    told = (entry.cohort_requested, entry.cohort_reported)
    if told not in (sizes, (None, None)):  # Those drawn in secret are not told.
      raise ValueError(
        f'in round {entry.round} of the ledger {entry.cohort_reported} of '
        f'{entry.cohort_requested} clients reported, but in the schedule {sizes[1]} of '
        f'{sizes[0]}: they are not of the same run.'
      )
    made = list(_aborted(entry.round, attempts, schedule.reporting_goal))
    _check_aborted(found[entry.round], made)
  begun, number = found[-1], len(ledger.entries)
  if begun:  # At a round that has no line yet.
    made = list(_aborted(number, schedule.attempts(number), schedule.reporting_goal))
    _check_aborted(begun, made[: len(begun)])


def _aborted(
  number: int, attempts: Sequence[sampling.Attempt], reporting_goal: Optional[int]
) -> Iterator[dict[str, Any]]:
  """What the lines of a round's aborted attempts say."""
  for index, attempt in enumerate(attempts):
    if not attempt.completed:
      sizes = len(attempt.requested), len(attempt.reporting)
      yield dict(zip(_NAMES, (number, index, *sizes, reporting_goal)))


def _check_aborted(found: list[dict[str, Any]], made: list[dict[str, Any]]) -> None:
  if found != made:
    raise ValueError(
      f'the ledger has the aborted attempts {found}, but the schedule {made}: they are '
      'not of the same run.'
    )
