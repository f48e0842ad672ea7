"""The events of a matrix mechanism under a scheme of participation.

Limits make all rounds one Gaussian (`events.run_event`); a scheme of `sampling` has
events of its own. Of several bounds that it knows, the one with the least epsilon is
taken: each holds for all deltas.
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

_DELTA = 1e-6  # At which one bound is preferred to another.


def event(
  strategy: strategies.Strategy,
  schema: sampling.Schema,
  noise_multiplier: float,
  relation: Optional[Relation] = None,
  noise: noises.Noise = noises.GAUSSIAN,
) -> dp_accounting.DpEvent:
  """The event of all rounds of a matrix mechanism under a scheme.

  The noise multiplier, over the clip norm, counts half where a client moves a sum by
  two.
  """
  own = _relative(strategy, schema, noise_multiplier, relation, noise)
  if own.multiplier == 0:
    return dp_accounting.NonPrivateDpEvent()
  scheme = sampling.of(schema)
  if scheme.is_sampled:
    return cast(dp_accounting.DpEvent, scheme.event(strategy, own))
  if noise.is_gaussian:
    return events.run_event(strategy, scheme.limits, own.multiplier)
  return noise.repeated(own.multiplier, scheme.limits.possible_participations)


def round_events(
  strategy: strategies.Strategy,
  schema: sampling.Schema,
  noise_multiplier: float,
  relation: Optional[Relation] = None,
  noise: noises.Noise = noises.GAUSSIAN,
) -> tuple[dp_accounting.DpEvent, ...]:
  """The event of each round; those up to any round compose to what all of them spent.

  Of limits they are Gaussians, of infinite noise (`NoOpDpEvent`) where a round adds
  nothing to the worst case.
  """
  own = _relative(strategy, schema, noise_multiplier, relation, noise)
  nothing = dp_accounting.NoOpDpEvent()
  if own.multiplier == 0:
    return (dp_accounting.NonPrivateDpEvent(),) * schema.num_rounds
  scheme = sampling.of(schema)
  if scheme.is_sampled:
    return tuple(scheme.round_events(strategy, own))
  if not noise.is_gaussian:
    # The densest pattern has the most of them after any round.
    rounds, one = set(scheme.limits.rounds), noise.event(own.multiplier)
    return tuple(one if t in rounds else nothing for t in range(schema.num_rounds))
  each, _ = events.round_noise_multipliers(strategy, scheme.limits, own.multiplier)
  return tuple(events.simplify(dp_accounting.GaussianDpEvent(float(m))) for m in each)


def check(
  strategy: strategies.Strategy,
  schema: sampling.Schema,
  noise: noises.Noise = noises.GAUSSIAN,
) -> None:
  """Refuses a strategy or noise whose events are not known under a scheme."""
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
  """The noise over what one client changes, of what is checked."""
  relation = sampling.check_relation(schema, relation)
  checked = events.check_noise_multiplier(noise_multiplier)
  check(strategy, schema, noise)
  factor: float = sampling.of(schema).sensitivity_factor(relation)
  return scheme_lib.Noise(checked / factor, noise.event, _epsilon)


def _epsilon(each: dp_accounting.DpEvent) -> float:
  """By which one of several bounds is taken."""
  return accountants.epsilon(each, _DELTA, 'pld', Relation.ADD_OR_REMOVE_ONE)
