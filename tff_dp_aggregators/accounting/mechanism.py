"""A mechanism by name: what flags, reports and run directories speak of.

`Mechanism` is the small record from which everything about privacy follows: which
strategy, who may take part, how much noise. Flags become one, a run directory stores
one, a report explains one.
"""

import dataclasses
import math
from typing import Any, Callable, Optional

import dp_accounting
from dp_accounting import NeighboringRelation as Relation

from tff_dp_aggregators import strategies
from tff_dp_aggregators.accounting import calibration
from tff_dp_aggregators.accounting import events
from tff_dp_aggregators.accounting import schemas
from tff_dp_aggregators.base import checks
from tff_dp_aggregators.strategies.numerics import toeplitz_problem

FROM_FILE = 'file'
INVERSE_BANDS = 16  # Of banded_inverse, where nothing is asked for.


@dataclasses.dataclass(frozen=True)
class Mechanism:
  """A matrix mechanism under a participation schema.

  Attributes:
    name: One of `NAMES`, or 'file' for a strategy made elsewhere.
    participation: Who takes part when, and for how many rounds: limits, or sampling.
    noise_multiplier: Standard deviation of z over the clip norm.
    num_bands: Bands of C for banded and toeplitz, by default `free_bands`, the most
      that cost no sensitivity; of C^-1 for banded_inverse, by default 16.
    num_buffers: The most buffers of blt; by default as many as are worth it.
    restart_every: Rounds after which the tree begins anew; by default never.
    clipped_count_stddev: With adaptive clipping, the standard deviation of z for the
      count of small norms, more than half of `noise_multiplier`; that covers both then.
    adjacency: A key of `schemas.ADJACENCIES`; by default the schema's own.
    strategy: Strategy matrix C. It follows from the rest and need not be given, but for
      'file', or to save the time that finding it takes.

  Raises:
    ValueError: If the name is unknown, a number is out of range, an option is given to
      a mechanism that does not have it, or the adjacency is not valid for the schema.

  Example:
    >>> participation = strategies.Participation.from_rounds_between(2000, 313, 6)
    >>> mechanism = Mechanism('tree', participation, noise_multiplier=7.0)
    >>> round(mechanism.effective_noise_multiplier, 4)
    0.7876
  """

  name: str
  participation: schemas.Schema
  noise_multiplier: float
  num_bands: Optional[int] = None
  num_buffers: Optional[int] = None
  restart_every: Optional[int] = None
  clipped_count_stddev: Optional[float] = None
  adjacency: Optional[str] = None
  strategy: strategies.Strategy = None  # type: ignore[assignment]  # Set below.

  def __post_init__(self) -> None:
    noise_multiplier = events.check_noise_multiplier(self.noise_multiplier)
    object.__setattr__(self, 'noise_multiplier', noise_multiplier)
    _check_clipped_count_stddev(self.clipped_count_stddev, noise_multiplier)
    relation = schemas.check_relation(self.participation, _relation(self.adjacency))
    object.__setattr__(self, 'adjacency', schemas.adjacency(relation))
    if self.name != FROM_FILE:
      _check_options(self.name, self._options)
    elif self.strategy is None or any(v is not None for v in self._options.values()):
      raise ValueError("the mechanism 'file' is a strategy alone, without options.")
    if self.strategy is None:
      strategy = strategy_for(self.name, self.participation, **self._options)
      object.__setattr__(self, 'strategy', strategy)
    elif self.name != FROM_FILE:
      _check_strategy(self.name, self._options, self.strategy)
    schemas.check(self.strategy, self.participation)

  @classmethod
  def for_target(
    cls,
    name: str,
    participation: schemas.Schema,
    target_epsilon: float,
    target_delta: float,
    num_bands: Optional[int] = None,
    *,
    accountant: Optional[str] = None,
    **options: Any,
  ) -> 'Mechanism':
    """The mechanism with the least noise that keeps a privacy target.

    Args:
      name: As for the class.
      participation: Who takes part when.
      target_epsilon: Positive.
      target_delta: Between 0 and 1, exclusive.
      num_bands: As for the class, as are `options`.
      accountant: A key of `accountants.ACCOUNTANTS`; `None` for the tightest.
      **options: Further attributes of the class, but for `noise_multiplier`.

    Raises:
      ValueError: If an argument is out of range.
    """
    clipped_count_stddev = options.pop('clipped_count_stddev', None)
    planned = cls(name, participation, 1.0, num_bands, **options)
    noise_multiplier = calibration.noise_multiplier(
      planned.event_with,
      target_epsilon,
      target_delta,
      accountant=accountant,
      relation=planned.relation,
    )
    return dataclasses.replace(
      planned,
      noise_multiplier=noise_multiplier,
      clipped_count_stddev=clipped_count_stddev,
    )

  @property
  def relation(self) -> Relation:
    """The neighbouring relation of `adjacency`."""
    assert self.adjacency is not None  # Set by __post_init__.
    return schemas.ADJACENCIES[self.adjacency]

  @property
  def limits(self) -> strategies.Participation:
    """In which rounds a client can take part at all."""
    return schemas.limits(self.participation)

  @property
  def is_sampled(self) -> bool:
    """Whether the guarantee rests on sampling."""
    return not isinstance(self.participation, strategies.Participation)

  @property
  def sensitivity(self) -> float:
    """What one client changes C X by, in clip norms.

    In all its rounds together, or in one round if the schema is one of sampling; twice
    sens(C) where one client is replaced by another.
    """
    limits = None if self.is_sampled else self.limits
    both = 2 if self.relation is Relation.REPLACE_ONE else 1
    return both * self.strategy.sensitivity(limits)

  @property
  def effective_noise_multiplier(self) -> float:
    """`noise_multiplier / sensitivity`, what accounting needs."""
    return self.noise_multiplier / self.sensitivity

  @property
  def values_noise_multiplier(self) -> float:
    """Standard deviation of z for the values alone, over the clip norm.

    It is `noise_multiplier` unless a part of that pays for adaptive clipping
    (arXiv:1905.03871, Theorem 1).
    """
    if self.clipped_count_stddev is None or self.noise_multiplier == 0:
      return self.noise_multiplier
    ratio = self.noise_multiplier / (2 * self.clipped_count_stddev)
    return self.noise_multiplier / math.sqrt(1 - ratio * ratio)

  @property
  def event(self) -> dp_accounting.DpEvent:
    """The event of all rounds together."""
    return self.event_with(self.noise_multiplier)

  def event_with(self, noise_multiplier: float) -> dp_accounting.DpEvent:
    """The event of all rounds, if the noise were another."""
    return schemas.event(
      self.strategy, self.participation, noise_multiplier, self.relation
    )

  def to_json(self) -> dict[str, Any]:
    """JSON-ready values that `from_json` reads back exactly."""
    return {
      'name': self.name,
      'participation': schemas.to_json(self.participation),
      'adjacency': self.adjacency,
      'noise_multiplier': self.noise_multiplier,
      **self._options,
      'clipped_count_stddev': self.clipped_count_stddev,
      'strategy_checksum': self.strategy.checksum,
    }

  @classmethod
  def from_json(
    cls, data: dict[str, Any], strategy: Optional[strategies.Strategy] = None
  ) -> 'Mechanism':
    """Reads what `to_json` wrote.

    Args:
      data: As written.
      strategy: The strategy, if it was stored as well; else it is found anew.

    Raises:
      ValueError: If something is missing, or the strategy is not the one whose checksum
        was stored.
    """
    try:
      values = dict(data)
      stored = values.pop('strategy_checksum')
      values['participation'] = schemas.from_json(values['participation'])
      mechanism = cls(strategy=strategy, **values)  # type: ignore[arg-type]
    except KeyError as e:
      raise ValueError(f'the stored mechanism lacks {e}.') from e
    except TypeError as e:
      raise ValueError(f'the stored mechanism is incomplete: {e}') from e
    if mechanism.strategy.checksum != stored:
      raise ValueError(
        f'the stored mechanism used the strategy {stored}, but '
        f'{"these parameters give" if strategy is None else "the strategy given is"} '
        f'{mechanism.strategy.checksum}: something was altered, or written by another '
        'release or machine. Give the strategy file that was used.'
      )
    return mechanism

  @property
  def _options(self) -> dict[str, Optional[int]]:
    return {name: getattr(self, name) for name in _OPTIONS}


