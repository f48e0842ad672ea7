"""The process in which TFF computes: started, replaced when it dies, ended.

TFF's own local runtime keeps its worker until the interpreter is gone, lets it inherit
standard output, and replaces one that died for ever. `Worker` is one such process, and
`WorkerExecutors` what TFF asks for executors in its place.
"""

import functools
import logging
from collections.abc import Mapping
from typing import Any, Optional

import grpc
import tensorflow_federated as tff

from tff_dp_aggregators.workers import binary
from tff_dp_aggregators.workers import protocol

_logger = logging.getLogger(__name__)

# More deaths than this in one computation, and it is not an accident.
_MAX_DEATHS = 2
# As many as TFF keeps.
_MAX_EXECUTORS = 10


class WorkerError(RuntimeError):
  """TFF's worker process could not be started, or died again and again."""


class Worker:
  """A worker process that listens, and the connection to it.

  The kernel ends it with the thread that makes it, if nothing has ended it before.

  Args:
    max_concurrent_computation_calls: See `runtime.local_runtime`.

  Raises:
    WorkerError: If it does not start.
  """

  def __init__(self, max_concurrent_computation_calls: int):
    try:
      self._binary = binary.Binary(max_concurrent_computation_calls)
      self._binary.wait_until_it_listens()
    except binary.BinaryError as e:
      raise WorkerError(str(e)) from e
    if self._binary.open_because is not None:
      _warn_that_it_is_open(self._binary.open_because)
    self._channel = grpc.insecure_channel(
      self._binary.target, protocol.LOCAL_CHANNEL_OPTIONS
    )
    self.stub = tff.framework.RemoteExecutorGrpcStub(self._channel)

  @property
  def pid(self) -> int:
    """Number of the process."""
    return self._binary.pid

  def is_alive(self) -> bool:
    """Whether the process has not ended."""
    return self._binary.is_alive()

  def end(self) -> str:
    """Ends the process, which has nothing to lose, and says how it ended."""
    return self._binary.end()

  def disconnect(self) -> None:
    """Lets go of whoever waits for an answer."""
    self._channel.close()


@functools.cache
def _warn_that_it_is_open(because: str) -> None:
  """Warns once in a process, and not for each worker."""
  _logger.warning('%s', binary.warning(because))


class WorkerExecutors(tff.framework.ExecutorFactory):
  """Executors of a worker process that is started when needed.

  When the worker dies, TFF asks again and executes the computation anew. That is sound
  here: nothing of the first execution has left the worker, and our noise, being a
  function of the state, is the same the second time.

  Not for several threads, but for `end`.

  Args:
    default_num_clients: See `runtime.local_runtime`.
    max_concurrent_computation_calls: See `runtime.local_runtime`.
    stream_structs: See `runtime.local_runtime`.
  """

  def __init__(
    self,
    default_num_clients: int,
    max_concurrent_computation_calls: int,
    stream_structs: bool,
  ):
    self._default_num_clients = default_num_clients
    self._max_concurrent_computation_calls = max_concurrent_computation_calls
    self._stream_structs = stream_structs
    self._worker: Optional[Worker] = None
    self._executors: dict[tuple, tff.framework.RemoteExecutor] = {}
    self._deaths = 0
    self._ended = False

  def start(self) -> None:
    """Has a worker that is alive."""
    if self._ended:
      raise WorkerError('the runtime was left, and its worker ended.')
    if self._worker is not None and not self._worker.is_alive():
      self._count_death(self._worker.end())
      # Connections to the dead worker's port; it is somebody else's now.
      self._executors.clear()
      self._worker = None
    if self._worker is None:
      worker = Worker(self._max_concurrent_computation_calls)
      self._worker = worker
      if self._ended:  # Meanwhile, in another thread.
        worker.end()

  def _count_death(self, how: str) -> None:
    self._deaths += 1
    if self._deaths > _MAX_DEATHS:
      raise WorkerError(
        f"TFF's worker process died {self._deaths} times in one computation; the "
        f'last one {how}. Nothing of it was kept. SIGKILL mostly means that memory '
        'ran out, and SIGABRT that a value is larger than the 2 GB which TFF can '
        'send: take fewer clients at once, or a smaller model or state.'
      )
    _logger.warning(
      "TFF's worker process %s; starting another one, which repeats the computation "
      'that it was at.',
      how,
    )

  def computation_begins(self) -> None:
    """Counts from here how often the worker dies."""
    self._deaths = 0

  def create_executor(
    self, cardinalities: Mapping[Any, int]
  ) -> tff.framework.RemoteExecutor:
    """Gives TFF an executor for so many clients."""
    self.start()
    key = _key(cardinalities)
    # The one used last is the last.
    executor = self._executors.pop(key, None) or self._new_executor(cardinalities)
    self._executors[key] = executor
    while len(self._executors) > _MAX_EXECUTORS:
      self._executors.pop(next(iter(self._executors))).close()
    return executor

  def _new_executor(
    self, cardinalities: Mapping[Any, int]
  ) -> tff.framework.RemoteExecutor:
    assert self._worker is not None
    executor = tff.framework.RemoteExecutor(
      self._worker.stub, stream_structs=self._stream_structs
    )
    executor.set_cardinalities(
      {tff.CLIENTS: self._default_num_clients, **cardinalities}
    )
    return executor

  def clean_up_executor(self, cardinalities: Mapping[Any, int]) -> None:
    """Lets go of the executor for so many clients, which failed."""
    executor = self._executors.pop(_key(cardinalities), None)
    if executor is not None and not self._ended:
      executor.close()

  def end(self) -> None:
    """Ends the worker for good, and with it what waits for its answers."""
    self._ended = True
    worker = self._worker
    if worker is not None:
      worker.end()
      worker.disconnect()


def _key(cardinalities: Mapping[Any, int]) -> tuple:
  return tuple(sorted((str(placement), n) for placement, n in cardinalities.items()))
