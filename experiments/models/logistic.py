"""Logistic regression, which starts at zero."""

import collections
from typing import Any, Optional

import numpy as np

from ..data import population
from . import kind


def why_not(shape: population.Shape) -> Optional[str]:
  """Why it is not for such examples; `None` if it is."""
  if shape.label_kind != 'class':
    return 'its labels are classes'
  if shape.input_dtype != 'float32':
    return 'its inputs are numbers'
  return None


def build(shape: population.Shape) -> Any:
  """Multinomial logistic regression that starts at zero, for TFF."""
  # Flags are checked without them.
  import tensorflow as tf
  import tensorflow_federated as tff

  num_features = int(np.prod(shape.inputs))
  assert shape.num_classes is not None

  @tf.function
  def predict_on_batch(model_weights, x, training):
    del training
    weights, bias = model_weights[0]
    return tf.matmul(tf.reshape(x, [-1, num_features]), weights) + bias

  @tf.function
  def loss_fn(output, label, sample_weight=None):
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=label, logits=output)
    if sample_weight is not None:
      losses *= sample_weight
    return tf.reduce_mean(losses)

  trainable = (
    np.zeros((num_features, shape.num_classes), np.float32),
    np.zeros(shape.num_classes, np.float32),
  )
  return tff.learning.models.FunctionalModel(
    initial_weights=(trainable, ()),
    predict_on_batch_fn=predict_on_batch,
    loss_fn=loss_fn,
    input_spec=collections.OrderedDict(
      x=tf.TensorSpec([None, *shape.inputs], tf.float32),
      y=tf.TensorSpec([None], tf.int32),
    ),
  )


KIND = kind.Kind('logistic', 'logistic regression', why_not, build)
