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

from tff_dp_aggregators import strategies
from tff_dp_aggregators.accounting import local
from tff_dp_aggregators.accounting import noises
from tff_dp_aggregators.accounting import schemas
from tff_dp_aggregators.base import checks


@dataclasses.dataclass(frozen=True)
class Site:
  """A place where noise is made.

  Attributes:
    name: As an argument of `accounting.Mechanism`, and a value of `--noise_site`.
    help: What that is, for the help of `--noise_site`.
    setting: Who has to be trusted with what, for reports.
    options: Numbers that it takes.
    required: Those of them that there have to be.
    is_simulation: Whether it shows what another site would come to, without its
      guarantee.
    is_on_clients: Whether clients draw it, each for itself.
    is_of_client: Whether `noise_multiplier` is that of one client's noise, and not
      of the sum.
    adds_on_server: Whether the server adds Gaussian noise to the sum as well, of a
      `server_noise_multiplier`; `noise_multiplier` is that of one client then.
    kind: Of differential privacy, if it is not that of the server's noise, for reports.
    made_by: Who makes the noise, for reports.
    z: Whose noise the noise multiplier is of, for reports; `None` if that is clear.
    seen: What the adversary sees, in short,
    outputs: and in full, for reports.
    principle: What clients and server do, for reports, with the kind of noise as
      {noise}; `None` for what the kind of noise says.
    assumptions: What it rests on besides participation and the source of noise, for
      reports, with {min_clients}.
  """

  name: str
  help: str
  setting: str
  options: tuple[noises.Option, ...] = ()
  required: tuple[noises.Option, ...] = ()
  is_simulation: bool = False
  is_on_clients: bool = False
  is_of_client: bool = False
  adds_on_server: bool = False
  kind: str = ''
  made_by: str = 'the server'
  z: Optional[str] = None
  seen: str = 'all that is released'
  outputs: str = (
    'all intermediate models: the adversary may see the noised aggregate of every '
    'round and everything computed from it, so the last model as well'
  )
  principle: Optional[str] = None
  assumptions: tuple[str, ...] = ()

  def times_that_of_sums(self, clients: float, numbers: Mapping[str, int]) -> float:
    """How loud the noise of a sum is beside what `noise_multiplier` says.

    Args:
      clients: How many are in the sum.
      numbers: Of the mechanism, by name.

    Example:
      >>> (
      ...   LOCAL.times_that_of_sums(100, {}),
      ...   CLIENTS.times_that_of_sums(100, {'min_clients': 25}),
      ... )
      (10.0, 2.0)
    """
    if self.is_of_client:
      return math.sqrt(clients)
    if not self.is_on_clients:
      return 1.0
    return math.sqrt(max(1.0, clients / numbers[noises.MIN_CLIENTS.name]))


