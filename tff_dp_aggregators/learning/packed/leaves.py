"""A structure of tensors as bytes, inside a computation and outside.

What crosses between Python and TFF's worker costs half a millisecond a tensor. One
tensor of bytes that holds them all costs it once.
"""

from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.core.framework import tensor_pb2


def specs_of(structure: Any) -> Any:
  """The specs of a structure of tensors."""
  return tf.nest.map_structure(
    lambda tensor: tf.TensorSpec(tensor.shape, tensor.dtype), structure
  )


def encode(structure: Any) -> tf.Tensor:
  """A vector of strings, one for each tensor of a structure."""
  flat = [tf.io.serialize_tensor(tensor) for tensor in tf.nest.flatten(structure)]
  return tf.stack(flat) if flat else tf.zeros([0], tf.string)


def decode(encoded: tf.Tensor, specs: Any) -> Any:
  """The structure that `encode` was given.

  Args:
    encoded: Vector of strings.
    specs: Structure of `tf.TensorSpec`s like it.
  """
  flat = [
    tf.ensure_shape(tf.io.parse_tensor(encoded[i], spec.dtype), spec.shape)
    for i, spec in enumerate(tf.nest.flatten(specs))
  ]
  return tf.nest.pack_sequence_as(specs, flat)


def join(structure: Any) -> tuple[tf.Tensor, ...]:
  """A vector for each dtype, with all tensors that have it: sums of them are sums."""
  flat = tf.nest.flatten(structure)
  return tuple(
    tf.concat([tf.reshape(each, [-1]) for each in flat if each.dtype == dtype], axis=0)
    for dtype in _dtypes(flat)
  )


def split(vectors: Any, specs: Any) -> Any:
  """The structure that `join` was given.

  Args:
    vectors: What it returned.
    specs: Structure of `tf.TensorSpec`s like the structure.
  """
  flat = tf.nest.flatten(specs)
  parts: dict[tf.DType, Any] = {}
  for dtype, vector in zip(_dtypes(flat), vectors):
    own = [spec for spec in flat if spec.dtype == dtype]
    sizes = [spec.shape.num_elements() for spec in own]
    parts[dtype] = iter(
      [tf.reshape(part, spec.shape) for part, spec in zip(tf.split(vector, sizes), own)]
    )
  return tf.nest.pack_sequence_as(specs, [next(parts[spec.dtype]) for spec in flat])


def _dtypes(flat: Any) -> list[tf.DType]:
  return sorted({each.dtype for each in flat}, key=lambda dtype: dtype.name)


def strings_in(content: tf.Tensor) -> tf.Tensor:
  """The vector of strings that a file holds, from its bytes."""
  return tf.ensure_shape(tf.io.parse_tensor(content, tf.string), [None])


def encode_each(structure: Any) -> list[bytes]:
  """What `encode` gives, of arrays."""
  return [
    tf.make_tensor_proto(np.asarray(leaf)).SerializeToString()
    for leaf in tf.nest.flatten(structure)
  ]


def encode_to_bytes(structure: Any) -> bytes:
  """The content of a file with a structure of arrays."""
  flat = encode_each(structure)
  return tf.make_tensor_proto(flat, tf.string, [len(flat)]).SerializeToString()


def strings_of(content: bytes) -> np.ndarray:
  """The vector of strings that `encode_to_bytes` or a computation wrote."""
  return np.asarray(parse(content))


def arrays_of(content: bytes) -> list[np.ndarray]:
  """The arrays in a file that `encode_to_bytes` or a computation wrote.

  Args:
    content: Of the file.
  """
  return [parse(each) for each in strings_of(content).tolist()]


def to_numpy(encoded: np.ndarray, specs: Any) -> Any:
  """What `decode` gives, as NumPy arrays and scalars, without TensorFlow's runtime."""
  flat = [parse(content)[()] for content in np.asarray(encoded).tolist()]
  return tf.nest.pack_sequence_as(specs, flat)


def parse(content: bytes) -> np.ndarray:
  """The array that one of the strings of `encode` is of."""
  return tf.make_ndarray(tensor_pb2.TensorProto.FromString(content))
