"""Balls in bins: each client draws its place by itself, once for the whole run.

Claims:

* All ways to put the clients into bins are equally likely, so that bins differ in size.
* A round has the same clients in every cycle, and a cycle each client once.
* Of a cycle longer than the run, clients of the last bins are in no round.
* The denominator is the expected size, and is not the cohort's own.
"""

import numpy as np
import pytest

from tff_dp_aggregators import sampling


def _schedule(num_rounds, cycle_length, num_clients, seed=1, dropouts=None):
  scheme = sampling.BallsInBins(num_rounds, cycle_length)
  return sampling.SampledSchedule(scheme, num_clients, seed, dropouts)


def _bins(schedule, cycle=0):
  """The bin of each client; -1 if it is in none of the cycle's rounds."""
  bins = np.full(schedule.num_clients, -1)
  first = cycle * schedule.sampling.cycle_length
  rounds = range(schedule.num_rounds)[first:][: schedule.sampling.cycle_length]
  for place, this_round in enumerate(rounds):
    cohort = schedule.cohort(this_round)
    assert np.all(np.diff(cohort) > 0)  # In order, and nobody twice.
    assert np.all(bins[cohort] == -1)  # Also in the cycle.
    bins[cohort] = place
  return bins


def _chi_squared(counts):
  expected = np.sum(counts) / np.size(counts)
  return np.sum((counts - expected) ** 2) / expected


def test_all_ways_to_fill_the_bins_are_equally_likely():
  counts = np.zeros((3, 3, 3))
  for seed in range(5400):
    counts[tuple(_bins(_schedule(3, 3, 3, seed)))] += 1
  assert _chi_squared(counts) < 83  # 26 degrees of freedom: exceeded once in 10^7.


def test_neighbours_of_one_seed_are_independent():
  bins = _bins(_schedule(5, 5, 100_000))
  pairs, counts = np.unique(bins[::2] * 5 + bins[1::2], return_counts=True)
  assert len(pairs) == 25
  assert _chi_squared(counts) < 79  # 24 degrees of freedom: exceeded once in 10^7.


def test_sizes_of_bins_differ_as_chance_has_it():
  schedule = _schedule(100, 100, 10**6)
  sizes = np.array([len(schedule.cohort(t)) for t in range(100)])
  assert sizes.sum() == 10**6 and schedule.max_cohort == sizes.max() > 10_000
  # 99 degrees of freedom: outside of either bound once in 10^7; equal bins have 0.
  assert 42 < _chi_squared(sizes) < 191
  assert schedule.clients_per_round == 10_000


@pytest.mark.parametrize('num_rounds', [21, 26])  # The last cycle may be cut short.
def test_a_round_has_the_same_clients_in_every_cycle(num_rounds):
  schedule = _schedule(num_rounds, 7, 50)
  assert np.all(_bins(schedule) >= 0)  # In the first cycle everybody takes part.
  for this_round in range(7, num_rounds):
    again = schedule.cohort(this_round)
    np.testing.assert_array_equal(again, schedule.cohort(this_round % 7))
  assert len({tuple(schedule.cohort(t)) for t in range(num_rounds)}) == 7


def test_a_cycle_longer_than_the_run_leaves_clients_out():
  schedule = _schedule(10, 40, 100_000)
  assert schedule.clients_per_round == 2500
  taken_part = np.bincount(_bins(schedule) + 1)  # Those in no round come first.
  expected = np.array([75_000] + [2500] * 10)
  chi_squared = np.sum((taken_part - expected) ** 2 / expected)
  assert chi_squared < 53  # 10 degrees of freedom: exceeded once in 10^7.


def test_places_times_clients_may_be_more_than_32_bits_hold():
  schedule = _schedule(50_000, 50_000, 50_000)
  assert np.all(_bins(schedule) >= 0)


def test_a_cycle_may_be_far_longer_than_the_run():
  nobody = _schedule(2, 10**12, 10)
  assert nobody.max_cohort == 0 and nobody.clients_per_round == 1e-11


def test_cycles_have_drop_outs_of_their_own():
  schedule = _schedule(40, 20, 2000, dropouts=sampling.Dropouts(0.2, 1))
  assert not np.array_equal(_bins(schedule), _bins(schedule, cycle=1))


def test_numbers_beyond_64_bits_are_refused():
  for b in (2**62 + 1, 2**64, 2**70):
    with pytest.raises(ValueError, match='cycle_length must be at most 46116860184'):
      sampling.SampledSchedule(sampling.BallsInBins(9, b), num_clients=8, seed=1)
  b = 2**62
  rare = sampling.SampledSchedule(sampling.BallsInBins(9, b), num_clients=8, seed=1)
  assert all(len(rare.cohort(each)) == 0 for each in range(9))
