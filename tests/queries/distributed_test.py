"""`DistributedSumQuery`: structures, states, metrics, and noise unlike TF Privacy's."""

import itertools

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_privacy as tfp

from tests.queries import records as records_lib
from tff_dp_aggregators import queries
from tff_dp_aggregators import strategies

_SPECS = {
  'a': tf.TensorSpec([3, 2]),
  'b': [tf.TensorSpec([], tf.float64), tf.TensorSpec([0])],
  'c': tf.TensorSpec([5], tf.float16),
}


def _query(specs=None, **changes):
  numbers = {
    'noise': 'skellam',
    'clip_norm': 10.0,
    'noise_multiplier': 1e-3,
    'min_clients': 2,
    'max_clients': 3,
    'bits': 18,
    'record_specs': _SPECS if specs is None else specs,
    **changes,
  }
  return queries.DistributedSumQuery(**numbers)


def test_sum_has_structure_of_records_and_float_dtypes():
  query = _query()
  rng = np.random.default_rng(4)
  record = tf.nest.map_structure(
    lambda spec: tf.constant(rng.normal(size=spec.shape), spec.dtype), _SPECS
  )
  state = query.initial_global_state()
  noised, state, event = records_lib.one_round(query, state, [record, record])
  assert noised['a'].dtype == noised['c'].dtype == tf.float32
  assert noised['b'][0].dtype == tf.float64
  for actual, tensor in zip(tf.nest.flatten(noised), tf.nest.flatten(record)):
    np.testing.assert_allclose(actual, 2 * np.asarray(tensor, np.float64), atol=0.1)
  assert event == query.mechanism.event()
  assert int(state.round) == 1


def test_query_refuses_state_of_other_mechanism():
  state = _query().initial_global_state()
  other_query = _query(noise_multiplier=2e-3)
  record = tf.nest.map_structure(lambda spec: tf.zeros(spec.shape, spec.dtype), _SPECS)
  with pytest.raises(tf.errors.InvalidArgumentError, match='another mechanism'):
    records_lib.one_round(other_query, state, [record, record])


def test_metrics_and_attributes_match_planned_mechanism():
  query = _query(participation=strategies.Participation(4, 2))
  state = query.initial_global_state()
  metrics = query.derive_metrics(state)
  assert float(metrics['scale']) == query.mechanism.scale
  assert 0 < float(metrics['wrap_probability']) <= 1e-6
  assert (query.generator, query.seed_identity) == ('chacha20', 'secret')
  assert (query.clip_norm, query.noise_multiplier) == (10.0, 1e-3)
  assert int(query.spent(state).all_rounds) == 0
  assert query.run_event().count == 2


def _equal_pairs(records):
  """Numbers of equal pairs, and of all pairs, of tensors of the same record."""
  pairs = [
    (one.tobytes(), other.tobytes())
    for record in records
    for one, other in itertools.combinations(record, 2)
  ]
  return sum(one == other for one, other in pairs), len(pairs)


def test_tensors_of_a_record_have_different_noise():
  query = _query([tf.TensorSpec([32])] * 8, noise_multiplier=0.5)
  params = query.derive_sample_params(query.initial_global_state())
  encode = tf.function(query.encode_record, autograph=False)
  sent = [encode(params, [tf.zeros([32])] * 8)[0].entries.numpy() for _ in range(20)]
  equal, _ = _equal_pairs([np.split(each, 8) for each in sent])
  assert equal == 0
  assert _equal_pairs([sent])[0] == 0


@pytest.mark.slow  # The result depends on how fast the machine is.
def test_tensors_of_a_record_share_noise_in_tf_privacy():
  query = tfp.DistributedSkellamSumQuery(10**6, 1e6, 5.0)
  params = query.derive_sample_params(query.initial_global_state())
  encode = tf.function(lambda record: query.preprocess_record(params, record))
  zeros = [tf.zeros([20], tf.int32)] * 8
  records = [[each.numpy() for each in encode(zeros)] for _ in range(1000)]
  equal, pairs = _equal_pairs(records)
  # With 20 numbers of standard deviation 5, not one pair in 10^20 should be equal.
  assert equal > 0 and pairs == 28_000
