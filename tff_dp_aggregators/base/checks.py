"""Argument checks for all layers, whose errors name the argument and its value."""

import json
import math
import operator
import threading
from collections.abc import Mapping
from typing import Any, Callable, Optional

_MAX_BITS = 1023  # Whole numbers of at most this many bits fit into a float.


class SetOnce:
  """Public attributes can be set only once: noise and privacy events depend on them."""

  def __setattr__(self, name: str, value: Any) -> None:
    if name in self.__dict__ and not name.startswith('_'):
      raise AttributeError(
        f'{name} cannot be set any more; make another {type(self).__name__}.'
      )
    super().__setattr__(name, value)


def check_positive_int(name: str, value: Any) -> int:
  """Returns `value` as an int, or raises if it is not a whole number from 1 on."""
  return check_int(name, value, at_least=1)


def check_int(name: str, value: Any, at_least: Optional[int] = None) -> int:
  """Returns `value` as an int, or raises if it is not a whole number or too small."""
  if isinstance(value, bool):
    raise TypeError(f'{name} must be a whole number, got {value!r}.')
  try:
    value = operator.index(value)
  except TypeError as e:
    raise TypeError(
      f'{name} must be a whole number, got {value!r} ({type(value).__name__}).'
    ) from e
  if at_least is not None and value < at_least:
    raise ValueError(f'{name} must be at least {at_least}, got {value}.')
  return value


def check_number(name: str, value: Any) -> Any:
  """Returns `value` unchanged; raises if no float can be made of it (`None`, text)."""
  if not hasattr(value, '__float__'):
    raise TypeError(f'{name} must be a number, got {value!r}.')
  if isinstance(value, int) and value.bit_length() > _MAX_BITS:
    raise ValueError(f'{name} must be below 2^{_MAX_BITS}, got an int that is not.')
  return value


def _check(name: str, value: Any, fits: Callable[[Any], bool], rule: str) -> float:
  """Returns `value` as a float, or raises unless it is a number that fits."""
  if not fits(check_number(name, value)):
    raise ValueError(f'{name} must be {rule}; got {value}.')
  return float(value)


def check_positive(name: str, value: Any) -> float:
  """Returns `value` as a float, or raises unless it is positive and finite."""
  return _check(name, value, lambda x: 0 < x < math.inf, 'positive and finite')


def check_within(name: str, value: Any, low: float, high: float) -> float:
  """Returns `value` as a float, or raises unless it is finite, from `low` to `high`."""
  rule = f'at least {low:g}' if high == math.inf else f'from {low:g} to {high:g}'
  return _check(
    name,
    value,
    lambda x: low <= x <= high and abs(x) < math.inf,
    f'finite, and {rule}',
  )


def check_not_negative(name: str, value: Any) -> float:
  """Returns `value` as a float, or raises unless it is finite and not below 0."""
  return _check(name, value, lambda x: 0 <= x < math.inf, 'finite and not negative')


def check_probability(name: str, value: Any) -> float:
  """Returns `value` as a float, or raises unless it is above 0 and at most 1."""
  return _check(name, value, lambda x: 0 < x <= 1, 'above 0 and at most 1')


def check_timeout(seconds: Any) -> Optional[float]:
  """Raises unless `seconds`, the argument `timeout_seconds`, is positive or `None`.

  Returns it, or `None` if it is longer than timers can wait, which is no limit.
  """
  if seconds is not None and not check_number('timeout_seconds', seconds) > 0:
    raise ValueError(
      f'timeout_seconds must be positive, or None for no limit; got {seconds}.'
    )
  return None if seconds is None or seconds > threading.TIMEOUT_MAX else seconds


def check_bool(name: str, value: Any) -> bool:
  """Returns `value`, or raises TypeError unless it is True or False."""
  if value not in (True, False):
    raise TypeError(f'{name} must be True or False, got {value!r}.')
  return bool(value)


def check_json(name: str, value: Any) -> None:
  """Raises unless `value` is a mapping that can be written as JSON."""
  if not isinstance(value, Mapping):
    raise TypeError(f'{name} must be a mapping, got {value!r}.')
  try:
    json.dumps(dict(value), allow_nan=False)
  except (TypeError, ValueError) as e:
    raise type(e)(f'{name} must be JSON-ready: {e}.') from e


def check_objective(objective: str) -> str:
  """Returns `objective` if it is 'mean' (of squared errors) or 'max', or raises."""
  if objective not in ('mean', 'max'):
    raise ValueError(f"objective must be 'mean' or 'max', got {objective!r}.")
  return objective
