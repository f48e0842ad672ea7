"""BLT strategies cut off after a window: banded matrices with little to remember.

    c_0 = 1,    c_i = sum_j output_scales[j] * buffer_decays[j]^(i - 1)   for i < window

and 0 from there on. With a window of at most `min_separation` the columns of one client
do not overlap. That is what makes banded Toeplitz strategies better than BLTs for
several participations; and two or three decays are all they need inside the band: for
2000 rounds and 5 participations 400 rounds apart, the least RMSE is

    strategy                               model-sized buffers     RMSE
    banded Toeplitz, 400 bands                             399    7.849
    windowed, 3 decays                                      18    7.851
    windowed, 2 decays                                      12    7.894
    BLT, 3 decays (`blt.optimize`)                           3    8.147

and for 20 participations 100 rounds apart: 99 buffers 20.207; 63 buffers 20.207, 42
buffers 20.219; 2 buffers 21.374.

**How a server draws this noise.** With y = C^-1 z, and for each decay the sum s of the
last window - 1 rounds,

    y[t] = z[t] - sum_j output_scales[j] s_j[t]
    s_j[t + 1] = decay_j s_j[t] + y[t] - decay_j^(window - 1) y[t - (window - 1)].

What a banded strategy would have to remember is y of `window - 1` rounds ago. But z can
be drawn again from its seed, so a second copy of the recursion that runs
`window - 1` rounds late makes y of that time anew; a third copy serves the second; and
so on to the first round. (n - 2) // (window - 1) + 1 copies with d buffers each are all
there is, instead of `window - 1` buffers; a round takes as many drawings of z.

It pays if copies x decays are fewer than `window - 1`, that is, for few long windows.
Where they are not, `recursion` is the forward substitution of any banded strategy.

Another way to spend little memory has been tried, decays that are complex numbers: with
one real decay and a pair of complex ones, three buffers, RMSE came to about 20.99 and
8.126 in the two cases above (a trial, which no benchmark here prints). It takes a
constraint in every round to keep `C` decreasing and its sensitivity exact, and is not
offered here.
"""

import dataclasses
import logging
from collections.abc import Callable
from typing import Optional, TypeVar

import numpy as np

from tff_dp_aggregators.base import checks
from tff_dp_aggregators.strategies import blt
from tff_dp_aggregators.strategies import cache as cache_lib
from tff_dp_aggregators.strategies import participation as participation_lib
from tff_dp_aggregators.strategies import recursion as recursion_lib
from tff_dp_aggregators.strategies import size
from tff_dp_aggregators.strategies import strategy as strategy_lib
from tff_dp_aggregators.strategies import toeplitz
from tff_dp_aggregators.strategies import workload as workload_lib
from tff_dp_aggregators.strategies.numerics import blt_search
from tff_dp_aggregators.strategies.numerics import windowed_problem

_logger = logging.getLogger(__name__)
# By how much of the error a decay has to lower it: where a number of decays is asked
# for, and where it is left open.
_MIN_GAIN = 1e-4
_GAIN_WORTH_A_DECAY = 1e-3
_MAX_DECAYS = 8
_Found = TypeVar('_Found', bound=strategy_lib.Strategy)


