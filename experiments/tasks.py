"""Tasks: a federated population and a model to train on it."""

import collections
import dataclasses
from typing import Callable

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from experiments import data


@dataclasses.dataclass(frozen=True)
class Task:
  """What a simulation trains.

  Attributes:
    population: Clients' and test data.
    model: A functional model whose loss is that of a batch.
  """

  population: data.Population
  model: tff.learning.models.FunctionalModel

  def client_dataset(
    self, client: int, batch_size: int, local_epochs: int, seed: int
  ) -> tf.data.Dataset:
    """One client's batches for one round, in an order that the seed decides."""
    inputs, labels = self.population.client_examples[client]
    dataset = tf.data.Dataset.from_tensor_slices(
      collections.OrderedDict(x=inputs, y=labels)
    )
    if len(labels) > 1:
      dataset = dataset.shuffle(len(labels), seed=seed)
    return dataset.repeat(local_epochs).batch(batch_size)

  def evaluate(self, weights: tff.learning.models.ModelWeights) -> dict[str, float]:
    """Loss and accuracy of a model on the test data."""
    inputs, labels = self.population.test_examples
    model_weights = (tuple(weights.trainable), tuple(weights.non_trainable))
    logits = self.model.predict_on_batch(model_weights, inputs, training=False)
    accuracy = np.mean(np.argmax(logits.numpy(), axis=1) == labels)
    loss = self.model.loss(logits, labels)
    return {'loss': float(loss), 'accuracy': float(accuracy)}


def digits(num_clients: int, dirichlet_alpha: float, seed: int) -> Task:
  """Logistic regression on handwritten digits; arguments as for `data.digits`."""
  population = data.digits(num_clients, dirichlet_alpha, seed)
  return Task(population, _logistic_regression(num_features=64, num_classes=10))


def _logistic_regression(
  num_features: int, num_classes: int
) -> tff.learning.models.FunctionalModel:
  """Multinomial logistic regression that starts at zero."""

  @tf.function
  def predict_on_batch(model_weights, x, training):
    del training
    weights, bias = model_weights[0]
    return tf.matmul(x, weights) + bias

  @tf.function
  def loss_fn(output, label, sample_weight=None):
    del sample_weight
    return tf.reduce_mean(
      tf.nn.sparse_softmax_cross_entropy_with_logits(labels=label, logits=output)
    )

  trainable = (
    np.zeros((num_features, num_classes), np.float32),
    np.zeros(num_classes, np.float32),
  )
  return tff.learning.models.FunctionalModel(
    initial_weights=(trainable, ()),
    predict_on_batch_fn=predict_on_batch,
    loss_fn=loss_fn,
    input_spec=collections.OrderedDict(
      x=tf.TensorSpec([None, num_features], tf.float32),
      y=tf.TensorSpec([None], tf.int32),
    ),
  )


TASKS: dict[str, Callable[[int, float, int], Task]] = {'digits': digits}
