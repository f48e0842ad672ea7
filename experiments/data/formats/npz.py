"""NumPy archives of arrays, such as x, y and client_ids, with one entry per row."""

import contextlib
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from typing import Any, Optional

import numpy as np

from .. import problems
from . import source

_BATCH_ROWS = 2**10


class NpzFile(source.Source):
  """A NumPy archive; opening it reads the names of the arrays only."""

  name, endings = 'npz', ('.npz',)
  summary = 'NumPy arrays x, y and client_ids'
  client_column, label_column = 'client_ids', 'y'

  def __init__(self, path: str, split: Optional[str] = None, separator: Any = None):
    super().__init__(path, split, separator)
    with self._archive() as archive:
      self.columns = tuple(archive.files)

  def read(self, wanted: Sequence[str]) -> Iterator[source.Columns]:
    with self._archive() as archive:
      arrays = {name: archive[name] for name in wanted}
    counts = {len(array) if array.ndim else 0 for array in arrays.values()}
    are_fit = all(array.dtype.kind in 'biufUS' for array in arrays.values())
    if len(counts) != 1 or not are_fit:
      found = (f'{n}: {each.dtype}{list(each.shape)}' for n, each in arrays.items())
      raise problems.DataError(
        f'{self.path} has the arrays {", ".join(found)}. Each must be of numbers or '
        'text, with an entry for each example: those of the same number, at least one. '
        'Save texts by .astype(str).'
      )
    for first in range(0, counts.pop(), _BATCH_ROWS):
      part = slice(first, first + _BATCH_ROWS)
      yield {name: array[part] for name, array in arrays.items()}

  def place(self, row: int) -> str:
    return f'{self.path}, entry {row}'

  @contextlib.contextmanager
  def _archive(self) -> Iterator[Any]:
    try:
      with np.load(self.path) as archive:
        yield archive
    # Passwords and methods of compression that Python does not know are RuntimeErrors.
    except (ValueError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error) as e:
      raise problems.DataError(
        f'{self.path} is not an archive of numpy.savez with numbers and texts: {e}. '
        'Save it by numpy.savez, texts by .astype(str).'
      ) from e
