"""An adaptive clip norm finds its quantile and costs what the noise multiplier says.

Claims:

* Without noise, the scenarios of TF Privacy's tests come out;
  `tf_privacy_adaptive_test` runs its queries side by side.
* With noise, the estimate settles at the quantile of a known distribution.
* Any record changes the sum of joint contributions, in units of their noise, by at most
  1 / noise_multiplier, and some do by as much.
* The noise of a round is the strategy's, scaled as a whole by the clip norm of that
  round and `value_noise_multiplier`, and for the count by `clipped_count_stddev`; that
  of the two is independent. Events are those of a fixed clip norm.
* The clip norm changes every `update_every` rounds and stays a number float32 holds.
* Eagerly, in `tf.function`, and continued from a state, bits are the same.
* Metrics depend on nothing but what was released.
"""

import collections
import logging
import math

import dp_accounting
import numpy as np
import pytest
import tensorflow as tf

from tff_dp_aggregators import noise as noise_lib
from tff_dp_aggregators import queries
from tff_dp_aggregators import strategies
from tff_dp_aggregators.accounting import accountants
from tff_dp_aggregators.queries import adaptive_clipping
from tff_dp_aggregators.queries import grid

_ROUNDS = 8
_PARTICIPATION = strategies.Participation(_ROUNDS, min_separation=3)
_STRATEGIES = {
  'gaussian': strategies.Identity(_ROUNDS),
  'tree': strategies.BinaryTree(_ROUNDS),
  'tree_with_restarts': strategies.BinaryTree(_ROUNDS, restart_every=4),
  'plain_tree': strategies.BinaryTree(_ROUNDS, honaker=False),
  'banded': strategies.BandedToeplitz.square_root(_ROUNDS, 3),
  'blt': strategies.BLT(_ROUNDS, (0.3, 0.1), (0.9, 0.5)),
}
all_strategies = pytest.mark.parametrize('kind', _STRATEGIES)
both_modes = pytest.mark.parametrize('traced', [False, True])
_SPECS = collections.OrderedDict(
  kernel=tf.TensorSpec([2, 2]),
  others=(tf.TensorSpec([]), tf.TensorSpec([1], tf.float64)),
)


def _arguments(**kwargs):
  defaults = {
    'initial_clip_norm': 1.0,
    'noise_multiplier': 2.0,
    'clients_per_round': 100,
    'record_specs': tf.TensorSpec([3]),
  }
  return {**defaults, **kwargs}


def _build(kind='gaussian', **kwargs):
  return queries.AdaptiveClippingQuery(
    _STRATEGIES[kind], _PARTICIPATION, **_arguments(**kwargs)
  )


def _unlimited(**kwargs):
  return queries.AdaptiveGaussianSumQuery(**_arguments(**kwargs))


def _record(*values):
  """A record of `_SPECS` with these six numbers."""
  return collections.OrderedDict(
    kernel=tf.constant(np.reshape(values[:4], [2, 2]), tf.float32),
    others=(tf.constant(values[4], tf.float32), tf.constant(values[5:], tf.float64)),
  )


def _flat(record):
  return np.concatenate([np.ravel(t).astype(float) for t in tf.nest.flatten(record)])


def _one_round(query, state, records, template=None):
  params = query.derive_sample_params(state)
  sample = query.initial_sample_state(template)
  for record in records:
    sample = query.accumulate_record(params, sample, record)
  result, state, event = query.get_noised_result(sample, state)
  return result, state, getattr(event, 'noise_multiplier', None)


def _run(query, records, num_rounds):
  """Results, and states after them, of rounds with the same records, one a row."""
  records = tf.convert_to_tensor(records)

  @tf.function
  def step(state):
    return query.get_noised_result(_sum(query, state, records), state)[:2]

  state, results, states = query.initial_global_state(), [], []
  for _ in range(num_rounds):
    result, state = step(state)
    results.append(result)
    states.append(state)
  return results, states


