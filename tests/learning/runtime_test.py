"""Tests that programs with `local_runtime` end and leave no process."""

import signal
import time

import pytest

from tests.learning import programs_that_end

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
  if what == 'swallow':
    class Destructor:
      def __del__(self):
        print('in the destructor', flush=True)
        time.sleep(60)  # Ctrl-C in here is dropped by Python.
    Destructor()
    while True:
      compute()
"""


@pytest.fixture(scope='module')
def programs():
  programs = programs_that_end.Programs()
  yield programs
  programs.end()


@pytest.mark.parametrize(
  'what, number, code',
  [
    ('compute', signal.SIGTERM, 128 + signal.SIGTERM),
    # A destructor drops the KeyboardInterrupt; Python then exits by the signal itself.
    pytest.param('swallow', signal.SIGINT, -signal.SIGINT, marks=pytest.mark.slow),
    ('compute', signal.SIGKILL, -signal.SIGKILL),
  ],
)
def test_signalled_program_leaves_no_process(what, number, code, programs, tmp_path):
  program = programs.start(_PROGRAM.format(what=what), tmp_path)
  assert program.line() == 'computed 3\n', program.stderr()
  children = program.children()
  if what == 'swallow':
    assert program.line() == 'in the destructor\n'
    time.sleep(0.5)  # The destructor has to be asleep when it is interrupted.
  program.signal(number)
  assert program.finish(children) == ('', code)
  if what == 'swallow':
    assert 'Exception ignored in' in program.stderr()


@pytest.mark.slow
def test_finished_program_that_ignores_ctrl_c_leaves_no_process(programs, tmp_path):
  program = programs.start(_PROGRAM.format(what='end'), tmp_path, interrupt='ignored')
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


def test_runtime_that_is_never_exited_ends_with_the_interpreter(programs, tmp_path):
  program = programs.start(_NEVER_LEFT, tmp_path)
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
  number, code, order, programs, tmp_path
):
  program = programs.start(_GRACEFUL.format(order=order, again=True), tmp_path)
  assert program.line() == 'computed 3\n', program.stderr()
  children = program.children()
  # Terminals and batch systems send the signal to the worker as well.
  for process in children:
    process.send_signal(number)
  program.signal(number)
  assert program.line() == 'after the round 3\n', program.stderr()
  assert program.stderr().count('Stopping soon.') == 1
  assert program.children() == children  # The same worker.
  program.signal(number)
  assert program.finish(children) == ('', code)


@pytest.mark.slow
def test_loop_ends_normally_after_stop_request(programs, tmp_path):
  order = ('request', 'runtime')
  program = programs.start(_GRACEFUL.format(order=order, again=False), tmp_path)
  assert program.line() == 'computed 3\n', program.stderr()
  program.signal(signal.SIGINT)
  assert program.finish() == ('after the round 3\nleft True\n', 0)
  assert 'Traceback' not in program.stderr()


_INTERRUPTED_OFTEN = """
import signal, random
import numpy as np
import tensorflow as tf
from tff_dp_aggregators.learning import interrupts

features, labels = np.zeros((20, 64), np.float32), np.arange(20)
moments = random.Random(0)
for _ in range({times}):
  try:
    with interrupts.Signals():
      signal.signal(signal.SIGALRM, signal.getsignal(signal.SIGTERM))
      signal.setitimer(signal.ITIMER_REAL, moments.uniform(0.0002, 0.002))
      while True:
        tf.data.Dataset.from_tensor_slices((features, labels)).shuffle(20, 3).batch(5)
  except SystemExit:
    pass
print('survived')
"""


@pytest.mark.slow
def test_tensorflow_survives_frequent_signals(programs, tmp_path):
  # Exceptions raised inside its native code crashed it within the first few thousand.
  program = programs.start(_INTERRUPTED_OFTEN.format(times=4000), tmp_path)
  assert program.finish() == ('survived\n', 0), program.stderr()[-3000:]
