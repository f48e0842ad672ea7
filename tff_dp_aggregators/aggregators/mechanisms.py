"""Factories of mechanisms that accounting has planned, and of joint means of parts."""

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
  """Returns the factory of a mechanism that accounting has planned.

  If the mechanism's privacy rests on sampling, `extract_dp_event` and the effective
  noise multiplier in the measurements do not include amplification: they assume clients
  that take part in every round for which they can be sampled. Under the zero-out
  neighbouring relation, and with Poisson sampling under add-or-remove, they are valid
  upper bounds of the cost. Under other relations only `mechanism.event` and, for the
  lines of a ledger, `mechanism.round_events` are valid; they include amplification.

  Args:
    mechanism: Strategy, participation and noise, for instance calibrated to a
      privacy target by `accounting.Mechanism.for_target`.
    clip_norm: L2 bound of one client's contribution to one round; L1 for Laplace noise.
      With adaptive clipping, that of the first rounds.
    clients_per_round: Denominator of the mean.
    schedule: The `sampling.Schedule` from which the clients of rounds are drawn. It is
      required if the mechanism rests on sampling, or pays for adaptive clipping, and
      must have the mechanism's schema and this denominator.
    target_quantile: With adaptive clipping, that of `aggregators.adaptive`.
    clip_learning_rate: With adaptive clipping, `learning_rate` of
      `aggregators.adaptive`.
    record_aggregation_factory: Sums the clipped values; `None` for
      `tff.aggregators.SumFactory`.
    **noise_options: See `noise.Options`. If rounds share no noise, a `storage` other
      than 'auto' and 'in_process' is refused.

  Raises:
    TypeError: If an argument has the wrong type.
    ValueError: If a number is out of range, an option has no use, the schedule does not
      fit, or it is missing and the mechanism rests on sampling or adapts its clip norm.
  """
  if not isinstance(mechanism, accounting.Mechanism):
    raise TypeError(
      f'mechanism must be an accounting.Mechanism, got {mechanism!r}; '
      'accounting.Mechanism.for_target makes one of a name, from_strategy takes a '
      'strategy, and from_joint_mechanism an accounting.JointMechanism.'
    )
  opts = options.checked(noise_options)
  if opts.storage not in ('auto', 'in_process') and not remembers(mechanism):
    raise ValueError(
      f'storage={opts.storage!r} has no use for a mechanism whose rounds share no '
      f'noise, {mechanism.name}; leave it out.'
    )
  _check_schedule(mechanism, clients_per_round, schedule)
  numbers = {'target_quantile': target_quantile, 'learning_rate': clip_learning_rate}
  adaptive: Any = {name: value for name, value in numbers.items() if value is not None}
  if adaptive and mechanism.clipped_count_stddev is None:
    raise ValueError(
      f'target_quantile={target_quantile} and clip_learning_rate={clip_learning_rate} '
      'are for adaptive clipping, which this mechanism does not pay for; leave them '
      'out, or plan the mechanism with clipped_count_share.'
    )
  build = _BUILDERS.get((mechanism.noise.name, mechanism.noise_site))
  common: Any = {
    'clients_per_round': clients_per_round,
    'record_aggregation_factory': record_aggregation_factory,
  }
  if build is not None:
    common |= {'seed': opts.seed, 'generator': opts.generator}
    mean = build(mechanism, clip_norm=clip_norm, **common)
  else:
    common |= {'strategy': mechanism.strategy, 'participation': mechanism.limits}
    common |= {**noise_options, 'noise_multiplier': mechanism.noise_multiplier}
    if mechanism.clipped_count_stddev is None:
      mean = builders.from_strategy(clip_norm=clip_norm, **common)
    else:
      adaptive['clipped_count_stddev'] = mechanism.clipped_count_stddev
      mean = builders.adaptive(initial_clip_norm=clip_norm, **common, **adaptive)
  has_public_sizes = sampling.of(mechanism.participation).has_public_sizes
  mean.__dict__['draws_are_secret'] = mechanism.is_sampled and not has_public_sizes
  return mean


def remembers(mechanism: accounting.Mechanism) -> bool:
  """Whether rounds depend on the stored noise of earlier rounds."""
  if (mechanism.noise.name, mechanism.noise_site) in _BUILDERS:
    return False
  return mechanism.strategy.recursion().work.buffers > 0


