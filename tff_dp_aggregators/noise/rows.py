"""The iid Gaussian rows z that every mechanism's noise is made of.

A row of z is a structure of tensors like one record, with independent standard
Gaussian entries. Rows are *random access*: row i of a key can be drawn at any time,
any number of times, and is always the same. Entries come from the counter-based
Philox generator, seeded with

    key + (row, tensor)    two 64-bit words, modulo 2^64,

so no two rows, and no two tensors of a row, share a generator seed, and rows of two
keys do not either unless the keys happen to be within a run's length of each other
(probability below 2^-60 for random 128-bit keys).

**The key is secret.** Who knows it can subtract the noise. It is part of the state
(a checkpoint must be guarded like the data) and of nothing else.

Values are float32 or float64 and inherit the granularity of floating point; this
package does not defend against attacks on the least significant bits of Gaussian
noise (Mironov 2012; Haney et al. arXiv:2112.05307).
"""

import hashlib
import os
from typing import Any, Optional

import numpy as np
import tensorflow as tf

_SUPPORTED_DTYPES = (tf.float32, tf.float64)


def check_record_specs(record_specs: Any) -> Any:
  """Returns the specs of a record, or says what is wrong with them.

  Args:
    record_specs: Structure of `tf.TensorSpec` (or of anything with shape and dtype).

  Raises:
    TypeError: If a tensor is neither float32 nor float64.
    ValueError: If a shape is not fully known.
  """

  def check(spec: Any) -> tf.TensorSpec:
    dtype, shape = tf.as_dtype(spec.dtype), tf.TensorShape(spec.shape)
    if dtype not in _SUPPORTED_DTYPES:
      raise TypeError(
        f'records must be float32 or float64 tensors, got {dtype.name}; cast them '
        'before they are aggregated.'
      )
    if not shape.is_fully_defined():
      raise ValueError(
        f'record_specs must have fully defined shapes, got {shape}; noise needs to '
        'know how much of it to draw.'
      )
    return tf.TensorSpec(shape, dtype)

  return tf.nest.map_structure(check, record_specs)


class GaussianRows:
  """Rows of independent standard Gaussians shaped like a record.

  Example:
    >>> rows = GaussianRows([tf.TensorSpec([3]), tf.TensorSpec([])], seed=1)
    >>> key = rows.new_key()
    >>> first, again = rows.row(key, 7), rows.row(key, 7)
    >>> bool(tf.reduce_all(first[0] == again[0]))
    True
  """

  def __init__(self, record_specs: Any, seed: Optional[int] = None):
    """Initializes the rows.

    Args:
      record_specs: Structure of float tensor specs with fully defined shapes.
      seed: Makes every key the same, for reproducible simulations; whoever knows it
        can remove the noise. `None`, the default, draws secret keys from the
        operating system's entropy.

    Raises:
      TypeError: If a tensor is not float32 or float64, or the seed not an int.
      ValueError: If a shape is not fully defined.
    """
    self._specs = check_record_specs(record_specs)
    self._seeded = seed is not None
    if seed is None:
      material = os.urandom(32)
    elif isinstance(seed, (int, np.integer)) and not isinstance(seed, bool):
      material = b'seed ' + str(int(seed)).encode()
    else:
      raise TypeError(f'seed must be an int or None, got {type(seed).__name__}.')
    digest = hashlib.blake2b(material, digest_size=16).digest()
    self._secret = np.frombuffer(digest, dtype=np.int64)

  @property
  def record_specs(self) -> Any:
    """Structure of `tf.TensorSpec` of one row."""
    return self._specs

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

  def row(self, key: tf.Tensor, index: tf.Tensor) -> Any:
    """Returns row `index` of z.

    Args:
      key: From `new_key`.
      index: Which row, an int64 scalar.

    Returns:
      A structure like `record_specs`.
    """
    index = tf.cast(index, tf.int64)
    flat = [
      tf.random.stateless_normal(
        spec.shape,
        seed=key + tf.stack([index, tf.constant(position, tf.int64)]),
        dtype=spec.dtype,
        alg='philox',
      )
      for position, spec in enumerate(tf.nest.flatten(self._specs))
    ]
    return tf.nest.pack_sequence_as(self._specs, flat)

  def __repr__(self) -> str:
    return f'GaussianRows({self._specs!r})'  # Never the seed.