def _sum(query, state, records):
  """The sample state of records that are the rows of a tensor."""
  params = query.derive_sample_params(state)
  each = tf.vectorized_map(lambda x: query.preprocess_record(params, x), records)
  return tf.nest.map_structure(lambda x: tf.reduce_sum(x, axis=0), each)


# Without noise: the algorithm itself.


@pytest.mark.parametrize(
  'numbers, quantile, start, clip_norms, sums',
  [
    # Both are small: the norm halves. Then one is, and it shrinks by sqrt(2) twice.
    # Then none is, and it stays.
    (
      [5.0, -2.5],
      0.0,
      16.0,
      [8, 4, math.sqrt(8), 2, 2],
      [2.5, 2.5, 1.5, math.sqrt(8) - 2.5, 0],
    ),
    # The mirror image, upwards from below both.
    (
      [-1.5, 3.0],
      1.0,
      0.5,
      [1, 2, math.sqrt(8), 4, 4],
      [0, 0, 0.5, math.sqrt(8) - 1.5, 1.5],
    ),
  ],
)
def test_steps_worked_out_by_hand(numbers, quantile, start, clip_norms, sums):
  query = _unlimited(
    initial_clip_norm=start,
    noise_multiplier=0.0,
    clients_per_round=2,
    target_quantile=quantile,
    learning_rate=math.log(2.0),
    record_specs=tf.TensorSpec([1]),
  )
  results, states = _run(query, [[x] for x in numbers], 5)
  np.testing.assert_allclose(np.ravel(results), sums, atol=1e-5)
  np.testing.assert_allclose([s.clip_norm for s in states], clip_norms, rtol=1e-6)


@pytest.mark.parametrize(
  'records, target, clip_norm, sums',
  [
    # Neither is clipped; one of two is.
    ([[2.0, 0.0], [-1.0, 1.0]], 1.0, 10.0, [1.0, 1.0]),
    ([[5.0, 0.0], [-1.0, 2.0]], 1.0, 3.0, [2.0, 2.0]),
  ],
)
def test_sums_without_noise_and_without_learning(records, target, clip_norm, sums):
  query = _unlimited(
    initial_clip_norm=clip_norm,
    noise_multiplier=0.0,
    target_quantile=target,
    learning_rate=0.0,
    clients_per_round=2,
    record_specs=tf.TensorSpec([2]),
  )
  results, states = _run(query, records, 2)
  np.testing.assert_allclose(results, [sums, sums], rtol=1e-6)
  assert [float(state.clip_norm) for state in states] == [clip_norm] * 2
  mean = queries.NormalizedQuery(query, denominator=2)
  results, _ = _run(mean, records, 1)
  np.testing.assert_allclose(results[0], np.array(sums) / 2, rtol=1e-6)


@pytest.mark.parametrize('start', [1.0, 10.0])
@pytest.mark.parametrize('noise_multiplier', [0.0, 0.02])
def test_the_median_of_equally_spaced_norms(start, noise_multiplier):
  # The smallest steps are of one record of 21, and a step of the estimate follows the
  # count: with rate 1 it ends within half a spacing of the median, 5.0.
  query = _unlimited(
    initial_clip_norm=start,
    noise_multiplier=noise_multiplier,
    clipped_count_stddev=noise_multiplier or None,
    learning_rate=1.0,
    clients_per_round=21,
    record_specs=tf.TensorSpec([]),
    seed=noise_lib.Seed(3),
  )
  _, states = _run(query, np.linspace(0, 10, 21, dtype=np.float32), 50)
  clip_norms = [float(state.clip_norm) for state in states]
  np.testing.assert_allclose(clip_norms[40:], 5.0, atol=0.25)


@pytest.mark.parametrize('start', [1.0, 10.0])
def test_equal_norms_are_met_within_half_a_step(start):
  # All records or none are small: the estimate goes around 5 in steps of exp(rate / 2).
  query = _unlimited(
    initial_clip_norm=start,
    noise_multiplier=0.0,
    clients_per_round=4,
    record_specs=tf.TensorSpec([]),
  )
  _, states = _run(query, [5.0] * 4, 40)
  last = np.array([float(state.clip_norm) for state in states[30:]])
  assert np.all(np.abs(np.log(last / 5.0)) <= 0.1 + 1e-5)
  assert last.min() <= 5.0 <= last.max()


