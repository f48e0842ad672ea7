"""Random allocation: each client draws its rounds by itself, all sets equally likely.

Claims:

* Each client is in exactly as many rounds as the schema says, and in none twice.
* For every client all sets of so many rounds are equally likely, whatever those of
  other clients are.
* The denominator is the expected size, and is not the cohort's own.
"""

import math

import numpy as np
import pytest

from tff_dp_aggregators import sampling


def _schedule(num_rounds, times, num_clients, seed=1):
  scheme = sampling.RandomAllocation(num_rounds, times)
  return sampling.SampledSchedule(scheme, num_clients, seed)


def _sets(schedule):
  """The rounds of each client, each set as the bits of a number."""
  sets = np.zeros(schedule.num_clients, np.int64)
  for this_round in range(schedule.num_rounds):
    cohort = schedule.cohort(this_round)
    assert np.all(np.diff(cohort) > 0)  # In order, and nobody twice.
    sets[cohort] += 2**this_round
  return sets


def _chi_squared(counts):
  expected = np.sum(counts) / np.size(counts)
  return np.sum((counts - expected) ** 2) / expected


def test_sets_of_two_clients_are_uniform_over_seeds():
  counts = np.zeros((16, 16))
  for seed in range(5400):
    counts[tuple(_sets(_schedule(4, 2, 2, seed)))] += 1
  pairs = counts[counts > 0]
  assert len(pairs) == 6 * 6
  assert _chi_squared(pairs) < 97  # 35 degrees of freedom: exceeded once in 10^7.


# Exceeded once in 10^7, with one degree of freedom less than there are sets, or pairs.
@pytest.mark.parametrize(
  'num_rounds, times, of_sets, of_pairs',
  [
    (5, 1, 39, 79),
    (5, 2, 51, 191),
    (5, 3, 51, 191),
    (6, 4, 61, 352),
    (3, 2, 33, 48),
  ],
)
def test_all_sets_are_equally_likely_for_neighbours_of_one_seed(
  num_rounds, times, of_sets, of_pairs
):
  sets = _sets(_schedule(num_rounds, times, 60_000))
  found, counts = np.unique(sets, return_counts=True)
  assert [bin(each).count('1') for each in found] == [times] * len(found)
  assert len(found) == math.comb(num_rounds, times)
  assert _chi_squared(counts) < of_sets
  pairs, counts = np.unique(sets[::2] * 64 + sets[1::2], return_counts=True)
  assert len(pairs) == len(found) ** 2
  assert _chi_squared(counts) < of_pairs


@pytest.mark.parametrize('times', [1, 7, 29, 30])
def test_every_client_is_in_so_many_rounds(times):
  schedule = _schedule(30, times, 200)
  assert schedule.clients_per_round == 200 * times / 30
  cohorts = [schedule.cohort(t) for t in range(30)]
  np.testing.assert_array_equal(np.bincount(np.concatenate(cohorts)), [times] * 200)
  assert all(len(np.unique(cohort)) == len(cohort) for cohort in cohorts)
  assert schedule.max_cohort == max(map(len, cohorts))


def test_sizes_of_cohorts_differ_as_chance_has_it():
  schedule = _schedule(100, 2, 500_000)
  sizes = np.array([len(schedule.cohort(t)) for t in range(100)])
  assert sizes.sum() == 10**6 and schedule.max_cohort == sizes.max() > 10_000
  # A size has variance 10^6 * 0.98 / 100, and all of them together one degree of
  # freedom less than sizes: outside of either bound once in 10^7; equal ones have 0.
  assert 42 < _chi_squared(sizes) * 0.99 / 0.98 < 191
  assert schedule.clients_per_round == 10_000
