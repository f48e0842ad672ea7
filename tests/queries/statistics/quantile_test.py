"""Quantile estimation matches TF Privacy without noise, and is private with noise."""

import functools
import math

import dp_accounting
import numpy as np
import pytest
import scipy.stats
import tensorflow as tf
import tensorflow_federated as tff
from tensorflow_privacy.privacy.dp_query import quantile_estimator_query

from tests.queries import records as records_lib
from tff_dp_aggregators import aggregators
from tff_dp_aggregators import noise
from tff_dp_aggregators import queries
from tff_dp_aggregators import strategies
from tff_dp_aggregators.learning import runtime

_SPEC = tf.TensorSpec([])
_ROUNDS = 16
_LIMITS = strategies.Participation(_ROUNDS, min_separation=4)


@pytest.fixture(scope='module', autouse=True)
def _runtime():
  with runtime.local_runtime():
    yield


def _gaussian(noise_multiplier=0.0, limits=None, **kwargs):
  numbers = {'clip_norm': 0.5, 'record_specs': _SPEC, **kwargs}
  return queries.GaussianSumQuery(limits, noise_multiplier=noise_multiplier, **numbers)


def _tree(noise_multiplier=0.0, **kwargs):
  numbers = {'clip_norm': 0.5, 'record_specs': _SPEC, **kwargs}
  return queries.TreeResidualSumQuery(
    _LIMITS, noise_multiplier=noise_multiplier, **numbers
  )


def _laplace(noise_multiplier, **kwargs):
  numbers = {'clip_norm': 0.5, 'record_specs': _SPEC, **kwargs}
  return queries.LaplaceSumQuery(noise_multiplier=noise_multiplier, **numbers)


def _quantile(counts, **kwargs):
  numbers = {'initial_estimate': 0.3, 'clients_per_round': 6, **kwargs}
  return queries.QuantileQuery(counts, **numbers)


def _one_round(query, state, numbers):
  records = [tf.constant(number, tf.float32) for number in numbers]
  return records_lib.one_round(query, state, records)


@pytest.mark.parametrize('geometric, tree', [(True, False), (False, True)])
def test_quantile_estimates_without_noise_match_tf_privacy(geometric, tree):
  kind = 'TreeQuantileEstimatorQuery' if tree else 'QuantileEstimatorQuery'
  tfp_query = getattr(quantile_estimator_query, kind)(
    initial_estimate=0.3,
    target_quantile=0.7,
    learning_rate=0.4,
    below_estimate_stddev=0.0,
    expected_num_records=6.0,
    geometric_update=geometric,
  )
  query = _quantile(
    _tree() if tree else _gaussian(),
    target_quantile=0.7,
    learning_rate=0.4,
    geometric_update=geometric,
  )
  state, tfp_state = query.initial_global_state(), tfp_query.initial_global_state()
  rng = np.random.default_rng(3)
  for number in range(4):
    # Cohorts are smaller and larger than expected, with numbers below and above.
    numbers = rng.lognormal(1.0, 1.5, size=(4, 6, 15)[number % 3])
    if not geometric:
      numbers -= 2.0
    estimate, state, _ = _one_round(query, state, numbers)
    tfp_estimate, tfp_state, _ = _one_round(tfp_query, tfp_state, numbers)
    np.testing.assert_allclose(estimate, tfp_estimate, rtol=1e-5, atol=1e-6)
  metrics = query.derive_metrics(state)
  assert float(metrics['quantile_estimate']) == float(estimate)
  assert not np.isclose(estimate, 0.3, rtol=0.2)


