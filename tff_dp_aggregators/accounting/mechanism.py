"""Mechanisms by name, as used in flags, reports and run directories.

`Mechanism` records all that determines privacy: strategy, participation and noise.
"""

import contextlib
import dataclasses
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Callable, ClassVar, Optional, Union

import dp_accounting
import numpy as np
from dp_accounting import NeighboringRelation as Relation

from tff_dp_aggregators import sampling
from tff_dp_aggregators import strategies
from tff_dp_aggregators.accounting import accountants
from tff_dp_aggregators.accounting import adaptive_clipping
from tff_dp_aggregators.accounting import calibration
from tff_dp_aggregators.accounting import distributed_noise
from tff_dp_aggregators.accounting import events
from tff_dp_aggregators.accounting import noises
from tff_dp_aggregators.accounting import run_events
from tff_dp_aggregators.accounting.accountants import gaussian
from tff_dp_aggregators.base import checks
from tff_dp_aggregators.strategies import registry

_ROUND_OFF = 1e-12  # Margin of noise from closed forms.
FROM_FILE = 'file'  # The name of a mechanism whose strategy is given by the caller.


def names() -> tuple[str, ...]:
  """Names of mechanisms: the kinds of strategies, and the noises except Gaussian."""
  return (*registry.KINDS, *noises.OTHERS)


def options() -> tuple[str, ...]:
  """Names of all options, of kinds of strategies, noises and placements."""
  return (*registry.options(), *noises.options())


@contextlib.contextmanager
def reading(what: str) -> Iterator[None]:
  """Raises ValueError if the stored values lack one, or one has another type."""
  try:
    yield
  except (KeyError, TypeError) as e:
    raise ValueError(f'the stored {what} lacks something: {e}.') from e


@dataclasses.dataclass(frozen=True)
class Target:
  """A privacy target: (epsilon, delta), or rho of zCDP (arXiv:1605.02065).

  Raises:
    TypeError: If a value is not a number.
    ValueError: If a value is out of range, or there is not exactly one target.
  """

  epsilon: Optional[float] = None  # Not negative; `None` with `rho`.
  # Between 0 and 1, exclusive; with `rho` it is ignored, and may be `None`.
  delta: Optional[float] = None
  accountant: Optional[str] = None  # Computes epsilon; `None` for the tightest.
  rho: Optional[float] = None  # Positive, for one Gaussian; `None` with `epsilon`.

  def __post_init__(self) -> None:
    if self.rho is None:
      is_valid = None not in (self.epsilon, self.delta)
    else:
      is_valid = self.epsilon is None and self.accountant is None
    if not is_valid:
      raise ValueError(
        'a target is target_epsilon and target_delta, and optionally accountant, or '
        f'target_rho alone; got target_epsilon={self.epsilon}, target_delta='
        f'{self.delta}, target_rho={self.rho} and accountant={self.accountant}.'
      )
    if self.rho is not None:
      checks.check_positive('target_rho', self.rho)
    if self.epsilon is not None:
      gaussian.check_epsilon(self.epsilon, 'target_epsilon')
    if self.delta is not None:
      gaussian.check_delta(self.delta, 'target_delta')

  def is_kept(
    self, event: dp_accounting.DpEvent, relation: Relation = Relation.REPLACE_SPECIAL
  ) -> bool:
    """Whether an event spends at most this target."""
    if self.rho is not None:
      return rho_of(event) <= self.rho
    assert self.epsilon is not None and self.delta is not None
    spent = accountants.epsilon(event, self.delta, self.accountant, relation)
    return spent <= self.epsilon


def rho_of(event: dp_accounting.DpEvent) -> float:
  """The rho of zCDP of one Gaussian; raises ValueError for any other event."""
  try:
    return accountants.zcdp_rho(event)
  except dp_accounting.UnsupportedEventError as e:
    raise ValueError(
      'target_rho is for Gaussian noise without sampling, whose rho is in closed form; '
      'for sampled clients and other noise give target_epsilon and target_delta.'
    ) from e


