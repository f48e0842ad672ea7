"""Reads tables with DuckDB: CSV with a header line, JSON lines, and Parquet.

Nothing is guessed: a CSV field is read as text, or as a number if the column is stated
to be numeric, and JSON values keep their type. If DuckDB cannot read a file, or would
overlook a possible error in it, Python reads it row by row, and finds the bad line.
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
# Limits of what DuckDB reads, which buffers 2,048 rows of all columns; in bytes.
_MAX_COLUMNS, _MAX_LINE = 500, 2**18
# In bytes: Python parses smaller files, and larger ones take DuckDB some seconds.
_SMALL_FILE, _LARGE_FILE = 2**15, 2**28
# Longest line of JSON, in bytes; DuckDB may read lines up to twice as long.
_MAX_OBJECT = 2**24
# A trailing comma, or a text that looks like one.
_TRAILING_COMMA = r',\s*[]}]'
_LONE_SURROGATE = re.compile('[\ud800-\udfff]')
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
      self.columns = tuple(self._names(self._reader(file)))
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
    if self._is_plain:
      batches = self._parsed if numbers else self._texts
      try:
        for columns in batches(wanted, numbers):
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

  @functools.cached_property
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

  def _texts(
    self, wanted: Sequence[str], numbers: Collection[str]
  ) -> Iterator[dict[str, source.Values]]:
    """Reads texts of a plain file as they come, without a temporary database."""
    for rows in _rows_of(self._query(wanted, numbers), len(wanted)):
      yield dict(zip(wanted, zip(*rows)))

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

  def _names(self, reader: Any) -> list[str]:
    rows = self._read(reader, 0, 1)
    if not rows or not rows[0]:
      raise problems.DataError(
        f'{self.path} is empty; its first line must have the names of the columns.'
      )
    return rows[0]

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


def _rows_of(query: str, width: int) -> Iterator[list[tuple[Any, ...]]]:
  import duckdb

  with duckdb.connect(config=_SETTINGS) as connection:
    connection.execute('SET enable_progress_bar = false')  # It would be printed.
    result = connection.execute(query)
    while rows := result.fetchmany(lines.rows_at_a_time(width)):
      yield rows


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
    with lines.opened(path) as file:  # Refuses other encodings and damaged gzip.
      file.read(1)
    first = next(self._rows_of("coalesce(json, 'null')", 'LIMIT 1'), None)
    if first is None:
      raise problems.DataError(f'{path} is empty; it must have a JSON object a line.')
    # Sorted, since the order of names in the first row means nothing.
    self.columns = tuple(sorted(self._row(first[0][0], 0)))

  def batches(
    self, wanted: Sequence[str], numbers: Collection[str] = ()
  ) -> Iterator[source.Batch]:
    self._check_commas()
    names = ', '.join(map(_literal, self.columns))
    pointers = (f'/{name.replace("~", "~0").replace("/", "~1")}' for name in wanted)
    num_read = 0
    for rows in self._rows_of(
      f'json_extract(json, [{", ".join(map(_literal, pointers))}]), '
      f'if(coalesce(list_sort(json_keys(json)) = [{names}], false), NULL, '
      "coalesce(json, 'null'))"
    ):
      values, others = zip(*rows)
      for number, text in enumerate(others):
        if text is not None:
          raise self._names_error(text, num_read + number)
      try:
        columns = {
          name: json.loads(f'[{",".join(column)}]')
          for name, column in zip(wanted, zip(*values))
        }
      except (ValueError, RecursionError) as e:  # DuckDB accepts inf.
        raise self._error(e) from e
      yield source.Batch(len(rows), columns, None, self._where(num_read))
      num_read += len(rows)

  def _rows_of(self, values: str, clause: str = '') -> Iterator[list[tuple[Any, ...]]]:
    import duckdb

    path = _literal(glob.escape(os.path.abspath(self.path)))
    is_gzipped = self.path.lower().endswith(lines.PACKED)
    table = (
      f"read_json({path}, columns={{json: 'JSON'}}, format='newline_delimited', "
      'records=false, auto_detect=false, hive_partitioning=false, '
      f"compression='{'gzip' if is_gzipped else 'uncompressed'}')"
    )
    width = len(getattr(self, 'columns', ()))
    try:
      yield from _rows_of(f'SELECT {values} FROM {table} {clause}', width)
    except duckdb.Error as e:
      raise self._error(e) from e

  def _check_commas(self) -> None:
    """Refuses a comma before a closing bracket, which DuckDB ignores."""
    if not self.path.lower().endswith(lines.PACKED):
      with open(self.path, 'rb') as file:
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
          if not re.search(_TRAILING_COMMA.encode(), content):
            return
    with lines.opened(self.path) as texts:  # To the end: DuckDB ignores gzip checksums.
      for number, text in enumerate(filter(str.strip, texts)):
        if re.search(_TRAILING_COMMA, text):
          self._row(text, number)

  def _error(self, error: Exception) -> problems.DataError:
    """Returns the error for the line that Python or DuckDB cannot read."""
    with lines.opened(self.path) as file:
      for number, text in enumerate(filter(str.strip, file)):
        row = self._row(text, number)
        why = ''
        if text.endswith('\r'):
          why = 'ends with a carriage return alone; save the file with line feeds'
        elif len(text) > _MAX_OBJECT:
          why = (
            f'has {len(text)} characters, and may have {_MAX_OBJECT}. Shorten it, '
            'or save the data as Parquet'
          )
        elif half := _LONE_SURROGATE.search(json.dumps(row, ensure_ascii=False)):
          why = (
            f'has half of a character, {half[0]!r}, a surrogate without the other. '
            'Take it out, or write the whole character'
          )
        if why:
          return problems.DataError(f'{self._where(number)(0)} {why}.')
    return problems.DataError(f'{self.path} cannot be read: {error}.')

  def _where(self, num_read: int) -> Callable[[int], str]:
    """Returns a function that finds a row's line when called; skips empty lines."""

    def where(number: int) -> str:
      with lines.opened(self.path) as file:
        line_numbers = (line for line, text in enumerate(file, start=1) if text.strip())
        line = next(itertools.islice(line_numbers, num_read + number, None))
      return f'{self.path}, line {line}'

    return where

  def _row(self, text: str, number: int) -> dict[str, Any]:
    """Returns the object as Python reads it; refuses repeated names."""

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

  def _names_error(self, text: str, number: int) -> problems.DataError:
    names, names_here = set(self.columns), self._row(text, number).keys()
    changes = [f'lacks {each!r}' for each in sorted(names - names_here)]
    changes += [f'has {each!r} as well' for each in sorted(names_here - names)]
    return problems.DataError(
      f'{self._where(number)(0)} {problems.listed(changes)}, unlike the first; all '
      'lines must have the same names.'
    )


