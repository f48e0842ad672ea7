"""Privacy events of clients whose rounds are drawn together: inert data.

They know nothing of accountants, which read them; `accounting.events` writes them as
JSON, as it does dp-accounting's own.
"""

import dataclasses
from typing import ClassVar, NoReturn, Optional

import dp_accounting

from tff_dp_aggregators import strategies
from tff_dp_aggregators.base import checks

# Most places of a client. Fewer are less private, so that this is a bound; with more,
# what accountants add for round-off would be more than the loss.
MAX_PLACES = 10**12


class OwnDpEvent(dp_accounting.DpEvent):
  """An event of this package, of which dp-accounting would leave out the fields."""

  def to_named_tuple(self) -> NoReturn:
    """Not for such an event."""
    raise ValueError(f'write it with accounting.events.to_json: {self}.')


@dataclasses.dataclass(frozen=True)
class AllocatedDpEvent(OwnDpEvent):
  """A client is in one of many steps, drawn uniformly, and nobody learns in which.

  Random allocation of 1 in t steps (arXiv:2502.08202), to steps with independent noise.
  There may be further places in which the client is in no step.
  """

  num_places: int  # Places that are equally likely.
  num_steps: int  # How many of them are steps, from 1.
  event: dp_accounting.DpEvent  # Of one step, if the client were known to be in it.

  def __post_init__(self) -> None:
    for name in ('num_places', 'num_steps'):
      self.__dict__[name] = checks.check_positive_int(name, getattr(self, name))
    if self.num_steps > self.num_places:
      most = self.num_places
      raise ValueError(f'num_steps must be at most {most}; got {self.num_steps}.')


@dataclasses.dataclass(frozen=True)
class TruncatedPoissonDpEvent(OwnDpEvent):
  """Noise on a Poisson sample, of which a random subset is kept if it is too large.

  dp-accounting has it from 0.6 on, as `TruncatedSubsampledGaussianDpEvent`, for one
  number of clients; this is for all data sets up to a number (`truncated_poisson`).
  """

  num_clients: int  # The most clients besides the one that data sets differ by.
  sampling_probability: float  # In (0, 1].
  max_clients_per_round: int  # The most that are kept.
  event: dp_accounting.DpEvent  # The noise, if all clients were in the round.

  def __post_init__(self) -> None:
    for name in ('num_clients', 'max_clients_per_round'):
      self.__dict__[name] = checks.check_positive_int(name, getattr(self, name))
    name, given = 'sampling_probability', self.sampling_probability
    self.__dict__[name] = checks.check_probability(name, given)


class MixtureDpEvent(OwnDpEvent):
  """All rounds of a matrix mechanism, of which a client is in some that it draws.

  A file has all of it but the strategy, for which it has the checksum. What is read
  from there equals what was written, and can be accounted for by its bound.
  """

  strategy: Optional[strategies.Strategy]  # `None` if it is not known.
  noise_multiplier: float  # Standard deviation of z over the clip norm.
  bound: dp_accounting.DpEvent  # At most as private, of events that compose.
  strategy_checksum: str  # By default that of `strategy`.
  # Whether accountants that compose read the bound, also where others read the event.
  bound_is_tight: ClassVar[bool]

  def __post_init__(self) -> None:
    known = self.strategy_checksum if self.strategy is None else self.strategy.checksum
    if not known or self.strategy_checksum not in ('', known):
      raise ValueError(
        f'strategy_checksum is {self.strategy_checksum!r}, and the strategy has '
        f'{known!r}.'
      )
    self.__dict__['strategy_checksum'] = known


@dataclasses.dataclass(frozen=True)
class BallsInBinsDpEvent(MixtureDpEvent):
  """A client is in the rounds of a bin, drawn uniformly: j, j + b, ... for bin j."""

  bound_is_tight = True
  strategy: Optional[strategies.Strategy] = dataclasses.field(compare=False, repr=False)
  num_bins: int  # b.
  noise_multiplier: float
  bound: dp_accounting.DpEvent = dataclasses.field(hash=False)  # It can hold a list.
  strategy_checksum: str = ''


@dataclasses.dataclass(frozen=True)
class RandomAllocationDpEvent(MixtureDpEvent):
  """A client is in so many of all rounds; all sets of them are equally likely."""

  bound_is_tight = True
  # A strategy of independent noise.
  strategy: Optional[strategies.Strategy] = dataclasses.field(compare=False, repr=False)
  rounds_of_a_client: int  # k.
  noise_multiplier: float
  bound: dp_accounting.DpEvent = dataclasses.field(hash=False)  # It can hold a list.
  strategy_checksum: str = ''


@dataclasses.dataclass(frozen=True)
class BMinSepDpEvent(MixtureDpEvent):
  """A client that is free is in a round at random."""

  bound_is_tight = False
  strategy: Optional[strategies.Strategy] = dataclasses.field(compare=False, repr=False)
  # Rounds after which a client is free again, b; no fewer than the strategy has bands.
  min_separation: int
  sampling_probability: float  # Of a free client, p.
  noise_multiplier: float
  bound: dp_accounting.DpEvent = dataclasses.field(hash=False)  # It can hold a list.
  strategy_checksum: str = ''
