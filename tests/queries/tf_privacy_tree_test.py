"""The tree queries agree with TensorFlow Privacy's in distribution.

Both are run for the same rounds without records; the covariance over rounds of each is
held against the strategy's matrix and against the other's, with `use_efficient`
(Honaker's estimator) and without, and with periodic restarts and without.
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
  """Covariance over rounds of what is released when there are no records."""
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
def test_covariance_over_rounds_agrees(name, efficient, restart_every):
  # Seven standard deviations an entry, 3e-12 each; 45 entries, three comparisons and
  # eight cases make 4e-9. The difference of the two has twice the variance.
  ours = getattr(queries, name)(
    strategies.Participation(_ROUNDS),
    clip_norm=_CLIP_NORM,
    noise_multiplier=_NOISE_MULTIPLIER,
    record_specs=tf.TensorSpec([_SAMPLES]),
    honaker=efficient,
    restart_every=restart_every,
    seed=noise_lib.Seed(31),
  )
  theirs = getattr(tfp, name).build_l2_gaussian_query(
    _CLIP_NORM,
    _NOISE_MULTIPLIER,
    tf.TensorSpec([_SAMPLES]),
    noise_seed=32,
    use_efficient=efficient,
  )
  if restart_every is not None:
    indicator = restart_query.PeriodicRoundRestartIndicator(restart_every)
    theirs = restart_query.RestartQuery(theirs, indicator)
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
  our_covariance, their_covariance = _covariance(ours), _covariance(theirs)
  assert np.all(np.abs(our_covariance - expected) <= bound)
  assert np.all(np.abs(their_covariance - expected) <= bound)
  assert np.all(np.abs(our_covariance - their_covariance) <= np.sqrt(2) * bound)
