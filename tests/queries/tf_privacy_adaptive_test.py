"""Adaptive clip norms and sums are those of TensorFlow Privacy's queries.

Both are given the same records without noise, for independent noise and for a tree with
restarts, in which the clip norm stays while its estimate moves.
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
def test_clip_norms_and_sums_are_those_of_tf_privacy(quantile, rate, start):
  # More records than expected in one round and fewer in others: the fraction is cut off
  # at 1, and divided by the same number.
  specs = [tf.TensorSpec([4]), tf.TensorSpec([])]
  theirs = tfp.QuantileAdaptiveClipSumQuery(
    initial_l2_norm_clip=start,
    noise_multiplier=0.0,
    target_unclipped_quantile=quantile,
    learning_rate=rate,
    clipped_count_stddev=0.0,
    expected_num_records=6.0,
    geometric_update=True,
  )
  ours = queries.AdaptiveGaussianSumQuery(
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

  our_state, their_state = ours.initial_global_state(), theirs.initial_global_state()
  template = as_record(np.zeros(5))
  for number in range(6):
    scales = rng.lognormal(1.0, 1.0, size=[(4, 6, 15)[number % 3], 1])
    records = [as_record(row) for row in scales * rng.normal(size=[len(scales), 5])]
    our_sum, our_state, _ = records_lib.one_round(ours, our_state, records, template)
    their_sum, their_state, _ = records_lib.one_round(
      theirs, their_state, records, template
    )
    np.testing.assert_allclose(
      records_lib.flat(our_sum), records_lib.flat(their_sum), rtol=2e-5, atol=2e-5
    )
    their_clip = theirs.derive_metrics(their_state)['clip']
    np.testing.assert_allclose(our_state.clip_norm, their_clip, rtol=1e-5)
  assert abs(math.log(float(our_state.clip_norm) / start)) > 0.5  # It did move.


def test_a_tree_with_restarts_is_that_of_tf_privacy():
  period, num_rounds = 2, 5
  template = tf.zeros([3])
  theirs = tfp.RestartQuery(
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
  ours = queries.AdaptiveClippingQuery(
    strategies.BinaryTree(num_rounds, restart_every=period),
    strategies.Participation(num_rounds),
    initial_clip_norm=0.5,
    noise_multiplier=0.0,
    clients_per_round=5,
    record_specs=tf.TensorSpec([3]),
  )
  rng = np.random.default_rng(5)
  our_state, their_state = ours.initial_global_state(), theirs.initial_global_state()
  for _ in range(num_rounds):
    records = [tf.constant(row, tf.float32) for row in rng.normal(size=[3, 3])]
    our_sum, our_state, _ = records_lib.one_round(ours, our_state, records, template)
    their_sum, their_state, _ = records_lib.one_round(
      theirs, their_state, records, template
    )
    np.testing.assert_allclose(our_sum, their_sum, rtol=1e-5, atol=1e-5)
    metrics = theirs.derive_metrics(their_state)
    np.testing.assert_allclose(
      [our_state.clip_norm, our_state.adaptation.quantile_estimate],
      [metrics['current_clip'], metrics['estimate_clip']],
      rtol=1e-5,
    )
  assert not np.isclose(our_state.clip_norm, 0.5)
