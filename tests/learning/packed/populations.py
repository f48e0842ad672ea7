"""A small population of clients with 1 to 9 examples each, and models for it."""

import collections

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tff_dp_aggregators import learning
from tff_dp_aggregators.learning import local_order
from tff_dp_aggregators.learning import packed

NUM_FEATURES, NUM_CLASSES = 3, 4
SPEC = collections.OrderedDict(
  x=tf.TensorSpec([None, NUM_FEATURES], tf.float32), y=tf.TensorSpec([None], tf.int32)
)


class Population:
  """A population of clients with 1 to 9 examples."""

  def __init__(self, num_clients=12, seed=0):
    self._rng_seed = seed
    self._num_clients = num_clients

  def __len__(self):
    return self._num_clients

  def examples(self, number):
    rng = np.random.default_rng([self._rng_seed, number])
    size = 1 + (5 * number) % 9
    x = rng.normal(size=[size, NUM_FEATURES]).astype(np.float32)
    y = rng.integers(NUM_CLASSES, size=size).astype(np.int32)
    return collections.OrderedDict(x=x, y=y)

  def dataset(self, number, key, batch_size, local_epochs):
    """Returns a client's batches of a round, in the order of `local_order`."""
    examples = self.examples(number)
    size = len(examples['y'])
    order = np.concatenate(
      [local_order.permutation(key, size, epoch) for epoch in range(local_epochs)]
    )
    in_order = {name: feature[order] for name, feature in examples.items()}
    return tf.data.Dataset.from_tensor_slices(collections.OrderedDict(in_order)).batch(
      batch_size
    )


class NonFinite(Population):
  """A population in which the update of client 3 is not finite."""

  def examples(self, number):
    examples = super().examples(number)
    if number == 3:
      examples['x'][0] = 3e38  # Finite, but the update is not.
    return examples


@pytest.fixture(scope='module', autouse=True)
def local_runtime():
  """Starts TFF's local runtime for all tests of a file that imports this fixture."""
  with learning.runtime.local_runtime():
    yield


@pytest.fixture(scope='module')
def data(tmp_path_factory):
  """Returns a population that is laid out on disk."""
  directory = tmp_path_factory.mktemp('packed') / 'data'
  return packed.lay_out(Population(), str(directory))


def model(weighted=True, metrics=False, units=0):
  """Returns softmax regression, or a perceptron.

  Args:
    weighted: Whether the loss uses sample weights.
    metrics: Whether the model has accuracy as a metric.
    units: Units of a hidden layer; 0 for none.
  """
  rng = np.random.default_rng(5)

  @tf.function
  def predict(weights, x, training):
    del training
    (*hidden, kernel, bias), _ = weights
    for each in hidden:
      x = tf.nn.relu(x @ each)
    return x @ kernel + bias

  @tf.function
  def loss(output, label, sample_weight=None):
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=label, logits=output)
    if sample_weight is not None and weighted:
      losses *= sample_weight
    return tf.reduce_mean(losses)

  kwargs = {}
  if metrics:
    kwargs['metrics_fns'] = tff.learning.metrics.create_functional_metric_fns(
      lambda: collections.OrderedDict(
        accuracy=tf.keras.metrics.SparseCategoricalAccuracy()
      )
    )
  sizes = [NUM_FEATURES, *[units] * bool(units), NUM_CLASSES]
  kernels = [
    rng.normal(size=shape).astype(np.float32) for shape in zip(sizes, sizes[1:])
  ]
  return tff.learning.models.FunctionalModel(
    initial_weights=((*kernels, np.zeros(NUM_CLASSES, np.float32)), ()),
    predict_on_batch_fn=predict,
    loss_fn=loss,
    input_spec=SPEC,
    **kwargs,
  )


def simulation(data, aggregator, of_model=None, **kwargs):
  """Returns a simulation with batches of four, and two packs unless stated."""
  training = packed.LocalTraining(
    of_model or model(), tff.learning.optimizers.build_sgdm(0.1), batch_size=4
  )
  kwargs = {
    'num_packs': 2,
    'server_optimizer': tff.learning.optimizers.build_sgdm(1.0),
    **kwargs,
  }
  return packed.PackedFedAvg(training, aggregator, data, **kwargs)


def cohort_and_keys(cohort_size=5):
  """Returns the first clients, and the keys of the order of their examples."""
  clients = np.arange(cohort_size)
  return clients, local_order.keys(9, 0, clients)


def flat(state):
  """Returns all weights of a state's model in one vector."""
  weights = tf.nest.flatten(state.global_model_weights)
  return np.concatenate([np.ravel(each) for each in weights])


def steps(simulation, rounds):
  """Returns the model's change in each round, all with the same clients."""
  state = simulation.initialize()
  weights = [flat(state)]
  for _ in range(rounds):
    state, _ = simulation.next(state, *cohort_and_keys())
    weights.append(flat(state))
  return np.diff(weights, axis=0)