class Guaranteed:
  """Base class of mechanisms: guarantees from their `event` and `adjacency`."""

  @property
  def relation(self: Any) -> Relation:
    """The neighbouring relation of `adjacency`."""
    return sampling.ADJACENCIES[self.adjacency]

  @property
  def sensitivity_kind(self: Any) -> str:
    """'exact' or 'bound': if the sensitivity is a bound, epsilon is one, too."""
    limits = None if self.is_sampled else self.limits
    return str(self.strategy.sensitivity_kind(limits))

  @property
  def target(self) -> Optional[Target]:
    """The argument of `for_target`; else `None`. It is ignored in comparisons."""
    return self.__dict__.get('_target')

  def made_for(self: Any, target: Target) -> None:
    """Stores the target; without its accountant, if the tightest one keeps it, too."""
    if target.accountant:
      tightest = dataclasses.replace(target, accountant=None)
      target = tightest if tightest.is_kept(self.event, self.relation) else target
    # Not a field: a copy by `dataclasses.replace`, with other noise, has no target.
    self.__dict__['_target'] = target

  def epsilon(self: Any, delta: float, *, accountant: Optional[str] = None) -> float:
    """Epsilon of all rounds together, of all weights, at `delta`, for `adjacency`.

    It is the smallest that the accountant, a key of `accountants.ACCOUNTANTS` or the
    tightest, can guarantee; infinite without noise.

    Example:
      >>> from tff_dp_aggregators import accounting, strategies
      >>> participation = strategies.Participation.from_rounds_between(2000, 313, 6)
      >>> gboard = accounting.Mechanism('tree', participation, noise_multiplier=7.0)
      >>> [round(gboard.epsilon(1e-10, accountant=each), 4) for each in (None, 'rdp')]
      [8.5261, 8.8986]
    """
    return accountants.epsilon(self.event, delta, accountant, self.relation)

  def delta(self: Any, epsilon: float, *, accountant: Optional[str] = None) -> float:
    """Delta of all rounds together at `epsilon`, like the method `epsilon`."""
    return accountants.delta(self.event, epsilon, accountant, self.relation)

  def rounds_within(
    self: Any,
    target_epsilon: Optional[float] = None,
    target_delta: Optional[float] = None,
    *,
    target_rho: Optional[float] = None,
    accountant: Optional[str] = None,
  ) -> int:
    """Number of rounds, from the first on, that keep a privacy target.

    It does not depend on what rounds release. (A run that is stopped by something
    released, such as an accuracy, costs as much as all rounds that it might have had.)
    Arguments are those of `for_target`.

    It is 0 if a single round exceeds the target. Where rounds do not compose (b-min-sep
    and balls-in-bins sampling), it is 0 or all rounds.

    Example:
      >>> from tff_dp_aggregators import accounting, strategies
      >>> participation = strategies.Participation(2000, min_separation=100)
      >>> tree = accounting.Mechanism('tree', participation, noise_multiplier=7.0)
      >>> tree.rounds_within(8.0, 1e-6), tree.rounds_within(target_rho=0.5)
      (700, 447)
    """
    target = Target(target_epsilon, target_delta, accountant, target_rho)
    return int(self._rounds_keeping(target))

  def _rounds_keeping(self: Any, target: Target) -> int:
    if target.is_kept(self.event, self.relation):
      return int(self.participation.num_rounds)
    round_events = self.round_events
    low, high = 0, self.participation.num_rounds - 1
    while low < high:
      middle = (low + high + 1) // 2
      event = dp_accounting.ComposedDpEvent(list(round_events[:middle]))
      if target.is_kept(event, self.relation):
        low = middle
      else:
        high = middle - 1
    return low

  def would_exceed(self: Any, target: Target, rounds: int = 0) -> bool:
    """Whether one more round after `rounds` exceeds the target: see `rounds_within`.

    Raises ValueError if all rounds ran, or if the mechanism has no such target.
    """
    if not isinstance(target, Target):
      raise TypeError(f'target must be an accounting.Target; got {target!r}.')
    checks.check_int('rounds', rounds, at_least=0)
    num_rounds = self.participation.num_rounds
    if rounds >= num_rounds:
      raise ValueError(
        f'rounds={rounds} ran, and the mechanism is for {num_rounds}: it has no noise '
        'for another one. End the loop there, or make a mechanism for more.'
      )
    # A cache, as training loops ask before each round; not a field.
    cached = self.__dict__.setdefault('_rounds_within', {})
    if target not in cached:
      cached[target] = self._rounds_keeping(target)
    return bool(rounds >= cached[target])


