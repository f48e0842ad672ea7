"""Two sets of rounds of b-min-sep sampling that attract each other where they overlap.

The sets S and S' are those of two clients A and B, in proportion to their probabilities
times exp(<m_S, m_S'>), where m_S is the sum of the columns in S. Columns that are b
apart share no row. So of what a client did, only its last round matters, and that only
while it is not free again; and while neither is free nothing happens. What is left are
two kinds of states: both are free in round t, or one of them is, and the other was in
round t - d, for a d below b. (Phantom rounds before the first, which share nothing, are
for clients that are not free in round 0.) Sums of weights from each state on need n b
logarithms, and sets are drawn from one event to the next, not round by round.
"""

import math

import numpy as np
from scipy import sparse
from scipy import special

# Instead of log(0): exp of it is 0, and differences of it are numbers.
_NEVER = -1e6


class Pairs:
  """Sums of weights of pairs of sets, and draws in proportion to them.

  Attributes:
    log_total: Logarithm of the sum over all pairs, the mean of exp(<m_S, m_S'>).
  """

  log_total: float

  def __init__(self, lags: np.ndarray, first: np.ndarray, probability: float):
    """Sums up weights, from the last round.

    Args:
      lags: Inner products of columns t and t - d, at t and d; [num_rounds, bands].
      first: Probabilities of the round from which on a client is free; [b], where b is
        at most num_rounds + 1, and more rounds than there are stand for never.
      probability: Of each round that a client is free in, p.
    """
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
    # Of both, the same from round 0 on; and that both are in a round if one is.
    self._two = special.expit(
      [self._of_two(t) - self._of_one(one, t) for t in range(rounds)]
    )
    self._both_stay = 2 * self._skip * np.arange(rounds + 1) + self._both[: rounds + 1]
    # Of all clients: the first one that is free, and how much later the other is.
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
    """Draws pairs of sets.

    Args:
      rng: Whose numbers decide.
      size: How many.

    Returns:
      In how many of both sets each round is, [num_rounds, size].
    """
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
    """When one of two free clients is in a round, and whether both are.

    Args:
      rng: Whose numbers decide.
      free: Since when they are free.

    Returns:
      Rounds, `num_rounds` for none.
    """
    least = self._both_stay[free] - rng.standard_exponential(len(free))
    at = np.searchsorted(-self._both_stay[1:], -least, side='right')
    both = rng.random(len(free)) < np.append(self._two, 0.0)[at]
    return at, both

  def _next_of_one(
    self, rng: np.random.Generator, was: np.ndarray, free: np.ndarray
  ) -> np.ndarray:
    """When a free client is in a round, before the other one is free.

    Args:
      rng: Whose numbers decide.
      was: In which round the other one was.
      free: Since when the client is free.

    Returns:
      How long after `was`, b for not before.
    """
    rows = self._stays[was + self._b]
    low = free - was
    least = np.take_along_axis(rows, low[:, None], 1)[:, 0]
    least = least - rng.standard_exponential(len(was))
    high = np.full_like(low, self._b)
    while True:
      open_ = low < high
      if not open_.any():
        return low
      middle = (low + high) // 2
      out = np.take_along_axis(rows, np.minimum(middle + 1, self._b)[:, None], 1)
      is_out = out[:, 0] < least
      high = np.where(open_ & is_out, middle, high)
      low = np.where(open_ & ~is_out, middle + 1, low)
