"""Linear regression on two features: models and clients for tests of processes."""

import collections

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tests.learning import training_runs

SPEC = collections.OrderedDict(
  x=tf.TensorSpec([None, 2], tf.float32), y=tf.TensorSpec([None, 1], tf.float32)
)


def mean_output(output, label):
  """A loss whose gradient is the mean of the features, whatever the model."""
  del label
  return tf.reduce_mean(output)


def functional_model(error=None):
  """Returns the model with a bias of `training_runs`, whose inputs have names here."""
  model = training_runs.model(has_bias=True)

  @tf.function
  def loss(output, label, sample_weight=None):
    return (error or model.loss)(output, label)

  return tff.learning.models.FunctionalModel(
    initial_weights=model.initial_weights,
    predict_on_batch_fn=model.predict_on_batch,
    loss_fn=loss,
    input_spec=SPEC,
  )


def keras_model():
  layers = [tf.keras.layers.Dense(1, kernel_initializer='zeros', input_shape=[2])]
  return tff.learning.models.from_keras_model(
    tf.keras.Sequential(layers),
    loss=tf.keras.losses.MeanSquaredError(),
    input_spec=SPEC,
  )


def examples(seed, num_examples=8, factor=1.0):
  """Returns features and labels of a client, for kernel (1, -2) and bias 0.5."""
  rng = np.random.default_rng(seed)
  x = rng.normal(size=[num_examples, 2]).astype(np.float32)
  y = (x @ [[1.0], [-2.0]] + 0.5).astype(np.float32) * np.float32(factor)
  return collections.OrderedDict(x=x, y=y)


def client(seed, num_examples=8, factor=1.0):
  """Returns the data set of a client, in batches of 4."""
  columns = examples(seed, num_examples, factor)
  return tf.data.Dataset.from_tensor_slices(columns).batch(4)


def train(process, clients, num_rounds=3):
  """Runs rounds; returns the last output, and the model after it."""
  state = process.initialize()
  for _ in range(num_rounds):
    output = process.next(state, clients)
    state = output.state
  return output, process.get_model_weights(state)


def flat(weights):
  """Returns all numbers of a model in one vector."""
  return np.concatenate([np.ravel(tensor) for tensor in weights.trainable])
