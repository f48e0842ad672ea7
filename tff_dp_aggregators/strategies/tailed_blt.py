"""Windowed BLTs of which one decay goes on, for clients that are done early.

    c_0 = 1,
    c_i = [i < window] sum_j output_scales[j] * buffer_decays[j]^(i - 1)
          + tail_scale * tail_decay^(i - 1)

A window of `min_separation` keeps a client's columns apart. That is worth the most
where clients take part over all the training; but where they are done early, so that
`max_participations * min_separation` is well below the rounds, the error of the many
rounds after that is what counts, and it takes entries far from the diagonal to lower
it. All columns of one client meet there, so entries count for more than those within
the window, and the best of them are small and nearly constant. One slow decay is that.

For 2000 rounds, 50 apart, the least RMSE is

    strategy                               buffers     4 times     8 times
    banded Toeplitz, 50 bands                   49      11.088      15.680
    BLT, 3 decays (`blt.optimize`)               3       8.907      14.477
    tailed, 2 decays                            50       8.748      14.070
    banded Toeplitz, 1200 bands               1199       8.749      14.008
    banded Toeplitz, 2000 bands               1999       8.712      13.976

**How a server draws this noise.** With H the windowed matrix, and T that of the decay
alone, whose inverse has two bands,

    C = H + tail_scale S T = (H T^-1 + tail_scale S) T,    S the shift by one round.

What stands in brackets has `window + 1` bands, so C is a quotient of banded matrices,
and `window` buffers are enough (`recursion.LastRounds.of_quotient`). Where the windows
are few and long, sums of decays take fewer, as in `windowed_blt`, and the tail is one
sum more in each copy, which nothing ends.
"""

import dataclasses
import math
from typing import Optional

import numpy as np

from tff_dp_aggregators.base import checks
from tff_dp_aggregators.strategies import blt
from tff_dp_aggregators.strategies import participation as participation_lib
from tff_dp_aggregators.strategies import recursion as recursion_lib
from tff_dp_aggregators.strategies import toeplitz
from tff_dp_aggregators.strategies import windowed_blt
from tff_dp_aggregators.strategies import workload as workload_lib
from tff_dp_aggregators.strategies.numerics import blt_search
from tff_dp_aggregators.strategies.numerics import power_series
from tff_dp_aggregators.strategies.numerics import windowed_problem

_ROUNDING = 1e-9  # Losses that are closer are the same.


@dataclasses.dataclass(frozen=True, eq=False)
class TailedBLT(toeplitz.LowerToeplitz):
  """A windowed BLT, plus a decay that goes on after the window.

  Attributes:
    num_rounds: Rounds n; `C` is n x n.
    window: How many coefficients are more than the tail, at most n.
    output_scales: omega, as in `windowed_blt.WindowedBLT`.
    buffer_decays: theta, as in `windowed_blt.WindowedBLT`.
    tail_scale: That of the tail, at least 0; 0 is no tail.
    tail_decay: That of the tail, from 0 to 1.

  Raises:
    TypeError: If an argument is not a number, or not numbers.
    ValueError: If the tail is out of range, or as `windowed_blt.WindowedBLT` raises.

  Example:
    >>> strategy = TailedBLT(6, 3, (0.5,), (0.8,), tail_scale=0.125, tail_decay=1.0)
    >>> strategy.matrix_coefficients().round(4).tolist()
    [1.0, 0.625, 0.525, 0.125, 0.125, 0.125]
    >>> strategy.noise_buffers
    3
  """

  window: int
  output_scales: tuple[float, ...]
  buffer_decays: tuple[float, ...]
  tail_scale: float
  tail_decay: float
  kind = 'tailed_blt'

  def __post_init__(self) -> None:
    super().__post_init__()
    head = self._head
    for name in ('window', 'output_scales', 'buffer_decays'):
      object.__setattr__(self, name, getattr(head, name))
    scale = float(checks.check_number('tail_scale', self.tail_scale))
    decay = float(checks.check_number('tail_decay', self.tail_decay))
    if not 0.0 <= scale < math.inf:
      raise ValueError(f'tail_scale must be finite and at least 0, got {scale}.')
    if not 0.0 <= decay <= 1.0:
      raise ValueError(f'tail_decay must be from 0 to 1, got {decay}.')
    object.__setattr__(self, 'tail_scale', scale)
    object.__setattr__(self, 'tail_decay', decay)

  def recursion(self) -> recursion_lib.Recursion:
    """That which keeps less: sums of decays, or sums of the last rounds' noise."""
    head = self._head
    if not self.tail_scale:
      return head.recursion()
    if not head.buffer_decays or not head.num_copies:
      tail = blt.BLT(self.num_rounds, (self.tail_scale,), (self.tail_decay,))
      return tail.recursion()
    decays = np.append(head.buffer_decays, self.tail_decay)
    if self.window <= head.num_copies * len(decays):
      return recursion_lib.LastRounds.of_quotient(*self._quotient())
    late = self.window - 1
    return recursion_lib.DecayingSums(
      decays,
      outputs=-np.append(head.output_scales, self.tail_scale),
      ends=np.append(-(decays[:-1] ** late), 0.0),
      copies=head.num_copies,
      delay=late,
    )

  def matrix_coefficients(self) -> np.ndarray:
    """First column of `C`, float64 of shape [n]; O(n + window d)."""
    coefficients = self._head.matrix_coefficients()
    powers = np.arange(self.num_rounds - 1)
    coefficients[1:] += self.tail_scale * np.power(self.tail_decay, powers)
    return coefficients

  def inverse_coefficients(self) -> np.ndarray:
    """First column of `C^-1`, float64 of shape [n].

    As M N^-1, O(n window) or, for long windows, O(n log n).
    """
    numerator, _ = self._quotient()
    solved = power_series.inverse(numerator, self.num_rounds)
    noise = solved.copy()
    noise[1:] -= self.tail_decay * solved[:-1]
    return noise

  @property
  def _head(self) -> windowed_blt.WindowedBLT:
    return windowed_blt.WindowedBLT(
      self.num_rounds, self.window, self.output_scales, self.buffer_decays
    )

  def _quotient(self) -> tuple[np.ndarray, np.ndarray]:
    """First columns of N and M, with `window + 1` and 2 entries: C = N / M."""
    head = self._head.matrix_coefficients()[: self.window]
    numerator = np.append(head, 0.0)
    numerator[1:] -= self.tail_decay * head
    numerator[1] += self.tail_scale
    denominator = np.array([1.0, -self.tail_decay])
    return numerator[: self.num_rounds], denominator[: self.num_rounds]


