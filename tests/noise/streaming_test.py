"""Streaming noise is its strategy's matrix times z, exactly and in distribution.

Claims, for every strategy kind:

* The streaming map is linear in the rows of z, and with z replaced by unit vectors it
  is the strategy's dense matrix, entry by entry, eagerly and in `tf.function`.
* With real Gaussian rows the covariance over rounds is that of `D z`.
* The state is all there is: saved as plain NumPy arrays after any round, also in
  another Python process, it continues bit by bit.
"""

import hashlib
import os
import pickle
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

from tff_dp_aggregators import noise
from tff_dp_aggregators import strategies

_SIGNED = (2.0, -0.7, 0.4, 0.1)


def _signed(num_rounds):
  return strategies.BandedToeplitz(num_rounds, _SIGNED[:num_rounds])


def _square_root(num_bands):
  def make(num_rounds):
    bands = min(num_bands or num_rounds, num_rounds)
    return strategies.BandedToeplitz.square_root(num_rounds, bands)

  return make


# Name: (from number of rounds to strategy, whether prefix sums are released).
_KINDS = {
  'identity': (strategies.Identity, False),
  'square_root_1_band': (_square_root(1), False),
  'square_root_2_bands': (_square_root(2), False),
  'square_root_5_bands': (_square_root(5), False),
  'square_root_all_bands': (_square_root(None), False),
  'signed_bands': (_signed, False),
  'tree_honaker': (strategies.BinaryTree, False),
  'tree_honaker_cumulative': (strategies.BinaryTree, True),
  'tree_plain': (lambda n: strategies.BinaryTree(n, honaker=False), False),
  'tree_plain_cumulative': (
    lambda n: strategies.BinaryTree(n, honaker=False),
    True,
  ),
}
all_kinds = pytest.mark.parametrize('kind', _KINDS)


def _build(kind, num_rounds, rows):
  """The kind's streaming noise and the dense matrix that it applies to z."""
  make, cumulative = _KINDS[kind]
  strategy = make(num_rounds)
  if cumulative:
    streaming = noise.TreeNoise(strategy, rows, cumulative=True)
    return streaming, strategy.materialize_estimator()
  return noise.build(strategy, rows), strategy.noise_matrix()


def _num_rows(kind, num_rounds):
  return _KINDS[kind][0](num_rounds).materialize().shape[0]


class _UnitRows:
  """Rows like `GaussianRows`, in which row i of z is the i-th unit vector."""

  def __init__(self, num_rows):
    self.record_specs = tf.TensorSpec([num_rows], tf.float64)

  def new_key(self):
    return tf.zeros([2], tf.int64)

  def row(self, key, index):
    del key
    return tf.one_hot(index, self.record_specs.shape[0], dtype=tf.float64)


def _emit(streaming, num_rounds, state=None, next_fn=None):
  """Noise of successive rounds, flattened to [rounds, entries], and the state."""
  next_fn = next_fn or streaming.next
  state = streaming.initialize() if state is None else state
  emitted = []
  for _ in range(num_rounds):
    row, state = next_fn(state)
    emitted.append(
      np.concatenate([np.ravel(tensor) for tensor in tf.nest.flatten(row)])
    )
  return np.array(emitted), state


@pytest.mark.parametrize('num_rounds', [1, 2, 3, 7, 8, 13, 64])
@all_kinds
def test_unit_rows_give_the_noise_matrix_eagerly(kind, num_rounds):
  rows = _UnitRows(_num_rows(kind, num_rounds))
  streaming, matrix = _build(kind, num_rounds, rows)
  emitted, state = _emit(streaming, num_rounds)
  np.testing.assert_allclose(emitted, matrix, rtol=0, atol=1e-12)
  assert int(state.round) == num_rounds


