"""A program that uses `local_runtime` ends when it is done and leaves no process.

Each case runs a program of its own with piped stdout, which TFF's worker would keep
open for ever, and looks afterwards at everything the program had started: the normal
end, an exception, SIGTERM, and Ctrl-C to the program alone. That of a terminal, which
the worker gets as well, is among the tests of the simulations.
"""

import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

# Importing TFF and starting a worker takes about ten seconds of an idle core.
_START_SECONDS = 240
_END_SECONDS = 60

_PROGRAM = """
import sys, time
import tensorflow_federated as tff
from tff_dp_aggregators.learning import runtime

compute = tff.tensorflow.computation(lambda: 1 + 2)
with runtime.local_runtime():
  print('computed', compute(), flush=True)
  if sys.argv[1] == 'raise':
    raise RuntimeError('as planned')
  if sys.argv[1] == 'compute':
    while True:
      compute()
  if sys.argv[1] == 'sleep':
    time.sleep(1000)
  if sys.argv[1] == 'swallow':
    class Destructor:
      def __del__(self):
        print('in the destructor', flush=True)
        time.sleep(60)  # Ctrl-C in here is dropped by Python.
    Destructor()
    while True:
      compute()
print('left', flush=True)
"""


def _start(what, tmp_path, interrupt=signal.SIG_DFL):
  """The program, after its first computation; how it takes Ctrl-C may be chosen."""
  with open(tmp_path / 'stderr', 'wb') as stderr:
    program = subprocess.Popen(
      [sys.executable, '-c', _PROGRAM, what],
      env={
        **os.environ,
        'PYTHONPATH': os.pathsep.join(sys.path),
        'TF_CPP_MIN_LOG_LEVEL': '3',
      },
      stdout=subprocess.PIPE,
      stderr=stderr,
      start_new_session=True,
      # A test run in the background of a shell ignores Ctrl-C, and hands that on.
      preexec_fn=lambda: signal.signal(signal.SIGINT, interrupt),
    )
  started = time.monotonic()
  line = program.stdout.readline()
  assert line == b'computed 3\n', (tmp_path / 'stderr').read_text()
  assert time.monotonic() - started < _START_SECONDS
  return program


def _finish(program, children):
  """Rest of the output and the exit code, after checking that nothing is left."""
  try:
    # Ends only when every process that holds the pipe has ended.
    rest, _ = program.communicate(timeout=_END_SECONDS)
    _, alive = psutil.wait_procs(children, timeout=10)
    assert not alive
    return rest.decode(), program.returncode
  finally:
    for process in (
      [*children, psutil.Process(program.pid)] if (program.poll() is None) else children
    ):
      if process.is_running():
        process.kill()


def _children(program):
  children = psutil.Process(program.pid).children(recursive=True)
  assert [child.name() for child in children] == ['worker_binary']
  return children


def test_a_program_that_raises_leaves_nothing(tmp_path):
  program = _start('raise', tmp_path)
  try:
    children = psutil.Process(program.pid).children(recursive=True)
  except psutil.NoSuchProcess:
    children = []  # Was faster than this test: nothing to look for by number.
  assert _finish(program, children) == ('', 1)
  assert 'RuntimeError: as planned' in (tmp_path / 'stderr').read_text()


def test_a_program_that_ends_leaves_nothing_though_it_ignores_ctrl_c(tmp_path):
  # As shells start what a script puts into the background; workers inherit it. That
  # one that heeds Ctrl-C ends is seen of the README's example and of the simulations.
  program = _start('end', tmp_path, interrupt=signal.SIG_IGN)
  assert _finish(program, []) == ('left\n', 0)


@pytest.mark.parametrize(
  'what, number, code',
  [
    pytest.param('sleep', signal.SIGTERM, 128 + signal.SIGTERM, marks=pytest.mark.slow),
    ('compute', signal.SIGTERM, 128 + signal.SIGTERM),
    # Python ends by the signal itself after a KeyboardInterrupt.
    ('compute', signal.SIGINT, -signal.SIGINT),
    ('swallow', signal.SIGINT, -signal.SIGINT),
  ],
  ids=[
    'terminated_idle',
    'terminated_busy',
    'interrupted',
    'interrupted_where_python_drops_it',
  ],
)
def test_a_program_that_is_stopped_leaves_nothing(what, number, code, tmp_path):
  program = _start(what, tmp_path)
  children = _children(program)
  if what == 'swallow':
    assert program.stdout.readline() == b'in the destructor\n'
    time.sleep(0.5)  # So that it sleeps when it is interrupted.
  program.send_signal(number)
  assert _finish(program, children) == ('', code)
  if what == 'swallow':
    assert 'Exception ignored in' in (tmp_path / 'stderr').read_text()


_INTERRUPTED_OFTEN = """
import random, signal
import numpy as np
import tensorflow as tf
from tff_dp_aggregators.learning import runtime

features, labels = np.zeros((20, 64), np.float32), np.arange(20)
moments = random.Random(0)
for _ in range(4000):
  try:
    with runtime._Signals():
      signal.signal(signal.SIGALRM, signal.getsignal(signal.SIGTERM))
      signal.setitimer(signal.ITIMER_REAL, moments.uniform(0.0002, 0.002))
      while True:
        tf.data.Dataset.from_tensor_slices((features, labels)).shuffle(20, 3).batch(5)
  except SystemExit:
    pass
print('survived')
"""


def test_tensorflow_survives_being_interrupted():
  # Raising inside of its native code crashed it within the first few thousand.
  result = subprocess.run(
    [sys.executable, '-c', _INTERRUPTED_OFTEN],
    env={**os.environ, 'PYTHONPATH': os.pathsep.join(sys.path)},
    capture_output=True,
    text=True,
    timeout=_START_SECONDS,
    preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
  )
  assert result.returncode == 0, result.stderr[-3000:]
  assert result.stdout == 'survived\n'
