"""What `blt.optimize_windowed` optimises: decays and scales.

    c_0 = 1,    c_i = [i < window] sum_j scales_j decays_j^(i - 1) + scale decay^(i - 1)

where the last term, the tail, may be missing. Scales are positive, so that coefficients
do not increase from index 1 on, and the earliest, densest pattern of participation is
the worst (arXiv:2405.13763). A window has no closed form that is faster than the
Fourier transforms of `series_problem`.

What is searched are logarithms, in this order: the complements of the decays, the
scales; the complement of the tail's decay, its scale. Arguments are not checked here.
"""

import dataclasses
import math
from collections.abc import Callable

import numpy as np

from tff_dp_aggregators.strategies.numerics import blt_search
from tff_dp_aggregators.strategies.numerics import descent
from tff_dp_aggregators.strategies.numerics import series_problem

# Coefficients, and what makes of a gradient by them one by parameters.
_Column = tuple[np.ndarray, Callable[[np.ndarray], np.ndarray]]

_START_GAIN = 1e-6
_START_SCALE = 1e-3
_FAST = 0.9  # Complement of a decay that begins as next to nothing.
_SLOWEST = 1e-12  # Smallest complement of a decay.
_SMALLEST_SCALE = 1e-12


@dataclasses.dataclass(frozen=True)
class WindowProblem(series_problem.SeriesProblem):
  """What is asked for; from coefficient `window` on only the tail, if any, stays."""

  window: int = 1
  has_tail: bool = False

  @property
  def uncut(self) -> blt_search.BLTProblem:
    """What is asked for but the window, as of a BLT."""
    return blt_search.problem(self.objective, self.participation, self.workload)

  def search(
    self, max_decays: int, min_gain: float, report: descent.Report
  ) -> tuple[float, np.ndarray]:
    """The least loss and its parameters, with one decay more while each helps."""
    loss, parameters = self.uncut.identity_loss(), np.zeros(0)
    for num_decays in range(0 if self.has_tail else 1, max_decays + 1):
      start = self._start(num_decays)
      lower, upper = self._bounds(len(start))
      start = np.clip(start, lower, upper)
      found = self.minimize(self.series, start, report, descent.bounded(lower, upper))
      evaluated = self.errors(self.series)(found.parameters)
      assert evaluated is not None  # Or it had not been found.
      more_loss = math.log(found.weights @ evaluated[0])
      if num_decays and gain(more_loss, loss) < min_gain:
        break
      loss, parameters = more_loss, found.parameters
    return loss, parameters

  def series(self, parameters: np.ndarray) -> series_problem.Series:
    """What parameters make."""
    column, pull_back = self._column(parameters)
    made = series_problem.of_column(column, self.num_rounds)
    return made._replace(
      pull_back=lambda by_column, by_noise: pull_back(
        made.pull_back(by_column, by_noise)
      )
    )

  def _start(self, num_decays: int) -> np.ndarray:
    """Parameters to begin with: the best BLT, filled up with fast and small decays.

    Without a tail that of one window; with one, the slowest decay of all rounds' BLT.
    """
    wanted = num_decays + self.has_tail
    problem = self.uncut
    if not self.has_tail:
      problem = dataclasses.replace(
        problem, num_rounds=self.window, min_separation=1, participations=1
      )
    nodes = blt_search.best_nodes(problem, wanted, _START_GAIN)
    scales, decays = blt_search.scales_and_decays(nodes)
    missing = wanted - len(decays)
    complements = np.append(np.maximum(1.0 - decays, _SLOWEST), [_FAST] * missing)
    scales = np.append(scales, [_START_SCALE] * missing)
    if not self.has_tail:
      return np.log(np.concatenate([complements, scales]))
    # The slowest comes first.
    tail = [complements[0], scales[0]]
    return np.log(np.concatenate([complements[1:], scales[1:], tail]))

  def _bounds(self, size: int) -> tuple[np.ndarray, np.ndarray]:
    """The least and the largest parameters."""
    decays = size // 2 - self.has_tail
    is_scale = np.repeat([False, True, False, True], [decays] * 2 + [self.has_tail] * 2)
    lower = np.where(is_scale, math.log(_SMALLEST_SCALE), math.log(_SLOWEST))
    return lower, np.where(is_scale, 0.0, -1e-9)

  def _column(self, parameters: np.ndarray) -> _Column:
    """All coefficients that are not 0, of parameters."""
    if not self.has_tail:
      return coefficients_of(parameters, self.window)
    head, pull_back_head = coefficients_of(parameters[:-2], self.window)
    tail, pull_back_tail = coefficients_of(parameters[-2:], self.num_rounds)
    tail[: self.window] += head
    tail[0] = 1.0

    def pull_back(by_coefficient: np.ndarray) -> np.ndarray:
      by_head = pull_back_head(by_coefficient[: self.window])
      return np.append(by_head, pull_back_tail(by_coefficient))

    return tail, pull_back


def gain(loss: float, other: float) -> float:
  """By which part of another one's error a loss is smaller."""
  return -math.expm1((loss - other) / 2)


def coefficients_of(parameters: np.ndarray, window: int) -> _Column:
  """The coefficients of a windowed BLT as a function of what is searched."""
  complements, scales = np.split(np.exp(parameters), 2)
  steps = np.arange(window - 1)
  powers = np.exp(steps * np.log1p(-complements)[:, np.newaxis])

  def pull_back(by_coefficient: np.ndarray) -> np.ndarray:
    by_scale = scales * (powers @ by_coefficient[1:])
    slower = -scales * complements / (1.0 - complements)
    by_complement = slower * (powers @ (steps * by_coefficient[1:]))
    return np.append(by_complement, by_scale)

  return np.append(1.0, scales @ powers), pull_back
