"""Monte Carlo accounting, with a confidence that is counted in delta.

**Mixtures.** A client draws a set S of rounds. P draws S, too, and then is N(m_S, I),
with m_S the sum of the columns of |C| / sigma in S; Q is N(0, I). `sampling.allocation`
proves that this pair dominates. The likelihood ratio of an outcome y,

    L(y) = E_S exp(<m_S, y> - |m_S|^2 / 2),

can be computed: over bins directly; over sets of rounds that are b or more apart by
recursion over rounds, as columns of C that are b apart share no row (arXiv:2602.09338);
over all sets of k rounds, with independent noise, as elementary symmetric polynomials
(arXiv:2605.07072).

**Bets.** The deltas of both directions are means of numbers in [0, B]. If the mean of
drawn outcomes x_i is m or more, then

    mean over some lambda <= 1 / B of prod_i (1 + lambda (m - x_i))

has at most the mean 1, and exceeds 1 / beta with probability at most beta (a bet,
arXiv:2010.09686, section 4); if it does, the mean is taken to be less than m. That beta
counts in delta: a mechanism whose noise is chosen by (epsilon, delta - beta) is
(epsilon, delta)-DP, over the coins of the accountant as well (arXiv:2412.16802, section
4; arXiv:2602.09338, appendix A). A search tests many noise multipliers, each with
outcomes of its own: beta is chosen for `MAX_QUESTIONS` tests of two directions
together, `FAILURE_SHARE` of delta. One beta covers all epsilons of a grid: the x_i fall
with epsilon, so what passes at one epsilon passes at all above it, and a result that is
too small has passed at the largest epsilon whose true delta is too large.

**Importance bounds** (**proved here**). Deltas are rare events, so outcomes are drawn
from a distribution that makes them frequent, and the integrand of H_{e^epsilon} is
divided by its density. The one with the smallest bound on the value of an outcome is
chosen of three, for any a > 1:

* `stretched`: means are stretched to w m_S, and sets are drawn in proportion to their
  probability times exp(c |m_S|^2 / 2). Let M(c) be the mean of that. The density over Q
  is E_S exp(w <m_S, y> - (w^2 - c) |m_S|^2 / 2) / M(c), which is bounded by powers of L
  by Hoelder's inequality: for H(P || Q) with w = a, c = a - 1, from below by
  L^a / M(c)^a; for H(Q || P) with w = 1 - a, c = -a, by L^(1 - a) M(c)^(a - 1). Other c
  have larger bounds. The bound is M(a - 1)^a, or M(-a)^(1 - a), times

      (a - 1)^(a - 1) / a^a exp(-(a - 1) epsilon).

* `squared`: the density over Q is L^2 / E_Q L^2, for H(P || Q), a mixture as well: of
  means m_S + m_S' of two independent sets, in proportion to their probabilities times
  exp(<m_S, m_S'>). The bound, E_Q L^2 exp(-epsilon) / 4, is smaller where sets overlap
  little.
* `squared`, doubled: half of the density is that, half that of means 2 m_S; the bound
  is twice as large.

**Normal tails** (**proved here**). The delta of Q against P can also be bounded from
how often losses that are not rare are exceeded (`NormalTail`). Let X = -log L(y) be the
loss of an outcome y of Q, and G(c) = Q(X >= c). log L is convex, so the sets K(c) = {y:
X >= c} are convex, and for c between c_0 and c_1, K(c) contains the points that divide
segments from K(c_0) to K(c_1) as c divides the interval. The Gaussian measure of such
sets is concave on the scale of the normal distribution (Ehrhard 1983; for all sets
Borell, C. R. Math. 337, 2003): z(c) = Phi^-1(G(c)) is concave. So beyond c_1 > c_0, z
is at most the line through its values at both. An upper bound on G(c_1) and a lower
bound on G(c_0), from counting outcomes, thus bound G, and with it

    H_{e^epsilon}(Q || P) = integral over c > epsilon of e^{epsilon - c} G(c)

for all epsilon >= c_1 at once: 100,000 outcomes reach 10^-12.

**Seed.** The seed is a hash of the arguments, so the same arguments give the same
answer on any machine, up to some 1e-12; or up to 0.2%, if by that difference another
point of a grid passes.
"""

import dataclasses
import functools
import hashlib
import math
from typing import Any, Callable, NamedTuple, Optional, Union

import dp_accounting
import numpy as np
from dp_accounting import NeighboringRelation as Relation
from scipy import optimize
from scipy import sparse
from scipy import special

from tff_dp_aggregators import strategies
from tff_dp_aggregators.accounting import events
from tff_dp_aggregators.accounting.accountants import accountant
from tff_dp_aggregators.accounting.accountants import pld
from tff_dp_aggregators.base import checks
from tff_dp_aggregators.sampling import allocation
from tff_dp_aggregators.sampling import scheme

_Generator = np.random.Generator
# Maximum number of float64s in memory, 4 GiB: some 6,000 rounds and places.
_MAX_NUMBERS = 2**29
_MAX_BINS, _MAX_CELLS = 4096, 2**18  # With more, an outcome takes too long.
_BATCH = 2**22  # Cells of a batch of outcomes.


def _check_size(numbers: int, num_rounds: int, places: int, most: float) -> None:
  if numbers > _MAX_NUMBERS or places > most:
    raise ValueError(
      f'accountant=monte_carlo is too slow for num_rounds={num_rounds}: {places} '
      f'places of a client (at most {most:g}), {numbers:.3g} numbers held at once (at '
      f'most {_MAX_NUMBERS:.3g}). Take accountant=pld, whose bound is quick.'
    )


class Proposal(NamedTuple):
  """The distribution from which outcomes are drawn."""

  removed: bool  # Whether delta is that of P against Q, or of Q against P.
  log_most: float  # `log_bound` at epsilon 0.
  slope: float  # How fast it falls with epsilon.
  # Draws so many outcomes, as an array like that of `Mixture.draw`.
  draw: Callable[[_Generator, int], np.ndarray]
  # Logarithms of the density over Q, from inner products and logarithms of L.
  log_densities: Callable[[np.ndarray, np.ndarray], np.ndarray]

  def log_bound(self, epsilon: float) -> float:
    """Logarithm of B, the upper bound on the value of one outcome."""
    return self.log_most - self.slope * epsilon


