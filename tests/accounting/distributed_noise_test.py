"""Plans of distributed noise: their target, number of bits, and bounds."""

import itertools
import math

import dp_accounting
import numpy as np
import pytest
import scipy.linalg
from scipy import special

from tff_dp_aggregators.accounting import accountants
from tff_dp_aggregators.accounting import distributed_noise

_NUMBERS = {'clip_norm': 0.5, 'min_clients': 20, 'dimension': 60}
each_noise = pytest.mark.parametrize('noise', sorted(distributed_noise.NOISES))


@each_noise
@pytest.mark.parametrize('bits', [None, 14])
@pytest.mark.parametrize('epsilon, participations', [(1.0, 1), (6.0, 8)])
def test_plan_meets_target_with_nearly_gaussian_noise(
  noise, bits, epsilon, participations
):
  plan = distributed_noise.plan(
    noise, epsilon, 1e-6, participations=participations, bits=bits, **_NUMBERS
  )
  assert plan.epsilon(1e-6, participations) <= epsilon
  assert plan.wrap_probability <= 1e-6
  event = dp_accounting.GaussianDpEvent(
    plan.noise_multiplier / math.sqrt(participations)
  )
  gaussian = accountants.epsilon(event, 1e-6, 'rdp')
  assert 0.95 * epsilon <= gaussian <= epsilon * (1 + 1e-3)
  less = distributed_noise.design(
    noise,
    noise_multiplier=plan.noise_multiplier * 0.998,
    bits=plan.bits,
    **_NUMBERS,
  )
  assert less.epsilon(1e-6, participations) > epsilon


def exact_wrap_probability(plan, records):
  """Probability of wrapping, averaged over all signs; records are rounded only once."""
  d, clients, half = plan.dimension, len(records), plan.modulus // 2
  hadamard = scipy.linalg.hadamard(d) / math.sqrt(d)
  reach = 8 * half
  share = np.arange(-reach, reach + 1)
  if plan.noise == 'skellam':
    variance = clients * plan.local_stddev**2
    noise = special.ive(np.abs(share), variance)
  else:
    share_noise = np.exp(-(share**2) / (2 * plan.local_stddev**2))
    share_noise /= share_noise.sum()
    noise = share_noise
    for _ in range(clients - 1):
      noise = np.convolve(noise, share_noise, mode='same')
  # tail[k + reach] is the probability that noise is at least k.
  tail = np.cumsum(noise[::-1])[::-1]
  wrapped = []
  for signs in itertools.product((-1, 1), repeat=d):
    rotated = np.stack([hadamard @ (record * signs) for record in records])
    no_wrap = 1.0
    for values in rotated.T:
      low = np.floor(values)
      rounded_up = np.ones(1)
      for fraction in values - low:
        rounded_up = np.convolve(rounded_up, [1 - fraction, fraction])
      floor_sum = int(low.sum())
      wraps = sum(
        weight
        * (
          tail[half - floor_sum - k + reach]  # At least half the modulus.
          + 1
          - tail[-half - floor_sum - k + reach]  # Below minus half.
        )
        for k, weight in enumerate(rounded_up)
      )
      no_wrap *= 1 - wraps
    wrapped.append(1 - no_wrap)
  return float(np.mean(wrapped))


@each_noise
@pytest.mark.parametrize('dimension, clients', [(4, 6), (8, 2)])
def test_wrap_probability_bounds_exact_probability(noise, dimension, clients):
  plan = distributed_noise.DistributedNoise(
    noise,
    clip_norm=1.0,
    min_clients=clients,
    max_clients=clients,
    dimension=dimension,
    bits=8,
    scaled_clip_norm=50.0 * math.sqrt(dimension) / clients,
    local_stddev=20.0 / math.sqrt(clients),
    beta=0.0,
  )
  rng = np.random.default_rng(5)
  max_norm = plan.clip_norm * plan.scale
  one_hot = np.zeros([clients, dimension])
  one_hot[:, 0] = max_norm
  flat = np.full([clients, dimension], max_norm / math.sqrt(dimension))
  others = rng.normal(size=[clients, dimension])
  others *= max_norm / np.linalg.norm(others, axis=1, keepdims=True)
  bound = plan.wrap_probability
  exact = [exact_wrap_probability(plan, each) for each in (one_hot, flat, others)]
  assert max(exact) <= bound < 1
  # A Chernoff bound, summed over all entries and both signs, is larger, but not much.
  assert bound < 150 * max(exact)


