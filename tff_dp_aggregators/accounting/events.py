"""Privacy events: what a mechanism released, as data for accountants.

Every mechanism of this package describes itself with `dp_accounting` events that any
accountant can read:

* A whole run of a matrix mechanism is one `GaussianDpEvent` whose noise multiplier is
  the *effective* one, `noise_multiplier / sens(C)`.
* One round of it is a `GaussianDpEvent` as well, with the noise multiplier that makes
  the events of rounds 0 to t compose to exactly the Gaussian released up to round t:
  `noise_multiplier / sqrt(sens^2(C_t) - sens^2(C_{t-1}))`. A round that adds nothing
  to the worst case has an infinite one.

If the sensitivity of a strategy is an upper bound, the mechanism is at least as private
as both. Other events are documented in their classes, and in `sampling.scheme`.

**Integer noise in shares, for secure aggregation.** Each client rounds its contribution
to integers, adds noise of `local_stddev`, and sends it into a secure sum, which is all
that is seen. The shares of all clients that report protect a client, so an event counts
the *minimum* number of clients of a released sum. The sensitivity is that of the
integers, after rounding (`distributed_noise`), under a relation with the same shares in
both data sets: zeroing out one client's contributions, or replacing them (twice the
sensitivity). A client that is added or removed takes its noise along: accountants
refuse that.
"""

import dataclasses
import math
from collections.abc import Iterator
from typing import Any

import dp_accounting
import numpy as np

from tff_dp_aggregators import strategies
from tff_dp_aggregators.base import checks
from tff_dp_aggregators.sampling.scheme import AllocatedDpEvent
from tff_dp_aggregators.sampling.scheme import BallsInBinsDpEvent
from tff_dp_aggregators.sampling.scheme import BMinSepDpEvent
from tff_dp_aggregators.sampling.scheme import MixtureDpEvent
from tff_dp_aggregators.sampling.scheme import OwnDpEvent
from tff_dp_aggregators.sampling.scheme import RandomAllocationDpEvent
from tff_dp_aggregators.sampling.scheme import TruncatedPoissonDpEvent
from tff_dp_aggregators.sampling.scheme import check_fields


@dataclasses.dataclass(frozen=True)
class EpsilonDeltaDpEvent(dp_accounting.DpEvent):
  """A release of which only (epsilon, delta)-DP is stated, not its mechanism."""

  epsilon: float  # Finite and not negative.
  delta: float  # From 0 to below 1.

  def __post_init__(self) -> None:
    epsilon = checks.check_not_negative('epsilon', self.epsilon)
    delta = float(checks.check_number('delta', self.delta))
    if not 0 <= delta < 1:
      raise ValueError(f'delta must be from 0 to below 1; got {delta}.')
    self.__dict__.update(epsilon=epsilon, delta=delta)


def with_bounds(event: dp_accounting.DpEvent) -> dp_accounting.DpEvent:
  """Returns the event with each mixture replaced by its bound."""
  if isinstance(event, MixtureDpEvent):
    return event.bound
  if isinstance(event, dp_accounting.ComposedDpEvent):
    return dp_accounting.ComposedDpEvent([with_bounds(e) for e in event.events])
  if isinstance(event, dp_accounting.SelfComposedDpEvent):
    return dp_accounting.SelfComposedDpEvent(with_bounds(event.event), event.count)
  return event


LEAST_DISCRETE_GAUSSIAN = 0.5  # Minimum parameter of a share, arXiv:2102.06387, Thm. 1.


@dataclasses.dataclass(frozen=True)
class _Shares(OwnDpEvent):
  """Integer noise that clients add in shares."""

  # Standard deviation of a share; of discrete Gaussian noise its parameter, >= 1/2.
  local_stddev: float
  num_clients: int  # Minimum number of clients whose shares are in the sum.
  l2_sensitivity: float  # Sensitivities of the sum of integers.
  l1_sensitivity: float

  def __post_init__(self) -> None:
    check_fields(self, checks.check_positive)

  @property
  def variance(self) -> float:
    """Variance of the sum of the shares."""
    return self.local_stddev * self.local_stddev * self.num_clients


@dataclasses.dataclass(frozen=True)
class SkellamDpEvent(_Shares):
  """A sum of integers with a share of Skellam noise from each client.

  A share is the difference of two Poisson variables of mean `local_stddev^2 / 2`. The
  sum of shares has a Skellam distribution again (arXiv:2110.04995).
  """


