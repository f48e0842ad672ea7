"""How noise is made: which there is, with the event of one round, and its placements.

Gaussian noise may be correlated over rounds by a strategy, and all rounds together are
one Gaussian. Other noise is drawn anew in each round, and its rounds compose: a client
who takes part in k of them is hidden by k equal events. `OTHERS` are mechanisms by
themselves, with the identity as their strategy.

Integer noise takes more numbers than its scale, `Noise.options`, from which its grid
follows, and its event (`distributed_noise`).

A placement says who adds noise. Noise of the server hides a client in what is released;
a client's own noise hides what it sends, from the server too; and shares of noise,
which clients make for the sum, hide a client in the sum (`accounting.local`).
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import Callable, Optional

import dp_accounting

from tff_dp_aggregators import sampling
from tff_dp_aggregators import strategies
from tff_dp_aggregators.accounting import distributed_noise
from tff_dp_aggregators.base import checks

# Whole numbers that integer noise or a placement takes: arguments, flags, keys of JSON.
MIN_CLIENTS, MAX_CLIENTS = 'min_clients', 'max_clients'
DIMENSION, BITS = 'dimension', 'bits'
MEANINGS = {
  MIN_CLIENTS: 'how many clients report at least; a round with fewer is not released',
  MAX_CLIENTS: 'how many clients report at most',
  DIMENSION: 'how many numbers a client sends',
  BITS: 'those of the secure sum, from 2 to 30',
}


@dataclasses.dataclass(frozen=True)
class Noise:
  """Noise of one distribution."""

  name: str  # And that of the mechanism that adds it independently in each round.
  order: int  # The p-norm that a client's contribution is clipped in.
  # The event of one round, from the scale of the noise over what one client changes the
  # sum by in that norm, and the numbers of `options`.
  one_round: Callable[..., dp_accounting.DpEvent]
  stddev: float  # Standard deviation of noise whose scale is 1.
  placements: tuple[str, ...]  # Where it can be made, the usual one first.
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

  def placement(self, name: Optional[str]) -> 'Placement':
    """The placement of a name, by default the usual one."""
    if name is not None and name not in self.placements:
      raise ValueError(
        f'noise_site={name} does not go with {self.name} noise, of which no event is '
        f'known there; its noise_site is {" or ".join(self.placements)}.'
      )
    return PLACEMENTS[name or self.placements[0]]

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
    placements=('clients',),
    options=(MIN_CLIENTS, MAX_CLIENTS, DIMENSION, BITS),
    required=(MIN_CLIENTS, DIMENSION, BITS),
  )


# What may be correlated over rounds by a strategy.
GAUSSIAN = Noise(
  'gaussian',
  2,
  dp_accounting.GaussianDpEvent,
  stddev=1.0,
  placements=('server', 'clients', 'local', 'clients_and_server', 'local_approximate'),
)
# Pure epsilon, in L1 norm.
LAPLACE = Noise(
  'laplace',
  1,
  dp_accounting.LaplaceDpEvent,
  stddev=math.sqrt(2),
  placements=('server', 'local', 'local_approximate'),
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


def real(noise: str) -> Noise:
  """The noise of a name, if clients can add it."""
  if noise not in REAL:
    names = ' or '.join(map(repr, REAL))
    raise ValueError(f'noise must be {names}, got {noise!r}.')
  return REAL[noise]


@dataclasses.dataclass(frozen=True)
class Placement:
  """Where noise is made: a value of `--noise_site`."""

  name: str
  options: tuple[str, ...] = ()  # Numbers that it takes, by name.
  required: tuple[str, ...] = ()  # Those of them that there have to be.
  # Whether it shows what another one would come to, without its guarantee.
  is_simulation: bool = False
  is_on_clients: bool = False  # Whether clients draw it, each for itself.
  # Whether `noise_multiplier` is that of one client's noise, and not of the sum.
  is_of_client: bool = False
  # Whether the server adds Gaussian noise of `server_noise_multiplier` to the sum.
  adds_on_server: bool = False

  def times_that_of_sums(self, clients: float, numbers: Mapping[str, int]) -> float:
    """The noise of a sum over what `noise_multiplier` says."""
    if self.is_of_client:
      return math.sqrt(clients)
    if not self.is_on_clients:
      return 1.0
    return math.sqrt(max(1.0, clients / numbers[MIN_CLIENTS]))


_FEWEST = (MIN_CLIENTS,)
SERVER = Placement('server')  # The usual one.
# Shares, for the sum.
CLIENTS = Placement('clients', options=_FEWEST, required=_FEWEST, is_on_clients=True)
# Noise that hides each client.
LOCAL = Placement('local', options=_FEWEST, is_on_clients=True, is_of_client=True)
# Noise that hides each client, and more of the server for those who see sums.
CLIENTS_AND_SERVER = dataclasses.replace(
  LOCAL, name='clients_and_server', adds_on_server=True
)
# In its place, where nothing is to be hidden.
LOCAL_APPROXIMATE = Placement(
  'local_approximate', is_simulation=True, is_of_client=True
)
# All of them, by name; the server is where noise is made unless something else is said.
PLACEMENTS = {
  each.name: each
  for each in (SERVER, CLIENTS, LOCAL, CLIENTS_AND_SERVER, LOCAL_APPROXIMATE)
}
# What the last but one takes besides: an argument, a flag, and a key of JSON.
SERVER_NOISE = 'server_noise_multiplier'


def check(
  placement: Placement,
  strategy: strategies.Strategy,
  participation: sampling.Schema,
  clipped_count_stddev: Optional[float],
) -> None:
  """Refuses what has no analysis where noise is not made by the server."""
  if placement is SERVER:
    return
  refused = (
    # Who is not drawn adds no noise either, which shows who was drawn.
    (sampling.is_sampled(participation), 'sampling'),
    # The server would see the counts of single clients.
    (clipped_count_stddev is not None, f'clipped_count_stddev={clipped_count_stddev}'),
    # A round takes away noise of earlier ones, of clients who are not in it.
    (
      strategy != strategies.Identity(strategy.num_rounds),
      f'a {strategy.kind} strategy',
    ),
  )
  for is_so, what in refused:
    if is_so:
      raise ValueError(
        f'noise_site={placement.name} does not go with {what}: noise that clients make '
        'hides them if it is independent in each round (the mechanism gaussian), '
        'without sampling, and with a fixed clip norm. Change that, or leave '
        'noise_site out.'
      )


def check_numbers(
  name: str, noise: Noise, placement: Placement, given: Mapping[str, int]
) -> None:
  """Refuses numbers that noise and placement do not take, or lack."""
  own = {*noise.options, *placement.options}
  where = f'{name} with noise_site={placement.name}'
  for option, value in given.items():
    if option not in own:
      raise ValueError(f'{option}={value} is for {having(option)}, not for {where}.')
  for needed in (*noise.required, *placement.required):
    if needed not in given:
      raise ValueError(f'{where} needs {needed}: {MEANINGS[needed]}.')


def check_server_noise(
  placement: Placement,
  noise_multiplier: float,
  server_noise_multiplier: Optional[float],
) -> Optional[float]:
  """Returns the noise multiplier of the server's noise on top of that of clients."""
  if (server_noise_multiplier is not None) != placement.adds_on_server:
    raise ValueError(
      f'{SERVER_NOISE}, the noise of the server on top of that of clients, goes with '
      f'noise_site={CLIENTS_AND_SERVER.name} and with no other; got '
      f'{server_noise_multiplier} with noise_site={placement.name}.'
    )
  if server_noise_multiplier is None:
    return None
  # The guarantee is of clients' own noise.
  checks.check_positive('noise_multiplier', noise_multiplier)
  return checks.check_not_negative(SERVER_NOISE, server_noise_multiplier)


def options() -> tuple[str, ...]:
  """Names of the options of all noises and placements."""
  of_noises = (name for each in OTHERS.values() for name in each.options)
  of_placements = (name for each in PLACEMENTS.values() for name in each.options)
  return tuple(dict.fromkeys((*of_noises, *of_placements)))


def options_of(noise: Noise, name: Optional[str] = None) -> tuple[str, ...]:
  """Names of the numbers that a noise takes at a placement."""
  return tuple(dict.fromkeys((*noise.options, *noise.placement(name).options)))


def having(option: str, last: str = ' or ') -> str:
  """The noises and the placements that take an option, in words."""
  *others, final = [
    *(each.name for each in OTHERS.values() if option in each.options),
    *(f'noise_site={n}' for n, each in PLACEMENTS.items() if option in each.options),
  ]
  return f'{", ".join(others)}{last}{final}' if others else final
