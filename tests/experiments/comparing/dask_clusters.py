"""Local Dask clusters for tests, whose processes can be killed."""

import json
import os
import pathlib
import subprocess
import sys
import time

import psutil

ROOT = pathlib.Path(__file__).resolve().parents[3]
SECONDS = 300.0


def environment(**variables):
  """Returns the environment of programs that import packages like this process."""
  path = os.pathsep.join(filter(None, [str(ROOT), *sys.path]))
  return {**os.environ, 'PYTHONPATH': path, **variables}


def wait_until(condition, *processes):
  """Waits until a condition is true; fails if one of the processes ends."""
  deadline = time.monotonic() + SECONDS
  while not condition():
    for each in processes:
      assert each.poll() is None, each.args
    assert time.monotonic() < deadline
    time.sleep(0.05)


def children_of(process):
  return psutil.Process(process.pid).children(recursive=True)


def cells_of(process):
  """Returns a worker's descendants that run a cell, by the log that they write."""
  return [each for each in children_of(process) if _output(each).endswith('/log.txt')]


def _output(process):
  try:
    return os.readlink(f'/proc/{process.pid}/fd/1')
  except OSError:
    return ''


class DaskCluster:
  """A scheduler and workers, each a process; a context manager that ends them."""

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
    # A worker logs this with and without a nanny.
    wait_until(lambda: 'Registered to' in log.read_text(), process)
    return process

  def logs(self):
    """Returns the logs of all processes."""
    numbers = range(1, len(self._processes) + 1)
    return '\n'.join(self._log(each).read_text() for each in numbers)

  def _log(self, number):
    return self._folder / f'{number}.log'

  def _start(self, *arguments, **variables):
    number = len(self._processes) + 1
    directory = self._folder / f'{number}'  # Outside of the checkout.
    directory.mkdir()
    variables = {'DASK_CONFIG': str(self._folder / 'none'), **variables}
    with self._log(number).open('w') as log:
      process = subprocess.Popen(
        [sys.executable, '-m', 'dask', *arguments, '--no-dashboard'],
        cwd=directory,
        env=environment(**variables),
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
      )
    self._processes.append(process)
    return process

  def end(self):
    """Kills all processes and their children."""
    children = []
    for process in self._processes:
      if process.poll() is None:
        children += psutil.Process(process.pid).children(recursive=True)
        process.kill()
    for process in self._processes:
      process.wait()
    for each in children:
      try:
        each.kill()
      except psutil.NoSuchProcess:
        continue
    psutil.wait_procs(children, timeout=10)

  def __enter__(self):
    return self

  def __exit__(self, *unused):
    self.end()
