"""Kinds of noise: what one round's event is, and in which norm a client is clipped.

Gaussian noise may be correlated over rounds by a strategy, and all rounds together are
one Gaussian. Other noise is drawn anew in each round, and its rounds compose: a client
who takes part in k of them is hidden by k equal events. `OTHERS` are mechanisms by
themselves, with the identity as their strategy.
"""

import dataclasses
import math
from typing import Callable

import dp_accounting


@dataclasses.dataclass(frozen=True)
class Noise:
  """A kind of noise.

  Attributes:
    name: Of it, and of the mechanism that adds it independently in each round.
    order: The p-norm that a client's contribution is clipped in.
    event: The event of one round, from the scale of the noise over what one client
      changes the sum by in that norm.
    stddev: Standard deviation of noise whose scale is 1.
    scale: What the noise multiplier is relative to the clip norm, for reports.
    words: What the mechanism is, for readers of a report who never saw this package.
    citations: Papers that it is from.
  """

  name: str
  order: int
  event: Callable[[float], dp_accounting.DpEvent]
  stddev: float
  scale: str
  words: str
  citations: tuple[str, ...] = ()

  @property
  def is_gaussian(self) -> bool:
    """Whether rounds may share it, and all of them together are one Gaussian."""
    return self is GAUSSIAN

  def repeated(self, noise_multiplier: float, count: int) -> dp_accounting.DpEvent:
    """The event of several rounds of one client, with independent noise.

    Args:
      noise_multiplier: Scale of the noise over what one client changes the sum by.
      count: Number of rounds.

    Example:
      >>> LAPLACE.repeated(2.0, 3).count
      3
    """
    return dp_accounting.SelfComposedDpEvent(self.event(noise_multiplier), count)


# What may be correlated over rounds by a strategy.
GAUSSIAN = Noise(
  'gaussian',
  2,
  dp_accounting.GaussianDpEvent,
  stddev=1.0,
  scale='standard deviation of an entry of z',
  words='independent Gaussian noise in each round, as in DP-FedAvg',
)
# Pure epsilon, in L1 norm.
LAPLACE = Noise(
  'laplace',
  1,
  dp_accounting.LaplaceDpEvent,
  stddev=math.sqrt(2),
  scale='scale of an entry of z, whose standard deviation is sqrt(2) times that,',
  words='independent Laplace noise in each round (Dwork et al. 2006, theorem 1)',
)
# Mechanisms whose noise is not Gaussian, by name.
OTHERS: dict[str, Noise] = {LAPLACE.name: LAPLACE}


def of_mechanism(name: str) -> Noise:
  """The noise of a mechanism of a name; Gaussian but for `OTHERS`.

  Args:
    name: Of the mechanism.

  Example:
    >>> of_mechanism('banded').name, of_mechanism('laplace').order
    ('gaussian', 1)
  """
  return OTHERS.get(name, GAUSSIAN)
