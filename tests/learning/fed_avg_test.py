"""Private federated averaging is federated averaging with another aggregator."""

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


def _optimizers():
  return {
    'client_optimizer_fn': tff.learning.optimizers.build_sgdm(0.1),
    'server_optimizer_fn': tff.learning.optimizers.build_sgdm(1.0),
  }


@pytest.mark.parametrize(
  'name', ['keras', pytest.param('functional', marks=pytest.mark.slow)]
)
def test_without_noise_and_clipping_it_is_federated_averaging(name):
  # Clients of different sizes: none of them weighs more than another.
  clients = [linear.client(1), linear.client(2, 4), linear.client(3, 20)]
  ours = learning.build_dp_fed_avg(
    linear.MODELS[name](),
    aggregators.tree(
      strategies.Participation(5),
      clip_norm=1e4,
      noise_multiplier=0.0,
      clients_per_round=len(clients),
    ),
    **_optimizers(),
  )
  theirs = tff.learning.algorithms.build_unweighted_fed_avg(
    linear.MODELS[name](), **_optimizers()
  )
  our_output, our_weights = linear.train(ours, clients)
  their_output, their_weights = linear.train(theirs, clients)
  assert np.abs(linear.flat(their_weights)).min() > 0.1  # Something was learnt.
  np.testing.assert_allclose(
    linear.flat(our_weights), linear.flat(their_weights), atol=1e-6
  )
  # The clients' metrics are TFF's, too.
  np.testing.assert_allclose(
    tf.nest.flatten(our_output.metrics['client_work']),
    tf.nest.flatten(their_output.metrics['client_work']),
    rtol=1e-5,
  )


def test_clipping_bounds_how_far_a_round_moves_the_model():
  clients = [linear.client(1, factor=1000.0)] * 2
  process = learning.build_dp_fed_avg(
    linear.functional_model(),
    aggregators.gaussian(clip_norm=0.25, noise_multiplier=0.0, clients_per_round=2),
    **_optimizers(),
  )
  _, weights = linear.train(process, clients, num_rounds=1)
  assert np.linalg.norm(linear.flat(weights)) == pytest.approx(0.25, rel=1e-5)


@pytest.mark.optimized_graphs
def test_noise_of_the_model_is_that_of_the_aggregator():
  # Clients without signal: y = 0 is what the initial model says.
  make = lambda: aggregators.banded(  # noqa: E731
    strategies.Participation(4, min_separation=2),
    clip_norm=0.5,
    noise_multiplier=2.0,
    clients_per_round=4,
    seed=noise_lib.Seed(3),
  )
  process = learning.build_dp_fed_avg(
    linear.functional_model(), make(), **_optimizers()
  )
  output, weights = linear.train(process, [linear.client(1, factor=0.0)], num_rounds=1)
  value_type = tff.to_type([(np.float32, [2, 1]), (np.float32, [1])])
  alone = make().create(value_type)
  zeros = [np.zeros([2, 1], np.float32), np.zeros([1], np.float32)]
  expected = alone.next(alone.initialize(), [zeros]).result
  expected = np.concatenate([np.ravel(tensor) for tensor in expected])
  # Client updates count as gradients, which the server's optimizer subtracts.
  np.testing.assert_allclose(linear.flat(weights), -expected, rtol=1e-5)
  event = aggregators.extract_dp_event(output.state).last_round_only
  limits = strategies.Participation(4, 2)
  strategy = strategies.banded.optimize(4, num_bands=2, participation=limits)
  first = strategy.sensitivity_squared_by_round(limits)[0]
  assert accountants.gdp_mu(event) == pytest.approx(first**0.5 / 2.0)


@pytest.mark.parametrize(
  'name', ['functional', pytest.param('keras', marks=pytest.mark.slow)]
)
def test_a_client_that_ends_in_nan_is_counted_and_does_no_harm(name):
  good, bad = linear.client(1), linear.client(2, factor=np.nan)
  process = learning.build_dp_fed_avg(
    linear.MODELS[name](),
    aggregators.gaussian(clip_norm=1e4, noise_multiplier=0.0, clients_per_round=4),
    **_optimizers(),
  )
  output, weights = linear.train(process, [good, bad, bad], num_rounds=1)
  assert output.metrics['aggregator']['nonfinite_count'] == 2
  assert 'dp_query_metrics' in output.metrics['aggregator']
  assert np.all(np.isfinite(linear.flat(weights)))
  # The same as if the others had not been there: the denominator is fixed.
  _, alone = linear.train(process, [good], num_rounds=1)
  np.testing.assert_allclose(linear.flat(weights), linear.flat(alone), atol=1e-7)
  # A client without examples is no such client.
  empty = linear.client(3).take(0)
  output, _ = linear.train(process, [good, empty], num_rounds=1)
  assert output.metrics['aggregator']['nonfinite_count'] == 0


@pytest.mark.parametrize(
  'aggregator',
  [None, aggregators.gaussian],
)
def test_other_aggregators_are_refused(aggregator):
  with pytest.raises(TypeError, match='aggregator must be a .*UnweightedAggregation'):
    learning.build_dp_fed_avg(linear.functional_model(), aggregator)
