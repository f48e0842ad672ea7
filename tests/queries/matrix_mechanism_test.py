"""Matrix mechanism queries: sums, the noise of strategies, events and metrics."""

import math

import dp_accounting
import numpy as np
import pytest
import tensorflow as tf

from tests.queries import records as records_lib
from tff_dp_aggregators import noise as noise_lib
from tff_dp_aggregators import queries
from tff_dp_aggregators import strategies
from tff_dp_aggregators.accounting import accountants
from tff_dp_aggregators.accounting import events

_ROUNDS = 7
_PARTICIPATION = strategies.Participation(_ROUNDS, min_separation=3)

_SEED = 918273645


def _banded(participation, **kwargs):
  strategy = strategies.BandedToeplitz.square_root(
    participation.num_rounds, min(3, participation.num_rounds)
  )
  return queries.BandedMatrixFactorizationQuery(strategy, participation, **kwargs)


def _blt(participation, **kwargs):
  strategy = strategies.BLT(participation.num_rounds, (0.3, 0.1), (0.9, 0.5))
  return queries.MatrixMechanismQuery(strategy, participation, **kwargs)


def _with_momentum(participation, **kwargs):
  workload = strategies.Workload(participation.num_rounds, momentum=0.5)
  return _blt(participation, workload=workload, **kwargs)


def _in_files(participation, **kwargs):
  return _blt(participation, storage='files', **kwargs)


_QUERIES = {
  'gaussian': queries.GaussianSumQuery,
  'banded': _banded,
  'tree_residual': queries.TreeResidualSumQuery,
  'tree_cumulative': queries.TreeCumulativeSumQuery,
  'momentum': _with_momentum,
  'files': _in_files,
}
# A query of sums of each round, one of sums over rounds, and one with noise in files.
some_queries = pytest.mark.parametrize('kind', ['banded', 'tree_cumulative', 'files'])


def _build(kind, participation=_PARTICIPATION, **kwargs):
  defaults = {
    'clip_norm': 1.0,
    'noise_multiplier': 2.0,
    'record_specs': records_lib.SPECS,
  }
  return _QUERIES[kind](participation, **{**defaults, **kwargs})


def _one_round(query, state, records):
  result, state, event = records_lib.one_round(query, state, records)
  return result, state, event.noise_multiplier


def _workload_matrix(query):
  return np.eye(_ROUNDS) if query.workload is None else query.workload.materialize()


@pytest.mark.parametrize(
  'kind, traced', [('momentum', False), ('tree_cumulative', True)]
)
def test_query_without_noise_releases_workload_times_clipped_sums(kind, traced):
  query = _build(kind, noise_multiplier=0.0)
  rng = np.random.default_rng(3)
  step = lambda state, records: _one_round(query, state, records)  # noqa: E731
  if traced:
    step = tf.function(step, autograph=False)
  state = query.initial_global_state()
  released = []
  sums = []
  for _ in range(4):
    values = rng.normal(size=[3, 6])
    values[0] *= 0.01  # One record within the norm, two that are clipped.
    records = [records_lib.record(row) for row in values]
    result, state, _ = step(state, records)
    tf.nest.assert_same_structure(result, records_lib.SPECS)
    released.append(records_lib.flat(result))
    norms = np.linalg.norm(values, axis=1, keepdims=True)
    sums.append((values / np.maximum(1, norms)).sum(axis=0))
  expected = _workload_matrix(query)[:4, :4] @ sums
  np.testing.assert_allclose(released, expected, rtol=0, atol=4e-6)


