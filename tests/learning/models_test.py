"""What does not fit a model is named before anything is computed."""

import numpy as np
import pytest
import tensorflow as tf

from tests.learning import training_runs
from tff_dp_aggregators.learning import models

_SPEC = (tf.TensorSpec([2]), tf.TensorSpec([], tf.int32))


def _keras(layers=(), loss=None):
  model = tf.keras.Sequential(
    [
      tf.keras.layers.Dense(3, input_shape=[2], activation='softmax', name='dense'),
      *layers,
    ]
  )
  if loss is not None:
    model.compile('sgd', loss)
  return model


def _loss_of(functional):
  outputs = np.float32([[0.2, 0.3, 0.5], [0.1, 0.8, 0.1]])
  return float(functional.loss(tf.constant(outputs), tf.constant([2, 0])))


@pytest.mark.parametrize(
  ('model', 'loss'),
  [
    (_keras, 'sparse_categorical_crossentropy'),
    (lambda: _keras(loss='sparse_categorical_crossentropy'), None),
    (_keras(loss=tf.keras.losses.SparseCategoricalCrossentropy()), None),
  ],
)
def test_a_loss_is_given_named_or_compiled(model, loss):
  functional = models.functional(model, loss, _SPEC)
  assert _loss_of(functional) == pytest.approx(-np.log([0.5, 0.1]).mean(), rel=1e-5)
  with tf.Graph().as_default():
    weights = tf.nest.map_structure(tf.constant, functional.initial_weights)
    output = functional.predict_on_batch(weights, tf.zeros([4, 2]), training=True)
  assert output.shape.as_list() == [4, 3]


@pytest.mark.parametrize(
  ('loss', 'error', 'match'),
  [
    (None, ValueError, 'needs a loss.*not compiled'),
    ('crossentropie', ValueError, 'loss must be .*crossentropie'),
    (0.5, TypeError, 'loss must be a tf.keras.losses.Loss'),
    (
      tf.keras.losses.MeanSquaredError(reduction='none'),
      ValueError,
      'reduction none',
    ),
  ],
)
def test_other_losses_are_refused(loss, error, match):
  with pytest.raises(error, match=match):
    models.functional(_keras, loss, _SPEC)


@pytest.mark.parametrize('name', ['mse', 'kl_divergence'])
def test_names_of_losses_are_those_of_keras(name):
  functional = models.functional(_keras, name, (tf.TensorSpec([2]), tf.TensorSpec([3])))
  one, other = tf.constant([[0.2, 0.8]]), tf.constant([[0.5, 0.5]])
  expected = tf.reduce_mean(tf.keras.losses.get(name)(other, one))
  assert float(functional.loss(one, other)) == pytest.approx(float(expected))


_BATCHES = (tf.TensorSpec([4, 2]), tf.TensorSpec([4], tf.int32))
_NARROW = {'x': tf.TensorSpec([1]), 'y': tf.TensorSpec([], tf.int32)}


@pytest.mark.parametrize(
  ('spec', 'match'),
  [
    (
      {'features': _SPEC[0], 'label': _SPEC[1]},
      "client 'a' has arrays features, label; a model needs .* x and y",
    ),
    (_SPEC[0], 'one array'),
    ((*_SPEC, _SPEC[1]), 'a tuple of 3'),
    (
      _NARROW,
      r"client 'a' gives x of shape \[1\] .* the model takes \[2\]. Reshape",
    ),
    (_BATCHES, r'x of shape \[4, 2\] .* takes \[2\]. .* not batched'),
  ],
)
def test_examples_of_another_kind_are_refused(spec, match):
  with pytest.raises(ValueError, match=match):
    models.functional(_keras, 'sparse_categorical_crossentropy', spec, "client 'a'")


def test_keras_models_need_clients_that_say_what_their_inputs_are():
  with pytest.raises(ValueError, match='packed.PackedData, which do not say'):
    models.functional(_keras, 'mse', None)


def test_functional_models_whose_weights_are_named_are_refused():
  named = models.with_loss(training_runs.model(), None)
  named._initial_weights = ({'kernel': np.zeros([2, 1], np.float32)}, ())
  with pytest.raises(ValueError, match='weights of the functional model are a struc'):
    models.functional(named, None, None)
