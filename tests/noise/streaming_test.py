"""Tests of streaming noise: it is the noise matrix of its strategy times z."""

import dataclasses
import pickle

import numpy as np
import pytest
import tensorflow as tf

from tests.strategies import every_kind
from tff_dp_aggregators import noise
from tff_dp_aggregators import strategies
from tff_dp_aggregators.noise import rows as layout
from tff_dp_aggregators.noise.streaming import interpret
from tff_dp_aggregators.noise.streaming import terms_of
from tff_dp_aggregators.strategies import recursion as recursion_lib

# Kinds that differ only in their numbers of bands or copies use the same algorithm.
_STRATEGIES = {
  kind: make
  for kind, make in every_kind.STRATEGIES.items()
  if not kind.endswith(
    ('one_copy', 'no_decays', 'no_tail', 'at_once', 'inverse_1_band')
  )
}
_STORAGES = ('state', 'redraw', 'files')


def _is_offered(kind, storage):
  return storage != 'redraw' or 'honaker' not in kind


all_kinds = pytest.mark.parametrize(
  'kind, storage',
  [
    (kind, storage)
    for kind in _STRATEGIES
    for storage in _STORAGES
    if _is_offered(kind, storage)
  ],
)


def _build(kind, storage, num_rounds, rows):
  """Returns streaming noise and the dense matrix that it applies to z."""
  strategy = _STRATEGIES[kind](num_rounds)
  matrix = strategy.noise_matrix()
  if isinstance(strategy, strategies.BinaryTree):
    matrix = matrix @ _rows_of_nodes(strategy)
  return noise.build(strategy, rows, storage), matrix


def _rows_of_nodes(strategy):
  """Returns each node's noise as a multiple of a round's row of z, shape [nodes, n].

  A round's row of z stands for the nodes that the round completes: with Honaker's
  estimator, each has half the weight of the one above it; with the plain one, only the
  highest has any. The rows of rounds are independent and have variance 1.
  """
  rows = np.zeros((strategy.num_nodes, strategy.num_rounds))
  node = 0
  for this_round in range(strategy.num_rounds):
    in_tree = this_round % (strategy.restart_every or strategy.num_rounds)
    height = len(bin(in_tree)) - len(bin(in_tree).rstrip('1'))
    nodes = np.arange(node, node + height + 1)
    rows[nodes, this_round] = 0.5 ** np.arange(height, -1, -1)
    if not strategy.honaker:
      rows[nodes[:-1], this_round] = 0.0
    rows[:, this_round] /= np.linalg.norm(rows[:, this_round])
    node += height + 1
  assert node == strategy.num_nodes
  return rows


class _UnitRows:
  """Rows like those of `GaussianRows`, but row i of z is the i-th unit vector."""

  generator = 'philox'

  def __init__(self, num_rows):
    self.layout = layout.Layout(tf.TensorSpec([num_rows], tf.float64))

  def new_key(self):
    return tf.zeros([4], tf.int64)

  def row(self, key, index):
    del key
    return [tf.one_hot(index, self.layout.sizes[0], dtype=tf.float64)]


def _emit(streaming, num_rounds, state=None, next_fn=None):
  """Returns noise of successive rounds, as [rounds, entries], and the state."""
  next_fn = next_fn or streaming.next
  state = streaming.initialize() if state is None else state
  emitted = []
  for _ in range(num_rounds):
    row, state = next_fn(state)
    emitted.append(
      np.concatenate([np.ravel(tensor) for tensor in tf.nest.flatten(row)])
    )
  return np.array(emitted), state


@pytest.mark.parametrize('kind', [kind for kind in _STRATEGIES if 'tree' in kind])
def test_tree_needs_only_one_row_of_z_per_round(kind):
  # The estimator does not use what the rows leave out of the noise of the nodes.
  strategy = _STRATEGIES[kind](37)
  rows = _rows_of_nodes(strategy)
  np.testing.assert_allclose(rows.T @ rows, np.eye(37), atol=1e-15)
  estimator = strategy.noise_matrix()
  np.testing.assert_allclose(estimator @ rows @ rows.T, estimator, atol=1e-13)


@pytest.mark.few(13)
@all_kinds
def test_streaming_of_unit_rows_is_the_noise_matrix(kind, storage):
  num_rounds = 64
  rows = _UnitRows(num_rounds)
  streaming, matrix = _build(kind, storage, num_rounds, rows)
  emitted, state = _emit(
    streaming, num_rounds, next_fn=tf.function(streaming.next, autograph=False)
  )
  np.testing.assert_allclose(emitted, matrix, rtol=0, atol=1e-12)
  assert int(state.round) == num_rounds


