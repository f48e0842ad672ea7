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

_FROM_FILE = sampling.Replay.name
_IN_FILE = 'does not go with --schedule_file, which has the cohorts that reported.'


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
  schedule: Optional[str] = program.flag(
    'How cohorts are drawn, by default as limits or --sampling require.',
    sampling.schedule_names(),
  )
  schedule_file: Optional[str] = program.flag(
    'File of sampling.Schedule.save with the cohorts of all rounds. It also states '
    'rounds, cohort size and limits, unless flags state them.'
  )
  dropout_probability: Optional[float] = program.flag(
    'Probability that a selected client does not report, 0 by default.',
    within='[0, 1)',
  )
  reporting_goal: Optional[int] = program.flag(
    'Number of clients that have to report, or the round is tried again.'
  )


_COHORTS = program.rows_of(_Cohorts)


def rows() -> table.Rows:
  shared = (*table.participation(), *table.sampling())
  return (*(row for row in shared if row.name != 'num_clients'), *_COHORTS)


def names() -> tuple[str, ...]:
  return table.names(rows())


def from_flags(values: flags.FlagValues) -> Participation:
  kind, has_file = sampling.for_flag(values.sampling), values.schedule_file is not None
  for is_refused, refused, why in (
    (has_file and values.schedule != _FROM_FILE, ('schedule',), _IN_FILE),
    (has_file, ('dropout_probability', 'reporting_goal'), _IN_FILE),
    (
      values.schedule == _FROM_FILE and not has_file,
      ('schedule',),
      'needs --schedule_file.',
    ),
    (
      values.dropout_probability is None,
      ('reporting_goal',),
      'needs --dropout_probability.',
    ),
    (
      kind.is_sampled,
      ('reporting_goal',),
      f'does not go with --sampling={values.sampling}: drawing again until enough '
      'clients report makes each of them more likely to be in the round than epsilon '
      'accounts for.',
    ),
  ):
    if is_refused:
      program.refuse(values, refused, why)
  is_other = kind is not sampling.Limits or values['rounds_between'].present
  if is_other and not values['min_separation'].present:
    values['min_separation'].value = None  # Not the task's default.
  if has_file:
    from_file = _from_file(values)
    if from_file is not None:
      return from_file
  dropouts = None
  if values.dropout_probability is not None:
    dropouts = sampling.Dropouts(values.dropout_probability, values.seed)
  schema, clients_per_round, denominator = _schema(values)
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
    participation.schedule(values.num_clients)  # Fails now if there are too few.
  return participation


def _from_file(values: flags.FlagValues) -> Optional[Participation]:
  """Participation that a file of cohorts states; `None` if flags state it."""
  own = table.names(_COHORTS)
  stating = [name for name in names() if name not in own and values[name].present]
  try:
    schedule = sampling.Replay(values.schedule_file)
  except ValueError as e:
    if stating:
      return None
    needed = '--num_rounds, --clients_per_round, and limits or sampling'
    raise ValueError(f'--schedule_file: {e} Flags say it as well: {needed}.') from e
  if stating or values.num_clients not in (None, schedule.num_clients):
    raise ValueError(
      f'--{(*stating, "num_clients")[0]} does not go with --schedule_file='
      f'{values.schedule_file}, whose first line says rounds, cohorts, limits and '
      f'{schedule.num_clients} clients.'
    )
  cohort = schedule.clients_per_round
  values.set_default('num_rounds', schedule.num_rounds)
  values.set_default('clients_per_round', int(cohort) if cohort % 1 == 0 else None)
  values['min_separation'].value = None
  return Participation(
    schedule.schema, cohort, values.seed, schedule_file=values.schedule_file
  )


def _schema(values: flags.FlagValues) -> tuple[sampling.Schema, float, Optional[float]]:
  """Returns what accounting assumes, clients per round, and a stated denominator."""
  schema = table.schema_from(values, known=('num_clients', 'clients_per_round'))
  scheme, name = sampling.of(schema), values.schedule
  if name not in (None, _FROM_FILE, scheme.schedule_name):
    raise ValueError(
      f'--schedule={name} does not keep what --sampling={values.sampling} and the '
      f'limits say ({terms.of_scheme("assumption", schema)}); {scheme.schedule_name} '
      'does. Leave it out, or change --sampling or --fixed_epoch.'
    )
  stated, cohort_flag = values['clients_per_round'], table.cohort_flag(values)
  if cohort_flag is not None and stated.present:
    # One states the sampling, the other the denominator of the mean.
    return schema, stated.value, stated.value
  cohort = None
  if values.num_clients is not None:
    cohort = scheme.expected_cohort(values.num_clients)
  if cohort is None:
    return schema, stated.value, None
  if cohort_flag is not None:
    stated.value = None  # Not the task's: another flag says it.
  elif scheme.other_cohort(values.num_clients, stated.value) is not None:
    stated.value = cohort  # The task's does not fit the scheme.
  return schema, cohort, None
