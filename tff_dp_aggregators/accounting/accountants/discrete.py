r"""Renyi divergences of sums of integer noise: discrete Gaussian and Skellam shares.

Below, n shares of variance s^2 are summed; mu = n s^2 is the variance of the sum, D1
and D2 the sensitivities, and `order` the Renyi order.

**Skellam** (arXiv:2110.04995, Theorem 3.5 and Corollary 3.6). For whole orders above 1,

    order D2^2 / (2 mu) + min(((2 order - 1) D2^2 + 6 D1) / (4 mu^2), 3 D1 / (2 mu)).

Other orders lie between their neighbours: (order - 1) times a Renyi divergence is
convex in the order, and 0 at order 1.

**Discrete Gaussians** (arXiv:2102.06387, Proposition 14). For s >= 1/2 no probability
of the sum is further than a factor exp(tau / 2) from that of one discrete Gaussian of
variance parameter mu, where (Theorem 1; half of it on either side)

    tau = 10 \sum_{k=1}^{n-1} exp(-2 pi^2 s^2 k / (k + 1)).

One discrete Gaussian moved by D has divergence at most order D^2 / (2 mu), like the
continuous one (arXiv:2004.00010, Proposition 5). From it to the sum there are three
ways, each of them short:

1. Densities that are off by exp(+-tau/2) put a factor of at most
   exp((2 order - 1) tau / 2) on the moment, in each coordinate: the divergence grows by
   tau / 2 (2 order - 1) / (order - 1). (The paper states tau, the limit of large orders
   in that; here is what follows for each order.)
2. Two distributions within exp(+-tau/2) of each other are (tau/2)^2/2-zCDP apart
   (arXiv:1605.02065, Proposition 3.3), and square roots of zCDP add up, as for groups
   (there, Section 5). So a coordinate that moves by D_j costs at most
   order / 2 (D_j / sqrt(mu) + tau)^2; the sum over coordinates is at most
   order / 2 (D2^2 / mu + 2 D1 tau / sqrt(mu) + tau^2 d).
3. The same for the vector as a whole: order / 2 (D2 / sqrt(mu) + tau sqrt(d))^2.

A coordinate that one client does not move costs nothing. What it moves it by are whole
numbers, so that it moves no more than D1 of them and no more than D2^2: d is the least
of the dimension and these two.
"""

import math

import numpy as np

from tff_dp_aggregators.accounting import discrete_events

# Round-off, relative, upwards.
_SAFETY = 1 + 1e-12
# Above so many shares, those left are counted with the largest term.
_TERMS = 10_000


def divergences(event: object, orders: tuple[float, ...]) -> np.ndarray:
  """Upper bounds on the Renyi divergences of an event.

  Args:
    event: One of `discrete_events.KINDS`.
    orders: Above 1.

  Returns:
    Float64 of shape [len(orders)].

  Raises:
    TypeError: If the event is of another kind.

  Example:
    >>> event = discrete_events.SkellamDpEvent(10.0, 4, 20.0, 100.0)
    >>> divergences(event, (2.0,)).round(4)  # A Gaussian's is 1.
    array([1.0028])
  """
  if isinstance(event, discrete_events.SkellamDpEvent):
    return _skellam(event, orders)
  if isinstance(event, discrete_events.DistributedDiscreteGaussianDpEvent):
    return _discrete_gaussian(event, orders)
  raise TypeError(f'event must be one of {discrete_events.KINDS}, got {event!r}.')


def tau(local_stddev: float, num_clients: int) -> float:
  """How far the sum of discrete Gaussian shares is from one discrete Gaussian.

  Args:
    local_stddev: Parameter s of a share, at least 1/2.
    num_clients: How many shares.

  Returns:
    tau, rounded up: probabilities are within factors exp(-tau / 2) and exp(tau / 2).

  Example:
    >>> f'{tau(1.0, 100):.2e}', f'{tau(3.0, 100):.2e}'
    ('5.48e-04', '2.65e-38')
  """
  k = np.arange(1.0, min(num_clients, _TERMS))
  exponents = 2 * math.pi**2 * local_stddev**2 * k / (k + 1)
  # They fall as k grows, so that the last counted is above all others.
  total = float(np.exp(-exponents).sum())
  if num_clients > _TERMS:
    total += (num_clients - _TERMS) * math.exp(-exponents[-1])
  return 10 * total * _SAFETY


def _skellam(
  event: discrete_events.SkellamDpEvent, orders: tuple[float, ...]
) -> np.ndarray:
  at = np.array(orders, np.float64)
  low, high = np.floor(at), np.ceil(at)
  weight = at - low
  moments = (1 - weight) * _skellam_moment(event, low)
  moments += weight * _skellam_moment(event, high)
  return moments / (at - 1) * _SAFETY


def _skellam_moment(
  event: discrete_events.SkellamDpEvent, orders: np.ndarray
) -> np.ndarray:
  """(order - 1) times the divergence, at whole orders; 0 at order 1."""
  mu, l1 = event.variance, event.l1_sensitivity
  l2_squared = event.l2_sensitivity**2
  more = np.minimum(
    ((2 * orders - 1) * l2_squared + 6 * l1) / (4 * mu**2), 3 * l1 / (2 * mu)
  )
  return (orders - 1) * (orders * l2_squared / (2 * mu) + more)


def _discrete_gaussian(
  event: discrete_events.DistributedDiscreteGaussianDpEvent, orders: tuple[float, ...]
) -> np.ndarray:
  at = np.array(orders, np.float64)
  l2, l1 = event.l2_sensitivity, event.l1_sensitivity
  stddev = math.sqrt(event.variance)
  moved = min(event.dimension, math.floor(l1 * _SAFETY), math.floor(l2 * l2 * _SAFETY))
  off = tau(event.local_stddev, event.num_clients)
  gaussian = (l2 / stddev) ** 2
  by_moment = at / 2 * gaussian + moved * off / 2 * (2 * at - 1) / (at - 1)
  by_coordinate = at / 2 * (gaussian + 2 * l1 * off / stddev + off**2 * moved)
  as_a_whole = at / 2 * (l2 / stddev + off * math.sqrt(moved)) ** 2
  return np.minimum(np.minimum(by_moment, by_coordinate), as_a_whole) * _SAFETY
