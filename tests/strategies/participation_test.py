"""Tests of `Participation`: allowed patterns of rounds, and refused arguments."""

import itertools

import numpy as np
import pytest

from tff_dp_aggregators.strategies import Participation


def subsets_with_separation(num_rounds, min_separation, max_participations):
  """Returns all allowed sets of rounds, by the definition, from all subsets."""
  allowed = set()
  for mask in range(2**num_rounds):
    rounds = tuple(r for r in range(num_rounds) if mask >> r & 1)
    if len(rounds) <= max_participations and all(
      abs(r - s) >= min_separation for r, s in itertools.combinations(rounds, 2)
    ):
      allowed.add(rounds)
  return allowed


@pytest.mark.parametrize('num_rounds', [1, 2, 8, 9])
@pytest.mark.parametrize('min_separation', [1, 2, 3, 12])
@pytest.mark.parametrize('max_participations', [1, 3, 20])
def test_patterns_are_all_subsets_allowed_by_the_definition(
  num_rounds, min_separation, max_participations
):
  participation = Participation(num_rounds, min_separation, max_participations)
  patterns = list(participation.patterns())
  expected = subsets_with_separation(num_rounds, min_separation, max_participations)
  assert len(patterns) == len(set(patterns))
  assert set(patterns) == expected
  assert participation.possible_participations == max(map(len, expected))
  longest = participation.possible_participations
  assert participation.rounds == min(each for each in expected if len(each) == longest)


@pytest.mark.parametrize('num_rounds', [1, 7, 8])
@pytest.mark.parametrize('epoch', [1, 3, 10])
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


def test_allows_accepts_valid_and_rejects_invalid_rounds():
  participation = Participation(10, min_separation=3, max_participations=3)
  for rounds in [(), (9,), (0, 3), (1, 5, 9)]:
    assert participation.allows(rounds)
  for rounds in [(10,), (-1,), (0, 2), (3, 0), (3, 3), (0, 3, 6, 9)]:
    assert not participation.allows(rounds)
  fixed_epoch = Participation(10, 3, fixed_epoch=True)
  assert fixed_epoch.allows((1, 4, 7)) and not fixed_epoch.allows((1, 5))


def test_fixed_epoch_must_be_a_bool():
  with pytest.raises(TypeError, match='fixed_epoch must be a bool'):
    Participation(10, 2, fixed_epoch=1)


@pytest.mark.parametrize('name', ['num_rounds', 'min_separation', 'max_participations'])
@pytest.mark.parametrize('value', [1.0, '3', True, [1], 0, np.int64(-7)])
def test_arguments_other_than_positive_integers_are_refused_by_name(name, value):
  error, wanted = TypeError, 'a whole number, got'
  if type(value) in (int, np.int64):
    error, wanted = ValueError, f'at least 1, got {value}'
  arguments = {'num_rounds': 5, 'min_separation': 2, 'max_participations': 2}
  with pytest.raises(error, match=f'^{name} must be {wanted}'):
    Participation(**{**arguments, name: value})


@pytest.mark.parametrize('value, error', [(1.5, TypeError), (-1, ValueError)])
def test_invalid_rounds_between_is_refused(value, error):
  with pytest.raises(error, match='^rounds_between must be'):
    Participation.from_rounds_between(10, value)


def test_numpy_integers_become_plain_ints():
  participation = Participation(np.int64(9), np.int32(2), np.uint8(3))
  for name in ('num_rounds', 'min_separation', 'max_participations'):
    assert type(getattr(participation, name)) is int
  assert participation == Participation(9, 2, 3)


def test_from_rounds_between_gives_the_published_gboard_schema():
  # Rounds with 313 between them differ by 314.
  participation = Participation.from_rounds_between(2000, 313, 6)
  assert participation == Participation(2000, 314, 6)
  assert participation.rounds == (0, 314, 628, 942, 1256, 1570)
