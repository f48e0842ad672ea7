"""Parses columns of a table: numbers, ids, and values from a limited set.

Nothing is guessed: text that another notation would read as a number is refused, and
the message names the flags that state the notation.
"""

import contextlib
import dataclasses
import decimal
import functools
import math
import re
import unicodedata
from collections.abc import Sequence
from typing import Any, Callable, Optional

import numpy as np

from tff_dp_aggregators.base import ids as ids_lib

from . import hashing
from . import problems
from .formats import source

DECIMALS = ('.', ',')
# Separators of groups of digits: the flag's value, and all characters it stands for.
THOUSANDS = {',': ',', '.': '.', ' ': ' \u00a0\u202f', "'": "'\u2019"}
_SIGNS = frozenset(''.join(THOUSANDS.values()))
# Numbers as programs write them; 0012 and 12E7 rather are names, such as postcodes.
NUMBER = (
  r'[+-]?((0|[1-9][0-9]*)([eE][+-][0-9]+)?'
  r'|((0|[1-9][0-9]*)\.[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?)'
)
_NUMBER, _JOINERS = re.compile(NUMBER), '\u200c\u200d'
# Ids that are in their normal form for sure, each with a line end.
_PLAIN_IDS = re.compile(r'(?:(?:[A-Za-z_](?:[ -~]*[!-~])?|[0-9]+)\n)*')
# From here on, a float stands for several whole numbers.
EXACT = 2**53
_MAX_FLOAT32 = float(np.finfo(np.float32).max)


@dataclasses.dataclass(frozen=True)
class Reading:
  """How values are written: the flags of these names, `None` for their defaults."""

  missing_values: Optional[Sequence[str]] = None  # By default those of pandas.
  decimal: Optional[str] = None
  thousands: Optional[str] = None

  @functools.cached_property
  def missing_texts(self) -> frozenset[str]:
    given = self.missing_values
    listed = ids_lib.MISSING if given is None else given
    return frozenset(text.strip() for text in listed) - {''}

  @functools.cached_property
  def _missing_numbers(self) -> np.ndarray:
    """Numbers that mark a missing value in every notation of them."""
    numbers_ = (float(text) for text in self.missing_texts if is_number(text))
    return np.array([each for each in numbers_ if math.isfinite(each)])

  def is_missing(self, value: Any) -> bool:
    """Whether a value is null, white space, or says that a value is missing."""
    if value is None or not isinstance(value, (str, int, float)):
      return value is None
    text = str(value).strip()
    if not text or text in self.missing_texts:
      return True
    are_numbers = self._missing_numbers.size and is_number(text)
    return bool(are_numbers and float(text) in self._missing_numbers)

  def are_usable(self, array: np.ndarray) -> np.ndarray:
    """Which numbers are finite in float32, and do not mark a missing value."""
    are_finite = np.abs(array) <= _MAX_FLOAT32
    if not self._missing_numbers.size:
      return are_finite
    return are_finite & ~np.isin(array, self._missing_numbers)

  def refuse_missing(self, value: Any, name: str, where: str) -> None:
    if not self.is_missing(value):
      return
    message = f'{where}: {name} is empty. Fill it in, or remove the row.'
    if value is not None and str(value).strip():
      message = (
        f'{where}: {name} is {problems.shown(value)}, which says that a value is '
        'missing. Fill it in, or remove the row. If it is a value, give '
        '--missing_values with only those texts that say so, or with none '
        '(--missing_values=).'
      )
    raise problems.ValueOfRowError(message, name, self.is_missing)

  def standard(
    self, values: source.Values, name: str, where: problems.Where
  ) -> source.Values:
    """Returns the values, with numbers that are text in Python's notation."""
    are_plain = self.decimal in (None, '.') and not self.thousands
    if are_plain or (isinstance(values, np.ndarray) and values.dtype.kind != 'U'):
      return values
    return [
      self._standardize(value, name, where, row) if isinstance(value, str) else value
      for row, value in enumerate(values)
    ]

  def _standardize(self, text: str, name: str, where: problems.Where, row: int) -> str:
    stripped = text.strip()
    point, thousands = self.decimal or '.', self.thousands or ''
    if _pattern(point, thousands).fullmatch(stripped):
      for sign in THOUSANDS.get(thousands, ''):
        stripped = stripped.replace(sign, '')
      return stripped.replace(point, '.')
    if _pattern('.', '').fullmatch(stripped):
      raise problems.DataError(
        f'{where(row)}: {name} is {problems.shown(text)}, which is not a number as '
        f'--decimal={point} --thousands={thousands} has it. Correct it, or the flags.'
      )
    return text

  def remark(self, text: str) -> str:
    """Returns a hint for text that is a number in another notation, else ''."""
    text = text.strip()
    has_no_others = self.decimal is not None and self.thousands == ''
    if has_no_others or _SIGNS.isdisjoint(text):
      return ''
    if _pattern(self.decimal or '.', self.thousands or '').fullmatch(text):
      return ''
    notations = ((p, t) for p in DECIMALS for t in ('', *THOUSANDS) if p != t)
    if not any(_pattern(*each).fullmatch(text) for each in notations):
      return ''
    return 'If it is a number, say by --decimal= or --thousands= how it is written.'


