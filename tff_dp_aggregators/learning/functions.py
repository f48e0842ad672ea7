"""TensorFlow graphs as functions, in this process and in others.

That of a pack needs neither the user's module nor data where it is called, nor TFF.
Whoever calls it comes to the same bits, on processors of the same kind and with as many
threads for an operation.
"""

import contextlib
import dataclasses
import functools
import hashlib
import itertools
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Callable

import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf import rewriter_config_pb2
from tensorflow.python.eager import context

# Packs that are added up together, before the sums of such groups are: how floats are
# rounded follows from the packs alone, wherever they are trained.
GROUP = 8
# TensorFlow may write a graph anew before it is run. It does not change the order of
# products, say, in each process alike; last digits would not be the same again.
_OFF = rewriter_config_pb2.RewriterConfig.OFF
_AS_WRITTEN = context.FunctionCallOptions(
  config_proto=tf.compat.v1.ConfigProto(
    graph_options=tf.compat.v1.GraphOptions(
      rewrite_options=rewriter_config_pb2.RewriterConfig(
        arithmetic_optimization=_OFF, constant_folding=_OFF, remapping=_OFF
      )
    )
  )
)


def intra_op_threads() -> int:
  """By how many threads TensorFlow cuts products here: last digits depend on it."""
  chosen: int = tf.config.threading.get_intra_op_parallelism_threads()
  stated = os.environ.get('TF_NUM_INTRAOP_THREADS', '')
  return chosen or int(stated or 0) or len(os.sched_getaffinity(0))


class Traced:
  """A function of structures of tensors, made once: a graph, and names in it."""

  def __init__(self, compute: Callable[..., Any], *specs: Any):
    with tf.Graph().as_default() as graph:
      arguments = tf.nest.map_structure(
        lambda spec: tf.compat.v1.placeholder(spec.dtype, spec.shape), specs
      )
      # A result may be an argument or a constant as it is.
      results = tf.nest.map_structure(tf.identity, compute(*arguments))
    self.specs = specs_of(results)
    self.graph = graph.as_graph_def().SerializeToString()
    self.arguments = tuple(each.name for each in tf.nest.flatten(arguments))
    self.results = tuple(each.name for each in tf.nest.flatten(results))

  @functools.cached_property
  def _function(self) -> Callable[..., list[tf.Tensor]]:
    return _made(self.graph, self.arguments, self.results)

  def __call__(self, *arguments: Any) -> Any:
    """Computes."""
    flat = self._function(*tf.nest.flatten(arguments))
    return tf.nest.pack_sequence_as(self.specs, flat)


def specs_of(structure: Any) -> Any:
  """The specs of a structure of tensors."""
  return tf.nest.map_structure(
    lambda tensor: tf.TensorSpec(tensor.shape, tensor.dtype), structure
  )


def _made(
  graph: bytes, arguments: Sequence[str], results: Sequence[str]
) -> Callable[..., list[tf.Tensor]]:
  """A function of flat tensors, of a graph."""
  definition = tf.compat.v1.GraphDef.FromString(graph)
  whole = tf.compat.v1.wrap_function(
    lambda: tf.import_graph_def(definition, name=''), []
  )
  element = whole.graph.as_graph_element
  feeds = [element(name) for name in arguments]
  pruned = whole.prune(feeds, [element(name) for name in results])
  # As it is, TensorFlow would not optimise it, and small rounds take twice the time.
  function = tf.function(lambda *flat: pruned(*flat), autograph=False)
  made: Callable[..., list[tf.Tensor]] = function.get_concrete_function(
    *[tf.TensorSpec(each.shape, each.dtype) for each in feeds]
  )

  def call(*tensors: Any) -> list[tf.Tensor]:
    with _as_written():
      return made(*tensors)

  return call


@contextlib.contextmanager
def _as_written() -> Iterator[None]:
  """Has TensorFlow compute what functions say that this thread calls."""
  eager = context.context()
  before = eager.function_call_options
  eager.function_call_options = _AS_WRITTEN
  try:
    yield
  finally:
    eager.function_call_options = before


@dataclasses.dataclass(frozen=True)
class PackFunction:
  """The sums of a pack, of what is broadcast and of its rows; it can be pickled."""

  graph: bytes = dataclasses.field(repr=False)  # TensorFlow's, serialised.
  # Names of tensors in it; of arguments, the rows come last.
  arguments: tuple[str, ...] = dataclasses.field(repr=False)
  results: tuple[str, ...] = dataclasses.field(repr=False)
  data_directory: str  # Of the `PackedData` that it reads in place.
  data_checksum: str
  intra_op_threads: int  # It is to be called with so many.

  @functools.cached_property
  def key(self) -> str:
    """Differs from that of functions that compute something else."""
    rest = repr((self.data_directory, self.data_checksum, self.intra_op_threads))
    return hashlib.sha256(self.graph + rest.encode()).hexdigest()

  def at(self, data_directory: str) -> 'PackFunction':
    """The same, which reads a copy of the data."""
    graph = tf.compat.v1.GraphDef.FromString(self.graph)
    functions = (each.node_def for each in graph.library.function)
    for node in itertools.chain(graph.node, *functions):
      if node.op == 'ImmutableConst':
        path = node.attr['memory_region_name'].s.decode()
        name = os.path.relpath(path, self.data_directory)
        node.attr['memory_region_name'].s = os.path.join(data_directory, name).encode()
    return dataclasses.replace(
      self, graph=graph.SerializeToString(), data_directory=data_directory
    )

  def __call__(
    self, broadcast: Sequence[np.ndarray], rows: np.ndarray
  ) -> list[np.ndarray]:
    """Trains the clients of a pack."""
    if self.key not in _MADE:
      _MADE.clear()
      _MADE[self.key] = _made(self.graph, self.arguments, self.results)
    sums = _MADE[self.key](*map(tf.constant, (*broadcast, rows)))
    return [np.asarray(each) for each in sums]


# By key, which has the checksum of the data; one, as a process works for one training.
_MADE: dict[str, Callable[..., list[tf.Tensor]]] = {}


def group_sums(sums: Iterable[Sequence[np.ndarray]]) -> list[np.ndarray]:
  """Adds up sums in their order, as rounds of one process do."""
  total: list[np.ndarray] = []
  for each in sums:
    total = total or [np.zeros_like(array) for array in each]
    total = [np.add(one, other) for one, other in zip(total, each)]
  return total
