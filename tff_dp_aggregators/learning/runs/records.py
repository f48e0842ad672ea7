"""Reads and writes the records of a run: aborted attempts, progress, and its report.

Released rounds are in the ledger, which is on disk before any other file has the round.
So if another file has more rounds than the ledger, lines are lost, and a resumed run
would use their noise on other data.
"""

import collections
import json
from collections.abc import Iterator, Sequence
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

_NAMES = 'round attempt cohort_requested cohort_reported reporting_goal'.split()
_FORMS = {'md': 'markdown', 'json': 'json', 'html': 'html'}
_REMEDY = 'Put it back, or begin another run in another run_dir.'


def write_aborted(
  ledger: ledger_lib.LedgerWriter,
  number: int,
  attempts: Sequence[sampling.Attempt],
  reporting_goal: Optional[int],
) -> None:
  """Writes the lines of a round's aborted attempts, or confirms existing ones."""
  written = ledger.aborted_attempts(number)
  expected = list(_aborted(number, attempts, reporting_goal))
  if written > len(expected):
    raise ValueError(
      f'at round {number} the ledger has {written} aborted attempts, but the schedule '
      f'{len(expected)}. Go on with the schedule that the run was begun with.'
    )
  for line in expected:
    if line['attempt'] < written:
      ledger.confirm_aborted(**line)
    else:
      ledger.append_aborted(**line)


def check_attempts(ledger: ledger_lib.Ledger, schedule: sampling.Schedule) -> None:
  """Checks that the cohorts of all rounds and attempts are those of a schedule."""
  by_round = collections.defaultdict(list)
  for aborted in ledger.aborted:
    line = {name: getattr(aborted, name) for name in _NAMES}  # Without time and hash.
    by_round[aborted.round].append(line)
  rounds = len(ledger.entries)
  for number in range(rounds + (rounds in by_round)):
    attempts, lines = schedule.attempts(number), by_round[number]
    expected = list(_aborted(number, attempts, schedule.reporting_goal))
    if number == rounds:  # The round has no line yet.
      expected = expected[: len(lines)]
    else:
      entry = ledger.entries[number]
      sizes = (len(attempts[-1].requested), len(attempts[-1].reporting))
      noted = (entry.cohort_requested, entry.cohort_reported)
      if noted not in (sizes, (None, None)):  # None if drawn in secret.
        raise ValueError(
          f'in round {number} of the ledger {noted[1]} of {noted[0]} clients reported, '
          f'but in the schedule {sizes[1]} of {sizes[0]}: they are not of the same run.'
        )
    if lines != expected:
      raise ValueError(
        f'the ledger has the aborted attempts {lines}, but the schedule {expected}: '
        'they are not of the same run.'
      )


def _aborted(
  number: int, attempts: Sequence[sampling.Attempt], reporting_goal: Optional[int]
) -> Iterator[dict[str, Any]]:
  """Yields the fields of the lines of a round's aborted attempts."""
  for index, attempt in enumerate(attempts):
    if not attempt.completed:
      sizes = len(attempt.requested), len(attempt.reporting)
      yield dict(zip(_NAMES, (number, index, *sizes, reporting_goal)))


class Status(NamedTuple):
  """How far a run is."""

  rounds: int  # Released rounds, which the ledger has.
  is_finished: bool  # All rounds were run and reported, and no checkpoint is left.


def find(directory: run_directory.RunDirectory, num_rounds: int) -> Status:
  """Returns how far a run is; raises FilesError if its files contradict each other."""
  path = directory.file(run_directory.LEDGER)
  # Existing files that are written after the ledger.
  later = [
    name
    for name in (
      run_directory.METRICS,
      run_directory.MODEL,
      run_directory.REPORT,
      run_directory.EVENTS,
    )
    if directory.has(name)
  ]
  has_checkpoint = checkpoints.is_any(directory.file(run_directory.CHECKPOINTS))
  if has_checkpoint:
    later.append(run_directory.CHECKPOINTS)
  if not directory.has(run_directory.LEDGER):
    if later:
      raise run_directory.FilesError(
        f'{path} is gone, but there is {", ".join(later)}: the run had begun, and '
        f'without it nobody can tell which rounds were released. {_REMEDY}'
      )
    return Status(0, is_finished=False)
  with run_directory.reading(path):
    rounds = len(ledger_lib.read(path, as_resumed=has_checkpoint).entries)
  counts = {}
  if run_directory.METRICS in later:
    metrics = directory.file(run_directory.METRICS)
    counts[run_directory.METRICS] = metrics_file.count(metrics)
  if run_directory.REPORT in later:
    report = read_report(directory)
    run = report.get('run') or report.get('simulated_cohort')
    if run is not None:  # Without privacy, the report has no number of rounds.
      counts[run_directory.REPORT] = int(run['rounds_completed'])
  for name, more in counts.items():
    if more > rounds:
      raise run_directory.FilesError(
        f'{path} has {rounds} rounds, but {directory.file(name)} has {more}: lines are '
        f'missing from its end. What they spent is spent, and their noise must not be '
        f'used again. {_REMEDY}'
      )
  # A run without rounds was stopped before its first checkpoint.
  if has_checkpoint or not (rounds or later):
    return Status(rounds, is_finished=False)
  if {run_directory.METRICS, run_directory.REPORT} <= set(later):
    if {rounds, *counts.values()} == {num_rounds}:
      return Status(rounds, is_finished=True)
  raise run_directory.FilesError(
    f'there is no checkpoint in {directory.file(run_directory.CHECKPOINTS)} to go on '
    f'from, and the run is not finished: {path} has {rounds} of {num_rounds} rounds'
    f'{"".join(f", {name} {each}" for name, each in counts.items())}. {_REMEDY}'
  )


def write_report(
  directory: run_directory.RunDirectory,
  schedule: sampling.Schedule,
  *,
  has_mechanism: bool,
) -> dict[str, Any]:
  """Writes the privacy report in all formats, and copies what reviewers may have.

  The page in `share/` has no measurements on test data, which may be clients'.
  """
  check_attempts(ledger_lib.read(directory.file(run_directory.LEDGER)), schedule)
  if has_mechanism:
    stated = statement.build(sources.from_run_dir(directory.path))
  else:
    inputs = sources.without_privacy(directory.path)
    stated = statement.build_without_privacy(inputs)
  learned = learning_curves.of_run(directory.path)
  for suffix, form in _FORMS.items():
    directory.write(f'report.{suffix}', rendering.render(stated, form, learned))
  directory.share({'report.html': rendering.render(stated, 'html')})
  return stated


def read_report(directory: run_directory.RunDirectory) -> dict[str, Any]:
  """Returns the statement of the last report."""
  path = directory.file(run_directory.REPORT)
  with run_directory.reading(path), open(path, encoding='utf-8') as file:
    stated: dict[str, Any] = json.load(file)
    return stated
