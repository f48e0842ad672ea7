"""Bounding one client's contribution to one round.

The bound holds for every record that can be sent, not for likely ones: entries whose
squares overflow or vanish, a million of the smallest numbers there are, clip norms at
both ends of float32. Norms are therefore computed in float64, relative to the largest
entry where float64 does not hold the powers, and subnormal numbers (float32 below
1.2e-38, float64 below 2.2e-308) count as zero: TensorFlow's threads flush them in some
of their operations and keep them in others, so a norm may not see what a sum would.
"""

import math
from typing import Any

import numpy as np
import tensorflow as tf

from tff_dp_aggregators.queries import records

# Up to this power, float64 holds those of all normal float32 numbers and their sums.
_LARGEST_SAFE_ORDER = 4


def all_finite(record: Any) -> tf.Tensor:
  """Whether no entry of a record is NaN or infinite, a bool scalar.

  Args:
    record: Structure of float tensors.
  """
  flat = [
    tf.reduce_all(tf.math.is_finite(tensor)) for tensor in tf.nest.flatten(record)
  ]
  return tf.reduce_all(tf.stack(flat)) if flat else tf.constant(True)


def zero_unless_finite(record: Any) -> tuple[Any, tf.Tensor]:
  """Zeroes a whole record if any of its entries is NaN or infinite.

  Args:
    record: Structure of float tensors.

  Returns:
    The record or zeros in its place, and whether it was finite, a bool scalar.
  """
  finite = all_finite(record)
  # A choice, not a product: 0 x NaN is NaN.
  kept = tf.nest.map_structure(
    lambda tensor: tf.where(finite, tensor, tf.zeros_like(tensor)), record
  )
  return kept, finite


def global_norm(record: Any, order: float = 2) -> tf.Tensor:
  """Norm over all tensors of a finite record together, a float64 scalar.

  Args:
    record: Structure of float tensors; subnormal entries count as zero.
    order: Which p-norm: 1 <= order <= infinity.

  Raises:
    TypeError: If the record is not made of float tensors.
    ValueError: If `order` is below 1.

  Example:
    >>> record = [tf.constant([3.0, -4.0]), tf.constant(12.0)]
    >>> [float(global_norm(record, order)) for order in (1, 2, math.inf)]
    [19.0, 13.0, 12.0]
  """
  check_order(order)
  flat = [_without_subnormals(t) for t in tf.nest.flatten(records.as_tensors(record))]
  unit, relative = _relative_to_unit(flat, order)
  return unit * _relative_norm(relative, order)


def clip_by_norm(
  record: Any, clip_norm: Any, order: float = 2
) -> tuple[Any, tf.Tensor]:
  """Bounds the p-norm of a record by `clip_norm`.

  The norm is taken over all tensors together. For a finite `order`, a record that is
  too long is scaled down and keeps its direction. For infinity, each entry is clipped
  to `[-clip_norm, clip_norm]` by itself, as is the custom: this is the nearest record
  within the bound, where scaling would let a single large entry wipe out all others.

  A record with an entry that is NaN or infinite counts as zero: there is no scaling
  that makes it safe to add up. A record within the bound is returned as it is.
  Subnormal entries, of the record and of the result, count as zero.

  Args:
    record: Structure of float tensors.
    clip_norm: Positive scalar.
    order: Which p-norm: 1 <= order <= infinity.

  Returns:
    The clipped record, in float32 where it was half precision, and its norm before, a
    float64 scalar (infinite if beyond float64). The clipped norm exceeds `clip_norm`
    by no more than the rounding of its entries: one part in 10^7 up to 10^8 entries.

  Raises:
    TypeError: If the record is not made of float tensors.
    ValueError: If `order` is below 1, or `clip_norm` is not positive.

  Example:
    >>> record = [tf.constant([3.0, -4.0])]
    >>> for order in (1, 2, math.inf):
    ...   clipped, norm = clip_by_norm(record, 3.5, order)
    ...   print(clipped[0].numpy().round(3), float(norm))
    [ 1.5 -2. ] 7.0
    [ 2.1 -2.8] 5.0
    [ 3.  -3.5] 4.0
  """
  check_order(order)
  bound = _as_bound(clip_norm)
  record, _ = zero_unless_finite(records.as_tensors(record))
  flat = [_without_subnormals(tensor) for tensor in tf.nest.flatten(record)]
  unit, relative = _relative_to_unit(flat, order)
  norm_of_relative = _relative_norm(relative, order)
  norm = unit * norm_of_relative
  if math.isinf(order):
    clipped = _clip_entries(flat, bound)
  else:
    clipped = _scale_down(flat, relative, norm_of_relative, norm, bound)
  return tf.nest.pack_sequence_as(record, clipped), norm


