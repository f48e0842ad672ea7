"""Arithmetic of power series truncated to n terms, as arrays of coefficients.

A lower-triangular Toeplitz matrix is a power series in the shift: products, inverses
and transposed products of such matrices are computed from their first columns, in
O(n log n) by fast Fourier transforms. Everything is float64.

Rounding: a transform causes errors in all coefficients, relative to the largest one of
about 1e-16 times the logarithm of the length. So sums and norms are relatively
accurate, small coefficients are not. `inverse` avoids transforms if that matters.
"""

import numpy as np
from scipy import fft

_MAX_DIRECT_TERMS = 256  # Up to these, division term by term is as fast as transforms.
_NUM_START_TERMS = 64  # Newton's iteration starts from this many terms.
# If coefficients of the inverse are so much larger than the first one, transforms are
# not used: their rounding errors would exceed the smaller coefficients.
_MAX_GROWTH = 1e3


def multiply(left: np.ndarray, right: np.ndarray, num_terms: int) -> np.ndarray:
  """The first `num_terms` coefficients of a product."""
  left, right = left[:num_terms], right[:num_terms]
  length = len(left) + len(right) - 1
  size = fft.next_fast_len(length, real=True)
  product = fft.irfft(fft.rfft(left, size) * fft.rfft(right, size), size)
  return resized(product[:length], num_terms)


def correlate(left: np.ndarray, right: np.ndarray, num_lags: int) -> np.ndarray:
  """sum_t left[t] right[t - lag] for lags from 0: T' left, T the matrix of `right`."""
  size = fft.next_fast_len(len(left) + len(right) - 1, real=True)
  product = fft.rfft(left, size) * np.conj(fft.rfft(right, size))
  return resized(fft.irfft(product, size)[: len(left)], num_lags)


def divide(
  numerator: np.ndarray, denominator: np.ndarray, num_terms: int
) -> np.ndarray:
  """The first coefficients of a quotient; takes O(num_terms * len(denominator)).

  It is computed term by term, so it is relatively accurate if all terms of the sums
  have the same sign.
  """
  # lfilter computes y[t] = (x[t] - sum_i d[i] y[t - i]) / d[0].
  import scipy.signal  # Slow to import, and few callers need it.

  return scipy.signal.lfilter(
    [1.0], denominator[:num_terms], resized(numerator, num_terms)
  )


def inverse(series: np.ndarray, num_terms: int) -> np.ndarray:
  """The first `num_terms` coefficients of 1 / series.

  They are computed term by term if the series is short or its inverse grows, otherwise
  by Newton's iteration g <- g - g (series g - 1), in O(num_terms log num_terms).
  """
  one = np.ones(1)
  if min(len(series), num_terms) <= _MAX_DIRECT_TERMS:
    return divide(one, series, num_terms)
  result = divide(one, series, _NUM_START_TERMS)
  while len(result) < num_terms:
    result = _newton_step(series, result, min(2 * len(result), num_terms))
    if not np.abs(result).max() <= _MAX_GROWTH * abs(result[0]):
      return divide(one, series, num_terms)
  return result


def _newton_step(series: np.ndarray, known: np.ndarray, num_terms: int) -> np.ndarray:
  """Extends the inverse of a series from `known` to at most twice as many terms."""
  # The products are longer than the transforms, but only terms that are already known
  # are affected by the wrap-around, and these are not changed.
  size = fft.next_fast_len(num_terms, real=True)
  factor = fft.rfft(known, size)
  error = fft.irfft(fft.rfft(series[:num_terms], size) * factor, size)
  error[: len(known)] = 0.0
  error[num_terms:] = 0.0
  correction = fft.irfft(fft.rfft(error, size) * factor, size)
  return np.concatenate([known, -correction[len(known) : num_terms]])


def resized(series: np.ndarray, num_terms: int) -> np.ndarray:
  """Truncates a series, or pads it with zeros."""
  padding = np.zeros(max(0, num_terms - len(series)))
  return np.concatenate([series[:num_terms], padding])