@dataclasses.dataclass(frozen=True)
class DistributedDiscreteGaussianDpEvent(_Shares):
  """A sum of integers with a share of discrete Gaussian noise from each client.

  The probability that a share is k is proportional to exp(-k^2 / (2 local_stddev^2)).
  The sum of shares is close to discrete Gaussian noise (arXiv:2102.06387).
  """

  dimension: int  # Number of integers in a contribution.

  def __post_init__(self) -> None:
    super().__post_init__()
    if self.local_stddev < LEAST_DISCRETE_GAUSSIAN:
      raise ValueError(
        f'local_stddev must be at least {LEAST_DISCRETE_GAUSSIAN} for discrete '
        'Gaussian shares, below which nothing is proved of their sum '
        f'(arXiv:2102.06387, Theorem 1); got {self.local_stddev}. Take a finer grid, '
        'more noise, or Skellam noise.'
      )


INTEGER_NOISE = (SkellamDpEvent, DistributedDiscreteGaussianDpEvent)


def check_noise_multiplier(noise_multiplier: float) -> float:
  """Returns it as a float, or raises unless finite and >= 0; 0 is not private."""
  return checks.check_not_negative('noise_multiplier', noise_multiplier)


def run_event(
  strategy: strategies.Strategy,
  participation: strategies.Participation,
  noise_multiplier: float,
) -> dp_accounting.DpEvent:
  """The event of all rounds of a matrix mechanism, without sampling."""
  noise_multiplier = check_noise_multiplier(noise_multiplier)
  sensitivity = strategy.sensitivity(strategies.participation.require(participation))
  if noise_multiplier == 0:
    return dp_accounting.NonPrivateDpEvent()
  return dp_accounting.GaussianDpEvent(noise_multiplier / sensitivity)


def round_noise_multipliers(
  strategy: strategies.Strategy,
  participation: strategies.Participation,
  noise_multiplier: float,
) -> tuple[np.ndarray, np.ndarray]:
  """Noise multipliers of each round's event, and of rounds 0 to t together.

  Both are of shape [num_rounds]. That of a round is infinite if the round adds nothing
  to the worst case; those of rounds 0 to t do not increase with t.
  """
  noise_multiplier = check_noise_multiplier(noise_multiplier)
  participation = strategies.participation.require(participation)
  sensitivity_squared = strategy.sensitivity_squared_by_round(participation)
  increments = np.diff(sensitivity_squared, prepend=0.0)
  each = np.full(len(increments), np.inf)
  np.divide(noise_multiplier, np.sqrt(increments), out=each, where=increments > 0)
  return each, noise_multiplier / np.sqrt(sensitivity_squared)


def simplify(event: dp_accounting.DpEvent) -> dp_accounting.DpEvent:
  """Returns an equivalent event with plain floats, which every accountant can read.

  Composed Gaussians are merged by adding up `1 / noise_multiplier^2`; infinite noise
  becomes `NoOpDpEvent` and zero noise `NonPrivateDpEvent`. Everything else is kept.
  """
  precision = 0.0
  others = []
  for part, count in parts_of(event):
    if isinstance(part, dp_accounting.NoOpDpEvent) or count == 0:
      continue
    if isinstance(part, dp_accounting.GaussianDpEvent):
      noise_multiplier = float(part.noise_multiplier)
      if not noise_multiplier >= 0:
        raise ValueError(f'the noise multiplier of {part} is negative or NaN.')
      if noise_multiplier == 0:
        return dp_accounting.NonPrivateDpEvent()
      inverse = 1 / noise_multiplier  # Squaring first would overflow sooner.
      precision += count * (inverse * inverse)
    elif isinstance(part, dp_accounting.NonPrivateDpEvent):
      return part
    elif count == 1:
      others.append(part)
    else:
      others.append(dp_accounting.SelfComposedDpEvent(part, count))
  if math.isinf(precision):
    return dp_accounting.NonPrivateDpEvent()
  if precision:
    others.append(dp_accounting.GaussianDpEvent(1 / math.sqrt(precision)))
  if not others:
    return dp_accounting.NoOpDpEvent()
  return others[0] if len(others) == 1 else dp_accounting.ComposedDpEvent(others)


