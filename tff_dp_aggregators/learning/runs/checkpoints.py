"""Checkpoints of a run, a file each; and results of rounds that no other run gives."""

import io
import json
import logging
import os
import time
from typing import Any, NamedTuple, Optional

import numpy as np
import tensorflow as tf

from tff_dp_aggregators.accounting.records import ledger
from tff_dp_aggregators.base import new_files

_logger = logging.getLogger(__name__)
_PREFIX, _RESULT_PREFIX = 'after_round_', 'result_of_round_'
_KEPT = 2
_BYTES = 'bytes_'  # Of what is not an array.


class Checkpoint(NamedTuple):
  """Where a run was."""

  rounds: int  # Completed.
  state: Any  # That of the learning process, with the key of the noise.
  head: ledger.Head


class KeptRound(NamedTuple):
  """What a round came to."""

  state: Any  # That of the learning process after it.
  measured: dict[str, Any]  # JSON-ready: what else its line and metrics are made of.


class Checkpoints:
  """The last checkpoints of a run, in a directory that only its owner may enter.

  They hold the key of the noise: who has them and what was released knows the sums.

  Beside them are results of rounds that cannot be run again, until a checkpoint has
  them. Noise that clients draw is in no state: run again, the round would be another
  release of the same clients, with other noise, and nothing would tell. Nor may what a
  cluster trained come to the same last digits on those that go on. So the result is on
  disk before its line is in the ledger, and who goes on takes it from there.
  """

  def __init__(self, directory: str):
    """Makes the directory, or takes up one, without what is half written."""
    os.makedirs(directory, mode=0o700, exist_ok=True)
    os.chmod(directory, 0o700)
    self._directory = directory
    new_files.remove_half_written(directory)

  def save(self, checkpoint: Checkpoint) -> None:
    """Keeps a checkpoint on disk beside the one before, unless it is there."""
    path = self._path(checkpoint.rounds)
    if os.path.exists(path):
      return
    head = checkpoint.head
    content = to_bytes((checkpoint.state, head.lines, head.sha256))
    new_files.replace(path, content, is_private=True)
    there = _rounds(self._directory)
    for rounds in there[:-_KEPT]:
      os.unlink(self._path(rounds))
    for number in _rounds(self._directory, _RESULT_PREFIX):
      if number < there[-_KEPT:][0]:  # The older one may be needed yet.
        os.unlink(self._path(number, _RESULT_PREFIX))

  def latest(self, state: Any) -> Optional[Checkpoint]:
    """The last checkpoint that can be read; `None` if there is none.

    Those after it, which a disk may have damaged, get another name: the rounds between
    are run again, and have lines in the ledger to be compared with.
    """
    errors: dict[int, Exception] = {}
    for rounds in reversed(_rounds(self._directory)):
      try:
        with open(self._path(rounds), 'rb') as file:
          found, lines, sha256 = from_bytes(file.read(), (state, 0, ''))
      except (OSError, ValueError) as e:
        errors[rounds] = e
        continue
      for broken, error in errors.items():
        path = self._path(broken)
        aside = os.path.join(self._directory, f'unreadable_{broken}_{time.time_ns()}')
        os.rename(path, aside)
        _logger.warning(
          'The checkpoint %s cannot be read (%r), is now %s; an older one is taken.',
          path,
          error,
          aside,
        )
      return Checkpoint(rounds, found, ledger.Head(int(lines), sha256))
    if errors:
      rounds, error = next(iter(errors.items()))
      raise ValueError(
        f'the checkpoint {self._path(rounds)} cannot be read, nor is there an older '
        f'one that can: {type(error).__name__}: {error}. Put it back, or begin another '
        'run in another run_dir.'
      ) from error
    return None

  @property
  def has_results(self) -> bool:
    """Whether the result of any round is there."""
    return bool(_rounds(self._directory, _RESULT_PREFIX))

  def save_result(self, number: int, kept: KeptRound) -> None:
    """Keeps the result of a round; when it returns, it is on disk."""
    content = to_bytes((kept.state, json.dumps(kept.measured)))
    new_files.replace(self._path(number, _RESULT_PREFIX), content, is_private=True)

  def result(self, number: int, like: Any) -> Optional[KeptRound]:
    """The result of a round; `None` if it is not there, or not whole."""
    try:
      with open(self._path(number, _RESULT_PREFIX), 'rb') as file:
        state, measured = from_bytes(file.read(), (like, ''))
    except (FileNotFoundError, ValueError):
      return None
    return KeptRound(state, json.loads(measured))

  def _path(self, rounds: int, prefix: str = _PREFIX) -> str:
    return os.path.join(self._directory, f'{prefix}{rounds}')


def is_any(directory: str) -> bool:
  """Whether a directory is there and has a checkpoint, of whatever round."""
  return os.path.isdir(directory) and bool(_rounds(directory))


def _rounds(directory: str, prefix: str = _PREFIX) -> list[int]:
  """After how many rounds there are checkpoints; of results, which rounds'."""
  names = [name for name in os.listdir(directory) if name.startswith(prefix)]
  numbers = [name.removeprefix(prefix) for name in names]
  return sorted(int(number) for number in numbers if number.isdigit())


def to_bytes(structure: Any) -> bytes:
  """A file of arrays, numbers, bytes and texts in NumPy's format, with checksums."""
  arrays = {}
  for number, leaf in enumerate(tf.nest.flatten(structure)):
    text = leaf.encode() if isinstance(leaf, str) else np.asarray(leaf)[()]
    if isinstance(text, bytes):
      arrays[f'{_BYTES}{number}'] = np.frombuffer(text, np.uint8)
    else:
      arrays[str(number)] = np.asarray(leaf)
  buffer = io.BytesIO()
  np.savez(buffer, **arrays)
  return buffer.getvalue()


def from_bytes(content: bytes, like: Any) -> Any:
  """What `to_bytes` was given; numbers are NumPy's."""
  flat = []
  try:
    with np.load(io.BytesIO(content)) as arrays:
      for number, leaf in enumerate(tf.nest.flatten(like)):
        if f'{_BYTES}{number}' in arrays:
          text = arrays[f'{_BYTES}{number}'].tobytes()
          flat.append(text.decode() if isinstance(leaf, str) else text)
        else:
          dtype = np.asarray(leaf).dtype
          array = arrays[str(number)]
          # NumPy forgets the names of dtypes that are not its own.
          flat.append((array.view(dtype) if array.dtype.kind == 'V' else array)[()])
      if len(arrays.files) != len(flat):
        raise ValueError(f'it has {len(arrays.files)} parts, and a state {len(flat)}')
  except Exception as e:  # Whatever NumPy and zipfile make of a damaged file.
    raise ValueError(f'it is not whole: {e}') from e
  return tf.nest.pack_sequence_as(like, flat)
