"""FedProx with a private aggregator: clients stay near the model that they were given.

Federated Optimization in Heterogeneous Networks, arXiv:1812.06127. TFF 0.87 has a
FedProx as well, whose proximal term has the wrong sign: it adds
`proximal_strength * (w_0 - w)` to the gradient, which drives clients away from the
server's model, the faster the farther they are. So it is not used here.
"""

import collections
from typing import Any, Optional

import tensorflow as tf
import tensorflow_federated as tff

from tff_dp_aggregators.base import checks
from tff_dp_aggregators.learning import fed_avg
from tff_dp_aggregators.learning import process_parts


class _Proximal(tff.learning.optimizers.Optimizer):
  """Minimises a loss plus strength / 2 times the squared distance from the start.

  The state has the first weights that it saw, which on a client are the server's.
  """

  def __init__(self, inner: tff.learning.optimizers.Optimizer, strength: float):
    self._inner = inner
    self._strength = strength

  def initialize(self, specs: Any) -> Any:
    zeros = [tf.zeros(spec.shape, spec.dtype) for spec in tf.nest.flatten(specs)]
    return collections.OrderedDict(
      is_first=tf.constant(True),
      first_weights=tuple(zeros),
      optimizer=self._inner.initialize(specs),
    )

  def next(self, state: Any, weights: Any, gradients: Any) -> Any:
    now = tf.nest.flatten(weights)
    first = tuple(
      tf.where(state['is_first'], weight, kept)
      for weight, kept in zip(now, state['first_weights'])
    )
    # The term's gradient (arXiv:1812.06127, equation 2).
    pulled = [
      _dense(gradient, weight) + self._strength * (weight - start)
      for gradient, weight, start in zip(tf.nest.flatten(gradients), now, first)
    ]
    optimizer, weights = self._inner.next(
      state['optimizer'], weights, tf.nest.pack_sequence_as(weights, pulled)
    )
    return collections.OrderedDict(
      is_first=tf.constant(False), first_weights=first, optimizer=optimizer
    ), weights

  def get_hparams(self, state: Any) -> Any:
    return self._inner.get_hparams(state['optimizer'])

  def set_hparams(self, state: Any, hparams: Any) -> Any:
    return collections.OrderedDict(
      state, optimizer=self._inner.set_hparams(state['optimizer'], hparams)
    )


def _dense(gradient: Any, weight: tf.Tensor) -> tf.Tensor:
  """A gradient as a tensor: TensorFlow has none for weights without use."""
  return tf.zeros_like(weight) if gradient is None else tf.convert_to_tensor(gradient)


def proximal(
  optimizer: tff.learning.optimizers.Optimizer, proximal_strength: float
) -> tff.learning.optimizers.Optimizer:
  """A client's optimizer with the proximal term."""
  checks.check_not_negative('proximal_strength', proximal_strength)
  return _Proximal(optimizer, float(proximal_strength))


def build_dp_fed_prox(
  model_fn: process_parts.ModelFn,
  aggregator: tff.aggregators.UnweightedAggregationFactory,
  *,
  proximal_strength: float,
  client_optimizer_fn: Optional[tff.learning.optimizers.Optimizer] = None,
  server_optimizer_fn: Optional[tff.learning.optimizers.Optimizer] = None,
  client_weighting: tff.learning.ClientWeighting = (
    tff.learning.ClientWeighting.UNIFORM
  ),
  metrics_aggregator: process_parts.MetricsAggregator = (
    tff.learning.metrics.sum_then_finalize
  ),
  loop_implementation: tff.learning.LoopImplementation = (
    tff.learning.LoopImplementation.DATASET_ITERATOR
  ),
) -> tff.learning.templates.LearningProcess:
  """Builds FedProx whose only look at client updates is `aggregator`.

  It is `build_dp_fed_avg`, but that a client minimises its loss plus
  `proximal_strength / 2` times the squared distance from the model that it was given.
  Updates are then shorter, and fewer are clipped, where clients are unlike each other.

  Args:
    model_fn: As for `build_dp_fed_avg`, and so are the others.
    aggregator: Aggregates client updates.
    proximal_strength: The paper's mu, at least 0; with 0 it is federated averaging.
      Times the client's learning rate it should be below 1, for with more a step goes
      beyond the model that it is pulled to.
    client_optimizer_fn: Trains on a client.
    server_optimizer_fn: Applies the mean of client updates.
    client_weighting: Uniform; others are refused.
    metrics_aggregator: How the clients' metrics are combined.
    loop_implementation: How TFF iterates over client data.

  Returns:
    A learning process.

  Raises:
    TypeError: As for `build_dp_fed_avg`.
    ValueError: As for it, or if `proximal_strength` is negative or not finite.
  """
  client_optimizer = process_parts.check_client_optimizer(client_optimizer_fn)
  return fed_avg.build_dp_fed_avg(
    model_fn,
    aggregator,
    client_optimizer_fn=proximal(client_optimizer, proximal_strength),
    server_optimizer_fn=server_optimizer_fn,
    client_weighting=client_weighting,
    metrics_aggregator=metrics_aggregator,
    loop_implementation=loop_implementation,
  )
