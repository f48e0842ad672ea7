"""Buffered linear Toeplitz (BLT) strategies: sums of a few exponential decays.

    c_0 = 1,    c_i = sum_j output_scales[j] * buffer_decays[j]^(i - 1)

are the coefficients of the Toeplitz matrix `C` (arXiv:2404.16706, section 3). A
server draws `C^-1 z` with one model-sized buffer a decay, whatever the number of
rounds. `C^-1` is a BLT as well, with as many buffers (`BLT.inverse`).

`optimize` finds the decays and scales that make the error smallest, for one
participation or several (arXiv:2408.08868), with positive scales. `C` then decreases
along its columns, which makes its sensitivity exact, and sensitivity and errors are
sums of geometric series: they cost the same for ten rounds and ten million.

This module is not for strategies whose scales have both signs, or complex decays; write
their coefficients into a `BandedToeplitz` if there are not too many. For several
participations that are far apart, `windowed_blt` comes to smaller errors with more
buffers.
"""

import dataclasses
import logging
import math
from typing import Any, Optional

import numpy as np

from tff_dp_aggregators.base import checks
from tff_dp_aggregators.strategies import cache as cache_lib
from tff_dp_aggregators.strategies import participation as participation_lib
from tff_dp_aggregators.strategies import real
from tff_dp_aggregators.strategies import recursion as recursion_lib
from tff_dp_aggregators.strategies import size
from tff_dp_aggregators.strategies import toeplitz
from tff_dp_aggregators.strategies import workload as workload_lib
from tff_dp_aggregators.strategies.numerics import blt_search
from tff_dp_aggregators.strategies.numerics import rational

_logger = logging.getLogger(__name__)

# By how much of the error a buffer has to lower it: where a number of buffers is asked
# for, and where it is left open.
_MIN_GAIN = 5e-6
# Of a workload's two decays, relative to the smaller complement: nearer ones make
# residues that cancel in their first digits.
_TOO_NEAR = 1e-4
_GAIN_WORTH_A_BUFFER = 1e-3
# Smaller gains could be rounding errors.
_SMALLEST_MIN_GAIN = 1e-8
_MAX_BUFFERS = 8


