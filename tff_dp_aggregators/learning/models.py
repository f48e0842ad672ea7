"""Models as training takes them: functional ones."""

import copy
from collections.abc import Mapping
from typing import Any, Optional

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff
from tensorflow.python.util import nest

from tff_dp_aggregators.learning import examples
from tff_dp_aggregators.learning import keras_models

# As Keras takes it: one, its name, or a function of labels and outputs; for several
# outputs also a list or a mapping of these.
Loss = Any


def functional(
  model: Any,
  loss: Optional[Loss],
  element_spec: Any,
  owner: str = 'the first client',
  seed: int = 0,
) -> tff.learning.models.FunctionalModel:
  """A model as a functional one, if clients' examples are what it takes.

  `loss`: That of a Keras model; `None` for the one that it was compiled with.
  `element_spec`: Structure of `tf.TensorSpec` of one example; `None` if not known.
  """
  if isinstance(model, tff.learning.models.FunctionalModel):
    if loss is not None:
      raise ValueError('loss is for Keras models; a functional model has its own.')
    for weights in model.initial_weights:
      is_flat = isinstance(weights, (list, tuple))
      if not is_flat or any(map(tf.nest.is_nested, weights)):
        raise ValueError(
          'the weights of the functional model are a structure; training takes '
          'models whose trainable and other weights are each a tuple of arrays.'
        )
    if element_spec is not None:
      of_one = tf.nest.map_structure(
        lambda spec: tf.TensorSpec(spec.shape[1:], spec.dtype), model.input_spec
      )
      examples.check(element_spec, of_one, owner)
    return model
  _check_kind(model)
  if element_spec is None:
    raise ValueError(
      'clients are packed.PackedData, which do not say what are inputs and labels: '
      'give a tff.learning.models.FunctionalModel, such as learning.models.functional '
      'makes of a Keras model.'
    )
  examples.inputs_and_labels(element_spec, owner)
  input_spec = tf.nest.map_structure(
    lambda spec: tf.TensorSpec([None, *spec.shape], spec.dtype), element_spec
  )
  x, _ = examples.pair(input_spec)
  made = keras_models.make(model, x, seed, owner)
  _check_inputs(made, element_spec, owner)
  return keras_models.KerasFunctionalModel(made, loss, input_spec)


def with_loss(
  model: tff.learning.models.FunctionalModel, loss: Any
) -> tff.learning.models.FunctionalModel:
  """The model with another loss."""
  made = copy.copy(model)
  made._loss_fn = loss
  return made


def keras_model_of(model: Any) -> Optional[tf.keras.Model]:
  """The Keras model that a functional one was made of; `None` if it was of none."""
  is_of_keras = isinstance(model, keras_models.KerasFunctionalModel)
  return model.keras_model if is_of_keras else None


def weight_names(model: Any) -> tuple[str, ...]:
  """Names of a model's trainable weights, for the parts of joint mechanisms.

  For a Keras model they are number and name, such as '0 dense/kernel:0', in the order
  of its `trainable_variables`; a pattern may be for both, or for either. Else they are
  the paths in the structure of `initial_weights`, with a slash between keys, names of
  fields and places in a sequence.

  Args:
    model: What `learning.train` takes: a Keras model, a function that makes one, or a
      `tff.learning.models.FunctionalModel`.

  Returns:
    In the order of `tf.nest.flatten`.

  Raises:
    TypeError: If it is none of these.
    ValueError: If a Keras model has no weights until it is called.

  Example:
    >>> weight_names(
    ...   lambda: tf.keras.Sequential([tf.keras.layers.Dense(1, input_shape=[2])])
    ... )
    ('0 dense/kernel:0', '1 dense/bias:0')
  """
  if isinstance(model, keras_models.KerasFunctionalModel):
    return model.weight_names
  if isinstance(model, tff.learning.models.FunctionalModel):
    trainable, _ = model.initial_weights
    return tuple(path for path, _ in nest.flatten_with_joined_string_paths(trainable))
  _check_kind(model)
  return keras_models.names_of_weights(keras_models.make(model, None, seed=0))


def weight_shapes(model: tff.learning.models.FunctionalModel) -> dict[str, list[int]]:
  """The shapes of a model's trainable weights by name, in the order of the names."""
  flat = tf.nest.flatten(model.initial_weights[0])
  shapes = [list(np.shape(weight)) for weight in flat]
  return dict(zip(weight_names(model), shapes))


def weights_in_words(model: tff.learning.models.FunctionalModel) -> list[str]:
  """The names of a model's trainable weights with their shapes, for messages."""
  return [f'{name} {shape}' for name, shape in weight_shapes(model).items()]


def _check_kind(model: Any) -> None:
  if isinstance(model, tf.keras.Model):
    return
  if isinstance(model, tf.keras.layers.Layer) or not callable(model):
    raise TypeError(
      'model must be a tff.learning.models.FunctionalModel, a Keras model, or a '
      f'function that makes one; got {type(model).__name__}. A layer becomes a model '
      'by tf.keras.Sequential([layer]).'
    )


def _check_inputs(model: tf.keras.Model, element_spec: Any, owner: str) -> None:
  """Compares inputs with those of a model that says what it takes."""
  known = getattr(model, 'inputs', None)
  if not known:
    return
  x, y = examples.pair(element_spec)
  names = getattr(model, 'input_names', [])
  if isinstance(x, Mapping) and set(x) == set(names):
    given = [x[name] for name in names]
  else:
    given = tf.nest.flatten(x)
  if len(given) != len(known):
    raise ValueError(
      f'{owner} gives {len(given)} inputs, the model takes {len(known)}: '
      f'{", ".join(names)}.'
    )
  wanted = [  # Keras converts dtypes.
    tf.TensorSpec(one.shape[1:], other.dtype) for one, other in zip(known, given)
  ]
  examples.check((given, y), (wanted, y), owner)
