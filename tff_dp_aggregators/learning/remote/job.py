"""What workers compute: the same in all rounds, of packs that are not.

An answer is sealed: it has in it which pack of which round it is of, and a fingerprint
of its content. That is against mistakes (an answer of the round before, a broken
machine), not against somebody who wants to deceive: whoever may be a worker could as
well train something else.
"""

from typing import Callable, NamedTuple, Union

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff
from tensorflow_federated.proto.v0 import executor_pb2

from tff_dp_aggregators.learning.remote import connection

# Which round and which pack an answer is of.
LABEL = tff.TensorType(np.int64, [3])
# Of each client: its first example, number of examples and key.
ROWS = tff.TensorType(np.int64, [None, 3])
# Where packs begin and end.
CUTS = tff.TensorType(np.int64, [None])
_METHOD = 'farmhash64'


class Job(NamedTuple):
  """What workers are for.

  Attributes:
    in_place: Makes the computation of (broadcast, (label, rows, cuts)), which reads
      clients' examples from files, to a `sealed` answer, and trains so many packs at a
      time.
    shipped: The same of (broadcast, (label, rows, cuts, examples)).
    look: Computation of (label, numbers of examples) that reads those, and a checksum
      of all, from files, to a `sealed` answer.
    seen: What `look` is to find, from the same numbers.
    num_examples: Of all clients together.
    ship: Rows and examples of clients to be sent: of some rows, those rows with other
      first examples, and the examples.
    bytes_of_example: How much it is that is sent.
    parse: The arrays in the answer for packs of so many clients each; `GarbageError`
      if they are not what such packs come to.
    bytes_apart: How much of an answer there is for each pack, to be added up in their
      order.
  """

  in_place: Callable[[int], executor_pb2.Value]
  shipped: Callable[[int], executor_pb2.Value]
  look: executor_pb2.Value
  seen: Callable[[np.ndarray], list[bytes]]
  num_examples: int
  ship: Callable[[np.ndarray], tuple[np.ndarray, bytes]]
  bytes_of_example: int
  parse: Callable[[list[bytes], list[int]], list[np.ndarray]]
  bytes_apart: Callable[[], int]


def sealed(label: tf.Tensor, contents: tf.Tensor) -> tf.Tensor:
  """What a computation answers.

  Args:
    label: Which pack of which round it is of; int64 of shape [3].
    contents: Strings of shape [n].

  Returns:
    Strings of shape [n + 2].
  """
  labelled = tf.concat([[tf.io.serialize_tensor(label)], contents], axis=0)
  fingerprint = tf.io.serialize_tensor(tf.fingerprint(labelled, _METHOD))
  return tf.concat([[fingerprint], labelled], axis=0)


def unsealed(answer: executor_pb2.Value, label: np.ndarray) -> list[bytes]:
  """The contents of an answer.

  Args:
    answer: What a worker answered.
    label: What it has to be of.

  Raises:
    GarbageError: If it is not whole, or of something else.
  """
  values = list(answer.array.string_list.value)
  if len(values) < 2:
    raise connection.GarbageError('it answers what is no answer to what it was asked')
  fingerprint, *labelled = values
  if fingerprint != _fingerprint(labelled):
    raise connection.GarbageError('its answer is damaged: the fingerprint differs')
  if labelled[0] != tf.make_tensor_proto(label, tf.int64).SerializeToString():
    raise connection.GarbageError('it answers to something that it was not asked now')
  return labelled[1:]


def _fingerprint(labelled: list[bytes]) -> bytes:
  # As it is computed in `sealed`, by one operation, outside of a graph.
  hashed = tf.raw_ops.Fingerprint(data=tf.constant(labelled), method=_METHOD)
  return tf.make_tensor_proto(hashed.numpy()).SerializeToString()


def argument(
  *values: Union[np.ndarray, bytes, executor_pb2.Value],
) -> executor_pb2.Value:
  """What a worker is told, as one value.

  Args:
    *values: Int64 arrays, such as label, rows and cuts, strings, and other arguments.
  """
  elements = [executor_pb2.Value.Struct.Element(value=_value(each)) for each in values]
  return executor_pb2.Value(struct=executor_pb2.Value.Struct(element=elements))


def _value(each: Union[np.ndarray, bytes, executor_pb2.Value]) -> executor_pb2.Value:
  if isinstance(each, executor_pb2.Value):
    return each
  return connection.text(each) if isinstance(each, bytes) else connection.integers(each)
