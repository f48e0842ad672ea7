"""The ledger: one JSON line per round, written before the round's result is used.

A line has the round's privacy event, a checksum of what was released, and the privacy
spent so far. It never has a seed, or noise that was not released. The file is
append-only; `LedgerWriter` and `read` enforce the same rules:

* Each line has the SHA-256 of the line before it, the first line that of no bytes. The
  number of lines and the hash of the last are the `Head`, for checkpoints and reports.
* Rounds are in order, from 0, and of one mechanism: equal in all `_CONSTANT_FIELDS`.
* A round may be released again, as when a run resumes from the checkpoint before its
  last line. This adds a line and costs no privacy: the adversary sees the same bits
  again. With other content, the same noise would cover two data sets, and without a
  `result_checksum` nobody could tell: both are errors.
* Aborted attempts at a round precede its line, in order, once each.
* A round without a clip norm is not private, and its event must say so.
* `effective_noise_multiplier` and `epsilon` are what the events so far compose to,
  within a relative 1e-9, and never on the unsafe side by more than round-off (1e-12 of
  mu). They are null if events are sampled or their noise is not Gaussian: the report
  accounts for these, and `spent_by_round` has a bound after each round.
* A file that ends in the middle of a line was cut off there: `append` had not returned,
  so that round's result was not used. If the line lacks only its line feed, readers
  count it, on the safe side; a resumed writer does not. Any other defect is an error.

Without the head, some changes cannot be detected. In the last line: the time; cohorts,
clip norm, generator and result checksum, if its round was released once; noise
multiplier, strategy checksum and key tag, if it is the only round; cohorts and goal of
an aborted attempt; digits that change no result by 1e-9; order of fields and spaces.
Lines can be removed from the end. Someone who rewrites all later lines, with new
hashes, can change the same fields in any line, and insert or remove aborted attempts. A
reader who knows the head detects all of these.
"""

import collections
import dataclasses
import datetime
import errno
import functools
import hashlib
import io
import json
import logging
import math
import operator
import os
import stat
import sys
import typing
from collections.abc import Iterable, Sequence
from typing import Annotated, Any, Literal, NamedTuple, Optional, Union

import dp_accounting
import msgspec
import numpy as np

from tff_dp_aggregators.accounting import accountants
from tff_dp_aggregators.accounting import events
from tff_dp_aggregators.accounting.accountants import gaussian
from tff_dp_aggregators.base import checks
from tff_dp_aggregators.base import folder_lock
from tff_dp_aggregators.base import new_files
from tff_dp_aggregators.base import strict_json

_logger = logging.getLogger(__name__)
# Sources of the noise key, and of the seed of secret draws.
SECRET, SEED, FILE = 'secret', 'seed', 'file'
GUESSABLE = 2**64  # An adversary is assumed to guess seeds below it.
_NO_OP = events.to_json(dp_accounting.NoOpDpEvent())
# Fields that may differ when a line is repeated, and fields that a line may lack.
_LINE_FIELDS = ('time', 'previous_line_sha256', 'notes')
_OPTIONAL_FIELDS = ('parts', 'noise_site', 'notes', 'sampling_source', 'sampling_tag')
# Fields that must be equal in all rounds.
_CONSTANT_FIELDS = (
  *('noise_multiplier', 'parts', 'noise_site', 'strategy_checksum', 'delta'),
  *('noise_key_tag', 'noise_source', 'sampling_source', 'sampling_tag'),
)
_SAMPLED_EVENTS = (
  dp_accounting.PoissonSampledDpEvent,
  dp_accounting.SampledWithoutReplacementDpEvent,
  events.TruncatedPoissonDpEvent,
)
_DRAWN_EVENTS = (*_SAMPLED_EVENTS, events.AllocatedDpEvent, events.MixtureDpEvent)
# Events that compose to one Gaussian.
_ADDING_UP = (
  dp_accounting.GaussianDpEvent,
  dp_accounting.NoOpDpEvent,
  dp_accounting.NonPrivateDpEvent,
)
_OTHER_NOISES = (dp_accounting.LaplaceDpEvent, *events.INTEGER_NOISE)
_REPEATED_EVENTS = (*_OTHER_NOISES, events.AllocatedDpEvent, events.MixtureDpEvent)
_NOISES = (dp_accounting.GaussianDpEvent, *_OTHER_NOISES)  # Noise of samples.
# Accepted relative errors of stated figures: on the safe side _TOLERANCE; on the unsafe
# side the effect of _ROUND_OFF of mu, for another summation order or libm.
_TOLERANCE, _ROUND_OFF = 1e-9, 1e-12
_MAX_FLOAT = sys.float_info.max
_Count = Annotated[int, msgspec.Meta(ge=0)]
_Number = Annotated[float, msgspec.Meta(ge=0, le=_MAX_FLOAT)]
_Positive = Annotated[float, msgspec.Meta(gt=0, le=_MAX_FLOAT)]
_Text = Annotated[str, msgspec.Meta(min_length=1)]
# ISO 8601 in UTC.
_Time = Annotated[
  str,
  msgspec.Meta(
    pattern=r'^[0-9]{4}(-[0-9]{2}){2}T[0-9]{2}(:[0-9]{2}){2}(\.[0-9]{6})?\+00:00\Z'
  ),
]
_Sha256 = Annotated[str, msgspec.Meta(pattern=r'^[0-9a-f]{64}\Z')]
_Checksum = Annotated[str, msgspec.Meta(pattern=r'^sha256:[0-9a-f]{64}\Z')]


