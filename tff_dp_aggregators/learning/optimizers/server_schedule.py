"""What the server does with noisy means, once for its optimizer and its noise.

Momentum and learning rates decide which errors of the noise matter: they are the
workload for which a strategy can be optimised. Stated twice, they may disagree, and the
strategy is the best for another training. So they are stated once, here.
"""

import collections
import dataclasses
from typing import Any, Optional

import tensorflow as tf
import tensorflow_federated as tff

from tff_dp_aggregators import aggregators
from tff_dp_aggregators import sampling
from tff_dp_aggregators import strategies
from tff_dp_aggregators.base import checks
from tff_dp_aggregators.learning.optimizers import ftrl
from tff_dp_aggregators.strategies import registry


@dataclasses.dataclass(frozen=True)
class ServerSchedule:
  """SGD with momentum, learning rates and weight decay, and the workload this is.

  Attributes:
    workload: Rounds, momentum, relative learning rates of the rounds, and weight decay.
    learning_rate: What the relative learning rates are multiplied by.

  Raises:
    TypeError: If an argument is not of its type.
    ValueError: If `learning_rate` is not positive and finite.

  Example:
    >>> schedule = ServerSchedule(
    ...   strategies.Workload.cooldown(64, momentum=0.9), learning_rate=0.5
    ... )
    >>> from tff_dp_aggregators import accounting
    >>> participation = strategies.Participation(64, min_separation=8)
    >>> strategy = schedule.strategy('toeplitz', participation)
    >>> mechanism = accounting.Mechanism(
    ...   'file', participation, noise_multiplier=4.0, strategy=strategy
    ... )
    >>> aggregator = aggregators.from_mechanism(
    ...   mechanism, clip_norm=1.0, clients_per_round=100
    ... )
    >>> server_optimizer = schedule.optimizer()
  """

  workload: strategies.Workload
  learning_rate: float = 1.0

  def __post_init__(self) -> None:
    if not isinstance(self.workload, strategies.Workload):
      raise TypeError(
        'workload must be a strategies.Workload, such as '
        f'strategies.Workload(num_rounds, momentum=0.9), got {self.workload!r}.'
      )
    checks.check_positive('learning_rate', self.learning_rate)

  def optimizer(self) -> tff.learning.optimizers.Optimizer:
    """The server's optimizer for aggregators that return the mean of each round."""
    return ScheduledOptimizer(self)

  def ftrl(self) -> ftrl.FTRL:
    """The server's optimizer for aggregators with this `workload`.

    What they return is what the model moved by so far, so that it is scaled and
    subtracted from the initial model, or from what weight decay left of it.
    """
    return ftrl.FTRL(self.learning_rate, workload=self.workload)

  def strategy(
    self, name: str, participation: sampling.Schema, **options: Optional[int]
  ) -> strategies.Strategy:
    """The strategy with the least RMSE under this workload.

    Args:
      name: One of `strategies.registry.KINDS`. 'gaussian' and 'tree' have nothing to
        adapt; 'blt' and its variants take momentum and weight decay, but no learning
        rates that change.
      participation: Who takes part when, in as many rounds.
      **options: As for `accounting.Mechanism`.

    Returns:
      A strategy, to be given to `accounting.Mechanism` under the name 'file'.

    Raises:
      TypeError: If there is no such option, or a number is not whole.
      ValueError: If an argument is out of range or for other rounds, or the kind is
        not optimised for such a workload.
    """
    given = registry.check_options(name, options)
    limits = sampling.limits_of(participation)
    return registry.kind(name).build_for(limits, self.workload, **given)


class ScheduledOptimizer(tff.learning.optimizers.Optimizer):
  """SGD of TFF with the learning rates and the weight decay of a `ServerSchedule`.

  The state has the round, and that of `tff.learning.optimizers.build_sgdm`.
  """

  def __init__(self, schedule: ServerSchedule):
    self._schedule = schedule
    sgdm = tff.learning.optimizers.build_sgdm(
      schedule.learning_rate, schedule.workload.momentum or None
    )
    self._optimizer = tff.learning.optimizers.schedule_learning_rate(
      sgdm, self._learning_rate
    )

  def _learning_rate(self, this_round: tf.Tensor) -> tf.Tensor:
    """Learning rate of a round; after the last one, which nobody uses, the last."""
    rates = self._schedule.workload.learning_rates or (1.0,)
    scaled = tf.constant([self._schedule.learning_rate * rate for rate in rates])
    return tf.gather(scaled, tf.minimum(this_round, len(rates) - 1))

  def check_participation(self, aggregator: aggregators.DPMeanFactory) -> None:
    """Refuses an aggregator for another number of rounds."""
    try:
      num_rounds = aggregator.participation.num_rounds
    except ValueError:  # It serves any number.
      return
    if num_rounds != self._schedule.workload.num_rounds:
      raise ValueError(
        f'the aggregator is for num_rounds={num_rounds}, but the schedule of the '
        f"server's optimizer for {self._schedule.workload.num_rounds}; build both for "
        'the same number.'
      )

  def initialize(self, specs: Any) -> Any:
    """The state before the first round."""
    return self._optimizer.initialize(specs)

  def next(self, state: Any, weights: Any, gradients: Any) -> Any:
    """Takes a step with the round's learning rate, from the model less its decay."""
    decay = self._schedule.workload.weight_decay
    if decay:
      weights = tf.nest.map_structure(lambda each: (1.0 - decay) * each, weights)
    return self._optimizer.next(state, weights, gradients)

  def get_hparams(self, state: Any) -> Any:
    """No hyperparameters: the schedule decides."""
    del state
    return collections.OrderedDict()
