"""Flags for rounds, cohorts, limits or sampling of participation, and drop-outs.

The programs `report` and `plan` have the same flags of limits and sampling.
"""

import dataclasses
from typing import Optional

from absl import flags

from tff_dp_aggregators import sampling
from tff_dp_aggregators.accounting.programs import program
from tff_dp_aggregators.accounting.programs import table
from tff_dp_aggregators.accounting.reports import terms

# Flags that simulations have without sampling as well.
_KNOWN = ('num_clients', 'clients_per_round')
_FROM_FILE = sampling.Replay.name
# Schemes in which each client has whole numbers of rounds.
_WHOLE_ROUNDS = (sampling.BallsInBins, sampling.RandomAllocation)


@dataclasses.dataclass(frozen=True)
class Participation:
  # What accounting assumes: rounds and limits that client selection keeps, or sampling.
  schema: sampling.Schema
  clients_per_round: float  # Clients asked for a round, the mean for Poisson sampling.
  seed: int  # Seed of cohorts and drop-outs.
  schedule_file: Optional[str] = None  # File with the cohorts; `None` to draw them.
  # Draws clients that do not report; `None` if all do.
  dropouts: Optional[sampling.Dropouts] = None
  # Minimum number of clients that report in a round; `None` for any number.
  reporting_goal: Optional[int] = None
  # Denominator of the mean, if it is stated and not the expected number of clients.
  denominator: Optional[float] = None

  @property
  def num_rounds(self) -> int:
    return self.schema.num_rounds

  def schedule(self, num_clients: int) -> sampling.Schedule:
    """The cohorts of all rounds, drawn from `num_clients` clients."""
    cohort = sampling.of(self.schema).expected_cohort(num_clients)
    if cohort is None or self.denominator is not None:
      cohort = self.clients_per_round
    if self.schedule_file is not None:
      return sampling.Replay(
        self.schedule_file, sampling.Header(self.schema, num_clients, cohort)
      )
    return sampling.for_scheme(
      self.schema,
      num_clients,
      cohort,
      self.seed,
      dropouts=self.dropouts,
      reporting_goal=self.reporting_goal,
    )


@dataclasses.dataclass
class _Cohorts:
  schedule_file: Optional[str] = program.flag(
    'File with the cohorts of all rounds, as written by sampling.Schedule.save. It '
    'also states rounds, cohort size and limits, unless flags state them.'
  )
  dropout_probability: Optional[float] = program.flag(
    'Probability that a selected client does not report.',
    unset='0',
    at_least=0,
    below=1,
  )
  reporting_goal: Optional[int] = program.flag(
    'Number of clients that have to report. A round with fewer is tried again.',
    unset='no minimum',
  )


def rows() -> table.Rows:
  changes = {
    'num_rounds': {'help': 'Rounds to train.'},
    'clients_per_round': {
      'help': 'Clients per round; with --sampling=poisson their mean number.'
    },
    'min_separation': {
      'unset': '{}. Larger is better for privacy, and needs clients_per_round * '
      'min_separation clients'
    },
  }
  shared = (*table.participation(), *table.sampling())
  return (
    *table.change((row for row in shared if row.name != 'num_clients'), changes),
    table.Flag(
      'schedule',
      sampling.schedule_names(),
      'How cohorts are drawn.',
      unset='as the limits or --sampling require',
    ),
    *program.rows_of(_Cohorts),
  )


def names() -> tuple[str, ...]:
  return table.names(rows())


def from_flags(values: flags.FlagValues) -> Participation:
  """Participation by flags, or a file of cohorts, with the task's defaults."""
  _check_together(values)
  if values['rounds_between'].present and not values['min_separation'].present:
    values['min_separation'].value = None  # Replaces the task's default.
  if values.schedule_file is not None:
    from_file = _from_file(values)
    if from_file is not None:
      return from_file
  schema, clients_per_round, denominator = _schema(values)
  dropouts = None
  if values.dropout_probability is not None:
    dropouts = sampling.Dropouts(values.dropout_probability, values.seed)
  participation = Participation(
    schema,
    clients_per_round,
    values.seed,
    schedule_file=values.schedule_file,
    dropouts=dropouts,
    reporting_goal=values.reporting_goal,
    denominator=denominator,
  )
  if values.num_clients is not None:
    try:
      participation.schedule(values.num_clients)  # Fails now if there are too few.
    except sampling.PopulationTooSmallError as e:
      if values['num_clients'].present:
        raise
      raise sampling.PopulationTooSmallError(
        f'{e} Without --num_clients, these are the clients of the data that are not '
        'held out for testing, or the default of --task.'
      ) from e
  return participation


