"""Interface of data formats: sources that yield batches of rows, column by column."""

import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Callable, NamedTuple, Optional, Union

import numpy as np

# Unparsed texts, Python values, or an array with one entry per row.
Values = Union[Sequence[Any], np.ndarray]
# Values by name of the column; those of `None` are clients' ids that the format gives.
Columns = Mapping[Any, Values]


class Batch(NamedTuple):
  num_rows: int
  columns: Columns
  # Returns file and line of a row, given its index in the batch, for messages.
  where: Callable[[int], str]


class Source:
  """A file that is open for reading; opening it reads no more than its columns."""

  name: str  # Value of `--data_format`.
  endings: tuple[str, ...]  # Endings of file names.
  summary: str  # For `--help`.
  # Name of the text column, if files of the format have nothing but text.
  text_column: Optional[str] = None
  # Defaults of the flags of these names, the first if there is such a column.
  client_column: Optional[str] = None
  label_column: Optional[str] = None
  # Names of all columns, in an order that does not depend on the order of rows.
  columns: tuple[str, ...] = ()

  # `split`: Split of a database; `None` for the only one.
  # `separator`: Between CSV fields; `None`: by the file's ending.
  def __init__(
    self, path: str, split: Optional[str] = None, separator: Optional[str] = None
  ):
    del separator
    self.path, self.split = path, split

  def read(self, wanted: Sequence[str]) -> Iterator[Columns]:
    """Yields some rows at a time, with the columns `wanted`."""
    raise NotImplementedError

  def place(self, row: int) -> str:
    """Returns file and line of a row, given its index."""
    raise NotImplementedError

  def batches(self, wanted: Sequence[str]) -> Iterator[Batch]:
    num_read = 0
    for columns in self.read(wanted):
      num_rows = len(next(iter(columns.values())))
      where = functools.partial(lambda first, row: self.place(first + row), num_read)
      yield Batch(num_rows, columns, where)
      num_read += num_rows
