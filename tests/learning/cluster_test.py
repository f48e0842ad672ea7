"""Tests that packs on a Dask cluster give the same bits as here, also after faults."""

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
_SETTINGS = {'clip_norm': 0.4, 'clients_per_round': _COHORT, 'generator': 'philox'}


def _with_client_noise(seed):
  mechanism = accounting.Mechanism(
    'gaussian', _PARTICIPATION, noise_multiplier=30.0, noise_site='local'
  )
  return aggregators.from_mechanism(mechanism, seed=seed, **_SETTINGS)


_AGGREGATORS = {
  'banded': lambda seed: aggregators.banded(
    _PARTICIPATION, noise_multiplier=0.3, seed=seed, **_SETTINGS
  ),
  'local': _with_client_noise,
}
_AGGREGATORS['large'] = _AGGREGATORS['banded']  # Its model is larger.


@pytest.fixture(scope='module')
def data(tmp_path_factory):
  directory = tmp_path_factory.mktemp('packed') / 'data'
  return packed.lay_out(populations.Population(_CLIENTS), str(directory))


@pytest.fixture(scope='module')
def client():
  with cluster.connect('local:2') as client:
    yield client


@pytest.fixture(scope='module')
def banded(client, data):
  return _simulation(data, cluster.Cluster(client))


def _simulation(data, used=None, name='banded'):
  return populations.simulation(
    data,
    _AGGREGATORS[name](noise.Seed(4)),
    populations.model(units=22000 if name == 'large' else 0),
    server_optimizer=tff.learning.optimizers.build_sgdm(0.7, momentum=0.9),
    num_packs=_PACKS,
    cluster=used,
  )


def _cohort(number):
  clients = np.random.default_rng(number).choice(_CLIENTS, _COHORT, replace=False)
  return clients, local_order.keys(9, number, clients)


def _bits(simulation, before=lambda number: None):
  """Returns the bits of states and metrics of rounds."""
  state, results = simulation.initialize(), []
  for number in range(_ROUNDS):
    before(number)
    state, metrics = simulation.next(state, *_cohort(number))
    results.append([_bits_of(each) for each in tf.nest.flatten((state, metrics))])
  return results


def _bits_of(value):
  array = np.asarray(value)
  return array.tolist() if array.dtype.hasobject else array.tobytes()


@pytest.fixture(scope='module')
def local_bits(data):
  """Returns a function from an aggregator's name to the bits of rounds made here."""
  return functools.cache(lambda name: _bits(_simulation(data, name=name)))


@pytest.mark.slow
@pytest.mark.parametrize('name', ['large', 'local'])
def test_rounds_on_cluster_have_the_same_bits(client, data, local_bits, name):
  used = cluster.Cluster(client)
  assert _bits(_simulation(data, used, name)) == local_bits(name)
  assert not used.is_elsewhere


_SEES = cluster._sees


def _show_data(are_shown):
  cluster._sees = _SEES if are_shown else lambda directory, checksum: False
  cluster._FUNCTIONS.clear()


@pytest.mark.slow
def test_workers_that_cannot_read_the_data_are_sent_them(client, data, local_bits):
  client.run(_show_data, False)
  try:
    assert _bits(_simulation(data, cluster.Cluster(client))) == local_bits('banded')
    directories = client.run(
      lambda: [each.data_directory for each in cluster._FUNCTIONS.values()]
    )
  finally:
    client.run(_show_data, True)
  found = [each for of_worker in directories.values() for each in of_worker]
  assert found and data.directory not in found


def _pids(client):
  return client.run(os.getpid, on_error='ignore')


def _kill(client):
  os.kill(next(iter(_pids(client).values())), signal.SIGKILL)


def test_noise_key_is_not_sent_to_workers(client, banded, monkeypatch):
  from distributed.comm import tcp

  sent, to_frames = [], tcp.to_frames

  async def recording_to_frames(*args, **kwargs):
    frames = await to_frames(*args, **kwargs)
    sent.extend(bytes(each) for each in frames)
    return frames

  monkeypatch.setattr(tcp, 'to_frames', recording_to_frames)
  state = banded.initialize()
  banded.next(state, *_cohort(0))
  everything = b''.join(sent)
  # The model and clients' keys are found, so a noise key that was sent would be, too.
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


def test_pack_that_fails_on_all_workers_raises_computation_error(client, data, banded):
  packs = banded.packs(*_cohort(0))
  arguments = [np.zeros([2, 7], np.float32)] * len(banded._broadcast.results)
  with pytest.raises(tf.errors.InvalidArgumentError):
    banded._function.at(data.directory)(arguments, packs[0])
  with pytest.raises(failures.ComputationError):
    cluster.Cluster(client).sums(banded._function, arguments, packs)


def test_round_with_a_time_limit_ends_and_leaves_the_cluster(client, data, banded):
  used = cluster.Cluster(client, round_seconds=1e-3)
  with pytest.raises(
    failures.RoundTimeoutError, match='longer than .* on the Dask clu'
  ):
    _bits(_simulation(data, used))
  banded.next(banded.initialize(), *_cohort(0))


