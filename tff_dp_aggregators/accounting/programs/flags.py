"""Makes mechanisms and inputs of statements from the flags that programs share.

`table` has the flags; `planned` turns their values into the inputs of a statement.
Simulations, which know their clients, use `mechanism_from`, or `joint` for parts of a
model.
"""

import sys
from collections.abc import Iterable
from typing import Any, Optional

import dp_accounting
import msgspec
from absl import flags

from tff_dp_aggregators import sampling
from tff_dp_aggregators import strategies
from tff_dp_aggregators.accounting import calibration
from tff_dp_aggregators.accounting import joint_mechanism
from tff_dp_aggregators.accounting import mechanism as mechanism_lib
from tff_dp_aggregators.accounting import nbafl as nbafl_lib
from tff_dp_aggregators.accounting import noises
from tff_dp_aggregators.accounting.accountants import gaussian
from tff_dp_aggregators.accounting.programs import program
from tff_dp_aggregators.accounting.programs import table
from tff_dp_aggregators.accounting.records import log_participation
from tff_dp_aggregators.accounting.reports import sources
from tff_dp_aggregators.strategies import registry
from tff_dp_aggregators.strategies.strategy import MAX_ROUNDS

_MAX_SECONDS = 60.0  # To build strategies in a search for the number of rounds.
_ROUND_OFF = 1e-12  # Relative error of a sensitivity computed from a strategy.
# Flags that hold for all parts together.
_OF_ALL_PARTS = (
  *('part', 'target_epsilon', 'target_rho', 'target_delta'),
  *('accountant', 'adjacency'),
)
_EXAMPLE = "--part='head: weights=2 3, mechanism=tree, clip_norm=0.3'"
FIND = table.Flag(
  'find',
  ['max_participations'],
  'Find the largest --max_participations that keeps the target.',
)


def target_from(values: flags.FlagValues) -> Optional[mechanism_lib.Target]:
  """Returns the target that flags state; `None` if they state none."""
  if values.target_epsilon is values.target_rho is None:
    return None
  return mechanism_lib.Target(
    values.target_epsilon, values.target_delta, values.accountant, values.target_rho
  )


def groups() -> tuple[program.Group, ...]:
  """The flags that `planned` reads."""
  return (
    ('Participation', table.participation()),
    ('Sampling', table.sampling()),
    ('Mechanism', table.mechanism()),
    ('Where noise is made', table.placement()),
    ('Target', (*table.target(), FIND)),
  )


def all_names() -> tuple[str, ...]:
  """Names of the flags that `planned` reads."""
  return tuple(row.name for _, rows in groups() for row in rows)


def options_from(values: flags.FlagValues) -> dict[str, Optional[int]]:
  """Returns the options of mechanisms; `None` if a flag is not given."""
  return {name: values[name].value for name in registry.options() if name in values}


def planned(
  values: flags.FlagValues, limits: Optional[strategies.Participation] = None
) -> sources.Inputs:
  """Returns the inputs of the statement that the flags ask for."""
  if values.target_delta is None:
    raise ValueError('--target_delta is missing: at which delta is epsilon wanted?')
  if limits is not None:
    _check_beside_log(values)
  if values.part is not None:
    names = (*table.mechanism(), *table.placement(), *table.target(), FIND)
    check_beside_parts(values, table.names(names))
  make = _of_all_weights if values.part is None else _of_parts
  mechanism, target = make(values, limits), target_from(values)
  if limits is not None and mechanism.target is not None:
    raise ValueError(
      '--round_log is of rounds that ran with some noise, which no target finds: give '
      '--noise_multiplier as well, and the report checks that they kept the target.'
    )
  found = 'noise_multiplier' if mechanism.target is not None else values.find
  if limits is None and values.num_rounds is None:
    found = 'num_rounds'
  warn_of_large_delta(values)
  plan = sources.Inputs(
    mechanism,
    values.target_delta,
    values.target_epsilon,
    values.target_rho,
    found,
    values.accountant,
  )
  # If the number of rounds was fixed, the report checks what those that ran have spent.
  is_fixed = 'rounds_fixed_by' in values and values['rounds_fixed_by'].value is not None
  if target is not None and found is None and not is_fixed:
    try:
      plan.check_target(mechanism.event)
    except ValueError as e:
      raise program.CheckFailed(str(e)) from e
  return plan