_Parts = tuple[tuple[dp_accounting.DpEvent, int], ...]  # Events, and how often.


class _Part(msgspec.Struct, forbid_unknown_fields=True):
  name: _Text
  clip_norm: _Positive
  noise_multiplier: _Positive


class _Placement(msgspec.Struct, forbid_unknown_fields=True):
  name: _Text
  min_clients: Optional[_Count]
  server_noise_multiplier: Optional[_Number]


@functools.cache
def _type_hints(line_type: Any) -> dict[str, Any]:
  return typing.get_type_hints(line_type, include_extras=True)


class _Line:
  """Base class of the lines for rounds and for aborted attempts."""

  event: dict[str, Any]
  time: str

  def __post_init__(self) -> None:
    for name, hint in _type_hints(typing.cast(Any, type(self))).items():
      value = getattr(self, name)
      try:
        msgspec.convert(value, hint)
      except msgspec.ValidationError as e:
        raise ValueError(f'{name} must not be {value!r}: {e}.') from e
    try:
      datetime.datetime.fromisoformat(self.time)
    except ValueError as e:
      raise ValueError(f'time must not be {self.time!r}: {e}.') from e

  @property
  def dp_event(self) -> dp_accounting.DpEvent:
    """The privacy event of the line."""
    return events.from_json(self.event)


@dataclasses.dataclass(frozen=True)
class LedgerEntry(_Line):
  """The line for a released round. Fields that are unknown or absent are `None`."""

  round: _Count  # From 0.
  # Clients that the round was planned for, and clients whose updates arrived; `None` if
  # chance decides how many, in secret.
  cohort_requested: Optional[_Count]
  cohort_reported: Optional[_Count]
  clip_norm: Optional[_Number]  # Bound on the L2 norm of a client's contribution.
  noise_multiplier: Optional[_Number]  # Standard deviation of z over the clip norm.
  strategy_checksum: Optional[_Text]  # `Strategy.checksum`.
  event: dict[str, Any]  # The round's event, as `events.to_json` writes it.
  # That of all rounds so far; `None` if it is infinite or rounds are sampled.
  effective_noise_multiplier: Optional[_Number]
  epsilon: Optional[_Number]  # All rounds so far, at `delta`; `None` likewise.
  delta: _Number
  time: _Time  # When the line was written.
  previous_line_sha256: _Sha256  # Including its line feed; of b'' in the first line.
  result_checksum: Optional[_Checksum] = None  # `checksum_of` what was released.
  noise_generator: Optional[_Text] = None  # Such as 'chacha20' or 'philox'.
  # Identifies the noise key, and reveals nothing else about it.
  noise_key_tag: Optional[_Text] = None
  # Parts of a joint mechanism, which has no overall clip norm and noise multiplier.
  parts: Optional[Annotated[list[_Part], msgspec.Meta(min_length=2)]] = None
  noise_site: Optional[_Placement] = None  # Where noise is made, if not on the server.
  # Remarks for people, such as a lost worker; not part of what was released.
  notes: Optional[Annotated[list[_Text], msgspec.Meta(min_length=1)]] = None
  # Whether the noise key is secret; a seed protects from nobody who knows it.
  noise_source: Optional[Literal['secret', 'seed']] = None
  # How clients are drawn in secret: by a guessable seed, a secret one, or from a file.
  sampling_source: Optional[Literal['secret', 'seed', 'file']] = None
  sampling_tag: Optional[_Text] = None  # `tag_of_seed` of the seed of the sampling.

  def __post_init__(self) -> None:
    super().__post_init__()
    gaussian.check_delta(self.delta)
    given, event = (self.clip_norm, self.noise_multiplier), self.dp_event
    stated = f'clip_norm is {given[0]} and noise_multiplier {given[1]}, but '
    if self.parts is None:
      if self.noise_multiplier is None:
        raise ValueError('noise_multiplier must be a finite number from 0; got None.')
      if (self.clip_norm is None or not self.noise_multiplier) and _is_private(event):
        raise ValueError(
          f'{stated}the event is {event}: without clipping, or without noise, nothing '
          'is private. State both, or dp_accounting.NonPrivateDpEvent() as the event.'
        )
      return
    if given != (None, None):
      raise ValueError(f'{stated}each of the parts has its own; both must be null.')
    names = [part['name'] for part in typing.cast(Any, self.parts)]
    if len(set(names)) < len(names):
      raise ValueError(f'parts must have names of their own; got {names}.')

  @property
  def has_seeded_noise(self) -> bool:
    """Whether the noise follows from a seed."""
    if self.noise_source is None:  # In older ledgers, simulations alone used Philox.
      return self.noise_generator == 'philox'
    return self.noise_source == SEED


