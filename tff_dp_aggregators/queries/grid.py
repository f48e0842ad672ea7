"""What becomes of a record: checked, clipped to a grid of integers, summed, noised.

How a sum of floating-point numbers is rounded depends on whether a client is among
them: of float32 records of norm 1 it can move by more than 1 when one is left out
(Casacuberta et al., arXiv:2207.10635; 1.6 for 6,500 clients in
`tests/aggregators/exact_sums_test.py`). Here sums are of integers, which have one value
in any order:

1. A record is clipped and its entries are counted in *steps*, rounded towards zero, so
   that no entry and no norm grows (`clip_to_grid`). A step is a power of two
   that depends on the clip norm and the noise multiplier alone, such that an entry is
   at most `LARGEST_ENTRY` steps in magnitude.
2. The integers are added up in 64 bits, exactly for up to `MAX_CLIENTS` clients.
3. The noise, counted in steps as well, is rounded by floor(. + 1/2) and added.

With X the exact sum and Z the noise in steps, X is an integer, so what is released is

    X + floor(Z + 1/2) = floor(X + Z + 1/2),

a function of X + Z, which is the mechanism that the accounting is of. Nothing but this
function of it is to be seen, so neither are bits of X that floating-point noise would
leave uncovered (Mironov, CCS 2012).

What this rests on is that Z is a Gaussian. It is one up to what `noise.rows` says:
the row of z that is new in a round is made of 96 random bits for the length of a pair
and 64 for its direction, in float64, so that its spacing is far below a step, which is
2^-35 of the standard deviation at least. How many numbers of float64 a step holds
depends on where it lies, one more or less: of a number near one standard deviation
2^17, so that the step's probability is right to some 2^-17.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from tff_dp_aggregators.base import checks

# A sum of this many records is exact; more are refused where they are counted.
MAX_CLIENTS = 10**7
# Magnitude of an entry in steps: 10^7 times this is below 2^62.3.
_BITS = 39
LARGEST_ENTRY = 2**_BITS
# Noise of standard deviation 2^-4 clip norms has 2^-35 of it as a step. Louder noise
# gets larger steps, so that the spacing of float64 shows nowhere. What larger steps
# take from 10^7 records is 2^-11 of it.
_LOUD_BITS = -4
# What noise can reach in steps without an overflow, beside any sum.
_LARGEST_NOISE = 2.0**61

# Within these, float32 holds steps, records within the bound, noise, and their sums.
CLIP_NORM_LIMITS = (2.0**-80, 2.0**80)

# Records are structures of float tensors. Messages tell dtypes and shapes and never a
# value: they end up in logs, and a record is somebody's data.

_HALF = (tf.float16, tf.bfloat16)
_DTYPES = (*_HALF, tf.float32, tf.float64)


def as_tensors(record: Any) -> Any:
  """Returns a record as the tensors that are added up."""
  return tf.nest.map_structure(_as_tensor, record)


def _as_tensor(part: Any) -> tf.Tensor:
  try:
    tensor = tf.convert_to_tensor(part)
  except (TypeError, ValueError):
    raise TypeError(
      'a record must be a structure of float tensors, got a part of type '
      f'{type(part).__name__}.'
    ) from None
  if tensor.dtype not in _DTYPES:
    raise TypeError(
      'a record must be a structure of float16, bfloat16, float32 or float64 tensors, '
      f'got {tensor.dtype.name} of shape {tensor.shape}; cast it before it is '
      'aggregated.'
    )
  return tf.cast(tensor, tf.float32) if tensor.dtype in _HALF else tensor


def check_record(record: Any, record_specs: Any) -> Any:
  """Returns a record as tensors, or says where it is not what was announced."""
  record = as_tensors(record)
  try:
    tf.nest.assert_same_structure(record, record_specs)
  except (TypeError, ValueError) as error:
    # TensorFlow's own message prints the values.
    given = tf.nest.map_structure(lambda t: tf.TensorSpec(t.shape, t.dtype), record)
    raise type(error)(
      f'a record must have the structure of record_specs, {record_specs}; got {given}.'
    ) from None

  def check(tensor: tf.Tensor, spec: tf.TensorSpec) -> tf.Tensor:
    if tensor.dtype != spec.dtype or not tensor.shape.is_compatible_with(spec.shape):
      error = TypeError if tensor.dtype != spec.dtype else ValueError
      raise error(
        f'a record has a {tensor.dtype.name} tensor of shape {tensor.shape} where '
        f'record_specs has {spec.dtype.name} of shape {spec.shape}.'
      )
    return tf.ensure_shape(tensor, spec.shape)

  return tf.nest.map_structure(check, record, record_specs)


def check_clip_norm(clip_norm: float, name: str = 'clip_norm') -> float:
  """Returns it as a float, if records can be summed and noised at its scale."""
  checks.check_positive(name, clip_norm)
  smallest, largest = CLIP_NORM_LIMITS
  if not smallest <= clip_norm <= largest:
    raise ValueError(
      f'{name} must be within 2^-80 and 2^80 (8.3e-25 to 1.2e24), so that float32 '
      f'holds sums and noise at its scale; got {clip_norm}. Scale the records.'
    )
  return float(clip_norm)


def check_noise_multiplier(
  noise_multiplier: float, name: str = 'noise_multiplier', bits: int = 30
) -> float:
  """Returns it as a float, if noise of this size can be added: up to 2^bits."""
  if noise_multiplier and not 2.0**-20 <= noise_multiplier <= 2.0**bits:
    raise ValueError(
      f'{name} must be 0 (no noise), or within 2^-20 and 2^{bits} (9.5e-7 to '
      f'{2.0**bits:.2g}), so that the grid of the sums has room for the noise and '
      f'shows it; got {noise_multiplier}.'
    )
  return float(noise_multiplier)


def steps_per_unit(
  clip_norm: Any, noise_multiplier: float, spare_bits: int = 0
) -> tf.Tensor:
  """How many steps of the grid are 1: a power of two, float64 scalar."""
  bits = tf.bitcast(tf.cast(clip_norm, tf.float64), tf.int64)
  # Exponent of the smallest power of two that is not below the clip norm.
  exponent = tf.bitwise.right_shift(bits, tf.constant(52, tf.int64))
  is_between = tf.not_equal(tf.bitwise.bitwise_and(bits, (1 << 52) - 1), 0)
  exponent += tf.cast(is_between, tf.int64)
  steps = exponent_of_steps(noise_multiplier) - spare_bits - exponent
  # In the exponent of a float64, biased by 1023; `exponent` is biased already.
  biased = tf.bitwise.left_shift(steps + 2 * 1023, tf.constant(52, tf.int64))
  return tf.bitcast(biased, tf.float64)


def exponent_of_steps(noise_multiplier: float) -> int:
  """An entry is at most two to this power, in steps, and a clip norm more than half."""
  if not noise_multiplier:
    return _BITS
  return _BITS - max(0, math.ceil(math.log2(noise_multiplier)) - _LOUD_BITS)


def asserted(tensors: Any, condition: tf.Tensor, *message: Any) -> Any:
  """The tensors, once a condition holds; else InvalidArgumentError when run."""
  operation = tf.debugging.Assert(condition, list(message))
  with tf.control_dependencies([] if operation is None else [operation]):
    return tf.nest.map_structure(tf.identity, tensors)


def zeros_like(specs: Any) -> Any:
  """The sum of no records."""
  return tf.nest.map_structure(lambda spec: tf.zeros(spec.shape, tf.int64), specs)


def add_noise(sums: Any, noise: Any, stddev_in_steps: tf.Tensor) -> Any:
  """`sums + floor(stddev_in_steps * noise + 1/2)`, tensor by tensor, int64."""

  def add(total: tf.Tensor, unit_noise: tf.Tensor) -> tf.Tensor:
    total = tf.convert_to_tensor(total)
    if total.shape != unit_noise.shape or total.dtype != tf.int64:
      raise ValueError(
        f'the sum to be noised has a {total.dtype.name} tensor of shape {total.shape} '
        f'where int64 of shape {unit_noise.shape} is expected: integers that '
        'preprocess_record makes, and nothing that the sum lost or rounded.'
      )
    scaled = tf.cast(unit_noise, tf.float64) * stddev_in_steps
    scaled = asserted(
      scaled,
      tf.reduce_max(tf.abs(scaled)) < _LARGEST_NOISE,
      'the noise is too large for sums in 64 bits; lower noise_multiplier.',
    )
    return total + tf.cast(tf.floor(scaled + 0.5), tf.int64)

  tf.nest.assert_same_structure(sums, noise)
  return tf.nest.map_structure(add, sums, noise)


def norm(integers: Any, steps: tf.Tensor) -> tf.Tensor:
  """The L2 norm of what integers on the grid stand for, float64 scalar."""
  squares = [tf.constant(0.0, tf.float64)]
  for tensor in tf.nest.flatten(integers):
    squares.append(tf.reduce_sum(tf.square(tf.cast(tensor, tf.float64) / steps)))
  return tf.sqrt(tf.add_n(squares))


def to_floats(integers: Any, specs: Any, steps: tf.Tensor) -> Any:
  """The numbers that integers on the grid stand for, in the dtypes of `specs`."""

  def convert(tensor: tf.Tensor, spec: tf.TensorSpec) -> tf.Tensor:
    # Rounded once: a product with a power of two is exact.
    return tf.cast(tensor, spec.dtype) * tf.cast(1 / steps, spec.dtype)

  return tf.nest.map_structure(convert, integers, specs)


# Bounding one client's contribution to one round, on the grid of the sums.
#
# The bound holds for every record that can be sent, not for likely ones, and it holds
# exactly: the p-norm of the integers that leave here is at most `clip_norm * steps`, as
# rational numbers tell (the tests ask them). Two things see to it. What is rounded is
# rounded towards zero, on a grid so fine that all numbers which arithmetic might lose,
# subnormal ones among them, are zero on it. And a norm is taken for as much larger than
# computed as it can be: the sum of n powers, in float64 and in whatever order, is
# within (n - 1) 2^-53 of the exact one.

# Relative; an entry times a factor is rounded twice, the factor and the product.
_ROUNDING = {tf.float32: 2.0**-22, tf.float64: 2.0**-50}
# Entries of a tensor from which on a pass over it costs more than an operation.
_LARGE = 2**16


class Clipped(NamedTuple):
  """A record within the bound: its integers, its norm before, and if it was finite.

  The norm is 0 if it was not finite, and infinite if beyond float64.
  """

  integers: Any  # In steps, int64 tensors like the record.
  norm: tf.Tensor  # float64 scalar.
  finite: tf.Tensor  # Bool scalar.


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

  The norm is over all tensors together. For a finite `order`, a record that is too long
  is scaled down; for infinity, each entry is clipped by itself. A record with an entry
  that is NaN or infinite counts as zero. The p-norm of the integers is at most
  `clip_norm * steps`; each is at most a step nearer to zero than the entry was, or, if
  the record was too long, than the entry scaled to (1 - 3e-7) of the bound (1 - 1e-15
  for float64).
  """
  check_order(order)
  record = as_tensors(record)
  flat = tf.nest.flatten(record)
  bound = _float64(clip_norm)
  if not flat:
    return Clipped(record, tf.constant(0.0, tf.float64), tf.constant(True))
  if math.isinf(order):
    norm, finite = _largest(flat), all_finite(flat)

    def make() -> list[tf.Tensor]:
      # In float64, which holds float32's bound and entries exactly.
      limit = tf.where(bound >= 0, bound, tf.zeros_like(bound))
      return [
        tf.cast(
          tf.clip_by_value(tf.cast(tensor, tf.float64), -limit, limit) * steps, tf.int64
        )
        for tensor in flat
      ]
  elif order in (1, 2) and all(tensor.dtype == tf.float32 for tensor in flat):
    # float64 holds the powers of all float32, and their sums; and a sum with NaN or
    # infinity in it is not finite.
    norm = _norm(flat, order)
    finite = tf.math.is_finite(norm)

    def make() -> list[tf.Tensor]:
      factor = _factor(norm, _size(flat), bound, steps)
      return [tf.cast(tensor * factor, tf.int64) for tensor in flat]
  else:
    finite = all_finite(flat)
    flat = [tf.cast(tensor, tf.float64) for tensor in flat]
    largest = _largest(flat)
    # Relative to the largest entry: no power overflows, and none that counts vanishes.
    relative = [tf.math.divide_no_nan(tensor, largest) for tensor in flat]
    of_relative = _norm(relative, order)
    norm = largest * of_relative

    def make() -> list[tf.Tensor]:
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
  """A sum with clipped records in it; norms and which were finite as in `Clipped`."""

  integers: Any  # int64 tensors.
  norms: tf.Tensor  # float64 [records].
  finite: tf.Tensor  # Bool [records].


def add_clipped(
  total: Any, several: Sequence[Any], clip_norm: Any, steps: tf.Tensor
) -> Added:
  """Adds to a sum what `clip_to_grid` makes of some records, bit for bit.

  Several large records are scaled, rounded and added in one pass over them and the sum,
  which XLA compiles: two fifths of the time. An entry is one product and one conversion
  to an integer, which no compiler may round differently.
  """
  flat = [tf.nest.flatten(as_tensors(each)) for each in several]
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

  For float32 at once: a map of `clip_to_grid` takes four times the operations, and they
  are what a round of small models costs.
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
      # NaN and infinity have no integer, and no product with 0.
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
