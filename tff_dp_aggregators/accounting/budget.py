"""A privacy budget: computes one of epsilon, delta and noise from the other two.

It is for independent noise in each use, on all clients or on a Poisson sample, like
`PrivacyAccountant` of pfl-research, with the accountants of this package.
"""

import dataclasses
import math
from typing import Any

import dp_accounting
from dp_accounting import NeighboringRelation as Relation

from tff_dp_aggregators.accounting import accountants
from tff_dp_aggregators.accounting import calibration
from tff_dp_aggregators.accounting import noises
from tff_dp_aggregators.accounting.accountants import accountant as accountant_lib
from tff_dp_aggregators.accounting.accountants import gaussian
from tff_dp_aggregators.base import checks
from tff_dp_aggregators.base import rounding

_ROUND_OFF = 1e-14  # Closed forms are rounded up by this much, relative.


def gaussian_noise_multiplier(epsilon: float, delta: float) -> float:
  """The smallest noise multiplier of one Gaussian mechanism (arXiv:1805.06530).

  It is the standard deviation over the L2 sensitivity, rounded up, for any epsilon.
  (The textbook's sqrt(2 ln(1.25 / delta)) / epsilon is valid for epsilon < 1 only.)
  """
  checks.check_positive('epsilon', epsilon)
  return (1 + _ROUND_OFF) / gaussian.mu_of(epsilon, delta)


def laplace_noise_multiplier(
  epsilon: float, num_compositions: int = 1, sampling_probability: float = 1.0
) -> float:
  """The smallest noise multiplier of Laplace noise for a pure epsilon, with delta 0.

  It is the scale over the L1 sensitivity, rounded up in its last digits; the inverse of
  `laplace_epsilon`.
  """
  checks.check_positive('epsilon', epsilon)
  checks.check_positive_int('num_compositions', num_compositions)
  q = checks.check_probability('sampling_probability', sampling_probability)
  one = epsilon / num_compositions
  # ln((e^one - 1) / q + 1), where e^one and 1 / q may overflow.
  if one > 1:
    unsampled = one - math.log(q) + math.log(q * math.exp(-one) - math.expm1(-one))
  else:
    ratio = math.expm1(one) / q
    finite = math.isfinite(ratio)
    unsampled = math.log1p(ratio) if finite else math.log(math.expm1(one)) - math.log(q)
  return (1 + _ROUND_OFF) / unsampled


def laplace_epsilon(
  noise_multiplier: float, num_compositions: int = 1, sampling_probability: float = 1.0
) -> float:
  """Epsilon of Laplace noise at delta 0, rounded up in its last digits.

  One use costs 1 / noise_multiplier (Dwork et al. 2006, theorem 1); on a Poisson
  sample, under add-or-remove-one, ln(1 + q (e^(1 / noise_multiplier) - 1)).
  """
  checks.check_positive('noise_multiplier', noise_multiplier)
  checks.check_positive_int('num_compositions', num_compositions)
  q = checks.check_probability('sampling_probability', sampling_probability)
  one = accountant_lib.laplace_epsilon(noise_multiplier, q)
  return num_compositions * one * (1 + _ROUND_OFF)


