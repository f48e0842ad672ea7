"""Cohorts of both schedules keep their limits, and are as random as these allow."""

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
  most = participation.num_rounds * clients_per_round
  for num_clients in range(1, most + 1):
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
    # A difference of 0 is a client that is twice in one round.
    assert np.all(np.diff(rounds) >= participation.min_separation)
    assert len(rounds) <= participation.max_participations


@pytest.mark.parametrize('extra', [0, 2])
def test_cohorts_keep_the_limits_down_to_the_smallest_population(extra):
  for num_rounds, separation, most, clients_per_round in _GRID:
    participation = strategies.Participation(num_rounds, separation, most)
    num_clients = _smallest_population(participation, clients_per_round) + extra
    schedule = sampling.RandomEligible(
      participation, num_clients, clients_per_round, seed=extra
    )
    _assert_within_limits(
      _cohorts(schedule), num_clients, clients_per_round, participation
    )


def test_too_small_a_population_is_refused_with_what_would_do():
  limits = strategies.Participation(100, min_separation=10)
  with pytest.raises(
    sampling.PopulationTooSmallError, match='num_clients of at least 50'
  ):
    sampling.RandomEligible(limits, 49, 5, seed=1)


@pytest.mark.slow
def test_all_eligible_clients_are_equally_likely():
  # Pairs of successive cohorts: 10 for the first, 3 of those left for the second.
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


def test_clients_take_turns_where_their_number_of_rounds_is_limited():
  # Nobody is drawn twice more often than anybody else.
  participation = strategies.Participation(50, min_separation=2, max_participations=20)
  schedule = sampling.RandomEligible(participation, 30, 4, seed=1)
  times = np.bincount(_cohorts(schedule).ravel(), minlength=30)
  assert times.max() - times.min() <= 1
  # And without that limit they do not.
  limits = strategies.Participation(50, min_separation=2)
  schedule = sampling.RandomEligible(limits, 30, 4, seed=1)
  times = np.bincount(_cohorts(schedule).ravel(), minlength=30)
  assert times.max() - times.min() > 2


def test_a_round_is_a_function_of_seed_and_number():
  limits = strategies.Participation(20, min_separation=3)
  one, same, other = (
    sampling.RandomEligible(limits, 60, 4, seed) for seed in (1, 1, 2)
  )
  backwards = [same.cohort(t) for t in reversed(range(20))][::-1]
  np.testing.assert_array_equal(_cohorts(one), backwards)
  assert not np.array_equal(_cohorts(one), _cohorts(other))
  assert one == same and one != other
  one.cohort(3)[:] = 0  # Theirs who asked.
  np.testing.assert_array_equal(one.cohort(3), same.cohort(3))


def test_fixed_epochs_are_refused_and_not_taken_for_min_separation():
  epochs = strategies.Participation(4, 2, fixed_epoch=True)
  with pytest.raises(ValueError, match='fixed_epoch=False'):
    sampling.RandomEligible(epochs, 4, 2, seed=1)


def test_arguments_in_another_order_are_refused():
  limits = strategies.Participation(4, 2)
  with pytest.raises(TypeError, match='participation'):
    sampling.RandomEligible(4, limits, 1, 0)
  with pytest.raises(ValueError, match='seed'):
    sampling.RandomEligible(limits, 4, 2, seed=-1)
  with pytest.raises(ValueError, match='at most 3'):
    sampling.RandomEligible(limits, 4, 2, seed=1).cohort(4)


# Attempts.

_DROPOUTS = sampling.Dropouts(rate=0.3, seed=5)


def _tried(num_clients=200, separation=4, most=None, goal=8):
  limits = strategies.Participation(40, separation, most)
  return sampling.RandomEligible(
    limits, num_clients, 10, 1, dropouts=_DROPOUTS, reporting_goal=goal
  )


@pytest.mark.parametrize('num_clients, most', [(40, None), (45, 10)])
def test_limits_hold_for_all_who_were_asked_in_attempts_that_counted(num_clients, most):
  schedule = _tried(num_clients, most=most)
  counted = np.array([schedule.attempts(t)[-1].requested for t in range(40)])
  _assert_within_limits(counted, num_clients, 10, schedule.participation)
  attempts = [schedule.attempts(t) for t in range(40)]
  assert sum(map(len, attempts)) > 60  # Else there is nothing to see here.
  for each in attempts:
    assert [attempt.completed for attempt in each] == [False] * (len(each) - 1) + [True]
    assert all((len(attempt.reporting) >= 8) == attempt.completed for attempt in each)
    assert all(set(a.reporting) <= set(a.requested) for a in each)


def test_who_was_asked_in_vain_may_take_part_in_the_next_round():
  schedule = _tried(num_clients=45)
  soon = 0
  for this_round in range(39):
    aborted = [a.requested for a in schedule.attempts(this_round)[:-1]]
    if aborted:
      soon += len(np.intersect1d(aborted, schedule.cohort(this_round + 1)))
  assert soon > 0


def test_a_goal_out_of_reach_is_an_error_when_the_schedule_is_made():
  limits = strategies.Participation(40, 4)
  with pytest.raises(sampling.ReportingGoalError) as error:
    sampling.RandomEligible(limits, 1000, 100, 1, dropouts=_DROPOUTS, reporting_goal=95)
  assert 'reporting_goal of at most 70 would do' in str(error.value)
  assert 'clients_per_round of at least 159' in str(error.value)
  # What it says is so.
  for cohort, goal in ((100, 70), (159, 95)):
    sampling.RandomEligible(
      limits, 1000, cohort, 1, dropouts=_DROPOUTS, reporting_goal=goal
    )


# Fixed epochs.


def _epochs(num_rounds, separation, most=None):
  return strategies.Participation(num_rounds, separation, most, fixed_epoch=True)


@pytest.mark.parametrize('extra', [0, 7])
def test_rounds_of_a_client_are_multiples_of_an_epoch_apart(extra):
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
      assert len(np.unique(rounds)) == len(places)  # Once in a round.
      assert limits.allows(tuple(rounds.tolist()))


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


def test_another_attempt_asks_others_while_there_are_enough():
  schedule = _tried()
  for this_round in range(40):
    attempts = schedule.attempts(this_round)
    asked = np.concatenate([attempt.requested for attempt in attempts])
    if len(attempts) <= 16:  # 200 clients, less the 30 who took part in 3 rounds.
      assert len(np.unique(asked)) == len(asked)
