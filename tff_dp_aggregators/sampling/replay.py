"""Cohorts from a file, held against the schema that they are stated to keep.

A file has a line that states the schema, and a line for each round.

    {"format": "tff_dp_aggregators schedule", "version": 1, "schema": {...},
     "num_clients": 100, "clients_per_round": 3.0}
    [17, 4, 99]
    {"attempts": [{"requested": [5, 0, 8], "reporting": [8]},
                  {"requested": [1, 7, 2], "reporting": [1, 2]}]}

A round is a list of client numbers, where all that were asked reported, or an object
with all attempts, the last of which counted. A file of another source may leave out the
first line, if the reader knows what it would state.
"""

import dataclasses
import functools
import hashlib
import json
import math
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, ClassVar, NamedTuple, Optional, Union

import msgspec
import numpy as np

from tff_dp_aggregators.base import strict_json
from tff_dp_aggregators.sampling import schedule as schedule_lib

# So many bits tell draws apart: cohorts that are as rare are the same by no chance.
_BITS = 40.0

_Round = list[schedule_lib.Attempt]


class _Asked(msgspec.Struct, forbid_unknown_fields=True):
  requested: list[int]
  reporting: list[int]


class _Attempts(msgspec.Struct, forbid_unknown_fields=True):
  attempts: Annotated[list[_Asked], msgspec.Meta(min_length=1)]


@dataclasses.dataclass(frozen=True)
class Replay(schedule_lib.Schedule):
  """The cohorts of a file that `Schedule.save` wrote, or that comes from elsewhere.

  What the schema says of each client, and of the size of cohorts, is checked; that
  cohorts were drawn by chance, and in secret, no check can tell.

  Raises:
    ValueError: If the file cannot be read, or does not keep the schema; the message
      names round and client.
  """

  name: ClassVar[str] = 'replay'

  path: str  # Path of the file.
  # What the file is stated to be; `None` if its first line states it.
  stated: Optional[schedule_lib.Header] = None
  num_clients: int = dataclasses.field(init=False)
  clients_per_round: float = dataclasses.field(init=False)
  sha256: str = dataclasses.field(init=False)  # That of the file's content.

  def __post_init__(self) -> None:
    if not (self.stated is None or isinstance(self.stated, schedule_lib.Header)):
      raise TypeError(f'stated must be a sampling.Header; got {self.stated!r}.')
    self.__dict__['path'] = str(self.path)
    header = self._read.header
    self.__dict__.update(
      num_clients=header.num_clients,
      clients_per_round=header.clients_per_round,
      sha256=self._read.sha256,
    )

  @functools.cached_property
  def _read(self) -> '_Read':
    with open(self.path, 'rb') as file:
      content = file.read()
    found, rounds = _from_text(content, self.path)
    header = self.stated or found
    if header is None or found not in (None, header):
      raise ValueError(
        f'{self.path} states {found} in its first line, and {self.stated} is stated '
        'beside it; give stated=sampling.Header(schema, num_clients, '
        'clients_per_round) for a file without it.'
      )
    if len(rounds) != header.schema.num_rounds:
      raise ValueError(
        f'{self.path} has {len(rounds)} rounds, but its schema is for '
        f'{header.schema.num_rounds}.'
      )
    checked = schedule_lib.Rounds(f'of {self.path}', header)
    for attempts in rounds:
      checked.add(attempts)
    return _Read(header, rounds, hashlib.sha256(content).hexdigest())

  @property
  def schema(self) -> Any:
    """What is stated."""
    return self._read.header.schema

  @property
  def checksum(self) -> str:
    """SHA-256 over the rounds and what is stated, wherever the file is."""
    text = json.dumps([self.sha256, self._read.header.to_json()], sort_keys=True)
    return 'sha256:' + hashlib.sha256(text.encode()).hexdigest()

  def for_clients(self, ids: Sequence[Any]) -> 'Replay':
    """Itself: the file says who takes part."""
    return self

  def attempts(self, round_num: int) -> tuple[schedule_lib.Attempt, ...]:
    """All attempts at a round; the last one is completed, and no other."""
    return tuple(
      schedule_lib.Attempt(requested.copy(), reporting.copy(), completed)
      for requested, reporting, completed in self._read.rounds[
        self.check_round(round_num)
      ]
    )

  def _fields_to_json(self) -> dict[str, Any]:
    stated = None if self.stated is None else self.stated.to_json()
    return {
      'path': self.path,
      'stated': stated,
      'sha256': self.sha256,
      'cohorts': list(_hashes(self._read.rounds, self.num_clients)),
    }

  @classmethod
  def from_fields(cls, values: dict[str, Any]) -> 'Replay':
    """Reads the file again, if it is still the same."""
    read = dict(values)
    sha256 = read.pop('sha256', None)
    read.pop('cohorts', None)  # They follow from the file.
    if read.get('stated') is not None:
      read['stated'] = schedule_lib.Header.from_json(read['stated'])
    made = cls(**read)
    if made.sha256 != sha256:
      raise ValueError(
        f'{made.path} has SHA-256 {made.sha256}, but the schedule that was used had '
        f'{sha256}; give the file that was used.'
      )
    return made


