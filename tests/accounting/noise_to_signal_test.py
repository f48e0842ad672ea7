"""The noise-to-signal ratio equals that of dense matrices, for every mechanism."""

import math

import numpy as np
import pytest

from tff_dp_aggregators import strategies
from tff_dp_aggregators.accounting import mechanism as mechanism_lib
from tff_dp_aggregators.accounting import noise_to_signal

LIMITS = strategies.Participation(24, min_separation=6)


@pytest.mark.parametrize('name', ['banded', 'tree', 'laplace', 'skellam'])
def test_by_round_and_of_sums_match_dense_matrices(name):
  options = {'min_clients': 50, 'dimension': 400, 'bits': 20}
  options = options if name == 'skellam' else {}
  mechanism = mechanism_lib.Mechanism(name, LIMITS, noise_multiplier=3.0, **options)
  # A noise multiplier is the scale of z; Laplace noise has sqrt(2) times it as stddev.
  stddev = math.sqrt(2) if name == 'laplace' else 1.0
  row_norms = stddev * np.linalg.norm(mechanism.strategy.noise_matrix(), axis=1)
  sums = stddev * np.linalg.norm(mechanism.strategy.materialize_estimator(), axis=1)
  args = (mechanism, 400, 50)
  by_round = noise_to_signal.by_round(*args)
  np.testing.assert_allclose(by_round, 3.0 * row_norms * 20.0 / 50.0, rtol=1e-9)
  of_sums = noise_to_signal.of_sums(*args)
  expected = 3.0 * sums * 20.0 / (50.0 * np.arange(1, 25))
  np.testing.assert_allclose(of_sums, expected, rtol=1e-9)
  assert noise_to_signal.summary(*args) == (
    by_round[0],
    by_round.max(),
    by_round[-1],
    of_sums[-1],
  )


@pytest.mark.parametrize(
  ('noise_multiplier', 'expected'),
  [
    # The ratio is noise_multiplier / 10 in one round, and 1 / 4.9 of that in all 24.
    (9.9, None),
    (11.0, 'Note: the noise of the first round is 1.1 times as long'),
    (50.0, 'Warning: the noise of the first round is 5 times as long'),
  ],
)
def test_remark_warns_if_noise_is_longer_than_signal(noise_multiplier, expected):
  mechanism = mechanism_lib.Mechanism('gaussian', LIMITS, noise_multiplier)
  remark = noise_to_signal.remark(mechanism, model_size=100, clients_per_round=100)
  assert (remark is None) if expected is None else remark.startswith(expected)


@pytest.mark.parametrize(
  ('numbers', 'message'),
  [((0, 10), 'model_size'), ((10, math.nan), 'clients_per_round')],
)
def test_invalid_model_size_or_cohort_is_refused(numbers, message):
  mechanism = mechanism_lib.Mechanism('gaussian', LIMITS, 1.0)
  for function in (noise_to_signal.by_round, noise_to_signal.of_sums):
    with pytest.raises(ValueError, match=message):
      function(mechanism, *numbers)


def test_client_noise_adds_up_in_sum():
  def by_round(**options):
    mechanism = mechanism_lib.Mechanism('gaussian', LIMITS, 3.0, **options)
    args = (mechanism, 400, 50)
    return noise_to_signal.by_round(*args)[0], noise_to_signal.of_sums(*args)[-1]

  server = by_round()
  for site in ('local', 'local_approximate'):
    local = by_round(noise_site=site)
    np.testing.assert_allclose(local, np.multiply(math.sqrt(50), server), rtol=1e-12)
  # Shares for 50 clients add up to the server's noise; shares for 10, from 50, to more.
  assert by_round(noise_site='clients', min_clients=50) == server
  shares = by_round(noise_site='clients', min_clients=10)
  np.testing.assert_allclose(shares, np.multiply(math.sqrt(5), server), rtol=1e-12)
