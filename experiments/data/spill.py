"""Arrays that grow on disk in unnamed files, and are memory-mapped for reading.

Such a file disappears with the process, however that ends, so nothing of clients' data
is left behind.
"""

import contextlib
import math
import tempfile
from collections.abc import Iterable, Iterator
from typing import IO, Any, Optional

import numpy as np

_BUFFER = 2**20


class Spill:
  """An array whose entries are appended, then read."""

  def __init__(
    self,
    folder: str,
    dtype: Any,
    shape: tuple[int, ...] = (),  # Shape of one entry.
  ):
    self.dtype, self.shape = np.dtype(dtype), shape
    self._folder = folder
    self._count = 0
    self._array: Optional[np.ndarray] = None
    with _advice_on_space(folder):
      self._file: IO[bytes] = tempfile.TemporaryFile(dir=folder, buffering=_BUFFER)

  def __len__(self) -> int:
    return self._count

  def append(self, entries: Any) -> None:
    """Appends entries, an array of shape [number of them, *shape]."""
    array = np.ascontiguousarray(entries, self.dtype)
    assert array.shape[1:] == self.shape, (array.shape, self.shape)
    with _advice_on_space(self._folder):
      self._file.write(array.data if array.size else b'')
    self._count += len(array)

  @property
  def array(self) -> np.ndarray:
    """All entries, memory-mapped and read-only; `append` fails afterwards."""
    if self._array is None:
      with _advice_on_space(self._folder):
        self._file.flush()
      shape = (self._count, *self.shape)
      if self._file.tell():
        self._array = np.asarray(np.memmap(self._file, self.dtype, 'r', shape=shape))
      else:
        self._array = np.zeros(shape, self.dtype)
      self._file.close()
    return self._array

  def sorted_array(self) -> np.ndarray:
    """All entries, sorted on disk as bytes: numbers must be big-endian."""
    with _advice_on_space(self._folder):
      self._file.flush()
    size = self.dtype.itemsize * math.prod(self.shape)
    if self._count:
      np.memmap(self._file, f'S{size}', 'r+', shape=(self._count,)).sort()
    return self.array


def stored(parts: Iterable[np.ndarray], folder: str) -> np.ndarray:
  """Returns one or more arrays as one array on disk."""
  spilled: Optional[Spill] = None
  for part in parts:
    if spilled is None:
      spilled = Spill(folder, part.dtype, part.shape[1:])
    spilled.append(part)
  assert spilled is not None
  return spilled.array


@contextlib.contextmanager
def _advice_on_space(folder: str) -> Iterator[None]:
  """Adds advice to errors for lack of space or permission."""
  try:
    yield
  except OSError as e:
    raise OSError(
      e.errno,
      f'temporary files of the data cannot be written in {folder}: {e.strerror}. Give '
      'a folder with more room by --data_scratch',
    ) from e
