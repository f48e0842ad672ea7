"""Schedules: the cohorts of all rounds, and the schema that accountants read.

Cohorts follow from the schedule's fields (with its seed) and the round alone: a
schedule that is made again has the same cohorts.
"""

import abc
import collections
import dataclasses
import functools
import hashlib
import json
from collections.abc import Iterable, Sequence
from typing import Annotated, Any, ClassVar, NamedTuple, Optional, Union

import msgspec
import numpy as np

from tff_dp_aggregators import strategies
from tff_dp_aggregators.base import checks
from tff_dp_aggregators.base import ids as ids_lib
from tff_dp_aggregators.base import new_files
from tff_dp_aggregators.base import strict_json
from tff_dp_aggregators.sampling import draws
from tff_dp_aggregators.sampling import scheme
from tff_dp_aggregators.strategies import participation as participation_lib

# The format in the first line of a schedule's file.
_FILE_FORMAT = {'format': 'tff_dp_aggregators schedule', 'version': 1}
_TWICE = (
  '; a client that takes part twice in a round is counted with twice its clip norm, '
  'which no epsilon covers.'
)


class Attempt(NamedTuple):
  """One attempt at a round."""

  requested: np.ndarray  # Clients asked to take part: int64 of shape [cohort].
  reporting: np.ndarray  # Those that sent an update, in the same order.
  # Whether enough clients reported for a result; an aborted attempt releases nothing.
  completed: bool


@dataclasses.dataclass(frozen=True)
class Dropouts:
  """Simulated drop-outs, each from seed, round, attempt and client alone."""

  rate: float  # Probability that a client does not report, at least 0 and below 1.
  seed: int  # Determines who drops out.

  def __post_init__(self) -> None:
    if not 0 <= checks.check_number('rate', self.rate) < 1:
      raise ValueError(f'rate must be at least 0 and below 1; got {self.rate}.')
    self.__dict__.update(rate=float(self.rate), seed=check_seed(self.seed))

  def reporting(
    self,
    round_num: int,
    attempt: int,
    cohort: np.ndarray,
    keys: Optional[np.ndarray] = None,
  ) -> np.ndarray:
    """The clients of a cohort that report, in the same order."""
    client_keys = cohort if keys is None else keys
    purpose = f'drop-outs of attempt {int(attempt)}'
    hashed = draws.of_step(self.seed, round_num, client_keys, purpose)
    return cohort[draws.uniform(hashed) >= self.rate]


def check_seed(seed: int, name: str = 'seed') -> int:
  """Returns `seed`, or raises unless it is a whole number from 0 to 2^128 - 1."""
  seed = checks.check_int(name, seed, at_least=0)
  if seed >= 2**128:
    raise ValueError(f'{name} must be below 2^128; got {seed}.')
  return seed


@dataclasses.dataclass(frozen=True)
class Header:
  """The statement about a schedule in the first line of its file."""

  schema: scheme.Schema  # The schema that accountants read.
  num_clients: int  # Number of clients to choose from.
  clients_per_round: float  # The mean's denominator.

  def __post_init__(self) -> None:
    scheme.of(self.schema)
    num_clients = checks.check_positive_int('num_clients', self.num_clients)
    size = checks.check_positive('clients_per_round', self.clients_per_round)
    # It is public, so with secret draws it must not reveal the number of clients.
    if size > num_clients and not scheme.is_sampled(self.schema):
      raise ValueError(
        f'clients_per_round must be at most num_clients={num_clients}; got {size}.'
      )
    self.__dict__.update(num_clients=num_clients, clients_per_round=size)

  def to_json(self) -> dict[str, Any]:
    """JSON-ready values for `from_json`."""
    return _to_json(self)

  @classmethod
  def from_json(cls, data: dict[str, Any]) -> 'Header':
    """Makes a header from the values of `to_json`."""
    return cls(**_from_json(data))


