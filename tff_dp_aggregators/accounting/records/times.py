"""Times as round logs write them, one by one and many at once.

`round_log` tells which forms there are.
"""

import datetime
import decimal
import functools
import re
from collections.abc import Sequence
from typing import Any, Optional

import numpy as np

# Kinds of times, as a log may have one or the other but not both.
WITH_ZONE = 'ISO 8601 with a zone'
# Of a log that says nowhere which zone its times are in.
WITHOUT_ZONE = 'ISO 8601 without a zone'
# In nanoseconds, which all times are counted in.
SECOND = 10**9
# The year 2200, which keeps sums within int64.
END_OF_TIMES = 7_258_118_400 * SECOND

_EPOCH = datetime.date(1970, 1, 1).toordinal()
_ISO = re.compile(
  r'([0-9]{4}-[0-9]{2}-[0-9]{2})[Tt ]([0-9]{2}):([0-9]{2})'
  r'(?::([0-9]{2})(?:[.,]([0-9]+))?)? ?([Zz]|UTC|[+-][0-9]{2}(?::?[0-9]{2})?)?'
)
_UNIX = re.compile(r'([0-9]{1,19})(?:\.([0-9]*))?')
_SCIENTIFIC = re.compile(r'[0-9]{1,30}(?:\.[0-9]{0,30})?[eE][+-]?[0-9]{1,2}')
_SHAPE = bytes.maketrans(b'0123456789', b'0' * 10)  # Makes all digits alike.
_UNITS = ((10, 's', 9), (13, 'ms', 6), (16, 'us', 3), (19, 'ns', 0))


def parse_time(text: str) -> tuple[int, str]:
  """Reads a time.

  Args:
    text: In any form that `round_log` names.

  Returns:
    Nanoseconds since 1970, cut down, and how the time was written; without a zone,
    those that it would be in UTC.

  Raises:
    ValueError: If it is not a time between 1970 and 2200.

  Example:
    >>> parse_time('1970-01-01T02:00:00.5+02:00')
    (500000000, 'ISO 8601 with a zone')
    >>> parse_time('500')
    (500000000000, 'Unix time in s')
    >>> parse_time('1.70000000025e9')
    (1700000000250000000, 'Unix time in s')
  """
  if match := _ISO.fullmatch(text):
    nanoseconds, time_format = _iso(*match.groups())
  elif match := _UNIX.fullmatch(_written_out(text)):
    nanoseconds, time_format = _unix(*match.groups())
  else:
    raise ValueError(
      f'{text!r} is not a time such as 2023-05-30T11:00:00Z or Unix time in digits.'
    )
  if not 0 <= nanoseconds < END_OF_TIMES:
    raise ValueError(f'the time {text!r} is not between the years 1970 and 2200.')
  return nanoseconds, time_format


def _iso(
  date: str,
  hour: str,
  minute: str,
  second: Optional[str],
  fraction: Optional[str],
  zone: Optional[str],
) -> tuple[int, str]:
  hours, minutes, seconds = int(hour), int(minute), int(second or 0)
  if hours > 23 or minutes > 59 or seconds > 59:
    raise ValueError(f'{hour}:{minute}:{second or "00"} is not a time of day.')
  seconds += (_day(date) * 24 + hours) * 3600 + minutes * 60 - _offset(zone)
  nanoseconds = seconds * SECOND + (_decimals(fraction, 9) if fraction else 0)
  return nanoseconds, WITH_ZONE if zone else WITHOUT_ZONE


def is_scientific(text: str) -> bool:
  """Whether a text is a number in powers of ten, whose digits may be cut off.

  Example:
    >>> is_scientific('1.7e9'), is_scientific('1700000000')
    (True, False)
  """
  return _SCIENTIFIC.fullmatch(text) is not None


def _written_out(text: str) -> str:
  """A number in powers of ten with all its digits; another text as it is."""
  return format(decimal.Decimal(text), 'f') if is_scientific(text) else text


def _unix(whole: str, fraction: Optional[str]) -> tuple[int, str]:
  unit, places = _unit(whole)
  nanoseconds = int(whole) * 10**places
  if fraction and places:
    nanoseconds += _decimals(fraction, places)
  return nanoseconds, f'Unix time in {unit}'


