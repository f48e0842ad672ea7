"""How much of a mechanism's noise adaptive clipping leaves for the updates.

Each round releases the noised sum of the clipped updates and the noised count of small
norms. With noise multiplier z_delta for the sum, and noise of standard deviation
sigma_b for the count, whose sensitivity is 1/2, both together are as private as one sum
with noise multiplier z (arXiv:1905.03871, Theorem 1), where

    z^-2 = z_delta^-2 + (2 sigma_b)^-2.
"""

import math

from tff_dp_aggregators.accounting import events


def values_noise_multiplier(
  noise_multiplier: float, clipped_count_stddev: float
) -> float:
  """z_delta: the noise of the updates that is left when the count has its noise.

  Args:
    noise_multiplier: z of both together.
    clipped_count_stddev: sigma_b, in clients.

  Returns:
    (z^-2 - (2 sigma_b)^-2)^(-1/2), or 0 if z is 0.

  Raises:
    ValueError: If a number is out of range, or the count alone would cost more than
      both together.

  Example:
    >>> round(values_noise_multiplier(1.0, 5.0), 6)
    1.005038
  """
  noise_multiplier = events.check_noise_multiplier(noise_multiplier)
  if not (clipped_count_stddev >= 0 and math.isfinite(clipped_count_stddev)):
    raise ValueError(
      'clipped_count_stddev must be finite and not negative; got '
      f'{clipped_count_stddev}.'
    )
  if noise_multiplier == 0:
    return 0.0
  ratio = noise_multiplier / (2 * clipped_count_stddev) if clipped_count_stddev else 2.0
  if not ratio < 1:
    raise ValueError(
      f'clipped_count_stddev must be more than {noise_multiplier / 2}, half of '
      f'noise_multiplier; got {clipped_count_stddev} (by default it is a twentieth of '
      'clients_per_round). With less, the count of small norms '
      f'alone would cost more than noise_multiplier {noise_multiplier} says.'
    )
  return noise_multiplier * (1 / math.sqrt((1 - ratio) * (1 + ratio)))
