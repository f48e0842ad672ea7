"""Rows z of iid Gaussians, from which the noise of every mechanism is computed.

A row of z has a standard Gaussian entry for each element of a record, float64, in the
vectors of `Layout`. Rows are *random access*: row i of a key can be drawn at any time,
any number of times, and is always the same; no two entries of z use the same words of
`generators`.

TensorFlow's own Gaussians end at 5.7 standard deviations. A Gaussian exceeds that with
a probability of 1e-8 for each coordinate, which is too much for a delta of 1e-10 in a
model of 10^6 parameters. Ours end at 11.5 standard deviations, which a Gaussian exceeds
with a probability of 1e-30 (`benchmarks/gaussian_rows.py` counts and times both).

**The key is secret.** Whoever knows it can subtract the noise. It is made from the
kernel's entropy when `new_key` runs. It is part of the state (so a checkpoint must be
guarded like the data), and of no computation and no repr.
"""

import math
from typing import Any, Callable, ClassVar

import tensorflow as tf

from tff_dp_aggregators.noise import generators
from tff_dp_aggregators.noise import options as options_lib

# Noise is drawn and stored as flat vectors, which costs a half or a third of doing so
# tensor by tensor; pieces that fit into the processor's cache cost least.

_NOISE_DTYPES = {
  tf.float16: tf.float32,
  tf.bfloat16: tf.float32,
  tf.float32: tf.float32,
  tf.float64: tf.float64,
}
# Maximum elements of a vector, unless that needs more vectors of a dtype than the
# maximum, which limits the size of computations.
_MAX_ELEMENTS = 2**20
_MAX_VECTORS = 64


def sum_specs(record_specs: Any) -> Any:
  """Returns the specs of a sum of records; half precision is summed in float32.

  TypeError if a dtype is not floating-point, ValueError if a shape is not fully known.
  """

  def check(spec: Any) -> tf.TensorSpec:
    dtype, shape = tf.as_dtype(spec.dtype), tf.TensorShape(spec.shape)
    if dtype not in _NOISE_DTYPES:
      raise TypeError(
        'records must be float16, bfloat16, float32 or float64 tensors, got '
        f'{dtype.name}; cast them before they are aggregated.'
      )
    if not shape.is_fully_defined():
      raise ValueError(
        f'record_specs must have fully defined shapes, got {shape}; noise needs to '
        'know how much of it to draw.'
      )
    return tf.TensorSpec(shape, _NOISE_DTYPES[dtype])

  return tf.nest.map_structure(check, record_specs)


class Layout:
  """The position of each tensor of a record in the vectors.

  The elements of each dtype, float32 and float64, are split into vectors of nearly the
  same size: as few as possible with at most 2^20 elements each, but at most 64.
  """

  def __init__(self, record_specs: Any):
    self.specs = sum_specs(record_specs)
    sizes: dict[tf.DType, int] = {}
    for spec in tf.nest.flatten(self.specs):
      sizes[spec.dtype] = sizes.get(spec.dtype, 0) + spec.shape.num_elements()
    vectors = [
      (dtype, size)
      for dtype in (tf.float32, tf.float64)
      for size in _cut(sizes.get(dtype, 0))
    ]
    self.dtypes = tuple(dtype for dtype, _ in vectors)
    self.sizes = tuple(size for _, size in vectors)

  @property
  def num_bytes(self) -> int:
    """Size of all vectors, in bytes."""
    return sum(size * dtype.size for dtype, size in zip(self.dtypes, self.sizes))

  @property
  def vectors(self) -> list[str]:
    """Size and dtype of each vector; the entries of a row depend on them."""
    return [f'{size} {dtype.name}' for size, dtype in zip(self.sizes, self.dtypes)]

  def unflatten(self, vectors: list[tf.Tensor]) -> Any:
    """Converts vectors of noise to the structure of a record, in float64."""
    by_dtype = {
      dtype: tf.concat([v for v, d in zip(vectors, self.dtypes) if d == dtype], axis=0)
      for dtype in set(self.dtypes)
    }
    begins = dict.fromkeys(by_dtype, 0)
    tensors = []
    for spec in tf.nest.flatten(self.specs):
      size = spec.shape.num_elements()
      if not size:
        tensors.append(tf.zeros(spec.shape, tf.float64))
        continue
      begin = begins[spec.dtype]
      begins[spec.dtype] += size
      part = by_dtype[spec.dtype][begin : begin + size]
      tensors.append(tf.reshape(part, spec.shape))
    return tf.nest.pack_sequence_as(self.specs, tensors)

  def zeros(self) -> Any:
    """Returns a record of zeros."""
    return tf.nest.map_structure(
      lambda spec: tf.zeros(spec.shape, spec.dtype), self.specs
    )


