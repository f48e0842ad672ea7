"""Shared parts of the private learning processes: argument checks, and counting NaN.

Every process passes all clients' updates, equally weighted, through one aggregator, and
uses nothing else of a client but its training metrics.
"""

import collections
import contextlib
from collections.abc import Iterator
from typing import Any, Callable, Optional, Union

import tensorflow as tf
import tensorflow_federated as tff

from tff_dp_aggregators import aggregators
from tff_dp_aggregators.aggregators import clientwise
from tff_dp_aggregators.aggregators import factory
from tff_dp_aggregators.aggregators import tracing
from tff_dp_aggregators.learning import models
from tff_dp_aggregators.learning import optimizers

# The models that TFF's processes take.
ModelFn = Union[
  Callable[[], tff.learning.models.VariableModel],
  tff.learning.models.FunctionalModel,
]
# A function of a model's metric finalizers, such as those in `tff.learning.metrics`.
MetricsAggregator = Callable[[Any], Any]


class CountZeroWeights(tff.aggregators.WeightedAggregationFactory):
  """Ignores weights, but counts the clients whose weight is zero.

  TFF's client work replaces a non-finite model update by zeros, and indicates that only
  by weight zero; with uniform weighting no other client has weight zero.
  """

  def __init__(self, inner: tff.aggregators.UnweightedAggregationFactory):
    self._inner = inner

  def create(self, value_type: Any, weight_type: Any) -> Any:
    """Creates a process that measures clients of weight zero in `nonfinite_count`."""
    factory.check_value_type(value_type)
    inner = self._inner.create(value_type)

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
  if isinstance(model_fn, (tf.keras.Model, tff.learning.models.VariableModel)) or not (
    callable(model_fn) or isinstance(model_fn, tff.learning.models.FunctionalModel)
  ):
    raise TypeError(
      'model_fn must be a tff.learning.models.FunctionalModel, such as '
      'tff.learning.models.functional_model_from_keras(...), or a function without '
      'arguments that makes a tff.learning.models.VariableModel anew for each client, '
      f'such as by from_keras_model(...); got {type(model_fn).__name__}.'
    )
  if not isinstance(model_fn, tff.learning.models.FunctionalModel):
    with tf.Graph().as_default():
      keras_model = getattr(model_fn(), '_keras_model', None)
      if keras_model is not None:
        models.refuse(keras_model)
        models.refuse_batch_normalisation(keras_model)
  return model_fn


@contextlib.contextmanager
def restoring_keras() -> Iterator[None]:
  """Restores Keras's classes, which TFF changes by making models in TF 1 graphs."""
  try:
    yield
  finally:
    with tf.init_scope():
      # An explicit name does not advance Keras's counter of names.
      tf.keras.Sequential(name='unused')


def check_weighting(client_weighting: Any) -> None:
  """Refuses any weighting of clients but the uniform one."""
  if client_weighting != tff.learning.ClientWeighting.UNIFORM:
    raise ValueError(
      'client_weighting must be tff.learning.ClientWeighting.UNIFORM, got '
      f'{client_weighting}. Weights, such as numbers of examples, are data of clients: '
      'a weighted mean divides by their sum, which would be released without noise, '
      'and no privacy analysis here covers it.'
    )


def private_mean(
  aggregator: Any, server_optimizer: tff.learning.optimizers.Optimizer
) -> tff.aggregators.WeightedAggregationFactory:
  """Wraps an aggregator for TFF's processes, after checking it with the optimizer."""
  factory.check_unweighted('aggregator', aggregator)
  check_pair(aggregator, server_optimizer)
  return CountZeroWeights(aggregator)


# Wrappers of this package that do not change the results of the inner aggregator.
_WRAPPERS = (clientwise.ClientwiseFactory, aggregators.ZeroNonfiniteFactory)