@pytest.mark.parametrize('kind', ['banded', 'tree_honaker_restarts'])
def test_covariance_over_rounds_matches_the_strategy(kind):
  # Entry (s, t) of the empirical covariance has standard deviation
  # sqrt((V_ss V_tt + V_st^2) / d). Seven of them: below 3e-12 for one entry, 1e-9 for
  # all entries of both kinds. The bound is 4.5% of a variance.
  num_rounds, num_samples = 12, 50_000
  rows = noise.GaussianRows(tf.TensorSpec([num_samples]), seed=noise.Seed(20230518))
  streaming, _ = _build(kind, 'state', num_rounds, rows)
  emitted, _ = _emit(streaming, num_rounds)
  emitted = emitted.astype(np.float64)
  strategy = _STRATEGIES[kind](num_rounds)
  matrix = strategy.noise_matrix()  # For a tree, applied to its nodes.
  expected = matrix @ matrix.T
  variances = np.square(strategy.noise_row_norms())
  bound = 7 * np.sqrt((np.outer(variances, variances) + expected**2) / num_samples)
  deviation = np.abs(emitted @ emitted.T / num_samples - expected)
  assert np.all(deviation <= bound), (deviation / bound).max()
  # Independent entries also have mean zero.
  assert np.all(np.abs(emitted.mean(axis=1)) <= 7 * np.sqrt(variances / num_samples))


@pytest.mark.parametrize(
  'kind, storage', [('banded', 'state'), ('tree_plain', 'files')]
)
def test_saved_state_of_any_round_continues_with_the_same_bits(kind, storage):
  num_rounds = 4
  specs = [tf.TensorSpec([5]), tf.TensorSpec([], tf.float64)]
  streaming, _ = _build(
    kind, storage, num_rounds, noise.GaussianRows(specs, seed=noise.Seed(5))
  )
  expected, _ = _emit(streaming, num_rounds)
  # Without a seed these have another key, so all that is needed is in the state.
  secret = noise.GaussianRows(specs, generator='philox')
  continuing, _ = _build(kind, storage, num_rounds, secret)
  for stop in range(num_rounds):
    _, state = _emit(streaming, stop)
    saved = pickle.dumps(tf.nest.map_structure(lambda t: t.numpy(), state))
    restored = tf.nest.map_structure(tf.constant, pickle.loads(saved))
    rest, _ = _emit(continuing, num_rounds - stop, restored)
    assert rest.tobytes() == expected[stop:].tobytes()


@pytest.mark.parametrize('kind', _STRATEGIES)
def test_stated_costs_match_slots_kept_and_rows_drawn(kind):
  # `tests/strategies/recursion_test.py` tests the other costs.
  num_rounds = 20
  strategy = _STRATEGIES[kind](num_rounds)
  recursion = strategy.recursion()
  unscaled = recursion
  if isinstance(recursion, recursion_lib.Scaled):
    unscaled = recursion.recursion
  assert interpret(unscaled).num_slots == recursion.work.buffers
  if 'redraw' not in strategies.strategy.by_storage(strategy, num_bytes=4):
    with pytest.raises(ValueError, match="storage 'redraw'"):
      terms_of(strategy)
    return
  max_terms = strategies.strategy.max_terms(strategy) if recursion.work.buffers else 1
  terms = terms_of(strategy)
  counts = [len(terms(tf.constant(t, tf.int64))[0]) for t in range(num_rounds)]
  assert max(counts) == max_terms


@dataclasses.dataclass(frozen=True)
class _Leaky(strategies.Strategy):
  """C[i, j] = keep^(i - j), as somebody outside of the package would write it.

  Attributes:
    keep: Below 1.
    form: Whether its noise is computed from the previous row of z, from all previous
      noise, or from a decaying sum.
  """

  keep: float
  form: str
  kind = 'test_leaky'

  def sensitivity_squared_by_round(self, participation=None):
    return strategies.Dense(
      self.num_rounds, self.materialize()
    ).sensitivity_squared_by_round(participation)

  def squared_or_bound(self, participation):
    return float(self.sensitivity_squared_by_round(participation)[-1]), False

  def materialize(self):
    powers = self.keep ** np.arange(self.num_rounds)
    return np.tril(powers[:, np.newaxis] / powers)

  def materialize_estimator(self):
    return np.tril(np.ones([self.num_rounds] * 2)) @ np.linalg.inv(self.materialize())

  def recursion(self):
    if self.form == 'row':
      return recursion_lib.LastRounds([[1.0, -self.keep]], remembers='row')
    if self.form == 'noise':
      column = self.keep ** np.arange(self.num_rounds)
      return recursion_lib.LastRounds.solving(column[np.newaxis])
    return recursion_lib.DecayingSums([self.keep], [-self.keep])


