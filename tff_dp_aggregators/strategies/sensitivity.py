"""Sensitivity of any lower-triangular matrix, given as an array.

With G = C^T C and one client's rounds pi, the largest ||C u||^2 over contributions of
norm at most 1 in each round of pi is

    max sum_{i, j in pi} G[i, j] <u_i, u_j>   <=   sum_{i, j in pi} |G[i, j]|

with equality where no entry of G in pi is negative, and for two participations always.
What remains is the worst pi. It is found exactly where columns of one client do not
overlap, where it has at most two of them, and in fixed epochs where it has all of its
class; otherwise by the upper bound of arXiv:2306.08153, section 4: a round i in pi
contributes at most

    W[i] = max_{pi with i} sum_{j in pi} |G[i, j]|

and the worst sum of W over patterns bounds the worst sum of all pairs. Both maxima are
over non-negative weights, which `participation.worst_sum` does exactly.

Toeplitz matrices have bounds of their own (`numerics.toeplitz_sensitivity`), and none
of the two is always the smaller one; where neither is exact, both are computed, for up
to 256 rounds if the matrix is not there.
**Columns** of C belong to rounds of participation. Confusing them with rows is a
classic error, and under-states the sensitivity.
"""

import dataclasses
from typing import Optional

import numpy as np
import scipy.linalg

from tff_dp_aggregators.strategies import participation as participation_lib
from tff_dp_aggregators.strategies.numerics import toeplitz_sensitivity
from tff_dp_aggregators.strategies.participation import Participation

# Negative entries of G are rounding below this, relative to both columns.
_ROUNDING = 1e-12
_PREFIXES = 32  # The general bound is computed for this many prefixes of the rounds.
# Rounds up to which a Toeplitz matrix is written out for a bound: a tenth of a second.
_MAX_WRITTEN_OUT = 256


def squared(matrix: np.ndarray, participation: Participation) -> tuple[float, bool]:
  """The largest ||C u||^2, up to rounding, and True; or a number above it and False.

  `matrix`: C, lower-triangular, [m, m], m at most the rounds of `participation`.
  """
  found = _squared_of_any(matrix, participation)
  # Constant along its diagonals, to the last bit.
  if found[1] or not np.all(matrix[1:, 1:] == matrix[:-1, :-1]):
    return found
  of_these = dataclasses.replace(participation, num_rounds=len(matrix))
  return _better(found, toeplitz_sensitivity.squared(matrix[:, 0], of_these))


def squared_of_toeplitz(
  coefficients: np.ndarray,
  participation: Participation,
  scales: Optional[np.ndarray] = None,
) -> tuple[float, bool]:
  """As `squared`, of a Toeplitz matrix with this first column, [n].

  `scales`: What each column is multiplied with, positive, [n], if there are any.
  """
  if scales is not None and np.all(scales == scales[0]):
    squared_unscaled, exact = squared_of_toeplitz(coefficients, participation)
    return float(scales[0]) ** 2 * squared_unscaled, exact
  found = toeplitz_sensitivity.squared(coefficients, participation, scales)
  if found[1]:
    return found
  if scales is not None and (
    participation.possible_participations == 1
    or not np.any(coefficients[participation.min_separation :])
  ):
    norms = np.square(scales) * np.cumsum(np.square(coefficients))[::-1]
    worst = norms + participation_lib.best_before(norms, participation)
    return float(worst.max()), True
  if len(coefficients) > _MAX_WRITTEN_OUT:
    return found
  matrix = scipy.linalg.toeplitz(coefficients, np.zeros_like(coefficients))
  if scales is not None:
    matrix = matrix * scales
  return _better(found, _squared_of_any(matrix, participation))


def _better(one: tuple[float, bool], other: tuple[float, bool]) -> tuple[float, bool]:
  """Returns the smaller of two bounds; an exact one is smaller, but for rounding."""
  return min(one, other, key=lambda found: (not found[1], found[0]))


def _squared_of_any(
  matrix: np.ndarray, participation: Participation
) -> tuple[float, bool]:
  """As `squared`, without a look at what else is known of the matrix."""
  if _columns_are_disjoint(matrix, participation):
    columns = np.square(matrix).sum(axis=0)
    return float(participation_lib.worst_sum(columns, participation)), True
  gram = matrix.T @ matrix
  if participation.fixed_epoch:
    return _worst_class(gram, participation)
  if participation.possible_participations == 2:
    return _worst_pair(gram, participation.min_separation), True
  bounds = _row_bounds(gram, participation)
  return float(participation_lib.worst_sum(bounds, participation)), False


def squared_by_round(matrix: np.ndarray, participation: Participation) -> np.ndarray:
  """Squared sensitivity of the first 1, 2, ..., n rows, exact or upper bounds.

  Where columns of one client do not overlap, every entry is exact. Otherwise the last
  entry is what `squared` returns and the others are bounds, which rise in steps.
  """
  if _columns_are_disjoint(matrix, participation):
    columns_so_far = np.cumsum(np.square(matrix), axis=0)
    return participation_lib.worst_sum(columns_so_far, participation)
  num_rounds = len(matrix)
  ends = np.unique(np.linspace(1, num_rounds, _PREFIXES).round().astype(int))
  each = np.array([squared(matrix[:end, :end], participation)[0] for end in ends])
  # A bound for more rounds is one for fewer.
  bounds = np.minimum.accumulate(each[::-1])[::-1]
  return bounds[np.searchsorted(ends, np.arange(1, num_rounds + 1))]


def _columns_are_disjoint(matrix: np.ndarray, participation: Participation) -> bool:
  """Whether no two columns of one client have entries in the same row."""
  if participation.possible_participations == 1:
    return True
  return not np.any(np.tril(matrix, -participation.min_separation))


def _worst_class(gram: np.ndarray, participation: Participation) -> tuple[float, bool]:
  """The worst residue class of a fixed-epoch schema."""
  separation = participation.min_separation
  best = (0.0, True)
  for first in range(min(separation, len(gram))):
    pairs = gram[first::separation, first::separation]
    most = min(participation.possible_participations, len(pairs))
    size = np.abs(pairs)
    if most == 2:
      value, exact = _worst_pair(pairs, 1), True
    elif most == len(pairs):
      norms = np.sqrt(np.diagonal(pairs))
      exact = bool(np.all(pairs >= -_ROUNDING * np.outer(norms, norms)))
      value = float(size.sum())
    else:
      exact = False
      others = np.sort(size - np.diag(np.diagonal(size)), axis=1)
      rows = np.diagonal(size) + others[:, len(pairs) - most + 1 :].sum(axis=1)
      value = float(np.sort(rows)[-most:].sum())
    best = max(best, (value, exact))
  return best


def _worst_pair(gram: np.ndarray, separation: int) -> float:
  """The worst of all patterns of one or two rounds: signs make their product count."""
  norms = np.diagonal(gram)
  pairs = norms[:, np.newaxis] + norms + 2 * np.abs(gram)
  allowed = np.tril(pairs, -separation)
  return float(max(norms.max(), allowed.max()))


def _row_bounds(gram: np.ndarray, participation: Participation) -> np.ndarray:
  """W: the most that one round contributes, with the worst others around it."""
  num_rounds = len(gram)
  rounds = np.arange(num_rounds)
  apart = np.abs(rounds[:, np.newaxis] - rounds) >= participation.min_separation
  others = np.where(apart, np.abs(gram), 0.0)
  fewer = Participation(
    participation.num_rounds,
    participation.min_separation,
    participation.possible_participations - 1,
  )
  return np.diagonal(gram) + participation_lib.worst_sum(others, fewer)
