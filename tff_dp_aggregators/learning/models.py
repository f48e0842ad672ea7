"""Models as training takes them: functional ones."""

from collections.abc import Iterator, Mapping
from typing import Any, Callable, Optional, Union

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_dp_aggregators.learning import examples

# As Keras takes it.
Loss = Union[str, tf.keras.losses.Loss]


def functional(
  model: Any,
  loss: Optional[Loss],
  element_spec: Any,
  owner: str = 'the first client',
) -> tff.learning.models.FunctionalModel:
  """A model as a functional one, if clients' examples are what it takes.

  Args:
    model: A `tff.learning.models.FunctionalModel`; or a Keras model or a function that
      makes one, which `tff.learning.models.functional_model_from_keras` takes: without
      batch normalisation.
    loss: The loss of a Keras model, or its name; `None` for the one that it was
      compiled with. A functional model has its own.
    element_spec: Structure of `tf.TensorSpec` of one example, inputs and labels; `None`
      if it is not known, for functional models.
    owner: Whose that is, for messages.

  Raises:
    TypeError: If it is none of these.
    ValueError: If a Keras model comes without a loss, or a functional one with one; if
      the examples are not what it takes; or if a layer changes weights by itself.
  """
  if isinstance(model, tff.learning.models.FunctionalModel):
    if loss is not None:
      raise ValueError('loss is for Keras models; a functional model has its own.')
    if element_spec is not None:
      examples.check(element_spec, _of_one(model.input_spec), owner)
    return model
  if not isinstance(model, tf.keras.Model) and not callable(model):
    raise TypeError(
      'model must be a tff.learning.models.FunctionalModel, a Keras model, or a '
      f'function that makes one; got {type(model).__name__}.'
    )
  if element_spec is None:
    raise ValueError(
      'clients are packed.PackedData, which do not say what are inputs and labels: '
      'give a tff.learning.models.FunctionalModel, such as that of '
      'tff.learning.models.functional_model_from_keras.'
    )
  made = model if isinstance(model, tf.keras.Model) else _made_by(model)
  _check_layers(made)
  examples.inputs_and_labels(element_spec, owner)
  _check_inputs(made, element_spec, owner)
  input_spec = tf.nest.map_structure(
    lambda spec: tf.TensorSpec([None, *spec.shape], spec.dtype), element_spec
  )
  if getattr(made, 'optimizer', None) is not None:
    model = made  # A function would make the optimizer's variables as well.
  checked_loss = _checked_loss(loss, made)
  if model is made:
    # What is converted is no model any more afterwards.
    made = tf.keras.models.clone_model(made)
    made.set_weights(model.get_weights())
  converted = tff.learning.models.functional_model_from_keras(
    model, checked_loss, input_spec
  )
  converted.keras_model = made
  return converted


def keras_model_of(model: Any) -> Optional[tf.keras.Model]:
  """The Keras model that a functional one was made of; `None` if it was of none.

  Args:
    model: Such as `functional` makes it.
  """
  found = getattr(model, 'keras_model', None)
  return found if isinstance(found, tf.keras.Model) else None


def weight_names(model: Any) -> tuple[str, ...]:
  """Names of a model's trainable weights, for the parts of joint mechanisms.

  They are the paths in the structure of `initial_weights`, with a slash between keys,
  names of fields and places in a sequence: '0', '1' and so on of a Keras model, in the
  order of its `trainable_variables`.

  Args:
    model: What `learning.train` takes: a Keras model, a function that makes one, or a
      `tff.learning.models.FunctionalModel`.

  Returns:
    In the order of `tf.nest.flatten`.

  Raises:
    TypeError: If it is none of these.

  Example:
    >>> weights = {
    ...   'embedding': np.zeros([5, 2]),
    ...   'out': (np.zeros([2, 1]), np.zeros(1)),
    ... }
    >>> model = tff.learning.models.FunctionalModel(
    ...   initial_weights=(weights, ()),
    ...   predict_on_batch_fn=tf.function(lambda weights, x, training: x),
    ...   loss_fn=tf.function(lambda output, label, sample_weight=None: 0.0),
    ...   input_spec=(tf.TensorSpec([None]), tf.TensorSpec([None])),
    ... )
    >>> weight_names(model)
    ('embedding', 'out/0', 'out/1')
  """
  if isinstance(model, tff.learning.models.FunctionalModel):
    trainable, _ = model.initial_weights
    return tuple(name for name, _ in _paths(trainable, ''))
  if not callable(model):
    raise TypeError(
      'model must be a Keras model, a function that makes one, or a '
      f'tff.learning.models.FunctionalModel; got {type(model).__name__}.'
    )
  made = model if isinstance(model, tf.keras.Model) else _made_by(model)
  return tuple(str(number) for number in range(len(made.trainable_variables)))


