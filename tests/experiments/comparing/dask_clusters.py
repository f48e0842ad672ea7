"""Dask clusters of processes of this machine, which tests use, and kill."""

import contextlib
import json
import os
import pathlib
import re
import shlex
import shutil
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
  """Waits until something is true, while processes live.

  Args:
    condition: What is to be true.
    *processes: Which are not to end before.
  """
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

  def __init__(self, folder, *arguments, command=None):
    """Starts the scheduler.

    Args:
      folder: For what they leave.
      *arguments: Of the scheduler.
      command: To start it, as people give it; `None` for one of tests.
    """
    self._folder = folder
    folder.mkdir(exist_ok=True)
    self._processes = []
    self.workers = []
    file = folder / 'scheduler.json'
    command = command or 'dask scheduler --host=127.0.0.1 --port=0'
    try:
      self.scheduler = self._start(command, f'--scheduler-file={file}', *arguments)
      wait_until(lambda: file.exists() and file.read_text().strip(), self.scheduler)
      self.address = json.loads(file.read_text())['address']
    except BaseException:
      self.end()
      raise

  def worker(self, *arguments, command=None, **variables):
    """Starts a worker, and waits until the scheduler has it.

    Args:
      *arguments: Of the worker.
      command: To start it, as people give it; `None` for one of tests, of one thread.
      **variables: Of its environment.
    """
    command = command or f'dask worker {self.address} --nthreads=1'
    local = f'--local-directory={self._folder}'
    process = self._start(command, local, *arguments, **variables)
    log = self._log(len(self._processes))
    # What both a worker alone and that of a nanny say.
    wait_until(lambda: 'Registered to' in log.read_text(), process)
    self.workers.append(process)
    return process

  @contextlib.contextmanager
  def another_version(self, folder, version):
    """Makes a copy of the packages that says to be of another version.

    Args:
      folder: Where to; does not exist yet.
      version: Which.

    Yields:
      The path that Python is to find them on.
    """
    for package in ('tff_dp_aggregators', 'experiments'):
      unneeded = shutil.ignore_patterns('__pycache__')
      shutil.copytree(ROOT / package, folder / package, ignore=unneeded)
    init = folder / 'tff_dp_aggregators' / '__init__.py'
    text = re.sub("__version__ = '.*'", f"__version__ = '{version}'", init.read_text())
    init.write_text(text)
    yield os.pathsep.join([str(folder), *filter(None, sys.path)])
    shutil.rmtree(folder)

  def said(self):
    """All that they have said."""
    numbers = range(1, len(self._processes) + 1)
    return '\n'.join(self._log(each).read_text() for each in numbers)

  def _log(self, number):
    return self._folder / f'{number}.log'

  def _start(self, command, *arguments, **variables):
    number = len(self._processes) + 1
    own = self._folder / f'{number}'  # Nothing of the checkout is in it.
    own.mkdir()
    variables = {'DASK_CONFIG': str(self._folder / 'none'), **variables}
    given = shlex.split(command.partition('dask ')[2])
    with self._log(number).open('w') as log:
      process = subprocess.Popen(
        [sys.executable, '-m', 'dask', *given, '--no-dashboard', *arguments],
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
