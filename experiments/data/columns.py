"""Columns of a table, numbers or names from a limited set, and how they are written.

What is not said is not guessed: a number that can be read in another way is refused,
and the message names the flags that say how.
"""

import dataclasses
import functools
import math
import re
from collections.abc import Iterable, Sequence
from typing import Any, Callable, Optional

import numpy as np

from tff_dp_aggregators.base import ids as ids_lib

from . import hashing
from . import problems
from .formats import source

DECIMALS = ('.', ',')
# Between groups of digits: a sign that a flag has, and all that it stands for.
THOUSANDS = {',': ',', '.': '.', ' ': ' \u00a0\u202f', "'": "'\u2019"}
_SIGNS = frozenset(''.join(THOUSANDS.values()))
REMARK = 'If it is a number, say by --decimal= or --thousands= how it is written.'


@dataclasses.dataclass(frozen=True)
class Numerals:
  """How numbers are written.

  Example:
    >>> Numerals(decimal=',', thousands='.').standard(['1.234,5', 'red'], 'x', str)
    ['1234.5', 'red']
    >>> Numerals().remark('0,25') == Numerals().remark('34,558') == REMARK
    True
    >>> print(Numerals().remark('red'), Numerals(',', '').remark('0,25'))
    None None
  """

  # `--decimal`; `None` for a point, which nobody has said.
  decimal: Optional[str] = None
  # `--thousands`, empty for none; `None` for none, which nobody has said.
  thousands: Optional[str] = None

  @property
  def are_plain(self) -> bool:
    """Whether numbers are written as Python reads them."""
    return self.decimal in (None, '.') and not self.thousands

  def standard(self, values: source.Values, name: str, where: Any) -> source.Values:
    """Values as they are, and numbers that are text as Python reads them."""
    if self.are_plain or (isinstance(values, np.ndarray) and values.dtype.kind != 'U'):
      return values
    if isinstance(values, np.ndarray):
      values = values.tolist()
    return [
      self._one(value, name, where, number) if isinstance(value, str) else value
      for number, value in enumerate(values)
    ]

  def _one(self, text: str, name: str, where: Any, number: int) -> str:
    stripped = text.strip()
    decimal, thousands = self.decimal or '.', self.thousands or ''
    if _pattern(decimal, thousands).fullmatch(stripped):
      for sign in THOUSANDS.get(thousands, ''):
        stripped = stripped.replace(sign, '')
      return stripped.replace(decimal, '.')
    if _pattern('.', '').fullmatch(stripped):
      raise problems.DataError(
        f'{where(number)}: {name} is {problems.shown(text)}, which is not a number as '
        f'--decimal={decimal} --thousands={thousands} has it. Correct it, or the flags.'
      )
    return text

  def remark(self, text: str) -> Optional[str]:
    """What is to be said of a text that would be a number, were it said how.

    Or had it groups of three digits; `None` if it is no number in any way.
    """
    text = text.strip()
    decimal, thousands = self.decimal or '.', self.thousands or ''
    if _SIGNS.isdisjoint(text) or _pattern(decimal, thousands).fullmatch(text):
      return None
    for one in DECIMALS if self.decimal is None else (decimal,):
      for other in ('', *THOUSANDS) if self.thousands is None else (thousands,):
        if one != other and _pattern(one, other).fullmatch(text):
          return REMARK
    ungrouped = ''.join(c for c in text if c not in THOUSANDS.get(thousands, ''))
    is_number = thousands and _pattern(decimal, '').fullmatch(ungrouped)
    return REMARK if is_number else None


@functools.cache
def _pattern(decimal: str, thousands: str) -> 're.Pattern[str]':
  """Numbers; groups are of three digits, or of two before those, as in India."""
  point = re.escape(decimal)
  whole = r'\d+'
  if thousands:
    sign = f'[{re.escape(THOUSANDS[thousands])}]'
    whole = rf'(?:[1-9]\d{{0,2}}(?:{sign}\d{{2,3}})*{sign}\d{{3}}|\d+)'
  return re.compile(
    rf'[+-]?(?:{whole}(?:{point}\d*)?|{point}\d+)(?:[eE][+-]?\d+)?', re.ASCII
  )


# What float32 can hold.
_LARGEST = float(np.finfo(np.float32).max)
# Said of a row by its number in a batch.
Where = Callable[[int], str]


