"""Tests of Newton's method on power series: derivatives, minima and failures."""

import math

import numpy as np
import pytest

from tests.strategies.every_kind import lower_toeplitz
from tff_dp_aggregators.strategies.numerics import series_optimization
from tff_dp_aggregators.strategies.numerics.descent import ConvergenceError
from tff_dp_aggregators.strategies.numerics.series_optimization import Evaluated
from tff_dp_aggregators.strategies.numerics.series_optimization import LargestRow
from tff_dp_aggregators.strategies.numerics.series_optimization import barrier
from tff_dp_aggregators.strategies.numerics.series_optimization import quadratic
from tff_dp_aggregators.strategies.numerics.series_optimization import quotient

RNG = np.random.default_rng(0)
NUM_ROUNDS = 12
SQUARE = RNG.normal(size=(5, 5))
GRAM = SQUARE @ SQUARE.T
WORKLOAD = np.tril(RNG.normal(size=(NUM_ROUNDS, NUM_ROUNDS)))
COLUMN = RNG.normal(size=NUM_ROUNDS)
POINT = np.array([1.0, 0.6, 0.4, 0.3, 0.1])
INVERSE_POINT = np.array([1.0, -0.4, -0.2, -0.1, -0.05])
FUNCTIONS = {
  'quadratic': quadratic(GRAM),
  'quotient': quotient(COLUMN),
  'largest_row': LargestRow(WORKLOAD, 9.0),
  'sum': lambda z: quadratic(GRAM)(z) + quotient(COLUMN)(z),
  'barrier': barrier(quadratic(GRAM), 3, 9, 0.3),
}


def differences(function, point, step=1e-5):
  """Central differences along each coordinate."""
  steps = step * np.eye(len(point))
  return np.stack(
    [(function(point + s) - function(point - s)) / (2 * step) for s in steps]
  )


@pytest.mark.parametrize('name', FUNCTIONS)
def test_gradients_and_hessians_match_finite_differences(name):
  function = FUNCTIONS[name]
  point = INVERSE_POINT if name == 'barrier' else POINT
  gradient, hessian = function(point).slopes()
  slopes = differences(lambda z: function(z).value, point)
  np.testing.assert_allclose(gradient, slopes, rtol=1e-6, atol=1e-7)
  curvatures = differences(lambda z: function(z).slopes()[0], point)
  np.testing.assert_allclose(hessian, curvatures, rtol=1e-6, atol=1e-6)


def test_workload_gram_gives_error_of_dense_factorization():
  weights = RNG.random(NUM_ROUNDS)
  rows = np.square(WORKLOAD @ lower_toeplitz(POINT, NUM_ROUNDS)).sum(axis=1)
  matrix = series_optimization.workload_gram(WORKLOAD, weights, 5)
  assert POINT @ matrix @ POINT == pytest.approx(weights @ rows, rel=1e-12)
  mean = series_optimization.workload_gram(WORKLOAD, None, 5)
  assert POINT @ mean @ POINT == pytest.approx(rows.mean(), rel=1e-12)


def test_largest_row_is_a_smooth_upper_bound_with_known_gap():
  rows = np.square(WORKLOAD @ lower_toeplitz(POINT, NUM_ROUNDS)).sum(axis=1)
  for exponent in (4.0, 64.0, 1e6):
    function = LargestRow(WORKLOAD, exponent)
    smooth = function(POINT).value
    assert rows.max() * (1 - 1e-12) <= smooth
    assert smooth <= rows.max() * NUM_ROUNDS ** (1 / exponent) * (1 + 1e-12)
    weights = (rows / rows.max()) ** (exponent - 1)
    mean = weights @ rows / weights.sum()
    assert function.gap(POINT) == pytest.approx(1 - mean / rows.max(), abs=1e-12)


def test_minimize_within_finds_the_constrained_minimum():
  # Coefficients of 1 / (1 - 1.5 x) increase, those of 1 / (1 - x) do not.
  def distance(z):
    offset = z - [1.0, -1.5]
    value = float(offset @ offset) + 1.0
    return Evaluated(value, lambda: (2 * offset, 2 * np.eye(2)))

  reports = []
  z = series_optimization.minimize_within(
    distance, 0, 6, np.array([1.0, -0.5]), reports.append
  )
  np.testing.assert_allclose(-z[1] / z[0], 1.0, atol=1e-4)
  assert math.isfinite(barrier(distance, 0, 6, 1.0)(z).value)
  assert not math.isfinite(barrier(distance, 0, 6, 1.0)(np.array([1.0, -1.1])).value)
  assert distance(z).value == pytest.approx(1.125, abs=1e-6)
  assert len(reports) > 5


def test_minimize_without_convergence_is_an_error():
  # The gradient has the wrong sign, so that no step along it lowers the value.
  def wrong_gradient(z):
    return Evaluated(float(1 + z @ z), lambda: (-z, np.eye(len(z))))

  with pytest.raises(ConvergenceError, match='lowers'):
    series_optimization.minimize(wrong_gradient, np.ones(1), lambda _: None)
