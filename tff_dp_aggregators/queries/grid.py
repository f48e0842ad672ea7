"""Exact sums of records: checks records, clips them to an integer grid, adds noise.

The rounding of a floating-point sum depends on which clients take part: a sum of
float32 records of norm 1 can change by more than 1 when one of them is left out
(Casacuberta et al., arXiv:2207.10635; 1.6 for 6,500 clients in
`tests/aggregators/exact_sums_test.py`). Here integers are summed, and their sum does
not depend on the order:

1. A record is clipped, and its entries are converted to integer numbers of *steps*,
   rounded towards zero, so that no entry and no norm grows (`clip_to_grid`). The step
   is a power of two that depends on the clip norm and the noise multiplier alone, such
   that an entry is at most `LARGEST_ENTRY` steps in magnitude.
2. The integers are summed in 64 bits, exactly for up to `MAX_CLIENTS` clients.
3. The noise, in units of steps as well, is rounded by floor(. + 1/2) and added.

Let X be the exact sum and Z the noise, both in steps. X is an integer, so the released
value is

    X + floor(Z + 1/2) = floor(X + Z + 1/2),

a function of X + Z, the mechanism that the accounting analyses. Nothing else is
visible, so no bits of X are visible that floating-point noise would leave uncovered
(Mironov, CCS 2012).

This assumes that Z is Gaussian, which it is up to the accuracy that `noise.rows`
states: the new row of z in a round is made of 96 random bits for the length of a pair
and 64 for its direction, in float64, so its spacing is far below a step, which is at
least 2^-35 of the standard deviation. The number of float64 values in a step varies
with its position by one: near one standard deviation it is 2^17, so the probability of
the step has a relative error of about 2^-17.
"""

import math
from typing import Any, NamedTuple

import tensorflow as tf

from tff_dp_aggregators.base import checks

# Sums of up to this many records are exact; callers that count records refuse more.
MAX_CLIENTS = 10**7
# Largest magnitude of an entry in steps: 10^7 times this is below 2^62.3.
_BITS = 39
LARGEST_ENTRY = 2**_BITS
# Noise with a standard deviation of 2^-4 clip norms has a step of 2^-35 standard
# deviations. More noise has larger steps, so that the spacing of float64 is never
# visible. Rounding 10^7 records to such steps loses 2^-11 standard deviations.
_FINE_NOISE_BITS = -4
# Noise of this many steps cannot overflow when it is added to any sum.
_LARGEST_NOISE = 2.0**61

# Within these limits float32 can hold steps, clipped records, noise, and their sums.
CLIP_NORM_LIMITS = (2.0**-80, 2.0**80)

# Records are structures of float tensors. Error messages contain dtypes and shapes but
# never values, because messages are logged, and a record is somebody's data.

_HALF = (tf.float16, tf.bfloat16)
_DTYPES = (*_HALF, tf.float32, tf.float64)


