"""Bounding each coordinate of a client's value by itself, before it is clipped."""

from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_dp_aggregators.aggregators import clientwise


class CoordinateBoundsFactory(clientwise.ClientwiseFactory):
  """Clips each coordinate of a value to an interval around 0, then aggregates.

  Around a mechanism it keeps a single large coordinate from taking all of the clip
  norm, in that client's value. Each client does it by itself, and the mechanism clips
  what comes of it as it clips everything: sensitivity and event are the mechanism's.
  It remembers and measures nothing of its own; its state is the inner one's.

  What is NaN or infinite stays so, for the mechanism to zero and to count: a client
  who computed an infinity has no value that is right within bounds.

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
    """The value within the bounds.

    Args:
      value: Structure of float tensors.

    Raises:
      TypeError: If a tensor of it is not of a float dtype, or the structure of the
        bounds is of other containers.
      ValueError: If the structure of the bounds is not that of the value, or an array
        does not fit its tensor.
    """
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


def _check_bound(bound: Any) -> np.ndarray:
  try:
    array = np.asarray(bound)
    if array.dtype.kind not in 'iuf':
      raise TypeError(array.dtype)
  except (TypeError, ValueError):
    raise TypeError(
      f'bounds must be a number or a structure of numbers and arrays; got {bound!r}.'
    ) from None
  array = array.astype(np.float64)
  if not np.all(np.isfinite(array) & (array > 0)):
    raise ValueError(f'bounds must be positive and finite; got {bound!r}.')
  return array


def _clip(tensor: tf.Tensor, bound: np.ndarray) -> tf.Tensor:
  if not tensor.dtype.is_floating:
    raise TypeError(
      'a value must be a structure of float tensors, got '
      f'{tensor.dtype.name} of shape {tensor.shape}; cast it before it is aggregated.'
    )
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
