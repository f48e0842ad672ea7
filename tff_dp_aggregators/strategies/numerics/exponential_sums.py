"""Closed forms of geometric series, and residues and zeros of rational functions.

Buffered linear Toeplitz strategies (`blt`) use this. Arguments are not checked.

Ratios r are given by their complement q = 1 - r, from 0 to 2, because 1 - r would lose
digits where r is close to 1. The cost of a sum does not depend on its length. Functions
whose names end in `_and_slope` return a value and its derivative with respect to q.

For poles p_j and zeros z_i that interlace,

    prod_i (y - z_i) / prod_j (y - p_j) = constant + sum_j (residue_j / (y - p_j)).

Residues are computed from differences of zeros and poles only: their products and
quotients have full relative accuracy, unlike polynomial coefficients.
"""

from typing import NamedTuple, Union

import numpy as np

# Numbers of terms: one, or an array that is broadcast against the complements.
Length = Union[int, np.ndarray]

ValueAndSlope = tuple[np.ndarray, np.ndarray]  # A value and its derivative.

# If complement times length is below this, a Taylor polynomial is more accurate.
_TAYLOR_BELOW = 0.2
_TAYLOR_TERMS = 10  # 0.2**10 / 11! < 1e-14
_LARGEST_BELOW_ONE = 1 - 2.0**-53
_BISECTIONS = 64
# Zeros are searched at distances from a pole down to this fraction of the gap.
_SMALLEST_OFFSET = 1e-200


def power(complement: np.ndarray, exponent: Length) -> np.ndarray:
  """(1 - q)^exponent, exponent >= 0."""
  size = np.exp(exponent * _log_ratio(complement))
  return np.where((complement > 1.0) & (exponent % 2 == 1), -size, size)


def power_complement(complement: np.ndarray, exponent: Length) -> np.ndarray:
  """1 - (1 - q)^exponent, the complement of a power of the ratio."""
  size = exponent * _log_ratio(complement)
  negative = (complement > 1.0) & (exponent % 2 == 1)
  return np.where(negative, 1.0 + np.exp(size), -np.expm1(size))


def _log_ratio(complement: np.ndarray) -> np.ndarray:
  """Logarithm of |1 - q|; for q = 1, of the smallest non-zero |1 - q| in float64."""
  below_one = np.maximum(-complement, complement - 2.0)
  return np.log1p(np.maximum(below_one, -_LARGEST_BELOW_ONE))


def series_and_slope(complement: np.ndarray, length: Length) -> ValueAndSlope:
  """S(q, n), the sum of r^i over i < n."""
  near = complement * length < _TAYLOR_BELOW
  far = np.where(near, 1.0, complement)
  last = power(far, np.maximum(length - 1, 0))
  value = (1.0 - (1.0 - far) * last) / far
  slope = (length * last - value) / far
  return _patch(value, slope, near, complement, length, order=1)


def series_of_series_and_slope(complement: np.ndarray, length: int) -> ValueAndSlope:
  """Sum of S(q, m) over 1 <= m <= n, which is the sum of (n - i) r^i over i < n."""
  near = complement * length < _TAYLOR_BELOW
  far = np.where(near, 1.0, complement)
  inner, inner_slope = series_and_slope(far, length)
  value = (length - (1.0 - far) * inner) / far
  slope = (inner - (1.0 - far) * inner_slope - value) / far
  return _patch(value, slope, near, complement, length + 1, order=2)


def products_of_series_and_slope(complement: np.ndarray, length: int) -> ValueAndSlope:
  """P[i, j] = sum of S(q_i, m) S(q_j, m) over 1 <= m <= n, with its slope by q_i.

  Computed by doubling n, with S(q, n + m) = S(q, n) + r^n S(q, m): O(log n) steps, each
  a sum of terms that are positive for r > 0.
  """
  # The numbers that the first 1, 2, ... binary digits of n form.
  halves = length >> np.arange(length.bit_length())[::-1]
  column = (slice(None),) + (np.newaxis,) * complement.ndim
  series, series_slope = series_and_slope(complement, halves[column])
  decays = power(complement, halves[column])
  decay_slopes = -halves[column] * power(complement, halves[column] - 1)
  total, total_slope = series[0], series_slope[0]
  pairs, pairs_slope = outer(total, total), outer(total_slope, total)
  for step, (half, number) in enumerate(zip(halves, halves[1:])):
    inner, inner_slope = series[step], series_slope[step]
    decay, decay_slope = decays[step], decay_slopes[step]
    late = decay * total
    late_slope = decay_slope * total + decay * total_slope
    both = half * inner + late
    growth = 1.0 + outer(decay, decay)
    pairs_slope = (
      pairs_slope * growth
      + pairs * outer(decay_slope, decay)
      + outer(inner_slope, both)
      + outer(late_slope, inner)
    )
    pairs = pairs * growth + outer(inner, both) + outer(late, inner)
    total = total + both
    total_slope = total_slope + half * inner_slope + late_slope
    if number % 2:
      inner, inner_slope = series[step + 1], series_slope[step + 1]
      pairs_slope = pairs_slope + outer(inner_slope, inner)
      pairs = pairs + outer(inner, inner)
      total, total_slope = total + inner, total_slope + inner_slope
  return pairs, pairs_slope


