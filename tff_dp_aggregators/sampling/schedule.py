"""Who takes part in which round: what a run draws, and the accountant reads the same.

The accountant reads a schedule's `schema`; the run draws its cohorts from it, by seed
and round alone: whoever makes the schedule again gets the same clients.
"""

import abc
import collections
import dataclasses
import functools
import hashlib
import json
from collections.abc import Iterable, Sequence
from typing import Any, Callable, ClassVar, NamedTuple, Optional

import numpy as np

from tff_dp_aggregators import strategies
from tff_dp_aggregators.base import checks
from tff_dp_aggregators.base import new_files
from tff_dp_aggregators.sampling import draws
from tff_dp_aggregators.sampling import scheme
from tff_dp_aggregators.strategies import participation as participation_lib

# What the first line of a schedule's file says of its format.
FILE_FORMAT = {'format': 'tff_dp_aggregators schedule', 'version': 1}
_TWICE = (
  '; a client that takes part twice in a round is counted with twice its clip norm, '
  'which no epsilon covers.'
)


class Attempt(NamedTuple):
  """One attempt at a round."""

  requested: np.ndarray  # Clients asked to take part, int64 of shape [cohort].
  reporting: np.ndarray  # Those of them that sent an update, in the same order.
  # Whether enough did, so that the round is made of it. Of an attempt that was aborted
  # nothing is released.
  completed: bool


@dataclasses.dataclass(frozen=True)
class Dropouts:
  """A share of clients that do not report, by seed, round, attempt and client alone."""

  rate: float  # Probability that a client does not report, at least 0 and below 1.
  seed: int  # Same seed, same drop-outs.

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
    """Those of a cohort that report, in the same order."""
    known = cohort if keys is None else keys
    purpose = f'drop-outs of attempt {int(attempt)}'
    hashed = draws.of_step(self.seed, round_num, known, purpose)
    return cohort[draws.uniform(hashed) >= self.rate]


def check_seed(seed: int, name: str = 'seed') -> int:
  """Returns a seed: a whole number from 0 that fits into 128 bits."""
  seed = checks.check_int(name, seed, at_least=0)
  if seed >= 2**128:
    raise ValueError(f'{name} must be below 2^128; got {seed}.')
  return seed


def check_dropouts(dropouts: Optional[Dropouts]) -> None:
  """Refuses what is no drop-outs."""
  if dropouts is not None and not isinstance(dropouts, Dropouts):
    raise TypeError(
      f'dropouts must be a Dropouts(rate, seed) or None; got {dropouts!r}.'
    )


@dataclasses.dataclass(frozen=True)
class Header:
  """What a file of a schedule is stated to be."""

  schema: scheme.Schema  # What the accountant reads.
  num_clients: int  # Clients to choose from.
  clients_per_round: float  # The mean's denominator.

  def __post_init__(self) -> None:
    scheme.of(self.schema)
    num_clients = checks.check_positive_int('num_clients', self.num_clients)
    size = checks.check_positive('clients_per_round', self.clients_per_round)
    # It is public: with secret draws it must not tell how many clients there are.
    if size > num_clients and not scheme.is_sampled(self.schema):
      raise ValueError(
        f'clients_per_round must be at most num_clients={num_clients}; got {size}.'
      )
    self.__dict__.update(num_clients=num_clients, clients_per_round=size)

  def to_json(self) -> dict[str, Any]:
    """JSON-ready values that `from_json` reads back."""
    return {
      'schema': scheme.to_json(self.schema),
      'num_clients': self.num_clients,
      'clients_per_round': self.clients_per_round,
    }

  @classmethod
  def from_json(cls, data: dict[str, Any]) -> 'Header':
    """Reads what `to_json` wrote."""
    values = dict(data)
    if 'schema' in values:
      values['schema'] = scheme.from_json(values['schema'])
    return cls(**values)


