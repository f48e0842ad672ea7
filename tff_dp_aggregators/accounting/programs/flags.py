"""The flags of mechanism, participation and target, checked together.

The programs of this package share them, so that a mechanism is spelled the same
everywhere. `define` defines them, `planned` turns their values into a `sources.Plan`;
nothing else reads them.
"""

from typing import Any, Optional

from absl import flags

from tff_dp_aggregators import strategies
from tff_dp_aggregators.accounting import accountants
from tff_dp_aggregators.accounting import calibration
from tff_dp_aggregators.accounting import mechanism as mechanism_lib
from tff_dp_aggregators.accounting import schemas
from tff_dp_aggregators.accounting.accountants import gaussian
from tff_dp_aggregators.accounting.programs import program
from tff_dp_aggregators.accounting.reports import sources
from tff_dp_aggregators.base import checks
from tff_dp_aggregators.strategies import registry

_SAMPLINGS = ('none', 'poisson', 'fixed_size')
_MAX_ROUNDS = 2**24  # Where the search for a number of rounds ends.
PARTICIPATION_FLAGS = (
  'num_rounds',
  'min_separation',
  'rounds_between',
  'max_participations',
  'fixed_epoch',
)
SAMPLING_FLAGS = (
  'sampling',
  'sampling_probability',
  'population',
  'cohort',
  'num_groups',
)
TARGET_FLAGS = (
  'noise_multiplier',
  'target_epsilon',
  'target_delta',
  'find',
  'accountant',
  'adjacency',
)


def all_names() -> tuple[str, ...]:
  """Of all flags that `define` defines."""
  return (
    *PARTICIPATION_FLAGS,
    *SAMPLING_FLAGS,
    'mechanism',
    'strategy_file',
    *registry.options(),
    'clipped_count_stddev',
    *TARGET_FLAGS,
  )


def define(values: flags.FlagValues = flags.FLAGS) -> None:
  """Defines the flags; to be called once in a program.

  Args:
    values: Where to define them.
  """
  define_participation(values)
  flags.DEFINE_enum(
    'mechanism',
    None,
    list(mechanism_lib.NAMES),
    'Which mechanism; or give --strategy_file.',
    flag_values=values,
  )
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
  define_sampling(values)
  define_target(values)


def define_options(
  values: flags.FlagValues = flags.FLAGS, is_comparison: bool = False
) -> None:
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


def define_participation(values: flags.FlagValues = flags.FLAGS) -> None:
  """Defines `PARTICIPATION_FLAGS`."""
  flags.DEFINE_integer(
    'num_rounds',
    None,
    'Rounds in all. Left out, the most that keep a target.',
    flag_values=values,
  )
  define_limits(values)


def define_limits(values: flags.FlagValues = flags.FLAGS) -> None:
  """Defines `PARTICIPATION_FLAGS` but for the number of rounds."""
  flags.DEFINE_integer(
    'min_separation',
    None,
    'Smallest difference of two rounds of one client. Default: 1, every round.',
    flag_values=values,
  )
  flags.DEFINE_integer(
    'rounds_between',
    None,
    'Smallest number of rounds strictly between two rounds of one client, as the '
    'DP-FTRL literature counts: --min_separation less one.',
    flag_values=values,
  )
  flags.DEFINE_integer(
    'max_participations',
    None,
    'Most rounds of one client. Default: as many as the separation leaves possible.',
    flag_values=values,
  )
  flags.DEFINE_bool(
    'fixed_epoch',
    False,
    'Whether rounds of a client differ by multiples of exactly --min_separation.',
    flag_values=values,
  )


def define_sampling(values: flags.FlagValues = flags.FLAGS) -> None:
  """Defines `SAMPLING_FLAGS`."""
  flags.DEFINE_enum(
    'sampling',
    'none',
    _SAMPLINGS,
    'What may be assumed about how clients are drawn: nothing; Poisson sampling with '
    '--sampling_probability, or --population and --cohort; or cohorts of fixed size, '
    'without replacement, with --population and --cohort.',
    flag_values=values,
  )
  flags.DEFINE_float(
    'sampling_probability',
    None,
    'Probability of each client of a round, for poisson.',
    flag_values=values,
  )
  flags.DEFINE_integer('population', None, 'Clients to draw from.', flag_values=values)
  flags.DEFINE_float(
    'cohort', None, 'Clients of a round; for poisson, in the mean.', flag_values=values
  )
  flags.DEFINE_integer(
    'num_groups',
    None,
    'Groups of clients that take turns, for cyclic Poisson sampling. Default: 1.',
    flag_values=values,
  )


