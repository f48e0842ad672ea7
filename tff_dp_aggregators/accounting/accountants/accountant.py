"""The base class of accountants, and the decomposition of events that they share.

Sampling amplifies privacy under some relations only (`_VALID_RELATIONS`), and a client
that is removed takes its share of integer noise along. All other events are valid under
every relation, with one trap: a noise multiplier is relative to the sensitivity *under
that relation*. Replacing one client's contribution moves a sum by up to twice the clip
norm, so under `REPLACE_ONE` the event has half the noise multiplier. The same holds
within `SampledWithoutReplacementDpEvent` under both of its relations, because a client
that joins a cohort takes another client's place.
"""

import fractions
import math
from collections.abc import Iterator
from typing import Any, ClassVar, NamedTuple, Optional

import dp_accounting
from dp_accounting import NeighboringRelation as Relation
from scipy import special

from tff_dp_aggregators.accounting import events

Component = tuple[dp_accounting.DpEvent, int]  # An event, and how often it is composed.

_ROUND_OFF = 1e-14  # Closed forms are rounded up by this much, relative.
# Relative and absolute margin of the tail of a binomial distribution.
_TAIL_ROUND_OFF, _LEAST_TAIL = 1e-6, 1e-300
_LARGEST_EXPONENT = 700.0  # Larger powers of e are not computed, as they may overflow.
_ADD_OR_ZERO = (Relation.ADD_OR_REMOVE_ONE, Relation.REPLACE_SPECIAL)
_ZERO_OR_REPLACE = (Relation.REPLACE_SPECIAL, Relation.REPLACE_ONE)
_VALID_RELATIONS = {
  dp_accounting.PoissonSampledDpEvent: (Relation.ADD_OR_REMOVE_ONE,),
  dp_accounting.SampledWithoutReplacementDpEvent: (
    Relation.REPLACE_ONE,
    Relation.ADD_OR_REMOVE_ONE,
  ),
  dp_accounting.SingleEpochTreeAggregationDpEvent: (Relation.REPLACE_SPECIAL,),
  events.TruncatedPoissonDpEvent: _ADD_OR_ZERO,
  events.AllocatedDpEvent: _ADD_OR_ZERO,
  events.BallsInBinsDpEvent: _ADD_OR_ZERO,
  events.BMinSepDpEvent: _ADD_OR_ZERO,
  events.RandomAllocationDpEvent: _ADD_OR_ZERO,
  events.SkellamDpEvent: _ZERO_OR_REPLACE,
  events.DistributedDiscreteGaussianDpEvent: _ZERO_OR_REPLACE,
}


def components(event: dp_accounting.DpEvent, relation: Relation) -> list[Component]:
  """Splits an event into distinct components, and how often each is composed.

  It is empty if nothing is released, and one `NonPrivateDpEvent` if something is
  released without noise. All Gaussians that are not sampled are merged into one, and
  events with degenerate parameters (infinite noise, nobody or everybody sampled) are
  simplified. Raises UnsupportedEventError if a component is not valid under `relation`,
  and ValueError if a parameter is out of range.
  """
  for each in nested(event):
    valid_relations = _VALID_RELATIONS.get(type(each), (relation,))
    if relation not in valid_relations:
      names = ' or '.join(valid.name for valid in valid_relations)
      raise dp_accounting.UnsupportedEventError(
        f'{type(each).__name__} is valid under the neighbouring relation {names} '
        f'alone, and {relation.name} was asked for.'
      )
  counted: dict[str, Component] = {}
  for part, count in events.parts_of(events.simplify(event, _normalized)):
    if isinstance(part, dp_accounting.NoOpDpEvent):
      continue
    key = repr(part)  # Some events hold lists and have no hash.
    counted[key] = (part, count + counted.get(key, (part, 0))[1])
  return list(counted.values())


class Instead(NamedTuple):
  """The accountant whose bound is returned instead, and why."""

  accountant: str  # Name of that accountant.
  reason: str  # A clause for reports.