@pytest.mark.parametrize('kind, target', [('gaussian', 0.8), ('tree', 0.3)])
def test_the_estimate_settles_at_the_quantile_of_the_norms(kind, target):
  # Norms exp(N(1, 1)). A round measures the fraction with a standard deviation of at
  # most 0.09 (50 clients, noise 0.05; the tree's is smaller in sums), the mean of 150
  # rounds with 0.007. The steps add up to a change of the logarithm of at most 0.3, so
  # that mean is within 0.3 / (0.2 x 150) = 0.01 of the target. A fraction is at least
  # 0.28 a unit of the logarithm: 0.026 and 0.036. The bound is six of the first and one
  # of the second: less than 10^-8, twice.
  num_rounds, clients = 200, 50
  strategy = (
    strategies.Identity(num_rounds)
    if kind == 'gaussian'
    else strategies.BinaryTree(num_rounds)
  )
  query = queries.AdaptiveClippingQuery(
    strategy,
    strategies.Participation(num_rounds),
    **_arguments(
      clients_per_round=clients,
      target_quantile=target,
      noise_multiplier=1.0,
      seed=noise_lib.Seed(1),
    ),
  )

  @tf.function
  def step(state, records):
    return query.get_noised_result(_sum(query, state, records), state)[1]

  rng = np.random.default_rng(2)
  state, logarithms = query.initial_global_state(), []
  for _ in range(num_rounds):
    directions = rng.normal(size=[clients, 3])
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    records = directions * rng.lognormal(1.0, 1.0, size=[clients, 1])
    state = step(state, tf.constant(records, tf.float32))
    logarithms.append(math.log(float(state.clip_norm)))
  normal_quantile = {0.3: -0.524, 0.8: 0.842}[target]
  assert np.mean(logarithms[50:]) == pytest.approx(1 + normal_quantile, abs=0.19)


# Privacy.

_HOSTILE = [
  [0.0, 0.0, 0.0],
  [0.3, -0.2, 0.1],
  [3.0, 4.0, 0.0],
  [3e38, -3e38, 3e38],
  [1e-40, 1e-45, 0.0],
  [math.nan, 1.0, 1.0],
  [math.inf, 0.0, 0.0],
  [-math.inf, math.inf, math.nan],
]


@pytest.mark.parametrize('clip_norm, estimate', [(1.0, 1.0), (1e-6, 3.0), (7e5, 1e-3)])
@pytest.mark.parametrize(
  'noise_multiplier, count_stddev', [(1.0, None), (2.0, 1.001), (0.3, 40.0), (5.0, 3.0)]
)
def test_no_record_changes_more_than_the_noise_multiplier_says(
  noise_multiplier, count_stddev, clip_norm, estimate
):
  query = _unlimited(
    noise_multiplier=noise_multiplier, clipped_count_stddev=count_stddev
  )
  state = query.initial_global_state()
  state = state._replace(
    clip_norm=tf.constant(clip_norm),
    adaptation=state.adaptation._replace(quantile_estimate=tf.constant(estimate)),
  )
  params = query.derive_sample_params(state)
  record_stddev = float(np.float32(clip_norm)) * query.value_noise_multiplier
  changes = []
  for record in [*_HOSTILE, *np.random.default_rng(1).normal(size=[20, 3]) * clip_norm]:
    added = query.preprocess_record(params, tf.constant(record, tf.float32))
    joint = [*(_entries(query, params, added) / record_stddev)]
    joint.append(_below(added) / query.clipped_count_stddev)
    assert np.all(np.isfinite(joint))
    changes.append(np.linalg.norm(joint))
  bound = 1 / noise_multiplier
  assert max(changes) <= bound * (1 + 1e-15)  # What is computed here is rounded.
  assert max(changes) >= bound * (1 - 1e-6)  # And no noise is wasted.


def _entries(query, params, sample):
  """The clipped record that a sample stands for."""
  steps = grid.steps_per_unit(params.clip_norm, query.value_noise_multiplier)
  return _flat(sample.record) / float(steps)


