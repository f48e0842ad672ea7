"""Client selection that keeps what the privacy accounting assumes.

Sensitivity under min separation is a promise about clients; in a simulation this
module is what keeps it (in production, the devices and the server's scheduler do).
"""

import numpy as np

from tff_dp_aggregators import strategies
from tff_dp_aggregators.base import checks


class PopulationTooSmallError(ValueError):
  """The clients there are cannot fill every round within the participation limits."""


def check_population(
  num_clients: int, clients_per_round: int, participation: strategies.Participation
) -> None:
  """Checks that every round can be filled.

  Any `min_separation` successive rounds have no client in common, so they need
  `clients_per_round * min_separation` clients; and all rounds together need
  `clients_per_round * num_rounds` participations, at most `max_participations` of
  each client. Taking turns shows that nothing more is needed.

  Args:
    num_clients: Size of the population.
    clients_per_round: Size of a round's cohort.
    participation: The limits to keep.

  Raises:
    PopulationTooSmallError: If the rounds cannot be filled; the message says what
      would fit.
    ValueError: If a number is less than 1, or the schema is a fixed-epoch one.
  """
  checks.check_positive_int('num_clients', num_clients)
  checks.check_positive_int('clients_per_round', clients_per_round)
  if participation.fixed_epoch:
    raise ValueError(
      'cohorts are drawn for min-separation schemas, not for fixed epochs; leave out '
      'fixed_epoch, or go through the clients in the same order in each epoch.'
    )
  num_rounds = participation.num_rounds
  most = participation.possible_participations
  window = min(participation.min_separation, num_rounds)
  needed = max(clients_per_round * window, -(-clients_per_round * num_rounds // most))
  if num_clients >= needed:
    return
  fitting_cohort = min(num_clients // window, num_clients * most // num_rounds)
  fits = [f'num_clients of at least {needed}']
  if fitting_cohort:
    fits.append(f'clients_per_round of at most {fitting_cohort}')
  looser_limits = []  # One of them may not be enough by itself.
  if clients_per_round * window > num_clients:
    looser_limits.append(
      f'min_separation of at most {num_clients // clients_per_round}'
    )
  if clients_per_round * num_rounds > num_clients * most:
    times = -(-clients_per_round * num_rounds // num_clients)
    looser_limits.append(f'max_participations of at least {times}')
  if num_clients >= clients_per_round:
    fits.append(' and '.join(looser_limits))
  raise PopulationTooSmallError(
    f'{num_clients} clients cannot fill {num_rounds} rounds of {clients_per_round} '
    f'when a client may return only after {participation.min_separation} rounds '
    f'and at most {most} times in all. What would fit: ' + ', or '.join(fits) + '.'
  )


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
    PopulationTooSmallError: If the rounds cannot be filled.

  Example:
    >>> limits = strategies.Participation(num_rounds=4, min_separation=2)
    >>> sample_cohorts(
    ...   num_clients=4, clients_per_round=2, participation=limits, seed=1
    ... ).shape
    (4, 2)
  """
  check_population(num_clients, clients_per_round, participation)
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