def warn_of_large_delta(values: flags.FlagValues, seen: Optional[int] = None) -> None:
  """Warns if delta is not below one over the number of clients (flag or `seen`)."""
  num_clients = seen or values.num_clients
  if values.target_delta is None or num_clients is None:
    return
  warning = gaussian.doubt_of_delta(values.target_delta, num_clients)
  if warning is not None:
    print(f'warning: --target_delta: {warning}', file=sys.stderr)


def _of_all_weights(
  values: flags.FlagValues, limits: Optional[strategies.Participation]
) -> joint_mechanism.AnyMechanism:
  if (values.mechanism is None) == (values.strategy_file is None):
    raise ValueError(
      '--mechanism is missing (or give --strategy_file, but not both; of parts of a '
      f'model, --part for each); known are {", ".join(mechanism_lib.names())}.'
    )
  placement = noises.PLACEMENTS.get(values.noise_site or '')
  if placement is not None and placement.is_simulation:
    raise ValueError(
      f'--noise_site={placement.name} is a simulation without a guarantee. Give '
      f'--noise_site={noises.LOCAL.name} for that of what it simulates.'
    )
  stated = (
    values.noise_multiplier,
    target_from(values),
    values.num_rounds if limits is None else limits.num_rounds,
  )
  if stated.count(None) > (1 if values.find is None else 0):
    raise ValueError(
      'give two of --noise_multiplier, --target_epsilon (or --target_rho) and '
      '--num_rounds, or all three with --find.'
    )
  if values.find is not None or stated[2] is None:
    return _searched(values)
  if limits is None:
    return mechanism_from(values, table.schema_from(values))
  strategy = _strategy_that_ran(values)
  if strategy is not None:
    limits = log_participation.of_plan(limits, strategy.num_rounds)
  return mechanism_from(values, limits, strategy)


def _check_beside_log(values: flags.FlagValues) -> None:
  kind = registry.KINDS.get(values.mechanism)
  names = [*table.names(table.sampling()), 'find']
  if kind is None or not kind.adapts:
    names.append('fixed_epoch')
  if values.part is not None:
    names += table.names(table.participation())
  why = (
    'does not go with a round log, which has the rounds and limits of clients that are '
    'not drawn in secret; leave one of them out.'
  )
  program.refuse(values, names, why)


def _strategy_that_ran(values: flags.FlagValues) -> Optional[strategies.Strategy]:
  """The strategy planned for a log's rounds; `None` if it depends on no plan."""
  planned = any(values[name].present for name in table.names(table.participation()))
  if planned and values.num_rounds is None:
    raise ValueError(
      '--num_rounds is missing: with --round_log, flags of participation are its plan.'
    )
  if values.strategy_file is not None:
    strategy = strategies.Strategy.load(values.strategy_file)
    if values.num_rounds not in (None, strategy.num_rounds):
      raise ValueError(
        f'--num_rounds={values.num_rounds}, but the strategy in '
        f'{values.strategy_file} is for {strategy.num_rounds} rounds; leave it out.'
      )
    return strategy
  if not (planned and _has_separation(values)):
    _check_needs_no_plan('--mechanism', values.mechanism)
  if not planned or values.mechanism not in registry.KINDS:
    return None
  return mechanism_lib.strategy_for(
    values.mechanism, table.schema_from(values), **options_from(values)
  )


def _has_separation(values: flags.FlagValues) -> bool:
  return values.min_separation is not None or values.rounds_between is not None


def planned_limits(values: flags.FlagValues) -> Optional[strategies.Participation]:
  """Returns the limits planned for the run of a round log; `None` if not stated."""
  stated = _has_separation(values) or values.max_participations is not None
  if not stated or values.num_rounds is None:
    return None
  # No log shows that clients who are not in it would have kept to fixed epochs.
  return table.limits_from(values, values.num_rounds, fixed_epoch=False)


