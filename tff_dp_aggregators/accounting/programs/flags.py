"""The flags of mechanism, participation and target, checked together.

The programs of this package share them, so that a mechanism is spelled the same
everywhere. `define` defines them, `planned` turns their values into the inputs
of a statement. A program with defaults of its own, or which knows some of it from
elsewhere, as a simulation knows its clients, defines them group by group, and takes
`schema_from` and `mechanism_from`; nothing else reads them.
"""

import dataclasses
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Callable, Optional, cast

import dp_accounting
from absl import flags

from tff_dp_aggregators import sampling
from tff_dp_aggregators import strategies
from tff_dp_aggregators.accounting import accountants
from tff_dp_aggregators.accounting import calibration
from tff_dp_aggregators.accounting import joint_mechanism
from tff_dp_aggregators.accounting import mechanism as mechanism_lib
from tff_dp_aggregators.accounting import sites
from tff_dp_aggregators.accounting.accountants import gaussian
from tff_dp_aggregators.accounting.programs import parts as parts_lib
from tff_dp_aggregators.accounting.programs import program
from tff_dp_aggregators.accounting.programs import scheme_flags
from tff_dp_aggregators.accounting.programs import spelling
from tff_dp_aggregators.accounting.records import log_participation
from tff_dp_aggregators.accounting.reports import inputs as inputs_lib
from tff_dp_aggregators.accounting.reports import terms
from tff_dp_aggregators.base import rounding
from tff_dp_aggregators.strategies import registry
from tff_dp_aggregators.strategies import size

# What a search for the number of rounds may take to build strategies.
_MAX_SECONDS = 60.0
# Relative, of a sensitivity that is computed from a strategy.
_ROUND_OFF = 1e-12

TARGET_FLAGS = (
  'noise_multiplier',
  'target_epsilon',
  'target_delta',
  'find',
  'accountant',
  'adjacency',
)


def participation_flags() -> tuple[str, ...]:
  """Names of the flags that state rounds and limits on participation."""
  return ('num_rounds', *(flag.name for flag in scheme_flags.limits_flags()))


def sampling_flags() -> tuple[str, ...]:
  """Names of the flags that state how clients are drawn."""
  others = (
    name for name in scheme_flags.all_flags() if name not in participation_flags()
  )
  return ('sampling', *others)


def all_names() -> tuple[str, ...]:
  """Of all flags that `define` defines."""
  return tuple(name for _, names in groups() for name in names)


def groups() -> tuple[program.Group, ...]:
  """All flags, under the headings under which `--help` shows them."""
  return (
    ('Participation', participation_flags()),
    ('Sampling', sampling_flags()),
    ('Mechanism', (*mechanism_flags(), parts_lib.FLAG)),
    ('Where noise is made', site_flags()),
    ('Target', TARGET_FLAGS),
  )


def define(values: flags.FlagValues) -> None:
  """Defines the flags.

  Args:
    values: Where to define them.
  """
  define_participation(values)
  define_mechanism(values)
  parts_lib.define(values)
  define_site(values)
  define_sampling(values)
  define_target(values)


def mechanism_flags() -> tuple[str, ...]:
  """Names of the flags that state a mechanism, but for its noise."""
  options = registry.options()
  return ('mechanism', 'strategy_file', *options, 'clipped_count_stddev')


def all_mechanism_flags() -> tuple[str, ...]:
  """Names of the flags that state a mechanism, its noise and its target."""
  return (*mechanism_flags(), *site_flags(), *TARGET_FLAGS)


def site_flags() -> tuple[str, ...]:
  """Names of the flags that state who makes the noise, and the numbers of that."""
  return ('noise_site', *sites.options(), sites.SERVER_NOISE)


def define_mechanism(
  values: flags.FlagValues,
  text: str = 'Which mechanism; or give --strategy_file.',
  none: Optional[str] = None,
) -> None:
  """Defines the flags of the mechanism, but for its noise.

  Args:
    values: Where to define them.
    text: What --help says of --mechanism.
    none: Its value that asks for no mechanism, where that may be.
  """
  names = list(mechanism_lib.names()) + ([] if none is None else [none])
  flags.DEFINE_enum('mechanism', None, names, text, flag_values=values)
  flags.DEFINE_string(
    'strategy_file',
    None,
    'A strategy saved by Strategy.save (.json or .npz), instead of --mechanism.',
    flag_values=values,
  )
  define_options(values)
  flags.DEFINE_float(
    'clipped_count_stddev',
    None,
    'With adaptive clipping: standard deviation of the noise of the count of small '
    'norms, in clients. --noise_multiplier then covers count and values.',
    flag_values=values,
  )


