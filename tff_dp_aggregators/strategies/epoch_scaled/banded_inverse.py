"""Banded inverses whose columns get shorter from epoch to epoch."""

import dataclasses
import math
from typing import Optional

import numpy as np

from tff_dp_aggregators.strategies import banded_inverse
from tff_dp_aggregators.strategies import cache as cache_lib
from tff_dp_aggregators.strategies import participation as participation_lib
from tff_dp_aggregators.strategies import workload as workload_lib
from tff_dp_aggregators.strategies.epoch_scaled import strategy as strategy_lib
from tff_dp_aggregators.strategies.numerics import epoch_problem
from tff_dp_aggregators.strategies.numerics import power_series
from tff_dp_aggregators.strategies.numerics import toeplitz_problem


@dataclasses.dataclass(frozen=True, eq=False)
class EpochBandedInverse(strategy_lib.EpochScaled):
  """A `banded_inverse.BandedInverse` with a scale for the columns of each epoch.

  Attributes:
    num_rounds: Rounds n; `C` is n x n.
    epoch_starts: As in `EpochScaled`.
    epoch_scales: As in `EpochScaled`.
    coefficients: As in `banded_inverse.BandedInverse`.

  Raises:
    TypeError: As `EpochScaled` and `banded_inverse.BandedInverse`.
    ValueError: As `EpochScaled` and `banded_inverse.BandedInverse`.

  Example:
    >>> strategy = EpochBandedInverse(4, (0, 2), (2.0, 1.0), (1.0, -0.5))
    >>> strategy.materialize()
    array([[2.  , 0.  , 0.  , 0.  ],
           [1.  , 2.  , 0.  , 0.  ],
           [0.5 , 1.  , 1.  , 0.  ],
           [0.25, 0.5 , 0.5 , 1.  ]])
    >>> strategy.noise_buffers
    0
  """

  coefficients: tuple[float, ...]
  kind = 'epoch_banded_inverse'

  def __post_init__(self) -> None:
    super().__post_init__()
    object.__setattr__(self, 'coefficients', self.unscaled.coefficients)

  @property
  def unscaled(self) -> banded_inverse.BandedInverse:
    """The banded inverse with these coefficients."""
    return banded_inverse.BandedInverse(self.num_rounds, self.coefficients)

  @property
  def num_inverse_bands(self) -> int:
    """C^-1[i, j] = 0 for i - j >= num_inverse_bands."""
    return len(self.coefficients)


def optimize(
  num_rounds: int,
  *,
  num_bands: int,
  objective: str = 'mean',
  participation: Optional[participation_lib.Participation] = None,
  workload: workload_lib.WorkloadLike = None,
  cache: bool = True,
) -> EpochBandedInverse:
  """The strategy of this kind with the smallest error, coefficients of C of norm 1.

  Bands and scales are found together, by exact gradients (L-BFGS) from
  `banded_inverse.optimize`. A step takes O(n log n) for each epoch. The problem is not
  convex, and what is found is a local minimum. Scales fall, so that the earliest,
  densest pattern of rounds is the worst; if it is not known to be for what is found,
  because coefficients of C increase after `min_separation` rounds, then the bands of
  `banded_inverse.optimize` are tried as well, and the sensitivity may be a bound.

  Args:
    num_rounds: Rounds n.
    num_bands: Bands of C^-1, at most 4096.
    objective: 'mean' for the smallest `rmse`, 'max' for the smallest `max_error`.
    participation: Who may take part when; more than once, or there is nothing to scale.
    workload: Whose error it is; `None` means prefix sums. Given as an array, or with a
      learning rate that changes, for at most 4096 rounds.
    cache: Whether to look on disk first, and to keep the result there (see `cache`).

  Returns:
    A strategy whose scales do not increase, with an error that is not above that of
    `banded_inverse.optimize`. Its `sensitivity_kind(participation)` is 'exact', unless
    clients may come back within `num_bands` rounds: then it can be 'bound'.

  Raises:
    TypeError: If a number is not whole.
    ValueError: If an argument is out of range, `participation` is for other rounds, or
      allows one participation only.
    series_optimization.ConvergenceError: If that without scales does not converge.

  Example:
    >>> participation = participation_lib.Participation(64, min_separation=16)
    >>> strategy = optimize(64, num_bands=4, participation=participation, cache=False)
    >>> strategy.sensitivity_kind(participation)
    'exact'
  """
  problem = toeplitz_problem.check(
    num_rounds, num_bands, True, objective, participation, workload
  )
  strategy_lib.check_several(problem.participation, 'banded_inverse')
  return cache_lib.fetch(
    EpochBandedInverse,
    'epoch_scaled.banded_inverse.optimize',
    1,
    problem.parameters(),
    lambda: _optimize(problem, cache),
    cache,
  )


def _optimize(
  problem: toeplitz_problem.ToeplitzProblem, cache: bool
) -> EpochBandedInverse:
  n = problem.num_rounds
  unscaled = banded_inverse.optimize(
    n,
    num_bands=problem.num_bands,
    objective=problem.objective,
    participation=problem.participation,
    workload=problem.workload,
    cache=cache,
  )
  scaled = epoch_problem.EpochProblem(
    problem.participation, problem.objective, problem.workload, overlaps=True
  )
  name = f'epochs of a banded inverse, {n} rounds, {problem.num_bands} bands'
  start = np.array(unscaled.coefficients)

  def made(
    bands: np.ndarray, starts: list[int], scales: np.ndarray
  ) -> EpochBandedInverse:
    norm = np.linalg.norm(power_series.inverse(bands, n))
    unit = banded_inverse.BandedInverse(n, tuple(bands * norm))
    return EpochBandedInverse.of(unit, starts, scales)

  best = made(*scaled.minimize(lambda bands: _series(bands, n), start, name))
  never_scaled = EpochBandedInverse.of(unscaled)
  if best.sensitivity_kind(problem.participation) == 'exact':
    return min(best, never_scaled, key=problem.error)
  fixed = epoch_problem.of_noise(start, n).fixed()
  again = scaled.minimize(lambda none: fixed, np.zeros(0), name)
  found = made(start, again.starts, again.scales)
  return min(best, found, never_scaled, key=problem.error)


def _series(bands: np.ndarray, num_rounds: int) -> Optional[epoch_problem.Series]:
  if bands[0] <= 0:
    return None
  with np.errstate(over='ignore', invalid='ignore'):
    series = epoch_problem.of_noise(bands, num_rounds)
    finite = math.isfinite(float(np.abs(series.column).sum()))
  return series if finite else None
