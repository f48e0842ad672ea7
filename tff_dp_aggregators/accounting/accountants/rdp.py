r"""Accountant by Renyi DP: an upper bound for most events, and for integer noise.

Composition and the conversion to epsilon (arXiv:2004.00010, Proposition 12) are
dp-accounting's. The moments of sampled Gaussians are computed here: dp-accounting 0.4.3
loses them to round-off where sampling is rare or noise large, and may be too small; 0.6
is looser at fractional orders.

**Integer noise.** Below, n shares of variance s^2 are summed; mu = n s^2 is the
variance of the sum, D1 and D2 the L1 and L2 sensitivities, and `order` the Renyi order.

*Skellam* (arXiv:2110.04995, Theorem 3.5 and Corollary 3.6). For whole orders above 1,

    order D2^2 / (2 mu) + min(((2 order - 1) D2^2 + 6 D1) / (4 mu^2), 3 D1 / (2 mu)).

*Discrete Gaussians* (arXiv:2102.06387, Proposition 14). For s >= 1/2 every probability
of the sum is within a factor exp(+-tau / 2) of that of one discrete Gaussian of
variance parameter mu, where (Theorem 1; half of tau on either side)

    tau = 10 \sum_{k=1}^{n-1} exp(-2 pi^2 s^2 k / (k + 1)).

One discrete Gaussian moved by D has divergence at most order D^2 / (2 mu)
(arXiv:2004.00010, Proposition 5). Three bounds on the divergence of the sum follow, the
second and third of which are **proved here**:

1. Densities that are off by exp(+-tau/2) put a factor of at most
   exp((2 order - 1) tau / 2) on the moment, in each coordinate: the divergence grows by
   tau / 2 (2 order - 1) / (order - 1).
2. Two distributions within exp(+-tau/2) of each other are (tau/2)^2/2-zCDP apart
   (arXiv:1605.02065, Proposition 3.3), and square roots of zCDP add up, as for groups
   (there, Section 5). So a coordinate that moves by D_j costs at most
   order / 2 (D_j / sqrt(mu) + tau)^2; the sum over coordinates is at most
   order / 2 (D2^2 / mu + 2 D1 tau / sqrt(mu) + tau^2 d).
3. The same for the vector as a whole: order / 2 (D2 / sqrt(mu) + tau sqrt(d))^2.

Only coordinates that a client moves cost anything, by whole numbers: d is the minimum
of the dimension, D1 and D2^2.
"""

import decimal
import functools
import math
from collections.abc import Sequence
from typing import Callable, Union

import dp_accounting
import numpy as np
from dp_accounting import NeighboringRelation as Relation
from dp_accounting.rdp import rdp_privacy_accountant
from scipy import special

from tff_dp_aggregators.accounting import events
from tff_dp_aggregators.accounting.accountants import accountant

# TF Privacy's customary orders, with which the Gboard figures were published.
ORDERS = tuple([1 + x / 10 for x in range(1, 100)] + list(range(12, 64)))
# The best order of sampled Gaussians is often larger.
SAMPLED_ORDERS = ORDERS + (64, 80, 96, 128, 160, 192, 256, 384, 512, 1024)

_SAFETY = 1e-11  # Relative margin for the round-off of a moment.
# Lengths of the series for fractional orders, tried in turn; large noise needs more.
_SERIES_TERMS = (64, 1024, 16_384, 262_144)
_SERIES_ERROR = 1e-12
_SERIES_MAX_NOISE = 20.0
_INTEGER_SAFETY = 1 + 1e-12  # Margin for round-off of divergences of integer noise.
_TERMS = 10_000  # Terms of tau after these are bounded by the last of them.
# Higher differences are bounded by the plain bound alone: computing them is O(order^2).
_MAX_DIFFERENCES = 256
# Larger noise multipliers are replaced by this one, at no cost in epsilon that matters.
_MAX_NOISE = 1e9
# Events with a known Renyi divergence in dp-accounting; later releases may differ.
_KNOWN = (
  dp_accounting.NoOpDpEvent,
  dp_accounting.NonPrivateDpEvent,
  dp_accounting.ComposedDpEvent,
  dp_accounting.SelfComposedDpEvent,
  dp_accounting.GaussianDpEvent,
  dp_accounting.LaplaceDpEvent,
  dp_accounting.PoissonSampledDpEvent,
  dp_accounting.SampledWithoutReplacementDpEvent,
  dp_accounting.SingleEpochTreeAggregationDpEvent,
  dp_accounting.dp_event.RepeatAndSelectDpEvent,
)
_SAMPLED = (
  dp_accounting.PoissonSampledDpEvent,
  dp_accounting.SampledWithoutReplacementDpEvent,
  events.TruncatedPoissonDpEvent,
)
# A smaller divergence rounds to 0 in dp-accounting's conversion to delta, which fails.
_MIN_DIVERGENCE = 1e-15


