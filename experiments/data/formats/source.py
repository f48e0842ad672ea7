"""Interface of data formats: sources that yield batches of rows, column by column."""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Callable, NamedTuple, Optional, Protocol, Union

import numpy as np

# Unparsed texts, Python values, or an array with one entry per row.
Values = Union[Sequence[Any], np.ndarray]


class Batch(NamedTuple):
  num_rows: int
  # Values of the requested columns; that of `None` has clients' ids if the format gives
  # them.
  columns: Mapping[Any, Values]
  # Returns file and line of a row, given its index in the batch, for messages.
  where: Callable[[int], str]


class Source(Protocol):
  """A file or folder that is open for reading."""

  path: str
  # Names of all columns, in an order that does not depend on the order of rows.
  columns: tuple[str, ...]

  def batches(self, wanted: Sequence[str]) -> Iterator[Batch]:
    """Yields all rows, with the columns `wanted`."""


class Wanted(NamedTuple):
  split: Optional[str] = None  # Split of a database; `None` for the only one.
  separator: Optional[str] = None  # Between CSV fields; `None`: by the file's ending.


@dataclasses.dataclass(frozen=True)
class Format:
  name: str  # Value of `--data_format`.
  endings: tuple[str, ...]  # Of file names.
  summary: str  # For `--help`.
  # Opens a file and finds its columns; reads no more than is needed for that.
  open: Callable[[str, Wanted], Source]
  # Whether a file gives clients' ids without a `--client_column`.
  has_clients: Callable[[str], bool] = lambda path: False
  # Name of the text column, if files of the format have nothing but text.
  text_column: Optional[str] = None
  label_column: Optional[str] = None  # The default of `--label_column`.