class Missing:
  """What says that a value is missing, besides nothing: what `--missing_values` lists.

  Example:
    >>> missing = Missing(['NA', '-999'])
    >>> missing.has(' NA'), missing.has('-999.0'), missing.has('nan')
    (True, True, False)
  """

  def __init__(self, listed: Optional[Iterable[str]] = None):
    # Without a list, those of `pandas.read_csv`; of a number all ways to write it.
    texts = ids_lib.MISSING if listed is None else listed
    self.texts = frozenset(text.strip() for text in texts) - {''}
    found = (float(text) for text in self.texts if is_number(text))
    # A number that says so does it in whatever way it is written.
    self._numbers = np.array([each for each in found if math.isfinite(each)])

  def has(self, value: Any) -> bool:
    if not isinstance(value, (str, int, float)):
      return False
    if str(value).strip() in self.texts:
      return True
    return is_number(value) and bool(self.among(numbers([value])).any())

  def among(self, found: np.ndarray) -> np.ndarray:
    """Which of some numbers say so."""
    if not self._numbers.size:
      return np.zeros(found.shape, bool)
    return np.isin(found, self._numbers)

  @functools.cached_property
  def keys(self) -> np.ndarray:
    """Keys of the ids that the texts would be, see `hashing.of_ids`."""
    return hashing.of_ids(sorted(self.texts))

  def error(self, value: Any, name: str, where: str) -> problems.DataError:
    said = (
      f'{where}: {name} is {problems.shown(value)}, which says that a value is '
      'missing. Fill it in, or remove the row. If it is a value, give --missing_values '
      'with only those texts that say so, or with none (--missing_values=).'
    )
    return problems.ValueOfRowError(said, name, self.has)


def numbers(values: source.Values) -> np.ndarray:
  """Values as float64, whole arrays of them if an entry is one.

  Raises:
    ValueError, TypeError, OverflowError: If one is no number, or of another shape.
  """
  if isinstance(values, np.ndarray) and values.dtype.kind in 'biuf':
    return values.astype(np.float64)
  if set(map(type, values)) == {str}:  # Which NumPy reads slowly.
    found = np.fromiter(map(float, values), np.float64, len(values))
  else:
    found = np.array(values, np.float64)
  texts_of = (value for value in values if isinstance(value, str))
  if '_' in ''.join(texts_of):
    raise ValueError('Python reads 1_000, which nobody means.')
  return found


def is_number(value: Any) -> bool:
  """Whether a value, or all in an array, are numbers, be they finite or not."""
  try:
    numbers([value])
  except (ValueError, TypeError, OverflowError):
    return False
  return value is not None


@dataclasses.dataclass(frozen=True)
class Reading:
  # What says that one is missing.
  missing: Missing = dataclasses.field(default_factory=Missing)
  numerals: Numerals = Numerals()  # How numbers are written.


def finite(
  values: source.Values, name: str, where: Where, remedy: str, reading: Reading
) -> np.ndarray:
  """Numbers that float32 can hold."""

  def are_good(found: np.ndarray) -> bool:
    return bool(((np.abs(found) <= _LARGEST) & ~reading.missing.among(found)).all())

  def is_bad(value: Any) -> bool:
    return not is_number(value) or not are_good(numbers([value]))

  try:
    found = numbers(values)
    if are_good(found):
      return found
  except (ValueError, TypeError, OverflowError):
    pass
  number = next((i for i, value in enumerate(values) if is_bad(value)), None)
  why = 'of another shape than values before'
  if number is None:
    shape = np.shape(values[0])
    number = next(i for i, value in enumerate(values) if np.shape(value) != shape)
  else:
    why = f'not {"finite in float32" if is_number(values[number]) else "a number"}'
  value = values[number]
  if is_empty(value):
    raise _empty(name, where(number))
  if reading.missing.has(value):
    raise reading.missing.error(value, name, where(number))
  remark = reading.numerals.remark(value) if isinstance(value, str) else None
  raise problems.ValueOfRowError(
    f'{where(number)}: {name} is {problems.shown(value)}, which is {why}. '
    f'{f"{remark} " if remark else ""}{remedy}',
    name,
    is_bad,
  )


def _empty(name: str, where: str) -> problems.DataError:
  said = f'{where}: {name} is empty. Fill it in, or remove the row.'
  return problems.ValueOfRowError(said, name, is_empty)


