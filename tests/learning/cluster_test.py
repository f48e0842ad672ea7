"""Packs on a Dask cluster come to the bits of this process, whatever happens."""

import contextlib
import functools
import gc
import os
import signal
import socket
import threading
import time

import distributed
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from benchmarks import worker_faults
from tests.experiments.comparing import dask_clusters
from tests.learning import training_runs
from tests.learning.packed import populations
from tff_dp_aggregators import accounting
from tff_dp_aggregators import aggregators
from tff_dp_aggregators import noise
from tff_dp_aggregators import strategies
from tff_dp_aggregators.learning import cluster
from tff_dp_aggregators.learning import failures
from tff_dp_aggregators.learning import local_order
from tff_dp_aggregators.learning import packed

_CLIENTS, _COHORT, _PACKS, _ROUNDS = 100, 40, 10, 3
_PARTICIPATION = strategies.Participation(8, min_separation=2)
_NUMBERS = {'clip_norm': 0.4, 'clients_per_round': _COHORT, 'generator': 'philox'}


def _noise_of_clients(seed):
  mechanism = accounting.Mechanism(
    'gaussian', _PARTICIPATION, noise_multiplier=30.0, noise_site='local'
  )
  return aggregators.from_mechanism(mechanism, seed=seed, **_NUMBERS)


_AGGREGATORS = {
  'banded': lambda seed: aggregators.banded(
    _PARTICIPATION, noise_multiplier=0.3, seed=seed, **_NUMBERS
  ),
  'local': _noise_of_clients,
}
_AGGREGATORS['large'] = _AGGREGATORS['banded']  # With another model.


@pytest.fixture(scope='module')
def data(tmp_path_factory):
  directory = tmp_path_factory.mktemp('packed') / 'data'
  return packed.lay_out(populations.Population(_CLIENTS), str(directory))


@pytest.fixture(scope='module')
def client():
  with cluster.connect('local:2') as client:
    yield client


@contextlib.contextmanager
def _cluster(client, simulation=None, **kwargs):
  """The cluster, of which a simulation may make use that was made with another."""
  said = []
  with contextlib.closing(cluster.Cluster(client, say=said.append, **kwargs)) as used:
    used.said = said
    if simulation is not None:
      simulation._cluster = used
    yield used


@pytest.fixture(scope='module')
def banded(data):
  return _simulation(data, 'a cluster to come')


def _simulation(data, used=None, name='banded'):
  model = populations.model(units=22000 if name == 'large' else 0)
  training = packed.LocalTraining(model, tff.learning.optimizers.build_sgdm(0.3), 4)
  return packed.PackedFedAvg(
    training,
    _AGGREGATORS[name](noise.Seed(4)),
    data,
    server_optimizer=tff.learning.optimizers.build_sgdm(0.7, momentum=0.9),
    num_packs=_PACKS,
    cluster=used,
  )


def _cohort(number):
  clients = np.random.default_rng(number).choice(_CLIENTS, _COHORT, replace=False)
  return clients, local_order.keys(9, number, clients)


def _bits(simulation, before=lambda number: None):
  """States and metrics of rounds."""
  state, found = simulation.initialize(), []
  for number in range(_ROUNDS):
    before(number)
    state, metrics = simulation.next(state, *_cohort(number))
    found.append([_bits_of(each) for each in tf.nest.flatten((state, metrics))])
  return found


def _bits_of(value):
  array = np.asarray(value)
  return array.tolist() if array.dtype.hasobject else array.tobytes()


@pytest.fixture(scope='module')
def here(data):
  """What rounds come to in this process, by what makes noise."""
  return functools.cache(lambda name: _bits(_simulation(data, name=name)))


@pytest.mark.slow
@pytest.mark.parametrize('name', ['large', 'local'])
def test_rounds_have_the_bits_of_this_process(client, data, here, name):
  with _cluster(client) as used:
    assert _bits(_simulation(data, used, name)) == here(name)
    assert (used.notes(), used.said) == ((), [])
    assert not used.is_elsewhere


def _blind():
  cluster._sees = lambda directory, checksum: False
  cluster._FUNCTIONS.clear()


def _seeing():
  cluster._sees = _SEES
  cluster._FUNCTIONS.clear()


_SEES = cluster._sees