def _below(sample):
  return float(sample.below) / adaptive_clipping.UNIT


@all_strategies
def test_noise_is_the_strategys_scaled_by_the_clip_norm_of_the_round(kind):
  # The same rows as a mechanism at unit scale draws for the same record and seed, while
  # the clip norm moves: the exact counterpart of the proof's last step.
  specs = tf.TensorSpec([3], tf.float64)
  unit = queries.MatrixMechanismQuery(
    _STRATEGIES[kind],
    _PARTICIPATION,
    clip_norm=1.0,
    noise_multiplier=1.0,
    record_specs=adaptive_clipping.AdaptiveSample(specs, tf.TensorSpec([])),
    seed=noise_lib.Seed(7),
  )
  query = _build(kind, record_specs=specs, seed=noise_lib.Seed(7), learning_rate=0.7)
  unit_state, state = unit.initial_global_state(), query.initial_global_state()
  record = tf.constant([10.0, -20.0, 30.0], tf.float64)
  clip_norms = set()
  for _ in range(_ROUNDS):
    clip_norm = float(state.clip_norm)
    rows, unit_state, _ = _one_round(unit, unit_state, [])
    result, state, _ = _one_round(query, state, [record])
    clipped = clip_norm * record / tf.norm(record)
    np.testing.assert_allclose(
      result - clipped,
      clip_norm * query.value_noise_multiplier * rows.record,
      rtol=1e-12,
      atol=1e-11 * clip_norm,
    )
    fraction = 0.5 + (query.clipped_count_stddev * float(rows.below) - 0.5) / 100
    assert float(state.adaptation.fraction_below) == pytest.approx(fraction, rel=1e-6)
    clip_norms.add(clip_norm)
  assert len(clip_norms) == _ROUNDS // query.update_every


def test_noise_of_sum_and_count_has_its_standard_deviation_and_is_independent():
  # A covariance of four numbers from 4,000 rounds; seven standard deviations an entry,
  # 3e-12 each, 3e-11 for all ten. The count is released through the fraction, whose
  # noise of 0.05 is cut off at ten standard deviations.
  num_rounds = 4000
  query = _unlimited(
    initial_clip_norm=0.5,
    noise_multiplier=3.0,
    clipped_count_stddev=2.0,
    clients_per_round=40,
    learning_rate=0.0,
    seed=noise_lib.Seed(11),
  )

  @tf.function
  def run(state):
    noise = tf.TensorArray(tf.float32, num_rounds)
    for number in tf.range(num_rounds):
      result, state, _ = query.get_noised_result(query.initial_sample_state(), state)
      count = (state.adaptation.fraction_below - 0.5) * 40
      noise = noise.write(number, tf.concat([result, [count]], axis=0))
    return noise.stack()

  noise = run(query.initial_global_state()).numpy().astype(np.float64)
  value_multiplier = 1 / math.sqrt(1 / 3.0**2 - 1 / 4.0**2)
  expected = np.diag([(0.5 * value_multiplier) ** 2] * 3 + [2.0**2])
  variances = np.diag(expected)
  bound = 7 * np.sqrt((np.outer(variances, variances) + expected**2) / num_rounds)
  assert np.all(np.abs(noise.T @ noise / num_rounds - expected) <= bound)


@all_strategies
def test_events_are_those_of_a_fixed_clip_norm(kind):
  query = _build(kind)
  fixed = queries.MatrixMechanismQuery(
    _STRATEGIES[kind],
    _PARTICIPATION,
    clip_norm=1.0,
    noise_multiplier=2.0,
    record_specs=tf.TensorSpec([3]),
  )
  assert query.run_event() == fixed.run_event()
  assert query.effective_noise_multiplier == fixed.effective_noise_multiplier
  assert query.noise_multiplier == 2.0
  parts = [query.value_noise_multiplier, 2 * query.clipped_count_stddev]
  both = dp_accounting.ComposedDpEvent(
    [dp_accounting.GaussianDpEvent(p) for p in parts]
  )
  assert accountants.gdp_mu(both) == pytest.approx(1 / 2.0, rel=1e-12)
  state, each = query.initial_global_state(), []
  for _ in range(_ROUNDS):
    _, state, noise_multiplier = _one_round(query, state, [])
    each.append(dp_accounting.GaussianDpEvent(float(noise_multiplier)))
  assert accountants.gdp_mu(dp_accounting.ComposedDpEvent(each)) == pytest.approx(
    accountants.gdp_mu(query.run_event()), rel=1e-12
  )
  with pytest.raises(tf.errors.InvalidArgumentError, match='built for 8 rounds'):
    _one_round(query, state, [])