def _to_json(statement: Any) -> dict[str, Any]:
  """JSON-ready values of the fields of a header, drop-outs or a schedule."""

  def written(value: Any) -> Any:
    if isinstance(value, (Header, Dropouts)):
      return _to_json(value)
    return scheme.to_json(value) if dataclasses.is_dataclass(value) else value

  fields = (each.name for each in dataclasses.fields(statement) if each.init)
  return {name: written(getattr(statement, name)) for name in fields}


def _from_json(data: dict[str, Any]) -> dict[str, Any]:
  """The fields for the values of `_to_json`."""
  readers: dict[str, Any] = {
    **dict.fromkeys(('schema', 'participation', 'sampling'), scheme.from_json),
    'dropouts': lambda value: Dropouts(**value),
    'stated': Header.from_json,
  }
  return {
    name: readers[name](value) if name in readers and value is not None else value
    for name, value in data.items()
  }


class Schedule(abc.ABC):
  """Base class of schedules: who takes part in which round.

  A schedule is a frozen dataclass, and its fields determine it. Clients are numbered
  from 0 to `num_clients - 1`. `for_clients`, which `learning.train` calls, makes the
  schedule whose draws for a client follow from its id: adding or removing a client
  does not change the draws of others, where the guarantee relies on sampling.
  """

  name: ClassVar[str]  # The name of the class in JSON.
  num_clients: int  # Number of clients to choose from.
  # The mean's denominator, which is public: the expected number of clients asked.
  clients_per_round: float
  # Minimum number of clients that have to report; `None` for any, or if unknown.
  reporting_goal: Optional[int] = None

  @property
  @abc.abstractmethod
  def schema(self) -> Any:
    """What accountants read: limits on participation, or a sampling scheme."""

  @property
  def header(self) -> Header:
    """The header of the schedule's file."""
    return Header(self.schema, self.num_clients, float(self.clients_per_round))

  @abc.abstractmethod
  def attempts(self, round_num: int) -> tuple[Attempt, ...]:
    """All attempts at a round (from 0), of which only the last one is completed."""

  def for_clients(self, ids: Sequence[Any]) -> 'Schedule':
    """Returns itself, unless draws follow from the clients' ids and the seed."""
    del ids
    return self

  @property
  def num_rounds(self) -> int:
    """Rounds in all, n."""
    return int(self.schema.num_rounds)

  def cohort(self, round_num: int) -> np.ndarray:
    """The clients whose updates are in the round's result: int64 of shape [cohort]."""
    return self.attempts(round_num)[-1].reporting

  def to_json(self) -> dict[str, Any]:
    """JSON-ready values for `sampling.schedule_from_json`."""
    return {'schedule': self.name, **_to_json(self)}

  @classmethod
  def from_fields(cls, values: dict[str, Any]) -> 'Schedule':
    """Makes the schedule from the values of `to_json` without the name."""
    return cls(**_from_json(values))

  @property
  def checksum(self) -> str:
    """SHA-256 over `to_json`: schedules with the same one have the same cohorts."""
    text = json.dumps(self.to_json(), sort_keys=True, separators=(',', ':'))
    return 'sha256:' + hashlib.sha256(text.encode()).hexdigest()

  def save(self, path: str) -> None:
    """Writes all rounds to a new file that `Replay` reads."""
    lines: list[Any] = [{**_FILE_FORMAT, **self.header.to_json()}]
    for this_round in range(self.num_rounds):
      attempts = self.attempts(this_round)
      requested, reporting, _ = attempts[-1]
      if len(attempts) == 1 and len(requested) == len(reporting):
        lines.append(requested.tolist())
        continue
      attempts_json = [
        {'requested': each.requested.tolist(), 'reporting': each.reporting.tolist()}
        for each in attempts
      ]
      lines.append({'attempts': attempts_json})
    new_files.write_new(path, ''.join(json.dumps(line) + '\n' for line in lines))

  def check_round(self, round_num: int) -> int:
    """Returns `round_num`, or raises ValueError if there is no such round."""
    checks.check_within('round_num', round_num, 0, self.num_rounds - 1)
    return checks.check_int('round_num', round_num)


