"""A task loaded: its population and its model, as TensorFlow works with them."""

import collections
import dataclasses

import tensorflow as tf
import tensorflow_federated as tff

from experiments.tasks import population as population_lib
from experiments.tasks import task as task_lib


@dataclasses.dataclass(frozen=True)
class Federation:
  """What a simulation trains.

  Attributes:
    population: Clients' and test data.
    model: A functional model whose loss is that of a batch.
    metric: What is measured besides the loss.
  """

  population: population_lib.Population
  model: tff.learning.models.FunctionalModel
  metric: task_lib.Metric

  @classmethod
  def load(
    cls, task: task_lib.Task, num_clients: int, dirichlet_alpha: float, seed: int
  ) -> 'Federation':
    """Loads data and model of a task; numbers as for `Task.load`."""
    data = task.load(num_clients, dirichlet_alpha, seed)
    return cls(data, task.model(), task.metric)

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
    """Loss and metric of a model on the test data."""
    inputs, labels = self.population.test_examples
    model_weights = (tuple(weights.trainable), tuple(weights.non_trainable))
    outputs = self.model.predict_on_batch(model_weights, inputs, training=False)
    return {
      'loss': float(self.model.loss(outputs, labels)),
      self.metric.name: self.metric.measure(outputs.numpy(), labels),
    }
