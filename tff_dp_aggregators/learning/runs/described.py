"""Models and optimizers as a configuration has them, to compare runs by.

Numbers that have a name are told by it. Whatever else decides what is computed, such as
a loss, an activation or a function of the round, is in a fingerprint of the graph.
"""

import math
import numbers
from typing import Any, Callable

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_dp_aggregators.accounting.records import ledger
from tff_dp_aggregators.learning.packed import training as training_lib
from tff_dp_aggregators.learning.runs import graphs

# What TFF's optimizers call otherwise inside than their arguments.
_CALLED = {'lr': 'learning_rate'}


def model(functional: tff.learning.models.FunctionalModel) -> dict[str, Any]:
  """A model: its weights, and the graph of a step of training with its loss.

  Returns JSON-ready. `initial_weights` is the checksum of those that a new run begins
  with.
  """
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
    'graph': graphs.fingerprint(
      step, *map(_specs, weights), _as_given(functional.input_spec)
    ),
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

  return {
    **_named(which),
    'graph': graphs.fingerprint(step, trainable, trainable),
  }


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

  return graphs.fingerprint(step, tf.TensorSpec([]), trainable, trainable)


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


def _as_given(input_spec: Any) -> Any:
  return tf.nest.map_structure(
    lambda each: tf.TensorSpec(each.shape, each.dtype), input_spec
  )