@dataclasses.dataclass(frozen=True, eq=False)
class BLT(toeplitz.LowerToeplitz):
  """The BLT strategy of given scales and decays.

  Attributes:
    num_rounds: Rounds n; `C` is n x n.
    output_scales: omega, one for each buffer, all positive or (as in an inverse) all
      negative. No buffers make the identity.
    buffer_decays: theta, all different, each in [-1, 1]. Buffers are sorted from the
      slowest decay on.

  Raises:
    TypeError: If scales or decays are not sequences of numbers.
    ValueError: If there are more of one than of the other, one is not finite, a scale
      is 0, scales have both signs, decays are equal, or one is above 1 or below -1.

  Example:
    >>> strategy = BLT(5, output_scales=(0.5,), buffer_decays=(0.8,))
    >>> strategy.matrix_coefficients().round(4).tolist()
    [1.0, 0.5, 0.4, 0.32, 0.256]
    >>> strategy.inverse().matrix_coefficients().round(4).tolist()
    [1.0, -0.5, -0.15, -0.045, -0.0135]
  """

  output_scales: tuple[float, ...]
  buffer_decays: tuple[float, ...]
  kind = 'blt'

  def __post_init__(self) -> None:
    super().__post_init__()
    scales = _check_numbers('output_scales', self.output_scales)
    decays = _check_numbers('buffer_decays', self.buffer_decays)
    if len(scales) != len(decays):
      raise ValueError(
        f'there must be as many output_scales as buffer_decays, got {len(scales)} and '
        f'{len(decays)}.'
      )
    _check_scales(scales)
    _check_decays(decays)
    order = sorted(range(len(decays)), key=lambda j: -decays[j])
    object.__setattr__(self, 'output_scales', tuple(scales[j] for j in order))
    object.__setattr__(self, 'buffer_decays', tuple(decays[j] for j in order))

  @property
  def num_buffers(self) -> int:
    """d, the number of decays."""
    return len(self.buffer_decays)

  def recursion(self) -> recursion_lib.Recursion:
    """A sum for each decay (arXiv:2404.16706, algorithm 1)."""
    if not self.num_buffers:
      return recursion_lib.LastRounds(np.ones((1, 1)), remembers='row')
    scales = np.array(self.output_scales)
    return recursion_lib.DecayingSums(np.array(self.buffer_decays), -scales)

  def inverse(self) -> 'BLT':
    """`C^-1`, a BLT of as many buffers.

    With y = 1 / x, C(x) = 1 + sum_j omega_j / (y - theta_j). The decays of the inverse
    are the zeros of that, its scales the residues of 1 / C there (arXiv:2404.16706,
    section 4, where polynomials are multiplied out; here nothing is).

    Raises:
      ValueError: If a decay of the inverse is outside [-1, 1], when its noise would
        grow from round to round.
    """
    if not self.num_buffers:
      return self
    poles, zeros = self._poles, self._zeros
    decays = 1.0 - zeros.values(poles)
    if not np.all(np.abs(decays) <= 1.0 + 1e-12):
      raise ValueError(
        f'the decays of the inverse are {decays.tolist()}, and one is outside [-1, 1], '
        f'which makes its noise grow without end; output_scales {self.output_scales} '
        'are too large for the buffer_decays.'
      )
    parts = rational.residues(-zeros.to_poles(poles).T, zeros.to_zeros(poles))
    return BLT(self.num_rounds, tuple(parts.values), tuple(np.clip(decays, -1.0, 1.0)))

  def matrix_coefficients(self) -> np.ndarray:
    """First column of `C`, float64 of shape [n]; O(n d)."""
    coefficients = np.zeros(self.num_rounds)
    coefficients[0] = 1.0
    for scale, decay in zip(self.output_scales, self.buffer_decays):
      coefficients[1:] += scale * _powers(decay, self.num_rounds - 1)
    return coefficients

  def inverse_coefficients(self) -> np.ndarray:
    """First column of `C^-1`, float64 of shape [n]; O(n d)."""
    return self.inverse().matrix_coefficients()

  def sensitivity_squared(
    self, participation: Optional[participation_lib.Participation] = None
  ) -> float:
    """sens(C)^2, the last entry of `sensitivity_squared_by_round`.

    Without the matrix where it is exact.

    It is exact for a single participation, and if the scales are positive and sum to at
    most 1, and decays are not negative: then c does not increase.
    """
    participation = self._participation(participation)
    if participation.possible_participations > 1 and not self._is_non_increasing:
      return super().sensitivity_squared(participation)
    value, _, _ = blt_search.squared_sensitivity(
      np.array(self.output_scales), self._poles, self._problem('max', participation)
    )
    return float(value)

  def sensitivity_kind(
    self, participation: Optional[participation_lib.Participation] = None
  ) -> str:
    """'exact', or 'bound' if `sensitivity` may be too large."""
    if self._is_non_increasing:
      self._participation(participation)
      return 'exact'
    return super().sensitivity_kind(participation)

  def rmse(
    self,
    participation: Optional[participation_lib.Participation] = None,
    workload: workload_lib.WorkloadLike = None,
  ) -> float:
    """Root mean square of `error_by_round`.

    At a cost independent of n for prefix sums.
    """
    if not self._has_closed_error(workload):
      return super().rmse(participation, workload)
    return self.sensitivity(participation) * math.sqrt(self._squared_error('mean'))

  def max_error(
    self,
    participation: Optional[participation_lib.Participation] = None,
    workload: workload_lib.WorkloadLike = None,
  ) -> float:
    """Largest of `error_by_round`; at a cost independent of n for prefix sums."""
    if not self._has_closed_error(workload):
      return super().max_error(participation, workload)
    return self.sensitivity(participation) * math.sqrt(self._squared_error('max'))

  def _has_closed_error(self, workload: workload_lib.WorkloadLike) -> bool:
    workload = workload_lib.check(self.num_rounds, workload)
    if not (workload_lib.is_prefix_sums(workload) and self._are_scales_positive):
      return False
    # The closed form is of powers that do not grow; `inverse` refuses those that do.
    return bool(np.all(self._zeros.values(self._poles) <= 2.0))

  def _squared_error(self, objective: str) -> float:
    """The mean or largest `per_query_error` of prefix sums.

    The estimator's coefficients are a sum of exponentials: those of the inverse, and a
    constant. With positive scales their weights are positive, so nothing cancels.
    """
    poles, zeros = self._poles, self._zeros
    # Rows are the zeros of B, the decays of C; columns its poles: 1, and the inverse's.
    to_poles = np.hstack([poles[:, np.newaxis], -zeros.to_poles(poles).T])
    places = np.append(0.0, zeros.values(poles))
    between = rational.differences(places, places)
    between[1:, 1:] = zeros.to_zeros(poles)
    parts = rational.residues(to_poles, between)
    value, _, _ = blt_search.squared_error(
      parts.values, places, self._problem(objective, self._participation(None))
    )
    return float(value)

  def _problem(
    self, objective: str, participation: participation_lib.Participation
  ) -> blt_search.BLTProblem:
    return _problem(self.num_rounds, objective, participation)

  @property
  def _are_scales_positive(self) -> bool:
    return all(scale > 0 for scale in self.output_scales)

  @property
  def _poles(self) -> np.ndarray:
    """Complements of the decays, increasing."""
    return 1.0 - np.array(self.buffer_decays)

  @property
  def _zeros(self) -> rational.Zeros:
    """Complements of the inverse's decays."""
    scales = np.array(self.output_scales)
    if self._are_scales_positive:
      return rational.zeros_above(self._poles, scales)
    return rational.zeros_below(self._poles, -scales)

  @property
  def _is_non_increasing(self) -> bool:
    """Whether c is known to be non-negative and non-increasing."""
    return (
      self._are_scales_positive
      and math.fsum(self.output_scales) <= 1.0
      and all(decay >= 0.0 for decay in self.buffer_decays)
    )


