"""Independent standard Gaussians of uniform bits: fast, with tails to 9.5 sigma.

The Box-Muller transform makes two independent Gaussians of two uniform numbers:

    r = sqrt(-2 ln u),    x = r cos(2 pi v),    y = r sin(2 pi v).

**Bits.** u is the centre of one of 2^64 equal cells of (0, 1), so that radii end at
sqrt(2 ln 2^65) = 9.49, beyond which a Gaussian has 2.4e-21. Up to 8 sigma the tail
consists of more than 10^5 cells, and up to 9 of 47, which is how exact its probability
is. The angle has no tails, and 64 bits as well: with 32, pairs would lie on rays that
are 1.5e-9 apart, and who knows a sum could see whether what was added lies on one.

**Rounding** moves a pair by less than 2^-49 of its length, plus 2^-53 divided by its
length (1.1e-8 at most). As the tail falls by a factor of exp(-t dt) within dt, that
changes no tail probability that matters. Numbers are float64 also where records are
float32: a spacing of 2^-24 of a number is thousands of steps of the grid that noise is
brought to (`queries.grid`), and a sum would show through between them.

Which words there are is the generator's business (`generators`), and how many at a time
that of `rows`.
"""

import math

import tensorflow as tf

# A pair takes four words of 32 bits.
NUMBERS = 2
WORDS = 4


def from_words(words: tf.Tensor) -> tf.Tensor:
  """Turns uniform words into Gaussians.

  Args:
    words: uint32 of shape [4 n], first those of all radii.

  Returns:
    A float64 tensor of shape [2 n], first every x, then every y.
  """
  pairs = tf.bitcast(tf.reshape(words, [2, -1, 2]), tf.uint64)
  return box_muller(pairs[0], pairs[1])


def box_muller(radii: tf.Tensor, angles: tf.Tensor) -> tf.Tensor:
  """Turns uniform words into Gaussians.

  Args:
    radii: uint64 of shape [n]: 2^64 u, rounded down.
    angles: uint64 of shape [n]: the bits of v.

  Returns:
    A float64 tensor of shape [2 n], first every x, then every y.
  """
  uniform = (tf.cast(radii, tf.float64) + 0.5) * 2.0**-64
  radius = tf.sqrt(-2.0 * tf.math.log(uniform))
  # As signed numbers the same angles are in [-pi, pi).
  angle = tf.cast(tf.bitcast(angles, tf.int64), tf.float64) * (math.pi * 2.0**-63)
  return tf.concat([radius * tf.cos(angle), radius * tf.sin(angle)], axis=0)