def _check_needs_no_plan(flag: str, mechanism: str) -> None:
  """Raises ValueError if the strategy depends on planned limits, which a log lacks."""
  kind = registry.KINDS.get(mechanism)
  if kind is not None and kind.adapts:
    raise ValueError(
      f'{flag}: {mechanism} is optimised for limits that were planned, and --round_log '
      'shows which were kept. Give the planned --num_rounds and --min_separation, or '
      '--strategy_file, or the --run_dir or --ledger of the run.'
    )


def mechanism_from(
  values: flags.FlagValues,
  schema: sampling.Schema,
  strategy: Optional[strategies.Strategy] = None,
) -> mechanism_lib.Mechanism:
  """Returns the mechanism of flags, with their noise or the least for the target."""
  name = values.mechanism or mechanism_lib.FROM_FILE
  options = _options(values, schema.num_rounds, strategy)
  if values.noise_multiplier is not None:
    return mechanism_lib.Mechanism(name, schema, values.noise_multiplier, **options)
  return mechanism_lib.Mechanism.for_target(
    name,
    schema,
    values.target_epsilon,
    values.target_delta,
    target_rho=values.target_rho,
    accountant=values.accountant,
    **options,
  )


def _options(
  values: flags.FlagValues,
  num_rounds: int,
  strategy: Optional[strategies.Strategy] = None,
) -> dict[str, Any]:
  if strategy is None and values.strategy_file is not None:
    strategy = strategies.Strategy.load(values.strategy_file)
  names = (*table.names(table.placement()), 'clipped_count_stddev', 'adjacency')
  given = {**options_from(values), **{name: values[name].value for name in names}}
  if values.num_rounds is None:  # A search for rounds may try fewer rounds than bands.
    for kind in registry.KINDS.values():
      for option in kind.options:
        if option.is_within_rounds and given[option.name] is not None:
          given[option.name] = min(given[option.name], num_rounds)
  return {**given, 'strategy': strategy}


def _searched(values: flags.FlagValues) -> mechanism_lib.Mechanism:
  """The mechanism with the most rounds, or participations, that keep the target."""

  def schema(number: int) -> sampling.Schema:
    if values.find is None:
      return table.schema_from(values, number)
    return table.limits_from(values, values.num_rounds, max_participations=number)

  at_most = MAX_ROUNDS
  if values.find is not None:
    limits = table.schema_from(values)
    is_limits = isinstance(limits, strategies.Participation)
    if values.max_participations is not None or not is_limits:
      raise ValueError(
        '--find=max_participations is for limits, without --sampling and '
        '--max_participations, which is what it looks for.'
      )
    at_most = sampling.limits_of(limits).possible_participations
  elif values.strategy_file is not None:
    raise ValueError('--num_rounds is missing: a strategy is for a number of rounds.')
  kind = registry.KINDS.get(values.mechanism)
  independent = next(k.name for k in registry.KINDS.values() if k.is_independent)

  def event(number: int) -> dp_accounting.DpEvent:
    made, seconds, is_free = schema(number), 0.0, False
    options = _options(values, made.num_rounds)
    if kind is not None:
      limits = sampling.limits_of(made)
      own = {o.name: options[o.name] for o in kind.options if options[o.name]}
      is_free = not sampling.is_sampled(made) and kind.is_free(limits, **own)
      seconds = kind.seconds(limits, **own) * (1 if is_free else number.bit_length())
    if values.num_rounds is None and seconds > _MAX_SECONDS:
      raise ValueError(
        f'{number // 2} rounds keep the target; more are not looked for, as their '
        'strategies would take long. Give --num_rounds.'
      )
    if not is_free:
      return mechanism_from(values, made).event
    # The event of independent noise, reduced to allow for round-off of the strategy.
    noise_multiplier = values.noise_multiplier * (1 - _ROUND_OFF)
    options.update(dict.fromkeys(registry.options()))
    return mechanism_lib.Mechanism(independent, made, noise_multiplier, **options).event

  first = mechanism_from(values, schema(1))
  if values.target_rho is not None:
    largest = calibration.largest_by(
      lambda number: mechanism_lib.rho_of(event(number)), values.target_rho, at_most
    )
  else:
    largest = calibration.largest(
      event,
      values.target_epsilon,
      values.target_delta,
      at_most=at_most,
      accountant=values.accountant,
      relation=first.relation,
    )
  if largest == MAX_ROUNDS and values.num_rounds is None:
    raise ValueError(f'{largest} rounds keep the target, or more. Give --num_rounds.')
  return mechanism_from(values, schema(largest))


