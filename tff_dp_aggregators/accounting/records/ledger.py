"""The ledger: one JSON line per round, written before the round's result is used.

A line says what ran (the round's privacy event), on how many clients, with which clip
norm, noise and strategy, what was released (its checksum), and what had been spent by
then. It never holds a seed, nor noise that was not released; of a seed, a tag that is
slow to try (`tag_of_seed`). Of cohorts that were drawn in secret it need not have the
sizes, which are of who was drawn. Attempts at a round that
were aborted have lines of their own (`aborted_attempt`), which spend nothing.

The file is append-only, and the rules are the same for who writes (`LedgerWriter`) and
who reads (`read`):

* Lines are chained: each has the SHA-256 of the line before, the first that of nothing
  (`previous_line_sha256`). So the SHA-256 of the last line is one of all lines. With
  their number it is the ledger's `Head`, for checkpoints and reports to keep.
* Rounds are in order, from 0. All rounds are of one mechanism: `noise_multiplier`,
  `parts`, `strategy_checksum`, `delta`, `noise_key_tag` and what it says of the sources
  of noise and draws are those of round 0. Another phase of training with another
  mechanism is another ledger.
* A round may be released again, as happens when a run ends between a line and the
  checkpoint after it and resumes from the checkpoint before. That is one more line,
  with the same content but for the time, and costs nothing: the adversary sees the
  same bits once more. With other content the same noise would cover two data sets, and
  without a `result_checksum` nobody could tell: both are errors.
* Aborted attempts at a round stand before its line, in order, from attempt 0. None is
  there twice: a round that is run again confirms them.
* A round without a clip norm is not private: no noise hides what has no bound. Its
  event says so, or the line is refused.
* `effective_noise_multiplier` and `epsilon` are what the events so far compose to, to a
  relative 1e-9, and never on the unsafe side by more than round-off (1e-12 of mu).
* A file that ends in the middle of a line was cut there; `append` had not returned, so
  that round's result was not used. Whatever else is wrong is an error.

Only Gaussian events compose here: those of all matrix mechanisms without sampling. In a
ledger of a sampled mechanism each round is a sample of one and the same noise
(`Mechanism.round_events`), or nothing where other groups have their turn; in one of
Laplace noise it is the same Laplace event, or nothing where it adds none. In one of a
joint mechanism whose parts have both, it is that and the Gaussian of the others. Their
`effective_noise_multiplier` and `epsilon` are null: there is no such noise multiplier,
and epsilon is a composition that takes an accountant seconds. The report states it, of
all rounds, for the mechanism's own neighbouring relation; `spent_by_round` has a bound
after each of them, for metrics.

What can be changed in a ledger without being found, if nothing else is known of it:

* In the last line: the time; cohorts, clip norm, generator and result checksum, if its
  round was released once; digits of event and epsilon too small to move the result by
  1e-9; the order of fields and the spaces between them. If it is the only one of a
  round, the noise multiplier and the strategy checksum as well, which the report
  compares with the mechanism, and the tag of the key. Of an aborted attempt, its
  cohorts and its goal.
* Whole lines can be taken from the end, as can the file.
* Whoever writes all later lines anew, with new hashes, can change the same things in
  any line, and put in or take out aborted attempts.

Who knows the head of the ledger finds each of these. With it nothing can be changed but
what comes after that many lines: those that were appended since, and a half line.
"""

import dataclasses
import datetime
import errno
import hashlib
import io
import itertools
import logging
import os
from collections.abc import Iterable
from typing import Any, Optional

import dp_accounting
import numpy as np

from tff_dp_aggregators.accounting import events
from tff_dp_aggregators.accounting.accountants import gaussian
from tff_dp_aggregators.accounting.records import ledger_entry
from tff_dp_aggregators.accounting.records import ledger_rules
from tff_dp_aggregators.accounting.records.ledger_entry import AbortedAttempt
from tff_dp_aggregators.accounting.records.ledger_entry import Head
from tff_dp_aggregators.accounting.records.ledger_entry import LedgerEntry
from tff_dp_aggregators.accounting.records.ledger_rules import Ledger
from tff_dp_aggregators.base import checks
from tff_dp_aggregators.base import folder_lock
from tff_dp_aggregators.base import new_files

