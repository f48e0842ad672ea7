"""The search for Toeplitz strategies, optionally with scales for columns of each epoch.

A *family* maps parameters to the first columns of T and of its inverse, and has the
derivatives; C is T, or T with scaled columns. The objective is the error times the
squared sensitivity, which does not depend on a common factor. For unscaled strategies
the latter is taken to be ||C u||^2, u the earliest, densest pattern of rounds; the
caller ensures that it is no larger.

**Scales.** In epochs of `min_separation` rounds, a client is in at most one round of
each. If *columns of one client do not overlap*, the squared sensitivity is the sum of
their squared norms, and `ColumnNorms` parametrises the norms that keep it constant. A
scale is such a norm divided by the norm of the first unscaled column that has the
scale. That is the longest one: columns of the last rounds are cut off.

If *columns overlap*: a client's p-th round is in epoch p or a later one, so with scales
that decrease, the worst pattern of the first k epochs is the worst of all
(`toeplitz_sensitivity`), where k is the maximum number of rounds of a client. From the
k-th epoch on, scales are equal: a smaller one would add noise without lowering the
sensitivity. This leaves k - 1 ratios, whose logarithms are minus squared variables.
"""

import dataclasses
from typing import Callable, NamedTuple, Optional, Union

import numpy as np

from tff_dp_aggregators.base import checks
from tff_dp_aggregators.strategies import participation as participation_lib
from tff_dp_aggregators.strategies import strategy as strategy_lib
from tff_dp_aggregators.strategies import workload as workload_lib
from tff_dp_aggregators.strategies.numerics import descent
from tff_dp_aggregators.strategies.numerics import power_series
from tff_dp_aggregators.strategies.numerics import scaled_errors
from tff_dp_aggregators.strategies.participation import Participation

# Maximum number of decreasing scales; with more epochs, successive ones share a scale.
MAX_SCALES = 32
# Maximum number of shares of one kind; with more runs, successive ones have one share.
_MAX_SHARES = 32
_FIRST_SHARES = 0.2  # Shares of all runs at the start, relative to that of all columns.
_FIRST_STEP = 0.05  # The decrease of the logarithms of scales at the start.
# Tolerances of the search, relative to the squared error.
_TOLERANCES = {'mean': 1e-8, 'max': 1e-4}
# The same without scales: for a smooth error, and for the maximum of several.
_TOLERANCE_OF_SMOOTH, _TOLERANCE_OF_LARGEST = 1e-13, 2e-6


class Series(NamedTuple):
  """An unscaled Toeplitz strategy as a function of parameters."""

  column: np.ndarray  # First column of C before scaling, up to its last non-zero entry.
  noise: np.ndarray  # First column of its inverse, shape [n].
  # From the gradients by `column` and by `noise` to the gradient by the parameters.
  pull_back: Callable[[np.ndarray, np.ndarray], np.ndarray]


# From parameters to a series; `None` outside of the domain.
Family = Callable[[np.ndarray], Optional[Series]]


