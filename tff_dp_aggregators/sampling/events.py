"""Privacy events of clients whose rounds are drawn together: inert data.

They know nothing of accountants, which read them; `accounting.events` writes them as
JSON, as it does dp-accounting's own.
"""

import dataclasses
from typing import ClassVar, NoReturn, Optional

import dp_accounting

from tff_dp_aggregators import strategies
from tff_dp_aggregators.base import checks

# Of a client's places: fewer are less private, so that so many are a bound; with more,
# what accountants add for round-off would be more than the loss.
MAX_PLACES = 10**12


class _DrawnDpEvent(dp_accounting.DpEvent):
  """An event of which dp-accounting would leave out the fields, writing it."""

  def to_named_tuple(self) -> NoReturn:
    """Not for this kind of event.

    Raises:
      ValueError: Always.
    """
    raise ValueError(f'write it with accounting.events.to_json: {self}.')


@dataclasses.dataclass(frozen=True)
class AllocatedDpEvent(_DrawnDpEvent):
  """A client is in one of many steps, drawn uniformly, and nobody learns in which.

  Random allocation of 1 in t steps (arXiv:2502.08202), to steps with independent noise.
  There may be further places in which the client is in no step.

  Attributes:
    num_places: Places that are equally likely.
    num_steps: How many of them are steps, from 1.
    event: Of one step, if it were known that the client is in it.

  Raises:
    TypeError: If a number is not whole.
    ValueError: If a number is out of range.

  Example:
    >>> gaussian = dp_accounting.GaussianDpEvent(1.0)
    >>> AllocatedDpEvent(num_places=10, num_steps=8, event=gaussian).num_steps
    8
  """

  num_places: int
  num_steps: int
  event: dp_accounting.DpEvent

  def __post_init__(self) -> None:
    for name in ('num_places', 'num_steps'):
      value = checks.check_positive_int(name, getattr(self, name))
      object.__setattr__(self, name, value)
    if self.num_steps > self.num_places:
      raise ValueError(
        f'num_steps must be at most num_places, {self.num_places}; got '
        f'{self.num_steps}.'
      )


class MixtureDpEvent(_DrawnDpEvent):
  """All rounds of a matrix mechanism, of which a client is in some that it draws.

  A file has all of it but the strategy, for which it has the checksum. What is read
  from there equals what was written, and can be accounted for by its bound.

  Attributes:
    strategy: Strategy matrix C; `None` if it is not known.
    noise_multiplier: Standard deviation of z over the clip norm.
    bound: An event that is at most as private, of kinds that accountants compose.
    strategy_checksum: By default that of `strategy`.
    bound_is_tight: Whether accountants that compose read the bound, also where others
      read the event.

  Raises:
    ValueError: If `strategy_checksum` is not that of the strategy, or there is neither.
  """

  strategy: Optional[strategies.Strategy]
  noise_multiplier: float
  bound: dp_accounting.DpEvent
  strategy_checksum: str
  bound_is_tight: ClassVar[bool]

  def __post_init__(self) -> None:
    known = self.strategy_checksum if self.strategy is None else self.strategy.checksum
    if not known or self.strategy_checksum not in ('', known):
      raise ValueError(
        f'strategy_checksum is {self.strategy_checksum!r}, and the strategy has '
        f'{known!r}.'
      )
    object.__setattr__(self, 'strategy_checksum', known)


@dataclasses.dataclass(frozen=True)
class BallsInBinsDpEvent(MixtureDpEvent):
  """A client is in the rounds of a bin, drawn uniformly.

  Attributes, besides those of `MixtureDpEvent`:
    num_bins: Bins, b; bin j has the rounds j, j + b, ...
  """

  bound_is_tight = True
  strategy: Optional[strategies.Strategy] = dataclasses.field(compare=False, repr=False)
  num_bins: int
  noise_multiplier: float
  bound: dp_accounting.DpEvent = dataclasses.field(hash=False)  # It can hold a list.
  strategy_checksum: str = ''


@dataclasses.dataclass(frozen=True)
class BMinSepDpEvent(MixtureDpEvent):
  """A client that is free is in a round at random.

  Attributes, besides those of `MixtureDpEvent`:
    min_separation: Rounds after which a client is free again, b, and no fewer than the
      strategy has bands.
    sampling_probability: Of a free client, p.
  """

  bound_is_tight = False
  strategy: Optional[strategies.Strategy] = dataclasses.field(compare=False, repr=False)
  min_separation: int
  sampling_probability: float
  noise_multiplier: float
  bound: dp_accounting.DpEvent = dataclasses.field(hash=False)  # It can hold a list.
  strategy_checksum: str = ''
