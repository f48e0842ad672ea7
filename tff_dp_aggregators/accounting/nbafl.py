"""Noising before model aggregation (NbAFL): published formulas and actual guarantees.

Wei et al. (arXiv:1911.00222) start from epsilon. Each client clips its upload to norm C
and adds noise of standard deviation sigma_u to each coordinate. The server computes the
mean and, if the clients' noise is not enough for T rounds, adds noise of sigma_d before
it sends the mean down. With N clients of at least m examples each, K of which take part
in a round, and L exposures of a client's uploads:

    c       = sqrt(2 ln(1.25 / delta))                     (section II-C; epsilon < 1)
    sigma_u = c L (2 C / m) / epsilon                      (their uplink)
    sigma_d = 2 c C sqrt(T^2 - L^2 N) / (m N epsilon)      (theorem 1; K = N)
              if T > L sqrt(N), else 0
    sigma_d = 2 c C sqrt(T^2 / b^2 - L^2 K) / (m K epsilon)      (K < N at random)
              if T > epsilon / gamma, else 0, with
    b       = -(T / epsilon) ln(1 - N/K + (N/K) e^(-epsilon / T))
    gamma   = -ln(1 - K/N + (K/N) e^(-epsilon / (L sqrt(K))))

The last is the third with c T / b for c T: with K = N, b is 1.

Claims and actual guarantees are for replacing one *example* of a client, under the
assumption that one example changes an upload by at most 2 C / m. This is not true if
the finished upload is clipped, as in algorithm 1 there, and not examples one by one:
only the guarantee for one *client* holds then. Three things differ from the paper:

* L times the noise, for L exposures, is more than composition needs: sqrt(L) times.
* For epsilon >= 1 the constant c has no proof, and for large epsilon it is too small;
  it is refused, and `calibration='exact'` finds the least noise.
* Drawing K of N clients does not hide an example whose client is in the round, as the
  others may be far from it. So b reduces no epsilon here; but the number of the T
  rounds that a client is in is random, which is taken into account.
"""

import dataclasses
import math
from typing import Any, NamedTuple, Optional

import dp_accounting
import numpy as np
from scipy import optimize
from scipy import special

from tff_dp_aggregators import sampling
from tff_dp_aggregators import strategies
from tff_dp_aggregators.accounting import accountants
from tff_dp_aggregators.accounting import noises
from tff_dp_aggregators.accounting.accountants import accountant as accountant_lib
from tff_dp_aggregators.accounting.accountants import gaussian
from tff_dp_aggregators.base import checks

# Formulas as published, or the least noise for the guarantee that they claim.
CALIBRATIONS = ('published', 'exact')
# Numbers of rounds whose probability is below this times delta are counted in delta.
_UNLIKELY = 1e-9
_SAFETY = 1e-12
_LEAST_DELTA = 1e-280  # Below, what is counted in delta would underflow in float64.


def gaussian_constant(epsilon: float, delta: float) -> float:
  """c: c / epsilon is the textbook's noise for epsilon < 1 (Dwork and Roth, A.1)."""
  checks.check_positive('epsilon', epsilon)
  gaussian.check_delta(delta)
  if epsilon >= 1:
    raise ValueError(
      f'epsilon={epsilon:g} is not below 1, and the constant sqrt(2 ln(1.25 / delta)) '
      "holds for epsilon < 1 only. calibration='exact' has the least noise for any."
    )
  return math.sqrt(2 * math.log(1.25 / delta))


class Guarantee(NamedTuple):
  """A claimed and an actual guarantee, for one observer and one unit of privacy.

  For the unit 'example', it is assumed that one example changes an upload by at most
  2 C / m; for 'downlink', that K clients a round add noise, and keep it secret.
  """

  seen: str  # Against whom: 'uplink' sees a client's uploads, 'downlink' the means.
  unit: str  # 'example' or 'client': what neighbouring data sets differ in.
  adjacency: str  # 'replace_one' or 'zero_out'.
  releases: int  # Number of uploads or means that are seen.
  noise_multiplier: float  # Noise of one release over its sensitivity to the unit.
  claimed_epsilon: Optional[float]  # By the published formulas; `None` if not claimed.
  epsilon: float  # By the accountants of this package, at `delta`.
  delta: float