class ColumnNorms:
  """Column norms with a constant sensitivity, as a function of free variables.

  With at most as many bands as the separation b, columns of one client do not overlap,
  and its squared sensitivity is the sum of the squared norms of its rounds. Give each
  of some runs of b successive rounds a share, with sum 1, and let a column's squared
  norm be at most the sum of the shares of the runs that contain it. A client is in each
  run at most once, so its sum is at most 1. Conversely, any norms with sums of at most
  1 are within what shares of all runs allow, together with one share of all columns, of
  which each column has 1 / k, if a client is in at most k rounds (duality of linear
  programs; see `epoch_scaled.certify` for the source).

  Few of the runs matter. Those that begin in rounds 0, b, 2b, ... are epochs. If
  clients have all their rounds before the last epoch, shares of the first k - 1 epochs
  and the share of all columns suffice. Otherwise, if b does not divide n, a client can
  come once more in the remaining r rounds. Runs that begin in rounds r, r + b, ... are
  counted backwards from the end: the first r rounds of an epoch can be in a pattern
  with one round more than the other rounds of the epoch, which have separate norms
  (`python -m benchmarks.round_scales` compares shares of all runs). A longer column is
  not always better for given other columns, since its round's noise cancels noise of
  the rounds before. So these other norms may be smaller than shares allow.

  The variables are, first, the square root of each share, up to a common factor. Then,
  for each squared norm s that may be less than the a that shares allow, the square root
  of (a - s) / s. `starts` are the rounds in which another norm begins; `start` are
  variables to begin a search, with nearly equal norms in all epochs.
  """

  def __init__(self, participation: Participation):
    n, separation = participation.num_rounds, participation.min_separation
    times = participation.possible_participations
    epochs, left = divmod(n, separation)
    shorter: list[int] = []
    if times < participation.possible_by_separation:
      shares = [_Share(0, n, 1.0 / times), *_runs(0, times - 1, separation)]
      roots = np.full(len(shares), np.sqrt(_FIRST_SHARES / (len(shares) - 1)))
      roots[0] = 1.0
    elif left:
      forwards, backwards = (_runs(i, epochs, separation) for i in (0, left))
      shares = forwards + backwards
      shorter = [share.first for share in backwards]
      rising = np.arange(1.0, len(backwards) + 1.0)
      roots = np.sqrt(np.append(rising[::-1], rising))
    else:
      shares = _runs(0, epochs, separation)
      roots = np.ones(len(shares))
    firsts_and_ends = {round_ for share in shares for round_ in share[:2]}
    self.starts = sorted(firsts_and_ends - {n})
    self._shorter = np.searchsorted(self.starts, shorter)
    self.start = np.append(roots, np.full(len(shorter), epochs**-0.5))
    first, end, part = np.array(shares).T
    starts = np.array(self.starts)[:, np.newaxis]
    # The factor makes the mean square over a client's rounds 1.
    self._squares = times * np.where((first <= starts) & (starts < end), part, 0.0)

  def __call__(self, variables: np.ndarray) -> np.ndarray:
    """The norms, one for each of `starts`."""
    roots, excess = self._split(variables)
    return np.sqrt(self._squares @ _shares(roots) / self._multiples(excess))

  def pull_back(self, variables: np.ndarray, by_norm: np.ndarray) -> np.ndarray:
    """The gradient by the variables, from the gradient by the norms."""
    roots, excess = self._split(variables)
    norms = self(variables)
    by_allowed = 0.5 * by_norm / norms / self._multiples(excess)
    by_excess = -(by_norm * norms)[self._shorter] * excess / (1.0 + np.square(excess))
    by_share = self._squares.T @ by_allowed
    by_root = 2.0 * roots / (roots @ roots) * (by_share - _shares(roots) @ by_share)
    return np.append(by_root, by_excess)

  def _split(self, variables: np.ndarray) -> list[np.ndarray]:
    return np.split(variables, [self._squares.shape[1]])

  def _multiples(self, excess: np.ndarray) -> np.ndarray:
    """What shares allow, as a multiple of each squared norm."""
    multiple = np.ones(len(self.starts))
    multiple[self._shorter] += np.square(excess)
    return multiple


class _Share(NamedTuple):
  """Successive rounds, and the fraction of a share that each squared norm may have."""

  first: int  # The first round.
  end: int  # The round after the last one.
  part: float


def _shares(roots: np.ndarray) -> np.ndarray:
  return np.square(roots) / (roots @ roots)


