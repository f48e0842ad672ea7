"""The search for Toeplitz strategies, with scales for columns of each epoch or none.

A *family* says which first columns, of T and of its inverse, some parameters make, and
how to differentiate them; C is T, or T with scaled columns. What is minimised is the
error times the squared sensitivity, which no common factor changes. That of unscaled
strategies is ||C u||^2, u the earliest, densest pattern of rounds; that it is no more
is up to the caller.

**Scales.** With epochs of `min_separation` rounds, a client is in one round of each at
most. If *columns of one client do not overlap*, `ColumnNorms` says which norms keep to
its squared sensitivity, the sum of their squares. A scale is such a norm over that of
the first column that has it, the longest: those of the last rounds are cut short.

If *columns overlap*: a client's p-th round is in epoch p or a later one; so with scales
that fall, the worst that it can do in the first k epochs is the worst of all
(`toeplitz_sensitivity`), k the most rounds of a client. From the k-th epoch on, scales
may as well be equal: a smaller one would add noise and lower no sensitivity. So what is
free is k - 1 ratios; squares of the numbers that are searched are the steps down of
their logarithms.
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

# So many scales that fall, at most: with more epochs, one is that of several.
MAX_SCALES = 32
# So many shares of one kind there are, at most: with more runs, several have one.
_MAX_SHARES = 32
# What runs have together, of 1 for the share that is spread, where a search begins.
_FIRST_SHARES = 0.2
_FIRST_STEP = 0.05  # Where a search begins: a step down of the logarithms.
# Where it ends, relative to the squared error.
_TOLERANCES = {'mean': 1e-8, 'max': 1e-4}
# The same without scales: of a smooth error, and of the largest of several.
_TOLERANCE_OF_SMOOTH, _TOLERANCE_OF_LARGEST = 1e-13, 2e-6


class Series(NamedTuple):
  """The unscaled strategy that some parameters make."""

  # First column of C before its columns are scaled, as far as it is not 0.
  column: np.ndarray
  noise: np.ndarray  # First column of its inverse, shape [n].
  # Makes of derivatives by the two the gradient by the parameters.
  pull_back: Callable[[np.ndarray, np.ndarray], np.ndarray]


Family = Callable[[np.ndarray], Optional[Series]]  # None outside of the domain.


class ColumnNorms:
  """Column norms that keep a sensitivity, whatever is searched.

  With at most as many bands as the separation b, columns of one client do not overlap,
  and its squared sensitivity is the sum of the squared norms of its rounds. Give each
  of some runs of b successive rounds a share, all of them 1 together, and let a
  column's squared norm be at most the sum of the shares of the runs that it is in. A
  client is in each run once at most; so its sum is 1 at most. And no norms that keep to
  1 are larger in any column than what shares of all runs allow, together with one that
  is spread over all columns, a k-th part each, if a client is in k rounds at most
  (duality of linear programs; `epoch_scaled.certify` has the source).

  Few of the runs matter. From rounds 0, b, 2b, ... they are epochs. If clients are done
  before the last of them, shares of the first k - 1, and the one that is spread, do it.
  Otherwise, where b does not divide n, a client can come once more in the r rounds that
  are left. Runs that begin in rounds r, r + b, ... count backwards from the end: the
  first r rounds of an epoch can be in a pattern of one round more than its others,
  which have norms of their own (`python -m benchmarks.round_scales` compares shares of
  all runs). A longer column is not always better for given other columns, since its
  round's noise takes back noise of the rounds before: those others can be shorter than
  shares allow.

  What is searched is, first, the root of each share, whose sum does not matter. Then
  comes for each norm that can be less than shares allow the root of how much more they
  allow, as a part of its square. `starts` are the rounds in which another norm begins,
  `start` is where to begin a search, at norms that are nearly the same in all epochs.
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
    # The mean square over a client's rounds is to be 1.
    self._squares = times * np.where((first <= starts) & (starts < end), part, 0.0)

  def __call__(self, searched: np.ndarray) -> np.ndarray:
    """The norms, shaped as `starts`."""
    roots, more = self._split(searched)
    return np.sqrt(self._squares @ _shares(roots) / self._more(more))

  def pull_back(self, searched: np.ndarray, by_norm: np.ndarray) -> np.ndarray:
    """The gradient by what is searched, from that by the norms."""
    roots, more = self._split(searched)
    norms = self(searched)
    by_allowed = 0.5 * by_norm / norms / self._more(more)
    by_more = -(by_norm * norms)[self._shorter] * more / (1.0 + np.square(more))
    by_share = self._squares.T @ by_allowed
    by_root = 2.0 * roots / (roots @ roots) * (by_share - _shares(roots) @ by_share)
    return np.append(by_root, by_more)

  def _split(self, searched: np.ndarray) -> list[np.ndarray]:
    return np.split(searched, [self._squares.shape[1]])

  def _more(self, more: np.ndarray) -> np.ndarray:
    """What shares allow, as a multiple of each squared norm."""
    multiple = np.ones(len(self.starts))
    multiple[self._shorter] += np.square(more)
    return multiple


