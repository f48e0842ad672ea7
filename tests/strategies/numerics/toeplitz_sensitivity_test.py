"""Tests of sensitivities of Toeplitz matrices, by brute force."""

import itertools

import numpy as np
import pytest

from tests.strategies import every_kind
from tff_dp_aggregators.strategies import Participation
from tff_dp_aggregators.strategies.numerics import toeplitz_sensitivity


def lower_toeplitz(column):
  return every_kind.lower_toeplitz(column, len(column))


def brute_force(column, participation):
  """Returns the largest squared norm over all patterns and all signs."""
  return every_kind.worst_by_round(lower_toeplitz(column), participation)[-1]


def random_case(rng):
  """Returns coefficients of one of several shapes, and a schema."""
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


def check(column, participation, scales=None):
  """Compares with brute force; returns its value and whether that is met exactly."""
  matrix = lower_toeplitz(column) * (1.0 if scales is None else scales)
  expected = every_kind.worst_by_round(matrix, participation)
  case = column, participation, scales
  bounds = toeplitz_sensitivity.squared_by_round(*case)
  assert np.all(np.diff(bounds) >= 0) and np.all(bounds >= expected * (1 - 1e-12)), case
  bound, exact = toeplitz_sensitivity.squared(*case)
  assert bound >= expected[-1] * (1 - 1e-12), case
  if exact:
    assert bound == pytest.approx(expected[-1], rel=1e-11), case
  return expected[-1], exact


@pytest.mark.parametrize('seed', range(2))
def test_squared_is_never_below_brute_force_and_equal_if_exact(seed):
  rng = np.random.default_rng(seed)
  exact_cases = 0
  for _ in range(250):
    column, participation = random_case(rng)
    expected, exact = check(column, participation)
    exact_cases += exact
    if toeplitz_sensitivity.is_earliest_worst(column, participation):
      pattern = np.zeros(len(column))
      pattern[list(participation.rounds)] = 1
      attained = np.square(lower_toeplitz(column) @ pattern).sum()
      assert expected == pytest.approx(attained, rel=1e-11)
  assert 150 < exact_cases < 250


def test_vector_contributions_do_not_exceed_the_bound():
  # Coordinate ascent finds a local maximum over unit vectors of three dimensions.
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
    ([0.5, 1.0, 0.25, 0.25, 0.1, 0.0], 2),  # Any order before min_separation.
    ([1.0, 0.9, 0.8, 0.0, 0.0, 0.0], 3),
    ([1.0, -0.9, 0.8, 0.0, 0.0, 0.0], 3),  # Columns do not overlap.
    ([1.0, 0.5, 0.3, 0.3, 0.3, 0.3], 1),  # A plateau.
    ([1.0, 0.5, 0.2, 0.02, 0.03, 0.03], 1),  # A late rise that does not matter.
    ([1.0, 0.5, 0.2, 0.05, -0.001, -0.001], 1),  # A late negative that does not matter.
    ([1.0, -0.5, 0.2, -0.1, 0.05, -0.02], 1),  # Worst for alternating signs.
  ],
)
def test_squared_is_exact_for_certain_shapes_of_columns(column, separation):
  column = np.array(column)
  participation = Participation(6, separation)
  bound, exact = toeplitz_sensitivity.squared(column, participation)
  assert exact
  assert bound == pytest.approx(brute_force(column, participation), rel=1e-12)


def test_rounding_errors_of_constant_coefficients_keep_bound_exact():
  flat = np.ones(50)
  participation = Participation(50, 5)
  rounded = flat + 1e-16 * np.random.default_rng(3).normal(size=50)
  rounded[10] = np.nextafter(1.0, 2.0)
  bound, exact = toeplitz_sensitivity.squared(rounded, participation)
  assert exact
  assert bound >= toeplitz_sensitivity.squared(flat, participation)[0]


def test_negligible_coefficients_are_left_out_within_rounding(monkeypatch):
  # A late rise, so that pairs of rounds decide, and a tail that would take long.
  column = 0.9 ** np.arange(900.0)
  column[60] *= 1.5
  participation = Participation(900, 20, 10)
  assert column[-1] < 1e-18 * column[0]
  bound, exact = toeplitz_sensitivity.squared(column, participation)
  assert exact and toeplitz_sensitivity.is_earliest_worst(column, participation)
  monkeypatch.setattr(toeplitz_sensitivity, '_NEGLIGIBLE', 0.0)
  complete, _ = toeplitz_sensitivity.squared(column, participation)
  assert complete * (1 - 1e-13) <= bound <= complete * (1 + 1e-12)


@pytest.mark.parametrize('seed', range(2))
def test_scaled_columns_are_never_below_brute_force_and_equal_if_exact(seed):
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
    exact_cases += check(column, participation, scales)[1]
  assert 40 < exact_cases < 150


def test_coefficients_left_out_of_pairs_are_bounded_by_their_norm(monkeypatch):
  # At the usual limit, 1e-18 of the largest, the difference would not be visible.
  monkeypatch.setattr(toeplitz_sensitivity, '_NEGLIGIBLE', 0.5)
  column, participation = 0.8 ** np.arange(12), Participation(12, 2)
  scales = 1 / np.sqrt(np.cumsum(np.square(column))[::-1])
  bound, exact = toeplitz_sensitivity.squared(column, participation, scales)
  worst = every_kind.worst_by_round(lower_toeplitz(column) * scales, participation)[-1]
  assert not exact and worst < bound < 4 * worst


def test_by_round_values_do_not_depend_on_later_scales():
  # A bound by non-increasing scales alone would use 4.0 in the first round already.
  column, scales = 0.5 ** np.arange(6), np.array([1.0, 1.0, 1.0, 1.0, 1.0, 4.0])
  bounds = toeplitz_sensitivity.squared_by_round(column, Participation(6, 6), scales)
  expected = np.cumsum(np.square(column))
  np.testing.assert_allclose(bounds[:5], expected[:5], rtol=1e-14)
