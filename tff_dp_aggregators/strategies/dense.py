"""Dense strategies: any lower-triangular matrix, and the optimal one for small n.

They serve as a reference for other strategies: a server needs a buffer of noise for
every round, and a step of the optimisation takes O(n^3).
"""

import dataclasses
from typing import Optional

import numpy as np

from tff_dp_aggregators.strategies import cache as cache_lib
from tff_dp_aggregators.strategies import recursion as recursion_lib
from tff_dp_aggregators.strategies import sensitivity as sensitivity_lib
from tff_dp_aggregators.strategies import strategy as strategy_lib
from tff_dp_aggregators.strategies import workload as workload_lib
from tff_dp_aggregators.strategies.numerics import bands
from tff_dp_aggregators.strategies.numerics import descent
from tff_dp_aggregators.strategies.numerics import gram as gram_lib
from tff_dp_aggregators.strategies.participation import Participation

# Tolerances of the optimisation, relative to the squared error.
_FIXED_POINT_TOLERANCE = 1e-6
_DESCENT_TOLERANCES = {'mean': 1e-8, 'max': 1e-4}
_ROUNDING = 1e-12  # Inner products of unit columns below this are rounding errors.
_MAX_STALLED_STEPS = 50  # Steps without progress, because of rounding errors.


@dataclasses.dataclass(frozen=True, eq=False)
class Dense(strategy_lib.Strategy):
  """C is any lower-triangular matrix with a positive diagonal.

  Attributes:
    matrix: `C`, float64 of shape [n, n]; a ValueError names an entry that is wrong.

  Example:
    >>> Dense(2, np.array([[1.0, 0.0], [1.0, 2.0]])).sensitivity()
    2.0
  """

  matrix: np.ndarray
  kind = 'dense'

  def __post_init__(self) -> None:
    super().__post_init__()
    matrix = bands.check_matrix(self.matrix, num_rounds=self.num_rounds)
    object.__setattr__(self, 'matrix', matrix)

  def recursion(self) -> recursion_lib.LastRounds:
    """Forward substitution with the noise of all earlier rounds."""
    entries = np.zeros_like(self.matrix)
    for this_round, row in enumerate(self.matrix):
      entries[this_round, : this_round + 1] = row[this_round::-1]
    return recursion_lib.LastRounds.solving(entries)

  def sensitivity_squared_by_round(
    self, participation: Optional[Participation] = None
  ) -> np.ndarray:
    """Exact or upper bounds: see the module `sensitivity`."""
    participation = self._participation(participation)
    return sensitivity_lib.squared_by_round(self.matrix, participation)

  def squared_or_bound(self, participation: Participation) -> tuple[float, bool]:
    """Exact also if all columns of one client are orthogonal, as in `optimize`."""
    squared, exact = sensitivity_lib.squared(self.matrix, participation)
    return squared, exact or self._is_orthogonal(participation)

  def per_query_error(self, workload: workload_lib.WorkloadLike = None) -> np.ndarray:
    """Takes O(n^3)."""
    workload = workload_lib.check(self.num_rounds, workload)
    return workload_lib.errors(self.matrix, workload)

  def materialize(self) -> np.ndarray:
    """`C` as a dense array."""
    return self.matrix.copy()

  def _is_orthogonal(self, participation: Participation) -> bool:
    """Whether all columns of one client are orthogonal, up to rounding."""
    units = self.matrix / np.linalg.norm(self.matrix, axis=0)
    rounds = np.arange(self.num_rounds)
    gaps = np.abs(rounds[:, np.newaxis] - rounds)
    if participation.fixed_epoch:
      together = (gaps > 0) & (gaps % participation.min_separation == 0)
    else:
      together = gaps >= participation.min_separation
    return not np.any(np.abs(units.T @ units)[together] > _ROUNDING)


