"""Each client's record gets noise of its own, of the kind and size accounted for."""

import fractions
import math

import dp_accounting
import numpy as np
import pytest
import scipy.stats
import tensorflow as tf

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


def _local(kind, **kwargs):
  defaults = {'clip_norm': 0.5, 'noise_multiplier': 3.0, 'record_specs': _SPEC}
  return _LOCAL[kind](**{**defaults, **kwargs})


def _shares(**kwargs):
  defaults = {
    'clip_norm': 0.5,
    'noise_multiplier': 3.0,
    'min_clients': 9,
    'record_specs': _SPEC,
  }
  return queries.GaussianSharesSumQuery(**{**defaults, **kwargs})


def _approximate(kind, **kwargs):
  defaults = {'clip_norm': 0.5, 'noise_multiplier': 3.0, 'record_specs': _SPEC}
  return queries.ApproximateLocalSumQuery(noise=kind, **{**defaults, **kwargs})


def _unit(query):
  """What one step of the grid is worth."""
  return 1 / float(query._steps(tf.constant(query.clip_norm, tf.float32)))


def _sums(query, clients, record=None, rounds=1):
  """Sums of so many equal records, a row for each round."""
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
def test_noise_of_one_client_has_the_stated_distribution(kind):
  (noised,), _ = _sums(_local(kind), 1)
  assert scipy.stats.kstest(noised, _KS[kind], args=(0, 1.5)).pvalue > 1e-7


@pytest.mark.parametrize('clip_norm', [0.7, 2.0**-80, 2.0**80])
@pytest.mark.parametrize('noise_multiplier', [2.0**-20, 7.3, 2.0**20])
@both_kinds
def test_what_a_client_sends_is_within_the_sums(kind, noise_multiplier, clip_norm):
  query = _local(kind, clip_norm=clip_norm, noise_multiplier=noise_multiplier)
  bound = fractions.Fraction(float(np.float32(clip_norm)))
  bound *= fractions.Fraction(1 / _unit(query))
  # As far as noise reaches: 11.6 deviations of Gaussians, 88.8 scales of Laplace.
  largest = {'gaussian': '11.6', 'laplace': '88.8'}[kind]
  reach = bound * fractions.Fraction(noise_multiplier) * fractions.Fraction(largest)
  assert bound + reach + 1 <= grid.LARGEST_ENTRY
  # And the grid is as fine as `accounting.local` needs it for shares.
  assert bound * fractions.Fraction(noise_multiplier) >= 2**16


@both_kinds
def test_without_noise_sums_are_those_of_clipped_records(kind):
  query = _local(
    kind, noise_multiplier=0.0, record_specs=tf.TensorSpec([2]), seed=noise.Seed(1)
  )
  state = query.initial_global_state()
  params = query.derive_sample_params(state)
  sample = query.initial_sample_state()
  for _ in range(2):
    sample = query.accumulate_record(params, sample, tf.constant([3.0, 4.0]))
  result, _, event = query.get_noised_result(sample, state)
  expected = [0.6, 0.8] if kind == 'gaussian' else [3 / 7, 4 / 7]
  np.testing.assert_allclose(result, expected, rtol=1e-6)
  assert event == dp_accounting.NonPrivateDpEvent()
  _, finite = query.encode_record(params, tf.constant([np.nan, 1.0]))
  assert not finite


