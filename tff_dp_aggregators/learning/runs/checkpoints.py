"""Checkpoints of a run, of which the last two are kept."""

import io
import json
import os
from typing import Any, NamedTuple, Optional

import numpy as np
import tensorflow as tf

from tff_dp_aggregators.accounting.records import ledger
from tff_dp_aggregators.base import new_files

_PREFIX = 'after_round_'
_NUM_KEPT = 2
_BYTES = 'bytes_'  # Prefix of entries that are bytes or text.


class Checkpoint(NamedTuple):
  """The state of a run after some rounds."""

  rounds: int  # Number of rounds completed.
  state: Any  # State of the learning process, with the key of the noise.
  head: ledger.Head  # Of the ledger when it was written.
  # If the last round cannot be run again, and its line may be missing: JSON values that
  # its line and its metrics need. Otherwise `None`.
  measured: Optional[dict[str, Any]] = None


class Checkpoints:
  """The last checkpoints of a run, in a directory that only its owner may enter.

  They hold the key of the noise: with it, released results reveal the exact sums.
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
    _, state, head, measured = checkpoint
    content = to_bytes((state, *head, json.dumps(measured)))
    new_files.replace(path, content, is_private=True)
    for rounds in _rounds(self._directory)[:-_NUM_KEPT]:
      os.unlink(self._path(rounds))

  def latest(self, state: Any) -> Optional[Checkpoint]:
    """Returns the last checkpoint, or `None`; `state` has the same structure."""
    saved = _rounds(self._directory)
    if not saved:
      return None
    path = self._path(saved[-1])
    try:
      with open(path, 'rb') as file:
        content = from_bytes(file.read(), (state, 0, '', ''))
    except (OSError, ValueError) as e:
      raise ValueError(
        f'the checkpoint {path} cannot be read: {e}. If it is of an earlier version, '
        'that resumes it. Otherwise put it back; or move it away, and the run goes on '
        'from the one before, if that is there.'
      ) from e
    loaded, lines, sha256, measured = content
    head = ledger.Head(int(lines), sha256)
    return Checkpoint(saved[-1], loaded, head, json.loads(measured))

  def _path(self, rounds: int) -> str:
    return os.path.join(self._directory, f'{_PREFIX}{rounds}')


def is_any(directory: str) -> bool:
  """Whether a directory exists and has a checkpoint."""
  return os.path.isdir(directory) and bool(_rounds(directory))


def _rounds(directory: str) -> list[int]:
  """Sorted numbers of rounds in the names of checkpoints."""
  numbers = (name.removeprefix(_PREFIX) for name in os.listdir(directory))
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