def test_workers_with_other_versions_are_refused(client, data, monkeypatch):
  other_versions = {**cluster.software(), 'tensorflow': '1.0'}
  monkeypatch.setattr(cluster, 'software', lambda: other_versions)
  with pytest.raises(cluster.ClusterError, match='tensorflow .*, and this program 1.0'):
    with cluster.connect(client):
      pass
  # One that joins later is refused when it gets a pack.
  client.run(lambda: cluster._FUNCTIONS.clear())
  with pytest.raises(cluster.ClusterError, match='^The Dask worker tls.* has tensorfl'):
    _bits(_simulation(data, cluster.Cluster(client)))


@pytest.mark.parametrize(
  'scheduler',
  [
    *('10.0.0.1:8786', 'http://10.0.0.1:8786', 'tcp://10.0.0.1', 'tcp://10.0.0.1:0'),
    *('tcp://user@host:1', 'local:0', 'local:two'),
  ],
)
def test_check_refuses_invalid_scheduler_address(scheduler):
  with pytest.raises(
    ValueError, match='^scheduler=.* is not the address .*=local:4 for'
  ):
    cluster.check(scheduler)


@pytest.mark.parametrize('host', ['10.0.0.5', '[2001:db8::5]'])
def test_check_requires_tls_or_trusted_network_for_other_machines(host):
  with pytest.raises(ValueError, match='run code .* or --trusted_network, if nobody'):
    cluster.check(f'tcp://{host}:8786', name='--scheduler')
  cluster.check(f'tcp://{host}:8786', trusted_network=True)
  cluster.check(f'tls://{host}:8786')
  cluster.check('tcp://[::1]:1/')


def test_connect_fails_if_scheduler_does_not_answer():
  with socket.create_server(('127.0.0.1', 0)) as server:
    scheduler = f'tcp://127.0.0.1:{server.getsockname()[1]}'
    with pytest.raises(cluster.ClusterError, match='^--scheduler=tcp.* cannot be '):
      with cluster.connect(scheduler, name='--scheduler', reach_seconds=1.0):
        pass


def test_workers_ignore_ctrl_c(client):
  pids = _pids(client)
  for pid in pids.values():
    os.kill(pid, signal.SIGINT)
  time.sleep(0.5)
  assert _pids(client) == pids


def test_local_cluster_refuses_clients_without_its_certificate(client):
  address = client.scheduler.address
  assert address.startswith('tls://127.0.0.1:')
  # A stranger has no certificate, or one of its own, which the cluster does not trust.
  own_certificate = {'security': distributed.Security.temporary()}
  for scheduler, security in (
    (address.replace('tls', 'tcp'), {}),
    (address, own_certificate),
  ):
    with pytest.raises(OSError):
      distributed.Client(scheduler, timeout=2, set_as_default=False, **security)
    # When collected, a client stops its loop, which hangs if another loop has started.
    gc.collect()


@pytest.mark.slow
def test_rounds_have_the_same_bits_after_a_worker_is_killed(client, banded, local_bits):
  def before(number):
    if number == 1:
      threading.Timer(0.01, _kill, [client]).start()
      time.sleep(0.02)

  before_kill = set(_pids(client).values())
  assert _bits(banded, before) == local_bits('banded')
  assert not before_kill <= set(_pids(client).values())


@pytest.mark.slow
def test_run_fails_if_scheduler_is_killed_and_can_be_resumed(tmp_path):
  run_dir, changes = tmp_path / 'run', {'mechanism': training_runs.mechanism(6)}
  uninterrupted = tmp_path / 'straight'
  training_runs.train(uninterrupted, **changes)
  with dask_clusters.DaskCluster(tmp_path / 'cluster') as dask_cluster:
    dask_cluster.worker()
    metrics = training_runs.act_in(3, dask_cluster.scheduler.kill)
    with pytest.raises(cluster.ClusterError, match='goes on from the last checkpoint'):
      training_runs.train(
        run_dir,
        scheduler=dask_cluster.address,
        test_metrics=metrics,
        checkpoint_seconds=1e9,
        **changes,
      )
  resumed = training_runs.train(
    run_dir, test_metrics=training_runs.kill_in(0), **changes
  )
  assert resumed.is_finished
  ledgers = (training_runs.results(each)['ledger'] for each in (run_dir, uninterrupted))
  assert next(ledgers) == next(ledgers)


@pytest.mark.slow
def test_worker_faults_of_all_kinds_change_no_result():
  lines = []
  kinds = len(worker_faults._KINDS)
  summary, is_good = worker_faults.run(kinds, seed=3, workers=3, say=lines.append)
  assert is_good, '\n'.join([*lines, summary])
  assert f'faults: {kinds}, hangs: 0, lost rounds: 0, different results: 0' in summary
  with pytest.raises(ValueError, match='workers=1: give two'):
    worker_faults.run(1, seed=1, workers=1)
