"""The ledger: one JSON line per round, written before the round's result is used.

A line says what ran (the round's privacy event), on how many clients, with which clip
norm, noise and strategy, what was released (its checksum), and what had been spent by
then. It never holds a seed, nor noise that was not released; of a seed, a tag that is
slow to try (`tag_of_seed`). Of cohorts that were drawn in secret it need not have the
sizes, which are of who was drawn. Attempts at a round that were aborted have lines of
their own (`AbortedAttempt`), which spend nothing.

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

import collections
import dataclasses
import datetime
import errno
import functools
import hashlib
import io
import itertools
import logging
import math
import os
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, Optional

import dp_accounting
import numpy as np

from tff_dp_aggregators.accounting import accountants
from tff_dp_aggregators.accounting import events
from tff_dp_aggregators.accounting.accountants import gaussian
from tff_dp_aggregators.accounting.records import ledger_entry
from tff_dp_aggregators.accounting.records.ledger_entry import AbortedAttempt
from tff_dp_aggregators.accounting.records.ledger_entry import Head
from tff_dp_aggregators.accounting.records.ledger_entry import LedgerEntry
from tff_dp_aggregators.base import checks
from tff_dp_aggregators.base import folder_lock
from tff_dp_aggregators.base import new_files

SECRET, SEED, FILE = ledger_entry.SECRET, ledger_entry.SEED, ledger_entry.FILE
GUESSABLE, tag_of_seed = ledger_entry.GUESSABLE, ledger_entry.tag_of_seed
_logger = logging.getLogger(__name__)
# What is the same in all rounds.
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
_COUNTS = (
  'round',
  'attempt',
  'cohort_requested',
  'cohort_reported',
  'reporting_goal',
)
_SAMPLES = (
  dp_accounting.PoissonSampledDpEvent,
  dp_accounting.SampledWithoutReplacementDpEvent,
)
# Noise that is not Gaussian.
_INDEPENDENT = (dp_accounting.LaplaceDpEvent, *events.INTEGER_NOISE)
# Stated figures may be this much above what the events compose to, relative,
_TOLERANCE = 1e-9
# and below by what this much of mu amounts to: another summation order, another libm.
_ROUND_OFF = 1e-12


class Spent(NamedTuple):
  """What the rounds so far released together: one Gaussian, or an event repeated.

  Attributes:
    mu_squared: The sum of the squares of the rounds' mu, if they are Gaussians.
    repeated: The event of a round, if rounds are samples or their noise is not
      Gaussian, or that of all of them, if the rounds of a client are drawn together;
      what they come to is the report's.
    is_joint: Whether there are both, as parts have noise of several kinds.
  """

  mu_squared: float = 0.0
  repeated: Optional[dp_accounting.DpEvent] = None
  is_joint: bool = False

  def plus(self, event: dp_accounting.DpEvent) -> 'Spent':
    """With one round more, or ValueError if it is not of the same mechanism."""
    parts, rest = split(event)
    try:
      mu = accountants.gdp_mu(rest)
    except dp_accounting.UnsupportedEventError as e:
      raise ValueError(
        'a ledger adds up Gaussian events, or has Laplace or integer noise, or '
        f'samples; got {event}; account for others with accountants.epsilon.'
      ) from e
    repeated = self.repeated
    if parts:
      repeated = parts[0] if len(parts) == 1 else dp_accounting.ComposedDpEvent(parts)
    # Parts with both have both in their first round already.
    is_joint = self.is_joint or bool(self == Spent() and parts and mu)
    is_other = self.repeated not in (None, repeated)
    has_both = repeated is not None and (self.mu_squared or mu)
    if is_other or (has_both and not is_joint):
      before = 'Gaussian' if self.repeated is None else f'{self.repeated}'
      raise ValueError(
        f'the event is {event}, and those before it are {before}: all rounds of a '
        'ledger are of one mechanism, sampled or not. Another one has its own ledger.'
      )
    return Spent(self.mu_squared + mu * mu, repeated, is_joint)

  @property
  def mu(self) -> float:
    """Of the Gaussian, as in mu-Gaussian-DP."""
    return math.sqrt(self.mu_squared)

  @property
  def effective_noise_multiplier(self) -> Optional[float]:
    """As a line states it: `None` if infinite, or if an event is repeated."""
    if self.repeated is not None:
      return None
    return _finite(1 / self.mu if self.mu_squared else math.inf)

  def epsilon(self, delta: float) -> Optional[float]:
    """As a line states it: `None` if infinite, or if an event is repeated."""
    if self.repeated is not None:
      return None
    return _finite(gaussian.epsilon_of(self.mu, delta))

  def check_stated(self, entry: LedgerEntry) -> None:
    """Checks that the figures of an entry are what the events so far compose to."""
    if self.repeated is not None:
      for name in ('effective_noise_multiplier', 'epsilon'):
        if getattr(entry, name) is not None:
          raise ValueError(
            f'{name} is {getattr(entry, name)}, but lines of sampled rounds, or of '
            'noise that is not Gaussian, state none.'
          )
      return
    stated, exact = entry.effective_noise_multiplier, self.effective_noise_multiplier
    if stated is None or exact is None:
      right = stated == exact
    else:
      right = exact * (1 - _TOLERANCE) <= stated <= exact * (1 + _ROUND_OFF)
    if not right:
      raise ValueError(
        f'effective_noise_multiplier is {stated}, but the events of rounds 0 to '
        f'{entry.round} compose to {exact}.'
      )
    if not _is_epsilon(entry.epsilon, self.mu, entry.delta):
      raise ValueError(
        f'epsilon is {entry.epsilon}, but the events of rounds 0 to {entry.round} '
        f'compose to {self.epsilon(entry.delta)} at delta {entry.delta}.'
      )


@functools.lru_cache(maxsize=16)  # Many rounds add nothing to the worst case.
def _is_epsilon(stated: Optional[float], mu: float, delta: float) -> bool:
  """Whether `stated` is `gaussian.epsilon_of`, without inverting the curve."""
  if stated is None or mu == 0 or math.isinf(mu):
    return stated == _finite(gaussian.epsilon_of(mu, delta))
  lower_mu, lower = mu * (1 - _ROUND_OFF), stated * (1 - _TOLERANCE)
  enough = gaussian.delta_of(lower_mu, stated) <= delta
  tight = gaussian.delta_of(mu, lower) > delta
  # Where the curve is flat its inverse has the last word.
  return (enough or stated >= gaussian.epsilon_of(lower_mu, delta)) and (
    tight or stated <= gaussian.epsilon_of(mu, delta) * (1 + _TOLERANCE)
  )


def _finite(value: float) -> Optional[float]:
  """JSON has no infinity: no number stands for it."""
  return value if value != math.inf else None


def is_drawn(event: dp_accounting.DpEvent) -> bool:
  """Whether a round's event rests on clients being drawn in secret."""
  kinds = (*_SAMPLES, events.AllocatedDpEvent, events.MixtureDpEvent)
  return any(isinstance(each, kinds) for each in accountants.nested(event))