class Accountant(dp_accounting.PrivacyAccountant):
  """Composes the events that a subclass reads, and computes epsilon and delta of them.

  Guarantees that are only stated (`EpsilonDeltaDpEvent`) are added to those of the rest
  by basic composition (Dwork and Roth 2014, theorem 3.16).
  """

  name: ClassVar[str]  # Its name in flags, arguments and reports.
  reads = 'events'  # The events that it reads, for messages: "Only ... are supported."
  reads_bounds = False  # Whether it reads a `MixtureDpEvent` by its `bound`.
  # Order of preference if no accountant is named, 0 first; `None`: never chosen.
  rank: ClassVar[Optional[int]] = None
  tolerance = 5e-5  # Relative tolerance of a search for the least noise, upwards.
  # Whether it takes up to seconds; searches then start from the quick bound's answer.
  is_numerical = False
  # Whether it draws outcomes, which takes up to minutes; curves then have few points.
  is_drawn = False
  # How many epsilons one search may compute, if its confidence covers only so many.
  max_questions: ClassVar[Optional[int]] = None
  # Probability that an epsilon is too small, over its delta, which includes it.
  failure_share: ClassVar[float] = 0.0

  def __init__(self, relation: Relation = Relation.REPLACE_SPECIAL) -> None:
    super().__init__(relation)
    self._composed: list[dp_accounting.SelfComposedDpEvent] = []

  def _can_read(self, part: dp_accounting.DpEvent) -> bool:
    raise NotImplementedError

  def _epsilon(self, parts: list[Component], delta: float) -> float:
    """Epsilon of the components, rounded up; at least one, and all are private."""
    raise NotImplementedError

  def _delta(self, parts: list[Component], epsilon: float) -> float:
    """Delta of the components, rounded up; at least one, and all are private."""
    raise NotImplementedError

  def _instead(self, parts: list[Component], delta: float) -> Optional[Instead]:
    return None

  @classmethod
  def can_read(cls, event: dp_accounting.DpEvent, relation: Relation) -> bool:
    """Whether it supports an event under a neighbouring relation."""
    return bool(cls(relation).supports(event))

  @staticmethod
  def estimate(event: dp_accounting.DpEvent, delta: float) -> float:
    """An approximate epsilon, from which searches start; it is not a bound."""
    raise NotImplementedError

  def get_epsilon(self, target_delta: float) -> float:
    """The smallest epsilon at `target_delta` that the accountant can guarantee."""
    parts, stated = self._composition()
    remaining = _remaining_delta(target_delta, stated)
    if not remaining > 0 or is_non_private(parts):
      return math.inf
    epsilon = 0.0
    if parts:
      epsilon = min(self._epsilon(parts, remaining), pure_epsilon_of(parts))
    return (epsilon + up(stated[0])) * (1 + _ROUND_OFF) if any(stated) else epsilon

  def get_delta(self, target_epsilon: float) -> float:
    """The smallest delta at `target_epsilon` that the accountant can guarantee."""
    parts, stated = self._composition()
    remaining = target_epsilon
    if any(stated):
      remaining = target_epsilon * (1 - _ROUND_OFF) - up(stated[0])
    if remaining < 0 or is_non_private(parts):
      return 1.0
    delta = 0.0
    if not remaining >= pure_epsilon_of(parts):
      delta = self._delta(parts, remaining)
    if any(stated):
      delta = (delta + up(stated[1])) * (1 + _ROUND_OFF)
    return min(delta, 1.0)

  def instead(self, target_delta: float) -> Optional[Instead]:
    """The accountant whose bound `get_epsilon` returns, if not its own, and why."""
    parts, stated = self._composition()
    remaining = _remaining_delta(target_delta, stated)
    if not (parts and remaining > 0) or is_non_private(parts):
      return None
    return self._instead(parts, remaining)

  def failure_probability(self, target_delta: float) -> float:
    """Probability that `get_epsilon` is too small, included in delta; usually 0."""
    remaining = _remaining_delta(target_delta, self._composition()[1])
    return max(remaining, 0.0) * self.failure_share

  def _read(self, event: dp_accounting.DpEvent) -> list[Component]:
    parts = []
    for part, count in components(event, self.neighboring_relation):
      if self.reads_bounds and isinstance(part, events.MixtureDpEvent):
        bound = components(part.bound, self.neighboring_relation)
        parts += [(each, bound_count * count) for each, bound_count in bound]
      else:
        parts.append((part, count))
    return parts

  def _maybe_compose(
    self, event: dp_accounting.DpEvent, count: int, do_compose: bool
  ) -> Optional[Any]:
    try:
      # dp-accounting's `supports` passes a count of 0.
      parts = self._read(dp_accounting.SelfComposedDpEvent(event, max(count, 1)))
    except dp_accounting.UnsupportedEventError as error:
      return self.CompositionErrorDetails(event, str(error))
    always_read = (dp_accounting.NonPrivateDpEvent, events.EpsilonDeltaDpEvent)
    for part, _ in parts:
      if not isinstance(part, always_read) and not self._can_read(part):
        return self.CompositionErrorDetails(part, f'Only {self.reads} are supported.')
    if do_compose:
      self._composed += [dp_accounting.SelfComposedDpEvent(*each) for each in parts]
    return None

  def _composition(self) -> tuple[list[Component], list[fractions.Fraction]]:
    """The composed components, and the sums of the stated epsilons and deltas."""
    everything = dp_accounting.ComposedDpEvent(self._composed)
    parts, stated = [], [fractions.Fraction(0)] * 2
    for part, count in components(everything, self.neighboring_relation):
      if isinstance(part, events.EpsilonDeltaDpEvent):
        stated[0] += count * fractions.Fraction(part.epsilon)
        stated[1] += count * fractions.Fraction(part.delta)
      else:
        parts.append((part, count))
    return parts, stated


