"""Participation schemas: in which rounds one client may take part.

`min_separation` is a difference of rounds: two rounds `r1 < r2` of one client satisfy
`r2 - r1 >= min_separation`. The DP-FTRL accountant of TF Privacy counts the rounds in
between, `r2 - r1 - 1` (`Participation.from_rounds_between`).
"""

import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from typing import Any, Optional

import numpy as np

from tff_dp_aggregators.base import checks

MAX_BANDS = 4096  # A matrix with a row and a column for each band takes 128 MiB.


@dataclasses.dataclass(frozen=True)
class Participation:
  """Who may take part when: the (k, b) schemas of arXiv:2306.08153, section 2.

  Attributes:
    num_rounds: Total number n of rounds.
    min_separation: Smallest difference b of two rounds of one client. 1 allows every
      round.
    max_participations: Maximum number k of rounds of one client; `None` becomes the
      number that `min_separation` allows. A larger number is kept as given;
      `possible_participations` is the number that can occur.
    fixed_epoch: Whether the differences of one client's rounds are multiples of
      exactly `min_separation`, as when every epoch goes through the clients in the
      same order. A client may still skip an epoch.

  Example:
    >>> participation = Participation(num_rounds=100, min_separation=30)
    >>> participation.possible_participations
    4
    >>> participation.rounds
    (0, 30, 60, 90)
    >>> Participation(5, 2, 2, fixed_epoch=True).allows((0, 3))
    False
  """

  num_rounds: int
  min_separation: int = 1
  max_participations: Optional[int] = None
  fixed_epoch: bool = False

  def __post_init__(self) -> None:
    if not isinstance(self.fixed_epoch, bool):
      raise TypeError(f'fixed_epoch must be a bool, got {self.fixed_epoch!r}.')
    for name in ('num_rounds', 'min_separation', 'max_participations'):
      value = getattr(self, name)
      if name == 'max_participations' and value is None:
        value = self.possible_by_separation
      object.__setattr__(self, name, checks.check_positive_int(name, value))

  @classmethod
  def single(cls, num_rounds: int) -> 'Participation':
    """Returns the schema in which each client takes part in at most one round."""
    return cls(num_rounds, min_separation=1, max_participations=1)

  @classmethod
  def from_rounds_between(
    cls,
    num_rounds: int,
    rounds_between: int,
    max_participations: Optional[int] = None,
  ) -> 'Participation':
    """Returns the schema from the rounds strictly between two, as in TF Privacy."""
    rounds_between = checks.check_int('rounds_between', rounds_between, at_least=0)
    return cls(num_rounds, rounds_between + 1, max_participations)

  @property
  def possible_by_separation(self) -> int:
    """Maximum rounds of one client by `min_separation` alone."""
    return -(-self.num_rounds // self.min_separation)

  @property
  def assumed_at_most(self) -> Optional[int]:
    """`max_participations`, or `None` if the separation already implies it."""
    possible = self.possible_participations
    return possible if possible < self.possible_by_separation else None

  @property
  def possible_participations(self) -> int:
    """Maximum rounds of one client by `min_separation` and `max_participations`."""
    assert self.max_participations is not None  # Set by __post_init__.
    return min(self.max_participations, self.possible_by_separation)

  @property
  def rounds(self) -> tuple[int, ...]:
    """The earliest, densest pattern the schema allows: 0, b, 2b, ..."""
    return tuple(m * self.min_separation for m in range(self.possible_participations))

  def allows(self, rounds: Sequence[int]) -> bool:
    """Whether one client may take part in exactly these rounds, in increasing order."""
    gaps = [later - earlier for earlier, later in zip(rounds, rounds[1:])]
    if len(rounds) > self.possible_participations or (
      rounds and not 0 <= rounds[0] <= rounds[-1] < self.num_rounds
    ):
      return False
    if self.fixed_epoch:
      return all(gap > 0 and gap % self.min_separation == 0 for gap in gaps)
    return all(gap >= self.min_separation for gap in gaps)

  def patterns(self) -> Iterator[tuple[int, ...]]:
    """Yields every pattern of rounds the schema allows, for brute-force checks.

    The number of patterns grows exponentially with `num_rounds`.
    """
    for count in range(self.possible_participations + 1):
      for rounds in itertools.combinations(range(self.num_rounds), count):
        if self.allows(rounds):
          yield rounds


def require(participation: Any) -> Participation:
  """Returns the schema; raises TypeError for anything else, `None` included."""
  if not isinstance(participation, Participation):
    raise TypeError(
      f'participation must be a strategies.Participation, got {participation!r}. If a '
      'client may take part in every round it is strategies.Participation(num_rounds), '
      'if in one of them strategies.Participation.single(num_rounds).'
    )
  return participation


def check(num_rounds: int, participation: Optional[Participation]) -> Participation:
  """Returns the schema, a single participation for `None`; checks `num_rounds`."""
  if participation is None:
    return Participation.single(num_rounds)
  if require(participation).num_rounds != num_rounds:
    raise ValueError(
      f'participation.num_rounds is {participation.num_rounds}, but num_rounds is '
      f'{num_rounds}; build both for the same number.'
    )
  return participation


class PopulationTooSmallError(ValueError):
  """There are too few clients to fill every round within the participation limits."""


def check_population(
  num_clients: int,
  clients_per_round: int,
  participation: Participation,
) -> None:
  """Raises PopulationTooSmallError if the clients cannot fill every round.

  Any `min_separation` successive rounds have no client in common, and all rounds
  together need `clients_per_round * num_rounds` participations. These two conditions
  are sufficient: let clients take turns. In fixed epochs, rounds a multiple of
  `min_separation` apart share clients with no other rounds. The error says what fits.
  """
  checks.check_positive_int('num_clients', num_clients)
  checks.check_positive_int('clients_per_round', clients_per_round)
  needed = _clients_needed(clients_per_round, participation)
  if num_clients >= needed:
    return
  fits = [f'num_clients of at least {needed}']
  fitting_cohort = _fitting_cohort(num_clients, participation)
  if fitting_cohort:
    fits.append(f'clients_per_round of at most {fitting_cohort}')
  if num_clients >= clients_per_round:
    fits.append('a smaller min_separation or a larger max_participations')
  limits = [f'min_separation={participation.min_separation}']
  if participation.assumed_at_most is not None:
    limits.append(f'max_participations={participation.assumed_at_most}')
  raise PopulationTooSmallError(
    f'{participation.num_rounds} rounds of clients_per_round={clients_per_round} '
    f'need {needed} clients with {" and ".join(limits)}; num_clients={num_clients} is '
    f'too few. What would fit: {", or ".join(fits)}.'
  )


def allowed_separation(num_clients: int, clients_per_round: int) -> int:
  """The largest min_separation with which `num_clients` can fill every cohort."""
  checks.check_positive_int('num_clients', num_clients)
  checks.check_positive_int('clients_per_round', clients_per_round)
  if clients_per_round > num_clients:
    raise ValueError(
      f'clients_per_round={clients_per_round} is larger than num_clients='
      f'{num_clients}. Lower it, or raise num_clients.'
    )
  return num_clients // clients_per_round


def _clients_needed(cohort: int, limits: Participation) -> int:
  num_rounds, times = limits.num_rounds, limits.possible_participations
  window = min(limits.min_separation, num_rounds)
  if not limits.fixed_epoch:
    return max(cohort * window, -(-cohort * num_rounds // times))
  epochs, longer = divmod(num_rounds, window)  # `longer` classes have one more round.
  return longer * max(cohort, -(-cohort * (epochs + 1) // times)) + (
    window - longer
  ) * max(cohort, -(-cohort * epochs // times))


def _fitting_cohort(population: int, limits: Participation) -> int:
  """The largest cohort that the population can fill; 0 if there is none."""
  fits, fails = 0, population + 1
  while fails - fits > 1:
    middle = (fits + fails) // 2
    if _clients_needed(middle, limits) <= population:
      fits = middle
    else:
      fails = middle
  return fits


def free_bands(limits: Participation) -> int:
  """Maximum bands at no cost in sensitivity: a client's columns share no row."""
  can_return = limits.possible_participations > 1
  bands = limits.min_separation if can_return else limits.num_rounds
  return min(bands, limits.num_rounds, MAX_BANDS)


def worst_sum(weights: np.ndarray, participation: Participation) -> np.ndarray:
  """Maximum over allowed patterns of the sum of the weights of a pattern's rounds.

  `weights`, of shape [..., m], are not negative and for the first m rounds. The result
  has shape [...] and takes O(m max_participations) for each entry.
  """
  num_rounds = weights.shape[-1]
  separation = participation.min_separation
  max_count = min(participation.possible_participations, -(-num_rounds // separation))
  if max_count == 1:
    return weights.max(axis=-1)
  if participation.fixed_epoch:
    class_sums = [
      np.sort(weights[..., first::separation], axis=-1)[..., -max_count:].sum(axis=-1)
      for first in range(min(separation, num_rounds))
    ]
    return np.max(class_sums, axis=0)
  # best[c] is the maximum for at most c of the rounds before t; recent[s % b] holds
  # `best` as it was before round s, for the last b rounds s.
  best = np.zeros((max_count + 1, *weights.shape[:-1]))
  recent = np.zeros((separation, *best.shape))
  for t in range(num_rounds):
    recent[t % separation] = best
    before = recent[max(0, t + 1 - separation) % separation]
    best = best.copy()
    np.maximum(best[1:], weights[..., t] + before[:-1], out=best[1:])
  return best[-1]


def best_before(norms: np.ndarray, participation: Participation) -> np.ndarray:
  """Entry j: maximum sum of norms of earlier rounds of a client who is in round j.

  `norms` are squared norms of disjoint columns, [n]. Takes O(n max_participations).
  """
  others = participation.possible_participations - 1
  separation = participation.min_separation
  best = np.zeros(len(norms))
  if not participation.fixed_epoch:
    for _ in range(others):
      best = np.maximum.accumulate(norms + _delay(best, separation))
    return _delay(best, separation)
  if others:
    largest = np.zeros((others, separation))  # In each residue class so far, unsorted.
    for first in range(0, len(norms), separation):
      epoch = norms[first : first + separation]
      members = np.arange(len(epoch))
      best[first : first + separation] = largest.sum(axis=0)[: len(epoch)]
      smallest = largest.argmin(axis=0)[: len(epoch)]
      largest[smallest, members] = np.maximum(largest[smallest, members], epoch)
  return best


def _delay(values: np.ndarray, rounds: int) -> np.ndarray:
  delayed = np.zeros_like(values)
  delayed[rounds:] = values[: max(0, len(values) - rounds)]
  return delayed