class _Share(NamedTuple):
  """Rounds, and which part of a share each of their squared norms may have."""

  first: int  # The first of them.
  end: int  # The round after the last one.
  part: float


def _shares(roots: np.ndarray) -> np.ndarray:
  return np.square(roots) / (roots @ roots)


def _runs(first: int, count: int, length: int) -> list[_Share]:
  """Shares of so many runs, one after the other, or of several of them together."""
  several = -(-count // _MAX_SHARES)
  shares = []
  for number in range(0, count, several):
    together = min(several, count - number)
    begin = first + number * length
    shares.append(_Share(begin, begin + together * length, 1.0 / together))
  return shares


class Chosen(NamedTuple):
  """The scales of a strategy."""

  scales: np.ndarray  # Shaped as `starts`.
  squared_sensitivity: float  # That of the strategy with these scales.
  # Of derivatives by the two the gradients by what is searched and by C's first column.
  pull_back: Callable[[np.ndarray, float], tuple[np.ndarray, np.ndarray]]


class Disjoint:
  """Scales for columns of one client that do not overlap, by `ColumnNorms`."""

  def __init__(self, participation: Participation):
    self._norms = ColumnNorms(participation)
    self.starts, self.start = self._norms.starts, self._norms.start
    self._lengths = participation.num_rounds - np.array(self.starts)
    self._times = float(participation.possible_participations)

  def __call__(self, searched: np.ndarray, column: np.ndarray) -> Chosen:
    """The scales that give columns their norms."""
    last = np.minimum(self._lengths, len(column)) - 1
    unscaled = np.sqrt(np.cumsum(np.square(column))[last])
    scales = self._norms(searched) / unscaled

    def pull_back(by_scale: np.ndarray, _: float) -> tuple[np.ndarray, np.ndarray]:
      by_square = np.bincount(
        last, -0.5 * by_scale * scales / np.square(unscaled), len(column)
      )
      by_column = 2.0 * column * np.cumsum(by_square[::-1])[::-1]
      return self._norms.pull_back(searched, by_scale / unscaled), by_column

    return Chosen(scales, self._times, pull_back)


class Falling:
  """Scales for columns that overlap, of one or more epochs, with mean square 1."""

  def __init__(
    self,
    participation: Participation,
    max_scales: int = MAX_SCALES,
  ):
    several = -(-participation.possible_participations // max_scales)
    self._num_rounds = participation.num_rounds
    self._rounds = np.array(participation.rounds)
    self._scale_of = np.arange(len(self._rounds)) // several
    pattern = np.bincount(self._scale_of)
    self._shares = pattern / pattern.sum()
    self.starts = self._rounds[::several].tolist()
    self.start = np.full(len(pattern) - 1, np.sqrt(_FIRST_STEP))

  def __call__(self, searched: np.ndarray, column: np.ndarray) -> Chosen:
    """The scales, whatever the column, and ||C u||^2, u the densest pattern."""
    unscaled = np.exp(np.append(0.0, -np.cumsum(np.square(searched))))
    scales = unscaled / np.sqrt(self._shares @ np.square(unscaled))
    n = self._num_rounds
    pattern = np.zeros(n)
    pattern[self._rounds] = scales[self._scale_of]
    response = power_series.multiply(column, pattern, n)

    def pull_back(
      by_scale: np.ndarray, by_squared: float
    ) -> tuple[np.ndarray, np.ndarray]:
      by_column = 2.0 * power_series.correlate(response, pattern, len(column))
      if not searched.size:
        return searched, by_squared * by_column
      met = 2.0 * power_series.correlate(response, column, n)[self._rounds]
      by_log = scales * (by_scale + by_squared * np.bincount(self._scale_of, met))
      # Scaling all of them changes nothing.
      by_log = (by_log - by_log.sum() * self._shares * np.square(scales))[1:]
      by_searched = -2.0 * searched * np.cumsum(by_log[::-1])[::-1]
      return by_searched, by_squared * by_column

    return Chosen(scales, float(response @ response), pull_back)


Scales = Union[Disjoint, Falling]


class Found(NamedTuple):
  """A strategy that was searched."""

  parameters: np.ndarray  # Those of the unscaled one, shaped as where the search began.
  starts: list[int]  # In which rounds another scale begins.
  scales: np.ndarray  # From each of them on.
  weights: np.ndarray  # Weights of the errors, whose weighted sum is the least as well.


@dataclasses.dataclass(frozen=True)
class SeriesProblem(strategy_lib.Problem):
  """What is asked for, of a Toeplitz strategy."""

  # 'none', 'disjoint' if columns of one client do not overlap, or 'falling' if they do.
  scaling: str = 'none'

  @property
  def separation(self) -> int:
    """Smallest difference of two rounds of one client; n if there is only one."""
    if self.participation.possible_participations == 1:
      return self.num_rounds
    return self.participation.min_separation

  @property
  def scales(self) -> Scales:
    """What scales are to be searched."""
    if self.scaling == 'disjoint':
      return Disjoint(self.participation)
    return Falling(self.participation, 1 if self.scaling == 'none' else MAX_SCALES)

  def minimize(
    self,
    family: Family,
    start: np.ndarray,
    report: descent.Report,
    descend: Optional[descent.Descend] = None,
  ) -> Found:
    """The best parameters of a strategy, and scales."""
    scales = self.scales
    weights, tolerance = None, _TOLERANCES[self.objective]
    is_smooth = self.objective == 'mean'
    if self.scaling == 'none':
      if not is_smooth and is_toeplitz(self.workload):
        # The last row is the longest.
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
    searched, parameters = np.split(minimum.point, [len(scales.start)])
    series = family(parameters)
    assert series is not None  # Or it had not been evaluated.
    chosen = scales(searched, series.column)
    return Found(parameters, scales.starts, chosen.scales, minimum.weights)

  def errors(self, family: Family) -> descent.Errors:
    """Squared errors times squared sensitivity, by scales and parameters."""
    scales = self.scales
    squared_norms = scaled_errors.of_workload(self.workload, scales.starts)

    # A step that is too long overflows.
    @np.errstate(over='ignore', invalid='ignore', divide='ignore')
    def errors(point: np.ndarray) -> Optional[descent.Evaluated]:
      searched, parameters = np.split(point, [len(scales.start)])
      series = family(parameters)
      if series is None:
        return None
      own, cost, pull_back_chosen = scales(searched, series.column)
      values, pull_back_values = squared_norms(series.noise, 1.0 / own)
      if not (np.all(np.isfinite(values)) and np.isfinite(cost)):
        return None

      @np.errstate(over='ignore', invalid='ignore', divide='ignore')
      def pull_back(weights: np.ndarray) -> np.ndarray:
        by_noise, by_factor = pull_back_values(weights)
        by_searched, by_column = pull_back_chosen(
          -cost * by_factor / np.square(own), weights @ values
        )
        by_parameter = series.pull_back(by_column, cost * by_noise)
        return np.append(by_searched, by_parameter)

      return cost * values, pull_back

    return errors


def of_column(column: np.ndarray, num_rounds: int) -> Series:
  """The series of the first column of T, as far as that is not 0."""
  noise = power_series.inverse(column, num_rounds)
  square = power_series.multiply(noise, noise, num_rounds)

  def pull_back(by_column: np.ndarray, by_noise: np.ndarray) -> np.ndarray:
    return by_column - power_series.correlate(by_noise, square, len(column))

  return Series(column, noise, pull_back)


def of_noise(bands: np.ndarray, num_rounds: int) -> Series:
  """The series of the first column of T^-1, as far as that is not 0."""
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
  """The problem that the arguments of an optimiser of so many bands pose."""
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
  """Refuses workloads that take matrices over more rounds than can be optimised."""
  if num_rounds > participation_lib.MAX_BANDS and not is_toeplitz(workload):
    raise ValueError(
      'a workload that is an array, or whose learning rate changes, can be optimised '
      f'for at most {participation_lib.MAX_BANDS} rounds, got {num_rounds}.'
    )
