"""From a mechanism that accounting planned, or one for each part, to a TFF factory."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, Callable, Optional

import tensorflow as tf
from typing_extensions import Unpack

from tff_dp_aggregators import accounting
from tff_dp_aggregators import noise
from tff_dp_aggregators import queries
from tff_dp_aggregators import sampling
from tff_dp_aggregators.accounting import noises
from tff_dp_aggregators.aggregators import builders
from tff_dp_aggregators.aggregators import distributed
from tff_dp_aggregators.aggregators import factory
from tff_dp_aggregators.base import checks
from tff_dp_aggregators.noise import options
from tff_dp_aggregators.queries import nested


def from_mechanism(
  mechanism: accounting.Mechanism,
  *,
  clip_norm: float,
  clients_per_round: float,
  schedule: Optional[sampling.Schedule] = None,
  target_quantile: Optional[float] = None,
  clip_learning_rate: Optional[float] = None,
  record_aggregation_factory: factory.SumOfRecords = None,
  **noise_options: Unpack[noise.Options],
) -> factory.DPMeanFactory:
  """The factory of a mechanism that accounting planned.

  If the mechanism rests on sampling, what states say of privacy (`extract_dp_event`,
  the effective noise multiplier in measurements) is that of clients who take part in
  each round that they may be drawn for at all. For zero-out neighbours, and with
  Poisson sampling for add-or-remove, that is right and never too little; what the
  sampling is worth is in `mechanism.event` and, for the lines of a ledger, in
  `mechanism.round_events`. Under other relations these alone are right.

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
  numbers = {'target_quantile': target_quantile, 'learning_rate': clip_learning_rate}
  adapting: Any = {name: value for name, value in numbers.items() if value is not None}
  if adapting and mechanism.clipped_count_stddev is None:
    raise ValueError(
      f'target_quantile={target_quantile} and clip_learning_rate={clip_learning_rate} '
      'are for adaptive clipping, which this mechanism does not pay for; leave them '
      'out, or plan the mechanism with clipped_count_share.'
    )
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


def _check_schedule(
  mechanism: accounting.Mechanism,
  clients_per_round: float,
  schedule: Optional[sampling.Schedule],
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
        'or plan with limits on participation.'
      )
    return
  if not isinstance(schedule, sampling.Schedule):
    raise TypeError(f'schedule must be a sampling.Schedule; got {schedule!r}.')
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
    if build is builders.gaussian_shares:
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
  (noises.GAUSSIAN.name, noises.CLIENTS.name): _independent(builders.gaussian_shares),
  (noises.GAUSSIAN.name, noises.LOCAL.name): _independent(builders.local_gaussian),
  (noises.LAPLACE.name, noises.LOCAL.name): _independent(builders.local_laplace),
  (noises.GAUSSIAN.name, noises.CLIENTS_AND_SERVER.name): _independent(
    builders.two_sided_gaussian
  ),
  (noises.GAUSSIAN.name, noises.LOCAL_APPROXIMATE.name): _independent(
    builders.approximate_local_gaussian
  ),
  (noises.LAPLACE.name, noises.LOCAL_APPROXIMATE.name): _independent(
    builders.approximate_local_laplace
  ),
  (noises.SKELLAM.name, noises.CLIENTS.name): _integers,
  (noises.DISCRETE_GAUSSIAN.name, noises.CLIENTS.name): _integers,
}


def joint(
  parts: Mapping[str, factory.DPMeanFactory],
  part_of: Sequence[str],
  *,
  record_aggregation_factory: factory.SumOfRecords = None,
) -> factory.DPMeanFactory:
  """Parts of a model, or of statistics, with mechanisms of their own.

  Each part has its clip norm, its noise and its strategy. A client takes part in all of
  them, so what its rounds cost is the composition of their events, which
  `extract_dp_event` says of a state. Nothing here is amplified by sampling: the events
  are those of a client who is in each round that it may be drawn for.

  Args:
    parts: Factories of means, by name, all with the same `clients_per_round`. None sums
      records in a way of its own, releases sums over rounds, or has another's noise.
    part_of: The part of each tensor of a value, in the order of `tf.nest.flatten`: that
      of a model's trainable weights.
    record_aggregation_factory: Sums the clipped values; `None` for
      `tff.aggregators.SumFactory`.
  """
  if not isinstance(parts, Mapping) or not parts:
    raise TypeError(f'parts must be a mapping of names to factories; got {parts!r}.')
  sizes = {}
  for name, part in parts.items():
    factory.check_part(f'the part {name!r}', part, 'joint')
    if part.workload is not None:
      raise ValueError(
        f'the part {name!r} releases sums over rounds, and a joint mean goes to one '
        'optimizer; make it without a workload.'
      )
    sizes[name] = part.clients_per_round
  if len(set(sizes.values())) > 1:
    raise ValueError(
      f'parts must have the same clients_per_round, for they are of the same clients; '
      f'got {sizes}.'
    )
  part_of = nested.check_parts(part_of, parts)

  def build_query(record_specs: Any) -> queries.JointSumQuery:
    nested.check_parts(part_of, parts, record_specs)
    specs = nested.by_part(tf.nest.flatten(record_specs), part_of)
    return queries.JointSumQuery(
      {name: parts[name].query_for(own) for name, own in specs.items()},
      part_of=part_of,
      record_specs=record_specs,
    )

  return factory.DPMeanFactory(
    build_query,
    clients_per_round=next(iter(sizes.values())),
    # A part whose clients make its noise in shares needs so many of them.
    min_clients=max(part.min_clients for part in parts.values()) or None,
    record_aggregation_factory=record_aggregation_factory,
    specs_to_look_at=[
      parts[name].spec_to_look_at(part_of[:index].count(name))
      for index, name in enumerate(part_of)
    ],
  )


def from_joint_mechanism(
  mechanism: accounting.JointMechanism,
  part_of: Sequence[str],
  *,
  clients_per_round: float,
  schedule: Optional[sampling.Schedule] = None,
  record_aggregation_factory: factory.SumOfRecords = None,
  **noise_options: Unpack[noise.Options],
) -> factory.DPMeanFactory:
  """The factory of a joint mechanism that accounting planned.

  Each part has the clip norm, the strategy and the noise of the mechanism, as
  `from_mechanism` makes them; `joint` says what holds of all of them. Arguments and
  errors are theirs, but that each part has a stream of the seed of its own: of an int
  the next ones in this process, of a `noise.Seed` that and those after. `storage` is
  for the parts that remember noise. Of a model's trainable weights `part_of` is
  `mechanism.part_of(learning.weight_names(model))`.
  """
  if not isinstance(mechanism, accounting.JointMechanism):
    raise TypeError(
      'mechanism must be an accounting.JointMechanism, got '
      f'{type(mechanism).__name__}; from_mechanism takes that of all weights.'
    )
  given = options.checked(noise_options)
  remember = [remembers(part.mechanism) for part in mechanism.parts]
  parts = {
    part.name: from_mechanism(
      part.mechanism,
      clip_norm=part.clip_norm,
      clients_per_round=clients_per_round,
      schedule=schedule,
      seed=(
        dataclasses.replace(given.seed, stream=given.seed.stream + number)
        if isinstance(given.seed, noise.Seed)
        else given.seed
      ),
      generator=given.generator,
      # Refused below where no part has use for it.
      storage=given.storage if remember[number] or not any(remember) else 'auto',
    )
    for number, part in enumerate(mechanism.parts)
  }
  return joint(parts, part_of, record_aggregation_factory=record_aggregation_factory)