@functools.cache
def _pattern(point: str, thousands: str) -> 're.Pattern[str]':
  """Returns a pattern; groups have 3 digits, or 2 before the last 3, as in India."""
  point = re.escape(point)
  whole = r'\d+'
  if thousands:
    sign = f'[{re.escape(THOUSANDS[thousands])}]'
    whole = rf'(?:[1-9]\d{{0,2}}(?:{sign}\d{{2,3}})*{sign}\d{{3}}|\d+)'
  return re.compile(
    rf'[+-]?(?:{whole}(?:{point}\d*)?|{point}\d+)(?:[eE][+-]?\d+)?', re.ASCII
  )


def numbers(values: source.Values) -> np.ndarray:
  """Returns values as float64; with more dimensions if each entry is an array.

  Raises:
    ValueError, TypeError, OverflowError: If one is not a number, or shapes differ.
  """
  if isinstance(values, np.ndarray) and values.dtype.kind in 'biuf':
    return values.astype(np.float64)
  strings = values
  if set(map(type, values)) == {str}:  # NumPy parses strings slowly.
    array = np.fromiter(map(float, values), np.float64, len(values))
  else:
    array = np.array(values, np.float64)
    strings = [value for value in values if isinstance(value, str)]
  if '_' in ''.join(strings):
    raise ValueError('Python reads 1_000, which nobody means.')
  return array


def is_number(value: Any) -> bool:
  """Whether a value is a number or an array of numbers, finite or not."""
  try:
    numbers([value])
  except (ValueError, TypeError, OverflowError):
    return False
  return value is not None


def finite(
  values: source.Values,
  name: str,
  where: problems.Where,
  remedy: str,
  reading: Reading,
) -> np.ndarray:
  """Returns the values as float64; refuses those that are not finite in float32."""
  with contextlib.suppress(ValueError, TypeError, OverflowError):
    array = numbers(values)
    if reading.are_usable(array).all():
      return array

  def is_bad(value: Any) -> bool:
    return not is_number(value) or not reading.are_usable(numbers([value])).all()

  row = next((i for i, value in enumerate(values) if is_bad(value)), None)
  if row is None:
    shape = np.shape(values[0])
    row = next(i for i, value in enumerate(values) if np.shape(value) != shape)
    why = 'of another shape than values before'
  else:
    reading.refuse_missing(values[row], name, where(row))
    why = f'not {"finite in float32" if is_number(values[row]) else "a number"}'
  value = values[row]
  remark = reading.remark(value) if isinstance(value, str) else ''
  raise problems.ValueOfRowError(
    f'{where(row)}: {name} is {problems.shown(value)}, which is {why}. '
    f'{remark}{" " if remark else ""}{remedy}',
    name,
    is_bad,
  )


def texts(
  values: source.Values, name: str, where: problems.Where, reading: Reading
) -> list[str]:
  """Returns values of text, or of a limited set, as text; refuses empty ones."""
  values = _one_a_row(values, name, where)
  if set(map(type, values)) == {str} and all(map(str.strip, values)):
    return values
  result = []
  for row, value in enumerate(values):
    text = _as_text(value, name, where, row)
    if not text.strip():
      reading.refuse_missing(text, name, where(row))
    result.append(text)
  return result


def ids(
  values: source.Values, name: str, where: problems.Where, reading: Reading
) -> list[str]:
  """Returns clients' ids as text, in one notation for each client.

  A client taken for two would take part twice as often as the guarantee assumes. So
  white space around an id is removed, Unicode is composed in one way, and integers,
  floats included, have one notation.
  """
  exact = EXACT
  if isinstance(values, np.ndarray) and values.dtype.kind == 'f':
    exact = 2 ** (np.finfo(values.dtype).nmant + 1)
  values = _one_a_row(values, name, where)
  if set(map(type, values)) == {str} and reading.missing_texts.isdisjoint(values):
    if _PLAIN_IDS.fullmatch('\n'.join([*values, ''])):
      return values
  result = []
  for row, value in enumerate(values):
    text = '' if isinstance(value, float) else _as_text(value, name, where, row)
    try:
      if isinstance(value, bool):
        raise ValueError('neither text nor a whole number.')
      if isinstance(value, float):
        text = ids_lib.of_number(value, exact)
      result.append(ids_lib.of_text(text))
    except ValueError as e:
      raise problems.DataError(
        f'{where(row)}: {name} is {problems.shown(value)}, which is {e}'
      ) from e
    if reading.is_missing(result[-1]):
      reading.refuse_missing(result[-1], name, where(row))
    if remark := reading.remark(result[-1]):
      raise problems.DataError(
        f'{where(row)}: {name} is {problems.shown(value)}. {remark} If it is text, '
        'give --decimal=. --thousands= for numbers with a point and no groups.'
      )
  return result


