"""Flags for the privacy mechanism, its target or noise, clipping, and NbAFL.

The programs `report` and `plan` have the same flags; those of registered mechanisms and
their options, accountants and neighbouring relations are among them.
"""

import dataclasses
import math
from typing import Callable, Optional

from absl import flags

from tff_dp_aggregators import sampling
from tff_dp_aggregators import strategies
from tff_dp_aggregators.accounting import adaptive_clipping
from tff_dp_aggregators.accounting import joint_mechanism
from tff_dp_aggregators.accounting import mechanism as mechanism_lib
from tff_dp_aggregators.accounting import nbafl as nbafl_lib
from tff_dp_aggregators.accounting import noises
from tff_dp_aggregators.accounting.programs import flags as flags_lib
from tff_dp_aggregators.accounting.programs import program
from tff_dp_aggregators.accounting.programs import table
from tff_dp_aggregators.learning import options as learning_options
from tff_dp_aggregators.strategies import registry

from . import optimization as optimization_options
from . import participation as participation_options
from . import run as run_options

NONE = 'none'  # The mechanism without privacy; as a kind of clipping, no clipping.
FIXED, ADAPTIVE = 'fixed', 'adaptive'
_DEFAULT_TARGET_EPSILON = 8.0
_PREFIX_SUMS, _SERVER = 'prefix_sums', 'server'
_NBAFL = table.names(table.NBAFL)


@dataclasses.dataclass(frozen=True)
class Privacy:
  mechanism: Optional[joint_mechanism.AnyMechanism]  # `None` for no privacy.
  # Clipping norm, in the first round if it is adaptive; `None` without clipping, and if
  # each part of the model has its own.
  clip_norm: Optional[float]
  delta: float  # Delta of the reported epsilon.
  # Target that the noise was calibrated to; `None` if the noise was given.
  target_epsilon: Optional[float] = None
  # How many times larger the cohort is that the noise is for; above 1 there is no
  # guarantee.
  simulated_cohort_scale: float = 1.0
  # The NbAFL plan of the noise; `None` without one.
  nbafl: Optional[nbafl_lib.Nbafl] = None

  @property
  def name(self) -> str:
    if self.nbafl is not None:
      return 'nbafl'
    return NONE if self.mechanism is None else self.mechanism.name

  def noise_seed(self, run: run_options.Run) -> Optional[int]:
    """`None` for secret noise; integer noise always is, as clients draw it."""
    if self.mechanism is None or run.secret_noise or self.mechanism.has_integer_noise:
      return None
    return run.seed


@dataclasses.dataclass
class _Own:
  clipping: Optional[str] = program.flag(
    f'How to clip updates. {FIXED}: to --clip_norm, with --mechanism={NONE} without '
    f"noise; {ADAPTIVE}: to a norm that moves from there to a quantile of the clients' "
    'norms, which is estimated with a small part of the budget (or with '
    f'--clipped_count_stddev); {NONE}: not at all, only with --mechanism={NONE}. '
    f'Default: {FIXED}; with --clipped_count_stddev {ADAPTIVE}, with '
    f'--mechanism={NONE} {NONE}.',
    [FIXED, ADAPTIVE, NONE],
  )
  clip_order: Optional[float] = program.flag(
    f'With --clipping={FIXED} without noise: order p of the norm, 1 to inf; 2 by '
    'default.',
    within='[1, inf]',
  )
  target_quantile: Optional[float] = program.flag(
    f'With --clipping={ADAPTIVE}: share of clients not clipped, 0.5 by default.'
  )
  clip_learning_rate: Optional[float] = program.flag(
    f'With --clipping={ADAPTIVE}: the norm changes by at most exp(this) a round, 0.2 '
    'by default.'
  )
  workload: str = program.flag(
    'Workload that the strategy is optimised for: prefix sums, or the models of '
    '--server_optimizer with its momentum and learning rates.',
    [_PREFIX_SUMS, _SERVER],
    default=_PREFIX_SUMS,
  )
  simulated_cohort_scale: float = program.flag(
    'Add noise as if cohort and population were this many times larger. Above 1 there '
    'is no guarantee: it shows how training with so many clients would do.',
    default=1.0,
    within='[1, inf)',
  )


def rows() -> table.Rows:
  shared = (*table.mechanism(none=NONE), table.CLIP_NORM, *table.target())
  return (*shared, *program.rows_of(_Own))


