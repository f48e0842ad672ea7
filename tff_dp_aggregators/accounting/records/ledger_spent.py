"""What the rounds of a ledger come to, line by line.

`ledger` has the rules that lines together keep.
"""

import functools
import math
from typing import NamedTuple, Optional

import dp_accounting

from tff_dp_aggregators.accounting import accountants
from tff_dp_aggregators.accounting import events
from tff_dp_aggregators.accounting.accountants import gaussian
from tff_dp_aggregators.accounting.records.ledger_entry import LedgerEntry

_SAMPLES = (
  dp_accounting.PoissonSampledDpEvent,
  dp_accounting.SampledWithoutReplacementDpEvent,
)
# Noise that is not Gaussian.
_INDEPENDENT = (dp_accounting.LaplaceDpEvent, *events.INTEGER_NOISE)
# Stated figures may be this much above what the events compose to, relative,
_TOLERANCE = 1e-9
# and below by what this much of mu amounts to: another summation order, another libm.
_ROUND_OFF = 1e-12


class Spent(NamedTuple):
  """What the rounds so far released together: one Gaussian, or an event repeated.

  Attributes:
    mu_squared: The sum of the squares of the rounds' mu, if they are Gaussians.
    repeated: The event of a round, if rounds are samples or their noise is not
      Gaussian, or that of all of them, if the rounds of a client are drawn together;
      what they come to is the report's.
    is_joint: Whether there are both, as parts have noise of several kinds.
  """

  mu_squared: float = 0.0
  repeated: Optional[dp_accounting.DpEvent] = None
  is_joint: bool = False

  def plus(self, event: dp_accounting.DpEvent) -> 'Spent':
    """With one round more.

    Raises:
      ValueError: If it is neither Gaussian nor Laplace nor a sample of one, nor integer
        noise in shares, or not of the mechanism of those before it.
    """
    parts, rest = split(event)
    repeated = None
    if parts:
      repeated = parts[0] if len(parts) == 1 else dp_accounting.ComposedDpEvent(parts)
    try:
      mu = accountants.gdp_mu(rest)
    except dp_accounting.UnsupportedEventError as e:
      raise ValueError(
        'a ledger adds up Gaussian events, or has Laplace or integer noise, or '
        f'samples; got {event}; account for others with accountants.epsilon.'
      ) from e
    # Parts with both have both in their first round already.
    is_joint = self.is_joint or bool(self == Spent() and repeated is not None and mu)
    if repeated is not None and (
      self.repeated not in (None, repeated)
      or (not is_joint and (self.mu_squared or mu))
    ):
      raise ValueError(_mixed(event, self.repeated))
    if mu and self.repeated is not None and not is_joint:
      raise ValueError(_mixed(event, self.repeated))
    return Spent(
      self.mu_squared + mu * mu,
      self.repeated if repeated is None else repeated,
      is_joint,
    )

  @property
  def mu(self) -> float:
    """Of the Gaussian, as in mu-Gaussian-DP."""
    return math.sqrt(self.mu_squared)

  @property
  def effective_noise_multiplier(self) -> Optional[float]:
    """As a line states it: `None` if infinite, or if an event is repeated."""
    if self.repeated is not None:
      return None
    return _finite(1 / self.mu if self.mu_squared else math.inf)

  def epsilon(self, delta: float) -> Optional[float]:
    """As a line states it: `None` if infinite, or if an event is repeated."""
    if self.repeated is not None:
      return None
    return _finite(gaussian.epsilon_of(self.mu, delta))


def is_repeated(event: dp_accounting.DpEvent) -> bool:
  """Whether it is the event of each round, and does not add up to one of its kind.

  Or of all rounds, if a client's are drawn together: they are in the first line.
  """
  if is_allocated(event):
    return True
  if isinstance(event, _SAMPLES):
    return isinstance(event.event, (dp_accounting.GaussianDpEvent, *_INDEPENDENT))
  return isinstance(event, _INDEPENDENT)