@pytest.mark.parametrize(
  ('make', 'distribution'), [(_gaussian, 'norm'), (_laplace, 'laplace')]
)
def test_noise_scale_of_count_is_half_the_noise_multiplier(make, distribution):
  query = _quantile(
    make(3.0, seed=noise.Seed(5)),
    clients_per_round=1000,
    learning_rate=1.0,
    target_quantile=0.5,
    initial_estimate=0.0,
    geometric_update=False,
  )

  def one_round(state, unused_number):
    # One record is below and one above, so the fraction is 1/2 plus noise.
    params = query.derive_sample_params(state)
    below, above = (
      query.preprocess_record(params, state.quantile_estimate + offset)
      for offset in (-1.0, 1.0)
    )
    return query.get_noised_result(below + above, state)[1]

  @functools.partial(tf.function, autograph=False)
  def rounds(state):
    return tf.scan(one_round, tf.range(1000), state).fraction_below

  noised = (rounds(query.initial_global_state()).numpy() - 0.5) * 1000
  assert scipy.stats.kstest(noised, distribution, args=(0, 3.0 / 2)).pvalue > 1e-8


_VALUES = [0.0, -0.0, 0.3, 0.30000001, 1e-45, -1e38, 3e38, math.inf, -math.inf]


@pytest.mark.parametrize('dtype', [tf.float16, tf.float32, tf.float64])
def test_client_changes_count_by_at_most_one_half(dtype):
  query = _quantile(_gaussian(2.0), record_specs=tf.TensorSpec([], dtype))
  params = query.derive_sample_params(query.initial_global_state())
  steps = 2.0**35  # In 1.0, for a clip norm of 1/2 and a noise multiplier of 2.
  for number in [*_VALUES, math.nan]:
    encoded, finite = query.encode_record(params, tf.constant(number, dtype))
    assert abs(int(encoded)) <= steps // 2
    value = float(tf.cast(tf.constant(number, dtype), tf.float64))
    assert bool(finite) == math.isfinite(value)
    if not math.isfinite(value):
      assert int(encoded) == 0
      continue
    # Clipping stays slightly below the bound of 1/2.
    expected = 0.5 if value <= float(params.quantile_estimate) else -0.5
    assert int(encoded) / steps == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(
  'counts',
  [_tree(2.0), _laplace(2.0)],
  ids=['tree', 'laplace'],
)
def test_quantile_query_spends_what_its_count_query_spends(counts):
  query = _quantile(counts)
  state, count_state = query.initial_global_state(), counts.initial_global_state()
  for number in range(3):
    numbers = [0.1 * number, 4.0, math.nan]
    _, state, event = _one_round(query, state, numbers)
    _, count_state, expected = _one_round(counts, count_state, [0.5, -0.5, 0.5])
    assert event == expected
    assert query.spent(state).to_event() == counts.spent(count_state).to_event()
  assert query.noise_multiplier == counts.noise_multiplier == 2.0
  assert query.generator == 'chacha20' and query.seed_identity == 'secret'


def _factory(counts=None, **kwargs):
  if counts is None:
    counts = aggregators.gaussian(
      strategies.Participation(4, 4),
      clip_norm=0.5,
      noise_multiplier=0.2,
      clients_per_round=4,
    )
  return aggregators.quantile(counts, **{'initial_estimate': 1.0, **kwargs})


def test_quantile_process_returns_estimate_and_continues_its_state():
  process = _factory().create(tff.TensorType(np.float32))
  state = process.initialize()
  values = [np.float32(number) for number in (2.0, 5.0, math.inf, 9.0)]
  for number in range(3):
    output = process.next(state, values)
    state = tf.nest.map_structure(np.asarray, output.state)
    metrics = output.measurements['dp_query_metrics']
    assert output.result == metrics['quantile_estimate'] == state.query[0]
    assert output.measurements['nonfinite_count'] == 1
    assert metrics['rounds'] == number + 1
  assert output.result > 1.1
  event = aggregators.extract_dp_event(state).all_rounds_so_far
  assert event == dp_accounting.GaussianDpEvent(pytest.approx(0.2))
  other = _factory(target_quantile=0.9).create(tff.TensorType(np.float32))
  with pytest.raises(Exception, match='belongs to another mechanism'):
    other.next(state, values)
  last = process.next(state, values).state
  with pytest.raises(Exception, match='built for 4 rounds'):
    process.next(last, values)


