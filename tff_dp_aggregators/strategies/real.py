"""Arrays of real numbers, of what callers pass.

NumPy converts complex numbers to real ones by leaving out what is imaginary, with a
warning. What is made of half of a workload or of a matrix would have an error and a
sensitivity of its own.
"""

from typing import Any

import numpy as np


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
  """Raises TypeError if the values are complex numbers, even with nothing imaginary."""
  try:
    is_complex = np.iscomplexobj(values)
  except ValueError:  # Not an array at all.
    return
  if is_complex:
    raise TypeError(
      f'{name} must be real numbers, got complex ones; pass the real part if that is '
      'all there is.'
    )
