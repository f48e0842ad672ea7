"""What a format gives: rows in batches, column by column, with where each row is."""

import dataclasses
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Callable, NamedTuple, Optional, Protocol, Union

import numpy as np

# Texts as they are in the file, Python values, or an array with an entry for each row.
Values = Union[Sequence[Any], np.ndarray]


class Batch(NamedTuple):
  num_rows: int  # How many.
  columns: Mapping[str, Values]  # Values of the columns that were asked for.
  # Whose the rows are if the format says it: an id for all of them, or one for each;
  # `None` if a column says it, or nothing.
  clients: Union[None, str, Sequence[str]]
  # File and line of a row by its number in the batch, for messages.
  where: Callable[[int], str]


class Source(Protocol):
  """A file, or a folder, that is open for reading."""

  path: str  # Where it is.
  # Names of all columns, in an order that does not depend on that of rows.
  columns: tuple[str, ...]

  def batches(
    self, wanted: Sequence[str], numbers: Collection[str] = ()
  ) -> Iterator[Batch]:
    """All rows, of which nothing is left out."""


class Wanted(NamedTuple):
  split: Optional[str] = None  # Which split of a database; `None` for the only one.
  text_column: Optional[str] = None  # Column that has to be text, if one is.
  separator: Optional[str] = None  # Between fields of CSV; `None` to go by the ending.


@dataclasses.dataclass(frozen=True)
class Format:
  name: str  # Value of `--data_format`.
  endings: tuple[str, ...]  # Of names of files that have it.
  summary: str  # For `--help`.
  # Opens a file, and knows its columns; reads no more than is needed for that.
  open: Callable[[str, Wanted], Source]
  # Whether a file says whose its rows are, without being told a column.
  has_clients: Callable[[str], bool] = lambda path: False
  # Where the text is, if files of the format are nothing but text.
  text_column: Optional[str] = None
  label_column: Optional[str] = None  # Where labels are unless told otherwise.
