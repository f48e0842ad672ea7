"""The flags that state limits on participation, or a scheme of sampling.

`STATED` has them by scheme: how `--sampling` asks for it, and with which flags, which
are called like its arguments.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, Optional

from tff_dp_aggregators import sampling
from tff_dp_aggregators import strategies
from tff_dp_aggregators.accounting.programs import program
from tff_dp_aggregators.base import checks

Flag = program.Flag


@dataclasses.dataclass(frozen=True)
class Stated:
  """How flags state a scheme.

  Attributes:
    help: What it assumes, for the help of `--sampling`.
    drawn: How a server draws clients under it, in a few words; empty without sampling.
    flags: Flags that it is stated with, besides the number of rounds.
    own: Those of them that say how many clients a round has, without --num_clients
      and --clients_per_round.
    always: Those of them that are needed in both ways.
  """

  help: str
  drawn: str
  flags: tuple[Flag, ...]
  own: tuple[Flag, ...] = ()
  always: tuple[Flag, ...] = ()


_CLIENTS = Flag('num_clients', int, 'Clients to draw from.', is_basic=True)
# Not whole if it is a mean.
_COHORT = Flag(
  'clients_per_round',
  program.NUMBER,
  'Clients of a round; for poisson, in the mean.',
  is_basic=True,
)
_BY_COHORT = '--num_clients and --clients_per_round'
_SEPARATION = Flag(
  'min_separation',
  int,
  'Smallest difference of two rounds of one client.',
  unset='1, every round',
  is_basic=True,
)
_PROBABILITY = Flag(
  'sampling_probability',
  float,
  'Probability of each client of a round, for poisson; of each client that is free in '
  'a round, for b_min_sep.',
)
_GROUPS = Flag(
  'num_groups',
  int,
  'Groups of clients that take turns, for cyclic Poisson sampling.',
  unset='1',
)
_CYCLE = Flag(
  'cycle_length',
  int,
  'Rounds of a cycle, in each of which a client is once, for balls_in_bins.',
)
_ROUNDS = Flag(
  'rounds_of_a_client',
  int,
  'Rounds of each client, drawn at random, for random_allocation.',
)

STATED: dict[type[sampling.Scheme], Stated] = {
  sampling.Limits: Stated(
    'nothing',
    '',
    (
      _SEPARATION,
      Flag(
        'rounds_between',
        int,
        'Smallest number of rounds strictly between two rounds of one client, as the '
        'DP-FTRL literature counts: --min_separation less one.',
      ),
      Flag(
        'max_participations',
        int,
        'Most rounds of one client.',
        unset='as many as the separation leaves possible',
        is_basic=True,
      ),
      Flag(
        'fixed_epoch',
        bool,
        'Whether rounds of a client differ by multiples of exactly --min_separation.',
        default=False,
      ),
    ),
  ),
  sampling.PoissonSampling: Stated(
    f'Poisson sampling with --sampling_probability, or {_BY_COHORT}',
    'each by itself',
    (_PROBABILITY, _CLIENTS, _COHORT, _GROUPS),
    own=(_PROBABILITY,),
  ),
  sampling.FixedSizeSampling: Stated(
    f'cohorts of fixed size, without replacement, with {_BY_COHORT}',
    'cohorts of fixed size',
    (_CLIENTS, _COHORT),
  ),
  sampling.BallsInBins: Stated(
    'one place in a cycle for each client, drawn at random, with --cycle_length, or '
    f'{_BY_COHORT}',
    'each for one place in every cycle',
    (_CYCLE, _CLIENTS, _COHORT),
    own=(_CYCLE,),
  ),
  sampling.RandomAllocation: Stated(
    'so many rounds of each client, drawn at random, with --rounds_of_a_client, or '
    f'{_BY_COHORT}',
    'each for so many rounds',
    (_ROUNDS, _CLIENTS, _COHORT),
    own=(_ROUNDS,),
  ),
  sampling.BMinSepSampling: Stated(
    'each free client by itself, then with a break, with --min_separation and '
    f'--sampling_probability, or {_BY_COHORT}',
    'each free one by itself, then with a break',
    (_SEPARATION, _PROBABILITY, _CLIENTS, _COHORT),
    own=(_PROBABILITY,),
    always=(_SEPARATION,),
  ),
}


def limits_flags() -> tuple[Flag, ...]:
  """The flags of limits on participation."""
  return STATED[sampling.Limits].flags


def all_flags() -> dict[str, Flag]:
  """The flags of all schemes, by name."""
  return {flag.name: flag for each in STATED.values() for flag in each.flags}


def scheme_from(
  kind: type[sampling.Scheme], num_rounds: int, given: Mapping[str, Any]
) -> sampling.Schema:
  """The scheme that flags state."""
  stated, make = STATED[kind], kind.data
  if kind is sampling.Limits:
    return _limits(num_rounds, given)
  if not _is_by_cohort(kind.flag, stated, given):
    cohort = given.get(_COHORT.name, 0)
    if kind.has_public_sizes and not isinstance(cohort, int):
      raise ValueError(f'--{_COHORT.name} must be a whole number; got {cohort}.')
    return make(num_rounds, **given)
  made = make.of_cohort(num_rounds, **given)  # type: ignore[attr-defined]
  return _of_this_cohort(made, stated, given)


def _is_by_cohort(flag: str, stated: Stated, given: Mapping[str, Any]) -> bool:
  """Whether flags state it by clients and cohort, where it has another way, too."""
  own = [each.name for each in stated.own]
  both = (_CLIENTS.name, _COHORT.name)
  if not own:
    for each in stated.flags:
      if each.name in both and each.name not in given:
        raise ValueError(f'--{each.name} is missing; --sampling={flag} needs it.')
    return False
  own_given, both_given = (
    [name for name in names if name in given] for names in (own, both)
  )
  if own_given and both_given:
    raise ValueError(
      f'--{own_given[0]} does not go with --{both_given[0]}: --sampling={flag} '
      f'takes --{own_given[0]}, or {_BY_COHORT}. Leave one of them out.'
    )
  missing = [f'--{each.name}' for each in stated.always if each.name not in given]
  if len(both_given) == 1:
    lacks = next(name for name in both if name not in given)
    missing.append(f'--{lacks}, which goes with --{both_given[0]}')
  elif not own_given and not both_given:
    ways = ', or '.join((*(f'--{name}' for name in own), _BY_COHORT))
    missing.append(ways)
  if missing:
    raise ValueError(f'--sampling={flag} needs {"; and ".join(missing)}.')
  return bool(both_given)


def _of_this_cohort(made: Any, stated: Stated, given: Mapping[str, Any]) -> Any:
  """A scheme that was made for a cohort, if that is what it has."""
  population, cohort = given[_CLIENTS.name], given[_COHORT.name]
  has: Optional[float] = made.other_cohort(population, cohort)
  if has is None:
    return made
  near = float(round(has))
  if made.other_cohort(population, near) is not None:
    near = has
  own = ''.join(
    f', which is --{flag.name}={getattr(made, flag.name)}' for flag in stated.own
  )
  raise ValueError(
    f'--clients_per_round={cohort:g} of --num_clients={population} clients in '
    f'{made.num_rounds} rounds does not fit --sampling={made.flag}, where a client has '
    'whole numbers of '
    f'rounds: the next larger one is --clients_per_round={near:.6g}{own}.'
  )


def _limits(num_rounds: int, given: Mapping[str, Any]) -> strategies.Participation:
  """The limits that flags state, in either convention for the separation."""
  min_separation = given.get('min_separation')
  rounds_between = given.get('rounds_between')
  if min_separation is not None and rounds_between is not None:
    raise ValueError(
      '--min_separation and --rounds_between say the same; give one of them '
      '(min_separation = rounds_between + 1).'
    )
  if rounds_between is not None:
    min_separation = 1 + checks.check_int('rounds_between', rounds_between, at_least=0)
  return strategies.Participation(
    num_rounds,
    1 if min_separation is None else min_separation,
    given.get('max_participations'),
    given.get('fixed_epoch', False),
  )
