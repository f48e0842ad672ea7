"""What all private learning processes do and refuse alike."""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.learning import linear
from tff_dp_aggregators import accounting
from tff_dp_aggregators import aggregators
from tff_dp_aggregators import learning
from tff_dp_aggregators import noise
from tff_dp_aggregators import strategies
from tff_dp_aggregators.learning import process_parts
from tff_dp_aggregators.learning import runtime

_ROUNDS = 3
_PARTICIPATION = strategies.Participation(8, min_separation=2)
_OPTIMIZERS = tff.learning.optimizers
_SCHEDULE = learning.ServerSchedule(strategies.Workload(8, momentum=0.9))


@pytest.fixture(scope='module', autouse=True)
def _runtime():
  with runtime.local_runtime():
    yield


def _numbers(**kwargs):
  return {
    'clip_norm': 1.0,
    'noise_multiplier': 0.5,
    'clients_per_round': 2,
    'seed': noise.Seed(5),
    **kwargs,
  }


def _tree(**kwargs):
  return aggregators.tree(_PARTICIPATION, **_numbers(**kwargs))


def _blt(workload=None):
  strategy = strategies.BLT(8, (0.3, 0.1), (0.9, 0.5))
  return aggregators.from_strategy(
    strategy, _PARTICIPATION, workload=workload, **_numbers()
  )


# Models.


def _of_keras(make):
  spec = (tf.TensorSpec([None, 3]), tf.TensorSpec([None, 2]))
  return lambda: tff.learning.models.from_keras_model(
    make(), loss=tf.keras.losses.MeanSquaredError(), input_spec=spec
  )


def _normalised(is_frozen):
  layers = tf.keras.layers
  normalisation = layers.BatchNormalization(name='averages', trainable=not is_frozen)
  return tf.keras.Sequential([layers.Dense(2, input_shape=[3]), normalisation])


@pytest.mark.few(1)
@pytest.mark.parametrize(
  'build',
  [
    learning.build_dp_fed_avg,
    learning.build_dp_fed_sgd,
    pytest.param(
      lambda *args: learning.build_dp_fed_prox(*args, proximal_strength=0.1),
      marks=pytest.mark.slow,
    ),
  ],
)
def test_batch_normalisation_has_to_be_frozen_and_keras_works_as_before(build):
  model = tf.keras.Sequential([tf.keras.layers.Dense(2, input_shape=[3])])
  before = model.predict(np.ones([2, 3]), verbose=0)
  with pytest.raises(ValueError, match="batch normalisation 'averages'"):
    build(_of_keras(lambda: _normalised(is_frozen=False)), _tree())
  build(_of_keras(lambda: _normalised(is_frozen=True)), _tree())
  np.testing.assert_array_equal(model.predict(np.ones([2, 3]), verbose=0), before)


# Optimizers.


def _falling(this_round):
  return 1.0 / (1.0 + tf.cast(this_round, tf.float32))


@pytest.fixture(scope='module')
def releases():
  """What the aggregator alone releases of gradients that no model changes."""
  value_type = tff.to_type([(np.float32, [2, 1]), (np.float32, [1])])
  process = _tree().create(value_type)
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


@pytest.mark.parametrize(
  'optimizer',
  [
    pytest.param(_OPTIMIZERS.build_adafactor(0.1, relative_step=False), id='adafactor'),
    *(
      pytest.param(optimizer, id=name, marks=pytest.mark.slow)
      for name, optimizer in {
        'adam': _OPTIMIZERS.build_adam(0.1),
        'adagrad': _OPTIMIZERS.build_adagrad(0.1),
        'adamw': _OPTIMIZERS.build_adamw(0.1),
        'rmsprop': _OPTIMIZERS.build_rmsprop(0.1),
        'schedule': _OPTIMIZERS.schedule_learning_rate(
          _OPTIMIZERS.build_sgdm(), _falling
        ),
        'sgd': _OPTIMIZERS.build_sgdm(0.1),
        'sgdm': _OPTIMIZERS.build_sgdm(0.1, 0.9),
        'yogi': _OPTIMIZERS.build_yogi(0.1),
      }.items()
    ),
  ],
)
def test_models_are_made_of_releases_by_the_optimizer(optimizer, releases):
  process = learning.build_dp_fed_sgd(
    linear.functional_model(linear.mean_output),
    _tree(),
    server_optimizer_fn=optimizer,
  )
  clients = [linear.client(seed, 4) for seed in (1, 2)]
  _, found = linear.train(process, clients, _ROUNDS)
  weights = [tf.zeros([2, 1]), tf.zeros([1])]
  state = optimizer.initialize([tf.TensorSpec([2, 1]), tf.TensorSpec([1])])
  for release in releases:
    state, weights = optimizer.next(state, weights, release)
  expected = np.concatenate([np.ravel(tensor) for tensor in weights])
  assert np.all(expected)
  np.testing.assert_allclose(linear.flat(found), expected, rtol=1e-4, atol=1e-7)