def test_a_gaussian_sum_serves_any_number_of_rounds_and_says_what_each_costs():
  query = _unlimited()
  state = query.initial_global_state()
  for _ in range(12):
    _, state, noise_multiplier = _one_round(query, state, [])
    assert float(noise_multiplier) == 2.0
  effective = query.derive_metrics(state)['effective_noise_multiplier']
  assert float(effective) == pytest.approx(2 / math.sqrt(12))
  with pytest.raises(ValueError, match='any number of rounds'):
    query.run_event()
  planned = _unlimited(participation=strategies.Participation(10, 5))
  assert planned.run_event() == dp_accounting.GaussianDpEvent(2 / math.sqrt(2))


def test_without_noise_there_is_none_anywhere():
  query = _unlimited(noise_multiplier=0.0, clients_per_round=10)
  assert query.value_noise_multiplier == query.clipped_count_stddev == 0.0
  results, states = _run(query, [[0.1, 0.2, 0.3]] * 3, 1)
  np.testing.assert_allclose(results[0], [0.3, 0.6, 0.9], rtol=1e-6)
  assert float(states[0].adaptation.fraction_below) == pytest.approx(0.5 + 1.5 / 10)


# When and how far the clip norm moves.


@pytest.mark.parametrize(
  'kind, given, update_every',
  [
    ('gaussian', None, 1),
    ('banded', None, 1),
    ('blt', 3, 3),
    ('tree_with_restarts', None, 4),
    ('tree_with_restarts', 8, 8),
  ],
)
def test_the_clip_norm_is_fixed_between_updates_while_the_estimate_moves(
  kind, given, update_every
):
  query = _build(kind, update_every=given)
  assert query.update_every == update_every
  state = query.initial_global_state()
  clip_norm, estimate = 1.0, 1.0
  for number in range(1, _ROUNDS + 1):
    assert float(query.derive_sample_params(state).clip_norm) == clip_norm
    _, state, _ = _one_round(query, state, [tf.constant([1.0, 2.0, 3.0])])
    assert float(state.adaptation.quantile_estimate) != estimate
    estimate = float(state.adaptation.quantile_estimate)
    if number % update_every == 0:
      clip_norm = estimate
    assert float(state.clip_norm) == clip_norm


@pytest.mark.parametrize('noise_multiplier', [0.0, 1e-3, 3.0])
@pytest.mark.parametrize('up', [False, True])
def test_the_clip_norm_stays_on_the_scale_of_grids(up, noise_multiplier):
  query = _unlimited(
    noise_multiplier=noise_multiplier,
    target_quantile=float(up),
    learning_rate=1e4,
    seed=noise_lib.Seed(1),
  )
  record = [3e38 if up else 0.0, 0.0, 0.0]
  results, states = _run(query, [record] * 99, 3)
  clip_norm = float(states[0].clip_norm)
  for state in states:
    assert float(state.clip_norm) == clip_norm
  loudness = noise_multiplier and query.value_noise_multiplier
  assert clip_norm == grid.CLIP_NORM_LIMITS[int(up)]
  for result in results[1:]:
    # The noise is as large as it should be, with all digits, and nothing overflows.
    assert np.all(np.isfinite(result))
    if noise_multiplier:
      noise = np.abs(result[1:].numpy()) / (clip_norm * loudness)
      assert np.all((noise > 1e-4) & (noise < 6))


