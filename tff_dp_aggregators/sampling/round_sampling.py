"""Schemes that draw each round's sample separately, in secret.

`PoissonSampling` draws clients independently, so that another client changes nothing
for the others: add-or-remove. With `FixedSizeSampling` the number of clients is public,
and replacing a client keeps it: replace-one, unless add-or-remove is asked for. Under
both relations, a client that is drawn takes the place of another, and a sum changes by
up to two clip norms. The same holds if `TruncatedPoissonSampling` leaves clients out,
as more are drawn than its cap allows. (Truncation, this coupling: arXiv:2508.15089.)

**The cost of a truncated round** (**proved here**). Clients are drawn with probability
q, and at most B are kept. Let `c` be the client in which two data sets differ. Of the m
others, N are drawn. Let T be all of these if N < B, and else a random B of them, and t
a random one of T, which makes room for `c`. T, t and whether T was cut reveal nothing
about `c`: it is in the cohort with probability q if T was not cut, and else with
r = E[q B / (N + 1) | N >= B], in the place of t. So, with X the sum of T, the noisy
sums to be distinguished are the noise around

| adjacency | N < B | N >= B |
|---|---|---|
| add-or-remove | (1 - q) X + q (X + c), or X | (1 - r) X + r (X - t + c), or X |
| zero-out | (1 - q) X + q (X + c), or X | (1 - r) X + r (X - t + c), or (1 - r) X \
+ r (X - t) |

As H_a is jointly convex, knowing T and t makes it no harder to distinguish them. A
mixture and X alone have the pairs `REMOVED` and `ADDED` of `accountants.pld`, for one
clip norm if N < B, and for two if N >= B. The remaining case is zero-out with N >= B,
between

    P = (1 - r) N(X) + r N(X - t + c),  Q = (1 - r) N(X) + r N(X - t).

For a >= 1, with b = 1 + (a - 1) / r and w = a / b, H_a(P || Q) is r times H_b of
N(X - t + c) from (1 - w) N(X) + w N(X - t). Seen from the first point, the others are
at most two and one clip norms away. H_b increases with the inner products of these
positions (it is the mean of a convex function of exponentials: `allocation`), so it is
largest if they are exactly that far away, on the same side. So H_a(P || Q) is at most
that of (1 - r) N(0) + r N(2) from (1 - r) N(0) + r N(1). In the same way, as N(X - t)
is within one clip norm of both other points, H_a(Q || P) is at most that of `REMOVED`
for one. Curves for a < 1 follow from H_a(P || Q) = 1 - a + a H_1/a(Q || P). In each
direction, both halves form one convex curve, as the slope rises at a = 1 by what is
left at loss 0, which is positive: they are those of pairs, `pld.zeroed`.

A larger fraction never makes such a pair harder to distinguish: for a >= 1, H_a is
convex in the fraction and 0 at 0, so it is increasing; for a < 1 by exchange. As
r <= q, q can replace r. Then the bound for N >= B is not below that for N < B, as its
points are at least as far apart. (For zero-out, this requires `ADDED` to be at most
`REMOVED` for a >= 1. With s = (a - 1) (1 - q), they are the integrals of the positive
parts of (q - s) N(1) - a q N(0) and of the same plus s (N(1) - N(0)), and where the
first is positive, N(1) > N(0).) So the mixture of both bounds increases with the
probability of N >= B, which increases with m: computed for the maximum number of
clients, it holds for all data sets with fewer. (r decreases with the number of clients,
so that a bound with r, as in dp-accounting 0.6, holds for one number of clients only.)

**Groups.** If groups take turns, the clients of a group are fixed. With as many groups
as bands, a client's rounds share no noise, as their columns of C share no row. A client
that is pushed out is in the same group and round, so that what differs in one round is
hidden by independent noise (arXiv:2306.08153, Theorem 4). Group sizes differ by at most
one client; the size of a random group would have no bound. This assumes that both data
sets have the same number of clients, so that add-or-remove is for one group only.
"""

import abc
import dataclasses
import math
from typing import Callable, Optional

import dp_accounting
import numpy as np
from dp_accounting import NeighboringRelation as Relation

from tff_dp_aggregators import strategies
from tff_dp_aggregators.base import checks
from tff_dp_aggregators.sampling import draws
from tff_dp_aggregators.sampling import scheme


