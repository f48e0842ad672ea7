"""Sensitivity of Toeplitz matrices: against every pattern of rounds, and every sign.

Claims: it is never below the truth, whole or by round, also for contributions that are
vectors; where it is said to be exact it is; the cases that are promised are exact.
"""

import itertools

import numpy as np
import pytest
import scipy.linalg

from tests.strategies import every_kind
from tff_dp_aggregators.strategies import Participation
from tff_dp_aggregators.strategies.numerics import toeplitz_sensitivity


def lower_toeplitz(column):
  return scipy.linalg.toeplitz(column, np.zeros(len(column)))


def brute_force(column, participation):
  """Largest squared norm over all patterns and all signs."""
  return every_kind.worst_by_round(lower_toeplitz(column), participation)[-1]


def random_case(rng):
  """Coefficients of one of several shapes, and a schema."""
  n = int(rng.integers(2, 10))
  decay = rng.choice([0.3, 0.6, 0.9, 1.0]) ** np.arange(n)
  noise = rng.normal(size=n)
  column = [
    lambda: decay * noise,
    lambda: decay * np.abs(noise),
    lambda: decay * (1 + 0.3 * noise),
    lambda: decay + 10 ** rng.uniform(-3, -1) * noise * (np.arange(n) > n // 2),
  ][rng.integers(4)]()
  column[0] = abs(column[0]) + 0.2
  schema = n, int(rng.integers(1, n + 1)), int(rng.integers(1, 5))
  return column, Participation(*schema, fixed_epoch=bool(rng.integers(4) == 0))


@pytest.mark.parametrize('seed', range(2))
def test_never_below_the_truth_and_equal_to_it_if_exact(seed):
  rng = np.random.default_rng(seed)
  exact_cases = 0
  for _ in range(250):
    column, participation = random_case(rng)
    by_round = every_kind.worst_by_round(lower_toeplitz(column), participation)
    bounds = toeplitz_sensitivity.squared_by_round(column, participation)
    assert np.all(np.diff(bounds) >= 0) and np.all(bounds >= by_round * (1 - 1e-12))
    truth = by_round[-1]
    bound, exact = toeplitz_sensitivity.squared(column, participation)
    assert bound >= truth * (1 - 1e-12), (column, participation)
    exact_cases += exact
    if exact:
      assert bound == pytest.approx(truth, rel=1e-11), (column, participation)
    if toeplitz_sensitivity.is_earliest_worst(column, participation):
      pattern = np.zeros(len(column))
      pattern[list(participation.rounds)] = 1
      attained = np.square(lower_toeplitz(column) @ pattern).sum()
      assert truth == pytest.approx(attained, rel=1e-11)
  assert 150 < exact_cases < 250


def test_contributions_that_are_vectors_do_not_exceed_it():
  # Each ascends to a local maximum over unit vectors of three dimensions.
  rng = np.random.default_rng(2)
  for _ in range(40):
    column, participation = random_case(rng)
    bound, _ = toeplitz_sensitivity.squared(column, participation)
    matrix = lower_toeplitz(column)
    gram = matrix.T @ matrix
    for rounds in participation.patterns():
      vectors = rng.normal(size=(len(rounds), 3))
      for _, i in itertools.product(range(6), range(len(rounds))):
        pull = gram[rounds[i], list(rounds)] @ vectors
        vectors[i] = pull / np.linalg.norm(pull)
      value = np.square(matrix[:, list(rounds)] @ vectors).sum()
      assert value <= bound * (1 + 1e-12)


@pytest.mark.parametrize(
  'column, separation',
  [
    ([0.5, 1.0, 0.25, 0.25, 0.1, 0.0], 2),  # Any order before the separation.
    ([1.0, 0.9, 0.8, 0.0, 0.0, 0.0], 3),
    ([1.0, -0.9, 0.8, 0.0, 0.0, 0.0], 3),  # Columns do not overlap.
    ([1.0, 0.5, 0.3, 0.3, 0.3, 0.3], 1),  # A plateau.
    ([1.0, 0.5, 0.2, 0.02, 0.03, 0.03], 1),  # A late rise that does not pay.
    ([1.0, 0.5, 0.2, 0.05, -0.001, -0.001], 1),  # A late minus that does not matter.
    ([1.0, -0.5, 0.2, -0.1, 0.05, -0.02], 1),  # Alternating signs, worst for the same.
  ],
)
def test_promised_cases_are_exact(column, separation):
  column = np.array(column)
  participation = Participation(6, separation)
  bound, exact = toeplitz_sensitivity.squared(column, participation)
  assert exact
  assert bound == pytest.approx(brute_force(column, participation), rel=1e-12)


def test_rounding_of_a_plateau_neither_lowers_the_bound_nor_makes_it_inexact():
  flat = np.ones(50)
  participation = Participation(50, 5)
  rough = flat + 1e-16 * np.random.default_rng(3).normal(size=50)
  rough[10] = np.nextafter(1.0, 2.0)
  bound, exact = toeplitz_sensitivity.squared(rough, participation)
  assert exact
  assert bound >= toeplitz_sensitivity.squared(flat, participation)[0]


def test_coefficients_far_below_rounding_are_left_out_and_accounted_for(monkeypatch):
  # A late rise, so that pairs decide; and a tail that would take long.
  column = 0.9 ** np.arange(900.0)
  column[60] *= 1.5
  participation = Participation(900, 20, 10)
  assert column[-1] < 1e-18 * column[0]
  bound, exact = toeplitz_sensitivity.squared(column, participation)
  assert exact and toeplitz_sensitivity.is_earliest_worst(column, participation)
  monkeypatch.setattr(toeplitz_sensitivity, '_NEGLIGIBLE', 0.0)
  whole, _ = toeplitz_sensitivity.squared(column, participation)
  assert whole * (1 - 1e-13) <= bound <= whole * (1 + 1e-12)


@pytest.mark.parametrize('seed', range(2))
def test_scaled_columns_are_never_below_the_truth_and_equal_to_it_if_exact(seed):
  rng = np.random.default_rng(seed)
  exact_cases = 0
  for _ in range(150):
    column, participation = random_case(rng)
    n = len(column)
    scales = rng.uniform(0.2, 2.0, n)
    shape = rng.integers(3)
    if shape == 1:
      scales = np.sort(scales)
    if shape == 2:  # Columns of one norm.
      scales = 1 / np.sqrt(np.cumsum(np.square(column))[::-1])
    matrix = lower_toeplitz(column) * scales
    truth = every_kind.worst_by_round(matrix, participation)
    bounds = toeplitz_sensitivity.squared_by_round(column, participation, scales)
    assert np.all(bounds >= truth * (1 - 1e-12)), (column, scales)
    assert np.all(np.diff(bounds) >= 0)
    bound, exact = toeplitz_sensitivity.squared(column, participation, scales)
    assert bound >= truth[-1] * (1 - 1e-12), (column, scales, participation)
    if exact:
      assert bound == pytest.approx(truth[-1], rel=1e-11)
      exact_cases += 1
  assert 40 < exact_cases < 150


def test_coefficients_that_are_left_out_of_pairs_count_with_their_norm(monkeypatch):
  # 1e-18 of the largest make no difference that could be seen; a half does.
  monkeypatch.setattr(toeplitz_sensitivity, '_NEGLIGIBLE', 0.5)
  column, participation = 0.8 ** np.arange(12), Participation(12, 2)
  scales = 1 / np.sqrt(np.cumsum(np.square(column))[::-1])
  bound, exact = toeplitz_sensitivity.squared(column, participation, scales)
  truth = every_kind.worst_by_round(lower_toeplitz(column) * scales, participation)[-1]
  assert not exact and truth < bound < 4 * truth


def test_rounds_of_scaled_columns_without_the_largest_scale_know_nothing_of_it():
  # Falling scales alone would give the first round that of the last.
  column, scales = 0.5 ** np.arange(6), np.array([1.0, 1.0, 1.0, 1.0, 1.0, 4.0])
  bounds = toeplitz_sensitivity.squared_by_round(column, Participation(6, 6), scales)
  expected = np.cumsum(np.square(column))
  np.testing.assert_allclose(bounds[:5], expected[:5], rtol=1e-14)
