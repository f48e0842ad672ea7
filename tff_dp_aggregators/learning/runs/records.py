"""What the records of a run say: aborted attempts, how far it is, and its report.

What was released is in the ledger, which is on disk before anything else tells of a
round. So if anything knows of more rounds than the ledger, lines are lost, and a run
that went on would use their noise on other data.
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


def check_attempts(ledger: ledger_lib.Ledger, schedule: sampling.Schedule) -> None:
  """Checks that the cohorts of all rounds and attempts are those of a schedule."""
  found = collections.defaultdict(list)
  for aborted in ledger.aborted:
    line = {name: getattr(aborted, name) for name in _NAMES}  # Without time and hash.
    found[aborted.round].append(line)
  rounds = len(ledger.entries)
  for number in range(rounds + (rounds in found)):
    attempts, lines = schedule.attempts(number), found[number]
    made = list(_aborted(number, attempts, schedule.reporting_goal))
    if number == rounds:  # It has no line yet.
      made = made[: len(lines)]
    else:
      entry = ledger.entries[number]
      sizes = (len(attempts[-1].requested), len(attempts[-1].reporting))
      told = (entry.cohort_requested, entry.cohort_reported)
      if told not in (sizes, (None, None)):  # Those drawn in secret are not told.
        raise ValueError(
          f'in round {number} of the ledger {told[1]} of {told[0]} clients reported, '
          f'but in the schedule {sizes[1]} of {sizes[0]}: they are not of the same run.'
        )
    if lines != made:
      raise ValueError(
        f'the ledger has the aborted attempts {lines}, but the schedule {made}: they '
        'are not of the same run.'
      )


def _aborted(
  number: int, attempts: Sequence[sampling.Attempt], reporting_goal: Optional[int]
) -> Iterator[dict[str, Any]]:
  """What the lines of a round's aborted attempts say."""
  for index, attempt in enumerate(attempts):
    if not attempt.completed:
      sizes = len(attempt.requested), len(attempt.reporting)
      yield dict(zip(_NAMES, (number, index, *sizes, reporting_goal)))


class Found(NamedTuple):
  """How far a run is."""

  rounds: int  # Released: those of the ledger.
  is_finished: bool  # All rounds were run and reported, and nothing is left to do.


def find(directory: run_directory.RunDirectory, num_rounds: int) -> Found:
  """How far the run in a directory is; refused if its files contradict each other."""
  path = directory.file(run_directory.LEDGER)
  # Files that come after the ledger.
  left = [
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
    left.append(run_directory.CHECKPOINTS)
  if not directory.has(run_directory.LEDGER):
    if left:
      raise ValueError(
        f'{path} is gone, but there is {", ".join(left)}: the run had begun, and '
        f'without it nobody can tell which rounds were released. {_REMEDY}'
      )
    return Found(0, is_finished=False)
  rounds = len(ledger_lib.read(path).entries)
  told = {}
  if run_directory.METRICS in left:
    metrics = directory.file(run_directory.METRICS)
    told[run_directory.METRICS] = metrics_file.count(metrics)
  if run_directory.REPORT in left:
    report = read_report(directory)
    run = report.get('run') or report.get('simulated_cohort')
    if run is not None:  # Without privacy the report does not tell rounds.
      told[run_directory.REPORT] = int(run['rounds_completed'])
  for name, more in told.items():
    if more > rounds:
      raise ValueError(
        f'{path} has {rounds} rounds, but {directory.file(name)} has {more}: lines are '
        f'missing from its end. What they spent is spent, and their noise must not be '
        f'used again. {_REMEDY}'
      )
  # Without rounds, it was stopped before the first checkpoint.
  if has_checkpoint or not (rounds or left):
    return Found(rounds, is_finished=False)
  if {run_directory.METRICS, run_directory.REPORT} <= set(left):
    if {rounds, *told.values()} == {num_rounds}:
      return Found(rounds, is_finished=True)
  raise ValueError(
    f'there is no checkpoint in {directory.file(run_directory.CHECKPOINTS)} to go on '
    f'from, and the run is not finished: {path} has {rounds} of {num_rounds} rounds'
    f'{"".join(f", {name} {each}" for name, each in told.items())}. {_REMEDY}'
  )


def write_report(
  directory: run_directory.RunDirectory,
  schedule: sampling.Schedule,
  *,
  has_mechanism: bool,
) -> dict[str, Any]:
  """Writes the privacy report in all forms, and copies what reviewers may have.

  The page in `share/` is without what was measured on test data, which may be clients'.
  """
  check_attempts(ledger_lib.read(directory.file(run_directory.LEDGER)), schedule)
  if has_mechanism:
    stated = statement.build(sources.from_run_dir(directory.path))
  else:
    found = sources.without_privacy(directory.path)
    stated = statement.build_without_privacy(found)
  learned = learning_curves.of_run(directory.path)
  for suffix, form in _FORMS.items():
    directory.write(f'report.{suffix}', rendering.render(stated, form, learned))
  directory.share({'report.html': rendering.render(stated, 'html')})
  return stated


def read_report(directory: run_directory.RunDirectory) -> dict[str, Any]:
  """The statement that the last report was made of."""
  with open(directory.file(run_directory.REPORT), encoding='utf-8') as file:
    stated: dict[str, Any] = json.load(file)
    return stated