@pytest.mark.slow
def test_workers_that_do_not_see_the_data_are_sent_them(client, data, banded, here):
  client.run(_blind)
  try:
    with _cluster(client, banded):
      assert _bits(banded) == here('banded')
      directories = client.run(
        lambda: [each.data_directory for each in cluster._FUNCTIONS.values()]
      )
  finally:
    client.run(_seeing)
  found = [each for several in directories.values() for each in several]
  assert found and data.directory not in found


def _pids(client):
  return client.run(os.getpid)


def _kill(client):
  os.kill(next(iter(_pids(client).values())), signal.SIGKILL)


def test_nothing_that_is_sent_has_the_key_of_the_noise(client, banded, monkeypatch):
  from distributed.comm import tcp

  sent, make = [], tcp.to_frames

  async def watch(*args, **kwargs):
    frames = await make(*args, **kwargs)
    sent.extend(bytes(each) for each in frames)
    return frames

  monkeypatch.setattr(tcp, 'to_frames', watch)
  with _cluster(client, banded):
    state = banded.initialize()
    banded.next(state, *_cohort(0))
  everything = b''.join(sent)
  # The model is sent, and clients' keys are, so this finds what is.
  for weight in tf.nest.flatten(state.global_model_weights):
    assert np.asarray(weight).tobytes() in everything
  assert _cohort(0)[1][:1].tobytes() in everything
  keys = [
    np.asarray(each)
    for each in tf.nest.flatten(state.aggregator)
    if each.dtype.is_integer and each.shape.num_elements() > 1
  ]
  assert keys
  for key in keys:
    assert key.tobytes() not in everything


def test_what_fails_on_all_workers_is_the_error_of_this_process(client, banded):
  with _cluster(client, banded) as used:
    packs = banded.cohort(*_cohort(0)).packs
    told = [np.zeros([2, 7], np.float32)] * len(banded._function.arguments[:-1])
    with pytest.raises(tf.errors.InvalidArgumentError):
      banded._function(told, packs[0])
    with pytest.raises(failures.ComputationError):
      used.sums(banded._function, told, packs)
    (said,) = used.said  # It failed on the other one as well, so both live on.
    assert said.startswith('A pack failed on worker ')


def test_workers_of_other_versions_are_not_used(client, banded, monkeypatch):
  others = {**cluster.software(), 'tensorflow': '1.0'}
  monkeypatch.setattr(cluster, 'software', lambda: others)
  with pytest.raises(cluster.ClusterError, match='tensorflow .*, and this program 1.0'):
    with cluster.connect(client):
      pass
  with _cluster(client, banded, absence_seconds=0.5) as used:
    with pytest.raises(cluster.ClusterError, match='no worker for 0.5 seconds'):
      banded.next(banded.initialize(), *_cohort(0))
    assert ' is not used: it has tensorflow ' in used.said[0]


def test_where_tensorflow_has_other_threads_it_is_refused():
  tf.constant(1)  # So that it has begun, as in a worker that was used before.
  with pytest.raises(RuntimeError, match='61 for the same last digits: start the'):
    cluster._use_threads(61)


@pytest.mark.parametrize(
  'scheduler',
  [
    *('10.0.0.1:8786', 'http://10.0.0.1:8786', 'tcp://10.0.0.1', 'tcp://10.0.0.1:0'),
    *('tcp://user@host:1', 'local:0', 'local:two'),
  ],
)
def test_what_is_no_address(scheduler):
  with pytest.raises(
    ValueError, match='^scheduler=.* is not the address .*=local:4 for'
  ):
    cluster.check(scheduler)


@pytest.mark.parametrize('host', ['10.0.0.5', '[2001:db8::5]'])
def test_another_machine_is_refused_without_tls_or_a_trusted_network(host):
  with pytest.raises(ValueError, match='run code .* or --trusted_network, if nobody'):
    cluster.check(f'tcp://{host}:8786', name='--scheduler')
  cluster.check(f'tcp://{host}:8786', trusted_network=True)
  cluster.check(f'tls://{host}:8786')


@pytest.mark.parametrize('scheduler', ['tcp://[::1]:1/', 'tls://10.0.0.5:8786'])
def test_a_trusted_network_that_allows_nothing(scheduler):
  cluster.check(scheduler)
  with pytest.raises(ValueError, match='leave it out'):
    cluster.check(scheduler, trusted_network=True)


def test_a_scheduler_that_does_not_answer_is_an_error():
  with socket.create_server(('127.0.0.1', 0)) as server:
    scheduler = f'tcp://127.0.0.1:{server.getsockname()[1]}'
    with pytest.raises(cluster.ClusterError, match='^--scheduler=tcp.* cannot be '):
      with cluster.connect(scheduler, name='--scheduler', reach_seconds=1.0):
        pass


