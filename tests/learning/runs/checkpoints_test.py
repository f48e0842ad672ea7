"""Tests of the checkpoints of a run."""

import os
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

from tff_dp_aggregators.accounting.records import ledger
from tff_dp_aggregators.learning.runs import records

_LIKE = {'weights': np.zeros(2, np.float32)}


def _checkpoint(rounds):
  state = {'weights': np.full(2, rounds + 0.1, np.float32)}
  return records.Checkpoint(rounds, state, ledger.Head(rounds, 'ab' * 32))


@pytest.fixture
def checkpoint_dir(tmp_path):
  checkpoints = records.Checkpoints(str(tmp_path / 'checkpoints'))
  for rounds in (0, 2, 5):
    checkpoints.save(_checkpoint(rounds))
  return tmp_path / 'checkpoints'


def _check(checkpoint, rounds):
  expected = _checkpoint(rounds)
  assert (checkpoint.rounds, checkpoint.head) == (expected.rounds, expected.head)
  np.testing.assert_array_equal(checkpoint.state['weights'], expected.state['weights'])


def test_latest_checkpoint_is_read_and_two_are_kept(checkpoint_dir):
  assert sorted(os.listdir(checkpoint_dir)) == ['after_round_2', 'after_round_5']
  _check(records.Checkpoints(str(checkpoint_dir)).latest(_LIKE), 5)
  assert records.has_checkpoint_in(str(checkpoint_dir))


_KILLED_WRITE = """
import os, signal, sys
from tff_dp_aggregators.base import new_files
os.fsync = lambda descriptor: os.kill(os.getpid(), signal.SIGKILL)
new_files.replace(sys.argv[1], 'a state, with the key of the noise')
"""


def test_partial_file_of_killed_write_is_removed_by_next_reader(checkpoint_dir):
  (checkpoint_dir / 'original.json').touch()
  names_before = sorted(os.listdir(checkpoint_dir))
  path = checkpoint_dir / 'after_round_6'
  subprocess.run([sys.executable, '-c', _KILLED_WRITE, str(path)])
  (partial,) = set(os.listdir(checkpoint_dir)) - set(names_before)
  assert (checkpoint_dir / partial).read_text() == 'a state, with the key of the noise'
  _check(records.Checkpoints(str(checkpoint_dir)).latest(_LIKE), 5)
  assert sorted(os.listdir(checkpoint_dir)) == names_before


def _empty(path):
  path.write_bytes(b'')


def _zero(path):
  path.write_bytes(bytes(len(path.read_bytes())))


def _halve(path):
  content = path.read_bytes()
  path.write_bytes(content[: len(content) // 2])


def _replace_by_directory(path):  # Checkpoints of earlier versions are directories.
  path.unlink()
  path.mkdir()


@pytest.mark.parametrize('damage', [_empty, _zero, _halve, _replace_by_directory])
def test_unreadable_checkpoint_is_refused_and_can_be_moved_away(damage, checkpoint_dir):
  path = checkpoint_dir / 'after_round_5'
  damage(path)
  checkpoints = records.Checkpoints(str(checkpoint_dir))
  with pytest.raises(ValueError, match='after_round_5 cannot be read.* move it away'):
    checkpoints.latest(_LIKE)
  path.rename(checkpoint_dir / 'after_round_5.damaged')
  _check(checkpoints.latest(_LIKE), 2)
  # The round is reached again.
  checkpoints.save(_checkpoint(5))
  _check(checkpoints.latest(_LIKE), 5)


_STATE = {
  'bytes': b'ends in a zero\0',
  'half': np.arange(3).astype(tf.bfloat16.as_numpy_dtype),
  'number': np.int64(7),
  'text': 'naïve',
  'weights': np.full([2, 3], 0.1, np.float32),
}


def test_bytes_numbers_text_and_bfloat16_are_restored_exactly():
  restored = records.from_bytes(records.to_bytes(_STATE), _STATE)
  assert restored.keys() == _STATE.keys()
  for name, expected in _STATE.items():
    assert type(restored[name]) is type(expected)
    np.testing.assert_array_equal(restored[name], expected)
    assert getattr(restored[name], 'dtype', None) == getattr(expected, 'dtype', None)


def test_damaged_bytes_are_refused_or_give_the_same_state():
  content = records.to_bytes(_STATE)
  num_refused = 0
  for position in range(0, len(content), 5):
    damaged = bytearray(content)
    damaged[position] ^= 0x11
    try:
      restored = records.from_bytes(bytes(damaged), _STATE)
    except ValueError:
      num_refused += 1
      continue
    for name, expected in _STATE.items():
      np.testing.assert_array_equal(restored[name], expected)
  assert num_refused > len(content) / 10
