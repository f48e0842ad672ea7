"""Values that commas or other signs separate, with a line of column names; UTF-8."""

import collections
import csv
import itertools
import re
import shlex
from collections.abc import Collection, Iterator, Sequence
from typing import Any

from .. import problems
from . import lines
from . import plain_csv
from . import source

# Characters. A quote that is not closed would take in the rest of the file.
_LONGEST_FIELD = 2**24
_FIELDS, _MOST_ROWS, _LEAST_ROWS = 2**16, 2**13, 2**6
_TAB = '\t'
# Of files that are not told what they have.
_SEPARATORS = (';', _TAB, '|', ',')
_QUOTED = re.compile('"[^"]*"')
_BREAK = re.compile(r'\r\n|\r|\n')


class CsvFile:
  """A file of which only its head was read."""

  def __init__(self, path: str, wanted: source.Wanted):
    """Reads the head."""
    self.path = path
    self._delimiter = _TAB if path.lower().endswith('.tsv') else ','
    if wanted.separator is not None:
      self._delimiter = wanted.separator
    if wanted.separator is None:
      self._check_separator()
    with lines.opened(path) as file:
      head = self._next(self._reader(file))
    self.columns = tuple(head)
    counts = collections.Counter(head)
    for number, name in enumerate(head, start=1):
      if not name.strip():
        raise problems.DataError(
          f'{path}, line 1: column {number} of {len(head)} has no name; name each. '
          'pandas writes its index so, unless by .to_csv(..., index=False).'
        )
      if counts[name] > 1:
        raise problems.DataError(
          f'{path}, line 1: two columns are called {name!r}; names must differ.'
        )

  def _check_separator(self) -> None:
    """Refuses a first line in which another separator is more often than its own."""
    with lines.opened(self.path) as file:
      try:
        line = file.readline(_LONGEST_FIELD)
      except UnicodeDecodeError as e:
        raise lines.not_utf8(self.path) from e
    unquoted = _QUOTED.sub('', line)
    likely = max(_SEPARATORS, key=unquoted.count)
    if unquoted.count(likely) > unquoted.count(self._delimiter):
      raise problems.DataError(
        f'{self.path}, line 1 has more of {likely!r} than of {self._delimiter!r}, by '
        f'which its names are separated: {problems.shown(line.strip())}. Give '
        f'{_flag(likely)} if that is what separates them, or {_flag(self._delimiter)} '
        'if not.'
      )

  def batches(
    self, wanted: Sequence[str], numbers: Collection[str] = ()
  ) -> Iterator[source.Batch]:
    """All rows; see `source.Source`."""
    plain = plain_csv.PlainRows(self.path, self._delimiter, self.columns)
    yield from plain.batches(wanted, numbers)
    if plain.is_at_end:
      return
    # From here on there are quotes, or something is wrong, which is found now.
    width = len(self.columns)
    all_places = {name: place for place, name in enumerate(self.columns)}
    places = {name: all_places[name] for name in wanted}
    size = max(_LEAST_ROWS, min(_MOST_ROWS, _FIELDS // width))
    with lines.opened(self.path, plain.offset) as file:
      reader = self._reader(file)
      if not plain.num_lines:
        self._next(reader)
      while True:
        before = reader.line_num
        rows = self._take(reader, size)
        if not rows:
          return
        where = _Where(self.path, plain.num_lines, before, reader.line_num, rows)
        rows = self._checked(rows, width, where, reader)
        if not rows:
          return
        columns = tuple(zip(*rows))
        yield source.Batch(
          len(rows),
          {name: columns[place] for name, place in places.items()},
          None,
          where,
        )

  def _reader(self, file: Any) -> Any:
    csv.field_size_limit(_LONGEST_FIELD)
    return csv.reader(file, delimiter=self._delimiter, strict=True)

  def _next(self, reader: Any) -> list[str]:
    rows = self._take(reader, 1)
    if not rows or not rows[0]:
      raise problems.DataError(
        f'{self.path} is empty; its first line must have the names of the columns.'
      )
    return rows[0]

  def _take(self, reader: Any, count: int) -> list[list[str]]:
    try:
      return list(itertools.islice(reader, count))
    except UnicodeDecodeError as e:
      raise lines.not_utf8(self.path) from e
    except csv.Error as e:
      raise problems.DataError(
        f'{self.path}, line {self._line_of_error()}: {e}. Is a quote of the row that '
        'begins there not closed, or not doubled inside quotes?'
      ) from e

  def _line_of_error(self) -> int:
    """The first line of the row that the csv module does not read."""
    with lines.opened(self.path) as file:
      reader = self._reader(file)
      while True:
        line = int(reader.line_num) + 1
        try:
          next(reader)
        except csv.Error:
          return line

  def _checked(
    self, rows: list[list[str]], width: int, where: '_Where', reader: Any
  ) -> list[list[str]]:
    """The rows, of which each has as many fields as there are columns."""
    if set(map(len, rows)) == {width}:
      return rows
    bad = next(i for i, row in enumerate(rows) if len(row) != width)
    if not rows[bad]:
      # Empty lines at the end of the file are no rows.
      if not any(rows[bad:]) and not any(self._rest(reader)):
        return rows[:bad]
      raise problems.DataError(f'{where(bad)} is empty; remove it, or fill it in.')
    raise problems.DataError(
      f'{where(bad)}: {len(rows[bad])} fields, where the {width} columns '
      f'{problems.listed(self.columns)} need {width}.'
    )

  def _rest(self, reader: Any) -> Iterator[list[str]]:
    while True:
      rows = self._take(reader, _MOST_ROWS)
      if not rows:
        return
      yield from rows


def _flag(separator: str) -> str:
  """The flag that says what a separator is, as the shell takes it."""
  return shlex.quote(f'--separator={"tab" if separator == _TAB else separator}')


class _Where:
  """Lines of rows: fields in quotes may go over several."""

  def __init__(
    self, path: str, passed: int, before: int, after: int, rows: list[list[str]]
  ):
    self._path, self._before = path, passed + before
    # Kept only where lines have to be counted, because it is large.
    self._rows = None if after - before == len(rows) else rows

  def __call__(self, number: int) -> str:
    line = self._before + 1 + number
    if self._rows is not None:
      for row in self._rows[:number]:
        line += sum(len(_BREAK.findall(field)) for field in row)
    return f'{self._path}, line {line}'


FORMAT = source.Format(
  'csv', ('.csv', '.tsv'), 'comma- or tab-separated with a line of names', CsvFile
)