@pytest.mark.parametrize('num_rounds', [5, 64])
@all_kinds
def test_unit_rows_give_the_noise_matrix_in_a_tf_function(kind, num_rounds):
  rows = _UnitRows(_num_rows(kind, num_rounds))
  streaming, matrix = _build(kind, num_rounds, rows)
  emitted, _ = _emit(streaming, num_rounds, next_fn=tf.function(streaming.next))
  np.testing.assert_allclose(emitted, matrix, rtol=0, atol=1e-12)


@all_kinds
def test_covariance_over_rounds_is_that_of_the_matrix(kind):
  # Entry (s, t) of the empirical covariance has standard deviation
  # sqrt((V_ss V_tt + V_st^2) / d). Seven of them: below 3e-12 for one entry, 4e-9 for
  # all entries of all kinds. The bound is 2.3% of a variance.
  num_rounds, num_samples = 12, 200_000
  rows = noise.GaussianRows(tf.TensorSpec([num_samples]), seed=20230518)
  streaming, matrix = _build(kind, num_rounds, rows)
  emitted, _ = _emit(streaming, num_rounds)
  emitted = emitted.astype(np.float64)
  expected = matrix @ matrix.T
  variances = np.diag(expected)
  bound = 7 * np.sqrt((np.outer(variances, variances) + expected**2) / num_samples)
  deviation = np.abs(emitted @ emitted.T / num_samples - expected)
  assert np.all(deviation <= bound), (deviation / bound).max()
  # Independent entries also have mean zero.
  assert np.all(np.abs(emitted.mean(axis=1)) <= 7 * np.sqrt(variances / num_samples))


def test_identity_emits_the_rows_of_z_themselves():
  rows = noise.GaussianRows([tf.TensorSpec([3]), tf.TensorSpec([])], seed=1)
  streaming = noise.build(strategies.Identity(4), rows)
  state = streaming.initialize()
  for index in range(4):
    emitted, after = streaming.next(state)
    expected = rows.row(state.key, index)
    assert [t.numpy().tobytes() for t in emitted] == [
      t.numpy().tobytes() for t in expected
    ]
    state = after


@all_kinds
def test_every_tensor_of_a_record_gets_the_noise_it_would_get_alone(kind):
  # Rows are keyed by the position of a tensor, so the first one is the same alone.
  num_rounds = 6
  alone, _ = _build(kind, num_rounds, noise.GaussianRows([tf.TensorSpec([4])], 3))
  rows = noise.GaussianRows([tf.TensorSpec([4]), tf.TensorSpec([2, 3])], 3)
  together, _ = _build(kind, num_rounds, rows)
  emitted_alone, _ = _emit(alone, num_rounds)
  emitted_together, _ = _emit(together, num_rounds)
  assert emitted_together.shape == (num_rounds, 10)
  np.testing.assert_array_equal(emitted_together[:, :4], emitted_alone)


@pytest.mark.parametrize('traced', [False, True])
@all_kinds
def test_scalars_and_empty_tensors_are_served(kind, traced):
  specs = {
    'scalar': tf.TensorSpec([]),
    'empty': tf.TensorSpec([0]),
    'double': tf.TensorSpec([2], tf.float64),
  }
  streaming, _ = _build(kind, 3, noise.GaussianRows(specs, seed=2))
  step = tf.function(streaming.next) if traced else streaming.next
  state = streaming.initialize()
  for _ in range(3):
    row, state = step(state)
    assert {name: tensor.dtype for name, tensor in row.items()} == {
      'scalar': tf.float32,
      'empty': tf.float32,
      'double': tf.float64,
    }
    assert row['scalar'].shape == [] and row['empty'].shape == [0]
    assert np.all(np.isfinite(row['double']))


@all_kinds
def test_a_traced_round_gives_the_noise_of_an_eager_one(kind):
  # Up to rounding: a graph may multiply by a reciprocal instead of dividing.
  streaming, _ = _build(kind, 9, noise.GaussianRows(tf.TensorSpec([5]), seed=4))
  eager, _ = _emit(streaming, 9)
  traced, _ = _emit(streaming, 9, next_fn=tf.function(streaming.next))
  np.testing.assert_allclose(eager, traced, rtol=0, atol=1e-5)