@dataclasses.dataclass(frozen=True, eq=False)
class WindowedBLT(toeplitz.LowerToeplitz):
  """A BLT of given scales and decays whose coefficients are 0 from `window` on.

  Attributes:
    num_rounds: Rounds n; `C` is n x n.
    window: How many coefficients are not 0, at most n.
    output_scales: omega, as in `blt.BLT`.
    buffer_decays: theta, as in `blt.BLT`.

  Raises:
    TypeError: If an argument is not a number, or not numbers.
    ValueError: If `window` is not between 1 and `num_rounds`, or as `blt.BLT` raises.

  Example:
    >>> strategy = WindowedBLT(6, 3, output_scales=(0.5,), buffer_decays=(0.8,))
    >>> strategy.matrix_coefficients().tolist()
    [1.0, 0.5, 0.4, 0.0, 0.0, 0.0]
  """

  window: int
  output_scales: tuple[float, ...]
  buffer_decays: tuple[float, ...]
  kind = 'windowed_blt'

  def __post_init__(self) -> None:
    super().__post_init__()
    window = _check_window(self.window, self.num_rounds)
    object.__setattr__(self, 'window', window)
    uncut = blt.BLT(window, self.output_scales, self.buffer_decays)
    object.__setattr__(self, 'output_scales', uncut.output_scales)
    object.__setattr__(self, 'buffer_decays', uncut.buffer_decays)

  @property
  def num_bands(self) -> int:
    """C[i, j] = 0 for i - j >= num_bands: the window."""
    return self.window

  @property
  def num_copies(self) -> int:
    """How many copies of the sums there are, each `window - 1` rounds after another."""
    if self.window == 1 or self.num_rounds == 1:
      return 0
    return (self.num_rounds - 2) // (self.window - 1) + 1

  def recursion(self) -> recursion_lib.Recursion:
    """That which keeps less: sums of decays, or the noise of the last rounds.

    A sum for each decay and copy, where noise can be drawn again from its seed; or
    forward substitution, which also draws one row of z only, with the noise of
    `window - 1` rounds.
    """
    if not self.buffer_decays or not self.num_copies:
      return recursion_lib.LastRounds(np.ones((1, 1)), remembers='row')
    decays, late = np.array(self.buffer_decays), self.window - 1
    if late <= self.num_copies * len(decays):
      return recursion_lib.LastRounds.solving(self._bands()[np.newaxis])
    return recursion_lib.DecayingSums(
      decays,
      outputs=-np.array(self.output_scales),
      ends=-(decays**late),
      copies=self.num_copies,
      delay=late,
    )

  def matrix_coefficients(self) -> np.ndarray:
    """First column of `C`, float64 of shape [n]; O(n + window d)."""
    coefficients = np.zeros(self.num_rounds)
    coefficients[: self.window] = self._bands()
    return coefficients

  def inverse_coefficients(self) -> np.ndarray:
    """First column of `C^-1`, float64 of shape [n].

    O(n window), by forward substitution.
    """
    bands = tuple(self._bands())
    return toeplitz.BandedToeplitz(self.num_rounds, bands).inverse_coefficients()

  def _bands(self) -> np.ndarray:
    uncut = blt.BLT(self.window, self.output_scales, self.buffer_decays)
    return uncut.matrix_coefficients()


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
) -> WindowedBLT:
  """The windowed BLT with the smallest error of prefix sums.

  Starts for each number of decays from the best BLT of one window, and follows exact
  gradients (L-BFGS). A step takes O(n log n). Scales are positive.

  Args:
    num_rounds: Rounds n.
    num_decays: Largest number of decays; `None` leaves it to `min_gain`, up to 8. See
      `WindowedBLT.noise_buffers` for what they cost.
    window: Coefficients that are not 0, at most `num_rounds`; by default
      `min_separation`, up to which the columns of one client do not overlap.
    min_gain: By which part of the error a decay has to lower it, or it is left out. By
      default 1e-4 if `num_decays` is given, and 0.001 if it is not.
    objective: 'mean' for the smallest `rmse`, 'max' for the smallest `max_error`.
    participation: Who may take part when, which has to be given: for the single
      participation that `None` means, a window is of no use.
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
    >>> participation = participation_lib.Participation(200, min_separation=50)
    >>> strategy = optimize(200, num_decays=2, participation=participation)
    >>> strategy.noise_buffers
    10
  """
  asked = check(
    num_rounds, num_decays, window, min_gain, objective, participation, workload
  )
  return asked.fetch(WindowedBLT, 'windowed_blt.optimize', _optimize, cache)


