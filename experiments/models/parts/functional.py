"""Makes a functional model of weights, a prediction and a loss."""

import collections
from collections.abc import Sequence
from typing import Any, Callable, Optional

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from ... import losses
from ...data import population
from .. import kind
from . import initial
from . import layers


def functional(
  shape: population.Shape,
  loss: Optional[str],
  weights: Sequence[np.ndarray],
  predict: Callable[[Sequence[Any], Any], Any],
) -> tff.learning.models.FunctionalModel:
  """A functional model.

  `shape`: What examples are like.
  `loss`: Name of the loss; `None` for the one that goes with the labels.
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


def one_layer(
  shape: population.Shape, options: kind.Options, embedding_size: int
) -> tff.learning.models.FunctionalModel:
  """A model of one layer of all features, whose outputs start at zero.

  `shape`: What examples are like.
  """
  num_codes, num_outputs = len(shape.embedded), shape.num_outputs
  num_features = kind.num_features(shape, embedding_size)
  kernel = initial.zeros(num_features, num_outputs)
  if num_codes:
    rng = initial.generator(options.seed)
    first = num_features - num_codes * embedding_size
    kernel[first:] = initial.glorot_uniform(rng, num_features - first, num_outputs)
  tables = initial.tables(shape.embedded, embedding_size)

  def predict(w: Any, x: Any) -> Any:
    return layers.dense(layers.features(x, w[:num_codes]), *w[num_codes:])

  weights = [*tables, kernel, initial.zeros(num_outputs)]
  return functional(shape, options.loss, weights, predict)


def input_spec(shape: population.Shape) -> Any:
  """The `input_spec` of models for such examples."""
  label_dtype = tf.float32 if shape.label_kind == 'number' else tf.int32
  return collections.OrderedDict(
    x=tf.TensorSpec([None, *shape.inputs], tf.as_dtype(shape.input_dtype)),
    y=tf.TensorSpec([None, *shape.labels], label_dtype),
  )
