"""Makes a functional model of weights, a prediction and a loss."""

import collections
from collections.abc import Sequence
from typing import Any, Callable, Optional

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from ... import losses
from ...data import population


def functional(
  shape: population.Shape,
  loss: Optional[str],
  weights: Sequence[np.ndarray],
  predict: Callable[[Sequence[Any], Any], Any],
) -> tff.learning.models.FunctionalModel:
  """A functional model.

  Args:
    shape: What examples are like.
    loss: Name of the loss; `None` for the one that goes with the labels.
    weights: The initial ones, all of which are trained.
    predict: Outputs for weights and a batch of inputs: a number for each class or
      token, or one for each number that is a label.
  """

  @tf.function
  def predict_on_batch(model_weights: Any, x: Any, training: bool) -> Any:
    del training
    return predict(model_weights[0], x)

  return tff.learning.models.FunctionalModel(
    initial_weights=(tuple(weights), ()),
    predict_on_batch_fn=predict_on_batch,
    loss_fn=tf.function(losses.function(shape, loss)),
    input_spec=input_spec(shape),
  )


def input_spec(shape: population.Shape) -> Any:
  """The `input_spec` of models for such examples."""
  label_dtype = tf.float32 if shape.label_kind == 'number' else tf.int32
  return collections.OrderedDict(
    x=tf.TensorSpec([None, *shape.inputs], tf.as_dtype(shape.input_dtype)),
    y=tf.TensorSpec([None, *shape.labels], label_dtype),
  )
