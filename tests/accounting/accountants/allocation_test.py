"""PLD accountant for random allocation: rounded-up bounds against exact deltas."""

import itertools
import math

import dp_accounting
import numpy as np
import pytest
from dp_accounting import NeighboringRelation as Relation
from scipy import special

from tff_dp_aggregators import sampling
from tff_dp_aggregators import strategies
from tff_dp_aggregators.accounting import accountants
from tff_dp_aggregators.accounting import events
from tff_dp_aggregators.accounting import run_events
from tff_dp_aggregators.accounting.accountants import pld

BOTH = Relation.ADD_OR_REMOVE_ONE


def _event(places, steps, sigma, times=1):
  one = events.AllocatedDpEvent(places, steps, dp_accounting.GaussianDpEvent(sigma))
  return dp_accounting.SelfComposedDpEvent(one, times)


def _random_ratios(rng, interval):
  masses = rng.dirichlet(np.ones(9))
  return pld.Ratios(interval, int(rng.integers(-30, 30)), masses * 0.9, 0.1)


@pytest.mark.parametrize('interval', [0.02, 1.0])
def test_rounded_sum_is_larger_in_convex_order(interval):
  rng = np.random.default_rng(1)
  for _ in range(10):
    one, two = _random_ratios(rng, interval), _random_ratios(rng, interval)
    total = one.plus(two, 0.0)
    x = np.append(np.exp(one.logs), 0.0)
    y = np.append(np.exp(two.logs), 0.0)
    p = np.append(one.masses, one.zero)
    q = np.append(two.masses, two.zero)
    sums, weights = np.add.outer(x, y).ravel(), np.multiply.outer(p, q).ravel()
    rounded_sums = np.append(np.exp(total.logs), 0.0)
    masses = np.append(total.masses, total.zero)
    assert masses.sum() == pytest.approx(1.0, rel=1e-12)
    assert rounded_sums @ masses == pytest.approx(sums @ weights, rel=1e-12)
    assert total.lost == 0.0
    for a in np.quantile(sums, [0.05, 0.3, 0.6, 0.9]):
      exact = weights @ np.maximum(sums - a, 0.0)
      rounded = masses @ np.maximum(rounded_sums - a, 0.0)
      assert exact * (1 - 1e-12) <= rounded
      # The variance of a cell is at most a quarter of its width squared.
      assert rounded <= exact + math.expm1(interval) * a / 2


def _integrated_deltas(sigma, epsilon):
  """Deltas of both directions, for an allocation to one of two steps."""
  x = np.linspace(-9.0, 9.0, 1501)
  density = np.exp(-x * x / 2) / math.sqrt(2 * math.pi)
  ratio = np.exp(x / sigma - 1 / (2 * sigma**2))
  s = (ratio[:, None] + ratio[None, :]) / 2
  q = density[:, None] * density[None, :] * (x[1] - x[0]) ** 2
  odds = math.exp(epsilon)
  return (
    float((q * np.maximum(s - odds, 0.0)).sum()),
    float((q * np.maximum(1 - odds * s, 0.0)).sum()),
  )


@pytest.mark.few(2)
@pytest.mark.parametrize('sigma', [0.7, 3.0])
@pytest.mark.parametrize('epsilon', [0.3, 1.5])
def test_two_steps_match_numerical_integration(sigma, epsilon):
  exact = max(_integrated_deltas(sigma, epsilon))
  actual = accountants.delta(_event(2, 2, sigma), epsilon, 'pld', BOTH)
  assert exact * (1 - 1e-6) <= actual <= exact * 1.003 + 1e-12