def define_options(values: flags.FlagValues, is_comparison: bool = False) -> None:
  """Defines a flag for each option of mechanisms.

  Args:
    values: Where to define them.
    is_comparison: Whether the program compares mechanisms, and so leaves out what a
      comparison does not pass on.
  """
  for name, by_kind in registry.options().items():
    said = {
      kind: option.help
      for kind, option in by_kind.items()
      if option.is_compared or not is_comparison
    }
    if said:
      flags.DEFINE_integer(name, None, registry.describe(said), flag_values=values)


def options_from(values: flags.FlagValues) -> dict[str, Optional[int]]:
  """The values of the flags that `define_options` defined; `None` where not given."""
  return {name: values[name].value for name in registry.options() if name in values}


def define_site(
  values: flags.FlagValues, defaults: Optional[Mapping[str, str]] = None
) -> None:
  """Defines the flags that state who makes the noise.

  Args:
    values: Where to define them.
    defaults: What the program puts where one of the numbers is left out, in words, if
      it is not what `terms.describe` says.
  """
  kinds = '; '.join(f'{name}: {site.help}' for name, site in terms.SITES.items())
  flags.DEFINE_enum(
    'noise_site',
    None,
    list(sites.SITES),
    f'Who makes the noise. {kinds}. Default: {sites.SERVER.name}; of integers '
    f'{sites.CLIENTS.name}.',
    flag_values=values,
  )
  defaults = defaults or {}
  for name in sites.options():
    text = terms.describe(name)
    if name in defaults:
      text = f'{text.split(" Default: ")[0].rstrip(".")}. Default: {defaults[name]}.'
    flags.DEFINE_integer(name, None, text, flag_values=values)
  flags.DEFINE_float(
    sites.SERVER_NOISE,
    None,
    f'With --noise_site={sites.CLIENTS_AND_SERVER.name}: standard deviation of the '
    "server's noise of the sum over the clip norm, 0 for none. --noise_multiplier is "
    "that of one client's noise.",
    flag_values=values,
  )


def define_participation(values: flags.FlagValues) -> None:
  """Defines the number of rounds and the limits on participation."""
  flags.DEFINE_integer(
    'num_rounds',
    None,
    'Rounds in all. Left out, the most that keep a target.',
    flag_values=values,
  )
  define_limits(values)


def define_limits(
  values: flags.FlagValues, defaults: Optional[Mapping[str, str]] = None
) -> None:
  """Defines the flags of limits on participation, but for the number of rounds.

  Args:
    values: Where to define them.
    defaults: What the program puts where one is left out, in words, if it is not the
      usual.
  """
  for flag in scheme_flags.limits_flags():
    _define(flag, values, (defaults or {}).get(flag.name))


def define_sampling(
  values: flags.FlagValues, called: Optional[Mapping[str, str]] = None
) -> None:
  """Defines the flags that state how clients are drawn.

  Args:
    values: Where to define them.
    called: Flags that have another name in this program, and are defined elsewhere,
      with that name; as for `schema_from`.
  """
  called = called or {}
  *first, last = (stated.help for stated in scheme_flags.STATED.values())
  text = (
    f'What may be assumed about how clients are drawn: {"; ".join(first)}; or {last}.'
  )
  text = spelling.spelled(text, {f'--{name}': f'--{c}' for name, c in called.items()})
  flags.DEFINE_enum(
    'sampling',
    sampling.Limits.flag,
    [kind.flag for kind in scheme_flags.STATED],
    text,
    flag_values=values,
  )
  for name in sampling_flags()[1:]:
    if name not in called:
      _define(scheme_flags.all_flags()[name], values)


def _define(
  flag: scheme_flags.Flag, values: flags.FlagValues, default: Optional[str] = None
) -> None:
  default = flag.default if default is None else default
  text = f'{flag.help} Default: {default}.' if default else flag.help
  if flag.type is bool:
    flags.DEFINE_bool(flag.name, False, text, flag_values=values)
  else:
    define = {int: flags.DEFINE_integer, float: flags.DEFINE_float}[flag.type]
    define(flag.name, None, text, flag_values=values)


