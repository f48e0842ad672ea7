"""The exact privacy curve of composed Gaussian mechanisms, and the bound of zCDP.

A Gaussian mechanism whose noise has standard deviation `1 / mu` times its total L2
sensitivity is exactly mu-Gaussian-DP: its (epsilon, delta) curve is

    delta(epsilon) = Phi(mu/2 - epsilon/mu) - e^epsilon Phi(-mu/2 - epsilon/mu)

(arXiv:1805.06530, Theorem 8; arXiv:1905.02383, Corollary 2.13), which is exact for
every matrix mechanism without sampling. All functions round to the safe side: an
epsilon or delta is never too small, a mu never too large.
"""

import math
from typing import Any, ClassVar, Optional

import dp_accounting
from scipy import optimize
from scipy import special

from tff_dp_aggregators.accounting import events
from tff_dp_aggregators.accounting.accountants import accountant
from tff_dp_aggregators.base import checks

_SAFETY = 1e-12  # Relative margin of delta, in addition to its round-off.
_FAR = 40.0  # Beyond it the normal density is below the smallest float64.
# Gauss-Legendre quadrature on [0, 1], exact to round-off for the integrand below.
_NODES, _WEIGHTS = special.roots_sh_legendre(12)
_SMALLEST = math.ulp(0.0)  # Delta is rounded up to it where it underflows.


def check_delta(delta: float, name: str = 'delta') -> float:
  """Returns `delta`, or raises TypeError or ValueError unless 0 < delta < 1."""
  checks.check_number(name, delta)
  if not 0.0 < delta < 1.0:
    raise ValueError(f'{name} must be between 0 and 1, exclusive; got {delta}.')
  return float(delta)


def check_epsilon(epsilon: float, name: str = 'epsilon') -> float:
  """Returns `epsilon`, or raises TypeError or ValueError unless finite and >= 0."""
  return checks.check_not_negative(name, epsilon)


def _mills(x: Any) -> Any:
  """Mills ratio Phi(-x) / phi(x), without underflow."""
  return math.sqrt(math.pi / 2) * special.erfcx(x / math.sqrt(2))


def _log_delta(mu: float, epsilon: float) -> float:
  """Logarithm of the curve, rounded up; accurate where delta itself underflows.

  Both terms of the curve are nearly equal where mu is small or epsilon large, and the
  difference of their floats would be mostly round-off. With x = epsilon/mu - mu/2, the
  density phi and the Mills ratio R, e^epsilon phi(x + mu) is phi(x), so that

      delta = Phi(-x) - phi(x) R(x + mu) = phi(x) (R(x) - R(x + mu)),

  and R(x) - R(x + mu) is the integral of -R'(z) = 1 - z R(z) from x to x + mu.
  """
  quotient = epsilon / mu
  x = quotient - mu / 2
  y = quotient + mu / 2
  if x > 1e150:
    return -math.inf
  log_density = -x * x / 2 - math.log(2 * math.pi) / 2
  if x > _FAR:  # -R'(z) < 1 / (1 + z^2), and delta underflows anyway.
    log_delta = log_density + math.log(math.atan(mu / (1 + x * y)))
  elif mu < 0.5:
    z = x + mu * _NODES
    slope = float(_WEIGHTS @ (1 - z * _mills(z)))
    log_delta = log_density + math.log(mu * slope)
  elif x > 0:
    log_delta = log_density + math.log(_mills(x) - _mills(y))
  else:
    log_delta = math.log(special.ndtr(-x) - math.exp(log_density) * _mills(y))
  # The round-off of x is that of its larger term; in log delta it counts |x| times.
  return log_delta + _SAFETY + 4e-16 * (1 + abs(x)) * y


def doubt_of_delta(delta: float, num_clients: float) -> Optional[str]:
  """A warning if delta is not below one over the number of clients; else `None`."""
  if delta < 1 / num_clients:
    return None
  return (
    f'delta is {delta:g}, and there are {num_clients:.12g} clients: a mechanism that '
    'publishes all data of one of them is private by that measure. Choose a delta '
    f'well below 1 / {num_clients:.12g}.'
  )


def delta_of(mu: float, epsilon: float) -> float:
  """Smallest delta of mu-Gaussian-DP at `epsilon`; mu may be 0 or infinite."""
  epsilon = check_epsilon(epsilon)
  if mu == math.inf:
    return 1.0
  if checks.check_not_negative('mu', mu) == 0:
    return 0.0
  return max(_SMALLEST, math.exp(min(0.0, _log_delta(mu, epsilon))))


