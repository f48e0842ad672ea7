"""Records as flat vectors: what noise is drawn and kept as.

Noise does not care where one tensor of a model ends and the next begins. Drawing and
keeping it in a few pieces costs a half or a third of doing so tensor by tensor, and
pieces that fit into the processor's cache cost less than one that does not.
"""

from typing import Any

import tensorflow as tf

_NOISE_DTYPES = {
  tf.float16: tf.float32,
  tf.bfloat16: tf.float32,
  tf.float32: tf.float32,
  tf.float64: tf.float64,
}
# Of a vector; and vectors of a dtype, for the sake of the size of computations.
_MAX_ELEMENTS = 2**20
_MAX_VECTORS = 64


def sum_specs(record_specs: Any) -> Any:
  """Returns the specs of a sum of records, or says what is wrong with them.

  Args:
    record_specs: Structure of `tf.TensorSpec` (or of anything with shape and dtype).

  Returns:
    The structure with `tf.TensorSpec`s; half precision is accumulated in float32.

  Raises:
    TypeError: If a tensor is not of a floating-point dtype.
    ValueError: If a shape is not fully known.
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
  """Where each tensor of a record lies in the vectors.

  The elements of each dtype, float32 and float64, are cut into vectors of nearly the
  same size: as few as 2^20 elements a vector allow, and at most 64.

  Example:
    >>> layout = Layout({'a': tf.TensorSpec([2]), 'b': tf.TensorSpec([], tf.float64)})
    >>> layout.dtypes, layout.sizes
    ((tf.float32, tf.float64), (2, 1))
    >>> layout.unflatten([tf.zeros([2]), tf.zeros([1])])['b'].shape
    TensorShape([])
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
    """Size of all vectors."""
    return sum(size * dtype.size for dtype, size in zip(self.dtypes, self.sizes))

  @property
  def vectors(self) -> list[str]:
    """Size and dtype of each vector, which decide on what a row of noise is."""
    return [f'{size} {dtype.name}' for size, dtype in zip(self.sizes, self.dtypes)]

  def unflatten(self, vectors: list[tf.Tensor]) -> Any:
    """The structure of tensors that vectors of noise hold, float64 as these are."""
    of_dtype = {
      dtype: tf.concat([v for v, d in zip(vectors, self.dtypes) if d == dtype], axis=0)
      for dtype in set(self.dtypes)
    }
    begins = dict.fromkeys(of_dtype, 0)
    tensors = []
    for spec in tf.nest.flatten(self.specs):
      size = spec.shape.num_elements()
      if not size:
        tensors.append(tf.zeros(spec.shape, tf.float64))
        continue
      begin = begins[spec.dtype]
      begins[spec.dtype] += size
      part = of_dtype[spec.dtype][begin : begin + size]
      tensors.append(tf.reshape(part, spec.shape))
    return tf.nest.pack_sequence_as(self.specs, tensors)

  def zeros(self) -> Any:
    """A record of zeros."""
    return tf.nest.map_structure(
      lambda spec: tf.zeros(spec.shape, spec.dtype), self.specs
    )


def _cut(size: int) -> list[int]:
  """Sizes that add up to `size`."""
  pieces = min(-(-size // _MAX_ELEMENTS), _MAX_VECTORS)
  return [size * (i + 1) // pieces - size * i // pieces for i in range(pieces)]