# What rounds spent together, and what identifies their seeds.
total_event = ledger_rules.total_event
SECRET, SEED, FILE = ledger_entry.SECRET, ledger_entry.SEED, ledger_entry.FILE
GUESSABLE, tag_of_seed = ledger_entry.GUESSABLE, ledger_entry.tag_of_seed
_logger = logging.getLogger(__name__)
# Fields of a line that need not be stated.
_NOT_STATED = {
  field.name: field.default
  for field in dataclasses.fields(LedgerEntry)
  if field.default is not dataclasses.MISSING
}


class LedgerWriter:
  """Appends entries to a ledger file and knows what has been spent.

  It holds an exclusive lock on the file until it is closed.

  Attributes:
    recovered: Where the half line was put that the ledger ended in when it was
      resumed; `None` if it did not.

  Example:
    >>> import tempfile
    >>> path = os.path.join(tempfile.mkdtemp(), 'ledger.jsonl')
    >>> what = dict(
    ...   event=dp_accounting.GaussianDpEvent(1.0),
    ...   cohort_requested=10,
    ...   cohort_reported=9,
    ...   clip_norm=0.5,
    ...   noise_multiplier=1.0,
    ...   strategy_checksum='sha256:...',
    ...   result_checksum=checksum_of([np.zeros(3)]),
    ... )
    >>> with LedgerWriter(path, delta=1e-6) as writer:
    ...   entry = writer.append(**what)
    >>> round(entry.epsilon, 3)
    4.887
    >>> with LedgerWriter(path, delta=1e-6, resume=True) as writer:
    ...   again = writer.append(round=0, **what)
    ...   _ = writer.append(**what)
    >>> again.epsilon == entry.epsilon
    True
    >>> ledger = read(path)
    >>> len(ledger.entries), ledger.repeated, ledger.head == writer.head
    (2, (0,), True)
  """

  def __init__(
    self,
    path: str,
    delta: float,
    *,
    resume: bool = False,
    expected: Optional[Head] = None,
  ):
    """Makes the file, or takes up one that is there.

    Args:
      path: Where.
      delta: At which delta epsilon is reported; a resumed ledger's own.
      resume: Whether to go on with the ledger at `path`. It is verified as `read`
        does; a half line at its end is moved to a file of its own beside it,
        `<path>.cut-<n>`, with a warning in the log.
      expected: With `resume`, the `head` that the writer had when the checkpoint was
        written from which the run goes on: the ledger must begin with these lines. It
        may have more, of rounds after the checkpoint.

    Raises:
      FileExistsError: If there is a file already, without `resume`; a ledger is never
        overwritten.
      FileNotFoundError: If there is none, with `resume`.
      BlockingIOError: If another writer has the ledger open.
      TypeError: If `expected` is not a number of lines and a text.
      ValueError: If `delta` is not between 0 and 1 or not the ledger's, or `read`
        refuses the ledger or it is not the `expected` one. It is left as it is.
    """
    self._delta = gaussian.check_delta(delta)
    if expected is not None:
      if not resume:
        raise ValueError('expected is for resume=True; a new ledger has no lines yet.')
      expected = _check_head(expected)
    self._state = ledger_rules.State()
    # From where to where the first line of each round or attempt is.
    self._spans: dict[ledger_rules.Key, tuple[int, int]] = {}
    self._torn = False  # Whether there may be something after the complete lines.
    self.recovered: Optional[str] = None
    self._file = _open(path, new=not resume)
    try:
      _lock(self._file, path)
      if resume:
        self._take_up(path, expected)
      else:
        _sync_directory(path)
    except BaseException:
      self.close()
      raise

  @property
  def rounds(self) -> int:
    """Rounds released so far, each counted once."""
    return self._state.rounds

  @property
  def head(self) -> Head:
    """Of the lines so far; a checkpoint that keeps it can tell that none is lost."""
    return self._state.head

  def append(self, *, round: Optional[int] = None, **what: Any) -> LedgerEntry:
    """Writes a round's line and waits until it is on disk.

    If it fails, the ledger and what was spent are as before.

    Args:
      round: Round number; by default the one after the last line's. A run that
        resumes should give it: its state may be older than the ledger.
      **what: Fields of `LedgerEntry`: `cohort_requested`, `cohort_reported`,
        `clip_norm`, `noise_multiplier` and `strategy_checksum`; `result_checksum`,
        without which the round cannot be repeated; and the others that have a default.
        `Mechanism.line` has those that are a mechanism's. And `event`, the privacy
        event of this round alone: `aggregators.extract_dp_event(state)` with its
        `last_round_only`, or what a query returned; for a sampled mechanism, which
        neither of them knows about, its `round_events[round]`.

    Returns:
      The entry, with the privacy spent so far; for a repeated round, by then.

    Raises:
      TypeError: If a field is missing, or there is none of that name, or a count is
        not a whole number.
      ValueError: If an argument is out of range, or the round is not the next, or was
        released with other content, or is of another mechanism, or its event neither
        Gaussian nor Laplace nor a sample of one, or there is no clip norm and yet
        privacy. The round's result must not be used then.
      OSError: If the line cannot be written, or something else changed the file.
    """
    self._mend()
    if round is None:
      round = self._state.last_round + 1
    entry, spent = self._entry_of(round=round, **what)
    self._commit(entry, spent)
    return entry

  def append_aborted(self, **what: Any) -> AbortedAttempt:
    """Writes the line of an aborted attempt and waits until it is on disk.

    The round's own line comes after those of its aborted attempts. If it fails, the
    ledger is as before.

    Args:
      **what: `round`, `attempt`, `cohort_requested`, `cohort_reported` and
        `reporting_goal` of `AbortedAttempt`.

    Returns:
      The line's content.

    Raises:
      TypeError: If one is missing, or no whole number.
      ValueError: If one is out of range, or the attempt is not the next one.
      OSError: If the line cannot be written, or something else changed the file.

    Example:
      >>> import tempfile
      >>> path = os.path.join(tempfile.mkdtemp(), 'ledger.jsonl')
      >>> what = dict(cohort_requested=10, cohort_reported=6, reporting_goal=8)
      >>> with LedgerWriter(path, delta=1e-6) as writer:
      ...   aborted = writer.append_aborted(round=0, attempt=0, **what)
      ...   print(aborted.dp_event, writer.rounds, writer.aborted_attempts(0))
      NoOpDpEvent() 0 1
    """
    self._mend()
    aborted = self._aborted_of(**what)
    ledger_rules.check_next_attempt(self._state, aborted)
    self._commit(aborted, self._state.spent)
    return aborted

  def confirm_aborted(self, **what: Any) -> AbortedAttempt:
    """Checks that an attempt of a round which is run again is what its line says.

    Args:
      **what: As for `append_aborted`.

    Returns:
      The line's content.

    Raises:
      TypeError: As for `append_aborted`.
      ValueError: If it has no line, or one with other content.
    """
    again = self._aborted_of(**what)
    number, attempts = again.round, self.aborted_attempts(again.round)
    if again.attempt >= attempts:
      raise ValueError(
        f'attempt {again.attempt} at round {number} has no line; the ledger has '
        f'{attempts} aborted attempts at that round, and {self._state.rounds} rounds.'
      )
    earlier = self._line((number, again.attempt))
    assert isinstance(earlier, AbortedAttempt)
    ledger_rules.check_same_attempt(earlier, again)
    return earlier

  def aborted_attempts(self, round: int) -> int:
    """How many aborted attempts at a round have a line.

    Args:
      round: From 0; released already or not.

    Raises:
      TypeError: If it is no whole number.
      ValueError: If it is out of range.
    """
    number = checks.check_int('round', round, 0)
    if number == self._state.rounds:
      return self._state.attempts
    return next(
      count for count in itertools.count() if (number, count) not in self._spans
    )

  def _aborted_of(self, **what: Any) -> AbortedAttempt:
    """The next line for an attempt."""
    return AbortedAttempt(
      **_with_counts(what),
      event=dict(ledger_entry.NOTHING),
      time=_now(),
      previous_line_sha256=self._state.head.sha256,
    )

  def confirm(self, *, round: int, **what: Any) -> LedgerEntry:
    """Checks that a round which is run again came to what its line says.

    Nothing is written: a run that resumes from a checkpoint before its last line leaves
    the ledger of one that was never interrupted.

    Args:
      round: A round that is in the ledger.
      **what: As for `append`.

    Returns:
      The round's first line.

    Raises:
      TypeError: As for `append`.
      ValueError: If the round is not there yet, or was released with other content: its
        noise would cover two data sets, and the result must not be used.
    """
    if checks.check_int('round', round, 0) >= self._state.rounds:
      raise ValueError(
        f'round {round} has no line yet; the ledger has {self._state.rounds} rounds. '
        'Append it.'
      )
    self._entry_of(round=round, **what)
    return self._entry(round)

  def _entry_of(
    self,
    *,
    event: dp_accounting.DpEvent,
    clip_norm: Optional[float],
    noise_multiplier: Optional[float],
    strategy_checksum: Optional[str],
    cohort_requested: Optional[int],
    cohort_reported: Optional[int],
    **others: Any,
  ) -> tuple[LedgerEntry, ledger_rules.Spent]:
    """The next line for a round, checked, and what is spent with it."""
    state = self._state
    if noise_multiplier is not None:
      noise_multiplier = events.check_noise_multiplier(noise_multiplier)
    given: dict[str, Any] = dict(
      **_with_counts(
        {
          **others,
          'cohort_requested': cohort_requested,
          'cohort_reported': cohort_reported,
        }
      ),
      clip_norm=None if clip_norm is None else float(clip_norm),
      noise_multiplier=noise_multiplier,
      strategy_checksum=strategy_checksum,
      event=events.to_json(event),
      delta=self._delta,
      time=_now(),
      previous_line_sha256=state.head.sha256,
    )
    # What is not stated now is not what a line has that was written before.
    given = {**_NOT_STATED, **given}
    if given['round'] < state.rounds:
      earlier = self._entry(given['round'])
      entry = dataclasses.replace(earlier, **given)
      ledger_rules.check_repetition(earlier, entry)
      return entry, state.spent
    spent = state.spent.plus(events.from_json(given['event']))
    entry = LedgerEntry(
      effective_noise_multiplier=spent.effective_noise_multiplier,
      epsilon=spent.epsilon(self._delta),
      **given,
    )
    ledger_rules.check_next(state, entry)
    return entry, spent

  def close(self) -> None:
    """Closes the file and gives the lock back."""
    if not self._file.closed:
      folder_lock.give_back(self._file.fileno())
    self._file.close()

  def __enter__(self) -> 'LedgerWriter':
    return self

  def __exit__(self, *unused: Any) -> None:
    self.close()

  def _take_up(self, path: str, expected: Optional[Head]) -> None:
    """Verifies the file and continues where it ends."""
    with open(self._file.fileno(), 'rb', closefd=False) as file:
      reading = ledger_rules.Reading(path, file, expected)
    first = reading.state.first
    if first is not None and first.delta != self._delta:
      raise ValueError(
        f'delta is {self._delta}, but {path} has epsilons at {first.delta}; resume it '
        'with that delta.'
      )
    self._state, self._spans = reading.state, reading.spans
    if reading.cut:
      self.recovered = _keep(path, reading.cut)
      self._torn = True
      self._mend()
      _logger.warning(
        '%s ended in the middle of a line, whose %d bytes are now in %s. The last '
        'complete line of a round is of round %d.',
        path,
        len(reading.cut),
        self.recovered,
        reading.state.last_round,
      )

  def _entry(self, round_number: int) -> LedgerEntry:
    entry = self._line((round_number, None))
    assert isinstance(entry, LedgerEntry)
    return entry

  def _line(self, key: ledger_rules.Key) -> ledger_entry.Line:
    start, end = self._spans[key]
    return ledger_entry.parse(os.pread(self._file.fileno(), end - start, start))

  def _commit(self, entry: ledger_entry.Line, spent: ledger_rules.Spent) -> None:
    """Writes the line, and only then counts it."""
    line = ledger_entry.write(entry)
    key, before = ledger_rules.key(entry), self._state
    is_new = key not in self._spans
    self._torn = True
    try:
      written = 0
      while written < len(line):  # A full disk takes a part.
        written += os.write(self._file.fileno(), line[written:])
      os.fsync(self._file.fileno())
      if is_new:
        self._spans[key] = (before.size, before.size + len(line))
      # One assignment: an interrupt comes before it or after, and `_mend` knows which.
      self._state = before.after(entry, line, spent)
    except BaseException:
      if is_new and self._state is before:
        self._spans.pop(key, None)
      try:
        self._mend()
      except OSError:
        pass  # The next append tries again; a resuming one finds a half line.
      raise
    self._torn = False

  def _mend(self) -> None:
    """Takes back what a failed write left; finds what others did to the file."""
    descriptor, size = self._file.fileno(), self._state.size
    if self._torn:
      os.ftruncate(descriptor, size)
      os.fsync(descriptor)
      self._torn = False
    status = os.fstat(descriptor)
    if status.st_size != size or not status.st_nlink:
      raise OSError(
        'the ledger was changed or removed by something else while it was being '
        f'written: it should have {size} bytes under its name.'
      )


