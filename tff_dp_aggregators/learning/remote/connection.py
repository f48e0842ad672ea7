"""Calls to a worker, each with an end.

TFF's own remote executor repeats a call that finds nobody for ever, and sends a
computation's arguments with each call. Here a call has a deadline, can be cancelled by
whoever finds that the worker is gone, and what many calls have in common stays at the
worker. The protocol is that of TFF's `worker_binary`, which `workers.front` passes on,
with a method of its own that says how the worker is.
"""

import json
import threading
from collections.abc import Iterable, Sequence
from typing import Any, Callable, NamedTuple, Optional

import grpc
import numpy as np
import tensorflow_federated as tff
from google.protobuf import message
from tensorflow_federated.proto.v0 import array_pb2
from tensorflow_federated.proto.v0 import computation_pb2
from tensorflow_federated.proto.v0 import data_type_pb2
from tensorflow_federated.proto.v0 import executor_pb2

from tff_dp_aggregators.learning import failures
from tff_dp_aggregators.workers import protocol

# A call that only hands something over, of up to a gigabyte.
_SECONDS_TO_SEND = 120.0
_SECONDS_TO_PART = 1.0
# What TFF says of one that was disposed of, or was of a process that has ended.
_NO_EXECUTOR = 'No executor found'
_CHANNEL_OPTIONS = (
  *protocol.MESSAGE_OPTIONS,
  *protocol.KEEPALIVE_OPTIONS,
  ('grpc.enable_http_proxy', 0),
  # Calls fail rather than wait; `member` is who tries again.
  ('grpc.enable_retries', 0),
  ('grpc.min_reconnect_backoff_ms', 200),
  ('grpc.initial_reconnect_backoff_ms', 200),
  ('grpc.max_reconnect_backoff_ms', 2000),
  ('grpc.use_local_subchannel_pool', 1),
)
# What says nothing about the computation.
_OF_THE_WAY = frozenset(
  [
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.UNIMPLEMENTED,
    grpc.StatusCode.UNAUTHENTICATED,
    grpc.StatusCode.PERMISSION_DENIED,
    grpc.StatusCode.DATA_LOSS,
  ]
)


class WorkerLostError(Exception):
  """A worker that is of no use at the moment; the message says why."""


class GarbageError(WorkerLostError):
  """A worker that answers what no worker answers."""


class Status(NamedTuple):
  """How a worker is.

  Attributes:
    state: 'serving' if it computes.
    generation: What changes when it loses all that it was given.
    deaths: Why it did, in sentences; the last one is the latest.
    software: Versions by name, as `protocol.software` has them.
    machine: Of `base.machine`.
    processors: How many it may use, one at least.
  """

  state: str
  generation: tuple[str, int]
  deaths: tuple[str, ...]
  software: dict[str, str]
  machine: dict[str, Any]
  processors: int


class _Method(NamedTuple):
  """A method of a worker.

  Attributes:
    call: Of a channel; it answers bytes, as gRPC would write what is no message of its
      type to the log, and take it for an error of the worker's.
    parse: Makes a message of them.
  """

  call: Any
  parse: Callable[[bytes], Any]


class Traffic:
  """Bytes sent to workers, and received."""

  def __init__(self) -> None:
    self._lock = threading.Lock()
    self.sent = self.received = 0

  def add(self, sent: int, received: int) -> None:
    """Adds those of a call."""
    with self._lock:
      self.sent += sent
      self.received += received


