"""Worker programs that tests start, and plain calls to them, without TFF."""

import contextlib
import json
import os
import pathlib
import subprocess
import sys
import threading
import time

import grpc
import psutil

from tff_dp_aggregators.workers import protocol

ROOT = pathlib.Path(__file__).resolve().parents[2]
BINARY = 'worker_binary'
_SECONDS = 60
# A request for an executor of one client; tests/learning has TFF make the same.
ONE_CLIENT = b'\n\r\n\t\n\x07clients\x10\x01'


class Worker:
  """A worker program that listens, or has ended.

  Attributes:
    lines: What it has printed until now.
    address: Where it listens; None if it has ended instead.
    process: The program, `worker_binary` being its child.
  """

  def __init__(
    self, *arguments, python=(sys.executable, '-m'), command=None, **environment
  ):
    command = command or (*python, 'experiments.worker', '--port=0')
    self.process = psutil.Popen(
      [*command, *arguments],
      cwd=ROOT,
      env={**os.environ, 'PYTHONPATH': str(ROOT), **environment},
      stdin=subprocess.DEVNULL,
      stdout=subprocess.PIPE,
      stderr=subprocess.STDOUT,
      text=True,
    )
    self.lines = []
    self._over = False
    self._reader = threading.Thread(target=self._read, daemon=True)
    self._reader.start()
    until(lambda: self._over or self.said('listening on '))
    found = [line for line in self.lines if line.startswith('listening on ')]
    self.address = found[0].split()[2] if found else None

  def _read(self):
    for line in self.process.stdout:
      self.lines.append(line.rstrip('\n'))
    self._over = True

  def said(self, words):
    """Whether it has printed a line with these words."""
    return any(words in line for line in self.lines)

  def binary(self):
    """Its `worker_binary`, which runs."""
    found = []

    def look():
      for child in self.process.children():
        with contextlib.suppress(psutil.NoSuchProcess):
          if child.name() == BINARY and child.status() != psutil.STATUS_ZOMBIE:
            found[:] = [child]
            return True
      return False

    until(look)
    return found[0]

  def finish(self):
    """Exit code and what was printed, once it has ended and nothing is left of it."""
    code = self.process.wait(_SECONDS)
    self._reader.join(_SECONDS)  # Ends when every process that holds the pipe has.
    assert self._over
    return code, self.lines

  def __enter__(self):
    return self

  def __exit__(self, *unused):
    if self.process.is_running():
      self.process.kill()  # What is its child ends by the kernel.
    self.finish()


class Caller:
  """Plain calls to a worker, as bytes.

  Args:
    target: Address with port.
    credentials: Of the channel; none for a plain one.
    options: Of the channel.

  Attributes:
    channel: That of the calls.
  """

  def __init__(self, target, credentials=None, options=()):
    options = (*protocol.LOCAL_CHANNEL_OPTIONS, *options)
    if credentials is None:
      self.channel = grpc.insecure_channel(target, options)
    else:
      self.channel = grpc.secure_channel(target, credentials, options)

  def call(self, method, request=b'', seconds=_SECONDS):
    """The answer of a method of TFF's executor service."""
    return self.of_path(protocol.path_of(method))(request, timeout=seconds)

  def executor(self, seconds=_SECONDS):
    """Has an executor made."""
    return self.call(protocol.GET_EXECUTOR, ONE_CLIENT, seconds)

  def of_path(self, path):
    """A method by its path."""
    return self.channel.unary_unary(path)

  def status(self, request=b'', seconds=_SECONDS):
    """The worker's status."""
    return json.loads(self.of_path(protocol.STATUS)(request, timeout=seconds))

  def __enter__(self):
    return self

  def __exit__(self, *unused):
    self.channel.close()


def stop(process):
  """Stops a process, every thread of it, as Ctrl-Z does."""
  process.suspend()
  tasks = pathlib.Path(f'/proc/{process.pid}/task')

  def state(task):
    # After the name, which may have spaces and parentheses in it.
    return (task / 'stat').read_text().rpartition(')')[2].split()[0]

  until(lambda: all(state(task) == 'T' for task in tasks.iterdir()))


def until(condition, seconds=_SECONDS):
  """Returns when it is so; fails if that takes too long."""
  deadline = time.monotonic() + seconds
  while not condition():
    assert time.monotonic() < deadline, 'it took too long'
    time.sleep(0.02)
