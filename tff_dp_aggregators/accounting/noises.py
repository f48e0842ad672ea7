"""Kinds of noise: what one round's event is, and in which norm a client is clipped.

Gaussian noise may be correlated over rounds by a strategy, and all rounds together are
one Gaussian. Other noise is drawn anew in each round, and its rounds compose: a client
who takes part in k of them is hidden by k equal events. `OTHERS` are mechanisms by
themselves, with the identity as their strategy.

Integer noise takes more numbers than its scale, `Noise.options`: how fine its grid is
follows from them, and so does its event (`distributed_noise`).
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import Callable

import dp_accounting

from tff_dp_aggregators.accounting import distributed_noise

# Whole numbers, at least 1, that integer noise or the site of noise takes: names of
# arguments of `accounting.Mechanism`, of flags, and keys of JSON. The fewest clients
# whose noise is in a sum that is released.
MIN_CLIENTS = 'min_clients'
# The most whose sum is as good as sure not to wrap around.
MAX_CLIENTS = 'max_clients'
# Numbers that a client sends, and bits of the secure sum.
DIMENSION, BITS = 'dimension', 'bits'
# For errors.
MEANINGS = {
  MIN_CLIENTS: 'how many clients report at least; a round with fewer is not released',
  MAX_CLIENTS: 'how many clients report at most',
  DIMENSION: 'how many numbers a client sends',
  BITS: 'those of the secure sum, from 2 to 30',
}


@dataclasses.dataclass(frozen=True)
class Noise:
  """A kind of noise."""

  name: str  # And that of the mechanism that adds it independently in each round.
  order: int  # The p-norm that a client's contribution is clipped in.
  # The event of one round, from the scale of the noise over what one client changes the
  # sum by in that norm, and the numbers of `options` by name.
  one_round: Callable[..., dp_accounting.DpEvent]
  stddev: float  # Standard deviation of noise whose scale is 1.
  sites: tuple[str, ...]  # Where it can be made, the usual place first.
  options: tuple[str, ...] = ()  # More numbers that it takes, by name.
  required: tuple[str, ...] = ()  # Those of them that there have to be.
  numbers: tuple[tuple[str, int], ...] = ()  # Values of them, if it is fully known.

  @property
  def is_gaussian(self) -> bool:
    """Whether rounds may share it, and all of them together are one Gaussian."""
    return self is GAUSSIAN

  @property
  def is_integer(self) -> bool:
    """Whether what is summed are integers, on a grid that is found with the noise."""
    return bool(self.options)

  def with_numbers(self, numbers: Mapping[str, int]) -> 'Noise':
    """This noise with values for its options; those of others are left aside."""
    if not self.options:
      return self
    kept = tuple((name, n) for name, n in numbers.items() if name in self.options)
    return dataclasses.replace(self, numbers=kept)

  def event(self, noise_multiplier: float) -> dp_accounting.DpEvent:
    """The event of one round; a ValueError if there is none, as bits are too few."""
    return self.one_round(noise_multiplier, **dict(self.numbers))

  def repeated(self, noise_multiplier: float, count: int) -> dp_accounting.DpEvent:
    """The event of several rounds of one client, with independent noise."""
    return dp_accounting.SelfComposedDpEvent(self.event(noise_multiplier), count)


def _integers(name: str) -> Noise:
  """Integer noise in shares, on the finest grid that its bits allow."""

  def one_round(noise_multiplier: float, **numbers: int) -> dp_accounting.DpEvent:
    # No event depends on the clip norm, for the grid is relative to it.
    return distributed_noise.design(
      name, clip_norm=1.0, noise_multiplier=noise_multiplier, **numbers
    ).event()

  return Noise(
    name,
    2,
    one_round,
    stddev=1.0,
    sites=('clients',),
    options=(MIN_CLIENTS, MAX_CLIENTS, DIMENSION, BITS),
    required=(MIN_CLIENTS, DIMENSION, BITS),
  )


# What may be correlated over rounds by a strategy.
GAUSSIAN = Noise(
  'gaussian',
  2,
  dp_accounting.GaussianDpEvent,
  stddev=1.0,
  sites=('server', 'clients', 'local', 'clients_and_server', 'local_approximate'),
)
# Pure epsilon, in L1 norm.
LAPLACE = Noise(
  'laplace',
  1,
  dp_accounting.LaplaceDpEvent,
  stddev=math.sqrt(2),
  sites=('server', 'local', 'local_approximate'),
)
# Integers in shares, for secure aggregation; the second has less noise on coarse grids.
SKELLAM, DISCRETE_GAUSSIAN = map(_integers, ('skellam', 'discrete_gaussian'))
# Noise of real numbers, which needs no grid, by name.
REAL: dict[str, Noise] = {each.name: each for each in (GAUSSIAN, LAPLACE)}
# Mechanisms whose noise is not Gaussian, by name.
OTHERS: dict[str, Noise] = {
  each.name: each for each in (LAPLACE, SKELLAM, DISCRETE_GAUSSIAN)
}


def of_mechanism(name: str) -> Noise:
  """The noise of a mechanism of a name; Gaussian but for `OTHERS`."""
  return OTHERS.get(name, GAUSSIAN)