def stretched(mixture: 'Mixture', a: float, removed: bool) -> Proposal:
  """The proposal `stretched` of the module docstring; a is above 1."""
  w, c, times = (a, a - 1, a) if removed else (1 - a, -a, 1 - a)
  log_moment = mixture.log_moment(c)
  power = special.xlogy(a - 1, a - 1) - special.xlogy(a, a)
  return Proposal(
    removed,
    log_most=float(times * log_moment + power),
    slope=a - 1,
    draw=lambda rng, size: mixture.draw(rng, size, w, c),
    log_densities=lambda inner, _: mixture.log_ratios(inner, w, c) - log_moment,
  )


def squared(mixture: 'Mixture', doubled: bool = False) -> Proposal:
  """The proposal `squared` of the module docstring, or the `doubled` one."""
  log_moment, twice = mixture.log_second_moment(), stretched(mixture, 2.0, True)

  def draw_either(rng: _Generator, size: int) -> np.ndarray:
    some = int(rng.binomial(size, 0.5))
    return np.concatenate(
      [mixture.draw_squared(rng, some), twice.draw(rng, size - some)]
    )

  def log_densities(inner: np.ndarray, log_ratios: np.ndarray) -> np.ndarray:
    one = 2 * log_ratios - log_moment
    if not doubled:
      return one
    two = twice.log_densities(inner, log_ratios)
    return np.asarray(np.logaddexp(one, two) - math.log(2))

  return Proposal(
    True,
    log_most=log_moment - math.log(2 if doubled else 4),
    slope=1.0,
    draw=draw_either if doubled else mixture.draw_squared,
    log_densities=log_densities,
  )


# A pair (P, Q) from which outcomes can be drawn. `log_moment(c)` is the logarithm of
# M(c), `log_second_moment()` that of E_Q L^2. `draw(rng, size, w, c)` draws outcomes,
# those of Q for w = 0, and returns their inner products with columns, or with sums of
# columns, [size, cells]; `draw_squared(rng, size)` has a density in proportion to L^2.
# `log_ratios(inner, w, c)` are the logarithms of
# E_S exp(w <m_S, y> - (w^2 - c) |m_S|^2 / 2), by default of L.
Mixture = Union['_BallsInBinsMixture', '_AllocationMixture', '_BMinSepMixture']


