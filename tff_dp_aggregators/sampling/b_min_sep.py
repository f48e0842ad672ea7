"""b-min-sep sampling: a free client is in a round by chance, and then has a break.

With at most b bands, the columns of C of a client's rounds share no row; so the pair of
`balls_in_bins`, a mixture over sets of rounds, can be drawn from, and its likelihoods
are computed by recursion. There is a bound without sampling error, too:

**Rounds as a thinned set.** The rounds S of a client are b or more apart, and after
b - 1 rounds of break it waits a geometric time. The claim is that S can be drawn in two
steps: first a set U of rounds, which are b or more apart as well, and then each of U
independently with probability q.

Gaps of S have the generating function G(z) = p z^b / (1 - (1 - p) z). If those of U
have H, a gap of S is a geometric number of them, G = q H / (1 - (1 - q) H), so that

    H(z) = G / (q + (1 - q) G) = (p / q) z^b / (1 - x z + a z^b),
    with x = 1 - p and a = p (1 - q) / q.

H(1) is 1. The coefficients u_k of 1 / (1 - x z + a z^b) are not negative if

    a <= kappa x^b,  kappa = (b - 1)^(b - 1) / b^b  (1 for b = 1):

by induction, u_k >= theta x u_(k - 1) for all k, with theta = 1 - 1 / b. For k < b,
u_k = x u_(k - 1). Else u_k / u_(k - 1) = x - a u_(k - b) / u_(k - 1), which is at least
x - a / (theta x)^(b - 1) >= x (1 - kappa / theta^(b - 1)) = theta x. So H is that of a
distribution. If D is that of the first round in which the client is free, the first one
of S has D G z^-b; and with D H z^-b for the first one of U, thinning makes that of it.

To be told U makes it no harder to tell P from Q (H_a is jointly convex), and given U
the client is in each of its rounds with probability q, independently. Columns of C that
are b apart share no row; U has at most ceil(n / b) rounds; and more rounds, or larger
columns, make telling no harder. So what dominates is Poisson sampling with probability
q in ceil(n / b) rounds of independent noise, for the largest column of C. Here q is
1 / m, for the largest whole m that the condition allows: a client is in one place of m
(`AllocatedDpEvent`). With b = 1 nothing is lost but that; where clients are free
for long, little; for p near 1 / b and above there is no m but 1.
"""

import dataclasses
import fractions
import functools
import itertools
import math
from collections.abc import Iterator
from typing import Callable

import dp_accounting
import numpy as np

from tff_dp_aggregators import strategies
from tff_dp_aggregators.base import checks
from tff_dp_aggregators.sampling import draws
from tff_dp_aggregators.sampling import events
from tff_dp_aggregators.sampling import scheme

# Relative, and more than the formula for the number of places is off by.
_ROUND_OFF = 1e-12
# More tries than there are rounds.
_MANY = 2.0**40


@dataclasses.dataclass(frozen=True)
class BMinSepSampling(scheme.Allocation):
  """Each free client is in a round with the same probability, then not for a while.

  (arXiv:2602.09338.) A client that was in round t is free again from round t + b on. It
  is free in round 0 with probability 1 / (1 + (b - 1) p), and else for the first time
  in one of the b - 1 rounds that follow, each alike, so that all rounds have the same
  expected number of clients. With b = 1 it is Poisson sampling.

  Example:
    >>> sampling = BMinSepSampling.of_cohort(
    ...   1000, num_clients=50_000, clients_per_round=100, min_separation=101
    ... )
    >>> sampling.sampling_probability, sampling.rate
    (0.0025, 0.002)
  """

  name = 'b_min_sep_sampling'
  flag = 'b_min_sep'
  separation = 'min_separation'

  num_rounds: int  # Rounds in all, n.
  sampling_probability: float  # That of a free client, p in (0, 1].
  min_separation: int  # Smallest difference b of two rounds of a client.

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
    """The sampling that has so many clients a round in the mean."""
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
    """Rounds that are so far apart."""
    return strategies.Participation(self.num_rounds, self.min_separation)

  @property
  def free_bands(self) -> int:
    """As many as rounds of a client are apart."""
    return self.min_separation

  def check(self, strategy: strategies.Strategy) -> None:
    """Checks that the rounds of a client share no noise."""
    scheme.check_groups(strategy, self.min_separation, self.separation)

  def event(
    self, strategy: strategies.Strategy, noise: scheme.Noise
  ) -> dp_accounting.DpEvent:
    """The mixture over sets of rounds, with its bound; the noise is Gaussian."""
    numbers = (self.min_separation, self.sampling_probability, noise.multiplier)
    bound = _thinned(strategy, *numbers, noise.epsilon)
    return events.BMinSepDpEvent(strategy, *numbers, bound)

  def expected_cohort(self, num_clients: int) -> float:
    """The clients that are in a round, the same in all rounds."""
    return num_clients * self.rate

  def _draw(
    self, num_clients: int, hashed: Callable[..., np.ndarray]
  ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """The first round of all clients, then the second of those that have one, and on.

    A client that is free tries its luck once a round, so a geometric number of times.
    One that was drawn and drops out has its break all the same.
    """
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
      # Before they are added: it may be the largest number.
      drawn = tries <= self.num_rounds - free_from
      clients, rounds = clients[drawn], (free_from + tries - 1)[drawn]
      yield clients, rounds
      free_from = rounds + separation


def places(probability: float, min_separation: int) -> int:
  """The largest m for which rounds are a set, each of it with probability 1 / m.

  A smaller one is as right and says less: it is rounded down, and at most
  `events.MAX_PLACES`.

  Example:
    >>> places(0.01, min_separation=1), places(0.01, min_separation=8), places(0.5, 8)
    (100, 5, 1)
  """
  if probability == 1:
    return 1
  b = min_separation
  if b == 1:  # The condition is m <= 1 / p: in fractions, as p is often one.
    whole = math.floor(1 / fractions.Fraction(probability))
    # A float64 that is the nearest to 1 / m says 1 / m.
    whole += 1 / (whole + 1) == probability
    return min(whole, events.MAX_PLACES)
  # It is m - 1 <= kappa (1 - p)^b / p.
  log_kappa = (b - 1) * math.log1p(-1 / b) - math.log(b)
  log_allowed = log_kappa + b * math.log1p(-probability) - math.log(probability)
  allowed = math.exp(min(log_allowed, math.log(events.MAX_PLACES)))
  return min(math.floor(1 + allowed * (1 - _ROUND_OFF)), events.MAX_PLACES)


@functools.lru_cache(maxsize=256)
def _thinned(
  strategy: strategies.Strategy,
  min_separation: int,
  probability: float,
  noise_multiplier: float,
  epsilon: Callable[[dp_accounting.DpEvent], float],
) -> dp_accounting.DpEvent:
  """The better of this bound and that without sampling."""
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
    events.AllocatedDpEvent(num_places, 1, one), -(-rounds // min_separation)
  )
  return min(unsampled, bound, key=epsilon)
