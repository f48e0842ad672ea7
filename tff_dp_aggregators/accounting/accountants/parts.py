"""Parts: what an event is made of, in the one form in which all accountants read it.

`parts` checks that an event means something under a neighbouring relation and takes it
apart: composed Gaussians are one, what was sampled is sampled from one Gaussian,
degenerate parameters (no noise, infinite noise, nobody sampled, everybody sampled) are
gone, and equal parts are counted. `Accountant` is the base of all that read parts.

Sampling amplifies privacy for some relations only:

| event | valid under |
|---|---|
| `PoissonSampledDpEvent` | `ADD_OR_REMOVE_ONE` |
| `SampledWithoutReplacementDpEvent` | `REPLACE_ONE`, `ADD_OR_REMOVE_ONE` |
| `SingleEpochTreeAggregationDpEvent` | `REPLACE_SPECIAL` |
| `events.AllocatedDpEvent`, `BallsInBinsDpEvent`, `BMinSepDpEvent` | \
`ADD_OR_REMOVE_ONE`, `REPLACE_SPECIAL` |
| `discrete_events` | `REPLACE_SPECIAL`, `REPLACE_ONE` |

The last are of noise that clients add: who is removed takes a share of it along.

All others are valid under each, with one trap: a noise multiplier is relative to the
sensitivity *under that relation*. Replacing one client's contribution by another moves
a sum by up to twice the clip norm, so under `REPLACE_ONE` the event of noise with
standard deviation `noise_multiplier * clip_norm` has half that noise multiplier. So it
has within `SampledWithoutReplacementDpEvent` under both: who joins a cohort of fixed
size takes the place of another.
"""

import abc
import fractions
import math
from collections.abc import Iterator
from typing import Any, NamedTuple, Optional

import dp_accounting
from dp_accounting import NeighboringRelation as Relation

from tff_dp_aggregators.accounting import discrete_events
from tff_dp_aggregators.accounting import events

# An event, and how many times it happened.
Part = tuple[dp_accounting.DpEvent, int]

_ONLY_UNDER = {
  dp_accounting.PoissonSampledDpEvent: (Relation.ADD_OR_REMOVE_ONE,),
  dp_accounting.SampledWithoutReplacementDpEvent: (
    Relation.REPLACE_ONE,
    Relation.ADD_OR_REMOVE_ONE,
  ),
  dp_accounting.SingleEpochTreeAggregationDpEvent: (Relation.REPLACE_SPECIAL,),
  **dict.fromkeys(
    (events.AllocatedDpEvent, events.BallsInBinsDpEvent, events.BMinSepDpEvent),
    (Relation.ADD_OR_REMOVE_ONE, Relation.REPLACE_SPECIAL),
  ),
  **dict.fromkeys(
    discrete_events.KINDS, (Relation.REPLACE_SPECIAL, Relation.REPLACE_ONE)
  ),
}


def parts(event: dp_accounting.DpEvent, relation: Relation) -> list[Part]:
  """Takes an event apart.

  Args:
    event: Any event.
    relation: Neighbouring relation it is to be read under.

  Returns:
    Distinct events and how often each is composed; empty if nothing is learnt, one
    `NonPrivateDpEvent` if something is released without noise. All Gaussians that are
    not sampled are one.

  Raises:
    dp_accounting.UnsupportedEventError: If a part is not valid under `relation`.
    ValueError: If a parameter of the event is out of range.

  Example:
    >>> gaussian = dp_accounting.GaussianDpEvent(2.0)
    >>> sampled = dp_accounting.PoissonSampledDpEvent(1.0, gaussian)
    >>> event = dp_accounting.ComposedDpEvent([sampled] * 4)
    >>> parts(event, Relation.ADD_OR_REMOVE_ONE)
    [(GaussianDpEvent(noise_multiplier=1.0), 1)]
  """
  for each in nested(event):
    only = _ONLY_UNDER.get(type(each), (relation,))
    if relation not in only:
      names = ' or '.join(valid.name for valid in only)
      raise dp_accounting.UnsupportedEventError(
        f'{type(each).__name__} is valid under the neighbouring relation {names} '
        f'alone, and {relation.name} was asked for.'
      )
  counted: dict[str, Part] = {}
  for part, count in _flat(events.simplify(_normal(event))):
    key = repr(part)  # Some events hold lists and have no hash.
    counted[key] = (part, count + counted.get(key, (part, 0))[1])
  return list(counted.values())


