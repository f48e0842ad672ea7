"""A mechanism by name: what flags, reports and run directories speak of.

`Mechanism` is the small record from which everything about privacy follows: which
strategy, who may take part, how much noise. Flags become one, a run directory stores
one, a report explains one.
"""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, Optional, Union

import dp_accounting
from dp_accounting import NeighboringRelation as Relation

from tff_dp_aggregators import strategies
from tff_dp_aggregators.accounting import accountants
from tff_dp_aggregators.accounting import adaptive_clipping
from tff_dp_aggregators.accounting import calibration
from tff_dp_aggregators.accounting import events
from tff_dp_aggregators.accounting import noises
from tff_dp_aggregators.accounting import schemas
from tff_dp_aggregators.strategies import registry

FROM_FILE = 'file'  # The name of a mechanism whose strategy was made elsewhere.


def names() -> tuple[str, ...]:
  """Names of mechanisms: of kinds of strategies, and of noise that is not Gaussian.

  A kind that is registered later is among them as well.
  """
  return (*registry.KINDS, *noises.OTHERS)


class Target(NamedTuple):
  """A privacy target that a mechanism was made for.

  Attributes:
    epsilon: At most this.
    delta: At which delta.
  """

  epsilon: float
  delta: float


@dataclasses.dataclass(frozen=True, init=False)
class Mechanism:
  """A mechanism under a participation schema.

  Attributes:
    name: One of `names()`, or 'file' for a strategy made elsewhere.
    participation: Who takes part when, and for how many rounds: limits, or sampling.
    noise_multiplier: Scale of z over the clip norm: of Gaussian noise its standard
      deviation, of Laplace noise that over sqrt(2).
    options: Names and values of the options that were given, such as num_bands. Each
      is an argument of its own; `strategies.registry` lists them, with their defaults.
    clipped_count_stddev: With adaptive clipping, the standard deviation of z for the
      count of small norms, more than half of `noise_multiplier`; that covers both then.
    adjacency: A key of `schemas.ADJACENCIES`; by default the schema's own.
    strategy: Strategy matrix C. It follows from the rest and need not be given, but for
      'file', or to save the time that finding it takes.

  Raises:
    TypeError: If there is no such option, or an argument is not of its type.
    ValueError: If the name is unknown, a number is out of range, an option is given to
      a mechanism that does not have it, or the adjacency is not valid for the schema.

  Example:
    >>> participation = strategies.Participation.from_rounds_between(2000, 313, 6)
    >>> mechanism = Mechanism('tree', participation, noise_multiplier=7.0)
    >>> round(mechanism.effective_noise_multiplier, 4)
    0.7876
    >>> Mechanism('tree', participation, 7.0, restart_every=314).options
    (('restart_every', 314),)
  """

  name: str
  participation: schemas.Schema
  noise_multiplier: float
  options: tuple[tuple[str, int], ...]
  clipped_count_stddev: Optional[float]
  adjacency: str
  strategy: strategies.Strategy

  def __init__(
    self,
    name: str,
    participation: schemas.Schema,
    noise_multiplier: float,
    *,
    clipped_count_stddev: Optional[float] = None,
    adjacency: Optional[str] = None,
    strategy: Optional[strategies.Strategy] = None,
    options: Union[Mapping[str, Optional[int]], Iterable[tuple[str, int]]] = (),
    **given: Optional[int],
  ) -> None:
    noise_multiplier = events.check_noise_multiplier(noise_multiplier)
    if clipped_count_stddev is not None:
      adaptive_clipping.values_noise_multiplier(noise_multiplier, clipped_count_stddev)
    relation = schemas.check_relation(participation, _relation(adjacency))
    # Both, for `dataclasses.replace` hands on `options`, and one may change.
    merged: dict[str, Optional[int]] = {**dict(options), **given}
    if isinstance(name, strategies.Strategy):
      raise TypeError(
        f"name must be a str, got a strategy; write name='{FROM_FILE}', strategy=..."
      )
    if name == FROM_FILE:
      checked = registry.check_numbers(merged)
      if strategy is None or checked:
        raise ValueError(
          "the mechanism 'file' is a strategy alone, without options; give "
          'strategy=..., such as strategies.Strategy.load(path).'
        )
      strategies.strategy.require(strategy)
    elif name in noises.OTHERS:
      checked, strategy = _of_independent(
        name, participation, merged, strategy, clipped_count_stddev
      )
    else:
      checked = registry.check_options(name, merged)
      if strategy is None:
        strategy = strategy_for(name, participation, **checked)
      else:
        registry.check_strategy(name, checked, strategy)
    schemas.check(strategy, participation, noises.of_mechanism(name))
    values = {
      'name': name,
      'participation': participation,
      'noise_multiplier': noise_multiplier,
      'options': tuple(checked.items()),
      'clipped_count_stddev': clipped_count_stddev,
      'adjacency': schemas.adjacency(relation),
      'strategy': strategy,
    }
    for field, value in values.items():
      object.__setattr__(self, field, value)

  @classmethod
  def for_target(
    cls,
    name: str,
    participation: schemas.Schema,
    target_epsilon: float,
    target_delta: float,
    *,
    accountant: Optional[str] = None,
    **options: Any,
  ) -> 'Mechanism':
    """The mechanism with the least noise that keeps a privacy target.

    Args:
      name: One of `names()`, or 'file' with a strategy among the options.
      participation: Who takes part when.
      target_epsilon: Positive.
      target_delta: Between 0 and 1, exclusive.
      accountant: A key of `accountants.ACCOUNTANTS`; `None` for the tightest.
      **options: Further arguments of the class, but for `noise_multiplier`; and instead
        of `clipped_count_stddev`, `clipped_count_share`: adaptive clipping whose count
        of small norms takes that part of the budget, such as 0.1, which fits always.

    Raises:
      TypeError: As for the class.
      ValueError: If an argument is out of range.

    Example:
      >>> participation = strategies.Participation(100, min_separation=25)
      >>> own = strategies.BandedToeplitz.square_root(100, num_bands=25)
      >>> planned = Mechanism.for_target('file', participation, 8.0, 1e-6, strategy=own)
      >>> round(planned.noise_multiplier, 3)
      1.306
    """
    clipped_count_stddev = options.pop('clipped_count_stddev', None)
    clipped_count_share = options.pop('clipped_count_share', None)
    if None not in (clipped_count_stddev, clipped_count_share):
      raise ValueError(
        f'clipped_count_stddev={clipped_count_stddev} and '
        f'clipped_count_share={clipped_count_share} say the same; give one of them.'
      )
    planned = cls(name, participation, 1.0, **options)
    noise_multiplier = calibration.noise_multiplier(
      planned.event_with,
      target_epsilon,
      target_delta,
      accountant=accountant,
      relation=planned.relation,
    )
    if clipped_count_share is not None:
      clipped_count_stddev = adaptive_clipping.stddev_of_share(
        noise_multiplier, clipped_count_share
      )
    made = dataclasses.replace(
      planned,
      noise_multiplier=noise_multiplier,
      clipped_count_stddev=clipped_count_stddev,
    )
    if accountant is None:
      # No field: a mechanism with other noise, which `replace` makes, has no target.
      object.__setattr__(made, '_target', Target(target_epsilon, target_delta))
    return made

  @property
  def target(self) -> Optional[Target]:
    """What `for_target` was asked for, by the tightest accountant; else `None`.

    Neither equality nor `to_json` knows of it: it says where the noise came from, and
    not what the mechanism is.

    Example:
      >>> participation = strategies.Participation(100, min_separation=25)
      >>> Mechanism.for_target('tree', participation, 8.0, 1e-6).target
      Target(epsilon=8.0, delta=1e-06)
    """
    target: Optional[Target] = self.__dict__.get('_target')
    return target

  @property
  def relation(self) -> Relation:
    """The neighbouring relation of `adjacency`."""
    return schemas.ADJACENCIES[self.adjacency]

  @property
  def limits(self) -> strategies.Participation:
    """In which rounds a client can take part at all."""
    return schemas.limits(self.participation)

  @property
  def is_sampled(self) -> bool:
    """Whether the guarantee rests on sampling."""
    return schemas.is_sampled(self.participation)

  @property
  def noise(self) -> noises.Noise:
    """Of which kind the noise is."""
    return noises.of_mechanism(self.name)

  @property
  def is_one_gaussian(self) -> bool:
    """Whether all rounds so far are one Gaussian, so that epsilon is known exactly.

    Else rounds compose: those of sampled mechanisms, and of noise of other kinds.
    """
    return self.noise.is_gaussian and not self.is_sampled

  @property
  def sensitivity(self) -> float:
    """What one client changes C X by, in clip norms and in the norm of the clipping.

    In all its rounds together, or in one round if the schema is one of sampling; twice
    sens(C) where one client is replaced by another.
    """
    limits = None if self.is_sampled else self.limits
    kind = schemas.kind_of(self.participation)
    factor = kind.sensitivity_factor(self.relation)
    if self.noise.order == 1 and limits is not None:
      return float(factor * limits.possible_participations)
    return factor * self.strategy.sensitivity(limits)

  @property
  def effective_noise_multiplier(self) -> float:
    """`noise_multiplier / sensitivity`, what accounting needs."""
    return self.noise_multiplier / self.sensitivity

  @property
  def values_noise_multiplier(self) -> float:
    """Standard deviation of z for the values alone, over the clip norm.

    It is `noise_multiplier` unless a part of that pays for adaptive clipping
    (arXiv:1905.03871, Theorem 1), or the noise is not Gaussian.
    """
    if self.clipped_count_stddev is None:
      return self.noise.stddev * self.noise_multiplier
    return adaptive_clipping.values_noise_multiplier(
      self.noise_multiplier, self.clipped_count_stddev
    )

  @property
  def clipped_count_share(self) -> Optional[float]:
    """Which part of the budget, of mu^2, adaptive clipping takes; `None` without."""
    if self.clipped_count_stddev is None:
      return None
    return adaptive_clipping.share(self.noise_multiplier, self.clipped_count_stddev)

  @property
  def event(self) -> dp_accounting.DpEvent:
    """The event of all rounds together."""
    return self.event_with(self.noise_multiplier)

  @property
  def round_events(self) -> tuple[dp_accounting.DpEvent, ...]:
    """The event of each round, for a ledger; together they are `event`.

    Example:
      >>> sampling = schemas.PoissonSampling(4, sampling_probability=0.1)
      >>> fed_avg = Mechanism('gaussian', sampling, noise_multiplier=1.0)
      >>> fed_avg.round_events[3].sampling_probability
      0.1
    """
    return schemas.round_events(
      self.strategy,
      self.participation,
      self.noise_multiplier,
      self.relation,
      self.noise,
    )

  def event_with(self, noise_multiplier: float) -> dp_accounting.DpEvent:
    """The event of all rounds, if the noise were another."""
    return schemas.event(
      self.strategy, self.participation, noise_multiplier, self.relation, self.noise
    )

  def epsilon(self, delta: float, *, accountant: Optional[str] = None) -> float:
    """Epsilon of all rounds together at `delta`, for `adjacency`.

    Args:
      delta: Between 0 and 1, exclusive.
      accountant: A key of `accountants.ACCOUNTANTS`; `None` for the tightest.

    Returns:
      The smallest epsilon for which the accountant can vouch; infinite without noise.

    Raises:
      ValueError: If `delta` is out of range, or the accountant unknown.
      dp_accounting.UnsupportedEventError: If the accountant cannot read the events.

    Example:
      >>> participation = strategies.Participation.from_rounds_between(2000, 313, 6)
      >>> gboard = Mechanism('tree', participation, noise_multiplier=7.0)
      >>> (
      ...   round(gboard.epsilon(1e-10), 4),
      ...   round(gboard.epsilon(1e-10, accountant='rdp'), 4),
      ... )
      (8.5261, 8.8986)
    """
    return accountants.epsilon(self.event, delta, accountant, self.relation)

  def delta(self, epsilon: float, *, accountant: Optional[str] = None) -> float:
    """Delta of all rounds together at `epsilon`, for `adjacency`.

    Args:
      epsilon: Finite and not negative.
      accountant: A key of `accountants.ACCOUNTANTS`; `None` for the tightest.

    Returns:
      The smallest delta for which the accountant can vouch; 1 without noise.

    Raises:
      ValueError: If `epsilon` is out of range, or the accountant unknown.
      dp_accounting.UnsupportedEventError: If the accountant cannot read the events.

    Example:
      >>> participation = strategies.Participation.from_rounds_between(2000, 313, 6)
      >>> gboard = Mechanism('tree', participation, noise_multiplier=7.0)
      >>> f'{gboard.delta(5.0):.2e}'
      '1.21e-04'
    """
    return accountants.delta(self.event, epsilon, accountant, self.relation)

  def to_json(self) -> dict[str, Any]:
    """JSON-ready values that `from_json` reads back exactly.

    Options of all kinds are keys, and those that were not given are `None`.
    """
    return {
      'name': self.name,
      'participation': schemas.to_json(self.participation),
      'adjacency': self.adjacency,
      'noise_multiplier': self.noise_multiplier,
      **dict.fromkeys(registry.options()),
      **dict(self.options),
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
      # No default stands for these: epsilon is for the adjacency that was meant.
      for name in ('adjacency', 'clipped_count_stddev'):
        if name not in values:
          raise KeyError(name)
      if values['adjacency'] is None:
        raise ValueError('the stored mechanism has no adjacency.')
      mechanism = cls(strategy=strategy, **values)
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


def strategy_for(
  name: str, participation: schemas.Schema, **options: Optional[int]
) -> strategies.Strategy:
  """The strategy of a named mechanism: of its kind, the one with the least RMSE.

  Args:
    name: One of `names()`.
    participation: Who takes part when.
    **options: As for `Mechanism`.

  Raises:
    TypeError: If there is no such option, or a number is not whole.
    ValueError: If the name is unknown, or an option is out of range or not one of this
      mechanism.

  Example:
    >>> participation = strategies.Participation(64, min_separation=8)
    >>> strategy_for('toeplitz', participation).num_bands
    8
  """
  if name in noises.OTHERS:
    return _of_independent(name, participation, options)[1]
  given = registry.check_options(name, options)
  return registry.kind(name).build(schemas.limits(participation), **given)


def _of_independent(
  name: str,
  participation: schemas.Schema,
  options: Mapping[str, Optional[int]],
  strategy: Optional[strategies.Strategy] = None,
  clipped_count_stddev: Optional[float] = None,
) -> tuple[dict[str, int], strategies.Strategy]:
  """Options and strategy of noise that is not Gaussian: none, and the identity.

  Raises:
    ValueError: If there is more to it.
  """
  for option, value in registry.check_numbers(options).items():
    having = ', '.join(registry.options()[option])
    raise ValueError(f'{option}={value} is for {having}, not for {name}.')
  if clipped_count_stddev is not None:
    raise ValueError(
      f'clipped_count_stddev={clipped_count_stddev} is for Gaussian noise, which can '
      f'cover the count of small norms as well, not for {name}; leave it out.'
    )
  if strategy is None:
    strategy = strategies.Identity(participation.num_rounds)
  return {}, strategy


def _relation(adjacency: Optional[str]) -> Optional[Relation]:
  if adjacency is None:
    return None
  if adjacency not in schemas.ADJACENCIES:
    raise ValueError(
      f'unknown adjacency {adjacency!r}; known: {", ".join(schemas.ADJACENCIES)}.'
    )
  return schemas.ADJACENCIES[adjacency]
