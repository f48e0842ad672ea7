"""The table of flags that programs share.

Programs take rows of it, some with another text on the default, and add their own. The
rows include registered things, such as mechanisms with their options. Arguments of
Python functions have the names of the flags, so that their errors name the flag.
`schema_from` reads the flags of a sampling scheme, which are the arguments of its class
or of its `of_cohort`.
"""

import dataclasses
import inspect
from collections.abc import Collection, Iterable
from typing import Any, Callable, Optional, cast

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
flag = program.flag
Rows = tuple[Flag, ...]
_CLIENTS, _COHORT = 'num_clients', 'clients_per_round'
DEFAULT_OF_PARTS = 'banded'  # The mechanism of a --part that names none.
# The flags of a mechanism that most users need.
BASIC = (
  *'num_rounds num_clients clients_per_round min_separation max_participations'.split(),
  *'sampling mechanism clip_norm noise_multiplier target_epsilon target_delta'.split(),
  *('target_rho', 'format', 'output'),
)


# What each scheme of sampling assumes.
_ASSUMED: dict[type[sampling_lib.Scheme], str] = {
  sampling_lib.Limits: 'nothing but limits on the rounds of a client',
  sampling_lib.PoissonSampling: 'Poisson sampling',
  sampling_lib.FixedSizeSampling: 'cohorts of fixed size, without replacement',
  sampling_lib.BallsInBins: 'one random round in each cycle for each client',
  sampling_lib.RandomAllocation: 'a fixed number of random rounds for each client',
  sampling_lib.BMinSepSampling: 'independent draws of clients, each before a break',
  sampling_lib.TruncatedPoissonSampling: 'Poisson sampling with a cap of the cohort',
}


@dataclasses.dataclass
class _Schemes:
  min_separation: Optional[int] = flag(
    'Smallest difference between two rounds of one client; larger is better. '
    'Default of tff-dp-report and tff-dp-audit: 1, every round.'
  )
  rounds_between: Optional[int] = flag(
    'Rounds strictly between two of one client: --min_separation minus one.'
  )
  max_participations: Optional[int] = flag(
    'Largest number of rounds of one client. Default: as many as the separation allows.'
  )
  fixed_epoch: bool = flag(
    'Whether rounds of a client differ by multiples of --min_separation.', default=False
  )
  sampling_probability: Optional[float] = flag(
    'Probability that a client is drawn for a round; for b_min_sep, that of a client '
    'whose break is over.'
  )
  num_clients: Optional[int] = flag('Number of clients to draw from.')
  clients_per_round: Optional[float] = flag(
    'Clients per round; their mean number if they are drawn independently.',
    program.NUMBER,  # It may be a fraction if it is a mean.
  )
  max_clients_per_round: Optional[int] = flag(
    'Most clients of a round, a random subset of more.'
  )
  num_groups: Optional[int] = flag('Number of groups of clients that take turns.')
  cycle_length: Optional[int] = flag(
    'Rounds of a cycle, in which each client takes part once.'
  )
  rounds_of_a_client: Optional[int] = flag('Number of rounds of each client.')


SCHEME_FLAGS = {row.name: row for row in program.rows_of(_Schemes)}


def names(rows: Iterable[Flag]) -> tuple[str, ...]:
  """Returns the names of flags."""
  return tuple(row.name for row in rows)


def participation() -> Rows:
  """Flags of rounds and limits on participation."""
  num_rounds = Flag(
    'num_rounds', int, 'Rounds in all; tff-dp-report finds the most for a target.'
  )
  return (num_rounds, *(SCHEME_FLAGS[name] for name in _limits()))


def sampling() -> Rows:
  """Flags of sampling schemes."""
  schemes = sampling_lib.SCHEMES.values()
  texts = (f'{k.flag}: {_ASSUMED.get(k, k.__doc__)}, with {_taken(k)}' for k in schemes)
  return (
    Flag(
      'sampling',
      [scheme.flag for scheme in schemes],
      'How clients are drawn, as far as the guarantee relies on it. '
      f'{"; ".join(texts)}.',
      default=sampling_lib.Limits.flag,
    ),
    *(row for name, row in SCHEME_FLAGS.items() if name not in _limits()),
  )