@dataclasses.dataclass(frozen=True)
class Nbafl:
  """NbAFL: computes noise for an aggregator, and guarantees for a report.

  Example:
    >>> numbers = dict(delta=1e-5, clip_norm=1.5, num_exposures=2, num_rounds=30)
    >>> published = Nbafl(0.8, num_clients=50, min_examples=10_000, **numbers)
    >>> round(published.client_noise_multiplier, 6)
    0.002422
    >>> published.server_adds_noise
    True
    >>> on_uplink = published.guarantees()[1]
    >>> on_uplink.claimed_epsilon, round(on_uplink.epsilon, 3)
    (0.8, 0.403)
  """

  epsilon: float  # The target for all exposures and all rounds; below 1 if 'published'.
  delta: float  # Between 0 and 1, exclusive.
  clip_norm: float  # C, the L2 bound of an upload.
  num_exposures: int  # L, how often a client's uploads are seen; at most `num_rounds`.
  num_rounds: int  # T, the number of means that are sent down.
  num_clients: int  # N, the number of clients.
  min_examples: int  # m, the minimum number of examples of a client.
  # K, the cohort size, drawn at random without replacement; `None` for all clients.
  clients_per_round: Optional[int] = None
  # 'published' for the formulas, or 'exact' for the least noise with the (epsilon,
  # delta) that they claim, at any epsilon.
  calibration: str = 'published'

  def __post_init__(self) -> None:
    if self.calibration not in CALIBRATIONS:
      raise ValueError(
        f"calibration must be 'published' or 'exact'; got {self.calibration!r}."
      )
    checks.check_positive('epsilon', self.epsilon)
    gaussian.check_delta(self.delta)
    if self.delta < _LEAST_DELTA:
      raise ValueError(
        f'delta must be at least {_LEAST_DELTA:g} for NbAFL; got {self.delta}.'
      )
    checks.check_positive('clip_norm', self.clip_norm)
    for name in ('num_exposures', 'num_rounds', 'num_clients', 'min_examples'):
      checks.check_positive_int(name, getattr(self, name))
    checks.check_positive_int('clients_per_round', self.cohort)
    if self.num_exposures > self.num_rounds or self.cohort > self.num_clients:
      raise ValueError(
        f'num_exposures={self.num_exposures} must be at most num_rounds='
        f'{self.num_rounds}, and clients_per_round={self.cohort} at most num_clients='
        f'{self.num_clients}.'
      )
    if self.calibration == 'published':
      gaussian_constant(self.epsilon, self.delta)

  @property
  def cohort(self) -> int:
    """K, or N if all take part in each round."""
    given = self.clients_per_round
    return self.num_clients if given is None else given

  @property
  def uplink_sensitivity(self) -> float:
    """2 C / m: the assumed sensitivity of an upload to one example."""
    return 2 * self.clip_norm / self.min_examples

  @property
  def downlink_sensitivity(self) -> float:
    """2 C / (m K): the assumed sensitivity of a mean to one example."""
    return self.uplink_sensitivity / self.cohort

  @property
  def uplink_stddev(self) -> float:
    """sigma_u: noise that each client adds to each coordinate of its upload."""
    if self.calibration == 'published':
      constant = gaussian_constant(self.epsilon, self.delta)
      return constant * self.num_exposures * self.uplink_sensitivity / self.epsilon
    mu = gaussian.mu_of(self.epsilon, self.delta) * (1 - _SAFETY)
    return self.uplink_sensitivity * math.sqrt(self.num_exposures) / mu

  @property
  def downlink_stddev(self) -> float:
    """sigma_d: noise that the server adds to each coordinate of a mean; 0 for none."""
    if self.calibration == 'published':
      constant, cohort = gaussian_constant(self.epsilon, self.delta), self.cohort
      needed = _rounds_over_b(self.epsilon, self.num_rounds, self.num_clients / cohort)
      missing = needed * needed - self.num_exposures * self.num_exposures * cohort
      rounds = math.sqrt(max(0.0, missing))
      divisor = self.min_examples * cohort * self.epsilon
      return 2 * constant * self.clip_norm * rounds / divisor
    mu = _largest_mu(
      self.epsilon, self.delta, self.num_rounds, self.cohort / self.num_clients
    )
    needed = (self.downlink_sensitivity / mu) ** 2
    from_clients = self.uplink_stddev**2 / self.cohort
    return math.sqrt(max(0.0, needed - from_clients))

  @property
  def server_adds_noise(self) -> bool:
    """Whether the clients' noise is not enough for all rounds."""
    return self.downlink_stddev > 0

  @property
  def client_noise_multiplier(self) -> float:
    """sigma_u / C: noise of a client over the clip norm."""
    return self.uplink_stddev / self.clip_norm

  @property
  def server_noise_multiplier(self) -> float:
    """K sigma_d / C: noise of the server on a round's *sum*, over the clip norm."""
    return self.cohort * self.downlink_stddev / self.clip_norm

  @property
  def sum_noise_multiplier(self) -> float:
    """All noise in the sum of a round of K clients, over the clip norm."""
    clients = math.sqrt(self.cohort) * self.client_noise_multiplier
    return math.hypot(clients, self.server_noise_multiplier)

  def mechanism_arguments(self) -> dict[str, Any]:
    """Arguments of `accounting.Mechanism`; a client may be in every round."""
    arguments = {
      'name': noises.GAUSSIAN.name,
      'participation': strategies.Participation(self.num_rounds),
      'noise_multiplier': self.client_noise_multiplier,
      'noise_site': 'local',
      'min_clients': self.cohort,
    }
    if self.server_adds_noise:
      arguments['noise_site'] = 'clients_and_server'
      arguments['server_noise_multiplier'] = self.server_noise_multiplier
    return arguments

  def guarantees(self) -> tuple[Guarantee, ...]:
    """Actual beside claimed guarantees: for one exposure, all, and all rounds."""
    client, total = self.client_noise_multiplier, self.sum_noise_multiplier
    example = client * self.min_examples / 2
    exposures = self.num_exposures
    rows = [self._uplink('example', 'replace_one', 1, example)]
    if exposures > 1:
      rows.append(self._uplink('example', 'replace_one', exposures, example))
    rows.append(self._uplink('client', 'zero_out', exposures, client))
    rows.append(self._uplink('client', 'replace_one', exposures, client / 2))
    if exposures < self.num_rounds:
      rows.append(self._uplink('client', 'zero_out', self.num_rounds, client))
    rows.append(self._downlink('example', 'replace_one', total * self.min_examples / 2))
    if self.cohort == self.num_clients:
      rows.append(self._downlink('client', 'zero_out', total))
    rows.append(self._downlink('client', 'replace_one', total / 2))
    return tuple(rows)

  def _uplink(
    self, unit: str, adjacency: str, releases: int, noise: float
  ) -> Guarantee:
    claimed = None
    if unit == 'example' and releases == self.num_exposures:
      claimed = self.epsilon
    elif unit == 'example' and self.calibration == 'published':
      claimed = self.epsilon / self.num_exposures
    epsilon = gaussian.epsilon_of(math.sqrt(releases) / noise, self.delta)
    return Guarantee(
      'uplink', unit, adjacency, releases, noise, claimed, epsilon, self.delta
    )

  def _downlink(self, unit: str, adjacency: str, noise: float) -> Guarantee:
    rounds, claimed = self.num_rounds, None
    if unit == 'example':
      claimed = self.epsilon
      epsilon = _epsilon_of_random_rounds(
        1 / noise, self.delta, rounds, self.cohort / self.num_clients
      )
    else:
      event: dp_accounting.DpEvent = dp_accounting.GaussianDpEvent(noise)
      if self.cohort < self.num_clients:
        event = dp_accounting.SampledWithoutReplacementDpEvent(
          self.num_clients, self.cohort, event
        )
      epsilon = accountants.epsilon(
        dp_accounting.SelfComposedDpEvent(event, rounds),
        self.delta,
        relation=sampling.ADJACENCIES[adjacency],
      )
    return Guarantee(
      'downlink', unit, adjacency, rounds, noise, claimed, epsilon, self.delta
    )