def names() -> tuple[str, ...]:
  return table.names((*rows(), *table.placement()))


def privacy_flags(clipping: Optional[str] = None) -> tuple[str, ...]:
  """The flags that need a mechanism; training without privacy refuses them."""
  allowed = {'mechanism', 'clipping'}
  if clipping == FIXED:
    allowed |= {'clip_norm', 'clip_order'}
  others = (*names(), *_NBAFL, 'not_private_signal_to_noise', 'secret_noise')
  return tuple(name for name in others if name not in allowed)


def prepare_nbafl(values: flags.FlagValues) -> None:
  """Refuses flags that do not go with --nbafl, and sets those that follow from it."""
  if values.mechanism == NONE:
    return
  flags_lib.check_nbafl(values)
  if not values.nbafl:
    return
  why = (
    'does not go with --nbafl: noise and its site follow from its formulas, which are '
    'for clients who all report, and all take part in each round or are drawn at '
    'random anew for each.'
  )
  allowed = (*_NBAFL, *table.OF_NBAFL)
  program.refuse(values, (*names(), *participation_options.names()), why, but=allowed)
  values['min_separation'].value = 1  # Not the task's default.
  values.set_default('mechanism', noises.GAUSSIAN.name)
  values.set_default('clipping', FIXED)
  values.set_default('num_exposures', values.num_rounds)


def from_flags(
  values: flags.FlagValues,
  participation: participation_options.Participation,
  optimization: optimization_options.Optimization,
  model_size: Callable[[], int],
) -> Privacy:
  if values.mechanism == NONE:
    why = f'does not go with --mechanism={NONE}'
    hint = f'; --clipping={FIXED} clips without noise.'
    program.refuse(values, privacy_flags(values.clipping), why + hint)
  else:
    schema = participation.schema  # Strategies and noise may take long to find.
    learning_options.check_adjacency('--adjacency', values.adjacency, schema)
    if values.nbafl:
      return _of_nbafl(values)
    if values.part is not None:
      return _with_parts(values, participation)
    _check_mechanism(values)
  _check_clipping(values)
  mechanism = target_epsilon = None
  if values.mechanism != NONE:
    _set_numbers(values, participation, model_size)
    mechanism = _mechanism(values, participation, optimization)
    if values.noise_multiplier is None and not mechanism.placement.is_simulation:
      target_epsilon = values.target_epsilon  # Simulated noise does not keep a target.
  return Privacy(
    mechanism=mechanism,
    clip_norm=None if values.clipping == NONE else values.clip_norm,
    target_epsilon=target_epsilon,
    delta=values.target_delta,
    simulated_cohort_scale=values.simulated_cohort_scale,
  )


def _of_nbafl(values: flags.FlagValues) -> Privacy:
  planned = flags_lib.nbafl(values)
  arguments = planned.mechanism_arguments()
  for name in ('noise_site', 'server_noise_multiplier', 'min_clients'):
    if name in arguments:
      values.set_default(name, arguments[name])
  mechanism = mechanism_lib.Mechanism(**arguments)
  return Privacy(mechanism, planned.clip_norm, planned.delta, nbafl=planned)


def _with_parts(
  values: flags.FlagValues, participation: participation_options.Participation
) -> Privacy:
  flags_lib.check_beside_parts(values, names())
  _set_target(values)
  mechanism = flags_lib.joint(values, participation.schema)
  if mechanism.target is None:
    why = 'is for noise that is found, and a --part has a noise_multiplier.'
    program.refuse(values, ('target_epsilon', 'target_rho', 'accountant'), why)
    values['target_epsilon'].value = None
  values['clip_norm'].value = None  # Each part has its own.
  return Privacy(
    mechanism, None, values.target_delta, target_epsilon=values.target_epsilon
  )


def _set_target(values: flags.FlagValues) -> None:
  if values.target_rho is None:
    values.set_default('target_epsilon', _DEFAULT_TARGET_EPSILON)