def define_target(values: flags.FlagValues = flags.FLAGS) -> None:
  """Defines `TARGET_FLAGS`."""
  flags.DEFINE_float(
    'noise_multiplier',
    None,
    'Standard deviation of the noise over the clip norm. Left out, the least that '
    'keeps a target.',
    flag_values=values,
  )
  flags.DEFINE_float(
    'target_epsilon',
    None,
    'Privacy target. With it, one of --noise_multiplier and --num_rounds may be left '
    'out; if both are given, they are checked against it.',
    flag_values=values,
  )
  flags.DEFINE_float(
    'target_delta', None, 'Delta of the guarantee.', flag_values=values
  )
  flags.DEFINE_enum(
    'find',
    None,
    ['max_participations'],
    'Find the largest --max_participations that keeps the target with this noise and '
    'number of rounds.',
    flag_values=values,
  )
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
    sorted(schemas.ADJACENCIES),
    'Neighbouring relation. Default: that of the schema, zero_out without sampling.',
    flag_values=values,
  )


def planned(
  values: flags.FlagValues, limits: Optional[strategies.Participation] = None
) -> sources.Plan:
  """What the flags ask for.

  Args:
    values: Parsed flags.
    limits: Rounds and limits on participation from elsewhere, such as a round log; the
      flags must then not give any.

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
  if (values.mechanism is None) == (values.strategy_file is None):
    raise ValueError(
      '--mechanism is missing (or give --strategy_file, but not both); known are '
      f'{", ".join(mechanism_lib.NAMES)}.'
    )
  if limits is not None:
    for name in (*PARTICIPATION_FLAGS, *SAMPLING_FLAGS, 'find'):
      if values[name].present:
        raise ValueError(f'--{name} does not go with a round log, which has it all.')
  _check_two_of_three(values, limits)
  target = values.target_epsilon
  found = None
  if values.find is not None:
    mechanism, found = _most_participations(values), values.find
  elif limits is None and values.num_rounds is None:
    mechanism, found = _most_rounds(values), 'num_rounds'
  elif values.noise_multiplier is None:
    mechanism = _with_least_noise(values, limits or schema_from(values))
    found = 'noise_multiplier'
  else:
    schema = limits or schema_from(values)
    mechanism = _mechanism(values, schema, values.noise_multiplier)
  plan = sources.Plan(mechanism, delta, target, found, values.accountant)
  if target is not None and found is None:
    _check_target(plan)
  return plan


def schema_from(
  values: flags.FlagValues,
  num_rounds: Optional[int] = None,
  max_participations: Optional[int] = None,
) -> schemas.Schema:
  """The participation schema that the flags state.

  Args:
    values: Parsed flags.
    num_rounds: Instead of --num_rounds.
    max_participations: Instead of --max_participations.

  Raises:
    ValueError: If flags contradict each other or are out of range.
  """
  num_rounds = values.num_rounds if num_rounds is None else num_rounds
  if max_participations is None:
    max_participations = values.max_participations
  if values.sampling == 'none':
    for name in SAMPLING_FLAGS[1:]:
      if values[name].present:
        raise ValueError(
          f'--{name} needs --sampling=poisson or fixed_size: without it nothing is '
          'assumed about how clients are drawn.'
        )
    return limits_from(values, num_rounds, max_participations)
  for name in PARTICIPATION_FLAGS[1:]:
    if values[name].present:
      raise ValueError(
        f'--{name} does not go with --sampling={values.sampling}: sampling decides in '
        'which rounds a client takes part.'
      )
  if values.sampling == 'fixed_size':
    return _fixed_size(values, num_rounds)
  return _poisson(values, num_rounds)


def limits_from(
  values: flags.FlagValues,
  num_rounds: int,
  max_participations: Optional[int] = None,
) -> strategies.Participation:
  """The limits on participation that `PARTICIPATION_FLAGS` state.

  Raises:
    ValueError: If flags contradict each other or are out of range.
  """
  if values.min_separation is not None and values.rounds_between is not None:
    raise ValueError(
      '--min_separation and --rounds_between say the same; give one of them '
      '(min_separation = rounds_between + 1).'
    )
  min_separation = 1
  if values.min_separation is not None:
    min_separation = values.min_separation
  elif values.rounds_between is not None:
    rounds_between = checks.check_int(
      'rounds_between', values.rounds_between, at_least=0
    )
    min_separation = rounds_between + 1
  return strategies.Participation(
    num_rounds, min_separation, max_participations, values.fixed_epoch
  )


def _fixed_size(values: flags.FlagValues, num_rounds: int) -> schemas.FixedSizeSampling:
  for name in ('population', 'cohort'):
    if values[name].value is None:
      raise ValueError(f'--{name} is missing; --sampling=fixed_size needs it.')
  for name in ('sampling_probability', 'num_groups'):
    if values[name].present:
      raise ValueError(f'--{name} is for --sampling=poisson.')
  if not values.cohort.is_integer():
    raise ValueError(f'--cohort must be a whole number; got {values.cohort}.')
  return schemas.FixedSizeSampling(num_rounds, values.population, int(values.cohort))


def _poisson(values: flags.FlagValues, num_rounds: int) -> schemas.PoissonSampling:
  groups = 1 if values.num_groups is None else values.num_groups
  given = [name for name in SAMPLING_FLAGS[1:4] if values[name].present]
  if given == ['sampling_probability']:
    return schemas.PoissonSampling(num_rounds, values.sampling_probability, groups)
  if given == ['population', 'cohort']:
    return schemas.PoissonSampling.of_cohort(
      num_rounds, values.population, values.cohort, groups
    )
  raise ValueError(
    '--sampling=poisson needs --sampling_probability, or --population and --cohort.'
  )


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


def _mechanism(
  values: flags.FlagValues, schema: schemas.Schema, noise_multiplier: float
) -> mechanism_lib.Mechanism:
  options = _options(values)
  if values.num_rounds is None and values.mechanism is not None:
    # While rounds are looked for there may be fewer of them than bands.
    for option in registry.kind(values.mechanism).options:
      if option.is_within_rounds and options[option.name] is not None:
        options[option.name] = min(options[option.name], schema.num_rounds)
  return mechanism_lib.Mechanism(
    values.mechanism or mechanism_lib.FROM_FILE, schema, noise_multiplier, **options
  )


def _options(values: flags.FlagValues) -> dict[str, Any]:
  options: dict[str, Any] = dict(options_from(values))
  options['clipped_count_stddev'] = values.clipped_count_stddev
  options['adjacency'] = values.adjacency
  if values.strategy_file is not None:
    options['strategy'] = _load(values.strategy_file)
  return options


def _load(path: str) -> strategies.Strategy:
  try:
    return strategies.Strategy.load(path)
  except OSError as e:
    raise ValueError(f'--strategy_file cannot be read: {e}') from e


def _with_least_noise(
  values: flags.FlagValues, schema: schemas.Schema
) -> mechanism_lib.Mechanism:
  return mechanism_lib.Mechanism.for_target(
    values.mechanism or mechanism_lib.FROM_FILE,
    schema,
    values.target_epsilon,
    values.target_delta,
    accountant=values.accountant,
    **_options(values),
  )


def _most_rounds(values: flags.FlagValues) -> mechanism_lib.Mechanism:
  if values.strategy_file is not None:
    raise ValueError('--num_rounds is missing: a strategy is for a number of rounds.')

  def make(num_rounds: int) -> mechanism_lib.Mechanism:
    schema = schema_from(values, num_rounds)
    return _mechanism(values, schema, values.noise_multiplier)

  found = _largest(values, make, _MAX_ROUNDS)
  if found == _MAX_ROUNDS:
    raise ValueError(
      f'{_MAX_ROUNDS} rounds keep --target_epsilon={values.target_epsilon:g} and more '
      'may; they are not looked for. Give --num_rounds.'
    )
  return make(found)


def _most_participations(values: flags.FlagValues) -> mechanism_lib.Mechanism:
  if values.sampling != 'none':
    raise ValueError('--find=max_participations is for --sampling=none.')

  def make(max_participations: int) -> mechanism_lib.Mechanism:
    schema = limits_from(values, values.num_rounds, max_participations)
    return _mechanism(values, schema, values.noise_multiplier)

  most = limits_from(values, values.num_rounds).possible_participations
  return make(_largest(values, make, most))


def _largest(values: flags.FlagValues, make: Any, at_most: int) -> int:
  return calibration.largest(
    lambda number: make(number).event,
    values.target_epsilon,
    values.target_delta,
    at_most=at_most,
    accountant=values.accountant,
    relation=make(1).relation,
  )


def _check_target(plan: sources.Plan) -> None:
  event, relation = plan.mechanism.event, plan.mechanism.relation
  name = plan.accountant or accountants.tightest(event, relation)
  spent = accountants.epsilon(event, plan.delta, name, relation)
  assert plan.target_epsilon is not None
  if not spent <= plan.target_epsilon:
    raise program.CheckFailed(
      f'noise multiplier {plan.mechanism.noise_multiplier:g} spends epsilon = '
      f'{spent!r} at delta = {plan.delta:g}, more than --target_epsilon='
      f'{plan.target_epsilon!r}. Leave out --noise_multiplier or --num_rounds to have '
      'it found.'
    )
