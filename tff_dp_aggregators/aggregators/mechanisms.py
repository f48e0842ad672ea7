"""From a mechanism that accounting planned to a TFF factory."""

import math
from typing import Any, Callable, Optional, Protocol

from typing_extensions import Unpack

from tff_dp_aggregators import accounting
from tff_dp_aggregators import noise
from tff_dp_aggregators.accounting import noises
from tff_dp_aggregators.aggregators import builders
from tff_dp_aggregators.aggregators import client_noise
from tff_dp_aggregators.aggregators import distributed
from tff_dp_aggregators.aggregators import factory
from tff_dp_aggregators.base import checks
from tff_dp_aggregators.noise import options


class Schedule(Protocol):
  """Who takes part when, as far as it has to fit a mechanism: a `sampling.Schedule`."""

  @property
  def schema(self) -> Any:
    """What the accountant reads."""

  @property
  def clients_per_round(self) -> float:
    """The mean's denominator."""


def from_mechanism(
  mechanism: accounting.Mechanism,
  *,
  clip_norm: float,
  clients_per_round: float,
  schedule: Optional[Schedule] = None,
  target_quantile: Optional[float] = None,
  clip_learning_rate: Optional[float] = None,
  record_aggregation_factory: factory.SumOfRecords = None,
  **noise_options: Unpack[noise.Options],
) -> factory.DPMeanFactory:
  """The factory of a mechanism that accounting planned.

  Noise and strategy are the mechanism's. If it rests on sampling, what states say of
  privacy (`extract_dp_event`, the effective noise multiplier in measurements) does not:
  it is that of clients who take part in each round that they may be drawn for at all.
  For zero-out neighbours, and with Poisson sampling for add-or-remove, that is right
  and never too little; what the sampling is worth is in `mechanism.event` and, for the
  lines of a ledger, in `mechanism.round_events`. Under other relations these alone are
  right.

  Args:
    mechanism: Strategy, participation and noise, for instance calibrated to a
      privacy target by `accounting.Mechanism.for_target`.
    clip_norm: L2 bound of one client's contribution to one round; L1 for Laplace noise.
      With adaptive clipping, that of the first rounds.
    clients_per_round: Denominator of the mean.
    schedule: Who takes part, a `sampling.Schedule`: the one that the clients are
      drawn from. A mechanism that rests on sampling, or pays for adaptive clipping,
      needs it; it has to have the mechanism's schema and this denominator.
    target_quantile: With adaptive clipping, that of `aggregators.adaptive`.
    clip_learning_rate: With adaptive clipping, `learning_rate` of
      `aggregators.adaptive`.
    record_aggregation_factory: Sums the clipped values; `None` for
      `tff.aggregators.SumFactory`.
    **noise_options: See `noise.Options`. A `storage` is refused where no round
      remembers another's noise, unless it leaves the choice ('auto', 'in_process').

  Raises:
    TypeError: If an argument is not of its type.
    ValueError: If a number is out of range, an option has no use, the schedule does not
      fit, or it is missing and the mechanism rests on sampling or adapts its clip norm.

  Example:
    >>> from tff_dp_aggregators import strategies
    >>> mechanism = accounting.Mechanism.for_target(
    ...   'banded',
    ...   strategies.Participation(num_rounds=100, min_separation=25),
    ...   target_epsilon=8.0,
    ...   target_delta=1e-6,
    ... )
    >>> aggregator = from_mechanism(mechanism, clip_norm=0.5, clients_per_round=100)
    >>> round(aggregator.noise_multiplier, 3)
    1.306
  """
  if not isinstance(mechanism, accounting.Mechanism):
    raise TypeError(
      f'mechanism must be an accounting.Mechanism, got {mechanism!r}; '
      'accounting.Mechanism.for_target makes one of a name, from_strategy takes a '
      'strategy, and from_joint_mechanism an accounting.JointMechanism.'
    )
  given = options.checked(noise_options)
  if given.storage not in ('auto', 'in_process') and not remembers(mechanism):
    raise ValueError(
      f'storage={given.storage!r} has no use for a mechanism whose rounds share no '
      f'noise, {mechanism.name}; leave it out.'
    )
  _check_schedule(mechanism, clients_per_round, schedule)
  adapting = _adapting(mechanism, target_quantile, clip_learning_rate)
  made_by = _MADE_BY.get((mechanism.noise.name, mechanism.noise_site))
  if made_by is not None:
    return made_by(
      mechanism,
      clip_norm=clip_norm,
      clients_per_round=clients_per_round,
      seed=given.seed,
      generator=given.generator,
      record_aggregation_factory=record_aggregation_factory,
    )
  if mechanism.clipped_count_stddev is not None:
    return builders.adaptive(
      strategy=mechanism.strategy,
      participation=mechanism.limits,
      noise_multiplier=mechanism.noise_multiplier,
      clients_per_round=clients_per_round,
      initial_clip_norm=clip_norm,
      clipped_count_stddev=mechanism.clipped_count_stddev,
      record_aggregation_factory=record_aggregation_factory,
      **noise_options,
      **adapting,
    )
  return builders.from_strategy(
    mechanism.strategy,
    mechanism.limits,
    clip_norm=clip_norm,
    noise_multiplier=mechanism.noise_multiplier,
    clients_per_round=clients_per_round,
    record_aggregation_factory=record_aggregation_factory,
    **noise_options,
  )


