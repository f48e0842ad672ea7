"""Monte Carlo accounting, with a confidence that is counted in delta.

**Mixtures.** A client draws its rounds S. P draws them too and is N(m_S, I) then, with
m_S the sum of the columns of |C| / sigma in S; Q is N(0, I). `sampling.allocation`
says why this pair dominates. The likelihood ratio of an outcome y,

    L(y) = E_S exp(<m_S, y> - |m_S|^2 / 2),

is a sum over too many sets to enumerate, but not to compute: over bins directly; over
sets that are b or more apart by recursion over rounds, as columns of C that are b apart
share no row, so that log-likelihoods of the rounds of a set add up (arXiv:2602.09338);
over all sets of k rounds, with independent noise, by that of elementary symmetric
polynomials (arXiv:2605.07072).

**Bets.** The deltas of both directions are means of numbers in [0, B]. They are
estimated from drawn outcomes x_i, and what is said of them holds with a stated
probability: if the mean is m or more, then

    mean over some lambda <= 1 / B of prod_i (1 + lambda (m - x_i))

has at most the mean 1, and exceeds 1 / beta with probability at most beta (a bet,
arXiv:2010.09686, section 4); if it does, the mean is said to be less than m. That this
may be wrong counts in delta: with probability at most beta, what chooses its noise by
(epsilon, delta - beta) is (epsilon, delta)-DP, over the coins of the accountant as well
(arXiv:2412.16802, section 4; arXiv:2602.09338, appendix A).

* **Search.** Calibration asks for many noise multipliers and keeps one that passed.
  Each has outcomes of its own, and beta is for `MAX_QUESTIONS` questions of two
  directions together, `FAILURE_SHARE` of delta. Who calibrates several plans and keeps
  one has made several searches, each with a confidence of its own.
* **Epsilon.** The x_i fall with epsilon, so what passes at one passes at all above it.
  Let e be the largest epsilon of a grid whose delta is really too large: a result that
  is too small has passed at e, so one beta is enough for all epsilons.

**Importance bounds** (**proved here**). Deltas are rare events, so outcomes are drawn
from a distribution that makes them frequent, and what H_{e^epsilon} is made of is taken
over its density. A pilot run, which shares no outcome with the run that counts, chooses
one of three, each with a bound on what an outcome adds, for any a > 1:

* `stretched`: means are stretched to w m_S, and sets are drawn in proportion to their
  probability times exp(c |m_S|^2 / 2). Let M(c) be the mean of that. The density over Q
  is E_S exp(w <m_S, y> - (w^2 - c) |m_S|^2 / 2) / M(c), which is bounded by powers of L
  by Hoelder's inequality: for H(P || Q) with w = a, c = a - 1, from below by
  L^a / M(c)^a; for H(Q || P) with w = 1 - a, c = -a, by L^(1 - a) M(c)^(a - 1). Other c
  have larger bounds. The bound is M(a - 1)^a, or M(-a)^(1 - a), times

      (a - 1)^(a - 1) / a^a exp(-(a - 1) epsilon).

* `squared`: the density over Q is L^2 / E_Q L^2, for H(P || Q). As L^2 is a mean over
  two independent sets, S and S', it is a mixture as well: of means m_S + m_S', in
  proportion to their probabilities times exp(<m_S, m_S'>). The bound, E_Q L^2
  exp(-epsilon) / 4, is smaller where sets overlap little.
* `squared`, doubled: half of the density is that, and half that of means 2 m_S,
  so that the bound is twice as large.

**Normal tails** (**proved here**). The delta of the direction in which a client is
added, Q against P, is bounded as well from how often losses that are not rare are
exceeded (`NormalTail`). Let X = -log L(y) be the loss of an outcome y of Q, and G(c) =
Q(X >= c). As log L is convex, the logarithm of a sum of exponentials of linear
functions, so are the sets K(c) = {y: X >= c}: for c between c_0 and c_1, K(c) has in it
all that lies in the same proportion between a point of K(c_0) and one of K(c_1).
Gaussian measure of such sets is concave on the scale of the normal distribution
(Ehrhard 1983; for all sets Borell, C. R. Math. 337, 2003):

    c -> z(c) = Phi^-1(G(c)) is concave.

So beyond c_1 > c_0, z is at most the line through its values at both: the losses have a
tail that is at most that of the normal distribution which has the same G there. With an
upper bound of G(c_1) and a lower one of G(c_0), which counting outcomes gives, that
bounds G, and with it

    H_{e^epsilon}(Q || P) = integral over c > epsilon of e^{epsilon - c} G(c)

for all epsilon >= c_1 at once: 100,000 outcomes reach 10^-12. (For H(P || Q) the
outcomes in question are those outside of a convex set.)

**Seed.** It is a hash of what is asked: the type of event, the checksum of its
strategy, its numbers, epsilon or delta; nothing that processors round in ways of their
own. So the same question has the same answer on any machine, to some 1e-12; or, should
an outcome then decide otherwise whether a point of a grid passes, to 0.2%.
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

# Numbers that are held at once at most, 4 GiB of them: some 6,000 rounds and places.
MAX_NUMBERS = 2**29
MAX_BINS, MAX_CELLS = 4096, 2**18  # With more, an outcome takes too long.
_BATCH = 2**22  # Cells of a batch of outcomes.


def check_size(numbers: int, num_rounds: int, places: int, most: float) -> None:
  """Refuses too many places: bins, rounds of a break, or rounds times a client's."""
  if numbers > MAX_NUMBERS or places > most:
    raise ValueError(
      f'accountant=monte_carlo is too slow for num_rounds={num_rounds}: {places} '
      f'places of a client (at most {most:g}), {numbers:.3g} numbers held at once (at '
      f'most {MAX_NUMBERS:.3g}). Take accountant=pld, which has a bound without drawn '
      'outcomes for any number of rounds.'
    )


