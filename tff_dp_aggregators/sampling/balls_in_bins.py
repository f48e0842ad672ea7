"""Balls in bins: a client's place in the cycle is drawn once, in secret.

There are events for any strategy: a client in bin j of b takes part in the rounds j,
j + b, j + 2b, ..., and the noise of C may tie all of them together.

**The pair.** Whatever a client sends in its rounds, each of norm at most 1 and chosen
after seeing all before it, the likelihood ratio of with and without the client is a
mean of exponential martingales, one for each bin. For a convex f, the mean of f of it
grows with each of the (co)variances of what two bins add in a round, as the second
derivatives of f of a sum of exponentials are not negative; and these are at most those
of a client that always sends the same unit vector, if the entries of C are replaced by
their absolute values. So H_a of the data sets is, for all a and in both directions, at
most that of

    P = mean over bins of N(m_j, sigma^2),  Q = N(0, sigma^2),  m_j = sum_l |C|[:, j+lb]

(arXiv:2410.06266, Lemma 3.2, for C without negative entries; the step from larger
covariances is that of arXiv:math/0303018, Slepian's inequality for convex functions.)

**The bound.** For a separation w, put bins into sets of t = floor(b / w) that are w or
more apart, by a random rotation; to know the set makes it no harder to tell P from Q.
Within a set let v be the largest squared norm of an m_j and c the largest inner product
of two. To raise all inner products to c, and norms to v, makes telling easier, again by
the growth with covariances; and then the ratio is a product of two independent ones:
of a Gaussian that all bins share, with mu^2 = c / sigma^2, and of a random allocation
to one of t steps of independent noise, with mu^2 = (v - c) / sigma^2. These are events
that accountants read and compose, and no sampling error is in them.

With w of at least the bands of C nothing is shared (c = 0), and t = 1 is the bound
without sampling. With independent noise and w = 1 it is no bound but the exact pair.
Deterministic bounds by Renyi divergences are in arXiv:2601.21636.
"""

import dataclasses
import functools
import math
from collections.abc import Iterator
from typing import Callable

import dp_accounting
import numpy as np

from tff_dp_aggregators import strategies
from tff_dp_aggregators.base import checks
from tff_dp_aggregators.sampling import events
from tff_dp_aggregators.sampling import scheme

# Rounds up to which inner products of all bins are computed.
MAX_ROUNDS = 4096
# Relative round-off of norms and inner products.
_ROUND_OFF = 1e-12
# Noise multipliers are rounded so for that: one separation serves many.
_STEP = 1.25


