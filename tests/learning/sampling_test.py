"""Sampled cohorts keep what the privacy accounting assumes, whenever that is possible.

Claims:

* No client is twice in a round, comes back before `min_separation` rounds, or takes
  part more than `max_participations` times; every round is full.
* `check_population` accepts exactly the populations that can fill every round: a
  search through all schedules agrees where it is small enough to be done.
* Whatever the error for a population that is too small suggests really fits.
* `accounting.planning`, which cannot see this layer, asks for the same populations.
* Equal seeds draw equal cohorts.
"""

import itertools
import re

import numpy as np
import pytest

from tff_dp_aggregators import strategies
from tff_dp_aggregators.accounting.planning import comparison as planning
from tff_dp_aggregators.learning import sampling

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
      sampling.check_population(num_clients, clients_per_round, participation)
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
    participation = strategies.Participation(num_rounds, separation, most)
    try:
      sampling.check_population(num_clients, clients_per_round, participation)
      accepts = True
    except sampling.PopulationTooSmallError:
      accepts = False
    assert accepts == fillable(num_clients, clients_per_round, participation), (
      num_clients,
      clients_per_round,
      participation,
    )
    accepted[accepts] += 1
  assert min(accepted.values()) > 100  # Both answers were put to the test.


def test_every_suggestion_of_the_error_fits():
  number_of_suggestions = 0
  for num_rounds, separation, most, clients_per_round in _GRID:
    participation = strategies.Participation(num_rounds, separation, most)
    smallest = _smallest_population(participation, clients_per_round)
    for num_clients in {1, 2, smallest // 2, smallest - 1} - {0, smallest}:
      if num_clients > smallest:
        continue
      with pytest.raises(sampling.PopulationTooSmallError) as error:
        sampling.check_population(num_clients, clients_per_round, participation)
      message = str(error.value)
      suggestions = message[:-1].split('What would fit: ')[1].split(', or ')
      for suggestion in suggestions:
        changed = {
          'num_clients': num_clients,
          'clients_per_round': clients_per_round,
          'min_separation': separation,
          # As the object has it, with None replaced by what fitted.
          'max_participations': participation.max_participations,
        }
        found = re.findall(r'(\w+) of at (?:most|least) (\d+)', suggestion)
        assert found, suggestion
        changed.update({name: int(value) for name, value in found})
        sampling.check_population(
          changed['num_clients'],
          changed['clients_per_round'],
          strategies.Participation(
            num_rounds, changed['min_separation'], changed['max_participations']
          ),
        )
        number_of_suggestions += 1
  assert number_of_suggestions > 1000


def test_the_error_names_the_smallest_population_and_the_largest_cohort():
  participation = strategies.Participation(100, min_separation=10)
  with pytest.raises(sampling.PopulationTooSmallError) as error:
    sampling.check_population(49, 5, participation)
  assert 'num_clients of at least 50' in str(error.value)
  assert 'clients_per_round of at most 4' in str(error.value)
  sampling.check_population(50, 5, participation)


def test_planning_before_training_asks_for_the_same_populations():
  for num_rounds, min_separation, most, clients_per_round in _GRID:
    limits = strategies.Participation(num_rounds, min_separation, most)
    smallest = _smallest_population(limits, clients_per_round)
    planning.check_population(smallest, clients_per_round, limits)
    if smallest > 1:
      with pytest.raises(ValueError, match=f'need {smallest} clients'):
        planning.check_population(smallest - 1, clients_per_round, limits)


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


@pytest.mark.parametrize('name', ['num_clients', 'clients_per_round'])
@pytest.mark.parametrize(
  'value, error', [(0, ValueError), (-1, ValueError), (1.5, TypeError)]
)
def test_numbers_that_are_no_counts_are_refused(name, value, error):
  arguments = {'num_clients': 10, 'clients_per_round': 2}
  arguments[name] = value
  with pytest.raises(error, match=name):
    sampling.check_population(participation=strategies.Participation(4), **arguments)


def test_fixed_epochs_are_refused_and_not_taken_for_min_separation():
  epochs = strategies.Participation(4, 2, fixed_epoch=True)
  with pytest.raises(ValueError, match='leave out fixed_epoch'):
    sampling.sample_cohorts(4, 2, epochs, seed=1)
