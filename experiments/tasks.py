"""Tasks: a federated population, a model, and test data.

`digits` is scikit-learn's handwritten digits, which ship with the package: 1,797
images of 8 x 8 pixels. Nothing is downloaded.
"""

import collections
import dataclasses
from typing import Callable, Dict, List, Optional, Tuple

import numpy as np
import sklearn.datasets
import tensorflow as tf
import tensorflow_federated as tff

_TEST_FRACTION = 0.2


@dataclasses.dataclass(frozen=True)
class Task:
  """What a simulation trains.

  Attributes:
    name: As in `TASKS`.
    client_examples: Per client, its inputs and labels.
    test_examples: Held-out inputs and labels, of no client.
    model: A functional model whose loss is that of a batch.
  """

  name: str
  client_examples: List[Tuple[np.ndarray, np.ndarray]]
  test_examples: Tuple[np.ndarray, np.ndarray]
  model: tff.learning.models.FunctionalModel

  def client_dataset(
      self, client: int, batch_size: int, local_epochs: int, seed: int
  ) -> tf.data.Dataset:
    """One client's batches for one round, in an order that the seed decides."""
    inputs, labels = self.client_examples[client]
    dataset = tf.data.Dataset.from_tensor_slices(
        collections.OrderedDict(x=inputs, y=labels)
    )
    if len(labels) > 1:
      dataset = dataset.shuffle(len(labels), seed=seed)
    return dataset.repeat(local_epochs).batch(batch_size)

  def evaluate(self, weights: tff.learning.models.ModelWeights) -> Dict[str, float]:
    """Loss and accuracy of a model on the test data."""
    inputs, labels = self.test_examples
    model_weights = (tuple(weights.trainable), tuple(weights.non_trainable))
    logits = self.model.predict_on_batch(model_weights, inputs, training=False)
    accuracy = np.mean(np.argmax(logits.numpy(), axis=1) == labels)
    loss = self.model.loss(logits, labels)
    return {'loss': float(loss), 'accuracy': float(accuracy)}


def digits(num_clients: int, dirichlet_alpha: float, seed: int) -> Task:
  """Logistic regression on handwritten digits, split with label skew.

  Args:
    num_clients: Size of the population; at most one for each training image.
    dirichlet_alpha: Each client's label distribution is drawn from a symmetric
      Dirichlet with this parameter (arXiv:1909.06335); small is more skewed.
    seed: Of the split into clients and test data.

  Raises:
    ValueError: If there are more clients than training images.
  """
  inputs, labels = sklearn.datasets.load_digits(return_X_y=True)
  inputs = (inputs / 16.0).astype(np.float32)
  labels = labels.astype(np.int32)
  rng = np.random.default_rng([seed, 0])
  order = rng.permutation(len(labels))
  num_test = int(_TEST_FRACTION * len(labels))
  test, train = order[:num_test], order[num_test:]
  return Task(
      name='digits',
      client_examples=[
          (inputs[train[part]], labels[train[part]])
          for part in split_with_label_skew(
              labels[train], num_clients, dirichlet_alpha, rng
          )
      ],
      test_examples=(inputs[test], labels[test]),
      model=_logistic_regression(num_features=64, num_classes=10),
  )


def split_with_label_skew(
    labels: np.ndarray,
    num_clients: int,
    dirichlet_alpha: float,
    rng: np.random.Generator,
) -> List[np.ndarray]:
  """Deals examples out to clients of equal size and skewed label distributions.

  Each client draws a label distribution from a Dirichlet and then its examples, label
  by label from it, among those that are left. Every example is dealt out once.

  Args:
    labels: Class numbers, int of shape [num_examples].
    num_clients: Clients; sizes differ by at most one.
    dirichlet_alpha: Concentration; positive.
    rng: Source of randomness.

  Returns:
    For each client, the indices of its examples.

  Raises:
    ValueError: If there are more clients than examples, or alpha is not positive.
  """
  if not 1 <= num_clients <= len(labels):
    raise ValueError(
        f'num_clients must be between 1 and {len(labels)}, the number of training '
        f'examples; got {num_clients}.'
    )
  if not dirichlet_alpha > 0:
    raise ValueError(f'dirichlet_alpha must be positive; got {dirichlet_alpha}.')
  classes = np.unique(labels)
  pools = [list(rng.permutation(np.flatnonzero(labels == c))) for c in classes]
  sizes = np.full(num_clients, len(labels) // num_clients)
  sizes[: len(labels) % num_clients] += 1
  parts = []
  for size in sizes:
    wanted = rng.dirichlet(np.full(len(classes), dirichlet_alpha))
    part = []
    for _ in range(size):
      left = np.array([len(pool) > 0 for pool in pools])
      weights = np.where(left, wanted, 0.0)
      if weights.sum() <= 0:  # The client's labels are used up: any other.
        weights = left.astype(float)
      part.append(pools[rng.choice(len(classes), p=weights / weights.sum())].pop())
    parts.append(np.array(part))
  return parts


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


TASKS: Dict[str, Callable[[int, float, int], Task]] = {'digits': digits}
