"""Flags for the optimizers of clients and server, and the aggregation of updates.

TensorFlow is not loaded before an optimizer is made.
"""

import dataclasses
import math
from typing import Any, Callable, Optional

from absl import flags

from tff_dp_aggregators import strategies
from tff_dp_aggregators.accounting.programs import program
from tff_dp_aggregators.learning import options


@dataclasses.dataclass(frozen=True)
class Kind:
  name: str  # Value of the flags.
  # The function of `tff.learning.optimizers` that makes it; `None` for DP-FTRL, which
  # this package has, for the server only.
  build: Optional[str]
  # Whether it takes a momentum. Then the model is a linear function of the rounds'
  # means: a workload, for which strategies can be optimised.
  has_momentum: bool = False
  # Whether its learning rate may change from round to round.
  has_schedule: bool = False
  is_adaptive: bool = False  # Whether its steps are divided by what `epsilon` bounds.

  def make(
    self,
    learning_rate: Any,
    momentum: float = 0.0,
    adaptivity: Optional[float] = None,  # `None` for the optimizer's default.
  ) -> Any:
    import tensorflow_federated as tff

    from tff_dp_aggregators import learning

    if self.build is None:
      return learning.build_ftrl(learning_rate, momentum)
    arguments = {'momentum': momentum, 'epsilon': adaptivity}
    given = {name: value for name, value in arguments.items() if value}
    return getattr(tff.learning.optimizers, self.build)(learning_rate, **given)


KINDS = {
  each.name: each
  for each in (
    Kind('sgd', 'build_sgdm', has_momentum=True, has_schedule=True),
    Kind('adafactor', 'build_adafactor'),
    Kind('adagrad', 'build_adagrad', is_adaptive=True),
    Kind('adam', 'build_adam', is_adaptive=True),
    Kind('adamw', 'build_adamw', is_adaptive=True),
    Kind('rmsprop', 'build_rmsprop', is_adaptive=True),
    Kind('yogi', 'build_yogi', is_adaptive=True),
    Kind('ftrl', None, has_momentum=True),
  )
}
OF_CLIENTS = tuple(name for name, kind in KINDS.items() if kind.build is not None)


# Factor of the clients' learning rate, by the fraction of the rounds that are over.
CLIENT_SCHEDULES: dict[str, Callable[[float], float]] = {
  'linear': lambda over: 1.0 - over,
  'cosine': lambda over: (1.0 + math.cos(math.pi * over)) / 2,
  'exponential': lambda over: 0.01**over,
}


_CONSTANT, _COOLDOWN = 'constant', 'cooldown'
_WITH_MOMENTUM = [kind.name for kind in KINDS.values() if kind.has_momentum]
_INNER = '; '.join(f'{name}: {what}' for name, what in options.INNER.items())
_ADAPTIVE = ', '.join(kind.name for kind in KINDS.values() if kind.is_adaptive)


