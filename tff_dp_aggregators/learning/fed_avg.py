"""Federated averaging with a private aggregator."""

from typing import Optional

import tensorflow_federated as tff

from tff_dp_aggregators.learning import process_parts


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
