"""How clients and server train."""

import dataclasses
import math
from typing import Callable, Optional

from absl import flags

from tff_dp_aggregators import strategies
from tff_dp_aggregators.accounting.programs import program
from tff_dp_aggregators.base import checks

from .. import optimizers

Flag = program.Flag
_DEFAULT_SERVER_MOMENTUM = 0.9
_CONSTANT, _COOLDOWN = 'constant', 'cooldown'


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
    """What the server makes of the rounds' means; `None` if that is not linear."""
    if not optimizers.KINDS[self.server_optimizer].has_momentum:
      return None
    if self.has_schedule:
      return strategies.Workload.cooldown(num_rounds, self.server_momentum)
    return strategies.Workload(num_rounds, self.server_momentum)


def rows(unset: Callable[[str], str]) -> tuple[Flag, ...]:
  """The flags."""
  kinds = optimizers.KINDS.values()
  with_momentum = ' and '.join(kind.name for kind in kinds if kind.has_momentum)
  adaptive = ', '.join(kind.name for kind in kinds if kind.adaptivity)
  return (
    Flag(
      'client_optimizer',
      optimizers.OF_CLIENTS,
      'Optimizer of local training.',
      default='sgd',
    ),
    Flag(
      'client_learning_rate',
      float,
      'Learning rate of local training.',
      unset=unset('client_learning_rate'),
      is_basic=True,
    ),
    Flag(
      'client_learning_rate_schedule',
      list(optimizers.CLIENT_SCHEDULES),
      'What becomes of the learning rate of local training from round to round: '
      'nothing, or it falls towards 0 in a line or as a cosine does, or to a hundredth '
      'by the same factor in each round.',
      default=_CONSTANT,
    ),
    Flag(
      'proximal_strength',
      float,
      'How strongly local training is pulled towards the global model (FedProx, '
      'arXiv:1812.06127).',
      unset='not at all',
    ),
    Flag(
      'server_optimizer',
      list(optimizers.KINDS),
      'Optimizer of the global model; ftrl is DP-FTRL(M), on the sum of all rounds.',
      default='sgd',
      is_basic=True,
    ),
    Flag(
      'server_learning_rate',
      float,
      'Learning rate of the global model.',
      unset=unset('server_learning_rate'),
      is_basic=True,
    ),
    Flag(
      'server_learning_rate_schedule',
      [_CONSTANT, _COOLDOWN],
      'What becomes of the learning rate of sgd: nothing, or it falls to a twentieth '
      'over the last quarter of the rounds (arXiv:2211.06530).',
      default=_CONSTANT,
    ),
    Flag(
      'server_momentum',
      float,
      f'Momentum of the server optimizers {with_momentum}.',
      unset='0.9',
    ),
    Flag(
      'server_adaptivity',
      float,
      f'What the server optimizers {adaptive} add to the denominator of a step, tau in '
      'arXiv:2003.00295. With noise it is better not too small.',
      unset='that of TensorFlow Federated',
    ),
    Flag(
      'batch_size',
      int,
      'Examples in a batch of local training.',
      unset=unset('batch_size'),
      is_basic=True,
    ),
    Flag(
      'local_epochs',
      int,
      "Passes over a client's data in a round.",
      unset=unset('local_epochs'),
      is_basic=True,
    ),
  )


def from_flags(values: flags.FlagValues) -> Optimization:
  """What the flags say."""
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
  names = (field.name for field in dataclasses.fields(Optimization))
  given = {name: values[name].value for name in names}
  return Optimization(**{**given, 'server_momentum': server_momentum or 0.0})


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
