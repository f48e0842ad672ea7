"""A worker as a program: a front and a `worker_binary`, until a signal ends both."""

import asyncio
import contextlib
import dataclasses
import json
import os
import signal
from typing import Callable, Optional

from tff_dp_aggregators.workers import addresses
from tff_dp_aggregators.workers import binary
from tff_dp_aggregators.workers import credentials
from tff_dp_aggregators.workers import front as front_lib
from tff_dp_aggregators.workers import keeper as keeper_lib

# How often the status is left in a file.
_STATUS_SECONDS = 5.0
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


@dataclasses.dataclass(frozen=True)
class Settings:
  """What a worker is asked for.

  Attributes:
    host: The name or address to listen on; or 'unix:' and the path of a socket, which
      has no port.
    port: Where; 0 for one that is free.
    files: Certificates, without which the host is loopback, or
    trusted_network: is true, and nobody else is on the network; refused where that
      allows nothing.
    stall_seconds: How long `worker_binary` may give no answer before it is killed.
    status_file: Where the status is left as JSON every few seconds, for whoever looks
      after the worker; removed at the end. None without.

  Raises:
    ValueError: If that cannot be written, or a number is none of its kind, or the host
      is one for certificates, or for none, or for no trusted network.
  """

  host: str
  port: int
  files: Optional[credentials.Files] = None
  trusted_network: bool = False
  stall_seconds: float = 30.0
  status_file: Optional[str] = None

  def __post_init__(self) -> None:
    if not 0 <= self.port <= 65535:
      raise ValueError(f'--port={self.port} is none; give one from 0 to 65535.')
    if not 0 < self.stall_seconds < float('inf'):
      raise ValueError(
        f'--stall_seconds={self.stall_seconds:g} must be a positive number.'
      )
    if addresses.is_socket(self.host):
      if self.files is not None:
        raise ValueError(
          f'--address={self.host} is for programs of this user alone; leave out '
          f'{", ".join(self.files.names)}.'
        )
      if self.trusted_network:
        raise credentials.own_machine(f'--address={self.host}')
    elif self.trusted_network:
      said = f'--address={self.host}'
      credentials.check_trust([self.host], said, self.files is not None)
    elif self.files is None:
      credentials.check_plain(self.host, False, '--address')

    if self.status_file is not None:
      try:
        _write(self.status_file, b'')  # Nothing else tells whether that can be.
      except OSError as e:
        raise ValueError(
          f'--status_file={self.status_file} cannot be written: {e.strerror}; give a '
          'path in a folder that you may write to.'
        ) from e

  def who_may_call(self) -> str:
    """In words."""
    if self.files is not None:
      return f'with certificates of {self.files.authority} only'
    if addresses.is_socket(self.host):
      return 'plain; this user only'
    found = addresses.resolve(self.host, '--address')
    if all(map(addresses.is_loopback, found)):
      return 'plain; this machine only'
    return 'plain; whoever is on this network may run code here'


def run(settings: Settings, report: Callable[[str], None]) -> int:
  """Runs until SIGTERM, SIGINT or SIGHUP; for the main thread.

  Args:
    settings: What is asked for.
    report: Is given lines for people.

  Returns:
    The exit code.

  Raises:
    BinaryError: If TFF is not installed.
    CredentialsError: If the certificate is none for a server.
    ListenError: If the address cannot be listened on.
  """
  binary.path()  # Or starting it would fail again and again.
  return asyncio.run(_run(settings, report))


async def _run(settings: Settings, report: Callable[[str], None]) -> int:
  asked = _asked_to_end()
  keeper = keeper_lib.Keeper(report, settings.stall_seconds)
  front = front_lib.Front(keeper, settings.host, settings.port, settings.files)
  await front.start()
  started = asyncio.Event()
  keeping = asyncio.ensure_future(keeper.run(started))
  greeting = asyncio.ensure_future(_greet(started, front, settings, report))
  telling = asyncio.ensure_future(_tell(keeper, settings.status_file, report))
  try:
    waiting: set[asyncio.Future] = {asked, keeping}
    await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    if keeping.done():
      keeping.result()  # It ends by an error alone.
    report(f'ended by {asked.result()}')
    return 0
  finally:
    await keeper.end('was ended with its supervisor')
    for task in (greeting, telling, keeping):
      task.cancel()
      with contextlib.suppress(asyncio.CancelledError):
        await task
    await front.end()
    if settings.status_file is not None:
      with contextlib.suppress(OSError):
        os.unlink(settings.status_file)


async def _tell(
  keeper: keeper_lib.Keeper, path: Optional[str], report: Callable[[str], None]
) -> None:
  """Leaves the status in a file again and again."""
  told = None
  while path is not None:
    status = await keeper.status(of_coordinator=False)
    try:
      _write(path, json.dumps(status).encode() + b'\n')
      told = None
    except OSError as e:
      # Training goes on without; who reads it sees that it is old.
      if told != e.errno:
        report(f'warning: --status_file={path} cannot be written: {e.strerror}')
      told = e.errno
    await asyncio.sleep(_STATUS_SECONDS)


def _write(path: str, content: bytes) -> None:
  """Writes a file, of which nobody sees a part."""
  new = f'{path}.new'
  with open(new, 'wb') as file:
    file.write(content)
  os.replace(new, path)


async def _greet(
  started: asyncio.Event,
  front: front_lib.Front,
  settings: Settings,
  report: Callable[[str], None],
) -> None:
  """Says where it listens once calls can be answered, and not before."""
  await started.wait()
  report(f'listening on {", ".join(front.listening)} ({settings.who_may_call()})')


def _asked_to_end() -> 'asyncio.Future[str]':
  """Is done when a signal comes, with its name."""
  loop = asyncio.get_running_loop()
  asked: asyncio.Future[str] = loop.create_future()

  def ask(number: signal.Signals) -> None:
    if not asked.done():
      asked.set_result(number.name)

  for number in _SIGNALS:
    # What nohup or a shell's & has had ignored stays so.
    if signal.getsignal(number) != signal.SIG_IGN:
      loop.add_signal_handler(number, ask, number)
  return asked
