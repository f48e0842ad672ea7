"""Many trainings in one process."""

import gc
import threading

import numpy as np
import pytest
import tensorflow as tf

from tests.learning import training_runs
from tff_dp_aggregators import learning


def _train(run_dir, seed=7):
  """A training of a Keras model, as most are."""
  return learning.train(
    lambda: tf.keras.Sequential([tf.keras.layers.Dense(1, input_shape=[2])]),
    training_runs.clients(),
    None,
    str(run_dir),
    loss=tf.keras.losses.MeanSquaredError(),
    clients_per_round=3,
    num_rounds=2,
    seed=seed,
    local=learning.ClientTraining(batch_size=2),
    test=training_runs.clients()['client 3'],
  )


def _graphs():
  gc.collect()
  return sum(isinstance(each, tf.Graph) for each in gc.get_objects())


@pytest.mark.slow
def test_a_training_leaves_no_graph_behind(tmp_path):
  counts = []
  for number in range(4):
    _train(tmp_path / f'run {number}')
    counts.append(_graphs())
  assert counts[3] == counts[2] <= counts[1]


@pytest.mark.slow
def test_trainings_of_two_threads_are_those_of_one(tmp_path):
  found, errors = {}, []

  def train(seed):
    try:
      result = _train(tmp_path / f'of thread {seed}', seed)
      found[seed] = result.weights.trainable[0]
    except BaseException as e:
      errors.append(e)

  threads = [threading.Thread(target=train, args=(seed,)) for seed in (1, 2)]
  for each in threads:
    each.start()
  for each in threads:
    each.join()
  assert not errors and set(found) == {1, 2}
  assert np.all(found[1] != found[2])
  alone = _train(tmp_path / 'alone', 1).weights.trainable[0]
  np.testing.assert_array_equal(found[1], alone)
