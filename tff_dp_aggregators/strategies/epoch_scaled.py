"""Strategies whose columns get shorter from epoch to epoch.

If clients take part repeatedly, the squared sensitivity is a sum over a client's
rounds, so longer columns in the first rounds can be offset by shorter ones in the last.
Early noise is in every later prefix sum, so this lowers the error, by 1 to 3%, without
more memory, with one scale for each epoch of `min_separation` rounds.
`benchmarks/round_scales.py` prints how little is gained by a scale for each round, and
`certify` bounds what any column norms could gain.
"""

import dataclasses
import functools
import math
from collections.abc import Iterable
from typing import Any, Callable, ClassVar, NamedTuple, Optional, TypeVar, Union

import numpy as np

from tff_dp_aggregators.strategies import banded
from tff_dp_aggregators.strategies import banded_inverse
from tff_dp_aggregators.strategies import blt
from tff_dp_aggregators.strategies import cache as cache_lib
from tff_dp_aggregators.strategies import recursion as recursion_lib
from tff_dp_aggregators.strategies import registry
from tff_dp_aggregators.strategies import strategy as strategy_lib
from tff_dp_aggregators.strategies import toeplitz
from tff_dp_aggregators.strategies import workload as workload_lib
from tff_dp_aggregators.strategies.numerics import blt_search
from tff_dp_aggregators.strategies.numerics import descent
from tff_dp_aggregators.strategies.numerics import gram
from tff_dp_aggregators.strategies.numerics import scaled_errors
from tff_dp_aggregators.strategies.numerics import series_problem
from tff_dp_aggregators.strategies.participation import Participation

# Tolerances of optimising banded strategies, relative to the squared error.
_TOLERANCES = {'mean': 1e-7, 'max': 1e-4}
_Scaled = TypeVar('_Scaled', bound='EpochScaled')


@dataclasses.dataclass(frozen=True, eq=False)
class EpochScaled(toeplitz.ScaledToeplitz):
  """C[i, j] = T[i, j] * (scale of round j), T lower-triangular and Toeplitz.

  A subclass states the class of `T` and has the fields of that class after these.

  Attributes:
    epoch_starts: The first round of each scale, in increasing order from 0.
    epoch_scales: The scales, positive, one for each of `epoch_starts`.
    unscaled_kind: The class of `T`.
  """

  epoch_starts: tuple[int, ...]
  epoch_scales: tuple[float, ...]
  unscaled_kind: ClassVar[type[toeplitz.LowerToeplitz]]

  def __post_init__(self) -> None:
    super().__post_init__()
    starts = recursion_lib.check_starts('epoch_starts', self.epoch_starts)
    if starts[-1] >= self.num_rounds:
      raise ValueError(
        f'epoch_starts must be less than num_rounds={self.num_rounds}, got '
        f'{starts[-1]}.'
      )
    object.__setattr__(self, 'epoch_starts', starts)
    scales = workload_lib.real_numbers('epoch_scales', self.epoch_scales)
    if len(scales) != len(starts) or min(scales) <= 0:
      raise ValueError(
        f'epoch_scales must be positive, one for each of {len(starts)} epoch_starts, '
        f'got {scales}.'
      )
    object.__setattr__(self, 'epoch_scales', scales)
    for name in self._unscaled_names:  # The values as checked and converted by `T`.
      object.__setattr__(self, name, getattr(self.unscaled, name))

  @property
  def _unscaled_names(self) -> list[str]:
    return [field.name for field in dataclasses.fields(self.unscaled_kind)]

  @functools.cached_property
  def unscaled(self) -> toeplitz.LowerToeplitz:
    """The strategy with the matrix `T`."""
    return self.unscaled_kind(
      **{name: getattr(self, name) for name in self._unscaled_names}
    )

  @classmethod
  def of(
    cls: type[_Scaled],
    unscaled: toeplitz.LowerToeplitz,
    epoch_starts: Iterable[int] = (0,),
    epoch_scales: Iterable[float] = (1.0,),
  ) -> _Scaled:
    """Returns the strategy with these scales; by default a single one of 1."""
    return cls(
      epoch_starts=tuple(epoch_starts),
      epoch_scales=tuple(epoch_scales),
      **unscaled.parameters(),
    )

  @functools.cached_property
  def _scales(self) -> np.ndarray:
    """The scale of each round, float64 of shape [n]."""
    return np.repeat(self.epoch_scales, np.diff([*self.epoch_starts, self.num_rounds]))

  def recursion(self) -> recursion_lib.Recursion:
    """That of the unscaled strategy, with noise divided by the scales."""
    factors = 1.0 / np.array(self.epoch_scales)
    return recursion_lib.Scaled(self.unscaled.recursion(), factors, self.epoch_starts)

  def per_query_error(self, workload: workload_lib.WorkloadLike = None) -> np.ndarray:
    """Takes O(n log n) a scale; dense for an array or a changing learning rate."""
    workload = workload_lib.check(self.num_rounds, workload)
    errors = scaled_errors.workload_errors(workload, self.epoch_starts)
    column = self.unscaled.inverse_coefficients()
    return errors(column, 1.0 / np.array(self.epoch_scales))[0]