def test_quantile_in_joint_aggregation_is_not_divided_by_clients():
  numbers = {'clip_norm': 8.0, 'noise_multiplier': 1e-4, 'clients_per_round': 4}
  counts = aggregators.laplace(**{**numbers, 'clip_norm': 0.5, 'noise_multiplier': 1.0})
  joint = aggregators.joint(
    {
      'model': aggregators.gaussian(**numbers),
      'loss': _factory(counts, learning_rate=0.0),
    },
    ['model', 'loss', 'model'],
  )
  process = joint.create(tff.to_type([np.float32, np.float64, (np.float32, [2])]))
  value = [np.float32(2), np.float64(3), np.float32([1, -2])]
  output = process.next(process.initialize(), [value] * 4)
  assert output.result[0] == pytest.approx(2.0, abs=1e-2)
  assert output.result[1] == 1.0 and output.result[1].dtype == np.float64
  np.testing.assert_allclose(output.result[2], [1, -2], atol=1e-2)
  laplace, gaussian = aggregators.extract_dp_event(output.state).last_round_only.events
  assert laplace == dp_accounting.LaplaceDpEvent(1.0)
  assert gaussian == dp_accounting.GaussianDpEvent(pytest.approx(1e-4))


def test_quantile_with_local_noise_hides_infinite_values():
  counts = aggregators.local_laplace(
    clip_norm=0.5, noise_multiplier=0.5, clients_per_round=100
  )
  process = _factory(counts, learning_rate=1.0).create(tff.TensorType(np.float32))
  values = [np.float32(9.0)] * 99 + [np.float32(math.inf)]
  output = process.next(process.initialize(), values)
  assert output.measurements['nonfinite_count'] == 0
  # 99 values above and one that counts as 0: exp(1/2 - 1/200), up to noise of 0.035.
  assert math.log(output.result) == pytest.approx(0.495, abs=0.28)
  assert output.result != pytest.approx(math.exp(0.495), rel=1e-6)
  event = aggregators.extract_dp_event(output.state).all_rounds_so_far
  assert event == dp_accounting.LaplaceDpEvent(0.5)


_CUMULATIVE = queries.TreeCumulativeSumQuery(
  _LIMITS, clip_norm=0.5, noise_multiplier=1.0, record_specs=_SPEC
)


@pytest.mark.parametrize(
  'changes, message',
  [
    ({'count_query': _gaussian(clip_norm=1.0)}, 'must have clip_norm=0.5.*got 1.0'),
    ({'count_query': _gaussian(record_specs=tf.TensorSpec([2]))}, 'for records'),
    ({'count_query': _CUMULATIVE}, 'sums over rounds'),
    ({'record_specs': tf.TensorSpec([1])}, 'a record must be one number'),
    ({'initial_estimate': 0.0}, 'initial_estimate must be positive'),
    ({'target_quantile': 1.1}, 'target_quantile must be .* from 0 to 1; got 1.1'),
    ({'learning_rate': -0.1}, 'learning_rate must be .*got -0.1'),
    ({'clients_per_round': 0}, 'clients_per_round must be positive'),
  ],
)
def test_quantile_query_refuses_invalid_arguments(changes, message):
  arguments = {'count_query': _gaussian(), **changes}
  with pytest.raises(ValueError, match=message):
    _quantile(arguments.pop('count_query'), **arguments)


def test_quantile_refuses_unsuitable_count_query_or_factory():
  with pytest.raises(TypeError, match='count_query must be a query'):
    _quantile(7)
  with pytest.raises(TypeError, match='counts must be a factory'):
    _factory(_gaussian())
  counts = aggregators.gaussian(
    clip_norm=0.5,
    noise_multiplier=1.0,
    clients_per_round=4,
    record_aggregation_factory=aggregators.secure_sum(),
  )
  with pytest.raises(ValueError, match='give record_aggregation_factory to quantile'):
    _factory(counts)
  with pytest.raises(ValueError, match='a record must be one number'):
    _factory().create(tff.TensorType(np.float32, [2]))
