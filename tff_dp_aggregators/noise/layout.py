"""Records as flat vectors, one for each dtype: what noise is drawn and kept as.

Noise does not care where one tensor of a model ends and the next begins; drawing and
keeping it in one piece costs a half or a third of doing so tensor by tensor.
"""

from typing import Any

import tensorflow as tf

_NOISE_DTYPES = {
  tf.float16: tf.float32,
  tf.bfloat16: tf.float32,
  tf.float32: tf.float32,
  tf.float64: tf.float64,
}


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

  There is a vector for each of float32 and float64 that occurs and has an element.

  Example:
    >>> layout = Layout({'a': tf.TensorSpec([2]), 'b': tf.TensorSpec([], tf.float64)})
    >>> layout.dtypes, layout.sizes
    ((tf.float32, tf.float64), (2, 1))
    >>> layout.unflatten([tf.zeros([2]), tf.zeros([1], tf.float64)])['b'].shape
    TensorShape([])
  """

  def __init__(self, record_specs: Any):
    """Initializes the layout.

    Args:
      record_specs: Structure of float tensor specs with fully defined shapes.

    Raises:
      TypeError: As `sum_specs`.
      ValueError: As `sum_specs`.
    """
    self.specs = sum_specs(record_specs)
    sizes: dict[tf.DType, int] = {}
    for spec in tf.nest.flatten(self.specs):
      sizes[spec.dtype] = sizes.get(spec.dtype, 0) + spec.shape.num_elements()
    held = {
      dtype: sizes[dtype] for dtype in (tf.float32, tf.float64) if sizes.get(dtype)
    }
    self.dtypes = tuple(held)
    self.sizes = tuple(held.values())

  @property
  def num_bytes(self) -> int:
    """Size of all vectors."""
    return sum(size * dtype.size for dtype, size in zip(self.dtypes, self.sizes))

  def unflatten(self, vectors: list[tf.Tensor]) -> Any:
    """The structure of tensors that the vectors hold."""
    of_dtype = dict(zip(self.dtypes, vectors))
    begins = dict.fromkeys(self.dtypes, 0)
    tensors = []
    for spec in tf.nest.flatten(self.specs):
      size = spec.shape.num_elements()
      if not size:
        tensors.append(tf.zeros(spec.shape, spec.dtype))
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
