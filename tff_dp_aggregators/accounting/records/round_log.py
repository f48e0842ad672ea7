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
formats.

**Populations** have separate rounds; if a log has several, one has to be chosen.

Lines are sorted, by round or by completion, and different spellings of a client's id
(blanks, 7.0) are one client. Wherever a guess could overstate the privacy guarantee,
the log is refused: a round that is there twice, or missing, clocks that go back, a
value missing or unreadable, times with exponents, which may lack digits, and clients
called NA, nan or null, which is how a missing id is written.

DuckDB reads the file, every value as text, and spills to disk what exceeds its memory.
"""

import csv
import dataclasses
import datetime
import decimal
import functools
import glob
import gzip
import itertools
import json
import operator
import os
import re
import stat
import tempfile
import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Optional

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
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.timezone.utc)
_MAX_TIME = 7_258_118_400 * 10**9  # The year 2200, which keeps sums within int64.
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
_NO_LIST = re.compile(r'[,|]|^\s*[({][^)}]*[;\s][^)}]*[)}]\s*$')
_ISO = re.compile(
  r'(\d{4}-\d\d-\d\d)[Tt ]((?:[01]\d|2[0-3]):[0-5]\d)(:[0-5]\d)?(?:[.,](\d+))?'
  r' ?(?:([Zz]|UTC)|([+-])([01]\d|2[0-3])(?::?([0-5]\d))?)?',
  re.ASCII,
)
_UNIX = re.compile(r'\d{1,30}(\.\d*)?', re.ASCII)
_DECODER = strict_json.Decoder(object_pairs_hook=strict_json.unique)
_cached = functools.lru_cache(2**20)(ids.of_client)


class Database:
  """A DuckDB database in memory, which spills to disk.

  For a log that names its clients, its tables are `contributions(client, round)`, with
  rounds from 0; `names(client, name)`, with clients numbered by name; and
  `by_client(client, times, closest)`: the number of a client's contributions, and the
  smallest difference of two of its rounds, NULL if it has one.
  """

  def __init__(self) -> None:
    import duckdb  # Here, because most reports need no log.

    self._folder = tempfile.TemporaryDirectory(prefix='round_log')
    config = {'memory_limit': MEMORY, 'temp_directory': self._folder.name}
    self._connection = duckdb.connect(config=config)
    self._connection.execute('set enable_progress_bar = false')

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
  notes: tuple[str, ...] = ()  # Omissions and doubts, for people.

  def format_time(self, nanoseconds: int) -> str:
    """Formats a time to microseconds, in UTC if the log's times have a zone."""
    time = _EPOCH + datetime.timedelta(microseconds=int(nanoseconds) // 1000)
    text = time.replace(tzinfo=None).isoformat()
    return text + ('' if self.time_format == WITHOUT_ZONE else 'Z')


class _Round(NamedTuple):
  """The values of a round; `None` for columns that the log does not have."""

  no: int  # The number of its entry in the file, from 1.
  round: Optional[int] = None
  completion_time: Optional[int] = None
  start_time: Optional[int] = None
  cohort_size: Optional[int] = None
  client_ids: Optional[int] = None  # The number of clients that are named.


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
  import duckdb

  if not stat.S_ISREG(os.stat(path).st_mode):
    raise ValueError(f'{path} is not a regular file; give the name of a file.')
  file = _File(path, columns or {})
  try:
    file.load()
    if 'population' in file.sources or population is not None:
      file.choose(population)
    return file.log()
  except (duckdb.Error, EOFError, gzip.BadGzipFile, zlib.error) as e:
    reason, _, _ = str(e).partition('Possible')
    shown = ' '.join(line[:200] for line in reason.split('\n'))
    raise ValueError(
      f'{path} is not {file.format} that can be read, in UTF-8 and with all lines '
      f'ending alike: {shown}'
    ) from e
  except ValueError as e:
    raise ValueError(f'{path}: {e}') from e


def parse_time(text: str) -> tuple[int, str]:
  """Parses a time like those of logs: nanoseconds since 1970, and its format.

  A time without a zone is read as UTC.

  Example:
    >>> parse_time('1970-01-01T02:00:00.5+02:00')
    (500000000, 'ISO 8601 with a zone')
  """
  nanoseconds, time_format, text = -1, '', text.strip(' \t')
  if iso := _ISO.fullmatch(text):
    day, clock, second, fraction, utc, sign, hours, minutes = iso.groups()
    zone = datetime.timedelta(hours=int(hours or 0), minutes=int(minutes or 0))
    try:
      time = datetime.datetime.fromisoformat(f'{day} {clock}{second or ":00"}+00:00')
      since = time - _EPOCH + (zone if sign == '-' else -zone)
      whole_seconds = since // datetime.timedelta(seconds=1)
      nanoseconds = whole_seconds * 10**9 + int((fraction or '')[:9].ljust(9, '0'))
      time_format = 'ISO 8601 with a zone' if utc or sign else WITHOUT_ZONE
    except ValueError:
      pass  # There is no such day.
  elif _UNIX.fullmatch(text):
    number = decimal.Decimal(text)
    units = {'s': 10**10, 'ms': 10**13, 'us': 10**16, 'ns': 10**19}
    for places, (unit, above) in zip((9, 6, 3, 0), units.items()):
      if number < above:
        nanoseconds, time_format = int(number.scaleb(places)), f'Unix time in {unit}'
        break
  if not 0 <= nanoseconds < _MAX_TIME:
    raise ValueError(
      f'{text!r} is not a time between the years 1970 and 2200, such as '
      '2023-05-30T11:00:00Z or Unix time in digits.'
    )
  return nanoseconds, time_format


class _File(Database):
  """The file of a log, whose table `entries` has its texts by line."""

  def __init__(self, path: str, columns: Mapping[str, str]):
    super().__init__()
    for name in columns:
      if name not in COLUMNS:
        raise ValueError(
          f'{name!r} is not a column of a round log: {", ".join(COLUMNS)}.'
        )
    self._path, self._columns = path, dict(columns)
    self.format, self._delimiter = 'gzip', ','
    self._header = 0  # Lines before the first entry.
    self.sources: dict[str, str] = {}  # The file's name for each column that is read.
    self.notes: list[str] = []
    self._time_format: Optional[str] = None

  def load(self) -> None:
    """Reads the file, which DuckDB could unpack, but without verifying the checksum."""
    with open(self._path, 'rb') as file:
      start = file.read(2)
    if start == b'\x1f\x8b':
      unpacked = os.path.join(self._folder.name, 'unpacked')
      with gzip.open(self._path) as packed, open(unpacked, 'wb') as file:
        for block in iter(lambda: packed.read1(2**20), b''):
          file.write(block)
      self._path = unpacked
    with open(self._path, 'rb') as file:
      is_parquet = file.read(4) == b'PAR1'
    source = self._parquet_query() if is_parquet else self._text_query()
    self.query(f'create table entries as {source}')
    if not self.query('from entries limit 1'):
      raise ValueError('has no rounds.')

  def line(self, number: int) -> int:
    """The line number of an entry, or its row number in a Parquet file."""
    if self.format not in ('CSV', 'TSV'):
      return number
    csv.field_size_limit(max(csv.field_size_limit(), _LONGEST_LINE))
    with open(self._path, encoding='utf-8-sig', newline='') as file:
      rows = self._rows(itertools.islice(file, self._header, None))
      next(itertools.islice(filter(None, rows), number - 1, None))
      return self._header + rows.line_num

  def entry_error(self, number: int, reason: object) -> ValueError:
    what = 'row' if self.format == 'Parquet' else 'line'
    return ValueError(f'{what} {self.line(number)}: {reason}')

  def _parquet_query(self) -> str:
    self.format = 'Parquet'
    table = (
      f'read_parquet({_sql_literal(glob.escape(self._path))}, file_row_number=true, '
      'hive_partitioning=false)'
    )
    types = {
      name: type_name for name, type_name, *_ in self.query(f'describe from {table}')
    }
    del types['file_row_number']
    self._find_columns(list(types))
    values = {}
    for name, source in self.sources.items():
      column = '"' + source.replace('"', '""') + '"'
      type_name = types[source]
      if name == 'client_ids' and type_name.endswith('[]'):
        column, type_name = f'to_json({column})', type_name[:-2]
      if type_name.endswith(']') or type_name.startswith(_UNSUPPORTED_TYPES):
        raise ValueError(
          f'{source} has values of the type {types[source]:.100}; write texts, whole '
          'numbers or floats of 64 bits, and client_ids as a list of them.'
        )
      values[name] = f'{column}::varchar'
    return f'select file_row_number + 1 as no, {_select_list(values)} from {table}'

  def _text_query(self) -> str:
    with open(self._path, encoding='utf-8-sig', errors='replace', newline='') as file:
      for first in file:
        if first.strip():
          break
        self._header += 1
      else:
        raise ValueError('has no rounds.')
    if '\0' in first:
      raise ValueError(
        'is not text in UTF-8, but UTF-16 or the like; save it as UTF-8.'
      )
    is_json = first.lstrip()[0] == '{'
    source = self._json_query() if is_json else self._csv_query(first)
    with open(self._path, 'rb') as end:
      end.seek(-1, os.SEEK_END)
      if end.read() not in b'\n\r':
        self.notes.append('the last line has no end; see that it was not cut off.')
    return source

  def _read_csv(self, options: str, columns: Sequence[str]) -> str:
    names = ', '.join(f"'{name}': 'VARCHAR'" for name in columns)
    return (
      f'read_csv({_sql_literal(glob.escape(self._path))}, auto_detect=false, '
      f'header=false, strict_mode=true, max_line_size={_LONGEST_LINE}, '
      f"compression='none', hive_partitioning=false, {options}, columns={{{names}}})"
    )

  def _rows(self, lines: Iterable[str]) -> Any:
    return csv.reader(
      lines, delimiter=self._delimiter, strict=True, skipinitialspace=True
    )

  def _csv_query(self, first: str) -> str:
    """The SQL query for a table whose header is the line `first`."""
    self.format = 'CSV'
    if first.count('\t') > first.count(','):
      self.format, self._delimiter = 'TSV', '\t'
    header = next(self._rows([first]))
    self._find_columns(header)
    self._header += 1
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

  def _json_query(self) -> str:
    self.format = 'JSON lines'
    table = self._read_csv("delim='\x01', quote='', escape=''", ['line'])
    lines = (
      f'select * from (select row_number() over () as no, line from {table}) where '
      "trim(line, e' \\t') <> ''"
    )
    groups = self.query(
      "select min(no), case when json_valid(line) and json_type(line) = 'OBJECT' then "
      f'json_keys(line) end as keys from ({lines}) group by keys order by 1'
    )
    names: dict[str, None] = {}
    for number, keys in groups:
      if keys is None or len(set(keys)) < len(keys):
        reason = 'this is not a JSON object' if keys is None else 'a name is repeated'
        raise self.entry_error(number, f'{reason}.')
      names.update(dict.fromkeys(keys))
    self._find_columns(list(names))
    values = {name: _json_value(name, source) for name, source in self.sources.items()}
    return f'select no, {_select_list(values)} from ({lines})'

  def _find_columns(self, names: list[str]) -> None:
    """Sets `sources`, the file's name for each column to read."""
    sources = _match_columns(names, self._columns)
    shown = f'among the columns {", ".join(map(repr, names))}'
    if 'client_ids' in sources:
      sources.pop('client_id', None)
    if 'client_id' in sources:  # Its times are of participations, not of rounds.
      client = sources['client_id']
      if 'round' not in sources:
        raise ValueError(
          f'{client} names the client of each line, but no column has the number of '
          'its round; add one, or say --columns=client_id= if it does not.'
        )
      for name in _TIMES:
        if self._columns.get(name):
          raise ValueError(
            f'each line is one participation, in column {client}, whose time is not '
            f'that of the round. Leave {name} out of --columns.'
          )
      kept = ('round', 'client_id', 'population')
      sources = {name: sources[name] for name in kept if name in sources}
    elif not sources.keys() & {'completion_time', 'client_ids'}:
      raise ValueError(
        f'no column of completion times {shown}; name it '
        '(--columns=completion_time=NAME), or where each line is a participation, '
        '--columns=round=NAME,client_id=NAME.'
      )
    self.sources = sources
    if ignored := [name for name in names if name not in sources.values()]:
      self.notes.append(f'columns left alone: {", ".join(ignored)}.')

  def choose(self, population: Optional[str]) -> None:
    """Removes the entries of other populations."""
    if 'population' not in self.sources:
      raise ValueError(
        'no column of populations; say which it is (--columns=population=NAME).'
      )
    name_of = "trim(population, e' \\t')"
    groups = self.query(
      f'select {name_of} as name, min(no), count(*) from entries group by name'
    )
    counts = {name: count for name, _, count in groups}
    for name, number, _ in groups:
      if not name:
        raise self.entry_error(number, 'there is no population.')
    shown = f'{", ".join(map(repr, sorted(counts))):.300}'
    if population is None and len(counts) > 1:
      raise ValueError(
        f'has rounds of several populations, {shown}. Say which is meant '
        '(--population_name), or --columns=population= if this is no such column.'
      )
    if population is not None and population not in counts:
      raise ValueError(
        f'has no rounds of the population {population!r}; it has those of {shown}.'
      )
    if len(counts) > 1:
      self.query(f'delete from entries where {name_of} <> $1', population)
      others = sum(counts.values()) - counts[population]
      self.notes.append(
        f'of the population {population!r} alone; {others} lines of others were left '
        f'out, of {shown}.'
      )

  def log(self) -> RoundLog:
    """Converts, checks and sorts the rounds, and numbers the participations."""
    names = [name for name in self.sources if name in _Round._fields]
    client, key = self.sources.get('client_id'), 'no'
    column = 'client_id' if client else 'client_ids'
    has_clients = column in self.sources
    if has_clients:
      self._name_clients(column)
    if client:  # Each line is a participation of one client in one round.
      names, key = ['round', 'client_ids'], 'trim(round)::bigint'
      entries = (
        'select min(no), trim(round), count(*) from entries group by 2 order by 1'
      )
      self.notes.append('each line is one participation of one client.')
    else:
      columns = ['len(names)' if name == 'client_ids' else name for name in names]
      joined = ' join ids using (client_ids)' if has_clients else ''
      entries = f'select no, {", ".join(columns)} from entries{joined} order by no'
    rounds = [
      self._round(no, dict(zip(names, values))) for no, *values in self.query(entries)
    ]
    if client and 'client_id' not in self._columns:
      if all(each.client_ids == 1 for each in rounds):
        raise ValueError(
          f'column {client} may say who the only client of each round was, or not; say '
          f'which: --columns=client_id={client} or --columns=client_id=.'
        )
    self._sort(rounds, is_by_line=not client)
    if has_clients:
      keys = [each.round if client else each.no for each in rounds]
      self._count_contributions(column, key, keys)
    self.query('drop table entries')
    values = {
      name: np.array([getattr(each, name) for each in rounds], np.int64)
      for name in ('completion_time', 'start_time', 'cohort_size')
      if name in names
    }
    return RoundLog(
      len(rounds),
      rounds[0].round or 0,
      completions=values.get('completion_time'),
      starts=values.get('start_time'),
      cohort_sizes=values.get('cohort_size'),
      clients=self if has_clients else None,
      time_format=self._time_format,
      notes=tuple(self.notes),
    )

  def _round(self, number: int, texts: dict[str, Any]) -> _Round:
    """Converts the values of a round, except for its number of clients."""
    values = {}
    for name, text in texts.items():
      try:
        if text is None or text == '':
          raise ValueError(f'there is no {name}.')
        if name in _TIMES:
          values[name] = self._time(text)
        elif name == 'client_ids' or re.fullmatch(' *[0-9]{1,18} *', text):
          values[name] = int(text)
        else:
          raise ValueError(f'{name} must be a whole number from 0, got {text!r}.')
      except ValueError as e:
        raise self.entry_error(number, e) from e
    return _Round(number, **values)

  def _time(self, text: str) -> int:
    time, time_format = parse_time(text)
    self._time_format = self._time_format or time_format
    if time_format != self._time_format:
      raise ValueError(
        f'{text!r} is {time_format}, but the lines before have {self._time_format}; '
        'write all times of a log in one way.'
      )
    return time

  def _sort(self, rounds: list[_Round], is_by_line: bool) -> None:
    """Sorts the rounds, by number or completion, and checks their sequence."""
    first = rounds[0]
    by = 'no' if first.completion_time is None else 'completion_time'
    by = by if first.round is None else 'round'
    if by == 'no' and all(each.client_ids == 1 for each in rounds):
      raise ValueError(
        'has one client in every line, and neither rounds nor times. Name '
        '--columns=round=NAME,client_id=NAME, or add the number of each round.'
      )
    rounds.sort(key=operator.attrgetter(by, 'no'))
    if is_by_line and any(a.no > b.no for a, b in zip(rounds, rounds[1:])):
      if by == 'completion_time' and self._time_format == WITHOUT_ZONE:
        raise ValueError(
          'has times without a zone that go back, as clocks do at the end of daylight '
          'saving. Write times with their zone, or sort the lines.'
        )
      self.notes.append('the lines were not in order and have been sorted.')
    for before, this in zip([None, *rounds], rounds):
      if wrong := _wrong(before, this):
        line = self.line(before.no) if before else None
        raise self.entry_error(
          this.no, wrong.format(this=this, before=before, line=line)
        )

  def _name_clients(self, column: str) -> None:
    """Makes the tables `ids`, the clients that each text names, and `names`."""
    is_json = self.format == 'JSON lines'

    def names_in(text: str) -> list[str]:
      return _names_in(text, column, is_json)

    for function, result in ((names_in, 'VARCHAR[]'), (ids.look_alike, 'VARCHAR')):
      self._connection.create_function(
        function.__name__,
        function,
        ['VARCHAR'],
        result,
        exception_handling='return_null',
      )
    self.query(
      f'create table ids as select {column}, names_in({column}) as names from (select '
      f'distinct {column} from entries)'
    )
    for number, text in self.query(
      f'select no, {column} from entries left join ids using ({column}) where names is '
      'null order by no limit 1'
    ):
      try:
        names_in(text or '')
      except ValueError as e:
        raise self.entry_error(number, e) from e
    self.query(
      'create table names as select (row_number() over (order by name) - 1)::int as '
      'client, name from (select distinct unnest(names) as name from ids)'
    )
    if not self.query('from names limit 1'):
      raise ValueError('names no client in any round.')
    for count, alike in self.query(
      'select count(*), any_value(alike) from (select list(name) as alike from names '
      'group by look_alike(name) having count(*) > 1) having count(*) > 0'
    ):
      ((number,),) = self.query(
        f'select min(no) from entries join ids using ({column}) where '
        'list_has_any(names, $1)',
        alike,
      )
      self.notes.append(
        'some ids differ only in case, leading zeros, brackets, quotes or invisible '
        f'characters ({count}, in line {self.line(number)} for example), and count as '
        'different clients; if they are of one, write them alike.'
      )

  def _count_contributions(self, column: str, key: str, keys: list[int]) -> None:
    """Makes the other tables of `Database`; rounds have these keys, in order."""
    self.query(
      'create table numbers as select unnest($1) as key, unnest($2) as round',
      keys,
      list(range(len(keys))),
    )
    self.query(f"""
      create table contributions as
      select client, round::int as round from (
        select {key} as key, unnest(names) as name
        from entries join ids using ({column})
      ) join names using (name) join numbers using (key);
      create table by_client as
      select client, count(*) as times, min(apart) as closest from (
        select
          client,
          round - lag(round) over (partition by client order by round) as apart
        from contributions
      ) group by client;
      drop table ids;
      drop table numbers
    """)


def _match_columns(names: list[str], stated: Mapping[str, str]) -> dict[str, str]:
  """The file's name for each column that it has."""
  by_spelling = {name.strip().lower(): name for name in names}
  if len(by_spelling) < len(names):
    raise ValueError(f'two columns have the same name among {", ".join(names)}.')
  sources = {name: source for name, source in stated.items() if source}
  for column, source in sources.items():
    if source not in names:
      raise ValueError(f'there is no column {source!r} for {column}.')
  for column, spellings in COLUMNS.items():
    matches = [by_spelling[s] for s in spellings if s in by_spelling]
    matches = [name for name in matches if name not in stated.values()]
    if column in stated or not matches:
      continue
    if len(matches) > 1 and matches[0].strip().lower() != column:
      raise ValueError(
        f'{" and ".join(matches)} could both be {column}; say which it is.'
      )
    sources[column] = matches[0]
  for pattern, columns, may in _LIKE:
    unread = (name for name in names if name not in sources.values())
    like = next(filter(re.compile(pattern).search, unread), None)
    if like is not None and not {*sources, *stated} & {*columns}:
      raise ValueError(
        f'{like} may {may}; say --columns={columns[0]}={like}, or --columns='
        f'{columns[0]}= if it is something else.'
      )
  return sources


def _wrong(before: Optional[_Round], this: _Round) -> str:
  """What is wrong with a round after the one before, as a template; '' if nothing."""
  number, completion = this.round, this.completion_time
  if None not in (completion, this.start_time) and this.start_time > completion:
    return 'this round starts after its completion.'
  if None not in (this.cohort_size, this.client_ids):
    if this.cohort_size != this.client_ids:
      return (
        'cohort_size is {this.cohort_size}, but client_ids has {this.client_ids}. Add '
        'the missing clients, or ignore the column if it is something else '
        '(--columns=cohort_size=).'
      )
  if before is None:
    if number is None or number <= 1:
      return ''
    return (
      'the first round is number {this.round}, not 0 or 1. Add the rounds before it; '
      'if they were of another run, number this one anew.'
    )
  if number is None and completion is not None and completion == before.completion_time:
    return (
      'this round is complete at the same time as that of line {line}. Is it one round '
      'or two? Remove the line, or add a column with the number of the round.'
    )
  if number is not None and number == before.round:
    return (
      'round {this.round} is also in line {line}. Keep one, or say whose they are: '
      '--columns=client_id=NAME or --columns=population=NAME.'
    )
  if number is not None and number > before.round + 1:
    return (
      'round {this.round} follows on round {before.round}. Add what is missing; if no '
      'result of it was ever released, number the rounds without it.'
    )
  if completion is not None and completion < before.completion_time:
    return 'this round is complete before the one before it, in line {line}.'
  return ''


def _names_in(text: str, column: str, is_json: bool) -> list[str]:
  """The clients that a value of a column names, by their normalised ids."""
  if column == 'client_id':
    if not text.strip():
      raise ValueError('there is no client_id.')
    value = _DECODER.decode(text) if is_json else text
    if isinstance(value, str) and _SEVERAL_IDS.search(value.strip()):
      raise ValueError(
        f'the client {value!r:.200} looks like several. Name the column client_ids '
        '(--columns=client_ids=NAME), or write a line for each.'
      )
    return [ids.of_client(value)]
  is_list = text.lstrip().startswith('[')
  values: list[Any] = _DECODER.decode(text) if is_list else re.split(r'[;\s]+', text)
  if not is_list:
    values = [value for value in values if value]
    if not values or _NO_LIST.search(text):
      # Otherwise, a single bracket would become part of an id.
      raise ValueError(
        'client_ids must be a JSON list, or be separated by spaces or semicolons '
        f'without brackets, and [] where nobody took part; got {text!r:.200}.'
      )
  return [_cached(v) if isinstance(v, str) else ids.of_client(v) for v in values]


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
    return f"case when {type_name} <> 'NULL' then {json_text} end"
  if name == 'client_ids':
    return (
      f"case {type_name} when 'ARRAY' then {json_text} when 'VARCHAR' then {text} end"
    )
  # DuckDB formats floats anew, but the digits in the line count.
  key = re.escape(json.dumps(source, ensure_ascii=False))
  pattern = _sql_literal(key + r'\s*:\s*([-+.0-9eE]+)')
  digits = f'regexp_extract(line, {pattern}, 1)'
  return (
    f"case {type_name} when 'VARCHAR' then {text} when 'NULL' then null when 'DOUBLE' "
    f"then if(try_cast({digits} as double) = {text}::double, {digits}, {text} || 'e0') "
    f'else {json_text} end'
  )
