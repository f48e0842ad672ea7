"""The table of flags that programs share.

Programs take rows of it, some with another text on the default, and add their own. The
rows include registered things, such as mechanisms with their options. Arguments of
Python functions have the names of the flags, so that their errors name the flag.
`schema_from` reads the flags of a sampling scheme; the signatures of the scheme and of
its `of_cohort` determine which are required.
"""

import dataclasses
import functools
import inspect
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Optional, cast

from absl import flags

from tff_dp_aggregators import sampling as sampling_lib
from tff_dp_aggregators import strategies
from tff_dp_aggregators.accounting import accountants
from tff_dp_aggregators.accounting import mechanism as mechanism_lib
from tff_dp_aggregators.accounting import nbafl as nbafl_lib
from tff_dp_aggregators.accounting import noises
from tff_dp_aggregators.accounting.programs import program
from tff_dp_aggregators.accounting.records import log_participation
from tff_dp_aggregators.accounting.records import round_log
from tff_dp_aggregators.accounting.reports import terms
from tff_dp_aggregators.base import checks
from tff_dp_aggregators.strategies import registry

Flag = program.Flag
Rows = tuple[Flag, ...]
DEFAULT_OF_PARTS = 'banded'  # The mechanism of a --part that names none.
# The flags of a mechanism that most users need.
BASIC = (
  *'num_rounds num_clients clients_per_round min_separation max_participations'.split(),
  *'sampling mechanism clip_norm noise_multiplier target_epsilon target_delta'.split(),
  *('target_rho', 'format', 'output'),
)
# The assumption of each scheme, for the help of `--sampling`.
ASSUMED: dict[type[sampling_lib.Scheme], str] = {
  sampling_lib.Limits: 'nothing',
  sampling_lib.PoissonSampling: 'Poisson sampling',
  sampling_lib.FixedSizeSampling: 'cohorts of fixed size, without replacement',
  sampling_lib.BallsInBins: 'one random round in each cycle for each client',
  sampling_lib.RandomAllocation: 'a fixed number of random rounds for each client',
  sampling_lib.BMinSepSampling: 'independent draws of clients, each before a break',
  sampling_lib.TruncatedPoissonSampling: 'Poisson sampling with a cap of the cohort',
}


@dataclasses.dataclass
class _SchemeFlags:
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
  # It may be a fraction if it is a mean.
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


SCHEME_FLAGS = {row.name: row for row in program.rows_of(_SchemeFlags)}
_CLIENTS, _COHORT = 'num_clients', 'clients_per_round'


def names(rows: Iterable[Flag]) -> tuple[str, ...]:
  """Returns the names of flags."""
  return tuple(row.name for row in rows)


def change(rows: Iterable[Flag], changes: Mapping[str, Mapping[str, Any]]) -> Rows:
  """Returns rows with some fields replaced, by the name of the flag."""
  return tuple(dataclasses.replace(row, **changes.get(row.name, {})) for row in rows)


def participation() -> Rows:
  """Flags of rounds and limits on participation."""
  num_rounds = Flag('num_rounds', int, 'Rounds in all.')
  own = flags_of(sampling_lib.Limits)
  return (num_rounds, *(SCHEME_FLAGS[name] for name in own))


def sampling() -> Rows:
  """Flags of sampling schemes."""
  limits = names(participation())
  *first, last = (
    f'{text}, with {_required(scheme)}' if _required(scheme) else text
    for scheme, text in ASSUMED.items()
  )
  return (
    Flag(
      'sampling',
      [scheme.flag for scheme in ASSUMED],
      'How clients are drawn, as far as the guarantee relies on it: '
      f'{"; ".join(first)}; or {last}.',
      default=sampling_lib.Limits.flag,
    ),
    *(row for name, row in SCHEME_FLAGS.items() if name not in limits),
  )


