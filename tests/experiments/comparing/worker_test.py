"""What a worker does not let a model of the user's own have."""

import os
import signal
import subprocess
import sys

from experiments.comparing import worker

_READS = """
import os, sys
from experiments.comparing import worker
taken = worker._taken_stdin()
print(repr(sys.stdin.read()), os.read(taken, 10))
"""


def test_a_model_that_reads_takes_no_work_away():
  result = subprocess.run(
    [sys.executable, '-c', _READS],
    input='work',
    capture_output=True,
    text=True,
    env={**os.environ, 'PYTHONPATH': os.pathsep.join(filter(None, sys.path))},
  )
  assert result.stdout == "'' b'work'\n", result.stderr


def test_the_death_of_a_worker_is_seen_though_a_fork_of_it_lives():
  reading, writing = os.pipe()
  worker._silence(writing)  # What the fork does.
  assert os.read(reading, 1) == b''
  assert not os.get_inheritable(writing)
  os.close(reading)
  os.close(writing)


_RUNS_ON = """
import signal, time
from experiments.comparing import process, worker
process.LONELY_SECONDS = 0.5
signal.signal(signal.SIGINT, lambda *unused: print('to end', flush=True))
inbox = worker._Inbox(0)
print(inbox.busy(True), flush=True)
time.sleep(60)
"""


def test_a_round_that_takes_long_is_not_waited_for_by_nobody():
  """Whoever started the process is gone, and another one may wait for its end."""
  process = subprocess.Popen(
    [sys.executable, '-c', _RUNS_ON],
    stdin=subprocess.PIPE,
    stdout=subprocess.PIPE,
    text=True,
    env={**os.environ, 'PYTHONPATH': os.pathsep.join(filter(None, sys.path))},
  )
  assert process.stdout.readline() == 'True\n'
  said, _ = process.communicate(timeout=50)  # Closes its input.
  assert (said, process.returncode) == ('to end\n', -signal.SIGKILL)