def is_allocated(event: dp_accounting.DpEvent) -> bool:
  """Whether it is of all rounds, which each client draws before the first."""
  if isinstance(event, events.MixtureDpEvent):
    return True
  if isinstance(event, dp_accounting.SelfComposedDpEvent):
    event = event.event
  return isinstance(event, events.AllocatedDpEvent) and isinstance(
    event.event, dp_accounting.GaussianDpEvent
  )


def split(
  event: dp_accounting.DpEvent,
) -> tuple[list[dp_accounting.DpEvent], dp_accounting.DpEvent]:
  """What is repeated in each round, and what adds up, of a round's simplified event.

  Laplace and integer noise and samples do not add up to one event of their kind; nor
  do rounds that are drawn together, all of which are in the first line. Beside them a
  joint mechanism has the Gaussian of its other parts, and rounds that are drawn
  together one that all of them share.
  """
  noise = event.event if isinstance(event, _SAMPLES) else event
  gaussian_too = (dp_accounting.GaussianDpEvent,) if noise is not event else ()
  if is_allocated(event) or isinstance(noise, (*_INDEPENDENT, *gaussian_too)):
    return [event], dp_accounting.NoOpDpEvent()
  if not isinstance(event, dp_accounting.ComposedDpEvent):
    return [], event
  apart = [
    each
    for each in event.events
    if isinstance(each, dp_accounting.LaplaceDpEvent) or is_allocated(each)
  ]
  rest = [each for each in event.events if each not in apart]
  return apart, dp_accounting.ComposedDpEvent(rest)


