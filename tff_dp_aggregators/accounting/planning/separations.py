"""Chooses the separation of b-min-sep sampling together with the number of bands."""

from typing import Optional

from tff_dp_aggregators import sampling
from tff_dp_aggregators import strategies
from tff_dp_aggregators.accounting import calibration
from tff_dp_aggregators.accounting import mechanism as mechanism_lib
from tff_dp_aggregators.accounting.planning import comparison
from tff_dp_aggregators.base import checks
from tff_dp_aggregators.strategies import registry


def best_separation(
  num_rounds: int,
  num_clients: int,
  clients_per_round: float,
  target_epsilon: float,
  target_delta: float,
  *,
  mechanism: Optional[str] = None,
  largest: Optional[int] = None,
) -> sampling.BMinSepSampling:
  """The b-min-sep sampling with about the least RMSE, if bands equal the separation.

  More bands reduce the error for the same noise, but need a larger separation, with
  which sampling amplifies privacy less. Separations are powers of 2, from 2 on. They
  are compared with few samples and no confidence: calibrate the noise of the result.

  `mechanism`: A kind of strategy with bands; by default the fastest one to optimize.
  `largest`: The largest separation; by default what cohort and rounds allow.

  Example:
    >>> drawn = best_separation(4, 100, 25, 8.0, 1e-3)
    >>> drawn.min_separation, round(drawn.rate, 4)
    (4, 0.25)
  """
  checks.check_positive('clients_per_round', clients_per_round)
  upper = min(num_rounds, int(num_clients // clients_per_round))
  if largest is not None:
    upper = min(upper, largest)
  if upper < 2:
    raise ValueError(
      f'num_rounds={num_rounds}, num_clients={num_clients}, clients_per_round='
      f'{clients_per_round} and largest={largest} leave no separation above 1.'
    )
  kind = comparison.quickest_with_bands(strategies.Participation(num_rounds, upper))
  if mechanism is not None:
    kind = registry.kind(mechanism)
  if kind.bands is None:
    raise ValueError(f'mechanism must be one with bands; got {mechanism!r}.')
  option = kind.bands

  def schema(separation: int) -> sampling.BMinSepSampling:
    return sampling.BMinSepSampling.of_cohort(
      num_rounds, num_clients, clients_per_round, separation
    )

  def error(separation: int) -> float:
    bands = {option: separation}
    made = mechanism_lib.Mechanism(kind.name, schema(separation), 1.0, options=bands)
    noise = calibration.about_noise_multiplier(
      made.event_with, target_epsilon, target_delta, accountant='monte_carlo'
    )
    return made.strategy.rmse() * noise

  separations = (2**i for i in range(1, upper.bit_length()))
  return schema(comparison.least_error(separations, error))
