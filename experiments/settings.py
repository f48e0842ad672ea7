"""What a simulation is told, checked before anything starts.

Knows nothing of TensorFlow, so that a wrong flag is refused at once.
"""

import dataclasses
from typing import Any, Optional

from absl import flags

from experiments import tasks
from experiments.tasks import task as task_lib
from tff_dp_aggregators import strategies
from tff_dp_aggregators.accounting import mechanism as mechanism_lib
from tff_dp_aggregators.accounting.accountants import gaussian
from tff_dp_aggregators.accounting.programs import flags as flags_lib
from tff_dp_aggregators.accounting.programs import program
from tff_dp_aggregators.base import checks
from tff_dp_aggregators.learning.runs import run_directory

_DEFAULT_TARGET_EPSILON = 8.0
_DEFAULT_SERVER_MOMENTUM = 0.9
# Between a run and its continuation: a directory may be moved, a machine be slower.
_MAY_DIFFER = ('run_dir', 'timeout_seconds')


@dataclasses.dataclass(frozen=True)
class Settings:
  """A simulation's settings; most are the flags of `experiments.simulate`.

  Attributes:
    participation: Limits that client selection keeps and accounting assumes.
    mechanism: Privacy mechanism, with its noise; `None` for no privacy.
    flags: All flag values that decide what a run comes to, with the defaults of the
      task, for the record.
  """

  task: task_lib.Task
  participation: strategies.Participation
  mechanism: Optional[mechanism_lib.Mechanism]
  target_epsilon: Optional[float]
  delta: float
  clip_norm: float
  num_clients: int
  clients_per_round: int
  dirichlet_alpha: float
  client_optimizer: str
  client_learning_rate: float
  server_optimizer: str
  server_learning_rate: float
  server_momentum: float
  batch_size: int
  local_epochs: int
  seed: int
  secret_noise: bool
  run_dir: Optional[str]
  timeout_seconds: float
  flags: dict[str, Any]

  @property
  def name(self) -> str:
    """Task and mechanism, for file names and titles."""
    return f'{self.task.name}-{self.mechanism.name if self.mechanism else "none"}'


def from_flags(values: flags.FlagValues) -> Settings:
  """Checks the flags of `experiments.simulate` together.

  Args:
    values: Parsed flags.

  Returns:
    Settings with the noise multiplier that the privacy target needs.

  Raises:
    ValueError: If a value is out of range, flags contradict each other, or the
      population cannot fill the rounds; the message says what would be right.
    FileExistsError: If the run directory holds something that is not of a run.
  """
  task = tasks.TASKS[values.task]
  for name, value in dataclasses.asdict(task.defaults).items():
    values.set_default(name, value)
  for name in ('batch_size', 'local_epochs'):
    checks.check_positive_int(name, values[name].value)
  for name in (
    'clip_norm',
    'dirichlet_alpha',
    'client_learning_rate',
    'server_learning_rate',
    'timeout_seconds',
  ):
    if not values[name].value > 0:
      raise ValueError(f'{name} must be positive; got {values[name].value}.')
  server_momentum = values.server_momentum
  if values.server_optimizer != 'sgd' and server_momentum is not None:
    raise ValueError('--server_momentum is for --server_optimizer=sgd.')
  if server_momentum is None:
    server_momentum = _DEFAULT_SERVER_MOMENTUM
  if not 0 <= server_momentum < 1:
    raise ValueError(f'server_momentum must be in [0, 1); got {server_momentum}.')
  if values.seed < 0:
    raise ValueError(f'seed must not be negative; got {values.seed}.')
  gaussian.check_delta(values.target_delta, 'target_delta')
  participation = strategies.Participation(
    values.num_rounds, values.min_separation, values.max_participations
  )
  strategies.participation.check_population(
    values.num_clients,
    values.clients_per_round,
    participation,
    ('num_clients', 'clients_per_round'),
  )
  task.check_num_clients(values.num_clients)
  if values.run_dir is not None:
    run_directory.check_usable(values.run_dir)
  mechanism, target_epsilon = _mechanism(values, participation)
  return Settings(
    task=task,
    participation=participation,
    mechanism=mechanism,
    target_epsilon=target_epsilon,
    delta=values.target_delta,
    clip_norm=values.clip_norm,
    num_clients=values.num_clients,
    clients_per_round=values.clients_per_round,
    dirichlet_alpha=values.dirichlet_alpha,
    client_optimizer=values.client_optimizer,
    client_learning_rate=values.client_learning_rate,
    server_optimizer=values.server_optimizer,
    server_learning_rate=values.server_learning_rate,
    server_momentum=server_momentum,
    batch_size=values.batch_size,
    local_epochs=values.local_epochs,
    seed=values.seed,
    secret_noise=values.secret_noise,
    run_dir=values.run_dir,
    timeout_seconds=values.timeout_seconds,
    flags={
      name: values[name].value
      for name in sorted(program.names_of(values))
      if name not in _MAY_DIFFER
    },
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
