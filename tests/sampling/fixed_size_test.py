"""Cohorts of fixed size are uniform subsets, and rounds are independent.

Claims:

* Each cohort of the size is equally likely, in every round, whatever those before were.
"""

import numpy as np

from tff_dp_aggregators import sampling

_SAMPLING = sampling.FixedSizeSampling(
  num_rounds=20_000, num_clients=5, clients_per_round=2
)


def test_pairs_of_successive_cohorts_are_equally_likely():
  schedule = sampling.SampledSchedule(_SAMPLING, 5, seed=1)
  cohorts = [tuple(sorted(schedule.cohort(t).tolist())) for t in range(20_000)]
  assert len(set(cohorts)) == 10
  _, counts = np.unique(
    [f'{cohorts[t]} {cohorts[t + 1]}' for t in range(0, 20_000, 2)], return_counts=True
  )
  assert len(counts) == 100
  chi_squared = np.sum((counts - 100) ** 2 / 100)
  assert chi_squared < 190  # 99 degrees of freedom: exceeded once in 10^7.


def test_it_says_what_it_is_made_of():
  schedule = sampling.SampledSchedule(_SAMPLING, 5, seed=1)
  assert schedule.schema == _SAMPLING
  assert (schedule.num_clients, schedule.clients_per_round) == (5, 2)
  assert (schedule.max_cohort, schedule.num_rounds) == (2, 20_000)
