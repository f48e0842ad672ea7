"""Workers that share the packs of a round.

Workers take packs when they are free, so fast ones train more. A pack whose worker is
lost goes to another one, and so does one that takes far longer than others while
somebody is free; which of two answers is first does not matter, as they are the same.
One whose training fails goes to another one as well: if it fails there too, that is the
training's error, and if not, the first worker's, which is left alone for a while.
Sums are handed on in the order of the packs, so that they add up to the same bits
whoever trained what; workers are not given packs much later than the one that is waited
for, so that few sums wait.
"""

import bisect
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
from typing import Any, Callable, Optional

import numpy as np

from tff_dp_aggregators.learning import failures
from tff_dp_aggregators.learning import runtime
from tff_dp_aggregators.learning.remote import connection
from tff_dp_aggregators.learning.remote import job as job_lib
from tff_dp_aggregators.learning.remote import member as member_lib
from tff_dp_aggregators.learning.remote import seats as seats_lib
from tff_dp_aggregators.workers import group

# How long a worker that says it is well may take for a pack: for the first one as long
# as a round may take; for later ones as many times what one took, and at least so long.
_LONGEST_PACK_TIMES, _SHORTEST_LIMIT_SECONDS = 20, 600.0
# Of the first ones, before a second worker is given them.
_LATE_AT_FIRST_SECONDS = 600.0
# When a pack is given to a second worker: times what others took, and at least.
_LATE_TIMES, _LATE_SECONDS = 4, 1.0
_TICK_SECONDS = 0.25
# So many workers that end while they have a pack, and it is the pack.
_MOST_LOST = 8
_RECRUIT_SECONDS = 10.0
_PARTING_SECONDS = 5.0
_FAILED_ALONE = 'a pack failed on it that did not fail on another worker'
_DURATIONS = 64


class NoWorkersError(RuntimeError):
  """No worker can be reached; the message says why of each."""


