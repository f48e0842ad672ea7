"""Aggregation factories that change each client's value before an inner aggregation.

The mechanism clips the changed value like any other value, so sensitivity and event are
those of the mechanism. Only `ZeroNonfiniteFactory` counts the values that it changes.
"""

import abc
from typing import Any, Callable, NamedTuple, Optional

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_dp_aggregators.aggregators import factory
from tff_dp_aggregators.aggregators import tracing
from tff_dp_aggregators.base import checks
from tff_dp_aggregators.queries import grid
from tff_dp_aggregators.strategies.numerics import bands


class ClientwiseFactory(tff.aggregators.UnweightedAggregationFactory, abc.ABC):
  """Changes each client's value before an inner factory, which has the state."""

  def __init__(self, inner: tff.aggregators.UnweightedAggregationFactory):
    factory.check_unweighted('inner', inner)
    # The factory that aggregates the changed values.
    self.inner = inner

  @abc.abstractmethod
  def of_client(self, value: Any) -> Any:
    """Returns the changed value of a client, as tensors."""

  def create(self, value_type: Any) -> tff.templates.AggregationProcess:
    """Creates the process, which applies the inner process to the changed values."""
    factory.check_value_type(value_type)
    inner = self.inner.create(value_type)

    of_client = tff.tensorflow.computation(
      tracing.as_written(self.of_client), value_type
    )

    @tff.federated_computation(
      inner.initialize.type_signature.result, tff.FederatedType(value_type, tff.CLIENTS)
    )
    def next_fn(state: Any, value: Any) -> Any:
      return inner.next(state, tff.federated_map(of_client, value))

    return tff.templates.AggregationProcess(inner.initialize, next_fn)


class ZeroLargeFactory(ClientwiseFactory):
  """Replaces values with a norm above a bound by zeros, then aggregates.

  It is `tff.aggregators.zeroing_factory` with a fixed norm, but without a count: TFF
  measures exactly how many values were zeroed, which is not private. Values with NaN or
  infinity are unchanged; the mechanism zeroes and counts them.
  """

  def __init__(
    self, inner: tff.aggregators.UnweightedAggregationFactory, *, norm: float
  ):
    """Initializes the factory.

    Args:
      inner: Aggregates the values.
      norm: Largest L2 norm of a value that is kept. It must not be chosen by looking at
        clients' values.

    Raises:
      TypeError: If `inner` is not an unweighted aggregation factory, or `norm` is not a
        number.
      ValueError: If `norm` is not positive and finite.
    """
    super().__init__(inner)
    # Largest L2 norm of a value that is kept.
    self.norm = checks.check_positive('norm', norm)

  def of_client(self, value: Any) -> Any:
    """Returns the value, or zeros if its norm is too large."""
    largest = tf.constant(0.0, tf.float64)
    flat = []
    for tensor in tf.nest.flatten(value):
      _check_float(tensor)
      flat.append(tf.cast(tensor, tf.float64))
      largest = tf.maximum(largest, tf.reduce_max(tf.abs(flat[-1])))
    # Scales entries to at most 1, because squares of large float64 numbers overflow.
    scale = tf.where(largest > 0, largest, tf.ones_like(largest))
    squares = tf.add_n([tf.reduce_sum(tf.square(each / scale)) for each in flat])
    is_large = tf.sqrt(squares) > self.norm / scale
    is_zeroed = tf.logical_and(grid.all_finite(flat), is_large)
    return tf.nest.map_structure(
      lambda tensor: tf.where(is_zeroed, tf.zeros_like(tensor), tensor), value
    )


def unwrapped(aggregator: Any) -> tuple[tuple[Callable[[Any], Any], ...], Any]:
  """Returns the changes that clients make, in order, and the innermost factory."""
  steps: list[Callable[[Any], Any]] = []
  while isinstance(aggregator, ClientwiseFactory):
    steps.append(aggregator.of_client)
    aggregator = aggregator.inner
  return tuple(steps), aggregator


class CoordinateBoundsFactory(ClientwiseFactory):
  """Clips each coordinate of a value to an interval around 0, then aggregates.

  It prevents a single large coordinate from using up the clip norm. NaN and infinity
  are unchanged; the mechanism zeroes and counts values with them.
  """

  def __init__(
    self, inner: tff.aggregators.UnweightedAggregationFactory, *, bounds: Any
  ):
    """Initializes the factory.

    Args:
      inner: Aggregates the values.
      bounds: Largest magnitude of a coordinate: a number for all of them, or a
        structure like a value with a number, or an array, for each tensor. It must not
        be chosen by looking at clients' values.

    Raises:
      TypeError: If `inner` is not an unweighted aggregation factory, or `bounds` is not
        made of numbers.
      ValueError: If a bound is not positive and finite.
    """
    super().__init__(inner)
    # Largest magnitude of a coordinate; structure of float64 arrays.
    self.bounds = tf.nest.map_structure(_check_bound, bounds)

  def of_client(self, value: Any) -> Any:
    """Returns the value clipped to the bounds: one number, or a structure like it."""
    if not tf.nest.is_nested(self.bounds):
      return tf.nest.map_structure(lambda each: _clip(each, self.bounds), value)
    specs = tf.nest.map_structure(tf.TensorSpec.from_tensor, value)
    try:
      tf.nest.assert_same_structure(specs, self.bounds)
    except (TypeError, ValueError) as error:
      raise type(error)(
        f'bounds must be a number or a structure like a value, {specs}; got '
        f'{self.bounds}.'
      ) from None
    return tf.nest.map_structure(_clip, value, self.bounds)


