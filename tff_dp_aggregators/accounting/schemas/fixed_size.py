"""Cohorts of fixed size, drawn uniformly without replacement, in secret.

Replacing a client keeps the number of clients, which is public, so the neighbouring
relation is replace-one unless add-or-remove is asked for. Under both a sum moves by up
to two clip norms: a client that is drawn takes the place of another.
"""

import dataclasses
from typing import Any

import dp_accounting
from dp_accounting import NeighboringRelation as Relation

from tff_dp_aggregators.accounting import noises
from tff_dp_aggregators.accounting.schemas import base
from tff_dp_aggregators.base import checks


@dataclasses.dataclass(frozen=True)
class FixedSizeSampling:
  """Each round draws a cohort of the same size, uniformly without replacement.

  Attributes:
    num_rounds: Rounds in all, n.
    population: Clients to draw from, the same in all rounds; public. Under
      add-or-remove, the fewest that there may be.
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
        f'cohort must be at most population={self.population}; got {self.cohort}.'
      )


class FixedSize(base.Sampling[FixedSizeSampling]):
  """What accounting, reports and programs have to know of `FixedSizeSampling`."""

  name = 'fixed_size_sampling'
  has_public_sizes = True
  schema = FixedSizeSampling
  relations = (Relation.REPLACE_ONE, Relation.ADD_OR_REMOVE_ONE)
  flag = 'fixed_size'
  flag_help = (
    'cohorts of fixed size, without replacement, with --population and --cohort'
  )
  drawn = 'cohorts of fixed size'
  known_noises = (noises.GAUSSIAN,)
  flags = (base.POPULATION, base.COHORT)
  description = 'Cohorts of fixed size, without replacement.'
  properties = {
    'population': {
      'description': 'Clients to draw from.',
      'type': 'integer',
      'minimum': 1,
    },
    'cohort': {
      'description': 'Clients drawn for a round.',
      'type': 'integer',
      'minimum': 1,
    },
  }
  offers = (
    base.Offer(
      'fixed_size',
      'sampling of fixed size',
      '-.',
      lambda cohorts: FixedSizeSampling(
        cohorts.num_rounds, cohorts.population, cohorts.cohort
      ),
    ),
  )

  def sensitivity_factor(self, relation: Relation) -> int:
    """Two: another's contribution goes where the client's comes."""
    return 2

  def groups(self, schema: FixedSizeSampling) -> int:
    """One: everybody may be drawn in every round."""
    return 1

  def sampled(
    self, schema: FixedSizeSampling, on_everybody: dp_accounting.DpEvent
  ) -> dp_accounting.DpEvent:
    """The noise on a sample without replacement."""
    return dp_accounting.SampledWithoutReplacementDpEvent(
      schema.population, schema.cohort, on_everybody
    )

  def cohort(self, schema: FixedSizeSampling, population: int) -> float:
    """That of the schema.

    Args:
      schema: The sampling.
      population: Not looked at.
    """
    return schema.cohort

  def from_flags(self, num_rounds: int, given: dict[str, Any]) -> FixedSizeSampling:
    """The sampling that population and cohort state.

    Raises:
      ValueError: If one of them is missing or out of range.
    """
    for name in ('population', 'cohort'):
      if name not in given:
        raise ValueError(f'--{name} is missing; --sampling=fixed_size needs it.')
    if not float(given['cohort']).is_integer():
      raise ValueError(f'--cohort must be a whole number; got {given["cohort"]}.')
    return FixedSizeSampling(num_rounds, given['population'], int(given['cohort']))

  def assumption(self, schema: FixedSizeSampling) -> str:
    """How many are drawn of how many, in secret."""
    return (
      f'sampling of fixed size: each round draws {schema.cohort} of '
      f'{schema.population} clients uniformly without replacement, and keeps secret '
      'who was drawn'
    )

  def facts(self, schema: FixedSizeSampling) -> tuple[base.Fact, ...]:
    """Population, cohort, and rounds of a client."""
    return (
      base.Fact('population', schema.population),
      base.Fact('cohort', schema.cohort),
      base.Fact('rounds that one client may be drawn for', f'{schema.num_rounds}'),
    )

  def heading(self, schema: FixedSizeSampling) -> str:
    """How clients are drawn, and that epsilon is for replacing one."""
    return (
      f'If {schema.cohort:,} of {schema.population:,} clients are drawn each round, '
      'without replacement and in secret; epsilon is for replacing one:'
    )


# What the registry lists.
KIND = FixedSize()
