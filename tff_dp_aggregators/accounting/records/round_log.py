"""Round logs: what a production system wrote down about its rounds.

A log is a CSV or TSV file with a header (TSV if there are more tabs in it than commas),
or JSON lines (one object a line, told by the first character), plain or gzipped (told
by the first bytes), with one entry for each round whose result was released:

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

**Populations** have rounds of their own. Of a log with several, one has to be asked
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

What follows from a log is the business of `participation`.
"""

import array
import contextlib
import csv
import dataclasses
import datetime
import gzip
import io
import itertools
import json
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, BinaryIO, Optional, TextIO, cast

import numpy as np

from tff_dp_aggregators.accounting.records import strict_json
from tff_dp_aggregators.accounting.records import times
from tff_dp_aggregators.base import ids

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

_TIMES = ('completion_time', 'start_time')
_COUNTS = ('round', 'cohort_size')
_WHOLE = re.compile(' *[0-9]{1,18} *')
_BLOCK = 10_000  # Lines that are converted together.
_GZIP = b'\x1f\x8b'  # How gzipped files begin.
# What reading a gzipped file raises that was damaged or cut off.
_DAMAGED = (EOFError, gzip.BadGzipFile, zlib.error)
_SHOWN_POPULATIONS = 10


class _Number(str):
  """A number in JSON that is not whole, as it is written: no digit is lost."""


_DECODER = json.JSONDecoder(parse_float=_Number, object_pairs_hook=strict_json.unique)


@dataclasses.dataclass(frozen=True, eq=False)
class Clients:
  """Who took part when: one entry for each contribution.

  Attributes:
    names: The clients.
    client: int32, shape [contributions]; indices into `names`.
    round: int64, shape [contributions]; rounds, from 0.
  """

  names: tuple[str, ...]
  client: np.ndarray
  round: np.ndarray


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
    return time.isoformat() + ('' if self.time_format == times.WITHOUT_ZONE else 'Z')