def mechanism(none: Optional[str] = None) -> Rows:
  """Flags of the mechanism without its noise; `none` is the value for no mechanism."""
  known = [*mechanism_lib.names(), *([] if none is None else [none])]
  return (
    Flag(
      'mechanism',
      known,
      'Privacy mechanism; or give --strategy_file. '
      + (f'{none}: no privacy. Default: {DEFAULT_OF_PARTS}.' if none else ''),
    ),
    Flag(
      'strategy_file',
      str,
      'A strategy of Strategy.save (.json or .npz), instead of --mechanism.',
    ),
    *options(),
    Flag(
      'clipped_count_stddev',
      float,
      'With adaptive clipping: standard deviation of the noise of the count of small '
      'norms. --noise_multiplier then covers count and values.',
    ),
    Flag(
      'part',
      program.MANY,
      'Repeated: a part of the model with its own mechanism: NAME: weights=PATTERN, '
      'mechanism=..., clip_norm=..., and options such as restart_every=8. A weight '
      'belongs to the first part with a pattern for its name (* and ? are wildcards, '
      'blanks separate patterns), which is 0, 1 and so on. share=0.25 is the fraction '
      'of mu^2 that the part gets of --target_epsilon, by default the same for all; or '
      f'each part has a noise_multiplier. Default of mechanism: {DEFAULT_OF_PARTS}.',
    ),
  )


def options() -> Rows:
  """Flags of the options of mechanisms."""
  return tuple(
    Flag(
      name, int, registry.describe({kind: each.help for kind, each in having.items()})
    )
    for name, having in registry.options().items()
  )


