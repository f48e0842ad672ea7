"""Tests that Keras models train as in Keras, and that unsupported ones are refused."""

import functools
import random

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.learning import training_runs
from tff_dp_aggregators import accounting
from tff_dp_aggregators import learning
from tff_dp_aggregators import strategies
from tff_dp_aggregators.learning import models
from tff_dp_aggregators.learning import packed
from tff_dp_aggregators.learning.packed import training as training_lib
from tff_dp_aggregators.learning.runs import evaluation

_KERAS = tf.keras
_LAYERS = tf.keras.layers
_CROSS_ENTROPY = _KERAS.losses.SparseCategoricalCrossentropy(from_logits=True)
_RATE = 0.1


class _Subclass(_KERAS.Model):
  def __init__(self):
    super().__init__()
    self.hidden = [_LAYERS.Dense(4, activation='tanh')]
    self.scale = {'of': self.add_weight('scale', [4], initializer='ones')}
    self.end = _LAYERS.Dense(2)

  def call(self, x, training=None):
    return self.end(self.hidden[0](x) * self.scale['of'])


class _Activity(_LAYERS.Layer):
  def call(self, x):
    self.add_loss(0.3 * tf.reduce_mean(tf.square(x)))
    return x


class _Hidden(_LAYERS.Layer):
  def build(self, shape):
    kernel = self.add_weight('hidden_kernel', [shape[-1], 2])
    self.multiply = lambda x: x @ kernel

  def call(self, x):
    return self.multiply(x)


def _pairs(one, other):
  """Returns the weights of two models in pairs."""
  assert len(one) == len(other)
  return zip(one, other)


def _sequential(*layers, inputs=(3,), dtype=None):
  return _KERAS.Sequential([_KERAS.Input(inputs, dtype=dtype), *layers])


def _frozen():
  base = _sequential(_LAYERS.Dense(8, activation='relu'), _LAYERS.BatchNormalization())
  base.layers[1].moving_mean.assign(np.linspace(0, 1, 8))
  base.trainable = False
  return _KERAS.Sequential([base, _LAYERS.Dense(2)])


def _adapted():
  normalization = _LAYERS.Normalization()
  normalization.adapt(np.random.default_rng(3).normal(2.0, 3.0, size=[50, 3]))
  return _sequential(normalization, _LAYERS.Dense(2))


def _shared():
  inputs, layer = _KERAS.Input([3]), _LAYERS.Dense(3)
  return _KERAS.Model(inputs, _LAYERS.Dense(2)(layer(layer(inputs))))


def _with_losses():
  inputs = _KERAS.Input([3])
  hidden = _LAYERS.Dense(4, kernel_regularizer='l2', activity_regularizer='l1')(inputs)
  model = _KERAS.Model(inputs, _LAYERS.Dense(2)(_Activity()(hidden)))
  model.add_loss(0.1 * tf.reduce_mean(tf.abs(hidden)))
  return model


def _two_towers():
  a, b = _KERAS.Input([2], name='a'), _KERAS.Input([1], name='b')
  output_b = _LAYERS.Dense(4, activation='relu', name='tower_b')(b)
  output_a = _LAYERS.Dense(4, activation='relu', name='tower_a')(a)
  joined = _LAYERS.Concatenate()([output_a, output_b])
  return _KERAS.Model([a, b], _LAYERS.Dense(2, name='head')(joined))


_NUMBERS = np.random.default_rng(1).normal(size=[5, 3]).astype(np.float32)
_TOKENS = np.random.default_rng(2).integers(0, 20, size=[5, 7]).astype(np.int32)
_IMAGES = np.random.default_rng(3).normal(size=[5, 8, 8, 1]).astype(np.float32)
_CLASSES = np.array([0, 1, 1, 0, 1])


def _tokens(*layers):
  return _sequential(_LAYERS.Embedding(20, 4), *layers, inputs=(7,), dtype='int32')


_MODELS = {
  'fixed batch': (
    lambda: _KERAS.Sequential([_LAYERS.Dense(2, batch_input_shape=[4, 3])]),
    _NUMBERS,
  ),
  'not built': (lambda: _KERAS.Sequential([_LAYERS.Dense(2)]), _NUMBERS),
  'subclass': (_Subclass, _NUMBERS),
  'frozen': (_frozen, _NUMBERS),
  'adapted': (_adapted, _NUMBERS),
  'shared': (_shared, _NUMBERS),
  'variable of a function': (lambda: _sequential(_Hidden()), _NUMBERS),
  'losses': (_with_losses, _NUMBERS),
  'two towers': (_two_towers, (_NUMBERS[:, :2], _NUMBERS[:, 2:])),
  'by name': (_two_towers, {'a': _NUMBERS[:, :2], 'b': _NUMBERS[:, 2:]}),
  'lstm': (lambda: _tokens(_LAYERS.LSTM(3), _LAYERS.Dense(2)), _TOKENS),
  'convolution': (
    lambda: _sequential(
      _LAYERS.Conv2D(4, 3, activation='relu'),
      _LAYERS.GroupNormalization(2),
      _LAYERS.MaxPool2D(),
      _LAYERS.Flatten(),
      _LAYERS.Dense(2),
      inputs=(8, 8, 1),
    ),
    _IMAGES,
  ),
}


