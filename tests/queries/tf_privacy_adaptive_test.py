"""Adaptive clip norms and sums match those of TensorFlow Privacy's queries.

Both get the same records and add no noise, for the query with independent noise and for
a tree with restarts, in which the clip norm stays while its estimate moves.
"""

import math

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_privacy as tfp

from tests.queries import records as records_lib
from tff_dp_aggregators import queries
from tff_dp_aggregators import strategies


@pytest.mark.parametrize('quantile, rate, start', [(0.8, 1.0, 30.0), (0.0, 0.3, 5.0)])
def test_adaptive_gaussian_clip_norms_and_sums_match_tf_privacy(quantile, rate, start):
  # Some rounds have more and some have fewer records than expected: the fraction is
  # divided by the expected number, and at most 1.
  specs = [tf.TensorSpec([4]), tf.TensorSpec([])]
  tfp_query = tfp.QuantileAdaptiveClipSumQuery(
    initial_l2_norm_clip=start,
    noise_multiplier=0.0,
    target_unclipped_quantile=quantile,
    learning_rate=rate,
    clipped_count_stddev=0.0,
    expected_num_records=6.0,
    geometric_update=True,
  )
  query = queries.AdaptiveGaussianSumQuery(
    initial_clip_norm=start,
    noise_multiplier=0.0,
    target_quantile=quantile,
    learning_rate=rate,
    clients_per_round=6,
    record_specs=specs,
  )
  rng = np.random.default_rng(4)

  def as_record(row):
    return [tf.constant(row[:4], tf.float32), tf.constant(row[4], tf.float32)]

  state, tfp_state = query.initial_global_state(), tfp_query.initial_global_state()
  template = as_record(np.zeros(5))
  for number in range(6):
    scales = rng.lognormal(1.0, 1.0, size=[(4, 6, 15)[number % 3], 1])
    records = [as_record(row) for row in scales * rng.normal(size=[len(scales), 5])]
    sums, state, _ = records_lib.one_round(query, state, records, template)
    tfp_sums, tfp_state, _ = records_lib.one_round(
      tfp_query, tfp_state, records, template
    )
    np.testing.assert_allclose(
      records_lib.flat(sums), records_lib.flat(tfp_sums), rtol=2e-5, atol=2e-5
    )
    tfp_clip_norm = tfp_query.derive_metrics(tfp_state)['clip']
    np.testing.assert_allclose(state.clip_norm, tfp_clip_norm, rtol=1e-5)
  assert abs(math.log(float(state.clip_norm) / start)) > 0.5  # The clip norm did move.


def test_adaptive_tree_with_restarts_matches_tf_privacy():
  period, num_rounds = 2, 5
  template = tf.zeros([3])
  tfp_query = tfp.RestartQuery(
    tfp.QAdaClipTreeResSumQuery(
      initial_l2_norm_clip=0.5,
      noise_multiplier=0.0,
      record_specs=tf.TensorSpec([3]),
      target_unclipped_quantile=0.5,
      learning_rate=0.2,
      clipped_count_stddev=0.0,
      expected_num_records=5.0,
    ),
    tfp.restart_query.PeriodicRoundRestartIndicator(period),
  )
  query = queries.AdaptiveClippingQuery(
    strategies.BinaryTree(num_rounds, restart_every=period),
    strategies.Participation(num_rounds),
    initial_clip_norm=0.5,
    noise_multiplier=0.0,
    clients_per_round=5,
    record_specs=tf.TensorSpec([3]),
  )
  rng = np.random.default_rng(5)
  state, tfp_state = query.initial_global_state(), tfp_query.initial_global_state()
  for _ in range(num_rounds):
    records = [tf.constant(row, tf.float32) for row in rng.normal(size=[3, 3])]
    sums, state, _ = records_lib.one_round(query, state, records, template)
    tfp_sums, tfp_state, _ = records_lib.one_round(
      tfp_query, tfp_state, records, template
    )
    np.testing.assert_allclose(sums, tfp_sums, rtol=1e-5, atol=1e-5)
    metrics = tfp_query.derive_metrics(tfp_state)
    np.testing.assert_allclose(
      [state.clip_norm, state.adaptation.quantile_estimate],
      [metrics['current_clip'], metrics['estimate_clip']],
      rtol=1e-5,
    )
  assert not np.isclose(state.clip_norm, 0.5)
