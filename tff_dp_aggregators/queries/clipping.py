"""Bounding one client's contribution to one round."""

from typing import Any

import tensorflow as tf


def all_finite(record: Any) -> tf.Tensor:
  """Whether no entry of a structure of float tensors is NaN or infinite."""
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


def global_l2_norm(record: Any) -> tf.Tensor:
  """L2 norm over all tensors of a finite record, a float64 scalar.

  Computed in float64 and relative to the largest entry, so that neither the squares
  of large entries overflow nor those of small ones vanish.
  """
  flat = [tf.cast(tensor, tf.float64) for tensor in tf.nest.flatten(record)]
  zero = tf.constant(0.0, tf.float64)
  largest = tf.reduce_max(
    tf.stack(
      [zero, *(tf.reduce_max(tf.abs(t)) for t in flat if t.shape.num_elements() != 0)]
    )
  )
  squares = [
    tf.reduce_sum(tf.square(tf.math.divide_no_nan(tensor, largest))) for tensor in flat
  ]
  return largest * tf.sqrt(tf.add_n([zero, *squares]))


def clip_by_l2_norm(record: Any, clip_norm: Any) -> tuple[Any, tf.Tensor]:
  """Scales a record down to L2 norm `clip_norm`, if it is longer.

  The norm is taken over all tensors together. A record with an entry that is NaN or
  infinite counts as zero: there is no scaling that makes it safe to add up.

  Args:
    record: Structure of float tensors.
    clip_norm: Positive scalar.

  Returns:
    The clipped record and its norm before, a float64 scalar. The clipped norm
    exceeds `clip_norm` by no more than the rounding of its entries.

  Example:
    >>> clipped, norm = clip_by_l2_norm([tf.constant([3.0, 4.0])], 1.0)
    >>> clipped[0].numpy().round(3).tolist(), float(norm)
    ([0.6000000238418579, 0.800000011920929], 5.0)
  """
  record, _ = zero_unless_finite(record)
  norm = global_l2_norm(record)
  bound = tf.cast(clip_norm, tf.float64)
  scale = tf.where(norm > bound, tf.math.divide_no_nan(bound, norm), 1.0)

  def clip(tensor: tf.Tensor) -> tf.Tensor:
    return tf.cast(tf.cast(tensor, tf.float64) * scale, tensor.dtype)

  return tf.nest.map_structure(clip, record), norm