class Proposal(NamedTuple):
  """What outcomes are drawn from."""

  removed: bool  # Whether P is told from Q, or Q from P.
  # Logarithm of the most that an outcome adds to a delta, at epsilon 0, and how fast it
  # falls with epsilon.
  log_most: float
  slope: float
  # Draws so many outcomes; `Mixture.draw` says which array that is.
  draw: Callable[[np.random.Generator, int], np.ndarray]
  # Logarithms of the density over Q, of inner products and logarithms of L.
  log_densities: Callable[[np.ndarray, np.ndarray], np.ndarray]

  def log_bound(self, epsilon: float) -> float:
    """Logarithm of the most that one outcome adds to a delta."""
    return self.log_most - self.slope * epsilon


def stretched(mixture: 'Mixture', a: float, removed: bool) -> Proposal:
  """Outcomes of means stretched by w, away from Q or to its other side; a above 1."""
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
  """Outcomes in proportion to the square of L; doubled, by a coin, of one set twice."""
  log_moment, twice = mixture.log_second_moment(), stretched(mixture, 2.0, True)

  def draw_either(rng: np.random.Generator, size: int) -> np.ndarray:
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


# A pair (P, Q), from which outcomes can be drawn. All classes have these methods:
# `log_moment(c)` is the logarithm of M(c), `log_second_moment()` that of E_Q L^2;
# `draw(rng, size, w, c)` has inner products of outcomes with columns, or with sums of
# them, [size, cells], of Q for w = 0, and `draw_squared(rng, size)` the same with a
# density over Q in proportion to L^2; `log_ratios(inner, w, c)` are the logarithms of
# E_S exp(w <m_S, y> - (w^2 - c) |m_S|^2 / 2), by default of L.
Mixture = Union['BallsInBinsMixture', 'AllocationMixture', 'BMinSepMixture']