def optimize(
  num_rounds: int,
  *,
  objective: str = 'mean',
  participation: Optional[Participation] = None,
  workload: workload_lib.WorkloadLike = None,
  cache: bool = True,
) -> Dense:
  """Returns the strategy with the least error; sens(C) = 1, or sqrt(k) (see below).

  For a single participation, C has unit columns; for the mean error it is computed as
  in arXiv:2202.08312, theorem 3.2.

  In fixed epochs (arXiv:2211.06530), all columns of one client are constrained to be
  orthogonal (as in arXiv:2306.08153), and their squared norms sum to 1. If a client may
  take part in every epoch, no strategy is better. Proof: sens(C)^2 is the maximum of
  tr(R X[c, c]) over residue classes c and Gram matrices R of contributions (positive
  semidefinite, with ones on the diagonal). By duality the optimal X minimises
  tr(M X^-1) + tr(V X) for some V made of multiples of maximising R's. So V = X^-1 M
  X^-1, which is definite, and so are these R. A linear function that has its maximum at
  a definite R does not depend on the entries of R off the diagonal, so X[c, c] is
  diagonal. If a client may take part in only k epochs, all columns have norm 1 and the
  sensitivity is sqrt(k); `certify` bounds how much better another strategy could be.

  Arguments are those of `banded.optimize`, and:

  * `num_rounds`: Rounds n; up to some hundred.
  * `participation`: A single participation, or fixed epochs.
  * `workload`: The invertible queries whose error is minimised; `None`: prefix sums.

  Raises:
    TypeError: If a number is not an integer.
    ValueError: If an argument is out of range, if the workload has no inverse, or if
      clients come back after min_separation rounds or more, not in fixed epochs.

  Example:
    >>> strategy = optimize(16, cache=False)
    >>> round(strategy.sensitivity(), 12), round(strategy.rmse(), 4)
    (1.0, 1.6894)
  """
  problem = _DenseProblem.check(num_rounds, objective, participation, workload)
  limits = problem.participation
  if limits.possible_participations > 1 and not limits.fixed_epoch:
    separation = limits.min_separation
    raise ValueError(
      'participation must be single or fixed-epoch. For clients that come back after '
      f'min_separation={separation} rounds or more, '
      f'banded.optimize(num_rounds, num_bands={separation}) is the best with unit '
      f'columns and {separation} bands.'
    )
  return cache_lib.fetch(
    Dense,
    'dense.optimize',
    1,
    problem.parameters(),
    lambda: Dense(num_rounds, gram_lib.factor(problem.solve().point)),
    cache,
  )


def certify(
  strategy: strategy_lib.Strategy,
  objective: str = 'mean',
  participation: Optional[Participation] = None,
  workload: workload_lib.WorkloadLike = None,
) -> gram_lib.Certificate:
  """Proves how far a strategy is from the best of all strategies, banded or not.

  The bound is `gram.lower_bound`. A client contributes a vector u_i of norm at most 1
  in each of its rounds i. Let V be a positive semidefinite matrix that is zero except
  for pairs of rounds that one client can have in fixed epochs, and equal to v[c] on the
  diagonal for the rounds of residue class c. Then V restricted to a class is v[c] times
  the Gram matrix of unit vectors, which are possible contributions, and tr(V C^T C), a
  sum over classes of v[c] times ||C u||^2, is at most sens(C)^2 sum_c v[c].

  If a client can have only k of the rounds of its class, V is diagonal, and v[c] is the
  larger of its maximum entry and of 1 / k of its sum over the class, because V is then
  at most v[c] times a mean of diagonals with ones for k rounds.

  V is computed from the optimum, as in `banded.certify`, and takes as long as that.
  Clients that come back after min_separation rounds or more have all patterns of fixed
  epochs and some more, so the bound holds, but is not tight. Arguments are those of
  `optimize`, and any strategy.
  """
  problem = _DenseProblem.check(strategy.num_rounds, objective, participation, workload)
  return gram_lib.Certificate(
    error=problem.error(strategy) ** 2,
    lower_bound=problem.lower_bound(),
    scope=f'all strategies of {problem.num_rounds} rounds, for {problem.participation}',
  )


@dataclasses.dataclass(frozen=True)
class _DenseProblem(strategy_lib.Problem):
  """The problem of finding the best matrix."""

  def __post_init__(self) -> None:
    diagonal = np.diagonal(workload_lib.apply(self.workload, np.eye(self.num_rounds)))
    if not np.all(diagonal):
      raise ValueError(
        f'workload must have an inverse, but row {int(np.argmin(diagonal != 0))} is 0 '
        'on the diagonal.'
      )

  @property
  def classes(self) -> np.ndarray:
    """The class of each round: rounds of one class can be of the same client."""
    rounds = np.arange(self.num_rounds)
    if self.participation.possible_participations == 1:
      return rounds
    return rounds % self.participation.min_separation

  @property
  def has_every_epoch(self) -> bool:
    """Whether a client can have all the rounds of its class."""
    possible = self.participation.possible_participations
    return possible >= np.bincount(self.classes).max()

  def solve(self) -> descent.Minimum:
    """Returns the optimal X = C^T C, and the weights of the errors it minimises."""
    progress = descent.Progress(f'dense {self.num_rounds}')
    if self.objective == 'mean' and self.participation.possible_participations == 1:
      workload = workload_lib.apply(self.workload, np.eye(self.num_rounds))
      return _fixed_point(workload, progress)
    return _descend(self, progress)

  def lower_bound(self) -> float:
    """A lower bound of the minimum error, by duality (see `certify`)."""
    optimum = self.solve()
    matrix = gram_lib.factor(optimum.point)
    multiplier = gram_lib.multiplier(matrix, self.workload, optimum.weights)
    classes = self.classes
    together = classes[:, np.newaxis] == classes
    if not self.has_every_epoch:
      together = np.eye(self.num_rounds, dtype=bool)
    multiplier = gram_lib.shift_to_positive(np.where(together, multiplier, 0.0))
    budget = self._budget(np.diagonal(multiplier))
    if self.has_every_epoch:
      # Raising the diagonal to what the budget allows keeps it definite.
      np.fill_diagonal(multiplier, budget)
    totals = budget[np.unique(classes, return_index=True)[1]]
    return gram_lib.lower_bound(
      multiplier, float(totals.sum()), self.workload, optimum.weights
    )

  def _budget(self, diagonal: np.ndarray) -> np.ndarray:
    """v[c] of `certify`, for every round."""
    classes = self.classes
    largest = np.zeros(classes.max() + 1)
    np.maximum.at(largest, classes, diagonal)
    share = np.bincount(classes, diagonal) / self.participation.possible_participations
    return np.maximum(largest, share)[classes]


