"""A privacy budget: of epsilon, delta and the noise, any two give the third.

For noise that is drawn anew each time, on everybody or on a Poisson sample: what
`PrivacyAccountant` of pfl-research answers, by the accountants of this package. They
round up, so that noise which is found keeps the target, and an epsilon or delta which
is found is never too small.

For one use there are closed forms. `gaussian_noise_multiplier` is the analytic
calibration of Balle and Wang (arXiv:1805.06530): the least noise, at any
epsilon, where the textbook's sqrt(2 ln(1.25 / delta)) / epsilon holds for epsilon < 1
alone and is more than needed there. `laplace_noise_multiplier` is 1 / epsilon.
"""

import dataclasses
import functools
import math
from typing import Optional

import dp_accounting
from dp_accounting import NeighboringRelation as Relation

from tff_dp_aggregators.accounting import accountants
from tff_dp_aggregators.accounting import calibration
from tff_dp_aggregators.accounting import noises
from tff_dp_aggregators.accounting.accountants import accountant as accountant_lib
from tff_dp_aggregators.accounting.accountants import gaussian
from tff_dp_aggregators.base import checks
from tff_dp_aggregators.base import rounding

# What closed forms are rounded up by, relative: more than their round-off.
_ROUND_OFF = 1e-14


def gaussian_noise_multiplier(epsilon: float, delta: float) -> float:
  """The least noise of one use of the Gaussian mechanism (arXiv:1805.06530).

  It is the standard deviation over the L2 sensitivity, rounded up in its last digits;
  epsilon may be above 1.

  Example:
    >>> round(gaussian_noise_multiplier(epsilon=1.0, delta=1e-5), 5)
    3.73063
  """
  checks.check_positive('epsilon', epsilon)
  return (1 + _ROUND_OFF) / gaussian.mu_of(epsilon, delta)


def laplace_noise_multiplier(
  epsilon: float, num_compositions: int = 1, sampling_probability: float = 1.0
) -> float:
  """The least Laplace noise that is epsilon-private, with delta 0.

  One use costs 1 / noise_multiplier (Dwork et al. 2006, theorem 1); on a Poisson
  sample, to add or remove one, ln(1 + q (e^that - 1)), and all uses their sum.

  It is the scale over the L1 sensitivity, rounded up in its last digits.

  Example:
    >>> round(laplace_noise_multiplier(epsilon=0.5, num_compositions=4), 12)
    8.0
  """
  checks.check_positive('epsilon', epsilon)
  checks.check_positive_int('num_compositions', num_compositions)
  q = _check_probability(sampling_probability)
  one = epsilon / num_compositions
  # ln((e^one - 1) / q + 1), of which e^one and 1 / q may be beyond float64.
  if one > 1:
    before = one - math.log(q) + math.log(q * math.exp(-one) - math.expm1(-one))
  else:
    more = math.expm1(one) / q
    finite = math.isfinite(more)
    before = math.log1p(more) if finite else math.log(math.expm1(one)) - math.log(q)
  return (1 + _ROUND_OFF) / before


def laplace_epsilon(
  noise_multiplier: float, num_compositions: int = 1, sampling_probability: float = 1.0
) -> float:
  """What Laplace noise costs at delta 0: `laplace_noise_multiplier` the other way.

  It is rounded up in its last digits.
  """
  checks.check_positive('noise_multiplier', noise_multiplier)
  checks.check_positive_int('num_compositions', num_compositions)
  q = _check_probability(sampling_probability)
  return (
    num_compositions
    * accountant_lib.laplace_epsilon(noise_multiplier, q)
    * (1 + _ROUND_OFF)
  )


