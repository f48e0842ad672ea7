"""What a round is told of its clients takes few bytes for each.

Claims:

* Rows are those of the clients, most examples first, and else in the order of the
  cohort; packs follow each other.
* A computation reads from files what Python has, of packs of any length, of none too.
* Files are for their owner alone, are gone after the round, also after one that fails,
  and are called as those that a later program may remove.
* A round takes 40 bytes a client of Python's memory at most, besides the cohort itself.
* Clients without a key are refused.
"""

import contextlib
import os
import stat
import tracemalloc

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.learning.packed import populations
from tff_dp_aggregators import aggregators
from tff_dp_aggregators import learning
from tff_dp_aggregators.learning import failures
from tff_dp_aggregators.learning import local_order
from tff_dp_aggregators.learning import packed
from tff_dp_aggregators.learning.packed import cohort as cohort_lib
from tff_dp_aggregators.learning.packed import cutting
from tff_dp_aggregators.noise import private_directory

_RUN = '0123456789abcdef'
_MOST_BYTES = 40


@pytest.fixture(scope='module')
def data(tmp_path_factory):
  directory = tmp_path_factory.mktemp('cohort') / 'data'
  return packed.lay_out(populations.Population(), str(directory))


def _cohort(data, clients, num_packs):
  clients = np.asarray(clients, np.int64)
  keys = local_order.keys(1, 0, clients)
  return cohort_lib.Cohort(
    data, clients, keys, lambda sizes: cutting.cuts(len(sizes), num_packs)
  )


def _names():
  folder = private_directory.open_temporary(0).path
  return {name for name in os.listdir(folder) if name.startswith(_RUN)}


def test_rows_are_those_of_the_clients_most_examples_first(data):
  clients = [7, 2, 0, 9, 11, 4, 5]
  sizes = [len(populations.Population().examples(each)['y']) for each in clients]
  keys = dict(zip(clients, local_order.keys(1, 0, np.array(clients))))
  starts = dict(enumerate(data.starts(np.arange(len(data)))))
  expected = [
    [starts[client], size, int(keys[client].view(np.int64))]
    for size, client in sorted(zip(sizes, clients), key=lambda each: -each[0])
  ]
  cohort = _cohort(data, clients, 3)
  assert [len(rows) for rows in cohort] == [2, 2, 3]
  assert np.concatenate(list(cohort)).tolist() == expected
  assert cohort[-1].tolist() == expected[4:]
  assert [len(rows) for rows in cohort[1:]] == [2, 3]


@pytest.mark.parametrize(('number', 'packs'), [(0, 1), (1, 1), (12, 5)])
def test_a_computation_reads_what_python_has(data, number, packs):
  cohort = _cohort(data, np.arange(number), packs)
  with cohort.in_files(_RUN) as begin:
    for pack, rows in enumerate(cohort):
      np.testing.assert_array_equal(cohort_lib.rows_in(begin, pack), rows)


def test_files_are_of_their_owner_and_gone_after_the_round(data):
  cohort = _cohort(data, np.arange(12), 5)
  with contextlib.suppress(KeyboardInterrupt), cohort.in_files(_RUN) as begin:
    names = _names()
    assert len(names) == 5
    # A folder with files of other names would be left as it is.
    assert all(map(private_directory._FILE.fullmatch, names))
    for name in names:
      mode = os.stat(os.path.join(os.path.dirname(begin), name)).st_mode
      assert stat.S_IMODE(mode) == 0o600
    raise KeyboardInterrupt
  assert not _names()


def test_a_computation_that_was_given_up_finds_its_rows_or_nothing(data):
  first, second = _cohort(data, np.arange(3), 1), _cohort(data, np.arange(5), 1)
  with first.in_files(_RUN) as given_up:
    pass
  with second.in_files(_RUN) as begin:
    assert len(cohort_lib.rows_in(begin, 0)) == 5
    with pytest.raises(tf.errors.NotFoundError):
      cohort_lib.rows_in(given_up, 0)


def test_clients_without_a_key_are_refused(data):
  with pytest.raises(ValueError, match='keys must be as many as clients, 3; got'):
    cohort_lib.Cohort(data, np.arange(3), np.zeros(2, np.uint64), np.arange)


class _Many:
  """Clients of one example, which are read quickly."""

  def __len__(self):
    return 40_000

  def examples(self, number):
    x = np.full([1, populations.NUM_FEATURES], number % 7, np.float32)
    return {'x': x, 'y': np.array([number % populations.NUM_CLASSES], np.int32)}


def test_a_round_takes_few_bytes_for_each_client(tmp_path):
  data = packed.lay_out(_Many(), str(tmp_path / 'data'))
  training = packed.LocalTraining(
    populations.model(), tff.learning.optimizers.build_sgdm(0.1), batch_size=1
  )
  aggregator = aggregators.gaussian(
    clip_norm=1.0, noise_multiplier=1.0, clients_per_round=2000
  )
  peaks, cohorts = [], (2000, 40_000)
  with learning.runtime.local_runtime():
    simulation = packed.PackedFedAvg(
      training,
      aggregator,
      data,
      server_optimizer=tff.learning.optimizers.build_sgdm(1.0),
    )
    state = simulation.initialize()
    for this_round, cohort in enumerate((cohorts[0], *cohorts)):
      clients = np.arange(cohort)
      tracemalloc.start()
      keys = local_order.keys(1, this_round, clients)
      state, _ = simulation.next(state, clients, keys)
      peaks.append(tracemalloc.get_traced_memory()[1])
      tracemalloc.stop()
      folder = simulation._directory.path
      assert not [name for name in os.listdir(folder) if '.rows.' in name]
  more_bytes = (peaks[2] - peaks[1]) / (cohorts[1] - cohorts[0])
  assert more_bytes < _MOST_BYTES


def test_no_files_are_left_of_a_round_that_fails(data):
  training = packed.LocalTraining(
    populations.model(), tff.learning.optimizers.build_sgdm(0.1), batch_size=4
  )
  aggregator = aggregators.gaussian_shares(
    clip_norm=1.0, noise_multiplier=1.0, clients_per_round=5
  )
  with learning.runtime.local_runtime():
    simulation = packed.PackedFedAvg(
      training,
      aggregator,
      data,
      server_optimizer=tff.learning.optimizers.build_sgdm(1.0),
    )
    state, clients = simulation.initialize(), np.arange(4)
    with pytest.raises(failures.ComputationError, match='fewer clients'):
      simulation.next(state, clients, local_order.keys(1, 0, clients))
    folder = simulation._directory.path
    assert os.listdir(folder)
    assert not [name for name in os.listdir(folder) if '.rows.' in name]
