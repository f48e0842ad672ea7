"""The lines of a ledger: that of a round, and that of an attempt which was aborted.

Too few clients reported, say, so the round was tried again. No sum of that attempt was
released, and so nothing follows from it for privacy: its event is `NoOpDpEvent`, and
who took part in aborted attempts alone has not taken part. The line is there so that
nobody has to believe it: an attempt has no result, clip norm or noise.

Two numbers in it are of clients. How many reported is exact, as in the lines of rounds,
and with it that the attempt was aborted: no guarantee covers either. In simulations
here they depend on no client's data; whether they do elsewhere is for the runner to
know (`docs/threat_model.md`).

`ledger` has the rules that lines together keep.
"""

import dataclasses
import datetime
import functools
import hashlib
import json
import math
import sys
import typing
from typing import Annotated, Any, Literal, NamedTuple, Optional, Union

import dp_accounting
import msgspec

from tff_dp_aggregators.accounting import accountants
from tff_dp_aggregators.accounting import events
from tff_dp_aggregators.accounting.accountants import gaussian
from tff_dp_aggregators.base import strict_json

# What the key of the noise, or secret draws, can come from.
SECRET, SEED, FILE = 'secret', 'seed', 'file'
# Seeds below it are taken to be guessed.
GUESSABLE = 2**64
# What an aborted attempt spends, as lines have it.
NOTHING = events.to_json(dp_accounting.NoOpDpEvent())

_OF_SEEDS = 'philox'
# Fields that differ when a line is written again, and those that a line may lack.
_OF_THE_LINE = ('time', 'previous_line_sha256', 'notes')
_IF_ANY = ('parts', 'noise_site', 'notes', 'sampling_source', 'sampling_tag')

# What fields may be. The descriptions are for error messages.
_Meta = msgspec.Meta
_LARGEST = sys.float_info.max
_Count = Annotated[int, _Meta(ge=0, description='a whole number from 0')]
_Number = Annotated[
  float, _Meta(ge=0, le=_LARGEST, description='a finite number from 0')
]
_Positive = Annotated[float, _Meta(gt=0, le=_LARGEST)]
_Text = Annotated[str, _Meta(min_length=1, description='a text')]
_Sha256 = Annotated[
  str, _Meta(pattern=r'^[0-9a-f]{64}\Z', description='64 hexadecimal digits')
]
_Checksum = Annotated[
  str, _Meta(pattern=r'^sha256:[0-9a-f]{64}\Z', description='what checksum_of returns')
]
_Event = Annotated[dict[str, Any], _Meta(description='what events.to_json writes')]
_Notes = Annotated[list[_Text], _Meta(min_length=1, description='a list of texts')]


class _Part(msgspec.Struct, forbid_unknown_fields=True):
  name: _Text
  clip_norm: _Positive
  noise_multiplier: _Positive


class _Site(msgspec.Struct, forbid_unknown_fields=True):
  name: _Text
  min_clients: Optional[_Count]
  server_noise_multiplier: Optional[_Number]


_Parts = Annotated[
  list[_Part],
  _Meta(
    min_length=2,
    description='a list of two or more with name, clip_norm and noise_multiplier',
  ),
]
_NoiseSite = Annotated[
  _Site, _Meta(description='name, min_clients and server_noise_multiplier')
]


@functools.cache
def _hints(line: type) -> dict[str, Any]:
  return typing.get_type_hints(line, include_extras=True)


