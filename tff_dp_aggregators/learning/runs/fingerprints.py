"""Models and optimizers as a configuration has them, to compare runs by.

Numbers that have a name are told by it, and whatever else decides what is computed by a
fingerprint of the graph. TensorFlow's serialised graphs have counters in their names,
which depend on what was made before; here names are replaced by places.
"""

import hashlib
import json
import math
import numbers
from collections.abc import Sequence
from typing import Any, Callable, Optional

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_dp_aggregators.accounting.records import ledger
from tff_dp_aggregators.learning.packed import training as training_lib

# Names and numbers that differ from process to process, and compute nothing.
_IGNORED = ('config_proto', 'container', 'seed', 'seed2', 'shared_name')
# What TFF's optimizers call otherwise inside than their arguments.
_CALLED = {'lr': 'learning_rate'}


def model(functional: tff.learning.models.FunctionalModel) -> dict[str, Any]:
  """A model: its weights, and the graph of a step of training with its loss."""
  weights = functional.initial_weights
  flat = [np.asarray(each) for each in tf.nest.flatten(weights)]
  # The simplest optimizer: the step is then that of the model.
  plain = training_lib.LocalTraining(
    functional, tff.learning.optimizers.build_sgdm(1.0), batch_size=1
  )

  def step(trainable: Any, rest: Any, batch: Any) -> Any:
    of_server = training_lib.Weights(trainable, rest)
    state = training_lib.initial_state(plain, of_server)
    return training_lib.train_step(plain, of_server, state, batch)

  return {
    'weights': [f'{each.dtype.name}{list(each.shape)}' for each in flat],
    'initial_weights': ledger.checksum_of(flat),
    'graph': graph_of(step, *map(_specs, weights), functional.input_spec),
  }


def optimizer(
  which: tff.learning.optimizers.Optimizer,
  functional: tff.learning.models.FunctionalModel,
) -> dict[str, Any]:
  """An optimizer: its kind, its numbers, and the graph of its steps on a model."""
  trainable = _specs(functional.initial_weights[0])

  def step(weights: Any, gradients: Any) -> Any:
    state = which.initialize(trainable)
    return state, which.next(state, weights, gradients)

  return {**_named(which), 'graph': graph_of(step, trainable, trainable)}


def graph_of_optimizers(
  make: Callable[[Any], tff.learning.optimizers.Optimizer],
  functional: tff.learning.models.FunctionalModel,
) -> str:
  """The graph of the steps of optimizers with any learning rate."""
  trainable = _specs(functional.initial_weights[0])

  def step(learning_rate: tf.Tensor, weights: Any, gradients: Any) -> Any:
    which = make(learning_rate)
    state = which.initialize(trainable)
    return state, which.next(state, weights, gradients)

  return graph_of(step, tf.TensorSpec([]), trainable, trainable)


def _named(which: tff.learning.optimizers.Optimizer) -> dict[str, Any]:
  """Kind and numbers, also of optimizers inside."""
  found: dict[str, Any] = {'kind': type(which).__name__.lstrip('_')}
  for name, value in getattr(which, '__dict__', {}).items():
    called = _CALLED.get(name.lstrip('_'), name.lstrip('_'))
    if isinstance(value, tff.learning.optimizers.Optimizer):
      found[called] = _named(value)
    elif isinstance(value, bool):
      found[called] = value
    elif isinstance(value, numbers.Real):
      number = float(value)
      found[called] = number if math.isfinite(number) else str(number)
  return found


def _specs(weights: Any) -> Any:
  return tf.nest.map_structure(
    lambda each: tf.TensorSpec(np.shape(each), np.asarray(each).dtype), tuple(weights)
  )


def graph_of(function: Callable[..., Any], *specs: Any) -> str:
  """SHA-256 of the graph that a function makes: operations, constants, and types.

  What runs Python is not in it, nor are seeds of random operations.
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
  body = canonical.body(definition.node, outputs)
  whole = json.dumps([body, canonical.functions])
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
    functions = [value.func] if value.HasField('func') else value.list.func
    if functions:
      return [self._place(each.name) for each in functions]
    return value.SerializeToString(deterministic=True).hex()

  def _place(self, name: str) -> Any:
    """Place of a function, which is written down when it is first met."""
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


def _tensor(name: str, places: dict[str, str]) -> list[str]:
  """A tensor: the place of its node, and which output of it."""
  node, *output = name.split(':')
  if not output or output == ['0']:
    return [places[node]]
  return [places[node], *output]