def _functional(make, x, y, loss, seed=0):
  spec = tf.nest.map_structure(
    lambda each: tf.TensorSpec(np.shape(each)[1:], np.asarray(each).dtype), (x, y)
  )
  return models.functional(make, loss, spec, seed=seed)


def _step(functional, x, y):
  """Returns weights and loss after one step of SGD in a graph of TensorFlow 1."""
  with tf.Graph().as_default():
    weights = tf.nest.map_structure(tf.constant, functional.initial_weights)
    with tf.GradientTape() as tape:
      tape.watch(weights[0])
      output = functional.predict_on_batch(weights, x, training=True)
      loss = functional.loss(output, tf.nest.map_structure(tf.constant, y))
    gradients = tape.gradient(loss, weights[0])
    after = [
      one - _RATE * tf.convert_to_tensor(g) for one, g in zip(weights[0], gradients)
    ]
    with tf.compat.v1.Session() as session:
      return session.run([after, loss])


def _fit(model, x, y, loss, **compiled):
  """Returns weights and loss after one step of Keras."""
  model.compile(_KERAS.optimizers.SGD(_RATE), loss, run_eagerly=False, **compiled)
  metrics = model.train_on_batch(x, y, return_dict=True)
  return [each.numpy() for each in model.trainable_variables], metrics['loss']


def _assert_equal(actual, expected):
  weights, loss = actual
  expected_weights, expected_loss = expected
  assert loss == pytest.approx(expected_loss, rel=1e-5)
  for one, other in _pairs(weights, expected_weights):
    np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)


_QUICK = ('subclass', 'losses', 'by name')


@pytest.mark.parametrize(
  'name',
  [
    pytest.param(name, marks=[] if name in _QUICK else [pytest.mark.slow])
    for name in _MODELS
  ],
)
def test_training_step_matches_keras(name):
  make, x = _MODELS[name]
  functional = _functional(make, x, _CLASSES, _CROSS_ENTROPY)
  actual = _step(functional, x, _CLASSES)
  _assert_equal(actual, _fit(functional.keras_model, x, _CLASSES, _CROSS_ENTROPY))


def _two_outputs():
  inputs = _KERAS.Input([3])
  one = _LAYERS.Dense(1, name='one')(inputs)
  return _KERAS.Model(inputs, [one, _LAYERS.Dense(2, name='two')(inputs)])


@pytest.mark.parametrize(
  ('is_named', 'weights'),
  [
    (False, [0.25, 3.0]),
    pytest.param(True, {'one': 0.0, 'two': 1.0}, marks=pytest.mark.slow),
  ],
)
def test_step_with_several_outputs_matches_keras(is_named, weights):
  y = (_NUMBERS[:, 0], _CLASSES)
  labels = {'one': y[0], 'two': y[1]} if is_named else y
  loss = {'one': 'mean_squared_error', 'two': _CROSS_ENTROPY}

  def make():
    model = _two_outputs()
    model.compile(loss=loss, loss_weights=weights)
    return model

  functional = _functional(make, _NUMBERS, labels, None)
  actual = _step(functional, _NUMBERS, labels)
  expected = _fit(functional.keras_model, _NUMBERS, list(y), loss, loss_weights=weights)
  _assert_equal(actual, expected)


class _OwnLoss(_KERAS.losses.Loss):
  def call(self, y_true, y_pred):
    return tf.reduce_mean(tf.square(y_pred - y_true), axis=-1)


@pytest.mark.parametrize(
  ('loss', 'shape'),
  [
    (_OwnLoss(), (5,)),
    pytest.param(_OwnLoss, (5, 1), marks=pytest.mark.slow),
    pytest.param('mse', (5,), marks=pytest.mark.slow),
  ],
)
def test_labels_without_last_axis_are_not_broadcast(loss, shape):
  make = lambda: _sequential(_LAYERS.Dense(1))  # noqa: E731
  y = _NUMBERS.sum(axis=1).reshape(shape)
  functional = _functional(make, _NUMBERS, y, loss)
  actual = _step(functional, _NUMBERS, y)
  _assert_equal(actual, _fit(functional.keras_model, _NUMBERS, y.reshape(5, 1), 'mse'))


@pytest.mark.parametrize(
  ('make', 'y', 'loss', 'message'),
  [
    (_two_outputs, (_CLASSES,) * 3, 'mse', 'labels must be for the outputs of .*one'),
    (_two_outputs, {'one': _CLASSES, 'x': _CLASSES}, 'mse', 'labels must be for'),
    (_two_outputs, (_NUMBERS, _CLASSES), 'mse', "of the output 'one'.*\\[n, 3\\]"),
    (_shared, _CLASSES, 'mse', r'\[n\], .* takes labels of the shape .* \[n, 2\]'),
    (_shared, _NUMBERS[:, :1], _OwnLoss(), 'repeat'),
    (_shared, _CLASSES, 'categorical_hinge', 'labels of the shape of outputs'),
    (_shared, _NUMBERS[:, :2], _CROSS_ENTROPY, 'one-hot labels for Categorical'),
    (
      _shared,
      _NUMBERS[:, :2],
      lambda t, p: _KERAS.losses.sparse_categorical_crossentropy(t, p),
      'must equal `logits.shape` except for the last dimension',
    ),
  ],
)
def test_labels_that_do_not_fit_output_or_loss_are_refused(make, y, loss, message):
  with pytest.raises(ValueError, match=message):
    _functional(make, _NUMBERS, y, loss)


