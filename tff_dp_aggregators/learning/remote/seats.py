"""Where workers are, and how they are reached."""

import contextlib
import dataclasses
import functools
from collections.abc import Iterator
from typing import Callable, Optional

import grpc

from tff_dp_aggregators.base import machine
from tff_dp_aggregators.learning.remote import connection
from tff_dp_aggregators.learning.remote import local
from tff_dp_aggregators.workers import addresses
from tff_dp_aggregators.workers import group

_MOST_PARALLEL = 256


@dataclasses.dataclass(frozen=True)
class Seat:
  """Where a worker is.

  Attributes:
    name: What it is called, different for each.
    target: Address and port, as gRPC has them.
    credentials: What shows who both sides are; `None` for a plain connection.
    server_name: Whose certificate the worker has to have.
    parallel: How many packs it trains at once; `None` for one on each processor.
    why_not: Finds out why a worker that is there takes no calls.
  """

  name: str
  target: str
  credentials: Optional[grpc.ChannelCredentials] = None
  server_name: Optional[str] = None
  parallel: Optional[int] = None
  why_not: Callable[[], Optional[str]] = lambda: None

  def connect(self, traffic: connection.Traffic) -> connection.Connection:
    """A connection to it.

    Args:
      traffic: Where bytes are counted.
    """
    return connection.Connection(
      self.target, traffic, self.credentials, self.server_name, self.why_not
    )


class Seats:
  """Where workers are."""

  def __init__(self, seats: list[Seat]):
    """Initializes it.

    Args:
      seats: All there will be.
    """
    self._seats = seats

  def now(self) -> list[Seat]:
    """Those that there are by now."""
    return self._seats

  def unknown(self) -> list[str]:
    """Names of machines of which no address is known."""
    return []


class Names(Seats):
  """Workers by the names of their machines, each of which may be several."""

  def __init__(self, workers: group.Workers):
    """Initializes it.

    Args:
      workers: Who they are.
    """
    super().__init__([])
    files = workers.files()
    self._workers = workers
    self._channel = None if files is None else files.channel()
    self._may_leave = self._channel is not None or workers.trusted_network
    self._found: dict[tuple[str, int], list[str]] = {
      each: [] for each in workers.parsed()
    }

  def now(self) -> list[Seat]:
    """Those that names stand for by now, or did when they last stood for anything."""
    seats = []
    for (host, port), known in self._found.items():
      known[:] = self._addresses(host) or known
      for address in known:
        name = addresses.with_port(host, port)
        if address != host:
          name = f'{name} ({address})'
        target = addresses.with_port(address, port)
        why_not = functools.partial(self._workers.why_not, address, port, host)
        seats.append(Seat(name, target, self._channel, host, why_not=why_not))
    return seats

  def unknown(self) -> list[str]:
    """Names that have stood for nothing yet."""
    return [host for (host, _), known in self._found.items() if not known]

  def _addresses(self, host: str) -> list[str]:
    try:
      found = addresses.resolve(host, 'workers')
    except ValueError:
      return []
    allowed = [each for each in found if self._may_leave or addresses.is_loopback(each)]
    # A machine with addresses of both families is one worker, not two.
    return [each for each in allowed if ':' not in each] or allowed


def parallel(processors: int, workers: int = 1) -> int:
  """How many packs a worker trains at once.

  Args:
    processors: Of its machine.
    workers: How many share them.
  """
  return min(max(1, processors // workers), _MOST_PARALLEL)


@contextlib.contextmanager
def of(workers: group.Workers) -> Iterator[Seats]:
  """Where workers are, while they are used; starts those of this machine.

  Args:
    workers: Who they are.

  Raises:
    WorkerError: If one of this machine does not start.
  """
  number = workers.num_local
  if number is None:
    yield Names(workers)
    return
  with local.local_workers(number) as targets:
    yield Seats(
      [
        Seat(
          f'local:{each}',
          target,
          parallel=parallel(machine.usable_processors(), number),
        )
        for each, target in enumerate(targets)
      ]
    )
