"""Windowed BLTs whose columns get shorter from epoch to epoch."""

import dataclasses
from typing import Optional

import numpy as np

from tff_dp_aggregators.base import checks
from tff_dp_aggregators.strategies import blt
from tff_dp_aggregators.strategies import cache as cache_lib
from tff_dp_aggregators.strategies import participation as participation_lib
from tff_dp_aggregators.strategies import windowed_blt
from tff_dp_aggregators.strategies import workload as workload_lib
from tff_dp_aggregators.strategies.epoch_scaled import strategy as strategy_lib
from tff_dp_aggregators.strategies.numerics import epoch_problem
from tff_dp_aggregators.strategies.numerics import windowed_problem


@dataclasses.dataclass(frozen=True, eq=False)
class EpochWindowedBLT(strategy_lib.EpochScaled):
  """A `windowed_blt.WindowedBLT` with a scale for the columns of each epoch.

  Attributes:
    num_rounds: Rounds n; `C` is n x n.
    epoch_starts: As in `EpochScaled`.
    epoch_scales: As in `EpochScaled`.
    window: As in `windowed_blt.WindowedBLT`.
    output_scales: As in `windowed_blt.WindowedBLT`.
    buffer_decays: As in `windowed_blt.WindowedBLT`.

  Raises:
    TypeError: As `EpochScaled` and `windowed_blt.WindowedBLT`.
    ValueError: As `EpochScaled` and `windowed_blt.WindowedBLT`.

  Example:
    >>> strategy = EpochWindowedBLT(6, (0, 3), (2.0, 1.0), 3, (0.5,), (0.8,))
    >>> strategy.materialize()[:, 2].tolist()
    [0.0, 0.0, 2.0, 1.0, 0.8, 0.0]
    >>> strategy.noise_buffers == strategy.unscaled.noise_buffers
    True
  """

  window: int
  output_scales: tuple[float, ...]
  buffer_decays: tuple[float, ...]
  kind = 'epoch_windowed_blt'

  def __post_init__(self) -> None:
    super().__post_init__()
    checked = self.unscaled
    for name in ('window', 'output_scales', 'buffer_decays'):
      object.__setattr__(self, name, getattr(checked, name))

  @property
  def unscaled(self) -> windowed_blt.WindowedBLT:
    """The windowed BLT of these scales and decays."""
    return windowed_blt.WindowedBLT(
      self.num_rounds, self.window, self.output_scales, self.buffer_decays
    )


def optimize(
  num_rounds: int,
  *,
  num_decays: Optional[int] = None,
  window: Optional[int] = None,
  objective: str = 'mean',
  participation: Optional[participation_lib.Participation] = None,
  workload: workload_lib.WorkloadLike = None,
  cache: bool = True,
) -> EpochWindowedBLT:
  """The strategy of this kind with the smallest error.

  Decays and scales of both kinds are found together, by exact gradients (L-BFGS) from
  `windowed_blt.optimize`, which says how many decays are worth it. A step takes
  O(n log n) for each epoch.

  Args:
    num_rounds: Rounds n.
    num_decays: As for `windowed_blt.optimize`.
    window: As for `windowed_blt.optimize`, but at most `min_separation`.
    objective: 'mean' for the smallest `rmse`, 'max' for the smallest `max_error`.
    participation: Who may take part when; more than once, or there is nothing to scale.
    workload: Whose error it is; `None` means prefix sums. Only a `Workload` with a
      constant learning rate, with or without momentum and weight decay.
    cache: Whether to look on disk first, and to keep the result there (see `cache`).

  Returns:
    A strategy whose `sensitivity_kind(participation)` is 'exact'. Its scales do not
    increase, unless a client can be in every epoch and that lowers the error.

  Raises:
    TypeError: If a number is not one.
    ValueError: If an argument is out of range, `participation` is for other rounds, or
      allows one participation only.
    series_optimization.ConvergenceError: If that without scales does not converge.

  Example:
    >>> participation = participation_lib.Participation(200, min_separation=50)
    >>> strategy = optimize(200, num_decays=2, participation=participation)
    >>> strategy.noise_buffers
    10
  """
  num_rounds = checks.check_positive_int('num_rounds', num_rounds)
  checks.check_objective(objective)
  participation = participation_lib.check(num_rounds, participation)
  strategy_lib.check_several(participation, 'windowed_blt')
  workload = blt.check_workload(num_rounds, workload)
  if window is not None and window > participation.min_separation:
    raise ValueError(
      f'window must be at most min_separation={participation.min_separation} to have '
      f'scales of epochs, got {window}; use windowed_blt.optimize for a longer one.'
    )
  unscaled = windowed_blt.optimize(
    num_rounds,
    num_decays=num_decays,
    window=window,
    objective=objective,
    participation=participation,
    workload=workload,
    cache=cache,
  )
  problem = epoch_problem.EpochProblem(participation, objective, workload)
  return cache_lib.fetch(
    EpochWindowedBLT,
    'epoch_scaled.windowed_blt.optimize',
    2,
    {**problem.parameters(), 'unscaled': unscaled.checksum},
    lambda: _optimize(problem, unscaled),
    cache,
  )


def _optimize(
  problem: epoch_problem.EpochProblem, unscaled: windowed_blt.WindowedBLT
) -> EpochWindowedBLT:
  window = unscaled.window
  complements = 1.0 - np.array(unscaled.buffer_decays)
  start = np.log(np.append(complements, unscaled.output_scales))
  parameters, starts, scales = problem.minimize(
    lambda logarithms: _series(logarithms, window, problem.num_rounds),
    start,
    f'epochs of a windowed BLT, {problem.num_rounds} rounds',
  )
  complements, output_scales = np.split(np.exp(parameters), 2)
  made = windowed_blt.WindowedBLT(
    problem.num_rounds, window, tuple(output_scales), tuple(1.0 - complements)
  )
  found = EpochWindowedBLT.of(made, starts, scales)
  return min(found, EpochWindowedBLT.of(unscaled), key=problem.error)


def _series(
  logarithms: np.ndarray, window: int, num_rounds: int
) -> Optional[epoch_problem.Series]:
  complements, _ = np.split(logarithms, 2)
  if np.any(complements >= 0.0):
    return None
  column, pull_back = windowed_problem.coefficients_of(logarithms, window)
  made = epoch_problem.of_column(column, num_rounds)
  return epoch_problem.Series(
    column,
    made.noise,
    lambda by_column, by_noise: pull_back(made.pull_back(by_column, by_noise)),
  )
