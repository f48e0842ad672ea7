"""A run that is begun on one processor and gone on with on another.

Claims, of a run begun here whose last rounds have a line in the ledger, no checkpoint:

* With workers that come to other last digits it is refused where the first of these
  rounds comes to other bits. Nothing of their results is told or kept, not even for
  whoever goes on.
* After that it goes on here, and with workers that come to the same bits, to the end of
  a run that nothing happened to.

Workers are real. What another processor would do is done to what they answer: sums
differ from the seventh digit on.
"""

import os

import numpy as np
import pytest

from tests.learning import training_runs
from tests.workers import supervised
from tff_dp_aggregators import learning
from tff_dp_aggregators.learning.remote import member

_RELEASED = 6


@pytest.fixture(scope='module')
def worker():
  with supervised.Worker() as worker:
    yield worker


@pytest.fixture(scope='module')
def straight(tmp_path_factory):
  """What the run leaves that nothing happens to."""
  run_dir = tmp_path_factory.mktemp('straight') / 'run'
  learning.train(**training_runs.arguments(run_dir, **_metric(0)))
  return training_runs.lasting(run_dir)


def _metric(after):
  return {'test_metrics': training_runs.killing(after), 'checkpoint_seconds': 1e9}


def _begin(run_dir):
  """Begins it here; rounds are released, and are in no checkpoint."""
  with pytest.raises(training_runs.Killed):
    learning.train(**training_runs.arguments(run_dir, **_metric(_RELEASED)))
  assert len((run_dir / 'ledger.jsonl').read_text().splitlines()) == _RELEASED


def _go_on(run_dir, workers=None):
  return learning.train(
    **training_runs.arguments(run_dir, workers=workers, **_metric(0))
  )


def _of_another_processor(monkeypatch):
  """Has all that workers answer come to other last digits; counts the answers."""
  answered, compute = [], member.Session.compute

  def elsewhere(self, task):
    sums = compute(self, task)
    answered.append(task)
    return [_other_last_digits(each) for each in sums]

  monkeypatch.setattr(member.Session, 'compute', elsewhere)
  return answered


def _other_last_digits(array):
  """Sums of updates, on their grid, with other last digits; counts as they are."""
  return array + (array >> 20) if array.dtype == np.int64 else array


def _kept(run_dir):
  names = os.listdir(run_dir / 'checkpoints')
  return [name for name in names if name.startswith('result_of_round_')]


@pytest.mark.slow
def test_other_bits_are_refused_and_it_goes_on_here(
  tmp_path, straight, worker, monkeypatch
):
  run_dir = tmp_path / 'run'
  _begin(run_dir)
  lines = (run_dir / 'ledger.jsonl').read_text()
  with monkeypatch.context() as patch:
    answered = _of_another_processor(patch)
    with pytest.raises(ValueError, match='came to another result: data, code or mach'):
      _go_on(run_dir, worker.address)
    assert answered
  assert (run_dir / 'ledger.jsonl').read_text() == lines
  assert not training_runs.lasting(run_dir)['metrics']
  assert _kept(run_dir) == []
  assert _go_on(run_dir).is_finished
  assert training_runs.lasting(run_dir) == straight


@pytest.mark.slow
def test_the_same_bits_are_taken_and_kept(tmp_path, straight, worker):
  run_dir = tmp_path / 'run'
  _begin(run_dir)
  assert _go_on(run_dir, worker.address).is_finished
  assert training_runs.lasting(run_dir) == straight