@dataclasses.dataclass(frozen=True)
class Optimization:
  client_optimizer: str = program.flag(
    'Optimizer of local training.', OF_CLIENTS, default='sgd'
  )
  client_learning_rate: float = program.flag(
    'Learning rate of local training.', within='(0, inf)'
  )
  client_learning_rate_schedule: str = program.flag(
    'Schedule over rounds of the learning rate of local training: constant; linear or '
    'cosine decay towards 0; or exponential decay to a hundredth.',
    [_CONSTANT, *CLIENT_SCHEDULES],
    default=_CONSTANT,
  )
  proximal_strength: Optional[float] = program.flag(
    'Strength of the pull of local training to the global model (FedProx).',
    within='[0, inf)',
  )
  server_optimizer: str = program.flag(
    'Optimizer of the global model; ftrl is DP-FTRL(M), on the sum of all rounds.',
    list(KINDS),
    default='sgd',
  )
  server_learning_rate: float = program.flag(
    'Learning rate of the global model.', within='(0, inf)'
  )
  server_learning_rate_schedule: str = program.flag(
    'Schedule of the learning rate of sgd: constant, or a decay to a twentieth over '
    'the last quarter of the rounds (arXiv:2211.06530).',
    [_CONSTANT, _COOLDOWN],
    default=_CONSTANT,
  )
  server_momentum: float = program.flag(
    f'Momentum of the server optimizers {" and ".join(_WITH_MOMENTUM)}. Default: 0.9.',
    within='[0, 1)',
  )
  server_adaptivity: Optional[float] = program.flag(
    f'Number that {_ADAPTIVE} add to the denominator of a step (tau in '
    'arXiv:2003.00295); with noise, not too small.',
    within='(0, inf)',
  )
  batch_size: int = program.flag(
    'Examples in a batch of local training.', within='[1, inf)'
  )
  local_epochs: int = program.flag(
    "Passes over a client's data in a round; together they are cut into batches.",
    within='[1, inf)',
  )

  def client_training(self, num_rounds: int) -> options.ClientTraining:
    rate, rate_fn = self.client_learning_rate, None
    optimizer: Any = KINDS[self.client_optimizer].make
    if self.client_learning_rate_schedule == _CONSTANT:
      optimizer = optimizer(rate)
    else:
      factor = CLIENT_SCHEDULES[self.client_learning_rate_schedule]
      rate_fn = lambda number: rate * factor(number / num_rounds)  # noqa: E731
    return options.ClientTraining(
      self.batch_size, self.local_epochs, optimizer, rate_fn, self.proximal_strength
    )

  def server_optimizer_of(self, num_rounds: int) -> Any:
    from tff_dp_aggregators import learning

    rate = self.server_learning_rate
    if self.server_learning_rate_schedule == _COOLDOWN:
      return learning.ServerSchedule(self.workload(num_rounds), rate).optimizer()
    kind = KINDS[self.server_optimizer]
    return kind.make(rate, self.server_momentum, self.server_adaptivity)

  def workload(self, num_rounds: int) -> Optional[strategies.Workload]:
    """The server's linear function of the rounds' means; `None` if it is not linear."""
    if not KINDS[self.server_optimizer].has_momentum:
      return None
    if self.server_learning_rate_schedule == _COOLDOWN:
      return strategies.Workload.cooldown(num_rounds, self.server_momentum)
    return strategies.Workload(num_rounds, self.server_momentum)


def from_flags(values: flags.FlagValues) -> Optimization:
  kind = KINDS[values.server_optimizer]
  is_constant = values.server_learning_rate_schedule == _CONSTANT
  for name, has_it in (
    ('server_momentum', kind.has_momentum),
    ('server_adaptivity', kind.is_adaptive),
    ('server_learning_rate_schedule', kind.has_schedule or is_constant),
  ):
    if not has_it:
      why = f'does not go with --server_optimizer={kind.name}, which has none.'
      program.refuse(values, [name], why)
  given = program.read(Optimization, values)
  given.setdefault('server_momentum', 0.9 if kind.has_momentum else 0.0)
  return Optimization(**given)


@dataclasses.dataclass
class _Aggregation:
  inner_aggregator: str = program.flag(
    f'How to sum the clipped updates inside the mechanism. {_INNER}. Secure sums are '
    'simulated: they have the same result and no security.',
    list(options.INNER),
    default=options.SUM,
  )
  zeroing_norm: Optional[float] = program.flag(
    'Replace updates with a larger L2 norm by zeros, before clipping. Do not choose it '
    'by looking at updates.',
    within='(0, inf)',
  )
  coordinate_bound: Optional[float] = program.flag(
    'Bound of each coordinate of an update, before clipping. Do not choose it by '
    'looking at updates.',
    within='(0, inf)',
  )
  not_private_signal_to_noise: bool = program.flag(
    'Measure the ratio of the exact sum to the noise in each round, for metrics.csv. '
    'This is not private, and the report says so.',
    default=False,
  )


AGGREGATION = program.rows_of(_Aggregation)


def server_from_flags(values: flags.FlagValues) -> options.Server:
  names = [each.name for each in dataclasses.fields(options.Server)]
  return options.Server(**{n: values[n].value for n in names if n in values})
