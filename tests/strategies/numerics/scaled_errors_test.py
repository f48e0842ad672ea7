"""Errors of Toeplitz strategies with scaled columns are those of dense matrices.

Claims: for prefix sums, momentum, constant and changing learning rates and arrays, the
errors are the squared row norms of A D^-1 G, whatever epochs; and their derivatives are
differences of them.
"""

import numpy as np
import pytest
import scipy.linalg

from tff_dp_aggregators.strategies import Participation
from tff_dp_aggregators.strategies import Workload
from tff_dp_aggregators.strategies.numerics import epoch_problem
from tff_dp_aggregators.strategies.numerics import scaled_errors

_N = 17
_WORKLOADS = {
  'prefix': Workload(_N),
  'momentum': Workload(_N, 0.9),
  'rate': Workload(_N, 0.5, (2.0,) * _N),
  'cooldown': Workload.cooldown(_N, 0.7),
  'array': np.tril(np.random.default_rng(0).normal(size=(_N, _N))),
}


@pytest.mark.parametrize('starts', [[0], [0, 5, 9, 14], list(range(_N))], ids=len)
@pytest.mark.parametrize('name', _WORKLOADS)
def test_errors_and_derivatives_are_those_of_dense_matrices(name, starts):
  rng = np.random.default_rng(1)
  workload = _WORKLOADS[name]
  column, factors = rng.normal(size=_N), rng.uniform(0.5, 2.0, len(starts))
  weights = rng.uniform(size=_N)
  dense = workload.materialize() if isinstance(workload, Workload) else workload
  by_round = np.repeat(factors, np.diff([*starts, _N]))
  noise = scipy.linalg.toeplitz(column, np.zeros(_N))
  estimator = (dense * by_round) @ noise
  errors = scaled_errors.of_workload(workload, starts)
  values, pull_back = errors(column, factors)
  np.testing.assert_allclose(values, np.square(estimator).sum(axis=1), rtol=1e-11)
  back = dense.T @ (2.0 * weights[:, np.newaxis] * estimator)
  by_column, by_factor = pull_back(weights)
  lags = [np.trace(by_round[:, np.newaxis] * back, -lag) for lag in range(_N)]
  scale = np.abs(lags).max()
  np.testing.assert_allclose(by_column, lags, atol=1e-11 * scale)
  by_scale = np.add.reduceat((back * noise).sum(axis=1), starts)
  np.testing.assert_allclose(by_factor, by_scale, atol=1e-11 * scale)


@pytest.mark.parametrize('must_fall', [True, False])
def test_scales_have_a_mean_square_of_one_and_their_derivative(must_fall):
  limits = Participation(300, 2, 139)
  epochs = epoch_problem.Epochs(limits)
  # 139 rounds of a client in blocks of five: the last one has four.
  assert (epochs.rounds, epochs.count) == (10, 28)
  scales = epoch_problem.Scales(epochs, must_fall)
  rng = np.random.default_rng(2)
  searched, weights = rng.normal(scale=0.2, size=27), rng.normal(size=28)
  made = scales(searched)
  squares = np.square(made[epochs.of_pattern])
  assert squares.mean() == pytest.approx(1.0, rel=1e-14)
  assert np.all(np.diff(made) <= 0) == must_fall
  small = 1e-6 * np.eye(27)
  slopes = [
    weights @ (scales(searched + step) - scales(searched - step)) / 2e-6
    for step in small
  ]
  np.testing.assert_allclose(scales.pull_back(searched, weights), slopes, atol=1e-8)