@dataclasses.dataclass(frozen=True)
class AbortedAttempt(_Line):
  """The line for an attempt that released nothing, as when too few clients reported.

  It spent no privacy: its event is `NoOpDpEvent`. The number that reported is exact,
  and no guarantee covers it; the runner has to know whether it depends on clients' data
  (`docs/threat_model.md`).
  """

  round: _Count
  attempt: _Count  # Index of the attempt at this round, from 0.
  cohort_requested: _Count
  cohort_reported: _Count
  # Minimum number of updates for the round, more than arrived; `None` if it is not
  # known or was not the reason for aborting.
  reporting_goal: Optional[_Count]
  event: dict[str, Any]
  time: _Time
  previous_line_sha256: _Sha256

  def __post_init__(self) -> None:
    super().__post_init__()
    if self.reporting_goal is not None and self.cohort_reported >= self.reporting_goal:
      raise ValueError(
        f'cohort_reported is {self.cohort_reported}, which reaches reporting_goal='
        f'{self.reporting_goal}; if an attempt was aborted for another reason, its '
        'goal is null.'
      )
    if self.event != _NO_OP:
      raise ValueError(
        f'event must be {_NO_OP}, got {self.event!r}: what was released is a round.'
      )


Line = Union[LedgerEntry, AbortedAttempt]


class Head(NamedTuple):
  """The number of complete lines of a ledger, and the SHA-256 of the last one.

  A copy kept elsewhere shows later that none of these lines was changed or removed.
  """

  lines: int = 0
  sha256: str = hashlib.sha256().hexdigest()


def parse(line: bytes) -> Line:
  """Parses a complete line; raises ValueError if it is not a ledger entry."""
  try:
    data = strict_json.loads(line.decode())
    if not isinstance(data, dict):
      raise ValueError(f'an entry is written as an object, got {data!r}.')
    line_type: Any = AbortedAttempt if 'attempt' in data else LedgerEntry
    return line_type(**data)
  except (TypeError, ValueError, OverflowError, RecursionError) as e:
    raise ValueError(f'not a ledger entry: {e}') from e


def write(entry: Line) -> bytes:
  """Serialises an entry as a line, with its line feed."""
  values = dataclasses.asdict(entry)
  values = {
    n: v for n, v in values.items() if v is not None or n not in _OPTIONAL_FIELDS
  }
  return (json.dumps(values, allow_nan=False) + '\n').encode()


