"""The ledger: one JSON line per round, written before the round's result is used.

A line has the round's privacy event, what was released (its checksum), and what had
been spent by then. It never has a seed, nor noise that was not released. The file is
append-only, with the same rules for `LedgerWriter` and `read`:

* Each line has the SHA-256 of the line before, the first that of nothing. Number of
  lines and hash of the last are the ledger's `Head`, for checkpoints and reports.
* Rounds are in order, from 0, and of one mechanism: what `_CONSTANT` names stays.
* A round may be released again, as when a run resumes from the checkpoint before its
  last line. That is one more line and costs nothing: the adversary sees the same bits
  once more. With other content the same noise would cover two data sets, and without a
  `result_checksum` nobody could tell: both are errors.
* Aborted attempts at a round stand before its line, in order, once each.
* A round without a clip norm is not private: its event says so, or it is refused.
* `effective_noise_multiplier` and `epsilon` are what the events so far compose to, to a
  relative 1e-9, and never on the unsafe side by more than round-off (1e-12 of mu). They
  are null where events are samples or not of Gaussian noise: the report accounts for
  these, and `spent_by_round` has a bound after each round.
* A file that ends in the middle of a line was cut there; `append` had not returned, so
  that round's result was not used. Whatever else is wrong is an error.

Without the head, some changes are not found. In the last line: the time; cohorts, clip
norm, generator and result checksum, if its round was released once; noise multiplier,
strategy checksum and tag of the key, if it is the only round; an aborted attempt's
cohorts and goal; digits that move no result by 1e-9; order of fields and spaces. Lines
can be taken from the end. Whoever writes all later lines anew, with new hashes, can
change the same in any line, and put in or take out aborted attempts. Who knows the head
finds all of these.
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
# What the key of the noise, or secret draws, can come from.
SECRET, SEED, FILE = 'secret', 'seed', 'file'
GUESSABLE = 2**64  # Seeds below it are taken to be guessed.
_NOTHING = events.to_json(dp_accounting.NoOpDpEvent())
# Fields that differ when a line is written again, and those that a line may lack.
_OF_THE_LINE = ('time', 'previous_line_sha256', 'notes')
_IF_ANY = ('parts', 'noise_site', 'notes', 'sampling_source', 'sampling_tag')
# What is the same in all rounds.
_CONSTANT = (
  *('noise_multiplier', 'parts', 'noise_site', 'strategy_checksum', 'delta'),
  *('noise_key_tag', 'noise_source', 'sampling_source', 'sampling_tag'),
)
_COUNTS = (
  *('round', 'attempt', 'cohort_requested', 'cohort_reported', 'reporting_goal'),
)
_SAMPLES = (
  dp_accounting.PoissonSampledDpEvent,
  dp_accounting.SampledWithoutReplacementDpEvent,
  events.TruncatedPoissonDpEvent,
)
# Noise that is not Gaussian.
_INDEPENDENT = (dp_accounting.LaplaceDpEvent, *events.INTEGER_NOISE)
# Stated figures may be this much above what the events compose to, relative, and below
# by what this much of mu amounts to: another summation order, another libm.
_TOLERANCE, _ROUND_OFF = 1e-9, 1e-12
_LARGEST = sys.float_info.max
_Count = Annotated[int, msgspec.Meta(ge=0)]
_Number = Annotated[float, msgspec.Meta(ge=0, le=_LARGEST)]
_Positive = Annotated[float, msgspec.Meta(gt=0, le=_LARGEST)]
_Text = Annotated[str, msgspec.Meta(min_length=1)]
_Sha256 = Annotated[str, msgspec.Meta(pattern=r'^[0-9a-f]{64}\Z')]
_Checksum = Annotated[str, msgspec.Meta(pattern=r'^sha256:[0-9a-f]{64}\Z')]


class _Part(msgspec.Struct, forbid_unknown_fields=True):
  name: _Text
  clip_norm: _Positive
  noise_multiplier: _Positive


class _Placement(msgspec.Struct, forbid_unknown_fields=True):
  name: _Text
  min_clients: Optional[_Count]
  server_noise_multiplier: Optional[_Number]


@functools.cache
def _hints(line: type) -> dict[str, Any]:
  return typing.get_type_hints(line, include_extras=True)


class _Line:
  """What both lines, of rounds and of attempts, have in common."""

  event: dict[str, Any]
  time: str

  def __post_init__(self) -> None:
    for name, hint in _hints(typing.cast(Any, type(self))).items():
      value = getattr(self, name)
      try:
        msgspec.convert(value, hint)
      except msgspec.ValidationError as e:
        raise ValueError(f'{name} must not be {value!r}: {e}.') from e
    try:
      time = datetime.datetime.fromisoformat(self.time)
      # Later Pythons read more forms than earlier ones; all write the same one.
      is_utc = self.time == time.astimezone(datetime.timezone.utc).isoformat()
    except (ValueError, OverflowError):
      is_utc = False
    if not is_utc:
      raise ValueError(
        'time must be ISO 8601 in UTC, as in 2024-05-06T07:08:09+00:00; got '
        f'{self.time!r}.'
      )

  @property
  def dp_event(self) -> dp_accounting.DpEvent:
    """What was spent."""
    return events.from_json(self.event)


@dataclasses.dataclass(frozen=True)
class LedgerEntry(_Line):
  """What one round released. What is not stated, or not there, is `None`."""

  round: _Count  # From 0.
  # Clients the round was planned for, the mean's denominator, and those whose updates
  # arrived; not told where secret chance decides how many.
  cohort_requested: Optional[_Count]
  cohort_reported: Optional[_Count]
  clip_norm: Optional[_Number]  # L2 bound of one client's contribution.
  noise_multiplier: Optional[_Number]  # Standard deviation of z over the clip norm.
  strategy_checksum: Optional[_Text]  # `Strategy.checksum`.
  event: dict[str, Any]  # The round's event, as `events.to_json` writes it.
  # That of all rounds so far; `None` if infinite, or where rounds are sampled.
  effective_noise_multiplier: Optional[_Number]
  epsilon: Optional[_Number]  # Spent after this round at `delta`; `None` likewise.
  delta: _Number
  time: _Text  # When the line was written, ISO 8601 in UTC.
  previous_line_sha256: _Sha256  # Of that line with its line feed, or of nothing.
  result_checksum: Optional[_Checksum] = None  # `checksum_of` what was released.
  noise_generator: Optional[_Text] = None  # Such as 'chacha20' or 'philox'.
  # What tells the key of the noise from others, and nothing else of it.
  noise_key_tag: Optional[_Text] = None
  # Of a joint mechanism, which states no clip norm and noise multiplier of all.
  parts: Optional[Annotated[list[_Part], msgspec.Meta(min_length=2)]] = None
  noise_site: Optional[_Placement] = None  # Where noise is made, if not on the server.
  # For people, such as that a worker was lost; no part of what was released.
  notes: Optional[Annotated[list[_Text], msgspec.Meta(min_length=1)]] = None
  # Whether the key of the noise is secret, or follows from a seed, which protects from
  # nobody who knows it.
  noise_source: Optional[Literal['secret', 'seed']] = None
  # By what clients are drawn in secret: a guessable seed, what is secret, or a file.
  sampling_source: Optional[Literal['secret', 'seed', 'file']] = None
  sampling_tag: Optional[_Text] = None  # `tag_of_seed` of the seed of these draws.

  def __post_init__(self) -> None:
    super().__post_init__()
    gaussian.check_delta(self.delta)
    event = self.dp_event
    if self.parts is None:
      if self.noise_multiplier is None:
        raise ValueError('noise_multiplier must be a finite number from 0; got None.')
      if (self.clip_norm is None or not self.noise_multiplier) and _is_private(event):
        raise ValueError(
          f'clip_norm is {self.clip_norm} and noise_multiplier '
          f'{self.noise_multiplier}, but the event is {event}: without clipping, or '
          'without noise, nothing is private. State both, or '
          'dp_accounting.NonPrivateDpEvent() as the event.'
        )
    elif self.clip_norm is not None or self.noise_multiplier is not None:
      raise ValueError(
        f'clip_norm is {self.clip_norm} and noise_multiplier {self.noise_multiplier}, '
        'but each of the parts has its own; both must be null with parts.'
      )
    else:
      names = [part['name'] for part in typing.cast(Any, self.parts)]
      if len(set(names)) < len(names):
        raise ValueError(f'parts must have names of their own; got {names}.')

  @property
  def has_seeded_noise(self) -> bool:
    """Whether the noise follows from a seed, also in lines of before."""
    if self.noise_source is None:  # Which named the generator of simulations alone.
      return self.noise_generator == 'philox'
    return self.noise_source == SEED


@dataclasses.dataclass(frozen=True)
class AbortedAttempt(_Line):
  """An attempt at a round of which nothing was released, such as too few reported.

  It spent nothing: its event is `NoOpDpEvent`. How many reported is exact, and no
  guarantee covers it; whether it depends on clients' data is for the runner to know
  (`docs/threat_model.md`).
  """

  round: _Count
  attempt: _Count  # Which attempt at the round, from 0.
  cohort_requested: _Count
  cohort_reported: _Count
  # Least number of updates that the round needs, more than arrived; `None` if it is not
  # known, or was not the reason.
  reporting_goal: Optional[_Count]
  event: dict[str, Any]
  time: _Text
  previous_line_sha256: _Sha256

  def __post_init__(self) -> None:
    super().__post_init__()
    if self.reporting_goal is not None and self.cohort_reported >= self.reporting_goal:
      raise ValueError(
        f'cohort_reported is {self.cohort_reported}, which reaches reporting_goal='
        f'{self.reporting_goal}; if an attempt was aborted for another reason, its '
        'goal is null.'
      )
    if self.event != _NOTHING:
      raise ValueError(
        f'event must be {_NOTHING}, got {self.event!r}: what was released is a round.'
      )


# What a line of the file holds.
Line = Union[LedgerEntry, AbortedAttempt]


class Head(NamedTuple):
  """The number of complete lines of a ledger, and the hash of the last.

  Kept elsewhere, it shows later that no line up to there was changed or removed.
  """

  lines: int = 0
  sha256: str = hashlib.sha256().hexdigest()

  def after(self, line: bytes) -> 'Head':
    """The head once this line is there."""
    return Head(self.lines + 1, hashlib.sha256(line).hexdigest())


def parse(line: bytes) -> Line:
  """Reads a complete line, or raises ValueError if it is no entry."""
  try:
    data = strict_json.loads(line.decode())
    if not isinstance(data, dict):
      raise ValueError(f'an entry is written as an object, got {data!r}.')
    line_type: Any = AbortedAttempt if 'attempt' in data else LedgerEntry
    return line_type(**data)
  except (TypeError, ValueError, OverflowError, RecursionError) as e:
    raise ValueError(f'not a ledger entry: {e}') from e


def write(entry: Line) -> bytes:
  """The line of an entry, with its line feed."""
  values = dataclasses.asdict(entry)
  values = {n: v for n, v in values.items() if v is not None or n not in _IF_ANY}
  return (json.dumps(values, allow_nan=False) + '\n').encode()


def changed_fields(earlier: Line, again: Line) -> dict[str, tuple[Any, Any]]:
  """What differs between two lines for the same, by the names of the fields."""
  names = [field.name for field in dataclasses.fields(earlier)]
  both = {name: (getattr(earlier, name), getattr(again, name)) for name in names}
  return {n: (a, b) for n, (a, b) in both.items() if n not in _OF_THE_LINE and a != b}


def _is_private(event: dp_accounting.DpEvent) -> bool:
  try:
    return not math.isinf(accountants.gdp_mu(event))
  except dp_accounting.UnsupportedEventError:
    return True


@functools.cache
def tag_of_seed(purpose: str, seed: int) -> str:
  """What tells a seed of 'noise' or 'sampling' from others, and is slow to try.

  Whoever guesses the seed can see by it that they are right, at 64 MiB and some tenths
  of a second a guess; so it hides seeds of 128 bits, and small ones hardly.

  Example:
    >>> tag_of_seed('noise', 1) == tag_of_seed('noise', 1)
    True
    >>> tag_of_seed('noise', 1) == tag_of_seed('sampling', 1)
    False
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
  """What the rounds so far released together: one Gaussian, or an event repeated."""

  mu_squared: float = 0.0  # Sum over rounds that are Gaussians.
  # The event of a round, if rounds are samples or their noise is not Gaussian, or that
  # of all of them, if the rounds of a client are drawn together.
  repeated: Optional[dp_accounting.DpEvent] = None
  is_joint: bool = False  # Whether there are both, in parts of a joint mechanism.

  def plus(self, event: dp_accounting.DpEvent) -> 'Spent':
    """With one round more, or ValueError if it is not of the same mechanism."""
    parts, rest = split(event)
    try:
      mu = accountants.gdp_mu(rest)
    except dp_accounting.UnsupportedEventError as e:
      raise ValueError(
        'a ledger adds up Gaussian events, or has Laplace or integer noise, or '
        f'samples; got {event}; account for others with accountants.epsilon.'
      ) from e
    repeated = self.repeated
    if parts:
      repeated = parts[0] if len(parts) == 1 else dp_accounting.ComposedDpEvent(parts)
    # Parts with both have both in their first round already.
    is_joint = self.is_joint or bool(self == Spent() and parts and mu)
    is_other = self.repeated not in (None, repeated)
    has_both = repeated is not None and (self.mu_squared or mu)
    if is_other or (has_both and not is_joint):
      before = 'Gaussian' if self.repeated is None else f'{self.repeated}'
      raise ValueError(
        f'the event is {event}, and those before it are {before}: all rounds of a '
        'ledger are of one mechanism, sampled or not. Another one has its own ledger.'
      )
    return Spent(self.mu_squared + mu * mu, repeated, is_joint)

  @property
  def mu(self) -> float:
    """The mu of mu-Gaussian-DP."""
    return math.sqrt(self.mu_squared)

  def figures(self, delta: float) -> dict[str, Any]:
    """As a line states them: `None` if infinite, or if an event is repeated."""
    figures = {
      'effective_noise_multiplier': 1 / self.mu if self.mu_squared else math.inf,
      'epsilon': gaussian.epsilon_of(self.mu, delta),
    }
    is_repeated = self.repeated is not None
    return {n: None if is_repeated or v == math.inf else v for n, v in figures.items()}

  def check_stated(self, entry: LedgerEntry) -> None:
    """Checks that the figures of an entry are what the events so far compose to."""
    mu, delta, figures = self.mu, entry.delta, self.figures(entry.delta)
    stated = {name: getattr(entry, name) for name in figures}
    if stated == figures:
      return  # The usual case; epsilon is found once, and not three times.
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
      least, most = bounds[name]
      is_right = least <= (math.inf if value is None else value) <= most
      if not (is_right if self.repeated is None else value is None):
        raise ValueError(
          f'{name} is {value}, but the events of rounds 0 to {entry.round} compose to '
          f'{figures[name]} at delta {delta}; it is null where rounds are sampled, or '
          'their noise is not Gaussian.'
        )


