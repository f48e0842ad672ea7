"""Schemes in which clients draw all their rounds before the first one, in secret.

A client in bin j of b takes part in rounds j, j + b, j + 2b, ..., and the noise of C
may correlate these rounds.

**The pair.** Whatever a client sends in its rounds, each of norm at most 1 and chosen
after seeing everything before it, the likelihood ratio with and without the client is a
mean of exponential martingales, one for each bin. For a convex f, the mean of f of this
ratio increases with each of the (co)variances of what two bins add in a round, as the
second derivatives of f of a sum of exponentials are not negative. These covariances are
at most those of a client that always sends the same unit vector, if the entries of C
are replaced by their absolute values. So H_a of the data sets is, for all a and in both
directions, at most that of

    P = mean over bins of N(m_j, sigma^2),  Q = N(0, sigma^2),  m_j = sum_l |C|[:, j+lb]

(arXiv:2410.06266, Lemma 3.2, for C without negative entries; the step from larger
covariances is that of arXiv:math/0303018, Slepian's inequality for convex functions.)

**The bound of bins.** For a separation w, put bins into sets of t = floor(b / w) that
are w or more apart, by a random rotation; knowing the set makes distinguishing no
harder. Within a set, let v be the largest squared norm of an m_j and c the largest
inner product of two. Raising all inner products to c, and norms to v, makes
distinguishing easier, again by the growth with covariances. Then the ratio is a product
of two independent ones, whose events compose: of a Gaussian that all bins share, with
mu^2 = c / sigma^2, and of a random allocation to one of t steps of independent noise,
with mu^2 = (v - c) / sigma^2.

With w of at least the number of bands of C, nothing is shared (c = 0); t = 1 is the
bound without sampling. With independent noise and w = 1, the pair is exact, no bound.

**Random allocation.** With all sets of k rounds instead of the bins, the same pair
dominates: the proof does not need disjoint sets (arXiv:2502.08202, 2602.17284). With
independent noise, the likelihood ratio is a mean of products,

    L = e_k(R_1, ..., R_n) / binomial(n, k),  R_t = exp(y_t / sigma - 1 / (2 sigma^2)),

an elementary symmetric polynomial of independent numbers, which `monte_carlo` computes.

The bound: cut a random order of the rounds into k blocks, whose sizes are fixed
beforehand, and draw one round from each. By symmetry, all sets of k rounds are equally
likely. Knowing the blocks makes distinguishing no harder (H_a is jointly convex;
arXiv:2502.08202, Lemma 3.2), and given the blocks, L is a product: k times one round of
a block. Sizes are floor(n / k) and ceil(n / k), so that no round is left out.

**b-min-sep, rounds as a thinned set.** With at most b bands, the columns of C for a
client's rounds share no row. So one can sample from the pair, a mixture over sets of
rounds, and compute its likelihoods by recursion. There is also a bound without sampling
error: the rounds S of a client, which are at least b apart, can be drawn in two steps,
first a set U of rounds that are at least b apart too, and then each round of U
independently with probability q.

Gaps of S have the generating function G(z) = p z^b / (1 - (1 - p) z). If gaps of U have
H, a gap of S is a geometric number of them, G = q H / (1 - (1 - q) H), so that

    H(z) = G / (q + (1 - q) G) = (p / q) z^b / (1 - x z + a z^b),
    with x = 1 - p and a = p (1 - q) / q.

H(1) is 1. The coefficients u_k of 1 / (1 - x z + a z^b) are not negative if

    a <= kappa x^b,  kappa = (b - 1)^(b - 1) / b^b  (1 for b = 1):

by induction, u_k >= theta x u_(k - 1) for all k, with theta = 1 - 1 / b. For k < b,
u_k = x u_(k - 1). Else u_k / u_(k - 1) = x - a u_(k - b) / u_(k - 1), which is at least
x - a / (theta x)^(b - 1) >= x (1 - kappa / theta^(b - 1)) = theta x. So H is that of a
distribution. If D is that of the first round in which the client is free, the first
round of S has D G z^-b; thinning yields this if the first round of U has D H z^-b.

Knowing U makes it no harder to distinguish P from Q (H_a is jointly convex), and given
U the client is in each of its rounds with probability q, independently. Columns of C
that are b apart share no row; U has at most ceil(n / b) rounds; and more rounds, or
larger columns, make distinguishing no harder. So Poisson sampling dominates, with
probability q in ceil(n / b) rounds of independent noise, for the largest column of C.
Here q is 1 / m, for the largest integer m that the condition allows (see
`AllocatedDpEvent`). If b = 1, only that is lost; for p near 1 / b and above, m is 1.
"""

