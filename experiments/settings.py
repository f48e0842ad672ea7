"""What a simulation is told, checked before anything starts.

Knows nothing of TensorFlow, so that a wrong flag is refused at once.
"""

import contextlib
import dataclasses
import math
import shlex
import warnings
from collections.abc import Iterator, Mapping
from typing import Any, Optional

import numpy as np
from absl import flags

from tff_dp_aggregators import sampling
from tff_dp_aggregators.accounting import mechanism as mechanism_lib
from tff_dp_aggregators.accounting.programs import program
from tff_dp_aggregators.accounting.programs import table
from tff_dp_aggregators.learning import options
from tff_dp_aggregators.learning.runs import fitting
from tff_dp_aggregators.learning.runs import run_directory
from tff_dp_aggregators.strategies import registry

from . import tasks
from .options import data as data_options
from .options import model as model_options
from .options import optimization as optimization_options
from .options import participation as participation_options
from .options import privacy as privacy_options
from .options import run as run_options
from .tasks import own
from .tasks import task as task_lib

# The flags that most need.
BASIC = (
  *table.BASIC,
  *'task data client_column label_column text_column model clipping batch_size'.split(),
  *'local_epochs client_learning_rate server_learning_rate server_optimizer'.split(),
  *('audit_canaries', 'seed', 'run_dir'),
)
# Between a run and its continuation.
_MAY_DIFFER = frozenset([*run_options.MAY_DIFFER, *data_options.MAY_DIFFER])


@dataclasses.dataclass(frozen=True)
class Settings:
  task: task_lib.Task  # What the data are, and what suits them.
  data: data_options.Data
  model: model_options.Model
  participation: participation_options.Participation
  privacy: privacy_options.Privacy
  optimization: optimization_options.Optimization
  run: run_options.Run
  server: options.Server
  # All flag values that decide what a run comes to, with the defaults of the task.
  flags: dict[str, Any]
  command: str  # What goes on with the run, but for the directory.
  remarks: tuple[str, ...] = ()  # What follows from the data and is told.
  # Facts of the user's own data, with their checksum; `None` for those of a task.
  facts: Optional[Mapping[str, Any]] = None
  scheduler: Optional[str] = None
  trusted_network: bool = False

  @property
  def name(self) -> str:
    return f'{self.task.name}-{self.privacy.name}'


def groups() -> tuple[program.Group, ...]:
  task = program.Flag(
    'task',
    list(tasks.TASKS),
    'What to train: '
    + '; '.join(f'{task.name}, {task.summary}' for task in tasks.TASKS.values())
    + '. With --data, that of your own data.',
    default=next(iter(tasks.TASKS)),
  )
  all_groups = (
    ('Data', (task, *data_options.rows())),
    ('Model', model_options.rows()),
    ('Participation', participation_options.rows()),
    ('Privacy', privacy_options.rows()),
    ('Where noise is made', privacy_options.site_rows()),
    ('NbAFL', privacy_options.nbafl_rows()),
    ('Aggregation', optimization_options.AGGREGATION),
    ('Training', program.rows_of(optimization_options.Optimization)),
    ('Run', program.rows_of(run_options.Run)),
    ('Cluster', program.rows_of(run_options.Cluster)),
  )
  return tuple((name, tuple(map(_with_defaults, rows))) for name, rows in all_groups)


def _with_defaults(row: program.Flag) -> program.Flag:
  """A flag with what the tasks put where it is left out, if they put something."""
  defaults = {
    key: getattr(each.defaults, row.name, None) for key, each in tasks.TASKS.items()
  }
  said = '; '.join(
    f'{value} for {key}' for key, value in defaults.items() if value is not None
  )
  unset = row.unset.format(said) if '{}' in row.unset else said
  return dataclasses.replace(row, unset=unset) if said else row


def from_flags(values: flags.FlagValues) -> Settings:
  # The seed by which clients are drawn is then a secret that nobody gave.
  if values.secret_noise and not values['seed'].present and _draws_clients(values):
    values['seed'].value = run_directory.secret_seed(values.run_dir)
  task, data = _task_and_data(values)
  task.check(data)  # Before strategies are looked for, which may take long.
  optimization = optimization_options.from_flags(values)
  run = run_options.from_flags(values)
  scheduler = run_options.scheduler_from(values)
  if values.mechanism != privacy_options.NONE:  # Which refuses all flags of privacy.
    privacy_options.prepare_nbafl(
      values,
      participation_options.names(),
      (*privacy_options.names(), *table.names(table.placement())),
    )
  with _counting_canaries(values):
    participation = participation_options.from_flags(values)
  model = model_options.from_flags(values)
  privacy = privacy_options.from_flags(
    values, participation, optimization, lambda: _size(task, data, model)
  )
  server = optimization_options.server_from_flags(
    values, privacy.mechanism, privacy.clip_norm
  )
  _check_packing(run, privacy, server, scheduler)
  if run.audit_canaries is not None:
    fitting.check_canaries(
      run.audit_canaries,
      privacy.mechanism,
      server,
      is_packed=run.packed_simulation is not False
      and fitting.why_one_by_one(server, privacy.mechanism) is None,
      is_other_noise=privacy.nbafl is not None or privacy.simulated_cohort_scale != 1,
      name='--audit_canaries',
    )
  if values.num_clients is not None:
    num_clients = values.num_clients + (run.audit_canaries or 0)
    check_cohorts(privacy, participation.schedule(num_clients))
  facts = None
  if data.files is not None:
    population = task.load(data)  # Which was read before, for its defaults.
    model.check_for(population)
    facts = population.facts
  return Settings(
    task=task,
    data=data,
    model=model,
    participation=participation,
    privacy=privacy,
    optimization=optimization,
    run=run,
    server=server,
    scheduler=scheduler,
    trusted_network=values.trusted_network,
    flags={
      # JSON has no infinity.
      name: 'inf' if values[name].value == math.inf else values[name].value
      for name in sorted(program.names_of(values))
      if name not in _MAY_DIFFER
    },
    command=_command(values),
    remarks=tuple(_remarks(values, privacy)),
    facts=facts,
  )


