"""Banded Toeplitz strategies whose columns get shorter from epoch to epoch."""

import dataclasses
from typing import Optional

import numpy as np

from tff_dp_aggregators.strategies import cache as cache_lib
from tff_dp_aggregators.strategies import participation as participation_lib
from tff_dp_aggregators.strategies import toeplitz
from tff_dp_aggregators.strategies import workload as workload_lib
from tff_dp_aggregators.strategies.epoch_scaled import strategy as strategy_lib
from tff_dp_aggregators.strategies.numerics import epoch_problem
from tff_dp_aggregators.strategies.numerics import toeplitz_problem


@dataclasses.dataclass(frozen=True)
class EpochToeplitz(strategy_lib.EpochScaled):
  """C[i, j] = coefficients[i - j] * scale of j's epoch, for 0 <= i - j < num_bands.

  Attributes:
    num_rounds: Rounds n; `C` is n x n.
    epoch_starts: As in `EpochScaled`.
    epoch_scales: As in `EpochScaled`.
    coefficients: As in `toeplitz.BandedToeplitz`.

  Raises:
    TypeError: As `EpochScaled` and `toeplitz.BandedToeplitz`.
    ValueError: As `EpochScaled` and `toeplitz.BandedToeplitz`.

  Example:
    >>> EpochToeplitz(4, (0, 2), (2.0, 1.0), (1.0, 0.5)).materialize()
    array([[2. , 0. , 0. , 0. ],
           [1. , 2. , 0. , 0. ],
           [0. , 1. , 1. , 0. ],
           [0. , 0. , 0.5, 1. ]])
  """

  coefficients: tuple[float, ...]
  kind = 'epoch_toeplitz'

  def __post_init__(self) -> None:
    super().__post_init__()
    checked = toeplitz.check_coefficients(self.num_rounds, self.coefficients)
    object.__setattr__(self, 'coefficients', checked)

  @property
  def unscaled(self) -> toeplitz.BandedToeplitz:
    """The banded Toeplitz strategy with these coefficients."""
    return toeplitz.BandedToeplitz(self.num_rounds, self.coefficients)


def optimize(
  num_rounds: int,
  *,
  num_bands: Optional[int],
  objective: str = 'mean',
  participation: Optional[participation_lib.Participation] = None,
  workload: workload_lib.WorkloadLike = None,
  cache: bool = True,
) -> EpochToeplitz:
  """The strategy of this kind with the smallest error, coefficients of norm 1.

  Coefficients and scales are found together, by exact gradients (L-BFGS) from
  `toeplitz.optimize`. A step takes O(n log n) for each epoch. The problem is not
  convex, and what is found is a local minimum.

  Args:
    num_rounds: Rounds n.
    num_bands: Bands of C, at most `min_separation`, so that columns of one client do
      not overlap; `None` for as many of those as there may be, up to 4096. The noise
      needs a model-sized buffer for each but one.
    objective: 'mean' for the smallest `rmse`, 'max' for the smallest `max_error`.
    participation: Who may take part when; more than once, or there is nothing to scale.
    workload: Whose error it is; `None` means prefix sums. Given as an array, or with a
      learning rate that changes, for at most 4096 rounds.
    cache: Whether to look on disk first, and to keep the result there (see `cache`).

  Returns:
    A strategy whose `sensitivity_kind(participation)` is 'exact'. Its scales do not
    increase, unless a client can be in every epoch and that lowers the error.

  Raises:
    TypeError: If a number is not whole.
    ValueError: If an argument is out of range, `participation` is for other rounds, or
      allows one participation only.
    series_optimization.ConvergenceError: If that without scales does not converge.

  Example:
    >>> participation = participation_lib.Participation(64, min_separation=16)
    >>> strategy = optimize(64, num_bands=16, participation=participation, cache=False)
    >>> round(strategy.rmse(participation), 3)
    4.617
  """
  if num_bands is None:
    separation = participation_lib.check(num_rounds, participation).min_separation
    num_bands = min(num_rounds, separation, toeplitz_problem.MAX_BANDS)
  problem = toeplitz_problem.check(
    num_rounds, num_bands, False, objective, participation, workload
  )
  strategy_lib.check_several(problem.participation, 'toeplitz')
  if num_bands > problem.separation:
    raise ValueError(
      f'num_bands={num_bands} is more than min_separation={problem.separation}: '
      'columns of one client would overlap. Use at most '
      f'{problem.separation} bands, or take toeplitz, without scales.'
    )
  return cache_lib.fetch(
    EpochToeplitz,
    'epoch_scaled.toeplitz.optimize',
    2,
    problem.parameters(),
    lambda: _optimize(problem, cache),
    cache,
  )


def _optimize(problem: toeplitz_problem.ToeplitzProblem, cache: bool) -> EpochToeplitz:
  unscaled = toeplitz.optimize(
    problem.num_rounds,
    num_bands=problem.num_bands,
    objective=problem.objective,
    participation=problem.participation,
    workload=problem.workload,
    cache=cache,
  )
  scaled = epoch_problem.EpochProblem(
    problem.participation, problem.objective, problem.workload
  )
  coefficients, starts, scales = scaled.minimize(
    lambda column: _series(column, problem.num_rounds),
    np.array(unscaled.coefficients),
    f'epochs of a banded Toeplitz, {problem.num_rounds} rounds, '
    f'{problem.num_bands} bands',
  )
  norm = np.linalg.norm(coefficients)
  unit = toeplitz.BandedToeplitz(problem.num_rounds, tuple(coefficients / norm))
  found = EpochToeplitz.of(unit, starts, scales * norm)
  return min(found, EpochToeplitz.of(unscaled), key=scaled.error)


def _series(column: np.ndarray, num_rounds: int) -> Optional[epoch_problem.Series]:
  if column[0] <= 0:
    return None
  return epoch_problem.of_column(column, num_rounds)
