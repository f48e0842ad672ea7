"""Buffered linear Toeplitz (BLT) strategies: sums of a few exponential decays.

    c_0 = 1,    c_i = sum_j output_scales[j] * buffer_decays[j]^(i - 1)

are the coefficients of the Toeplitz matrix `C` (arXiv:2404.16706, section 3). A server
computes `C^-1 z` with one model-sized buffer for each decay, whatever the number of
rounds. With positive scales, as in `optimize` (arXiv:2408.08868), `C` decreases along
its columns, which makes its sensitivity exact.

**Windows and tails.** For several participations, `optimize_windowed` reaches smaller
errors with more buffers: the decays are cut off after a window, except for an optional
decay, the tail, which continues.

    c_i = [i < window] sum_j output_scales[j] * buffer_decays[j]^(i - 1)
          + tail_scale * tail_decay^(i - 1)

With a window of at most `min_separation` the columns of one client do not overlap, as
for banded Toeplitz strategies; two or three decays nearly reach the error of those. The
tail is for clients whose participations end early, where small entries far from the
diagonal lower the error of the many rounds after that. docs/strategies.md has figures.

**How a server computes the noise of a window.** With y = C^-1 z, and for each decay the
sum s over the last window - 1 rounds,

    y[t] = z[t] - sum_j output_scales[j] s_j[t]
    s_j[t + 1] = decay_j s_j[t] + y[t] - decay_j^(window - 1) y[t - (window - 1)].

y of `window - 1` rounds ago need not be stored. As z can be drawn again, a second copy
of the recursion, delayed by `window - 1` rounds, computes it again; a third copy does
so for the second, and so on back to the first round. These are (n - 2) // (window - 1)
+ 1 copies with d buffers each, and a round draws as many rows of z. A tail is one more
sum in each copy, from which nothing is subtracted.

If that takes at least `window - 1` buffers, `recursion` is forward substitution. With
a tail, let H be the windowed matrix and T that of the tail's decay alone, whose inverse
has two bands. Then

    C = H + tail_scale S T = (H T^-1 + tail_scale S) T,    S the shift by one round.

The matrix in brackets has `window + 1` bands, so C is a quotient of banded matrices,
and `window` buffers are sufficient.
"""

import dataclasses
import logging
import math
from typing import Any, Optional, Union

import numpy as np

from tff_dp_aggregators.base import checks
from tff_dp_aggregators.strategies import cache as cache_lib
from tff_dp_aggregators.strategies import participation as participation_lib
from tff_dp_aggregators.strategies import recursion as recursion_lib
from tff_dp_aggregators.strategies import registry
from tff_dp_aggregators.strategies import strategy as strategy_lib
from tff_dp_aggregators.strategies import toeplitz
from tff_dp_aggregators.strategies import workload as workload_lib
from tff_dp_aggregators.strategies.numerics import blt_search
from tff_dp_aggregators.strategies.numerics import descent
from tff_dp_aggregators.strategies.numerics import exponential_sums
from tff_dp_aggregators.strategies.numerics import power_series
from tff_dp_aggregators.strategies.participation import Participation

_logger = logging.getLogger(__name__)

# Minimum relative decrease of the error by a decay, if a maximum number is given.
_MIN_GAIN = 5e-6
_MIN_WINDOW_GAIN = 1e-4
_DEFAULT_GAIN = 1e-3  # The same if no number is given.
# If two decays of a workload are closer, leading digits of residues cancel.
_MIN_RELATIVE_DISTANCE = 1e-4
_SAME_LOSS = 1e-9  # Losses that differ by less are taken to be equal.
_SMALLEST_MIN_GAIN = 1e-8  # Smaller gains could be rounding errors.
_MAX_BUFFERS = 8


