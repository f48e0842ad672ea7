"""Programs that use the runtime, in processes of their own, and how they end.

Importing TFF takes eight seconds, so one process does that, and each program is forked
off it before anything was computed. It then is a program like another: its standard
output is a pipe, it is the first of a session, and the interpreter exits as always.
"""

import os
import signal
import subprocess
import sys
import time

import psutil

_END_SECONDS = 60

# A request is three lines: the folder for what comes out, the file with the program,
# and whether it ignores Ctrl-C, as what a script puts into the background does from its
# start on, and so does this process.
_FORKS = """
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
  """Starts programs, one at a time."""

  def __init__(self):
    self._process = subprocess.Popen(
      [sys.executable, '-c', _FORKS],
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
    """Starts a program; `interrupt` says whether Ctrl-C is 'ignored' there."""
    os.mkfifo(folder / 'stdout')
    (folder / 'program.py').write_text(source)
    self._process.stdin.write(f'{folder}\n{folder / "program.py"}\n{interrupt}\n')
    self._process.stdin.flush()
    pid = int(self._process.stdout.readline())
    return Program(pid, folder, self._process.stdout)

  def end(self):
    """Ends the process that programs are forked off."""
    self._process.communicate('\n\n\n', timeout=_END_SECONDS)


class Program:
  """A program that runs."""

  def __init__(self, pid, folder, codes):
    self.pid = pid
    self._stderr = folder / 'stderr'
    self._codes = codes
    self._stdout = open(folder / 'stdout')

  def line(self):
    """The next line that it prints."""
    return self._stdout.readline()

  def stderr(self):
    """What it has printed there until now."""
    return self._stderr.read_text()

  def children(self):
    """Its worker, as a list."""
    children = psutil.Process(self.pid).children(recursive=True)
    assert [child.name() for child in children] == ['worker_binary']
    return children

  def signal(self, number):
    """Sends a signal to the program alone."""
    os.kill(self.pid, number)

  def finish(self, children=()):
    """Rest of its output and its exit code, after checking that nothing is left."""
    try:
      started = time.monotonic()
      # Ends only when every process that holds the pipe has ended.
      rest = self._stdout.read()
      code = int(self._codes.readline())
      assert time.monotonic() - started < _END_SECONDS
      _, alive = psutil.wait_procs(children, timeout=10)
      assert not alive
      return rest, code
    finally:
      self._stdout.close()
      for process in children:
        if process.is_running():
          process.kill()
