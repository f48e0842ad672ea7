"""Reads round logs: what a production system recorded about its rounds.

A log is a CSV or TSV file with a header (TSV if that has more tabs than commas), JSON
lines (one object per line, recognised by the first character) or Parquet, plain or
gzipped (recognised by the first bytes), with one entry per released round:

| column            | value |
|-------------------|-------|
| `completion_time` | when the round was complete; only a log with clients can lack it |
| `start_time`      | when its first client could begin |
| `round`           | its number, counting from 0 or from 1 |
| `cohort_size`     | the number of clients that contributed |
| `client_ids`      | their ids: JSON list, or with blanks or semicolons; `[]`: none |
| `client_id`       | the client, in a log with one line per participation |
| `population`      | the population whose round it was, if a log has several |

Other common names are recognised (`COLUMNS`), and any others can be given, or an empty
name for a column that is not what it seems. A run's ledger is a round log as well.

**Times** are ISO 8601, with a zone (`2023-05-30T13:00:00.25+02:00`) or without, or Unix
time in seconds, ms, us or ns, which the digits tell apart. A log has only one of these
formats. Powers of ten are refused, because `1.70005e9` lacks digits.

**Populations** have separate rounds; if a log has several, one has to be chosen.

**Repairs and errors.** Lines are sorted, by round or by completion; different spellings
of a client's id (blanks, 7.0) are one client. Wherever a guess could overstate the
privacy guarantee, the line is refused: a repeated line, a round twice, a missing
number, clocks that go back, a value missing or unreadable, and clients called NA, nan
or null, which is how a missing id is written.

DuckDB reads the file, every value as text, and spills to disk what exceeds its memory.
"""

import contextlib
import csv
import dataclasses
import datetime
import glob
import gzip
import itertools
import json
import os
import re
import stat
import tempfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Optional

import numpy as np

from tff_dp_aggregators.base import ids
from tff_dp_aggregators.base import strict_json

# The names by which a column is recognised, in any case.
COLUMNS: dict[str, tuple[str, ...]] = {
  'completion_time': (
    *('completion_time', 'completed_at', 'completed', 'end_time', 'finished_at'),
    *('time', 'timestamp'),
  ),
  'start_time': ('start_time', 'started_at', 'started'),
  'round': (
    *('round', 'round_number', 'round_num', 'server_round', 'current_round', 'step'),
  ),
  'cohort_size': ('cohort_size', 'cohort', 'cohort_reported', 'num_clients'),
  'client_ids': ('client_ids', 'participants'),
  'client_id': (
    *('client_id', 'client', 'device_id', 'device', 'user_id', 'user', 'node_id'),
    *('cid', 'contributor', 'client_name'),
  ),
  'population': ('population', 'population_name'),
}
MEMORY = '2GB'  # Limit for DuckDB; 10^8 participations take 2.3 GB, partly on disk.
WITHOUT_ZONE = 'ISO 8601 without a zone'