def optimize(
  num_rounds: int,
  *,
  num_decays: Optional[int] = None,
  window: Optional[int] = None,
  min_gain: Optional[float] = None,
  objective: str = 'mean',
  participation: Optional[participation_lib.Participation] = None,
  workload: workload_lib.WorkloadLike = None,
  cache: bool = True,
) -> TailedBLT:
  """The tailed BLT with the smallest error of prefix sums.

  Starts for each number of decays from the best BLT of one more, whose slowest decay
  becomes the tail, and follows exact gradients (L-BFGS). A step takes O(n log n).
  Scales are positive. Where that BLT, uncut, is better, it is what is returned, with a
  window of all rounds: for a `min_separation` of a few rounds, within which decays have
  no room.

  Args:
    num_rounds: Rounds n.
    num_decays: Largest number of decays of the window; `None` leaves it to `min_gain`,
      up to 8. See `TailedBLT.noise_buffers` for what they cost.
    window: Coefficients that are more than the tail, at most `num_rounds`; by default
      `min_separation`, or `num_rounds` if that is better.
    min_gain: By which part of the error a decay, or the tail, has to lower it, or it is
      left out. By default 1e-4 if `num_decays` is given, and 0.001 if it is not.
    objective: 'mean' for the smallest `rmse`, 'max' for the smallest `max_error`.
    participation: Who may take part when, which has to be given, and more than once.
    workload: Whose error it is; `None` means prefix sums. Only a `Workload` with a
      constant learning rate, with or without momentum and weight decay.
    cache: Whether to look on disk first, and to keep the result there (see `cache`).

  Returns:
    The strategy, whose sensitivity under `participation` is exact.

  Raises:
    TypeError: If a number is not one.
    ValueError: If an argument is out of range, `participation` is for another number of
      rounds, or allows one participation only.
    series_optimization.ConvergenceError: If the optimisation does not converge.

  Example:
    >>> participation = participation_lib.Participation(500, 50, max_participations=2)
    >>> strategy = optimize(500, participation=participation)
    >>> round(strategy.rmse(participation), 3), strategy.noise_buffers
    (4.465, 33)
  """
  asked = windowed_blt.check(
    num_rounds,
    num_decays,
    window,
    min_gain,
    objective,
    participation,
    workload,
    has_tail=True,
  )
  return asked.fetch(TailedBLT, 'tailed_blt.optimize', _optimize, cache)


def _optimize(asked: windowed_blt.Asked) -> TailedBLT:
  tailed, limits = asked.problem, (asked.max_decays, asked.min_gain)
  num_rounds = tailed.uncut.num_rounds
  with windowed_problem.reporting(f'tailed BLT, {num_rounds} rounds') as report:
    loss, found = tailed.search(*limits, report)
    without = dataclasses.replace(tailed, has_tail=False)
    other_loss, other = without.search(*limits, report)
    nodes = blt_search.best_nodes(tailed.uncut, asked.max_decays + 1, asked.min_gain)
  uncut_loss = float(tailed.uncut.loss_and_slope(nodes)[0])
  best = min(loss, other_loss)
  if asked.is_any_window and len(nodes) and uncut_loss < best - _ROUNDING:
    return _uncut(num_rounds, nodes)
  if windowed_problem.gain(loss, other_loss) < asked.min_gain:
    found = np.append(other, [-math.inf, -math.inf])
  *window, tail_complement, tail_scale = np.exp(found)
  complements, scales = np.split(np.array(window), 2)
  return TailedBLT(
    num_rounds,
    tailed.window,
    tuple(scales),
    tuple(1.0 - complements),
    tail_scale=float(tail_scale),
    tail_decay=1.0 - float(tail_complement),
  )


def _uncut(num_rounds: int, nodes: np.ndarray) -> TailedBLT:
  """A BLT, of which the slowest decay, the first one, is called the tail."""
  scales, decays = blt_search.scales_and_decays(nodes)
  return TailedBLT(
    num_rounds,
    num_rounds,
    tuple(scales[1:]),
    tuple(decays[1:]),
    tail_scale=float(scales[0]),
    tail_decay=float(decays[0]),
  )
