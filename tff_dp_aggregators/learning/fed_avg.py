"""Federated averaging, FedProx and federated SGD with a private aggregator.

Every process passes all clients' updates, equally weighted, through one aggregator, and
uses nothing else of a client but its training metrics.
"""

import collections
import contextlib
from collections.abc import Iterator
from typing import Any, Callable, Optional, Union

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff
from tensorflow_federated.python.learning.algorithms import (
  fed_avg_with_optimizer_schedule,
)

from tff_dp_aggregators.aggregators import clientwise
from tff_dp_aggregators.aggregators import factory
from tff_dp_aggregators.aggregators import tracing
from tff_dp_aggregators.base import checks
from tff_dp_aggregators.learning import models
from tff_dp_aggregators.learning import optimizers

_UNIFORM = tff.learning.ClientWeighting.UNIFORM
_DATASET_ITERATOR = tff.learning.LoopImplementation.DATASET_ITERATOR
_SUM = tff.learning.metrics.sum_then_finalize
# The models that TFF's processes take.
ModelFn = Union[
  Callable[[], tff.learning.models.VariableModel],
  tff.learning.models.FunctionalModel,
]
# A function of a model's metric finalizers, such as those in `tff.learning.metrics`.
MetricsAggregator = Callable[[Any], Any]


def default_server_optimizer() -> tff.learning.optimizers.Optimizer:
  """SGD that goes twice as far as averaging; averages noise over some ten rounds."""
  return tff.learning.optimizers.build_sgdm(0.2, momentum=0.9)


class _CountZeroWeights(tff.aggregators.WeightedAggregationFactory):
  """Counts clients of weight 0, by which TFF shows updates that are not finite."""

  def __init__(self, inner: tff.aggregators.UnweightedAggregationFactory):
    self._inner = inner
    _, mean = clientwise.unwrapped(inner)
    # These zero NaN, and count it as they sum records, or not where clients add noise.
    self._takes_nan = isinstance(
      mean, (factory.DPMeanFactory, clientwise.ZeroNonfiniteFactory)
    )

  def create(self, value_type: Any, weight_type: Any) -> Any:
    """Creates a process that measures clients of weight zero in `nonfinite_count`."""
    factory.check_value_type(value_type)
    inner = self._inner.create(value_type)

    @tff.tensorflow.computation(value_type, weight_type)
    @tracing.as_written
    def with_nan(value: Any, weight: tf.Tensor) -> Any:
      return tf.nest.map_structure(
        lambda each: tf.where(tf.equal(weight, 0), tf.cast(np.nan, each.dtype), each),
        value,
      )

    @tff.tensorflow.computation(weight_type)
    @tracing.as_written
    def is_zero(weight: tf.Tensor) -> tf.Tensor:
      return tf.cast(tf.equal(weight, 0), tf.int32)

    @tff.federated_computation(
      inner.state_type,
      tff.FederatedType(value_type, tff.CLIENTS),
      tff.FederatedType(weight_type, tff.CLIENTS),
    )
    def next_fn(state: Any, value: Any, weight: Any) -> Any:
      if self._takes_nan:
        return inner.next(state, tff.federated_map(with_nan, (value, weight)))
      output = inner.next(state, value)
      count = tff.federated_sum(tff.federated_map(is_zero, weight))
      return tff.templates.MeasuredProcessOutput(
        output.state,
        output.result,
        factory.add_nonfinite_count(output.measurements, count),
      )

    return tff.templates.AggregationProcess(inner.initialize, next_fn)


def check_model(model_fn: Any) -> ModelFn:
  """Returns the model; the error says how to make one from what was given."""
  if isinstance(model_fn, tff.learning.models.FunctionalModel):
    return model_fn
  if not callable(model_fn) or isinstance(
    model_fn, (tf.keras.Model, tff.learning.models.VariableModel)
  ):
    raise TypeError(
      'model_fn must be a tff.learning.models.FunctionalModel, such as '
      'tff.learning.models.functional_model_from_keras(...), or a function without '
      'arguments that makes a tff.learning.models.VariableModel anew for each client, '
      f'such as by from_keras_model(...); got {type(model_fn).__name__}.'
    )
  with tf.Graph().as_default():
    keras_model = getattr(model_fn(), '_keras_model', None)
    if keras_model is not None:
      models.refuse(keras_model)
      models.refuse_batch_normalisation(keras_model)
  return model_fn


@contextlib.contextmanager
def _restoring_keras() -> Iterator[None]:
  """Restores Keras's classes, which TFF changes by making models in TF 1 graphs."""
  try:
    yield
  finally:
    with tf.init_scope():
      # An explicit name does not advance Keras's counter of names.
      tf.keras.Sequential(name='unused')


