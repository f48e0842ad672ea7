"""The flags that state limits on participation, or a scheme of sampling.

They are called like the arguments of the scheme and of its `of_cohort`, whose
signatures say which of them are needed.
"""

import dataclasses
import inspect
from collections.abc import Collection, Mapping
from typing import Any, Optional, cast

from absl import flags

from tff_dp_aggregators import sampling
from tff_dp_aggregators import strategies
from tff_dp_aggregators.accounting.programs import program
from tff_dp_aggregators.base import checks

# What each scheme assumes, for the help of `--sampling`.
ASSUMED: dict[type[sampling.Scheme], str] = {
  sampling.Limits: 'nothing',
  sampling.PoissonSampling: 'Poisson sampling',
  sampling.FixedSizeSampling: 'cohorts of fixed size, without replacement',
  sampling.BallsInBins: 'one random round in each cycle for each client',
  sampling.RandomAllocation: 'a fixed number of random rounds for each client',
  sampling.BMinSepSampling: 'independent draws of clients, each followed by a break',
  sampling.TruncatedPoissonSampling: 'Poisson sampling with a cap of the cohort',
}


@dataclasses.dataclass
class _Stated:
  min_separation: int = program.flag(
    'Smallest difference between two rounds of one client.', unset='1, every round'
  )
  rounds_between: int = program.flag(
    'Smallest number of rounds strictly between two participations of one client, as '
    'the DP-FTRL literature counts: --min_separation minus one.'
  )
  max_participations: int = program.flag(
    'Largest number of rounds of one client.', unset='as many as the separation allows'
  )
  fixed_epoch: bool = program.flag(
    'Whether rounds of a client differ by multiples of exactly --min_separation.',
    default=False,
  )
  sampling_probability: float = program.flag(
    'For poisson and truncated_poisson, the probability that a client is drawn for a '
    'round; for b_min_sep, that of a client whose break is over.'
  )
  num_clients: int = program.flag('Number of clients to draw from.')
  # Not whole if it is a mean.
  clients_per_round: float = program.flag(
    'Clients per round; for poisson, their mean number; for truncated_poisson, that '
    'before any are left out.',
    program.NUMBER,
  )
  max_clients_per_round: int = program.flag(
    'For truncated_poisson: most clients of a round; of more that are drawn, a random '
    'subset of this size is kept.'
  )
  num_groups: int = program.flag(
    'For cyclic Poisson sampling: number of groups of clients that take turns.',
    unset='1',
  )
  cycle_length: int = program.flag(
    'For balls_in_bins: rounds of a cycle, in which each client takes part once.'
  )
  rounds_of_a_client: int = program.flag(
    'For random_allocation: number of rounds of each client.'
  )


# The flags of all schemes, by name.
FLAGS = {row.name: row for row in program.rows_of(_Stated)}
_CLIENTS, _COHORT = 'num_clients', 'clients_per_round'


def flags_of(scheme: type[sampling.Scheme]) -> list[str]:
  """Names of the flags of a scheme, besides the number of rounds."""
  own = {name for way in _ways(scheme) for name in way}
  if scheme is sampling.Limits:
    own.add('rounds_between')
  return [name for name in FLAGS if name in own]


def help_of_sampling() -> str:
  """What the schemes assume, and with which flags they are stated."""
  *first, last = (
    f'{text}, with {_takes(scheme)}' if _takes(scheme) else text
    for scheme, text in ASSUMED.items()
  )
  return (
    f'How clients are drawn, as far as the guarantee relies on it: {"; ".join(first)}; '
    f'or {last}.'
  )


def schema_from(
  values: flags.FlagValues,
  num_rounds: Optional[int] = None,
  known: Collection[str] = (),
) -> sampling.Schema:
  """The participation schema that flags state.

  `num_rounds`: Instead of the flag.
  `known`: Flags that say something without sampling as well.
  """
  scheme = sampling.for_flag(values.sampling)
  num_rounds = values.num_rounds if num_rounds is None else num_rounds
  _check_flags_of(scheme, values, known)
  if scheme is sampling.Limits:
    return limits_from(values, num_rounds)
  flag, (own, *of_cohort) = scheme.flag, _ways(scheme)
  besides = [name for name in known if name not in own]
  given = _given(scheme, values, besides if cohort_flag(values) is not None else ())
  way, make = own, scheme.data
  by_cohort = [
    name for name in (_CLIENTS, _COHORT) if name in given and name not in own
  ]
  if of_cohort and by_cohort:
    way, make = of_cohort[0], scheme.data.of_cohort  # type: ignore[attr-defined]
  takes = _takes(scheme)
  for name in given:
    if name not in way:
      raise ValueError(
        f'--{name} does not go with --{by_cohort[0]}: --sampling={flag} takes {takes}. '
        'Leave one of them out.'
      )
  if any(needed and name not in given for name, needed in way.items()):
    raise ValueError(f'--sampling={flag} needs {takes}.')
  if scheme.has_public_sizes:
    whole(values, _COHORT)
  made = make(num_rounds, **given)
  if way is not own:
    _check_cohort(made, own_flags(scheme), given)
  return cast(sampling.Schema, made)