# Aggregators.

_AGGREGATORS = {
  'adaptive': lambda: aggregators.adaptive(
    noise_multiplier=0.5, clients_per_round=2, clipped_count_stddev=0.4
  ),
  'adaptive_tree': lambda: aggregators.adaptive(
    strategy=strategies.BinaryTree(8),
    participation=_PARTICIPATION,
    noise_multiplier=0.5,
    clients_per_round=2,
    clipped_count_stddev=0.4,
  ),
  'banded': lambda: aggregators.banded(_PARTICIPATION, **_numbers()),
  'from_mechanism': lambda: aggregators.from_mechanism(
    accounting.Mechanism('gaussian', _PARTICIPATION, 0.5),
    clip_norm=1.0,
    clients_per_round=2,
  ),
  'from_strategy': _blt,
  'gaussian': lambda: aggregators.gaussian(**_numbers()),
  'tree': _tree,
  'zero_nonfinite': lambda: aggregators.ZeroNonfiniteFactory(_tree()),
  'zeroing': lambda: tff.aggregators.zeroing_factory(10.0, _tree()),
}
_PROCESSES = {
  'fed_avg': learning.build_dp_fed_avg,
  'fed_prox': lambda *args, **kwargs: learning.build_dp_fed_prox(
    *args, proximal_strength=0.5, **kwargs
  ),
  'fed_sgd': learning.build_dp_fed_sgd,
}
each_process = pytest.mark.parametrize('process', _PROCESSES)


def _runs(process, aggregator):
  built = _PROCESSES[process](linear.functional_model(), _AGGREGATORS[aggregator]())
  output, weights = linear.train(built, [linear.client(1), linear.client(2)], 2)
  assert np.all(np.isfinite(linear.flat(weights)))
  assert np.any(linear.flat(weights))
  spent = aggregators.extract_dp_event(output.state)
  # A client took part in one round or both.
  assert 0 < spent.all_rounds_so_far.noise_multiplier <= 0.5
  assert output.metrics['aggregator']


def test_a_process_runs_with_an_aggregator():
  _runs('fed_avg', 'adaptive')


@pytest.mark.slow
@pytest.mark.parametrize('aggregator', _AGGREGATORS)
@each_process
def test_each_process_runs_with_each_aggregator(process, aggregator):
  _runs(process, aggregator)


# What is refused.


@pytest.mark.few(2)
@each_process
@pytest.mark.parametrize(
  'aggregator',
  [tff.aggregators.MeanFactory(), tff.aggregators.as_weighted_aggregator(_tree())],
)
def test_weighted_aggregators_are_refused_with_the_reason(process, aggregator):
  with pytest.raises(TypeError, match='sum of weights.* released without noise'):
    _PROCESSES[process](linear.functional_model(), aggregator)


@pytest.mark.parametrize('process', ['fed_avg', 'fed_prox'])
def test_weights_of_clients_are_refused_with_the_reason(process):
  weighting = tff.learning.ClientWeighting.NUM_EXAMPLES
  with pytest.raises(ValueError, match='client_weighting must be .*released without'):
    _PROCESSES[process](linear.functional_model(), _tree(), client_weighting=weighting)


@pytest.mark.few(6)
@each_process
@pytest.mark.parametrize(
  'aggregator',
  [
    _tree(cumulative=True),
    _blt(strategies.Workload(8)),
    aggregators.ZeroNonfiniteFactory(_tree(cumulative=True)),
    aggregators.CoordinateBoundsFactory(
      aggregators.ZeroNonfiniteFactory(_tree(cumulative=True)), bounds=1.0
    ),
  ],
)
@pytest.mark.parametrize('optimizer', [None, _OPTIMIZERS.build_adam(0.1)])
def test_sums_of_all_rounds_need_an_optimizer_for_them(process, aggregator, optimizer):
  with pytest.raises(ValueError, match='sums of all rounds .* Use learning.build_ftrl'):
    _PROCESSES[process](
      linear.functional_model(), aggregator, server_optimizer_fn=optimizer
    )


