"""What schedules have in common whose clients draw their rounds before the first."""

import abc
import dataclasses
import functools
from collections.abc import Iterator
from typing import Any, ClassVar, NamedTuple, Optional

import numpy as np

from tff_dp_aggregators.accounting import schemas
from tff_dp_aggregators.base import checks
from tff_dp_aggregators.learning.schedules import base
from tff_dp_aggregators.learning.schedules import draws
from tff_dp_aggregators.learning.schedules import dropouts as dropouts_lib


@dataclasses.dataclass(frozen=True)
class AllocationSchedule(base.Schedule):
  """A schedule whose clients draw places, each by itself, once for the whole run.

  All draws are made when the first round is asked for, and sorted; from then on a round
  costs its cohort, whose clients are in the order of their numbers. A cohort may be
  empty.

  Attributes:
    sampled_as: The schemas that schedules of this class have.
    sampling: How clients draw, as the accountant assumes it.
    num_clients: Clients that draw.
    seed: Same seed, same cohorts.
    dropouts: Who does not report; `None` if everybody does.
    clients_per_round: The mean's denominator, a public constant; `None` for the
      expected size of a cohort, which tells who knows the sampling how many clients
      there are.

  Raises:
    TypeError: If an argument is not of its type.
    ValueError: If a number is out of range.
  """

  sampled_as: ClassVar[type]

  sampling: Any
  num_clients: int
  seed: int
  dropouts: Optional[dropouts_lib.Dropouts] = None
  clients_per_round: Optional[float] = None  # type: ignore[assignment]

  def __post_init__(self) -> None:
    if not self.serves(self.sampling):
      raise TypeError(
        f'sampling must be an accounting.schemas.{self.sampled_as.__name__}; got '
        f'{self.sampling!r}.'
      )
    dropouts_lib.check_dropouts(self.dropouts)
    num_clients = checks.check_positive_int('num_clients', self.num_clients)
    object.__setattr__(self, 'num_clients', num_clients)
    object.__setattr__(self, 'seed', dropouts_lib.check_seed(self.seed))
    expected = schemas.kind_of(self.sampling).cohort(self.sampling, num_clients)
    base.set_denominator(self, expected)

  @property
  @abc.abstractmethod
  def _num_places(self) -> int:
    """Places that have rounds, in turn: the first round has place 0."""

  @abc.abstractmethod
  def _draw(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Clients with a place of each, again and again until all have all of theirs.

    Places from `_num_places` on are in no round.
    """

  def _hashed(
    self, purpose: str, step: int = 0, clients: Any = slice(None)
  ) -> np.ndarray:
    """What clients draw, each by its key: uint64 of shape [clients]."""
    keys = self.keys[clients]
    return draws.hashed(self.sampling, self.seed, keys, purpose, step)

  @property
  def schema(self) -> Any:
    """The sampling."""
    return self.sampling

  def attempts(self, round_num: int) -> tuple[base.Attempt, ...]:
    """The one attempt at a round.

    Args:
      round_num: The round, from 0.

    Raises:
      TypeError: If it is no whole number.
      ValueError: If it is out of range.
    """
    round_num = self.check_round(round_num)
    place = round_num % self._num_places
    clients, starts = self._by_place
    drawn = clients[starts[place] : starts[place + 1]]
    return base.attempts_of(round_num, [drawn], self.dropouts, self.keys)

  @functools.cached_property
  def _by_place(self) -> '_ByPlace':
    num_places, num_clients = self._num_places, self.num_clients
    keys = []  # One number for place and client: faster to sort than pairs.
    for clients, places in self._draw():
      placed = places < num_places
      keys.append(places[placed].astype(np.int64) * num_clients + clients[placed])
    by_place = np.concatenate(keys)
    by_place.sort()  # And within a place by client.
    starts = np.searchsorted(by_place, np.arange(num_places + 1) * num_clients)
    by_place %= num_clients
    return _ByPlace(by_place.astype(draws.number_type(num_clients)), starts)

  @classmethod
  def serves(cls, schema: Any) -> bool:
    """The schemas that are named for the class."""
    return isinstance(schema, cls.sampled_as)

  @classmethod
  def of_schema(
    cls,
    schema: Any,
    num_clients: int,
    clients_per_round: float,
    seed: int,
    *,
    dropouts: Optional[dropouts_lib.Dropouts] = None,
    reporting_goal: Optional[int] = None,
  ) -> 'AllocationSchedule':
    """The schedule of this sampling.

    Args:
      schema: The sampling.
      num_clients: Clients that draw.
      clients_per_round: The mean's denominator.
      seed: Same seed, same cohorts.
      dropouts: Who does not report; `None` if everybody does.
      reporting_goal: Refused if there is one.

    Raises:
      TypeError: If an argument is not of its type.
      ValueError: If an argument does not fit the schema.
    """
    base.refuse_reporting_goal(reporting_goal)
    return cls(schema, num_clients, seed, dropouts, clients_per_round)


class _ByPlace(NamedTuple):
  """Clients by place, and where those of each place begin, and the end."""

  clients: np.ndarray
  starts: np.ndarray
