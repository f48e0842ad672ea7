"""The flags that state limits on participation, or a scheme of sampling.

`STATED` has them by scheme: how `--sampling` asks for it, and which flag is which of
its arguments.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, Optional

from tff_dp_aggregators import sampling
from tff_dp_aggregators import strategies
from tff_dp_aggregators.base import checks


@dataclasses.dataclass(frozen=True)
class Flag:
  """A flag that schemes are stated with.

  Attributes:
    name: Without dashes. Schemes that share a flag have the same `Flag`.
    type: `int`, `float` or `bool`; a bool is False unless given.
    help: What it says.
    default: What stands for it where it is left out, in words; programs that put
      something else there say so.
    argument: The scheme's argument that it is, if that has another name.
    arguments: Further arguments, of its limits, that are refused under its name.
  """

  name: str
  type: type
  help: str
  default: str = ''
  argument: str = ''
  arguments: tuple[str, ...] = ()

  @property
  def field(self) -> str:
    """The scheme's argument."""
    return self.argument or self.name


@dataclasses.dataclass(frozen=True)
class Stated:
  """How flags state a scheme.

  Attributes:
    help: What it assumes, for the help of `--sampling`.
    drawn: How a server draws clients under it, in a few words; empty without sampling.
    flags: Flags that it is stated with, besides the number of rounds.
    own: Those of them that say how many clients a round has, without --population and
      --cohort.
    always: Those of them that are needed in both ways.
  """

  help: str
  drawn: str
  flags: tuple[Flag, ...]
  own: tuple[Flag, ...] = ()
  always: tuple[Flag, ...] = ()


POPULATION = Flag('population', int, 'Clients to draw from.')
# Not whole if it is a mean.
COHORT = Flag('cohort', float, 'Clients of a round; for poisson, in the mean.')
_PROBABILITY = Flag(
  'sampling_probability', float, 'Probability of each client of a round, for poisson.'
)
_GROUPS = Flag(
  'num_groups',
  int,
  'Groups of clients that take turns, for cyclic Poisson sampling.',
  default='1',
  arguments=('min_separation',),
)
_CYCLE = Flag(
  'cycle_length',
  int,
  'Rounds of a cycle, in each of which a client is once, for balls_in_bins.',
  arguments=('min_separation',),
)
_ROUNDS = Flag(
  'rounds_of_a_client',
  int,
  'Rounds of each client, drawn at random, for random_allocation.',
)
_SEPARATION = Flag(
  'sampled_separation',
  int,
  'Smallest difference of two rounds of a client, for b_min_sep.',
  argument='min_separation',
)
_FREE = Flag(
  'free_probability',
  float,
  'Probability of each client that is free in a round, for b_min_sep.',
  argument='sampling_probability',
)

STATED: dict[type[sampling.Scheme], Stated] = {
  sampling.Limits: Stated(
    'nothing',
    '',
    (
      Flag(
        'min_separation',
        int,
        'Smallest difference of two rounds of one client.',
        default='1, every round',
      ),
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
        default='as many as the separation leaves possible',
      ),
      Flag(
        'fixed_epoch',
        bool,
        'Whether rounds of a client differ by multiples of exactly --min_separation.',
      ),
    ),
  ),
  sampling.PoissonSampling: Stated(
    'Poisson sampling with --sampling_probability, or --population and --cohort',
    'each by itself',
    (_PROBABILITY, POPULATION, COHORT, _GROUPS),
    own=(_PROBABILITY,),
  ),
  sampling.FixedSizeSampling: Stated(
    'cohorts of fixed size, without replacement, with --population and --cohort',
    'cohorts of fixed size',
    (POPULATION, COHORT),
  ),
  sampling.BallsInBins: Stated(
    'one place in a cycle for each client, drawn at random, with --cycle_length, or '
    '--population and --cohort',
    'each for one place in every cycle',
    (_CYCLE, POPULATION, COHORT),
    own=(_CYCLE,),
  ),
  sampling.RandomAllocation: Stated(
    'so many rounds of each client, drawn at random, with --rounds_of_a_client, or '
    '--population and --cohort',
    'each for so many rounds',
    (_ROUNDS, POPULATION, COHORT),
    own=(_ROUNDS,),
  ),
  sampling.BMinSepSampling: Stated(
    'each free client by itself, then with a break, with --sampled_separation and '
    '--free_probability, or --population and --cohort',
    'each free one by itself, then with a break',
    (_SEPARATION, _FREE, POPULATION, COHORT),
    own=(_FREE,),
    always=(_SEPARATION,),
  ),
}


