"""How clients and server train."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, Optional

from absl import flags

from tff_dp_aggregators import strategies
from tff_dp_aggregators.base import checks

from .. import optimizers
from . import of_task

_DEFAULT_SERVER_MOMENTUM = 0.9
_CONSTANT, _COOLDOWN = 'constant', 'cooldown'
NAMES = (
  'client_optimizer',
  'client_learning_rate',
  'client_learning_rate_schedule',
  'proximal_strength',
  'batch_size',
  'local_epochs',
  'server_optimizer',
  'server_learning_rate',
  'server_learning_rate_schedule',
  'server_momentum',
  'server_adaptivity',
)


@dataclasses.dataclass(frozen=True)
class Optimization:
  """Optimizers and their numbers; attributes are the flags of the same names."""

  client_optimizer: str
  client_learning_rate: float
  client_learning_rate_schedule: str
  proximal_strength: Optional[float]
  batch_size: int
  local_epochs: int
  server_optimizer: str
  server_learning_rate: float
  server_learning_rate_schedule: str
  server_momentum: float
  server_adaptivity: Optional[float]

  @property
  def has_client_schedule(self) -> bool:
    """Whether the clients' learning rate changes from round to round."""
    return self.client_learning_rate_schedule != _CONSTANT

  @property
  def has_schedule(self) -> bool:
    """Whether the server's learning rate changes from round to round."""
    return self.server_learning_rate_schedule != _CONSTANT

  def workload(self, num_rounds: int) -> Optional[strategies.Workload]:
    """What the server makes of the rounds' means; `None` if that is not linear.

    Args:
      num_rounds: Rounds in all.
    """
    if not optimizers.KINDS[self.server_optimizer].is_linear:
      return None
    if self.has_schedule:
      return strategies.Workload.cooldown(num_rounds, self.server_momentum)
    return strategies.Workload(num_rounds, self.server_momentum)


def define(values: flags.FlagValues, tasks: Mapping[str, Any]) -> None:
  """Defines the flags.

  Args:
    values: Where to define them.
    tasks: The tasks by name, for defaults.
  """

  def define_of_task(define_flag: Any, name: str, text: str) -> None:
    of_task.define(values, tasks, define_flag, name, text)

  flags.DEFINE_enum(
    'client_optimizer',
    'sgd',
    optimizers.OF_CLIENTS,
    'Optimizer of local training.',
    flag_values=values,
  )
  define_of_task(
    flags.DEFINE_float, 'client_learning_rate', 'Learning rate of local training.'
  )
  flags.DEFINE_enum(
    'client_learning_rate_schedule',
    _CONSTANT,
    list(optimizers.CLIENT_SCHEDULES),
    'What becomes of the learning rate of local training from round to round: nothing, '
    'or it falls towards 0 in a line or as a cosine does, or to a hundredth by the '
    'same factor in each round.',
    flag_values=values,
  )
  flags.DEFINE_float(
    'proximal_strength',
    None,
    'How strongly local training is pulled towards the global model (FedProx, '
    'arXiv:1812.06127). Default: not at all.',
    flag_values=values,
  )
  flags.DEFINE_enum(
    'server_optimizer',
    'sgd',
    list(optimizers.KINDS),
    'Optimizer of the global model; ftrl is DP-FTRL(M), on the sum of all rounds.',
    flag_values=values,
  )
  define_of_task(
    flags.DEFINE_float, 'server_learning_rate', 'Learning rate of the global model.'
  )
  flags.DEFINE_enum(
    'server_learning_rate_schedule',
    _CONSTANT,
    [_CONSTANT, _COOLDOWN],
    'What becomes of the learning rate of sgd: nothing, or it falls to a twentieth '
    'over the last quarter of the rounds (arXiv:2211.06530).',
    flag_values=values,
  )
  with_momentum = ' and '.join(
    name for name, kind in optimizers.KINDS.items() if kind.has_momentum
  )
  flags.DEFINE_float(
    'server_momentum',
    None,
    f'Momentum of the server optimizers {with_momentum}. Default: 0.9.',
    flag_values=values,
  )
  adaptive = ', '.join(
    name for name, kind in optimizers.KINDS.items() if kind.adaptivity
  )
  flags.DEFINE_float(
    'server_adaptivity',
    None,
    f'Of the server optimizers {adaptive}: what is added to the denominator of a step, '
    'tau in arXiv:2003.00295. With noise it is better not too small. Default: that of '
    'TensorFlow Federated.',
    flag_values=values,
  )
  define_of_task(
    flags.DEFINE_integer, 'batch_size', 'Examples in a batch of local training.'
  )
  define_of_task(
    flags.DEFINE_integer, 'local_epochs', "Passes over a client's data in a round."
  )


def from_flags(values: flags.FlagValues) -> Optimization:
  """What the flags say.

  Args:
    values: Parsed flags, with the task's defaults.

  Raises:
    ValueError: If a value is out of range, or flags contradict each other.
  """
  for name in ('batch_size', 'local_epochs'):
    checks.check_positive_int(name, values[name].value)
  for name in ('client_learning_rate', 'server_learning_rate', 'server_adaptivity'):
    value = values[name].value
    if value is not None and not 0 < value < math.inf:
      raise ValueError(f'{name} must be positive and finite; got {value}.')
  strength = values.proximal_strength
  if strength is not None and not 0 <= strength < math.inf:
    raise ValueError(
      f'proximal_strength must be at least 0 and finite; got {strength}.'
    )
  _check_server(values)
  server_momentum = values.server_momentum
  if server_momentum is None and optimizers.KINDS[values.server_optimizer].has_momentum:
    server_momentum = _DEFAULT_SERVER_MOMENTUM
  return Optimization(
    client_optimizer=values.client_optimizer,
    client_learning_rate=values.client_learning_rate,
    client_learning_rate_schedule=values.client_learning_rate_schedule,
    proximal_strength=strength,
    batch_size=values.batch_size,
    local_epochs=values.local_epochs,
    server_optimizer=values.server_optimizer,
    server_learning_rate=values.server_learning_rate,
    server_learning_rate_schedule=values.server_learning_rate_schedule,
    server_momentum=server_momentum or 0.0,
    server_adaptivity=values.server_adaptivity,
  )


def _check_server(values: flags.FlagValues) -> None:
  """Refuses what the server's optimizer does not have."""
  kind = optimizers.KINDS[values.server_optimizer]
  momentum = values.server_momentum
  if momentum is not None and not kind.has_momentum:
    having = ' or '.join(
      each.name for each in optimizers.KINDS.values() if each.has_momentum
    )
    raise ValueError(f'--server_momentum is for --server_optimizer={having}.')
  if momentum is not None and not 0 <= momentum < 1:
    raise ValueError(f'server_momentum must be in [0, 1); got {momentum}.')
  if values.server_adaptivity is not None and kind.adaptivity is None:
    raise ValueError(
      f'--server_adaptivity is not for --server_optimizer={kind.name}, whose steps are '
      'not divided by anything.'
    )
  schedule = values.server_learning_rate_schedule
  if schedule != _CONSTANT and not kind.has_schedule:
    having = ' or '.join(
      each.name for each in optimizers.KINDS.values() if each.has_schedule
    )
    raise ValueError(
      f'--server_learning_rate_schedule={schedule} is for --server_optimizer={having}.'
    )
