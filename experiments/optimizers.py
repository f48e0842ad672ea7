"""The optimizers of clients and server, by name: what `--server_optimizer` takes.

Knows nothing of TensorFlow until one is made.
"""

import dataclasses
from typing import Any, Optional


@dataclasses.dataclass(frozen=True)
class Kind:
  """An optimizer.

  Attributes:
    name: Value of the flags.
    build: The function of `tff.learning.optimizers` that makes it; `None` for DP-FTRL,
      which is this package's, and for the server alone.
    has_momentum: Whether it takes a momentum.
    has_schedule: Whether its learning rate may change from round to round.
    adaptivity: What it calls the small number that keeps its steps finite; `None` if it
      has none.
  """

  name: str
  build: Optional[str]
  has_momentum: bool = False
  has_schedule: bool = False
  adaptivity: Optional[str] = None

  @property
  def is_linear(self) -> bool:
    """Whether the model is a linear function of the rounds' means.

    Then it is a workload, for which a strategy can be the best.
    """
    return self.has_momentum

  def make(
    self,
    learning_rate: float,
    momentum: float = 0.0,
    adaptivity: Optional[float] = None,
  ) -> Any:
    """The optimizer.

    Args:
      learning_rate: Its learning rate.
      momentum: Its momentum, if it takes one.
      adaptivity: Its small number; `None` for its own default.
    """
    import tensorflow_federated as tff

    from tff_dp_aggregators import learning

    if self.build is None:
      return learning.build_ftrl(learning_rate, momentum)
    arguments: dict[str, float] = {}
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
