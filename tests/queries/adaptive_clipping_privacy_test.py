"""The privacy cost of adaptive clipping is what the noise multiplier states."""

import math

import dp_accounting
import numpy as np
import pytest
import tensorflow as tf

from tests.queries import adaptive_queries
from tff_dp_aggregators import noise as noise_lib
from tff_dp_aggregators import queries
from tff_dp_aggregators.accounting import accountants
from tff_dp_aggregators.queries import adaptive_clipping

some_strategies = pytest.mark.parametrize(
  'kind', ['gaussian', 'tree_with_restarts', 'blt']
)
_HOSTILE = [
  [0.0, 0.0, 0.0],
  [0.3, -0.2, 0.1],
  [3.0, 4.0, 0.0],
  [3e38, -3e38, 3e38],
  [1e-40, 1e-45, 0.0],
  [math.nan, 1.0, 1.0],
  [math.inf, 0.0, 0.0],
  [-math.inf, math.inf, math.nan],
]


@pytest.mark.parametrize(
  'noise_multiplier, count_stddev, clip_norm, estimate',
  [
    (1.0, None, 1.0, 1.0),
    (2.0, 1.001, 1e-6, 3.0),
    (0.3, 40.0, 7e5, 1e-3),
    (5.0, 3.0, 1.0, 1.0),
  ],
)
def test_change_by_any_record_is_bounded_by_noise_multiplier(
  noise_multiplier, count_stddev, clip_norm, estimate
):
  query = adaptive_queries.unlimited(
    noise_multiplier=noise_multiplier, clipped_count_stddev=count_stddev
  )
  state = query.initial_global_state()
  state = state._replace(
    clip_norm=tf.constant(clip_norm),
    adaptation=state.adaptation._replace(quantile_estimate=tf.constant(estimate)),
  )
  params = query.derive_sample_params(state)
  record_stddev = float(np.float32(clip_norm)) * query.value_noise_multiplier
  changes = []
  for record in [*_HOSTILE, *np.random.default_rng(1).normal(size=[20, 3]) * clip_norm]:
    sample = query.preprocess_record(params, tf.constant(record, tf.float32))
    joint = [*(adaptive_queries.entries(query, params, sample) / record_stddev)]
    joint.append(adaptive_queries.below(sample) / query.clipped_count_stddev)
    assert np.all(np.isfinite(joint))
    changes.append(np.linalg.norm(joint))
  bound = 1 / noise_multiplier
  assert max(changes) <= bound * (1 + 1e-15)  # The test itself rounds.
  assert max(changes) >= bound * (1 - 1e-6)  # No noise is wasted.


@some_strategies
def test_noise_is_strategy_noise_times_clip_norm_of_round(kind):
  # While the clip norm moves, the noise consists of the rows that a mechanism with unit
  # scale draws for the same specs and seed, exactly as in the last step of the proof.
  specs = tf.TensorSpec([3], tf.float64)
  unit = queries.MatrixMechanismQuery(
    adaptive_queries.STRATEGIES[kind],
    adaptive_queries.PARTICIPATION,
    clip_norm=1.0,
    noise_multiplier=1.0,
    record_specs=adaptive_clipping.AdaptiveSample(specs, tf.TensorSpec([])),
    seed=noise_lib.Seed(7),
  )
  query = adaptive_queries.build(
    kind, record_specs=specs, seed=noise_lib.Seed(7), learning_rate=0.7
  )
  unit_state, state = unit.initial_global_state(), query.initial_global_state()
  record = tf.constant([10.0, -20.0, 30.0], tf.float64)
  clip_norms = set()
  for _ in range(adaptive_queries.ROUNDS):
    clip_norm = float(state.clip_norm)
    rows, unit_state, _ = adaptive_queries.one_round(unit, unit_state, [])
    result, state, _ = adaptive_queries.one_round(query, state, [record])
    clipped = clip_norm * record / tf.norm(record)
    np.testing.assert_allclose(
      result - clipped,
      clip_norm * query.value_noise_multiplier * rows.record,
      rtol=1e-12,
      atol=1e-9 * clip_norm,
    )
    fraction = 0.5 + (query.clipped_count_stddev * float(rows.below) - 0.5) / 100
    assert float(state.adaptation.fraction_below) == pytest.approx(fraction, rel=1e-6)
    clip_norms.add(clip_norm)
  assert len(clip_norms) == adaptive_queries.ROUNDS // query.update_every


@some_strategies
def test_adaptive_clipping_events_equal_fixed_clip_norm_events(kind):
  query = adaptive_queries.build(kind)
  fixed = queries.MatrixMechanismQuery(
    adaptive_queries.STRATEGIES[kind],
    adaptive_queries.PARTICIPATION,
    clip_norm=1.0,
    noise_multiplier=2.0,
    record_specs=tf.TensorSpec([3]),
  )
  assert query.run_event() == fixed.run_event()
  assert query.effective_noise_multiplier == fixed.effective_noise_multiplier
  assert query.noise_multiplier == 2.0
  noise_multipliers = [query.value_noise_multiplier, 2 * query.clipped_count_stddev]
  both = dp_accounting.ComposedDpEvent(
    [dp_accounting.GaussianDpEvent(sigma) for sigma in noise_multipliers]
  )
  assert accountants.gdp_mu(both) == pytest.approx(1 / 2.0, rel=1e-12)
  state, round_events = query.initial_global_state(), []
  for _ in range(adaptive_queries.ROUNDS):
    _, state, noise_multiplier = adaptive_queries.one_round(query, state, [])
    round_events.append(dp_accounting.GaussianDpEvent(float(noise_multiplier)))
  assert accountants.gdp_mu(
    dp_accounting.ComposedDpEvent(round_events)
  ) == pytest.approx(accountants.gdp_mu(query.run_event()), rel=1e-12)
  with pytest.raises(tf.errors.InvalidArgumentError, match='built for 8 rounds'):
    adaptive_queries.one_round(query, state, [])


def test_zero_noise_multiplier_leaves_sum_and_count_exact():
  query = adaptive_queries.unlimited(noise_multiplier=0.0, clients_per_round=10)
  assert query.value_noise_multiplier == query.clipped_count_stddev == 0.0
  results, states = adaptive_queries.run(query, [[0.1, 0.2, 0.3]] * 3, 1)
  np.testing.assert_allclose(results[0], [0.3, 0.6, 0.9], rtol=1e-6)
  assert float(states[0].adaptation.fraction_below) == pytest.approx(0.5 + 1.5 / 10)
