"""Kinds of noise, with the event of one round, and who adds the noise.

Gaussian noise may be correlated over rounds by a strategy. Other noise is independent
in each round; each of `OTHERS` is a mechanism by itself, with the identity as its
strategy. A placement says who adds the noise: `accounting.local` has the guarantees.
"""

import dataclasses
import functools
import math
from collections.abc import Mapping
from typing import Callable, Optional

import dp_accounting

from tff_dp_aggregators import sampling
from tff_dp_aggregators import strategies
from tff_dp_aggregators.accounting import distributed_noise
from tff_dp_aggregators.base import checks

# Integer options of noises and placements: names of arguments, flags and JSON keys.
MIN_CLIENTS, MAX_CLIENTS = 'min_clients', 'max_clients'
DIMENSION, BITS = 'dimension', 'bits'


@dataclasses.dataclass(frozen=True)
class Noise:
  """A noise distribution."""

  name: str  # Also the name of the mechanism with this noise, independent in rounds.
  order: int  # The p of the p-norm in which a client's contribution is clipped.
  # The event of one round, from the noise multiplier and the values of `options`.
  one_round: Callable[..., dp_accounting.DpEvent]
  stddev: float  # Standard deviation of noise whose scale is 1.
  placements: tuple[str, ...]  # Names of valid placements, the default first.
  options: tuple[str, ...] = ()  # Names of further parameters (`distributed_noise`).
  required: tuple[str, ...] = ()  # Names of the options that have to be given.
  numbers: tuple[tuple[str, int], ...] = ()  # Values of options, if they are known.

  @property
  def is_gaussian(self) -> bool:
    """Whether it is Gaussian noise, which may be correlated over rounds."""
    return self is GAUSSIAN

  @property
  def is_integer(self) -> bool:
    """Whether contributions are integers, on a grid that depends on the noise."""
    return bool(self.options)

  def with_numbers(self, numbers: Mapping[str, int]) -> 'Noise':
    """Returns this noise with values of its options; other names are ignored."""
    if not self.options:
      return self
    kept = tuple((name, n) for name, n in numbers.items() if name in self.options)
    return dataclasses.replace(self, numbers=kept)

  def placement(self, name: Optional[str]) -> 'Placement':
    """The placement of a name; `None` for the default one."""
    if name is not None and name not in self.placements:
      raise ValueError(
        f'noise_site={name} does not go with {self.name} noise, of which no event is '
        f'known there; its noise_site is {" or ".join(self.placements)}.'
      )
    return PLACEMENTS[name or self.placements[0]]

  def event(self, noise_multiplier: float) -> dp_accounting.DpEvent:
    """The event of one round; raises ValueError if there are too few bits for one."""
    return self.one_round(noise_multiplier, **dict(self.numbers))

  def repeated(self, noise_multiplier: float, count: int) -> dp_accounting.DpEvent:
    """The event of `count` rounds of one client, with independent noise."""
    return dp_accounting.SelfComposedDpEvent(self.event(noise_multiplier), count)


def _integers(name: str) -> Noise:
  # No event depends on the clip norm, as the grid is relative to it.
  design = functools.partial(distributed_noise.design, name, clip_norm=1.0)
  return Noise(
    name,
    2,
    lambda noise, **numbers: design(noise_multiplier=noise, **numbers).event(),
    stddev=1.0,
    placements=('clients',),
    options=(MIN_CLIENTS, MAX_CLIENTS, DIMENSION, BITS),
    required=(MIN_CLIENTS, DIMENSION, BITS),
  )


GAUSSIAN = Noise(
  'gaussian',
  2,
  dp_accounting.GaussianDpEvent,
  stddev=1.0,
  placements=('server', 'clients', 'local', 'clients_and_server', 'local_approximate'),
)
LAPLACE = Noise(
  'laplace',
  1,
  dp_accounting.LaplaceDpEvent,
  stddev=math.sqrt(2),
  placements=('server', 'local', 'local_approximate'),
)
# Integer noise in shares, for secure sums; the second is smaller on coarse grids.
SKELLAM, DISCRETE_GAUSSIAN = map(_integers, ('skellam', 'discrete_gaussian'))
REAL: dict[str, Noise] = {each.name: each for each in (GAUSSIAN, LAPLACE)}
# Noises except Gaussian, each of which is a mechanism of that name.
OTHERS: dict[str, Noise] = {
  each.name: each for each in (LAPLACE, SKELLAM, DISCRETE_GAUSSIAN)
}


def of_mechanism(name: str) -> Noise:
  """The noise of a mechanism: one of `OTHERS` by name, or Gaussian."""
  return OTHERS.get(name, GAUSSIAN)


def real(noise: str) -> Noise:
  """The noise of a name in `REAL`; raises ValueError for other names."""
  if noise not in REAL:
    names = ' or '.join(map(repr, REAL))
    raise ValueError(f'noise must be {names}, got {noise!r}.')
  return REAL[noise]


