"""NumPy archives of arrays, such as x, y and client_ids, with one entry per row."""

import contextlib
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from .. import problems
from . import source

_BATCH_ROWS = 2**10


class NpzFile:
  """A NumPy archive; opening it reads the names of the arrays only."""

  columns: tuple[str, ...]

  def __init__(self, path: str, wanted: source.Wanted):
    del wanted
    self.path = path
    with self._archive() as archive:
      self.columns = tuple(archive.files)

  def batches(self, wanted: Sequence[str]) -> Iterator[source.Batch]:
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
      columns = {name: array[part] for name, array in arrays.items()}
      num_rows = len(columns[wanted[0]])
      yield source.Batch(num_rows, columns, self._where(first))

  def _where(self, first: int) -> Any:
    return lambda number: f'{self.path}, entry {first + number}'

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


FORMAT = source.Format(
  'npz',
  ('.npz',),
  'NumPy arrays x, y and client_ids',
  NpzFile,
  has_clients=lambda path: 'client_ids' in NpzFile(path, source.Wanted()).columns,
  label_column='y',
)
