"""The table of flags: one name for one thing, in all programs.

Programs take rows of it, some with other words for what stands where a flag is left
out, and add those that are theirs alone. Mechanisms with their options, ways to draw
clients, accountants and neighbouring relations that are registered are among the rows.
Python's arguments have the same names, so that what refuses one names the flag.
"""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any, Optional

from tff_dp_aggregators import sampling as sampling_lib
from tff_dp_aggregators.accounting import accountants
from tff_dp_aggregators.accounting import mechanism as mechanism_lib
from tff_dp_aggregators.accounting import nbafl as nbafl_lib
from tff_dp_aggregators.accounting import noises
from tff_dp_aggregators.accounting.programs import program
from tff_dp_aggregators.accounting.programs import scheme_flags
from tff_dp_aggregators.accounting.records import log_participation
from tff_dp_aggregators.accounting.records import round_log
from tff_dp_aggregators.accounting.reports import terms
from tff_dp_aggregators.strategies import registry

Flag = program.Flag
Rows = tuple[Flag, ...]
# The mechanism of a part of a model that names none.
DEFAULT_OF_PARTS = 'banded'
# What most need to say of a mechanism.
BASIC = (
  *'num_rounds num_clients clients_per_round min_separation max_participations'.split(),
  *'sampling mechanism clip_norm noise_multiplier target_epsilon target_delta'.split(),
  *('target_rho', 'format', 'output'),
)


def names(rows: Iterable[Flag]) -> tuple[str, ...]:
  """Names of flags."""
  return tuple(row.name for row in rows)


def change(rows: Iterable[Flag], changes: Mapping[str, Mapping[str, Any]]) -> Rows:
  """Rows with other fields, by the flag's name."""
  return tuple(dataclasses.replace(row, **changes.get(row.name, {})) for row in rows)


def participation() -> Rows:
  """Rounds, and limits on participation."""
  num_rounds = Flag('num_rounds', int, 'Rounds in all.')
  own = scheme_flags.flags_of(sampling_lib.Limits)
  return (num_rounds, *(scheme_flags.FLAGS[name] for name in own))


def sampling() -> Rows:
  """How clients are drawn."""
  limits = names(participation())
  return (
    Flag(
      'sampling',
      [scheme.flag for scheme in scheme_flags.ASSUMED],
      scheme_flags.help_of_sampling(),
      default=sampling_lib.Limits.flag,
    ),
    *(row for name, row in scheme_flags.FLAGS.items() if name not in limits),
  )


def mechanism(none: Optional[str] = None) -> Rows:
  """The mechanism, but for its noise; `none` is a value that asks for no mechanism."""
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
  """The options of mechanisms."""
  said = {
    name: {
      kind: option.help
      for kind, option in by_kind.items()
      if option.is_compared or not is_comparison
    }
    for name, by_kind in registry.options().items()
  }
  return tuple(
    Flag(name, int, registry.describe(by_kind))
    for name, by_kind in said.items()
    if by_kind
  )


def placement() -> Rows:
  """Who makes the noise."""
  said = '; '.join(f'{name}: {each.help}' for name, each in terms.PLACEMENTS.items())
  return (
    Flag(
      'noise_site',
      list(noises.PLACEMENTS),
      f'Who makes the noise. {said}.',
      unset=f'{noises.SERVER.name}; of integers {noises.CLIENTS.name}',
    ),
    *(Flag(name, int, *_described(name)) for name in noises.options()),
    Flag(
      noises.SERVER_NOISE,
      float,
      f'With --noise_site={noises.CLIENTS_AND_SERVER.name}: standard deviation of the '
      "server's noise of the sum over the clip norm, 0 for none. --noise_multiplier is "
      "that of one client's noise.",
    ),
  )


def _described(option: str) -> tuple[str, str]:
  text, _, unset = terms.describe(option).partition(' Default: ')
  return f'{text.rstrip(".")}.', unset.rstrip('.')


def target() -> Rows:
  """Noise, privacy target, and whose epsilon counts."""
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
      'without sampling. Epsilon is told beside it, at --target_delta.',
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
  """NbAFL, which takes clients, rounds, target and clip norm of other groups."""

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
  """How a round log is to be read, and what its devices do."""

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


# What NbAFL takes of the flags that every mechanism has.
OF_NBAFL = (
  *('target_epsilon', 'target_delta', 'num_rounds', 'clip_norm', 'num_clients'),
  'clients_per_round',
)
NBAFL, ROUND_LOG = program.rows_of(Nbafl), program.rows_of(RoundLog)


def printed(*formats: str) -> Rows:
  """What is printed, and where it goes."""
  return (
    Flag('format', formats, 'What to print.', default=formats[0]),
    Flag('output', str, 'New file to write instead of printing.'),
  )