@dataclasses.dataclass(frozen=True)
class SampledSchedule(Schedule):
  """The cohorts that a sampling scheme draws.

  Every client is drawn by its own key. A client that drops out still counts as drawn.
  Whoever knows the seed knows who was drawn: the guarantee holds towards others only.
  """

  sampling: Any  # The scheme, which accountants read.
  num_clients: int  # Number of clients to draw from; the scheme's, if it states one.
  seed: int  # Determines the cohorts.
  dropouts: Optional[Dropouts] = None  # `None` if all clients report.
  # The mean's denominator, a public constant. `None` for the expected size of a cohort,
  # which reveals the number of clients.
  clients_per_round: Optional[float] = None  # type: ignore[assignment]

  def __post_init__(self) -> None:
    if not isinstance(self.sampling, scheme.SampledScheme):
      raise TypeError(f'sampling must be a scheme of sampling; got {self.sampling!r}.')
    num_clients = checks.check_positive_int('num_clients', self.num_clients)
    groups = getattr(self.sampling, 'num_groups', 1)
    scheme.check_groups_have_clients(num_clients, groups)
    for name, assumed in _stated_by(self.sampling).items():
      if getattr(self, name) not in (None, assumed):
        raise ValueError(
          f'{name} must be {assumed}, which the sampling assumes; got '
          f'{getattr(self, name)}.'
        )
    size: Any = self.clients_per_round
    if size is None:
      size = self.sampling.expected_cohort(num_clients)
    size = checks.check_positive('clients_per_round', size)
    self.__dict__.update(
      num_clients=num_clients,
      seed=check_seed(self.seed),
      clients_per_round=int(size) if self.sampling.has_public_sizes else size,
    )

  @property
  def name(self) -> str:  # type: ignore[override]
    """The name of the scheme's schedules."""
    return str(self.sampling.schedule_name)

  @property
  def schema(self) -> Any:
    """The sampling."""
    return self.sampling

  def for_clients(self, ids: Sequence[Any]) -> 'SampledSchedule':
    """Returns the schedule whose draws follow from the clients' ids and the seed."""
    if len(ids) != self.num_clients:
      raise ValueError(
        f'ids must be of all num_clients={self.num_clients} clients; got {len(ids)}.'
      )
    draws.check_ids(ids)
    bound = dataclasses.replace(self)  # Without cached draws.
    bound.__dict__['keys'] = draws.keys_of_ids(ids, self.seed)
    return bound

  @functools.cached_property
  def keys(self) -> np.ndarray:
    """The clients' keys for draws, by number: uint64 of shape [num_clients]."""
    return draws.keys_of_ids(range(self.num_clients), self.seed)

  @functools.cached_property
  def _drawing(self) -> Any:
    return self.sampling.drawing(self.seed, self.keys)

  def attempts(self, round_num: int) -> tuple[Attempt, ...]:
    """The only attempt at a round."""
    drawn = self._drawing(self.check_round(round_num))
    return attempts_of(round_num, [drawn], self.dropouts, self.keys)

  def to_json(self) -> dict[str, Any]:
    """As for all schedules, without the numbers that the scheme states."""
    stated = _stated_by(self.sampling)
    return {k: v for k, v in super().to_json().items() if k not in stated}

  @classmethod
  def from_fields(cls, values: dict[str, Any]) -> 'Schedule':
    """As for all schedules, but JSON lacks the numbers that the scheme states."""
    stated = _stated_by(scheme.from_json(values['sampling']))
    return super().from_fields({**stated, **values})


def _stated_by(sampling: scheme.Scheme) -> dict[str, Any]:
  """The fields of a schedule that its scheme states."""
  names = ('num_clients', 'clients_per_round')
  return {name: getattr(sampling, name) for name in names if hasattr(sampling, name)}


def attempts_of(
  round_num: int,
  requested: Sequence[np.ndarray],
  dropouts: Optional[Dropouts],
  keys: Optional[np.ndarray] = None,
) -> tuple[Attempt, ...]:
  """Makes the attempts for the cohorts that were asked; the last one is completed."""
  attempts = []
  for attempt, cohort in enumerate(requested):
    asked = cohort.astype(np.int64)  # A copy, so that the original cannot be changed.
    reporting = asked
    if dropouts is not None:
      cohort_keys = None if keys is None else keys[asked]
      reporting = dropouts.reporting(round_num, attempt, asked, cohort_keys)
    attempts.append(Attempt(asked, reporting, attempt == len(requested) - 1))
  return tuple(attempts)