class Schedule(abc.ABC):
  """Who takes part when: what the accountant reads, and what the run draws.

  A schedule is a frozen dataclass whose fields say everything about it. Clients are
  numbers from 0 to `num_clients - 1`: who takes a client out of the data leaves its
  number unused.

  Clients of a data set have ids: `for_clients` makes the schedule whose draws for a
  client follow from its id, as `learning.train` does. Then a client that comes or goes
  changes nobody else's draws where the guarantee rests on sampling. Schedules that keep
  limits draw from all who may take part, the same in every round.
  """

  name: ClassVar[str]  # What JSON calls schedules of this class.
  num_clients: int  # To choose from.
  # The mean's denominator, which is public: the clients asked for a round, in the mean.
  clients_per_round: float
  # Least number of clients that have to report in a round; `None` for any, or unknown.
  reporting_goal: Optional[int] = None

  @property
  @abc.abstractmethod
  def schema(self) -> Any:
    """What the accountant reads: limits on participation, or a scheme of sampling."""

  @property
  def header(self) -> Header:
    """What a file of the schedule states."""
    return Header(self.schema, self.num_clients, float(self.clients_per_round))

  @abc.abstractmethod
  def attempts(self, round_num: int) -> tuple[Attempt, ...]:
    """All attempts at a round, from 0; the last one is completed, and no other."""

  def for_clients(self, ids: Sequence[Any]) -> 'Schedule':
    """The schedule whose draws follow from clients' distinct ids, and the seed."""
    if len(ids) != self.num_clients:
      raise ValueError(
        f'ids must be of all num_clients={self.num_clients} clients; got {len(ids)}.'
      )
    draws.check_ids(ids)
    # Another object with the same fields, and nothing drawn yet.
    bound = object.__new__(type(self))
    for field in dataclasses.fields(self):  # type: ignore[arg-type]
      bound.__dict__[field.name] = getattr(self, field.name)
    bound.__dict__['keys'] = draws.keys_of_ids(ids, getattr(self, 'seed', 0))
    return bound

  @functools.cached_property
  def keys(self) -> np.ndarray:
    """What tells clients apart in draws, by number: uint64 of shape [num_clients]."""
    return draws.keys_of_ids(range(self.num_clients), getattr(self, 'seed', 0))

  @property
  def num_rounds(self) -> int:
    """Rounds in all, n."""
    return int(self.schema.num_rounds)

  def cohort(self, round_num: int) -> np.ndarray:
    """The clients whose updates a round is made of: int64 of shape [cohort]."""
    return self.attempts(round_num)[-1].reporting

  def to_json(self) -> dict[str, Any]:
    """JSON-ready values that `sampling.schedule_from_json` reads back."""
    return {'schedule': self.name, **self._fields_to_json()}

  def _fields_to_json(self) -> dict[str, Any]:
    def written(value: Any) -> Any:
      if isinstance(value, Dropouts):
        return dataclasses.asdict(value)
      return scheme.to_json(value) if dataclasses.is_dataclass(value) else value

    fields = dataclasses.fields(self)  # type: ignore[arg-type]
    return {f.name: written(getattr(self, f.name)) for f in fields if f.init}

  @classmethod
  def from_fields(cls, values: dict[str, Any]) -> 'Schedule':
    """Makes the schedule of what `to_json` wrote besides the name."""
    read = dict(values)
    for name in ('participation', 'sampling'):
      if name in read:
        read[name] = scheme.from_json(read[name])
    if read.get('dropouts') is not None:
      read['dropouts'] = Dropouts(**read['dropouts'])
    return cls(**read)

  @property
  def checksum(self) -> str:
    """SHA-256 over `to_json`: two schedules with it name the same clients."""
    text = json.dumps(self.to_json(), sort_keys=True, separators=(',', ':'))
    return 'sha256:' + hashlib.sha256(text.encode()).hexdigest()

  def save(self, path: str) -> None:
    """Writes all rounds to a new file that `Replay` reads."""
    lines: list[Any] = [{**FILE_FORMAT, **self.header.to_json()}]
    for this_round in range(self.num_rounds):
      attempts = self.attempts(this_round)
      requested, reporting, _ = attempts[-1]
      if len(attempts) == 1 and len(requested) == len(reporting):
        lines.append(requested.tolist())
        continue
      written = [
        {'requested': each.requested.tolist(), 'reporting': each.reporting.tolist()}
        for each in attempts
      ]
      lines.append({'attempts': written})
    new_files.write_new(path, ''.join(json.dumps(line) + '\n' for line in lines))

  def check_round(self, round_num: int) -> int:
    """Returns the number of a round, or says which there are."""
    round_num = checks.check_int('round_num', round_num, at_least=0)
    if round_num >= self.num_rounds:
      raise ValueError(
        f'round_num must be at most {self.num_rounds - 1}: the schedule is for '
        f'{self.num_rounds} rounds; got {round_num}.'
      )
    return round_num

  def __copy__(self) -> 'Schedule':
    return self  # Nothing of it changes.

  def __deepcopy__(self, memo: dict[int, Any]) -> 'Schedule':
    return self


