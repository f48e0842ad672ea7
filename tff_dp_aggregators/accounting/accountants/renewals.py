"""The mixture of b-min-sep sampling: sets of rounds that are b or more apart.

Columns of C that are b apart share no row, so that log-likelihoods of the rounds of a
set add up, and the likelihood ratio is found by recursion over rounds
(arXiv:2602.09338). `renewal_pairs` draws two sets that overlap, for `mixtures.Squared`.
"""

import functools
import math
from typing import Any

import numpy as np
from scipy import sparse
from scipy import special

from tff_dp_aggregators import strategies
from tff_dp_aggregators.accounting.accountants import bands
from tff_dp_aggregators.accounting.accountants import mixtures
from tff_dp_aggregators.accounting.accountants import renewal_pairs

# Likelihood ratios with larger logarithms are not held as such.
_MAX_WEIGHT = 640.0
# The least width of a block of C.
_BLOCK = 64


def inner_products(strategy: strategies.Strategy) -> np.ndarray:
  """Inner products of columns of |C| by their distance; [num_rounds, num_bands].

  Args:
    strategy: Of a square C with `num_bands`.

  Returns:
    At t and d, that of columns t and t - d; 0 where there is none.
  """
  matrix = np.abs(strategy.materialize())
  rounds, num_bands = len(matrix), _bands(strategy)
  found = np.zeros((rounds, num_bands))
  width = max(num_bands, _BLOCK)
  for start in range(0, rounds, width):
    first = max(start - num_bands + 1, 0)
    rows = slice(start, min(start + width + num_bands - 1, rounds))
    products = (
      matrix[rows, start : start + width].T @ matrix[rows, first : start + width]
    )
    t, u = np.indices(products.shape)
    t, lag = t + start, t + start - (u + first)
    near = (lag >= 0) & (lag < num_bands)
    found[t[near], lag[near]] = products[near]
  return found


def _bands(strategy: strategies.Strategy) -> int:
  num_bands: Any = getattr(strategy, 'num_bands', strategy.num_rounds)
  return int(min(num_bands, strategy.num_rounds))