def is_drawn(event: dp_accounting.DpEvent) -> bool:
  """Whether a round's event rests on clients being drawn in secret."""
  drawn = (*_SAMPLES, events.AllocatedDpEvent, events.MixtureDpEvent)
  return any(isinstance(each, drawn) for each in accountants.nested(event))


def is_allocated(event: dp_accounting.DpEvent) -> bool:
  """Whether it is of all rounds, which each client draws before the first."""
  if isinstance(event, events.MixtureDpEvent):
    return True
  if isinstance(event, dp_accounting.SelfComposedDpEvent):
    event = event.event
  return isinstance(event, events.AllocatedDpEvent) and isinstance(
    event.event, dp_accounting.GaussianDpEvent
  )


def split(
  event: dp_accounting.DpEvent,
) -> tuple[list[dp_accounting.DpEvent], dp_accounting.DpEvent]:
  """What is repeated in each round, and what adds up, of a round's simplified event.

  Laplace and integer noise, samples, and rounds that are drawn together do not add up
  to one event. Beside them there may be a Gaussian, as of a joint mechanism's parts.
  """
  noise = event.event if isinstance(event, _SAMPLES) else event
  gaussian_too = (dp_accounting.GaussianDpEvent,) if noise is not event else ()
  if is_allocated(event) or isinstance(noise, (*_INDEPENDENT, *gaussian_too)):
    return [event], dp_accounting.NoOpDpEvent()
  if not isinstance(event, dp_accounting.ComposedDpEvent):
    return [], event
  apart = [
    each
    for each in event.events
    if isinstance(each, dp_accounting.LaplaceDpEvent) or is_allocated(each)
  ]
  rest = [each for each in event.events if each not in apart]
  return apart, dp_accounting.ComposedDpEvent(rest)