def limits_flags() -> tuple[Flag, ...]:
  """The flags of limits on participation."""
  return STATED[sampling.Limits].flags


def all_flags() -> dict[str, Flag]:
  """The flags of all schemes, by name."""
  return {flag.name: flag for each in STATED.values() for flag in each.flags}


def spellings(kind: type[sampling.Scheme]) -> dict[str, str]:
  """How programs spell a scheme's arguments: from the name of one to its flag's."""
  return {
    argument: flag.name
    for flag in STATED[kind].flags
    for argument in (flag.name, flag.field, *flag.arguments)
  }


def scheme_from(
  kind: type[sampling.Scheme], num_rounds: int, given: Mapping[str, Any]
) -> sampling.Schema:
  """The scheme that flags state."""
  stated, make = STATED[kind], kind.data
  if kind is sampling.Limits:
    return _limits(num_rounds, given)
  if not _is_by_cohort(kind.flag, stated, given):
    values = {
      flag.field: given[flag.name] for flag in stated.flags if flag.name in given
    }
    if kind.has_public_sizes and not float(given[COHORT.name]).is_integer():
      raise ValueError(f'--cohort must be a whole number; got {given[COHORT.name]}.')
    if kind.has_public_sizes:
      values[COHORT.name] = int(given[COHORT.name])
    return make(num_rounds, **values)
  own = [flag.name for flag in stated.own]
  values = {
    flag.field: given[flag.name]
    for flag in stated.flags
    if flag.name in given and flag.name not in own
  }
  made = make.of_cohort(num_rounds, **values)  # type: ignore[attr-defined]
  return _of_this_cohort(made, stated, given)


def _is_by_cohort(flag: str, stated: Stated, given: Mapping[str, Any]) -> bool:
  """Whether flags state it by population and cohort, where it has another way, too."""
  own = [each.name for each in stated.own]
  both = (POPULATION.name, COHORT.name)
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
      f'takes --{own_given[0]}, or --population and --cohort. Leave one of them out.'
    )
  missing = [f'--{each.name}' for each in stated.always if each.name not in given]
  if len(both_given) == 1:
    lacks = next(name for name in both if name not in given)
    missing.append(f'--{lacks}, which goes with --{both_given[0]}')
  elif not own_given and not both_given:
    ways = ', or '.join((*(f'--{name}' for name in own), '--population and --cohort'))
    missing.append(ways)
  if missing:
    raise ValueError(f'--sampling={flag} needs {"; and ".join(missing)}.')
  return bool(both_given)


def _of_this_cohort(made: Any, stated: Stated, given: Mapping[str, Any]) -> Any:
  """A scheme that was made for a cohort, if that is what it has."""
  population, cohort = given[POPULATION.name], given[COHORT.name]
  has: Optional[float] = made.other_cohort(population, cohort)
  if has is None:
    return made
  near = float(round(has))
  if made.other_cohort(population, near) is not None:
    near = has
  own = ''.join(
    f', which is --{flag.name}={getattr(made, flag.field)}' for flag in stated.own
  )
  raise ValueError(
    f'--cohort={cohort:g} of --population={population} clients in {made.num_rounds} '
    f'rounds does not fit --sampling={made.flag}, where a client has whole numbers of '
    f'rounds: the next larger one is --cohort={near:.6g}{own}.'
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
