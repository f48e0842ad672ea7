"""Sampled cohorts keep what the privacy accounting assumes, whenever that is possible.

Claims:

* No client is twice in a round, comes back before `min_separation` rounds, or takes
  part more than `max_participations` times; every round is full.
* A population is refused exactly when `check_population` refuses it.
* Equal seeds draw equal cohorts.
"""

import itertools

import numpy as np
import pytest

from tff_dp_aggregators import strategies
from tff_dp_aggregators.learning import sampling
from tff_dp_aggregators.strategies.participation import check_population

# Rounds, min_separation, max_participations, clients per round.
_GRID = list(
  itertools.product(
    (1, 2, 3, 7, 16, 30), (1, 2, 3, 5, 8), (None, 1, 2, 3, 6), (1, 2, 5)
  )
)


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


@pytest.mark.parametrize('extra', [0, 1, 2, 10])
def test_cohorts_keep_the_limits_down_to_the_smallest_population(extra):
  for num_rounds, separation, most, clients_per_round in _GRID:
    participation = strategies.Participation(num_rounds, separation, most)
    smallest = _smallest_population(participation, clients_per_round)
    for seed in range(3):
      cohorts = sampling.sample_cohorts(
        smallest + extra, clients_per_round, participation, seed
      )
      _assert_within_limits(cohorts, smallest + extra, clients_per_round, participation)


@pytest.mark.parametrize(
  'num_clients, clients_per_round, num_rounds, separation, most',
  [
    (50, 5, 100, 10, None),  # Exactly clients_per_round * min_separation.
    (50, 5, 100, 10, 10),  # And every client exactly as often as it may.
    (100, 10, 40, 7, 4),  # Every client four times, with room between.
    (314 * 2, 2, 2000, 314, None),
    (667, 2, 2000, 314, 6),  # 2000 * 2 / 6 = 666.7.
  ],
)
def test_tight_populations_fill_every_round(
  num_clients, clients_per_round, num_rounds, separation, most
):
  participation = strategies.Participation(num_rounds, separation, most)
  for seed in range(5):
    cohorts = sampling.sample_cohorts(
      num_clients, clients_per_round, participation, seed
    )
    _assert_within_limits(cohorts, num_clients, clients_per_round, participation)


def test_too_small_a_population_is_refused_in_the_words_of_the_arguments():
  limits = strategies.Participation(100, min_separation=10)
  with pytest.raises(sampling.PopulationTooSmallError) as error:
    sampling.sample_cohorts(49, 5, limits, seed=1)
  assert 'num_clients of at least 50' in str(error.value)
  assert 'clients_per_round of at most 4' in str(error.value)


def test_equal_seeds_draw_equal_cohorts_and_others_do_not():
  participation = strategies.Participation(20, min_separation=3)
  draw = lambda seed: sampling.sample_cohorts(60, 4, participation, seed)  # noqa: E731
  np.testing.assert_array_equal(draw(1), draw(1))
  assert not np.array_equal(draw(1), draw(2))


def test_clients_take_turns():
  # Nobody is drawn twice more often than anybody else.
  participation = strategies.Participation(50, min_separation=2)
  cohorts = sampling.sample_cohorts(30, 4, participation, seed=1)
  times = np.bincount(cohorts.ravel(), minlength=30)
  assert times.max() - times.min() <= 1


def test_numbers_in_another_order_are_refused():
  limits = strategies.Participation(4, 2)
  with pytest.raises(TypeError, match='participation must be a strategies.Particip'):
    sampling.sample_cohorts(limits, 1, 4, seed=0)


def test_fixed_epochs_are_refused_and_not_taken_for_min_separation():
  epochs = strategies.Participation(4, 2, fixed_epoch=True)
  with pytest.raises(ValueError, match='leave out fixed_epoch'):
    sampling.sample_cohorts(4, 2, epochs, seed=1)
