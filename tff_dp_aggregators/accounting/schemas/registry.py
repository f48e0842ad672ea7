"""The kinds of schema there are, and the questions that all of them answer.

Flags, events, statements with their JSON schema, reports and comparisons follow from
`KINDS`; nothing outside of this package asks of which kind a schema is.
"""

import dataclasses
from typing import Any, Optional

import dp_accounting
from dp_accounting import NeighboringRelation as Relation

from tff_dp_aggregators import strategies
from tff_dp_aggregators.accounting import events
from tff_dp_aggregators.accounting import noises
from tff_dp_aggregators.accounting.accountants import bands
from tff_dp_aggregators.accounting.schemas import b_min_sep
from tff_dp_aggregators.accounting.schemas import balls_in_bins
from tff_dp_aggregators.accounting.schemas import base
from tff_dp_aggregators.accounting.schemas import fixed_size
from tff_dp_aggregators.accounting.schemas import no_sampling
from tff_dp_aggregators.accounting.schemas import poisson
from tff_dp_aggregators.accounting.schemas import random_allocation
from tff_dp_aggregators.strategies import registry as strategy_registry

# What is assumed unless something else is asked for.
LIMITS = no_sampling.KIND

# Every kind of schema, by name; `register` adds to them.
KINDS: dict[str, base.Kind[Any]] = {}


def register(kind: base.Kind[Any]) -> None:
  """Adds a kind of schema; from then on flags, reports and comparisons know it.

  Raises:
    ValueError: If its name, its value of `--sampling` or the name of one of its offers
      is taken, or a flag of it means something else elsewhere.
  """
  known = KINDS.values()
  taken = {
    'name': [each.name for each in known],
    'flag': [each.flag for each in known],
  }
  for what, names in taken.items():
    if getattr(kind, what) in names:
      raise ValueError(f'the {what} {getattr(kind, what)!r} is taken by another kind.')
  others = {offer.name for each in known for offer in each.offers}
  for offer in kind.offers:
    if offer.name in others:
      raise ValueError(f'the offer {offer.name!r} is one of another kind.')
  for flag in kind.flags:
    if flags().get(flag.name, flag) != flag:
      raise ValueError(f'--{flag.name} has another meaning already.')
  KINDS[kind.name] = kind


def flags() -> dict[str, base.Flag]:
  """The flags of all kinds, by name."""
  return {flag.name: flag for kind in KINDS.values() for flag in kind.flags}


register(LIMITS)
register(poisson.KIND)
register(fixed_size.KIND)
register(balls_in_bins.KIND)
register(random_allocation.KIND)
register(b_min_sep.KIND)


def kind_of(schema: base.Schema) -> base.Kind[Any]:
  """The kind of a schema.

  Raises:
    TypeError: If it is of none.
  """
  for kind in KINDS.values():
    if isinstance(schema, kind.schema):
      return kind
  known = ', '.join(kind.schema.__name__ for kind in KINDS.values())
  raise TypeError(f'participation must be one of {known}; got {schema!r}.')


def kind_for_flag(value: str) -> base.Kind[Any]:
  """The kind that a value of `--sampling` asks for.

  Raises:
    ValueError: If none does.
  """
  for kind in KINDS.values():
    if kind.flag == value:
      return kind
  known = ', '.join(kind.flag for kind in KINDS.values())
  raise ValueError(f'unknown sampling {value!r}; known: {known}.')


def relations(schema: base.Schema) -> tuple[Relation, ...]:
  """Neighbouring relations that a schema's events are valid for, its own first."""
  return kind_of(schema).relations


def check_relation(schema: base.Schema, relation: Optional[Relation]) -> Relation:
  """Returns the relation, by default the schema's own.

  Raises:
    ValueError: If the schema's events are not valid for it.
  """
  valid = relations(schema)
  if relation is None:
    return valid[0]
  if relation not in valid:
    names = ' or '.join(f'adjacency={base.adjacency(each)}' for each in valid)
    raise ValueError(
      f'{type(schema).__name__} is not valid for adjacency={base.adjacency(relation)}; '
      f'take {names}.'
    )
  return relation


def limits(schema: base.Schema) -> strategies.Participation:
  """In which rounds a client can take part at all, sampled or not."""
  return kind_of(schema).limits(schema)


def is_sampled(schema: base.Schema) -> bool:
  """Whether a guarantee under a schema rests on sampling."""
  return kind_of(schema).is_sampled


def event(
  strategy: strategies.Strategy,
  schema: base.Schema,
  noise_multiplier: float,
  relation: Optional[Relation] = None,
  noise: noises.Noise = noises.GAUSSIAN,
) -> dp_accounting.DpEvent:
  """The event of all rounds of a matrix mechanism under a schema.

  Args:
    strategy: Its strategy matrix C.
    schema: Who takes part when.
    noise_multiplier: Scale of z over the clip norm: of Gaussian noise its standard
      deviation.
    relation: Neighbouring relation; `None` for the schema's own.
    noise: Of z; if it is not Gaussian, the strategy is the identity.

  Returns:
    * Limits: the Gaussian of `events.run_event`. If one client is replaced by another,
      both within the clip norm, sums differ by twice as much, and so the event has half
      the noise multiplier.
    * Poisson sampling: one Poisson-sampled Gaussian for each round that a client may be
      drawn for, relative to the largest column norm of C.
    * Cohorts of fixed size: one sampled Gaussian a round, with half the noise
      multiplier, as one client for another changes a sum by up to two clip norms.
    * Balls in bins, random allocation: `events.AllocatedDpEvent`; with correlated noise
      `events.BallsInBinsDpEvent`, whose bound is one and a Gaussian.
    * b-min-sep sampling: `events.BMinSepDpEvent`.

  Raises:
    ValueError: If `noise_multiplier` is out of range, `schema` for other rounds than
      the strategy, the relation not valid for the schema, or the noise of rounds that
      one client may be drawn for correlated.

  Example:
    >>> schema = poisson.PoissonSampling(100, sampling_probability=0.01)
    >>> event(strategies.Identity(100), schema, noise_multiplier=1.5).count
    100
  """
  relation = check_relation(schema, relation)
  kind = kind_of(schema)
  noise_multiplier = events.check_noise_multiplier(noise_multiplier)
  check(strategy, schema, noise)
  return kind.event(
    strategy, schema, noise_multiplier / kind.sensitivity_factor(relation), noise
  )