def _ending_in(activation, units=2, initializer='glorot_uniform'):
  return lambda: _sequential(
    _LAYERS.Dense(units, activation=activation, kernel_initializer=initializer)
  )


_SPARSE = _KERAS.losses.SparseCategoricalCrossentropy
_BINARY = _KERAS.losses.BinaryCrossentropy
_ALONG_AXIS_1 = _KERAS.losses.CategoricalCrossentropy(from_logits=True, axis=1)


@pytest.mark.parametrize('initializer', ['glorot_uniform', 'zeros'])
@pytest.mark.parametrize(
  ('units', 'activation', 'loss', 'message'),
  [
    (2, None, _SPARSE(), 'from_logits=True'),
    (2, 'softmax', _SPARSE(), None),
    (1, None, 'binary_crossentropy', 'from_logits=True'),
    (1, 'sigmoid', _BINARY(from_logits=True), 'takes logits'),
    (1, None, _BINARY(from_logits=True), None),
    (2, 'softmax', _ALONG_AXIS_1, 'takes logits'),
    (2, None, _ALONG_AXIS_1, None),
  ],
)
def test_from_logits_must_match_the_last_activation(
  units, activation, loss, message, initializer
):
  make = _ending_in(activation, units, initializer)
  labels = _ONE_HOT if loss is _ALONG_AXIS_1 else _CLASSES
  if message is None:
    _functional(make, _NUMBERS, labels, loss)
  else:
    with pytest.raises(ValueError, match=message):
      _functional(make, _NUMBERS, labels, loss)


def _softmax_cross_entropy(y_true, y_pred):
  labels = tf.cast(tf.reshape(y_true, [-1]), tf.int32)
  return tf.nn.sparse_softmax_cross_entropy_with_logits(labels, y_pred)


def _log_loss(y_true, y_pred):
  labels = tf.cast(tf.reshape(y_true, [-1]), tf.int32)
  chosen = tf.gather(tf.clip_by_value(y_pred, 1e-7, 1.0), labels, batch_dims=1)
  return -tf.math.log(chosen)


class _FocalLoss(_KERAS.losses.Loss):
  def call(self, y_true, y_pred):
    return tf.square(1 - tf.nn.softmax(y_pred)[:, 0]) * _softmax_cross_entropy(
      y_true, y_pred
    )


def _branching_loss(y_true, y_pred):
  loss = _softmax_cross_entropy(y_true, y_pred)
  if tf.reduce_mean(loss) > 10.0:  # AutoGraph converts this.
    loss = loss / 2.0
  return loss


def _calling_keras(name, **options):
  return lambda y, p: getattr(_KERAS.losses, name)(y, p, **options)


def _poisson_loss(y_true, y_pred):
  return y_pred - y_true * tf.math.log(tf.clip_by_value(y_pred, 1e-6, 1e6))


def _brier_loss(y_true, y_pred):
  return tf.square(tf.clip_by_value(y_pred, 0.0, 1.0) - y_true)


_ONE_HOT = np.eye(2, dtype=np.float32)[_CLASSES]
_TAKES_LOGITS = (
  'puts out .* takes logits: give one of the other kind, or leave out the act'
)
_TAKES_PROBABILITIES = 'puts out numbers from -.* takes probabilities: give one of'


@pytest.mark.parametrize(
  ('units', 'activation', 'y', 'loss', 'message'),
  [
    (2, 'softmax', _CLASSES, _softmax_cross_entropy, f'{_TAKES_LOGITS}ivation softmax'),
    (2, 'softmax', _CLASSES, _FocalLoss(), _TAKES_LOGITS),
    (2, 'softmax', _CLASSES, tf.function(_softmax_cross_entropy), _TAKES_LOGITS),
    (2, 'softmax', _CLASSES, tf.function(_branching_loss), _TAKES_LOGITS),
    (2, None, _CLASSES, tf.function(_branching_loss), None),
    (
      *(2, 'softmax', _ONE_HOT),
      *(_calling_keras('categorical_crossentropy', from_logits=True), _TAKES_LOGITS),
    ),
    (
      *(1, 'sigmoid', _ONE_HOT[:, :1]),
      *(tf.nn.sigmoid_cross_entropy_with_logits, f'{_TAKES_LOGITS}ivation sigmoid'),
    ),
    (
      2,
      None,
      _CLASSES,
      _calling_keras('sparse_categorical_crossentropy'),
      _TAKES_PROBABILITIES,
    ),
    (
      2,
      None,
      _ONE_HOT,
      _calling_keras('categorical_crossentropy'),
      _TAKES_PROBABILITIES,
    ),
    (
      1,
      None,
      _ONE_HOT[:, :1],
      _calling_keras('binary_crossentropy'),
      _TAKES_PROBABILITIES,
    ),
    # Whatever is right, or cannot be known, is taken.
    (2, None, _CLASSES, _softmax_cross_entropy, None),
    (2, None, _CLASSES, _FocalLoss(), None),
    (2, 'softmax', _CLASSES, _log_loss, None),
    (2, 'softmax', _ONE_HOT, _calling_keras('categorical_crossentropy'), None),
    (2, 'softmax', _ONE_HOT, _calling_keras('categorical_hinge'), None),
    (2, 'relu', _ONE_HOT, _calling_keras('binary_crossentropy'), None),
    (1, None, _ONE_HOT[:, :1], tf.nn.sigmoid_cross_entropy_with_logits, None),
    (1, None, _ONE_HOT[:, :1], _poisson_loss, None),
    (1, None, _ONE_HOT[:, :1], _brier_loss, None),
    (1, None, _ONE_HOT[:, :1], _calling_keras('mean_squared_logarithmic_error'), None),
  ],
)
def test_custom_loss_of_logits_is_refused_for_softmax_model_and_reverse(
  units, activation, y, loss, message
):
  make = _ending_in(activation, units)
  if message is None:
    _functional(make, _NUMBERS, y, loss)
  else:
    with pytest.raises(ValueError, match=message):
      _functional(make, _NUMBERS, y, loss)


