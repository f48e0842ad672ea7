"""Computes the optimal norm of each column of banded strategies, for prefix sums.

Scaling column j of C by s[j] divides row j of C^-1 by it. So with r = 1 / s, and
X = C^T C once columns of C have norm 1, the mean squared error is a quadratic form,

    r^T Q r,    Q[i, j] = (A^T A)[i, j] (X^-1)[i, j] / n,

which is convex as the entrywise product of positive semidefinite matrices. With as many
bands as the separation, a client's columns do not overlap, and the squared sensitivity
is the largest sum of r^-2 over participation patterns. Requiring that it is at most 1
is a convex constraint, too.

**Sensitivity.** Patterns are those of `epoch_scaled.certify`: the vertices of the
polytope with sums of at most 1 over b successive rounds, and of at most k in all. By
duality of linear programs, the largest sum of r^-2 is at most 1 if and only if there
are shares of these constraints, positive and with sum 1, such that r[j]^-2 is at
most the sum of the shares of the intervals that contain round j, plus the k-th part of
the share of the last constraint. In fixed epochs each residue class has a sum, and each
of these is at most 1.

**Lower bounds.** Let E = r^T Q r, and v = r^3 (Q r) where that is positive, else 0.
F(q) = q^T Q q + sum(v q^-2) is convex, and its gradient g at r is 0 except where v is
0, where it is 2 Q r. So F(q) >= F(r) + g^T (q - r). If the error of q is below E, then
q[j]^2 <= E (Q^-1)[j, j]; and if its sensitivity is at most 1, sum(v q^-2) is at most
the smallest t such that v is at most t times a mean of patterns, entry by entry, as
`epoch_scaled.certify` states. Subtracting these leaves a lower bound of q^T Q q.

**Columns and norms together.** The error of columns with their best norms has, as a
function of the columns, the gradient of the error with those norms held fixed; so
L-BFGS finds both. As functions of C^T C, error and sensitivity are convex: there is no
other minimum.
"""

import dataclasses
import math
from typing import Optional

import numpy as np
import scipy.linalg

from tff_dp_aggregators.strategies import Participation
from tff_dp_aggregators.strategies import banded
from tff_dp_aggregators.strategies import participation as participation_lib
from tff_dp_aggregators.strategies import workload
from tff_dp_aggregators.strategies.numerics import bands
from tff_dp_aggregators.strategies.numerics import descent

# Tolerance of the search for columns, relative to the squared error.
_TOLERANCE = 1e-11
# Tolerance of the search for norms, relative to the error; and the one below which a
# short step means that only round-off is left.
_NORMS_TOLERANCE, _NORMS_STALL_TOLERANCE = 1e-12, 1e-7
_SHORT_STEP = 0.1
_MAX_STEPS = 100


@dataclasses.dataclass(frozen=True, eq=False)
class Norms:
  """Squared column norms, their squared error, and a lower bound of the least one."""

  squares: np.ndarray
  error: float
  lower_bound: float

  @property
  def gap(self) -> float:
    """Relative excess of the squared error over its lower bound."""
    return self.error / self.lower_bound - 1.0


