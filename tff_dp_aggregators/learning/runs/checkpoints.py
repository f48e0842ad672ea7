"""Checkpoints of a run: the state after some rounds, kept by TFF's state manager."""

import asyncio
import glob
import os
import shutil
from collections.abc import Coroutine
from concurrent import futures
from typing import Any, NamedTuple, Optional, TypeVar

import tensorflow_federated as tff

from tff_dp_aggregators.accounting.records import ledger

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

    Args:
      directory: Where.
    """
    os.makedirs(directory, mode=0o700, exist_ok=True)
    os.chmod(directory, 0o700)
    self._directory = directory
    for half in glob.glob(os.path.join(glob.escape(directory), f'{_PREFIX}*_temp*')):
      shutil.rmtree(half)  # Of a run that was killed.
    self._manager = tff.program.FileProgramStateManager(
      directory, _PREFIX, keep_total=2, keep_first=False
    )

  def save(self, checkpoint: Checkpoint) -> None:
    """Keeps a checkpoint, unless there is one after as many rounds.

    Raises:
      OSError: If it cannot be written; those before are there still.
    """
    structure = (checkpoint.state, checkpoint.head.lines, checkpoint.head.sha256)
    try:
      _wait(self._manager.save(structure, checkpoint.rounds))
    except tff.program.ProgramStateExistsError:
      return

  def latest(self, state: Any) -> Optional[Checkpoint]:
    """The last checkpoint; `None` if there is none.

    Args:
      state: A state of the same structure.

    Raises:
      ValueError: If what is there cannot be read.
    """
    versions = _wait(self._manager.get_versions())
    if not versions:
      return None
    rounds = versions[-1]
    try:
      state, lines, sha256 = _wait(self._manager.load(rounds, (state, 0, '')))
    except (OSError, ValueError, TypeError) as e:
      raise ValueError(
        f'the checkpoint {self._directory}/{_PREFIX}{rounds} cannot be read: {e}'
      ) from e
    return Checkpoint(rounds, state, ledger.Head(int(lines), sha256.decode()))


def is_any(directory: str) -> bool:
  """Whether a directory has a checkpoint, of whatever round."""
  return any(
    name.startswith(_PREFIX) and name.removeprefix(_PREFIX).isdigit()
    for name in os.listdir(directory)
  )


def _wait(coroutine: Coroutine[Any, Any, T]) -> T:
  """What a coroutine returns; also in a notebook, where an event loop runs already."""
  with futures.ThreadPoolExecutor(max_workers=1) as thread:
    return thread.submit(lambda: asyncio.run(coroutine)).result()
