"""Tables that DuckDB reads: CSV with a line of names, JSON lines, and Parquet.

Nothing is guessed: every field of CSV is read as text, or as the number that it is said
to be, and values of JSON are what they are in the file. Where DuckDB does not read a
file, or would pass over what may be an error in it, Python reads it, row by row: it
finds the line of what is wrong.
"""

import collections
import csv
import functools
import glob
import itertools
import json
import mmap
import os
import re
import shlex
from collections.abc import Collection, Iterator, Sequence
from typing import Any, Callable

import numpy as np

from .. import problems
from . import lines
from . import source

# Characters. A quote that is not closed would take in the rest of the file.
_LONGEST_FIELD = 2**24
# Limits of what DuckDB reads, which has room for 2,048 rows of all columns; in bytes.
_MOST_COLUMNS, _LONGEST_LINE = 500, 2**18
_SMALL = 2**15  # Bytes.
# Longest line of JSON, in bytes; DuckDB reads some up to twice as long.
_LONGEST_OBJECT = 2**24
# A comma with nothing behind it, but for what looks so in a text.
_COMMA = r',\s*[]}]'
_HALF = re.compile('[\ud800-\udfff]')
_TAB = '\t'
# Tried for files whose separator is not stated.
_SEPARATORS = (';', _TAB, '|', ',')
_QUOTED = re.compile('"[^"]*"')
# In files with these, DuckDB and Python do not agree on where rows and fields end:
# DuckDB passes over spaces beside quotes, and over fields too many that are empty.
_ODD = (b'\r', b'\0', b'\n\n', b'"')
_SETTINGS = {
  'threads': 2,
  'memory_limit': '512MB',
  'temp_directory': '',
  'autoinstall_known_extensions': False,
}


