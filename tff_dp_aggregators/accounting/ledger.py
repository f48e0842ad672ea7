"""The ledger: one JSON line per round, written before the round's result is used.

The file is append-only and each line stands by itself, so a reader can tell what was
spent from whatever part of a run there is. A line says what ran (the round's privacy
event), on how many clients, with which clip norm, noise and strategy, and what had
been spent by then. It never holds a seed or anything drawn from it.
"""

import dataclasses
import datetime
import json
import os
from typing import Any, Optional

import dp_accounting

from tff_dp_aggregators.accounting import accountants
from tff_dp_aggregators.accounting import events
from tff_dp_aggregators.accounting import gaussian


@dataclasses.dataclass(frozen=True)
class LedgerEntry:
  """What one round released.

  Attributes:
    round: Round number, from 0.
    cohort_requested: Clients the round was planned for, the mean's denominator.
    cohort_reported: Clients whose updates arrived.
    clip_norm: L2 bound of one client's contribution; `None` without clipping.
    noise_multiplier: Standard deviation of z over the clip norm.
    strategy_checksum: `Strategy.checksum`; `None` without a mechanism.
    event: The round's event, as `events.to_json` writes it.
    effective_noise_multiplier: Of all rounds so far together; `None` if infinite.
    epsilon: Spent after this round at `delta`, exact; `None` if infinite.
    delta: Where epsilon was read.
    time: When the entry was written, ISO 8601 in UTC.
  """

  round: int
  cohort_requested: int
  cohort_reported: int
  clip_norm: Optional[float]
  noise_multiplier: float
  strategy_checksum: Optional[str]
  event: dict[str, Any]
  effective_noise_multiplier: Optional[float]
  epsilon: Optional[float]
  delta: float
  time: str

  @property
  def dp_event(self) -> dp_accounting.DpEvent:
    """The round's event."""
    return events.from_json(self.event)


class LedgerWriter:
  """Appends entries to a new ledger file and knows what has been spent.

  Example:
    >>> import tempfile
    >>> path = os.path.join(tempfile.mkdtemp(), 'ledger.jsonl')
    >>> with LedgerWriter(path, delta=1e-6) as writer:
    ...   entry = writer.append(
    ...     event=dp_accounting.GaussianDpEvent(1.0),
    ...     cohort_requested=10,
    ...     cohort_reported=9,
    ...     clip_norm=0.5,
    ...     noise_multiplier=1.0,
    ...     strategy_checksum='sha256:...',
    ...   )
    >>> round(entry.epsilon, 3), len(read(path))
    (4.887, 1)
  """

  def __init__(self, path: str, delta: float):
    """Creates the file.

    Args:
      path: Where; must not exist.
      delta: At which delta epsilon is reported.

    Raises:
      FileExistsError: If there is a file already; a ledger is never overwritten.
      ValueError: If `delta` is not between 0 and 1.
    """
    self._delta = gaussian.check_delta(delta)
    self._file = open(path, 'x', encoding='utf-8')
    self._round = 0
    self._accountant = accountants.GaussianAccountant()

  def append(
    self,
    *,
    event: dp_accounting.DpEvent,
    cohort_requested: int,
    cohort_reported: int,
    clip_norm: Optional[float],
    noise_multiplier: float,
    strategy_checksum: Optional[str],
  ) -> LedgerEntry:
    """Writes the next round's entry and waits until it is on disk.

    Args:
      event: The event the round's query returned.
      cohort_requested: See `LedgerEntry`, as for the others.
      cohort_reported: See `LedgerEntry`.
      clip_norm: See `LedgerEntry`.
      noise_multiplier: See `LedgerEntry`.
      strategy_checksum: See `LedgerEntry`.

    Returns:
      The entry, with the privacy spent so far.
    """
    self._accountant.compose(events.simplify(event))
    mu = self._accountant.mu
    entry = LedgerEntry(
      round=self._round,
      cohort_requested=cohort_requested,
      cohort_reported=cohort_reported,
      clip_norm=clip_norm,
      noise_multiplier=noise_multiplier,
      strategy_checksum=strategy_checksum,
      event=events.to_json(event),
      effective_noise_multiplier=_finite(1 / mu if mu else float('inf')),
      epsilon=_finite(self._accountant.get_epsilon(self._delta)),
      delta=self._delta,
      time=datetime.datetime.now(datetime.timezone.utc).isoformat(),
    )
    line = json.dumps(dataclasses.asdict(entry), allow_nan=False)
    self._file.write(line + '\n')
    self._file.flush()
    os.fsync(self._file.fileno())
    self._round += 1
    return entry

  def close(self) -> None:
    """Closes the file."""
    self._file.close()

  def __enter__(self) -> 'LedgerWriter':
    return self

  def __exit__(self, *unused: Any) -> None:
    self.close()


def read(path: str) -> list[LedgerEntry]:
  """Reads a ledger and checks that its rounds are complete and in order.

  Raises:
    ValueError: If a line is not an entry, or is not of the next round; the message
      names the line.
  """
  entries: list[LedgerEntry] = []
  with open(path, encoding='utf-8') as file:
    for number, line in enumerate(file, start=1):
      try:
        entry = LedgerEntry(**json.loads(line))
        events.from_json(entry.event)
      except (TypeError, ValueError) as e:
        raise ValueError(f'{path}, line {number}: not a ledger entry: {e}') from e
      if entry.round != len(entries):
        raise ValueError(
          f'{path}, line {number}: expected round {len(entries)}, found {entry.round}.'
        )
      entries.append(entry)
  return entries


def total_event(entries: list[LedgerEntry]) -> dp_accounting.DpEvent:
  """What a ledger's rounds spent together, as one event."""
  return events.simplify(
    dp_accounting.ComposedDpEvent([entry.dp_event for entry in entries])
  )


def _finite(value: float) -> Optional[float]:
  """JSON has no infinity: no number stands for it."""
  return value if value != float('inf') else None
