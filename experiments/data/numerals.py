"""How numbers are written in texts: with a decimal point or comma, and in groups.

What is not said is not guessed: a number that can be read in another way is refused,
and the message names the flags that say how.
"""

import dataclasses
import functools
import re
import shlex
from typing import Any, Optional

import numpy as np

from . import problems
from .formats import source

DECIMALS = ('.', ',')
# Between groups of digits: a sign that a flag has, and all that it stands for.
THOUSANDS = {',': ',', '.': '.', ' ': ' \u00a0\u202f', "'": "'\u2019"}
_SIGNS = frozenset(''.join(THOUSANDS.values()))


@dataclasses.dataclass(frozen=True)
class Numerals:
  """How numbers are written.

  Example:
    >>> Numerals(decimal=',', thousands='.').standard(['1.234,5', 'red'], 'x', str)
    ['1234.5', 'red']
    >>> print(Numerals().remark('0,25'))
    --decimal=, reads a number that is written so.
    >>> print(Numerals().remark('34,558'))
    --thousands=, or --decimal=, reads a number that is written so.
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
        f'{_flags(decimal, thousands)} has it. Correct it, or the flag.'
      )
    return text

  def remark(self, text: str) -> Optional[str]:
    """What is to be said of a text that would be a number, were it said how.

    Returns a sentence that names flags; `None` if it is no number in any way.
    """
    text = text.strip()
    as_said = _pattern(self.decimal or '.', self.thousands or '')
    if _SIGNS.isdisjoint(text) or as_said.fullmatch(text):
      return None
    found = []
    for decimal in DECIMALS if self.decimal is None else (self.decimal,):
      groups = ('', *THOUSANDS) if self.thousands is None else (self.thousands,)
      for thousands in groups:
        if decimal != thousands and _pattern(decimal, thousands).fullmatch(text):
          found.append(
            _flags(
              decimal if self.decimal is None else '.',
              thousands if self.thousands is None else '',
            )
          )
          break  # What needs fewer flags comes first.
      if found and ',' not in text:
        break
    if found:
      return f'{" or ".join(found)} reads a number that is written so.'
    if self.thousands:
      ungrouped = ''.join(c for c in text if c not in THOUSANDS[self.thousands])
      if _pattern(self.decimal or '.', '').fullmatch(ungrouped):
        return (
          f'Its digits are not in groups of three, as '
          f'{_flags(".", self.thousands)} says.'
        )
    return None


def _flags(decimal: str, thousands: str) -> str:
  """The flags that say how numbers are written, as the shell takes them."""
  said = [f'--decimal={decimal}'] if decimal != '.' else []
  said += [f'--thousands={thousands}'] if thousands else []
  return ' '.join(map(shlex.quote, said))


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
