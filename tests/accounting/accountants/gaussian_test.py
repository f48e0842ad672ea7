"""The exact Gaussian privacy curve, with errors below 1e-9 and rounded up.

References: the privacy loss integrated numerically, an integral of positive numbers
without the cancellation of the closed form; dp-accounting's privacy loss
distributions; and its published figures for Gaussians.
"""

import math

import numpy as np
import pytest
from scipy import integrate

from tff_dp_aggregators.accounting.accountants import gaussian

MUS = [1e-4, 0.01, 0.3, 1.27, 10.0, 100.0]
DELTAS = [1e-12, 1e-8, 1e-5, 0.1]


def delta_by_quadrature(mu, epsilon):
  """E[(1 - e^(epsilon - L))^+], L ~ N(mu^2/2, mu^2) the privacy loss.

  With L = epsilon + mu t that is the integral over t > 0 of -expm1(-mu t) times the
  normal density at t + x, x = epsilon/mu - mu/2. The density at x is taken out where
  x > 0, so that nothing underflows.
  """
  x = epsilon / mu - mu / 2

  def integrand(t):
    exponent = -t * t / 2 - x * t if x > 0 else -((t + x) ** 2) / 2
    return -math.expm1(-mu * t) * math.exp(exponent)

  peak = max(0.0, -x)
  edges = [e for e in np.linspace(peak - 12, peak + 12, 25) if e > 0]
  edges = [max(0.0, peak - 40), *edges, peak + 40]
  total = sum(
    integrate.quad(integrand, low, high, epsabs=0, epsrel=1e-13)[0]
    for low, high in zip(edges, edges[1:])
  )
  return total * math.exp(-x * x / 2 if x > 0 else 0) / math.sqrt(2 * math.pi)


def epsilons_of_interest(mu):
  return [0.0, *(max(0.0, mu * mu / 2 + mu * x) for x in (-0.5, 0, 0.5, 1, 3, 5, 7))]


@pytest.mark.parametrize('mu', [1e-9, *MUS])
def test_delta_of_matches_quadrature_and_is_never_below(mu):
  for epsilon in epsilons_of_interest(mu):
    expected = delta_by_quadrature(mu, epsilon)
    delta = gaussian.delta_of(mu, epsilon)
    assert delta == pytest.approx(expected, rel=1e-10), (mu, epsilon)
    # The quadrature's round-off is 3e-13; the safety margin of delta_of is 1e-12.
    assert delta >= min(1.0, expected * (1 - 3e-13))


@pytest.mark.parametrize('mu', MUS)
@pytest.mark.parametrize('delta', DELTAS)
def test_epsilon_of_is_smallest_sufficient_epsilon(mu, delta):
  epsilon = gaussian.epsilon_of(mu, delta)
  assert delta_by_quadrature(mu, epsilon) <= delta * (1 + 3e-13)
  if epsilon > 0:
    assert delta_by_quadrature(mu, epsilon * (1 - 1e-8)) > delta


@pytest.mark.parametrize('epsilon', [0.0, 1e-3, 1.0, 50.0, 1e5])
@pytest.mark.parametrize('delta', DELTAS)
def test_mu_of_is_largest_allowed_mu(epsilon, delta):
  mu = gaussian.mu_of(epsilon, delta)
  assert gaussian.delta_of(mu, epsilon) <= delta
  assert gaussian.epsilon_of(mu, delta) <= epsilon
  assert delta_by_quadrature(mu, epsilon) <= delta * (1 + 3e-13)
  assert delta_by_quadrature(mu * (1 + 1e-8), epsilon) > delta


def test_zero_mu_is_perfect_privacy_and_infinite_mu_is_none():
  assert gaussian.delta_of(0.0, 0.0) == 0.0
  assert gaussian.epsilon_of(0.0, 1e-9) == 0.0
  assert gaussian.delta_of(math.inf, 50.0) == 1.0
  assert gaussian.epsilon_of(math.inf, 0.5) == math.inf


def test_extreme_arguments_round_up_without_overflow():
  assert gaussian.delta_of(1.0, 1e4) > 0.0  # e^-5e7, rounded up.
  assert gaussian.delta_of(1e-9, 1e9) > 0.0
  assert gaussian.delta_of(1e3, 0.0) == 1.0
  assert gaussian.epsilon_of(1e200, 1e-6) == math.inf
  assert gaussian.epsilon_of(1e6, 1e-6) >= 5e11
  assert gaussian.epsilon_of(1e-200, 1e-6) == 0.0
  assert 0.0 < gaussian.mu_of(1e-300, 1e-300) < 1e-299
  for mu in (1e4, 1e8):
    epsilon = gaussian.epsilon_of(mu, 1e-6)
    assert mu * mu / 2 < epsilon <= (mu * mu / 2 + 5.3 * mu) * (1 + 1e-9)


@pytest.mark.parametrize('delta', [0.0, 1.0, math.nan])
def test_delta_out_of_range_is_refused(delta):
  for function in (gaussian.epsilon_of, gaussian.mu_of):
    with pytest.raises(ValueError, match='delta'):
      function(1.0, delta)
  with pytest.raises(ValueError, match='target_delta'):
    gaussian.check_delta(delta, 'target_delta')


@pytest.mark.parametrize(
  'name, mu, epsilon',
  [
    ('epsilon', 1.0, -1e-9),
    ('epsilon', 1.0, math.nan),
    ('epsilon', 1.0, math.inf),
    ('mu', -1.0, 1.0),
    ('mu', math.nan, 1.0),
  ],
)
def test_negative_or_nan_mu_and_epsilon_are_refused(name, mu, epsilon):
  with pytest.raises(ValueError, match=f'^{name} must'):
    gaussian.delta_of(mu, epsilon)
  with pytest.raises(ValueError, match=f'^{name} must'):
    if name == 'mu':
      gaussian.epsilon_of(mu, 1e-6)
    gaussian.mu_of(epsilon, 1e-6)
