"""Keeps a `worker_binary` going: restarts one that died, hangs, or was left behind."""

import asyncio
import collections
import contextlib
import platform
import secrets
import time
from collections.abc import Iterator
from typing import Any, Callable, Optional

import grpc

from tff_dp_aggregators.base import machine
from tff_dp_aggregators.base import version
from tff_dp_aggregators.workers import binary
from tff_dp_aggregators.workers import protocol

# With executors, and values in them, that nobody has asked for in this time, the
# coordinator is taken to have crashed.
ABANDONED_SECONDS = 60.0
_TICK_SECONDS = 0.1
_CONNECT_TICK_SECONDS, _CONNECT_SECONDS = 0.02, 5.0
_PROBE_SECONDS = 2.0
# Probes without an answer before one that hangs is killed: a machine that was suspended
# fails one.
_FEWEST_PROBES = 3
# One that lived longer has not died of how it was started.
_QUICK_SECONDS = 60.0
_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.5, 30.0
_DEATHS_SHOWN = 10
# Between a connection that breaks and a process whose end is known.
_PATIENCE_SECONDS = 1.0
_UNANSWERED = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)


class NotServingError(RuntimeError):
  """There is no `worker_binary` that takes calls, for the reason that is given."""


class Generation:
  """One start of `worker_binary`, which listens, and the connection to it.

  Attributes:
    number: How many starts there were, with this one.
    ended: How it ended, once it has; '' before.
  """

  def __init__(self, number: int, process: binary.Binary):
    self.number = number
    self.ended = ''
    self._process = process
    self._executors: collections.Counter[bytes] = collections.Counter()
    self._in_the_making = 0
    self._call_by_a_new_channel()

  def _call_by_a_new_channel(self) -> None:
    self._channel = grpc.aio.insecure_channel(
      self._process.target, options=protocol.LOCAL_CHANNEL_OPTIONS
    )
    # TFF's have it log a warning each time; that there is no such method, it says.
    self._probe = self._channel.unary_unary(protocol.path_of('Probe'))
    self._methods = {
      method: self._channel.unary_unary(protocol.path_of(method))
      for method in protocol.METHODS
    }

  @property
  def has_executors(self) -> bool:
    """Whether some were made that nobody has disposed of."""
    return self._in_the_making > 0 or bool(self._executors)

  def is_alive(self) -> bool:
    """Whether its process has not ended."""
    return self._process.is_alive()

  async def connect(self, deadline: float) -> None:
    """Returns when its process has let in the one connection that it takes.

    Args:
      deadline: By when, of the monotonic clock.

    Raises:
      BinaryError: If the process ends before, or it takes longer.
    """
    try:
      while not await self._is_let_in(time.monotonic() + _CONNECT_SECONDS):
        if not self._process.is_alive() or time.monotonic() > deadline:
          raise self._process.did_not_start()
        # On a machine that was too busy, packets are sent again ever later.
        await self._channel.close()
        self._call_by_a_new_channel()
      self._process.let_nobody_in()
    except OSError as e:
      if self._process.is_alive():
        raise
      raise self._process.did_not_start() from e

  async def _is_let_in(self, until: float) -> bool:
    """Whether there is a connection in this time, while the process is alive."""
    while self._process.is_alive() and time.monotonic() < until:
      state = self._channel.get_state(try_to_connect=True)
      if state == grpc.ChannelConnectivity.READY:
        return True
      self._process.let_in()
      await asyncio.sleep(_CONNECT_TICK_SECONDS)
    return False

  async def call(self, method: str, request: bytes, seconds: Optional[float]) -> bytes:
    """Calls a method of TFF's executor service.

    Args:
      method: Its name.
      request: The message, serialized.
      seconds: How long it may take, if there is a limit.

    Returns:
      The answer, serialized.

    Raises:
      grpc.aio.AioRpcError: What the method raises.
      NotServingError: If the process is given up while it hangs.
    """
    # Those that nobody waits for any more are made all the same, and stay.
    making = method == protocol.GET_EXECUTOR
    self._in_the_making += making
    try:
      answer = await self._methods[method](request, timeout=seconds)
    except grpc.aio.AioRpcError as e:
      if e.code() not in (*_UNANSWERED, grpc.StatusCode.CANCELLED):
        self._in_the_making -= making
      raise
    except asyncio.CancelledError:
      if self.ended:  # And with it the connection; nobody else has cancelled it.
        raise NotServingError(_sentence(self.ended)) from None
      raise
    self._in_the_making -= making
    # The answer that gives an executor and the request that disposes of it are the same
    # bytes: a message whose first field is the executor.
    if making:
      self._executors[answer] += 1
    if method == protocol.DISPOSE_EXECUTOR and request in self._executors:
      self._executors[request] -= 1
      self._executors = +self._executors
    return answer

  async def answers(self, seconds: float) -> bool:
    """Whether it answers anything at all in this time."""
    try:
      await self._probe(b'', timeout=seconds)
    except grpc.aio.AioRpcError as e:
      return e.code() not in _UNANSWERED
    except asyncio.CancelledError:
      if self.ended:
        return False
      raise
    return True

  async def end(self, why: str = '') -> str:
    """Ends process and connection.

    Args:
      why: The reason, as in 'hangs and was killed'; by default how the process ended.

    Returns:
      How it ended, as in 'was ended by SIGKILL'.
    """
    if not self.ended:
      # First the words, for whoever's call fails by it.
      self.ended = why
      how = self._process.end()
      self.ended = why or how
      await self._channel.close(_PATIENCE_SECONDS)  # Calls fail by themselves.
    return self.ended


