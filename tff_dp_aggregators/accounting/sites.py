"""Where noise is made: by the server on the sum, or by clients on what they send.

What the events say does not depend on it. Of whom they say it does: noise of the server
hides a client in what is released; a client's own noise hides what it sends, from the
server too; and shares of noise, which clients make for the sum, hide a client in the
sum. `accounting.local` has the reasons, and guarantees besides.
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import Optional

from tff_dp_aggregators import sampling
from tff_dp_aggregators import strategies
from tff_dp_aggregators.accounting import local
from tff_dp_aggregators.accounting import noises
from tff_dp_aggregators.base import checks


@dataclasses.dataclass(frozen=True)
class Site:
  """A place where noise is made."""

  name: str  # As an argument of `accounting.Mechanism`, and a value of `--noise_site`.
  options: tuple[str, ...] = ()  # Numbers that it takes, by name.
  required: tuple[str, ...] = ()  # Those of them that there have to be.
  # Whether it shows what another site would come to, without its guarantee.
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
    return math.sqrt(max(1.0, clients / numbers[noises.MIN_CLIENTS]))


_FEWEST = (noises.MIN_CLIENTS,)
# The usual one.
SERVER = Site('server')
# Shares, for the sum.
CLIENTS = Site('clients', options=_FEWEST, required=_FEWEST, is_on_clients=True)
# Noise that hides each client.
LOCAL = Site('local', options=_FEWEST, is_on_clients=True, is_of_client=True)
# Noise that hides each client, and more of the server for those who see sums.
CLIENTS_AND_SERVER = dataclasses.replace(
  LOCAL, name='clients_and_server', adds_on_server=True
)
# In its place, where nothing is to be hidden.
LOCAL_APPROXIMATE = Site('local_approximate', is_simulation=True, is_of_client=True)
# All of them, by name; the server is where noise is made unless something else is said.
SITES = {
  each.name: each
  for each in (SERVER, CLIENTS, LOCAL, CLIENTS_AND_SERVER, LOCAL_APPROXIMATE)
}
# What the last but one takes besides, as an argument of `accounting.Mechanism`, a flag,
# and a key of JSON.
SERVER_NOISE = 'server_noise_multiplier'


def of_noise(noise: noises.Noise, name: Optional[str]) -> Site:
  """The site of a name, by default the usual one of the noise."""
  if name is None:
    return SITES[noise.sites[0]]
  if name not in SITES:
    raise ValueError(f'unknown noise_site {name!r}; known: {", ".join(SITES)}.')
  if name not in noise.sites:
    possible = ' or '.join(noise.sites)
    why = 'it is made in shares, for a secure sum of integers'
    if noise is noises.LAPLACE:
      why = 'the sum of Laplace shares is no Laplace noise'
      if SITES[name].adds_on_server:
        why = 'of both together no event is known here but that of two Gaussians'
    raise ValueError(
      f'noise_site={name} does not go with {noise.name} noise: {why}. Its noise_site '
      f'is {possible}.'
    )
  return SITES[name]


def check(
  site: Site,
  strategy: strategies.Strategy,
  participation: sampling.Schema,
  clipped_count_stddev: Optional[float],
) -> None:
  """Refuses what has no analysis where noise is not made by the server."""
  if site is SERVER:
    return
  if sampling.is_sampled(participation):
    raise ValueError(
      f'noise_site={site.name} does not go with sampling: a client that is not drawn '
      'adds no noise either, so what it would have hidden shows who was drawn, and '
      'nothing is amplified. State limits on participation, or add the noise on the '
      'server.'
    )
  if clipped_count_stddev is not None:
    raise ValueError(
      f'clipped_count_stddev={clipped_count_stddev:g} does not go with noise_site='
      f'{site.name}: adaptive clipping counts small norms with noise of the server, '
      'which would see the counts of single clients. Take a fixed clip norm, or add '
      'the noise on the server.'
    )
  local.check_strategy(strategy, site.name)


def check_numbers(
  name: str, noise: noises.Noise, site: Site, given: Mapping[str, int]
) -> dict[str, int]:
  """The numbers of noise and site."""
  own = {*noise.options, *site.options}
  for option, value in given.items():
    if option not in own:
      raise ValueError(
        f'{option}={value} is for {having(option)}, not for {name} with noise of '
        f'{_of(site)}; leave it out.'
      )
  for needed in (*noise.required, *site.required):
    if needed not in given:
      raise ValueError(
        f'{needed} is missing, which {name} with noise of {_of(site)} needs: '
        f'{noises.MEANINGS[needed]}.'
      )
  return dict(given)


def check_server_noise(
  site: Site, noise_multiplier: float, server_noise_multiplier: Optional[float]
) -> Optional[float]:
  """Returns the noise multiplier of the server's noise on top of that of clients."""
  if not site.adds_on_server:
    if server_noise_multiplier is not None:
      raise ValueError(
        f'{SERVER_NOISE}={server_noise_multiplier} is for noise_site='
        f'{CLIENTS_AND_SERVER.name}, not for noise of {_of(site)}; leave it out.'
      )
    return None
  if server_noise_multiplier is None:
    raise ValueError(
      f'{SERVER_NOISE} is missing, which noise_site={site.name} needs: standard '
      "deviation of the server's noise of the sum over the clip norm, 0 for none."
    )
  checks.check_number(SERVER_NOISE, server_noise_multiplier)
  if not 0 <= server_noise_multiplier < math.inf:
    raise ValueError(
      f'{SERVER_NOISE} must be finite and not negative; got {server_noise_multiplier}.'
    )
  if noise_multiplier == 0:
    raise ValueError(
      f'noise_multiplier must be positive with noise_site={site.name}, whose guarantee '
      f"is of clients' own noise; got 0. Noise of the server alone is noise_site="
      f'{SERVER.name}.'
    )
  return float(server_noise_multiplier)


def options() -> tuple[str, ...]:
  """Names of the options of all kinds of noise and sites."""
  of_noises = (name for each in noises.OTHERS.values() for name in each.options)
  of_sites = (name for each in SITES.values() for name in each.options)
  return tuple(dict.fromkeys((*of_noises, *of_sites)))


def options_of(noise: noises.Noise, name: Optional[str] = None) -> tuple[str, ...]:
  """Names of the numbers that a kind of noise takes at a site."""
  return tuple(dict.fromkeys((*noise.options, *of_noise(noise, name).options)))


def having(option: str, last: str = ' or ') -> str:
  """The kinds of noise and the sites that take an option, in words."""
  of_noises = [each.name for each in noises.OTHERS.values() if option in each.options]
  *others, final = [
    *of_noises,
    *(f'noise_site={each.name}' for each in SITES.values() if option in each.options),
  ]
  return f'{", ".join(others)}{last}{final}' if others else final


def _of(site: Site) -> str:
  return 'the server' if site is SERVER else f'clients (noise_site={site.name})'
