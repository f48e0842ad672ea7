"""Mixtures of Gaussians that stand for a client whose rounds are drawn at random.

P draws a set of rounds S and is N(m_S, I) there, with m_S the sum of the columns of
|C| / sigma in S; Q is N(0, I). `accounting.schemas.allocation` says why this pair
dominates. The likelihood ratio of an outcome y,

    L(y) = E_S exp(<m_S, y> - |m_S|^2 / 2),

is a sum over too many sets to enumerate, but not to compute: over bins directly, over
sets that are b or more apart by recursion over rounds (`renewals`).

**Importance.** Deltas are rare events, so outcomes are drawn from a distribution that
makes them frequent, and what H_{e^epsilon} is made of is taken over its density. There
are two kinds, both with a bound on what an outcome adds, for any a > 1:

* `Stretched`: means are stretched to w m_S, and sets are drawn in proportion to their
  probability times exp(c |m_S|^2 / 2). Let M(c) be the mean of that. The density over Q
  is E_S exp(w <m_S, y> - (w^2 - c) |m_S|^2 / 2) / M(c), which is bounded by powers of L
  by Hoelder's inequality: for H(P || Q) with w = a, c = a - 1, from below by
  L^a / M(c)^a; for H(Q || P) with w = 1 - a, c = -a, by L^(1 - a) M(c)^(a - 1). Other c
  have larger bounds. The bound is M(a - 1)^a, or M(-a)^(1 - a), times

      (a - 1)^(a - 1) / a^a exp(-(a - 1) epsilon).

  (For sets of equal norms both are jax_privacy's; in general they are smaller.)
* `Squared`: the density over Q is L^2 / E_Q L^2, for H(P || Q). As L^2 is a mean over
  two sets that are drawn independently, S and S', it is a mixture as well: of means
  m_S + m_S', in proportion to their probabilities times exp(<m_S, m_S'>). The bound is
  E_Q L^2 exp(-epsilon) / 4. That is smaller where it matters that sets are not known:
  M has the norms of sets alone, E_Q L^2 how much two of them overlap.
"""

import abc
import functools
import math
from typing import NamedTuple, Union

import numpy as np
from scipy import special

from tff_dp_aggregators import strategies
from tff_dp_aggregators.accounting.accountants import bands

# Numbers that are held at once at most, 4 GiB of them: some 6,000 rounds and places.
MAX_NUMBERS = 2**29
# With more, an outcome takes too long.
MAX_BINS = 4096
# Cells of a batch of outcomes.
_BATCH = 2**22


def check_size(numbers: int, num_rounds: int, places: int, most: float) -> None:
  """Refuses what would take all memory, or hours, before it does.

  Args:
    numbers: That are to be held at once.
    num_rounds: For the message.
    places: Bins or rounds of a break that are looked at.
    most: Of the places.

  Raises:
    ValueError: If the numbers are more than `MAX_NUMBERS`, or the places than `most`.
  """
  if numbers > MAX_NUMBERS or places > most:
    raise ValueError(
      f'accountant=monte_carlo is for up to {MAX_BINS} bins and {MAX_NUMBERS:.3g} '
      f'numbers held at once; num_rounds={num_rounds} with {places} bins, or rounds of '
      f'a break, would take {numbers:.3g}. Take accountant=pld, which has a bound '
      'without drawn outcomes for any number of rounds.'
    )


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


