"""RandomEligible and ShuffledEpochs: cohorts keep limits and are random within them."""

import itertools

import numpy as np
import pytest

from tff_dp_aggregators import sampling
from tff_dp_aggregators import strategies
from tff_dp_aggregators.strategies.participation import check_population

# Rounds, min_separation, max_participations, clients per round.
_GRID = list(itertools.product((1, 3, 16, 31), (1, 2, 5, 40), (None, 1, 2, 6), (1, 5)))


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
    apart = np.diff(rounds)
    assert np.all(apart >= participation.min_separation)
    assert not (
      participation.fixed_epoch and np.any(apart % participation.min_separation)
    )
    assert len(rounds) <= participation.max_participations


@pytest.mark.parametrize('extra', [0, 2, 7])
@pytest.mark.parametrize('kind', [sampling.RandomEligible, sampling.ShuffledEpochs])
def test_cohorts_keep_limits_with_smallest_population(kind, extra):
  is_epochs = kind is sampling.ShuffledEpochs
  for num_rounds, separation, most, clients_per_round in _GRID:
    limits = strategies.Participation(num_rounds, separation, most, is_epochs)
    num_clients = _smallest_population(limits, clients_per_round) + extra
    schedule = kind(limits, num_clients, clients_per_round, seed=extra)
    _assert_within_limits(_cohorts(schedule), num_clients, clients_per_round, limits)


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
  def difference(most):
    limits = strategies.Participation(50, 2, max_participations=most)
    schedule = sampling.RandomEligible(limits, 30, 4, seed=1)
    return np.ptp(np.bincount(_cohorts(schedule).ravel(), minlength=30))

  assert difference(20) <= 1
  assert difference(None) > 2


_LIMITS, _EPOCHS = (
  strategies.Participation(20, 10, fixed_epoch=is_epochs) for is_epochs in (False, True)
)


def test_schedules_refuse_invalid_arguments():
  with pytest.raises(TypeError, match='participation'):
    sampling.RandomEligible(20, _LIMITS, 1, 0)
  with pytest.raises(ValueError, match='seed'):
    sampling.RandomEligible(_LIMITS, 100, 10, seed=-1)
  with pytest.raises(ValueError, match='from 0 to 19'):
    sampling.RandomEligible(_LIMITS, 100, 10, seed=1).cohort(20)
  with pytest.raises(ValueError, match='fixed_epoch=False'):
    sampling.RandomEligible(_EPOCHS, 100, 10, seed=1)
  with pytest.raises(ValueError, match='fixed_epoch=True'):
    sampling.ShuffledEpochs(_LIMITS, 100, 10, seed=1)
  for kind, limits in (
    (sampling.RandomEligible, _LIMITS),
    (sampling.ShuffledEpochs, _EPOCHS),
  ):
    with pytest.raises(sampling.PopulationTooSmallError, match='of at least 100'):
      kind(limits, 99, 10, seed=1)


# Attempts.

_DROPOUTS = sampling.Dropouts(rate=0.3, seed=5)


def _with_dropouts(num_clients=200, most=None):
  limits = strategies.Participation(40, 4, most)
  return sampling.RandomEligible(limits, num_clients, 10, 1, _DROPOUTS, 8)


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
  with pytest.raises(sampling.ReportingGoalError, match='lower reporting_goal'):
    sampling.RandomEligible(limits, 1000, 100, 1, dropouts=_DROPOUTS, reporting_goal=95)
  sampling.RandomEligible(limits, 1000, 100, 1, _DROPOUTS, 70)


# Fixed epochs.


def test_shuffled_epochs_repeat_shuffle_of_seed():
  schedule = sampling.ShuffledEpochs(_EPOCHS, 100, 10, seed=1)
  epochs = [
    np.concatenate([schedule.cohort(e * 10 + t) for t in range(10)]) for e in (0, 1)
  ]
  np.testing.assert_array_equal(*epochs)
  assert sorted(epochs[0]) == list(range(100)) != epochs[0].tolist()
  other_seed = sampling.ShuffledEpochs(_EPOCHS, 100, 10, seed=2)
  assert not np.array_equal(other_seed.cohort(0), schedule.cohort(0))


def test_shuffled_epochs_retry_with_same_clients():
  drop = sampling.Dropouts(0.3, 1)
  schedule = sampling.ShuffledEpochs(_EPOCHS, 100, 10, 1, drop, reporting_goal=8)
  attempts = [schedule.attempts(t) for t in range(20)]
  assert max(map(len, attempts)) > 1
  for each in attempts:
    assert len(each[-1].reporting) >= 8
    for attempt in each:
      np.testing.assert_array_equal(attempt.requested, each[0].requested)
  with pytest.raises(sampling.ReportingGoalError, match='round 0 would not reach'):
    sampling.ShuffledEpochs(_EPOCHS, 1000, 100, 1, drop, reporting_goal=99)


def test_random_eligible_retries_with_other_clients():
  schedule = _with_dropouts()
  for this_round in range(40):
    attempts = schedule.attempts(this_round)
    requested = np.concatenate([attempt.requested for attempt in attempts])
    # Of 200 clients 170 are free: 30 were in the last 3 rounds.
    if len(attempts) <= 16:
      assert len(np.unique(requested)) == len(requested)
