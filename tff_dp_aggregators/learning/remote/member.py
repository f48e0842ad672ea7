"""A worker of a crew: taken into use, watched, lost, and taken into use again.

One thread keeps the connection. While the worker is in use, that thread asks it again
and again how it is, and ends all that waits for it if it does not say so in time, was
started anew, or has packs for far too long; and two threads have it train packs, so
that it is not idle while an answer is on its way.
"""

import logging
import threading
import time
from typing import TYPE_CHECKING, Callable, NamedTuple, Optional

import numpy as np
from tensorflow_federated.proto.v0 import executor_pb2

from tff_dp_aggregators.learning import failures
from tff_dp_aggregators.learning.remote import connection as connection_lib
from tff_dp_aggregators.learning.remote import job as job_lib
from tff_dp_aggregators.learning.remote import seats
from tff_dp_aggregators.learning.remote import shares
from tff_dp_aggregators.workers import protocol

if TYPE_CHECKING:
  from tff_dp_aggregators.learning.remote import crew as crew_lib

_logger = logging.getLogger(__name__)

# How often a worker is asked how it is, in parts of the time that it has to answer.
_BEATS = 5
_FIRST_PAUSE, _LONGEST_PAUSE = 0.2, 10.0
# Until one that answered garbage, or is of another release, is tried again.
_LONG_PAUSE = 30.0
# Examples that tell whether a worker sees the data.
_LOOKED_AT = 64
_LOOK_SECONDS = 60.0
_JOIN_SECONDS = 5.0
_SLOTS = 2
# A broadcast that is sent with each share, as that is quicker than to tell it first.
_SMALL_BYTES = 2**16


class Task(NamedTuple):
  """Packs of a round.

  Attributes:
    label: Which; int64 of shape [3].
    broadcast: What all packs of the round are told.
    packs: Clients of each.
    share: As they were dealt out.
  """

  label: np.ndarray
  broadcast: bytes
  packs: list[np.ndarray]
  share: shares.Share


class Session:
  """The time in which a worker is in use: what it was given, and what it is at."""

  def __init__(
    self,
    connection: connection_lib.Connection,
    first: connection_lib.Status,
    job: job_lib.Job,
    parallel: int,
  ):
    self.connection, self._first, self._job = connection, first, job
    self.over = threading.Event()
    self.why: Optional[connection_lib.WorkerLostError] = None
    # Nobody else waits for it: what holds it may wait for the worker.
    self._telling = threading.Lock()
    self._broadcasts: dict[int, executor_pb2.ValueRef] = {}
    self.under_way: dict[int, tuple[float, float]] = {}
    job.in_place(parallel)  # Made before anybody waits for what comes next.
    connection.open()
    self.in_place = self.sees_data()
    make = job.in_place if self.in_place else job.shipped
    self._work = connection.create(make(parallel))

  def sees_data(self) -> bool:
    """Whether the worker has the same files, by their checksum and some examples."""
    rng = np.random.default_rng()
    numbers = rng.integers(self._job.num_examples, size=_LOOKED_AT)
    label = rng.integers(np.iinfo(np.int64).max, size=3)
    try:
      look = self.connection.create(self._job.look)
      argument = self.connection.create(job_lib.argument(label, numbers))
      answer = self.connection.call(look, [argument], _LOOK_SECONDS)
    except failures.ComputationError:
      return False  # There is no such file, or it is shorter.
    return job_lib.unsealed(answer, label) == self._job.seen(numbers)

  def compute(self, task: Task) -> list[np.ndarray]:
    """What packs come to.

    Raises:
      ComputationError: If training fails.
      WorkerLostError: If the worker is lost.
    """
    rows, sizes = np.concatenate(task.packs), [len(each) for each in task.packs]
    cuts = np.cumsum([0, *sizes])
    if self.in_place:
      argument = job_lib.argument(task.label, rows, cuts)
    else:
      rows, examples = self._job.ship(rows)
      argument = job_lib.argument(task.label, rows, cuts, examples)
    answer = self._call(task, argument)
    contents = job_lib.unsealed(answer, task.label)
    return self._job.parse(contents, sizes)

  def _call(self, task: Task, argument: executor_pb2.Value) -> executor_pb2.Value:
    given = []
    try:
      if len(task.broadcast) <= _SMALL_BYTES:
        both = job_lib.argument(task.broadcast, argument)
        given = [self.connection.create(both)]
        return self.connection.call(self._work, given)
      broadcast = self._broadcast_of(task)
      given = [self.connection.create(argument)]
      return self.connection.call(self._work, [broadcast, *given])
    finally:
      self.connection.dispose(given)

  def _broadcast_of(self, task: Task) -> executor_pb2.ValueRef:
    number = int(task.label[0])
    with self._telling:
      if number not in self._broadcasts:
        value = connection_lib.text(task.broadcast)
        self._broadcasts[number] = self.connection.create(value)
        # A pack that nobody waits for any more may come after one of the next round.
        older = [each for each in self._broadcasts if each < number]
        self.connection.dispose([self._broadcasts.pop(each) for each in older])
      return self._broadcasts[number]

  def check(self, seconds: float) -> None:
    """Checks that the worker still has what it was given.

    Args:
      seconds: How long it may take to say so.

    Raises:
      WorkerLostError: If it has not.
    """
    now, first = self.connection.status(seconds), self._first
    if now.generation != first.generation:
      how = now.deaths[-1] if now.deaths else 'it was started anew'
      raise connection_lib.WorkerLostError(f'its process was replaced: {how}')
    _check_serving(now)

  def end(self, why: connection_lib.WorkerLostError) -> None:
    """Ends it; the first reason counts."""
    if not self.over.is_set():
      self.why = self.why or why
    self.over.set()