class Stretched(NamedTuple):
  """Outcomes of means that are stretched, away from Q or to its other side.

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

  def log_bound(self, mixture: 'Mixture', epsilon: float) -> float:
    """Logarithm of what one outcome adds to a delta at most.

    Args:
      mixture: The pair.
      epsilon: Of the delta.
    """
    a = self.a
    power = special.xlogy(a - 1, a - 1) - special.xlogy(a, a)
    times = a if self.removed else 1 - a
    moment = times * mixture.log_moment(self.tilt)
    return float(moment + power - (a - 1) * epsilon)

  def draw(self, mixture: 'Mixture', rng: np.random.Generator, size: int) -> np.ndarray:
    """Outcomes, as `Mixture` has them.

    Args:
      mixture: The pair.
      rng: Whose numbers decide.
      size: How many.
    """
    return mixture.draw(rng, size, self.stretch, self.tilt)

  def log_densities(
    self, mixture: 'Mixture', inner: np.ndarray, log_ratios: np.ndarray
  ) -> np.ndarray:
    """Logarithms of the densities over Q, of the distribution that is drawn from.

    Args:
      mixture: The pair.
      inner: Outcomes.
      log_ratios: Their log L.
    """
    del log_ratios
    total = mixture.log_ratios(inner, self.stretch, self.tilt)
    return total - mixture.log_moment(self.tilt)


class Squared(NamedTuple):
  """Outcomes in proportion to the square of their likelihood ratio, to tell P from Q.

  Attributes:
    removed: Whether P is told from Q; always.
  """

  removed: bool = True

  def log_bound(self, mixture: 'Mixture', epsilon: float) -> float:
    """Logarithm of what one outcome adds to a delta at most.

    Args:
      mixture: The pair.
      epsilon: Of the delta.
    """
    return mixture.log_second_moment() - math.log(4) - epsilon

  def draw(self, mixture: 'Mixture', rng: np.random.Generator, size: int) -> np.ndarray:
    """Outcomes, as `Mixture` has them.

    Args:
      mixture: The pair.
      rng: Whose numbers decide.
      size: How many.
    """
    return mixture.draw_squared(rng, size)

  def log_densities(
    self, mixture: 'Mixture', inner: np.ndarray, log_ratios: np.ndarray
  ) -> np.ndarray:
    """Logarithms of the densities over Q, of the distribution that is drawn from.

    Args:
      mixture: The pair.
      inner: Outcomes.
      log_ratios: Their log L.
    """
    del inner
    return 2 * log_ratios - mixture.log_second_moment()


Proposal = Union[Stretched, Squared]


class Mixture(abc.ABC):
  """A pair (P, Q), from which outcomes can be drawn.

  An outcome is known by its inner products with the columns, or with sums of them.

  Attributes:
    cells: Numbers that one outcome takes.
  """

  cells: int

  @abc.abstractmethod
  def log_moment(self, tilt: float) -> float:
    """The logarithm of M(c) for a tilt c."""

  @abc.abstractmethod
  def log_second_moment(self) -> float:
    """The logarithm of E_Q L^2."""

  @abc.abstractmethod
  def draw(
    self, rng: np.random.Generator, size: int, stretch: float, tilt: float
  ) -> np.ndarray:
    """Inner products of outcomes with columns, or with sums of them; [size, cells].

    Args:
      rng: Whose numbers decide.
      size: How many outcomes.
      stretch: The w; 0 draws from Q.
      tilt: The c.
    """

  @abc.abstractmethod
  def draw_squared(self, rng: np.random.Generator, size: int) -> np.ndarray:
    """The same for outcomes whose density over Q is in proportion to L^2.

    Args:
      rng: Whose numbers decide.
      size: How many outcomes.
    """

  @abc.abstractmethod
  def log_ratios(
    self, inner: np.ndarray, stretch: float = 1.0, tilt: float = 0.0
  ) -> np.ndarray:
    """Logarithms of E_S exp(w <m_S, y> - (w^2 - c) |m_S|^2 / 2); by default, of L.

    Args:
      inner: Outcomes, as `draw` returns them.
      stretch: The w.
      tilt: The c.
    """

  def batches(self, size: int) -> list[int]:
    """Sizes of parts of a sample that fit into memory.

    Args:
      size: Of the sample.
    """
    batch = max(1, _BATCH // self.cells)
    return [min(batch, size - start) for start in range(0, size, batch)]

  def losses(
    self, rng: np.random.Generator, size: int, proposal: Proposal, least: float
  ) -> tuple[np.ndarray, np.ndarray]:
    """Draws outcomes of a proposal, in batches.

    Args:
      rng: Whose numbers decide.
      size: How many.
      proposal: From where.
      least: Losses that are not above it are left out.

    Returns:
      Losses, log L of P or -log L of Q, and the logarithms of their weights: the
      densities of P, or of Q, over that of what was drawn.
    """
    losses, weights = [], []
    for part in self.batches(size):
      inner = proposal.draw(self, rng, part)
      log_ratios = self.log_ratios(inner)
      own: np.ndarray = log_ratios if proposal.removed else -log_ratios
      some = own > least
      drawn = proposal.log_densities(self, inner[some], log_ratios[some])
      losses.append(own[some])
      weights.append(log_ratios[some] - drawn if proposal.removed else -drawn)
    return np.concatenate(losses), np.concatenate(weights)

  def ratios_of_nobody(self, rng: np.random.Generator, size: int) -> np.ndarray:
    """Draws log L of outcomes of Q.

    Args:
      rng: Whose numbers decide.
      size: How many.
    """
    return np.concatenate(
      [self.log_ratios(self.draw(rng, part, 0.0, 0.0)) for part in self.batches(size)]
    )


class Bins(Mixture):
  """One of b sets of rounds, each with the same probability."""

  def __init__(self, strategy: strategies.Strategy, num_bins: int, noise: float):
    """Initializes the pair.

    Args:
      strategy: Its strategy matrix C.
      num_bins: Bins, b.
      noise: Standard deviation of z over the clip norm.

    Raises:
      TypeError: If the bins are no whole number.
      ValueError: If they are out of range, or too many for memory, as rounds may be.
    """
    bands.check_cycle('num_bins', num_bins)
    rounds = strategy.num_rounds
    columns = min(num_bins, rounds)
    # C twice, its sums twice; inner products, their root and what that is made of.
    numbers = 2 * rounds**2 + 2 * rounds * columns + 6 * columns**2
    check_size(numbers, rounds, columns, MAX_BINS)
    added = bins_of(strategy, num_bins) / noise
    self._products = added.T @ added
    self._norms = self._products.diagonal().copy()
    self._added = added
    self._empty = num_bins - len(self._norms)
    self._num_bins = num_bins
    self.cells = len(self._norms)

  @functools.cached_property
  def _root(self) -> np.ndarray:
    """The symmetric root of the inner products.

    Of all roots, it alone moves no more than the columns do, in proportion, also where
    some are nearly the same: outcomes are those of any machine, to round-off.
    """
    reduced = np.linalg.qr(self._added, mode='r')
    _, values, vectors = np.linalg.svd(reduced)
    return np.asarray((vectors.T * values) @ vectors)

  def log_moment(self, tilt: float) -> float:
    """The mean over all bins."""
    return self._mean_of(tilt * self._norms / 2)

  def _mean_of(self, logs: np.ndarray) -> float:
    """Logarithm of the mean of exponentials; those of empty bins are 1."""
    total = float(special.logsumexp(logs))
    if self._empty:
      total = float(np.logaddexp(total, math.log(self._empty)))
    return total - math.log(self._num_bins)

  def log_second_moment(self) -> float:
    """The mean over pairs of bins, of the exponentials of their inner products."""
    rows = special.logsumexp(self._products, axis=1)
    if self._empty:
      rows = np.logaddexp(rows, math.log(self._empty))
    return self._mean_of(rows - math.log(self._num_bins))

  def log_ratios(
    self, inner: np.ndarray, stretch: float = 1.0, tilt: float = 0.0
  ) -> np.ndarray:
    """Of the mean over all bins."""
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

  def _noise(self, rng: np.random.Generator, size: int) -> np.ndarray:
    return rng.standard_normal((size, self.cells)) @ self._root

  def draw(
    self, rng: np.random.Generator, size: int, stretch: float, tilt: float
  ) -> np.ndarray:
    """Draws bins, and the outcomes' inner products with all of them."""
    log_moment = self.log_moment(tilt)
    weights = np.exp(tilt * self._norms / 2 - log_moment)
    rest = math.exp(math.log(self._empty) - log_moment) if self._empty else 0.0
    weights = np.append(weights, rest)
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
