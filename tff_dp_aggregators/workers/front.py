"""The address at which coordinators reach a worker, and what of theirs goes through.

Calls of TFF's executor service are handed on to `worker_binary` byte by byte, with
their deadlines, and given up with them. While there is no `worker_binary`, or if it
ends during a call, the caller is told at once, and how.
"""

import contextlib
import errno
import json
import os
import socket
import stat
from typing import Any, Optional

import grpc

from tff_dp_aggregators.workers import addresses
from tff_dp_aggregators.workers import credentials
from tff_dp_aggregators.workers import keeper as keeper_lib
from tff_dp_aggregators.workers import protocol

_OPTIONS = (
  *protocol.MESSAGE_OPTIONS,
  *protocol.KEEPALIVE_OPTIONS,
  # Or a second worker would share the port of the first, and get half of its calls.
  ('grpc.so_reuseport', 0),
)
# So that callers are told why, when it ends.
_GRACE_SECONDS = 1.0
# Of the path of a socket, in bytes (unix(7): `sun_path`, without the null at its end).
_LONGEST_PATH = 107
_ANSWER_SECONDS = 2.0


class ListenError(ValueError):
  """An address or port that cannot be listened on."""


class Front:
  """A gRPC server in front of a `worker_binary`; made inside of an event loop.

  Args:
    keeper: Has the `worker_binary`.
    host: The name or address to listen on; or 'unix:' and the path of a socket, which
      this user alone can then call.
    port: Where; 0 for one that is free; of no meaning for a socket.
    files: Certificates, if only those of a group may call.

  Attributes:
    listening: Addresses with port, as `127.0.0.1:8470`.

  Raises:
    CredentialsError: If the certificate is none for a server.
    ListenError: If that is taken, or is no address of this machine, or if no socket can
      be at that path.
    ValueError: If the host has no address.
  """

  def __init__(
    self,
    keeper: keeper_lib.Keeper,
    host: str,
    port: int,
    files: Optional[credentials.Files],
  ):
    self._server = grpc.aio.server(options=_OPTIONS)
    self._server.add_generic_rpc_handlers((_Handlers(keeper),))
    server_credentials = files.server() if files is not None else None
    self.listening: list[str] = []
    if addresses.is_socket(host):
      _make_way(host)
      umask = os.umask(0o177)  # From its first moment on nobody else may call.
      try:
        self._server.add_insecure_port(host)
      finally:
        os.umask(umask)
      os.chmod(addresses.path_of(host), 0o600)
      self.listening.append(host)
      return
    missing = None
    for address in addresses.resolve(host, '--address'):
      try:
        _try(address, port)
      except OSError as e:
        if e.errno != errno.EADDRNOTAVAIL:
          raise _cannot_listen(address, port, e) from e
        missing = missing or _cannot_listen(address, port, e)
        continue  # Such as ::1 of localhost where there is no IPv6.
      target = addresses.with_port(address, port)
      if server_credentials is None:
        port = self._server.add_insecure_port(target)
      else:
        port = self._server.add_secure_port(target, server_credentials)
      self.listening.append(addresses.with_port(address, port))
    if not self.listening:
      assert missing is not None
      raise missing

  async def start(self) -> None:
    """Takes calls from here on."""
    await self._server.start()

  async def end(self) -> None:
    """Takes no more; those that are left have a moment to be answered."""
    await self._server.stop(_GRACE_SECONDS)


class _Handlers(grpc.GenericRpcHandler):
  """Methods by their path; what is not among them is UNIMPLEMENTED."""

  def __init__(self, keeper: keeper_lib.Keeper):
    self._keeper = keeper
    self._handlers = {
      protocol.path_of(method): grpc.unary_unary_rpc_method_handler(
        self._forwarding(method)
      )
      for method in protocol.METHODS
    }
    self._handlers[protocol.STATUS] = grpc.unary_unary_rpc_method_handler(self._status)

  def service(self, details: grpc.HandlerCallDetails) -> Any:
    return self._handlers.get(details.method)

  def _forwarding(self, method: str) -> Any:
    async def forward(request: bytes, context: grpc.aio.ServicerContext) -> bytes:
      try:
        with self._keeper.call() as generation:
          return await generation.call(method, request, context.time_remaining())
      except keeper_lib.NotServingError as e:
        code, details = grpc.StatusCode.UNAVAILABLE, str(e)
      except grpc.aio.AioRpcError as e:
        code, details = e.code(), e.details() or ''
        if code == grpc.StatusCode.UNAVAILABLE:
          details = await self._keeper.how_it_ended(generation) or details
      await context.abort(code, details)
      raise AssertionError('abort raises')

    return forward

  async def _status(self, request: bytes, context: grpc.aio.ServicerContext) -> bytes:
    status = await self._keeper.status(of_coordinator=request != protocol.PROBE)
    return json.dumps(status).encode()


def _try(address: str, port: int) -> None:
  """Listens for a moment, for the error that gRPC does not tell."""
  family = socket.AF_INET6 if ':' in address else socket.AF_INET
  with socket.socket(family, socket.SOCK_STREAM) as probe:
    probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    entry = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0]
    probe.bind(entry[4])
    probe.listen()


def _make_way(host: str) -> None:
  """Removes the socket of a worker that was killed, and nothing else.

  gRPC would remove that of a worker which listens as well.

  Raises:
    ListenError: If there is something else, or can be no socket.
  """
  path = addresses.path_of(host)
  if not path or len(os.fsencode(path)) > _LONGEST_PATH:
    raise ListenError(
      f'cannot listen on {host}: the path of a socket has 1 to {_LONGEST_PATH} bytes; '
      'give a shorter one, such as unix:/tmp/worker.'
    )
  try:
    is_socket = stat.S_ISSOCK(os.lstat(path).st_mode)
  except FileNotFoundError:
    pass
  except OSError as e:
    raise _no_socket(host, e) from e
  else:
    if not is_socket or _is_listened_on(path):
      what = 'another worker listens there' if is_socket else 'there is a file'
      raise ListenError(f'cannot listen on {host}: {what}; give another path.')
  try:
    with contextlib.suppress(FileNotFoundError):
      os.unlink(path)
    with socket.socket(socket.AF_UNIX) as probe:
      probe.bind(path)  # For the error that gRPC does not tell.
    os.unlink(path)
  except OSError as e:
    raise _no_socket(host, e) from e


def _is_listened_on(path: str) -> bool:
  with socket.socket(socket.AF_UNIX) as probe:
    probe.settimeout(_ANSWER_SECONDS)
    try:
      probe.connect(path)
    except (ConnectionRefusedError, FileNotFoundError):
      return False
    except OSError:
      pass  # It has too many callers, or is another user's.
    return True


def _no_socket(host: str, error: OSError) -> ListenError:
  return ListenError(
    f'cannot listen on {host}: {error.strerror}; give a path in a folder that is '
    'there, and that you may write to.'
  )


def _cannot_listen(address: str, port: int, error: OSError) -> ListenError:
  remedies = {
    errno.EADDRINUSE: f'--port={port} is taken; give another one, or 0 for any',
    errno.EADDRNOTAVAIL: 'give an address of this machine as --address',
    errno.EACCES: 'ports below 1024 are for root; give another --port',
  }
  remedy = remedies.get(error.errno or 0, 'give another --address or --port')
  return ListenError(
    f'cannot listen on {addresses.with_port(address, port)}: '
    f'{os.strerror(error.errno or 0)}; {remedy}.'
  )
