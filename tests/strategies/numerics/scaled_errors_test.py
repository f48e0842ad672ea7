"""Tests of errors of scaled Toeplitz strategies: squared row norms of A D^-1 G."""

import numpy as np
import pytest
import scipy.linalg

from tff_dp_aggregators.strategies import Workload
from tff_dp_aggregators.strategies.numerics import scaled_errors

_N = 17
_WORKLOADS = {
  'prefix': Workload(_N),
  'momentum': Workload(_N, 0.9),
  'rate': Workload(_N, 0.5, (2.0,) * _N),
  'decay': Workload(_N, weight_decay=0.2),
  'decay_and_momentum': Workload(_N, 0.5, (2.0,) * _N, weight_decay=0.1),
  'cooldown': Workload.cooldown(_N, 0.7),
  'array': np.tril(np.random.default_rng(0).normal(size=(_N, _N))),
}


@pytest.mark.parametrize('starts', [[0], [0, 5, 9, 14], list(range(_N))], ids=len)
@pytest.mark.parametrize('name', _WORKLOADS)
def test_errors_and_derivatives_match_dense_matrices(name, starts, monkeypatch):
  rng = np.random.default_rng(1)
  workload = _WORKLOADS[name]
  column, factors = rng.normal(size=_N), rng.uniform(0.5, 2.0, len(starts))
  weights = rng.uniform(size=_N)
  dense = workload.materialize() if isinstance(workload, Workload) else workload
  by_round = np.repeat(factors, np.diff([*starts, _N]))
  noise = scipy.linalg.toeplitz(column, np.zeros(_N))
  estimator = (dense * by_round) @ noise
  if name not in ('cooldown', 'array'):
    monkeypatch.setattr(scaled_errors, '_dense_errors', None)  # Not needed.
  errors = scaled_errors.workload_errors(workload, starts)
  values, pull_back = errors(column, factors)
  np.testing.assert_allclose(values, np.square(estimator).sum(axis=1), rtol=1e-11)
  back = dense.T @ (2.0 * weights[:, np.newaxis] * estimator)
  by_column, by_factor = pull_back(weights)
  lags = [np.trace(by_round[:, np.newaxis] * back, -lag) for lag in range(_N)]
  scale = np.abs(lags).max()
  np.testing.assert_allclose(by_column, lags, atol=1e-11 * scale)
  by_scale = np.add.reduceat((back * noise).sum(axis=1), starts)
  np.testing.assert_allclose(by_factor, by_scale, atol=1e-11 * scale)
