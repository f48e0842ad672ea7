"""Workers that share the packs of a round.

Workers take packs when they are free, as `shares` deals them out, so fast ones train
more. Packs whose worker is lost go to others, and so do those that take far longer than
others while somebody is free. A pack whose training fails goes to another worker as
well: if it fails there too, that is the training's error, and if not, the first
worker's, which is left alone for a while.
"""

import collections
import contextlib
import functools
import itertools
import math
import secrets
import statistics
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Callable, NamedTuple, Optional

import numpy as np

from tff_dp_aggregators.base import machine as machine_lib
from tff_dp_aggregators.learning import failures
from tff_dp_aggregators.learning import runtime
from tff_dp_aggregators.learning.remote import connection
from tff_dp_aggregators.learning.remote import job as job_lib
from tff_dp_aggregators.learning.remote import member as member_lib
from tff_dp_aggregators.learning.remote import seats as seats_lib
from tff_dp_aggregators.learning.remote import shares
from tff_dp_aggregators.workers import group

# How long a worker that says it is well may take for packs: for the first ones as long
# as a round may take; then as many times what others took, and at least so long.
_LONGEST_TIMES, _SHORTEST_LIMIT_SECONDS = 20, 600.0
# Of the first ones, before a second worker is given them.
_LATE_AT_FIRST_SECONDS = 600.0
# When packs are given to a second worker: times what others took, and at least.
_LATE_TIMES, _LATE_SECONDS = 4, 1.0
_TICK_SECONDS, _SHORTEST_WAIT_SECONDS = 0.25, 0.001
# So many workers that end while they have a pack, and it is the pack that ends them.
_MOST_LOST = 8
_RECRUIT_SECONDS = 10.0
_PARTING_SECONDS = 5.0
_NOT_YET = 'cannot be used yet'
_FAILED_ALONE = 'a pack failed on it that did not fail on another worker'
_PACES = 64


class NoWorkersError(RuntimeError):
  """No worker can be reached; the message says why of each."""


class _Round(NamedTuple):
  """What workers are at; under the crew's lock.

  Attributes:
    number: Of the round, among all of all runs.
    broadcast: What all packs are told.
    packs: Rows of each.
    dealing: Who has which.
    arrived: What is to be added up, of some packs each.
  """

  number: int
  broadcast: bytes
  packs: Sequence[np.ndarray]
  dealing: shares.Dealing
  arrived: collections.deque[tuple[tuple[int, ...], list[np.ndarray]]]