@all_kinds
def test_a_state_saved_after_any_round_continues_bit_by_bit(kind):
  num_rounds = 6
  specs = [tf.TensorSpec([5]), tf.TensorSpec([], tf.float64)]
  streaming, _ = _build(kind, num_rounds, noise.GaussianRows(specs, seed=5))
  whole, _ = _emit(streaming, num_rounds)
  # No seed and so another secret: what continues is in the state alone.
  other, _ = _build(kind, num_rounds, noise.GaussianRows(specs))
  for stop in range(num_rounds):
    _, state = _emit(streaming, stop)
    saved = pickle.dumps(tf.nest.map_structure(lambda t: t.numpy(), state))
    restored = tf.nest.map_structure(tf.constant, pickle.loads(saved))
    rest, _ = _emit(other, num_rounds - stop, restored)
    assert rest.tobytes() == whole[stop:].tobytes()


_CHILD = """
import hashlib, pickle, sys
import numpy as np
import tensorflow as tf
from tff_dp_aggregators import noise, strategies

strategy = strategies.Strategy.from_json(sys.argv[1])
with open(sys.argv[2], 'rb') as file:
  state = tf.nest.map_structure(tf.constant, pickle.load(file))
rows = noise.GaussianRows(tf.TensorSpec([1000]), seed=77)
streaming = noise.build(strategy, rows)

def digest(state, rounds):
  content = hashlib.sha256()
  for _ in range(rounds):
    row, state = streaming.next(state)
    content.update(row.numpy().tobytes())
  return content.hexdigest()

print(digest(state, 4), digest(streaming.initialize(), 7))
"""


def test_another_process_continues_bit_by_bit(tmp_path):
  strategy = strategies.BinaryTree(7)
  rows = noise.GaussianRows(tf.TensorSpec([1000]), seed=77)
  streaming = noise.build(strategy, rows)
  whole, _ = _emit(streaming, 7)
  _, state = _emit(streaming, 3)
  path = tmp_path / 'state.pickle'
  path.write_bytes(pickle.dumps(tf.nest.map_structure(lambda t: t.numpy(), state)))
  output = subprocess.run(
    [sys.executable, '-c', _CHILD, strategy.to_json(), str(path)],
    env={**os.environ, 'PYTHONPATH': os.pathsep.join(sys.path)},
    stdout=subprocess.PIPE,
    check=True,
    timeout=300,
  ).stdout.decode()
  continued, from_the_seed = output.split()
  assert continued == hashlib.sha256(whole[3:].tobytes()).hexdigest()
  assert from_the_seed == hashlib.sha256(whole.tobytes()).hexdigest()


def test_the_state_holds_as_many_buffers_as_the_strategy_says():
  rows = noise.GaussianRows([tf.TensorSpec([3]), tf.TensorSpec([], tf.float64)], 1)
  for strategy, buffers in [
    (strategies.Identity(64), 0),
    (strategies.BandedToeplitz.square_root(64, 10), 9),
    (strategies.BinaryTree(64), 7),
    (strategies.BinaryTree(64, honaker=False), 0),
  ]:
    assert strategy.noise_buffers == buffers
    state = noise.build(strategy, rows).initialize()
    shapes = [tensor.shape.as_list() for tensor in tf.nest.flatten(state.buffers)]
    assert shapes == ([[buffers, 3], [buffers]] if buffers else [])


def test_an_unknown_strategy_is_refused():
  class Unknown:
    kind = 'unknown'

  with pytest.raises(TypeError, match="kind 'unknown'"):
    noise.build(Unknown(), noise.GaussianRows(tf.TensorSpec([])))


def test_a_tree_with_restarts_is_refused():
  restarted = strategies.BinaryTree(8, restart_every=4)
  with pytest.raises(ValueError, match='restart_every must be None, got 4'):
    noise.build(restarted, noise.GaussianRows(tf.TensorSpec([])))