class Keeper:
  """Has one `worker_binary` after the other, from `run` on until `end`.

  For one event loop, in the main thread: the kernel ends `worker_binary` with the
  thread that starts it.

  Args:
    report: Is given a line for people, of each start but the first, and each end.
    stall_seconds: How long a `worker_binary` may leave probes unanswered.
  """

  def __init__(self, report: Callable[[str], None], stall_seconds: float):
    self._report = report
    self._stall_seconds = stall_seconds
    self._starts = 0
    self._current: Optional[Generation] = None
    self._why_not = "TFF's worker process is being started"
    self._deaths: collections.deque[str] = collections.deque(maxlen=_DEATHS_SHOWN)
    self._calls = 0
    self._heard = time.monotonic()
    self._warned = False
    self._ended = False
    self._probe: Optional[tuple[Generation, asyncio.Task]] = None
    self._facts = {
      'format': protocol.STATUS_FORMAT,
      'identity': secrets.token_hex(16),
      'commit': version.current().commit,
      'software': protocol.software(),
      'python': platform.python_version(),
      'machine': machine.current(),
      'usable_processors': machine.usable_processors(),
    }

  async def run(self, started: asyncio.Event) -> None:
    """Keeps a `worker_binary` going until cancelled, or `end` is called.

    Args:
      started: Is set when the first one listens.
    """
    quick = 0
    while not self._ended:
      began = time.monotonic()
      try:
        generation = await self._start()
      except (binary.BinaryError, OSError) as e:
        how, own = str(e).rstrip('.'), False
      else:
        started.set()
        how, own = await self._watch(generation)
      if self._ended:
        return
      self._deaths.append(how)
      # What is restarted on purpose is not at fault.
      quick = 0 if own or time.monotonic() - began > _QUICK_SECONDS else quick + 1
      pause = _pause_seconds(quick)
      self._why_not = f'{how}; starting another one'
      if pause:
        self._why_not += f' in {pause:g} s'
      self._report(self._why_not)
      await asyncio.sleep(pause)

  async def _start(self) -> Generation:
    """A `worker_binary` that listens."""
    self._starts += 1
    number = self._starts
    process = binary.Binary(for_one=True)
    try:
      deadline = time.monotonic() + binary.START_SECONDS
      while not process.listens():
        if time.monotonic() > deadline:
          raise process.did_not_start()
        await asyncio.sleep(binary.TICK_SECONDS)
    except BaseException:
      process.end()
      raise
    generation = Generation(number, process)
    try:
      await generation.connect(deadline)
    except BaseException:
      await generation.end()
      raise
    self._warn(process)
    self._current = generation
    self._heard = time.monotonic()
    if number > 1:
      self._report(f"TFF's worker process was started again (start {number})")
    return generation

  def _warn(self, process: binary.Binary) -> None:
    """Says once who else can reach what computes, if anybody can."""
    warning = None
    if process.open_because is not None:
      warning = binary.warning(process.open_because)
    elif process.shared_because is not None:
      warning = binary.warning_of_users(process.shared_because)
    if warning is not None and not self._warned:
      self._warned = True
      self._report(f'warning: {warning}')

  async def _watch(self, generation: Generation) -> tuple[str, bool]:
    """Waits for a reason to start another one; ends the process.

    Returns:
      How it ended, and whether that was wanted.
    """
    every = min(5.0, self._stall_seconds / 4)
    probed = time.monotonic()
    silent_since, unanswered = 0.0, 0
    try:
      while generation.is_alive():
        await asyncio.sleep(_TICK_SECONDS)
        now = time.monotonic()
        if self._is_abandoned(generation, now):
          why = (
            f'was ended to free its memory, as nobody had called for '
            f'{ABANDONED_SECONDS:g} s'
          )
          return _sentence(await generation.end(why)), True
        if now - probed < every:
          continue
        probed = now
        if await self._answers(generation, every):
          unanswered = 0
          continue
        silent_since = silent_since if unanswered else now
        unanswered += 1
        silent = time.monotonic() - silent_since
        if unanswered >= _FEWEST_PROBES and silent >= self._stall_seconds:
          why = f'gave no answer for {silent:.0f} s and was killed'
          return _sentence(await generation.end(why)), False
      return _sentence(await generation.end()), False
    finally:
      self._current = None
      await generation.end()  # If this was cancelled.

  def _is_abandoned(self, generation: Generation, now: float) -> bool:
    return (
      generation.has_executors
      and not self._calls
      and now - self._heard > ABANDONED_SECONDS
    )

  async def _answers(self, generation: Generation, seconds: float) -> bool:
    """`Generation.answers`, one probe at a time however many ask."""
    if self._probe is None or self._probe[0] is not generation or self._probe[1].done():
      self._probe = generation, asyncio.ensure_future(generation.answers(seconds))
    return await asyncio.shield(self._probe[1])

  @contextlib.contextmanager
  def call(self) -> Iterator[Generation]:
    """What takes a call, which a coordinator makes while inside.

    Raises:
      NotServingError: If there is none.
    """
    self._calls += 1
    try:
      if self._current is None:
        raise NotServingError(self._why_not)
      yield self._current
    finally:
      self._calls -= 1
      self._heard = time.monotonic()

  async def how_it_ended(self, generation: Generation) -> str:
    """Says how a generation ended whose connection broke; '' if it goes on."""
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while not generation.ended and time.monotonic() < deadline:
      await asyncio.sleep(_TICK_SECONDS / 10)
    return _sentence(generation.ended) if generation.ended else ''

  async def status(self, of_coordinator: bool) -> dict[str, Any]:
    """What is told of this worker; JSON-ready.

    Args:
      of_coordinator: Whether a coordinator asks, which is there then.
    """
    if of_coordinator:
      self._heard = time.monotonic()
    generation, state = self._current, protocol.STARTING
    if generation is not None:
      answers = await self._answers(generation, _PROBE_SECONDS)
      state = protocol.SERVING if answers else protocol.STALLED
      if generation is not self._current or not generation.is_alive():
        state = protocol.STARTING
    return {
      **self._facts,
      'state': state,
      'generation': self._starts,
      'deaths': list(self._deaths),
    }

  async def end(self, why: str) -> None:
    """Ends what there is, for good.

    Args:
      why: As in 'was ended with its supervisor'.
    """
    self._ended = True
    self._why_not = _sentence(why)
    if self._current is not None:
      await self._current.end(why)


def _sentence(how: str) -> str:
  return f"TFF's worker process {how}"


def _pause_seconds(quick: int) -> float:
  """How long to wait after so many quick deaths in a row; the first is an accident."""
  if quick <= 1:
    return 0.0
  # 2.0**1000 is as far as floats go.
  return min(_LONGEST_PAUSE_SECONDS, _FIRST_PAUSE_SECONDS * 2.0 ** min(quick - 2, 10))