def read(
  path: str,
  columns: Optional[Mapping[str, str]] = None,
  population: Optional[str] = None,
) -> RoundLog:
  r"""Reads and checks a log.

  10^6 rounds take about 5 s as CSV and 10 s as JSON lines, and 100 MB; 10^7 lines that
  are a participation each, of 1.7 million devices, about 45 s and 0.9 GB
  (benchmarks/round_log.py).

  Args:
    path: The file, UTF-8, which may be gzipped.
    columns: The file's own names of columns, by the names of `COLUMNS`; the empty name
      for one that it does not have.
    population: Of which population the rounds are to be read; `None` for a log that
      has one only.

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
  reader = _Reader(path, dict(columns or {}), population)
  with _open(path) as file:
    text = io.TextIOWrapper(file, encoding='utf-8-sig', newline='')
    try:
      reader.read(text)
    except UnicodeDecodeError as e:
      raise ValueError(
        f'{path}, line {_unreadable_line(path)}: this is not UTF-8 text: {e.reason}.'
      ) from e
    except _DAMAGED as e:
      raise ValueError(
        f'{path}, line {_unreadable_line(path)}: here the gzipped file is damaged or '
        f'cut off: {e}.'
      ) from e
  return reader.finish()


@contextlib.contextmanager
def _open(path: str) -> Iterator[BinaryIO]:
  """The bytes of a file, unpacked if it is gzipped."""
  with open(path, 'rb') as file:
    if file.peek(len(_GZIP)).startswith(_GZIP):
      with gzip.GzipFile(fileobj=file) as unpacked:
        yield cast(BinaryIO, unpacked)
    else:
      yield file


def _unreadable_line(path: str) -> int:
  """The first line that is not UTF-8, or that a gzipped file lacks."""
  complete = 0
  with _open(path) as file:
    try:
      for line in file:
        line.decode()
        complete += 1
    except (UnicodeDecodeError, *_DAMAGED):
      pass
  return complete + 1


class _Reader:
  """Collects the lines of one file, then orders and checks them."""

  def __init__(self, path: str, columns: dict[str, str], population: Optional[str]):
    for name in columns:
      if name not in COLUMNS:
        raise ValueError(f'{name!r} is no column of a round log: {", ".join(COLUMNS)}.')
    self._path = path
    self._columns = columns
    self._population = population
    self._first_of_population: Optional[tuple[str, int]] = None  # And its line.
    self._others: set[str] = set()  # Populations left out.
    self._left_out = 0  # Lines of theirs.
    self._found: dict[str, int] = {}  # Where in each row a column is.
    self._notes: list[str] = []
    self._ignored: list[str] = []  # Columns that are not read.
    self._found_name = ''  # Of the column with the client of a participation.
    self._lines = array.array('q')
    self._numbers: dict[str, array.array] = {}
    self._time_format: Optional[str] = None
    self._time_line = 0
    self._is_scientific = False  # Whether a time is in powers of ten.
    self._index_of_client: dict[str, int] = {}
    self._contributions = array.array('i')  # Clients, line after line.

  def read(self, file: TextIO) -> None:
    """Collects all lines, a block at a time."""
    entries = self._entries(file)
    while block := list(itertools.islice(entries, _BLOCK)):
      if 'population' in self._found and not (block := self._of_population(block)):
        continue
      lines, rows = zip(*block)
      self._lines.extend(lines)
      values = list(zip(*rows))
      for name in self._numbers:
        column = values[self._found[name]]
        self._numbers[name].extend(self._convert(name, column, lines))
    if self._others and not self._lines:
      raise ValueError(
        f'{self._path} has no rounds of the population {self._population!r}; it has '
        f'those of {self._shown_others()}.'
      )
    if not self._lines:
      raise ValueError(f'{self._path} has no rounds.')
    if self._others:
      self._notes.append(
        f'of the population {self._population!r} alone; {self._left_out} lines of '
        f'others were left out: {self._shown_others()}.'
      )

  def _of_population(
    self, block: list[tuple[int, Sequence[Any]]]
  ) -> list[tuple[int, Sequence[Any]]]:
    """The entries of the population that is asked for."""
    index = self._found['population']
    kept = []
    for line, row in block:
      value = row[index]
      if isinstance(value, bool) or not isinstance(value, (str, int)):
        raise self._refusal(line, f'{value!r} is not the name of a population.')
      name = str(value).strip()
      if not name:
        raise self._refusal(line, 'there is no population.')
      if self._population is None:
        first, first_line = self._first_of_population or (name, line)
        if name != first:
          raise self._refusal(
            line,
            f'this round is of the population {name!r}, but line {first_line} has '
            f'{first!r}. Say which is meant (--population_name), for each has rounds '
            'of its own; or that this is no such column (--columns=population=).',
          )
        self._first_of_population = first, first_line
      elif name != self._population:
        self._left_out += 1
        self._others.add(name)
        continue
      kept.append((line, row))
    return kept

  def _shown_others(self) -> str:
    names = sorted(self._others)
    more = len(names) - _SHOWN_POPULATIONS
    shown = ', '.join(map(repr, names[:_SHOWN_POPULATIONS]))
    return f'{shown} and {more} more' if more > 0 else shown

  def _convert(
    self, name: str, values: Sequence[Any], lines: Sequence[int]
  ) -> Sequence[int]:
    """What is kept of a column's values: of clients, their number."""
    if name in _TIMES and (read := self._times_alike(values, lines[0])) is not None:
      return read
    if name in _COUNTS and (counts := _whole_numbers_alike(values)) is not None:
      return counts
    if name == 'client_id' and set(map(type, values)) == {str}:
      with contextlib.suppress(ValueError):  # Which is said below, with the line.
        self._contributions.extend([self._client(value) for value in values])
        return [1] * len(values)
    numbers = []
    for value, line in zip(values, lines):
      try:
        if name == 'client_ids':
          numbers.append(self._add_clients(value))
        elif value is None or value == '':
          raise ValueError(f'there is no {name}.')
        elif name == 'client_id':
          numbers.append(self._add_clients([value]))
        elif name in _TIMES:
          numbers.append(self._time(value, line))
        else:
          numbers.append(_whole_number(name, value))
      except ValueError as e:
        raise self._refusal(line, str(e)) from e
    return numbers

  def _times_alike(self, values: Sequence[Any], line: int) -> Optional[list[int]]:
    """`_time` of each; or `None` if there is any doubt about one."""
    alike = times.parse_alike(values)
    if alike is None or self._time_format not in (None, alike[1]):
      return None
    self._set_time_format(alike[1], line)
    return alike[0].tolist()

  def _time(self, value: Any, line: int) -> int:
    if isinstance(value, bool) or not isinstance(value, (str, int)):
      raise ValueError(f'{value!r} is not a time.')
    text = str(value).strip()
    nanoseconds, time_format = times.parse_time(text)
    self._is_scientific |= times.is_scientific(text)
    if self._time_format not in (None, time_format):
      raise ValueError(
        f'{value!r} is {time_format}, but line {self._time_line} has '
        f'{self._time_format}; write all times of a log in one way.'
      )
    self._set_time_format(time_format, line)
    return nanoseconds

  def _set_time_format(self, time_format: str, line: int) -> None:
    if self._time_format is None:
      self._time_format, self._time_line = time_format, line

  def _add_clients(self, value: Any) -> int:
    if isinstance(value, str) and value.lstrip().startswith('['):
      try:
        value = _DECODER.decode(value)
      except ValueError as e:
        raise ValueError(f'client_ids are no JSON list: {e}.') from e
    elif isinstance(value, str):
      if ',' in value:
        # A name would be another one with a comma behind it.
        raise ValueError(
          f'client_ids must be separated by spaces or semicolons, got {value!r}.'
        )
      value = value.replace(';', ' ').split()
    if not isinstance(value, list):
      raise ValueError(f'client_ids must be a list, got {value!r}.')
    self._contributions.extend([self._client(client) for client in value])
    return len(value)

  def _client(self, value: Any) -> int:
    """The number of a client, by its id or what is read as that."""
    index = self._index_of_client.get(value) if type(value) is str else None
    if index is None:
      name = _client_id(value)
      index = self._index_of_client.setdefault(name, len(self._index_of_client))
    return index

  def _entries(self, file: TextIO) -> Iterator[tuple[int, Sequence[Any]]]:
    """Yields line numbers and rows, in which `_found` says where to look."""
    skipped = 0
    for first in file:
      if first.strip():
        break
      skipped += 1
    else:
      return
    lines = self._complete(itertools.chain([first], file))
    if first.lstrip()[0] == '{':
      yield from self._json_entries(lines, skipped)
    elif first.lstrip()[0] == '[':
      raise self._refusal(skipped + 1, 'write one JSON object a line, without a list.')
    else:
      delimiter = '\t' if first.count('\t') > first.count(',') else ','
      yield from self._csv_entries(lines, skipped, delimiter)

  def _complete(self, lines: Iterator[str]) -> Iterator[str]:
    """The lines, and a note if the last one does not end."""
    text = ''
    for text in lines:
      yield text
    if not text.endswith(('\n', '\r')):
      self._notes.append('the last line has no end; see that it was not cut off.')

  def _json_entries(
    self, lines: Iterator[str], skipped: int
  ) -> Iterator[tuple[int, Sequence[Any]]]:
    names: Optional[set[str]] = None
    sources: list[str] = []
    for line, text in enumerate(lines, skipped + 1):
      if not text.strip():
        continue
      try:
        entry = _DECODER.decode(text)
      except ValueError as e:
        raise self._refusal(line, f'this is not a JSON object: {e}.') from e
      if not isinstance(entry, dict):
        raise self._refusal(line, f'{text.strip()!r} is not a JSON object.')
      if names is None:
        names = set(entry)
        found = self._find_columns(list(entry), line)
        sources = list(found.values())
        self._found = {name: i for i, name in enumerate(found)}
      elif entry.keys() != names:
        self._check_names(entry, sources, line)
      yield line, [entry.get(source) for source in sources]

  def _check_names(self, entry: dict[str, Any], sources: list[str], line: int) -> None:
    """Refuses a line with a column that the first line did not have."""
    if late := set(self._recognise(list(entry), line).values()) - set(sources):
      raise self._refusal(
        line, f'{", ".join(sorted(late))} is here but not in the first line.'
      )

  def _csv_entries(
    self, lines: Iterator[str], skipped: int, delimiter: str
  ) -> Iterator[tuple[int, Sequence[Any]]]:
    rows = csv.reader(lines, delimiter=delimiter, strict=True, skipinitialspace=True)
    try:
      header = next(rows)
      found = self._find_columns(header, skipped + 1)
      self._found = {name: header.index(source) for name, source in found.items()}
      for row in rows:
        if not row:
          continue
        line = skipped + rows.line_num
        if len(row) != len(header):
          raise self._refusal(
            line, f'{len(row)} values where the header has {len(header)} names.'
          )
        yield line, row
    except csv.Error as e:
      kind = 'TSV' if delimiter == '\t' else 'CSV'
      raise self._refusal(skipped + rows.line_num, f'this is not {kind}: {e}.') from e

  def _find_columns(self, names: list[str], line: int) -> dict[str, str]:
    """The file's name of each column to read, with a place for its values."""
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
    self._found_name = found.get('client_id', '')
    if 'client_id' in found:  # Times are of participations, not of rounds.
      for name in _TIMES:
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
    self._numbers = {name: array.array('q') for name in found if name != 'population'}
    self._ignored = [name for name in names if name not in found.values()]
    if self._ignored:
      self._notes.append(f'columns left alone: {", ".join(self._ignored)}.')
    return found

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

  def finish(self) -> RoundLog:
    """Orders the lines and checks what they say together."""
    numbers = {
      name: np.frombuffer(values, np.int64) for name, values in self._numbers.items()
    }
    if 'client_id' in numbers:
      return self._of_participations(numbers['round'])
    order = self._order(numbers)
    columns = {name: values[order] for name, values in numbers.items()}
    lines = np.frombuffer(self._lines, np.int64)[order]
    self._check_order(columns, lines)
    clients = None
    if 'client_ids' in numbers:
      clients = self._clients(numbers['client_ids'], order)
      if 'cohort_size' in columns:
        wrong = np.flatnonzero(columns['client_ids'] != columns['cohort_size'])
        for i in wrong[:1]:
          raise self._refusal(
            lines[i],
            f'cohort_size is {columns["cohort_size"][i]}, but client_ids has '
            f'{columns["client_ids"][i]}. Add who is missing, or say that the column '
            'is something else (--columns=cohort_size=).',
          )
    return RoundLog(
      num_rounds=len(order),
      first_number=int(columns['round'][0]) if 'round' in columns else 0,
      completions=columns.get('completion_time'),
      starts=columns.get('start_time'),
      cohort_sizes=columns.get('cohort_size'),
      clients=clients,
      time_format=self._time_format,
      notes=tuple(self._notes),
      resolution=self._resolution(numbers),
    )

  def _of_participations(self, rounds: np.ndarray) -> RoundLog:
    """The log of which each line is one client in one round."""
    if 'client_id' not in self._columns and len(np.unique(rounds)) == len(rounds):
      raise ValueError(
        f'{self._path}: {self._found_name} may say whose the only participation of '
        'each round was, or something else of the round; say which: '
        f'--columns=client_id={self._found_name} or --columns=client_id=.'
      )
    first, last = int(rounds.min()), int(rounds.max())
    numbers, at = np.unique(rounds, return_index=True)
    lines = np.frombuffer(self._lines, np.int64)[at]
    try:
      self._check_order({'round': numbers}, lines)
    except ValueError as e:
      raise ValueError(
        f'{e} A round that nobody took part in has no line here: give a log with a '
        'line for each round, whose client_ids may be empty.'
      ) from e
    self._notes.append('each line is one participation of one client.')
    clients = np.frombuffer(self._contributions, np.int32)
    return RoundLog(
      num_rounds=last - first + 1,
      first_number=first,
      completions=None,
      starts=None,
      cohort_sizes=None,
      clients=Clients(tuple(self._index_of_client), clients, rounds - first),
      time_format=None,
      notes=tuple(self._notes),
      resolution=0,
    )

  def _resolution(self, numbers: dict[str, np.ndarray]) -> int:
    """Which power of ten all times are multiples of, if digits may be missing."""
    if not self._is_scientific:
      return 0
    written = np.concatenate([numbers[name] for name in _TIMES if name in numbers])
    unit = 1
    while unit < times.END_OF_TIMES and not np.any(written % (10 * unit)):
      unit *= 10
    return unit if unit > times.SECOND else 0

  def _order(self, numbers: dict[str, np.ndarray]) -> np.ndarray:
    """The lines to keep, as indices, in the order of rounds."""
    keys = numbers.get('round', numbers.get('completion_time'))
    if keys is None:
      return np.arange(len(self._lines))
    order = np.argsort(keys, kind='stable')
    if np.any(np.diff(order) < 0):
      self._notes.append('the lines were not in order and have been sorted.')
    repeated = self._repeated(numbers, keys, order)
    if repeated:
      self._notes.append(
        f'{len(repeated)} lines are there twice and were counted once, line '
        f'{min(self._lines[i] for i in repeated)} for example.'
      )
      order = order[~np.isin(order, repeated)]
    return order

  def _repeated(
    self, numbers: dict[str, np.ndarray], keys: np.ndarray, order: np.ndarray
  ) -> list[int]:
    """Lines that say the same of the same round as one before."""
    equal = np.diff(keys[order]) == 0
    candidates = order[np.append(equal, False) | np.append(False, equal)]
    if not len(candidates):
      return []
    ends = np.cumsum(numbers.get('client_ids', np.zeros(len(keys), np.int64)))
    seen: dict[Any, tuple[int, Any]] = {}
    repeated = []
    for i in candidates.tolist():
      first = ends[i - 1] if i else 0
      content = (
        tuple(int(values[i]) for values in numbers.values()),
        tuple(sorted(self._contributions[first : ends[i]])),
      )
      has_number = 'round' in numbers
      key = int(keys[i]) if has_number else content
      before, same_as = seen.setdefault(key, (i, content))
      if before == i:
        continue
      if not has_number:
        raise self._refusal(
          self._lines[i],
          f'the same as line {self._lines[before]}. Is it one round or two? '
          'Remove the line, or add a column with the number of the round.',
        )
      if content != same_as or self._ignored:
        other = 'with other values'
        if content == same_as:
          other = f'and {", ".join(self._ignored)} may differ, which is not read'
        raise self._refusal(
          self._lines[i],
          f'round {key} is also in line {self._lines[before]}, {other}. If each line '
          'is one participation, name the column of the client '
          '(--columns=client_id=NAME); if the log is of several populations, the '
          'column that tells them apart (--columns=population=NAME); else keep one of '
          'them.',
        )
      repeated.append(i)
    return repeated

  def _check_order(self, columns: dict[str, np.ndarray], lines: np.ndarray) -> None:
    rounds = columns.get('round')
    completions = columns.get('completion_time')
    starts = columns.get('start_time')
    if rounds is not None:
      if rounds[0] > 1:
        raise self._refusal(
          lines[0],
          f'the first round is number {rounds[0]}, not 0 or 1. Add the rounds before '
          'it, which count as well; if they were of another run, number this one anew.',
        )
      if len(gaps := np.flatnonzero(np.diff(rounds) > 1)):
        before, after = rounds[gaps[0]], rounds[gaps[0] + 1]
        raise self._refusal(
          lines[gaps[0] + 1],
          f'round {after} follows on round {before}. Add what is missing; if no result '
          'of it was ever released, number the rounds without it.',
        )
    if completions is not None:
      if len(back := np.flatnonzero(np.diff(completions) < 0)):
        raise self._refusal(
          lines[back[0] + 1],
          f'this round is complete before the one before it, in line {lines[back[0]]}.',
        )
      if starts is not None and len(late := np.flatnonzero(starts > completions)):
        raise self._refusal(lines[late[0]], 'this round starts after its completion.')

  def _clients(self, sizes: np.ndarray, order: np.ndarray) -> Clients:
    round_of_line = np.full(len(sizes), -1)
    round_of_line[order] = np.arange(len(order))
    rounds = np.repeat(round_of_line, sizes)
    clients = np.frombuffer(self._contributions, np.int32)
    if not len(clients):
      raise ValueError(f'{self._path} names no client in any round.')
    kept = rounds >= 0
    return Clients(tuple(self._index_of_client), clients[kept], rounds[kept])

  def _refusal(self, line: int, reason: str) -> ValueError:
    return ValueError(f'{self._path}, line {line}: {reason}')


def _client_id(value: Any) -> str:
  """The id of a client, in the one way to write it."""
  if isinstance(value, bool) or not isinstance(value, (str, int)):
    raise ValueError(f'the client {value!r} is neither a text nor a whole number.')
  try:
    is_float = isinstance(value, _Number)
    name = ids.of_number(float(value)) if is_float else ids.of_text(str(value))
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


def _whole_number(name: str, value: Any) -> int:
  if isinstance(value, str) and _WHOLE.fullmatch(value):
    value = int(value)
  if type(value) is not int or not 0 <= value < 10**18:
    raise ValueError(f'{name} must be a whole number from 0, got {value!r}.')
  return value


def _whole_numbers_alike(values: Sequence[Any]) -> Optional[list[int]]:
  """`_whole_number` of each; or `None` if there is any doubt about one."""
  kinds = set(map(type, values))
  if kinds == {str}:
    digits = all(map(str.isdecimal, values)) and all(map(str.isascii, values))
    if not digits or max(map(len, values)) > 18:
      return None
    return list(map(int, values))
  if kinds == {int} and 0 <= min(values) and max(values) < 10**18:
    return list(values)
  return None
