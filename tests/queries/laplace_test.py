"""`LaplaceSumQuery`: sums of L1-clipped records with the noise of its event."""

import math

import dp_accounting
import numpy as np
import pytest
import scipy.stats
import tensorflow as tf
from dp_accounting import pld
from dp_accounting import rdp

from tests.queries import records as records_lib
from tff_dp_aggregators import noise as noise_lib
from tff_dp_aggregators import queries
from tff_dp_aggregators import strategies

_SEED = 918273645


def _build(**kwargs):
  defaults = {
    'clip_norm': 1.0,
    'noise_multiplier': 2.0,
    'record_specs': records_lib.SPECS,
  }
  rounds = kwargs.pop('num_rounds', None)
  limits = None if rounds is None else strategies.Participation(rounds)
  limits = kwargs.pop('participation', limits)
  return queries.LaplaceSumQuery(limits, **{**defaults, **kwargs})


def test_laplace_query_without_noise_sums_l1_clipped_records():
  query = _build(noise_multiplier=0.0, clip_norm=0.5)
  values = np.random.default_rng(1).normal(size=[4, 6])
  values[0] *= 0.01
  records = [records_lib.record(row) for row in values]
  result, _, _ = records_lib.one_round(query, query.initial_global_state(), records)
  tf.nest.assert_same_structure(result, records_lib.SPECS)
  norms = np.abs(values).sum(axis=1, keepdims=True)
  expected = (values / np.maximum(1, norms / 0.5)).sum(axis=0)
  np.testing.assert_allclose(records_lib.flat(result), expected, atol=1e-6)


@pytest.mark.parametrize('dtype', [tf.float16, tf.float64])
def test_noise_is_laplace_of_scale_clip_norm_times_noise_multiplier(dtype):
  # Kolmogorov-Smirnov test, with false alarm 1e-8 in each of three rounds.
  size = 200_000
  query = _build(
    clip_norm=0.25,
    noise_multiplier=3.0,
    record_specs=tf.TensorSpec([size], dtype),
    seed=noise_lib.Seed(5),
  )
  state = query.initial_global_state()
  released = []
  for _ in range(3):
    result, state, _ = records_lib.one_round(query, state)
    assert result.dtype == (tf.float64 if dtype == tf.float64 else tf.float32)
    noise = result.numpy().astype(np.float64)
    assert scipy.stats.kstest(noise, 'laplace', args=(0, 0.75)).pvalue > 1e-8
    released.append(noise)
  # Rounds are uncorrelated: seven standard deviations, 3e-12 for each of three pairs.
  correlations = np.corrcoef(released)[~np.eye(3, dtype=bool)]
  assert np.abs(correlations).max() < 7 / math.sqrt(size)


@pytest.mark.parametrize('noise_multiplier, num_rounds', [(0.5, 1), (20.0, 3)])
def test_accountants_match_closed_form_laplace_epsilon(noise_multiplier, num_rounds):
  query = _build(noise_multiplier=noise_multiplier, num_rounds=num_rounds)
  state = query.initial_global_state()
  round_events = []
  for _ in range(num_rounds):
    _, state, event = records_lib.one_round(query, state)
    round_events.append(dp_accounting.LaplaceDpEvent(float(event.noise_multiplier)))
  epsilon = num_rounds / noise_multiplier
  assert float(query.derive_metrics(state)['epsilon']) == pytest.approx(epsilon)
  for event in (query.run_event(), dp_accounting.ComposedDpEvent(round_events)):
    # The largest loss has a probability of 2^-n, so a delta of 1e-9 saves next to
    # nothing; losses are rounded up to multiples of 1e-4.
    pld_epsilon = pld.PLDAccountant().compose(event).get_epsilon(1e-9)
    assert epsilon - 1e-6 <= pld_epsilon <= epsilon + 1e-3 * num_rounds
    # dp-accounting bounds the Renyi divergence of a high order by epsilon, and adds
    # 28 / (order - 1) for a delta of 1e-12.
    renyi = rdp.RdpAccountant(orders=[2.0, 10.0, 1e6]).compose(event)
    assert renyi.get_epsilon(1e-12) == pytest.approx(epsilon, abs=5e-5)


def test_log_ratios_of_neighbouring_outputs_stay_within_epsilon():
  # A histogram of 10^6 outputs with and without one client, in 22 bins of at least
  # 1000 expected counts: log-ratios beyond epsilon by seven of their standard
  # deviations (at most sqrt(2 / 1000)) have probability 3e-12 each.
  size = 1_000_000
  query = _build(
    record_specs=tf.TensorSpec([size]), noise_multiplier=2.0, seed=noise_lib.Seed(3)
  )
  without, state, _ = records_lib.one_round(query, query.initial_global_state())
  # Noise + 1.0 is a coordinate with a client whose whole norm is there.
  noise, _, _ = records_lib.one_round(query, state)
  edges = np.linspace(-5, 6, 23)
  counts_without = np.histogram(without, edges)[0]
  counts_with = np.histogram(noise + 1.0, edges)[0]
  assert min(counts_without.min(), counts_with.min()) > 1000
  ratios = np.abs(np.log(counts_without / counts_with))
  assert np.all(ratios <= 0.5 + 7 * np.sqrt(1 / counts_without + 1 / counts_with))
  assert ratios.max() > 0.45  # The bound is attained.


def test_laplace_query_without_noise_has_infinite_epsilon():
  query = _build(noise_multiplier=0.0, num_rounds=2)
  state = query.initial_global_state()
  assert float(query.derive_metrics(state)['epsilon']) == 0.0
  _, state, event = records_lib.one_round(query, state)
  assert event == dp_accounting.NonPrivateDpEvent()
  assert query.run_event().event == dp_accounting.NonPrivateDpEvent()
  assert float(query.derive_metrics(state)['epsilon']) == math.inf


def test_metrics_and_repr_show_noise_but_no_secret():
  query = _build(clip_norm=0.5, num_rounds=7, seed=noise_lib.Seed(_SEED))
  _, state, _ = records_lib.one_round(query, query.initial_global_state())
  metrics = query.derive_metrics(state)
  assert metrics.pop('noise_generator').numpy().decode() == 'philox'
  assert metrics.pop('noise_key_tag').numpy() == b''
  actual = {name: float(value) for name, value in metrics.items()}
  expected = {'rounds': 1, 'clip_norm': 0.5, 'noise_multiplier': 2.0, 'epsilon': 0.5}
  assert actual == expected
  for secret in (_SEED, *state.key.numpy().tolist()):
    assert str(secret) not in f'{metrics} {query!r} {query}'
  assert 'clip_norm=0.5' in repr(query)
  assert 'num_rounds=7' in repr(query)


@pytest.mark.parametrize(
  ('kwargs', 'error', 'message'),
  [
    ({'clip_norm': 0.0}, ValueError, 'clip_norm must be positive'),
    ({'noise_multiplier': -1.0}, ValueError, 'noise_multiplier must be finite'),
    ({'noise_multiplier': 1e-9}, ValueError, 'noise_multiplier must be 0'),
    ({'participation': 3}, TypeError, 'participation must be'),
    ({'seed': 'a'}, TypeError, 'seed must be an int'),
  ],
)
def test_laplace_query_refuses_invalid_arguments(kwargs, error, message):
  with pytest.raises(error, match=message):
    _build(**kwargs)
