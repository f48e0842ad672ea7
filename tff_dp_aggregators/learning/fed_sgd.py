"""Federated SGD with a private aggregator: each client gives one gradient.

Communication-Efficient Learning of Deep Networks from Decentralized Data,
arXiv:1602.05629.
"""

import collections
from typing import Any, Optional

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_dp_aggregators.aggregators import factory
from tff_dp_aggregators.aggregators import tracing
from tff_dp_aggregators.learning import process_parts


def build_dp_fed_sgd(
  model_fn: process_parts.ModelFn,
  aggregator: tff.aggregators.UnweightedAggregationFactory,
  *,
  server_optimizer_fn: Optional[tff.learning.optimizers.Optimizer] = None,
  metrics_aggregator: process_parts.MetricsAggregator = (
    tff.learning.metrics.sum_then_finalize
  ),
  loop_implementation: tff.learning.LoopImplementation = (
    tff.learning.LoopImplementation.DATASET_ITERATOR
  ),
) -> tff.learning.templates.LearningProcess:
  """Builds federated SGD whose only look at client gradients is `aggregator`.

  A client computes the mean gradient of its examples at the server's model, and trains
  nothing: the process of `tff.learning.algorithms.build_fed_sgd`, but that every client
  counts alike, as a weight by number of examples would be data that the privacy
  analysis does not cover. With one example a client, it is DP-SGD.

  A client without examples has a gradient of zeros; what is not finite is counted as in
  `build_dp_fed_avg`.

  Args:
    model_fn: As for `build_dp_fed_avg`.
    aggregator: Aggregates client gradients, e.g. `aggregators.banded(...)`; its clip
      norm is that of a gradient.
    server_optimizer_fn: Applies the mean of gradients; `None` means SGD with learning
      rate 0.1. An aggregator with cumulative results needs `learning.build_ftrl`.
    metrics_aggregator: How the clients' metrics are combined.
    loop_implementation: How TFF iterates over client data.

  Returns:
    A learning process.

  Raises:
    TypeError: As for `build_dp_fed_avg`.
    ValueError: As for it.
  """
  server_optimizer = process_parts.check_optimizer(
    'server_optimizer_fn',
    server_optimizer_fn,
    default=tff.learning.optimizers.build_sgdm(0.1),
  )
  with process_parts.keras_as_before():
    process = tff.learning.algorithms.build_fed_sgd(
      process_parts.check_model(model_fn),
      server_optimizer,
      model_aggregator=process_parts.private_mean(aggregator, server_optimizer),
      metrics_aggregator=metrics_aggregator,
      loop_implementation=loop_implementation,
    )
  return _without_empty_clients_counted(process)


def _without_empty_clients_counted(
  process: tff.learning.templates.LearningProcess,
) -> tff.learning.templates.LearningProcess:
  """Takes the clients without examples out of `nonfinite_count`.

  In TFF their mean gradient is 0 / 0, not a number, and so their weight zero, as it is
  where a gradient went wrong. Nothing is wrong with them.
  """
  state_type, clients_type = process.next.type_signature.parameter
  metrics_type = process.next.type_signature.result.metrics

  @tff.tensorflow.computation(clients_type.member)
  @tracing.as_written
  def is_empty(dataset: tf.data.Dataset) -> tf.Tensor:
    options = tf.data.Options()
    options.autotune.enabled = False  # It would complain of being ended so soon.
    first = dataset.take(1).with_options(options)
    batches = first.reduce(0, lambda count, unused_batch: count + 1)
    return tf.cast(tf.equal(batches, 0), tf.int32)

  @tff.tensorflow.computation(metrics_type.member, np.int32)
  @tracing.as_written
  def subtract(metrics: Any, num_empty: tf.Tensor) -> Any:
    measured = collections.OrderedDict(metrics['aggregator'])
    measured[factory.NONFINITE_COUNT] -= num_empty
    return collections.OrderedDict(metrics, aggregator=measured)

  @tff.federated_computation(state_type, clients_type)
  def next_fn(state: Any, clients: Any) -> Any:
    output = process.next(state, clients)
    num_empty = tff.federated_sum(tff.federated_map(is_empty, clients))
    return tff.learning.templates.LearningProcessOutput(
      output.state, tff.federated_map(subtract, (output.metrics, num_empty))
    )

  return tff.learning.templates.LearningProcess(
    process.initialize,
    next_fn,
    process.get_model_weights,
    process.set_model_weights,
    get_hparams_fn=process.get_hparams,
    set_hparams_fn=process.set_hparams,
  )
