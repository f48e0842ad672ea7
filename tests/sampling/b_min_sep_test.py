"""b-min-sep sampling: each free client is drawn by itself, and then has a break.

Claims:

* Every set of rounds of a client has the probability that the schema's words give it,
  whatever the rounds of other clients are.
* Two rounds of a client differ by at least b, and all rounds have the same expected
  number of clients, the first ones too.
* With b = 1 it is Poisson sampling; with p = 1 every b-th round, from a uniform one on.
* The denominator is the expected size, and is not the cohort's own.
"""

import numpy as np
import pytest
import scipy.stats

from tff_dp_aggregators import sampling

# Rounds, probability, separation: breaks within the run, up to its end, and beyond.
_SMALL = [
  (6, 0.4, 2),
  (6, 0.8, 2),
  (7, 0.5, 3),
  (5, 0.3, 4),
  (4, 0.2, 4),
  (4, 0.7, 5),
  (3, 0.3, 9),
  (4, 0.3, 1),
  (1, 0.3, 3),
]


def _schedule(num_rounds, probability, separation, num_clients, seed=1):
  scheme = sampling.BMinSepSampling(num_rounds, probability, separation)
  return sampling.SampledSchedule(scheme, num_clients, seed)


def _sets(schedule):
  """The rounds of each client, each set as the bits of a number."""
  sets = np.zeros(schedule.num_clients, np.int64)
  for this_round in range(schedule.num_rounds):
    cohort = schedule.cohort(this_round)
    assert np.all(np.diff(cohort) > 0)  # In order, and nobody twice.
    sets[cohort] += 2**this_round
  return sets


def _sizes(schedule):
  return np.array([len(schedule.cohort(t)) for t in range(schedule.num_rounds)])


def _probabilities(num_rounds, p, b):
  """The probability of each set of rounds, by walking through all that may happen."""
  found = np.zeros(2**num_rounds)

  def walk(this_round, free_from, rounds, probability):
    if this_round == num_rounds:
      found[rounds] += probability
    elif this_round < free_from:
      walk(this_round + 1, free_from, rounds, probability)
    else:
      drawn = rounds + 2**this_round
      walk(this_round + 1, this_round + b, drawn, probability * p)
      walk(this_round + 1, free_from, rounds, probability * (1 - p))

  for free_from in range(b):
    walk(0, free_from, 0, (p if free_from else 1) / (1 + (b - 1) * p))
  assert found.sum() == pytest.approx(1)
  return found


def _check_chances(drawn, probabilities):
  """Checks that numbers are drawn with these probabilities: a false alarm in 10^7."""
  counts = np.bincount(drawn, minlength=len(probabilities))
  assert not counts[probabilities == 0].any()
  assert len(counts) == len(probabilities)
  possible = probabilities > 0
  expected = len(drawn) * probabilities[possible]
  assert expected.min() > 5
  chi_squared = np.sum((counts[possible] - expected) ** 2 / expected)
  assert chi_squared < scipy.stats.chi2.isf(1e-7, len(expected) - 1)


@pytest.mark.parametrize('num_rounds, probability, separation', _SMALL)
def test_every_set_of_rounds_has_its_probability(num_rounds, probability, separation):
  sets = _sets(_schedule(num_rounds, probability, separation, 200_000))
  _check_chances(sets, _probabilities(num_rounds, probability, separation))


@pytest.mark.parametrize(
  'num_rounds, probability, separation', [(4, 0.4, 2), (5, 0.6, 3), (3, 0.5, 9)]
)
def test_neighbours_of_one_seed_are_independent(num_rounds, probability, separation):
  sets = _sets(_schedule(num_rounds, probability, separation, 200_000))
  probabilities = _probabilities(num_rounds, probability, separation)
  pairs = sets[::2] * len(probabilities) + sets[1::2]
  _check_chances(pairs, np.outer(probabilities, probabilities).ravel())


def test_two_clients_are_independent_over_seeds():
  probabilities = _probabilities(3, 0.5, 2)
  pairs = []
  for seed in range(5000):
    one, other = _sets(_schedule(3, 0.5, 2, 2, seed))
    pairs.append(one * len(probabilities) + other)
  _check_chances(np.array(pairs), np.outer(probabilities, probabilities).ravel())