def total_event(entries: Sequence[Line]) -> dp_accounting.DpEvent:
  """What rounds, and attempts that were aborted, spent together, as one event."""
  divided = [split(entry.dp_event) for entry in entries]
  samples = collections.Counter(part for parts, _ in divided for part in parts)
  counted = [dp_accounting.SelfComposedDpEvent(*sample) for sample in samples.items()]
  others = [rest for _, rest in divided]
  return events.simplify(dp_accounting.ComposedDpEvent([*counted, *others]))


@dataclasses.dataclass(frozen=True)
class Ledger:
  """What a ledger file says, verified."""

  entries: tuple[LedgerEntry, ...]  # One per round: if released again, the first.
  repeated: tuple[int, ...]  # Rounds released again, in the order of their lines.
  cut: int  # Length in bytes of the half line at the end; 0 if there is none.
  sha256: str  # Of the whole file, as `sha256sum` prints it.
  head: Head  # Of the complete lines.
  aborted: tuple[AbortedAttempt, ...] = ()

  @property
  def total_event(self) -> dp_accounting.DpEvent:
    """What all rounds and aborted attempts spent together, as one event."""
    return total_event([*self.entries, *self.aborted])


class _Lines(NamedTuple):
  """The complete lines of a ledger, and what they come to.

  One line more makes another of these: an interrupt comes before it counts, or after.
  (All copies take some 0.2 s for 10,000 rounds, whose figures take seconds.)
  """

  entries: tuple[LedgerEntry, ...] = ()  # Of rounds, each counted once.
  aborted: tuple[AbortedAttempt, ...] = ()  # At all rounds.
  repeated: tuple[int, ...] = ()
  size: int = 0  # In bytes.
  head: Head = Head()
  last_round: int = -1  # Round of the last line; before that of an aborted attempt.
  spent: Spent = Spent()

  def plus(self, entry: Line, line: bytes) -> '_Lines':
    """With one line more, or ValueError if it breaks a rule."""
    rounds = len(self.entries)
    then = self._replace(
      size=self.size + len(line), head=self.head.after(line), last_round=entry.round
    )
    if isinstance(entry, AbortedAttempt):
      last = self.aborted[-1] if self.aborted else None
      attempts = last.attempt + 1 if last and last.round == rounds else 0
      if (entry.round, entry.attempt) != (rounds, attempts):
        raise ValueError(
          f'expected attempt {attempts} at round {rounds}, or that round; found '
          f'attempt {entry.attempt} at round {entry.round}. A round that is run again '
          'confirms its attempts.'
        )
      then = then._replace(aborted=(*self.aborted, entry), last_round=entry.round - 1)
    elif entry.round < rounds:
      _check_repetition(self.entries[entry.round], entry)
      then = then._replace(repeated=(*self.repeated, entry.round))
    else:
      self._check_next(entry)
      spent = self.spent.plus(entry.dp_event)
      spent.check_stated(entry)
      # A star would take twice as long.
      then = then._replace(entries=self.entries + (entry,), spent=spent)
    if entry.previous_line_sha256 != self.head.sha256:
      raise ValueError(
        f'previous_line_sha256 is {entry.previous_line_sha256}, but the line before '
        f'has {self.head.sha256}: a line was changed, removed or inserted.'
      )
    return then

  def _check_next(self, entry: LedgerEntry) -> None:
    """Checks that the entry is of the next round and of round 0's mechanism."""
    rounds = len(self.entries)
    if entry.round != rounds:
      raise ValueError(
        f'expected round {rounds}, or an earlier one released again; found round '
        f'{entry.round}.'
      )
    for name in _CONSTANT if rounds else ():
      value, was = getattr(entry, name), getattr(self.entries[0], name)
      if value != was:
        raise ValueError(
          f'{name} is {value!r} in round {rounds} and was {was!r} in round 0; another '
          'mechanism has its own ledger.'
        )


