"""Errors of banded strategies as functions of their diagonals, and what bounds them.

`banded` optimises columns of one norm, `epoch_scaled` columns whose norms fall
from epoch to epoch.
"""

from typing import Callable, Optional

import numpy as np
import scipy.linalg

from tff_dp_aggregators.strategies import workload as workload_lib
from tff_dp_aggregators.strategies.numerics import bands
from tff_dp_aggregators.strategies.numerics import descent
from tff_dp_aggregators.strategies.numerics import gram


def unit_columns(diagonals: np.ndarray) -> np.ndarray:
  """Diagonals of the matrix whose columns are divided by their norms."""
  return diagonals / np.linalg.norm(diagonals, axis=0)


def errors_of_columns(
  workload: gram.Checked,
) -> Callable[[np.ndarray], Optional[descent.Evaluated]]:
  """The errors of a banded strategy once its columns are divided by their norms.

  Returns as `descent` takes it, a function of diagonals, which are of shape [bands, n].
  """
  errors_of_units = errors_of_diagonals(workload)

  def errors(columns: np.ndarray) -> Optional[descent.Evaluated]:
    if np.any(columns[0] <= 0):
      return None
    units = unit_columns(columns)
    values, pull_back_units = errors_of_units(units)
    return values, lambda weights: by_columns(columns, pull_back_units(weights))

  return errors


def by_columns(columns: np.ndarray, by_units: np.ndarray) -> np.ndarray:
  """The gradient by columns, from that by what they are once they have norm 1."""
  norms = np.linalg.norm(columns, axis=0)
  units = columns / norms
  return (by_units - units * (units * by_units).sum(axis=0)) / norms


def errors_of_diagonals(
  workload: gram.Checked,
) -> Callable[[np.ndarray], descent.Evaluated]:
  """The errors of a banded strategy with these diagonals."""
  inverse_workload = inverse_diagonals(workload)
  if inverse_workload is None:
    return _dense_errors(workload)
  return _structured_errors(inverse_workload)


def inverse_diagonals(workload: gram.Checked) -> Optional[np.ndarray]:
  """Those of the inverse of the workload, if it is known and banded."""
  if not isinstance(workload, workload_lib.Workload) or (
    workload.learning_rates is not None and min(workload.learning_rates) == 0
  ):
    return None
  return workload.inverse_diagonals()


def multiplier(
  diagonals: np.ndarray, workload: gram.Checked, weights: np.ndarray
) -> np.ndarray:
  """A positive definite V that is zero within the bands, but for its diagonal.

  It is `gram.multiplier`, whose entries within the bands vanish at an optimum; they are
  set to zero, and if that makes it indefinite, the diagonal is raised.

  `diagonals`: Of C, shape [bands, n].
  `weights`: Non-negative weights of the errors, shape [n].
  """
  found = gram.multiplier(bands.to_dense(diagonals), workload, weights)
  for i in range(1, len(diagonals)):
    for triangle in (found[i:], found.T[i:]):
      np.einsum('jj->j', triangle[:, : triangle.shape[0]])[:] = 0.0
  return gram.shift_to_positive(found)


def _structured_errors(
  inverse_workload: np.ndarray,
) -> Callable[[np.ndarray], descent.Evaluated]:
  """Errors by diagonals: row norms of the inverse of C A^-1, which is banded."""

  def errors(diagonals: np.ndarray) -> descent.Evaluated:
    norms = bands.InverseRowNorms(bands.multiply(diagonals, inverse_workload))

    def pull_back(weights: np.ndarray) -> np.ndarray:
      by_product = norms.pull_back(weights)
      return bands.multiply_pull_back(by_product, inverse_workload)

    return norms.values, pull_back

  return errors


def _dense_errors(
  workload: gram.Checked,
) -> Callable[[np.ndarray], descent.Evaluated]:
  """Errors by diagonals, for any workload: dB = -B dC C^-1 with B = A C^-1."""

  def errors(diagonals: np.ndarray) -> descent.Evaluated:
    matrix = bands.to_dense(diagonals)
    estimator = gram.estimator(matrix, workload)

    def pull_back(weights: np.ndarray) -> np.ndarray:
      middle = estimator.T @ (weights[:, np.newaxis] * estimator)
      by_matrix = scipy.linalg.solve_triangular(matrix, -2.0 * middle, lower=True)
      return bands.from_dense(by_matrix.T, len(diagonals))

    return np.square(estimator).sum(axis=1), pull_back

  return errors
