"""Secret keys, and the random words that the noise is made of: ChaCha20's, or Philox's.

Both are random access: a word follows from the key, the number of the row, the number
of the vector in the row, and its place in the vector. Each of these has bits of its own
in what the generator takes; nothing is ever added to a key, nor a row to a vector.

ChaCha20 is a stream cipher, of which secret noise is made. Philox (Salmon et al. 2011)
is a seventh of the work, and does not withstand anybody who wants to find the key, of
64 bits in TensorFlow: simulations with a seed are made of it.
"""

import functools
from typing import Any, Union

import tensorflow as tf

NAMES = ('chacha20', 'philox')
MAX_BLOCKS = 2**32  # The counter has 32 bits.
BLOCK_WORDS = 16  # Of 32 bits, in a block of ChaCha20.
# Bits of a counter of Philox for the block within a vector; 24 are for the vector.
_PHILOX_BLOCK_BITS = 40


class ChaCha20:
  """The cipher: the row is 64 bits of the nonce, the vector 32, the block the counter.

  The first words of all blocks come first, then the second ones, which costs nothing.
  """

  name = 'chacha20'
  block_words = BLOCK_WORDS
  max_blocks = MAX_BLOCKS

  def words(
    self,
    key: tf.Tensor,
    row: tf.Tensor,
    vector: tf.Tensor,
    first_block: tf.Tensor,
    num_blocks: int,
  ) -> tf.Tensor:
    """Consecutive blocks of a vector, of a key that is int64 [4]: uint32 [words]."""
    nonce = tf.concat(
      [tf.bitcast(row, tf.uint32), tf.cast(vector, tf.uint32)[tf.newaxis]], axis=0
    )
    counter = tf.cast(first_block, tf.uint32)
    words = blocks(words_of(key), counter, nonce, num_blocks)
    return tf.reshape(words, [-1])


class Philox:
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
    """Consecutive blocks of a vector; Philox takes the first 64 bits of the key."""
    shift = tf.constant(_PHILOX_BLOCK_BITS, tf.int64)
    place = tf.bitwise.bitwise_or(tf.bitwise.left_shift(vector, shift), first_block)
    return tf.raw_ops.StatelessRandomUniformFullIntV2(
      shape=[self.block_words * num_blocks],
      key=tf.bitcast(key[:1], tf.uint64),
      counter=tf.bitcast(tf.stack([place, row]), tf.uint64),
      alg=1,
      dtype=tf.uint32,
    )


# Uniform random words of 32 bits, in blocks; a vector has at most `max_blocks`.
Generator = Union[ChaCha20, Philox]


def choose(generator: Any, secret: bool) -> Generator:
  """The generator of a name."""
  if generator == 'auto':
    generator = 'chacha20' if secret else 'philox'
  kinds: tuple[Generator, ...] = (ChaCha20(), Philox())
  for known in kinds:
    if generator == known.name:
      return known
  raise ValueError(
    f"generator must be 'auto', {' or '.join(map(repr, NAMES))}, got {generator!r}."
  )


# The ChaCha20 block function (RFC 8439, section 2.3) in TensorFlow operations: 64 bytes
# of each 256-bit key, 32-bit counter and 96-bit nonce. What is assumed of it is what
# everybody assumes who encrypts with it: with a secret, uniformly random key, nobody
# can tell its blocks for different counters and nonces from random ones.
#
# The four rows of the state are matrices with a column for each block, so that a
# quarter round of all columns and blocks is twenty operations on long rows, and one of
# diagonals the same after rows were turned. A rotation adds a product with a power of
# two to what a shift leaves: additions and products are vectorised in TensorFlow,
# shifts and `or` are not.

_CONSTANTS = (0x61707865, 0x3320646E, 0x79622D32, 0x6B206574)
_DOUBLE_ROUNDS = 10


def blocks(
  key: tf.Tensor, counter: tf.Tensor, nonce: tf.Tensor, num_blocks: int
) -> tf.Tensor:
  """Blocks of consecutive counters, uint32 [16, num_blocks], of key [8] and nonce [3].

  Example:
    >>> zeros = tf.zeros([11], tf.uint32)
    >>> first = blocks(zeros[:8], zeros[0], zeros[8:], 1)
    >>> hex(int(first[0, 0]))  # RFC 8439, appendix A.1, test vector 1.
    '0xade0b876'
  """
  if num_blocks > MAX_BLOCKS:
    raise ValueError(
      f'a key and nonce have {MAX_BLOCKS} blocks, got num_blocks={num_blocks}.'
    )
  return _traced(num_blocks)(key, counter, nonce)


@functools.cache
def _traced(num_blocks: int) -> tf.types.experimental.ConcreteFunction:
  """One graph for all; a `tf.function` would be traced anew in each of TFF's."""
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


