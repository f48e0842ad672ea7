"""How far a run is, by the files that it left; refused if they contradict each other.

What was released is in the ledger, which is on disk before anything else tells of a
round. So nothing else may know of more rounds than the ledger: if it does, lines are
lost, and a run that went on would use their noise on other data.
"""

import os
from typing import NamedTuple

from tff_dp_aggregators.accounting.records import ledger as ledger_lib
from tff_dp_aggregators.learning.runs import checkpoints
from tff_dp_aggregators.learning.runs import metrics_file
from tff_dp_aggregators.learning.runs import reporting
from tff_dp_aggregators.learning.runs import run_directory

_REMEDY = 'Put it back, or begin another run in another run_dir.'


class Found(NamedTuple):
  """How far a run is."""

  rounds: int  # Released: those of the ledger.
  is_finished: bool  # All rounds were run and reported, and nothing is left to do.


def find(directory: run_directory.RunDirectory, num_rounds: int) -> Found:
  """How far the run in a directory is."""
  path = directory.file(run_directory.LEDGER)
  left = _left(directory)
  if not directory.has(run_directory.LEDGER):
    if left:
      raise ValueError(
        f'{path} is gone, but there is {", ".join(left)}: the run had begun, and '
        f'without it nobody can tell which rounds were released. {_REMEDY}'
      )
    return Found(0, is_finished=False)
  rounds = len(ledger_lib.read(path).entries)
  told = _rounds_told(directory)
  for name, more in told.items():
    if more > rounds:
      raise ValueError(
        f'{path} has {rounds} rounds, but {directory.file(name)} has {more}: lines are '
        f'missing from its end. What they spent is spent, and their noise must not be '
        f'used again. {_REMEDY}'
      )
  if _checkpoint_there(directory):
    return Found(rounds, is_finished=False)
  if not rounds and not left:
    return Found(0, is_finished=False)  # Stopped before the first checkpoint.
  if {run_directory.METRICS, run_directory.REPORT} <= set(left):
    # Without privacy the report does not tell rounds.
    if {rounds, *told.values()} == {num_rounds}:
      return Found(rounds, is_finished=True)
  raise ValueError(
    f'there is no checkpoint in {directory.file(run_directory.CHECKPOINTS)} to go on '
    f'from, and the run is not finished: {path} has {rounds} of {num_rounds} rounds'
    f'{"".join(f", {name} {each}" for name, each in told.items())}. {_REMEDY}'
  )


def _checkpoint_there(directory: run_directory.RunDirectory) -> bool:
  path = directory.file(run_directory.CHECKPOINTS)
  return os.path.isdir(path) and checkpoints.is_any(path)


def _left(directory: run_directory.RunDirectory) -> list[str]:
  """Files that come after the ledger."""
  names = (
    run_directory.METRICS,
    run_directory.MODEL,
    run_directory.REPORT,
    run_directory.EVENTS,
  )
  left = [name for name in names if directory.has(name)]
  if _checkpoint_there(directory):
    left.append(run_directory.CHECKPOINTS)
  return left


def _rounds_told(directory: run_directory.RunDirectory) -> dict[str, int]:
  """How many rounds other files know of, by name."""
  told = {}
  if directory.has(run_directory.METRICS):
    path = directory.file(run_directory.METRICS)
    told[run_directory.METRICS] = metrics_file.count(path)
  if directory.has(run_directory.REPORT):
    report = reporting.read(directory)
    run = report.get('run') or report.get('simulated_cohort')
    if run is not None:
      told[run_directory.REPORT] = int(run['rounds_completed'])
  return told