def limits_from(
  values: flags.FlagValues,
  num_rounds: int,
  max_participations: Optional[int] = None,
) -> strategies.Participation:
  """The limits that flags state, in either convention for the separation."""
  given = _given(sampling.Limits, values)
  between = given.pop('rounds_between', None)
  if between is not None:
    if 'min_separation' in given:
      raise ValueError(
        '--min_separation and --rounds_between say the same; give one of them '
        '(min_separation = rounds_between + 1).'
      )
    checks.check_int('rounds_between', between, at_least=0)
    given['min_separation'] = between + 1
  if max_participations is not None:
    given['max_participations'] = max_participations
  return strategies.Participation(num_rounds, **given)


def whole(values: flags.FlagValues, name: str) -> Optional[int]:
  """The value of a flag that may be a mean elsewhere, and counts something here."""
  value = values[name].value
  if value is not None and not isinstance(value, int):
    raise ValueError(f'--{name} must be a whole number; got {value}.')
  return value


def own_flags(scheme: type[sampling.Scheme]) -> list[str]:
  """Flags that say how many clients a round has, without --clients_per_round."""
  own, *of_cohort = _ways(scheme)
  others = {_CLIENTS, _COHORT}.union(*of_cohort)
  return [name for name, needed in own.items() if needed and name not in others]


def cohort_flag(values: flags.FlagValues) -> Optional[str]:
  """That of `own_flags` which is given."""
  names = own_flags(sampling.for_flag(values.sampling))
  return next((each for each in names if each in values and values[each].present), None)


def _ways(scheme: type[sampling.Scheme]) -> list[dict[str, bool]]:
  """What makes a scheme takes besides the rounds, and whether it needs that."""
  makers = (scheme.data, getattr(scheme.data, 'of_cohort', None))
  return [
    {
      name: parameter.default is parameter.empty
      for name, parameter in inspect.signature(make).parameters.items()
      if name != 'num_rounds'
    }
    for make in makers
    if make is not None
  ]


def _takes(scheme: type[sampling.Scheme]) -> str:
  """The flags that a scheme needs, for each way to state it."""
  needed = (
    [f'--{n}' for n, is_needed in way.items() if is_needed] for way in _ways(scheme)
  )
  return ', or '.join(' and '.join(names) for names in needed)


def _given(
  scheme: type[sampling.Scheme],
  values: flags.FlagValues,
  left_out: Collection[str] = (),
) -> dict[str, Any]:
  stated = {
    name: values[name].value
    for name in flags_of(scheme)
    if name in values and name not in left_out
  }
  return {name: value for name, value in stated.items() if value is not None}


def _check_flags_of(
  scheme: type[sampling.Scheme], values: flags.FlagValues, known: Collection[str]
) -> None:
  """Refuses flags of other schemes."""
  for name in FLAGS:
    if name not in (*known, *flags_of(scheme)):
      having = ' or '.join(k.flag for k in ASSUMED if name in flags_of(k))
      why = f'is for --sampling={having}, not for --sampling={values.sampling}.'
      program.refuse(values, [name], why)


def _check_cohort(made: Any, own: list[str], given: Mapping[str, Any]) -> None:
  """Refuses a cohort that a scheme which was made for it does not have."""
  population, cohort = given[_CLIENTS], given[_COHORT]
  has: Optional[float] = made.other_cohort(population, cohort)
  if has is None:
    return
  near = float(round(has))
  if made.other_cohort(population, near) is not None:
    near = has
  as_well = ''.join(f', which is --{name}={getattr(made, name)}' for name in own)
  raise ValueError(
    f'--clients_per_round={cohort:g} of --num_clients={population} clients in '
    f'{made.num_rounds} rounds does not fit --sampling={made.flag}, where a client has '
    f'whole numbers of rounds: the next larger one is '
    f'--clients_per_round={near:.6g}{as_well}.'
  )