class BestNorms:
  """The best norms of columns under a schema, at a squared sensitivity of 1.

  Args:
    participation: Limits on participation; in fixed epochs, clients may be in all.
  """

  def __init__(self, participation: Participation):
    self._participation = participation
    n = participation.num_rounds
    width = self._width = min(participation.min_separation, n)
    is_unlimited = (
      participation.possible_participations == participation.possible_by_separation
    )
    # The sensitivity is at most 1 if and only if there are shares, positive and with
    # sum 1, such that self._sums @ squares is at most self._conditions @ shares.
    if participation.fixed_epoch:
      if not is_unlimited:
        raise ValueError('in fixed epochs, clients must be able to be in all of them.')
      self._sums = np.tile(np.eye(width), -(-n // width))[:, :n]
      self._conditions = np.ones((width, 1))
      return
    self._sums = np.eye(n)
    rounds_after = np.arange(n)[:, np.newaxis] - np.arange(n - width + 1)
    self._conditions = ((rounds_after >= 0) & (rounds_after < width)).astype(float)
    if not is_unlimited:
      share = np.full(n, 1.0 / participation.possible_participations)
      self._conditions = np.column_stack([self._conditions, share])

  def __call__(self, costs: np.ndarray) -> Norms:
    """Returns the best norms for the error inverses @ costs @ inverses."""
    scale = float(costs.sum())
    inverses = self._interior_point(costs / scale)
    squares = inverses**-2.0
    squares /= float(participation_lib.worst_sum(squares, self._participation))
    error, bound = self._error_and_bound(squares**-0.5, costs)
    return Norms(squares, error, bound)

  def _error_and_bound(
    self, inverses: np.ndarray, costs: np.ndarray
  ) -> tuple[float, float]:
    """Returns the error, and a lower bound of the least error."""
    half_gradient = costs @ inverses
    error = float(inverses @ half_gradient)
    multiplier = np.maximum(inverses**3 * half_gradient, 0.0)
    bound = error + float((multiplier / inverses**2).sum()) - self._budget(multiplier)
    if half_gradient.min() < 0:
      upper = np.sqrt(error * np.diagonal(np.linalg.inv(costs)))
      bound += 2.0 * float(np.minimum(half_gradient, 0.0) @ (upper - inverses))
    return error, bound

  def _budget(self, multiplier: np.ndarray) -> float:
    """Returns the largest multiplier @ squares at a sensitivity of 1."""
    if self._participation.fixed_epoch:
      maxima = np.zeros(self._width)
      offset = np.arange(len(multiplier)) % self._width
      np.maximum.at(maxima, offset, multiplier)
      return math.fsum(maxima)
    num_participations = self._participation.possible_participations
    successive = np.convolve(multiplier, np.ones(self._width), 'valid')
    return max(float(successive.max()), math.fsum(multiplier) / num_participations)

  def _interior_point(self, costs: np.ndarray) -> np.ndarray:
    """Returns the best inverse norms up to a factor, for error + sum(shares).

    A primal-dual method: slacks are conditions @ shares - sums @ inverses^-2, and the
    products of slacks and duals, and of shares and their duals, go to 0.
    """
    sums, conditions = self._sums, self._conditions
    n = len(costs)
    shares = np.ones(conditions.shape[1])
    inverses = np.full(n, 2.0 * math.sqrt(sums.sum(axis=1).max()))
    slacks = conditions @ shares - sums @ inverses**-2.0
    duals = 1.0 / slacks
    share_duals = 1.0 / shares
    for _ in range(_MAX_STEPS):
      complementarity = float(duals @ slacks + share_duals @ shares)
      error = float(inverses @ costs @ inverses)
      if complementarity < _NORMS_TOLERANCE * error:
        break
      target = 0.1 * complementarity / (len(slacks) + len(shares))
      jacobian = np.hstack([sums * 2.0 * inverses**-3.0, conditions])
      curvature = (jacobian.T * (duals / slacks)) @ jacobian
      curvature[:n, :n] += 2.0 * costs
      diagonal = np.append(6.0 * (duals @ sums) * inverses**-4.0, share_duals / shares)
      np.einsum('jj->j', curvature)[:] += diagonal
      rising = jacobian.T @ (target / slacks)
      rising[:n] -= 2.0 * (costs @ inverses)
      rising[n:] += target / shares - 1.0
      step = np.linalg.solve(curvature, rising)
      dual_step = target / slacks - duals - duals / slacks * (jacobian @ step)
      share_dual_step = target / shares - share_duals - share_duals / shares * step[n:]
      length = _max_length(np.append(inverses, shares), step)
      while True:
        new_inverses = inverses + length * step[:n]
        new_shares = shares + length * step[n:]
        new_slacks = conditions @ new_shares - sums @ new_inverses**-2.0
        if np.all(new_slacks > 0.01 * (1.0 - length) * slacks):
          break
        length *= 0.7
      if length < _SHORT_STEP and complementarity < _NORMS_STALL_TOLERANCE * error:
        break
      inverses, shares, slacks = new_inverses, new_shares, new_slacks
      length = min(
        _max_length(duals, dual_step), _max_length(share_duals, share_dual_step)
      )
      duals = duals + length * dual_step
      share_duals = share_duals + length * share_dual_step
    return inverses


def _max_length(values: np.ndarray, step: np.ndarray) -> float:
  """Returns how much of a step keeps the values positive."""
  falls = step < 0
  return min(1.0, 0.99 * float(np.min(-values[falls] / step[falls], initial=np.inf)))


class Columns:
  """The error of unit columns with their best norms, for prefix sums.

  Args:
    participation: Limits on participation.
  """

  def __init__(self, participation: Participation):
    n = participation.num_rounds
    self._best_norms = BestNorms(participation)
    self._errors = banded.errors_of_diagonals(workload.Workload(n))
    self._weights = np.full(n, 1.0 / n)

  def norms(self, units: np.ndarray) -> Norms:
    """Returns the best norms for diagonals with columns of norm 1."""
    return self._best_norms(norm_costs(units))

  def loss(self, columns: np.ndarray) -> tuple[float, Optional[np.ndarray]]:
    """Returns squared error and gradient by diagonals; columns may have any norm."""
    if np.any(columns[0] <= 0):
      return math.inf, None
    units = banded.unit_columns(columns)
    norms = self.norms(units)
    column_norms = np.sqrt(norms.squares)
    _, pull_back = self._errors(units * column_norms)
    unit_gradient = pull_back(self._weights) * column_norms
    return norms.error, banded.by_columns(columns, unit_gradient)

  def rescaled(self, strategy: banded.Banded) -> tuple[banded.Banded, Norms]:
    """Returns a strategy with the best norms for its columns."""
    units = banded.unit_columns(strategy.diagonals)
    norms = self.norms(units)
    return banded.Banded(strategy.num_rounds, units * np.sqrt(norms.squares)), norms

  def optimize(self, start: banded.Banded) -> banded.Banded:
    """Returns the best columns and norms, searched from the strategy `start`."""
    columns = descent.lbfgs(self.loss, start.diagonals, _TOLERANCE, lambda loss: None)
    return self.rescaled(banded.Banded(start.num_rounds, columns))[0]


def norm_costs(units: np.ndarray) -> np.ndarray:
  """Returns the mean squared error as a quadratic form of inverse column norms."""
  n = units.shape[1]
  inverse = scipy.linalg.solve_triangular(bands.to_dense(units), np.eye(n), lower=True)
  # The number of prefix sums that include both of two rounds is the minimum.
  num_sums = n - np.arange(n)
  return np.minimum.outer(num_sums, num_sums) / n * (inverse @ inverse.T)
