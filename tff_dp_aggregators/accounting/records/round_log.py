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
"""

import array
import collections
import csv
import dataclasses
import datetime
import decimal
import functools
import gzip
import itertools
import operator
import os
import re
import stat
import tempfile
import zlib
from collections.abc import Iterator, Mapping
from typing import Any, BinaryIO, NamedTuple, Optional, cast

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
WITHOUT_ZONE = 'ISO 8601 without a zone'

_TIMES = ('completion_time', 'start_time')
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.timezone.utc)
_MAX_TIME = 7_258_118_400 * 10**9  # The year 2200, which keeps sums within int64.
_LONGEST_FIELD = 2**24  # Bytes.
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


@dataclasses.dataclass(frozen=True, eq=False)
class Clients:
  """The participations of clients, sorted by client and then by round."""

  names: list[str]  # In the order of the log; clients have the indices as numbers.
  client: np.ndarray  # The number of a participation's client, int32.
  round: np.ndarray  # Its round, from 0, int32.

  @functools.cached_property
  def times(self) -> np.ndarray:
    """The number of participations of each client."""
    return np.bincount(self.client, minlength=len(self.names))

  @functools.cached_property
  def closest(self) -> np.ndarray:
    """The smallest difference of two rounds of each client; 2^31 - 1 if it has one."""
    closest = np.full(len(self.names), np.iinfo(np.int32).max, np.int32)
    again = np.flatnonzero(self.client[1:] == self.client[:-1])
    apart = self.round[again + 1] - self.round[again]
    np.minimum.at(closest, self.client[again], apart)
    return closest

  def rounds_of(self, number: int) -> tuple[int, ...]:
    """The rounds of a client, in order."""
    return tuple(self.round[self.client == number].tolist())


@dataclasses.dataclass(frozen=True, eq=False)
class RoundLog:
  """A checked log, in the order of rounds."""

  num_rounds: int
  first_number: int  # The log's number of the first round, 0 or 1.
  # int64 nanoseconds since 1970, shape [n]; completions never decrease, starts may.
  completions: Optional[np.ndarray] = None
  starts: Optional[np.ndarray] = None
  cohort_sizes: Optional[np.ndarray] = None  # int64, shape [n].
  clients: Optional[Clients] = None  # The participations, if clients are named.
  time_format: Optional[str] = None
  notes: tuple[str, ...] = ()  # Omissions and doubts, for people.

  def format_time(self, nanoseconds: int) -> str:
    """Formats a time to microseconds, in UTC if the log's times have a zone."""
    time = _EPOCH + datetime.timedelta(microseconds=int(nanoseconds) // 1000)
    text = time.replace(tzinfo=None).isoformat()
    return text + ('' if self.time_format == WITHOUT_ZONE else 'Z')


class _Round(NamedTuple):
  """The values of a round; `None` for columns that the log does not have."""

  line: int
  round: Optional[int] = None
  completion_time: Optional[int] = None
  start_time: Optional[int] = None
  cohort_size: Optional[int] = None


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
  if not stat.S_ISREG(os.stat(path).st_mode):
    raise ValueError(f'{path} is not a regular file; give the name of a file.')
  reader = _Reader(dict(columns or {}), population)
  try:
    with open(path, 'rb') as file:
      is_gzipped = file.read(2) == b'\x1f\x8b'
    with gzip.open(path) if is_gzipped else open(path, 'rb') as file:
      for line, values in reader.entries(cast(BinaryIO, file)):
        try:
          reader.add(line, values)
        except ValueError as e:
          raise ValueError(f'line {line}: {e}') from e
    return reader.log()
  except (EOFError, gzip.BadGzipFile, zlib.error) as e:
    raise ValueError(f'{path} is a gzipped file that is damaged: {e}.') from e
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


class _Digits(float):
  """A number of JSON, with its digits in the file."""

  text: str

  def __new__(cls, text: str) -> '_Digits':
    """Keeps the text."""
    number = super().__new__(cls, text)
    number.text = text
    return number


_DECODER = strict_json.Decoder(
  object_pairs_hook=strict_json.unique, parse_float=_Digits
)
_Entries = Iterator[tuple[int, dict[str, Any]]]  # Lines, and their values by column.


class _Reader:
  """Reads the entries of a log, converts them, and checks the rounds."""

  def __init__(self, columns: dict[str, str], population: Optional[str]):
    for name in columns:
      if name not in COLUMNS:
        raise ValueError(
          f'{name!r} is not a column of a round log: {", ".join(COLUMNS)}.'
        )
    self._columns, self._population = columns, population
    self._names: list[str] = []  # Of all columns.
    self._sources: dict[str, str] = {}  # The file's name for each column that is read.
    self._populations: collections.Counter[str] = collections.Counter()
    self._time_format: Optional[str] = None
    self._rounds: list[_Round] = []
    self._index: dict[Any, int] = {}  # Of a participation's round, by number and text.
    self._clients: dict[str, int] = {}  # Numbers of clients, by all spellings of ids.
    self._client_names: list[str] = []
    self._client_lines = array.array('q')  # The line of each client's first round.
    # Each participation's client, and index in `_rounds`.
    self._client_of, self._round_of = array.array('i'), array.array('i')
    self._notes: list[str] = []

  def entries(self, file: BinaryIO) -> _Entries:
    """Reads a file, whose format its first bytes tell."""
    is_parquet = file.read(4) == b'PAR1'
    file.seek(0)
    if is_parquet:
      return self._parquet_entries(file)
    lines = self._lines(file)
    number, first = next((each for each in lines if each[1].strip()), (1, ''))
    lines = itertools.chain([(number, first)], lines)
    is_json = first.lstrip().startswith('{')
    return self._json_entries(lines) if is_json else self._csv_entries(lines)

  def _lines(self, file: BinaryIO) -> Iterator[tuple[int, str]]:
    line = b'\n'
    for number, line in enumerate(file, 1):
      try:
        yield number, line.decode('utf-8-sig' if number == 1 else 'utf-8')
      except UnicodeDecodeError as e:
        raise ValueError(f'line {number} is not text in UTF-8; save it as that.') from e
    if not line.endswith((b'\n', b'\r')):
      self._notes.append('the last line has no end; see that it was not cut off.')

  def _csv_entries(self, lines: Iterator[tuple[int, str]]) -> _Entries:
    first_number, first = next(lines)
    csv.field_size_limit(max(csv.field_size_limit(), _LONGEST_FIELD))
    rows = csv.reader(
      itertools.chain([first], map(operator.itemgetter(1), lines)),
      delimiter='\t' if first.count('\t') > first.count(',') else ',',
      strict=True,
      skipinitialspace=True,
    )
    try:
      for row in filter(None, rows):
        number = first_number + rows.line_num - 1
        if not self._names:
          self._find_columns(row)
        elif len(row) == len(self._names):
          yield number, dict(zip(self._names, row))
        else:
          raise csv.Error(f'{len(row)} values for {len(self._names)} columns')
    except csv.Error as e:
      number = first_number + rows.line_num - 1
      raise ValueError(f'line {number}: this is not CSV or TSV: {e}.') from e

  def _json_entries(self, lines: Iterator[tuple[int, str]]) -> _Entries:
    for number, line in lines:
      if not line.strip():
        continue
      try:
        values = _DECODER.decode(line)
        if not isinstance(values, dict):
          raise ValueError(f'got {values!r:.200}')
      except ValueError as e:
        raise ValueError(f'line {number}: this is not a JSON object: {e}') from e
      if not values.keys() <= set(self._names):
        self._find_columns(list(dict.fromkeys([*self._names, *values])))
      yield number, values

  def _parquet_entries(self, file: BinaryIO) -> _Entries:
    import duckdb  # Here, because most reports need no such log.

    with tempfile.NamedTemporaryFile() as copy:  # Unpacked, and no pattern of names.
      for block in iter(lambda: file.read(2**20), b''):
        copy.write(block)
      copy.flush()
      name = copy.name.replace("'", "''")
      try:
        with duckdb.connect() as connection:
          connection.execute(
            f"create view log as from read_parquet('{name}', hive_partitioning=false)"
          )
          types = connection.execute('describe log').fetchall()
          texts = self._texts_of({name: type_name for name, type_name, *_ in types})
          rows = connection.execute(f'select {", ".join(texts)} from log')
          batches = iter(lambda: rows.fetchmany(10_000), [])
          for number, row in enumerate(itertools.chain.from_iterable(batches), 1):
            yield number, dict(zip(self._sources.values(), row))
      except duckdb.Error as e:
        raise ValueError(f'it is not Parquet that can be read: {e}') from e

  def _texts_of(self, types: dict[str, str]) -> list[str]:
    """SQL expressions for the values of columns as texts."""
    self._find_columns(list(types))
    texts = []
    for name, source in self._sources.items():
      column, type_name = '"' + source.replace('"', '""') + '"', types[source]
      if name == 'client_ids' and type_name.endswith('[]'):
        column, type_name = f'to_json({column})', type_name[:-2]
      if type_name.endswith(']') or type_name.startswith(_UNSUPPORTED_TYPES):
        raise ValueError(
          f'{source} has values of the type {types[source]:.100}; write texts, whole '
          'numbers or floats of 64 bits, and client_ids as a list of them.'
        )
      texts.append(f'{column}::varchar')
    return texts

  def _find_columns(self, names: list[str]) -> None:
    """Sets `_sources`, the file's name for each column to read."""
    sources = _match_columns(names, self._columns)
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
        f'no column of completion times among {", ".join(map(repr, names))}; name it '
        '(--columns=completion_time=NAME), or where each line is a participation, '
        '--columns=round=NAME,client_id=NAME.'
      )
    if self._population is not None and 'population' not in sources:
      raise ValueError(
        'no column of populations; say which it is (--columns=population=NAME).'
      )
    if self._rounds and sources != self._sources:
      new = ', '.join(sources.keys() - self._sources.keys())
      raise ValueError(f'{new} is in later lines, but not in the first.')
    self._names, self._sources = names, sources

  def add(self, line: int, values: dict[str, Any]) -> None:
    """Adds an entry: a round, or with a column `client_id` a participation in one."""
    sources, clients = self._sources, []
    if 'population' in sources:
      if not self._is_selected(_text(values.get(sources['population']))):
        return
    if 'client_id' in sources:
      index = self._index_of(line, _text(values.get(sources['round'])))
      clients = [values.get(sources['client_id'])]
    else:
      index = len(self._rounds)
      if 'client_ids' in sources:
        clients = _listed(values.get(sources['client_ids']))
      numbers = {
        name: self._converted(name, _text(values.get(source)))
        for name, source in sources.items()
        if name in _Round._fields
      }
      self._rounds.append(_Round(line, **numbers))
    for client in clients:
      number = self._clients.get(client) if isinstance(client, str) else None
      self._client_of.append(self._add(line, client) if number is None else number)
      self._round_of.append(index)

  def _index_of(self, line: int, text: str) -> int:
    """The index of the round of a participation."""
    index = self._index.get(text)
    if index is None:
      number = self._converted('round', text)
      index = self._index[text] = self._index.setdefault(number, len(self._rounds))
      if index == len(self._rounds):
        self._rounds.append(_Round(line, number))
    return index

  def _is_selected(self, name: str) -> bool:
    """Whether the rounds of a population are read."""
    if not name:
      raise ValueError('there is no population.')
    self._populations[name] += 1
    if self._population is None and len(self._populations) > 1:
      raise ValueError(
        f'this round is of the population {name!r}, and others are of '
        f'{next(iter(self._populations))!r}. Say which is meant (--population_name), '
        'or --columns=population= if this is no such column.'
      )
    return self._population in (None, name)

  def _converted(self, name: str, text: str) -> int:
    if not text:
      raise ValueError(f'there is no {name}.')
    if name not in _TIMES:
      if not re.fullmatch('[0-9]{1,18}', text):
        raise ValueError(f'{name} must be a whole number from 0, got {text!r}.')
      return int(text)
    time, time_format = parse_time(text)
    self._time_format = self._time_format or time_format
    if time_format != self._time_format:
      raise ValueError(
        f'{text!r} is {time_format}, but the lines before have {self._time_format}; '
        'write all times of a log in one way.'
      )
    return time

  def _add(self, line: int, client: Any) -> int:
    """The number of a client whose id has a new spelling."""
    if 'client_id' in self._sources:
      _check_single(client)
    name = ids.of_client(client)
    number = self._clients.setdefault(name, len(self._client_names))
    if number == len(self._client_names):
      self._client_names.append(name)
      self._client_lines.append(line)
    if isinstance(client, str):
      self._clients[client] = number
    return number

  def log(self) -> RoundLog:
    """Checks and sorts the rounds."""
    others = sorted(self._populations.keys() - {self._population})
    shown = f'{", ".join(map(repr, others)):.300}'
    if not self._rounds and others:
      raise ValueError(
        f'has no rounds of the population {self._population!r}; it has those of '
        f'{shown}.'
      )
    if not self._rounds:
      raise ValueError('has no rounds.')
    if ignored := [n for n in self._names if n not in self._sources.values()]:
      self._notes.insert(0, f'columns left alone: {", ".join(ignored)}.')
    if self._population is not None and others:
      number = sum(self._populations[name] for name in others)
      self._notes.append(
        f'of the population {self._population!r} alone; {number} lines of others were '
        f'left out: {shown}.'
      )
    order = self._sorted()
    rounds = [self._rounds[index] for index in order]
    clients = None
    if self._sources.keys() & {'client_id', 'client_ids'}:
      clients = self._participations(order)
    arrays = {
      name: np.array([getattr(each, name) for each in rounds], np.int64)
      for name in ('completion_time', 'start_time', 'cohort_size')
      if name in self._sources
    }
    return RoundLog(
      len(rounds),
      rounds[0].round or 0,
      completions=arrays.get('completion_time'),
      starts=arrays.get('start_time'),
      cohort_sizes=arrays.get('cohort_size'),
      clients=clients,
      time_format=self._time_format,
      notes=tuple(self._notes),
    )

  def _sorted(self) -> list[int]:
    """The indices of rounds, by number or completion; checks their sequence."""
    rounds, client = self._rounds, self._sources.get('client_id')
    named = np.bincount(self._round_of, minlength=len(rounds))
    if client and 'client_id' not in self._columns and max(named) == 1:
      raise ValueError(
        f'column {client} may say who the only client of each round was, or not; say '
        f'which: --columns=client_id={client} or --columns=client_id=.'
      )
    by = next((n for n in ('round', 'completion_time') if n in self._sources), 'line')
    if by == 'line' and max(named) == min(named) == 1:
      raise ValueError(
        'has one client in every line, and neither rounds nor times. Name '
        '--columns=round=NAME,client_id=NAME, or add the number of each round.'
      )
    key = operator.attrgetter(by, 'line')
    order = sorted(range(len(rounds)), key=lambda index: key(rounds[index]))
    if order != sorted(order) and not client:
      if by == 'completion_time' and self._time_format == WITHOUT_ZONE:
        raise ValueError(
          'has times without a zone that go back, as clocks do at the end of daylight '
          'saving. Write times with their zone, or sort the lines.'
        )
      self._notes.append('the lines were not in order and have been sorted.')
    if client:
      self._notes.append('each line is one participation of one client.')
    for before, index in zip([None, *order], order):
      this, earlier = rounds[index], None if before is None else rounds[before]
      wrong = _wrong(earlier, this)
      if 'client_ids' in self._sources and this.cohort_size not in (None, named[index]):
        wrong = (
          f'cohort_size is {this.cohort_size}, but client_ids has {named[index]}. Add '
          'the missing clients, or ignore the column if it is something else '
          '(--columns=cohort_size=).'
        )
      if wrong:
        raise ValueError(f'line {this.line}: {wrong}')
    return order

  def _participations(self, order: list[int]) -> Clients:
    if not self._client_names:
      raise ValueError('names no client in any round.')
    lines_of: dict[str, list[int]] = {}
    for name, line in zip(self._client_names, self._client_lines):
      lines_of.setdefault(ids.look_alike(name), []).append(line)
    if alike := [lines for lines in lines_of.values() if len(lines) > 1]:
      self._notes.append(
        'some ids differ only in case, leading zeros, brackets, quotes or invisible '
        f'characters ({len(alike)}, in line {alike[0][0]} for example), and count as '
        'different clients; if they are of one, write them alike.'
      )
    place = np.empty(len(order), np.int32)
    place[order] = np.arange(len(order))
    client = np.array(self._client_of)
    rounds = place[np.array(self._round_of)]
    by_client = np.lexsort((rounds, client))
    return Clients(self._client_names, client[by_client], rounds[by_client])


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
  """What is wrong with a round after the one before; '' if nothing."""
  if this.start_time is not None and this.completion_time is not None:
    if this.start_time > this.completion_time:
      return 'this round starts after its completion.'
  if before is None:
    if this.round is None or this.round <= 1:
      return ''
    return (
      f'the first round is number {this.round}, not 0 or 1. Add the rounds before it; '
      'if they were of another run, number this one anew.'
    )
  if this.completion_time is not None and before.completion_time is not None:
    if this.round is None and this.completion_time == before.completion_time:
      return (
        f'this round is complete at the same time as that of line {before.line}. Is it '
        'one round or two? Remove the line, or add a column with the number of the '
        'round.'
      )
    if this.completion_time < before.completion_time:
      return f'this round is complete before the one before it, in line {before.line}.'
  if this.round is not None and before.round is not None:
    if this.round == before.round:
      return (
        f'round {this.round} is also in line {before.line}. Keep one, or say whose '
        'they are: --columns=client_id=NAME or --columns=population=NAME.'
      )
    if this.round > before.round + 1:
      return (
        f'round {this.round} follows on round {before.round}. Add what is missing; if '
        'no result of it was ever released, number the rounds without it.'
      )
  return ''


def _text(value: Any) -> str:
  """A value as it is written in the file."""
  if not isinstance(value, str):
    value = '' if value is None else str(getattr(value, 'text', value))
  return cast(str, value).strip(' \t')


def _check_single(value: Any) -> None:
  """Refuses no id, and several ids in one value."""
  if value is None or (isinstance(value, str) and not value.strip()):
    raise ValueError('there is no client_id.')
  if isinstance(value, str) and _SEVERAL_IDS.search(value.strip()):
    raise ValueError(
      f'the client {value!r:.200} looks like several. Name the column client_ids '
      '(--columns=client_ids=NAME), or write a line for each.'
    )


def _listed(value: Any) -> list[Any]:
  """The ids in a value, which is a list, or a text that lists them."""
  if isinstance(value, str) and value.lstrip().startswith('['):
    value = _DECODER.decode(value)
  elif isinstance(value, str) and not _NO_LIST.search(value):
    value = value.replace(';', ' ').split() or None
  if not isinstance(value, list):
    raise ValueError(
      'client_ids must be a JSON list, or be separated by spaces or semicolons without '
      f'brackets, and [] where nobody took part; got {value!r:.200}.'
    )
  return value
