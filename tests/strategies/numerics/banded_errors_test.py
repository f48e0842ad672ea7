"""Errors of noise of few rows of z are those of dense matrices, for any weights."""

import numpy as np
import pytest

from tff_dp_aggregators.strategies import Workload
from tff_dp_aggregators.strategies.numerics import banded_errors

_N = 11
_WORKLOADS = {
  'prefix': Workload(_N),
  'momentum': Workload(_N, 0.9),
  'decay': Workload(_N, weight_decay=0.3),
  'cooldown': Workload.cooldown(_N, 0.7),
  'all': Workload(_N, 0.6, tuple(np.linspace(2.0, 0.0, _N)), weight_decay=0.1),
}


@pytest.mark.parametrize('width', [1, 2, 5, _N])
@pytest.mark.parametrize('name', _WORKLOADS)
def test_errors_are_those_of_the_dense_matrix(name, width):
  weights = np.random.default_rng(width).normal(size=(_N, width))
  noise = np.zeros((_N, _N))
  for t in range(_N):
    for lag in range(min(width, t + 1)):
      noise[t, t - lag] = weights[t, lag]
  estimator = _WORKLOADS[name].materialize() @ noise
  np.testing.assert_allclose(
    banded_errors.of_noise(_WORKLOADS[name], weights),
    np.square(estimator).sum(axis=1),
    rtol=1e-11,
  )
