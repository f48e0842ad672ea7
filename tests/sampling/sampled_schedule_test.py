"""What all schedules that draw clients in secret have in common.

Claims:

* A round is a function of seed and number, and what is returned is the caller's own.
* Cohorts may be empty.
* Drop-outs take clients out of cohorts, at their rate, and change nothing else: no
  break of a client is shorter.
"""

import numpy as np
import pytest

from tff_dp_aggregators import sampling

_SCHEMES = {
  'poisson': sampling.PoissonSampling(40, 0.1),
  'cyclic': sampling.PoissonSampling(40, 0.3, num_groups=3),
  'fixed_size': sampling.FixedSizeSampling(40, 1000, 100),
  'balls_in_bins': sampling.BallsInBins(40, 20),
  'random_allocation': sampling.RandomAllocation(40, 4),
  'b_min_sep': sampling.BMinSepSampling(40, 0.25, 5),
}


@pytest.fixture(params=_SCHEMES)
def scheme(request):
  return _SCHEMES[request.param]


def _cohorts(schedule):
  return [schedule.cohort(t) for t in range(schedule.num_rounds)]


def test_a_round_is_a_function_of_seed_and_number(scheme):
  one, same, other = (sampling.SampledSchedule(scheme, 1000, s) for s in (1, 1, 2))
  backwards = [same.cohort(t) for t in range(40)[::-1]][::-1]
  for cohort, again in zip(_cohorts(one), backwards):
    np.testing.assert_array_equal(cohort, again)
    assert cohort.dtype == np.int64 and len(np.unique(cohort)) == len(cohort)
  assert not all(map(np.array_equal, _cohorts(other), backwards))
  one.cohort(0)[:] = -1  # It is the caller's own.
  np.testing.assert_array_equal(one.cohort(0), backwards[0])


@pytest.mark.parametrize(
  ('scheme', 'in_all'),
  [
    (sampling.PoissonSampling(50, 0.001), None),
    (sampling.BallsInBins(50, 50), 10),
    (sampling.RandomAllocation(50, 1), 10),
    (sampling.BMinSepSampling(50, 0.1, 20), None),
  ],
)
def test_empty_cohorts_are_cohorts(scheme, in_all):
  cohorts = _cohorts(sampling.SampledSchedule(scheme, 10, seed=1))
  assert min(map(len, cohorts)) == 0
  assert all(cohort.dtype == np.int64 for cohort in cohorts)
  assert in_all in (None, sum(map(len, cohorts)))


def test_drop_outs_make_cohorts_smaller_and_never_others(scheme):
  everybody = sampling.SampledSchedule(scheme, 1000, 1)
  schedule = sampling.SampledSchedule(scheme, 1000, 1, sampling.Dropouts(0.2, 1))
  requested, reporting = [], []
  for this_round in range(40):
    (attempt,) = schedule.attempts(this_round)
    np.testing.assert_array_equal(attempt.requested, everybody.cohort(this_round))
    assert set(attempt.reporting) < set(attempt.requested)
    requested.append(len(attempt.requested))
    reporting.append(len(attempt.reporting))
  # 5.3 standard deviations: a false alarm once in 10^7.
  asked = sum(requested)
  assert abs(sum(reporting) - 0.8 * asked) < 5.3 * (asked * 0.2 * 0.8) ** 0.5
  assert schedule.max_cohort == max(reporting) < everybody.max_cohort
