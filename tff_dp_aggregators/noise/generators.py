"""Where the random words of the noise come from: ChaCha20, or Philox.

Both are random access: a word follows from the key, the number of the row, the number
of the vector in the row, and its place in the vector. Each of these has bits of its own
in what the generator takes; nothing is ever added to a key, nor a row to a vector.

ChaCha20 is a stream cipher. Whoever sees some of its words, and does not have the key,
learns nothing about others, as far as anybody knows. It is what secret noise is made
of.

Philox (Salmon et al. 2011) passes statistical tests and is a seventh of the work. It is
not made to withstand anybody who wants to find the key; in TensorFlow this key has 64
bits. It is what simulations with a seed are made of, where there is nothing to find.
"""

import abc
from typing import Any

import tensorflow as tf

from tff_dp_aggregators.noise import chacha20
from tff_dp_aggregators.noise import keys

NAMES = ('chacha20', 'philox')
# Bits of a counter of Philox for the block within a vector; 24 are for the vector.
_PHILOX_BLOCK_BITS = 40


class Generator(abc.ABC):
  """Uniform random words of 32 bits, in blocks.

  Attributes:
    name: One of `NAMES`.
    block_words: Words of a block.
    max_blocks: How many blocks a vector has at most.
  """

  name: str
  block_words: int
  max_blocks: int

  @abc.abstractmethod
  def words(
    self,
    key: tf.Tensor,
    row: tf.Tensor,
    vector: tf.Tensor,
    first_block: tf.Tensor,
    num_blocks: int,
  ) -> tf.Tensor:
    """Consecutive blocks of a vector.

    `key`: int64 of shape [4].

    Returns uint32 of shape [block_words * num_blocks].
    """


class ChaCha20(Generator):
  """The cipher: the row is 64 bits of the nonce, the vector 32, the block the counter.

  Words come in the order of their place in a block: the first words of all blocks, then
  the second ones. Any fixed order serves, and this one costs nothing.
  """

  name = 'chacha20'
  block_words = chacha20.WORDS
  max_blocks = chacha20.MAX_BLOCKS

  def words(
    self,
    key: tf.Tensor,
    row: tf.Tensor,
    vector: tf.Tensor,
    first_block: tf.Tensor,
    num_blocks: int,
  ) -> tf.Tensor:
    """Consecutive blocks of a vector.

    `key`: The key of the cipher, int64 of shape [4].

    Returns uint32 of shape [16 * num_blocks].
    """
    nonce = tf.concat(
      [tf.bitcast(row, tf.uint32), tf.cast(vector, tf.uint32)[tf.newaxis]], axis=0
    )
    counter = tf.cast(first_block, tf.uint32)
    blocks = chacha20.blocks(keys.words_of(key), counter, nonce, num_blocks)
    return tf.reshape(blocks, [-1])


class Philox(Generator):
  """Philox4x32-10: the row is half of the counter, vector and block the other half."""

  name = 'philox'
  block_words = 4
  max_blocks = 2**_PHILOX_BLOCK_BITS

  def words(
    self,
    key: tf.Tensor,
    row: tf.Tensor,
    vector: tf.Tensor,
    first_block: tf.Tensor,
    num_blocks: int,
  ) -> tf.Tensor:
    """Consecutive blocks of a vector.

    `key`: int64 of shape [4]; the first 64 bits are the key of Philox.

    Returns uint32 of shape [4 * num_blocks].
    """
    shift = tf.constant(_PHILOX_BLOCK_BITS, tf.int64)
    place = tf.bitwise.bitwise_or(tf.bitwise.left_shift(vector, shift), first_block)
    return tf.raw_ops.StatelessRandomUniformFullIntV2(
      shape=[self.block_words * num_blocks],
      key=tf.bitcast(key[:1], tf.uint64),
      counter=tf.bitcast(tf.stack([place, row]), tf.uint64),
      alg=1,
      dtype=tf.uint32,
    )


def choose(generator: Any, secret: bool) -> Generator:
  """The generator of a name."""
  if generator == 'auto':
    generator = 'chacha20' if secret else 'philox'
  for known in (ChaCha20(), Philox()):
    if generator == known.name:
      return known
  raise ValueError(
    f"generator must be 'auto', {' or '.join(map(repr, NAMES))}, got {generator!r}."
  )
