"""JSON as the standard means it: no name twice, no infinity, no NaN."""

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
  """What msgspec makes of data; ValueError, with the place, if a type differs."""
  try:
    return msgspec.convert(data, to)
  except msgspec.ValidationError as e:  # No ValueError in what runs on Python 3.9.
    raise ValueError(str(e)) from e


class Decoder(json.JSONDecoder):
  """A decoder that raises ValueError for all that it cannot read."""

  def decode(self, *args: Any) -> Any:
    """Reads a text; what is nested too deeply is a ValueError too."""
    try:
      return super().decode(*args)
    except RecursionError:
      raise ValueError('it is nested too deeply.') from None


def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
  """An object, of which two values under one name would be read in two ways."""
  data = dict(pairs)
  if len(data) != len(pairs):
    raise ValueError(f'a name is repeated in {[name for name, _ in pairs]}.')
  return data


def _refuse_constant(name: str) -> Any:
  raise ValueError(f'{name} is not a number in JSON.')


_DECODER = Decoder(object_pairs_hook=unique, parse_constant=_refuse_constant)