_TIMES = ('completion_time', 'start_time')
_LONGEST_LINE = 2**24  # Bytes.
# DuckDB types that are nested, or too coarse for ids and times.
_UNSUPPORTED_TYPES = ('MAP', 'STRUCT', 'UNION', 'VARIANT', 'FLOAT')
# Names of columns that may be of some columns to read, and what they may say.
_LIKE: tuple[tuple[str, tuple[str, ...], str], ...] = (
  # "round" is not found in "background".
  ('(?<![A-Za-z])(?i:round)|Round', ('round',), 'be the number of the round'),
  (
    r'^(?i:(client|device|participant|user|member|contributor|node)(s|s?_?ids?))\Z',
    ('client_ids', 'client_id'),
    'say which clients took part',  # Rather than count them.
  ),
)
# Several ids where one is expected. A single id, such as a GUID, may be in braces.
_SEVERAL_IDS = re.compile(r'[;|,]|^\[.*\]$|^[({][^)}]*\s[^)}]*[)}]$', re.DOTALL)
_DECODER = strict_json.Decoder(object_pairs_hook=strict_json.unique)
# Convert text to numbers, or NULL if it is none. DuckDB's own casts accept more forms
# than are intended here, such as '1_0'.
_MACROS = r"""
create macro whole(t) as
  case when regexp_full_match(t, ' *[0-9]{1,18} *') then trim(t)::bigint end;
create macro iso(t) as regexp_extract(
  t,
  '^(\d{4}-\d\d-\d\d)[Tt ]((?:[01]\d|2[0-3]):[0-5]\d)(?::([0-5]\d)(?:[.,](\d+))?)?'
  || ' ?([Zz]|UTC|[+-](?:[01]\d|2[0-3])(?::?[0-5]\d)?)?$',
  ['day', 'clock', 'second', 'fraction', 'zone']
);
create macro unix(t) as
  case when regexp_full_match(t, '\d{1,30}(\.\d*)?')
  then try_cast(t as decimal(38, 18)) end;
create macro places(number) as
  case when number < 1e10::decimal(38, 18) then 9
  when number < 1e13::decimal(38, 18) then 6
  when number < 1e16::decimal(38, 18) then 3
  when number < 1e19::decimal(38, 18) then 0 end;
create macro time_format(iso, unix) as
  case when iso.day <> '' then
    if(iso.zone = '', 'ISO 8601 without a zone', 'ISO 8601 with a zone')
  else
    'Unix time in ' || case places(unix)
    when 9 then 's' when 6 then 'ms' when 3 then 'us' when 0 then 'ns' end
  end;
create macro nanoseconds_of_iso(iso) as
  epoch_us(try_cast(
    iso.day || ' ' || iso.clock || ':' || if(iso.second = '', '00', iso.second)
    || if(regexp_full_match(iso.zone, '[+-].*'), iso.zone, 'Z') as timestamptz
  )) * 1000::hugeint + rpad(left(iso.fraction, 9), 9, '0')::bigint;
create macro nanoseconds_of_unix(unix) as
  floor(unix)::hugeint * (10 ** places(unix))::hugeint
  + floor((unix - floor(unix)) * (10 ** places(unix))::bigint)::bigint;
create macro nanoseconds(iso, unix) as case
  when iso.day <> '' then nanoseconds_of_iso(iso) else nanoseconds_of_unix(unix) end;
-- Before the year 2200, which keeps sums within 64 bits.
create macro in_range(moment) as
  case when moment between 0 and 7258118399999999999 then moment::bigint end;
create macro listed(t) as
  case when starts_with(ltrim(t), '[') then
    case when json_valid(t) then json_extract(t, '$[*]')::varchar[] end
  when not regexp_matches(t, '[,|]|^\s*[({][^)}]*[;\s][^)}]*[)}]\s*$') then nullif([
    to_json(x)::varchar
    for x in string_split_regex(t, '[;\s\x0b\x1c-\x1f\x{85}\p{Z}]+') if x <> ''
  ], []) end;
"""
# Errors in the sequence of rounds: required columns, SQL condition, message.
_RULES = (
  (
    {'round'},
    'number = 0 and round > 1',
    'the first round is number {round}, not 0 or 1. Add the rounds before it; if they '
    'were of another run, number this one anew.',
  ),
  (
    {'round'},
    'round - round_before > 1',
    'round {round} follows on round {round_before}. Add what is missing; if no result '
    'of it was ever released, number the rounds without it.',
  ),
  (
    {'round', 'completion_time'},
    'completion_time < completion_time_before',
    'this round is complete before the one before it, in line {line_before}.',
  ),
  (
    {'completion_time', 'start_time'},
    'start_time > completion_time',
    'this round starts after its completion.',
  ),
  (
    {'client_ids', 'cohort_size'},
    'client_ids <> cohort_size',
    'cohort_size is {cohort_size}, but client_ids has {client_ids}. Add the missing '
    'clients, or ignore the column if it is something else (--columns=cohort_size=).',
  ),
)


class Database:
  """A DuckDB database in memory, which spills to disk.

  For a log that names its clients, its tables are `contributions(client, round)`, with
  rounds from 0; `names(client, name)`, with clients numbered in the order of the log;
  and `by_client(client, times, closest)`: the number of a client's contributions, and
  the smallest difference of two of its rounds, NULL if it has one.
  """

  def __init__(self) -> None:
    import duckdb  # Here, because most reports need no log.

    self._folder = tempfile.TemporaryDirectory(prefix='round_log')
    config = {'memory_limit': MEMORY, 'temp_directory': self._folder.name}
    self._connection = duckdb.connect(config=config)
    self._connection.execute("set TimeZone = 'UTC'; set enable_progress_bar = false")
    self._connection.execute(_MACROS)

  def query(self, sql: str, *parameters: Any) -> list[tuple]:
    """Returns the rows of a query, or of the last of several statements."""
    return self._connection.execute(sql, parameters or None).fetchall()

  def arrays(self, sql: str, *parameters: Any) -> dict[str, Any]:
    """Returns the columns of a query without NULLs, as NumPy arrays."""
    return self._connection.execute(sql, parameters or None).fetchnumpy()


