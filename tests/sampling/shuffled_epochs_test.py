"""Fixed epochs give each client its place, so that the fixed-epoch schema is true.

Claims:

* Rounds of a client differ by multiples of `min_separation`, and are no more than
  `max_participations`; every round is full, down to the smallest population.
* Nobody is left out, and all come about equally often.
* The order is a shuffle that the seed decides.
"""

import itertools

import numpy as np
import pytest

from tff_dp_aggregators import sampling
from tff_dp_aggregators import strategies
from tff_dp_aggregators.strategies.participation import check_population


def _epochs(num_rounds, separation, most=None):
  return strategies.Participation(num_rounds, separation, most, fixed_epoch=True)


def _smallest_population(participation, cohort):
  for num_clients in range(1, participation.num_rounds * cohort + 1):
    try:
      check_population(num_clients, cohort, participation)
    except sampling.PopulationTooSmallError:
      continue
    return num_clients
  raise AssertionError('one client for each place must always do.')


@pytest.mark.parametrize('extra', [0, 1, 7])
def test_rounds_of_a_client_are_multiples_of_an_epoch_apart(extra):
  for num_rounds, separation, most, cohort in itertools.product(
    (1, 3, 16, 31), (1, 2, 5, 40), (None, 1, 2, 6), (1, 5)
  ):
    limits = _epochs(num_rounds, separation, most)
    num_clients = _smallest_population(limits, cohort) + extra
    schedule = sampling.ShuffledEpochs(limits, num_clients, cohort, seed=extra)
    cohorts = np.array([schedule.cohort(t) for t in range(num_rounds)])
    assert cohorts.shape == (num_rounds, cohort)
    assert cohorts.min() >= 0 and cohorts.max() < num_clients
    for client in np.unique(cohorts):
      rounds, places = np.nonzero(cohorts == client)
      assert len(np.unique(rounds)) == len(places)  # Once in a round.
      assert limits.allows(tuple(rounds.tolist()))


def test_all_clients_come_about_equally_often():
  schedule = sampling.ShuffledEpochs(_epochs(210, 10), 105, 10, seed=1)
  cohorts = np.concatenate([schedule.cohort(t) for t in range(210)])
  times = np.bincount(cohorts, minlength=105)
  assert times.min() >= 19 and times.max() <= 21  # 20 in the mean.


def test_an_epoch_goes_through_a_shuffle_that_the_seed_decides():
  schedule = sampling.ShuffledEpochs(_epochs(20, 10), 100, 10, seed=1)
  epochs = [
    np.concatenate([schedule.cohort(e * 10 + t) for t in range(10)]) for e in (0, 1)
  ]
  np.testing.assert_array_equal(*epochs)
  assert sorted(epochs[0]) == list(range(100)) != epochs[0].tolist()
  other = sampling.ShuffledEpochs(_epochs(20, 10), 100, 10, seed=2)
  assert not np.array_equal(other.cohort(0), schedule.cohort(0))


def test_a_round_that_misses_its_goal_asks_the_same_clients_again():
  schedule = sampling.ShuffledEpochs(
    _epochs(20, 10),
    100,
    10,
    1,
    dropouts=sampling.Dropouts(0.3, 1),
    reporting_goal=8,
  )
  attempts = [schedule.attempts(t) for t in range(20)]
  assert max(map(len, attempts)) > 1
  for each in attempts:
    assert len(each[-1].reporting) >= 8
    for attempt in each:
      np.testing.assert_array_equal(attempt.requested, each[0].requested)
  with pytest.raises(sampling.ReportingGoalError, match='round 0 would not reach'):
    sampling.ShuffledEpochs(
      _epochs(20, 10), 1000, 100, 1, sampling.Dropouts(0.3, 1), 99
    )


def test_limits_that_are_no_fixed_epochs_are_refused():
  with pytest.raises(ValueError, match='fixed_epoch=True'):
    sampling.ShuffledEpochs(strategies.Participation(20, 10), 100, 10, seed=1)
  with pytest.raises(sampling.PopulationTooSmallError, match='num_clients of at least'):
    sampling.ShuffledEpochs(_epochs(20, 10), 99, 10, seed=1)
