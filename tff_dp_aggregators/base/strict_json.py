"""A strict JSON reader: refuses repeated names, infinities and NaN."""

import json
from typing import Any

import msgspec


def loads(text: str) -> Any:
  """Reads a JSON text.

  Example:
    >>> loads('{"epsilon": 1.0, "epsilon": 8.0}')
    Traceback (most recent call last):
    ...
    ValueError: a name is repeated in ['epsilon', 'epsilon'].
  """
  return _DECODER.decode(text)


def convert(data: Any, to: Any) -> Any:
  """Converts data to a type with msgspec; a ValueError says where the types differ."""
  try:
    return msgspec.convert(data, to)
  except msgspec.ValidationError as e:  # Not a ValueError in versions for Python 3.9.
    raise ValueError(str(e)) from e


class Decoder(json.JSONDecoder):
  """A decoder that raises ValueError for everything that it cannot read."""

  def decode(self, *args: Any) -> Any:
    """Reads a text; raises ValueError also where it is nested too deeply."""
    try:
      return super().decode(*args)
    except RecursionError:
      raise ValueError('it is nested too deeply.') from None


def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
  """Makes a JSON object; refuses repeated names, on which readers differ."""
  data = dict(pairs)
  if len(data) != len(pairs):
    raise ValueError(f'a name is repeated in {[name for name, _ in pairs]}.')
  return data


def _refuse_constant(name: str) -> Any:
  raise ValueError(f'{name} is not a number in JSON.')


_DECODER = Decoder(object_pairs_hook=unique, parse_constant=_refuse_constant)
