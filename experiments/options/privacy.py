"""The privacy mechanism, its target or noise, and clipping.

The flags are those of `report` and `plan`; mechanisms with their options, accountants
and neighbouring relations that are registered are among them.
"""

import contextlib
import dataclasses
import math
import sys
import threading
from collections.abc import Iterator, Mapping
from typing import Any, Optional

from absl import flags

from tff_dp_aggregators import strategies
from tff_dp_aggregators.accounting import mechanism as mechanism_lib
from tff_dp_aggregators.accounting import schemas
from tff_dp_aggregators.accounting.accountants import gaussian
from tff_dp_aggregators.accounting.programs import flags as flags_lib
from tff_dp_aggregators.strategies import registry

from . import of_task
from . import optimization as optimization_options
from . import participation as participation_options

NONE = 'none'  # The mechanism of training without privacy.
_DEFAULT = 'banded'
_DEFAULT_TARGET_EPSILON = 8.0
_PREFIX_SUMS, _SERVER = 'prefix_sums', 'server'
# Seconds after which the search for the noise is no surprise only if it is announced.
_SOON = 1.5


@dataclasses.dataclass(frozen=True)
class Privacy:
  """The mechanism, with its noise.

  Attributes:
    mechanism: Privacy mechanism; `None` for no privacy.
    clip_norm: L2 bound of one client's contribution to one round, the first one if it
      adapts.
    target_epsilon: What the noise was found for; `None` if it was given.
    delta: At which epsilon is told.
    simulated_cohort_scale: How many times larger the cohort is that the noise is for;
      above 1 there is no guarantee.
  """

  mechanism: Optional[mechanism_lib.Mechanism]
  clip_norm: float
  target_epsilon: Optional[float]
  delta: float
  simulated_cohort_scale: float


def names() -> tuple[str, ...]:
  """The flags, which mechanisms that are registered later add to."""
  return (
    *flags_lib.mechanism_flags(),
    'workload',
    'clip_norm',
    'noise_multiplier',
    'target_epsilon',
    'target_delta',
    'accountant',
    'adjacency',
    'simulated_cohort_scale',
  )


def not_without() -> tuple[str, ...]:
  """The flags that say nothing of training without privacy, which refuses them."""
  return (*(name for name in names() if name != 'mechanism'), 'secret_noise')


def define(values: flags.FlagValues, tasks: Mapping[str, Any]) -> None:
  """Defines the flags.

  Args:
    values: Where to define them.
    tasks: The tasks by name, for defaults.
  """
  flags_lib.define_mechanism(
    values,
    f'Privacy mechanism, {NONE} for no privacy; or give --strategy_file. Default: '
    f'{_DEFAULT}.',
    none=NONE,
  )
  flags.DEFINE_enum(
    'workload',
    _PREFIX_SUMS,
    [_PREFIX_SUMS, _SERVER],
    "What the mechanism's strategy is the best for: sums of all rounds, or what "
    '--server_optimizer makes of them with its momentum and learning rates. Gaussian '
    'noise and trees are the same for both.',
    flag_values=values,
  )
  of_task.define(
    values,
    tasks,
    flags.DEFINE_float,
    'clip_norm',
    "L2 bound of one client's contribution to one round, with --mechanism=laplace L1 "
    'bound; with --clipped_count_stddev that of the first, from which it moves to the '
    'median of the norms.',
  )
  deltas = of_task.in_words(tasks, 'target_delta')
  flags_lib.define_noise(
    values,
    f'Default, if --noise_multiplier is not given either: {_DEFAULT_TARGET_EPSILON:g}.',
    delta=f'; well below 1 / num_clients. Default: {deltas}',
  )
  flags_lib.define_accounting(values)
  flags.DEFINE_float(
    'simulated_cohort_scale',
    1.0,
    'Add noise as if cohort and population were so many times larger. Above 1 the run '
    'carries no guarantee: it shows what training with so many clients would come to.',
    flag_values=values,
  )


def from_flags(
  values: flags.FlagValues,
  participation: participation_options.Participation,
  optimization: optimization_options.Optimization,
) -> Privacy:
  """What the flags say, with the noise multiplier that the privacy target needs.

  Args:
    values: Parsed flags, with the task's defaults.
    participation: Who takes part when.
    optimization: What the server makes of the rounds.

  Raises:
    ValueError: If a value is out of range, or flags contradict each other; the message
      says what would be right.
  """
  _check_together(values)
  if not 0 < values.clip_norm < math.inf:
    raise ValueError(f'clip_norm must be positive and finite; got {values.clip_norm}.')
  gaussian.check_delta(values.target_delta, 'target_delta')
  scale = values.simulated_cohort_scale
  if not 1 <= scale < math.inf:
    raise ValueError(
      f'simulated_cohort_scale must be finite and at least 1; got {scale}.'
    )
  mechanism = target_epsilon = None
  if values.mechanism != NONE:
    mechanism = _mechanism(values, participation.schema, optimization)
    target_epsilon = _target_epsilon(values, mechanism)
  return Privacy(
    mechanism=mechanism,
    clip_norm=values.clip_norm,
    target_epsilon=target_epsilon,
    delta=values.target_delta,
    simulated_cohort_scale=scale,
  )


