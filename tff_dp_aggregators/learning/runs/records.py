"""Reads and writes the records of a run: aborted attempts, progress, and its report.

Released rounds are in the ledger, which is on disk before any other file has the round.
So if another file has more rounds than the ledger, lines are lost, and a resumed run
would use their noise on other data.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple, Optional

from tff_dp_aggregators import sampling
from tff_dp_aggregators.accounting.records import ledger as ledger_lib
from tff_dp_aggregators.accounting.reports import learning_curves
from tff_dp_aggregators.accounting.reports import rendering
from tff_dp_aggregators.accounting.reports import sources
from tff_dp_aggregators.accounting.reports import statement
from tff_dp_aggregators.learning.runs import checkpoints
from tff_dp_aggregators.learning.runs import metrics_file
from tff_dp_aggregators.learning.runs import run_directory

_LATER = (
  run_directory.METRICS,
  run_directory.MODEL,
  run_directory.REPORT,
  run_directory.EVENTS,
)
_FORMS = {'md': 'markdown', 'json': 'json', 'html': 'html'}


def write_aborted(
  ledger: ledger_lib.LedgerWriter,
  number: int,
  attempts: Sequence[sampling.Attempt],
  reporting_goal: Optional[int],
) -> None:
  """Writes the lines of a round's aborted attempts, or confirms existing ones."""
  *aborted, _ = attempts
  written = ledger.aborted_attempts(number)
  if written > len(aborted):
    raise ValueError(
      f'at round {number} the ledger has {written} aborted attempts, but the schedule '
      f'{len(aborted)}. Go on with the schedule that the run was begun with.'
    )
  for index, attempt in enumerate(aborted):
    write = ledger.confirm_aborted if index < written else ledger.append_aborted
    write(
      round=number,
      attempt=index,
      cohort_requested=len(attempt.requested),
      cohort_reported=len(attempt.reporting),
      reporting_goal=reporting_goal,
    )


class Status(NamedTuple):
  """How far a run is."""

  rounds: int  # Released rounds, which the ledger has.
  is_finished: bool  # All rounds were run and reported, and no checkpoint is left.


def find(directory: run_directory.RunDirectory, num_rounds: int) -> Status:
  """Returns how far a run is; raises FilesError if its files contradict each other."""
  path, has_ledger = (
    directory.file(run_directory.LEDGER),
    directory.has(run_directory.LEDGER),
  )
  has_checkpoint = checkpoints.is_any(directory.file(run_directory.CHECKPOINTS))
  # Existing files that are written after the ledger.
  later = list(filter(directory.has, _LATER))
  if has_checkpoint:
    later.append(run_directory.CHECKPOINTS)
  rounds, found = 0, {}
  if has_ledger:
    with run_directory.reading(path):
      rounds = len(ledger_lib.read(path, as_resumed=has_checkpoint).entries)
  if run_directory.METRICS in later:
    rows = metrics_file.read(directory.file(run_directory.METRICS))
    found[run_directory.METRICS] = len(rows)
  if run_directory.REPORT in later:
    report = directory.read(run_directory.REPORT)
    run = report.get('run') or report.get('simulated_cohort')
    # Without privacy, the report has no number of rounds.
    found[run_directory.REPORT] = run['rounds_completed'] if run else rounds
  if later and not has_ledger:
    problem = f'is gone, but there is {", ".join(later)}'
  elif max(found.values(), default=0) > rounds:
    problem = (
      f'has {rounds} rounds, but there are {found}: lines are missing at its end'
    )
  elif has_checkpoint or not (rounds or later):
    return Status(rounds, is_finished=False)  # Or before its first checkpoint.
  elif len(found) == 2 and {rounds, *found.values()} == {num_rounds}:
    return Status(rounds, is_finished=True)
  else:
    problem = (
      f'has {rounds} of {num_rounds} rounds, other files {found}, and there is no '
      f'checkpoint in {run_directory.CHECKPOINTS} to go on from'
    )
  raise run_directory.FilesError(
    f'{path} {problem}. What was released is spent, and its noise must not be used '
    'again. Put the files back, or begin another run in another run_dir.'
  )


def write_report(directory: run_directory.RunDirectory) -> dict[str, Any]:
  """Writes the privacy report in all formats, and copies what reviewers may have.

  The page in `share/` has no measurements on test data, which may be clients'.
  """
  stated = statement.build(sources.from_run_dir(directory.path))
  learned = learning_curves.of_run(directory.path)
  for suffix, form in _FORMS.items():
    directory.write(f'report.{suffix}', rendering.render(stated, form, learned))
  directory.share({'report.html': rendering.render(stated, 'html')})
  return stated