def test_more_noise_than_clients_only_cuts_off_the_fraction():
  query = _unlimited(
    clients_per_round=0.01, clipped_count_stddev=50.0, seed=noise_lib.Seed(4)
  )
  _, states = _run(query, [[0.0] * 3], 20)
  fractions = {float(state.adaptation.fraction_below) for state in states}
  assert fractions == {0.0, 1.0}


# The interface.


def test_hostile_records_have_defined_outcomes():
  query = _unlimited(initial_clip_norm=5.0)
  params = query.derive_sample_params(query.initial_global_state())
  outcome = lambda values: query.preprocess_record(params, tf.constant(values))  # noqa: E731
  # Not finite: as a record of zeros.
  for record in ([math.nan, 1.0, 1.0], [math.inf, 0.0, 0.0]):
    assert _flat(outcome(record).record).tolist() == [0, 0, 0]
    assert _below(outcome(record)) == _below(outcome([0.0] * 3)) == 0.5
  # A norm of exactly the estimate is not above it.
  assert _below(outcome([3.0, 4.0, 0.0])) == 0.5
  assert _below(outcome([3.0, 4.000001, 0.0])) == -0.5
  # Squares that overflow, or vanish, in float32.
  large = outcome([3e38, 3e38, -3e38])
  assert _below(large) == -0.5
  entries = _entries(query, params, large)
  assert np.linalg.norm(entries) == pytest.approx(5.0, rel=1e-6)
  assert _below(outcome([1e-38, 1e-38, 1e-38])) == 0.5


@pytest.mark.parametrize(
  'specs',
  [
    tf.TensorSpec([]),
    [tf.TensorSpec([0]), tf.TensorSpec([2], tf.float64)],
    {'a': (tf.TensorSpec([2, 1]), [tf.TensorSpec([])])},
  ],
  ids=['scalar', 'empty_and_float64', 'nested'],
)
@both_modes
def test_every_structure_of_floats_is_served_and_returned_alone(specs, traced):
  record = tf.nest.map_structure(
    lambda s: tf.fill(s.shape, tf.cast(0.1, s.dtype)), specs
  )
  query = _build('tree', noise_multiplier=0.0, record_specs=specs)
  step = lambda state: _one_round(query, state, [record, record])[:2]  # noqa: E731
  if traced:
    step = tf.function(step)
  state = query.initial_global_state()
  for _ in range(2):
    result, state = step(state)
    tf.nest.assert_same_structure(result, specs)
    np.testing.assert_allclose(_flat(result), 2 * _flat(record), rtol=1e-6)


def test_half_precision_is_summed_in_float32():
  query = _build(noise_multiplier=0.0, record_specs=tf.TensorSpec([2], tf.float16))
  # A norm that float16 cannot square, and small terms that its sums would lose.
  records = [tf.constant(row, tf.float16) for row in [[3e4, 4e4], *[[0, 1e-4]] * 8]]
  result, state, _ = _one_round(query, query.initial_global_state(), records)
  assert result.dtype == tf.float32
  np.testing.assert_allclose(result, [0.6, 0.8008], rtol=1e-6)
  assert float(state.adaptation.fraction_below) == pytest.approx(0.5 + 3.5 / 100)


@pytest.mark.parametrize(
  'record, error',
  [
    (tf.zeros([4]), ValueError),
    (tf.zeros([3], tf.int32), TypeError),
    (tf.zeros([3], tf.float64), TypeError),
    ([tf.zeros([3])], (TypeError, ValueError)),
  ],
)
def test_a_record_unlike_the_specs_is_refused(record, error):
  query = _build()
  params = query.derive_sample_params(query.initial_global_state())
  with pytest.raises(error, match='a record'):
    query.preprocess_record(params, record)
  with pytest.raises(error):
    query.initial_sample_state(record)


