"""Sums of integers to which each client adds its share of the noise.

They are for secure aggregation: nobody but the client sees what it sends; the server,
and whoever reads the results, only see the sum modulo a power of two.
`accounting.distributed_noise` describes what is summed and when it wraps around, and
`accounting.accountants.rdp` computes the privacy.

**The norm bound holds for every message.** After rounding, the squares of the integers
are summed exactly. If the sum exceeds the bound, the client rounds again, at most eight
times, and then towards zero; a record that exceeds the bound even then (because of
float64 rounding) counts as zero. So no record breaks the accounting or stops the round.

**Each client draws its own noise**, with a key from its kernel's entropy for each
record (`noise.generators`), and tables that are exact to 2^-126 (`noise.integers`).
There is no seed, and clients must not be vectorised in one computation
(`clients_draw_keys`), because they would share a key.

**Fewer clients add less noise.** Each client counts itself in the sum. A round with
fewer clients than `min_clients` fails, and so does a round with more than
`max_clients`, because its sum might have wrapped around.
"""

import collections
import functools
import math
from typing import Any, NamedTuple, Optional

import dp_accounting
import numpy as np
import scipy.linalg
import tensorflow as tf

from tff_dp_aggregators import strategies
from tff_dp_aggregators.accounting import distributed_noise
from tff_dp_aggregators.accounting import events
from tff_dp_aggregators.base import checks
from tff_dp_aggregators.noise import generators
from tff_dp_aggregators.noise import integers
from tff_dp_aggregators.queries import grid
from tff_dp_aggregators.queries import independent
from tff_dp_aggregators.queries import matrix_mechanism

# Number of samples that are drawn at a time; a power of two, as the dimension is.
_CHUNK = 2**17
_LARGEST_TRANSFORM = 64  # Rows of the matrices whose Kronecker product is a rotation.


class DistributedState(NamedTuple):
  """State of a query between rounds; nothing in it is secret."""

  rotation_key: Any  # Key of the random signs, int64 [4].
  round: Any  # The next round, int64.
  belongs_to: Any  # The `mechanism_text` of the mechanism.


class Shares(NamedTuple):
  """The message of a client, or a sum of messages; entries are modulo 2^bits."""

  entries: Any  # int64 [padded dimension].
  clients: Any  # Number of clients, int64.


