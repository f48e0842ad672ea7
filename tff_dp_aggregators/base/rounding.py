"""Formats numbers so that rounding never overstates privacy.

Quantities that are better when small (epsilon, mu, sensitivity, error) are rounded up.
The effective noise multiplier, better when large, is rounded down. Numbers that may be
used as inputs again (noise multiplier, delta, clip norm) are written exactly.
"""

import decimal
import math
from typing import Optional

_SIGNIFICANT = 4  # Significant digits of numbers below _SMALL, or from _LARGE on.
_SMALL, _LARGE = 1e-3, 1e9


def up(value: Optional[float], decimals: int = 4) -> str:
  """Rounds up to `decimals` decimal places; `None` stands for infinity.

  Example:
    >>> up(0.5, 0), up(math.inf)
    ('1', 'infinite')
    >>> up(8.526010001), up(2.0), up(1.00001e-5), up(None)
    ('8.5261', '2.0000', '1.001e-05', 'infinite')
  """
  return _rounded(value, decimals, decimal.ROUND_CEILING)


def down(value: Optional[float], decimals: int = 6) -> str:
  """Rounds down to `decimals` decimal places; `None` stands for infinity.

  Example:
    >>> down(0.78756199), down(7.0)
    ('0.787561', '7.000000')
  """
  return _rounded(value, decimals, decimal.ROUND_FLOOR)


def exact(value: float) -> str:
  """The shortest text that is read back as the same float.

  Example:
    >>> exact(1e-10), exact(1.0), exact(1 / 3)
    ('1e-10', '1', '0.3333333333333333')
  """
  short = f'{value:g}'
  return short if float(short) == value else repr(value)


def _rounded(value: Optional[float], decimals: int, rounding: str) -> str:
  if value is None or value == math.inf:
    return 'infinite'
  if value == 0:
    return '0'
  number = decimal.Decimal(value)  # All digits of the float.
  if _SMALL <= abs(value) < _LARGE:
    return f'{number.quantize(decimal.Decimal(1).scaleb(-decimals), rounding):f}'
  context = decimal.Context(prec=_SIGNIFICANT, rounding=rounding)
  return f'{float(context.plus(number)):.{_SIGNIFICANT - 1}e}'
