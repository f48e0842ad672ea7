"""Arithmetic of banded lower-triangular matrices, stored by their diagonals.

An array `diagonals` of shape [num_bands, n] represents the n x n matrix K with
K[j + i, j] = diagonals[i, j]; entries past the last row are zero.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple, Optional

import numpy as np
import scipy.linalg

from tff_dp_aggregators.strategies import workload as workload_lib

_SMALLEST_BLOCK = 32  # With smaller blocks, the overhead of calls dominates.


def mask(num_bands: int, num_rounds: int) -> np.ndarray:
  """Which entries of `diagonals` lie in the matrix; bool [num_bands, num_rounds]."""
  return np.arange(num_bands)[:, np.newaxis] < num_rounds - np.arange(num_rounds)


def to_dense(diagonals: np.ndarray) -> np.ndarray:
  """The dense matrix, [n, n]."""
  num_rounds = diagonals.shape[1]
  matrix = np.zeros((num_rounds, num_rounds))
  for i, diagonal in enumerate(diagonals[:num_rounds]):
    np.einsum('jj->j', matrix[i:, : num_rounds - i])[:] = diagonal[: num_rounds - i]
  return matrix


def from_dense(matrix: np.ndarray, num_bands: int) -> np.ndarray:
  """The first diagonals of a matrix, from the main one down."""
  num_rounds = len(matrix)
  diagonals = np.zeros((num_bands, num_rounds))
  for i in range(min(num_bands, num_rounds)):
    diagonals[i, : num_rounds - i] = np.diagonal(matrix, -i)
  return diagonals


def multiply(left: np.ndarray, right: np.ndarray) -> np.ndarray:
  """The diagonals of the product of two matrices, given by their diagonals."""
  num_rounds = left.shape[1]
  product = np.zeros((len(left) + len(right) - 1, num_rounds))
  for i, diagonal in enumerate(right):
    kept = max(0, num_rounds - i)
    product[i : i + len(left), :kept] += left[:, i:] * diagonal[:kept]
  return product


def multiply_pull_back(gradient: np.ndarray, right: np.ndarray) -> np.ndarray:
  """The gradient by `left`, from the gradient by `multiply(left, right)`."""
  num_rounds = gradient.shape[1]
  num_bands = len(gradient) - len(right) + 1
  by_left = np.zeros((num_bands, num_rounds))
  for i, diagonal in enumerate(right):
    kept = max(0, num_rounds - i)
    by_left[:, i:] += gradient[i : i + num_bands, :kept] * diagonal[:kept]
  return by_left


def inverse_row_norms(diagonals: np.ndarray) -> np.ndarray:
  """The `values` of `InverseRowNorms`, without storing the blocks."""
  norms = [np.diagonal(block.gram).copy() for block in _forward(diagonals)]
  return np.concatenate(norms)[: diagonals.shape[1]]


class InverseRowNorms:
  """Squared row norms of K^-1, `values`, and their derivative.

  Takes O(n num_bands^2) operations and O(n num_bands) memory. With blocks of at least
  num_bands - 1 rounds, K has blocks L[t] on the diagonal and E[t] to the left of them,
  and no others. Row block t of K^-1 is

      L[t]^-1 (I - E[t] (row block t - 1)),

  where I and the other term share no columns. So its Gram matrix, with the squared row
  norms on its diagonal, follows from that of the block before:

      S[t] = L[t]^-1 (I + E[t] S[t - 1] E[t]') L[t]^-T.

  The diagonal entries are sums of non-negative terms, so no digits are lost.
  """

  def __init__(self, diagonals: np.ndarray):
    """Takes `diagonals` of shape [num_bands, n], without zeros in the first row."""
    self._shape = diagonals.shape
    self._blocks = list(_forward(diagonals))
    norms = [np.diagonal(block.gram) for block in self._blocks]
    self.values = np.concatenate(norms)[: diagonals.shape[1]]

  def pull_back(self, weights: np.ndarray) -> np.ndarray:
    """The gradient of `weights @ values` by the diagonals, in their shape.

    This is the recursion run backwards. Let P[t] be the derivative by S[t],
    J[t] = L[t]^-1 E[t] and D[t] the weights. Then

        P[t] = D[t] + J[t + 1]' P[t + 1] J[t + 1],
        by L[t]: -2 L[t]^-T P[t] S[t],    by E[t]: 2 L[t]^-T P[t] J[t] S[t - 1].
    """
    num_bands, num_rounds = self._shape
    size = len(self._blocks[0].inverse)
    columns = np.zeros((len(self._blocks), size, 2 * size))
    padded = np.zeros(len(self._blocks) * size)
    padded[:num_rounds] = weights
    adjoint = np.zeros((size, size))
    for t in range(len(self._blocks) - 1, -1, -1):
      inverse, coupling, gram = self._blocks[t]
      adjoint += np.diag(padded[t * size : (t + 1) * size])
      columns[t, :, :size] = (-2.0 * (inverse.T @ (adjoint @ gram))).T
      if coupling is not None:
        product = adjoint @ coupling
        by_left = 2.0 * (inverse.T @ (product @ self._blocks[t - 1].gram))
        columns[t - 1, :, size:] = by_left.T
        adjoint = coupling.T @ product
    gradient = _from_block_columns(columns, num_bands)[:, :num_rounds]
    return np.where(mask(num_bands, num_rounds), gradient, 0.0)


class _Block(NamedTuple):
  """One step of the recursion: L[t]^-1, J[t] = L[t]^-1 E[t], and S[t]."""

  inverse: np.ndarray
  coupling: Optional[np.ndarray]
  gram: np.ndarray


def _forward(diagonals: np.ndarray) -> Iterator[_Block]:
  columns = _to_block_columns(diagonals)
  size = columns.shape[1]
  identity = np.eye(size)
  before: Optional[np.ndarray] = None
  for t, column in enumerate(columns):
    inverse = scipy.linalg.solve_triangular(
      column[:, :size].T, identity, lower=True, check_finite=False
    )
    gram = inverse @ inverse.T
    if before is None:
      yield _Block(inverse, None, gram)
    else:
      coupling = inverse @ columns[t - 1, :, size:].T
      gram += coupling @ (before @ coupling.T)
      yield _Block(inverse, coupling, gram)
    before = gram


def _to_block_columns(diagonals: np.ndarray) -> np.ndarray:
  """K in blocks: [t, j, i] is K[t size + i, t size + j]; the identity past its end."""
  num_bands, num_rounds = diagonals.shape
  size = max(num_bands - 1, min(_SMALLEST_BLOCK, num_rounds))
  count = -(-num_rounds // size)
  # A row of this array is a column of K from its main diagonal down. Each has one entry
  # more than two blocks, so that reshaping to rows of two blocks shifts row j by j.
  rows = np.zeros((count * size, 2 * size + 1))
  rows[num_rounds:, 0] = 1.0
  rows[:num_rounds, :num_bands] = np.where(
    mask(num_bands, num_rounds), diagonals, 0.0
  ).T
  return rows.reshape(count, -1)[:, : 2 * size * size].reshape(count, size, 2 * size)


def _from_block_columns(columns: np.ndarray, num_bands: int) -> np.ndarray:
  """The inverse of `_to_block_columns`."""
  count, size, _ = columns.shape
  rows = np.zeros((count, size * (2 * size + 1)))
  rows[:, : 2 * size * size] = columns.reshape(count, -1)
  return rows.reshape(count * size, 2 * size + 1)[:, :num_bands].T


def check_numbers(name: str, value: Any) -> np.ndarray:
  """Returns a read-only float64 copy; raises TypeError unless numbers are real."""
  array = workload_lib.real_array(name, value)
  # An array of bytes cannot be made writeable, so results computed of it stay valid.
  return np.frombuffer(array.tobytes(), np.float64).reshape(array.shape)


def check_matrix(
  matrix: Any, num_rounds: Optional[int] = None, num_bands: Optional[int] = None
) -> np.ndarray:
  """Returns a strategy matrix as `check_numbers` does; ValueError if it is none."""
  matrix = check_numbers('matrix', matrix)
  size = max(matrix.shape, default=0) if num_rounds is None else num_rounds
  if matrix.shape != (size, size) or not size:
    raise ValueError(
      f'matrix must be square, {size} x {size}, got shape {matrix.shape}.'
    )
  refuse(~np.isfinite(matrix), matrix, 'matrix must be finite')
  refuse(np.triu(matrix, 1) != 0, matrix, 'matrix must be lower-triangular')
  not_positive = np.diag(np.diagonal(matrix) <= 0)
  refuse(not_positive, matrix, 'matrix must be positive on its diagonal')
  if num_bands is not None:
    beyond = np.tril(matrix, -num_bands) != 0
    refuse(beyond, matrix, f'matrix must be zero beyond num_bands={num_bands} bands')
  return matrix


def refuse(wrong: np.ndarray, array: np.ndarray, requirement: str) -> None:
  """Raises a ValueError that names the first entry, by rows, where `wrong` is True."""
  if np.any(wrong):
    row, column = np.unravel_index(np.argmax(wrong), wrong.shape)
    raise ValueError(f'{requirement}, but [{row}, {column}] is {array[row, column]}.')
