"""Tests of private FedAvg, FedProx and FedSGD against TFF and formulas of papers."""

import functools

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.learning import linear
from tff_dp_aggregators import aggregators
from tff_dp_aggregators import learning
from tff_dp_aggregators import noise as noise_lib
from tff_dp_aggregators import strategies
from tff_dp_aggregators.accounting import accountants
from tff_dp_aggregators.learning import fed_avg
from tff_dp_aggregators.learning import runtime

_SIZES = {1: 8, 2: 4, 3: 20}  # Examples by client; all clients have the same weight.
_sgd = tff.learning.optimizers.build_sgdm


@pytest.fixture(scope='module', autouse=True)
def _runtime():
  with runtime.local_runtime():
    yield


def _aggregator(clip_norm=1e4, clients_per_round=3):
  return aggregators.gaussian(
    clip_norm=clip_norm, noise_multiplier=0.0, clients_per_round=clients_per_round
  )


def _clients():
  return [linear.client(seed, size) for seed, size in _SIZES.items()]


def _gradient(weights, examples):
  """Returns the gradient of the mean squared error in kernel and bias."""
  residuals = examples['x'] @ weights[:2] + weights[2] - examples['y'][:, 0]
  columns = np.column_stack([examples['x'], np.ones(len(residuals))])
  return 2 * residuals @ columns / len(residuals)


def _optimizers():
  return {
    'client_optimizer_fn': _sgd(0.1),
    'server_optimizer_fn': _sgd(1.0),
  }


def test_fed_avg_without_noise_and_clipping_matches_tff():
  clients = _clients()
  process = learning.build_dp_fed_avg(
    linear.keras_model, _aggregator(), **_optimizers()
  )
  tff_process = tff.learning.algorithms.build_unweighted_fed_avg(
    linear.keras_model, **_optimizers()
  )
  output, weights = linear.train(process, clients)
  tff_output, tff_weights = linear.train(tff_process, clients)
  assert np.abs(linear.flat(tff_weights)).min() > 0.1  # Something was learnt.
  np.testing.assert_allclose(linear.flat(weights), linear.flat(tff_weights), atol=1e-6)
  # The clients' metrics equal TFF's, too.
  np.testing.assert_allclose(
    tf.nest.flatten(output.metrics['client_work']),
    tf.nest.flatten(tff_output.metrics['client_work']),
    rtol=1e-5,
  )


@pytest.mark.optimized_graphs
def test_fed_avg_adds_exactly_the_noise_of_the_aggregator():
  # The client's update is zero, as the initial model predicts its y = 0.
  make_aggregator = lambda: aggregators.banded(  # noqa: E731
    strategies.Participation(4, min_separation=2),
    clip_norm=0.5,
    noise_multiplier=2.0,
    clients_per_round=4,
    seed=noise_lib.Seed(3),
  )
  process = learning.build_dp_fed_avg(
    linear.functional_model(), make_aggregator(), **_optimizers()
  )
  output, weights = linear.train(process, [linear.client(1, factor=0.0)], num_rounds=1)
  value_type = tff.to_type([(np.float32, [2, 1]), (np.float32, [1])])
  aggregation = make_aggregator().create(value_type)
  zeros = [np.zeros([2, 1], np.float32), np.zeros([1], np.float32)]
  expected = aggregation.next(aggregation.initialize(), [zeros]).result
  expected = np.concatenate([np.ravel(tensor) for tensor in expected])
  # Client updates count as gradients, which the server's optimizer subtracts.
  np.testing.assert_allclose(linear.flat(weights), -expected, rtol=1e-5)
  event = aggregators.extract_dp_event(output.state).last_round_only
  limits = strategies.Participation(4, 2)
  strategy = strategies.banded.optimize(4, num_bands=2, participation=limits)
  first = strategy.sensitivity_squared_by_round(limits)[0]
  assert accountants.gdp_mu(event) == pytest.approx(first**0.5 / 2.0)


def _fed_prox(model_fn, strength):
  return learning.build_dp_fed_prox(
    model_fn,
    _aggregator(),
    proximal_strength=strength,
    **_optimizers(),
  )


def _local_model(model, examples, strength):
  """Returns the model after training in batches of 4 (arXiv:1812.06127, equation 2)."""
  weights = model
  for begin in range(0, len(examples['x']), 4):
    batch = {name: array[begin : begin + 4] for name, array in examples.items()}
    gradient = _gradient(weights, batch) + strength * (weights - model)
    weights = weights - 0.1 * gradient
  return weights


