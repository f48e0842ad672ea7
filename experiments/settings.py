"""Settings of a simulation, from flags that are checked before anything starts.

The module does not load TensorFlow, so that a wrong flag is refused at once.
"""

import dataclasses
import hashlib
import math
import shlex
import warnings
from collections.abc import Mapping
from typing import Any, Optional

import numpy as np
from absl import flags

from tff_dp_aggregators import sampling
from tff_dp_aggregators.accounting.programs import program
from tff_dp_aggregators.accounting.programs import table
from tff_dp_aggregators.learning import options
from tff_dp_aggregators.learning.runs import run_directory

from . import tasks
from .options import data as data_options
from .options import model as model_options
from .options import optimization as optimization_options
from .options import participation as participation_options
from .options import privacy as privacy_options
from .options import run as run_options
from .tasks import own
from .tasks import task as task_lib

# Flags that most users need.
BASIC = (
  *table.BASIC,
  *'task data client_column label_column text_column model clipping batch_size'.split(),
  *'local_epochs client_learning_rate server_learning_rate server_optimizer'.split(),
  *('audit_canaries', 'seed', 'run_dir'),
)
# Flags that may differ between a run and its continuation.
_MAY_DIFFER = frozenset([*run_options.MAY_DIFFER, *data_options.MAY_DIFFER])


@dataclasses.dataclass(frozen=True)
class Settings:
  task: task_lib.Task  # The data, and defaults that suit them.
  data: data_options.Data
  model: model_options.Model
  participation: participation_options.Participation
  privacy: privacy_options.Privacy
  optimization: optimization_options.Optimization
  run: run_options.Run
  server: options.Server
  learning_run: options.RunOptions  # Without what only the data tell.
  # All flag values that the result depends on, with the defaults of the task.
  flags: dict[str, Any]
  command: str  # Resumes the run, once --run_dir is added.
  remarks: tuple[str, ...] = ()  # Settings that follow from the data, as sentences.
  # Facts about the user's own data, with their checksum; `None` for data of a task.
  facts: Optional[Mapping[str, Any]] = None
  # Checksums of what is in the files of flags, by flag, as in a run's configuration.
  checksums: Mapping[str, str] = dataclasses.field(default_factory=dict)

  @property
  def name(self) -> str:
    return f'{self.task.name}-{self.privacy.name}'

  def check(self, schedule: Optional[sampling.Schedule]) -> None:
    """Refuses settings that do not go together, also with the cohorts if known."""
    privacy = self.privacy
    options.check_together(
      self.learning_run,
      self.server,
      privacy.mechanism,
      clip_norm=privacy.clip_norm,
      scheduler=self.run.scheduler,
      cohort_scale=privacy.simulated_cohort_scale,
      is_nbafl=privacy.nbafl is not None,
      schedule=schedule,
      are_flags=True,
    )


def groups() -> tuple[program.Group, ...]:
  task = program.Flag(
    'task',
    list(tasks.TASKS),
    'What to train: '
    + '; '.join(f'{task.name}, {task.summary}' for task in tasks.TASKS.values())
    + '. With --data, that of your own data.',
    default=next(iter(tasks.TASKS)),
  )
  cluster = program.rows_of(run_options.Cluster)
  all_groups = (
    ('Data', (task, *data_options.rows())),
    ('Model', model_options.rows()),
    ('Participation', participation_options.rows()),
    ('Privacy', privacy_options.rows()),
    ('Where noise is made', table.placement()),
    ('NbAFL', table.NBAFL),
    ('Aggregation', optimization_options.AGGREGATION),
    ('Training', program.rows_of(optimization_options.Optimization)),
    ('Run', program.rows_of(run_options.Run)[len(cluster) :]),
    ('Cluster', cluster),
  )
  return tuple((name, tuple(map(_with_defaults, rows))) for name, rows in all_groups)


def _with_defaults(row: program.Flag) -> program.Flag:
  defaults = {
    key: getattr(each.defaults, row.name, None) for key, each in tasks.TASKS.items()
  }
  text = '; '.join(
    f'{value} for {key}' for key, value in defaults.items() if value is not None
  )
  return dataclasses.replace(row, help=f'{row.help} Default: {text}.') if text else row


