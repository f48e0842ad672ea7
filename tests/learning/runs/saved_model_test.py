"""Tests that `learning.load` returns the trained model of a run."""

import os
import shutil
import stat

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.learning import training_runs
from tff_dp_aggregators import learning
from tff_dp_aggregators.learning import models
from tff_dp_aggregators.learning.runs import run_directory
from tff_dp_aggregators.learning.runs import saved_model


@tf.keras.saving.register_keras_serializable('tests')
class Doubled(tf.keras.layers.Layer):
  """A custom layer that is registered."""

  def call(self, x):
    return 2 * x


class Halved(tf.keras.layers.Layer):
  """A custom layer that is not registered."""

  def call(self, x):
    return x / 2


def _dense(*layers):
  def make():
    return tf.keras.Sequential(
      [
        tf.keras.layers.Dense(3, activation='tanh', input_shape=[2]),
        *(layer() for layer in layers),
        tf.keras.layers.Dense(1),
      ]
    )

  return make


def _examples():
  """Returns inputs and labels that no client has."""
  x = np.random.default_rng(5).normal(size=[20, 2]).astype(np.float32)
  return x, (x @ np.float32([[1.0], [-2.0]])).astype(np.float32)


def _train(run_dir, model, **changes):
  arguments = {
    **training_runs.arguments(run_dir, num_rounds=2, noise_seed=None),
    'mechanism': None,
    'clip_norm': None,
    'model': model,
    'test_data': _examples(),
    'loss': tf.keras.losses.MeanSquaredError(),
    **changes,
  }
  return learning.train(**training_runs.grouped(**arguments))


def _loss(model):
  x, y = _examples()
  return float(np.mean(np.square(np.asarray(model(x)) - y)))


@pytest.fixture(scope='module')
def functional_run(tmp_path_factory):
  """Returns a functional model's run, and a copy as if killed in its third round."""
  folder = tmp_path_factory.mktemp('functional')
  run_dir, stopped = str(folder / 'run'), str(folder / 'stopped')
  changes = {
    'loss': None,
    'num_rounds': 4,
    'preprocessing': {'means': [1.5]},
    'test_metrics': training_runs.act_in(3, lambda: shutil.copytree(run_dir, stopped)),
    'checkpoint_seconds': 0.0,
  }
  return run_dir, stopped, _train(run_dir, training_runs.model(), **changes)


@pytest.fixture(scope='module')
def keras_run(tmp_path_factory):
  """Returns a run of a function that makes a Keras model."""
  run_dir = str(tmp_path_factory.mktemp('plain') / 'run')
  return run_dir, _train(run_dir, _dense(), preprocessing={'means': [1.5]})


def test_load_returns_keras_model_with_trained_weights(keras_run):
  run_dir, result = keras_run
  loaded = learning.load(run_dir)
  assert isinstance(loaded, tf.keras.Model)
  assert _loss(loaded) == pytest.approx(result.metrics['test_loss'], rel=1e-6)
  assert _loss(result.model) == _loss(loaded)
  for variable, array in zip(loaded.trainable_variables, result.weights.trainable):
    np.testing.assert_array_equal(variable.numpy(), array)


@pytest.mark.slow
def test_load_restores_model_with_several_inputs_and_custom_layers(tmp_path):
  one = tf.keras.Input([2], name='one')
  other = tf.keras.Input([1], name='other')
  both = Halved()(Doubled()(tf.keras.layers.Concatenate()([one, other])))
  model = tf.keras.Model({'one': one, 'other': other}, tf.keras.layers.Dense(1)(both))

  def named(x):
    return {'one': x, 'other': x[:, :1] ** 2}

  clients = {id_: (named(x), y) for id_, (x, y) in training_runs.clients().items()}
  x, y = _examples()
  run_dir = str(tmp_path / 'run')
  result = _train(run_dir, model, clients=clients, test_data=(named(x), y))
  loaded = learning.load(run_dir, custom_objects={'Halved': Halved})
  loss = np.mean(np.square(loaded(named(x)).numpy() - y))
  assert loss == pytest.approx(result.metrics['test_loss'], rel=1e-6)


def test_load_returns_functional_model_that_can_be_called(functional_run):
  run_dir, _, result = functional_run
  loaded = learning.load(run_dir)
  assert isinstance(loaded, tff.learning.models.FunctionalModel)
  assert _loss(loaded) == pytest.approx(result.metrics['test_loss'], rel=1e-6)
  x, y = _examples()
  assert float(loaded.loss(loaded(x), y)) == pytest.approx(_loss(loaded), rel=1e-6)


def test_load_refuses_run_without_a_checkpointed_round(functional_run, tmp_path):
  run_dir = tmp_path / 'run'
  with pytest.raises(FileNotFoundError, match='model.npz'):
    learning.load(str(run_dir))
  shutil.copytree(functional_run[0], run_dir)
  # The weights of the first checkpoint, which is before the first round.
  first = {'trainable_0': np.zeros([2, 1], np.float32)}
  np.savez(run_dir / run_directory.MODEL, **first)
  with pytest.raises(ValueError, match='weights of none of the 4 rounds'):
    learning.load(str(run_dir))