def changed_fields(earlier: Line, again: Line) -> dict[str, tuple[Any, Any]]:
  """Fields in which a repeated line differs: {name: (earlier, again)}."""
  names = [field.name for field in dataclasses.fields(earlier)]
  both = {name: (getattr(earlier, name), getattr(again, name)) for name in names}
  return {n: (a, b) for n, (a, b) in both.items() if n not in _LINE_FIELDS and a != b}


def _is_private(event: dp_accounting.DpEvent) -> bool:
  try:
    return not math.isinf(accountants.gdp_mu(event))
  except dp_accounting.UnsupportedEventError:
    return True


@functools.cache
def tag_of_seed(purpose: str, seed: int) -> str:
  """A slow hash that identifies a seed of 'noise' or 'sampling'.

  An adversary can test a guess of the seed with it, at 64 MiB and some tenths of a
  second per guess. So it hides seeds of 128 bits, but hardly small ones.
  """
  digest = hashlib.scrypt(
    str(int(seed)).encode(),
    salt=f'tff_dp_aggregators seed of {purpose}'.encode(),
    n=2**16,
    r=8,
    p=1,
    maxmem=2**27,
    dklen=16,
  )
  return f'scrypt:{digest.hex()}'


class Spent(NamedTuple):
  """The composition of the rounds so far."""

  mu_squared: float = 0.0  # Sum of mu^2 over the Gaussian noise.
  # What rounds repeat if they are sampled or their noise is not Gaussian. `None` before
  # the first round that spent something.
  repeated: Optional[_Parts] = None

  def plus(self, event: dp_accounting.DpEvent) -> 'Spent':
    """Adds a round; raises ValueError if it is not of the same mechanism."""
    repeated, rest = _split(event)
    mu = accountants.gdp_mu(rest)
    if not (repeated or mu):
      return self
    if self.repeated is None:
      return Spent(mu * mu, repeated)
    # A joint mechanism with parts of both kinds has both in its first round.
    if (repeated and repeated != self.repeated) or (mu and not self.mu_squared):
      before = [each for each, _ in self.repeated] or 'Gaussian'
      raise ValueError(
        f'the event is {event}, and those before it are {before}: all rounds of a '
        'ledger are of one mechanism, sampled or not. Another one has its own ledger.'
      )
    return Spent(self.mu_squared + mu * mu, self.repeated)

  @property
  def mu(self) -> float:
    """The mu of mu-Gaussian-DP."""
    return math.sqrt(self.mu_squared)

  def figures(self, delta: float) -> dict[str, Any]:
    """The figures of a line: `None` if they are infinite, or an event is repeated."""
    figures = {
      'effective_noise_multiplier': 1 / self.mu if self.mu_squared else math.inf,
      'epsilon': gaussian.epsilon_of(self.mu, delta),
    }
    unknown = bool(self.repeated)
    return {n: None if unknown or v == math.inf else v for n, v in figures.items()}

  def check_stated(self, entry: LedgerEntry) -> None:
    """Checks the figures of an entry against what the events so far compose to."""
    mu, delta, figures = self.mu, entry.delta, self.figures(entry.delta)
    stated = {name: getattr(entry, name) for name in figures}
    if stated == figures:
      return  # The usual case: epsilon is computed once instead of three times.
    bounds = {
      'effective_noise_multiplier': (
        (1 - _TOLERANCE) / mu if mu else math.inf,
        (1 + _ROUND_OFF) / mu if mu else math.inf,
      ),
      'epsilon': (
        gaussian.epsilon_of(mu * (1 - _ROUND_OFF), delta),
        gaussian.epsilon_of(mu, delta) * (1 + _TOLERANCE),
      ),
    }
    for name, value in stated.items():
      lower, upper = bounds[name]
      is_consistent = lower <= (math.inf if value is None else value) <= upper
      if not (value is None if self.repeated else is_consistent):
        raise ValueError(
          f'{name} is {value}, but the events of rounds 0 to {entry.round} compose to '
          f'{figures[name]} at delta {delta}; it is null where rounds are sampled, or '
          'their noise is not Gaussian.'
        )


def is_drawn(event: dp_accounting.DpEvent) -> bool:
  """Whether a round's event relies on clients being sampled in secret."""
  return any(isinstance(each, _DRAWN_EVENTS) for each in accountants.nested(event))


