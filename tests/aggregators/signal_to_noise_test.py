"""Measurements of the exact signal and noise of rounds, and their addition."""

import math

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.aggregators import running
from tff_dp_aggregators import aggregators
from tff_dp_aggregators import noise
from tff_dp_aggregators import queries
from tff_dp_aggregators import strategies

_ROUNDS = 4
_LIMITS = strategies.Participation(_ROUNDS, min_separation=2)
_SIZE = 40_000
_ARGUMENTS = {
  'noise_multiplier': 3.0,
  'record_specs': tf.TensorSpec([_SIZE]),
  'seed': noise.Seed(5),
}
_runtime = running.local_runtime


QUERIES = {
  'tree': lambda: queries.TreeResidualSumQuery(_LIMITS, clip_norm=2.0, **_ARGUMENTS),
  'laplace': lambda: queries.LaplaceSumQuery(clip_norm=2.0, **_ARGUMENTS),
  'adaptive': lambda: queries.AdaptiveClippingQuery(
    strategies.Identity(_ROUNDS),
    _LIMITS,
    initial_clip_norm=2.0,
    clients_per_round=2,
    learning_rate=1.0,
    **_ARGUMENTS,
  ),
}


@pytest.mark.parametrize('name', QUERIES)
def test_query_signal_and_noise_match_released_sums(name):
  query = QUERIES[name]()
  state = query.initial_global_state()
  rng = np.random.default_rng(20261123)
  for _ in range(_ROUNDS):
    params = query.derive_sample_params(state)
    sample, total = query.initial_sample_state(), np.zeros(_SIZE)
    for scale in (1e-4, 1.0):
      record = (scale * rng.normal(size=_SIZE)).astype(np.float32)
      clip_norm = float(tf.nest.flatten(params)[0])
      norm = np.linalg.norm(record, ord=1 if name == 'laplace' else 2)
      total += record * min(1.0, clip_norm / norm)
      sample = query.accumulate_record(params, sample, tf.constant(record))
    signal, squared_noise = query.signal_and_noise(sample, state)
    noised, state, _ = query.get_noised_result(sample, state)
    assert float(signal) == pytest.approx(np.linalg.norm(total), rel=1e-5)
    actual = float(np.sum((noised.numpy() - total) ** 2))
    # The standard deviation of a squared normal is sqrt(2) of its mean, of a squared
    # Laplacian sqrt(5). 5.4 of them: a false alarm in 10^6 over all rounds and queries.
    deviation = math.sqrt((5 if name == 'laplace' else 2) / _SIZE)
    assert actual == pytest.approx(float(squared_noise), rel=5.4 * deviation, abs=1e-9)


def test_signal_to_noise_adds_norms_of_signal_and_squared_noise():
  a, b = aggregators.SignalToNoise(3.0, 4.0), aggregators.SignalToNoise(5.0, 12.0)
  for total in (a + b, sum([b, a], aggregators.SignalToNoise())):
    assert (total.signal_norm, total.squared_noise_norm) == (8.0, 16.0)
    assert total.ratio == 2.0


def _factory():
  return aggregators.gaussian(
    clip_norm=3.0, noise_multiplier=0.5, clients_per_round=4, seed=noise.Seed(7)
  )


def test_with_not_private_signal_to_noise_only_adds_measurements():
  value_type = tff.to_type([(np.float32, [2]), np.float32])
  values = [[np.float32([3.0, 0.0]), np.float32(4.0)]] * 2
  plain, measured = (
    factory.create(value_type)
    for factory in (_factory(), _factory().with_not_private_signal_to_noise())
  )
  assert 'not_private' not in str(plain.next.type_signature)
  assert 'not_private' in str(measured.next.type_signature)
  expected = plain.next(plain.initialize(), values)
  actual = measured.next(measured.initialize(), values)
  tf.nest.map_structure(np.testing.assert_array_equal, actual.result, expected.result)
  assert str(measured.initialize.type_signature) == str(plain.initialize.type_signature)
  assert (
    aggregators.extract_dp_event(actual.state).all_rounds_so_far
    == aggregators.extract_dp_event(expected.state).all_rounds_so_far
  )
  # Two of four clients are clipped to 3; three coordinates have noise of 3 x 0.5.
  metrics = actual.measurements['dp_query_metrics']
  assert metrics['not_private_signal_norm'] == pytest.approx(2 * 3.0 / 4)
  assert metrics['squared_noise_norm'] == pytest.approx(3 * (3.0 * 0.5 / 4) ** 2)
