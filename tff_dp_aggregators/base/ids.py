"""Normalises client ids from files, so that each client has one spelling.

A client that is read as two takes part twice as often as the guarantee assumes.
"""

import decimal
import math
import numbers
import re
import unicodedata
from typing import Any

# Values that `pandas.read_csv` reads, and pandas and Excel write, as missing.
MISSING = (
  *('', '#N/A', '#N/A N/A', '#NA', '-1.#IND', '-1.#QNAN', '-NaN', '-nan', '1.#IND'),
  *('1.#QNAN', '<NA>', 'N/A', 'NA', 'NULL', 'NaN', 'None', 'n/a', 'nan', 'null'),
)
# Floats as pandas, NumPy and Excel write them: with a point, or a signed exponent. 12e7
# does not count as one, because hexadecimal ids look like that.
_FLOAT = re.compile(
  r'[+-]?(\d+\.\d*|\.\d+)([eE][+-]?\d+)?|[+-]?\d+[eE][+-]\d+', re.ASCII
)
# From here on, several whole numbers are read as the same float.
_EXACT = 2**53


def of_text(text: str) -> str:
  """Returns an id in its normal form.

  Removes surrounding white space, normalises Unicode (NFC), and turns floats that are
  whole numbers into integers. Raises ValueError for other floats.

  Example:
    >>> of_text(' 7.0'), of_text('7.000000e+00'), of_text('007'), of_text('12e7')
    ('7', '7', '007', '12e7')
  """
  normalized = unicodedata.normalize('NFC', text.strip())
  if not _FLOAT.fullmatch(normalized):
    return normalized
  try:
    number = decimal.Decimal(normalized)
    is_whole = number == number.to_integral_value()
  except decimal.InvalidOperation:  # The exponent has too many digits.
    is_whole = False
  if not is_whole:
    raise ValueError(_FRACTION)
  if int(number.as_tuple().exponent) > 0:
    raise ValueError(
      'a number whose last digits are not written, so that several clients may be '
      'written like that; write ids in full, as text.'
    )
  return _whole(int(number), _EXACT)


def of_number(value: float, exact: int = _EXACT) -> str:
  """Returns the id for a whole number that was read as a float.

  `exact`: The smallest number that such a float does not represent uniquely.

  Example:
    >>> of_number(7.0)
    '7'
  """
  if not math.isfinite(value):
    raise ValueError('not finite; fill in an id, or remove the row.')
  if value != int(value):
    raise ValueError(_FRACTION)
  return _whole(int(value), exact)


def of_client(value: Any) -> str:
  """Returns the id of a client: a text, bytes in UTF-8, a number, or what has a text.

  Raises ValueError for lists and the like, and for values that mark a missing id.

  Example:
    >>> of_client(7.0), of_client(' ann')
    ('7', 'ann')
  """
  if value is None or isinstance(value, (bool, list, dict)):
    raise ValueError(
      f'the client {value!r} is neither a text nor a whole number; write it as one.'
    )
  try:
    value = value.decode() if isinstance(value, bytes) else value
    is_float = not isinstance(value, numbers.Integral) and isinstance(
      value, numbers.Real
    )
    name = of_number(float(value)) if is_float else of_text(str(value))
  except ValueError as e:
    raise ValueError(f'the client {value!r} is {e}') from e
  if name in MISSING:
    raise ValueError(
      f'the client {value!r} reads as a missing id. Fill in the id, or if it is the '
      'name of a client, give that client another one.'
    )
  return name


def look_alike(name: str) -> str:
  """Returns a form that ids share if they may be different spellings of one client.

  Example:
    >>> (
    ...   look_alike('{AB\u200b}') == look_alike('ab'),
    ...   look_alike('007') == look_alike('7'),
    ... )
    (True, True)
  """
  seen = name.lower()
  if not name.isascii():
    folded = unicodedata.normalize('NFKC', name).casefold()
    seen = ''.join(each for each in folded if unicodedata.category(each) != 'Cf')
  return seen.strip(' {}()"\'').lstrip('0')


_FRACTION = 'a fraction; ids of clients must be whole numbers or text.'


def _whole(number: int, exact: int) -> str:
  if abs(number) >= exact:
    raise ValueError(
      f'a float of {exact} or more, which stands for several whole numbers; write ids '
      'as whole numbers or text.'
    )
  return str(number)
