"""Whether the attempts in a ledger are those of a schedule, as far as its values say.

A schedule's JSON has its reporting goal: who missed it was aborted, and who reached it
was not. Which clients report in which attempt follows from the schedule's seed, and
needs the schedule itself: `learning.runs.attempts` compares the whole.
"""

from typing import Any

from tff_dp_aggregators.accounting.records import ledger as ledger_lib

_GOAL = 'reporting_goal'


def check(ledger: ledger_lib.Ledger, schedule: Any) -> None:
  """Refuses a ledger whose attempts are not those of a schedule.

  Args:
    ledger: Of a run.
    schedule: JSON-ready values of its schedule; one that has no goal, as that of a
      file, says nothing.

  Raises:
    ValueError: If they are not; the message names round and attempt.
  """
  if not isinstance(schedule, dict) or _GOAL not in schedule:
    return
  goal = schedule[_GOAL]
  for aborted in ledger.aborted:
    if goal is None or aborted.reporting_goal != goal:
      raise ValueError(
        f'the ledger has an aborted attempt {aborted.attempt} at round '
        f'{aborted.round} with the reporting goal {aborted.reporting_goal}, but that '
        f'of the schedule is {goal}: they are not of the same run.'
      )
  for entry in ledger.entries if goal is not None else ():
    if entry.cohort_reported is not None and entry.cohort_reported < goal:
      raise ValueError(
        f'in round {entry.round} of the ledger {entry.cohort_reported} clients '
        f'reported, but the reporting goal of the schedule is {goal}: the attempt '
        'should have been aborted.'
      )