@dataclasses.dataclass(frozen=True, eq=False)
class EpochToeplitz(EpochScaled):
  """A `BandedToeplitz` with scales: attributes of `EpochScaled`, then its own.

  Example:
    >>> EpochToeplitz(4, (0, 2), (2.0, 1.0), (1.0, 0.5)).materialize()
    array([[2. , 0. , 0. , 0. ],
           [1. , 2. , 0. , 0. ],
           [0. , 1. , 1. , 0. ],
           [0. , 0. , 0.5, 1. ]])
  """

  coefficients: tuple[float, ...]  # First column of the unscaled matrix.
  kind = 'epoch_toeplitz'
  unscaled_kind = toeplitz.BandedToeplitz


@dataclasses.dataclass(frozen=True, eq=False)
class EpochBandedInverse(EpochScaled):
  """A `BandedInverse` with scales: attributes of `EpochScaled`, then its own."""

  coefficients: tuple[float, ...]  # First column of the unscaled inverse.
  kind = 'epoch_banded_inverse'
  unscaled_kind = banded_inverse.BandedInverse

  @property
  def num_inverse_bands(self) -> int:
    """C^-1[i, j] = 0 for i - j >= num_inverse_bands."""
    return len(self.coefficients)


@dataclasses.dataclass(frozen=True, eq=False)
class EpochWindowedBLT(EpochScaled):
  """A `WindowedBLT` with scales: attributes of `EpochScaled`, then its own."""

  window: int  # Number of non-zero entries of the first column.
  output_scales: tuple[float, ...]  # One for each buffer.
  buffer_decays: tuple[float, ...]  # One for each buffer.
  kind = 'epoch_windowed_blt'
  unscaled_kind = blt.WindowedBLT


_Unscaled = Union[banded.Banded, toeplitz.LowerToeplitz]


