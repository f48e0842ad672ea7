"""Means with distributed noise: the noise, events and secure sums."""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff
from scipy import stats

from tests.aggregators import running
from tff_dp_aggregators import accounting
from tff_dp_aggregators import aggregators
from tff_dp_aggregators import queries
from tff_dp_aggregators import strategies

_BUILDERS = {
  'skellam': aggregators.distributed_skellam,
  'discrete_gaussian': aggregators.distributed_discrete_gaussian,
}
_SIZE = 100
_TYPE = tff.TensorType(np.float32, [_SIZE])
# Probability of a false alarm on each side.
_FALSE_ALARM = 1e-6
secure_backend = running.secure_backend
all_noises = pytest.mark.parametrize('noise', sorted(_BUILDERS))


def _build(noise, **changes):
  numbers = {
    'clip_norm': 1.0,
    'noise_multiplier': 1.5,
    'clients_per_round': 4,
    'bits': 18,
    **changes,
  }
  return _BUILDERS[noise](**numbers)


@all_noises
def test_noise_of_mean_is_sum_of_planned_shares(noise):
  factory = _build(noise, noise_multiplier=1.5)
  query = factory.mean_of(tff.TensorType(np.float32, [2048]))._query
  state = query.initial_global_state()
  params = query.derive_sample_params(state)
  zeros = tf.zeros([2048])
  shares = [query.encode_record(params, zeros)[0].entries.numpy() for _ in range(4)]
  centred = [np.where(entries >= 2**17, entries - 2**18, entries) for entries in shares]
  # Zeros are rounded to zeros, so a client sends its noise alone.
  variance = query.mechanism.local_stddev**2
  for entries in centred:
    statistic = (entries.astype(float) ** 2).sum() / variance
    assert _FALSE_ALARM < stats.chi2.cdf(statistic, 2048) < 1 - _FALSE_ALARM
  for i in range(4):
    for j in range(i):
      correlation = (centred[i] * centred[j]).sum() / variance / 2048**0.5
      assert abs(correlation) < 6
  sample = queries.Shares(tf.constant(sum(shares)), tf.constant(4, tf.int64))
  noised, _, _ = query.get_noised_result(sample, state)
  statistic = float(tf.reduce_sum(tf.square(noised))) / 1.5**2
  assert _FALSE_ALARM < stats.chi2.cdf(statistic, 2048) < 1 - _FALSE_ALARM


def test_clients_of_a_round_do_not_share_their_noise():
  process = _build('skellam').create(tff.TensorType(np.float32, [1000]))
  state = process.initialize()
  results = []
  for _ in range(2):
    output = process.next(state, [np.zeros(1000, np.float32)] * 4)
    results.append(output.result)
    # With one key for all clients it would be four times as large.
    statistic = (output.result**2).sum() / (1.5 / 4) ** 2
    assert _FALSE_ALARM < stats.chi2.cdf(statistic, 1000) < 1 - _FALSE_ALARM
  correlation = (results[0] * results[1]).sum() / (1.5 / 4) ** 2 / 1000**0.5
  assert abs(correlation) < 6  # The same state, but other noise.


def test_secure_modular_sum_gives_mean_and_event_of_plain_sum(secure_backend):
  limits = strategies.Participation(6, min_separation=2)
  updates = list(np.full([4, _SIZE], 0.05, np.float32))
  for sums in (None, aggregators.secure_modular_sum(bits=18)):
    factory = aggregators.distributed_skellam(
      limits,
      clip_norm=1.0,
      noise_multiplier=0.01,
      clients_per_round=4,
      bits=18,
      record_aggregation_factory=sums,
    )
    process = factory.create(_TYPE)
    state = process.initialize()
    with pytest.raises(ValueError, match='from initialize: nothing was rel'):
      aggregators.extract_dp_event(state)
    for number in range(1, 4):
      output = process.next(state, updates)
      state = output.state
      np.testing.assert_allclose(output.result, updates[0], atol=0.03)
      spent = aggregators.extract_dp_event(state)
      count = getattr(spent.all_rounds_so_far, 'count', 1)
      assert count == (number + 1) // 2
    last = spent.last_round_only
    assert isinstance(last, accounting.events.SkellamDpEvent)


def test_rounds_with_too_few_or_too_many_clients_fail():
  query = _build('skellam', min_clients=3, max_clients=5).mean_of(_TYPE)._query
  state = query.initial_global_state()

  def release(clients):
    sums = query.initial_sample_state()
    sample = sums._replace(clients=tf.constant(clients, tf.int64))
    return query.get_noised_result(sample, state)

  release(3)
  release(5)
  with pytest.raises(tf.errors.InvalidArgumentError, match='fewer clients than min_cl'):
    release(2)
  with pytest.raises(tf.errors.InvalidArgumentError, match='more than max_clients'):
    release(6)


@all_noises
def test_hostile_records_stay_within_sensitivity_bounds(noise):
  query = _build(noise, bits=12).mean_of(_TYPE)._query
  params = query.derive_sample_params(query.initial_global_state())
  rng = np.random.default_rng(7)
  hostile = [
    np.full(_SIZE, value, np.float32)
    for value in (0, 1e-45, 1e38, -3e38, np.inf, -np.inf, np.nan, 1.0, 0.1)
  ]
  hostile += [10 ** rng.uniform(-3, 3) * rng.normal(size=_SIZE) for _ in range(20)]
  query._draw = lambda key: tf.zeros([query.mechanism.dimension], tf.int64)
  encode = tf.function(query.encode_record, autograph=False)
  for record in hostile:
    shares, finite = encode(params, tf.constant(record, tf.float32))
    entries = shares.entries.numpy()
    entries = np.where(entries >= 2**11, entries - 2**12, entries)
    assert sum(int(each) ** 2 for each in entries) <= query.mechanism.norm_squared
    assert np.abs(entries).sum() <= query.mechanism.l1_sensitivity
    assert bool(finite) == bool(np.isfinite(record).all())


def test_unsuitable_bits_moduli_and_clients_are_refused():
  with pytest.raises(ValueError, match='Take more bits'):
    _build('skellam', bits=3).create(_TYPE)
  with pytest.raises(ValueError, match=r'Use secure_modular_sum\(bits=18\)'):
    _build(
      'skellam', record_aggregation_factory=aggregators.secure_modular_sum(bits=17)
    )
  with pytest.raises(ValueError, match='min_clients must be given'):
    _build('skellam', clients_per_round=4.5)
  with pytest.raises(ValueError, match='max_clients must be at least 3'):
    _build('skellam', max_clients=2, min_clients=3)


def test_distributed_noise_may_be_for_a_part_of_joint():
  joint = aggregators.joint(
    {
      'shares': _build('skellam', noise_multiplier=1e-3),
      'plain': aggregators.norm_clip(clip_norm=1.0, clients_per_round=4),
    },
    part_of=['plain', 'shares'],
  )
  assert joint.query.clients_draw_keys and joint.query.min_clients == 4
  tensor = tff.TensorType(np.float32, [3])
  process = joint.create(tff.to_type([tensor, tensor]))
  values = [np.full(3, 0.25, np.float32), np.full(3, -0.5, np.float32)]
  output = process.next(process.initialize(), [values] * 4)
  for actual, expected in zip(output.result, values):
    np.testing.assert_allclose(actual, expected, atol=1e-2)
