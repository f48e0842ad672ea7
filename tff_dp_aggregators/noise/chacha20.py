"""The ChaCha20 block function (RFC 8439, section 2.3) in TensorFlow operations.

It runs wherever the noise is added, inside TFF's worker too, and makes 64 bytes of each
256-bit key, 32-bit counter and 96-bit nonce. What is assumed of it is what everybody
assumes who encrypts with it: with a secret, uniformly random key, nobody can tell its
blocks for different counters and nonces from random ones.

Sixteen vectors hold the words of all blocks at once, word i of each block in vector i,
so that a round of the cipher is a few operations on long vectors. Integers are exact:
eager mode, `tf.function` and TFF give the same bits. A rotation adds a product with a
power of two to what a shift leaves, bits that do not meet: additions and products are
vectorised in TensorFlow, shifts and `or` are not.
"""

import tensorflow as tf

WORDS = 16  # Of 32 bits, in a block.
MAX_BLOCKS = 2**32  # The counter has 32 bits.
_CONSTANTS = (0x61707865, 0x3320646E, 0x79622D32, 0x6B206574)
_DOUBLE_ROUNDS = 10
# Columns, then diagonals.
_QUARTERS = (
  *((0, 4, 8, 12), (1, 5, 9, 13), (2, 6, 10, 14), (3, 7, 11, 15)),
  *((0, 5, 10, 15), (1, 6, 11, 12), (2, 7, 8, 13), (3, 4, 9, 14)),
)


def blocks(
  key: tf.Tensor, counter: tf.Tensor, nonce: tf.Tensor, num_blocks: int
) -> tf.Tensor:
  """Blocks of consecutive counters.

  Example:
    >>> zeros = tf.zeros([11], tf.uint32)
    >>> first = blocks(zeros[:8], zeros[0], zeros[8:], 1)
    >>> hex(int(first[0, 0]))  # RFC 8439, appendix A.1, test vector 1.
    '0xade0b876'

  Args:
    key: uint32 of shape [8].
    counter: That of the first block, a uint32 scalar.
    nonce: uint32 of shape [3].
    num_blocks: How many. After the last counter comes 0.

  Returns:
    uint32 of shape [16, num_blocks], a block in each column.

  Raises:
    ValueError: If there are more blocks than counters.
  """
  if num_blocks > MAX_BLOCKS:
    raise ValueError(
      f'a key and nonce have {MAX_BLOCKS} blocks, got num_blocks={num_blocks}.'
    )
  return _blocks(key, counter, nonce, num_blocks)


# A function, so that eager mode does not run a thousand operations one by one.
@tf.function(autograph=False)
def _blocks(
  key: tf.Tensor, counter: tf.Tensor, nonce: tf.Tensor, num_blocks: int
) -> tf.Tensor:
  counters = counter + tf.cast(tf.range(num_blocks, dtype=tf.int64), tf.uint32)
  ones = tf.ones_like(counters)
  begin = [
    *(ones * tf.constant(word, tf.uint32) for word in _CONSTANTS),
    *(ones * word for word in tf.unstack(key)),
    counters,
    *(ones * word for word in tf.unstack(nonce)),
  ]
  # A loop, because a graph of 1600 operations takes a second to be made ready.
  _, *end = tf.while_loop(
    lambda number, *_: number < _DOUBLE_ROUNDS,
    lambda number, *words: (number + 1, *_double_round(list(words))),
    (tf.constant(0), *begin),
    parallel_iterations=1,
  )
  return tf.stack([before + after for before, after in zip(begin, end)])


def _double_round(words: list[tf.Tensor]) -> list[tf.Tensor]:
  for a, b, c, d in _QUARTERS:
    words[a] += words[b]
    words[d] = _rotated(tf.bitwise.bitwise_xor(words[d], words[a]), 16)
    words[c] += words[d]
    words[b] = _rotated(tf.bitwise.bitwise_xor(words[b], words[c]), 12)
    words[a] += words[b]
    words[d] = _rotated(tf.bitwise.bitwise_xor(words[d], words[a]), 8)
    words[c] += words[d]
    words[b] = _rotated(tf.bitwise.bitwise_xor(words[b], words[c]), 7)
  return words


def _rotated(words: tf.Tensor, bits: int) -> tf.Tensor:
  """To the left."""
  right = tf.bitwise.right_shift(words, tf.constant(32 - bits, tf.uint32))
  return words * tf.constant(2**bits, tf.uint32) + right
