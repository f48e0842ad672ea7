"""Bounding one client's contribution to one round, on the grid of the sums.

The bound holds for every record that can be sent, not for likely ones, and it holds
exactly: the p-norm of the integers that leave here is at most `clip_norm * steps`, as
rational numbers tell (the tests ask them). Two things see to it. What is rounded is
rounded towards zero, on a grid so fine (`grid`) that all numbers which arithmetic might
lose, subnormal ones among them, are zero on it. And a norm is taken for as much larger
than computed as it can be: the sum of n powers, in float64 and in whatever order, is
within (n - 1) 2^-53 of the exact one.
"""

import functools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from tff_dp_aggregators.queries import records

# Relative; an entry times a factor is rounded twice, the factor and the product.
_ROUNDING = {tf.float32: 2.0**-22, tf.float64: 2.0**-50}
# Entries of a tensor from which on a pass over it costs more than an operation.
_LARGE = 2**16


class Clipped(NamedTuple):
  """A record within the bound.

  Attributes:
    integers: Entries in steps of the grid; structure of int64 tensors like the record.
    norm: Norm of the record before, float64 scalar; 0 if it was not finite, and
      infinite if beyond float64.
    finite: Whether no entry was NaN or infinite, bool scalar.
  """

  integers: Any
  norm: tf.Tensor
  finite: tf.Tensor


def all_finite(record: Any) -> tf.Tensor:
  """Whether no entry of a record is NaN or infinite, a bool scalar."""
  flat = [
    tf.reduce_all(tf.math.is_finite(tensor)) for tensor in tf.nest.flatten(record)
  ]
  return tf.reduce_all(tf.stack(flat)) if flat else tf.constant(True)


def zero_unless_finite(record: Any) -> tuple[Any, tf.Tensor]:
  """Zeroes a whole record if any of its entries is NaN or infinite.

  Returns the record or zeros in its place, and whether it was finite, a bool scalar.
  """
  finite = all_finite(record)
  # A choice, not a product: 0 x NaN is NaN.
  kept = tf.nest.map_structure(
    lambda tensor: tf.where(finite, tensor, tf.zeros_like(tensor)), record
  )
  return kept, finite


def clip_to_grid(
  record: Any, clip_norm: Any, steps: tf.Tensor, order: float = 2
) -> Clipped:
  """Bounds the p-norm of a record by `clip_norm`, and counts its entries in steps.

  The norm is taken over all tensors together. For a finite `order`, a record that is
  too long is scaled down and keeps its direction. For infinity, each entry is clipped
  to `[-clip_norm, clip_norm]` by itself, as is the custom: this is the nearest record
  within the bound, where scaling would let a single large entry wipe out all others.

  A record with an entry that is NaN or infinite counts as zero: there is no scaling
  that makes it safe to add up.

  Returns the clipped record in steps, what its norm was, and whether it was finite. The
  p-norm of the integers is at most `clip_norm * steps`. Each is at most a step nearer
  to zero than the entry was, or, if the record was too long, than the entry scaled to
  (1 - 3e-7) of the bound (1 - 1e-15 for float64).

  Example:
    >>> record = [tf.constant([3.0, -4.0])]
    >>> steps = tf.constant(2.0**39, tf.float64)
    >>> for order in (1, 2, math.inf):
    ...   clipped = clip_to_grid(record, 3.5, steps, order)
    ...   entries = (clipped.integers[0] / 2**39).numpy()
    ...   print(entries.round(3), float(clipped.norm))
    [ 1.5 -2. ] 7.0
    [ 2.1 -2.8] 5.0
    [ 3.  -3.5] 4.0
  """
  check_order(order)
  record = records.as_tensors(record)
  flat = tf.nest.flatten(record)
  bound = _float64(clip_norm)
  if not flat:
    return Clipped(record, tf.constant(0.0, tf.float64), tf.constant(True))
  if math.isinf(order):
    norm, finite = _largest(flat), all_finite(flat)
    make = functools.partial(_clip_entries, flat, bound, steps)
  elif order in (1, 2) and all(tensor.dtype == tf.float32 for tensor in flat):
    # float64 holds the powers of all float32, and their sums; and a sum with NaN or
    # infinity in it is not finite.
    norm = _norm(flat, order)
    finite = tf.math.is_finite(norm)
    make = functools.partial(_scale, flat, norm, bound, steps)
  else:
    finite = all_finite(flat)
    flat = [tf.cast(tensor, tf.float64) for tensor in flat]
    largest = _largest(flat)
    # Relative to the largest entry: no power overflows, and none that counts vanishes.
    relative = [tf.math.divide_no_nan(tensor, largest) for tensor in flat]
    of_relative = _norm(relative, order)
    norm = largest * of_relative
    make = functools.partial(
      _scale_relative, flat, relative, of_relative, norm, bound, steps, order
    )
  integers = tf.cond(
    finite, make, lambda: [tf.zeros(tf.shape(t), tf.int64) for t in flat]
  )
  for tensor, original in zip(integers, flat):
    tensor.set_shape(original.shape)
  return Clipped(
    tf.nest.pack_sequence_as(record, integers),
    tf.where(finite, norm, tf.zeros_like(norm)),
    finite,
  )