class RdpAccountant(accountant.Accountant):
  """Renyi DP at a grid of orders."""

  name = 'rdp'
  rank = 2
  tolerance = 1e-9
  reads = (
    'events that dp-accounting has a Renyi divergence for, and integer noise in shares,'
  )

  def _can_read(self, part: dp_accounting.DpEvent) -> bool:
    return (
      accountant.is_sampled(part, *_SAMPLED[1:])
      or isinstance(part, events.INTEGER_NOISE)
      or (
        all(type(each) in _KNOWN for each in accountant.nested(part))
        and self._peer(ORDERS).supports(part)
      )
    )

  def _peer(self, orders: tuple[float, ...]) -> dp_accounting.rdp.RdpAccountant:
    return dp_accounting.rdp.RdpAccountant(orders, self.neighboring_relation)

  def divergences(self) -> tuple[tuple[float, ...], np.ndarray]:
    """Orders, and the Renyi divergence of the composition at each of them."""
    parts, _ = self._composition()
    needs_large_orders = any(
      isinstance(part, (*_SAMPLED, *events.INTEGER_NOISE)) for part, _ in parts
    )
    orders = SAMPLED_ORDERS if needs_large_orders else ORDERS
    rest = self._peer(orders)
    total = np.zeros(len(orders))
    for part, count in parts:
      if isinstance(part, _SAMPLED):
        total += count * _sampled_divergence(part, orders, self.neighboring_relation)
      elif isinstance(part, dp_accounting.GaussianDpEvent):
        mu = 1 / part.noise_multiplier
        total += count * np.array(orders) * (mu * mu / 2)
      elif isinstance(part, events.INTEGER_NOISE):
        total += count * integer_noise(part, orders)
      else:
        with np.errstate(over='ignore'):  # An overflow becomes infinity.
          rest.compose(part, count)
    return orders, total + rest.rdp

  def _epsilon(self, parts: list[accountant.Component], delta: float) -> float:
    orders, divergences = self.divergences()
    return float(dp_accounting.rdp.compute_epsilon(orders, divergences, delta)[0])

  def _delta(self, parts: list[accountant.Component], epsilon: float) -> float:
    orders, divergences = self.divergences()
    tiny = (divergences > 0) & (divergences < _MIN_DIVERGENCE)
    divergences[tiny] = _MIN_DIVERGENCE
    delta, _ = rdp_privacy_accountant.compute_delta(orders, divergences, epsilon)
    return max(float(delta), math.ulp(0.0))  # 0 would be pure differential privacy.


@functools.lru_cache(maxsize=16)  # A privacy curve needs the same ones repeatedly.
def _sampled_divergence(
  part: dp_accounting.DpEvent, orders: tuple[float, ...], relation: Relation
) -> np.ndarray:
  noise_multiplier = min(part.event.noise_multiplier, _MAX_NOISE)
  # Under add-or-remove the pair of a sample of fixed size is that of a Poisson sample;
  # otherwise, also with a cap, it is noise around three points. `pld` has the proof.
  is_add_or_remove = relation is Relation.ADD_OR_REMOVE_ONE
  of_mixtures = poisson if is_add_or_remove else without_replacement
  if isinstance(part, dp_accounting.SampledWithoutReplacementDpEvent):
    fraction = part.sample_size / part.source_dataset_size
    return of_mixtures(fraction, noise_multiplier, orders)
  q = part.sampling_probability
  if isinstance(part, dp_accounting.PoissonSampledDpEvent):
    return poisson(q, noise_multiplier, orders)
  # One of two pairs, at random: see `sampling.round_sampling`.
  displaced = accountant.displacement_probability(part)
  order_minus_one = np.array(orders) - 1
  usual = order_minus_one * poisson(q, noise_multiplier, orders)
  other = order_minus_one * of_mixtures(q, noise_multiplier / 2, orders)
  with np.errstate(over='ignore', divide='ignore', invalid='ignore'):
    small = np.log1p((1 - displaced) * np.expm1(usual) + displaced * np.expm1(other))
    large = np.logaddexp(np.log1p(-displaced) + usual, np.log(displaced) + other)
  moments = np.where(other < 1, small, large)
  moments[np.isnan(moments)] = math.inf
  return moments / order_minus_one * (1 + _SAFETY)


