"""RandomEligible and ShuffledEpochs: cohorts keep limits and are random within them."""

import itertools

import numpy as np
import pytest

from tff_dp_aggregators import sampling
from tff_dp_aggregators import strategies
from tff_dp_aggregators.strategies.participation import check_population

# Rounds, min_separation, max_participations, clients per round.
_GRID = list(itertools.product((1, 3, 16, 30), (1, 2, 5), (None, 1, 2, 6), (1, 5)))


def _cohorts(schedule):
  return np.array([schedule.cohort(t) for t in range(schedule.num_rounds)])


def _smallest_population(participation, clients_per_round):
  """The smallest population that is accepted."""
  maximum = participation.num_rounds * clients_per_round
  for num_clients in range(1, maximum + 1):
    try:
      check_population(num_clients, clients_per_round, participation)
    except sampling.PopulationTooSmallError:
      continue
    return num_clients
  raise AssertionError('one client for each place must always do.')


def _assert_within_limits(cohorts, num_clients, clients_per_round, participation):
  assert cohorts.shape == (participation.num_rounds, clients_per_round)
  assert cohorts.dtype == np.int64
  assert cohorts.min() >= 0 and cohorts.max() < num_clients
  for client in np.unique(cohorts):
    rounds, _ = np.nonzero(cohorts == client)
    # A difference of 0 would be a client that is in one round twice.
    assert np.all(np.diff(rounds) >= participation.min_separation)
    assert len(rounds) <= participation.max_participations


@pytest.mark.parametrize('extra', [0, 2])
def test_random_eligible_keeps_limits_with_smallest_population(extra):
  for num_rounds, separation, most, clients_per_round in _GRID:
    participation = strategies.Participation(num_rounds, separation, most)
    num_clients = _smallest_population(participation, clients_per_round) + extra
    schedule = sampling.RandomEligible(
      participation, num_clients, clients_per_round, seed=extra
    )
    _assert_within_limits(
      _cohorts(schedule), num_clients, clients_per_round, participation
    )


def test_too_small_population_is_refused_and_minimum_is_named():
  limits = strategies.Participation(100, min_separation=10)
  with pytest.raises(
    sampling.PopulationTooSmallError, match='num_clients of at least 50'
  ):
    sampling.RandomEligible(limits, 49, 5, seed=1)


@pytest.mark.slow
def test_eligible_clients_are_equally_likely():
  # Pairs of successive cohorts: 10 for the first, and 3 of the rest for the second.
  limits = strategies.Participation(2, min_separation=2)
  counts = {}
  draws = 15_000
  for seed in range(draws):
    schedule = sampling.RandomEligible(limits, 5, 2, seed)
    pair = tuple(frozenset(schedule.cohort(t).tolist()) for t in range(2))
    counts[pair] = counts.get(pair, 0) + 1
  assert len(counts) == 30
  expected = draws / 30
  chi_squared = sum((count - expected) ** 2 / expected for count in counts.values())
  assert chi_squared < 90.0  # 29 degrees of freedom: exceeded less than once in 10^7.


def test_max_participations_makes_clients_take_turns():
  # With the limit, numbers of rounds differ by at most one.
  participation = strategies.Participation(50, min_separation=2, max_participations=20)
  schedule = sampling.RandomEligible(participation, 30, 4, seed=1)
  times = np.bincount(_cohorts(schedule).ravel(), minlength=30)
  assert times.max() - times.min() <= 1
  # Without the limit they differ by more.
  limits = strategies.Participation(50, min_separation=2)
  schedule = sampling.RandomEligible(limits, 30, 4, seed=1)
  times = np.bincount(_cohorts(schedule).ravel(), minlength=30)
  assert times.max() - times.min() > 2


def test_random_eligible_cohort_depends_on_seed_and_round_only():
  limits = strategies.Participation(20, min_separation=3)
  schedule, same, other_seed = (
    sampling.RandomEligible(limits, 60, 4, seed) for seed in (1, 1, 2)
  )
  backwards = [same.cohort(t) for t in reversed(range(20))][::-1]
  np.testing.assert_array_equal(_cohorts(schedule), backwards)
  assert not np.array_equal(_cohorts(schedule), _cohorts(other_seed))
  assert schedule == same and schedule != other_seed
  schedule.cohort(3)[:] = 0  # The caller's own copy.
  np.testing.assert_array_equal(schedule.cohort(3), same.cohort(3))


def test_random_eligible_refuses_fixed_epochs():
  epochs = strategies.Participation(4, 2, fixed_epoch=True)
  with pytest.raises(ValueError, match='fixed_epoch=False'):
    sampling.RandomEligible(epochs, 4, 2, seed=1)


def test_random_eligible_refuses_invalid_arguments():
  limits = strategies.Participation(4, 2)
  with pytest.raises(TypeError, match='participation'):
    sampling.RandomEligible(4, limits, 1, 0)
  with pytest.raises(ValueError, match='seed'):
    sampling.RandomEligible(limits, 4, 2, seed=-1)
  with pytest.raises(ValueError, match='at most 3'):
    sampling.RandomEligible(limits, 4, 2, seed=1).cohort(4)


