"""Poisson cohorts: each client by itself, with the probability stated.

Claims:

* Sizes are binomial, and of two clients each is drawn with the probability, both with
  its square.
* Groups are those of a client's number and take turns; one more client changes nobody
  else's.
* The denominator is the expected size, and is not the cohort's own.
"""

import math

import numpy as np
import pytest

from tff_dp_aggregators import sampling


def test_every_subset_has_its_probability():
  num_rounds, probability = 12_000, 0.3
  scheme = sampling.PoissonSampling(num_rounds, probability)
  schedule = sampling.SampledSchedule(scheme, num_clients=4, seed=1)
  counts = np.zeros(16)
  for this_round in range(num_rounds):
    counts[int(np.sum(2 ** schedule.cohort(this_round)))] += 1
  sizes = np.array([bin(subset).count('1') for subset in range(16)])
  expected = num_rounds * probability**sizes * (1 - probability) ** (4 - sizes)
  chi_squared = np.sum((counts - expected) ** 2 / expected)
  assert chi_squared < 65  # 15 degrees of freedom: exceeded once in 10^7.


@pytest.mark.slow
def test_sizes_of_large_cohorts_are_binomial():
  num_rounds, num_clients, probability = 500, 10**6, 0.001
  scheme = sampling.PoissonSampling(num_rounds, probability)
  schedule = sampling.SampledSchedule(scheme, num_clients, seed=2)
  cohorts = [schedule.cohort(t) for t in range(num_rounds)]
  assert all(len(np.unique(cohort)) == len(cohort) for cohort in cohorts)
  sizes = np.array([len(cohort) for cohort in cohorts])
  variance = num_clients * probability * (1 - probability)
  # Each bound is 5.3 standard deviations: a false alarm once in 10^7.
  assert abs(sizes.mean() - 1000) < 5.3 * math.sqrt(variance / num_rounds)
  assert abs(sizes.var() / variance - 1) < 5.3 * math.sqrt(2 / num_rounds)
  assert schedule.max_cohort == sizes.max() > 1000
  assert schedule.clients_per_round == 1000


def test_groups_take_turns():
  scheme = sampling.PoissonSampling(9, 1.0, num_groups=3)
  schedule = sampling.SampledSchedule(scheme, 40, seed=1)
  groups = [set(schedule.cohort(t).tolist()) for t in range(9)]
  assert groups[:3] == groups[3:6] == groups[6:]
  assert sorted(sum(map(list, groups[:3]), [])) == list(range(40))
  assert schedule.clients_per_round == 13  # As if each had the fewest.


def test_too_few_clients_are_refused():
  scheme = sampling.PoissonSampling(50, 0.1, num_groups=10)
  with pytest.raises(sampling.PopulationTooSmallError, match='groups of at most 9'):
    sampling.SampledSchedule(scheme, 9, seed=1)
