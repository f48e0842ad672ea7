"""What is said of a run with the noise of a larger cohort.

Experiments on few clients often add the noise that a cohort s times as large would
have, which is 1/s of what the mechanism says, in clip norms of the sum: after the
division by the number of clients the mean has the noise of the mean over the larger
cohort (`noise_cohort_size` in pfl-research; the StackOverflow runs of DP-FTRL,
arXiv:2103.00039, with 100 clients a round for 1,000). It shows what such a training
would come to. To the clients that are in it, it promises nothing. So what is said of
epsilon is conditional: a run would have had it whose rounds have s times the clients,
of a population s times as large, which leaves the schema as it is.
"""

import collections
from typing import Any, Optional, cast

import dp_accounting

from tff_dp_aggregators.accounting import accountants
from tff_dp_aggregators.accounting import events
from tff_dp_aggregators.accounting import mechanism as mechanism_lib
from tff_dp_aggregators.accounting.accountants import gaussian
from tff_dp_aggregators.accounting.reports import inputs as inputs_lib
from tff_dp_aggregators.accounting.reports import model
from tff_dp_aggregators.accounting.reports import schemes

# The event of each round: nothing composes it into a guarantee.
_NOT_PRIVATE = dp_accounting.NonPrivateDpEvent()


def of(inputs: inputs_lib.Inputs) -> model.SimulatedCohort:
  """What a statement says of the larger cohort."""
  if inputs.mechanism.parts:
    raise ValueError(
      'a larger cohort is simulated with one mechanism for all weights; this one has '
      'parts, so something was altered.'
    )
  mechanism = cast(mechanism_lib.Mechanism, inputs.mechanism)
  cohort, ledger = inputs.simulated_cohort, inputs.ledger
  assert cohort is not None
  gaussian.check_delta(inputs.delta)
  if ledger is None:
    raise ValueError('a run that simulates a larger cohort is told by its ledger.')
  _check_ledger(inputs)
  rounds = len(ledger.entries)
  accountant, epsilon = _spent(mechanism, rounds, inputs.delta, inputs.accountant)
  stddev = mechanism.clipped_count_stddev
  adjacency: Any = mechanism.adjacency
  return model.SimulatedCohort(
    scale=cohort.scale,
    clients_per_round=cohort.clients_per_round,
    simulated_clients_per_round=cohort.simulated_clients_per_round,
    num_clients=cohort.num_clients,
    simulated_num_clients=cohort.simulated_num_clients,
    mechanism=mechanism.name,
    strategy_checksum=mechanism.strategy.checksum,
    noise_multiplier=mechanism.noise_multiplier / cohort.scale,
    simulated_noise_multiplier=mechanism.noise_multiplier,
    clipped_count_stddev=None if stddev is None else stddev / cohort.scale,
    simulated_clipped_count_stddev=stddev,
    participation=schemes.sentence(mechanism.participation),
    rounds_completed=rounds,
    rounds_planned=mechanism.participation.num_rounds,
    ledger_head=model.LedgerHead(**ledger.head._asdict()),
    simulated_epsilon=epsilon,
    delta=inputs.delta,
    accountant=accountant,
    adjacency=adjacency,
    target_epsilon=inputs.target_epsilon,
  )


def event_of_rounds(
  mechanism: mechanism_lib.Mechanism, rounds: int
) -> dp_accounting.DpEvent:
  """The event of the first rounds of a mechanism, as a ledger of them would have it.

  Example:
    >>> from tff_dp_aggregators import strategies
    >>> limits = strategies.Participation(4, min_separation=1)
    >>> mechanism = mechanism_lib.Mechanism('gaussian', limits, noise_multiplier=2.0)
    >>> event_of_rounds(mechanism, 1)
    GaussianDpEvent(noise_multiplier=2.0)
  """
  if rounds == mechanism.participation.num_rounds:
    return mechanism.event
  if not mechanism.is_one_gaussian:
    counted = collections.Counter(mechanism.round_events[:rounds])
    return events.simplify(
      dp_accounting.ComposedDpEvent(
        [dp_accounting.SelfComposedDpEvent(*each) for each in counted.items()]
      )
    )
  return dp_accounting.GaussianDpEvent(
    float(mechanism.noise_multipliers_so_far[rounds - 1])
  )


def _spent(
  mechanism: mechanism_lib.Mechanism,
  rounds: int,
  delta: float,
  accountant: Optional[str],
) -> tuple[Optional[str], Optional[float]]:
  """Whose epsilon it is, and what; nobody's and `None` without noise."""
  if not mechanism.noise_multiplier:
    return None, None
  event = event_of_rounds(mechanism, rounds)
  chosen = accountant or accountants.tightest(event, mechanism.relation)
  epsilon = accountants.epsilon(event, delta, chosen, mechanism.relation)
  return chosen, epsilon


def _check_ledger(inputs: inputs_lib.Inputs) -> None:
  """Refuses a ledger of other noise, or one that states privacy."""
  mechanism = cast(mechanism_lib.Mechanism, inputs.mechanism)
  cohort, ledger = inputs.simulated_cohort, inputs.ledger
  assert cohort is not None and ledger is not None
  planned = mechanism.participation.num_rounds
  if not 0 < len(ledger.entries) <= planned:
    raise ValueError(
      f'the ledger lists {len(ledger.entries)} rounds; the mechanism is for 1 to '
      f'{planned}.'
    )
  expected = (mechanism.strategy.checksum, mechanism.noise_multiplier / cohort.scale)
  for entry in ledger.entries:
    if (entry.strategy_checksum, entry.noise_multiplier) != expected:
      raise ValueError(
        f'round {entry.round} of the ledger used strategy {entry.strategy_checksum} '
        f'with noise multiplier {entry.noise_multiplier}, but with the noise of a '
        f'cohort {cohort.scale:g} times as large it is {expected[0]} with '
        f'{expected[1]}: they are not of the same run.'
      )
    if entry.dp_event != _NOT_PRIVATE:
      raise ValueError(
        f'round {entry.round} of the ledger has the event {entry.dp_event}, but the '
        'run simulates a larger cohort, and no round of it is private.'
      )
