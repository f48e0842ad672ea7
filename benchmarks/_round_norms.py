"""The best norm of each column of banded strategies, for prefix sums.

Scaling column j of C by s[j] divides row j of C^-1 by it. So with r = 1 / s, and
X = C^T C once columns of C have norm 1, the mean squared error is a quadratic form,

    r^T Q r,    Q[i, j] = (A^T A)[i, j] (X^-1)[i, j] / n,

which is convex as a product of positive semidefinite matrices, entry by entry. With as
many bands as the separation a client's columns do not overlap, and the squared
sensitivity is the largest sum of r^-2 over patterns: to be at most 1, and convex too.

**Sensitivity.** Patterns are those of `epoch_scaled.certify`: the corners of
what has sums of at most 1 over b successive rounds, and of at most k in all. By duality
of linear programs, the largest sum of r^-2 is at most 1 if and only if there are
shares, positive and with sum 1, of these conditions such that r[j]^-2 is at most the
sum of those of the intervals that have round j, and the k-th part of that of the last
condition. In fixed epochs each residue class has a sum, of which each is at most 1.

**Lower bounds.** Let E = r^T Q r, and v = r^3 (Q r) where that is positive, else 0.
F(q) = q^T Q q + sum(v q^-2) is convex, and its derivative g at r is 0 but where v is,
where it is 2 Q r. So F(q) >= F(r) + g^T (q - r). If the error of q is below E, then
q[j]^2 <= E (Q^-1)[j, j]; and if its sensitivity is at most 1, sum(v q^-2) is at most
the smallest number of which v is a mean of patterns, or less than that in some entries,
which `epoch_scaled.certify` states. What is left is a bound of q^T Q q.

**Columns and norms together.** The error of columns with their best norms has, as a
function of the columns, the derivative of the error with those norms held fixed; so
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

# Where the search for columns ends, relative to the squared error.
_TOLERANCE = 1e-11
# How far norms may be from the best, the same; and from where on a short step means
# that round-off is all that is left.
_NORMS_TOLERANCE, _NORMS_ENOUGH = 1e-12, 1e-7
_SHORT = 0.1
_MAX_STEPS = 100


@dataclasses.dataclass(frozen=True, eq=False)
class Norms:
  """Squared column norms, their squared error, and a lower bound of that."""

  squares: np.ndarray
  error: float
  lower_bound: float

  @property
  def gap(self) -> float:
    """By what share of it the squared error can be above the least."""
    return self.error / self.lower_bound - 1.0


class BestNorms:
  """The best norms of columns under a schema, at a squared sensitivity of 1.

  Args:
    participation: Who may take part when; in fixed epochs, in all of them.
  """

  def __init__(self, participation: Participation):
    self._participation = participation
    n = participation.num_rounds
    width = self._width = min(participation.min_separation, n)
    in_all = (
      participation.possible_participations == participation.possible_by_separation
    )
    # The sensitivity is at most 1 if and only if for some shares, positive and with sum
    # 1, self._sums @ squares is at most self._conditions @ shares.
    if participation.fixed_epoch:
      if not in_all:
        raise ValueError('in fixed epochs, clients must be able to be in all of them.')
      self._sums = np.tile(np.eye(width), -(-n // width))[:, :n]
      self._conditions = np.ones((width, 1))
      return
    self._sums = np.eye(n)
    later = np.arange(n)[:, np.newaxis] - np.arange(n - width + 1)
    self._conditions = ((later >= 0) & (later < width)).astype(float)
    if not in_all:
      share = np.full(n, 1.0 / participation.possible_participations)
      self._conditions = np.column_stack([self._conditions, share])

  def __call__(self, costs: np.ndarray) -> Norms:
    """The best ones for errors inverses @ costs @ inverses, of inverse norms."""
    scale = float(costs.sum())
    inverses = self._interior_point(costs / scale)
    squares = inverses**-2.0
    squares /= float(participation_lib.worst_sum(squares, self._participation))
    error, bound = self._bounded(squares**-0.5, costs)
    return Norms(squares, error, bound)

  def _bounded(self, inverses: np.ndarray, costs: np.ndarray) -> tuple[float, float]:
    """The error, and the lower bound of the least one."""
    by_inverses = costs @ inverses
    error = float(inverses @ by_inverses)
    multiplier = np.maximum(inverses**3 * by_inverses, 0.0)
    bound = error + float((multiplier / inverses**2).sum()) - self._budget(multiplier)
    if by_inverses.min() < 0:
      largest = np.sqrt(error * np.diagonal(np.linalg.inv(costs)))
      bound += 2.0 * float(np.minimum(by_inverses, 0.0) @ (largest - inverses))
    return error, bound

  def _budget(self, multiplier: np.ndarray) -> float:
    """The largest multiplier @ squares at a sensitivity of 1."""
    if self._participation.fixed_epoch:
      largest = np.zeros(self._width)
      offset = np.arange(len(multiplier)) % self._width
      np.maximum.at(largest, offset, multiplier)
      return math.fsum(largest)
    times = self._participation.possible_participations
    successive = np.convolve(multiplier, np.ones(self._width), 'valid')
    return max(float(successive.max()), math.fsum(multiplier) / times)

  def _interior_point(self, costs: np.ndarray) -> np.ndarray:
    """The best inverse norms but for a common factor, of error + sum(shares).

    Primal-dual: slacks are conditions @ shares - sums @ inverses^-2, and the products
    of slacks and duals, and of shares and theirs, go to 0.
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
      length = _length(np.append(inverses, shares), step)
      while True:
        new_inverses = inverses + length * step[:n]
        new_shares = shares + length * step[n:]
        new_slacks = conditions @ new_shares - sums @ new_inverses**-2.0
        if np.all(new_slacks > 0.01 * (1.0 - length) * slacks):
          break
        length *= 0.7
      if length < _SHORT and complementarity < _NORMS_ENOUGH * error:
        break
      inverses, shares, slacks = new_inverses, new_shares, new_slacks
      length = min(_length(duals, dual_step), _length(share_duals, share_dual_step))
      duals = duals + length * dual_step
      share_duals = share_duals + length * share_dual_step
    return inverses