# Attempts.

_DROPOUTS = sampling.Dropouts(rate=0.3, seed=5)


def _with_dropouts(num_clients=200, separation=4, most=None, goal=8):
  limits = strategies.Participation(40, separation, most)
  return sampling.RandomEligible(
    limits, num_clients, 10, 1, dropouts=_DROPOUTS, reporting_goal=goal
  )


@pytest.mark.parametrize('num_clients, most', [(40, None), (45, 10)])
def test_limits_hold_for_requested_clients_of_completed_attempts(num_clients, most):
  schedule = _with_dropouts(num_clients, most=most)
  counted = np.array([schedule.attempts(t)[-1].requested for t in range(40)])
  _assert_within_limits(counted, num_clients, 10, schedule.participation)
  attempts = [schedule.attempts(t) for t in range(40)]
  assert sum(map(len, attempts)) > 60  # Enough rounds need several attempts.
  for each in attempts:
    assert [attempt.completed for attempt in each] == [False] * (len(each) - 1) + [True]
    assert all((len(attempt.reporting) >= 8) == attempt.completed for attempt in each)
    assert all(set(a.reporting) <= set(a.requested) for a in each)


def test_clients_of_aborted_attempts_may_take_part_next_round():
  schedule = _with_dropouts(num_clients=45)
  overlap = 0
  for this_round in range(39):
    aborted = [a.requested for a in schedule.attempts(this_round)[:-1]]
    if aborted:
      overlap += len(np.intersect1d(aborted, schedule.cohort(this_round + 1)))
  assert overlap > 0


def test_unreachable_reporting_goal_is_refused_at_construction():
  limits = strategies.Participation(40, 4)
  with pytest.raises(sampling.ReportingGoalError) as error:
    sampling.RandomEligible(limits, 1000, 100, 1, dropouts=_DROPOUTS, reporting_goal=95)
  assert 'reporting_goal of at most 70 would do' in str(error.value)
  assert 'clients_per_round of at least 159' in str(error.value)
  # The numbers in the message suffice.
  for cohort, goal in ((100, 70), (159, 95)):
    sampling.RandomEligible(
      limits, 1000, cohort, 1, dropouts=_DROPOUTS, reporting_goal=goal
    )


# Fixed epochs.


def _epochs(num_rounds, separation, most=None):
  return strategies.Participation(num_rounds, separation, most, fixed_epoch=True)


@pytest.mark.parametrize('extra', [0, 7])
def test_shuffled_epochs_keep_limits_with_smallest_population(extra):
  for num_rounds, separation, most, cohort in itertools.product(
    (1, 16, 31), (1, 5, 40), (None, 1, 6), (1, 5)
  ):
    limits = _epochs(num_rounds, separation, most)
    num_clients = _smallest_population(limits, cohort) + extra
    schedule = sampling.ShuffledEpochs(limits, num_clients, cohort, seed=extra)
    cohorts = np.array([schedule.cohort(t) for t in range(num_rounds)])
    assert cohorts.shape == (num_rounds, cohort)
    assert cohorts.min() >= 0 and cohorts.max() < num_clients
    for client in np.unique(cohorts):
      rounds, places = np.nonzero(cohorts == client)
      assert len(np.unique(rounds)) == len(places)  # At most once in a round.
      assert limits.allows(tuple(rounds.tolist()))


def test_shuffled_epochs_repeat_shuffle_of_seed():
  schedule = sampling.ShuffledEpochs(_epochs(20, 10), 100, 10, seed=1)
  epochs = [
    np.concatenate([schedule.cohort(e * 10 + t) for t in range(10)]) for e in (0, 1)
  ]
  np.testing.assert_array_equal(*epochs)
  assert sorted(epochs[0]) == list(range(100)) != epochs[0].tolist()
  other_seed = sampling.ShuffledEpochs(_epochs(20, 10), 100, 10, seed=2)
  assert not np.array_equal(other_seed.cohort(0), schedule.cohort(0))


def test_shuffled_epochs_retry_with_same_clients():
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


def test_shuffled_epochs_refuse_wrong_limits_and_population():
  with pytest.raises(ValueError, match='fixed_epoch=True'):
    sampling.ShuffledEpochs(strategies.Participation(20, 10), 100, 10, seed=1)
  with pytest.raises(sampling.PopulationTooSmallError, match='num_clients of at least'):
    sampling.ShuffledEpochs(_epochs(20, 10), 99, 10, seed=1)


def test_random_eligible_retries_with_other_clients():
  schedule = _with_dropouts()
  for this_round in range(40):
    attempts = schedule.attempts(this_round)
    requested = np.concatenate([attempt.requested for attempt in attempts])
    # Of 200 clients 170 are free: 30 were in the last 3 rounds.
    if len(attempts) <= 16:
      assert len(np.unique(requested)) == len(requested)
