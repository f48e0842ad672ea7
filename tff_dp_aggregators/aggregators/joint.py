"""Private means whose parts have mechanisms of their own, accounted for together."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Optional

import tensorflow as tf
from typing_extensions import Unpack

from tff_dp_aggregators import accounting
from tff_dp_aggregators import noise
from tff_dp_aggregators import queries
from tff_dp_aggregators.aggregators import factory
from tff_dp_aggregators.aggregators import mechanisms
from tff_dp_aggregators.noise import options
from tff_dp_aggregators.queries import nested


def joint(
  parts: Mapping[str, factory.DPMeanFactory],
  part_of: Sequence[str],
  *,
  record_aggregation_factory: factory.SumOfRecords = None,
) -> factory.DPMeanFactory:
  """Parts of a model, or of statistics, with mechanisms of their own.

  Each part has its clip norm, its noise and its strategy: an embedding with tree
  aggregation and a small clip norm, say, beside other layers with independent noise. A
  client takes part in all of them, so what its rounds cost is the composition of their
  events: that is what `extract_dp_event` says of a state, and what one accountant
  reads. With sampling the parts of a client are in the same samples, and nothing here
  amplifies: the events are those of a client who is in each round that it may be drawn
  for.

  Args:
    parts: Factories of means, by name, all with the same `clients_per_round`. None sums
      records in a way of its own, releases sums over rounds, or has another's noise.
    part_of: The part of each tensor of a value, in the order of `tf.nest.flatten`: that
      of a model's trainable weights.
    record_aggregation_factory: Sums the clipped values; `None` for
      `tff.aggregators.SumFactory`.

  Example:
    >>> import numpy as np
    >>> import tensorflow_federated as tff
    >>> from tff_dp_aggregators import aggregators
    >>> numbers = {'clip_norm': 1.0, 'clients_per_round': 100}
    >>> aggregator = joint(
    ...   {
    ...     'body': aggregators.gaussian(noise_multiplier=2.0, **numbers),
    ...     'head': aggregators.laplace(noise_multiplier=4.0, **numbers),
    ...   },
    ...   part_of=['body', 'body', 'head'],
    ... )
    >>> tensor = tff.TensorType(np.float32, [2])
    >>> process = aggregator.create(tff.to_type([tensor] * 3))
    >>> ones = [np.ones(2, np.float32)] * 3
    >>> output = process.next(process.initialize(), [ones] * 100)
    >>> for event in aggregators.extract_dp_event(output.state).last_round_only.events:
    ...   print(event)
    LaplaceDpEvent(noise_multiplier=4.0)
    GaussianDpEvent(noise_multiplier=2.0)
  """
  clients_per_round = _check(parts)
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
    clients_per_round=clients_per_round,
    # A part whose clients make its noise in shares needs so many of them.
    min_clients=max(part.min_clients for part in parts.values()) or None,
    record_aggregation_factory=record_aggregation_factory,
    specs_to_look_at=[
      parts[name].spec_to_look_at(part_of[:index].count(name))
      for index, name in enumerate(part_of)
    ],
  )


def _check(parts: Mapping[str, factory.DPMeanFactory]) -> float:
  """Returns the parts' common denominator."""
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
  return next(iter(sizes.values()))


def from_joint_mechanism(
  mechanism: accounting.JointMechanism,
  part_of: Sequence[str],
  *,
  clients_per_round: float,
  schedule: Optional[mechanisms.Schedule] = None,
  record_aggregation_factory: factory.SumOfRecords = None,
  **noise_options: Unpack[noise.Options],
) -> factory.DPMeanFactory:
  """The factory of a joint mechanism that accounting planned.

  Each part has the clip norm, the strategy and the noise of the mechanism, as
  `from_mechanism` makes them; `joint` says what holds of all of them.

  Args:
    mechanism: Parts with their mechanisms, for instance calibrated to a privacy target
      by `accounting.JointMechanism.for_target`.
    part_of: The part of each tensor of a value, in the order of `tf.nest.flatten`: of a
      model's trainable weights `mechanism.part_of(learning.weight_names(model))`.
    clients_per_round: Denominator of the mean.
    schedule: Who takes part, a `sampling.Schedule`; `None` if it is not known here.
    record_aggregation_factory: Sums the clipped values; `None` for
      `tff.aggregators.SumFactory`.
    **noise_options: See `noise.Options`. Each part has a stream of the seed of its own:
      of an int the next ones in this process, of a `noise.Seed` that and those after.
      `storage` is for the parts that remember noise.
  """
  if not isinstance(mechanism, accounting.JointMechanism):
    raise TypeError(
      'mechanism must be an accounting.JointMechanism, got '
      f'{type(mechanism).__name__}; from_mechanism takes that of all weights.'
    )
  given = options.checked(noise_options)
  remember = [mechanisms.remembers(part.mechanism) for part in mechanism.parts]
  parts = {
    part.name: mechanisms.from_mechanism(
      part.mechanism,
      clip_norm=part.clip_norm,
      clients_per_round=clients_per_round,
      schedule=schedule,
      seed=_seed_of(given.seed, number),
      generator=given.generator,
      # Refused below where no part has use for it.
      storage=given.storage if remember[number] or not any(remember) else 'auto',
    )
    for number, part in enumerate(mechanism.parts)
  }
  return joint(parts, part_of, record_aggregation_factory=record_aggregation_factory)


def _seed_of(seed: noise.SeedLike, number: int) -> noise.SeedLike:
  """The stream of a part; an int has one for whoever asks next."""
  if not isinstance(seed, noise.Seed):
    return seed
  return dataclasses.replace(seed, stream=seed.stream + number)
