"""Tests that clients in packs add independent noise, also to parts of a joint mean."""

import functools
import math

import numpy as np
import pytest

from tests.learning.packed import populations
from tff_dp_aggregators import aggregators
from tff_dp_aggregators import noise
from tff_dp_aggregators.learning import failures
from tff_dp_aggregators.learning import packed

_runtime, data = populations.local_runtime, populations.data
_COHORT, _CLIP_NORM = 5, 0.4
# So large that what is learned is negligible beside it.
_LARGE = 2e4
# Noise of a sum over the cohort, divided by clip norm and noise multiplier.
_STDDEVS = {
  'local_gaussian': math.sqrt(_COHORT),
  'local_laplace': math.sqrt(2 * _COHORT),
  'gaussian_shares': 1.0,
  'approximate_local_gaussian': math.sqrt(_COHORT),
  'approximate_local_laplace': math.sqrt(2 * _COHORT),
  'gaussian': 1.0,
  'laplace': math.sqrt(2),
}
_SEED = noise.Seed(4)
# The model has a kernel of 12 numbers and a bias of 4.
_KERNEL = 12


def _mean(kind, seed=_SEED, noise_multiplier=_LARGE):
  return getattr(aggregators, kind)(
    clip_norm=_CLIP_NORM,
    noise_multiplier=noise_multiplier,
    clients_per_round=_COHORT,
    seed=seed,
  )


def _joint(data, kinds, seeds, **kwargs):
  """Returns the simulation of a mean of two parts, kernel and bias."""
  parts = dict(zip(('kernel', 'bias'), map(_mean, kinds, seeds)))
  return populations.simulation(data, aggregators.joint(parts, list(parts)), **kwargs)


@pytest.fixture(scope='module')
def simulation_of(data):
  """Returns a function from a name to its one simulation with large, seeded noise."""
  return functools.cache(lambda kind: populations.simulation(data, _mean(kind)))


def _unit(steps):
  """Returns the noise of sums, divided by clip norm and noise multiplier."""
  return steps * (_COHORT / (_CLIP_NORM * _LARGE))


@pytest.mark.slow
def test_noise_is_the_same_packed_and_one_by_one(data):
  shares, sequential = (
    populations.simulation(
      data,
      _mean('gaussian_shares', noise_multiplier=2.0),
      populations.model(weighted=weighted),
    )
    for weighted in (True, False)
  )
  assert shares.one_by_one is None
  assert sequential.one_by_one is not None
  np.testing.assert_allclose(
    populations.steps(shares, 1), populations.steps(sequential, 1), atol=1e-6
  )


@pytest.mark.parametrize(
  'kind',
  [
    'gaussian_shares',
    *(
      pytest.param(kind, marks=pytest.mark.slow)
      for kind in _STDDEVS
      if kind.endswith(('local_gaussian', 'local_laplace'))
    ),
  ],
)
def test_noise_of_rounds_has_its_scale_and_no_correlation(simulation_of, kind):
  steps = populations.steps(simulation_of(kind), 60)  # The cohort is always the same.
  unit = _unit(steps) / _STDDEVS[kind]
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
  mean = _mean('local_gaussian', noise_multiplier=2.0)
  simulation = populations.simulation(data, mean, populations.model(metrics=True))
  _, metrics = simulation.next(simulation.initialize(), *populations.cohort_and_keys())
  assert np.isfinite(metrics['client_work']['train']['accuracy'])
  assert metrics['aggregator']['nonfinite_count'] == 0


@pytest.mark.slow
@pytest.mark.optimized_graphs
def test_seeded_noise_of_parts_has_same_bits_for_any_number_of_packs(data):
  kinds, seeds = ('local_gaussian', 'gaussian_shares'), (_SEED, noise.Seed(5))
  one, three = (_joint(data, kinds, seeds, num_packs=n) for n in (1, 3))
  assert one.one_by_one is None
  steps = populations.steps(one, 2)
  np.testing.assert_array_equal(steps, populations.steps(three, 2))
  np.testing.assert_array_equal(steps, populations.steps(one, 2))
  assert not np.any(steps[0] == steps[1])
  # Only the bias has another seed, so only its noise differs.
  other = _joint(data, kinds, (_SEED, noise.Seed(6)))
  (other_steps,) = populations.steps(other, 1)
  np.testing.assert_array_equal(other_steps[:_KERNEL], steps[0, :_KERNEL])
  assert not np.any(other_steps[_KERNEL:] == steps[0, _KERNEL:])


@pytest.mark.parametrize(
  ('kinds', 'seeds'),
  [
    (('local_gaussian', 'local_gaussian'), (_SEED, noise.Seed(4, stream=1))),
    pytest.param(('local_laplace', 'laplace'), (8, 8), marks=pytest.mark.slow),
    pytest.param(
      ('gaussian_shares', 'approximate_local_laplace'), (8, 8), marks=pytest.mark.slow
    ),
  ],
)
def test_parts_have_independent_noise(data, kinds, seeds):
  simulation = _joint(data, kinds, seeds)
  assert simulation.one_by_one is None
  unit = _unit(populations.steps(simulation, 60))
  kernel, bias = unit[:, :_KERNEL], unit[:, _KERNEL:]
  for part, kind in zip((kernel, bias), kinds):
    # Four standard deviations of the estimate, for numbers of kurtosis 6 at most.
    tolerance = 4 * math.sqrt(5 / 4 / part.size)
    assert part.std() / _STDDEVS[kind] == pytest.approx(1.0, rel=tolerance)
  # The same places in both parts have the same random words if keys are the same.
  same = np.corrcoef(kernel[:, :4].ravel(), bias.ravel())[0, 1]
  later = np.corrcoef(kernel[1:, :4].ravel(), bias[:-1].ravel())[0, 1]
  assert max(abs(same), abs(later)) < 6 / math.sqrt(bias.size)


@pytest.mark.slow
def test_repeated_round_without_seeds_has_new_noise_in_each_part(data):
  simulation = _joint(data, ('local_gaussian', 'gaussian_shares'), (None, None))
  first = simulation.initialize()
  repeated = [
    populations.flat(simulation.next(first, *populations.cohort_and_keys())[0])
    for _ in 'ab'
  ]
  assert not np.any(repeated[0] == repeated[1])
  # No two entries have the same noise, within a part or across parts.
  change = repeated[0] - populations.flat(first)
  assert len(np.unique(change)) == len(change)