def define_target(values: flags.FlagValues) -> None:
  """Defines the flags of noise, target, accountant, and what is looked for."""
  define_noise(
    values,
    'With it, one of --noise_multiplier and --num_rounds may be left out; if both are '
    'given, they are checked against it.',
  )
  define_accounting(values)
  flags.DEFINE_enum(
    'find',
    None,
    ['max_participations'],
    'Find the largest --max_participations that keeps the target with this noise and '
    'number of rounds.',
    flag_values=values,
  )


def define_noise(
  values: flags.FlagValues,
  epsilon: str,
  delta: str = '',
) -> None:
  """Defines the flags of noise and target.

  Args:
    values: Where to define them.
    epsilon: What --help says of the target besides that it is one.
    delta: What it says of its delta besides what that is.
  """
  flags.DEFINE_float(
    'noise_multiplier',
    None,
    'Standard deviation of the noise over the clip norm. Left out, the least that '
    'keeps a target.',
    flag_values=values,
  )
  flags.DEFINE_float(
    'target_epsilon', None, f'Privacy target. {epsilon}', flag_values=values
  )
  flags.DEFINE_float(
    'target_delta',
    None,
    f'Delta of the guarantee{delta}.',
    flag_values=values,
  )


def define_accounting(values: flags.FlagValues) -> None:
  """Defines the flags of whose epsilon counts, and for which neighbours."""
  flags.DEFINE_enum(
    'accountant',
    None,
    sorted(accountants.ACCOUNTANTS),
    'Whose epsilon counts. Default: the tightest sound one, for limits on '
    'participation the exact one.',
    flag_values=values,
  )
  flags.DEFINE_enum(
    'adjacency',
    None,
    sorted(sampling.ADJACENCIES),
    'Neighbouring relation. Default: that of the schema, zero_out without sampling.',
    flag_values=values,
  )


def planned(
  values: flags.FlagValues, limits: Optional[strategies.Participation] = None
) -> inputs_lib.Inputs:
  """What the flags ask for.

  Args:
    values: Parsed flags.
    limits: Rounds and limits on participation that a round log shows. Those in flags
      are then the planned ones: the strategy is the best for them, and accounted for
      under those that the log shows.

  Raises:
    program.CheckFailed: If noise, rounds and target are given and do not fit.
    ValueError: If flags are missing, contradict each other or are out of range.
  """
  delta = values.target_delta
  if delta is None:
    raise ValueError('--target_delta is missing: at which delta is epsilon wanted?')
  gaussian.check_delta(delta, '--target_delta')
  if values.target_epsilon is not None:
    gaussian.check_epsilon(values.target_epsilon, '--target_epsilon')
    if values.target_epsilon == 0:
      raise ValueError('--target_epsilon must be positive; got 0.')
  if values[parts_lib.FLAG].present:
    parts_lib.check_others(values, all_mechanism_flags())
  elif (values.mechanism is None) == (values.strategy_file is None):
    raise ValueError(
      '--mechanism is missing (or give --strategy_file, but not both; of parts of a '
      f'model, --{parts_lib.FLAG} for each); known are '
      f'{", ".join(mechanism_lib.names())}.'
    )
  if limits is not None:
    for name in (*sampling_flags(), 'find'):
      if values[name].present:
        raise ValueError(
          f'--{name} does not go with a round log, {_of_log(name)}. Leave it out.'
        )
  if values[parts_lib.FLAG].present:
    mechanism, found = _of_parts(values, limits)
  else:
    mechanism, found = _of_all_weights(values, limits)
  target = values.target_epsilon
  warn_of_large_delta(values)
  plan = inputs_lib.Inputs(mechanism, delta, target, found, values.accountant)
  if target is not None and found is None:
    remedy = 'Leave out --target_epsilon for a report of what these rounds spent.'
    if limits is None:
      remedy = _leave_out(plan, values.strategy_file is None)
    _check_target(plan, remedy)
  return plan


def warn_of_large_delta(values: flags.FlagValues) -> None:
  """Warns of a delta that is not below one over the population, if both are given."""
  if values.target_delta is None or values.population is None:
    return
  doubt = gaussian.doubt_of_delta(values.target_delta, values.population)
  if doubt is not None:
    print(f'warning: --target_delta: {doubt}', file=sys.stderr)


def _of_log(name: str) -> str:
  """What a round log says of a flag."""
  if name in sampling_flags():
    return (
      'which shows who was in which round, and sampling helps only where that is '
      'kept secret; from a log, limits on participation are taken'
    )
  return 'whose rounds are what was run'