class _Round:
  """The packs of a round, and what became of them; under the crew's lock."""

  def __init__(self, number: int, broadcast: bytes, packs: Sequence[np.ndarray]):
    self.number, self.broadcast, self.packs = number, broadcast, packs
    self.pending = list(range(len(packs)))
    self.holders: dict[int, dict[member_lib.Member, float]] = {}
    self.sums: dict[int, list[np.ndarray]] = {}
    self.handed_on = 0
    self.given: set[int] = set()
    self.failed: dict[int, list[member_lib.Member]] = {}
    self.losses: collections.Counter[int] = collections.Counter()

  def is_open(self, pack: int) -> bool:
    """Whether its sums are still wanted."""
    return pack >= self.handed_on and pack not in self.sums

  def next(
    self, member: member_lib.Member, window: int, late: float, ready: set[Any]
  ) -> Optional[int]:
    """A pack for a worker, if there is one, while those workers are ready."""
    for position, pack in enumerate(self.pending):
      if pack >= self.handed_on + window:
        break
      failed = self.failed.get(pack, ())
      if member not in failed or ready.issubset(failed):
        return self.pending.pop(position)
    now = time.monotonic()
    for pack, holders in sorted(self.holders.items()):
      known = (*holders, *self.failed.get(pack, ()))
      if len(holders) == 1 and member not in known:
        if now - min(holders.values()) > late:
          return pack
    return None

  def put_back(self, pack: int, member: member_lib.Member) -> None:
    """A worker has it no longer."""
    holders = self.holders.get(pack, {})
    holders.pop(member, None)
    if not holders:
      self.holders.pop(pack, None)
      if self.is_open(pack) and pack not in self.pending:
        bisect.insort(self.pending, pack)


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
    self._slots: dict[member_lib.Member, int] = {}
    self._machines: dict[str, Mapping[str, Any]] = {}
    self._told: dict[str, str] = {}
    self._round: Optional[_Round] = None
    self._numbers = itertools.count(secrets.randbits(31))
    self._durations: collections.deque[float] = collections.deque(maxlen=_DURATIONS)
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
            num_slots=seat.num_slots,
          )
      names = {seat.name for seat in seats}
      for name, member in list(self._members.items()):
        if name not in names and not member.is_ready:
          left.append(self._members.pop(name))
    for member in left:
      member.end()

  def results(
    self, broadcast: bytes, packs: Sequence[np.ndarray]
  ) -> Iterator[list[np.ndarray]]:
    """Has a round's packs trained; gives the sums of each, in their order.

    Args:
      broadcast: What all of them are told.
      packs: Rows of each.

    Raises:
      ComputationError: If one fails on two workers, or twice on the only one there is.
      NoWorkersError: If there is no worker for longer than they may be missing.
      RoundTimeoutError: If it takes longer than a round may.
    """
    with self._changed:
      this_round = _Round(next(self._numbers), broadcast, packs)
      self._round = this_round
      self._changed.notify_all()
    waiting = _Waiting()
    try:
      for pack in range(len(packs)):
        yield self._wait_for(this_round, pack, waiting)
    finally:
      with self._changed:
        self._round = None
        self._changed.notify_all()

  def _wait_for(
    self, this_round: _Round, pack: int, waiting: '_Waiting'
  ) -> list[np.ndarray]:
    with self._changed:
      while pack not in this_round.sums:
        if self._broken is not None:
          raise self._broken
        self._changed.wait(_TICK_SECONDS)
        waiting.tick(any(member.is_ready for member in self._members.values()))
        self._check(waiting)
      sums = this_round.sums.pop(pack)
      this_round.handed_on = pack + 1
      self._changed.notify_all()
      return sums

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
        'Nothing of the round was kept, and the rounds before it are. Start workers '
        '(python -m experiments.worker), and go on with the same run directory.'
      )

  def take(
    self, member: member_lib.Member, over: threading.Event
  ) -> Optional[member_lib.Task]:
    """Waits for a pack; `None` once the worker is lost.

    Args:
      member: Whose it is to be.
      over: Is set when the worker is lost; `wake` then.
    """
    with self._changed:
      while not over.is_set():
        this_round = self._round
        if this_round is not None:
          window = 2 * sum(self._slots.values()) + 2
          ready = {each for each in self._members.values() if each.is_ready}
          pack = this_round.next(member, window, self._late_seconds(), ready)
          if pack is not None:
            this_round.holders.setdefault(pack, {})[member] = time.monotonic()
            self.given_again += pack in this_round.given
            this_round.given.add(pack)
            return member_lib.Task(
              np.array([this_round.number, pack, secrets.randbits(62)], np.int64),
              this_round.broadcast,
              this_round.packs[pack],
            )
        # Late packs make no noise.
        self._changed.wait(None if this_round is None else _TICK_SECONDS)
    return None

  def _late_seconds(self) -> float:
    if not self._durations:
      return _LATE_AT_FIRST_SECONDS
    return max(_LATE_SECONDS, _LATE_TIMES * statistics.median(self._durations))

  def longest_pack_seconds(self) -> float:
    """How long a pack may take before its worker is given up."""
    if not self._durations:
      return math.inf if self._round_seconds is None else self._round_seconds
    return max(_SHORTEST_LIMIT_SECONDS, _LONGEST_PACK_TIMES * max(self._durations))

  def done(
    self,
    task: member_lib.Task,
    member: member_lib.Member,
    sums: list[np.ndarray],
    seconds: float,
  ) -> None:
    """Takes what a pack came to.

    Args:
      task: The pack.
      member: Who trained it.
      sums: Its sums.
      seconds: How long that took.
    """
    with self._changed:
      this_round, pack = self._of(task)
      self._durations.append(seconds)
      if this_round is not None:
        if this_round.is_open(pack):
          this_round.sums[pack] = sums
        this_round.put_back(pack, member)
        for other in this_round.failed.pop(pack, ()):
          if other is not member:
            other.distrust(_FAILED_ALONE)
      self._changed.notify_all()

  def give_back(self, task: member_lib.Task, member: member_lib.Member) -> None:
    """Takes a pack back whose worker was lost.

    Args:
      task: The pack.
      member: Who had it.
    """
    with self._changed:
      this_round, pack = self._of(task)
      if this_round is not None:
        this_round.put_back(pack, member)
        this_round.losses[pack] += 1
        if this_round.losses[pack] >= _MOST_LOST:
          clients = len(this_round.packs[pack])
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
    """Takes a pack back whose training failed; the second time it is an error.

    The second time is with another worker, as long as there is one.

    Args:
      task: The pack.
      member: Who trained it.
      error: Why.
    """
    with self._changed:
      this_round, pack = self._of(task)
      if this_round is not None:
        this_round.put_back(pack, member)
        if this_round.is_open(pack):
          failed = this_round.failed.setdefault(pack, [])
          failed.append(member)
          if len(failed) > 1:
            self._broken = error
        else:
          member.distrust(_FAILED_ALONE)
      self._changed.notify_all()

  def _of(self, task: member_lib.Task) -> tuple[Optional[_Round], int]:
    """The round of a pack if it is still run, and its number."""
    this_round = self._round
    number, pack = int(task.label[0]), int(task.label[1])
    if this_round is None or this_round.number != number:
      return None, pack
    return this_round, pack

  def joined(
    self,
    member: member_lib.Member,
    num_slots: int,
    machine: Mapping[str, Any],
    *,
    in_place: bool,
  ) -> None:
    """A worker can be given packs.

    Args:
      member: The worker.
      num_slots: How many at once.
      machine: What it is.
      in_place: Whether it reads the data where they are.
    """
    with self._changed:
      self._slots[member] = num_slots
      data = 'reads the data in place' if in_place else 'is sent the data'
      packs = 'pack' if num_slots == 1 else 'packs'
      self._tell(
        member,
        f'is there, trains {num_slots} {packs} at a time and {data}',
        is_note=bool(self._told.get(member.name)),
      )
      self._compare(member, machine)
      self._changed.notify_all()

  def _compare(self, member: member_lib.Member, machine: Mapping[str, Any]) -> None:
    """Says so if machines are not alike, by which last digits may differ."""
    self._machines[member.name] = machine
    kinds = {str(each.get('processor')) for each in self._machines.values()}
    if len(kinds) > 1 and 'processors' not in self._told:
      self._told['processors'] = 'differ'
      self._say(
        f'workers have different processors ({", ".join(sorted(kinds))}), which may '
        'come to other last digits: this run may not have the same bits elsewhere.'
      )

  def lost(self, member: member_lib.Member, why: str) -> None:
    """A worker cannot be used.

    Args:
      member: The worker.
      why: In a sentence without its end.
    """
    with self._changed:
      was_in_use = self._slots.pop(member, None) is not None
      self._tell(member, f'is lost: {why}', is_note=was_in_use)
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
