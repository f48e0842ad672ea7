"""Federated averaging with a private aggregator."""

import collections
from typing import Any, Optional

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff
from tensorflow_federated.python.learning.templates import model_delta_client_work

from tff_dp_aggregators.aggregators import tracing
from tff_dp_aggregators.learning import process_parts
from tff_dp_aggregators.learning.optimizers import client_schedule


def default_server_optimizer() -> tff.learning.optimizers.Optimizer:
  """SGD with learning rate 0.2 and momentum 0.9.

  It goes twice as far as plain averaging, and averages the noise of some ten rounds.
  """
  return tff.learning.optimizers.build_sgdm(0.2, momentum=0.9)


def build_dp_fed_avg(
  model_fn: process_parts.ModelFn,
  aggregator: tff.aggregators.UnweightedAggregationFactory,
  *,
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
      well). An aggregator with cumulative results needs `learning.build_ftrl`.
    client_weighting: Uniform, the only one that is private; others are refused.
    metrics_aggregator: How the clients' metrics are combined: a function of the model's
      metric finalizers, such as those in `tff.learning.metrics`.
    loop_implementation: How TFF iterates over client data; the default is the faster.

  Returns:
    A learning process.

  Raises:
    TypeError: If `aggregator` is not an unweighted aggregation factory, or another
      argument not of its type.
    ValueError: If clients are to be weighted, `server_optimizer_fn` is not for the
      results of `aggregator`, or a Keras model has what cannot be trained so, such as
      batch normalisation.
  """
  process_parts.check_weighting(client_weighting)
  server_optimizer = process_parts.check_optimizer(
    'server_optimizer_fn',
    server_optimizer_fn,
    default=default_server_optimizer(),
  )
  # What build_unweighted_fed_avg calls, which would drop the weights uncounted.
  with process_parts.keras_as_before():
    return tff.learning.algorithms.build_weighted_fed_avg(
      process_parts.check_model(model_fn),
      process_parts.check_client_optimizer(client_optimizer_fn),
      server_optimizer,
      client_weighting=client_weighting,
      model_aggregator=process_parts.private_mean(aggregator, server_optimizer),
      metrics_aggregator=metrics_aggregator,
      loop_implementation=loop_implementation,
    )


def build_scheduled_dp_fed_avg(
  model: tff.learning.models.FunctionalModel,
  aggregator: tff.aggregators.UnweightedAggregationFactory,
  schedule: client_schedule.ClientSchedule,
  server_optimizer: tff.learning.optimizers.Optimizer,
) -> tff.learning.templates.LearningProcess:
  """Builds `build_dp_fed_avg` whose clients' learning rate follows from the round.

  The number of the round is the state of the clients' work, as it is in
  `tff.learning.algorithms.build_weighted_fed_avg_with_optimizer_schedule` of TFF 0.87,
  which fails for functional models.
  """
  initial = tff.learning.models.ModelWeights(*map(tuple, model.initial_weights))
  initial_weights = tff.tensorflow.computation(
    lambda: tf.nest.map_structure(tf.convert_to_tensor, initial)
  )
  weights_type = initial_weights.type_signature.result
  private_mean = process_parts.private_mean(aggregator, server_optimizer)
  return tff.learning.templates.compose_learning_process(
    initial_weights,
    tff.learning.templates.build_broadcast_process(weights_type),
    _scheduled_work(model, schedule, weights_type),
    private_mean.create(weights_type.trainable, tff.TensorType(np.float32)),
    tff.learning.templates.build_apply_optimizer_finalizer(
      server_optimizer, weights_type
    ),
  )


def _scheduled_work(
  model: tff.learning.models.FunctionalModel,
  schedule: client_schedule.ClientSchedule,
  weights_type: tff.Type,
) -> tff.learning.templates.ClientWorkProcess:
  """What clients do in a round, whose number is the state."""
  data_type = tff.SequenceType(tff.types.tensorflow_to_type(model.input_spec))

  @tff.tensorflow.computation(weights_type, data_type, np.float32)
  def train(weights: Any, dataset: Any, learning_rate: Any) -> Any:
    update = model_delta_client_work.build_functional_model_delta_update(
      model=model,
      weighting=tff.learning.ClientWeighting.UNIFORM,
      loop_implementation=tff.learning.LoopImplementation.DATASET_ITERATOR,
    )
    optimizer = schedule.make(learning_rate)
    return update(optimizer, (weights.trainable, weights.non_trainable), dataset)

  learning_rate = tff.tensorflow.computation(
    tracing.as_written(schedule.learning_rate), np.int32
  )
  next_round = tff.tensorflow.computation(lambda this_round: this_round + 1, np.int32)

  @tff.federated_computation
  def init_fn() -> Any:
    return tff.federated_value(0, tff.SERVER)

  @tff.federated_computation(
    init_fn.type_signature.result,
    tff.FederatedType(weights_type, tff.CLIENTS),
    tff.FederatedType(data_type, tff.CLIENTS),
  )
  def next_fn(state: Any, weights: Any, data: Any) -> Any:
    rate = tff.federated_map(learning_rate, state)
    updates, metrics = tff.federated_map(
      train, (weights, data, tff.federated_broadcast(rate))
    )
    finalized = tff.learning.metrics.sum_then_finalize(model.finalize_metrics)(metrics)
    return tff.templates.MeasuredProcessOutput(
      tff.federated_map(next_round, state),
      updates,
      tff.federated_zip(
        collections.OrderedDict(train=finalized, client_learning_rate=rate)
      ),
    )

  return tff.learning.templates.ClientWorkProcess(init_fn, next_fn)