def _hashes(rounds: Sequence[_Round], num_clients: int) -> Iterator[str]:
  """Hashes of who was asked from each round on, in as many as tell draws apart."""
  cohorts = [[sorted(a.requested.tolist()) for a in attempts] for attempts in rounds]
  bits = [sum(_bits(len(each), num_clients) for each in asked) for asked in cohorts]
  end, known = 0, 0.0
  for begin in range(len(cohorts)):
    while end < len(cohorts) and known < _BITS:
      known += bits[end]
      end += 1
    if known < _BITS:
      return
    text = json.dumps(cohorts[begin:end])
    yield hashlib.sha256(text.encode()).hexdigest()[:16]
    known -= bits[begin]


def _bits(size: int, num_clients: int) -> float:
  """How many bits tell which of all cohorts of a size one is."""
  ways = (
    math.lgamma(num_clients + 1)
    - math.lgamma(size + 1)
    - math.lgamma(num_clients - size + 1)
  )
  return ways / math.log(2)


class _Read(NamedTuple):
  """What a file says: its header, attempts by round, and SHA-256."""

  header: schedule_lib.Header
  rounds: list[_Round]
  sha256: str


def _from_text(
  content: bytes, path: str
) -> tuple[Optional[schedule_lib.Header], list[_Round]]:
  """The header of a file, if it has one, and the attempts of its rounds."""
  header: Optional[schedule_lib.Header] = None
  rounds = []
  for number, line in enumerate(content.splitlines(), 1):
    try:
      data = strict_json.loads(line.decode())
      if number == 1 and line.startswith(b'{"format"'):
        stated = {name: data.pop(name, None) for name in schedule_lib.FILE_FORMAT}
        if stated != schedule_lib.FILE_FORMAT:
          raise ValueError(f'it is of format {stated}, which is not known here')
        header = schedule_lib.Header.from_json(data)
      else:
        rounds.append(_attempts(data))
    except (TypeError, ValueError, OverflowError) as e:
      raise ValueError(
        f'line {number} of {path} is not the cohort of a round, a list of client '
        f'numbers (or what states them, in line 1): {e}; got {line[:200]!r}'
      ) from e
  return header, rounds


def _attempts(data: Any) -> _Round:
  read = strict_json.convert(data, Union[list[int], _Attempts])
  if isinstance(read, list):
    clients = np.array(read, np.int64)
    return [schedule_lib.Attempt(clients, clients, True)]
  asked = [
    (np.array(each.requested, np.int64), np.array(each.reporting, np.int64))
    for each in read.attempts
  ]
  last = len(asked) - 1
  return [schedule_lib.Attempt(*each, i == last) for i, each in enumerate(asked)]
