"""Arrays that grow on disk, in files without names.

Such a file is gone with the process, however that ends, so nothing of clients' data is
left behind. What is read back is mapped into memory: its pages are the file's, which
the system takes back when it needs them.
"""

import contextlib
import mmap
import os
import tempfile
from collections.abc import Iterator
from typing import IO, Any, Optional

import numpy as np

_BUFFER = 2**20


class Spill:
  """An array whose entries are appended, then read."""

  def __init__(self, folder: str, dtype: Any, shape: tuple[int, ...] = ()):
    """Makes an empty one.

    `shape`: Of one entry.
    """
    self.dtype, self.shape = np.dtype(dtype), shape
    self._folder = folder
    self._count = 0
    self._array: Optional[np.ndarray] = None
    with _room(folder):
      self._file: IO[bytes] = tempfile.TemporaryFile(dir=folder, buffering=_BUFFER)

  def __len__(self) -> int:
    return self._count

  def append(self, entries: Any) -> None:
    """Appends entries, an array of shape [number of them, *shape]."""
    array = np.ascontiguousarray(entries, self.dtype)
    assert array.shape[1:] == self.shape, (array.shape, self.shape)
    with _room(self._folder):
      self._file.write(array.data if array.size else b'')
    self._count += len(array)

  def append_bytes(self, content: bytes) -> None:
    """Appends entries of one byte each."""
    with _room(self._folder):
      self._file.write(content)
    self._count += len(content)

  @property
  def array(self) -> np.ndarray:
    """All entries, mapped and read-only; nothing is appended after that."""
    if self._array is None:
      with _room(self._folder):
        self._file.flush()
      self._array = _mapped(self._file, self.dtype, self._count, self.shape)
      self._file.close()
    return self._array


def writable(
  folder: str, dtype: Any, count: int, shape: tuple[int, ...] = ()
) -> np.ndarray:
  """A mapped array of zeros, which is written in any order.

  `shape`: Of one entry.
  """
  dtype = np.dtype(dtype)
  size = count * int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
  with _room(folder), tempfile.TemporaryFile(dir=folder) as file:
    if size:
      # Now: a mapped page that finds no room on the disk would end the process.
      os.posix_fallocate(file.fileno(), 0, size)
    return _mapped(file, dtype, count, shape, mmap.ACCESS_WRITE)


def _mapped(
  file: IO[bytes],
  dtype: np.dtype,
  count: int,
  shape: tuple[int, ...],
  access: int = mmap.ACCESS_READ,
) -> np.ndarray:
  if not count * int(np.prod(shape, dtype=np.int64)):
    return np.zeros((count, *shape), dtype)
  mapped = mmap.mmap(file.fileno(), 0, access=access)
  return np.frombuffer(mapped, dtype).reshape(count, *shape)


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
