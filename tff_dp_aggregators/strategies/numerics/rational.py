"""Rational functions by zeros, poles and residues, without loss where they cluster.

For poles p_j and zeros z_i that interlace,

    prod_i (y - z_i) / prod_j (y - p_j) = constant + sum_j (residue_j / (y - p_j)).

All that enters are differences of zeros and poles; products and quotients of them keep
full relative accuracy, which polynomial coefficients would not.

Buffered linear Toeplitz strategies (`blt`) use this. Arguments are not checked.
"""

from typing import NamedTuple

import numpy as np

_BISECTIONS = 64
# A zero is looked for at distances from a pole down to this part of the gap.
_SMALLEST_OFFSET = 1e-200


def differences(first: np.ndarray, second: np.ndarray) -> np.ndarray:
  """first_i - second_j for all pairs: [..., d] and [..., e] to [..., d, e]."""
  return first[..., :, np.newaxis] - second[..., np.newaxis, :]


class Residues(NamedTuple):
  """Residues and what their gradient takes."""

  values: np.ndarray  # prod_i (z_i - p_j) / prod_{i != j} (p_i - p_j), shape [..., j].
  # 1 / (z_i - p_j), shape [..., i, j]; 0 where a zero removes a pole.
  by_zero: np.ndarray
  by_pole: np.ndarray  # 1 / (p_i - p_j), 0 for i = j, shape [..., i, j].

  def pull_back(self, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Gradient of sum_j weights_j log |values_j| by zeros and by poles."""
    zeros = self.by_zero * weights[..., np.newaxis, :]
    poles = self.by_pole * weights[..., np.newaxis, :]
    return zeros.sum(-1), poles.sum(-2) - poles.sum(-1) - zeros.sum(-2)


def residues(zeros_to_poles: np.ndarray, poles_to_poles: np.ndarray) -> Residues:
  """Residues from z_i - p_j, shape [..., i, j], and p_i - p_j, shape [..., i, j]."""
  identity = np.eye(poles_to_poles.shape[-1])
  between = poles_to_poles + identity
  values = np.prod(zeros_to_poles, axis=-2) / np.prod(between, axis=-2)
  absent = zeros_to_poles == 0.0
  by_zero = np.where(absent, 0.0, 1.0 / np.where(absent, 1.0, zeros_to_poles))
  return Residues(values, by_zero, 1.0 / between - identity)


class Zeros(NamedTuple):
  """Zeros of a rational function, as offsets from the nearest pole."""

  nearest: np.ndarray  # Index of a pole, shape [d].
  offsets: np.ndarray  # z - p[nearest], shape [d].

  def values(self, poles: np.ndarray) -> np.ndarray:
    """z, shape [d]."""
    return poles[self.nearest] + self.offsets

  def to_poles(self, poles: np.ndarray) -> np.ndarray:
    """z_i - p_j, to full relative accuracy in the gap between the nearest poles."""
    return differences(poles[self.nearest], poles) + self.offsets[:, np.newaxis]

  def to_zeros(self, poles: np.ndarray) -> np.ndarray:
    """z_i - z_j."""
    nearest = poles[self.nearest]
    return differences(nearest, nearest) + differences(self.offsets, self.offsets)


def zeros_above(poles: np.ndarray, scales: np.ndarray) -> Zeros:
  """Solves 1 = sum_j scales_j / (z - p_j).

  Between two poles the sum falls from infinity to minus infinity, and beyond the last
  one from infinity to 0: one zero follows each pole. Each is found by bisection of the
  logarithm of its distance from the nearer pole.

  `poles`: p, increasing, shape [d].
  `scales`: Positive, shape [d].
  """
  index, last = np.arange(len(poles)), len(poles) - 1
  if not len(poles):
    return Zeros(index, np.zeros(0))
  halves = np.append(np.diff(poles) / 2, scales.sum())

  def excess(nearest: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    distances = Zeros(nearest, offsets).to_poles(poles)
    return (scales / distances).sum(axis=1) - 1.0

  follows = (excess(index, halves) > 0) & (index < last)  # Nearer to the next pole.
  nearest = index + follows
  sign = np.where(follows, -1.0, 1.0)
  high = np.log(halves)
  low = high + np.log(_SMALLEST_OFFSET)
  for _ in range(_BISECTIONS):
    middle = (low + high) / 2
    # Moving away from a pole lowers the excess on its right side only.
    away = sign * excess(nearest, sign * np.exp(middle)) > 0
    low, high = np.where(away, middle, low), np.where(away, high, middle)
  return Zeros(nearest, sign * np.exp((low + high) / 2))


def zeros_below(poles: np.ndarray, scales: np.ndarray) -> Zeros:
  """Solves 1 = -sum_j scales_j / (z - p_j), where a zero precedes each pole.

  Args and return value as for `zeros_above`, of which this is the mirror image.
  """
  mirrored = zeros_above(-poles[::-1], scales[::-1])
  return Zeros(len(poles) - 1 - mirrored.nearest[::-1], -mirrored.offsets[::-1])
