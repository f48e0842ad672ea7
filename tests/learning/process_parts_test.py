"""Tests of the optimizers and checks that all private learning processes share."""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.learning import linear
from tff_dp_aggregators import aggregators
from tff_dp_aggregators import learning
from tff_dp_aggregators import noise
from tff_dp_aggregators import strategies
from tff_dp_aggregators.learning import process_parts
from tff_dp_aggregators.learning import runtime

_ROUNDS = 3
_PARTICIPATION = strategies.Participation(8, min_separation=2)
_SCHEDULE = learning.ServerSchedule(strategies.Workload(8, momentum=0.9))


@pytest.fixture(scope='module', autouse=True)
def _runtime():
  with runtime.local_runtime():
    yield


def _aggregator_arguments(**kwargs):
  return {
    'clip_norm': 1.0,
    'noise_multiplier': 0.5,
    'clients_per_round': 2,
    'seed': noise.Seed(5),
    **kwargs,
  }


def _tree(**kwargs):
  return aggregators.tree(_PARTICIPATION, **_aggregator_arguments(**kwargs))


def _gaussian():
  return aggregators.gaussian(_PARTICIPATION, **_aggregator_arguments())


def _blt(workload=None):
  strategy = strategies.BLT(8, (0.3, 0.1), (0.9, 0.5))
  return aggregators.from_strategy(
    strategy, _PARTICIPATION, workload=workload, **_aggregator_arguments()
  )


def _batch_norm_model(is_trained):
  layers = tf.keras.layers
  normalisation = {'name': 'averages', 'trainable': is_trained}
  return lambda: tff.learning.models.from_keras_model(
    tf.keras.Sequential(
      [layers.Dense(2, input_shape=[3]), layers.BatchNormalization(**normalisation)]
    ),
    loss=tf.keras.losses.MeanSquaredError(),
    input_spec=(tf.TensorSpec([None, 3]), tf.TensorSpec([None, 2])),
  )


def test_trainable_batch_normalisation_is_refused():
  with pytest.raises(ValueError, match="batch normalisation 'averages'"):
    learning.build_dp_fed_avg(_batch_norm_model(is_trained=True), _tree())
  process_parts.check_model(_batch_norm_model(is_trained=False))


# Optimizers.


def _releases():
  """Returns releases of the aggregator alone, of gradients that no model changes."""
  value_type = tff.to_type([(np.float32, [2, 1]), (np.float32, [1])])
  process = _gaussian().create(value_type)
  gradients = [
    [linear.examples(seed, 4)['x'].mean(axis=0)[:, np.newaxis], np.float32([1])]
    for seed in (1, 2)
  ]
  state, results = process.initialize(), []
  for _ in range(_ROUNDS):
    output = process.next(state, gradients)
    state = output.state
    results.append([tf.constant(tensor) for tensor in output.result])
  return results


def test_server_optimizer_is_applied_to_aggregator_releases():
  optimizer = tff.learning.optimizers.build_adafactor(0.1, relative_step=False)
  process = learning.build_dp_fed_sgd(
    linear.functional_model(linear.mean_output),
    _gaussian(),
    server_optimizer_fn=optimizer,
  )
  clients = [linear.client(seed, 4) for seed in (1, 2)]
  _, trained = linear.train(process, clients, _ROUNDS)
  weights = [tf.zeros([2, 1]), tf.zeros([1])]
  state = optimizer.initialize([tf.TensorSpec([2, 1]), tf.TensorSpec([1])])
  for release in _releases():
    state, weights = optimizer.next(state, weights, release)
  expected = np.concatenate([np.ravel(tensor) for tensor in weights])
  assert np.all(expected)
  np.testing.assert_allclose(linear.flat(trained), expected, rtol=1e-4, atol=1e-7)


# Aggregators.

_PROCESSES = {
  'fed_avg': learning.build_dp_fed_avg,
  'fed_prox': lambda *args, **kwargs: learning.build_dp_fed_prox(
    *args, proximal_strength=0.5, **kwargs
  ),
  'fed_sgd': learning.build_dp_fed_sgd,
}
each_process = pytest.mark.parametrize('process', _PROCESSES)


# Refused arguments.


