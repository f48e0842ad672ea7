"""The log of a cell, which whoever runs the cell holds."""

import fcntl
import os
import threading
import time

import pytest

from experiments.comparing import logs


def _hold(path):
  descriptor = os.open(path, os.O_RDWR | os.O_CREAT)
  fcntl.flock(descriptor, fcntl.LOCK_EX)
  return descriptor


def test_a_log_that_another_process_holds_is_waited_for_and_then_refused(tmp_path):
  path = tmp_path / 'cell.log'
  other = _hold(path)
  with pytest.raises(BlockingIOError, match='still runs the cell of .*/cell.log'):
    with logs.held(str(path), 0.3):
      pass
  timer = threading.Timer(0.5, os.close, [other])
  begun = time.monotonic()
  timer.start()
  with logs.held(str(path), 60.0):
    assert time.monotonic() - begun >= 0.4
    with pytest.raises(BlockingIOError), logs.held(str(path), 0.0):
      pass
  with logs.held(str(path), 0.0):
    pass


def test_a_log_that_was_taken_away_meanwhile_is_another_one(tmp_path):
  """Who held it has brought it into the directory of the cell, and let go of it."""
  directory = tmp_path / 'cell'
  path = logs.begin(str(directory))
  other = _hold(path)

  def end():
    logs.end(str(directory))
    os.close(other)

  threading.Timer(0.3, end).start()
  with logs.held(path, 60.0):
    third = os.open(path, os.O_RDWR)
    with pytest.raises(BlockingIOError):
      fcntl.flock(third, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(third)