class _OwnStep(_KERAS.Model):
  def train_step(self, data):
    return super().train_step(data)


def _with_own_step():
  inputs = _KERAS.Input([3])
  return _OwnStep(inputs, _LAYERS.Dense(2)(inputs))


def _untrained():
  model = _shared()
  model.trainable = False
  return model


@pytest.mark.parametrize(
  ('make', 'x', 'message'),
  [
    (
      lambda: _sequential(_LAYERS.Dense(2, name='it', kernel_constraint='non_neg')),
      _NUMBERS,
      "'it/kernel:0' .* constraint",
    ),
    (
      lambda: _sequential(_LAYERS.BatchNormalization(name='it'), _LAYERS.Dense(2)),
      _NUMBERS,
      "batch normalisation 'it'",
    ),
    (
      lambda: _KERAS.Sequential(
        [
          _LAYERS.Embedding(20, 4, batch_input_shape=[4, 7]),
          _LAYERS.LSTM(3, stateful=True, name='it'),
          _LAYERS.Dense(2),
        ]
      ),
      _TOKENS,
      "'it' is stateful",
    ),
    (_with_own_step, _NUMBERS, 'a train_step of its own'),
    (_untrained, _NUMBERS, 'no weights that are trained'),
    (
      lambda: _sequential(_LAYERS.Dense(2, dtype='float64')),
      _NUMBERS,
      'float64 .* dtype float32',
    ),
    (
      lambda: _two_towers(),
      _NUMBERS,
      'gives 1 inputs, the model takes 2: a, b',
    ),
  ],
)
def test_unsupported_model_features_are_refused_by_name(make, x, message):
  with pytest.raises(ValueError, match=message):
    _functional(make, x, _CLASSES, _CROSS_ENTROPY)


def test_weights_have_order_and_names_of_keras():
  x = (_NUMBERS[:, :2], _NUMBERS[:, 2:])
  functional = _functional(_two_towers, x, _CLASSES, _CROSS_ENTROPY)
  names = [each.name for each in functional.keras_model.trainable_variables]
  assert names[:2] == ['tower_a/kernel:0', 'tower_a/bias:0']
  assert learning.weight_names(functional) == tuple(
    f'{number} {name}' for number, name in enumerate(names)
  )
  assert learning.weight_names(_two_towers) == learning.weight_names(functional)
  assert models.weight_shapes(functional)['2 tower_b/kernel:0'] == [1, 4]


def test_weight_names_and_initial_weights_depend_only_on_seed():
  make = _MODELS['subclass'][0]
  one = _functional(make, _NUMBERS, _CLASSES, _CROSS_ENTROPY, seed=2**70)
  random.random(), np.random.rand(), _sequential(_LAYERS.Dense(2))  # noqa: NPY002
  other = _functional(make, _NUMBERS, _CLASSES, _CROSS_ENTROPY, seed=2**70)
  assert one.weight_names == other.weight_names
  tf.nest.map_structure(
    np.testing.assert_array_equal, one.initial_weights, other.initial_weights
  )
  third = _functional(make, _NUMBERS, _CLASSES, _CROSS_ENTROPY, seed=3)
  assert (one.initial_weights[0][0] != third.initial_weights[0][0]).any()


def _train(model, run_dir, mechanism=None, clients=None, **arguments):
  if clients is None:
    rng = np.random.default_rng(7)
    clients = {}
    for number in range(20):
      x = rng.normal(size=[4, 3]).astype(np.float32)
      clients[f'client {number}'] = (x, (x[:, 0] > x[:, 1]).astype(np.int64))
  settings = {'num_rounds': 3, 'clients_per_round': 5, 'loss': _CROSS_ENTROPY}
  if mechanism is not None:
    settings.update(delta=1e-3, clip_norm=1.0, num_rounds=None)
  return learning.train(
    model,
    clients,
    mechanism,
    str(run_dir),
    **training_runs.grouped(**{**settings, 'batch_size': 2, 'seed': 1, **arguments}),
  )


