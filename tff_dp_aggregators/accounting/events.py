"""Privacy events: what a mechanism released, as data for accountants.

* A whole run of a matrix mechanism is one `GaussianDpEvent` whose noise multiplier is
  the *effective* one, `noise_multiplier / sens(C)`.
* One round of it is one with the noise multiplier that makes the events of rounds 0 to
  t compose to exactly the Gaussian released up to round t: `noise_multiplier /
  sqrt(sens^2(C_t) - sens^2(C_{t-1}))`, infinite if nothing is added to the worst case.

**Integer noise in shares, for secure aggregation.** An event counts the *minimum*
number of clients of a released sum. The sensitivity is that of the integers, after
rounding (`distributed_noise`), under a relation with the same shares in both data sets:
zeroing out one client's contributions, or replacing them (twice the sensitivity).
"""

import dataclasses
import inspect
import math
from collections.abc import Iterator
from typing import Any, Callable

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
  """Returns the event, simplified, with each mixture replaced by its bound."""
  return simplify(event, lambda part: getattr(part, 'bound', part))


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
    return self.local_stddev * self.local_stddev * self.num_clients


@dataclasses.dataclass(frozen=True)
class SkellamDpEvent(_Shares):
  """A sum of integers with a share of Skellam noise from each client.

  A share is the difference of two Poisson variables of mean `local_stddev^2 / 2`, and
  their sum has a Skellam distribution again (arXiv:2110.04995).
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
        f'local_stddev of discrete Gaussian shares must be at least '
        f'{LEAST_DISCRETE_GAUSSIAN}; got {self.local_stddev}. Take a finer grid, more '
        'noise, or Skellam noise.'
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
  """Noise multipliers of each round's event, and of rounds 0 to t together: [n]."""
  noise_multiplier = check_noise_multiplier(noise_multiplier)
  participation = strategies.participation.require(participation)
  sensitivity_squared = strategy.sensitivity_squared_by_round(participation)
  increments = np.diff(sensitivity_squared, prepend=0.0)
  each = np.full(len(increments), np.inf)
  np.divide(noise_multiplier, np.sqrt(increments), out=each, where=increments > 0)
  return each, noise_multiplier / np.sqrt(sensitivity_squared)


def simplify(
  event: dp_accounting.DpEvent,
  replace: Callable[[Any], dp_accounting.DpEvent] = lambda part: part,
) -> dp_accounting.DpEvent:
  """Returns an equivalent event with plain floats, which every accountant can read.

  Composed Gaussians are merged by adding up `1 / noise_multiplier^2`; infinite noise
  becomes `NoOpDpEvent` and zero noise `NonPrivateDpEvent`. Everything else is kept.
  `replace` is applied to each part first.
  """
  precision = 0.0
  others = []
  replaced = ((replace(part), count) for part, count in parts_of(event))
  for part, count in (each for one in replaced for each in parts_of(*one)):
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
  for name in {'event', 'bound'} & set(values):
    values[name] = _to_json(values[name])
  if 'events' in values:
    values['events'] = [_to_json(each) for each in values['events']]
  return {'type': type_name, **values}


def from_json(data: Any) -> dp_accounting.DpEvent:
  """Reads what `to_json` wrote."""
  type_name = data.get('type') if isinstance(data, dict) else None
  event_type, fields = _WRITTEN.get(str(type_name), (None, ()))
  if event_type is None or set(data) != {'type', *fields}:
    raise ValueError(
      f'an event is written as an object with a known type and its fields, got {data}.'
    )
  strategy = {'strategy': None} if issubclass(event_type, MixtureDpEvent) else {}
  try:
    values = {name: _field(name, data[name]) for name in fields}
    return event_type(**strategy, **values)
  except TypeError as e:
    raise ValueError(f'a {type_name} has a value of another type: {e}') from e


def _fields(make: type) -> tuple[str, ...]:
  names = tuple(inspect.signature(make).parameters)
  is_mixture = issubclass(make, MixtureDpEvent)
  return ('strategy_checksum', *names[1:-1]) if is_mixture else names


# Events that can be written, by name: their class and their fields.
_WRITTEN: dict[str, tuple[Any, tuple[str, ...]]] = {
  make.__name__: (make, _fields(make))
  for make in (
    dp_accounting.GaussianDpEvent,
    dp_accounting.LaplaceDpEvent,
    dp_accounting.NoOpDpEvent,
    dp_accounting.NonPrivateDpEvent,
    dp_accounting.PoissonSampledDpEvent,
    dp_accounting.SampledWithoutReplacementDpEvent,
    dp_accounting.SelfComposedDpEvent,
    dp_accounting.ComposedDpEvent,
    AllocatedDpEvent,
    TruncatedPoissonDpEvent,
    EpsilonDeltaDpEvent,
    *INTEGER_NOISE,
    BallsInBinsDpEvent,
    RandomAllocationDpEvent,
    BMinSepDpEvent,
  )
}


def _field(name: str, value: Any) -> Any:
  if name in ('event', 'bound'):
    return from_json(value)
  if name == 'events':
    return [from_json(each) for each in value]
  if isinstance(value, bool):
    raise ValueError(f'{name} must be a number; got {value}.')
  if name == 'noise_multiplier':
    return check_noise_multiplier(value)
  if name == 'sampling_probability':
    return checks.check_within(name, value, 0, 1)
  if name in ('local_stddev', 'l1_sensitivity', 'l2_sensitivity', 'epsilon', 'delta'):
    return value  # Checked by the event.
  return value if name == 'strategy_checksum' else checks.check_int(name, value, 0)
