"""The binary tree of DP-FTRL: exact sensitivity, exact estimators, known figures.

Privacy is checked against brute force (every participation pattern of small trees,
for every prefix of rounds), against the published accountant (tree_sensitivity.json)
and against closed forms. The estimators are checked to be unbiased as matrices.
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

ORACLE = json.loads(
  pathlib.Path(__file__).with_name('tree_sensitivity.json').read_text()
)
SEPARATIONS = [1, 2, 3, 4, 5, 7, 11]


def all_patterns(num_rounds, min_separation, max_participations):
  """Every allowed 0/1 vector as a column, found among all 2^n."""
  masks = np.arange(2**num_rounds)
  bits = (masks[None, :] >> np.arange(num_rounds)[:, None]) & 1
  allowed = bits.sum(axis=0) <= max_participations
  for gap in range(1, min(min_separation, num_rounds)):
    allowed &= ~np.any(bits[gap:] & bits[:-gap], axis=0)
  return bits[:, allowed]


def sensitivity_squared_by_definition(num_rounds, patterns):
  """Entry t: largest sum of squared counts over dyadic nodes inside rounds 0 to t."""
  totals = np.zeros((num_rounds, patterns.shape[1]))
  for level in range(num_rounds.bit_length()):
    size = 2**level
    for start in range(0, num_rounds - size + 1, size):
      count = patterns[start : start + size].sum(axis=0)
      totals[start + size - 1 :] += count**2
  return totals.max(axis=1)


@pytest.mark.parametrize('num_rounds', range(1, 13))
def test_sensitivity_equals_brute_force_on_every_pattern(num_rounds):
  matrix = BinaryTree(num_rounds).materialize()
  for min_separation in SEPARATIONS:
    for max_participations in range(1, num_rounds + 1):
      patterns = all_patterns(num_rounds, min_separation, max_participations)
      expected = np.square(matrix @ patterns).sum(axis=0).max()
      schema = num_rounds, min_separation, max_participations
      assert tree.sensitivity_squared(*schema) == expected, schema
      assert BinaryTree(num_rounds).sensitivity(
        Participation(*schema)
      ) == pytest.approx(math.sqrt(expected), rel=1e-15)


@pytest.mark.parametrize('num_rounds', [1, 5, 8, 11, 13])
def test_by_round_profile_equals_brute_force_on_every_prefix(num_rounds):
  for min_separation, max_participations in itertools.product(
    SEPARATIONS, [1, 2, 3, num_rounds]
  ):
    schema = num_rounds, min_separation, max_participations
    expected = sensitivity_squared_by_definition(num_rounds, all_patterns(*schema))
    profile = BinaryTree(num_rounds).sensitivity_squared_by_round(
      Participation(*schema)
    )
    assert profile.dtype == np.float64
    np.testing.assert_array_equal(profile, expected, err_msg=str(schema))


@pytest.mark.parametrize('num_rounds', [6, 7])
def test_sensitivity_covers_contributions_of_either_sign(num_rounds):
  # A client may send any vector of norm 1, for instance the opposite one later on.
  signs = np.array(list(itertools.product([-1, 0, 1], repeat=num_rounds))).T
  largest = np.square(BinaryTree(num_rounds).materialize() @ signs).sum(axis=0).max()
  assert largest == tree.sensitivity_squared(num_rounds, 1)


@pytest.mark.parametrize(
  'case', ORACLE['cases'], ids=lambda c: '-'.join(str(v) for v in c.values())
)
def test_sensitivity_equals_the_published_accountant(case):
  assert (
    tree.sensitivity_squared(
      case['num_rounds'],
      min_separation=case['rounds_between'] + 1,
      max_participations=case['max_participations'],
    )
    == case['zeta_star']
  )


def test_rounds_between_taken_for_min_separation_is_another_sensitivity():
  # Published: 26 for 33 rounds, four participations and ten rounds between.
  between = Participation.from_rounds_between(33, 10, 4)
  assert BinaryTree(33).sensitivity_squared_by_round(between)[-1] == 26
  assert tree.sensitivity_squared(33, min_separation=11, max_participations=4) == 26
  assert tree.sensitivity_squared(33, min_separation=10, max_participations=4) == 40


@pytest.mark.parametrize('num_rounds', [*range(1, 34), 255, 256, 257, 2000, 10**6])
def test_single_participation_counts_the_levels(num_rounds):
  # In round 0 one client is below one node of each level: floor(log2 n) + 1.
  levels = math.floor(math.log2(num_rounds)) + 1
  assert tree.num_levels(num_rounds) == levels
  assert tree.sensitivity_squared(num_rounds, 1, max_participations=1) == levels
  if num_rounds <= 2000:
    assert BinaryTree(num_rounds).sensitivity() == pytest.approx(math.sqrt(levels))


@pytest.mark.parametrize('level', range(0, 9))
def test_full_participation_in_a_complete_tree_has_a_closed_form(level):
  # Level l has 2^(h - l) nodes that each count 2^l: sum of 2^(h + l).
  num_rounds = 2**level
  expected = sum(2 ** (level - i) * 4**i for i in range(level + 1))
  assert tree.sensitivity_squared(num_rounds, 1) == expected


def test_profile_never_decreases_and_ends_with_the_sensitivity():
  strategy = BinaryTree(300)
  for participation in [
    None,
    Participation(300, 10),
    Participation(300, 37, 3),
    Participation(300, 1, 4),
  ]:
    profile = strategy.sensitivity_squared_by_round(participation)
    assert profile.shape == (300,)
    assert np.all(np.diff(profile) >= 0)
    assert strategy.sensitivity(participation) == math.sqrt(profile[-1])


@pytest.mark.parametrize('num_rounds', [37, 64, 100])
def test_sensitivity_grows_with_participations_and_shrinks_with_separation(num_rounds):
  table = np.array(
    [
      [tree.sensitivity_squared(num_rounds, b, k) for k in range(1, 9)]
      for b in range(1, 20)
    ]
  )
  assert np.all(np.diff(table, axis=1) >= 0)
  assert np.all(np.diff(table, axis=0) <= 0)
  assert table[0, -1] > table[0, 0] and table[0, -1] > table[-1, -1]


@pytest.mark.parametrize('num_rounds', range(1, 41))
def test_rows_are_the_complete_dyadic_intervals(num_rounds):
  rows = {tuple(np.flatnonzero(row)) for row in BinaryTree(num_rounds).materialize()}
  expected = {
    tuple(range(start, start + 2**level))
    for level in range(7)
    for start in range(0, num_rounds - 2**level + 1, 2**level)
  }
  assert rows == expected
  assert BinaryTree(num_rounds).num_nodes == len(expected)
  assert np.isin(BinaryTree(num_rounds).materialize(), [0, 1]).all()


@pytest.mark.parametrize('num_rounds', [1, 2, 3, 31, 32, 33, 1000])
def test_node_numbers_are_a_bijection_in_order_of_completion(num_rounds):
  nodes = [
    (last, level)
    for last in range(num_rounds)
    for level in range(20)
    if (last + 1) % 2**level == 0
  ]
  numbers = [tree.node_index(last, level) for last, level in nodes]
  assert numbers == list(range(BinaryTree(num_rounds).num_nodes))


@pytest.mark.parametrize('end', range(0, 70))
def test_prefix_nodes_cover_the_prefix_once_with_the_fewest_nodes(end):
  nodes = tree.prefix_nodes(end)
  covered = [r for last, level in nodes for r in range(last + 1 - 2**level, last + 1)]
  assert sorted(covered) == list(range(end))
  assert len(nodes) == bin(end).count('1')
  assert all((last + 1) % 2**level == 0 for last, level in nodes)


@pytest.mark.parametrize('honaker', [True, False])
@pytest.mark.parametrize('num_rounds', range(1, 41))
def test_estimator_times_strategy_is_exactly_the_prefix_sums(num_rounds, honaker):
  strategy = BinaryTree(num_rounds, honaker=honaker)
  product = strategy.materialize_estimator() @ strategy.materialize()
  np.testing.assert_allclose(product, np.tri(num_rounds), rtol=0, atol=1e-13)


@pytest.mark.parametrize('honaker', [True, False])
def test_estimator_of_a_round_uses_only_nodes_complete_by_then(honaker):
  strategy = BinaryTree(40, honaker=honaker)
  last_round = [np.flatnonzero(row)[-1] for row in strategy.materialize()]
  rounds, nodes = np.nonzero(strategy.materialize_estimator())
  assert all(last_round[node] <= r for r, node in zip(rounds, nodes))


def test_plain_variance_is_the_number_of_ones_of_the_round():
  variance = BinaryTree(64, honaker=False).per_query_error()
  np.testing.assert_array_equal(variance, [bin(t).count('1') for t in range(1, 65)])


def test_honaker_variance_of_a_complete_tree_is_the_published_one():
  # Estimation from below: 1 / (2 - 2^-level) for one node with all those below it.
  variance = BinaryTree(64).per_query_error()
  for level in range(7):
    expected = 1 / (2 - 2.0**-level)
    assert variance[2**level - 1] == pytest.approx(expected, rel=1e-14)
  assert variance[2] == pytest.approx(2 / 3 + 1, rel=1e-14)


def test_honaker_variance_never_exceeds_the_plain_one_and_is_at_least_half_of_it():
  honaker = BinaryTree(200).per_query_error()
  plain = BinaryTree(200, honaker=False).per_query_error()
  assert np.all(honaker <= plain + 1e-12)
  assert np.all(honaker >= plain / 2)
  assert np.all(honaker[1::2] < plain[1::2])


def test_honaker_is_the_least_squares_estimate_of_a_complete_tree():
  # No unbiased linear estimate from the nodes below and the node itself is better.
  strategy = BinaryTree(16)
  matrix, estimator = strategy.materialize(), strategy.materialize_estimator()
  best = np.ones(16) @ np.linalg.pinv(matrix)
  np.testing.assert_allclose(estimator[15], best, atol=1e-12)


@pytest.mark.parametrize('honaker', [True, False])
def test_noise_of_a_round_is_what_it_adds_to_the_prefix_sums(honaker):
  strategy = BinaryTree(20, honaker=honaker)
  noise = strategy.noise_matrix()
  np.testing.assert_allclose(
    np.cumsum(noise, axis=0), strategy.materialize_estimator(), atol=1e-14
  )
  np.testing.assert_allclose(noise @ strategy.materialize(), np.eye(20), atol=1e-13)


def test_honaker_needs_a_buffer_a_level_and_plain_none():
  assert BinaryTree(1000).noise_buffers == BinaryTree(1000).num_levels == 10
  assert BinaryTree(1000, honaker=False).noise_buffers == 0


def test_sensitivity_is_the_same_for_both_estimators():
  participation = Participation(100, 7, 5)
  np.testing.assert_array_equal(
    BinaryTree(100, honaker=True).sensitivity_squared_by_round(participation),
    BinaryTree(100, honaker=False).sensitivity_squared_by_round(participation),
  )


@pytest.mark.parametrize('value', [0, 1, None, 'yes', np.True_])
def test_honaker_must_be_a_bool(value):
  with pytest.raises(TypeError, match='honaker must be a bool, got'):
    BinaryTree(8, honaker=value)


@pytest.mark.parametrize('arguments, name', [
    ((0, 1, 1), 'num_rounds'),
    ((5, 0, 1), 'min_separation'),
    ((5, 1, 0), 'max_participations'),
])  # fmt: skip
def test_sensitivity_refuses_numbers_below_one_by_name(arguments, name):
  with pytest.raises(ValueError, match=name):
    tree.sensitivity_squared(*arguments)
