"""Sampling schemes draw rounds with the stated probabilities, independently by client.

Chi-square tests and bounds of 5.3 standard deviations have a false alarm at most once
in 10^7 runs.
"""

import itertools

import numpy as np
import pytest
import scipy.stats

from tff_dp_aggregators import sampling
from tff_dp_aggregators import strategies

# Separations within the run, up to its end, and beyond; cycles that are cut short by
# the end of the run, or longer than it.
_SMALL = [
  sampling.PoissonSampling(4, 0.3),
  sampling.PoissonSampling(5, 0.4, num_groups=2),
  sampling.BallsInBins(5, 3),
  sampling.BallsInBins(4, 9),
  sampling.RandomAllocation(5, 1),
  sampling.RandomAllocation(6, 4),
  sampling.BMinSepSampling(6, 0.4, 2),
  sampling.BMinSepSampling(5, 0.3, 4),
  sampling.BMinSepSampling(3, 0.3, 9),
  sampling.BMinSepSampling(9, 1.0, 5),
]


def _sets(scheme, num_clients, seed=1):
  """The set of rounds of each client, as the bits of a number."""
  schedule = sampling.SampledSchedule(scheme, num_clients, seed)
  sets = np.zeros(num_clients, np.int64)
  for this_round in range(scheme.num_rounds):
    cohort = schedule.cohort(this_round)
    assert np.all(np.diff(cohort) > 0)  # In order, and nobody twice.
    sets[cohort] += 2**this_round
  return sets


def _bits(rounds):
  return sum(2**each for each in rounds)


def _probabilities(scheme):
  """The probability of each set of rounds, by enumeration."""
  n = scheme.num_rounds
  chances = np.zeros(2**n)
  if isinstance(scheme, sampling.PoissonSampling):
    p, groups = scheme.sampling_probability, scheme.num_groups
    for group in range(groups):
      turns = range(n)[group::groups]
      for size in range(len(turns) + 1):
        for rounds in itertools.combinations(turns, size):
          chances[_bits(rounds)] += p**size * (1 - p) ** (len(turns) - size) / groups
  elif isinstance(scheme, sampling.BallsInBins):
    for place in range(scheme.cycle_length):
      chances[_bits(range(n)[place :: scheme.cycle_length])] += 1 / scheme.cycle_length
  elif isinstance(scheme, sampling.RandomAllocation):
    sets = list(itertools.combinations(range(n), scheme.rounds_of_a_client))
    chances[[_bits(rounds) for rounds in sets]] = 1 / len(sets)
  else:
    p, b = scheme.sampling_probability, scheme.min_separation

    def walk(this_round, free_from, rounds, probability):
      if this_round == n or probability == 0:
        chances[rounds] += probability
      elif this_round < free_from:
        walk(this_round + 1, free_from, rounds, probability)
      else:
        drawn = rounds + 2**this_round
        walk(this_round + 1, this_round + b, drawn, probability * p)
        walk(this_round + 1, free_from, rounds, probability * (1 - p))

    for free_from in range(b):
      walk(0, free_from, 0, (p if free_from else 1) / (1 + (b - 1) * p))
  assert chances.sum() == pytest.approx(1)
  return chances


def _check_frequencies(indices, probabilities):
  counts = np.bincount(indices, minlength=len(probabilities))
  assert len(counts) == len(probabilities)
  assert not counts[probabilities == 0].any()
  possible = probabilities > 0
  expected = len(indices) * probabilities[possible]
  assert expected.min() > 5
  chi_squared = np.sum((counts[possible] - expected) ** 2 / expected)
  assert chi_squared < scipy.stats.chi2.isf(1e-7, max(len(expected) - 1, 1))


@pytest.mark.parametrize('scheme', _SMALL, ids=str)
def test_sets_of_rounds_have_their_probabilities(scheme):
  _check_frequencies(_sets(scheme, 40_000), _probabilities(scheme))


@pytest.mark.parametrize('scheme', [
  sampling.PoissonSampling(3, 0.4),
  sampling.BallsInBins(5, 5),
  sampling.RandomAllocation(5, 2),
  sampling.BMinSepSampling(4, 0.4, 2),
], ids=str)  # fmt: skip
def test_clients_are_drawn_independently(scheme):
  probabilities = _probabilities(scheme)
  of_pairs = np.outer(probabilities, probabilities).ravel()
  sets = _sets(scheme, 40_000)
  _check_frequencies(sets[::2] * len(probabilities) + sets[1::2], of_pairs)


