"""Tests of FTRL, of server schedules, and of clients' learning rates by round."""

import json

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.learning import linear
from tests.learning import training_runs
from tff_dp_aggregators import accounting
from tff_dp_aggregators import aggregators
from tff_dp_aggregators import learning
from tff_dp_aggregators import sampling
from tff_dp_aggregators import strategies
from tff_dp_aggregators.accounting.reports import learning_curves
from tff_dp_aggregators.learning import local_order
from tff_dp_aggregators.learning import optimizers
from tff_dp_aggregators.sampling import draws

_sgd = tff.learning.optimizers.build_sgdm


@pytest.mark.parametrize('momentum', [0.0, 0.9])
def test_ftrl_matches_the_paper_on_sums_and_on_means(momentum):
  """Compares with Algorithm 1 of arXiv:2103.00039, DP-FTRL, and with DP-FTRLM."""
  rng = np.random.default_rng(1)
  initial, means = rng.normal(size=[2, 3]), rng.normal(size=[9, 2, 3])
  sums = np.cumsum(means, axis=0)
  on_sums = learning.build_ftrl(0.25, momentum)
  for optimizer, results in ((on_sums, sums), (on_sums.on_means(), means)):
    weights = {'b': [tf.constant(initial[0])], 'a': tf.constant(initial[1])}
    specs = tf.nest.map_structure(tf.TensorSpec.from_tensor, weights)
    state, velocity = optimizer.initialize(specs), 0
    for total, (first, second) in zip(sums, results):
      velocity = momentum * velocity + total
      result = {'b': [tf.constant(first)], 'a': tf.constant(second)}
      state, weights = optimizer.next(state, weights, result)
      actual = [weights['b'][0], weights['a']]
      np.testing.assert_allclose(actual, initial - 0.25 * velocity, rtol=1e-12)


def test_ftrl_continues_from_a_model_that_was_set():
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
  ('build', 'arguments', 'error', 'message'),
  [
    (learning.build_ftrl, (0.0,), ValueError, 'learning_rate must be positive'),
    (learning.build_ftrl, (0.1, 1.0), ValueError, 'at least 0 and below 1, got 1.0'),
    (learning.build_ftrl, (0.1, 'much'), TypeError, 'momentum'),
    (learning.ServerSchedule, (np.tri(3),), TypeError, 'must be a strategies.Workload'),
    (
      learning.ServerSchedule,
      (strategies.Workload(3), 0.0),
      ValueError,
      'learning_rate must be positive',
    ),
  ],
)
def test_invalid_arguments_of_ftrl_and_server_schedules_are_refused(
  build, arguments, error, message
):
  with pytest.raises(error, match=message):
    build(*arguments)


def test_ftrl_refuses_learning_rate_schedule_of_tff():
  # On sums, a new learning rate would apply to past rounds as well.
  optimizer = tff.learning.optimizers.schedule_learning_rate(
    learning.build_ftrl(0.5), lambda this_round: 0.5 / tf.cast(this_round, tf.float32)
  )
  with pytest.raises(KeyError, match='must have learning rate'):
    optimizer.initialize(tf.TensorSpec([1]))


def _dtypes(state):
  return tf.nest.map_structure(lambda leaf: tf.convert_to_tensor(leaf).dtype, state)


def test_adafactor_steps_match_tff_and_state_keeps_dtypes():
  tff_optimizer = tff.learning.optimizers.build_adafactor(0.1)
  optimizer = optimizers.check_optimizer('optimizer', tff_optimizer)
  specs = [tf.TensorSpec([3, 2]), tf.TensorSpec([2])]
  tff_state, state = tff_optimizer.initialize(specs), optimizer.initialize(specs)
  dtypes = _dtypes(state)
  tff_weights = weights = [tf.ones([3, 2]), tf.ones([2])]
  for seed in range(3):
    rng = np.random.default_rng(seed)
    gradients = [tf.constant(rng.normal(size=s.shape), tf.float32) for s in specs]
    tff_state, tff_weights = tff_optimizer.next(tff_state, tff_weights, gradients)
    state, weights = optimizer.next(state, weights, gradients)
    assert _dtypes(state) == dtypes
  for one, other in zip(weights, tff_weights):
    np.testing.assert_array_equal(one, other)
  # This is what the check repairs: TFF's own state does not keep its types.
  assert _dtypes(tff_state['steps']) != dtypes['steps']


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
def test_optimizer_on_means_and_ftrl_on_workload_sums_apply_the_workload(name):
  schedule = _SCHEDULES[name]
  means = np.random.default_rng(2).normal(size=(_ROUNDS, 3)).astype(np.float32)
  sums = (schedule.workload.materialize() @ means).astype(np.float32)
  initial = tf.constant([5.0, -3.0, 1.0])
  # Weight decay shrinks the initial model.
  shares = (1 - schedule.workload.weight_decay) ** np.arange(1, _ROUNDS + 1)
  expected = np.outer(shares, initial) - schedule.learning_rate * sums
  for optimizer, results in ((schedule.optimizer(), means), (schedule.ftrl(), sums)):
    weights, state = initial, optimizer.initialize(tf.TensorSpec([3]))
    models = []
    for result in results:
      state, weights = optimizer.next(state, weights, tf.constant(result))
      models.append(weights.numpy())
    np.testing.assert_allclose(models, expected, rtol=1e-4, atol=1e-4)


