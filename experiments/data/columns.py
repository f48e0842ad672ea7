"""Parses columns of a table: numbers, ids, texts, and values from a limited set.

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
from collections.abc import Collection, Sequence
from typing import Any, Callable, Optional, Union

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
WHOLE = re.compile(r'0|-?[1-9][0-9]{0,14}')  # Names of numbers that are classes.
# Ids that are in their normal form for sure, each with a line end.
_PLAIN_IDS = re.compile(r'(?:(?:[A-Za-z_](?:[ -~]*[!-~])?|[0-9]+)\n)*')
# From here on, a float stands for several whole numbers.
EXACT = 2**53
_MAX_FLOAT32 = float(np.finfo(np.float32).max)
# Words on numbers that satisfy a condition.
_Refusal = tuple[Callable[[np.ndarray], np.ndarray], str]
NO_TAG: _Refusal = (
  lambda array: (array != 0) & (array != 1),
  'is {}. Each of several labels that are tags is 0 or 1; for numbers give '
  '--label_kind=number.',
)
INEXACT: _Refusal = (
  lambda array: np.abs(array) >= EXACT,
  'is {}, a number of 2^53 or more, some of which are the same as floats. Give '
  '--label_kind=class if they are names, or --label_kind=number.',
)


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

  def are_usable(self, array: np.ndarray) -> np.ndarray:
    """Which numbers are finite in float32, and do not mark a missing value."""
    are_finite = np.abs(array) <= _MAX_FLOAT32
    if not self._missing_numbers.size:
      return are_finite
    return are_finite & ~np.isin(array, self._missing_numbers)

  def refuse_missing(self, value: Any) -> None:
    """Refuses null, white space, and what says that a value is missing."""
    if value is not None and not isinstance(value, (str, int, float)):
      return
    text = '' if value is None else str(value).strip()
    if not text:
      raise problems.DataError('is empty. Fill it in, or remove the row.')
    are_numbers = self._missing_numbers.size and is_number(text)
    if text in self.missing_texts or (
      are_numbers and float(text) in self._missing_numbers
    ):
      raise problems.DataError(
        f'is {problems.shown(value)}, which says that a value is missing. Fill it in, '
        'or remove the row. If it is a value, give --missing_values with only those '
        'texts that say so, or with none (--missing_values=).'
      )

  def standard(self, values: source.Values) -> source.Values:
    """Returns the values, with numbers that are text in Python's notation."""
    are_plain = self.decimal in (None, '.') and not self.thousands
    if are_plain or (isinstance(values, np.ndarray) and values.dtype.kind != 'U'):
      return values
    return [self._standard(each) if isinstance(each, str) else each for each in values]

  def _standard(self, text: str) -> str:
    stripped = text.strip()
    point, thousands = self.decimal or '.', self.thousands or ''
    if _pattern(point, thousands).fullmatch(stripped):
      for sign in THOUSANDS.get(thousands, ''):
        stripped = stripped.replace(sign, '')
      return stripped.replace(point, '.')
    if _pattern('.', '').fullmatch(stripped):
      raise problems.DataError(
        f'is {problems.shown(text)}, which is not a number as --decimal={point} '
        f'--thousands={thousands} has it. Correct it, or the flags.'
      )
    return text

  def remark(self, value: Any) -> str:
    """Returns a hint for text that is a number in another notation, else ''."""
    text = value.strip() if isinstance(value, str) else ''
    has_no_others = self.decimal is not None and self.thousands == ''
    if has_no_others or _SIGNS.isdisjoint(text):
      return ''
    if _pattern(self.decimal or '.', self.thousands or '').fullmatch(text):
      return ''
    notations = ((p, t) for p in DECIMALS for t in ('', *THOUSANDS) if p != t)
    if not any(_pattern(*each).fullmatch(text) for each in notations):
      return ''
    return 'If it is a number, say by --decimal= or --thousands= how it is written. '


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


def _numbers(values: source.Values) -> np.ndarray:
  """Returns values as float64; with more dimensions if each entry is an array."""
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
    _numbers([value])
  except (ValueError, TypeError, OverflowError):
    return False
  return value is not None