class ParquetFile:
  """A Parquet file; opening it reads the schema only."""

  def __init__(self, path: str, wanted: source.Wanted):
    del wanted
    self.path = path
    file = _literal(glob.escape(os.path.abspath(path)))
    self._table = f'read_parquet({file}, hive_partitioning=false)'
    described = self._rows_of(f'DESCRIBE FROM {self._table}', 1)
    self._types = {name: kind for name, kind, *_ in itertools.chain(*described)}
    self.columns = tuple(self._types)
    # DuckDB gives other names to columns whose names are equal but for case.
    nodes = self._rows_of(f'SELECT name FROM parquet_schema({file})', 1)
    in_file = {name for (name,) in itertools.chain(*nodes)}
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
    as_text = [
      re.fullmatch(r'UUID|DECIMAL\([0-9]+,0\)', self._types[n]) for n in wanted
    ]
    quoted = ('"' + name.replace('"', '""') + '"' for name in wanted)
    names = (f'{q}::VARCHAR' if is_text else q for q, is_text in zip(quoted, as_text))
    query = f'SELECT {", ".join(names)} FROM {self._table}'
    for rows in self._rows_of(query, len(self._types)):
      columns: dict[str, Any] = dict(zip(wanted, map(list, zip(*rows))))
      for name in wanted:
        # Keeps float32, whose precision limits which numbers can be ids.
        if self._types[name] == 'FLOAT' and None not in columns[name]:
          columns[name] = np.array(columns[name], np.float32)
      yield source.Batch(len(rows), columns, None, self._where(num_read))
      num_read += len(rows)

  def _rows_of(self, query: str, width: int) -> Iterator[list[tuple[Any, ...]]]:
    import duckdb

    try:
      yield from _rows_of(query, width)
    except duckdb.Error as e:
      raise problems.DataError(f'{self.path} is not a Parquet file: {e}.') from e

  def _where(self, num_read: int) -> Any:
    return lambda number: f'{self.path}, row {num_read + number + 1}'


CSV = source.Format(
  'csv', ('.csv', '.tsv'), 'comma- or tab-separated with a line of names', CsvFile
)
JSON = source.Format('jsonl', ('.jsonl', '.ndjson'), 'a JSON object a line', JsonLines)
PARQUET = source.Format('parquet', ('.parquet',), 'Parquet', ParquetFile)