def remembers(mechanism: accounting.Mechanism) -> bool:
  """Whether a round's noise depends on that of earlier ones, which is kept."""
  if (mechanism.noise.name, mechanism.noise_site) in _MADE_BY:
    return False
  return mechanism.strategy.recursion().work.buffers > 0


def _adapting(
  mechanism: accounting.Mechanism,
  target_quantile: Optional[float],
  clip_learning_rate: Optional[float],
) -> dict[str, Any]:
  """The numbers of adaptive clipping that are given, named as by `adaptive`."""
  numbers = {'target_quantile': target_quantile, 'learning_rate': clip_learning_rate}
  given = {name: value for name, value in numbers.items() if value is not None}
  if given and mechanism.clipped_count_stddev is None:
    raise ValueError(
      f'target_quantile={target_quantile} and clip_learning_rate={clip_learning_rate} '
      'are for adaptive clipping, which this mechanism does not pay for; leave them '
      'out, or plan the mechanism with clipped_count_share.'
    )
  return given


def _check_schedule(
  mechanism: accounting.Mechanism,
  clients_per_round: float,
  schedule: Optional[Schedule],
) -> None:
  """Refuses a schedule that is not what the mechanism's privacy rests on."""
  made = (
    'schedule=sampling.for_mechanism(mechanism, num_clients, clients_per_round, seed)'
  )
  if schedule is None:
    if mechanism.is_sampled or mechanism.clipped_count_stddev is not None:
      raise ValueError(
        'mechanism rests on sampling, or pays for adaptive clipping, and nothing here '
        f'sees to that without a schedule; give {made} and take the clients from it, '
        'plan with limits on participation, or build it with aggregators.adaptive, '
        'from its strategy, limits, noise_multiplier and clipped_count_stddev.'
      )
    return
  for name in ('schema', 'clients_per_round'):
    if not hasattr(schedule, name):
      raise TypeError(
        f'schedule must be a sampling.Schedule; got {schedule!r}, which has no {name}.'
      )
  if schedule.schema != mechanism.participation:
    raise ValueError(
      f'the schedule keeps {schedule.schema}, but the mechanism rests on '
      f'{mechanism.participation}; give {made}.'
    )
  checks.check_number('clients_per_round', clients_per_round)
  if not math.isclose(schedule.clients_per_round, clients_per_round):
    raise ValueError(
      f'clients_per_round is {clients_per_round}, but the schedule asks for '
      f'{schedule.clients_per_round} clients a round; give the same number.'
    )


def _independent(
  build: Callable[..., factory.DPMeanFactory],
) -> Callable[..., factory.DPMeanFactory]:
  """What a mechanism without strategy becomes by one of the package's functions."""

  def make(mechanism: accounting.Mechanism, **given: Any) -> factory.DPMeanFactory:
    if mechanism.server_noise_multiplier is not None:
      given['server_noise_multiplier'] = mechanism.server_noise_multiplier
    fewest = dict(mechanism.options).get(noises.MIN_CLIENTS)
    if build is client_noise.gaussian_shares:
      given['min_clients'] = fewest
    made = build(mechanism.limits, noise_multiplier=mechanism.noise_multiplier, **given)
    return made if fewest is None else made.with_min_clients(fewest)

  return make


def _integers(
  mechanism: accounting.Mechanism,
  *,
  clients_per_round: float,
  seed: noise.SeedLike,
  generator: str,
  **given: Any,
) -> factory.DPMeanFactory:
  del generator  # Each client draws from the kernel's entropy.
  if seed is not None:
    raise ValueError(
      f'seed={seed} does not go with {mechanism.name} noise, of which every client '
      'draws its share from entropy of its own; leave it out.'
    )
  numbers = dict(mechanism.options)
  most = numbers.setdefault(noises.MAX_CLIENTS, numbers[noises.MIN_CLIENTS])
  if clients_per_round > most:
    raise ValueError(
      f'clients_per_round is {clients_per_round}, but sums of more than max_clients='
      f'{most} may wrap around; plan the mechanism with max_clients='
      f'{math.ceil(clients_per_round)} or more.'
    )
  return distributed.of_noise(
    mechanism.noise.name,
    mechanism.limits,
    noise_multiplier=mechanism.noise_multiplier,
    clients_per_round=clients_per_round,
    **numbers,
    **given,
  )


# Noise that is not that of a strategy, by its kind and where it is made.
_MADE_BY: dict[tuple[str, str], Callable[..., factory.DPMeanFactory]] = {
  (noises.LAPLACE.name, noises.SERVER.name): _independent(builders.laplace),
  (noises.GAUSSIAN.name, noises.CLIENTS.name): _independent(
    client_noise.gaussian_shares
  ),
  (noises.GAUSSIAN.name, noises.LOCAL.name): _independent(client_noise.local_gaussian),
  (noises.LAPLACE.name, noises.LOCAL.name): _independent(client_noise.local_laplace),
  (noises.GAUSSIAN.name, noises.CLIENTS_AND_SERVER.name): _independent(
    client_noise.two_sided_gaussian
  ),
  (noises.GAUSSIAN.name, noises.LOCAL_APPROXIMATE.name): _independent(
    client_noise.approximate_local_gaussian
  ),
  (noises.LAPLACE.name, noises.LOCAL_APPROXIMATE.name): _independent(
    client_noise.approximate_local_laplace
  ),
  (noises.SKELLAM.name, noises.CLIENTS.name): _integers,
  (noises.DISCRETE_GAUSSIAN.name, noises.CLIENTS.name): _integers,
}
