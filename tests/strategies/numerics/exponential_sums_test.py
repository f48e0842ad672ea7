"""Tests of geometric sums and powers, against exact rational arithmetic.

Complements go down to 1e-12, where floating point sums of differences from 1 would lose
most digits.
"""

import fractions
import itertools

import numpy as np
import pytest

from tff_dp_aggregators.strategies.numerics import exponential_sums

COMPLEMENTS = [0.0, 1e-12, 1e-7, 0.003, 0.0399, 0.2, 0.49, 0.5, 0.75, 1.0, 1.25, 2.0]
LENGTHS = [1, 2, 5, 50]
each_case = pytest.mark.parametrize(
  'complement, length', list(itertools.product(COMPLEMENTS, LENGTHS))
)


def exact_series(complement, length):
  """Returns sums of 1, 2, ... terms, and their derivatives by the complement."""
  ratio = 1 - fractions.Fraction(complement)
  total, slope, power, power_slope = (fractions.Fraction(0) for _ in range(4))
  power += 1
  sums, slopes = [], []
  for _ in range(length):
    total, slope = total + power, slope + power_slope
    sums.append(total)
    slopes.append(slope)
    power, power_slope = power * ratio, power_slope * ratio - power
  return sums, slopes


@each_case
def test_series_and_slope_match_exact_rational_sums(complement, length):
  sums, slopes = exact_series(complement, length)
  value, slope = exponential_sums.series_and_slope(np.array([complement]), length)
  assert value[0] == pytest.approx(float(sums[-1]), rel=3e-15, abs=1e-15)
  assert slope[0] == pytest.approx(float(slopes[-1]), rel=1e-12, abs=1e-12)


@pytest.mark.parametrize('length', [1, 2, 3, 31, 32, 33])
def test_products_of_series_and_slope_match_exact_sums(length):
  complements = [c for c in COMPLEMENTS if c <= 1]
  sums, slopes = zip(*(exact_series(c, length) for c in complements))
  values, value_slopes = exponential_sums.products_of_series_and_slope(
    np.array(complements), length
  )
  for i, j in itertools.product(range(len(complements)), repeat=2):
    expected = sum(a * b for a, b in zip(sums[i], sums[j]))
    expected_slope = sum(a * b for a, b in zip(slopes[i], sums[j]))
    assert values[i, j] == pytest.approx(float(expected), rel=2e-14)
    assert value_slopes[i, j] == pytest.approx(
      float(expected_slope), rel=1e-12, abs=1e-12
    )


def test_powers_and_their_complements_match_exact_values():
  for complement, exponent in itertools.product(COMPLEMENTS, [0, 1, 2, 7, 100]):
    exact = (1 - fractions.Fraction(complement)) ** exponent
    value = exponential_sums.power(np.array([complement]), exponent)[0]
    rest = exponential_sums.power_complement(np.array([complement]), exponent)[0]
    assert value == pytest.approx(float(exact), rel=1e-13, abs=1e-15)
    assert rest == pytest.approx(float(1 - exact), rel=1e-14, abs=1e-15)
