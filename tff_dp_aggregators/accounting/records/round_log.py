"""Round logs: what a production system wrote down about its rounds.

A log is a CSV or TSV file with a header (TSV if there are more tabs in it than commas),
JSON lines (one object a line, told by the first character) or Parquet, plain or gzipped
(told by the first bytes), with one entry for each round whose result was released:

| column            | value |
|-------------------|-------|
| `completion_time` | when the round was complete; only a log with clients can lack it |
| `start_time`      | when its first client could begin |
| `round`           | its number, counting from 0 or from 1 |
| `cohort_size`     | how many clients contributed |
| `client_ids`      | which: a JSON list, or a text, separated by spaces or semicolons |
| `client_id`       | in a log with a line for each participation, whose it was |
| `population`      | of which clients the round was, where a log has several |

Other common names are understood (`COLUMNS`) and others can be told, or the empty name
for a column that is not what it seems; the ledger of a training run is a round log as
well. Columns that mean nothing here are left alone.

**Times** are ISO 8601 with a zone (`2023-05-30T11:00:00.25Z`, `... 13:00:00+02:00`),
without any, or Unix time in seconds, ms, us or ns, which its digits tell apart: whole,
with decimals, or as `1.7000496e9`, quoted or not. One log has one of these. Zones may
differ from line to line; all become UTC. Programs that print `1.70005e9` drop digits;
what is left of them is found out, and the wait between rounds counts as that much
shorter (`RoundLog.resolution`).

**Populations** have rounds of their own. If a log has several, one has to be asked
for: together they would seem to have more rounds in a day than each has.

**What is repaired and what is refused.** Everything is refused, with the line, for
which a guess could make the privacy guarantee too good:

* Lines in any order: sorted, by round or, if there are no numbers, by completion.
* A line twice: with the round's number, counted once. Without, refused: counted twice
  it would overstate how many rounds fit into a day, and if it is two rounds, counting
  it once would understate how many there are.
* A round twice with different values, or with columns that are not read: refused.
* A line for each participation, with a column `client_id` (or `device`, `user`) and the
  round's number: read as rounds. Times of single participations are left alone.
* A missing number: refused. If the round was lost from the log, leaving it out counts
  too few rounds; if it never happened, counting it overstates the separation.
* Completions that go back while the numbers go up, a start after its completion, a
  time with a zone among some without: refused, a clock is wrong.
* A value missing or unreadable, half a line: refused. So are clients called NA, nan or
  null, which is how a missing id is written, and fractions.
* A client that is written in several ways, with blanks or as 7.0: one client.

DuckDB reads the file, every value as text, and keeps what exceeds its memory on disk.
`log_participation` says what follows from a log.
"""

import dataclasses
import datetime
import json
from collections.abc import Mapping, Sequence
from typing import Any, Optional

import numpy as np

from tff_dp_aggregators.accounting.records import log_file
from tff_dp_aggregators.base import ids

# The names of columns.
COLUMNS = log_file.COLUMNS
# What times without an offset are called.
WITHOUT_ZONE = 'ISO 8601 without a zone'

_TIMES = log_file.TIMES
_SECOND = 10**9  # In nanoseconds, which all times are counted in.
_END_OF_TIMES = 7_258_118_400 * _SECOND  # The year 2200, which keeps sums within int64.
# Text to numbers, NULL for what is none. DuckDB's own casts take more forms than are
# meant here, such as '1_0'.
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
  case when regexp_full_match(t, '\d{1,30}(\.\d*)?([eE][+-]?\d{1,2})?')
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
create macro in_range(moment) as
  case when moment between 0 and 7258118399999999999 then moment::bigint end;
create macro listed(t) as
  case when starts_with(ltrim(t), '[') then
    case when json_valid(t) then json_extract(t, '$[*]')::varchar[] end
  when not contains(t, ',') then [
    to_json(x)::varchar
    for x in string_split_regex(t, '[;\s\x0b\x1c-\x1f\x{85}\p{Z}]+') if x <> ''
  ] end;
