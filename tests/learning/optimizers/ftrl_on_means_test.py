"""DP-FTRL(M) on means of rounds is that on cumulative sums, and SGD's model."""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.learning import training_runs
from tff_dp_aggregators import accounting
from tff_dp_aggregators import learning
from tff_dp_aggregators import strategies
from tff_dp_aggregators.learning.optimizers import ftrl

_LIMITS = strategies.Participation(5, min_separation=3)


@pytest.mark.parametrize('momentum', [0.0, 0.9])
def test_models_are_those_of_ftrl_on_the_sums(momentum):
  rng = np.random.default_rng(2)
  means = [{'a': rng.normal(size=[2, 3]), 'b': [rng.normal(size=4)]} for _ in range(6)]
  weights = tf.nest.map_structure(lambda each: tf.constant(rng.normal(each)), means[0])
  specs = tf.nest.map_structure(tf.TensorSpec.from_tensor, weights)
  on_sums = learning.build_ftrl(0.25, momentum)
  on_means = ftrl.FTRLOnMeans(on_sums)
  state, model = on_means.initialize(specs), weights
  expected_state, expected = on_sums.initialize(specs), weights
  total = tf.nest.map_structure(np.zeros_like, means[0])
  for mean in means:
    total = tf.nest.map_structure(np.add, total, mean)
    state, model = on_means.next(state, model, tf.nest.map_structure(tf.constant, mean))
    expected_state, expected = on_sums.next(
      expected_state, expected, tf.nest.map_structure(tf.constant, total)
    )
    for found, same in zip(tf.nest.flatten(model), tf.nest.flatten(expected)):
      np.testing.assert_allclose(found, same, rtol=1e-12)


def _train(run_dir, optimizer, name='tree', **changes):
  changes = {'mechanism': accounting.Mechanism(name, _LIMITS, 0.5), **changes}
  return training_runs.train(run_dir, server_optimizer=optimizer, **changes)


@pytest.mark.parametrize(
  ('name', 'momentum', 'packed'),
  [
    ('tree', 0.9, True),
    pytest.param('banded', 0.0, False, marks=pytest.mark.slow),
    pytest.param('tree', 0.0, False, marks=pytest.mark.slow),
    pytest.param('banded', 0.9, True, marks=pytest.mark.slow),
  ],
)
def test_it_trains_to_the_model_of_sgd(tmp_path, name, momentum, packed):
  results = [
    _train(tmp_path / which, optimizer, name, packed_simulation=packed, test_data=None)
    for which, optimizer in (
      ('ftrl', learning.build_ftrl(0.5, momentum)),
      ('sgd', tff.learning.optimizers.build_sgdm(0.5, momentum)),
    )
  ]
  found, expected = (result.weights.trainable[0] for result in results)
  np.testing.assert_allclose(found, expected, rtol=2e-5)
  assert np.any(np.abs(expected) > 0.1)
  lines = [training_runs.lasting(tmp_path / each)['ledger'] for each in ('ftrl', 'sgd')]
  for line in lines[0] + lines[1]:
    del line['result_checksum']
  assert lines[0] == lines[1]


@pytest.mark.slow
def test_it_goes_on_with_the_sum(tmp_path):
  optimizer = learning.build_ftrl(0.5, 0.9)
  kwargs = {'mechanism': accounting.Mechanism('tree', _LIMITS, 0.5)}
  straight = _train(tmp_path / 'straight', optimizer, **kwargs)
  kwargs['checkpoint_seconds'] = 0.0
  with pytest.raises(training_runs.Killed):
    killing = training_runs.killing(3)
    _train(tmp_path / 'run', optimizer, test_metrics=killing, **kwargs)
  never = training_runs.killing(0)
  result = _train(tmp_path / 'run', optimizer, test_metrics=never, **kwargs)
  np.testing.assert_array_equal(
    result.weights.trainable[0], straight.weights.trainable[0]
  )