@dataclasses.dataclass(frozen=True, init=False)
class Mechanism(Guaranteed):
  """A mechanism under a participation schema.

  Raises:
    TypeError: If there is no such option, or an argument is not of its type.
    ValueError: If the name is unknown, a number is out of range, an option is given to
      a mechanism that does not have it, or missing, the adjacency is not valid for the
      schema, or there is no analysis of such noise in such a placement.

  Example:
    >>> participation = strategies.Participation.from_rounds_between(2000, 313, 6)
    >>> mechanism = Mechanism('tree', participation, noise_multiplier=7.0)
    >>> round(mechanism.effective_noise_multiplier, 4)
    0.7876
    >>> Mechanism('tree', participation, 7.0, restart_every=314).options
    (('restart_every', 314),)
  """

  name: str  # One of `names()`, or 'file' for a strategy given by the caller.
  participation: sampling.Schema  # Limits on participation, or a sampling scheme.
  # Scale of z over the clip norm: of Gaussian noise its standard deviation, of Laplace
  # noise that over sqrt(2). With 'local', 'clients_and_server' and 'local_approximate'
  # it is that of the noise of one client, and with 'clients' that of the sum.
  noise_multiplier: float
  # Names and values of the options that were given, such as num_bands, or min_clients
  # if clients add the noise. Each is a keyword argument; `strategies.registry` and
  # `noises` list them, with their defaults.
  options: tuple[tuple[str, int], ...]
  # With adaptive clipping, the standard deviation of z for the count of small norms,
  # more than half of `noise_multiplier`, which then covers both.
  clipped_count_stddev: Optional[float]
  adjacency: str  # A key of `sampling.ADJACENCIES`; by default that of the schema.
  # Who adds the noise, a key of `noises.PLACEMENTS`; by default the server, for integer
  # noise the clients.
  noise_site: str
  # With 'clients_and_server', the standard deviation of the server's noise in the sum
  # over the clip norm. It is not in `event`, which is of what a client sends.
  server_noise_multiplier: Optional[float]
  # C. It follows from the rest; it has to be given for 'file', and may be to save time.
  strategy: strategies.Strategy
  # Empty: all weights have one mechanism, unlike in a `JointMechanism`.
  parts: ClassVar[tuple[Any, ...]] = ()

  def __init__(
    self,
    name: str,
    participation: sampling.Schema,
    noise_multiplier: float,
    *,
    clipped_count_stddev: Optional[float] = None,
    adjacency: Optional[str] = None,
    noise_site: Optional[str] = None,
    server_noise_multiplier: Optional[float] = None,
    strategy: Optional[strategies.Strategy] = None,
    options: Union[Mapping[str, Optional[int]], Iterable[tuple[str, int]]] = (),
    **given: Optional[int],
  ) -> None:
    noise_multiplier = events.check_noise_multiplier(noise_multiplier)
    if clipped_count_stddev is not None:
      adaptive_clipping.values_noise_multiplier(noise_multiplier, clipped_count_stddev)
    if adjacency is not None and adjacency not in sampling.ADJACENCIES:
      raise ValueError(
        f'unknown adjacency {adjacency!r}; known: {", ".join(sampling.ADJACENCIES)}.'
      )
    relation = sampling.ADJACENCIES.get(adjacency or '')
    relation = sampling.check_relation(participation, relation)
    # Both, as `dataclasses.replace` passes `options`, and keywords may override them.
    given = {**dict(options), **given}
    if 'clipped_count_share' in given:
      raise TypeError('clipped_count_share is an argument of Mechanism.for_target.')
    numbers = registry.check_numbers(given, noises.options())
    if name not in (FROM_FILE, *names()):
      raise ValueError(
        f'unknown mechanism {name!r}; known: {", ".join(names())}, and {FROM_FILE} for '
        'strategy=... that was made elsewhere.'
      )
    noise = noises.of_mechanism(name)
    placement = noise.placement(noise_site)
    for_strategy = {key: numbers[key] for key in registry.options() if key in numbers}
    for_noise = {k: v for k, v in numbers.items() if k not in for_strategy}
    noises.check_numbers(name, noise, placement, for_noise)
    noise = noise.with_numbers(for_noise)
    server_noise_multiplier = noises.check_server_noise(
      placement, noise_multiplier, server_noise_multiplier
    )
    if name in noises.OTHERS:
      _check_not_given(name, **for_strategy, clipped_count_stddev=clipped_count_stddev)
    if name == FROM_FILE:
      if strategy is None or for_strategy:
        raise ValueError(
          "the mechanism 'file' is a strategy alone, without options; give "
          'strategy=..., such as strategies.Strategy.load(path).'
        )
      strategies.strategy.require(strategy)
    elif strategy is None:
      strategy = strategy_for(name, participation, **for_strategy)
    elif name not in noises.OTHERS:
      registry.check_options(name, for_strategy)
      registry.check_strategy(name, for_strategy, strategy)
    noises.check(placement, strategy, participation, clipped_count_stddev)
    run_events.check(strategy, participation, noise)
    if noise.is_integer:
      if relation is Relation.REPLACE_ONE:
        raise ValueError(
          f'adjacency=replace_one does not go with {noise.name} noise, whose rounding '
          'is accounted for with one client zeroed out; take zero_out.'
        )
      noise.event(noise_multiplier)  # Raises if there is none, with what would fit.
    self.__dict__.update(
      name=name,
      participation=participation,
      noise_multiplier=noise_multiplier,
      options=(*for_strategy.items(), *for_noise.items()),
      clipped_count_stddev=clipped_count_stddev,
      adjacency=sampling.adjacency(relation),
      noise_site=placement.name,
      server_noise_multiplier=server_noise_multiplier,
      strategy=strategy,
    )

  @classmethod
  def for_target(
    cls,
    name: str,
    participation: sampling.Schema,
    target_epsilon: Optional[float] = None,
    target_delta: Optional[float] = None,
    *,
    target_rho: Optional[float] = None,
    accountant: Optional[str] = None,
    **options: Any,
  ) -> 'Mechanism':
    """The mechanism with the least noise that keeps a privacy target.

    Args:
      name: One of `names()`, or 'file' with a strategy among the options.
      participation: The participation schema.
      target_epsilon: Positive.
      target_delta: Between 0 and 1, exclusive.
      target_rho: Instead of epsilon, rho of zCDP, for Gaussian noise without sampling.
      accountant: A key of `accountants.ACCOUNTANTS`; `None` for the tightest.
      **options: Further arguments of the class, except `noise_multiplier`. Instead of
        `clipped_count_stddev`, `clipped_count_share` is the share of the budget, such
        as 0.1, for the count of small norms of adaptive clipping; it is always valid.
    """
    target = Target(target_epsilon, target_delta, accountant, target_rho)
    stddev = options.pop('clipped_count_stddev', None)
    share = options.pop('clipped_count_share', None)
    if None not in (stddev, share):
      raise ValueError(
        'clipped_count_stddev and clipped_count_share: give one of them.'
      )
    if noises.of_mechanism(name).is_integer and target_rho is None:
      _check_not_given(name, clipped_count_stddev=stddev, clipped_count_share=share)
      mechanism = _with_integer_noise(cls, name, participation, target, options)
    else:
      planned = cls(name, participation, 1.0, **options)
      noise_multiplier = least_noise(planned.event_with, target, planned.relation)
      if share is not None:
        stddev = adaptive_clipping.stddev_of_share(noise_multiplier, share)
      mechanism = dataclasses.replace(
        planned, noise_multiplier=noise_multiplier, clipped_count_stddev=stddev
      )
    mechanism.made_for(target)
    return mechanism

  @property
  def limits(self) -> strategies.Participation:
    """The limits on the rounds of one client, also under sampling."""
    return sampling.limits_of(self.participation)

  @property
  def is_sampled(self) -> bool:
    """Whether the guarantee rests on sampling."""
    return sampling.is_sampled(self.participation)

  @property
  def noise(self) -> noises.Noise:
    """The noise, with the values of its options."""
    return noises.of_mechanism(self.name).with_numbers(dict(self.options))

  @property
  def placement(self) -> noises.Placement:
    """Who adds the noise."""
    return noises.PLACEMENTS[self.noise_site]

  @property
  def is_one_gaussian(self) -> bool:
    """Whether all rounds together are one Gaussian, whose epsilon is exact."""
    return self.noise.is_gaussian and not self.is_sampled

  @property
  def sensitivity(self) -> float:
    """Sensitivity of C X to one client, in clip norms; under sampling, in one round."""
    limits = None if self.is_sampled else self.limits
    scheme = sampling.of(self.participation)
    factor = scheme.sensitivity_factor(self.relation)
    if self.noise.order == 1 and limits is not None:
      return float(factor * limits.possible_participations)
    return factor * self.strategy.sensitivity(limits)

  @property
  def sensitivity_squared(self) -> float:
    """`sensitivity` squared, rounded to 9 decimals if its root is the same float."""
    squared = self.sensitivity**2
    short = round(squared, 9)
    return short if math.sqrt(short) == self.sensitivity else squared

  @property
  def effective_noise_multiplier(self) -> float:
    """`noise_multiplier / sensitivity`, which accounting uses."""
    return self.noise_multiplier / self.sensitivity

  @property
  def values_noise_multiplier(self) -> float:
    """Noise multiplier without that of adaptive clipping's count (arXiv:1905.03871)."""
    if self.clipped_count_stddev is None:
      return self.noise.stddev * self.noise_multiplier
    return adaptive_clipping.values_noise_multiplier(
      self.noise_multiplier, self.clipped_count_stddev
    )

  def sum_noise_multiplier(self, clients: float) -> float:
    """Standard deviation of z for the values in a round's sum, over the clip norm."""
    factor = self.placement.sum_noise_factor(clients, dict(self.options))
    return math.hypot(
      self.values_noise_multiplier * factor, self.server_noise_multiplier or 0.0
    )

  @property
  def clipped_count_share(self) -> Optional[float]:
    """The share of the budget mu^2 for adaptive clipping's count; `None` without."""
    if self.clipped_count_stddev is None:
      return None
    return adaptive_clipping.share(self.noise_multiplier, self.clipped_count_stddev)

  @property
  def is_private(self) -> bool:
    """Whether there is noise, and it is not only simulated."""
    return self._protecting_noise > 0

  @property
  def _protecting_noise(self) -> float:
    # Noise that is only simulated protects nobody.
    return 0.0 if self.placement.is_simulation else self.noise_multiplier

  @property
  def event(self) -> dp_accounting.DpEvent:
    """The event of all rounds together; not private if noise is only simulated."""
    return self.event_with(self._protecting_noise)

  @property
  def round_events(self) -> tuple[dp_accounting.DpEvent, ...]:
    """The event of each round, for a ledger; they compose to `event`."""
    noise = self._protecting_noise
    return run_events.round_events(
      self.strategy, self.participation, noise, self.relation, self.noise
    )

  def event_with(self, noise_multiplier: float) -> dp_accounting.DpEvent:
    """The event of all rounds with another noise multiplier, not simulated."""
    return run_events.event(
      self.strategy, self.participation, noise_multiplier, self.relation, self.noise
    )

  def part_of(
    self, names: Sequence[str], labels: Optional[Sequence[str]] = None
  ) -> tuple[str, ...]:
    """An empty tuple, as there are no parts."""
    del names, labels
    return ()

  @property
  def has_noise(self) -> bool:
    """Whether there is noise, even if it is only simulated."""
    return bool(self.noise_multiplier > 0)

  @property
  def has_integer_noise(self) -> bool:
    """Whether contributions are integers, whose sums may wrap around."""
    return self.noise.is_integer

  @property
  def adds_noise_on_clients(self) -> bool:
    """Whether there is noise that clients add."""
    return bool(self.noise_multiplier) and self.placement.is_on_clients

  @property
  def noise_multipliers_so_far(self) -> np.ndarray:
    """Effective noise multipliers of rounds 0 to t, if they are one Gaussian; [n]."""
    noise = self.noise_multiplier / sampling.sensitivity_factor(self.relation)
    return events.round_noise_multipliers(self.strategy, self.limits, noise)[1]

  def event_of_turns(self, turns: int) -> dp_accounting.DpEvent:
    """Upper bound on what is spent if no client was in more than `turns` rounds."""
    if not sampling.of(self.participation).composes:
      return self.event
    return dp_accounting.SelfComposedDpEvent(self.round_events[0], turns)

  def noise_in_words(self) -> str:
    """The noise, for messages."""
    return f'noise multiplier {self.noise_multiplier:.4f}'

  def line(self, clip_norm: Optional[float]) -> dict[str, Any]:
    """The fields of a ledger's line that describe the mechanism."""
    noise_site = None
    if self.placement is not noises.SERVER:
      noise_site = {
        'name': self.noise_site,
        'min_clients': dict(self.options).get(noises.MIN_CLIENTS),
        'server_noise_multiplier': self.server_noise_multiplier,
      }
    return {
      'clip_norm': clip_norm,
      'noise_multiplier': self.noise_multiplier,
      'strategy_checksum': self.strategy.checksum,
      'noise_site': noise_site,
    }

  def to_json(self) -> dict[str, Any]:
    """JSON-ready values that `from_json` reads back exactly, with a key per option."""
    return {
      'name': self.name,
      'participation': sampling.to_json(self.participation),
      'adjacency': self.adjacency,
      'noise_multiplier': self.noise_multiplier,
      'noise_site': self.noise_site,
      'server_noise_multiplier': self.server_noise_multiplier,
      **dict.fromkeys(options()),
      **dict(self.options),
      'clipped_count_stddev': self.clipped_count_stddev,
      'strategy_checksum': self.strategy.checksum,
    }

  @classmethod
  def from_json(
    cls, data: dict[str, Any], strategy: Optional[strategies.Strategy] = None
  ) -> 'Mechanism':
    """Reads what `to_json` wrote."""
    with reading('mechanism'):
      # Options that are null may be of kinds that are not registered here.
      values = {name: value for name, value in data.items() if value is not None}
      stored = values.pop('strategy_checksum')
      values['participation'] = sampling.from_json(values['participation'])
      # These have no default: an epsilon is only valid for the stored adjacency.
      for name in ('adjacency', 'clipped_count_stddev', 'noise_site'):
        if name not in data or data['adjacency'] is None:
          raise KeyError(name)
      mechanism = cls(strategy=strategy, **values)
    if mechanism.strategy.checksum != stored:
      raise ValueError(
        f'the stored mechanism used the strategy {stored}, but '
        f'{"these parameters give" if strategy is None else "the strategy given is"} '
        f'{mechanism.strategy.checksum}: something was altered, or written by another '
        'release or machine. Give the strategy file that was used.'
      )
    return mechanism


