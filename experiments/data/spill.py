"""Arrays that grow on disk, in files without names, and are mapped when they are read.

Such a file is gone with the process, however that ends, so nothing of clients' data is
left behind.
"""

import contextlib
import mmap
import tempfile
from collections.abc import Iterator
from typing import IO, Any, Optional

import numpy as np

_BUFFER = 2**20


class Spill:
  """An array whose entries are appended, then read."""

  def __init__(
    self,
    folder: str,
    dtype: Any,
    shape: tuple[int, ...] = (),  # Of one entry.
    buffering: int = _BUFFER,
  ):
    self.dtype, self.shape = np.dtype(dtype), shape
    self._folder = folder
    self._count = 0
    self._array: Optional[np.ndarray] = None
    with _room(folder):
      self._file: IO[bytes] = tempfile.TemporaryFile(dir=folder, buffering=buffering)

  def __len__(self) -> int:
    return self._count

  def append(self, entries: Any) -> None:
    """Appends entries, an array of shape [number of them, *shape]."""
    array = np.ascontiguousarray(entries, self.dtype)
    assert array.shape[1:] == self.shape, (array.shape, self.shape)
    with _room(self._folder):
      self._file.write(array.data if array.size else b'')
    self._count += len(array)

  @property
  def array(self) -> np.ndarray:
    """All entries, mapped and read-only; nothing is appended after that."""
    if self._array is None:
      with _room(self._folder):
        self._file.flush()
      self._array = np.zeros((0, *self.shape), self.dtype)
      if self._file.tell():
        mapped = mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ)
        self._array = np.frombuffer(mapped, self.dtype)
      self._array = self._array.reshape(self._count, *self.shape)
      self._file.close()
    return self._array


@contextlib.contextmanager
def _room(folder: str) -> Iterator[None]:
  """Says what helps where there is no room, or no leave to write."""
  try:
    yield
  except OSError as e:
    raise OSError(
      e.errno,
      f'temporary files of the data cannot be written in {folder}: {e.strerror}. Give '
      'a folder with more room by --data_scratch',
    ) from e
