"""Participation schemas: what is assumed about who takes part when, and its price.

An assumption decides which events describe a mechanism, and under which neighbouring
relation they are right:

| schema | assumption | relation |
|---|---|---|
| `strategies.Participation` | rounds of a client are `min_separation` apart (or a \
multiple of it: fixed epochs), at most `max_participations` of them; no sampling | \
zero-out, replace-one |
| `PoissonSampling` | in each round every client of a group is drawn independently, \
with the same probability, and nobody learns who was | add-or-remove |
| `FixedSizeSampling` | each round draws a cohort of fixed size, uniformly and without \
replacement, and nobody learns who was | replace-one |

Sampling amplifies privacy only where the rounds of a client do not share noise: a
sampled round of independent Gaussian noise is an event of its own. With correlated
noise that needs a banded strategy and cyclic sampling (arXiv:2306.08153, section 4);
any other combination is refused, because its events would not describe what happens.

Neighbouring relations are those of dp_accounting: `ADD_OR_REMOVE_ONE` client,
`REPLACE_ONE` client by another, and `REPLACE_SPECIAL`, where all contributions of one
client become zeros (arXiv:2103.00039, Definition 1.1), called zero-out here.
"""

import dataclasses
import math
from typing import Any, Optional, Union

import dp_accounting
from dp_accounting import NeighboringRelation as Relation

from tff_dp_aggregators import strategies
from tff_dp_aggregators.accounting import events
from tff_dp_aggregators.base import checks

ADJACENCIES = {
  'zero_out': Relation.REPLACE_SPECIAL,
  'add_or_remove': Relation.ADD_OR_REMOVE_ONE,
  'replace_one': Relation.REPLACE_ONE,
}