def test_resuming_with_other_preprocessing_is_refused(functional_run):
  changes = {'num_rounds': 4, 'loss': None, 'preprocessing': {'means': [2.0]}}
  os.unlink(os.path.join(functional_run[1], run_directory.ORIGINAL))
  with pytest.raises(ValueError, match='preprocessing is not that'):
    _train(functional_run[1], training_runs.model(), **changes)


def test_load_of_stopped_run_returns_a_released_model(functional_run):
  _, stopped, result = functional_run
  weights = learning.load(stopped).initial_weights[0][0]
  assert np.any(weights) and np.any(weights != result.weights.trainable[0])


def _with_constants():
  projection = np.random.normal(size=(2, 20)).astype(np.float32)  # noqa: NPY002
  layer = tf.keras.layers.Lambda(lambda x: tf.matmul(x, projection), input_shape=[2])
  return tf.keras.Sequential([layer, tf.keras.layers.Dense(1)])


@pytest.mark.slow
def test_load_with_model_function_restores_drawn_constants(tmp_path):
  run_dir = str(tmp_path / 'run')
  result = _train(run_dir, _with_constants, num_rounds=1)
  # Keras does not load lambdas.
  with pytest.raises(saved_model.NotKeptError, match=r'load\(run_dir, model=make_mode'):
    learning.load(run_dir)
  for model in (result.model, learning.load(run_dir, model=_with_constants)):
    assert _loss(model) == pytest.approx(result.metrics['test_loss'], rel=1e-4)

  def model_of_same_shapes():
    layer = tf.keras.layers.Lambda(lambda x: tf.matmul(x, np.ones([2, 20], 'f')))
    return tf.keras.Sequential([layer, tf.keras.layers.Dense(1)])

  for make in (_dense(), model_of_same_shapes):
    with pytest.raises(ValueError, match='give the model that was trained'):
      learning.load(run_dir, model=make)
  with pytest.raises(TypeError, match='got str'):
    learning.load(run_dir, model='mine')


def test_load_restores_model_that_is_not_finite_for_some_inputs(tmp_path):
  def logarithm_and_mean_of_masked():
    numbers, tokens = tf.keras.Input([2]), tf.keras.Input([2])
    embedded = tf.keras.layers.Embedding(9, 3, mask_zero=True)(tokens)
    mean = tf.keras.layers.GlobalAveragePooling1D()(embedded)
    joined = tf.keras.layers.Concatenate()([tf.math.log1p(numbers), mean])
    return tf.keras.Model([numbers, tokens], tf.keras.layers.Dense(1)(joined))

  rng = np.random.default_rng(3)
  x = (rng.random([4, 2], np.float32), rng.integers(1, 9, [4, 2]).astype(np.float32))
  y = rng.normal(size=[4, 1]).astype(np.float32)
  trained = learning.train(
    logarithm_and_mean_of_masked,
    {'first': {'x': x, 'y': y}, 'second': {'x': x, 'y': y}},
    None,
    str(tmp_path),
    clients_per_round=2,
    num_rounds=1,
    loss='mse',
    seed=1,
  )
  loaded = learning.load(str(tmp_path), model=logarithm_and_mean_of_masked)
  np.testing.assert_array_equal(loaded(x), trained.model(x))
  assert np.isfinite(loaded(x)).all()


def test_load_with_model_function_builds_missing_weights(keras_run, tmp_path):
  def model_without_inputs():
    return tf.keras.Sequential(
      [tf.keras.layers.Dense(3, activation='tanh'), tf.keras.layers.Dense(1)]
    )

  run_dir, result = tmp_path / 'run', keras_run[1]
  shutil.copytree(keras_run[0], run_dir)
  loaded = learning.load(str(run_dir), model=model_without_inputs)
  assert loaded.input_shape == (None, 2)
  loss = _loss(loaded)
  assert loss == pytest.approx(result.metrics['test_loss'], rel=1e-6)
  (run_dir / run_directory.KERAS_ARCHITECTURE).unlink()
  with pytest.raises(ValueError, match='call it once with some of them'):
    learning.load(str(run_dir), model=model_without_inputs)
  with pytest.raises(saved_model.NotKeptError, match='of an earlier version'):
    learning.load(str(run_dir))


def test_model_that_cannot_be_saved_is_reported(tmp_path, capfd):
  class Unsaved(tf.keras.layers.Layer):
    def call(self, x):
      return x

    def get_config(self):
      raise NotImplementedError('no configuration')

  specs = tf.TensorSpec([2]), tf.TensorSpec([1])
  model = models.functional(_dense(Unsaved), 'mse', specs)
  with run_directory.RunDirectory(str(tmp_path / 'run')) as directory:
    saved_model.save(directory, model)
    assert not directory.has(run_directory.KERAS_ARCHITECTURE)
  assert 'cannot be kept (NotImplementedError' in ' '.join(capfd.readouterr())


def test_architecture_and_preprocessing_are_private(keras_run, functional_run):
  for name, (run_dir, *_) in (
    (run_directory.KERAS_ARCHITECTURE, keras_run),
    (run_directory.ARCHITECTURE, functional_run),
  ):
    shared = set(os.listdir(os.path.join(run_dir, 'share')))
    assert not shared & {name, run_directory.PREPROCESSING}
    for each in (name, run_directory.PREPROCESSING):
      mode = os.stat(os.path.join(run_dir, each)).st_mode
      assert not stat.S_IMODE(mode) & 0o077, each
