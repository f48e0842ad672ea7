"""Sensitivity of any lower-triangular matrix that is given as an array.

With G = C^T C and one client's rounds pi, the largest ||C u||^2 over contributions of
norm at most 1 in each round of pi is

    max sum_{i, j in pi} G[i, j] <u_i, u_j>   <=   sum_{i, j in pi} |G[i, j]|

with equality if no entry of G in pi is negative, and always for two participations.
The maximum over pi remains. It is found exactly if columns of one client do not
overlap, if a client has at most two columns, and in fixed epochs if a client can have
all rounds of its residue class. Otherwise it is bounded as in arXiv:2306.08153,
section 4: a round i in pi contributes at most

    W[i] = max_{pi with i} sum_{j in pi} |G[i, j]|

and the worst sum of W over patterns bounds the worst sum of all pairs. Both maxima are
over non-negative weights, which `participation.worst_sum` does exactly.

Toeplitz matrices have other bounds, too (`numerics.toeplitz_sensitivity`), and neither
is always the smaller one. If neither is exact, both are computed; for up to 256 rounds
if only the first column is given.

**Columns** of C belong to rounds of participation. To confuse them with rows is a
classic error, and understates the sensitivity.
"""

import dataclasses
from typing import Optional

import numpy as np
import scipy.linalg

from tff_dp_aggregators.strategies import participation as participation_lib
from tff_dp_aggregators.strategies.numerics import toeplitz_sensitivity
from tff_dp_aggregators.strategies.participation import Participation

_ROUNDING = 1e-12  # Negative entries of G up to this, relative to both columns.
_PREFIXES = 32  # The general bound is computed for this many prefixes of the rounds.
_MAX_DENSE_ROUNDS = 256  # A Toeplitz matrix is made dense for a bound: 0.1 s.


def squared(matrix: np.ndarray, participation: Participation) -> tuple[float, bool]:
  """Returns the largest ||C u||^2, up to rounding, and True; or a bound and False.

  `matrix` is C, lower-triangular, [m, m], m at most the rounds of `participation`.
  """
  result = _squared_of_matrix(matrix, participation)
  # Whether the matrix is Toeplitz is compared exactly.
  if result[1] or not np.all(matrix[1:, 1:] == matrix[:-1, :-1]):
    return result
  limits = dataclasses.replace(participation, num_rounds=len(matrix))
  return _smaller(result, toeplitz_sensitivity.squared(matrix[:, 0], limits))


def squared_of_toeplitz(
  coefficients: np.ndarray,
  participation: Participation,
  scales: Optional[np.ndarray] = None,
) -> tuple[float, bool]:
  """The same as `squared`, for the Toeplitz matrix with this first column, [n].

  `scales`, if given, are factors of the columns, positive, [n].
  """
  if scales is not None and np.all(scales == scales[0]):
    squared_unscaled, exact = squared_of_toeplitz(coefficients, participation)
    return float(scales[0]) ** 2 * squared_unscaled, exact
  result = toeplitz_sensitivity.squared(coefficients, participation, scales)
  if result[1]:
    return result
  if scales is not None and (
    participation.possible_participations == 1
    or not np.any(coefficients[participation.min_separation :])
  ):
    norms = np.square(scales) * np.cumsum(np.square(coefficients))[::-1]
    worst = norms + participation_lib.best_before(norms, participation)
    return float(worst.max()), True
  if len(coefficients) > _MAX_DENSE_ROUNDS:
    return result
  matrix = scipy.linalg.toeplitz(coefficients, np.zeros_like(coefficients))
  if scales is not None:
    matrix = matrix * scales
  return _smaller(result, _squared_of_matrix(matrix, participation))


def _smaller(one: tuple[float, bool], other: tuple[float, bool]) -> tuple[float, bool]:
  """Returns the smaller of two bounds; an exact one is smaller, except for rounding."""
  return min(one, other, key=lambda result: (not result[1], result[0]))


def _squared_of_matrix(
  matrix: np.ndarray, participation: Participation
) -> tuple[float, bool]:
  """The same as `squared`, without the bounds for Toeplitz matrices."""
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

  If columns of one client do not overlap, every entry is exact. Otherwise the last
  entry is what `squared` returns and the others are bounds, which rise in steps.
  """
  if _columns_are_disjoint(matrix, participation):
    norms_by_round = np.cumsum(np.square(matrix), axis=0)
    return participation_lib.worst_sum(norms_by_round, participation)
  num_rounds = len(matrix)
  ends = np.unique(np.linspace(1, num_rounds, _PREFIXES).round().astype(int))
  at_ends = np.array([squared(matrix[:end, :end], participation)[0] for end in ends])
  # A bound for more rounds also holds for fewer.
  bounds = np.minimum.accumulate(at_ends[::-1])[::-1]
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
    max_count = min(participation.possible_participations, len(pairs))
    size = np.abs(pairs)
    if max_count == 2:
      value, exact = _worst_pair(pairs, 1), True
    elif max_count == len(pairs):
      norms = np.sqrt(np.diagonal(pairs))
      exact = bool(np.all(pairs >= -_ROUNDING * np.outer(norms, norms)))
      value = float(size.sum())
    else:
      exact = False
      others = np.sort(size - np.diag(np.diagonal(size)), axis=1)
      rows = np.diagonal(size) + others[:, len(pairs) - max_count + 1 :].sum(axis=1)
      value = float(np.sort(rows)[-max_count:].sum())
    best = max(best, (value, exact))
  return best


def _worst_pair(gram: np.ndarray, separation: int) -> float:
  """The worst pattern of one or two rounds; contributions may have opposite signs."""
  norms = np.diagonal(gram)
  pairs = norms[:, np.newaxis] + norms + 2 * np.abs(gram)
  allowed = np.tril(pairs, -separation)
  return float(max(norms.max(), allowed.max()))


def _row_bounds(gram: np.ndarray, participation: Participation) -> np.ndarray:
  """W: the most that each round contributes, with the worst other rounds."""
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