class Member:
  """A worker, by its address."""

  def __init__(
    self,
    name: str,
    connect: Callable[[], connection_lib.Connection],
    crew: 'crew_lib.Crew',
    *,
    parallel: Optional[int] = None,
  ):
    """Begins to take the worker into use.

    Args:
      name: What it is called.
      connect: Makes a connection to it.
      crew: What it is a member of.
      parallel: How many packs it trains at once; `None` for one on each processor.
    """
    self.name = name
    self._connect, self._crew = connect, crew
    self._parallel = parallel
    self.worker = shares.Worker(parallel or 1, in_place=True)
    self._ended = threading.Event()
    self._session: Optional[Session] = None
    self.reason = 'it has not answered yet'
    self._thread = threading.Thread(target=self._keep, daemon=True)
    self._thread.start()

  @property
  def is_ready(self) -> bool:
    """Whether it can be given packs."""
    session = self._session
    return session is not None and not session.over.is_set()

  def end(self) -> None:
    """Lets the worker go, for good; `join` waits for that."""
    self._ended.set()
    session = self._session
    if session is not None:
      session.end(connection_lib.WorkerLostError('it is not needed any more'))

  def distrust(self, why: str) -> None:
    """Does without the worker for a while, as after garbage; does not wait.

    Args:
      why: In a sentence without its end.
    """
    session = self._session
    if session is not None:
      session.end(connection_lib.GarbageError(why))

  def join(self, seconds: float) -> None:
    """Waits until it is let go.

    Args:
      seconds: How long at the longest.
    """
    self._thread.join(seconds)

  def _keep(self) -> None:
    pause = _FIRST_PAUSE
    while not self._ended.is_set():
      begun = time.monotonic()
      try:
        self._use()
        pause = _FIRST_PAUSE
      except connection_lib.GarbageError as e:
        pause = _LONG_PAUSE
        self._tell_lost(str(e))
      except (connection_lib.WorkerLostError, failures.ComputationError) as e:
        self._tell_lost(str(e))
        was_in_use = time.monotonic() - begun > _LONGEST_PAUSE
        pause = _FIRST_PAUSE if was_in_use else min(2 * pause, _LONGEST_PAUSE)
      except Exception as e:
        _logger.exception('worker %s', self.name)
        self._crew.break_off(e)
        return
      self._ended.wait(pause)

  def _tell_lost(self, why: str) -> None:
    self.reason = why
    if not self._ended.is_set():
      self._crew.lost(self, why)

  def _use(self) -> None:
    """Uses the worker until it is lost, which is raised, or not needed any more."""
    connection = self._connect()
    try:
      status = connection.status(self._crew.timeout_seconds)
      _check(status)
      parallel = self._parallel or seats.parallel(status.processors)
      session = Session(connection, status, self._crew.job, parallel)
      self.worker.parallel, self.worker.in_place = parallel, session.in_place
      self._train(session, status)
    finally:
      connection.close()

  def _train(self, session: Session, status: connection_lib.Status) -> None:
    slots = [
      threading.Thread(target=self._work, args=(session,), daemon=True)
      for _ in range(_SLOTS)
    ]
    self._session = session
    if self._ended.is_set():  # Meanwhile.
      self.end()
    self._crew.joined(self, status.machine)
    try:
      for slot in slots:
        slot.start()
      self._watch(session)
    except connection_lib.WorkerLostError as e:
      session.end(e)
    finally:
      session.over.set()
      session.connection.cancel()
      self._crew.wake()
      for slot in slots:
        slot.join(_JOIN_SECONDS)
      self._session = None
    if session.why is not None and not self._ended.is_set():
      raise session.why

  def _watch(self, session: Session) -> None:
    seconds = self._crew.timeout_seconds
    while not session.over.wait(seconds / _BEATS):
      session.check(seconds)
      now = time.monotonic()
      for begun, work in list(session.under_way.values()):
        longest = self._crew.longest_seconds(work)
        if now - begun > longest:
          raise connection_lib.WorkerLostError(
            f'it has had a pack for more than {longest:.0f} s and is given up on it'
          )

  def _work(self, session: Session) -> None:
    """Trains packs, one after the other."""
    slot = threading.get_ident()
    while True:
      task = self._crew.take(self, session.over)
      if task is None:
        return
      begun = time.monotonic()
      session.under_way[slot] = begun, task.share.work
      try:
        sums = session.compute(task)
      except connection_lib.WorkerLostError as e:
        session.end(e)
        self._crew.give_back(task, self)
        return
      except failures.ComputationError as e:
        self._tell_failed(session, task, e)
      except Exception as e:  # A mistake of ours: not to be waited for without end.
        _logger.exception('worker %s', self.name)
        self._crew.break_off(e)
        return
      else:
        self._crew.done(task, self, sums, time.monotonic() - begun)
      finally:
        session.under_way.pop(slot, None)

  def _tell_failed(
    self, session: Session, task: Task, error: failures.ComputationError
  ) -> None:
    try:
      # A worker that was started anew knows nothing of what it is asked about.
      session.check(self._crew.timeout_seconds)
    except connection_lib.WorkerLostError as e:
      session.end(e)
      self._crew.give_back(task, self)
    else:
      self._crew.failed(task, self, error)


def _check(status: connection_lib.Status) -> None:
  """Refuses a worker that would compute something else, or is not up."""
  for name, ours in protocol.software().items():
    theirs = status.software.get(name, 'none')
    if ours != theirs:
      raise connection_lib.GarbageError(
        f'it has {name} {theirs}, and this program {ours}: install the same release '
        'everywhere, and start workers anew'
      )
  _check_serving(status)


def _check_serving(status: connection_lib.Status) -> None:
  if status.state != protocol.SERVING:
    how = f' ({status.deaths[-1]})' if status.deaths else ''
    raise connection_lib.WorkerLostError(f'it is {status.state}{how}')
