"""Mixtures of Gaussians that stand for a client whose rounds are drawn at random.

P draws a set of rounds S and is N(m_S, I) there, with m_S the sum of the columns of
|C| / sigma in S; Q is N(0, I). `accounting.schemas.allocation` says why this pair
dominates. The likelihood ratio of an outcome y,

    L(y) = E_S exp(<m_S, y> - |m_S|^2 / 2),

is a sum over too many sets to enumerate, but not to compute: over bins directly, over
sets that are b or more apart by recursion over rounds (arXiv:2602.09338).

**Importance.** Deltas are rare events, so outcomes are drawn from a mixture that makes
them frequent: its means are stretched to w m_S, and sets are drawn in proportion to
their probability times exp(c |m_S|^2 / 2). Let M(c) be the mean of that. The likelihood
ratio of what is drawn to Q is

    L_w(y) = E_S exp(w <m_S, y> - (w^2 - c) |m_S|^2 / 2) / M(c),

and the mean is taken of what H_{e^epsilon} is made of, over L_w. For a > 1 that is
bounded, by Hoelder's inequality:

* for H(P || Q) with w = a, c = a - 1, as L_w >= L^a / M(c)^a;
* for H(Q || P) with w = 1 - a, c = -a, as L_w >= L^(1 - a) M(c)^(a - 1);

and other c have larger bounds. Over all outcomes, the largest is

    M(a - 1)^a  or  M(-a)^(1 - a),  times  (a - 1)^(a - 1) / a^a exp(-(a - 1) epsilon).

(For sets of equal norms both are jax_privacy's bound; in general they are smaller.)
"""

import abc
import math
from typing import NamedTuple

import numpy as np
from scipy import sparse
from scipy import special

from tff_dp_aggregators import strategies

# Cells of a batch of outcomes.
_BATCH = 2**22
# Likelihood ratios of a round with larger logarithms are not held as such.
_MAX_WEIGHT = 640.0


def bins_of(strategy: strategies.Strategy, num_bins: int) -> np.ndarray:
  """What the rounds of each bin add: sums of columns of |C|.

  Args:
    strategy: Its strategy matrix C.
    num_bins: Bins, b; bin j has the rounds j, j + b, ...

  Returns:
    Shape [num_rounds, min(num_bins, num_rounds)].
  """
  matrix = np.abs(strategy.materialize())
  added = np.zeros((len(matrix), min(num_bins, matrix.shape[1])))
  for first in range(0, matrix.shape[1], num_bins):
    columns = matrix[:, first : first + num_bins]
    added[:, : columns.shape[1]] += columns
  return added


class Proposal(NamedTuple):
  """From where outcomes are drawn, and what they say.

  Attributes:
    a: How far from Q, above 1.
    removed: Whether P is told from Q, or Q from P.
  """

  a: float
  removed: bool

  @property
  def stretch(self) -> float:
    """The w."""
    return self.a if self.removed else 1 - self.a

  @property
  def tilt(self) -> float:
    """The c."""
    return self.a - 1 if self.removed else -self.a


# Stretch and tilt of P.
_ITSELF = (1.0, 0.0)


