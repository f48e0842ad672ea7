"""`NestedSumQuery` has a query for each part of a record, whose costs compose."""

import collections
import math

import dp_accounting
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_privacy as tfp
from scipy import integrate
from scipy import stats
from tensorflow_privacy.privacy.dp_query import nested_query

from tff_dp_aggregators import noise
from tff_dp_aggregators import queries
from tff_dp_aggregators import strategies
from tff_dp_aggregators.accounting import accountants

_LIMITS = strategies.Participation(4, min_separation=2)
_MATRIX = tf.TensorSpec([2, 2])
_PAIR = [tf.TensorSpec([3]), tf.TensorSpec([], tf.float64)]


def _gaussian(specs=_MATRIX, seed=0, noise_multiplier=2.0, clip_norm=1.0):
  return queries.GaussianSumQuery(
    clip_norm=clip_norm,
    noise_multiplier=noise_multiplier,
    record_specs=specs,
    seed=None if seed is None else noise.Seed(seed),
  )


def _tree(specs=_PAIR, seed=1):
  return queries.TreeResidualSumQuery(
    _LIMITS,
    clip_norm=0.5,
    noise_multiplier=3.0,
    record_specs=specs,
    seed=noise.Seed(seed),
  )


def _laplace(specs=_MATRIX, seed=2, noise_multiplier=8.0):
  return queries.LaplaceSumQuery(
    clip_norm=1.0,
    noise_multiplier=noise_multiplier,
    record_specs=specs,
    seed=noise.Seed(seed),
  )


_Parts = collections.namedtuple('_Parts', ['first', 'second'])
# Functions that combine two queries, or two records, into one structure.
_STRUCTURES = {
  'deep': lambda a, b: [{'x': a}, (b,)],
  'named_tuple': _Parts,
}


def _record(scale=0.3):
  return tf.fill([2, 2], scale), [tf.fill([3], -scale), tf.constant(scale, tf.float64)]


def _run(query, records, num_rounds):
  """Results of rounds with these records, and the states and events after each."""
  state, results, states, events = query.initial_global_state(), [], [], []
  for _ in range(num_rounds):
    params = query.derive_sample_params(state)
    sample = query.initial_sample_state(None)
    for record in records:
      sample = query.accumulate_record(params, sample, record)
    sample = query.merge_sample_states(sample, query.initial_sample_state(None))
    result, state, event = query.get_noised_result(sample, state)
    results.append(result)
    states.append(state)
    events.append(event)
  return results, states, events


def _assert_all_equal(actual, expected):
  for x, y in zip(tf.nest.flatten(actual), tf.nest.flatten(expected)):
    np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize('structure', _STRUCTURES)
def test_nested_sum_matches_separate_queries_and_tf_privacy(structure):
  make = _STRUCTURES[structure]
  records = [make(*_record(scale)) for scale in (0.3, -7.0)]
  nested = queries.NestedSumQuery(make(_gaussian(), _tree()))
  tfp_query = nested_query.NestedSumQuery(make(_gaussian(), _tree()))
  results, states, events = _run(nested, records, num_rounds=2)
  tfp_results, tfp_states, tfp_events = _run(tfp_query, records, num_rounds=2)
  for result, tfp_result in zip(results, tfp_results):
    tf.nest.assert_same_structure(result, tfp_result)
    _assert_all_equal(result, tfp_result)
  separate = [
    _run(part, [_record(scale)[i] for scale in (0.3, -7.0)], num_rounds=2)[0]
    for i, part in enumerate((_gaussian(), _tree()))
  ]
  for this_round, result in enumerate(results):
    _assert_all_equal(result, make(*(each[this_round] for each in separate)))
  metrics = nested.derive_metrics(states[-1])
  tfp_metrics = tfp_query.derive_metrics(tfp_states[-1])
  assert set(metrics) == set(tfp_metrics)
  for name, metric in metrics.items():
    _assert_all_equal(metric, tfp_metrics[name])
  composed = dp_accounting.ComposedDpEvent(events)
  assert accountants.epsilon(composed, 1e-6) == pytest.approx(
    accountants.epsilon(dp_accounting.ComposedDpEvent(tfp_events), 1e-6)
  )


