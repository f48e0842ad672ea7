"""What a cell says, and why it failed: files beside those of its run.

A run begins only in an empty directory. So while it runs its log is beside that, and
comes into it at the end; what an attempt left that never began is taken out again.

Whoever runs a cell holds its log, so that nobody else does, here or on another machine
(`base.folder_lock` says how far that goes): a cell that is begun again waits for it,
before the run's own directory is there.
"""

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from typing import Optional

from tff_dp_aggregators.base import new_files
from tff_dp_aggregators.learning.runs import run_directory

LOG, ERROR = 'log.txt', 'error.txt'
_TICK_SECONDS = 0.2


def path_of(directory: str) -> str:
  """The log of a cell while it runs."""
  return f'{directory}.log'


def begin(directory: str) -> str:
  """Makes the directory of a cell fit to run in; returns the path of its log.

  Args:
    directory: Of the cell, which may not exist yet.
  """
  os.makedirs(os.path.dirname(directory), exist_ok=True)
  _remove(error_path_of(directory))
  log = os.path.join(directory, LOG)
  if os.path.exists(log) and not _has_begun(directory):
    _append(log, path_of(directory))
    os.unlink(log)
  return path_of(directory)


@contextlib.contextmanager
def held(path: str, patience_seconds: float) -> Iterator[None]:
  """Holds a log, so that this process alone runs the cell.

  Args:
    path: Of the log, which is made if it is not there.
    patience_seconds: How long to wait for a process that holds it and is about to end.

  Raises:
    BlockingIOError: If another process still holds it after that.
  """
  deadline = time.monotonic() + patience_seconds
  while (descriptor := _try_to_hold(path)) is None:
    if time.monotonic() > deadline:
      raise BlockingIOError(
        f'another process, here or on another machine, still runs the cell of {path} '
        f'after {patience_seconds:.0f} seconds; wait for it, or end it.'
      )
    time.sleep(_TICK_SECONDS)
  try:
    yield
  finally:
    os.close(descriptor)


def _try_to_hold(path: str) -> Optional[int]:
  """A descriptor that holds the log; `None` if another one does."""
  descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
  is_held = False
  try:
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    # Whoever held it before may have brought it into the directory.
    is_held = os.path.samestat(os.fstat(descriptor), os.stat(path))
  except (BlockingIOError, FileNotFoundError):
    pass
  finally:
    if not is_held:
      os.close(descriptor)
  return descriptor if is_held else None


def end(directory: str) -> None:
  """Brings the log of a cell into its directory."""
  log = path_of(directory)
  if os.path.exists(log):
    os.makedirs(directory, exist_ok=True)
    _append(log, os.path.join(directory, LOG))
    os.unlink(log)


def fail(directory: str, reason: str) -> str:
  """Writes down why a cell failed; returns the last line of that.

  Args:
    directory: Of the cell.
    reason: All that is known.
  """
  os.makedirs(directory, exist_ok=True)
  new_files.replace(error_path_of(directory), reason.rstrip('\n') + '\n')
  return last_line(reason)


def error_path_of(directory: str) -> str:
  """Where it is written why a cell failed."""
  return os.path.join(directory, ERROR)


def error_of(directory: str) -> str:
  """The last line of why a cell failed; '' if it did not."""
  try:
    with open(error_path_of(directory), encoding='utf-8') as file:
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