class Added(NamedTuple):
  """A sum with clipped records in it.

  Attributes:
    integers: The sum, structure of int64 tensors.
    norms: Norms of the records, as in `Clipped`; float64 of shape [records].
    finite: Which of them were finite, bool of shape [records].
  """

  integers: Any
  norms: tf.Tensor
  finite: tf.Tensor


def add_clipped(
  total: Any, several: Sequence[Any], clip_norm: Any, steps: tf.Tensor
) -> Added:
  """Adds to a sum what `clip_to_grid` makes of some records, bit for bit.

  Several large records are scaled, rounded and added in one pass over them and the sum,
  which XLA compiles: two fifths of the time. An entry is one product and one conversion
  to an integer, which no compiler may round differently.
  """
  flat = [tf.nest.flatten(records.as_tensors(each)) for each in several]
  dtypes = {tensor.dtype for tensors in flat for tensor in tensors}
  if len(flat) == 1 or dtypes != {tf.float32} or not is_large(flat[0]):
    clipped = [clip_to_grid(each, clip_norm, steps) for each in several]
    for each in clipped:
      total = tf.nest.map_structure(tf.add, total, each.integers)
    norms, finite = ([each[i] for each in clipped] for i in (1, 2))
    return Added(total, tf.stack(norms), tf.stack(finite))
  bound = _float64(clip_norm)
  norms = [_norm(each, order=2) for each in flat]
  finite = tf.math.is_finite(tf.stack(norms))
  factors = [
    _factor(norm, _size(each), bound, steps) for each, norm in zip(flat, norms)
  ]
  added = _add_scaled(tf.nest.flatten(total), flat, tf.stack(factors), finite)
  return Added(
    tf.nest.pack_sequence_as(total, added),
    tf.where(finite, norms, tf.zeros_like(norms)),
    finite,
  )


def sum_clipped(stacked: Any, clip_norm: Any, steps: tf.Tensor) -> Added:
  """The sum of what `clip_to_grid` makes of records that are stacked.

  For float32 it is computed at once: a map of `clip_to_grid` takes four times the
  operations, and they are what a round of small models costs.

  `stacked`: Structure of float tensors, an entry of each for each record.
  """
  flat = tf.nest.flatten(stacked)
  if {tensor.dtype for tensor in flat} != {tf.float32}:
    clipped = tf.vectorized_map(
      lambda record: clip_to_grid(record, clip_norm, steps),
      stacked,
      fallback_to_while_loop=False,
    )
    integers = tf.nest.map_structure(
      lambda each: tf.reduce_sum(each, axis=0), clipped.integers
    )
    return Added(integers, clipped.norm, clipped.finite)
  bound = _float64(clip_norm)
  squares = [tf.square(tf.cast(tensor, tf.float64)) for tensor in flat]
  norms = tf.sqrt(
    tf.add_n([tf.reduce_sum(each, range(1, each.shape.rank)) for each in squares])
  )
  finite = tf.math.is_finite(norms)
  size = sum(tensor.shape[1:].num_elements() for tensor in flat)
  factors = _factor(norms, tf.constant(size, tf.int64), bound, steps)
  sums = [
    tf.reduce_sum(tf.cast(tensor * beside(factors, tensor), tf.int64), axis=0)
    for tensor in zero_rows_unless(finite, flat)
  ]
  return Added(
    tf.nest.pack_sequence_as(stacked, sums),
    tf.where(finite, norms, tf.zeros_like(norms)),
    finite,
  )


def zero_rows_unless(kept: tf.Tensor, stacked: Any) -> Any:
  """Records that are stacked, with zeros for those that are not kept."""
  # Nearly always all of them are, and a choice would be another pass over the entries.
  return tf.cond(
    tf.reduce_all(kept),
    lambda: stacked,
    lambda: tf.nest.map_structure(
      lambda tensor: tf.where(beside(kept, tensor), tensor, tf.zeros_like(tensor)),
      stacked,
    ),
  )


def beside(by_record: tf.Tensor, stacked: tf.Tensor) -> tf.Tensor:
  """A vector with an entry for each record, in a shape for products with `stacked`."""
  return tf.reshape(by_record, [-1] + [1] * (stacked.shape.rank - 1))


def is_large(record: Any) -> bool:
  """Whether passes over a record cost more than the operations that make them."""
  sizes = [
    tf.TensorShape(tensor.shape).num_elements() or 0
    for tensor in tf.nest.flatten(record)
  ]
  return sum(sizes) >= _LARGE


