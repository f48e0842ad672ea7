"""Ids of clients as they are in files: one who is written in several ways is one.

Whoever is taken for two takes part twice as often as the guarantee is for.
"""

import decimal
import math
import re
import unicodedata

# What `pandas.read_csv` takes for a missing value, and pandas and Excel write.
MISSING = (
  *('', '#N/A', '#N/A N/A', '#NA', '-1.#IND', '-1.#QNAN', '-NaN', '-nan', '1.#IND'),
  *('1.#QNAN', '<NA>', 'N/A', 'NA', 'NULL', 'NaN', 'None', 'n/a', 'nan', 'null'),
)
# With a point, or with an exponent that has a sign, as pandas, NumPy and Excel write
# them. 12e7 is none: hexadecimal digits look like that.
_FLOAT = re.compile(
  r'[+-]?(\d+\.\d*|\.\d+)([eE][+-]?\d+)?|[+-]?\d+[eE][+-]\d+', re.ASCII
)
# From here on a float is not the only whole number that it stands for.
_EXACT = 2**53


def of_text(text: str) -> str:
  """The one way to write an id.

  White space around it is none of it, nor is it another with letters that Unicode
  composes otherwise, or if it is a whole number that was written as a float.

  Example:
    >>> of_text(' 7.0'), of_text('7.000000e+00'), of_text('007'), of_text('12e7')
    ('7', '7', '007', '12e7')
  """
  found = unicodedata.normalize('NFC', text.strip())
  if not _FLOAT.fullmatch(found):
    return found
  try:
    number = decimal.Decimal(found)
    is_whole = number == number.to_integral_value()
  except decimal.InvalidOperation:  # An exponent of very many digits.
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
  """The id that is a whole number, which was read as a float.

  Example:
    >>> of_number(7.0)
    '7'
  """
  if not math.isfinite(value):
    raise ValueError('not finite; fill in an id, or remove the row.')
  if value != int(value):
    raise ValueError(_FRACTION)
  return _whole(int(value), exact)


_FRACTION = 'a fraction; ids of clients must be whole numbers or text.'


def _whole(number: int, exact: int) -> str:
  if abs(number) >= exact:
    raise ValueError(
      f'a float of {exact} or more, which stands for several whole numbers; write ids '
      'as whole numbers or text.'
    )
  return str(number)