def _check_mechanism(values: flags.FlagValues) -> None:
  if values.strategy_file is None:
    values.set_default('mechanism', table.DEFAULT_OF_PARTS)
  else:
    of_file = ('mechanism', 'workload', *registry.options())
    why = 'does not go with --strategy_file, which has the strategy.'
    program.refuse(values, of_file, why)
  if values.noise_multiplier is None:
    _set_target(values)
    flags_lib.target_from(values)  # Refuses two of them.
  elif flags_lib.target_from(values) is not None or values.accountant is not None:
    raise ValueError(
      'give exactly one of --noise_multiplier and a target, --target_epsilon or '
      '--target_rho, and --accountant only with a target. If the target is in a '
      '--flagfile, --notarget_epsilon leaves out that.'
    )


def _check_clipping(values: flags.FlagValues) -> None:
  is_private = values.mechanism != NONE
  is_adaptive = values.clipped_count_stddev is not None
  default = ADAPTIVE if is_adaptive else FIXED if is_private else NONE
  values.set_default('clipping', default)
  noise = noises.of_mechanism(values.mechanism or mechanism_lib.FROM_FILE)
  site = noise.placement(values.noise_site)
  has_other_noise = is_private and not (noise.is_gaussian and site is noises.SERVER)
  mechanism = f'--mechanism={values.mechanism}'
  for clipping, is_refused, why in (
    (NONE, is_private, f'{mechanism}, as no noise hides an update without a bound'),
    (ADAPTIVE, not is_private, f'{mechanism}, as noise has to cover its counts'),
    (FIXED, is_adaptive, '--clipped_count_stddev, the noise of adaptive clipping'),
    (
      ADAPTIVE,
      has_other_noise,
      f'--noise_site={site.name} and {noise.name} noise, as it counts small norms with '
      'Gaussian noise of the server',
    ),
  ):
    if values.clipping == clipping and is_refused:
      raise ValueError(f'--clipping={clipping} does not go with {why}.')


def _set_numbers(
  values: flags.FlagValues,
  participation: participation_options.Participation,
  model_size: Callable[[], int],
) -> None:
  noise = noises.of_mechanism(values.mechanism or mechanism_lib.FROM_FILE)
  required = {*noise.required, *noise.placement(values.noise_site).required}
  cohort = math.ceil(participation.clients_per_round)
  if noises.MIN_CLIENTS in required:
    values.set_default(noises.MIN_CLIENTS, participation.reporting_goal or cohort)
  if noises.MAX_CLIENTS in noise.options:
    # A goal is never above the cohort; --min_clients may be, and is refused then.
    values.set_default(noises.MAX_CLIENTS, max(cohort, values.min_clients))
  if noises.DIMENSION in required:
    size = model_size()
    if values.dimension not in (None, size):
      raise ValueError(
        f'--dimension={values.dimension} is not the number of trainable parameters of '
        f'the model, {size}, for which its noise has to be; leave it out.'
      )
    values.set_default(noises.DIMENSION, size)


def _mechanism(
  values: flags.FlagValues,
  participation: participation_options.Participation,
  optimization: optimization_options.Optimization,
) -> mechanism_lib.Mechanism:
  schema, strategy = participation.schema, None
  if values.workload == _SERVER:
    strategy = _strategy_for_server(values, schema, optimization)
  mechanism = flags_lib.mechanism_from(values, schema, strategy)
  if values.clipping != ADAPTIVE or mechanism.clipped_count_stddev is not None:
    return mechanism
  stddev = adaptive_clipping.default_stddev(
    mechanism.noise_multiplier, participation.clients_per_round
  )
  adaptive = dataclasses.replace(mechanism, clipped_count_stddev=stddev)
  if mechanism.target is not None and mechanism.target.rho is not None:
    adaptive.made_for(mechanism.target)
  return adaptive


def _strategy_for_server(
  values: flags.FlagValues,
  schema: sampling.Schema,
  optimization: optimization_options.Optimization,
) -> strategies.Strategy:
  workload = optimization.workload(schema.num_rounds)
  if workload is None or values.mechanism not in registry.KINDS:
    raise ValueError(
      f'--workload={_SERVER} is for strategies, and for server optimizers whose models '
      'are linear in the rounds; not for '
      f'--server_optimizer={optimization.server_optimizer} with '
      f'--mechanism={values.mechanism}.'
    )
  options = registry.check_options(values.mechanism, flags_lib.options_from(values))
  kind = mechanism_lib.kind_for(values.mechanism, schema)
  try:
    return kind.build_for(sampling.limits_of(schema), workload, **options)
  except ValueError as e:
    raise ValueError(
      f'--workload={_SERVER} with --mechanism={values.mechanism}: {e}'
    ) from e