def _remaining_delta(delta: float, stated: list[fractions.Fraction]) -> float:
  if not any(stated):
    return delta
  return math.nextafter(float(fractions.Fraction(delta) - stated[1]), -math.inf)


def is_non_private(parts: list[Component]) -> bool:
  """Whether something is released without noise."""
  return any(isinstance(part, dp_accounting.NonPrivateDpEvent) for part, _ in parts)


# Noise without sampling.
UNSAMPLED = (dp_accounting.GaussianDpEvent, dp_accounting.LaplaceDpEvent)


def is_sampled(
  part: Any, *sampling: type, noise: type = dp_accounting.GaussianDpEvent
) -> bool:
  """Whether an event is such noise, under sampling of one of these event types."""
  return isinstance(part, sampling) and isinstance(getattr(part, 'event', None), noise)


def log_binomial(n: Any, k: Any) -> Any:
  """Logarithm of the number of sets of k out of n."""
  return special.gammaln(n + 1) - special.gammaln(k + 1) - special.gammaln(n - k + 1)


def displacement_probability(event: events.TruncatedPoissonDpEvent) -> float:
  """Probability that one more drawn client displaces another one, rounded up."""
  num_clients, cap = event.num_clients, event.max_clients_per_round
  if cap > num_clients:
    return 0.0
  tail = special.betainc(cap, num_clients - cap + 1, event.sampling_probability)
  return float(min(tail * (1 + _TAIL_ROUND_OFF) + _LEAST_TAIL, 1.0))


def pure_epsilon(
  event: dp_accounting.DpEvent, relation: Relation = Relation.REPLACE_SPECIAL
) -> float:
  """Pure epsilon, at delta 0, of an event, rounded up in its last digits.

  It is finite for Laplace noise and stated guarantees with delta 0 alone. (The noise of
  `noise.laplace` ends after some 88 scales, at a probability of 2^-128.)
  """
  return pure_epsilon_of(components(event, relation))


def pure_epsilon_of(parts: list[Component]) -> float:
  """`pure_epsilon` of components: an upper bound on epsilon at any delta."""
  total = fractions.Fraction(0)
  for part, count in parts:
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
    total += count * cost
  return up(total)


def laplace_epsilon(noise_multiplier: float, sampling_probability: float) -> float:
  """Pure epsilon of one use of Laplace noise, rounded up; see `accounting.budget`."""
  q = sampling_probability
  unsampled = math.nextafter(1 / noise_multiplier, math.inf)
  if unsampled > _LARGEST_EXPONENT:  # Both terms may be large and their sum small.
    epsilon = unsampled * (1 + _ROUND_OFF)
    epsilon += math.log(q + (1 - q) * math.exp(-unsampled))
  else:
    epsilon = math.log1p(q * math.expm1(unsampled))
  return epsilon * (1 + _ROUND_OFF)


def up(exact: fractions.Fraction) -> float:
  """The smallest float that is not below an exact number."""
  try:
    rounded = float(exact)
  except OverflowError:
    return math.inf
  return rounded if rounded >= exact else math.nextafter(rounded, math.inf)


def nested(event: dp_accounting.DpEvent) -> Iterator[dp_accounting.DpEvent]:
  """Yields an event and, recursively, those in it that are composed at least once."""
  yield event
  for sub_event in getattr(event, 'events', ()):
    yield from nested(sub_event)
  if hasattr(event, 'event') and getattr(event, 'count', None) != 0:
    yield from nested(event.event)


def _normalized(event: dp_accounting.DpEvent) -> dp_accounting.DpEvent:
  """Returns an equivalent or less private part without degenerate parameters."""
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
    fraction = float(event.sampling_probability)
    parameters: tuple[Any, ...] = (fraction,)
  elif isinstance(event, dp_accounting.SampledWithoutReplacementDpEvent):
    size, population = event.sample_size, event.source_dataset_size
    fraction = size / population if population > 0 else -1.0
    parameters = (population, size)
  elif isinstance(event, events.AllocatedDpEvent):
    fraction, parameters = 1 / event.num_places, (event.num_places, event.num_steps)
  elif isinstance(event, events.TruncatedPoissonDpEvent):
    fraction = 0.5  # Even if all are drawn, a client may displace another one.
    q, cap = event.sampling_probability, event.max_clients_per_round
    parameters = (event.num_clients, q, cap)
  else:
    return event
  if not 0 <= fraction <= 1:
    raise ValueError(f'the sample of {event} is not from 0 to 1 of the population.')
  inner = events.simplify(event.event, _normalized)
  if fraction == 0 or isinstance(inner, dp_accounting.NoOpDpEvent):
    return dp_accounting.NoOpDpEvent()
  if fraction == 1 or isinstance(inner, dp_accounting.NonPrivateDpEvent):
    return inner
  return type(event)(*parameters, inner)