class Instead(NamedTuple):
  """The bound that stands where an accountant has none of its own.

  Attributes:
    accountant: Whose it is.
    reason: Why, in a few words.
  """

  accountant: str
  reason: str


class Accountant(dp_accounting.PrivacyAccountant):
  """Collects the parts of what it composes; subclasses say which ones they read."""

  reads = 'events'  # For messages: "Only ... are supported."
  # Whether it reads mixtures by their bounds; only if all that it says is of a bound.
  reads_bounds = False

  def __init__(self, relation: Relation = Relation.REPLACE_SPECIAL) -> None:
    super().__init__(relation)
    self._composed: list[dp_accounting.DpEvent] = []

  def instead(self, target_delta: float) -> Optional[Instead]:
    """Whose bound `get_epsilon` returns, if not this accountant's own, and why."""
    return None

  def _read(self, event: dp_accounting.DpEvent) -> list[Part]:
    """The parts; of mixtures the bound, where that is tight or all there is."""
    found = []
    for part, count in parts(event, self.neighboring_relation):
      if (
        self.reads_bounds
        and isinstance(part, events.MixtureDpEvent)
        and (part.bound_is_tight or part.strategy is None)
      ):
        bound = parts(part.bound, self.neighboring_relation)
        found += [(each, times * count) for each, times in bound]
      else:
        found.append((part, count))
    return found

  def doubt(self, target_delta: float) -> float:
    """Probability that what `get_epsilon` returns is too small; 0 unless it is drawn.

    Args:
      target_delta: As for `get_epsilon`, of whose delta it is a part already.
    """
    del target_delta
    return 0.0

  @abc.abstractmethod
  def _can_read(self, part: dp_accounting.DpEvent) -> bool:
    """Whether the accountant knows what this part means."""

  def _add(self, part: dp_accounting.DpEvent, count: int) -> None:
    self._composed.append(dp_accounting.SelfComposedDpEvent(part, count))

  def _maybe_compose(
    self, event: dp_accounting.DpEvent, count: int, do_compose: bool
  ) -> Optional['dp_accounting.PrivacyAccountant.CompositionErrorDetails']:
    try:
      found = self._read(event)
    except dp_accounting.UnsupportedEventError as error:
      return self.CompositionErrorDetails(event, str(error))
    for part, _ in found:
      if not isinstance(part, dp_accounting.NonPrivateDpEvent) and not self._can_read(
        part
      ):
        return self.CompositionErrorDetails(part, f'Only {self.reads} are supported.')
    if do_compose:
      for part, times in found:
        self._add(part, times * count)
    return None

  def _parts(self) -> list[Part]:
    return parts(
      dp_accounting.ComposedDpEvent(self._composed), self.neighboring_relation
    )


def is_non_private(found: list[Part]) -> bool:
  """Whether something was released without noise."""
  return any(isinstance(part, dp_accounting.NonPrivateDpEvent) for part, _ in found)


def is_noise(part: Any) -> bool:
  """Whether it is Gaussian or Laplace noise on everybody."""
  return isinstance(part, (dp_accounting.GaussianDpEvent, dp_accounting.LaplaceDpEvent))


def is_poisson(part: Any, noise: type) -> bool:
  """Whether it is such noise on a Poisson sample."""
  return isinstance(part, dp_accounting.PoissonSampledDpEvent) and isinstance(
    part.event, noise
  )


def is_allocated(part: Any) -> bool:
  """Whether it is Gaussian noise in a step that is drawn at random."""
  return isinstance(part, events.AllocatedDpEvent) and isinstance(
    part.event, dp_accounting.GaussianDpEvent
  )


