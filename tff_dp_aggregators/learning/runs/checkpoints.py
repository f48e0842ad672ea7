"""Checkpoints of a run, and results of rounds that cannot be computed again."""

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
_NUM_KEPT = 2
_BYTES = 'bytes_'  # Prefix of entries that are bytes or text.


class Checkpoint(NamedTuple):
  """The state of a run after some rounds."""

  rounds: int  # Number of rounds completed.
  state: Any  # State of the learning process, with the key of the noise.
  head: ledger.Head


class KeptRound(NamedTuple):
  """The result of a round."""

  state: Any  # State of the learning process after it.
  measured: dict[str, Any]  # JSON values: what else its line and metrics need.


class Checkpoints:
  """The last checkpoints of a run, in a directory that only its owner may enter.

  They hold the key of the noise: with it, released results reveal the exact sums.

  Beside them are results of rounds that cannot be run again, until a checkpoint has
  them. Noise that clients draw is in no state: such a round, run again, would release
  the same clients' data with other noise, unnoticed. And what a cluster trains may have
  other last digits on the machines of a resumed run. So the result is on disk before
  its line is in the ledger, and a resumed run reads it from there.
  """

  def __init__(self, directory: str):
    """Makes the directory, or opens it and removes files that are half written."""
    os.makedirs(directory, mode=0o700, exist_ok=True)
    os.chmod(directory, 0o700)
    self._directory = directory
    new_files.remove_half_written(directory)

  def save(self, checkpoint: Checkpoint) -> None:
    """Writes a checkpoint unless it exists; keeps the one before, no older ones."""
    path = self._path(checkpoint.rounds)
    if os.path.exists(path):
      return
    head = checkpoint.head
    content = to_bytes((checkpoint.state, head.lines, head.sha256))
    new_files.replace(path, content, is_private=True)
    saved = _rounds(self._directory)
    for rounds in saved[:-_NUM_KEPT]:
      os.unlink(self._path(rounds))
    for number in _rounds(self._directory, _RESULT_PREFIX):
      if number < saved[-_NUM_KEPT:][0]:  # The older checkpoint may still be needed.
        os.unlink(self._path(number, _RESULT_PREFIX))

  def latest(self, state: Any) -> Optional[Checkpoint]:
    """Returns the last checkpoint that can be read; `None` if there is none.

    Later ones, which a disk may have damaged, are renamed: the rounds between are run
    again and compared with their lines in the ledger. `state` has the same structure.
    """
    errors: dict[int, Exception] = {}
    for rounds in reversed(_rounds(self._directory)):
      try:
        with open(self._path(rounds), 'rb') as file:
          loaded, lines, sha256 = from_bytes(file.read(), (state, 0, ''))
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
      return Checkpoint(rounds, loaded, ledger.Head(int(lines), sha256))
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
    """Whether the result of any round is kept."""
    return bool(_rounds(self._directory, _RESULT_PREFIX))

  def save_result(self, number: int, kept: KeptRound) -> None:
    """Writes the result of a round; it is on disk when this returns."""
    content = to_bytes((kept.state, json.dumps(kept.measured)))
    new_files.replace(self._path(number, _RESULT_PREFIX), content, is_private=True)

  def result(self, number: int, template: Any) -> Optional[KeptRound]:
    """Returns the result of a round; `None` if it is missing or incomplete."""
    try:
      with open(self._path(number, _RESULT_PREFIX), 'rb') as file:
        state, measured = from_bytes(file.read(), (template, ''))
    except (FileNotFoundError, ValueError):
      return None
    return KeptRound(state, json.loads(measured))

  def _path(self, rounds: int, prefix: str = _PREFIX) -> str:
    return os.path.join(self._directory, f'{prefix}{rounds}')


def is_any(directory: str) -> bool:
  """Whether a directory exists and has a checkpoint."""
  return os.path.isdir(directory) and bool(_rounds(directory))


def _rounds(directory: str, prefix: str = _PREFIX) -> list[int]:
  """Sorted numbers in the names of checkpoints (rounds completed) or of results."""
  names = [name for name in os.listdir(directory) if name.startswith(prefix)]
  numbers = [name.removeprefix(prefix) for name in names]
  return sorted(int(number) for number in numbers if number.isdigit())


def to_bytes(structure: Any) -> bytes:
  """Serializes arrays, numbers, bytes and texts in NumPy's format, with checksums."""
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


def from_bytes(content: bytes, template: Any) -> Any:
  """Inverts `to_bytes`; `template` has the same structure. Numbers are NumPy's."""
  flat = []
  try:
    with np.load(io.BytesIO(content)) as arrays:
      for number, leaf in enumerate(tf.nest.flatten(template)):
        if f'{_BYTES}{number}' in arrays:
          text = arrays[f'{_BYTES}{number}'].tobytes()
          flat.append(text.decode() if isinstance(leaf, str) else text)
        else:
          dtype = np.asarray(leaf).dtype
          array = arrays[str(number)]
          # NumPy loads dtypes that are not its own as raw bytes, of kind 'V'.
          flat.append((array.view(dtype) if array.dtype.kind == 'V' else array)[()])
      if len(arrays.files) != len(flat):
        raise ValueError(f'it has {len(arrays.files)} parts, and a state {len(flat)}')
  except Exception as e:  # NumPy and zipfile raise many kinds for a damaged file.
    raise ValueError(f'it is not whole: {e}') from e
  return tf.nest.pack_sequence_as(template, flat)
