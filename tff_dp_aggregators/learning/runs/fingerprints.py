"""Fingerprints of models and optimizers, by which configurations are compared.

Numbers with a name are recorded under it; all else that decides what is computed is in
a fingerprint of the graph. Names in TensorFlow's serialised graphs have counters, which
depend on what was made before, and so names are replaced by positions here.
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
# Attributes of TFF's optimizers that have other names than their arguments.
_ARGUMENT_NAMES = {'lr': 'learning_rate'}


def model(functional: tff.learning.models.FunctionalModel) -> dict[str, Any]:
  """Fingerprint of the weights, and of the graph of a training step with the loss."""
  weights = functional.initial_weights
  flat = [np.asarray(each) for each in tf.nest.flatten(weights)]
  # With the simplest optimizer, the step is the model's own.
  plain = training_lib.LocalTraining(
    functional, tff.learning.optimizers.build_sgdm(1.0), batch_size=1
  )

  def step(trainable: Any, rest: Any, batch: Any) -> Any:
    server_weights = training_lib.Weights(trainable, rest)
    state = training_lib.initial_state(plain, server_weights)
    return training_lib.train_step(plain, server_weights, state, batch)

  return {
    'weights': [f'{each.dtype.name}{list(each.shape)}' for each in flat],
    'initial_weights': ledger.checksum_of(flat),
    'graph': graph_of(step, *map(_specs, weights), functional.input_spec),
  }


def optimizer(
  which: tff.learning.optimizers.Optimizer,
  functional: tff.learning.models.FunctionalModel,
) -> dict[str, Any]:
  """Kind and numbers of an optimizer, and fingerprint of its steps on a model."""
  graph = graph_of_steps(lambda: which, functional)
  return {**_kind_and_numbers(which), 'graph': graph}


def graph_of_steps(
  make: Callable[..., tff.learning.optimizers.Optimizer],
  functional: tff.learning.models.FunctionalModel,
  *inputs: tf.TensorSpec,
) -> str:
  """Fingerprint of the steps of an optimizer that is made from some inputs."""
  trainable = _specs(functional.initial_weights[0])

  def step(*arguments: Any) -> Any:
    *made_from, weights, gradients = arguments
    which = make(*made_from)
    state = which.initialize(trainable)
    return state, which.next(state, weights, gradients)

  return graph_of(step, *inputs, trainable, trainable)


def _kind_and_numbers(which: tff.learning.optimizers.Optimizer) -> dict[str, Any]:
  """Kind and numbers of an optimizer, and of optimizers in it."""
  fields: dict[str, Any] = {'kind': type(which).__name__.lstrip('_')}
  for name, value in getattr(which, '__dict__', {}).items():
    argument = _ARGUMENT_NAMES.get(name.lstrip('_'), name.lstrip('_'))
    if isinstance(value, tff.learning.optimizers.Optimizer):
      fields[argument] = _kind_and_numbers(value)
    elif isinstance(value, bool):
      fields[argument] = value
    elif isinstance(value, numbers.Real):
      number = float(value)
      fields[argument] = number if math.isfinite(number) else str(number)
  return fields


def _specs(weights: Any) -> Any:
  return tf.nest.map_structure(
    lambda each: tf.TensorSpec(np.shape(each), np.asarray(each).dtype), tuple(weights)
  )


def graph_of(function: Callable[..., Any], *specs: Any) -> str:
  """SHA-256 of the graph that a function makes: operations, constants, and types.

  Code of Python functions that the graph calls, and seeds of random operations, are not
  part of it.
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
  """Graphs in which names of nodes, arguments and functions are their positions."""

  def __init__(self, functions: dict[str, Any]):
    self._definitions = functions
    self._positions: dict[str, int] = {}
    self.functions: list[Any] = []  # In the order of their first use.

  def body(
    self, nodes: Sequence[Any], outputs: Sequence[str], arguments: Sequence[str] = ()
  ) -> list[Any]:
    """Describes the nodes, and which of their tensors are the results."""
    positions = {name: f'argument {index}' for index, name in enumerate(arguments)}
    positions.update((node.name, str(index)) for index, node in enumerate(nodes))
    return [
      [self._node(node, positions) for node in nodes],
      [_tensor(name, positions) for name in outputs],
    ]

  def _node(self, node: Any, positions: dict[str, str]) -> list[Any]:
    control = sorted(name for name in node.input if name.startswith('^'))
    return [
      node.op,
      [_tensor(name, positions) for name in node.input if not name.startswith('^')],
      sorted(positions[name.removeprefix('^')] for name in control),
      [
        [name, self._attribute(node.attr[name])]
        for name in sorted(node.attr)
        if not name.startswith('_') and name not in _IGNORED
      ],
    ]

  def _attribute(self, value: Any) -> Any:
    functions = [value.func] if value.HasField('func') else value.list.func
    if functions:
      return [self._position(each.name) for each in functions]
    return value.SerializeToString(deterministic=True).hex()

  def _position(self, name: str) -> Any:
    """Position of a function, which is described at its first use."""
    definition: Optional[Any] = self._definitions.get(name)
    if definition is None:
      return name  # A function of TensorFlow's own.
    if name not in self._positions:
      self._positions[name] = len(self._positions)
      self.functions.append(None)
      signature = definition.signature
      self.functions[self._positions[name]] = [
        [each.type for each in signature.input_arg],
        self.body(
          definition.node_def,
          [definition.ret[each.name] for each in signature.output_arg],
          [each.name for each in signature.input_arg],
        ),
      ]
    return self._positions[name]


def _tensor(name: str, positions: dict[str, str]) -> list[str]:
  """The position of a tensor's node, and which output of it the tensor is."""
  node, *output = name.split(':')
  if not output or output == ['0']:
    return [positions[node]]
  return [positions[node], *output]