def _batches(mixture: Mixture, size: int) -> list[int]:
  """Sizes of parts of a sample that fit into memory."""
  batch = max(1, _BATCH // mixture.cells)
  return [min(batch, size - start) for start in range(0, size, batch)]


def losses_of_absent(
  mixture: Mixture, rng: np.random.Generator, size: int
) -> np.ndarray:
  """Draws -log L of outcomes of Q."""
  parts = _batches(mixture, size)
  drawn = [mixture.log_ratios(mixture.draw(rng, each, 0.0, 0.0)) for each in parts]
  return -np.concatenate(drawn)


class BallsInBinsMixture:
  """One of b sets of rounds, each with the same probability."""

  def __init__(self, strategy: strategies.Strategy, num_bins: int, noise: float):
    scheme.check_cycle('num_bins', num_bins)
    rounds = strategy.num_rounds
    columns = min(num_bins, rounds)
    # C twice, its sums twice; inner products, their root and what that is made of.
    numbers = 2 * rounds**2 + 2 * rounds * columns + 6 * columns**2
    check_size(numbers, rounds, columns, MAX_BINS)
    added = allocation.bins_of(strategy, num_bins) / noise
    self._products = added.T @ added
    self._norms = self._products.diagonal().copy()
    self._added = added
    self._num_bins, self.cells = num_bins, len(self._norms)
    self._empty = num_bins - self.cells
    with np.errstate(divide='ignore'):  # If none is empty.
      self._log_counts = np.log(np.append(np.ones(self.cells), self._empty))

  @functools.cached_property
  def _root(self) -> np.ndarray:
    """The symmetric root of inner products: it moves no more than the columns do."""
    reduced = np.linalg.qr(self._added, mode='r')
    _, values, vectors = np.linalg.svd(reduced)
    return np.asarray((vectors.T * values) @ vectors)

  def log_moment(self, tilt: float) -> float:
    """The mean over all bins."""
    return float(self._mean_of(tilt * self._norms / 2))

  def _mean_of(self, logs: np.ndarray) -> np.ndarray:
    """Logarithms of means of exponentials over bins; those of empty bins are 1."""
    with_empty = np.append(logs, np.zeros((*logs.shape[:-1], 1)), axis=-1)
    total = special.logsumexp(with_empty + self._log_counts, axis=-1)
    return np.asarray(total - math.log(self._num_bins))

  def log_second_moment(self) -> float:
    """The mean over pairs of bins, of the exponentials of their inner products."""
    return float(self._mean_of(self._mean_of(self._products)))

  def log_ratios(
    self, inner: np.ndarray, stretch: float = 1.0, tilt: float = 0.0
  ) -> np.ndarray:
    """The mean over all bins."""
    return self._mean_of(stretch * inner - (stretch**2 - tilt) * self._norms / 2)

  def _noise(self, rng: np.random.Generator, size: int) -> np.ndarray:
    return rng.standard_normal((size, self.cells)) @ self._root

  def draw(
    self, rng: np.random.Generator, size: int, stretch: float, tilt: float
  ) -> np.ndarray:
    """Draws bins, and the outcomes' inner products with all of them."""
    logs = np.append(tilt * self._norms / 2, 0.0) - self.log_moment(tilt)
    weights = np.exp(logs + self._log_counts)
    chosen = rng.choice(len(weights), size=size, p=weights / weights.sum())
    inner = self._noise(rng, size)
    some = chosen < self.cells
    inner[some] += stretch * self._products[chosen[some]]
    return inner

  def draw_squared(self, rng: np.random.Generator, size: int) -> np.ndarray:
    """Draws pairs of bins: the first, then the second as it goes with that."""
    # The last row and column are the empty bins, whose inner products are 0.
    products = np.zeros((self.cells + 1, self.cells + 1))
    products[:-1, :-1] = self._products
    weights = np.exp(products - products.max())
    weights[:, -1] *= self._empty
    rows = weights.sum(axis=1)
    rows[-1] *= self._empty
    first = rng.choice(len(rows), size=size, p=rows / rows.sum())
    ends = np.cumsum(weights[first], axis=1)
    second = (ends <= ends[:, -1:] * rng.random((size, 1))).sum(axis=1)
    inner = self._noise(rng, size)
    inner += products[first, :-1]
    inner += products[second, :-1]
    return inner


class AllocationMixture:
  """All k of n rounds, alike, with independent noise; for k = 1 of more places."""

  def __init__(
    self, num_rounds: int, rounds_of_a_client: int, noise: float, num_places: int = 0
  ):
    n, k = num_rounds, rounds_of_a_client
    self.cells = n * max(min(k, n - k), 1)
    check_size(0, n, self.cells, MAX_CELLS)
    self._rounds, self._times, self._mu = n, k, 1 / noise
    share = n / max(num_places, n)
    # How many rounds are in both of two sets, and in one of them, and how likely it is.
    both = np.arange(max(2 * k - n, 0), k + 1)
    self._both = np.append(both, [0, 0])
    self._either = np.append(2 * (k - both), [k, 0])
    with np.errstate(divide='ignore'):  # If none is missed.
      self._log_here, self._log_missed = math.log(share), np.log1p(-share)
    logs = _log_binomial(k, both) + _log_binomial(n - k, k - both) - _log_binomial(n, k)
    alone = math.log(2) + self._log_here + self._log_missed
    pairs = np.append(2 * self._log_here + logs, [alone, 2 * self._log_missed])
    self._log_pairs = pairs + self._mu**2 * self._both

  def _mean_of(self, logs: Any) -> np.ndarray:
    """Logarithms of means of exponentials, with the places that are no rounds."""
    return np.asarray(np.logaddexp(self._log_here + logs, self._log_missed))

  def log_moment(self, tilt: float) -> float:
    """The moment; all sets have the same norm."""
    return float(self._mean_of(tilt * self._times * self._mu**2 / 2))

  def log_second_moment(self) -> float:
    """By how many rounds two sets have in common."""
    return float(special.logsumexp(self._log_pairs))

  def log_ratios(
    self, inner: np.ndarray, stretch: float = 1.0, tilt: float = 0.0
  ) -> np.ndarray:
    """The mean over all sets, of products over their rounds."""
    logs = stretch * inner - (stretch**2 - tilt) * self._mu**2 / 2
    return self._mean_of(log_mean_of_products(logs, self._times))

  def _outcomes(
    self, rng: np.random.Generator, both: np.ndarray, either: np.ndarray, stretch: float
  ) -> np.ndarray:
    """Inner products of noise with all columns, and with those of two sets."""
    inner = self._mu * rng.standard_normal((len(both), self._rounds))
    at, shift = np.arange(self._rounds), stretch * self._mu**2
    inner += shift * (at < both[:, None])
    inner += shift * (at < (both + either)[:, None])
    return inner

  def draw(
    self, rng: np.random.Generator, size: int, stretch: float, tilt: float
  ) -> np.ndarray:
    """Draws who is in a set, and noise."""
    log_here = self._log_here + tilt * self._times * self._mu**2 / 2
    here = rng.random(size) < np.exp(log_here - self.log_moment(tilt))
    return self._outcomes(rng, np.zeros(size), self._times * here, stretch)

  def draw_squared(self, rng: np.random.Generator, size: int) -> np.ndarray:
    """Draws how many rounds two sets have in common, and noise."""
    weights = np.exp(self._log_pairs - self.log_second_moment())
    drawn = rng.choice(len(weights), size=size, p=weights / weights.sum())
    return self._outcomes(rng, self._both[drawn], self._either[drawn], 1.0)


# Smaller sums may have lost what underflows, 2^-1074 at a time: in 2^19 steps, after
# which it grows by e^(k / e) at most, for a k of up to 362.
_LEAST_SUM = 1e-200


def log_mean_of_products(logs: np.ndarray, times: int) -> np.ndarray:
  """Logarithms of means over all sets of so many columns, of products of exp(logs).

  They are elementary symmetric polynomials, e_k(x_1, ..., x_t) = e_k(..., x_(t - 1)) +
  x_t e_(k - 1)(..., x_(t - 1)), over the number of sets; relative errors add up.
  """
  size, rounds = logs.shape
  if 2 * times > rounds:  # Sets are as well what is left out.
    return np.asarray(logs.sum(axis=1) + log_mean_of_products(-logs, rounds - times))
  # With this factor none is above (k / j)^j, which is at most e^(k / e).
  factor = math.log(max(times, 1) / rounds) - 1
  largest = logs.max(axis=1) - factor
  sums, more = np.zeros((times + 1, size)), np.empty((times, size))
  sums[0] = 1.0
  for t, each in enumerate(np.exp((logs - largest[:, None]).T), 1):
    some = min(t, times)
    np.multiply(sums[:some], each, out=more[:some])
    sums[1 : some + 1] += more[:some]
  lost = sums[times] < _LEAST_SUM
  found = np.log(np.where(lost, 1.0, sums[times])) + times * largest
  if lost.any():
    found[lost] = _log_sums_of_products(logs[lost], times)
  return np.asarray(found - _log_binomial(rounds, times))


def _log_sums_of_products(logs: np.ndarray, times: int) -> np.ndarray:
  sums = np.full((times + 1, len(logs)), -math.inf)
  sums[0] = 0.0
  for t, each in enumerate(logs.T, 1):
    some = min(t, times)
    sums[1 : some + 1] = np.logaddexp(sums[1 : some + 1], sums[:some] + each)
  return np.asarray(sums[times])


def _log_binomial(n: Any, k: Any) -> Any:
  return special.gammaln(n + 1) - special.gammaln(k + 1) - special.gammaln(n - k + 1)


_NEVER = -1e6  # Instead of log(0): exp of it is 0, and differences of it are numbers.


class OverlappingSets:
  """Two sets of b-min-sep sampling that attract each other where they overlap.

  The sets S and S' are those of two clients, in proportion to their probabilities times
  exp(<m_S, m_S'>). Columns that are b apart share no row. So of what a client did, only
  its last round matters, while it is not free again; and while neither is free nothing
  happens. Two sorts of states are left: both are free in round t, or one of them is,
  and the other was in round t - d, for a d below b. (Phantom rounds before the first
  are for clients that are not free in round 0.) That takes n b logarithms.

  `lags` has the inner products of columns t and t - d at t and d, [num_rounds, bands];
  `first` the probabilities of the round from which on a client is free, [b], where b is
  at most num_rounds + 1, and more rounds than there are stand for never. `log_total` is
  the logarithm of the mean of exp(<m_S, m_S'>).
  """

  log_total: float

  def __init__(self, lags: np.ndarray, first: np.ndarray, probability: float):
    rounds, b = len(lags), len(first)
    self._rounds, self._b, self._lags = rounds, b, lags
    self._skip = max(math.log1p(-probability), _NEVER) if probability < 1 else _NEVER
    self._take = math.log(probability)
    # Both are free in round t; one is, and the other was in round t - d.
    self._both = np.zeros(rounds + b + 1)
    one = np.zeros((rounds + b + 1, b))
    near = np.arange(1, b)
    overlaps = np.zeros(max(b - 1, 0))
    for t in range(rounds - 1, -1, -1):
      overlaps[:] = 0.0
      known = min(lags.shape[1] - 1, t)
      overlaps[:known] = lags[t, 1 : known + 1]
      # Who is free now and takes part waits for the other to be free.
      ahead = b - near
      takes = self._take + overlaps + one[t + ahead, ahead]
      skips = np.append(one[t + 1, 2:], self._both[t + 1])[: b - 1] + self._skip
      one[t, 1:] = np.logaddexp(skips, takes)
      self._both[t] = special.logsumexp(
        [2 * self._skip + self._both[t + 1], self._of_one(one, t), self._of_two(t)]
      )
    # If one was in round s, the probability that the other stays out up to s + d, but
    # for a factor: for s from -b on, and d from 1 to b.
    self._stays = np.full((rounds + b, b + 1), np.inf)
    was = np.arange(-b, rounds)
    for d in range(1, b + 1):
      some = was + d >= 0
      at = was[some] + d
      sums = self._both[at] if d == b else one[at, d]
      self._stays[some, d] = d * self._skip + sums
    # The same of both from round 0 on; and that both are in a round if one is.
    self._two = special.expit(
      [self._of_two(t) - self._of_one(one, t) for t in range(rounds)]
    )
    self._both_stay = 2 * self._skip * np.arange(rounds + 1) + self._both[: rounds + 1]
    # The first client that is free, and how much later the other is.
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
    """One of two free clients is in round t."""
    then = one[t + 1, 1] if self._b > 1 else self._both[t + 1]
    return float(math.log(2) + self._take + self._skip + then)

  def _of_two(self, t: int) -> float:
    """Both are."""
    return float(2 * self._take + self._lags[t, 0] + self._both[t + self._b])

  def draw(self, rng: np.random.Generator, size: int) -> sparse.csc_matrix:
    """Draws pairs: in how many of both sets each round is, [num_rounds, size]."""
    rounds, b = self._rounds, self._b
    weights = np.exp(self._starts - self.log_total).ravel()
    i, j = np.divmod(rng.choice(len(weights), size=size, p=weights / weights.sum()), b)
    # Both are free from round `free` on; or one is, and the other was in round `was`.
    free, apart = np.minimum(i, j), i != j
    was = np.where(apart, np.maximum(i, j) - b, 0)
    taken = [(np.zeros(0, int), np.zeros(0, int), np.zeros(0))]
    active = np.flatnonzero(free < rounds)
    while len(active):
      one, some = active[apart[active]], active[~apart[active]]
      at, two = self._next_of_both(rng, free[some])
      here = at < rounds
      taken.append((at[here], some[here], np.where(two[here], 2.0, 1.0)))
      was[some], free[some] = at, np.where(two, at + b, at + 1)
      apart[some] = ~two & (b > 1)
      after = self._next_of_one(rng, was[one], free[one])
      at, then = was[one] + after, was[one] + b
      here = (after < b) & (at < rounds)
      taken.append((at[here], one[here], np.ones(int(here.sum()))))
      was[one], free[one], apart[one] = at, then, after < b
      active = active[free[active] < rounds]
    at, who, times = (np.concatenate(each) for each in zip(*taken))
    return sparse.csc_matrix((times, (at, who)), (rounds, size))

  def _next_of_both(
    self, rng: np.random.Generator, free: np.ndarray
  ) -> tuple[np.ndarray, np.ndarray]:
    """When one of two free clients is in a round, and whether both are."""
    least = self._both_stay[free] - rng.standard_exponential(len(free))
    at = np.searchsorted(-self._both_stay[1:], -least, side='right')
    both = rng.random(len(free)) < np.append(self._two, 0.0)[at]
    return at, both

  def _next_of_one(
    self, rng: np.random.Generator, was: np.ndarray, free: np.ndarray
  ) -> np.ndarray:
    """When a free client is in a round, before the other one is free."""
    stays, low = self._stays[was + self._b], (free - was)[:, None]
    least = np.take_along_axis(stays, low, 1)
    least = least - rng.standard_exponential(least.shape)
    later = np.arange(self._b + 1) > low
    return free - was + np.sum(later & (stays >= least), axis=1)


_BLOCK = 64  # The least width of a block of C.


def _bands(strategy: strategies.Strategy) -> int:
  num_bands: Any = getattr(strategy, 'num_bands', strategy.num_rounds)
  return int(min(num_bands, strategy.num_rounds))


class BMinSepMixture:
  """Sets of rounds that are b or more apart, in each free round with probability p."""

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
    # C three times; its inner products and their indices; `OverlappingSets`.
    numbers = 3 * rounds**2 + 12 * rounds * _bands(strategy)
    numbers += 2 * (rounds + free) * free + 6 * free**2
    check_size(numbers, rounds, free, math.inf)
    scheme.check_groups(strategy, min_separation)
    columns, num_bands = np.abs(strategy.materialize()) / noise, _bands(strategy)
    self._blocks = _blocks(columns, num_bands)
    banded = sparse.csr_matrix(columns.T)
    self._products = (banded @ banded.T).tocsr()  # Of all columns.
    # At t and d, the inner product of columns t and t - d; [rounds, bands].
    by_lag = [self._products.diagonal(-lag) for lag in range(num_bands)]
    self._lags = np.stack([np.pad(p, (rounds - len(p), 0)) for p in by_lag], axis=1)
    self._norms = self._lags[:, 0].copy()
    self._probability = probability
    # Who is free only after the last round is never in one: all of that is the last.
    b, p = min_separation, probability
    first = np.full(min(b, rounds + 1), p)
    first[0] = 1.0
    first[rounds:] *= b - rounds
    self._first = first / (1 + (b - 1) * p)
    self.cells = rounds

  @functools.cached_property
  def _pairs(self) -> OverlappingSets:
    return OverlappingSets(self._lags, self._first, self._probability)

  def log_second_moment(self) -> float:
    """By recursion over rounds, for two sets at once."""
    return self._pairs.log_total

  def _suffixes(self, log_weights: np.ndarray) -> np.ndarray:
    """Logarithms of sums over all sets from each round on, for a client free in it."""
    rounds, b = len(log_weights), len(self._first)
    sums = np.zeros((rounds + b, *log_weights.shape[1:]))
    with np.errstate(divide='ignore'):  # If p = 1.
      skip, take = np.log1p(-self._probability), np.log(self._probability)
    for t in range(rounds - 1, -1, -1):
      after = log_weights[t] + sums[min(t + b, rounds)]
      sums[t] = np.logaddexp(skip + sums[t + 1], take + after)
    return sums

  def _sum(self, suffixes: np.ndarray) -> np.ndarray:
    """Logarithms of sums over all sets, of those from the round on that is free."""
    b = len(self._first)
    with np.errstate(divide='ignore'):
      first = np.log(self._first).reshape(b, *(1 for _ in suffixes.shape[1:]))
    return np.asarray(special.logsumexp(first + suffixes[:b], axis=0))

  def log_moment(self, tilt: float) -> float:
    """By recursion over rounds."""
    return float(self._sum(self._suffixes(tilt * self._norms / 2)))

  def _rounds(self, rng: np.random.Generator, size: int, tilt: float) -> np.ndarray:
    """Who is in which round, drawn in proportion to their weight; [n, size]."""
    rounds, b = len(self._norms), len(self._first)
    log_weights = tilt * self._norms / 2
    sums = self._suffixes(log_weights)
    first = self._first * np.exp(sums[:b] - sums[:b].max())
    free = rng.choice(b, size=size, p=first / first.sum())
    taken = np.zeros((rounds, size), bool)
    for t in range(rounds):
      after = log_weights[t] + sums[min(t + b, rounds)]
      chance = self._probability * math.exp(after - sums[t])
      here = (free <= t) & (rng.random(size) < chance)
      taken[t] = here
      free[here] = t + b
    return taken

  def log_ratios(
    self, inner: np.ndarray, stretch: float = 1.0, tilt: float = 0.0
  ) -> np.ndarray:
    """By recursion over rounds, from the last one."""
    norms = (stretch**2 - tilt) * self._norms / 2
    return self._sum(self._suffixes(stretch * inner.T - norms[:, None]))

  def _outcomes(
    self, noise: np.ndarray, taken: sparse.csc_matrix, stretch: float
  ) -> np.ndarray:
    """Inner products of noise and of columns that were taken with all columns."""
    inner = np.empty_like(noise)
    for columns, rows, block in self._blocks:
      np.matmul(block, noise[rows], out=inner[columns])
    if stretch:
      inner += stretch * (self._products @ taken).toarray()
    return inner.T

  def draw(
    self, rng: np.random.Generator, size: int, stretch: float, tilt: float
  ) -> np.ndarray:
    """Draws noise, then sets."""
    noise = rng.standard_normal((len(self._norms), size))
    if not stretch:
      return self._outcomes(noise, sparse.csc_matrix(noise.shape), stretch)
    taken = sparse.csc_matrix(self._rounds(rng, size, tilt).astype(np.float64))
    return self._outcomes(noise, taken, stretch)

  def draw_squared(self, rng: np.random.Generator, size: int) -> np.ndarray:
    """Draws noise, then two sets for each outcome."""
    noise = rng.standard_normal((len(self._norms), size))
    return self._outcomes(noise, self._pairs.draw(rng, size), 1.0)


def _blocks(
  columns: np.ndarray, num_bands: int
) -> list[tuple[slice, slice, np.ndarray]]:
  """Groups of columns of a banded matrix, their rows, and what is there, transposed."""
  rounds, width = len(columns), max(num_bands, _BLOCK)
  made = []
  for start in range(0, rounds, width):
    some = slice(start, min(start + width, rounds))
    rows = slice(start, min(start + width + num_bands - 1, rounds))
    made.append((some, rows, np.ascontiguousarray(columns[rows, some].T)))
  return made


# Shares of outcomes beyond c_0, and least numbers of outcomes beyond c_1.
_SHARES = (0.9, 0.5, 0.2, 0.05)
_COUNTS = (2, 4, 8, 16, 32, 64, 128, 256, 512)
_ROUNDING = 1e-13


class NormalTail(NamedTuple):
  """A bound on losses of Q: z(c) <= (mean - c) / deviation, from c = `start` on."""

  mean: float
  deviation: float
  start: float

  def log_delta(self, epsilon: float) -> float:
    """Logarithm of a bound on delta: that of the normal distribution."""
    if self.deviation == 0:
      return -math.inf
    x = (self.mean - epsilon) / self.deviation
    one = float(special.log_ndtr(x))
    shift = epsilon - self.mean + self.deviation**2 / 2
    other = float(special.log_ndtr(x - self.deviation))
    # Rounded so that the difference of both is not too small.
    wrong = _ROUNDING * (1 + abs(shift) + abs(other) + abs(one))
    return one + math.log(-math.expm1(min(shift + other - one, 0.0) - wrong))

  def epsilon(self, log_delta: float, most: float) -> float:
    """The least epsilon at which the bound is so small, from `start` on."""
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
  def rest(logit: float) -> float:
    """The chance of so few, and of fewer, if the probability is p, less beta."""
    p = float(special.expit(logit))
    return float(special.betainc(size - count, count + 1, 1 - p)) - beta

  high = 40.0
  if rest(high) > 0:
    return 1.0
  root = optimize.brentq(rest, -700.0, high, xtol=1e-10, rtol=1e-12)
  return min(float(special.expit(root)) * (1 + 1e-8), 1.0)


def probability_at_least(count: int, size: int, log_beta: float) -> float:
  """A lower bound of a probability, wrong with probability exp(log_beta) at most."""
  return 1 - probability_at_most(size - count, size, log_beta)


def normal_tail(
  beyond: tuple[int, int], size: int, at: tuple[float, float], log_beta: float
) -> Optional[NormalTail]:
  """The bound by how many losses are at least c_0 and c_1, chosen without these."""
  log_half = log_beta - math.log(2)
  lower = float(special.ndtri(probability_at_least(beyond[0], size, log_half)))
  upper = float(special.ndtri(probability_at_most(beyond[1], size, log_half)))
  slope = (upper - lower) / (at[1] - at[0])
  if not (slope < 0 and math.isfinite(slope)):
    return None
  return NormalTail(at[1] - upper / slope, -1 / slope, at[1])


def counting_points(
  pilot: np.ndarray, size: int, epsilon: float, log_beta: float
) -> tuple[float, Optional[tuple[float, float]]]:
  """About log delta, and the best c_0 and c_1, by losses that are not counted."""
  falling, times = -np.sort(-pilot), size / len(pilot)
  tried: list[tuple[float, tuple[float, float]]] = []
  for share in _SHARES:
    first = int(share * len(pilot))
    for count in _COUNTS:
      if not count < first < len(pilot):
        continue
      at = float(falling[first - 1]), float(falling[count - 1])
      if not at[0] < at[1] <= epsilon:
        continue
      made = normal_tail((int(first * times), int(count * times)), size, at, log_beta)
      if made is not None:
        tried.append((made.log_delta(epsilon), at))
  return min(tried) if tried else (0.0, None)


# Questions of a search that the confidence covers, and the part of delta that goes to
# all of them being right.
MAX_QUESTIONS, FAILURE_SHARE = 64, 0.01
# Outcomes, in units of B log(1 / beta) / delta: with fewer than 1 nothing passes, and
# with more what passes is nearer to delta. More than the least ones have so many cells.
_TIMES, _MORE_TIMES, _CELLS = 3.0, 12.0, 2**28
_LAMBDAS = 2.0 ** -np.arange(12)  # Bets, over 1 / B.
_FEWEST, MAX_OUTCOMES = 2**15, 2**21
_MAX_COUNTED = 2**18  # So many where other bounds will do.
_PILOT, _PILOTS = 2**12, 4
_STEP = 1 / 512  # Ratio of neighbouring points of the grid of epsilons, less 1.
# Steps of 1 to which sizes of samples and log(a - 1) are rounded, for the same
# outcomes.
_SIZES, _PROPOSALS = 64, 512
_REMOVED, _ADDED = 'removed', 'added'
_LEAST_EPSILON = 1e-3


class Tails(NamedTuple):
  """Drawn outcomes of one direction, for epsilons from a least one on."""

  losses: np.ndarray  # Above the least epsilon, falling.
  log_weights: np.ndarray  # Logarithms of how much each counts.
  size: int  # Size of the sample.
  log_bound: float  # Logarithm of what one outcome adds at most.

  def outcomes(self, epsilon: float, log_unit: float = 0.0) -> np.ndarray:
    """Those of what is averaged that are not 0."""
    above = int(np.searchsorted(-self.losses, -epsilon))
    logs = np.log(-np.expm1(epsilon - self.losses[:above]))
    logs += self.log_weights[:above] - log_unit
    with np.errstate(over='ignore'):  # Infinite if it is more than float64 holds.
      return np.asarray(np.exp(logs))

  def delta(self, epsilon: float) -> float:
    """The estimate; infinite if it is more than float64 holds."""
    return float(self.outcomes(epsilon).sum()) / self.size

  def passes(self, epsilon: float, delta: float, log_beta: float) -> bool:
    """Whether the mean is below `delta`; wrongly with probability exp(log_beta)."""
    # Rounding moves an outcome above its bound by a hair.
    log_bound = self.log_bound + 1e-9
    log_mean = math.log(delta) - log_bound
    if log_mean >= 0:
      return True
    mean = math.exp(log_mean)
    if mean == 0:  # Of a bound beyond float64: it would take as many outcomes.
      return False
    outcomes = self.outcomes(epsilon, log_bound)
    logs = np.array(
      [
        float(np.log1p(each * (mean - outcomes)).sum())
        + (self.size - len(outcomes)) * math.log1p(each * mean)
        for each in _LAMBDAS
      ]
    )
    return bool(special.logsumexp(logs) - math.log(len(logs)) >= -log_beta)


def best_proposal(mixture: Mixture, removed: bool, epsilon: float) -> Proposal:
  """The proposal with the least bound on what an outcome adds."""

  def by_log(log: float) -> Proposal:
    return stretched(mixture, 1 + math.exp(log), removed)

  found = optimize.minimize_scalar(
    lambda log: by_log(log).log_bound(epsilon),
    bounds=(-7.0, 5.0),
    method='bounded',
    options={'xatol': 1e-3},
  )
  best = by_log(round(float(found.x) * _PROPOSALS) / _PROPOSALS)
  if not removed:
    return best
  other = squared(mixture, doubled=isinstance(mixture, AllocationMixture))
  return other if other.log_bound(epsilon) < best.log_bound(epsilon) else best


def draw(
  mixture: Mixture,
  rng: np.random.Generator,
  size: int,
  proposal: Proposal,
  epsilon: float,
) -> Tails:
  """Outcomes for the deltas of epsilons from a least one on, drawn in batches."""
  all_losses, all_weights = [], []
  for part in _batches(mixture, size):
    inner = proposal.draw(rng, part)
    log_ratios = mixture.log_ratios(inner)
    losses: np.ndarray = log_ratios if proposal.removed else -log_ratios
    some = losses > epsilon
    drawn = proposal.log_densities(inner[some], log_ratios[some])
    all_losses.append(losses[some])
    # The density of P, or of Q, over that of what was drawn.
    all_weights.append(log_ratios[some] - drawn if proposal.removed else -drawn)
  losses, log_weights = np.concatenate(all_losses), np.concatenate(all_weights)
  order = np.argsort(-losses)
  bound = proposal.log_bound(epsilon)
  return Tails(losses[order], log_weights[order], size, bound)


class _Search(NamedTuple):
  """Which epsilons pass at a delta, wrongly with probability exp(log_beta)."""

  mixture: Mixture
  rng: np.random.Generator
  delta: float
  log_beta: float

  def removed(self, least: float, certain: float) -> float:
    """The smallest epsilon from `least` on that passes, of P told from Q."""
    about = max(least, _about(self.mixture, self.rng, self.delta, certain))
    # What passes with as many outcomes as there may be.
    least = self._reached(True, min(about, certain), certain)
    return self._first_passing(True, least, certain)

  def added(self, least: float, certain: float) -> float:
    """The same for Q told from P: by bets, by a normal tail, or by both."""
    if least >= certain:
      return certain
    if self.log_excess(False, least, _MAX_COUNTED) <= 0:
      return self._first_passing(False, least, certain)
    # Half of what may be wrong for each.
    half = self._replace(log_beta=self.log_beta - math.log(2))
    bound = half.normal_tail(least)
    known = certain if bound is None else bound.epsilon(math.log(self.delta), certain)
    known = min(max(known, least), certain)
    if known <= least * (1 + _STEP):
      return known
    start = half._reached(False, least, known)
    return half._first_passing(False, start, known)

  def delta_added(self, epsilon: float) -> float:
    """A bound on the delta of Q told from P, no matter how far below this one."""
    if self.log_excess(False, epsilon, _MAX_COUNTED) > 0:
      bound = self.normal_tail(epsilon)
      if bound is not None:
        return math.exp(bound.log_delta(epsilon))
    tails = self.draw(best_proposal(self.mixture, False, epsilon), epsilon)
    return _least_delta(tails, epsilon, self.log_beta)

  def _first_passing(self, removed: bool, least: float, certain: float) -> float:
    """By bets, the first of a grid of epsilons that passes as all above it do."""
    if least >= certain:
      return certain
    proposal = best_proposal(self.mixture, removed, least)
    tails = self.draw(proposal, least)
    return _least(
      _grid(least, certain),
      lambda each: tails.passes(each, self.delta, self.log_beta),
    )

  def draw(self, proposal: Proposal, epsilon: float) -> Tails:
    """As many outcomes as can pass."""
    log_bound = proposal.log_bound(epsilon)
    size = _size(log_bound, self.delta, self.log_beta, self.mixture.cells)
    return draw(self.mixture, self.rng, size, proposal, epsilon)

  def normal_tail(self, epsilon: float) -> Optional[NormalTail]:
    """A bound on losses of Q, of so many outcomes as make delta small at epsilon."""
    pilot, size = losses_of_absent(self.mixture, self.rng, _PILOT), _FEWEST
    log_delta, at = counting_points(pilot, size, epsilon, self.log_beta)
    while size < _MAX_COUNTED and log_delta > math.log(self.delta) - 1:
      size *= 2
      log_delta, at = counting_points(pilot, size, epsilon, self.log_beta)
    if at is None:
      return None
    losses = losses_of_absent(self.mixture, self.rng, size)
    beyond = int((losses >= at[0]).sum()), int((losses >= at[1]).sum())
    return normal_tail(beyond, size, at, self.log_beta)

  def log_excess(
    self, removed: bool, epsilon: float, most: int = MAX_OUTCOMES
  ) -> float:
    """Logarithm of the outcomes that bets need, over as many as there may be."""
    proposal = best_proposal(self.mixture, removed, epsilon)
    bound = proposal.log_bound(epsilon)
    return math.log(-_TIMES * self.log_beta / (most * self.delta)) + bound

  def _reached(self, removed: bool, epsilon: float, certain: float) -> float:
    """An epsilon, or a larger one that few enough outcomes can pass at."""
    excess = functools.partial(self.log_excess, removed)
    if excess(epsilon) <= 0:
      return epsilon
    if excess(certain) >= 0:
      return certain
    found = float(optimize.brentq(excess, epsilon, certain, rtol=1e-3))
    while excess(found) > 0 and found < certain:  # It may end on either side.
      found *= 1 + _STEP
    return min(found, certain)


class MonteCarloAccountant(accountant.Accountant):
  """Accountant of mixtures of Gaussians that nothing composes with."""

  name = 'monte_carlo'
  rank = 3  # Asked where nothing else reads the event.
  tolerance = 4e-3
  is_numerical = True
  is_drawn = True
  max_questions = MAX_QUESTIONS
  failure_share = FAILURE_SHARE / MAX_QUESTIONS  # Of both directions together.
  reads = 'events of rounds that clients draw in advance, one alone,'

  def _can_read(self, part: dp_accounting.DpEvent) -> bool:
    known = isinstance(part, events.MixtureDpEvent) and part.strategy is not None
    return known or accountant.is_sampled(part, events.AllocatedDpEvent)

  def _maybe_compose(
    self, event: dp_accounting.DpEvent, count: int, do_compose: bool
  ) -> Optional[Any]:
    error = super()._maybe_compose(event, count, False)
    if error is None:
      # Whether an event is supported is asked with a count of 0.
      once = dp_accounting.SelfComposedDpEvent(event, max(count, 1))
      together = dp_accounting.ComposedDpEvent([*self._composed, once])
      read = [
        (part, times)
        for part, times in accountant.components(together, self.neighboring_relation)
        if not isinstance(part, events.EpsilonDeltaDpEvent)
      ]
      if (len(read) > 1 or any(n > 1 for _, n in read)) and not (
        accountant.is_non_private(read)
      ):
        return self.CompositionErrorDetails(event, f'Only {self.reads} are supported.')
    return error or super()._maybe_compose(event, count, do_compose)

  def _epsilon(self, found: list[accountant.Component], delta: float) -> float:
    return _epsilon_of(found[0][0], delta, self.neighboring_relation)

  def _delta(self, found: list[accountant.Component], epsilon: float) -> float:
    return _delta_of(found[0][0], epsilon, self.neighboring_relation)

  @staticmethod
  def estimate(event: dp_accounting.DpEvent, delta: float) -> float:
    """By a few thousand outcomes, too small as often as too large."""
    relation = Relation.ADD_OR_REMOVE_ONE
    found, _ = MonteCarloAccountant(relation).compose(event)._found()
    if not found or accountant.is_non_private(found):
      return math.inf if found else 0.0
    one: Any = found[0][0]
    certain = _bound(one, relation).get_epsilon(delta)
    if not math.isfinite(certain) or certain <= _LEAST_EPSILON:
      return certain
    rng = np.random.default_rng(_seed(one, delta, 'about'))
    return _about(_mixture(one), rng, delta, certain)


# An event that is read: a mixture, or the one of them that composes.
_Read = Union[events.MixtureDpEvent, events.AllocatedDpEvent]


def _bound(event: _Read, relation: Relation) -> pld.PldAccountant:
  """What is certain: without sampling, or by the deterministic bound."""
  read = getattr(event, 'bound', event)
  return pld.PldAccountant(relation).compose(read)


# A report asks the same several times.
@functools.lru_cache(maxsize=256)
def _epsilon_of(event: _Read, target_delta: float, relation: Relation) -> float:
  known = _bound(event, relation)
  delta = target_delta * (1 - FAILURE_SHARE)
  certain = float(known.get_epsilon(delta))
  if not math.isfinite(certain) or certain <= _LEAST_EPSILON:
    return certain
  mixture, log_beta = _mixture(event), _log_beta(target_delta)
  least = _LEAST_EPSILON
  for side, find in ((_REMOVED, _Search.removed), (_ADDED, _Search.added)):
    rng = np.random.default_rng(_seed(event, target_delta, side))
    least = find(_Search(mixture, rng, delta, log_beta), least, certain)
  if least >= certain:  # No outcome has a part in it.
    return float(known.get_epsilon(target_delta))
  return least


@functools.lru_cache(maxsize=256)
def _delta_of(event: _Read, target_epsilon: float, relation: Relation) -> float:
  certain = _bound(event, relation).get_delta(target_epsilon)
  mixture = _mixture(event)
  rng = np.random.default_rng(_seed(event, target_epsilon, _REMOVED))
  proposal = best_proposal(mixture, True, target_epsilon)
  pilot = draw(mixture, rng, _PILOT, proposal, target_epsilon)
  least = math.exp(min(pilot.log_bound - math.log(MAX_OUTCOMES), 0.0))
  estimate = max(pilot.delta(target_epsilon), least)
  aim = min(estimate, 0.5)
  search = _Search(mixture, rng, aim, _log_beta(aim))
  tails = search.draw(proposal, target_epsilon)
  removed = _least_delta(tails, target_epsilon, search.log_beta)
  aim = min(max(removed, 1e-30), 0.5)  # Less than that is as good as nothing.
  rng = np.random.default_rng(_seed(event, target_epsilon, _ADDED))
  added = _Search(mixture, rng, aim, _log_beta(aim)).delta_added(target_epsilon)
  failure = FAILURE_SHARE * max(estimate, removed)
  return min(certain, max(removed, added) + failure, 1.0)


def _log_beta(delta: float) -> float:
  return math.log(delta) + math.log(FAILURE_SHARE / (2 * MAX_QUESTIONS))


def _size(log_bound: float, delta: float, log_beta: float, cells: int) -> int:
  unit = math.exp(min(log_bound, 0.0)) * -log_beta / delta
  wanted = max(_TIMES * unit, min(_MORE_TIMES * unit, _CELLS / cells), _FEWEST)
  rounded = 2 ** (math.ceil(math.log2(wanted) * _SIZES) / _SIZES)
  return min(math.ceil(rounded), MAX_OUTCOMES)


def _least_delta(tails: Tails, epsilon: float, log_beta: float) -> float:
  """About the least one that passes; larger ones do as well."""
  low, high = math.log(max(tails.delta(epsilon), 1e-300)), 0.0
  while high - low > _STEP:
    middle = (low + high) / 2
    if tails.passes(epsilon, math.exp(middle), log_beta):
      high = middle
    else:
      low = middle
  return math.exp(high)


def _mixture(event: _Read) -> Mixture:
  if isinstance(event, events.AllocatedDpEvent):
    one: Any = event.event
    return AllocationMixture(event.num_steps, 1, one.noise_multiplier, event.num_places)
  assert event.strategy is not None  # Or it is not read.
  if isinstance(event, events.RandomAllocationDpEvent):
    # The strategy is the identity.
    return AllocationMixture(
      event.strategy.num_rounds, event.rounds_of_a_client, event.noise_multiplier
    )
  if isinstance(event, events.BallsInBinsDpEvent):
    return BallsInBinsMixture(event.strategy, event.num_bins, event.noise_multiplier)
  assert isinstance(event, events.BMinSepDpEvent)
  return BMinSepMixture(
    event.strategy,
    event.min_separation,
    event.sampling_probability,
    event.noise_multiplier,
  )


def _seed(event: Any, at: float, side: str) -> int:
  # Not its bound, in which there are inner products.
  about = {
    field.name: getattr(event, field.name)
    for field in dataclasses.fields(event)
    if field.name not in ('strategy', 'bound')
  }
  asked = f'{type(event).__name__} {about} {float(at)!r} {side}'
  return int.from_bytes(hashlib.sha256(asked.encode()).digest()[:16], 'big')


def _about(
  mixture: Mixture, rng: np.random.Generator, delta: float, certain: float
) -> float:
  """An epsilon whose delta is about that, as a few outcomes have it."""
  epsilon, grid = certain, _grid(_LEAST_EPSILON, certain)
  for _ in range(_PILOTS):
    proposal = best_proposal(mixture, True, epsilon)
    pilot = draw(mixture, rng, _PILOT, proposal, _LEAST_EPSILON)
    passing = _least(grid, lambda each: pilot.delta(each) <= delta)  # noqa: B023
    near = abs(passing - epsilon) <= 0.01 * epsilon
    epsilon = passing
    if near:
      break
  return epsilon


def _grid(least: float, largest: float) -> np.ndarray:
  """Epsilons from one to another, in equal ratios."""
  steps = max(math.ceil(math.log(largest / least) / math.log1p(_STEP)), 1)
  return np.geomspace(least, largest, steps + 1)


def _least(grid: np.ndarray, passes: Callable[[float], bool]) -> float:
  """The least point that passes, as all above it do; the last one is certain."""
  low, high = 0, len(grid) - 1
  while low < high:
    middle = (low + high) // 2
    if passes(float(grid[middle])):
      high = middle
    else:
      low = middle + 1
  return float(grid[high])
