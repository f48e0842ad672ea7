"""Tests that programs with `local_runtime` end and leave no process.

Importing TFF takes eight seconds, so one process imports it, and each program is forked
from it before anything is computed. The program then is like any other: its standard
output is a pipe, it leads a session, and the interpreter exits as usual.
"""

import functools
import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

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


@pytest.fixture(scope='module')
def fork_server():
  process = subprocess.Popen(
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
  assert process.stdout.readline() == 'ready\n'
  yield process
  process.communicate('\n\n\n', timeout=_TIMEOUT_SECONDS)


@pytest.fixture
def start(fork_server, tmp_path):
  """Returns a function that starts a program from its source."""
  return functools.partial(_Program, fork_server, tmp_path)


class _Program:
  def __init__(self, fork_server, folder, source, interrupt='default'):
    """Starts the program; it ignores Ctrl-C if `interrupt` is 'ignored'."""
    os.mkfifo(folder / 'stdout')
    (folder / 'program.py').write_text(source)
    fork_server.stdin.write(f'{folder}\n{folder / "program.py"}\n{interrupt}\n')
    fork_server.stdin.flush()
    self._codes = fork_server.stdout
    self.pid = int(self._codes.readline())
    self._stdout = open(folder / 'stdout')
    # Its standard output and its standard error so far.
    self.line, self.stderr = self._stdout.readline, (folder / 'stderr').read_text

  def children(self):
    """Returns its only child, TFF's worker, in a list."""
    children = psutil.Process(self.pid).children(recursive=True)
    assert [child.name() for child in children] == ['worker_binary']
    return children

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


_PROGRAM = """
import sys, time
import tensorflow_federated as tff
from tff_dp_aggregators.learning import runtime

what = {what!r}
compute = tff.tensorflow.computation(lambda: 1 + 2)
with runtime.local_runtime():
  print('computed', compute(), flush=True)
  if what == 'compute':
    while True:
      compute()
"""


@pytest.mark.parametrize(
  'what, number, code',
  [
    ('compute', signal.SIGTERM, 128 + signal.SIGTERM),
    ('compute', signal.SIGKILL, -signal.SIGKILL),
  ],
)
def test_signalled_program_leaves_no_process(what, number, code, start):
  program = start(_PROGRAM.format(what=what))
  assert program.line() == 'computed 3\n', program.stderr()
  children = program.children()
  os.kill(program.pid, number)
  assert program.finish(children) == ('', code)


@pytest.mark.slow
def test_finished_program_that_ignores_ctrl_c_leaves_no_process(start):
  program = start(_PROGRAM.format(what='end'), interrupt='ignored')
  assert program.finish() == ('computed 3\n', 0)


_NEVER_LEFT = """
import tensorflow_federated as tff
from tff_dp_aggregators.learning import runtime

compute = tff.tensorflow.computation(lambda: 1 + 2)
runtime.local_runtime().__enter__()  # As in a notebook, whose cells have no `with`.
entered = runtime.local_runtime()
entered.__enter__()
print('computed', compute(), flush=True)
"""


def test_runtime_that_is_never_exited_ends_with_the_interpreter(start):
  program = start(_NEVER_LEFT)
  assert program.line() == 'computed 3\n', program.stderr()
  assert program.finish() == ('', 0)
  assert 'Traceback' not in program.stderr()


_GRACEFUL = """
import contextlib, signal, time
import tensorflow_federated as tff
from tff_dp_aggregators.learning import runtime

compute = tff.tensorflow.computation(lambda: 1 + 2)
with contextlib.ExitStack() as stack:
  for each in {order!r}:
    if each == 'runtime':
      stack.enter_context(runtime.local_runtime())
    else:
      stop = stack.enter_context(runtime.graceful_interrupts('Stopping soon.'))
  print('computed', compute(), flush=True)
  while not stop.requested:
    compute()
  print('after the round', compute(), flush=True)
  while {again!r}:
    compute()
print('left', signal.getsignal(signal.SIGINT) is signal.default_int_handler)
"""


@pytest.mark.parametrize(
  'number, code, order',
  [
    (signal.SIGINT, -signal.SIGINT, ('runtime', 'request')),
    pytest.param(
      signal.SIGTERM,
      128 + signal.SIGTERM,
      ('request', 'runtime'),
      marks=pytest.mark.slow,
    ),
  ],
)
def test_first_signal_requests_a_stop_and_second_ends_at_once(
  number, code, order, start
):
  program = start(_GRACEFUL.format(order=order, again=True))
  assert program.line() == 'computed 3\n', program.stderr()
  children = program.children()
  # Terminals and batch systems send the signal to the worker as well.
  for process in children:
    process.send_signal(number)
  os.kill(program.pid, number)
  assert program.line() == 'after the round 3\n', program.stderr()
  assert program.stderr().count('Stopping soon.') == 1
  assert program.children() == children  # The same worker.
  os.kill(program.pid, number)
  assert program.finish(children) == ('', code)


@pytest.mark.slow
def test_loop_ends_normally_after_stop_request(start):
  order = ('request', 'runtime')
  program = start(_GRACEFUL.format(order=order, again=False))
  assert program.line() == 'computed 3\n', program.stderr()
  os.kill(program.pid, signal.SIGINT)
  assert program.finish() == ('after the round 3\nleft True\n', 0)
  assert 'Traceback' not in program.stderr()