@dataclasses.dataclass(frozen=True, eq=False)
class BLT(toeplitz.LowerToeplitz):
  """The BLT strategy with given scales and decays.

  Attributes:
    output_scales: omega, one for each buffer, all positive or (as in an inverse) all
      negative. Without buffers, `C` is the identity.
    buffer_decays: theta, all different, each in [-1, 1]. They are sorted in decreasing
      order, the slowest decay first.

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
    scales = workload_lib.real_numbers('output_scales', self.output_scales)
    decays = workload_lib.real_numbers('buffer_decays', self.buffer_decays)
    one_sign = not scales or min(scales) > 0 or max(scales) < 0
    if len(scales) != len(decays) or not one_sign:
      raise ValueError(
        'output_scales must be as many as buffer_decays, all positive or all negative '
        f'(or use BandedToeplitz with the coefficients); got {scales} and {decays}.'
      )
    if len(set(decays)) < len(decays) or not all(-1 <= decay <= 1 for decay in decays):
      raise ValueError(
        'buffer_decays must be different (of equal ones, make one buffer with the sum '
        f'of their output_scales), and between -1 and 1; got {decays}.'
      )
    order = sorted(range(len(decays)), key=lambda j: -decays[j])
    object.__setattr__(self, 'output_scales', tuple(scales[j] for j in order))
    object.__setattr__(self, 'buffer_decays', tuple(decays[j] for j in order))

  @property
  def num_buffers(self) -> int:
    """The number d of decays."""
    return len(self.buffer_decays)

  def recursion(self) -> recursion_lib.Recursion:
    """A sum for each decay (arXiv:2404.16706, algorithm 1)."""
    if not self.num_buffers:
      return recursion_lib.LastRounds(np.ones((1, 1)), remembers='row')
    scales = np.array(self.output_scales)
    return recursion_lib.DecayingSums(np.array(self.buffer_decays), -scales)

  def inverse(self) -> 'BLT':
    """Returns `C^-1`, a BLT with as many buffers; ValueError if its noise is unbounded.

    With y = 1 / x, C(x) = 1 + sum_j omega_j / (y - theta_j). The decays of the inverse
    are the zeros of this function, its scales the residues of 1 / C there
    (arXiv:2404.16706, section 4).
    """
    if not self.num_buffers:
      return self
    poles, zeros = self._poles, self._zeros
    decays = 1.0 - zeros.values(poles)
    if not np.all(np.abs(decays) <= 1.0 + 1e-12):
      raise ValueError(
        f'the noise of the inverse grows without bound: output_scales '
        f'{self.output_scales} are too large for buffer_decays {self.buffer_decays}.'
      )
    parts = exponential_sums.residues(-zeros.to_poles(poles).T, zeros.to_zeros(poles))
    return BLT(self.num_rounds, tuple(parts.values), tuple(np.clip(decays, -1.0, 1.0)))

  def matrix_coefficients(self) -> np.ndarray:
    """First column of `C`, float64 of shape [n]; takes O(n d)."""
    coefficients = np.zeros(self.num_rounds)
    coefficients[0] = 1.0
    for scale, decay in zip(self.output_scales, self.buffer_decays):
      coefficients[1:] += scale * _powers(decay, self.num_rounds - 1)
    return coefficients

  def inverse_coefficients(self) -> np.ndarray:
    """First column of `C^-1`, float64 of shape [n]; takes O(n d)."""
    return self.inverse().matrix_coefficients()

  def squared_or_bound(self, participation: Participation) -> tuple[float, bool]:
    """Exact, and needs no matrix, for one participation or if c does not increase."""
    is_non_increasing = (
      self._are_scales_positive
      and math.fsum(self.output_scales) <= 1.0
      and all(decay >= 0.0 for decay in self.buffer_decays)
    )
    if participation.possible_participations > 1 and not is_non_increasing:
      return super().squared_or_bound(participation)
    value, _, _ = blt_search.squared_sensitivity(
      np.array(self.output_scales),
      self._poles,
      blt_search.problem('max', participation),
    )
    return float(value), True

  def squared_error(
    self, objective: str, workload: workload_lib.WorkloadLike = None
  ) -> float:
    """For prefix sums, the cost does not depend on n.

    The estimator's coefficients are a sum of exponentials. Their weights are positive
    if the scales are, so no digits cancel.
    """
    workload = workload_lib.check(self.num_rounds, workload)
    poles, zeros = self._poles, self._zeros
    # The closed form needs powers that do not grow; `inverse` refuses those that do.
    if not (
      workload_lib.is_prefix_sums(workload)
      and self._are_scales_positive
      and np.all(zeros.values(poles) <= 2.0)
    ):
      return super().squared_error(objective, workload)
    # Rows: zeros of B, which are decays of C. Columns: poles, 1 and decays of C^-1.
    to_poles = np.hstack([poles[:, np.newaxis], -zeros.to_poles(poles).T])
    all_poles = np.append(0.0, zeros.values(poles))
    between = exponential_sums.differences(all_poles, all_poles)
    between[1:, 1:] = zeros.to_zeros(poles)
    parts = exponential_sums.residues(to_poles, between)
    value, _, _ = blt_search.squared_error(
      parts.values, all_poles, blt_search.problem(objective, self._participation(None))
    )
    return float(value)

  @property
  def _are_scales_positive(self) -> bool:
    return all(scale > 0 for scale in self.output_scales)

  @property
  def _poles(self) -> np.ndarray:
    """1 - decay for each decay, increasing."""
    return 1.0 - np.array(self.buffer_decays)

  @property
  def _zeros(self) -> exponential_sums.Zeros:
    """1 - decay for each decay of the inverse."""
    scales = np.array(self.output_scales)
    if self._are_scales_positive:
      return exponential_sums.zeros_above(self._poles, scales)
    return exponential_sums.zeros_below(self._poles, -scales)


@dataclasses.dataclass(frozen=True, eq=False)
class _Windowed(toeplitz.LowerToeplitz):
  """A BLT that is cut off after a window, with a tail that a subclass may add."""

  window: int
  output_scales: tuple[float, ...]
  buffer_decays: tuple[float, ...]

  def __post_init__(self) -> None:
    super().__post_init__()
    window = strategy_lib.check_bands(self.num_rounds, self.window, 'window')
    object.__setattr__(self, 'window', window)
    uncut = BLT(window, self.output_scales, self.buffer_decays)
    object.__setattr__(self, 'output_scales', uncut.output_scales)
    object.__setattr__(self, 'buffer_decays', uncut.buffer_decays)

  @property
  def _tail(self) -> tuple[float, float]:
    """Scale and decay of the tail; a scale of 0 means no tail."""
    return 0.0, 0.0

  @property
  def num_copies(self) -> int:
    """Number of copies of the sums, each `window - 1` rounds behind the one before."""
    if self.window == 1 or self.num_rounds == 1:
      return 0
    return (self.num_rounds - 2) // (self.window - 1) + 1

  def recursion(self) -> recursion_lib.Recursion:
    """Copies of decaying sums, or the last rounds, whichever needs fewer buffers."""
    tail_scale, tail_decay = self._tail
    tail = ((tail_scale,), (tail_decay,)) if tail_scale else ((), ())
    if not self.buffer_decays or not self.num_copies:
      return BLT(self.num_rounds, *tail).recursion()
    delay = self.window - 1
    decays = np.array(self.buffer_decays + tail[1])
    if delay + len(tail[0]) <= self.num_copies * len(decays):
      if tail_scale:
        return recursion_lib.LastRounds.of_quotient(*self._quotient())
      return recursion_lib.LastRounds.solving(self._bands()[np.newaxis])
    ends = -(decays**delay)
    ends[len(self.buffer_decays) :] = 0.0  # A tail does not end.
    return recursion_lib.DecayingSums(
      decays,
      outputs=-np.array(self.output_scales + tail[0]),
      ends=ends,
      copies=self.num_copies,
      delay=delay,
    )

  def matrix_coefficients(self) -> np.ndarray:
    """First column of `C`, float64 of shape [n]; takes O(n + window d)."""
    coefficients = np.zeros(self.num_rounds)
    coefficients[: self.window] = self._bands()
    scale, decay = self._tail
    if scale:
      coefficients[1:] += scale * np.power(decay, np.arange(self.num_rounds - 1))
    return coefficients

  def inverse_coefficients(self) -> np.ndarray:
    """First column of `C^-1`; takes O(n window), or O(n log n) for long windows."""
    scale, decay = self._tail
    if not scale:
      return power_series.inverse(self._bands(), self.num_rounds)
    solved = power_series.inverse(self._quotient()[0], self.num_rounds)
    noise = solved.copy()
    noise[1:] -= decay * solved[:-1]
    return noise

  def _bands(self) -> np.ndarray:
    uncut = BLT(self.window, self.output_scales, self.buffer_decays)
    return uncut.matrix_coefficients()

  def _quotient(self) -> tuple[np.ndarray, np.ndarray]:
    """First columns of N and M, with `window + 1` and 2 entries, where C = N M^-1."""
    scale, decay = self._tail
    head = self._bands()
    numerator = np.append(head, 0.0)
    numerator[1:] -= decay * head
    numerator[1] += scale
    return numerator[: self.num_rounds], np.array([1.0, -decay])[: self.num_rounds]


@dataclasses.dataclass(frozen=True, eq=False)
class WindowedBLT(_Windowed):
  """A BLT with given scales and decays whose coefficients are 0 from `window` on.

  Attributes:
    window: Number of non-zero coefficients, at most n. For the others, see `BLT`.

  Example:
    >>> strategy = WindowedBLT(6, 3, output_scales=(0.5,), buffer_decays=(0.8,))
    >>> strategy.matrix_coefficients().tolist()
    [1.0, 0.5, 0.4, 0.0, 0.0, 0.0]
  """

  kind = 'windowed_blt'

  @property
  def num_bands(self) -> int:
    """C[i, j] = 0 for i - j >= num_bands: the window."""
    return self.window


@dataclasses.dataclass(frozen=True, eq=False)
class TailedBLT(_Windowed):
  """A windowed BLT, plus a decay that continues after the window.

  Attributes:
    window: Number of coefficients that are not only the tail, at most n.
    output_scales: See `BLT`, also for `buffer_decays`.
    tail_scale: Output scale of the tail, at least 0; 0 for no tail.
    tail_decay: Decay of the tail, from 0 to 1.

  Example:
    >>> strategy = TailedBLT(6, 3, (0.5,), (0.8,), tail_scale=0.125, tail_decay=1.0)
    >>> strategy.matrix_coefficients().round(4).tolist()
    [1.0, 0.625, 0.525, 0.125, 0.125, 0.125]
  """

  tail_scale: float
  tail_decay: float
  kind = 'tailed_blt'

  def __post_init__(self) -> None:
    super().__post_init__()
    scale = checks.check_not_negative('tail_scale', self.tail_scale)
    decay = checks.check_within('tail_decay', self.tail_decay, 0, 1)
    object.__setattr__(self, 'tail_scale', scale)
    object.__setattr__(self, 'tail_decay', decay)

  @property
  def _tail(self) -> tuple[float, float]:
    return self.tail_scale, self.tail_decay


def optimize(
  num_rounds: int,
  *,
  num_buffers: Optional[int] = None,
  min_gain: Optional[float] = None,
  objective: str = 'mean',
  participation: Optional[Participation] = None,
  workload: workload_lib.WorkloadLike = None,
  cache: bool = True,
) -> BLT:
  """Returns the BLT with the least error.

  Buffers are added one by one while each lowers the error by at least the fraction
  `min_gain` (`blt_search`); a warning is logged if they are fewer than `num_buffers`.
  The result is not proven to be optimal, but no descent from a random point was better
  by `min_gain`. Scales are positive and sum to at most 1, so that the sensitivity is
  exact under any participation.

  Arguments are those of `banded.optimize`, with any `participation`, and:

  * `num_buffers`: Maximum number of buffers, each of the model's size; `None` means as
    many as gain `min_gain`, up to 8.
  * `min_gain`: The fraction of the error by which a buffer has to lower it, at least
    1e-8. By default 5e-6 if `num_buffers` is given, and 0.001 if it is not.
  * `workload`: The queries whose error is minimised, a `Workload` with a constant
    learning rate, with or without momentum and weight decay; `None` means prefix sums.

  Example:
    >>> strategy = optimize(num_rounds=1000, num_buffers=3, objective='max')
    >>> round(strategy.max_error(), 4)
    3.2699
  """
  workload = check_workload(num_rounds, workload)
  checked = strategy_lib.Problem.check(num_rounds, objective, participation, workload)
  limits = _limits('num_buffers', num_buffers, min_gain, _MIN_GAIN)
  problem = blt_search.problem(objective, checked.participation, workload)
  parameters = checked.parameters(limits=limits)

  def compute() -> BLT:
    nodes = blt_search.best_nodes(problem, *limits)
    scales, decays = blt_search.scales_and_decays(nodes)
    return BLT(problem.num_rounds, tuple(scales), tuple(decays))

  strategy = cache_lib.fetch(BLT, 'blt.optimize', 1, parameters, compute, cache)
  _warn_if_fewer(strategy, strategy.num_buffers, num_buffers, limits[1])
  return strategy


def optimize_windowed(
  num_rounds: int,
  *,
  num_decays: Optional[int] = None,
  window: Optional[int] = None,
  tail: bool = False,
  min_gain: Optional[float] = None,
  objective: str = 'mean',
  participation: Optional[Participation] = None,
  workload: workload_lib.WorkloadLike = None,
  cache: bool = True,
) -> Union[WindowedBLT, TailedBLT]:
  """Returns the windowed BLT, or the tailed BLT, with the least error.

  Scales are positive, the sensitivity under `participation` is exact, and a step takes
  O(n log n). With a tail, the search starts from the best BLT with one more decay; its
  slowest decay becomes the tail. If that BLT is better without a window, as happens for
  a `min_separation` of a few rounds, it is returned with a window of all rounds.

  Arguments are those of `banded.optimize`, and:

  * `num_decays`: Maximum number of decays in the window; `None` means as many as gain
    `min_gain`, up to 8.
  * `window`: Number of coefficients that are not only the tail, at most `num_rounds`.
    By default `min_separation`, the maximum with which the columns of one client do not
    overlap, or with a tail `num_rounds` if that is better.
  * `tail`: Whether a decay continues after the window: if participations end early.
  * `min_gain`: The fraction of the error by which a decay, or the tail, has to lower
    it. By default 1e-4 if `num_decays` is given, and 0.001 if it is not.
  * `participation`: Who may take part when, more than once.
  * `workload`: As for `optimize`.

  Example:
    >>> given = {'num_decays': 1, 'participation': Participation(100, 10, 2)}
    >>> strategy = optimize_windowed(100, tail=True, **given)
    >>> round(strategy.rmse(given['participation']), 3), strategy.noise_buffers
    (3.752, 10)
  """
  participation = participation_lib.check(num_rounds, participation)
  if participation.possible_participations == 1:
    raise ValueError(
      'a window is of no use if a client takes part only once; use blt.optimize, or '
      f'give a participation that allows more; got {participation}.'
    )
  limits = _limits('num_decays', num_decays, min_gain, _MIN_WINDOW_GAIN)
  window_size = participation.min_separation if window is None else window
  problem = blt_search.WindowProblem.check(
    num_rounds,
    objective,
    participation,
    check_workload(num_rounds, workload),
    window=strategy_lib.check_bands(num_rounds, window_size, 'window'),
    has_tail=tail,
  )

  def compute() -> Union[WindowedBLT, TailedBLT]:
    if tail:
      return _optimize_tailed(problem, limits, window is None)
    progress = descent.Progress(f'windowed BLT, {num_rounds} rounds')
    _, parameters = problem.search(*limits, progress)
    return from_logarithms(parameters, num_rounds, problem.window)

  strategy: Union[WindowedBLT, TailedBLT] = cache_lib.fetch(
    TailedBLT if tail else WindowedBLT,
    f'{"tailed" if tail else "windowed"}_blt.optimize',
    2,
    problem.parameters(limits=limits, is_any_window=window is None),
    compute,
    cache,
  )
  _warn_if_fewer(strategy, len(strategy.buffer_decays), num_decays, limits[1])
  return strategy


def _limits(
  name: str, max_decays: Optional[int], min_gain: Optional[float], default_gain: float
) -> tuple[int, float]:
  """Returns the maximum number of decays, and what one more has to gain."""
  if min_gain is None:
    min_gain = _DEFAULT_GAIN if max_decays is None else default_gain
  if not _SMALLEST_MIN_GAIN <= min_gain < 1:
    raise ValueError(
      f'min_gain must be at least {_SMALLEST_MIN_GAIN} and below 1, got {min_gain}.'
    )
  max_decays = _MAX_BUFFERS if max_decays is None else max_decays
  return checks.check_positive_int(name, max_decays), float(min_gain)


def _warn_if_fewer(
  strategy: strategy_lib.Strategy,
  num_decays: int,
  max_decays: Optional[int],
  min_gain: float,
) -> None:
  """Logs why a strategy has fewer buffers or decays than the maximum given."""
  if max_decays is not None and num_decays < max_decays:
    _logger.warning(
      'the %s has %d exponential decays, not %d: one more would lower the error by '
      'less than %g of it.',
      strategy.kind,
      num_decays,
      max_decays,
      min_gain,
    )


def _optimize_tailed(
  tailed: blt_search.WindowProblem, limits: tuple[int, float], is_any_window: bool
) -> TailedBLT:
  max_decays, min_gain = limits
  num_rounds = tailed.num_rounds
  progress = descent.Progress(f'tailed BLT, {num_rounds} rounds')
  loss, parameters = tailed.search(*limits, progress)
  without_tail = dataclasses.replace(tailed, has_tail=False)
  other_loss, other = without_tail.search(*limits, progress)
  nodes = blt_search.best_nodes(tailed.uncut, max_decays + 1, min_gain)
  uncut_loss = float(tailed.uncut.loss_and_slope(nodes)[0])
  if is_any_window and len(nodes) and uncut_loss < min(loss, other_loss) - _SAME_LOSS:
    # The uncut BLT; its slowest decay, the first one, becomes the tail.
    scales, decays = blt_search.scales_and_decays(nodes)
    head = WindowedBLT(num_rounds, num_rounds, tuple(scales[1:]), tuple(decays[1:]))
    return _with_tail(head, scales[0], decays[0])
  if blt_search.gain(loss, other_loss) < min_gain:
    return _with_tail(from_logarithms(other, num_rounds, tailed.window), 0.0, 1.0)
  complement, scale = np.exp(parameters[-2:])
  head = from_logarithms(parameters[:-2], num_rounds, tailed.window)
  return _with_tail(head, scale, 1.0 - complement)


def from_logarithms(
  parameters: np.ndarray, num_rounds: int, window: int
) -> WindowedBLT:
  """The strategy with parameters of `blt_search.WindowProblem`, without a tail."""
  complements, scales = np.split(np.exp(parameters), 2)
  return WindowedBLT(num_rounds, window, tuple(scales), tuple(1.0 - complements))


def _with_tail(head: WindowedBLT, scale: float, decay: float) -> TailedBLT:
  return TailedBLT(
    **head.parameters(), tail_scale=float(scale), tail_decay=float(decay)
  )


def _powers(base: float, count: int) -> np.ndarray:
  """base^0 to base^(count - 1), each with few rounding errors."""
  width = math.isqrt(count) + 1
  low = np.power(base, np.arange(width))
  high = np.power(base, width * np.arange(-(-count // width)))
  return np.outer(high, low).ravel()[:count]


def check_workload(
  num_rounds: int, workload: workload_lib.WorkloadLike
) -> workload_lib.Workload:
  """Returns the workload; ValueError unless Toeplitz with decays that differ."""
  checked = workload_lib.check(num_rounds, workload)
  if not isinstance(checked, workload_lib.Workload) or not checked.is_toeplitz:
    raise ValueError(
      'a BLT is optimised for prefix sums, with or without momentum and weight decay, '
      'but the learning rates of the workload change, or it is an array; optimise '
      'another kind of strategy for it.'
    )
  apart = abs(checked.momentum - (1.0 - checked.weight_decay))
  if checked.weight_decay and apart <= _MIN_RELATIVE_DISTANCE * checked.weight_decay:
    raise ValueError(
      f'momentum={checked.momentum} is, or nearly is, 1 - weight_decay with '
      f'weight_decay={checked.weight_decay}, where the errors of BLTs have another '
      'form; make one of them larger by a thousandth.'
    )
  return checked


def _build_windowed(
  limits: registry.Limits,
  tail: bool,
  num_decays: Optional[int] = None,
  workload: workload_lib.WorkloadLike = None,
) -> Union[WindowedBLT, TailedBLT]:
  """The best windowed or tailed BLT; the best BLT for a single participation."""
  num_rounds = limits.num_rounds
  arguments: Any = {'participation': limits, 'workload': workload}
  if limits.possible_participations > 1:
    return optimize_windowed(num_rounds, num_decays=num_decays, tail=tail, **arguments)
  # For a single participation, the best window is all rounds.
  uncut = optimize(num_rounds, num_buffers=num_decays, **arguments)
  head = WindowedBLT(num_rounds, num_rounds, uncut.output_scales, uncut.buffer_decays)
  return _with_tail(head, 0.0, 0.0) if tail else head


def _why_skip_window(limits: registry.Limits, given: registry.Options) -> Optional[str]:
  if limits.possible_participations == 1:
    return 'a client takes part only once, so that nothing is cut off: it is blt.'
  if limits.min_separation == 1:
    return 'with min_separation=1 the window is a round: it is the gaussian mechanism.'
  return None


def _why_skip_tail(limits: registry.Limits, given: registry.Options) -> Optional[str]:
  if limits.possible_participations == 1:
    return _why_skip_window(limits, given)
  if not registry.are_done_early(limits):
    return 'clients take part until the end or nearly so: its tail is of no use.'
  return None


_CITATIONS = ('arXiv:2404.16706', 'arXiv:2408.08868')
_WORDS = 'noise correlated over rounds by a buffered linear Toeplitz matrix'
_DECAYS = registry.Option(
  'num_decays',
  help='the most exponential decays, by default as many as are worth it',
  read=lambda strategy: len(strategy.buffer_decays),
  words=('1 decay', '{} decays'),
  title='decays',
  meaning='exponential decays that C adds, and cuts off after a window',
)
registry.register(
  registry.Kind(
    'blt',
    BLT,
    registry.optimizing(optimize),
    adapts=True,
    words=_WORDS,
    citations=_CITATIONS,
    options=(
      registry.Option(
        'num_buffers',
        help='the most buffers, by default as many as are worth it',
        read=lambda strategy: strategy.num_buffers,
        words=('1 buffer', '{} buffers'),
        title='buffers',
        meaning='exponential decays that C adds',
      ),
    ),
  )
)
registry.register(
  registry.Kind(
    'windowed_blt',
    WindowedBLT,
    lambda limits, **given: _build_windowed(limits, False, **given),
    adapts=True,
    words=_WORDS + ' that is cut off where a client may come back',
    citations=_CITATIONS,
    options=(_DECAYS,),
    seconds=lambda limits, num_decays=None: 0.3 + 8e-5 * limits.num_rounds,
    why_skip=_why_skip_window,
  )
)
registry.register(
  registry.Kind(
    'tailed_blt',
    TailedBLT,
    lambda limits, **given: _build_windowed(limits, True, **given),
    adapts=True,
    words=_WORDS
    + ' that is cut off where a client may come back, but for one slow decay',
    citations=_CITATIONS,
    options=(_DECAYS,),
    # There are two searches, one of them over coefficients of all rounds.
    seconds=lambda limits, num_decays=None: 1.0 + 3e-4 * limits.num_rounds,
    why_skip=_why_skip_tail,
  )
)