class RoundSampling(scheme.SampledScheme):
  """A scheme in which every round is a mechanism on a separate random sample."""

  drawn_again_after = 'num_groups'

  num_groups: int = 1  # Groups take turns; 1 draws from all clients in every round.
  # That of a client in the round's group; not defined for cohorts of fixed size.
  sampling_probability: float

  @abc.abstractmethod
  def sampled(self, on_everybody: dp_accounting.DpEvent) -> dp_accounting.DpEvent:
    """The event of one round, from the event of its noise without sampling."""

  @property
  def limits(self) -> strategies.Participation:
    """The rounds of a client's group, in which it may be drawn."""
    return strategies.Participation(
      self.num_rounds, self.num_groups, fixed_epoch=self.num_groups > 1
    )

  @property
  def rounds_of_a_client(self) -> int:
    """Maximum number of rounds for which one client may be drawn."""
    return self.limits.possible_participations

  def expected_cohort(self, num_clients: int) -> Optional[float]:
    """Expected number of clients drawn from the smallest group, before any cap."""
    return self.sampling_probability * (num_clients // self.num_groups)

  def event(
    self, strategy: strategies.Strategy, noise: scheme.Noise
  ) -> dp_accounting.DpEvent:
    """The event of a sampled round, for each round that may draw one client."""
    one = self.sampled(noise.event(noise.multiplier / strategy.sensitivity(None)))
    return dp_accounting.SelfComposedDpEvent(one, self.rounds_of_a_client)

  def round_events(
    self, strategy: strategies.Strategy, noise: scheme.Noise
  ) -> tuple[dp_accounting.DpEvent, ...]:
    """The event of a sampled round in rounds of the first group, else none."""
    one, nothing = self.event(strategy, noise).event, dp_accounting.NoOpDpEvent()
    return tuple(
      nothing if this_round % self.num_groups else one
      for this_round in range(self.num_rounds)
    )

  def drawing(self, seed: int, keys: np.ndarray) -> Callable[[int], np.ndarray]:
    """Draws each client of the round's group independently, and applies a cap.

    A client is drawn if its hash is small, and those with the smallest hashes are kept:
    all orders of the drawn clients are equally likely. Cohorts may be empty.
    """
    groups = [(each, keys[each]) for each in self._groups(seed, keys)]
    # Rounded down to a multiple of 2^-53, as the draws are.
    probability = math.floor(self.sampling_probability * 2**53) / 2**53
    most = self.largest_cohort

    def of_round(round_num: int) -> np.ndarray:
      clients, their_keys = groups[round_num % self.num_groups]
      hashed = draws.hashed(self, seed, their_keys, 'round', round_num)
      drawn = np.flatnonzero(draws.uniform(hashed) < probability)
      if most is not None and len(drawn) > most:
        drawn = np.sort(drawn[np.argpartition(hashed[drawn], most - 1)[:most]])
      return clients[drawn]

    return of_round

  def _groups(self, seed: int, keys: np.ndarray) -> list[np.ndarray]:
    """Numbers of each group's clients."""
    raise NotImplementedError


@dataclasses.dataclass(frozen=True)
class PoissonSampling(RoundSampling):
  """Every client is drawn for a round independently of everything else.

  With `num_groups` above 1 it is cyclic: clients are assigned to separate groups, once
  and independently of their data, and round t draws only from group `t % num_groups`
  (arXiv:2306.08153, Algorithm 2).

  Example:
    >>> PoissonSampling.of_cohort(
    ...   1000, num_clients=50_000, clients_per_round=100, num_groups=10
    ... )
    PoissonSampling(num_rounds=1000, sampling_probability=0.02, num_groups=10)
  """

  name = 'poisson_sampling'
  flag = 'poisson'
  relations = (Relation.ADD_OR_REMOVE_ONE,)
  known_noises = ('gaussian', 'laplace')

  num_rounds: int  # Rounds in all, n.
  sampling_probability: float  # For a client in the round's group, in (0, 1].
  num_groups: int = 1  # Groups take turns; 1 draws from all clients in every round.

  @classmethod
  def of_cohort(
    cls,
    num_rounds: int,
    num_clients: int,
    clients_per_round: float,
    num_groups: int = 1,
  ) -> 'PoissonSampling':
    """The sampling with this expected cohort, drawn from the smallest group."""
    num_clients = checks.check_positive_int('num_clients', num_clients)
    num_groups = checks.check_positive_int('num_groups', num_groups)
    smallest = num_clients // num_groups
    scheme.check_mean_cohort(clients_per_round, smallest, f' / {num_groups} groups')
    return cls(num_rounds, clients_per_round / smallest, num_groups)

  def rough_noise_multiplier(self, mu: float) -> float:
    """Rough noise with which all rounds together are mu-Gaussian-DP; no guarantee.

    By the central limit, mu = q sqrt(T (exp(1 / sigma^2) - 1)) (arXiv:1911.11607).
    """
    per_round = (mu / self.sampling_probability) ** 2 / self.rounds_of_a_client
    return 1 / math.sqrt(math.log1p(per_round))

  def sampled(self, on_everybody: dp_accounting.DpEvent) -> dp_accounting.DpEvent:
    """The noise on a Poisson sample."""
    return dp_accounting.PoissonSampledDpEvent(self.sampling_probability, on_everybody)

  def _groups(self, seed: int, keys: np.ndarray) -> list[np.ndarray]:
    """Groups of random size, as each client's is independent of the others."""
    if self.num_groups == 1:
      return [np.arange(len(keys))]
    hashed = draws.hashed(self, seed, keys, 'group')
    group = (hashed % np.uint64(self.num_groups)).astype(np.int64)
    by_group = np.argsort(group, kind='stable')
    ends = np.cumsum(np.bincount(group, minlength=self.num_groups))[:-1]
    return np.split(by_group, ends)


@dataclasses.dataclass(frozen=True)
class FixedSizeSampling(RoundSampling):
  """Each round draws a cohort of the same size, uniformly without replacement."""

  name = 'fixed_size_sampling'
  flag = 'fixed_size'
  relations = (Relation.REPLACE_ONE, Relation.ADD_OR_REMOVE_ONE)
  has_public_sizes = True
  json_names = {'num_clients': 'population', 'clients_per_round': 'cohort'}

  num_rounds: int  # Rounds in all, n.
  # Clients to draw from, the same in all rounds; public. The minimum, if add-or-remove.
  num_clients: int
  clients_per_round: int  # Size of each cohort, at most `num_clients`.

  def __post_init__(self) -> None:
    super().__post_init__()
    scheme.check_at_most(self, 'clients_per_round', 'num_clients')

  def sensitivity_factor(self, relation: Relation) -> int:
    """Two: the client's contribution replaces that of another."""
    return 2

  @property
  def largest_cohort(self) -> Optional[int]:
    """The size of all cohorts."""
    return self.clients_per_round

  def sampled(self, on_everybody: dp_accounting.DpEvent) -> dp_accounting.DpEvent:
    """The noise on a sample without replacement."""
    return dp_accounting.SampledWithoutReplacementDpEvent(
      self.num_clients, self.clients_per_round, on_everybody
    )

  def expected_cohort(self, num_clients: int) -> float:
    """The size of all cohorts, whatever the number of clients."""
    return self.clients_per_round

  def drawing(self, seed: int, keys: np.ndarray) -> Callable[[int], np.ndarray]:
    """Draws the clients with the smallest hashes: all cohorts are equally likely."""
    size = self.clients_per_round

    def of_round(round_num: int) -> np.ndarray:
      hashed = draws.hashed(self, seed, keys, 'round', round_num)
      drawn = np.argpartition(hashed, size - 1)[:size]
      return drawn[np.argsort(hashed[drawn])]

    return of_round


@dataclasses.dataclass(frozen=True)
class TruncatedPoissonSampling(RoundSampling):
  """Poisson sampling that keeps a random subset if too many clients are drawn.

  With `num_groups` above 1 it is cyclic: clients are assigned to groups of equal size,
  once and independently of their data, and round t draws from group `t % num_groups`.

  Example:
    >>> TruncatedPoissonSampling.of_cohort(
    ...   1000, num_clients=50_000, clients_per_round=100, max_clients_per_round=130
    ... )
    TruncatedPoissonSampling(num_rounds=1000, sampling_probability=0.002, \
num_clients=50000, max_clients_per_round=130, num_groups=1)
  """

  name = 'truncated_poisson_sampling'
  flag = 'truncated_poisson'

  num_rounds: int  # Rounds in all, n.
  sampling_probability: float  # For a client in the round's group, in (0, 1].
  num_clients: int  # To draw from; epsilon holds for data sets of at most so many.
  max_clients_per_round: int  # Cap, at least the expected number of drawn clients.
  num_groups: int = 1  # Groups take turns; 1 draws from all clients in every round.

  def __post_init__(self) -> None:
    super().__post_init__()
    scheme.check_groups_have_clients(self.num_clients, self.num_groups)
    mean = self.sampling_probability * self.largest_group
    if self.max_clients_per_round < mean:
      raise ValueError(
        f'max_clients_per_round must be at least {mean:g}, the clients that are drawn '
        f'in the mean; got {self.max_clients_per_round}. Or take cohorts of fixed size '
        '(--sampling=fixed_size, sampling.FixedSizeSampling).'
      )

  @classmethod
  def of_cohort(
    cls,
    num_rounds: int,
    num_clients: int,
    clients_per_round: float,
    max_clients_per_round: int,
    num_groups: int = 1,
  ) -> 'TruncatedPoissonSampling':
    """The sampling with this expected cohort, before the cap."""
    drawn = PoissonSampling.of_cohort(
      num_rounds, num_clients, clients_per_round, num_groups
    )
    return cls(
      num_rounds,
      drawn.sampling_probability,
      num_clients,
      max_clients_per_round,
      num_groups,
    )

  @property
  def relations(self) -> tuple[Relation, ...]:  # type: ignore[override]
    """Includes add-or-remove only without groups, whose sizes it would change."""
    own = () if self.num_groups > 1 else (Relation.ADD_OR_REMOVE_ONE,)
    return (*own, Relation.REPLACE_SPECIAL)

  @property
  def largest_group(self) -> int:
    """Number of clients in the largest group."""
    return -(-self.num_clients // self.num_groups)

  def sampled(self, on_everybody: dp_accounting.DpEvent) -> dp_accounting.DpEvent:
    """The noise on a truncated Poisson sample."""
    # The group is counted besides the client in question, which may be additional.
    return scheme.TruncatedPoissonDpEvent(
      self.largest_group,
      self.sampling_probability,
      self.max_clients_per_round,
      on_everybody,
    )

  def _groups(self, seed: int, keys: np.ndarray) -> list[np.ndarray]:
    """Groups of equal size, up to one client."""
    order = np.argsort(draws.hashed(self, seed, keys, 'group'), kind='stable')
    return [
      np.sort(order[group :: self.num_groups]) for group in range(self.num_groups)
    ]
