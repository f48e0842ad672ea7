"""Errors in data, with the place where each is, and helpers for their messages."""

import contextlib
from collections.abc import Iterable
from typing import Any, Callable

_MAX_PLACES = 4  # Named in a message on rows with one problem.
# Returns file and line of a row, given its index in a batch.
Where = Callable[[int], str]


class DataError(ValueError):
  """Raised for data that cannot be used as they are; names file and line."""


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


def others(rows: Iterable[tuple[Where, int]], rest: Iterable[Any] = ()) -> str:
  """Returns a sentence on how many rows have a problem, and where the first are.

  The rows end where the rest cannot be read. Returns '' if there is only one. `rest`:
  What is left, after these rows, that may have the problem, too.
  """
  count, places, more_may_be = 0, list[str](), False
  with contextlib.suppress(DataError):
    for where, row in rows:
      count += 1
      if count <= _MAX_PLACES:  # Finding a place reads the file again.
        places.append(where(row).rpartition(', ')[2])
    more_may_be = any(True for _ in rest)
  if count < 2:
    return ''
  more = ', ...' if count > len(places) else ''
  least = 'At least ' if more_may_be else ''
  return f' {least}{count} rows are like that: {", ".join(places)}{more}.'