class Renewals(mixtures.Mixture):
  """Sets of rounds that are b or more apart, in each free round with probability p.

  A client that was in a round is free again b rounds later. It is free in the first
  one with probability 1 / (1 + (b - 1) p), and else first in one of the b - 1 that
  follow, each alike: so every round has the same expected number of clients.
  """

  def __init__(
    self,
    strategy: strategies.Strategy,
    min_separation: int,
    probability: float,
    noise: float,
  ):
    """Initializes the pair.

    Args:
      strategy: Its strategy matrix C, of at most `min_separation` bands.
      min_separation: The b.
      probability: The p, in (0, 1].
      noise: Standard deviation of z over the clip norm.

    Raises:
      TypeError: If the separation is not whole.
      ValueError: If rounds so far apart share noise, a number is out of range, or
        rounds and separation are too large for memory.
    """
    bands.check_break(min_separation, probability)
    rounds, free = strategy.num_rounds, min(min_separation, strategy.num_rounds + 1)
    # C three times; its inner products and their indices; `renewal_pairs`.
    numbers = 3 * rounds**2 + 12 * rounds * _bands(strategy)
    numbers += 2 * (rounds + free) * free + 6 * free**2
    mixtures.check_size(numbers, rounds, free, math.inf)
    bands.check_groups(strategy, min_separation)
    self._lags = inner_products(strategy) / noise**2
    self._norms = self._lags[:, 0].copy()
    self._blocks = _blocks(np.abs(strategy.materialize()) / noise, _bands(strategy))
    self._products = _symmetric(self._lags)
    self._probability = probability
    # Who is free only after the last round is never in one: all of that is the last.
    b, p = min_separation, probability
    first = np.full(min(b, rounds + 1), p)
    first[0] = 1.0
    first[rounds:] *= b - rounds
    self._first = first / (1 + (b - 1) * p)
    self.cells = rounds

  @functools.cached_property
  def _pairs(self) -> renewal_pairs.Pairs:
    return renewal_pairs.Pairs(self._lags, self._first, self._probability)

  def log_second_moment(self) -> float:
    """By recursion over rounds, for two sets at once."""
    return self._pairs.log_total

  def _suffixes(self, log_weights: np.ndarray) -> np.ndarray:
    """Logarithms of sums over all sets from each round on, for a client free in it.

    Args:
      log_weights: Of the rounds, first axis; in others, each by itself.

    Returns:
      Of n + b rounds.
    """
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
    """By recursion over rounds, from the last one; in logarithms where it has to."""
    size, rounds = inner.shape
    if not size:
      return np.zeros(0)
    b, p = len(self._first), self._probability
    norms = (stretch**2 - tilt) * self._norms / 2
    # Suffixes are at least so much of each of the b after them.
    skip = math.log1p(-p) if p < 1 else -math.inf
    if (b - 1) * skip < -_MAX_WEIGHT / 2:
      return self._by_logarithms(inner, stretch, norms)
    # Of the next b suffixes, in a circle, over the common factor exp(scale).
    sums = np.ones((b, size))
    scale, last, weight = np.zeros(size), np.ones(size), np.empty(size)
    above = below = 0.0  # Logarithms of bounds on the sums, which begin with 1.
    for t in range(rounds - 1, -1, -1):
      np.multiply(inner[:, t], stretch, out=weight)
      weight -= norms[t]
      grows, shrinks = max(weight.max(), 0.0), min(max(skip, weight.min()), 0.0)
      if max(grows, -weight.min()) > _MAX_WEIGHT:
        return self._by_logarithms(inner, stretch, norms)
      if max(above + grows, -below - shrinks) > _MAX_WEIGHT:
        common = sums.max(axis=0)
        sums /= common
        last /= common
        scale += np.log(common)
        above = below = 0.0
      above, below = above + grows, below + shrinks
      # In place of the suffix of round t + b comes that of round t.
      np.exp(weight, out=weight)
      weight *= sums[t % b]
      weight *= p
      last *= 1 - p
      last += weight
      sums[t % b] = last
    return np.log(self._first @ sums) + scale

  def _by_logarithms(
    self, inner: np.ndarray, stretch: float, norms: np.ndarray
  ) -> np.ndarray:
    return self._sum(self._suffixes(stretch * inner.T - norms[:, None]))

  def _outcomes(
    self, noise: np.ndarray, taken: sparse.csc_matrix, stretch: float
  ) -> np.ndarray:
    """Inner products of noise and of columns that were taken with all columns.

    Args:
      noise: Shape [num_rounds, size].
      taken: How often each column is in an outcome, of the same shape.
      stretch: What the columns are multiplied with.
    """
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
  """Groups of columns of a banded matrix, the rows that they are in, and these parts.

  Args:
    columns: Shape [num_rounds, num_rounds].
    num_bands: From the diagonal down.

  Returns:
    The parts are transposed.
  """
  rounds, width = len(columns), max(num_bands, _BLOCK)
  made = []
  for start in range(0, rounds, width):
    some = slice(start, min(start + width, rounds))
    rows = slice(start, min(start + width + num_bands - 1, rounds))
    made.append((some, rows, np.ascontiguousarray(columns[rows, some].T)))
  return made


def _symmetric(lags: np.ndarray) -> sparse.csr_matrix:
  """All inner products of columns, of those by distance."""
  rounds, num_bands = lags.shape
  t = np.repeat(np.arange(rounds), num_bands)
  u = t - np.tile(np.arange(num_bands), rounds)
  values, below = lags.ravel(), u < t
  values, t, u, below = (each[u >= 0] for each in (values, t, u, below))
  rows, columns = np.append(t, u[below]), np.append(u, t[below])
  return sparse.csr_matrix(
    (np.append(values, values[below]), (rows, columns)), (rounds, rounds)
  )
