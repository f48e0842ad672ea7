"""The rules that the lines of a ledger keep together, and what they come to.

`ledger` states them, and writes and reads files by them.
"""

import collections
import dataclasses
import functools
import hashlib
import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, Optional

import dp_accounting

from tff_dp_aggregators.accounting import accountants
from tff_dp_aggregators.accounting import events
from tff_dp_aggregators.accounting.accountants import gaussian
from tff_dp_aggregators.accounting.records import ledger_entry
from tff_dp_aggregators.accounting.records.ledger_entry import AbortedAttempt
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
    """With one round more.

    Raises:
      ValueError: If it is neither Gaussian nor Laplace nor a sample of one, nor integer
        noise in shares, or not of the mechanism of those before it.
    """
    parts, rest = split(event)
    repeated = None
    if parts:
      repeated = parts[0] if len(parts) == 1 else dp_accounting.ComposedDpEvent(parts)
    try:
      mu = accountants.gdp_mu(rest)
    except dp_accounting.UnsupportedEventError as e:
      raise ValueError(
        'a ledger adds up Gaussian events, or has Laplace or integer noise, or '
        f'samples; got {event}; account for others with accountants.epsilon.'
      ) from e
    # Parts with both have both in their first round already.
    is_joint = self.is_joint or bool(self == Spent() and repeated is not None and mu)
    if repeated is not None and (
      self.repeated not in (None, repeated)
      or (not is_joint and (self.mu_squared or mu))
    ):
      raise ValueError(_mixed(event, self.repeated))
    if mu and self.repeated is not None and not is_joint:
      raise ValueError(_mixed(event, self.repeated))
    return Spent(
      self.mu_squared + mu * mu,
      self.repeated if repeated is None else repeated,
      is_joint,
    )

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


def is_repeated(event: dp_accounting.DpEvent) -> bool:
  """Whether it is the event of each round, and does not add up to one of its kind.

  Or of all rounds, if a client's are drawn together: they are in the first line.
  """
  if is_allocated(event):
    return True
  if isinstance(event, _SAMPLES):
    return isinstance(event.event, (dp_accounting.GaussianDpEvent, *_INDEPENDENT))
  return isinstance(event, _INDEPENDENT)


def is_drawn(event: dp_accounting.DpEvent) -> bool:
  """Whether a round's event rests on clients being drawn in secret.

  Args:
    event: Of a line.
  """
  kinds = (*_SAMPLES, events.AllocatedDpEvent, events.MixtureDpEvent)
  return any(isinstance(each, kinds) for each in accountants.nested(event))


def is_allocated(event: dp_accounting.DpEvent) -> bool:
  """Whether it is of rounds that each client draws before the first.

  Args:
    event: Of all rounds; or the part of it that they do not share.
  """
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
  """What is the same in each round, and what adds up, of a simplified event.

  Args:
    event: Of one round; of a joint mechanism it may have Laplace noise of some parts,
      and the Gaussian that the others are; of rounds drawn together, a Gaussian that
      all of them share.
  """
  if is_repeated(event):
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


def _mixed(
  event: dp_accounting.DpEvent, repeated: Optional[dp_accounting.DpEvent]
) -> str:
  before = 'Gaussian' if repeated is None else f'{repeated}'
  return (
    f'the event is {event}, and those before it are {before}: all rounds of a ledger '
    'are of one mechanism, sampled or not. Another one has its own ledger.'
  )