def mechanism(none: Optional[str] = None) -> Rows:
  """Flags of the mechanism without its noise; `none` is the value for no mechanism."""
  known = [*mechanism_lib.names(), *([] if none is None else [none])]
  return (
    Flag('mechanism', known, 'Privacy mechanism; or give --strategy_file.'),
    Flag(
      'strategy_file',
      str,
      'A strategy saved by Strategy.save (.json or .npz), instead of --mechanism.',
    ),
    *options(),
    Flag(
      'clipped_count_stddev',
      float,
      'With adaptive clipping: standard deviation of the noise of the count of small '
      'norms, in clients. --noise_multiplier then covers count and values.',
    ),
    Flag(
      'part',
      program.MANY,
      'Repeated: a part of the model with its own mechanism, instead of --mechanism '
      'for all weights: NAME: weights=PATTERN, mechanism=..., clip_norm=..., with the '
      'options of the mechanism, such as restart_every=8. A weight belongs to the '
      'first part with a pattern for its name (* and ? are wildcards, blanks separate '
      'patterns); names are 0, 1 and so on in the order of the weights. share=0.25 is '
      'the fraction of mu^2 that the part gets of --target_epsilon, by default the '
      'same for all parts; or each part has a noise_multiplier. The guarantee covers '
      'all parts together. '
      f'Default of mechanism: {DEFAULT_OF_PARTS}.',
    ),
  )


def options(is_comparison: bool = False) -> Rows:
  """Flags of the options of mechanisms."""
  texts = {
    name: {
      kind: option.help
      for kind, option in by_kind.items()
      if option.is_compared or not is_comparison
    }
    for name, by_kind in registry.options().items()
  }
  return tuple(
    Flag(name, int, registry.describe(by_kind))
    for name, by_kind in texts.items()
    if by_kind
  )


def placement() -> Rows:
  """Flags of the place where the noise is made."""
  text = '; '.join(f'{name}: {each.help}' for name, each in terms.PLACEMENTS.items())
  return (
    Flag(
      'noise_site',
      list(noises.PLACEMENTS),
      f'Who makes the noise. {text}.',
      unset=f'{noises.SERVER.name}; of integers {noises.CLIENTS.name}',
    ),
    *(Flag(name, int, terms.describe(name)) for name in noises.options()),
    Flag(
      noises.SERVER_NOISE,
      float,
      f'With --noise_site={noises.CLIENTS_AND_SERVER.name}: standard deviation of the '
      "server's noise of the sum over the clip norm, 0 for none. --noise_multiplier is "
      "that of one client's noise.",
    ),
  )


def target() -> Rows:
  """Flags of noise, privacy target, accountant and adjacency."""
  return (
    Flag(
      'noise_multiplier',
      float,
      'Standard deviation of the noise over the clip norm.',
      unset='the least that keeps the target',
    ),
    Flag('target_epsilon', float, 'Privacy target.', above=0),
    Flag(
      'target_rho',
      float,
      'Privacy target in zCDP, instead of --target_epsilon: rho, for Gaussian noise '
      'without sampling. Epsilon is reported as well, at --target_delta.',
      above=0,
    ),
    Flag('target_delta', float, 'Delta of the guarantee.', above=0, below=1),
    Flag(
      'accountant',
      sorted(accountants.ACCOUNTANTS),
      'Accountant to compute epsilon with.',
      unset='the tightest sound one, which is exact without sampling',
    ),
    Flag(
      'adjacency',
      sorted(sampling_lib.ADJACENCIES),
      'Neighbouring relation.',
      unset='that of the schema, zero_out without sampling',
    ),
  )


CLIP_NORM = Flag(
  'clip_norm', float, "L2 bound of one client's contribution to one round.", above=0
)


