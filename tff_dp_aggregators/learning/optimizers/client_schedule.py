"""Learning rates of clients that change from round to round.

A schedule that is put into a client's optimizer counts the steps of the client, and
begins anew in each round. So the number of the round is in the server's state, as in
`tff.learning.algorithms.build_weighted_fed_avg_with_optimizer_schedule`, and clients
are told the learning rate with the model.
"""

from typing import Any, Callable

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_dp_aggregators.accounting.records import ledger
from tff_dp_aggregators.base import checks


class ClientSchedule:
  """A learning rate for each round, and the optimizers that have them.

  The rates are asked for once, before the first round: what a round has follows from
  its number and from nothing else.
  """

  def __init__(
    self,
    learning_rate_fn: Callable[[int], float],
    optimizer_fn: Callable[[Any], tff.learning.optimizers.Optimizer],
    num_rounds: int,
  ):
    rates = []
    for number in range(num_rounds):
      name = f'local.learning_rate_fn({number})'
      rate = np.asarray(learning_rate_fn(number)).tolist()
      rates.append(checks.check_not_negative(name, rate))
    self._rates = np.asarray(rates, np.float32)
    self._optimizer_fn = optimizer_fn

  @property
  def learning_rates(self) -> np.ndarray:
    """By round, float32."""
    return self._rates

  def learning_rate(self, this_round: tf.Tensor) -> tf.Tensor:
    """That of a round; after the last one, which nobody uses, the last."""
    last = len(self._rates) - 1
    return tf.gather(tf.constant(self._rates), tf.minimum(this_round, last))

  def make(self, learning_rate: Any) -> tff.learning.optimizers.Optimizer:
    """The optimizer with a learning rate."""
    return self._optimizer_fn(learning_rate)

  def to_json(self) -> dict[str, Any]:
    """What tells schedules apart: the first rate, the last one, and all of them."""
    return {
      'first': float(f'{self._rates[0]:.6g}'),
      'last': float(f'{self._rates[-1]:.6g}'),
      'all': ledger.checksum_of([self._rates]),
    }


def check_optimizer_fn(
  name: str, optimizer_fn: Any
) -> Callable[[Any], tff.learning.optimizers.Optimizer]:
  """Returns what makes optimizers of learning rates.

  `optimizer_fn`: What the caller passed; `None` for SGD.
  """
  if optimizer_fn is None:
    made: Callable[[Any], Any] = tff.learning.optimizers.build_sgdm
    return made
  is_optimizer = isinstance(optimizer_fn, tff.learning.optimizers.Optimizer)
  if is_optimizer or not callable(optimizer_fn):
    raise TypeError(
      f'with local.learning_rate_fn, {name} must be a function of the learning rate, '
      'such as tff.learning.optimizers.build_sgdm, and no optimizer with one of its '
      f'own; got {optimizer_fn!r}.'
    )
  return optimizer_fn
