"""DP-FTRL and DP-FTRLM: server optimizers on cumulative sums (arXiv:2103.00039).

They are for aggregators whose result is the sum of all rounds' means so far, with
noise: `aggregators.tree(cumulative=True)`, or any strategy with a workload. On the same
noise they give the models that SGD gives on the means of the rounds, whose noise
cancels in sums; which form to use is a matter of taste, and of what is released.
"""

import collections
from typing import Any, Optional

import tensorflow as tf
import tensorflow_federated as tff

from tff_dp_aggregators import strategies
from tff_dp_aggregators.base import checks


class FTRL(tff.learning.optimizers.Optimizer):
  """Follows the regularized leader on cumulative sums; see `build_ftrl`.

  The state has two structures like the model: `anchor`, the initial model, and
  `velocity`, the last sum, with momentum that of the sums. There are no
  hyperparameters to be changed between rounds: all rounds so far are in one sum, and a
  new learning rate would be that of the past as well.
  """

  def __init__(
    self,
    learning_rate: float,
    momentum: float = 0.0,
    workload: Optional[strategies.Workload] = None,
  ):
    """Initializes the optimizer.

    `workload`: What the aggregator's workload has to be; `None` for any, but for prefix
    sums alone with momentum.
    """
    self._learning_rate = checks.check_positive('learning_rate', learning_rate)
    checks.check_number('momentum', momentum)
    if not 0 <= momentum < 1:
      raise ValueError(f'momentum must be at least 0 and below 1, got {momentum}.')
    self._momentum = float(momentum)
    self._workload = workload
    self._weight_decay = workload.weight_decay if workload else 0.0

  @property
  def workload(self) -> Optional[strategies.Workload]:
    """What the aggregator's workload has to be; `None` for any."""
    return self._workload

  def check_workload(self, workload: strategies.Workload) -> None:
    """Refuses sums of another workload than this optimizer is for."""
    is_prefix = strategies.workload.is_prefix_sums(workload)
    if (
      (self._workload is not None and workload != self._workload)
      or workload.weight_decay != self._weight_decay
      or (self._momentum and not is_prefix)
    ):
      raise ValueError(
        f"the aggregator's workload is {workload}, and the optimizer is FTRL for "
        f'{self._workload or "any without weight decay"}, with momentum='
        f'{self._momentum}, which is for plain sums. Build both from one '
        'learning.ServerSchedule; or give build_ftrl without momentum.'
      )

  def initialize(self, specs: Any) -> Any:
    """The state before the first round."""

    def zeros() -> Any:
      return tf.nest.map_structure(lambda spec: tf.zeros(spec.shape, spec.dtype), specs)

    return collections.OrderedDict(anchor=zeros(), velocity=zeros())

  def next(self, state: Any, weights: Any, gradients: Any) -> Any:
    """Applies the sum of all rounds so far."""
    tff.learning.optimizers.check_weights_gradients_match(weights, gradients)
    flat = [
      self._step(*tensors)
      for tensors in zip(
        *map(tf.nest.flatten, (weights, state['anchor'], state['velocity'], gradients))
      )
    ]
    anchor, velocity, model = (
      tf.nest.pack_sequence_as(weights, list(part)) for part in zip(*flat)
    )
    return collections.OrderedDict(anchor=anchor, velocity=velocity), model

  def _step(
    self, weight: tf.Tensor, anchor: tf.Tensor, velocity: tf.Tensor, total: tf.Tensor
  ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Algorithm 1 of arXiv:2103.00039, for one tensor.

    The regularized leader, argmin <s, w> + |w - w_0|^2 / (2 learning_rate), is
    w_0 - learning_rate s; with momentum, v takes the place of the sum s. The same
    operations on the last velocity give the model that this optimizer made, so that
    the anchor moves by exactly 0 unless the model is another one. In the first round,
    anchor and velocity being 0, it becomes the initial model, of which weight decay
    takes a part away in each round, as it does of the sum.
    """
    rate = tf.constant(self._learning_rate, weight.dtype)
    anchor += weight - (anchor - rate * velocity)
    if self._weight_decay:
      anchor *= tf.constant(1.0 - self._weight_decay, weight.dtype)
    if self._momentum:
      velocity = tf.constant(self._momentum, weight.dtype) * velocity + total
    else:
      velocity = total
    return anchor, velocity, anchor - rate * velocity


class FTRLOnMeans(tff.learning.optimizers.Optimizer):
  """`FTRL` for an aggregator that returns the mean of each round.

  `FTRL` works on the sum of all rounds so far. Residuals of the noise in the means add
  up to the noise of the sums, so the sum of the means is kept here, and handed on.

  The state has one structure like the model more than that of FTRL: `total`, the sum of
  the means so far. The model is that of SGD with the same learning rate and momentum,
  to round-off.
  """

  def __init__(self, on_sums: FTRL):
    if not strategies.workload.is_prefix_sums(on_sums.workload):
      raise ValueError(
        f'server.optimizer is FTRL for the workload {on_sums.workload}, whose '
        'momentum, learning rates or weight decay the aggregator would have to put '
        'into its sums; here it returns the mean of each round. Give optimizer() of '
        'the same learning.ServerSchedule, which comes to the same model.'
      )
    self._on_sums = on_sums

  def check_num_rounds(self, num_rounds: int) -> None:
    """Refuses a run of other rounds than those that the optimizer was made for."""
    workload = self._on_sums.workload
    if workload is not None and workload.num_rounds != num_rounds:
      raise ValueError(
        f'server.optimizer is FTRL for {workload.num_rounds} rounds, but the run has '
        f'{num_rounds}; build both for the same number.'
      )

  def initialize(self, specs: Any) -> Any:
    """The state before the first round."""
    total = tf.nest.map_structure(lambda spec: tf.zeros(spec.shape, spec.dtype), specs)
    return collections.OrderedDict(total=total, ftrl=self._on_sums.initialize(specs))

  def next(self, state: Any, weights: Any, gradients: Any) -> Any:
    """Adds the mean of a round, and applies the sum."""
    tff.learning.optimizers.check_weights_gradients_match(weights, gradients)
    flat = zip(tf.nest.flatten(state['total']), tf.nest.flatten(gradients))
    total = tf.nest.pack_sequence_as(weights, [before + mean for before, mean in flat])
    of_ftrl, model = self._on_sums.next(state['ftrl'], weights, total)
    return collections.OrderedDict(total=total, ftrl=of_ftrl), model


def build_ftrl(learning_rate: float, momentum: float = 0.0) -> FTRL:
  """DP-FTRL, and with momentum DP-FTRLM, for cumulative sums (arXiv:2103.00039).

  After round t, with s_t the sum that the aggregator returned, the model is

      v_t = momentum v_{t-1} + s_t
      w_t = w_0 - learning_rate v_t

  which is where SGD of that learning rate and momentum arrives on the rounds' means.

  For learning rates that change, or momentum in what is released, give these to the
  aggregator as its workload, and no momentum here; `ServerSchedule.ftrl` does.

  Args:
    learning_rate: The inverse of the paper's regularization strength lambda.
    momentum: At least 0 and below 1.

  Returns:
    A server optimizer for an aggregator whose result is cumulative; the processes of
    this package refuse it with others.

  Raises:
    TypeError: If an argument is no number.
    ValueError: If one is out of range.

  Example:
    >>> optimizer = build_ftrl(0.5)
    >>> weights = tf.constant([1.0, 2.0])
    >>> state = optimizer.initialize(tf.TensorSpec.from_tensor(weights))
    >>> for total in ([1.0, 0.0], [1.0, 2.0]):  # The second has the first in it.
    ...   state, weights = optimizer.next(state, weights, tf.constant(total))
    >>> weights.numpy().tolist()
    [0.5, 1.0]
  """
  return FTRL(learning_rate, momentum)
