"""Nothing that happens to workers changes a result, and nothing hangs.

Claims, with real workers, and real faults of `benchmarks.faults`:

* With faults of every kind, no round hangs, is lost or comes to other bits; losses are
  noted, workers come back, and no thread is left over (slow: 200 faults).
* A worker on which everything fails is done without for a while, and the loss says why;
  so is one whose answers are no messages.
* A connection that was cancelled begins no call that waits.
* A pack of a round that is over takes nothing away from packs of the next one (slow).
* A training that is killed while workers go on comes to the same bits with the same
  call; workers free the memory of the one that was killed (slow).
* With all workers gone for good there is an error in the stated time, and a checkpoint,
  with which the same call goes on to the same bits, with workers or without.
"""

import contextlib
import os
import pathlib
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest

from benchmarks.faults import campaign
from benchmarks.faults import sites as sites_lib
from tests.learning import training_runs
from tests.workers import supervised
from tff_dp_aggregators import learning
from tff_dp_aggregators.learning import remote
from tff_dp_aggregators.learning.remote import connection
from tff_dp_aggregators.learning.remote import member

ROOT = pathlib.Path(__file__).resolve().parents[3]
_NUM_ROUNDS = 40
_CHECKPOINT_SECONDS = 0.2
_STALL_SECONDS = 4.0
# Until a program has begun to train, on a machine that has more to do than that.
_START_SECONDS = 300


def _check(outcome):
  text = '\n'.join([*outcome.errors, *campaign.table(outcome)])
  assert outcome.is_good, text
  assert outcome.rounds >= 10
  return text


@pytest.mark.slow
def test_faults_of_every_kind_change_nothing():
  outcome = campaign.Campaign(
    faults=7, seed=3, workers=3, rest_seconds=0.5, say=print, one_of_each=True
  ).run()
  text = _check(outcome)
  assert len({fault.kind.name for fault in outcome.faults}) >= 6, text
  assert sum(fault.lost is not None for fault in outcome.faults) >= 4, text


@pytest.mark.slow
def test_200_faults_change_nothing():
  outcome = campaign.Campaign(faults=200, seed=5, workers=3, say=print).run()
  text = _check(outcome)
  by_kind = {}
  for fault in outcome.faults:
    by_kind.setdefault(fault.kind.name, []).append(fault)
  assert len(by_kind) >= 14, text  # Some kinds are rare, and one is for root alone.
  # What a worker had is gone: that is noticed whenever it happens.
  for name in ('worker_binary killed', 'worker killed, comes back'):
    assert all(fault.lost is not None for fault in by_kind[name]), text
  begin, end = outcome.footprints[0], outcome.footprints[-1]
  assert end.threads <= begin.threads + 20 and end.files <= begin.files + 20, text
  assert end.megabytes <= begin.megabytes + 300, text


def test_a_campaign_without_a_sound_worker_is_refused():
  with pytest.raises(ValueError, match='workers=1: give two'):
    campaign.Campaign(faults=1, seed=1, workers=1, say=print)
  with pytest.raises(ValueError, match='faults=0: give one or more'):
    campaign.Campaign(faults=0, seed=1, workers=2, say=print)


@contextlib.contextmanager
def _workers(tmp_path, number=2):
  """Workers that listen, each behind its proxy."""
  with sites_lib.running(number, str(tmp_path), _STALL_SECONDS) as sites:
    for site in sites:
      site.start()
    for site in sites:
      with supervised.Caller(site.address) as caller:
        supervised.until(lambda caller=caller: _is_up(caller))
    yield sites


def _is_up(caller):
  try:
    return caller.status()['state'] == 'serving'
  except Exception:
    return False


def _addresses(sites, **kwargs):
  return remote.Workers(','.join(site.address for site in sites), **kwargs)


@pytest.mark.slow
@pytest.mark.parametrize(
  ('lie', 'why'),
  [
    ('internal', 'a pack failed on it that did not fail on another worker'),
    # Some of which are messages, of what is no answer.
    pytest.param('random', '', marks=pytest.mark.slow),
  ],
)
def test_a_worker_on_which_everything_fails_is_done_without(tmp_path, lie, why):
  training, said = campaign.Training(str(tmp_path)), []
  with contextlib.ExitStack() as stack:
    stack.enter_context(learning.runtime.local_runtime())
    here = training.here()
    state, expected = here.initialize(), []
    for number in range(3):
      state, digest = training.round(here, state, number)
      expected.append(digest)

    sites = stack.enter_context(_workers(tmp_path))
    there = training.on_workers(_addresses(sites), said.append)
    stack.enter_context(contextlib.closing(there))
    supervised.until(lambda: sum(' is there' in line for line in said) == 2)
    state, found = there.initialize(), []
    sites[0].pass_through(lie=lie, seed=1)
    for number in range(3):
      state, digest = training.round(there, state, number)
      found.append(digest)
    assert found == expected
    name = sites[0].address
    supervised.until(lambda: any(f'{name} is lost' in line for line in said))
    assert any(f'worker {name} is lost: {why}' in note for note in there.notes())
    assert not any(f'{sites[1].address} is lost' in line for line in said)


def test_a_connection_that_was_cancelled_begins_no_call_that_waits():
  with socket.create_server(('127.0.0.1', 0)) as silent:
    port = silent.getsockname()[1]
    called = connection.Connection(f'127.0.0.1:{port}', connection.Traffic())
    with contextlib.closing(called):
      called.cancel()
      begun = time.monotonic()
      with pytest.raises(connection.WorkerLostError, match='given up'):
        called.open()
      assert time.monotonic() - begun < 5