def _check_repetition(earlier: LedgerEntry, again: LedgerEntry) -> None:
  """Checks that a round that is released again shows nothing new."""
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


def _read(
  path: str, file: Iterable[bytes], expected: Optional[Head]
) -> tuple[_Lines, bytes, str]:
  """The complete lines of a file, the half one at its end, and the SHA-256 of all."""
  lines, cut, digest = _Lines(), b'', hashlib.sha256()
  once = Head()  # The head when there were as many lines as expected.
  for number, line in enumerate(file, start=1):
    digest.update(line)
    if not line.endswith(b'\n'):
      cut = line
      break
    try:
      entry = parse(line)
      lines = lines.plus(entry, line)
    except ValueError as e:
      raise ValueError(f'{path}, line {number}: {e}') from e
    if expected is not None and number == expected.lines:
      once = lines.head
  if expected is not None and once != expected:
    raise ValueError(
      f'{path}: the ledger has {lines.head.lines} complete lines, but had '
      f'{expected.lines} once, the last with the SHA-256 {expected.sha256}: some were '
      'changed or removed. What they spent is spent; find the ledger that has them.'
    )
  return lines, cut, digest.hexdigest()


class LedgerWriter:
  """Appends entries to a ledger file, under a lock, and knows what has been spent.

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
    """Makes the file, or takes up one that is there, which is refused as it is.

    Args:
      path: File of the ledger.
      delta: At which delta epsilon is reported; a resumed ledger's own.
      resume: Whether to go on with the ledger at `path`, which is verified. A half line
        at its end is moved to `<path>.cut-<n>`, with a warning in the log.
      expected: With `resume`, the `head` that the checkpoint has from which the run
        goes on: the ledger must begin with these lines.
    """
    self._delta = gaussian.check_delta(delta)
    if expected is not None:
      if not resume:
        raise ValueError('expected is for resume=True; a new ledger has no lines yet.')
      expected = _check_head(expected)
    self._lines = _Lines()
    self._path = os.path.abspath(path)
    self._torn = False  # Whether there may be something after the complete lines.
    # File with the half line that a resumed ledger ended in; `None` if none.
    self.recovered: Optional[str] = None
    flags = os.O_RDWR | os.O_APPEND | (0 if resume else os.O_CREAT | os.O_EXCL)
    try:
      self._file = io.FileIO(os.open(path, flags, 0o666), 'r+')
    except FileExistsError as e:
      never = 'a ledger is never overwritten; resume it or name another'
      raise FileExistsError(errno.EEXIST, never, path) from e
    try:
      folder_lock.take(self._file.fileno())
      if resume:
        self._take_up(path, expected)
      else:
        new_files.sync(os.path.dirname(os.path.abspath(path)))
    except BaseException as e:
      self.close()
      if isinstance(e, BlockingIOError):
        why = 'another writer has the ledger open'
        raise BlockingIOError(errno.EWOULDBLOCK, why, path) from e
      raise

  @property
  def rounds(self) -> int:
    """Rounds released so far, each counted once."""
    return len(self._lines.entries)

  @property
  def head(self) -> Head:
    """Head of the lines so far, by which a checkpoint can tell that none is lost."""
    return self._lines.head

  def append(self, *, round: Optional[int] = None, **what: Any) -> LedgerEntry:
    """Writes a round's line, waits until it is on disk, and returns it.

    If it raises, the ledger and what was spent are as before, and the round's result
    must not be used.

    Args:
      round: Round number; by default the one after the last line's. A run that
        resumes should give it: its state may be older than the ledger.
      **what: Fields of `LedgerEntry`, of which `Mechanism.line` has those that are a
        mechanism's; without a `result_checksum` the round cannot be repeated. `event`
        is that of this round alone: `last_round_only` of
        `aggregators.extract_dp_event(state)`, what a query returned, or for a sampled
        mechanism, of which neither knows, its `round_events[round]`.
    """
    self._mend()
    if round is None:
      round = self._lines.last_round + 1
    entry = self._entry_of(round=round, **what)
    self._commit(entry)
    return entry

  def append_aborted(self, **what: Any) -> AbortedAttempt:
    """As `append`, the line of an aborted attempt, before that of its round.

    Args:
      **what: Fields of `AbortedAttempt` but those that the ledger knows.
    """
    self._mend()
    aborted = self._aborted_of(**what)
    self._commit(aborted)
    return aborted

  def confirm_aborted(self, **what: Any) -> AbortedAttempt:
    """Returns the line of an attempt at a round run again, if it says `what`."""
    again = self._aborted_of(**what)
    earlier = self._aborted_at(again.round)
    if again.attempt >= len(earlier):
      raise ValueError(
        f'attempt {again.attempt} at round {again.round} has no line; the ledger has '
        f'{len(earlier)} aborted attempts at that round.'
      )
    then = earlier[again.attempt]
    if changed := changed_fields(then, again):
      raise ValueError(
        f'attempt {again.attempt} at round {again.round} has a line with other content '
        f'({changed}, then and now). Go on with the schedule of the run.'
      )
    return then

  def aborted_attempts(self, round: int) -> int:
    """How many aborted attempts at a round, released already or not, have a line."""
    return len(self._aborted_at(checks.check_int('round', round, 0)))

  def _aborted_at(self, round: int) -> list[AbortedAttempt]:
    return [each for each in self._lines.aborted if each.round == round]

  def _aborted_of(self, **what: Any) -> AbortedAttempt:
    """The next line for an attempt."""
    return AbortedAttempt(**_plain(what), event=dict(_NOTHING), **self._stamp())

  def _stamp(self) -> dict[str, Any]:
    """What is of the line alone."""
    now = datetime.datetime.now(datetime.timezone.utc)
    return {'time': now.isoformat(), 'previous_line_sha256': self.head.sha256}

  def confirm(self, *, round: int, **what: Any) -> LedgerEntry:
    """Returns the first line of a round that is run again, if it says `what`.

    Nothing is written: a run that resumes from a checkpoint before its last line leaves
    the ledger of one that was never interrupted.

    Raises:
      ValueError: If the round was released with other content. Its noise would cover
        two data sets, and the result must not be used.
    """
    if checks.check_int('round', round, 0) >= self.rounds:
      raise ValueError(f'round {round} has no line yet; append it.')
    earlier = self._lines.entries[round]
    _check_repetition(earlier, self._entry_of(round=round, **what))
    return earlier

  def _entry_of(self, *, event: dp_accounting.DpEvent, **what: Any) -> LedgerEntry:
    """The next line for a round, with what is spent by then."""
    given, written = _plain(what), events.to_json(event)
    if given['round'] < self.rounds:
      earlier = self._lines.entries[given['round']]
      figures = {n: getattr(earlier, n) for n in Spent().figures(self._delta)}
    else:
      spent = self._lines.spent.plus(events.from_json(written))
      figures = spent.figures(self._delta)
    return LedgerEntry(
      **given, **figures, **self._stamp(), event=written, delta=self._delta
    )

  def close(self) -> None:
    """Closes the file and gives the lock back."""
    if not self._file.closed:
      folder_lock.give_back(self._file.fileno())
    self._file.close()

  def __enter__(self) -> 'LedgerWriter':
    return self

  def __exit__(self, *unused: Any) -> None:
    self.close()

  def _take_up(self, path: str, expected: Optional[Head]) -> None:
    """Verifies the file and continues where it ends."""
    with open(self._file.fileno(), 'rb', closefd=False) as file:
      lines, cut, _ = _read(path, file, expected)
    first = lines.entries[0] if lines.entries else None
    if first is not None and first.delta != self._delta:
      raise ValueError(
        f'delta is {self._delta}, but {path} has epsilons at {first.delta}; resume it '
        'with that delta.'
      )
    self._lines = lines
    if cut:
      number = 1
      while os.path.lexists(kept := f'{path}.cut-{number}'):
        number += 1
      new_files.write_new(kept, cut)
      new_files.sync(os.path.dirname(os.path.abspath(kept)))
      self.recovered, self._torn = kept, True
      self._mend()
      _logger.warning(
        '%s ended in the middle of a line, whose %d bytes are now in %s.',
        path,
        len(cut),
        self.recovered,
      )

  def _commit(self, entry: Line) -> None:
    """Writes the line, if it keeps the rules, and only then counts it."""
    line = write(entry)
    then = self._lines.plus(entry, line)
    self._torn = True
    try:
      written = 0
      while written < len(line):  # A full disk takes a part.
        written += os.write(self._file.fileno(), line[written:])
      os.fsync(self._file.fileno())
      self._lines = then
    except BaseException:
      try:
        self._mend()
      except OSError:
        pass  # The next append tries again; a resuming one finds a half line.
      raise
    self._torn = False

  def _mend(self) -> None:
    """Takes back what a failed write left; finds what others did to the file."""
    descriptor, size = self._file.fileno(), self._lines.size
    if self._torn:
      os.ftruncate(descriptor, size)
      os.fsync(descriptor)
      self._torn = False
    status = os.fstat(descriptor)
    try:
      is_there = os.path.samestat(status, os.stat(self._path))
    except FileNotFoundError:
      is_there = False
    if status.st_size != size or not is_there:
      raise OSError(
        'the ledger was changed, moved or removed by something else while it was being '
        f'written: it should have {size} bytes under its name.'
      )


def read(path: str, expected: Optional[Head] = None) -> Ledger:
  """Reads and verifies a ledger, by the rules that the module states.

  `expected`: A head that the ledger had once, with which it must begin.
  """
  if expected is not None:
    expected = _check_head(expected)
  if not stat.S_ISREG(os.stat(path).st_mode):
    raise ValueError(f'the ledger {path} is not a regular file; give the name of one.')
  with open(path, 'rb') as file:
    lines, cut, sha256 = _read(path, file, expected)
  return Ledger(
    entries=lines.entries,
    repeated=lines.repeated,
    cut=len(cut),
    sha256=sha256,
    head=lines.head,
    aborted=lines.aborted,
  )


def checksum_of(arrays: Iterable[Any]) -> str:
  """SHA-256 of arrays, or tensors: their types, shapes and values, bit by bit.

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