@dataclasses.dataclass(frozen=True, eq=False)
class RoundLog:
  """A checked log, in the order of rounds."""

  num_rounds: int
  first_number: int  # The log's number of the first round, 0 or 1.
  # int64 nanoseconds since 1970, shape [n]; completions never decrease, starts may.
  completions: Optional[np.ndarray] = None
  starts: Optional[np.ndarray] = None
  cohort_sizes: Optional[np.ndarray] = None  # int64, shape [n].
  clients: Optional[Database] = None  # The participations, if clients are named.
  time_format: Optional[str] = None
  notes: tuple[str, ...] = ()  # Repairs and omissions, for people.
  twice: tuple[int, ...] = ()  # Lines that have one client twice in a round, if any.

  def format_time(self, nanoseconds: int) -> str:
    """Formats a time to microseconds, in UTC if the log's times have a zone."""
    epoch = datetime.datetime(1970, 1, 1)
    time = epoch + datetime.timedelta(microseconds=int(nanoseconds) // 1000)
    return time.isoformat() + ('' if self.time_format == WITHOUT_ZONE else 'Z')


def read(
  path: str,
  columns: Optional[Mapping[str, str]] = None,
  population: Optional[str] = None,
) -> RoundLog:
  r"""Reads and checks a log; errors name the line.

  `columns`: The file's column names, by the keys of `COLUMNS`; the empty name for a
  column that the file does not have.
  `population`: The population whose rounds are read; `None` if the log has only one.

  Example:
    >>> import os, tempfile
    >>> path = os.path.join(tempfile.mkdtemp(), 'rounds.csv')
    >>> with open(path, 'w') as file:
    ...   lines = file.write('round,time\n1,2023-05-30T11:00Z\n2,2023-05-30T13:30Z\n')
    >>> log = read(path)
    >>> log.num_rounds, log.format_time(log.completions[-1])
    (2, '2023-05-30T13:30:00Z')
  """
  return _File(path, dict(columns or {}), population).log()


def parse_time(text: str) -> tuple[int, str]:
  """Parses a time like those of logs: nanoseconds since 1970, and its format.

  A time without a zone is read as UTC.

  Example:
    >>> parse_time('1970-01-01T02:00:00.5+02:00')
    (500000000, 'ISO 8601 with a zone')
  """
  query = _converted(['start_time'], '(select 0 as no, $1 as start_time)')
  ((_, time, time_format),) = Database().query(query, text)
  if time is None:
    raise ValueError(_reason('start_time', text))
  return time, time_format


class _File(Database):
  """Reads and checks the file of a log in two steps, each of which makes a table.

  `entries` has texts, NULL for missing or invalid ones, and `no`, the number of the
  entry in the file, from 1. `rounds` has numbers instead of texts, the index of the
  round in its order, and the values of the round before.
  """

  def __init__(self, path: str, columns: dict[str, str], population: Optional[str]):
    super().__init__()
    for name in columns:
      if name not in COLUMNS:
        raise ValueError(
          f'{name!r} is not a column of a round log: {", ".join(COLUMNS)}.'
        )
    self._path, self._columns, self._population = path, columns, population
    self._format, self._delimiter = 'CSV', ','
    self._header = 0  # Lines before the first entry.
    self.sources: dict[str, str] = {}  # The file's name for each column that is read.
    self.ignored: list[str] = []  # The file's other columns.
    self.notes: list[str] = []
    self._twice: tuple[int, ...] = ()
    self._file = self._unpack()
    with open(self._file, 'rb') as file:
      is_parquet = file.read(4) == b'PAR1'
    with self._naming_lines():
      source = self._parquet_query() if is_parquet else self._text_query()
      if self.ignored:
        self.notes.insert(0, f'columns left alone: {", ".join(self.ignored)}.')
      where = (
        self._population_filter(source) if 'population' in self.sources else 'true'
      )
      names = [name for name in self.sources if name != 'population']
      self.query(
        f'create table entries as select no, {", ".join(names)} from ({source}) '
        f'where {where}'
      )
    if not self.query('from entries limit 1'):
      raise self.error('has no rounds.')
    # The columns of a round, and the one by which rounds are sorted.
    self._names = [name for name in names if name != 'client_id']
    self._key = next((n for n in ('round', 'completion_time') if n in names), 'no')

  def value(self, number: int, name: str) -> Any:
    """The value of a column in an entry, as it is written in the file."""
    if self._format == 'JSON lines':
      with open(self._file, encoding='utf-8-sig') as file:
        line = next(itertools.islice(file, number - 1, None))
      return _DECODER.decode(line).get(self.sources[name])
    return self.query(f'select {name} from entries where no = {number}')[0][0]

  def line(self, number: int) -> int:
    """The line number of an entry, or its row number in a Parquet file."""
    if self._format not in ('CSV', 'TSV'):
      return number
    with open(self._file, encoding='utf-8-sig', newline='') as file:
      rows = self._rows(itertools.islice(file, self._header, None))
      next(itertools.islice(filter(None, rows), int(number) - 1, None))
      return self._header + rows.line_num

  def error(self, reason: str) -> ValueError:
    return ValueError(f'{self._path} {reason}')

  def entry_error(self, number: int, reason: str) -> ValueError:
    return self._line_error(self.line(number), reason)

  def _line_error(self, line: int, reason: str) -> ValueError:
    what = 'row' if self._format == 'Parquet' else 'line'
    return ValueError(f'{self._path}, {what} {line}: {reason}')

  def _unpack(self) -> str:
    """The path of the file, unpacked if it is gzipped: DuckDB verifies no checksum."""
    if not stat.S_ISREG(os.stat(self._path).st_mode):
      raise self.error('is not a regular file; give the name of a file with the log.')
    with open(self._path, 'rb') as file:
      if file.read(2) != b'\x1f\x8b':
        return self._path
    unpacked = os.path.join(self._folder.name, 'unpacked')
    try:
      with gzip.open(self._path) as packed, open(unpacked, 'wb') as file:
        for block in iter(lambda: packed.read1(2**20), b''):
          file.write(block)
    except (EOFError, gzip.BadGzipFile, zlib.error) as e:
      raise self.error(f'is a gzipped file that is damaged or cut off: {e}.') from e
    return unpacked

  @contextlib.contextmanager
  def _naming_lines(self) -> Iterator[None]:
    """Turns errors of DuckDB into errors that name the line."""
    import duckdb

    try:
      yield
    except duckdb.Error as e:
      reason, _, _ = str(e).partition('Possible')
      match = re.search(r'CSV Error on Line: (\d+)\n(.*)', reason, re.DOTALL)
      if not match:
        raise self.error(
          f'is not {self._format} that can be read, in UTF-8 and with all lines ending '
          f'alike: {" ".join(reason.split())}'
        ) from e
      shown = ' '.join(line[:200] for line in match[2].splitlines() if line)
      reason = f'this is not {self._format} in UTF-8: {shown}'
      raise self._line_error(int(match[1]), reason) from e

  def _parquet_query(self) -> str:
    self._format = 'Parquet'
    table = (
      f'read_parquet({_sql_literal(glob.escape(self._file))}, file_row_number=true, '
      'hive_partitioning=false)'
    )
    types = {
      name: type_name for name, type_name, *_ in self.query(f'describe from {table}')
    }
    del types['file_row_number']
    self._find_columns(list(types), 1)
    values = {}
    for name, source in self.sources.items():
      column = '"' + source.replace('"', '""') + '"'
      type_name = types[source]
      if name == 'client_ids' and type_name.endswith('[]'):
        column, type_name = f'to_json({column})', type_name[:-2]
      if type_name.endswith(']') or type_name.startswith(_UNSUPPORTED_TYPES):
        raise ValueError(
          f'{self._path}: {source} has values of the type {types[source]:.100}; write '
          'texts, whole numbers or floats of 64 bits, and client_ids as a list of them.'
        )
      values[name] = f'{column}::varchar'
    return f'select file_row_number + 1 as no, {_select_list(values)} from {table}'

  def _text_query(self) -> str:
    with open(self._file, encoding='utf-8-sig', errors='replace', newline='') as file:
      for first in file:
        if first.strip():
          break
        self._header += 1
      else:
        raise self.error('has no rounds.')
      if '\0' in first:
        raise self.error(
          'is not text in UTF-8, but UTF-16 or the like; save it as UTF-8.'
        )
      is_json = first.lstrip()[0] == '{'
      source = self._json_query() if is_json else self._csv_query(first, file)
    with open(self._file, 'rb') as end:
      end.seek(-1, os.SEEK_END)
      if end.read() not in b'\n\r':
        self.notes.append('the last line has no end; see that it was not cut off.')
    return source

  def _read_csv(self, options: str, columns: Sequence[str]) -> str:
    names = ', '.join(f"'{name}': 'VARCHAR'" for name in columns)
    return (
      f'read_csv({_sql_literal(glob.escape(self._file))}, auto_detect=false, '
      f'header=false, strict_mode=true, max_line_size={_LONGEST_LINE}, '
      f"compression='none', hive_partitioning=false, {options}, columns={{{names}}})"
    )

  def _csv_query(self, first: str, rest: Iterator[str]) -> str:
    """The SQL query for a table whose header is the line `first`."""
    if first.count('\t') > first.count(','):
      self._format, self._delimiter = 'TSV', '\t'
    rows = self._rows(itertools.chain([first], rest))
    try:
      header = next(rows)
    except csv.Error as e:
      raise self._line_error(
        self._header + 1, f'this is not {self._format}: {e}.'
      ) from e
    if len(header) == 1 and ';' in header[0]:
      raise self._line_error(
        self._header + 1, 'there are semicolons between columns; write commas or tabs.'
      )
    self._find_columns(header, self._header + 1)
    self._header += rows.line_num
    columns = [f'c{i}' for i in range(len(header))]
    table = self._read_csv(
      f"delim='{self._delimiter}', quote='\"', escape='\"', skip={self._header}, "
      'allow_quoted_nulls=false',
      columns,
    )
    if len(columns) == 1:  # DuckDB reads a blank line as a missing value.
      table = f'(from {table} where c0 is not null)'
    values = {name: f'c{header.index(source)}' for name, source in self.sources.items()}
    return f'select row_number() over () as no, {_select_list(values)} from {table}'

  def _rows(self, lines: Iterator[str]) -> Any:
    csv.field_size_limit(max(csv.field_size_limit(), _LONGEST_LINE))
    return csv.reader(
      lines, delimiter=self._delimiter, strict=True, skipinitialspace=True
    )

  def _json_query(self) -> str:
    """The SQL query for JSON lines, the first of which has all columns to read."""
    self._format = 'JSON lines'
    table = self._read_csv("delim='\x01', quote='', escape=''", ['line'])
    lines = (
      f'select * from (select row_number() over () as no, line from {table}) where '
      "trim(line, e' \\t') <> ''"
    )
    groups = self.query(
      'select min(no), keys, any_value(bad) from (select no, case when '
      "json_valid(line) and json_type(line) = 'OBJECT' then json_keys(line) end as "
      f'keys, case when keys is null then line end as bad from ({lines})) group by '
      'keys order by 1'
    )
    for number, (line, keys, bad) in enumerate(groups):
      if keys is None:
        raise self._line_error(line, f'this is not a JSON object: {bad!r:.200}.')
      if len(set(keys)) < len(keys):
        raise self._line_error(line, f'a name is repeated in {keys}.')
      if not number:
        self._find_columns(keys, line)
        known = {*self.sources.values(), *self.ignored}
        continue
      names = set(self._match_columns(keys, line).values())
      if names - known:
        raise self._line_error(
          line, f'{", ".join(sorted(names - known))} is here but not in the first line.'
        )
      self.ignored += [name for name in keys if name not in {*known, *self.ignored}]
    values = {name: _json_value(name, source) for name, source in self.sources.items()}
    return f'select no, {_select_list(values)} from ({lines})'

  def _population_filter(self, source: str) -> str:
    """The SQL condition for entries of the requested population."""
    name_of = "trim(population, e' \\t')"
    groups = self.query(
      f'select {name_of} as name, min(no), count(*) from ({source}) group by name '
      'order by 2'
    )
    for name, number, _ in groups:
      if not name:
        raise self.entry_error(number, 'there is no population.')
    if self._population is None:
      if len(groups) > 1:
        (first, first_number, _), (name, number, _) = groups[:2]
        raise self.entry_error(
          number,
          f'this round is of the population {name!r}, but line '
          f'{self.line(first_number)} has {first!r}. Say which is meant '
          '(--population_name), or --columns=population= if this is no such column.',
        )
      return 'true'
    others = {name: count for name, _, count in groups if name != self._population}
    shown = f'{", ".join(map(repr, sorted(others))):.300}'
    if others and len(others) == len(groups):
      raise self.error(
        f'has no rounds of the population {self._population!r}; it has those of '
        f'{shown}.'
      )
    if others:
      self.notes.append(
        f'of the population {self._population!r} alone; {sum(others.values())} lines '
        f'of others were left out: {shown}.'
      )
    return f'{name_of} = {_sql_literal(self._population)}'

  def _find_columns(self, names: list[str], line: int) -> None:
    """Sets `sources`, the file's name for each column to read, and `ignored`."""
    sources = self._match_columns(names, line)
    among = f'among {", ".join(map(repr, names))}'
    if 'client_ids' in sources:
      sources.pop('client_id', None)
    client = sources.get('client_id')
    # In a log of participations, times are not those of rounds.
    times = [name for name in _TIMES if client and self._columns.get(name)]
    for is_wrong, words in (
      (
        not sources.keys() & {'completion_time', 'client_ids', 'client_id'},
        f'no column of completion times {among}; name it (--columns=completion_time='
        'NAME), or where each line is a participation, --columns=round=NAME,client_id='
        'NAME.',
      ),
      (
        self._population is not None and 'population' not in sources,
        f'no column of populations {among}; say which it is (--columns=population='
        'NAME).',
      ),
      (
        client and 'round' not in sources,
        f'{client} names the client of each line, but no column has the number of its '
        'round; add one, or say --columns=client_id= if it does not.',
      ),
      (
        times,
        f'each line is one participation, in column {client}, whose time is not that '
        f'of the round. Leave {" and ".join(times)} out of --columns.',
      ),
    ):
      if is_wrong:
        raise self._line_error(line, words)
    if client:
      kept = ('round', 'client_id', 'population')
      sources = {name: sources[name] for name in kept if name in sources}
    self.sources = sources
    self.ignored = [name for name in names if name not in sources.values()]

  def _match_columns(self, names: list[str], line: int) -> dict[str, str]:
    """The file's name for each column that it has."""
    by_spelling = {name.strip().lower(): name for name in names}
    if len(by_spelling) < len(names):
      raise self._line_error(line, 'two columns have the same name.')
    sources = {}
    for column, spellings in COLUMNS.items():
      stated = self._columns.get(column)
      if stated is None:
        matches = [by_spelling[s] for s in spellings if s in by_spelling]
        matches = [name for name in matches if name not in self._columns.values()]
        if len(matches) > 1 and matches[0].strip().lower() != column:
          raise self._line_error(
            line, f'{" and ".join(matches)} could both be {column}; say which it is.'
          )
      else:
        matches = [stated] if stated else []
        if not set(matches) <= set(names):
          raise self._line_error(line, f'there is no column {stated!r} for {column}.')
      if matches:
        sources[column] = matches[0]
    for pattern, columns, may in _LIKE:
      unread = (name for name in names if name not in sources.values())
      like = next(filter(re.compile(pattern).search, unread), None)
      if like is not None and not {*sources, *self._columns} & {*columns}:
        raise self._line_error(
          line,
          f'{like} may {may}; say --columns={columns[0]}={like}, or --columns='
          f'{columns[0]}= if it is something else.',
        )
    return sources

  def log(self) -> RoundLog:
    """Converts, checks and sorts the rounds."""
    rounds, key = _converted(self._names, 'entries'), 'no'
    client_rows = (
      'select no, unnest(listed(client_ids)) as raw, '
      'generate_subscripts(listed(client_ids), 1) as place from entries'
    )
    client = self.sources.get('client_id')
    if client:  # Each line is a participation of one client in one round.
      rounds = (
        f'select round, min(no) as no, count(*) as times from ({rounds}) group by 1'
      )
      client_rows = (
        'select no, whole(round) as round, client_id as raw, 0 as place from entries'
      )
      key = 'round'
      self.notes.append('each line is one participation of one client.')
    lags = ''.join(
      f', lag({name}) over w as {name}_before' for name in ('no', *self._names)
    )
    self.query(
      f'create table rounds as select *, row_number() over w - 1 as number{lags} from '
      f'({rounds}) window w as (order by {self._key}, no)'
    )
    self._check_converted()
    time_format = self._time_format()
    has_clients = bool(client or 'client_ids' in self.sources)
    if has_clients:
      self._number_clients(client_rows)
    if client and 'client_id' not in self._columns:
      if not self.query('from rounds where times > 1'):
        raise self.error(
          f'has a column {client} that may say who the only client of each round was, '
          f'or not; say which: --columns=client_id={client} or --columns=client_id=.'
        )
    if self._key == 'no' and self.query(
      'select min(client_ids) = 1 and max(client_ids) = 1 from rounds'
    ) == [(True,)]:
      raise self.error(
        'has one client in every line, and neither rounds nor times. Name '
        '--columns=round=NAME,client_id=NAME, or add the number of each round.'
      )
    if not client:
      self._check_order(time_format)
    self._check_sequence()
    if has_clients:
      self._count_contributions(key, client_rows)
    self.query('drop table entries')
    columns = [name for name in self._names if name not in ('round', 'client_ids')]
    values = self.arrays(
      f'select {", ".join(["number", *columns])} from rounds order by number'
    )
    first = 'min(round)' if 'round' in self._names else '0'
    ((num_rounds, number),) = self.query(f'select count(*), {first} from rounds')
    return RoundLog(
      num_rounds,
      number,
      completions=values.get('completion_time'),
      starts=values.get('start_time'),
      cohort_sizes=values.get('cohort_size'),
      clients=self if has_clients else None,
      time_format=time_format,
      notes=tuple(self.notes),
      twice=self._twice,
    )

  def _count_contributions(self, key: str, client_rows: str) -> None:
    """Makes the tables of `Database`, and finds the first client twice in a round."""
    if not self.query('from names limit 1'):
      raise self.error('names no client in any round.')
    self.query(f"""
      create view members as
      select each.* exclude (raw, place), client
      from ({client_rows}) as each join ids using (raw) join names using (name);
      create table contributions as
      select client, number as round from members join rounds using ({key});
      create table by_client as
      select client, count(*) as times, min(apart) as closest from (
        select
          client,
          round - lag(round) over (partition by client order by round) as apart
        from contributions
      ) group by client
    """)
    for twice in self.query(
      'select client, round from contributions where client = (select min(client) from '
      'by_client where closest = 0) group by all having count(*) > 1 order by 2 limit 1'
    ):
      lines = self.query(
        f'select distinct members.no from members join rounds using ({key}) where '
        'client = $1 and number = $2 order by 1',
        *twice,
      )
      self._twice = tuple(self.line(no) for (no,) in lines)
    self.query('drop view members; drop table ids')

  def _check_converted(self) -> None:
    """Raises ValueError for the first value that is invalid in its column."""
    invalid = [
      (number, place, name)
      for place, name in enumerate(self._names)
      for (number,) in self.query(f'select min(no) from rounds where {name} is null')
      if number is not None
    ]
    for number, _, name in sorted(invalid)[:1]:
      raise self.entry_error(number, _reason(name, self.value(number, name)))

  def _time_format(self) -> Optional[str]:
    """The format of the times."""
    columns = [name for name in _TIMES if name in self._names]
    if not columns:
      return None
    times = ' union all '.join(
      f'select no, {place} as place, format_of_{name} as format from rounds'
      for place, name in enumerate(columns)
    )
    formats = self.query(
      f'select format, min((no, place)) as first from ({times}) group by format '
      'order by first'
    )
    first, (first_number, _) = formats[0]
    for other, (number, place) in formats[1:]:
      raise self.entry_error(
        number,
        f'{self.value(number, columns[place])!r} is {other}, but line '
        f'{self.line(first_number)} has {first}; write all times of a log in one '
        'way.',
      )
    return str(first)

  def _number_clients(self, client_rows: str) -> None:
    """Makes the tables of clients, by their normalised ids."""
    is_json = self._format == 'JSON lines' or 'client_ids' in self.sources

    def client_of(raw: str) -> str:
      value = _DECODER.decode(raw) if is_json else raw
      is_single = 'client_ids' not in self.sources and isinstance(value, str)
      if is_single and _SEVERAL_IDS.search(value.strip()):
        raise ValueError(
          f'the client {value!r:.200} looks like several. Name the column client_ids '
          '(--columns=client_ids=NAME), or write a line for each.'
        )
      return ids.of_client(value)

    for function in (client_of, ids.look_alike):
      self._connection.create_function(
        function.__name__,
        function,
        ['VARCHAR'],
        'VARCHAR',
        exception_handling='return_null',
      )
    self.query(
      'create table ids as select raw, client_of(raw) as name, first from (select raw, '
      f'min(no * {2**32} + place) as first from ({client_rows}) group by raw)'
    )
    for raw, first in self.query(
      'select raw, first from ids where name is null order by first limit 1'
    ):
      try:
        if not (raw or '').strip():
          raise ValueError('there is no client_id.')
        client_of(raw)
      except ValueError as e:
        raise self.entry_error(first // 2**32, str(e)) from e
    self.query(
      'create table names as select (row_number() over (order by min(first)) - 1)::int '
      'as client, name from ids group by name'
    )
    for count, first in self.query(
      'select count(*), min(first) from (select min(first) as first from ids group by '
      'look_alike(name) having count(distinct name) > 1) having count(*) > 0'
    ):
      self.notes.append(
        'some ids differ only in case, leading zeros, brackets, quotes or invisible '
        f'characters ({count}, in line {self.line(first // 2**32)} for example), and '
        'count as different clients; if they are of one, write them alike.'
      )

  def _check_order(self, time_format: Optional[str]) -> None:
    """Raises ValueError if clocks go back, or a round has two lines."""
    if self.query('from rounds where no_before > no limit 1'):
      if self._key == 'completion_time' and time_format == WITHOUT_ZONE:
        raise self.error(
          'has times without a zone that go back, as clocks do at the end of daylight '
          'saving. Write times with their zone, or sort the lines.'
        )
      self.notes.append('the lines were not in order and have been sorted.')
    if self._key == 'no':
      return
    rounds, same = 'rounds', ', '.join(self._names)
    remedy = 'Is it one round or two? Remove a line, or add the number of each round.'
    if 'round' in self._names:
      same = 'round'
      remedy = 'Keep one, or say whose they are: --columns=client_id=NAME or '
      remedy += '--columns=population=NAME.'
    elif 'client_ids' in self._names:
      rounds = '(from rounds join (select no, list_sort(listed(client_ids)) as clients '
      rounds += 'from entries) using (no))'
      same += ', clients'
    for before, number in self.query(
      f'select min(no), max(no) from {rounds} group by {same} having count(*) > 1 '
      'order by 2 limit 1'
    ):
      raise self.entry_error(
        number, f'the same round as in line {self.line(before)}. {remedy}'
      )

  def _check_sequence(self) -> None:
    """Raises ValueError for the first round that does not follow on the one before."""
    for columns, condition, message in _RULES:
      if columns <= {*self._names}:
        violations = self._connection.execute(
          f'from rounds where {condition} order by number limit 1'
        )
        names = [name for name, *_ in violations.description]
        for values in violations.fetchall():
          row = dict(zip(names, values))
          row['line_before'] = self.line(row['no_before'] or row['no'])
          raise self.entry_error(row['no'], message.format(**row))


def _converted(names: Sequence[str], entries: str) -> str:
  """The SQL query that converts texts to numbers, with the formats of times."""
  values, texts = {'no': 'no'}, []
  for name in names:
    values[name] = f'whole({name})'
    if name == 'client_ids':
      values[name] = 'len(listed(client_ids))'
    if name in _TIMES:
      text, parts = f"trim({name}, e' \\t')", f'iso_{name}, unix_{name}'
      texts.append(f', iso({text}) as iso_{name}, unix({text}) as unix_{name}')
      values[name] = f'in_range(nanoseconds({parts}))'
      values[f'format_of_{name}'] = f'time_format({parts})'
  return f'select {_select_list(values)} from (select *{"".join(texts)} from {entries})'


def _sql_literal(text: str) -> str:
  return "'" + text.replace("'", "''") + "'"


def _select_list(values: Mapping[str, str]) -> str:
  """The select list of an SQL query, for expressions by name."""
  return ', '.join(f'{value} as {name}' for name, value in values.items())


def _json_value(name: str, source: str) -> str:
  """The SQL expression for a value of a JSON line; NULL if it has the wrong type."""
  pointer = _sql_literal('/' + source.replace('~', '~0').replace('/', '~1'))
  type_name = f'json_type(line, {pointer})'
  text = f'json_extract_string(line, {pointer})'
  json_text = f'json_extract(line, {pointer})::varchar'
  if name == 'client_id':
    return f"nullif({json_text}, 'null')"
  if name == 'client_ids':
    return (
      f"case {type_name} when 'ARRAY' then {json_text} when 'VARCHAR' then {text} end"
    )
  # DuckDB formats floats anew, but the digits in the line count.
  key = re.escape(json.dumps(source, ensure_ascii=False))
  pattern = _sql_literal(key + r'\s*:\s*([-+.0-9eE]+)')
  digits = f'regexp_extract(line, {pattern}, 1)'
  return (
    f"case when {type_name} in ('VARCHAR', 'BIGINT', 'UBIGINT') then {text} "
    f"when {type_name} = 'DOUBLE' and try_cast({digits} as double) = {text}::double "
    f'then {digits} end'
  )


def _reason(name: str, value: Any) -> str:
  """The reason for which a value is refused."""
  if name == 'client_ids':  # Otherwise, a single bracket would become part of an id.
    return (
      'client_ids must be a JSON list, or be separated by spaces or semicolons without '
      f'brackets, and [] where nobody took part; got {value!r:.200}.'
    )
  if value is None or value == '':
    return f'there is no {name}.'
  if name not in _TIMES:
    return f'{name} must be a whole number from 0, got {value!r}.'
  return (
    f'{value!r} is not a time between the years 1970 and 2200, such as '
    '2023-05-30T11:00:00Z or Unix time in digits, without powers of ten.'
  )
