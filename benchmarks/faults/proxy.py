"""What stands between a training and a worker, and can break everything that passes.

    python -m benchmarks.faults.proxy ADDRESS WORKER_PORT

Listens on a port of the address, which is its first line of output, and hands
connections on to a gRPC server of its own, which hands calls on to the worker on
127.0.0.1. Each line of input is a JSON object that says what is wrong from then on:
`wire` for the connections (one of `WIRES`), `lie` for the answers (one of `LIES`),
`seed` for what is random about them and `other` for the answer of the lie of that name,
in hexadecimal. Each is answered by a line. It ends with its input.

A process of its own, so that the training's threads, sockets and memory are its own; it
loads no TensorFlow.
"""

import asyncio
import contextlib
import json
import random
import sys
from typing import Any, Optional

import grpc

from tff_dp_aggregators.workers import protocol

WIRES = ('pass', 'refuse', 'close', 'swallow', 'delay')
LIES = ('', 'random', 'other', 'bit', 'earlier', 'status', 'internal', 'mute')
_COMPUTE = 'Compute'
_CHUNK_BYTES = 2**16
_DELAY_SECONDS = (0.02, 0.4)
_ANSWERS_KEPT = 8
_BAD_STATUS = (
  b'',
  b'\xff\xfe\x00',
  b'null',
  b'[1, 2',
  b'{"format": 1}',
  b'{"format": 99, "state": "serving"}',
  b'{"format": 1, "state": "serving", "identity": "a", "generation": "many"}',
)


class Wire:
  """TCP connections to the liar, which are cut, swallowed or slow."""

  def __init__(self, address: str):
    self._address, self._port = address, 0
    self._to: Optional[int] = None
    self._server: Optional[asyncio.AbstractServer] = None
    self._writers: set[asyncio.StreamWriter] = set()
    self._kind, self._rng = 'pass', random.Random()

  async def open(self, to: int = 0) -> int:
    """Takes connections, for a port of this machine; returns its own."""
    self._to = to or self._to
    self._server = await asyncio.start_server(self._connect, self._address, self._port)
    self._port = self._server.sockets[0].getsockname()[1]
    return self._port

  async def become(self, kind: str, rng: random.Random) -> None:
    """Is of another kind from now on; 'close' closes connections once."""
    before, self._kind, self._rng = self._kind, kind, rng
    if kind in ('refuse', 'close'):
      if kind == 'refuse' and self._server is not None:
        self._server.close()
        self._server = None
      for writer in list(self._writers):
        writer.transport.abort()
    if before == 'refuse' and kind != 'refuse':
      await self.open()

  async def _connect(
    self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
  ) -> None:
    try:
      there = await asyncio.open_connection('127.0.0.1', self._to)
    except OSError:
      writer.transport.abort()
      return
    both = {writer, there[1]}
    self._writers |= both
    is_cut = asyncio.Event()
    try:
      await asyncio.gather(
        self._pump(reader, there[1], is_cut), self._pump(there[0], writer, is_cut)
      )
    finally:
      self._writers -= both
      for each in both:
        each.transport.abort()

  async def _pump(
    self,
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    is_cut: asyncio.Event,
  ) -> None:
    with contextlib.suppress(OSError):
      while data := await reader.read(_CHUNK_BYTES):
        if self._kind == 'swallow':
          is_cut.set()
        if is_cut.is_set():  # Of what is swallowed in part, nothing can be made.
          continue
        if self._kind == 'delay':
          await asyncio.sleep(self._rng.uniform(*_DELAY_SECONDS))
        writer.write(data)
        await writer.drain()
    if not is_cut.is_set():
      writer.close()


class Liar(grpc.GenericRpcHandler):
  """Calls of a worker, whose answers are not always what the worker said."""

  def __init__(self, worker_port: int):
    channel = grpc.aio.insecure_channel(
      f'127.0.0.1:{worker_port}',
      options=(
        *protocol.LOCAL_CHANNEL_OPTIONS,
        ('grpc.min_reconnect_backoff_ms', 100),
        ('grpc.initial_reconnect_backoff_ms', 100),
        ('grpc.max_reconnect_backoff_ms', 300),
      ),
    )
    paths = {protocol.path_of(method): method for method in protocol.METHODS}
    paths[protocol.STATUS] = protocol.STATUS
    self._handlers = {
      path: grpc.unary_unary_rpc_method_handler(
        self._forwarding(method, channel.unary_unary(path))
      )
      for path, method in paths.items()
    }
    self._lie, self._rng, self._other = '', random.Random(), b''
    self._answers: list[bytes] = []

  def service(self, details: grpc.HandlerCallDetails) -> Any:
    return self._handlers.get(details.method)

  def become(self, lie: str, rng: random.Random, other: bytes) -> None:
    """Tells such lies from now on."""
    self._lie, self._rng, self._other = lie, rng, other

  def _forwarding(self, method: str, call: Any) -> Any:
    async def forward(request: bytes, context: grpc.aio.ServicerContext) -> bytes:
      try:
        answer = await call(request, timeout=context.time_remaining())
      except grpc.aio.AioRpcError as e:
        await context.abort(e.code(), e.details() or '')
        raise AssertionError('abort raises') from e
      return await self._told(method, answer, context)

    return forward

  async def _told(
    self, method: str, answer: bytes, context: grpc.aio.ServicerContext
  ) -> bytes:
    lie, rng = self._lie, self._rng
    if method == protocol.STATUS:
      return rng.choice(_BAD_STATUS) if lie == 'status' else answer
    if lie == 'internal':
      await context.abort(grpc.StatusCode.INTERNAL, 'made up by the campaign')
    if lie == 'random':
      return rng.randbytes(rng.randrange(1, 200))
    if method != _COMPUTE:
      return answer
    if lie == 'mute':
      await asyncio.Event().wait()  # Until the caller gives up.
    if lie == 'other':
      return self._other
    if lie == 'bit':
      position = rng.randrange(8 * len(answer))
      flipped = bytearray(answer)
      flipped[position // 8] ^= 1 << position % 8
      return bytes(flipped)
    if lie == 'earlier' and self._answers:
      return rng.choice(self._answers)
    self._answers = [*self._answers, answer][-_ANSWERS_KEPT:]
    return answer


async def _run(address: str, worker_port: int) -> None:
  liar = Liar(worker_port)
  server = grpc.aio.server(
    options=(
      *protocol.MESSAGE_OPTIONS,
      *protocol.KEEPALIVE_OPTIONS,
      ('grpc.so_reuseport', 0),
    )
  )
  server.add_generic_rpc_handlers((liar,))
  wire = Wire(address)
  port = await wire.open(server.add_insecure_port('127.0.0.1:0'))
  await server.start()
  print(port, flush=True)
  loop = asyncio.get_running_loop()
  while line := await loop.run_in_executor(None, sys.stdin.readline):
    told = json.loads(line)
    rng = random.Random(told['seed'])
    liar.become(told['lie'], rng, bytes.fromhex(told['other']))
    await wire.become(told['wire'], rng)
    print('done', flush=True)
  await server.stop(0)


if __name__ == '__main__':
  asyncio.run(_run(sys.argv[1], int(sys.argv[2])))