def test_nested_gaussian_parts_spend_one_composed_gaussian_event():
  query = queries.NestedSumQuery([_gaussian(), _tree()])
  _, states, events = _run(query, [list(_record())], num_rounds=4)
  assert query.spent(query.initial_global_state()).to_event() == (
    dp_accounting.NoOpDpEvent()
  )
  last_rounds = []
  for rounds, state in enumerate(states, start=1):
    spent = query.spent(state)
    last_rounds.append(spent.last_to_event())
    # The Gaussian part counts every round, the tree a client in two rounds at most.
    tree = strategies.BinaryTree(4).sensitivity_squared_by_round(_LIMITS)[rounds - 1]
    precision = rounds / 2.0**2 + tree / 3.0**2
    spent_event = spent.to_event()
    assert spent_event.noise_multiplier == pytest.approx(1 / math.sqrt(precision))
    for parts in (last_rounds, events[:rounds]):
      assert accountants.epsilon(
        dp_accounting.ComposedDpEvent(parts), 1e-6
      ) == pytest.approx(accountants.epsilon(spent_event, 1e-6), rel=1e-9)


def _delta(epsilon, sigma, scale):
  """Delta of Gaussian and Laplace noise together, both of sensitivity 1."""

  def gaussian_delta(eps):
    mu = 1 / sigma
    return stats.norm.cdf(mu / 2 - eps / mu) - math.exp(eps) * stats.norm.cdf(
      -mu / 2 - eps / mu
    )

  # The privacy loss of Laplace noise x around 0 is (|x - 1| - |x|) / scale.
  def integrand(x):
    loss = (abs(x - 1) - abs(x)) / scale
    return math.exp(-abs(x) / scale) / (2 * scale) * gaussian_delta(epsilon - loss)

  parts = [(-40 * scale, 0), (0, 1), (1, 40 * scale)]
  return sum(integrate.quad(integrand, *part, epsabs=1e-14)[0] for part in parts)


def test_epsilon_of_gaussian_and_laplace_parts_matches_integration():
  query = queries.NestedSumQuery(
    {'model': _gaussian(), 'votes': _laplace(noise_multiplier=4.0)}
  )
  record = {'model': tf.zeros([2, 2]), 'votes': tf.zeros([2, 2])}
  _, states, _ = _run(query, [record], num_rounds=1)
  event = query.spent(states[0]).to_event()
  for delta in (1e-3, 1e-6):
    epsilon = accountants.epsilon(event, delta)
    assert _delta(epsilon, 2.0, 4.0) == pytest.approx(delta, rel=2e-2)
    assert _delta(epsilon, 2.0, 4.0) <= delta * (1 + 1e-6)
    # Each part alone costs less.
    for part in (dp_accounting.GaussianDpEvent(2.0), dp_accounting.LaplaceDpEvent(4.0)):
      assert epsilon > accountants.epsilon(part, delta)


def test_nested_parts_are_clipped_and_zeroed_separately():
  query = queries.NestedSumQuery(
    [_gaussian(clip_norm=0.5, noise_multiplier=0.0), _laplace(noise_multiplier=0.0)]
  )
  state = query.initial_global_state()
  params = query.derive_sample_params(state)
  for left, right, finite in (
    (1e38, 3.0, True),
    (math.nan, 1e38, False),
    (-1.0, math.inf, False),
  ):
    record = [tf.fill([2, 2], left), tf.fill([2, 2], right)]
    sample, was_finite = query.encode_record(params, record)
    assert bool(was_finite) == finite
    noised, _, _ = query.get_noised_result(sample, state)
    norms = [np.linalg.norm(noised[0]), np.sum(np.abs(noised[1]))]
    expected = [0.5 * math.isfinite(left), 1.0 * math.isfinite(right)]
    np.testing.assert_allclose(norms, expected, rtol=1e-6)


def test_nested_signal_and_noise_include_all_parts():
  query = queries.NestedSumQuery([_gaussian(), _laplace(noise_multiplier=8.0)])
  state = query.initial_global_state()
  record = [tf.fill([2, 2], 9.0), tf.constant([[0.5, 0.0], [0.0, -0.25]])]
  sample = query.preprocess_record(query.derive_sample_params(state), record)
  signal, squared_noise = query.signal_and_noise(sample, state)
  assert float(signal) == pytest.approx(math.hypot(1.0, 0.5, 0.25), rel=1e-6)
  # Each part has four coordinates, of variance 2^2 and 2 x 8^2.
  assert float(squared_noise) == pytest.approx(4 * 2.0**2 + 4 * 2 * 8.0**2)


def test_equal_nested_queries_have_independent_noise():
  size = 10_000
  same = _gaussian(tf.TensorSpec([size]), seed=None)
  query = queries.NestedSumQuery([same, same])
  zeros = tf.zeros([size])
  ((first, second),), _, _ = _run(query, [[zeros, zeros]], num_rounds=1)
  # The correlation of 10,000 pairs is beyond 5 / 100 with probability 6e-7.
  assert abs(np.corrcoef(first, second)[0, 1]) < 0.05