def _check_float(tensor: tf.Tensor) -> None:
  if not tensor.dtype.is_floating:
    raise TypeError(
      'a value must be a structure of float tensors, got '
      f'{tensor.dtype.name} of shape {tensor.shape}; cast it before it is aggregated.'
    )


def _check_bound(bound: Any) -> np.ndarray:
  array = bands.check_numbers('bounds', bound)
  if not np.all(np.isfinite(array) & (array > 0)):
    raise ValueError(f'bounds must be positive and finite; got {bound!r}.')
  return array


def _clip(tensor: tf.Tensor, bound: np.ndarray) -> tf.Tensor:
  _check_float(tensor)
  shape = tuple(tensor.shape)
  if bound.shape != shape[len(shape) - bound.ndim :] and bound.ndim:
    raise ValueError(
      f'bounds has an array of shape {bound.shape} for a tensor of shape {shape}; give '
      'a number, or one of its shape or last dimensions.'
    )
  # A bound above the largest number of the dtype has no effect.
  limit = tf.constant(np.minimum(bound, float(tensor.dtype.max)), tensor.dtype)
  bounded = tf.maximum(tf.minimum(tensor, limit), -limit)
  return tf.where(tf.math.is_finite(tensor), bounded, tensor)


class ZeroNonfiniteState(NamedTuple):
  """State of a `ZeroNonfiniteFactory` process."""

  inner: Any
  count_sum: Any


class ZeroNonfiniteFactory(tff.aggregators.UnweightedAggregationFactory):
  """Zeroes values with NaN or infinity before an inner aggregation, and counts them.

  The measurements are those of the inner aggregation with `nonfinite_count` added. The
  count is exact, not private: it is for whoever runs the training, and must not be
  released. (`tff.aggregators.zeroing_factory` compares norms, which NaN escapes.)
  """

  def __init__(
    self,
    inner: tff.aggregators.UnweightedAggregationFactory,
    count_sum_factory: Optional[tff.aggregators.UnweightedAggregationFactory] = None,
  ):
    """Initializes the factory.

    Args:
      inner: Aggregates the values.
      count_sum_factory: Sums the counts, int32 scalars; it should be secure if records
        are summed securely. `None` means `tff.aggregators.SumFactory`.

    Raises:
      TypeError: If an argument is not an unweighted aggregation factory.
    """
    if count_sum_factory is None:
      count_sum_factory = tff.aggregators.SumFactory()
    for name, value in (('inner', inner), ('count_sum_factory', count_sum_factory)):
      factory.check_unweighted(name, value)
    # The factory that aggregates the values.
    self.inner = inner
    self._count_sum_factory = count_sum_factory

  def create(self, value_type: Any) -> tff.templates.AggregationProcess:
    """Creates the process, with `nonfinite_count` among the inner measurements."""
    factory.check_value_type(value_type)
    inner = self.inner.create(value_type)
    count_sum = self._count_sum_factory.create(tff.TensorType(tf.int32.as_numpy_dtype))

    @tff.tensorflow.computation(value_type)
    @tracing.as_written
    def zero_and_count(value: Any) -> Any:
      kept, finite = grid.zero_unless_finite(value)
      return kept, tf.cast(tf.logical_not(finite), tf.int32)

    @tff.federated_computation
    def init_fn() -> Any:
      return tff.federated_zip(
        ZeroNonfiniteState(inner.initialize(), count_sum.initialize())
      )

    @tff.federated_computation(
      init_fn.type_signature.result, tff.FederatedType(value_type, tff.CLIENTS)
    )
    def next_fn(state: Any, value: Any) -> Any:
      inner_state, count_state = state
      value, is_nonfinite = tff.federated_map(zero_and_count, value)
      output = inner.next(inner_state, value)
      count = count_sum.next(count_state, is_nonfinite)
      return tff.templates.MeasuredProcessOutput(
        tff.federated_zip(ZeroNonfiniteState(output.state, count.state)),
        output.result,
        factory.add_nonfinite_count(output.measurements, count.result),
      )

    return tff.templates.AggregationProcess(init_fn, next_fn)
