"""Models have the published sizes, and compute what Keras computes.

They train to the same weights however clients are packed.
"""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from experiments.data import population
from experiments.models import kind
from experiments.models import networks
from tff_dp_aggregators import learning


def _images(*inputs, num_classes=10):
  return population.Shape(inputs, 'float32', (), 'class', num_classes)


def _tokens(length, num_tokens):
  return population.Shape(
    (length,), 'int32', (length,), 'tokens', num_tokens, ignored_labels=(0,)
  )


def _numbers(*inputs, labels=()):
  return population.Shape(inputs, 'float32', labels, 'number')


SHAPES = {
  'logistic': _images(5, num_classes=3),
  'linear': _numbers(5),
  'mlp': _images(5, num_classes=3),
  'cnn': _images(8, 8, 1, num_classes=3),
  'simple_cnn': _images(8, 8, num_classes=3),
  'vgg': _images(8, 8, 3, num_classes=3),
  'char_lstm': _tokens(6, 9),
  'word_lstm': _tokens(6, 9),
}
SMALL = {'hidden_units': 4, 'embedding_size': 3}


def _build(name, shape, widths=None, seed=1):
  made = kind.KINDS[name]
  fitting = {key: width for key, width in (widths or {}).items() if key in made.widths}
  return made.build(shape, seed, **fitting)


def _inputs(shape, count, seed=0):
  rng = np.random.default_rng(seed)
  if shape.input_dtype == 'int32':
    return rng.integers(1, shape.num_classes, (count, *shape.inputs)).astype(np.int32)
  return rng.normal(size=(count, *shape.inputs)).astype(np.float32)


def _outputs(model, inputs):
  weights = tf.nest.map_structure(tf.constant, model.initial_weights)
  return model.predict_on_batch(weights, tf.constant(inputs), training=False).numpy()


@pytest.mark.parametrize(
  'name, shape, expected',
  [
    ('mlp', _images(28, 28), 199_210),  # arXiv:1602.05629
    ('cnn', _images(28, 28, 1), 1_663_370),  # arXiv:1602.05629 and arXiv:2103.00039.
    ('simple_cnn', _images(28, 28), 1_199_882),  # arXiv:2003.00295, tff.simulation
    ('simple_cnn', _images(32, 32, 3), 1_626_442),  # pfl-research, layer by layer.
    ('vgg', _images(32, 32, 3), 550_570),  # google-research/DP-FTRL, layer by layer.
    ('char_lstm', _tokens(80, 90), 820_522),  # arXiv:2003.00295
    ('word_lstm', _tokens(20, 10_004), 4_050_748),  # arXiv:2003.00295
  ],
)
def test_number_of_weights_matches_published_models(name, shape, expected):
  trainable, rest = _build(name, shape).initial_weights
  assert sum(each.size for each in trainable) == expected
  assert rest == ()
  assert {each.dtype for each in trainable} == {np.dtype(np.float32)}


@pytest.mark.parametrize('name', SHAPES)
def test_outputs_have_a_number_for_each_class_token_or_label(name):
  shape = SHAPES[name]
  outputs = _outputs(_build(name, shape, SMALL), _inputs(shape, 2))
  expected = (2, *shape.labels, shape.num_classes or 1)
  assert outputs.shape == expected
  assert np.isfinite(outputs).all()


@pytest.mark.parametrize('name', ['logistic', 'linear'])
def test_linear_models_start_at_zero(name):
  model = _build(name, SHAPES[name], SMALL)
  assert not any(each.any() for each in model.initial_weights[0])


@pytest.mark.parametrize('name', ['mlp', 'vgg', 'word_lstm'])
def test_initial_weights_depend_only_on_seed(name):
  def weights(seed):
    model = _build(name, SHAPES[name], SMALL, seed)
    return np.concatenate([each.ravel() for each in model.initial_weights[0]])

  assert np.array_equal(weights(1), weights(1))
  assert not np.array_equal(weights(1), weights(2))