def placement() -> Rows:
  """Flags of the place where the noise is made."""
  text = '; '.join(f'{name}: {each.help}' for name, each in terms.PLACEMENTS.items())
  return (
    Flag(
      'noise_site',
      list(noises.PLACEMENTS),
      f'Who makes the noise. {text}. Default: {noises.SERVER.name}; of integers '
      f'{noises.CLIENTS.name}. In simulations, numbers of clients and parameters '
      'follow from other flags.',
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


@dataclasses.dataclass
class _Target:
  noise_multiplier: Optional[float] = flag(
    'Standard deviation of the noise over the clip norm. Default with a target: the '
    'least that meets it.'
  )
  target_epsilon: Optional[float] = flag(
    'Privacy target: tff-dp-report finds noise or rounds for it, or checks both; '
    'simulations find the noise, for epsilon 8 without another target or noise.',
    within='(0, inf)',
  )
  target_rho: Optional[float] = flag(
    'Privacy target in zCDP, instead of --target_epsilon: rho of Gaussian noise '
    'without sampling. Epsilon is reported as well.',
    within='(0, inf)',
  )
  target_delta: Optional[float] = flag(
    'Delta of the guarantee; well below 1 / num_clients.', within='(0, 1)'
  )


def target() -> Rows:
  """Flags of noise, privacy target, accountant and adjacency."""
  return (
    *program.rows_of(_Target),
    Flag(
      'accountant',
      sorted(accountants.ACCOUNTANTS),
      'Accountant to compute epsilon with. Default: the tightest sound one.',
    ),
    Flag(
      'adjacency',
      sorted(sampling_lib.ADJACENCIES),
      'Neighbouring relation. Default: that of the sampling scheme.',
    ),
  )


CLIP_NORM = Flag(
  'clip_norm',
  float,
  "L2 bound of a client's contribution to a round; L1 with --mechanism=laplace.",
  within='(0, inf)',
)


@dataclasses.dataclass
class _Nbafl:
  nbafl: bool = flag(
    'Noise of each client and of the server by NbAFL (arXiv:1911.00222), from '
    '--target_epsilon, --target_delta, --clip_norm, --num_rounds, --num_clients, '
    '--clients_per_round and the flags below. All clients take part in each round, or '
    'are drawn at random anew for each.',
    default=False,
  )
  num_exposures: Optional[int] = flag(
    "With --nbafl: how often a client's uploads are seen (L), by default each round."
  )
  min_examples: Optional[int] = flag(
    'With --nbafl: least number of examples of a client (m).'
  )
  calibration: str = flag(
    'With --nbafl: noise by the published formulas, or the least for their promise.',
    nbafl_lib.CALIBRATIONS,
    default='published',
  )


NBAFL = program.rows_of(_Nbafl)
# Flags of other mechanisms that NbAFL uses as well.
OF_NBAFL = (
  *('target_epsilon', 'target_delta', 'num_rounds', 'clip_norm', 'num_clients'),
  'clients_per_round',
)


@dataclasses.dataclass
class _RoundLog:
  """Flags on reading a round log and on the behaviour of its devices."""

  columns: tuple[str, ...] = flag(
    'Names of columns in the log that are not understood, such as '
    'completion_time=done,round=nr; population= ignores that column. '
    'Columns and the names that are understood: '
    f'{"; ".join(f"{k}: " + ", ".join(v) for k, v in round_log.COLUMNS.items())}.',
    default=(),
  )
  population_name: Optional[str] = flag(
    'Read only the rounds of this value of the column population.'
  )
  min_wait_hours: Optional[float] = flag(
    'Least number of hours between two contributions of a device. Default: 24, or no '
    'such rule if the log names the clients.',
    within='(0, 1e6)',
  )
  wait_from: str = flag(
    'When the wait begins: with a contribution, which is safe, or with the completion '
    'of its round, as in the published Gboard accounting.',
    log_participation.WAIT_FROM,
    default='contribution',
  )
  first_start: Optional[str] = flag(
    'Start of the first round, for logs without start times. Default: as long before '
    'its completion as the longest other round took.'
  )


ROUND_LOG = program.rows_of(_RoundLog)


def printed(*formats: str) -> Rows:
  """Flags of the output format and file."""
  return (
    Flag('format', formats, 'What to print.', default=formats[0]),
    Flag('output', str, 'New file to write instead of printing.'),
  )


def limits_from(
  values: flags.FlagValues, num_rounds: int, **changes: Any
) -> strategies.Participation:
  """Returns the limits that flags state, in either convention for the separation."""
  return strategies.Participation(
    num_rounds, **{**_given(values, _limits()), **changes}
  )


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
  make, *of_cohort = _makers(scheme)
  own, given = _parameters(make), _given(values, SCHEME_FLAGS)
  if not of_cohort or cohort_flag(values) is not None:
    given = {n: each for n, each in given.items() if n in own or n not in known}
  elif {_CLIENTS, _COHORT}.intersection(given).difference(own):
    (make,) = of_cohort
  try:
    inspect.signature(make).bind(num_rounds, **given)
    schema = make(num_rounds, **given)
  except TypeError as e:
    message = str(e).rstrip('.')
    raise ValueError(
      f'--sampling={scheme.flag} takes {_taken(scheme)}: {message}.'
    ) from e
  if make in of_cohort and values[_COHORT].present:
    actual = schema.other_cohort(given[_CLIENTS], given[_COHORT])
    if actual is not None:
      raise ValueError(
        f'--clients_per_round={given[_COHORT]:g} does not fit '
        f'--sampling={scheme.flag}, where a client has whole numbers of rounds; the '
        f'next larger one is --clients_per_round={actual:.6g}.'
      )
  return cast(sampling_lib.Schema, schema)


def cohort_flag(values: flags.FlagValues) -> Optional[str]:
  """The given flag that determines cohorts instead of --clients_per_round, if any."""
  scheme = sampling_lib.for_flag(values.sampling)
  own, *of_cohort = map(_parameters, _makers(scheme))
  name = next((name for each in of_cohort for name in own if name not in each), None)
  return name if name in values and values[name].present else None


def _makers(scheme: type[sampling_lib.Scheme]) -> list[Callable[..., Any]]:
  """Each way to make a scheme; the second one from the size of the cohort."""
  of_cohort = getattr(scheme.data, 'of_cohort', None)
  return [scheme.data, *([] if of_cohort is None else [of_cohort])]


def _parameters(make: Callable[..., Any]) -> dict[str, inspect.Parameter]:
  own = inspect.signature(make).parameters
  return {name: each for name, each in own.items() if name != 'num_rounds'}


def _limits() -> list[str]:
  own = (*_parameters(strategies.Participation), 'rounds_between')
  return [name for name in SCHEME_FLAGS if name in own]


def _taken(scheme: type[sampling_lib.Scheme]) -> str:
  """The flags of each way to state a scheme; optional ones are in brackets."""
  return ', or '.join(
    ' '.join(
      f'--{name}' if each.default is each.empty else f'[--{name}]'
      for name, each in _parameters(make).items()
    )
    for make in _makers(scheme)
  )


def _given(values: flags.FlagValues, names: Iterable[str]) -> dict[str, Any]:
  given = {
    n: values[n].value for n in names if n in values and values[n].value is not None
  }
  if not given.get('fixed_epoch'):
    given.pop('fixed_epoch', None)
  between = given.pop('rounds_between', None)
  if between is not None:
    if 'min_separation' in given:
      raise ValueError('--min_separation is --rounds_between plus 1; give one of them.')
    given['min_separation'] = (
      checks.check_int('rounds_between', between, at_least=0) + 1
    )
  return given
