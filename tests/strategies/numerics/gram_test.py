"""Tests of Gram matrices: their factors, multipliers and certified lower bounds."""

import numpy as np
import pytest

from tff_dp_aggregators.strategies import Workload
from tff_dp_aggregators.strategies import workload as workload_lib
from tff_dp_aggregators.strategies.numerics import gram

NUM_ROUNDS = 8
PREFIX = Workload(NUM_ROUNDS)


def random_strategy(rng, num_bands=NUM_ROUNDS):
  """Returns a lower-triangular, banded matrix with unit columns."""
  matrix = np.tril(rng.normal(size=(NUM_ROUNDS, NUM_ROUNDS)))
  matrix = np.triu(matrix, 1 - num_bands)
  np.fill_diagonal(matrix, rng.uniform(0.3, 2.0, NUM_ROUNDS))
  return matrix / np.linalg.norm(matrix, axis=0)


def random_multiplier(rng):
  half = rng.normal(size=(NUM_ROUNDS, NUM_ROUNDS))
  return half @ half.T


@pytest.mark.parametrize('num_bands', [1, 3, NUM_ROUNDS])
def test_factor_recovers_the_banded_matrix_of_a_gram_matrix(num_bands):
  matrix = random_strategy(np.random.default_rng(0), num_bands)
  factor = gram.factor(matrix.T @ matrix)
  np.testing.assert_allclose(factor, matrix, atol=1e-12)


def test_multiplier_is_minus_the_derivative_of_the_weighted_error():
  rng = np.random.default_rng(2)
  matrix, weights = random_strategy(rng), rng.uniform(size=NUM_ROUNDS)
  direction = random_multiplier(rng) * 1e-6
  ahead = gram.factor(matrix.T @ matrix + direction)
  behind = gram.factor(matrix.T @ matrix - direction)
  change = (
    weights
    @ (workload_lib.errors(ahead, PREFIX) - workload_lib.errors(behind, PREFIX))
    / 2
  )
  multiplier = gram.multiplier(matrix, PREFIX, weights)
  assert change == pytest.approx(-np.vdot(multiplier, direction), rel=1e-5)


def test_lower_bound_is_below_error_of_strategies_within_budget():
  # The budget is tr(V X) of the strategy itself, the smallest that is allowed.
  rng = np.random.default_rng(3)
  for _ in range(100):
    matrix, multiplier = random_strategy(rng), random_multiplier(rng)
    weights = rng.dirichlet(np.ones(NUM_ROUNDS))
    budget = np.vdot(multiplier, matrix.T @ matrix)
    error = weights @ workload_lib.errors(matrix, PREFIX)
    assert gram.lower_bound(multiplier, budget, PREFIX, weights) <= error


def test_lower_bound_is_tight_for_the_multiplier_of_the_strategy():
  # The test above would not notice a formula that is too low everywhere.
  rng = np.random.default_rng(4)
  matrix, weights = random_strategy(rng), rng.dirichlet(np.ones(NUM_ROUNDS))
  multiplier = gram.multiplier(matrix, PREFIX, weights)
  budget = np.vdot(multiplier, matrix.T @ matrix)
  error = weights @ workload_lib.errors(matrix, PREFIX)
  bound = gram.lower_bound(multiplier, budget, PREFIX, weights)
  assert bound == pytest.approx(error, rel=1e-9)
  assert bound < error


def test_shift_to_positive_adds_only_what_definiteness_needs():
  rng = np.random.default_rng(5)
  definite = random_multiplier(rng)
  np.testing.assert_array_equal(gram.shift_to_positive(definite), definite)
  smallest = np.linalg.eigvalsh(definite)[0]
  indefinite = definite - (smallest + 1.0) * np.eye(NUM_ROUNDS)
  shifted = gram.shift_to_positive(indefinite)
  np.linalg.cholesky(shifted)
  np.testing.assert_allclose(shifted - indefinite, np.eye(NUM_ROUNDS), atol=2e-3)