def test_nested_query_refuses_parts_with_same_noise_stream():
  for other in (_gaussian(tf.TensorSpec([3]), seed=7), _laplace(seed=7)):
    with pytest.raises(ValueError, match='the noise of seed 7, stream 0'):
      queries.NestedSumQuery([_gaussian(seed=7), {'deep': other}])
  within = queries.NestedSumQuery({'deep': _gaussian(seed=7)})
  with pytest.raises(ValueError, match='the noise of seed 7, stream 0'):
    queries.NestedSumQuery([within, _laplace(seed=7)])
  queries.NestedSumQuery([_gaussian(seed=7), _gaussian(seed=8), _gaussian(seed=None)])
  queries.NestedSumQuery([within, _gaussian(seed=8)])


def _local(seed, specs=_MATRIX):
  return queries.LocalGaussianSumQuery(
    clip_norm=1.0,
    noise_multiplier=2.0,
    record_specs=specs,
    seed=None if seed is None else noise.Seed(seed),
  )


@pytest.mark.parametrize('seeds', [(3, 4), (None, None)])
def test_nested_client_noise_is_that_of_each_part(seeds):
  one, other = (_local(seed) for seed in seeds)
  approximate = queries.ApproximateLocalSumQuery(
    noise='laplace', clip_norm=1.0, noise_multiplier=2.0, record_specs=_MATRIX
  )
  parts = {'one': one, 'other': [other, _gaussian()], 'none': (approximate,)}
  query = queries.NestedSumQuery(parts)
  assert query.clients_add_noise
  state = query.initial_global_state()
  params, key = query.derive_sample_params(state), query.round_key(state)
  record = tf.fill([2, 2], 0.1)
  records = {'one': record, 'other': [record, record], 'none': (record,)}
  sums, finite = query.encode_without_noise(params, records)
  clipped, _ = one.encode_without_noise(params['one'], record)
  assert bool(finite)
  numbers = [tf.constant(number, tf.int64) for number in (5, 6)]
  noised = [query.with_noise_of(params, sums, key, number) for number in numbers]
  noises = {
    (part, number): query_.noise_of(params['one'], own, tf.constant(number, tf.int64))
    for part, query_, own in (
      ('one', one, key['one']),
      ('other', other, key['other'][0]),
    )
    for number in (5, 6)
  }
  for number, each in zip((5, 6), noised):
    assert np.all(each['one'] == clipped + noises['one', number])
    assert np.all(each['other'][0] == clipped + noises['other', number])
    # The server adds the noise of [1] later; the approximation counts the client.
    assert np.all(each['other'][1] == sums['other'][1]) and key['other'][1] == ()
    assert np.all(each['none'][0].record == sums['none'][0].record)
    assert int(each['none'][0].clients) == 1
  values = np.concatenate([np.ravel(each) for each in noises.values()])
  assert len(set(values)) == values.size == 16
  again = query.round_key(state)
  assert np.all(again['one'] == key['one']) == (seeds[0] is not None)


@pytest.mark.parametrize(
  'sub_queries', [None, [_gaussian(), queries.NoPrivacySumQuery()], tfp.DPQuery]
)
def test_nested_query_refuses_parts_that_are_not_clipping_queries(sub_queries):
  with pytest.raises(TypeError, match='sub_queries must be a query'):
    queries.NestedSumQuery(sub_queries)


def test_nested_query_refuses_empty_structure():
  with pytest.raises(ValueError, match='must have a query in it'):
    queries.NestedSumQuery([])


@pytest.mark.parametrize(
  ('record', 'message'),
  [
    ({'a': [777.0]}, r"parts \['a', 'b'\] at the top; got a dict with \['a'\]"),
    ({'a': [777.0], 'b': 777.0}, r'parts \[0, 1\] at a/; got a list with \[0\]'),
    (777.0, 'at the top; got a float'),
  ],
)
def test_nested_structure_error_does_not_show_record_values(record, message):
  scalar = tf.TensorSpec([])
  query = queries.NestedSumQuery(
    {'a': [_gaussian(scalar, 1), _gaussian(scalar, 2)], 'b': _gaussian(scalar, 3)}
  )
  params = query.derive_sample_params(query.initial_global_state())
  with pytest.raises(ValueError, match=message) as error:
    query.preprocess_record(params, record)
  assert '777' not in str(error.value)
