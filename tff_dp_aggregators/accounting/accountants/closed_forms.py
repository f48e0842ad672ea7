"""Accountants of composed Gaussians, in closed form: the exact curve, and zCDP.

Both add up mu^2, the sum of 1 / noise_multiplier^2 of what is composed; they differ in
what they make of it.
"""

import math

import dp_accounting
from dp_accounting import NeighboringRelation as Relation

from tff_dp_aggregators.accounting.accountants import gaussian
from tff_dp_aggregators.accounting.accountants import parts


class _ComposedGaussians(parts.Accountant):
  """Adds up Gaussian events: mu^2 = sum of 1 / noise_multiplier^2."""

  reads = 'Gaussian events'

  def __init__(self, relation: Relation = Relation.REPLACE_SPECIAL) -> None:
    super().__init__(relation)
    self._mu_squared = 0.0

  def _can_read(self, part: dp_accounting.DpEvent) -> bool:
    return isinstance(part, dp_accounting.GaussianDpEvent)

  def _add(self, part: dp_accounting.DpEvent, count: int) -> None:
    if isinstance(part, dp_accounting.NonPrivateDpEvent):
      self._mu_squared = math.inf
    else:
      inverse = 1 / part.noise_multiplier  # Squaring first would overflow sooner.
      self._mu_squared += count * (inverse * inverse)

  @property
  def mu(self) -> float:
    """The composition is mu-Gaussian-DP."""
    return math.sqrt(self._mu_squared)

  @property
  def rho(self) -> float:
    """The composition is rho-zCDP."""
    return self._mu_squared / 2


class GaussianAccountant(_ComposedGaussians):
  """Exact accountant of composed Gaussian mechanisms.

  Example:
    >>> accountant = GaussianAccountant()
    >>> _ = accountant.compose(dp_accounting.GaussianDpEvent(7 / 79**0.5))
    >>> round(accountant.get_epsilon(1e-10), 4)
    8.5261
  """

  def get_epsilon(self, target_delta: float) -> float:
    """Smallest epsilon at `target_delta`, exact."""
    return gaussian.epsilon_of(self.mu, target_delta)

  def get_delta(self, target_epsilon: float) -> float:
    """Smallest delta at `target_epsilon`, exact."""
    return gaussian.delta_of(self.mu, target_epsilon)


class ZCdpAccountant(_ComposedGaussians):
  """zCDP and its closed-form conversion, an upper bound."""

  def get_epsilon(self, target_delta: float) -> float:
    """Rho + 2 sqrt(rho ln(1 / delta))."""
    gaussian.check_delta(target_delta)
    return self.rho + 2 * math.sqrt(self.rho * -math.log(target_delta))

  def get_delta(self, target_epsilon: float) -> float:
    """exp(-(epsilon - rho)^2 / (4 rho)) for epsilon >= rho, else 1."""
    gaussian.check_epsilon(target_epsilon)
    if self.rho == 0:
      return 0.0
    if target_epsilon <= self.rho:
      return 1.0
    delta = math.exp(-((target_epsilon - self.rho) ** 2) / (4 * self.rho))
    return max(delta, math.ulp(0.0))  # 0 would be pure differential privacy.


def gdp_mu(event: dp_accounting.DpEvent) -> float:
  """The mu of an event that is a composition of Gaussians: mu-Gaussian-DP.

  Raises:
    dp_accounting.UnsupportedEventError: If it is not.
  """
  return GaussianAccountant().compose(event).mu


def zcdp_rho(event: dp_accounting.DpEvent) -> float:
  """The rho of an event that is a composition of Gaussians: rho-zCDP, mu^2 / 2.

  Raises:
    dp_accounting.UnsupportedEventError: If it is not.
  """
  return ZCdpAccountant().compose(event).rho
