"""Tests of banded Toeplitz strategies: their matrices and errors.

`sensitivity_test` and `numerics/toeplitz_sensitivity_test` test their sensitivity.
Errors are compared with figures of peers (matrix_factorization.json).
"""

import math

import numpy as np
import pytest

from tests.strategies import every_kind
from tff_dp_aggregators.strategies import BandedToeplitz
from tff_dp_aggregators.strategies import Participation
from tff_dp_aggregators.strategies import toeplitz


def test_square_root_coefficients_are_central_binomials():
  expected = [math.comb(2 * i, i) / 4**i for i in range(200)]
  np.testing.assert_allclose(
    toeplitz.square_root_coefficients(200), expected, rtol=1e-13
  )


@pytest.mark.parametrize(
  'coefficients', [(2.5,), (1.0, -0.75, 0.5, 0.0, -2.0), (1.0,) * 9], ids=len
)
def test_materialize_is_toeplitz_matrix_of_coefficients(coefficients):
  strategy = BandedToeplitz(9, coefficients)
  matrix = every_kind.lower_toeplitz(coefficients, 9)
  np.testing.assert_array_equal(strategy.materialize(), matrix)
  np.testing.assert_allclose(strategy.noise_matrix(), np.linalg.inv(matrix), atol=1e-12)


@pytest.mark.parametrize('num_rounds, num_bands', [(10, 3), (30, 30), (17, 1)])
def test_square_root_has_unit_columns_not_unit_rows(num_rounds, num_bands):
  # A client's contribution to round j meets column j. Normalising rows instead makes
  # the first round's noise too small by the factor coefficients[0].
  strategy = BandedToeplitz.square_root(num_rounds, num_bands)
  matrix = strategy.materialize()
  columns = np.linalg.norm(matrix, axis=0)
  np.testing.assert_allclose(columns[: num_rounds - num_bands + 1], 1.0, rtol=1e-14)
  assert np.all(columns <= 1 + 1e-14)
  assert strategy.sensitivity() == pytest.approx(columns.max(), rel=1e-14)
  assert matrix[0, 0] == strategy.coefficients[0]


@pytest.mark.parametrize(
  'result', every_kind.figures('full_toeplitz_square_root')[:2], ids=str
)
def test_full_square_root_error_matches_published_figures(result):
  n = result['num_rounds']
  strategy = BandedToeplitz.square_root(n, n)
  assert strategy.sensitivity() == pytest.approx(1.0, rel=1e-12)
  assert strategy.rmse() == pytest.approx(result['rmse'], rel=1e-12)
  assert strategy.max_error() == pytest.approx(result['max_error'], rel=1e-12)


@pytest.mark.parametrize(
  'coefficients, error, message',
  [
    ((), ValueError, 'coefficients must be 1 to num_rounds=3 numbers, got 0'),
    ((1.0,) * 4, ValueError, 'got 4'),
    ((0.0, 1.0), ValueError, r'coefficients\[0\] must be positive'),
    ((1.0, math.nan), ValueError, 'coefficients must be finite'),
    (None, TypeError, 'coefficients must be'),
    ([[1.0, 2.0]], TypeError, 'coefficients must be'),
  ],
)
def test_invalid_coefficients_are_refused(coefficients, error, message):
  with pytest.raises(error, match=message):
    BandedToeplitz(3, coefficients)


@pytest.mark.few(3)
@pytest.mark.parametrize('result', every_kind.figures('banded_toeplitz'), ids=str)
def test_optimized_error_matches_converged_error_of_the_peer(result):
  objective = result['objective']
  strategy = toeplitz.optimize(
    result['num_rounds'], num_bands=result['num_bands'], objective=objective
  )
  peer_error = result['rmse'] if objective == 'mean' else result['max_error']
  assert strategy.error(objective) == pytest.approx(peer_error, rel=1e-12)
  assert strategy.sensitivity() == pytest.approx(1.0, rel=1e-14)
  assert strategy.num_bands == result['num_bands']


@pytest.mark.parametrize(
  'schema, objective, error_bound',
  # The best known mean error is 7.849. A windowed BLT, which has these bands as well,
  # reaches a maximal error of 25.7654.
  [((2000, 400, 5), 'mean', 7.8492), ((2000, 100, 20), 'max', 25.766)],
)
def test_min_separation_bands_are_the_default_and_beat_one_fewer(
  schema, objective, error_bound
):
  participation = Participation(*schema)
  options = {'objective': objective, 'participation': participation}
  strategy = toeplitz.optimize(schema[0], num_bands=None, **options)
  assert strategy.num_bands == schema[1]
  assert strategy.sensitivity_kind(participation) == 'exact'
  fewer = toeplitz.optimize(schema[0], num_bands=schema[1] - 1, **options)
  error = strategy.error(objective, participation)
  assert error < fewer.error(objective, participation)
  assert error <= error_bound


@pytest.mark.parametrize(
  'num_rounds, num_bands, message',
  [
    (0, 1, 'num_rounds'),
    (5, 0, 'num_bands'),
    (5, 6, 'num_bands must be at most num_rounds=5'),
    (10**5, 5000, 'at most 4096'),
  ],
)
def test_invalid_sizes_are_refused(num_rounds, num_bands, message):
  with pytest.raises(ValueError, match=message):
    toeplitz.optimize(num_rounds, num_bands=num_bands)
  if num_rounds < 4096:  # The limit is that of the optimiser alone.
    with pytest.raises(ValueError, match=message):
      BandedToeplitz.square_root(num_rounds, num_bands=num_bands)