def from_flags(values: flags.FlagValues) -> Settings:
  # With secret noise, clients are drawn by a secret seed as well, if none is given.
  if values.secret_noise and not values['seed'].present and _draws_clients(values):
    values['seed'].value = run_directory.secret_seed(values.run_dir)
  run = run_options.from_flags(values)  # Before the data are read.
  task, data = _task_and_data(values)
  task.check(data)  # Before the search for strategies, which may take long.
  optimization = optimization_options.from_flags(values)
  privacy_options.prepare_nbafl(values)
  known_clients, num_canaries = values.num_clients, run.audit_canaries or 0
  num_clients = known_clients and known_clients + num_canaries
  values['num_clients'].value = num_clients  # Cohorts are drawn of canaries as well.
  participation = participation_options.from_flags(values)
  values['num_clients'].value = known_clients
  model = model_options.from_flags(values)
  privacy = privacy_options.from_flags(
    values, participation, optimization, lambda: _size(task, data, model)
  )
  server = optimization_options.server_from_flags(values)
  flag_values = {
    # JSON has no infinity.
    name: 'inf' if values[name].value == math.inf else values[name].value
    for name in sorted(values)
    if name not in _MAY_DIFFER
  }
  names = {each.name for each in dataclasses.fields(options.RunOptions)}
  stated = dataclasses.asdict(run).items()
  of_run = options.RunOptions(
    **{name: each for name, each in stated if name in names and each is not None},
    noise_seed=privacy.noise_seed(run),
    settings=flag_values,
    target_epsilon=privacy.target_epsilon,
  )
  facts = None
  if data.files is not None:
    population = task.load(data)  # Was read before, for the task's defaults.
    model.check_for(population)
    facts = population.facts
  settings = Settings(
    task=task,
    data=data,
    model=model,
    participation=participation,
    privacy=privacy,
    optimization=optimization,
    run=run,
    server=server,
    learning_run=of_run,
    flags=flag_values,
    command=_command(values),
    remarks=() if values.task is not None else own.chosen(values, values.num_clients),
    facts=facts,
    checksums=_checksums(values, privacy),
  )
  settings.check(None if num_clients is None else participation.schedule(num_clients))
  return settings


def _size(
  task: task_lib.Task, data: data_options.Data, model: model_options.Model
) -> int:
  with warnings.catch_warnings():
    warnings.simplefilter('ignore')  # TFF's dependencies warn about each other.
    population = task.load(data)
    model.check_for(population)
    trainable, _ = model.make(population.shape, seed=0).initial_weights
  return sum(int(np.size(weight)) for weight in trainable)


def _draws_clients(values: flags.FlagValues) -> bool:
  """Whether clients are drawn at random, which saves privacy if it is kept secret."""
  return bool(values.nbafl) or values.sampling != sampling.Limits.flag


def _checksums(
  values: flags.FlagValues, privacy: privacy_options.Privacy
) -> dict[str, str]:
  checksums = {}
  if values.strategy_file is not None and privacy.mechanism is not None:
    checksums['strategy_file'] = privacy.mechanism.strategy.checksum
  if values.schedule_file is not None:
    with open(values.schedule_file, 'rb') as file:
      checksums['schedule_file'] = hashlib.sha256(file.read()).hexdigest()
  return checksums


def _command(values: flags.FlagValues) -> str:
  left_out = {'run_dir'}
  if values.secret_noise and _draws_clients(values):
    left_out.add('seed')  # A resumed run reads it from a file; no log may have it.
  given = program.given(values, [name for name in values if name not in left_out])
  return ' '.join(['tff-dp-simulate', *map(shlex.quote, given)])


def _task_and_data(values: flags.FlagValues) -> tuple[task_lib.Task, data_options.Data]:
  if values.data is not None and not values['task'].present:
    data = data_options.from_flags(values)
    task = own.task_for(values, data)
    values['task'].value = None
  else:
    task, data = tasks.TASKS[values.task], None
    own_clients = ('dirichlet_alpha', 'split_seed')
    refused = ('data', *(own_clients if task.defaults.num_clients is None else ()))
    why = f'does not go with --task={task.name}, which has data of its own.'
    program.refuse(values, refused, why)
  for name, value in dataclasses.asdict(task.defaults).items():
    values.set_default(name, value)
  return task, data or data_options.from_flags(values)
