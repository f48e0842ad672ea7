"""Client selection that keeps what the privacy accounting assumes.

Sensitivity under min separation is a promise about clients; in a simulation this
module is what keeps it (in production, the devices and the server's scheduler do).
"""

import numpy as np

from tff_dp_aggregators import strategies
from tff_dp_aggregators.strategies.participation import PopulationTooSmallError


def sample_cohorts(
  num_clients: int,
  clients_per_round: int,
  participation: strategies.Participation,
  seed: int,
) -> np.ndarray:
  """Draws the cohorts of all rounds, within the participation limits.

  In each round, clients are drawn at random among those that may take part and have
  done so least often.

  Args:
    num_clients: Size of the population.
    clients_per_round: Size of a round's cohort.
    participation: The limits to keep.
    seed: Same seed, same cohorts.

  Returns:
    Client numbers, int64 of shape [num_rounds, clients_per_round].

  Raises:
    PopulationTooSmallError: If the rounds cannot be filled; the message says what would
      fit.
    TypeError: If `participation` is none, or another argument no whole number.
    ValueError: If a number is less than 1, or the schema is a fixed-epoch one.

  Example:
    >>> limits = strategies.Participation(num_rounds=4, min_separation=2)
    >>> sample_cohorts(
    ...   num_clients=4, clients_per_round=2, participation=limits, seed=1
    ... ).shape
    (4, 2)
  """
  strategies.participation.require(participation)
  if participation.fixed_epoch:
    raise ValueError(
      'cohorts are drawn for min-separation schemas, not for fixed epochs; leave out '
      'fixed_epoch, or go through the clients in the same order in each epoch.'
    )
  strategies.participation.check_population(
    num_clients, clients_per_round, participation, ('num_clients', 'clients_per_round')
  )
  rng = np.random.default_rng(seed)
  times = np.zeros(num_clients, np.int64)
  returns = np.zeros(num_clients, np.int64)  # First round a client may be back.
  cohorts = np.empty((participation.num_rounds, clients_per_round), np.int64)
  for this_round in range(participation.num_rounds):
    allowed = np.flatnonzero(
      (returns <= this_round) & (times < participation.possible_participations)
    )
    rng.shuffle(allowed)
    cohort = allowed[np.argsort(times[allowed], kind='stable')][:clients_per_round]
    if len(cohort) < clients_per_round:
      raise PopulationTooSmallError(
        f'round {this_round} found only {len(cohort)} of {clients_per_round} '
        'clients; use more clients or fewer of them a round.'
      )
    times[cohort] += 1
    returns[cohort] = this_round + participation.min_separation
    cohorts[this_round] = cohort
  return cohorts