def _cut(size: int) -> list[int]:
  """Returns sizes of vectors that add up to `size`."""
  pieces = min(-(-size // _MAX_ELEMENTS), _MAX_VECTORS)
  return [size * (i + 1) // pieces - size * i // pieces for i in range(pieces)]


# Independent standard Gaussians from uniform bits: fast, with tails to 11.5 sigma.
#
# The Box-Muller transform makes two independent Gaussians of two uniform numbers:
#
#     r = sqrt(-2 ln u),    x = r cos(2 pi v),    y = r sin(2 pi v).
#
# **Bits.** u is the centre of one of 2^96 equal cells of (0, 1). So radii end at sqrt(2
# ln 2^97) = 11.6, and their spacing is dr = 2^-96 / (u r). Noise is rounded to a grid
# with steps of 2^-35 standard deviations or more (`queries.grid`). Where the spacing of
# radii is larger than a step, a pair lies on one of many circles with gaps between
# them, and whoever knows a sum could see whether the noise does. That happens beyond
# 9.4 sigma, with probability 2^-64 (with 64 bits beyond 6.6 sigma, 2^-32). The last 32
# bits only matter for rare pairs whose u is within 2^-20 of 0 or 1, and are only drawn
# where there are such pairs; elsewhere u is in the middle of its cell of 2^-64. The
# angle has no tails, so 64 bits are enough for it.
#
# **Rounding** changes a pair by less than 2^-49 of its length, however short or long it
# is. Near the origin, where u is close to 1, the code computes with 1 - u and not with
# u, because float64 values of u would give circles with a spacing of 2^-53 / r. As the
# tail falls by a factor of exp(-t dt) within dt, rounding changes no tail probability
# that matters. Numbers are float64 even if records are float32: a spacing of 2^-24 of a
# number is thousands of steps of the grid, and a sum could be seen between them.

# A pair takes four words of 32 bits, and a fifth if its length is rare.
_PAIR_NUMBERS = 2
_PAIR_WORDS = 4
_RARE = 2.0**-20


def gaussians_of_words(words: tf.Tensor, more: Callable[[], tf.Tensor]) -> tf.Tensor:
  """Converts uniform words [4 n] to Gaussians [2 n], float64: every x, then every y.

  `more` returns n additional words, and is only called if they are needed.
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
  """Returns Gaussians from u (64 bits, and 32 lower bits) and from v (64 bits)."""
  radius = tf.sqrt(-2.0 * _log_uniform(radii, lower))
  # Read as signed numbers, the same angles are in [-pi, pi).
  angle = tf.cast(tf.bitcast(angles, tf.int64), tf.float64) * (math.pi * 2.0**-63)
  return tf.concat([radius * tf.cos(angle), radius * tf.sin(angle)], axis=0)


def _log_uniform(radii: tf.Tensor, lower: tf.Tensor) -> tf.Tensor:
  """Returns the logarithm of u, with a relative error of at most 2^-50 for every u."""
  rest = (tf.cast(lower, tf.float64) + 0.5) * 2.0**-32
  # Read as a signed number, a u of the upper half is minus its distance from 1.
  signed = tf.cast(tf.bitcast(radii, tf.int64), tf.float64) + rest
  distance = tf.abs(signed) * 2.0**-64
  near_zero = signed > 0
  uniform = tf.where(near_zero, distance, 1.0 - distance)
  # The exact rounding error of 1 - distance; the second-order term is 2^-106.
  error = tf.where(near_zero, tf.zeros_like(uniform), (1.0 - uniform) - distance)
  return tf.math.log(uniform) + error / uniform


# Pairs of Gaussians, or Laplace numbers, that are made at a time, in the processor's
# cache: for 10^7 numbers at once, four tenths of the time went into allocating pages.
_CHUNK = 2**15


class GaussianRows:
  """Rows of independent standard Gaussians, as many as a record has elements.

  Example:
    >>> rows = GaussianRows([tf.TensorSpec([3]), tf.TensorSpec([])], seed=1)
    >>> key = rows.new_key()
    >>> first, again = rows.row(key, 7), rows.row(key, 7)
    >>> first[0].shape, bool(tf.reduce_all(first[0] == again[0]))
    (TensorShape([4]), True)
    >>> rows.generator, GaussianRows(tf.TensorSpec([3])).generator
    ('philox', 'chacha20')
  """

  # Numbers are made in units of `_numbers` numbers from `_words` words of 32 bits.
  _numbers: ClassVar[int] = _PAIR_NUMBERS
  _words: ClassVar[int] = _PAIR_WORDS

  def __init__(
    self, record_specs: Any, seed: options_lib.SeedLike = None, generator: str = 'auto'
  ):
    """Initializes rows for records of these specs; `Options` explains the others."""
    # Positions of the record's tensors in a row.
    self.layout = Layout(record_specs)
    self._seed = options_lib.resolve(seed)
    self._generator = generators.choose(generator, secret=self._seed is None)

  @property
  def generator(self) -> str:
    """Name of the generator: 'chacha20' or 'philox'."""
    return self._generator.name

  @property
  def seed_identity(self) -> str:
    """'secret', or the seed and stream of the rows: 'seed 7, stream 0'."""
    return 'secret' if self._seed is None else str(self._seed)

  def new_key(self) -> tf.Tensor:
    """Returns a key, int64 of shape [4].

    Without a seed every execution returns a different key, also in one traced
    computation, or raises tf.errors.InvalidArgumentError if the kernel has no entropy.
    """
    if self._seed is None:
      return generators.new_key()
    return tf.constant(self._seed.key(), tf.int64)

  def key_tag(self, key: tf.Tensor) -> tf.Tensor:
    """Returns a public tag that does not reveal the secret key; empty with a seed."""
    if self._seed is not None:
      return tf.constant('')
    return tf.strings.as_string(generators.tag_of(key))

  def row(self, key: tf.Tensor, index: tf.Tensor) -> list[tf.Tensor]:
    """Returns row `index` of z: the vectors of `layout`, all of them in float64.

    Callers that store a row store it in the dtypes of the layout.
    """
    index = tf.cast(index, tf.int64)
    sizes: dict[tf.DType, list[int]] = {}
    for dtype, size in zip(self.layout.dtypes, self.layout.sizes):
      sizes.setdefault(dtype, []).append(size)
    row: list[tf.Tensor] = []
    for dtype_sizes in sizes.values():
      row += self._vectors(key, index, len(row), dtype_sizes)
    return row

  def _vectors(
    self,
    key: tf.Tensor,
    index: tf.Tensor,
    first_vector: int,
    sizes: list[int],
  ) -> list[tf.Tensor]:
    """Returns vectors of nearly equal sizes, made in one loop over their chunks."""
    units = math.ceil(max(sizes) / self._numbers)
    num_chunks = math.ceil(units / _CHUNK)
    units = math.ceil(units / num_chunks)
    num_words = units * self._words
    num_blocks = math.ceil(num_words / self._generator.block_words)
    num_more = math.ceil(units / self._generator.block_words)
    if num_chunks * (num_blocks + num_more) > self._generator.max_blocks:
      raise ValueError(
        f'a vector of {max(sizes)} elements needs more random words than '
        f'{self._generator.name} has for one; split the tensors among several queries.'
      )

    def chunk(number: tf.Tensor) -> tf.Tensor:
      vector, place = first_vector + number // num_chunks, number % num_chunks
      words = self._generator.words(key, index, vector, place * num_blocks, num_blocks)

      def more() -> tf.Tensor:
        # These blocks follow the blocks of all chunks.
        first_block = num_chunks * num_blocks + place * num_more
        words = self._generator.words(key, index, vector, first_block, num_more)
        return words[:units]

      return self._from_words(words[:num_words], more)

    total = len(sizes) * num_chunks
    if total == 1:
      return [chunk(tf.constant(0, tf.int64))[: sizes[0]]]
    chunks = tf.map_fn(
      chunk,
      tf.range(total, dtype=tf.int64),
      fn_output_signature=tf.TensorSpec([units * self._numbers], tf.float64),
    )
    vectors = tf.reshape(chunks, [len(sizes), -1])
    return [vectors[number, :size] for number, size in enumerate(sizes)]

  def _from_words(self, words: tf.Tensor, more: Callable[[], tf.Tensor]) -> tf.Tensor:
    """Converts uniform words to numbers of the distribution, float64."""
    return gaussians_of_words(words, more)

  def __repr__(self) -> str:
    return f'{type(self).__name__}({self.layout.specs!r})'  # Never the seed.


# Rows of iid Laplace noise, for mechanisms of pure epsilon.
#
# The magnitude of a Laplace number is minus the logarithm of a uniform number. 64 bits
# would end at 44 scales: for 10^6 coordinates and 1000 rounds, a delta of 5e-11 in a
# mechanism that claims delta = 0. So each number uses 128 bits. Numbers end at 128 ln 2
# = 88.7 scales, which a Laplace number exceeds with probability 2^-128 = 3e-39; d
# coordinates in n rounds differ from untruncated Laplace numbers by at most d n 2^-128
# in total variation, 3e-30 for 10^6 and 1000. That (times 1 + e^epsilon) is the delta
# that truncation costs.

LARGEST_LAPLACE = 128 * math.log(2)  # The largest magnitude.


def laplace_of_bits(bits: tf.Tensor) -> tf.Tensor:
  """Converts uniform bits, uint64 [2, n], to Laplace numbers, float64 [n], scale 1."""
  one = tf.constant(1, tf.uint64)
  negative = tf.cast(tf.bitwise.bitwise_and(bits[1], one), tf.bool)
  # Centres of 2^127 equal cells of (0, 1), rounded. The last 63 bits matter where the
  # number of the first 64 is small.
  last = (tf.cast(tf.bitwise.right_shift(bits[1], one), tf.float64) + 0.5) * 2.0**-63
  uniform = (tf.cast(bits[0], tf.float64) + last) * 2.0**-64
  magnitude = -tf.math.log(uniform)
  return tf.where(negative, -magnitude, magnitude)


class LaplaceRows(GaussianRows):
  """Rows of independent Laplace numbers of scale 1; keys as for `GaussianRows`."""

  _numbers = 1
  _words = 4

  def _from_words(self, words: tf.Tensor, more: Callable[[], tf.Tensor]) -> tf.Tensor:
    del more
    return laplace_of_bits(tf.bitcast(tf.reshape(words, [2, -1, 2]), tf.uint64))
