"""Parses columns of a table: numbers, and categories from a limited set.

Nothing is guessed: text that another notation would read as a number is refused, and
the message names the flags that state the notation.
"""

import dataclasses
import decimal
import functools
import math
import re
import unicodedata
from collections.abc import Iterable, Sequence
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
REMARK = 'If it is a number, say by --decimal= or --thousands= how it is written.'


@dataclasses.dataclass(frozen=True)
class Numerals:
  """The notation of numbers.

  Example:
    >>> Numerals(decimal=',', thousands='.').standard(['1.234,5', 'red'], 'x', str)
    ['1234.5', 'red']
    >>> Numerals().remark('0,25') == Numerals().remark('34,558') == REMARK
    True
    >>> print(Numerals().remark('red'), Numerals(',', '').remark('0,25'))
    None None
  """

  decimal: Optional[str] = None  # `--decimal`; `None` for a point by default.
  # `--thousands`, empty for no groups; `None` for no groups by default.
  thousands: Optional[str] = None

  @property
  def are_plain(self) -> bool:
    """Whether Python parses numbers in this notation."""
    return self.decimal in (None, '.') and not self.thousands

  def standard(self, values: source.Values, name: str, where: Any) -> source.Values:
    """Returns the values, with numbers that are text in Python's notation."""
    if self.are_plain or (isinstance(values, np.ndarray) and values.dtype.kind != 'U'):
      return values
    if isinstance(values, np.ndarray):
      values = values.tolist()
    return [
      self._standardize(value, name, where, row) if isinstance(value, str) else value
      for row, value in enumerate(values)
    ]

  def _standardize(self, text: str, name: str, where: Any, row: int) -> str:
    stripped = text.strip()
    decimal, thousands = self.decimal or '.', self.thousands or ''
    if _pattern(decimal, thousands).fullmatch(stripped):
      for sign in THOUSANDS.get(thousands, ''):
        stripped = stripped.replace(sign, '')
      return stripped.replace(decimal, '.')
    if _pattern('.', '').fullmatch(stripped):
      raise problems.DataError(
        f'{where(row)}: {name} is {problems.shown(text)}, which is not a number as '
        f'--decimal={decimal} --thousands={thousands} has it. Correct it, or the flags.'
      )
    return text

  def remark(self, text: str) -> Optional[str]:
    """Returns a hint for text that is a number in another notation, else `None`.

    Text whose groups do not have three digits gets the hint as well.
    """
    text = text.strip()
    decimal, thousands = self.decimal or '.', self.thousands or ''
    if _SIGNS.isdisjoint(text) or _pattern(decimal, thousands).fullmatch(text):
      return None
    for point in DECIMALS if self.decimal is None else (decimal,):
      for separator in ('', *THOUSANDS) if self.thousands is None else (thousands,):
        if point != separator and _pattern(point, separator).fullmatch(text):
          return REMARK
    ungrouped = ''.join(c for c in text if c not in THOUSANDS.get(thousands, ''))
    is_number = thousands and _pattern(decimal, '').fullmatch(ungrouped)
    return REMARK if is_number else None


@functools.cache
def _pattern(decimal: str, thousands: str) -> 're.Pattern[str]':
  """Returns a pattern; groups have 3 digits, or 2 before the last 3, as in India."""
  point = re.escape(decimal)
  whole = r'\d+'
  if thousands:
    sign = f'[{re.escape(THOUSANDS[thousands])}]'
    whole = rf'(?:[1-9]\d{{0,2}}(?:{sign}\d{{2,3}})*{sign}\d{{3}}|\d+)'
  return re.compile(
    rf'[+-]?(?:{whole}(?:{point}\d*)?|{point}\d+)(?:[eE][+-]?\d+)?', re.ASCII
  )


# Numbers as programs write them; 0012 and 12E7 rather are names, such as postcodes.
NUMBER = (
  r'[+-]?((0|[1-9][0-9]*)([eE][+-][0-9]+)?'
  r'|((0|[1-9][0-9]*)\.[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?)'
)
# From here on, a float stands for several whole numbers.
EXACT = 2**53
_MAX_FLOAT32 = float(np.finfo(np.float32).max)
# Returns file and line of a row, given its index in a batch.
Where = Callable[[int], str]