@dataclasses.dataclass(frozen=True)
class SampledSchedule(Schedule):
  """The cohorts that a scheme of sampling draws.

  Every client is drawn by its own key, and one that drops out was drawn all the same.
  Who knows the seed knows who was drawn: the guarantee is towards those who do not.
  """

  sampling: Any  # How clients are drawn, as the accountant assumes it.
  num_clients: int  # To draw from, as many as the scheme states, if it does.
  seed: int  # Same seed, same cohorts.
  dropouts: Optional[Dropouts] = None  # Who does not report; `None` if everybody does.
  # The mean's denominator, a public constant; `None` for the expected size of a cohort,
  # which tells how many clients there are.
  clients_per_round: Optional[float] = None  # type: ignore[assignment]

  def __post_init__(self) -> None:
    if not isinstance(self.sampling, scheme.SampledScheme):
      raise TypeError(f'sampling must be a scheme of sampling; got {self.sampling!r}.')
    check_dropouts(self.dropouts)
    num_clients = checks.check_positive_int('num_clients', self.num_clients)
    self.sampling.check_clients(num_clients)
    for name, assumed in _stated_by(self.sampling).items():
      if getattr(self, name) not in (None, assumed):
        raise ValueError(
          f'{name} must be {assumed}, which the sampling assumes; got '
          f'{getattr(self, name)}.'
        )
    stated: Any = self.clients_per_round
    if stated is None:
      stated = self.sampling.expected_cohort(num_clients)
    stated = checks.check_positive('clients_per_round', stated)
    self.__dict__.update(
      num_clients=num_clients,
      seed=check_seed(self.seed),
      clients_per_round=int(stated) if self.sampling.has_public_sizes else stated,
    )

  @property
  def name(self) -> str:  # type: ignore[override]
    """That of the scheme."""
    return str(self.sampling.schedule_name)

  @property
  def schema(self) -> Any:
    """The sampling."""
    return self.sampling

  @functools.cached_property
  def _drawing(self) -> Callable[[int], np.ndarray]:
    drawing: Callable[[int], np.ndarray] = self.sampling.drawing(self.seed, self.keys)
    return drawing

  def attempts(self, round_num: int) -> tuple[Attempt, ...]:
    """The one attempt at a round."""
    drawn = self._drawing(self.check_round(round_num))
    return attempts_of(round_num, [drawn], self.dropouts, self.keys)

  def _fields_to_json(self) -> dict[str, Any]:
    stated = _stated_by(self.sampling)
    return {k: v for k, v in super()._fields_to_json().items() if k not in stated}

  @classmethod
  def from_fields(cls, values: dict[str, Any]) -> 'Schedule':
    """As for all schedules; what the scheme states is not written twice."""
    stated = _stated_by(scheme.from_json(values['sampling']))
    return super().from_fields({**stated, **values})


def _stated_by(sampling: scheme.Scheme) -> dict[str, Any]:
  """Numbers of a schedule that its scheme states."""
  names = ('num_clients', 'clients_per_round')
  return {name: getattr(sampling, name) for name in names if hasattr(sampling, name)}


def attempts_of(
  round_num: int,
  requested: Sequence[np.ndarray],
  dropouts: Optional[Dropouts],
  keys: Optional[np.ndarray] = None,
) -> tuple[Attempt, ...]:
  """Attempts, from the cohorts that were asked in each, the last of which counts."""
  made = []
  for attempt, cohort in enumerate(requested):
    asked = cohort.astype(np.int64)  # A copy: what is kept stays as it is.
    reporting = asked
    if dropouts is not None:
      known = None if keys is None else keys[asked]
      reporting = dropouts.reporting(round_num, attempt, asked, known)
    made.append(Attempt(asked, reporting, attempt == len(requested) - 1))
  return tuple(made)


class ParticipationWatch:
  """Refuses a round in which a client would take part too often, or too soon.

  For a loop of one's own that chooses its clients without a schedule. What was checked
  is remembered in this object alone: who goes on from a checkpoint checks earlier
  rounds again.

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
    self._numbers: dict[Any, int] = {}  # Of clients, as they come.
    self._taken_part = _TakenPart(participation, 0)
    self._next = 0

  def check(self, round_num: int, clients: Iterable[Any]) -> list[Any]:
    """Returns the clients of a round that is about to run, if they may take part.

    Args:
      round_num: The round, from 0, after all that were checked.
      clients: Their ids.

    Raises:
      ValueError: If they may not. Then nothing is remembered of the round.
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
    twice = [each for each, n in collections.Counter(cohort).items() if n > 1]
    if twice:
      raise ValueError(f'{where} has client {twice[0]!r} twice{_TWICE}')
    numbers = [self._numbers.setdefault(each, len(self._numbers)) for each in cohort]
    self._taken_part.grow(len(self._numbers))
    self._taken_part.add(where, round_num, np.array(numbers, np.int64), cohort)
    self._next = round_num + 1
    return cohort


