"""JSON as the standard means it: no name twice, no infinity, no NaN.

What would be read in one way here and in another elsewhere is refused.
"""

import json
from typing import Any


def loads(text: str) -> Any:
  """Reads a JSON text.

  Raises:
    ValueError: If it is not JSON, a name stands twice in an object, or a number is
      infinite or NaN.

  Example:
    >>> loads('{"epsilon": 1.0, "epsilon": 8.0}')
    Traceback (most recent call last):
    ...
    ValueError: a name stands twice in ['epsilon', 'epsilon'].
  """
  return _DECODER.decode(text)


def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
  """An object, of which two values under one name would be read in two ways.

  Args:
    pairs: Of names and values, as decoders give them.

  Raises:
    ValueError: If a name stands twice.
  """
  data = dict(pairs)
  if len(data) != len(pairs):
    raise ValueError(f'a name stands twice in {[name for name, _ in pairs]}.')
  return data


def _refuse_constant(name: str) -> Any:
  raise ValueError(f'{name} is not a number in JSON.')


_DECODER = json.JSONDecoder(object_pairs_hook=unique, parse_constant=_refuse_constant)
