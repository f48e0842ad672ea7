"""Errors in data, with the place where each is, and helpers for their messages."""

import contextlib
import csv
from collections.abc import Iterable, Sequence
from typing import Any, Callable

_MAX_PLACES = 4  # Named in a message on rows with one problem.


class DataError(ValueError):
  """Raised for data that cannot be used as they are; names file and line."""


class ValueOfRowError(DataError):
  """Raised for a value that cannot be used; others of its column may be bad too."""

  def __init__(self, message: str, column: str, is_bad: Callable[[Any], bool]):
    super().__init__(message)
    self.column, self.is_bad = column, is_bad


def shown(value: Any) -> str:
  """Returns a value as shown in a message: on one line, and shortened."""
  text = repr(value)
  return text if len(text) <= 60 else f'{text[:57]}...'


def listed(names: Any) -> str:
  """Returns names as listed in a message or a report: on one line."""
  texts = [text if text.isprintable() else repr(text)[1:-1] for text in map(str, names)]
  texts = [text if text == text.strip() else f"'{text}'" for text in texts]
  if len(texts) > 20:
    return f'{", ".join(texts[:20])} and {len(texts) - 20} more'
  return ', '.join(texts)


def others(batches: Iterable[tuple[Sequence[int], Callable[[int], str]]]) -> str:
  """Returns a sentence on how many rows have a problem, and where the first are.

  `batches`: Indices of bad rows of each batch, and a function that finds a row's place.
    It is called for the first rows only, as it reads the file again. The batches end
    where the rest cannot be read.

  Returns '' if there is only one such row.
  """
  count, places = 0, list[str]()
  with contextlib.suppress(DataError, csv.Error):
    for rows, where in batches:
      first_rows = rows[: _MAX_PLACES - len(places)]
      places += [where(row).rpartition(', ')[2] for row in first_rows]
      count += len(rows)
  if count < 2:
    return ''
  more = ', ...' if count > len(places) else ''
  return f' {count} rows are like that: {", ".join(places)}{more}.'


def missing_column(
  path: str, name: str, columns: Any, is_default: bool = False
) -> DataError:
  message = f'{path} has no column {name!r}; its columns are: {listed(columns)}.'
  if is_default:
    message += (
      ' Give the column to predict by --label_column, and the features by '
      '--feature_columns.'
    )
  if any(set(';\t|,') & set(each) for each in columns):
    message += ' If another character separates them, give it by --separator.'
  return DataError(message)
