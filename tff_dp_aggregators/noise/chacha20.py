"""The ChaCha20 block function (RFC 8439, section 2.3) in TensorFlow operations.

It runs wherever the noise is added, inside TFF's worker too, and makes 64 bytes of each
256-bit key, 32-bit counter and 96-bit nonce. What is assumed of it is what everybody
assumes who encrypts with it: with a secret, uniformly random key, nobody can tell its
blocks for different counters and nonces from random ones.

The four rows of the state are matrices with a column for each block, so that a quarter
round of all columns and blocks is twenty operations on long rows, and one of diagonals
the same after rows were turned. Integers are exact:
eager mode, `tf.function` and TFF give the same bits. A rotation adds a product with a
power of two to what a shift leaves, bits that do not meet: additions and products are
vectorised in TensorFlow, shifts and `or` are not.
"""

import functools

import tensorflow as tf

WORDS = 16  # Of 32 bits, in a block.
MAX_BLOCKS = 2**32  # The counter has 32 bits.
_CONSTANTS = (0x61707865, 0x3320646E, 0x79622D32, 0x6B206574)
_DOUBLE_ROUNDS = 10


def blocks(
  key: tf.Tensor, counter: tf.Tensor, nonce: tf.Tensor, num_blocks: int
) -> tf.Tensor:
  """Blocks of consecutive counters.

  Example:
    >>> zeros = tf.zeros([11], tf.uint32)
    >>> first = blocks(zeros[:8], zeros[0], zeros[8:], 1)
    >>> hex(int(first[0, 0]))  # RFC 8439, appendix A.1, test vector 1.
    '0xade0b876'

  `key`: uint32 of shape [8].
  `nonce`: uint32 of shape [3].

  Returns uint32 of shape [16, num_blocks], a block in each column.
  """
  if num_blocks > MAX_BLOCKS:
    raise ValueError(
      f'a key and nonce have {MAX_BLOCKS} blocks, got num_blocks={num_blocks}.'
    )
  return _traced(num_blocks)(key, counter, nonce)


@functools.cache
def _traced(num_blocks: int) -> tf.types.experimental.ConcreteFunction:
  """One graph for all that call it; eager mode would run a thousand operations.

  Called in graphs of TFF's, a `tf.function` would be traced anew in each, which takes
  longer than all else there, and would keep each graph for as long as the process runs.
  """
  with tf.__internal__.eager_context.eager_mode():
    return tf.function(
      functools.partial(_blocks, num_blocks=num_blocks), autograph=False
    ).get_concrete_function(
      key=tf.TensorSpec([8], tf.uint32),
      counter=tf.TensorSpec([], tf.uint32),
      nonce=tf.TensorSpec([3], tf.uint32),
    )


def _blocks(
  key: tf.Tensor, counter: tf.Tensor, nonce: tf.Tensor, num_blocks: int
) -> tf.Tensor:
  counters = counter + tf.cast(tf.range(num_blocks, dtype=tf.int64), tf.uint32)
  ones = tf.ones_like(counters)
  first, second = tf.unstack(tf.reshape(key, [2, 4, 1]))
  begin = [
    tf.constant(_CONSTANTS, tf.uint32)[:, tf.newaxis] * ones,
    first * ones,
    second * ones,
    tf.concat([counters[tf.newaxis], nonce[:, tf.newaxis] * ones], axis=0),
  ]
  # A loop, because a graph of 500 operations takes long to be made ready.
  _, *end = tf.while_loop(
    lambda number, *_: number < _DOUBLE_ROUNDS,
    lambda number, *rows: (number + 1, *_double_round(*rows)),
    (tf.constant(0), *begin),
    parallel_iterations=1,
  )
  return tf.concat([before + after for before, after in zip(begin, end)], axis=0)


def _double_round(
  a: tf.Tensor, b: tf.Tensor, c: tf.Tensor, d: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor]:
  a, b, c, d = _quarter_rounds(a, b, c, d)
  a, b, c, d = _quarter_rounds(a, _turned(b, 1), _turned(c, 2), _turned(d, 3))
  return a, _turned(b, 3), _turned(c, 2), _turned(d, 1)


def _quarter_rounds(
  a: tf.Tensor, b: tf.Tensor, c: tf.Tensor, d: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor]:
  a += b
  d = _rotated(tf.bitwise.bitwise_xor(d, a), 16)
  c += d
  b = _rotated(tf.bitwise.bitwise_xor(b, c), 12)
  a += b
  d = _rotated(tf.bitwise.bitwise_xor(d, a), 8)
  c += d
  b = _rotated(tf.bitwise.bitwise_xor(b, c), 7)
  return a, b, c, d


def _turned(row: tf.Tensor, columns: int) -> tf.Tensor:
  """A row of the state with its words moved to the left."""
  return tf.concat([row[columns:], row[:columns]], axis=0)


def _rotated(words: tf.Tensor, bits: int) -> tf.Tensor:
  """To the left."""
  right = tf.bitwise.right_shift(words, tf.constant(32 - bits, tf.uint32))
  return words * tf.constant(2**bits, tf.uint32) + right
