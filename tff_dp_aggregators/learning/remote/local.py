"""Workers on this machine, which live as long as the training.

Each is the program that other machines run as well, and listens on a socket in a folder
that nobody else may enter. The kernel ends it with this program.
"""

import contextlib
import json
import logging
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator

from tff_dp_aggregators.learning import worker
from tff_dp_aggregators.workers import addresses

_logger = logging.getLogger(__name__)

# Becomes the worker. PR_SET_PDEATHSIG is 1. What a terminal or a batch system sends to
# all processes at once is for the training to act on.
_PROGRAM = """
import ctypes, json, os, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGKILL)
if os.getppid() != int(sys.argv[1]):
  sys.exit(1)
for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
  signal.signal(each, signal.SIG_IGN)
sys.path[:] = json.loads(sys.argv[2])
from tff_dp_aggregators.workers import supervisor
settings = supervisor.Settings(host=sys.argv[3], port=0)
sys.exit(supervisor.run(settings, lambda line: print(line, flush=True)))
"""
_PREFIX = 'tff-dp-workers-'
# Of 107 bytes that the path of a socket may have.
_LONGEST_FOLDER = 95
_LISTENING = 'listening on '
_WARNING = 'warning: '
_START_SECONDS = 120.0
_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 30.0
_PATIENCE_SECONDS = 5.0


@contextlib.contextmanager
def local_workers(number: int) -> Iterator[list[str]]:
  """Has so many workers, each of which is started again if it ends.

  Args:
    number: How many.

  Yields:
    Where gRPC finds each.

  Raises:
    WorkerError: If one does not start.
  """
  with contextlib.ExitStack() as stack:
    folder = stack.enter_context(_folder())
    workers = []
    for each in range(number):
      workers.append(_LocalWorker(os.path.join(folder, str(each))))
      stack.callback(workers[-1].end)
    for started in workers:
      started.wait_until_it_listens()
    yield [started.target for started in workers]


def _folder() -> 'tempfile.TemporaryDirectory[str]':
  """A folder of this user alone, with a path that a socket's may begin with."""
  folder = tempfile.TemporaryDirectory(prefix=_PREFIX)
  if len(folder.name) <= _LONGEST_FOLDER:
    return folder
  folder.cleanup()
  return tempfile.TemporaryDirectory(prefix=_PREFIX, dir='/tmp')


class _LocalWorker:
  """A worker program, one after the other."""

  def __init__(self, path: str):
    self._path = path
    self.target = f'{addresses.SOCKET}{path}'
    self._over, self._listens = threading.Event(), threading.Event()
    self._lock = threading.Lock()
    self._said: list[str] = []
    self._process = self._start()
    threading.Thread(target=self._keep, daemon=True).start()

  def _start(self) -> 'subprocess.Popen[str]':
    with contextlib.suppress(FileNotFoundError):
      os.unlink(self._path)  # Of one that was killed.
    return subprocess.Popen(
      [
        *(sys.executable, '-c', _PROGRAM, str(os.getpid())),
        *(json.dumps(sys.path), self.target),
      ],
      stdin=subprocess.DEVNULL,
      stdout=subprocess.PIPE,
      stderr=subprocess.STDOUT,
      text=True,
    )

  def wait_until_it_listens(self) -> None:
    """Returns when it can be called.

    Raises:
      WorkerError: If it ends before, or takes too long.
    """
    deadline = time.monotonic() + _START_SECONDS
    while not self._listens.wait(0.02):
      if self._process.poll() is not None or time.monotonic() > deadline:
        said = '\n'.join(self._said[-20:])
        raise worker.WorkerError(f'a worker of this machine did not start:\n{said}')

  def _keep(self) -> None:
    """Reads what it says, and starts another one when it ends."""
    pause = _FIRST_PAUSE
    while True:
      begun = time.monotonic()
      assert self._process.stdout is not None
      for line in self._process.stdout:
        self._heard(line.rstrip('\n'))
      self._process.wait()
      if not self._listens.is_set() or self._over.wait(pause):
        return
      quick = time.monotonic() - begun < _LONGEST_PAUSE
      pause = min(2 * pause, _LONGEST_PAUSE) if quick else _FIRST_PAUSE
      with self._lock:
        if self._over.is_set():
          return
        self._process = self._start()

  def _heard(self, line: str) -> None:
    self._said.append(line)
    del self._said[:-100]
    if line.startswith(_LISTENING):
      self._listens.set()
    elif line.startswith(_WARNING):
      _logger.warning('%s', line.removeprefix(_WARNING))

  def end(self) -> None:
    """Ends it, for good; the kernel then ends what it started."""
    self._over.set()
    with self._lock:
      self._process.kill()
    with contextlib.suppress(subprocess.TimeoutExpired):
      self._process.wait(_PATIENCE_SECONDS)
