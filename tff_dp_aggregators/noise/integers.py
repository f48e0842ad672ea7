"""Samples integer noise, discrete Gaussian or Skellam, from tables of probabilities.

A magnitude is sampled by comparing 126 uniform bits with the probabilities that it is
larger than 0, 1, 2, ..., computed with sixty digits and rounded down to multiples of
2^-126; one more bit is the sign. So samples have the stated distribution up to a total
variation of 2^-126 for each entry of the table: d coordinates of n clients in r rounds
differ from exact samples by at most d n r 2^-110, which is 8e-23 for 10^6, 100 and
1000. Sampling uses no floating-point numbers.
"""

import decimal
import functools
from typing import Callable

import numpy as np
import tensorflow as tf

KINDS = ('discrete_gaussian', 'skellam')
WORDS = 4  # Uniform words of 32 bits for each number.
_HALF = 63  # Bits in each of the two halves of a uniform number.
_DIGITS = 60
# Limits the size of tables; the table for a standard deviation of 4096 has a tenth.
MAX_STDDEV = 40_000.0


def draw(kind: str, stddev: float, words: tf.Tensor) -> tf.Tensor:
  """Returns integer noise, int64 [n], from uniform words, uint32 [4 n]."""
  high, low = (tf.constant(half, tf.int64) for half in table(kind, stddev))
  return _look_up(high, low, words)


@functools.lru_cache(maxsize=8)
def table(kind: str, stddev: float) -> tuple[np.ndarray, np.ndarray]:
  """Returns upper and lower halves of P(magnitude > 0, 1, ...) 2^126, ascending."""
  if kind not in KINDS:
    raise ValueError(f'kind must be one of {KINDS}; got {kind!r}.')
  if not 0 < stddev <= MAX_STDDEV:
    raise ValueError(
      f'stddev must be above 0 and at most {MAX_STDDEV:g}, for tables have an entry '
      f'for each magnitude; got {stddev}. Take a coarser grid.'
    )
  with decimal.localcontext(decimal.Context(prec=_DIGITS)):
    weights = _WEIGHTS[kind](decimal.Decimal(float(stddev)))
    total = weights[0] + 2 * sum(weights[1:])
    unit = decimal.Decimal(2) ** (2 * _HALF) / total
    tail, tails = decimal.Decimal(0), []
    for weight in reversed(weights[1:]):  # Adds the smallest weights first.
      tail += 2 * weight * unit
      if tail >= 1:
        tails.append(int(tail))
  mask = (1 << _HALF) - 1
  high = np.array([each >> _HALF for each in tails], np.int64)
  return high, np.array([each & mask for each in tails], np.int64)


def _discrete_gaussian(stddev: decimal.Decimal) -> list[decimal.Decimal]:
  """Returns exp(-k^2 / (2 stddev^2)) for k = 0, 1, ..., while above 2^-160."""
  ratio = (-1 / (2 * stddev * stddev)).exp()
  square, threshold = ratio * ratio, decimal.Decimal(2) ** -160
  weights = [decimal.Decimal(1)]
  while weights[-1] > threshold:
    weights.append(weights[-1] * ratio)
    ratio *= square
  return weights


def _skellam(stddev: decimal.Decimal) -> list[decimal.Decimal]:
  """Returns Bessel functions I_k(stddev^2) for k = 0, 1, ..., up to a common factor.

  Uses their backward recurrence, in which all terms are positive (Miller), starting
  where they are less than 10^-75 of those that matter.
  """
  variance = stddev * stddev
  order = 2 * (int(24 * stddev) // 2) + 200
  next_value, value = decimal.Decimal(0), decimal.Decimal(1)
  weights = [value]
  for k in range(order, 0, -1):
    next_value, value = value, next_value + 2 * k / variance * value
    weights.append(value)
  return weights[::-1]


_WEIGHTS: dict[str, Callable[[decimal.Decimal], list[decimal.Decimal]]] = {
  'discrete_gaussian': _discrete_gaussian,
  'skellam': _skellam,
}


def _look_up(high: tf.Tensor, low: tf.Tensor, words: tf.Tensor) -> tf.Tensor:
  """Returns the number of probabilities above each uniform number, with a sign."""
  bits = tf.bitcast(tf.reshape(words, [2, -1, 2]), tf.int64)
  # Clears the sign bits; the first one is the sign of the noise.
  upper, lower = tf.unstack(tf.bitwise.bitwise_and(bits, tf.int64.max))
  first = tf.searchsorted(high, upper, side='left', out_type=tf.int64)
  after = tf.searchsorted(high, upper, side='right', out_type=tf.int64)
  size = tf.size(high, tf.int64)

  def compare_lower() -> tf.Tensor:
    # Compares lower halves where upper halves are equal, which is nearly never.
    def body(place: tf.Tensor, count: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
      index = first + place
      is_above = tf.gather(low, tf.minimum(index, size - 1)) > lower
      return place + 1, count + tf.cast((index < after) & is_above, tf.int64)

    max_equal = tf.reduce_max(after - first)
    _, count = tf.while_loop(
      lambda place, _: place < max_equal,
      body,
      (tf.constant(0, tf.int64), tf.zeros_like(first)),
    )
    return count

  among_equal = tf.cond(
    tf.reduce_any(after > first), compare_lower, lambda: tf.zeros_like(first)
  )
  magnitude = size - after + among_equal
  return tf.where(bits[0] < 0, -magnitude, magnitude)
