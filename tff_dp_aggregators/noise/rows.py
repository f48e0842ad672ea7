"""The iid Gaussian rows z that every mechanism's noise is made of.

A row of z has a standard Gaussian entry for each element of a record, and lies in the
vectors of `layout.Layout`. Rows are *random access*: row i of a key can be drawn at any
time, any number of times, and is always the same. Entries come from the counter-based
Philox generator, seeded with

    key + (row, vector)    two 64-bit words, modulo 2^64,

so no two rows, and no two vectors of a row, share a generator seed, and rows of two
keys do not either unless the keys happen to be within a run's length of each other
(probability below 2^-60 for random 128-bit keys). Tensors of a record are disjoint
parts of the vectors.

`noise.normal` makes Gaussians of the generator's bits. TensorFlow's own end at 5.7
standard deviations (its uniform numbers are kept above 1e-7), and what happens beyond
has a probability of 1e-8 a coordinate: in a model of 10^6 parameters, too much for a
delta of 1e-10. Ours end at 9.5, beyond which a Gaussian has less than 3e-21.
`benchmarks/gaussian_rows.py` counts and times both.

**The key is secret.** Who knows it can subtract the noise. It is part of the state
(a checkpoint must be guarded like the data) and of nothing else.

Values are float32 or float64 and inherit the granularity of floating point; this
package does not defend against attacks on the least significant bits of Gaussian
noise (Mironov 2012; Haney et al. arXiv:2112.05307). Nor is Philox a cryptographic
generator.
"""

import hashlib
import os
from typing import Any, Optional

import numpy as np
import tensorflow as tf

from tff_dp_aggregators.noise import layout as layout_lib
from tff_dp_aggregators.noise import normal


class GaussianRows:
  """Rows of independent standard Gaussians, as many as a record has elements.

  Example:
    >>> rows = GaussianRows([tf.TensorSpec([3]), tf.TensorSpec([])], seed=1)
    >>> key = rows.new_key()
    >>> first, again = rows.row(key, 7), rows.row(key, 7)
    >>> first[0].shape, bool(tf.reduce_all(first[0] == again[0]))
    (TensorShape([4]), True)
  """

  def __init__(self, record_specs: Any, seed: Optional[int] = None):
    """Initializes the rows.

    Args:
      record_specs: Structure of float tensor specs with fully defined shapes.
      seed: Makes every key the same, for reproducible simulations; whoever knows it
        can remove the noise. `None`, the default, draws secret keys from the
        operating system's entropy.

    Raises:
      TypeError: If a tensor is not of a float dtype, or the seed not an int.
      ValueError: If a shape is not fully defined.
    """
    # How the record's tensors lie in one row.
    self.layout = layout_lib.Layout(record_specs)
    self._seeded = seed is not None
    if seed is None:
      material = os.urandom(32)
    elif isinstance(seed, (int, np.integer)) and not isinstance(seed, bool):
      material = b'seed ' + str(int(seed)).encode()
    else:
      raise TypeError(f'seed must be an int or None, got {type(seed).__name__}.')
    # Where keys come from, for whoever may know.
    self.origin = 'secret' if seed is None else f'seed {int(seed)}'
    digest = hashlib.blake2b(material, digest_size=16).digest()
    self._secret = np.frombuffer(digest, dtype=np.int64)

  def new_key(self) -> tf.Tensor:
    """Returns a key, an int64 tensor of shape [2].

    Without a seed every execution gives another key, also inside one traced
    computation that is executed several times: the secret drawn when this object was
    made, 128 bits from the operating system, is offset by a number drawn when the
    op runs. (TensorFlow's own source of non-determinism alone is seeded with 32 bits
    a process, too few to keep a secret.)
    """
    key = tf.constant(self._secret, tf.int64)
    if self._seeded:
      return key
    clock = tf.bitcast(tf.timestamp(), tf.int64)
    drawn = tf.raw_ops.NonDeterministicInts(
      shape=tf.constant([2], tf.int64), dtype=tf.int64
    )
    return key + drawn + tf.stack([clock, tf.zeros_like(clock)])

  def row(self, key: tf.Tensor, index: tf.Tensor) -> list[tf.Tensor]:
    """Returns row `index` of z.

    Args:
      key: From `new_key`.
      index: Which row, an int64 scalar.

    Returns:
      The vectors of `layout`.
    """
    index = tf.cast(index, tf.int64)
    return [
      self._draw(size, dtype, key + tf.stack([index, tf.constant(position, tf.int64)]))
      for position, (dtype, size) in enumerate(
        zip(self.layout.dtypes, self.layout.sizes)
      )
    ]

  def _draw(self, size: int, dtype: tf.DType, seed: tf.Tensor) -> tf.Tensor:
    return normal.standard_normal(size, dtype, seed)

  def __repr__(self) -> str:
    return f'{type(self).__name__}({self.layout.specs!r})'  # Never the seed.
