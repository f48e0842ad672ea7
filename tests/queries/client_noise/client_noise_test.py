"""Queries whose clients add noise to their records, and their approximation."""

import fractions
import math

import dp_accounting
import numpy as np
import pytest
import scipy.stats
import tensorflow as tf

from tests.queries import records as records_lib
from tff_dp_aggregators import accounting
from tff_dp_aggregators import noise
from tff_dp_aggregators import queries
from tff_dp_aggregators import strategies
from tff_dp_aggregators.accounting import local
from tff_dp_aggregators.queries import grid

_SIZE = 20_000
_SPEC = tf.TensorSpec([_SIZE])
_LIMITS = strategies.Participation(6, min_separation=2)
_LOCAL = {
  'gaussian': queries.LocalGaussianSumQuery,
  'laplace': queries.LocalLaplaceSumQuery,
}
_STDDEVS = {'gaussian': 1.0, 'laplace': math.sqrt(2)}
_KS = {'gaussian': 'norm', 'laplace': 'laplace'}
both_kinds = pytest.mark.parametrize('kind', _LOCAL)


_DEFAULTS = {'clip_norm': 0.5, 'noise_multiplier': 3.0, 'record_specs': _SPEC}


def _local(kind, **kwargs):
  return _LOCAL[kind](**{**_DEFAULTS, **kwargs})


def _shares(min_clients=9):
  return queries.GaussianSharesSumQuery(min_clients=min_clients, **_DEFAULTS)


def _approximate(kind, **kwargs):
  return queries.ApproximateLocalSumQuery(noise=kind, **{**_DEFAULTS, **kwargs})


def _step_size(query):
  """Returns the size of one step of the grid."""
  return 1 / float(query._steps(tf.constant(query.clip_norm, tf.float32)))


def _sums(query, clients, record=None, rounds=1):
  """Sums of equal records of `clients` clients, a row per round, and the last state."""
  record = tf.zeros([_SIZE]) if record is None else record

  @tf.function(autograph=False)
  def one_round(state):
    params = query.derive_sample_params(state)
    # One graph for all clients, as in TFF.
    _, sample = tf.while_loop(
      lambda client, unused_sample: client < clients,
      lambda client, sample: (
        client + 1,
        query.accumulate_record(params, sample, record),
      ),
      (tf.constant(0), query.initial_sample_state()),
    )
    return query.get_noised_result(sample, state)[:2]

  state, released = query.initial_global_state(), []
  for _ in range(rounds):
    result, state = one_round(state)
    released.append(result.numpy().astype(np.float64))
  return np.array(released), state


@both_kinds
def test_local_noise_of_one_client_has_stated_distribution(kind):
  (noised,), _ = _sums(_local(kind), 1)
  assert scipy.stats.kstest(noised, _KS[kind], args=(0, 1.5)).pvalue > 1e-7


@pytest.mark.parametrize('clip_norm', [0.7, 2.0**-80, 2.0**80])
@pytest.mark.parametrize('noise_multiplier', [2.0**-20, 7.3, 2.0**20])
@both_kinds
def test_largest_record_and_noise_fit_into_an_entry(kind, noise_multiplier, clip_norm):
  query = _local(kind, clip_norm=clip_norm, noise_multiplier=noise_multiplier)
  bound = fractions.Fraction(float(np.float32(clip_norm)))
  bound *= fractions.Fraction(1 / _step_size(query))
  # The largest noise is 11.6 standard deviations (Gaussian) or 88.8 scales (Laplace).
  largest = {'gaussian': '11.6', 'laplace': '88.8'}[kind]
  reach = bound * fractions.Fraction(noise_multiplier) * fractions.Fraction(largest)
  assert bound + reach + 1 <= grid.LARGEST_ENTRY
  # The grid is also as fine as `accounting.local` needs it for shares.
  assert bound * fractions.Fraction(noise_multiplier) >= 2**16


@both_kinds
def test_local_query_without_noise_sums_clipped_records(kind):
  query = _local(
    kind, noise_multiplier=0.0, record_specs=tf.TensorSpec([2]), seed=noise.Seed(1)
  )
  state = query.initial_global_state()
  records = [tf.constant([3.0, 4.0])] * 2
  result, _, event = records_lib.one_round(query, state, records)
  expected = [0.6, 0.8] if kind == 'gaussian' else [3 / 7, 4 / 7]
  np.testing.assert_allclose(result, expected, rtol=1e-6)
  assert event == dp_accounting.NonPrivateDpEvent()
  params = query.derive_sample_params(state)
  _, finite = query.encode_record(params, tf.constant([np.nan, 1.0]))
  assert not finite


