"""The rules that the lines of a ledger keep together, line by line.

`ledger` states them, and writes and reads files by them.
"""

import hashlib
from collections.abc import Iterable
from typing import NamedTuple, Optional

from tff_dp_aggregators.accounting.records import aborted_attempt
from tff_dp_aggregators.accounting.records import ledger_entry
from tff_dp_aggregators.accounting.records import ledger_line
from tff_dp_aggregators.accounting.records import ledger_spent
from tff_dp_aggregators.accounting.records.aborted_attempt import AbortedAttempt
from tff_dp_aggregators.accounting.records.ledger_entry import Head
from tff_dp_aggregators.accounting.records.ledger_entry import LedgerEntry

_CONSTANT = (
  'noise_multiplier',
  'parts',
  'noise_site',
  'strategy_checksum',
  'delta',
  'noise_key_tag',
  'noise_source',
  'sampling_source',
  'sampling_tag',
)
# What a line is of: a round, or an aborted attempt at it.
Key = tuple[int, Optional[int]]


class State(NamedTuple):
  """Where a ledger's complete lines end, and what they come to.

  Attributes:
    size: Their length in bytes.
    first: That of round 0, once it is there.
    rounds: Rounds released, each counted once.
    attempts: Aborted attempts at the round after those.
    last_round: Of the last line; before an aborted attempt's round.
    spent: What all rounds spent.
    head: Of all lines.
  """

  size: int = 0
  first: Optional[LedgerEntry] = None
  rounds: int = 0
  attempts: int = 0
  last_round: int = -1
  spent: ledger_spent.Spent = ledger_spent.Spent()
  head: Head = Head()

  def after(
    self, entry: ledger_line.Line, line: bytes, spent: ledger_spent.Spent
  ) -> 'State':
    """With one line more, which is checked already.

    Args:
      entry: What the line says.
      line: The line itself.
      spent: By then.
    """
    then = self._replace(size=self.size + len(line), head=self.head.after(line))
    if isinstance(entry, AbortedAttempt):  # The round that comes next is its own.
      return then._replace(attempts=self.attempts + 1, last_round=entry.round - 1)
    return then._replace(
      first=self.first or entry,
      rounds=max(self.rounds, entry.round + 1),
      attempts=0 if entry.round == self.rounds else self.attempts,
      last_round=entry.round,
      spent=spent,
    )


class Reading:
  """A ledger file read line by line.

  Attributes:
    entries: One per round, in order; of a round released again, the first.
    aborted: Attempts at rounds that were aborted, in order.
    repeated: The rounds released again, in the order of their lines.
    spans: From where to where each line is in the file, but for repetitions.
    state: What all complete lines come to.
    cut: The half line at the end; empty if there is none.
    sha256: Of the whole file.
  """

  def __init__(self, path: str, file: Iterable[bytes], expected: Optional[Head] = None):
    """Reads and verifies a file.

    Args:
      path: Of the file, for messages.
      file: Its lines.
      expected: A head that it had once; `None` if none is known.

    Raises:
      ValueError: If a line breaks a rule, or the head is another.
    """
    self.entries: list[LedgerEntry] = []
    self.aborted: list[AbortedAttempt] = []
    self.repeated: list[int] = []
    self.spans: dict[Key, tuple[int, int]] = {}
    self.state = State()
    self.cut = b''
    once = self.state.head  # The head when there were as many lines as expected.
    digest = hashlib.sha256()
    for number, line in enumerate(file, start=1):
      digest.update(line)
      if not line.endswith(b'\n'):
        self.cut = line
        break
      try:
        self._add(line)
      except ValueError as e:
        raise ValueError(f'{path}, line {number}: {e}') from e
      if expected is not None and number == expected.lines:
        once = self.state.head
    self.sha256 = digest.hexdigest()
    if expected is not None and once != expected:
      raise ValueError(_not_expected(path, self.state.head, expected))

  def _add(self, line: bytes) -> None:
    entry = ledger_line.parse(line)
    state, spent = self.state, self.state.spent
    is_new = True
    if isinstance(entry, AbortedAttempt):
      aborted_attempt.check_next(state.rounds, state.attempts, entry)
      self.aborted.append(entry)
    elif entry.round < state.rounds:
      check_repetition(self.entries[entry.round], entry)
      self.repeated.append(entry.round)
      is_new = False
    else:
      check_next(state.first, state.rounds, entry)
      spent = spent.plus(entry.dp_event)
      ledger_spent.check_stated(entry, spent)
      self.entries.append(entry)
    _check_chained(entry, state.head)
    self.state = state.after(entry, line, spent)
    if is_new:
      self.spans[key(entry)] = (state.size, self.state.size)


def key(entry: ledger_line.Line) -> Key:
  """What a line is of."""
  return entry.round, entry.attempt if isinstance(entry, AbortedAttempt) else None


def check_next(first: Optional[LedgerEntry], rounds: int, entry: LedgerEntry) -> None:
  """Checks that the entry is of round `rounds` and of round 0's mechanism.

  Raises:
    ValueError: If it is not.
  """
  if entry.round != rounds:
    raise ValueError(
      f'expected round {rounds}, or an earlier one released again; found round '
      f'{entry.round}.'
    )
  for name in _CONSTANT:
    value = getattr(entry, name)
    if first is not None and value != getattr(first, name):
      raise ValueError(
        f'{name} is {value!r} in round {rounds} and was {getattr(first, name)!r} in '
        'round 0; another mechanism has its own ledger.'
      )


def _check_chained(entry: ledger_line.Line, head: Head) -> None:
  """Checks that an entry follows on the lines before it, as they were."""
  if entry.previous_line_sha256 != head.sha256:
    before = 'the line before has' if head.lines else 'nothing comes before, which has'
    raise ValueError(
      f'previous_line_sha256 is {entry.previous_line_sha256}, but {before} '
      f'{head.sha256}: a line was changed, removed or inserted.'
    )


def check_repetition(earlier: LedgerEntry, again: LedgerEntry) -> None:
  """Checks that a round that is released again shows nothing new.

  Raises:
    ValueError: If it does, or nobody could tell.
  """
  of_the_line = ('time', ledger_entry.CHAIN, 'notes')
  changed = [
    name
    for name in ledger_entry.FIELDS
    if name not in of_the_line and getattr(earlier, name) != getattr(again, name)
  ]
  if changed:
    raise ValueError(
      f'round {again.round} was released already with other content '
      f'({", ".join(changed)}): its noise would be used for two data sets. Go on from '
      'a state after that round, or start another ledger with another noise key.'
    )
  if again.result_checksum is None:
    raise ValueError(
      f'round {again.round} was released already, and without a result_checksum '
      'nothing shows that the result is the same. State one in every round.'
    )


def _not_expected(path: str, found: Head, expected: Head) -> str:
  if found.lines < expected.lines:
    return (
      f'{path} has {found.lines} complete lines, but had {expected.lines} once: '
      f'{expected.lines - found.lines} were removed from its end. What they spent is '
      'spent; find the ledger that has them.'
    )
  return (
    f'the first {expected.lines} lines of {path} are not those that were there once, '
    f'whose last had the SHA-256 {expected.sha256}: something was changed, or it is '
    'another ledger.'
  )