def check_nbafl(values: flags.FlagValues) -> None:
  """Raises ValueError for flags of NbAFL without --nbafl."""
  if not values.nbafl:
    names = table.names(table.NBAFL)
    program.refuse(values, names, 'is for --nbafl.', but=('nbafl',))


def nbafl(values: flags.FlagValues) -> nbafl_lib.Nbafl:
  """Returns the NbAFL plan that the flags state."""
  names = (*table.OF_NBAFL, 'num_exposures', 'min_examples', 'calibration')
  given = {n: values[n].value for n in names if values[n].value is not None}
  arguments = {name.replace('target_', ''): each for name, each in given.items()}
  try:
    return nbafl_lib.Nbafl(**arguments)
  except TypeError as e:
    raise ValueError(f'--nbafl needs --{", --".join(names)}: {e}.') from e


# Parts of a model, each with its own mechanism.


def _of_parts(
  values: flags.FlagValues, limits: Optional[strategies.Participation]
) -> joint_mechanism.AnyMechanism:
  if limits is None and values.num_rounds is None:
    raise ValueError('--num_rounds is missing, which is not looked for with --part.')
  mechanism = joint(values, limits or table.schema_from(values))
  if limits is not None:
    for part in mechanism.parts:
      _check_needs_no_plan(f'--part={part.name}', part.mechanism.name)
  return mechanism


def check_beside_parts(values: flags.FlagValues, names: Iterable[str]) -> None:
  """Raises ValueError for flags that are for one mechanism for all weights."""
  why = 'does not go with --part: it is of one mechanism for all weights.'
  program.refuse(values, names, why, but=_OF_ALL_PARTS)


def joint(
  values: flags.FlagValues, schema: sampling.Schema
) -> joint_mechanism.JointMechanism:
  """Returns the joint mechanism of --part, with the least noise if none is stated."""
  settings = msgspec.defstruct(
    'Settings',
    [
      *(('name', str), ('weights', str), ('clip_norm', float)),
      ('mechanism', str, table.DEFAULT_OF_PARTS),
      *((name, Optional[float], None) for name in ('share', 'noise_multiplier')),
      *((name, Optional[int], None) for name in registry.options()),
    ],
    forbid_unknown_fields=True,
  )
  parsed: list[Any] = [
    program.settings_of('part', text, settings, _EXAMPLE) for text in values.part
  ]
  stated = [each.noise_multiplier for each in parsed]
  has_noise, target = any(noise is not None for noise in stated), target_from(values)
  shares = {each.name: each.share for each in parsed if each.share is not None}
  if (has_noise or target is None) and (shares or not all(stated)):
    raise ValueError(
      '--part: without a target each part has its noise_multiplier and none a share. '
      'Or give --target_epsilon, and no noise_multiplier.'
    )
  try:
    parts = [
      joint_mechanism.JointPart(
        each.name,
        each.weights,
        mechanism_lib.Mechanism(
          each.mechanism,
          schema,
          each.noise_multiplier or 1.0,
          adjacency=values.adjacency,
          options={name: getattr(each, name) for name in registry.options()},
        ),
        each.clip_norm,
      )
      for each in parsed
    ]
    if has_noise or target is None:
      return joint_mechanism.JointMechanism(tuple(parts))
    return joint_mechanism.JointMechanism.for_target(
      parts,
      target.epsilon,
      target.delta,
      target_rho=target.rho,
      shares=shares or None,
      accountant=values.accountant,
    )
  except ValueError as e:
    raise ValueError(f'--part: {e}') from e