def _fixed_point(workload: np.ndarray, progress: descent.Progress) -> descent.Minimum:
  """Minimises the mean error, single participation: arXiv:2202.08312, theorem 3.2.

  Let L = diag(multipliers) of the constraints X[i, i] <= 1, and U diag(s) V^T the
  singular value decomposition of A L^1/2. Then X = L^-1/2 V diag(s) V^T L^-1/2
  minimises tr(A X^-1 A^T) + tr(L X), and

      X[i, i] = (V diag(s) V^T)[i, i] / L[i, i].

  At the optimum these are all equal, so L is set to the diagonal of V diag(s) V^T until
  it converges. The error of X is tr(A X^-1 A^T) max_i X[i, i] = sum(s) max_i X[i, i],
  and sum(s)^2 / tr(L) is a lower bound (`gram.lower_bound`).
  """
  multipliers = np.ones(len(workload))
  best_gap, stalled = np.inf, 0
  while best_gap > _FIXED_POINT_TOLERANCE and stalled < _MAX_STALLED_STEPS:
    _, singular, right = np.linalg.svd(workload * np.sqrt(multipliers))
    target = singular @ np.square(right)
    diagonal = target / multipliers
    gap = float(diagonal.max() * multipliers.sum() / singular.sum()) - 1.0
    stalled += 1
    if gap < best_gap:
      scales = np.sqrt(target)
      best = (right.T * singular) @ right / np.outer(scales, scales)
      best_gap, stalled = gap, 0
    multipliers = target
    mean_error = singular.sum() * diagonal.max() / len(workload)
    progress(float(np.sqrt(mean_error)))
  return descent.Minimum(best, np.full(len(workload), 1.0 / len(workload)))


def _descend(problem: _DenseProblem, progress: descent.Progress) -> descent.Minimum:
  """Finds the optimum with orthogonal columns in every residue class.

  The search is over all X that are zero off the diagonal for two rounds of a class.
  They are scaled: to a diagonal that sums to 1 over each class if a client can have all
  of its rounds, and otherwise to a diagonal of ones. For a single participation, every
  round is its own class.
  """
  scale = _Scale(problem)

  def errors(unscaled: np.ndarray) -> Optional[descent.Evaluated]:
    if np.any(np.diagonal(unscaled) <= 0):
      return None
    gram = scale(unscaled)
    try:
      matrix = gram_lib.factor(gram)
    except np.linalg.LinAlgError:
      return None

    def pull_back(weights: np.ndarray) -> np.ndarray:
      by_gram = -gram_lib.multiplier(matrix, problem.workload, weights)
      return scale.pull_back(unscaled, by_gram)

    return workload_lib.errors(matrix, problem.workload), pull_back

  minimize = getattr(descent, f'minimize_{problem.objective}')
  tolerance = _DESCENT_TOLERANCES[problem.objective]
  minimum = minimize(errors, np.eye(problem.num_rounds), tolerance, progress)
  return descent.Minimum(scale(minimum.point), minimum.weights)


class _Scale:
  """Scales any positive definite matrix to satisfy the constraints of `_descend`."""

  def __init__(self, problem: _DenseProblem):
    classes = problem.classes
    together = classes[:, np.newaxis] == classes
    self._free = ~together | np.eye(len(classes), dtype=bool)
    self._groups = classes if problem.has_every_epoch else np.arange(len(classes))

  def __call__(self, unscaled: np.ndarray) -> np.ndarray:
    norms = np.sqrt(self._sums(np.diagonal(unscaled)))
    return np.where(self._free, unscaled, 0.0) / np.outer(norms, norms)

  def pull_back(self, unscaled: np.ndarray, by_gram: np.ndarray) -> np.ndarray:
    """The gradient by the unscaled matrix, from that by the scaled; both symmetric."""
    squares = self._sums(np.diagonal(unscaled))
    norms = np.sqrt(squares)
    by_unscaled = np.where(self._free, by_gram, 0.0) / np.outer(norms, norms)
    by_squares = (by_unscaled * unscaled).sum(axis=1) / squares
    by_unscaled[np.diag_indices_from(by_unscaled)] -= self._sums(by_squares)
    return by_unscaled

  def _sums(self, values: np.ndarray) -> np.ndarray:
    """For each round, the sum over the rounds of its group."""
    return np.bincount(self._groups, values)[self._groups]
