"""Makes functions from serialised TensorFlow graphs, for this process and for workers.

The function of a pack reads packed data; where it is called, it needs neither the
user's module and clients, nor TFF. It gives the same bits everywhere, on processors of
the same kind and with the same number of threads for an operation.
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

# Sums of this many packs are added up first, then the sums of these groups. So the
# rounding of floats depends on the packs alone, not on where they are trained.
GROUP = 8
# TensorFlow may rewrite a graph before it is run, and does so differently from process
# to process, for instance in the order of products. Last digits would then vary.
_OFF = rewriter_config_pb2.RewriterConfig.OFF
_NO_REWRITING = context.FunctionCallOptions(
  config_proto=tf.compat.v1.ConfigProto(
    graph_options=tf.compat.v1.GraphOptions(
      rewrite_options=rewriter_config_pb2.RewriterConfig(
        arithmetic_optimization=_OFF, constant_folding=_OFF, remapping=_OFF
      )
    )
  )
)


def intra_op_threads() -> int:
  """TensorFlow's number of threads for one operation; last digits depend on it."""
  chosen: int = tf.config.threading.get_intra_op_parallelism_threads()
  stated = os.environ.get('TF_NUM_INTRAOP_THREADS', '')
  return chosen or int(stated or 0) or len(os.sched_getaffinity(0))


@dataclasses.dataclass(frozen=True)
class Traced:
  """A function of structures of tensors; it can be pickled until it is called."""

  graph: bytes = dataclasses.field(repr=False)  # Serialised by TensorFlow.
  # Names of tensors in the graph.
  arguments: tuple[str, ...] = dataclasses.field(repr=False)
  results: tuple[str, ...] = dataclasses.field(repr=False)
  specs: Any  # Specs of the results.

  @classmethod
  def of(cls, compute: Callable[..., Any], *specs: Any) -> 'Traced':
    """Traces a function of arguments with the given specs."""
    # A result may be an argument or a constant itself, so it gets its own tensor.
    graph, arguments, results = graph_of(
      lambda *inputs: tf.nest.map_structure(tf.identity, compute(*inputs)), *specs
    )
    return cls(
      graph.SerializeToString(),
      tuple(each.name for each in tf.nest.flatten(arguments)),
      tuple(each.name for each in tf.nest.flatten(results)),
      specs_of(results),
    )

  @functools.cached_property
  def _function(self) -> Callable[..., list[tf.Tensor]]:
    definition = tf.compat.v1.GraphDef.FromString(self.graph)
    imported = tf.compat.v1.wrap_function(
      lambda: tf.import_graph_def(definition, name=''), []
    )
    element = imported.graph.as_graph_element
    feeds = [element(name) for name in self.arguments]
    pruned = imported.prune(feeds, [element(name) for name in self.results])
    # TensorFlow does not optimise `pruned` itself, which would take twice as long.
    function = tf.function(lambda *flat: pruned(*flat), autograph=False)
    concrete: Callable[..., list[tf.Tensor]] = function.get_concrete_function(
      *[tf.TensorSpec(each.shape, each.dtype) for each in feeds]
    )
    return concrete

  def __call__(self, *arguments: Any) -> Any:
    """Computes the function."""
    with _without_rewriting():
      flat = self._function(*tf.nest.flatten(arguments))
    return tf.nest.pack_sequence_as(self.specs, flat)


def graph_of(compute: Callable[..., Any], *specs: Any) -> tuple[Any, Any, Any]:
  """The graph of a function of arguments with given specs, and its tensors of both."""
  with tf.Graph().as_default() as graph:
    arguments = tf.nest.map_structure(
      lambda spec: tf.compat.v1.placeholder(spec.dtype, spec.shape), specs
    )
    results = compute(*arguments)
  return graph.as_graph_def(), arguments, results


def specs_of(structure: Any) -> Any:
  """The `tf.TensorSpec`s of a structure of tensors."""
  return tf.nest.map_structure(
    lambda tensor: tf.TensorSpec(tensor.shape, tensor.dtype), structure
  )


@contextlib.contextmanager
def _without_rewriting() -> Iterator[None]:
  """Makes TensorFlow run this thread's functions without rewriting their graphs."""
  eager = context.context()
  previous = eager.function_call_options
  eager.function_call_options = _NO_REWRITING
  try:
    yield
  finally:
    eager.function_call_options = previous


@dataclasses.dataclass(frozen=True)
class PackFunction:
  """A function from broadcast values and rows to a pack's sums, for workers."""

  traced: Traced = dataclasses.field(repr=False)  # Its results are a list of tensors.
  data_directory: str  # The graph reads this `PackedData` in place.
  data_checksum: str
  intra_op_threads: int  # The number of threads with which it has to be called.

  @functools.cached_property
  def key(self) -> str:
    """A hash that identifies what the function computes."""
    rest = repr((self.data_directory, self.data_checksum, self.intra_op_threads))
    return hashlib.sha256(self.traced.graph + rest.encode()).hexdigest()

  def at(self, data_directory: str) -> 'PackFunction':
    """Returns the same function reading a copy of the data in another directory."""
    graph = tf.compat.v1.GraphDef.FromString(self.traced.graph)
    functions = (each.node_def for each in graph.library.function)
    for node in itertools.chain(graph.node, *functions):
      if node.op == 'ImmutableConst':
        path = node.attr['memory_region_name'].s.decode()
        name = os.path.relpath(path, self.data_directory)
        node.attr['memory_region_name'].s = os.path.join(data_directory, name).encode()
    traced = dataclasses.replace(self.traced, graph=graph.SerializeToString())
    return dataclasses.replace(self, traced=traced, data_directory=data_directory)

  def __call__(
    self, broadcast: Sequence[np.ndarray], rows: np.ndarray
  ) -> list[np.ndarray]:
    """Trains the clients of a pack."""
    sums = self.traced(list(map(tf.constant, broadcast)), tf.constant(rows))
    return [np.asarray(each) for each in sums]


def group_sums(sums: Iterable[Sequence[np.ndarray]]) -> list[np.ndarray]:
  """Adds up sums in their order, as rounds in a single process do."""
  total: list[np.ndarray] = []
  for each in sums:
    total = total or [np.zeros_like(array) for array in each]
    total = [np.add(one, other) for one, other in zip(total, each)]
  return total
