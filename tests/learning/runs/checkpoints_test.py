"""Checkpoints of a run."""

import os
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

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


def _halved(path):
  content = path.read_bytes()
  path.write_bytes(content[: len(content) // 2])


def _become_a_directory(path):  # As those of earlier versions are.
  path.unlink()
  path.mkdir()


@pytest.mark.parametrize('breaking', [_emptied, _zeroed, _halved, _become_a_directory])
def test_one_that_is_broken_is_put_aside_for_the_one_before(breaking, three):
  breaking(three / 'after_round_5')
  checkpoints = checkpoints_lib.Checkpoints(str(three))
  _check(checkpoints.latest(_LIKE), 2)
  kept, aside = sorted(os.listdir(three))
  assert kept == 'after_round_2' and aside.startswith('unreadable_5_')
  # The round is reached again.
  checkpoints.save(_checkpoint(5))
  _check(checkpoints.latest(_LIKE), 5)


def test_without_one_that_can_be_read_there_is_an_error(three):
  for path in three.iterdir():
    _emptied(path)
  with pytest.raises(ValueError, match='after_round_5 cannot be read, nor is there an'):
    checkpoints_lib.Checkpoints(str(three)).latest(_LIKE)
  assert sorted(os.listdir(three)) == ['after_round_2', 'after_round_5']


_STATE = {
  'bytes': b'ends in a zero\0',
  'half': np.arange(3).astype(tf.bfloat16.as_numpy_dtype),
  'number': np.int64(7),
  'text': 'naïve',
  'weights': np.full([2, 3], 0.1, np.float32),
}


def test_what_is_no_array_of_numpys_comes_back_as_it_was():
  found = checkpoints_lib.from_bytes(checkpoints_lib.to_bytes(_STATE), _STATE)
  assert found.keys() == _STATE.keys()
  for name, expected in _STATE.items():
    assert type(found[name]) is type(expected)
    np.testing.assert_array_equal(found[name], expected)
    assert getattr(found[name], 'dtype', None) == getattr(expected, 'dtype', None)


def test_what_is_damaged_anywhere_is_never_read_as_something_else():
  content = checkpoints_lib.to_bytes(_STATE)
  refused = 0
  for place in range(0, len(content), 5):
    damaged = bytearray(content)
    damaged[place] ^= 0x11
    try:
      found = checkpoints_lib.from_bytes(bytes(damaged), _STATE)
    except ValueError:
      refused += 1
      continue
    for name, expected in _STATE.items():
      np.testing.assert_array_equal(found[name], expected)
  assert refused > len(content) / 10
