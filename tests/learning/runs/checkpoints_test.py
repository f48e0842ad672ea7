"""Checkpoints of a run.

Claims:

* The last one is read, bit by bit; two are kept.
* One that is broken, in whatever way, is put aside, and the one before is read; if none
  can be read, that is an error which says what to do.
* What writes left that were killed is removed by whoever goes on, and nothing else.
"""

import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest

from tff_dp_aggregators.accounting.records import ledger
from tff_dp_aggregators.learning.runs import checkpoints as checkpoints_lib

_LIKE = {'weights': np.zeros(2, np.float32)}


def _checkpoint(rounds):
  state = {'weights': np.full(2, rounds + 0.1, np.float32)}
  return checkpoints_lib.Checkpoint(rounds, state, ledger.Head(rounds, 'ab' * 32))


@pytest.fixture
def three(tmp_path):
  checkpoints = checkpoints_lib.Checkpoints(str(tmp_path / 'checkpoints'))
  for rounds in (0, 2, 5):
    checkpoints.save(_checkpoint(rounds))
  return tmp_path / 'checkpoints'


def _check(found, rounds):
  expected = _checkpoint(rounds)
  assert (found.rounds, found.head) == (expected.rounds, expected.head)
  np.testing.assert_array_equal(found.state['weights'], expected.state['weights'])


def _files(path):
  return [each for each in pathlib.Path(path).rglob('*') if each.is_file()]


def test_the_last_is_read_and_two_are_kept(three):
  assert sorted(os.listdir(three)) == ['after_round_2', 'after_round_5']
  _check(checkpoints_lib.Checkpoints(str(three)).latest(_LIKE), 5)
  assert checkpoints_lib.is_any(str(three))


_IS_KILLED = """
import os, signal, sys
from tff_dp_aggregators.base import new_files
os.fsync = lambda descriptor: os.kill(os.getpid(), signal.SIGKILL)
new_files.replace(sys.argv[1], 'a state, with the key of the noise')
"""


def test_what_a_killed_write_left_is_removed_by_whoever_goes_on(three):
  (three / 'result_of_round_5').touch()
  (three / 'original.json').touch()
  there = sorted(os.listdir(three))
  path = three / 'result_of_round_6'
  subprocess.run([sys.executable, '-c', _IS_KILLED, str(path)])
  (left,) = set(os.listdir(three)) - set(there)
  assert (three / left).read_text() == 'a state, with the key of the noise'
  _check(checkpoints_lib.Checkpoints(str(three)).latest(_LIKE), 5)
  assert sorted(os.listdir(three)) == there


def _emptied(path):
  path.write_bytes(b'')


def _zeroed(path):
  path.write_bytes(bytes(len(path.read_bytes())))


@pytest.mark.parametrize('breaking', [_emptied, _zeroed, pathlib.Path.unlink])
def test_one_that_is_broken_is_put_aside_for_the_one_before(breaking, three):
  for path in _files(three / 'after_round_5'):
    breaking(path)
  checkpoints = checkpoints_lib.Checkpoints(str(three))
  _check(checkpoints.latest(_LIKE), 2)
  assert sorted(os.listdir(three)) == ['after_round_2', 'unreadable_1_after_round_5']
  # The round is reached again.
  checkpoints.save(_checkpoint(5))
  _check(checkpoints.latest(_LIKE), 5)


def test_without_one_that_can_be_read_there_is_an_error(three):
  for path in _files(three):
    _emptied(path)
  with pytest.raises(ValueError, match='after_round_5 cannot be read, nor is there an'):
    checkpoints_lib.Checkpoints(str(three)).latest(_LIKE)
  assert sorted(os.listdir(three)) == ['after_round_2', 'after_round_5']