@pytest.mark.parametrize('kind', ['gaussian', 'banded', 'tree_cumulative'])
def test_round_events_compose_to_run_event(kind):
  query = _build(kind)
  state = query.initial_global_state()
  round_events = []
  for number in range(_ROUNDS):
    _, state, noise_multiplier = _one_round(query, state, [])
    round_events.append(dp_accounting.GaussianDpEvent(float(noise_multiplier)))
    # After every round, the metrics agree with the composition of its events so far.
    metrics = query.derive_metrics(state)
    assert int(metrics['rounds']) == number + 1
    assert accountants.gdp_mu(
      dp_accounting.ComposedDpEvent(round_events)
    ) == pytest.approx(1 / float(metrics['effective_noise_multiplier']), rel=1e-12)
  run = query.run_event()
  assert isinstance(run, dp_accounting.GaussianDpEvent)
  expected = query.noise_multiplier / query.strategy.sensitivity(_PARTICIPATION)
  assert run.noise_multiplier == pytest.approx(expected, rel=1e-12)
  assert query.effective_noise_multiplier == pytest.approx(expected, rel=1e-12)
  composed = events.simplify(dp_accounting.ComposedDpEvent(round_events))
  assert composed.noise_multiplier == pytest.approx(expected, rel=1e-12)
  # dp-accounting computes the same epsilon from both.
  for event in (composed, run):
    accountant = dp_accounting.rdp.RdpAccountant(accountants.RDP_ORDERS)
    accountant.compose(dp_accounting.GaussianDpEvent(expected))
    assert accountants.epsilon(event, 1e-6, 'rdp') == pytest.approx(
      accountant.get_epsilon(1e-6), rel=1e-9
    )


def test_query_without_noise_has_infinite_epsilon():
  query = _build('tree_residual', noise_multiplier=0.0)
  assert isinstance(query.run_event(), dp_accounting.NonPrivateDpEvent)
  assert query.effective_noise_multiplier == 0.0
  _, state, noise_multiplier = _one_round(query, query.initial_global_state(), [])
  event = dp_accounting.GaussianDpEvent(float(noise_multiplier))
  assert accountants.epsilon(event, 1e-6) == math.inf
  assert float(query.derive_metrics(state)['effective_noise_multiplier']) == 0.0


@pytest.mark.parametrize('traced', [False, True])
def test_query_refuses_more_rounds_than_planned(traced):
  query = _build('banded', strategies.Participation(3, min_separation=3))
  step = lambda state: _one_round(query, state, [])[:2]  # noqa: E731
  if traced:
    step = tf.function(step, autograph=False)
  state = query.initial_global_state()
  for _ in range(3):
    _, state = step(state)
  with pytest.raises(tf.errors.InvalidArgumentError, match='built for 3 rounds'):
    step(state)
  # A state whose round is even later is refused too.
  later = state._replace(noise=state.noise._replace(round=tf.constant(1000, tf.int64)))
  with pytest.raises(tf.errors.InvalidArgumentError, match='built for 3 rounds'):
    step(later)


@some_queries
def test_metrics_show_noise_and_do_not_depend_on_key(kind):
  query = _build(kind, seed=noise_lib.Seed(_SEED))
  state = query.initial_global_state()
  metrics = query.derive_metrics(state)
  assert {name: value.numpy() for name, value in metrics.items()} == {
    'rounds': 0.0,
    'clip_norm': 1.0,
    'noise_multiplier': 2.0,
    'effective_noise_multiplier': math.inf,
    'noise_storage': query.storage.encode(),
    'noise_generator': b'philox',
    'noise_key_tag': b'',
  }
  other_key = state.noise._replace(key=state.noise.key + 1)
  for name, value in query.derive_metrics(state._replace(noise=other_key)).items():
    assert value.numpy() == metrics[name].numpy()


def test_noise_key_tag_differs_by_secret_key_but_not_by_round():
  query = _build('gaussian', seed=None)
  state = query.initial_global_state()
  _, after, _ = query.get_noised_result(query.initial_sample_state(), state)
  tags = [
    query.derive_metrics(each)['noise_key_tag'].numpy()
    for each in (state, after, query.initial_global_state())
  ]
  assert tags[0] == tags[1] != tags[2]
  for word in state.noise.key.numpy().tolist():
    assert str(word).encode() not in tags[0]


def test_repr_contains_neither_seed_nor_key():
  seeded = _build('banded', seed=noise_lib.Seed(_SEED))
  assert repr(seeded) == repr(_build('banded')) == str(seeded)
  key = seeded.initial_global_state().noise.key.numpy()
  for secret in (_SEED, *key.tolist()):
    assert str(secret) not in repr(seeded)
  assert 'clip_norm=1.0' in repr(seeded) and 'noise_multiplier=2.0' in repr(seeded)


def test_noise_differs_between_entries_and_between_runs():
  query = _build('banded')
  states = [query.initial_global_state() for _ in range(2)]
  noise = [records_lib.flat(_one_round(query, state, [])[0]) for state in states]
  assert len(np.unique(noise)) == 12