def _rounds_over_b(
  epsilon: float, num_rounds: int, population_over_cohort: float
) -> float:
  """T / b, which is T if all clients take part; 0 if any noise is enough."""
  if population_over_cohort == 1:
    return float(num_rounds)
  inner = population_over_cohort * -math.expm1(-epsilon / num_rounds)
  if inner >= 1:  # Clients take part so rarely that b is infinite.
    return 0.0
  return epsilon / -math.log1p(-inner)


def _delta_of_random_rounds(
  mu: float, epsilon: float, rounds: int, fraction: float, negligible: float
) -> float:
  """Upper bound on delta of a Gaussian that is released in a binomial number of rounds.

  The divergence of a mixture is at most the mean of its parts' (joint convexity).
  """
  # Log probabilities of being in 0 to `rounds` of the rounds.
  k = np.arange(rounds + 1)
  logs = accountant_lib.log_binomial(rounds, k) + special.xlogy(k, fraction)
  logs += special.xlog1py(rounds - k, -fraction)
  counted = np.flatnonzero(logs > math.log(negligible / (rounds + 1)))
  rest = negligible if len(counted) <= rounds else 0.0
  total = math.fsum(
    math.exp(logs[k]) * gaussian.delta_of(math.sqrt(k) * mu, epsilon) for k in counted
  )
  return min(1.0, total * (1 + _SAFETY * (10 + rounds)) + rest)