# Keys of the noise: 256 bits that nobody else has, made when `initialize` runs.
#
# **Entropy.** A secret key is made of three lines of `/proc/sys/kernel/random/uuid`,
# each 122 random bits of the kernel's generator, read by TensorFlow in the process that
# runs the computation, at each run: no secret is in a computation, and neither a fork
# nor a copy of a process repeats one. Lines that are equal, as if a rewriting of the
# graph had merged the reads, or no UUIDs, are an error and not a key. (Plain reads by
# `tf.io.read_file` *are* merged; lines of a data set are not.)
#
# **Hash.** The first two lines are the key of a ChaCha20 block, and the third its
# counter and nonce; the first 256 bits of the block are the next key, for a block with
# 128 more bits, and the last such key is the key of the noise. With 244 bits of the
# first key random, that is random as well if the block function is a pseudo-random
# function. The time and what TensorFlow calls non-deterministic come last: they keep
# apart two copies of a virtual machine whose kernels begin with the same state.
#
# **Without the kernel's file** there is an error and no key: what else TensorFlow has
# can be guessed, and noise that can be guessed protects nobody.

KEY_WORDS = 4  # Of 64 bits, in a key.
_ENTROPY = '/proc/sys/kernel/random/uuid'
_LINES = 3
_UUID = '[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}'
# Number of a vector in nonces that no row has.
_TAG_VECTOR = 2**32 - 1


def words_of(key: tf.Tensor) -> tf.Tensor:
  """A key, int64 of shape [4], as the cipher takes it: uint32 of shape [8]."""
  return tf.reshape(tf.bitcast(key, tf.uint32), [2 * KEY_WORDS])


def tag_of(key: tf.Tensor) -> tf.Tensor:
  """A number that follows from a key, of a block that no noise is made of."""
  nonce = tf.constant([0, 0, _TAG_VECTOR], tf.uint32)
  block = blocks(words_of(key), tf.constant(0, tf.uint32), nonce, 1)
  return tf.bitcast(block[:2, 0], tf.int64)


def new_key(entropy: str = _ENTROPY) -> tf.Tensor:
  """Returns a new secret key, int64 of shape [4], at each execution."""
  return _traced_key(entropy)()


@functools.cache
def _traced_key(entropy: str) -> tf.types.experimental.ConcreteFunction:
  """One graph for all computations. It is stateful, so that each call in it is run."""
  with tf.__internal__.eager_context.eager_mode():
    return tf.function(
      functools.partial(_make_key, entropy), autograph=False
    ).get_concrete_function()


def _make_key(entropy: str) -> tf.Tensor:
  # From the time, so that nothing of what is read is taken for a constant.
  none = tf.strings.substr(tf.strings.as_string(tf.timestamp()), 0, 0)
  path = tf.strings.join([entropy, none])
  there = tf.debugging.Assert(
    tf.size(tf.io.matching_files(path)) > 0,
    ['The key of the noise needs entropy of the kernel; this machine has no', path],
  )
  with tf.control_dependencies([] if there is None else [there]):
    state = _absorb(_from_kernel(tf.identity(path)), _clock_and_numbers())
  return tf.bitcast(tf.reshape(state, [KEY_WORDS, 2]), tf.int64)


def _lines(path: tf.Tensor) -> tf.Tensor:
  """The first lines of as many readings."""
  paths = tf.fill([_LINES], path)
  lines = tf.data.TextLineDataset(paths).take(_LINES)
  return lines.batch(_LINES).get_single_element()


def _from_kernel(path: tf.Tensor) -> tf.Tensor:
  lines = _lines(path)
  # Never the lines themselves in a message.
  are_new = tf.debugging.Assert(
    tf.reduce_all(tf.strings.regex_full_match(lines, _UUID))
    & tf.equal(tf.size(tf.unique(lines).y), _LINES),
    ['The key of the noise needs another random UUID at each reading of', path],
  )
  with tf.control_dependencies([] if are_new is None else [are_new]):
    digits = tf.strings.regex_replace(lines, '-', '')
  codes = tf.cast(tf.io.decode_raw(digits, tf.uint8), tf.int32)
  nibbles = tf.where(codes < 97, codes - 48, codes - 87)
  nibbles = tf.reshape(tf.cast(nibbles, tf.uint32), [_LINES * 4, 8])
  words = nibbles[:, 0]
  for place in range(1, 8):
    words = words * 16 + nibbles[:, place]
  return _absorb(words[:8], words[8:])


def _absorb(state: tf.Tensor, words: tf.Tensor) -> tf.Tensor:
  """The next 256 bits, of as many and 128 more: uint32 of shapes [8] and [4]."""
  return blocks(state, words[0], words[1:], 1)[:8, 0]


def _clock_and_numbers() -> tf.Tensor:
  clock = tf.bitcast(tf.timestamp(), tf.int64)
  numbers = tf.raw_ops.NonDeterministicInts(
    shape=tf.constant([1], tf.int64), dtype=tf.int64
  )
  both = tf.concat([clock[tf.newaxis], numbers], axis=0)
  return tf.reshape(tf.bitcast(both, tf.uint32), [4])