class _Line:
  """What both kinds of lines have in common."""

  event: dict[str, Any]
  time: str

  def __post_init__(self) -> None:
    for name, hint in _hints(typing.cast(Any, type(self))).items():
      value = getattr(self, name)
      try:
        msgspec.convert(value, hint)
      except msgspec.ValidationError as e:
        either = typing.get_args(hint)
        main = either[0] if type(None) in either else hint
        metas = getattr(main, '__metadata__', ())
        words = metas[0].description if metas else ' or '.join(typing.get_args(main))
        words += '' if main is hint else ' or none'
        raise ValueError(f'{name} must be {words}; got {value!r}: {e}') from e
    try:
      time = datetime.datetime.fromisoformat(self.time)
      # Later Pythons read more forms than earlier ones; all write the same one.
      offset = time.utcoffset() if time.isoformat() == self.time else None
    except ValueError:
      offset = None
    if offset != datetime.timedelta(0):
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
  """What one round released.

  Attributes:
    round: Round number, from 0.
    cohort_requested: Clients the round was planned for, the mean's denominator; `None`
      if that is not told, as where secret chance decides how many.
    cohort_reported: Clients whose updates arrived; `None` likewise.
    clip_norm: L2 bound of one client's contribution; `None` without clipping, and so
      without privacy.
    noise_multiplier: Standard deviation of z over the clip norm; `None` if each of
      `parts` has its own.
    strategy_checksum: `Strategy.checksum`; `None` without a mechanism.
    event: The round's event, as `events.to_json` writes it.
    effective_noise_multiplier: Of all rounds so far together; `None` if infinite, or if
      rounds are sampled.
    epsilon: Spent after this round at `delta`, exact; `None` if infinite, or if rounds
      are sampled: the report has it then.
    delta: Where epsilon was read.
    time: When the line was written, ISO 8601 in UTC.
    previous_line_sha256: SHA-256 of the line before, with its line feed; of nothing in
      the first line.
    result_checksum: `checksum_of` what the round released; `None` if not stated.
    noise_generator: What drew the noise, such as 'chacha20' or 'philox'; `None` if not
      stated.
    noise_key_tag: What tells the key of the noise from others, and nothing else of it,
      as the measurements have it, or `tag_of_seed` of a seed; `None` if not
      stated.
    noise_source: Whether the key of the noise is 'secret', or follows from a 'seed'
      that somebody knows, which protects from nobody who does; `None` if not stated.
    sampling_source: Where clients are drawn in secret: whether from a 'seed' that can
      be guessed, from what is 'secret', or from a 'file'; `None` if not stated.
    sampling_tag: `tag_of_seed` of the seed that clients were drawn by in
      secret; `None` if not stated.
    parts: Name, clip norm and noise multiplier of each part of a joint mechanism, which
      has none of all parts; `None` of another mechanism.
    noise_site: Name of where the noise is made, how many clients report at least, and
      the noise multiplier of the server on top, each `None` if there is none; `None`
      for noise of the server.
    notes: Sentences for people on how the round was computed, such as that a worker
      was lost; they are no part of what was released. `None` if there are none.
  """

  round: _Count
  cohort_requested: Optional[_Count]
  cohort_reported: Optional[_Count]
  clip_norm: Optional[_Number]
  noise_multiplier: Optional[_Number]
  strategy_checksum: Optional[_Text]
  event: _Event
  effective_noise_multiplier: Optional[_Number]
  epsilon: Optional[_Number]
  delta: _Number
  time: _Text
  previous_line_sha256: _Sha256
  result_checksum: Optional[_Checksum] = None
  noise_generator: Optional[_Text] = None
  noise_key_tag: Optional[_Text] = None
  parts: Optional[_Parts] = None
  noise_site: Optional[_NoiseSite] = None
  notes: Optional[_Notes] = None
  noise_source: Optional[Literal['secret', 'seed']] = None
  sampling_source: Optional[Literal['secret', 'seed', 'file']] = None
  sampling_tag: Optional[_Text] = None

  def __post_init__(self) -> None:
    super().__post_init__()
    gaussian.check_delta(self.delta)
    event = self.dp_event
    if self.parts is None:
      if self.noise_multiplier is None:
        raise ValueError('noise_multiplier must be a finite number from 0; got None.')
      _check_hidden(self.clip_norm, self.noise_multiplier, event)
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
      return self.noise_generator == _OF_SEEDS
    return self.noise_source == SEED