def _unit(whole: str) -> tuple[str, int]:
  """The unit that a Unix time of so many digits has, and its decimal places in ns."""
  return next((unit, places) for most, unit, places in _UNITS if len(whole) <= most)


def _decimals(fraction: str, places: int) -> int:
  return int(fraction[:places].ljust(places, '0'))


@functools.cache
def _day(date: str) -> int:
  return datetime.date.fromisoformat(date).toordinal() - _EPOCH


@functools.cache
def _offset(zone: Optional[str]) -> int:
  """Seconds by which a zone is ahead of UTC."""
  if zone is None or zone in ('Z', 'z', 'UTC'):
    return 0
  hours, minutes = int(zone[1:3]), int(zone[3:].strip(':') or 0)
  if hours > 23 or minutes > 59:
    raise ValueError(f'{zone} is not a zone.')
  seconds = hours * 3600 + minutes * 60
  return -seconds if zone[0] == '-' else seconds


def parse_alike(values: Sequence[Any]) -> Optional[tuple[np.ndarray, str]]:
  """Reads many times that are written in exactly the same way.

  Args:
    values: Texts or whole numbers, at least one.

  Returns:
    What `parse_time` gives for each, as one int64 array; or `None` if they differ in
    more than digits, or any cannot be read, for `parse_time` to say what is wrong.
  """
  kinds = set(map(type, values))
  if kinds == {int}:
    values = list(map(str, values))
  elif not all(issubclass(kind, str) for kind in kinds):
    return None
  size = len(values[0])
  data = ''.join(values).encode('ascii', 'replace')
  shape = data[:size].translate(_SHAPE)
  if set(map(len, values)) != {size} or data.translate(_SHAPE) != shape * len(values):
    return None
  characters = np.frombuffer(data, np.uint8).reshape(len(values), size)
  try:
    if match := _ISO.fullmatch(values[0]):
      times = _iso_alike(characters, match)
    elif match := _UNIX.fullmatch(values[0]):
      times = _unix_alike(characters, match)
    else:
      return None
    time_format = parse_time(values[0])[1]
  except ValueError:
    return None
  if times is None or times.min() < 0 or times.max() >= END_OF_TIMES:
    return None
  return times, time_format


def _iso_alike(characters: np.ndarray, match: 're.Match[str]') -> Optional[np.ndarray]:
  def number(start: int, end: int) -> np.ndarray:
    return _digits(characters[:, start:end])

  zone = match.start(6) if match[6] else characters.shape[1]
  if np.any(characters[:, zone:] != characters[0, zone:]):
    return None
  year, month, day = number(0, 4), number(5, 7), number(8, 10)
  hour, minute = number(*match.span(2)), number(*match.span(3))
  second = number(*match.span(4)) if match[4] else np.zeros_like(hour)
  first = ((year - 1970) * 12 + month - 1).astype('datetime64[M]')
  date = first.astype('datetime64[D]') + (day - 1)
  if (
    np.any((month < 1) | (month > 12) | (date.astype('datetime64[M]') != first))
    or np.any((year < 1970) | (year > 2200))
    or np.any((hour > 23) | (minute > 59) | (second > 59))
  ):
    return None
  second += (date.astype(np.int64) * 24 + hour) * 3600 + minute * 60 - _offset(match[6])
  return second * SECOND + _decimals_alike(characters, match.span(5), 9)


def _unix_alike(characters: np.ndarray, match: 're.Match[str]') -> Optional[np.ndarray]:
  places = _unit(match[1])[1]
  if match.end(1) + places > 19:
    return None
  whole = _digits(characters[:, : match.end(1)])
  return whole * 10**places + _decimals_alike(characters, match.span(2), places)


def _decimals_alike(
  characters: np.ndarray, span: tuple[int, int], places: int
) -> np.ndarray:
  """`_decimals` of each row; of none if the span is that of no match, (-1, -1)."""
  start, end = span[0], min(span[1], span[0] + places)
  return _digits(characters[:, start:end]) * 10 ** (places - (end - start))


def _digits(characters: np.ndarray) -> np.ndarray:
  """The number that each row of digits shows; 0 without digits."""
  powers = 10 ** np.arange(characters.shape[1], dtype=np.int64)[::-1]
  return (characters.astype(np.int64) - ord('0')) @ powers