# The usual one.
SERVER = Site(
  'server',
  'the server adds it to the sum',
  'central differential privacy: the server that clips, sums and adds the noise is '
  'trusted, and sees each update (or, with secure aggregation, their sum)',
)
# Shares, for the sum.
CLIENTS = Site(
  'clients',
  'each client adds a share of it, and with --min_clients of them it is that of the '
  'server',
  'distributed differential privacy: each client clips its update and adds a share of '
  'the noise before it sends anything, so that no server is trusted with the noise; '
  'the guarantee is of the sum, and rests on a secure sum (or a server that looks at '
  'nothing else), and on as many honest clients in each round as are stated below',
  options=(noises.MIN_CLIENTS,),
  required=(noises.MIN_CLIENTS,),
  is_on_clients=True,
  kind='distributed',
  made_by='clients, each a share of that of the sum',
  z='the sum of the shares of the fewest clients',
  seen='all that is released, but neither what single clients send nor the noise that '
  'they add',
  principle='Each client clips its update, and adds a share of the {noise} noise that '
  'is drawn anew in each round. What is released is the sum of what they send, in '
  'which as many shares make the noise as there are clients.',
  assumptions=(
    'At least {min_clients} honest clients report in each round: each adds its share '
    'of the noise and keeps it to itself. A round with fewer is not released',
    'A secure sum, or a server that looks at nothing but the sum: a single share hides '
    'little (what else holds, below)',
    'A round that is run again has other noise, so it is another release, and counts '
    'as one more participation of its clients',
  ),
)
# Noise that hides each client.
LOCAL = Site(
  'local',
  'each client adds all that hides it from the server as well: --noise_multiplier is '
  "that of one client's noise",
  'local differential privacy: each client clips its update and adds noise of its own '
  'before it sends anything, and the guarantee is of what it sends, towards everybody; '
  'neither the server nor other clients are trusted',
  options=(noises.MIN_CLIENTS,),
  is_on_clients=True,
  is_of_client=True,
  kind='local',
  made_by='each client, for what it sends',
  z='the noise of one client',
  seen='all that a client sends',
  outputs='everything that a client sends: the adversary may be the server, and see '
  "each client's noised update of every round, so all that is computed from them as "
  'well, such as the models',
  principle='Each client clips its update, and adds {noise} noise of its own before it '
  'sends anything, drawn anew in each round. The server adds up what clients send.',
  assumptions=(
    'Each client adds its noise itself: the guarantee of a client rests on no other',
    'What a client sends again with other noise, as in a round that is run again, is '
    'another report, and counts as one more participation',
  ),
)
# Noise that hides each client, and more of the server for those who see sums.
CLIENTS_AND_SERVER = Site(
  'clients_and_server',
  'as local, and the server adds noise of --server_noise_multiplier to the sum, as '
  'NbAFL does (arXiv:1911.00222)',
  'local differential privacy, with noise of the server on top: each client clips its '
  'update and adds noise of its own before it sends anything, and the guarantee is of '
  'what it sends, towards everybody, for which nobody else is trusted. The server adds '
  'more noise to the sum: for those who see no more than sums there is more privacy '
  '(what else holds), and they have to trust it with that noise',
  options=(noises.MIN_CLIENTS,),
  is_on_clients=True,
  is_of_client=True,
  adds_on_server=True,
  kind='local',
  made_by='each client, for what it sends, and the server, on the sum',
  z='the noise of one client',
  seen=LOCAL.seen,
  outputs=LOCAL.outputs,
  principle='Each client clips its update, and adds {noise} noise of its own before it '
  'sends anything, drawn anew in each round. The server adds up what clients send, and '
  'adds {noise} noise of its own to the sum.',
  assumptions=(
    *LOCAL.assumptions,
    'Noise of the server hides a client in the sums alone: the guarantee does not have '
    'it',
  ),
)
# In its place, where nothing is to be hidden.
LOCAL_APPROXIMATE = Site(
  'local_approximate',
  'the server adds Gaussian noise of the same squared error as that of local, quickly; '
  'a simulation without a guarantee',
  'none: the server adds noise of the same squared error that noise of each client '
  'would have, which is a simulation of local differential privacy and gives none',
  is_simulation=True,
  is_of_client=True,
  made_by='the server, as loud as that of clients would be',
  z='the noise that one client would add',
  principle="The server adds up the clipped updates of a round's clients and adds "
  'Gaussian noise that is as loud as {noise} noise of each client would be in the sum: '
  'quick to simulate, and known to nobody as noise of theirs.',
)
# All of them, by name; the server is where noise is made unless something else is said.
SITES = {
  each.name: each
  for each in (SERVER, CLIENTS, LOCAL, CLIENTS_AND_SERVER, LOCAL_APPROXIMATE)
}
# What the last but one takes besides, as an argument of `accounting.Mechanism`, a flag,
# and a key of JSON.
SERVER_NOISE = 'server_noise_multiplier'