class Crew:
  """Workers, and the round that they are at.

  Attributes:
    timeout_seconds: How long a worker may take to say how it is.
    job: What they compute.
    traffic: Bytes sent to them, and received.
    given_again: How many packs were given to somebody after somebody else had them.
  """

  def __init__(
    self,
    workers: group.Workers,
    job: job_lib.Job,
    *,
    say: Callable[[str], None],
    round_seconds: Optional[float] = None,
  ):
    """Prepares it; `with` begins.

    Args:
      workers: Who they are.
      job: What they compute.
      say: Tells whoever runs this what happens to them.
      round_seconds: How long the packs of a round may take; `None` for no limit.
    """
    self._workers, self.job, self._say = workers, job, say
    self._round_seconds = round_seconds
    self.timeout_seconds = workers.timeout_seconds
    self.traffic = connection.Traffic()
    self.given_again = 0
    self._changed = threading.Condition()
    self._members: dict[str, member_lib.Member] = {}
    self._in_use: set[member_lib.Member] = set()
    self._told: dict[str, str] = {}
    self._round: Optional[_Round] = None
    self._numbers = itertools.count(secrets.randbits(31))
    self._paces: collections.deque[float] = collections.deque(maxlen=_PACES)
    self._broken: Optional[BaseException] = None
    self._notes: list[str] = []
    self._over = threading.Event()
    self._stack = contextlib.ExitStack()

  def __enter__(self) -> 'Crew':
    try:
      seats = self._stack.enter_context(seats_lib.of(self._workers))
      self._stack.callback(self._end)
      self._seats = seats
      self._seat(seats.now())
      threading.Thread(target=self._recruit, daemon=True).start()
    except BaseException:
      self._stack.close()
      raise
    return self

  def __exit__(self, *unused: Any) -> None:
    self._stack.close()

  def _end(self) -> None:
    self._over.set()
    with self._changed:
      members = list(self._members.values())
    for member in members:
      member.end()
    self.wake()
    deadline = time.monotonic() + _PARTING_SECONDS
    for member in members:
      member.join(max(0.0, deadline - time.monotonic()))

  def _recruit(self) -> None:
    """Takes in workers that come to a name later, and lets go of those that left it."""
    while not self._over.wait(_RECRUIT_SECONDS):
      self._seat(self._seats.now())

  def _seat(self, seats: list[seats_lib.Seat]) -> None:
    left = []
    with self._changed:
      if self._over.is_set():
        return
      for seat in seats:
        if seat.name not in self._members:
          self._members[seat.name] = member_lib.Member(
            seat.name,
            functools.partial(seat.connect, self.traffic),
            self,
            parallel=seat.parallel,
          )
      names = {seat.name for seat in seats}
      for name, member in list(self._members.items()):
        if name not in names and not member.is_ready:
          left.append(self._members.pop(name))
    for member in left:
      member.end()

  def results(
    self, broadcast: bytes, packs: Sequence[np.ndarray]
  ) -> Iterator[tuple[tuple[int, ...], list[np.ndarray]]]:
    """Has a round's packs trained.

    Args:
      broadcast: What all of them are told.
      packs: Rows of each, which may be made anew whenever they are asked for.

    Yields:
      Numbers of some packs, and what `Job.parse` made of the answer for them; each pack
      once, in any order.

    Raises:
      ComputationError: If one fails on two workers, or twice on the only one there is.
      NoWorkersError: If there is no worker for longer than they may be missing.
      RoundTimeoutError: If it takes longer than a round may.
    """
    clients, examples = zip(*((len(rows), int(rows[:, 1].sum())) for rows in packs))
    dealing = shares.Dealing(
      clients, examples, self.job.bytes_of_example, self.job.bytes_apart()
    )
    with self._changed:
      this_round = _Round(
        next(self._numbers), broadcast, packs, dealing, collections.deque()
      )
      self._round = this_round
      self._changed.notify_all()
    waiting = _Waiting()
    try:
      while (arrived := self._wait_for(this_round, waiting)) is not None:
        yield arrived
    finally:
      with self._changed:
        self._round = None
        self.given_again += dealing.given_again
        self._changed.notify_all()

  def _wait_for(
    self, this_round: _Round, waiting: '_Waiting'
  ) -> Optional[tuple[tuple[int, ...], list[np.ndarray]]]:
    with self._changed:
      while not this_round.arrived:
        if this_round.dealing.is_done:
          return None
        if self._broken is not None:
          raise self._broken
        self._changed.wait(_TICK_SECONDS)
        waiting.tick(any(member.is_ready for member in self._members.values()))
        self._check(waiting)
      return this_round.arrived.popleft()

  def _check(self, waiting: '_Waiting') -> None:
    limit = self._round_seconds
    if limit is not None and waiting.seconds > limit:
      raise runtime.RoundTimeoutError(
        f'the packs of a round took longer than timeout_seconds={limit:g}; nothing of '
        'the round was kept. If it may take longer, give a larger timeout_seconds; if '
        'not, see what the workers are at.'
      )
    if waiting.without_workers > self._workers.patience_seconds:
      reasons = '; '.join(
        [f'{member.name}: {member.reason}' for member in self._members.values()]
        + [f'{host} stands for no address' for host in self._seats.unknown()]
      )
      raise NoWorkersError(
        'there has been no worker to train on for '
        f'{self._workers.patience_seconds:g} s ({reasons}). '
        'Nothing of the round was kept, and the rounds before it are. Start '
        'tff-dp-worker where workers= (--workers) says, or correct hosts and ports '
        'there, and go on with the same run directory.'
      )

  def take(
    self, member: member_lib.Member, over: threading.Event
  ) -> Optional[member_lib.Task]:
    """Waits for packs; `None` once the worker is lost, or the round has failed.

    Args:
      member: Whose they are to be.
      over: Is set when the worker is lost; `wake` then.
    """
    dealt = self._deal(member, over)
    if dealt is None:
      return None
    this_round, share = dealt
    label = [this_round.number, share.packs[0], secrets.randbits(62)]
    try:
      packs = [this_round.packs[pack] for pack in share.packs]
    except Exception as e:  # No memory, say: not to be waited for without end.
      self.break_off(e)
      return None
    return member_lib.Task(
      np.array(label, np.int64), this_round.broadcast, packs, share
    )

  def _deal(
    self, member: member_lib.Member, over: threading.Event
  ) -> Optional[tuple[_Round, shares.Share]]:
    with self._changed:
      while not over.is_set():
        this_round, seconds = self._round, None
        if this_round is not None:
          dealing, worker = this_round.dealing, member.worker
          ready = {each.worker for each in self._members.values() if each.is_ready}
          share = dealing.next(worker, ready, self._late_seconds)
          if share is not None:
            return this_round, share
          # Neither late packs nor the end of one that it has make a noise.
          until = dealing.seconds_until_next(worker)
          if 0 < until < _TICK_SECONDS:
            seconds = max(_SHORTEST_WAIT_SECONDS, until)
          else:
            seconds = _TICK_SECONDS
        self._changed.wait(seconds)
    return None

  def _late_seconds(self, work: float) -> float:
    if not self._paces:
      return _LATE_AT_FIRST_SECONDS
    usual = work * statistics.median(self._paces)
    return max(_LATE_SECONDS, _LATE_TIMES * usual)

  def longest_seconds(self, work: float) -> float:
    """How long packs may take before their worker is given up.

    Args:
      work: How much they are to train: `Share.work`.
    """
    if not self._paces:
      return math.inf if self._round_seconds is None else self._round_seconds
    return max(_SHORTEST_LIMIT_SECONDS, _LONGEST_TIMES * work * max(self._paces))

  def done(
    self,
    task: member_lib.Task,
    member: member_lib.Member,
    sums: list[np.ndarray],
    seconds: float,
  ) -> None:
    """Takes what packs came to.

    Args:
      task: The packs.
      member: Who trained them.
      sums: Their sums.
      seconds: How long that took.
    """
    with self._changed:
      this_round = self._of(task)
      self._paces.append(member.worker.took(task.share, seconds))
      if this_round is not None:
        if this_round.dealing.counts(task.share):
          this_round.arrived.append((task.share.packs, sums))
        blamed = set(this_round.dealing.blamed(task.share))
        for other in self._members.values():
          if other.worker in blamed:
            other.distrust(_FAILED_ALONE)
      self._changed.notify_all()

  def give_back(self, task: member_lib.Task, member: member_lib.Member) -> None:
    """Takes packs back whose worker was lost.

    Args:
      task: The packs.
      member: Who had them.
    """
    with self._changed:
      this_round = self._of(task)
      if this_round is not None:
        if this_round.dealing.lost(task.share) >= _MOST_LOST:
          clients = max(map(len, task.packs))
          self._broken = runtime.WorkerError(
            f'{_MOST_LOST} times a worker was lost while it trained a pack of '
            f'{clients} clients, lately {member.name}: {member.reason}. That mostly '
            'means that memory runs out: give workers more of it, or take a smaller '
            'model, or fewer clients a round.'
          )
      self._changed.notify_all()

  def failed(
    self,
    task: member_lib.Task,
    member: member_lib.Member,
    error: failures.ComputationError,
  ) -> None:
    """Takes packs back whose training failed; the second time it is an error.

    The second time is with another worker, as long as there is one.

    Args:
      task: The packs.
      member: Who trained them.
      error: Why.
    """
    with self._changed:
      this_round = self._of(task)
      if this_round is not None:
        if this_round.dealing.failed(task.share) > 1:
          self._broken = error
        elif this_round.dealing.failed_alone(task.share):
          member.distrust(_FAILED_ALONE)
      self._changed.notify_all()

  def _of(self, task: member_lib.Task) -> Optional[_Round]:
    """The round of packs if it is still run."""
    this_round = self._round
    if this_round is None or this_round.number != int(task.label[0]):
      return None
    return this_round

  def joined(
    self,
    member: member_lib.Member,
    machine: Mapping[str, Any],
  ) -> None:
    """A worker can be given packs.

    Args:
      member: The worker.
      machine: What it is.
    """
    with self._changed:
      self._in_use.add(member)
      parallel, in_place = member.worker.parallel, member.worker.in_place
      data = 'reads the data in place' if in_place else 'is sent the data'
      packs = 'pack' if parallel == 1 else 'packs'
      self._tell(
        member,
        f'is there, trains {parallel} {packs} at a time and {data}',
        is_note=bool(self._told.get(member.name)),
      )
      self._compare(member, machine)
      self._changed.notify_all()

  def _compare(self, member: member_lib.Member, machine: Mapping[str, Any]) -> None:
    """Says so if machines are not alike, by which last digits may differ."""
    ours = machine_lib.current()
    differ = {
      what: (here, there)
      for what, here, there in (
        ('processors', ours.get('processor'), machine.get('processor')),
        *_differences(ours.get('environment'), machine.get('environment')),
      )
      if here != there
    }
    for what, (here, there) in differ.items():
      if what not in self._told:
        self._told[what] = 'differ'
        self._say(
          f'{what} differ: {here} here, and {there} on worker {member.name}. That may '
          'come to other last digits, so that this run does not have the same bits '
          'without it.'
        )

  def lost(self, member: member_lib.Member, why: str) -> None:
    """A worker cannot be used.

    Args:
      member: The worker.
      why: In a sentence without its end.
    """
    with self._changed:
      was_in_use = member in self._in_use
      self._in_use.discard(member)
      was_there = not self._told.get(member.name, _NOT_YET).startswith(_NOT_YET)
      what = 'is lost' if was_there else _NOT_YET
      self._tell(member, f'{what}: {why}', is_note=was_in_use)
      self._changed.notify_all()

  def _tell(self, member: member_lib.Member, what: str, *, is_note: bool) -> None:
    if self._told.get(member.name) == what:
      return  # Tried again, with the same result.
    self._told[member.name] = what
    self._say(f'worker {member.name} {what}.')
    if is_note:
      self._notes.append(f'worker {member.name} {what}')

  def notes(self) -> tuple[str, ...]:
    """What happened to workers since this was asked before; for the ledger."""
    with self._changed:
      notes, self._notes = tuple(self._notes), []
    return notes

  def break_off(self, error: BaseException) -> None:
    """Ends the round with an error.

    Args:
      error: Which.
    """
    with self._changed:
      self._broken = error
      self._changed.notify_all()

  def wake(self) -> None:
    """Has those who wait for packs look whether they still should."""
    with self._changed:
      self._changed.notify_all()


class _Waiting:
  """How long a round has been waited for, stops of the whole program left out."""

  def __init__(self) -> None:
    self._last = time.monotonic()
    self.seconds = self.without_workers = 0.0

  def tick(self, is_somebody_there: bool) -> None:
    """Time has passed."""
    now = time.monotonic()
    passed, self._last = min(now - self._last, 4 * _TICK_SECONDS), now
    self.seconds += passed
    self.without_workers = 0.0 if is_somebody_there else self.without_workers + passed


def _differences(here: Any, there: Any) -> Iterator[tuple[str, str, str]]:
  """Environment variables that are not set alike."""

  def value(of: Any, name: str) -> str:
    return repr(of[name]) if name in of else 'not set'

  here, there = (each if isinstance(each, dict) else {} for each in (here, there))
  for name in sorted({*here, *there}):
    yield f'values of {name}', value(here, name), value(there, name)