def _runs(first: int, count: int, length: int) -> list[_Share]:
  """Shares of `count` successive runs; with many runs, several have one together."""
  group_size = -(-count // _MAX_SHARES)
  shares = []
  for number in range(0, count, group_size):
    num_runs = min(group_size, count - number)
    begin = first + number * length
    shares.append(_Share(begin, begin + num_runs * length, 1.0 / num_runs))
  return shares


class EvaluatedScales(NamedTuple):
  """The scales of a strategy, and the sensitivity with these scales."""

  scales: np.ndarray  # One for each of `starts`.
  squared_sensitivity: float
  # From the gradients by these two to those by the variables and by C's first column.
  pull_back: Callable[[np.ndarray, float], tuple[np.ndarray, np.ndarray]]


class DisjointScales:
  """Scales if columns of one client do not overlap; the variables of `ColumnNorms`."""

  def __init__(self, participation: Participation):
    self._norms = ColumnNorms(participation)
    self.starts, self.start = self._norms.starts, self._norms.start
    self._lengths = participation.num_rounds - np.array(self.starts)
    self._times = float(participation.possible_participations)

  def __call__(self, variables: np.ndarray, column: np.ndarray) -> EvaluatedScales:
    """The scales with which columns have the norms of `ColumnNorms`."""
    last = np.minimum(self._lengths, len(column)) - 1
    unscaled = np.sqrt(np.cumsum(np.square(column))[last])
    scales = self._norms(variables) / unscaled

    def pull_back(by_scale: np.ndarray, _: float) -> tuple[np.ndarray, np.ndarray]:
      by_square = np.bincount(
        last, -0.5 * by_scale * scales / np.square(unscaled), len(column)
      )
      by_column = 2.0 * column * np.cumsum(by_square[::-1])[::-1]
      return self._norms.pull_back(variables, by_scale / unscaled), by_column

    return EvaluatedScales(scales, self._times, pull_back)


class FallingScales:
  """Decreasing scales, each of one or more epochs, with mean square 1."""

  def __init__(
    self,
    participation: Participation,
    max_scales: int = MAX_SCALES,
  ):
    group_size = -(-participation.possible_participations // max_scales)
    self._num_rounds = participation.num_rounds
    self._rounds = np.array(participation.rounds)
    self._scale_of = np.arange(len(self._rounds)) // group_size
    pattern = np.bincount(self._scale_of)
    self._shares = pattern / pattern.sum()
    self.starts = self._rounds[::group_size].tolist()
    self.start = np.full(len(pattern) - 1, np.sqrt(_FIRST_STEP))

  def __call__(self, variables: np.ndarray, column: np.ndarray) -> EvaluatedScales:
    """The scales, which do not depend on `column`, and ||C u||^2, u the pattern."""
    unscaled = np.exp(np.append(0.0, -np.cumsum(np.square(variables))))
    scales = unscaled / np.sqrt(self._shares @ np.square(unscaled))
    n = self._num_rounds
    pattern = np.zeros(n)
    pattern[self._rounds] = scales[self._scale_of]
    response = power_series.multiply(column, pattern, n)

    def pull_back(
      by_scale: np.ndarray, by_squared: float
    ) -> tuple[np.ndarray, np.ndarray]:
      by_column = 2.0 * power_series.correlate(response, pattern, len(column))
      if not variables.size:
        return variables, by_squared * by_column
      by_u = 2.0 * power_series.correlate(response, column, n)[self._rounds]
      by_log = scales * (by_scale + by_squared * np.bincount(self._scale_of, by_u))
      # A common factor of all scales has no effect.
      by_log = (by_log - by_log.sum() * self._shares * np.square(scales))[1:]
      by_variables = -2.0 * variables * np.cumsum(by_log[::-1])[::-1]
      return by_variables, by_squared * by_column

    return EvaluatedScales(scales, float(response @ response), pull_back)


Scales = Union[DisjointScales, FallingScales]


class Optimum(NamedTuple):
  """The result of a search."""

  parameters: np.ndarray  # Parameters of the family, in the shape of the start.
  starts: list[int]  # The first round of each scale.
  scales: np.ndarray  # One for each of `starts`.
  weights: np.ndarray  # Weights of errors whose weighted sum is also the least.


@dataclasses.dataclass(frozen=True)
class SeriesProblem(strategy_lib.Problem):
  """The problem of finding the best Toeplitz strategy."""

  # 'none', 'disjoint' if columns of one client do not overlap, or 'falling' if they do.
  scaling: str = 'none'

  @property
  def separation(self) -> int:
    """Smallest difference of two rounds of one client; n for a single participation."""
    if self.participation.possible_participations == 1:
      return self.num_rounds
    return self.participation.min_separation

  @property
  def scales(self) -> Scales:
    """The scales to be searched; a single one if `scaling` is 'none'."""
    if self.scaling == 'disjoint':
      return DisjointScales(self.participation)
    return FallingScales(
      self.participation, 1 if self.scaling == 'none' else MAX_SCALES
    )

  def minimize(
    self,
    family: Family,
    start: np.ndarray,
    report: descent.Report,
    descend: Optional[descent.Descend] = None,
  ) -> Optimum:
    """Returns the best parameters of a family, and the best scales."""
    scales = self.scales
    weights, tolerance = None, _TOLERANCES[self.objective]
    is_smooth = self.objective == 'mean'
    if self.scaling == 'none':
      if not is_smooth and is_toeplitz(self.workload):
        # The last row has the largest norm.
        weights = np.eye(1, self.num_rounds, self.num_rounds - 1)[0]
        is_smooth = True
      tolerance = _TOLERANCE_OF_SMOOTH if is_smooth else _TOLERANCE_OF_LARGEST
    minimize = descent.minimize_mean if is_smooth else descent.minimize_max
    minimum = minimize(
      self.errors(family),
      np.append(scales.start, start),
      tolerance,
      report,
      weights,
      descend,
    )
    variables, parameters = np.split(minimum.point, [len(scales.start)])
    series = family(parameters)
    assert series is not None  # The minimum is in the domain.
    evaluated = scales(variables, series.column)
    return Optimum(parameters, scales.starts, evaluated.scales, minimum.weights)

  def errors(self, family: Family) -> descent.Errors:
    """Squared errors times squared sensitivity, as functions of all variables."""
    scales = self.scales
    squared_norms = scaled_errors.workload_errors(self.workload, scales.starts)

    # A step that is too long overflows.
    @np.errstate(over='ignore', invalid='ignore', divide='ignore')
    def errors(point: np.ndarray) -> Optional[descent.Evaluated]:
      variables, parameters = np.split(point, [len(scales.start)])
      series = family(parameters)
      if series is None:
        return None
      factors, cost, pull_back_scales = scales(variables, series.column)
      values, pull_back_values = squared_norms(series.noise, 1.0 / factors)
      if not (np.all(np.isfinite(values)) and np.isfinite(cost)):
        return None

      @np.errstate(over='ignore', invalid='ignore', divide='ignore')
      def pull_back(weights: np.ndarray) -> np.ndarray:
        by_noise, by_factor = pull_back_values(weights)
        by_variables, by_column = pull_back_scales(
          -cost * by_factor / np.square(factors), weights @ values
        )
        by_parameter = series.pull_back(by_column, cost * by_noise)
        return np.append(by_variables, by_parameter)

      return cost * values, pull_back

    return errors


def series_from_column(column: np.ndarray, num_rounds: int) -> Series:
  """The series whose parameters are the first column of T, up to its last non-zero."""
  noise = power_series.inverse(column, num_rounds)
  square = power_series.multiply(noise, noise, num_rounds)

  def pull_back(by_column: np.ndarray, by_noise: np.ndarray) -> np.ndarray:
    return by_column - power_series.correlate(by_noise, square, len(column))

  return Series(column, noise, pull_back)


def series_from_inverse(bands: np.ndarray, num_rounds: int) -> Series:
  """The series whose parameters are the first column of T^-1, up to its last band."""
  column = power_series.inverse(bands, num_rounds)
  square = power_series.multiply(column, column, num_rounds)
  noise = np.zeros(num_rounds)
  noise[: len(bands)] = bands

  def pull_back(by_column: np.ndarray, by_noise: np.ndarray) -> np.ndarray:
    outer = power_series.correlate(by_column, square, len(bands))
    return by_noise[: len(bands)] - outer

  return Series(column, noise, pull_back)


def is_toeplitz(workload: workload_lib.Checked) -> bool:
  """Whether a workload is known to be constant along diagonals."""
  return isinstance(workload, workload_lib.Workload) and workload.is_toeplitz


def check(
  num_rounds: int,
  num_bands: int,
  objective: str,
  participation: Optional[Participation],
  workload: workload_lib.WorkloadLike,
) -> SeriesProblem:
  """Checks the arguments of an optimiser of strategies with `num_bands` bands."""
  problem = SeriesProblem.check(num_rounds, objective, participation, workload)
  num_bands = checks.check_positive_int('num_bands', num_bands)
  if num_bands > min(num_rounds, participation_lib.MAX_BANDS):
    raise ValueError(
      f'num_bands must be at most num_rounds={num_rounds}, and at most '
      f'{participation_lib.MAX_BANDS} to be optimised, got {num_bands}.'
    )
  check_size(problem.workload, num_rounds)
  return problem


def check_size(workload: workload_lib.Checked, num_rounds: int) -> None:
  """Raises ValueError if a workload needs n x n matrices of too many rounds."""
  if num_rounds > participation_lib.MAX_BANDS and not is_toeplitz(workload):
    raise ValueError(
      'a workload that is an array, or whose learning rate changes, can be optimised '
      f'for at most {participation_lib.MAX_BANDS} rounds, got {num_rounds}.'
    )
