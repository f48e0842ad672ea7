"""What adaptive clipping takes of the noise, and that its default fits every cohort."""

import math

import numpy as np
import pytest
from scipy import stats

from tff_dp_aggregators.accounting import adaptive_clipping
from tff_dp_aggregators.accounting.accountants import gaussian


@pytest.mark.parametrize('noise, count', [(1.0, 0.6), (4.0, 2.5)])
def test_both_parts_are_as_private_as_one(noise, count):
  left = adaptive_clipping.values_noise_multiplier(noise, count)
  # A client moves the sum by one clip norm and the count by 1/2; the optimal test looks
  # along both. Its delta at epsilon 0.3, over a grid of both coordinates.
  x = np.linspace(-8, 8, 801)
  a, b = x[:, None] * left, x[None, :] * count
  absent = stats.norm.pdf(a, scale=left) * stats.norm.pdf(b, scale=count)
  there = stats.norm.pdf(a, loc=1, scale=left) * stats.norm.pdf(b, loc=0.5, scale=count)
  step = (x[1] - x[0]) ** 2 * left * count
  delta = np.maximum(there - math.exp(0.3) * absent, 0).sum() * step
  assert delta == pytest.approx(gaussian.delta_of(1 / noise, 0.3), rel=2e-3)


def test_the_share_is_the_part_of_mu_squared():
  noise, count = 4.0, 2.5
  left = adaptive_clipping.values_noise_multiplier(noise, count)
  share = adaptive_clipping.share(noise, count)
  assert share == pytest.approx((0.5 / count) ** 2 / noise**-2, rel=1e-12)
  assert 1 - share == pytest.approx(left**-2 / noise**-2, rel=1e-12)
  assert adaptive_clipping.stddev_of_share(noise, share) == pytest.approx(count)


@pytest.mark.parametrize('clients', [1, 32, 1e6])
@pytest.mark.parametrize('noise', [1e-6, 1.0, 1e3])
def test_the_default_fits_every_cohort(noise, clients):
  found = adaptive_clipping.default_stddev(noise, clients)
  share = adaptive_clipping.share(noise, found)
  assert share <= 0.1 + 1e-12
  assert found == pytest.approx(max(clients / 20, noise / (2 * math.sqrt(0.1))))
  assert adaptive_clipping.default_stddev(0.0, clients) == 0.0


@pytest.mark.parametrize(
  'call, message',
  [
    (lambda: adaptive_clipping.values_noise_multiplier(8.0, 2.5), 'more than 4.0'),
    (lambda: adaptive_clipping.share(math.inf, 9.0), 'noise_multiplier'),
    (lambda: adaptive_clipping.stddev_of_share(1.0, 0.0), 'count_share'),
    (lambda: adaptive_clipping.default_stddev(1.0, 0), 'clients_per_round'),
  ],
)
def test_numbers_out_of_range_are_refused_by_name(call, message):
  with pytest.raises(ValueError, match=message):
    call()