def optimize(
  unscaled: _Unscaled,
  *,
  objective: str = 'mean',
  participation: Optional[Participation] = None,
  workload: workload_lib.WorkloadLike = None,
  cache: bool = True,
) -> Union[banded.Banded, EpochScaled]:
  """Minimises the error over the parameters of a strategy and a scale for each epoch.

  The search uses exact gradients (L-BFGS) and starts from `unscaled`, which should be
  the result of `optimize` of its module for the same arguments. An epoch has
  `min_separation` rounds (`series_problem` describes which scales are searched).

  For banded inverses, whose columns overlap, the scales decrease, so that the earliest,
  densest pattern of rounds is the worst. If that is not known of the result, because
  coefficients of C increase after `min_separation` rounds, a search with the bands of
  `unscaled` is tried as well, and the sensitivity may be a bound.

  A step takes O(n log n) for each epoch; for banded strategies, as long as without
  scales. For Toeplitz strategies, the result is a local minimum.

  Arguments are those of `banded.optimize`, with more than one participation, and:

  * `unscaled`: A `Banded`, `BandedToeplitz` or `WindowedBLT` with at most
    `min_separation` bands, or a `BandedInverse`.
  * `workload`: As for `optimize` of the strategy's module; `None` means prefix sums.

  Returns:
    A `Banded` whose squared column norms have mean 1 over a client's rounds, or a
    subclass of `EpochScaled`, with a single scale of 1 if scales do not help.

  Raises:
    TypeError: If `unscaled` is of another kind.
    ValueError: If columns of one client would overlap, or an argument is out of range,
      for other rounds, or allows only one participation.

  Example:
    >>> participation = Participation(64, min_separation=16)
    >>> arguments = {'participation': participation, 'cache': False}
    >>> unscaled = toeplitz.optimize(64, num_bands=16, **arguments)
    >>> scaled = optimize(unscaled, **arguments)
    >>> round(unscaled.rmse(participation), 3), round(scaled.rmse(participation), 3)
    (4.7, 4.617)
  """
  if not isinstance(unscaled, (banded.Banded, *_SEARCHES)):
    raise TypeError(
      'unscaled must be a Banded, BandedToeplitz, WindowedBLT or BandedInverse, got '
      f'{unscaled!r}.'
    )
  if isinstance(unscaled, blt.WindowedBLT):
    workload = blt.check_workload(unscaled.num_rounds, workload)
  overlaps = isinstance(unscaled, banded_inverse.BandedInverse)
  problem = series_problem.SeriesProblem.check(
    unscaled.num_rounds,
    objective,
    participation,
    workload,
    scaling='falling' if overlaps else 'disjoint',
  )
  if not overlaps:
    banded.check_separation(unscaled.num_bands, problem.participation)
  if problem.participation.possible_participations == 1:
    raise ValueError(
      'scales of epochs are of no use if a client takes part only once; use the '
      'strategy as it is, or give a participation that allows more than '
      f'{problem.participation}.'
    )
  if not isinstance(unscaled, banded.Banded):
    series_problem.check_size(problem.workload, unscaled.num_rounds)
  return cache_lib.fetch(
    banded.Banded if isinstance(unscaled, banded.Banded) else _search_for(unscaled)[0],
    'epoch_scaled.optimize',
    1,
    {**problem.parameters(), 'unscaled': unscaled.checksum},
    lambda: min(_candidates(problem, unscaled), key=problem.error),
    cache,
  )


