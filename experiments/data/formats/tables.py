"""Reads tables: CSV with a header line, JSON lines, and Parquet.

Nothing is guessed: a CSV field is read as text, or as a number if the column is stated
to be numeric, and JSON values keep their type. DuckDB reads Parquet, and parses the
numbers of large CSV files. If it cannot, or would overlook a possible error, Python
reads the file row by row, and finds the bad line; so it does for texts and JSON, which
DuckDB does not read faster.
"""

import collections
import csv
import glob
import itertools
import json
import mmap
import os
import re
import secrets
import shlex
import sys
import tempfile
from collections.abc import Collection, Iterator, Sequence
from typing import Any, Callable

import numpy as np

from .. import problems
from . import lines
from . import source

# In characters. A quote that is not closed would take in the rest of the file.
_MAX_FIELD = 2**24
# Limits of what DuckDB parses, which buffers 2,048 rows of all columns; in bytes.
_MAX_COLUMNS, _MAX_LINE = 500, 2**18
# In bytes: Python parses smaller files, and larger ones take DuckDB some seconds.
_SMALL_FILE, _LARGE_FILE = 2**15, 2**28
_MAX_OBJECT = 2**24  # Longest line of JSON, in characters.
_SURROGATE = re.compile(r'\\u[dD][89a-fA-F]')
_TAB = '\t'
# Tried for files whose separator is not stated.
_SEPARATORS = (';', _TAB, '|', ',')
_QUOTED = re.compile('"[^"]*"')
# Files with these bytes are read by Python: DuckDB splits rows and fields otherwise,
# ignores spaces beside quotes, and ignores surplus fields that are empty.
_ODD = (b'\r', b'\0', b'\n\n', b'"')
_SETTINGS = {
  'threads': 2,
  'memory_limit': '512MB',
  'temp_directory': '',
  'autoinstall_known_extensions': False,
}


