"""How clients and server train."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from absl import flags

from tff_dp_aggregators.base import checks

from . import of_task

_DEFAULT_SERVER_MOMENTUM = 0.9
NAMES = (
  'client_optimizer',
  'client_learning_rate',
  'batch_size',
  'local_epochs',
  'server_optimizer',
  'server_learning_rate',
  'server_momentum',
)


@dataclasses.dataclass(frozen=True)
class Optimization:
  """Optimizers and their numbers; attributes are the flags of the same names."""

  client_optimizer: str
  client_learning_rate: float
  batch_size: int
  local_epochs: int
  server_optimizer: str
  server_learning_rate: float
  server_momentum: float


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
    ['sgd', 'adam'],
    'Optimizer of local training.',
    flag_values=values,
  )
  define_of_task(
    flags.DEFINE_float, 'client_learning_rate', 'Learning rate of local training.'
  )
  flags.DEFINE_enum(
    'server_optimizer',
    'sgd',
    ['sgd', 'adam'],
    'Optimizer of the global model.',
    flag_values=values,
  )
  define_of_task(
    flags.DEFINE_float, 'server_learning_rate', 'Learning rate of the global model.'
  )
  flags.DEFINE_float(
    'server_momentum',
    None,
    'Momentum of the server optimizer sgd. Default: 0.9.',
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
  for name in ('client_learning_rate', 'server_learning_rate'):
    if not values[name].value > 0:
      raise ValueError(f'{name} must be positive; got {values[name].value}.')
  server_momentum = values.server_momentum
  if values.server_optimizer != 'sgd' and server_momentum is not None:
    raise ValueError('--server_momentum is for --server_optimizer=sgd.')
  if server_momentum is None:
    server_momentum = _DEFAULT_SERVER_MOMENTUM
  if not 0 <= server_momentum < 1:
    raise ValueError(f'server_momentum must be in [0, 1); got {server_momentum}.')
  return Optimization(
    client_optimizer=values.client_optimizer,
    client_learning_rate=values.client_learning_rate,
    batch_size=values.batch_size,
    local_epochs=values.local_epochs,
    server_optimizer=values.server_optimizer,
    server_learning_rate=values.server_learning_rate,
    server_momentum=server_momentum,
  )