@dataclasses.dataclass(frozen=True)
class BallsInBins(scheme.Allocation):
  """Every client draws one place in a cycle of rounds, and keeps it in every cycle.

  Who drew place j takes part in the rounds j, j + b, j + 2b, ... (arXiv:2410.06266,
  2412.16802). Rounds of a client are b apart, as in fixed epochs; which they are,
  nobody learns. Bins differ in size: to split the clients equally, as `ShuffledEpochs`
  does, would tie the place of a client to those of others.

  Example:
    >>> BallsInBins.of_cohort(1000, num_clients=50_000, clients_per_round=100)
    BallsInBins(num_rounds=1000, cycle_length=500)
  """

  name = 'balls_in_bins'
  flag = 'balls_in_bins'

  num_rounds: int  # Rounds in all, n.
  # Rounds of a cycle, b; if they are more than `num_rounds`, some clients are in none.
  cycle_length: int

  def __post_init__(self) -> None:
    super().__post_init__()
    scheme.check_cycle('cycle_length', self.cycle_length)

  @classmethod
  def of_cohort(
    cls, num_rounds: int, num_clients: int, clients_per_round: float
  ) -> 'BallsInBins':
    """The longest cycle whose rounds have so many clients in the mean, or more."""
    num_clients = checks.check_positive_int('num_clients', num_clients)
    scheme.check_mean_cohort(clients_per_round, num_clients)
    return cls(num_rounds, int(num_clients // clients_per_round))

  @property
  def rounds_of_a_client(self) -> int:
    """Rounds in which one client may be, at most."""
    return -(-self.num_rounds // self.cycle_length)

  @property
  def limits(self) -> strategies.Participation:
    """The rounds of a client whose place is known: fixed epochs."""
    return _limits(self.num_rounds, self.cycle_length)

  def check(self, strategy: strategies.Strategy) -> None:
    """Nothing to check: there is a bound for every strategy."""

  def event(
    self, strategy: strategies.Strategy, noise: scheme.Noise
  ) -> dp_accounting.DpEvent:
    """The pair of the module's docstring, or its bound; the noise is Gaussian."""
    return event(strategy, self.cycle_length, noise)

  def expected_cohort(self, num_clients: int) -> float:
    """The clients of one place."""
    return num_clients / self.cycle_length

  @property
  def num_places(self) -> int:
    """The rounds of a cycle that are in the run."""
    return min(self.cycle_length, self.num_rounds)

  def _draw(
    self, num_clients: int, hashed: Callable[..., np.ndarray]
  ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """The bin of each client, drawn once, uniformly."""
    bins = hashed('bin') % np.uint64(self.cycle_length)
    yield np.arange(num_clients), bins.astype(np.int64)


@dataclasses.dataclass(frozen=True)
class Split:
  """What a separation of bins makes of a strategy."""

  separation: int  # Of the bins of a set, w.
  num_places: int  # Bins of a set, t.
  num_steps: int  # How many of them have rounds, at most.
  largest: float  # Largest squared norm of what a bin adds, v.
  shared: float  # Largest inner product of two bins of a set, c.

  def event(self, noise_multiplier: float) -> dp_accounting.DpEvent:
    """The event of all rounds."""
    parts: list[dp_accounting.DpEvent] = []
    own = self.largest - self.shared
    if self.shared > 0:
      parts.append(dp_accounting.GaussianDpEvent(noise_multiplier / self.shared**0.5))
    if own > 0:
      one = dp_accounting.GaussianDpEvent(noise_multiplier / math.sqrt(own))
      known, places = self.num_places == 1, min(self.num_places, events.MAX_PLACES)
      parts.append(
        one if known else events.AllocatedDpEvent(places, self.num_steps, one)
      )
    return parts[0] if len(parts) == 1 else dp_accounting.ComposedDpEvent(parts)


def event(
  strategy: strategies.Strategy, num_bins: int, noise: scheme.Noise
) -> dp_accounting.DpEvent:
  """The event of all rounds of a client whose bin is drawn at random.

  With independent noise, that of the pair itself. Else it has the strategy, for who
  draws outcomes, and for all others the bound: of all separations, that with the least
  epsilon; every one of them is right for all deltas.
  """
  step = round(math.log(noise.multiplier) / math.log(_STEP))
  bound = _best_split(strategy, num_bins, step, noise.epsilon).event(noise.multiplier)
  if strategy == strategies.Identity(strategy.num_rounds):
    return bound
  return events.BallsInBinsDpEvent(strategy, num_bins, noise.multiplier, bound)


@functools.lru_cache(maxsize=256)
def _best_split(
  strategy: strategies.Strategy,
  num_bins: int,
  step: int,
  epsilon: Callable[[dp_accounting.DpEvent], float],
) -> Split:
  candidates = splits(strategy, num_bins)
  if len(candidates) == 1:
    return candidates[0]

  @functools.cache
  def epsilon_of(at: int) -> float:
    return epsilon(candidates[at].event(_STEP**step))

  # From the middle downhill; at worst it is the one without sampling.
  at = len(candidates) // 2
  while True:
    near = [i for i in (at - 1, at, at + 1) if 0 <= i < len(candidates)]
    before, at = at, min(near, key=epsilon_of)
    if at == before:
      return candidates[min((at, len(candidates) - 1), key=epsilon_of)]


@functools.lru_cache(maxsize=256)
def splits(strategy: strategies.Strategy, num_bins: int) -> tuple[Split, ...]:
  """The splits that are worth to be looked at, with the smallest separation first."""
  num_rounds = strategy.num_rounds
  if num_rounds > MAX_ROUNDS:
    return _splits_of_bands(strategy, num_bins)
  # Squared norms of what bins add, and the largest inner product at each lag.
  added = bins_of(strategy, num_bins)
  products = added.T @ added
  size, norms = len(products), products.diagonal()
  by_lag = np.array([0.0, *(products.diagonal(lag).max() for lag in range(1, size))])
  largest = float(norms.max()) * (1 + _ROUND_OFF)
  # From 1 to all bins, in equal ratios, and the bands of C.
  ratios = [each * 2**i for i in range(num_bins.bit_length()) for each in (1, 3)]
  num_bands = int(min(getattr(strategy, 'num_bands', 1), num_bins))
  known = sorted({*ratios, num_bands, num_bins})
  found: list[Split] = []
  for separation in known[: known.index(num_bins) + 1]:
    places = num_bins // separation
    shared = _largest_shared(by_lag, separation, num_bins)
    if shared > 0:
      shared = min(shared + _ROUND_OFF * largest, largest)
    steps = min(places, -(-num_rounds // separation))
    # Fewer places with no less in common are of no use.
    if not found or shared < found[-1].shared or places == 1:
      found.append(Split(separation, places, steps, largest, shared))
    if shared == 0:
      break
  return tuple(found)


def _splits_of_bands(strategy: strategies.Strategy, num_bins: int) -> tuple[Split, ...]:
  """For many rounds: sets in which nothing is shared, and no sampling."""
  limits = _limits(strategy.num_rounds, num_bins)
  largest = strategy.sensitivity(limits) ** 2 * (1 + _ROUND_OFF)
  num_bands: int = getattr(strategy, 'num_bands', num_bins)
  if num_bands > num_bins // 2:
    return (Split(num_bins, 1, 1, largest, 0.0),)
  places = num_bins // num_bands
  steps = min(places, -(-strategy.num_rounds // num_bands))
  return (Split(num_bands, places, steps, largest, 0.0),)


def _limits(num_rounds: int, num_bins: int) -> strategies.Participation:
  """In which rounds a client may be whose bin is known."""
  if num_bins >= num_rounds:
    return strategies.Participation(num_rounds, num_rounds, 1)
  return strategies.Participation(num_rounds, num_bins, fixed_epoch=True)


def _largest_shared(by_lag: np.ndarray, separation: int, num_bins: int) -> float:
  """Largest inner product of two bins of a set, those of a circle that are w apart."""
  lags = np.arange(1, len(by_lag))
  # Counted from the one or from the other bin, a multiple of w, and of places - 1 w.
  farthest = (num_bins // separation - 1) * separation
  one = (lags % separation == 0) & (lags <= farthest)
  nearest = min(num_bins - farthest, len(by_lag))
  other = ((num_bins - lags) % separation == 0) & (lags >= nearest)
  return float(by_lag[1:][one | other].max(initial=0.0))


def bins_of(strategy: strategies.Strategy, num_bins: int) -> np.ndarray:
  """What the rounds of each bin add: sums of columns of |C|.

  Returns shape [num_rounds, min(num_bins, num_rounds)].
  """
  matrix = np.abs(strategy.materialize())
  added = np.zeros((len(matrix), min(num_bins, matrix.shape[1])))
  for first in range(0, matrix.shape[1], num_bins):
    columns = matrix[:, first : first + num_bins]
    added[:, : columns.shape[1]] += columns
  return added