@dataclasses.dataclass
class Nbafl:
  """Flags of NbAFL besides those in `OF_NBAFL`."""

  nbafl: bool = program.flag(
    'A plan of NbAFL (arXiv:1911.00222): what its formulas claim beside what the '
    'accountants say of the same noise. It takes --target_epsilon, --target_delta, '
    '--num_rounds, --clip_norm, --num_clients, --clients_per_round and the flags '
    'below.',
    default=False,
  )
  num_exposures: Optional[int] = program.flag(
    "With --nbafl: how often a client's uploads are seen; L."
  )
  min_examples: Optional[int] = program.flag(
    'With --nbafl: least number of examples of a client; m.'
  )
  calibration: str = program.flag(
    'With --nbafl: noise by the published formulas, or the least that keeps what they '
    'promise.',
    nbafl_lib.CALIBRATIONS,
    default='published',
  )


@dataclasses.dataclass
class RoundLog:
  """Flags on reading a round log and on the behaviour of its devices."""

  columns: tuple[str, ...] = program.flag(
    'Names of columns in the log that are not understood, such as '
    'completion_time=done,round=nr; population= ignores that column. '
    'Columns and the names that are understood: '
    f'{"; ".join(f"{k}: " + ", ".join(v) for k, v in round_log.COLUMNS.items())}.',
    default=(),
  )
  population_name: Optional[str] = program.flag(
    'Read only the rounds of this population, as named in the column population.'
  )
  min_wait_hours: Optional[float] = program.flag(
    'Least number of hours between two contributions of a device.',
    above=0,
    below=1e6,
    unset='24, or no such rule if the log names the clients',
  )
  wait_from: str = program.flag(
    "When the wait begins: with a device's contribution, which is safe, or with the "
    'completion of its round, as in the published Gboard accounting.',
    log_participation.WAIT_FROM,
    default='contribution',
  )
  first_start: Optional[str] = program.flag(
    'Start of the first round, for logs without start times.',
    unset='as long before its completion as the longest other round took',
  )


# Flags of other mechanisms that NbAFL uses as well.
OF_NBAFL = (
  *('target_epsilon', 'target_delta', 'num_rounds', 'clip_norm', 'num_clients'),
  'clients_per_round',
)
NBAFL, ROUND_LOG = program.rows_of(Nbafl), program.rows_of(RoundLog)


def printed(*formats: str) -> Rows:
  """Flags of the output format and file."""
  return (
    Flag('format', formats, 'What to print.', default=formats[0]),
    Flag('output', str, 'New file to write instead of printing.'),
  )


# Schemas of participation from flags.


def flags_of(scheme: type[sampling_lib.Scheme]) -> list[str]:
  """Returns the names of a scheme's flags, without the number of rounds."""
  own = {name for way in _ways(scheme) for name in way}
  if scheme is sampling_lib.Limits:
    own.add('rounds_between')
  return [name for name in SCHEME_FLAGS if name in own]


def schema_from(
  values: flags.FlagValues,
  num_rounds: Optional[int] = None,
  known: Collection[str] = (),
) -> sampling_lib.Schema:
  """Returns the participation schema that flags state.

  `num_rounds`: Used instead of the flag.
  `known`: Flags that also have a meaning without sampling.
  """
  scheme = sampling_lib.for_flag(values.sampling)
  num_rounds = values.num_rounds if num_rounds is None else num_rounds
  for name in SCHEME_FLAGS:
    if name not in (*known, *flags_of(scheme)):
      having = ' or '.join(k.flag for k in ASSUMED if name in flags_of(k))
      why = f'is for --sampling={having}, not for --sampling={values.sampling}.'
      program.refuse(values, [name], why)
  if scheme is sampling_lib.Limits:
    return limits_from(values, num_rounds)
  flag, (own, *of_cohort) = scheme.flag, _ways(scheme)
  ignored = [name for name in known if name not in own]
  given = _given(scheme, values, ignored if cohort_flag(values) is not None else ())
  way, make = own, scheme.data
  by_cohort = [
    name for name in (_CLIENTS, _COHORT) if name in given and name not in own
  ]
  if of_cohort and by_cohort:
    way, make = of_cohort[0], scheme.data.of_cohort  # type: ignore[attr-defined]
  takes = _required(scheme)
  for name in given:
    if name not in way:
      raise ValueError(
        f'--{name} does not go with --{by_cohort[0]}: --sampling={flag} takes {takes}. '
        'Leave one of them out.'
      )
  if any(needed and name not in given for name, needed in way.items()):
    raise ValueError(f'--sampling={flag} needs {takes}.')
  if scheme.has_public_sizes:
    check_whole(values, _COHORT)
  schema = make(num_rounds, **given)
  if way is not own:
    _check_cohort(schema, own_flags(scheme), given)
  return cast(sampling_lib.Schema, schema)