def test_fixed_size_cohorts_are_uniform_and_independent():
  rounds = 4_000
  scheme = sampling.FixedSizeSampling(rounds, num_clients=5, clients_per_round=2)
  schedule = sampling.SampledSchedule(scheme, 5, seed=1)
  pairs = list(itertools.combinations(range(5), 2))
  indices = [pairs.index(tuple(sorted(schedule.cohort(t)))) for t in range(rounds)]
  _check_frequencies(np.array(indices[::2]) * 10 + indices[1::2], np.full(100, 0.01))
  assert (schedule.schema, schedule.clients_per_round) == (scheme, 2)


def test_of_cohort_uses_probability_of_smallest_group():
  # 10 of 33 clients, and of 34 in the other groups.
  drawn = sampling.PoissonSampling.of_cohort(12, 100, 10, num_groups=3)
  assert drawn.sampling_probability == 10 / 33


def test_groups_take_turns_and_empty_groups_are_refused():
  scheme = sampling.PoissonSampling(9, 1.0, num_groups=3)
  schedule = sampling.SampledSchedule(scheme, 40, seed=1)
  groups = [set(schedule.cohort(t).tolist()) for t in range(9)]
  assert groups[:3] == groups[3:6] == groups[6:]
  assert sorted(sum(map(list, groups[:3]), [])) == list(range(40))
  assert schedule.clients_per_round == 13  # The size of the smallest group.
  with pytest.raises(sampling.PopulationTooSmallError, match='groups of at most 2'):
    sampling.SampledSchedule(scheme, 2, seed=1)


@pytest.mark.parametrize(
  'scheme, num_clients',
  [
    # Waiting times, and with a separation their sum, may exceed int64.
    (sampling.BMinSepSampling(50, 1e-18, 10**18), 100_000),
    (sampling.BallsInBins(9, 2**62), 8),
  ],
  ids=str,
)
def test_nobody_takes_part_with_negligible_probability(scheme, num_clients):
  assert not _sets(scheme, num_clients).any()


_SCHEMES = {
  'poisson': sampling.PoissonSampling(40, 0.1),
  'cyclic': sampling.PoissonSampling(40, 0.3, num_groups=3),
  'fixed_size': sampling.FixedSizeSampling(40, 1000, 100),
  'balls_in_bins': sampling.BallsInBins(40, 20),
  'random_allocation': sampling.RandomAllocation(40, 4),
  'b_min_sep': sampling.BMinSepSampling(40, 0.25, 5),
  'truncated_poisson': sampling.TruncatedPoissonSampling(40, 0.1, 1000, 100),
}
each_scheme = pytest.mark.parametrize('scheme', _SCHEMES.values(), ids=_SCHEMES)


def _cohorts(schedule):
  return [schedule.cohort(t) for t in range(schedule.num_rounds)]


@pytest.mark.parametrize(
  'scheme', [*_SCHEMES.values(), strategies.Participation(40, 3)], ids=str
)
def test_cohort_depends_on_seed_and_round_only(scheme):
  first, same, other = (sampling.for_scheme(scheme, 1000, 100, s) for s in (1, 1, 2))
  assert first == same and first != other
  backwards = [same.cohort(t) for t in range(40)[::-1]][::-1]
  for cohort, again in zip(_cohorts(first), backwards):
    np.testing.assert_array_equal(cohort, again)
    assert cohort.dtype == np.int64 and len(np.unique(cohort)) == len(cohort)
  assert not all(map(np.array_equal, _cohorts(other), backwards))
  first.cohort(0)[:] = -1  # The caller's own copy.
  np.testing.assert_array_equal(first.cohort(0), backwards[0])


@each_scheme
def test_dropouts_only_remove_clients_from_cohorts(scheme):
  complete = sampling.SampledSchedule(scheme, 1000, 1)
  schedule = sampling.SampledSchedule(scheme, 1000, 1, sampling.Dropouts(0.2, 1))
  asked = reported = 0
  for this_round in range(40):
    (attempt,) = schedule.attempts(this_round)
    np.testing.assert_array_equal(attempt.requested, complete.cohort(this_round))
    assert set(attempt.reporting) < set(attempt.requested)
    asked += len(attempt.requested)
    reported += len(attempt.reporting)
  assert abs(reported - 0.8 * asked) < 5.3 * (asked * 0.2 * 0.8) ** 0.5
