"""Workers of another release are not used, and the run says which, in both versions.

The workers are real; what they have installed is what their Python finds first.
"""

import re
import sys

import pytest

from benchmarks.faults import campaign
from tests.workers import supervised
from tff_dp_aggregators import learning
from tff_dp_aggregators.learning import remote
from tff_dp_aggregators.workers import protocol

_OTHER = '9.8.7'
# `experiments.worker`, of a package that says to be of another version.
_PROGRAM = f"""
import tff_dp_aggregators
tff_dp_aggregators.__version__ = '{_OTHER}'
from experiments import worker
worker.run()
"""


def _worker(tmp_path, name):
  """A worker that has this in another version; of '' in no other."""
  if name == 'tff-dp-aggregators':
    return supervised.Worker(command=(sys.executable, '-c', _PROGRAM, '--port=0'))
  if name:
    installed = tmp_path / f'{name.replace("-", "_")}-{_OTHER}.dist-info'
    installed.mkdir()
    (installed / 'METADATA').write_text(
      f'Metadata-Version: 2.1\nName: {name}\nVersion: {_OTHER}\n'
    )
  return supervised.Worker(PYTHONPATH=f'{tmp_path}:{supervised.ROOT}')


@pytest.fixture(scope='module', autouse=True)
def _runtime():
  with learning.runtime.local_runtime():
    yield


def test_what_is_compared():
  assert set(protocol.software()) == {
    'tff-dp-aggregators',
    'tensorflow',
    'tensorflow-federated',
  }
  assert 'none' not in protocol.software().values()


def _round(tmp_path, worker):
  """Trains a round on the worker."""
  training = campaign.Training(str(tmp_path))
  workers = remote.Workers(worker.address, patience_seconds=2.0)
  there = training.on_workers(workers, lambda line: None)
  try:
    return training.round(there, there.initialize(), 0)
  finally:
    there.close()


@pytest.mark.parametrize(
  'name',
  [
    pytest.param(each, marks=[] if each == 'tensorflow' else [pytest.mark.slow])
    for each in sorted(protocol.software())
  ],
)
def test_a_worker_of_another_release_is_not_used(tmp_path, name):
  with _worker(tmp_path, name) as worker:
    assert worker.address, worker.lines
    with pytest.raises(remote.NoWorkersError) as error:
      _round(tmp_path, worker)
  ours = re.escape(protocol.software()[name])
  assert re.search(
    f'it has {name} {_OTHER}, and this program {ours}: install the same release',
    str(error.value),
  )


@pytest.mark.slow
def test_one_of_this_release_is(tmp_path):
  with _worker(tmp_path, '') as worker:
    _round(tmp_path, worker)
