"""Tests of banded inverse strategies: closed forms, matrices and optimised bands."""

import numpy as np
import pytest
import scipy.linalg

from tests.strategies import every_kind
from tff_dp_aggregators.strategies import Participation
from tff_dp_aggregators.strategies import UnitBandedInverse
from tff_dp_aggregators.strategies import Workload
from tff_dp_aggregators.strategies import banded_inverse
from tff_dp_aggregators.strategies import toeplitz
from tff_dp_aggregators.strategies.banded_inverse import BandedInverse

each_objective = pytest.mark.parametrize('objective', ['mean', 'max'])


@pytest.mark.parametrize('exponent', [0.0, 0.3, 0.5, 1.0])
@pytest.mark.parametrize(
  'workload',
  [
    None,
    Workload(12, weight_decay=0.2),
    Workload(12, momentum=0.6, weight_decay=0.1),
  ],
  ids=repr,
)
def test_root_matches_dense_matrix_power(workload, exponent):
  # The logarithm of a lower-triangular matrix with ones on its diagonal is nilpotent.
  dense = (workload or Workload(12)).materialize()
  nilpotent, power, logarithm = dense - np.eye(12), np.eye(12), np.zeros((12, 12))
  for i in range(1, 12):
    power = power @ nilpotent
    logarithm -= (-1.0) ** i / i * power
  expected = scipy.linalg.expm(-exponent * logarithm)[:, 0]
  column = banded_inverse.inverse_root_coefficients(12, exponent, workload)
  np.testing.assert_allclose(column, expected, atol=1e-11)
  strategy = BandedInverse.root(12, 4, exponent=exponent, workload=workload)
  scaled = np.array(strategy.coefficients) / strategy.coefficients[0]
  np.testing.assert_allclose(scaled, column[:4], rtol=1e-12, atol=1e-15)
  assert strategy.sensitivity() == pytest.approx(1.0, rel=1e-12)


@pytest.mark.parametrize(
  'arguments, error, message',
  [
    ({'exponent': 1.5}, ValueError, 'exponent must be from 0 to 1, got 1.5'),
    ({'workload': Workload(9)}, ValueError, 'the workload is for 9 rounds'),
    ({'workload': Workload.cooldown(10)}, ValueError, 'constant learning rate'),
    ({'workload': np.tri(10)}, ValueError, 'use banded_inverse.optimize for others'),
  ],
)
def test_root_refuses_invalid_exponents_and_workloads(arguments, error, message):
  with pytest.raises(error, match=message):
    BandedInverse.root(10, 3, **arguments)


@pytest.mark.parametrize(
  'result', every_kind.figures('banded_inverse_square_root'), ids=str
)
def test_square_root_error_matches_published_figures(result):
  strategy = BandedInverse.square_root(result['num_rounds'], result['num_bands'])
  assert strategy.rmse() == pytest.approx(result['rmse'], rel=1e-12)
  assert strategy.max_error() == pytest.approx(result['max_error'], rel=1e-12)
  assert strategy.sensitivity() == pytest.approx(1.0, rel=1e-13)


@pytest.mark.parametrize(
  'coefficients',
  [
    (1.0, -0.5, -0.125),
    (2.0, 0.5, -0.25, 0.125),
    (1.0, 0.0, 0.0, -0.9),
    (1.0, -1.0),
    (0.5, -0.6, -0.1),
  ],
)
def test_matrix_is_inverse_of_banded_toeplitz_matrix(coefficients):
  strategy = BandedInverse(8, coefficients)
  inverse = every_kind.lower_toeplitz(coefficients, 8)
  np.testing.assert_allclose(strategy.materialize(), np.linalg.inv(inverse), atol=1e-13)
  np.testing.assert_allclose(strategy.noise_matrix(), inverse, atol=1e-15)


@pytest.mark.few(2)
@pytest.mark.parametrize(
  'result', every_kind.figures('banded_inverse_optimised'), ids=str
)
def test_optimized_error_is_at_most_that_of_the_peer(result):
  participation = Participation(
    result['num_rounds'], result['min_separation'], result['max_participations']
  )
  objective = result['objective']
  strategy = banded_inverse.optimize(
    result['num_rounds'],
    num_bands=result['num_bands'],
    objective=objective,
    participation=participation,
  )
  peer_error = result['rmse'] if objective == 'mean' else result['max_error']
  assert strategy.error(objective, participation) <= peer_error
  assert strategy.sensitivity_kind(participation) == 'exact'
  assert strategy.num_inverse_bands == result['num_bands']
  assert np.linalg.norm(strategy.matrix_coefficients()) == pytest.approx(1.0)


def test_optimum_with_all_bands_equals_full_toeplitz_optimum():
  # Every lower-triangular Toeplitz matrix is the inverse of another one.
  inverse = banded_inverse.optimize(50, num_bands=50)
  full = toeplitz.optimize(50, num_bands=50)
  assert inverse.rmse() == pytest.approx(full.rmse(), rel=1e-9)
  np.testing.assert_allclose(
    inverse.matrix_coefficients(), full.coefficients, rtol=1e-4
  )


WORKLOADS = {
  'prefix': None,
  'momentum': Workload(12, 0.9),
  'cooldown': Workload.cooldown(12, cooldown_rounds=8),
  'array': np.tril(np.random.default_rng(0).normal(size=(12, 12))),
}


@pytest.mark.few(4)
@each_objective
@pytest.mark.parametrize('workload', WORKLOADS)
def test_optimized_sensitivity_is_exact_for_any_workload(workload, objective):
  # Without constraints, the sensitivity of the optimum would only be a bound.
  workload = WORKLOADS[workload]
  participation = Participation(12, 6)
  strategy = banded_inverse.optimize(
    12, num_bands=4, objective=objective, participation=participation, workload=workload
  )
  assert every_kind.check_sensitivity(strategy, participation)
  square_root = BandedInverse.square_root(12, 4)
  assert strategy.error(objective, participation, workload) < square_root.error(
    objective, participation, workload
  )


@pytest.mark.parametrize(
  'kind, coefficients, message',
  [
    (BandedInverse, (), 'coefficients must be 1 to num_rounds=2000 numbers, got 0'),
    (BandedInverse, (1.0, -3.0), 'have an inverse whose norm exceeds float64'),
    (UnitBandedInverse, (0.0, 1.0), r'coefficients\[0\] must be positive, got 0.0'),
    (UnitBandedInverse, (1.0, -1.3), 'norm exceeds float64 within 2000 rounds'),
  ],
)
def test_invalid_coefficients_are_refused(kind, coefficients, message):
  with pytest.raises(ValueError, match=message):
    kind(2000, coefficients)


@pytest.mark.parametrize(
  'schema', [Participation(24, 16, 3, fixed_epoch=True), Participation(24, 8, 5)]
)
def test_optimize_converges_with_nearly_tight_constraints(schema):
  strategy = banded_inverse.optimize(24, num_bands=4, participation=schema)
  assert strategy.rmse(participation=schema) < BandedInverse.square_root(24, 4).rmse(
    participation=schema
  )