class ParticipationWatch:
  """Refuses rounds in which a client would take part too often or too soon.

  For custom training loops that choose clients without a schedule. Only this object
  remembers the rounds: after resuming from a checkpoint, check earlier rounds again.

  Example:
    >>> from tff_dp_aggregators import strategies
    >>> limits = strategies.Participation(num_rounds=10, min_separation=3)
    >>> watch = ParticipationWatch(limits)
    >>> watch.check(0, ['ann', 'bob'])
    ['ann', 'bob']
    >>> watch.check(1, ['bob'])
    Traceback (most recent call last):
    ValueError: round 1: client 'bob' took part in round 0 as well, and in 1 in all; the
      difference must be at least 3, for at most 4 rounds.
  """

  def __init__(self, participation: strategies.Participation):
    self._limits = participation_lib.require(participation)
    self._numbers: dict[Any, int] = {}  # Clients' numbers, in order of appearance.
    self._participations = _Participations(participation)
    self._next = 0

  def check(self, round_num: int, clients: Iterable[Any]) -> list[Any]:
    """Returns the clients of a round that is about to run, if they may take part.

    Args:
      round_num: The round, from 0, after all rounds that were checked.
      clients: Ids of the clients. Different spellings of an id, such as 7, '7' and
        ' 7', are one client, as in round logs.

    Raises:
      ValueError: If a client may not take part, or an id is missing (NaN, 'NA'). The
        round is not remembered then.
    """
    if isinstance(clients, (str, bytes)):
      raise TypeError(f'clients must be a list of ids; got the text {clients!r}.')
    limits, cohort = self._limits, list(clients)
    round_num = checks.check_int('round_num', round_num, at_least=0)
    where = f'round {round_num}'
    if not self._next <= round_num < limits.num_rounds:
      raise ValueError(
        f'{where} is not one of rounds {self._next} to {limits.num_rounds - 1}, which '
        'are planned and not checked yet. To begin anew, make another watch.'
      )
    names = [ids_lib.of_client(each) for each in cohort]
    twice = [each for each, n in collections.Counter(names).items() if n > 1]
    if twice:
      raise ValueError(f'{where} has client {twice[0]!r} twice{_TWICE}')
    numbers = [self._numbers.setdefault(each, len(self._numbers)) for each in names]
    self._participations.add(where, round_num, np.array(numbers, np.int64), cohort)
    self._next = round_num + 1
    return cohort


def check_cohort(where: str, clients: Any, num_clients: int) -> np.ndarray:
  """Returns the clients of a cohort as int64, if they are valid and distinct."""
  clients = np.asarray(clients)
  if clients.ndim != 1 or (clients.size and clients.dtype.kind not in 'iu'):
    raise TypeError(
      f'{where} must be a vector of client numbers, int64; got {clients.dtype} of '
      f'shape {list(clients.shape)}.'
    )
  clients = clients.astype(np.int64, copy=False)
  unknown = clients[(clients < 0) | (clients >= num_clients)]
  if len(unknown):
    raise ValueError(
      f'{where} has client {unknown[0]}; clients are numbered from 0 to '
      f'{num_clients - 1}.'
    )
  ordered = np.sort(clients)
  twice = ordered[1:][ordered[1:] == ordered[:-1]]
  if len(twice):
    raise ValueError(f'{where} has client {twice[0]} twice{_TWICE}')
  return clients


