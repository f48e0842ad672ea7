"""Calibration: the noise that a privacy target needs."""

import math
from typing import Optional

from tff_dp_aggregators import strategies
from tff_dp_aggregators.accounting import accountants
from tff_dp_aggregators.accounting import events
from tff_dp_aggregators.accounting import gaussian


def noise_multiplier_for_target(
  strategy: strategies.Strategy,
  participation: Optional[strategies.Participation],
  target_epsilon: float,
  target_delta: float,
) -> float:
  """Smallest noise multiplier whose whole run is (epsilon, delta)-DP, exactly.

  Args:
    strategy: Strategy matrix C of the mechanism.
    participation: Who may take part when; `None` means a single participation.
    target_epsilon: Positive.
    target_delta: Between 0 and 1, exclusive.

  Returns:
    Standard deviation of z over the clip norm: `sens(C) / mu`, rounded up, so that
    the run never spends more than the target.

  Raises:
    ValueError: If a target is out of range, or `participation` for other rounds.

  Example:
    >>> tree = strategies.BinaryTree(2000)
    >>> participation = strategies.Participation.from_rounds_between(2000, 313, 6)
    >>> noise = noise_multiplier_for_target(tree, participation, 8.9, 1e-10)
    >>> round(noise, 3)  # Published with noise multiplier 7 and RDP.
    6.736
  """
  if not target_epsilon > 0:
    raise ValueError(f'target_epsilon must be positive; got {target_epsilon}.')
  mu = gaussian.mu_of(
    gaussian.check_epsilon(target_epsilon, 'target_epsilon'),
    gaussian.check_delta(target_delta, 'target_delta'),
  )
  noise_multiplier = strategy.sensitivity(participation) / mu

  def spent(noise: float) -> float:
    event = events.run_event(strategy, participation, noise)
    return accountants.epsilon(event, target_delta)

  while spent(noise_multiplier) > target_epsilon:  # By round-off only.
    noise_multiplier = math.nextafter(noise_multiplier * (1 + 1e-13), math.inf)
  return noise_multiplier
