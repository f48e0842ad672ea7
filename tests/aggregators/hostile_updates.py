"""Updates that a bad client, or a bad day, may send; and what they may do.

`batches` makes many of a few numbers that hypothesis chooses, so that one call of
TensorFlow checks hundreds, and what fails still shrinks to a few numbers.
"""

import fractions
import math

import numpy as np
from hypothesis import strategies as st

DIMENSION = 6
_MAX32, _TINY32 = float(np.finfo(np.float32).max), 2.0**-149
_SPECIAL = (
  *(math.nan, math.inf, -math.inf, _MAX32, -_MAX32, 1.7e308, -1e300, 0.0, -0.0),
  *(_TINY32, -_TINY32, 2.0**-126, 5e-324, 1e-310, 2.0**64, -(2.0**63)),
)
# How many units in the last place above the norm that is clipped to, and below.
_UNITS = (-300, -17, -4, -3, -2, -1, 0, 1, 2, 3, 4, 17, 300)

clip_norms = st.one_of(
  st.sampled_from([1.0, 0.1, 2.0**-80, 2.0**80, 1 + 2.0**-23, 1 - 2.0**-24]),
  st.floats(2.0**-80, 2.0**80, width=32),
)
_coordinates = st.one_of(
  st.floats(width=32), st.floats(-2, 2, width=32), st.sampled_from([0.0, 1.0, -1.0])
)
bases = st.lists(_coordinates, min_size=DIMENSION, max_size=DIMENSION)


def batch(base: list[float], clip_norm: float) -> np.ndarray:
  """Hundreds of hostile updates, rows of float64.

  Args:
    base: Some update.
    clip_norm: What updates are clipped to.
  """
  with np.errstate(all='ignore'):
    rows = [np.array(base, np.float64), -np.array(base, np.float64)]
    rows += [np.roll(rows[0], shift) for shift in range(1, DIMENSION)]
    finite = np.nan_to_num(rows[0], nan=1.0, posinf=_MAX32, neginf=-_MAX32)
    rows += [finite * 2.0**power for power in range(-160, 132, 4)]
    rows += _special(finite)
    directions = (finite, np.ones(DIMENSION), -np.ones(DIMENSION), np.eye(DIMENSION)[0])
    for direction in directions:
      rows += _near_the_bound(direction, clip_norm)
    rows += _near_steps(finite, clip_norm)
  return np.array(rows)


def _special(finite: np.ndarray) -> list[np.ndarray]:
  """One coordinate of them special, or all."""
  rows = [np.full(DIMENSION, number) for number in _SPECIAL]
  for i, number in enumerate(_SPECIAL):
    row = finite.copy()
    row[i % DIMENSION] = number
    rows.append(row)
  return rows


def _near_the_bound(direction: np.ndarray, clip_norm: float) -> list[np.ndarray]:
  """Just above and below the bound in each norm, as float32 and as float64."""
  largest = np.abs(direction).max()
  if not largest:
    return []
  rows = []
  unit = direction / largest
  for order in (1, 2, 3, math.inf):
    at_bound = unit * (clip_norm / np.linalg.norm(unit, order))
    rows += [at_bound * (1 + units * 2.0**-53) for units in _UNITS]
    as_float32 = at_bound.astype(np.float32)
    for units in _UNITS:
      rows.append((as_float32 * np.float32(1 + units * 2.0**-24)).astype(np.float64))
    for towards in (0.0, math.inf):
      away = np.copysign(np.float32(towards), as_float32)
      rows.append(np.nextafter(as_float32, away).astype(np.float64))
  return rows


def _near_steps(finite: np.ndarray, clip_norm: float) -> list[np.ndarray]:
  """Whole and half steps of grids as fine as this clip norm's, and beside them."""
  step = 2.0 ** math.ceil(math.log2(clip_norm)) * 2.0**-39
  whole = np.round(np.clip(finite, -9, 9)) + np.arange(DIMENSION)
  rows = []
  for offset in (0.0, 0.5, -0.5, 1 - 2.0**-40, 2.0**-40, 0.5 + 2.0**-30):
    rows += [(whole + offset) * step, -(whole + offset) * step * 2.0**20]
  return rows


def norm_is_within(integers: np.ndarray, order: float, bound: fractions.Fraction):
  """Whether each row has a p-norm within a bound, by exact arithmetic.

  Args:
    integers: Rows of int64.
    order: Which p-norm: 1, 2, 3, ... or infinity.
    bound: On the norm, in steps.
  """
  exact = np.abs(integers.astype(object))
  if math.isinf(order):
    return exact.max(axis=1) <= bound
  return (exact ** int(order)).sum(axis=1) <= bound ** int(order)
