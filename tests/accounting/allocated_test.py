"""Events of balls in bins with correlated noise: bounds against brute force."""

import itertools
import math

import dp_accounting
import numpy as np
import pytest
from dp_accounting import NeighboringRelation as Relation

from tff_dp_aggregators import sampling
from tff_dp_aggregators import strategies
from tff_dp_aggregators.accounting import accountants
from tff_dp_aggregators.accounting import events
from tff_dp_aggregators.accounting import run_events
from tff_dp_aggregators.sampling import allocation

BOTH = Relation.ADD_OR_REMOVE_ONE
_NUM_POINTS, _REACH = 71, 7.0


def _strategy(seed):
  rng = np.random.default_rng(seed)
  matrix = np.tril(rng.uniform(-1.0, 1.0, (3, 3)))
  np.fill_diagonal(matrix, rng.uniform(0.3, 1.0, 3))
  return strategies.Banded.from_matrix(matrix)


def _delta_on_grid(means, sigma, epsilons):
  """Larger delta of the two directions of a mixture, at each epsilon."""
  axis = np.linspace(-_REACH, _REACH, _NUM_POINTS) * sigma
  center = np.mean(means, axis=0)
  points = np.stack(np.meshgrid(*(axis + c for c in center), indexing='ij'), axis=-1)
  volume = (axis[1] - axis[0]) ** 3 / (sigma * math.sqrt(2 * math.pi)) ** 3

  def density(mean):
    return volume * np.exp(-((points - mean) ** 2).sum(axis=-1) / (2 * sigma**2))

  p = np.mean([density(mean) for mean in means], axis=0)
  q = density(np.zeros(3))
  return [
    max(np.maximum(p - odds * q, 0).sum(), np.maximum(q - odds * p, 0).sum())
    for odds in np.exp(epsilons)
  ]


def _worst_delta(matrix, num_bins, sigma, epsilons):
  """Largest delta over all signs of a contribution; flipping all changes nothing."""
  deltas = []
  for signs in itertools.product((1,), (-1, 1), (-1, 1)):
    means = []
    for j in range(num_bins):
      contribution = np.where(np.arange(3) % num_bins == j, signs, 0)
      means.append(matrix @ contribution)
    deltas.append(_delta_on_grid(np.array(means), sigma, epsilons))
  return np.max(deltas, axis=0)


@pytest.mark.few(1)
@pytest.mark.parametrize('num_bins', [2, 3, 4])
def test_balls_in_bins_delta_bounds_all_contributions(num_bins):
  strategy, sigma = _strategy(seed=1), 1.0
  event = run_events.event(strategy, sampling.BallsInBins(3, num_bins), sigma)
  matrix, epsilons = strategy.materialize(), (0.1, 0.6)
  all_worst, all_aligned = (
    _worst_delta(one, num_bins, sigma, epsilons) for one in (matrix, np.abs(matrix))
  )
  for epsilon, worst, aligned in zip(epsilons, all_worst, all_aligned):
    delta = accountants.delta(event, epsilon, 'pld', BOTH)
    assert delta <= 1
    assert worst * (1 - 1e-4) <= aligned <= delta * (1 + 1e-4)
    split_events = [one.event(sigma) for one in allocation.splits(strategy, num_bins)]
    for one in split_events:
      assert aligned * (1 - 1e-4) <= accountants.delta(one, epsilon, 'pld', BOTH)


@pytest.mark.parametrize(('num_rounds', 'num_bins'), [(12, 7), (9, 20), (30, 8)])
def test_splits_match_maximum_over_all_rotations(num_rounds, num_bins):
  rng = np.random.default_rng(num_rounds + num_bins)
  matrix = np.tril(rng.uniform(-1.0, 1.0, (num_rounds, num_rounds)))
  np.fill_diagonal(matrix, rng.uniform(0.5, 1.0, num_rounds))
  bins = np.zeros((num_rounds, num_bins))
  for t in range(num_rounds):
    bins[:, t % num_bins] += np.abs(matrix[:, t])
  products = bins.T @ bins
  splits = allocation.splits(strategies.Banded.from_matrix(matrix), num_bins)
  assert splits[0].separation == 1
  for split in splits:
    most_steps = largest = shared = 0
    for rotation in range(num_bins):
      offsets = split.separation * np.arange(split.num_places)
      chosen = (rotation + offsets) % num_bins
      assert len(set(chosen)) == split.num_places
      for one, two in itertools.combinations(chosen, 2):
        distance = abs(one - two)  # The distance is circular.
        assert min(distance, num_bins - distance) >= split.separation
      inner = products[np.ix_(chosen, chosen)]
      largest = max(largest, inner.diagonal().max())
      np.fill_diagonal(inner, 0.0)
      shared = max(shared, inner.max())
      most_steps = max(most_steps, int((bins[:, chosen].sum(axis=0) > 0).sum()))
    assert split.largest == pytest.approx(largest, rel=1e-11)
    assert split.largest >= largest and split.shared >= shared
    assert split.shared == pytest.approx(min(shared, largest), rel=1e-9)
    assert split.num_steps >= most_steps


def test_independent_noise_gives_exact_allocated_event():
  event = run_events.event(strategies.Identity(30), sampling.BallsInBins(30, 10), 2.0)
  assert event == events.AllocatedDpEvent(
    10, 10, dp_accounting.GaussianDpEvent(event.event.noise_multiplier)
  )
  assert event.event.noise_multiplier == pytest.approx(2.0 / math.sqrt(3))


def test_cycle_length_is_limited_to_2_to_the_62():
  toeplitz = strategies.BandedToeplitz.square_root(12, num_bands=3)
  event = run_events.event(toeplitz, sampling.BallsInBins(12, 2**62), 1.0)
  # With so many bins, hardly any client takes part.
  for name in ('pld', 'monte_carlo'):
    assert accountants.epsilon(event, 1e-3, name, BOTH) < 1e-2
  for b in (2**62 + 1, 10**400):
    with pytest.raises(ValueError, match='cycle_length'):
      run_events.event(toeplitz, sampling.BallsInBins(12, b), 1.0)