def test_samples_merge():
  query = _unlimited(noise_multiplier=0.0, record_specs=_SPECS, clients_per_round=5)
  state = query.initial_global_state()
  params = query.derive_sample_params(state)
  records = [_record(*np.full(6, number / 4)) for number in range(4)]
  halves = []
  for half in (records[:2], records[2:]):
    sample = query.initial_sample_state(records[0])
    for record in half:
      preprocessed = query.preprocess_record(params, record)
      sample = query.accumulate_preprocessed_record(sample, preprocessed)
    halves.append(sample)
  merged = query.get_noised_result(query.merge_sample_states(*halves), state)
  whole = _one_round(query, state, records)
  np.testing.assert_allclose(_flat(merged[0]), _flat(whole[0]), rtol=1e-6)
  assert float(merged[1].clip_norm) == float(whole[1].clip_norm)


def _bits(*structures):
  return [np.asarray(t.numpy()).tobytes() for t in tf.nest.flatten(structures)]


@pytest.mark.parametrize(
  'kind, storage',
  [
    ('gaussian', 'auto'),
    ('tree_with_restarts', 'state'),
    ('banded', 'state'),
    ('banded', 'redraw'),
  ],
)
def test_a_state_continues_bit_by_bit_in_another_query_and_mode(kind, storage):
  records = [tf.constant([1.0, 2.0, 3.0]), tf.constant([0.1, 0.2, 0.3])]
  arguments = {
    'storage': storage,
    'workload': strategies.Workload(_ROUNDS, momentum=0.5),
    'update_every': 4,
  }
  first, second = _build(kind, **arguments), _build(kind, **arguments)
  step = tf.function(lambda state: _one_round(second, state, records)[:2])
  state = first.initial_global_state()
  kept, expected = [state], []
  for _ in range(_ROUNDS):
    result, state, _ = _one_round(first, state, records)
    expected.append((result, state))
    kept.append(state)
  for number, (result, after) in enumerate(expected):
    # As a checkpoint brings it back: arrays in the same structure.
    restored = tf.nest.map_structure(lambda t: tf.constant(t.numpy()), kept[number])
    assert _bits(*step(restored)) == _bits(result, after)


@pytest.mark.parametrize('momentum', [0.0, 0.9])
def test_a_workload_is_applied_to_what_each_round_released(momentum):
  workload = strategies.Workload(_ROUNDS, momentum, tuple(np.linspace(1, 2, _ROUNDS)))
  record = np.array([1.0, 2.0, 3.0])
  released = []
  for given in (None, workload):
    query = _build(
      'blt',
      workload=given,
      seed=noise_lib.Seed(5),
      record_specs=tf.TensorSpec([3], tf.float64),
    )
    results, states = _run(query, [record], _ROUNDS)
    released.append(np.array(results))
  assert len({float(state.clip_norm) for state in states}) == _ROUNDS
  np.testing.assert_allclose(
    released[1], workload.materialize() @ released[0], rtol=1e-12
  )


def test_metrics_depend_on_nothing_but_what_was_released():
  query = _build('tree', seed=noise_lib.Seed(918273645))
  state = query.initial_global_state()
  metrics = query.derive_metrics(state)
  assert metrics.pop('noise_storage').numpy().decode() == query.storage
  assert metrics.pop('noise_generator').numpy().decode() == 'philox'
  assert {name: float(value) for name, value in metrics.items()} == {
    'rounds': 0.0,
    'clip_norm': 1.0,
    'noise_multiplier': 2.0,
    'effective_noise_multiplier': math.inf,
    'quantile_estimate': 1.0,
    'fraction_below': 0.5,
  }
  _, state, _ = _one_round(query, state, [tf.constant([1.0, 2.0, 3.0])] * 7)
  metrics = query.derive_metrics(state)
  # The fraction has the count's noise, and the rest follows from it.
  fraction = float(metrics['fraction_below'])
  assert 0.0 < fraction < 1.0 and abs(fraction - (0.5 - 3.5 / 100)) > 1e-4
  expected = math.exp(-0.2 * (fraction - 0.5))
  assert float(metrics['quantile_estimate']) == pytest.approx(expected, rel=1e-6)
  assert float(metrics['clip_norm']) == pytest.approx(expected, rel=1e-6)
  other = state._replace(noise=state.noise._replace(key=state.noise.key + 1))
  assert _bits(query.derive_metrics(other)) == _bits(metrics)