class Connection:
  """A connection to a worker, and what is there of ours."""

  def __init__(
    self,
    target: str,
    traffic: Traffic,
    credentials: Optional[grpc.ChannelCredentials] = None,
    server_name: Optional[str] = None,
    why_not: Callable[[], Optional[str]] = lambda: None,
  ):
    """Prepares it; nothing is sent.

    Args:
      target: Address and port, as gRPC has them.
      traffic: Where bytes are counted.
      credentials: What shows who both sides are; `None` for a plain connection.
      server_name: Whose certificate the worker has to have.
      why_not: Finds out why a worker that is there takes no calls.
    """
    options: list[tuple[str, Any]] = list(_CHANNEL_OPTIONS)
    if credentials is None:
      self._channel = grpc.insecure_channel(target, options)
    else:
      if server_name is not None:
        options.append(('grpc.ssl_target_name_override', server_name))
      self._channel = grpc.secure_channel(target, credentials, options)
    self._get_executor = self._method(
      protocol.GET_EXECUTOR, executor_pb2.GetExecutorResponse
    )
    self._create_value = self._method('CreateValue', executor_pb2.CreateValueResponse)
    self._create_struct = self._method(
      'CreateStruct', executor_pb2.CreateStructResponse
    )
    self._create_call = self._method('CreateCall', executor_pb2.CreateCallResponse)
    self._compute = self._method('Compute', executor_pb2.ComputeResponse)
    self._dispose = self._method('Dispose', executor_pb2.DisposeResponse)
    self._dispose_executor = self._method(
      protocol.DISPOSE_EXECUTOR, executor_pb2.DisposeExecutorResponse
    )
    self._status = _Method(self._channel.unary_unary(protocol.STATUS), bytes)
    self._why_not: Optional[Callable[[], Optional[str]]] = why_not
    self._traffic = traffic
    self._lock = threading.Lock()
    self._under_way: set[grpc.Future] = set()
    self._there: dict[str, executor_pb2.ValueRef] = {}
    self._cancelled = self._closed = False
    self._executor: Optional[executor_pb2.ExecutorId] = None

  def _method(self, name: str, response: Any) -> _Method:
    call = self._channel.unary_unary(
      protocol.path_of(name), lambda request: request.SerializeToString()
    )
    return _Method(call, response.FromString)

  def status(self, seconds: float) -> Status:
    """Asks how the worker is.

    Args:
      seconds: How long it may take to answer.

    Raises:
      WorkerLostError: If it does not answer, or not like a worker.
    """
    try:
      answer = self._ask(self._status, b'', seconds)
    except WorkerLostError as e:
      why_not = self._why_not() if self._why_not else None
      if why_not is None:
        raise
      raise WorkerLostError(f'{why_not} ({e})') from None
    self._why_not = None  # Whoever was answered once may call.
    try:
      told = json.loads(answer)
      if told['format'] != protocol.STATUS_FORMAT:
        raise GarbageError(
          f'it tells its status in format {told["format"]!r}, not '
          f'{protocol.STATUS_FORMAT}: it is of '
          'another release; run the same one everywhere'
        )
      return Status(
        str(told['state']),
        (str(told['identity']), int(told['generation'])),
        tuple(map(str, told['deaths'])),
        {str(name): str(each) for name, each in told['software'].items()},
        dict(told['machine']),
        max(1, int(told['usable_processors'])),
      )
    except (AttributeError, ValueError, KeyError, TypeError, OverflowError) as e:
      raise GarbageError(
        f'it does not tell its status as a worker does ({type(e).__name__}: {e})'
      ) from e

  def open(self) -> None:
    """Has the worker make an executor, which holds what is created.

    Raises:
      WorkerLostError: If it does not.
    """
    request = executor_pb2.GetExecutorRequest(
      cardinalities=[  # Nothing here is placed at clients, but TFF asks for a number.
        executor_pb2.Cardinality(
          placement=computation_pb2.Placement(uri=tff.CLIENTS.uri), cardinality=0
        )
      ]
    )
    response = self._ask(self._get_executor, request, _SECONDS_TO_SEND)
    self._executor = response.executor

  def create(self, value: executor_pb2.Value) -> executor_pb2.ValueRef:
    """Gives the worker a value or a computation, and a reference to it.

    Args:
      value: Of `serialized`, `integers` or `text`.

    Raises:
      ComputationError: If the worker says that it cannot take it.
      WorkerLostError: If it does not answer.
    """
    request = executor_pb2.CreateValueRequest(executor=self._executor, value=value)
    made = self._ask(self._create_value, request, _SECONDS_TO_SEND).value_ref
    return self._kept(made)

  def call(
    self,
    function: executor_pb2.ValueRef,
    arguments: Sequence[executor_pb2.ValueRef],
    seconds: Optional[float] = None,
  ) -> executor_pb2.Value:
    """Has the worker compute, and waits for the result.

    Args:
      function: Of `create`.
      arguments: Of `create`.
      seconds: How long it may take; `None` for whoever looks after it and may `cancel`.

    Raises:
      ComputationError: If the computation fails.
      WorkerLostError: If the worker is lost, or the call was cancelled.
    """
    ask, made = self._ask, []
    try:
      argument = arguments[0]
      if len(arguments) > 1:
        struct = executor_pb2.CreateStructRequest(
          executor=self._executor,
          element=[
            executor_pb2.CreateStructRequest.Element(value_ref=each)
            for each in arguments
          ],
        )
        argument = self._kept(
          ask(self._create_struct, struct, _SECONDS_TO_SEND).value_ref
        )
        made.append(argument)
      call = executor_pb2.CreateCallRequest(
        executor=self._executor, function_ref=function, argument_ref=argument
      )
      result = self._kept(ask(self._create_call, call, _SECONDS_TO_SEND).value_ref)
      made.append(result)
      compute = executor_pb2.ComputeRequest(executor=self._executor, value_ref=result)
      return ask(self._compute, compute, seconds).value
    finally:
      self.dispose(made)

  def _kept(self, reference: executor_pb2.ValueRef) -> executor_pb2.ValueRef:
    """Remembers what the worker has, until it is disposed of."""
    with self._lock:
      self._there[reference.id] = reference
    return reference

  def dispose(self, references: Iterable[executor_pb2.ValueRef]) -> None:
    """Lets the worker forget values; does not wait.

    Args:
      references: Of `create`.
    """
    values = list(references)
    if not values:
      return
    with self._lock:
      for each in values:
        self._there.pop(each.id, None)
    request = executor_pb2.DisposeRequest(executor=self._executor, value_ref=values)
    try:
      self._dispose.call.future(request, timeout=_SECONDS_TO_SEND)
    except ValueError:  # The channel was closed.
      pass

  def cancel(self) -> None:
    """Ends all calls that are under way, and those that anybody begins later."""
    with self._lock:
      self._cancelled = True
      under_way = list(self._under_way)
    for future in under_way:
      future.cancel()

  def close(self) -> None:
    """Lets go of the worker, which forgets all that it was given."""
    with self._lock:
      if self._closed:
        return
      self._closed = True
    self.cancel()
    if self._executor is not None:
      # Others may share the executor, which goes with the last of them.
      all_there = executor_pb2.DisposeRequest(
        executor=self._executor, value_ref=list(self._there.values())
      )
      request = executor_pb2.DisposeExecutorRequest(executor=self._executor)
      try:
        self._dispose.call(all_there, timeout=_SECONDS_TO_PART)
        self._dispose_executor.call(request, timeout=_SECONDS_TO_PART)
      except (grpc.RpcError, ValueError):
        pass  # It is lost, and what it held with it.
    self._channel.close()

  def _ask(self, method: _Method, request: Any, seconds: Optional[float]) -> Any:
    try:
      future = method.call.future(request, timeout=seconds)
    except ValueError as e:
      raise WorkerLostError('the connection was closed') from e
    with self._lock:
      self._under_way.add(future)
      cancelled = self._cancelled
    if cancelled:
      future.cancel()
    try:
      answer = future.result()
    except grpc.FutureCancelledError as e:
      raise WorkerLostError('the call was given up') from e
    except grpc.RpcError as e:
      raise _translated(e) from None
    finally:
      with self._lock:
        self._under_way.discard(future)
    self._traffic.add(_size(request), len(answer))
    try:
      return method.parse(answer)
    except message.DecodeError as e:
      raise GarbageError('its answer cannot be parsed') from e


