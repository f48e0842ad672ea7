"""The search for scales of columns, one for each epoch, together with the columns.

Three facts make the problem small. With epochs of `min_separation` rounds, a client is
in one round of each at most, and its p-th round is in epoch p or a later one; so with
scales that fall, the worst that it can do in the first k epochs is the worst of all
(`toeplitz_sensitivity`). From the k-th epoch on, k the most rounds of a client, scales
may as well be equal: a smaller one would add noise and lower no sensitivity. And both
error and squared sensitivity are smooth in the logarithms of scales.

So what is free is k - 1 ratios. Where scales must fall, squares of the numbers that are
searched are the steps down of their logarithms. They need not fall if a client can be
in every epoch and its columns do not overlap: a squared sensitivity is a sum over all
epochs then, and largest for the first round of each, whatever the scales; what is
searched are the logarithms themselves. For the mean error scales fall all the same, for
the largest error often not.

What is minimised is the error times the squared sensitivity, which no common factor
changes.
"""

import dataclasses
from typing import Any, Callable, Optional

import numpy as np

from tff_dp_aggregators.strategies import participation as participation_lib
from tff_dp_aggregators.strategies import strategy as strategy_lib
from tff_dp_aggregators.strategies.numerics import descent
from tff_dp_aggregators.strategies.numerics import gram
from tff_dp_aggregators.strategies.numerics import power_series
from tff_dp_aggregators.strategies.numerics import progress as progress_lib
from tff_dp_aggregators.strategies.numerics import scaled_errors

# So many scales, at most: with more epochs, one is that of several.
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


@dataclasses.dataclass(frozen=True)
class Epochs:
  """How rounds are divided into epochs with a scale of their own.

  Attributes:
    participation: Who may take part when.
  """

  participation: participation_lib.Participation

  @property
  def rounds(self) -> int:
    """Rounds that have one scale: `min_separation`, or a multiple if many would."""
    separation = self.participation.min_separation
    return separation * -(-self.participation.possible_participations // MAX_SCALES)

  @property
  def count(self) -> int:
    """How many scales there are; the last one is that of all later rounds."""
    return 1 + self.participation.rounds[-1] // self.rounds

  @property
  def starts(self) -> list[int]:
    """In which rounds they begin."""
    return [number * self.rounds for number in range(self.count)]

  @property
  def of_pattern(self) -> np.ndarray:
    """The numbers of the scales of a client's rounds, in the worst case."""
    return np.array(self.participation.rounds) // self.rounds


class Scales:
  """Scales as a function of what is searched, with a mean square of 1.

  The mean is over the rounds of a client in the worst case, so that the squared
  sensitivity of unit columns that do not overlap is their number.

  Args:
    epochs: How rounds are divided.
    must_fall: Whether no scale may be above the one before.
  """

  def __init__(self, epochs: Epochs, must_fall: bool):
    pattern = np.bincount(epochs.of_pattern)
    self._shares = pattern / pattern.sum()
    self._must_fall = must_fall

  @property
  def start(self) -> np.ndarray:
    """Where to begin a search, shape [epochs - 1]."""
    steps = np.full(len(self._shares) - 1, _FIRST_STEP)
    return np.sqrt(steps) if self._must_fall else -np.cumsum(steps)

  def __call__(self, searched: np.ndarray) -> np.ndarray:
    """The scales, shape [epochs], from shape [epochs - 1]."""
    logarithms = -np.cumsum(np.square(searched)) if self._must_fall else searched
    unscaled = np.exp(np.append(0.0, logarithms))
    return unscaled / np.sqrt(self._shares @ np.square(unscaled))

  def pull_back(self, searched: np.ndarray, by_scale: np.ndarray) -> np.ndarray:
    """The gradient by what is searched, from that by the scales."""
    scales = self(searched)
    by_log = by_scale * scales
    # Scaling all of them changes nothing.
    by_log = (by_log - by_log.sum() * self._shares * np.square(scales))[1:]
    if not self._must_fall:
      return by_log
    return -2.0 * searched * np.cumsum(by_log[::-1])[::-1]


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
  def epochs(self) -> Epochs:
    """How rounds are divided."""
    return Epochs(self.participation)

  @property
  def scales(self) -> Scales:
    """What scales are to be searched."""
    limits = self.participation
    in_every_epoch = limits.possible_participations == limits.possible_by_separation
    return Scales(self.epochs, self.overlaps or not in_every_epoch)

  def parameters(self) -> dict[str, Any]:
    """All of it, as the cache takes it."""
    return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}

  def error(self, strategy: strategy_lib.Strategy) -> float:
    """What is minimised, of a strategy."""
    measure = strategy.rmse if self.objective == 'mean' else strategy.max_error
    return measure(self.participation, self.workload)

  def minimize(
    self, family: Family, start: np.ndarray, name: str
  ) -> tuple[np.ndarray, np.ndarray]:
    """The best parameters of a strategy, and scales.

    Args:
      family: What parameters make.
      start: Where to begin.
      name: What it is called where progress is shown.

    Returns:
      The parameters, shaped as `start`, and a scale for each of `Epochs`.
    """
    epochs = self.epochs
    scales = self.scales
    errors = self._errors(family, epochs, scales)
    minimize = getattr(descent, f'minimize_{self.objective}')
    with progress_lib.Progress(name) as progress:
      minimum = minimize(
        errors,
        np.append(scales.start, start),
        _TOLERANCES[self.objective],
        progress,
      )
    searched, parameters = np.split(minimum.point, [epochs.count - 1])
    return parameters, scales(searched)

  def _errors(self, family: Family, epochs: Epochs, scales: Scales) -> descent.Errors:
    squared_norms = scaled_errors.of_workload(self.workload, epochs.starts)

    def errors(point: np.ndarray) -> Optional[descent.Evaluated]:
      searched, parameters = np.split(point, [epochs.count - 1])
      series = family(parameters)
      if series is None:
        return None
      own = scales(searched)
      with np.errstate(over='ignore', invalid='ignore'):  # Of a step that is too long.
        values, pull_back_values = squared_norms(series.noise, 1.0 / own)
        cost, by_column, cost_by_scale = self._sensitivity(series.column, own, epochs)
      if not (np.all(np.isfinite(values)) and np.isfinite(cost)):
        return None

      def pull_back(weights: np.ndarray) -> np.ndarray:
        error = weights @ values
        by_noise, by_factor = pull_back_values(weights)
        by_scale = error * cost_by_scale - cost * by_factor / np.square(own)
        by_parameter = series.pull_back(error * by_column, cost * by_noise)
        return np.append(scales.pull_back(searched, by_scale), by_parameter)

      return cost * values, pull_back

    return errors

  def _sensitivity(
    self, column: np.ndarray, scales: np.ndarray, epochs: Epochs
  ) -> tuple[float, np.ndarray, np.ndarray]:
    """||C u||^2, u the earliest, densest pattern, and its derivatives."""
    n, rounds = self.num_rounds, list(self.participation.rounds)
    pattern = np.zeros(n)
    pattern[rounds] = scales[epochs.of_pattern]
    response = power_series.multiply(column, pattern, n)
    by_column = 2.0 * power_series.correlate(response, pattern, len(column))
    met = 2.0 * power_series.correlate(response, column, n)[rounds]
    by_scale = np.bincount(epochs.of_pattern, met)
    return float(response @ response), by_column, by_scale


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
