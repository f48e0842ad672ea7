"""Tests of how many clients can fill every round within limits on participation."""

import itertools

import pytest

from tff_dp_aggregators.strategies import Participation
from tff_dp_aggregators.strategies.participation import PopulationTooSmallError
from tff_dp_aggregators.strategies.participation import allowed_separation
from tff_dp_aggregators.strategies.participation import check_population


def test_check_population_rejects_exactly_what_no_schedule_fills():
  # Searches all schedules, round by round. The state has, for each client, the next
  # round that it may take part in, and its remaining participations.
  def fillable(num_clients, clients_per_round, participation):
    def search(this_round, state):
      if this_round == participation.num_rounds:
        return True
      if (this_round, state) in dead_ends:
        return False
      allowed = [
        client
        for client, (next_round, remaining) in enumerate(state)
        if next_round <= this_round and remaining
      ]
      for cohort in itertools.combinations(allowed, clients_per_round):
        after = tuple(
          sorted(
            (this_round + participation.min_separation, remaining - 1)
            if client in cohort
            else (next_round, remaining)
            for client, (next_round, remaining) in enumerate(state)
          )
        )
        if search(this_round + 1, after):
          return True
      dead_ends.add((this_round, state))
      return False

    dead_ends = set()
    return search(0, ((0, participation.max_participations),) * num_clients)

  num_cases = {True: 0, False: 0}
  for num_rounds, b, k, clients_per_round, num_clients in itertools.product(
    (1, 2, 4, 5, 6), (1, 2, 3), (None, 1, 2, 3), (1, 2), range(1, 8)
  ):
    participation = Participation(num_rounds, b, k)
    try:
      check_population(num_clients, clients_per_round, participation)
      accepted = True
    except PopulationTooSmallError:
      accepted = False
    assert accepted == fillable(num_clients, clients_per_round, participation), (
      num_clients,
      clients_per_round,
      participation,
    )
    num_cases[accepted] += 1
  assert min(num_cases.values()) > 100  # Both answers were tested.


def test_error_states_smallest_population_and_largest_cohort():
  participation = Participation(100, min_separation=10)
  with pytest.raises(PopulationTooSmallError) as error:
    check_population(49, 5, participation)
  assert 'num_clients of at least 50' in str(error.value)
  assert 'clients_per_round of at most 4' in str(error.value)
  check_population(50, 5, participation)


@pytest.mark.parametrize('name', ['num_clients', 'clients_per_round'])
@pytest.mark.parametrize('value, error', [(0, ValueError), (1.5, TypeError)])
def test_invalid_counts_are_refused_by_name(name, value, error):
  arguments = {'num_clients': 10, 'clients_per_round': 2}
  arguments[name] = value
  with pytest.raises(error, match=name):
    check_population(participation=Participation(4), **arguments)


def test_fixed_epoch_needs_clients_for_each_position_in_the_epoch():
  # Rounds 0, 3, 6 share clients, as do 1, 4 and 2, 5; a client has two rounds.
  limits = Participation(7, 3, 2, fixed_epoch=True)
  check_population(2 * 2 + 1 + 1 + 1, 2, limits)  # 3 + 2 + 2.
  with pytest.raises(ValueError, match='need 7 clients'):
    check_population(6, 2, limits)


def test_allowed_separation_is_the_largest_that_fills_every_round():
  for num_clients, clients_per_round in ((100, 7), (100, 10), (5, 5)):
    b = allowed_separation(num_clients, clients_per_round)
    check_population(num_clients, clients_per_round, Participation(200, b))
    with pytest.raises(ValueError, match='is too few'):
      check_population(num_clients, clients_per_round, Participation(200, b + 1))
  with pytest.raises(
    ValueError, match='clients_per_round=6 is larger than num_clients=5'
  ):
    allowed_separation(5, 6)