def _of_all_weights(
  values: flags.FlagValues, limits: Optional[strategies.Participation]
) -> tuple[joint_mechanism.AnyMechanism, Optional[str]]:
  """The mechanism of all weights, and what of it was found."""
  _check_two_of_three(values, limits)
  _check_guarantee(values)
  if values.find is not None:
    return _max_participations(values), values.find
  if limits is None and values.num_rounds is None:
    return _max_rounds(values), 'num_rounds'
  found = 'noise_multiplier' if values.noise_multiplier is None else None
  if limits is None:
    return mechanism_from(values, schema_from(values)), found
  strategy = _strategy_that_ran(values)
  if strategy is not None:
    limits = log_participation.in_longer_run(limits, strategy.num_rounds)
  return mechanism_from(values, limits, strategy), found


def _strategy_that_ran(values: flags.FlagValues) -> Optional[strategies.Strategy]:
  """The strategy of the rounds in a log; `None` for the one of a kind without choice.

  The best strategy for the limits that a log shows is another one than the best for
  those that were planned, and its noise hides another number of rounds.

  Raises:
    ValueError: If the flags do not tell which one ran.
  """
  planned = [name for name in participation_flags() if values[name].present]
  if planned and values.num_rounds is None:
    raise ValueError(
      f'--{planned[0]} needs --num_rounds as well: with --round_log both say for which '
      'rounds and limits the run was planned.'
    )
  if values.strategy_file is not None:
    strategy = _load(values.strategy_file)
    if values.num_rounds not in (None, strategy.num_rounds):
      raise ValueError(
        f'--num_rounds={values.num_rounds}, but the strategy in '
        f'{values.strategy_file} is for {strategy.num_rounds} rounds. Leave it out, or '
        'give the strategy that ran.'
      )
    return strategy
  kind = registry.KINDS.get(values.mechanism)
  if not (planned and _has_separation(values)):
    _check_needs_no_plan('--mechanism', values.mechanism)
  if not planned or kind is None:
    return None
  return _mechanism(values, schema_from(values), 1.0).strategy


def _has_separation(values: flags.FlagValues) -> bool:
  return values.min_separation is not None or values.rounds_between is not None


def planned_limits(values: flags.FlagValues) -> Optional[strategies.Participation]:
  """Limits that were planned for what a round log is of; `None` if none are stated.

  Of fixed epochs only how far rounds are apart, and how many there are: no log shows
  that differences are multiples in the rounds that others might have had.

  Args:
    values: Parsed flags.

  Raises:
    ValueError: If flags contradict each other or are out of range.
  """
  stated = _has_separation(values) or values.max_participations is not None
  if not stated or values.num_rounds is None:
    return None
  limits = limits_from(values, values.num_rounds)
  return dataclasses.replace(limits, fixed_epoch=False)


def _check_needs_no_plan(flag: str, mechanism: str) -> None:
  """Refuses a log alone for a mechanism whose strategy depends on limits."""
  kind = registry.KINDS.get(mechanism)
  if kind is None or not kind.adapts:
    return
  raise ValueError(
    f'{flag}: {mechanism} is optimised for limits on participation, and --round_log '
    'shows which were kept, not for which the strategy that ran was optimised. Give '
    '--num_rounds and --min_separation as they were planned, from which it is built '
    'again; or --strategy_file with that strategy; or the run itself: its --run_dir, '
    'or its --ledger with the planned limits, whose checksum shows that it is the one.'
  )


def _of_parts(
  values: flags.FlagValues, limits: Optional[strategies.Participation]
) -> tuple[joint_mechanism.AnyMechanism, Optional[str]]:
  """The mechanisms of parts, and what of them was found."""
  if limits is None and values.num_rounds is None:
    raise ValueError(
      '--num_rounds is missing: the most rounds are looked for with one '
      f'--noise_multiplier, and with --{parts_lib.FLAG} each part has its own.'
    )
  parts = parts_lib.parse(values[parts_lib.FLAG].value)
  if limits is not None:
    _check_parts_of_log(values, parts)
  target, found = None, None
  if values.target_epsilon is not None and not parts_lib.have_noise(parts):
    target = mechanism_lib.Target(values.target_epsilon, values.target_delta)
    found = 'noise_multiplier'
  schema = limits or schema_from(values)
  joint = parts_lib.joint(parts, schema, target, values.accountant, values.adjacency)
  return joint, found