def certify(
  strategy: banded.Banded,
  objective: str = 'mean',
  participation: Optional[Participation] = None,
  workload: workload_lib.WorkloadLike = None,
) -> gram.Certificate:
  """Proves how far a strategy is from the best with as many bands and any norms.

  The bound is `gram.lower_bound` for all banded strategies with at most as many bands,
  whatever the norms of their columns. X = C^T C is zero beyond the bands, so if V is
  zero within them except for its diagonal v, tr(V X) is the sum of v[j] X[j, j]. The
  sum of X[j, j] over one client's rounds is at most sens(C)^2. So tr(V X) is at most
  sens(C)^2 times the budget of v: the smallest number such that v is at most that
  number times a mean of patterns, entry by entry.

  The budget is known. Patterns with differences of at least b are the 0/1 vectors with
  at most one 1 in b successive rounds, and at most k in all. The rows of these
  conditions are intervals, so their matrix is totally unimodular (Hoffman and Kruskal,
  "Integral boundary points of convex polyhedra", 1956), and vectors from 0 to 1 that
  satisfy them are means of patterns. So the budget is the maximum of the sums of v over
  b successive rounds and of 1 / k of the whole sum. In fixed epochs it is a sum over
  residue classes: for each, the maximum of its entries and of 1 / k of its sum.

  V is computed from the strategy, as in `banded.certify`, or has rows and columns
  scaled so that any b successive rounds have the same sum, whichever is better.
  Arguments and cost are those of `banded.certify`, and a participation.

  Example:
    >>> participation = Participation(32, min_separation=8)
    >>> unit_columns = banded.optimize(32, num_bands=8, participation=participation)
    >>> strategy = optimize(unit_columns, participation=participation)
    >>> certify(strategy, participation=participation).gap < 0.01
    True
  """
  num_rounds = strategy.num_rounds
  problem = strategy_lib.Problem.check(num_rounds, objective, participation, workload)
  participation = problem.participation
  diagonals, weights = strategy.diagonals, np.full(num_rounds, 1.0 / num_rounds)
  if objective == 'max':
    diagonals, weights = _scaled_diagonals(problem, diagonals)
  multiplier = banded.multiplier(diagonals, problem.workload, weights)
  return gram.Certificate(
    error=problem.error(strategy) ** 2,
    lower_bound=max(
      gram.lower_bound(each, _budget(each, participation), problem.workload, weights)
      for each in (multiplier, _balanced(multiplier, participation))
    ),
    scope=(
      f'strategies of {num_rounds} rounds with at most {strategy.num_bands} bands, for '
      f'{participation}'
    ),
  )


def _balanced(multiplier: np.ndarray, participation: Participation) -> np.ndarray:
  """Scales rows and columns so that the diagonal repeats from epoch to epoch."""
  diagonal = np.diagonal(multiplier)
  offset = np.arange(len(diagonal)) % participation.min_separation
  mean = np.bincount(offset, diagonal) / np.bincount(offset)
  by_round = np.sqrt(mean[offset] / diagonal)
  return gram.shift_to_positive(multiplier * np.outer(by_round, by_round))


def _budget(multiplier: np.ndarray, participation: Participation) -> float:
  """The budget of the diagonal, as in `certify`."""
  diagonal = np.diagonal(multiplier)
  times = participation.possible_participations
  width = min(participation.min_separation, len(diagonal))
  if not participation.fixed_epoch:
    successive = np.convolve(diagonal, np.ones(width), 'valid')
    return max(float(successive.max()), math.fsum(diagonal) / times)
  offset = np.arange(len(diagonal)) % width
  largest = np.zeros(width)
  np.maximum.at(largest, offset, diagonal)
  return math.fsum(np.maximum(largest, np.bincount(offset, diagonal) / times))


def _search_for(
  unscaled: strategy_lib.Strategy,
) -> tuple[type[EpochScaled], Callable[..., '_Family']]:
  """The class of a strategy with scales, and the function that makes its family."""
  return next(each for kind, each in _SEARCHES.items() if isinstance(unscaled, kind))


def _candidates(
  problem: series_problem.SeriesProblem, unscaled: _Unscaled
) -> list[Union[banded.Banded, EpochScaled]]:
  """The strategies of which `optimize` returns the best, the unscaled one included."""
  if isinstance(unscaled, banded.Banded):
    diagonals, _ = _scaled_diagonals(problem, unscaled.diagonals)
    return [banded.Banded(unscaled.num_rounds, diagonals), unscaled]
  kind, family_of = _search_for(unscaled)
  family = family_of(unscaled, problem)
  report = descent.Progress(f'epochs, {unscaled.num_rounds} rounds')
  optimum = problem.minimize(family.series, family.start, report)
  best = kind.of(*family.strategy(optimum.parameters, optimum.starts, optimum.scales))
  candidates: list[Union[banded.Banded, EpochScaled]] = [best, kind.of(unscaled)]
  if (
    problem.scaling == 'falling'
    and best.sensitivity_kind(problem.participation) != 'exact'
  ):
    series = family.series(family.start)
    assert series is not None
    fixed = series._replace(pull_back=lambda by_column, by_noise: np.zeros(0))
    fallback = problem.minimize(lambda none: fixed, np.zeros(0), report)
    arguments = family.strategy(family.start, fallback.starts, fallback.scales)
    candidates.insert(1, kind.of(*arguments))
  return candidates