class CsvFile:
  """A file of which only its head was read."""

  def __init__(self, path: str, wanted: source.Wanted):
    self.path = path
    is_tsv = path.lower().removesuffix(lines.PACKED).endswith('.tsv')
    self._delimiter = wanted.separator or (_TAB if is_tsv else ',')
    if wanted.separator is None:
      self._check_separator()
    with lines.opened(path) as file:
      self.columns = tuple(self._names(self._reader(file)))
    for number, name in enumerate(self.columns, start=1):
      if not name.strip() or self.columns.count(name) > 1:
        raise problems.DataError(
          f'{path}, line 1: column {number} of {len(self.columns)} is called {name!r}; '
          'each needs a name of its own. pandas leaves out that of its index, unless '
          'by .to_csv(..., index=False).'
        )

  def _check_separator(self) -> None:
    """Refuses a first line in which another separator is more often than its own."""
    with lines.opened(self.path) as file:
      line = file.readline(_LONGEST_FIELD)
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
    import duckdb  # Here, because checks of flags need none.

    passed = 1  # Rows, that of the names included.
    if self._is_plain:
      try:
        for rows in _queried(self._query(wanted, frozenset(numbers)), len(wanted)):
          columns: dict[str, source.Values] = dict(zip(wanted, zip(*rows)))
          for name in numbers:
            columns[name] = np.array(columns[name], np.float64)
            if not (np.abs(columns[name]) <= np.finfo(np.float32).max).all():
              raise duckdb.ConversionException  # One is none, or not finite.
          yield source.Batch(len(rows), columns, None, self._where(passed))
          passed += len(rows)
        return
      except duckdb.Error:
        pass  # Python reads the rest, or names the line.
    with lines.opened(self.path) as file:
      reader = self._reader(file)
      collections.deque(itertools.islice(reader, passed), maxlen=0)
      while found := self._rows(reader, passed):
        of_all = dict(zip(self.columns, zip(*found)))
        columns = {name: of_all[name] for name in wanted}
        yield source.Batch(len(found), columns, None, self._where(passed))
        passed += len(found)

  @functools.cached_property
  def _is_plain(self) -> bool:
    """Whether there is nothing in the file that DuckDB reads in a way of its own."""
    if len(self.columns) > _MOST_COLUMNS or self.path.lower().endswith(lines.PACKED):
      return False
    if os.path.getsize(self.path) < _SMALL:  # Read before DuckDB has started.
      return False
    with open(self.path, 'rb') as file:
      with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        last = self._delimiter.encode()
        if content[-1:] == last:
          return False
        return all(content.find(each) < 0 for each in (*_ODD, last + b'\n'))

  def _query(self, wanted: Sequence[str], numbers: Collection[str]) -> str:
    """Texts or numbers of all rows of a plain file, each of which is a line."""
    columns = ', '.join(f"'c{place}': 'VARCHAR'" for place in range(len(self.columns)))
    places = {name: f'c{place}' for place, name in enumerate(self.columns)}
    # Python reads 1_000 as well, which nobody means; and DuckDB reads +-5.
    number = (
      "if(contains({0}, '_') OR contains({0}, '+-'), NULL, try_cast({0} AS DOUBLE))"
    )
    values = (
      (number if name in numbers else "coalesce({0}, '')").format(places[name])
      for name in wanted
    )
    delimiter = "'" if self._delimiter == "'" else ''
    return (
      f'SELECT {", ".join(values)} FROM read_csv({_literal(glob.escape(self.path))}, '
      "auto_detect=false, header=false, skip=1, quote='\"', escape='\"', "
      f"delim='{delimiter}{self._delimiter}', strict_mode=true, "
      "allow_quoted_nulls=false, compression='none', hive_partitioning=false, "
      f'max_line_size={_LONGEST_LINE}, buffer_size={4 * _LONGEST_LINE}, '
      f'columns={{{columns}}})'
    )

  def _where(self, passed: int) -> Callable[[int], str]:
    """Lines of rows behind so many, the names included, counted only when asked for."""

    def where(number: int) -> str:
      with lines.opened(self.path) as file:
        reader = self._reader(file)
        collections.deque(itertools.islice(reader, passed + number), maxlen=0)
        return f'{self.path}, line {reader.line_num + 1}'

    return where

  def _reader(self, file: Any) -> Any:
    csv.field_size_limit(_LONGEST_FIELD)
    return csv.reader(file, delimiter=self._delimiter, strict=True)

  def _names(self, reader: Any) -> list[str]:
    rows = self._take(reader, 0, 1)
    if not rows or not rows[0]:
      raise problems.DataError(
        f'{self.path} is empty; its first line must have the names of the columns.'
      )
    return rows[0]

  def _take(self, reader: Any, passed: int, count: int) -> list[list[str]]:
    rows: list[list[str]] = []
    try:
      rows.extend(itertools.islice(reader, count))
    except csv.Error as e:
      raise problems.DataError(
        f'{self._where(passed)(len(rows))}: {e}. Is a quote of the row that begins '
        'there not closed, or not doubled inside quotes?'
      ) from e
    return rows

  def _rows(self, reader: Any, passed: int) -> list[list[str]]:
    width = len(self.columns)
    rows = self._take(reader, passed, lines.rows_at_a_time(width))
    bad = [i for i, row in enumerate(rows) if len(row) != width]
    if not bad:
      return rows
    # Empty lines at the end of the file are no rows.
    rest = rows[bad[0] :]
    read = passed + len(rows)
    while rest and not any(rest):
      rest = self._take(reader, read, len(rows))
      read += len(rest)
    if not rest:
      return rows[: bad[0]]
    with lines.opened(self.path) as file:
      whole = enumerate(self._reader(file))
      found = (([i], self._where(0)) for i, row in whole if row and len(row) != width)
      others = problems.others(found)
    raise problems.DataError(
      f'{self._where(passed)(bad[0])}: {len(rows[bad[0]]) or "no"} fields, where the '
      f'{width} columns {problems.listed(self.columns)} need {width}.{others}'
    )


def _queried(query: str, width: int) -> Iterator[list[tuple[Any, ...]]]:
  import duckdb

  with duckdb.connect(config=_SETTINGS) as connection:
    connection.execute('SET enable_progress_bar = false')  # It would be in the output.
    found = connection.execute(query)
    while rows := found.fetchmany(lines.rows_at_a_time(width)):
      yield rows


def _literal(text: str) -> str:
  return "'" + text.replace("'", "''") + "'"


