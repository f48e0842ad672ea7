"""The grid of integers that records are summed on.

Adding floating-point numbers rounds, and how the sum of the others is rounded depends
on whether a client is among them: a sum of float32 records of norm 1 can move by more
than 1 when one is left out (Casacuberta et al., arXiv:2207.10635; 1.6 for 6,500 clients
in `tests/aggregators/exact_sums_test.py`). So a mechanism whose proof speaks of real
numbers is not the one that runs. Here sums are of integers, which have one value in any
order:

1. A record is clipped and its entries are counted in *steps*, rounded towards zero, so
   that no entry and no norm grows (`clipping.clip_to_grid`). A step is a power of two
   that depends on the clip norm and the noise multiplier alone, such that an entry is
   at most `LARGEST_ENTRY` steps in magnitude.
2. The integers are added up in 64 bits, exactly for up to `MAX_CLIENTS` clients.
3. The noise, counted in steps as well, is rounded by floor(. + 1/2) and added.

With X the exact sum and Z the noise in steps, X is an integer, so what is released is

    X + floor(Z + 1/2) = floor(X + Z + 1/2),

a function of X + Z, which is the mechanism that the accounting is of: removing a client
moves X by no more than the clip norm, exactly, and whatever is done with X + Z costs
nothing. Nothing but this function of it is to be seen, so neither are bits of X that
floating-point noise would leave uncovered (Mironov, CCS 2012).

What this rests on is that Z is a Gaussian. It is one up to what `noise.normal` says:
the row of z that is new in a round is made of 96 random bits for the length of a pair
and 64 for its direction, in float64, so that its spacing is far below a step, which is
2^-35 of the standard deviation at least. How many numbers of float64 a step holds
depends on where it lies, one more or less: of a number near one standard deviation
2^17, so that the step's probability is right to some 2^-17.
"""

import math
from typing import Any

import tensorflow as tf

from tff_dp_aggregators.base import checks

# A sum of this many records is exact; more are refused where they are counted.
MAX_CLIENTS = 10**7
# Magnitude of an entry in steps: 10^7 times this is below 2^62.3.
_BITS = 39
LARGEST_ENTRY = 2**_BITS
# Noise of standard deviation 2^-4 clip norms has 2^-35 of it as a step. Louder noise
# gets larger steps: float64, of 53 bits, has to be so much finer than a step that its
# spacing shows nowhere, not in millions of coordinates together. What larger steps take
# from 10^7 records is 2^-11 of it.
_LOUD_BITS = -4
# What noise can reach in steps without an overflow, beside any sum.
_LARGEST_NOISE = 2.0**61

# Within these, float32 holds steps, records within the bound, noise, and their sums.
_SMALLEST_CLIP_NORM, _LARGEST_CLIP_NORM = 2.0**-80, 2.0**80
_SMALLEST_NOISE_MULTIPLIER, _LARGEST_NOISE_MULTIPLIER = 2.0**-20, 2.0**30
CLIP_NORM_LIMITS = (_SMALLEST_CLIP_NORM, _LARGEST_CLIP_NORM)


def check_clip_norm(clip_norm: float, name: str = 'clip_norm') -> float:
  """Returns it as a float, if records can be summed and noised at its scale."""
  checks.check_number(name, clip_norm)
  if not (clip_norm > 0 and math.isfinite(clip_norm)):
    raise ValueError(f'{name} must be positive and finite; got {clip_norm}.')
  if not _SMALLEST_CLIP_NORM <= clip_norm <= _LARGEST_CLIP_NORM:
    raise ValueError(
      f'{name} must be within 2^-80 and 2^80 (8.3e-25 to 1.2e24), so that float32 '
      f'holds sums and noise at its scale; got {clip_norm}. Scale the records.'
    )
  return float(clip_norm)


def check_noise_multiplier(noise_multiplier: float) -> float:
  """Returns it as a float, if noise this loud or silent can be added."""
  if noise_multiplier and not (
    _SMALLEST_NOISE_MULTIPLIER <= noise_multiplier <= _LARGEST_NOISE_MULTIPLIER
  ):
    raise ValueError(
      'noise_multiplier must be 0 (no noise), or within 2^-20 and 2^30 (9.5e-7 to '
      f'1.1e9), so that the grid of the sums shows the noise; got {noise_multiplier}.'
    )
  return float(noise_multiplier)


def steps_per_unit(
  clip_norm: Any, noise_multiplier: float, spare_bits: int = 0
) -> tf.Tensor:
  """How many steps of the grid are 1: a power of two, float64 scalar.

  Example:
    >>> import math
    >>> [math.log2(steps_per_unit(tf.constant(c), 1.0)) for c in (1.0, 1.01, 0.5)]
    [35.0, 34.0, 36.0]
  """
  bits = tf.bitcast(tf.cast(clip_norm, tf.float64), tf.int64)
  # Of the smallest power of two that is not below the clip norm.
  exponent = tf.bitwise.right_shift(bits, tf.constant(52, tf.int64))
  is_between = tf.not_equal(tf.bitwise.bitwise_and(bits, (1 << 52) - 1), 0)
  exponent += tf.cast(is_between, tf.int64)
  steps = exponent_of_steps(noise_multiplier) - spare_bits - exponent
  # In the exponent of a float64, biased by 1023; `exponent` is biased already.
  return tf.bitcast(
    tf.bitwise.left_shift(steps + 2 * 1023, tf.constant(52, tf.int64)), tf.float64
  )


def exponent_of_steps(noise_multiplier: float) -> int:
  """An entry is at most two to this power, in steps, and a clip norm more than half."""
  if not noise_multiplier:
    return _BITS
  return _BITS - max(0, math.ceil(math.log2(noise_multiplier)) - _LOUD_BITS)


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
    # Of texts alone, it takes no branch, which would take longer to make than the rest.
    fits = tf.debugging.Assert(
      tf.reduce_max(tf.abs(scaled)) < _LARGEST_NOISE,
      ['the noise is too loud for sums in 64 bits; lower noise_multiplier.'],
    )
    with tf.control_dependencies([] if fits is None else [fits]):
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