@pytest.mark.few(4)
@pytest.mark.parametrize('storage', _STORAGES)
@pytest.mark.parametrize('form', ['row', 'noise', 'sum'])
def test_user_defined_strategy_streams_by_its_recursion(form, storage):
  num_rounds = 13
  strategy = _Leaky(num_rounds, 0.8, form)
  streaming = noise.build(strategy, _UnitRows(num_rounds), storage)
  assert streaming.storage == storage
  emitted, _ = _emit(
    streaming, num_rounds, next_fn=tf.function(streaming.next, autograph=False)
  )
  np.testing.assert_allclose(emitted, strategy.noise_matrix(), rtol=0, atol=1e-12)
  assert noise.build(strategy, _UnitRows(num_rounds)).storage in _STORAGES


@pytest.mark.parametrize(
  'wrong_recursion, message',
  [
    # A tenth of the noise.
    (recursion_lib.LastRounds([[0.1, -0.08]], 'row'), 'round 0 .* 0.01 times the var'),
    # Each round has the right variance, but the correlation is another one.
    (
      recursion_lib.LastRounds([[1.0, 0.8]], 'row'),
      'rounds 1 and 0 .*0.8 and not -0.8',
    ),
  ],
)
def test_build_refuses_recursion_that_contradicts_the_matrix(wrong_recursion, message):
  class Contradictory(_Leaky):
    kind = f'test_lying_{id(wrong_recursion)}'

    def recursion(self):
      return wrong_recursion

  strategy = Contradictory(13, 0.8, 'row')
  with pytest.raises(ValueError, match=message):
    noise.build(strategy, noise.GaussianRows(tf.TensorSpec([])))


@pytest.mark.parametrize(
  'storage, error, message',
  [
    ('disk', ValueError, "storage must be 'auto', 'in_process', 'state'.*got 'disk'"),
    (3, TypeError, 'storage must be a string or a Files, got 3'),
    ('redraw', ValueError, 'all rows of z so far.*1024 rounds'),
  ],
)
def test_build_refuses_unavailable_storage(storage, error, message):
  rows = noise.GaussianRows(tf.TensorSpec([]))
  with pytest.raises(error, match=message):
    noise.build(strategies.BandedToeplitz.square_root(2000, 3), rows, storage)


@pytest.mark.parametrize(
  'strategy, small, large',
  [
    (strategies.BinaryTree(2000), 'state', 'files'),
    (strategies.BinaryTree(2000, honaker=False), 'redraw', 'files'),
    (strategies.BandedToeplitz.square_root(2000, 64), 'state', 'files'),
    (strategies.BLT(2000, every_kind.SCALES, every_kind.DECAYS), 'state', 'files'),
    (strategies.BandedInverse.square_root(2000, 1), 'redraw', 'redraw'),
    (strategies.BandedInverse.square_root(2000, 16), 'redraw', 'files'),
  ],
)
def test_storage_is_chosen_by_size_and_logged(strategy, small, large, caplog):
  for size, expected in ((100, small), (10**6, large)):
    with caplog.at_level('INFO'):
      streaming = noise.build(strategy, noise.GaussianRows(tf.TensorSpec([size])))
    assert streaming.storage == expected
    assert f"storage '{expected}'" in caplog.records[-1].getMessage()


def test_large_records_are_split_into_vectors_of_different_noise():
  # 2^20 + 3 float32 numbers are two vectors, which end elsewhere than the tensors.
  specs = [tf.TensorSpec([700_000]), tf.TensorSpec([348_579]), tf.TensorSpec([])]
  rows = noise.GaussianRows(
    [*specs, tf.TensorSpec([5], tf.float64)], seed=noise.Seed(7)
  )
  assert rows.layout.sizes == (524_290, 524_290, 5)
  strategy = strategies.BLT(2, every_kind.SCALES, every_kind.DECAYS)
  streaming = noise.build(strategy, rows, 'state')
  state = streaming.initialize()
  matrix = strategy.noise_matrix()
  z = []
  for this_round in range(2):
    row, state = streaming.next(state)
    z.append(np.concatenate(rows.row(state.key, this_round)[:2]))
    whole = np.concatenate([np.ravel(tensor) for tensor in row[:3]])
    expected = matrix[this_round, : this_round + 1] @ np.array(z)
    np.testing.assert_allclose(whole, expected, atol=1e-5)
    assert [tensor.shape for tensor in row[:3]] == [spec.shape for spec in specs]
  first, second = z[0][:524_290], z[0][524_290:]
  # Two float64 normals are equal with probability below 1e-15.
  assert first.dtype == np.float64 and not np.any(first == second)
  assert abs(np.corrcoef(first, second)[0, 1]) < 7 / np.sqrt(len(first))