def _plain(values: dict[str, Any]) -> dict[str, Any]:
  """The fields of a line, of which numbers may be NumPy's."""
  plain = dict(values)
  for name, value in values.items():
    if name in _COUNTS and value is not None:
      plain[name] = checks.check_int(name, value, 0)
    if name in ('clip_norm', 'noise_multiplier') and value is not None:
      plain[name] = float(checks.check_number(name, value))
  return plain


def _check_head(head: Head) -> Head:
  """Returns what a checkpoint kept, if that can be a head."""
  if isinstance(head, tuple) and [type(each) for each in head] == [int, str]:
    return Head(*head)
  raise TypeError(
    f'expected must be a ledger.Head(lines, sha256), as LedgerWriter.head is; got '
    f'{head!r}.'
  )


def check_schedule(ledger: Ledger, schedule: Any) -> None:
  """Refuses a ledger whose attempts are not those of a schedule.

  The values of the schedule, JSON-ready, have the reporting goal: who missed it was
  aborted, and who reached it was not. Those of a file have none, and say nothing.
  """
  if not isinstance(schedule, dict) or 'reporting_goal' not in schedule:
    return
  goal = schedule['reporting_goal']
  others = [e.round for e in ledger.aborted if goal is None or e.reporting_goal != goal]
  for each in ledger.entries:
    if each.cohort_reported is not None and each.cohort_reported < (goal or 0):
      others.append(each.round)
  if others:
    raise ValueError(
      f'the reporting goal of the schedule is {goal}, but in round {others[0]} of the '
      'ledger an attempt was aborted with another goal, or the round was released with '
      'fewer clients: they are not of the same run.'
    )
