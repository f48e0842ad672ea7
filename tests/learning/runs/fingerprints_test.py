"""Tests of the fingerprints of graphs."""

import os
import pathlib
import subprocess
import sys

import pytest
import tensorflow as tf

from tff_dp_aggregators.learning import models
from tff_dp_aggregators.learning.runs import plan

ROOT = pathlib.Path(__file__).resolve().parents[3]
_SPEC = tf.TensorSpec([None, 2])


def _inner(factor):
  return tf.function(lambda x: factor * x)


def _recurrent():
  """Returns a model whose graph has loops, branches and functions with random names."""
  return models.functional(
    lambda: tf.keras.Sequential(
      [tf.keras.layers.LSTM(2, input_shape=[3, 2]), tf.keras.layers.Dropout(0.5)]
    ),
    tf.keras.losses.MeanSquaredError(),
    (tf.TensorSpec([3, 2]), tf.TensorSpec([2])),
  )


def test_fingerprint_depends_on_operations_constants_and_functions():
  functions = [
    tf.nn.relu,
    tf.nn.elu,
    lambda x: x + 1.0,
    lambda x: x + 2.0,
    lambda x: 2.0 - x,
    lambda x: x - 2.0,
    _inner(1.0),
    _inner(2.0),
    lambda x: (x, x + 1.0),
    lambda x: (x + 1.0, x),
    lambda x: tf.cond(tf.reduce_sum(x) > 0, lambda: x, lambda: 2 * x),
    lambda x: tf.cond(tf.reduce_sum(x) > 0, lambda: x, lambda: 3 * x),
    lambda x: tf.split(x, 2, axis=1)[0],
    lambda x: tf.split(x, 2, axis=1)[1],
  ]
  distinct = {plan.fingerprint(function, _SPEC) for function in functions}
  assert len(distinct) == len(functions)


def test_fingerprint_does_not_depend_on_names():
  def named(x):
    return tf.identity(_inner(2.0)(x), name='other')

  def plain(x):
    return tf.identity(_inner(2.0)(x))

  assert plan.fingerprint(named, _SPEC) == plan.fingerprint(plain, _SPEC)


@pytest.mark.slow
def test_fingerprint_of_recurrent_model_is_same_in_another_process():
  program = (
    'import tensorflow as tf; tf.keras.layers.Dense(1)(tf.zeros([1, 1]));'
    'from tests.learning.runs import fingerprints_test as here;'
    'print(here.plan.model_fingerprint(here._recurrent())["graph"])'
  )
  result = subprocess.run(
    [sys.executable, '-c', program],
    cwd=ROOT,
    env={**os.environ, 'PYTHONPATH': str(ROOT), 'PYTHONHASHSEED': '7'},
    stdout=subprocess.PIPE,
    check=True,
    text=True,
  )
  assert result.stdout.strip() == plan.model_fingerprint(_recurrent())['graph']