def limits_from(
  values: flags.FlagValues,
  num_rounds: int,
  max_participations: Optional[int] = None,
) -> strategies.Participation:
  """Returns the limits that flags state, in either convention for the separation."""
  given = _given(sampling_lib.Limits, values)
  between = given.pop('rounds_between', None)
  if between is not None:
    if 'min_separation' in given:
      raise ValueError('--min_separation is --rounds_between plus 1; give one of them.')
    checks.check_int('rounds_between', between, at_least=0)
    given['min_separation'] = between + 1
  if max_participations is not None:
    given['max_participations'] = max_participations
  return strategies.Participation(num_rounds, **given)


def check_whole(values: flags.FlagValues, name: str) -> None:
  """Raises ValueError for a fraction if a flag, elsewhere a mean, is a count here."""
  value = values[name].value
  if value is not None and not isinstance(value, int):
    raise ValueError(f'--{name} must be a whole number; got {value}.')


def own_flags(scheme: type[sampling_lib.Scheme]) -> list[str]:
  """Required flags that determine the cohort size instead of --clients_per_round."""
  own, *of_cohort = _ways(scheme)
  others = {_CLIENTS, _COHORT}.union(*of_cohort)
  return [name for name, needed in own.items() if needed and name not in others]


def cohort_flag(values: flags.FlagValues) -> Optional[str]:
  """Returns the flag of `own_flags` that is given, if one is."""
  names = own_flags(sampling_lib.for_flag(values.sampling))
  return next((each for each in names if each in values and values[each].present), None)


@functools.cache  # Reading signatures takes a tenth of the time to parse flags.
def _ways(scheme: type[sampling_lib.Scheme]) -> list[dict[str, bool]]:
  """The parameters of each way to make a scheme, and whether they are required."""
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


def _required(scheme: type[sampling_lib.Scheme]) -> str:
  """Returns the required flags of a scheme as text, for each way to state it."""
  needed = (
    [f'--{n}' for n, is_needed in way.items() if is_needed] for way in _ways(scheme)
  )
  return ', or '.join(' and '.join(names) for names in needed)


def _given(
  scheme: type[sampling_lib.Scheme],
  values: flags.FlagValues,
  left_out: Collection[str] = (),
) -> dict[str, Any]:
  names = [n for n in flags_of(scheme) if n in values and n not in left_out]
  return {n: values[n].value for n in names if values[n].value is not None}


def _check_cohort(made: Any, own: list[str], given: Mapping[str, Any]) -> None:
  """Raises ValueError if a scheme made for a cohort size has another one."""
  population, cohort = given[_CLIENTS], given[_COHORT]
  actual: Optional[float] = made.other_cohort(population, cohort)
  if actual is None:
    return
  nearby = float(round(actual))
  if made.other_cohort(population, nearby) is not None:
    nearby = actual
  as_well = ''.join(f', which is --{name}={getattr(made, name)}' for name in own)
  raise ValueError(
    f'--clients_per_round={cohort:g} of --num_clients={population} clients in '
    f'{made.num_rounds} rounds does not fit --sampling={made.flag}, where a client has '
    f'whole numbers of rounds: the next larger one is --clients_per_round={nearby:.6g}'
    f'{as_well}.'
  )
