"""JSON lines: an object a line, all with the same names."""

import itertools
import json
from collections.abc import Collection, Iterator, Sequence
from typing import Any

from .. import problems
from . import lines
from . import source

_FIELDS, _MOST_ROWS, _LEAST_ROWS = 2**16, 2**13, 2**6


class JsonLines:
  """A file of which only its first line was read."""

  def __init__(self, path: str, wanted: source.Wanted):
    """Reads the first line, whose names are those of all."""
    del wanted
    self.path = path
    with lines.opened(path) as file:
      try:
        first = file.readline()
      except UnicodeDecodeError as e:
        raise lines.not_utf8(path) from e
    if not first.strip():
      raise problems.DataError(f'{path} is empty; it must have a JSON object a line.')
    # Sorted: rows in another order may begin with names in another order.
    self.columns = tuple(sorted(self._row(first, 1)))

  def batches(
    self, wanted: Sequence[str], numbers: Collection[str] = ()
  ) -> Iterator[source.Batch]:
    """All rows; see `source.Source`."""
    names = frozenset(self.columns)
    size = max(_LEAST_ROWS, min(_MOST_ROWS, _FIELDS // max(1, len(names))))
    done = 0
    with lines.opened(self.path) as file:
      while True:
        texts = self._take(file, size)
        if not texts:
          return
        rows = []
        for number, text in enumerate(texts, start=done + 1):
          if not text.strip():
            self._check_end(texts[number - done :], file, number)
            break
          row = self._row(text, number)
          if row.keys() != names:
            raise self._other_names(number, row, names)
          rows.append(row)
        if rows:
          columns = {name: [row[name] for row in rows] for name in wanted}
          yield source.Batch(len(rows), columns, None, self._where(done + 1))
        if len(rows) < len(texts):
          return
        done += len(texts)

  def _where(self, first: int) -> Any:
    return lambda number: f'{self.path}, line {first + number}'

  def _take(self, file: Any, size: int) -> list[str]:
    try:
      return list(itertools.islice(file, size))
    except UnicodeDecodeError as e:
      raise lines.not_utf8(self.path) from e

  def _row(self, text: str, number: int) -> dict[str, Any]:
    where = f'{self.path}, line {number}'
    try:
      row = json.loads(text, object_pairs_hook=_object)
    except RecursionError as e:
      raise problems.DataError(f'{where} is nested too deeply.') from e
    except _TwiceError as e:
      raise problems.DataError(f'{where} has {e.args[0]!r} twice.') from e
    except ValueError as e:
      raise problems.DataError(f'{where} is no JSON: {e}.') from e
    if not isinstance(row, dict):
      raise problems.DataError(
        f'{where} is {problems.shown(row)}; it must be an object, {{"name": value, '
        '...}.'
      )
    return row

  def _check_end(self, rest: list[str], file: Any, number: int) -> None:
    """Empty lines at the end of the file are no rows; others are an error."""
    while rest:
      if any(text.strip() for text in rest):
        raise problems.DataError(f'{self.path}, line {number} is empty; remove it.')
      rest = self._take(file, _MOST_ROWS)

  def _other_names(
    self, number: int, row: dict[str, Any], names: frozenset[str]
  ) -> problems.DataError:
    said = [f'lacks {each!r}' for each in sorted(names - row.keys())]
    said += [f'has {each!r} as well' for each in sorted(row.keys() - names)]
    return problems.DataError(
      f'{self.path}, line {number} {problems.listed(said)}, other than line 1; all '
      'lines must have the same names.'
    )


class _TwiceError(Exception):
  """A name is twice in an object."""


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
  found = dict(pairs)
  if len(found) != len(pairs):
    names = [name for name, _ in pairs]
    raise _TwiceError(next(name for name in names if names.count(name) > 1))
  return found


FORMAT = source.Format(
  'jsonl', ('.jsonl', '.ndjson'), 'a JSON object a line', JsonLines
)
