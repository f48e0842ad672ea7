"""Limits on participation, `strategies.Participation`: no assumption about sampling.

Limits hold for each client for itself, so the rounds of all others stay as they are
when one client's contributions become zeros or another's. When a client is added or
removed they need not: cohorts of fixed size change.
"""

from typing import Any

import dp_accounting
from dp_accounting import NeighboringRelation as Relation

from tff_dp_aggregators import strategies
from tff_dp_aggregators.accounting import events
from tff_dp_aggregators.accounting import noises
from tff_dp_aggregators.accounting.schemas import base
from tff_dp_aggregators.base import checks


class Limits(base.Kind[strategies.Participation]):
  """What accounting and programs have to know of `strategies.Participation`."""

  name = 'participation'
  schema = strategies.Participation
  relations = (Relation.REPLACE_SPECIAL, Relation.REPLACE_ONE)
  is_sampled = False
  flag = 'none'
  flag_help = 'nothing'
  drawn = ''
  flags = (
    base.Flag(
      'min_separation',
      int,
      'Smallest difference of two rounds of one client.',
      default='1, every round',
    ),
    base.Flag(
      'rounds_between',
      int,
      'Smallest number of rounds strictly between two rounds of one client, as the '
      'DP-FTRL literature counts: --min_separation less one.',
    ),
    base.Flag(
      'max_participations',
      int,
      'Most rounds of one client.',
      default='as many as the separation leaves possible',
    ),
    base.Flag(
      'fixed_epoch',
      bool,
      'Whether rounds of a client differ by multiples of exactly --min_separation.',
    ),
  )
  description = 'Limits, without sampling.'
  properties = {
    'min_separation': {
      'description': 'Any two rounds of one client differ by at least this.',
      'type': 'integer',
      'minimum': 1,
    },
    'max_participations': {
      'description': 'Most rounds of one client.',
      'type': 'integer',
      'minimum': 1,
    },
    'fixed_epoch': {
      'description': 'Whether rounds of a client differ by multiples of '
      'min_separation.',
      'type': 'boolean',
    },
  }
  offers = (base.Offer('none', '', '-'),)
  known_noises = (noises.GAUSSIAN, *noises.OTHERS.values())

  def limits(self, schema: strategies.Participation) -> strategies.Participation:
    """The schema itself."""
    return schema

  def check(
    self, strategy: strategies.Strategy, schema: strategies.Participation
  ) -> None:
    """Nothing to check: every strategy has a sensitivity under limits."""

  def event(
    self,
    strategy: strategies.Strategy,
    schema: strategies.Participation,
    noise_multiplier: float,
    noise: noises.Noise = noises.GAUSSIAN,
  ) -> dp_accounting.DpEvent:
    """One Gaussian, that of `events.run_event`; of other noise, one event a round."""
    if noise_multiplier and not noise.is_gaussian:
      return noise.repeated(noise_multiplier, schema.possible_participations)
    return events.run_event(strategy, schema, noise_multiplier)

  def from_flags(
    self, num_rounds: int, given: dict[str, Any]
  ) -> strategies.Participation:
    """The limits that flags state, in either convention for the separation.

    Raises:
      ValueError: If both conventions are used, or a number is out of range.
    """
    min_separation = given.get('min_separation')
    rounds_between = given.get('rounds_between')
    if min_separation is not None and rounds_between is not None:
      raise ValueError(
        '--min_separation and --rounds_between say the same; give one of them '
        '(min_separation = rounds_between + 1).'
      )
    if rounds_between is not None:
      min_separation = 1 + checks.check_int(
        'rounds_between', rounds_between, at_least=0
      )
    return strategies.Participation(
      num_rounds,
      1 if min_separation is None else min_separation,
      given.get('max_participations'),
      given.get('fixed_epoch', False),
    )

  def assumption(self, schema: strategies.Participation) -> str:
    """That nothing is assumed but the limits."""
    if schema.max_participations == 1:
      return 'no sampling; a client takes part in at most one round'
    if schema.fixed_epoch:
      return (
        'no sampling, but fixed epochs: rounds of a client differ by multiples of '
        f'exactly {schema.min_separation}'
      )
    return 'no sampling; the rounds of a client are chosen in any way within the limits'

  def sentence(self, schema: strategies.Participation) -> str:
    """The limits, in words."""
    possible, assumed = schema.possible_by_separation, schema.assumed_at_most
    if possible == 1 or assumed == 1:  # Whichever it is, there is no more to say.
      return 'a client takes part in at most one round'
    if schema.fixed_epoch:
      apart = (
        f'rounds of a client differ by multiples of exactly {schema.min_separation}'
      )
    else:
      apart = (
        f'any two rounds of a client are at least {schema.min_separation} apart '
        f'({_rounds_between(schema)} them)'
      )
    if assumed is None:
      return f'{apart}, which leaves at most {possible} of them possible'
    return (
      f'{apart}, which leaves {possible} of them possible; and, an assumption of its '
      f'own, a client takes part in at most {assumed}'
    )

  def facts(self, schema: strategies.Participation) -> tuple[base.Fact, ...]:
    """Separation and number of participations."""
    possible, assumed = schema.possible_by_separation, schema.assumed_at_most
    distance = 'a multiple of' if schema.fixed_epoch else 'at least'
    return (
      base.Fact(
        'min separation',
        f'{schema.min_separation} ({_rounds_between(schema)})',
        f'any two rounds of one client differ by {distance} this',
      ),
      base.Fact(
        'possible by separation',
        f'{possible}',
        f'the most of {schema.num_rounds} rounds that are so far apart',
      ),
      base.Fact(
        'assumed besides',
        'nothing' if assumed is None else f'at most {assumed}',
        'the most rounds of one client as far as it does not follow from the '
        'separation: an assumption of its own, and who breaks it has less privacy',
      ),
    )

  def heading(self, schema: strategies.Participation) -> str:
    """That rows assume no sampling."""
    return 'Without sampling; epsilon is for zeroing out one client:'


def _rounds_between(schema: strategies.Participation) -> str:
  between = schema.min_separation - 1
  return f'{between} {"round" if between == 1 else "rounds"} between'


# What the registry lists.
KIND = Limits()
