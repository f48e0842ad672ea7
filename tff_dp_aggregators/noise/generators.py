"""Secret keys, and the generators of random words for the noise: ChaCha20 and Philox.

Both generators are random access: a word is a function of the key, the index of the
row, the index of the vector in the row, and its position in the vector. Each of these
has its own bits in the generator's input; none is ever added to another one.

ChaCha20, a stream cipher, is for secret noise. Philox (Salmon et al. 2011) is a seventh
of the work, but its key, of 64 bits in TensorFlow, is not safe from an attack: it is
for simulations with a seed.
"""

import functools
from typing import Any, Union

import tensorflow as tf

NAMES = ('chacha20', 'philox')
MAX_BLOCKS = 2**32  # The counter has 32 bits.
BLOCK_WORDS = 16  # Words of 32 bits in a block of ChaCha20.
# Bits of Philox's counter for the block within a vector; 24 bits are for the vector.
_PHILOX_BLOCK_BITS = 40


class ChaCha20:
  """ChaCha20; the nonce is the row (64 bits) and vector (32), the counter the block.

  The first words of all blocks come first, then the second ones; this order is free.
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
    """Returns consecutive blocks of a vector, uint32 [words]; the key is int64 [4]."""
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
    """Returns consecutive blocks of a vector; uses the first 64 bits of the key."""
    shift = tf.constant(_PHILOX_BLOCK_BITS, tf.int64)
    place = tf.bitwise.bitwise_or(tf.bitwise.left_shift(vector, shift), first_block)
    return tf.raw_ops.StatelessRandomUniformFullIntV2(
      shape=[self.block_words * num_blocks],
      key=tf.bitcast(key[:1], tf.uint64),
      counter=tf.bitcast(tf.stack([place, row]), tf.uint64),
      alg=1,
      dtype=tf.uint32,
    )


# Generators of uniform words of 32 bits, in blocks; a vector has at most `max_blocks`.
Generator = Union[ChaCha20, Philox]


def choose(generator: Any, secret: bool) -> Generator:
  """Returns the generator with a name; 'auto' depends on whether noise is secret."""
  if generator == 'auto':
    generator = 'chacha20' if secret else 'philox'
  kinds: tuple[Generator, ...] = (ChaCha20(), Philox())
  for kind in kinds:
    if generator == kind.name:
      return kind
  raise ValueError(
    f"generator must be 'auto', {' or '.join(map(repr, NAMES))}, got {generator!r}."
  )


# The ChaCha20 block function (RFC 8439, section 2.3) in TensorFlow operations: 64 bytes
# for each 256-bit key, 32-bit counter and 96-bit nonce. The assumption is that of
# encryption with ChaCha20: with a secret, uniformly random key, blocks for different
# counters and nonces cannot be distinguished from random ones.
#
# The four rows of the state are matrices with a column for each block, so that a
# quarter round of all columns and blocks is twenty operations on long rows, and one of
# the diagonals is the same after the rows are rotated. A bit rotation adds a product
# with a power of two to the result of a shift: additions and products are vectorised in
# TensorFlow, shifts and `or` are not.

_CONSTANTS = (0x61707865, 0x3320646E, 0x79622D32, 0x6B206574)
_DOUBLE_ROUNDS = 10


def blocks(
  key: tf.Tensor, counter: tf.Tensor, nonce: tf.Tensor, num_blocks: int
) -> tf.Tensor:
  """Returns blocks of consecutive counters, uint32 [16, num_blocks].

  The key is uint32 [8], the nonce uint32 [3].

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
  """Returns one graph for all computations; each would trace a `tf.function` anew."""
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
  # A loop, because initializing a graph of 500 operations takes long.
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
  a, b, c, d = _quarter_rounds(a, _rolled(b, 1), _rolled(c, 2), _rolled(d, 3))
  return a, _rolled(b, 3), _rolled(c, 2), _rolled(d, 1)


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


def _rolled(row: tf.Tensor, columns: int) -> tf.Tensor:
  """Rolls the words of a row of the state to the left."""
  return tf.concat([row[columns:], row[:columns]], axis=0)


def _rotated(words: tf.Tensor, bits: int) -> tf.Tensor:
  """Rotates the bits of each word to the left."""
  right = tf.bitwise.right_shift(words, tf.constant(32 - bits, tf.uint32))
  return words * tf.constant(2**bits, tf.uint32) + right