def _check_together(values: flags.FlagValues) -> None:
  """Refuses flags that contradict each other, and puts the defaults of the others."""
  if values.mechanism == NONE:
    for name in not_without():
      if values[name].present:
        raise ValueError(f'--{name} does not go with --mechanism={NONE}.')
    return
  if values.strategy_file is None:
    values.set_default('mechanism', _DEFAULT)
  else:
    for name in ('mechanism', *registry.options()):
      if values[name].present:
        raise ValueError(
          f'--{name} does not go with --strategy_file, which has the strategy.'
        )
    if values.workload != _PREFIX_SUMS:
      raise ValueError(
        f'--workload={values.workload} does not go with --strategy_file, which has the '
        'strategy, whatever it is the best for.'
      )
  if values.noise_multiplier is None:
    values.set_default('target_epsilon', _DEFAULT_TARGET_EPSILON)
    return
  if values.target_epsilon is not None:
    raise ValueError(
      'give exactly one of --noise_multiplier and --target_epsilon: the noise '
      'follows from the target, and the other way round.'
    )
  if values.accountant is not None:
    raise ValueError(
      '--accountant says by whose epsilon the noise for a target is found, and '
      '--noise_multiplier says the noise; leave one of them out. A report of the run '
      'takes --accountant as well.'
    )


def _mechanism(
  values: flags.FlagValues,
  schema: schemas.Schema,
  optimization: optimization_options.Optimization,
) -> mechanism_lib.Mechanism:
  """The mechanism that the flags ask for, which may take a while to find."""
  name = values.mechanism or f'the strategy of {values.strategy_file}'
  _check_adjacency(values.adjacency, schema)
  with _announced(
    f'Looking for strategy and noise: {name}, {schema.num_rounds} rounds.'
  ):
    strategy = None
    if values.workload == _SERVER:
      strategy = _strategy_for_server(values, schema, optimization)
    return flags_lib.mechanism_from(values, schema, strategy)


def _check_adjacency(adjacency: Optional[str], schema: schemas.Schema) -> None:
  """Refuses neighbours that a run's ledger without sampling has no events for."""
  if adjacency is None or schemas.is_sampled(schema):
    return
  own = schemas.adjacency(schemas.relations(schema)[0])
  if adjacency != own:
    raise ValueError(
      f'--adjacency={adjacency} does not go with a run without sampling, whose ledger '
      f'has events for {own}. Leave it out; for a plan, tff-dp-report takes it.'
    )


def _strategy_for_server(
  values: flags.FlagValues,
  schema: schemas.Schema,
  optimization: optimization_options.Optimization,
) -> strategies.Strategy:
  """The best strategy for the server's momentum and learning rates."""
  workload = optimization.workload(schema.num_rounds)
  if workload is None:
    raise ValueError(
      f'--workload={_SERVER} does not go with --server_optimizer='
      f'{optimization.server_optimizer}, whose steps are not linear in the rounds.'
    )
  if values.mechanism not in registry.KINDS:
    raise ValueError(
      f'--workload={_SERVER} does not go with --mechanism={values.mechanism}, whose '
      'noise is independent and the same for every workload; leave it out.'
    )
  options = registry.check_options(values.mechanism, flags_lib.options_from(values))
  kind = registry.kind(values.mechanism)
  try:
    return kind.build_for(schemas.limits(schema), workload, **options)
  except ValueError as e:
    if not optimization.has_schedule:
      raise
    raise ValueError(
      f'--workload={_SERVER} with --mechanism={values.mechanism} and '
      '--server_learning_rate_schedule='
      f'{optimization.server_learning_rate_schedule}: {e}'
    ) from e


def _target_epsilon(
  values: flags.FlagValues, mechanism: mechanism_lib.Mechanism
) -> Optional[float]:
  """The target that the noise was found for, as far as the report will say the same."""
  if values.noise_multiplier is not None:
    return None
  target: float = values.target_epsilon
  if values.accountant is not None and mechanism.epsilon(values.target_delta) > target:
    return None  # The tightest sound one, which the report asks, says more than it.
  return target


@contextlib.contextmanager
def _announced(text: str) -> Iterator[None]:
  """Says what is done if it takes longer than people wait without a word."""
  timer = threading.Timer(_SOON, lambda: print(text, file=sys.stderr, flush=True))
  timer.daemon = True
  timer.start()
  try:
    yield
  finally:
    timer.cancel()