@dataclasses.dataclass(frozen=True, init=False)
class Budget:
  """Noise that is used several times, and what it spends.

  Two of `epsilon`, `delta` and `noise_multiplier` are given and the third is found. If
  all three are, the noise must keep (epsilon, delta), and may be more than that takes.

  With a `noise_scale` s below 1 the budget is that of a cohort 1/s times as large, and
  the run adds s times the noise, as pfl-research does where a cohort cannot be as large
  as the one that is meant: a `learning.SimulatedCohort` of scale 1/s. **Such a run is
  not private**: its clients are promised nothing.

  Attributes:
    noise: 'gaussian' or 'laplace'.
    num_compositions: How often it is used.
    sampling_probability: With which each client is drawn each time, independently, and
      unknown to all; 1 if everybody takes part.
    epsilon: That of all uses together.
    delta: The same; 0 for Laplace noise at its pure epsilon.
    noise_multiplier: Noise over the sensitivity: the standard deviation of Gaussian
      noise over the L2 bound, the scale of Laplace noise over the L1 bound.
    noise_scale: Which part of the noise the run adds; above 0, at most 1.
    accountant: Which accountant was asked, a key of `accountants.ACCOUNTANTS`, or
      'pure' for Laplace noise with delta 0. All but 'pld' refuse sampled Laplace noise.

  Raises:
    ValueError: If fewer than two of the three are given, or all three do not fit.

  Example:
    >>> budget = Budget(num_compositions=100, epsilon=8.0, delta=1e-6)
    >>> round(budget.noise_multiplier, 3)
    6.529
    >>> Budget(num_compositions=1, noise='laplace', epsilon=0.5, delta=0.0).accountant
    'pure'
  """

  noise: str
  num_compositions: int
  sampling_probability: float
  epsilon: float
  delta: float
  noise_multiplier: float
  noise_scale: float
  accountant: str

  def __init__(
    self,
    *,
    num_compositions: int,
    sampling_probability: float = 1.0,
    noise: str = noises.GAUSSIAN.name,
    epsilon: Optional[float] = None,
    delta: Optional[float] = None,
    noise_multiplier: Optional[float] = None,
    noise_scale: float = 1.0,
    accountant: Optional[str] = None,
  ) -> None:
    if noise not in noises.REAL:
      raise ValueError(f'noise must be one of {", ".join(noises.REAL)}; got {noise!r}.')
    self.__dict__.update(
      noise=noise,
      num_compositions=checks.check_positive_int('num_compositions', num_compositions),
      sampling_probability=_check_probability(sampling_probability),
      noise_scale=checks.check_probability('noise_scale', noise_scale),
    )
    if (epsilon, delta, noise_multiplier).count(None) > 1:
      raise ValueError(
        'at least two of epsilon, delta and noise_multiplier must be given; got '
        f'epsilon={epsilon}, delta={delta}, noise_multiplier={noise_multiplier}.'
      )
    if noise_multiplier is not None:
      checks.check_positive('noise_multiplier', noise_multiplier)
    if epsilon is not None:
      # No finite noise has an epsilon of 0.
      is_found = noise_multiplier is None
      check = checks.check_positive if is_found else checks.check_not_negative
      check('epsilon', epsilon)
    if delta is not None and not (delta == 0 and noise == noises.LAPLACE.name):
      gaussian.check_delta(delta)
    is_pure = delta == 0
    if is_pure and accountant is not None:
      raise ValueError(
        f'with delta 0 there is a closed form and no accountant; got {accountant!r}.'
      )
    event = self.event_with(1.0)
    if is_pure:
      accountant = 'pure'
    elif accountant is None:
      accountant = accountants.tightest(event, self.relation)
    self.__dict__['accountant'] = accountant
    if noise_multiplier is None:
      assert epsilon is not None and delta is not None
      noise_multiplier = self._least_noise(epsilon, delta)
    elif epsilon is None:
      assert delta is not None
      epsilon = self._epsilon_of(noise_multiplier, delta)
    elif delta is None:
      delta = self._delta_of(noise_multiplier, epsilon)
    else:
      self._check_kept(epsilon, delta, noise_multiplier)
    self.__dict__.update(
      epsilon=float(epsilon),
      delta=float(delta),
      noise_multiplier=float(noise_multiplier),
    )

  @property
  def relation(self) -> Relation:
    """Add or remove one where clients are sampled, and else zeroing out one.

    Noise on everybody costs the same under each relation, relative to the sensitivity
    under it.
    """
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
    """What is promised to the clients of the run: nothing, if `noise_scale` < 1."""
    return self.event if self.noise_scale == 1 else dp_accounting.NonPrivateDpEvent()

  @property
  def simulated_cohort_scale(self) -> float:
    """By which factor the cohort is larger whose budget it is: 1 / `noise_scale`."""
    return 1 / self.noise_scale

  def event_with(self, noise_multiplier: float) -> dp_accounting.DpEvent:
    """The event of all uses, if the noise were another."""
    once = noises.REAL[self.noise].event(noise_multiplier)
    if self.sampling_probability < 1:
      once = dp_accounting.PoissonSampledDpEvent(self.sampling_probability, once)
    return dp_accounting.SelfComposedDpEvent(once, self.num_compositions)

  @property
  def _uses(self) -> tuple[int, float]:
    return self.num_compositions, self.sampling_probability

  def _least_noise(self, epsilon: float, delta: float) -> float:
    if delta == 0:
      return laplace_noise_multiplier(epsilon, *self._uses)
    return calibration.noise_multiplier(
      self.event_with,
      epsilon,
      delta,
      accountant=self.accountant,
      relation=self.relation,
    )

  def _epsilon_of(self, noise_multiplier: float, delta: float) -> float:
    if delta == 0:
      return laplace_epsilon(noise_multiplier, *self._uses)
    event = self.event_with(noise_multiplier)
    return accountants.epsilon(event, delta, self.accountant, self.relation)

  def _delta_of(self, noise_multiplier: float, epsilon: float) -> float:
    event = self.event_with(noise_multiplier)
    return accountants.delta(event, epsilon, self.accountant, self.relation)

  def _check_kept(self, epsilon: float, delta: float, noise_multiplier: float) -> None:
    """Refuses noise that is too little, with what would be enough."""
    spent = self._epsilon_of(noise_multiplier, delta)
    if spent <= epsilon or (
      delta and self._delta_of(noise_multiplier, epsilon) <= delta
    ):
      return
    least = self._least_noise(epsilon, delta) if epsilon else math.inf
    raise ValueError(
      f'epsilon={epsilon:g}, delta={delta:g} and noise_multiplier={noise_multiplier:g} '
      f'do not fit: {self.num_compositions} times this noise spends epsilon = '
      f'{rounding.up(spent, 6)} at the delta given (accountant {self.accountant}). A '
      f'noise multiplier of {rounding.up(least, 6)} keeps both; leave out one of the '
      'three and it is found.'
    )


_check_probability = functools.partial(checks.check_probability, 'sampling_probability')