def is_empty(value: Any) -> bool:
  """Whether there is nothing: no text, or null."""
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
  """Ids of clients as text, so that one who is written in several ways is one client.

  Whoever is taken for two takes part twice as often as the guarantee is for. So white
  space around an id is none of it, nor is it another with letters that Unicode composes
  otherwise; and whole numbers have one way to be written, floats included.
  """
  exact = 2**53
  if isinstance(values, np.ndarray) and values.ndim == 1:
    if values.dtype.kind == 'f':
      exact = 2 ** (np.finfo(values.dtype).nmant + 1)
    values = values.tolist()
  found = []
  for number, value in enumerate(values):
    text = '' if isinstance(value, float) else _as_text(value, name, where, number)
    try:
      if isinstance(value, bool):
        raise ValueError('neither text nor a whole number.')
      if isinstance(value, float):
        text = ids_lib.of_number(value, exact)
      found.append(ids_lib.of_text(text))
    except ValueError as e:
      raise problems.DataError(
        f'{where(number)}: {name} is {problems.shown(value)}, which is {e}'
      ) from e
    if reading.missing.has(found[-1]):
      raise reading.missing.error(value, name, where(number))
    if (remark := reading.numerals.remark(found[-1])) is not None:
      raise problems.DataError(
        f'{where(number)}: {name} is {problems.shown(value)}. {remark} If it is text, '
        'give --decimal=. --thousands= for numbers with a point and no groups.'
      )
  return found


def _as_text(value: Any, name: str, where: Where, number: int) -> str:
  is_text = isinstance(value, (str, int)) or (
    isinstance(value, float) and math.isfinite(value)
  )
  try:
    text = None if value is None else str(value) if is_text else bytes.decode(value)
  except (TypeError, UnicodeDecodeError) as e:
    raise problems.DataError(
      f'{where(number)}: {name} is {problems.shown(value)}, which is neither text in '
      'UTF-8 nor a finite number.'
    ) from e
  if text is None or is_empty(text):
    raise _empty(name, where(number))
  return text


class Names:
  """A column with values from a limited set, such as classes; numbered as they come.

  The same number written in two ways is one value, if all values are numbers.
  """

  def __init__(
    self,
    name: str,
    limit: int,
    too_many: str,
    reading: Reading,
    # All values that there may be, as `names` once gave them; `None` for any.
    known: Optional[tuple[str, ...]] = None,
    # What may be done if a value is a number; `None` if it may be one.
    no_numbers: Optional[str] = None,
    has_others: bool = False,
  ):
    self._name, self._limit, self._too_many = name, limit, too_many
    self._reading, self._no_numbers = reading, no_numbers
    self._has_others = has_others
    self._known = None if known is None else frozenset(known)
    self._known_numbers = known is not None and all(map(is_number, known))
    self._codes: dict[str, int] = {}
    self._hashes = np.zeros(0, np.uint64)

  def add(self, values: source.Values, where: Where) -> np.ndarray:
    found = texts(values, self._name, where)
    new = [text for text in dict.fromkeys(found) if text not in self._codes]
    for text in new:
      self._check_new(text, lambda: where(list(found).index(text)))  # noqa: B023
      self._codes[text] = len(self._codes)
    if new:
      self._hashes = np.append(self._hashes, hashing.of_texts(new)[:, 0])
    return np.fromiter(map(self._codes.__getitem__, found), np.uint32, len(found))

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
      why = f'and values before are text. {hint}{self._no_numbers}'
    elif self._known is None and len(self._codes) == self._limit:
      why = f'and there are {self._limit} other values already. {self._too_many}'
    elif self._known is not None and not self._has_others:
      is_known = is_plain_number or not self._known_numbers
      if not is_known or _canonical(text, self._known_numbers) not in self._known:
        known = problems.listed(sorted(self._known))
        why = f'which the training data do not have; theirs are {known}.'
    if why:
      said = f'{self._name} is {problems.shown(text)}'
      raise problems.DataError(f'{where()}: {said}, {why}')

  def hashes(self, codes: np.ndarray) -> np.ndarray:
    return np.asarray(self._hashes[codes])

  def names(self) -> tuple[tuple[str, ...], np.ndarray]:
    """The values in order, and the place in them of each code."""
    are_numbers = self._known_numbers
    if self._known is None:
      are_numbers = all(map(is_number, self._codes))
    canonical = [
      _canonical(text, are_numbers and is_number(text)) for text in self._codes
    ]
    unsorted = set(canonical) if self._known is None else self._known
    names = sorted(unsorted, key=float if are_numbers else None)
    places = {name: place for place, name in enumerate(names)}
    numbers = [places.get(each, len(names)) for each in canonical]
    return tuple(names), np.array(numbers, np.uint32)


def _canonical(text: str, is_of_numbers: bool) -> str:
  """One way to write a value."""
  return number_name(float(text)) if is_of_numbers else text


def number_name(value: float) -> str:
  return str(int(value)) if value == int(value) else repr(value)
