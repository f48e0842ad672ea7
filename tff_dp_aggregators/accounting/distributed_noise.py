r"""Integer noise that clients add in shares, within the bits of a secure sum.

A client's contribution x, of L2 norm at most `clip_norm`, goes through these steps:

1. It is scaled by `scale` and rotated at random (signs, then a Hadamard transform).
   With C = `clip_norm * scale`, its norm is at most C.
2. Each entry is rounded to one of its two neighbouring integers, keeping its mean. All
   entries are rounded again if the norm exceeds a bound, which happens with probability
   at most `beta` (arXiv:2102.06387, Theorem 1 and Section 4.1):

       D2^2 = min((C + sqrt(d))^2,
                  C^2 + d / 4 + sqrt(2 log(1 / beta)) (C + sqrt(d) / 2)).

   Accounting uses this bound. As entries are integers, the L1 norm is at most D1 =
   min(sqrt(d) D2, D2^2).
3. Integer noise of `local_stddev` is added, and all is summed modulo 2^`bits`.

**When sums wrap** (bounds **proved here**). Entries from -2^(bits-1) to 2^(bits-1) - 1
are correct; others are off by a multiple of 2^bits, which costs no privacy. With m
clients, an entry of the sum has three parts, whose moments E exp(t S) are at most:

* the contributions, of norm at most m C in total: exp(t^2 m^2 C^2 / (2 d)), by the
  random signs, whatever the data are (Hoeffding);
* the rounding, of each client within an interval of length 1: exp(t^2 m / 8) about its
  mean. The mean is 0 except that rounding again moves it by at most
  sqrt(beta) / (2 (1 - beta)) in each client (Cauchy-Schwarz), and that after `TRIES`
  failures a client rounds towards zero; with b = min(1, sqrt(beta) / (2 (1 - beta)) +
  beta^TRIES), this adds a factor exp(t m b);
* the noise: exp(t^2 m s^2 / 2) for discrete Gaussian shares of parameter s
  (arXiv:2004.00010), and exp(m s^2 (cosh t - 1)) for Skellam ones.

So for every t > 0 the probability that any entry wraps is at most 2 d exp(sum of
exponents - t 2^(bits-1)), which grows with the number of clients.
"""

import dataclasses
import math
from typing import Any, Optional

import dp_accounting
import numpy as np

from tff_dp_aggregators.accounting import accountants
from tff_dp_aggregators.accounting import calibration
from tff_dp_aggregators.accounting import events
from tff_dp_aggregators.accounting.accountants import gaussian
from tff_dp_aggregators.base import checks

# The event class of each kind of noise, by name.
NOISES: dict[str, type] = {
  'discrete_gaussian': events.DistributedDiscreteGaussianDpEvent,
  'skellam': events.SkellamDpEvent,
}
TRIES = 8  # How often a client rounds before it rounds towards zero.
MAX_BITS = 30  # A secure sum's; squares of integers are summed in 63 bits.
MAX_LOCAL_STDDEV = 4096.0  # Finer grids gain nothing, and tables of the noise get long.
_MAX_NORM = 2.0**30  # Before rounding: squares of integers are summed in 63 bits.
_SAFETY = 1 + 1e-9  # Margin for round-off, as a factor.
_EXPONENTS = np.geomspace(1e-10, 20.0, 3000)  # Values of t that are tried.
_MOST_NOISE = 20.0  # Searches end at this multiple of the noise that a Gaussian needs.
_UNLIKELY = 1e-6  # Default of `max_wrap_probability` and `beta`.
_WORTH_A_BIT = 1.01  # Acceptable ratio of the noise to that with `MAX_BITS`.


