"""The ratio of noise to signal is that of vectors, for every mechanism."""

import math

import numpy as np
import pytest

from tff_dp_aggregators import strategies
from tff_dp_aggregators.accounting import mechanism as mechanism_lib
from tff_dp_aggregators.accounting import noise_to_signal

LIMITS = strategies.Participation(24, min_separation=6)


@pytest.mark.parametrize('name', ['banded', 'tree', 'laplace', 'skellam'])
def test_noise_of_rounds_and_sums_is_that_of_dense_matrices(name):
  needed = {'min_clients': 50, 'dimension': 400, 'bits': 20}
  needed = needed if name == 'skellam' else {}
  mechanism = mechanism_lib.Mechanism(name, LIMITS, noise_multiplier=3.0, **needed)
  # A noise multiplier is the scale of z; that of Laplace noise is below its deviation.
  stddev = math.sqrt(2) if name == 'laplace' else 1.0
  row_norms = stddev * np.linalg.norm(mechanism.strategy.noise_matrix(), axis=1)
  sums = stddev * np.linalg.norm(mechanism.strategy.materialize_estimator(), axis=1)
  given = (mechanism, 400, 50)
  np.testing.assert_allclose(
    noise_to_signal.per_coordinate(mechanism), 3.0 * row_norms, rtol=1e-9
  )
  by_round = noise_to_signal.by_round(*given)
  np.testing.assert_allclose(by_round, 3.0 * row_norms * 20.0 / 50.0, rtol=1e-9)
  of_sums = noise_to_signal.of_sums(*given)
  expected = 3.0 * sums * 20.0 / (50.0 * np.arange(1, 25))
  np.testing.assert_allclose(of_sums, expected, rtol=1e-9)
  assert noise_to_signal.summary(*given) == (
    by_round[0],
    by_round.max(),
    by_round[-1],
    of_sums[-1],
  )


@pytest.mark.parametrize(
  ('noise_multiplier', 'expected'),
  [
    # A tenth of it in a round, and a 4.9th part of that in all 24.
    (9.9, None),
    (11.0, 'Note: the noise of the first round is 1.1 times as long'),
    (50.0, 'Warning: the noise of the first round is 5 times as long'),
  ],
)
def test_noise_that_is_longer_than_the_signal_is_remarked(noise_multiplier, expected):
  mechanism = mechanism_lib.Mechanism('gaussian', LIMITS, noise_multiplier)
  remark = noise_to_signal.remark(mechanism, model_size=100, clients_per_round=100)
  assert (remark is None) if expected is None else remark.startswith(expected)


@pytest.mark.parametrize(
  ('numbers', 'message'),
  [((0, 10), 'model_size'), ((10, math.nan), 'clients_per_round')],
)
def test_numbers_that_make_no_sense_are_refused(numbers, message):
  mechanism = mechanism_lib.Mechanism('gaussian', LIMITS, 1.0)
  for function in (noise_to_signal.by_round, noise_to_signal.of_sums):
    with pytest.raises(ValueError, match=message):
      function(mechanism, *numbers)


def test_noise_of_clients_adds_up_in_the_sum():
  def by_round(**options):
    mechanism = mechanism_lib.Mechanism('gaussian', LIMITS, 3.0, **options)
    given = (mechanism, 400, 50)
    return noise_to_signal.by_round(*given)[0], noise_to_signal.of_sums(*given)[-1]

  server = by_round()
  for site in ('local', 'local_approximate'):
    of_site = by_round(noise_site=site)
    np.testing.assert_allclose(of_site, np.multiply(math.sqrt(50), server), rtol=1e-12)
  # Shares for 50 clients are as loud as the server's; for 10, with 50 of them, more.
  assert by_round(noise_site='clients', min_clients=50) == server
  shares = by_round(noise_site='clients', min_clients=10)
  np.testing.assert_allclose(shares, np.multiply(math.sqrt(5), server), rtol=1e-12)
