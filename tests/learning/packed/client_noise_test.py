"""Tests that clients in packs add independent noise, whatever pack they are in."""

import functools
import math

import numpy as np
import pytest
import tensorflow_federated as tff

from tests.learning.packed import populations
from tff_dp_aggregators import aggregators
from tff_dp_aggregators import noise
from tff_dp_aggregators.learning import failures
from tff_dp_aggregators.learning import packed

_runtime, data = populations.local_runtime, populations.data
_COHORT = 5
_ARGUMENTS = {'clip_norm': 0.4, 'noise_multiplier': 2.0, 'clients_per_round': _COHORT}
_STDDEVS = {
  'local_gaussian': 2.0 * math.sqrt(_COHORT),
  'local_laplace': 2.0 * math.sqrt(2 * _COHORT),
  'gaussian_shares': 2.0,
  'approximate_local_gaussian': 2.0 * math.sqrt(_COHORT),
  'approximate_local_laplace': 2.0 * math.sqrt(2 * _COHORT),
}


def _simulation(data, name, *, weighted=True, metrics=False, **kwargs):
  arguments = {**_ARGUMENTS, 'seed': noise.Seed(4), **kwargs}
  training = packed.LocalTraining(
    populations.model(weighted=weighted, metrics=metrics),
    tff.learning.optimizers.build_sgdm(0.1),
    batch_size=4,
  )
  return packed.PackedFedAvg(
    training,
    getattr(aggregators, name)(**arguments),
    data,
    server_optimizer=tff.learning.optimizers.build_sgdm(1.0),
    num_packs=2,
  )


# So large that what is learned is negligible beside it.
_LARGE = 1e4


@pytest.fixture(scope='module')
def simulation_of(data):
  """Returns a function from a name to its one simulation with large, seeded noise."""
  return functools.cache(
    lambda name: _simulation(data, name, noise_multiplier=2 * _LARGE)
  )


@pytest.mark.slow
def test_noise_is_the_same_packed_and_one_by_one(data):
  shares = _simulation(data, 'gaussian_shares')
  sequential = _simulation(data, 'gaussian_shares', weighted=False)
  assert shares.one_by_one is None
  assert sequential.one_by_one is not None
  np.testing.assert_allclose(
    populations.steps(shares, 1), populations.steps(sequential, 1), atol=1e-6
  )


@pytest.mark.parametrize(
  'name',
  [
    'gaussian_shares',
    *(
      pytest.param(name, marks=pytest.mark.slow)
      for name in _STDDEVS
      if name != 'gaussian_shares'
    ),
  ],
)
def test_noise_of_rounds_has_its_scale_and_no_correlation(simulation_of, name):
  steps = populations.steps(simulation_of(name), 60)  # The cohort is always the same.
  unit = steps / (0.4 * _LARGE * _STDDEVS[name] / _COHORT)
  assert unit.std() == pytest.approx(1.0, rel=7 * math.sqrt(0.7 / unit.size))
  for lag in (1, 2):
    product = np.mean(unit[lag:] * unit[:-lag])
    assert abs(product) < 6 / math.sqrt(unit.size)


def test_round_with_too_few_clients_fails_and_state_stays_usable(simulation_of):
  shares = simulation_of('gaussian_shares')
  state = shares.initialize()
  before = populations.flat(state)
  with pytest.raises(failures.ComputationError, match='fewer clients reported'):
    shares.next(state, *populations.cohort_and_keys(4))
  after, _ = shares.next(state, *populations.cohort_and_keys())
  np.testing.assert_array_equal(
    populations.flat(after) - before, populations.steps(shares, 1)[0]
  )


@pytest.mark.slow
def test_metrics_leave_out_clients_with_nan(tmp_path):
  data = packed.lay_out(populations.NonFinite(), str(tmp_path / 'data'))
  simulation = _simulation(data, 'local_gaussian', metrics=True)
  _, metrics = simulation.next(simulation.initialize(), *populations.cohort_and_keys())
  assert np.isfinite(metrics['client_work']['train']['accuracy'])
  assert metrics['aggregator']['nonfinite_count'] == 0
