"""Random allocation: each client is in so many rounds, drawn in secret.

The pair of `balls_in_bins` dominates here as well, with all sets of k rounds in place
of the bins: nothing in its proof needs sets to be disjoint. (arXiv:2502.08202 and
2602.17284.) With independent noise the likelihood ratio is a mean of products,

    L = e_k(R_1, ..., R_n) / binomial(n, k),  R_t = exp(y_t / sigma - 1 / (2 sigma^2)),

an elementary symmetric polynomial of independent numbers, which `monte_carlo` computes.

**The bound.** Cut a random order of the rounds into k blocks, whose sizes are fixed
beforehand and add up to n, and draw a round of each block. By symmetry all sets of k
rounds are equally likely. To know the blocks makes it no harder to tell P from Q (H_a
is jointly convex; arXiv:2502.08202, Lemma 3.2), and given the blocks L is a product: k
times one round of a block, which accountants read and compose. Sizes are floor(n / k)
and ceil(n / k), as many of each as add up to n, so that no round is left out.
"""

import dataclasses
import math
from collections.abc import Iterator
from typing import Callable

import dp_accounting
import numpy as np

from tff_dp_aggregators import strategies
from tff_dp_aggregators.base import checks
from tff_dp_aggregators.sampling import balls_in_bins
from tff_dp_aggregators.sampling import draws
from tff_dp_aggregators.sampling import events
from tff_dp_aggregators.sampling import scheme
from tff_dp_aggregators.strategies import registry


@dataclasses.dataclass(frozen=True)
class RandomAllocation(scheme.Allocation):
  """Every client is in k of n rounds; all sets of k rounds are equally likely.

  Clients draw independently of each other, and nobody learns what they drew. Noise is
  independent, or k = 1.

  Example:
    >>> RandomAllocation.of_cohort(1000, num_clients=50_000, clients_per_round=100)
    RandomAllocation(num_rounds=1000, rounds_of_a_client=2)
  """

  name = 'random_allocation'
  flag = 'random_allocation'

  num_rounds: int  # Rounds in all, n.
  rounds_of_a_client: int  # Rounds of each client, k, at most `num_rounds`.

  def __post_init__(self) -> None:
    super().__post_init__()
    if self.rounds_of_a_client > self.num_rounds:
      raise ValueError(
        f'rounds_of_a_client must be at most num_rounds={self.num_rounds}; got '
        f'{self.rounds_of_a_client}.'
      )

  @classmethod
  def of_cohort(
    cls, num_rounds: int, num_clients: int, clients_per_round: float
  ) -> 'RandomAllocation':
    """The fewest rounds of a client with so many clients a round in the mean."""
    num_rounds = checks.check_positive_int('num_rounds', num_rounds)
    num_clients = checks.check_positive_int('num_clients', num_clients)
    scheme.check_mean_cohort(clients_per_round, num_clients)
    return cls(num_rounds, math.ceil(num_rounds * clients_per_round / num_clients))

  @property
  def limits(self) -> strategies.Participation:
    """Any rounds, as many as a client has."""
    return strategies.Participation(self.num_rounds, 1, self.rounds_of_a_client)

  def check(self, strategy: strategies.Strategy) -> None:
    """Checks that noise is independent, or a client in one round."""
    independent = strategy == strategies.Identity(strategy.num_rounds)
    if self.rounds_of_a_client > 1 and not independent:
      raise ValueError(
        f'with {self.rounds_of_a_client} rounds of a client, drawn independently of '
        'each other, nothing is known of correlated noise '
        f'({registry.name_of(strategy)}). Take --sampling=balls_in_bins '
        '(sampling.BallsInBins), or independent noise (gaussian).'
      )

  def event(
    self, strategy: strategies.Strategy, noise: scheme.Noise
  ) -> dp_accounting.DpEvent:
    """The pair of the module's docstring, with its bound; the noise is Gaussian."""
    times = self.rounds_of_a_client
    if times == 1:
      return balls_in_bins.event(strategy, self.num_rounds, noise)
    one = noise.event(noise.multiplier / strategy.sensitivity(None))
    size, larger = divmod(self.num_rounds, times)
    blocks = [
      dp_accounting.SelfComposedDpEvent(events.AllocatedDpEvent(each, each, one), count)
      for each, count in ((size, times - larger), (size + 1, larger))
      if count
    ]
    bound = blocks[0] if len(blocks) == 1 else dp_accounting.ComposedDpEvent(blocks)
    return events.RandomAllocationDpEvent(strategy, times, noise.multiplier, bound)

  def expected_cohort(self, num_clients: int) -> float:
    """All clients' rounds, spread over the run."""
    return num_clients * self.rounds_of_a_client / self.num_rounds

  def _draw(
    self, num_clients: int, hashed: Callable[..., np.ndarray]
  ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """By Floyd's algorithm, for all clients at once.

    (Bentley, Floyd, CACM 1987.) Each step draws from one round more than that before,
    and takes the new one where what it drew is taken.
    """
    times, dtype = self.rounds_of_a_client, draws.number_type(self.num_rounds)
    clients = np.arange(num_clients)
    drawn: np.ndarray = np.empty((times, num_clients), dtype)
    for step, new in enumerate(range(self.num_rounds - times, self.num_rounds)):
      drawn[step] = hashed('round', step) % np.uint64(new + 1)
      taken = (drawn[:step] == drawn[step]).any(axis=0)
      drawn[step, taken] = new
      yield clients, drawn[step]
