"""Tests of the checks of a step of local training before it is run."""

import dataclasses

import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tff_dp_aggregators.learning import models
from tff_dp_aggregators.learning import packed
from tff_dp_aggregators.learning.packed import training as training_lib

_SPEC = (tf.TensorSpec([2]), tf.TensorSpec([1]))


class _Stateless(tf.keras.layers.Layer):
  """Drops inputs by a seed that depends on them."""

  def call(self, x):
    seed = tf.bitcast(tf.stack([tf.reduce_sum(x), tf.reduce_max(x)]), tf.int32)
    return tf.nn.experimental.stateless_dropout(x, 0.5, seed=seed)


class _Counting(tf.keras.layers.Layer):
  """Changes its own weight."""

  def build(self, input_shape):
    self._count = self.add_weight(name='count', shape=[], trainable=False)

  def call(self, x):
    self._count.assign_add(1.0)
    return x


def _training(*layers, spec=_SPEC):
  def make():
    return tf.keras.Sequential(
      [tf.keras.layers.Input([2]), *(layer() for layer in layers)]
      + [tf.keras.layers.Dense(1)]
    )

  return packed.LocalTraining(
    models.functional(make, 'mse', spec), tff.learning.optimizers.build_sgdm(0.1), 4
  )


@pytest.mark.parametrize(
  'layer',
  [
    lambda: tf.keras.layers.Dropout(0.5, name='forgets'),
    lambda: tf.keras.layers.Lambda(
      lambda x: tf.function(tf.random.shuffle)(x), name='forgets'
    ),
  ],
)
def test_random_operations_are_found_and_refused(layer):
  training = _training(layer)
  assert training_lib.random_operations(training)
  with pytest.raises(
    ValueError, match='(forgets/|Shuffle|shuffle).*Dropout does.*stateless'
  ):
    training_lib.refuse_random_models(training)


@dataclasses.dataclass
class _SignSGD(tff.learning.optimizers.Optimizer):
  rate: float

  def initialize(self, specs):
    return ()

  def next(self, state, weights, gradients):
    steps = tf.nest.map_structure(tf.sign, gradients)
    return state, tf.nest.map_structure(lambda w, s: w - self.rate * s, weights, steps)


def test_optimizers_need_no_hash():
  training = dataclasses.replace(_training(), optimizer=_SignSGD(0.1))
  assert training_lib.random_operations(training) == []


def test_stateless_random_operations_are_accepted():
  assert training_lib.random_operations(_training(_Stateless)) == []


def test_layer_that_changes_its_own_weights_is_refused():
  with pytest.raises(ValueError, match='change weights of their own'):
    training_lib.random_operations(_training(_Counting))