def round_events(
  strategy: strategies.Strategy,
  schema: base.Schema,
  noise_multiplier: float,
  relation: Optional[Relation] = None,
  noise: noises.Noise = noises.GAUSSIAN,
) -> tuple[dp_accounting.DpEvent, ...]:
  """The event of each round; those up to any round compose to what all of them spent.

  Args:
    strategy: Its strategy matrix C.
    schema: Who takes part when.
    noise_multiplier: Scale of z over the clip norm: of Gaussian noise its standard
      deviation.
    relation: Neighbouring relation; `None` for the schema's own.
    noise: Of z; if it is not Gaussian, the strategy is the identity.

  Returns:
    * Limits: Gaussians, of infinite noise (`NoOpDpEvent`) where a round adds nothing to
      the worst case.
    * Sampling: a sampled Gaussian in each round that the first group has its turn in,
      and `NoOpDpEvent` in those of others, which add nothing for its clients.
    * Rounds of a client that are drawn together: all in the first.

  Raises:
    ValueError: As for `event`.

  Example:
    >>> cyclic = poisson.PoissonSampling(4, sampling_probability=0.1, num_groups=2)
    >>> for each in round_events(strategies.Identity(4), cyclic, noise_multiplier=1.5):
    ...   print(type(each).__name__)
    PoissonSampledDpEvent
    NoOpDpEvent
    PoissonSampledDpEvent
    NoOpDpEvent
  """
  relation = check_relation(schema, relation)
  kind = kind_of(schema)
  noise_multiplier = events.check_noise_multiplier(noise_multiplier)
  check(strategy, schema, noise)
  return kind.round_events(
    strategy, schema, noise_multiplier / kind.sensitivity_factor(relation), noise
  )


def check(
  strategy: strategies.Strategy,
  schema: base.Schema,
  noise: noises.Noise = noises.GAUSSIAN,
) -> None:
  """Checks that a strategy's events are known under a schema.

  Raises:
    ValueError: If they are for other rounds, or if sampling does not help because the
      noise of rounds that one client may be drawn for is correlated; or of noise that
      is correlated, or of which nothing is known under the schema.
  """
  if schema.num_rounds != strategy.num_rounds:
    raise ValueError(
      f'the schema is for {schema.num_rounds} rounds, the strategy for '
      f'{strategy.num_rounds}; build both for the same number.'
    )
  kind = kind_of(schema)
  if noise.name not in [each.name for each in kind.known_noises]:
    known = ' and '.join(each.name for each in kind.known_noises)
    raise ValueError(
      f'no accountant here reads {noise.name} noise under {type(schema).__name__}, '
      f'only {known} noise. Use Poisson sampling, or no sampling assumption.'
    )
  identity = strategies.Identity(strategy.num_rounds)
  if not noise.is_gaussian and strategy != identity:
    raise ValueError(
      f'{noise.name} noise is independent in each round, and its strategy the '
      f'identity; got {strategy_registry.name_of(strategy)}.'
    )
  kind.check(strategy, schema)


def check_bands(schema: base.Schema, option: str, num_bands: int) -> None:
  """Checks that a sampled schema allows so many bands.

  Args:
    schema: Who takes part when.
    option: What the number of bands is called.
    num_bands: That were asked for.

  Raises:
    ValueError: If rounds of a client would share noise; the message says what to do.
  """
  kind = kind_of(schema)
  free = kind.free_bands(schema)
  if free is not None:
    bands.check_bands(option, num_bands, free, kind.separation)


def to_json(schema: base.Schema) -> dict[str, Any]:
  """JSON-ready values that `from_json` reads back."""
  kind = kind_of(schema)
  return {'schema': kind.name, **{name: getattr(schema, name) for name in _names(kind)}}


def from_json(data: dict[str, Any]) -> Any:
  """Reads what `to_json` wrote.

  Raises:
    ValueError: If it is none of the schemas, or its numbers are out of range.
  """
  if not isinstance(data, dict) or data.get('schema') not in KINDS:
    raise ValueError(f'not a participation schema, of {sorted(KINDS)}: {data!r}.')
  values = {name: value for name, value in data.items() if name != 'schema'}
  try:
    return KINDS[data['schema']].schema(**values)
  except TypeError as e:
    raise ValueError(f'the stored {data["schema"]} is not one: {e}') from e


def of_report(participation: dict[str, Any]) -> Any:
  """The schema in a report's `participation`, which says more than its fields.

  Raises:
    ValueError: If it is none of the schemas, or its numbers are out of range.
  """
  kind = KINDS.get(participation.get('schema', ''))
  own = ('schema', *(_names(kind) if kind else ()))
  return from_json({name: participation[name] for name in own if name in participation})


def _names(kind: base.Kind[Any]) -> tuple[str, ...]:
  return tuple(field.name for field in dataclasses.fields(kind.schema))