def weight_shapes(model: tff.learning.models.FunctionalModel) -> dict[str, list[int]]:
  """The shapes of a model's trainable weights by name, in the order of the names."""
  trainable, _ = model.initial_weights
  return {name: list(np.shape(weight)) for name, weight in _paths(trainable, '')}


def weights_in_words(model: tff.learning.models.FunctionalModel) -> list[str]:
  """The names of a model's trainable weights with their shapes, for messages."""
  return [f'{name} {shape}' for name, shape in weight_shapes(model).items()]


def _paths(weights: Any, path: str) -> Iterator[tuple[str, Any]]:
  """Weights by path, in the order of `tf.nest.flatten`."""
  if isinstance(weights, Mapping):
    parts = [(key, weights[key]) for key in sorted(weights)]
  elif isinstance(weights, (list, tuple)):
    keys = getattr(weights, '_fields', range(len(weights)))
    parts = list(zip(keys, weights))
  else:
    yield path, weights
    return
  for key, each in parts:
    yield from _paths(each, f'{path}/{key}' if path else f'{key}')


def _of_one(input_spec: Any) -> Any:
  return tf.nest.map_structure(
    lambda spec: tf.TensorSpec(spec.shape[1:], spec.dtype), input_spec
  )


def _made_by(function: Callable[[], Any]) -> tf.keras.Model:
  made = function()
  if not isinstance(made, tf.keras.Model):
    raise TypeError(
      'model is a function, which must make a Keras model; it made '
      f'{type(made).__name__}. A tff.learning.models.FunctionalModel is given as it is.'
    )
  return made


def _check_layers(model: tf.keras.Model) -> None:
  kinds = (
    tf.keras.layers.BatchNormalization,
    tf.keras.layers.experimental.SyncBatchNormalization,
  )
  for layer in model.submodules:
    if isinstance(layer, kinds):
      raise ValueError(
        f'the model has the batch normalisation {layer.name!r}: it averages what '
        'clients have outside of their updates, where no noise is added. Use '
        'tf.keras.layers.GroupNormalization or LayerNormalization.'
      )


def _check_inputs(model: tf.keras.Model, element_spec: Any, owner: str) -> None:
  """Compares the input with that of a model that says what it takes, and has one."""
  inputs = getattr(model, 'inputs', None)
  x, y = examples.inputs_and_labels(element_spec, owner)
  if inputs and len(inputs) == 1 and isinstance(x, tf.TensorSpec):
    wanted = tf.TensorSpec(inputs[0].shape[1:], x.dtype)  # Keras converts dtypes.
    examples.check((x, y), (wanted, y), owner)


def _checked_loss(loss: Optional[Loss], model: tf.keras.Model) -> tf.keras.losses.Loss:
  if loss is None:
    loss = getattr(model, 'loss', None)
  if loss is None:
    raise ValueError(
      'a Keras model needs a loss, such as tf.keras.losses.MeanSquaredError(): none is '
      'given, and the model is not compiled with one.'
    )
  if isinstance(loss, str):
    loss = _named(loss)
  if not isinstance(loss, tf.keras.losses.Loss):
    raise TypeError(
      'loss must be a tf.keras.losses.Loss, such as '
      'tf.keras.losses.MeanSquaredError(), or its name; got '
      f'{getattr(loss, "__name__", loss)!r}.'
    )
  return loss


def _named(name: str) -> tf.keras.losses.Loss:
  """The loss that Keras calls so, which may be a function that is one of examples."""
  try:
    found = tf.keras.losses.get(name)
  except ValueError as e:
    raise ValueError(
      f'loss={name!r} is no loss that tf.keras.losses.get knows; give one of '
      'tf.keras.losses, such as tf.keras.losses.MeanSquaredError().'
    ) from e
  if isinstance(found, tf.keras.losses.Loss):
    return found
  classes = {
    key.lower(): each
    for key, each in vars(tf.keras.losses).items()
    if isinstance(each, type) and issubclass(each, tf.keras.losses.Loss)
  }
  key = found.__name__.replace('_', '')
  return classes[key]() if key in classes else found
