"""What a Dask worker does for a comparison: runs a cell in a process of its own.

Dask loads this module by its name on the worker, which so has to have this package.
Nothing in it needs TensorFlow: that is loaded in the process, which ends with the task,
so that no cell has anything of another one's, and ends with the worker.
"""

import functools
import os
import sys
import time
from collections.abc import Mapping
from typing import Any

import distributed

from tff_dp_aggregators.base import version

from . import process

# What else may become of a cell: the worker is not fit to run it, or it was not begun
# since the comparison stops.
UNFIT, NOT_BEGUN = 'unfit', 'not begun'
_UNWANTED = 'cancelled'  # Dask's state of a task that runs and whose result is no use.
_ADVICE = 'Dask workers with fewer threads, on each of which a cell runs, need less'
# What comparisons want of their cells, by the name of the comparison's execution.
_wishes: dict[str, process.Wish] = {}


@functools.cache
def software() -> dict[str, str]:
  """Versions that have to be the same for a cell to come to the same."""
  return {
    'Python': '.'.join(map(str, sys.version_info[:2])),
    'tff_dp_aggregators': str(version.current()),
    **version.of_libraries(),
  }


def unfit(expected: Mapping[str, Any]) -> str:
  """Why cells cannot be run here, in a clause; '' if they can.

  Args:
    expected: What the program has as `software`; and, if that is known by now, the
      `folder` that it works in, and a `file` with a `text` and an `inode`, as they are
      seen there.
  """
  own = software()
  for name, theirs in expected['software'].items():
    if own[name] != theirs:
      return f'has {name} {own[name]}, and this program {theirs}'
  if 'file' not in expected:
    return ''
  folder, path = expected['folder'], expected['file']
  if not os.path.isdir(folder):
    return f'has no folder {folder}, which this program was started in'
  try:
    with open(path, encoding='utf-8') as file:
      text, inode = file.read(), os.fstat(file.fileno()).st_ino
  except OSError as e:
    return f'does not see what is in {os.path.dirname(path)}: {e.strerror}'
  if text != expected['text']:
    return f'has another {os.path.dirname(path)} than this program'
  if inode != expected['inode']:
    # By which a run tells a copy of its directory, with which it would not go on.
    return f'has other inode numbers in {os.path.dirname(path)} than this program'
  if not os.access(os.path.dirname(path), os.W_OK):
    return f'may not write to {os.path.dirname(path)}'
  return ''


def wish(execution: str, wished: process.Wish) -> None:
  """Says what is wanted of cells that run here, or are to be run.

  Args:
    execution: Of the comparison.
    wished: What of its cells.
  """
  _wishes[execution] = max(wished, _wishes.get(execution, process.Wish.GO_ON))


def run(
  job: Mapping[str, Any], expected: Mapping[str, Any], execution: str
) -> dict[str, Any]:
  """Runs a cell; returns what became of it, and the address of the worker.

  Args:
    job: The cell.
    expected: See `unfit`.
    execution: Of the comparison.
  """
  worker = distributed.get_worker()
  reason = unfit(expected)
  if reason:
    return {'status': UNFIT, 'reason': reason, 'worker': worker.address}
  if execution in _wishes:
    return {'status': NOT_BEGUN, 'worker': worker.address}
  wanted = _Wanted(worker, worker.get_current_task(), execution)
  with process.Place(expected['folder'], _ADVICE) as place:
    answer = place.run(job, wanted.wish)
  return {**answer._asdict(), 'worker': worker.address}


class _Wanted:
  """What is wanted of a task that runs: by the comparison, while there is one."""

  def __init__(self, worker: Any, key: Any, execution: str) -> None:
    self._worker, self._key, self._execution = worker, key, execution
    self._until = float('inf')  # By when the cell has to end that nobody wants.

  def wish(self) -> process.Wish:
    """What is wanted now."""
    task = self._worker.state.tasks.get(self._key)
    if task is not None and task.state != _UNWANTED:
      return _wishes.get(self._execution, process.Wish.GO_ON)
    now = time.monotonic()
    self._until = min(self._until, now + process.LONELY_SECONDS)
    late = now >= self._until
    return process.Wish.END_NOW if late else process.Wish.END_AFTER_ROUND