def total_event(entries: Sequence[ledger_entry.Line]) -> dp_accounting.DpEvent:
  """What rounds, and attempts that were aborted, spent together, as one event."""
  divided = [split(entry.dp_event) for entry in entries]
  samples = collections.Counter(part for parts, _ in divided for part in parts)
  counted = [dp_accounting.SelfComposedDpEvent(*sample) for sample in samples.items()]
  others = [rest for _, rest in divided]
  return events.simplify(dp_accounting.ComposedDpEvent([*counted, *others]))


@dataclasses.dataclass(frozen=True)
class Ledger:
  """What a ledger file says, verified.

  Attributes:
    entries: One per round, in order; of a round released again, the first.
    repeated: The rounds released again, in the order of their lines.
    cut: Length in bytes of the half line at the end; 0 if there is none.
    sha256: Of the whole file, as `sha256sum` prints it.
    head: Of the complete lines.
    aborted: Attempts at rounds that were aborted, in order.
  """

  entries: tuple[LedgerEntry, ...]
  repeated: tuple[int, ...]
  cut: int
  sha256: str
  head: Head
  aborted: tuple[AbortedAttempt, ...] = ()

  @property
  def total_event(self) -> dp_accounting.DpEvent:
    """What all rounds and aborted attempts spent together, as one event."""
    return total_event([*self.entries, *self.aborted])


class _State(NamedTuple):
  """How many lines there are, and what they come to.

  Attributes:
    size: Their length in bytes.
    head: Of all lines.
    rounds: Rounds released, each counted once.
    aborted: Aborted attempts at all rounds.
    last_round: Of the last line; before an aborted attempt's round.
    spent: What all rounds spent.
  """

  size: int = 0
  head: Head = Head()
  rounds: int = 0
  aborted: int = 0
  last_round: int = -1
  spent: Spent = Spent()


class _Lines:
  """The complete lines of a ledger, and the rules that they keep together.

  A line counts from the assignment of `state` on: an interrupt comes before it or
  after. What the lists have beyond the state's counts is not in the ledger.
  """

  def __init__(self) -> None:
    self.entries: list[LedgerEntry] = []
    self.aborted: list[AbortedAttempt] = []
    self.repeated: list[int] = []
    self.state = _State()

  @property
  def attempts(self) -> int:
    """Aborted attempts at the round that comes next."""
    last = self.aborted[self.state.aborted - 1] if self.state.aborted else None
    return last.attempt + 1 if last and last.round == self.state.rounds else 0

  def drop_uncounted(self) -> None:
    """Drops what was added before an interrupt, and never counted."""
    _, head, rounds, aborted, *_ = self.state
    del self.entries[rounds:], self.aborted[aborted:]
    del self.repeated[head.lines - rounds - aborted :]

  def after(self, entry: ledger_entry.Line, line: bytes) -> _State:
    """The state with one line more, or ValueError if it breaks a rule."""
    state = self.state
    then = state._replace(
      size=state.size + len(line), head=state.head.after(line), last_round=entry.round
    )
    if isinstance(entry, AbortedAttempt):
      self._check_next_attempt(entry)
      then = then._replace(aborted=state.aborted + 1, last_round=entry.round - 1)
    elif entry.round < state.rounds:
      _check_repetition(self.entries[entry.round], entry)
    else:
      self._check_next(entry)
      spent = state.spent.plus(entry.dp_event)
      spent.check_stated(entry)
      then = then._replace(rounds=state.rounds + 1, spent=spent)
    if entry.previous_line_sha256 != state.head.sha256:
      before = 'the line before has'
      if not state.head.lines:
        before = 'nothing comes before, which has'
      raise ValueError(
        f'previous_line_sha256 is {entry.previous_line_sha256}, but {before} '
        f'{state.head.sha256}: a line was changed, removed or inserted.'
      )
    return then

  def add(self, entry: ledger_entry.Line, then: _State) -> None:
    """Adds a line that is written, with the state after it."""
    if isinstance(entry, AbortedAttempt):
      self.aborted.append(entry)
    elif then.rounds > self.state.rounds:
      self.entries.append(entry)
    else:
      self.repeated.append(entry.round)
    self.state = then

  def _check_next(self, entry: LedgerEntry) -> None:
    """Checks that the entry is of the next round and of round 0's mechanism."""
    rounds = self.state.rounds
    if entry.round != rounds:
      raise ValueError(
        f'expected round {rounds}, or an earlier one released again; found round '
        f'{entry.round}.'
      )
    for name in _CONSTANT if rounds else ():
      value, was = getattr(entry, name), getattr(self.entries[0], name)
      if value != was:
        raise ValueError(
          f'{name} is {value!r} in round {rounds} and was {was!r} in round 0; another '
          'mechanism has its own ledger.'
        )

  def _check_next_attempt(self, aborted: AbortedAttempt) -> None:
    rounds, attempts = self.state.rounds, self.attempts
    if aborted.round < rounds:
      raise ValueError(
        f'an attempt at round {aborted.round} was aborted after that round was '
        'released: lines of attempts stand before that of their round. A round that is '
        'run again confirms them.'
      )
    if (aborted.round, aborted.attempt) != (rounds, attempts):
      raise ValueError(
        f'expected attempt {attempts} at round {rounds}, or that round; found attempt '
        f'{aborted.attempt} at round {aborted.round}.'
      )


