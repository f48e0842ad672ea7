"""Federated averaging with a private aggregator."""

from typing import Any, Callable, Optional, Union

import tensorflow as tf
import tensorflow_federated as tff

from tff_dp_aggregators.aggregators import nonfinite

_ModelFn = Union[
  Callable[[], tff.learning.models.VariableModel],
  tff.learning.models.FunctionalModel,
]


class _CountZeroWeights(tff.aggregators.WeightedAggregationFactory):
  """Ignores weights, but counts the clients whose weight is zero.

  TFF's client work replaces a non-finite model update by zeros and tells of it only
  by giving it weight zero; under uniform weighting no other client has that.
  """

  def __init__(self, inner: tff.aggregators.UnweightedAggregationFactory):
    self._inner = inner

  def create(self, value_type: Any, weight_type: Any) -> Any:
    inner = self._inner.create(value_type)

    @tff.tensorflow.computation(weight_type)
    def is_zero(weight: tf.Tensor) -> tf.Tensor:
      return tf.cast(tf.equal(weight, 0), tf.int32)

    @tff.federated_computation(
      inner.state_type,
      tff.FederatedType(value_type, tff.CLIENTS),
      tff.FederatedType(weight_type, tff.CLIENTS),
    )
    def next_fn(state: Any, value: Any, weight: Any) -> Any:
      output = inner.next(state, value)
      count = tff.federated_sum(tff.federated_map(is_zero, weight))
      return tff.templates.MeasuredProcessOutput(
        output.state,
        output.result,
        nonfinite.add_nonfinite_count(output.measurements, count),
      )

    return tff.templates.AggregationProcess(inner.initialize, next_fn)


def build_dp_fed_avg(
  model_fn: _ModelFn,
  aggregator: tff.aggregators.UnweightedAggregationFactory,
  *,
  client_optimizer_fn: Optional[tff.learning.optimizers.Optimizer] = None,
  server_optimizer_fn: Optional[tff.learning.optimizers.Optimizer] = None,
  metrics_aggregator: Any = tff.learning.metrics.sum_then_finalize,
  loop_implementation: tff.learning.LoopImplementation = (
    tff.learning.LoopImplementation.DATASET_ITERATOR
  ),
) -> tff.learning.templates.LearningProcess:
  """Builds federated averaging whose only look at client updates is `aggregator`.

  Every client counts alike: a weight by number of examples would be data that the
  privacy analysis does not cover. The process is that of
  `tff.learning.algorithms.build_unweighted_fed_avg`, with one thing added: clients
  whose local training ended in NaN or infinity, which TFF replaces by zeros without
  a word, are counted in the aggregator's measurement `nonfinite_count`.

  The clients' own training metrics in the process's output are *not* private.

  Args:
    model_fn: A `tff.learning.models.FunctionalModel`, which simulates fastest, or a
      function without arguments that returns a `VariableModel`.
    aggregator: Aggregates client updates, e.g. `aggregators.banded(...)`.
    client_optimizer_fn: Trains on a client; `None` means SGD with learning rate 0.1.
    server_optimizer_fn: Applies the mean of client updates; `None` means SGD with
      learning rate 0.2 and momentum 0.9, which goes twice as far as plain averaging and
      averages the noise of some ten rounds (the default of `experiments.simulate` as
      well).
    metrics_aggregator: How the clients' metrics are combined: a function of the model's
      metric finalizers, such as those in `tff.learning.metrics`.
    loop_implementation: How TFF iterates over client data; the default is the faster.

  Returns:
    A learning process.

  Raises:
    TypeError: If `aggregator` is not an unweighted aggregation factory.
  """
  nonfinite.check_unweighted('aggregator', aggregator)
  if client_optimizer_fn is None:
    client_optimizer_fn = tff.learning.optimizers.build_sgdm(0.1)
  if server_optimizer_fn is None:
    server_optimizer_fn = tff.learning.optimizers.build_sgdm(0.2, momentum=0.9)
  # What build_unweighted_fed_avg calls, which would drop the weights uncounted.
  return tff.learning.algorithms.build_weighted_fed_avg(
    model_fn,
    client_optimizer_fn,
    server_optimizer_fn,
    client_weighting=tff.learning.ClientWeighting.UNIFORM,
    model_aggregator=_CountZeroWeights(aggregator),
    metrics_aggregator=metrics_aggregator,
    loop_implementation=loop_implementation,
  )