def read(path: str, expected: Optional[Head] = None) -> Ledger:
  """Reads and verifies a ledger.

  Args:
    path: Where.
    expected: A head that the ledger had once, with which it must begin.

  Returns:
    What it says. A half line at the end is no error, but reported as `cut`.

  Raises:
    TypeError: If `expected` is not a number of lines and a text.
    ValueError: If a complete line is not an entry, or breaks one of the rules that the
      module states, and the message names the line; or if the ledger does not begin
      with the lines that are `expected`.
  """
  if expected is not None:
    expected = _check_head(expected)
  with open(path, 'rb') as file:
    return ledger_rules.Reading(path, file, expected).ledger


def checksum_of(arrays: Iterable[Any]) -> str:
  """SHA-256 of arrays: their types, shapes and values, bit by bit.

  Args:
    arrays: NumPy arrays, or what `np.asarray` makes some of, such as tensors.

  Raises:
    ValueError: If an array holds Python objects, or `arrays` is a single one.

  Example:
    >>> checksum_of([np.arange(3), np.zeros((2, 2), np.float32)])[:20]
    'sha256:...'
  """
  if isinstance(arrays, np.ndarray):
    raise ValueError('arrays must be a list of arrays; got a single one.')
  digest = hashlib.sha256()
  for array in map(np.asarray, arrays):
    if array.dtype.hasobject:
      raise ValueError(f'arrays must hold numbers; got one of {array.dtype}.')
    array = array.astype(array.dtype.newbyteorder('<'), copy=False)
    digest.update(f'{array.dtype.name}{list(array.shape)}:'.encode())
    digest.update(array.tobytes())
  return 'sha256:' + digest.hexdigest()