import abc
import dataclasses
import fractions
import functools
import itertools
import math
from collections.abc import Iterator
from typing import Any, Callable

import dp_accounting
import numpy as np
from dp_accounting import NeighboringRelation as Relation

from tff_dp_aggregators import strategies
from tff_dp_aggregators.base import checks
from tff_dp_aggregators.sampling import draws
from tff_dp_aggregators.sampling import scheme
from tff_dp_aggregators.strategies import registry

MAX_ROUNDS = 4096  # Maximum number of rounds for inner products of all bins.
_ROUND_OFF = 1e-12  # Relative round-off of norms and inner products.
_STEP = 1.25  # Noise is rounded to powers of it, so that a cached split serves many.
_MANY = 2.0**40  # Exceeds any number of rounds.


class Allocation(scheme.SampledScheme):
  """A scheme in which all rounds of a client are drawn before the first round.

  One event covers all rounds. It counts as spent after the first round, which is an
  upper bound, as later rounds only add to the cost.
  """

  composes = False
  relations = (Relation.ADD_OR_REMOVE_ONE, Relation.REPLACE_SPECIAL)

  def round_events(
    self, strategy: strategies.Strategy, noise: scheme.Noise
  ) -> tuple[dp_accounting.DpEvent, ...]:
    """The event of all rounds for the first one, and none for the others."""
    nothing = dp_accounting.NoOpDpEvent()
    return (self.event(strategy, noise), *[nothing] * (self.num_rounds - 1))

  @property
  def num_places(self) -> int:
    """Number of places that have rounds: round t has place `t % num_places`."""
    return self.num_rounds

  @abc.abstractmethod
  def _draw(
    self, num_clients: int, hashed: Callable[..., np.ndarray]
  ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yields arrays of clients and one place of each; `num_places` on is no round."""

  def drawing(self, seed: int, keys: np.ndarray) -> Callable[[int], np.ndarray]:
    """As for all schemes; each round then takes time in proportion to its cohort."""
    num_places, num_clients = self.num_places, len(keys)

    def hashed(purpose: str, step: int = 0, clients: Any = slice(None)) -> np.ndarray:
      return draws.hashed(self, seed, keys[clients], purpose, step)

    drawn = []  # Place and client in one number, which is faster to sort than pairs.
    for clients, places in self._draw(num_clients, hashed):
      placed = places < num_places
      drawn.append(places[placed].astype(np.int64) * num_clients + clients[placed])
    by_place = np.concatenate(drawn)
    by_place.sort()  # By place, then by client.
    starts = np.searchsorted(by_place, np.arange(num_places + 1) * num_clients)
    by_place %= num_clients
    numbers = by_place.astype(draws.number_type(num_clients))

    def of_round(round_num: int) -> np.ndarray:
      place = round_num % num_places
      return numbers[starts[place] : starts[place + 1]]

    return of_round


@dataclasses.dataclass(frozen=True)
class BallsInBins(Allocation):
  """Every client draws one place in a cycle of rounds, and keeps it in every cycle.

  A client that drew place j takes part in rounds j, j + b, j + 2b, ...
  (arXiv:2410.06266, 2412.16802), b apart, as in fixed epochs. Bins differ in size: with
  equal sizes, the place of a client would depend on those of others.

  Example:
    >>> BallsInBins.of_cohort(1000, num_clients=50_000, clients_per_round=100)
    BallsInBins(num_rounds=1000, cycle_length=500)
  """

  name = 'balls_in_bins'
  flag = 'balls_in_bins'
  drawn_again_after = None

  num_rounds: int  # Rounds in all, n.
  # Rounds of a cycle, b; if it exceeds `num_rounds`, some clients are in no round.
  cycle_length: int

  def __post_init__(self) -> None:
    super().__post_init__()
    scheme.check_cycle('cycle_length', self.cycle_length)

  @classmethod
  def of_cohort(
    cls, num_rounds: int, num_clients: int, clients_per_round: float
  ) -> 'BallsInBins':
    """The longest cycle with an expected cohort of at least `clients_per_round`."""
    num_clients = checks.check_positive_int('num_clients', num_clients)
    scheme.check_mean_cohort(clients_per_round, num_clients)
    return cls(num_rounds, int(num_clients // clients_per_round))

  @property
  def rounds_of_a_client(self) -> int:
    """Maximum number of rounds of one client."""
    return self.limits.possible_participations

  @property
  def limits(self) -> strategies.Participation:
    """The rounds of a client whose place is known: fixed epochs."""
    return _limits(self.num_rounds, self.cycle_length)

  def event(
    self, strategy: strategies.Strategy, noise: scheme.Noise
  ) -> dp_accounting.DpEvent:
    """The pair in the module's docstring, or its bound, for Gaussian noise."""
    return bins_event(strategy, self.cycle_length, noise)

  def expected_cohort(self, num_clients: int) -> float:
    """Expected number of clients with a place."""
    return num_clients / self.cycle_length

  @property
  def num_places(self) -> int:
    """The number of rounds of a cycle, as far as the run has them."""
    return min(self.cycle_length, self.num_rounds)

  def _draw(
    self, num_clients: int, hashed: Callable[..., np.ndarray]
  ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    bins = hashed('bin') % np.uint64(self.cycle_length)
    yield np.arange(num_clients), bins.astype(np.int64)


@dataclasses.dataclass(frozen=True)
class Split:
  """The bound of bins for a separation: see the module's docstring."""

  separation: int  # Separation of the bins of a set, w.
  num_places: int  # Number of bins of a set, t.
  num_steps: int  # Maximum number of bins of a set that have rounds.
  largest: float  # Largest squared norm of what a bin adds, v.
  shared: float  # Largest inner product of two bins of a set, c.

  def event(self, noise_multiplier: float) -> dp_accounting.DpEvent:
    """The event of all rounds."""
    parts: list[dp_accounting.DpEvent] = []
    rest, places = self.largest - self.shared, min(self.num_places, scheme.MAX_PLACES)
    if self.shared > 0:
      parts.append(dp_accounting.GaussianDpEvent(noise_multiplier / self.shared**0.5))
    if rest > 0:
      one = dp_accounting.GaussianDpEvent(noise_multiplier / math.sqrt(rest))
      steps = self.num_steps
      parts.append(one if places == 1 else scheme.AllocatedDpEvent(places, steps, one))
    return parts[0] if len(parts) == 1 else dp_accounting.ComposedDpEvent(parts)


def bins_event(
  strategy: strategies.Strategy, num_bins: int, noise: scheme.Noise
) -> dp_accounting.DpEvent:
  """The event of all rounds of a client whose bin is drawn at random."""
  power = round(math.log(noise.multiplier) / math.log(_STEP))
  bound = _best_split(strategy, num_bins, power, noise.epsilon).event(noise.multiplier)
  if strategy == strategies.Identity(strategy.num_rounds):
    return bound
  return scheme.BallsInBinsDpEvent(strategy, num_bins, noise.multiplier, bound)


@functools.lru_cache(maxsize=256)
def _best_split(
  strategy: strategies.Strategy,
  num_bins: int,
  power: int,
  epsilon: Callable[[dp_accounting.DpEvent], float],
) -> Split:
  candidates = splits(strategy, num_bins)
  if len(candidates) == 1:
    return candidates[0]

  @functools.cache
  def epsilon_of(index: int) -> float:
    return epsilon(candidates[index].event(_STEP**power))

  # Descends from the middle. The fallback is the last split, at worst no sampling.
  index = len(candidates) // 2
  while True:
    neighbours = [i for i in (index - 1, index, index + 1) if 0 <= i < len(candidates)]
    previous, index = index, min(neighbours, key=epsilon_of)
    if index == previous:
      return candidates[min((index, len(candidates) - 1), key=epsilon_of)]


@functools.lru_cache(maxsize=256)
def splits(strategy: strategies.Strategy, num_bins: int) -> tuple[Split, ...]:
  """The splits that can be the best one, by increasing separation."""
  num_rounds = strategy.num_rounds
  if num_rounds > MAX_ROUNDS:
    return _splits_of_bands(strategy, num_bins)
  # Squared norms of what bins add, and the largest inner product at each lag.
  added = bins_of(strategy, num_bins)
  products = added.T @ added
  size, norms = len(products), products.diagonal()
  by_lag = np.array([0.0, *(products.diagonal(lag).max() for lag in range(1, size))])
  largest = float(norms.max()) * (1 + _ROUND_OFF)
  # Separations from 1 to all bins, about evenly spaced in ratio, and the bands of C.
  ratios = [each * 2**i for i in range(num_bins.bit_length()) for each in (1, 3)]
  num_bands = int(min(getattr(strategy, 'num_bands', 1), num_bins))
  separations = sorted({*ratios, num_bands, num_bins})
  chosen: list[Split] = []
  for separation in separations[: separations.index(num_bins) + 1]:
    places = num_bins // separation
    shared = _largest_shared(by_lag, separation, num_bins)
    if shared > 0:
      shared = min(shared + _ROUND_OFF * largest, largest)
    steps = min(places, -(-num_rounds // separation))
    # Fewer places are useless unless they share less.
    if not chosen or shared < chosen[-1].shared or places == 1:
      chosen.append(Split(separation, places, steps, largest, shared))
    if shared == 0:
      break
  return tuple(chosen)


def _splits_of_bands(strategy: strategies.Strategy, num_bins: int) -> tuple[Split, ...]:
  """The only split for many rounds: bins that share nothing, or no sampling."""
  limits = _limits(strategy.num_rounds, num_bins)
  largest = strategy.sensitivity(limits) ** 2 * (1 + _ROUND_OFF)
  num_bands: int = getattr(strategy, 'num_bands', num_bins)
  separation = num_bands if num_bands <= num_bins // 2 else num_bins
  places = num_bins // separation
  steps = min(places, -(-strategy.num_rounds // separation))
  return (Split(separation, places, steps, largest, 0.0),)


def _limits(num_rounds: int, num_bins: int) -> strategies.Participation:
  """Limits for a client whose bin is known."""
  if num_bins >= num_rounds:
    return strategies.Participation(num_rounds, num_rounds, 1)
  return strategies.Participation(num_rounds, num_bins, fixed_epoch=True)


def _largest_shared(by_lag: np.ndarray, separation: int, num_bins: int) -> float:
  """Largest inner product of two bins of a set, which are w apart on a circle."""
  lags = np.arange(1, len(by_lag))
  # In one direction or the other, the lag is a multiple of w, up to (places - 1) w.
  farthest = (num_bins // separation - 1) * separation
  forward = (lags % separation == 0) & (lags <= farthest)
  nearest = min(num_bins - farthest, len(by_lag))
  backward = ((num_bins - lags) % separation == 0) & (lags >= nearest)
  return float(by_lag[1:][forward | backward].max(initial=0.0))


def bins_of(strategy: strategies.Strategy, num_bins: int) -> np.ndarray:
  """What the rounds of each bin add: sums of columns of |C|, [num_rounds, columns]."""
  matrix = np.abs(strategy.materialize())
  added = np.zeros((len(matrix), min(num_bins, matrix.shape[1])))
  for first in range(0, matrix.shape[1], num_bins):
    columns = matrix[:, first : first + num_bins]
    added[:, : columns.shape[1]] += columns
  return added


@dataclasses.dataclass(frozen=True)
class RandomAllocation(Allocation):
  """Every client is in k of n rounds; all sets of k rounds are equally likely.

  Clients draw independently and in secret. Noise is independent, or k = 1.

  Example:
    >>> RandomAllocation.of_cohort(1000, num_clients=50_000, clients_per_round=100)
    RandomAllocation(num_rounds=1000, rounds_of_a_client=2)
  """

  name = 'random_allocation'
  flag = 'random_allocation'
  drawn_again_after = None

  num_rounds: int  # Rounds in all, n.
  rounds_of_a_client: int  # Number of rounds of each client, k, at most `num_rounds`.

  def __post_init__(self) -> None:
    super().__post_init__()
    scheme.check_at_most(self, 'rounds_of_a_client', 'num_rounds')

  @classmethod
  def of_cohort(
    cls, num_rounds: int, num_clients: int, clients_per_round: float
  ) -> 'RandomAllocation':
    """The smallest k with an expected cohort of at least `clients_per_round`."""
    num_rounds = checks.check_positive_int('num_rounds', num_rounds)
    num_clients = checks.check_positive_int('num_clients', num_clients)
    scheme.check_mean_cohort(clients_per_round, num_clients)
    return cls(num_rounds, math.ceil(num_rounds * clients_per_round / num_clients))

  @property
  def limits(self) -> strategies.Participation:
    """Any k rounds."""
    return strategies.Participation(self.num_rounds, 1, self.rounds_of_a_client)

  def check(self, strategy: strategies.Strategy) -> None:
    """Raises ValueError unless noise is independent, or a client has one round."""
    independent = strategy == strategies.Identity(strategy.num_rounds)
    if self.rounds_of_a_client > 1 and not independent:
      raise ValueError(
        f'with {self.rounds_of_a_client} rounds of a client, drawn independently of '
        'each other, no event is known for correlated noise '
        f'({registry.name_of(strategy)}). Take --sampling=balls_in_bins '
        '(sampling.BallsInBins), or independent noise (gaussian).'
      )

  def event(
    self, strategy: strategies.Strategy, noise: scheme.Noise
  ) -> dp_accounting.DpEvent:
    """The pair in the module's docstring, with its bound, for Gaussian noise."""
    times = self.rounds_of_a_client
    if times == 1:
      return bins_event(strategy, self.num_rounds, noise)
    one = noise.event(noise.multiplier / strategy.sensitivity(None))
    size, larger = divmod(self.num_rounds, times)
    blocks = [
      dp_accounting.SelfComposedDpEvent(scheme.AllocatedDpEvent(each, each, one), count)
      for each, count in ((size, times - larger), (size + 1, larger))
      if count
    ]
    bound = blocks[0] if len(blocks) == 1 else dp_accounting.ComposedDpEvent(blocks)
    return scheme.RandomAllocationDpEvent(strategy, times, noise.multiplier, bound)

  def expected_cohort(self, num_clients: int) -> float:
    """Expected number of clients in a round."""
    return num_clients * self.rounds_of_a_client / self.num_rounds

  def _draw(
    self, num_clients: int, hashed: Callable[..., np.ndarray]
  ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """By Floyd's algorithm for all clients at once (Bentley, Floyd, CACM 1987)."""
    times, dtype = self.rounds_of_a_client, draws.number_type(self.num_rounds)
    clients = np.arange(num_clients)
    drawn: np.ndarray = np.empty((times, num_clients), dtype)
    for step, new in enumerate(range(self.num_rounds - times, self.num_rounds)):
      drawn[step] = hashed('round', step) % np.uint64(new + 1)
      taken = (drawn[:step] == drawn[step]).any(axis=0)
      drawn[step, taken] = new
      yield clients, drawn[step]


@dataclasses.dataclass(frozen=True)
class BMinSepSampling(Allocation):
  """Each round draws every free client with probability p; a drawn client then pauses.

  (arXiv:2602.09338.) A client that was in round t is free again from round t + b on. At
  first it is free from round 0 on with probability 1 / (1 + (b - 1) p), else from one
  of rounds 1 to b - 1 on, equally likely: all rounds have the same expected cohort.

  Example:
    >>> sampling = BMinSepSampling.of_cohort(
    ...   1000, num_clients=50_000, clients_per_round=100, min_separation=101
    ... )
    >>> sampling.sampling_probability, sampling.rate
    (0.0025, 0.002)
  """

  name = 'b_min_sep_sampling'
  flag = 'b_min_sep'
  drawn_again_after = 'min_separation'

  num_rounds: int  # Rounds in all, n.
  sampling_probability: float  # Probability of a free client, p in (0, 1].
  min_separation: int  # Smallest difference of two rounds of a client, b.

  def __post_init__(self) -> None:
    super().__post_init__()
    scheme.check_cycle('min_separation', self.min_separation)

  @classmethod
  def of_cohort(
    cls,
    num_rounds: int,
    num_clients: int,
    clients_per_round: float,
    min_separation: int,
  ) -> 'BMinSepSampling':
    """The sampling with an expected cohort of `clients_per_round`."""
    num_clients = checks.check_positive_int('num_clients', num_clients)
    min_separation = checks.check_positive_int('min_separation', min_separation)
    scheme.check_mean_cohort(
      clients_per_round, num_clients / min_separation, f' / {min_separation=}'
    )
    free = num_clients - (min_separation - 1) * clients_per_round
    return cls(num_rounds, clients_per_round / free, min_separation)

  @property
  def rate(self) -> float:
    """Probability that a client is in a round, the same for all rounds."""
    p = self.sampling_probability
    return p / (1 + (self.min_separation - 1) * p)

  @property
  def limits(self) -> strategies.Participation:
    """Limits with this separation."""
    return strategies.Participation(self.num_rounds, self.min_separation)

  def event(
    self, strategy: strategies.Strategy, noise: scheme.Noise
  ) -> dp_accounting.DpEvent:
    """The mixture over sets of rounds, with its bound, for Gaussian noise."""
    numbers = (self.min_separation, self.sampling_probability, noise.multiplier)
    bound = _thinned(strategy, *numbers, noise.epsilon)
    return scheme.BMinSepDpEvent(strategy, *numbers, bound)

  def expected_cohort(self, num_clients: int) -> float:
    """Expected number of clients in a round, the same for all rounds."""
    return num_clients * self.rate

  def _draw(
    self, num_clients: int, hashed: Callable[..., np.ndarray]
  ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yields the first round of all clients, then the second one, and so on."""
    p, separation = self.sampling_probability, self.min_separation
    clients = np.arange(num_clients)
    free_from = np.zeros(num_clients, np.int64)
    late = draws.uniform(hashed('late')) >= 1 / (1 + (separation - 1) * p)
    if late.any():
      first = hashed('first', 0, late) % np.uint64(separation - 1)
      free_from[late] = 1 + first.astype(np.int64)
    for step in itertools.count():
      if not len(clients):
        break
      uniform = draws.uniform(hashed('tries', step, clients))
      tries = np.ones(len(clients), np.int64)  # Until the first success.
      if p < 1:
        geometric = np.floor(np.log1p(-uniform) / math.log1p(-p)) + 1
        tries = np.minimum(geometric, _MANY).astype(np.int64)
      # Compared before adding, as these numbers may be very large.
      drawn = tries <= self.num_rounds - free_from
      clients, rounds = clients[drawn], (free_from + tries - 1)[drawn]
      yield clients, rounds
      free_from = rounds + separation


def places(probability: float, min_separation: int) -> int:
  """The largest m for which rounds are a set U, each kept with probability 1 / m."""
  if probability == 1:
    return 1
  b = min_separation
  if b == 1:  # The condition is m <= 1 / p: in fractions, as p is often 1 / m.
    whole = math.floor(1 / fractions.Fraction(probability))
    # The float64 that is nearest to 1 / m counts as 1 / m.
    whole += 1 / (whole + 1) == probability
    return min(whole, scheme.MAX_PLACES)
  # The condition is m - 1 <= kappa (1 - p)^b / p.
  log_kappa = (b - 1) * math.log1p(-1 / b) - math.log(b)
  log_allowed = log_kappa + b * math.log1p(-probability) - math.log(probability)
  allowed = math.exp(min(log_allowed, math.log(scheme.MAX_PLACES)))
  return min(math.floor(1 + allowed * (1 - _ROUND_OFF)), scheme.MAX_PLACES)


@functools.lru_cache(maxsize=256)
def _thinned(
  strategy: strategies.Strategy,
  min_separation: int,
  probability: float,
  noise_multiplier: float,
  epsilon: Callable[[dp_accounting.DpEvent], float],
) -> dp_accounting.DpEvent:
  """The better of the bound by thinning and the bound without sampling."""
  rounds = strategy.num_rounds
  limits = strategies.Participation(rounds, min_separation)
  unsampled = dp_accounting.GaussianDpEvent(
    noise_multiplier / strategy.sensitivity(limits)
  )
  num_places = places(probability, min_separation)
  if num_places == 1:
    return unsampled
  one = dp_accounting.GaussianDpEvent(noise_multiplier / strategy.sensitivity(None))
  bound = dp_accounting.SelfComposedDpEvent(
    scheme.AllocatedDpEvent(num_places, 1, one), -(-rounds // min_separation)
  )
  return min(unsampled, bound, key=epsilon)