def is_drawn(event: dp_accounting.DpEvent) -> bool:
  """Whether a round's event rests on clients being drawn in secret.

  Args:
    event: Of a line.
  """
  kinds = (*_SAMPLES, events.AllocatedDpEvent, events.MixtureDpEvent)
  return any(isinstance(each, kinds) for each in accountants.nested(event))


def is_allocated(event: dp_accounting.DpEvent) -> bool:
  """Whether it is of rounds that each client draws before the first.

  Args:
    event: Of all rounds; or the part of it that they do not share.
  """
  if isinstance(event, events.MixtureDpEvent):
    return True
  if isinstance(event, dp_accounting.SelfComposedDpEvent):
    event = event.event
  return isinstance(event, events.AllocatedDpEvent) and isinstance(
    event.event, dp_accounting.GaussianDpEvent
  )


def split(
  event: dp_accounting.DpEvent,
) -> tuple[list[dp_accounting.DpEvent], dp_accounting.DpEvent]:
  """What is the same in each round, and what adds up, of a simplified event.

  Args:
    event: Of one round; of a joint mechanism it may have Laplace noise of some parts,
      and the Gaussian that the others are; of rounds drawn together, a Gaussian that
      all of them share.
  """
  if is_repeated(event):
    return [event], dp_accounting.NoOpDpEvent()
  if not isinstance(event, dp_accounting.ComposedDpEvent):
    return [], event
  apart = [
    each
    for each in event.events
    if isinstance(each, dp_accounting.LaplaceDpEvent) or is_allocated(each)
  ]
  rest = [each for each in event.events if each not in apart]
  return apart, dp_accounting.ComposedDpEvent(rest)


def _mixed(
  event: dp_accounting.DpEvent, repeated: Optional[dp_accounting.DpEvent]
) -> str:
  before = 'Gaussian' if repeated is None else f'{repeated}'
  return (
    f'the event is {event}, and those before it are {before}: all rounds of a ledger '
    'are of one mechanism, sampled or not. Another one has its own ledger.'
  )


def check_stated(entry: LedgerEntry, spent: Spent) -> None:
  """Checks that the figures of an entry are what the events so far compose to.

  Raises:
    ValueError: If they are not.
  """
  if spent.repeated is not None:
    for name in ('effective_noise_multiplier', 'epsilon'):
      if getattr(entry, name) is not None:
        raise ValueError(
          f'{name} is {getattr(entry, name)}, but lines of sampled rounds, or of '
          'noise that is not Gaussian, state none.'
        )
    return
  stated, exact = entry.effective_noise_multiplier, spent.effective_noise_multiplier
  if stated is None or exact is None:
    right = stated == exact
  else:
    right = exact * (1 - _TOLERANCE) <= stated <= exact * (1 + _ROUND_OFF)
  if not right:
    raise ValueError(
      f'effective_noise_multiplier is {stated}, but the events of rounds 0 to '
      f'{entry.round} compose to {exact}.'
    )
  if not _is_epsilon(entry.epsilon, spent.mu, entry.delta):
    raise ValueError(
      f'epsilon is {entry.epsilon}, but the events of rounds 0 to {entry.round} '
      f'compose to {spent.epsilon(entry.delta)} at delta {entry.delta}.'
    )


@functools.lru_cache(maxsize=16)  # Many rounds add nothing to the worst case.
def _is_epsilon(stated: Optional[float], mu: float, delta: float) -> bool:
  """Whether `stated` is `gaussian.epsilon_of`, without inverting the curve."""
  if stated is None or mu == 0 or math.isinf(mu):
    return stated == _finite(gaussian.epsilon_of(mu, delta))
  lower_mu, lower = mu * (1 - _ROUND_OFF), stated * (1 - _TOLERANCE)
  enough = gaussian.delta_of(lower_mu, stated) <= delta
  tight = gaussian.delta_of(mu, lower) > delta
  # Where the curve is flat its inverse has the last word.
  return (enough or stated >= gaussian.epsilon_of(lower_mu, delta)) and (
    tight or stated <= gaussian.epsilon_of(mu, delta) * (1 + _TOLERANCE)
  )


def _finite(value: float) -> Optional[float]:
  """JSON has no infinity: no number stands for it."""
  return value if value != math.inf else None
