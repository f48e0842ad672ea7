"""Handwritten digits: logistic regression that trains in some 15 seconds.

The data are scikit-learn's, which ship with the package: 1,797 images of 8 x 8 pixels
in 10 classes.
"""

import collections
from typing import Any

import numpy as np

from experiments.tasks import population
from experiments.tasks import task

_NUM_FEATURES = 64
_NUM_CLASSES = 10
_NUM_IMAGES = 1797
_NUM_TEST_IMAGES = 359  # A fifth.


def load(num_clients: int, dirichlet_alpha: float, seed: int) -> population.Population:
  """Handwritten digits, split over clients with label skew.

  Args:
    num_clients: Size of the population; at most one for each training image.
    dirichlet_alpha: Each client's label distribution is drawn from a symmetric
      Dirichlet with this parameter (arXiv:1909.06335); small is more skewed.
    seed: Of the split into clients and test data.

  Raises:
    ValueError: If there are more clients than training images.
  """
  import sklearn.datasets  # Takes a second; flags are checked without it.

  inputs, labels = sklearn.datasets.load_digits(return_X_y=True)
  inputs = (inputs / 16.0).astype(np.float32)
  labels = labels.astype(np.int32)
  rng = np.random.default_rng([seed, 0])
  order = rng.permutation(len(labels))
  test, train = order[:_NUM_TEST_IMAGES], order[_NUM_TEST_IMAGES:]
  parts = population.split_with_label_skew(
    labels[train], num_clients, dirichlet_alpha, rng
  )
  return population.Population(
    client_examples=[(inputs[train[part]], labels[train[part]]) for part in parts],
    test_examples=(inputs[test], labels[test]),
  )


def model() -> Any:
  """Multinomial logistic regression that starts at zero, for TFF."""
  # Flags are checked without them.
  import tensorflow as tf
  import tensorflow_federated as tff

  @tf.function
  def predict_on_batch(model_weights, x, training):
    del training
    weights, bias = model_weights[0]
    return tf.matmul(x, weights) + bias

  @tf.function
  def loss_fn(output, label, sample_weight=None):
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=label, logits=output)
    if sample_weight is not None:
      losses *= sample_weight
    return tf.reduce_mean(losses)

  trainable = (
    np.zeros((_NUM_FEATURES, _NUM_CLASSES), np.float32),
    np.zeros(_NUM_CLASSES, np.float32),
  )
  return tff.learning.models.FunctionalModel(
    initial_weights=(trainable, ()),
    predict_on_batch_fn=predict_on_batch,
    loss_fn=loss_fn,
    input_spec=collections.OrderedDict(
      x=tf.TensorSpec([None, _NUM_FEATURES], tf.float32),
      y=tf.TensorSpec([None], tf.int32),
    ),
  )


def _accuracy(outputs: np.ndarray, labels: np.ndarray) -> float:
  return float(np.mean(np.argmax(outputs, axis=1) == labels))


TASK = task.Task(
  name='digits',
  summary='logistic regression on handwritten digits, which shows in some 15 seconds '
  'what privacy costs',
  max_clients=_NUM_IMAGES - _NUM_TEST_IMAGES,
  load=load,
  model=model,
  metric=task.Metric('accuracy', _accuracy, limits=(0.0, 1.0)),
  defaults=task.Defaults(
    num_rounds=100,
    num_clients=300,
    clients_per_round=30,
    min_separation=10,
    clip_norm=1.0,
    batch_size=5,
    local_epochs=1,
    client_learning_rate=0.5,
    server_learning_rate=0.2,
  ),
)
