"""FTRL on cumulative sums is SGD on what the rounds add to them."""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.learning import linear
from tff_dp_aggregators import aggregators
from tff_dp_aggregators import learning
from tff_dp_aggregators import noise
from tff_dp_aggregators import strategies
from tff_dp_aggregators.learning import runtime

_ROUNDS = 7
_PARTICIPATION = strategies.Participation(_ROUNDS, min_separation=2)
_NUMBERS = {
  'clip_norm': 2.0,
  'noise_multiplier': 0.3,
  'clients_per_round': 3,
  'seed': noise.Seed(5),
}


@pytest.fixture(scope='module', autouse=True)
def _runtime():
  with runtime.local_runtime():
    yield


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


def _tree(cumulative):
  return aggregators.tree(_PARTICIPATION, cumulative=cumulative, **_NUMBERS)


def _blt(workload):
  strategy = strategies.BLT(_ROUNDS, (0.3, 0.1), (0.9, 0.5))
  return aggregators.from_strategy(
    strategy, _PARTICIPATION, workload=workload, **_NUMBERS
  )


_SCHEDULE = learning.ServerSchedule(
  strategies.Workload(_ROUNDS, 0.8, tuple(1 / (t + 1) for t in range(_ROUNDS))), 0.3
)
# Cumulative aggregator and its optimizer, residual aggregator and its optimizer.
_PAIRS = {
  'tree': lambda: (
    (_tree(True), learning.build_ftrl(0.2)),
    (_tree(False), tff.learning.optimizers.build_sgdm(0.2)),
  ),
  'tree_with_momentum': lambda: (
    (_tree(True), learning.build_ftrl(0.2, 0.9)),
    (_tree(False), tff.learning.optimizers.build_sgdm(0.2, 0.9)),
  ),
  'blt': lambda: (
    (_blt(strategies.Workload(_ROUNDS)), learning.build_ftrl(0.2)),
    (_blt(None), tff.learning.optimizers.build_sgdm(0.2)),
  ),
  'schedule': lambda: (
    (_blt(_SCHEDULE.workload), _SCHEDULE.ftrl()),
    (_blt(None), _SCHEDULE.optimizer()),
  ),
}


def _models(aggregator, server_optimizer):
  process = learning.build_dp_fed_sgd(
    linear.functional_model(), aggregator, server_optimizer_fn=server_optimizer
  )
  clients = [linear.client(seed) for seed in (1, 2, 3)]
  state, models = process.initialize(), []
  for _ in range(_ROUNDS):
    state = process.next(state, clients).state
    models.append(linear.flat(process.get_model_weights(state)))
  return np.array(models)


@pytest.mark.slow
@pytest.mark.parametrize(
  'name',
  [
    pytest.param('tree', marks=pytest.mark.slow),
    'tree_with_momentum',
    pytest.param('blt', marks=pytest.mark.slow),
    pytest.param('schedule', marks=pytest.mark.slow),
  ],
)
def test_cumulative_and_residual_sums_give_the_same_models(name):
  cumulative, residual = (_models(*pair) for pair in _PAIRS[name]())
  assert np.linalg.norm(residual[-1]) > 0.5
  # Gradients depend on the model: a difference would grow.
  np.testing.assert_allclose(cumulative, residual, atol=5e-6)


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
    ((float('nan'),), ValueError, 'learning_rate must be positive'),
    ((None,), TypeError, 'learning_rate'),
    ((0.1, 1.0), ValueError, 'momentum must be at least 0 and below 1, got 1.0'),
    ((0.1, -0.1), ValueError, 'momentum must be'),
    ((0.1, 'much'), TypeError, 'momentum'),
  ],
)
def test_numbers_out_of_range_are_refused(arguments, error, message):
  with pytest.raises(error, match=message):
    learning.build_ftrl(*arguments)


def test_a_schedule_of_tff_that_would_rewrite_the_past_is_refused():
  optimizer = tff.learning.optimizers.schedule_learning_rate(
    learning.build_ftrl(0.5), lambda this_round: 0.5 / tf.cast(this_round, tf.float32)
  )
  with pytest.raises(KeyError, match='must have learning rate'):
    optimizer.initialize(tf.TensorSpec([1]))