@pytest.mark.slow
def test_a_pack_of_a_round_that_is_over_takes_nothing_from_the_next_one(
  tmp_path, monkeypatch
):
  computed, compute = [], member.Session.compute

  def watch(self, task):
    computed.append((self, task))
    return compute(self, task)

  created, create = [], connection.Connection.create

  def count(self, value):
    created.append(value)
    return create(self, value)

  training = campaign.Training(str(tmp_path))
  with learning.runtime.local_runtime(), _workers(tmp_path, number=1) as sites:
    monkeypatch.setattr(member.Session, 'compute', watch)
    monkeypatch.setattr(connection.Connection, 'create', count)
    there = training.on_workers(_addresses(sites), lambda line: None)
    with contextlib.closing(there):
      training.round(there, there.initialize(), 0)
      session, of_now = computed[-1]
      of_next = of_now._replace(label=of_now.label + [1, 0, 0])
      numbers = []
      for task in (of_next, of_now, of_next):
        before = len(created)
        compute(session, task)
        numbers.append(len(created) - before)
  # What a pack is told alone, after what all packs of its round are told.
  assert numbers == [2, 2, 1]


def _arguments(run_dir, **changes):
  """As those of `training_runs` as a program."""
  return training_runs.arguments(
    run_dir,
    mechanism=training_runs.mechanism(_NUM_ROUNDS),
    schedule=training_runs.schedule(_NUM_ROUNDS),
    checkpoint_seconds=_CHECKPOINT_SECONDS,
    **changes,
  )


def _lasting(run_dir):
  """What a run leaves, and the notes that its ledger has."""
  left = training_runs.lasting(run_dir)
  notes = [note for line in left['ledger'] for note in line.pop('notes', None) or ()]
  return left, notes


@pytest.fixture(scope='module')
def straight(tmp_path_factory):
  """What the training leaves that nothing happens to, without workers."""
  run_dir = tmp_path_factory.mktemp('straight') / 'run'
  learning.train(**_arguments(run_dir))
  return _lasting(run_dir)[0]


def _rounds(run_dir):
  metrics = run_dir / 'metrics.csv'
  return max(0, metrics.read_bytes().count(b'\n') - 1) if metrics.exists() else 0


def test_without_workers_there_is_an_error_and_the_run_goes_on(tmp_path, straight):
  run_dir = tmp_path / 'run'
  with _workers(tmp_path) as sites:
    workers = _addresses(sites, timeout_seconds=2.0, patience_seconds=4.0)

    def kill():
      supervised.until(lambda: _rounds(run_dir) >= 10, _START_SECONDS)
      killed.append(time.monotonic())
      for site in sites:
        site.worker.kill()

    killed = []
    killing = threading.Thread(target=kill, daemon=True)
    killing.start()
    with pytest.raises(remote.NoWorkersError) as error:
      learning.train(**_arguments(run_dir, workers=workers))
    # Patience, the time until a worker is lost, and that of a machine with much to do.
    assert time.monotonic() - killed[0] < 4.0 + 2.0 + 14.0
    killing.join()
  for site in sites:
    assert site.address in str(error.value)
  assert 10 <= _rounds(run_dir) < _NUM_ROUNDS
  assert os.listdir(run_dir / 'checkpoints')
  assert learning.train(**_arguments(run_dir)).is_finished
  left, _ = _lasting(run_dir)
  assert left == straight


@pytest.mark.slow
def test_killed_while_workers_go_on_it_comes_to_the_same(tmp_path, straight):
  run_dir = tmp_path / 'run'
  with _workers(tmp_path) as sites:
    addresses = ','.join(site.address for site in sites)
    command = [sys.executable, '-m', 'tests.learning.training_runs', str(run_dir)]
    with open(tmp_path / 'log', 'w') as log:
      process = subprocess.Popen(
        [*command, str(_NUM_ROUNDS), str(_CHECKPOINT_SECONDS), addresses],
        cwd=ROOT,
        env={**os.environ, 'PYTHONPATH': str(ROOT)},
        stdout=log,
        stderr=subprocess.STDOUT,
      )
      with contextlib.closing(_Killed(process)):
        supervised.until(
          lambda: _rounds(run_dir) >= 10 or process.poll() is not None, _START_SECONDS
        )
    assert process.returncode == -signal.SIGKILL, (tmp_path / 'log').read_text()
    assert _rounds(run_dir) < _NUM_ROUNDS

    # One worker ends meanwhile, which is told in the ledger; both are there in the end.
    ending = threading.Thread(target=_kill_one, args=(run_dir, sites[0]), daemon=True)
    ending.start()
    result = learning.train(**_arguments(run_dir, workers=addresses))
    ending.join()
    assert result.is_finished
    left, notes = _lasting(run_dir)
    assert left == straight
    assert any(f'worker {sites[0].address} is lost: ' in note for note in notes)

    # What the training that was killed left at the other one is freed.
    with supervised.Caller(sites[1].address) as caller:
      supervised.until(lambda: caller.status(b'probe')['generation'] == 2, seconds=90)
      (death,) = caller.status(b'probe')['deaths']
    assert 'was ended to free its memory' in death


class _Killed:
  """Kills a process in the end."""

  def __init__(self, process):
    self._process = process

  def close(self):
    self._process.kill()
    self._process.wait()


def _kill_one(run_dir, site):
  before = _rounds(run_dir)
  supervised.until(lambda: _rounds(run_dir) >= before + 10, _START_SECONDS)
  site.binary().kill()
