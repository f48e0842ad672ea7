"""Dask clusters of processes of this machine, which tests use, and kill."""

import json
import os
import pathlib
import subprocess
import sys
import time

import psutil

ROOT = pathlib.Path(__file__).resolve().parents[3]
SECONDS = 300.0


def environment(**more):
  """Of programs that find the packages where this process does."""
  path = os.pathsep.join(filter(None, [str(ROOT), *sys.path]))
  return {**os.environ, 'PYTHONPATH': path, **more}


def wait_until(condition, *processes):
  """Waits until something is true, while processes live."""
  deadline = time.monotonic() + SECONDS
  while not condition():
    for each in processes:
      assert each.poll() is None, each.args
    assert time.monotonic() < deadline
    time.sleep(0.05)


def children_of(process):
  """Processes that one has started, and those that these have."""
  return psutil.Process(process.pid).children(recursive=True)


def cells_of(process):
  """Processes below a worker's nanny that run a cell, whose log they write to."""
  return [each for each in children_of(process) if _output(each).endswith('/log.txt')]


def _output(process):
  try:
    return os.readlink(f'/proc/{process.pid}/fd/1')
  except OSError:
    return ''


class DaskCluster:
  """A scheduler and workers, each a process; ended at the end of a `with`."""

  def __init__(self, folder):
    self._folder = folder
    folder.mkdir(exist_ok=True)
    self._processes = []
    file = folder / 'scheduler.json'
    try:
      self.scheduler = self._start(
        'scheduler', '--host=127.0.0.1', '--port=0', f'--scheduler-file={file}'
      )
      wait_until(lambda: file.exists() and file.read_text().strip(), self.scheduler)
      self.address = json.loads(file.read_text())['address']
    except BaseException:
      self.end()
      raise

  def worker(self, *arguments, **variables):
    """Starts a worker of one thread, and waits until the scheduler has it."""
    local = f'--local-directory={self._folder}'
    process = self._start(
      'worker', self.address, '--nthreads=1', local, *arguments, **variables
    )
    log = self._log(len(self._processes))
    # What both a worker alone and that of a nanny say.
    wait_until(lambda: 'Registered to' in log.read_text(), process)
    return process

  def said(self):
    """All that they have said."""
    numbers = range(1, len(self._processes) + 1)
    return '\n'.join(self._log(each).read_text() for each in numbers)

  def _log(self, number):
    return self._folder / f'{number}.log'

  def _start(self, *arguments, **variables):
    number = len(self._processes) + 1
    own = self._folder / f'{number}'  # Nothing of the checkout is in it.
    own.mkdir()
    variables = {'DASK_CONFIG': str(self._folder / 'none'), **variables}
    with self._log(number).open('w') as log:
      process = subprocess.Popen(
        [sys.executable, '-m', 'dask', *arguments, '--no-dashboard'],
        cwd=own,
        env=environment(**variables),
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
      )
    self._processes.append(process)
    return process

  def end(self):
    """Ends all of it."""
    found = []
    for process in self._processes:
      if process.poll() is None:
        found += psutil.Process(process.pid).children(recursive=True)
        process.kill()
    for process in self._processes:
      process.wait()
    for each in found:
      try:
        each.kill()
      except psutil.NoSuchProcess:
        continue
    psutil.wait_procs(found, timeout=10)

  def __enter__(self):
    return self

  def __exit__(self, *unused):
    self.end()
