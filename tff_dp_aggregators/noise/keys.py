"""Keys of the noise: 256 bits that nobody else has, made when `initialize` runs.

**Entropy.** A secret key is made of three lines of `/proc/sys/kernel/random/uuid`, each
122 random bits of the kernel's generator, which is read anew at each line. It is read
by TensorFlow, on the machine and in the process that runs the computation, at each run.
So no secret is in a computation, serialised or not, and neither a fork nor a copy of a
process repeats one. That no rewriting of a graph merges the reads is checked in each
run: lines that are equal, or no UUIDs, are an error and not a key. (Two plain reads of
that file in a graph *are* merged, `tf.io.read_file` being a function for TensorFlow;
lines of a data set are not.)

**Hash.** The first two lines are the key of a ChaCha20 block, and the third its counter
and nonce; the first 256 bits of the block are the next key, for a block with 128 more
bits, and the last such key is the key of the noise. With 244 bits of the first key
random, that is random as well if the block function is a pseudo-random function, which
is all that is assumed of it here. What comes after the third line is the time and what
TensorFlow calls non-deterministic: it is not needed, can do no harm, and keeps apart
two copies of a virtual machine whose kernels begin with the same state.

**Without the kernel's file** (another system, a sandbox that hides it) the same hash is
of TensorFlow's non-deterministic numbers, which have a seed of no more than 32 bits,
the numbers of the process and its threads where they can be had, and the time, 32 times
in turn with what one of these steps takes. The numbers of the generator change at each
run, and processes have different ones, so keys are different. But how hard they are to
guess rests on how exactly somebody knows the time of each step, which nobody can prove
anything about; a line on standard error says so. Do not protect anybody with it.
"""

import functools

import tensorflow as tf

from tff_dp_aggregators.noise import chacha20

WORDS = 4  # Of 64 bits, in a key.
_ENTROPY = '/proc/sys/kernel/random/uuid'
_LINES = 3
_UUID = '[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}'
_THREADS = '/proc/self/task/*'
_CLOCK_READINGS = 32
# Numbers of vectors in nonces that no row has (`generators`).
_TAG_VECTOR = 2**32 - 1


def words_of(key: tf.Tensor) -> tf.Tensor:
  """A key, int64 of shape [4], as the cipher takes it: uint32 of shape [8]."""
  return tf.reshape(tf.bitcast(key, tf.uint32), [2 * WORDS])


def tag_of(key: tf.Tensor) -> tf.Tensor:
  """A number that follows from a key, and from which the key does not follow.

  It is of a block of the cipher that no noise is made of.

  `key`: int64 of shape [4].
  """
  nonce = tf.constant([0, 0, _TAG_VECTOR], tf.uint32)
  block = chacha20.blocks(words_of(key), tf.constant(0, tf.uint32), nonce, 1)
  return tf.bitcast(block[:2, 0], tf.int64)


def new(entropy: str = _ENTROPY) -> tf.Tensor:
  """Returns a new secret key, int64 of shape [4], at each execution."""
  return _traced_new(entropy)()


@functools.cache
def _traced_new(entropy: str) -> tf.types.experimental.ConcreteFunction:
  """One graph for all computations. It is stateful, so that each call in it is run.

  Of a few hundred operations, which take longer to make than the rest of a process.
  """
  with tf.__internal__.eager_context.eager_mode():
    return tf.function(
      functools.partial(_new, entropy), autograph=False
    ).get_concrete_function()


def _new(entropy: str) -> tf.Tensor:
  # From the time, so that nothing of what is read is taken for a constant.
  none = tf.strings.substr(tf.strings.as_string(tf.timestamp()), 0, 0)
  path = tf.strings.join([entropy, none])
  there = tf.size(tf.io.matching_files(path)) > 0
  state = tf.cond(
    there,
    lambda: _absorb(_from_kernel(path), _clock_and_numbers()),
    lambda: _from_clock(none),
  )
  return tf.bitcast(tf.reshape(state, [WORDS, 2]), tf.int64)


def _lines(path: tf.Tensor) -> tf.Tensor:
  """The first lines of as many readings."""
  paths = tf.fill([_LINES], path)
  lines = tf.data.TextLineDataset(paths).take(_LINES)
  return lines.batch(_LINES).get_single_element()


def _from_kernel(path: tf.Tensor) -> tf.Tensor:
  lines = _lines(path)
  # Never the lines themselves in a message.
  are_uuids = tf.debugging.Assert(
    tf.reduce_all(tf.strings.regex_full_match(lines, _UUID))
    & tf.equal(tf.size(lines), _LINES),
    ['The key of the noise needs random UUIDs; there are none in', path],
  )
  are_new = tf.debugging.Assert(
    tf.equal(tf.size(tf.unique(lines).y), tf.size(lines)),
    [
      'The key of the noise needs a new UUID at each reading; the same came twice of',
      path,
    ],
  )
  checks = [check for check in (are_uuids, are_new) if check is not None]
  with tf.control_dependencies(checks):
    digits = tf.strings.regex_replace(lines, '-', '')
  codes = tf.cast(tf.io.decode_raw(digits, tf.uint8), tf.int32)
  nibbles = tf.where(codes < 97, codes - 48, codes - 87)
  nibbles = tf.reshape(tf.cast(nibbles, tf.uint32), [_LINES * 4, 8])
  words = nibbles[:, 0]
  for place in range(1, 8):
    words = words * 16 + nibbles[:, place]
  return _absorb(words[:8], words[8:])


def _from_clock(none: tf.Tensor) -> tf.Tensor:
  warns = tf.print(
    'tff_dp_aggregators: this machine has no',
    _ENTROPY,
    'so the key of the noise is made of clock readings and may be guessed. Do not rely',
    'on it to protect anybody.',
  )
  with tf.control_dependencies([] if warns is None else [warns]):
    threads = tf.io.matching_files(tf.strings.join([_THREADS, none]))
  process = tf.strings.to_hash_bucket_fast(tf.strings.reduce_join(threads), 2**63 - 1)
  facts = tf.reshape(tf.bitcast(tf.stack([process, _clock()]), tf.uint32), [4])
  state = _absorb(tf.reshape(tf.bitcast(_numbers(4), tf.uint32), [8]), facts)
  # A data set takes the steps: a loop of the graph, within a condition, is now and then
  # rewritten by TensorFlow into one that it refuses to run.
  steps = tf.data.Dataset.range(_CLOCK_READINGS)
  return steps.reduce(state, lambda state, _: _absorb(state, _clock_and_numbers()))


def _absorb(state: tf.Tensor, words: tf.Tensor) -> tf.Tensor:
  """The next 256 bits, of as many and 128 more: uint32 of shapes [8] and [4]."""
  return chacha20.blocks(state, words[0], words[1:], 1)[:8, 0]


def _clock_and_numbers() -> tf.Tensor:
  both = tf.concat([_clock()[tf.newaxis], _numbers(1)], axis=0)
  return tf.reshape(tf.bitcast(both, tf.uint32), [4])


def _clock() -> tf.Tensor:
  return tf.bitcast(tf.timestamp(), tf.int64)


def _numbers(size: int) -> tf.Tensor:
  return tf.raw_ops.NonDeterministicInts(
    shape=tf.constant([size], tf.int64), dtype=tf.int64
  )