# The functions below, and `add` of the classes, parse one or more values of a column.
# They raise `problems.DataError` with words that follow the column's name.


@dataclasses.dataclass
class Numbers:
  """A column of numbers, or of arrays of numbers of one shape."""

  reading: Reading
  remedy: str
  shape: Optional[tuple[int, ...]] = None  # Shape of an entry; `None`: the first's.
  refused: Optional[_Refusal] = None
  may_be_names: str = ''  # The reason, if any.

  def add(self, values: source.Values) -> np.ndarray:
    """Returns the values as float64, finite in float32."""
    values = self.reading.standard(values)
    with contextlib.suppress(ValueError, TypeError, OverflowError):
      if self.shape is None:
        self.shape = np.shape(values[0])
      if not self.may_be_names:
        strings = [value for value in values if isinstance(value, str)]
        if re.search(r'\n\s*0\d', '\n' + '\n'.join(strings)):
          self.may_be_names = 'leading zeros'
      array = _numbers(values)
      is_refused = self.refused is not None and self.refused[0](array).any()
      are_fit = array.shape[1:] == self.shape and self.reading.are_usable(array).all()
      if are_fit and array.size and not is_refused:
        if (np.abs(array) >= EXACT).any():
          self.may_be_names = 'digits that float64 does not hold'
        return array
    for value in values:
      self._refuse(value)
    raise problems.DataError(f'has values that are not numbers alike. {self.remedy}')

  def _refuse(self, value: Any) -> None:
    """Raises an error if the value is not fit."""
    if not is_number(value):
      self.reading.refuse_missing(value)
      why = 'not a number'
    elif not self.reading.are_usable(_numbers([value])).all():
      self.reading.refuse_missing(value)
      why = 'not finite in float32'
    elif not np.size(value):
      why = 'a list without values'
    elif np.shape(value) != self.shape:
      why = 'of another shape than values before'
    elif self.refused is not None and self.refused[0](_numbers([value])).any():
      raise problems.DataError(self.refused[1].format(problems.shown(value)))
    else:
      return
    raise problems.DataError(
      f'is {problems.shown(value)}, which is {why}. {self.reading.remark(value)}'
      f'{self.remedy}'
    )


def singles(values: source.Values) -> source.Values:
  """Returns the values, those in a list of one without the list."""
  if isinstance(values, np.ndarray):
    return values[:, 0] if values.shape[1:] == (1,) else values
  return [v[0] if isinstance(v, list) and len(v) == 1 else v for v in values]


def texts(values: source.Values, reading: Reading) -> list[str]:
  """Returns values of text, none of which is missing."""
  result = _texts(values)
  for text in result:
    reading.refuse_missing(text)
  return result


def _texts(values: source.Values) -> list[str]:
  values = _one_a_row(values)
  return values if set(map(type, values)) == {str} else list(map(_as_text, values))


def ids(values: source.Values, reading: Reading) -> list[str]:
  """Returns clients' ids as text, in one notation for each client.

  A client taken for two would take part twice as often as the guarantee assumes. So
  white space around an id is removed, Unicode is composed in one way, and integers,
  floats included, have one notation.
  """
  values, exact = reading.standard(values), EXACT
  if isinstance(values, np.ndarray) and values.dtype.kind == 'f':
    exact = 2 ** (np.finfo(values.dtype).nmant + 1)
  values = _one_a_row(values)
  if set(map(type, values)) == {str} and reading.missing_texts.isdisjoint(values):
    if _PLAIN_IDS.fullmatch('\n'.join([*values, ''])):
      return values
  result = []
  for value in values:
    text = '' if isinstance(value, float) else _as_text(value)
    try:
      if isinstance(value, bool):
        raise ValueError('neither text nor a whole number.')
      if isinstance(value, float):
        text = ids_lib.of_number(value, exact)
      result.append(ids_lib.of_text(text))
    except ValueError as e:
      raise problems.DataError(f'is {problems.shown(value)}, which is {e}') from e
    reading.refuse_missing(result[-1])
    if remark := reading.remark(result[-1]):
      raise problems.DataError(
        f'is {problems.shown(value)}. {remark}If it is text, give --decimal=. '
        '--thousands= for numbers with a point and no groups.'
      )
  return result