"""
# What a round in its order must not be: columns, condition, words.
_RULES = (
  (
    {'round'},
    'number = 0 and round > 1',
    'the first round is number {round}, not 0 or 1. Add the rounds before it, which '
    'count as well; if they were of another run, number this one anew.',
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
    'cohort_size is {cohort_size}, but client_ids has {client_ids}. Add who is '
    'missing, or say that the column is something else (--columns=cohort_size=).',
  ),
)


class Clients:
  """Who took part when, in tables of a database that is on disk where it is large.

  * `contributions(client, round)`: one row for each; rounds count from 0.
  * `names(client, name)`: the clients, numbered in the order of the log.
  * `by_client(client, times, closest)`: a client's contributions, and the smallest
    difference of two of its rounds, NULL if it has one.
  """

  def __init__(self, file: log_file.LogFile):
    self._file = file  # Which has the folder of what is on disk.
    file.query("""
      drop table entries;
      drop table ids;
      create table by_client as
      select client, count(*) as times, min(apart) as closest from (
        select
          client,
          round - lag(round) over (partition by client order by round) as apart
        from contributions
      ) group by client
    """)
    self.query, self.arrays = file.query, file.arrays


@dataclasses.dataclass(frozen=True, eq=False)
class RoundLog:
  """A log as read and checked, in the order of rounds.

  Attributes:
    num_rounds: Rounds n.
    first_number: The number that the log gives to the first round, 0 or 1.
    completions: int64 nanoseconds since 1970, shape [n], never falling; or `None`.
    starts: The same for starts, in no particular order; or `None`.
    cohort_sizes: int64, shape [n]; or `None`.
    clients: Who took part; or `None`.
    time_format: How the log writes times.
    notes: What was repaired or left out, for people.
    resolution: Nanoseconds to which the times are rounded, where they are written in
      powers of ten and all lack the digits of seconds; else 0.
  """

  num_rounds: int
  first_number: int
  completions: Optional[np.ndarray]
  starts: Optional[np.ndarray]
  cohort_sizes: Optional[np.ndarray]
  clients: Optional[Clients]
  time_format: Optional[str]
  notes: tuple[str, ...]
  resolution: int = 0

  def format_time(self, nanoseconds: int) -> str:
    """A time of this log as ISO 8601, in UTC if the log's times have a zone.

    An instant in the second is cut down to microseconds.
    """
    epoch = datetime.datetime(1970, 1, 1)
    time = epoch + datetime.timedelta(microseconds=int(nanoseconds) // 1000)
    return time.isoformat() + ('' if self.time_format == WITHOUT_ZONE else 'Z')


def read(
  path: str,
  columns: Optional[Mapping[str, str]] = None,
  population: Optional[str] = None,
) -> RoundLog:
  r"""Reads and checks a log.

  Args:
    path: The file, UTF-8, which may be gzipped.
    columns: The file's own names of columns, by the names of `COLUMNS`; the empty name
      for one that it does not have.
    population: The population whose rounds are to be read; `None` for a log that has
      one only.

  Raises:
    OSError: If the file cannot be read.
    ValueError: If something in it is refused, with the line.

  Example:
    >>> import os, tempfile
    >>> path = os.path.join(tempfile.mkdtemp(), 'rounds.csv')
    >>> with open(path, 'w') as file:
    ...   lines = file.write('round,time\n1,2023-05-30T11:00Z\n2,2023-05-30T13:30Z\n')
    >>> log = read(path)
    >>> log.num_rounds, log.format_time(log.completions[-1])
    (2, '2023-05-30T13:30:00Z')
  """
  file = log_file.LogFile(path, dict(columns or {}), population)
  reader = _Reader(file)
  return reader.of_participations() if 'client_id' in file.found else reader.of_rounds()


def parse_time(text: str) -> tuple[int, str]:
  """Reads a time.

  Args:
    text: In any form that logs have.

  Returns:
    Nanoseconds since 1970, cut down, and how the time was written; without a zone,
    those that it would be in UTC.

  Raises:
    ValueError: If it is not a time between 1970 and 2200.

  Example:
    >>> parse_time('1970-01-01T02:00:00.5+02:00')
    (500000000, 'ISO 8601 with a zone')
    >>> parse_time('1.70000000025e9')
    (1700000000250000000, 'Unix time in s')
  """
  with log_file.connect() as database:
    database.execute(_MACROS)
    ((_, time, time_format, _),) = database.execute(
      _converted(['start_time'], '(select 0 as no, $1 as start_time)'), [text]
    ).fetchall()
  if time is None:
    raise ValueError(_no_time(text))
  return time, time_format


def _converted(names: Sequence[str], entries: str) -> str:
  """The query for numbers instead of texts, with how times are written."""
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
      values[f'in_powers_{name}'] = f"contains(lower({name}), 'e')"
  return (
    f'select {log_file.named(values)} from (select *{"".join(texts)} from {entries})'
  )


class _Reader:
  """Orders and checks what the entries of a file say together."""

  def __init__(self, file: log_file.LogFile):
    self._file, self._query = file, file.query
    self._names = [name for name in file.names if name != 'client_id']
    self._key = next((n for n in ('round', 'completion_time') if n in file.names), 'no')
    self._query(_MACROS)

  def of_rounds(self) -> RoundLog:
    """The log of which each line is a round."""
    self._query(f'create table rounds as {_converted(self._names, "entries")}')
    self._check_converted()
    time_format, is_in_powers = self._time_format()
    if 'client_ids' in self._names:
      named = (
        'select no, unnest(listed(client_ids)) as raw, '
        'generate_subscripts(listed(client_ids), 1) as place from entries'
      )
      self._number_clients(named)
      self._query(
        f'create table members as select no, client from ({named}) join ids using '
        '(raw) join names using (name)'
      )
    if self._query(
      f'from (select no, lag(no) over (order by {self._key}, no) as before from rounds)'
      ' where before > no limit 1'
    ):
      self._file.notes.append('the lines were not in order and have been sorted.')
    if self._key != 'no':
      self._leave_out_repeated()
    self._put_in_order()
    clients = None
    if 'client_ids' in self._names:
      if not self._query('from names limit 1'):
        raise self._file.error('names no client in any round.')
      self._query(
        'create table contributions as select client, number as round from members '
        'join ordered using (no); drop table members'
      )
      clients = Clients(self._file)
    columns = [name for name in self._names if name not in ('round', 'client_ids')]
    values = self._file.arrays(
      f'select {", ".join(["number", *columns])} from ordered order by number'
    )
    return self._log(
      completions=values.get('completion_time'),
      starts=values.get('start_time'),
      cohort_sizes=values.get('cohort_size'),
      clients=clients,
      time_format=time_format,
      resolution=_resolution(values) if is_in_powers else 0,
    )

  def of_participations(self) -> RoundLog:
    """The log of which each line is one client in one round."""
    self._query(
      'create table rounds as select whole(round) as round, min(no) as no, count(*) as '
      'times from entries group by 1'
    )
    self._check_converted()
    self._number_clients('select no, client_id as raw, 0 as place from entries')
    ((most,),) = self._query('select max(times) from rounds')
    self._file.check_client_id(most)
    try:
      self._put_in_order()
    except ValueError as e:
      raise ValueError(
        f'{e} A round that nobody took part in has no line here: give a log with a '
        'line for each round, whose client_ids may be empty.'
      ) from e
    self._file.notes.append('each line is one participation of one client.')
    self._query(
      'create table contributions as select client, number as round from entries '
      'join ids on client_id = raw join names using (name) join ordered on '
      'whole(entries.round) = ordered.round'
    )
    return self._log(clients=Clients(self._file))

  def _log(self, **values: Any) -> RoundLog:
    first = 'min(round)' if 'round' in self._names else '0'
    ((num_rounds, first_number),) = self._query(
      f'select count(*), {first} from ordered'
    )
    empty = dict.fromkeys(
      ('completions', 'starts', 'cohort_sizes', 'clients', 'time_format')
    )
    return RoundLog(
      num_rounds=num_rounds,
      first_number=first_number,
      notes=tuple(self._file.notes),
      **{**empty, **values},
    )

  def _check_converted(self) -> None:
    """Refuses the first value that is not what its column is for."""
    wrong = [
      (number, place, name)
      for place, name in enumerate(self._names)
      for (number,) in self._query(f'select min(no) from rounds where {name} is null')
      if number is not None
    ]
    for number, _, name in sorted(wrong)[:1]:
      raise self._file.refusal(number, _reason(name, self._file.value(number, name)))

  def _time_format(self) -> tuple[Optional[str], bool]:
    """How times are written, and whether in powers of ten, which may lack digits."""
    columns = [name for name in _TIMES if name in self._names]
    if not columns:
      return None, False
    every = ' union all '.join(
      f'select no, {place} as place, format_of_{name} as format, in_powers_{name} as '
      'in_powers from rounds'
      for place, name in enumerate(columns)
    )
    formats = self._query(
      f'select format, min((no, place)) as first, bool_or(in_powers) from ({every}) '
      'group by format order by first'
    )
    for other, (number, place), _ in formats[1:2]:
      first, (first_number, _), _ = formats[0]
      raise self._file.refusal(
        number,
        f'{self._file.value(number, columns[place])!r} is {other}, but line '
        f'{self._file.line(first_number)} has {first}; write all times of a log in one '
        'way.',
      )
    return formats[0][0], formats[0][2]

  def _number_clients(self, named: str) -> None:
    """Makes the tables of clients, by their ids in the one way to write each."""

    def client_of(raw: str) -> str:
      return _client_id(json.loads(raw) if self._file.has_json_ids else raw)

    self._file.database.create_function(
      'client_of', client_of, ['VARCHAR'], 'VARCHAR', exception_handling='return_null'
    )
    self._query(
      'create table ids as select raw, client_of(raw) as name, first from (select raw, '
      f'min(no * {2**32} + place) as first from ({named}) group by raw)'
    )
    for raw, first in self._query(
      'select raw, first from ids where name is null order by first limit 1'
    ):
      try:
        if not (raw or '').strip():
          raise ValueError('there is no client_id.')
        client_of(raw)
      except ValueError as e:
        raise self._file.refusal(first // 2**32, str(e)) from e
    self._query(
      'create table names as select (row_number() over (order by min(first)) - 1)::int '
      'as client, name from ids group by name'
    )

  def _leave_out_repeated(self) -> None:
    """Leaves out entries that say the same of the same round as one before."""
    clients = '(select list_sort(list(client)) from members where no = twice.no)'
    rows = self._query(
      'with twice as (from rounds qualify count(*) over (partition by '
      f'{self._key}) > 1) select {self._key}, no, {", ".join(self._names)}, '
      f'{clients if "client_ids" in self._names else 0} from twice order by 1, 2'
    )
    has_number, repeated = 'round' in self._names, []
    seen: dict[Any, tuple[int, Any]] = {}
    for key, number, *values in rows:
      content = repr(values)
      before, same_as = seen.setdefault(
        key if has_number else content, (number, content)
      )
      if before == number:
        continue
      if not has_number:
        raise self._file.refusal(
          number,
          f'the same as line {self._file.line(before)}. Is it one round or two? Remove '
          'the line, or add a column with the number of the round.',
        )
      if content != same_as or self._file.ignored:
        other = 'with other values'
        if content == same_as:
          other = f'and {", ".join(self._file.ignored)} may differ, which is not read'
        raise self._file.refusal(
          number,
          f'round {key} is also in line {self._file.line(before)}, {other}. If each '
          'line is one participation, name the column of the client '
          '(--columns=client_id=NAME); if the log is of several populations, the '
          'column that tells them apart (--columns=population=NAME); else keep one of '
          'them.',
        )
      repeated.append(number)
    if repeated:
      self._file.notes.append(
        f'{len(repeated)} lines are there twice and were counted once, line '
        f'{self._file.line(min(repeated))} for example.'
      )
      self._query('delete from rounds where no in (select unnest($1))', repeated)

  def _put_in_order(self) -> None:
    """Makes the table of rounds in their order, which has to make sense."""
    lags = ''.join(
      f', lag({name}) over w as {name}_before' for name in ('no', *self._names)
    )
    self._query(
      f'create table ordered as select *, row_number() over w - 1 as number{lags} from '
      f'rounds window w as (order by {self._key}, no)'
    )
    for columns, broken, words in _RULES:
      if columns <= {*self._names}:
        for row in self._file.rows(
          f'from ordered where {broken} order by number limit 1'
        ):
          row['line_before'] = self._file.line(row['no_before'] or row['no'])
          raise self._file.refusal(row['no'], words.format(**row))


def _reason(name: str, value: Any) -> str:
  """Why a value is refused."""
  if name == 'client_ids':
    if not isinstance(value, str):
      return f'client_ids must be a list, got {value!r}.'
    if value.lstrip().startswith('['):
      return f'client_ids are no JSON list: {value!r:.200}.'
    # A name would be another one with a comma behind it.
    return f'client_ids must be separated by spaces or semicolons, got {value!r:.200}.'
  if value is None or value == '':
    return f'there is no {name}.'
  if name in _TIMES:
    return _no_time(value)
  return f'{name} must be a whole number from 0, got {value!r}.'


def _no_time(value: Any) -> str:
  return (
    f'{value!r} is not a time between the years 1970 and 2200, such as '
    '2023-05-30T11:00:00Z or Unix time in digits.'
  )


def _resolution(values: Mapping[str, np.ndarray]) -> int:
  """Which power of ten all times are multiples of, if that is more than a second."""
  written = np.concatenate([values[name] for name in _TIMES if name in values])
  unit = 1
  while unit < _END_OF_TIMES and not np.any(written % (10 * unit)):
    unit *= 10
  return unit if unit > _SECOND else 0


def _client_id(value: Any) -> str:
  """The id of a client, in the one way to write it."""
  if isinstance(value, bool) or not isinstance(value, (str, int, float)):
    raise ValueError(f'the client {value!r} is neither a text nor a whole number.')
  try:
    is_float = isinstance(value, float)
    name = ids.of_number(value) if is_float else ids.of_text(str(value))
  except ValueError as e:
    raise ValueError(f'the client {value!r} is {e}') from e
  if not name:
    raise ValueError('a client has no name.')
  if name in ids.MISSING:
    raise ValueError(
      f'the client {value!r} says that it is missing, and counts for somebody. Fill in '
      'who it was; a client that is really called so needs another name.'
    )
  return name
