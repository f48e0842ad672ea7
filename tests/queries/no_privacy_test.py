"""Queries without privacy: plain sums and averages, with non-private events."""

import dp_accounting
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_privacy as tfp

from tests.queries import records as records_lib
from tff_dp_aggregators import queries


def _run(query, records, weights=None):
  """One round; each record is its own sample, merged with those before."""
  state = query.initial_global_state()
  params = query.derive_sample_params(state)
  sample = query.initial_sample_state(records[0])
  for number, record in enumerate(records):
    weight = () if weights is None else (weights[number],)
    alone = query.initial_sample_state(record)
    alone = query.accumulate_record(params, alone, record, *weight)
    sample = query.merge_sample_states(sample, alone)
  return query.get_noised_result(sample, state)


@pytest.mark.parametrize(
  'name, weights',
  [
    ('NoPrivacySumQuery', None),
    ('NoPrivacyAverageQuery', None),
    ('NoPrivacyAverageQuery', np.float32([0.5, 1.3, 2.0, 0.7])),
  ],
)
def test_no_privacy_results_match_tf_privacy(name, weights):
  values = np.random.default_rng(2).normal(size=[4, 6])
  # TF Privacy's query does not average float64.
  values = values.astype(np.float32)
  records = [{'a': tf.constant(row[:5]), 'b': [tf.constant(row[5])]} for row in values]
  actual = _run(getattr(queries, name)(), records, weights)
  expected = _run(getattr(tfp, name)(), records, weights)
  np.testing.assert_allclose(
    records_lib.flat(actual[0]), records_lib.flat(expected[0]), rtol=1e-6
  )
  assert actual[2] == expected[2] == dp_accounting.NonPrivateDpEvent()


@pytest.mark.parametrize('bad', [np.nan, np.inf, -np.inf])
def test_no_privacy_queries_keep_non_finite_values(bad):
  records = [tf.constant([1.0, bad]), tf.constant([2.0, 3.0])]
  for query in (queries.NoPrivacySumQuery(), queries.NoPrivacyAverageQuery()):
    result, _, _ = _run(query, records)
    assert np.isfinite(result[0])
    np.testing.assert_array_equal(result[1], bad)