def _check_parts_of_log(values: flags.FlagValues, parts: Sequence[Any]) -> None:
  """Refuses a log where it does not tell which strategies of parts ran."""
  for name in participation_flags():
    if values[name].present:
      raise ValueError(
        f'--{name} does not go with --{parts_lib.FLAG} and --round_log. Give the '
        'ledger of the run as well, whose events are for the planned limits.'
      )
  for part in parts:
    _check_needs_no_plan(f'--{parts_lib.FLAG}={part.name}', part.mechanism)


def schema_from(
  values: flags.FlagValues,
  num_rounds: Optional[int] = None,
  called: Optional[Mapping[str, str]] = None,
) -> sampling.Schema:
  """The participation schema that the flags state.

  Args:
    values: Parsed flags.
    num_rounds: Instead of --num_rounds.
    called: Flags that have another name in this program, with that name. Population
      and cohort count unless a flag says otherwise how many clients a round has.

  Raises:
    ValueError: If flags contradict each other or are out of range.
  """
  kind = sampling.for_flag(values.sampling)
  _check_flags_of(kind, values)
  with spelling.as_flags(spelling.of_schema(kind, called)):
    return scheme_flags.scheme_from(
      kind,
      values.num_rounds if num_rounds is None else num_rounds,
      _given(kind, values, called or {}),
    )


def cohort_flag(values: flags.FlagValues) -> Optional[str]:
  """The flag that is given and says how many clients a round has, if there is one."""
  return _cohort_flag(sampling.for_flag(values.sampling), values)


def _cohort_flag(
  kind: type[sampling.Scheme], values: flags.FlagValues
) -> Optional[str]:
  names = (flag.name for flag in scheme_flags.STATED[kind].own)
  return next((each for each in names if each in values and values[each].present), None)


def _given(
  kind: type[sampling.Scheme], values: flags.FlagValues, called: Mapping[str, str]
) -> dict[str, Any]:
  of_cohorts = (scheme_flags.POPULATION.name, scheme_flags.COHORT.name)
  is_said = _cohort_flag(kind, values) is not None
  stated = {}
  for flag in scheme_flags.STATED[kind].flags:
    if flag.name in values:
      stated[flag.name] = values[flag.name].value
    elif flag.name in called and not (is_said and flag.name in of_cohorts):
      stated[flag.name] = values[called[flag.name]].value
  return {name: value for name, value in stated.items() if value is not None}


def _check_flags_of(kind: type[sampling.Scheme], values: flags.FlagValues) -> None:
  """Refuses flags of other kinds of schema."""
  own = {flag.name for flag in scheme_flags.STATED[kind].flags}
  for name in (*participation_flags()[1:], *sampling_flags()[1:]):
    if name in own or name not in values or not values[name].present:
      continue
    if name in participation_flags():
      raise ValueError(
        f'--{name} does not go with --sampling={values.sampling}: sampling decides in '
        'which rounds a client takes part.'
      )
    having = ' or '.join(
      each.flag
      for each, stated in scheme_flags.STATED.items()
      if name in [flag.name for flag in stated.flags]
    )
    if kind.is_sampled:
      raise ValueError(f'--{name} is for --sampling={having}.')
    raise ValueError(
      f'--{name} needs --sampling={having}: without it nothing is assumed about how '
      'clients are drawn.'
    )


def limits_from(
  values: flags.FlagValues,
  num_rounds: int,
  max_participations: Optional[int] = None,
) -> strategies.Participation:
  """The limits on participation that flags state.

  Args:
    values: Parsed flags.
    num_rounds: Rounds in all.
    max_participations: Instead of --max_participations.

  Raises:
    ValueError: If flags contradict each other or are out of range.
  """
  given = _given(sampling.Limits, values, {})
  if max_participations is not None:
    given['max_participations'] = max_participations
  with spelling.as_flags(spelling.of_schema(sampling.Limits)):
    limits: strategies.Participation = scheme_flags.scheme_from(  # type: ignore[assignment]
      sampling.Limits, num_rounds, given
    )
    return limits