@pytest.mark.parametrize(
  'kind, adjacency', [('gaussian', 'zero_out'), ('laplace', 'replace_one')]
)
def test_real_reports_are_no_easier_to_tell_apart_than_stated(kind, adjacency):
  # Each coordinate is a report of its own, of a record with one entry.
  noise_multiplier, size = 0.8, 200_000
  query = _local(
    kind, record_specs=tf.TensorSpec([]), noise_multiplier=noise_multiplier
  )
  beside = _local(
    kind, record_specs=tf.TensorSpec([size]), noise_multiplier=noise_multiplier
  )
  params = tf.constant(0.5)
  added = beside.preprocess_record(params, tf.zeros([size])).numpy()
  more = beside.preprocess_record(params, tf.zeros([size])).numpy()
  ends = (0.5, 0.0 if adjacency == 'zero_out' else -0.5)
  clipped = [
    int(query.encode_without_noise(params, tf.constant(10 * end))[0]) for end in ends
  ]
  event = local.local_event(noise_multiplier, noise=kind, adjacency=adjacency)
  for cut in (-0.5, 0.0, 0.25, 0.5, 1.0):
    at_cut = cut / _unit(query)
    p = np.mean(added + clipped[0] > at_cut)
    q = np.mean(more + clipped[1] > at_cut)
    for epsilon in (0.2, 1.0):
      stated = accounting.accountants.delta(event, epsilon)
      # Hoeffding for both, 1e-8.
      slack = math.sqrt(math.log(2e8) / (2 * size)) * (1 + math.exp(epsilon))
      assert p - math.exp(epsilon) * q <= stated + slack


@both_kinds
def test_a_client_that_hides_itself_does_not_tell_of_nan(kind):
  broken = tf.fill([_SIZE], np.nan)
  for query, told in ((_local(kind), False), (_shares(), True)):
    sent, finite = query.encode_record(tf.constant(0.5), broken)
    assert bool(finite) != told
    stddev = query.client_noise_multiplier * 0.5
    kind_of_noise = _KS[query.noise]
    noised = sent.numpy() * _unit(query)
    test = scipy.stats.kstest(noised, kind_of_noise, args=(0, stddev))
    assert test.pvalue > 1e-7


@pytest.mark.parametrize(
  'kind, generator', [('gaussian', 'chacha20'), ('laplace', 'philox')]
)
def test_noise_of_numbered_clients_is_their_own_and_the_same_again(kind, generator):
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
        place = (str(seed), this_round, number)
        np.testing.assert_array_equal(rows.setdefault(place, row), row)
  correlations = np.corrcoef(np.array(list(rows.values())))
  assert len(rows) == 16
  correlations = np.abs(correlations[np.triu_indices(16, 1)])
  assert correlations.max() < 7 / math.sqrt(2000)  # 120 pairs: 3e-10.


def test_without_a_seed_each_round_key_is_new():
  query = _local('gaussian')
  state = query.initial_global_state()
  traced = tf.function(lambda: query.round_key(state))
  words = np.ravel([query.round_key(state), traced(), traced()])
  assert len(np.unique(words)) == 12


@pytest.mark.parametrize('kind, limits', [('gaussian', None), ('laplace', _LIMITS)])
def test_spent_is_one_local_event_for_each_round_that_a_client_may_be_in(kind, limits):
  query = _LOCAL[kind](
    limits, clip_norm=0.5, noise_multiplier=3.0, record_specs=tf.TensorSpec([2])
  )
  state = query.initial_global_state()
  assert query.spent(state).to_event() == dp_accounting.NoOpDpEvent()
  composed = []
  for this_round in range(6):
    count = this_round + 1 if limits is None else this_round // 2 + 1
    sample = query.initial_sample_state()
    _, state, event = query.get_noised_result(sample, state)
    composed.append(event)
    expected = local.local_event(
      3.0, noise=kind, adjacency='zero_out', participations=count
    )
    spent = _numpy(query.spent(state))
    for delta in (1e-6, 1e-2):
      epsilon = accounting.accountants.epsilon(spent.to_event(), delta)
      assert epsilon == pytest.approx(accounting.accountants.epsilon(expected, delta))
    adds = limits is None or this_round % 2 == 0
    own = local.local_event(3.0, noise=kind, adjacency='zero_out')
    nothing = dp_accounting.NoOpDpEvent()
    assert spent.last_to_event() == (own if adds else nothing)
    assert math.isinf(float(event.noise_multiplier)) == (not adds)
  if limits is not None:
    assert query.run_event() == local.local_event(
      3.0, noise=kind, adjacency='zero_out', participations=3
    )
    with pytest.raises(tf.errors.InvalidArgumentError, match='built for 6 rounds'):
      query.get_noised_result(sample, state)
  else:
    with pytest.raises(ValueError, match='any number of rounds'):
      query.run_event()
  metrics = query.derive_metrics(state)
  assert metrics['participations'] == (6 if limits is None else 3)
  assert metrics['noise_site'] == b'local'


