"""Plans of distributed noise keep what they state: the target, the bits, the bounds."""

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
def test_a_plan_keeps_its_target_with_little_more_noise_than_a_gaussian(
  noise, bits, epsilon, participations
):
  made = distributed_noise.plan(
    noise, epsilon, 1e-6, participations=participations, bits=bits, **_NUMBERS
  )
  assert made.epsilon(1e-6, participations) <= epsilon
  assert made.wrap_probability <= 1e-6
  event = dp_accounting.GaussianDpEvent(
    made.noise_multiplier / math.sqrt(participations)
  )
  gaussian = accountants.epsilon(event, 1e-6, 'rdp')
  assert 0.95 * epsilon <= gaussian <= epsilon * (1 + 1e-3)
  less = distributed_noise.design(
    noise,
    noise_multiplier=made.noise_multiplier * 0.998,
    bits=made.bits,
    **_NUMBERS,
  )
  assert less.epsilon(1e-6, participations) > epsilon


def exact_wrap_probability(made, records):
  """Of sums of these records, over all signs; without rounding again."""
  d, clients, half = made.dimension, len(records), made.modulus // 2
  hadamard = scipy.linalg.hadamard(d) / math.sqrt(d)
  reach = 8 * half
  share = np.arange(-reach, reach + 1)
  if made.noise == 'skellam':
    variance = clients * made.local_stddev**2
    noise = special.ive(np.abs(share), variance)
  else:
    one = np.exp(-(share**2) / (2 * made.local_stddev**2))
    one /= one.sum()
    noise = one
    for _ in range(clients - 1):
      noise = np.convolve(noise, one, mode='same')
  # Above and below, from `reach` on: the probability that noise is at least k.
  tail = np.cumsum(noise[::-1])[::-1]
  wrapped = []
  for signs in itertools.product((-1, 1), repeat=d):
    rotated = np.stack([hadamard @ (record * signs) for record in records])
    stays = 1.0
    for entry in rotated.T:
      low = np.floor(entry)
      ups = np.ones(1)
      for fraction in entry - low:
        ups = np.convolve(ups, [1 - fraction, fraction])
      base = int(low.sum())
      out = sum(
        weight
        * (
          tail[half - base - k + reach]  # At least half.
          + 1
          - tail[-half - base - k + reach]  # Below minus half.
        )
        for k, weight in enumerate(ups)
      )
      stays *= 1 - out
    wrapped.append(1 - stays)
  return float(np.mean(wrapped))


@each_noise
@pytest.mark.parametrize('dimension, clients', [(4, 6), (8, 2)])
def test_the_bound_on_wrapping_is_above_what_it_is_exactly(noise, dimension, clients):
  made = distributed_noise.DistributedNoise(
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
  longest = made.clip_norm * made.scale
  one_hot = np.zeros([clients, dimension])
  one_hot[:, 0] = longest
  flat = np.full([clients, dimension], longest / math.sqrt(dimension))
  others = rng.normal(size=[clients, dimension])
  others *= longest / np.linalg.norm(others, axis=1, keepdims=True)
  bound = made.wrap_probability
  exact = [exact_wrap_probability(made, each) for each in (one_hot, flat, others)]
  assert max(exact) <= bound < 1
  # A Chernoff bound, of all entries and both signs, says more, but not much more.
  assert bound < 150 * max(exact)


def test_a_rounded_record_is_within_its_bound_but_for_beta():
  rng = np.random.default_rng(3)
  made = distributed_noise.design(
    'skellam', noise_multiplier=0.2, bits=12, beta=0.3, **_NUMBERS
  )
  d = made.dimension
  longest = made.clip_norm * made.scale
  fails = 0
  for _ in range(2000):
    record = rng.normal(size=d)
    record *= longest / np.linalg.norm(record)
    low = np.floor(record)
    rounded = low + (rng.random(d) < record - low)
    fails += int((rounded**2).sum() > made.norm_squared)
    assert np.abs(rounded).sum() <= made.l1_sensitivity or fails
  assert fails <= 0.3 * 2000
  never = distributed_noise.design(
    'skellam', noise_multiplier=0.2, bits=12, beta=0.0, **_NUMBERS
  )
  assert never.l2_sensitivity >= never.clip_norm * never.scale + math.sqrt(d) - 1


def test_what_does_not_fit_is_refused_with_what_does():
  with pytest.raises(ValueError, match=r'bits=8 are too few .* Take bits=1\d') as e:
    distributed_noise.plan('skellam', 1.0, 1e-6, participations=9, bits=8, **_NUMBERS)
  bits = int(str(e.value).split('Take bits=')[1].split(',')[0])
  distributed_noise.plan('skellam', 1.0, 1e-6, participations=9, bits=bits, **_NUMBERS)
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
def test_numbers_out_of_range_are_named(name, wrong):
  numbers = {'noise_multiplier': 1.0, 'bits': 14, **_NUMBERS, name: wrong}
  with pytest.raises(ValueError, match=name):
    distributed_noise.design('skellam', **numbers)


@pytest.mark.slow  # It loads TensorFlow Federated.
@pytest.mark.parametrize('beta', [0.0, 1e-6, math.exp(-0.5)])
def test_the_bound_after_rounding_is_that_of_tff(beta):
  made = distributed_noise.design(
    'skellam', noise_multiplier=1.0, bits=16, beta=beta, **_NUMBERS
  )
  of_tff = pytest.importorskip('tensorflow_federated.python.aggregators.discretization')
  theirs = of_tff.inflated_l2_norm_bound(
    made.clip_norm, 1 / made.scale, beta, made.dimension
  )
  assert made.l2_sensitivity == pytest.approx(float(theirs) * made.scale, rel=1e-2)


def simulated_sums(made, clients, rounds, seed):
  """Sums of clients that all send the same longest record, the worst there is."""
  rng = np.random.default_rng(seed)
  d = made.dimension
  hadamard = scipy.linalg.hadamard(d) / math.sqrt(d)
  record = np.zeros(d)
  record[:] = made.clip_norm * made.scale / math.sqrt(d)
  for _ in range(rounds):
    rotated = hadamard @ (record * rng.choice([-1, 1], d))
    low = np.floor(rotated)
    total = (low + (rng.random((clients, d)) < rotated - low)).sum(0)
    if made.noise == 'skellam':
      mean = made.local_stddev**2 * clients / 2
      total += rng.poisson(mean, d) - rng.poisson(mean, d)
    else:
      total += np.round(rng.normal(0, made.local_stddev, (clients, d))).sum(0)
    yield total


@each_noise
def test_sums_wrap_as_seldom_as_bounded_and_often_with_more_clients(noise):
  made = distributed_noise.design(
    noise, noise_multiplier=1.0, bits=12, max_wrap_probability=0.05, **_NUMBERS
  )
  rounds = 600
  limit = made.modulus / 2

  def wrapped(clients):
    sums = simulated_sums(made, clients, rounds, seed=clients)
    return sum(bool(np.abs(total).max() >= limit) for total in sums)

  # More than 71 of 600 at a probability of 0.05 has one of less than 1e-6.
  assert 0.04 < made.wrap_probability <= 0.05
  assert wrapped(20) <= 71
  assert made.wrap_probability_with(60) == 1.0
  assert wrapped(60) > rounds / 2
