"""What each client does to its value by itself, before a mechanism takes it.

The mechanism clips whatever comes of it, as it clips everything: sensitivity and event
are those of the mechanism. Nothing is remembered, measured or counted.
"""

import abc
from typing import Any, Callable

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_dp_aggregators.aggregators import factory
from tff_dp_aggregators.aggregators import tracing
from tff_dp_aggregators.base import checks
from tff_dp_aggregators.queries import grid
from tff_dp_aggregators.strategies.numerics import bands


class ClientwiseFactory(tff.aggregators.UnweightedAggregationFactory, abc.ABC):
  """Changes each client's value, and aggregates; its state is the inner one's."""

  def __init__(self, inner: tff.aggregators.UnweightedAggregationFactory):
    factory.check_unweighted('inner', inner)
    self._inner = inner

  @property
  def inner(self) -> tff.aggregators.UnweightedAggregationFactory:
    """What aggregates the values."""
    return self._inner

  @abc.abstractmethod
  def of_client(self, value: Any) -> Any:
    """What a client makes of its value, as tensors."""

  def create(self, value_type: Any) -> tff.templates.AggregationProcess:
    """Creates the process: the inner one, of what clients make of their values."""
    factory.check_value_type(value_type)
    inner = self._inner.create(value_type)

    @tff.tensorflow.computation(value_type)
    @tracing.as_written
    def of_client(value: Any) -> Any:
      return self.of_client(value)

    @tff.federated_computation(
      inner.initialize.type_signature.result,
      tff.FederatedType(value_type, tff.CLIENTS),
    )
    def next_fn(state: Any, value: Any) -> Any:
      return inner.next(state, tff.federated_map(of_client, value))

    return tff.templates.AggregationProcess(inner.initialize, next_fn)


class ZeroLargeFactory(ClientwiseFactory):
  """Counts a value as zeros whose norm is above a bound, then aggregates.

  Clipping keeps the direction of a value that is far too large, as one of a broken or
  hostile client; this keeps nothing of it. It is `tff.aggregators.zeroing_factory` with
  a fixed norm, but that it counts nobody: TFF's measurement of how many were zeroed is
  exact, and so not private. What is NaN or infinite stays so, for the mechanism to zero
  and to count.

  Example:
    >>> import numpy as np
    >>> from tff_dp_aggregators import aggregators
    >>> mean = aggregators.gaussian(
    ...   clip_norm=6.0, noise_multiplier=0.0, clients_per_round=2
    ... )
    >>> process = ZeroLargeFactory(mean, norm=10.0).create(
    ...   tff.TensorType(np.float32, [2])
    ... )
    >>> values = [np.float32([3.0, 4.0]), np.float32([0.0, 900.0])]
    >>> process.next(process.initialize(), values).result.tolist()
    [1.5, 2.0]
  """

  def __init__(
    self, inner: tff.aggregators.UnweightedAggregationFactory, *, norm: float
  ):
    """Initializes the factory.

    Args:
      inner: What aggregates the values.
      norm: Largest L2 norm of a value that counts. It is fixed, and must not be chosen
        by looking at clients' values.

    Raises:
      TypeError: If `inner` is not an unweighted aggregation factory, or `norm` no
        number.
      ValueError: If `norm` is not positive and finite.
    """
    super().__init__(inner)
    self._norm = checks.check_positive('norm', norm)

  @property
  def norm(self) -> float:
    """Largest L2 norm of a value that counts."""
    return self._norm

  def of_client(self, value: Any) -> Any:
    """The value, or zeros."""
    largest = tf.constant(0.0, tf.float64)
    flat = []
    for tensor in tf.nest.flatten(value):
      _check_float(tensor)
      flat.append(tf.cast(tensor, tf.float64))
      largest = tf.maximum(largest, tf.reduce_max(tf.abs(flat[-1])))
    # Parts are scaled to at most 1, since squares of large doubles overflow.
    scale = tf.where(largest > 0, largest, tf.ones_like(largest))
    squares = tf.add_n([tf.reduce_sum(tf.square(each / scale)) for each in flat])
    is_large = tf.sqrt(squares) > self._norm / scale
    zero = tf.logical_and(grid.all_finite(flat), is_large)
    return tf.nest.map_structure(
      lambda tensor: tf.where(zero, tf.zeros_like(tensor), tensor), value
    )


def taken_off(aggregator: Any) -> tuple[tuple[Callable[[Any], Any], ...], Any]:
  """What clients do first, in order, and what aggregates the values then."""
  steps: list[Callable[[Any], Any]] = []
  while isinstance(aggregator, ClientwiseFactory):
    steps.append(aggregator.of_client)
    aggregator = aggregator.inner
  return tuple(steps), aggregator


class CoordinateBoundsFactory(ClientwiseFactory):
  """Clips each coordinate of a value to an interval around 0, then aggregates.

  Around a mechanism it keeps a single large coordinate from taking all of the clip
  norm, in that client's value. What is NaN or infinite stays so, for the mechanism to
  zero and to count: a client who computed an infinity has no value that is right within
  bounds.

  Example:
    >>> from tff_dp_aggregators import aggregators
    >>> mean = aggregators.gaussian(
    ...   clip_norm=5.0, noise_multiplier=0.0, clients_per_round=2
    ... )
    >>> process = CoordinateBoundsFactory(mean, bounds=1.0).create(
    ...   tff.TensorType(np.float32, [3])
    ... )
    >>> values = [np.float32([0.5, -3.0, 900.0]), np.float32([0.25, 1.0, 0.0])]
    >>> process.next(process.initialize(), values).result.tolist()
    [0.375, 0.0, 0.5]
  """

  def __init__(
    self, inner: tff.aggregators.UnweightedAggregationFactory, *, bounds: Any
  ):
    """Initializes the factory.

    Args:
      inner: What aggregates the values.
      bounds: Largest magnitude of a coordinate: a number for all of them, or a
        structure like a value with a number, or an array, for each tensor. It is fixed,
        and must not be chosen by looking at clients' values.

    Raises:
      TypeError: If `inner` is not an unweighted aggregation factory, or `bounds` is not
        made of numbers.
      ValueError: If a bound is not positive and finite.
    """
    super().__init__(inner)
    self._bounds = tf.nest.map_structure(_check_bound, bounds)

  @property
  def bounds(self) -> Any:
    """Largest magnitude of a coordinate; structure of float64 arrays."""
    return self._bounds

  def of_client(self, value: Any) -> Any:
    """The value within the bounds, which have its structure, or are one number."""
    return tf.nest.map_structure(_clip, value, self._bounds_for(value))

  def _bounds_for(self, value: Any) -> Any:
    """The bounds in the structure of a value."""
    if not tf.nest.is_nested(self._bounds):
      return tf.nest.map_structure(lambda unused: self._bounds, value)
    specs = tf.nest.map_structure(tf.TensorSpec.from_tensor, value)
    try:
      tf.nest.assert_same_structure(specs, self._bounds)
    except (TypeError, ValueError) as error:
      raise type(error)(
        f'bounds must be a number or a structure like a value, {specs}; got '
        f'{self._bounds}.'
      ) from None
    return self._bounds


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
      'a number, or one of the shape of the tensor or of its last dimensions.'
    )
  # Beyond the largest number of the dtype there is nothing to bound.
  limit = tf.constant(np.minimum(bound, float(tensor.dtype.max)), tensor.dtype)
  bounded = tf.maximum(tf.minimum(tensor, limit), -limit)
  return tf.where(tf.math.is_finite(tensor), bounded, tensor)