def _frozen_with_losses():
  inputs = _KERAS.Input([3])
  normalization = _LAYERS.BatchNormalization(trainable=False)
  hidden = normalization(_LAYERS.Dense(4, kernel_regularizer='l2')(inputs))
  return _KERAS.Model(inputs, _LAYERS.Dense(2)(_Activity()(hidden)))


def _mechanism():
  participation = strategies.Participation(3, min_separation=3)
  return accounting.Mechanism.for_target('banded', participation, 8.0, 1e-3)


def test_conversion_does_not_change_any_keras_model():
  model, other = _frozen_with_losses(), _shared()

  def models_state():
    model(_NUMBERS)
    losses = [float(each) for each in model.losses]
    return [model.get_weights(), losses, other.get_weights(), other(_NUMBERS).numpy()]

  before = models_state()
  functional = _functional(model, _NUMBERS, _CLASSES, _CROSS_ENTROPY)
  _step(functional, _NUMBERS, _CLASSES)
  tf.nest.map_structure(np.testing.assert_array_equal, models_state(), before)


@pytest.mark.slow
def test_frozen_layers_get_no_noise_packed_or_one_by_one(tmp_path):
  model = _frozen_with_losses()
  private = {'mechanism': _mechanism(), 'noise_seed': 1}
  packs = _train(model, tmp_path / 'packs', **private)
  alone = _train(model, tmp_path / 'alone', packed_simulation=False, **private)
  for one, other in _pairs(packs.weights.non_trainable, model.non_trainable_variables):
    np.testing.assert_array_equal(one, other.numpy())
  for one, other in _pairs(packs.weights.trainable, model.trainable_variables):
    assert (one != other.numpy()).all()
  for one, other in _pairs(packs.weights.trainable, alone.weights.trainable):
    np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)


def test_compiled_keras_optimizer_is_refused_unless_replaced(tmp_path):
  model = _shared()
  model.compile(_KERAS.optimizers.Adam(1e-9), _CROSS_ENTROPY)
  with pytest.raises(ValueError, match='compiled with the optimizer Adam'):
    _train(model, tmp_path / 'run', loss=None)
  optimizer = tff.learning.optimizers.build_sgdm(0.1)
  arguments = {'client_optimizer': optimizer, 'inner_aggregator': 'secure_modular_sum'}
  with pytest.raises(ValueError, match='inner_aggregator'):  # It is checked later.
    _train(model, tmp_path / 'run', loss=None, **arguments)


def _measure(make, x, y, loss, metrics=None):
  """Returns metrics of a model before it is trained, and its weights."""
  functional = _functional(make, x, y, loss, seed=1)
  weights = tff.learning.models.ModelWeights(*functional.initial_weights)
  return evaluation.Evaluator(functional, (x, y), metrics).measure(weights), weights


def test_metrics_match_keras_and_scikit_learn():
  from sklearn import metrics as sklearn_metrics

  x = np.random.default_rng(3).normal(size=[30, 3]).astype(np.float32)
  y = (x @ [1.0, 2.0, 3.0]).astype(np.float32)
  measured, weights = _measure(
    lambda: _sequential(_LAYERS.Dense(1)),
    x,
    y,
    'mse',
    {
      'object': _KERAS.metrics.MeanSquaredError(),
      'class': _KERAS.metrics.MeanSquaredError,
      'partial': _KERAS.metrics.MeanMetricWrapper(
        functools.partial(_KERAS.losses.mean_squared_error), 'partial'
      ),
      'name': 'mse',
      'function': _KERAS.losses.mean_squared_error,
      'mean': learning.MeanMetric(lambda y, outputs: (y - outputs[:, 0]) ** 2),
      'r2': sklearn_metrics.r2_score,
    },
  )
  outputs = x @ weights.trainable[0] + weights.trainable[1]
  expected = np.mean((outputs[:, 0] - y) ** 2)
  for name in ('object', 'class', 'partial', 'name', 'function', 'mean', 'loss'):
    assert measured[name] == pytest.approx(expected, rel=1e-4)
  r2 = sklearn_metrics.r2_score(y, outputs)
  assert measured['r2'] == pytest.approx(r2, rel=1e-4)


@pytest.mark.parametrize(
  ('make', 'y', 'loss', 'metrics'),
  [
    (_ending_in(None), _CLASSES, _CROSS_ENTROPY, ['accuracy']),
    (
      _two_outputs,
      {'one': _NUMBERS[:, 0], 'two': _CLASSES},
      {'one': 'mse', 'two': _CROSS_ENTROPY},
      {'one': ['mse'], 'two': 'accuracy'},
    ),
  ],
)
def test_metric_names_mean_the_same_as_in_keras(make, y, loss, metrics):
  def compiled():
    model = make()
    model.compile(loss=loss, metrics=metrics)
    return model

  actual, weights = _measure(compiled, _NUMBERS, y, None)
  model = compiled()
  weights.assign_weights_to(model)
  expected = model.evaluate(_NUMBERS, y, verbose=0, return_dict=True)
  assert len(actual) == 1 + len(metrics)
  assert actual == pytest.approx({name: expected[name] for name in actual}, rel=1e-4)


