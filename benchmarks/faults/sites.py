"""Workers of a campaign, each behind a proxy, one of them on a network of its own."""

import contextlib
import json
import os
import pathlib
import random
import socket
import subprocess
import sys
from collections.abc import Iterator
from typing import IO, Optional

import psutil

from benchmarks.faults import proxy

_ROOT = pathlib.Path(__file__).resolve().parents[2]
_BINARY = 'worker_binary'
_LOOPBACK = '127.0.0.1'
# Becomes a program that the kernel ends with the thread that started it.
_LAUNCHER = """
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGKILL)
if os.getppid() == int(sys.argv[1]):
  os.execvp(sys.argv[2], sys.argv[2:])
"""


class Network:
  """A network namespace with one link to this machine's, which can be set down."""

  def __init__(self, name: str, outside: str, inside: str):
    self._name, self._inside = name, inside
    self.address = inside
    self.prefix = ('ip', 'netns', 'exec', name)
    self._outside = outside

  def make(self) -> None:
    """Makes it.

    Raises:
      subprocess.CalledProcessError: If this user may not.
    """
    name, there = self._name, f'{self._name}i'
    _ip('netns', 'add', name)
    _ip('link', 'add', f'{name}o', 'type', 'veth', 'peer', 'name', there)
    _ip('link', 'set', there, 'netns', name)
    _ip('addr', 'add', f'{self._outside}/30', 'dev', f'{name}o')
    _ip('link', 'set', f'{name}o', 'up')
    _ip('-n', name, 'addr', 'add', f'{self._inside}/30', 'dev', there)
    _ip('-n', name, 'link', 'set', 'lo', 'up')
    self.set('up')

  def set(self, state: str) -> None:
    """Sets the link 'up' or 'down', at the worker's end."""
    _ip('-n', self._name, 'link', 'set', f'{self._name}i', state)

  def remove(self) -> None:
    """Removes it, with its link."""
    with contextlib.suppress(subprocess.CalledProcessError, FileNotFoundError):
      _ip('netns', 'del', self._name)


def _ip(*arguments: str) -> None:
  subprocess.run(('ip', *arguments), check=True, capture_output=True)


@contextlib.contextmanager
def network() -> Iterator[Optional[Network]]:
  """A network namespace, removed in the end; `None` where this user may make none."""
  number = os.getpid() % 2**12
  base = f'10.213.{number // 64}.{4 * (number % 64)}'
  first, last = base.rsplit('.', 1)
  found = Network(
    f'wf{os.getpid()}', f'{first}.{int(last) + 1}', f'{first}.{int(last) + 2}'
  )
  try:
    found.make()
  except (subprocess.CalledProcessError, FileNotFoundError):
    found.remove()
    yield None
    return
  try:
    yield found
  finally:
    found.remove()


class Site:
  """A worker program, and the proxy by which it is reached.

  Attributes:
    address: Of the proxy, with its port: what a training calls the worker.
    network: Whose link is the worker's alone; `None` if it is on this machine's.
  """

  def __init__(self, log: str, stall_seconds: float, network: Optional[Network] = None):
    """Starts the proxy, and not yet the worker.

    Args:
      log: Path of a file for what the worker prints.
      stall_seconds: The worker's flag of this name.
      network: Where to start both; `None` for this machine's.
    """
    self.network = network
    self._log, self._stall_seconds = log, stall_seconds
    self._worker: Optional[psutil.Popen] = None
    self._port = _free_port()
    address = _LOOPBACK if network is None else network.address
    self._proxy = self._start(
      ('benchmarks.faults.proxy', address, str(self._port)),
      stdin=subprocess.PIPE,
      stdout=subprocess.PIPE,
    )
    self.address = f'{address}:{self._answer()}'

  def _start(self, program: tuple[str, ...], **pipes: object) -> psutil.Popen:
    prefix = () if self.network is None else self.network.prefix
    return psutil.Popen(
      [
        *(sys.executable, '-I', '-S', '-c', _LAUNCHER, str(os.getpid())),
        *(*prefix, sys.executable, '-m', *program),
      ],
      cwd=_ROOT,
      text=True,
      **pipes,
    )

  def _answer(self) -> str:
    stream: IO[str] = self._proxy.stdout
    line = stream.readline()
    if not line:
      raise RuntimeError('the proxy of a worker ended; see what it printed above.')
    return line.strip()

  def start(self) -> None:
    """Starts the worker, on the port that it had before; does not wait."""
    with open(self._log, 'a', encoding='utf-8') as log:
      self._worker = self._start(
        (
          'experiments.worker',
          f'--port={self._port}',
          f'--stall_seconds={self._stall_seconds:g}',
        ),
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
      )

  @property
  def worker(self) -> Optional[psutil.Process]:
    """The worker program, if it runs."""
    if self._worker is None or self._worker.poll() is not None:
      return None
    return self._worker

  def binary(self) -> Optional[psutil.Process]:
    """Its `worker_binary`, if there is one."""
    with contextlib.suppress(psutil.NoSuchProcess):
      for child in self.worker.children() if self.worker else ():
        with contextlib.suppress(psutil.NoSuchProcess):
          if child.name() == _BINARY and child.status() != psutil.STATUS_ZOMBIE:
            return child
    return None

  def pass_through(
    self, wire: str = 'pass', lie: str = '', seed: int = 0, other: bytes = b''
  ) -> None:
    """Says what is wrong with what passes the proxy; by default nothing is.

    Args:
      wire: Of `proxy.WIRES`.
      lie: Of `proxy.LIES`.
      seed: Of what is random about it.
      other: The answer of the lie 'other'.
    """
    assert wire in proxy.WIRES and lie in proxy.LIES
    told = {'wire': wire, 'lie': lie, 'seed': seed, 'other': other.hex()}
    self._proxy.stdin.write(json.dumps(told) + '\n')
    self._proxy.stdin.flush()
    self._answer()

  def end(self) -> None:
    """Ends both, for good."""
    for process in (self._proxy, self._worker):
      if process is not None:
        process.kill()
        process.wait(10)
    self._proxy.stdin.close()
    self._proxy.stdout.close()


def _free_port() -> int:
  with socket.socket() as probe:
    probe.bind((_LOOPBACK, 0))
    return probe.getsockname()[1]


@contextlib.contextmanager
def running(
  number: int, folder: str, stall_seconds: float, network: Optional[Network] = None
) -> Iterator[list[Site]]:
  """So many workers' places, whose proxies run; the workers are still to be started.

  Args:
    number: How many.
    folder: For the files of what they print.
    stall_seconds: Of the workers' flag of this name.
    network: Where the last one is; `None` for this machine's, as the others.
  """
  with contextlib.ExitStack() as stack:
    found = []
    for each in range(number):
      site = Site(
        os.path.join(folder, f'worker_{each}.log'),
        stall_seconds,
        network if each == number - 1 else None,
      )
      stack.callback(site.end)
      found.append(site)
    yield found


def seed_of(rng: random.Random) -> int:
  """A seed for a proxy."""
  return rng.getrandbits(32)