def test_fed_prox_matches_proximal_gradients_of_paper():
  process = _fed_prox(linear.functional_model(), 3)
  _, weights = linear.train(process, _clients(), num_rounds=3)
  expected = np.zeros(3)
  for _ in range(3):
    expected = np.mean(
      [
        _local_model(expected, linear.examples(seed, size), 3.0)
        for seed, size in _SIZES.items()
      ],
      axis=0,
    )
  np.testing.assert_allclose(linear.flat(weights), expected, atol=1e-5)


def _step(process):
  return linear.flat(linear.train(process, _clients(), num_rounds=1)[1])


@pytest.mark.slow
def test_fed_prox_steps_are_shorter_than_fed_avg_but_longer_in_tff():
  fed_avg_step = _step(_fed_prox(linear.functional_model(), 0.0))
  fed_prox_step = _step(_fed_prox(linear.functional_model(), 5.0))
  assert np.linalg.norm(fed_prox_step) < 0.8 * np.linalg.norm(fed_avg_step)
  # If this fails with a later TFF, FedProx can build on TFF's again.
  tff_process = tff.learning.algorithms.build_unweighted_fed_prox(
    linear.functional_model(),
    5.0,
    _sgd(0.1),
    _sgd(1.0),
  )
  assert np.linalg.norm(_step(tff_process)) > 1.2 * np.linalg.norm(fed_avg_step)


@pytest.mark.parametrize(
  ('strength', 'error'),
  [(-1.0, ValueError), (np.nan, ValueError), ('1', TypeError)],
)
def test_invalid_proximal_strength_is_refused(strength, error):
  with pytest.raises(error, match='proximal_strength'):
    _fed_prox(linear.functional_model(), strength)


_SGD_CLIP_NORM = 100.0  # Most gradients here are shorter.


@pytest.fixture(scope='module')
def process():
  return learning.build_dp_fed_sgd(
    linear.functional_model(),
    _aggregator(_SGD_CLIP_NORM),
    server_optimizer_fn=_sgd(0.2),
  )


def test_fed_sgd_follows_unweighted_mean_of_gradients(process):
  _, weights = linear.train(process, _clients(), num_rounds=3)
  expected = np.zeros(3)
  for _ in range(3):
    gradients = [
      _gradient(expected, linear.examples(seed, size)) for seed, size in _SIZES.items()
    ]
    expected = expected - 0.2 * np.mean(gradients, axis=0)
  assert np.abs(expected).min() > 0.1  # Something was learnt.
  np.testing.assert_allclose(linear.flat(weights), expected, atol=1e-5)


@pytest.mark.parametrize(
  # The mean gradient of no examples is not finite.
  ('build', 'count'),
  [(learning.build_dp_fed_avg, 2), (learning.build_dp_fed_sgd, 3)],
)
def test_clients_with_nan_are_counted_and_ignored(build, count):
  process = build(linear.functional_model(), _aggregator(clients_per_round=4))
  good, bad = linear.client(1), linear.client(2, factor=np.nan)
  empty = linear.client(3).take(0)
  output, weights = linear.train(process, [good, bad, empty, bad], num_rounds=1)
  assert output.metrics['aggregator']['nonfinite_count'] == count
  assert 'dp_query_metrics' in output.metrics['aggregator']
  assert np.any(linear.flat(weights))
  # The model is the same as without the others, because the denominator is fixed.
  _, alone = linear.train(process, [good], num_rounds=1)
  np.testing.assert_allclose(linear.flat(weights), linear.flat(alone), atol=1e-7)


def test_counts_of_nan_are_summed_like_records_and_not_beside_noise_of_clients():
  arguments = {'clip_norm': 1.0, 'noise_multiplier': 0.1, 'clients_per_round': 2}
  bounded = aggregators.CoordinateBoundsFactory(
    aggregators.gaussian(
      **arguments, record_aggregation_factory=aggregators.secure_sum()
    ),
    bounds=1.0,
  )
  process = learning.build_dp_fed_avg(linear.functional_model(), bounded)
  tff.test.assert_not_contains_unsecure_aggregation(process.next)
  process = learning.build_dp_fed_avg(
    linear.functional_model(), aggregators.local_gaussian(**arguments)
  )
  clients = [linear.client(1), linear.client(2, factor=np.nan)]
  output, weights = linear.train(process, clients, num_rounds=1)
  assert output.metrics['aggregator']['nonfinite_count'] == 0
  assert np.all(np.isfinite(linear.flat(weights)))


def test_fed_sgd_supports_set_model_weights_and_set_hparams(process):
  state = process.initialize()
  model = tff.learning.models.ModelWeights(
    trainable=tf.nest.map_structure(
      np.ones_like, process.get_model_weights(state).trainable
    ),
    non_trainable=process.get_model_weights(state).non_trainable,
  )
  state = process.set_model_weights(state, model)
  np.testing.assert_array_equal(linear.flat(process.get_model_weights(state)), 1)
  hparams = process.get_hparams(state)
  assert hparams['finalizer']['learning_rate'] == pytest.approx(0.2)
  assert process.set_hparams(state, hparams).finalizer == state.finalizer