@dataclasses.dataclass(frozen=True)
class Placement:
  """Who adds the noise: a value of `--noise_site`."""

  name: str
  options: tuple[str, ...] = ()  # Names of further parameters.
  required: tuple[str, ...] = ()  # Names of the options that have to be given.
  # Whether it only simulates another placement, without its guarantee.
  is_simulation: bool = False
  is_on_clients: bool = False  # Whether each client draws noise of its own.
  # Whether `noise_multiplier` is that of one client's noise, and not of the sum.
  is_of_client: bool = False
  # Whether the server adds Gaussian noise of `server_noise_multiplier` to the sum.
  adds_on_server: bool = False

  def sum_noise_factor(self, clients: float, numbers: Mapping[str, int]) -> float:
    """The noise multiplier of a sum of `clients` clients over `noise_multiplier`."""
    if self.is_of_client:
      return math.sqrt(clients)
    if not self.is_on_clients:
      return 1.0
    return math.sqrt(max(1.0, clients / numbers[MIN_CLIENTS]))


_FEWEST = (MIN_CLIENTS,)
SERVER = Placement('server')  # The default, except for integer noise.
# Clients add shares of the noise that protects the sum.
CLIENTS = Placement('clients', options=_FEWEST, required=_FEWEST, is_on_clients=True)
# Clients add noise that protects each of them.
LOCAL = Placement('local', options=_FEWEST, is_on_clients=True, is_of_client=True)
# The same, and the server adds more noise, against those who see only sums.
CLIENTS_AND_SERVER = dataclasses.replace(
  LOCAL, name='clients_and_server', adds_on_server=True
)
# A simulation of 'local', without its guarantee.
LOCAL_APPROXIMATE = Placement(
  'local_approximate', is_simulation=True, is_of_client=True
)
PLACEMENTS = {
  each.name: each
  for each in (SERVER, CLIENTS, LOCAL, CLIENTS_AND_SERVER, LOCAL_APPROXIMATE)
}
# The further parameter of 'clients_and_server': an argument, a flag and a JSON key.
SERVER_NOISE = 'server_noise_multiplier'


def check(
  placement: Placement,
  strategy: strategies.Strategy,
  participation: sampling.Schema,
  clipped_count_stddev: Optional[float],
) -> None:
  """Raises ValueError for settings without an analysis if clients add the noise."""
  # Clients that are not drawn add no noise, which shows who was drawn; the server would
  # see the counts of single clients; and correlated noise subtracts that of earlier
  # rounds, whose clients may not be in the round.
  if placement is not SERVER and (
    sampling.is_sampled(participation)
    or clipped_count_stddev is not None
    or strategy != strategies.Identity(strategy.num_rounds)
  ):
    raise ValueError(
      f'noise_site={placement.name}: noise that clients make hides them if it is '
      'independent in each round (the mechanism gaussian), without sampling, and with '
      f'a fixed clip norm; got a {strategy.kind} strategy, {participation} and '
      f'clipped_count_stddev={clipped_count_stddev}. Change that, or leave noise_site '
      'out.'
    )


def check_numbers(
  name: str, noise: Noise, placement: Placement, given: Mapping[str, int]
) -> None:
  """Raises ValueError for options that noise and placement lack or do not have."""
  valid = {*noise.options, *placement.options}
  where = f'{name} with noise_site={placement.name}'
  for option, value in given.items():
    if option not in valid:
      raise ValueError(f'{option}={value} is for {having(option)}, not for {where}.')
  for required in (*noise.required, *placement.required):
    if required not in given:
      raise ValueError(f'{where} needs {required}.')


def check_server_noise(
  placement: Placement,
  noise_multiplier: float,
  server_noise_multiplier: Optional[float],
) -> Optional[float]:
  """Returns the noise multiplier of the server's additional noise, or `None`."""
  if (server_noise_multiplier is not None) != placement.adds_on_server:
    raise ValueError(
      f'{SERVER_NOISE}, the noise of the server on top of that of clients, goes with '
      f'noise_site={CLIENTS_AND_SERVER.name} and with no other; got '
      f'{server_noise_multiplier} with noise_site={placement.name}.'
    )
  if server_noise_multiplier is None:
    return None
  # The guarantee rests on the clients' own noise.
  checks.check_positive('noise_multiplier', noise_multiplier)
  return checks.check_not_negative(SERVER_NOISE, server_noise_multiplier)


def options() -> tuple[str, ...]:
  """Names of the options of all noises and placements."""
  of_noises = (name for each in OTHERS.values() for name in each.options)
  of_placements = (name for each in PLACEMENTS.values() for name in each.options)
  return tuple(dict.fromkeys((*of_noises, *of_placements)))


def having(option: str, last: str = ' or ') -> str:
  """The noises and the placements that have an option, for messages."""
  *others, final = [
    *(each.name for each in OTHERS.values() if option in each.options),
    *(f'noise_site={n}' for n, each in PLACEMENTS.items() if option in each.options),
  ]
  return f'{", ".join(others)}{last}{final}' if others else final
