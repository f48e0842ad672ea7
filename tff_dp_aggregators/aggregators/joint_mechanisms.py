"""From a joint mechanism that accounting planned to a TFF factory."""

import dataclasses
from collections.abc import Sequence
from typing import Optional

import tensorflow_federated as tff

from tff_dp_aggregators import accounting
from tff_dp_aggregators import noise
from tff_dp_aggregators.aggregators import factory
from tff_dp_aggregators.aggregators import mechanisms

# The function has the module's name in the package.
from tff_dp_aggregators.aggregators.joint import joint


def from_joint_mechanism(
  mechanism: accounting.JointMechanism,
  part_of: Sequence[str],
  *,
  clients_per_round: float,
  schedule: Optional[mechanisms.Schedule] = None,
  storage: noise.Storage = 'auto',
  seed: noise.SeedLike = None,
  generator: str = 'auto',
  record_aggregation_factory: Optional[
    tff.aggregators.UnweightedAggregationFactory
  ] = None,
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
    storage: Where the noise of earlier rounds is: see `noise.build`.
    seed: Reproducible noise, for simulations; `None` for secret noise. Each part has a
      stream of its own: of an int the next ones in this process, of a `noise.Seed` that
      and those after it.
    generator: What random words the noise is made of: see `from_mechanism`.
    record_aggregation_factory: Sums the clipped values; `None` for
      `tff.aggregators.SumFactory`.

  Returns:
    An unweighted aggregation factory, for values like the whole.

  Raises:
    TypeError: If an argument is not of its type.
    ValueError: If a number is out of range, `part_of` does not fit the parts, or the
      schedule is of another participation.

  Example:
    >>> from tff_dp_aggregators import aggregators, strategies
    >>> participation = strategies.Participation(8, min_separation=4)
    >>> make = accounting.Mechanism
    >>> mechanism = accounting.JointMechanism(
    ...   (
    ...     accounting.JointPart('body', '0', make('tree', participation, 6.0), 0.3),
    ...     accounting.JointPart('head', '1', make('laplace', participation, 9.0), 1.0),
    ...   )
    ... )
    >>> aggregator = aggregators.from_joint_mechanism(
    ...   mechanism, mechanism.part_of(['0', '1']), clients_per_round=100
    ... )
    >>> aggregator.clients_per_round
    100.0
  """
  if not isinstance(mechanism, accounting.JointMechanism):
    raise TypeError(
      'mechanism must be an accounting.JointMechanism, got '
      f'{type(mechanism).__name__}; from_mechanism takes that of all weights.'
    )
  parts = {
    part.name: mechanisms.from_mechanism(
      part.mechanism,
      clip_norm=part.clip_norm,
      clients_per_round=clients_per_round,
      schedule=schedule,
      storage=storage,
      seed=_seed_of(seed, number),
      generator=generator,
    )
    for number, part in enumerate(mechanism.parts)
  }
  return joint(parts, part_of, record_aggregation_factory=record_aggregation_factory)


def _seed_of(seed: noise.SeedLike, number: int) -> noise.SeedLike:
  """The stream of a part; an int has one for whoever asks next."""
  if not isinstance(seed, noise.Seed):
    return seed
  return dataclasses.replace(seed, stream=seed.stream + number)