@dataclasses.dataclass(frozen=True)
class Budget:
  """Noise that is used several times, and its privacy budget.

  Of `epsilon`, `delta` and `noise_multiplier` two are given and the third is computed.
  If all are given, the noise must keep (epsilon, delta); it may be more than necessary.

  With a `noise_scale` s below 1 the budget is that of a cohort 1/s times as large, and
  the run adds s times the noise, as `learning.SimulatedCohort` of scale 1/s does.
  **Such a run is not private**: its clients have no guarantee.

  Example:
    >>> budget = Budget(num_compositions=100, epsilon=8.0, delta=1e-6)
    >>> round(budget.noise_multiplier, 3)
    6.529
    >>> Budget(num_compositions=1, noise='laplace', epsilon=0.5, delta=0.0).accountant
    'pure'
  """

  num_compositions: int  # How often the noise is used.
  # Probability that a client is drawn, independently in each use; draws are secret.
  sampling_probability: float = 1.0
  noise: str = noises.GAUSSIAN.name  # 'gaussian' or 'laplace'.
  epsilon: Any = None  # For all uses together.
  delta: Any = None  # For all uses together; 0 for Laplace noise at its pure epsilon.
  # Standard deviation of Gaussian noise over the L2 bound, scale of Laplace over L1.
  noise_multiplier: Any = None
  noise_scale: float = 1.0  # Share of the noise that the run adds; above 0, at most 1.
  # A key of `accountants.ACCOUNTANTS`, of which only 'pld' supports sampled Laplace
  # noise; 'pure' for Laplace noise with delta 0; by default the tightest.
  accountant: Any = None

  def __post_init__(self) -> None:
    noises.real(self.noise)
    checks.check_positive_int('num_compositions', self.num_compositions)
    checks.check_probability('sampling_probability', self.sampling_probability)
    checks.check_probability('noise_scale', self.noise_scale)
    epsilon, delta, noise_multiplier = self.epsilon, self.delta, self.noise_multiplier
    if (epsilon, delta, noise_multiplier).count(None) > 1:
      raise ValueError(
        'at least two of epsilon, delta and noise_multiplier must be given; got '
        f'epsilon={epsilon}, delta={delta}, noise_multiplier={noise_multiplier}.'
      )
    if noise_multiplier is not None:
      checks.check_positive('noise_multiplier', noise_multiplier)
    if epsilon is not None:
      checks.check_not_negative('epsilon', epsilon)
    is_pure = delta == 0 and self.noise == noises.LAPLACE.name
    if delta is not None and not is_pure:
      gaussian.check_delta(delta)
    if is_pure and self.accountant is not None:
      raise ValueError(f'with delta 0 there is no accountant; got {self.accountant!r}.')
    if self.accountant is None:
      tightest = accountants.tightest(self.event_with(1.0), self.relation)
      self.__dict__['accountant'] = 'pure' if is_pure else tightest
    if noise_multiplier is None:
      noise_multiplier = self._least_noise(epsilon, delta)
    elif epsilon is None:
      epsilon = self._epsilon_of(noise_multiplier, delta)
    elif delta is None:
      delta = self._delta_of(noise_multiplier, epsilon)
    else:
      spent = self._epsilon_of(noise_multiplier, delta)
      if spent > epsilon and (
        is_pure or not self._delta_of(noise_multiplier, epsilon) <= delta
      ):
        raise ValueError(
          f'epsilon={epsilon:g}, delta={delta:g} and noise_multiplier='
          f'{noise_multiplier:g} do not fit: {self.num_compositions} times this noise '
          f'spends epsilon = {rounding.up(spent, 6)} at the delta given (accountant '
          f'{self.accountant}). Leave out one of the three and it is found.'
        )
    self.__dict__.update(
      epsilon=float(epsilon),
      delta=float(delta),
      noise_multiplier=float(noise_multiplier),
    )

  @property
  def relation(self) -> Relation:
    """Add-or-remove-one if clients are sampled, otherwise zeroing out one client."""
    is_sampled = self.sampling_probability < 1
    return Relation.ADD_OR_REMOVE_ONE if is_sampled else Relation.REPLACE_SPECIAL

  @property
  def event(self) -> dp_accounting.DpEvent:
    """The event of all uses with `noise_multiplier`."""
    return self.event_with(self.noise_multiplier)

  @property
  def cohort_noise_multiplier(self) -> float:
    """`noise_scale` times `noise_multiplier`: the noise that the run adds."""
    return self.noise_scale * self.noise_multiplier

  @property
  def cohort_event(self) -> dp_accounting.DpEvent:
    """The event of the run itself, which is not private if `noise_scale` < 1."""
    return self.event if self.noise_scale == 1 else dp_accounting.NonPrivateDpEvent()

  @property
  def simulated_cohort_scale(self) -> float:
    """The budget's cohort size over that of the run: 1 / `noise_scale`."""
    return 1 / self.noise_scale

  def event_with(self, noise_multiplier: float) -> dp_accounting.DpEvent:
    """The event of all uses with another noise multiplier."""
    once = noises.REAL[self.noise].event(noise_multiplier)
    if self.sampling_probability < 1:
      once = dp_accounting.PoissonSampledDpEvent(self.sampling_probability, once)
    return dp_accounting.SelfComposedDpEvent(once, self.num_compositions)

  def _least_noise(self, epsilon: float, delta: float) -> float:
    uses, q = self.num_compositions, self.sampling_probability
    if delta == 0:
      return laplace_noise_multiplier(epsilon, uses, q)
    by: Any = {'accountant': self.accountant, 'relation': self.relation}
    return calibration.noise_multiplier(self.event_with, epsilon, delta, **by)

  def _epsilon_of(self, noise_multiplier: float, delta: float) -> float:
    uses, q = self.num_compositions, self.sampling_probability
    if delta == 0:
      return laplace_epsilon(noise_multiplier, uses, q)
    event = self.event_with(noise_multiplier)
    return accountants.epsilon(event, delta, self.accountant, self.relation)

  def _delta_of(self, noise_multiplier: float, epsilon: float) -> float:
    event = self.event_with(noise_multiplier)
    return accountants.delta(event, epsilon, self.accountant, self.relation)
