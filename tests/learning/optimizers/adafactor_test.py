"""TFF's Adafactor takes its steps, and its state stays what it is.

Claims: the steps are those of TFF's; the state keeps structure and dtypes, also when
hyperparameters are set; all other optimizers are left alone.
"""

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_dp_aggregators.learning.optimizers import adafactor


def _dtypes(state):
  return tf.nest.map_structure(lambda leaf: tf.convert_to_tensor(leaf).dtype, state)


def test_steps_are_those_of_tff_and_the_state_keeps_its_types():
  theirs = tff.learning.optimizers.build_adafactor(0.1)
  ours = adafactor.repaired(theirs)
  specs = [tf.TensorSpec([3, 2]), tf.TensorSpec([2])]
  their_state, our_state = theirs.initialize(specs), ours.initialize(specs)
  types = _dtypes(our_state)
  their_weights = our_weights = [tf.ones([3, 2]), tf.ones([2])]
  for seed in range(3):
    rng = np.random.default_rng(seed)
    gradients = [tf.constant(rng.normal(size=s.shape), tf.float32) for s in specs]
    their_state, their_weights = theirs.next(their_state, their_weights, gradients)
    our_state, our_weights = ours.next(our_state, our_weights, gradients)
    assert _dtypes(our_state) == types
  for one, other in zip(our_weights, their_weights):
    np.testing.assert_array_equal(one, other)
  # What is repaired: TFF's state has other types than before.
  assert _dtypes(their_state['steps']) != types['steps']


def test_hyperparameters_are_set_and_the_rest_of_the_state_is_kept():
  optimizer = adafactor.repaired(tff.learning.optimizers.build_adafactor(0.1))
  state = optimizer.initialize([tf.TensorSpec([2])])
  hparams = {**optimizer.get_hparams(state), 'learning_rate': 0.5}
  changed = optimizer.set_hparams(state, hparams)
  assert _dtypes(changed) == _dtypes(state)
  assert changed['hparams']['learning_rate'] == 0.5
  assert changed['moments'] == state['moments']


def test_other_optimizers_are_left_alone():
  optimizer = tff.learning.optimizers.build_adam(0.1)
  assert adafactor.repaired(optimizer) is optimizer