@tf.function(jit_compile=True, autograph=False)
def _add_scaled(
  totals: list[tf.Tensor],
  flat: list[list[tf.Tensor]],
  factors: tf.Tensor,
  finite: tf.Tensor,
) -> list[tf.Tensor]:
  added = []
  for position, total in enumerate(totals):
    for number, tensors in enumerate(flat):
      integers = tf.cast(tensors[position] * factors[number], tf.int64)
      # What is no number is no integer either, and not what a product with 0 is.
      total += tf.where(finite[number], integers, tf.zeros_like(integers))
    added.append(total)
  return added


def _float64(number: Any) -> tf.Tensor:
  # TensorFlow would make float32 of a Python number first.
  if not tf.is_tensor(number):
    number = tf.constant(number, tf.float64)
  return tf.cast(number, tf.float64)


def check_order(order: float) -> float:
  """Returns the order of a norm as a float."""
  if not order >= 1:
    raise ValueError(
      f'order must be at least 1 (math.inf for the largest entry); got {order}. '
      'Below 1 there is no triangle inequality, so sensitivities would not add up.'
    )
  return float(order)


def _largest(flat: list[tf.Tensor]) -> tf.Tensor:
  """The largest magnitude, 0 at least; float64."""
  # The largest of an empty tensor is minus infinity.
  maxima = [tf.cast(tf.reduce_max(tf.abs(tensor)), tf.float64) for tensor in flat]
  return tf.reduce_max(tf.stack([tf.constant(0.0, tf.float64), *maxima]))


def _norm(flat: list[tf.Tensor], order: float) -> tf.Tensor:
  flat = [tf.cast(tensor, tf.float64) for tensor in flat]
  if order == 2:
    return tf.sqrt(tf.add_n([_sum_of_squares(tensor) for tensor in flat]))
  if order == 1:
    return tf.add_n([tf.reduce_sum(tf.abs(tensor)) for tensor in flat])
  powers = tf.add_n([tf.reduce_sum(tf.abs(tensor) ** order) for tensor in flat])
  return powers ** (1 / order)


def _sum_of_squares(tensor: tf.Tensor) -> tf.Tensor:
  if (tensor.shape.num_elements() or 0) < _LARGE:
    return tf.reduce_sum(tf.square(tensor))
  # In one pass; what trains many small models at once cannot vectorise it.
  return 2.0 * tf.nn.l2_loss(tensor)


def _size(flat: list[tf.Tensor]) -> tf.Tensor:
  return tf.add_n([tf.size(tensor, tf.int64) for tensor in flat])


def _at_most(norm: tf.Tensor, size: tf.Tensor, order: float = 2) -> tf.Tensor:
  """What the exact norm of so many entries is not above, given the computed one."""
  # Sum, and powers and roots: an exponent's rounding counts as often as it is large.
  units = tf.cast(size, tf.float64) + (16.0 + 2.0 * order)
  return norm * (1.0 + units * 2.0**-52)


def _scale(
  flat: list[tf.Tensor], norm: tf.Tensor, bound: tf.Tensor, steps: tf.Tensor
) -> list[tf.Tensor]:
  factor = _factor(norm, _size(flat), bound, steps)
  return [tf.cast(tensor * factor, tf.int64) for tensor in flat]


def _factor(
  norm: tf.Tensor, size: tf.Tensor, bound: tf.Tensor, steps: tf.Tensor
) -> tf.Tensor:
  """What an entry is multiplied with before it is truncated; float32 like `norm`."""
  at_most = _at_most(norm, size)
  # Not its contrary: no NaN of the bound lets a record through. Without clipping the
  # factor is a power of two and nothing is rounded but towards zero.
  shrunk = steps * (bound / at_most) * (1 - _ROUNDING[tf.float32])
  factor = tf.where(at_most <= bound, steps, shrunk)
  return tf.cast(tf.where(factor >= 0, factor, tf.zeros_like(factor)), tf.float32)


def _scale_relative(
  flat: list[tf.Tensor],
  relative: list[tf.Tensor],
  of_relative: tf.Tensor,
  norm: tf.Tensor,
  bound: tf.Tensor,
  steps: tf.Tensor,
  order: float,
) -> list[tf.Tensor]:
  within = _at_most(norm, _size(flat), order) <= bound
  # Not by way of the norm, which may be infinite.
  shrunk = tf.math.divide_no_nan(
    bound * steps * (1 - _ROUNDING[tf.float64]),
    _at_most(of_relative, _size(flat), order),
  )
  shrunk = tf.where(shrunk >= 0, shrunk, tf.zeros_like(shrunk))
  return [
    tf.cast(tf.where(within, tensor * steps, ratio * shrunk), tf.int64)
    for tensor, ratio in zip(flat, relative)
  ]


def _clip_entries(
  flat: list[tf.Tensor], bound: tf.Tensor, steps: tf.Tensor
) -> list[tf.Tensor]:
  # In float64, which holds float32's bound and entries exactly.
  limit = tf.where(bound >= 0, bound, tf.zeros_like(bound))
  flat = [tf.cast(tensor, tf.float64) for tensor in flat]
  return [
    tf.cast(tf.clip_by_value(tensor, -limit, limit) * steps, tf.int64)
    for tensor in flat
  ]
