"""Local and central guarantees of noise that clients add themselves.

* **Local**: for what one client sends, against everybody including the server. Only the
  client's own noise protects it, and k reports spend k such events (`local_event`).
* **Central**: for the sum, against those who see only the sum. It contains the noise of
  all m clients that reported, sqrt(m) times as much (`central_event`). So a round with
  fewer than `min_clients` must not be released.

If only the central guarantee is needed, each client adds a *share* of the noise: 1 /
sqrt(min_clients) of its scale (`share`). Against c colluding clients, who can subtract
theirs, `min_clients - c` shares are left (`known_shares`).

**Rounding** (**proved here**). Shares are rounded to integers before they are summed
(`queries.grid`), and a sum of rounded Gaussians is not a rounded Gaussian. Let s be the
standard deviation of a share in steps of the grid, Z_1 to Z_m the shares before
rounding, and T their sum. Given T, the fractional parts of Z_1 to Z_{m-1} are
independent of T and uniform, up to a total variation of

    1/2 sum over k in Z^(m-1), not 0, of exp(-2 pi^2 s^2 q(k)),
    q(k) = |k|^2 - (k_1 + ... + k_{m-1})^2 / m,

by Poisson's summation formula: the covariance given T is s^2 (I - 11'/m). The rounding
of all shares is determined by T and these fractions. So, up to that total variation,
the sum of rounded shares is post-processing of X + T, the Gaussian that is accounted
for, and of numbers that are independent of everything. As q(k) >= 1/2 (q(k) is the
squared distance of k, with a last entry of 0, from the multiples of the all-ones
vector) and q(k) >= |k|^2 / m, it is at most

    1/2 exp(-pi^2 s^2 / 2) (sum over j in Z of exp(-pi^2 s^2 j^2 / m))^(m-1).

The grid of `queries.client_noise` has s >= 2^16 for a share of at least 2^-20 clip
norms: it is below 10^-9000000000 for up to 10^7 clients, and not added to any delta.

If a client's record is replaced by zeros (`zero_out`), what it sends changes by the
clip norm; if by another record (`replace_one`), by twice that. Under `add_or_remove`
there is no guarantee: an absent client adds no noise.
"""

import math

import dp_accounting

from tff_dp_aggregators.accounting import events
from tff_dp_aggregators.accounting import noises
from tff_dp_aggregators.base import checks

# Sensitivity of what a client sends, in clip norms, by adjacency.
_SENSITIVITIES = {'zero_out': 1, 'replace_one': 2}


def local_event(
  noise_multiplier: float,
  *,
  noise: str = noises.GAUSSIAN.name,
  adjacency: str = 'replace_one',
  participations: int = 1,
) -> dp_accounting.DpEvent:
  """The event of what one client sends, against everybody.

  `noise_multiplier` is that of the client's own noise over its clip norm: the standard
  deviation of Gaussian noise, for records clipped in L2 norm, or the scale of Laplace
  noise, for L1 norm. `participations` is how often the client reports.
  """
  noise_multiplier = events.check_noise_multiplier(noise_multiplier)
  return _repeated(noises.real(noise), noise_multiplier, adjacency, participations)


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

  `noise_multiplier` is the standard deviation of *one* client's noise over the clip
  norm, `server_noise_multiplier` that of noise that the server adds. `known_shares` is
  how many clients' noise is known to the attacker: 1 for a client of the round.

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
  known_shares = checks.check_int('known_shares', known_shares)
  checks.check_within('known_shares', known_shares, 0, min_clients - 1)
  clients = noise_multiplier * math.sqrt(min_clients - known_shares)
  total = math.hypot(clients, server)
  return _repeated(noises.GAUSSIAN, total, adjacency, participations)


def share(noise_multiplier: float, min_clients: int) -> float:
  """The noise multiplier of each client's share of central Gaussian noise."""
  noise_multiplier = events.check_noise_multiplier(noise_multiplier)
  min_clients = checks.check_positive_int('min_clients', min_clients)
  return noise_multiplier / math.sqrt(min_clients)


def _repeated(
  noise: noises.Noise, noise_multiplier: float, adjacency: str, participations: int
) -> dp_accounting.DpEvent:
  count = checks.check_positive_int('participations', participations)
  if adjacency not in _SENSITIVITIES:
    raise ValueError(
      f'adjacency must be {" or ".join(_SENSITIVITIES)} for noise of clients, as a '
      f'client that is not there adds no noise either; got {adjacency!r}.'
    )
  if noise_multiplier == 0:
    return dp_accounting.NonPrivateDpEvent()
  relative = noise_multiplier / _SENSITIVITIES[adjacency]
  return events.simplify(noise.repeated(relative, count))