@pytest.mark.parametrize(
  'kind, adjacency', [('gaussian', 'zero_out'), ('laplace', 'replace_one')]
)
def test_sampled_local_reports_satisfy_stated_epsilon_delta(kind, adjacency):
  # Each coordinate of the noise makes one report of a record with a single entry.
  noise_multiplier, size = 0.8, 200_000
  query = _local(
    kind, record_specs=tf.TensorSpec([]), noise_multiplier=noise_multiplier
  )
  vector_query = _local(
    kind, record_specs=tf.TensorSpec([size]), noise_multiplier=noise_multiplier
  )
  params = tf.constant(0.5)
  first_noise = vector_query.preprocess_record(params, tf.zeros([size])).numpy()
  second_noise = vector_query.preprocess_record(params, tf.zeros([size])).numpy()
  values = (0.5, 0.0 if adjacency == 'zero_out' else -0.5)
  clipped = [
    int(query.encode_without_noise(params, tf.constant(10 * x))[0]) for x in values
  ]
  event = local.local_event(noise_multiplier, noise=kind, adjacency=adjacency)
  for cut in (-0.5, 0.0, 0.25, 0.5, 1.0):
    cut_in_steps = cut / _step_size(query)
    p = np.mean(first_noise + clipped[0] > cut_in_steps)
    q = np.mean(second_noise + clipped[1] > cut_in_steps)
    for epsilon in (0.2, 1.0):
      stated = accounting.accountants.delta(event, epsilon)
      # Hoeffding's bound for both frequencies; each fails with probability 1e-8.
      slack = math.sqrt(math.log(2e8) / (2 * size)) * (1 + math.exp(epsilon))
      assert p - math.exp(epsilon) * q <= stated + slack


@both_kinds
def test_local_query_hides_nan_record_and_shares_query_reports_it(kind):
  nan_record = tf.fill([_SIZE], np.nan)
  for query, is_reported in ((_local(kind), False), (_shares(), True)):
    encoded, finite = query.encode_record(tf.constant(0.5), nan_record)
    assert bool(finite) != is_reported
    stddev = query.client_noise_multiplier * 0.5
    distribution = _KS[query.noise]
    noised = encoded.numpy() * _step_size(query)
    test = scipy.stats.kstest(noised, distribution, args=(0, stddev))
    assert test.pvalue > 1e-7


@pytest.mark.parametrize(
  'kind, generator', [('gaussian', 'chacha20'), ('laplace', 'philox')]
)
def test_client_noise_depends_on_seed_round_and_client_number(kind, generator):
  params = tf.constant(0.5)
  rows = {}
  for seed in (noise.Seed(1), noise.Seed(1), noise.Seed(2)):
    query = _local(
      kind, seed=seed, generator=generator, record_specs=tf.TensorSpec([2000])
    )
    state = query.initial_global_state()
    for this_round in range(2):
      state = state._replace(round=tf.constant(this_round, tf.int64))
      key = query.round_key(state)
      for number in (0, 1, -5, 2**62):
        row = query.noise_of(params, key, tf.constant(number, tf.int64)).numpy()
        row_id = (str(seed), this_round, number)
        np.testing.assert_array_equal(rows.setdefault(row_id, row), row)
  correlations = np.corrcoef(np.array(list(rows.values())))
  assert len(rows) == 16
  correlations = np.abs(correlations[np.triu_indices(16, 1)])
  assert correlations.max() < 7 / math.sqrt(2000)  # 3e-10 for 120 pairs.


def test_round_key_without_seed_is_new_on_each_call():
  query = _local('gaussian')
  state = query.initial_global_state()
  traced = tf.function(lambda: query.round_key(state))
  words = np.ravel([query.round_key(state), traced(), traced()])
  assert len(np.unique(words)) == 12


@pytest.mark.parametrize('kind, limits', [('gaussian', None), ('laplace', _LIMITS)])
def test_local_query_spends_one_event_per_possible_participation(kind, limits):
  query = _local(kind, participation=limits, record_specs=tf.TensorSpec([2]))
  state = query.initial_global_state()
  assert query.spent(state).to_event() == dp_accounting.NoOpDpEvent()
  events = []
  for this_round in range(6):
    count = this_round + 1 if limits is None else this_round // 2 + 1
    sample = query.initial_sample_state()
    _, state, event = query.get_noised_result(sample, state)
    expected = local.local_event(
      3.0, noise=kind, adjacency='zero_out', participations=count
    )
    spent = _as_numpy(query.spent(state))
    for delta in (1e-6, 1e-2):
      epsilon = accounting.accountants.epsilon(spent.to_event(), delta)
      assert epsilon == pytest.approx(accounting.accountants.epsilon(expected, delta))
    participates = limits is None or this_round % 2 == 0
    one_participation = local.local_event(3.0, noise=kind, adjacency='zero_out')
    no_op = dp_accounting.NoOpDpEvent()
    assert spent.last_to_event() == (one_participation if participates else no_op)
    assert math.isinf(float(event.noise_multiplier)) == (not participates)
    if participates:
      events.append(type(event)(float(event.noise_multiplier)))
  composed = accounting.accountants.epsilon(dp_accounting.ComposedDpEvent(events), 1e-6)
  assert composed == pytest.approx(accounting.accountants.epsilon(expected, 1e-6))
  if limits is not None:
    assert query.run_event() == local.local_event(
      3.0, noise=kind, adjacency='zero_out', participations=3
    )
    with pytest.raises(tf.errors.InvalidArgumentError, match='built for 6 rounds'):
      query.get_noised_result(sample, state)

  metrics = query.derive_metrics(state)
  assert metrics['participations'] == (6 if limits is None else 3)
  assert metrics['noise_site'] == b'local'