def test_ctrl_c_is_not_for_workers(client):
  pids = _pids(client)
  for pid in pids.values():
    os.kill(pid, signal.SIGINT)
  time.sleep(0.5)
  assert _pids(client) == pids


def test_nobody_joins_a_local_cluster_without_its_certificate(client):
  address = client.scheduler.address
  assert address.startswith('tls://127.0.0.1:')
  # A stranger has no certificate, or one of its own, which nobody trusts.
  of_its_own = {'security': distributed.Security.temporary()}
  for scheduler, security in (
    (address.replace('tls', 'tcp'), {}),
    (address, of_its_own),
  ):
    with pytest.raises(OSError):
      distributed.Client(scheduler, timeout=2, set_as_default=False, **security)
    # It stops its loop when it is collected, and that waits for ever if another starts.
    gc.collect()


# Last of the quick ones, as the next worker takes seconds to start.
def test_rounds_have_the_bits_of_this_process_though_a_worker_is_killed(
  client, banded, here
):
  def before(number):
    if number == 1:
      threading.Timer(0.01, _kill, [client]).start()
      time.sleep(0.02)

  with _cluster(client, banded) as used:
    assert _bits(banded, before) == here('banded')
    begun, lost = time.monotonic(), []
    while not lost and time.monotonic() < begun + 60:
      lost = [note for note in used.notes() if note.endswith(' is lost')]
      time.sleep(0.05)
    assert len(lost) == 1 and '://' not in lost[0]  # Others see the ledger.
    assert any(each.endswith(' is lost.') and '://' in each for each in used.said)


_MECHANISM = training_runs.mechanism(6)


def _lasting(run_dir):
  """What a run leaves, and the notes that its ledger has."""
  left = training_runs.results(run_dir)
  notes = [note for line in left['ledger'] for note in line.pop('notes', None) or ()]
  return left, notes


@pytest.fixture(scope='module')
def straight(tmp_path_factory):
  """What a training leaves that nothing happens to, in this process."""
  run_dir = tmp_path_factory.mktemp('straight') / 'run'
  training_runs.train(run_dir, mechanism=_MECHANISM)
  return _lasting(run_dir)


class _Late(dict):
  """A metric that does something when it is asked for the n-th time."""

  def __init__(self, times, do):
    asked = []

    def metric(labels, outputs):
      del labels, outputs
      asked.append(None)
      if len(asked) == times:
        do()
      return 0.0

    super().__init__(late=metric)


@pytest.mark.slow
def test_what_happens_to_workers_is_in_the_ledger(client, straight, tmp_path):
  client.wait_for_workers(2, 60)
  run_dir = tmp_path / 'run'
  late = _Late(4, lambda: _kill(client))
  changes = {'mechanism': _MECHANISM, 'test_metrics': late}
  training_runs.train(run_dir, scheduler=client, **changes)
  left, notes = _lasting(run_dir)
  assert left['ledger'] == straight[0]['ledger']
  assert any(note.startswith('worker ') and ' is lost' in note for note in notes)
  client.wait_for_workers(2, 60)


@pytest.mark.slow
def test_a_scheduler_that_is_killed_is_an_error_and_the_same_call_goes_on(
  straight, tmp_path
):
  run_dir, changes = tmp_path / 'run', {'mechanism': _MECHANISM}
  with dask_clusters.DaskCluster(tmp_path / 'cluster') as several:
    several.worker()
    late = _Late(4, several.scheduler.kill)
    with pytest.raises(cluster.ClusterError, match='goes on from the last checkpoint'):
      training_runs.train(
        run_dir,
        scheduler=several.address,
        test_metrics=late,
        checkpoint_seconds=1e9,
        **changes,
      )
  again = training_runs.train(run_dir, test_metrics=_Late(0, None), **changes)
  assert again.is_finished
  assert _lasting(run_dir)[0]['ledger'] == straight[0]['ledger']


@pytest.mark.slow
def test_faults_of_every_kind_change_nothing():
  lines = []
  kinds = len(worker_faults._KINDS)
  said, is_good = worker_faults.run(kinds, seed=3, workers=3, say=lines.append)
  assert is_good, '\n'.join([*lines, said])
  assert f'faults: {kinds}, hangs: 0, lost rounds: 0, different results: 0' in said
  with pytest.raises(ValueError, match='workers=1: give two'):
    worker_faults.run(1, seed=1, workers=1)
