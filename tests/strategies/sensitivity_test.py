"""Tests of sensitivities, by brute force over all patterns of rounds and signs."""

import numpy as np
import pytest

from tests.strategies import every_kind
from tff_dp_aggregators.strategies import Participation
from tff_dp_aggregators.strategies import participation as participation_lib
from tff_dp_aggregators.strategies import sensitivity
from tff_dp_aggregators.strategies import toeplitz

# Strategies whose sensitivity is exact only if the columns of a client do not overlap,
# or if a client takes part twice at most. Trees are tested in `tree_test.py`.
_NOT_ALWAYS_EXACT = (
  *('toeplitz_signed', 'banded', 'dense', 'epoch_toeplitz', 'epoch_inverse'),
  'unit_inverse',
)


def matrices(num_rounds):
  rng = np.random.default_rng(num_rounds)
  full = np.tril(rng.normal(size=(num_rounds, num_rounds)))
  return {
    'signed': full,
    'positive': np.abs(full),
    'banded': np.triu(full, -1),
    'square root': np.tril(
      toeplitz.BandedToeplitz.square_root(num_rounds, num_rounds).materialize()
    ),
    'orthogonal classes': with_orthogonal_classes(num_rounds),
  }


def with_orthogonal_classes(num_rounds, epoch=2):
  """Returns C whose columns 0, 2, 4, ... are orthogonal, and so are 1, 3, 5, ..."""
  rounds = np.arange(num_rounds)
  apart = np.abs(rounds[:, np.newaxis] - rounds)
  gram = np.where(apart % epoch, 0.3 / (1 + apart), 0.0) + 2 * np.eye(num_rounds)
  return np.linalg.cholesky(gram[::-1, ::-1]).T[::-1, ::-1]


@pytest.mark.parametrize('num_rounds', [1, 3, 6])
def test_worst_sum_is_the_maximum_over_all_patterns(num_rounds):
  weights = np.random.default_rng(5).random((2, 3, num_rounds))
  for participation in every_kind.schemas(num_rounds):
    patterns = [list(pattern) for pattern in participation.patterns()]
    sums = np.stack([weights[..., pattern].sum(axis=-1) for pattern in patterns])
    np.testing.assert_allclose(
      participation_lib.worst_sum(weights, participation), sums.max(axis=0), rtol=1e-14
    )


@pytest.mark.parametrize('num_rounds', [1, 2, 5, 6])
def test_exact_values_equal_brute_force_and_bounds_are_not_below_it(num_rounds):
  for name, matrix in matrices(num_rounds).items():
    for participation in every_kind.schemas(num_rounds):
      worst = every_kind.worst_by_round(matrix, participation)
      value, exact = sensitivity.squared(matrix, participation)
      profile = sensitivity.squared_by_round(matrix, participation)
      message = f'{name}, {participation}'
      assert value >= worst[-1] * (1 - 1e-12), message
      if exact:
        assert value == pytest.approx(worst[-1], rel=1e-11), message
      assert profile[-1] == pytest.approx(value, rel=1e-14), message
      assert np.all(profile >= worst * (1 - 1e-12)), message
      assert np.all(np.diff(profile) >= 0), message


@pytest.mark.parametrize(
  'kind', [name for name in every_kind.STRATEGIES if 'tree' not in name]
)
def test_sensitivity_of_every_kind_of_strategy_matches_brute_force(kind):
  strategy = every_kind.STRATEGIES[kind](8)
  matrix = strategy.materialize()
  for participation in every_kind.schemas(8):
    is_exact = every_kind.check_sensitivity(strategy, participation)
    times = participation.possible_participations
    disjoint = not np.any(np.tril(matrix, -participation.min_separation))
    assert is_exact or not (disjoint or times == 1), participation
    if kind not in _NOT_ALWAYS_EXACT:
      assert is_exact, participation
      by_round = strategy.sensitivity_squared_by_round(participation)
      worst = every_kind.worst_by_round(matrix, participation)
      np.testing.assert_allclose(by_round, worst, rtol=1e-11)


@pytest.mark.parametrize(
  'name, separation, times, fixed_epoch, exact',
  [
    ('signed', 3, 2, False, True),
    ('signed', 1, 2, True, True),
    ('signed', 1, 3, True, False),
    ('signed', 2, 3, False, False),
    ('signed', 2, 3, True, False),
    ('banded', 2, 3, False, True),
    ('banded', 1, 3, False, False),
    ('positive', 2, 3, True, True),
    ('orthogonal classes', 2, 3, True, True),
  ],
)
def test_squared_is_exact_where_matrix_structure_allows_it(
  name, separation, times, fixed_epoch, exact
):
  participation = Participation(6, separation, times, fixed_epoch)
  assert sensitivity.squared(matrices(6)[name], participation)[1] == exact