def _flag(separator: str) -> str:
  """The flag that says what a separator is, as the shell takes it."""
  return shlex.quote(f'--separator={"tab" if separator == _TAB else separator}')


class JsonLines:
  """JSON lines of which only the first was read, whose names are those of all."""

  def __init__(self, path: str, wanted: source.Wanted):
    del wanted
    self.path = path
    with lines.opened(path) as file:  # Which says what it is, if it is no such file.
      file.read(1)
    first = next(self._queried("coalesce(json, 'null')", 'LIMIT 1'), None)
    if first is None:
      raise problems.DataError(f'{path} is empty; it must have a JSON object a line.')
    # Sorted: rows in another order may begin with names in another order.
    self.columns = tuple(sorted(self._row(first[0][0], 0)))

  def batches(
    self, wanted: Sequence[str], numbers: Collection[str] = ()
  ) -> Iterator[source.Batch]:
    self._check_commas()
    names = ', '.join(map(_literal, self.columns))
    pointers = (f'/{name.replace("~", "~0").replace("/", "~1")}' for name in wanted)
    done = 0
    for rows in self._queried(
      f'json_extract(json, [{", ".join(map(_literal, pointers))}]), '
      f'if(coalesce(list_sort(json_keys(json)) = [{names}], false), NULL, '
      "coalesce(json, 'null'))"
    ):
      values, others = zip(*rows)
      for number, text in enumerate(others):
        if text is not None:
          raise self._other_names(text, done + number)
      try:
        columns = {
          name: json.loads(f'[{",".join(column)}]')
          for name, column in zip(wanted, zip(*values))
        }
      except (ValueError, RecursionError) as e:  # DuckDB reads inf.
        raise self._refusal(e) from e
      yield source.Batch(len(rows), columns, None, self._where(done))
      done += len(rows)

  def _queried(self, values: str, more: str = '') -> Iterator[list[tuple[Any, ...]]]:
    import duckdb

    path = _literal(glob.escape(os.path.abspath(self.path)))
    packed = self.path.lower().endswith(lines.PACKED)
    table = (
      f"read_json({path}, columns={{json: 'JSON'}}, format='newline_delimited', "
      'records=false, auto_detect=false, hive_partitioning=false, '
      f"compression='{'gzip' if packed else 'uncompressed'}')"
    )
    width = len(getattr(self, 'columns', ()))
    try:
      yield from _queried(f'SELECT {values} FROM {table} {more}', width)
    except duckdb.Error as e:
      raise self._refusal(e) from e

  def _check_commas(self) -> None:
    """Refuses a comma before a bracket that closes, which DuckDB passes over."""
    if not self.path.lower().endswith(lines.PACKED):
      with open(self.path, 'rb') as file:
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
          if not re.search(_COMMA.encode(), content):
            return
    with lines.opened(self.path) as texts:  # To its end: DuckDB compares no checksums.
      for number, text in enumerate(filter(str.strip, texts)):
        if re.search(_COMMA, text):
          self._row(text, number)

  def _refusal(self, error: Exception) -> problems.DataError:
    """Names the line that Python does not read either, or that DuckDB does not."""
    with lines.opened(self.path) as file:
      for number, text in enumerate(filter(str.strip, file)):
        row = self._row(text, number)
        why = ''
        if text.endswith('\r'):
          why = 'ends with a carriage return alone; save the file with line feeds'
        elif len(text) > _LONGEST_OBJECT:
          why = (
            f'has {len(text)} characters, and may have {_LONGEST_OBJECT}. Shorten it, '
            'or save the data as Parquet'
          )
        elif half := _HALF.search(json.dumps(row, ensure_ascii=False)):
          why = (
            f'has half of a character, {half[0]!r}, a surrogate without the other. '
            'Take it out, or write the whole character'
          )
        if why:
          return problems.DataError(f'{self._where(number)(0)} {why}.')
    return problems.DataError(f'{self.path} cannot be read: {error}.')

  def _where(self, done: int) -> Callable[[int], str]:
    """Lines of rows, counted only when asked for; empty lines are no rows."""

    def where(number: int) -> str:
      with lines.opened(self.path) as file:
        found = (line for line, text in enumerate(file, start=1) if text.strip())
        line = next(itertools.islice(found, done + number, None))
      return f'{self.path}, line {line}'

    return where

  def _row(self, text: str, number: int) -> dict[str, Any]:
    """An object as Python reads it, and refuses it."""

    def checked(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
      names = [name for name, _ in pairs]
      for name in names:
        if names.count(name) > 1:
          raise ValueError(f'it has {name!r} twice')
      return dict(pairs)

    try:
      row = json.loads(text, object_pairs_hook=checked)
    except (ValueError, RecursionError) as e:
      raise problems.DataError(f'{self._where(number)(0)} is not JSON: {e}.') from e
    if not isinstance(row, dict):
      raise problems.DataError(
        f'{self._where(number)(0)} is {problems.shown(row)}; it must be an object, '
        '{"name": value, ...}.'
      )
    return row

  def _other_names(self, text: str, number: int) -> problems.DataError:
    names, found = set(self.columns), self._row(text, number).keys()
    said = [f'lacks {each!r}' for each in sorted(names - found)]
    said += [f'has {each!r} as well' for each in sorted(found - names)]
    return problems.DataError(
      f'{self._where(number)(0)} {problems.listed(said)}, other than the first; all '
      'lines must have the same names.'
    )


class ParquetFile:
  """A file of which only the schema was read."""

  def __init__(self, path: str, wanted: source.Wanted):
    del wanted
    self.path = path
    name = _literal(glob.escape(os.path.abspath(path)))
    self._table = f'read_parquet({name}, hive_partitioning=false)'
    self._types: dict[str, str] = {}
    for rows in self._queried(f'DESCRIBE FROM {self._table}'):
      self._types.update((name, kind) for name, kind, *_ in rows)
    self.columns = tuple(self._types)
    self._check_names(name)

  def _check_names(self, file: str) -> None:
    """Refuses names that differ in case alone or not at all: DuckDB renames them."""
    query = f'SELECT name, num_children FROM parquet_schema({file})'
    nodes = [node for rows in self._queried(query) for node in rows]
    names, left = [], [nodes[0][1]]  # The root, and children that are to come.
    for name, num_children in nodes[1:]:
      if len(left) == 1:
        names.append(name)
      left[-1] -= 1
      left.append(num_children or 0)
      while len(left) > 1 and not left[-1]:
        left.pop()
    counts = collections.Counter(name.casefold() for name in names)
    for name in names:
      if counts[name.casefold()] > 1:
        raise problems.DataError(
          f'{self.path}: two columns are called {name!r}, in whatever case; names must '
          'differ.'
        )

  def batches(
    self, wanted: Sequence[str], numbers: Collection[str] = ()
  ) -> Iterator[source.Batch]:
    done = 0
    names = ('"' + name.replace('"', '""') + '"' for name in wanted)
    for rows in self._queried(f'SELECT {", ".join(names)} FROM {self._table}'):
      columns: dict[str, Any] = dict(zip(wanted, map(list, zip(*rows))))
      for name in wanted:
        # What float32 tells apart decides on ids.
        if self._types[name] == 'FLOAT' and None not in columns[name]:
          columns[name] = np.array(columns[name], np.float32)
      yield source.Batch(len(rows), columns, None, self._where(done))
      done += len(rows)

  def _queried(self, query: str) -> Iterator[list[tuple[Any, ...]]]:
    import duckdb

    try:
      yield from _queried(query, len(self._types))
    except duckdb.Error as e:
      raise problems.DataError(f'{self.path} is not a Parquet file: {e}.') from e

  def _where(self, done: int) -> Any:
    return lambda number: f'{self.path}, row {done + number + 1}'


CSV = source.Format(
  'csv', ('.csv', '.tsv'), 'comma- or tab-separated with a line of names', CsvFile
)
JSON = source.Format('jsonl', ('.jsonl', '.ndjson'), 'a JSON object a line', JsonLines)
PARQUET = source.Format('parquet', ('.parquet',), 'Parquet', ParquetFile)