def of_noise(noise: noises.Noise, name: Optional[str]) -> Site:
  """The site of a name, by default the usual one of the noise.

  Args:
    noise: What is made there.
    name: A key of `SITES`, or `None`.

  Raises:
    ValueError: If there is no such site, or this noise cannot be made there.

  Example:
    >>> of_noise(noises.GAUSSIAN, None).name, of_noise(noises.SKELLAM, None).name
    ('server', 'clients')
  """
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
  participation: schemas.Schema,
  clipped_count_stddev: Optional[float],
) -> None:
  """Refuses what has no analysis where noise is not made by the server.

  Args:
    site: Where the noise is made.
    strategy: Strategy matrix C.
    participation: Who takes part when.
    clipped_count_stddev: With adaptive clipping, the noise of its count.

  Raises:
    ValueError: If noise of the site cannot be correlated, sampled, or cover a count.
  """
  if site is SERVER:
    return
  if schemas.is_sampled(participation):
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
  """The numbers of noise and site.

  Args:
    name: Of the mechanism, for messages.
    noise: Its kind of noise.
    site: Where that is made.
    given: By name; each at least 1.

  Raises:
    ValueError: If one is missing, or is for other mechanisms.
  """
  own = {each.name for each in (*noise.options, *site.options)}
  for option, value in given.items():
    if option not in own:
      raise ValueError(
        f'{option}={value} is for {_having(option)}, not for {name} with noise of '
        f'{_of(site)}; leave it out.'
      )
  for needed in (*noise.required, *site.required):
    if needed.name not in given:
      raise ValueError(
        f'{needed.name} is missing, which {name} with noise of {_of(site)} needs: '
        f'{needed.help}.'
      )
  return dict(given)


def check_server_noise(
  site: Site, noise_multiplier: float, server_noise_multiplier: Optional[float]
) -> Optional[float]:
  """The noise multiplier of the server's noise on top of that of clients.

  Args:
    site: Where the noise is made.
    noise_multiplier: Of the clients' noise.
    server_noise_multiplier: Of the server's; `None` if it is not given.

  Returns:
    It as a float; `None` where the server adds nothing on top.

  Raises:
    TypeError: If it is no number.
    ValueError: If it is missing, for other sites, or out of range, or clients add none.

  Example:
    >>> check_server_noise(CLIENTS_AND_SERVER, 4.0, 10)
    10.0
  """
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


def options() -> dict[str, noises.Option]:
  """The options of all kinds of noise and sites, by name."""
  of_noises = (own for each in noises.OTHERS.values() for own in each.options)
  of_sites = (own for each in SITES.values() for own in each.options)
  return {each.name: each for each in (*of_noises, *of_sites)}


def options_of(noise: noises.Noise, name: Optional[str] = None) -> tuple[str, ...]:
  """Names of the numbers that a kind of noise takes at a site.

  Args:
    noise: What is made.
    name: Of the site; `None` for the usual one.

  Raises:
    ValueError: If this noise cannot be made there.

  Example:
    >>> options_of(noises.GAUSSIAN), options_of(noises.GAUSSIAN, 'clients')
    ((), ('min_clients',))
  """
  both = (*noise.options, *of_noise(noise, name).options)
  return tuple({each.name: None for each in both})


def describe(option: str) -> str:
  """What is said of an option, for the help of its flag.

  Args:
    option: A key of `options()`.

  Example:
    >>> describe('max_clients')[:39]
    'For skellam and discrete_gaussian: how '
  """
  return f'For {_having(option, " and ")}: {options()[option].help}.'


def _having(option: str, last: str = ' or ') -> str:
  of_noises = [
    each.name
    for each in noises.OTHERS.values()
    if option in [own.name for own in each.options]
  ]
  of_sites = [
    f'noise_site={each.name}'
    for each in SITES.values()
    if option in [own.name for own in each.options]
  ]
  *others, final = [*of_noises, *of_sites]
  return f'{", ".join(others)}{last}{final}' if others else final


def _of(site: Site) -> str:
  return 'the server' if site is SERVER else f'clients (noise_site={site.name})'