def check_stated(entry: LedgerEntry, spent: Spent) -> None:
  """Checks that the figures of an entry are what the events so far compose to.

  Raises:
    ValueError: If they are not.
  """
  if spent.repeated is not None:
    for name in ('effective_noise_multiplier', 'epsilon'):
      if getattr(entry, name) is not None:
        raise ValueError(
          f'{name} is {getattr(entry, name)}, but lines of sampled rounds, or of '
          'noise that is not Gaussian, state none.'
        )
    return
  stated, exact = entry.effective_noise_multiplier, spent.effective_noise_multiplier
  if stated is None or exact is None:
    right = stated == exact
  else:
    right = exact * (1 - _TOLERANCE) <= stated <= exact * (1 + _ROUND_OFF)
  if not right:
    raise ValueError(
      f'effective_noise_multiplier is {stated}, but the events of rounds 0 to '
      f'{entry.round} compose to {exact}.'
    )
  if not _is_epsilon(entry.epsilon, spent.mu, entry.delta):
    raise ValueError(
      f'epsilon is {entry.epsilon}, but the events of rounds 0 to {entry.round} '
      f'compose to {spent.epsilon(entry.delta)} at delta {entry.delta}.'
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
  spent: Spent = Spent()
  head: Head = Head()

  def after(self, entry: ledger_entry.Line, line: bytes, spent: Spent) -> 'State':
    """With one line more, which is checked already, and what is spent by then."""
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
  """The lines of a ledger file, read and verified; some attributes are as in `Ledger`.

  Attributes:
    entries: The rounds.
    aborted: Attempts at rounds that were aborted.
    repeated: Rounds that were run again.
    sha256: Of the file.
    spans: From where to where each line is in the file, but for repetitions.
    state: What all complete lines come to.
    cut: The half line at the end; empty if there is none.
  """

  def __init__(self, path: str, file: Iterable[bytes], expected: Optional[Head] = None):
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
      raise ValueError(f'{path}: {_not_expected(self.state.head.lines, expected)}')

  @property
  def ledger(self) -> Ledger:
    """What the file says."""
    return Ledger(
      entries=tuple(self.entries),
      aborted=tuple(self.aborted),
      repeated=tuple(self.repeated),
      cut=len(self.cut),
      sha256=self.sha256,
      head=self.state.head,
    )

  def _add(self, line: bytes) -> None:
    entry = ledger_entry.parse(line)
    state, spent = self.state, self.state.spent
    is_new = True
    if isinstance(entry, AbortedAttempt):
      check_next_attempt(state, entry)
      self.aborted.append(entry)
    elif entry.round < state.rounds:
      check_repetition(self.entries[entry.round], entry)
      self.repeated.append(entry.round)
      is_new = False
    else:
      check_next(state, entry)
      spent = spent.plus(entry.dp_event)
      check_stated(entry, spent)
      self.entries.append(entry)
    _check_chained(entry, state.head)
    self.state = state.after(entry, line, spent)
    if is_new:
      self.spans[key(entry)] = (state.size, self.state.size)


def key(entry: ledger_entry.Line) -> Key:
  """What a line is of."""
  return entry.round, entry.attempt if isinstance(entry, AbortedAttempt) else None


def check_next(state: State, entry: LedgerEntry) -> None:
  """Checks that the entry is of the next round and of round 0's mechanism.

  Raises:
    ValueError: If it is not.
  """
  first, rounds = state.first, state.rounds
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


def _check_chained(entry: ledger_entry.Line, head: Head) -> None:
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


def check_next_attempt(state: State, aborted: AbortedAttempt) -> None:
  """Checks that an attempt is the next one.

  Raises:
    ValueError: If it is not.
  """
  rounds, attempts = state.rounds, state.attempts
  if aborted.round < rounds:
    raise ValueError(
      f'an attempt at round {aborted.round} was aborted after that round was released: '
      'lines of attempts stand before that of their round. A round that is run again '
      'confirms them.'
    )
  if (aborted.round, aborted.attempt) != (rounds, attempts):
    raise ValueError(
      f'expected attempt {attempts} at round {rounds}, or that round; found attempt '
      f'{aborted.attempt} at round {aborted.round}.'
    )


def check_same_attempt(earlier: AbortedAttempt, again: AbortedAttempt) -> None:
  """Checks that an attempt of a round that is run again comes to the same.

  Raises:
    ValueError: If it does not.
  """
  changed = [
    f'{name}: {before} then, {now} now'
    for name, (before, now) in ledger_entry.changed(earlier, again).items()
  ]
  if changed:
    raise ValueError(
      f'attempt {again.attempt} at round {again.round} has a line with other content '
      f'({"; ".join(changed)}). Go on with the schedule that the run was begun with.'
    )


def total_event(entries: Sequence[ledger_entry.Line]) -> dp_accounting.DpEvent:
  """What rounds, and attempts that were aborted, spent together, as one event."""
  divided = [split(entry.dp_event) for entry in entries]
  samples = collections.Counter(part for parts, _ in divided for part in parts)
  counted = [dp_accounting.SelfComposedDpEvent(*sample) for sample in samples.items()]
  others = [rest for _, rest in divided]
  return events.simplify(dp_accounting.ComposedDpEvent([*counted, *others]))


def _not_expected(lines: int, expected: Head) -> str:
  if lines < expected.lines:
    return (
      f'the ledger has {lines} complete lines, but had {expected.lines} once: '
      f'{expected.lines - lines} were removed from its end. What they spent is spent; '
      'find the ledger that has them.'
    )
  return (
    f'its first {expected.lines} lines are not those that were there once, whose last '
    f'had the SHA-256 {expected.sha256}: something was changed, or it is another '
    'ledger.'
  )


def check_schedule(ledger: Ledger, schedule: Any) -> None:
  """Refuses a ledger whose attempts are not those of a schedule.

  Args:
    ledger: The ledger of a run.
    schedule: JSON-ready values of its schedule. They have the reporting goal: who
      missed it was aborted, and who reached it was not. Those of a file have none, and
      say nothing. Which clients report in which attempt follows from the schedule's
      seed; `learning.runs.attempts` compares that.

  Raises:
    ValueError: If they are not; the message names round and attempt.
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