def _batches(mixture: Mixture, size: int) -> list[int]:
  batch = max(1, _BATCH // mixture.cells)
  return [min(batch, size - start) for start in range(0, size, batch)]


class _BallsInBinsMixture:
  """One of b sets of rounds, each with the same probability."""

  def __init__(self, strategy: strategies.Strategy, num_bins: int, noise: float):
    scheme.check_cycle('num_bins', num_bins)
    rounds = strategy.num_rounds
    columns = min(num_bins, rounds)
    # C and its sums, twice each; inner products, their root and its factors.
    numbers = 2 * rounds**2 + 2 * rounds * columns + 6 * columns**2
    _check_size(numbers, rounds, columns, _MAX_BINS)
    columns_of_bins = allocation.bins_of(strategy, num_bins) / noise
    self._products = columns_of_bins.T @ columns_of_bins
    self._norms = self._products.diagonal().copy()
    self._columns_of_bins = columns_of_bins
    self._num_bins, self.cells = num_bins, len(self._norms)
    self._empty = num_bins - self.cells
    with np.errstate(divide='ignore'):  # log(0) if no bin is empty.
      self._log_counts = np.log(np.append(np.ones(self.cells), self._empty))

  @functools.cached_property
  def _root(self) -> np.ndarray:
    """The symmetric root of inner products; rounding moves it no more than columns."""
    reduced = np.linalg.qr(self._columns_of_bins, mode='r')
    _, values, vectors = np.linalg.svd(reduced)
    return np.asarray((vectors.T * values) @ vectors)

  def log_moment(self, c: float) -> float:
    return float(self._mean_of(c * self._norms / 2))

  def _mean_of(self, logs: np.ndarray) -> np.ndarray:
    """Logarithms of means over bins of exponentials, which are 1 for empty bins."""
    with_empty = np.append(logs, np.zeros((*logs.shape[:-1], 1)), axis=-1)
    total = special.logsumexp(with_empty + self._log_counts, axis=-1)
    return np.asarray(total - math.log(self._num_bins))

  def log_second_moment(self) -> float:
    return float(self._mean_of(self._mean_of(self._products)))

  def log_ratios(self, inner: np.ndarray, w: float = 1.0, c: float = 0.0) -> np.ndarray:
    return self._mean_of(w * inner - (w**2 - c) * self._norms / 2)

  def draw(self, rng: _Generator, size: int, w: float, c: float) -> np.ndarray:
    logs = np.append(c * self._norms / 2, 0.0) - self.log_moment(c)
    weights = np.exp(logs + self._log_counts)
    chosen = rng.choice(len(weights), size=size, p=weights / weights.sum())
    inner = rng.standard_normal((size, self.cells)) @ self._root
    not_empty = chosen < self.cells
    inner[not_empty] += w * self._products[chosen[not_empty]]
    return inner

  def draw_squared(self, rng: _Generator, size: int) -> np.ndarray:
    """Draws pairs of bins, the second one conditional on the first; then outcomes."""
    # The last row and column are the empty bins, whose inner products are 0.
    products = np.zeros((self.cells + 1, self.cells + 1))
    products[:-1, :-1] = self._products
    weights = np.exp(products - products.max())
    weights[:, -1] *= self._empty
    row_weights = weights.sum(axis=1)
    row_weights[-1] *= self._empty
    first = rng.choice(len(row_weights), size=size, p=row_weights / row_weights.sum())
    ends = np.cumsum(weights[first], axis=1)
    second = (ends <= ends[:, -1:] * rng.random((size, 1))).sum(axis=1)
    inner = rng.standard_normal((size, self.cells)) @ self._root
    inner += products[first, :-1]
    inner += products[second, :-1]
    return inner


class _AllocationMixture:
  """Uniform sets of k of n rounds, or of 1 of more places, with independent noise."""

  def __init__(
    self, num_rounds: int, rounds_of_a_client: int, noise: float, num_places: int = 0
  ):
    n, k = num_rounds, rounds_of_a_client
    self.cells = n * max(min(k, n - k), 1)
    _check_size(0, n, self.cells, _MAX_CELLS)
    self._rounds, self._times, self._mu = n, k, 1 / noise
    share = n / max(num_places, n)
    # Numbers of rounds in both of two sets, and in exactly one, with their probability.
    both = np.arange(max(2 * k - n, 0), k + 1)
    self._both = np.append(both, [0, 0])
    self._either = np.append(2 * (k - both), [k, 0])
    with np.errstate(divide='ignore'):  # log(0) if all places are rounds.
      self._log_takes_part, self._log_missed = math.log(share), np.log1p(-share)
    log_binomial = accountant.log_binomial
    logs = log_binomial(k, both) + log_binomial(n - k, k - both) - log_binomial(n, k)
    alone = math.log(2) + self._log_takes_part + self._log_missed
    pairs = np.append(2 * self._log_takes_part + logs, [alone, 2 * self._log_missed])
    self._log_pairs = pairs + self._mu**2 * self._both

  def _mean_of(self, logs: Any) -> np.ndarray:
    """Logarithms of means, including the places that are no rounds, which count 1."""
    return np.asarray(np.logaddexp(self._log_takes_part + logs, self._log_missed))

  def log_moment(self, c: float) -> float:
    return float(self._mean_of(c * self._times * self._mu**2 / 2))

  def log_second_moment(self) -> float:
    return float(special.logsumexp(self._log_pairs))

  def log_ratios(self, inner: np.ndarray, w: float = 1.0, c: float = 0.0) -> np.ndarray:
    logs = w * inner - (w**2 - c) * self._mu**2 / 2
    return self._mean_of(log_mean_of_products(logs, self._times))

  def _outcomes(
    self, rng: _Generator, both: np.ndarray, either: np.ndarray, w: float
  ) -> np.ndarray:
    inner = self._mu * rng.standard_normal((len(both), self._rounds))
    at, shift = np.arange(self._rounds), w * self._mu**2
    inner += shift * (at < both[:, None])
    inner += shift * (at < (both + either)[:, None])
    return inner

  def draw(self, rng: _Generator, size: int, w: float, c: float) -> np.ndarray:
    log_takes_part = self._log_takes_part + c * self._times * self._mu**2 / 2
    takes_part = rng.random(size) < np.exp(log_takes_part - self.log_moment(c))
    return self._outcomes(rng, np.zeros(size), self._times * takes_part, w)

  def draw_squared(self, rng: _Generator, size: int) -> np.ndarray:
    weights = np.exp(self._log_pairs - self.log_second_moment())
    drawn = rng.choice(len(weights), size=size, p=weights / weights.sum())
    return self._outcomes(rng, self._both[drawn], self._either[drawn], 1.0)


# Smaller sums may have lost terms to underflow, 2^-1074 in each of 2^19 steps; later
# steps multiply that by e^(k / e) at most, for a k of up to 362.
_LEAST_SUM = 1e-200


def log_mean_of_products(logs: np.ndarray, times: int) -> np.ndarray:
  """Logarithms of means over all sets of `times` columns, of products of exp(logs).

  They are elementary symmetric polynomials, e_k(x_1, ..., x_t) = e_k(..., x_(t - 1)) +
  x_t e_(k - 1)(..., x_(t - 1)), over the number of sets; relative errors add up.
  """
  size, rounds = logs.shape
  if 2 * times > rounds:  # Use the complements of the sets instead.
    return np.asarray(logs.sum(axis=1) + log_mean_of_products(-logs, rounds - times))
  # With this factor no e_j is above (k / j)^j, which is at most e^(k / e).
  factor = math.log(max(times, 1) / rounds) - 1
  largest = logs.max(axis=1) - factor
  sums, increments = np.zeros((times + 1, size)), np.empty((times, size))
  sums[0] = 1.0
  for t, each in enumerate(np.exp((logs - largest[:, None]).T), 1):
    stop = min(t, times)
    np.multiply(sums[:stop], each, out=increments[:stop])
    sums[1 : stop + 1] += increments[:stop]
  lost = sums[times] < _LEAST_SUM
  log_sums = np.log(np.where(lost, 1.0, sums[times])) + times * largest
  if lost.any():
    log_sums[lost] = _log_sums_of_products(logs[lost], times)
  return np.asarray(log_sums - accountant.log_binomial(rounds, times))


def _log_sums_of_products(logs: np.ndarray, times: int) -> np.ndarray:
  sums = np.full((times + 1, len(logs)), -math.inf)
  sums[0] = 0.0
  for t, each in enumerate(logs.T, 1):
    stop = min(t, times)
    sums[1 : stop + 1] = np.logaddexp(sums[1 : stop + 1], sums[:stop] + each)
  return np.asarray(sums[times])


_NEVER = -1e6  # Replaces log(0): its exp is 0, and differences of it are finite.


class _OverlappingSets:
  """Pairs of sets of b-min-sep sampling, weighted by exp(<m_S, m_S'>).

  A client is free in a round if none of its rounds is among the b - 1 before: its past
  does not matter then, and of another client only its last round does. While neither
  is free, nothing happens. Two kinds of states are left: both are free in round t; or
  one of them is, and the other was in round t - d, for a d below b. (Negative rounds
  stand for clients that are not free in round 0.)

  `lags` has the inner products of columns t and t - d at t and d, [num_rounds, bands].
  `first` has the probabilities of the first round in which a client is free, [b]; a
  round beyond the last one means never. `log_total` is the log mean of the weights.
  """

  log_total: float

  def __init__(self, lags: np.ndarray, first: np.ndarray, probability: float):
    rounds, b = len(lags), len(first)
    self._rounds, self._b, self._lags = rounds, b, lags
    self._skip = max(math.log1p(-probability), _NEVER) if probability < 1 else _NEVER
    self._take = math.log(probability)
    # Log sums over the rounds from t on: at [t] if both are free in round t; at [t, d]
    # if one is free, and the other was in round t - d.
    self._both = np.zeros(rounds + b + 1)
    one = np.zeros((rounds + b + 1, b))
    ahead = b - np.arange(1, b)
    overlaps = np.zeros((rounds, b))  # At [t, d]: rounds t and t - d.
    overlaps[:, : lags.shape[1]] = lags[:, :b]
    for t in range(rounds - 1, -1, -1):
      # If the free client takes part, it waits until the other one is free.
      takes = self._take + overlaps[t, 1:] + one[t + ahead, ahead]
      skips = np.append(one[t + 1, 2:], self._both[t + 1])[: b - 1] + self._skip
      one[t, 1:] = np.logaddexp(skips, takes)
      self._both[t] = special.logsumexp(
        [2 * self._skip + self._both[t + 1], self._of_one(one, t), self._of_two(t)]
      )
    # If one was in round s, the log probability, up to a constant, that the other takes
    # no part before round s + d: for s from -b on, and d from 1 to b.
    self._stays = np.full((rounds + b, b + 1), np.inf)
    was = np.arange(-b, rounds)
    for d in range(1, b + 1):
      some = was + d >= 0
      at = was[some] + d
      sums = self._both[at] if d == b else one[at, d]
      self._stays[some, d] = d * self._skip + sums
    # The probability that both are in a round if one is; and, like `_stays`, that both
    # stay out before a round, from round 0 on.
    self._two = special.expit(
      [self._of_two(t) - self._of_one(one, t) for t in range(rounds)]
    )
    self._both_stay = 2 * self._skip * np.arange(rounds + 1) + self._both[: rounds + 1]
    # Weights of the first free rounds of both clients.
    log_first = np.log(first)
    i, j = np.indices((b, b))
    apart = np.abs(i - j)
    earlier = np.minimum(i, j)
    sums = np.where(
      apart == 0, self._both[earlier], one[earlier, np.where(apart, b - apart, 0)]
    )
    self._starts = log_first[:, None] + log_first + sums
    self.log_total = float(special.logsumexp(self._starts))

  def _of_one(self, one: np.ndarray, t: int) -> float:
    """Log weight of exactly one of two free clients taking part in round t."""
    then = one[t + 1, 1] if self._b > 1 else self._both[t + 1]
    return float(math.log(2) + self._take + self._skip + then)

  def _of_two(self, t: int) -> float:
    return float(2 * self._take + self._lags[t, 0] + self._both[t + self._b])

  def draw(self, rng: _Generator, size: int) -> sparse.csc_matrix:
    """Draws pairs; returns how many of the two sets have a round, [rounds, size]."""
    rounds, b = self._rounds, self._b
    weights = np.exp(self._starts - self.log_total).ravel()
    i, j = np.divmod(rng.choice(len(weights), size=size, p=weights / weights.sum()), b)
    # Both are free from round `free` on; or, where `apart`, one is, and the other was
    # in round `was`.
    free, apart = np.minimum(i, j), i != j
    was = np.where(apart, np.maximum(i, j) - b, 0)
    taken = [(np.zeros(0, int), np.zeros(0, int), np.zeros(0))]
    active = np.flatnonzero(free < rounds)
    while len(active):
      one_free, both_free = active[apart[active]], active[~apart[active]]
      at, take_both = self._next_of_both(rng, free[both_free])
      in_run = at < rounds
      taken.append(
        (at[in_run], both_free[in_run], np.where(take_both[in_run], 2.0, 1.0))
      )
      was[both_free], free[both_free] = at, np.where(take_both, at + b, at + 1)
      apart[both_free] = ~take_both & (b > 1)
      after = self._next_of_one(rng, was[one_free], free[one_free])
      at, then = was[one_free] + after, was[one_free] + b
      in_run = (after < b) & (at < rounds)
      taken.append((at[in_run], one_free[in_run], np.ones(int(in_run.sum()))))
      was[one_free], free[one_free], apart[one_free] = at, then, after < b
      active = active[free[active] < rounds]
    at, pairs, times = (np.concatenate(each) for each in zip(*taken))
    return sparse.csc_matrix((times, (at, pairs)), (rounds, size))

  def _next_of_both(
    self, rng: _Generator, free: np.ndarray
  ) -> tuple[np.ndarray, np.ndarray]:
    """Draws the next round of two free clients, and whether both take part in it."""
    threshold = self._both_stay[free] - rng.standard_exponential(len(free))
    at = np.searchsorted(-self._both_stay[1:], -threshold, side='right')
    both = rng.random(len(free)) < np.append(self._two, 0.0)[at]
    return at, both

  def _next_of_one(
    self, rng: _Generator, was: np.ndarray, free: np.ndarray
  ) -> np.ndarray:
    """Draws how many rounds after `was` the free one takes part; b if not before."""
    stays, low = self._stays[was + self._b], (free - was)[:, None]
    threshold = np.take_along_axis(stays, low, 1)
    threshold = threshold - rng.standard_exponential(threshold.shape)
    later = np.arange(self._b + 1) > low
    return free - was + np.sum(later & (stays >= threshold), axis=1)


_BLOCK = 64  # Minimum number of columns of a block of C.


def _bands(strategy: strategies.Strategy) -> int:
  num_bands: Any = getattr(strategy, 'num_bands', strategy.num_rounds)
  return int(min(num_bands, strategy.num_rounds))


class _BMinSepMixture:
  """Sets of rounds that are b or more apart; p is the probability of a free round."""

  def __init__(
    self,
    strategy: strategies.Strategy,
    min_separation: int,
    probability: float,
    noise: float,
  ):
    scheme.check_cycle('min_separation', min_separation)
    checks.check_probability('sampling_probability', probability)
    rounds, free = strategy.num_rounds, min(min_separation, strategy.num_rounds + 1)
    # Three copies of C; its inner products and their indices; `_OverlappingSets`.
    numbers = 3 * rounds**2 + 12 * rounds * _bands(strategy)
    numbers += 2 * (rounds + free) * free + 6 * free**2
    _check_size(numbers, rounds, free, math.inf)
    scheme.check_groups(strategy, min_separation)
    columns, num_bands = np.abs(strategy.materialize()) / noise, _bands(strategy)
    width = max(num_bands, _BLOCK)
    self._blocks = []  # Columns, the rows in which they are not 0, and the block.
    for start in range(0, rounds, width):
      of, rows = (
        slice(start, start + width),
        slice(start, start + width + num_bands - 1),
      )
      self._blocks.append((of, rows, np.ascontiguousarray(columns[rows, of].T)))
    banded = sparse.csr_matrix(columns.T)
    self._products = (banded @ banded.T).tocsr()  # Products of all columns.
    # At t and d, the inner product of columns t and t - d; [rounds, bands].
    by_lag = [self._products.diagonal(-lag) for lag in range(num_bands)]
    self._lags = np.stack([np.pad(p, (rounds - len(p), 0)) for p in by_lag], axis=1)
    self._norms = self._lags[:, 0].copy()
    self._probability = probability
    # The last entry is for all clients that are free only after the last round.
    b, p = min_separation, probability
    first = np.full(min(b, rounds + 1), p)
    first[0] = 1.0
    first[rounds:] *= b - rounds
    self._first = first / (1 + (b - 1) * p)
    self.cells = rounds

  @functools.cached_property
  def _pairs(self) -> _OverlappingSets:
    return _OverlappingSets(self._lags, self._first, self._probability)

  def log_second_moment(self) -> float:
    return self._pairs.log_total

  def _suffixes(self, log_weights: np.ndarray) -> np.ndarray:
    """Log sums over all sets from each round on, for a client that is free in it."""
    rounds, b = len(log_weights), len(self._first)
    sums = np.zeros((rounds + b, *log_weights.shape[1:]))
    with np.errstate(divide='ignore'):  # log(0) if p = 1.
      skip, take = np.log1p(-self._probability), np.log(self._probability)
    for t in range(rounds - 1, -1, -1):
      if_taken = log_weights[t] + sums[min(t + b, rounds)]
      sums[t] = np.logaddexp(skip + sums[t + 1], take + if_taken)
    return sums

  def _sum(self, suffixes: np.ndarray) -> np.ndarray:
    """Log sums over all sets, from those that start at the first free round."""
    b = len(self._first)
    with np.errstate(divide='ignore'):
      first = np.log(self._first).reshape(b, *(1 for _ in suffixes.shape[1:]))
    return np.asarray(special.logsumexp(first + suffixes[:b], axis=0))

  def log_moment(self, c: float) -> float:
    return float(self._sum(self._suffixes(c * self._norms / 2)))

  def _rounds(self, rng: _Generator, size: int, c: float) -> np.ndarray:
    """Draws sets in proportion to their weight: whether each has a round, [n, size]."""
    rounds, b = len(self._norms), len(self._first)
    log_weights = c * self._norms / 2
    sums = self._suffixes(log_weights)
    first = self._first * np.exp(sums[:b] - sums[:b].max())
    free = rng.choice(b, size=size, p=first / first.sum())
    taken = np.zeros((rounds, size), bool)
    for t in range(rounds):
      if_taken = log_weights[t] + sums[min(t + b, rounds)]
      chance = self._probability * math.exp(if_taken - sums[t])
      takes_part = (free <= t) & (rng.random(size) < chance)
      taken[t] = takes_part
      free[takes_part] = t + b
    return taken

  def log_ratios(self, inner: np.ndarray, w: float = 1.0, c: float = 0.0) -> np.ndarray:
    norms = (w**2 - c) * self._norms / 2
    return self._sum(self._suffixes(w * inner.T - norms[:, None]))

  def _noise(self, rng: _Generator, size: int) -> np.ndarray:
    noise = rng.standard_normal((len(self._norms), size))
    inner = np.empty_like(noise)
    for columns, rows, block in self._blocks:
      np.matmul(block, noise[rows], out=inner[columns])
    return inner

  def draw(self, rng: _Generator, size: int, w: float, c: float) -> np.ndarray:
    inner = self._noise(rng, size)
    if w:
      taken = sparse.csc_matrix(self._rounds(rng, size, c).astype(np.float64))
      inner += w * (self._products @ taken).toarray()
    return inner.T

  def draw_squared(self, rng: _Generator, size: int) -> np.ndarray:
    inner = self._noise(rng, size)
    inner += (self._products @ self._pairs.draw(rng, size)).toarray()
    return inner.T


# Candidates for the share of outcomes beyond c_0, and their number beyond c_1.
_SHARES = (0.9, 0.5, 0.2, 0.05)
_COUNTS = (2, 4, 8, 16, 32, 64, 128, 256, 512)
_ROUNDING = 1e-13


class NormalTail(NamedTuple):
  """A bound on losses of Q: z(c) <= (mean - c) / deviation, from c = `start` on."""

  mean: float
  deviation: float
  start: float

  def log_delta(self, epsilon: float) -> float:
    """Logarithm of the bound on delta, which is that of a normal distribution."""
    if self.deviation == 0:
      return -math.inf
    x = (self.mean - epsilon) / self.deviation
    upper = float(special.log_ndtr(x))
    shift = epsilon - self.mean + self.deviation**2 / 2
    lower = float(special.log_ndtr(x - self.deviation))
    # A margin for round-off, so that the difference is not too small.
    margin = _ROUNDING * (1 + abs(shift) + abs(lower) + abs(upper))
    return upper + math.log(-math.expm1(min(shift + lower - upper, 0.0) - margin))

  def epsilon(self, log_delta: float, most: float) -> float:
    """The smallest epsilon >= `start` for a delta; infinite if it is above `most`."""
    if self.log_delta(self.start) <= log_delta:
      return self.start
    if not self.log_delta(most) <= log_delta:
      return math.inf
    root = optimize.brentq(
      lambda each: self.log_delta(each) - log_delta, self.start, most, rtol=1e-9
    )
    return float(root) * (1 + 1e-8)


def probability_at_most(count: int, size: int, log_beta: float) -> float:
  """An upper bound, wrong with exp(log_beta) at most (Clopper and Pearson, 1934)."""
  if count >= size:
    return 1.0
  beta = math.exp(log_beta)

  # `special.betaincinv` is wrong for probabilities as small as beta.
  def excess(logit: float) -> float:
    p = float(special.expit(logit))
    return float(special.betainc(size - count, count + 1, 1 - p)) - beta

  high = 40.0
  if excess(high) > 0:
    return 1.0
  root = optimize.brentq(excess, -700.0, high, xtol=1e-10, rtol=1e-12)
  return min(float(special.expit(root)) * (1 + 1e-8), 1.0)


def normal_tail(
  beyond: tuple[int, int], size: int, at: tuple[float, float], log_beta: float
) -> Optional[NormalTail]:
  """The bound from how many losses are >= c_0 and c_1, chosen independently of them."""
  log_half = log_beta - math.log(2)
  others = probability_at_most(size - beyond[0], size, log_half)
  lower = float(special.ndtri(1 - others))
  upper = float(special.ndtri(probability_at_most(beyond[1], size, log_half)))
  slope = (upper - lower) / (at[1] - at[0])
  if not (slope < 0 and math.isfinite(slope)):
    return None
  return NormalTail(at[1] - upper / slope, -1 / slope, at[1])


def counting_points(
  pilot: np.ndarray, size: int, epsilon: float, log_beta: float
) -> tuple[float, Optional[tuple[float, float]]]:
  """The approximate log delta, and the best c_0 and c_1, from a pilot run."""
  falling, scale = -np.sort(-pilot), size / len(pilot)
  candidates: list[tuple[float, tuple[float, float]]] = []
  for share in _SHARES:
    first = int(share * len(pilot))
    for count in _COUNTS:
      if not count < first < len(pilot):
        continue
      at = float(falling[first - 1]), float(falling[count - 1])
      if not at[0] < at[1] <= epsilon:
        continue
      tail = normal_tail((int(first * scale), int(count * scale)), size, at, log_beta)
      if tail is not None:
        candidates.append((tail.log_delta(epsilon), at))
  return min(candidates) if candidates else (0.0, None)


# Number of tests in a search that the confidence covers, and the share of delta that is
# the probability that any of them is wrong.
MAX_QUESTIONS, FAILURE_SHARE = 64, 0.01
# Sample sizes in units of B log(1 / beta) / delta; below 1 nothing passes. The first is
# the minimum; up to the second is drawn if that has no more cells than the third.
_TIMES, _MORE_TIMES, _CELLS = 3.0, 12.0, 2**28
_LAMBDAS = 2.0 ** -np.arange(12)  # Bets, in units of 1 / B.
_FEWEST, MAX_OUTCOMES = 2**15, 2**21
_MAX_COUNTED = 2**18  # Maximum number of outcomes if a normal tail can be used.
_PILOT, _PILOTS = 2**12, 4  # Outcomes of a pilot run, and number of such runs.
_STEP = 1 / 512  # Ratio of neighbouring points of the grid of epsilons, less 1.
# Sample sizes (their log2) and log(a - 1) are rounded to multiples of 1 over these, so
# that round-off does not change the outcomes.
_SIZES, _PROPOSALS = 64, 512
_LEAST_EPSILON = 1e-3


class Tails(NamedTuple):
  """Drawn outcomes of one direction, for epsilons from a minimum on."""

  losses: np.ndarray  # Losses above the minimum epsilon, in decreasing order.
  log_weights: np.ndarray  # Logarithms of their importance weights.
  size: int  # Size of the sample, including smaller losses.
  log_bound: float  # Logarithm of B, the upper bound on the value of one outcome.

  def outcomes(self, epsilon: float, log_unit: float = 0.0) -> np.ndarray:
    """The values of outcomes that are not 0, over exp(log_unit)."""
    above = int(np.searchsorted(-self.losses, -epsilon))
    logs = np.log(-np.expm1(epsilon - self.losses[:above]))
    logs += self.log_weights[:above] - log_unit
    with np.errstate(over='ignore'):  # An overflow becomes infinity.
      return np.asarray(np.exp(logs))

  def delta(self, epsilon: float) -> float:
    """The estimate of delta; infinite if it overflows."""
    return float(self.outcomes(epsilon).sum()) / self.size

  def passes(self, epsilon: float, delta: float, log_beta: float) -> bool:
    """Whether the mean is below `delta`; wrong with probability exp(log_beta)."""
    # Rounding may move the value of an outcome slightly above its bound.
    log_bound = self.log_bound + 1e-9
    log_mean = math.log(delta) - log_bound
    if log_mean >= 0:
      return True
    mean = math.exp(log_mean)
    if mean == 0:  # It underflows: no sample is large enough for such a bound.
      return False
    outcomes = self.outcomes(epsilon, log_bound)
    logs = [
      float(np.log1p(each * (mean - outcomes)).sum())
      + (self.size - len(outcomes)) * math.log1p(each * mean)
      for each in _LAMBDAS
    ]
    return bool(special.logsumexp(logs) - math.log(len(logs)) >= -log_beta)


def best_proposal(mixture: Mixture, removed: bool, epsilon: float) -> Proposal:
  """The proposal with the smallest bound on the value of an outcome."""

  def stretched_by(log: float) -> Proposal:
    return stretched(mixture, 1 + math.exp(log), removed)

  result = optimize.minimize_scalar(
    lambda log: stretched_by(log).log_bound(epsilon),
    bounds=(-7.0, 5.0),
    method='bounded',
    options={'xatol': 1e-3},
  )
  best = stretched_by(round(float(result.x) * _PROPOSALS) / _PROPOSALS)
  if not removed:
    return best
  other = squared(mixture, doubled=isinstance(mixture, _AllocationMixture))
  return other if other.log_bound(epsilon) < best.log_bound(epsilon) else best


def draw(
  mixture: Mixture,
  rng: _Generator,
  size: int,
  proposal: Proposal,
  epsilon: float,
) -> Tails:
  """Draws outcomes, in batches, for the deltas of all epsilons from `epsilon` on."""
  all_losses, all_weights = [], []
  for part in _batches(mixture, size):
    inner = proposal.draw(rng, part)
    log_ratios = mixture.log_ratios(inner)
    losses: np.ndarray = log_ratios if proposal.removed else -log_ratios
    above = losses > epsilon
    logs = proposal.log_densities(inner[above], log_ratios[above])
    all_losses.append(losses[above])
    # The density of P, or of Q, over that of the proposal.
    all_weights.append(log_ratios[above] - logs if proposal.removed else -logs)
  losses, log_weights = np.concatenate(all_losses), np.concatenate(all_weights)
  order = np.argsort(-losses)
  return Tails(losses[order], log_weights[order], size, proposal.log_bound(epsilon))


class _Search(NamedTuple):
  """A search for epsilons that pass, wrong with probability exp(log_beta).

  `certain` is an upper bound on epsilon that needs no drawn outcomes.
  """

  mixture: Mixture
  rng: _Generator
  delta: float
  log_beta: float

  def removed(self, least: float, certain: float) -> float:
    """The smallest epsilon >= `least` that passes for P against Q."""
    start = max(least, _estimate(self.mixture, self.rng, self.delta, certain))
    # Start where `MAX_OUTCOMES` are enough.
    least = self._reachable(True, min(start, certain), certain)
    return self._first_passing(True, least, certain)

  def added(self, least: float, certain: float) -> float:
    """The same for Q against P: by bets, by a normal tail, or by both."""
    if least >= certain:
      return certain
    if self.log_excess(False, least, _MAX_COUNTED) <= 0:
      return self._first_passing(False, least, certain)
    # Each gets half of the probability of being wrong.
    half = self._replace(log_beta=self.log_beta - math.log(2))
    bound = half.normal_tail(least)
    upper = certain if bound is None else bound.epsilon(math.log(self.delta), certain)
    upper = min(max(upper, least), certain)
    if upper <= least * (1 + _STEP):
      return upper
    start = half._reachable(False, least, upper)
    return half._first_passing(False, start, upper)

  def delta_added(self, epsilon: float) -> float:
    """An upper bound on the delta of Q against P, however small that is."""
    if self.log_excess(False, epsilon, _MAX_COUNTED) > 0:
      bound = self.normal_tail(epsilon)
      if bound is not None:
        return math.exp(bound.log_delta(epsilon))
    tails = self.draw(best_proposal(self.mixture, False, epsilon), epsilon)
    return _smallest_passing_delta(tails, epsilon, self.log_beta)

  def _first_passing(self, removed: bool, least: float, certain: float) -> float:
    """The smallest epsilon of a grid that passes by bets."""
    if least >= certain:
      return certain
    tails = self.draw(best_proposal(self.mixture, removed, least), least)
    return _smallest_passing(
      _grid(least, certain),
      lambda each: tails.passes(each, self.delta, self.log_beta),
    )

  def draw(self, proposal: Proposal, epsilon: float) -> Tails:
    unit = math.exp(min(proposal.log_bound(epsilon), 0.0)) * -self.log_beta / self.delta
    more = min(_MORE_TIMES * unit, _CELLS / self.mixture.cells)
    wanted = max(_TIMES * unit, more, _FEWEST)
    rounded = 2 ** (math.ceil(math.log2(wanted) * _SIZES) / _SIZES)
    size = min(math.ceil(rounded), MAX_OUTCOMES)
    return draw(self.mixture, self.rng, size, proposal, epsilon)

  def _losses_of_absent(self, size: int) -> np.ndarray:
    """Draws outcomes of Q and returns -log L of them."""
    mixture, parts = self.mixture, _batches(self.mixture, size)
    draws = (mixture.draw(self.rng, each, 0.0, 0.0) for each in parts)
    return -np.concatenate([mixture.log_ratios(each) for each in draws])

  def normal_tail(self, epsilon: float) -> Optional[NormalTail]:
    """A bound on losses of Q, from enough outcomes for a small delta at `epsilon`."""
    pilot, size = self._losses_of_absent(_PILOT), _FEWEST
    log_delta, at = counting_points(pilot, size, epsilon, self.log_beta)
    while size < _MAX_COUNTED and log_delta > math.log(self.delta) - 1:
      size *= 2
      log_delta, at = counting_points(pilot, size, epsilon, self.log_beta)
    if at is None:
      return None
    losses = self._losses_of_absent(size)
    beyond = int((losses >= at[0]).sum()), int((losses >= at[1]).sum())
    return normal_tail(beyond, size, at, self.log_beta)

  def log_excess(
    self, removed: bool, epsilon: float, most: int = MAX_OUTCOMES
  ) -> float:
    """Logarithm of the number of outcomes that bets need, over `most`."""
    proposal = best_proposal(self.mixture, removed, epsilon)
    bound = proposal.log_bound(epsilon)
    return math.log(-_TIMES * self.log_beta / (most * self.delta)) + bound

  def _reachable(self, removed: bool, epsilon: float, certain: float) -> float:
    """The smallest epsilon from this one on that `MAX_OUTCOMES` outcomes can pass."""
    excess = functools.partial(self.log_excess, removed)
    if excess(epsilon) <= 0:
      return epsilon
    if excess(certain) >= 0:
      return certain
    root = float(optimize.brentq(excess, epsilon, certain, rtol=1e-3))
    while excess(root) > 0 and root < certain:  # It may end on either side.
      root *= 1 + _STEP
    return min(root, certain)


class MonteCarloAccountant(accountant.Accountant):
  """Accountant of single mixtures of Gaussians, without composition."""

  name = 'monte_carlo'
  rank = 3  # Used if no other accountant reads the event.
  tolerance = 4e-3
  is_numerical = True
  is_drawn = True
  max_questions = MAX_QUESTIONS
  failure_share = FAILURE_SHARE / MAX_QUESTIONS  # For both directions together.
  reads = 'events of rounds that clients draw in advance, one alone,'

  def _can_read(self, part: dp_accounting.DpEvent) -> bool:
    is_allocated = accountant.is_sampled(part, events.AllocatedDpEvent)
    return is_allocated or getattr(part, 'strategy', None) is not None

  def _read(self, event: dp_accounting.DpEvent) -> list[accountant.Component]:
    together = dp_accounting.ComposedDpEvent([*self._composed, event])
    read = accountant.components(together, self.neighboring_relation)
    own = [n for part, n in read if not isinstance(part, events.EpsilonDeltaDpEvent)]
    if sum(own) > 1 and not accountant.is_non_private(read):
      raise dp_accounting.UnsupportedEventError(f'Only {self.reads} are supported.')
    return super()._read(event)

  def _epsilon(self, parts: list[accountant.Component], delta: float) -> float:
    return _epsilon_of(parts[0][0], delta, self.neighboring_relation)

  def _delta(self, parts: list[accountant.Component], epsilon: float) -> float:
    return _delta_of(parts[0][0], epsilon, self.neighboring_relation)

  @staticmethod
  def estimate(event: dp_accounting.DpEvent, delta: float) -> float:
    """An estimate from a few thousand outcomes, as often too small as too large."""
    relation = Relation.ADD_OR_REMOVE_ONE
    parts, _ = MonteCarloAccountant(relation).compose(event)._composition()
    if not parts or accountant.is_non_private(parts):
      return math.inf if parts else 0.0
    part: Any = parts[0][0]
    certain = pld.PldAccountant(relation).compose(part).get_epsilon(delta)
    if not math.isfinite(certain) or certain <= _LEAST_EPSILON:
      return certain
    rng = np.random.default_rng(_seed(part, delta, 'about'))
    return _estimate(_mixture(part), rng, delta, certain)


# A report needs the same epsilon several times.
@functools.lru_cache(maxsize=256)
def _epsilon_of(
  event: dp_accounting.DpEvent, target_delta: float, relation: Relation
) -> float:
  bound = pld.PldAccountant(relation).compose(event)  # Reads the bound of a mixture.
  delta = target_delta * (1 - FAILURE_SHARE)
  certain = float(bound.get_epsilon(delta))
  if not math.isfinite(certain) or certain <= _LEAST_EPSILON:
    return certain
  mixture, log_beta = _mixture(event), _log_beta(target_delta)
  epsilon = _LEAST_EPSILON
  for side, find in (('removed', _Search.removed), ('added', _Search.added)):
    rng = np.random.default_rng(_seed(event, target_delta, side))
    epsilon = find(_Search(mixture, rng, delta, log_beta), epsilon, certain)
  if epsilon >= certain:  # The result is the certain bound, so nothing can be wrong.
    return float(bound.get_epsilon(target_delta))
  return epsilon


@functools.lru_cache(maxsize=256)
def _delta_of(
  event: dp_accounting.DpEvent, target_epsilon: float, relation: Relation
) -> float:
  certain = pld.PldAccountant(relation).compose(event).get_delta(target_epsilon)
  mixture = _mixture(event)
  rng = np.random.default_rng(_seed(event, target_epsilon, 'removed'))
  proposal = best_proposal(mixture, True, target_epsilon)
  pilot = draw(mixture, rng, _PILOT, proposal, target_epsilon)
  lower = math.exp(min(pilot.log_bound - math.log(MAX_OUTCOMES), 0.0))
  estimate = max(pilot.delta(target_epsilon), lower)
  aim = min(estimate, 0.5)
  search = _Search(mixture, rng, aim, _log_beta(aim))
  tails = search.draw(proposal, target_epsilon)
  removed = _smallest_passing_delta(tails, target_epsilon, search.log_beta)
  aim = min(max(removed, 1e-30), 0.5)  # Smaller deltas are negligible.
  rng = np.random.default_rng(_seed(event, target_epsilon, 'added'))
  added = _Search(mixture, rng, aim, _log_beta(aim)).delta_added(target_epsilon)
  failure = FAILURE_SHARE * max(estimate, removed)
  return min(certain, max(removed, added) + failure, 1.0)


def _log_beta(delta: float) -> float:
  return math.log(delta) + math.log(FAILURE_SHARE / (2 * MAX_QUESTIONS))


def _smallest_passing_delta(tails: Tails, epsilon: float, log_beta: float) -> float:
  """The approximate smallest delta that passes; all larger ones pass, too."""
  low, high = math.log(max(tails.delta(epsilon), 1e-300)), 0.0
  while high - low > _STEP:
    middle = (low + high) / 2
    passes = tails.passes(epsilon, math.exp(middle), log_beta)
    low, high = (low, middle) if passes else (middle, high)
  return math.exp(high)


def _mixture(event: Any) -> Mixture:
  if isinstance(event, events.AllocatedDpEvent):
    noise: Any = event.event
    return _AllocationMixture(
      event.num_steps, 1, noise.noise_multiplier, event.num_places
    )
  strategy, noise = event.strategy, event.noise_multiplier
  if isinstance(event, events.RandomAllocationDpEvent):  # C is the identity.
    return _AllocationMixture(strategy.num_rounds, event.rounds_of_a_client, noise)
  if isinstance(event, events.BallsInBinsDpEvent):
    return _BallsInBinsMixture(strategy, event.num_bins, noise)
  return _BMinSepMixture(
    strategy, event.min_separation, event.sampling_probability, noise
  )


def _seed(event: Any, at: float, side: str) -> int:
  # The bound is left out: it is made of inner products, whose rounding differs.
  fields = {
    field.name: getattr(event, field.name)
    for field in dataclasses.fields(event)
    if field.name not in ('strategy', 'bound')
  }
  text = f'{type(event).__name__} {fields} {float(at)!r} {side}'
  return int.from_bytes(hashlib.sha256(text.encode()).digest()[:16], 'big')


def _estimate(mixture: Mixture, rng: _Generator, delta: float, certain: float) -> float:
  epsilon, grid = certain, _grid(_LEAST_EPSILON, certain)
  for _ in range(_PILOTS):
    proposal = best_proposal(mixture, True, epsilon)
    pilot = draw(mixture, rng, _PILOT, proposal, _LEAST_EPSILON)
    passing = _smallest_passing(grid, lambda each: pilot.delta(each) <= delta)  # noqa: B023
    near = abs(passing - epsilon) <= 0.01 * epsilon
    epsilon = passing
    if near:
      break
  return epsilon


def _grid(least: float, largest: float) -> np.ndarray:
  steps = max(math.ceil(math.log(largest / least) / math.log1p(_STEP)), 1)
  return np.geomspace(least, largest, steps + 1)


def _smallest_passing(grid: np.ndarray, passes: Callable[[float], bool]) -> float:
  """The smallest point that passes; all above it pass, the last one by assumption."""
  low, high = 0, len(grid) - 1
  while low < high:
    middle = (low + high) // 2
    low, high = (low, middle) if passes(float(grid[middle])) else (middle + 1, high)
  return float(grid[high])
