"""Runs programs that use the runtime in new processes, and checks how they end.

Importing TFF takes eight seconds, so one process imports it, and each program is forked
from it before anything is computed. The program then is like any other: its standard
output is a pipe, it leads a session, and the interpreter exits as usual.
"""

import os
import signal
import subprocess
import sys
import time

import psutil

_TIMEOUT_SECONDS = 60

# A request is three lines: the folder for output, the file with the program, and
# whether the program ignores Ctrl-C, like a program that a script starts in the
# background. The forking process ignores it as well.
_FORK_SERVER = """
import os, signal, sys
import tensorflow_federated as tff
from tff_dp_aggregators.learning import runtime
print('ready', flush=True)
while True:
  folder, path, interrupt = (sys.stdin.readline().strip() for _ in range(3))
  if not folder:
    sys.exit()
  pid = os.fork()
  if pid == 0:
    break
  print(pid, flush=True)
  print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
os.setsid()
if interrupt != 'ignored':
  signal.signal(signal.SIGINT, signal.default_int_handler)
os.dup2(os.open('/dev/null', os.O_RDONLY), 0)
os.dup2(os.open(os.path.join(folder, 'stdout'), os.O_WRONLY), 1)
os.dup2(os.open(os.path.join(folder, 'stderr'), os.O_WRONLY | os.O_CREAT), 2)
exec(open(path).read())
"""


class Programs:
  """A process that starts programs, one at a time."""

  def __init__(self):
    self._process = subprocess.Popen(
      [sys.executable, '-c', _FORK_SERVER],
      env={
        **os.environ,
        'PYTHONPATH': os.pathsep.join(sys.path),
        'TF_CPP_MIN_LOG_LEVEL': '3',
      },
      stdin=subprocess.PIPE,
      stdout=subprocess.PIPE,
      text=True,
      preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN),
    )
    assert self._process.stdout.readline() == 'ready\n'

  def start(self, source, folder, interrupt='default'):
    """Starts a program; it ignores Ctrl-C if `interrupt` is 'ignored'."""
    os.mkfifo(folder / 'stdout')
    (folder / 'program.py').write_text(source)
    self._process.stdin.write(f'{folder}\n{folder / "program.py"}\n{interrupt}\n')
    self._process.stdin.flush()
    pid = int(self._process.stdout.readline())
    return Program(pid, folder, self._process.stdout)

  def end(self):
    """Ends the process from which programs are forked."""
    self._process.communicate('\n\n\n', timeout=_TIMEOUT_SECONDS)


class Program:
  def __init__(self, pid, folder, codes):
    self.pid = pid
    self._stderr = folder / 'stderr'
    self._codes = codes
    self._stdout = open(folder / 'stdout')

  def line(self):
    return self._stdout.readline()

  def stderr(self):
    """Returns its standard error so far."""
    return self._stderr.read_text()

  def children(self):
    """Returns its only child, TFF's worker, in a list."""
    children = psutil.Process(self.pid).children(recursive=True)
    assert [child.name() for child in children] == ['worker_binary']
    return children

  def signal(self, number):
    """Sends a signal to the program but not to its worker."""
    os.kill(self.pid, number)

  def finish(self, children=()):
    """Checks that no process is left; returns the rest of the output and exit code."""
    try:
      started = time.monotonic()
      # Reaches the end only when every process that holds the pipe has ended.
      rest = self._stdout.read()
      code = int(self._codes.readline())
      assert time.monotonic() - started < _TIMEOUT_SECONDS
      _, alive = psutil.wait_procs(children, timeout=10)
      assert not alive
      return rest, code
    finally:
      self._stdout.close()
      for process in children:
        if process.is_running():
          process.kill()