def test_lstm_and_its_gradient_match_keras():
  rng = np.random.default_rng([3, 1])
  x = tf.constant(rng.normal(size=(4, 7, 5)).astype(np.float32))
  upstream = tf.constant(rng.normal(size=(4, 7, 6)).astype(np.float32))
  weights = [tf.constant(each) for each in networks.lstm_weights(rng, 5, 6)]
  keras = tf.keras.layers.LSTM(6, return_sequences=True)
  keras.build(x.shape)
  keras.set_weights([each.numpy() for each in weights])
  with tf.GradientTape(persistent=True) as tape:
    tape.watch([x, *weights])
    actual, of_keras = networks.lstm(x, *weights), keras(x)
    summed = [tf.reduce_sum(each * upstream) for each in (actual, of_keras)]
  np.testing.assert_allclose(actual, of_keras, atol=1e-6)
  gradients = tape.gradient(summed[0], [x, *weights])
  expected = tape.gradient(summed[1], [x, *keras.trainable_weights])
  for gradient, reference in zip(gradients, expected):
    np.testing.assert_allclose(gradient, reference, atol=2e-6)


def test_padding_does_not_change_outputs_before_it():
  shape = SHAPES['word_lstm']
  model = _build('word_lstm', shape, SMALL)
  whole = _inputs(shape, 1)
  padded = whole.copy()
  padded[:, 4:] = 0
  assert np.array_equal(_outputs(model, whole)[:, :4], _outputs(model, padded)[:, :4])


def test_initializers_have_the_variance_of_their_names():
  rng = np.random.default_rng(1)
  size = 400  # So large that standard deviations are measured to one per cent.
  for draw, variance in (
    (networks.glorot_uniform, 1 / size),
    (networks.glorot_normal, 1 / size),
    (networks.lecun_normal, 1 / size),
    (networks.he_normal, 2 / size),
  ):
    assert np.std(draw(rng, size, size)) == pytest.approx(variance**0.5, rel=0.01)
  wide = networks.orthogonal(rng, 5, 20)
  np.testing.assert_allclose(wide @ wide.T, np.eye(5), atol=1e-6)
  _, _, bias = networks.lstm_weights(rng, 2, 3)
  assert bias.tolist() == [0, 0, 0, 1, 1, 1, 0, 0, 0, 0, 0, 0]


def _clients(shape, sizes):
  rng = np.random.default_rng(5)
  clients = {}
  for number, size in enumerate(sizes):
    labels = rng.integers(0, shape.num_classes, (size, *shape.labels))
    clients[number] = {
      'x': _inputs(shape, size, seed=number),
      'y': labels.astype(np.int32),
    }
  return clients


@pytest.mark.slow
@pytest.mark.parametrize('name', ['cnn', 'char_lstm'])
def test_packed_and_unpacked_clients_train_to_same_weights(name, tmp_path):
  shape, model = SHAPES[name], _build(name, SHAPES[name], SMALL)
  results = [
    learning.train(
      model,
      _clients(shape, [3, 1, 4, 2]),  # Batches of 2 are padded for 3 and 1.
      None,
      str(tmp_path / f'packed-{is_packed}'),
      delta=1e-3,
      clients_per_round=3,
      num_rounds=2,
      seed=1,
      local=learning.ClientTraining(
        batch_size=2, optimizer=tff.learning.optimizers.build_sgdm(0.5)
      ),
      run=learning.RunOptions(packed_simulation=is_packed),
    )
    for is_packed in (True, False)
  ]
  moved = 0.0
  for packed, unpacked, before in zip(
    *(result.weights.trainable for result in results), model.initial_weights[0]
  ):
    np.testing.assert_allclose(packed, unpacked, rtol=1e-4, atol=1e-6)
    moved = max(moved, np.max(np.abs(packed - before)))
  assert moved > 1e-3
