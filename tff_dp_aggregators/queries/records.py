"""What a record may be: structures of float tensors.

Every function that takes a record takes it through here, so all queries serve the
same records and refuse the others in the same words. Messages tell dtypes and shapes
and never a value: they end up in logs, and a record is somebody's data.
"""

from typing import Any

import tensorflow as tf

_HALF = (tf.float16, tf.bfloat16)
_DTYPES = (*_HALF, tf.float32, tf.float64)


def as_tensors(record: Any) -> Any:
  """Returns a record as the tensors that are added up.

  Args:
    record: Structure of float tensors, or of what TensorFlow converts to them.

  Returns:
    The structure of tensors; half precision (float16, bfloat16) becomes float32.

  Raises:
    TypeError: If a part is not a dense tensor of a floating-point dtype.
  """
  return tf.nest.map_structure(_as_tensor, record)


def _as_tensor(part: Any) -> tf.Tensor:
  try:
    tensor = tf.convert_to_tensor(part)
  except (TypeError, ValueError):
    raise TypeError(
      'a record must be a structure of float tensors, got a part of type '
      f'{type(part).__name__}.'
    ) from None
  if tensor.dtype not in _DTYPES:
    raise TypeError(
      'a record must be a structure of float16, bfloat16, float32 or float64 tensors, '
      f'got {tensor.dtype.name} of shape {tensor.shape}; cast it before it is '
      'aggregated.'
    )
  return tf.cast(tensor, tf.float32) if tensor.dtype in _HALF else tensor


def check_record(record: Any, record_specs: Any) -> Any:
  """Returns a record as tensors, or says where it is not what was announced.

  Args:
    record: Structure of float tensors.
    record_specs: Structure of `tf.TensorSpec`s of float32 and float64, as a sum of
      records is accumulated in.

  Returns:
    As `as_tensors`.

  Raises:
    TypeError: If a dtype or the kind of a container differs.
    ValueError: If the number or names of tensors, or a shape, differ.

  Example:
    >>> check_record([tf.zeros([2])], [tf.TensorSpec([3])])
    Traceback (most recent call last):
    ...
    ValueError: a record has a tensor of shape (2,) where record_specs has (3,).
  """
  record = as_tensors(record)
  try:
    tf.nest.assert_same_structure(record, record_specs)
  except (TypeError, ValueError) as error:
    # TensorFlow's own message prints the values.
    given = tf.nest.map_structure(lambda t: tf.TensorSpec(t.shape, t.dtype), record)
    raise type(error)(
      f'a record must have the structure of record_specs, {record_specs}; got {given}.'
    ) from None

  def check(tensor: tf.Tensor, spec: tf.TensorSpec) -> tf.Tensor:
    if tensor.dtype != spec.dtype:
      raise TypeError(
        f'a record has a {tensor.dtype.name} tensor where record_specs has '
        f'{spec.dtype.name}.'
      )
    if not tensor.shape.is_compatible_with(spec.shape):
      raise ValueError(
        f'a record has a tensor of shape {tensor.shape} where record_specs has '
        f'{spec.shape}.'
      )
    return tf.ensure_shape(tensor, spec.shape)

  return tf.nest.map_structure(check, record, record_specs)
