"""`adaptive` makes TFF processes whose clip norm follows the clients' norms."""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.aggregators import running
from tests.queries import records as records_lib
from tff_dp_aggregators import aggregators
from tff_dp_aggregators import noise as noise_lib
from tff_dp_aggregators import queries
from tff_dp_aggregators import strategies

_ROUNDS = 4
_VECTOR = tff.TensorType(np.float32, [3])
_BLT = {
  'strategy': strategies.BLT(_ROUNDS, (0.3, 0.1), (0.9, 0.5)),
  'participation': strategies.Participation(_ROUNDS, min_separation=2),
}


def _metrics(output):
  return output.measurements['dp_query_metrics']


@pytest.mark.parametrize(
  'noise_multiplier, clients, count_stddev',
  [(1.0, 100, None), (0.1, 3.5, None), (7.0, 6500, None), (2.0, 10, 1.5)],
)
def test_adaptive_splits_noise_like_tff(noise_multiplier, clients, count_stddev):
  expected = tff.aggregators.differential_privacy.adaptive_clip_noise_params(
    noise_multiplier, clients, count_stddev
  )
  query = queries.AdaptiveGaussianSumQuery(
    initial_clip_norm=0.1,
    noise_multiplier=noise_multiplier,
    clients_per_round=clients,
    clipped_count_stddev=count_stddev,
    record_specs=tf.TensorSpec([]),
  )
  actual = (query.value_noise_multiplier, query.clipped_count_stddev)
  assert actual == pytest.approx(expected, rel=1e-12)


def test_adaptive_refuses_clip_norm_argument():
  with pytest.raises(TypeError, match='give initial_clip_norm'):
    aggregators.adaptive(clip_norm=1.0, noise_multiplier=1.0, clients_per_round=10)


def test_adaptive_process_matches_query_in_every_round():
  values = [np.float32([1, 2, 3]), np.float32([0.01, 0.02, 0])]
  arguments = {
    'noise_multiplier': 1.0,
    'clients_per_round': 20,
    'seed': noise_lib.Seed(4),
  }
  process = aggregators.adaptive(**arguments, **_BLT).create(_VECTOR)
  twin = aggregators.adaptive(**arguments, **_BLT).create(_VECTOR)
  query = queries.AdaptiveClippingQuery(
    *_BLT.values(),
    initial_clip_norm=0.1,
    record_specs=tf.TensorSpec([3]),
    **arguments,
  )
  state, query_state = process.initialize(), query.initial_global_state()
  for _ in range(_ROUNDS):
    output, repeated = process.next(state, values), twin.next(state, values)
    state = output.state
    assert output.result.tobytes() == repeated.result.tobytes()
    records = [tf.constant(value) for value in values]
    result, query_state, _ = records_lib.one_round(query, query_state, records)
    np.testing.assert_allclose(output.result, result / 20, rtol=1e-5, atol=1e-7)
    assert _metrics(output)['clip_norm'] == pytest.approx(
      float(query_state.clip_norm), rel=1e-6
    )


def test_small_cohort_keeps_noise_multiplier():
  # TFF's default noise of the count, a twentieth of the cohort, is too little for it.
  with pytest.raises(ValueError, match='is too low to achieve'):
    tff.aggregators.differential_privacy.adaptive_clip_noise_params(4.0, 3)
  process = aggregators.adaptive(noise_multiplier=4.0, clients_per_round=3).create(
    _VECTOR
  )
  values = [np.full(3, 9.0, np.float32)] * 3
  metrics = [
    each.measurements['dp_query_metrics'] for each in running.rounds(process, values, 3)
  ]
  assert all(0 <= each['fraction_below'] <= 1 for each in metrics)
  assert all(each['noise_multiplier'] == 4.0 for each in metrics)


def test_adaptive_factory_has_no_single_clip_norm():
  with pytest.raises(ValueError, match='changes from round to round'):
    aggregators.adaptive(noise_multiplier=4.0, clients_per_round=3).clip_norm  # noqa: B018
