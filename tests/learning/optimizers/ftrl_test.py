"""FTRL on cumulative sums is SGD on what the rounds add to them."""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.learning import training_runs
from tff_dp_aggregators import accounting
from tff_dp_aggregators import learning
from tff_dp_aggregators import strategies
from tff_dp_aggregators.learning.optimizers import ftrl


def _dp_ftrl(initial, sums, learning_rate, momentum):
  """Algorithm 1 and its momentum variant: models, from noisy prefix sums."""
  velocity, models = np.zeros_like(initial), []
  for total in sums:
    velocity = momentum * velocity + total
    models.append(initial - learning_rate * velocity)
  return models


@pytest.mark.parametrize('momentum', [0.0, 0.9])
def test_models_are_those_of_the_paper(momentum):
  rng = np.random.default_rng(1)
  initial = {'kernel': rng.normal(size=[2, 3]), 'bias': [rng.normal(size=3)]}
  sums = {'kernel': rng.normal(size=[9, 2, 3]), 'bias': [rng.normal(size=[9, 3])]}
  optimizer = learning.build_ftrl(0.25, momentum)
  weights = tf.nest.map_structure(lambda array: tf.constant(array), initial)
  specs = tf.nest.map_structure(tf.TensorSpec.from_tensor, weights)
  state = optimizer.initialize(specs)
  models = []
  for t in range(9):
    total = tf.nest.map_structure(lambda array: tf.constant(array[t]), sums)  # noqa: B023
    state, weights = optimizer.next(state, weights, total)
    models.append(weights)
  for t in range(9):
    for name in ('kernel', 'bias'):
      first, all_sums = tf.nest.flatten((initial[name], sums[name]))
      expected = _dp_ftrl(first, all_sums, 0.25, momentum)[t]
      (found,) = tf.nest.flatten(models[t][name])
      np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_a_model_that_is_set_is_where_it_goes_on_from():
  optimizer = learning.build_ftrl(0.5)
  weights = tf.constant([1.0])
  state = optimizer.initialize(tf.TensorSpec.from_tensor(weights))
  state, weights = optimizer.next(state, weights, tf.constant([2.0]))
  assert weights.numpy() == [0.0]
  state, weights = optimizer.next(state, tf.constant([10.0]), tf.constant([3.0]))
  assert weights.numpy() == [9.5]
  _, weights = optimizer.next(state, weights, tf.constant([5.0]))
  assert weights.numpy() == [8.5]


@pytest.mark.parametrize(
  ('arguments', 'error', 'message'),
  [
    ((0.0,), ValueError, 'learning_rate must be positive'),
    ((0.1, 1.0), ValueError, 'momentum must be at least 0 and below 1, got 1.0'),
    ((0.1, 'much'), TypeError, 'momentum'),
  ],
)
def test_numbers_out_of_range_are_refused(arguments, error, message):
  with pytest.raises(error, match=message):
    learning.build_ftrl(*arguments)


@pytest.mark.parametrize('momentum', [0.0, 0.9])
def test_models_are_those_of_ftrl_on_the_sums(momentum):
  rng = np.random.default_rng(2)
  means = [{'a': rng.normal(size=[2, 3]), 'b': [rng.normal(size=4)]} for _ in range(6)]
  weights = tf.nest.map_structure(lambda each: tf.constant(rng.normal(each)), means[0])
  specs = tf.nest.map_structure(tf.TensorSpec.from_tensor, weights)
  on_sums = learning.build_ftrl(0.25, momentum)
  on_means = ftrl.FTRLOnMeans(on_sums)
  state, model = on_means.initialize(specs), weights
  expected_state, expected = on_sums.initialize(specs), weights
  total = tf.nest.map_structure(np.zeros_like, means[0])
  for mean in means:
    total = tf.nest.map_structure(np.add, total, mean)
    state, model = on_means.next(state, model, tf.nest.map_structure(tf.constant, mean))
    expected_state, expected = on_sums.next(
      expected_state, expected, tf.nest.map_structure(tf.constant, total)
    )
    for found, same in zip(tf.nest.flatten(model), tf.nest.flatten(expected)):
      np.testing.assert_allclose(found, same, rtol=1e-12)


def _train(run_dir, optimizer, **changes):
  limits = strategies.Participation(5, min_separation=3)
  mechanism = accounting.Mechanism('tree', limits, 0.5)
  return training_runs.train(
    run_dir, server_optimizer=optimizer, mechanism=mechanism, **changes
  )


@pytest.mark.slow
def test_a_run_that_was_stopped_trains_to_the_model_of_sgd(tmp_path):
  on_sums, sgd = learning.build_ftrl(0.5, 0.9), tff.learning.optimizers.build_sgdm
  changes = {'checkpoint_seconds': 0.0, 'test_metrics': training_runs.killing(3)}
  with pytest.raises(training_runs.Killed):
    _train(tmp_path / 'ftrl', on_sums, **changes)
  changes['test_metrics'] = training_runs.killing(0)
  results = [
    _train(tmp_path / name, optimizer, **changes)
    for name, optimizer in (('ftrl', on_sums), ('sgd', sgd(0.5, 0.9)))
  ]
  found, expected = (result.weights.trainable[0] for result in results)
  np.testing.assert_allclose(found, expected, rtol=2e-5)
  assert np.any(np.abs(expected) > 0.1)


def test_a_schedule_of_tff_that_would_rewrite_the_past_is_refused():
  optimizer = tff.learning.optimizers.schedule_learning_rate(
    learning.build_ftrl(0.5), lambda this_round: 0.5 / tf.cast(this_round, tf.float32)
  )
  with pytest.raises(KeyError, match='must have learning rate'):
    optimizer.initialize(tf.TensorSpec([1]))
