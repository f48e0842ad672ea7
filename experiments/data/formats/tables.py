"""Reads tables with DuckDB: CSV with a header line, JSON lines, and Parquet.

Nothing is guessed: a CSV field is text, and JSON and Parquet values keep their type.
Where DuckDB cannot read CSV, or would overlook a possible error in it, Python reads it
row by row, and finds the bad line.
"""

import csv
import glob
import itertools
import json
import mmap
import os
import re
from collections.abc import Iterator, Sequence
from typing import Any, Optional

import numpy as np

from .. import problems
from . import lines
from . import source

# In characters. A quote that is not closed would take in the rest of the file.
_MAX_FIELD = 2**24
# Limits of what DuckDB reads, which buffers 2,048 rows of all columns; in bytes.
_MAX_COLUMNS, _MAX_LINE = 500, 2**18
_SMALL_FILE = 2**15  # In bytes: Python reads smaller files, as DuckDB must start.
# Files with these bytes are read by Python: DuckDB splits rows and fields otherwise,
# ignores spaces beside quotes, and ignores surplus fields that are empty.
_ODD = (b'\r', b'\0', b'\n\n', b'"')


def _rows_at_a_time(width: int) -> int:
  """Returns the number of rows in a batch, if each has `width` fields."""
  return max(2**6, min(2**13, 2**16 // max(1, width)))


class CsvFile(source.Source):
  """A CSV file; opening it reads the header only. Empty lines are no rows."""

  name, endings = 'csv', ('.csv', '.tsv')
  summary = 'comma- or tab-separated with a line of names'

  def __init__(self, path: str, split: Any = None, separator: Optional[str] = None):
    super().__init__(path, split)
    is_tsv = path.lower().removesuffix(lines.PACKED).endswith('.tsv')
    self._delimiter = separator or ('\t' if is_tsv else ',')
    self._header, names = next(self._rows(), (1, ()))
    self.columns = tuple(names)
    if not names:
      raise problems.DataError(
        f'{path} is empty; its first line must have the names of the columns.'
      )
    for number, name in enumerate(self.columns, start=1):
      if not name.strip() or self.columns.count(name) > 1:
        raise problems.DataError(
          f'{path}, line {self._header}: column {number} of {len(self.columns)} is '
          f'called {name!r}; each needs a name of its own.'
        )

  def read(self, wanted: Sequence[str]) -> Iterator[source.Columns]:
    import duckdb  # Imported here, since checks of flags do not need it.

    num_read = 1  # Rows, the header included.
    if self._is_plain():
      try:
        for rows in _rows_of(self._query(wanted), len(wanted)):
          yield dict(zip(wanted, zip(*rows)))
          num_read += len(rows)
        return
      except duckdb.Error:
        pass  # Python reads the rest, or names the line.
    width, rest = len(self.columns), itertools.islice(self._rows(), num_read, None)
    while some := list(itertools.islice(rest, _rows_at_a_time(width))):
      if any(len(fields) != width for _, fields in some):
        raise self._width_error(itertools.chain(some, rest))
      columns = dict(zip(self.columns, zip(*(fields for _, fields in some))))
      yield {name: columns[name] for name in wanted}

  def _is_plain(self) -> bool:
    """Whether DuckDB and Python are sure to read the file alike."""
    is_small = os.path.getsize(self.path) < _SMALL_FILE
    is_packed = self.path.lower().endswith(lines.PACKED)
    is_wide = len(self.columns) > _MAX_COLUMNS
    if is_small or is_packed or is_wide or self._header > 1:
      return False
    delimiter = self._delimiter.encode()
    with open(self.path, 'rb') as file:
      with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        found = map(content.find, (*_ODD, delimiter + b'\n'))
        return content[-1:] != delimiter and max(found) < 0

  def _query(self, wanted: Sequence[str]) -> str:
    """Returns the query for the texts of a plain file."""
    columns = ', '.join(f"'c{index}': 'VARCHAR'" for index in range(len(self.columns)))
    values = (f"coalesce(c{self.columns.index(name)}, '')" for name in wanted)
    delimiter = "'" if self._delimiter == "'" else ''
    return (
      f'SELECT {", ".join(values)} FROM read_csv({_file(self.path)}, '
      "auto_detect=false, header=false, skip=1, quote='\"', escape='\"', "
      f"delim='{delimiter}{self._delimiter}', strict_mode=true, "
      "allow_quoted_nulls=false, compression='none', hive_partitioning=false, "
      f'max_line_size={_MAX_LINE}, buffer_size={4 * _MAX_LINE}, '
      f'columns={{{columns}}})'
    )

  def _rows(self) -> Iterator[tuple[int, list[str]]]:
    """Yields each row, the header too, after the number of its first line."""
    csv.field_size_limit(_MAX_FIELD)
    line, gap = 1, 0
    with lines.opened(self.path) as file:
      reader = csv.reader(file, delimiter=self._delimiter, strict=True)
      try:
        for row in reader:
          if not row:
            gap = line
          elif gap and len(self.columns) == 1:
            raise problems.DataError(
              f'{self.path}, line {gap} is empty, and the only column has no value in '
              'it. Fill it in, or remove the line.'
            )
          else:
            yield line, row
          line = reader.line_num + 1
      except csv.Error as e:
        raise problems.DataError(
          f'{self.path}, line {line}: {e}. Is a quote of the row that begins there not '
          'closed, or not doubled inside quotes?'
        ) from e

  def place(self, row: int) -> str:
    return lines.place(self.path, self._rows(), 1 + row)

  def _width_error(self, rows: Iterator[tuple[int, list[str]]]) -> problems.DataError:
    width = len(self.columns)
    bad = ((line, len(row)) for line, row in rows if len(row) != width)
    line, count = first = next(bad)
    others = problems.others(
      ('line {}'.format, line) for line, _ in itertools.chain([first], bad)
    )
    return problems.DataError(
      f'{self.path}, line {line}: {count} fields, where the {width} columns '
      f'{problems.listed(self.columns)} need {width}.{others}'
    )


def _rows_of(query: str, width: int) -> Iterator[list[tuple[Any, ...]]]:
  """Yields the rows of a query in batches; raises `duckdb.Error`."""
  import duckdb

  settings = {
    'threads': 2,
    'memory_limit': '512MB',
    'temp_directory': '',
    'autoinstall_known_extensions': False,
  }
  with duckdb.connect(config=settings) as connection:
    connection.execute('SET enable_progress_bar = false')  # It would be printed.
    result = connection.execute(query)
    while rows := result.fetchmany(_rows_at_a_time(width)):
      yield rows


def _literal(text: str) -> str:
  return "'" + text.replace("'", "''") + "'"


def _file(path: str) -> str:
  return _literal(glob.escape(os.path.abspath(path)))


class JsonLines(source.Source):
  """JSON lines; opening reads the first, whose names all lines must have."""

  name, endings = 'jsonl', ('.jsonl', '.ndjson')
  summary = 'a JSON object a line'

  def __init__(self, path: str, split: Any = None, separator: Any = None):
    super().__init__(path, split, separator)
    first = next(lines.numbered(path), None)
    if first is None:
      raise problems.DataError(f'{path} is empty; it must have a JSON object a line.')
    try:
      row = json.loads(first[1])
    except (ValueError, RecursionError) as e:
      raise self._error(e) from e
    if not isinstance(row, dict):
      raise self._other_names(f'{path}, line {first[0]}')
    # Sorted, since the order of names in the first row means nothing.
    self.columns = tuple(sorted(row))

  def read(self, wanted: Sequence[str]) -> Iterator[source.Columns]:
    import duckdb

    for _ in lines.numbered(self.path):
      pass  # Checks what DuckDB does not: UTF-8, gzip's checksum.
    is_gzipped = self.path.lower().endswith(lines.PACKED)
    names = ', '.join(map(_literal, self.columns))
    pointers = (f'/{name.replace("~", "~0").replace("/", "~1")}' for name in wanted)
    query = (
      f'SELECT json_extract(json, [{", ".join(map(_literal, pointers))}]), '
      f'coalesce(list_sort(json_keys(json)) = [{names}], false) '
      f'FROM read_ndjson_objects({_file(self.path)}, hive_partitioning=false, '
      f"compression='{'gzip' if is_gzipped else 'uncompressed'}')"
    )
    num_read = 0
    try:
      for rows in _rows_of(query, len(self.columns)):
        values, have_names = zip(*rows)
        if not all(have_names):
          raise self._other_names(self.place(num_read + have_names.index(False)))
        yield {
          name: json.loads(f'[{",".join(column)}]')
          for name, column in zip(wanted, zip(*values))
        }
        num_read += len(rows)
    except (duckdb.Error, json.JSONDecodeError, RecursionError) as e:
      raise self._error(e) from e

  def place(self, row: int) -> str:
    return lines.place(self.path, lines.numbered(self.path), row)

  def _error(self, error: Exception) -> problems.DataError:
    """Returns the error for the first line that Python cannot read, else DuckDB's."""
    for number, text in lines.numbered(self.path):
      try:
        json.dumps(json.loads(text), ensure_ascii=False).encode()
        if text.endswith('\r'):
          raise ValueError('it ends with a carriage return alone')
      except (ValueError, RecursionError) as e:  # For half of a character, too.
        return problems.DataError(f'{self.path}, line {number} is not JSON: {e}.')
    return problems.DataError(f'{self.path} cannot be read: {error}')

  def _other_names(self, where: str) -> problems.DataError:
    names = problems.listed(self.columns)
    return problems.DataError(
      f'{where} is no object with the names of the first line, each once: {names}.'
      if names
      else f'{where} is no object, and each line must be one with names and values, as '
      "pandas writes it by to_json(orient='records', lines=True)."
    )


class ParquetFile(source.Source):
  """A Parquet file; opening it reads the schema only."""

  name, endings, summary = 'parquet', ('.parquet',), 'Parquet'

  def __init__(self, path: str, split: Any = None, separator: Any = None):
    super().__init__(path, split, separator)
    self._table = f'read_parquet({_file(path)}, hive_partitioning=false)'
    described = self._rows_of(f'DESCRIBE FROM {self._table}', 1)
    self._types = {name: kind for name, kind, *_ in itertools.chain(*described)}
    self.columns = tuple(self._types)
    # DuckDB gives other names to columns whose names are equal but for case.
    nodes = self._rows_of(f'SELECT name FROM parquet_schema({_file(path)})', 1)
    in_file = {name for (name,) in itertools.chain(*nodes)}
    if renamed := set(self.columns) - in_file:
      raise problems.DataError(
        f'{path}: two columns are called {re.sub("_[0-9]+$", "", min(renamed))!r}, in '
        'whatever case; names must differ.'
      )

  def read(self, wanted: Sequence[str]) -> Iterator[source.Columns]:
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
      yield columns

  def _rows_of(self, query: str, width: int) -> Iterator[list[tuple[Any, ...]]]:
    import duckdb

    try:
      yield from _rows_of(query, width)
    except duckdb.Error as e:
      raise problems.DataError(f'{self.path} is not a Parquet file: {e}.') from e

  def place(self, row: int) -> str:
    return f'{self.path}, row {row + 1}'