class Missing:
  """Texts that mark a value as missing, besides empty ones: `--missing_values`.

  Example:
    >>> missing = Missing(['NA', '-999'])
    >>> missing.has(' NA'), missing.has('-999.0'), missing.has('nan')
    (True, True, False)
  """

  def __init__(self, listed: Optional[Iterable[str]] = None):
    # By default those of `pandas.read_csv`.
    texts = ids_lib.MISSING if listed is None else listed
    self.texts = frozenset(text.strip() for text in texts) - {''}
    values = (float(text) for text in self.texts if is_number(text))
    # A number among them marks a missing value in every notation of that number.
    self._numbers = np.array([each for each in values if math.isfinite(each)])

  def has(self, value: Any) -> bool:
    if not isinstance(value, (str, int, float)):
      return False
    if str(value).strip() in self.texts:
      return True
    return is_number(value) and bool(self.among(numbers([value])).any())

  def among(self, array: np.ndarray) -> np.ndarray:
    """Which of the numbers mark a missing value."""
    if not self._numbers.size:
      return np.zeros(array.shape, bool)
    return np.isin(array, self._numbers)

  @functools.cached_property
  def keys(self) -> np.ndarray:
    """Keys of the texts as ids, see `hashing.of_ids`."""
    return hashing.of_ids(sorted(self.texts))

  def error(self, value: Any, name: str, where: str) -> problems.DataError:
    message = (
      f'{where}: {name} is {problems.shown(value)}, which says that a value is '
      'missing. Fill it in, or remove the row. If it is a value, give --missing_values '
      'with only those texts that say so, or with none (--missing_values=).'
    )
    return problems.ValueOfRowError(message, name, self.has)


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


@dataclasses.dataclass(frozen=True)
class Reading:
  """How values are read."""

  missing: Missing = dataclasses.field(default_factory=Missing)
  numerals: Numerals = Numerals()


def finite(
  values: source.Values, name: str, where: Where, remedy: str, reading: Reading
) -> np.ndarray:
  """Returns the values as float64; refuses those that are not finite in float32."""

  def are_good(array: np.ndarray) -> bool:
    return bool(((np.abs(array) <= _MAX_FLOAT32) & ~reading.missing.among(array)).all())

  def is_bad(value: Any) -> bool:
    return not is_number(value) or not are_good(numbers([value]))

  try:
    array = numbers(values)
    if are_good(array):
      return array
  except (ValueError, TypeError, OverflowError):
    pass
  row = next((i for i, value in enumerate(values) if is_bad(value)), None)
  why = 'of another shape than values before'
  if row is None:
    shape = np.shape(values[0])
    row = next(i for i, value in enumerate(values) if np.shape(value) != shape)
  else:
    why = f'not {"finite in float32" if is_number(values[row]) else "a number"}'
  value = values[row]
  if is_empty(value):
    raise _empty(name, where(row))
  if reading.missing.has(value):
    raise reading.missing.error(value, name, where(row))
  remark = reading.numerals.remark(value) if isinstance(value, str) else None
  raise problems.ValueOfRowError(
    f'{where(row)}: {name} is {problems.shown(value)}, which is {why}. '
    f'{f"{remark} " if remark else ""}{remedy}',
    name,
    is_bad,
  )


def _empty(name: str, where: str) -> problems.DataError:
  message = f'{where}: {name} is empty. Fill it in, or remove the row.'
  return problems.ValueOfRowError(message, name, is_empty)


def is_empty(value: Any) -> bool:
  """Whether a value is null, or text without content."""
  return value is None or (isinstance(value, str) and not value.strip())


def texts(values: source.Values, name: str, where: Where) -> Sequence[str]:
  if isinstance(values, np.ndarray):
    if values.ndim > 1:
      raise problems.DataError(
        f'{where(0)}: {name} has several values of a row, which make no name.'
      )
    values = values.tolist()
  assert not isinstance(values, np.ndarray)
  is_plain = set(map(type, values)) == {str} and not any(map(str.isspace, values))
  if not is_plain or '' in values:
    values = [_as_text(value, name, where, i) for i, value in enumerate(values)]
  return values


def ids(values: source.Values, name: str, where: Where, reading: Reading) -> list[str]:
  """Returns clients' ids as text, in one notation for each client.

  A client taken for two would take part twice as often as the guarantee assumes. So
  white space around an id is removed, Unicode is composed in one way, and integers,
  floats included, have one notation.
  """
  exact = EXACT
  if isinstance(values, np.ndarray) and values.ndim == 1:
    if values.dtype.kind == 'f':
      exact = 2 ** (np.finfo(values.dtype).nmant + 1)
    values = values.tolist()
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
    if reading.missing.has(result[-1]):
      raise reading.missing.error(value, name, where(row))
    if (remark := reading.numerals.remark(result[-1])) is not None:
      raise problems.DataError(
        f'{where(row)}: {name} is {problems.shown(value)}. {remark} If it is text, '
        'give --decimal=. --thousands= for numbers with a point and no groups.'
      )
  return result