def _private_mean(
  aggregator: Any, server_optimizer: tff.learning.optimizers.Optimizer
) -> tff.aggregators.WeightedAggregationFactory:
  factory.check_unweighted('aggregator', aggregator)
  optimizers.check_pair(aggregator, server_optimizer)
  return _CountZeroWeights(aggregator)


def build_dp_fed_avg(
  model_fn: ModelFn,
  aggregator: tff.aggregators.UnweightedAggregationFactory,
  *,
  client_optimizer_fn: Optional[tff.learning.optimizers.Optimizer] = None,
  server_optimizer_fn: Optional[tff.learning.optimizers.Optimizer] = None,
  client_weighting: tff.learning.ClientWeighting = _UNIFORM,
  metrics_aggregator: MetricsAggregator = _SUM,
  loop_implementation: tff.learning.LoopImplementation = _DATASET_ITERATOR,
) -> tff.learning.templates.LearningProcess:
  """Builds federated averaging that uses client updates only through `aggregator`.

  The process is that of `tff.learning.algorithms.build_unweighted_fed_avg`, but clients
  whose local training ended in NaN or infinity, which TFF silently replaces by zeros,
  are counted in the aggregator's measurement `nonfinite_count`, unless clients add
  noise. The clients' own training metrics in the process's output are *not* private.

  Args:
    model_fn: A `tff.learning.models.FunctionalModel`, which simulates fastest, or a
      function without arguments that returns a `VariableModel`.
    aggregator: Aggregates client updates, e.g. `aggregators.banded(...)`.
    client_optimizer_fn: Trains on a client; `None` means SGD with learning rate 0.1.
    server_optimizer_fn: Applies the mean of client updates; `None` means SGD with
      learning rate 0.2 and momentum 0.9. An aggregator with cumulative results needs
      `learning.build_ftrl`.
    client_weighting: Must be uniform, the only private weighting.
    metrics_aggregator: How the clients' metrics are combined: a function of the model's
      metric finalizers, such as those in `tff.learning.metrics`.
    loop_implementation: How TFF iterates over client data; the default is faster.

  Raises:
    TypeError: If an argument is not of its type.
    ValueError: If clients are to be weighted, optimizer and aggregator do not go
      together, or a Keras model has layers that cannot be trained in this way.
  """
  if client_weighting != _UNIFORM:
    raise ValueError(
      'client_weighting must be tff.learning.ClientWeighting.UNIFORM, got '
      f'{client_weighting}. Weights, such as numbers of examples, are data of clients: '
      'a weighted mean divides by their sum, which would be released without noise, '
      'and no privacy analysis here covers it.'
    )
  server_optimizer = optimizers.check_optimizer(
    'server_optimizer_fn',
    server_optimizer_fn,
    default=default_server_optimizer(),
  )
  # build_unweighted_fed_avg calls this too, but drops the weights without counting.
  with _restoring_keras():
    return tff.learning.algorithms.build_weighted_fed_avg(
      check_model(model_fn),
      optimizers.check_client_optimizer(client_optimizer_fn),
      server_optimizer,
      client_weighting=client_weighting,
      model_aggregator=_private_mean(aggregator, server_optimizer),
      metrics_aggregator=metrics_aggregator,
      loop_implementation=loop_implementation,
    )


class Proximal(tff.learning.optimizers.Optimizer):
  """FedProx's pull to the initial weights, which in TFF 0.87 has the wrong sign."""

  def __init__(self, inner: tff.learning.optimizers.Optimizer, strength: float):
    checks.check_not_negative('proximal_strength', strength)
    self._inner = inner
    self._strength = float(strength)

  def initialize(self, specs: Any) -> Any:
    """The state before the first step, which keeps the weights that it gets."""
    zeros = [tf.zeros(spec.shape, spec.dtype) for spec in tf.nest.flatten(specs)]
    return collections.OrderedDict(
      is_first=tf.constant(True),
      first_weights=tuple(zeros),
      optimizer=self._inner.initialize(specs),
    )

  def next(self, state: Any, weights: Any, gradients: Any) -> Any:
    """Adds the gradient of the term, and takes a step."""
    current = tf.nest.flatten(weights)
    first = tuple(
      tf.where(state['is_first'], weight, saved)
      for weight, saved in zip(current, state['first_weights'])
    )
    # The gradient of an unused weight is None in TensorFlow.
    dense = [
      tf.zeros_like(weight) if gradient is None else tf.convert_to_tensor(gradient)
      for gradient, weight in zip(tf.nest.flatten(gradients), current)
    ]
    # The term's gradient (arXiv:1812.06127, equation 2).
    pulled = [
      gradient + self._strength * (weight - start)
      for gradient, weight, start in zip(dense, current, first)
    ]
    optimizer, weights = self._inner.next(
      state['optimizer'], weights, tf.nest.pack_sequence_as(weights, pulled)
    )
    return collections.OrderedDict(
      is_first=tf.constant(False), first_weights=first, optimizer=optimizer
    ), weights


