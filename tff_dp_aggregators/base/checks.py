"""Checks of arguments that all layers share, with errors that name the argument."""

import operator
from typing import Any

import numpy as np


def check_positive_int(name: str, value: Any) -> int:
  """`check_int` for numbers from 1."""
  return check_int(name, value, at_least=1)


def check_int(name: str, value: Any, at_least: int) -> int:
  """Returns `value` as an int, or raises if it is not a whole number or too small."""
  if isinstance(value, bool):
    raise TypeError(f'{name} must be a whole number, got {value!r}.')
  try:
    value = operator.index(value)
  except TypeError as e:
    raise TypeError(
      f'{name} must be a whole number, got {value!r} ({type(value).__name__}).'
    ) from e
  if value < at_least:
    raise ValueError(f'{name} must be at least {at_least}, got {value}.')
  return value


def check_number(name: str, value: Any) -> Any:
  """Returns `value` as it is, or raises TypeError if it cannot be a float.

  `None` and text, as settings that were not filled in or not read, have no order, and
  a comparison would not say of which argument.
  """
  if not hasattr(value, '__float__'):
    raise TypeError(f'{name} must be a number, got {value!r}.')
  return value


def check_positive(name: str, value: Any) -> float:
  """Returns `value` as a float, or raises unless it is positive and finite."""
  check_number(name, value)
  if not 0 < value < float('inf'):
    raise ValueError(f'{name} must be positive and finite; got {value}.')
  return float(value)


def check_probability(name: str, value: Any) -> float:
  """Returns `value` as a float, or raises unless it is above 0 and at most 1."""
  if not 0 < check_number(name, value) <= 1:
    raise ValueError(f'{name} must be above 0 and at most 1; got {value}.')
  return float(value)


def check_objective(objective: str) -> str:
  """Returns it if it is 'mean' (of squared errors) or 'max', or raises ValueError."""
  if objective not in ('mean', 'max'):
    raise ValueError(f"objective must be 'mean' or 'max', got {objective!r}.")
  return objective


def array(name: str, values: Any) -> np.ndarray:
  """Returns the values as a float64 array.

  Example:
    >>> array('workload', [1, 2])
    array([1., 2.])
    >>> array('workload', [1, 2j])
    Traceback (most recent call last):
    ...
    TypeError: workload must be real numbers, got complex ones; pass the real part if \
that is all there is.
  """
  refuse_complex(name, values)
  try:
    return np.asarray(values, np.float64)
  except (TypeError, ValueError) as e:
    raise TypeError(f'{name} must be an array of real numbers, got {values!r}.') from e


def numbers(name: str, values: Any) -> tuple[float, ...]:
  """Returns a sequence of finite numbers as floats."""
  refuse_complex(name, values)
  try:
    checked = tuple(float(value) for value in values)
  except (TypeError, ValueError) as e:
    raise TypeError(f'{name} must be a sequence of numbers, got {values!r}.') from e
  if not np.all(np.isfinite(checked)):
    wrong = next(value for value in checked if not np.isfinite(value))
    raise ValueError(f'{name} must be finite, but one is {wrong}.')
  return checked


def refuse_complex(name: str, values: Any) -> None:
  """Raises TypeError if the values are complex numbers, even with nothing imaginary.

  NumPy would leave out what is imaginary, with a warning; half of a workload or of a
  matrix has another error and another sensitivity.
  """
  try:
    is_complex = np.iscomplexobj(values)
  except ValueError:  # Not an array at all.
    return
  if is_complex:
    raise TypeError(
      f'{name} must be real numbers, got complex ones; pass the real part if that is '
      'all there is.'
    )