def _size(request: Any) -> int:
  return len(request) if isinstance(request, bytes) else request.ByteSize()


def _translated(error: grpc.RpcError) -> Exception:
  code = error.code()
  details = str(error.details() or '')
  if code in _OF_THE_WAY or _NO_EXECUTOR in details:
    return WorkerLostError(f'{details.rstrip(".") or "no answer"} ({code.name})')
  return failures.of_grpc(error)


def serialized(computation: tff.Computation) -> executor_pb2.Value:
  """A computation as a worker takes it: prepared as TFF does for its own runtime.

  TensorFlow rewrites functions otherwise, which takes it seconds, and may come to other
  last digits and to slower training.

  Args:
    computation: A TensorFlow computation of TFF's.
  """
  native = tff.backends.native.desugar_and_transform_to_native(computation)
  message, _ = tff.framework.serialize_value(native)
  return message


def integers(array: np.ndarray) -> executor_pb2.Value:
  """Integers as a worker takes them.

  Args:
    array: Int64 of any shape.
  """
  shape = array_pb2.ArrayShape(dim=array.shape)
  content = np.ascontiguousarray(array, '<i8').tobytes()
  return executor_pb2.Value(
    array=array_pb2.Array(
      dtype=data_type_pb2.DataType.DT_INT64, shape=shape, content=content
    )
  )


def text(content: bytes) -> executor_pb2.Value:
  """A string scalar as a worker takes it.

  Args:
    content: The string.
  """
  values = array_pb2.Array.BytesList(value=[content])
  return executor_pb2.Value(
    array=array_pb2.Array(
      dtype=data_type_pb2.DataType.DT_STRING,
      shape=array_pb2.ArrayShape(),
      string_list=values,
    )
  )