def _numpy(spent):
  return type(spent)(*(np.asarray(each) for each in spent))


def test_a_state_belongs_to_its_mechanism_and_shows_no_key():
  numbers = {'clip_norm': 1.0, 'noise_multiplier': 1.0, 'record_specs': _SPEC}
  query = queries.LocalGaussianSumQuery(server_noise_multiplier=2.0, **numbers)
  state = query.initial_global_state()
  assert 'secret' in repr(state)
  for word in state.server_key.numpy():
    assert str(word) not in repr(state)
  assert queries.LocalGaussianSumQuery(**numbers).initial_global_state()[2] == ()
  other = queries.LocalGaussianSumQuery(server_noise_multiplier=2.5, **numbers)
  with pytest.raises(tf.errors.InvalidArgumentError, match='another mechanism'):
    other.get_noised_result(other.initial_sample_state(), state)


@pytest.mark.parametrize(
  'make, begun, other',
  [
    (  # Equal shares: 1 / sqrt(4) and 2 / sqrt(16).
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
def test_a_state_is_not_continued_with_other_events_of_equal_noise(make, begun, other):
  numbers = {'clip_norm': 1.0, 'record_specs': _SPEC}
  query, stranger = make(**begun, **numbers), make(**other, **numbers)
  state = query.initial_global_state()
  with pytest.raises(tf.errors.InvalidArgumentError, match='another mechanism'):
    stranger.get_noised_result(stranger.initial_sample_state(), state)
  query.get_noised_result(query.initial_sample_state(), state)


@both_kinds
def test_the_approximation_has_the_mean_and_variance_of_local_noise(kind):
  clients = 12
  record = tf.constant(np.linspace(0, 0.004, _SIZE), tf.float32)
  exact, _ = _sums(_local(kind, clip_norm=60.0), clients, record, rounds=2)
  approximate, state = _sums(
    _approximate(kind, clip_norm=60.0), clients, record, rounds=2
  )
  expected = 180.0 * _STDDEVS[kind] * math.sqrt(clients)
  signal = clients * record.numpy()
  kurtosis = 0 if kind == 'gaussian' else 3 / clients
  tolerance = 6 * math.sqrt((2 + kurtosis) / _SIZE) / 2  # 2e-9 each.
  for released in (*exact, *approximate):
    noise_alone = released - signal
    assert noise_alone.std() == pytest.approx(expected, rel=tolerance)
    assert abs(noise_alone.mean()) < 6 * expected / math.sqrt(_SIZE)
  assert np.abs(np.corrcoef(approximate)[0, 1]) < 6 / math.sqrt(_SIZE)
  for noised in approximate - signal:
    assert scipy.stats.kstest(noised, 'norm', args=(0, expected)).pvalue > 1e-7
  if kind == 'gaussian':  # The distribution too.
    same = scipy.stats.ks_2samp(exact.ravel(), approximate.ravel())
    assert same.pvalue > 1e-7
  assert state.round == 2


def test_the_approximation_says_that_nothing_is_private():
  query = _approximate('laplace', record_specs=tf.TensorSpec([2]))
  state = query.initial_global_state()
  sample = query.accumulate_record(
    tf.constant(0.5), query.initial_sample_state(), tf.constant([0.1, 0.2])
  )
  np.testing.assert_allclose(
    sample.record.numpy() * _unit(query), [0.1, 0.2], atol=2 * _unit(query)
  )
  _, state, event = query.get_noised_result(sample, state)
  none = dp_accounting.NonPrivateDpEvent()
  spent = _numpy(query.spent(state))
  assert event == spent.to_event() == spent.last_to_event() == none
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
def test_numbers_out_of_range_are_refused(build, message):
  with pytest.raises(ValueError, match=message):
    build()
