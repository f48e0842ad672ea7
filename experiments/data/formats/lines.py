"""Files of lines: plain text, and JSON lines; UTF-8, and gzipped if they are called so.

Plain text is a text a line, or in a folder a text a file. JSON lines are an object a
line, all with the same names.
"""

import contextlib
import functools
import gzip
import io
import itertools
import json
import re
import zlib
from collections.abc import Collection, Iterator, Sequence
from typing import IO, Any, cast

from .. import problems
from . import source

COLUMN = 'text'
PACKED = '.gz'
_LINES = 2**12
_BREAK = re.compile(rb'\r\n|\r|\n')
_FIELDS, _MOST_ROWS, _LEAST_ROWS = 2**16, 2**13, 2**6


def rows_at_a_time(width: int) -> int:
  """How many rows of so many fields are handed over at a time."""
  return max(_LEAST_ROWS, min(_MOST_ROWS, _FIELDS // max(1, width)))


def _bytes(path: str) -> IO[bytes]:
  if path.lower().endswith(PACKED):
    return cast(IO[bytes], gzip.open(path))
  return open(path, 'rb')


@contextlib.contextmanager
def opened(path: str) -> Iterator[IO[str]]:
  """A file whose lines are left as they are; a byte order mark is passed over."""
  with io.TextIOWrapper(_bytes(path), 'utf-8-sig', newline='') as file:
    try:
      yield file
    except UnicodeDecodeError as e:
      raise _not_utf8(path) from e
    except (EOFError, gzip.BadGzipFile, zlib.error) as e:
      raise problems.DataError(
        f'{path} cannot be unpacked: {e}. Is it whole, and gzipped?'
      ) from e


def _not_utf8(path: str) -> problems.DataError:
  """The error for a file with bytes that are no UTF-8, which names the line."""
  number = 1
  with _bytes(path) as file:
    for line in file:
      try:
        line.decode('utf-8')
      except UnicodeDecodeError as e:
        number += len(_BREAK.findall(line[: e.start]))
        return problems.DataError(
          f'{path}, line {number}: byte 0x{line[e.start]:02x} is no UTF-8. Save the '
          'file as UTF-8.'
        )
      number += len(_BREAK.findall(line))
  return problems.DataError(f'{path} is no UTF-8. Save the file as UTF-8.')


class TextFile:
  """A file with a text a line; empty lines are between texts."""

  columns: tuple[str, ...] = (COLUMN,)

  def __init__(self, path: str, wanted: source.Wanted):
    del wanted
    self.path = path

  def batches(
    self, wanted: Sequence[str], numbers: Collection[str] = ()
  ) -> Iterator[source.Batch]:
    done = 0
    with opened(self.path) as file:
      while texts := list(itertools.islice(file, _LINES)):
        kept = [number for number, text in enumerate(texts) if text.strip()]
        if kept:
          found = [texts[number].rstrip('\r\n') for number in kept]
          lines = [f'{self.path}, line {done + 1 + number}' for number in kept]
          columns = dict.fromkeys(wanted, found)
          yield source.Batch(len(kept), columns, None, lines.__getitem__)
        done += len(texts)


class WholeFile(TextFile):
  def batches(
    self, wanted: Sequence[str], numbers: Collection[str] = ()
  ) -> Iterator[source.Batch]:
    with opened(self.path) as file:
      text = file.read()
    if not text.strip():
      raise problems.DataError(f'{self.path} is empty; remove it, or fill it in.')
    yield source.Batch(1, dict.fromkeys(wanted, [text]), None, lambda _: self.path)


class JsonLines:
  """JSON lines of which only the first was read, whose names are those of all."""

  def __init__(self, path: str, wanted: source.Wanted):
    del wanted
    self.path = path
    with opened(path) as file:
      first = file.readline()
    if not first.strip():
      raise problems.DataError(f'{path} is empty; it must have a JSON object a line.')
    # Sorted: rows in another order may begin with names in another order.
    self.columns = tuple(sorted(self._row(first, 1)))

  def batches(
    self, wanted: Sequence[str], numbers: Collection[str] = ()
  ) -> Iterator[source.Batch]:
    names = frozenset(self.columns)
    size = rows_at_a_time(len(names))
    done, empty = 0, None
    with opened(self.path) as file:
      while texts := list(itertools.islice(file, size)):
        rows = []
        for number, text in enumerate(texts, start=done + 1):
          if not text.strip():
            empty = empty or number
            continue
          if empty is not None:  # At the end of the file they are no rows.
            raise problems.DataError(f'{self.path}, line {empty} is empty; remove it.')
          rows.append(self._row(text, number))
          if rows[-1].keys() != names:
            raise self._other_names(number, rows[-1], names)
        if rows:
          columns = {name: [row[name] for row in rows] for name in wanted}
          where = functools.partial(self._where, done + 1)
          yield source.Batch(len(rows), columns, None, where)
        done += len(texts)

  def _where(self, first: int, number: int) -> str:
    return f'{self.path}, line {first + number}'

  def _row(self, text: str, number: int) -> dict[str, Any]:
    where = self._where(number, 0)
    try:
      row = json.loads(text, object_pairs_hook=_object)
    except RecursionError as e:
      raise problems.DataError(f'{where} is nested too deeply.') from e
    except ValueError as e:
      raise problems.DataError(f'{where} is no JSON: {e}.') from e
    if not isinstance(row, dict):
      raise problems.DataError(
        f'{where} is {problems.shown(row)}; it must be an object, {{"name": value, '
        '...}.'
      )
    return row

  def _other_names(
    self, number: int, row: dict[str, Any], names: frozenset[str]
  ) -> problems.DataError:
    said = [f'lacks {each!r}' for each in sorted(names - row.keys())]
    said += [f'has {each!r} as well' for each in sorted(row.keys() - names)]
    return problems.DataError(
      f'{self.path}, line {number} {problems.listed(said)}, other than line 1; all '
      'lines must have the same names.'
    )


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
  found = dict(pairs)
  if len(found) != len(pairs):
    names = [name for name, _ in pairs]
    twice = next(name for name in names if names.count(name) > 1)
    raise ValueError(f'it has {twice!r} twice')
  return found


TEXT = source.Format('text', ('.txt',), 'plain text', TextFile, text_column=COLUMN)
JSON = source.Format('jsonl', ('.jsonl', '.ndjson'), 'a JSON object a line', JsonLines)