# Keys of the noise: 256 secret bits, made when `initialize` runs.
#
# **Entropy.** A secret key is made of three lines of `/proc/sys/kernel/random/uuid`,
# each with 122 random bits of the kernel's generator. TensorFlow reads them at each
# run, in the process that runs the computation: no computation contains a secret, and
# neither a fork nor a copy of a process repeats a key. Lines that are equal (for
# instance because a graph rewriting merged the reads), or are not UUIDs, are an error.
# (Plain reads by `tf.io.read_file` *are* merged; lines of a data set are not.)
#
# **Hash.** The first two lines are the key of a ChaCha20 block, and the third is its
# counter and nonce. The first 256 bits of this block are the key of the next block,
# whose counter and nonce are 128 more bits; the last such key is the key of the noise.
# As 244 bits of the first key are random, the last one is random as well if the block
# function is a pseudo-random function. The last input is the time and the output of
# TensorFlow's non-deterministic generator: they give different keys to two copies of a
# virtual machine whose kernels begin with the same state.
#
# **Without the kernel's file** there is an error and no key: TensorFlow's other sources
# of randomness can be guessed, and noise that can be guessed protects nobody.

KEY_WORDS = 4  # Words of 64 bits in a key.
_ENTROPY = '/proc/sys/kernel/random/uuid'
_LINES = 3
_UUID = '[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}'
# Index of a vector in nonces that no row uses.
_TAG_VECTOR = 2**32 - 1


def words_of(key: tf.Tensor) -> tf.Tensor:
  """Converts a key, int64 of shape [4], to ChaCha20's form, uint32 of shape [8]."""
  return tf.reshape(tf.bitcast(key, tf.uint32), [2 * KEY_WORDS])


def tag_of(key: tf.Tensor) -> tf.Tensor:
  """Returns a number derived from a key, from a block that no noise uses."""
  nonce = tf.constant([0, 0, _TAG_VECTOR], tf.uint32)
  block = blocks(words_of(key), tf.constant(0, tf.uint32), nonce, 1)
  return tf.bitcast(block[:2, 0], tf.int64)


def new_key(entropy: str = _ENTROPY) -> tf.Tensor:
  """Returns a new secret key, int64 of shape [4], at each execution."""
  return _traced_key(entropy)()


@functools.cache
def _traced_key(entropy: str) -> tf.types.experimental.ConcreteFunction:
  """Returns one graph for all computations; it is stateful, so that every call runs."""
  with tf.__internal__.eager_context.eager_mode():
    return tf.function(
      functools.partial(_make_key, entropy), autograph=False
    ).get_concrete_function()


def _make_key(entropy: str) -> tf.Tensor:
  # Depends on the time, so that reads of the path are not folded into constants.
  empty = tf.strings.substr(tf.strings.as_string(tf.timestamp()), 0, 0)
  path = tf.strings.join([entropy, empty])
  exists = tf.debugging.Assert(
    tf.size(tf.io.matching_files(path)) > 0,
    ['The key of the noise needs entropy of the kernel; this machine has no', path],
  )
  with tf.control_dependencies([] if exists is None else [exists]):
    state = _absorb(_from_kernel(tf.identity(path)), _clock_and_numbers())
  return tf.bitcast(tf.reshape(state, [KEY_WORDS, 2]), tf.int64)


def _lines(path: tf.Tensor) -> tf.Tensor:
  """Returns the first `_LINES` lines of as many reads of the file."""
  paths = tf.fill([_LINES], path)
  lines = tf.data.TextLineDataset(paths).take(_LINES)
  return lines.batch(_LINES).get_single_element()


def _from_kernel(path: tf.Tensor) -> tf.Tensor:
  lines = _lines(path)
  # The message must not contain the lines, which are secret.
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
  """Returns the next state, uint32 [8], from a state, uint32 [8], and words [4]."""
  return blocks(state, words[0], words[1:], 1)[:8, 0]


def _clock_and_numbers() -> tf.Tensor:
  clock = tf.bitcast(tf.timestamp(), tf.int64)
  numbers = tf.raw_ops.NonDeterministicInts(
    shape=tf.constant([1], tf.int64), dtype=tf.int64
  )
  both = tf.concat([clock[tf.newaxis], numbers], axis=0)
  return tf.reshape(tf.bitcast(both, tf.uint32), [4])