def _from_file(values: flags.FlagValues) -> Optional[Participation]:
  """Participation that a file of cohorts states; `None` if flags state it."""
  own = ('schedule', 'schedule_file', 'dropout_probability', 'reporting_goal')
  stating = [name for name in names() if name not in own and values[name].present]
  try:
    schedule = sampling.Replay(values.schedule_file)
  except ValueError as e:
    if stating:
      return None
    raise ValueError(
      f'--schedule_file: {e} Flags say it as well: --num_rounds, --clients_per_round, '
      'and the limits or the sampling that the cohorts keep.'
    ) from e
  num_clients = values.num_clients
  if num_clients not in (None, schedule.num_clients):
    stating.append('num_clients')
  if stating:
    raise ValueError(
      f'--{stating[0]} does not go with --schedule_file={values.schedule_file}, whose '
      f'first line says rounds, cohorts, limits and {schedule.num_clients} clients.'
    )
  cohort = schedule.clients_per_round
  values.set_default('num_rounds', schedule.num_rounds)
  values.set_default('clients_per_round', int(cohort) if cohort % 1 == 0 else None)
  values['min_separation'].value = None
  return Participation(
    schedule.schema, cohort, values.seed, schedule_file=values.schedule_file
  )


def _check_together(values: flags.FlagValues) -> None:
  if values.schedule == _FROM_FILE and values.schedule_file is None:
    raise ValueError(f'--schedule={_FROM_FILE} needs --schedule_file.')
  if values.schedule_file is not None:
    if values.schedule not in (None, _FROM_FILE):
      raise ValueError(
        f'--schedule={values.schedule} draws cohorts, and --schedule_file has them; '
        'give one of the two.'
      )
    program.refuse(
      values,
      ('dropout_probability', 'reporting_goal'),
      'does not go with --schedule_file, which says who reported.',
    )
  if values.reporting_goal is None:
    return
  if values.dropout_probability is None:
    raise ValueError('--reporting_goal needs --dropout_probability.')
  if sampling.for_flag(values.sampling).is_sampled:
    raise ValueError(
      f'--reporting_goal does not go with --sampling={values.sampling}: drawing again '
      'until enough clients report makes each of them more likely to be in the round '
      'than epsilon accounts for.'
    )


def _schema(values: flags.FlagValues) -> tuple[sampling.Schema, float, Optional[float]]:
  """Returns what accounting assumes, clients per round, and a stated denominator."""
  kind = sampling.for_flag(values.sampling)
  if not kind.is_sampled:
    table.check_whole(values, 'clients_per_round')
  if kind is not sampling.Limits and not values['min_separation'].present:
    values['min_separation'].value = None  # Not the task's default: sampling decides.
  cohort_flag = table.cohort_flag(values)
  both = cohort_flag is not None and values['clients_per_round'].present
  is_drawn = kind.is_sampled and not kind.has_public_sizes
  if both and not is_drawn:
    raise ValueError(
      f'--clients_per_round and --{cohort_flag} both say how many clients a round has; '
      'give one of them.'
    )
  if kind.is_sampled and cohort_flag is None and values.num_clients is None:
    others = ''.join(f' or --{name}' for name in table.own_flags(kind))
    raise ValueError(
      f'--sampling={kind.flag} needs the number of clients, which is not known before '
      f'the data are read; give --num_clients{others}.'
    )
  if kind in _WHOLE_ROUNDS and cohort_flag is None:
    # A task's default is changed to one that fits; a stated number is refused.
    stated = values.num_clients, values.clients_per_round
    of_cohort = kind.data.of_cohort  # type: ignore[attr-defined]
    fitting_cohort = of_cohort(values.num_rounds, *stated).other_cohort(*stated)
    if fitting_cohort is not None:
      values.set_default('clients_per_round', fitting_cohort)
  schema = table.schema_from(values, known=_KNOWN)
  name, fitting = values.schedule, sampling.of(schema).schedule_name
  if name not in (None, _FROM_FILE, fitting):
    raise ValueError(
      f'--schedule={name} does not keep what --sampling={values.sampling} and the '
      f'limits say ({terms.of_scheme("assumption", schema)}); {fitting} does. Leave it '
      'out, or change --sampling or --fixed_epoch.'
    )
  if both:  # One states the sampling, the other the denominator of the mean.
    return schema, values.clients_per_round, values.clients_per_round
  cohort = None
  if values.num_clients is not None:
    cohort = sampling.of(schema).expected_cohort(values.num_clients)
  if cohort is None:
    return schema, values.clients_per_round, None
  if cohort_flag is not None:
    values['clients_per_round'].value = None  # Not the task's: another flag says it.
  return schema, cohort, None