def strategy_for(
  name: str,
  participation: schemas.Schema,
  num_bands: Optional[int] = None,
  num_buffers: Optional[int] = None,
  restart_every: Optional[int] = None,
) -> strategies.Strategy:
  """The strategy of a named mechanism: of its kind, the one with the least RMSE.

  Args:
    name: One of `NAMES`.
    participation: Who takes part when.
    num_bands: See `Mechanism`, as for the others.
    num_buffers: See `Mechanism`.
    restart_every: See `Mechanism`.

  Raises:
    ValueError: If the name is unknown, or an option is out of range or not one of this
      mechanism.

  Example:
    >>> participation = strategies.Participation(64, min_separation=8)
    >>> strategy_for('toeplitz', participation).num_bands
    8
  """
  options = {
    'num_bands': num_bands,
    'num_buffers': num_buffers,
    'restart_every': restart_every,
  }
  _check_options(name, options)
  given = {key: value for key, value in options.items() if value is not None}
  return _KINDS[name].build(schemas.limits(participation), **given)


def parameters_of(strategy: strategies.Strategy) -> dict[str, int]:
  """The numbers that tell strategies of one mechanism apart.

  Bands of C for banded and toeplitz, of its inverse for banded_inverse; buffers of blt;
  rounds after which a tree begins anew.
  """
  if isinstance(strategy, strategies.Identity):
    return {}
  if isinstance(strategy, strategies.BandedInverse):
    return {'num_bands': strategy.num_inverse_bands}
  if isinstance(strategy, (strategies.Banded, strategies.BandedToeplitz)):
    return {'num_bands': strategy.num_bands}
  if isinstance(strategy, strategies.BLT):
    return {'num_buffers': strategy.num_buffers}
  if isinstance(strategy, strategies.BinaryTree) and strategy.restart_every is not None:
    return {'restart_every': strategy.restart_every}
  return {}