class Watch:
  """Checks each round of a schedule against its header and all earlier rounds."""

  def __init__(self, schedule: Schedule, source: Optional[str] = None):
    self._schedule, self._header = schedule, schedule.header
    self._source = source or type(schedule).__name__
    self._scheme = scheme.of(self._header.schema)
    limits, num_clients = self._scheme.limits, self._header.num_clients
    self._participations = _Participations(limits, num_clients)
    self._checked = 0  # Number of rounds checked.

  def attempts(self, round_num: int) -> tuple[Attempt, ...]:
    """The attempts at a round, if it and all earlier rounds keep the schema."""
    for earlier in range(self._checked, round_num):  # Rounds of a resumed run.
      self._check(earlier, self._schedule.attempts(earlier))
    attempts = self._schedule.attempts(round_num)
    self._check(round_num, attempts)
    return attempts

  def _check(self, this_round: int, attempts: Sequence[Attempt]) -> None:
    where = f'round {this_round} of {self._source}'
    num_clients = self._header.num_clients
    if len(attempts) > 1 and self._scheme.is_sampled:
      raise ValueError(
        f'{where} was tried {len(attempts)} times, and a schema of sampling allows one '
        'attempt: another makes its clients more likely than the sampling says.'
      )
    most, least = self._scheme.largest_cohort, 0
    if self._scheme.has_public_sizes:
      most = least = self._scheme.expected_cohort(num_clients)
    for requested, reporting, _ in attempts:
      check_cohort(where, requested, num_clients)
      if reporting is not requested:  # They are the same array without drop-outs.
        check_cohort(where, reporting, num_clients)
        unasked = np.setdiff1d(reporting, requested)
        if len(unasked):
          raise ValueError(
            f'{where}: client {unasked[0]} reported and was not requested.'
          )
      if most is not None and not least <= len(requested) <= most:
        raise ValueError(
          f'{where} has {len(requested)} clients; its schema has cohorts from {least} '
          f'to {most}.'
        )
    self._participations.add(where, this_round, attempts[-1].reporting)
    self._checked = this_round + 1


class _Participations:
  """Each client's last round and number of rounds, to check limits."""

  def __init__(self, limits: strategies.Participation, num_clients: int = 0):
    self._limits = limits
    self._last = np.full(num_clients, -1, np.int32)
    self._times = np.zeros(num_clients, np.int32)

  def add(
    self,
    where: str,
    this_round: int,
    clients: np.ndarray,
    names: Optional[Sequence[Any]] = None,
  ) -> None:
    """Adds the clients of a round; raises ValueError if one breaks the limits."""
    clients, limits = np.asarray(clients, np.int64), self._limits
    new = clients.max(initial=-1) + 1 - len(self._last)
    if new > 0:
      self._last = np.pad(self._last, (0, new), constant_values=-1)
      self._times = np.pad(self._times, (0, new))
    last = self._last[clients]
    gaps = this_round - last
    too_near = gaps < limits.min_separation
    if limits.fixed_epoch:
      too_near = gaps % limits.min_separation != 0
    too_often = self._times[clients] >= limits.possible_participations
    violating = (last >= 0) & too_near | too_often
    if violating.any():
      first = int(np.argmax(violating))
      client = clients[first] if names is None else repr(names[first])
      wanted = 'a multiple of' if limits.fixed_epoch else 'at least'
      raise ValueError(
        f'{where}: client {client} took part in round {last[first]} as well, and in '
        f'{self._times[clients[first]]} in all; the difference must be {wanted} '
        f'{limits.min_separation}, for at most {limits.possible_participations} rounds.'
      )
    self._times[clients] += 1
    self._last[clients] = this_round


class _Attempt(msgspec.Struct, forbid_unknown_fields=True):
  requested: list[int]
  reporting: list[int]


class _Attempts(msgspec.Struct, forbid_unknown_fields=True):
  attempts: Annotated[list[_Attempt], msgspec.Meta(min_length=1)]


