"""The optimizers of clients and server, by name: what `--server_optimizer` takes.

Knows nothing of TensorFlow until one is made.
"""

import dataclasses
import math
from typing import Any, Callable, Optional


@dataclasses.dataclass(frozen=True)
class Kind:
  name: str  # Value of the flags.
  # The function of `tff.learning.optimizers` that makes it; `None` for DP-FTRL, which
  # is this package's, and for the server alone.
  build: Optional[str]
  # Whether it takes a momentum. Then the model is a linear function of the rounds'
  # means: a workload, for which a strategy can be the best.
  has_momentum: bool = False
  # Whether its learning rate may change from round to round.
  has_schedule: bool = False
  # What it calls the small number that keeps its steps finite; `None` if it has none.
  adaptivity: Optional[str] = None

  def make(
    self,
    learning_rate: Any,
    momentum: float = 0.0,
    adaptivity: Optional[float] = None,  # `None` for its own default.
  ) -> Any:
    import tensorflow_federated as tff

    from tff_dp_aggregators import learning

    if self.build is None:
      return learning.build_ftrl(learning_rate, momentum)
    arguments: dict[str, Any] = {}
    if momentum:
      arguments['momentum'] = momentum
    if self.adaptivity is not None and adaptivity is not None:
      arguments[self.adaptivity] = adaptivity
    return getattr(tff.learning.optimizers, self.build)(learning_rate, **arguments)


KINDS = {
  each.name: each
  for each in (
    Kind('sgd', 'build_sgdm', has_momentum=True, has_schedule=True),
    Kind('adafactor', 'build_adafactor'),
    Kind('adagrad', 'build_adagrad', adaptivity='epsilon'),
    Kind('adam', 'build_adam', adaptivity='epsilon'),
    Kind('adamw', 'build_adamw', adaptivity='epsilon'),
    Kind('rmsprop', 'build_rmsprop', adaptivity='epsilon'),
    Kind('yogi', 'build_yogi', adaptivity='epsilon'),
    Kind('ftrl', None, has_momentum=True),
  )
}
OF_CLIENTS = tuple(name for name, kind in KINDS.items() if kind.build is not None)


# What fraction of its learning rate a client has in a round, by the fraction of the
# rounds that are over.
CLIENT_SCHEDULES: dict[str, Callable[[float], float]] = {
  'constant': lambda over: 1.0,
  'linear': lambda over: 1.0 - over,
  'cosine': lambda over: (1.0 + math.cos(math.pi * over)) / 2,
  'exponential': lambda over: 0.01**over,
}


def client_learning_rate_fn(
  schedule: str, learning_rate: float, num_rounds: int
) -> Callable[[int], float]:
  """The learning rate of clients by the number of the round, from 0."""
  fraction = CLIENT_SCHEDULES[schedule]
  return lambda round_num: learning_rate * fraction(round_num / num_rounds)