def _check_schedule(
  mechanism: accounting.Mechanism,
  clients_per_round: float,
  schedule: Optional[sampling.Schedule],
) -> None:
  """Raises an error unless the mechanism's privacy can rest on the schedule."""
  example = (
    'schedule=sampling.for_mechanism(mechanism, num_clients, clients_per_round, seed)'
  )
  if schedule is None:
    if mechanism.is_sampled or mechanism.clipped_count_stddev is not None:
      raise ValueError(
        'mechanism rests on sampling, or pays for adaptive clipping, and nothing here '
        f'ensures that without a schedule; give {example} and take the clients from '
        'it, or plan with limits on participation.'
      )
    return
  if not isinstance(schedule, sampling.Schedule):
    raise TypeError(f'schedule must be a sampling.Schedule; got {schedule!r}.')
  if schedule.schema != mechanism.participation:
    raise ValueError(
      f'the schedule keeps {schedule.schema}, but the mechanism rests on '
      f'{mechanism.participation}; give {example}.'
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
  """Adapts a function of `builders` to take a mechanism without strategy."""

  def make(mechanism: accounting.Mechanism, **args: Any) -> factory.DPMeanFactory:
    if mechanism.server_noise_multiplier is not None:
      args['server_noise_multiplier'] = mechanism.server_noise_multiplier
    minimum = dict(mechanism.options).get(noises.MIN_CLIENTS)
    if build is builders.gaussian_shares:
      args['min_clients'] = minimum
    mean = build(mechanism.limits, noise_multiplier=mechanism.noise_multiplier, **args)
    return mean if minimum is None else mean.with_min_clients(minimum)

  return make


def _integers(
  mechanism: accounting.Mechanism,
  *,
  clients_per_round: float,
  seed: noise.SeedLike,
  generator: str,
  **kwargs: Any,
) -> factory.DPMeanFactory:
  del generator  # Each client draws a key from its kernel's entropy.
  if seed is not None:
    raise ValueError(
      f'seed={seed} does not go with {mechanism.name} noise, of which every client '
      'draws its share from entropy of its own; leave it out.'
    )
  numbers = dict(mechanism.options)
  maximum = numbers.setdefault(noises.MAX_CLIENTS, numbers[noises.MIN_CLIENTS])
  if clients_per_round > maximum:
    raise ValueError(
      f'clients_per_round is {clients_per_round}, but sums of more than max_clients='
      f'{maximum} may wrap around; plan the mechanism with max_clients='
      f'{math.ceil(clients_per_round)} or more.'
    )
  return distributed.of_noise(
    mechanism.noise.name,
    mechanism.limits,
    noise_multiplier=mechanism.noise_multiplier,
    clients_per_round=clients_per_round,
    **numbers,
    **kwargs,
  )


# Builders for noise without a strategy, by the kind of noise and who adds it.
_BUILDERS: dict[tuple[str, str], Callable[..., factory.DPMeanFactory]] = {
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
  """A mean of several parts, of a model or of statistics, with separate mechanisms.

  Each part has its own clip norm, noise and strategy. A client takes part in all of the
  parts, so the cost of its rounds is the composition of their events, which
  `extract_dp_event` returns. The events do not include amplification by sampling: they
  are those of a client in every round for which it can be sampled.

  Args:
    parts: Factories of means, by name, all with the same `clients_per_round`. They must
      not have their own `record_aggregation_factory`, a workload, or the same noise.
    part_of: The part of each tensor of a value, in the order of `tf.nest.flatten`; for
      a model, of its trainable weights.
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
      {name: parts[name].query_for(part_specs) for name, part_specs in specs.items()},
      part_of=part_of,
      record_specs=record_specs,
    )

  return factory.DPMeanFactory(
    build_query,
    clients_per_round=next(iter(sizes.values())),
    # Parts whose clients add shares of the noise need this number of clients.
    min_clients=max(part.min_clients for part in parts.values()) or None,
    record_aggregation_factory=record_aggregation_factory,
    sample_specs=[
      parts[name].sample_spec(part_of[:index].count(name))
      for index, name in enumerate(part_of)
    ],
    draws_are_secret=any(part.draws_are_secret for part in parts.values()),
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
  """Returns the factory of a joint mechanism that accounting has planned.

  Each part has the clip norm, the strategy and the noise of the mechanism, as in
  `from_mechanism`; see `joint` for the mean of all parts. Arguments and errors are
  those of these two functions, except that each part has a separate stream of the seed:
  the next streams in this process for an int, the given stream and those after it for a
  `noise.Seed`. `storage` applies to the parts whose rounds share noise. For a model's
  trainable weights, `part_of` is `mechanism.part_of(learning.weight_names(model))`.
  """
  if not isinstance(mechanism, accounting.JointMechanism):
    raise TypeError(
      'mechanism must be an accounting.JointMechanism, got '
      f'{type(mechanism).__name__}; from_mechanism takes that of all weights.'
    )
  opts = options.checked(noise_options)
  remember = [remembers(part.mechanism) for part in mechanism.parts]
  parts = {
    part.name: from_mechanism(
      part.mechanism,
      clip_norm=part.clip_norm,
      clients_per_round=clients_per_round,
      schedule=schedule,
      seed=(
        dataclasses.replace(opts.seed, stream=opts.seed.stream + index)
        if isinstance(opts.seed, noise.Seed)
        else opts.seed
      ),
      generator=opts.generator,
      # `from_mechanism` refuses it if no part has a use for it.
      storage=opts.storage if remember[index] or not any(remember) else 'auto',
    )
    for index, part in enumerate(mechanism.parts)
  }
  return joint(parts, part_of, record_aggregation_factory=record_aggregation_factory)
