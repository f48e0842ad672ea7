"""How numbers are written in texts: with a decimal point or comma, and in groups.

What is not said is not guessed: a number that can be read in another way is refused,
and the message names the flags that say how.
"""

import dataclasses
import functools
import re
from typing import Any, Optional

import numpy as np

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
