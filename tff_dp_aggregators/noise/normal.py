"""Independent standard Gaussians of uniform bits: fast, with tails to 9.5 sigma.

The Box-Muller transform makes two independent Gaussians of two uniform numbers:

    r = sqrt(-2 ln u),    x = r cos(2 pi v),    y = r sin(2 pi v).

**Bits.** u is the centre of one of 2^64 equal cells of (0, 1), so that radii end at
sqrt(2 ln 2^65) = 9.49, beyond which a Gaussian has 2.4e-21. Up to 8 sigma the tail
consists of more than 10^5 cells, and up to 9 of 47, which is how exact its probability
is. The angle has no tails; 32 bits are more than a float32 pair shows, a float64 pair
takes 64.

**Rounding** moves a pair by less than 16 eps of its length, eps = 2^-24 for float32 and
2^-53 for float64, plus 2^-53 divided by its length (1.1e-8 at most). For float32 the
former is 1e-6, some spacings of floating point. As the tail falls by a factor of
exp(-t dt) within dt, that changes tail probabilities up to 9 sigma by less than a
ten-thousandth of themselves.

Which words there are is the generator's business (`generators`), and how many at a time
that of `rows`.
"""

import math

import tensorflow as tf

# A pair takes three or four words of 32 bits.
NUMBERS = 2
WORDS = {tf.float32: 3, tf.float64: 4}


def from_words(words: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
  """Turns uniform words into Gaussians.

  Args:
    words: uint32 of shape [n WORDS[dtype]], first those of all radii.
    dtype: float32 or float64.

  Returns:
    A tensor of `dtype` and shape [2 n], first every x, then every y.
  """
  num_pairs = words.shape[0] // WORDS[dtype]
  radii = tf.bitcast(tf.reshape(words[: 2 * num_pairs], [-1, 2]), tf.uint64)
  angles = words[2 * num_pairs :]
  if dtype == tf.float64:
    angles = tf.bitcast(tf.reshape(angles, [-1, 2]), tf.uint64)
  return box_muller(radii, angles, dtype)


def box_muller(radii: tf.Tensor, angles: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
  """Turns uniform words into Gaussians.

  Args:
    radii: uint64 of shape [n]: 2^64 u, rounded down.
    angles: uint32 or uint64 of shape [n]: the bits of v.
    dtype: float32 or float64.

  Returns:
    A tensor of `dtype` and shape [2 n], first every x, then every y.
  """
  # In float64, as a float32 below 1 would leave gaps in the radii near 0.
  uniform = (tf.cast(radii, tf.float64) + 0.5) * 2.0**-64
  radius = tf.sqrt(-2.0 * tf.cast(tf.math.log(uniform), dtype))
  # As signed numbers the same angles are in [-pi, pi).
  signed = tf.int32 if angles.dtype == tf.uint32 else tf.int64
  half_turn = math.pi * 2.0 ** (1 - 8 * signed.size)
  angle = tf.cast(tf.bitcast(angles, signed), dtype) * half_turn
  return tf.concat([radius * tf.cos(angle), radius * tf.sin(angle)], axis=0)
