"""What all accountants share: how they take an event apart, and what they answer.

`components` takes an event apart, as it is valid under a neighbouring relation, and
`Accountant` is the base class.

Sampling amplifies privacy for some relations only (`_ONLY_UNDER`; `sampling` says which
scheme has which). Integer noise is added by clients: who is removed takes a share of it
along. All other events are valid under each, with one trap: a noise multiplier is
relative to the sensitivity *under that relation*. Replacing one client's contribution
moves a sum by up to twice the clip norm, so under `REPLACE_ONE` the event of noise with
standard deviation `noise_multiplier * clip_norm` has half that noise multiplier. So it
has within `SampledWithoutReplacementDpEvent` under both: who joins a cohort takes
another's place.
"""

import dataclasses
import fractions
import math
from collections.abc import Iterator
from typing import Any, ClassVar, NamedTuple, Optional

import dp_accounting
from dp_accounting import NeighboringRelation as Relation
from scipy import special

from tff_dp_aggregators.accounting import events

# An event, and how many times it happened.
Component = tuple[dp_accounting.DpEvent, int]
# Sums of epsilons and deltas that are only stated, exactly.
Stated = tuple[fractions.Fraction, fractions.Fraction]

# What closed forms are rounded up by, relative: more than their round-off.
_ROUND_OFF = 1e-14
# The same of the tail of a binomial distribution.
_TAIL_ROUND_OFF, _LEAST_TAIL = 1e-6, 1e-300
# Larger powers of e are not computed, as float64 ends soon after.
_LARGEST_EXPONENT = 700.0
_ONLY_UNDER = {
  dp_accounting.PoissonSampledDpEvent: (Relation.ADD_OR_REMOVE_ONE,),
  dp_accounting.SampledWithoutReplacementDpEvent: (
    Relation.REPLACE_ONE,
    Relation.ADD_OR_REMOVE_ONE,
  ),
  dp_accounting.SingleEpochTreeAggregationDpEvent: (Relation.REPLACE_SPECIAL,),
  **dict.fromkeys(
    (
      events.TruncatedPoissonDpEvent,
      events.AllocatedDpEvent,
      events.BallsInBinsDpEvent,
      events.BMinSepDpEvent,
      events.RandomAllocationDpEvent,
    ),
    (Relation.ADD_OR_REMOVE_ONE, Relation.REPLACE_SPECIAL),
  ),
  **dict.fromkeys(
    events.INTEGER_NOISE, (Relation.REPLACE_SPECIAL, Relation.REPLACE_ONE)
  ),
}


def components(event: dp_accounting.DpEvent, relation: Relation) -> list[Component]:
  """Takes an event apart, as it is to be read under a neighbouring relation.

  Returns:
    Distinct events and how often each is composed; empty if nothing is learnt, one
    `NonPrivateDpEvent` if something is released without noise. All Gaussians that are
    not sampled are one, and degenerate parameters (infinite noise, nobody or everybody
    sampled) are gone.

  Raises:
    dp_accounting.UnsupportedEventError: If a component is not valid under `relation`.
    ValueError: If a parameter of the event is out of range.
  """
  for each in nested(event):
    only = _ONLY_UNDER.get(type(each), (relation,))
    if relation not in only:
      names = ' or '.join(valid.name for valid in only)
      raise dp_accounting.UnsupportedEventError(
        f'{type(each).__name__} is valid under the neighbouring relation {names} '
        f'alone, and {relation.name} was asked for.'
      )
  counted: dict[str, Component] = {}
  for part, count in events.parts_of(_normal(event)):
    if isinstance(part, dp_accounting.NoOpDpEvent):
      continue
    key = repr(part)  # Some events hold lists and have no hash.
    counted[key] = (part, count + counted.get(key, (part, 0))[1])
  return list(counted.values())


class Instead(NamedTuple):
  """Whose bound stands where an accountant has none of its own, and why, in words."""

  accountant: str  # Its name.
  reason: str  # In a clause.


