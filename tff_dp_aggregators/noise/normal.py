"""Independent standard Gaussians of uniform bits: fast, with tails to 11.5 sigma.

The Box-Muller transform makes two independent Gaussians of two uniform numbers:

    r = sqrt(-2 ln u),    x = r cos(2 pi v),    y = r sin(2 pi v).

**Bits.** u is the centre of one of 2^96 equal cells of (0, 1). So radii end at
sqrt(2 ln 2^97) = 11.6, and lie dr = 2^-96 / (u r) apart. Noise is brought to a grid of
steps of 2^-42 standard deviations or more (`queries.grid`); where radii are further
apart than these, a pair lies on one of circles with gaps between, and who knows a sum
could see whether what was added does. That happens beyond 8.9, with probability 2^-57.
With 64 bits it would have been 6 and 2^-25: once or more in any training of a model.
The last 32 bits matter to the rare pairs only whose u is within 2^-20 of 0 or 1, and
are drawn where there are such; elsewhere u is in the middle of its cell of 2^-64.
The angle has no tails, and 64 bits are enough of it; with 32, pairs would lie on rays.

**Rounding** moves a pair by less than 2^-49 of its length, however short or long it is:
near the origin, where u is next to 1, its distance from 1 is kept and not u, of which
float64 leaves circles 2^-53 / r apart. As the tail falls by a factor of exp(-t dt)
within dt, that changes no tail probability that matters. Numbers are float64 also where
records are float32: a spacing of 2^-24 of a number is thousands of steps of the grid,
and a sum would show through between them.

Which words there are is the generator's business (`generators`), and how many at a time
that of `rows`.
"""

import math
from typing import Callable

import tensorflow as tf

# A pair takes four words of 32 bits, and a fifth where its length is a rare one.
NUMBERS = 2
WORDS = 4
_RARE = 2.0**-20


def from_words(words: tf.Tensor, more: Callable[[], tf.Tensor]) -> tf.Tensor:
  """Turns uniform words into Gaussians.

  `words`: uint32 of shape [4 n], first those of all radii.
  `more`: Returns other words, uint32 of shape [n]; called if they matter.

  Returns A float64 tensor of shape [2 n], first every x, then every y.
  """
  pairs = tf.bitcast(tf.reshape(words, [2, -1, 2]), tf.uint64)
  signed = tf.cast(tf.bitcast(pairs[0], tf.int64), tf.float64)
  lower = tf.cond(
    tf.reduce_min(tf.abs(signed)) < _RARE * 2.0**64,
    more,
    lambda: tf.fill(tf.shape(signed), tf.constant(2**31, tf.uint32)),
  )
  return box_muller(pairs[0], lower, pairs[1])


def box_muller(radii: tf.Tensor, lower: tf.Tensor, angles: tf.Tensor) -> tf.Tensor:
  """Turns uniform words into Gaussians.

  `radii`: uint64 of shape [n]: 2^64 u, rounded down.
  `lower`: uint32 of shape [n]: the next 32 bits of u.
  `angles`: uint64 of shape [n]: the bits of v.

  Returns A float64 tensor of shape [2 n], first every x, then every y.
  """
  radius = tf.sqrt(-2.0 * _log_uniform(radii, lower))
  # As signed numbers the same angles are in [-pi, pi).
  angle = tf.cast(tf.bitcast(angles, tf.int64), tf.float64) * (math.pi * 2.0**-63)
  return tf.concat([radius * tf.cos(angle), radius * tf.sin(angle)], axis=0)


def _log_uniform(radii: tf.Tensor, lower: tf.Tensor) -> tf.Tensor:
  """The logarithm of u, to 2^-50 of itself for every u."""
  rest = (tf.cast(lower, tf.float64) + 0.5) * 2.0**-32
  # As signed numbers the upper half of all u is minus their distance from 1.
  signed = tf.cast(tf.bitcast(radii, tf.int64), tf.float64) + rest
  distance = tf.abs(signed) * 2.0**-64
  near_zero = signed > 0
  uniform = tf.where(near_zero, distance, 1.0 - distance)
  # What rounding 1 - distance has lost, exactly; the second order is 2^-106.
  lost = tf.where(near_zero, tf.zeros_like(uniform), (1.0 - uniform) - distance)
  return tf.math.log(uniform) + lost / uniform