def optimize(
  num_rounds: int,
  *,
  num_buffers: Optional[int] = None,
  min_gain: Optional[float] = None,
  objective: str = 'mean',
  participation: Optional[participation_lib.Participation] = None,
  workload: workload_lib.WorkloadLike = None,
  cache: bool = True,
) -> BLT:
  """The BLT with the smallest error of prefix sums.

  Buffers are added one by one while each lowers the error by at least `min_gain` of it;
  the result has fewer than `num_buffers` if more do not help, and the log says so. How
  they are found is written in `blt_search`. It is not proven that there is nothing
  better; descents from random points have found nothing that is by `min_gain`.

  Args:
    num_rounds: Rounds n.
    num_buffers: Largest number of buffers, each of the model's size; `None` leaves it
      to `min_gain`, up to 8.
    min_gain: By which part of the error a buffer has to lower it, at least 1e-8. By
      default 5e-6 if `num_buffers` is given, and 0.001 if it is not.
    objective: 'mean' for the smallest `rmse`, 'max' for the smallest `max_error`.
    participation: Who may take part when; `None` means a single participation. The
      scales of the result are positive and sum to at most 1, so that its sensitivity
      is exact under any participation.
    workload: Whose error it is; `None` means prefix sums. Only a `Workload` with a
      constant learning rate, with or without momentum and weight decay.
    cache: Whether to look on disk first, and to keep the result there (see `cache`).

  Returns:
    The strategy; without any buffer if none helps.

  Raises:
    TypeError: If a number is not one.
    ValueError: If an argument is out of range, `participation` is for another number of
      rounds, or the learning rates of the workload change.

  Example:
    >>> strategy = optimize(num_rounds=1000, num_buffers=3, objective='max')
    >>> round(strategy.max_error(), 4)
    3.2699
    >>> optimize(num_rounds=2, num_buffers=3).num_buffers
    1
  """
  num_rounds = checks.check_positive_int('num_rounds', num_rounds)
  size.check_rounds(num_rounds)
  checks.check_objective(objective)
  participation = participation_lib.check(num_rounds, participation)
  if min_gain is None:
    min_gain = _MIN_GAIN if num_buffers is not None else _GAIN_WORTH_A_BUFFER
  if not _SMALLEST_MIN_GAIN <= min_gain < 1:
    raise ValueError(
      f'min_gain must be at least {_SMALLEST_MIN_GAIN} and below 1, got {min_gain}.'
    )
  max_buffers = checks.check_positive_int(
    'num_buffers', _MAX_BUFFERS if num_buffers is None else num_buffers
  )
  workload = check_workload(num_rounds, workload)
  problem = _problem(num_rounds, objective, participation, workload)
  parameters = dict(
    dataclasses.asdict(problem), num_buffers=max_buffers, min_gain=float(min_gain)
  )
  strategy = cache_lib.fetch(
    BLT,
    'blt.optimize',
    1,
    parameters,
    lambda: _optimize(problem, max_buffers, min_gain),
    cache,
  )
  if num_buffers is not None and strategy.num_buffers < num_buffers:
    _logger.warning(
      'the BLT for %s has %d %s, not %d: one more would lower the %s error by '
      'less than %g of it.',
      participation,
      strategy.num_buffers,
      'buffer' if strategy.num_buffers == 1 else 'buffers',
      num_buffers,
      'largest' if objective == 'max' else 'mean',
      min_gain,
    )
  return strategy