@dataclasses.dataclass(frozen=True)
class DistributedNoise:
  """A mechanism of integer noise in shares, with all its parameters."""

  noise: str  # A key of `NOISES`.
  clip_norm: float  # L2 bound of a contribution.
  min_clients: int  # Minimum number of clients whose shares are in a sum.
  max_clients: int  # Maximum number of clients for which `wrap_probability` holds.
  dimension: int  # Number of entries of a contribution, padded to a power of two.
  bits: int  # The sum is modulo 2^bits.
  # C, the clip norm in steps of the grid. Accounting uses only this, not `clip_norm`.
  scaled_clip_norm: float
  local_stddev: float  # Standard deviation of a client's share, in steps of the grid.
  beta: float  # Upper bound on the probability of rounding again; 0 for never.

  @property
  def modulus(self) -> int:
    """Modulus of the secure sum."""
    return 2**self.bits

  @property
  def norm_squared(self) -> int:
    """Square of the L2 bound of the integers after rounding, an integer itself."""
    scaled, root = self.scaled_clip_norm, math.sqrt(self.dimension)
    never_above = (scaled + root) ** 2
    if self.beta == 0:
      return math.floor(never_above)
    drawn_again = math.sqrt(2 * math.log(1 / self.beta)) * (scaled + root / 2)
    return math.floor(min(never_above, scaled**2 + self.dimension / 4 + drawn_again))

  @property
  def l2_sensitivity(self) -> float:
    """L2 bound of the integers."""
    return math.sqrt(self.norm_squared) * _SAFETY

  @property
  def l1_sensitivity(self) -> float:
    """L1 bound of the integers, derived from the L2 bound."""
    by_dimension = math.sqrt(self.dimension) * self.l2_sensitivity
    return min(by_dimension, float(self.norm_squared)) * _SAFETY

  @property
  def noise_multiplier(self) -> float:
    """Noise of a sum of `min_clients` clients, over the clip norm."""
    return self.local_stddev * math.sqrt(self.min_clients) / self.scaled_clip_norm

  @property
  def wrap_probability(self) -> float:
    """Upper bound on the probability that any entry of a round's sum wraps."""
    return self.wrap_probability_with(self.max_clients)

  @property
  def scale(self) -> float:
    """Number of grid steps per unit of a contribution."""
    return self.scaled_clip_norm / self.clip_norm

  def wrap_probability_with(self, clients: int) -> float:
    """`wrap_probability` for another number of clients."""
    t, beta = _EXPONENTS, self.beta
    variance = (clients * self.scaled_clip_norm) ** 2 / self.dimension + clients / 4
    if self.noise == 'skellam':
      # cosh(t) - 1 = 2 sinh(t / 2)^2, without loss of digits at small t.
      noise = clients * self.local_stddev**2 * 2 * np.sinh(t / 2) ** 2
    else:
      noise = clients * self.local_stddev**2 * t**2 / 2
    bias = clients * min(1.0, math.sqrt(beta) / (2 * (1 - beta)) + beta**TRIES)
    exponents = t**2 / 2 * variance + noise + t * (bias - 2.0 ** (self.bits - 1))
    log_bound = float(exponents.min()) + math.log(2 * self.dimension)
    return min(1.0, math.exp(min(log_bound, 0.0)) * _SAFETY)

  def event(self, sensitivity_factor: float = 1.0) -> dp_accounting.DpEvent:
    """The event of a round with `min_clients`; under replace-one, the factor is 2."""
    more = (self.dimension,) if self.noise == 'discrete_gaussian' else ()
    return NOISES[self.noise](
      self.local_stddev,
      self.min_clients,
      self.l2_sensitivity * sensitivity_factor,
      self.l1_sensitivity * sensitivity_factor,
      *more,
    )

  def epsilon(self, delta: float, participations: int = 1) -> float:
    """Epsilon of all rounds of one client, under zeroing out its contributions."""
    event = dp_accounting.SelfComposedDpEvent(self.event(), participations)
    return accountants.epsilon(event, delta)


def design(
  noise: str, *, noise_multiplier: float, bits: int, **numbers: Any
) -> DistributedNoise:
  """The mechanism with a noise multiplier, on the finest grid that the bits allow.

  Further arguments, of `DistributedNoise`, are `clip_norm`, `min_clients` and
  `dimension`, which is padded to a power of two, and optionally `max_clients`, by
  default `min_clients`, and `max_wrap_probability` and `beta`, by default 1e-6.
  """
  mechanism = _finest(noise, noise_multiplier, bits=bits, **numbers)
  if mechanism is None:
    raise ValueError(
      f'bits={bits} are too few: on every grid that shows the noise, sums would wrap '
      f'around too often with {numbers}. Take more bits, up to {MAX_BITS}, less noise '
      'or fewer clients.'
    )
  return mechanism


