"""Whether a run directory is the one that its run began in, or a copy.

A copy has the key of the noise. If original and copy both go on, on other data, what
one released takes the noise away from what the other did, and no ledger shows it. So a
copy does not go on unless somebody says that the original never will.

What tells them apart is the number of the directory's inode: it stays in a move within
a file system, and not in a copy. Some network file systems number anew when they are
mounted; there a run has to be told as well.
"""

import json
import os

from tff_dp_aggregators.base import new_files
from tff_dp_aggregators.learning.runs import run_directory

# Beside the checkpoints, which have the key.
FILE = os.path.join(run_directory.CHECKPOINTS, 'original.json')


def mark(directory: run_directory.RunDirectory) -> None:
  """Marks a directory with checkpoints as the original, unless one is marked."""
  path = directory.file(FILE)
  if not os.path.exists(path):
    directory.check_in_place()
    new_files.replace(path, json.dumps({'inode': _inode(directory)}) + '\n')


def check(directory: run_directory.RunDirectory) -> None:
  """Refuses a directory that was copied from the one that was marked.

  Args:
    directory: Of a run that is to go on.

  Raises:
    ValueError: If it is a copy; the message says what to do if the original is gone.
  """
  path = directory.file(FILE)
  if not os.path.exists(path):
    return
  with open(path, encoding='utf-8') as file:
    marked = json.load(file)
  if marked != {'inode': _inode(directory)}:
    raise ValueError(
      f'{directory.path} is a copy of the directory that its run began in, or was '
      'moved to another file system. A copy has the key of the noise: if the original '
      'goes on as well, the noise of both cancels. If the original is gone, as after '
      f'a backup was restored, remove {path}, and the same call goes on here. '
      'Otherwise begin another run in another run_dir.'
    )


def _inode(directory: run_directory.RunDirectory) -> int:
  return os.stat(directory.path).st_ino
