"""Events of noise that clients add in shares: integers, for secure aggregation.

Each client rounds its contribution to integers, adds integer noise of `local_stddev`,
and sends it into a secure sum, which may wrap around: only the sum is seen, and what
wraps is a function of it. What protects a client is the sum of the shares of all that
reported, its own among them, so an event counts the *fewest* clients whose noise is in
a sum that is released. More of them only add to it.

A sensitivity is that of the integers: of what rounding may make of the clip norm, not
of the clip norm (`distributed_noise`). It is relative to a neighbouring relation in
which both data sets have the same shares of noise: zeroing out one client's
contributions, or replacing them by others (twice the sensitivity). A client that is
added or removed brings or takes its noise along; such an event has no meaning there,
and accountants refuse it.
"""

import dataclasses
import math
from typing import Any, NoReturn

import dp_accounting

from tff_dp_aggregators.base import checks

# What arXiv:2102.06387, Theorem 1, asks of a share.
LEAST_DISCRETE_GAUSSIAN = 0.5


@dataclasses.dataclass(frozen=True)
class _Shares(dp_accounting.DpEvent):
  """What the events have in common."""

  local_stddev: float
  num_clients: int
  l2_sensitivity: float
  l1_sensitivity: float

  def __post_init__(self) -> None:
    for name in ('local_stddev', 'l2_sensitivity', 'l1_sensitivity'):
      value = float(checks.check_number(name, getattr(self, name)))
      if not (value > 0 and math.isfinite(value)):
        raise ValueError(f'{name} must be positive and finite; got {value}.')
      object.__setattr__(self, name, value)
    self._set_int('num_clients')

  def _set_int(self, name: str) -> None:
    value = checks.check_positive_int(name, getattr(self, name))
    object.__setattr__(self, name, value)

  @property
  def variance(self) -> float:
    """That of the sum of the shares."""
    return self.local_stddev * self.local_stddev * self.num_clients

  def to_named_tuple(self) -> NoReturn:
    """Not for this kind of event: dp-accounting would leave out its fields.

    Raises:
      ValueError: Always.
    """
    raise ValueError(
      f'{type(self).__name__} has no named tuple; accounting.events.to_json writes it.'
    )


@dataclasses.dataclass(frozen=True)
class SkellamDpEvent(_Shares):
  """A sum of integers with a share of Skellam noise from each client.

  A share is the difference of two Poisson numbers of mean `local_stddev^2 / 2`; their
  sum is a Skellam number again, of variance `num_clients * local_stddev^2`
  (arXiv:2110.04995).

  Attributes:
    local_stddev: Standard deviation of a share.
    num_clients: The fewest clients whose shares are in the sum.
    l2_sensitivity: L2 norm of what one client changes the sum of integers by.
    l1_sensitivity: L1 norm of it.

  Raises:
    TypeError: If one of them is no number.
    ValueError: If one of them is not positive and finite.
  """


@dataclasses.dataclass(frozen=True)
class DistributedDiscreteGaussianDpEvent(_Shares):
  """A sum of integers with a share of discrete Gaussian noise from each client.

  A share of k has a probability proportional to exp(-k^2 / (2 local_stddev^2)). The
  sum of shares is close to a discrete Gaussian, and not one (arXiv:2102.06387).

  Attributes:
    local_stddev: The parameter of a share, at least 1/2; its standard deviation is not
      above.
    num_clients: The fewest clients whose shares are in the sum.
    l2_sensitivity: L2 norm of what one client changes the sum of integers by.
    l1_sensitivity: L1 norm of it.
    dimension: How many integers there are.

  Raises:
    TypeError: If one of them is no number.
    ValueError: If one of them is out of range.
  """

  dimension: int

  def __post_init__(self) -> None:
    super().__post_init__()
    self._set_int('dimension')
    if self.local_stddev < LEAST_DISCRETE_GAUSSIAN:
      raise ValueError(
        f'local_stddev must be at least {LEAST_DISCRETE_GAUSSIAN} for discrete '
        'Gaussian shares, below which nothing is proved of their sum '
        f'(arXiv:2102.06387, Theorem 1); got {self.local_stddev}. Take a finer grid, '
        'more noise, or Skellam noise.'
      )


# All of them.
KINDS = (SkellamDpEvent, DistributedDiscreteGaussianDpEvent)


def is_discrete(event: Any) -> bool:
  """Whether it is one of these."""
  return isinstance(event, KINDS)