class CsvFile:
  """A CSV file; opening it reads the header only."""

  def __init__(self, path: str, wanted: source.Wanted):
    self.path, self._scratch = path, wanted.scratch
    is_tsv = path.lower().removesuffix(lines.PACKED).endswith('.tsv')
    self._delimiter = wanted.separator or (_TAB if is_tsv else ',')
    if wanted.separator is None:
      self._check_separator()
    with lines.opened(path) as file:
      names = self._read(self._reader(file), 0, 1)
    if names in ([], [[]]):
      raise problems.DataError(
        f'{path} is empty; its first line must have the names of the columns.'
      )
    self.columns = tuple(names[0])
    for number, name in enumerate(self.columns, start=1):
      if not name.strip() or self.columns.count(name) > 1:
        raise problems.DataError(
          f'{path}, line 1: column {number} of {len(self.columns)} is called {name!r}; '
          'each needs a name of its own. pandas leaves out that of its index, unless '
          'by .to_csv(..., index=False).'
        )

  def _check_separator(self) -> None:
    """Refuses a header with more of another separator than of the file's own."""
    with lines.opened(self.path) as file:
      line = file.readline(_MAX_FIELD)
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
    import duckdb  # Imported here, since checks of flags do not need it.

    num_read = 1  # Rows, the header included.
    if numbers and self._is_plain():
      try:
        for columns in self._parsed(wanted, numbers):
          num_rows = len(columns[wanted[0]])
          yield source.Batch(num_rows, columns, None, self._where(num_read))
          num_read += num_rows
        return
      except duckdb.Error:
        pass  # Python reads the rest, or names the line; also if space is short.
    with lines.opened(self.path) as file:
      reader = self._reader(file)
      collections.deque(itertools.islice(reader, num_read), maxlen=0)
      while fields := self._rows(reader, num_read):
        all_columns = dict(zip(self.columns, zip(*fields)))
        columns = {name: all_columns[name] for name in wanted}
        yield source.Batch(len(fields), columns, None, self._where(num_read))
        num_read += len(fields)

  def _is_plain(self) -> bool:
    """Whether DuckDB and Python are sure to read the file alike."""
    if len(self.columns) > _MAX_COLUMNS or self.path.lower().endswith(lines.PACKED):
      return False
    if os.path.getsize(self.path) < _SMALL_FILE:  # Python is faster: DuckDB must start.
      return False
    with open(self.path, 'rb') as file:
      with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        delimiter = self._delimiter.encode()
        if content[-1:] == delimiter:
          return False
        return all(content.find(each) < 0 for each in (*_ODD, delimiter + b'\n'))

  def _parsed(
    self, wanted: Sequence[str], numbers: Collection[str]
  ) -> Iterator[dict[str, source.Values]]:
    """Parses a plain file into a temporary database, and reads that in batches.

    DuckDB returns arrays of a part of a table, but not of a part of a query's result.
    """
    import duckdb

    memory = f'{32 + 2 * len(self.columns)}MB'  # Twice what a row group takes.
    settings = {**_SETTINGS, 'threads': 1, 'memory_limit': memory}
    folder = self._scratch or tempfile.gettempdir()
    path = os.path.join(folder, f'rows_{secrets.token_hex(8)}')
    with duckdb.connect(path, config=settings) as connection:
      # Unnamed, so that it does not outlive a killed process. While the table is
      # committed, rows_....wal has the minimum and maximum of each column.
      os.unlink(path)
      connection.execute("SET wal_autocheckpoint = '1B'")
      connection.execute('SET enable_progress_bar = false')
      if os.path.getsize(self.path) > _LARGE_FILE:
        print(f'{self.path} is being parsed.', file=sys.stderr)
      connection.execute(f'CREATE TABLE rows AS {self._query(wanted, numbers)}')
      count = lines.rows_at_a_time(len(wanted))
      for start in itertools.count(0, count):
        batch = connection.execute(
          f'FROM rows WHERE rowid >= {start} AND rowid < {start + count}'
        ).fetchnumpy()
        arrays = dict(zip(wanted, batch.values()))
        if not len(arrays[wanted[0]]):
          return
        for name in numbers:
          if not (np.abs(arrays[name]) <= np.finfo(np.float32).max).all():
            raise duckdb.ConversionException(f'{name} is not finite in float32')
        yield {
          name: values if name in numbers else values.tolist()
          for name, values in arrays.items()
        }

  def _query(self, wanted: Sequence[str], numbers: Collection[str]) -> str:
    """Returns the query for values of a plain file, where each row is one line."""
    columns = ', '.join(f"'c{index}': 'VARCHAR'" for index in range(len(self.columns)))
    # Python would parse 1_000, and DuckDB +-5; neither is meant.
    as_number = "if(contains({0}, '_') OR contains({0}, '+-'), NULL, {0})"
    as_number = f"coalesce(try_cast({as_number} AS DOUBLE), 'nan')"
    values = (
      (as_number if name in numbers else "coalesce({0}, '')").format(
        f'c{self.columns.index(name)}'
      )
      + f' AS v{place}'
      for place, name in enumerate(wanted)
    )
    delimiter = "'" if self._delimiter == "'" else ''
    return (
      f'SELECT {", ".join(values)} FROM read_csv({_literal(glob.escape(self.path))}, '
      "auto_detect=false, header=false, skip=1, quote='\"', escape='\"', "
      f"delim='{delimiter}{self._delimiter}', strict_mode=true, "
      "allow_quoted_nulls=false, compression='none', hive_partitioning=false, "
      f'max_line_size={_MAX_LINE}, buffer_size={4 * _MAX_LINE}, '
      f'columns={{{columns}}})'
    )

  def _where(self, num_read: int) -> Callable[[int], str]:
    """Returns a function that finds a row's line when called, after `num_read` rows."""

    def where(number: int) -> str:
      with lines.opened(self.path) as file:
        reader = self._reader(file)
        collections.deque(itertools.islice(reader, num_read + number), maxlen=0)
        return f'{self.path}, line {reader.line_num + 1}'

    return where

  def _reader(self, file: Any) -> Any:
    csv.field_size_limit(_MAX_FIELD)
    return csv.reader(file, delimiter=self._delimiter, strict=True)

  def _read(self, reader: Any, num_read: int, count: int) -> list[list[str]]:
    rows: list[list[str]] = []
    try:
      rows.extend(itertools.islice(reader, count))
    except csv.Error as e:
      raise problems.DataError(
        f'{self._where(num_read)(len(rows))}: {e}. Is a quote of the row that begins '
        'there not closed, or not doubled inside quotes?'
      ) from e
    return rows

  def _rows(self, reader: Any, num_read: int) -> list[list[str]]:
    width = len(self.columns)
    rows = self._read(reader, num_read, lines.rows_at_a_time(width))
    bad = [i for i, row in enumerate(rows) if len(row) != width]
    if not bad:
      return rows
    # Empty lines at the end of the file are not rows.
    rest = rows[bad[0] :]
    read = num_read + len(rows)
    while rest and not any(rest):
      rest = self._read(reader, read, len(rows))
      read += len(rest)
    if not rest:
      return rows[: bad[0]]
    with lines.opened(self.path) as file:
      whole = enumerate(self._reader(file))
      bad_rows = (
        ([i], self._where(0)) for i, row in whole if row and len(row) != width
      )
      others = problems.others(bad_rows)
    raise problems.DataError(
      f'{self._where(num_read)(bad[0])}: {len(rows[bad[0]]) or "no"} fields, where the '
      f'{width} columns {problems.listed(self.columns)} need {width}.{others}'
    )


def _literal(text: str) -> str:
  return "'" + text.replace("'", "''") + "'"


def _flag(separator: str) -> str:
  """Returns the flag that states a separator, quoted for the shell."""
  return shlex.quote(f'--separator={"tab" if separator == _TAB else separator}')