@pytest.mark.few(4)
@each_process
@pytest.mark.parametrize(
  'aggregator',
  [
    _tree(),
    aggregators.ZeroNonfiniteFactory(_tree()),
    aggregators.CoordinateBoundsFactory(_tree(), bounds=1.0),
    tff.aggregators.UnweightedMeanFactory(),
  ],
)
def test_ftrl_needs_sums_of_all_rounds(process, aggregator):
  with pytest.raises(
    ValueError, match='server_optimizer_fn is FTRL, which works on sums'
  ):
    _PROCESSES[process](
      linear.functional_model(),
      aggregator,
      server_optimizer_fn=learning.build_ftrl(0.1),
    )


@pytest.mark.parametrize(
  ('aggregator', 'optimizer', 'message'),
  [
    (
      _blt(strategies.Workload(8, momentum=0.5)),
      learning.build_ftrl(0.1, 0.9),
      'momentum=0.9, which is for plain sums',
    ),
    (_blt(strategies.Workload(8)), _SCHEDULE.ftrl(), 'Build both from one'),
  ],
)
def test_momentum_is_stated_once(aggregator, optimizer, message):
  with pytest.raises(ValueError, match=message):
    learning.build_dp_fed_avg(
      linear.functional_model(), aggregator, server_optimizer_fn=optimizer
    )


def test_ftrl_is_for_the_server():
  with pytest.raises(ValueError, match='client_optimizer_fn is FTRL'):
    learning.build_dp_fed_avg(
      linear.functional_model(), _tree(), client_optimizer_fn=learning.build_ftrl(0.1)
    )


@pytest.mark.few(4)
@each_process
@pytest.mark.parametrize(
  ('model', 'message'),
  [
    (tf.keras.Sequential([tf.keras.layers.Dense(1, input_shape=[2])]), 'from_keras_mo'),
    (linear.keras_model(), 'got .*Model'),
    (None, 'got NoneType'),
  ],
)
def test_what_is_no_model_is_refused_with_what_would_be(process, model, message):
  with pytest.raises(TypeError, match=f'(?s)model_fn.*{message}'):
    _PROCESSES[process](model, _tree())


@pytest.mark.few(3)
@each_process
@pytest.mark.parametrize('optimizer', [0.1, tf.keras.optimizers.SGD(0.1), 'sgd'])
def test_what_is_no_optimizer_is_refused(process, optimizer):
  with pytest.raises(TypeError, match='server_optimizer_fn must be .*build_sgdm'):
    _PROCESSES[process](
      linear.functional_model(), _tree(), server_optimizer_fn=optimizer
    )


def _dtypes(state):
  return tf.nest.map_structure(lambda leaf: tf.convert_to_tensor(leaf).dtype, state)


def test_steps_of_adafactor_are_those_of_tff_and_the_state_keeps_its_types():
  theirs = tff.learning.optimizers.build_adafactor(0.1)
  ours = process_parts.check_optimizer('optimizer', theirs)
  specs = [tf.TensorSpec([3, 2]), tf.TensorSpec([2])]
  their_state, our_state = theirs.initialize(specs), ours.initialize(specs)
  types = _dtypes(our_state)
  their_weights = our_weights = [tf.ones([3, 2]), tf.ones([2])]
  for seed in range(3):
    rng = np.random.default_rng(seed)
    gradients = [tf.constant(rng.normal(size=s.shape), tf.float32) for s in specs]
    their_state, their_weights = theirs.next(their_state, their_weights, gradients)
    our_state, our_weights = ours.next(our_state, our_weights, gradients)
    assert _dtypes(our_state) == types
  for one, other in zip(our_weights, their_weights):
    np.testing.assert_array_equal(one, other)
  # What is repaired: TFF's state has other types than before.
  assert _dtypes(their_state['steps']) != types['steps']


def test_hyperparameters_of_adafactor_are_set_and_the_rest_of_the_state_is_kept():
  optimizer = process_parts.check_optimizer(
    'optimizer', tff.learning.optimizers.build_adafactor(0.1)
  )
  state = optimizer.initialize([tf.TensorSpec([2])])
  hparams = {**optimizer.get_hparams(state), 'learning_rate': 0.5}
  changed = optimizer.set_hparams(state, hparams)
  assert _dtypes(changed) == _dtypes(state)
  assert changed['hparams']['learning_rate'] == 0.5
  assert changed['moments'] == state['moments']


def test_other_optimizers_are_left_alone():
  optimizer = tff.learning.optimizers.build_adam(0.1)
  assert process_parts.check_optimizer('optimizer', optimizer) is optimizer
