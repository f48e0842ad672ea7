"""The file of a round log as a table of texts, which DuckDB reads.

`round_log` says what a log looks like, and turns the texts into rounds.
"""

import contextlib
import csv
import glob
import gzip
import itertools
import json
import os
import re
import tempfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Optional

from tff_dp_aggregators.base import strict_json

# The names under which a column is recognised, whatever their case.
COLUMNS: dict[str, tuple[str, ...]] = {
  'completion_time': (
    'completion_time',
    'completed_at',
    'completed',
    'end_time',
    'finished_at',
    'time',
    'timestamp',
  ),
  'start_time': ('start_time', 'started_at', 'started'),
  'round': ('round', 'round_number', 'round_num', 'step'),
  'cohort_size': ('cohort_size', 'cohort', 'cohort_reported', 'num_clients'),
  'client_ids': ('client_ids', 'participants'),
  'client_id': ('client_id', 'client', 'device_id', 'device', 'user_id', 'user'),
  'population': ('population', 'population_name'),
}
MEMORY = '2GB'  # What exceeds it is on disk: 10^8 participations take 2.3 GB in all.
# Columns of times.
TIMES = ('completion_time', 'start_time')
_LONGEST_LINE = 2**24  # Bytes.
_SHOWN_POPULATIONS = 10
_DECODER = json.JSONDecoder(object_pairs_hook=strict_json.unique)


def connect(folder: str = '') -> Any:
  """A database in memory, and in this folder what exceeds it."""
  import duckdb  # Here, because most reports need no log.

  database = duckdb.connect(config={'memory_limit': MEMORY, 'temp_directory': folder})
  database.execute("set TimeZone = 'UTC'")
  return database


