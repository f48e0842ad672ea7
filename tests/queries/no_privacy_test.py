"""Sums and averages without privacy are plain sums and averages, and say so."""

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


@pytest.mark.parametrize('name', ['NoPrivacySumQuery', 'NoPrivacyAverageQuery'])
def test_results_are_those_of_tensorflow_privacy(name):
  values = np.random.default_rng(2).normal(size=[4, 6])
  # Theirs does not average float64.
  values = values.astype(np.float32)
  records = [{'a': tf.constant(row[:5]), 'b': [tf.constant(row[5])]} for row in values]
  ours = _run(getattr(queries, name)(), records)
  theirs = _run(getattr(tfp, name)(), records)
  np.testing.assert_allclose(
    records_lib.flat(ours[0]), records_lib.flat(theirs[0]), rtol=1e-6
  )
  assert ours[2] == theirs[2] == dp_accounting.NonPrivateDpEvent()


def test_weighted_results_are_those_of_tensorflow_privacy():
  rng = np.random.default_rng(3)
  records = [tf.constant(row, tf.float32) for row in rng.normal(size=[4, 6])]
  weights = rng.uniform(0.5, 2, size=4).astype(np.float32)
  ours, _, _ = _run(queries.NoPrivacyAverageQuery(), records, weights)
  theirs, _, _ = _run(tfp.NoPrivacyAverageQuery(), records, weights)
  np.testing.assert_allclose(ours, theirs, rtol=1e-6)


@pytest.mark.parametrize('bad', [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_stays_in_the_sum(bad):
  records = [tf.constant([1.0, bad]), tf.constant([2.0, 3.0])]
  for query in (queries.NoPrivacySumQuery(), queries.NoPrivacyAverageQuery()):
    result, _, _ = _run(query, records)
    assert np.isfinite(result[0])
    np.testing.assert_array_equal(result[1], bad)
