"""The populations that can fill every round within limits on participation."""

import itertools

import pytest

from tff_dp_aggregators.strategies import Participation
from tff_dp_aggregators.strategies.participation import PopulationTooSmallError
from tff_dp_aggregators.strategies.participation import allowed_separation
from tff_dp_aggregators.strategies.participation import check_population


def test_rejected_is_exactly_what_no_schedule_can_fill():
  # All schedules, by a search over rounds; the state is who may return when and how
  # often each client still may.
  def fillable(num_clients, clients_per_round, participation):
    def search(this_round, state):
      if this_round == participation.num_rounds:
        return True
      if (this_round, state) in dead_ends:
        return False
      allowed = [
        client
        for client, (back, left) in enumerate(state)
        if back <= this_round and left
      ]
      for cohort in itertools.combinations(allowed, clients_per_round):
        after = tuple(
          sorted(
            (this_round + participation.min_separation, left - 1)
            if client in cohort
            else (back, left)
            for client, (back, left) in enumerate(state)
          )
        )
        if search(this_round + 1, after):
          return True
      dead_ends.add((this_round, state))
      return False

    dead_ends = set()
    return search(0, ((0, participation.max_participations),) * num_clients)

  accepted = {True: 0, False: 0}
  for num_rounds, separation, most, clients_per_round, num_clients in itertools.product(
    (1, 2, 4, 5, 6), (1, 2, 3), (None, 1, 2, 3), (1, 2), range(1, 8)
  ):
    participation = Participation(num_rounds, separation, most)
    try:
      check_population(num_clients, clients_per_round, participation)
      accepts = True
    except PopulationTooSmallError:
      accepts = False
    assert accepts == fillable(num_clients, clients_per_round, participation), (
      num_clients,
      clients_per_round,
      participation,
    )
    accepted[accepts] += 1
  assert min(accepted.values()) > 100  # Both answers were put to the test.


def test_the_error_names_the_smallest_population_and_the_largest_cohort():
  participation = Participation(100, min_separation=10)
  with pytest.raises(PopulationTooSmallError) as error:
    check_population(49, 5, participation)
  assert 'num_clients of at least 50' in str(error.value)
  assert 'clients_per_round of at most 4' in str(error.value)
  check_population(50, 5, participation)


@pytest.mark.parametrize('name', ['num_clients', 'clients_per_round'])
@pytest.mark.parametrize('value, error', [(0, ValueError), (1.5, TypeError)])
def test_numbers_that_are_no_counts_are_refused(name, value, error):
  arguments = {'num_clients': 10, 'clients_per_round': 2}
  arguments[name] = value
  with pytest.raises(error, match=name):
    check_population(participation=Participation(4), **arguments)


def test_fixed_epochs_need_clients_for_each_place_in_the_epoch():
  # Rounds 0, 3, 6 share clients, 1 and 4, 2 and 5; two rounds a client.
  limits = Participation(7, 3, 2, fixed_epoch=True)
  check_population(2 * 2 + 1 + 1 + 1, 2, limits)  # 3 + 2 + 2.
  with pytest.raises(ValueError, match='need 7 clients'):
    check_population(6, 2, limits)


def test_the_separation_that_a_population_allows_is_the_largest_that_fills_rounds():
  for population, cohort in ((100, 7), (100, 10), (5, 5)):
    b = allowed_separation(population, cohort)
    check_population(population, cohort, Participation(200, b))
    with pytest.raises(ValueError, match='is too few'):
      check_population(population, cohort, Participation(200, b + 1))
  with pytest.raises(
    ValueError, match='clients_per_round=6 is larger than num_clients=5'
  ):
    allowed_separation(5, 6)