class LogFile:
  """A file of which the table `entries` has the columns that mean something, as text.

  NULL is what is missing or cannot be meant, such as a list where a time should be;
  `no` numbers the entries of the file, from 1.

  Attributes:
    database: The database, which needs this object for its folder.
    found: The file's name of each column.
    ignored: The file's other columns.
    notes: What was left out, for people.
  """

  def __init__(self, path: str, columns: dict[str, str], population: Optional[str]):
    """Reads the file.

    Args:
      path: The file.
      columns: The file's own names of columns.
      population: The population to read; `None` for a log that has one only.

    Raises:
      OSError: If the file cannot be read.
      ValueError: If something in it is refused, with the line.
    """
    for name in columns:
      if name not in COLUMNS:
        raise ValueError(f'{name!r} is no column of a round log: {", ".join(COLUMNS)}.')
    self._path = path
    self._columns = columns
    self._population = population
    self._folder = tempfile.TemporaryDirectory(prefix='round_log')
    self._kind, self._delimiter = 'CSV', ','
    self._header = 0  # Lines before the first entry.
    self.database = connect(self._folder.name)
    self.found: dict[str, str] = {}
    self.ignored: list[str] = []
    self.notes: list[str] = []
    self._file = self._unpacked()
    with open(self._file, 'rb') as file:
      is_parquet = file.read(4) == b'PAR1'
    with self._refusals():
      source = self._parquet() if is_parquet else self._text()
      chosen = self._chosen(source) if 'population' in self.found else 'true'
      self.query(
        f'create table entries as select no, {", ".join(self.names)} from ({source}) '
        f'where {chosen}'
      )
    if not self.query('from entries limit 1'):
      raise self.error('has no rounds.')

  @property
  def names(self) -> list[str]:
    """The columns of `entries` but the first."""
    return [name for name in self.found if name != 'population']

  @property
  def has_json_ids(self) -> bool:
    """Whether clients are written as JSON, as in lists."""
    return self._kind == 'JSON lines' or 'client_ids' in self.found

  def check_client_id(self, most_in_a_round: int) -> None:
    """Refuses a column that need not be of clients, if no round has two lines.

    Raises:
      ValueError: If it is one.
    """
    name = self.found['client_id']
    if 'client_id' not in self._columns and most_in_a_round == 1:
      raise ValueError(
        f'{self._path}: {name} may say whose the only participation of each round was, '
        f'or something else of the round; say which: --columns=client_id={name} or '
        '--columns=client_id=.'
      )

  def query(self, sql: str, *parameters: Any) -> list[tuple]:
    """The rows of a query, or of the last of several."""
    return self.database.execute(sql, parameters or None).fetchall()

  def arrays(self, sql: str, *parameters: Any) -> dict[str, Any]:
    """The columns of a query that has no NULL, as NumPy arrays."""
    return self.database.execute(sql, parameters or None).fetchnumpy()

  def rows(self, sql: str) -> list[dict[str, Any]]:
    """The rows of a query by the names of columns."""
    found = self.database.execute(sql)
    names = [name for name, *_ in found.description]
    return [dict(zip(names, row)) for row in found.fetchall()]

  def value(self, number: int, name: str) -> Any:
    """The value of a column in an entry as it is in the file."""
    if self._kind == 'JSON lines':
      with open(self._file, encoding='utf-8-sig') as file:
        line = next(itertools.islice(file, number - 1, None))
      return json.loads(line).get(self.found[name])
    return self.query(f'select {name} from entries where no = {number}')[0][0]

  def line(self, number: int) -> int:
    """The line of an entry, or its row in a Parquet file."""
    if self._kind not in ('CSV', 'TSV'):
      return number
    with open(self._file, encoding='utf-8-sig', newline='') as file:
      rows = self._rows(itertools.islice(file, self._header, None))
      next(itertools.islice(filter(None, rows), int(number) - 1, None))
      return self._header + rows.line_num

  def error(self, reason: str) -> ValueError:
    """What is wrong with the file."""
    return ValueError(f'{self._path} {reason}')

  def refusal(self, number: int, reason: str) -> ValueError:
    """What is wrong with an entry."""
    return self._refusal(self.line(number), reason)

  def _refusal(self, line: int, reason: str) -> ValueError:
    what = 'row' if self._kind == 'Parquet' else 'line'
    return ValueError(f'{self._path}, {what} {line}: {reason}')

  def _unpacked(self) -> str:
    """The file, or what is in it if it is gzipped.

    DuckDB would unpack it as well, but does not verify its checksum.
    """
    with open(self._path, 'rb') as file:
      if file.read(2) != b'\x1f\x8b':
        return self._path
    unpacked = os.path.join(self._folder.name, 'unpacked')
    try:
      with gzip.open(self._path) as packed, open(unpacked, 'wb') as file:
        for block in iter(lambda: packed.read1(2**20), b''):
          file.write(block)
    except (EOFError, gzip.BadGzipFile, zlib.error) as e:
      with open(unpacked, 'rb') as file:
        line = 1 + sum(1 for text in file if text.endswith(b'\n'))
      raise self._refusal(
        line, f'at or after it the gzipped file is damaged or cut off: {e}.'
      ) from e
    return unpacked

  @contextlib.contextmanager
  def _refusals(self) -> Iterator[None]:
    """Says in which line something is that DuckDB does not read."""
    import duckdb

    try:
      yield
    except duckdb.Error as e:
      reason, _, _ = str(e).partition('Possible')
      found = re.search(r'CSV Error on Line: (\d+)\n(.*)', reason, re.DOTALL)
      if not found:
        with open(self._file, 'rb') as file:
          ends = [line.endswith(b'\r\n') for line in file if line.endswith(b'\n')]
        if len(set(ends)) > 1:
          line = ends.index(not ends[0]) + 1
          raise self._refusal(
            line, 'this line ends in another way than the first; write all alike.'
          ) from e
        raise self.error(f'is not {self._kind} that can be read: {e}') from e
      shown = ' '.join(line[:200] for line in found[2].splitlines() if line)
      raise self._refusal(
        int(found[1]), f'this is not {self._kind} in UTF-8: {shown}'
      ) from e

  def _parquet(self) -> str:
    """The query for the values of a Parquet file."""
    self._kind = 'Parquet'
    table = (
      f'read_parquet({_literal(glob.escape(self._file))}, file_row_number=true, '
      'hive_partitioning=false)'
    )
    types = {
      name: kind
      for name, kind, *_ in self.query(f'describe from {table}')
      if name != 'file_row_number'
    }
    self._find_columns(list(types), 1)
    values = {}
    for name, found in self.found.items():
      if types[found].startswith('FLOAT'):
        raise ValueError(
          f'{self._path}: {found} has floats of 32 bits, which tell neither ids nor '
          'times apart; write it as text, as whole numbers or with 64 bits.'
        )
      column = '"' + found.replace('"', '""') + '"'
      if types[found].endswith(']'):
        column = f'to_json({column})'
      values[name] = f'{column}::varchar'
    return f'select file_row_number + 1 as no, {named(values)} from {table}'

  def _text(self) -> str:
    """The query for the values of a text."""
    with open(
      self._file, encoding='utf-8-sig', errors='surrogateescape', newline=''
    ) as file:
      for first in file:
        if first.strip():
          break
        self._header += 1
      else:
        raise self.error('has no rounds.')
      if first.lstrip()[0] == '[':
        raise self._refusal(
          self._header + 1, 'write one JSON object a line, without a list.'
        )
      is_json = first.lstrip()[0] == '{'
      source = self._json(first) if is_json else self._csv(first, file)
    with open(self._file, 'rb') as end:
      end.seek(-1, os.SEEK_END)
      if end.read() not in b'\n\r':
        self.notes.append('the last line has no end; see that it was not cut off.')
    return source

  def _read_csv(self, options: str, columns: Sequence[str]) -> str:
    names = ', '.join(f"'{name}': 'VARCHAR'" for name in columns)
    return (
      f'read_csv({_literal(glob.escape(self._file))}, auto_detect=false, '
      f'header=false, strict_mode=true, max_line_size={_LONGEST_LINE}, '
      f"compression='none', hive_partitioning=false, {options}, columns={{{names}}})"
    )

  def _csv(self, first: str, rest: Iterator[str]) -> str:
    """The query for the values of a table whose header is the first line."""
    if first.count('\t') > first.count(','):
      self._kind, self._delimiter = 'TSV', '\t'
    rows = self._rows(itertools.chain([first], rest))
    try:
      header = next(rows)
      ''.join(header).encode()
    except (csv.Error, UnicodeEncodeError) as e:
      raise self._refusal(
        self._header + 1, f'this is not {self._kind} in UTF-8: {e}.'
      ) from e
    self._find_columns(header, self._header + 1)
    self._header += rows.line_num
    columns = [f'c{i}' for i in range(len(header))]
    table = self._read_csv(
      f"delim='{self._delimiter}', quote='\"', escape='\"', skip={self._header}, "
      'allow_quoted_nulls=false',
      columns,
    )
    if len(columns) == 1:  # Then a blank line is a value that is missing.
      table = f'(from {table} where c0 is not null)'
    values = {name: f'c{header.index(found)}' for name, found in self.found.items()}
    if 'client_ids' in values:  # Nobody took part.
      values['client_ids'] = f"coalesce({values['client_ids']}, '')"
    return f'select row_number() over () as no, {named(values)} from {table}'

  def _rows(self, lines: Iterator[str]) -> Any:
    csv.field_size_limit(max(csv.field_size_limit(), _LONGEST_LINE))
    return csv.reader(
      lines, delimiter=self._delimiter, strict=True, skipinitialspace=True
    )

  def _json(self, first: str) -> str:
    """The query for the values of JSON lines, the first of which has all columns."""
    self._kind = 'JSON lines'
    line = self._header + 1
    try:
      names = list(_DECODER.decode(first))
    except ValueError as e:
      raise self._refusal(line, f'this is not a JSON object: {e}.') from e
    self._find_columns(names, line)
    table = self._read_csv("delim='\x01', quote='', escape=''", ['line'])
    lines = (
      f'select * from (select row_number() over () as no, line from {table}) where '
      "trim(line, e' \\t') <> ''"
    )
    self._check_objects(lines)
    values = {name: _json_value(name, found) for name, found in self.found.items()}
    return f'select no, {named(values)} from ({lines})'

  def _check_objects(self, lines: str) -> None:
    """Refuses lines that are no object, have a name twice, or columns of their own."""
    groups = self.query(
      'select min(no), keys, any_value(bad) from (select no, case when '
      "json_valid(line) and json_type(line) = 'OBJECT' then json_keys(line) end as "
      f'keys, case when keys is null then line end as bad from ({lines})) group by '
      'keys order by 1'
    )
    for line, keys, bad in groups:
      if keys is None:
        try:
          reason = f'{json.loads(bad)!r:.200} is not a JSON object'
        except ValueError as e:
          reason = f'this is not a JSON object: {e}'
        raise self._refusal(line, f'{reason}.')
      if len(set(keys)) < len(keys):
        raise self._refusal(line, f'a name stands twice in {keys}.')
      recognised = self._recognise(keys, line) if groups[0][1] != keys else {}
      late = set(recognised.values()) - {*self.found.values(), *self.ignored}
      if late:
        raise self._refusal(
          line, f'{", ".join(sorted(late))} is here but not in the first line.'
        )

  def _chosen(self, source: str) -> str:
    """The condition for entries of the population that is asked for."""
    name_of = "trim(population, e' \\t')"
    groups = self.query(
      f'select {name_of} as name, min(no), count(*) from ({source}) group by name '
      'order by 2'
    )
    for name, number, _ in groups:
      if not name:
        raise self.refusal(number, 'there is no population.')
    if self._population is None:
      if len(groups) > 1:
        (first, first_number, _), (name, number, _) = groups[:2]
        raise self.refusal(
          number,
          f'this round is of the population {name!r}, but line '
          f'{self.line(first_number)} has {first!r}. Say which is meant '
          '(--population_name), for each has rounds of its own; or that this is no '
          'such column (--columns=population=).',
        )
      return 'true'
    others = {name: count for name, _, count in groups if name != self._population}
    shown = ', '.join(map(repr, sorted(others)[:_SHOWN_POPULATIONS]))
    if len(others) > _SHOWN_POPULATIONS:
      shown += f' and {len(others) - _SHOWN_POPULATIONS} more'
    if others and len(others) == len(groups):
      raise self.error(
        f'has no rounds of the population {self._population!r}; it has '
        f'those of {shown}.'
      )
    if others:
      self.notes.append(
        f'of the population {self._population!r} alone; {sum(others.values())} lines '
        f'of others were left out: {shown}.'
      )
    return f'{name_of} = {_literal(self._population)}'

  def _find_columns(self, names: list[str], line: int) -> None:
    """Finds the file's name of each column to read."""
    found = self._recognise(names, line)
    by_participation = {'round', 'client_id'} <= found.keys()
    if not (found.keys() & {'completion_time', 'client_ids'} or by_participation):
      raise self._refusal(
        line,
        f'no column of completion times among {", ".join(map(repr, names))}; '
        'call it completion_time, or say which it is '
        '(--columns=completion_time=NAME).',
      )
    if self._population is not None and 'population' not in found:
      raise self._refusal(
        line,
        f'no column of populations among {", ".join(map(repr, names))}; call it '
        'population, or say which it is (--columns=population=NAME).',
      )
    if 'client_ids' in found:
      found.pop('client_id', None)
    if 'client_id' in found and 'round' not in found:
      raise self._refusal(
        line,
        f'{found["client_id"]} says whose a participation was, but no column has the '
        'number of its round; add one. If each line is a round, say that this is no '
        'such column (--columns=client_id=).',
      )
    if 'client_id' in found:  # Times are of participations, not of rounds.
      for name in TIMES:
        if self._columns.get(name):
          raise self._refusal(
            line,
            f'each line is one participation, in column {found["client_id"]}, and its '
            f'time does not tell when the round was complete. Leave {name} out of '
            '--columns, or give a log with a line for each round.',
          )
      found = {
        name: found[name]
        for name in ('round', 'client_id', 'population')
        if name in found
      }
    self.found = found
    self.ignored = [name for name in names if name not in found.values()]
    if self.ignored:
      self.notes.append(f'columns left alone: {", ".join(self.ignored)}.')

  def _recognise(self, names: list[str], line: int) -> dict[str, str]:
    """The file's name of each column that is there."""
    by_spelling = {name.strip().lower(): name for name in names}
    if len(by_spelling) < len(names):
      raise self._refusal(line, 'two columns have the same name.')
    found = {}
    for column, spellings in COLUMNS.items():
      if column in self._columns:
        if not self._columns[column]:
          continue
        if self._columns[column] not in names:
          raise self._refusal(
            line, f'there is no column {self._columns[column]!r} for {column}.'
          )
        found[column] = self._columns[column]
        continue
      present = [by_spelling[s] for s in spellings if s in by_spelling]
      present = [name for name in present if name not in self._columns.values()]
      if len(present) > 1 and present[0].strip().lower() != column:
        raise self._refusal(
          line, f'{" and ".join(present)} could both be {column}; say which it is.'
        )
      if present:
        found[column] = present[0]
    return found


