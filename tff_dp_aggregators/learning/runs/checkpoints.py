"""Checkpoints of a run: the state after some rounds, kept by TFF's state manager."""

import asyncio
import glob
import itertools
import logging
import os
import shutil
from collections.abc import Coroutine
from concurrent import futures
from typing import Any, NamedTuple, Optional, TypeVar

import tensorflow_federated as tff

from tff_dp_aggregators.accounting.records import ledger
from tff_dp_aggregators.base import new_files

_logger = logging.getLogger(__name__)
T = TypeVar('T')
_PREFIX = 'after_round_'


class Checkpoint(NamedTuple):
  """Where a run was.

  Attributes:
    rounds: Rounds completed.
    state: That of the learning process, with the key of the noise.
    head: That of the ledger.
  """

  rounds: int
  state: Any
  head: ledger.Head


class Checkpoints:
  """The last checkpoints of a run, in a directory that only its owner may enter.

  They hold the key of the noise: who has them and what was released knows the sums.
  """

  def __init__(self, directory: str):
    """Makes the directory, or takes up one.

    What writes left in it that were killed is removed, of other modules as well.

    Args:
      directory: Where: in a run directory that this process has locked.
    """
    os.makedirs(directory, mode=0o700, exist_ok=True)
    os.chmod(directory, 0o700)
    self._directory = directory
    new_files.remove_half_written(directory)
    for half in glob.glob(os.path.join(glob.escape(directory), f'{_PREFIX}*_temp*')):
      shutil.rmtree(half)  # Of a run that was killed.
    self._manager = tff.program.FileProgramStateManager(
      directory, _PREFIX, keep_total=2, keep_first=False
    )

  def save(self, checkpoint: Checkpoint) -> None:
    """Keeps a checkpoint, unless there is one after as many rounds.

    When it returns, the checkpoint is on disk; so is the one before, which stays.

    Raises:
      OSError: If it cannot be written; those before are there still.
    """
    structure = (checkpoint.state, checkpoint.head.lines, checkpoint.head.sha256)
    try:
      wait(self._manager.save(structure, checkpoint.rounds))
    except tff.program.ProgramStateExistsError:
      return
    new_files.sync_tree(self._path(checkpoint.rounds))

  def latest(self, state: Any) -> Optional[Checkpoint]:
    """The last checkpoint that can be read; `None` if there is none.

    Those after it, which a power cut may have left half written, get another name: the
    rounds between are run again, and have lines in the ledger to be compared with.

    Args:
      state: A state of the same structure.

    Raises:
      ValueError: If there are checkpoints, and none of them can be read.
    """
    errors: dict[int, Exception] = {}
    for rounds in reversed(wait(self._manager.get_versions()) or []):
      try:
        found = self._load(rounds, state)
      except Exception as e:  # Whatever TensorFlow makes of files that are broken.
        errors[rounds] = e
        continue
      for broken, error in errors.items():
        self._put_aside(broken, error)
      return found
    if errors:
      rounds, error = next(iter(errors.items()))
      raise ValueError(
        f'the checkpoint {self._path(rounds)} cannot be read, nor is there an older '
        f'one that can: {type(error).__name__}: {error}. Put it back, or begin another '
        'run in another run_dir.'
      ) from error
    return None

  def _load(self, rounds: int, like: Any) -> Checkpoint:
    state, lines, sha256 = wait(self._manager.load(rounds, (like, 0, '')))
    return Checkpoint(rounds, state, ledger.Head(int(lines), sha256.decode()))

  def _put_aside(self, rounds: int, error: Exception) -> None:
    path = self._path(rounds)
    for number in itertools.count(1):
      aside = os.path.join(self._directory, f'unreadable_{number}_{_PREFIX}{rounds}')
      if not os.path.lexists(aside):
        break
    os.rename(path, aside)
    _logger.warning(
      'The checkpoint %s cannot be read (%s: %s) and is now %s; going on from an older '
      'one.',
      path,
      type(error).__name__,
      error,
      aside,
    )

  def _path(self, rounds: int) -> str:
    return os.path.join(self._directory, f'{_PREFIX}{rounds}')


def is_any(directory: str) -> bool:
  """Whether a directory has a checkpoint, of whatever round."""
  return any(
    name.startswith(_PREFIX) and name.removeprefix(_PREFIX).isdigit()
    for name in os.listdir(directory)
  )


def wait(coroutine: Coroutine[Any, Any, T]) -> T:
  """What a coroutine returns; also in a notebook, where an event loop runs already.

  Args:
    coroutine: Of TFF's managers of states.
  """
  with futures.ThreadPoolExecutor(max_workers=1) as thread:
    return thread.submit(lambda: asyncio.run(coroutine)).result()
