"""Accountant by privacy random variables (arXiv:2106.02848).

It uses the authors' package, `prv-accountant`, which certifies an interval around each
epsilon; this accountant returns its upper end. Two things are added:

* The package's Poisson-sampled Gaussian has only the loss of *removing* a client.
  `_added` is the other direction, and the larger result counts: it is not proven that
  removing is always worse under composition.
* The certificate assumes exact arithmetic. The round-off of the package's sums is added
  to delta, and that of its means, which it integrates numerically, to epsilon.

Delta must be at least about 1e-14, and 1e-15 times the number of rounds.
"""

import functools
import math
from collections.abc import Iterable
from typing import Any

import dp_accounting

from tff_dp_aggregators.accounting.accountants import accountant

_MAX_EPSILON_ERROR = 0.5  # The package's error of epsilon is at most this.
_DELTA_ERROR = 1e-4  # Its relative error of delta, where epsilon is computed.
_MIN_DELTA = 1e-14  # Its absolute error of delta, where delta is computed.
# Tolerance and number of the integrals of which the package computes a mean.
_QUAD_ERROR, _QUAD_PIECES = 1.5e-8, 11
_MAX_NOISE = 1e6  # Larger noise multipliers are replaced by this one.
# Round-off in delta for each composition: one Fourier transform, raised to a power.
_ROUND_OFF = 4.4e-16


class PrvAccountant(accountant.Accountant):
  """Numerical accountant by the package `prv-accountant`."""

  name = 'prv'
  is_numerical = True
  reads = 'Gaussian, Laplace and Poisson-sampled Gaussian events'

  def _can_read(self, part: dp_accounting.DpEvent) -> bool:
    return isinstance(part, accountant.UNSAMPLED) or accountant.is_sampled(
      part, dp_accounting.PoissonSampledDpEvent
    )

  def _epsilon(self, parts: list[accountant.Component], delta: float) -> float:
    round_off = _round_off(parts)
    if delta < 3 * round_off:
      raise ValueError(
        f'delta must be at least {3 * round_off:.1g} for prv, because of the round-off '
        f'of its sums; got {delta}. Take accountant=pld.'
      )

    def upper(composed: '_Composed') -> float:
      bounds = composed.peer.compute_epsilon(delta - round_off, composed.counts)
      return bounds[-1] + composed.mean_error

    return max(0.0, _worst(parts, _DELTA_ERROR * delta, upper))

  def _delta(self, parts: list[accountant.Component], epsilon: float) -> float:
    def upper(composed: '_Composed') -> float:
      at = epsilon - composed.mean_error
      return composed.peer.compute_delta(at, composed.counts)[-1] + _round_off(parts)

    return min(1.0, _worst(parts, _MIN_DELTA, upper))


def _round_off(parts: list[accountant.Component]) -> float:
  return _ROUND_OFF * (10 + sum(count for _, count in parts))


def _has_sampled(parts: Iterable[accountant.Component]) -> bool:
  return any(isinstance(p, dp_accounting.PoissonSampledDpEvent) for p, _ in parts)


class _Composed:
  def __init__(
    self, parts: tuple[accountant.Component, ...], added: bool, delta_error: float
  ) -> None:
    import scipy.stats  # noqa: F401  The package uses it without importing it.
    from prv_accountant import accountant as package

    self.counts = [count for _, count in parts]
    variables = [_variable(part, added) for part, _ in parts]
    # The package's error of epsilon, and a size of the grid that takes a few seconds.
    epsilon_error, points = (2e-3, 2**20) if _has_sampled(parts) else (4e-4, 2**21)
    size = package.compute_safe_domain_size
    reach = float(size(variables, self.counts, epsilon_error, delta_error))
    # The mesh of arXiv:2106.02848, Theorem 5.5, is epsilon_error / meshes.
    meshes = math.sqrt(sum(self.counts) / 2 * math.log(12 / delta_error))
    epsilon_error = max(epsilon_error, 2 * reach * meshes / points)
    if not epsilon_error <= _MAX_EPSILON_ERROR:
      raise ValueError('losses spread too far for its grid')
    self.mean_error = sum(self.counts) * _QUAD_ERROR * (_QUAD_PIECES + 2 * reach)
    self.peer = package.PRVAccountant(
      variables, epsilon_error, delta_error, max_self_compositions=self.counts
    )


_composed = functools.lru_cache(maxsize=4)(_Composed)


def _worst(parts: list[accountant.Component], delta_error: float, of: Any) -> float:
  """The larger result of the two directions; without sampling there is only one."""
  try:
    worst = max(
      float(of(_composed(tuple(parts), added, delta_error)))
      for added in {False, _has_sampled(parts)}
    )
    if not math.isfinite(worst):
      raise ValueError(f'the result is {worst}')
  except (ArithmeticError, AssertionError, LookupError, RuntimeError, ValueError) as e:
    raise ValueError(
      f'prv cannot account for this event in float64 ({e}). Take accountant=pld.'
    ) from e
  return worst


def _variable(part: dp_accounting.DpEvent, added: bool) -> Any:
  import prv_accountant

  noise: Any = getattr(part, 'event', part)
  noise_multiplier = min(noise.noise_multiplier, _MAX_NOISE)
  if isinstance(part, dp_accounting.LaplaceDpEvent):
    return prv_accountant.LaplaceMechanism(1 / noise_multiplier)
  if isinstance(part, dp_accounting.GaussianDpEvent):
    return prv_accountant.GaussianMechanism(noise_multiplier)
  q = part.sampling_probability
  removed = prv_accountant.PoissonSubsampledGaussianMechanism(q, noise_multiplier)
  return _added(q, noise_multiplier, removed.rdp) if added else removed


def _added(probability: float, noise_multiplier: float, divergence: Any) -> Any:
  """The loss log(P(x) / Q(x)), x drawn from P = N(0, s^2), of adding a client.

  It is below t where x is above the point at which Q / P = 1 - p + p e^((2 x - 1) / (2
  s^2)) reaches e^-t. Its Renyi divergences, from which the package chooses the range of
  its grid, are at most those of removing (arXiv:1908.10530, Theorem 5).
  """
  import numpy as np
  from prv_accountant import PrivacyRandomVariable
  from scipy import special

  max_loss = -math.log1p(-probability)

  class Added(PrivacyRandomVariable):
    def cdf(self, t: Any) -> Any:
      t = np.asarray(t, np.float64)
      inside = np.minimum(t, np.nextafter(max_loss, 0.0))
      ratio = 1 + np.expm1(-inside) / probability
      x = noise_multiplier**2 * np.log(np.maximum(ratio, 1e-300)) + 0.5
      return np.where(t < max_loss, special.ndtr(-x / noise_multiplier), 1.0)

    def rdp(self, alpha: float) -> float:
      return divergence(alpha)

  return Added()
