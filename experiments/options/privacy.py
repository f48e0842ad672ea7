"""Mechanism, target, and who takes part."""

import dataclasses
from collections.abc import Mapping
from typing import Any, Optional

from absl import flags

from tff_dp_aggregators import strategies
from tff_dp_aggregators.accounting import mechanism as mechanism_lib
from tff_dp_aggregators.accounting.accountants import gaussian
from tff_dp_aggregators.accounting.programs import flags as flags_lib

from . import of_task

_DEFAULT_TARGET_EPSILON = 8.0
NAMES = (
  'mechanism',
  'clip_norm',
  'noise_multiplier',
  'target_epsilon',
  'target_delta',
  'num_rounds',
  'clients_per_round',
  'min_separation',
  'max_participations',
)


@dataclasses.dataclass(frozen=True)
class Privacy:
  """Rounds, who takes part in them, and the noise.

  Attributes:
    participation: Limits that client selection keeps and accounting assumes.
    clients_per_round: Clients asked for a round.
    mechanism: Privacy mechanism, with its noise; `None` for no privacy.
    clip_norm: L2 bound of one client's contribution to one round.
    target_epsilon: What the noise was found for; `None` if it was given.
    delta: At which epsilon is told.
  """

  participation: strategies.Participation
  clients_per_round: int
  mechanism: Optional[mechanism_lib.Mechanism]
  clip_norm: float
  target_epsilon: Optional[float]
  delta: float


def define(values: flags.FlagValues, tasks: Mapping[str, Any]) -> None:
  """Defines the flags.

  Args:
    values: Where to define them.
    tasks: The tasks by name, for defaults.
  """

  def define_of_task(define_flag: Any, name: str, text: str) -> None:
    of_task.define(values, tasks, define_flag, name, text)

  flags.DEFINE_enum(
    'mechanism',
    'banded',
    [*mechanism_lib.NAMES, 'none'],
    'Privacy mechanism; none for no privacy.',
    flag_values=values,
  )
  define_of_task(
    flags.DEFINE_float,
    'clip_norm',
    "L2 bound of one client's contribution to one round.",
  )
  flags.DEFINE_float(
    'noise_multiplier',
    None,
    'Standard deviation of the noise over the clip norm. Give this or '
    '--target_epsilon.',
    flag_values=values,
  )
  flags.DEFINE_float(
    'target_epsilon',
    None,
    'Privacy target from which the noise follows. Default, if --noise_multiplier is '
    'not given either: 8.',
    flag_values=values,
  )
  flags.DEFINE_float(
    'target_delta',
    1e-5,
    'Delta of the guarantee; well below 1 / num_clients.',
    flag_values=values,
  )
  define_of_task(flags.DEFINE_integer, 'num_rounds', 'Rounds to train.')
  define_of_task(flags.DEFINE_integer, 'clients_per_round', 'Clients in a round.')
  define_of_task(
    flags.DEFINE_integer,
    'min_separation',
    'Smallest difference of two rounds of one client. Larger is better for privacy, '
    'and needs clients_per_round * min_separation clients.',
  )
  flags.DEFINE_integer(
    'max_participations',
    None,
    'Most rounds of one client. Default: as many as --min_separation leaves possible.',
    flag_values=values,
  )
  flags_lib.define_options(values)


def from_flags(values: flags.FlagValues) -> Privacy:
  """What the flags say, with the noise multiplier that the privacy target needs.

  Args:
    values: Parsed flags, with the task's defaults.

  Raises:
    ValueError: If a value is out of range, flags contradict each other, or the
      population cannot fill the rounds; the message says what would be right.
  """
  if not values.clip_norm > 0:
    raise ValueError(f'clip_norm must be positive; got {values.clip_norm}.')
  gaussian.check_delta(values.target_delta, 'target_delta')
  participation = strategies.Participation(
    values.num_rounds, values.min_separation, values.max_participations
  )
  if values.num_clients is not None:
    strategies.participation.check_population(
      values.num_clients,
      values.clients_per_round,
      participation,
      ('num_clients', 'clients_per_round'),
    )
  mechanism, target_epsilon = _mechanism(values, participation)
  return Privacy(
    participation=participation,
    clients_per_round=values.clients_per_round,
    mechanism=mechanism,
    clip_norm=values.clip_norm,
    target_epsilon=target_epsilon,
    delta=values.target_delta,
  )


def _mechanism(
  values: flags.FlagValues, participation: strategies.Participation
) -> tuple[Optional[mechanism_lib.Mechanism], Optional[float]]:
  """The mechanism that the flags ask for, and its target."""
  options = flags_lib.options_from(values)
  if values.mechanism == 'none':
    for name in ('noise_multiplier', 'target_epsilon', *options):
      if values[name].value is not None:
        raise ValueError(f'--{name} does not go with --mechanism=none.')
    return None, None
  if values.noise_multiplier is not None and values.target_epsilon is not None:
    raise ValueError(
      'give exactly one of --noise_multiplier and --target_epsilon: the noise '
      'follows from the target, and the other way round.'
    )
  if values.noise_multiplier is not None:
    mechanism = mechanism_lib.Mechanism(
      values.mechanism, participation, values.noise_multiplier, options=options
    )
    return mechanism, None
  target_epsilon = values.target_epsilon
  if target_epsilon is None:
    target_epsilon = _DEFAULT_TARGET_EPSILON
  mechanism = mechanism_lib.Mechanism.for_target(
    values.mechanism,
    participation,
    target_epsilon,
    values.target_delta,
    options=options,
  )
  return mechanism, target_epsilon
