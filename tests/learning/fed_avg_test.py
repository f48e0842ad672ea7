"""Private federated averaging is federated averaging with another aggregator.

Claims:

* Without noise and clipping, training equals `tff.learning`'s unweighted federated
  averaging, for functional and for Keras models.
* Noise and clipping reach the model: with a clip norm the model moves no further than
  that, and seeded noise is that of the aggregator alone.
* A client whose training ends in NaN is counted, and the model stays finite.
* The event of a round is found in the learning process's state.
"""

import collections

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tff_dp_aggregators import aggregators
from tff_dp_aggregators import learning
from tff_dp_aggregators import noise as noise_lib
from tff_dp_aggregators import strategies
from tff_dp_aggregators.accounting import accountants

_SPEC = collections.OrderedDict(
  x=tf.TensorSpec([None, 2], tf.float32), y=tf.TensorSpec([None, 1], tf.float32)
)


def _functional_model():
  @tf.function
  def predict(weights, x, training):
    del training
    (kernel, bias), _ = weights
    return x @ kernel + bias

  @tf.function
  def loss(output, label, sample_weight=None):
    del sample_weight
    return tf.reduce_mean(tf.square(output - label))

  return tff.learning.models.FunctionalModel(
    initial_weights=((np.zeros([2, 1], np.float32), np.zeros([1], np.float32)), ()),
    predict_on_batch_fn=predict,
    loss_fn=loss,
    input_spec=_SPEC,
  )


def _keras_model():
  keras_model = tf.keras.Sequential(
    [tf.keras.layers.Dense(1, kernel_initializer='zeros', input_shape=[2])]
  )
  return tff.learning.models.from_keras_model(
    keras_model, loss=tf.keras.losses.MeanSquaredError(), input_spec=_SPEC
  )


_MODELS = {'functional': _functional_model, 'keras': lambda: _keras_model}


def _client(seed, num_examples=8, factor=1.0):
  rng = np.random.default_rng(seed)
  x = rng.normal(size=[num_examples, 2]).astype(np.float32)
  y = (x @ [[1.0], [-2.0]] + 0.5).astype(np.float32) * np.float32(factor)
  examples = collections.OrderedDict(x=x, y=y)
  return tf.data.Dataset.from_tensor_slices(examples).batch(4)


def _train(process, clients, num_rounds=3):
  state = process.initialize()
  for _ in range(num_rounds):
    output = process.next(state, clients)
    state = output.state
  return output, process.get_model_weights(state)


def _flat(weights):
  return np.concatenate([np.ravel(tensor) for tensor in weights.trainable])


def _optimizers():
  return {
    'client_optimizer_fn': tff.learning.optimizers.build_sgdm(0.1),
    'server_optimizer_fn': tff.learning.optimizers.build_sgdm(1.0),
  }


@pytest.mark.parametrize('name', _MODELS)
def test_without_noise_and_clipping_it_is_federated_averaging(name):
  # Clients of different sizes: none of them weighs more than another.
  clients = [_client(1), _client(2, 4), _client(3, 20)]
  ours = learning.build_dp_fed_avg(
    _MODELS[name](),
    aggregators.tree(
      strategies.Participation(5),
      clip_norm=1e4,
      noise_multiplier=0.0,
      clients_per_round=len(clients),
    ),
    **_optimizers(),
  )
  theirs = tff.learning.algorithms.build_unweighted_fed_avg(
    _MODELS[name](), **_optimizers()
  )
  our_output, our_weights = _train(ours, clients)
  their_output, their_weights = _train(theirs, clients)
  assert np.abs(_flat(their_weights)).min() > 0.1  # Something was learnt.
  np.testing.assert_allclose(_flat(our_weights), _flat(their_weights), atol=1e-6)
  # The clients' metrics are TFF's, too.
  np.testing.assert_allclose(
    tf.nest.flatten(our_output.metrics['client_work']),
    tf.nest.flatten(their_output.metrics['client_work']),
    rtol=1e-5,
  )


def test_clipping_bounds_how_far_a_round_moves_the_model():
  clients = [_client(1, factor=1000.0)] * 2
  process = learning.build_dp_fed_avg(
    _functional_model(),
    aggregators.gaussian(clip_norm=0.25, noise_multiplier=0.0, clients_per_round=2),
    **_optimizers(),
  )
  _, weights = _train(process, clients, num_rounds=1)
  assert np.linalg.norm(_flat(weights)) == pytest.approx(0.25, rel=1e-5)


def test_noise_of_the_model_is_that_of_the_aggregator():
  # Clients without signal: y = 0 is what the initial model says.
  make = lambda: aggregators.banded(  # noqa: E731
    strategies.Participation(4, min_separation=2),
    clip_norm=0.5,
    noise_multiplier=2.0,
    clients_per_round=4,
    seed=noise_lib.Seed(3),
  )
  process = learning.build_dp_fed_avg(_functional_model(), make(), **_optimizers())
  output, weights = _train(process, [_client(1, factor=0.0)], num_rounds=1)
  value_type = tff.to_type([(np.float32, [2, 1]), (np.float32, [1])])
  alone = make().create(value_type)
  zeros = [np.zeros([2, 1], np.float32), np.zeros([1], np.float32)]
  expected = alone.next(alone.initialize(), [zeros]).result
  expected = np.concatenate([np.ravel(tensor) for tensor in expected])
  # Client updates count as gradients, which the server's optimizer subtracts.
  np.testing.assert_allclose(_flat(weights), -expected, rtol=1e-5)
  event = aggregators.extract_dp_event(output.state).last_round_only
  limits = strategies.Participation(4, 2)
  strategy = strategies.banded.optimize(4, num_bands=2, participation=limits)
  first = strategy.sensitivity_squared_by_round(limits)[0]
  assert accountants.gdp_mu(event) == pytest.approx(first**0.5 / 2.0)


@pytest.mark.parametrize('name', _MODELS)
def test_a_client_that_ends_in_nan_is_counted_and_does_no_harm(name):
  good, bad = _client(1), _client(2, factor=np.nan)
  process = learning.build_dp_fed_avg(
    _MODELS[name](),
    aggregators.gaussian(clip_norm=1e4, noise_multiplier=0.0, clients_per_round=4),
    **_optimizers(),
  )
  output, weights = _train(process, [good, bad, bad], num_rounds=1)
  assert output.metrics['aggregator']['nonfinite_count'] == 2
  assert 'dp_query_metrics' in output.metrics['aggregator']
  assert np.all(np.isfinite(_flat(weights)))
  # The same as if the others had not been there: the denominator is fixed.
  _, alone = _train(process, [good], num_rounds=1)
  np.testing.assert_allclose(_flat(weights), _flat(alone), atol=1e-7)
  # A client without examples is no such client.
  empty = _client(3).take(0)
  output, _ = _train(process, [good, empty], num_rounds=1)
  assert output.metrics['aggregator']['nonfinite_count'] == 0


@pytest.mark.parametrize(
  'aggregator',
  [tff.aggregators.MeanFactory(), None, 'gaussian', aggregators.gaussian],
)
def test_other_aggregators_are_refused(aggregator):
  with pytest.raises(TypeError, match='aggregator must be a .*UnweightedAggregation'):
    learning.build_dp_fed_avg(_functional_model(), aggregator)
