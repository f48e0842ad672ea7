"""The search for scales of columns, a few for each epoch, together with the columns.

With epochs of `min_separation` rounds, a client is in one round of each at most.

**Columns of one client that do not overlap**: its squared sensitivity is the sum of the
squared norms of its columns, and `column_norms` says which norms keep to it. A scale is
such a norm over that of the first column that has it, which is the longest: those of
the last rounds are cut short.

**Columns that overlap**: a client's p-th round is in epoch p or a later one; so with
scales that fall, the worst that it can do in the first k epochs is the worst of all
(`toeplitz_sensitivity`), k the most rounds of a client. From the k-th epoch on, scales
may as well be equal: a smaller one would add noise and lower no sensitivity. So what is
free is k - 1 ratios; squares of the numbers that are searched are the steps down of
their logarithms.

What is minimised is the error times the squared sensitivity, which no common factor
changes.
"""

import dataclasses
from typing import Any, Callable, NamedTuple, Optional, Union

import numpy as np

from tff_dp_aggregators.strategies import participation as participation_lib
from tff_dp_aggregators.strategies import strategy as strategy_lib
from tff_dp_aggregators.strategies.numerics import column_norms
from tff_dp_aggregators.strategies.numerics import descent
from tff_dp_aggregators.strategies.numerics import gram
from tff_dp_aggregators.strategies.numerics import power_series
from tff_dp_aggregators.strategies.numerics import progress as progress_lib
from tff_dp_aggregators.strategies.numerics import scaled_errors

# So many scales that fall, at most: with more epochs, one is that of several.
MAX_SCALES = 32
# Where a search begins: a step down of the logarithms.
_FIRST_STEP = 0.05
# Where it ends, relative to the squared error.
_TOLERANCES = {'mean': 1e-8, 'max': 1e-4}


class Series:
  """The unscaled strategy that some parameters make.

  Attributes:
    column: First column of C before its columns are scaled, as far as it is not 0.
    noise: First column of its inverse, shape [n].
    pull_back: Makes of derivatives by the two the gradient by the parameters.
  """

  def __init__(
    self,
    column: np.ndarray,
    noise: np.ndarray,
    pull_back: Callable[[np.ndarray, np.ndarray], np.ndarray],
  ):
    self.column = column
    self.noise = noise
    self.pull_back = pull_back

  def fixed(self) -> 'Series':
    """The same, with no parameters left."""
    return Series(self.column, self.noise, lambda by_column, by_noise: np.zeros(0))


# None outside of the domain.
Family = Callable[[np.ndarray], Optional[Series]]


class Chosen(NamedTuple):
  """The scales of a strategy.

  Attributes:
    scales: Shaped as `starts`.
    squared_sensitivity: Of the strategy with these scales.
    pull_back: Makes of derivatives by the two the gradients by what is searched and by
      the first column of C.
  """

  scales: np.ndarray
  squared_sensitivity: float
  pull_back: Callable[[np.ndarray, float], tuple[np.ndarray, np.ndarray]]


class Disjoint:
  """Scales for columns of one client that do not overlap.

  Attributes:
    starts: In which rounds another scale begins, in rising order from 0.
    start: Where to begin a search.
  """

  def __init__(self, participation: participation_lib.Participation):
    self._norms = column_norms.ColumnNorms(participation)
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
  """Scales for columns that overlap, one for each epoch or for several of them.

  Their mean square over a client's rounds is 1. Attributes as of `Disjoint`.
  """

  def __init__(self, participation: participation_lib.Participation):
    several = -(-participation.possible_participations // MAX_SCALES)
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
      met = 2.0 * power_series.correlate(response, column, n)[self._rounds]
      by_log = scales * (by_scale + by_squared * np.bincount(self._scale_of, met))
      # Scaling all of them changes nothing.
      by_log = (by_log - by_log.sum() * self._shares * np.square(scales))[1:]
      by_searched = -2.0 * searched * np.cumsum(by_log[::-1])[::-1]
      return by_searched, by_squared * by_column

    return Chosen(scales, float(response @ response), pull_back)


Scales = Union[Disjoint, Falling]


class Found(NamedTuple):
  """A strategy that was searched.

  Attributes:
    parameters: Those of the unscaled one, shaped as where the search began.
    starts: In which rounds another scale begins.
    scales: From each of them on.
  """

  parameters: np.ndarray
  starts: list[int]
  scales: np.ndarray


@dataclasses.dataclass(frozen=True)
class EpochProblem:
  """What is asked for, checked.

  Attributes:
    participation: Who may take part when.
    objective: 'mean' or 'max'.
    workload: What the error is about.
    overlaps: Whether columns of one client overlap, so that scales must fall.
  """

  participation: participation_lib.Participation
  objective: str
  workload: gram.Checked
  overlaps: bool = False

  @property
  def num_rounds(self) -> int:
    """Rounds n."""
    return self.participation.num_rounds

  @property
  def scales(self) -> Scales:
    """What scales are to be searched."""
    if self.overlaps:
      return Falling(self.participation)
    return Disjoint(self.participation)

  def parameters(self) -> dict[str, Any]:
    """All of it, as the cache takes it."""
    return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}

  def error(self, strategy: strategy_lib.Strategy) -> float:
    """What is minimised, of a strategy."""
    return strategy.error(self.objective, self.participation, self.workload)

  def minimize(self, family: Family, start: np.ndarray, name: str) -> Found:
    """The best parameters of a strategy, and scales."""
    scales = self.scales
    minimize = getattr(descent, f'minimize_{self.objective}')
    with progress_lib.Progress(name) as progress:
      minimum = minimize(
        self._errors(family, scales),
        np.append(scales.start, start),
        _TOLERANCES[self.objective],
        progress,
      )
    searched, parameters = np.split(minimum.point, [len(scales.start)])
    series = family(parameters)
    assert series is not None  # Or it had not been evaluated.
    chosen = scales(searched, series.column)
    return Found(parameters, scales.starts, chosen.scales)

  def _errors(self, family: Family, scales: Scales) -> descent.Errors:
    squared_norms = scaled_errors.of_workload(self.workload, scales.starts)

    # Of a step that is too long.
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
  """Of the first column of C before it is scaled, as far as it is not 0."""
  noise = power_series.inverse(column, num_rounds)
  square = power_series.multiply(noise, noise, num_rounds)

  def pull_back(by_column: np.ndarray, by_noise: np.ndarray) -> np.ndarray:
    return by_column - power_series.correlate(by_noise, square, len(column))

  return Series(column, noise, pull_back)


def of_noise(bands: np.ndarray, num_rounds: int) -> Series:
  """Of the first column of the inverse of C, as far as it is not 0."""
  column = power_series.inverse(bands, num_rounds)
  square = power_series.multiply(column, column, num_rounds)
  noise = np.zeros(num_rounds)
  noise[: len(bands)] = bands

  def pull_back(by_column: np.ndarray, by_noise: np.ndarray) -> np.ndarray:
    outer = power_series.correlate(by_column, square, len(bands))
    return by_noise[: len(bands)] - outer

  return Series(column, noise, pull_back)
