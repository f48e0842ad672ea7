"""Tests of the binary tree of DP-FTRL: its sensitivity, estimators and restarts.

The sensitivity is compared with brute force and with the published accountant
(tree_sensitivity.json).
"""

import itertools
import json
import math
import pathlib

import numpy as np
import pytest

from tff_dp_aggregators.strategies import BinaryTree
from tff_dp_aggregators.strategies import Participation
from tff_dp_aggregators.strategies import tree

PUBLISHED = json.loads(
  pathlib.Path(__file__).with_name('tree_sensitivity.json').read_text()
)
both_schemas = pytest.mark.parametrize('fixed_epoch', [False, True])


def all_patterns(num_rounds):
  """Returns every 0/1 vector, as a column."""
  masks = np.arange(2**num_rounds)
  return (masks[None, :] >> np.arange(num_rounds)[:, None]) & 1


def is_allowed(patterns, min_separation, max_participations, fixed_epoch):
  """Returns which columns the schema allows, by its definition."""
  allowed = patterns.sum(axis=0) <= max_participations
  for gap in range(1, len(patterns)):
    if gap < min_separation or (fixed_epoch and gap % min_separation):
      allowed &= ~np.any(patterns[gap:] & patterns[:-gap], axis=0)
  return allowed


@both_schemas
@pytest.mark.parametrize('restart_every', [None, 3, 4])
@pytest.mark.parametrize('num_rounds', [1, 2, 7, 8, 9])
def test_sensitivity_equals_brute_force_on_every_pattern(
  num_rounds, restart_every, fixed_epoch
):
  strategy = BinaryTree(num_rounds, restart_every=restart_every)
  patterns = all_patterns(num_rounds)
  values = np.square(strategy.materialize() @ patterns).sum(axis=0)
  counts = range(1, num_rounds + 1)
  for min_separation, max_participations in itertools.product(counts, counts):
    schema = num_rounds, min_separation, max_participations
    expected = values[is_allowed(patterns, *schema[1:], fixed_epoch)].max()
    options = {'fixed_epoch': fixed_epoch, 'restart_every': restart_every}
    assert tree.sensitivity_squared(*schema, **options) == expected, schema
    participation = Participation(*schema, fixed_epoch)
    rounds = strategy.worst_case_rounds(participation)
    assert is_allowed(patterns, *schema[1:], fixed_epoch)[sum(2**r for r in rounds)]
    assert tree.pattern_value(rounds, num_rounds, restart_every) == expected
    assert strategy.sensitivity(participation) == math.sqrt(expected)


def test_sensitivity_covers_contributions_of_either_sign():
  # A client may send any vector of norm 1, for instance the opposite one later on.
  signs = np.array(list(itertools.product([-1, 0, 1], repeat=7))).T
  largest = np.square(BinaryTree(7).materialize() @ signs).sum(axis=0).max()
  assert largest == tree.sensitivity_squared(7, 1)


@pytest.mark.parametrize(
  'case', PUBLISHED['cases'], ids=lambda c: '-'.join(str(v) for v in c.values())
)
def test_sensitivity_equals_that_of_the_published_accountant(case):
  num_rounds, times = case['num_rounds'], case['max_participations']
  squared = tree.sensitivity_squared(num_rounds, case['rounds_between'] + 1, times)
  assert squared == case['zeta_star']


LARGE = {
  'gboard': Participation(2000, 314, 6),
  'long_gaps': Participation.from_rounds_between(2**20, 1000, 64),
  'endless': Participation(10**15, 1, 5),
  'below_a_power_of_two': Participation(30_000, 31, 100),
  'fixed_epoch': Participation(20_000, 100, 50, fixed_epoch=True),
  'few_epochs': Participation(10**6, 10**5, 9, fixed_epoch=True),
}


@pytest.mark.few(6)
@pytest.mark.parametrize('restart_every', [None, 1000])
@pytest.mark.parametrize('participation', LARGE.values(), ids=LARGE.keys())
def test_worst_case_rounds_of_long_runs_attain_the_sensitivity(
  participation, restart_every
):
  strategy = BinaryTree(participation.num_rounds, restart_every=restart_every)
  rounds = strategy.worst_case_rounds(participation)
  assert participation.allows(rounds)
  value = tree.pattern_value(rounds, participation.num_rounds, restart_every)
  assert value == strategy.sensitivity_squared(participation)
  assert value >= tree.pattern_value(
    participation.rounds, participation.num_rounds, restart_every
  )


