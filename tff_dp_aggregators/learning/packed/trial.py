"""A step of local training as a graph, looked at before one is run.

What fails in it fails at once and by name, and random numbers in it show: those that
TensorFlow draws anew each time make a round another one when it is run again.
"""

import re
import weakref
from typing import Any, Optional

import tensorflow as tf

from tff_dp_aggregators.learning.packed import training as training_lib

# Operations of TensorFlow whose numbers differ from one execution to the next.
_RANDOM = re.compile(
  r'Random(?!Dataset)|Multinomial|TruncatedNormal|NonDeterministic|CandidateSampler|'
  r'SampleDistorted|^Rng|^Stateful(?!Partitioned)'
)
_STATELESS = re.compile(r'^Stateless')
_LOOPS = ('While', 'StatelessWhile', 'LoopCond')  # The last one in graphs as of old.
_ERROR = re.compile(r'^\s*\w*(?:Error|Exception): (.*)', re.DOTALL | re.MULTILINE)


def random_operations(training: training_lib.LocalTraining) -> list[str]:
  """Names of operations in a step of local training that draw random numbers anew."""
  return sorted(
    {
      name
      for name, operation in _operations(training)
      if _RANDOM.search(operation) and not _STATELESS.search(operation)
    }
  )


def loops(training: training_lib.LocalTraining) -> list[str]:
  """Names of loops in a step of local training, such as those of recurrent layers."""
  return sorted({name for name, each in _operations(training) if each in _LOOPS})


# A run asks three times, and making the graph takes most of a second. What is known of
# a training does not keep its model, nor the graphs that this is part of.
_KNOWN: 'weakref.WeakKeyDictionary[training_lib.LocalTraining, Any]' = (
  weakref.WeakKeyDictionary()
)


def _operations(training: training_lib.LocalTraining) -> list[tuple[str, str]]:
  """Names and operations of a step's graph, those of its functions among them."""
  known: Optional[list[tuple[str, str]]] = _KNOWN.get(training)
  if known is None:
    known = _KNOWN[training] = _found(training)
  return known


def _found(training: training_lib.LocalTraining) -> list[tuple[str, str]]:
  with tf.Graph().as_default() as graph:
    _make_step(training)
  definition = graph.as_graph_def()
  nodes = [
    *definition.node,
    *(node for function in definition.library.function for node in function.node_def),
  ]
  return [(node.name, node.op) for node in nodes]


def refuse_random_models(training: training_lib.LocalTraining) -> None:
  """Refuses models whose rounds could not be run again to the same result."""
  names = random_operations(training)
  if names:
    raise ValueError(
      f'the model draws random numbers anew in each execution ({", ".join(names)}), as '
      'tf.keras.layers.Dropout does. A round that is run again after a stop would '
      'release another sum with the same noise, so the run could never go on. Leave '
      'such layers out, or draw with tf.random.stateless_... or '
      'tf.nn.experimental.stateless_dropout and a seed made of weights and batch; '
      'docs/training.md has an example.'
    )


def _make_step(training: training_lib.LocalTraining) -> None:
  batch = tf.nest.map_structure(
    lambda spec: tf.compat.v1.placeholder(spec.dtype, spec.shape),
    training.model.input_spec,
  )
  weights = training_lib.Weights(
    *(
      tuple(tf.constant(each) for each in tf.nest.flatten(kind))
      for kind in training.model.initial_weights
    )
  )
  initial = training_lib.initial_state(training, weights)
  try:
    training_lib.train_step(training, weights, initial, batch)
  except Exception as e:  # Whatever a user's model raises.
    raise ValueError(_why(e, batch)) from e


def _why(error: Exception, batch: Any) -> str:
  found = _ERROR.findall(str(error))
  text = found[-1].strip() if found else str(error)
  if isinstance(error, AttributeError) and 'assign' in text:
    return (
      'a layer of the model changes weights of its own while it trains, such as the '
      'averages of batch normalisation. That is not part of the update that is clipped '
      f'and noised. Use a layer without it, such as GroupNormalization. ({text})'
    )
  given = ', '.join(
    f'{each.dtype.name}{each.shape.as_list()}' for each in tf.nest.flatten(batch)
  )
  return (
    f'model, loss and local.optimizer do not go together, or not with batches of '
    f'{given}: {type(error).__name__}: {text}'
  )
