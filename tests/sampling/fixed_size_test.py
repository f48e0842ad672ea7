"""Cohorts of fixed size are uniform subsets, and rounds are independent.

Claims:

* Each cohort of the size is equally likely, in every round, whatever those before were.
* A round is a function of seed and number.
* Reporting goals are refused; drop-outs alone are not.
"""

import numpy as np
import pytest

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


def test_a_round_is_a_function_of_seed_and_number():
  one, same = (sampling.SampledSchedule(_SAMPLING, 5, seed=3) for _ in range(2))
  other = sampling.SampledSchedule(_SAMPLING, 5, seed=4)
  rounds = range(100)
  backwards = [same.cohort(t) for t in reversed(rounds)][::-1]
  np.testing.assert_array_equal([one.cohort(t) for t in rounds], backwards)
  assert not np.array_equal(backwards, [other.cohort(t) for t in rounds])


def test_it_says_what_it_is_made_of():
  schedule = sampling.SampledSchedule(_SAMPLING, 5, seed=1)
  assert schedule.schema == _SAMPLING
  assert (schedule.num_clients, schedule.clients_per_round) == (5, 2)
  assert (schedule.max_cohort, schedule.num_rounds) == (2, 20_000)


def test_drop_outs_are_fine_and_goals_are_refused():
  scheme = sampling.FixedSizeSampling(50, 1000, 100)
  schedule = sampling.SampledSchedule(scheme, 1000, 1, sampling.Dropouts(0.1, 1))
  sizes = [len(schedule.cohort(t)) for t in range(50)]
  assert schedule.max_cohort == max(sizes) <= 100 and 80 < np.mean(sizes) < 97
  with pytest.raises(ValueError, match='reporting_goal=90 does not go with sampling'):
    sampling.for_scheme(scheme, 1000, 100, 1, reporting_goal=90)