def _check_repetition(earlier: LedgerEntry, again: LedgerEntry) -> None:
  """Checks that a round that is released again shows nothing new."""
  changed = ledger_entry.changed(earlier, again)
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


def _read(
  path: str, file: Iterable[bytes], expected: Optional[Head]
) -> tuple[_Lines, bytes, str]:
  """The complete lines of a file, the half one at its end, and the SHA-256 of all."""
  lines, cut, digest = _Lines(), b'', hashlib.sha256()
  once = Head()  # The head when there were as many lines as expected.
  for number, line in enumerate(file, start=1):
    digest.update(line)
    if not line.endswith(b'\n'):
      cut = line
      break
    try:
      entry = ledger_entry.parse(line)
      lines.add(entry, lines.after(entry, line))
    except ValueError as e:
      raise ValueError(f'{path}, line {number}: {e}') from e
    if expected is not None and number == expected.lines:
      once = lines.state.head
  if expected is not None and once != expected:
    found = lines.state.head.lines
    if found < expected.lines:
      raise ValueError(
        f'{path}: the ledger has {found} complete lines, but had {expected.lines} '
        f'once: {expected.lines - found} were removed from its end. What they spent is '
        'spent; find the ledger that has them.'
      )
    raise ValueError(
      f'{path}: its first {expected.lines} lines are not those that were there once, '
      f'whose last had the SHA-256 {expected.sha256}: something was changed, or it is '
      'another ledger.'
    )
  return lines, cut, digest.hexdigest()


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
      BlockingIOError: If another writer has the ledger open.
      ValueError: If `delta` is not between 0 and 1 or not the ledger's, or `read`
        refuses the ledger or it is not the `expected` one. It is left as it is.
    """
    self._delta = gaussian.check_delta(delta)
    if expected is not None:
      if not resume:
        raise ValueError('expected is for resume=True; a new ledger has no lines yet.')
      expected = _check_head(expected)
    self._lines = _Lines()
    self._path = os.path.abspath(path)
    self._torn = False  # Whether there may be something after the complete lines.
    self.recovered: Optional[str] = None
    flags = os.O_RDWR | os.O_APPEND | (0 if resume else os.O_CREAT | os.O_EXCL)
    try:
      self._file = io.FileIO(os.open(path, flags, 0o666), 'r+')
    except FileExistsError as e:
      never = 'a ledger is never overwritten; resume it or name another'
      raise FileExistsError(errno.EEXIST, never, path) from e
    try:
      folder_lock.take(self._file.fileno())
      if resume:
        self._take_up(path, expected)
      else:
        new_files.sync(os.path.dirname(os.path.abspath(path)))
    except BaseException as e:
      self.close()
      if isinstance(e, BlockingIOError):
        why = 'another writer has the ledger open'
        raise BlockingIOError(errno.EWOULDBLOCK, why, path) from e
      raise

  @property
  def rounds(self) -> int:
    """Rounds released so far, each counted once."""
    return self._lines.state.rounds

  @property
  def head(self) -> Head:
    """Of the lines so far; a checkpoint that keeps it can tell that none is lost."""
    return self._lines.state.head

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
      round = self._lines.state.last_round + 1
    entry = self._entry_of(round=round, **what)
    self._commit(entry)
    return entry

  def append_aborted(self, **what: Any) -> AbortedAttempt:
    """Writes the line of an aborted attempt and waits until it is on disk.

    The round's own line comes after those of its aborted attempts. Errors are those of
    `append`.

    Args:
      **what: `round`, `attempt`, `cohort_requested`, `cohort_reported` and
        `reporting_goal` of `AbortedAttempt`.

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
    self._commit(aborted)
    return aborted

  def confirm_aborted(self, **what: Any) -> AbortedAttempt:
    """Returns the line of an attempt at a round run again, if it says `what`."""
    again = self._aborted_of(**what)
    earlier = self._aborted_at(again.round)
    if again.attempt >= len(earlier):
      raise ValueError(
        f'attempt {again.attempt} at round {again.round} has no line; the ledger has '
        f'{len(earlier)} aborted attempts at that round, and {self.rounds} rounds.'
      )
    then = earlier[again.attempt]
    changed = [
      f'{name}: {before} then, {now} now'
      for name, (before, now) in ledger_entry.changed(then, again).items()
    ]
    if changed:
      raise ValueError(
        f'attempt {again.attempt} at round {again.round} has a line with other content '
        f'({"; ".join(changed)}). Go on with the schedule that the run was begun with.'
      )
    return then

  def aborted_attempts(self, round: int) -> int:
    """How many aborted attempts at a round, released already or not, have a line."""
    return len(self._aborted_at(checks.check_int('round', round, 0)))

  def _aborted_at(self, round: int) -> list[AbortedAttempt]:
    counted = self._lines.aborted[: self._lines.state.aborted]
    return [each for each in counted if each.round == round]

  def _aborted_of(self, **what: Any) -> AbortedAttempt:
    """The next line for an attempt."""
    return AbortedAttempt(
      **_plain(what),
      event=dict(ledger_entry.NOTHING),
      time=_now(),
      previous_line_sha256=self.head.sha256,
    )

  def confirm(self, *, round: int, **what: Any) -> LedgerEntry:
    """Returns the first line of a round that is run again, if it says `what`.

    Nothing is written: a run that resumes from a checkpoint before its last line leaves
    the ledger of one that was never interrupted. If the round was released with other
    content, it is a ValueError: its noise would cover two data sets, and the result
    must not be used.
    """
    if checks.check_int('round', round, 0) >= self.rounds:
      raise ValueError(
        f'round {round} has no line yet; the ledger has {self.rounds} rounds. Append '
        'it.'
      )
    earlier = self._lines.entries[round]
    _check_repetition(earlier, self._entry_of(round=round, **what))
    return earlier

  def _entry_of(self, *, event: dp_accounting.DpEvent, **what: Any) -> LedgerEntry:
    """The next line for a round, with what is spent by then."""
    given, written = _plain(what), events.to_json(event)
    if given['round'] < self.rounds:
      earlier = self._lines.entries[given['round']]
      figures = (earlier.effective_noise_multiplier, earlier.epsilon)
    else:
      spent = self._lines.state.spent.plus(events.from_json(written))
      figures = (spent.effective_noise_multiplier, spent.epsilon(self._delta))
    return LedgerEntry(
      **given,
      event=written,
      effective_noise_multiplier=figures[0],
      epsilon=figures[1],
      delta=self._delta,
      time=_now(),
      previous_line_sha256=self.head.sha256,
    )

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
      lines, cut, _ = _read(path, file, expected)
    first = lines.entries[0] if lines.entries else None
    if first is not None and first.delta != self._delta:
      raise ValueError(
        f'delta is {self._delta}, but {path} has epsilons at {first.delta}; resume it '
        'with that delta.'
      )
    self._lines = lines
    if cut:
      self.recovered = _keep(path, cut)
      self._torn = True
      self._mend()
      _logger.warning(
        '%s ended in the middle of a line, whose %d bytes are now in %s. The last '
        'complete line of a round is of round %d.',
        path,
        len(cut),
        self.recovered,
        lines.state.last_round,
      )

  def _commit(self, entry: ledger_entry.Line) -> None:
    """Writes the line, if it keeps the rules, and only then counts it."""
    line = ledger_entry.write(entry)
    then = self._lines.after(entry, line)
    self._torn = True
    try:
      written = 0
      while written < len(line):  # A full disk takes a part.
        written += os.write(self._file.fileno(), line[written:])
      os.fsync(self._file.fileno())
      self._lines.add(entry, then)
    except BaseException:
      try:
        self._mend()
      except OSError:
        pass  # The next append tries again; a resuming one finds a half line.
      raise
    self._torn = False

  def _mend(self) -> None:
    """Takes back what a failed write left; finds what others did to the file."""
    descriptor, size = self._file.fileno(), self._lines.state.size
    if self._torn:
      self._lines.drop_uncounted()
      os.ftruncate(descriptor, size)
      os.fsync(descriptor)
      self._torn = False
    status = os.fstat(descriptor)
    try:
      is_there = os.path.samestat(status, os.stat(self._path))
    except FileNotFoundError:
      is_there = False
    if status.st_size != size or not is_there:
      raise OSError(
        'the ledger was changed, moved or removed by something else while it was being '
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
    ValueError: If a complete line is not an entry, or breaks one of the rules that the
      module states, and the message names the line; or if the ledger does not begin
      with the lines that are `expected`.
  """
  if expected is not None:
    expected = _check_head(expected)
  with open(path, 'rb') as file:
    lines, cut, sha256 = _read(path, file, expected)
  return Ledger(
    entries=tuple(lines.entries),
    repeated=tuple(lines.repeated),
    cut=len(cut),
    sha256=sha256,
    head=lines.state.head,
    aborted=tuple(lines.aborted),
  )


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


def _plain(values: dict[str, Any]) -> dict[str, Any]:
  """The fields of a line, of which numbers may be NumPy's."""
  plain = dict(values)
  for name, value in values.items():
    if name in _COUNTS and value is not None:
      plain[name] = checks.check_int(name, value, 0)
    if name in ('clip_norm', 'noise_multiplier') and value is not None:
      plain[name] = float(checks.check_number(name, value))
  return plain


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


def _keep(path: str, cut: bytes) -> str:
  """Puts what was cut into a new file beside the ledger and returns its path."""
  for number in itertools.count(1):
    kept = f'{path}.cut-{number}'
    try:
      new_files.write_new(kept, cut)
    except FileExistsError:
      continue
    new_files.sync(os.path.dirname(os.path.abspath(kept)))
    return kept
  raise AssertionError('unreachable')


def check_schedule(ledger: Ledger, schedule: Any) -> None:
  """Refuses a ledger whose attempts are not those of a schedule.

  The values of the schedule, JSON-ready, have the reporting goal: who missed it was
  aborted, and who reached it was not. Those of a file have none, and say nothing. Which
  clients report in which attempt follows from the schedule's seed;
  `learning.runs.attempts` compares that.
  """
  if not isinstance(schedule, dict) or 'reporting_goal' not in schedule:
    return
  goal = schedule['reporting_goal']
  for aborted in ledger.aborted:
    if goal is None or aborted.reporting_goal != goal:
      raise ValueError(
        f'the ledger has an aborted attempt {aborted.attempt} at round '
        f'{aborted.round} with the reporting goal {aborted.reporting_goal}, but that '
        f'of the schedule is {goal}: they are not of the same run.'
      )
  for entry in ledger.entries if goal is not None else ():
    if entry.cohort_reported is not None and entry.cohort_reported < goal:
      raise ValueError(
        f'in round {entry.round} of the ledger {entry.cohort_reported} clients '
        f'reported, but the reporting goal of the schedule is {goal}: the attempt '
        'should have been aborted.'
      )
