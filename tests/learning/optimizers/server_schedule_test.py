"""A schedule's optimizer applies its workload, and its strategy is best for it."""

import numpy as np
import pytest
import tensorflow as tf

from tests.learning import linear
from tff_dp_aggregators import accounting
from tff_dp_aggregators import aggregators
from tff_dp_aggregators import learning
from tff_dp_aggregators import strategies

_ROUNDS = 64
_PARTICIPATION = strategies.Participation(_ROUNDS, min_separation=8)
_SCHEDULES = {
  'prefix': learning.ServerSchedule(strategies.Workload(_ROUNDS), 0.3),
  'momentum': learning.ServerSchedule(strategies.Workload(_ROUNDS, momentum=0.9)),
  'cooldown': learning.ServerSchedule(
    strategies.Workload.cooldown(_ROUNDS, momentum=0.9), learning_rate=0.5
  ),
  'weight decay': learning.ServerSchedule(
    strategies.Workload(_ROUNDS, momentum=0.5, weight_decay=0.1), learning_rate=0.5
  ),
}


@pytest.mark.parametrize('name', _SCHEDULES)
def test_models_are_the_workload_applied_to_means(name):
  schedule = _SCHEDULES[name]
  means = np.random.default_rng(1).normal(size=(_ROUNDS, 3)).astype(np.float32)
  optimizer = schedule.optimizer()
  weights = tf.zeros([3])
  state = optimizer.initialize(tf.TensorSpec([3]))
  models = []
  for mean in means:
    state, weights = optimizer.next(state, weights, tf.constant(mean))
    models.append(weights.numpy())
  expected = -schedule.learning_rate * (schedule.workload.materialize() @ means)
  np.testing.assert_allclose(models, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize('name', _SCHEDULES)
def test_sums_of_the_workload_come_to_the_same_models_from_any_start(name):
  schedule = _SCHEDULES[name]
  means = np.random.default_rng(2).normal(size=(_ROUNDS, 3)).astype(np.float32)
  sums = (schedule.workload.materialize() @ means).astype(np.float32)
  models = []
  for optimizer, results in ((schedule.optimizer(), means), (schedule.ftrl(), sums)):
    weights, state = (
      tf.constant([5.0, -3.0, 1.0]),
      optimizer.initialize(tf.TensorSpec([3])),
    )
    for result in results:
      state, weights = optimizer.next(state, weights, tf.constant(result))
      models.append(weights.numpy())
  np.testing.assert_allclose(models[_ROUNDS:], models[:_ROUNDS], rtol=1e-4, atol=1e-4)
  # Of the initial model is left what weight decay says.
  left = (1 - schedule.workload.weight_decay) ** _ROUNDS * np.array([5.0, -3.0, 1.0])
  moved = schedule.learning_rate * sums[-1]
  np.testing.assert_allclose(models[-1], left - moved, rtol=1e-4, atol=1e-4)


def test_weight_decay_of_sums_alone_is_refused():
  workload = strategies.Workload(_ROUNDS, weight_decay=0.1)
  with pytest.raises(ValueError, match='any without weight decay'):
    learning.build_ftrl(0.1).check_workload(workload)


@pytest.mark.parametrize(
  ('kind', 'name'),
  [
    ('toeplitz', 'momentum'),
    ('banded', 'cooldown'),
    ('blt', 'weight decay'),
    pytest.param('epoch_toeplitz', 'cooldown', marks=pytest.mark.slow),
  ],
)
def test_a_strategy_optimised_for_the_workload_has_less_error(kind, name):
  schedule = _SCHEDULES[name]
  ours = schedule.strategy(kind, _PARTICIPATION)
  theirs = accounting.mechanism.strategy_for(kind, _PARTICIPATION)
  rmse = ours.rmse(_PARTICIPATION, schedule.workload)
  assert rmse < 0.97 * theirs.rmse(_PARTICIPATION, schedule.workload)
  assert ours.rmse(_PARTICIPATION) > theirs.rmse(_PARTICIPATION)
  mechanism = accounting.Mechanism('file', _PARTICIPATION, 2.0, strategy=ours)
  aggregator = aggregators.from_mechanism(
    mechanism, clip_norm=1.0, clients_per_round=10
  )
  assert aggregator.strategy == ours


@pytest.mark.parametrize('kind', ['tree', 'toeplitz'])
def test_without_momentum_or_rates_it_is_the_strategy_of_the_name(kind):
  assert _SCHEDULES['prefix'].strategy(
    kind, _PARTICIPATION
  ) == accounting.mechanism.strategy_for(kind, _PARTICIPATION)


def test_options_reach_the_strategy_and_unknown_ones_are_refused():
  schedule = _SCHEDULES['momentum']
  assert schedule.strategy('toeplitz', _PARTICIPATION, num_bands=3).num_bands == 3
  with pytest.raises(ValueError, match='num_bands=3 is for'):
    schedule.strategy('blt', _PARTICIPATION, num_bands=3)
  with pytest.raises(ValueError, match='unknown mechanism'):
    schedule.strategy('bandid', _PARTICIPATION)
  with pytest.raises(ValueError, match='learning rates of the workload change'):
    _SCHEDULES['cooldown'].strategy('blt', _PARTICIPATION)


def test_other_rounds_are_refused():
  schedule = _SCHEDULES['momentum']
  other = strategies.Participation(_ROUNDS + 1, min_separation=8)
  with pytest.raises(ValueError, match='the workload is for 64 rounds'):
    schedule.strategy('toeplitz', other)
  numbers = {'clip_norm': 1.0, 'noise_multiplier': 1.0, 'clients_per_round': 10}
  with pytest.raises(ValueError, match='num_rounds=65, but the schedule .* for 64'):
    learning.build_dp_fed_avg(
      linear.functional_model(),
      aggregators.gaussian(other, **numbers),
      server_optimizer_fn=schedule.optimizer(),
    )


@pytest.mark.parametrize(
  ('arguments', 'error', 'message'),
  [
    ((np.tri(3),), TypeError, 'workload must be a strategies.Workload'),
    ((strategies.Workload(3), 0.0), ValueError, 'learning_rate must be positive'),
  ],
)
def test_what_is_no_schedule_is_refused(arguments, error, message):
  with pytest.raises(error, match=message):
    learning.ServerSchedule(*arguments)
