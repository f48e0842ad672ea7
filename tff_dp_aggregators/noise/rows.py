"""The iid Gaussian rows z that every mechanism's noise is made of.

A row of z has a standard Gaussian entry for each element of a record, and lies in the
vectors of `layout.Layout`. Rows are *random access*: row i of a key can be drawn at any
time, any number of times, and is always the same. `generators` makes random words of a
key, the numbers of a row and of a vector, and a place in the vector, each with bits of
its own, so no two entries of z are made of the same words. Secret noise is ChaCha20's,
that of a seed Philox's.

`noise.normal` makes Gaussians of the generator's words. TensorFlow's own end at 5.7
standard deviations (its uniform numbers are kept above 1e-7), and what happens beyond
has a probability of 1e-8 a coordinate: in a model of 10^6 parameters, too much for a
delta of 1e-10. Ours end at 11.5, beyond which a Gaussian has 1e-30.
`benchmarks/gaussian_rows.py` counts and times both.

**The key is secret.** Who knows it can subtract the noise. It comes from the kernel's
entropy when `new_key` runs (`keys`), and is part of the state (a checkpoint must be
guarded like the data) and of nothing else: of no computation and no repr.

Entries are float64, whatever the dtype of the records. What is released are integers on
a grid that is far coarser (`queries.grid`), so that their least significant bits do not
tell anything (Mironov 2012; Haney et al. arXiv:2112.05307).
"""

import math
from typing import Any, Callable, ClassVar

import tensorflow as tf

from tff_dp_aggregators.noise import generators
from tff_dp_aggregators.noise import keys
from tff_dp_aggregators.noise import layout as layout_lib
from tff_dp_aggregators.noise import normal
from tff_dp_aggregators.noise import seeds

# Pairs of Gaussians, or Laplace numbers, that are made at a time. What comes in between
# then stays in the processor's cache: for 10^7 numbers all at once, four tenths of the
# time went into getting pages for it.
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

  # Numbers are made so many at a time, of so many words of 32 bits.
  _numbers: ClassVar[int] = normal.NUMBERS
  _words: ClassVar[int] = normal.WORDS

  def __init__(
    self, record_specs: Any, seed: seeds.SeedLike = None, generator: str = 'auto'
  ):
    """Initializes the rows.

    Args:
      record_specs: Structure of float tensor specs with fully defined shapes.
      seed: Makes every key the same, for reproducible simulations; whoever knows it
        can remove the noise. A `seeds.Seed` says exactly which; an int takes the next
        of its streams. `None`, the default, draws secret keys from the kernel's
        entropy.
      generator: 'chacha20', 'philox', or 'auto' for the first with secret keys and the
        second with a seed.

    Raises:
      TypeError: If a tensor is not of a float dtype, or the seed not an int or a Seed.
      ValueError: If a shape is not fully defined, a tensor too large, or there is no
        such generator.
    """
    # How the record's tensors lie in one row.
    self.layout = layout_lib.Layout(record_specs)
    self._seed = seeds.resolve(seed)
    self._generator = generators.choose(generator, secret=self._seed is None)

  @property
  def generator(self) -> str:
    """Name of the generator: 'chacha20' or 'philox'."""
    return self._generator.name

  @property
  def seed_identity(self) -> str:
    """'secret', or which seed and stream it is: 'seed 7, stream 0'."""
    return seeds.identity(self._seed)

  def new_key(self) -> tf.Tensor:
    """Returns a key, an int64 tensor of shape [4].

    Without a seed every execution gives another key, also inside one traced
    computation that is executed several times: see `keys`.

    Raises:
      tf.errors.InvalidArgumentError: When run, if the kernel's entropy is not.
    """
    if self._seed is None:
      return keys.new()
    return tf.constant(self._seed.key(), tf.int64)

  def key_tag(self, key: tf.Tensor) -> tf.Tensor:
    """What tells a secret key from others, to be published with what was released.

    Args:
      key: From `new_key`.

    Returns:
      A string scalar, from which the key does not follow. It is empty with a seed,
      which could be found by trying all of them.
    """
    if self._seed is not None:
      return tf.constant('')
    return tf.strings.as_string(keys.tag_of(key))

  def row(self, key: tf.Tensor, index: tf.Tensor) -> list[tf.Tensor]:
    """Returns row `index` of z.

    Args:
      key: From `new_key`.
      index: Which row, an int64 scalar.

    Returns:
      The vectors of `layout`, in float64 whatever their dtype: the noise of a round has
      to be finer than the grid that it is brought to (`queries.grid`). Who keeps a row
      keeps it in the layout's dtype.
    """
    index = tf.cast(index, tf.int64)
    sizes: dict[tf.DType, list[int]] = {}
    for dtype, size in zip(self.layout.dtypes, self.layout.sizes):
      sizes.setdefault(dtype, []).append(size)
    row: list[tf.Tensor] = []
    for of_dtype in sizes.values():
      row += self._vectors(key, index, len(row), of_dtype)
    return row

  def _vectors(
    self,
    key: tf.Tensor,
    index: tf.Tensor,
    first_vector: int,
    sizes: list[int],
  ) -> list[tf.Tensor]:
    """Vectors with nearly equal sizes, in one loop over their chunks."""
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
        # Of blocks after those of all chunks.
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
    """Uniform words as numbers of the distribution, float64."""
    return normal.from_words(words, more)

  def __repr__(self) -> str:
    return f'{type(self).__name__}({self.layout.specs!r})'  # Never the seed.
