"""Models as training takes them: functional ones."""

from typing import Any, Optional

import tensorflow as tf
import tensorflow_federated as tff


def functional(
  model: Any, loss: Optional[tf.keras.losses.Loss], element_spec: Any
) -> tff.learning.models.FunctionalModel:
  """A model as a functional one.

  Args:
    model: A `tff.learning.models.FunctionalModel`; or a Keras model or a function that
      makes one, which `tff.learning.models.functional_model_from_keras` takes: without
      batch normalisation.
    loss: The loss of a Keras model; a functional model has its own.
    element_spec: Structure of `tf.TensorSpec` of one example, inputs and labels.

  Raises:
    TypeError: If it is none of these.
    ValueError: If a Keras model comes without a loss, or a functional one with one.
  """
  if isinstance(model, tff.learning.models.FunctionalModel):
    if loss is not None:
      raise ValueError('loss is for Keras models; a functional model has its own.')
    return model
  if not isinstance(model, tf.keras.Model) and not callable(model):
    raise TypeError(
      'model must be a tff.learning.models.FunctionalModel, a Keras model, or a '
      f'function that makes one; got {type(model).__name__}.'
    )
  if loss is None:
    raise ValueError(
      'a Keras model needs a loss, such as tf.keras.losses.MeanSquaredError().'
    )
  input_spec = tf.nest.map_structure(
    lambda spec: tf.TensorSpec([None, *spec.shape], spec.dtype), element_spec
  )
  return tff.learning.models.functional_model_from_keras(model, loss, input_spec)