def poisson(
  probability: float, noise_multiplier: float, orders: tuple[float, ...]
) -> np.ndarray:
  """Renyi divergences of a Gaussian on a Poisson sample, add-or-remove, rounded up.

  For whole orders they are arXiv:1908.10530, Section 3.3, with the constant term taken
  out, so that all remaining terms are positive. Fractional orders use its series where
  that is short, or are interpolated.
  """
  moment = functools.partial(_poisson_moment, probability, noise_multiplier)
  between = _at_orders(orders, moment)
  if noise_multiplier > _SERIES_MAX_NOISE:
    return between
  divergences = between.copy()
  below = 0.0  # At the whole order below; divergences grow with the order.
  for i, order in enumerate(orders):
    if float(order).is_integer():
      below = between[i]
      continue
    log_moment = _fractional_poisson_moment(probability, noise_multiplier, order)
    divergences[i] = min(between[i], max(log_moment / (order - 1), below))
  return divergences


def without_replacement(
  fraction: float, noise_multiplier: float, orders: tuple[float, ...]
) -> np.ndarray:
  """The bounds of arXiv:1808.00087, Theorem 27, on a sample of fixed size, replaced."""
  moment = functools.partial(_without_replacement_moment, fraction, noise_multiplier)
  return _at_orders(orders, moment)


def _at_orders(orders: Sequence[float], moment: Callable[[int], float]) -> np.ndarray:
  """Divergences at `orders` from `moment(order) = (order - 1) * divergence`.

  It is convex in the order (arXiv:1808.00087, Corollary 10), so that others lie below
  the line between their whole neighbours.
  """
  at = np.array(orders, np.float64)
  whole = np.unique(np.concatenate([[1.0], np.floor(at), np.ceil(at)]))
  moments = np.array([moment(int(order)) if order > 1 else 0.0 for order in whole])
  with np.errstate(invalid='ignore'):
    between = np.interp(at, whole, moments)
  between[np.isnan(between)] = math.inf
  return between / (at - 1)


def _sum_to_moment(log_terms: np.ndarray) -> float:
  return float(np.logaddexp(0.0, special.logsumexp(log_terms) + _SAFETY))


def _gaussian_moments(noise_multiplier: float, orders: np.ndarray) -> np.ndarray:
  mu = 1 / noise_multiplier
  return np.maximum(orders * (orders - 1) / 2 * (mu * mu), 1e-300)


def _poisson_moment(probability: float, noise_multiplier: float, order: int) -> float:
  if probability == 1:
    return float(_gaussian_moments(noise_multiplier, np.array([order]))[0])
  i = np.arange(2.0, order + 1)
  gaussian = _gaussian_moments(noise_multiplier, i)
  return _sum_to_moment(
    accountant.log_binomial(order, i)
    + i * math.log(probability)
    + (order - i) * math.log1p(-probability)
    + gaussian
    + np.log(-np.expm1(-gaussian))
  )


def _fractional_poisson_moment(
  probability: float, noise_multiplier: float, order: float
) -> float:
  """Log E (1 - q + q e^((2 z - 1) / (2 s^2)))^order, z of N(0, s^2), rounded up.

  The sum of two binomial series, for z below and above the point where both summands
  are equal. After `order` terms they alternate and fall: the last bounds the remainder.
  """
  if probability == 1:
    return float(_gaussian_moments(noise_multiplier, np.array([order]))[0])
  variance = noise_multiplier**2
  log_q, log_rest = math.log(probability), math.log1p(-probability)
  middle = variance * (log_rest - log_q) + 0.5
  for num_terms in _SERIES_TERMS:
    i = np.arange(float(num_terms))
    j = order - i
    binomials = np.cumprod(np.append(1.0, j[:-1] / (i[:-1] + 1)))
    with np.errstate(all='ignore'):
      logs = np.logaddexp(
        (i * log_q + j * log_rest + i * (i - 1) / (2 * variance))
        + special.log_ndtr((middle - i) / noise_multiplier),
        (j * log_q + i * log_rest + j * (j - 1) / (2 * variance))
        + special.log_ndtr((j - middle) / noise_multiplier),
      )
      scale = logs.max()
      terms = binomials * np.exp(logs - scale)
    last = abs(terms[-1])
    total = terms.sum() + last
    if not last > _SERIES_ERROR / 10 * total:
      break
  return scale + math.log(total) + _SERIES_ERROR if total > 0 else math.inf