def _as_numpy(spent):
  return type(spent)(*(np.asarray(each) for each in spent))


def test_state_hides_server_key_and_other_mechanism_refuses_it():
  numbers = {'clip_norm': 1.0, 'noise_multiplier': 1.0, 'record_specs': _SPEC}
  query = queries.LocalGaussianSumQuery(server_noise_multiplier=2.0, **numbers)
  state = query.initial_global_state()
  assert 'secret' in repr(state)
  for word in state.server_key.numpy():
    assert str(word) not in repr(state)
  assert queries.LocalGaussianSumQuery(**numbers).initial_global_state()[2] == ()
  other_query = queries.LocalGaussianSumQuery(server_noise_multiplier=2.5, **numbers)
  with pytest.raises(tf.errors.InvalidArgumentError, match='another mechanism'):
    other_query.get_noised_result(other_query.initial_sample_state(), state)


@pytest.mark.parametrize(
  'make, arguments, other',
  [
    (  # A client's share of the noise is equal: 1 / sqrt(4) and 2 / sqrt(16).
      queries.GaussianSharesSumQuery,
      {'noise_multiplier': 1.0, 'min_clients': 4},
      {'noise_multiplier': 2.0, 'min_clients': 16},
    ),
    (
      queries.ApproximateLocalSumQuery,
      {'noise_multiplier': 1.0, 'noise': 'gaussian'},
      {'noise_multiplier': 1.0, 'noise': 'laplace'},
    ),
  ],
)
def test_query_refuses_state_of_equal_noise_but_other_event(make, arguments, other):
  common = {'clip_norm': 1.0, 'record_specs': _SPEC}
  query, other_query = make(**arguments, **common), make(**other, **common)
  state = query.initial_global_state()
  with pytest.raises(tf.errors.InvalidArgumentError, match='another mechanism'):
    other_query.get_noised_result(other_query.initial_sample_state(), state)
  query.get_noised_result(query.initial_sample_state(), state)


@both_kinds
def test_approximate_local_sum_has_mean_and_variance_of_local_sum(kind):
  clients = 12
  record = tf.constant(np.linspace(0, 0.004, _SIZE), tf.float32)
  exact, _ = _sums(_local(kind, clip_norm=60.0), clients, record, rounds=2)
  approximate, state = _sums(
    _approximate(kind, clip_norm=60.0), clients, record, rounds=2
  )
  expected = 180.0 * _STDDEVS[kind] * math.sqrt(clients)
  signal = clients * record.numpy()
  kurtosis = 0 if kind == 'gaussian' else 3 / clients
  tolerance = 6 * math.sqrt((2 + kurtosis) / _SIZE) / 2  # Fails with 2e-9 each.
  for released in (*exact, *approximate):
    noise_alone = released - signal
    assert noise_alone.std() == pytest.approx(expected, rel=tolerance)
    assert abs(noise_alone.mean()) < 6 * expected / math.sqrt(_SIZE)
  assert np.abs(np.corrcoef(approximate)[0, 1]) < 6 / math.sqrt(_SIZE)
  for noised in approximate - signal:
    assert scipy.stats.kstest(noised, 'norm', args=(0, expected)).pvalue > 1e-7
  if kind == 'gaussian':  # The distributions are equal too.
    same = scipy.stats.ks_2samp(exact.ravel(), approximate.ravel())
    assert same.pvalue > 1e-7
  assert state.round == 2


def test_approximate_local_query_has_non_private_events():
  query = _approximate('laplace', record_specs=tf.TensorSpec([2]))
  state = query.initial_global_state()
  sample = query.accumulate_record(
    tf.constant(0.5), query.initial_sample_state(), tf.constant([0.1, 0.2])
  )
  np.testing.assert_allclose(
    sample.record.numpy() * _step_size(query), [0.1, 0.2], atol=2 * _step_size(query)
  )
  _, state, event = query.get_noised_result(sample, state)
  non_private = dp_accounting.NonPrivateDpEvent()
  spent = _as_numpy(query.spent(state))
  assert event == spent.to_event() == spent.last_to_event() == non_private
  assert query.derive_metrics(state)['noise_site'] == b'local_approximate'


@pytest.mark.parametrize(
  ('build', 'message'),
  [
    (lambda: _local('gaussian', noise_multiplier=2.0**21), 'within 2\\^-20 and 2\\^20'),
    (lambda: _local('laplace', noise_multiplier=1e-8), 'within 2\\^-20 and 2\\^20'),
    (lambda: _local('gaussian', clip_norm=0.0), 'clip_norm must be positive'),
    (lambda: _shares(min_clients=0), 'min_clients must be at least 1'),
    (lambda: _approximate('uniform'), "noise must be 'gaussian' or 'laplace'"),
    (
      lambda: _local('gaussian', noise_multiplier=1e-5, server_noise_multiplier=1e8),
      "too small compared with the server's",
    ),
  ],
)
def test_client_noise_query_refuses_out_of_range_arguments(build, message):
  with pytest.raises(ValueError, match=message):
    build()