def is_without_replacement(part: Any) -> bool:
  """Whether it is Gaussian noise on a sample of fixed size."""
  return isinstance(
    part, dp_accounting.SampledWithoutReplacementDpEvent
  ) and isinstance(part.event, dp_accounting.GaussianDpEvent)


def up(exact: fractions.Fraction) -> float:
  """The smallest float that is not below an exact number.

  Example:
    >>> up(fractions.Fraction(1, 2)), up(fractions.Fraction(1, 10)) * 10 >= 1
    (0.5, True)
  """
  try:
    rounded = float(exact)
  except OverflowError:
    return math.inf
  return rounded if rounded >= exact else math.nextafter(rounded, math.inf)


def nested(event: dp_accounting.DpEvent) -> Iterator[dp_accounting.DpEvent]:
  """An event, and all that it is made of."""
  yield event
  for sub_event in getattr(event, 'events', ()):
    yield from nested(sub_event)
  if hasattr(event, 'event'):
    yield from nested(event.event)


def _flat(event: dp_accounting.DpEvent) -> Iterator[Part]:
  """The parts of a simplified event."""
  if isinstance(event, dp_accounting.ComposedDpEvent):
    for sub_event in event.events:
      yield from _flat(sub_event)
  elif isinstance(event, dp_accounting.SelfComposedDpEvent):
    yield event.event, event.count
  elif not isinstance(event, dp_accounting.NoOpDpEvent):
    yield event, 1


def _normal(event: dp_accounting.DpEvent) -> dp_accounting.DpEvent:
  """An equivalent event, or one less private, without degenerate parameters."""
  if isinstance(event, dp_accounting.ComposedDpEvent):
    return dp_accounting.ComposedDpEvent([_normal(each) for each in event.events])
  if isinstance(event, dp_accounting.SelfComposedDpEvent):
    return dp_accounting.SelfComposedDpEvent(_normal(event.event), event.count)
  if isinstance(event, dp_accounting.LaplaceDpEvent):
    return _normal_laplace(event)
  if isinstance(event, dp_accounting.PoissonSampledDpEvent):
    probability = float(event.sampling_probability)
    if not 0 <= probability <= 1:
      raise ValueError(f'the sampling probability of {event} is not from 0 to 1.')
    return _sampled(event, probability, probability)
  if isinstance(event, dp_accounting.SampledWithoutReplacementDpEvent):
    size, population = event.sample_size, event.source_dataset_size
    if not (0 <= size <= population and population > 0):
      raise ValueError(f'the sample of {event} is not from 0 to its population.')
    return _sampled(event, size / population, population, size)
  if isinstance(event, events.AllocatedDpEvent):
    share = 1 / event.num_places
    return _sampled(event, share, event.num_places, event.num_steps)
  return event


def _normal_laplace(event: dp_accounting.LaplaceDpEvent) -> dp_accounting.DpEvent:
  noise_multiplier = float(event.noise_multiplier)
  if not noise_multiplier >= 0:
    raise ValueError(f'the noise multiplier of {event} is negative or NaN.')
  if noise_multiplier == 0 or math.isinf(1 / noise_multiplier):
    return dp_accounting.NonPrivateDpEvent()
  if math.isinf(noise_multiplier):
    return dp_accounting.NoOpDpEvent()
  return dp_accounting.LaplaceDpEvent(noise_multiplier)


def _sampled(
  event: dp_accounting.DpEvent, fraction: float, *parameters: Any
) -> dp_accounting.DpEvent:
  """The same sampling of a simpler event."""
  inner = events.simplify(_normal(event.event))
  if fraction == 0 or isinstance(inner, dp_accounting.NoOpDpEvent):
    return dp_accounting.NoOpDpEvent()
  if fraction == 1 or isinstance(inner, dp_accounting.NonPrivateDpEvent):
    return inner
  return type(event)(*parameters, inner)
