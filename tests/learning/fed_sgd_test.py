"""Private federated SGD is one step on the mean of clients' mean gradients."""

import dp_accounting
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.learning import linear
from tff_dp_aggregators import aggregators
from tff_dp_aggregators import learning
from tff_dp_aggregators.learning import runtime


@pytest.fixture(scope='module', autouse=True)
def _runtime():
  with runtime.local_runtime():
    yield


def _build(model_fn, clip_norm=1e4, noise_multiplier=0.0, clients_per_round=3):
  return learning.build_dp_fed_sgd(
    model_fn,
    aggregators.gaussian(
      clip_norm=clip_norm,
      noise_multiplier=noise_multiplier,
      clients_per_round=clients_per_round,
    ),
    server_optimizer_fn=tff.learning.optimizers.build_sgdm(0.2),
  )


@pytest.fixture(
  scope='module',
  params=['functional', pytest.param('keras', marks=pytest.mark.slow)],
)
def process(request):
  return _build(linear.MODELS[request.param]())


def _gradient(weights, examples):
  """Of the mean squared error: kernel and bias."""
  residuals = examples['x'] @ weights[:2] + weights[2] - examples['y'][:, 0]
  columns = np.column_stack([examples['x'], np.ones(len(residuals))])
  return 2 * residuals @ columns / len(residuals)


def test_the_model_follows_mean_gradients_of_clients_that_weigh_the_same(process):
  sizes = {1: 8, 2: 3, 3: 20}
  clients = [linear.client(seed, size) for seed, size in sizes.items()]
  _, weights = linear.train(process, clients, num_rounds=3)
  expected = np.zeros(3)
  for _ in range(3):
    gradients = [
      _gradient(expected, linear.examples(seed, size)) for seed, size in sizes.items()
    ]
    expected = expected - 0.2 * np.mean(gradients, axis=0)
  assert np.abs(expected).min() > 0.1  # Something was learnt.
  np.testing.assert_allclose(linear.flat(weights), expected, atol=1e-5)


def test_a_gradient_with_nan_is_counted_and_no_gradient_is_none(process):
  good, bad = linear.client(1), linear.client(2, factor=np.nan)
  empty = linear.client(3).take(0)
  output, weights = linear.train(process, [good, bad, empty, bad], num_rounds=1)
  assert output.metrics['aggregator']['nonfinite_count'] == 2
  assert 'dp_query_metrics' in output.metrics['aggregator']
  _, alone = linear.train(process, [good], num_rounds=1)
  np.testing.assert_allclose(linear.flat(weights), linear.flat(alone), atol=1e-7)


def test_it_is_a_whole_learning_process_of_tff(process):
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


def test_clipping_and_noise_are_of_gradients():
  process = _build(linear.functional_model(), 0.25, 1.0, 2)
  clients = [linear.client(1, factor=1000.0)] * 2
  output, _ = linear.train(process, clients, num_rounds=1)
  event = aggregators.extract_dp_event(output.state).last_round_only
  assert event == dp_accounting.GaussianDpEvent(1.0)
  quiet = _build(linear.functional_model(), 0.25, 0.0, 2)
  _, weights = linear.train(quiet, clients, num_rounds=1)
  assert np.linalg.norm(linear.flat(weights)) == pytest.approx(0.2 * 0.25, rel=1e-5)
