"""Toeplitz strategies: lower-triangular, constant along diagonals.

`Identity` (one band, the Gaussian sum) and `BandedToeplitz`, with any coefficients or
those of the square root of the prefix-sum matrix, in closed form. Nothing here
optimises coefficients.
"""

import dataclasses
from typing import Optional

import numpy as np
import scipy.linalg

from tff_dp_aggregators.strategies import participation as participation_lib
from tff_dp_aggregators.strategies import strategy as strategy_lib


def square_root_coefficients(num_coefficients: int) -> np.ndarray:
  """First column of the square root of the infinite prefix-sum matrix.

  The coefficients of (1 - x)^(-1/2): 1, 1/2, 3/8, ..., each
  `(2 i - 1) / (2 i)` times the one before (Fichtenberger, Henzinger and Upadhyay,
  arXiv:2202.11205, "Constant matters"; Toeplitz form in arXiv:2306.08153).

  Args:
    num_coefficients: How many to return.

  Returns:
    A positive, decreasing float64 array of shape [num_coefficients].

  Example:
    >>> square_root_coefficients(4).tolist()
    [1.0, 0.5, 0.375, 0.3125]
  """
  i = np.arange(
    1, participation_lib.check_positive_int('num_coefficients', num_coefficients)
  )
  return np.concatenate([[1.0], np.cumprod((2 * i - 1) / (2 * i))])


@dataclasses.dataclass(frozen=True)
class BandedToeplitz(strategy_lib.Strategy):
  """C[i, j] = coefficients[i - j] for 0 <= i - j < num_bands, else 0.

  Attributes:
    num_rounds: Rounds n; `C` is n x n.
    coefficients: First column of `C` down to its last non-zero entry, `num_bands`
      numbers, the first of them positive.

  Raises:
    ValueError: If there are no coefficients, more than `num_rounds`, one is not
      finite, or the first is not positive.
  """

  coefficients: tuple[float, ...]
  kind = 'banded_toeplitz'

  def __post_init__(self) -> None:
    super().__post_init__()
    try:
      coefficients = tuple(float(c) for c in self.coefficients)
    except (TypeError, ValueError) as e:
      raise TypeError(
        f'coefficients must be a sequence of numbers, got {self.coefficients!r}.'
      ) from e
    object.__setattr__(self, 'coefficients', coefficients)
    if not 1 <= len(coefficients) <= self.num_rounds:
      raise ValueError(
        f'coefficients must be 1 to num_rounds={self.num_rounds} numbers, got '
        f'{len(coefficients)}.'
      )
    if not np.all(np.isfinite(coefficients)):
      raise ValueError('coefficients must be finite; one is NaN or infinite.')
    if coefficients[0] <= 0:
      raise ValueError(f'coefficients[0] must be positive, got {coefficients[0]}.')

  @classmethod
  def square_root(cls, num_rounds: int, num_bands: int) -> 'BandedToeplitz':
    """The square-root coefficients cut off after `num_bands`, columns of norm 1.

    Columns that end below the last row are shorter; all others have norm 1, so
    `sensitivity()` of a single participation is 1.

    Raises:
      ValueError: If `num_bands` exceeds `num_rounds`.

    Example:
      >>> strategy = BandedToeplitz.square_root(num_rounds=100, num_bands=10)
      >>> round(strategy.sensitivity(), 12)
      1.0
    """
    participation_lib.check_positive_int('num_rounds', num_rounds)
    participation_lib.check_positive_int('num_bands', num_bands)
    if num_bands > num_rounds:
      raise ValueError(
        f'num_bands must be at most num_rounds={num_rounds}, got {num_bands}.'
      )
    coefficients = square_root_coefficients(num_bands)
    return cls(num_rounds, tuple(coefficients / np.linalg.norm(coefficients)))

  @property
  def num_bands(self) -> int:
    """C[i, j] = 0 for i - j >= num_bands."""
    return len(self.coefficients)

  @property
  def noise_buffers(self) -> int:
    """Forward substitution needs the noise of the last `num_bands - 1` rounds."""
    return self.num_bands - 1

  def sensitivity_squared_by_round(
    self, participation: Optional[participation_lib.Participation] = None
  ) -> np.ndarray:
    """See `Strategy`. Exact in two cases, which cover the square root.

    * num_bands <= min_separation: the columns of one client do not overlap, so the
      squared sensitivity is the sum of their squared norms, largest for the earliest
      columns (arXiv:2306.08153).
    * non-negative, non-increasing coefficients: the earliest, densest pattern
      0, b, 2b, ... is the worst (arXiv:2405.13763).

    Both hold for every leading part of `C` as well, and name the same pattern u; the
    squared entries of `C u` are therefore what each round adds.

    Raises:
      ValueError: In any other case.
    """
    participation = self._participation(participation)
    if (
      participation.possible_participations > 1
      and self.num_bands > participation.min_separation
      and not self._is_non_negative_and_non_increasing
    ):
      raise ValueError(
        f'the exact sensitivity of {self.num_bands} bands under '
        f'min_separation={participation.min_separation} is known only for '
        'coefficients that are non-negative and non-increasing; use at most '
        f'{participation.min_separation} bands.'
      )
    # A single participation is worst in round 0: no other column is longer.
    spent = np.zeros(self.num_rounds)
    for first in participation.rounds:
      stop = min(first + self.num_bands, self.num_rounds)
      spent[first:stop] += self.coefficients[: stop - first]
    return np.cumsum(np.square(spent))

  def per_query_error(self, workload: Optional[np.ndarray] = None) -> np.ndarray:
    """See `Strategy`; O(n * num_bands) for prefix sums, without the matrix."""
    if workload is not None:
      return super().per_query_error(workload)
    return np.cumsum(np.square(self._estimator_coefficients()))

  def materialize(self) -> np.ndarray:
    """See `Strategy`."""
    column = np.zeros(self.num_rounds)
    column[: self.num_bands] = self.coefficients
    return _lower_toeplitz(column)

  def materialize_estimator(self) -> np.ndarray:
    """See `Strategy`; `A C^-1`, Toeplitz as well."""
    return _lower_toeplitz(self._estimator_coefficients())

  def _estimator_coefficients(self) -> np.ndarray:
    """First column of `A C^-1`: C x = (1, 1, ..., 1) by forward substitution."""
    # lfilter runs y[t] = (1 - sum_i c[i] y[t - i]) / c[0].
    import scipy.signal  # Slow to import, and few callers need the error.

    return scipy.signal.lfilter([1.0], self.coefficients, np.ones(self.num_rounds))

  @property
  def _is_non_negative_and_non_increasing(self) -> bool:
    return self.coefficients[-1] >= 0 and all(np.diff(self.coefficients) <= 0)


@dataclasses.dataclass(frozen=True)
class Identity(BandedToeplitz):
  """C = I: independent noise in every round, the Gaussian sum of DP-FedAvg.

  Example:
    >>> participation = participation_lib.Participation(100, min_separation=10)
    >>> float(Identity(100).sensitivity_squared_by_round(participation)[-1])
    10.0
  """

  coefficients: tuple[float, ...] = (1.0,)
  kind = 'identity'

  def __post_init__(self) -> None:
    super().__post_init__()
    if self.coefficients != (1.0,):
      raise ValueError(
        f'the coefficients of Identity are (1.0,), got {self.coefficients}; use '
        'BandedToeplitz.'
      )


def _lower_toeplitz(column: np.ndarray) -> np.ndarray:
  return scipy.linalg.toeplitz(column, np.zeros_like(column))
