"""Adaptive clipping: noise split between values and count, and the default stddev."""

import math

import numpy as np
import pytest
from scipy import stats

from tff_dp_aggregators.accounting import adaptive_clipping
from tff_dp_aggregators.accounting.accountants import gaussian


@pytest.mark.parametrize('noise, count', [(1.0, 0.6), (4.0, 2.5)])
def test_noisy_values_and_count_cost_as_much_as_one_gaussian(noise, count):
  values = adaptive_clipping.values_noise_multiplier(noise, count)
  # A client moves the sum by one clip norm and the count by 1/2. This is the delta of
  # both together at epsilon 0.3, integrated over a grid of both coordinates.
  x = np.linspace(-8, 8, 801)
  a, b = x[:, None] * values, x[None, :] * count
  q = stats.norm.pdf(a, scale=values) * stats.norm.pdf(b, scale=count)
  p = stats.norm.pdf(a, loc=1, scale=values) * stats.norm.pdf(b, loc=0.5, scale=count)
  step = (x[1] - x[0]) ** 2 * values * count
  delta = np.maximum(p - math.exp(0.3) * q, 0).sum() * step
  assert delta == pytest.approx(gaussian.delta_of(1 / noise, 0.3), rel=2e-3)


def test_share_is_fraction_of_mu_squared():
  noise, count = 4.0, 2.5
  values = adaptive_clipping.values_noise_multiplier(noise, count)
  share = adaptive_clipping.share(noise, count)
  assert share == pytest.approx((0.5 / count) ** 2 / noise**-2, rel=1e-12)
  assert 1 - share == pytest.approx(values**-2 / noise**-2, rel=1e-12)
  assert adaptive_clipping.stddev_of_share(noise, share) == pytest.approx(count)


@pytest.mark.parametrize('clients', [1, 32, 1e6])
@pytest.mark.parametrize('noise', [1e-6, 1.0, 1e3])
def test_default_stddev_takes_at_most_a_tenth_of_mu_squared(noise, clients):
  stddev = adaptive_clipping.default_stddev(noise, clients)
  share = adaptive_clipping.share(noise, stddev)
  assert share <= 0.1 + 1e-12
  assert stddev == pytest.approx(max(clients / 20, noise / (2 * math.sqrt(0.1))))
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
def test_numbers_out_of_range_are_refused(call, message):
  with pytest.raises(ValueError, match=message):
    call()
