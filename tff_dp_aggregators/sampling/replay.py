"""Cohorts from a file, which are checked against a stated schema.

The first line of a file states the schema; each other line is a round.

    {"format": "tff_dp_aggregators schedule", "version": 1, "schema": {...},
     "num_clients": 100, "clients_per_round": 3.0}
    [17, 4, 99]
    {"attempts": [{"requested": [5, 0, 8], "reporting": [8]},
                  {"requested": [1, 7, 2], "reporting": [1, 2]}]}

A round is a list of client numbers if all clients that were asked reported, or else an
object with all attempts, the last of which counted. A file from another source may lack
the first line; the reader then has to pass its content.
"""

import dataclasses
import hashlib
import json
from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Optional, Union

import msgspec
import numpy as np

from tff_dp_aggregators.base import strict_json
from tff_dp_aggregators.sampling import schedule as schedule_lib

_Round = list[schedule_lib.Attempt]


class _Attempt(msgspec.Struct, forbid_unknown_fields=True):
  requested: list[int]
  reporting: list[int]


class _Attempts(msgspec.Struct, forbid_unknown_fields=True):
  attempts: Annotated[list[_Attempt], msgspec.Meta(min_length=1)]


@dataclasses.dataclass(frozen=True)
class Replay(schedule_lib.Schedule):
  """The cohorts of a file, written by `Schedule.save` or from another source.

  The schema's limits for each client and for the size of cohorts are checked. No check
  can tell whether cohorts were drawn at random and in secret.

  Raises:
    ValueError: If the file cannot be read, or does not keep the schema; the message
      names round and client.
  """

  name: ClassVar[str] = 'replay'

  path: str  # Path of the file.
  # The header of the file; `None` if its first line has it.
  stated: Optional[schedule_lib.Header] = None
  num_clients: int = dataclasses.field(init=False)
  clients_per_round: float = dataclasses.field(init=False)
  sha256: str = dataclasses.field(init=False)  # SHA-256 of the file's content.
  _header: schedule_lib.Header = dataclasses.field(
    init=False, repr=False, compare=False
  )
  _rounds: list[_Round] = dataclasses.field(init=False, repr=False, compare=False)

  def __post_init__(self) -> None:
    if not (self.stated is None or isinstance(self.stated, schedule_lib.Header)):
      raise TypeError(f'stated must be a sampling.Header; got {self.stated!r}.')
    self.__dict__['path'] = str(self.path)
    with open(self.path, 'rb') as file:
      content = file.read()
    in_file, rounds = _parse(content, self.path)
    header = self.stated or in_file
    if header is None or in_file not in (None, header):
      raise ValueError(
        f'{self.path} states {in_file} in its first line, and {self.stated} is stated '
        'beside it; give stated=sampling.Header(schema, num_clients, '
        'clients_per_round) for a file without it.'
      )
    if len(rounds) != header.schema.num_rounds:
      raise ValueError(
        f'{self.path} has {len(rounds)} rounds, but its schema is for '
        f'{header.schema.num_rounds}.'
      )
    checker = schedule_lib.Rounds(f'of {self.path}', header)
    for attempts in rounds:
      checker.add(attempts)
    self.__dict__.update(
      num_clients=header.num_clients,
      clients_per_round=header.clients_per_round,
      sha256=hashlib.sha256(content).hexdigest(),
      _header=header,
      _rounds=rounds,
    )

  @property
  def schema(self) -> Any:
    """The schema that is stated for the file."""
    return self._header.schema

  @property
  def checksum(self) -> str:
    """SHA-256 over the rounds and the statement, independent of the file's path."""
    text = json.dumps([self.sha256, self._header.to_json()], sort_keys=True)
    return 'sha256:' + hashlib.sha256(text.encode()).hexdigest()

  def for_clients(self, ids: Sequence[Any]) -> 'Replay':
    """Returns itself: the file says who takes part."""
    return self

  def attempts(self, round_num: int) -> tuple[schedule_lib.Attempt, ...]:
    """All attempts at a round, of which only the last one is completed."""
    return tuple(
      schedule_lib.Attempt(requested.copy(), reporting.copy(), completed)
      for requested, reporting, completed in self._rounds[self.check_round(round_num)]
    )

  def _fields_to_json(self) -> dict[str, Any]:
    stated = None if self.stated is None else self.stated.to_json()
    return {'path': self.path, 'stated': stated, 'sha256': self.sha256}

  @classmethod
  def from_fields(cls, values: dict[str, Any]) -> 'Replay':
    """Reads the file again; raises ValueError if it has changed."""
    fields = dict(values)
    sha256 = fields.pop('sha256', None)
    if fields.get('stated') is not None:
      fields['stated'] = schedule_lib.Header.from_json(fields['stated'])
    read = cls(**fields)
    if read.sha256 != sha256:
      raise ValueError(
        f'{read.path} has SHA-256 {read.sha256}, but the schedule that was used had '
        f'{sha256}; give the file that was used.'
      )
    return read


def _parse(
  content: bytes, path: str
) -> tuple[Optional[schedule_lib.Header], list[_Round]]:
  """The header of a file, if it has one, and the attempts of its rounds."""
  header: Optional[schedule_lib.Header] = None
  rounds = []
  for number, line in enumerate(content.splitlines(), 1):
    try:
      data = strict_json.loads(line.decode())
      if number == 1 and line.startswith(b'{"format"'):
        file_format = {name: data.pop(name, None) for name in schedule_lib.FILE_FORMAT}
        if file_format != schedule_lib.FILE_FORMAT:
          raise ValueError(f'it is of format {file_format}, which is not known here')
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
  parsed = strict_json.convert(data, Union[list[int], _Attempts])
  if isinstance(parsed, list):
    clients = np.array(parsed, np.int64)
    return [schedule_lib.Attempt(clients, clients, True)]
  attempts = [
    (np.array(each.requested, np.int64), np.array(each.reporting, np.int64))
    for each in parsed.attempts
  ]
  last = len(attempts) - 1
  return [schedule_lib.Attempt(*each, i == last) for i, each in enumerate(attempts)]