def check_order(order: float) -> float:
  """Returns the order of a norm as a float.

  Args:
    order: What the caller passed: 1 <= order <= infinity.

  Raises:
    ValueError: If it is below 1 or not a number.
  """
  if not order >= 1:
    raise ValueError(
      f'order must be at least 1 (math.inf for the largest entry); got {order}. '
      'Below 1 there is no triangle inequality, so sensitivities would not add up.'
    )
  return float(order)


def _as_bound(clip_norm: Any) -> tf.Tensor:
  # TensorFlow would make float32 of a Python number first, and infinity of 1e300.
  if not tf.is_tensor(clip_norm):
    clip_norm = tf.constant(clip_norm, tf.float64)
  known = tf.get_static_value(clip_norm)
  if known is not None and not known > 0:
    raise ValueError(f'clip_norm must be positive; got {known}.')
  return tf.cast(clip_norm, tf.float64)


def _without_subnormals(tensor: tf.Tensor) -> tf.Tensor:
  # A choice by comparison comes out alike whether or not operands are flushed.
  smallest = np.finfo(tensor.dtype.as_numpy_dtype).tiny
  return tf.where(tf.abs(tensor) < smallest, tf.zeros_like(tensor), tensor)


def _relative_to_unit(
  flat: list[tf.Tensor], order: float
) -> tuple[tf.Tensor, list[tf.Tensor]]:
  """A unit such that no powers overflow or vanish, and the tensors in it, in float64.

  It is the largest magnitude, or 1 where float64 holds the powers of all float32.
  """
  are_single = all(tensor.dtype == tf.float32 for tensor in flat)
  flat = [tf.cast(tensor, tf.float64) for tensor in flat]
  if are_single and (order <= _LARGEST_SAFE_ORDER or math.isinf(order)):
    return tf.constant(1.0, tf.float64), flat
  # The largest of an empty tensor is minus infinity.
  maxima = [tf.reduce_max(tf.abs(tensor)) for tensor in flat]
  largest = tf.reduce_max(tf.stack([tf.constant(0.0, tf.float64), *maxima]))
  return largest, [tf.math.divide_no_nan(tensor, largest) for tensor in flat]


def _relative_norm(relative: list[tf.Tensor], order: float) -> tf.Tensor:
  """Norm of what `_relative_to_unit` returns."""
  zero = tf.constant(0.0, tf.float64)
  if math.isinf(order):
    largest = (tf.reduce_max(tf.abs(tensor)) for tensor in relative)
    return tf.reduce_max(tf.stack([zero, *largest]))
  powers = (tf.reduce_sum(_power(tensor, order)) for tensor in relative)
  total = tf.add_n([zero, *powers])
  return tf.sqrt(total) if order == 2 else total ** (1 / order)


def _power(tensor: tf.Tensor, order: float) -> tf.Tensor:
  if order == 2:
    return tf.square(tensor)
  return tf.abs(tensor) if order == 1 else tf.abs(tensor) ** order


def _scale_down(
  flat: list[tf.Tensor],
  relative: list[tf.Tensor],
  norm_of_relative: tf.Tensor,
  norm: tf.Tensor,
  bound: tf.Tensor,
) -> list[tf.Tensor]:
  # Let r be the relative entries, N the computed and |r| the exact norm of them. N is
  # at least (1 - e)|r| with e <= d 2^-53 for d entries summed in any order, and a few
  # 2^-53 for powers and roots. An entry of the result is (1 + f) r bound / N, where
  # |f| <= 2^-24 (float32) covers the rounding of what is a normal number, or zero
  # where it would be subnormal: without that, a million entries of 1e-44, each
  # rounded to a multiple of 1.4e-45, could exceed the bound by some percent. So
  # the norm is at most (1 + 2^-24) / (1 - e) bound, 6.0e-8 above it for d = 10^6.
  # Dividing first by the unit and then by N, not by their product, also serves float64
  # records whose norm overflows.
  factor = tf.math.divide_no_nan(bound, norm_of_relative)
  within = norm <= bound  # Not its contrary: no NaN of the bound lets a record through.

  def scale(tensor: tf.Tensor, ratio: tf.Tensor) -> tf.Tensor:
    scaled = _without_subnormals(tf.cast(ratio * factor, tensor.dtype))
    return tf.where(within, tensor, scaled)

  return [scale(tensor, ratio) for tensor, ratio in zip(flat, relative)]


def _clip_entries(flat: list[tf.Tensor], bound: tf.Tensor) -> list[tf.Tensor]:
  def clip(tensor: tf.Tensor) -> tf.Tensor:
    limit = _without_subnormals(tf.cast(bound, tensor.dtype))
    return tf.clip_by_value(tensor, -limit, limit)

  return [clip(tensor) for tensor in flat]
