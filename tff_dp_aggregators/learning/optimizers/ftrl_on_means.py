"""DP-FTRL and DP-FTRLM on the means of single rounds (arXiv:2103.00039).

`ftrl.FTRL` works on the sum of all rounds so far. Where an aggregator returns each
round's mean with the residual of its noise, that sum is the sum of the means: residuals
of the noise add up to the noise of the sums. So it is kept here, and handed on.
"""

import collections
from typing import Any

import tensorflow as tf
import tensorflow_federated as tff

from tff_dp_aggregators import strategies
from tff_dp_aggregators.learning.optimizers import ftrl


class FTRLOnMeans(tff.learning.optimizers.Optimizer):
  """`ftrl.FTRL` for an aggregator that returns the mean of each round.

  The state has one structure like the model more than that of FTRL: `total`, the sum of
  the means so far. The model is that of SGD with the same learning rate and momentum,
  to round-off.

  Example:
    >>> optimizer = FTRLOnMeans(ftrl.build_ftrl(0.5))
    >>> weights = tf.constant([1.0, 2.0])
    >>> state = optimizer.initialize(tf.TensorSpec.from_tensor(weights))
    >>> for mean in ([1.0, 0.0], [0.0, 2.0]):
    ...   state, weights = optimizer.next(state, weights, tf.constant(mean))
    >>> weights.numpy().tolist()
    [0.5, 1.0]
  """

  def __init__(self, on_sums: ftrl.FTRL):
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