@pytest.mark.parametrize(('places', 'steps', 'sigma'), [(40, 25, 0.8), (99, 99, 0.5)])
def test_many_steps_match_simulation(places, steps, sigma):
  rng, size, mu = np.random.default_rng(places + steps), 100_000, 1 / sigma
  total = np.full(size, float(places - steps))
  for _ in range(steps):
    total += np.exp(mu * rng.standard_normal(size) - mu * mu / 2)
  s = total / places
  for epsilon in (0.05, 0.2):
    odds = math.exp(epsilon)
    outcomes = [np.maximum(s - odds, 0.0), np.maximum(1 - odds * s, 0.0)]
    actual = accountants.delta(_event(places, steps, sigma), epsilon, 'pld', BOTH)
    means = [each.mean() for each in outcomes]
    larger = int(np.argmax(means))
    error = 5.3 * outcomes[larger].std() / math.sqrt(size)  # Once in 10^7 runs.
    assert means[larger] - error <= actual <= means[larger] * 1.01 + error


def test_random_allocation_delta_bounds_mixture_over_all_sets():
  rounds, times, sigma = 5, 4, 1.2
  size, rng = 100_000, np.random.default_rng(5)
  sets = [list(each) for each in itertools.combinations(range(rounds), times)]
  z = rng.standard_normal((size, rounds))
  exponents = np.stack([z[:, each].sum(axis=1) / sigma for each in sets])
  exponents -= times / (2 * sigma**2)
  s = np.exp(special.logsumexp(exponents, axis=0)) / len(sets)
  schema = sampling.RandomAllocation(rounds, times)
  event = run_events.event(strategies.Identity(rounds), schema, sigma)
  one_left_out = _event(rounds // times, rounds // times, sigma, times)
  for epsilon in (0.2, 0.8):
    drawn = np.maximum([s - math.exp(epsilon), 1 - math.exp(epsilon) * s], 0.0)
    errors = 5.3 * drawn.std(axis=1) / math.sqrt(size)
    actual = accountants.delta(event, epsilon, 'pld', BOTH)
    assert (drawn.mean(axis=1) - errors).max() <= actual <= 2 * drawn.mean(axis=1).max()
    # With 4 blocks of one round, the fifth round would be left out.
    without = accountants.delta(one_left_out, epsilon, 'pld', BOTH)
    assert actual < 0.99 * without


# Blocks of a single round are not sampled, and compose to one Gaussian.
@pytest.mark.parametrize(('rounds', 'times'), [(6, 2), (391, 5), (11, 4)])
def test_blocks_partition_all_rounds(rounds, times):
  schema = sampling.RandomAllocation(rounds, times)
  event = run_events.event(strategies.Identity(rounds), schema, 1.2)
  blocks = accountants.components(event.bound, BOTH)
  assert sum(count for _, count in blocks) == times
  assert sum(block.num_places * count for block, count in blocks) == rounds


def test_epsilon_is_finite_and_decreases_with_noise():
  one = dp_accounting.GaussianDpEvent
  before = math.inf
  for sigma in (1e-4, 0.05, 1.0, 1e6):
    epsilon = accountants.epsilon(_event(20, 20, sigma), 1e-6, 'pld', BOTH)
    unsampled = accountants.epsilon(one(sigma), 1e-6, 'pld', BOTH)
    assert 0 <= epsilon <= unsampled + 3e-5 and epsilon < before
    before = epsilon
  tiny_delta = accountants.epsilon(_event(20, 20, 1.0), 1e-200, 'pld', BOTH)
  assert tiny_delta > accountants.epsilon(_event(20, 20, 1.0), 1e-20, 'pld', BOTH) > 5


def test_invalid_steps_relations_and_accountants_are_refused():
  gaussian = dp_accounting.GaussianDpEvent(1.0)
  with pytest.raises(ValueError, match='num_steps must be at most num_places=3'):
    events.AllocatedDpEvent(3, 4, gaussian)
  event = events.AllocatedDpEvent(3, 3, gaussian)
  with pytest.raises(dp_accounting.UnsupportedEventError, match='neighbouring'):
    accountants.epsilon(event, 1e-6, None, Relation.REPLACE_ONE)
  with pytest.raises(dp_accounting.UnsupportedEventError, match='leave it out'):
    accountants.epsilon(event, 1e-6, 'rdp', BOTH)
  assert accountants.epsilon(_event(3, 3, 0.0), 1e-6, None, BOTH) == math.inf