def _split(event: dp_accounting.DpEvent) -> tuple[_Parts, dp_accounting.DpEvent]:
  """Splits an event into parts, and the Gaussian noise, which adds up."""
  parts = list(events.parts_of(event))
  repeated = tuple(each for each in parts if not isinstance(each[0], _ADDING_UP))
  for each, _ in repeated:
    noise = each.event if isinstance(each, _SAMPLED_EVENTS) else each
    if not isinstance(noise, _NOISES if noise is not each else _REPEATED_EVENTS):
      raise ValueError(
        'a ledger adds up Gaussian events, or has Laplace or integer noise, or '
        f'samples; got {event}; account for others with accountants.epsilon.'
      )
  if not repeated:
    return (), event
  rest = [
    dp_accounting.SelfComposedDpEvent(*each) for each in parts if each not in repeated
  ]
  return repeated, dp_accounting.ComposedDpEvent(rest)


def total_event(entries: Sequence[Line]) -> dp_accounting.DpEvent:
  """The composition of rounds and aborted attempts, as one event."""
  split_events = [_split(entry.dp_event) for entry in entries]
  counts: collections.Counter[dp_accounting.DpEvent] = collections.Counter()
  for part, count in (each for parts, _ in split_events for each in parts):
    counts[part] += count
  repeated = [dp_accounting.SelfComposedDpEvent(*item) for item in counts.items()]
  others = [rest for _, rest in split_events]
  return events.simplify(dp_accounting.ComposedDpEvent([*repeated, *others]))


@dataclasses.dataclass(frozen=True)
class Ledger:
  """The verified lines of a ledger, and the privacy spent by them.

  Immutable, so that an interrupt cannot leave a line half counted. (Copying takes some
  0.2 s for 10,000 rounds, whose figures take seconds.)
  """

  entries: tuple[LedgerEntry, ...] = ()  # One per round, the first if it was repeated.
  repeated: tuple[int, ...] = ()  # Rounds released again, in the order of their lines.
  cut: int = 0  # Bytes of an incomplete line at the end; 0 if there is none.
  sha256: str = ''  # The whole file's, as `sha256sum` prints it.
  head: Head = Head()  # The head of the complete lines.
  aborted: tuple[AbortedAttempt, ...] = ()
  size: int = 0  # Bytes of the complete lines.
  last_round: int = -1  # The last line's; one less if that is an aborted attempt.
  spent: Spent = Spent()

  @property
  def total_event(self) -> dp_accounting.DpEvent:
    """The composition of all rounds and aborted attempts, as one event."""
    return total_event([*self.entries, *self.aborted])

  def plus(self, entry: Line, line: bytes) -> 'Ledger':
    """Adds a line; raises ValueError if it breaks a rule."""
    rounds = len(self.entries)
    changes: dict[str, Any] = {'last_round': entry.round}
    if isinstance(entry, AbortedAttempt):
      last = self.aborted[-1] if self.aborted else None
      attempts = last.attempt + 1 if last and last.round == rounds else 0
      if (entry.round, entry.attempt) != (rounds, attempts):
        raise ValueError(
          f'expected attempt {attempts} at round {rounds}, or that round; found '
          f'attempt {entry.attempt} at round {entry.round}. A round that is run again '
          'confirms its attempts.'
        )
      changes = {'aborted': (*self.aborted, entry), 'last_round': entry.round - 1}
    elif entry.round < rounds:
      _check_repetition(self.entries[entry.round], entry)
      changes['repeated'] = (*self.repeated, entry.round)
    else:
      self._check_next(entry)
      spent = self.spent.plus(entry.dp_event)
      spent.check_stated(entry)
      # Unpacking with a star would take twice as long.
      changes |= {'entries': self.entries + (entry,), 'spent': spent}
    if entry.previous_line_sha256 != self.head.sha256:
      raise ValueError(
        f'previous_line_sha256 is {entry.previous_line_sha256}, but the line before '
        f'has {self.head.sha256}: a line was changed, removed or inserted.'
      )
    head = Head(self.head.lines + 1, hashlib.sha256(line).hexdigest())
    size = self.size + len(line)
    return dataclasses.replace(self, size=size, head=head, **changes)

  def _check_next(self, entry: LedgerEntry) -> None:
    """Checks that the entry is for the next round and has the mechanism of round 0."""
    rounds = len(self.entries)
    if entry.round != rounds:
      raise ValueError(
        f'expected round {rounds}, or an earlier one released again; found round '
        f'{entry.round}.'
      )
    for name in _CONSTANT_FIELDS if rounds else ():
      value, old = getattr(entry, name), getattr(self.entries[0], name)
      if value != old:
        raise ValueError(
          f'{name} is {value!r} in round {rounds} and was {old!r} in round 0; another '
          'mechanism has its own ledger.'
        )


