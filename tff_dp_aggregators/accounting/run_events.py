"""The events of a matrix mechanism under a participation schema.

Under limits on participation, all rounds are one Gaussian (`events.run_event`); each
scheme of `sampling` has its own events.
"""

from typing import Optional, cast

import dp_accounting
from dp_accounting import NeighboringRelation as Relation

from tff_dp_aggregators import sampling
from tff_dp_aggregators import strategies
from tff_dp_aggregators.accounting import accountants
from tff_dp_aggregators.accounting import events
from tff_dp_aggregators.accounting import noises
from tff_dp_aggregators.sampling import scheme as scheme_lib
from tff_dp_aggregators.strategies import registry

_DELTA = 1e-6  # Several bounds of a scheme, all valid, are compared at this delta.


def event(
  strategy: strategies.Strategy,
  schema: sampling.Schema,
  noise_multiplier: float,
  relation: Optional[Relation] = None,
  noise: noises.Noise = noises.GAUSSIAN,
) -> dp_accounting.DpEvent:
  """The event of all rounds of a matrix mechanism under a participation schema.

  `noise_multiplier` is relative to the clip norm, and is halved if a client can change
  a sum by two clip norms.
  """
  relative = _relative(strategy, schema, noise_multiplier, relation, noise)
  if relative.multiplier == 0:
    return dp_accounting.NonPrivateDpEvent()
  scheme = sampling.of(schema)
  if scheme.is_sampled:
    return cast(dp_accounting.DpEvent, scheme.event(strategy, relative))
  if noise.is_gaussian:
    return events.run_event(strategy, scheme.limits, relative.multiplier)
  return noise.repeated(relative.multiplier, scheme.limits.possible_participations)


def round_events(
  strategy: strategies.Strategy,
  schema: sampling.Schema,
  noise_multiplier: float,
  relation: Optional[Relation] = None,
  noise: noises.Noise = noises.GAUSSIAN,
) -> tuple[dp_accounting.DpEvent, ...]:
  """The event of each round; those of rounds 0 to t compose to what these spent."""
  relative = _relative(strategy, schema, noise_multiplier, relation, noise)
  nothing = dp_accounting.NoOpDpEvent()
  if relative.multiplier == 0:
    return (dp_accounting.NonPrivateDpEvent(),) * schema.num_rounds
  scheme = sampling.of(schema)
  if scheme.is_sampled:
    return tuple(scheme.round_events(strategy, relative))
  if not noise.is_gaussian:
    # The densest pattern has the most participations after any round.
    rounds, one = set(scheme.limits.rounds), noise.event(relative.multiplier)
    return tuple(one if t in rounds else nothing for t in range(schema.num_rounds))
  multipliers, _ = events.round_noise_multipliers(
    strategy, scheme.limits, relative.multiplier
  )
  return tuple(
    events.simplify(dp_accounting.GaussianDpEvent(float(m))) for m in multipliers
  )


def check(
  strategy: strategies.Strategy,
  schema: sampling.Schema,
  noise: noises.Noise = noises.GAUSSIAN,
) -> None:
  """Raises ValueError if strategy or noise have no known events under the schema."""
  if schema.num_rounds != strategy.num_rounds:
    raise ValueError(
      f'the schema is for {schema.num_rounds} rounds, the strategy for '
      f'{strategy.num_rounds}; build both for the same number.'
    )
  scheme = sampling.of(schema)
  known = scheme.known_noises
  if known is not None and noise.name not in known:
    raise ValueError(
      f'no accountant here reads {noise.name} noise under {type(schema).__name__}, '
      f'only {" and ".join(known)} noise. Use other sampling, or limits.'
    )
  identity = strategies.Identity(strategy.num_rounds)
  if not noise.is_gaussian and strategy != identity:
    raise ValueError(
      f'{noise.name} noise is independent in each round, and its strategy the '
      f'identity; got {registry.name_of(strategy)}.'
    )
  scheme.check(strategy)


def _relative(
  strategy: strategies.Strategy,
  schema: sampling.Schema,
  noise_multiplier: float,
  relation: Optional[Relation],
  noise: noises.Noise,
) -> scheme_lib.Noise:
  """Checks the arguments and returns the noise relative to the sensitivity."""
  relation = sampling.check_relation(schema, relation)
  checked = events.check_noise_multiplier(noise_multiplier)
  check(strategy, schema, noise)
  factor: float = sampling.of(schema).sensitivity_factor(relation)
  return scheme_lib.Noise(checked / factor, noise.event, _epsilon)


def _epsilon(each: dp_accounting.DpEvent) -> float:
  return accountants.epsilon(each, _DELTA, 'pld', Relation.ADD_OR_REMOVE_ONE)