def _as_text(value: Any, name: str, where: Where, row: int) -> str:
  is_text = isinstance(value, (str, int)) or (
    isinstance(value, float) and math.isfinite(value)
  )
  try:
    text = None if value is None else str(value) if is_text else bytes.decode(value)
  except (TypeError, UnicodeDecodeError) as e:
    raise problems.DataError(
      f'{where(row)}: {name} is {problems.shown(value)}, which is neither text in '
      'UTF-8 nor a finite number; convert it to one of these, a time to seconds, say.'
    ) from e
  if text is None or is_empty(text):
    raise _empty(name, where(row))
  return text


class Encoder:
  """Encodes a categorical column: values are numbered as they first occur.

  Two notations of a number are one value; see `canonical`.
  """

  def __init__(
    self,
    name: str,
    limit: int,
    too_many: str,
    reading: Reading,
    # All values of the training data, as `names` returned them; `None` for any.
    known: Optional[tuple[str, ...]] = None,
    # The remedy if a value is a number; `None` if numbers are allowed.
    no_numbers: Optional[str] = None,
    allows_unknown: bool = False,
  ):
    self._name, self._limit, self._too_many = name, limit, too_many
    self._reading, self._no_numbers = reading, no_numbers
    self._allows_unknown = allows_unknown
    self._known = None if known is None else frozenset(known)
    self._codes: dict[str, int] = {}
    self._hashes = np.zeros(0, np.uint64)

  def add(self, values: source.Values, where: Where) -> np.ndarray:
    strings = texts(values, self._name, where)
    new = [text for text in dict.fromkeys(strings) if text not in self._codes]
    for text in new:
      self._check_new(text, lambda: where(list(strings).index(text)))  # noqa: B023
      self._codes[text] = len(self._codes)
    if new:
      self._hashes = np.append(self._hashes, hashing.of_texts(new)[:, 0])
    return np.fromiter(map(self._codes.__getitem__, strings), np.uint32, len(strings))

  def _check_new(self, text: str, where: Callable[[], str]) -> None:
    if self._reading.missing.has(text):
      raise self._reading.missing.error(text, self._name, where())
    is_plain_number = is_number(text)
    remark = self._reading.numerals.remark(text)
    why = ''
    if is_plain_number and not math.isfinite(float(text)):
      why = 'which is not finite. Fill in a value, or remove the row.'
    elif self._no_numbers is not None and (is_plain_number or remark):
      hint = f'{remark} ' if remark else ''
      before = 'and values before are text' if self._codes else 'which is read as text'
      why = f'{before}. {hint}{self._no_numbers}'
    elif self._known is None and len(self._codes) == self._limit:
      why = f'and there are {self._limit} other values already. {self._too_many}'
    elif self._known is not None and not self._allows_unknown:
      if canonical(text) not in self._known:
        known = problems.listed(sorted(self._known))
        why = f'which the training data do not have; theirs are {known}.'
    if why:
      subject = f'{self._name} is {problems.shown(text)}'
      raise problems.DataError(f'{where()}: {subject}, {why}')

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

  def _refuse_look_alikes(self, values: Iterable[str]) -> None:
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


_NUMBER, _JOINERS = re.compile(NUMBER), '\u200c\u200d'


def _as_seen(text: str) -> str:
  # Joiners change how letters are drawn, in Persian for instance.
  seen = (c for c in text if c in _JOINERS or unicodedata.category(c) != 'Cf')
  return unicodedata.normalize('NFC', ' '.join(''.join(seen).split()))


def canonical(text: str) -> str:
  """Returns the one notation of a number, or the text if it is none.

  Example:
    >>> [
    ...   canonical(each)
    ...   for each in ('7.0', ' 7', '0012', '12E7', '1234567890123456789')
    ... ]
    ['7', '7', '0012', '12E7', '1234567890123456789']
  """
  stripped = text.strip()
  if not _NUMBER.fullmatch(stripped) or math.isinf(float(stripped)):
    return text
  is_whole = stripped.lstrip('+-').isdigit()
  return str(int(stripped)) if is_whole else number_name(float(stripped))


def number_name(value: float) -> str:
  return str(int(value)) if value == int(value) else repr(value)
