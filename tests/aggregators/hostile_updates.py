"""Updates that a malicious or faulty client may send, and bounds on their effect.

`batch` makes hundreds of updates from a few numbers that hypothesis draws, so that one
call of TensorFlow checks all of them, and a failure still shrinks to a few numbers.
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
# Offsets from the clip norm, in units in the last place.
_ULPS = (-300, -17, -4, -3, -2, -1, 0, 1, 2, 3, 4, 17, 300)

clip_norms = st.one_of(
  st.sampled_from([1.0, 0.1, 2.0**-80, 2.0**80, 1 + 2.0**-23, 1 - 2.0**-24]),
  st.floats(2.0**-80, 2.0**80, width=32),
)
_coordinates = st.one_of(
  st.floats(width=32), st.floats(-2, 2, width=32), st.sampled_from([0.0, 1.0, -1.0])
)
bases = st.lists(_coordinates, min_size=DIMENSION, max_size=DIMENSION)


def batch(base: list[float], clip_norm: float) -> np.ndarray:
  """Returns hundreds of hostile updates, as rows of float64.

  Args:
    base: An update.
    clip_norm: The norm to which updates are clipped.
  """
  with np.errstate(all='ignore'):
    rows = [np.array(base, np.float64), -np.array(base, np.float64)]
    rows += [np.roll(rows[0], shift) for shift in range(1, DIMENSION)]
    finite = np.nan_to_num(rows[0], nan=1.0, posinf=_MAX32, neginf=-_MAX32)
    rows += [finite * 2.0**power for power in range(-160, 132, 4)]
    rows += _special(finite)
    directions = (finite, np.ones(DIMENSION), -np.ones(DIMENSION), np.eye(DIMENSION)[0])
    for direction in directions:
      rows += _near_bound(direction, clip_norm)
    rows += _near_grid_points(finite, clip_norm)
  return np.array(rows)


def _special(finite: np.ndarray) -> list[np.ndarray]:
  """Returns updates of which one coordinate, or all, are special numbers."""
  rows = [np.full(DIMENSION, number) for number in _SPECIAL]
  for i, number in enumerate(_SPECIAL):
    row = finite.copy()
    row[i % DIMENSION] = number
    rows.append(row)
  return rows


def _near_bound(direction: np.ndarray, clip_norm: float) -> list[np.ndarray]:
  """Returns updates just above and below the bound in each norm, in both precisions."""
  maximum = np.abs(direction).max()
  if not maximum:
    return []
  rows = []
  scaled = direction / maximum
  for order in (1, 2, 3, math.inf):
    at_bound = scaled * (clip_norm / np.linalg.norm(scaled, order))
    rows += [at_bound * (1 + ulps * 2.0**-53) for ulps in _ULPS]
    as_float32 = at_bound.astype(np.float32)
    for ulps in _ULPS:
      rows.append((as_float32 * np.float32(1 + ulps * 2.0**-24)).astype(np.float64))
    for limit in (0.0, math.inf):
      target = np.copysign(np.float32(limit), as_float32)
      rows.append(np.nextafter(as_float32, target).astype(np.float64))
  return rows


def _near_grid_points(finite: np.ndarray, clip_norm: float) -> list[np.ndarray]:
  """Returns updates at whole and half steps of the clip norm's grid, and near them."""
  step = 2.0 ** math.ceil(math.log2(clip_norm)) * 2.0**-39
  whole = np.round(np.clip(finite, -9, 9)) + np.arange(DIMENSION)
  rows = []
  for offset in (0.0, 0.5, -0.5, 1 - 2.0**-40, 2.0**-40, 0.5 + 2.0**-30):
    rows += [(whole + offset) * step, -(whole + offset) * step * 2.0**20]
  return rows


def norm_is_within(integers: np.ndarray, order: float, bound: fractions.Fraction):
  """Returns whether each row's p-norm is within a bound, by exact arithmetic.

  Args:
    integers: Rows of int64.
    order: The p of the norm: 1, 2, 3, ... or infinity.
    bound: Bound on the norm, in steps.
  """
  exact = np.abs(integers.astype(object))
  if math.isinf(order):
    return exact.max(axis=1) <= bound
  return (exact ** int(order)).sum(axis=1) <= bound ** int(order)
