"""What a cell says, and why it failed: files beside those of its run.

A run begins only in an empty directory. So while it runs its log is beside that, and
comes into it at the end; what an attempt left that never began is taken out again.
"""

import os

from tff_dp_aggregators.base import new_files
from tff_dp_aggregators.learning.runs import run_directory

LOG, ERROR = 'log.txt', 'error.txt'


def path_of(directory: str) -> str:
  """The log of a cell while it runs."""
  return f'{directory}.log'


def begin(directory: str) -> str:
  """Makes the directory of a cell fit to run in; returns the path of its log.

  Args:
    directory: Of the cell, which may not exist yet.
  """
  os.makedirs(os.path.dirname(directory), exist_ok=True)
  _remove(os.path.join(directory, ERROR))
  log = os.path.join(directory, LOG)
  if os.path.exists(log) and not _has_begun(directory):
    _append(log, path_of(directory))
    os.unlink(log)
  return path_of(directory)


def end(directory: str) -> None:
  """Brings the log of a cell into its directory."""
  log = path_of(directory)
  if os.path.exists(log):
    os.makedirs(directory, exist_ok=True)
    _append(log, os.path.join(directory, LOG))
    os.unlink(log)


def fail(directory: str, reason: str) -> str:
  """Writes down why a cell failed; returns the path.

  Args:
    directory: Of the cell.
    reason: All that is known.
  """
  os.makedirs(directory, exist_ok=True)
  path = os.path.join(directory, ERROR)
  new_files.replace(path, reason.rstrip('\n') + '\n')
  return path


def error_of(directory: str) -> str:
  """The last line of why a cell failed; '' if it did not."""
  try:
    with open(os.path.join(directory, ERROR), encoding='utf-8') as file:
      return last_line(file.read())
  except FileNotFoundError:
    return ''


def last_line(text: str) -> str:
  """The last line that is not empty."""
  lines = [line.strip() for line in text.splitlines() if line.strip()]
  return lines[-1] if lines else ''


def _has_begun(directory: str) -> bool:
  return os.path.exists(os.path.join(directory, run_directory.CONFIG))


def _append(source: str, target: str) -> None:
  with open(source, 'rb') as file:
    text = file.read()
  with open(target, 'ab') as file:
    file.write(text)


def _remove(path: str) -> None:
  try:
    os.unlink(path)
  except FileNotFoundError:
    pass
