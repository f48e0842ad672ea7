"""Cohorts are cut into packs by themselves alone.

Claims:

* Packs cover a cohort, in order, and differ by one client at most.
* Two clients make two packs; a cohort of any size makes packs that are not large.
* More examples never make fewer packs.
* A round has the same bits whatever number of processors the machine has.
"""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.learning.packed import populations
from tff_dp_aggregators import aggregators
from tff_dp_aggregators import learning
from tff_dp_aggregators import noise
from tff_dp_aggregators import strategies
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
  assert lengths.max() <= 4097


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


@pytest.mark.optimized_graphs
def test_bits_do_not_depend_on_the_number_of_processors(tmp_path, monkeypatch):
  data = packed.lay_out(populations.Population(), str(tmp_path / 'data'))
  released = []
  for processors in (1, 5):
    monkeypatch.setattr('os.cpu_count', lambda found=processors: found)
    with learning.runtime.local_runtime():
      simulation = packed.PackedFedAvg(
        packed.LocalTraining(
          populations.model(metrics=True),
          tff.learning.optimizers.build_sgdm(0.3),
          batch_size=4,
        ),
        aggregators.gaussian(
          strategies.Participation(8, min_separation=2),
          clip_norm=0.4,
          noise_multiplier=0.3,
          clients_per_round=5,
          seed=noise.Seed(4),
          generator='philox',
        ),
        data,
        server_optimizer=tff.learning.optimizers.build_sgdm(1.0),
      )
      state, clients = simulation.initialize(), np.array([0, 3, 5, 7, 8])
      state, metrics = simulation.next(state, clients, local_order.keys(9, 0, clients))
      released.append((simulation.release(state), metrics))
  for one, other in zip(*map(tf.nest.flatten, released)):
    np.testing.assert_array_equal(one, other)