class _Family(NamedTuple):
  """The strategies of one kind as a function of parameters, which are searched."""

  start: np.ndarray  # The parameters with which the search starts.
  # From parameters to a series, or `None` outside of the domain.
  series: series_problem.Family
  # From parameters, starts and scales of epochs to the arguments of `EpochScaled.of`.
  strategy: Callable[
    [np.ndarray, list[int], np.ndarray],
    tuple[toeplitz.LowerToeplitz, list[int], np.ndarray],
  ]


def _toeplitz_family(
  unscaled: toeplitz.BandedToeplitz, _: series_problem.SeriesProblem
) -> _Family:
  """Parameters: the first column of C, which is scaled to norm 1 in the end."""
  n = unscaled.num_rounds

  def series(column: np.ndarray) -> Optional[series_problem.Series]:
    return series_problem.series_from_column(column, n) if column[0] > 0 else None

  def strategy(column: np.ndarray, starts: list[int], scales: np.ndarray) -> Any:
    norm = np.linalg.norm(column)
    return toeplitz.BandedToeplitz(n, tuple(column / norm)), starts, scales * norm

  return _Family(np.array(unscaled.coefficients), series, strategy)


def _inverse_family(
  unscaled: banded_inverse.BandedInverse, _: series_problem.SeriesProblem
) -> _Family:
  """Parameters: the bands of the inverse; C's first column gets norm 1 in the end."""
  n = unscaled.num_rounds

  def series(bands: np.ndarray) -> Optional[series_problem.Series]:
    if bands[0] <= 0:
      return None
    with np.errstate(over='ignore', invalid='ignore'):
      result = series_problem.series_from_inverse(bands, n)
      finite = math.isfinite(float(np.abs(result.column).sum()))
    return result if finite else None

  def strategy(bands: np.ndarray, starts: list[int], scales: np.ndarray) -> Any:
    return banded_inverse.with_unit_columns(n, bands), starts, scales

  return _Family(np.array(unscaled.coefficients), series, strategy)


def _windowed_family(
  unscaled: blt.WindowedBLT, epoch_problem: series_problem.SeriesProblem
) -> _Family:
  """Parameters: logarithms of the decays' complements and of the output scales."""
  n, window = unscaled.num_rounds, unscaled.window
  problem = blt_search.WindowProblem(**epoch_problem.parameters(window=window))

  def series(logarithms: np.ndarray) -> Optional[series_problem.Series]:
    complements, _ = np.split(logarithms, 2)
    return None if np.any(complements >= 0.0) else problem.series(logarithms)

  def strategy(logarithms: np.ndarray, starts: list[int], scales: np.ndarray) -> Any:
    return blt.from_logarithms(logarithms, n, window), starts, scales

  complements = 1.0 - np.array(unscaled.buffer_decays)
  start = np.log(np.append(complements, unscaled.output_scales))
  return _Family(start, series, strategy)


# By the class of the unscaled strategy.
_SEARCHES: dict[Any, tuple[type[EpochScaled], Callable[..., _Family]]] = {
  toeplitz.BandedToeplitz: (EpochToeplitz, _toeplitz_family),
  banded_inverse.BandedInverse: (EpochBandedInverse, _inverse_family),
  blt.WindowedBLT: (EpochWindowedBLT, _windowed_family),
}