def test_build_ftrl_refuses_workload_with_weight_decay():
  workload = strategies.Workload(_ROUNDS, weight_decay=0.1)
  with pytest.raises(ValueError, match='any without weight decay'):
    learning.build_ftrl(0.1).check_workload(workload)


@pytest.mark.parametrize(
  ('kind', 'name'),
  [
    ('toeplitz', 'momentum'),
    ('banded', 'cooldown'),
    ('blt', 'weight decay'),
  ],
)
def test_strategy_optimised_for_workload_has_less_error(kind, name):
  schedule = _SCHEDULES[name]
  optimised = schedule.strategy(kind, _PARTICIPATION)
  default = accounting.mechanism.strategy_for(kind, _PARTICIPATION)
  rmse = optimised.rmse(_PARTICIPATION, schedule.workload)
  assert rmse < 0.97 * default.rmse(_PARTICIPATION, schedule.workload)
  assert optimised.rmse(_PARTICIPATION) > default.rmse(_PARTICIPATION)
  mechanism = accounting.Mechanism('file', _PARTICIPATION, 2.0, strategy=optimised)
  aggregator = aggregators.from_mechanism(
    mechanism, clip_norm=1.0, clients_per_round=10
  )
  assert aggregator.strategy == optimised


@pytest.mark.parametrize('kind', ['tree', 'toeplitz'])
def test_plain_workload_has_the_default_strategy(kind):
  assert _SCHEDULES['prefix'].strategy(
    kind, _PARTICIPATION
  ) == accounting.mechanism.strategy_for(kind, _PARTICIPATION)


def test_strategy_takes_options_and_refuses_unknown_ones():
  schedule = _SCHEDULES['momentum']
  assert schedule.strategy('toeplitz', _PARTICIPATION, num_bands=3).num_bands == 3
  with pytest.raises(ValueError, match='num_bands=3 is for'):
    schedule.strategy('blt', _PARTICIPATION, num_bands=3)
  with pytest.raises(ValueError, match='unknown mechanism'):
    schedule.strategy('bandid', _PARTICIPATION)
  with pytest.raises(ValueError, match='learning rates of the workload change'):
    _SCHEDULES['cooldown'].strategy('blt', _PARTICIPATION)


def test_schedule_for_another_number_of_rounds_is_refused():
  schedule = _SCHEDULES['momentum']
  longer = strategies.Participation(_ROUNDS + 1, min_separation=8)
  with pytest.raises(ValueError, match='the workload is for 64 rounds'):
    schedule.strategy('toeplitz', longer)
  numbers = {'clip_norm': 1.0, 'noise_multiplier': 1.0, 'clients_per_round': 10}
  with pytest.raises(ValueError, match='num_rounds=65, but the schedule .* for 64'):
    learning.build_dp_fed_avg(
      linear.functional_model(),
      aggregators.gaussian(longer, **numbers),
      server_optimizer_fn=schedule.optimizer(),
    )


_RUN_ROUNDS = 4
_RATES = [0.4, 0.2, 0.1, 0.05]
# Batches of two have to be padded.
_CLIENTS = training_runs.clients(sizes=(2, 3, 4, 5))


def _train(run_dir, **changes):
  arguments = {
    'clients': _CLIENTS,
    'mechanism': None,
    'num_rounds': _RUN_ROUNDS,
    'clip_norm': None,
    'noise_seed': None,
    'server_optimizer': _sgd(1.0),
    'learning_rate_fn': lambda round_num: 0.4 * 0.5**round_num,
    **changes,
  }
  return training_runs.train(run_dir, **arguments)