@dataclasses.dataclass(frozen=True)
class Replay(Schedule):
  """The cohorts of a file, written by `Schedule.save` or from another source.

  The first line of a file states the schema; each other line is a round.

      {"format": "tff_dp_aggregators schedule", "version": 1, "schema": {...},
       "num_clients": 100, "clients_per_round": 3.0}
      [17, 4, 99]
      {"attempts": [{"requested": [5, 0, 8], "reporting": [8]},
                    {"requested": [1, 7, 2], "reporting": [1, 2]}]}

  A round is a list of client numbers if all clients that were asked reported, or else
  an object with all attempts, the last of which counted. A file from another source may
  lack the first line; the reader then has to pass its content.

  The schema's limits for each client and for the size of cohorts are checked. No check
  can tell whether cohorts were drawn at random and in secret.

  Raises:
    ValueError: If the file cannot be read, or does not keep the schema; the message
      names round and client.
  """

  name: ClassVar[str] = 'replay'

  path: str  # Path of the file.
  # The header of the file; `None` if its first line has it.
  stated: Optional[Header] = None
  num_clients: int = dataclasses.field(init=False)
  clients_per_round: float = dataclasses.field(init=False)
  sha256: str = dataclasses.field(init=False)  # SHA-256 of the file's content.
  _header: Header = dataclasses.field(init=False, repr=False, compare=False)
  _rounds: list[list[Attempt]] = dataclasses.field(
    init=False, repr=False, compare=False
  )

  def __post_init__(self) -> None:
    if not (self.stated is None or isinstance(self.stated, Header)):
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
    self.__dict__.update(
      num_clients=header.num_clients,
      clients_per_round=header.clients_per_round,
      sha256=hashlib.sha256(content).hexdigest(),
      _header=header,
      _rounds=rounds,
    )
    Watch(self, str(self.path)).attempts(len(rounds) - 1)

  @property
  def schema(self) -> Any:
    """The schema that is stated for the file."""
    return self._header.schema

  @property
  def checksum(self) -> str:
    """SHA-256 over the rounds and the statement, independent of the file's path."""
    text = json.dumps([self.sha256, self._header.to_json()], sort_keys=True)
    return 'sha256:' + hashlib.sha256(text.encode()).hexdigest()

  def attempts(self, round_num: int) -> tuple[Attempt, ...]:
    """All attempts at a round, of which only the last one is completed."""
    return tuple(
      Attempt(requested.copy(), reporting.copy(), completed)
      for requested, reporting, completed in self._rounds[self.check_round(round_num)]
    )

  def to_json(self) -> dict[str, Any]:
    """As for all schedules, with the file's SHA-256."""
    return {**super().to_json(), 'sha256': self.sha256}

  @classmethod
  def from_fields(cls, values: dict[str, Any]) -> 'Replay':
    """Reads the file again; raises ValueError if it has changed."""
    fields = dict(values)
    sha256 = fields.pop('sha256', None)
    read = cls(**_from_json(fields))
    if read.sha256 != sha256:
      raise ValueError(
        f'{read.path} has SHA-256 {read.sha256}, but the schedule that was used had '
        f'{sha256}; give the file that was used.'
      )
    return read


def _parse(content: bytes, path: str) -> tuple[Optional[Header], list[list[Attempt]]]:
  """The header of a file, if it has one, and the attempts of its rounds."""
  header: Optional[Header] = None
  rounds = []
  for number, line in enumerate(content.splitlines(), 1):
    try:
      data = strict_json.loads(line.decode())
      if number == 1 and line.startswith(b'{"format"'):
        file_format = {name: data.pop(name, None) for name in _FILE_FORMAT}
        if file_format != _FILE_FORMAT:
          raise ValueError(f'it is of format {file_format}, which is not known here')
        header = Header.from_json(data)
      else:
        rounds.append(_attempts(data))
    except (TypeError, ValueError, OverflowError) as e:
      raise ValueError(
        f'line {number} of {path} is not the cohort of a round, a list of client '
        f'numbers (or what states them, in line 1): {e}; got {line[:200]!r}'
      ) from e
  return header, rounds


def _attempts(data: Any) -> list[Attempt]:
  parsed = strict_json.convert(data, Union[list[int], _Attempts])
  if isinstance(parsed, list):
    clients = np.array(parsed, np.int64)
    return [Attempt(clients, clients, True)]
  attempts = [
    (np.array(each.requested, np.int64), np.array(each.reporting, np.int64))
    for each in parsed.attempts
  ]
  last = len(attempts) - 1
  return [Attempt(*each, i == last) for i, each in enumerate(attempts)]
