"""A mechanism by name: what flags, reports and run directories speak of.

`Mechanism` is the small record from which everything about privacy follows: which
strategy, who may take part, how much noise. Flags become one, a run directory stores
one, a report explains one.
"""

import dataclasses
from typing import Any, Optional

import dp_accounting

from tff_dp_aggregators import strategies
from tff_dp_aggregators.accounting import calibration
from tff_dp_aggregators.accounting import events

NAMES = ('gaussian', 'tree', 'banded')


@dataclasses.dataclass(frozen=True)
class Mechanism:
  """A matrix mechanism under a participation schema.

  Attributes:
    name: One of `NAMES`.
    participation: Who may take part when, and for how many rounds; not fixed-epoch.
    noise_multiplier: Standard deviation of z over the clip norm.
    num_bands: Bands of `banded`; `None` for its default, `min_separation`, the most
      that cost no sensitivity. Must be `None` for other mechanisms.

  Raises:
    ValueError: If the name is unknown or a number out of range.

  Example:
    >>> participation = strategies.Participation.from_rounds_between(2000, 313, 6)
    >>> mechanism = Mechanism('tree', participation, noise_multiplier=7.0)
    >>> round(mechanism.effective_noise_multiplier, 4)
    0.7876
  """

  name: str
  participation: strategies.Participation
  noise_multiplier: float
  num_bands: Optional[int] = None

  def __post_init__(self) -> None:
    noise_multiplier = events.check_noise_multiplier(self.noise_multiplier)
    object.__setattr__(self, 'noise_multiplier', noise_multiplier)
    if self.participation.fixed_epoch:
      raise ValueError(
        'a mechanism by name is for min-separation schemas; leave out fixed_epoch: '
        'what holds for min_separation holds for fixed epochs of that length too.'
      )
    strategy_for(self.name, self.participation, self.num_bands)

  @classmethod
  def for_target(
    cls,
    name: str,
    participation: strategies.Participation,
    target_epsilon: float,
    target_delta: float,
    num_bands: Optional[int] = None,
  ) -> 'Mechanism':
    """The mechanism with the least noise that keeps a privacy target.

    Args:
      name: One of `NAMES`.
      participation: Who may take part when.
      target_epsilon: Positive.
      target_delta: Between 0 and 1, exclusive.
      num_bands: See the class.

    Raises:
      ValueError: If an argument is out of range.
    """
    strategy = strategy_for(name, participation, num_bands)
    noise_multiplier = calibration.noise_multiplier_for_target(
      strategy, participation, target_epsilon, target_delta
    )
    return cls(name, participation, noise_multiplier, num_bands)

  @property
  def strategy(self) -> strategies.Strategy:
    """Strategy matrix C."""
    return strategy_for(self.name, self.participation, self.num_bands)

  @property
  def sensitivity(self) -> float:
    """sens(C) under the participation."""
    return self.strategy.sensitivity(self.participation)

  @property
  def effective_noise_multiplier(self) -> float:
    """`noise_multiplier / sens(C)`, what accounting needs."""
    return self.noise_multiplier / self.sensitivity

  @property
  def event(self) -> dp_accounting.DpEvent:
    """The event of all rounds together."""
    return events.run_event(self.strategy, self.participation, self.noise_multiplier)

  def to_json(self) -> dict[str, Any]:
    """JSON-ready values that `from_json` reads back exactly."""
    return {
      'name': self.name,
      'num_rounds': self.participation.num_rounds,
      'min_separation': self.participation.min_separation,
      'max_participations': self.participation.max_participations,
      'num_bands': self.num_bands,
      'noise_multiplier': self.noise_multiplier,
      'strategy_checksum': self.strategy.checksum,
    }

  @classmethod
  def from_json(cls, data: dict[str, Any]) -> 'Mechanism':
    """Reads what `to_json` wrote.

    Raises:
      ValueError: If something is missing, or the strategy that the values give today
        is not the one whose checksum was stored.
    """
    try:
      mechanism = cls(
        data['name'],
        strategies.Participation(
          data['num_rounds'], data['min_separation'], data['max_participations']
        ),
        data['noise_multiplier'],
        data['num_bands'],
      )
      stored = data['strategy_checksum']
    except KeyError as e:
      raise ValueError(f'the stored mechanism lacks {e}.') from e
    if mechanism.strategy.checksum != stored:
      raise ValueError(
        f'the stored mechanism used the strategy {stored}, but these parameters '
        f'give {mechanism.strategy.checksum}: they were altered, or written by '
        'another release.'
      )
    return mechanism


def strategy_for(
  name: str,
  participation: strategies.Participation,
  num_bands: Optional[int] = None,
) -> strategies.Strategy:
  """The strategy of a named mechanism.

  Args:
    name: One of `NAMES`.
    participation: Who may take part when.
    num_bands: Bands of `banded`; `None` for `min_separation`.

  Raises:
    ValueError: If the name is unknown, or `num_bands` given where there are none.
  """
  if name not in NAMES:
    raise ValueError(f'unknown mechanism {name!r}; known: {", ".join(NAMES)}.')
  if name == 'banded':
    if num_bands is None:
      num_bands = min(participation.min_separation, participation.num_rounds)
    return strategies.BandedToeplitz.square_root(participation.num_rounds, num_bands)
  if num_bands is not None:
    raise ValueError(f'num_bands={num_bands} is for banded; {name} has no bands.')
  if name == 'tree':
    return strategies.BinaryTree(participation.num_rounds)
  return strategies.Identity(participation.num_rounds)