def _without_replacement_moment(
  fraction: float, noise_multiplier: float, order: int
) -> float:
  i = np.arange(2.0, order + 1)
  gaussian = _gaussian_moments(noise_multiplier, i)
  bounds = math.log(2) + gaussian
  differences = _log_differences(float(noise_multiplier))
  lower = 2 * (i.astype(int) // 2)
  upper = 2 * ((i.astype(int) + 1) // 2)
  near = upper <= _MAX_DIFFERENCES
  by_difference = (differences[lower[near]] + differences[upper[near]]) / 2
  bounds[near] = np.minimum(bounds[near], math.log(4) + by_difference)
  binomials = accountant.log_binomial(order, i)
  return _sum_to_moment(binomials + i * math.log(fraction) + bounds)


@functools.lru_cache(maxsize=64)
def _log_differences(noise_multiplier: float) -> np.ndarray:
  """Logarithms of B(l) = E (p/q - 1)^l at even l, q = N(0, 1) and p = N(mu, 1).

  B(l) is the l-th forward difference of exp(x (x - 1) mu^2 / 2) at x = 0. Its terms
  are up to 2^l times larger than it, for mu < 1 up to (2 / mu^2)^l times.
  """
  logs = np.full(_MAX_DIFFERENCES + 1, math.nan)
  if noise_multiplier < 1e-3:  # exp(x^2 / 2e-6): no sampling helps here.
    logs[::2] = math.inf
    return logs
  lost = 0.6 + 2 * math.log10(max(1.0, noise_multiplier))
  context = decimal.Context(
    prec=40 + math.ceil(lost * _MAX_DIFFERENCES),
    Emax=decimal.MAX_EMAX,
    Emin=decimal.MIN_EMIN,
  )
  with decimal.localcontext(context):
    factor = (1 / decimal.Decimal(noise_multiplier) ** 2).exp()
    values, power = [decimal.Decimal(1), decimal.Decimal(1)], factor
    while len(values) <= _MAX_DIFFERENCES:
      values.append(values[-1] * power)
      power *= factor
    for order in range(_MAX_DIFFERENCES + 1):
      if order % 2 == 0:
        logs[order] = _log(values[0])
      values = [after - before for before, after in zip(values, values[1:])]
  return logs


def _log(value: decimal.Decimal) -> float:
  exponent = value.adjusted()
  return math.log(float(value.scaleb(-exponent))) + exponent * math.log(10)


def integer_noise(
  event: Union[events.SkellamDpEvent, events.DistributedDiscreteGaussianDpEvent],
  orders: tuple[float, ...],
) -> np.ndarray:
  """Upper bounds on the Renyi divergences of an event, [len(orders)]."""
  if isinstance(event, events.DistributedDiscreteGaussianDpEvent):
    return _discrete_gaussian(event, orders) * _INTEGER_SAFETY
  return _at_orders(orders, functools.partial(_skellam_moment, event)) * _INTEGER_SAFETY


def tau(local_stddev: float, num_clients: int) -> float:
  """The tau of the module docstring, rounded up."""
  k = np.arange(1.0, min(num_clients, _TERMS))
  exponents = 2 * math.pi**2 * local_stddev**2 * k / (k + 1)
  # Terms fall as k grows, so the last one counted bounds all that follow.
  total = float(np.exp(-exponents).sum())
  if num_clients > _TERMS:
    total += (num_clients - _TERMS) * math.exp(-exponents[-1])
  return 10 * total * _INTEGER_SAFETY


def _skellam_moment(event: events.SkellamDpEvent, order: int) -> float:
  mu, l1 = event.variance, event.l1_sensitivity
  l2_squared = event.l2_sensitivity**2
  rest = min(((2 * order - 1) * l2_squared + 6 * l1) / (4 * mu**2), 3 * l1 / (2 * mu))
  return (order - 1) * (order * l2_squared / (2 * mu) + rest)


def _discrete_gaussian(
  event: events.DistributedDiscreteGaussianDpEvent, orders: tuple[float, ...]
) -> np.ndarray:
  at = np.array(orders, np.float64)
  l2, l1 = event.l2_sensitivity, event.l1_sensitivity
  stddev = math.sqrt(event.variance)
  moved = min(
    event.dimension,
    math.floor(l1 * _INTEGER_SAFETY),
    math.floor(l2 * l2 * _INTEGER_SAFETY),
  )
  ratio = tau(event.local_stddev, event.num_clients)
  gaussian = (l2 / stddev) ** 2
  by_moment = at / 2 * gaussian + moved * ratio / 2 * (2 * at - 1) / (at - 1)
  by_coordinate = at / 2 * (gaussian + 2 * l1 * ratio / stddev + ratio**2 * moved)
  as_a_whole = at / 2 * (l2 / stddev + ratio * math.sqrt(moved)) ** 2
  return np.minimum(np.minimum(by_moment, by_coordinate), as_a_whole)
