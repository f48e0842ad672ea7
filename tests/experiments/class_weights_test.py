"""`--class_weights`: weights of classes in the loss."""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff
from sklearn.utils import class_weight

from experiments import losses
from experiments.data import population
from experiments.models import networks
from tests.experiments import simulations
from tests.experiments.data import own_data

WEIGHTS = (0.5, 4.0, 1.0)
SHAPE = population.Shape((2,), 'float32', (), 'class', 3, class_weights=WEIGHTS)
ROWS = [
  {'who': f'c{i % 20}', 'age': (37 * i) % 50, 'bought': 'yes' if i % 6 == 0 else 'no'}
  for i in range(400)
]
COLUMNS = {'client_column': 'who', 'label_column': 'bought'}


def _model(loss):
  @tf.function
  def predict(weights, x, training):
    return x

  return tff.learning.models.FunctionalModel(
    initial_weights=((np.zeros(1, np.float32),), ()),
    predict_on_batch_fn=predict,
    loss_fn=tf.function(loss),
    input_spec=networks.input_spec(SHAPE),
  )


def _keras(outputs, labels, sample_weight=None):
  loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
  return loss(labels, outputs, sample_weight)


@pytest.mark.parametrize('loss', [losses.function(SHAPE, None), _keras])
@pytest.mark.parametrize('weights', [None, [1.5, 1.5, 0.0], [0.0, 0.0, 0.0]])
def test_loss_of_example_is_multiplied_by_class_weight(loss, weights):
  logits = np.random.default_rng(1).normal(size=(3, 3)).astype(np.float32)
  labels = np.array([1, 0, 2], np.int32)
  exact = logits.astype(np.float64)
  each = np.log(np.exp(exact).sum(axis=1)) - exact[np.arange(3), labels]
  each *= np.take(WEIGHTS, labels)
  array = None if weights is None else np.array(weights, np.float32)
  expected = each.mean() if weights is None else each[:2].mean() * any(weights)
  model = losses.with_class_weights(_model(loss), WEIGHTS)
  assert float(model.loss(logits, labels, array)) == pytest.approx(expected, rel=1e-5)


def test_weighted_loss_matches_keras_class_weight():
  logits = np.random.default_rng(1).normal(size=(3, 3)).astype(np.float32)
  labels = np.array([1, 0, 2], np.int32)
  layer = tf.keras.layers.Dense(3, kernel_initializer='identity', input_shape=[3])
  of_keras = tf.keras.Sequential([layer])
  of_keras.compile(
    loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    optimizer=tf.keras.optimizers.SGD(0.0),
  )
  fitted = of_keras.fit(
    logits, labels, 3, class_weight=dict(enumerate(WEIGHTS)), verbose=0
  )
  loss = losses.with_class_weights(_model(losses.function(SHAPE, None)), WEIGHTS).loss
  expected = float(loss(logits, labels, None))
  assert fitted.history['loss'] == [pytest.approx(expected, rel=1e-5)]


@pytest.mark.parametrize(
  ('loss', 'message'),
  [
    (
      lambda outputs, labels, sample_weight=None: tf.reduce_mean(
        tf.nn.sparse_softmax_cross_entropy_with_logits(labels, outputs)
      ),
      'ignores sample_weight',
    ),
    (lambda outputs, labels, sample_weight: sample_weight.no_such, 'no_such'),
  ],
)
def test_loss_without_sample_weight_is_refused(loss, message):
  with pytest.raises(ValueError, match=message):
    losses.with_class_weights(_model(loss), WEIGHTS)


def test_balanced_weights_are_computed_from_training_examples(tmp_path):
  path = own_data.write_csv(tmp_path / 'data.csv', ROWS)
  balanced = own_data.load(path, class_weights=('balanced',), **COLUMNS)
  clients, _ = own_data.everything(balanced)
  labels = np.array([row[-1] for rows in clients.values() for row in rows])
  assert len(labels) < len(ROWS)
  expected = class_weight.compute_class_weight(
    'balanced', classes=np.array([0, 1]), y=labels
  )
  np.testing.assert_allclose(balanced.shape.class_weights, expected, rtol=1e-12)
  assert balanced.facts['weights of classes'] == {
    'no': round(expected[0], 6),
    'yes': round(expected[1], 6),
  }
  assert any('weights of classes' in each for each in balanced.not_covered)
  named = own_data.load(path, class_weights=('yes:5',), **COLUMNS)
  assert named.shape.class_weights == (1.0, 5.0)
  assert not any('weights of classes' in each for each in named.not_covered)
  numbers = own_data.write_csv(
    tmp_path / 'numbers.csv', [{**row, 'bought': row['age'] % 3} for row in ROWS]
  )
  named = own_data.load(numbers, class_weights=('2.0:5', '0:1e-1'), **COLUMNS)
  assert named.shape.class_weights == (0.1, 1.0, 5.0)


@pytest.mark.parametrize(
  ('class_weights', 'label', 'message'),
  [
    (
      'perhaps:2',
      '--label_column=bought',
      "has 'perhaps:2'. Give --class_weights=balanced, or",
    ),
    ('yes:many', '--label_column=bought', "has 'yes:many'. Give"),
    (
      'yes:2,yes:3',
      '--label_column=bought',
      "has 'yes:3'. Give --class_weights=balanced, or class:weight once",
    ),
    ('balanced', '--label_column=age', '--class_weights is for labels of'),
    ('balanced', '--text_column=bought', '--class_weights does not go with text'),
    ('balanced', None, '--class_weights goes with --data'),
  ],
)
def test_invalid_class_weights_are_refused(class_weights, label, message, tmp_path):
  path = own_data.write_csv(tmp_path / 'data.csv', ROWS)
  data = (f'--data={path}', '--client_column=who', label)
  arguments = ('--task=digits',) if label is None else data
  error = simulations.refusal(*arguments, f'--class_weights={class_weights}')
  assert message in error