def _one_a_row(values: source.Values) -> list[Any]:
  if not isinstance(values, np.ndarray):
    return list(values)
  values = np.asarray(singles(values))
  if values.ndim > 1:
    raise problems.DataError('has several values of a row, which make no name.')
  return values.tolist()


def _as_text(value: Any) -> str:
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
      f'is {problems.shown(value)}, which is neither text in UTF-8 nor a finite '
      'number; convert it to one of these, a time to seconds, say.'
    ) from e


@dataclasses.dataclass
class Names:
  """A categorical column, whose values are numbered as they first occur.

  Two notations of a number are one value; see `canonical`.
  """

  reading: Reading
  remedy: str
  limit: int  # Maximum number of values.
  # All values of the training data, as `names` returned them; `None` for any.
  known: Optional[Collection[str]] = None
  allows_numbers: bool = True
  allows_unknown: bool = False
  were_numbers: bool = False  # Whether training data are read as numbers first.

  def __post_init__(self) -> None:
    self._codes: dict[str, int] = {}
    self._hashes = np.zeros(0, np.uint64)

  def add(self, values: source.Values) -> np.ndarray:
    values = _one_a_row(self.reading.standard(values))
    if self.known and self.were_numbers:
      with contextlib.suppress(ValueError, TypeError, OverflowError):
        array = _numbers(values)
        if array.size == len(values) and self.reading.are_usable(array).all():
          pairs = zip(map(number_name, array.ravel().tolist()), values)
          values = [name if name in self.known else each for name, each in pairs]
    strings = _texts(values)
    new = [text for text in dict.fromkeys(strings) if text not in self._codes]
    for text in new:
      self._refuse(text)
      self._codes[text] = len(self._codes)
    hashes = hashing.of_texts(hashing.encoded(new))[:, 0]
    self._hashes = np.append(self._hashes, hashes)
    return np.fromiter(map(self._codes.__getitem__, strings), np.uint32, len(strings))

  def _refuse(self, text: str) -> None:
    """Raises an error if a new value is not fit."""
    self.reading.refuse_missing(text)
    known, remark = self.known, self.reading.remark(text)
    for is_bad, why in (
      (is_number(text) and not math.isfinite(float(text)), 'which is not finite.'),
      (
        not self.allows_numbers and (is_number(text) or remark),
        f'and values are read as text. {remark}'.rstrip(),
      ),
      (
        known is None and len(self._codes) == self.limit,
        f'and there are {self.limit} other values already.',
      ),
      (
        known is not None and not self.allows_unknown and canonical(text) not in known,
        'which the training data do not have; theirs are '
        f'{problems.listed(sorted(known or ()))}.',
      ),
    ):
      if is_bad:
        raise problems.DataError(f'is {problems.shown(text)}, {why} {self.remedy}')

  def hashes(self, codes: np.ndarray) -> np.ndarray:
    return np.asarray(self._hashes[codes])

  def names(self) -> tuple[tuple[str, ...], np.ndarray]:
    """Returns the values in order, and the index among them of each code."""
    found = list(map(canonical, self._codes))
    known = set(found) if self.known is None else set(self.known)
    by_content = {} if self.known is None else {_as_seen(each): each for each in known}
    for value in found:
      other = by_content.setdefault(_as_seen(value), value)
      if value != other and (self.known is None or value not in known):
        raise problems.DataError(
          f'has the values {ascii(other)} and {ascii(value)}, which are the same but '
          'for white space or the encoding of characters, and would count as two. '
          'Write them alike.'
        )
    names = sorted(known, key=decimal.Decimal if _are_numbers(known) else None)
    index_of = {name: index for index, name in enumerate(names)}
    indices = [index_of.get(each, len(names)) for each in found]
    return tuple(names), np.array(indices, np.uint32)


Column = Union[Numbers, Names]


def _are_numbers(names: Collection[str]) -> bool:
  return all(map(_NUMBER.fullmatch, names))


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