class Accountant(dp_accounting.PrivacyAccountant):
  """Composes the events that a subclass reads, and says what they cost together.

  Epsilons and deltas that are only stated add up beside them (basic composition; Dwork
  and Roth 2014, theorem 3.16), whatever the rest is.
  """

  name: ClassVar[str]  # What flags, arguments and reports call it.
  reads = 'events'  # The events that it reads, for messages: "Only ... are supported."
  # Whether it reads mixtures by their bounds.
  reads_bounds = False
  # Place among those that are asked when none is named; `None` if never the tightest.
  rank: ClassVar[Optional[int]] = None
  tolerance = 5e-5  # How far above the least noise a search may end, relative.
  # Whether it takes up to seconds: searches start from the quick bound's answer.
  is_numerical = False
  # Whether outcomes are drawn, which takes up to minutes: curves have few points.
  is_drawn = False
  # Epsilons that one search may ask for, if its confidence is for so many.
  max_questions: ClassVar[Optional[int]] = None
  # Probability that an epsilon is too small, over its delta, which has it as a part.
  failure_share: ClassVar[float] = 0.0

  def __init__(self, relation: Relation = Relation.REPLACE_SPECIAL) -> None:
    super().__init__(relation)
    self._composed: list[dp_accounting.SelfComposedDpEvent] = []

  def _can_read(self, part: dp_accounting.DpEvent) -> bool:
    """Whether the accountant knows what this component means."""
    raise NotImplementedError

  def _epsilon(self, found: list[Component], delta: float) -> float:
    """Epsilon of components, of which there are some, and all private; rounded up."""
    raise NotImplementedError

  def _delta(self, found: list[Component], epsilon: float) -> float:
    """The same the other way."""
    raise NotImplementedError

  def _instead(self, found: list[Component], delta: float) -> Optional[Instead]:
    """Whose bound `_epsilon` returns, if not this accountant's own."""
    return None

  @classmethod
  def can_read(cls, event: dp_accounting.DpEvent, relation: Relation) -> bool:
    """Whether it says anything about an event under a neighbouring relation."""
    return bool(cls(relation).supports(event))

  @staticmethod
  def estimate(event: dp_accounting.DpEvent, delta: float) -> float:
    """About the epsilon, which nobody vouches for: searches start there."""
    raise NotImplementedError

  def get_epsilon(self, target_delta: float) -> float:
    """The smallest epsilon at `target_delta` for which it can vouch."""
    found, stated = self._found()
    left = _left(target_delta, stated)
    if not left > 0 or is_non_private(found):
      return math.inf
    epsilon = 0.0
    if found:
      epsilon = min(self._epsilon(found, left), pure_epsilon_of(found))
    return (epsilon + up(stated[0])) * (1 + _ROUND_OFF) if any(stated) else epsilon

  def get_delta(self, target_epsilon: float) -> float:
    """The smallest delta at `target_epsilon` for which it can vouch."""
    found, stated = self._found()
    left = target_epsilon
    if any(stated):
      left = target_epsilon * (1 - _ROUND_OFF) - up(stated[0])
    if left < 0 or is_non_private(found):
      return 1.0
    delta = 0.0
    if not left >= pure_epsilon_of(found):
      delta = self._delta(found, left)
    if any(stated):
      delta = (delta + up(stated[1])) * (1 + _ROUND_OFF)
    return min(delta, 1.0)

  def instead(self, target_delta: float) -> Optional[Instead]:
    """Whose bound `get_epsilon` returns, if not this accountant's own, and why."""
    found, stated = self._found()
    left = _left(target_delta, stated)
    if not (found and left > 0) or is_non_private(found):
      return None
    return self._instead(found, left)

  def failure_probability(self, target_delta: float) -> float:
    """Probability that `get_epsilon` is too small, a part of its delta; mostly 0."""
    left = _left(target_delta, self._found()[1])
    return max(left, 0.0) * self.failure_share

  def _read(self, event: dp_accounting.DpEvent) -> list[Component]:
    """The components; of mixtures the bound, if the accountant reads that."""
    found = []
    for part, count in components(event, self.neighboring_relation):
      if self.reads_bounds and isinstance(part, events.MixtureDpEvent):
        bound = components(part.bound, self.neighboring_relation)
        found += [(each, times * count) for each, times in bound]
      else:
        found.append((part, count))
    return found

  def _maybe_compose(
    self, event: dp_accounting.DpEvent, count: int, do_compose: bool
  ) -> Optional[Any]:
    try:
      found = self._read(event)
    except dp_accounting.UnsupportedEventError as error:
      return self.CompositionErrorDetails(event, str(error))
    always = (dp_accounting.NonPrivateDpEvent, events.EpsilonDeltaDpEvent)
    for part, _ in found:
      if not isinstance(part, always) and not self._can_read(part):
        return self.CompositionErrorDetails(part, f'Only {self.reads} are supported.')
    if do_compose:
      for part, times in found:
        self._composed.append(dp_accounting.SelfComposedDpEvent(part, times * count))
    return None

  def _found(self) -> tuple[list[Component], Stated]:
    """What is composed, and the sums of what is stated beside it."""
    everything = dp_accounting.ComposedDpEvent(self._composed)
    found = []
    epsilon = delta = fractions.Fraction(0)
    for part, count in components(everything, self.neighboring_relation):
      if isinstance(part, events.EpsilonDeltaDpEvent):
        epsilon += count * fractions.Fraction(part.epsilon)
        delta += count * fractions.Fraction(part.delta)
      else:
        found.append((part, count))
    return found, (epsilon, delta)


def _left(delta: float, stated: Stated) -> float:
  """What is left of a delta beside what is stated, rounded down."""
  if not any(stated):
    return delta
  return math.nextafter(float(fractions.Fraction(delta) - stated[1]), -math.inf)


def is_non_private(found: list[Component]) -> bool:
  """Whether something was released without noise."""
  return any(isinstance(part, dp_accounting.NonPrivateDpEvent) for part, _ in found)


