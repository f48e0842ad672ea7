"""`NormClipSumQuery`: sums of clipped records without noise."""

import math

import dp_accounting
import numpy as np
import pytest
import tensorflow as tf

from tests.queries import records as records_lib
from tff_dp_aggregators import queries


def _clipped(values, clip_norm, order):
  if math.isinf(order):
    return np.clip(values, -clip_norm, clip_norm)
  return values / max(1, np.linalg.norm(values, order) / clip_norm)


def _run(query, records):
  state = query.initial_global_state()
  params = query.derive_sample_params(state)
  sample = query.initial_sample_state(records_lib.SPECS)
  for record in records[:2]:
    sample = query.accumulate_record(params, sample, record)
  second_sample = query.initial_sample_state(records_lib.SPECS)
  for record in records[2:]:
    preprocessed = query.preprocess_record(params, record)
    second_sample = query.accumulate_preprocessed_record(second_sample, preprocessed)
  sample = query.merge_sample_states(sample, second_sample)
  return query.get_noised_result(sample, state)


@pytest.mark.parametrize('order', [1, 1.5, 2, math.inf])
def test_norm_clip_query_sums_clipped_records(order):
  values = np.random.default_rng(1).normal(size=[5, 6])
  values[0] *= 0.01  # Within the clip norm; the other records are not.
  records = [records_lib.record(row) for row in values]
  query = queries.NormClipSumQuery(
    order=order, clip_norm=0.5, record_specs=records_lib.SPECS
  )
  result, _, event = _run(query, records)
  tf.nest.assert_same_structure(result, records_lib.SPECS)
  expected = sum(_clipped(row, 0.5, order) for row in values)
  np.testing.assert_allclose(records_lib.flat(result), expected, rtol=0, atol=1e-6)
  assert event == dp_accounting.NonPrivateDpEvent()
  metrics = query.derive_metrics(query.initial_global_state())
  assert {name: float(value) for name, value in metrics.items()} == {'clip_norm': 0.5}


def test_normalized_query_divides_by_fixed_denominator():
  # The first record is clipped to [-3, 4]; the second is within the clip norm.
  query = queries.NormalizedQuery(
    queries.NormClipSumQuery(order=2, clip_norm=5.0, record_specs=tf.TensorSpec([2])),
    denominator=2.0,
  )
  records = [tf.constant(each) for each in ([-6.0, 8.0], [4.0, -3.0])]
  result, _, _ = records_lib.one_round(query, query.initial_global_state(), records)
  np.testing.assert_allclose(result, [0.5, 0.5], rtol=1e-6)
