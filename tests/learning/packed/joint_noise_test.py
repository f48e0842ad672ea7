"""Parts of a joint mean whose clients add noise: each part has noise of its own."""

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
# So large that what is learned is nothing beside it.
_LARGE = 2e4
# Of a sum over the cohort, over clip norm and noise multiplier.
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
  """Of a mean of two parts, kernel and bias."""
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


def _seeded(kinds, values=(4, 5)):
  return [_part(kind, noise.Seed(value)) for kind, value in zip(kinds, values)]


def _check_independent(steps, kinds):
  """Of large noise, after some rounds: scales, and no correlation."""
  unit = steps * (_COHORT / (_CLIP_NORM * _LARGE))
  kernel, bias = unit[:, :_KERNEL], unit[:, _KERNEL:]
  for part, kind in zip((kernel, bias), kinds):
    # Four standard deviations of the estimate, for numbers of kurtosis 6 at most.
    tolerance = 4 * math.sqrt(5 / 4 / part.size)
    assert part.std() / _STDDEVS[kind] == pytest.approx(1.0, rel=tolerance)
  # The same place in both parts, which has the same words if keys are the same.
  same = np.corrcoef(kernel[:, :4].ravel(), bias.ravel())[0, 1]
  later = np.corrcoef(kernel[1:, :4].ravel(), bias[:-1].ravel())[0, 1]
  assert max(abs(same), abs(later)) < 6 / math.sqrt(bias.size)


@pytest.mark.slow
@pytest.mark.optimized_graphs
def test_seeds_give_the_same_bits_in_any_number_of_packs_and_others_other(data):
  kinds = ('local_gaussian', 'gaussian_shares')
  one, three = (_simulation(data, _seeded(kinds), num_packs=n) for n in (1, 3))
  assert one.one_by_one is None
  steps = populations.steps(one, 2)
  np.testing.assert_array_equal(steps, populations.steps(three, 2))
  np.testing.assert_array_equal(steps, populations.steps(one, 2))
  assert not np.any(steps[0] == steps[1])
  # Only the bias has another seed, so only the bias has other noise.
  other = populations.steps(_simulation(data, _seeded(kinds, (4, 6))), 1)[0]
  np.testing.assert_array_equal(other[:_KERNEL], steps[0, :_KERNEL])
  assert not np.any(other[_KERNEL:] == steps[0, _KERNEL:])


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
def test_parts_have_noise_of_their_own(data, kinds, seeds):
  simulation = _simulation(data, [_part(*each) for each in zip(kinds, seeds)])
  assert simulation.one_by_one is None
  _check_independent(populations.steps(simulation, 60), kinds)


@pytest.mark.slow
def test_without_seeds_a_round_that_is_run_again_has_other_noise_in_each_part(data):
  kinds = ('local_gaussian', 'gaussian_shares')
  simulation = _simulation(data, [_part(kind, None) for kind in kinds])
  first = simulation.initialize()
  again = [
    populations.flat(simulation.next(first, *populations.a_round())[0]) for _ in 'ab'
  ]
  assert not np.any(again[0] == again[1])
  # Nor have two entries the same, of one part or of both.
  moved = again[0] - populations.flat(first)
  assert len(np.unique(moved)) == len(moved)
