"""Parquet, where pyarrow is installed."""

import collections
import importlib.util
from collections.abc import Collection, Iterator, Sequence
from typing import Any

from .. import problems
from . import source

_ROWS = 2**13


class ParquetFile:
  """A file of which only the schema was read."""

  def __init__(self, path: str, wanted: source.Wanted):
    """Reads the schema."""
    del wanted
    self.path = path
    if importlib.util.find_spec('pyarrow') is None:
      raise problems.DataError(
        f'{path}: Parquet is read by pyarrow, which is not installed here. Install '
        'it (pip install pyarrow), or save the data as CSV.'
      )
    with self._opened() as file:
      self.columns = tuple(file.schema_arrow.names)
    counts = collections.Counter(self.columns)
    twice = sorted(each for each, count in counts.items() if count > 1)
    if twice:
      raise problems.DataError(
        f'{path}: two columns are called {twice[0]!r}; names must differ.'
      )

  def _opened(self) -> Any:
    import pyarrow
    import pyarrow.parquet

    try:
      return pyarrow.parquet.ParquetFile(self.path)
    except pyarrow.ArrowInvalid as e:
      raise problems.DataError(f'{self.path} is no Parquet file: {e}.') from e

  def batches(
    self, wanted: Sequence[str], numbers: Collection[str] = ()
  ) -> Iterator[source.Batch]:
    """All rows; see `source.Source`."""
    done = 0
    with self._opened() as file:
      for batch in file.iter_batches(batch_size=_ROWS, columns=list(wanted)):
        columns = {name: batch.column(name).to_pylist() for name in wanted}
        yield source.Batch(batch.num_rows, columns, None, self._where(done))
        done += batch.num_rows

  def _where(self, done: int) -> Any:
    return lambda number: f'{self.path}, row {done + number + 1}'


FORMAT = source.Format(
  'parquet', ('.parquet',), 'Parquet, if pyarrow is installed', ParquetFile
)