@each_process
@pytest.mark.parametrize(
  ('aggregator', 'message'),
  [
    (tff.aggregators.MeanFactory(), 'sum of weights.* released without noise'),
    (None, 'aggregator must be a .*UnweightedAggregation'),
    (aggregators.gaussian, 'aggregator must be a .*UnweightedAggregation'),
  ],
)
def test_wrong_aggregator_is_refused_with_reason(process, aggregator, message):
  with pytest.raises(TypeError, match=message):
    _PROCESSES[process](linear.functional_model(), aggregator)


@pytest.mark.parametrize('process', ['fed_avg', 'fed_prox'])
def test_client_weighting_is_refused_with_reason(process):
  weighting = tff.learning.ClientWeighting.NUM_EXAMPLES
  with pytest.raises(ValueError, match='client_weighting must be .*released without'):
    _PROCESSES[process](linear.functional_model(), _tree(), client_weighting=weighting)


_FTRL = {'server_optimizer_fn': learning.build_ftrl(0.1)}


@each_process
@pytest.mark.parametrize(
  ('aggregator', 'optimizer', 'message'),
  [
    (_blt(strategies.Workload(8)), {}, 'sums of all rounds .* Use learning.build_ftrl'),
    (
      aggregators.CoordinateBoundsFactory(
        aggregators.ZeroNonfiniteFactory(_tree(cumulative=True)), bounds=1.0
      ),
      {},
      'sums of all rounds .* Use learning.build_ftrl',
    ),
    (
      aggregators.CoordinateBoundsFactory(_tree(), bounds=1.0),
      _FTRL,
      'server_optimizer_fn is FTRL, which works on sums',
    ),
    (
      tff.aggregators.UnweightedMeanFactory(),
      _FTRL,
      'server_optimizer_fn is FTRL, which works on sums',
    ),
  ],
)
def test_ftrl_and_cumulative_aggregators_require_each_other(
  process, aggregator, optimizer, message
):
  with pytest.raises(ValueError, match=message):
    _PROCESSES[process](linear.functional_model(), aggregator, **optimizer)


@pytest.mark.parametrize(
  ('aggregator', 'optimizer', 'message'),
  [
    (
      _blt(strategies.Workload(8, momentum=0.5)),
      {'server_optimizer_fn': learning.build_ftrl(0.1, 0.9)},
      'momentum=0.9, which is for plain sums',
    ),
    (
      _blt(strategies.Workload(8)),
      {'server_optimizer_fn': _SCHEDULE.ftrl()},
      'Build both from one',
    ),
    (
      _tree(),
      {'client_optimizer_fn': learning.build_ftrl(0.1)},
      'client_optimizer_fn is FTRL',
    ),
  ],
)
def test_ftrl_of_clients_or_for_another_workload_is_refused(
  aggregator, optimizer, message
):
  with pytest.raises(ValueError, match=message):
    learning.build_dp_fed_avg(linear.functional_model(), aggregator, **optimizer)


@each_process
@pytest.mark.parametrize(
  ('model', 'message'),
  [
    (tf.keras.Sequential([tf.keras.layers.Dense(1, input_shape=[2])]), 'from_keras_mo'),
    (linear.keras_model(), 'got .*Model'),
  ],
)
def test_wrong_model_type_is_refused_with_remedy(process, model, message):
  with pytest.raises(TypeError, match=f'(?s)model_fn.*{message}'):
    _PROCESSES[process](model, _tree())


@each_process
def test_keras_server_optimizer_is_refused_with_remedy(process):
  keras_optimizer = tf.keras.optimizers.SGD(0.1)
  with pytest.raises(TypeError, match='server_optimizer_fn must be .*build_sgdm'):
    _PROCESSES[process](
      linear.functional_model(), _tree(), server_optimizer_fn=keras_optimizer
    )


def _dtypes(state):
  return tf.nest.map_structure(lambda leaf: tf.convert_to_tensor(leaf).dtype, state)


def test_adafactor_steps_match_tff_and_state_keeps_dtypes():
  tff_optimizer = tff.learning.optimizers.build_adafactor(0.1)
  optimizer = process_parts.check_optimizer('optimizer', tff_optimizer)
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
