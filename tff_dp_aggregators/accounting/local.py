"""Noise that clients add themselves: what it hides, and from whom.

Where a client adds noise before it sends anything, there are two guarantees, and they
are not the same number.

* **Local**: of what one client sends, against everybody, the server too. Only its own
  noise protects it, so `local_event` is that of the noise multiplier of one client, and
  a client that reports k times has spent k of them.
* **Central**: of the sum, against those who see no more than that. The noise of all
  who reported is in it, and of Gaussian noise as many as reported make a standard
  deviation sqrt(m) times as large: `central_event`. It rests on m, so a round in which
  fewer than `min_clients` reported must not be released.

Who is to be central only, and has a secure sum or trusts the server to forget, gives
each client a *share* of the noise, `share`: 1 / sqrt(min_clients) of its scale. One
who took part knows its own share and can take it away. Against a client of the round
there are `min_clients - 1` shares left, against c that pool what they know
`min_clients - c`: `central_event(..., known_shares=c)`.

**Rounding** (**proved here**). Shares are integers before they are added up
(`queries.grid`), and a sum of rounded Gaussians is no rounded Gaussian. Let s be the
standard deviation of a share in steps of the grid, Z_1 to Z_m the shares before
rounding, and T their sum. Given T, the fractional parts of Z_1 to Z_{m-1} are
independent of T and uniform, up to a total variation of

    1/2 sum over k in Z^(m-1), not 0, of exp(-2 pi^2 s^2 q(k)),
    q(k) = |k|^2 - (k_1 + ... + k_{m-1})^2 / m,

by Poisson's summation formula: the covariance given T is s^2 (I - 11'/m). All that
rounding does follows from T and these fractions, that of Z_m too. So the sum of rounded
shares is post-processing of X + T, the Gaussian that is accounted for, and numbers that
depend on nothing, but for that total variation. As q(k) >= 1/2 (k and a last entry of
0 lie that far from the multiples of 1 at least) and q(k) >= |k|^2 / m, it is at most

    1/2 exp(-pi^2 s^2 / 2) (sum over j in Z of exp(-pi^2 s^2 j^2 / m))^(m-1).

The grid of `queries.client_noise` has s >= 2^16 for a share of at least 2^-20 clip
norms: below 10^-9000000000 for up to 10^7 clients, and not added to any delta.

**Neighbours.** When a client's record becomes zeros (`zero_out`), what it sends moves
by the clip norm; when it becomes another (`replace_one`, what is meant by local privacy
mostly), by twice that. Under `add_or_remove` there is no guarantee here: a client that
is not there adds no noise either, and one that reports is seen to report.
"""

import math

import dp_accounting

from tff_dp_aggregators.accounting import events
from tff_dp_aggregators.accounting import noises
from tff_dp_aggregators.base import checks

# By how many clip norms what a client sends moves at most.
_MOVES = {'zero_out': 1, 'replace_one': 2}


def local_event(
  noise_multiplier: float,
  *,
  noise: str = noises.GAUSSIAN.name,
  adjacency: str = 'replace_one',
  participations: int = 1,
) -> dp_accounting.DpEvent:
  """The event of what one client sends, against everybody.

  The noise multiplier is that of the client's own noise: the standard deviation of
  Gaussian noise, for records clipped in L2 norm, or the scale of Laplace noise, in L1
  norm, over its clip norm. `participations` is how often it reports.
  """
  noise_multiplier = events.check_noise_multiplier(noise_multiplier)
  made = noises.real(noise)
  relative = noise_multiplier / _moves(adjacency)
  if not relative:
    return dp_accounting.NonPrivateDpEvent()
  return _repeated(made.event(relative), participations)


def central_event(
  noise_multiplier: float,
  *,
  min_clients: int,
  server_noise_multiplier: float = 0.0,
  known_shares: int = 0,
  adjacency: str = 'zero_out',
  participations: int = 1,
) -> dp_accounting.DpEvent:
  """The event of a sum of records with Gaussian noise of each client.

  It is for those who see no more than the sum. (Of Laplace noise the local one is all.)

  `noise_multiplier` is the standard deviation of *one* client's noise over the clip
  norm, `server_noise_multiplier` of noise that the server adds. A round with fewer than
  `min_clients` is not released. `known_shares` is how many other clients' noise is
  known to who sees the sum: 1 for a client of the round, more for several that pool
  what they know.

  Example:
    >>> central_event(0.2, min_clients=100)
    GaussianDpEvent(noise_multiplier=2.0)
    >>> event = central_event(0.2, min_clients=100, known_shares=1)
    >>> round(event.noise_multiplier, 3)  # 2 sqrt(99 / 100).
    1.99
  """
  noise_multiplier = events.check_noise_multiplier(noise_multiplier)
  server = checks.check_not_negative('server_noise_multiplier', server_noise_multiplier)
  min_clients = checks.check_positive_int('min_clients', min_clients)
  known_shares = checks.check_int('known_shares', known_shares, at_least=0)
  if known_shares >= min_clients:
    raise ValueError(
      f'known_shares must be below min_clients, {min_clients}; got {known_shares}.'
    )
  clients = noise_multiplier * math.sqrt(min_clients - known_shares)
  relative = math.hypot(clients, server) / _moves(adjacency)
  if not relative:
    return dp_accounting.NonPrivateDpEvent()
  return _repeated(dp_accounting.GaussianDpEvent(relative), participations)


def share(noise_multiplier: float, min_clients: int) -> float:
  """The noise multiplier of each client's share of central Gaussian noise."""
  noise_multiplier = events.check_noise_multiplier(noise_multiplier)
  min_clients = checks.check_positive_int('min_clients', min_clients)
  return noise_multiplier / math.sqrt(min_clients)


def _moves(adjacency: str) -> int:
  if adjacency not in _MOVES:
    raise ValueError(
      f'adjacency must be {" or ".join(_MOVES)} for noise of clients; got '
      f'{adjacency!r}. A client that is not there adds no noise either, and one that '
      'reports is seen to report.'
    )
  return _MOVES[adjacency]


def _repeated(
  event: dp_accounting.DpEvent, participations: int
) -> dp_accounting.DpEvent:
  count = checks.check_positive_int('participations', participations)
  return events.simplify(dp_accounting.SelfComposedDpEvent(event, count))
