"""Adaptive clipping queries: arguments, records, states and metrics."""

import logging
import math

import numpy as np
import pytest
import tensorflow as tf

from tests.queries import adaptive_queries
from tests.queries import records as records_lib
from tff_dp_aggregators import noise as noise_lib


def test_adaptive_query_encodes_hostile_records_as_specified():
  query = adaptive_queries.unlimited(initial_clip_norm=5.0)
  params = query.derive_sample_params(query.initial_global_state())
  encode = lambda values: query.preprocess_record(params, tf.constant(values))  # noqa: E731
  # Non-finite records count as a record of zeros.
  for record in ([math.nan, 1.0, 1.0], [math.inf, 0.0, 0.0]):
    assert records_lib.flat(encode(record).record).tolist() == [0, 0, 0]
    assert (
      adaptive_queries.below(encode(record))
      == adaptive_queries.below(encode([0.0] * 3))
      == 0.5
    )
  # A norm equal to the estimate is not above it.
  assert adaptive_queries.below(encode([3.0, 4.0, 0.0])) == 0.5
  assert adaptive_queries.below(encode([3.0, 4.000001, 0.0])) == -0.5
  # The squares of these overflow, or vanish, in float32.
  large = encode([3e38, 3e38, -3e38])
  assert adaptive_queries.below(large) == -0.5
  entries = adaptive_queries.entries(query, params, large)
  assert np.linalg.norm(entries) == pytest.approx(5.0, rel=1e-6)
  assert adaptive_queries.below(encode([1e-38, 1e-38, 1e-38])) == 0.5


def _bits(*structures):
  return [np.asarray(t.numpy()).tobytes() for t in tf.nest.flatten(structures)]


def test_adaptive_metrics_depend_only_on_released_values():
  query = adaptive_queries.build('tree', seed=noise_lib.Seed(918273645))
  state = query.initial_global_state()
  metrics = query.derive_metrics(state)
  assert metrics.pop('noise_storage').numpy().decode() == query.storage
  assert metrics.pop('noise_generator').numpy().decode() == 'philox'
  assert metrics.pop('noise_key_tag').numpy() == b''
  assert {name: float(value) for name, value in metrics.items()} == {
    'rounds': 0.0,
    'clip_norm': 1.0,
    'noise_multiplier': 2.0,
    'effective_noise_multiplier': math.inf,
    'quantile_estimate': 1.0,
    'fraction_below': 0.5,
  }
  _, state, _ = adaptive_queries.one_round(
    query, state, [tf.constant([1.0, 2.0, 3.0])] * 7
  )
  metrics = query.derive_metrics(state)
  # The fraction has the count's noise, and the other metrics follow from it.
  fraction = float(metrics['fraction_below'])
  assert 0.0 < fraction < 1.0 and abs(fraction - (0.5 - 3.5 / 100)) > 1e-4
  expected = math.exp(-0.2 * (fraction - 0.5))
  assert float(metrics['quantile_estimate']) == pytest.approx(expected, rel=1e-6)
  assert float(metrics['clip_norm']) == pytest.approx(expected, rel=1e-6)
  other_key_state = state._replace(noise=state.noise._replace(key=state.noise.key + 1))
  assert _bits(query.derive_metrics(other_key_state)) == _bits(metrics)


@pytest.mark.parametrize(
  'argument, value',
  [
    ('initial_clip_norm', 0.0),
    ('initial_clip_norm', 1e31),
    ('noise_multiplier', -1.0),
    ('clients_per_round', 0),
    ('target_quantile', 1.1),
    ('target_quantile', math.nan),
    ('learning_rate', -0.2),
    ('clipped_count_stddev', -1.0),
    # The count alone would need this noise, half of the noise multiplier.
    ('clipped_count_stddev', 1.0),
    ('update_every', 0),
  ],
)
def test_adaptive_query_refuses_out_of_range_arguments(argument, value):
  with pytest.raises(ValueError, match=f'{argument} must be'):
    adaptive_queries.build(**{argument: value})


@pytest.mark.parametrize('clients', [1, 20, 10_000])
@pytest.mark.parametrize('noise_multiplier', [0.0, 1e-3, 2.0, 1e4])
def test_default_count_noise_costs_at_most_a_tenth(caplog, noise_multiplier, clients):
  with caplog.at_level(logging.WARNING):
    query = adaptive_queries.build(
      noise_multiplier=noise_multiplier, clients_per_round=clients
    )
  assert not caplog.records
  assert query.clipped_count_share <= 0.1 + 1e-12
  assert query.value_noise_multiplier <= 1.0541 * noise_multiplier
  if 0 < query.clipped_count_share < 0.0999:  # Below the cap of a tenth.
    assert query.clipped_count_stddev == 0.05 * clients


def test_count_noise_too_large_for_sums_is_refused():
  with pytest.raises(ValueError, match=r'at most 2\^20.*noise_multiplier=10000000\.0'):
    adaptive_queries.build(noise_multiplier=1e7)


def test_clip_norm_updates_within_a_tree_are_refused():
  with pytest.raises(ValueError, match='update_every must.* restart_every, 4; got 6'):
    adaptive_queries.build('tree_with_restarts', update_every=6)
  with pytest.raises(TypeError, match='update_every must be a whole number'):
    adaptive_queries.build('tree_with_restarts', update_every=4.5)
