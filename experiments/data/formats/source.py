"""What a format gives: rows in batches, column by column, with where each row is."""

import dataclasses
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Callable, NamedTuple, Optional, Protocol, Union

import numpy as np

# Texts as they are in the file, Python values, or an array with an entry for each row.
Values = Union[Sequence[Any], np.ndarray]


class Batch(NamedTuple):
  """Some rows.

  Attributes:
    num_rows: How many.
    columns: Values of the columns that were asked for.
    clients: Whose the rows are if the format says it: an id for all of them, or one for
      each; `None` if a column says it, or nothing.
    where: File and line of a row by its number in the batch, for messages.
  """

  num_rows: int
  columns: Mapping[str, Values]
  clients: Union[None, str, Sequence[str]]
  where: Callable[[int], str]


class Source(Protocol):
  """A file, or a folder, that is open for reading.

  Attributes:
    path: Where it is.
    columns: Names of all columns, in an order that does not depend on that of rows.
  """

  path: str
  columns: tuple[str, ...]

  def batches(
    self, wanted: Sequence[str], numbers: Collection[str] = ()
  ) -> Iterator[Batch]:
    """All rows, of which nothing is left out."""


class Wanted(NamedTuple):
  """What decides how a file is opened.

  Attributes:
    split: Which split of a database; `None` for the only one.
    text_column: Column that has to be text, if one is.
    separator: Between fields of CSV; `None` to go by the ending.
  """

  split: Optional[str] = None
  text_column: Optional[str] = None
  separator: Optional[str] = None


@dataclasses.dataclass(frozen=True)
class Format:
  """A format of files.

  Attributes:
    name: Value of `--data_format`.
    endings: Of names of files that have it.
    summary: For `--help`.
    open: Opens a file, and knows its columns; reads no more than is needed for that.
    has_clients: Whether a file says whose its rows are, without being told a column.
    text_column: Where the text is, if files of the format are nothing but text.
    label_column: Where labels are unless told otherwise.
  """

  name: str
  endings: tuple[str, ...]
  summary: str
  open: Callable[[str, Wanted], Source]
  has_clients: Callable[[str], bool] = lambda path: False
  text_column: Optional[str] = None
  label_column: Optional[str] = None