def product_complement(first: np.ndarray, second: np.ndarray) -> np.ndarray:
  """1 - r_1 r_2, without cancellation where both are close to 1."""
  return first + second * (1.0 - first)


def outer(rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
  """Products of all pairs of the last axis: [..., d] and [..., e] to [..., d, e]."""
  return rows[..., :, np.newaxis] * columns[..., np.newaxis, :]


def _patch(
  value: np.ndarray,
  slope: np.ndarray,
  near: np.ndarray,
  complement: np.ndarray,
  top: Length,
  order: int,
) -> ValueAndSlope:
  """Sets entries that are `near` to sum over k of (-q)^k binomial(top, order + k)."""
  if not np.any(near):
    return value, slope
  q = np.where(near, complement, 0.0)
  polynomial, derivative = np.zeros_like(q), np.zeros_like(q)
  # binomial(top, 0), binomial(top, 1), ...
  binomials: list[Union[float, np.ndarray]] = [1.0]
  for i in range(order + _TAYLOR_TERMS - 1):
    binomials.append(binomials[-1] * (top - i) / (i + 1))
  for coefficient in reversed(binomials[order:]):
    derivative = -polynomial - q * derivative
    polynomial = coefficient - q * polynomial
  return np.where(near, polynomial, value), np.where(near, derivative, slope)


def differences(first: np.ndarray, second: np.ndarray) -> np.ndarray:
  """first_i - second_j for all pairs: [..., d] and [..., e] to [..., d, e]."""
  return first[..., :, np.newaxis] - second[..., np.newaxis, :]


class Residues(NamedTuple):
  """Residues, and the terms of their gradient."""

  values: np.ndarray  # prod_i (z_i - p_j) / prod_{i != j} (p_i - p_j), shape [..., j].
  # 1 / (z_i - p_j), shape [..., i, j]; 0 where a zero and a pole are equal.
  by_zero: np.ndarray
  by_pole: np.ndarray  # 1 / (p_i - p_j), 0 for i = j, shape [..., i, j].

  def pull_back(self, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The gradients of sum_j weights_j log |values_j| by zeros and by poles."""
    zeros = self.by_zero * weights[..., np.newaxis, :]
    poles = self.by_pole * weights[..., np.newaxis, :]
    return zeros.sum(-1), poles.sum(-2) - poles.sum(-1) - zeros.sum(-2)


def residues(zeros_to_poles: np.ndarray, poles_to_poles: np.ndarray) -> Residues:
  """Residues from z_i - p_j, shape [..., i, j], and p_i - p_j, shape [..., i, j]."""
  identity = np.eye(poles_to_poles.shape[-1])
  between = poles_to_poles + identity
  values = np.prod(zeros_to_poles, axis=-2) / np.prod(between, axis=-2)
  cancels = zeros_to_poles == 0.0
  by_zero = np.where(cancels, 0.0, 1.0 / np.where(cancels, 1.0, zeros_to_poles))
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
  """Solves 1 = sum_j scales_j / (z - p_j), p increasing, scales positive.

  Between two poles the sum decreases from infinity to minus infinity, and beyond the
  last one from infinity to 0, so one zero follows each pole. Each is found by bisection
  of the logarithm of its distance from the nearer pole.
  """
  index, last = np.arange(len(poles)), len(poles) - 1
  if not len(poles):
    return Zeros(index, np.zeros(0))
  halves = np.append(np.diff(poles) / 2, scales.sum())

  def excess(nearest: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    distances = Zeros(nearest, offsets).to_poles(poles)
    return (scales / distances).sum(axis=1) - 1.0

  is_next_nearer = (excess(index, halves) > 0) & (index < last)
  nearest = index + is_next_nearer
  sign = np.where(is_next_nearer, -1.0, 1.0)
  high = np.log(halves)
  low = high + np.log(_SMALLEST_OFFSET)
  for _ in range(_BISECTIONS):
    middle = (low + high) / 2
    # Right of a pole, the excess falls with the distance; left of a pole, it rises.
    is_farther = sign * excess(nearest, sign * np.exp(middle)) > 0
    low, high = np.where(is_farther, middle, low), np.where(is_farther, high, middle)
  return Zeros(nearest, sign * np.exp((low + high) / 2))


def zeros_below(poles: np.ndarray, scales: np.ndarray) -> Zeros:
  """Solves 1 = -sum_j scales_j / (z - p_j), the mirror image of `zeros_above`."""
  mirrored = zeros_above(-poles[::-1], scales[::-1])
  return Zeros(len(poles) - 1 - mirrored.nearest[::-1], -mirrored.offsets[::-1])
