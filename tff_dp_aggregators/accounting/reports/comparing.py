"""Where two statements differ."""

import math
from collections.abc import Iterator
from typing import Any

from tff_dp_aggregators.accounting import mechanism as mechanism_lib

# Numbers may differ by so much, relative: another machine's last digits.
TOLERANCE = 1e-9


def differences(
  stated: Any, found: Any, name: str = '', tolerance: float = TOLERANCE
) -> Iterator[str]:
  """One line for each value that is not the same, naming it and both values.

  Args:
    stated: JSON-ready.
    found: JSON-ready, what it should be.
    name: Of the value; empty for the whole.
    tolerance: By how much numbers may differ, relative.
  """
  if isinstance(stated, dict) and isinstance(found, dict):
    options = mechanism_lib.options()
    for key in dict.fromkeys([*stated, *found]):
      inner = f'{name}.{key}' if name else key
      if key not in stated or key not in found:
        if key in options and stated.get(key) is found.get(key) is None:
          continue  # One of a kind of strategy that came later.
        where = 'missing' if key not in stated else 'not computed here'
        yield f'{inner} is {where}'
      else:
        yield from differences(stated[key], found[key], inner, tolerance)
  elif isinstance(stated, list) and isinstance(found, list):
    if len(stated) != len(found):
      yield f'{name} has {len(stated)} entries, computed {len(found)}'
      return
    for index, (one, other) in enumerate(zip(stated, found)):
      yield from differences(one, other, f'{name}[{index}]', tolerance)
  elif not _same(stated, found, tolerance):
    yield f'{name} is {stated!r}, computed {found!r}'


def _same(stated: Any, found: Any, tolerance: float) -> bool:
  numbers = (int, float)
  if isinstance(stated, bool) or isinstance(found, bool):
    return stated is found
  if isinstance(stated, numbers) and isinstance(found, numbers):
    return math.isclose(stated, found, rel_tol=tolerance, abs_tol=1e-300)
  return bool(stated == found) and type(stated) is type(found)