def epsilon_of(mu: float, delta: float) -> float:
  """Smallest epsilon for which mu-Gaussian-DP gives (epsilon, delta)-DP."""
  delta = check_delta(delta)
  if mu == math.inf:
    return math.inf
  if checks.check_not_negative('mu', mu) == 0:
    return 0.0
  log_target = math.log(delta)
  if _log_delta(mu, 0.0) <= log_target:
    return 0.0

  def gap(epsilon: float) -> float:
    return max(_log_delta(mu, epsilon), -1e300) - log_target

  # zCDP's closed form is an upper bound (arXiv:1605.02065, Proposition 1.3).
  upper = (mu * mu / 2 + mu * math.sqrt(-2 * log_target)) * (1 + _SAFETY)
  if math.isinf(upper) or gap(upper) > 0:  # The bound and the root agree in float64.
    return upper
  root = optimize.brentq(gap, 0.0, upper, xtol=_SMALLEST, rtol=1e-14, maxiter=1000)
  epsilon, step = root, 1e-15
  while delta_of(mu, epsilon) > delta:  # The root may be too small in its last digit.
    epsilon, step = root * (1 + step), 2 * step
  return float(epsilon)


def mu_of(epsilon: float, delta: float) -> float:
  """Largest mu for which mu-Gaussian-DP gives (epsilon, delta)-DP."""
  epsilon, delta = check_epsilon(epsilon), check_delta(delta)
  log_target = math.log(delta)

  def gap(mu: float) -> float:
    return max(_log_delta(mu, epsilon), -1e300) - log_target

  lower = upper = 1.0
  while gap(lower) > 0:
    lower /= 2
  while gap(upper) < 0:
    upper *= 2
  mu = optimize.brentq(gap, lower, upper, xtol=_SMALLEST, rtol=1e-14, maxiter=1000)
  step = 1e-15
  while delta_of(mu, epsilon) > delta or epsilon_of(mu, delta) > epsilon:
    mu, step = mu * (1 - step), 2 * step
  return float(mu)


class GaussianAccountant(accountant.Accountant):
  """Exact accountant of composed Gaussian mechanisms."""

  name = 'exact'
  rank: ClassVar[Optional[int]] = 0
  tolerance = 1e-13
  reads = 'Gaussian events'

  def _can_read(self, part: dp_accounting.DpEvent) -> bool:
    return isinstance(part, dp_accounting.GaussianDpEvent)

  @property
  def mu(self) -> float:
    """The mu of the composition, apart from what is only stated: mu-Gaussian-DP."""
    squared = 0.0
    for each in self._composed:
      if isinstance(each.event, dp_accounting.GaussianDpEvent):
        inverse = 1 / each.event.noise_multiplier  # Squaring it would overflow sooner.
        squared += each.count * (inverse * inverse)
      elif isinstance(each.event, dp_accounting.NonPrivateDpEvent):
        return math.inf
    return math.sqrt(squared)

  def _epsilon(self, parts: list[accountant.Component], delta: float) -> float:
    return epsilon_of(self.mu, delta)

  def _delta(self, parts: list[accountant.Component], epsilon: float) -> float:
    return delta_of(self.mu, epsilon)


class ZCdpAccountant(GaussianAccountant):
  """zCDP and its closed-form conversion, an upper bound: rho = mu^2 / 2."""

  name = 'zcdp'
  rank = None

  def _epsilon(self, parts: list[accountant.Component], delta: float) -> float:
    rho = self.mu**2 / 2
    return rho + 2 * math.sqrt(rho * -math.log(check_delta(delta)))

  def _delta(self, parts: list[accountant.Component], epsilon: float) -> float:
    rho = self.mu**2 / 2
    if check_epsilon(epsilon) <= rho:
      return 1.0
    delta = math.exp(-((epsilon - rho) ** 2) / (4 * rho))
    return max(delta, math.ulp(0.0))  # 0 would be pure differential privacy.


def gdp_mu(event: dp_accounting.DpEvent) -> float:
  """The mu of an event that is a composition of Gaussians: mu-Gaussian-DP."""
  if any(isinstance(e, events.EpsilonDeltaDpEvent) for e in accountant.nested(event)):
    raise dp_accounting.UnsupportedEventError(
      'what is only stated to be (epsilon, delta)-DP is no composition of Gaussians.'
    )
  return GaussianAccountant().compose(event).mu


def zcdp_rho(event: dp_accounting.DpEvent) -> float:
  """The rho of an event that is a composition of Gaussians: rho-zCDP, mu^2 / 2."""
  return gdp_mu(event) ** 2 / 2