class Mixture(abc.ABC):
  """A pair (P, Q), from which outcomes can be drawn.

  Attributes:
    cells: Numbers that one outcome takes.
  """

  cells: int

  @abc.abstractmethod
  def log_moment(self, tilt: float) -> float:
    """The logarithm of M(c) for a tilt c."""

  @abc.abstractmethod
  def _draw(
    self, rng: np.random.Generator, size: int, stretch: float, tilt: float
  ) -> np.ndarray:
    """Inner products of columns, or of their sums, with outcomes; [size, columns].

    Args:
      rng: Whose numbers decide.
      size: How many outcomes.
      stretch: The w.
      tilt: The c.
    """

  @abc.abstractmethod
  def _ratios(self, inner: np.ndarray, stretch: float, tilt: float) -> np.ndarray:
    """Logarithms of M(c) L_w of outcomes; [size]."""

  def log_bound(self, proposal: Proposal, epsilon: float) -> float:
    """Logarithm of what one outcome adds to a delta at most.

    Args:
      proposal: From where it is drawn.
      epsilon: Of the delta.
    """
    a = proposal.a
    power = special.xlogy(a - 1, a - 1) - special.xlogy(a, a)
    times = a if proposal.removed else 1 - a
    moment = times * self.log_moment(proposal.tilt)
    return float(moment + power - (a - 1) * epsilon)

  def losses(
    self, rng: np.random.Generator, size: int, proposal: Proposal, least: float
  ) -> tuple[np.ndarray, np.ndarray]:
    """Draws outcomes of a proposal, in batches that fit into memory.

    Args:
      rng: Whose numbers decide.
      size: How many.
      proposal: From where.
      least: Losses that are not above it are left out.

    Returns:
      Losses, log L of P or -log L of Q, and the logarithms of their weights: the
      densities of P, or of Q, over that of what was drawn.
    """
    batch = max(1, _BATCH // self.cells)
    stretch, tilt = proposal.stretch, proposal.tilt
    log_moment = self.log_moment(tilt)
    losses, weights = [], []
    for start in range(0, size, batch):
      inner = self._draw(rng, min(batch, size - start), stretch, tilt)
      log_ratios = self._ratios(inner, *_ITSELF)
      own: np.ndarray = log_ratios if proposal.removed else -log_ratios
      some = own > least
      drawn = self._ratios(inner[some], stretch, tilt) - log_moment
      losses.append(own[some])
      weights.append(log_ratios[some] - drawn if proposal.removed else -drawn)
    return np.concatenate(losses), np.concatenate(weights)


class Bins(Mixture):
  """One of b sets of rounds, each with the same probability."""

  def __init__(self, strategy: strategies.Strategy, num_bins: int, noise: float):
    """Initializes the pair.

    Args:
      strategy: Its strategy matrix C.
      num_bins: Bins, b.
      noise: Standard deviation of z over the clip norm.
    """
    added = bins_of(strategy, num_bins) / noise
    self._products = added.T @ added
    self._norms = self._products.diagonal().copy()
    values, vectors = np.linalg.eigh(self._products)
    self._factor = (vectors * np.sqrt(np.maximum(values, 0.0))).T
    self._empty = num_bins - len(self._norms)
    self._num_bins = num_bins
    self.cells = len(self._norms)

  def log_moment(self, tilt: float) -> float:
    """The mean over all bins."""
    return self._mean_of(tilt * self._norms / 2)

  def _mean_of(self, logs: np.ndarray) -> float:
    """Logarithm of the mean of exponentials; those of empty bins are 1."""
    total = float(special.logsumexp(logs))
    if self._empty:
      total = float(np.logaddexp(total, math.log(self._empty)))
    return total - math.log(self._num_bins)

  def _ratios(self, inner: np.ndarray, stretch: float, tilt: float) -> np.ndarray:
    if not len(inner):
      return np.zeros(0)
    exponents = stretch * inner - (stretch**2 - tilt) * self._norms / 2
    largest = exponents.max(axis=1)
    if self._empty:
      largest = np.maximum(largest, 0.0)
    exponents -= largest[:, None]
    total = np.exp(exponents, out=exponents).sum(axis=1)
    if self._empty:
      total += self._empty * np.exp(-largest)
    return np.log(total) + largest - math.log(self._num_bins)

  def _draw(
    self, rng: np.random.Generator, size: int, stretch: float, tilt: float
  ) -> np.ndarray:
    """Draws bins, and the outcomes' inner products with all of them."""
    log_moment = self.log_moment(tilt)
    weights = np.exp(tilt * self._norms / 2 - log_moment)
    rest = math.exp(math.log(self._empty) - log_moment) if self._empty else 0.0
    weights = np.append(weights, rest)
    chosen = rng.choice(len(weights), size=size, p=weights / weights.sum())
    inner = rng.standard_normal((size, self.cells)) @ self._factor
    some = chosen < self.cells
    inner[some] += stretch * self._products[chosen[some]]
    return inner


class Renewals(Mixture):
  """Sets of rounds that are b or more apart, in each free round with probability p.

  A client that was in a round is free again b rounds later. It is free in the first
  one with probability 1 / (1 + (b - 1) p), and else first in one of the b - 1 that
  follow, each alike: so every round has the same expected number of clients. Columns of
  C that are b apart share no row, so that log-likelihoods add up.
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
    """
    self._columns = sparse.csc_matrix(np.abs(strategy.materialize()) / noise)
    self._rows = self._columns.T.tocsr()
    squares = self._columns.multiply(self._columns)
    self._norms = np.asarray(squares.sum(axis=0)).ravel()
    self._probability = probability
    # Who is free only after the last round is never in one: all of that is the last.
    b, p, last = min_separation, probability, strategy.num_rounds
    first = np.full(min(b, last + 1), p)
    first[0] = 1.0
    first[last:] *= b - last
    self._first = first / (1 + (b - 1) * p)
    self.cells = 4 * strategy.num_rounds

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

  def _ratios(self, inner: np.ndarray, stretch: float, tilt: float) -> np.ndarray:
    """By recursion over rounds, from the last one; in logarithms where it has to."""
    size, rounds = inner.shape
    if not size:
      return np.zeros(0)
    b, p = len(self._first), self._probability
    norms = (stretch**2 - tilt) * self._norms[:, None] / 2
    weights = stretch * inner.T - norms
    most = float(np.abs(weights).max())
    if most > _MAX_WEIGHT:
      return self._sum(self._suffixes(weights))
    every = 8 if most * 8 <= _MAX_WEIGHT else 1
    np.exp(weights, out=weights)
    # Of the next b suffixes, in a circle, over the common factor exp(scale).
    sums = np.ones((b, size))
    scale, last = np.zeros(size), np.ones(size)
    for t in range(rounds - 1, -1, -1):
      # In place of the suffix of round t + b comes that of round t.
      last = (1 - p) * last + p * weights[t] * sums[t % b]
      sums[t % b] = last
      if t % every == 0:  # Before numbers get too large.
        largest = sums.max(axis=0)
        sums /= largest
        last = last / largest
        scale += np.log(largest)
    return np.log(self._first @ sums) + scale

  def _draw(
    self, rng: np.random.Generator, size: int, stretch: float, tilt: float
  ) -> np.ndarray:
    """Draws sets, then outcomes."""
    outcome = rng.standard_normal((len(self._norms), size))
    rounds = self._rounds(rng, size, tilt).astype(np.float64)
    outcome += stretch * (self._columns @ rounds)
    inner: np.ndarray = self._rows @ outcome
    return inner.T