def check_cohort(where: str, clients: Any, num_clients: int) -> np.ndarray:
  """Returns the clients of a cohort, if each is one of them, and none there twice."""
  clients = np.asarray(clients)
  if clients.ndim != 1 or (clients.size and clients.dtype.kind not in 'iu'):
    raise TypeError(
      f'{where} must be a vector of client numbers, int64; got {clients.dtype} of '
      f'shape {list(clients.shape)}.'
    )
  clients = clients.astype(np.int64, copy=False)
  strange = clients[(clients < 0) | (clients >= num_clients)]
  if len(strange):
    raise ValueError(
      f'{where} has client {strange[0]}; clients are numbered from 0 to '
      f'{num_clients - 1}.'
    )
  ordered = np.sort(clients)
  twice = ordered[1:][ordered[1:] == ordered[:-1]]
  if len(twice):
    raise ValueError(f'{where} has client {twice[0]} twice{_TWICE}')
  return clients


class Rounds:
  """Rounds of a `source`, each held against what is stated, with all before it."""

  def __init__(self, source: str, header: Header):
    self._source, self._header = source, header
    self._scheme = scheme.of(header.schema)
    self._taken_part = _TakenPart(self._scheme.limits, header.num_clients)
    self.checked = 0  # How many there were.

  def add(self, attempts: Sequence[Attempt]) -> None:
    """Checks the attempts at the next round."""
    where = f'round {self.checked} {self._source}'
    num_clients = self._header.num_clients
    if len(attempts) > 1 and self._scheme.is_sampled:
      raise ValueError(
        f'{where} was tried {len(attempts)} times, and a schema of sampling allows one '
        'attempt: another makes its clients more likely than the sampling says.'
      )
    for requested, reporting, _ in attempts:
      check_cohort(where, requested, num_clients)
      if reporting is not requested:  # Without drop-outs, they are the same.
        check_cohort(where, reporting, num_clients)
        unasked = np.setdiff1d(reporting, requested)
        if len(unasked):
          raise ValueError(
            f'{where}: client {unasked[0]} reported and was not requested.'
          )
      most, least = self._scheme.largest_cohort, 0
      if self._scheme.has_public_sizes:
        most = least = self._scheme.expected_cohort(num_clients)
      if most is not None and not least <= len(requested) <= most:
        raise ValueError(
          f'{where} has {len(requested)} clients; its schema has cohorts from {least} '
          f'to {most}.'
        )
    self._taken_part.add(where, self.checked, attempts[-1].reporting)
    self.checked += 1


class Watch(Rounds):
  """Looks at the rounds of a schedule as they are run, whoever wrote the schedule."""

  def __init__(self, schedule: Schedule):
    super().__init__(f'of {type(schedule).__name__}', schedule.header)
    self._schedule = schedule

  def attempts(self, round_num: int) -> tuple[Attempt, ...]:
    """The attempts at a round, if they keep the schema, with all before it."""
    for earlier in range(self.checked, round_num):  # Of a run that goes on.
      self.add(self._schedule.attempts(earlier))
    attempts = self._schedule.attempts(round_num)
    self.checked = round_num
    self.add(attempts)
    return attempts


class _TakenPart:
  """In which rounds clients took part, as far as limits are about it."""

  def __init__(self, limits: strategies.Participation, num_clients: int):
    self._limits = limits
    self._last = np.full(num_clients, -1, np.int32)
    self._times = np.zeros(num_clients, np.int32)

  def grow(self, num_clients: int) -> None:
    """Makes room for clients that were not known."""
    more = num_clients - len(self._last)
    self._last = np.append(self._last, np.full(more, -1, np.int32))
    self._times = np.append(self._times, np.zeros(more, np.int32))

  def add(
    self,
    where: str,
    this_round: int,
    clients: np.ndarray,
    names: Optional[Sequence[Any]] = None,
  ) -> None:
    """Adds the clients of a round, unless one breaks the limits."""
    clients, limits = np.asarray(clients, np.int64), self._limits
    last = self._last[clients]
    gaps = this_round - last
    near = gaps < limits.min_separation
    if limits.fixed_epoch:
      near = gaps % limits.min_separation != 0
    often = self._times[clients] >= limits.possible_participations
    wrong = (last >= 0) & near | often
    if wrong.any():
      first = int(np.argmax(wrong))
      client = clients[first] if names is None else repr(names[first])
      wanted = 'a multiple of' if limits.fixed_epoch else 'at least'
      raise ValueError(
        f'{where}: client {client} took part in round {last[first]} as well, and in '
        f'{self._times[clients[first]]} in all; the difference must be {wanted} '
        f'{limits.min_separation}, for at most {limits.possible_participations} rounds.'
      )
    self._times[clients] += 1
    self._last[clients] = this_round