def _check_repetition(earlier: LedgerEntry, again: LedgerEntry) -> None:
  """Checks that a round that is released again reveals nothing new."""
  changed = changed_fields(earlier, again)
  if changed:
    raise ValueError(
      f'round {again.round} was released already with other content '
      f'({", ".join(changed)}): its noise would be used for two data sets. Go on from '
      'a state after that round, or start another ledger with another noise key.'
    )
  if again.result_checksum is None:
    raise ValueError(
      f'round {again.round} was released already, and without a result_checksum '
      'nothing shows that the result is the same. State one in every round.'
    )


def read(
  path: str, expected: Optional[Head] = None, *, as_resumed: bool = False
) -> Ledger:
  """Reads a ledger and verifies the rules in the module's docstring.

  `expected`: An earlier head of the ledger; the ledger must begin with these lines.
  `as_resumed`: Whether to leave out a last line without its line feed, as a resumed
  `LedgerWriter` does.
  """
  if not stat.S_ISREG(os.stat(path).st_mode):
    raise ValueError(f'the ledger {path} is not a regular file; give the name of one.')
  ledger, cut, digest, heads = Ledger(), 0, hashlib.sha256(), [Head()]
  with open(path, 'rb') as file:
    for number, line in enumerate(file, start=1):
      digest.update(line)
      is_cut = not line.endswith(b'\n')
      try:
        if is_cut and as_resumed:
          raise ValueError('it has no line feed.')
        ledger = ledger.plus(parse(line), line + b'\n' * is_cut)
      except ValueError as e:
        if not is_cut:
          raise ValueError(f'{path}, line {number}: {e}') from e
        cut = len(line)
      heads.append(ledger.head)
  if expected is not None and (known := Head(*expected)) not in heads:
    raise ValueError(
      f'{path}: the ledger has {ledger.head.lines} complete lines, but had '
      f'{known.lines} once, the last with the SHA-256 {known.sha256}: some were '
      'changed or removed. What they spent is spent; find the ledger that has them.'
    )
  return dataclasses.replace(ledger, cut=cut, sha256=digest.hexdigest())