def least_noise(
  make_event: Callable[[float], dp_accounting.DpEvent],
  target: Target,
  relation: Relation,
) -> float:
  """The smallest noise multiplier with which an event keeps a target."""
  if target.rho is not None:
    rho = rho_of(make_event(1.0))
    return math.sqrt(rho) / math.sqrt(target.rho) * (1 + _ROUND_OFF)
  assert target.epsilon is not None and target.delta is not None
  return calibration.noise_multiplier(
    make_event,
    target.epsilon,
    target.delta,
    accountant=target.accountant,
    relation=relation,
  )


def strategy_for(
  name: str, participation: sampling.Schema, **options: Optional[int]
) -> strategies.Strategy:
  """The strategy of a named mechanism: the one of its kind with the least RMSE."""
  if name in noises.OTHERS:
    _check_not_given(name, **registry.check_numbers(options))
    return strategies.Identity(participation.num_rounds)
  checked = registry.check_options(name, options)
  kind, scheme = kind_for(name, participation), sampling.of(participation)
  apart, bands = scheme.drawn_again_after, checked.get(kind.bands or '', 0)
  if apart is not None and bands > getattr(scheme, apart):
    raise ValueError(
      f'{kind.bands}={bands} is too many: rounds of a client would share noise. Use '
      f'{kind.bands} of at most {getattr(scheme, apart)}, or {apart}={bands}.'
    )
  return kind.build(sampling.limits_of(participation), **checked)