class JsonLines:
  """JSON lines; opening reads the first, whose names all lines must have."""

  def __init__(self, path: str, wanted: source.Wanted):
    del wanted
    self.path = path
    first = next(self._rows(), None)
    if first is None:
      raise problems.DataError(f'{path} is empty; it must have a JSON object a line.')
    # Sorted, since the order of names in the first row means nothing.
    self.columns = tuple(sorted(first[1]))

  def batches(
    self, wanted: Sequence[str], numbers: Collection[str] = ()
  ) -> Iterator[source.Batch]:
    names, rows = set(self.columns), self._rows()
    while batch := list(itertools.islice(rows, lines.rows_at_a_time(len(names)))):
      places, objects = zip(*batch)
      for place, row in batch:
        if row.keys() != names:
          changes = [f'lacks {each!r}' for each in sorted(names - row.keys())]
          changes += [f'has {each!r} as well' for each in sorted(row.keys() - names)]
          raise problems.DataError(
            f'{place} {problems.listed(changes)}, unlike the first; all lines must '
            'have the same names.'
          )
      columns = {name: [row[name] for row in objects] for name in wanted}
      yield source.Batch(len(batch), columns, None, places.__getitem__)

  def _rows(self) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields file and line of each row, and the row; skips empty lines."""
    with lines.opened(self.path, newline='\n') as file:
      texts = iter(lambda: file.readline(_MAX_OBJECT + 1), '')
      for number, text in enumerate(texts, start=1):
        place = f'{self.path}, line {number}'
        if len(text) > _MAX_OBJECT:
          raise problems.DataError(
            f'{place} has more than {_MAX_OBJECT} characters. Shorten it, or save the '
            'data as Parquet.'
          )
        if text.strip(' \t\r\n'):
          yield place, self._row(text, place)

  def _row(self, text: str, place: str) -> dict[str, Any]:
    try:
      row = json.loads(text, object_pairs_hook=_without_repeats)
      if _SURROGATE.search(text):  # It may be without the other half.
        json.dumps(row, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as e:
      raise problems.DataError(
        f'{place} is not JSON: {e}. Each line must be an object, {{"name": value, ...}}'
        ', in UTF-8.'
      ) from e
    if not isinstance(row, dict):
      raise problems.DataError(
        f'{place} is {problems.shown(row)}; it must be an object, '
        '{"name": value, ...}.'
      )
    return row


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
  row = dict(pairs)
  for name, _ in pairs if len(row) < len(pairs) else ():
    if sum(name == other for other, _ in pairs) > 1:
      raise ValueError(f'it has {name!r} twice')
  return row


class ParquetFile:
  """A Parquet file; opening it reads the schema only."""

  def __init__(self, path: str, wanted: source.Wanted):
    del wanted
    self.path = path
    file = _literal(glob.escape(os.path.abspath(path)))
    self._table = f'read_parquet({file}, hive_partitioning=false)'
    described = self._rows(f'DESCRIBE FROM {self._table}', 1)
    self._types = {name: kind for name, kind, *_ in itertools.chain(*described)}
    self.columns = tuple(self._types)
    # DuckDB gives other names to columns whose names are equal but for case.
    nodes = itertools.chain(*self._rows(f'SELECT name FROM parquet_schema({file})', 1))
    in_file = {name for (name,) in nodes}
    for name in self.columns:
      if name not in in_file:
        raise problems.DataError(
          f'{path}: two columns are called {re.sub("_[0-9]+$", "", name)!r}, in '
          'whatever case; names must differ.'
        )

  def batches(
    self, wanted: Sequence[str], numbers: Collection[str] = ()
  ) -> Iterator[source.Batch]:
    num_read = 0
    names = ('"' + name.replace('"', '""') + '"' for name in wanted)
    query = f'SELECT {", ".join(names)} FROM {self._table}'
    for rows in self._rows(query, len(self._types)):
      columns: dict[str, Any] = dict(zip(wanted, map(list, zip(*rows))))
      for name in wanted:
        # Keeps float32, whose precision limits which numbers can be ids.
        if self._types[name] == 'FLOAT' and None not in columns[name]:
          columns[name] = np.array(columns[name], np.float32)
      yield source.Batch(len(rows), columns, None, self._where(num_read))
      num_read += len(rows)

  def _rows(self, query: str, width: int) -> Iterator[list[tuple[Any, ...]]]:
    import duckdb

    try:
      with duckdb.connect(config=_SETTINGS) as connection:
        connection.execute('SET enable_progress_bar = false')  # It would be printed.
        result = connection.execute(query)
        while rows := result.fetchmany(lines.rows_at_a_time(width)):
          yield rows
    except duckdb.Error as e:
      raise problems.DataError(f'{self.path} is not a Parquet file: {e}.') from e

  def _where(self, num_read: int) -> Any:
    return lambda number: f'{self.path}, row {num_read + number + 1}'


CSV = source.Format(
  'csv', ('.csv', '.tsv'), 'comma- or tab-separated with a line of names', CsvFile
)
JSON = source.Format('jsonl', ('.jsonl', '.ndjson'), 'a JSON object a line', JsonLines)
PARQUET = source.Format('parquet', ('.parquet',), 'Parquet', ParquetFile)