def _epsilon_of_random_rounds(
  mu: float, delta: float, rounds: int, fraction: float
) -> float:
  upper = gaussian.epsilon_of(math.sqrt(rounds) * mu, delta)
  if fraction == 1 or upper == 0:
    return upper
  negligible = delta * _UNLIKELY

  def gap(epsilon: float) -> float:
    bound = _delta_of_random_rounds(mu, epsilon, rounds, fraction, negligible)
    return math.log(bound) - math.log(delta)

  if gap(0.0) <= 0:
    return 0.0
  if gap(upper) >= 0:  # `fraction` is nearly 1: the bound for all rounds is no worse.
    return upper
  epsilon, step = float(optimize.brentq(gap, 0.0, upper, rtol=1e-12)), 1e-12
  while gap(epsilon) > 0:
    epsilon, step = epsilon * (1 + step), 2 * step
  return min(upper, epsilon)


def _largest_mu(epsilon: float, delta: float, rounds: int, fraction: float) -> float:
  """The largest mu of one round with which all rounds keep (epsilon, delta)."""
  lower = gaussian.mu_of(epsilon, delta) / math.sqrt(rounds) * (1 - _SAFETY)
  if fraction == 1:
    return lower

  def gap(log_mu: float) -> float:
    bound = _delta_of_random_rounds(
      math.exp(log_mu), epsilon, rounds, fraction, delta * _UNLIKELY
    )
    return math.log(bound) - math.log(delta)

  low, high = math.log(lower), math.log(lower) + 1.0
  while gap(high) < 0:
    high += 1.0
    if high > math.log(1e6):
      raise ValueError(
        f'a client is in a round with a probability of less than delta={delta:g}, so '
        'any noise is enough: lower delta.'
      )
  if gap(low) >= 0:
    return lower
  log_mu, step = float(optimize.brentq(gap, low, high, xtol=1e-12)), 1e-12
  while gap(log_mu) > 0:
    log_mu, step = log_mu - step, 2 * step
  return math.exp(log_mu) * (1 - 10 * _SAFETY)