_LOGITS = _BINARY(from_logits=True)
_PROBABILITIES = 'from_logits=True, threshold=0.0'
_BROADCAST = r'[tT]ake outputs\[:, 0\]'


@pytest.mark.parametrize(
  ('loss', 'metric', 'message'),
  [
    ('mse', 'accurcy', "'accurcy' is not a metric"),
    ('mse', _BINARY(), 'BinaryCrossentropy .* is not a metric'),
    ('mse', lambda y, outputs: np.eye(2), r'an array of shape \(2, 2\)'),
    ('mse', 3, 'must be a function of labels and outputs'),
    ('mse', lambda y_pred, y: 0.0, "calls its first argument 'y_pred'"),
    ('mse', lambda y, outputs: np.mean((y - outputs) ** 2), _BROADCAST),
    (
      'mse',
      learning.MeanMetric(lambda y, outputs: (y - outputs) ** 2),
      _BROADCAST,
    ),
    (_LOGITS, 'accuracy', _PROBABILITIES),
    (_LOGITS, _KERAS.metrics.Precision, _PROBABILITIES),
  ],
)
def test_invalid_metric_is_refused(loss, metric, message):
  with pytest.raises((TypeError, ValueError), match=message):
    _measure(_ending_in(None, 1), _NUMBERS, _CLASSES, loss, {'it': metric})


def test_check_examples_refuses_tokens_and_labels_out_of_range():
  layers = (_LAYERS.GlobalAveragePooling1D(), _LAYERS.Dense(2))
  functional = _functional(lambda: _tokens(*layers), _TOKENS, _CLASSES, _CROSS_ENTROPY)
  functional.check_examples((_TOKENS, _CLASSES), 'it')
  tokens = _TOKENS.copy()
  tokens[2, 1] = 20
  with pytest.raises(ValueError, match='it: .*in row 2 is 20, .* has 20 embeddings'):
    functional.check_examples((tokens, _CLASSES), 'it')
  with pytest.raises(ValueError, match='label in row 1 is 2, .* has 2 outputs'):
    functional.check_examples((_TOKENS, 2 * _CLASSES), 'it')


@pytest.mark.parametrize(
  ('loss', 'taken', 'refused'),
  [
    ('binary_crossentropy', [0.0, 0.3], [0.0, 5.0]),
    ('binary_focal_crossentropy', [1.0, 0.0], [1.0, -1.0]),
    ('categorical_crossentropy', [0.2, 0.2], [0.0, 2.0]),
    ('kl_divergence', [0.5, 0.5], [1.5, -0.5]),
    ('poisson', [0.0, 7.0], [7.0, -1.0]),
    ('mean_squared_logarithmic_error', [0.0, 7.0], [7.0, -1.0]),
    ('squared_hinge', [-1.0, 1.0], None),
    ('sparse_categorical_crossentropy', 1.0, 0.5),
  ],
)
def test_check_examples_refuses_labels_that_keras_loss_is_not_for(loss, taken, refused):
  y = np.array([taken] * 5, np.float32)
  functional = _functional(_ending_in('softmax'), _NUMBERS, y, loss)
  functional.check_examples((_NUMBERS, y), 'it')
  if refused is not None:
    y[3] = refused
    with pytest.raises(
      ValueError, match=f'it: .* in row 3 is .* the loss {loss} takes'
    ):
      functional.check_examples((_NUMBERS, y), 'it')


@pytest.mark.parametrize(
  ('units', 'loss', 'message'),
  [
    (2, _softmax_cross_entropy, 'a label value of 2 which is outside'),
    (1, _BINARY(from_logits=True), 'test data: the label in row 1 is 2'),
  ],
)
def test_labels_of_test_data_that_loss_is_not_for_are_refused(
  units, loss, message, tmp_path
):
  clients = {'a': (_NUMBERS, _CLASSES), 'b': (_NUMBERS, _CLASSES)}
  test = learning.Evaluation((_NUMBERS.tolist(), [0, 2, 2, 0, 2]))
  arguments = {'clients_per_round': 1, 'loss': loss, 'test': test}
  with pytest.raises(ValueError, match=message):
    _train(_ending_in(None, units), tmp_path / 'run', None, clients, **arguments)


@pytest.mark.slow
def test_model_with_embedding_of_float_inputs_trains_and_loads(tmp_path):
  def make():
    inputs = _KERAS.Input([2])
    embedded = _LAYERS.Embedding(6, 2)(tf.cast(inputs[:, 1], tf.int32))
    joined = _LAYERS.Concatenate()([inputs[:, :1], embedded])
    return _KERAS.Model(inputs, _LAYERS.Dense(2)(joined))

  x = np.array([[-7.0, 5.0], [0.5, 3.0], [9.0, 0.0]], np.float32)
  clients = {name: (x, np.array([0, 1, 1])) for name in 'ab'}
  result = _train(make, tmp_path, None, clients, clients_per_round=1, num_rounds=1)
  np.testing.assert_allclose(learning.load(str(tmp_path))(x), result.model(x))


def _with_loss_of_outputs():
  inputs = _KERAS.Input([3])
  output = _LAYERS.Dense(1, kernel_initializer='zeros')(inputs)
  model = _KERAS.Model(inputs, output)
  model.add_loss(tf.reduce_sum(output**2))
  return model