def as_tensors(record: Any) -> Any:
  """Returns a record as tensors, half precision converted to float32."""
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
  """Returns a record as tensors; raises an error if it does not match its specs."""
  record = as_tensors(record)
  try:
    tf.nest.assert_same_structure(record, record_specs)
  except (TypeError, ValueError) as error:
    # TensorFlow's own message prints the values.
    specs = tf.nest.map_structure(lambda t: tf.TensorSpec(t.shape, t.dtype), record)
    raise type(error)(
      f'a record must have the structure of record_specs, {record_specs}; got {specs}.'
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
  """Returns the clip norm as a float, if it is within `CLIP_NORM_LIMITS`."""
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
  """Returns the noise multiplier as a float, if it is 0 or within 2^-20 and 2^bits."""
  checks.check_not_negative(name, noise_multiplier)
  if noise_multiplier and not 2.0**-20 <= noise_multiplier <= 2.0**bits:
    raise ValueError(
      f'{name} must be 0 (no noise), or within 2^-20 and 2^{bits} (9.5e-7 to '
      f'{2.0**bits:.2g}), so that the grid of the sums can represent the noise; got '
      f'{noise_multiplier}.'
    )
  return float(noise_multiplier)


def steps_per_unit(
  clip_norm: Any, noise_multiplier: float, spare_bits: int = 0
) -> tf.Tensor:
  """Returns the number of grid steps in 1.0: a power of two, float64 scalar."""
  bits = tf.bitcast(tf.cast(clip_norm, tf.float64), tf.int64)
  # The (biased) exponent of the smallest power of two that is at least the clip norm.
  exponent = tf.bitwise.right_shift(bits, tf.constant(52, tf.int64))
  is_between = tf.not_equal(tf.bitwise.bitwise_and(bits, (1 << 52) - 1), 0)
  exponent += tf.cast(is_between, tf.int64)
  steps = exponent_of_steps(noise_multiplier) - spare_bits - exponent
  # The exponent of a float64 is biased by 1023; `exponent` is biased already.
  biased = tf.bitwise.left_shift(steps + 2 * 1023, tf.constant(52, tf.int64))
  return tf.bitcast(biased, tf.float64)


def exponent_of_steps(noise_multiplier: float) -> int:
  """Returns e such that entries are at most 2^e steps, a clip norm over 2^(e-1)."""
  if not noise_multiplier:
    return _BITS
  return _BITS - max(0, math.ceil(math.log2(noise_multiplier)) - _FINE_NOISE_BITS)


def asserted(tensors: Any, condition: tf.Tensor, *message: Any) -> Any:
  """Returns the tensors; InvalidArgumentError when run if the condition is false."""
  operation = tf.debugging.Assert(condition, list(message))
  with tf.control_dependencies([] if operation is None else [operation]):
    return tf.nest.map_structure(tf.identity, tensors)


def zeros_like(specs: Any) -> Any:
  """Returns the sum of no records."""
  return tf.nest.map_structure(lambda spec: tf.zeros(spec.shape, tf.int64), specs)


def add_noise(sums: Any, noise: Any, stddev_in_steps: tf.Tensor) -> Any:
  """Returns `sums + floor(stddev_in_steps * noise + 1/2)` for each tensor, int64."""

  def add(total: tf.Tensor, unit_noise: tf.Tensor) -> tf.Tensor:
    total = tf.convert_to_tensor(total)
    if total.shape != unit_noise.shape or total.dtype != tf.int64:
      raise ValueError(
        f'the sum to be noised has a {total.dtype.name} tensor of shape {total.shape} '
        f'where int64 of shape {unit_noise.shape} is expected: the exact sum of the '
        'integers that preprocess_record returns.'
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
  """Returns the L2 norm of the values of integers on the grid, float64 scalar."""
  squares = [tf.constant(0.0, tf.float64)]
  for tensor in tf.nest.flatten(integers):
    squares.append(tf.reduce_sum(tf.square(tf.cast(tensor, tf.float64) / steps)))
  return tf.sqrt(tf.add_n(squares))


def to_floats(integers: Any, specs: Any, steps: tf.Tensor) -> Any:
  """Returns the values of integers on the grid, in the dtypes of `specs`."""

  def convert(tensor: tf.Tensor, spec: tf.TensorSpec) -> tf.Tensor:
    # Rounds only once, because the product with a power of two is exact.
    return tf.cast(tensor, spec.dtype) * tf.cast(1 / steps, spec.dtype)

  return tf.nest.map_structure(convert, integers, specs)


# Clipping one client's contribution to one round, on the grid of the sums.
#
# The bound holds for every possible record, not only for likely ones, and it holds
# exactly: the p-norm of the resulting integers is at most `clip_norm * steps` in exact
# rational arithmetic (the tests check it). There are two reasons. Values are rounded
# towards zero, on a grid on which all numbers that arithmetic might lose, including
# subnormal ones, are zero. And the computed norm is replaced by an upper bound of the
# exact one: the sum of n powers in float64, in any order, has a relative error of at
# most (n - 1) 2^-53.

# Relative error of an entry times a factor: the factor and the product are rounded.
_ROUNDING = {tf.float32: 2.0**-22, tf.float64: 2.0**-50}
# Number of entries above which a pass over a tensor costs more than the operation call.
_LARGE = 2**16


class Clipped(NamedTuple):
  """A clipped record: its integers, its norm before, and whether it was finite.

  The norm is 0 if the record was not finite, and infinite if it exceeds float64.
  """

  integers: Any  # In steps, int64 tensors like the record.
  norm: tf.Tensor  # float64 scalar.
  finite: tf.Tensor  # Bool scalar.


def all_finite(record: Any) -> tf.Tensor:
  """Returns whether no entry of a record is NaN or infinite, a bool scalar."""
  flat = [
    tf.reduce_all(tf.math.is_finite(tensor)) for tensor in tf.nest.flatten(record)
  ]
  return tf.reduce_all(tf.stack(flat)) if flat else tf.constant(True)


def zero_unless_finite(record: Any) -> tuple[Any, tf.Tensor]:
  """Returns the record, all zeros if it was not finite, and whether it was finite."""
  finite = all_finite(record)
  # `tf.where` and not a product, because 0 * NaN is NaN.
  kept = tf.nest.map_structure(
    lambda tensor: tf.where(finite, tensor, tf.zeros_like(tensor)), record
  )
  return kept, finite


def clip_to_grid(
  record: Any, clip_norm: Any, steps: tf.Tensor, order: float = 2
) -> Clipped:
  """Clips a record to p-norm `clip_norm`, and converts its entries to integer steps.

  The norm is over all tensors together. For a finite `order`, a record with a larger
  norm is scaled down; for infinity, each entry is clipped by itself. A record with an
  entry that is NaN or infinite counts as zero. The p-norm of the integers is at most
  `clip_norm * steps`. Each integer is at most one step nearer to zero than the entry
  or, if the record was scaled down, than the entry scaled to (1 - 3e-7) of the bound
  (1 - 1e-15 for float64).
  """
  check_order(order)
  record = as_tensors(record)
  flat = tf.nest.flatten(record)
  bound = _float64(clip_norm)
  if not flat:
    return Clipped(record, tf.constant(0.0, tf.float64), tf.constant(True))
  if math.isinf(order):
    norm, finite = _largest(flat), all_finite(flat)

    def to_integers() -> list[tf.Tensor]:
      # In float64, which represents bounds and entries in float32 exactly.
      limit = tf.where(bound >= 0, bound, tf.zeros_like(bound))
      return [
        tf.cast(
          tf.clip_by_value(tf.cast(tensor, tf.float64), -limit, limit) * steps, tf.int64
        )
        for tensor in flat
      ]
  elif order in (1, 2) and all(tensor.dtype == tf.float32 for tensor in flat):
    # Powers of float32 numbers, and their sums, neither overflow nor vanish in float64;
    # and a sum that contains NaN or infinity is not finite.
    norm = _norm(flat, order)
    finite = tf.math.is_finite(norm)

    def to_integers() -> list[tf.Tensor]:
      factor = _factor(norm, _size(flat), bound, steps)
      return [tf.cast(tensor * factor, tf.int64) for tensor in flat]
  else:
    finite = all_finite(flat)
    flat = [tf.cast(tensor, tf.float64) for tensor in flat]
    largest = _largest(flat)
    # Relative to the largest entry, no power overflows, and none that matters vanishes.
    relative = [tf.math.divide_no_nan(tensor, largest) for tensor in flat]
    relative_norm = _norm(relative, order)
    norm = largest * relative_norm

    def to_integers() -> list[tf.Tensor]:
      within = _norm_upper_bound(norm, _size(flat), order) <= bound
      # Uses the relative norm, because `norm` may be infinite.
      shrunk = tf.math.divide_no_nan(
        bound * steps * (1 - _ROUNDING[tf.float64]),
        _norm_upper_bound(relative_norm, _size(flat), order),
      )
      shrunk = tf.where(shrunk >= 0, shrunk, tf.zeros_like(shrunk))
      return [
        tf.cast(tf.where(within, tensor * steps, ratio * shrunk), tf.int64)
        for tensor, ratio in zip(flat, relative)
      ]

  integers = tf.cond(
    finite, to_integers, lambda: [tf.zeros(tf.shape(t), tf.int64) for t in flat]
  )
  for tensor, original in zip(integers, flat):
    tensor.set_shape(original.shape)
  return Clipped(
    tf.nest.pack_sequence_as(record, integers),
    tf.where(finite, norm, tf.zeros_like(norm)),
    finite,
  )


class Added(NamedTuple):
  """A sum of clipped records; `norms` and `finite` of each record as in `Clipped`."""

  integers: Any  # int64 tensors.
  norms: tf.Tensor  # float64 [records].
  finite: tf.Tensor  # Bool [records].


def sum_clipped(stacked: Any, clip_norm: Any, steps: tf.Tensor) -> Added:
  """Returns the sum of the results of `clip_to_grid` for stacked records.

  float32 records are clipped all at once: mapping `clip_to_grid` takes four times as
  many operations, whose number determines the cost of a round of small models.
  """
  flat = tf.nest.flatten(stacked)
  if all(tensor.shape[0] == 1 for tensor in flat):  # It takes fewer passes.
    record = tf.nest.map_structure(lambda tensor: tensor[0], stacked)
    clipped = clip_to_grid(record, clip_norm, steps)
    return Added(clipped.integers, clipped.norm[tf.newaxis], clipped.finite[tf.newaxis])
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
    sum_of_rows(tf.cast(tensor * _aligned(factors, tensor), tf.int64))
    for tensor in zero_rows_unless(finite, flat)
  ]
  return Added(
    tf.nest.pack_sequence_as(stacked, sums),
    tf.where(finite, norms, tf.zeros_like(norms)),
    finite,
  )


def sum_of_rows(stacked: tf.Tensor) -> tf.Tensor:
  """Returns the sum over the first axis; of a single row, without a pass over it."""
  if stacked.shape[0] == 1:
    return tf.squeeze(stacked, axis=0)
  return tf.reduce_sum(stacked, axis=0)


def zero_rows_unless(kept: tf.Tensor, stacked: Any) -> Any:
  """Returns stacked records, with zeros in place of those that are not kept."""
  # Nearly always all are kept, and `tf.where` would be another pass over the entries.
  return tf.cond(
    tf.reduce_all(kept),
    lambda: stacked,
    lambda: tf.nest.map_structure(
      lambda tensor: tf.where(_aligned(kept, tensor), tensor, tf.zeros_like(tensor)),
      stacked,
    ),
  )


def _aligned(by_record: tf.Tensor, stacked: tf.Tensor) -> tf.Tensor:
  """Reshapes a vector with an entry for each record to broadcast with `stacked`."""
  return tf.reshape(by_record, [-1] + [1] * (stacked.shape.rank - 1))


def _float64(number: Any) -> tf.Tensor:
  # TensorFlow would convert a Python number to float32 first.
  if not tf.is_tensor(number):
    number = tf.constant(number, tf.float64)
  return tf.cast(number, tf.float64)


def check_order(order: float) -> float:
  """Returns the order of a norm as a float; ValueError if it is below 1."""
  if not checks.check_number('order', order) >= 1:
    raise ValueError(
      f'order must be at least 1 (math.inf for the largest entry); got {order}. '
      'Below 1 there is no triangle inequality, so sensitivities would not add up.'
    )
  return float(order)


def _largest(flat: list[tf.Tensor]) -> tf.Tensor:
  """Returns the largest magnitude of all entries; 0 if there are none; float64."""
  # The maximum of an empty tensor is minus infinity.
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
  # It takes one pass, but cannot be vectorised in the training of many small models.
  return 2.0 * tf.nn.l2_loss(tensor)


def _size(flat: list[tf.Tensor]) -> tf.Tensor:
  return tf.add_n([tf.size(tensor, tf.int64) for tensor in flat])


def _norm_upper_bound(norm: tf.Tensor, size: tf.Tensor, order: float = 2) -> tf.Tensor:
  """Returns an upper bound of the exact norm of `size` entries, given the computed."""
  # Errors of the sum, the powers and the root; that of a power grows with the exponent.
  units = tf.cast(size, tf.float64) + (16.0 + 2.0 * order)
  return norm * (1.0 + units * 2.0**-52)


def _factor(
  norm: tf.Tensor, size: tf.Tensor, bound: tf.Tensor, steps: tf.Tensor
) -> tf.Tensor:
  """Returns the factor of entries before truncation: float32, the shape of `norm`."""
  upper_bound = _norm_upper_bound(norm, size)
  # `<=` is false if the bound is NaN, so no record passes unclipped. Without clipping
  # the factor is a power of two, and the only rounding is the truncation.
  shrunk = steps * (bound / upper_bound) * (1 - _ROUNDING[tf.float32])
  factor = tf.where(upper_bound <= bound, steps, shrunk)
  return tf.cast(tf.where(factor >= 0, factor, tf.zeros_like(factor)), tf.float32)
