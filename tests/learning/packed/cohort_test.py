"""Tests that how a cohort is cut into packs depends on the cohort alone."""

import os
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tff_dp_aggregators import aggregators
from tff_dp_aggregators import noise
from tff_dp_aggregators import strategies
from tff_dp_aggregators.learning import local_order
from tff_dp_aggregators.learning import packed
from tff_dp_aggregators.learning.packed import simulation as simulation_lib
from tff_dp_aggregators.learning.packed import training as training_lib


@pytest.mark.parametrize('cohort', [1, 3, 4097, 10**5])
@pytest.mark.parametrize('side_by_side', [True, False])
def test_packs_cover_cohort_and_differ_by_at_most_one_client(cohort, side_by_side):
  sizes = np.full(cohort, 10)
  number = simulation_lib.num_packs(sizes, 1, side_by_side=side_by_side)
  lengths = np.diff(simulation_lib.cuts(cohort, number))
  assert lengths.sum() == cohort
  assert lengths.max() - lengths.min() <= 1
  assert lengths.min() >= 1
  assert lengths.max() <= training_lib.LARGEST


def test_more_examples_never_make_fewer_packs():
  numbers = [
    simulation_lib.num_packs(np.full(300, size), 2, side_by_side=False)
    for size in range(1, 400, 7)
  ]
  assert numbers == sorted(numbers)
  assert numbers[0] == 2
  assert numbers[-1] == 32


def _rounds(data, model, num_clients):
  """Returns state and metrics of two rounds as a flat list."""
  simulation = packed.PackedFedAvg(
    packed.LocalTraining(model, tff.learning.optimizers.build_sgdm(0.1), batch_size=20),
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
  return tf.nest.flatten((simulation_lib.to_numpy(state), metrics))


# So large that TensorFlow would split its products by threads, if it were allowed to.
_LARGE = """
import hashlib, sys
import numpy as np, tensorflow as tf, tensorflow_federated as tff
tf.config.threading.set_intra_op_parallelism_threads(1)
from tests.learning.packed import cohort_test
from tff_dp_aggregators.learning import packed

def layer(size, activation, seed):
  initializer = tf.keras.initializers.GlorotUniform(seed)
  return tf.keras.layers.Dense(size, activation, kernel_initializer=initializer)

model = tff.learning.models.functional_model_from_keras(
  tf.keras.Sequential(
    [tf.keras.layers.InputLayer([64]), layer(8000, 'relu', 1), layer(10, None, 2)]
  ),
  tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
  (tf.TensorSpec([None, 64], tf.float32), tf.TensorSpec([None], tf.int64)),
)
digest = hashlib.sha256()
for each in cohort_test._rounds(packed.PackedData(sys.argv[1]), model, 8):
  digest.update(np.asarray(each).tobytes())
print(digest.hexdigest())
"""


class _Images:
  """Clients with twenty examples of 64 numbers and one of ten classes."""

  def __len__(self):
    return 8

  def examples(self, number):
    rng = np.random.default_rng(number)
    return rng.normal(size=[20, 64]).astype(np.float32), rng.integers(10, size=20)


@pytest.mark.slow
def test_bits_of_a_large_model_do_not_depend_on_the_processors(tmp_path):
  directory = str(tmp_path / 'data')
  packed.lay_out(_Images(), directory)
  digests = set()
  for processors in ({min(os.sched_getaffinity(0))}, os.sched_getaffinity(0)):
    process = subprocess.run(
      [sys.executable, '-c', _LARGE, directory],
      stdout=subprocess.PIPE,
      check=True,
      preexec_fn=lambda those=processors: os.sched_setaffinity(0, those),
    )
    digests.add(process.stdout)
  assert len(digests) == 1