def _one_a_row(values: source.Values, name: str, where: problems.Where) -> list[Any]:
  if getattr(values, 'ndim', 1) > 1:
    raise problems.DataError(
      f'{where(0)}: {name} has several values of a row, which make no name.'
    )
  return values.tolist() if isinstance(values, np.ndarray) else list(values)


def _as_text(value: Any, name: str, where: problems.Where, row: int) -> str:
  if value is None:
    return ''
  if isinstance(value, (str, int)) or (
    isinstance(value, float) and math.isfinite(value)
  ):
    return str(value)
  try:
    return bytes.decode(value)
  except (TypeError, UnicodeDecodeError) as e:
    raise problems.DataError(
      f'{where(row)}: {name} is {problems.shown(value)}, which is neither text in '
      'UTF-8 nor a finite number; convert it to one of these, a time to seconds, say.'
    ) from e


class Encoder:
  """Encodes a categorical column: values are numbered as they first occur.

  Two notations of a number are one value; see `canonical`.
  """

  def __init__(
    self,
    name: str,
    limit: int,
    remedy: str,
    reading: Reading,
    # All values of the training data, as `names` returned them; `None` for any.
    known: Optional[tuple[str, ...]] = None,
    allows_numbers: bool = True,
    allows_unknown: bool = False,
  ):
    self._name, self._limit, self._remedy = name, limit, remedy
    self._reading, self._allows_numbers = reading, allows_numbers
    self._allows_unknown = allows_unknown
    self._known = None if known is None else frozenset(known)
    self._codes: dict[str, int] = {}
    self._hashes = np.zeros(0, np.uint64)

  def add(self, values: source.Values, where: problems.Where) -> np.ndarray:
    strings = texts(values, self._name, where, self._reading)
    new = [text for text in dict.fromkeys(strings) if text not in self._codes]
    for text in new:
      self._check_new(text, lambda: where(strings.index(text)))  # noqa: B023
      self._codes[text] = len(self._codes)
    if new:
      hashes = hashing.of_texts(hashing.encoded(new))[:, 0]
      self._hashes = np.append(self._hashes, hashes)
    return np.fromiter(map(self._codes.__getitem__, strings), np.uint32, len(strings))

  def _check_new(self, text: str, where: Callable[[], str]) -> None:
    if self._reading.is_missing(text):
      self._reading.refuse_missing(text, self._name, where())
    is_new = self._known is not None and canonical(text) not in self._known
    remark = self._reading.remark(text)
    for is_bad, why in (
      (is_number(text) and not math.isfinite(float(text)), 'which is not finite.'),
      (
        not self._allows_numbers and (is_number(text) or remark),
        f'and values are read as text. {remark}',
      ),
      (
        self._known is None and len(self._codes) == self._limit,
        f'and there are {self._limit} other values already.',
      ),
      (
        is_new and not self._allows_unknown,
        'which the training data do not have; theirs are '
        f'{problems.listed(sorted(self._known or ()))}.',
      ),
    ):
      if is_bad:
        raise problems.DataError(
          f'{where()}: {self._name} is {problems.shown(text)}, {why} {self._remedy}'
        )

  def hashes(self, codes: np.ndarray) -> np.ndarray:
    return np.asarray(self._hashes[codes])

  def names(self) -> tuple[tuple[str, ...], np.ndarray]:
    """Returns the values in order, and the index among them of each code."""
    found = list(map(canonical, self._codes))
    self._refuse_look_alikes(found)
    values = set(found) if self._known is None else self._known
    are_numbers = all(map(_NUMBER.fullmatch, values))
    names = sorted(values, key=decimal.Decimal if are_numbers else None)
    index_of = {name: index for index, name in enumerate(names)}
    indices = [index_of.get(each, len(names)) for each in found]
    return tuple(names), np.array(indices, np.uint32)

  def _refuse_look_alikes(self, values: Sequence[str]) -> None:
    """Refuses a value that is another one but for what people do not see."""
    known = self._known or frozenset()
    by_content = {_as_seen(each): each for each in known}
    for value in values:
      other = by_content.setdefault(_as_seen(value), value)
      if value != other and value not in known:
        raise problems.DataError(
          f'{self._name} has the values {ascii(other)} and {ascii(value)}, which are '
          'the same but for white space or the encoding of characters, and would count '
          'as two. Write them alike.'
        )


def _as_seen(text: str) -> str:
  # Joiners change how letters are drawn, in Persian for instance.
  seen = (c for c in text if c in _JOINERS or unicodedata.category(c) != 'Cf')
  return unicodedata.normalize('NFC', ' '.join(''.join(seen).split()))


def canonical(text: str) -> str:
  """Returns the one notation of a number, or the text if it is none."""
  stripped = text.strip()
  if not _NUMBER.fullmatch(stripped) or math.isinf(float(stripped)):
    return text
  is_whole = stripped.lstrip('+-').isdigit()
  return str(int(stripped)) if is_whole else number_name(float(stripped))


def number_name(value: float) -> str:
  return str(int(value)) if value == int(value) else repr(value)
