"""The tree queries agree with TensorFlow Privacy's in distribution.

Both run the same rounds without records. The covariance over rounds of each is compared
with the strategy's matrix and with the other's, with and without `use_efficient`
(Honaker's estimator), and with and without periodic restarts.
"""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_privacy as tfp
from tensorflow_privacy.privacy.dp_query import restart_query

from tff_dp_aggregators import noise as noise_lib
from tff_dp_aggregators import queries
from tff_dp_aggregators import strategies

_ROUNDS = 9
_SAMPLES = 100_000
_CLIP_NORM = 0.5
_NOISE_MULTIPLIER = 3.0


def _covariance(query):
  """Covariance over rounds of the results when there are no records."""
  state = query.initial_global_state()
  released = []
  for _ in range(_ROUNDS):
    sample = query.initial_sample_state(tf.TensorSpec([_SAMPLES]))
    result, state, _ = query.get_noised_result(sample, state)
    released.append(result.numpy().astype(np.float64))
  released = np.array(released)
  return released @ released.T / _SAMPLES


@pytest.mark.slow
@pytest.mark.parametrize('restart_every', [None, 4])
@pytest.mark.parametrize('efficient', [True, False])
@pytest.mark.parametrize('name', ['TreeResidualSumQuery', 'TreeCumulativeSumQuery'])
def test_tree_covariance_over_rounds_matches_tf_privacy(name, efficient, restart_every):
  # Seven standard deviations per entry, 3e-12 each; 45 entries, three comparisons and
  # eight cases make 4e-9. The difference of the two has twice the variance.
  query = getattr(queries, name)(
    strategies.Participation(_ROUNDS),
    clip_norm=_CLIP_NORM,
    noise_multiplier=_NOISE_MULTIPLIER,
    record_specs=tf.TensorSpec([_SAMPLES]),
    honaker=efficient,
    restart_every=restart_every,
    seed=noise_lib.Seed(31),
  )
  tfp_query = getattr(tfp, name).build_l2_gaussian_query(
    _CLIP_NORM,
    _NOISE_MULTIPLIER,
    tf.TensorSpec([_SAMPLES]),
    noise_seed=32,
    use_efficient=efficient,
  )
  if restart_every is not None:
    indicator = restart_query.PeriodicRoundRestartIndicator(restart_every)
    tfp_query = restart_query.RestartQuery(tfp_query, indicator)
  strategy = strategies.BinaryTree(_ROUNDS, efficient, restart_every)
  matrix = (
    _CLIP_NORM
    * _NOISE_MULTIPLIER
    * (
      strategy.materialize_estimator()
      if name == 'TreeCumulativeSumQuery'
      else strategy.noise_matrix()
    )
  )
  expected = matrix @ matrix.T
  variances = np.diag(expected)
  bound = 7 * np.sqrt((np.outer(variances, variances) + expected**2) / _SAMPLES)
  covariance, tfp_covariance = _covariance(query), _covariance(tfp_query)
  assert np.all(np.abs(covariance - expected) <= bound)
  assert np.all(np.abs(tfp_covariance - expected) <= bound)
  assert np.all(np.abs(covariance - tfp_covariance) <= np.sqrt(2) * bound)