@pytest.mark.parametrize(
  'num_rounds, probability, separation',
  [(40, 0.2, 7), (40, 0.02, 30), (40, 1, 9), (40, 0.5, 200), (40, 0.1, 1)],
)
def test_all_rounds_have_the_same_expected_number_of_clients(
  num_rounds, probability, separation
):
  schedule = _schedule(num_rounds, probability, separation, 200_000)
  sizes, rate = _sizes(schedule), schedule.sampling.rate
  assert schedule.clients_per_round == 200_000 * rate
  # 5.3 standard deviations: a false alarm once in 10^7.
  allowed = 5.3 * (200_000 * rate * (1 - rate)) ** 0.5
  assert np.all(np.abs(sizes - schedule.clients_per_round) < allowed)
  assert len(np.unique(sizes)) > 5  # They differ, as chance has it.
  assert schedule.max_cohort == sizes.max()


@pytest.mark.parametrize('probability, separation', [(0.05, 10), (0.9, 10), (0.3, 2)])
def test_two_rounds_of_a_client_are_so_far_apart_and_the_rest_is_chance(
  probability, separation
):
  schedule = _schedule(400, probability, separation, 3000)
  last, gaps = np.full(3000, -1), []
  for this_round in range(400):
    cohort = schedule.cohort(this_round)
    # Of gaps that begin early enough, all up to 200 are seen.
    begun = (last[cohort] >= 0) & (last[cohort] < 200)
    gaps.extend(this_round - last[cohort[begun]])
    last[cohort] = this_round
  assert min(gaps) == separation
  longer = np.array(gaps)[np.array(gaps) <= 200] - separation
  mean, variance = (1 - probability) / probability, (1 - probability) / probability**2
  # 5.3 standard deviations: a false alarm once in 10^7.
  assert abs(longer.mean() - mean) < 5.3 * (variance / len(longer)) ** 0.5


def test_without_a_break_it_is_poisson_sampling():
  sets = _sets(_schedule(5, 0.3, 1, 200_000))
  times = np.array([bin(rounds).count('1') for rounds in range(32)])
  _check_chances(sets, 0.3**times * 0.7 ** (5 - times))
  assert _schedule(5, 0.3, 1, 50).clients_per_round == 15
  everybody = _schedule(5, 1, 1, 50)
  assert _sizes(everybody).tolist() == [50] * 5


def test_with_certainty_it_is_every_bth_round_from_a_uniform_one_on():
  schedule = _schedule(23, 1, 5, 100_000)
  sets = _sets(schedule)
  patterns = [sum(2**t for t in range(first, 23, 5)) for first in range(5)]
  found, first_rounds = np.unique(sets, return_inverse=True)
  assert sorted(found) == sorted(patterns)
  _check_chances(first_rounds, np.full(5, 0.2))


@pytest.mark.parametrize('separation', [10, 11, 40])
def test_a_break_longer_than_the_run_leaves_one_round_or_none(separation):
  schedule = _schedule(10, 0.3, separation, 100_000)
  sets = _sets(schedule)
  rate = schedule.sampling.rate
  assert set(sets) == {0, *(2**t for t in range(10))}
  places = np.where(sets == 0, 10, np.log2(np.maximum(sets, 1)).astype(int))
  _check_chances(places, np.array([rate] * 10 + [1 - 10 * rate]))


# To wait may take longer than int64 can say, and so may a break and to wait.
@pytest.mark.parametrize('probability, separation', [(1e-19, 3), (1e-18, 10**18)])
def test_nobody_takes_part_where_that_is_unlikely(probability, separation):
  assert not _sizes(_schedule(50, probability, separation, 100_000)).any()


def test_nothing_is_drawn_before_a_round_is_asked_for():
  many = _schedule(50, 0.2, 6, 10**15)  # More than memory holds.
  assert many.clients_per_round == 10**14


def test_numbers_beyond_64_bits_are_refused():
  for b in (2**62 + 1, 2**64, 2**70):
    with pytest.raises(ValueError, match='min_separation must be at most 46116860184'):
      sampling.SampledSchedule(
        sampling.BMinSepSampling(9, 0.1, b), num_clients=8, seed=1
      )
  b = 2**62
  rare = sampling.SampledSchedule(
    sampling.BMinSepSampling(9, 0.1, b), num_clients=8, seed=1
  )
  assert all(len(rare.cohort(each)) == 0 for each in range(9))