def _scaled_diagonals(
  problem: strategy_lib.Problem, start: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
  """Returns the best diagonals, and the weights of the errors that they minimise."""
  norms = series_problem.ColumnNorms(problem.participation)
  lengths = np.diff([*norms.starts, problem.num_rounds])
  errors_of_diagonals = banded.errors_of_diagonals(problem.workload)

  def split(point: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    variables, columns = np.split(point, [len(norms.start)])
    return variables, columns.reshape(start.shape)

  def errors(point: np.ndarray) -> Optional[descent.Evaluated]:
    variables, columns = split(point)
    if np.any(columns[0] <= 0):
      return None
    units = banded.unit_columns(columns)
    by_round = np.repeat(norms(variables), lengths)
    values, pull_back_scaled = errors_of_diagonals(units * by_round)

    def pull_back(weights: np.ndarray) -> np.ndarray:
      by_scaled = pull_back_scaled(weights)
      by_norm = np.add.reduceat((units * by_scaled).sum(axis=0), norms.starts)
      by_variables = norms.pull_back(variables, by_norm)
      by_columns = banded.by_columns(columns, by_scaled * by_round)
      return np.append(by_variables, by_columns.ravel())

    return values, pull_back

  minimize = getattr(descent, f'minimize_{problem.objective}')
  progress = descent.Progress(f'epochs of {banded.name(start)}')
  minimum = minimize(
    errors,
    np.append(norms.start, start.ravel()),
    _TOLERANCES[problem.objective],
    progress,
  )
  variables, columns = split(minimum.point)
  by_round = np.repeat(norms(variables), lengths)
  return banded.unit_columns(columns) * by_round, minimum.weights


def _register(
  name: str, strategy: type[strategy_lib.Strategy], seconds: Callable[..., float]
) -> None:
  """Registers a kind with scales; it has none if clients take part only once."""
  base = registry.kind(name)

  def build(
    limits: registry.Limits,
    workload: workload_lib.WorkloadLike = None,
    **given: int,
  ) -> strategy_lib.Strategy:
    can_return = limits.possible_participations > 1
    if can_return and base.bands and given.get(base.bands):
      banded.check_separation(given[base.bands], limits)
    unscaled: Any = base.build(limits, workload=workload, **given)
    if can_return:
      return optimize(unscaled, participation=limits, workload=workload)
    is_kind = base.strategy is strategy
    return unscaled if is_kind else _search_for(unscaled)[0].of(unscaled)

  def why_skip(limits: registry.Limits, given: registry.Options) -> Optional[str]:
    if limits.possible_participations == 1:
      return 'a client takes part only once, so that no epoch has a scale of its own.'
    if registry.are_done_early(limits):
      return (
        "a client's participations fit into 60% of the rounds, where scales of epochs "
        'gain next to nothing.'
      )
    return base.why_skip(limits, given)

  registry.register(
    dataclasses.replace(
      base,
      name=f'epoch_{name}',
      strategy=strategy,
      build=build,
      words=f'{base.words}, whose columns get shorter from epoch to epoch',
      seconds=seconds,
      quicker_with=base.quicker_with if base.strategy is strategy else None,
      variants=(
        toeplitz.free_bands_unless_given if base.bands else registry.Kind.variants
      ),
      why_skip=why_skip,
      bands=None,
      is_free=registry.Kind.is_free,
      unscaled=name,
    )
  )


def _seconds(limits: registry.Limits, **options: int) -> float:
  """Estimated time: each step takes a few Fourier transforms for each scale."""
  scales = min(limits.possible_participations, series_problem.MAX_SCALES)
  return 0.5 + 2e-4 * limits.num_rounds + 2e-5 * scales * limits.num_rounds


_register(
  'banded',
  banded.Banded,
  lambda limits, **given: 1.5 * registry.kind('banded').seconds(limits, **given),
)
_register('toeplitz', EpochToeplitz, _seconds)
_register(
  'banded_inverse', EpochBandedInverse, lambda limits, **_: 2.5 * _seconds(limits)
)
_register('windowed_blt', EpochWindowedBLT, _seconds)
