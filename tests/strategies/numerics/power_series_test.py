"""Tests of power series, against term-by-term arithmetic and closed forms."""

import numpy as np
import pytest

from tff_dp_aggregators.strategies import toeplitz
from tff_dp_aggregators.strategies.numerics import power_series

RNG = np.random.default_rng(0)


@pytest.mark.parametrize('sizes', [(1, 1, 1), (5, 3, 4), (3, 5, 20), (400, 700, 1000)])
def test_multiply_is_truncated_or_zero_padded_convolution(sizes):
  left, right = RNG.normal(size=sizes[0]), RNG.normal(size=sizes[1])
  expected = np.zeros(max(sizes[2], sum(sizes)))
  expected[: sizes[0] + sizes[1] - 1] = np.convolve(left, right)
  product = power_series.multiply(left, right, sizes[2])
  np.testing.assert_allclose(product, expected[: sizes[2]], atol=1e-12)


@pytest.mark.parametrize('size, lags', [(1, 3), (7, 7), (7, 20), (500, 60)])
def test_correlate_matches_sums_over_lags(size, lags):
  left, right = RNG.normal(size=size), RNG.normal(size=size)
  expected = [
    sum(left[t] * right[t - lag] for t in range(lag, size)) for lag in range(lags)
  ]
  np.testing.assert_allclose(
    power_series.correlate(left, right, lags), expected, atol=1e-12
  )


@pytest.mark.parametrize('num_terms', [1, 64, 65, 257, 4097])
@pytest.mark.parametrize('length', [1, 257, 5000])
def test_series_times_its_inverse_is_one(num_terms, length):
  series = toeplitz.square_root_coefficients(length) * (1 + 0.1 * RNG.random(length))
  inverse = power_series.inverse(series, num_terms)
  one = np.convolve(series, inverse)[:num_terms]
  np.testing.assert_allclose(one, np.eye(1, num_terms)[0], atol=1e-13)


def test_inverse_of_square_root_matches_closed_form():
  # Both have closed forms, products of ratios, with small relative errors throughout.
  num_terms = 10**5
  root = toeplitz.square_root_coefficients(num_terms)
  inverse = power_series.inverse(root, num_terms)
  i = np.arange(1, num_terms)
  expected = np.concatenate([[1.0], np.cumprod((2 * i - 3) / (2 * i))])
  np.testing.assert_allclose(inverse, expected, atol=1e-15)
  error = np.cumsum(np.square(np.cumsum(inverse)))
  exact = np.cumsum(np.square(np.cumsum(expected)))
  np.testing.assert_allclose(error, exact, rtol=1e-11)


def test_small_terms_of_a_growing_inverse_are_accurate():
  # With Fourier transforms, rounding of the last terms would exceed the first ones.
  series = np.zeros(400)
  series[:2] = 1.0, -1.5
  np.testing.assert_allclose(
    power_series.inverse(series, 400), 1.5 ** np.arange(400), rtol=1e-12
  )


def test_inverse_of_short_series_has_relatively_accurate_tiny_terms():
  # 1 / (1 - x / 4 - x^2 / 4) in partial fractions.
  root = np.sqrt(1.0625)
  powers = np.arange(1, 1001)
  expected = ((0.125 + root / 2) ** powers - (0.125 - root / 2) ** powers) / root
  inverse = power_series.inverse(np.array([1.0, -0.25, -0.25]), 1000)
  assert inverse[-1] < 1e-100
  np.testing.assert_allclose(inverse, expected, rtol=1e-12)
