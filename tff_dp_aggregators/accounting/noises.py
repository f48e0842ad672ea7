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
from typing import Any, Callable, NamedTuple, Optional

import dp_accounting

from tff_dp_aggregators.accounting import distributed_noise


@dataclasses.dataclass(frozen=True)
class Option:
  """A whole number, at least 1, that noise or the site of noise takes.

  Attributes:
    name: As an argument of `accounting.Mechanism`, a flag, and a key of JSON.
    help: What it is and its default, to stand after 'For skellam: '.
    title: In a report: what it is called,
    meaning: and what it means.
  """

  name: str
  help: str
  title: str
  meaning: str


# The fewest whose noise is in a sum that is released.
MIN_CLIENTS = Option(
  'min_clients',
  'how many clients report at least; a round with fewer is not released',
  'clients with noise',
  'as many reported in each round at least and kept their noise to themselves; with '
  'fewer a round is not released',
)
# The most whose sum is as good as sure not to wrap around.
MAX_CLIENTS = Option(
  'max_clients',
  'how many clients report at most, for a sum of more may wrap around. Default: '
  '--min_clients',
  'clients at most',
  'a sum of more may wrap around, which costs no privacy, and the result of the round',
)
# Of what a client sends.
DIMENSION = Option(
  'dimension',
  'how many numbers a client sends, such as trainable parameters of a model; padded '
  'to a power of two',
  'numbers of a client',
  'padded to a power of two; each of them is rounded to a whole number, which makes a '
  'contribution larger',
)
# Of a secure sum.
BITS = Option(
  'bits',
  'of the secure sum, from 2 to 30. Default with a target: the fewest that hardly cost '
  'noise',
  'bits of the secure sum',
  'sums are modulo two to the power of it; the grid is the finest for it with which '
  'sums wrap around in at most 1 of 10^6 rounds',
)


class Planned(NamedTuple):
  """What a search for noise found.

  Attributes:
    noise_multiplier: The least.
    numbers: Of all options.
  """

  noise_multiplier: float
  numbers: dict[str, int]


@dataclasses.dataclass(frozen=True)
class Noise:
  """A kind of noise.

  Attributes:
    name: Of it, and of the mechanism that adds it independently in each round.
    order: The p-norm that a client's contribution is clipped in.
    one_round: The event of one round, from the scale of the noise over what one client
      changes the sum by in that norm, and the numbers of `options` by name.
    stddev: Standard deviation of noise whose scale is 1.
    scale: What the noise multiplier is relative to the clip norm, for reports.
    words: What the mechanism is, for readers of a report who never saw this package.
    sites: Where it can be made, the usual place first.
    citations: Papers that it is from.
    cost: What a round costs, for reports; `None` if all rounds are one Gaussian.
    options: More numbers that it takes.
    required: Those of them that there have to be.
    plan: What finds the least noise, given those numbers that are known, where it has
      to be found together with others; `None` for noise that has a scale alone.
    numbers: Values of `options`, in noise that is fully known.
  """

  name: str
  order: int
  one_round: Callable[..., dp_accounting.DpEvent]
  stddev: float
  scale: str
  words: str
  sites: tuple[str, ...]
  citations: tuple[str, ...] = ()
  cost: Optional[str] = None
  options: tuple[Option, ...] = ()
  required: tuple[Option, ...] = ()
  plan: Optional[Callable[..., Planned]] = None
  numbers: tuple[tuple[str, int], ...] = ()

  @property
  def is_gaussian(self) -> bool:
    """Whether rounds may share it, and all of them together are one Gaussian."""
    return self is GAUSSIAN

  def with_numbers(self, numbers: Mapping[str, int]) -> 'Noise':
    """This noise with values for its options; itself if it has none.

    Args:
      numbers: By name; those of other options are left aside.
    """
    own = {each.name for each in self.options}
    if not own:
      return self
    kept = tuple((name, value) for name, value in numbers.items() if name in own)
    return dataclasses.replace(self, numbers=kept)

  def event(self, noise_multiplier: float) -> dp_accounting.DpEvent:
    """The event of one round.

    Args:
      noise_multiplier: Scale of the noise over what one client changes the sum by.

    Raises:
      ValueError: If there is none, as bits are too few for a sum.
    """
    return self.one_round(noise_multiplier, **dict(self.numbers))

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