@dataclasses.dataclass(frozen=True)
class Asked:
  """Which windowed BLT is wanted, checked.

  Attributes:
    problem: What is minimised.
    participation: Who may take part when.
    num_decays: Largest number of decays, as it was asked for.
    min_gain: By which part of the error a decay has to lower it.
    is_any_window: Whether the window was left open.
  """

  problem: windowed_problem.WindowProblem
  participation: participation_lib.Participation
  num_decays: Optional[int]
  min_gain: float
  is_any_window: bool

  @property
  def max_decays(self) -> int:
    """Largest number of decays that are tried."""
    return _MAX_DECAYS if self.num_decays is None else self.num_decays

  def fetch(
    self,
    kind: type[_Found],
    solver: str,
    optimize: Callable[['Asked'], _Found],
    cache: bool,
  ) -> _Found:
    """The strategy, from disk or anew; the log says if it has fewer decays than asked.

    Args:
      kind: Its class, with `buffer_decays`.
      solver: What finds it, as the cache calls it.
      optimize: Finds it.
      cache: As for `optimize`.
    """
    parameters = dict(
      dataclasses.asdict(self.problem),
      num_decays=self.max_decays,
      min_gain=float(self.min_gain),
      is_any_window=self.is_any_window,
    )
    strategy = cache_lib.fetch(
      kind, solver, 1, parameters, lambda: optimize(self), cache
    )
    has = len(strategy.parameters()['buffer_decays'])
    if self.num_decays is not None and has < self.num_decays:
      _logger.warning(
        'the %s for %s has %d decays, not %d: one more would lower the %s '
        'error by less than %g of it.',
        kind.kind,
        self.participation,
        has,
        self.num_decays,
        'largest' if self.problem.uncut.objective == 'max' else 'mean',
        self.min_gain,
      )
    return strategy


def check(
  num_rounds: int,
  num_decays: Optional[int],
  window: Optional[int],
  min_gain: Optional[float],
  objective: str,
  participation: Optional[participation_lib.Participation],
  workload: workload_lib.WorkloadLike,
  has_tail: bool = False,
) -> Asked:
  """What the arguments of `optimize` ask for.

  Args:
    num_rounds: As for `optimize`.
    num_decays: As for `optimize`.
    window: As for `optimize`.
    min_gain: As for `optimize`.
    objective: As for `optimize`.
    participation: As for `optimize`.
    workload: As for `optimize`.
    has_tail: Whether a decay goes on after the window (`tailed_blt`).

  Raises:
    TypeError: As `optimize`.
    ValueError: As `optimize`.
  """
  num_rounds = checks.check_positive_int('num_rounds', num_rounds)
  size.check_rounds(num_rounds)
  if num_decays is not None:
    checks.check_positive_int('num_decays', num_decays)
  if min_gain is None:
    min_gain = _GAIN_WORTH_A_DECAY if num_decays is None else _MIN_GAIN
  checks.check_objective(objective)
  given = 'no participation, which means a single one'
  if participation is not None:
    given = str(participation)
  participation = participation_lib.check(num_rounds, participation)
  if participation.possible_participations == 1:
    raise ValueError(
      'a window is of no use if a client takes part only once; use blt.optimize, or '
      f'give a participation that allows more; got {given}.'
    )
  separation = participation.min_separation
  is_any_window = window is None
  window = _check_window(separation if window is None else window, num_rounds)
  if not 0 < min_gain < 1:
    raise ValueError(f'min_gain must be above 0 and below 1, got {min_gain}.')
  workload = blt.check_workload(num_rounds, workload)
  uncut = blt_search.BLTProblem(
    num_rounds,
    separation,
    participation.possible_participations,
    objective,
    workload.momentum,
    workload.weight_decay,
  )
  problem = windowed_problem.WindowProblem(window, uncut, has_tail)
  return Asked(problem, participation, num_decays, min_gain, is_any_window)


def _optimize(asked: Asked) -> WindowedBLT:
  problem = asked.problem
  num_rounds = problem.uncut.num_rounds
  with windowed_problem.reporting(f'windowed BLT, {num_rounds} rounds') as report:
    _, parameters = problem.search(asked.max_decays, asked.min_gain, report)
  complements, scales = np.split(np.exp(parameters), 2)
  return WindowedBLT(
    num_rounds, problem.window, tuple(scales), tuple(1.0 - complements)
  )


def _check_window(window: int, num_rounds: int) -> int:
  window = checks.check_positive_int('window', window)
  if window > num_rounds:
    raise ValueError(f'window must be at most num_rounds={num_rounds}, got {window}.')
  return window
