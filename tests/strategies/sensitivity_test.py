"""Sensitivity of any matrix: against brute force over patterns and signs.

Claims: what is called exact equals the worst of all patterns and signs; what is called
a bound is never below it, for every prefix of rounds; columns count and not rows.
"""

import itertools

import numpy as np
import pytest

from tff_dp_aggregators.strategies import Banded
from tff_dp_aggregators.strategies import Dense
from tff_dp_aggregators.strategies import Participation
from tff_dp_aggregators.strategies import participation as participation_lib
from tff_dp_aggregators.strategies import sensitivity
from tff_dp_aggregators.strategies import toeplitz
from tff_dp_aggregators.strategies.numerics import toeplitz_sensitivity


def schemas(num_rounds):
  for separation, most, fixed_epoch in itertools.product(
    range(1, num_rounds + 2), {1, 2, 3, num_rounds}, [False, True]
  ):
    yield Participation(num_rounds, separation, most, fixed_epoch)


def worst_by_round(matrix, participation):
  """Largest ||C_t u||^2 for each t, over all patterns and all signs."""
  worst = np.zeros(len(matrix))
  for rounds in participation.patterns():
    for signs in itertools.product([-1, 1], repeat=max(0, len(rounds) - 1)):
      released = matrix[:, list(rounds)] @ np.array([1, *signs][: len(rounds)])
      worst = np.maximum(worst, np.cumsum(np.square(released)))
  return worst


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
  """C whose columns 0, 2, 4... are orthogonal, and so are 1, 3, 5, ..."""
  gram = np.eye(num_rounds) * 2
  for i, j in itertools.product(range(num_rounds), repeat=2):
    if (i - j) % epoch:
      gram[i, j] = 0.3 / (1 + abs(i - j))
  return np.linalg.cholesky(gram[::-1, ::-1]).T[::-1, ::-1]


@pytest.mark.parametrize('num_rounds', range(1, 7))
def test_worst_sum_is_the_worst_of_all_patterns(num_rounds):
  weights = np.random.default_rng(5).random((2, 3, num_rounds))
  for participation in schemas(num_rounds):
    patterns = [list(pattern) for pattern in participation.patterns()]
    sums = np.stack([weights[..., pattern].sum(axis=-1) for pattern in patterns])
    np.testing.assert_allclose(
      participation_lib.worst_sum(weights, participation), sums.max(axis=0), rtol=1e-14
    )


@pytest.mark.parametrize('num_rounds', range(1, 7))
def test_exact_values_equal_brute_force_and_bounds_are_not_below(num_rounds):
  for name, matrix in matrices(num_rounds).items():
    for participation in schemas(num_rounds):
      worst = worst_by_round(matrix, participation)
      value, exact = sensitivity.squared(matrix, participation)
      profile = sensitivity.squared_by_round(matrix, participation)
      message = f'{name}, {participation}'
      assert value >= worst[-1] * (1 - 1e-12), message
      if exact:
        assert value == pytest.approx(worst[-1], rel=1e-11), message
      assert profile[-1] == pytest.approx(value, rel=1e-14), message
      assert np.all(profile >= worst * (1 - 1e-12)), message
      assert np.all(np.diff(profile) >= 0), message


@pytest.mark.slow
def test_of_two_bounds_of_a_toeplitz_matrix_the_smaller_one_is_used():
  rng = np.random.default_rng(1)
  smaller = set()
  for _ in range(300):
    n, separation, most = (int(each) for each in rng.integers((3, 1, 2), (8, 4, 6)))
    column = rng.normal(size=n) * 0.8 ** np.arange(n)
    column[0] = abs(column[0]) + 0.1
    participation = Participation(n, separation, most, bool(rng.integers(2)))
    strategy = toeplitz.BandedToeplitz(n, tuple(column))
    matrix = strategy.materialize()
    by_diagonals, exact = toeplitz_sensitivity.squared(column, participation)
    of_any, exact_too = sensitivity._squared_of_any(matrix, participation)
    worst = worst_by_round(matrix, participation)
    for same in (strategy, Dense(n, matrix), Banded.from_matrix(matrix)):
      value = same.sensitivity_squared(participation)
      assert value == pytest.approx(min(by_diagonals, of_any), rel=1e-9)
      assert value >= worst[-1] * (1 - 1e-12)
      assert (same.sensitivity_kind(participation) == 'exact') == (exact or exact_too)
      profile = same.sensitivity_squared_by_round(participation)
      assert profile[-1] == pytest.approx(value, rel=1e-14)
      assert np.all(profile >= worst * (1 - 1e-12))
    if by_diagonals < 0.9 * of_any:
      smaller.add('that of diagonals')
    elif of_any < 0.9 * by_diagonals:
      smaller.add('that of any matrix')
  assert len(smaller) == 2


def test_what_ought_to_be_exact_is():
  by_name = matrices(6)
  for name, separation, most, fixed_epoch, exact in [
    ('signed', 1, 1, False, True),
    ('signed', 3, 2, False, True),
    ('signed', 1, 2, True, True),
    ('signed', 1, 3, True, False),
    ('signed', 2, 3, False, False),
    ('banded', 2, 3, False, True),
    ('banded', 1, 3, False, False),
    ('positive', 2, 3, True, True),
    ('orthogonal classes', 2, 3, True, True),
    ('signed', 2, 3, True, False),
  ]:
    participation = Participation(6, separation, most, fixed_epoch)
    found = sensitivity.squared(by_name[name], participation)[1]
    assert found == exact, (name, participation)


def test_the_bound_is_not_far_from_the_truth_for_decaying_columns():
  root = matrices(10)['square root']
  participation = Participation(10, 3, 3)
  assert sensitivity.squared(root, participation)[1]  # As it is Toeplitz.
  matrix = root * np.linspace(1.0, 0.9, 10)
  value, exact = sensitivity.squared(matrix, participation)
  worst = worst_by_round(matrix, participation)[-1]
  assert not exact
  assert worst * (1 - 1e-12) <= value <= 1.05 * worst


def test_columns_count_and_not_rows():
  # The matrix that a published peer would use: rows of norm 1 where columns should be.
  root = matrices(40)['square root']
  by_rows = root / np.linalg.norm(root, axis=1, keepdims=True)
  value, exact = sensitivity.squared(by_rows, Participation.single(40))
  assert exact
  assert value == pytest.approx(np.square(by_rows).sum(axis=0).max())
  assert value > 1.5  # By rows it would be 1, and the noise too small.


def test_long_runs_are_bounded_in_few_steps():
  matrix = np.tril(np.random.default_rng(8).normal(size=(200, 200)))
  profile = sensitivity.squared_by_round(matrix, Participation(200, 20))
  assert 10 < len(np.unique(profile)) < 50
