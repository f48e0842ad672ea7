"""Participation schemas say exactly which patterns of rounds are allowed.

Claims: wrong arguments are refused by name; the number of possible participations and
the patterns themselves are those of a search through all subsets of rounds; rounds
between are one less than the difference of rounds.
"""

import dataclasses
import itertools

import numpy as np
import pytest

from tff_dp_aggregators.base import checks
from tff_dp_aggregators.strategies import Participation


def subsets_with_separation(num_rounds, min_separation, max_participations):
  """All allowed sets of rounds, from the definition, by looking at every subset."""
  allowed = set()
  for mask in range(2**num_rounds):
    rounds = tuple(r for r in range(num_rounds) if mask >> r & 1)
    if len(rounds) <= max_participations and all(
      abs(r - s) >= min_separation for r, s in itertools.combinations(rounds, 2)
    ):
      allowed.add(rounds)
  return allowed


@pytest.mark.few(60)
@pytest.mark.parametrize('num_rounds', range(1, 10))
@pytest.mark.parametrize('min_separation', [1, 2, 3, 5, 12])
@pytest.mark.parametrize('max_participations', [1, 2, 3, 20])
def test_patterns_are_all_subsets_that_the_definition_allows(
  num_rounds, min_separation, max_participations
):
  participation = Participation(num_rounds, min_separation, max_participations)
  patterns = list(participation.patterns())
  expected = subsets_with_separation(num_rounds, min_separation, max_participations)
  assert len(patterns) == len(set(patterns))
  assert set(patterns) == expected
  assert participation.possible_participations == max(map(len, expected))
  assert participation.rounds in expected
  assert len(participation.rounds) == participation.possible_participations


@pytest.mark.few(32)
@pytest.mark.parametrize('num_rounds', range(1, 9))
@pytest.mark.parametrize('epoch', [1, 2, 3, 10])
@pytest.mark.parametrize('max_participations', [1, 2, None])
def test_fixed_epoch_patterns_are_the_subsets_of_residue_classes(
  num_rounds, epoch, max_participations
):
  participation = Participation(num_rounds, epoch, max_participations, fixed_epoch=True)
  expected = set()
  for first in range(epoch):
    rounds = range(first, num_rounds, epoch)
    for count in range(min(len(rounds), participation.max_participations) + 1):
      expected |= set(itertools.combinations(rounds, count))
  assert set(participation.patterns()) == expected
  assert participation.possible_participations == max(map(len, expected))
  assert participation.rounds in expected


def test_whether_rounds_are_allowed_is_told_for_any_rounds():
  participation = Participation(10, min_separation=3, max_participations=3)
  for rounds in [(), (9,), (0, 3), (1, 5, 9)]:
    assert participation.allows(rounds)
  for rounds in [(10,), (-1,), (0, 2), (3, 0), (3, 3), (0, 3, 6, 9)]:
    assert not participation.allows(rounds)


@pytest.mark.parametrize('fixed_epoch', [1, None, 'yes'])
def test_fixed_epoch_is_a_bool(fixed_epoch):
  with pytest.raises(TypeError, match='fixed_epoch must be a bool'):
    Participation(10, 2, fixed_epoch=fixed_epoch)


def test_earliest_pattern_comes_lexicographically_first_among_the_longest():
  participation = Participation(11, min_separation=3)
  longest = [p for p in participation.patterns() if len(p) == 4]
  assert participation.rounds == min(longest) == (0, 3, 6, 9)


@pytest.mark.parametrize(
    'num_rounds, min_separation, fitting',
    [(1, 1, 1), (8, 1, 8), (8, 2, 4), (9, 2, 5), (100, 30, 4), (100, 100, 1),
     (100, 99, 2), (5, 1000, 1), (2000, 314, 7)],
)  # fmt: skip
def test_default_allows_as_many_participations_as_fit(
  num_rounds, min_separation, fitting
):
  participation = Participation(num_rounds, min_separation)
  assert participation.max_participations == fitting
  assert participation.possible_participations == fitting


def test_more_participations_than_fit_are_kept_but_not_possible():
  participation = Participation(10, min_separation=5, max_participations=7)
  assert participation.max_participations == 7
  assert participation.possible_participations == 2


def test_single_participation_is_one_round_at_most():
  assert list(Participation.single(3).patterns()) == [(), (0,), (1,), (2,)]


@pytest.mark.parametrize('rounds_between', [0, 1, 2, 4])
def test_rounds_between_is_one_less_than_the_difference(rounds_between):
  participation = Participation.from_rounds_between(10, rounds_between)
  assert participation.min_separation == rounds_between + 1
  between = [
    later - earlier - 1
    for rounds in participation.patterns()
    for earlier, later in zip(rounds, rounds[1:])
  ]
  assert min(between) == rounds_between


@pytest.mark.parametrize('name', ['num_rounds', 'min_separation', 'max_participations'])
@pytest.mark.parametrize('value', [1.0, '3', True, False, [1], np.nan])
def test_arguments_that_are_no_whole_numbers_are_refused_by_name(name, value):
  arguments = {'num_rounds': 5, 'min_separation': 2, 'max_participations': 2}
  with pytest.raises(TypeError, match=f'^{name} must be a whole number, got'):
    Participation(**{**arguments, name: value})


@pytest.mark.parametrize('name', ['num_rounds', 'min_separation', 'max_participations'])
@pytest.mark.parametrize('value', [0, -1, np.int64(-7)])
def test_arguments_below_one_are_refused_by_name(name, value):
  arguments = {'num_rounds': 5, 'min_separation': 2, 'max_participations': 2}
  with pytest.raises(ValueError, match=f'^{name} must be at least 1, got {value}'):
    Participation(**{**arguments, name: value})


@pytest.mark.parametrize('name', ['num_rounds', 'min_separation'])
def test_only_max_participations_may_be_none(name):
  arguments = {'num_rounds': 5, 'min_separation': 2}
  with pytest.raises(TypeError, match=name):
    Participation(**{**arguments, name: None})


@pytest.mark.parametrize('value', [1.5, True, '3', None])
def test_rounds_between_must_be_a_whole_number(value):
  with pytest.raises(TypeError, match='^rounds_between must be a whole number'):
    Participation.from_rounds_between(10, value)


def test_rounds_between_must_not_be_negative():
  with pytest.raises(ValueError, match='^rounds_between must be at least 0, got -1'):
    Participation.from_rounds_between(10, -1)


def test_numpy_integers_become_plain_ints():
  participation = Participation(np.int64(9), np.int32(2), np.uint8(3))
  for name in ('num_rounds', 'min_separation', 'max_participations'):
    assert type(getattr(participation, name)) is int
  assert participation == Participation(9, 2, 3)


def test_a_schema_cannot_be_changed():
  participation = Participation(9, 2, 3)
  with pytest.raises(dataclasses.FrozenInstanceError):
    participation.min_separation = 1
  assert checks.check_positive_int('n', participation.num_rounds) == 9


def test_published_gboard_schema_allows_rounds_that_differ_by_314():
  participation = Participation.from_rounds_between(2000, 313, 6)
  assert participation.rounds == (0, 314, 628, 942, 1256, 1570)