def _integers(name: str, words: str, citations: tuple[str, ...]) -> Noise:
  """Integer noise in shares, on the finest grid that its bits allow."""

  def one_round(noise_multiplier: float, **numbers: int) -> dp_accounting.DpEvent:
    # No event depends on the clip norm, for the grid is relative to it.
    return distributed_noise.design(
      name, clip_norm=1.0, noise_multiplier=noise_multiplier, **numbers
    ).event()

  def plan(
    target_epsilon: float, target_delta: float, participations: int, **numbers: Any
  ) -> Planned:
    found = distributed_noise.plan(
      name,
      target_epsilon,
      target_delta,
      participations=participations,
      clip_norm=1.0,
      **numbers,
    )
    return Planned(
      found.noise_multiplier,
      {
        **{key: value for key, value in numbers.items() if value is not None},
        'bits': found.bits,
      },
    )

  return Noise(
    name,
    2,
    one_round,
    stddev=1.0,
    scale='standard deviation of an entry of the sum of min_clients shares, '
    'before rounding,',
    words=words,
    sites=('clients',),
    citations=citations,
    cost=f'What a round with {name.replace("_", " ")} noise costs is known by its '
    f'Renyi divergences ({", ".join(citations)}): of the sum of the shares of the '
    'fewest clients, against the longest contribution that rounding may make of a '
    'clipped one. They add up over the rounds of a client, and epsilon follows from '
    'them.',
    options=(MIN_CLIENTS, MAX_CLIENTS, DIMENSION, BITS),
    required=(MIN_CLIENTS, DIMENSION, BITS),
    plan=plan,
  )


# What may be correlated over rounds by a strategy.
GAUSSIAN = Noise(
  'gaussian',
  2,
  dp_accounting.GaussianDpEvent,
  stddev=1.0,
  scale='standard deviation of an entry of z',
  words='independent Gaussian noise in each round, as in DP-FedAvg',
  sites=('server', 'clients', 'local', 'clients_and_server', 'local_approximate'),
)
# Pure epsilon, in L1 norm.
LAPLACE = Noise(
  'laplace',
  1,
  dp_accounting.LaplaceDpEvent,
  stddev=math.sqrt(2),
  scale='scale of an entry of z, whose standard deviation is sqrt(2) times that,',
  words='independent Laplace noise in each round (Dwork et al. 2006, theorem 1)',
  cost='A round with Laplace noise costs a client who is in it epsilon = 1 / the noise '
  'multiplier, with delta = 0; one who is in several of them at most the sum. The '
  'accountants compose the privacy loss of the rounds, which at a positive delta is '
  'less than that.',
  sites=('server', 'local', 'local_approximate'),
)
# Integers, for secure aggregation.
SKELLAM = _integers(
  'skellam',
  'integers with Skellam noise that clients make in shares, under a secure sum',
  ('arXiv:2110.04995',),
)
# Integers, with less noise than Skellam noise on coarse grids.
DISCRETE_GAUSSIAN = _integers(
  'discrete_gaussian',
  'integers with discrete Gaussian noise that clients make in shares, under a secure '
  'sum',
  ('arXiv:2102.06387',),
)
# Mechanisms whose noise is not Gaussian, by name.
OTHERS: dict[str, Noise] = {
  each.name: each for each in (LAPLACE, SKELLAM, DISCRETE_GAUSSIAN)
}


def of_mechanism(name: str) -> Noise:
  """The noise of a mechanism of a name; Gaussian but for `OTHERS`.

  Args:
    name: Of the mechanism.

  Example:
    >>> of_mechanism('banded').name, of_mechanism('laplace').order
    ('gaussian', 1)
  """
  return OTHERS.get(name, GAUSSIAN)
