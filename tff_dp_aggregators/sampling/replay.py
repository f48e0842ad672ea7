"""Cohorts from a file, held against the schema that they are stated to keep."""

import dataclasses
import functools
import hashlib
import json
import math
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, NamedTuple, Optional

from tff_dp_aggregators.sampling import files
from tff_dp_aggregators.sampling import schedule as schedule_lib
from tff_dp_aggregators.sampling import watch

# So many bits tell draws apart: cohorts that are as rare are the same by no chance.
_BITS = 40.0


@dataclasses.dataclass(frozen=True)
class Replay(schedule_lib.Schedule):
  """The cohorts of a file that `Schedule.save` wrote, or that comes from elsewhere.

  `sampling.files` has the format. What the schema says of each client, and
  of the size of cohorts, is checked. That cohorts were drawn by chance, as a schema of
  sampling has it, and that nobody else knows the file, no check can tell.

  Attributes:
    path: Of the file.
    stated: What the file is stated to be; `None` if its first line states it.
    sha256: Of the file's content.

  Raises:
    FileNotFoundError: If there is no such file.
    TypeError: If `stated` is something else.
    ValueError: If the file cannot be read, or does not keep the schema; the message
      names round and client.
  """

  kind: ClassVar[str] = 'replay'

  path: str
  stated: Optional[files.Header] = None
  num_clients: int = dataclasses.field(init=False)
  clients_per_round: float = dataclasses.field(init=False)
  sha256: str = dataclasses.field(init=False)

  def __post_init__(self) -> None:
    if not (self.stated is None or isinstance(self.stated, files.Header)):
      raise TypeError(f'stated must be a sampling.Header; got {self.stated!r}.')
    object.__setattr__(self, 'path', str(self.path))
    read = self._read
    object.__setattr__(self, 'num_clients', read.header.num_clients)
    object.__setattr__(self, 'clients_per_round', read.header.clients_per_round)
    object.__setattr__(self, 'sha256', read.sha256)

  @functools.cached_property
  def _read(self) -> '_Read':
    with open(self.path, 'rb') as file:
      content = file.read()
    try:
      text = content.decode()
    except UnicodeDecodeError as e:
      raise ValueError(f'{self.path} is not a text in UTF-8: {e}.') from e
    found, rounds = files.from_text(text, self.path)
    header = self._agree(found)
    watch.check(self.path, header, rounds)
    return _Read(header, rounds, hashlib.sha256(content).hexdigest())

  def _agree(self, found: Optional[files.Header]) -> files.Header:
    """What is stated, in the file or beside it."""
    header = self.stated or found
    if header is None:
      raise ValueError(
        f'{self.path} does not state its schema in its first line; give '
        'stated=sampling.Header(schema, num_clients, clients_per_round).'
      )
    if found is not None and found != header:
      raise ValueError(f'{self.path} states {found}, and not {header}.')
    return header

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
    asked = self._read.rounds[self.check_round(round_num)]
    last = len(asked) - 1
    return tuple(
      schedule_lib.Attempt(requested.copy(), reporting.copy(), attempt == last)
      for attempt, (requested, reporting) in enumerate(asked)
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
      read['stated'] = files.Header.from_json(read['stated'])
    made = cls(**read)
    if made.sha256 != sha256:
      raise ValueError(
        f'{made.path} has SHA-256 {made.sha256}, but the schedule that was used had '
        f'{sha256}; give the file that was used.'
      )
    return made


def _hashes(rounds: Sequence[Sequence[files.Asked]], num_clients: int) -> Iterator[str]:
  """Of who was asked from each round on, in so many rounds that no chance repeats them.

  By one that they share, files are found that have rounds of the same draw, wherever
  they begin and in whatever order they name clients.
  """
  cohorts = [[sorted(requested.tolist()) for requested, _ in each] for each in rounds]
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
  """Of which of all cohorts of a size one is."""
  ways = (
    math.lgamma(num_clients + 1)
    - math.lgamma(size + 1)
    - math.lgamma(num_clients - size + 1)
  )
  return ways / math.log(2)


class _Read(NamedTuple):
  """What a file says: its header, attempts by round, and SHA-256."""

  header: files.Header
  rounds: list[list[files.Asked]]
  sha256: str