def _literal(text: str) -> str:
  return "'" + text.replace("'", "''") + "'"


def named(values: Mapping[str, str]) -> str:
  """A list of SQL's, of values by name."""
  return ', '.join(f'{value} as {name}' for name, value in values.items())


def _json_value(name: str, source: str) -> str:
  """The text of a value in the object that is a line; NULL if it is of another kind."""
  pointer = _literal('/' + source.replace('~', '~0').replace('/', '~1'))
  kind, text = f'json_type(line, {pointer})', f'json_extract_string(line, {pointer})'
  json_text = f'json_extract(line, {pointer})::varchar'
  if name == 'client_id':
    return f"case when {kind} <> 'NULL' then {json_text} end"
  if name == 'client_ids':
    return f"case {kind} when 'ARRAY' then {json_text} when 'VARCHAR' then {text} end"
  # DuckDB writes a float anew. What counts is which digits the line has of it; if they
  # are not found, some may be missing.
  key = re.escape(json.dumps(source, ensure_ascii=False))
  pattern = _literal(key + r'\s*:\s*([-+.0-9eE]+)')
  written = f'regexp_extract(line, {pattern}, 1)'
  return (
    f"case when {kind} in ('VARCHAR', 'BIGINT', 'UBIGINT') then {text} "
    f"when {kind} = 'DOUBLE' then case when try_cast({written} as double) = "
    f"{text}::double then {written} when contains({text}, 'e') then {text} else {text} "
    "|| 'e0' end end"
  )
