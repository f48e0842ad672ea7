"""What is wrong with data, said with the place where it is."""

from collections.abc import Sequence
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


class Others:
  """How many rows have a problem, and where the first ones are."""

  def __init__(self) -> None:
    self._count, self._places = 0, list[str]()

  def add(self, rows: Sequence[int], where: Callable[[int], str]) -> None:
    """Counts rows of a batch, of which few are looked up: that reads the file again."""
    few = rows[: _MOST_PLACES - len(self._places)]
    self._places += [where(row).rpartition(', ')[2] for row in few]
    self._count += len(rows)

  @property
  def in_words(self) -> str:
    """A sentence to be put behind the message; '' if there is one row only."""
    if self._count < 2:
      return ''
    more = ', ...' if self._count > len(self._places) else ''
    return f' {self._count} rows are like that: {", ".join(self._places)}{more}.'


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
