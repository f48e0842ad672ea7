"""Clients that are asked and do not report, and rounds that are tried again."""

import dataclasses
import math
from typing import Callable, Optional

import numpy as np

from tff_dp_aggregators.base import checks
from tff_dp_aggregators.sampling import draws

# Attempts at one round, after which it is given up.
MAX_ATTEMPTS = 100


class ReportingGoalError(ValueError):
  """A round does not reach its reporting goal, however often it is tried."""


@dataclasses.dataclass(frozen=True)
class Dropouts:
  """A share of clients, by chance, that are asked and do not report.

  Whether one does is decided by seed, round, attempt and client alone, and so by no
  data: a client that is removed changes it for nobody else.

  Attributes:
    rate: Probability that a client does not report, at least 0 and below 1.
    seed: Same seed, same drop-outs.

  Raises:
    TypeError: If `seed` is no whole number, or `rate` no number.
    ValueError: If a number is out of range.

  Example:
    >>> drop = Dropouts(rate=0.25, seed=1)
    >>> drop.reporting(0, 0, np.arange(8)).tolist()
    [0, 3, 4, 5, 6, 7]
  """

  rate: float
  seed: int

  def __post_init__(self) -> None:
    checks.check_number('rate', self.rate)
    if not 0 <= self.rate < 1:
      raise ValueError(f'rate must be at least 0 and below 1; got {self.rate}.')
    object.__setattr__(self, 'rate', float(self.rate))
    object.__setattr__(self, 'seed', check_seed(self.seed))

  def reporting(
    self,
    round_num: int,
    attempt: int,
    cohort: np.ndarray,
    keys: Optional[np.ndarray] = None,
  ) -> np.ndarray:
    """Those of a cohort that report, in the same order."""
    known = cohort if keys is None else keys
    purpose = f'drop-outs of attempt {int(attempt)}'
    hashed = draws.of_step(self.seed, round_num, known, purpose)
    return cohort[draws.uniform(hashed) >= self.rate]


def check_seed(seed: int, name: str = 'seed') -> int:
  """Returns a seed: a whole number from 0 that fits into 128 bits."""
  seed = checks.check_int(name, seed, at_least=0)
  if seed >= 2**128:
    raise ValueError(f'{name} must be below 2^128; got {seed}.')
  return seed


def check_dropouts(dropouts: Optional[Dropouts]) -> None:
  """Checks that drop-outs are that."""
  if dropouts is not None and not isinstance(dropouts, Dropouts):
    raise TypeError(
      f'dropouts must be a Dropouts(rate, seed) or None; got {dropouts!r}.'
    )


def check_reporting_goal(
  reporting_goal: Optional[int], clients_per_round: int
) -> Optional[int]:
  """Returns a goal that a cohort can reach if nobody drops out."""
  if reporting_goal is None:
    return None
  goal = checks.check_positive_int('reporting_goal', reporting_goal)
  if goal > clients_per_round:
    raise ValueError(
      f'reporting_goal must be at most clients_per_round={clients_per_round}, for no '
      f'more are asked; got {goal}.'
    )
  return goal


def requested(
  round_num: int,
  draw: Callable[[int], np.ndarray],
  dropouts: Optional[Dropouts],
  reporting_goal: Optional[int],
) -> list[np.ndarray]:
  """Cohorts that are asked, attempt by attempt, until enough of one report."""
  if dropouts is None or reporting_goal is None:
    return [draw(0)]
  cohorts: list[np.ndarray] = []
  most = 0
  for attempt in range(MAX_ATTEMPTS):
    cohorts.append(draw(attempt))
    reporting = len(dropouts.reporting(round_num, attempt, cohorts[-1]))
    if reporting >= reporting_goal:
      return cohorts
    most = max(most, reporting)
  size, share = len(cohorts[-1]), 1 - dropouts.rate
  enough = (reporting_goal + 3 * math.sqrt(reporting_goal * dropouts.rate)) / share
  raise ReportingGoalError(
    f'round {round_num} would not reach reporting_goal={reporting_goal} in '
    f'{MAX_ATTEMPTS} attempts: of {size} clients asked, at most {most} report. With '
    f'a drop-out rate of {dropouts.rate:g}, a reporting_goal of at most '
    f'{max(1, math.floor(size * share))} would do, or clients_per_round of at least '
    f'{math.ceil(enough)}.'
  )