def _length(values: np.ndarray, step: np.ndarray) -> float:
  """How much of a step leaves values positive."""
  falls = step < 0
  return min(1.0, 0.99 * float(np.min(-values[falls] / step[falls], initial=np.inf)))


class Columns:
  """The error of unit columns with their best norms, for prefix sums.

  Args:
    participation: Who may take part when.
  """

  def __init__(self, participation: Participation):
    n = participation.num_rounds
    self._best_norms = BestNorms(participation)
    self._errors = banded.errors_of_diagonals(workload.Workload(n))
    self._weights = np.full(n, 1.0 / n)

  def norms(self, units: np.ndarray) -> Norms:
    """The best ones for diagonals with columns of norm 1."""
    return self._best_norms(norm_costs(units))

  def loss(self, columns: np.ndarray) -> tuple[float, Optional[np.ndarray]]:
    """Squared error by diagonals, whose columns may have any norm, and gradient."""
    if np.any(columns[0] <= 0):
      return math.inf, None
    units = banded.unit_columns(columns)
    found = self.norms(units)
    lengths = np.sqrt(found.squares)
    _, pull_back = self._errors(units * lengths)
    by_units = pull_back(self._weights) * lengths
    return found.error, banded.by_columns(columns, by_units)

  def rescaled(self, strategy: banded.Banded) -> tuple[banded.Banded, Norms]:
    """A strategy with the best norms for its columns."""
    units = banded.unit_columns(strategy.diagonals)
    found = self.norms(units)
    return banded.Banded(strategy.num_rounds, units * np.sqrt(found.squares)), found

  def optimize(self, start: banded.Banded) -> banded.Banded:
    """The best columns and norms, from a strategy on."""
    found = descent.lbfgs(self.loss, start.diagonals, _TOLERANCE, lambda loss: None)
    return self.rescaled(banded.Banded(start.num_rounds, found))[0]


def norm_costs(units: np.ndarray) -> np.ndarray:
  """The mean squared error as a quadratic form of the inverse norms of columns."""
  n = units.shape[1]
  inverse = scipy.linalg.solve_triangular(bands.to_dense(units), np.eye(n), lower=True)
  # How many prefix sums have both of two rounds.
  later = n - np.arange(n)
  return np.minimum.outer(later, later) / n * (inverse @ inverse.T)
