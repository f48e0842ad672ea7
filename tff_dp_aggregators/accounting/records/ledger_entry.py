"""A line of a ledger for a round: what it released, and how it is written.

`ledger` has the rules that lines together keep.
"""

import dataclasses
import datetime
import functools
import hashlib
import math
import re
from typing import Any, NamedTuple, Optional

import dp_accounting

from tff_dp_aggregators.accounting import accountants
from tff_dp_aggregators.accounting import events
from tff_dp_aggregators.accounting.accountants import gaussian

# The field that has the hash of the line before.
CHAIN = 'previous_line_sha256'
_CHECKSUM = re.compile(r'sha256:[0-9a-f]{64}')
_SHA256 = re.compile(r'[0-9a-f]{64}')
# Where the key of the noise, or secret draws, come from.
SECRET, SEED, FILE = 'secret', 'seed', 'file'
# What each field that names a source may be, besides not stated.
SOURCES = {'noise_source': (SECRET, SEED), 'sampling_source': (SECRET, SEED, FILE)}
# Seeds below it are taken to be guessed.
GUESSABLE = 2**64
_OF_SEEDS = 'philox'
_OF_A_PART = {'name', 'clip_norm', 'noise_multiplier'}
_OF_A_SITE = {'name', 'min_clients', 'server_noise_multiplier'}
_OF_NOTHING = hashlib.sha256().hexdigest()


@dataclasses.dataclass(frozen=True)
class LedgerEntry:
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

  Raises:
    ValueError: If a field is of another type or out of range.
  """

  round: int
  cohort_requested: Optional[int]
  cohort_reported: Optional[int]
  clip_norm: Optional[float]
  noise_multiplier: Optional[float]
  strategy_checksum: Optional[str]
  event: dict[str, Any]
  effective_noise_multiplier: Optional[float]
  epsilon: Optional[float]
  delta: float
  time: str
  previous_line_sha256: str
  result_checksum: Optional[str] = None
  noise_generator: Optional[str] = None
  noise_key_tag: Optional[str] = None
  parts: Optional[list[dict[str, Any]]] = None
  noise_site: Optional[dict[str, Any]] = None
  notes: Optional[list[str]] = None
  noise_source: Optional[str] = None
  sampling_source: Optional[str] = None
  sampling_tag: Optional[str] = None

  def __post_init__(self) -> None:
    check_count('round', self.round)
    for name in ('cohort_requested', 'cohort_reported'):
      if getattr(self, name) is not None:
        check_count(name, getattr(self, name))
    for name in ('clip_norm', 'effective_noise_multiplier', 'epsilon'):
      if getattr(self, name) is not None:
        _check_number(name, getattr(self, name))
    _check_parts(self.parts, self.clip_norm, self.noise_multiplier)
    _check_site(self.noise_site)
    _check_notes(self.notes)
    _check_number('delta', self.delta)
    gaussian.check_delta(self.delta)
    for name, known in SOURCES.items():
      if getattr(self, name) not in (None, *known):
        raise ValueError(
          f'{name} must be one of {", ".join(known)}, or none; got '
          f'{getattr(self, name)!r}.'
        )
    texts = ('strategy_checksum', 'noise_generator', 'noise_key_tag', 'sampling_tag')
    for name in texts:
      text = getattr(self, name)
      if text is not None and not (isinstance(text, str) and text):
        raise ValueError(f'{name} must be a text or none; got {text!r}.')
    check_chain(self.previous_line_sha256)
    checksum = self.result_checksum
    if checksum is not None and not (
      isinstance(checksum, str) and _CHECKSUM.fullmatch(checksum)
    ):
      raise ValueError(
        f'result_checksum must be what checksum_of returns, or none; got {checksum!r}.'
      )
    event = events.from_json(self.event)
    if self.noise_multiplier is not None:  # Each part has noise and a clip norm.
      _check_hidden(self.clip_norm, self.noise_multiplier, event)
    check_time(self.time)

  @property
  def dp_event(self) -> dp_accounting.DpEvent:
    """The round's event."""
    return events.from_json(self.event)

  @property
  def has_seeded_noise(self) -> bool:
    """Whether the noise follows from a seed, also in lines of before."""
    if self.noise_source is None:  # Which named the generator of simulations alone.
      return self.noise_generator == _OF_SEEDS
    return self.noise_source == SEED