@dataclasses.dataclass(frozen=True)
class PoissonSampling:
  """Every client is drawn for a round independently of everything else.

  With `num_groups` above 1 it is cyclic: clients are put into groups of their own,
  once and independently of their data, and round t draws from group `t % num_groups`
  alone (arXiv:2306.08153, Algorithm 2).

  Attributes:
    num_rounds: Rounds in all, n.
    sampling_probability: Of a client of the round's group, in (0, 1].
    num_groups: Groups that take turns; 1 draws from everybody in every round.

  Raises:
    TypeError: If a number is not whole.
    ValueError: If a number is out of range.

  Example:
    >>> PoissonSampling.of_cohort(1000, population=50_000, cohort=100, num_groups=10)
    PoissonSampling(num_rounds=1000, sampling_probability=0.02, num_groups=10)
  """

  num_rounds: int
  sampling_probability: float
  num_groups: int = 1

  def __post_init__(self) -> None:
    for name in ('num_rounds', 'num_groups'):
      value = checks.check_positive_int(name, getattr(self, name))
      object.__setattr__(self, name, value)
    if not 0 < self.sampling_probability <= 1:
      raise ValueError(
        'sampling_probability must be above 0 and at most 1; got '
        f'{self.sampling_probability}.'
      )
    probability = float(self.sampling_probability)
    object.__setattr__(self, 'sampling_probability', probability)

  @classmethod
  def of_cohort(
    cls, num_rounds: int, population: int, cohort: float, num_groups: int = 1
  ) -> 'PoissonSampling':
    """The sampling that draws `cohort` clients a round in the mean.

    Args:
      num_rounds: Rounds in all.
      population: Clients in all groups together, of which the smallest has at least
        `population // num_groups`.
      cohort: Mean number of clients in a round.
      num_groups: Groups that take turns.

    Raises:
      TypeError: If a number is not whole.
      ValueError: If a number is out of range, or a group has fewer clients than
        `cohort`.
    """
    population = checks.check_positive_int('population', population)
    num_groups = checks.check_positive_int('num_groups', num_groups)
    smallest = population // num_groups
    if not 0 < cohort <= smallest:
      raise ValueError(
        f'cohort must be positive and at most {smallest}, the clients of the smallest '
        f'of {num_groups} groups of {population}; got {cohort}.'
      )
    return cls(num_rounds, cohort / smallest, num_groups)

  @property
  def rounds_of_a_client(self) -> int:
    """Rounds in which one client may be drawn, at most."""
    return -(-self.num_rounds // self.num_groups)


@dataclasses.dataclass(frozen=True)
class FixedSizeSampling:
  """Each round draws a cohort of the same size, uniformly without replacement.

  Attributes:
    num_rounds: Rounds in all, n.
    population: Clients to draw from, the same in all rounds; public.
    cohort: Clients drawn for a round, at most `population`.

  Raises:
    TypeError: If a number is not whole.
    ValueError: If a number is out of range.
  """

  num_rounds: int
  population: int
  cohort: int

  def __post_init__(self) -> None:
    for name in ('num_rounds', 'population', 'cohort'):
      value = checks.check_positive_int(name, getattr(self, name))
      object.__setattr__(self, name, value)
    if self.cohort > self.population:
      raise ValueError(
        f'cohort must be at most population, {self.population}; got {self.cohort}.'
      )


Schema = Union[strategies.Participation, PoissonSampling, FixedSizeSampling]
_KINDS: dict[str, type] = {
  'participation': strategies.Participation,
  'poisson_sampling': PoissonSampling,
  'fixed_size_sampling': FixedSizeSampling,
}


def relations(schema: Schema) -> tuple[Relation, ...]:
  """Neighbouring relations that a schema's events are valid for, its own first.

  * Limits on participation hold for each client for itself, so the rounds of all
    others stay as they are when one client's contributions become zeros or another's.
    When a client is added or removed they need not: cohorts of fixed size change.
  * Poisson sampling draws clients independently, so one more changes nothing else.
  * For cohorts of fixed size, only replacing keeps the number of clients.
  """
  if isinstance(schema, PoissonSampling):
    return (Relation.ADD_OR_REMOVE_ONE,)
  if isinstance(schema, FixedSizeSampling):
    return (Relation.REPLACE_ONE,)
  return (Relation.REPLACE_SPECIAL, Relation.REPLACE_ONE)


def check_relation(schema: Schema, relation: Optional[Relation]) -> Relation:
  """Returns the relation, by default the schema's own.

  Raises:
    ValueError: If the schema's events are not valid for it.
  """
  valid = relations(schema)
  if relation is None:
    return valid[0]
  if relation not in valid:
    names = ' or '.join(adjacency(each) for each in valid)
    raise ValueError(
      f'{type(schema).__name__} is not valid for adjacency {adjacency(relation)}, '
      f'only for {names}: see tff_dp_aggregators.accounting.schemas.'
    )
  return relation


def adjacency(relation: Relation) -> str:
  """The name of a neighbouring relation, a key of `ADJACENCIES`."""
  return next(name for name, each in ADJACENCIES.items() if each is relation)


def limits(schema: Schema) -> strategies.Participation:
  """In which rounds a client can take part at all, sampled or not."""
  if isinstance(schema, PoissonSampling):
    return strategies.Participation(
      schema.num_rounds, schema.num_groups, fixed_epoch=schema.num_groups > 1
    )
  if isinstance(schema, FixedSizeSampling):
    return strategies.Participation(schema.num_rounds)
  return schema


def event(
  strategy: strategies.Strategy,
  schema: Schema,
  noise_multiplier: float,
  relation: Optional[Relation] = None,
) -> dp_accounting.DpEvent:
  """The event of all rounds of a matrix mechanism under a schema.

  Args:
    strategy: Its strategy matrix C.
    schema: Who takes part when.
    noise_multiplier: Standard deviation of z over the clip norm.
    relation: Neighbouring relation; `None` for the schema's own.

  Returns:
    * Limits: the Gaussian of `events.run_event`. If one client is replaced by another,
      both within the clip norm, sums differ by twice as much, and so the event has half
      the noise multiplier.
    * Poisson sampling: one Poisson-sampled Gaussian for each round that a client may be
      drawn for, relative to the largest column norm of C. With at least as many groups
      as bands, the columns of those rounds share no row, so what a client adds in one
      of them is hidden by noise of its own (arXiv:2306.08153, Theorem 4).
    * Cohorts of fixed size: one sampled Gaussian a round, with half the noise
      multiplier, as replacing a client changes a sum by up to two clip norms.

  Raises:
    ValueError: If `noise_multiplier` is out of range, `schema` for other rounds than
      the strategy, the relation not valid for the schema, or the noise of rounds that
      one client may be drawn for correlated.

  Example:
    >>> schema = PoissonSampling(100, sampling_probability=0.01)
    >>> event(strategies.Identity(100), schema, noise_multiplier=1.5).count
    100
  """
  relation = check_relation(schema, relation)
  noise_multiplier = events.check_noise_multiplier(noise_multiplier)
  check(strategy, schema)
  if relation is Relation.REPLACE_ONE:
    noise_multiplier /= 2
  if isinstance(schema, strategies.Participation):
    return events.run_event(strategy, schema, noise_multiplier)
  if noise_multiplier == 0:
    return dp_accounting.NonPrivateDpEvent()
  column_norm = strategy.sensitivity(None)
  gaussian = dp_accounting.GaussianDpEvent(noise_multiplier / column_norm)
  sampled: dp_accounting.DpEvent
  if isinstance(schema, PoissonSampling):
    sampled = dp_accounting.PoissonSampledDpEvent(schema.sampling_probability, gaussian)
    return dp_accounting.SelfComposedDpEvent(sampled, schema.rounds_of_a_client)
  sampled = dp_accounting.SampledWithoutReplacementDpEvent(
    schema.population, schema.cohort, gaussian
  )
  return dp_accounting.SelfComposedDpEvent(sampled, schema.num_rounds)


def to_json(schema: Schema) -> dict[str, Any]:
  """JSON-ready values that `from_json` reads back."""
  kind = next(name for name, each in _KINDS.items() if isinstance(schema, each))
  return {'schema': kind, **dataclasses.asdict(schema)}


def from_json(data: dict[str, Any]) -> Schema:
  """Reads what `to_json` wrote.

  Raises:
    ValueError: If it is none of the schemas, or its numbers are out of range.
  """
  if not isinstance(data, dict) or data.get('schema') not in _KINDS:
    raise ValueError(f'not a participation schema, of {sorted(_KINDS)}: {data!r}.')
  values = {name: value for name, value in data.items() if name != 'schema'}
  try:
    return _KINDS[data['schema']](**values)
  except TypeError as e:
    raise ValueError(f'the stored {data["schema"]} is not one: {e}') from e


def check(strategy: strategies.Strategy, schema: Schema) -> None:
  """Checks that a strategy's events are known under a schema.

  Raises:
    ValueError: If they are for other rounds, or if sampling does not help because the
      noise of rounds that one client may be drawn for is correlated.
  """
  if schema.num_rounds != strategy.num_rounds:
    raise ValueError(
      f'the schema is for {schema.num_rounds} rounds, the strategy for '
      f'{strategy.num_rounds}; build both for the same number.'
    )
  if isinstance(schema, strategies.Participation):
    return
  groups = schema.num_groups if isinstance(schema, PoissonSampling) else 1
  num_bands = _num_bands(strategy)
  if num_bands > groups:
    raise ValueError(
      'sampling amplifies privacy only if the rounds of a client do not share noise; '
      f'the {strategy.kind} strategy has {_describe_bands(num_bands)} and a client may '
      f'be drawn again {groups} round(s) later. Use independent noise (gaussian), a '
      'banded strategy with cyclic Poisson sampling in at least num_bands groups, or '
      'no sampling assumption.'
    )


def _num_bands(strategy: strategies.Strategy) -> float:
  """Bands of C; infinite for strategies that are not square and banded."""
  bands = getattr(strategy, 'num_bands', math.inf)
  return float(bands) if math.isinf(bands) else int(bands)


def _describe_bands(num_bands: float) -> str:
  return 'no bands' if math.isinf(num_bands) else f'{num_bands} bands'