def free_bands(limits: strategies.Participation) -> int:
  """How many bands cost no sensitivity, as columns of one client share no row.

  A single participation is hidden by any number; 4096 are the most that are optimised.
  """
  bands = limits.num_rounds
  if limits.possible_participations > 1:
    bands = min(bands, limits.min_separation)
  return min(bands, toeplitz_problem.MAX_BANDS)


def _banded(
  limits: strategies.Participation, num_bands: Optional[int] = None
) -> strategies.Strategy:
  if num_bands is None:
    num_bands = free_bands(limits)
  return strategies.banded.optimize(limits.num_rounds, num_bands, 'mean', limits)


def _toeplitz(
  limits: strategies.Participation, num_bands: Optional[int] = None
) -> strategies.Strategy:
  if num_bands is None:
    num_bands = free_bands(limits)
  return strategies.toeplitz.optimize_banded(
    limits.num_rounds, num_bands, 'mean', limits
  )


def _blt(
  limits: strategies.Participation, num_buffers: Optional[int] = None
) -> strategies.Strategy:
  return strategies.blt.optimize(limits.num_rounds, num_buffers, 'mean', limits)


def _banded_inverse(
  limits: strategies.Participation, num_bands: Optional[int] = None
) -> strategies.Strategy:
  if num_bands is None:
    num_bands = min(INVERSE_BANDS, limits.num_rounds)
  return strategies.banded_inverse.optimize(
    limits.num_rounds, num_bands, 'mean', limits
  )


@dataclasses.dataclass(frozen=True)
class _Kind:
  """How a name becomes a strategy, and the options it has.

  Attributes:
    kind: The class of strategy.
    build: Finds it, from limits on participation and options.
    options: Names of options, and the strategy's attributes that they limit.
  """

  kind: type[strategies.Strategy]
  build: Callable[..., strategies.Strategy]
  options: dict[str, str] = dataclasses.field(default_factory=dict)


_KINDS = {
  'gaussian': _Kind(
    strategies.Identity, lambda limits: strategies.Identity(limits.num_rounds)
  ),
  'tree': _Kind(
    strategies.BinaryTree,
    lambda limits, **options: strategies.BinaryTree(limits.num_rounds, **options),
    {'restart_every': 'restart_every'},
  ),
  'banded': _Kind(strategies.Banded, _banded, {'num_bands': 'num_bands'}),
  'toeplitz': _Kind(strategies.BandedToeplitz, _toeplitz, {'num_bands': 'num_bands'}),
  'blt': _Kind(strategies.BLT, _blt, {'num_buffers': 'num_buffers'}),
  'banded_inverse': _Kind(
    strategies.BandedInverse, _banded_inverse, {'num_bands': 'num_inverse_bands'}
  ),
}
NAMES = tuple(_KINDS)
_OPTIONS = ('num_bands', 'num_buffers', 'restart_every')


def _check_options(name: str, options: dict[str, Optional[int]]) -> None:
  if name not in _KINDS:
    raise ValueError(f'unknown mechanism {name!r}; known: {", ".join(NAMES)}.')
  for option, value in options.items():
    if value is not None:
      checks.check_positive_int(option, value)
    if value is not None and option not in _KINDS[name].options:
      having = [each for each, kind in _KINDS.items() if option in kind.options]
      raise ValueError(f'{option}={value} is for {", ".join(having)}, not for {name}.')


def _check_strategy(
  name: str, options: dict[str, Optional[int]], strategy: strategies.Strategy
) -> None:
  """Refuses a strategy that is not what name and options stand for.

  An optimum may have fewer bands or buffers than were allowed.
  """
  if not isinstance(strategy, _KINDS[name].kind):
    raise ValueError(f'the strategy of {name} is not a {type(strategy).__name__}.')
  for option, attribute in _KINDS[name].options.items():
    asked, has = options[option], getattr(strategy, attribute)
    if asked is not None and (has is None or has > asked):
      raise ValueError(f'{option} is {asked}, but the strategy given has {has}.')


def _check_clipped_count_stddev(
  value: Optional[float], noise_multiplier: float
) -> None:
  if value is not None and not (value > noise_multiplier / 2 and math.isfinite(value)):
    raise ValueError(
      'clipped_count_stddev must be finite and more than half of noise_multiplier, '
      f'{noise_multiplier}, or the count alone costs more than the whole; got {value}.'
    )


def _relation(adjacency: Optional[str]) -> Optional[Relation]:
  if adjacency is None:
    return None
  if adjacency not in schemas.ADJACENCIES:
    raise ValueError(
      f'unknown adjacency {adjacency!r}; known: {", ".join(schemas.ADJACENCIES)}.'
    )
  return schemas.ADJACENCIES[adjacency]