def _balanced(y_true, y_pred):
  """Returns the sum of the mean losses of both classes, unlike a mean over examples."""
  losses = tf.square(y_pred - y_true)[:, 0]
  in_class = [tf.cast(y_true[:, 0] == each, tf.float32) for each in (0.0, 1.0)]
  return sum(
    tf.math.divide_no_nan(tf.reduce_sum(each * losses), tf.reduce_sum(each))
    for each in in_class
  )


@pytest.mark.parametrize(
  ('make', 'loss'),
  [(_with_loss_of_outputs, 'mse'), (lambda: _sequential(_LAYERS.Dense(1)), _balanced)],
)
def test_losses_that_hide_effects_of_padding_are_trained_one_by_one(
  make, loss, tmp_path
):
  rng = np.random.default_rng(5)
  clients = {}
  for number, size in enumerate([1, 2, 3, 5, 7, 6, 10, 1, 1, 1]):
    y = rng.integers(0, 2, size).astype(np.float32)
    y[: 4 if size == 10 else 0] = 1.0
    clients[f'{number}'] = (rng.normal(size=[size, 3]).astype(np.float32), y)
  functional = _functional(make, *clients['6'], loss)
  training = packed.LocalTraining(functional, tff.learning.optimizers.build_sgdm(), 4)
  data = packed.lay_out(learning.Clients.of(clients), str(tmp_path / 'data'))
  assert 'have to be padded' in training_lib.why_one_by_one(training, data)


def _ignoring(y_true, y_pred):
  """Returns losses whose mean is over the labels that are not -1."""
  valid = tf.cast(y_true >= 0, tf.float32)
  losses = tf.nn.sparse_softmax_cross_entropy_with_logits(tf.nn.relu(y_true), y_pred)
  return losses * valid / tf.reduce_mean(valid)


@pytest.mark.parametrize(
  ('loss', 'reason'),
  [
    (_ignoring, 'examples of a batch see each other'),
    (_SPARSE(from_logits=True, ignore_class=-1), 'ignore_class'),
    (_SPARSE(from_logits=True), None),
  ],
)
def test_labels_ignored_at_the_end_of_a_client_are_found(loss, reason, tmp_path):
  rng = np.random.default_rng(5)
  clients = {}
  for number in range(8):
    x, y = rng.integers(0, 5, [2, 5 + (number == 3), 4]).astype(np.int32)
    y[-1, 1:] = 0 if reason is None else -1
    clients[f'{number}'] = (x, y)
  make = lambda: _KERAS.Sequential(  # noqa: E731
    [_LAYERS.Embedding(5, 3, input_length=4), _LAYERS.Dense(5)]
  )
  functional = models.functional(make, loss, (tf.TensorSpec([4], tf.int32),) * 2)
  training = packed.LocalTraining(functional, tff.learning.optimizers.build_sgdm(), 16)
  data = packed.lay_out(learning.Clients.of(clients), str(tmp_path / 'data'))
  found = training_lib.why_one_by_one(training, data)
  assert found is None if reason is None else reason in found


def test_mixed_precision_regularizers_use_unrounded_weights():
  policy = _KERAS.mixed_precision.Policy('mixed_float16')

  def make():
    layer = _LAYERS.Dense(
      2000,
      kernel_initializer=_KERAS.initializers.Constant(4.0),
      kernel_regularizer=_KERAS.regularizers.L2(1e-5),
      dtype=policy,
    )
    return _sequential(layer, _LAYERS.Dense(2))

  functional = _functional(make, _NUMBERS, _CLASSES, _CROSS_ENTROPY)
  with tf.Graph().as_default(), tf.compat.v1.Session() as session:
    weights = tf.nest.map_structure(tf.constant, functional.initial_weights)
    output = functional.predict_on_batch(weights, _NUMBERS, training=True)
    actual = session.run(output.penalty)
  assert actual == pytest.approx(3 * 2000 * 16 * 1e-5, rel=1e-4)


@pytest.mark.parametrize('axis', [[1, 2], pytest.param(1, marks=pytest.mark.slow)])
def test_vectorized_layer_normalisation_matches_keras(axis):
  x = np.arange(60, dtype=np.float32).reshape(5, 4, 3) / 60
  make = lambda: _sequential(  # noqa: E731
    _LAYERS.Dense(6),
    _LAYERS.LayerNormalization(axis=axis),
    _LAYERS.Flatten(),
    _LAYERS.Dense(2),
    inputs=(4, 3),
  )
  functional = _functional(make, x, _CLASSES, _CROSS_ENTROPY)
  model = make()
  model.set_weights(functional.initial_weights[0])
  outputs = tf.vectorized_map(
    lambda each: functional.predict_on_batch(functional.initial_weights, each),
    tf.stack([x, 2 * x]),
    fallback_to_while_loop=False,
  )
  np.testing.assert_allclose(outputs[0], model(x), atol=1e-5)
  np.testing.assert_allclose(outputs[1], model(2 * x), atol=1e-5)


@pytest.fixture(name='seeded')
def fixture_seeded():
  """Returns the function that sets all seeds, which are drawn anew after the test."""
  yield _KERAS.utils.set_random_seed
  random.seed()
  np.random.seed()  # noqa: NPY002
  tf.random.set_seed(None)


