"""Adaptive clipping: the clip norm converges to the target quantile of norms.

`adaptive_clipping_privacy_test` tests the privacy cost,
`adaptive_clipping_interface_test` arguments, records, states and metrics.
"""

import math

import numpy as np
import pytest
import tensorflow as tf

from tests.queries import adaptive_queries
from tff_dp_aggregators import noise as noise_lib
from tff_dp_aggregators import queries
from tff_dp_aggregators import strategies
from tff_dp_aggregators.queries import grid

# The algorithm without noise.


@pytest.mark.parametrize(
  'numbers, quantile, start, clip_norms, sums',
  [
    # Both numbers are below the clip norm, which halves. Then one is, and it shrinks by
    # sqrt(2) twice. Then none is, and it stays.
    (
      [5.0, -2.5],
      0.0,
      16.0,
      [8, 4, math.sqrt(8), 2, 2],
      [2.5, 2.5, 1.5, math.sqrt(8) - 2.5, 0],
    ),
    # The mirror image: the clip norm starts below both numbers and grows.
    (
      [-1.5, 3.0],
      1.0,
      0.5,
      [1, 2, math.sqrt(8), 4, 4],
      [0, 0, 0.5, math.sqrt(8) - 1.5, 1.5],
    ),
  ],
)
def test_clip_norms_match_values_by_hand(numbers, quantile, start, clip_norms, sums):
  query = adaptive_queries.unlimited(
    initial_clip_norm=start,
    noise_multiplier=0.0,
    clients_per_round=2,
    target_quantile=quantile,
    learning_rate=math.log(2.0),
    record_specs=tf.TensorSpec([1]),
  )
  results, states = adaptive_queries.run(query, [[x] for x in numbers], 5)
  np.testing.assert_allclose(np.ravel(results), sums, atol=1e-5)
  np.testing.assert_allclose([s.clip_norm for s in states], clip_norms, rtol=1e-6)


def test_clip_norm_converges_to_target_quantile_of_norms():
  # The norms are exp(N(1, 1)). A round measures the fraction with a standard deviation
  # of at most 0.09 (50 clients, noise 0.05), and the mean of 150 rounds with 0.007. The
  # steps add up to a change of the logarithm of at most 0.3, so that mean is within
  # 0.3 / (0.2 x 150) = 0.01 of the target. The fraction changes by at least 0.28 per
  # unit of the logarithm, so these become 0.026 and 0.036. The bound is six of the
  # first and one of the second: less than 10^-8 on each side.
  num_rounds, clients, target = 200, 50, 0.8
  query = queries.AdaptiveClippingQuery(
    strategies.Identity(num_rounds),
    strategies.Participation(num_rounds),
    **adaptive_queries.arguments(
      clients_per_round=clients,
      target_quantile=target,
      noise_multiplier=1.0,
      seed=noise_lib.Seed(1),
    ),
  )

  @tf.function(autograph=False)
  def step(state, records):
    return query.get_noised_result(
      adaptive_queries.sum_of(query, state, records), state
    )[1]

  rng = np.random.default_rng(2)
  state, logarithms = query.initial_global_state(), []
  for _ in range(num_rounds):
    directions = rng.normal(size=[clients, 3])
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    records = directions * rng.lognormal(1.0, 1.0, size=[clients, 1])
    state = step(state, tf.constant(records, tf.float32))
    logarithms.append(math.log(float(state.clip_norm)))
  assert np.mean(logarithms[50:]) == pytest.approx(1 + 0.842, abs=0.19)


# When and how far the clip norm moves.


@pytest.mark.parametrize(
  'kind, argument, update_every',
  [('banded', None, 1), ('tree_with_restarts', None, 4), ('blt', 3, 3)],
)
def test_clip_norm_changes_only_at_updates_unlike_its_estimate(
  kind, argument, update_every
):
  query = adaptive_queries.build(kind, update_every=argument)
  assert query.update_every == update_every
  state = query.initial_global_state()
  clip_norm, estimate = 1.0, 1.0
  for number in range(1, adaptive_queries.ROUNDS + 1):
    assert float(query.derive_sample_params(state).clip_norm) == clip_norm
    _, state, _ = adaptive_queries.one_round(
      query, state, [tf.constant([1.0, 2.0, 3.0])]
    )
    assert float(state.adaptation.quantile_estimate) != estimate
    estimate = float(state.adaptation.quantile_estimate)
    if number % update_every == 0:
      clip_norm = estimate
    assert float(state.clip_norm) == clip_norm


@pytest.mark.parametrize('noise_multiplier', [0.0, 3.0])
@pytest.mark.parametrize('up', [False, True])
def test_clip_norm_stays_within_clip_norm_limits(up, noise_multiplier):
  query = adaptive_queries.unlimited(
    noise_multiplier=noise_multiplier,
    target_quantile=float(up),
    learning_rate=1e4,
    seed=noise_lib.Seed(1),
  )
  record = [3e38 if up else 0.0, 0.0, 0.0]
  results, states = adaptive_queries.run(query, [record] * 99, 3)
  clip_norm = float(states[0].clip_norm)
  for state in states:
    assert float(state.clip_norm) == clip_norm
  value_noise_multiplier = noise_multiplier and query.value_noise_multiplier
  assert clip_norm == grid.CLIP_NORM_LIMITS[int(up)]
  for result in results[1:]:
    # The noise has the right size, with all digits, and nothing overflows.
    assert np.all(np.isfinite(result))
    if noise_multiplier:
      noise = np.abs(result[1:].numpy()) / (clip_norm * value_noise_multiplier)
      assert np.all((noise > 1e-4) & (noise < 6))