class LedgerWriter:
  """Appends entries to a ledger file, under a lock, and keeps track of what is spent.

  Example:
    >>> import tempfile
    >>> path = os.path.join(tempfile.mkdtemp(), 'ledger.jsonl')
    >>> what = dict(
    ...   event=dp_accounting.GaussianDpEvent(1.0),
    ...   cohort_requested=10,
    ...   cohort_reported=9,
    ...   clip_norm=0.5,
    ...   noise_multiplier=1.0,
    ...   strategy_checksum='sha256:...',
    ...   result_checksum=checksum_of([np.zeros(3)]),
    ... )
    >>> with LedgerWriter(path, delta=1e-6) as writer:
    ...   entry = writer.append(**what)
    >>> round(entry.epsilon, 3), read(path).head == writer.head
    (4.887, True)
  """

  def __init__(
    self,
    path: str,
    delta: float,
    *,
    resume: bool = False,
    expected: Optional[Head] = None,
  ):
    """Creates a new ledger, or resumes an existing one.

    Args:
      path: File of the ledger; it must not exist unless `resume` is true.
      delta: The delta of the reported epsilons; a resumed ledger must have the same.
      resume: Whether to verify and continue the ledger at `path`. A line at its end
        without line feed is cut off, with a warning in the log that has its bytes.
      expected: With `resume`, the `head` in the checkpoint from which the run resumes:
        the ledger must begin with these lines.
    """
    self._delta = gaussian.check_delta(delta)
    if expected is not None and not resume:
      raise ValueError('expected is for resume=True; a new ledger has no lines yet.')
    self._lines = Ledger()
    self._path = os.path.abspath(path)
    flags = os.O_RDWR | os.O_APPEND | (0 if resume else os.O_CREAT | os.O_EXCL)
    self._file = io.FileIO(os.open(path, flags, 0o666), 'r+')
    try:
      folder_lock.take(self._file.fileno())
      if resume:
        self._resume(path, expected)
      else:
        new_files.sync(os.path.dirname(os.path.abspath(path)))
    except BaseException as e:
      self.close()
      if isinstance(e, BlockingIOError):
        message = 'another writer has the ledger open'
        raise BlockingIOError(errno.EWOULDBLOCK, message, path) from e
      raise

  @property
  def rounds(self) -> int:
    """Rounds released so far, each counted once."""
    return len(self._lines.entries)

  @property
  def head(self) -> Head:
    """Head of the lines so far, for checkpoints to detect lost lines."""
    return self._lines.head

  def append(self, *, round: Optional[int] = None, **what: Any) -> LedgerEntry:
    """Writes a round's line, waits until it is on disk, and returns it.

    If this raises, do not use the result. If writing failed, the ledger has to be
    resumed before the next line.

    Args:
      round: Round number; by default the one after that of the last line. A run that
        resumes should state it, as its state may be older than the ledger.
      **what: Fields of `LedgerEntry`; `Mechanism.line` returns those that describe the
        mechanism. Without a `result_checksum` the round cannot be repeated. `event` is
        the event of this round alone: `last_round_only` of
        `aggregators.extract_dp_event(state)`, or the event that a query returned.
        Neither knows of sampling: for a sampled mechanism it is `round_events[round]`.
    """
    if round is None:
      round = self._lines.last_round + 1
    return self._commit(self._next_entry(round=round, **what))

  def append_aborted(self, **what: Any) -> AbortedAttempt:
    """Writes the line of an aborted attempt, like `append`, before that of its round.

    Args:
      **what: Fields of `AbortedAttempt` that the ledger does not fill in itself.
    """
    return self._commit(self._next_aborted(**what))

  def confirm_aborted(self, **what: Any) -> AbortedAttempt:
    """Returns the line of a repeated attempt; raises ValueError if it differs."""
    again = self._next_aborted(**what)
    earlier = self._aborted_at(again.round)
    if again.attempt >= len(earlier):
      raise ValueError(
        f'attempt {again.attempt} at round {again.round} has no line; the ledger has '
        f'{len(earlier)} aborted attempts at that round.'
      )
    recorded = earlier[again.attempt]
    if changed := changed_fields(recorded, again):
      raise ValueError(
        f'attempt {again.attempt} at round {again.round} has a line with other content '
        f'({changed}, then and now). Go on with the schedule of the run.'
      )
    return recorded

  def aborted_attempts(self, round: int) -> int:
    """The number of lines of aborted attempts at a round, released or not."""
    return len(self._aborted_at(checks.check_int('round', round, 0)))

  def _aborted_at(self, round: int) -> list[AbortedAttempt]:
    return [each for each in self._lines.aborted if each.round == round]

  def _next_aborted(self, **what: Any) -> AbortedAttempt:
    return AbortedAttempt(**_to_python(what), event=dict(_NO_OP), **self._stamp())

  def _stamp(self) -> dict[str, Any]:
    now = datetime.datetime.now(datetime.timezone.utc)
    return {'time': now.isoformat(), 'previous_line_sha256': self.head.sha256}

  def confirm(self, *, round: int, **what: Any) -> LedgerEntry:
    """Returns the first line of a round that is run again with the same content.

    Writes nothing: a run that resumes from a checkpoint before its last line leaves the
    same ledger as one that was never interrupted.

    Raises:
      ValueError: If the round was released with other content. Its noise would cover
        two data sets, and the result must not be used.
    """
    if checks.check_int('round', round, 0) >= self.rounds:
      raise ValueError(f'round {round} has no line yet; append it.')
    earlier = self._lines.entries[round]
    _check_repetition(earlier, self._next_entry(round=round, **what))
    return earlier

  def _next_entry(self, *, event: dp_accounting.DpEvent, **what: Any) -> LedgerEntry:
    """The next line for a round, with the privacy spent up to it."""
    fields, event_json = _to_python(what), events.to_json(event)
    if checks.check_int('round', fields['round'], 0) < self.rounds:
      earlier = self._lines.entries[fields['round']]
      figures = {n: getattr(earlier, n) for n in Spent().figures(self._delta)}
    else:
      spent = self._lines.spent.plus(events.from_json(event_json))
      figures = spent.figures(self._delta)
    return LedgerEntry(
      **fields, **figures, **self._stamp(), event=event_json, delta=self._delta
    )

  def close(self) -> None:
    """Closes the file and releases the lock."""
    if not self._file.closed:
      folder_lock.give_back(self._file.fileno())
    self._file.close()

  def __enter__(self) -> 'LedgerWriter':
    return self

  def __exit__(self, *unused: Any) -> None:
    self.close()

  def _resume(self, path: str, expected: Optional[Head]) -> None:
    """Verifies the file and cuts an incomplete last line off."""
    self._lines = read(path, expected, as_resumed=True)
    for first in self._lines.entries[:1]:
      if first.delta != self._delta:
        raise ValueError(
          f'delta is {self._delta}, but {path} has epsilons at {first.delta}; resume '
          'it with that delta.'
        )
    if self._lines.cut:
      cut = os.pread(self._file.fileno(), self._lines.cut, self._lines.size)
      _logger.warning('%s ended in the middle of a line, cut off now: %r', path, cut)
      os.ftruncate(self._file.fileno(), self._lines.size)
      os.fsync(self._file.fileno())

  def _commit(self, entry: Any) -> Any:
    """Writes and returns a line that keeps the rules; counts it once it is on disk."""
    line = write(entry)
    lines = self._lines.plus(entry, line)
    self._check_file()
    while line:  # On a full disk, a part may be written.
      line = line[os.write(self._file.fileno(), line) :]
    os.fsync(self._file.fileno())
    self._lines = lines
    return entry

  def _check_file(self) -> None:
    """Raises OSError unless the file has the lines that were counted, and no other."""
    status, size = os.fstat(self._file.fileno()), self._lines.size
    if status.st_size != size or not (
      os.path.exists(self._path) and os.path.samestat(status, os.stat(self._path))
    ):
      raise OSError(
        'the ledger was changed, moved or removed by something else, or writing its '
        f'last line failed: it should have {size} bytes under its name. Close and '
        'resume it.'
      )


