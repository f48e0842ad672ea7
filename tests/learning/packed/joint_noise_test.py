"""Tests that clients add independent noise to each part of a joint mean."""

import math

import numpy as np
import pytest
import tensorflow_federated as tff

from tests.learning.packed import populations
from tff_dp_aggregators import aggregators
from tff_dp_aggregators import noise
from tff_dp_aggregators.learning import packed

_runtime, data = populations.local_runtime, populations.data
_COHORT, _CLIP_NORM = 5, 0.4
# So large that what is learned is negligible beside it.
_LARGE = 2e4
# Of the noise of a sum over the cohort, divided by clip norm and noise multiplier.
_STDDEVS = {
  'gaussian': 1.0,
  'laplace': math.sqrt(2),
  'local_gaussian': math.sqrt(_COHORT),
  'local_laplace': math.sqrt(2 * _COHORT),
  'gaussian_shares': 1.0,
  'approximate_local_laplace': math.sqrt(2 * _COHORT),
}
# The model has a kernel of 12 numbers and a bias of 4.
_KERNEL = 12


def _part(kind, seed):
  return getattr(aggregators, kind)(
    clip_norm=_CLIP_NORM,
    noise_multiplier=_LARGE,
    clients_per_round=_COHORT,
    seed=seed,
  )


def _simulation(data, parts, *, num_packs=2):
  """Returns the simulation of a mean of two parts, kernel and bias."""
  kernel, bias = parts
  training = packed.LocalTraining(
    populations.model(), tff.learning.optimizers.build_sgdm(0.1), batch_size=4
  )
  return packed.PackedFedAvg(
    training,
    aggregators.joint({'kernel': kernel, 'bias': bias}, ['kernel', 'bias']),
    data,
    server_optimizer=tff.learning.optimizers.build_sgdm(1.0),
    num_packs=num_packs,
  )


def _seeded_parts(kinds, values=(4, 5)):
  return [_part(kind, noise.Seed(value)) for kind, value in zip(kinds, values)]


def _check_independent(steps, kinds):
  """Checks that large noise of some rounds has the right scales and no correlation."""
  unit = steps * (_COHORT / (_CLIP_NORM * _LARGE))
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
@pytest.mark.optimized_graphs
def test_seeded_noise_has_same_bits_for_any_number_of_packs(data):
  kinds = ('local_gaussian', 'gaussian_shares')
  one, three = (_simulation(data, _seeded_parts(kinds), num_packs=n) for n in (1, 3))
  assert one.one_by_one is None
  steps = populations.steps(one, 2)
  np.testing.assert_array_equal(steps, populations.steps(three, 2))
  np.testing.assert_array_equal(steps, populations.steps(one, 2))
  assert not np.any(steps[0] == steps[1])
  # Only the bias has another seed, so only its noise differs.
  other_steps = populations.steps(_simulation(data, _seeded_parts(kinds, (4, 6))), 1)[0]
  np.testing.assert_array_equal(other_steps[:_KERNEL], steps[0, :_KERNEL])
  assert not np.any(other_steps[_KERNEL:] == steps[0, _KERNEL:])


@pytest.mark.parametrize(
  ('kinds', 'seeds'),
  [
    (('local_gaussian', 'local_gaussian'), (noise.Seed(4), noise.Seed(4, stream=1))),
    pytest.param(('local_laplace', 'laplace'), (8, 8), marks=pytest.mark.slow),
    pytest.param(
      ('gaussian_shares', 'approximate_local_laplace'), (8, 8), marks=pytest.mark.slow
    ),
  ],
)
def test_parts_have_independent_noise(data, kinds, seeds):
  simulation = _simulation(data, [_part(*each) for each in zip(kinds, seeds)])
  assert simulation.one_by_one is None
  _check_independent(populations.steps(simulation, 60), kinds)


@pytest.mark.slow
def test_repeated_round_without_seeds_has_new_noise_in_each_part(data):
  kinds = ('local_gaussian', 'gaussian_shares')
  simulation = _simulation(data, [_part(kind, None) for kind in kinds])
  first = simulation.initialize()
  repeated = [
    populations.flat(simulation.next(first, *populations.cohort_and_keys())[0])
    for _ in 'ab'
  ]
  assert not np.any(repeated[0] == repeated[1])
  # No two entries have the same noise, within a part or across parts.
  change = repeated[0] - populations.flat(first)
  assert len(np.unique(change)) == len(change)