def _check_two_of_three(
  values: flags.FlagValues, limits: Optional[strategies.Participation]
) -> None:
  missing = [
    name
    for name in ('noise_multiplier', 'target_epsilon', 'num_rounds')
    if values[name].value is None and not (name == 'num_rounds' and limits is not None)
  ]
  if values.find is not None and missing:
    raise ValueError(
      f'--find={values.find} needs --noise_multiplier, --target_epsilon and '
      f'--num_rounds; missing: {", ".join("--" + name for name in missing)}.'
    )
  if values.find is not None and values.max_participations is not None:
    raise ValueError(
      '--max_participations is what --find looks for; leave one of them out.'
    )
  if len(missing) > 1:
    raise ValueError(
      'give two of --noise_multiplier, --target_epsilon and --num_rounds, and the '
      f'third is found; missing: {", ".join("--" + name for name in missing)}.'
    )


def _check_guarantee(values: flags.FlagValues) -> None:
  """Refuses a simulation of noise, of which there is nothing to state."""
  site = sites.SITES.get(values.noise_site or '')
  if site is not None and site.is_simulation:
    raise ValueError(
      f'--noise_site={site.name} has no guarantee that could be stated: '
      f'{terms.SITES[site.name].help}. Give --noise_site={sites.LOCAL.name} for the '
      'guarantee of what it simulates.'
    )


def mechanism_from(
  values: flags.FlagValues,
  schema: sampling.Schema,
  strategy: Optional[strategies.Strategy] = None,
) -> mechanism_lib.Mechanism:
  """The mechanism that the flags state, with its noise or the least for the target.

  Args:
    values: Parsed flags, among them --noise_multiplier, or --target_epsilon and
      --target_delta.
    schema: Who takes part when.
    strategy: The mechanism's strategy, if it is another than the best for prefix sums.

  Raises:
    ValueError: If flags contradict each other or are out of range, or a file cannot be
      read.
  """
  given = {} if strategy is None else {'strategy': strategy}
  if values.noise_multiplier is not None:
    return _mechanism(values, schema, values.noise_multiplier, **given)
  with spelling.as_flags(spelling.of_mechanism(schema)):
    return mechanism_lib.Mechanism.for_target(
      values.mechanism or mechanism_lib.FROM_FILE,
      schema,
      values.target_epsilon,
      values.target_delta,
      accountant=values.accountant,
      **{**_options(values), **given},
    )


def spelled(message: str, more: Iterable[str] = ()) -> str:
  """A message with the names of arguments as the flags are spelled.

  Args:
    message: Which one.
    more: Names of flags besides those of who makes the noise.

  Example:
    >>> spelled('noise_site=local does not go with skellam noise.')
    '--noise_site=local does not go with skellam noise.'
  """
  return spelling.spelled(message, {**spelling.of_sites(), **spelling.of_flags(more)})


def _mechanism(
  values: flags.FlagValues,
  schema: sampling.Schema,
  noise_multiplier: float,
  **more: Any,
) -> mechanism_lib.Mechanism:
  options = {**_options(values), **more}
  if values.num_rounds is None and values.mechanism in registry.KINDS:
    # While rounds are looked for there may be fewer of them than bands.
    kind = registry.kind(values.mechanism)
    options.update(_of_kind(values, kind, schema.num_rounds))
  with spelling.as_flags(spelling.of_mechanism(schema)):
    return mechanism_lib.Mechanism(
      values.mechanism or mechanism_lib.FROM_FILE, schema, noise_multiplier, **options
    )


def _options(values: flags.FlagValues) -> dict[str, Any]:
  options: dict[str, Any] = dict(options_from(values))
  for name in site_flags():
    options[name] = values[name].value
  options['clipped_count_stddev'] = values.clipped_count_stddev
  options['adjacency'] = values.adjacency
  if values.strategy_file is not None:
    options['strategy'] = _load(values.strategy_file)
  return options


def _load(path: str) -> strategies.Strategy:
  try:
    return strategies.Strategy.load(path)
  except (OSError, ValueError) as e:
    raise ValueError(f'--strategy_file cannot be read: {e}') from e