def is_noise(part: Any) -> bool:
  """Whether it is Gaussian or Laplace noise on everybody."""
  return isinstance(part, (dp_accounting.GaussianDpEvent, dp_accounting.LaplaceDpEvent))


def is_sampled(
  part: Any, *sampling: type, noise: type = dp_accounting.GaussianDpEvent
) -> bool:
  """Whether it is such noise on clients that are sampled in one of these ways."""
  return isinstance(part, sampling) and isinstance(getattr(part, 'event', None), noise)


def truncated(event: events.TruncatedPoissonDpEvent) -> float:
  """Probability that one more drawn client pushes another out, rounded up."""
  most, least = event.num_clients, event.max_clients_per_round
  if least > most:
    return 0.0
  tail = special.betainc(least, most - least + 1, event.sampling_probability)
  return float(min(tail * (1 + _TAIL_ROUND_OFF) + _LEAST_TAIL, 1.0))


def pure_epsilon(
  event: dp_accounting.DpEvent, relation: Relation = Relation.REPLACE_SPECIAL
) -> float:
  """Epsilon with delta 0 of everything that is composed.

  Returns:
    The sum over its uses of Laplace noise and what is stated to be pure, rounded up in
    its last digits; infinite if anything else is among them. (Laplace noise that is
    made ends after some 88 scales, at a probability of 2^-128: `noise.laplace`.)
  """
  return pure_epsilon_of(components(event, relation))


def pure_epsilon_of(found: list[Component]) -> float:
  """`pure_epsilon` of components: the most that any accountant needs to state."""
  exact = fractions.Fraction(0)
  for part, count in found:
    if isinstance(part, dp_accounting.LaplaceDpEvent):
      cost = 1 / fractions.Fraction(part.noise_multiplier)
    elif is_sampled(
      part, dp_accounting.PoissonSampledDpEvent, noise=dp_accounting.LaplaceDpEvent
    ):
      sampled = laplace_epsilon(part.event.noise_multiplier, part.sampling_probability)
      cost = fractions.Fraction(sampled)
    elif isinstance(part, events.EpsilonDeltaDpEvent) and part.delta == 0:
      cost = fractions.Fraction(part.epsilon)
    else:
      return math.inf
    exact += count * cost
  return up(exact)


def laplace_epsilon(noise_multiplier: float, sampling_probability: float) -> float:
  """Epsilon of one use of Laplace noise, with delta 0, rounded up in its last digits.

  1 / noise_multiplier (Dwork et al. 2006, theorem 1); on a Poisson sample, to add or
  remove one, ln(1 + q (e^that - 1)).
  """
  q = sampling_probability
  before = math.nextafter(1 / noise_multiplier, math.inf)
  if before > _LARGEST_EXPONENT:  # Both terms may be large and their sum small.
    one = before * (1 + _ROUND_OFF)
    one += math.log(q + (1 - q) * math.exp(-before))
  else:
    one = math.log1p(q * math.expm1(before))
  return one * (1 + _ROUND_OFF)


def up(exact: fractions.Fraction) -> float:
  """The smallest float that is not below an exact number."""
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


def _normal(event: dp_accounting.DpEvent) -> dp_accounting.DpEvent:
  """An equivalent event, or one less private, without degenerate parameters."""
  return events.simplify(
    dp_accounting.ComposedDpEvent(
      [
        dp_accounting.SelfComposedDpEvent(_normal_part(part), count)
        for part, count in events.parts_of(event)
      ]
    )
  )


def _normal_part(event: dp_accounting.DpEvent) -> dp_accounting.DpEvent:
  if isinstance(event, dp_accounting.LaplaceDpEvent):
    noise_multiplier = float(event.noise_multiplier)
    if not noise_multiplier >= 0:
      raise ValueError(f'the noise multiplier of {event} is negative or NaN.')
    if noise_multiplier == 0 or math.isinf(1 / noise_multiplier):
      return dp_accounting.NonPrivateDpEvent()
    if math.isinf(noise_multiplier):
      return dp_accounting.NoOpDpEvent()
    return dp_accounting.LaplaceDpEvent(noise_multiplier)
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
  if isinstance(event, events.TruncatedPoissonDpEvent):
    inner = _normal(event.event)
    if isinstance(inner, (dp_accounting.NoOpDpEvent, dp_accounting.NonPrivateDpEvent)):
      return inner
    return dataclasses.replace(event, event=inner)
  return event


def _sampled(
  event: dp_accounting.DpEvent, fraction: float, *parameters: Any
) -> dp_accounting.DpEvent:
  """The same sampling of a simpler event."""
  inner = _normal(event.event)
  if fraction == 0 or isinstance(inner, dp_accounting.NoOpDpEvent):
    return dp_accounting.NoOpDpEvent()
  if fraction == 1 or isinstance(inner, dp_accounting.NonPrivateDpEvent):
    return inner
  return type(event)(*parameters, inner)