def plan(
  noise: str,
  target_epsilon: float,
  target_delta: float,
  *,
  participations: int,
  bits: Optional[int] = None,
  **numbers: Any,
) -> DistributedNoise:
  """The mechanism with the least noise that keeps a privacy target.

  The target is for all rounds, under zeroing out one client, which takes part in at
  most `participations` of them. `bits` is by default the smallest number with which the
  noise is within 1% of that with 30. Other arguments are those of `design`.
  """
  checks.check_positive_int('participations', participations)

  def gaussian_event(noise_multiplier: float) -> dp_accounting.DpEvent:
    one = dp_accounting.GaussianDpEvent(noise_multiplier)
    return dp_accounting.SelfComposedDpEvent(one, participations)

  gaussians = calibration.noise_multiplier(gaussian_event, target_epsilon, target_delta)

  def with_least_noise(bits: int) -> Optional[DistributedNoise]:
    # More noise needs a coarser grid, whose rounding may cost more privacy than the
    # noise gains. So noise is raised in small steps from what a Gaussian needs.

    def if_kept(noise_multiplier: float) -> Optional[DistributedNoise]:
      found = _finest(noise, noise_multiplier, bits=bits, **numbers)
      if found is None or found.epsilon(target_delta, participations) > target_epsilon:
        return None
      return found

    low = high = gaussians
    while (kept := if_kept(high)) is None:
      if high > gaussians * _MOST_NOISE:
        return None
      low, high = high, high * 1.05
    while high / low > 1 + 1e-4:
      middle = math.sqrt(low * high)
      better = if_kept(middle)
      low, high = (middle, high) if better is None else (low, middle)
      kept = better or kept
    return kept

  best = with_least_noise(MAX_BITS if bits is None else bits)
  if best is None:
    raise ValueError(
      f'target_epsilon={target_epsilon:g} at target_delta={target_delta:g} cannot be '
      f'kept with sums in bits={bits or MAX_BITS}. Leave bits out if they are given, '
      'raise the target, or take fewer participations or clients.'
    )
  if bits is not None:
    return best
  low, high, enough = 1, best.bits, best  # Search for the fewest bits that are enough.
  while high - low > 1:
    middle = (low + high) // 2
    candidate = with_least_noise(middle)
    if candidate and candidate.noise_multiplier <= best.noise_multiplier * _WORTH_A_BIT:
      high, enough = middle, candidate
    else:
      low = middle
  return enough


def check(
  noise: str,
  *,
  clip_norm: float,
  noise_multiplier: float,
  min_clients: int,
  bits: int,
  max_clients: Optional[int] = None,
  max_wrap_probability: float = _UNLIKELY,
  beta: float = _UNLIKELY,
) -> None:
  """Raises ValueError if arguments of `design` are invalid for every dimension."""
  if noise not in NOISES:
    raise ValueError(f'noise must be one of {sorted(NOISES)}; got {noise!r}.')
  checks.check_positive('clip_norm', clip_norm)
  checks.check_positive('noise_multiplier', noise_multiplier)
  checks.check_positive_int('min_clients', min_clients)
  if max_clients is not None:
    checks.check_int('max_clients', max_clients, at_least=min_clients)
  checks.check_within('bits', checks.check_int('bits', bits), 2, MAX_BITS)
  gaussian.check_delta(max_wrap_probability, 'max_wrap_probability')
  if beta != 0:
    gaussian.check_delta(beta, 'beta')


def padded(dimension: int) -> int:
  """The power of two that a contribution is padded to."""
  return 1 << (checks.check_positive_int('dimension', dimension) - 1).bit_length()


def _finest(
  noise: str, noise_multiplier: float, *, dimension: int, bits: int, **numbers: Any
) -> Optional[DistributedNoise]:
  """The mechanism on the finest grid, or `None` if the bits are too few for any."""
  check(noise, noise_multiplier=noise_multiplier, bits=bits, **numbers)
  clip_norm, min_clients = numbers['clip_norm'], numbers['min_clients']
  max_clients = numbers.get('max_clients') or min_clients
  size, beta = padded(dimension), numbers.get('beta', _UNLIKELY)
  stddev_ratio = noise_multiplier / math.sqrt(min_clients)  # Over the scaled clip norm.

  def on_grid(scaled: float) -> DistributedNoise:
    share = max(stddev_ratio * scaled, events.LEAST_DISCRETE_GAUSSIAN)
    return DistributedNoise(
      noise, clip_norm, min_clients, max_clients, size, bits, scaled, share, beta
    )

  def fits(scaled: float) -> bool:
    probability = on_grid(scaled).wrap_probability
    return bool(probability <= numbers.get('max_wrap_probability', _UNLIKELY))

  finest = min(_MAX_NORM - math.sqrt(size), MAX_LOCAL_STDDEV / stddev_ratio)
  coarsest = events.LEAST_DISCRETE_GAUSSIAN / stddev_ratio
  # The number of clients is part of the same sum.
  if 2**bits <= max_clients or coarsest > finest or not fits(coarsest):
    return None
  if fits(finest):
    return on_grid(finest)
  while finest / coarsest > 1 + 1e-6:
    middle = math.sqrt(coarsest * finest)
    coarsest, finest = (middle, finest) if fits(middle) else (coarsest, middle)
  return on_grid(coarsest)