def check_pair(
  aggregator: tff.aggregators.UnweightedAggregationFactory,
  server_optimizer: tff.learning.optimizers.Optimizer,
) -> None:
  """Refuses an aggregator whose results a server's optimizer cannot work on.

  This package's aggregators and TFF's mean are checked; others are accepted.
  """
  while isinstance(aggregator, _WRAPPERS):
    aggregator = aggregator.inner
  is_private = isinstance(aggregator, aggregators.DPMeanFactory)
  if not is_private and not isinstance(
    aggregator, tff.aggregators.UnweightedMeanFactory
  ):
    return
  workload = aggregator.workload if is_private else None
  if isinstance(server_optimizer, optimizers.FTRL):
    if workload is None:
      raise ValueError(
        'server_optimizer_fn is FTRL, which works on sums of all rounds so far, and '
        'the aggregator returns the mean of each round. Give an aggregator with a '
        'workload or cumulative=True; or tff.learning.optimizers.build_sgdm, or '
        'optimizer() of the same learning.ServerSchedule, which come to the same model.'
      )
    server_optimizer.check_workload(workload)
  elif workload is not None:
    raise ValueError(
      'the aggregator returns sums of all rounds so far, and server_optimizer_fn is '
      f'{type(server_optimizer).__name__}, which adds up means of single rounds. Use '
      'learning.build_ftrl(...), or leave out workload and cumulative=True.'
    )
  elif is_private and isinstance(server_optimizer, optimizers.ScheduledOptimizer):
    server_optimizer.check_participation(aggregator)


def check_optimizer(
  name: str, optimizer: Any, default: Optional[tff.learning.optimizers.Optimizer] = None
) -> tff.learning.optimizers.Optimizer:
  """Returns an optimizer that TFF's processes can use; `None` is the default."""
  if optimizer is None and default is not None:
    return default
  if not isinstance(optimizer, tff.learning.optimizers.Optimizer):
    raise TypeError(
      f'{name} must be a tff.learning.optimizers.Optimizer, such as '
      f'tff.learning.optimizers.build_sgdm(0.1); got {type(optimizer)}.'
    )
  return _Adafactor(optimizer) if isinstance(optimizer, _ADAFACTOR) else optimizer


def check_client_optimizer(
  optimizer: Any, name: str = 'client_optimizer_fn'
) -> tff.learning.optimizers.Optimizer:
  """Returns the clients' optimizer; `None` means SGD with learning rate 0.1."""
  if isinstance(optimizer, optimizers.FTRL):
    raise ValueError(
      f'{name} is FTRL on sums of rounds, which is for the server; on a '
      'client, the gradient of each batch stands for itself. Use '
      'tff.learning.optimizers.build_sgdm.'
    )
  default = tff.learning.optimizers.build_sgdm(0.1)
  return check_optimizer(name, optimizer, default)


_ADAFACTOR = type(tff.learning.optimizers.build_adafactor(1.0))


class _Adafactor(tff.learning.optimizers.Optimizer):
  """TFF's Adafactor, with a state of constant type, which TFF's processes require.

  In TFF 0.87 its `next` turns the number of steps from an integer into a float, and its
  `set_hparams` returns the hyperparameters instead of the state.
  """

  def __init__(self, inner: tff.learning.optimizers.Optimizer):
    self._inner = inner

  def initialize(self, specs: Any) -> Any:
    return _adafactor_state(self._inner.initialize(specs))

  def next(self, state: Any, weights: Any, gradients: Any) -> Any:
    state, weights = self._inner.next(state, weights, gradients)
    return _adafactor_state(state), weights

  def get_hparams(self, state: Any) -> Any:
    return self._inner.get_hparams(state)

  def set_hparams(self, state: Any, hparams: Any) -> Any:
    return _adafactor_state({**state, 'hparams': {**state['hparams'], **hparams}})


def _adafactor_state(state: Any) -> Any:
  return collections.OrderedDict(
    steps=tf.cast(state['steps'], tf.int32),
    moments=state['moments'],
    hparams=collections.OrderedDict(sorted(state['hparams'].items())),
  )
