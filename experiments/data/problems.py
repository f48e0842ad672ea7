"""What is wrong with data, said with the place where it is."""

import contextlib
import csv
from collections.abc import Iterable, Sequence
from typing import Any, Callable

_MOST_PLACES = 4  # That are named of rows with one problem.


class DataError(ValueError):
  """Data that cannot be used as they are; the message names file and line."""


class ValueOfRowError(DataError):
  """A value that cannot be used, as others of its column may not be."""

  def __init__(self, said: str, column: str, is_bad: Callable[[Any], bool]):
    super().__init__(said)
    self.column, self.is_bad = column, is_bad


def shown(value: Any) -> str:
  """A value as it is shown in a message: on one line, and not at length."""
  text = repr(value)
  return text if len(text) <= 60 else f'{text[:57]}...'


def listed(names: Any) -> str:
  """Names as they are listed in a message or a report: on one line."""
  found = [text if text.isprintable() else repr(text)[1:-1] for text in map(str, names)]
  if len(found) > 20:
    return f'{", ".join(found[:20])} and {len(found) - 20} more'
  return ', '.join(found)


def others(found: Iterable[tuple[Sequence[int], Callable[[int], str]]]) -> str:
  """How many rows have a problem, and where the first ones are: a further sentence.

  `found`: Rows of batches and where they are, which is looked up for few: that reads
    the file again. It ends where the rest cannot be read.

  Returns '' if there is one row only.
  """
  count, places = 0, list[str]()
  with contextlib.suppress(DataError, csv.Error):
    for rows, where in found:
      few = rows[: _MOST_PLACES - len(places)]
      places += [where(row).rpartition(', ')[2] for row in few]
      count += len(rows)
  if count < 2:
    return ''
  more = ', ...' if count > len(places) else ''
  return f' {count} rows are like that: {", ".join(places)}{more}.'


def missing_column(
  path: str, name: str, columns: Any, is_default: bool = False
) -> DataError:
  said = f'{path} has no column {name!r}; its columns are: {listed(columns)}.'
  if is_default:
    said += (
      ' Say by --label_column which one is predicted, and by --feature_columns from '
      'which.'
    )
  if any(set(';\t|,') & set(each) for each in columns):
    said += ' If another sign is between them, name it by --separator.'
  return DataError(said)