@contextlib.contextmanager
def _counting_canaries(values: flags.FlagValues) -> Iterator[None]:
  """Has cohorts drawn from clients and canaries, in --num_clients for a while."""
  before = values.num_clients
  if None not in (before, values.audit_canaries):
    values['num_clients'].value = before + values.audit_canaries
  try:
    yield
  finally:
    values['num_clients'].value = before


def _size(
  task: task_lib.Task, data: data_options.Data, model: model_options.Model
) -> int:
  """How many trainable parameters the model has, which is built for that."""
  with warnings.catch_warnings():
    warnings.simplefilter('ignore')  # Of TFF's dependencies, about each other.
    trainable, _ = model.make(task.load(data).shape, seed=0).initial_weights
  return sum(int(np.size(weight)) for weight in trainable)


def check_cohorts(
  privacy: privacy_options.Privacy, schedule: sampling.Schedule
) -> None:
  """Refuses cohorts that the mechanism's noise is not for."""
  mechanism = privacy.mechanism
  if mechanism is None:
    return
  numbers = dict(mechanism.options)
  fewest = numbers.get('min_clients', 0)
  most = numbers.get('max_clients')
  cohort = schedule.clients_per_round
  if fewest > cohort or (most is not None and most < cohort):
    name, value = ('min', fewest) if fewest > cohort else ('max', most)
    raise ValueError(
      f'--{name}_clients={value}, and rounds ask for {cohort:g} clients: none of them '
      'would be released, or their sum might wrap around. Change one of them.'
    )
  fitting.check_clients(mechanism, fewest, schedule)


def _check_packing(
  run: run_options.Run,
  privacy: privacy_options.Privacy,
  server: options.Server,
  scheduler: Optional[str],
) -> None:
  """Refuses packs that cannot be, and seeds for noise that has none."""
  mechanism, stated = privacy.mechanism, run.packed_simulation
  clients_add_noise = mechanism is not None and mechanism.placement.is_on_clients
  fitting.check_packing(
    fitting.why_one_by_one(server, mechanism, '--')
    or ('--nopacked_simulation' if stated is False else None),
    {
      '--packed_simulation': stated is True,
      f'--scheduler={scheduler}': scheduler is not None,
      'noise of clients without --secret_noise': (
        clients_add_noise and not run.secret_noise and not privacy.is_always_secret
      ),
    },
  )


def _draws_clients(values: flags.FlagValues) -> bool:
  """Whether clients are drawn at random, which saves privacy while it is secret."""
  return bool(values.nbafl) or values.sampling != sampling.Limits.flag


def _command(values: flags.FlagValues) -> str:
  given = (
    argument
    for name in program.names_of(values)
    if values[name].present and name != 'run_dir'
    # A run that goes on knows a seed that is secret, which no log is to have.
    if not (name == 'seed' and values.secret_noise and _draws_clients(values))
    for argument in values[name].serialize().splitlines()  # One for each of several.
  )
  return ' '.join(['tff-dp-simulate', *map(shlex.quote, given)])


def _task_and_data(
  values: flags.FlagValues,
) -> tuple[task_lib.Task, data_options.Data]:
  if values.data is not None and not values['task'].present:
    # What is wrong is said before much is read.
    run_options.from_flags(values)
    data = data_options.from_flags(values)
    task = own.task_for(values, data)
    values['task'].value = None
    _set_defaults(task, values)
    return task, data
  task = tasks.TASKS[values.task]
  own_clients = task.defaults.num_clients is None
  for name, is_refused in (
    ('data', True),
    ('dirichlet_alpha', own_clients),
    ('split_seed', own_clients),
  ):
    if is_refused and values[name].present:
      raise ValueError(
        f'--{name} does not go with --task={task.name}, which has data of its own'
        f'{", clients and test data" if own_clients else ""}. Leave one of them out.'
      )
  _set_defaults(task, values)
  return task, data_options.from_flags(values)


def _set_defaults(task: task_lib.Task, values: flags.FlagValues) -> None:
  for name, value in dataclasses.asdict(task.defaults).items():
    values.set_default(name, value)


def _remarks(
  values: flags.FlagValues, privacy: privacy_options.Privacy
) -> Iterator[str]:
  """Which flags follow from data, and where sampling leaves bands but one of them."""
  said = '' if values.task is not None else own.chosen(values, values.num_clients)
  if said:
    yield said
  mechanism = privacy.mechanism
  if not isinstance(mechanism, mechanism_lib.Mechanism) or not mechanism.is_sampled:
    return
  kind = registry.KINDS.get(mechanism.name)
  if kind is None or kind.bands is None or values[kind.bands].present:
    return
  if registry.options_of(mechanism.strategy)[kind.bands] == 1:
    yield (
      f'{mechanism.name} has one band here, which is independent noise, because of '
      f'--sampling={values.sampling}. --num_groups gives as many bands.'
    )
