"""The model that is trained by the benchmarks of training."""

from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff


def model(layers: tuple[int, ...]) -> tff.learning.models.FunctionalModel:
  """Returns a multilayer perceptron for classification.

  Args:
    layers: Inputs, units of each hidden layer, and classes.
  """
  rng = np.random.default_rng(0)
  weights = []
  for inputs, outputs in zip(layers, layers[1:]):
    weights.append(rng.normal(0, inputs**-0.5, (inputs, outputs)).astype(np.float32))
    weights.append(np.zeros(outputs, np.float32))

  @tf.function
  def predict_on_batch(model_weights: Any, x: Any, training: bool) -> Any:
    del training
    trainable, _ = model_weights
    for layer in range(0, len(trainable), 2):
      x = tf.matmul(x, trainable[layer]) + trainable[layer + 1]
      if layer + 2 < len(trainable):
        x = tf.nn.relu(x)
    return x

  @tf.function
  def loss(output: Any, label: Any, sample_weight: Any = None) -> Any:
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(label, output)
    if sample_weight is not None:
      losses *= sample_weight
    return tf.reduce_mean(losses)

  return tff.learning.models.FunctionalModel(
    initial_weights=(tuple(weights), ()),
    predict_on_batch_fn=predict_on_batch,
    loss_fn=loss,
    input_spec=(
      tf.TensorSpec([None, layers[0]], tf.float32),
      tf.TensorSpec([None], tf.int64),
    ),
  )