def _with_counts(values: dict[str, Any]) -> dict[str, Any]:
  """The fields of a line, of which counts may be NumPy's."""
  names = ('round', 'attempt', 'cohort_requested', 'cohort_reported', 'reporting_goal')
  return {
    name: checks.check_int(name, value, 0)
    if name in names and value is not None
    else value
    for name, value in values.items()
  }


def _now() -> str:
  return datetime.datetime.now(datetime.timezone.utc).isoformat()


def _check_head(head: Head) -> Head:
  """Returns what a checkpoint kept, if that can be a head."""
  if not (
    isinstance(head, tuple)
    and len(head) == 2
    and type(head[0]) is int
    and isinstance(head[1], str)
  ):
    raise TypeError(
      f'expected must be a ledger.Head(lines, sha256), as LedgerWriter.head is; got '
      f'{head!r}.'
    )
  return Head(*head)


def _open(path: str, new: bool) -> io.FileIO:
  flags = os.O_RDWR | os.O_APPEND | (os.O_CREAT | os.O_EXCL if new else 0)
  try:
    return io.FileIO(os.open(path, flags, 0o666), 'r+')
  except FileExistsError as e:
    raise FileExistsError(
      errno.EEXIST, 'a ledger is never overwritten; resume it or name another', path
    ) from e


def _lock(file: io.FileIO, path: str) -> None:
  try:
    folder_lock.take(file.fileno())
  except BlockingIOError as e:
    raise BlockingIOError(
      errno.EWOULDBLOCK, 'another writer has the ledger open', path
    ) from e


def _keep(path: str, cut: bytes) -> str:
  """Puts what was cut into a new file beside the ledger and returns its path."""
  for number in itertools.count(1):
    kept = f'{path}.cut-{number}'
    try:
      new_files.write_new(kept, cut)
    except FileExistsError:
      continue
    _sync_directory(kept)
    return kept
  raise AssertionError('unreachable')


def _sync_directory(path: str) -> None:
  """Waits until a new file's name is on disk as well."""
  directory = os.open(os.path.dirname(os.path.abspath(path)), os.O_RDONLY)
  try:
    os.fsync(directory)
  finally:
    os.close(directory)