@pytest.fixture(scope='module')
def packed_run(tmp_path_factory):
  run_dir = tmp_path_factory.mktemp('runs') / 'packed'
  return run_dir, _train(run_dir, test_metrics=training_runs.kill_in(0))


def _weights_in_numpy(cohorts):
  """Trains the same rounds in NumPy: batches of two, in the order of `local_order`."""
  clients = learning.Clients.of(_CLIENTS)
  keys = draws.keys_of_ids(clients.draw_ids, 7)
  kernel = np.zeros([2, 1])
  for number, cohort in enumerate(cohorts):
    updates = []
    round_keys = local_order.keys(7, number, keys[cohort])
    for client, key in zip(cohort, round_keys):
      x, y = clients.examples(int(client))
      local = kernel.copy()
      order = local_order.permutation(key, len(x))
      for first in range(0, len(x), 2):
        chosen = order[first : first + 2]
        gradient = 2 * x[chosen].T @ (x[chosen] @ local - y[chosen]) / len(chosen)
        local -= _RATES[number] * gradient
      updates.append(kernel - local)
    kernel -= np.mean(updates, axis=0)
  return kernel.ravel()


def test_rounds_have_the_client_learning_rates_of_the_schedule(packed_run):
  run_dir, result = packed_run
  rows = learning_curves.read(str(run_dir / 'metrics.csv'))
  assert [float(row['client_learning_rate']) for row in rows] == _RATES
  schedule = sampling.RandomEligible(
    strategies.Participation(_RUN_ROUNDS), 12, 3, 7
  ).for_clients(learning.Clients.of(_CLIENTS).draw_ids)
  cohorts = [schedule.cohort(number) for number in range(_RUN_ROUNDS)]
  np.testing.assert_allclose(
    linear.flat(result.weights), _weights_in_numpy(cohorts), rtol=1e-5
  )
  config = json.loads((run_dir / 'config.json').read_text())
  stated = config['training']['client_learning_rates']
  assert (stated['first'], stated['last']) == (0.4, 0.05)


def test_one_by_one_training_matches_packed_training(packed_run, tmp_path):
  alone = _train(
    tmp_path / 'run', client_optimizer=_sgd, packed_simulation=False, test_data=None
  )
  np.testing.assert_allclose(
    linear.flat(alone.weights), linear.flat(packed_run[1].weights), rtol=1e-5
  )
  assert alone.metrics['client_learning_rate'] == 0.05


@pytest.mark.slow
def test_resumed_run_keeps_the_learning_rates_of_its_rounds(packed_run, tmp_path):
  run_dir = tmp_path / 'run'
  with pytest.raises(training_runs.Killed):
    _train(run_dir, test_metrics=training_runs.kill_in(3), checkpoint_seconds=0.0)
  with pytest.raises(ValueError, match=r'client_learning_rates\.first: .*\.last: '):
    _train(run_dir, learning_rate_fn=lambda round_num: 0.3 * 0.6**round_num)
  with pytest.raises(ValueError, match='client_learning_rates'):
    _train(run_dir, learning_rate_fn=None)
  _train(run_dir, test_metrics=training_runs.kill_in(0))
  assert training_runs.results(run_dir) == training_runs.results(packed_run[0])


@pytest.mark.parametrize(
  'learning_rate_fn, error, message',
  [
    (lambda number: None, TypeError, r'rate_fn\(0\) must be a number, got None'),
    (lambda number: 0.1 - number, ValueError, r'_fn\(1\) must be .*; got -0.9'),
  ],
)
def test_invalid_client_learning_rate_is_refused(learning_rate_fn, error, message):
  with pytest.raises(error, match=message):
    optimizers.ClientSchedule(learning_rate_fn, _sgd, _RUN_ROUNDS)


def test_client_optimizer_with_fixed_rate_is_refused():
  with pytest.raises(TypeError, match='local.optimizer must be a function of the'):
    optimizers.check_optimizer_fn(_sgd(0.1))


def test_client_optimizer_function_must_return_an_optimizer(tmp_path):
  with pytest.raises(TypeError, match='local.optimizer must be a tff.learning.optim'):
    _train(tmp_path / 'run', client_optimizer=lambda rate: rate)