def test_conversion_keeps_random_states_and_layer_names(seeded):
  def draws():
    layer = _LAYERS.Dense(2)
    return [
      random.random(),
      np.random.rand(),  # noqa: NPY002
      float(tf.random.uniform([])),
      layer.name,
      layer(_NUMBERS).numpy().tolist(),
    ]

  drawn = []
  for convert in (False, True):
    _KERAS.backend.clear_session()
    seeded(5)
    first = draws()
    if convert:
      _functional(_shared, _NUMBERS, _CLASSES, _CROSS_ENTROPY)
      with pytest.raises(ValueError, match='takes logits'):
        _functional(_ending_in('softmax'), _NUMBERS, _CLASSES, _CROSS_ENTROPY)
    drawn.append((first, draws()))
  assert drawn[0] == drawn[1]


def _mixed():
  policy = _KERAS.mixed_precision.Policy('mixed_float16')
  return _sequential(_LAYERS.Dense(4, dtype=policy), _LAYERS.Dense(2))


def test_mixed_precision_step_matches_keras_within_rounding():
  functional = _functional(_mixed, _NUMBERS, _CLASSES, _CROSS_ENTROPY)
  actual, _ = _step(functional, _NUMBERS, _CLASSES)
  expected, _ = _fit(functional.keras_model, _NUMBERS, _CLASSES, _CROSS_ENTROPY)
  for one, other in _pairs(actual, expected):
    np.testing.assert_allclose(one, other, rtol=1e-2, atol=1e-3)


def test_metrics_of_logits_match_numpy():
  measured, weights = _measure(
    _ending_in(None, 1),
    _NUMBERS,
    _CLASSES,
    _BINARY(from_logits=True),
    {
      'auc': _KERAS.metrics.AUC(2000, from_logits=True),
      'accuracy': _KERAS.metrics.BinaryAccuracy(threshold=0.0),
    },
  )
  outputs = (_NUMBERS @ weights.trainable[0] + weights.trainable[1])[:, 0]
  no, yes = (outputs[_CLASSES == each] for each in (0, 1))
  assert measured['auc'] == pytest.approx(np.mean(yes[:, None] > no), abs=5e-3)
  assert measured['accuracy'] == pytest.approx(np.mean((outputs > 0) == _CLASSES))


_SPEC = (tf.TensorSpec([3]), tf.TensorSpec([], tf.int32))


@pytest.mark.parametrize(
  ('loss', 'error', 'match'),
  [
    (None, ValueError, 'needs a loss.*not compiled'),
    ('crossentropie', ValueError, 'nknown loss function.*crossentropie'),
    (0.5, ValueError, 'Could not interpret loss .*0.5'),
    (
      _KERAS.losses.MeanSquaredError(reduction='none'),
      ValueError,
      'reduction none',
    ),
  ],
)
def test_invalid_losses_are_refused(loss, error, match):
  with pytest.raises(error, match=match):
    models.functional(_shared, loss, _SPEC)


@pytest.mark.parametrize('is_path', [True, False])
def test_saved_model_or_its_path_is_refused_with_function_that_loads_it(
  is_path, tmp_path
):
  module = tf.Module()
  module.__call__ = tf.function(lambda x: x, input_signature=[tf.TensorSpec([None])])
  tf.saved_model.save(module, str(tmp_path))
  model = str(tmp_path) if is_path else tf.saved_model.load(str(tmp_path))
  given = str(tmp_path) if is_path else '_UserObject'
  with pytest.raises(TypeError, match=f'got .?{given}.*tf.keras.models.load_model'):
    models.functional(model, 'mse', _SPEC)


_BATCHES = (tf.TensorSpec([4, 3]), tf.TensorSpec([4], tf.int32))
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
      r"client 'a' gives x of .*float32.1.* the model takes .*float32.3.*Conv",
    ),
    (_BATCHES, r'x of .*float32.4, 3.* takes .*float32.3.* not batched'),
    (None, 'packed.PackedData, which do not say'),
  ],
)
def test_examples_that_do_not_fit_the_model_are_refused(spec, match):
  with pytest.raises(ValueError, match=match):
    models.functional(_shared, 'sparse_categorical_crossentropy', spec, "client 'a'")


def test_functional_model_with_dict_of_weights_is_refused():
  named = models.with_loss(training_runs.model(), None)
  named._initial_weights = ({'kernel': np.zeros([2, 1], np.float32)}, ())
  with pytest.raises(ValueError, match='weights of the functional model are a struc'):
    models.functional(named, None, None)


def test_model_that_does_not_say_what_it_takes_is_refused_for_batches():
  class Undeclared(_KERAS.Model):
    def __init__(self):
      super().__init__()
      self.dense = _KERAS.layers.Dense(1)

    def call(self, x):
      return self.dense(x)

  specs = (tf.TensorSpec([None, 3]), tf.TensorSpec([None, 1]))
  with pytest.raises(ValueError, match=r'datasets of batches.*\.unbatch\(\)'):
    models.functional(Undeclared, 'mse', specs, are_batched=True)
  models.functional(Undeclared, 'mse', specs)