def test_rounded_record_exceeds_norm_bound_with_probability_at_most_beta():
  rng = np.random.default_rng(3)
  plan = distributed_noise.design(
    'skellam', noise_multiplier=0.2, bits=12, beta=0.3, **_NUMBERS
  )
  d = plan.dimension
  max_norm = plan.clip_norm * plan.scale
  failures = 0
  for _ in range(2000):
    record = rng.normal(size=d)
    record *= max_norm / np.linalg.norm(record)
    low = np.floor(record)
    rounded = low + (rng.random(d) < record - low)
    if (rounded**2).sum() > plan.norm_squared:
      failures += 1
    else:
      assert np.abs(rounded).sum() <= plan.l1_sensitivity
  assert failures <= 0.3 * 2000
  strict = distributed_noise.design(
    'skellam', noise_multiplier=0.2, bits=12, beta=0.0, **_NUMBERS
  )
  assert strict.l2_sensitivity >= strict.clip_norm * strict.scale + math.sqrt(d) - 1


def test_plan_refuses_too_few_bits():
  with pytest.raises(ValueError, match='bits=8. Leave bits out'):
    distributed_noise.plan('skellam', 1.0, 1e-6, participations=9, bits=8, **_NUMBERS)
  distributed_noise.plan('skellam', 1.0, 1e-6, participations=9, **_NUMBERS)
  with pytest.raises(ValueError, match='laplace'):
    distributed_noise.design('laplace', noise_multiplier=2.0, bits=14, **_NUMBERS)


@pytest.mark.parametrize('name, wrong', [
  ('clip_norm', 0.0),
  ('noise_multiplier', math.nan),
  ('min_clients', 0),
  ('max_clients', 19),
  ('bits', 31),
  ('beta', 1.0),
  ('max_wrap_probability', 0.0),
  ('dimension', 0),
])  # fmt: skip
def test_design_refuses_numbers_out_of_range(name, wrong):
  numbers = {'noise_multiplier': 1.0, 'bits': 14, **_NUMBERS, name: wrong}
  with pytest.raises(ValueError, match=name):
    distributed_noise.design('skellam', **numbers)


@pytest.mark.slow  # It loads TensorFlow Federated.
@pytest.mark.parametrize('beta', [0.0, 1e-6, math.exp(-0.5)])
def test_l2_sensitivity_matches_tff_inflated_norm_bound(beta):
  plan = distributed_noise.design(
    'skellam', noise_multiplier=1.0, bits=16, beta=beta, **_NUMBERS
  )
  peer = pytest.importorskip('tensorflow_federated.python.aggregators.discretization')
  expected = peer.inflated_l2_norm_bound(
    plan.clip_norm, 1 / plan.scale, beta, plan.dimension
  )
  assert plan.l2_sensitivity == pytest.approx(float(expected) * plan.scale, rel=1e-2)


def simulated_sums(plan, clients, rounds, seed):
  """Sums of clients that all send the same record of maximum norm, the worst case."""
  rng = np.random.default_rng(seed)
  d = plan.dimension
  hadamard = scipy.linalg.hadamard(d) / math.sqrt(d)
  record = np.zeros(d)
  record[:] = plan.clip_norm * plan.scale / math.sqrt(d)
  for _ in range(rounds):
    rotated = hadamard @ (record * rng.choice([-1, 1], d))
    low = np.floor(rotated)
    total = (low + (rng.random((clients, d)) < rotated - low)).sum(0)
    if plan.noise == 'skellam':
      mean = plan.local_stddev**2 * clients / 2
      total += rng.poisson(mean, d) - rng.poisson(mean, d)
    else:
      total += np.round(rng.normal(0, plan.local_stddev, (clients, d))).sum(0)
    yield total


@each_noise
def test_simulated_sums_wrap_within_bound_but_not_with_more_clients(noise):
  plan = distributed_noise.design(
    noise, noise_multiplier=1.0, bits=12, max_wrap_probability=0.05, **_NUMBERS
  )
  rounds = 600
  limit = plan.modulus / 2

  def wrapped(clients):
    sums = simulated_sums(plan, clients, rounds, seed=clients)
    return sum(bool(np.abs(total).max() >= limit) for total in sums)

  # If each sum wraps with probability 0.05, more than 71 of 600 do so in less than one
  # of 10^6 runs of this test.
  assert 0.04 < plan.wrap_probability <= 0.05
  assert wrapped(20) <= 71
  assert plan.wrap_probability_with(60) == 1.0
  assert wrapped(60) > rounds / 2