def checksum_of(arrays: Iterable[Any]) -> str:
  """SHA-256 of the types, shapes and exact values of arrays or tensors.

  Example:
    >>> checksum_of([np.arange(3), np.zeros((2, 2), np.float32)])[:20]
    'sha256:...'
  """
  if isinstance(arrays, np.ndarray):
    raise ValueError('arrays must be a list of arrays; got a single one.')
  digest = hashlib.sha256()
  for array in map(np.asarray, arrays):
    if array.dtype.hasobject:
      raise ValueError(f'arrays must hold numbers; got one of {array.dtype}.')
    array = array.astype(array.dtype.newbyteorder('<'), copy=False)
    digest.update(f'{array.dtype.name}{list(array.shape)}:'.encode())
    digest.update(array.tobytes())
  return 'sha256:' + digest.hexdigest()


def _to_python(values: dict[str, Any]) -> dict[str, Any]:
  """Converts numbers of NumPy and TensorFlow among the fields of a line to Python's."""
  plain = dict(values)
  for name, value in values.items():
    if name in ('clip_norm', 'noise_multiplier') and value is not None:
      plain[name] = float(checks.check_number(name, value))
    elif hasattr(value, '__index__') and not isinstance(value, bool):
      plain[name] = operator.index(value)
  return plain


def check_schedule(ledger: Ledger, schedule: Any) -> None:
  """Raises ValueError if the attempts of a ledger contradict its schedule.

  Exactly the attempts that missed the schedule's reporting goal must be aborted. The
  JSON values of a schedule from a file have no goal, and are not checked.
  """
  if not isinstance(schedule, dict) or 'reporting_goal' not in schedule:
    return
  goal = schedule['reporting_goal']
  wrong = [
    attempt.round
    for attempt in ledger.aborted
    if goal is None or attempt.reporting_goal != goal
  ]
  for entry in ledger.entries:
    if entry.cohort_reported is not None and entry.cohort_reported < (goal or 0):
      wrong.append(entry.round)
  if wrong:
    raise ValueError(
      f'the reporting goal of the schedule is {goal}, but in round {wrong[0]} of the '
      'ledger an attempt was aborted with another goal, or the round was released with '
      'fewer clients: they are not of the same run.'
    )
