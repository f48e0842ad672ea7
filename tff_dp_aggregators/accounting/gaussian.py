"""The exact privacy curve of one Gaussian mechanism.

A Gaussian mechanism whose noise has standard deviation `1 / mu` times its total L2
sensitivity is mu-Gaussian-DP, and no better: its (epsilon, delta) curve is

    delta(epsilon) = Phi(mu/2 - epsilon/mu) - e^epsilon Phi(-mu/2 - epsilon/mu)

(Balle and Wang, arXiv:1805.06530, Theorem 8; Dong, Roth and Su, arXiv:1905.02383,
Corollary 2.13). Every matrix mechanism of this package is one such Gaussian, so this
is the exact answer for it, not a bound.

All functions round to the safe side: an epsilon or delta is never too small, a mu
never too large.
"""

import math

from scipy import optimize
from scipy import special

# Results move to the safe side by this much, relative; root finding is finer.
_SAFETY = 1e-12


def check_delta(delta: float, name: str = 'delta') -> float:
  """Returns `delta`, or raises ValueError unless 0 < delta < 1."""
  if not 0.0 < delta < 1.0:
    raise ValueError(f'{name} must be between 0 and 1, exclusive; got {delta}.')
  return float(delta)


def check_epsilon(epsilon: float, name: str = 'epsilon') -> float:
  """Returns `epsilon`, or raises ValueError unless it is finite and >= 0."""
  if not (epsilon >= 0.0 and math.isfinite(epsilon)):
    raise ValueError(f'{name} must be finite and not negative; got {epsilon}.')
  return float(epsilon)


def _check_mu(mu: float) -> float:
  if not mu >= 0.0:
    raise ValueError(f'mu must not be negative or NaN; got {mu}.')
  return float(mu)


def _log_delta(mu: float, epsilon: float) -> float:
  """Logarithm of the curve, accurate where delta itself would underflow."""
  log_upper = special.log_ndtr(mu / 2 - epsilon / mu)
  log_lower = epsilon + special.log_ndtr(-mu / 2 - epsilon / mu)
  if log_lower >= log_upper:  # Only by round-off, where both are equal.
    return -math.inf
  return log_upper + math.log(-math.expm1(log_lower - log_upper))


def delta_of(mu: float, epsilon: float) -> float:
  """Smallest delta for which mu-Gaussian-DP gives (epsilon, delta)-DP.

  Args:
    mu: Total sensitivity over noise standard deviation; 0 is perfect privacy,
      infinity none.
    epsilon: At which point of the curve.

  Raises:
    ValueError: If an argument is negative or NaN.

  Example:
    >>> round(delta_of(mu=1.0, epsilon=0.0), 6)  # Total variation: 2 Phi(1/2) - 1.
    0.382925
  """
  mu, epsilon = _check_mu(mu), check_epsilon(epsilon)
  if mu == 0:
    return 0.0
  if math.isinf(mu):
    return 1.0
  return min(1.0, math.exp(_log_delta(mu, epsilon)) * (1 + _SAFETY))


def epsilon_of(mu: float, delta: float) -> float:
  """Smallest epsilon for which mu-Gaussian-DP gives (epsilon, delta)-DP.

  Args:
    mu: Total sensitivity over noise standard deviation; 0 is perfect privacy,
      infinity none.
    delta: Between 0 and 1, exclusive.

  Raises:
    ValueError: If `mu` is negative or NaN, or `delta` not between 0 and 1.

  Example:
    >>> round(epsilon_of(mu=79**0.5 / 7, delta=1e-10), 4)  # Gboard, exactly.
    8.5261
  """
  mu, delta = _check_mu(mu), check_delta(delta)
  if mu == 0:
    return 0.0
  if math.isinf(mu):
    return math.inf
  log_target = math.log(delta)
  if _log_delta(mu, 0.0) <= log_target:
    return 0.0

  def gap(epsilon: float) -> float:
    return max(_log_delta(mu, epsilon), -1e300) - log_target

  # zCDP's closed form is an upper bound (arXiv:1605.02065, Proposition 1.3).
  upper = mu**2 / 2 + mu * math.sqrt(-2 * log_target)
  root = optimize.brentq(gap, 0.0, upper, xtol=1e-15, rtol=1e-14)
  return float(root * (1 + _SAFETY))


def mu_of(epsilon: float, delta: float) -> float:
  """Largest mu for which mu-Gaussian-DP gives (epsilon, delta)-DP.

  Args:
    epsilon: Target, finite and not negative.
    delta: Target, between 0 and 1, exclusive.

  Raises:
    ValueError: If a target is out of range.

  Example:
    >>> mu = mu_of(epsilon=8.0, delta=1e-6)
    >>> 7.9999 < epsilon_of(mu, delta=1e-6) <= 8.0
    True
  """
  epsilon, delta = check_epsilon(epsilon), check_delta(delta)
  log_target = math.log(delta)

  def gap(mu: float) -> float:
    return max(_log_delta(mu, epsilon), -1e300) - log_target

  lower = upper = 1.0
  while gap(lower) > 0:
    lower /= 2
  while gap(upper) < 0:
    upper *= 2
  mu = optimize.brentq(gap, lower, upper, xtol=1e-300, rtol=1e-14)
  while delta_of(mu, epsilon) > delta or epsilon_of(mu, delta) > epsilon:
    mu *= 1 - _SAFETY
  return float(mu)