@pytest.mark.parametrize('restart_every', [None, 37])
@pytest.mark.parametrize('schema', [(1, 1), (10,), (37, 3), (1, 4), (7, 5, True)])
def test_sensitivity_by_round_is_that_of_each_prefix(schema, restart_every):
  strategy = BinaryTree(80, restart_every=restart_every)
  participation = Participation(80, *schema)
  profile = strategy.sensitivity_squared_by_round(participation)
  assert profile.shape == (80,)
  assert np.all(np.diff(profile) >= 0)
  assert strategy.sensitivity_squared(participation) == profile[-1]
  for end in range(1, 81):
    shorter = BinaryTree(end, restart_every=restart_every)
    assert shorter.sensitivity_squared(Participation(end, *schema)) == profile[end - 1]


def test_honaker_variance_of_complete_trees_is_as_published():
  # Estimation from below (Honaker): 1 / (2 - 2^-level) for a node and all below it.
  variance = BinaryTree(64).per_query_error()
  for level in range(7):
    expected = 1 / (2 - 2.0**-level)
    assert variance[2**level - 1] == pytest.approx(expected, rel=1e-14)
  assert variance[2] == pytest.approx(2 / 3 + 1, rel=1e-14)


def test_honaker_is_the_least_squares_estimate_of_a_complete_tree():
  # No unbiased linear estimate from the nodes below and the node itself is better.
  strategy = BinaryTree(16)
  matrix, estimator = strategy.materialize(), strategy.materialize_estimator()
  best = np.ones(16) @ np.linalg.pinv(matrix)
  np.testing.assert_allclose(estimator[15], best, atol=1e-12)


@pytest.mark.parametrize('honaker', [True, False])
@pytest.mark.parametrize('restart_every', [None, 1, 5, 8, 40])
def test_estimates_are_unbiased_and_streamable(restart_every, honaker):
  strategy = BinaryTree(20, honaker, restart_every)
  matrix, estimator = strategy.materialize(), strategy.materialize_estimator()
  assert matrix.shape == (strategy.num_nodes, 20)
  np.testing.assert_allclose(estimator @ matrix, np.tri(20), atol=1e-13)
  last_round = np.array([np.flatnonzero(row)[-1] for row in matrix])
  assert np.all(np.diff(last_round) >= 0)  # In the order of completion.
  rounds, nodes = np.nonzero(estimator)
  assert np.all(last_round[nodes] <= rounds)
  np.testing.assert_allclose(
    strategy.per_query_error(), np.square(estimator).sum(axis=1), rtol=1e-12
  )


@pytest.mark.parametrize('value, error', [(0, ValueError), (True, TypeError)])
@pytest.mark.parametrize(
  'function',
  [
    lambda value: BinaryTree(8, restart_every=value),
    lambda value: tree.sensitivity_squared(8, 1, restart_every=value),
    lambda value: tree.pattern_value([0], 8, value),
  ],
)
def test_invalid_restart_every_is_refused(function, value, error):
  with pytest.raises(error, match='restart_every must be'):
    function(value)


def test_invalid_patterns_and_limits_are_refused_by_name():
  with pytest.raises(ValueError, match=r'rounds must be different'):
    tree.pattern_value([3, 3], 8)
  with pytest.raises(ValueError, match=r'from 0 to 7, got'):
    tree.pattern_value([3, 8], 8)
  with pytest.raises(ValueError, match='min_separation must be at least 1'):
    tree.sensitivity_squared(5, 0, 1)


def test_worst_case_rounds_need_not_be_the_densest_ones():
  # Rounds 3 apart among 16: 5^2 from the root, 2^2 + 3^2 from the halves, 2^2 + 2^2 +
  # 1 from the quarters, and 5 from each level below.
  worst = BinaryTree(16).worst_case_rounds
  assert worst(Participation(16, 3)) == (0, 3, 6, 9, 12, 15)
  assert worst(Participation(16, 3, 5)) == (0, 3, 8, 11, 14)
  assert tree.pattern_value((0, 3, 8, 11, 14), 16) == 25 + 13 + 9 + 5 + 5 == 57
  assert tree.pattern_value((0, 3, 6, 9, 12), 16) == 55
  assert tree.sensitivity_squared(16, 3, 5) == 57


@pytest.mark.slow
def test_sensitivity_of_500_participations_matches_full_search():
  # The figure is from a search without bounds, which takes a minute and a half.
  assert tree.sensitivity_squared(100_000, 31, 500) == 1_005_774
