"""Cohorts are cut into packs by themselves alone.

Claims:

* Packs cover a cohort, in order, and differ by one client at most.
* Two clients make two packs; a cohort of any size makes packs that are not large, and
  one of 3,000 makes two.
* More examples never make fewer packs.
* A round has the same bits whatever number of processors the machine has.
"""

import contextlib
import os

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.learning.packed import populations
from tff_dp_aggregators import aggregators
from tff_dp_aggregators import learning
from tff_dp_aggregators import noise
from tff_dp_aggregators import strategies
from tff_dp_aggregators.base import machine
from tff_dp_aggregators.learning import local_order
from tff_dp_aggregators.learning import packed
from tff_dp_aggregators.learning.packed import cutting


@pytest.mark.parametrize('cohort', [1, 2, 3, 7, 100, 4097, 10**5])
@pytest.mark.parametrize('side_by_side', [True, False])
def test_packs_cover_a_cohort_and_are_alike(cohort, side_by_side):
  sizes = np.full(cohort, 10)
  number = cutting.num_packs(sizes, 1, side_by_side=side_by_side)
  lengths = np.diff(cutting.cuts(cohort, number))
  assert lengths.sum() == cohort
  assert lengths.max() - lengths.min() <= 1
  assert lengths.min() >= 1
  assert lengths.max() <= cutting.LARGEST


def test_cohorts_of_three_thousand_are_not_cut_for_their_memory():
  for cohort in (2, 300, 3000):
    assert cutting.num_packs(np.ones(cohort), 1, side_by_side=True) == 2
  assert cutting.num_packs(np.ones(4000), 1, side_by_side=True) == 4


def test_no_clients_make_one_pack():
  assert cutting.num_packs(np.zeros(0, np.int64), 1, side_by_side=True) == 1
  assert cutting.cuts(0, 1).tolist() == [0, 0]


def test_more_examples_never_make_fewer_packs():
  numbers = [
    cutting.num_packs(np.full(300, size), 2, side_by_side=False)
    for size in range(1, 400, 7)
  ]
  assert numbers == sorted(numbers)
  assert numbers[0] == 2
  assert numbers[-1] == 32


class _Images:
  """Clients with twenty examples of 64 numbers and one of ten classes."""

  def __len__(self):
    return 8

  def examples(self, number):
    rng = np.random.default_rng(number)
    return rng.normal(size=[20, 64]).astype(np.float32), rng.integers(10, size=20)


def _initializer(seed):
  return tf.keras.initializers.GlorotUniform(seed)


@contextlib.contextmanager
def _one_processor():
  before = os.sched_getaffinity(0)
  os.sched_setaffinity(0, {min(before)})
  try:
    yield
  finally:
    os.sched_setaffinity(0, before)


def _rounds(data, model, num_clients):
  """State and metrics of two rounds, flat."""
  with learning.runtime.local_runtime():
    simulation = packed.PackedFedAvg(
      packed.LocalTraining(
        model, tff.learning.optimizers.build_sgdm(0.1), batch_size=20
      ),
      aggregators.gaussian(
        strategies.Participation(8, min_separation=1),
        clip_norm=0.4,
        noise_multiplier=0.3,
        clients_per_round=num_clients,
        seed=noise.Seed(4),
        generator='philox',
      ),
      data,
      server_optimizer=tff.learning.optimizers.build_sgdm(1.0),
    )
    state, clients = simulation.initialize(), np.arange(num_clients)
    for this_round in range(2):
      keys = local_order.keys(9, this_round, clients)
      state, metrics = simulation.next(state, clients, keys)
    return tf.nest.flatten((simulation.release(state), metrics))


def test_bits_do_not_depend_on_how_many_processors_may_be_used(tmp_path, monkeypatch):
  data = packed.lay_out(populations.Population(), str(tmp_path / 'data'))
  found = []
  for processors in (1, 5):
    monkeypatch.setattr(machine, 'usable_processors', lambda n=processors: n)
    found.append(_rounds(data, populations.model(metrics=True), 10))
  for one, other in zip(*found):
    np.testing.assert_array_equal(one, other)


@pytest.mark.slow
@pytest.mark.optimized_graphs
def test_bits_of_a_large_model_do_not_depend_on_the_processors(tmp_path):
  # As large as it takes for TensorFlow to cut its products by threads, if it may.
  data = packed.lay_out(_Images(), str(tmp_path / 'data'))
  layers = [
    tf.keras.layers.Dense(4000, 'relu', kernel_initializer=_initializer(1)),
    tf.keras.layers.Dense(10, kernel_initializer=_initializer(2)),
  ]
  model = tff.learning.models.functional_model_from_keras(
    tf.keras.Sequential([tf.keras.layers.InputLayer([64]), *layers]),
    tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    (tf.TensorSpec([None, 64], tf.float32), tf.TensorSpec([None], tf.int64)),
  )
  found = [_rounds(data, model, 8)]
  with _one_processor():
    found.append(_rounds(data, model, 8))
  for one, other in zip(*found):
    np.testing.assert_array_equal(one, other)
