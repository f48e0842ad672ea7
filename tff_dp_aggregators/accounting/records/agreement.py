"""Whether a ledger and a round log tell of the same rounds.

The ledger is what the training wrote, the log what the production system did. Each
knows what the other cannot: the ledger which noise was added and which limits on
participation its events are for, the log when rounds were complete, and so which
limits devices that wait have kept. Together they show more than each alone, if they are
of the same run: the same rounds, of as many clients, and limits that were kept.
"""

from collections.abc import Iterator

import numpy as np

from tff_dp_aggregators import strategies
from tff_dp_aggregators.accounting.records import ledger as ledger_lib
from tff_dp_aggregators.accounting.records import log_participation


def check(
  summary: log_participation.Summary,
  ledger: ledger_lib.Ledger,
  limits: strategies.Participation,
) -> None:
  """Refuses a ledger and a log that disagree.

  Args:
    summary: What the log says.
    ledger: Of the same run.
    limits: Those that the ledger's events are for.

  Raises:
    ValueError: If they disagree; the message names the first round that shows it, by
      the ledger's number.
  """
  for disagreement in _disagreements(summary, ledger):
    raise ValueError(
      f'the ledger and the round log are not of the same run: {disagreement}.'
    )
  if limits.fixed_epoch:
    raise ValueError(
      'a round log shows how far apart rounds of a device are, not that they are fixed '
      'epochs apart, which the events of the ledger are for; leave out the round log.'
    )
  broken = summary.broken_in_short(limits.min_separation, limits.max_participations)
  if broken:
    raise ValueError(
      'the round log shows that the limits were not kept which the events of the '
      f'ledger are for: {"; ".join(broken)}. Leave out the ledger to account for what '
      'the log shows.'
    )


def _disagreements(
  summary: log_participation.Summary, ledger: ledger_lib.Ledger
) -> Iterator[str]:
  log, entries = summary.log, ledger.entries
  # Where they differ, both numbers: logs may count from 1.
  shift = log.first_number
  counts = []
  if log.cohort_sizes is not None:
    counts.append(('clients', log.cohort_sizes))
  if log.clients is not None:
    listed = np.bincount(log.clients.round, minlength=log.num_rounds)
    counts.append(('client ids', listed))
  for entry in entries[: log.num_rounds]:
    for what, numbers in counts:
      if entry.cohort_reported not in (None, numbers[entry.round]):
        yield (
          f'in round {_numbered(entry.round, shift)} the ledger has '
          f'{entry.cohort_reported} clients that reported, the round log '
          f'{numbers[entry.round]} {what}'
        )
  if len(entries) > log.num_rounds:
    yield (
      f'round {_numbered(log.num_rounds, shift)} of the ledger is not in the round '
      f'log, which has {log.num_rounds} rounds'
    )
  if len(entries) < log.num_rounds:
    yield (
      f'round {_numbered(len(entries), shift)} of the round log is not in the ledger, '
      f'which has {len(entries)} rounds'
    )


def _numbered(number: int, shift: int) -> str:
  return f'{number} (number {number + shift} in the log)' if shift else f'{number}'
