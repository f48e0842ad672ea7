"""Privacy random variables (arXiv:2106.02848), by the method's own package.

`prv-accountant` certifies an interval around each epsilon; what comes from here is its
upper end. Two things are added:

* Its Poisson-sampled Gaussian is the loss of *removing* a client alone: the sampled
  mixture against the plain Gaussian. `_added` is the other direction, and the larger
  result counts. Nobody has proven that removing is always the worse one once rounds
  compose.
* The certificate assumes exact arithmetic. The round-off of its sums goes into delta,
  that of its means, which it integrates numerically, into epsilon. Where round-off is
  not small any more the answer is an error and not a number.

Delta must be at least about 1e-14, and 1e-15 times the rounds.
"""

import functools
import math
from typing import Any

import dp_accounting

from tff_dp_aggregators.accounting.accountants import accountant

# What the package may add to epsilon: for one Gaussian, and for samples.
_EPSILON_ERROR = 4e-4
_SAMPLED_EPSILON_ERROR = 2e-3
_MAX_EPSILON_ERROR = 0.5
_DELTA_ERROR = 1e-4  # What it may add to delta, relative.
_MIN_DELTA = 1e-14  # What it adds to delta as a function of epsilon, absolute.
# As many points as take a few seconds; those of samples take longer.
_MAX_POINTS, _MAX_SAMPLED_POINTS = 2**21, 2**20
# Tolerance and number of the integrals behind a mean.
_QUAD_ERROR, _QUAD_PIECES = 1.5e-8, 11
_MAX_NOISE = 1e6
# Round-off of one Fourier transform that is raised to a power, for each composition.
_ROUND_OFF = 4.4e-16


class PrvAccountant(accountant.Accountant):
  """Numerical accountant of what `reads` says."""

  name = 'prv'
  is_numerical = True
  reads = 'Gaussian, Laplace and Poisson-sampled Gaussian events'

  def _can_read(self, part: dp_accounting.DpEvent) -> bool:
    return accountant.is_noise(part) or accountant.is_sampled(
      part, dp_accounting.PoissonSampledDpEvent
    )

  def _epsilon(self, found: list[accountant.Component], delta: float) -> float:
    unresolved = _unresolved(found)
    if delta < 3 * unresolved:
      raise ValueError(
        f'delta must be at least {3 * unresolved:.1g} for prv, whose sums are '
        f'round-off below; got {delta}. Ask pld instead.'
      )

    def epsilon(composed: '_Composed') -> float:
      _, _, upper = composed.peer.compute_epsilon(delta - unresolved, composed.counts)
      return upper + composed.mean_error

    return max(0.0, _worst(found, _DELTA_ERROR * delta, epsilon))

  def _delta(self, found: list[accountant.Component], epsilon: float) -> float:
    def delta(composed: '_Composed') -> float:
      at = epsilon - composed.mean_error
      _, _, upper = composed.peer.compute_delta(at, composed.counts)
      return upper + _unresolved(found)

    return min(1.0, _worst(found, _MIN_DELTA, delta))


def _unresolved(found: list[accountant.Component]) -> float:
  return _ROUND_OFF * (10 + sum(count for _, count in found))


class _Composed:
  """The package's accountant of one direction, and what its means may be wrong by."""

  def __init__(
    self, found: tuple[accountant.Component, ...], added: bool, delta_error: float
  ) -> None:
    import scipy.stats  # noqa: F401  The package uses it without importing it.
    from prv_accountant import accountant as package

    self.counts = [count for _, count in found]
    variables = [_variable(part, added) for part, _ in found]
    sampled = any(isinstance(p, dp_accounting.PoissonSampledDpEvent) for p, _ in found)
    epsilon_error = _SAMPLED_EPSILON_ERROR if sampled else _EPSILON_ERROR
    points = _MAX_SAMPLED_POINTS if sampled else _MAX_POINTS
    size = package.compute_safe_domain_size
    reach = float(size(variables, self.counts, epsilon_error, delta_error))
    # Its mesh, arXiv:2106.02848, Theorem 5.5, is epsilon_error over that.
    meshes = math.sqrt(sum(self.counts) / 2 * math.log(12 / delta_error))
    epsilon_error = max(epsilon_error, 2 * reach * meshes / points)
    if not epsilon_error <= _MAX_EPSILON_ERROR:
      raise ValueError('losses spread too far for its grid')
    self.mean_error = sum(self.counts) * _QUAD_ERROR * (_QUAD_PIECES + 2 * reach)
    self.peer = package.PRVAccountant(
      variables, epsilon_error, delta_error, max_self_compositions=self.counts
    )


_composed = functools.lru_cache(maxsize=4)(_Composed)


def _worst(found: list[accountant.Component], delta_error: float, of: Any) -> float:
  """The larger of both directions, where there are two."""
  sampled = any(
    isinstance(part, dp_accounting.PoissonSampledDpEvent) for part, _ in found
  )
  try:
    worst = max(
      float(of(_composed(tuple(found), added, delta_error)))
      for added in ((False, True) if sampled else (False,))
    )
    if not math.isfinite(worst):
      raise ValueError(f'it says {worst}')
  except (ArithmeticError, AssertionError, LookupError, RuntimeError, ValueError) as e:
    raise ValueError(
      f'prv cannot account for this event in float64 ({e}). Ask pld instead.'
    ) from e
  return worst


def _variable(part: dp_accounting.DpEvent, added: bool) -> Any:
  import prv_accountant

  if isinstance(part, dp_accounting.LaplaceDpEvent):
    return prv_accountant.LaplaceMechanism(1 / min(part.noise_multiplier, _MAX_NOISE))
  if isinstance(part, dp_accounting.GaussianDpEvent):
    return prv_accountant.GaussianMechanism(min(part.noise_multiplier, _MAX_NOISE))
  noise_multiplier = min(part.event.noise_multiplier, _MAX_NOISE)
  sampled = prv_accountant.PoissonSubsampledGaussianMechanism
  removed = sampled(part.sampling_probability, noise_multiplier)
  if not added:
    return removed
  return _added(part.sampling_probability, noise_multiplier, removed.rdp)


def _added(probability: float, noise_multiplier: float, divergence: Any) -> Any:
  """The loss log(P(x) / Q(x)), x drawn from P = N(0, s^2), of adding a client.

  Q = (1 - p) N(0, s^2) + p N(1, s^2). The loss is below t where x is above the point at
  which Q / P = 1 - p + p e^((2 x - 1) / (2 s^2)) reaches e^-t, and never reaches -log(1
  - p). Its Renyi divergences, which the grid's range is chosen by, are at most those of
  removing (arXiv:1908.10530, Theorem 5).
  """
  import numpy as np
  from prv_accountant import PrivacyRandomVariable
  from scipy import special

  most = -math.log1p(-probability)

  class Added(PrivacyRandomVariable):
    def cdf(self, t: Any) -> Any:
      t = np.asarray(t, np.float64)
      inside = np.minimum(t, np.nextafter(most, 0.0))
      ratio = 1 + np.expm1(-inside) / probability
      x = noise_multiplier**2 * np.log(np.maximum(ratio, 1e-300)) + 0.5
      return np.where(t < most, special.ndtr(-x / noise_multiplier), 1.0)

    def rdp(self, alpha: float) -> float:
      return divergence(alpha)

  return Added()
