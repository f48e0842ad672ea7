"""Tests of banded arithmetic and its gradients, against dense algebra."""

import numpy as np
import pytest

from tff_dp_aggregators.strategies.numerics import bands

# Rounds and bands: one block, whole blocks, a partial last block, no block structure.
SHAPES = [(1, 1), (5, 1), (5, 5), (64, 33), (65, 33), (97, 40)]


def random_diagonals(num_rounds, num_bands, seed=0):
  rng = np.random.default_rng(seed)
  diagonals = rng.normal(size=(num_bands, num_rounds)) / num_bands
  diagonals[0] = rng.uniform(0.5, 2.0, num_rounds)
  return np.where(bands.mask(num_bands, num_rounds), diagonals, 0.0)


@pytest.mark.parametrize('shape', SHAPES)
def test_to_dense_and_from_dense_keep_the_diagonals(shape):
  diagonals = random_diagonals(*shape)
  matrix = bands.to_dense(diagonals)
  for i in range(shape[1]):
    np.testing.assert_array_equal(np.diagonal(matrix, -i), diagonals[i, : shape[0] - i])
  assert np.count_nonzero(matrix) == np.count_nonzero(diagonals)
  np.testing.assert_array_equal(bands.from_dense(matrix, shape[1]), diagonals)


@pytest.mark.parametrize('num_rounds, left, right', [(6, 2, 3), (6, 6, 6), (1, 1, 1)])
def test_multiply_matches_dense_product(num_rounds, left, right):
  a, b = random_diagonals(num_rounds, left), random_diagonals(num_rounds, right, 1)
  product = bands.multiply(a, b)
  expected = bands.to_dense(a) @ bands.to_dense(b)
  np.testing.assert_allclose(bands.to_dense(product), expected, atol=1e-14)


@pytest.mark.parametrize('shape', SHAPES)
def test_inverse_row_norms_match_dense_inverse(shape):
  diagonals = random_diagonals(*shape)
  inverse = np.linalg.inv(bands.to_dense(diagonals))
  expected = np.square(inverse).sum(axis=1)
  values = bands.InverseRowNorms(diagonals).values
  np.testing.assert_allclose(values, expected, rtol=1e-10)


@pytest.mark.parametrize('shape', SHAPES)
def test_inverse_row_norms_pull_back_matches_dense_gradient(shape):
  # With B = K^-1 and weights W: d tr(W B B') = -2 tr(B' W B dK B).
  diagonals = random_diagonals(*shape)
  weights = np.random.default_rng(2).uniform(size=shape[0])
  inverse = np.linalg.inv(bands.to_dense(diagonals))
  gradient = -2 * inverse.T @ (weights[:, None] * inverse) @ inverse.T
  np.testing.assert_allclose(
    bands.InverseRowNorms(diagonals).pull_back(weights),
    bands.from_dense(gradient, shape[1]),
    rtol=1e-8,
    atol=1e-10,
  )


def test_multiply_pull_back_is_the_transposed_map():
  a, b = random_diagonals(9, 3), random_diagonals(9, 2, 1)
  outer = random_diagonals(9, 4, 2)
  assert np.vdot(bands.multiply(a, b), outer) == pytest.approx(
    np.vdot(a, bands.multiply_pull_back(outer, b)), rel=1e-12
  )


@pytest.mark.parametrize(
  'matrix, stated, error, message',
  [
    (np.ones((2, 3)), {}, ValueError, r'square.*\(2, 3\)'),
    (np.zeros((0, 0)), {}, ValueError, 'square'),
    ([[1.0, 0.0], [0.0]], {}, TypeError, 'real numbers'),
    ([[1.0, 0.0], [np.nan, 1.0]], {}, ValueError, r'finite, but \[1, 0\] is nan'),
    ([[1.0, 2.0], [0.0, 1.0]], {}, ValueError, r'lower-tri.*, but \[0, 1\] is 2.0'),
    ([[1.0, 0.0], [0.0, 0.0]], {}, ValueError, r'positive.*\[1, 1\] is 0.0'),
    (np.tri(3), {'num_bands': 2}, ValueError, r'num_bands=2 .*but \[2, 0\] is 1.0'),
    (np.tri(3), {'num_rounds': 4}, ValueError, '4 x 4'),
  ],
)
def test_check_matrix_refuses_invalid_matrices(matrix, stated, error, message):
  with pytest.raises(error, match=message):
    bands.check_matrix(matrix, **stated)


def test_check_matrix_returns_a_read_only_copy():
  matrix = np.eye(2)
  checked = bands.check_matrix(matrix)
  matrix[1, 0] = 5.0
  assert checked[1, 0] == 0.0
  with pytest.raises(ValueError, match='read-only'):
    checked[1, 0] = 5.0