class DistributedSumQuery(independent.IndependentNoiseQuery):
  """Clips, rotates and rounds records, and adds a share of noise to each."""

  clients_draw_keys = True
  # Who adds the noise.
  noise_site = 'clients'
  # Generator of the random words for the noise.
  generator = 'chacha20'
  seed_identity = 'secret'

  def __init__(
    self,
    participation: Optional[strategies.Participation] = None,
    *,
    noise: str,
    clip_norm: float,
    noise_multiplier: float,
    min_clients: int,
    max_clients: int,
    bits: int,
    max_wrap_probability: float = 1e-6,
    beta: float = 1e-6,
    record_specs: Any,
  ):
    """Initializes the query.

    Args:
      participation: As for `GaussianSumQuery`.
      noise: 'skellam' or 'discrete_gaussian'.
      clip_norm: L2 bound of one record.
      noise_multiplier: Standard deviation of the noise of a sum of `min_clients`
        records, over `clip_norm`.
      min_clients: Minimum number of records in a sum.
      max_clients: Maximum number of records in a sum.
      bits: Sums are modulo 2^bits.
      max_wrap_probability: Maximum probability that an entry of a sum wraps around.
      beta: Maximum probability that a record is rounded again.
      record_specs: Structure of float tensor specs like a record.
    """
    super().__init__(participation, record_specs)
    self._specs = tf.nest.flatten(self._record_specs)
    self._sizes = [spec.shape.num_elements() for spec in self._specs]
    self._clip_norm = grid.check_clip_norm(clip_norm)
    self._noise_multiplier = events.check_noise_multiplier(noise_multiplier)
    self.min_clients = checks.check_positive_int('min_clients', min_clients)
    # Maximum number of records in a sum.
    self.max_clients = checks.check_int('max_clients', max_clients, min_clients)
    self._arguments: dict[str, Any] = {
      'clip_norm': self._clip_norm,
      'noise_multiplier': self._noise_multiplier,
      'min_clients': self.min_clients,
      'max_clients': self.max_clients,
      'bits': bits,
      'max_wrap_probability': max_wrap_probability,
      'beta': beta,
    }
    # Kind of noise: 'skellam' or 'discrete_gaussian'.
    self.noise = noise
    # Checks the numbers before the size of records is known.
    distributed_noise.check(noise, **self._arguments)

  @functools.cached_property
  def mechanism(self) -> distributed_noise.DistributedNoise:
    """Grid, noise and bounds for records of this size."""
    dimension = max(1, sum(self._sizes))
    return distributed_noise.design(self.noise, dimension=dimension, **self._arguments)

  def _event(self) -> dp_accounting.DpEvent:
    return self.mechanism.event()

  def initial_global_state(self) -> DistributedState:
    """Returns the state before round 0, with a new key of the rotation."""
    return DistributedState(
      rotation_key=generators.new_key(),
      round=tf.constant(0, tf.int64),
      belongs_to=tf.constant(self._belongs_to()),
    )

  def _facts(self) -> dict[str, Any]:
    return {
      'mechanism': f'distributed {self.noise}',
      **self._arguments,
      'sizes': self._sizes,
    }

  def derive_sample_params(self, global_state: DistributedState) -> DistributedState:
    """Returns the state, from which clients compute the rotation of the round."""
    return global_state

  def initial_sample_state(self, template: Any = None) -> Shares:
    """Returns the sum of no records."""
    if template is not None:
      super().initial_sample_state(template)
    zeros = tf.zeros([self.mechanism.dimension], tf.int64)
    return Shares(zeros, tf.constant(0, tf.int64))

  def encode_record(
    self, params: DistributedState, record: Any
  ) -> tuple[Shares, tf.Tensor]:
    """Returns a client's message, with noise, and whether the record was finite."""
    steps = grid.steps_per_unit(tf.constant(self.clip_norm, tf.float32), 0.0)
    clipped = grid.clip_to_grid(
      self._check(record), tf.constant(self.clip_norm, tf.float32), steps
    )
    vector = self._to_vector(clipped.integers) * (self.mechanism.scale / steps)
    rotated = hadamard(vector * self._signs(params))
    key = generators.new_key()
    shares = self._round(rotated, key) + self._draw(key)
    shares = tf.math.floormod(shares, self.mechanism.modulus)
    return Shares(shares, tf.constant(1, tf.int64)), clipped.finite

  def _to_vector(self, structure: Any) -> tf.Tensor:
    flat = [
      tf.cast(tf.reshape(each, [-1]), tf.float64) for each in tf.nest.flatten(structure)
    ]
    vector = tf.concat([*flat, tf.zeros([0], tf.float64)], axis=0)
    size = self.mechanism.dimension
    return tf.ensure_shape(tf.pad(vector, [[0, size - sum(self._sizes)]]), [size])

  def _signs(self, state: DistributedState) -> tf.Tensor:
    return signs(
      state.rotation_key, tf.cast(state.round, tf.int64), self.mechanism.dimension
    )

  def _round(self, vector: tf.Tensor, key: tf.Tensor) -> tf.Tensor:
    """Rounds randomly to integers within the norm bound; their mean is the vector."""
    limit = tf.constant(self.mechanism.norm_squared, tf.int64)
    low = tf.floor(vector)

    def norm_squared(rounded: tf.Tensor) -> tf.Tensor:
      return tf.reduce_sum(tf.square(rounded))

    def attempt(tries: tf.Tensor, _: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
      uniform = self._uniform(key, tries + 1)
      rounded = low + tf.cast(uniform < vector - low, tf.float64)
      return tries + 1, tf.cast(rounded, tf.int64)

    first = attempt(tf.constant(0, tf.int64), tf.zeros_like(vector, tf.int64))
    _, rounded = tf.while_loop(
      lambda tries, rounded: (
        (tries < distributed_noise.TRIES) & (norm_squared(rounded) > limit)
      ),
      attempt,
      first,
    )
    towards_zero = tf.cast(vector, tf.int64)
    rounded = tf.where(norm_squared(rounded) <= limit, rounded, towards_zero)
    within = norm_squared(rounded) <= limit
    return tf.where(within, rounded, tf.zeros_like(rounded))

  def _draw(self, key: tf.Tensor) -> tf.Tensor:
    def make(words: tf.Tensor) -> tf.Tensor:
      return integers.draw(self.noise, self.mechanism.local_stddev, words)

    row = tf.constant(0, tf.int64)
    return self._in_chunks(key, row, integers.WORDS, make, tf.int64)

  def _uniform(self, key: tf.Tensor, row: tf.Tensor) -> tf.Tensor:
    """Returns uniform numbers of 53 bits in [0, 1), float64."""

    def make(words: tf.Tensor) -> tf.Tensor:
      words = tf.bitcast(tf.reshape(words, [-1, 2]), tf.uint64)
      shifted = tf.bitwise.right_shift(words, tf.constant(11, tf.uint64))
      return tf.cast(shifted, tf.float64) * 2.0**-53

    return self._in_chunks(key, row, 2, make, tf.float64)

  def _in_chunks(
    self, key: tf.Tensor, row: tf.Tensor, num_words: int, make: Any, dtype: tf.DType
  ) -> tf.Tensor:
    """Returns a number for each entry; no two rows or chunks share random words."""
    dimension, cipher = self.mechanism.dimension, generators.ChaCha20()
    size = min(dimension, _CHUNK)
    num_blocks = math.ceil(size * num_words / cipher.block_words)

    def chunk(number: tf.Tensor) -> tf.Tensor:
      zero = tf.constant(0, tf.int64)
      words = cipher.words(key, row, number, zero, num_blocks)
      return make(words[: size * num_words])

    if dimension == size:
      return chunk(tf.constant(0, tf.int64))
    chunks = tf.map_fn(
      chunk,
      tf.range(dimension // size, dtype=tf.int64),
      fn_output_signature=tf.TensorSpec([size], dtype),
    )
    return tf.reshape(chunks, [dimension])

  def get_noised_result(
    self, sample_state: Shares, global_state: DistributedState
  ) -> matrix_mechanism.Released:
    """Returns the sum, the next state and the event of a round."""
    this_round = self._this_round(global_state)
    entries, clients = sample_state
    entries = grid.asserted(
      entries,
      (clients >= self.min_clients) & (clients <= self.max_clients),
      'fewer clients than min_clients, so the sum would be less private than planned, '
      'or more than max_clients, so it may have wrapped around: it is not released.',
    )
    half = self.mechanism.modulus // 2
    centred = tf.math.floormod(entries + half, self.mechanism.modulus) - half
    rotated = hadamard(tf.cast(centred, tf.float64))
    vector = rotated * self._signs(global_state) / self.mechanism.scale
    state = global_state._replace(round=this_round + 1)
    return self._to_record(vector), state, self.mechanism.event()

  def _to_record(self, vector: tf.Tensor) -> Any:
    parts = tf.split(vector[: sum(self._sizes)], self._sizes) if self._sizes else []
    flat = [
      tf.cast(tf.reshape(part, spec.shape), spec.dtype)
      for part, spec in zip(parts, self._specs)
    ]
    return tf.nest.pack_sequence_as(self._record_specs, flat)

  def derive_metrics(self, global_state: DistributedState) -> matrix_mechanism.Metrics:
    """Returns number of rounds, clip norm and noise; nothing depends on the data."""
    mechanism = self.mechanism
    return collections.OrderedDict(
      rounds=global_state.round,
      clip_norm=tf.constant(mechanism.clip_norm, tf.float32),
      noise_multiplier=tf.constant(mechanism.noise_multiplier, tf.float64),
      scale=tf.constant(mechanism.scale, tf.float64),
      local_stddev=tf.constant(mechanism.local_stddev, tf.float64),
      wrap_probability=tf.constant(mechanism.wrap_probability, tf.float64),
      noise_generator=tf.constant(self.generator),
    )


# Random rotations. For any vector of d entries, each entry of the result is the sum of
# all entries with random signs, over sqrt(d), so it is rarely much larger than the norm
# over sqrt(d). A rotation hides nothing, because everybody knows the signs.


def signs(key: tf.Tensor, index: tf.Tensor, dimension: int) -> tf.Tensor:
  """Returns random signs, -1.0 or 1.0, float64 [dimension], from a key int64 [4]."""
  philox = generators.Philox()
  num_words = -(-dimension // 32)
  num_blocks = -(-num_words // philox.block_words)
  zero = tf.constant(0, tf.int64)
  words = philox.words(key, index, zero, zero, num_blocks)
  shifts = tf.constant(list(range(32)), tf.uint32)
  bits = tf.bitwise.bitwise_and(
    tf.bitwise.right_shift(words[:, tf.newaxis], shifts), tf.constant(1, tf.uint32)
  )
  return 1.0 - 2.0 * tf.cast(tf.reshape(bits, [-1])[:dimension], tf.float64)


def hadamard(vector: tf.Tensor) -> tf.Tensor:
  """Returns the normalised Walsh-Hadamard transform of float64 [d], its own inverse."""
  [dimension] = vector.shape
  remaining = dimension
  while remaining > 1:
    size = min(remaining, _LARGEST_TRANSFORM)
    remaining //= size
    matrix = tf.constant(scipy.linalg.hadamard(size) / np.sqrt(size), tf.float64)
    # The first digits of the index are transformed and become the last ones.
    vector = tf.reshape(vector, [size, dimension // size])
    vector = tf.reshape(tf.transpose(tf.matmul(matrix, vector)), [dimension])
  return vector