def _integers(*shape):
  return tf.zeros(shape, tf.int64)


@pytest.mark.parametrize(
  'sample, error, message',
  [
    # Fewer tensors, and another container.
    ([_integers(2)], ValueError, "structures don't have the same"),
    ((_integers(2), _integers()), TypeError, "structures don't have the same"),
    # A tensor that would broadcast, and one that is not of integers.
    ([_integers(1), _integers()], ValueError, r'has a int64 tensor of shape \(1,\)'),
    ([tf.zeros([2]), _integers()], ValueError, r'has a float32 tensor of shape \(2,\)'),
  ],
)
def test_query_refuses_sample_unlike_record_specs(sample, error, message):
  query = _build('banded', record_specs=[tf.TensorSpec([2]), tf.TensorSpec([])])
  with pytest.raises(error, match=message):
    query.get_noised_result(sample, query.initial_global_state())


@pytest.mark.parametrize(
  'argument, value',
  [
    ('clip_norm', 0.0),
    ('clip_norm', math.nan),
    ('clip_norm', 1e39),  # Infinite in float32.
    ('clip_norm', 1e-25),  # Steps would vanish.
    ('noise_multiplier', -0.1),
    ('noise_multiplier', math.inf),
    # On the grid, this noise would be zero, or too large for the sum to be visible.
    ('noise_multiplier', 1e-7),
    ('noise_multiplier', 2e9),
  ],
)
def test_query_refuses_out_of_range_arguments(argument, value):
  with pytest.raises(ValueError, match=f'^{argument} must be'):
    _build('gaussian', **{argument: value})


def test_query_refuses_mismatched_strategy_participation_and_workload():
  def build(query, strategy, num_rounds=8, **kwargs):
    specs = tf.TensorSpec([])
    numbers = {'clip_norm': 1.0, 'noise_multiplier': 1.0, 'record_specs': specs}
    query(strategy, strategies.Participation(num_rounds), **numbers, **kwargs)

  matrix, identity = queries.MatrixMechanismQuery, strategies.Identity(8)
  with pytest.raises(ValueError, match='num_rounds is 9, but num_rounds is 8'):
    build(matrix, identity, 9)
  with pytest.raises(TypeError, match='BandedToeplitz, got BinaryTree'):
    build(queries.BandedMatrixFactorizationQuery, strategies.BinaryTree(8))
  with pytest.raises(ValueError, match='is for 5 rounds, but num_rounds is 8'):
    build(matrix, identity, workload=strategies.Workload(5))
  with pytest.raises(TypeError, match='must be a strategies.Workload'):
    build(matrix, identity, workload=np.tri(8))


def test_cumulative_state_keeps_the_sums_that_were_released():
  query = _build('tree_cumulative')
  state = query.initial_global_state()
  record = records_lib.record([0.1, 0.2, 0.3, 0.4, 0.5, 0.6])
  for _ in range(3):
    result, state, _ = _one_round(query, state, [record])
    (released,) = state.released
    np.testing.assert_array_equal(records_lib.flat(released), records_lib.flat(result))


@pytest.mark.parametrize(
  'momentum, rates, weight_decay',
  [(0.0, None, 0.2), (0.9, (1.0, 0.5, 0.25, 1.0, 2.0), 0.2)],
)
def test_workload_is_applied_to_sums_and_noise(momentum, rates, weight_decay):
  strategy = strategies.BLT(5, (0.3, 0.1), (0.9, 0.5))
  workload = strategies.Workload(5, momentum, rates, weight_decay)
  arguments = {
    'participation': strategies.Participation(5),
    'clip_norm': 1.0,
    'noise_multiplier': 2.0,
    'record_specs': tf.TensorSpec([3], tf.float64),
    'seed': noise_lib.Seed(5),
  }
  records = np.random.default_rng(0).uniform(-0.5, 0.5, (5, 3))
  released = []
  for applied in (None, workload):
    query = queries.MatrixMechanismQuery(strategy, workload=applied, **arguments)
    state, results = query.initial_global_state(), []
    for record in records:
      result, state, _ = _one_round(query, state, [tf.constant(record)])
      results.append(result.numpy())
    released.append(np.array(results))
  residual, with_workload = released
  np.testing.assert_allclose(
    with_workload, workload.materialize() @ residual, rtol=1e-12
  )
