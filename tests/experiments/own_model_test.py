"""Models of the user, Keras or functional, imported from the current directory.

Errors are refused before the training and name the model.
"""

import os
import sys

import numpy as np
import pytest
import tensorflow as tf

from experiments import metrics
from experiments.data import population
from experiments.models import own
from experiments.options import model as model_options
from tests.experiments import simulations

CLASSES = population.Shape((4,), 'float32', (), 'class', 3)
TOKENS = population.Shape((5,), 'int32', (5,), 'tokens', 7, ignored_labels=(0,))
_RUN = ('--num_rounds=2', '--mechanism=none', '--num_clients=60', '--min_separation=2')
_MODULE = """
import collections
import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

def keras():
  return tf.keras.Sequential([tf.keras.layers.Dense(3, input_shape=[4])])

def of_shape(shape):
  return tf.keras.Sequential(
    [tf.keras.layers.Dense(shape.num_classes, input_shape=shape.inputs)]
  )

def probabilities():
  layer = tf.keras.layers.Dense(3, activation='softmax', input_shape=[4])
  return tf.keras.Sequential([layer])

def wrong_outputs():
  return tf.keras.Sequential([tf.keras.layers.Dense(2, input_shape=[4])])

def wrong_inputs():
  return tf.keras.Sequential([tf.keras.layers.Dense(3, input_shape=[9])])

def normalised():
  model = keras()
  model.add(tf.keras.layers.BatchNormalization())
  return model

def ends():
  raise SystemExit('too\\nlittle')

def returns_nothing():
  pass

def tokens(shape):
  return tf.keras.Sequential([
    tf.keras.layers.Embedding(shape.num_classes, 3, input_length=5),
    tf.keras.layers.Dense(shape.num_classes),
  ])

def functional(shape):
  @tf.function
  def predict(weights, x, training):
    return tf.matmul(x, weights[0][0])
  @tf.function
  def loss(output, label, sample_weight=None):
    return tf.reduce_mean(output)
  return tff.learning.models.FunctionalModel(
    initial_weights=((np.zeros((4, 3), np.float32),), ()),
    predict_on_batch_fn=predict,
    loss_fn=loss,
    input_spec=collections.OrderedDict(
      x=tf.TensorSpec([None, 4], tf.float32), y=tf.TensorSpec([None], tf.int32)
    ),
  )
"""


@pytest.fixture(autouse=True)
def in_a_directory_with_a_module(tmp_path, monkeypatch):
  (tmp_path / 'their_models.py').write_text(_MODULE)
  (tmp_path / 'their_broken.py').write_text(
    'import numpy\nimport no_such_thing\ndef keras(): pass\n'
  )
  monkeypatch.chdir(tmp_path)
  monkeypatch.setattr(sys, 'path', list(sys.path))
  yield
  for name in ('their_models', 'their_broken'):
    sys.modules.pop(name, None)


def _make(name, shape=CLASSES, loss=None, seed=1):
  metric = 'token_accuracy' if shape is TOKENS else 'accuracy'
  options = model_options.Model(own.kind(name), metrics.METRICS[metric], loss=loss)
  return options.make(shape, seed)


def test_seed_of_any_size_determines_initial_weights():
  large = 2**127 + 1
  first, again, changed = (
    [w.tolist() for w in _make('their_models:keras', seed=seed).initial_weights[0]]
    for seed in (large, large, large + 2**64)
  )
  assert first == again != changed


@pytest.mark.parametrize('name', ['keras', 'of_shape', 'functional'])
def test_function_with_or_without_shape_builds_the_model(name):
  model = _make(f'their_models:{name}')
  with tf.Graph().as_default():
    weights = tf.nest.map_structure(tf.constant, model.initial_weights)
    outputs = model.predict_on_batch(weights, tf.ones([2, 4]), training=False)
  assert outputs.shape == (2, 3)


def test_loss_of_keras_token_model_ignores_padding():
  model = _make('their_models:tokens', TOKENS)
  outputs = tf.random.stateless_normal([2, 5, 7], [1, 2])
  labels = np.array([[1, 2, 3, 0, 0], [4, 0, 0, 0, 0]], np.int32)
  each = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, outputs).numpy()
  expected = np.mean(each[labels != 0])
  assert float(model.loss(outputs, labels)) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(
  'name, loss, message',
  [
    ('their_models:nothing', None, "module 'their_models' has no attribute 'nothing'"),
    ('their_models:ends', None, r'failed: SystemExit: too little \(.*, line'),
    ('their_models:returns_nothing', None, 'got NoneType'),
    ('their_models:wrong_outputs', None, r'must be \[None, 3\]'),
    ('their_models:wrong_inputs', None, 'the model takes .*float32.9'),
    ('their_models:normalised', None, 'batch normalisation'),
    ('their_models:probabilities', None, 'required by the loss cross_entropy'),
    ('their_models:keras', 'nonsense', 'nknown loss function: .?nonsense'),
    ('their_models:functional', 'cross_entropy', 'a functional model has its own'),
    ('their_broken:keras', None, 'failed: ModuleNotFoundError: .*no_such_thing'),
    ('no_such_module:f', None, f"no module 'no_such_module' in {os.sep}"),
    ('their models:f', None, 'not of the form'),
  ],
)
def test_wrong_models_are_refused_by_name(name, loss, message):
  with pytest.raises(ValueError, match=message) as error:
    _make(name, loss=loss)
  assert str(error.value).startswith(f'--model={name}')


def test_kind_finds_the_module_without_loading_it(tmp_path):
  (tmp_path / 'never_loaded.py').write_text('raise RuntimeError')
  assert own.kind('never_loaded:function').name == 'never_loaded:function'
  assert 'never_loaded' not in sys.modules


def test_simulate_refuses_wrong_model_in_one_line(tmp_path):
  error = simulations.refusal('--model=their_models:returns_nothing', *_RUN)
  assert 'error: --model=their_models:returns_nothing: model must be a tff' in error