def _optimize(problem: blt_search.BLTProblem, max_buffers: int, min_gain: float) -> BLT:
  nodes = blt_search.best_nodes(problem, max_buffers, min_gain)
  scales, decays = blt_search.scales_and_decays(nodes)
  return BLT(problem.num_rounds, tuple(scales), tuple(decays))


def _problem(
  num_rounds: int,
  objective: str,
  participation: participation_lib.Participation,
  workload: Optional[workload_lib.Workload] = None,
) -> blt_search.BLTProblem:
  return blt_search.BLTProblem(
    num_rounds,
    min(participation.min_separation, num_rounds),
    participation.possible_participations,
    objective,
    workload.momentum if workload else 0.0,
    workload.weight_decay if workload else 0.0,
  )


def _powers(base: float, count: int) -> np.ndarray:
  """base^0 to base^(count - 1), each rounded only a few times."""
  width = math.isqrt(count) + 1
  low = np.power(base, np.arange(width))
  high = np.power(base, width * np.arange(-(-count // width)))
  return np.outer(high, low).ravel()[:count]


def _check_numbers(name: str, values: Any) -> tuple[float, ...]:
  real.refuse_complex(name, values)
  try:
    numbers = tuple(float(value) for value in values)
  except (TypeError, ValueError) as e:
    raise TypeError(f'{name} must be a sequence of numbers, got {values!r}.') from e
  if not all(map(math.isfinite, numbers)):
    raise ValueError(f'{name} must be finite, got {numbers}.')
  return numbers


def _check_scales(scales: tuple[float, ...]) -> None:
  if 0.0 in scales:
    raise ValueError(
      f'output_scales must not be 0, got {scales}; leave such a buffer out.'
    )
  if scales and min(scales) < 0 < max(scales):
    raise ValueError(
      f'output_scales must be all positive or all negative, got {scales}; use '
      'BandedToeplitz with the coefficients.'
    )


def _check_decays(decays: tuple[float, ...]) -> None:
  if len(set(decays)) < len(decays):
    raise ValueError(
      f'buffer_decays must be different, got {decays}; make one buffer of equal ones, '
      'with the sum of their output_scales.'
    )
  if not all(-1 <= decay <= 1 for decay in decays):
    raise ValueError(
      f'buffer_decays must be between -1 and 1, got {decays}; beyond, they grow.'
    )


def check_workload(
  num_rounds: int, workload: workload_lib.WorkloadLike
) -> workload_lib.Workload:
  """The workload, if BLTs are optimised for it.

  Raises:
    ValueError: If it is not Toeplitz, or its two decays are the same, or nearly so.
  """
  checked = workload_lib.check(num_rounds, workload)
  if not isinstance(checked, workload_lib.Workload) or not checked.is_toeplitz:
    raise ValueError(
      'a BLT is optimised for prefix sums, with or without momentum and weight decay, '
      'but the learning rates of the workload change, or it is an array; leave it out '
      'here and give it to rmse() or max_error() of the result, or optimise another '
      'kind of strategy for it.'
    )
  apart = abs(checked.momentum - (1.0 - checked.weight_decay))
  if checked.weight_decay and apart <= _TOO_NEAR * checked.weight_decay:
    raise ValueError(
      f'momentum={checked.momentum} is, or nearly is, 1 - weight_decay with '
      f'weight_decay={checked.weight_decay}, where the errors of BLTs have another '
      'form; make one of them larger by a thousandth.'
    )
  return checked
