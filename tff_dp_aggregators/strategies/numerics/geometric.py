"""Sums of geometric series at a cost that does not grow with their length.

Ratios r are given by their complement q = 1 - r, which is what matters where r is
close to 1 and what a difference from 1 would lose. q is between 0 and 2. Functions that
end in `_and_slope` return a value and its derivative with respect to q.

Buffered linear Toeplitz strategies (`blt`) use this. Arguments are not checked.
"""

from typing import Union

import numpy as np

# Numbers of terms: one, or an array that is broadcast against the complements.
Length = Union[int, np.ndarray]

# Below this product of complement and length, a Taylor polynomial is the accurate way.
_SERIES_BELOW = 0.2
_SERIES_TERMS = 10  # 0.2**10 / 11! < 1e-14
_ALMOST_ONE = 1 - 2.0**-53


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
  """Logarithm of |1 - q|; for q = 1 of the smallest |1 - q| there is."""
  below_one = np.maximum(-complement, complement - 2.0)
  return np.log1p(np.maximum(below_one, -_ALMOST_ONE))


def series_and_slope(
  complement: np.ndarray, length: Length
) -> tuple[np.ndarray, np.ndarray]:
  """S(q, n) = sum of r^i over i < n."""
  near = complement * length < _SERIES_BELOW
  far = np.where(near, 1.0, complement)
  last = power(far, np.maximum(length - 1, 0))
  value = (1.0 - (1.0 - far) * last) / far
  slope = (length * last - value) / far
  return _patch(value, slope, near, complement, length, order=1)


def series_of_series_and_slope(
  complement: np.ndarray, length: int
) -> tuple[np.ndarray, np.ndarray]:
  """Sum of S(q, m) over 1 <= m <= n, which is the sum of (n - i) r^i over i < n."""
  near = complement * length < _SERIES_BELOW
  far = np.where(near, 1.0, complement)
  inner, inner_slope = series_and_slope(far, length)
  value = (length - (1.0 - far) * inner) / far
  slope = (inner - (1.0 - far) * inner_slope - value) / far
  return _patch(value, slope, near, complement, length + 1, order=2)


def products_of_series_and_slope(
  complement: np.ndarray, length: int
) -> tuple[np.ndarray, np.ndarray]:
  """P[i, j] = sum of S(q_i, m) S(q_j, m) over 1 <= m <= n, for all pairs.

  By doubling n, with S(q, n + m) = S(q, n) + r^n S(q, m): O(log n) steps, each a sum of
  terms that are positive for r > 0.

  `complement`: Float64 of shape [..., d].

  Returns P of shape [..., d, d], and its derivative with respect to q_i.
  """
  # The leading binary digits of n, the number they make, and twice that number.
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
) -> tuple[np.ndarray, np.ndarray]:
  """Replaces what is `near` by sum over k of (-q)^k binomial(top, order + k)."""
  if not np.any(near):
    return value, slope
  q = np.where(near, complement, 0.0)
  polynomial, derivative = np.zeros_like(q), np.zeros_like(q)
  for coefficient in reversed(_binomials(top, order)):
    derivative = -polynomial - q * derivative
    polynomial = coefficient - q * polynomial
  return np.where(near, polynomial, value), np.where(near, derivative, slope)


def _binomials(top: Length, order: int) -> list[Union[float, np.ndarray]]:
  """binomial(top, order), binomial(top, order + 1), ..."""
  result: list[Union[float, np.ndarray]] = []
  value: Union[float, np.ndarray] = 1.0
  for i in range(order + _SERIES_TERMS):
    if i >= order:
      result.append(value)
    value = value * (top - i) / (i + 1)
  return result
