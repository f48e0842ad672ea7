"""Fingerprints of computations: equal for the same graph, whatever process makes it.

TensorFlow's own serialised graphs are not: names of nodes and functions have counters
in them, which depend on what else was made before. Here names are replaced by places.
"""

import hashlib
import json
from collections.abc import Iterator, Sequence
from typing import Any, Callable, Optional

import tensorflow as tf

# Names and numbers that differ from process to process, and compute nothing.
_IGNORED = ('config_proto', 'container', 'seed', 'seed2', 'shared_name')


def fingerprint(function: Callable[..., Any], *specs: Any) -> str:
  """SHA-256 of the graph that a function makes: operations, constants, and types.

  What it computes otherwise, in Python or by operations that run Python, is not in it,
  nor are the seeds of random operations. Another release of TensorFlow may make another
  graph of the same function.

  Example:
    >>> spec = tf.TensorSpec([None, 2])
    >>> one = fingerprint(tf.nn.relu, spec)
    >>> one == fingerprint(tf.nn.relu, spec), one == fingerprint(tf.nn.elu, spec)
    (True, False)
  """
  with tf.Graph().as_default() as graph:
    arguments = [
      tf.nest.map_structure(
        lambda spec: tf.compat.v1.placeholder(spec.dtype, spec.shape), structure
      )
      for structure in specs
    ]
    results = tf.nest.map_structure(tf.convert_to_tensor, function(*arguments))
    outputs = [tensor.name for tensor in tf.nest.flatten(results)]
  definition = graph.as_graph_def()
  functions = {each.signature.name: each for each in definition.library.function}
  canonical = _Canonical(functions)
  described = canonical.body(definition.node, outputs)
  whole = json.dumps([described, canonical.functions])
  return f'sha256:{hashlib.sha256(whole.encode()).hexdigest()}'


class _Canonical:
  """Graphs without names: a node, an argument and a function is its place."""

  def __init__(self, functions: dict[str, Any]):
    self._definitions = functions
    self._places: dict[str, int] = {}
    self.functions: list[Any] = []  # In the order in which they are met.

  def body(
    self, nodes: Sequence[Any], outputs: Sequence[str], arguments: Sequence[str] = ()
  ) -> list[Any]:
    """What nodes compute, and which of their tensors are the results."""
    places = {name: f'argument {place}' for place, name in enumerate(arguments)}
    places.update((node.name, str(place)) for place, node in enumerate(nodes))
    return [
      [self._node(node, places) for node in nodes],
      [_tensor(name, places) for name in outputs],
    ]

  def _node(self, node: Any, places: dict[str, str]) -> list[Any]:
    control = sorted(name for name in node.input if name.startswith('^'))
    return [
      node.op,
      [_tensor(name, places) for name in node.input if not name.startswith('^')],
      sorted(places[name.removeprefix('^')] for name in control),
      [
        [name, self._attribute(node.attr[name])]
        for name in sorted(node.attr)
        if not name.startswith('_') and name not in _IGNORED
      ],
    ]

  def _attribute(self, value: Any) -> Any:
    called = list(_called(value))
    if called:
      return [self._place(name) for name in called]
    return value.SerializeToString(deterministic=True).hex()

  def _place(self, name: str) -> Any:
    """Place of a function, which is described when it is first met."""
    definition: Optional[Any] = self._definitions.get(name)
    if definition is None:
      return name  # Of TensorFlow's own.
    if name not in self._places:
      self._places[name] = len(self._places)
      self.functions.append(None)
      signature = definition.signature
      self.functions[self._places[name]] = [
        [each.type for each in signature.input_arg],
        self.body(
          definition.node_def,
          [definition.ret[each.name] for each in signature.output_arg],
          [each.name for each in signature.input_arg],
        ),
      ]
    return self._places[name]


def _called(value: Any) -> Iterator[str]:
  """Names of the functions in a node's attribute."""
  if value.HasField('func'):
    yield value.func.name
  elif value.HasField('list'):
    for function in value.list.func:
      yield function.name


def _tensor(name: str, places: dict[str, str]) -> list[str]:
  """A tensor: the place of its node, and which output of it."""
  node, *output = name.split(':')
  if not output or output == ['0']:
    return [places[node]]
  return [places[node], *output]