def parts_of(
  event: dp_accounting.DpEvent, count: int = 1
) -> Iterator[tuple[dp_accounting.DpEvent, int]]:
  """Yields the events that an event is composed of, and how often each is."""
  if isinstance(event, dp_accounting.ComposedDpEvent):
    for sub_event in event.events:
      yield from parts_of(sub_event, count)
  elif isinstance(event, dp_accounting.SelfComposedDpEvent):
    if not (event.count >= 0 and event.count == int(event.count)):
      raise ValueError(f'the count of {event} is not a whole number from 0.')
    yield from parts_of(event.event, count * int(event.count))
  else:
    yield event, count


def to_json(event: dp_accounting.DpEvent) -> dict[str, Any]:
  """Values for `from_json`, with Gaussians merged and strategies as checksums."""
  return _to_json(simplify(event))


def _to_json(event: dp_accounting.DpEvent) -> dict[str, Any]:
  type_name = type(event).__name__
  event_type, fields = _WRITTEN.get(type_name, (None, ()))
  if event_type is not type(event):
    raise ValueError(
      f'such an event cannot be written: {event}. The event of a round is '
      'last_round_only of what extract_dp_event returns.'
    )
  values = {name: getattr(event, name) for name in fields}
  for name in _NESTED & set(values):
    values[name] = _to_json(values[name])
  if 'events' in values:
    values['events'] = [_to_json(each) for each in values['events']]
  return {'type': type_name, **values}


def from_json(data: Any) -> dp_accounting.DpEvent:
  """Reads what `to_json` wrote."""
  if not isinstance(data, dict):
    raise ValueError(f'an event is written as an object, got {data!r}.')
  type_name = data.get('type')
  if not isinstance(type_name, str) or type_name not in _WRITTEN:
    raise ValueError(f'unknown event type {type_name!r} in {data}.')
  event_type, fields = _WRITTEN[type_name]
  if set(data) != {'type', *fields}:
    raise ValueError(f'a {type_name} has the fields {fields}, got {data}.')
  try:
    values = {name: _field(name, data[name]) for name in fields}
    if issubclass(event_type, MixtureDpEvent):
      values['strategy'] = None
    return event_type(**values)
  except TypeError as e:
    raise ValueError(f'a {type_name} has a value of another type: {e}') from e


# The fields of dp-accounting's events that are written; of our own events all are.
_PEERS = {
  dp_accounting.GaussianDpEvent: ('noise_multiplier',),
  dp_accounting.LaplaceDpEvent: ('noise_multiplier',),
  dp_accounting.NoOpDpEvent: (),
  dp_accounting.NonPrivateDpEvent: (),
  dp_accounting.PoissonSampledDpEvent: ('sampling_probability', 'event'),
  dp_accounting.SampledWithoutReplacementDpEvent: (
    *('source_dataset_size', 'sample_size', 'event'),
  ),
  dp_accounting.SelfComposedDpEvent: ('event', 'count'),
  dp_accounting.ComposedDpEvent: ('events',),
}
_MIXTURES = (BallsInBinsDpEvent, RandomAllocationDpEvent, BMinSepDpEvent)
_OWN = (AllocatedDpEvent, TruncatedPoissonDpEvent, EpsilonDeltaDpEvent, *INTEGER_NOISE)
# Events that can be written, by name: their class and their fields.
_WRITTEN: dict[Any, tuple[type[dp_accounting.DpEvent], tuple[str, ...]]] = {
  make.__name__: (make, fields)
  for make, fields in (
    *_PEERS.items(),
    *((make, tuple(f.name for f in dataclasses.fields(make))) for make in _OWN),
    *(
      (make, ('strategy_checksum', *(f.name for f in dataclasses.fields(make)[1:-1])))
      for make in _MIXTURES
    ),
  )
}
_NESTED = frozenset({'event', 'bound'})  # Fields that hold an event.
# Fields that are real numbers, not counts; the events check their range.
_NUMBERS = frozenset(
  {'local_stddev', 'l1_sensitivity', 'l2_sensitivity', 'epsilon', 'delta'}
)


def _field(name: str, value: Any) -> Any:
  if name in _NESTED:
    return from_json(value)
  types = {'strategy_checksum': str, 'events': list}.get(name, (int, float))
  if isinstance(value, bool) or not isinstance(value, types):
    raise ValueError(f'{name} is of another type, got {value!r}.')
  if name == 'events':
    return [from_json(each) for each in value]
  if name == 'noise_multiplier':
    return check_noise_multiplier(value)
  if name == 'sampling_probability':
    return checks.check_within(name, value, 0, 1)
  if isinstance(value, str):
    return value
  return float(value) if name in _NUMBERS else checks.check_int(name, value, 0)