def _max_rounds(values: flags.FlagValues) -> mechanism_lib.Mechanism:
  if values.strategy_file is not None:
    raise ValueError('--num_rounds is missing: a strategy is for a number of rounds.')

  def schema(num_rounds: int) -> sampling.Schema:
    return schema_from(values, num_rounds)

  try:
    schema(1)
  except ValueError as e:
    raise ValueError(
      f'--num_rounds is missing, and is looked for from one round on: {e}'
    ) from e

  def is_slow(num_rounds: int) -> bool:
    seconds, builds = _seconds(values, schema(num_rounds)), 1
    if not _is_free(values, schema(num_rounds)):
      builds = num_rounds.bit_length()
    return seconds * builds > _MAX_SECONDS

  most = 1
  while most < size.MAX_ROUNDS and not is_slow(2 * most):
    most = min(2 * most, size.MAX_ROUNDS)
  found = _largest(values, schema, most)
  if found == most:
    slow = ''
    if most < size.MAX_ROUNDS:
      slow = ', as strategies for more take long to find'
    raise ValueError(
      f'{most} rounds keep --target_epsilon={values.target_epsilon:g} and more may; '
      f'they are not looked for{slow}. Give --num_rounds.'
    )
  return _mechanism(values, schema(found), values.noise_multiplier)


def _max_participations(values: flags.FlagValues) -> mechanism_lib.Mechanism:
  if values.sampling != sampling.Limits.flag:
    raise ValueError(
      f'--find=max_participations is for --sampling={sampling.Limits.flag}.'
    )

  def schema(max_participations: int) -> sampling.Schema:
    return limits_from(values, values.num_rounds, max_participations)

  possible = limits_from(values, values.num_rounds).possible_participations
  found = _largest(values, schema, possible)
  return _mechanism(values, schema(found), values.noise_multiplier)


def _largest(
  values: flags.FlagValues, schema: Callable[[int], sampling.Schema], at_most: int
) -> int:
  """The largest number whose schema keeps the target."""
  first = _mechanism(values, schema(1), values.noise_multiplier)

  def event(number: int) -> dp_accounting.DpEvent:
    limits = schema(number)
    if not _is_free(values, limits):
      return _mechanism(values, limits, values.noise_multiplier).event
    # That of independent noise, and of a little less for the strategy's round-off.
    options = {**_options(values), **dict.fromkeys(registry.options())}
    noise_multiplier = values.noise_multiplier * (1 - _ROUND_OFF)
    independent = next(
      name for name, kind in registry.KINDS.items() if kind.is_independent
    )
    return mechanism_lib.Mechanism(
      independent, limits, noise_multiplier, **options
    ).event

  return calibration.largest(
    event,
    values.target_epsilon,
    values.target_delta,
    at_most=at_most,
    accountant=values.accountant,
    relation=first.relation,
  )


def _is_free(values: flags.FlagValues, schema: sampling.Schema) -> bool:
  """Whether the guarantee is that of independent noise, whatever the strategy."""
  kind = registry.KINDS.get(values.mechanism)
  if kind is None or sampling.is_sampled(schema):
    return False
  limits = sampling.limits_of(schema)
  return kind.is_free(limits, **_of_kind(values, kind, limits.num_rounds))


def _seconds(values: flags.FlagValues, schema: sampling.Schema) -> float:
  """About how long the strategy for a schema takes to find."""
  kind = registry.KINDS.get(values.mechanism)
  if kind is None:
    return 0.0
  limits = sampling.limits_of(schema)
  return kind.seconds(limits, **_of_kind(values, kind, limits.num_rounds))


def _of_kind(
  values: flags.FlagValues, kind: registry.Kind, num_rounds: int
) -> dict[str, int]:
  """Options of a kind that are given, within so many rounds where they have to be."""
  given = {}
  for option in kind.options:
    value = values[option.name].value
    if value is not None:
      within = values.num_rounds is None and option.is_within_rounds
      given[option.name] = min(value, num_rounds) if within else value
  return given


def _leave_out(plan: inputs_lib.Inputs, may_have_fewer_rounds: bool) -> str:
  """What to leave out, to have it found for a target that is missed."""
  found = '--noise_multiplier'
  if plan.mechanism.parts:
    found = 'noise_multiplier in each part'
  elif may_have_fewer_rounds:
    found += ' or --num_rounds'
  return f'Leave out {found} to have it found.'


def _check_target(plan: inputs_lib.Inputs, remedy: str) -> None:
  spent = plan.epsilon_planned
  assert plan.target_epsilon is not None
  if spent <= plan.target_epsilon:
    return
  noise = 'the noise of the parts'
  if not plan.mechanism.parts:
    alone = cast(mechanism_lib.Mechanism, plan.mechanism)
    noise = f'noise multiplier {alone.noise_multiplier:g}'
  raise program.CheckFailed(
    f'{noise} spends epsilon = {rounding.up(spent)} at delta = {plan.delta:g}, more '
    f'than --target_epsilon={plan.target_epsilon!r}. {remedy}'
  )
