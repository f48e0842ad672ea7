"""Fingerprints of models and optimizers, by which configurations are compared.

Numbers with a name are recorded under it; all else that decides what is computed is in
a fingerprint of the graph. Names in TensorFlow's serialised graphs have counters, which
depend on what was made before, and so names are replaced by positions here.
"""

import functools
import hashlib
import json
import math
import numbers
from collections.abc import Sequence
from typing import Any, Callable

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_dp_aggregators.accounting.records import ledger
from tff_dp_aggregators.learning import functions as functions_lib
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
  definition, _, results = functions_lib.graph_of(
    lambda *inputs: tf.nest.map_structure(tf.convert_to_tensor, function(*inputs)),
    *specs,
  )
  functions = {each.signature.name: each for each in definition.library.function}

  def body(
    nodes: Sequence[Any], outputs: Sequence[str], arguments: Sequence[str] = ()
  ) -> list[Any]:
    positions = {name: f'argument {index}' for index, name in enumerate(arguments)}
    positions.update((node.name, str(index)) for index, node in enumerate(nodes))

    def tensor(name: str) -> list[str]:  # Position of its node, and which output it is.
      node, *output = name.removeprefix('^').split(':')
      return [positions[node], *(output if output != ['0'] else [])]

    described: list[Any] = [[tensor(name) for name in outputs]]
    for node in nodes:
      control = sorted(tensor(name) for name in node.input if name.startswith('^'))
      data = [tensor(name) for name in node.input if not name.startswith('^')]
      attributes = [
        [name, attribute(node.attr[name])]
        for name in sorted(node.attr)
        if not name.startswith('_') and name not in _IGNORED
      ]
      described.append([node.op, data, control, attributes])
    return described

  def attribute(value: Any) -> Any:
    called = [value.func] if value.HasField('func') else value.list.func
    if called:
      return [of_function(each.name) for each in called]
    return value.SerializeToString(deterministic=True).hex()

  @functools.cache
  def of_function(name: str) -> str:
    if name not in functions:
      return name  # A function of TensorFlow's own.
    called, signature = functions[name], functions[name].signature
    results = [called.ret[each.name] for each in signature.output_arg]
    names = [each.name for each in signature.input_arg]
    types = [each.type for each in signature.input_arg]
    return _sha256([types, body(called.node_def, results, names)])

  outputs = [tensor.name for tensor in tf.nest.flatten(results)]
  return _sha256(body(definition.node, outputs))


def _sha256(description: Any) -> str:
  return f'sha256:{hashlib.sha256(json.dumps(description).encode()).hexdigest()}'