def test_repr_holds_the_numbers_and_neither_seed_nor_key():
  query = _build('tree', seed=noise_lib.Seed(918273645))
  assert 'initial_clip_norm=1.0' in repr(query) and 'update_every=1' in repr(query)
  for secret in (918273645, *query.initial_global_state().noise.key.numpy().tolist()):
    assert str(secret) not in repr(query)


def test_there_is_no_one_clip_norm_to_ask_for():
  query = _build('tree', initial_clip_norm=0.25)
  assert query.initial_clip_norm == 0.25
  with pytest.raises(ValueError, match='changes from round.*initial_clip_norm'):
    query.clip_norm  # noqa: B018


@pytest.mark.parametrize(
  'argument, value, message',
  [
    ('initial_clip_norm', 0.0, 'initial_clip_norm must be positive .* got 0.0'),
    ('initial_clip_norm', math.nan, 'initial_clip_norm must be positive .* got nan'),
    ('initial_clip_norm', 1e31, 'initial_clip_norm must be within .* got 1e'),
    ('noise_multiplier', -1.0, 'noise_multiplier must be finite and not negative'),
    ('noise_multiplier', math.nan, 'noise_multiplier must be finite'),
    ('clients_per_round', 0, 'clients_per_round must be positive and finite; got 0'),
    ('clients_per_round', math.inf, 'clients_per_round must be positive and finite'),
    ('target_quantile', 1.1, 'target_quantile must be within 0 and 1; got 1.1'),
    ('target_quantile', -0.1, 'target_quantile must be within 0 and 1'),
    ('target_quantile', math.nan, 'target_quantile must be within 0 and 1'),
    ('learning_rate', -0.2, 'learning_rate must be finite and not negative'),
    ('learning_rate', math.inf, 'learning_rate must be finite and not negative'),
    ('clipped_count_stddev', -1.0, 'clipped_count_stddev must be finite and not neg'),
    # Half of the noise multiplier is what the count alone would need.
    ('clipped_count_stddev', 1.0, r'must be more than 1\.0, half of.* got 1\.0'),
    ('clipped_count_stddev', 0.0, r'must be more than 1\.0, half of'),
    ('clients_per_round', 20, r'must be more than 1\.0.*by default it is a twentieth'),
    ('update_every', 0, 'update_every'),
  ],
)
def test_numbers_out_of_range_are_refused(argument, value, message):
  with pytest.raises(ValueError, match=message):
    _build(**{argument: value})


def test_count_noise_without_noise_multiplier_is_refused():
  with pytest.raises(ValueError, match='no noise at all; leave out clipped_count_stdd'):
    _build(noise_multiplier=0.0, clipped_count_stddev=1.0)


def test_a_clip_norm_that_changes_within_a_tree_is_refused():
  with pytest.raises(ValueError, match='update_every must.* restart_every, 4; got 6'):
    _build('tree_with_restarts', update_every=6)
  with pytest.raises(TypeError, match='update_every'):
    _build('tree_with_restarts', update_every=4.5)


def test_a_count_that_makes_the_records_much_louder_is_warned_of(caplog):
  with caplog.at_level(logging.WARNING):
    _build(clipped_count_stddev=5.0)
    assert not caplog.records
    _build(clipped_count_stddev=1.1)
  (warning,) = caplog.records
  assert '2.4 times as loud' in warning.getMessage()


@pytest.mark.parametrize(
  'sample, error',
  [
    (tf.zeros([3]), (TypeError, ValueError)),  # No count.
    ((tf.zeros([3]), tf.zeros([])), TypeError),  # Another container.
    (adaptive_clipping.AdaptiveSample(tf.zeros([1]), tf.zeros([])), ValueError),
    (adaptive_clipping.AdaptiveSample(tf.zeros([3]), tf.zeros([1])), ValueError),
  ],
)
def test_a_sample_unlike_the_specs_is_refused(sample, error):
  query = _build()
  with pytest.raises(error):
    query.get_noised_result(sample, query.initial_global_state())