@dataclasses.dataclass(frozen=True)
class AbortedAttempt(_Line):
  """An attempt at a round of which nothing was released.

  Attributes:
    round: The round that was attempted, from 0.
    attempt: Which attempt at it, from 0.
    cohort_requested: Clients that were asked.
    cohort_reported: Clients whose updates arrived, in vain.
    reporting_goal: Least number of updates that the round needs, more than arrived;
      `None` if it is not known, or was not the reason.
    event: What was spent, as `events.to_json` writes it: nothing.
    time: When the line was written, ISO 8601 in UTC.
    previous_line_sha256: SHA-256 of the line before, with its line feed; of nothing in
      the first line.
  """

  round: _Count
  attempt: _Count
  cohort_requested: _Count
  cohort_reported: _Count
  reporting_goal: Optional[_Count]
  event: _Event
  time: _Text
  previous_line_sha256: _Sha256

  def __post_init__(self) -> None:
    super().__post_init__()
    if self.reporting_goal is not None and self.cohort_reported >= self.reporting_goal:
      raise ValueError(
        f'cohort_reported is {self.cohort_reported}, which reaches reporting_goal='
        f'{self.reporting_goal}: such an attempt is not aborted for it. State null '
        'as the goal if it was aborted for another reason.'
      )
    if self.event != NOTHING:
      raise ValueError(
        f'event must be {NOTHING}: nothing is released of an aborted attempt; got '
        f'{self.event!r}. What was released is a round.'
      )


# What a line of the file holds.
Line = Union[LedgerEntry, AbortedAttempt]


class Head(NamedTuple):
  """How long a ledger is, and a hash of all of it.

  Kept in a checkpoint or a report, it shows later that lines up to there are as they
  were: none changed, removed or inserted.

  Attributes:
    lines: Complete lines; a round released again has more than one, and so has one of
      which attempts were aborted.
    sha256: Of the last of them, which holds that of the one before, and so on; of
      nothing if there are none.
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
    kind: Any = AbortedAttempt if 'attempt' in data else LedgerEntry
    fields = dataclasses.fields(kind)
    unknown = data.keys() - {field.name for field in fields}
    if unknown:
      raise ValueError(f'unknown {sorted(unknown)}: another release wrote this.')
    needed = [f.name for f in fields if f.default is dataclasses.MISSING]
    missing = [name for name in needed if name not in data]
    if 'previous_line_sha256' in missing:
      raise ValueError(
        f'missing {missing}; its lines are not chained, as those of this release are, '
        'so nothing shows that none was removed. Start another ledger.'
      )
    if missing:
      raise ValueError(f'missing {missing}.')
    return kind(**data)
  except (ValueError, OverflowError, RecursionError) as e:
    hint = (
      ''
      if line[:1] in (b'{', b'')
      else (
        '. An entry is a JSON object, and this looks like a round log (--round_log) or '
        'another file'
      )
    )
    raise ValueError(f'not a ledger entry: {e}{hint}') from e


def write(entry: Line) -> bytes:
  """The line of an entry, with its line feed."""
  values = dataclasses.asdict(entry)
  values = {n: v for n, v in values.items() if v is not None or n not in _IF_ANY}
  return (json.dumps(values, allow_nan=False) + '\n').encode()


def changed(earlier: Line, again: Line) -> dict[str, tuple[Any, Any]]:
  """What differs between two lines for the same, by the names of the fields."""
  names = [field.name for field in dataclasses.fields(earlier)]
  both = {name: (getattr(earlier, name), getattr(again, name)) for name in names}
  return {n: (a, b) for n, (a, b) in both.items() if n not in _OF_THE_LINE and a != b}


def _check_hidden(
  clip_norm: Optional[float], noise_multiplier: float, event: dp_accounting.DpEvent
) -> None:
  """Refuses privacy where a contribution may be of any size, or there is no noise."""
  if clip_norm is not None and noise_multiplier:
    return
  try:
    is_private = not math.isinf(accountants.gdp_mu(event))
  except dp_accounting.UnsupportedEventError:
    is_private = True
  if is_private and clip_norm is not None:
    raise ValueError(
      f'noise_multiplier is 0, but the event is {event}, which has noise. State the '
      'noise multiplier, or dp_accounting.NonPrivateDpEvent() as the event.'
    )
  if is_private:
    raise ValueError(
      f'clip_norm is null, but the event is {event}: without clipping one client may '
      'change the sum by any amount, which no noise hides. State the clip norm, or '
      'dp_accounting.NonPrivateDpEvent() as the event.'
    )


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
