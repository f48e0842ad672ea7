"""Adaptive clipping: splitting the privacy budget between updates and the norm count.

Each round releases the noised sum of the clipped updates and the noised count of small
norms. With noise multiplier z_delta for the sum, and noise of standard deviation
sigma_b for the count, whose sensitivity is 1/2, both together are as private as one sum
with noise multiplier z (arXiv:1905.03871, Theorem 1), where

    z^-2 = z_delta^-2 + (2 sigma_b)^-2.

The count takes the `share` (z / (2 sigma_b))^2 of the budget mu^2. By default sigma_b
is the maximum of a twentieth of the cohort (as in section 3.2 there, TFF and
pfl-research) and of the value that takes a tenth of the budget, with which the updates'
noise is 5.4% larger than without adaptive clipping.
"""

import math

from tff_dp_aggregators.accounting import events
from tff_dp_aggregators.accounting.accountants import gaussian
from tff_dp_aggregators.base import checks

DEFAULT_SHARE = 0.1  # Maximum share of the budget for the count's default noise.
DEFAULT_FRACTION = 0.05  # That noise over the number of clients, if its share is less.


def values_noise_multiplier(
  noise_multiplier: float, clipped_count_stddev: float
) -> float:
  """Returns z_delta, the noise multiplier of the updates; 0 if z is 0."""
  noise_multiplier = events.check_noise_multiplier(noise_multiplier)
  checks.check_not_negative('clipped_count_stddev', clipped_count_stddev)
  if noise_multiplier == 0:
    return 0.0
  ratio = noise_multiplier / (2 * clipped_count_stddev) if clipped_count_stddev else 2.0
  if not ratio < 1:
    raise ValueError(
      f'clipped_count_stddev must be more than {noise_multiplier / 2}, half of '
      f'noise_multiplier; got {clipped_count_stddev}. With less, the count of small '
      'norms alone would cost more than noise_multiplier says.'
    )
  return noise_multiplier * (1 / math.sqrt((1 - ratio) * (1 + ratio)))


def share(noise_multiplier: float, clipped_count_stddev: float) -> float:
  """The count's share of the budget mu^2: (z / (2 sigma_b))^2."""
  if values_noise_multiplier(noise_multiplier, clipped_count_stddev) == 0:
    return 0.0
  return (noise_multiplier / (2 * clipped_count_stddev)) ** 2


def stddev_of_share(noise_multiplier: float, count_share: float) -> float:
  """The sigma_b whose share of the budget is `count_share`: z / (2 sqrt(share))."""
  noise_multiplier = events.check_noise_multiplier(noise_multiplier)
  gaussian.check_delta(count_share, 'count_share')  # It has the range of a delta.
  return noise_multiplier / (2 * math.sqrt(count_share))


def default_stddev(noise_multiplier: float, clients_per_round: float) -> float:
  """The default of sigma_b, for any cohort size; 0 if z is 0."""
  checks.check_positive('clients_per_round', clients_per_round)
  lower = stddev_of_share(noise_multiplier, DEFAULT_SHARE)
  return max(DEFAULT_FRACTION * clients_per_round, lower) if noise_multiplier else 0.0