def build_dp_fed_prox(
  model_fn: ModelFn,
  aggregator: tff.aggregators.UnweightedAggregationFactory,
  *,
  proximal_strength: float,
  client_optimizer_fn: Optional[tff.learning.optimizers.Optimizer] = None,
  server_optimizer_fn: Optional[tff.learning.optimizers.Optimizer] = None,
  client_weighting: tff.learning.ClientWeighting = _UNIFORM,
  metrics_aggregator: MetricsAggregator = _SUM,
  loop_implementation: tff.learning.LoopImplementation = _DATASET_ITERATOR,
) -> tff.learning.templates.LearningProcess:
  """Builds FedProx that uses client updates only through `aggregator`.

  It differs from `build_dp_fed_avg` in that a client minimises its loss plus
  `proximal_strength / 2` times the squared distance from the server's model
  (arXiv:1812.06127). For heterogeneous clients, updates are shorter and fewer clipped.

  `proximal_strength` is the paper's mu, at least 0; with 0 it is federated averaging.
  Times the client's learning rate it should be below 1, because otherwise a step
  overshoots the server's model. Other arguments and errors are those of
  `build_dp_fed_avg`.
  """
  client_optimizer = optimizers.check_client_optimizer(client_optimizer_fn)
  return build_dp_fed_avg(
    model_fn,
    aggregator,
    client_optimizer_fn=Proximal(client_optimizer, proximal_strength),
    server_optimizer_fn=server_optimizer_fn,
    client_weighting=client_weighting,
    metrics_aggregator=metrics_aggregator,
    loop_implementation=loop_implementation,
  )


def build_dp_fed_sgd(
  model_fn: ModelFn,
  aggregator: tff.aggregators.UnweightedAggregationFactory,
  *,
  server_optimizer_fn: Optional[tff.learning.optimizers.Optimizer] = None,
  metrics_aggregator: MetricsAggregator = _SUM,
  loop_implementation: tff.learning.LoopImplementation = _DATASET_ITERATOR,
) -> tff.learning.templates.LearningProcess:
  """Builds federated SGD that uses client gradients only through `aggregator`.

  A client computes the mean gradient of its examples at the server's model, without
  local training (arXiv:1602.05629). This is `tff.learning.algorithms.build_fed_sgd`
  with equal weights for all clients. With one example per client, it is DP-SGD.

  A client without examples has a gradient of zeros, and is counted like gradients that
  are not finite. Arguments and errors are those of `build_dp_fed_avg`, except that the
  clip norm of `aggregator` is that of a gradient, and that `None` as
  `server_optimizer_fn` means SGD with learning rate 0.1.
  """
  server_optimizer = optimizers.check_optimizer(
    'server_optimizer_fn',
    server_optimizer_fn,
    default=tff.learning.optimizers.build_sgdm(0.1),
  )
  with _restoring_keras():
    return tff.learning.algorithms.build_fed_sgd(
      check_model(model_fn),
      server_optimizer,
      model_aggregator=_private_mean(aggregator, server_optimizer),
      metrics_aggregator=metrics_aggregator,
      loop_implementation=loop_implementation,
    )


def build_scheduled_dp_fed_avg(
  model: tff.learning.models.FunctionalModel,
  aggregator: tff.aggregators.UnweightedAggregationFactory,
  schedule: optimizers.ClientSchedule,
  server_optimizer: tff.learning.optimizers.Optimizer,
) -> tff.learning.templates.LearningProcess:
  """Builds federated averaging whose clients' learning rate depends on the round.

  TFF 0.87's `build_weighted_fed_avg_with_optimizer_schedule` fails for such models,
  since it does not make tensors of their weights; its client work does not.
  """
  initial = tff.learning.models.ModelWeights(*map(tuple, model.initial_weights))
  initial_weights = tff.tensorflow.computation(
    lambda: tf.nest.map_structure(tf.convert_to_tensor, initial)
  )
  weights_type = initial_weights.type_signature.result
  mean = _private_mean(aggregator, server_optimizer)
  return tff.learning.templates.compose_learning_process(
    initial_weights,
    tff.learning.templates.build_broadcast_process(weights_type),
    fed_avg_with_optimizer_schedule.build_scheduled_client_work(
      model, tracing.as_written(schedule.learning_rate), schedule.make, _SUM
    ),
    mean.create(weights_type.trainable, tff.TensorType(np.float32)),
    tff.learning.templates.build_apply_optimizer_finalizer(
      server_optimizer, weights_type
    ),
  )