def kind_for(name: str, participation: sampling.Schema) -> registry.Kind:
  """The kind of a name; raises ValueError if it is of no use for a schema."""
  kind = registry.kind(name)
  if kind.unscaled is not None and not sampling.of(participation).composes:
    return kind  # All columns of a client's rounds count, each with its own norm.
  if kind.unscaled is not None and sampling.is_sampled(participation):
    raise ValueError(
      f'{name} is of no use where clients are sampled: its columns differ in norm, and '
      f'the largest norm would count for all. Take {kind.unscaled}.'
    )
  return kind


def _with_integer_noise(
  cls: type[Mechanism],
  name: str,
  participation: sampling.Schema,
  target: Target,
  options: Mapping[str, Any],
) -> Mechanism:
  """The mechanism with integer noise, whose grid depends on its scale."""
  noise = noises.of_mechanism(name)
  assert target.epsilon is not None and target.delta is not None
  numbers = {k: v for k, v in options.items() if k in noise.options}
  numbers = registry.check_numbers(numbers, noise.options)
  others = {k: v for k, v in options.items() if k not in noise.options}
  placement = noise.placement(None)
  noises.check_numbers(name, noise, placement, {noises.BITS: 0, **numbers})
  design = distributed_noise.plan(
    name,
    target.epsilon,
    target.delta,
    participations=sampling.limits_of(participation).possible_participations,
    clip_norm=1.0,  # No event depends on it, as the grid is relative to it.
    **numbers,
  )
  numbers['bits'] = design.bits
  noise_multiplier = design.noise_multiplier
  result = cls(name, participation, noise_multiplier, options=numbers, **others)
  # The grid is computed anew, so epsilon may differ in its last digit.
  while result.epsilon(target.delta, accountant=target.accountant) > target.epsilon:
    noise_multiplier *= 1 + 1e-7
    result = cls(name, participation, noise_multiplier, options=numbers, **others)
  return result


def _check_not_given(name: str, **given: Optional[float]) -> None:
  """Raises ValueError if options that require Gaussian noise are given for others."""
  for option, value in given.items():
    if value is not None:
      having = ', '.join(registry.options().get(option, ['Gaussian noise']))
      raise ValueError(f'{option}={value} is for {having}, not for {name}.')
