"""The convex problem of optimal strategies, and lower bounds of its minimum.

The errors of a strategy, (A X^-1 A^T)[t, t], are convex in its Gram matrix X = C^T C,
and so are the constraints on its sensitivity (arXiv:2202.08312, section 3). Each
feasible point of the dual problem gives a lower bound of every strategy's error.
"""

import dataclasses

import numpy as np
import scipy.linalg

from tff_dp_aggregators.strategies import workload as workload_lib


@dataclasses.dataclass(frozen=True)
class Certificate:
  """A strategy's error, and a lower bound of the error of every strategy of a class."""

  error: float  # The square of `rmse` or of `max_error`.
  lower_bound: float  # The proven lower bound of the same number.
  scope: str  # The strategies and participation for which the lower bound holds.

  @property
  def gap(self) -> float:
    """The relative excess of the error over the lower bound."""
    return self.error / self.lower_bound - 1.0


def factor(gram: np.ndarray) -> np.ndarray:
  """The lower-triangular C with positive diagonal and C^T C = gram, as banded as gram.

  This is a Cholesky decomposition from the last round to the first.
  """
  reverse = scipy.linalg.cholesky(gram[::-1, ::-1], lower=False, check_finite=False)
  return np.ascontiguousarray(reverse[::-1, ::-1])


def multiplier(
  matrix: np.ndarray, workload: workload_lib.Checked, weights: np.ndarray
) -> np.ndarray:
  """X^-1 M X^-1, M = A^T diag(weights) A: the derivative of -tr(M X^-1) by X.

  At an optimum this is the Lagrange multiplier of the constraints on X, so it is zero
  in entries that are not constrained.
  """
  inverse = scipy.linalg.solve_triangular(matrix, np.eye(len(matrix)), lower=True)
  half = np.sqrt(weights)[:, np.newaxis] * (
    workload_lib.apply(workload, inverse) @ inverse.T
  )
  return half.T @ half


def lower_bound(
  multiplier: np.ndarray,
  budget: float,
  workload: workload_lib.Checked,
  weights: np.ndarray,
) -> float:
  """A lower bound of the weighted error of every strategy of a class.

  Let V be a positive semidefinite matrix (the multiplier) such that every C of the
  class has tr(V C^T C) <= budget. Then for each of them, with W = diag(weights),

      sum_t weights[t] errors[t] >= || W^1/2 A V^1/2 ||_*^2 / budget,

  the nuclear norm being the sum of singular values. Proof: W^1/2 A V^1/2 =
  (W^1/2 A C^-1) (C V^1/2). The nuclear norm of a product is at most the product of the
  Frobenius norms (Hoelder's inequality for singular values); the square of the first
  one is the weighted error, that of the second one tr(V C^T C). If the weights sum to
  1, the largest error is at least as large as the weighted one.

  Rounding. Any L with L L^T = V may be used as V^1/2. The Cholesky factor's L L^T is V
  up to (n + 1) eps sqrt(V[i, i] V[j, j]) in every entry (Higham, "Accuracy and
  Stability of Numerical Algorithms", theorem 10.3). Since |X[i, j]| <= sqrt(X[i, i]
  X[j, j]), this changes tr(V X) by at most n (n + 1) eps sum_i V[i, i] X[i, i], and
  diag(V) is part of the budget. The errors of the product and of its singular values
  are a few n eps of the largest one, that of their sum n times as large. To cover all
  of these, the bound is lowered by the fraction `8 n (n + 1) eps`: 1e-8 for n = 2048.
  """
  half = scipy.linalg.cholesky(multiplier, lower=True)
  product = np.sqrt(weights)[:, np.newaxis] * workload_lib.apply(workload, half)
  nuclear = float(scipy.linalg.svdvals(product, overwrite_a=True).sum())
  num_rounds = len(weights)
  rounding = 8 * num_rounds * (num_rounds + 1) * np.finfo(np.float64).eps
  return float((1.0 - rounding) * nuclear**2 / budget)


def shift_to_positive(symmetric: np.ndarray) -> np.ndarray:
  """Adds the least multiple of the identity that makes a matrix positive definite."""
  if _is_positive(symmetric):
    return symmetric
  smallest = scipy.linalg.eigvalsh(symmetric, subset_by_index=[0, 0])[0]
  identity = np.eye(len(symmetric))
  shift = max(0.0, -smallest) + 1e-14 * float(np.abs(symmetric).max())
  while not _is_positive(symmetric + shift * identity):
    shift *= 1.001
  return symmetric + shift * identity


def _is_positive(symmetric: np.ndarray) -> bool:
  try:
    scipy.linalg.cholesky(symmetric, lower=True)
  except np.linalg.LinAlgError:
    return False
  return True