# The fields of a line by name.
FIELDS = {field.name: field for field in dataclasses.fields(LedgerEntry)}


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
  sha256: str = _OF_NOTHING

  def after(self, line: bytes) -> 'Head':
    """The head once this line is there."""
    return Head(self.lines + 1, hashlib.sha256(line).hexdigest())


def check_count(name: str, value: Any) -> None:
  """Refuses what is no whole number from 0.

  Raises:
    ValueError: If it is none.
  """
  if type(value) is not int or value < 0:
    raise ValueError(f'{name} must be a whole number from 0; got {value!r}.')


def check_chain(previous: Any) -> None:
  """Refuses what is no hash of the line before.

  Raises:
    ValueError: If it is none.
  """
  if not (isinstance(previous, str) and _SHA256.fullmatch(previous)):
    raise ValueError(
      f'previous_line_sha256 must be 64 hexadecimal digits; got {previous!r}.'
    )


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


def _check_parts(
  parts: Any, clip_norm: Optional[float], noise_multiplier: Optional[float]
) -> None:
  """Refuses parts that are none, and numbers of all where each part has its own."""
  if parts is None:
    _check_number('noise_multiplier', noise_multiplier)
    return
  if clip_norm is not None or noise_multiplier is not None:
    raise ValueError(
      f'clip_norm is {clip_norm} and noise_multiplier {noise_multiplier}, but each of '
      'the parts has its own; both must be null with parts.'
    )
  if not (isinstance(parts, list) and len(parts) > 1):
    raise ValueError(f'parts must be a list of two or more, or none; got {parts!r}.')
  for part in parts:
    if not isinstance(part, dict) or set(part) != _OF_A_PART:
      raise ValueError(f'a part has {sorted(_OF_A_PART)}; got {part!r}.')
    if not (isinstance(part['name'], str) and part['name']):
      raise ValueError(f'the name of a part must be a text; got {part["name"]!r}.')
    for name in ('clip_norm', 'noise_multiplier'):
      _check_number(f'{name} of part {part["name"]}', part[name])
      if not part[name]:
        raise ValueError(f'{name} of part {part["name"]} must be positive; got 0.')
  names = [part['name'] for part in parts]
  if len(set(names)) < len(names):
    raise ValueError(f'parts must have names of their own; got {names}.')


def _check_site(site: Any) -> None:
  """Refuses what does not say where noise is made."""
  if site is None:
    return
  if not isinstance(site, dict) or set(site) != _OF_A_SITE:
    raise ValueError(f'noise_site has {sorted(_OF_A_SITE)}, or is none; got {site!r}.')
  if not (isinstance(site['name'], str) and site['name']):
    raise ValueError(f'the name of noise_site must be a text; got {site["name"]!r}.')
  if site['min_clients'] is not None:
    check_count('min_clients of noise_site', site['min_clients'])
  if site['server_noise_multiplier'] is not None:
    _check_number(
      'server_noise_multiplier of noise_site', site['server_noise_multiplier']
    )


def _check_notes(notes: Any) -> None:
  """Refuses what are no sentences."""
  if notes is not None and not (
    isinstance(notes, list)
    and notes
    and all(isinstance(note, str) and note for note in notes)
  ):
    raise ValueError(f'notes must be a list of texts, or none; got {notes!r}.')


def _check_number(name: str, value: Any) -> None:
  if type(value) not in (int, float) or not (value >= 0 and math.isfinite(value)):
    raise ValueError(f'{name} must be a finite number from 0; got {value!r}.')


def check_time(text: Any) -> None:
  """Refuses what is no time as lines have it.

  Raises:
    ValueError: If it is none.
  """
  try:
    time = datetime.datetime.fromisoformat(text)
    # Later Pythons read more forms than earlier ones; all write the same one.
    right = time.isoformat() == text and time.utcoffset() == datetime.timedelta(0)
  except (TypeError, ValueError):
    right = False
  if not right:
    raise ValueError(
      f'time must be ISO 8601 in UTC, as in 2024-05-06T07:08:09+00:00; got {text!r}.'
    )


@functools.cache
def tag_of_seed(purpose: str, seed: int) -> str:
  """What tells a seed from others: equal for equal ones, and slow to try.

  Whoever guesses the seed can see by it that they are right, at 64 MiB and some tenths
  of a second a guess; so it hides seeds of 128 bits, and small ones hardly.

  Args:
    purpose: What it is the seed of, 'noise' or 'sampling'.
    seed: The seed.

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