def test_fed_sgd_clips_gradients(process):
  clients = [linear.client(1, factor=1e6)] * 3
  _, weights = linear.train(process, clients, num_rounds=1)
  change = np.linalg.norm(linear.flat(weights))
  assert change == pytest.approx(0.2 * _SGD_CLIP_NORM, rel=1e-5)


# Aggregators and optimizers, and what does not fit.

_ROUNDS = 3
_PARTICIPATION = strategies.Participation(8, min_separation=2)
_SCHEDULE = learning.ServerSchedule(strategies.Workload(8, momentum=0.9))
_ARGUMENTS = {
  'clip_norm': 1.0,
  'noise_multiplier': 0.5,
  'clients_per_round': 2,
  'seed': noise_lib.Seed(5),
}


def _tree(**kwargs):
  return aggregators.tree(_PARTICIPATION, **_ARGUMENTS, **kwargs)


def _gaussian():
  return aggregators.gaussian(_PARTICIPATION, **_ARGUMENTS)


def _blt(workload):
  strategy = strategies.BLT(8, (0.3, 0.1), (0.9, 0.5))
  return aggregators.from_strategy(
    strategy, _PARTICIPATION, workload=workload, **_ARGUMENTS
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
  fed_avg.check_model(_batch_norm_model(is_trained=False))


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


_BUILDERS = [
  learning.build_dp_fed_avg,
  functools.partial(learning.build_dp_fed_prox, proximal_strength=0.5),
  learning.build_dp_fed_sgd,
]
each_builder = pytest.mark.parametrize(
  'build', _BUILDERS, ids=['fed_avg', 'fed_prox', 'fed_sgd']
)


@each_builder
@pytest.mark.parametrize(
  ('aggregator', 'message'),
  [
    (tff.aggregators.MeanFactory(), 'sum of weights.* released without noise'),
    (None, 'aggregator must be a .*UnweightedAggregation'),
    (aggregators.gaussian, 'aggregator must be a .*UnweightedAggregation'),
  ],
)
def test_wrong_aggregator_is_refused_with_reason(build, aggregator, message):
  with pytest.raises(TypeError, match=message):
    build(linear.functional_model(), aggregator)


@pytest.mark.parametrize('build', _BUILDERS[:2])
def test_client_weighting_is_refused_with_reason(build):
  weighting = tff.learning.ClientWeighting.NUM_EXAMPLES
  with pytest.raises(ValueError, match='client_weighting must be .*released without'):
    build(linear.functional_model(), _tree(), client_weighting=weighting)


_FTRL = {'server_optimizer_fn': learning.build_ftrl(0.1)}


@each_builder
@pytest.mark.parametrize(
  ('aggregator', 'optimizer', 'message'),
  [
    (_blt(strategies.Workload(8)), {}, 'sums of all rounds .*: learning.build_ftrl'),
    (
      aggregators.CoordinateBoundsFactory(
        aggregators.ZeroNonfiniteFactory(_tree(cumulative=True)), bounds=1.0
      ),
      {},
      'sums of all rounds .*: learning.build_ftrl',
    ),
    (
      aggregators.CoordinateBoundsFactory(_tree(), bounds=1.0),
      _FTRL,
      'server_optimizer_fn is FTRL, .* the mean of each round',
    ),
    (
      tff.aggregators.UnweightedMeanFactory(),
      _FTRL,
      'server_optimizer_fn is FTRL, .* the mean of each round',
    ),
  ],
)
def test_ftrl_and_cumulative_aggregators_require_each_other(
  build, aggregator, optimizer, message
):
  with pytest.raises(ValueError, match=message):
    build(linear.functional_model(), aggregator, **optimizer)


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


@each_builder
@pytest.mark.parametrize(
  ('model', 'message'),
  [
    (tf.keras.Sequential([tf.keras.layers.Dense(1, input_shape=[2])]), 'from_keras_mo'),
    (linear.keras_model(), 'got .*Model'),
  ],
)
def test_wrong_model_type_is_refused_with_remedy(build, model, message):
  with pytest.raises(TypeError, match=f'(?s)model_fn.*{message}'):
    build(model, _tree())


@each_builder
def test_keras_server_optimizer_is_refused_with_remedy(build):
  keras_optimizer = tf.keras.optimizers.SGD(0.1)
  with pytest.raises(TypeError, match='server_optimizer_fn must be .*build_sgdm'):
    build(linear.functional_model(), _tree(), server_optimizer_fn=keras_optimizer)
