"""The noise of a cohort larger than that of a run, as experiments use it.

The noise is less by the factor `scale`, and so the run has no guarantee; what epsilon a
run would have had whose cohort and population are that many times larger is told beside
it, under a name of its own. `accounting.reports.inputs.SimulatedCohort` says more.
"""

import dataclasses
import functools
import math
import numbers
from typing import Any, Callable, NamedTuple, Optional, cast

from tff_dp_aggregators import accounting
from tff_dp_aggregators.accounting import joint_mechanism
from tff_dp_aggregators.accounting import spent_by_round as spent_by_round_lib
from tff_dp_aggregators.accounting.accountants import gaussian
from tff_dp_aggregators.accounting.reports import inputs
from tff_dp_aggregators.learning.runs import fitting
from tff_dp_aggregators.queries import grid

NO_GUARANTEE = 'no privacy guarantee'


def check_scale(scale: Any, mechanism: Optional[joint_mechanism.AnyMechanism]) -> float:
  """Returns the factor as a float, if noise that is less by it can be added.

  `mechanism`: That of the larger cohort; `None` for training without privacy.
  """
  if isinstance(scale, bool) or not isinstance(scale, numbers.Real):
    raise TypeError(f'scale must be a number, got {scale!r}.')
  scale = float(scale)
  if not (math.isfinite(scale) and scale >= 1):
    raise ValueError(
      'scale must be finite and at least 1, by which factor the simulated cohort is '
      f' larger than that of the run; got {scale}.'
    )
  if scale == 1:
    return scale
  if mechanism is None:
    raise ValueError(
      f'scale is {scale:g}, and there is no mechanism whose noise it could make less; '
      'give one, or leave it out.'
    )
  fitting.check_scale(scale, mechanism)
  left = cast(accounting.Mechanism, mechanism).noise_multiplier / scale
  try:
    grid.check_noise_multiplier(left)
  except ValueError as e:
    raise ValueError(f'scale is {scale:g}, which leaves too little noise: {e}') from e
  return scale


class LargerCohort(NamedTuple):
  """What a run simulates."""

  facts: inputs.SimulatedCohort  # Both cohorts, and the factor between them.
  mechanism: accounting.Mechanism  # What the larger cohort would have had.

  @property
  def mechanism_of_run(self) -> accounting.Mechanism:
    """The same with the run's own noise."""
    return with_noise_over(self.mechanism, self.facts.scale)

  def in_words(self) -> str:
    """Both cohorts, and that there is no guarantee."""
    facts = self.facts
    return (
      f'{NO_GUARANTEE}, as the noise is that of a simulated cohort of '
      f'{_count(facts.simulated_clients_per_round)} of '
      f'{_count(facts.simulated_num_clients)} clients, and rounds have '
      f'{_count(facts.clients_per_round)} of {_count(facts.num_clients)} '
      f'(simulated_cohort_scale={facts.scale:g})'
    )

  def to_json(self) -> dict[str, Any]:
    """What a configuration says of it, beside what the larger cohort would have had."""
    facts, mechanism = self.facts, self.mechanism_of_run
    return {
      'guarantee': f'none: {self.in_words()}',
      'scale': facts.scale,
      'clients_per_round': facts.clients_per_round,
      'simulated_clients_per_round': facts.simulated_clients_per_round,
      'num_clients': facts.num_clients,
      'simulated_num_clients': facts.simulated_num_clients,
      'noise_multiplier': mechanism.noise_multiplier,
      'clipped_count_stddev': mechanism.clipped_count_stddev,
    }


def spent_by_round(
  mechanism: accounting.Mechanism, delta: float
) -> Callable[[int], float]:
  """Epsilon that the larger cohort would have spent, by the rounds so far."""
  if not mechanism.noise_multiplier:
    return lambda rounds: math.inf
  if not mechanism.is_one_gaussian:
    return spent_by_round_lib.SpentByRound(mechanism, delta).after
  so_far = mechanism.noise_multipliers_so_far

  @functools.lru_cache(maxsize=16)  # Many rounds add nothing to the worst case.
  def epsilon_of(mu: float) -> float:
    return float(gaussian.epsilon_of(mu, delta))

  return lambda rounds: epsilon_of(1 / float(so_far[rounds - 1]))


def with_noise_over(
  mechanism: accounting.Mechanism, scale: float
) -> accounting.Mechanism:
  """The mechanism with all its noise scaled, also that of the count of norms."""
  stddev = mechanism.clipped_count_stddev
  return dataclasses.replace(
    mechanism,
    noise_multiplier=mechanism.noise_multiplier / scale,
    clipped_count_stddev=None if stddev is None else stddev / scale,
  )


def _count(number: float) -> str:
  return f'{int(number)}' if float(number).is_integer() else f'{number:g}'
