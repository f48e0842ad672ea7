"""NumPy archives of arrays, such as x, y and client_ids, with one entry per row.

Their members are read as streams, so an archive may be larger than memory.
"""

import contextlib
import math
import zipfile
import zlib
from collections.abc import Collection, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from .. import problems
from . import source

_BATCH_BYTES = 2**22
_MAX_BATCH_ROWS = 2**13


class _Member(NamedTuple):
  file: str
  dtype: np.dtype
  shape: tuple[int, ...]


class NpzFile:
  """A NumPy archive; opening it reads the arrays' headers only."""

  columns: tuple[str, ...]

  def __init__(self, path: str, wanted: source.Wanted):
    del wanted
    self.path = path
    self._members: dict[str, _Member] = {}
    with _archive(path) as archive:
      for file_name in archive.namelist():
        name = file_name.removesuffix('.npy')
        if name in self._members:
          raise problems.DataError(f'{path}: two arrays are called {name}; rename one.')
        with archive.open(file_name) as file:
          self._members[name] = self._head(file_name, file)
    self.columns = tuple(self._members)
    counts = {name: member.shape[0] for name, member in self._members.items()}
    if len(set(counts.values())) != 1:
      lengths = ', '.join(f'{count} in {name}' for name, count in counts.items())
      raise problems.DataError(
        f'{path} has arrays of different length or none: {lengths}. Each must have an '
        'entry for each example.'
      )
    self._count = next(iter(counts.values()))

  def batches(
    self, wanted: Sequence[str], numbers: Collection[str] = ()
  ) -> Iterator[source.Batch]:
    with contextlib.ExitStack() as stack:
      archive = stack.enter_context(_archive(self.path))
      files = {}
      for name in wanted:
        file_name = self._members[name].file
        files[name] = stack.enter_context(archive.open(file_name))
        self._head(file_name, files[name])
      row_bytes = sum(_row_bytes(self._members[name]) for name in wanted)
      size = max(1, min(_MAX_BATCH_ROWS, _BATCH_BYTES // max(1, row_bytes)))
      for first in range(0, self._count, size):
        count = min(size, self._count - first)
        columns = {
          name: self._entries(name, file, count) for name, file in files.items()
        }
        yield source.Batch(count, columns, None, self._where(first))

  def _where(self, first: int) -> Any:
    return lambda number: f'{self.path}, entry {first + number}'

  def _entries(self, name: str, file: Any, count: int) -> np.ndarray:
    member = self._members[name]
    try:
      content = file.read(count * _row_bytes(member))
      return np.frombuffer(content, member.dtype).reshape(count, *member.shape[1:])
    except (ValueError, zipfile.BadZipFile, EOFError) as e:
      raise problems.DataError(f'{self.path}: {name} is damaged: {e}.') from e

  def _head(self, file_name: str, file: Any) -> _Member:
    name = file_name.removesuffix('.npy')
    try:
      version = np.lib.format.read_magic(file)
      if version == (1, 0):
        shape, is_fortran, dtype = np.lib.format.read_array_header_1_0(file)
      elif version == (2, 0):
        shape, is_fortran, dtype = np.lib.format.read_array_header_2_0(file)
      else:
        raise ValueError(f'format {version} is unknown')
    except (ValueError, zipfile.BadZipFile, EOFError) as e:
      raise problems.DataError(f'{self.path}: {name} is not an array: {e}.') from e
    is_whole = dtype.kind in 'biufUS' and shape and not (is_fortran and len(shape) > 1)
    if not is_whole:
      remedy = 'numpy.ascontiguousarray of it'
      if dtype.kind not in 'biufUS':
        remedy = 'it as .astype(str) if it has texts, else with a dtype of numbers'
      raise problems.DataError(
        f'{self.path}: {name} is of dtype {dtype} and shape {list(shape)}'
        f'{" in Fortran order" if is_fortran else ""}; it must be of numbers or text, '
        f'with an entry for each example. Save {remedy}.'
      )
    return _Member(file_name, dtype, shape)


def _row_bytes(member: _Member) -> int:
  return member.dtype.itemsize * math.prod(member.shape[1:])


@contextlib.contextmanager
def _archive(path: str) -> Iterator[zipfile.ZipFile]:
  try:
    archive = zipfile.ZipFile(path)
  except zipfile.BadZipFile as e:
    raise problems.DataError(f'{path} is not an archive of numpy.savez: {e}.') from e
  with archive:
    try:
      yield archive
    # Passwords and methods of compression that Python does not know are RuntimeErrors.
    except (RuntimeError, zipfile.BadZipFile, zlib.error) as e:
      raise problems.DataError(
        f'{path} cannot be read: {e}. Save it by numpy.savez.'
      ) from e


FORMAT = source.Format(
  'npz',
  ('.npz',),
  'NumPy arrays x, y and client_ids',
  NpzFile,
  has_clients=lambda path: 'client_ids' in NpzFile(path, source.Wanted()).columns,
  label_column='y',
)
